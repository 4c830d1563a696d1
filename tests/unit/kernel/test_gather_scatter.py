"""Gather, scatter and slices at computed places in generated C, against the interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from smelt.dtype import Array, dtype
from smelt.engine.native import NativeEngine
from smelt.errors import RunError, SizeError
from smelt.ir.attributes import GatherDims, ScatterDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Region
from smelt.shape import Shape
from tests.unit.kernel.agreement import ELEMENTS, combine, disagreement, draw


@dataclass
class Windows:
    """Random dimension numbers, in the form of a gather."""

    operand: list[int]
    indices: list[int]
    slices: list[int]
    dims: GatherDims
    result: list[int]

    @staticmethod
    def draw(random: np.random.Generator) -> Windows:
        rank = int(random.integers(1, 4))
        roles = [str(random.choice(["window", "collapsed", "batching"], p=[0.5, 0.3, 0.2])) for _ in range(rank)]
        operand = [int(random.integers(1, 5)) for _ in range(rank)]
        slices = [
            int(random.integers(0, size + 1)) if role == "window" else 1
            for size, role in zip(operand, roles, strict=True)
        ]
        batching = tuple(d for d in range(rank) if roles[d] == "batching")
        free = [d for d in range(rank) if roles[d] != "batching"]
        mapped = tuple(int(d) for d in random.permutation(free)[: random.integers(0, len(free) + 1)])
        batch = [operand[d] for d in batching] + [int(random.integers(1, 4)) for _ in range(random.integers(0, 3))]
        places = random.permutation(len(batch))  # of each batch dimension among the indices
        sizes = [batch[list(places).index(i)] for i in range(len(batch))]
        implicit = len(mapped) == 1 and bool(random.integers(0, 2))
        vector = len(sizes) if implicit else int(random.integers(0, len(sizes) + 1))
        indices = sizes if implicit else [*sizes[:vector], len(mapped), *sizes[vector:]]
        pairs = tuple(int(places[i]) + (not implicit and int(places[i]) >= vector) for i in range(len(batching)))
        windows = [slices[d] for d in range(rank) if roles[d] == "window"]
        total = len(sizes) + len(windows)
        offsets = tuple(sorted(int(d) for d in random.permutation(total)[: len(windows)]))
        rest, inner = iter(sizes), iter(windows)
        dims = GatherDims(
            offsets, tuple(d for d in range(rank) if roles[d] == "collapsed"), batching, pairs, mapped, vector
        )
        return Windows(
            operand, indices, slices, dims, [next(inner) if d in offsets else next(rest) for d in range(total)]
        )

    @property
    def scatter(self) -> ScatterDims:
        d = self.dims
        return ScatterDims(
            d.offset_dims,
            d.collapsed_slice_dims,
            d.operand_batching_dims,
            d.start_indices_batching_dims,
            d.start_index_map,
            d.index_vector_dim,
        )


def some_indices(random: np.random.Generator, element: str, *sizes: int) -> Array:
    """Places in small tensors, some of them outside."""
    low = 0 if element.startswith("u") else -3
    return random.integers(low, 8, sizes).astype(dtype(element).numpy)


def test_gather_and_scatter_any_dimension_numbers(seed: int) -> None:
    """All cases in one program: one gather and one scatter of each."""
    random = np.random.default_rng(seed)
    problems = [Windows.draw(random) for _ in range(40)]
    kinds = [str(random.choice(["i32", "i64", "ui32", "ui64"])) for _ in problems]
    shapes = [
        Shape(element, *sizes)
        for each, kind in zip(problems, kinds, strict=True)
        for element, sizes in (("f32", each.operand), (kind, each.indices), ("f32", each.result))
    ]
    f = FuncBuilder("main", shapes)
    results = []
    for i, each in enumerate(problems):
        operand, indices, update = f.args[3 * i : 3 * i + 3]
        results.append(f.gather(operand, indices, dimension_numbers=each.dims, slice_sizes=tuple(each.slices)))
        body = overwrite(f, "f32") if i % 2 else combine(f, "add", "f32")
        results.append(f.scatter(operand, indices, update, scatter_dimension_numbers=each.scatter, regions=[body]))
    args = [
        array
        for each, kind in zip(problems, kinds, strict=True)
        for array in (
            draw(random, "f32", *each.operand),
            some_indices(random, kind, *each.indices),
            draw(random, "f32", *each.result),
        )
    ]
    assert disagreement(Program.of(f.func(*results)), [args]) == ""


def overwrite(f: FuncBuilder, *elements: str) -> Region:
    with f.region(*(Shape(each) for each in (*elements, *elements))) as r:
        r.result(*r.args[len(elements) :])
    return r.body


@pytest.mark.parametrize("element", ELEMENTS)
def test_every_element_type_and_dynamic_dimensions(element: str, seed: int) -> None:
    """Rows of a table picked, added and written, for tables and lists of rows of any length."""
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape(element, "N", 3), Shape("i32", "M"), Shape(element, "M", 3), Shape("i64")])
    table, rows, update, start = f.args
    zero = f.constant(0, "i64")
    adds = combine(f, "or" if element == "i1" else "add", element)
    scatter = ScatterDims((1,), (0,), (), (), (0,), 1)
    added = f.scatter(table, rows, update, scatter_dimension_numbers=scatter, regions=[adds])
    part = f.dynamic_slice(table, start, start, slice_sizes=(1, 2))
    picked = f.gather(added, rows, dimension_numbers=GatherDims((1,), (0,), (), (), (0,), 1), slice_sizes=(1, 3))
    written = f.dynamic_update_slice(added, part, start, zero)
    selected = f.torch_index_select(written, rows, dim=0, batch_dims=0)
    program = Program.of(f.func(added, part, picked, written, selected))
    calls = [
        (
            draw(random, element, n, 3, few=True),
            some_indices(random, "i32", m),
            draw(random, element, m, 3, few=True),
            np.array(at),
        )
        for n, m, at in [(1, 0, 0), (1, 1, -5), (4, 7, 2), (70, 300, 1 << 40)]
    ]
    assert disagreement(program, calls) == ""
    with pytest.raises(SizeError):  # there is no row for the slice
        NativeEngine().compile(program)(*(draw(random, element, 0, 3), calls[0][1], calls[0][2], calls[0][3]))


def test_several_inputs_are_scattered_together(seed: int) -> None:
    """The body sees both inputs; indices repeat, so the order shows."""
    random = np.random.default_rng(seed)
    f = FuncBuilder(
        "main", [Shape("i32", 5), Shape("f32", 5), Shape("i64", "M", 1), Shape("i32", "M"), Shape("f32", "M")]
    )
    with f.region(Shape("i32"), Shape("f32"), Shape("i32"), Shape("f32")) as r:
        a, x, b, y = r.args
        larger = r.compare(x, y, comparison_direction="GT")
        r.result(r.subtract(b, a), r.select(larger, r.divide(x, y), y))
    dims = ScatterDims((), (0,), (), (), (0,), 1)
    results = f.scatter(*f.args, scatter_dimension_numbers=dims, regions=[r.body])
    program = Program.of(f.func(*results))
    calls = [
        (
            draw(random, "i32", 5),
            draw(random, "f32", 5),
            random.integers(-1, 6, (m, 1)),
            draw(random, "i32", m),
            draw(random, "f32", m),
        )
        for m in (0, 1, 40)
    ]
    assert disagreement(program, calls) == ""


def test_numbers_that_data_gives(seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = Shape("i64", 2)
    f = FuncBuilder("main", [Shape("f32", 4, 5), Shape("f32"), *[numbers] * 7])
    x, filler, low, high, interior, starts, ends, strides, shape = f.args
    padded = f.op("stablehlo.dynamic_pad", x, filler, low, high, interior, result=Shape("f32", 6, 4)).result
    sliced = f.op("stablehlo.real_dynamic_slice", x, starts, ends, strides, result=Shape("f32", 2, 2)).result
    counted = f.op("stablehlo.dynamic_iota", shape, iota_dimension=1, result=Shape("i32", 4, 3)).result
    program = Program.of(f.func(padded, sliced, counted))
    values = draw(random, "f32", 4, 5), draw(random, "f32")
    lists = [[-1, -2], [0, 1], [1, 0], [0, 0], [4, 3], [2, 2], [4, 3]]
    good = (*values, *(np.array(each) for each in lists))
    assert disagreement(program, [good]) == ""
    compiled = NativeEngine().compile(program)
    wrong: list[dict[int, list[int]]] = [
        {2: [0, -2]},
        {4: [0, 0]},
        {2: [0, -2], 4: [-1, 0]},
        {5: [-1, 0]},
        {5: [2, 0], 6: [6, 3]},
        {6: [5, 3]},
        {7: [1, 2]},
        {7: [0, 2]},
        {8: [4, 4]},
    ]
    for each in wrong:
        bad = [np.array(each.get(i, given)) for i, given in enumerate(good)]
        with pytest.raises(RunError, match="do not fit the sizes"):
            compiled(*bad)
