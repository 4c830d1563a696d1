"""Algebraic simplification: rules that keep every bit of every result.

Rules marked `exact=False` may change a floating-point result and run only when asked for. Called by `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smelt.dtype import DType
from smelt.ir.attributes import Constant
from smelt.ir.core import Op, Region, Value
from smelt.ir.ops.shape import is_per_axis
from smelt.ir.rewrite import Edit, Match, Rule, op
from smelt.shape import Shape

# ---- reshapes, transposes, broadcasts and other moves of data ----


def _keep_operand(m: Match) -> Value | None:
    return m["x"] if _same(m["x"], m.shape) else None


def _same(value: Value, shape: Shape) -> bool:
    return isinstance(value.type, Shape) and value.type.dtype == shape.dtype and value.type.sizes == shape.sizes


def _identity_transpose(m: Match) -> Value | None:
    permutation = m.op.attrs["permutation"]
    return m["x"] if permutation == tuple(range(len(permutation))) else None


def _merge_transposes(m: Match) -> Value:
    inner, outer = m.ops["inner"].attrs["permutation"], m.op.attrs["permutation"]
    return m.build.transpose(m["x"], permutation=tuple(inner[i] for i in outer))


def _merge_reshapes(m: Match) -> Value | None:
    if m["x"].shape.count != m.shape.count:
        return None  # equal only by a run-time check
    return m.build.reshape(m["x"], result=m.shape)


def _identity_broadcast(m: Match) -> Value | None:
    dims = m.op.attrs["broadcast_dimensions"]
    return m["x"] if dims == tuple(range(m.shape.rank)) and _same(m["x"], m.shape) else None


def _merge_broadcasts(m: Match) -> Value | None:
    inner, outer = m.ops["inner"].attrs["broadcast_dimensions"], m.op.attrs["broadcast_dimensions"]
    first, middle = m["x"].shape, m.ops["inner"].result.shape
    if is_per_axis(first.dtype):
        return None  # each broadcast may have scales of its own
    for i, (size, dim) in enumerate(zip(middle.sizes, outer, strict=True)):
        stretches = size == 1 and (i not in inner or first.sizes[inner.index(i)] == 1)
        if size != m.shape.sizes[dim] and not stretches:
            return None  # a size that may be one at run time
    dims = tuple(outer[i] for i in inner)
    return m.build.broadcast_in_dim(m["x"], broadcast_dimensions=dims, result=m.shape)


def _broadcast_is_reshape(m: Match) -> Value | None:
    """A broadcast that only inserts axes of size one, and keeps the order."""
    dims = m.op.attrs["broadcast_dimensions"]
    x = m["x"].shape
    kept = [m.shape.sizes[d] for d in dims]
    if (
        tuple(kept) != x.sizes
        or list(dims) != sorted(dims)
        or x.dtype != m.shape.dtype
        or not isinstance(x.dtype, DType)
    ):
        return None
    if any(size != 1 for i, size in enumerate(m.shape.sizes) if i not in dims):
        return None
    return m.build.reshape(m["x"], result=m.shape)


def _merge_reverses(m: Match) -> Value | None:
    return m["x"] if set(m.op.attrs["dimensions"]) == set(m.ops["inner"].attrs["dimensions"]) else None


def _empty_reverse(m: Match) -> Value | None:
    return m["x"] if all(m.shape.sizes[d] == 1 for d in m.op.attrs["dimensions"]) else None


def _whole_slice(m: Match) -> Value | None:
    whole = _same(m["x"], m.shape) and all(stride == 1 for stride in m.op.attrs["strides"])
    return m["x"] if whole else None


def _merge_slices(m: Match) -> Value:
    inner, outer = m.ops["inner"].attrs, m.op.attrs
    starts, limits = [], []
    for base, stride, start, limit in zip(
        inner["start_indices"], inner["strides"], outer["start_indices"], outer["limit_indices"], strict=True
    ):
        empty = start == limit  # its start may be past the end of the inner slice, so it becomes 0
        starts.append(0 if empty else base + start * stride)
        limits.append(0 if empty else base + (limit - 1) * stride + 1)
    strides = [a * b for a, b in zip(inner["strides"], outer["strides"], strict=True)]
    return m.build.slice(m["x"], start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(strides))


def _empty_pad(m: Match) -> Value | None:
    zero = all(not any(m.op.attrs[name]) for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return m["x"] if zero else None


def _single_concatenate(m: Match) -> Value | None:
    operands = m.edit.operands(m.op)
    dimension = m.op.attrs["dimension"]
    full = [value for value in operands if value.shape.sizes[dimension] != 0] or operands[:1]
    if len(full) == len(operands) and len(operands) > 1:
        return None
    if len(full) == 1:
        return full[0] if _same(full[0], m.shape) else None
    return m.build.concatenate(*full, dimension=dimension)


def _adjacent_slices(m: Match) -> Value | None:
    """Adjacent slices of one value, concatenated again, become one slice."""
    dimension = m.op.attrs["dimension"]
    joined: list[Value] = []
    for value in m.edit.operands(m.op):
        before = joined[-1].op if joined else None
        if before is None or not _follows(m, before, value.op, dimension):
            joined.append(value)
            continue
        assert value.op is not None
        limits = list(before.attrs["limit_indices"])
        limits[dimension] = value.op.attrs["limit_indices"][dimension]
        source, starts, strides = (
            m.edit.value(before.operands[0]),
            before.attrs["start_indices"],
            before.attrs["strides"],
        )
        joined[-1] = m.build.slice(source, start_indices=starts, limit_indices=tuple(limits), strides=strides)
    if len(joined) == len(m.op.operands):
        return None
    if len(joined) == 1:
        return joined[0] if _same(joined[0], m.shape) else None
    return m.build.concatenate(*joined, dimension=dimension)


def _follows(m: Match, first: Op, second: Op | None, dimension: int) -> bool:
    if second is None or {first.name, second.name} != {"stablehlo.slice"}:
        return False
    if m.edit.value(first.operands[0]) is not m.edit.value(second.operands[0]) or set(first.attrs["strides"]) != {1}:
        return False
    if first.attrs["limit_indices"][dimension] != second.attrs["start_indices"][dimension]:
        return False
    ends = (
        [each for d, each in enumerate(slice.attrs[name]) if d != dimension]
        for slice in (first, second)
        for name in ("start_indices", "limit_indices")
    )
    starts, limits, others, other_limits = ends
    return starts == others and limits == other_limits and first.attrs["strides"] == second.attrs["strides"]


# ---- conversions ----


def _convert_there_and_back(m: Match) -> Value | None:
    """A conversion to a type that holds every value of the first one, and back."""
    source, middle = m["x"].shape.dtype, m.ops["inner"].results[0].shape.dtype
    if not isinstance(source, DType) or not isinstance(middle, DType) or m.shape.dtype != source:
        return None
    return m["x"] if _holds(middle, source) else None


_DIGITS = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}  # significand bits
_RANGE = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11}  # exponent bits


def _holds(wide: DType, narrow: DType) -> bool:
    if narrow.kind in ("int", "uint", "bool"):
        if wide.kind == narrow.kind:
            return wide.bits >= narrow.bits
        if wide.kind == "int":
            return wide.bits > narrow.bits
        if wide.kind == "uint":
            return narrow.kind == "bool"
        return wide.is_float and narrow.bits <= _DIGITS.get(wide.name, 0) and _RANGE.get(wide.name, 0) >= 8
    if narrow.is_float and wide.is_float and {narrow.name, wide.name} <= set(_DIGITS):
        return _DIGITS[wide.name] >= _DIGITS[narrow.name] and _RANGE[wide.name] >= _RANGE[narrow.name]
    return False


# ---- arithmetic ----


def constant_of(edit: Edit, value: Value) -> Constant | None:
    """The constant that a value is, also a broadcast scalar."""
    maker = edit.maker(value)
    if maker is not None and maker.name == "stablehlo.broadcast_in_dim":
        maker = edit.maker(maker.operands[0])
        if maker is not None and maker.name == "stablehlo.constant" and not maker.result.shape.rank:
            constant: Constant = maker.attrs["value"]
            return constant
        return None
    if maker is not None and maker.name == "stablehlo.constant":
        constant = maker.attrs["value"]
        return constant
    return None


def _filled_with(number: float, *, negative_zero: bool = False) -> Callable[[Match, str], bool]:
    """Whether every element of a captured value is this number (a float zero also with this sign)."""

    def holds(m: Match, name: str) -> bool:
        constant = constant_of(m.edit, m[name])
        if (
            constant is None
            or not isinstance(constant.dtype, DType)
            or constant.array.size == 0
            or constant.array.size > 4096
        ):
            return False
        array = (
            constant.array
            if constant.dtype.kind in ("int", "uint", "bool")
            else constant.array.astype(constant.dtype.wide)
        )
        if not bool((array == number).all()):
            return False
        if constant.dtype.is_float and number == 0:
            return bool((np.signbit(array) == negative_zero).all())
        return not constant.dtype.is_complex

    return holds


_zero, _one, _minus_zero = _filled_with(0), _filled_with(1), _filled_with(0, negative_zero=True)


def _kind(m: Match) -> str:
    return m.shape.dtype.kind


def _add_zero(m: Match) -> Value | None:
    neutral = _minus_zero if _kind(m) == "float" else _zero
    return m["x"] if neutral(m, "c") else None


def _add_zero_float(m: Match) -> Value | None:
    return m["x"] if _kind(m) == "float" and _zero(m, "c") else None


def _subtract_zero(m: Match) -> Value | None:
    return m["x"] if _zero(m, "c") else None


def _subtract_itself(m: Match) -> Value | None:
    return m.build.full(0, m.shape) if _kind(m) in ("int", "uint") else None


def _multiply_one(m: Match) -> Value | None:
    return m["x"] if _one(m, "c") else None


def _multiply_zero(m: Match) -> Value | None:
    return m["c"] if _kind(m) in ("int", "uint", "bool") and _zero(m, "c") else None


def _either(m: Match) -> Value | None:
    return m["x"]


def _is_ordinary(m: Match) -> bool:
    """Whether the type is not quantised: an op on quantised elements rounds and saturates."""
    return isinstance(m["x"].shape.dtype, DType)


def _same_operands(m: Match) -> Value | None:
    return m["x"] if _is_ordinary(m) else None


def _is_signed(m: Match) -> bool:
    """Whether negation is exact: a float type without a sign gives nan."""
    element = m["x"].shape.dtype
    return isinstance(element, DType) and element.name != "f8E8M0FNU"


def _negate_twice(m: Match) -> Value | None:
    return m["x"] if _is_signed(m) else None


def _abs_of_abs(m: Match) -> Value | None:
    return m.ops["inner"].result if _is_ordinary(m) else None


def _and_ones(m: Match) -> Value | None:
    return (
        m["x"]
        if _filled_with(1 if _kind(m) == "bool" else -1 if _kind(m) == "int" else (1 << m.shape.dtype.bits) - 1)(m, "c")
        else None
    )


def _or_zero(m: Match) -> Value | None:
    return m["x"] if _zero(m, "c") else None


def _select_constant(m: Match) -> Value | None:
    if not _is_ordinary(m):
        return None
    if _one(m, "p"):
        return m["x"]
    return m["y"] if _zero(m, "p") else None


def _abs_of_negate(m: Match) -> Value | None:
    return m.build.op("stablehlo.abs", m["x"]).result if _is_signed(m) else None


def _compare_itself(m: Match) -> Value | None:
    operand = m["x"].shape
    if operand.dtype.kind not in ("int", "uint", "bool"):
        return None  # nan differs from itself
    return m.build.full(m.op.attrs["comparison_direction"] in ("EQ", "GE", "LE"), m.shape)


def _divide_by_power_of_two(m: Match) -> Value | None:
    """x / 2^k is x * 2^-k, bit for bit, as long as 2^-k is a normal number."""
    constant = constant_of(m.edit, m["c"])
    if (
        constant is None
        or m.shape.dtype.name not in ("f32", "f64")
        or constant.array.size == 0
        or constant.array.size > 4096
    ):
        return None
    values = constant.array.astype(np.float64)
    mantissa, exponent = np.frexp(values)
    if not bool((np.abs(mantissa) == 0.5).all() and (np.abs(exponent) < 100).all()) or (
        not constant.is_splat and constant.array.ndim
    ):
        return None
    factor = m.build.full(float(1.0 / values.reshape(-1)[0]), m.shape)
    return m.build.multiply(m["x"], factor)


def _complex_part(index: int) -> Callable[[Match], Value]:
    return lambda m: m["re" if index == 0 else "im"]


def _tuple_element(m: Match) -> Value:
    return m.edit.value(m.ops["tuple"].operands[m.op.attrs["index"]])


# ---- control flow with a known branch ----


def _known_branch(m: Match) -> list[Value] | None:
    constant = constant_of(m.edit, m.operand(0))
    if constant is None:
        return None
    number = int(constant.array.reshape(-1)[0])
    last = len(m.op.regions) - 1
    taken = (0 if number else 1) if m.op.name == "stablehlo.if" else number if 0 <= number <= last else last
    return _inline_region(m, m.op.regions[taken])


def _inline_region(m: Match, region: Region) -> list[Value] | None:
    from_edit = list(m.edit.ops(region))
    if any(inner.regions for inner in from_edit):
        return None
    builder = m.build
    values: dict[Value, Value] = {}
    for inner in from_edit:
        operands = [values.get(operand, operand) for operand in m.edit.operands(inner)]
        copy = builder.op(inner.name, *operands, result=[value.type for value in inner.results], **dict(inner.attrs))
        values.update(zip(inner.results, copy.results, strict=True))
    return [values.get(value, value) for value in m.edit.results(region)]


CANCELLATION = [
    Rule(op("reshape", "x"), _keep_operand, "a reshape to the same shape moves nothing"),
    Rule(op("reshape", op("reshape", "x")), _merge_reshapes, "only the last reshape shows"),
    Rule(op("transpose", "x"), _identity_transpose, "the identity permutation moves nothing"),
    Rule(op("transpose", op("transpose", "x", name="inner")), _merge_transposes, "permutations compose"),
    Rule(op("broadcast_in_dim", "x"), _identity_broadcast, "a broadcast to the same shape moves nothing"),
    Rule(op("broadcast_in_dim", op("broadcast_in_dim", "x", name="inner")), _merge_broadcasts, "broadcasts compose"),
    Rule(op("broadcast_in_dim", "x"), _broadcast_is_reshape, "inserting axes of size one keeps the elements' order"),
    Rule(op("reverse", op("reverse", "x", name="inner")), _merge_reverses, "reversing twice restores the order"),
    Rule(op("reverse", "x"), _empty_reverse, "axes of size one have one order"),
    Rule(op("slice", "x"), _whole_slice, "a slice of the whole is the whole"),
    Rule(op("slice", op("slice", "x", name="inner")), _merge_slices, "slices compose"),
    Rule(op("pad", "x", ""), _empty_pad, "padding by nothing adds nothing"),
    Rule(op("concatenate"), _single_concatenate, "parts of size zero add nothing"),
    Rule(op("concatenate"), _adjacent_slices, "adjacent slices concatenate to one slice"),
    Rule(op("convert", "x"), _keep_operand, "a conversion to the same type changes nothing"),
    Rule(op("convert", op("convert", "x", name="inner")), _convert_there_and_back, "the wider type held every value"),
    Rule(op("get_tuple_element", op("tuple", name="tuple")), _tuple_element, "the tuple is known"),
]

ALGEBRA = [
    Rule(op("add", "x", "c", commutes=True), _add_zero, "x + 0 is x; for floats only -0.0 is neutral"),
    Rule(op("add", "x", "c", commutes=True), _add_zero_float, "x + 0.0 is x except for -0.0", exact=False),
    Rule(op("subtract", "x", "c"), _subtract_zero, "x - 0 is x, for -0.0 too"),
    Rule(op("subtract", "x", "x"), _subtract_itself, "integers have no nan"),
    Rule(op("multiply", "x", "c", commutes=True), _multiply_one, "x * 1 is x"),
    Rule(op("multiply", "x", "c", commutes=True), _multiply_zero, "integers have no nan and no -0.0"),
    Rule(op("divide", "x", "c"), _multiply_one, "x / 1 is x"),
    Rule(op("divide", "x", "c"), _divide_by_power_of_two, "the reciprocal of a power of two is exact"),
    Rule(op("maximum", "x", "x"), _same_operands, "idempotent"),
    Rule(op("minimum", "x", "x"), _same_operands, "idempotent"),
    Rule(op("and", "x", "x"), _either, "idempotent"),
    Rule(op("or", "x", "x"), _either, "idempotent"),
    Rule(op("and", "x", "c", commutes=True), _and_ones, "all ones are neutral"),
    Rule(op("or", "x", "c", commutes=True), _or_zero, "zeros are neutral"),
    Rule(op("xor", "x", "c", commutes=True), _or_zero, "zeros are neutral"),
    Rule(op("and", "x", "c", commutes=True), _multiply_zero, "zeros absorb"),
    Rule(op("negate", op("negate", "x")), _negate_twice, "a sign flipped twice"),
    Rule(op("not", op("not", "x")), _either, "bits flipped twice"),
    Rule(op("abs", op("negate", "x")), _abs_of_negate, "abs drops the sign"),
    Rule(op("abs", op("abs", "x", name="inner")), _abs_of_abs, "abs is idempotent"),
    Rule(op("select", "p", "x", "y"), _select_constant, "the choice is known"),
    Rule(op("select", "", "x", "x"), _same_operands, "both choices are the same"),
    Rule(op("compare", "x", "x"), _compare_itself, "an integer equals itself"),
    Rule(op("real", op("complex", "re", "im")), _complex_part(0), "the part was just put in"),
    Rule(op("imag", op("complex", "re", "im")), _complex_part(1), "the part was just put in"),
    Rule(op("if"), _known_branch, "the branch is known"),
    Rule(op("case"), _known_branch, "the branch is known"),
]

SIMPLIFY = CANCELLATION + ALGEBRA
