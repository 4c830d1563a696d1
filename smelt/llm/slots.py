"""Attention over caches without pages: every sequence has a slot of its own, keys and values [s, g, t, k].

XLA reads such a cache in place, where pages would be gathered in every step. `decoder` computes with slots;
`fill_slots` and `save_slots` copy them from and to pages, one layer at a time. Axes: s slots, g heads of keys and
values, h heads, r heads per g, t positions, k depth, p pages, o positions in a page, m pages of a slot, w pages.
"""

from __future__ import annotations

import math

from smelt.dtype import DType, f32, i32
from smelt.ir.attributes import GatherDims, ScatterDims
from smelt.llm.config import PAGE
from smelt.tensor.core import Tensor
from smelt.tensor.ops.elementwise import cast, outer, where
from smelt.tensor.ops.move import arange, concatenate
from smelt.tensor.record import constant, emit, scalar_region


def slot_text(kv_heads: int, depth: int, cache: DType) -> str:
    """The shape of a layer's keys, and of its values."""
    return f"{cache}[s=S, g={kv_heads}, t=T, k={depth}]"


def write_slots(cache: Tensor, new: Tensor, position: Tensor) -> Tensor:
    """Keys or values [s, g, t, k] with new ones [s, g, k] at a position each; one outside of the slot is not written.

    The scattered axes are the first two of [s g, t, k]: XLA writes in place, and transposes nothing."""
    merged = cache.merge("s g", "n")
    repeated = position.to(i32).broadcast(g=cache.size("g")).transpose("s", "g").merge("s g", "n")
    places = _pair(arange(merged.size("n"), "n", i32), repeated)
    dims = ScatterDims(
        update_window_dims=(1,), inserted_window_dims=(0, 1), scatter_dims_to_operand_dims=(0, 1), index_vector_dim=1
    )
    written = emit(
        "scatter",
        merged,
        places,
        new.transpose("s", "g", "k").merge("s g", "n"),
        names=("n", "t", "k"),
        regions=(scalar_region(cache.dtype, lambda _, b: b),),
        scatter_dimension_numbers=dims,
        indices_are_sorted=True,
        unique_indices=True,
    )
    return written.split("n", s=None, g=cache.size("g"))


def slot_attention(
    q: Tensor, keys: Tensor, values: Tensor, position: Tensor, scale: float, softcap: float, window: int | None
) -> Tensor:
    """Queries f32[s, h, k] over the keys up to their position."""
    grouped = q.split("h", g=keys.size("g"), r=None)
    scores = grouped.dot(cast(keys, f32), "k") * scale
    if softcap:
        scores = (scores * (1 / softcap)).tanh() * softcap
    behind = outer("-", position, arange(keys.size("t"), "t", i32))
    seen = behind >= 0
    if window:
        seen = seen & (behind < window)
    weights = where(seen, scores, -math.inf).softmax("t")
    found = weights.dot(cast(values, f32), "t")
    return found.transpose("s", "g", "r", "k").merge("g r", "h")


# ---- from pages and back ----


def fill_slots(keys: Tensor, values: Tensor, table: Tensor, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The slots of sequences: of the pages `table` i32[s, m] the positions from `begin` to `end` i32[s]. The rest is
    zero, so that no number of another sequence is left."""
    found = []
    for pool in (keys, values):
        slots = pool.take(table, "p").transpose("s", "g", "m", "o", "k").merge("m o", "t")
        place = arange(slots.size("t"), "t", i32)
        seen = (outer("-", begin, place) <= 0) & (outer("-", end, place) > 0)
        found.append(where(seen, slots, cast(constant(0.0, f32), slots.dtype)))
    return found[0], found[1]


def save_slots(
    pool_keys: Tensor, pool_values: Tensor, keys: Tensor, values: Tensor, page: Tensor, slot: Tensor, number: Tensor
) -> tuple[Tensor, Tensor]:
    """The pools with `page` i32[w] written: each with the page of that number of a slot. A page outside of the pool is
    not written."""
    new_keys, new_values = (_take_pages(each, slot, number) for each in (keys, values))
    return (
        pool_keys.scatter(page, new_keys.transpose("w", "g", "k", "o"), "p"),
        pool_values.scatter(page, new_values, "p"),
    )


def _take_pages(slots: Tensor, slot: Tensor, number: Tensor) -> Tensor:
    """Pages [w, g, o, k] of slots [s, g, t, k]."""
    paged = slots.split("t", m=None, o=PAGE)
    _, groups, _, _, depth = paged.shape.sizes
    dims = GatherDims(offset_dims=(1, 2, 3), collapsed_slice_dims=(0, 2), start_index_map=(0, 2), index_vector_dim=1)
    return emit(
        "gather",
        paged,
        _pair(slot, number),
        names=("w", "g", "o", "k"),
        dimension_numbers=dims,
        slice_sizes=(1, groups, 1, PAGE, depth),
    )


def _pair(first: Tensor, second: Tensor) -> Tensor:
    """Two vectors of indices as the columns of a matrix."""
    (axis,) = first.axes or ()
    return concatenate([each.to(i32).split(axis, **{axis: None, "j": 1}) for each in (first, second)], "j")
