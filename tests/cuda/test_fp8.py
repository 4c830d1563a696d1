"""Precision "fp8" on a GPU: which launches there are, rows that are rounded, products that are merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.buffer import HostBuffer
from smelt.dim import symbol
from smelt.dtype import f32
from smelt.engine.native import NativeEngine
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.ir.interpret import run
from smelt.passes.round_products import round_products
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape
from smelt.weights import Weights
from tests.cuda.emulated import EmulatedCuda
from tests.cuda.test_blocks import launches_of

TIMES = DotDims((), (), (1,), (1,))


def feed_forward(depth: int, width: int, rows: Any) -> Program:
    """(down(silu(gate(n)) * up(n)), three products of n) with n = x / rms(x): products of the same rows are merged."""
    narrow = 64
    shapes = [(width, depth), (width, depth), (depth, width), (narrow, depth), (2 * narrow, depth), (narrow, depth)]
    names = [f"w{i}" for i in range(len(shapes))]
    marks: list[dict[str, Any]] = [{}, *({WEIGHT: name} for name in names)]
    f = FuncBuilder(
        "main", [Shape.of(f32, (rows, depth)), *(Shape("f32", *each) for each in shapes)], ["x", *names], marks
    )
    x, gate, up, down, *others = f.args

    def multiply(left: Value, w: Value) -> Value:
        result = Shape.of(f32, (rows, w.shape.sizes[0]))
        return f.dot_general(left, w, dot_dimension_numbers=TIMES, result=result)

    total = f.reduce_by("add", f.multiply(x, x), 0.0, (1,))
    factor = f.rsqrt(f.multiply(total, f.full(1 / depth, total.shape)))
    normal = f.multiply(x, f.broadcast_in_dim(factor, broadcast_dimensions=(0,), result=x.shape))
    left = multiply(normal, gate)
    inner = f.multiply(f.multiply(left, f.logistic(left)), multiply(normal, up))
    return round_products(Program.of(f.func(multiply(inner, down), *(multiply(x, w) for w in others))), "fp8")


@pytest.mark.parametrize("rows", [3, 70, None])
def test_layers_in_fp8(rows: int | None, emulated: EmulatedCuda, seed: int) -> None:
    """A norm and the rounding of its rows are one launch; what follows gate and up is computed by their product."""
    depth, width, random = 192, 576, np.random.default_rng(seed)
    program = feed_forward(depth, width, symbol("R") if rows is None else rows)
    sizes = (1, 3, 70) if rows is None else (rows,)
    found = [each for each in launches_of(program, emulated) if each != "map"]
    merged = rows != 70  # many rows: each product keeps its epilogue
    assert sorted(found) == ["packed_dot"] * (3 if merged else 6) + ["round_rows"] * 3
    weights = [random.standard_normal(each.shape.numbers(), np.float32) for each in program.main.args[1:]]
    x = random.standard_normal((max(sizes), depth), np.float32) * np.array([[1e-3], [1.0], [1e3]] * 24)[: max(sizes)]
    stored = Weights.of({f"w{i}": HostBuffer.of(each) for i, each in enumerate(weights)})
    made = NativeEngine(emulated.target()).compile(program).prepare(stored)
    given = x.astype(np.float32)
    for count in sizes:
        wanted = run(program, [given[:count], *weights])
        for i, (got, want) in enumerate(zip(made(given[:count]), wanted, strict=True)):
            bound = 0.02 if i == 0 else 2**-10  # rows of the first are rounded twice: some round otherwise
            error = np.abs(got.numpy() - want).max(1) / np.abs(want).max(1)
            assert error.max() <= bound


@pytest.mark.parametrize("depth", [40, 512, 2080, 14336])
@pytest.mark.parametrize("element", ["f8E4M3FN", "f8E5M2"])
def test_rounding_has_the_bits_of_the_reference(depth: int, element: str, emulated: EmulatedCuda, seed: int) -> None:
    """Rows in registers and others; zeros, tiny and huge numbers, infinities and NaN."""
    random, rows = np.random.default_rng(seed), symbol("R")
    f = FuncBuilder("main", [Shape.of(f32, (rows, depth))], ["x"], [{}])
    (x,) = f.args
    doubled = f.add(x, x)
    made = f.op("smelt.round_rows", doubled, element=element, factor=1 / 448, least=1e-30)
    program = Program.of(f.func(*made.results))
    data = random.standard_normal((9, depth)).astype(np.float32)
    data *= np.array([1, 0, 1e-42, 1e-33, 1e33, 1, 1, 1, 1], np.float32)[:, None]
    data[5, 3], data[6, 4], data[7, :2] = np.inf, np.nan, (np.inf, -np.inf)
    found = NativeEngine(emulated.target()).compile(program)(data)
    for got, want in zip(found, run(program, [data]), strict=True):
        np.testing.assert_array_equal(got.numpy().astype(np.float32), np.asarray(want).astype(np.float32))
