"""fp8 matmuls: as fp8 GEMM with f32 results where the device has one, else as bf16 or f32 GEMM.

bf16 holds every number of 8 bits, and f32 every product of two: conversions change only the order of a sum. With fp8
tensor cores, operands that are widened before a product stay as they are, and their scales (of a tensor, of a row or of
a column, as QDQ files have them) multiply the sum instead. Rows that are rounded with a scale each (`fp8`) are one op
there. Called by `pipeline`, before `lower_bf16`.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dtype import DType, bf16, f16, f32
from smelt.frozen import Frozen
from smelt.ir.attributes import DotDims
from smelt.ir.core import Op, Value
from smelt.ir.ops.packed import FP8
from smelt.ir.rewrite import Edit, Match, Rule, op
from smelt.passes.weight_matmul import is_fixed

WIDE = (f32, bf16, f16)  # which hold fp8


def fp8_rules(*, fp8: bool, pairs: bool) -> list[Rule]:
    """The rules of a target. `fp8`: it multiplies fp8; `pairs`: it multiplies bf16."""

    def widen(m: Match) -> Value | None:
        return _widen(m, fp8, bf16 if pairs else f32)

    dot = op("stablehlo.dot_general", "x", "y")
    narrow = [Rule(dot, _keep_narrow, "wide floats hold fp8; a sum is scaled once")] if fp8 else []
    return [
        *narrow,
        Rule(dot, _sum_in_f32, "a sum is rounded to a narrow type once"),
        Rule(dot, widen, "bf16 holds every fp8 number"),
    ]


def _is_eight(value: Value) -> bool:
    dtype = value.shape.dtype
    return isinstance(dtype, DType) and dtype.is_float and dtype.bits == 8 and dtype.name != "f8E8M0FNU"


def _sum_in_f32(m: Match) -> Value | None:
    if not (_is_eight(m["x"]) and _is_eight(m["y"])) or not (
        m.shape.dtype in (bf16, f16) or _is_eight(m.op.results[0])
    ):
        return None
    return m.build.convert(_dot(m, m["x"], m["y"]), result=m.shape)


def _widen(m: Match, fp8: bool, to: DType) -> Value | None:
    operands = m["x"], m["y"]
    if not all(map(_is_eight, operands)) or m.shape.dtype != f32:
        return None
    if fp8 and all(value.shape.dtype in FP8 for value in operands):
        return None
    return _dot(m, *(m.build.convert(value, result=value.shape.with_dtype(to)) for value in operands))


def _dot(m: Match, x: Value, y: Value) -> Value:
    """The product of these operands, with sums of f32."""
    attrs = {name: value for name, value in m.op.attrs.items() if name != "algorithm"}
    return m.build.op(m.op.name, x, y, result=m.shape.with_dtype(f32), **attrs).result


# ---- rows that are rounded ----


def round_rows(edit: Edit) -> int:
    """Activations that `passes.fp8` rounds: their scales and themselves as one op. How many there are."""
    count = 0
    for each in [each for each in edit.ops() if each.name == "stablehlo.convert" and each.result.shape.dtype in FP8]:
        found = _find_rounding(edit, each)
        if found is None:
            continue
        x, step, peak, factor, least = found
        element = str(each.result.shape.dtype)
        made = edit.before(peak).op("smelt.round_rows", x, element=element, factor=factor, least=least)
        edit.replace(each.result, made.results[0])
        edit.replace(step.result, made.results[1])
        for dead in (each, step):
            edit.erase_if_dead(dead)
        count += 1
    return count


def _find_rounding(edit: Edit, narrow: Op) -> tuple[Value, Op, Op, float, float] | None:
    """(x, the op of the scales, the reduction, factor, least) of convert(x * (1 / scale)) with scale = max(max |x| *
    factor, least), where x is no weight and all axes but the last are rows."""
    for x, inverse in _operands_of(edit, narrow.operands[0], "stablehlo.multiply"):
        rows = tuple(range(x.shape.rank - 1))
        for one, step in _operands_of(edit, _spread_along(edit, inverse, rows), "stablehlo.divide"):
            for scaled, last in _operands_of(edit, step, "stablehlo.maximum"):
                for reach, by in _operands_of(edit, scaled, "stablehlo.multiply"):
                    factor, least = _number(edit, by), _number(edit, last)
                    scale, peak = edit.maker(step), edit.maker(reach)
                    if _number(edit, one) != 1.0 or factor is None or least is None or scale is None or peak is None:
                        continue
                    if _is_largest_size(edit, peak, x) and not is_fixed(edit, x):
                        return x, scale, peak, factor, least
    return None


def _operands_of(edit: Edit, value: Value | None, name: str) -> list[tuple[Value, Value]]:
    """The two operands of an op of that name, in both orders where it is commutative."""
    maker = None if value is None else edit.maker(value)
    if maker is None or maker.name != name:
        return []
    one, other = edit.operands(maker)
    return [(one, other), *([(other, one)] if name != "stablehlo.divide" else [])]


def _spread_along(edit: Edit, value: Value, dims: tuple[int, ...]) -> Value | None:
    """What is broadcast along the other axes."""
    maker = edit.maker(value)
    if maker is None or maker.name != "stablehlo.broadcast_in_dim" or maker.attrs["broadcast_dimensions"] != dims:
        return None
    return edit.operands(maker)[0]


def _number(edit: Edit, value: Value) -> float | None:
    """The number that a value is everywhere."""
    maker = edit.maker(value)
    if maker is not None and maker.name == "stablehlo.broadcast_in_dim":
        return _number(edit, edit.operands(maker)[0])
    if maker is None or maker.name != "stablehlo.constant" or not maker.attrs["value"].is_splat:
        return None
    return float(maker.attrs["value"].array.flat[0])


def _is_largest_size(edit: Edit, op: Op, x: Value) -> bool:
    """Whether an op is the largest magnitude along the last axis of a value."""
    if op.name != "stablehlo.reduce" or op.attrs["dimensions"] != (x.shape.rank - 1,) or not _is_maximum(op):
        return False
    sizes, start = edit.operands(op)
    absolute = edit.maker(sizes)
    is_size = absolute is not None and absolute.name == "stablehlo.abs" and edit.operands(absolute)[0] is x
    return is_size and _number(edit, start) == 0.0


def _is_maximum(reduction: Op) -> bool:
    body = reduction.regions[0].ops
    return len(reduction.results) == 1 and len(body) == 1 and body[0].name == "stablehlo.maximum"


# ---- operands that are widened ----


class _Scaled(Frozen):
    """An operand of 8 bits, and what it is multiplied by: values that are spread along some of its axes."""

    value: Value
    scales: tuple[tuple[Value, tuple[int, ...]], ...] = ()


def _keep_narrow(m: Match) -> Value | None:
    """The product of what both operands are converted from."""
    operands, dims = (m["x"], m["y"]), m.op.attrs["dot_dimension_numbers"]
    if any(value.shape.dtype not in WIDE for value in operands) or m.shape.dtype not in WIDE:
        return None
    found = [_find_narrow(m, value) for value in operands]
    x, y = found
    if x is None or y is None:
        return None
    axes = _axes_of_result(dims, x.value.shape.rank, y.value.shape.rank)
    scales = [
        (scale, [own.get(d) for d in at]) for each, own in zip((x, y), axes, strict=True) for scale, at in each.scales
    ]
    if scales and m.shape.dtype != f32:
        return None
    total = _dot(m, x.value, y.value)
    for scale, places in scales:
        kept = [place for place in places if place is not None]
        if len(kept) < len(places):
            return None
        spread = m.build.broadcast_in_dim(scale, broadcast_dimensions=tuple(kept), result=total.shape)
        total = m.build.multiply(total, spread)
    return total if m.shape.dtype == f32 else m.build.convert(total, result=m.shape)


def _axes_of_result(dims: DotDims, left: int, right: int) -> tuple[dict[int, int], dict[int, int]]:
    """Where the axes of both operands are in the result; contracted ones are not."""
    batch = len(dims.lhs_batching_dimensions)
    x, y = ({d: i for i, d in enumerate(each)} for each in (dims.lhs_batching_dimensions, dims.rhs_batching_dimensions))
    rows = _free(left, dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions)
    columns = _free(right, dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions)
    x |= {d: batch + i for i, d in enumerate(rows)}
    y |= {d: batch + len(rows) + i for i, d in enumerate(columns)}
    return x, y


def _free(rank: int, *taken: Sequence[int]) -> list[int]:
    return [d for d in range(rank) if not any(d in each for each in taken)]


def _find_narrow(m: Match, value: Value) -> _Scaled | None:
    """What a value is converted from; scales and a zero point of 0 may be in between."""
    maker = m.edit.maker(value)
    if maker is None:
        return None
    operands = m.edit.operands(maker)
    match maker.name:
        case "stablehlo.convert" if operands[0].shape.dtype in FP8:
            return _Scaled(operands[0])
        case "stablehlo.subtract" if _is_zero(m, operands[1]):
            return _find_narrow(m, operands[0])
        case "stablehlo.multiply" if value.shape.dtype == f32:
            for inside, spread in (operands, operands[::-1]):
                found, by = _find_narrow(m, inside), m.edit.maker(spread)
                if found is not None and by is not None and by.name == "stablehlo.broadcast_in_dim":
                    scale = m.edit.operands(by)[0], tuple(by.attrs["broadcast_dimensions"])
                    return found.replace(scales=(*found.scales, scale)) if _keeps_sizes(by, scale[0]) else None
    return None


def _keeps_sizes(spread: Op, scale: Value) -> bool:
    """Whether no axis of size 1 is repeated."""
    places = zip(scale.shape.sizes, spread.attrs["broadcast_dimensions"], strict=True)
    return all(size == spread.result.shape.sizes[d] for size, d in places)


def _is_zero(m: Match, value: Value) -> bool:
    maker = m.edit.maker(value)
    if maker is not None and maker.name in ("stablehlo.convert", "stablehlo.broadcast_in_dim"):
        return _is_zero(m, m.edit.operands(maker)[0])
    return maker is not None and maker.name == "stablehlo.constant" and not maker.attrs["value"].array.any()
