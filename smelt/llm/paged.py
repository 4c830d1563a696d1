"""`paged_attention`: attention of queries over keys and values in pages, as one composite.

In: tensors of a step. Out: the composite `smelt.paged_attention` with a decomposition into ops that every engine has.
Called by `decoder`. Axes: s queries, h heads, g heads of keys and values, k depth, p pages, o positions in a page, b
sequences, m pages of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from smelt.dtype import DType, f32, i8, i32
from smelt.ir.attributes import ScatterDims
from smelt.ir.core import Func
from smelt.ir.ops.packed_blocks import LEAST, MOST
from smelt.layout import SCALES, WORD
from smelt.llm.config import PAGE
from smelt.shape import Shape
from smelt.tensor.axes import shape_of
from smelt.tensor.composite import composite
from smelt.tensor.core import Tensor
from smelt.tensor.jit.trace import trace
from smelt.tensor.ops import elementwise as el
from smelt.tensor.ops.move import arange, concatenate
from smelt.tensor.record import emit, scalar_region

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def paged_attention(
    heads: int, kv_heads: int, depth: int, scale: float, softcap: float, window: int | None, cache: DType
) -> Attend:
    """Attention with these sizes and numbers. It is made outside of any trace, and called inside of one. A function,
    so that walks over a model's fields do not enter the decomposition."""
    attributes = {"scale": float(scale), "softcap": float(softcap), "window": window or 0}
    body = _decomposition(heads, kv_heads, depth, float(scale), float(softcap), window or 0, cache)

    def attend(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, sequence: Tensor, position: Tensor) -> Tensor:
        """q f32[s, h, k], keys and values as `pool_texts` says, table i32[b, m], sequence and position i32[s]."""
        operands = (q.transpose("s", "h", "k"), keys, values, table, sequence, position)
        return composite("smelt.paged_attention", operands, attributes, body, ("s", "h", "k"))

    return attend


def pool_texts(kv_heads: int, depth: int, cache: DType, pages: str = "P") -> tuple[str, str]:
    """The shapes of a layer's keys, transposed within a page, and of its values. Keys in i8 are words of four elements,
    with scales after them, values words of four positions (`ir.ops.paged_attention`)."""
    keys, values = f"k={depth}, o={PAGE}", f"o={PAGE}, k={depth}"
    if cache == i8:
        keys, values = f"r={depth // WORD + SCALES}, o={PAGE}, c={WORD}", f"w={PAGE // WORD}, k={depth}, x={WORD}"
    return f"{cache}[p={pages}, g={kv_heads}, {keys}]", f"{cache}[p={pages}, g={kv_heads}, {values}]"


def store_as(k: Tensor, v: Tensor, cache: DType) -> tuple[Tensor, Tensor]:
    """New keys and values f32[s, g, k] as pages hold them: [s, g, k], or keys in i8 [s, g, r, c]."""
    if cache != i8:
        return el.cast(k, cache), el.cast(v, cache)
    (keys, key_steps), (values, value_steps) = round_rows(k), round_rows(v)
    names = ("s", "g", "c")
    scales = [
        emit("bitcast_convert", each, names=names, result=Shape.of(i8, (*each.shape.sizes, WORD)))
        for each in (key_steps, value_steps)
    ]
    rows = concatenate([el.cast(keys, i8), *(each.rename(c="k") for each in scales)], "k")
    return rows.split("k", r=None, c=WORD), el.cast(values, i8)


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of integers, of which the largest is 127, and the scale of each row."""
    x = x.transpose(*(each for each in x.axes or () if each != "k"), "k")
    peak = x.abs().bitcast(i32).max("k").bitcast(f32)  # positive floats are ordered as integers are: this vectorises
    steps = peak / float(MOST)
    factors = el.where(steps < float(LEAST), 0.0, 1.0 / steps)
    return (x * factors).round(), steps


def write_pages(pool: Tensor, new: Tensor, page: Tensor, place: Tensor) -> Tensor:
    """Keys or values in pages, with new ones (`store_as`) at (page, place) each, no two at the same; a page outside is
    not written."""
    assert pool.axes is not None
    at = {"p": page, "w": place // WORD, "x": place % WORD} if "w" in pool.axes else {"p": page, "o": place}
    wide = concatenate([each.to(i32).split("s", s=None, j=1) for each in at.values()], "j")
    inserted = tuple(pool.axes.index(each) for each in at)
    kept = tuple(each for each in pool.axes if each not in at)
    dims = ScatterDims(
        update_window_dims=tuple(range(1, 1 + len(kept))),
        inserted_window_dims=inserted,
        scatter_dims_to_operand_dims=inserted,
        index_vector_dim=1,
    )
    region = scalar_region(pool.dtype, lambda _, b: b)
    updates = new.transpose("s", *kept)
    return emit(
        "scatter",
        *(pool, wide, updates),
        names=pool.axes,
        regions=(region,),
        scatter_dimension_numbers=dims,
        unique_indices=True,
    )


def sequence_attention(
    q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, position: Tensor, scale: float, softcap: float, window: int
) -> Tensor:
    """The same for queries f32[s, h, k] of one sequence, whose `pages` i32[m] XLA gathers once for all of them."""
    q = q.split("h", g=keys.size("g"), r=None)
    k, v = (el.cast(each.take(pages, "p"), f32) for each in (keys, values))
    k, v = (each.transpose("g", "m", "o", "k").merge("m o", "t") for each in (k, v))
    seen = _sees(position, k.size("t"), window)
    weights = _weigh(_score(q, k, scale, softcap), seen)
    found = weights.dot(el.where(el.cast(seen, i32).max("s") > 0, v, 0.0), "t")
    return found.transpose("s", "g", "r", "k").merge("g r", "h")


def _score(q: Tensor, k: Tensor, scale: float, softcap: float) -> Tensor:
    scores = q.dot(k, "k") * scale
    return (scores * (1 / softcap)).tanh() * softcap if softcap else scores


def _sees(position: Tensor, keys: Any, window: int) -> Tensor:
    """Which keys a query at a position sees, [s, t]."""
    behind = el.outer("-", position, arange(keys, "t", i32))  # how far a key is behind its query
    return (behind >= 0) & (behind < window) if window else behind >= 0


def _weigh(scores: Tensor, seen: Tensor) -> Tensor:
    """Softmax over the keys that a query sees; zeros where it sees none."""
    scores = el.where(seen, scores, -math.inf)
    top = el.where(scores.max("t") > -math.inf, scores.max("t"), 0.0)
    powers = (scores - top).exp()
    total = powers.sum("t")
    return powers / el.where(total > 0, total, 1.0)


def _open_pages(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Pages of i8, [s, m, …], as f32."""
    words, scales = k.slice(r=slice(None, -SCALES)), k.slice(r=slice(-SCALES, None))
    names, sizes = ("s", "m", "g", "r", "o"), scales.shape.sizes[:-1]
    scales = emit("bitcast_convert", scales, names=names, result=Shape.of(f32, sizes))
    key_steps, value_steps = (scales.slice(r=at) for at in range(SCALES))
    words = words.transpose("s", "m", "g", "r", "c", "o").merge("r c", "k")
    rows = v.transpose("s", "m", "g", "w", "x", "k").merge("w x", "o")
    return el.cast(words, f32) * key_steps, el.cast(rows, f32) * value_steps


@lru_cache
def _decomposition(
    heads: int, kv_heads: int, depth: int, scale: float, softcap: float, window: int, cache: DType
) -> Func:
    keys_of, values_of = pool_texts(kv_heads, depth, cache)

    def attend(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, sequence: Tensor, position: Tensor) -> Tensor:
        pages = table.take(sequence, "b")
        k, v = (each.take(pages, "p") for each in (keys, values))  # [s, m, …]
        if cache == i8:
            codes, steps = round_rows(q)
            q, k, v = codes * steps, *_open_pages(k, v)
        k, v = (el.cast(each, f32).transpose("s", "m", "o", "g", "k").merge("m o", "t") for each in (k, v))
        q = q.split("h", g=kv_heads, r=None)
        scores = _score(q, k, scale, softcap)
        seen = _sees(position, k.size("t"), window)
        found = _weigh(scores, seen).dot(el.where(seen, v, 0.0), "t")
        return found.transpose("s", "g", "r", "k").merge("g r", "h").to(f32)

    texts = (f"f32[s=S, h={heads}, k={depth}]", keys_of, values_of, "i32[b=B, m=M]", "i32[s=S]", "i32[s=S]")
    return trace(attend, *map(shape_of, texts), facts=("P >= 1", "B >= 1", "M >= 1")).program.main
