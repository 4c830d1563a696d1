"""Which composites of a file are what `ir.composites` says: attributes, operands and sizes that fit each other.

A file may give any attributes to any name. A composite that does not fit is only its decomposition: `passes.inline`
asks here before it keeps one for the passes that read its attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.dtype import DType, f32, ui8
from smelt.errors import SmeltError
from smelt.ir.attributes import Int
from smelt.ir.block_layout import can_pack
from smelt.ir.blocks import BLOCKS, Block
from smelt.ir.build import make
from smelt.ir.composites import COMPOSITES, decode
from smelt.ir.core import Op
from smelt.ir.layouts import parse, sizes_of
from smelt.ir.ops.definition import Scope
from smelt.shape import Shape

PLACES = "xyzuvw"  # letters of the spatial axes of a convolution
_WINDOW = ("strides", "lhs_dilation", "rhs_dilation")  # a number for each of them


def fits(op: Op) -> bool:
    """Whether a composite has the attributes and operands of its row. Names that are not ours fit."""
    name = op.attrs["name"]
    row, check = COMPOSITES.get(name), _CHECKS.get(name)
    if row is None or check is None:
        return True
    types = [value.type for value in (*op.operands, *op.results)]
    said = dict(op.attrs["composite_attributes"].items)
    known = {*row.attributes} <= said.keys() <= {*row.attributes, *row.optional}
    return known and len(op.results) == 1 and all(isinstance(each, Shape) for each in types) and check(op)


def _shapes(op: Op) -> tuple[Shape, ...]:
    """Those of the operands, then that of the result."""
    return (*(value.shape for value in op.operands), op.result.shape)


def _softmax(op: Op) -> bool:
    axis, shapes = op.attrs["composite_attributes"].get("axis"), _shapes(op)
    return isinstance(axis, Int) and len(shapes) == 2 and shapes[0] == shapes[1] and 0 <= axis.value < shapes[0].rank


def _as_op(op: Op) -> bool:
    """What the op of that name would be refused for."""
    said = {"composite_attributes": op.attrs["composite_attributes"], "width": 1}
    symbols = frozenset(name for shape in _shapes(op) for name in shape.symbols)
    try:
        make(op.attrs["name"], op.operands, said, declared=[op.result.type], scope=Scope(symbols))
    except SmeltError:
        return False
    return True


def _format(op: Op) -> Block | None:
    said = op.attrs["composite_attributes"].get("format")
    return BLOCKS.get(said) if isinstance(said, str) else None


def _unblock(op: Op) -> bool:
    row, shapes = _format(op), _shapes(op)
    if row is None or len(shapes) != 2 or shapes[0].rank < 2 or (shapes[0].dtype, shapes[1].dtype) != (ui8, f32):
        return False
    *lead, count, size = shapes[0].sizes
    return size == row.bytes and shapes[1].sizes == (*lead, count * row.length)


def _block_dot(op: Op) -> bool:
    row, shapes = _format(op), _shapes(op)
    if row is None or not can_pack(row) or [each.rank for each in shapes] != [3, 4, 3]:
        return False
    x, w, made = shapes
    groups, columns, count, size = w.sizes
    lead, rows, depth = x.sizes
    plain = (x.dtype, w.dtype, made.dtype) == (f32, ui8, f32) and groups in (1, lead)
    return plain and (size, depth) == (row.bytes, count * row.length) and made.sizes == (lead, rows, columns)


def _block_ragged_dot(op: Op) -> bool:
    row, shapes = _format(op), _shapes(op)
    if row is None or not can_pack(row) or [each.rank for each in shapes] != [2, 4, 1, 2]:
        return False
    x, w, sizes, made = shapes
    groups, columns, count, size = w.sizes
    rows, depth = x.sizes
    plain = (x.dtype, w.dtype, made.dtype) == (f32, ui8, f32) and sizes.sizes == (groups,)
    plain = plain and isinstance(sizes.dtype, DType) and sizes.dtype.is_integer
    return plain and (size, depth) == (row.bytes, count * row.length) and made.sizes == (rows, columns)


def _by_letters(op: Op) -> bool:
    """An operand for each role and each word; the letters' sizes fit, but for those of a window."""
    said, shapes = decode(op), _shapes(op)
    roles, layout = said["operands"], said["layout"]
    if not isinstance(roles, str) or not isinstance(layout, str):
        return False
    parsed, count = parse(layout), len(op.operands)
    if parsed is None or len(parsed[0]) != count or len(roles.split()) != count:
        return False
    words = (*parsed[0], parsed[1])
    if any(len(word) != shape.rank for word, shape in zip(words, shapes, strict=True)):
        return False
    if "strides" in said:
        return count >= 2 and _window(said, shapes[0].rank - 2) and _has_places(op, said)
    return sizes_of(zip(words, (shape.sizes for shape in shapes), strict=True)) is not None


def _window(said: dict[str, Any], rank: int) -> bool:
    """A positive number for each axis of a window, two of padding, and numbers of groups."""
    lists = [said.get(name) for name in _WINDOW]
    padding, groups = said.get("padding"), [said.get(name) for name in ("groups", "batch_groups")]
    if not 1 <= rank <= len(PLACES) or not all(_numbers(each, rank, least=1) for each in lists):
        return False
    return _numbers(padding, 2 * rank, least=None) and _numbers(groups, 2, least=1)


def _numbers(found: Any, count: int, *, least: int | None) -> bool:
    plain = isinstance(found, tuple | list) and len(found) == count and all(type(each) is int for each in found)
    return plain and (least is None or min(found, default=least) >= least)


def _has_places(op: Op, said: dict[str, Any]) -> bool:
    """Feature maps have the letters b and f, kernels o and i, the result b and o, and all of them the places."""
    parsed = parse(said["layout"])
    assert parsed is not None, "the caller has parsed it"
    places = {*PLACES[: len(said["strides"])]}
    shapes = _shapes(op)
    for word, own, shape in zip(
        (*parsed[0][:2], parsed[1]), ("bf", "oi", "bo"), (*shapes[:2], shapes[-1]), strict=True
    ):
        shown = [each for each in word if each]
        ones = all(size == 1 for each, size in zip(word, shape.sizes, strict=True) if not each)
        if len(word) != 2 + len(places) or not {*shown} <= {*own} | places or not ones:
            return False
    return True


_CHECKS: dict[str, Callable[[Op], bool]] = {
    "smelt.softmax": _softmax,
    "smelt.attention": _as_op,
    "smelt.paged_attention": _as_op,
    "smelt.quantize": _by_letters,
    "smelt.dequantize": _by_letters,
    "smelt.qdot": _by_letters,
    "smelt.unblock": _unblock,
    "smelt.block_dot": _block_dot,
    "smelt.block_ragged_dot": _block_ragged_dot,
}
