"""Random programs of loops and branches that change parts of what they carry: rows, blocks, nothing at all.

`looping(random, rows, columns, element)` gives a function that builds one from a matrix, a vector and a place. Old
values stay in use beside new ones, values are carried twice, exchanged, captured and returned in any mixture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from smelt.dim import Size
from smelt.ir.attributes import ScatterDims
from smelt.ir.build import Builder
from smelt.ir.core import Region, Value
from smelt.shape import Shape

DEEPEST = 2  # loops inside loops
Kinds = dict[str, list[Value]]  # values at hand: matrices "m", vectors "v", places "s"


def looping(seed: int, rows: int, columns: Size, element: str) -> Callable[[Builder, Value, Value, Value], Value]:
    def build(b: Builder, matrix: Value, vector: Value, place: Value) -> Value:
        return _Author(np.random.default_rng(seed), rows, columns, element).program(b, matrix, vector, place)

    return build


@dataclass
class _Author:
    random: np.random.Generator
    rows: int
    columns: Size
    element: str

    def program(self, b: Builder, matrix: Value, vector: Value, place: Value) -> Value:
        """Everything that was made last, one after the other, as one vector."""
        known: Kinds = {"m": [matrix], "v": [vector], "s": [place]}
        self.write(b, known, self.number(1, 4), 0)
        self.loop(b, known, 0)
        self.write(b, known, self.number(1, 4), 0)
        ends = [*known["m"][-3:], *known["v"][-3:]]
        ends += [b.convert(each, result=Shape(self.element)) for each in known["s"][-2:]]
        flat = [b.reshape(each, result=Shape.of(each.shape.dtype, (each.shape.count,))) for each in ends]
        return b.concatenate(*flat, dimension=0)

    def number(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def pick(self, known: Kinds, kind: str) -> Value:
        """A value of a kind; a late one rather than an early one."""
        values = known[kind]
        return values[max(self.number(0, len(values) - 1), self.number(0, len(values) - 1))]

    def shape(self, kind: str) -> Shape:
        sizes = {"m": (self.rows, self.columns), "v": (self.columns,), "s": ()}[kind]
        return Shape("i64" if kind == "s" else self.element, *sizes)

    # -- statements --

    def write(self, b: Builder, known: Kinds, count: int, depth: int) -> None:
        plain = [self.combine, self.put_row, self.put_row, self.raise_row, self.scatter, self.turn, self.choose]
        plain += [self.total, self.spread, self.move_place, self.put_block, self.put_part]
        for _ in range(count):
            if depth <= DEEPEST and self.random.random() < 0.25:
                (self.loop if self.random.random() < 0.5 else self.branch)(b, known, depth + 1)
            else:
                plain[self.number(0, len(plain) - 1)](b, known)

    def combine(self, b: Builder, known: Kinds) -> None:
        kind = "mv"[self.number(0, 1)]
        name = ("add", "subtract", "maximum", "xor")[self.number(0, 3)]
        known[kind].append(b.op(f"stablehlo.{name}", self.pick(known, kind), self.pick(known, kind)).result)

    def put_row(self, b: Builder, known: Kinds) -> None:
        row = b.reshape(self.pick(known, "v"), result=Shape(self.element, 1, self.columns))
        matrix, zero = self.pick(known, "m"), b.constant(0, "i64")
        known["m"].append(b.dynamic_update_slice(matrix, row, self.pick(known, "s"), zero))

    def raise_row(self, b: Builder, known: Kinds) -> None:
        """A row becomes what it was and more."""
        if not isinstance(self.columns, int):
            return self.put_row(b, known)
        matrix, place, zero = self.pick(known, "m"), self.pick(known, "s"), b.constant(0, "i64")
        old = b.dynamic_slice(matrix, place, zero, slice_sizes=(1, self.columns))
        more = b.reshape(self.pick(known, "v"), result=old.shape)
        known["m"].append(b.dynamic_update_slice(matrix, b.add(old, more), place, zero))
        known["v"].append(b.reshape(old, result=self.shape("v")))
        return None

    def put_block(self, b: Builder, known: Kinds) -> None:
        """Some rows of one matrix, none perhaps, into another or itself."""
        if not isinstance(self.columns, int):
            return self.put_row(b, known)
        count = self.number(0, self.rows)
        source = self.pick(known, "m")
        block = b.slice(
            source, start_indices=(self.rows - count, 0), limit_indices=(self.rows, self.columns), strides=(1, 1)
        )
        place, zero = self.pick(known, "s"), b.constant(0, "i64")
        known["m"].append(b.dynamic_update_slice(self.pick(known, "m"), block, place, zero))
        return None

    def put_part(self, b: Builder, known: Kinds) -> None:
        if not isinstance(self.columns, int):
            return self.put_row(b, known)
        count = self.number(0, self.columns)
        part = b.slice(self.pick(known, "v"), start_indices=(0,), limit_indices=(count,), strides=(1,))
        known["v"].append(b.dynamic_update_slice(self.pick(known, "v"), part, self.pick(known, "s")))
        return None

    def scatter(self, b: Builder, known: Kinds) -> None:
        """Two vectors added to the rows that two places name, which may be one row or none."""
        places = [b.reshape(self.pick(known, "s"), result=Shape("i64", 1)) for _ in range(2)]
        rows = [b.reshape(self.pick(known, "v"), result=Shape(self.element, 1, self.columns)) for _ in range(2)]
        dims = ScatterDims((1,), (0,), (), (), (0,), 1)
        made = b.op(
            "stablehlo.scatter",
            self.pick(known, "m"),
            b.concatenate(*places, dimension=0),
            b.concatenate(*rows, dimension=0),
            scatter_dimension_numbers=dims,
            regions=[self.combining(b)],
        )
        known["m"].append(made.result)

    def combining(self, b: Builder) -> Region:
        with b.region(Shape(self.element), Shape(self.element)) as r:
            r.result(r.add(*r.args))
        return r.body

    def turn(self, b: Builder, known: Kinds) -> None:
        kind = "mv"[self.number(0, 1)]
        known[kind].append(b.reverse(self.pick(known, kind), dimensions=(0,)))

    def choose(self, b: Builder, known: Kinds) -> None:
        kind = "mv"[self.number(0, 1)]
        known[kind].append(b.select(self.test(b, known), self.pick(known, kind), self.pick(known, kind)))

    def total(self, b: Builder, known: Kinds) -> None:
        zero = b.constant(0, self.element)
        made = b.op("stablehlo.reduce", self.pick(known, "m"), zero, dimensions=(0,), regions=[self.combining(b)])
        known["v"].append(made.result)

    def spread(self, b: Builder, known: Kinds) -> None:
        known["m"].append(b.broadcast_in_dim(self.pick(known, "v"), broadcast_dimensions=(1,), result=self.shape("m")))

    def move_place(self, b: Builder, known: Kinds) -> None:
        known["s"].append(b.add(self.pick(known, "s"), b.constant(self.number(-1, 2), "i64")))

    def test(self, b: Builder, known: Kinds) -> Value:
        return b.compare(self.pick(known, "s"), b.constant(self.number(-1, 3), "i64"), comparison_direction="LT")

    # -- control flow --

    def branch(self, b: Builder, known: Kinds, depth: int) -> None:
        kinds = ["mvs"[self.number(0, 2)] for _ in range(self.number(1, 4))]
        bodies = []
        test = self.test(b, known)
        for _ in range(2):
            with b.region() as r:
                mine = {kind: list(values) for kind, values in known.items()}
                self.write(r, mine, self.number(0, 3), depth)
                r.result(*(self.pick(mine, kind) for kind in kinds))
            bodies.append(r.body)
        results = b.op("stablehlo.if", test, regions=bodies).results
        for kind, result in zip(kinds, results, strict=True):
            known[kind].append(result)

    def loop(self, b: Builder, known: Kinds, depth: int) -> None:
        kinds = ["mvs"[self.number(0, 2)] for _ in range(self.number(1, 4))]
        shapes = [Shape("i64"), *(self.shape(kind) for kind in kinds)]
        starts = [b.constant(0, "i64"), *(self.pick(known, kind) for kind in kinds)]
        with b.region(*shapes) as test:
            test.result(test.compare(test.args[0], test.constant(self.number(0, 4), "i64"), comparison_direction="LT"))
        with b.region(*shapes) as r:
            mine = {kind: list(values) for kind, values in known.items()}
            mine["s"].append(r.args[0])
            for kind, arg in zip(kinds, r.args[1:], strict=True):
                mine[kind].append(arg)
            self.write(r, mine, self.number(1, 4), depth)
            r.result(r.add(r.args[0], r.constant(1, "i64")), *(self.pick(mine, kind) for kind in kinds))
        results = b.op("stablehlo.while", *starts, regions=[test.body, r.body]).results
        for kind, result in zip(kinds, results[1:], strict=True):
            known[kind].append(result)
