"""Random programs along a dynamic dimension: padding is refused, or padded results are what XLA gives without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from smelt.dim import product, symbol
from smelt.engine.pjrt import PjrtEngine
from smelt.errors import UnsupportedError
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.shape import Shape

pytest.importorskip("jaxlib")

B = symbol("B")
Step = Callable[[FuncBuilder, Value, np.random.Generator], Value | None]


def some_axis(value: Value, random: np.random.Generator) -> int:
    return int(random.integers(value.shape.rank))


def elementwise(f: FuncBuilder, x: Value, random: np.random.Generator) -> Value:
    return f.tanh(f.add(x, x))


def transpose(f: FuncBuilder, x: Value, random: np.random.Generator) -> Value:
    order = tuple(int(axis) for axis in random.permutation(x.shape.rank))
    return f.transpose(x, permutation=order)


def merge(f: FuncBuilder, x: Value, random: np.random.Generator) -> Value | None:
    if x.shape.rank < 2:
        return None
    at = int(random.integers(x.shape.rank - 1))
    sizes = x.shape.sizes
    merged = (*sizes[:at], sizes[at] * sizes[at + 1], *sizes[at + 2 :])
    return f.reshape(x, result=x.shape.with_sizes(merged))


def split(f: FuncBuilder, x: Value, random: np.random.Generator) -> Value | None:
    """An axis of size 2·n in two, either way round."""
    for axis, size in enumerate(x.shape.sizes):
        half = size // 2
        if 2 * half == size:
            pair = (2, half) if random.integers(2) else (half, 2)
            sizes = (*x.shape.sizes[:axis], *pair, *x.shape.sizes[axis + 1 :])
            return f.reshape(x, result=x.shape.with_sizes(sizes))
    return None


def reverse(f: FuncBuilder, x: Value, random: np.random.Generator) -> Value:
    return f.reverse(x, dimensions=(some_axis(x, random),))


def concatenate(f: FuncBuilder, x: Value, random: np.random.Generator) -> Value:
    return f.concatenate(x, f.negate(x), dimension=some_axis(x, random))


def positions(f: FuncBuilder, x: Value, random: np.random.Generator) -> Value:
    counted = f.iota(iota_dimension=some_axis(x, random), result=x.shape)
    return f.add(x, counted)


def total(f: FuncBuilder, x: Value, random: np.random.Generator) -> Value | None:
    """A sum along an axis, spread out again."""
    axis = some_axis(x, random)
    zero = f.constant(np.float32(0))
    with f.region(Shape("f32"), Shape("f32")) as body:
        added = body.result(body.add(*body.args))
    reduced = f.op("stablehlo.reduce", x, zero, regions=[added], dimensions=(axis,)).result
    kept = tuple(i for i in range(x.shape.rank) if i != axis)
    spread = f.broadcast_in_dim(reduced, broadcast_dimensions=kept, result=x.shape)
    return f.subtract(x, spread)


def product_with_itself(f: FuncBuilder, x: Value, random: np.random.Generator) -> Value:
    axis = some_axis(x, random)
    others = tuple(i for i in range(x.shape.rank) if i != axis)
    batch = tuple(i for i in others if random.integers(2))
    dims = DotDims(batch, batch, (axis,), (axis,))
    return f.dot_general(x, x, dot_dimension_numbers=dims)


STEPS: list[Step] = [
    elementwise,
    transpose,
    merge,
    split,
    reverse,
    concatenate,
    positions,
    total,
    product_with_itself,
]


def random_program(random: np.random.Generator) -> Program | None:
    sizes: list[Any] = [2, 3, 4][: int(random.integers(1, 4))]
    sizes.insert(int(random.integers(len(sizes) + 1)), B)
    f = FuncBuilder("main", [Shape("f32", *sizes)])
    (x,) = f.args
    for _ in range(int(random.integers(1, 5))):
        made = STEPS[int(random.integers(len(STEPS)))](f, x, random)
        x = x if made is None else made
    if x.shape.rank > 6 or product(x.shape.numbers({"B": 8})) > 1 << 16:
        return None
    return Program.of(f.func(x))


def test_padding_is_refused_or_changes_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    engine = PjrtEngine()
    accepted = refused = 0
    while accepted < 12 or refused < 12:
        program = random_program(random)
        if program is None:
            continue
        size = int(random.integers(1, 8))
        try:
            padded = engine.compile(program, buckets={"B": [8]})
        except UnsupportedError:
            refused += 1
            continue
        accepted += 1
        if accepted > 30:
            continue
        shape = program.main.args[0].shape.numbers({"B": size})
        x = random.standard_normal(shape).astype(np.float32)
        (expected,) = engine.compile(program)(x)
        (found,) = padded(x)
        np.testing.assert_allclose(np.asarray(found), expected.numpy(), rtol=1e-5, atol=1e-5)
        assert padded.compilations[0].sizes == {"B": 8}
