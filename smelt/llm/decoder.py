"""A decoder of any family as a `smelt.Model`: embeddings, layers of attention and an MLP, logits.

In: a `Config`, and how each weight is stored (an element type, or blocks). `Decoder.step` is the one function that is
compiled: it reads new tokens of any number of sequences, writes their keys and values into pages and gives logits of
the requested rows. Prefill, decode and scoring are the same program at different sizes. `decode_step` is for
XLA: one token of each sequence, over caches without pages (`slots`). Axes: s new tokens, h heads, g heads of keys and
values, k depth, p pages, o positions in a page, b sequences, m pages of a sequence, t positions of a slot, d width, f
width of the MLP, e experts, v vocabulary, r rows of logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from smelt.dtype import f32, i32
from smelt.llm.config import LONG, Config, Layer, Rope
from smelt.llm.draw import Draw, draw_tokens
from smelt.llm.layers import Formats, Linear, Matrix, Norm
from smelt.llm.moe import Mixture
from smelt.llm.paged import paged_attention, sequence_attention, store_as, write_pages
from smelt.llm.slots import slot_attention, write_slots
from smelt.tensor import nn
from smelt.tensor.core import Tensor
from smelt.tensor.model import Model
from smelt.tensor.ops.elementwise import cast, leaf, outer, where
from smelt.tensor.ops.move import chunk, concatenate
from smelt.tensor.ops.reduce import argmax

Cache = tuple[Tensor, Tensor]  # keys [p, g, k, o] and values [p, g, o, k] of a layer; in slots [s, g, t, k] both


class Picked(NamedTuple):
    """Results of a step that also picks the most likely tokens."""

    best: Any  # i32[r]; -1 where the greatest logit is not finite
    logits: Any
    states: Any
    pools: Any


class Stepped(NamedTuple):
    """What a step gives."""

    logits: Any
    states: Any  # of the last layer, behind its norm
    pools: Any


class Decoded(NamedTuple):
    """What a step over slots gives."""

    best: Any  # the tokens that it picked, i32[s]; -1 where no logit is the greatest, or it is not finite
    logits: Any
    caches: Any
    position: Any  # of the next tokens, i32[s]


@dataclass(frozen=True, slots=True)
class PageMap:
    """Where the tokens of a step belong: sequence and position of each, the pages of each sequence, and page and place
    in it that each token's keys and values are written to; a page outside of the pool is not written."""

    table: Tensor  # i32[b, m]
    sequence: Tensor  # i32[s]
    position: Tensor  # i32[s]
    page: Tensor  # i32[s]
    place: Tensor  # i32[s]
    long: Tensor | None = None  # where sequences have the frequencies `Rope.long`, [s]


@dataclass(frozen=True, slots=True)
class SequenceMap:
    """`PageMap` where all tokens are of one sequence."""

    pages: Tensor  # i32[m]
    position: Tensor  # i32[s]
    page: Tensor  # i32[s]
    place: Tensor  # i32[s]
    long: Tensor | None = None  # [s]


@dataclass(frozen=True, slots=True)
class Slots:
    """One new token for each sequence, each with a cache of its own."""

    position: Tensor  # i32[s]
    long: Tensor | None = None  # [s]


TokenMap = PageMap | SequenceMap | Slots


def apply_rope(x: Tensor, rope: Rope, positions: Tensor, long: Tensor | None = None) -> Tensor:
    """Rotate heads by their positions; elements after the rotated part stay."""
    base = nn.RoPE(k=rope.part, interleaved=rope.interleaved)
    angles = _angles(rope.frequencies, positions)
    if long is not None and rope.long is not None:
        angles = where(long, _angles(rope.long, positions), angles)
    cosines, sines = angles.cos() * rope.scale, angles.sin() * rope.scale
    signed = outer("*", sines, leaf(np.array([-1, 1], np.float32), names=("k_pair",)))
    if rope.part == x.size("k"):
        return base(x, rotation=(cosines, signed))
    first, rest = x.slice(k=slice(None, rope.part)), x.slice(k=slice(rope.part, None))
    return concatenate([base(first, rotation=(cosines, signed)), rest], "k")


def _angles(frequencies: Sequence[float], positions: Tensor) -> Tensor:
    return outer("*", cast(positions, f32), leaf(np.array(frequencies, np.float32), names=("k",)))


def _take_rows(x: Tensor, rows: Tensor | None) -> Tensor:
    """The requested rows; all of them without `rows`."""
    return x if rows is None else x.take(rows, "s").rename(r="s")


class Attention(Model):
    q: Linear | None
    k: Linear | None
    v: Linear | None
    qkv: Linear | None  # in place of the three
    o: Linear
    q_norm: Norm | None
    k_norm: Norm | None

    def __init__(self, config: Config, layer: Layer, path: str, formats: Formats) -> None:
        wide, narrow = config.heads * config.head_size, config.kv_heads * config.head_size
        self._widths = wide, narrow, narrow
        is_merged = f"{path}.qkv.weight" in formats

        def linear(name: str, width: int) -> Linear | None:
            has_it = (name == "qkv") == is_merged
            return Linear(f"{path}.{name}", formats, config.qkv_bias, e=width, d=config.d) if has_it else None

        self.q, self.k, self.v = linear("q", wide), linear("k", narrow), linear("v", narrow)
        self.qkv = linear("qkv", sum(self._widths))
        self.o = Linear(f"{path}.o", formats, config.out_bias, d=config.d, e=wide)
        per_head = config.qk_norm_per_head
        self.q_norm, self.k_norm = (
            (Norm(config, "k", config.head_size) if per_head else Norm(config, "e", width)) if config.qk_norm else None
            for width in (wide, narrow)
        )
        self._config, self._layer = config, layer
        sizes = config.heads, config.kv_heads, config.head_size
        self._attend = paged_attention(*sizes, config.scale, config.softcap, layer.window, config.cache)

    def __call__(self, x: Tensor, cache: Cache, places: TokenMap, rows: Tensor | None = None) -> tuple[Tensor, Cache]:
        """Attention of all tokens, or of `rows` i32[r] of them; keys and values are written for all. Queries are
        computed for all as well: the same product and map as in other layers, instead of launches for a few rows."""
        config, layer = self._config, self._layer
        wide, narrow, same = self._project(x)
        norms = (self.q_norm, self.k_norm) if self.q_norm is not None and self.k_norm is not None else None
        if norms is not None and not config.qk_norm_per_head:
            wide, narrow = norms[0](wide), norms[1](narrow)
        q = wide.split("e", h=config.heads, k=None)
        k, v = (each.split("e", g=config.kv_heads, k=None) for each in (narrow, same))
        if norms is not None and config.qk_norm_per_head:
            q, k = norms[0](q), norms[1](k)
        if layer.rope is not None:
            q, k = (apply_rope(each, layer.rope, places.position, places.long) for each in (q, k))
        q, position = _take_rows(q, rows), _take_rows(places.position, rows)
        new = store_as(k, v, config.cache)
        if isinstance(places, Slots):
            keys, values = (write_slots(old, each, places.position) for old, each in zip(cache, new, strict=True))
            y = slot_attention(q, keys, values, position, config.scale, config.softcap, layer.window)
        else:
            keys, values = (
                write_pages(old, each, places.page, places.place) for old, each in zip(cache, new, strict=True)
            )
            if isinstance(places, PageMap):
                y = self._attend(q, keys, values, places.table, _take_rows(places.sequence, rows), position)
            else:
                numbers = config.scale, config.softcap, layer.window or 0
                y = sequence_attention(q, keys, values, places.pages, position, *numbers)
        return self.o(y.merge("h k", "e")), (keys, values)

    def _project(self, x: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values, [s, e] each."""
        if self.qkv is not None:
            return chunk(self.qkv(x), "e", self._widths)
        assert self.q is not None
        assert self.k is not None
        assert self.v is not None
        return self.q(x), self.k(x), self.v(x)


class MLP(Model):
    gate: Linear | None
    up: Linear | None
    gate_up: Linear | None  # in place of both
    down: Linear

    def __init__(self, config: Config, path: str, formats: Formats) -> None:
        is_merged = f"{path}.gate_up.weight" in formats

        def linear(name: str, width: int) -> Linear:
            return Linear(f"{path}.{name}", formats, config.mlp_bias, f=width, d=config.d)

        self.gate = linear("gate", config.f) if config.gated and not is_merged else None
        self.up = None if is_merged else linear("up", config.f)
        self.gate_up = linear("gate_up", 2 * config.f) if is_merged else None
        self.down = Linear(f"{path}.down", formats, config.mlp_bias, d=config.d, f=config.f)
        self._activation = nn.activation(config.activation)

    def __call__(self, x: Tensor) -> Tensor:
        if self.gate_up is not None:
            gate, up = chunk(self.gate_up(x), "f", 2)
            return self.down(self._activation(gate) * up)
        assert self.up is not None
        y = self.up(x)
        return self.down(self._activation(y) if self.gate is None else self._activation(self.gate(x)) * y)


class Block(Model):
    """One layer: attention and an MLP, each behind a norm, before one, or both."""

    before_attn: Norm | None
    attn: Attention
    after_attn: Norm | None
    before_mlp: Norm | None
    mlp: MLP | Mixture
    after_mlp: Norm | None

    def __init__(self, config: Config, layer: Layer, path: str, formats: Formats) -> None:
        self.before_attn = Norm(config, "d", config.d) if config.pre_norms else None
        self.attn = Attention(config, layer, f"{path}.attn", formats)
        self.after_attn = Norm(config, "d", config.d) if config.post_norms else None
        self.before_mlp = Norm(config, "d", config.d) if config.pre_norms else None
        if layer.experts is None:
            self.mlp = MLP(config, f"{path}.mlp", formats)
        else:
            self.mlp = Mixture(config, layer.experts, f"{path}.mlp", formats)
        self.after_mlp = Norm(config, "d", config.d) if config.post_norms else None

    def __call__(self, x: Tensor, cache: Cache, places: TokenMap, rows: Tensor | None = None) -> tuple[Tensor, Cache]:
        """States after the layer, of all tokens or of `rows` of them, and the cache with keys and values of all."""
        y, cache = self.attn(x if self.before_attn is None else self.before_attn(x), cache, places, rows)
        x = _take_rows(x, rows)
        x = x + (y if self.after_attn is None else self.after_attn(y))
        y = self.mlp(x if self.before_mlp is None else self.before_mlp(x))
        return x + (y if self.after_mlp is None else self.after_mlp(y)), cache


class Decoder(Model):
    embed: Matrix
    positions: Matrix | None
    layers: list[Block]
    norm: Norm
    head: Matrix | None

    def __init__(self, config: Config, formats: Formats) -> None:
        self.embed = Matrix("embed.weight", formats, v=config.v, d=config.d)
        self.positions = Matrix("positions.weight", formats, p=config.context, d=config.d) if config.positions else None
        self.layers = [Block(config, layer, f"layers.{i}", formats) for i, layer in enumerate(config.layers)]
        self.norm = Norm(config, "d", config.d)
        self.head = None if config.tied else Matrix("head.weight", formats, v=config.v, d=config.d)
        self._config = config

    def step(
        self,
        tokens: Tensor,
        pools: list[Cache],
        table: Tensor,
        sequence: Tensor,
        position: Tensor,
        page: Tensor,
        place: Tensor,
        rows: Tensor,
    ) -> Stepped:
        """`tokens` i32[s] with their `PageMap`; `pools`: the pages of each layer's keys and values; `rows` i32[r]: the
        tokens whose logits are needed."""
        return self._step(tokens, pools, PageMap(table, sequence, position, page, place), rows)

    def sliding_step(
        self,
        tokens: Tensor,
        pools: list[Cache],
        table: Tensor,
        sliding_table: Tensor,
        sequence: Tensor,
        position: Tensor,
        page: Tensor,
        sliding_page: Tensor,
        place: Tensor,
        rows: Tensor,
    ) -> Stepped:
        """`step` where layers with a window have pages of their own."""
        full = PageMap(table, sequence, position, page, place)
        return self._step(tokens, pools, full, rows, replace(full, table=sliding_table, page=sliding_page))

    def _step(
        self, tokens: Tensor, pools: list[Cache], places: TokenMap, rows: Tensor, sliding: PageMap | None = None
    ) -> Stepped:
        x, after = self._layers(tokens, pools, places, rows, sliding)
        states = self.norm(x.rename(s="r"))
        return Stepped(self._logits(states), states, after)

    def _layers(
        self,
        tokens: Tensor,
        caches: list[Cache],
        places: TokenMap,
        rows: Tensor | None = None,
        sliding: PageMap | None = None,
    ) -> tuple[Tensor, list[Cache]]:
        """States [s, d] before the last norm, of all tokens or of `rows` of them, and the caches with the new keys and
        values. `sliding`: places of the layers with a window, where they have pages of their own. The last layer
        computes queries, keys and values of all tokens, and the rest for the rows alone."""
        config = self._config
        if config.switch is not None:
            is_long = places.position >= LONG
            near = where(is_long, places.position - LONG, places.position)
            places = replace(places, position=near, long=is_long)
            sliding = None if sliding is None else replace(sliding, position=near, long=is_long)
        x = self.embed.take(tokens, "v")
        if config.embed_scale != 1.0:
            x = x * config.embed_scale
        if self.positions is not None:
            x = x + self.positions.take(places.position, "p")
        after = []
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            here = places if sliding is None or not config.is_sliding(i) else sliding
            x, cache = layer(x, cache, here, rows if layer is self.layers[-1] else None)
            after.append(cache)
        return x, after

    def _logits(self, states: Tensor) -> Tensor:
        softcap = self._config.final_softcap
        logits = states.dot((self.embed if self.head is None else self.head).dense(), "d", precision="high")
        return (logits * (1 / softcap)).tanh() * softcap if softcap else logits

    def pick_step(
        self,
        tokens: Tensor,
        pools: list[Cache],
        table: Tensor,
        sequence: Tensor,
        position: Tensor,
        page: Tensor,
        place: Tensor,
        rows: Tensor,
    ) -> Picked:
        """`step` for a device with its own memory: the likeliest tokens are all that a greedy request fetches."""
        return _pick(self.step(tokens, pools, table, sequence, position, page, place, rows))

    def read_step(
        self,
        tokens: Tensor,
        pools: list[Cache],
        pages: Tensor,
        position: Tensor,
        page: Tensor,
        place: Tensor,
        rows: Tensor,
    ) -> Picked:
        """The same for tokens of one sequence."""
        return _pick(self._step(tokens, pools, SequenceMap(pages, position, page, place), rows))

    def decode_step(self, tokens: Tensor, caches: list[Cache], position: Tensor) -> Decoded:
        """The likeliest tokens after `tokens` i32[s], which are at `position` i32[s] of their sequences. What it gives
        is what the next step takes."""
        return self._decode(tokens, caches, position, lambda logits: argmax(logits, "v").to(i32))

    def draw_step(self, tokens: Tensor, caches: list[Cache], position: Tensor, asked: Draw) -> Decoded:
        """The same with tokens that are drawn."""
        return self._decode(tokens, caches, position, lambda logits: draw_tokens(logits, asked))

    def _decode(
        self, tokens: Tensor, caches: list[Cache], position: Tensor, pick: Callable[[Tensor], Tensor]
    ) -> Decoded:
        x, after = self._layers(tokens, caches, Slots(position))
        logits = self._logits(self.norm(x))
        is_finite = logits.max("v").abs() < math.inf  # a NaN is no less
        return Decoded(where(is_finite, pick(logits), -1), logits, after, position + 1)


def _pick(made: Stepped) -> Picked:
    best = argmax(made.logits, "v").to(i32)
    top = made.logits.take_along(best.insert("v", 1), "v").squeeze("v")  # a NaN is the greatest, so it is picked
    return Picked(where(top.abs() < math.inf, best, -1), *made)
