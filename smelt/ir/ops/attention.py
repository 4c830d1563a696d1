"""`smelt.attention`: the composite of that name as one op, for an engine with a kernel for it.

Operands, layout and numbers are the composite's (`ir.composites`); `width` is how many queries a kernel takes at once.
`AttentionAxes` gives each letter of the layout its role; `passes.fuse_attention` and the kernel builder use it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.dim import Size, evaluate
from smelt.dtype import Array, DType
from smelt.frozen import Frozen
from smelt.ir.attributes import DICT, INT, Dict, Float, Int
from smelt.ir.core import Op, Type
from smelt.ir.layouts import Word, letters, parse, sizes_of
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.shape import Shape

_MASKS = ("add", "where", "unless")


class AttentionAxes(Frozen):
    """The letters of attention by what they do; "" for an axis of one element that no operand has.

    `batch` are letters that keys or values share with the result, `rows` those of queries alone; scores are summed over
    `depth`, weights over `key`, and `value` counts the elements of a value.
    """

    words: tuple[Word, ...]
    result: Word
    sizes: dict[str, Size]
    batch: str
    rows: str
    depth: str
    key: str
    value: str

    def size(self, letter: str) -> Size:
        return self.sizes[letter] if letter else 1

    @staticmethod
    def of(layout: str, shapes: Sequence[Shape], result: Shape) -> AttentionAxes | None:
        """None where the layout does not fit the shapes, or is none of attention with one key and one depth."""
        parsed = parse(layout)
        if parsed is None or len(parsed[0]) != len(shapes) or len(shapes) < 3:
            return None
        words, last = parsed
        sizes = sizes_of([*zip(words, (shape.sizes for shape in shapes), strict=True), (last, result.sizes)])
        if sizes is None:
            return None
        q, k, v, shown = (letters(word) for word in (*words[:3], last))
        depth = [each for each in q if each not in shown]
        key = [each for each in k if each not in shown and each not in q]
        value = [each for each in shown if each in v and each not in q and each not in k]
        key += [each for each in v if each not in shown and each not in key]
        batch = [each for each in shown if (each in k or each in v) and each not in value]
        rows = [each for each in shown if each not in batch and each not in value]
        fits = all(len(each) <= 1 for each in (depth, key, value))
        fits = fits and all(each in k for each in depth) and all(each in k and each in v for each in key)
        fits = fits and not any(each in v for each in depth)
        seen = {*batch, *rows, *key}
        if not fits or any(each not in seen for word in words[3:] for each in letters(word)):
            return None
        one = ("".join(each) for each in (batch, rows, depth, key, value))
        return AttentionAxes(words, last, sizes, *one)


class AttentionNumbers(Frozen):
    """What the attributes say besides the layout: a role for each operand, `fill` for each that replaces scores."""

    roles: tuple[str, ...]
    scale: float
    softcap: float
    fill: tuple[float, ...]
    guarded: bool

    @staticmethod
    def of(said: Dict) -> AttentionNumbers | None:
        roles = str(said.get("operands", "")).split()
        scale, cap, fill, guarded = (said.get(name) for name in ("scale", "softcap", "fill", "guarded"))
        if roles[:3] != ["q", "k", "v"] or any(role not in _MASKS for role in roles[3:]):
            return None
        if not isinstance(fill, tuple | list) or not all(isinstance(each, Float) for each in (scale, cap, *fill)):
            return None
        if len(fill) != sum(role != "add" for role in roles[3:]) or not isinstance(guarded, Int):
            return None
        return AttentionNumbers(
            tuple(roles), scale.value, cap.value, tuple(each.value for each in fill), bool(guarded.value)
        )


def attention_axes(op: Op) -> AttentionAxes:
    """What the letters of an op are; inference has seen that they fit."""
    layout = op.attrs["composite_attributes"].get("layout")
    axes = AttentionAxes.of(layout, [value.shape for value in op.operands], op.result.shape)
    assert axes is not None, layout
    return axes


def attention_numbers(op: Op) -> AttentionNumbers:
    numbers = AttentionNumbers.of(op.attrs["composite_attributes"])
    assert numbers is not None, op.attrs
    return numbers


def _infer(call: Call) -> Sequence[Type]:
    said = call.attrs["composite_attributes"]
    numbers, result = AttentionNumbers.of(said), call.declared_shape()
    shapes = [call.shape(i) for i in range(len(call.operands))]
    call.require(call.attrs["width"] >= 1, "", "the width must be positive", got=call.attrs["width"])
    if numbers is None or len(numbers.roles) != len(shapes):
        call.fail("", "the attributes are none of attention over these operands", got=said)
    axes = AttentionAxes.of(str(said.get("layout", "")), shapes, result)
    call.require(axes is not None, "", "the layout must fit the operands", got=said.get("layout"))
    elements = [shape.dtype for shape in (*shapes, result)]
    kinds = [each.kind if isinstance(each, DType) else "quantised" for each in elements]
    wanted = ["float" if role not in ("where", "unless") else "bool" for role in (*numbers.roles, "result")]
    call.require(kinds == wanted, "", "masks that choose are booleans, all others floats", expected=wanted, got=kinds)
    return [result]


def _attention(frame: Frame, op: Op, *operands: Array) -> Array:
    said, numbers = op.attrs["composite_attributes"], attention_numbers(op)
    shape = Shape.of(op.result.shape.dtype, frame.shape(op.result.type))
    shapes = [Shape.of(value.shape.dtype, array.shape) for value, array in zip(op.operands, operands, strict=True)]
    axes = AttentionAxes.of(str(said.get("layout")), shapes, shape)
    assert axes is not None, "sizes at run time fit where open ones did"
    whole = axes.batch + axes.rows + axes.key
    q, k, v, *masks = (_split_axes(axes, word, array) for word, array in zip(axes.words, operands, strict=True))
    terms = [(array, letters(word)) for array, word in ((q, axes.words[0]), (k, axes.words[1]))]
    shown = "".join(each for each in whole if any(each in own for _, own in terms))
    scores = _onto(np.einsum(f"{terms[0][1]},{terms[1][1]}->{shown}", q, k), shown, whole) * numbers.scale
    if numbers.softcap:
        scores = numbers.softcap * np.tanh(scores / numbers.softcap)
    fill = iter(numbers.fill)
    for role, word, mask in zip(numbers.roles[3:], axes.words[3:], masks, strict=True):
        spread = _onto(mask, letters(word), whole)
        scores = scores + spread if role == "add" else np.where(spread == (role == "where"), scores, next(fill))
    scores = np.broadcast_to(scores, [evaluate(axes.sizes[each], {}) for each in whole])
    last = (len(axes.key) and -1) or ()
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(scores - scores.max(last, keepdims=True, initial=-np.inf))
        weights = powers / powers.sum(last, keepdims=True)
    if numbers.guarded:
        weights = np.where(np.isnan(weights), 0.0, weights)
    total: Array = np.einsum(f"{whole},{letters(axes.words[2])}->{letters(axes.result)}", weights, v)
    return total.reshape(frame.shape(op.result.type)).astype(shape.element.numpy, copy=False)


def _split_axes(axes: AttentionAxes, word: Word, array: Array) -> Array:
    """One axis for each letter, numbers in double."""
    split = array.reshape([evaluate(axes.sizes[each], {}) for each in letters(word)])
    return split if array.dtype == bool else split.astype(np.float64)


def _onto(array: Array, own: str, wanted: str) -> Array:
    """The array so that it spreads over one with the wanted letters."""
    ordered = array.transpose([own.index(each) for each in wanted if each in own])
    sizes = iter(ordered.shape)
    return ordered.reshape([next(sizes) if each in own else 1 for each in wanted])


ROWS = [
    OpDef(
        "smelt.attention", "q k v masks*", _infer, _attention, (Attr("composite_attributes", DICT), Attr("width", INT))
    ),
]
