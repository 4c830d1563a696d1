"""`paged_attention`: attention of queries over keys and values in pages, as one composite.

In: tensors of a step. Out: the composite `smelt.paged_attention` with a decomposition into ops that every engine has.
Called by `decoder`. Axes: s queries, h heads, g heads of keys and values, k depth, p pages, o positions in a page, b
sequences, m pages of a sequence.
"""

from __future__ import annotations

import math
from functools import lru_cache

from smelt.dtype import f32, i32
from smelt.ir.core import Func
from smelt.tensor.axes import shape_of
from smelt.tensor.composite import composite
from smelt.tensor.core import Tensor
from smelt.tensor.jit.trace import trace
from smelt.tensor.ops import elementwise as el
from smelt.tensor.ops.move import arange

PAGE = 64  # positions


class PagedAttention:
    """Attention with these sizes and numbers. It is made outside of any trace, and called inside of one."""

    def __init__(
        self, heads: int, kv_heads: int, depth: int, scale: float, softcap: float = 0.0, window: int | None = None
    ) -> None:
        self._attributes = {"scale": float(scale), "softcap": float(softcap), "window": window or 0}
        self._body = _decomposition(heads, kv_heads, depth, float(scale), float(softcap), window or 0)

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, table: Tensor, sequence: Tensor, position: Tensor
    ) -> Tensor:
        """q f32[s, h, k], keys and values f32[p, o, g, k], table i32[b, m], sequence and position i32[s]."""
        operands = (q.transpose("s", "h", "k"), keys, values, table, sequence, position)
        return composite("smelt.paged_attention", operands, self._attributes, self._body, ("s", "h", "k"))


@lru_cache
def _decomposition(heads: int, kv_heads: int, depth: int, scale: float, softcap: float, window: int) -> Func:
    pool = f"f32[p=P, o={PAGE}, g={kv_heads}, k={depth}]"

    def attend(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, sequence: Tensor, position: Tensor) -> Tensor:
        pages = table.take(sequence, "b")
        k, v = (each.take(pages, "p").merge("m o", "t") for each in (keys, values))  # [s, t, g, k]
        q = q.split("h", g=kv_heads, r=None)
        scores = q.dot(k, "k") * scale
        if softcap:
            scores = (scores * (1 / softcap)).tanh() * softcap
        behind = el.outer("-", position, arange(k.size("t"), "t", i32))  # how far a key is behind its query
        seen = behind >= 0
        if window:
            seen = seen & (behind < window)
        scores = el.where(seen, scores, -math.inf)
        # A query that sees no key gives zeros.
        top = el.where(scores.max("t") > -math.inf, scores.max("t"), 0.0)
        powers = (scores - top).exp()
        total = powers.sum("t")
        weights = powers / el.where(total > 0, total, 1.0)
        found = weights.dot(el.where(seen, v, 0.0), "t")
        return found.transpose("s", "g", "r", "k").merge("g r", "h").to(f32)

    texts = (f"f32[s=S, h={heads}, k={depth}]", pool, pool, "i32[b=B, m=M]", "i32[s=S]", "i32[s=S]")
    return trace(attend, *map(shape_of, texts), facts=("P >= 1", "B >= 1", "M >= 1")).program.main
