"""Rounding to bytes as one op: `x / scale`, rounded, moved by a zero point and held inside i8 or ui8.

Readers and `passes.quantise` spell it out; `ROUNDING` finds that and puts `smelt.round_to_byte` there, for which
kernels have a short way. `lower_qdot` emits it for results of products. Called by `pipeline`.
"""

from __future__ import annotations

import numpy as np

from smelt.dtype import f32, i8, i32, integer_range, ui8
from smelt.ir.build import Builder
from smelt.ir.core import Op, Value
from smelt.ir.rewrite import Edit, Match, Rule, op
from smelt.shape import Shape

_MOVES = frozenset(f"stablehlo.{name}" for name in ("reshape", "transpose", "broadcast_in_dim"))


def rounded(b: Builder, x: Value, zero: Value | None, to: Shape) -> Value:
    """A value in steps (f32) as bytes, with a zero point in f32 of the same sizes."""
    least, greatest = integer_range(to.element)
    one = b.full(1.0, x.shape)
    point = b.full(0.0, x.shape) if zero is None else zero
    made: Value = b.op("smelt.round_to_byte", x, one, point, least=least, greatest=greatest, result=to).result
    return made


def _found(m: Match) -> Value | None:
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
        parts = [(x, _number(edit, y)) for x, y in _orders(edit, maker)]
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
    return _rounding(m, value, int(least), int(greatest))


def _rounding(m: Match, value: Value, least: int, greatest: int) -> Value | None:
    """round(x / scale) + zero as the op, a zero point that is a whole number for sure."""
    edit = m.edit
    maker = edit.maker(value)
    zero: Value | None = None
    if maker is not None and maker.name == "stablehlo.add":
        for x, y in _orders(edit, maker):
            inner = edit.maker(x)
            if inner is not None and inner.name == "stablehlo.round_nearest_even" and _is_whole(edit, y):
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
    made: Value = b.op("smelt.round_to_byte", x, scale, point, least=least, greatest=greatest, result=m.shape).result
    return made


def _orders(edit: Edit, maker: Op) -> list[tuple[Value, Value]]:
    x, y = edit.operands(maker)
    return [(x, y), (y, x)]


def _source(edit: Edit, value: Value) -> Op | None:
    """What makes the elements of a value, moves aside."""
    maker = edit.maker(value)
    while maker is not None and maker.name in _MOVES:
        maker = edit.maker(edit.value(maker.operands[0]))
    return maker


def _number(edit: Edit, value: Value) -> float | None:
    """The one number that a value is made of."""
    maker = _source(edit, value)
    if maker is None or maker.name != "stablehlo.constant" or not maker.attrs["value"].is_splat:
        return None
    array = np.asarray(maker.attrs["value"].array).reshape(-1)
    return float(array[0]) if array.size else None


def _is_whole(edit: Edit, value: Value) -> bool:
    """Whether a float is a small whole number for sure: a byte, a number that was rounded, or a constant."""
    maker = _source(edit, value)
    if maker is None:
        return False
    if maker.name == "stablehlo.convert":
        return edit.value(maker.operands[0]).shape.dtype in (i8, ui8)
    if maker.name == "stablehlo.constant":
        array = np.asarray(maker.attrs["value"].array)
        return bool((np.abs(array) <= 255).all() and (array == np.rint(array)).all())
    return False


ROUNDING = [Rule(op("convert", op("convert", "x", name="inner")), _found, "the same function of an element")]
