"""Uniform quantisation: `uniform_quantize`, `uniform_dequantize`, and the two functions they are made of.

`dequantize` and `quantize` work on arrays; every family whose ops take quantised tensors computes between the two.
`smelt.round_to_byte` is what engines write for plain numbers that become bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.dtype import Array, Quantized, f32, i8, integer_range, ui8
from smelt.ir.attributes import INT
from smelt.ir.cast import cast
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.shape import Shape


def dequantize(array: Array, of: Quantized) -> Array:
    """`(q - zero_point) * scale` in the expressed type. The difference does not wrap."""
    scales, zero_points = _parameters(of, np.ndim(array))
    steps = cast(np.asarray(array).astype(np.int64) - zero_points, of.expressed)
    return cast(steps.astype(np.float64) * scales, of.expressed)


def quantize(array: Array, to: Quantized) -> Array:
    """`round_nearest_even(clamp(x / scale + zero_point))` in the storage type, each step rounded to the expressed."""
    scales, zero_points = _parameters(to, np.ndim(array))
    scaled = cast(np.asarray(array).astype(np.float64) / scales, to.expressed)
    shifted = cast(scaled.astype(np.float64) + _express(zero_points, to), to.expressed).astype(np.float64)
    low, high = _express(np.array([to.storage_min, to.storage_max], np.int64), to)
    return cast(np.rint(np.minimum(np.maximum(shifted, low), high)), to.storage)


def _parameters(of: Quantized, rank: int) -> tuple[Array, Array]:
    """Scales (rounded to the expressed type, as doubles) and zero points, shaped to broadcast against a tensor."""
    around = [1] * rank
    if of.axis is not None:
        around[of.axis] = len(of.scales)
    scales = cast(np.array(of.scales, np.float64), of.expressed).astype(np.float64)
    return scales.reshape(around), np.array(of.zero_points, np.int64).reshape(around)


def _express(integers: Array, of: Quantized) -> Array:
    return cast(integers, of.expressed).astype(np.float64)


def baseline(of: Quantized) -> tuple[object, ...]:
    """The type without scales and zero points: what the specification's `baseline_type` compares."""
    return of.storage, of.expressed, of.storage_min, of.storage_max, of.axis


def check_axis(call: Call, shape: Shape) -> None:
    """The axis of a per-axis quantised tensor exists, and has one scale per slice."""
    element = shape.dtype
    if isinstance(element, Quantized) and element.axis is not None:
        call.check_dims([element.axis], shape.rank, "quantized_tensor_type_c12", "the quantisation dimension")
        size = shape.sizes[element.axis]
        call.same_size(
            size, len(element.scales), "quantized_tensor_type_c13", "one scale per slice of the quantisation dimension"
        )


def _infer_quantize(call: Call) -> Sequence[Type]:
    operand, wanted = call.shape(0), call.declared_shape()
    if not isinstance(wanted.dtype, Quantized):
        call.fail("uniform_quantize_o1", "the result must be quantised", got=wanted)
    floats = operand.dtype.expressed if isinstance(operand.dtype, Quantized) else operand.dtype
    call.require(floats.is_float, "uniform_quantize_i1", "the operand must be floating-point or quantised", got=operand)
    call.same_dtype(floats, wanted.dtype.expressed, "uniform_quantize_c2", "the expressed type must be the operand's")
    result = operand.with_dtype(wanted.dtype)
    check_axis(call, result)
    return [result]


def _infer_dequantize(call: Call) -> Sequence[Type]:
    operand = call.shape(0)
    if not isinstance(operand.dtype, Quantized):
        call.fail("uniform_dequantize_i1", "the operand must be quantised", got=operand)
    check_axis(call, operand)
    return [operand.with_dtype(operand.dtype.expressed)]  # uniform_dequantize_c1, c2


def _quantize(_: Frame, op: Op, x: Array) -> Array:
    of, to = op.operands[0].shape.dtype, op.results[0].shape.dtype
    assert isinstance(to, Quantized)
    return quantize(dequantize(x, of) if isinstance(of, Quantized) else x, to)


def _dequantize(_: Frame, op: Op, x: Array) -> Array:
    of = op.operands[0].shape.dtype
    assert isinstance(of, Quantized)
    return dequantize(x, of)


def _infer_round(call: Call) -> Sequence[Type]:
    x, result = call.shape(0), call.declared_shape()
    call.require(result.dtype in (i8, ui8), "", "the result must be of i8 or ui8", got=result)
    for i in range(3):
        call.require(call.shape(i).dtype == f32, "", "all operands must be of f32", got=call.shape(i))
        call.same_sizes(x.sizes, call.shape(i).sizes, "", "all operands have the same sizes")
    low, high = integer_range(result.element)
    least, greatest = call.attrs["least"], call.attrs["greatest"]
    call.require(low <= least <= greatest <= high, "", "the limits must be within the type", got=(least, greatest))
    return [x.with_dtype(result.dtype)]


def _round(frame: Frame, op: Op, x: Array, scale: Array, zero: Array) -> Array:
    """`x / scale` rounded to even, + zero (a whole number), held between least and greatest."""
    with np.errstate(all="ignore"):
        steps = np.rint(np.divide(x, scale, dtype=np.float32)) + zero
    held: Array = np.fmin(np.fmax(steps, op.attrs["least"]), op.attrs["greatest"])
    return held.astype(op.result.shape.element.numpy)


_LIMITS = (Attr("least", INT), Attr("greatest", INT))

ROWS: list[OpDef] = [
    OpDef("stablehlo.uniform_quantize", "operand", _infer_quantize, _quantize, elementwise=True),
    OpDef("stablehlo.uniform_dequantize", "operand", _infer_dequantize, _dequantize, elementwise=True),
    OpDef("smelt.round_to_byte", "x scale zero", _infer_round, _round, _LIMITS, elementwise=True),
]
