"""Fuse quantisation: `clamp(round(x / scale) + zero_point)` to int8 or uint8 becomes one op, `smelt.round_to_byte`.

Readers and `passes.quantise` write the single ops, `lower_int8` emits the fused one. Further rules stay in 8 bits:
max-pooling takes int8 instead of dequantised values, a dequantise–quantise pair with one scale goes away, and uint8 is
computed directly where int8 offset by 128 is wanted. Called by `pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from smelt.dtype import f32, i8, i32, integer_range, ui8
from smelt.ir.build import Builder
from smelt.ir.core import Op, Value
from smelt.ir.rewrite import Edit, Match, Rule, op
from smelt.shape import Shape

LEAST = 1e-30  # least scale whose multiples are not subnormal
HALF = 128.0  # offset between int8 and uint8
_PLACES = ("stablehlo.reshape", "stablehlo.transpose")
_MOVES = frozenset(f"stablehlo.{name}" for name in ("reshape", "transpose", "broadcast_in_dim"))


def round_to_byte(b: Builder, x: Value, zero: Value | None, to: Shape) -> Value:
    """Round f32 values, divided by the scale already, to int8 or uint8; the zero point is f32 of the same sizes."""
    least, greatest = integer_range(to.element)
    one = b.full(1.0, x.shape)
    point = b.full(0.0, x.shape) if zero is None else zero
    return b.op("smelt.round_to_byte", x, one, point, least=least, greatest=greatest, result=to).result


def _fuse(m: Match) -> Value | None:
    """convert(convert(min(max(round(x / scale) + zero, least), greatest), i32), byte)"""
    edit, inner = m.edit, m.ops["inner"]
    low, high = integer_range(m.shape.element) if m.shape.dtype in (i8, ui8) else (0, 0)
    if inner.results[0].shape.dtype != i32 or low == high:
        return None
    limits = []
    value = m["x"]
    for name in ("minimum", "maximum"):
        maker = edit.maker(value)
        if maker is None or maker.name != f"stablehlo.{name}":
            return None
        parts = [(x, _number(edit, y)) for x, y in _both_orders(edit, maker)]
        known = next((each for each in parts if each[1] is not None), None)
        if known is None or known[1] is None:
            return None
        value = known[0]
        limits.append(known[1])
    greatest, least = limits
    if value.shape.dtype != f32 or not (low <= least <= greatest <= high and least == int(least)):
        return None
    if greatest != int(greatest):
        return None
    return _fuse_scale_and_zero(m, value, int(least), int(greatest))


def _fuse_scale_and_zero(m: Match, value: Value, least: int, greatest: int) -> Value | None:
    """round(x / scale) + zero as the op; the zero point must be a known integer."""
    edit = m.edit
    maker = edit.maker(value)
    zero: Value | None = None
    if maker is not None and maker.name == "stablehlo.add":
        for x, y in _both_orders(edit, maker):
            inner = edit.maker(x)
            if inner is not None and inner.name == "stablehlo.round_nearest_even" and _is_small_integer(edit, y):
                maker, zero = inner, y
                break
    if maker is None or maker.name != "stablehlo.round_nearest_even":
        return None
    x = edit.value(maker.operands[0])
    b = m.build
    scale = b.full(1.0, x.shape)
    divided = edit.maker(x)
    if divided is not None and divided.name == "stablehlo.divide":
        x, scale = edit.operands(divided)
    point = b.full(0.0, x.shape) if zero is None else zero
    return b.op("smelt.round_to_byte", x, scale, point, least=least, greatest=greatest, result=m.shape).result


def _both_orders(edit: Edit, maker: Op) -> list[tuple[Value, Value]]:
    x, y = edit.operands(maker)
    return [(x, y), (y, x)]


def _source(edit: Edit, value: Value) -> Op | None:
    """The op behind a value, through reshapes, transposes and broadcasts."""
    maker = edit.maker(value)
    while maker is not None and maker.name in _MOVES:
        maker = edit.maker(edit.value(maker.operands[0]))
    return maker


def _number(edit: Edit, value: Value) -> float | None:
    """The constant that fills a value, if there is one."""
    maker = _source(edit, value)
    if maker is None or maker.name != "stablehlo.constant" or not maker.attrs["value"].is_splat:
        return None
    array = np.asarray(maker.attrs["value"].array).reshape(-1)
    return float(array[0]) if array.size else None


def _is_small_integer(edit: Edit, value: Value) -> bool:
    """Whether a float is known to be a small integer: a converted int8 or uint8, or a constant."""
    maker = _source(edit, value)
    if maker is None:
        return False
    if maker.name == "stablehlo.convert":
        return edit.value(maker.operands[0]).shape.dtype in (i8, ui8)
    if maker.name == "stablehlo.constant":
        array = np.asarray(maker.attrs["value"].array)
        return bool((np.abs(array) <= 255).all() and (array == np.rint(array)).all())
    return False


# ---- values that stay int8 ----


def _pool_before_dequantise(m: Match) -> Value | None:
    """Max-pooling before dequantising: dequantising is monotonic."""
    edit, attrs, body = m.edit, m.op.attrs, m.op.regions[0].ops
    if len(m.op.operands) != 2 or [each.name for each in body] != ["stablehlo.maximum"]:
        return None
    if _number(edit, m.operand(1)) != -np.inf or not _has_no_empty_window(attrs, m.operand(0).shape):
        return None
    chain: list[Op] = []
    value = m.operand(0)
    while value.shape.dtype not in (i8, ui8):
        maker = edit.maker(value)
        if maker is None or not _is_monotonic(edit, maker):
            return None
        chain.append(maker)
        value = edit.value(maker.operands[0])
    b = m.build
    least = b.constant(integer_range(value.shape.element)[0], value.shape.dtype)
    larger = b.combine("maximum", value.shape.dtype)
    made = b.op("stablehlo.reduce_window", value, least, regions=[larger], **attrs).result
    for maker in reversed(chain):
        to = Shape.of(maker.results[0].shape.dtype, m.shape.sizes)
        numbers = (_number(edit, each) for each in edit.operands(maker)[1:])
        more = [b.full(each if to.element.is_float else int(each), to) for each in numbers if each is not None]
        made = b.op(maker.name, made, *more, result=to).result
    return made


def _has_no_empty_window(attrs: Mapping[str, Any], shape: Shape) -> bool:
    """Whether every window holds at least one element."""
    window = attrs["window_dimensions"]
    ones = (1,) * len(window)
    if set(attrs.get("base_dilations") or ones) | set(attrs.get("window_dilations") or ones) != {1}:
        return False
    padding = attrs.get("padding") or ((0, 0),) * len(window)
    sizes = zip(window, padding, shape.sizes, strict=True)
    return all(max(pair) < size and isinstance(whole, int) and whole > 0 for size, pair, whole in sizes)


def _is_monotonic(edit: Edit, maker: Op) -> bool:
    """Whether an op is monotonic: a widening conversion, minus a number, or times a positive number."""
    operands = edit.operands(maker)
    match maker.name:
        case "stablehlo.convert":
            narrow, wide = operands[0].shape.dtype, maker.results[0].shape.dtype
            return (narrow in (i8, ui8) and wide in (i32, f32)) or (narrow, wide) == (i32, f32)
        case "stablehlo.subtract":
            number = _number(edit, operands[1])
            return number is not None and abs(number) <= 255
        case "stablehlo.multiply":
            number = _number(edit, operands[1])
            return operands[1].shape.dtype == f32 and number is not None and 0 < number < np.inf
    return False


def _cancel_requantise(m: Match) -> Value | None:
    """Dequantise then quantise by the same scale gives the same int8: the f32 error is far below half a step."""
    edit = m.edit
    scale, zero = (_number(edit, m.operand(i)) for i in (1, 2))
    product = edit.maker(m.operand(0))
    if scale is None or not LEAST < scale < 1 / LEAST or product is None or product.name != "stablehlo.multiply":
        return None
    x, factor = edit.operands(product)
    whole = edit.maker(x)
    if _number(edit, factor) != scale or whole is None or whole.name != "stablehlo.convert":
        return None
    value = edit.value(whole.operands[0])
    moved = edit.maker(value)
    offset: float | None = 0.0
    if moved is not None and moved.name == "stablehlo.subtract":
        value, point = edit.operands(moved)
        offset = _number(edit, point)
    wide = edit.maker(value)
    if value.shape.dtype == i32 and wide is not None and wide.name == "stablehlo.convert":
        value = edit.value(wide.operands[0])
    limits = m.op.attrs["least"], m.op.attrs["greatest"]
    whole_range = m.shape.dtype in (i8, ui8) and limits == integer_range(m.shape.element)
    same = value.shape == m.shape and offset == zero and whole_range
    return value if same else None


# ---- uint8 ↔ int8 ----


def _as_uint8(m: Match) -> Value | None:
    """Where a user wants the int8 as uint8, offset by 128, compute the uint8 directly: only one is materialised."""
    if m.shape.dtype != i8 or not any(_is_offset(m.edit, user) for user in _users(m.edit, m.op.results[0])):
        return None
    b, limits = m.build, m.op.attrs
    known = _number(m.edit, m["zero"])
    point = b.add(m["zero"], b.full(HALF, m.shape.with_dtype(f32)))
    if known is not None:
        point = b.full(known + HALF, m.shape.with_dtype(f32))
    low, high = (limits[name] + int(HALF) for name in ("least", "greatest"))
    to = m.shape.with_dtype(ui8)
    made = b.op("smelt.round_to_byte", m["x"], m["scale"], point, least=low, greatest=high, result=to).result
    wide = b.convert(made, result=m.shape.with_dtype(i32))
    return b.convert(b.subtract(wide, b.full(int(HALF), wide.shape)), result=m.shape)


def _cancel_offsets(m: Match) -> Value | None:
    """uint8 → int8 → uint8, offset by 128 and back, through reshapes and transposes."""
    edit = m.edit
    if not _is_offset(edit, m.op):
        return None
    value, moves = m.operand(0), list[Op]()
    while (maker := edit.maker(value)) is not None and maker.name in (*_PLACES, "stablehlo.bitcast_convert"):
        if maker.name in _PLACES:
            moves.append(maker)
        value = edit.value(maker.operands[0])
    chain = [maker]
    for name in ("convert", "subtract", "convert"):
        maker = chain[-1]
        if maker is None or maker.name != f"stablehlo.{name}":
            return None
        value = edit.value(maker.operands[0])
        chain.append(edit.maker(value))
    moved = chain[1]
    assert moved is not None
    types = (moved.results[0].shape.dtype, value.shape.dtype)
    if types != (i32, ui8) or _number(edit, edit.operands(moved)[1]) != HALF:
        return None
    b = m.build
    for move in reversed(moves):
        value = b.op(move.name, value, result=move.results[0].shape.with_dtype(ui8), **move.attrs).result
    return value


def _is_offset(edit: Edit, maker: Op) -> bool:
    """Whether an op flips the highest bit of ui8."""
    if maker.name != "stablehlo.xor" or maker.results[0].shape.dtype != ui8:
        return False
    return _number(edit, edit.operands(maker)[1]) == HALF


def _users(edit: Edit, value: Value) -> Iterator[Op]:
    """The users of a value, through reshapes, transposes and bitcasts."""
    for user in edit.users(value):
        if user.name in (*_PLACES, "stablehlo.bitcast_convert"):
            yield from _users(edit, user.results[0])
        else:
            yield user


FUSE_QUANTISE = [
    Rule(op("convert", op("convert", "x", name="inner")), _fuse, "quantising is one function of an element"),
    Rule(op("reduce_window"), _pool_before_dequantise, "dequantising is monotonic, so the maximum can come first"),
    Rule(op("smelt.round_to_byte", "x", "scale", "zero"), _cancel_requantise, "int8 is already in steps of the scale"),
    Rule(op("smelt.round_to_byte", "x", "scale", "zero"), _as_uint8, "uint8 is int8 offset by 128"),
    Rule(op("xor", "x", "y"), _cancel_offsets, "both offsets cancel"),
]
