"""Operators that draw random numbers. Seeds are not kept: every engine draws its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.dim import Size
from smelt.dtype import DType, f32, i1, i64
from smelt.errors import ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.file.tensors import element_type
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Tensor
from smelt.read.onnx.registry import onnx_op
from smelt.shape import Shape


def draw(g: Graph, kind: str, a: float, b: float, sizes: Sequence[Size], element: DType) -> Value:
    """`UNIFORM` between a and b, or `NORMAL` with mean a and deviation b."""
    if not element.is_float:
        raise UnsupportedError("random numbers that are not floats", got=element)
    wide = element if element.bits >= 32 else f32
    known = g.size_vector(sizes) if sizes else g.const(np.zeros(0, np.int64), i64)
    shape = Shape.of(wide, sizes)
    made = g.b.rng(g.scalar(a, wide), g.scalar(b, wide), known, rng_distribution=kind, result=shape)
    return g.convert(made, element)


@onnx_op("RandomUniform")
def random_uniform(
    g: Graph, *, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float | None = None, shape: tuple[int, ...]
) -> Value:
    return draw(g, "UNIFORM", low, high, shape, element_type(dtype, g.location))


@onnx_op("RandomNormal")
def random_normal(
    g: Graph,
    *,
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    shape: tuple[int, ...],
) -> Value:
    return draw(g, "NORMAL", mean, scale, shape, element_type(dtype, g.location))


@onnx_op("RandomUniformLike")
def random_uniform_like(
    g: Graph, input: Tensor, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Value:
    return draw(
        g, "UNIFORM", low, high, input.sizes, input.element if dtype is None else element_type(dtype, g.location)
    )


@onnx_op("RandomNormalLike")
def random_normal_like(
    g: Graph,
    input: Tensor,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Value:
    return draw(
        g, "NORMAL", mean, scale, input.sizes, input.element if dtype is None else element_type(dtype, g.location)
    )


@onnx_op("Multinomial", since=7)
def multinomial(g: Graph, input: Value, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Value:
    """Gumbel noise on the logarithms: the greatest wins with the probability it should."""
    if input.shape.rank != 2:
        raise ShapeError("Multinomial takes [batch, classes]", got=input.shape)
    batch, classes = input.shape.sizes
    sizes = (batch, sample_size, classes)
    uniform = draw(g, "UNIFORM", 1e-20, 1.0, sizes, f32)
    noise = g.unary("negate", g.unary("log", g.unary("negate", g.unary("log", uniform))))
    noisy = g.binary("add", noise, g.expand_dims(g.convert(input, f32), (1,)))
    best = g.compare(noisy, g.broadcast_to(g.max(noisy, (2,), keep=True), sizes), "EQ")
    places = g.iota(i64, sizes, 2)
    first = g.min(g.select(best, places, g.like((1 << 63) - 1, places)), (2,))
    return g.convert(first, element_type(dtype, g.location))


@onnx_op("Dropout", since=12)
def dropout(
    g: Graph, data: Value, ratio: Tensor | None = None, training_mode: Tensor | None = None, *, seed: int | None = None
) -> tuple[Value, Value]:
    every = g.full(True, data.shape.with_dtype(i1))
    if training_mode is None or not g.numbers(training_mode, "training_mode").reshape(-1)[0]:
        return data, every
    part = 0.5 if ratio is None else float(g.numbers(ratio, "ratio").reshape(-1)[0])
    if part == 0:
        return data, every
    if not 0 <= part < 1:
        raise ShapeError("Dropout: ratio is out of range", expected="0 to 1, without 1", got=part)
    noise = draw(g, "UNIFORM", 0.0, 1.0, data.shape.sizes, f32)
    kept = g.compare(noise, g.like(part, noise), "GE")
    return g.select(kept, g.times(data, 1 / (1 - part)), g.like(0, data)), kept
