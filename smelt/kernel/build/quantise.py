"""Quantising to int8 and uint8: one element of `smelt.round_to_byte`, exactly rounded in a few instructions.

It ends the epilogue of most int8 GEMMs. `elementwise.convert` takes the integer before it is narrowed.
`smelt.round_rows` rounds rows to fp8: a reduction and a map of each, which on a GPU stay in registers.
"""

from __future__ import annotations

import numpy as np

from smelt.dtype import f32, i32
from smelt.ir.core import Op
from smelt.kernel.build.attention_shape import fold_here
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import Amount, Expr, Number
from smelt.kernel.loops.nest import Index, Nest, flat, pull, tensor

TINY, HUGE = 2.0**-64, 2.0**64  # scales whose reciprocals and quotients neither overflow nor underflow f32


@sink("smelt.round_rows")
def round_rows(nest: Nest, op: Op, output: Output) -> None:
    (x,) = op.operands
    *rows, depth = tensor(x).sizes
    narrow, scales = output.targets
    with nest.loops(tuple(rows)) as row:
        most = fold_here(
            nest, "maximum", Number(0.0, f32), Amount(depth), lambda at: nest.apply("abs", nest.pull(x, (*row, at)))
        )
        scaled = nest.apply("multiply", most, Number(op.attrs["factor"], f32))
        step = nest.apply("maximum", scaled, Number(op.attrs["least"], f32))
        inverse = nest.apply("divide", Number(1.0, f32), step)
        nest.store(scales, flat(tuple(row), tuple(rows)), step)
        with nest.loop(depth, "lane") as at:
            element = nest.apply("multiply", nest.pull(x, (*row, at)), inverse)
            nest.store(narrow, flat((*row, at), (*rows, depth)), nest.convert(element, tensor(op.results[0]).element))


@pull("smelt.round_to_byte")
def round_to_byte(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return nest.convert(round_to_integer(nest, op, index), tensor(op.result).element)


def round_to_integer(nest: Nest, op: Op, index: Index) -> Expr:
    """The quantised integer as i32. The clamp comes before rounding: its limits are loop-invariant."""
    x, scale, zero = (nest.pull(operand, index) for operand in op.operands)
    limits = [_less(nest, Number(float(op.attrs[name]), f32), zero) for name in ("least", "greatest")]
    if scale == Number(1.0, f32):
        steps = nest.apply("within", x, *limits, dtype=f32)
    elif isinstance(scale, Number) and isinstance(scale.value, float) and TINY < scale.value < HUGE:
        held = nest.apply("within", x, *(_times(nest, limit, scale) for limit in limits), dtype=f32)
        steps = nest.apply("quotient", held, scale, *_reciprocal(scale.value), dtype=f32)
    else:
        steps = nest.apply("within", nest.apply("divide", x, scale, dtype=f32), *limits, dtype=f32)
    nearest = nest.apply("nearest", steps, dtype=i32)
    return nearest if zero == Number(0.0, f32) else nest.apply("add", nearest, _integer(nest, zero), dtype=i32)


def _reciprocal(scale: float) -> tuple[Number, Number]:
    """1 / scale as f32, and the rounding error."""
    inverse = float(np.float32(1) / np.float32(scale))
    return Number(inverse, f32), Number(float(np.float32((1 - inverse * scale) / scale)), f32)


def _less(nest: Nest, x: Number, y: Expr) -> Expr:
    return Number(_real(x) - _real(y), f32) if isinstance(y, Number) else nest.apply("subtract", x, y, dtype=f32)


def _times(nest: Nest, x: Expr, y: Number) -> Expr:
    if isinstance(x, Number):
        return Number(float(np.float32(_real(x) * _real(y))), f32)
    return nest.apply("multiply", x, y, dtype=f32)


def _integer(nest: Nest, x: Expr) -> Expr:
    return Number(int(_real(x)), i32) if isinstance(x, Number) else nest.convert(x, i32)


def _real(number: Number) -> float:
    assert not isinstance(number.value, complex)
    return float(number.value)
