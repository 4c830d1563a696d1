"""Quantised operators of com.microsoft: what onnxruntime's quantisers and its optimiser write.

Most of them are an operator on real numbers between a dequantisation and a quantisation, and are read as that; the
GEMMs accumulate in i32. Weights of a few bits are unpacked by the program, which happens once, in `prepare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np

from smelt.dim import Size
from smelt.dtype import f32, i32, ui8
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.emit import axes_of, axis_of
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.ops.math import leaky_relu, softmax_over
from smelt.read.onnx.ops.nn import ConvAttributes, average_pool, channels_back, channels_first, max_pool
from smelt.read.onnx.ops.quant import (
    broadcast_parameter,
    dequantise,
    dequantize_linear,
    dynamic_quantize_linear,
    integer_product,
    product,
    qlinear_conv,
    quantise_to,
    quantize_linear,
    single,
)
from smelt.read.onnx.ops.rnn import LstmAttributes, lstm
from smelt.read.onnx.registry import onnx_op

_MS = "com.microsoft"


@onnx_op("QuantizeLinear", domain=_MS)
def ms_quantize_linear(
    g: Graph, x: Value, y_scale: Value, y_zero_point: Value | None = None, *, axis: int = 1
) -> Value:
    return quantize_linear(g, x, y_scale, y_zero_point, axis=axis)


@onnx_op("DequantizeLinear", domain=_MS)
def ms_dequantize_linear(
    g: Graph, x: Value, x_scale: Value, x_zero_point: Value | None = None, *, axis: int = 1
) -> Value:
    return dequantize_linear(g, x, x_scale, x_zero_point, axis=axis)


# ---- an operator on real numbers between dequantisation and quantisation ----


def _real(g: Graph, x: Value, scale: Value | None, zero: Value | None, what: str) -> Value:
    """A tensor with one scale and perhaps a zero point, as f32."""
    if scale is None:
        raise ParseError(f"input {what + '_scale'!r} is missing")
    point = None if zero is None else single(g, zero, f"{what}_zero_point")
    return dequantise(g, x, single(g, scale, f"{what}_scale"), point)


def _quantise(g: Graph, real: Value, scale: Value | None, zero: Value | None, like: Value, what: str) -> Value:
    """f32 with one scale and perhaps a zero point, in the type of the zero point or of an input."""
    if scale is None:
        raise ParseError(f"input {what + '_scale'!r} is missing")
    scaled = g.binary("divide", real, single(g, scale, f"{what}_scale"))
    if zero is None:
        return quantise_to(g, scaled, None, like.shape.element)
    return quantise_to(g, scaled, single(g, zero, f"{what}_zero_point"), zero.shape.element)


def _two_operands(name: str, op: str) -> None:
    @onnx_op(name, domain=_MS)
    def qlinear(
        g: Graph,
        A: Value,
        A_scale: Value,
        A_zero_point: Value | None = None,
        B: Value | None = None,
        B_scale: Value | None = None,
        B_zero_point: Value | None = None,
        C_scale: Value | None = None,
        C_zero_point: Value | None = None,
    ) -> Value:
        if B is None:
            raise ParseError(f"{name}: input 'B' is missing")
        a, b = _real(g, A, A_scale, A_zero_point, "A"), _real(g, B, B_scale, B_zero_point, "B")
        return _quantise(g, g.binary(op, a, b), C_scale, C_zero_point, A, "C")


_two_operands("QLinearAdd", "add")
_two_operands("QLinearMul", "multiply")


@onnx_op("QLinearSigmoid", domain=_MS)
def qlinear_sigmoid(
    g: Graph,
    X: Value,
    X_scale: Value,
    X_zero_point: Value | None = None,
    Y_scale: Value | None = None,
    Y_zero_point: Value | None = None,
) -> Value:
    y = g.unary("logistic", _real(g, X, X_scale, X_zero_point, "X"))
    return _quantise(g, y, Y_scale, Y_zero_point, X, "Y")


@onnx_op("QLinearLeakyRelu", domain=_MS)
def qlinear_leaky_relu(
    g: Graph,
    X: Value,
    X_scale: Value,
    X_zero_point: Value | None = None,
    Y_scale: Value | None = None,
    Y_zero_point: Value | None = None,
    *,
    alpha: float = 0.01,
) -> Value:
    y = leaky_relu(g, _real(g, X, X_scale, X_zero_point, "X"), alpha=alpha)
    return _quantise(g, y, Y_scale, Y_zero_point, X, "Y")


@onnx_op("QLinearSoftmax", domain=_MS)
def qlinear_softmax(
    g: Graph,
    X: Value,
    X_scale: Value,
    x_zero_point: Value | None = None,
    y_scale: Value | None = None,
    y_zero_point: Value | None = None,
    *,
    axis: int = -1,
    opset: int,
) -> Value:
    """Before opset 13 a softmax took everything from the axis on together."""
    rank = X.shape.rank
    place = axis_of(axis, rank)
    y = softmax_over(g, _real(g, X, X_scale, x_zero_point, "X"), (place,) if opset >= 13 else tuple(range(place, rank)))
    return _quantise(g, y, y_scale, y_zero_point, X, "y")


@onnx_op("QLinearConcat", domain=_MS)
def qlinear_concat(g: Graph, Y_scale: Value, Y_zero_point: Value, *inputs: Value, axis: int) -> Value:
    if not inputs or len(inputs) % 3:
        raise ParseError("QLinearConcat: inputs come as tensor, scale and zero point", got=len(inputs))
    rows = [inputs[i : i + 3] for i in range(0, len(inputs), 3)]
    parts = [_real(g, x, scale, zero, f"input {i}") for i, (x, scale, zero) in enumerate(rows)]
    return _quantise(g, g.concat(parts, axis_of(axis, parts[0].shape.rank)), Y_scale, Y_zero_point, inputs[0], "Y")


@onnx_op("QLinearWhere", domain=_MS)
def qlinear_where(
    g: Graph,
    condition: Value,
    X: Value,
    x_scale: Value,
    x_zero_point: Value,
    Y: Value,
    y_scale: Value,
    y_zero_point: Value,
    z_scale: Value,
    z_zero_point: Value,
) -> Value:
    chosen = g.choose(condition, _real(g, X, x_scale, x_zero_point, "x"), _real(g, Y, y_scale, y_zero_point, "y"))
    return _quantise(g, chosen, z_scale, z_zero_point, X, "z")


@onnx_op("QLinearReduceMean", domain=_MS)
def qlinear_reduce_mean(
    g: Graph,
    data: Value,
    data_scale: Value,
    data_zero_point: Value | None = None,
    reduced_scale: Value | None = None,
    reduced_zero_point: Value | None = None,
    *,
    axes: tuple[int, ...],
    keepdims: int,
) -> Value:
    real = _real(g, data, data_scale, data_zero_point, "data")
    places = axes_of(axes, data.shape.rank) or tuple(range(data.shape.rank))
    return _quantise(g, g.mean(real, places, bool(keepdims)), reduced_scale, reduced_zero_point, data, "reduced")


# ---- images ----


@onnx_op("QLinearGlobalAveragePool", domain=_MS)
def qlinear_global_average_pool(
    g: Graph,
    X: Value,
    x_scale: Value,
    x_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    *,
    channels_last: int = 0,
) -> Value:
    rank = X.shape.rank
    space = range(1, rank - 1) if channels_last else range(2, rank)
    y = g.mean(_real(g, X, x_scale, x_zero_point, "x"), space, keep=True)
    return _quantise(g, y, y_scale, y_zero_point, X, "y")


@onnx_op("QLinearAveragePool", domain=_MS)
def qlinear_average_pool(
    g: Graph,
    X: Value,
    x_scale: Value,
    x_zero_point: Value | None = None,
    y_scale: Value | None = None,
    y_zero_point: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    pooled = average_pool(
        g,
        channels_first(g, _real(g, X, x_scale, x_zero_point, "x"), channels_last),
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return _quantise(g, channels_back(g, pooled, channels_last), y_scale, y_zero_point, X, "y")


@onnx_op("NhwcMaxPool", domain=_MS)
def nhwc_max_pool(
    g: Graph,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    pooled = max_pool(
        g,
        channels_first(g, x),
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return channels_back(g, pooled[0])


@onnx_op("QLinearConv", domain=_MS)
def ms_qlinear_conv(
    g: Graph,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    B: Value | None = None,
    *,
    channels_last: int = 0,
    **window: Unpack[ConvAttributes],
) -> Value:
    made = qlinear_conv(
        g,
        channels_first(g, x, channels_last),
        x_scale,
        x_zero_point,
        w,
        w_scale,
        w_zero_point,
        y_scale,
        y_zero_point,
        B,
        **window,
    )
    return channels_back(g, made, channels_last)


# ---- matrix multiplication ----


@onnx_op("MatMulIntegerToFloat", domain=_MS)
def matmul_integer_to_float(
    g: Graph,
    A: Value,
    B: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero_point: Value | None = None,
    b_zero_point: Value | None = None,
    bias: Value | None = None,
) -> Value:
    def emits(g: Graph, named: Mapping[str, Value]) -> Value:
        columns = broadcast_parameter(g, g.convert(named["scale.rhs"], f32), B.shape.rank, -1)
        scale = g.binary("multiply", single(g, g.convert(named["scale.lhs"], f32), "a_scale"), columns)
        y = g.binary("multiply", g.convert(integer_product(g, named), f32), scale)
        y = g.binary("add", y, g.convert(named["bias"], f32)) if "bias" in named else y
        return g.convert(y, a_scale.shape.element)

    point = None if a_zero_point is None else single(g, a_zero_point, "a_zero_point")
    more = {"scale.lhs": single(g, a_scale, "a_scale"), "scale.rhs": b_scale, "bias": bias}
    return product(g, (A, point), (B, b_zero_point), more, emits)


@onnx_op("DynamicQuantizeMatMul", domain=_MS)
def dynamic_quantize_matmul(
    g: Graph, A: Value, B: Value, b_scale: Value, b_zero_point: Value | None = None, bias: Value | None = None
) -> Value:
    a, scale, zero = dynamic_quantize_linear(g, A)
    return matmul_integer_to_float(g, a, B, scale, b_scale, zero, b_zero_point, bias)


@onnx_op("QGemm", domain=_MS)
def qgemm(
    g: Graph,
    A: Value,
    a_scale: Value,
    a_zero_point: Value,
    B: Value,
    b_scale: Value,
    b_zero_point: Value,
    C: Value | None = None,
    y_scale: Value | None = None,
    y_zero_point: Value | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """C is i32 in units of `alpha * a_scale * b_scale`; without a zero point the result stays f32."""
    if A.shape.rank != 2 or B.shape.rank != 2:
        raise ShapeError("QGemm multiplies matrices", got=f"{A.shape} and {B.shape}")
    a, b = g.transpose(A, (1, 0) if transA else (0, 1)), g.transpose(B, (1, 0) if transB else (0, 1))
    if (y_zero_point is None) != (y_scale is None):
        raise ParseError("QGemm: 'y_scale' and 'y_zero_point' come together")

    def emits(g: Graph, named: Mapping[str, Value]) -> Value:
        total = integer_product(g, named)
        if "bias" in named:
            total = g.binary("add", total, g.broadcast_to(named["bias"], total.shape.sizes))
        scale = g.binary(
            "multiply", single(g, named["scale.lhs"], "a_scale"), broadcast_parameter(g, named["scale.rhs"], 2, -1)
        )
        scale = g.binary("multiply", scale, named["scale"]) if "scale" in named else scale
        if y_zero_point is None:
            return g.binary("multiply", g.convert(total, f32), scale)
        factor = g.binary("divide", scale, single(g, named["result_scale"], "y_scale"))
        scaled = g.binary("multiply", g.convert(total, f32), factor)
        return quantise_to(g, scaled, single(g, named["result_zero"], "y_zero_point"), y_zero_point.shape.element)

    more = {
        "scale.lhs": a_scale,
        "scale.rhs": b_scale,
        "scale": None if alpha == 1 else g.scalar(alpha, f32),
        "bias": C,
        "result_scale": y_scale,
        "result_zero": y_zero_point,
    }
    return product(g, (a, single(g, a_zero_point, "a_zero_point")), (b, b_zero_point), more, emits)


# ---- weights of a few bits ----


def unpack_bits(g: Graph, packed: Value, bits: int) -> Value:
    """Bytes as numbers of a few bits (i32), the lowest bits first, along the last dimension."""
    if packed.shape.element != ui8:
        raise ShapeError("packed numbers come in bytes", expected="ui8", got=packed.shape)
    each = 8 // bits
    rank = packed.shape.rank
    sizes = (*packed.shape.sizes, each)
    spread = g.broadcast_in_dim(g.convert(packed, i32), sizes, range(rank))
    shifts = g.times(g.iota(i32, sizes, rank), bits)
    kept = g.binary("and", g.binary("shift_right_logical", spread, shifts), g.full((1 << bits) - 1, shifts.shape))
    return g.reshape(kept, (*packed.shape.sizes[:-1], packed.shape.sizes[-1] * each))


@onnx_op("MatMulNBits", domain=_MS)
def matmul_nbits(
    g: Graph,
    A: Value,
    B: Value,
    scales: Value,
    zero_points: Value | None = None,
    g_idx: Value | None = None,
    bias: Value | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Value:
    """B [N, blocks, bytes] holds K numbers a row, in blocks with a scale and a zero point each.

    `accuracy_level` allows less than f32; nothing here makes use of that.
    """
    if bits not in (2, 4, 8):
        raise UnsupportedError("MatMulNBits: attribute 'bits'", expected="2, 4 or 8", got=bits)
    if g_idx is not None:
        raise UnsupportedError("MatMulNBits: input 'g_idx'")
    if weight_prepacked:
        raise UnsupportedError("MatMulNBits: attribute 'weight_prepacked'", expected=0, got=weight_prepacked)
    if block_size < 1 or (block_size * bits) % 8 or K < 1 or N < 1:
        raise ShapeError("MatMulNBits: attributes 'block_size', 'K' and 'N'", got=[block_size, K, N])
    blocks = -(-K // block_size)
    whole = g.convert(unpack_bits(g, g.reshape(B, (N, blocks, block_size * bits // 8)), bits), f32)
    if zero_points is None:
        shifted = g.plus(whole, -float(1 << (bits - 1)))
    else:
        points = zero_points
        if points.shape.element == ui8:
            points = g.slice_axis(unpack_bits(g, g.reshape(points, (N, -(-blocks * bits // 8))), bits), 1, 0, blocks)
        shifted = g.binary("subtract", whole, g.reshape(g.convert(points, f32), (N, blocks, 1)))
    scaled = g.binary("multiply", shifted, g.reshape(g.convert(scales, f32), (N, blocks, 1)))
    weights = g.slice_axis(g.reshape(scaled, (N, blocks * block_size)), 1, 0, K)
    y = g.dot(g.convert(A, f32), weights, ((A.shape.rank - 1,), (1,)))
    y = y if bias is None else g.binary("add", y, g.convert(bias, f32))
    return g.convert(y, A.shape.element)


_SIXTHS = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
_FP4 = (*_SIXTHS, *(-each for each in _SIXTHS))
# The quantiles of the normal distribution that bitsandbytes' NF4 stands for.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@onnx_op("MatMulBnb4", domain=_MS)
def matmul_bnb4(
    g: Graph,
    A: Value,
    B: Value,
    absmax: Value,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Value:
    """B holds an [N, K] matrix, flat, two numbers a byte with the first in the high bits, and a scale per block."""
    if quant_type not in (0, 1):
        raise UnsupportedError("MatMulBnb4: attribute 'quant_type'", expected="0 (FP4) or 1 (NF4)", got=quant_type)
    if not transB:
        raise UnsupportedError("MatMulBnb4: attribute 'transB' = 0, which training alone needs")
    if block_size < 1 or K < 1 or N < 1:
        raise ShapeError("MatMulBnb4: attributes 'block_size', 'K' and 'N'", got=[block_size, K, N])
    count = N * K
    blocks = -(-count // block_size)
    pairs = g.reshape(unpack_bits(g, g.reshape(B, (-(-count // 2),)), 4), (-(-count // 2), 2))
    codes = g.slice_axis(g.reshape(g.reverse(pairs, (1,)), (-(-count // 2) * 2,)), 0, 0, count)
    table = g.const(np.array(_NF4 if quant_type else _FP4, np.float32), f32)
    numbers = g.take(table, codes, 0)
    scales = g.broadcast_in_dim(g.reshape(g.convert(absmax, f32), (blocks,)), (blocks, block_size), (0,))
    scales = g.slice_axis(g.reshape(scales, (blocks * block_size,)), 0, 0, count)
    weights = g.reshape(g.binary("multiply", numbers, scales), (N, K))
    y = g.dot(g.convert(A, f32), weights, ((A.shape.rank - 1,), (1,)))
    return g.convert(y, A.shape.element)


@onnx_op("GatherBlockQuantized", domain=_MS)
def gather_block_quantized(
    g: Graph,
    data: Value,
    indices: Value,
    scales: Value,
    zero_points: Value | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value:
    """Rows of a quantised table; an index out of range gives zeros."""
    element = data.shape.element
    packs = element == ui8 and bits != 8
    picked, blocked = (axis_of(axis, data.shape.rank) for axis in (gather_axis, quantize_axis))
    if element == ui8 and bits not in (2, 4, 8):
        raise UnsupportedError("GatherBlockQuantized: attribute 'bits'", expected="2, 4 or 8", got=bits)
    if packs and (picked == blocked or blocked != data.shape.rank - 1):  # numbers of a byte belong to one row
        got = [gather_axis, quantize_axis]
        raise UnsupportedError("GatherBlockQuantized: attributes 'gather_axis' and 'quantize_axis'", got=got)
    if block_size < 0 or (not block_size and not element.is_float):
        raise UnsupportedError("GatherBlockQuantized: attribute 'block_size'", got=block_size)
    if zero_points is not None and element.is_float:
        raise ShapeError("GatherBlockQuantized: floats have no zero points", got=data.shape)
    size = data.shape.sizes[picked]
    wrapped = g.wrap(indices, size)
    limit = g.broadcast_to(g.convert(g.size(size), wrapped.shape.element), wrapped.shape.sizes)
    inside = g.binary("and", g.compare(wrapped, g.like(0, wrapped), "GE"), g.compare(wrapped, limit, "LT"))
    safe = g.select(inside, wrapped, g.like(0, wrapped))
    numbers = g.take(data, safe, picked)
    numbers = unpack_bits(g, numbers, bits) if packs else numbers
    many = indices.shape.rank
    place = blocked if blocked < picked else blocked + many - 1
    block = block_size or data.shape.sizes[blocked]

    def spread(x: Value, few: bool = False) -> Value:
        """Scales or zero points of the rows that were picked, one for every number or to be broadcast."""
        if x.shape.rank != data.shape.rank:
            raise ShapeError("GatherBlockQuantized: scales have another rank than the data", got=x.shape)
        if picked == blocked:
            step = g.broadcast_to(g.convert(g.size(block), safe.shape.element), safe.shape.sizes)
            return g.take(x, g.binary("divide", safe, step), picked)
        if x.shape.sizes[picked] == 1 and size != 1:  # shared by all rows
            sizes = x.shape.sizes
            x = g.reshape(x, (*sizes[:picked], *(1,) * many, *sizes[picked + 1 :]))
        else:
            x = g.take(x, safe, picked)
        x = g.slice_axis(unpack_bits(g, x, bits), place, 0, scales.shape.sizes[blocked]) if few else x
        return _repeat(g, x, place, block, numbers.shape.sizes[place])

    zero = g.scalar(1 << (bits - 1), i32) if element == ui8 else None
    if zero_points is not None:
        zero = spread(zero_points, packs)
    real = dequantise(g, numbers, spread(scales), zero)
    mask = g.broadcast_in_dim(inside, real.shape.sizes, range(picked, picked + many))
    return g.convert(g.select(mask, real, g.like(0, real)), scales.shape.element)


def _repeat(g: Graph, x: Value, axis: int, times: Size, length: Size) -> Value:
    """Every slice along an axis several times, cut to a length; a single slice stands for all."""
    sizes: Sequence[Size] = x.shape.sizes
    if sizes[axis] == 1:
        return x
    spread = g.broadcast_in_dim(
        x, (*sizes[: axis + 1], times, *sizes[axis + 1 :]), [i if i <= axis else i + 1 for i in range(len(sizes))]
    )
    whole = g.reshape(spread, (*sizes[:axis], sizes[axis] * times, *sizes[axis + 1 :]))
    return g.slice_axis(whole, axis, 0, length)


# ---- recurrence ----


@onnx_op("DynamicQuantizeLSTM", domain=_MS)
def dynamic_quantize_lstm(
    g: Graph,
    X: Value,
    W: Value,
    R: Value,
    B: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    P: Value | None = None,
    W_scale: Value | None = None,
    W_zero_point: Value | None = None,
    R_scale: Value | None = None,
    R_zero_point: Value | None = None,
    **attributes: Unpack[LstmAttributes],
) -> list[Value]:
    """An LSTM whose input is quantised to 8 bits per tensor, with int8 weights [directions, inputs, gates].

    The state is not quantised. onnxruntime quantises it too, in chunks of the batch that depend on the number of
    threads.
    """
    bytes_, scale, zero = dynamic_quantize_linear(g, X)
    return lstm(
        g,
        dequantise(g, bytes_, scale, zero),
        _gate_weights(g, W, W_scale, W_zero_point, "W"),
        _gate_weights(g, R, R_scale, R_zero_point, "R"),
        B,
        sequence_lens,
        initial_h,
        initial_c,
        P,
        **attributes,
    )


def _gate_weights(g: Graph, x: Value, scale: Value | None, zero: Value | None, what: str) -> Value:
    """Weights as LSTM has them, [directions, gates, inputs]; scales are one per direction, or one per gate's row."""
    if scale is None or zero is None:
        raise ParseError(f"DynamicQuantizeLSTM: inputs '{what}_scale' and '{what}_zero_point' are missing")
    ways, _, gates = x.shape.sizes
    for each in (scale, zero):
        if each.shape.sizes not in ((ways,), (ways, gates)):
            raise ShapeError(f"DynamicQuantizeLSTM: scales of '{what}'", expected=[ways, gates], got=each.shape)
    spread = [g.reshape(each, (ways, 1, gates if each.shape.rank == 2 else 1)) for each in (scale, zero)]
    return g.transpose(dequantise(g, x, *spread), (0, 2, 1))
