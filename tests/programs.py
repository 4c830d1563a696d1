"""Random programs for tests: a growing pool of values over a few arguments, weights among them, some sizes symbolic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from smelt.dim import Size, evaluate
from smelt.dtype import Array, dtype
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Attrs, Program, Type, Value
from smelt.shape import Shape

ELEMENTWISE = ("add", "subtract", "multiply", "maximum", "minimum")
UNARY = ("negate", "abs", "sign", "tanh", "exponential", "logistic", "floor", "sqrt")


@dataclass
class Pool:
    """Values made so far, by how they can be combined."""

    random: np.random.Generator
    f: FuncBuilder
    values: list[Value] = field(default_factory=list)

    def pick(self, accept: Callable[[Value], bool] = lambda value: True) -> Value | None:
        fitting = [value for value in self.values if accept(value)]
        return fitting[int(self.random.integers(0, len(fitting)))] if fitting else None

    def floats(self) -> Value | None:
        return self.pick(lambda value: value.shape.dtype.is_float)

    def grow(self) -> None:
        """One more op, if the drawn one fits anything."""
        made = GROW[int(self.random.integers(0, len(GROW)))](self)
        if made is not None:
            self.values.append(made)


def _binary(p: Pool) -> Value | None:
    x = p.floats()
    y = None if x is None else p.pick(lambda value: value.shape == x.shape)
    made: Value | None = (
        None if x is None or y is None else p.f.op(f"stablehlo.{p.random.choice(ELEMENTWISE)}", x, y).result
    )
    return made


def _unary(p: Pool) -> Value | None:
    x = p.floats()
    made: Value | None = None if x is None else p.f.op(f"stablehlo.{p.random.choice(UNARY)}", x).result
    return made


def _with_number(p: Pool) -> Value | None:
    x = p.floats()
    if x is None:
        return None
    number = p.f.full(float(p.random.choice([0.0, -0.0, 1.0, 2.0, -3.5])), x.shape)
    made: Value = p.f.op(
        f"stablehlo.{p.random.choice(ELEMENTWISE)}", *((x, number) if p.random.random() < 0.5 else (number, x))
    ).result
    return made


def _transpose(p: Pool) -> Value | None:
    x = p.pick()
    made: Value | None = None
    if x is not None:
        made = p.f.transpose(x, permutation=tuple(int(i) for i in p.random.permutation(x.shape.rank)))
    return made


def _flatten(p: Pool) -> Value | None:
    x = p.pick()
    made: Value | None = None
    if x is not None:
        made = p.f.reshape(x, result=Shape.of(x.shape.dtype, (x.shape.count, 1)))
    return made


def _broadcast(p: Pool) -> Value | None:
    x = p.pick(lambda value: value.shape.rank < 3)
    if x is None:
        return None
    sizes: tuple[Size, ...] = (*x.shape.sizes, 2)
    made: Value = p.f.broadcast_in_dim(
        x, broadcast_dimensions=tuple(range(x.shape.rank)), result=Shape.of(x.shape.dtype, sizes)
    )
    return made


def _reduce(p: Pool) -> Value | None:
    x = p.pick(lambda value: value.shape.rank > 0 and value.shape.dtype.name == "f32")
    if x is None:
        return None
    name, start = (("add", 0.0), ("maximum", -np.inf))[int(p.random.integers(0, 2))]
    with p.f.region(Shape("f32"), Shape("f32")) as r:
        r.result(r.op(f"stablehlo.{name}", *r.args).result)
    dims = tuple(
        sorted(int(d) for d in p.random.permutation(x.shape.rank)[: int(p.random.integers(1, x.shape.rank + 1))])
    )
    made: Value = p.f.reduce(x, p.f.constant(start, "f32"), dimensions=dims, regions=[r.body])
    return made


def _dot(p: Pool) -> Value | None:
    x = p.pick(lambda value: value.shape.rank == 2 and value.shape.dtype.name == "f32")
    y = (
        None
        if x is None
        else p.pick(
            lambda value: (
                value.shape.rank == 2 and value.shape.dtype.name == "f32" and value.shape.sizes[0] == x.shape.sizes[1]
            )
        )
    )
    if x is None or y is None:
        return None
    result = Shape.of(x.shape.dtype, (x.shape.sizes[0], y.shape.sizes[1]))
    made: Value = p.f.dot_general(x, y, dot_dimension_numbers=DotDims((), (), (1,), (0,)), result=result)
    return made


def _choose(p: Pool) -> Value | None:
    x = p.floats()
    y = None if x is None else p.pick(lambda value: value.shape == x.shape)
    if x is None or y is None:
        return None
    made: Value = p.f.select(p.f.compare(x, y, comparison_direction=str(p.random.choice(["LT", "GE", "NE"]))), x, y)
    return made


def _convert(p: Pool) -> Value | None:
    x = p.floats()
    made: Value | None = None
    if x is not None:
        made = p.f.convert(x, result=x.shape.with_dtype(dtype(str(p.random.choice(["f32", "f64"])))))
    return made


GROW = (_binary, _binary, _unary, _with_number, _transpose, _flatten, _broadcast, _reduce, _dot, _choose, _convert)


def random_program(random: np.random.Generator, ops: int = 25, *, weights: bool = True) -> tuple[Program, list[Array]]:
    """A program and arguments for it; about half of the arguments are weights, and the sizes B and S are symbols."""
    symbols = {"B": int(random.integers(0, 5)), "S": int(random.integers(1, 4))}
    choices: list[tuple[Size | str, ...]] = [("B", 3), (3,), (3, 3), ("S", "B"), (3, "S"), ()]
    picked = [choices[int(i)] for i in random.integers(0, len(choices), 4)]
    shapes = [Shape("f32", "B", "S"), *(Shape("f32", *sizes) for sizes in picked)]
    marked = [weights and shape.is_static for shape in shapes]
    attrs: list[Attrs] = [MappingProxyType({"smelt.weight": f"w{i}"} if mark else {}) for i, mark in enumerate(marked)]
    f = FuncBuilder("main", list[Type](shapes), arg_attrs=attrs)
    pool = Pool(random, f, list(f.args))
    for _ in range(ops):
        pool.grow()
    results = pool.values[-3:]
    arrays = [
        random.standard_normal([evaluate(size, symbols) for size in shape.sizes]).astype(np.float32) for shape in shapes
    ]
    return Program.of(f.func(*results)), arrays
