"""Precision: products of f32 by weights become products of bytes or of bf16, on request.

`with_precision` takes a program as it was read and a name out of `PRECISIONS`; what comes out is plain StableHLO again.
For bf16 both operands are rounded to it, sums and results stay f32 (`lower_bf16` goes on with that). For int8 weights
are rounded to i8 with one scale per output channel; activations at every call, rows of a matrix to ui8 with a scale and
a zero point each, images with a scale each to i8, or to ui8 where they have no negative numbers; a product of integers,
and the scales. `recognise` finds it. Called by `smelt.model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from smelt.dim import product
from smelt.dtype import DType, bf16, f32, i8, i32, ui8
from smelt.errors import UnsupportedError
from smelt.ir.build import Builder
from smelt.ir.composites import COMPOSITES
from smelt.ir.core import Op, Program, Value
from smelt.ir.ops.packed_words import PAIR, QUAD
from smelt.ir.rewrite import Edit, Match, Rule, op, rewrite
from smelt.passes.inline import inline
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape

PRECISIONS = MappingProxyType(
    {
        "f32": "every product as the model says",
        "bf16": "products by weights of numbers rounded to bf16",
        "int8": "products by weights in 8 bits",
    }
)
LEAST = 1e-30  # of a scale: zeros stay zeros, and one divided by it is a number
DEEP = 16  # steps of a sum that are worth it, and
WIDE = 16  # columns
MOVES = frozenset(f"stablehlo.{name}" for name in ("reshape", "transpose", "broadcast_in_dim"))


def check_precision(precision: str) -> None:
    """Refuse a precision that there is no kernel for."""
    if precision in PRECISIONS:
        return
    if precision == "f16":
        raise UnsupportedError(
            "products in f16 need instructions that no kernel of ours uses yet",
            expected=", ".join(PRECISIONS),
            got=precision,
            remedy='precision="bf16", "int8" or "f32"',
        )
    raise UnsupportedError("unknown precision", expected=", ".join(PRECISIONS), got=precision)


def with_precision(program: Program, precision: str) -> Program:
    """The program with its products in another precision."""
    check_precision(precision)
    if precision == "f32":
        return program
    program = inline(program, COMPOSITES)
    signatures = {name: func.type for name, func in program.funcs.items()}
    edit = Edit(program.main, signatures)
    rewrite(edit, RULES[precision])
    return program.replace(edit.freeze())


# ---- rules ----


def _dot(m: Match) -> Value | None:
    """Rows of activations by a matrix of weights."""
    if not _is_dot_by_weights(m):
        return None
    lhs, rhs, dims = m["x"], m["y"], m.op.attrs["dot_dimension_numbers"]
    columns = [d for d in range(rhs.shape.rank) if d not in dims.rhs_contracting_dimensions]
    b = m.build
    rows = [d for d in range(lhs.shape.rank) if d not in dims.lhs_contracting_dimensions]
    (a, a_scale), (w, w_scale) = _moved(b, lhs, rows), _weights(b, rhs, columns)
    total = b.dot_general(a, _wide(b, w), dot_dimension_numbers=dims, result=m.shape.with_dtype(i32))
    return _scaled(b, total, (a_scale, range(len(rows))), (w_scale, range(len(rows), m.shape.rank)))


def _convolution(m: Match) -> Value | None:
    """Images by weights; a window for each channel stays as it is."""
    if not _is_convolution_by_weights(m, QUAD):
        return None
    images, kernel, attrs = m["x"], m["y"], m.op.attrs
    dims = attrs["dimension_numbers"]
    b = m.build
    positive = _is_positive(m.edit, images)
    batch, feature = dims.input_batch_dimension, dims.input_feature_dimension
    # First over places: what follows a convolution with its channels last takes that as it lies.
    peaks = _greatest(b, images if positive else b.abs(images), dims.input_spatial_dimensions)
    peak = _greatest(b, peaks, [int(feature > batch)])
    a, a_scale = _rounded(b, images, peak, [batch], ui8 if positive else i8)
    w, w_scale = _weights(b, kernel, [dims.kernel_output_feature_dimension])
    total = b.convolution(_wide(b, a), _wide(b, w), result=m.shape.with_dtype(i32), **attrs)
    places = (dims.output_batch_dimension, dims.output_feature_dimension)
    return _scaled(b, total, (a_scale, places[:1]), (w_scale, places[1:]))


def _dot_bf16(m: Match) -> Value | None:
    return _rounded_to_bf16(m) if _is_dot_by_weights(m) else None


def _convolution_bf16(m: Match) -> Value | None:
    return _rounded_to_bf16(m) if _is_convolution_by_weights(m, PAIR) else None


def _rounded_to_bf16(m: Match) -> Value:
    operands = (_wide(m.build, m[name], bf16) for name in ("x", "y"))
    attrs = {name: value for name, value in m.op.attrs.items() if name != "algorithm"}
    return m.build.op(m.op.name, *operands, result=m.shape, **attrs).result


RULES = {
    "int8": [
        Rule(op("stablehlo.dot_general", "x", "y"), _dot, "asked for: weights and rows in 8 bits"),
        Rule(op("stablehlo.convolution", "x", "y"), _convolution, "asked for: weights and images in 8 bits"),
    ],
    "bf16": [
        Rule(op("stablehlo.dot_general", "x", "y"), _dot_bf16, "asked for: weights and rows in bf16"),
        Rule(op("stablehlo.convolution", "x", "y"), _convolution_bf16, "asked for: weights and images in bf16"),
    ],
}


# ---- what is worth it ----


def _is_dot_by_weights(m: Match) -> bool:
    """A product of rows of activations by a matrix of weights that is large enough."""
    lhs, rhs, dims = m["x"], m["y"], m.op.attrs["dot_dimension_numbers"]
    if not _is_float(lhs, rhs, m.op.results[0]) or dims.rhs_batching_dimensions:
        return False
    if not _is_fixed(m.edit, rhs) or _is_fixed(m.edit, lhs):
        return False
    summed = dims.rhs_contracting_dimensions
    depth = product(rhs.shape.sizes[d] for d in summed)
    width = product(rhs.shape.sizes[d] for d in range(rhs.shape.rank) if d not in summed)
    return isinstance(depth, int) and isinstance(width, int) and depth >= DEEP and width >= WIDE


def _is_convolution_by_weights(m: Match, together: int) -> bool:
    """A convolution of activations by weights with enough channels in each group, in whole words of so many."""
    images, kernel, attrs = m["x"], m["y"], m.op.attrs
    dims = attrs["dimension_numbers"]
    if not _is_float(images, kernel, m.op.results[0]) or attrs["batch_group_count"] != 1:
        return False
    if any(attrs.get("window_reversal") or ()) or not _is_fixed(m.edit, kernel) or _is_fixed(m.edit, images):
        return False
    depth = kernel.shape.sizes[dims.kernel_input_feature_dimension]
    width = kernel.shape.sizes[dims.kernel_output_feature_dimension]
    if not isinstance(depth, int) or not isinstance(width, int):
        return False
    return depth >= DEEP and depth % together == 0 and width >= WIDE


def _is_float(*values: Value) -> bool:
    return all(value.shape.dtype == f32 for value in values)


def _is_fixed(edit: Edit, value: Value) -> bool:
    """Whether a value depends on weights and constants alone."""
    main = edit.func
    weights = {arg for arg, attrs in zip(main.args, main.arg_attrs, strict=False) if WEIGHT in attrs}
    stack, seen = [edit.value(value)], set[Value]()
    while stack:
        each = stack.pop()
        if each in seen or each in weights:
            continue
        seen.add(each)
        maker = edit.maker(each)
        if maker is None or maker.regions:
            return False
        stack += edit.operands(maker)
    return True


def _is_positive(edit: Edit, value: Value) -> bool:
    """Whether a value has plainly no negative numbers: what comes out of a ReLU, and its greatest neighbours."""
    maker = edit.maker(value)
    while maker is not None and (maker.name in MOVES or _is_peak(maker)):
        maker = edit.maker(maker.operands[0])
    if maker is None:
        return False
    bounds = {"stablehlo.maximum": maker.operands, "stablehlo.clamp": maker.operands[:1]}.get(maker.name, ())
    return any(_is_at_least_zero(edit, bound) for bound in bounds) or maker.name == "stablehlo.logistic"


def _is_peak(maker: Op) -> bool:
    """The greatest of windows of numbers: never less than the least of them, where a window holds one."""
    if maker.name != "stablehlo.reduce_window" or len(maker.operands) != 2:
        return False
    body = maker.regions[0].ops
    return len(body) == 1 and body[0].name == "stablehlo.maximum"


def _is_at_least_zero(edit: Edit, bound: Value) -> bool:
    maker = edit.maker(bound)
    while maker is not None and maker.name in MOVES:
        maker = edit.maker(maker.operands[0])
    return maker is not None and maker.name == "stablehlo.constant" and bool((maker.attrs["value"].array >= 0).all())


# ---- numbers ----


def _weights(b: Builder, value: Value, kept: Sequence[int]) -> tuple[Value, Value]:
    """Weights in steps of i8, and the size of a step for each index along the axes that are kept."""
    return _rounded(b, value, _greatest(b, b.abs(value), _others(value, kept)), kept, i8)


def _rounded(b: Builder, value: Value, peak: Value, kept: Sequence[int], to: DType) -> tuple[Value, Value]:
    """A value of known greatest amounts in steps of a byte, and the size of a step."""
    step = _step(b, peak, 127 if to == i8 else 255)
    steps = b.round_nearest_even(_in_steps(b, value, step, kept))
    return _wide(b, _held(b, steps, to), to), step


def _moved(b: Builder, value: Value, kept: Sequence[int]) -> tuple[Value, Value]:
    """The same in 256 steps from the least to the greatest number or 0: ui8 less the zero point, as i32."""
    least = b.negate(_greatest(b, b.negate(value), _others(value, kept)))
    step = _step(b, b.subtract(_greatest(b, value, _others(value, kept)), least), 255)
    zero = _wide(b, _held(b, b.round_nearest_even(b.divide(b.negate(least), step)), ui8), ui8)
    spread = b.broadcast_in_dim(_wide(b, zero, f32), broadcast_dimensions=tuple(kept), result=value.shape)
    steps = b.add(b.round_nearest_even(_in_steps(b, value, step, kept)), spread)
    narrow = _wide(b, _held(b, steps, ui8), ui8)
    whole = b.broadcast_in_dim(
        _wide(b, zero, i32), broadcast_dimensions=tuple(kept), result=value.shape.with_dtype(i32)
    )
    return b.subtract(_wide(b, narrow, i32), whole), step


def _others(value: Value, kept: Sequence[int]) -> list[int]:
    return [d for d in range(value.shape.rank) if d not in kept]


def _step(b: Builder, reach: Value, count: int) -> Value:
    return b.maximum(b.multiply(reach, b.full(1 / count, reach.shape)), b.full(LEAST, reach.shape))


def _in_steps(b: Builder, value: Value, step: Value, kept: Sequence[int]) -> Value:
    factor = b.divide(b.full(1.0, step.shape), step)
    return b.multiply(value, b.broadcast_in_dim(factor, broadcast_dimensions=tuple(kept), result=value.shape))


def _held(b: Builder, steps: Value, to: DType) -> Value:
    """Steps inside the type, as i32."""
    low, high = (-127.0, 127.0) if to == i8 else (0.0, 255.0)
    held = b.minimum(b.maximum(steps, b.full(low, steps.shape)), b.full(high, steps.shape))
    return _wide(b, held, i32)


def _greatest(b: Builder, value: Value, axes: Sequence[int]) -> Value:
    scalar = Shape(f32)
    with b.region(scalar, scalar) as r:
        r.result(r.maximum(*r.args))
    return b.reduce(value, b.constant(0.0, f32), dimensions=tuple(axes), regions=[r.body])


def _wide(b: Builder, value: Value, to: DType = i32) -> Value:
    return b.convert(value, result=value.shape.with_dtype(to))


def _scaled(b: Builder, total: Value, *scales: tuple[Value, Sequence[int]]) -> Value:
    """A sum of i32 times steps that go along some of its axes."""
    shape = total.shape.with_dtype(f32)
    first, second = (
        b.broadcast_in_dim(value, broadcast_dimensions=tuple(axes), result=shape) for value, axes in scales
    )
    return b.multiply(_wide(b, total, f32), b.multiply(first, second))
