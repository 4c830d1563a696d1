"""`smelt.paged_attention`: the composite of that name as one op, for an engine with a kernel for it.

Operands: q [n, h, k], keys [p, g, k, s] and values [p, g, s, e] in pages of s positions, table [b, m] of pages for each
sequence, the sequence and the position of each query [n], and sinks [h], or none. `width` is how many queries a kernel
takes at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.dim import divide_exact
from smelt.dtype import Array, DType
from smelt.frozen import Frozen
from smelt.ir.attributes import DICT, INT, Dict, Float, Int
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.shape import Shape


class PagedNumbers(Frozen):
    """What the attributes say. A softcap or a window of 0 is none."""

    scale: float
    softcap: float
    window: int

    @staticmethod
    def of(said: Dict) -> PagedNumbers | None:
        scale, cap, window = (said.get(name) for name in ("scale", "softcap", "window"))
        if not isinstance(scale, Float) or not isinstance(cap, Float) or not isinstance(window, Int):
            return None
        return PagedNumbers(scale.value, cap.value, window.value) if window.value >= 0 else None


def _infer(call: Call) -> Sequence[Type]:
    said = call.attrs["composite_attributes"]
    call.require(call.attrs["width"] >= 1, "", "the width must be positive", got=call.attrs["width"])
    call.require(PagedNumbers.of(said) is not None, "", "the attributes are none of paged attention", got=said)
    shapes = [call.shape(i) for i in range(len(call.operands))]
    q, keys, values, _, sequence, position, *sinks = shapes
    ranks = [shape.rank for shape in shapes]
    call.require(ranks == [3, 4, 4, 2, 1, 1, 1][: len(ranks)], "", "operands of other ranks", got=ranks)
    kinds = [each.dtype.kind if isinstance(each.dtype, DType) else "quantised" for each in shapes]
    wanted = ["float"] * 3 + ["int"] * 3 + ["float"] * len(sinks)
    call.require(kinds == wanted, "", "pages and positions are integers, all others floats", expected=wanted, got=kinds)
    for left, right, what in (
        ((q.sizes[2],), keys.sizes[2:3], "the depth of queries and keys"),
        ((*keys.sizes[:2], keys.sizes[3]), values.sizes[:3], "keys and values"),
        (q.sizes[:1], sequence.sizes, "queries and their sequences"),
        (q.sizes[:1], position.sizes, "queries and their positions"),
        *(((q.sizes[1],), each.sizes, "heads and sinks") for each in sinks),
    ):
        call.same_sizes(left, right, "", f"{what} have different sizes")
    heads, groups = q.sizes[1], keys.sizes[1]
    call.require(divide_exact(heads, groups) is not None, "", "groups must divide heads", expected=heads, got=groups)
    return [Shape.of(q.dtype, (*q.sizes[:2], values.sizes[3]))]


def _attend(frame: Frame, op: Op, *operands: Array) -> Array:
    said = PagedNumbers.of(op.attrs["composite_attributes"])
    assert said is not None, "inference has seen the attributes"
    return attend(said, *operands)


def attend(
    said: PagedNumbers,
    q: Array,
    keys: Array,
    values: Array,
    table: Array,
    sequence: Array,
    position: Array,
    sinks: Array | None = None,
) -> Array:
    """In double, query by query. Indices are clamped; a query without keys gives zeros."""
    keys, values = keys.transpose(0, 3, 1, 2), values.transpose(0, 2, 1, 3)
    page, groups = keys.shape[1:3]
    result = np.zeros((*q.shape[:2], values.shape[3]))
    for n in range(len(q)) if page * table.size * len(keys) else ():
        pages = np.clip(table[np.clip(sequence[n], 0, len(table) - 1)], 0, len(keys) - 1)
        last = min(int(position[n]), pages.size * page - 1)
        seen = np.arange(max(0, int(position[n]) - said.window + 1) if said.window else 0, last + 1)
        k, v = (each[pages[seen // page], seen % page].astype(np.float64) for each in (keys, values))  # [t, g, ·]
        rows = q[n].astype(np.float64).reshape(groups, -1, q.shape[2])
        scores = np.einsum("grk,tgk->grt", rows, k) * said.scale
        if said.softcap:
            scores = said.softcap * np.tanh(scores / said.softcap)
        sink = np.full(q.shape[1], -np.inf) if sinks is None else sinks.astype(np.float64)
        top = np.maximum(scores.max(2, initial=-np.inf), sink.reshape(groups, -1))
        powers = np.exp(scores - top[..., None])
        with np.errstate(invalid="ignore"):
            total = powers.sum(2) + np.exp(sink.reshape(groups, -1) - top)
        if seen.size:
            result[n] = np.einsum("grt,tge->gre", powers / total[..., None], v).reshape(q.shape[1], -1)
    return result.astype(q.dtype)


ROWS = [
    OpDef(
        "smelt.paged_attention",
        "q keys values table sequence position sinks?",
        _infer,
        _attend,
        (Attr("composite_attributes", DICT), Attr("width", INT)),
    ),
]
