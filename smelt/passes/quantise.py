"""Dynamic quantisation on request: f32 weight matmuls and convolutions in int8, fp8, bf16 or tf32.

In: a program as it was read, and a name out of `PRECISIONS`. Out: StableHLO. bf16 and tf32: both operands are rounded,
sums and results stay f32 (see `lower_bf16`, `tf32`). int8: weights get one scale per output channel; activations are
quantised at every call, matrix rows to uint8 with a scale and a zero point each, feature maps with a scale each to
int8, or to uint8 after a ReLU. `recognise` finds the result as `smelt.qdot`. fp8: weights as in int8, rows with a scale
each (see `lower_fp8`). Called by `smelt.model`; `round_products` has fp8 for language models.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from smelt.dtype import DType, bf16, f32, i8, i32, ui8
from smelt.errors import UnsupportedError
from smelt.ir.build import Builder
from smelt.ir.composites import COMPOSITES
from smelt.ir.core import Op, Program, Value
from smelt.ir.ops.packed import OCTET, PAIR, QUAD
from smelt.ir.ops.window import can_pad_first
from smelt.ir.rewrite import Edit, Match, Rule, op, rewrite
from smelt.passes.channels_last import channels_last_dims
from smelt.passes.fp8 import multiply_in_fp8
from smelt.passes.inline import inline
from smelt.passes.narrow_activations import find_attention, narrow_activations, narrow_attention
from smelt.passes.tf32 import is_tf32, round_to_tf32
from smelt.passes.weight_matmul import (
    DEEP,
    WIDE,
    are_f32,
    convert,
    dequantise,
    divide_by,
    is_fixed,
    is_weight_matmul,
    kept_axes,
    other_axes,
    scale_of,
)
from smelt.shape import Shape

PRECISIONS = MappingProxyType(
    {
        "f32": "every op in the precision of the model",
        "bf16": "weight matmuls and convolutions on operands rounded to bf16",
        "bf16_activations": "as bf16, and activations are stored in bf16 between kernels; attention in bf16",
        "tf32": "weight matmuls and convolutions on operands rounded to tf32, 10 bits of mantissa",
        "int8": "weight matmuls and convolutions in int8",
        "fp8": "weight matmuls on operands rounded to fp8 (E4M3) with scales, convolutions as in bf16",
    }
)
NARROW = "bf16_activations"
MOVES = frozenset(f"stablehlo.{name}" for name in ("reshape", "transpose", "broadcast_in_dim"))


def check_precision(precision: str) -> None:
    """Reject a precision without a kernel."""
    if precision in PRECISIONS:
        return
    if precision == "f16":
        raise UnsupportedError(
            "there is no f16 GEMM kernel",
            expected=", ".join(PRECISIONS),
            got=precision,
            remedy='precision="bf16", "tf32", "int8", "fp8" or "f32"',
        )
    raise UnsupportedError("unknown precision", expected=", ".join(PRECISIONS), got=precision)


def with_precision(program: Program, precision: str) -> Program:
    """The program with its weight matmuls and convolutions in another precision."""
    check_precision(precision)
    if precision == "f32":
        return program
    narrow = precision == NARROW
    program = narrow_attention(find_attention(program)) if narrow else inline(program, COMPOSITES)
    signatures = {name: func.type for name, func in program.funcs.items()}
    edit = Edit(program.main, signatures)
    rewrite(edit, RULES[precision])
    if narrow:
        narrow_activations(edit, lambda value: is_fixed(edit, value))
    return program.replace(edit.freeze())


# ---- rules ----


def _dot(m: Match) -> Value | None:
    """Activation rows [uint8, asymmetric] by a weight matrix [int8, per column]."""
    if not is_weight_matmul(m.edit, m.op):
        return None
    lhs, rhs, dims = m["x"], m["y"], m.op.attrs["dot_dimension_numbers"]
    b, rows, columns = m.build, *kept_axes(lhs, rhs, dims)
    (a, a_scale), (w, w_scale) = _quantise_asymmetric(b, lhs, rows), _quantise_weights(b, rhs, columns)
    total = b.dot_general(a, convert(b, w), dot_dimension_numbers=dims, result=m.shape.with_dtype(i32))
    return dequantise(b, total, (a_scale, range(len(rows))), (w_scale, range(len(rows), m.shape.rank)))


def _dot_fp8(m: Match) -> Value | None:
    return multiply_in_fp8(m.edit, m.op) if is_weight_matmul(m.edit, m.op) else None


def _convolution(m: Match) -> Value | None:
    """Feature maps by weights; a depthwise convolution stays f32."""
    if not _is_weight_convolution(m, QUAD):
        return None
    maps, kernel, attrs = m["x"], m["y"], m.op.attrs
    dims = attrs["dimension_numbers"]
    b = m.build
    positive = _is_non_negative(m.edit, maps)
    batch, feature = dims.input_batch_dimension, dims.input_feature_dimension
    # First over spatial axes: in NHWC that reduction needs no transpose.
    peaks = b.reduce_by("maximum", maps if positive else b.abs(maps), 0.0, dims.input_spatial_dimensions)
    peak = b.reduce_by("maximum", peaks, 0.0, [int(feature > batch)])
    a, a_scale = _quantise_symmetric(b, maps, peak, [batch], ui8 if positive else i8)
    w, w_scale = _quantise_weights(b, kernel, [dims.kernel_output_feature_dimension])
    total = b.convolution(convert(b, a), convert(b, w), result=m.shape.with_dtype(i32), **attrs)
    places = (dims.output_batch_dimension, dims.output_feature_dimension)
    return dequantise(b, total, (a_scale, places[:1]), (w_scale, places[1:]))


def _dot_bf16(m: Match) -> Value | None:
    return _round_to_bf16(m) if is_weight_matmul(m.edit, m.op) else None


def _convolution_bf16(m: Match) -> Value | None:
    return _round_to_bf16(m) if _is_weight_convolution(m, PAIR) else None


def _dot_tf32(m: Match) -> Value | None:
    return _round_operands_to_tf32(m) if is_weight_matmul(m.edit, m.op) else None


def _convolution_tf32(m: Match) -> Value | None:
    return _round_operands_to_tf32(m) if _is_weight_convolution(m, QUAD) else None


def _round_operands_to_tf32(m: Match) -> Value | None:
    if is_tf32(m.edit, m["x"]) and is_tf32(m.edit, m["y"]):
        return None
    operands = (round_to_tf32(m.build, m[name]) for name in ("x", "y"))
    attrs = {name: value for name, value in m.op.attrs.items() if name != "algorithm"}
    return m.build.op(m.op.name, *operands, result=m.shape, **attrs).result


def _few_channels_bf16(m: Match) -> Value | None:
    """A convolution of few channels, as the first one of a network: an NHWC convolution of padded maps, in which a row
    of a window is adjacent. Zeros fill up the channels where such a row is not of whole runs of 8 elements."""
    maps, kernel, attrs = m["x"], m["y"], m.op.attrs
    dims, rank = attrs["dimension_numbers"], maps.shape.rank
    plain = {*(attrs.get("lhs_dilation") or ()), *(attrs.get("rhs_dilation") or ()), attrs["feature_group_count"]} == {
        1
    }
    if _is_weight_convolution(m, PAIR) or not plain or rank != 4 or not maps.shape.is_static:
        return None
    if not are_f32(maps, kernel, m.op.results[0]) or any(attrs.get("window_reversal") or ()):
        return None
    if attrs["batch_group_count"] != 1 or not is_fixed(m.edit, kernel) or is_fixed(m.edit, maps):
        return None
    b, sizes = m.build, kernel.shape.numbers()
    depth, width = (sizes[d] for d in (dims.kernel_input_feature_dimension, dims.kernel_output_feature_dimension))
    high, wide = (sizes[d] for d in dims.kernel_spatial_dimensions)
    if high * wide * depth < DEEP or width < WIDE:
        return None
    strides = tuple(attrs.get("window_strides") or (1, 1))
    top, side = attrs.get("padding") or ((0, 0), (0, 0))
    if not can_pad_first([maps.shape.sizes[d] for d in dims.input_spatial_dimensions], (top, side), (1, 1)):
        return None
    across = maps.shape.numbers()[dims.input_spatial_dimensions[1]] + sum(side)
    whole = all(count * depth % OCTET == 0 for count in (wide, strides[1], across))
    more = 0 if whole else -depth % OCTET
    last = channels_last_dims(rank)
    order = (dims.input_batch_dimension, *dims.input_spatial_dimensions, dims.input_feature_dimension)
    rows = convert(b, b.transpose(maps, permutation=order), bf16)
    edges = [*zip((0, 0), top, side, (0, more), strict=True)]
    rows = b.pad(
        rows,
        b.constant(0.0, bf16),
        edge_padding_low=edges[0],
        edge_padding_high=edges[1],
        interior_padding=(0,) * rank,
    )
    order = (*dims.kernel_spatial_dimensions, dims.kernel_input_feature_dimension, dims.kernel_output_feature_dimension)
    taps = convert(b, b.transpose(kernel, permutation=order), bf16)
    if more:
        low, after = (0,) * rank, (0, 0, more, 0)
        zero = b.constant(0.0, bf16)
        taps = b.pad(taps, zero, edge_padding_low=low, edge_padding_high=after, interior_padding=low)
    order = (dims.output_batch_dimension, *dims.output_spatial_dimensions, dims.output_feature_dimension)
    result = Shape.of(f32, tuple(m.shape.sizes[d] for d in order))
    made = b.convolution(
        rows,
        taps,
        window_strides=strides,
        dimension_numbers=last,
        feature_group_count=1,
        batch_group_count=1,
        result=result,
    )
    return b.transpose(made, permutation=tuple(order.index(d) for d in range(rank)))


def _round_to_bf16(m: Match) -> Value:
    operands = (convert(m.build, m[name], bf16) for name in ("x", "y"))
    attrs = {name: value for name, value in m.op.attrs.items() if name != "algorithm"}
    return m.build.op(m.op.name, *operands, result=m.shape, **attrs).result


BF16_RULES = [
    Rule(op("stablehlo.dot_general", "x", "y"), _dot_bf16, "requested: weights and rows in bf16"),
    Rule(op("stablehlo.convolution", "x", "y"), _convolution_bf16, "requested: weights and feature maps in bf16"),
]
RULES = {
    "int8": [
        Rule(op("stablehlo.dot_general", "x", "y"), _dot, "requested: weights and rows in int8"),
        Rule(op("stablehlo.convolution", "x", "y"), _convolution, "requested: weights and feature maps in int8"),
    ],
    "bf16": BF16_RULES,
    "fp8": [
        Rule(op("stablehlo.dot_general", "x", "y"), _dot_fp8, "requested: weights and rows in fp8"),
        *BF16_RULES[1:],
    ],
    "tf32": [
        Rule(op("stablehlo.dot_general", "x", "y"), _dot_tf32, "requested: operands rounded to tf32"),
        Rule(op("stablehlo.convolution", "x", "y"), _convolution_tf32, "requested: operands rounded to tf32"),
    ],
    NARROW: [
        *BF16_RULES,
        Rule(
            op("stablehlo.convolution", "x", "y"), _few_channels_bf16, "requested: the first convolution in bf16, too"
        ),
    ],
}


# ---- what is quantised ----


def _is_weight_convolution(m: Match, k_pack: int) -> bool:
    """A convolution of activations by weights whose channels per group are at least DEEP and a multiple of `k_pack`."""
    maps, kernel, attrs = m["x"], m["y"], m.op.attrs
    dims = attrs["dimension_numbers"]
    if not are_f32(maps, kernel, m.op.results[0]) or attrs["batch_group_count"] != 1:
        return False
    if any(attrs.get("window_reversal") or ()) or not is_fixed(m.edit, kernel) or is_fixed(m.edit, maps):
        return False
    depth = kernel.shape.sizes[dims.kernel_input_feature_dimension]
    width = kernel.shape.sizes[dims.kernel_output_feature_dimension]
    if not isinstance(depth, int) or not isinstance(width, int):
        return False
    return depth >= DEEP and depth % k_pack == 0 and width >= WIDE


def _is_non_negative(edit: Edit, value: Value) -> bool:
    """Whether a value is known to be non-negative: the output of a ReLU, also through max-pooling."""
    maker = edit.maker(value)
    while maker is not None and (maker.name in MOVES or _is_max_pool(maker)):
        maker = edit.maker(maker.operands[0])
    if maker is None:
        return False
    bounds = {"stablehlo.maximum": maker.operands, "stablehlo.clamp": maker.operands[:1]}.get(maker.name, ())
    return any(_is_at_least_zero(edit, bound) for bound in bounds) or maker.name == "stablehlo.logistic"


def _is_max_pool(maker: Op) -> bool:
    """Whether an op is max-pooling."""
    if maker.name != "stablehlo.reduce_window" or len(maker.operands) != 2:
        return False
    body = maker.regions[0].ops
    return len(body) == 1 and body[0].name == "stablehlo.maximum"


def _is_at_least_zero(edit: Edit, bound: Value) -> bool:
    maker = edit.maker(bound)
    while maker is not None and maker.name in MOVES:
        maker = edit.maker(maker.operands[0])
    return maker is not None and maker.name == "stablehlo.constant" and bool((maker.attrs["value"].array >= 0).all())


# ---- scales and zero points ----


def _quantise_weights(b: Builder, value: Value, kept: Sequence[int]) -> tuple[Value, Value]:
    """int8 weights, and a scale per index along the axes that are kept."""
    return _quantise_symmetric(b, value, b.reduce_by("maximum", b.abs(value), 0.0, other_axes(value, kept)), kept, i8)


def _quantise_symmetric(b: Builder, value: Value, peak: Value, kept: Sequence[int], to: DType) -> tuple[Value, Value]:
    """Symmetric quantisation: a value whose largest magnitudes are known, as int8 or uint8, and its scale."""
    step = scale_of(b, peak, 127 if to == i8 else 255)
    steps = b.round_nearest_even(divide_by(b, value, step, kept))
    return convert(b, _clamp(b, steps, to), to), step


def _quantise_asymmetric(b: Builder, value: Value, kept: Sequence[int]) -> tuple[Value, Value]:
    """Asymmetric quantisation over [min(x, 0), max(x, 0)]: uint8 minus the zero point, as i32, and the scale."""
    least = b.negate(b.reduce_by("maximum", b.negate(value), 0.0, other_axes(value, kept)))
    step = scale_of(b, b.subtract(b.reduce_by("maximum", value, 0.0, other_axes(value, kept)), least), 255)
    zero = convert(b, _clamp(b, b.round_nearest_even(b.divide(b.negate(least), step)), ui8), ui8)
    spread = b.broadcast_in_dim(convert(b, zero, f32), broadcast_dimensions=tuple(kept), result=value.shape)
    steps = b.add(b.round_nearest_even(divide_by(b, value, step, kept)), spread)
    narrow = convert(b, _clamp(b, steps, ui8), ui8)
    whole = b.broadcast_in_dim(
        convert(b, zero, i32), broadcast_dimensions=tuple(kept), result=value.shape.with_dtype(i32)
    )
    return b.subtract(convert(b, narrow, i32), whole), step


def _clamp(b: Builder, steps: Value, to: DType) -> Value:
    """Values clamped to the range of the type, as i32."""
    low, high = (-127.0, 127.0) if to == i8 else (0.0, 255.0)
    held = b.minimum(b.maximum(steps, b.full(low, steps.shape)), b.full(high, steps.shape))
    return convert(b, held, i32)
