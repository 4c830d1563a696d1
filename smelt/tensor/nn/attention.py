"""Attention: the function over queries, keys and values, rotary positions, and the layer with its projections.

Axes have fixed names here: `h` heads, `g` heads of keys and values where there are fewer, `k` depth, `t` keys. The ops
are those that engines recognise as one attention kernel.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from smelt.dim import Poly, floordiv
from smelt.dtype import DType, f32
from smelt.tensor.axes import SizeLike, size_of
from smelt.tensor.core import Tensor
from smelt.tensor.model import Model
from smelt.tensor.nn.layers import Linear
from smelt.tensor.nn.sizes import in_f32, single_axis
from smelt.tensor.ops import elementwise as el
from smelt.tensor.ops.move import arange, concatenate
from smelt.tensor.record import operand
from smelt.tensor.recovery import with_recovery
from smelt.tensor.source import refuse


@with_recovery
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    offset: Tensor | int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    queries: str = "s",
    keys: str = "t",
    depth: str = "k",
) -> Tensor:
    """Scaled dot-product attention: softmax(q k^T * scale) v.

    q has axes such as [b, h, s, k], k and v [b, h, t, k] in any order; axes of one name go together. With fewer heads
    of keys, k and v have an axis `g` instead of `h`, whose size divides h's. A mask of booleans says which keys count;
    one of floats is added to the scores. `causal`: a query at position i sees keys up to i + offset. The result has q's
    axes in q's order. Scale is 1 / sqrt(depth) unless given.

    >>> import smelt
    >>> q, kv = smelt.symbolic("f32[b=B, s=S, h=8, k=64]"), smelt.symbolic("f32[b=B, t=T, g=2, k=64]")
    >>> attention(q, kv, kv).shape
    f32[b=B, s=S, h=8, k=64]
    """
    order = list(q.shape.names or ())
    for label, tensor, name in (("q", q, queries), ("k", k, keys), ("v", v, keys), ("q", q, depth), ("k", k, depth)):
        if name not in (tensor.shape.names or ()):
            refuse(f'attention: {label} has no axis "{name}"', operand("q", q), operand("k", k), operand("v", v))
    grouped = "g" in (k.shape.names or ()) and "g" not in order and "h" in order
    if grouped:
        heads = order.index("h")
        q = q.split("h", g=k.size("g"), r=None)
        order[heads : heads + 1] = ["g", "r"]
        if mask is not None and "h" in (mask.shape.names or ()):
            mask = mask.split("h", g=k.size("g"), r=None)
    if strange := [name for name in k.shape.names or () if name not in (*order, keys)]:
        shown = operand("q", q), operand("k", k)
        refuse(f'attention: k has an axis "{strange[0]}" that q lacks', *shown, remedy=f'keys are along "{keys}"')
    scores = in_f32(_scale(q.dot(k, depth), q, depth, scale))
    if softcap:
        scores = (scores * (1 / softcap)).tanh() * softcap
    if mask is not None:
        scores = (
            el.where(mask, scores, -math.inf) if mask.dtype.kind == "bool" else scores + el.cast(mask, scores.dtype)
        )
    if causal:
        place = arange(q.size(queries), queries) + offset
        seen = el.outer("-", place, arange(k.size(keys), keys)) >= 0
        scores = el.where(seen, scores, -math.inf)
    found = el.cast(scores.softmax(keys), v.dtype).dot(v, keys)
    order = [name for name in order if name != depth]
    rest = [name for name in found.shape.names or () if name not in order]
    found = found.transpose(*order, *rest)
    return found.merge(("g", "r"), "h") if grouped else found


def _scale(scores: Tensor, q: Tensor, depth: str, scale: float | None) -> Tensor:
    if scale is not None:
        return scores * scale
    size = q.size(depth)
    if isinstance(size, int):
        return scores * (1 / math.sqrt(size))
    return scores * el.cast(q.count(depth, f32).rsqrt(), scores.dtype)


# ---- rotary positions ----


Rotation = tuple[Tensor, Tensor]  # cosines, [s, k]; sines with the sign for each of a pair, [s, k, k_pair]


class RoPE(Model):
    """Rotary position embedding: pairs of elements along an axis rotated by position: `nn.RoPE(k=64)`.

    Pairs are the two halves of the axis, as Hugging Face's weights want it, or neighbours where `interleaved`. `part`
    of the axis at its start is rotated, by default all of it. `factors` multiply the frequencies (long-context
    variants).

    >>> import smelt
    >>> RoPE(k=64)(smelt.symbolic("f32[b=B, s=S, h=8, k=64]")).shape
    f32[b=B, s=S, h=8, k=64]
    """

    def __init__(
        self,
        *,
        base: float = 10000.0,
        interleaved: bool = False,
        part: int | None = None,
        factors: Any = None,
        over: str = "s",
        **axes: SizeLike,
    ) -> None:
        self._axis, self._size = single_axis("RoPE", axes)
        self.base = base
        self.interleaved = interleaved
        self.part = part
        self.over = over
        self._factors = None if factors is None else tuple(float(factor) for factor in factors)

    @with_recovery
    def __call__(self, x: Tensor, positions: Tensor | None = None, rotation: Rotation | None = None) -> Tensor:
        """x rotated. `positions` are [s] or [b, s], 0, 1, … by default. `rotation`: what `.rotation` gave."""
        size = x.size(self._axis)
        if isinstance(self._size, int) and isinstance(size, int) and size != self._size:
            refuse(f'RoPE: "{self._axis}" has the size {size}, not {self._size}', operand("operand", x))
        rotation = self.rotation(x, positions) if rotation is None else rotation
        if self.part is not None:
            first = x.slice(**{self._axis: slice(None, self.part)})
            rest = x.slice(**{self._axis: slice(self.part, None)})
            return concatenate([self._rotate(first, rotation), rest], self._axis)
        return self._rotate(x, rotation)

    def rotation(self, x: Tensor, positions: Tensor | None = None) -> Rotation:
        """The cosines and signed sines for x and all tensors with the same positions and depth."""
        place = arange(x.size(self.over), self.over) if positions is None else positions
        angles = el.outer("*", el.cast(place, f32), self._frequencies(x))
        signs = el.leaf(np.array([-1, 1], np.float32), names=(self._pair,))
        return angles.cos(), el.outer("*", angles.sin(), signs)

    @property
    def _pair(self) -> str:
        return f"{self._axis}_pair"

    def _rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        """(a, b) → (a cos - b sin, b cos + a sin): with the pair reversed, one sum of two products."""
        axis, pair = self._axis, self._pair
        order = {axis: None, pair: 2} if self.interleaved else {pair: 2, axis: None}
        parts = in_f32(x).split(axis, **order)
        rotated = parts * rotation[0] + parts.flip(pair) * rotation[1]
        return el.cast(rotated.merge(tuple(order), axis), x.dtype)

    def _frequencies(self, x: Tensor) -> Tensor:
        size = x.size(self._axis) if self.part is None else self.part
        if isinstance(size, int):
            exact = self.base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
            if self._factors is not None:
                exact = exact * np.asarray(self._factors)
            return el.leaf(exact.astype(np.float32), names=(self._axis,))
        if self._factors is not None:
            refuse("RoPE: factors need an axis with a number for its size", operand("operand", x))
        steps = el.cast(arange(size // 2, self._axis), f32)
        return (steps * (-2.0 * math.log(self.base)) / x.count(self._axis, f32)).exp()


# ---- the layer ----

Cache = tuple[Tensor, Tensor]  # keys and values, [b, t, h or g, k] in any order


class MultiHeadAttention(Model):
    """Attention with its four projections: `nn.MultiHeadAttention(d=4096, heads=32, kv_heads=8, causal=True)`.

    The operand has axes `over` (s by default) and d. `q_proj`, `k_proj`, `v_proj` and `o_proj` are Linear layers. The
    call may be given another sequence to attend to, whose axis may have any name, masks over `t`, positions for `rope`,
    and a KV cache with the position to write at: then the result is (y, cache).

    >>> import smelt
    >>> layer = MultiHeadAttention(d="D", heads="H")
    >>> layer.facts
    ('H divides D',)
    >>> smelt.tensor.trace(layer, smelt.Shape("f32", b="B", s="S", d="D")).results.shape
    f32[b=B, s=S, d=D]
    """

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear

    def __init__(
        self,
        *,
        heads: SizeLike,
        kv_heads: SizeLike | None = None,
        head_size: SizeLike | None = None,
        bias: bool = False,
        out_bias: bool | None = None,
        causal: bool = False,
        rope: RoPE | None = None,
        scale: float | None = None,
        softcap: float = 0.0,
        over: str = "s",
        dtype: str | DType | None = None,
        **axes: SizeLike,
    ) -> None:
        name, size = single_axis("MultiHeadAttention", axes)
        self.heads = size_of(heads)
        self.kv_heads = None if kv_heads is None or size_of(kv_heads) == self.heads else size_of(kv_heads)
        depth = floordiv(size, self.heads) if head_size is None else size_of(head_size)
        facts = [f"{self.heads} divides {size}" if head_size is None else f"{self.heads} >= 1"]
        if self.kv_heads is not None:
            facts.append(f"{self.kv_heads} divides {self.heads}")
        if any(isinstance(each, Poly) for each in (size, self.heads, self.kv_heads)):
            self.facts = tuple(facts)
        elif head_size is None and isinstance(size, int) and isinstance(self.heads, int) and size % self.heads:
            refuse(f"MultiHeadAttention: {self.heads} heads do not divide {size}", remedy="head_size=…")
        wide, narrow = self.heads * depth, (self.heads if self.kv_heads is None else self.kv_heads) * depth
        if head_size is None and self.kv_heads is None:
            wide = narrow = size
        self.q_proj = Linear(bias=bias, dtype=dtype, **{name: size, "e": wide})
        self.k_proj = Linear(bias=bias, dtype=dtype, **{name: size, "e": narrow})
        self.v_proj = Linear(bias=bias, dtype=dtype, **{name: size, "e": narrow})
        self.o_proj = Linear(bias=bias if out_bias is None else out_bias, dtype=dtype, **{"e": wide, name: size})
        self.causal = causal
        self.rope = rope
        self.scale = scale
        self.softcap = softcap
        self.over = over

    def __call__(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        at: Tensor | int = 0,
    ) -> Any:
        q = self.q_proj(x).split("e", h=self.heads, k=None)
        k, v = self.project(x if context is None else context)
        if self.rope is not None and context is None:
            rotation = self.rope.rotation(q, positions)
            q, k = self.rope(q, rotation=rotation), self.rope(k, rotation=rotation)
        k, v = (each.rename(**{self.over: "t"}) if self.over in (each.axes or ()) else each for each in (k, v))
        if cache is not None:
            cache = k, v = cache[0].update(k, t=at), cache[1].update(v, t=at)
        y = attention(
            q,
            k,
            v,
            mask=mask,
            causal=self.causal and context is None,
            offset=at if cache is not None else 0,
            scale=self.scale,
            softcap=self.softcap,
            queries=self.over,
        )
        out = self.o_proj(y.merge("h k", "e"))
        return out if cache is None else (out, cache)

    def project(self, context: Tensor) -> Cache:
        """Keys and values of a sequence."""
        heads = {"h": self.heads} if self.kv_heads is None else {"g": self.kv_heads}
        k, v = (layer(context).split("e", **heads, k=None) for layer in (self.k_proj, self.v_proj))
        return k, v
