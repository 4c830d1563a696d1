"""`smelt.paged_attention`: the composite of that name as one op, for an engine with a kernel for it.

Operands: q [n, h, k], keys [p, g, k, s] and values [p, g, s, e] in pages of s positions, table [b, m] of pages for each
sequence, the sequence and the position of each query [n], and sinks [h], or none. `width` is how many queries a kernel
takes at once.

Pages of i8: keys [p, g, k / 4 + 2, s, 4] have four elements of a position in a word. Of the last two rows the first is
the f32 scale of each position's key, the second that of its value. Values [p, g, s / 4, e, 4] have an element of four
positions in a word. Queries are then rounded to 8 bits, too (`round_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.dim import divide_exact
from smelt.dtype import Array, DType, i8
from smelt.frozen import Frozen
from smelt.ir.attributes import DICT, INT, Dict, Float, Int
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.ir.ops.packed_blocks import LEAST, MOST
from smelt.layout import SCALES, WORD
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
    is_int8 = keys.dtype == i8
    rank = 5 if is_int8 else 4
    ranks_of = [3, rank, rank, 2, 1, 1, 1]
    call.require(ranks == ranks_of[: len(ranks)], "", "operands of other ranks", got=ranks)
    kinds = [each.dtype.kind if isinstance(each.dtype, DType) else "quantised" for each in shapes]
    pages = ["int" if is_int8 else "float"] * 2
    wanted = ["float", *pages, *["int"] * 3, *["float"] * len(sinks)]
    call.require(kinds == wanted, "", "pages and positions are integers, all others floats", expected=wanted, got=kinds)
    call.require(not is_int8 or values.dtype == i8, "", "keys in i8 have values in i8", got=values.dtype)
    words = [each.sizes[4] for each in (keys, values) if is_int8]
    call.require(words in ([], [WORD, WORD]), "", f"a word is {WORD} elements", got=words)
    depth, positions = keys.sizes[2], values.sizes[2]
    if is_int8:
        depth, positions = (depth - SCALES) * WORD, positions * WORD
    for left, right, what in (
        ((q.sizes[2],), (depth,), "the depth of queries and keys"),
        ((*keys.sizes[:2], keys.sizes[3]), (*values.sizes[:2], positions), "keys and values"),
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
    if keys.dtype == np.int8:
        codes, steps = round_rows(q)
        q = (codes * steps[..., None].astype(np.float64)).astype(q.dtype)
        keys, values = open_pages(keys, values)
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


def round_rows(x: Array) -> tuple[Array, Array]:
    """Rows as i8, and the f32 scale of each: its largest element is 127."""
    x = x.astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = np.abs(x).max(-1, initial=0) / MOST
        factors = np.where(steps < LEAST, np.float32(0), np.float32(1) / steps)
        return np.rint(x * factors[..., None]).astype(np.int8), steps


def open_pages(keys: Array, values: Array) -> tuple[Array, Array]:
    """Pages of i8 as f32: keys [p, g, k, s] and values [p, g, s, e]."""
    words, scales = keys[:, :, :-SCALES], np.ascontiguousarray(keys[:, :, -SCALES:]).view(np.float32)[..., 0]
    codes = words.transpose(0, 1, 2, 4, 3).reshape(*keys.shape[:2], words.shape[2] * WORD, keys.shape[3])
    rows = values.swapaxes(3, 4).reshape(*values.shape[:2], values.shape[2] * WORD, values.shape[3])
    return codes * scales[:, :, 0, None], rows * scales[:, :, 1, :, None]


ROWS = [
    OpDef(
        "smelt.paged_attention",
        "q keys values table sequence position sinks?",
        _infer,
        _attend,
        (Attr("composite_attributes", DICT), Attr("width", INT)),
    ),
]
