"""What a decoder is made of, in one form for all families: `Config`. `families` read it, `decoder` builds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from smelt.dtype import Array, DType, bf16, f16, f32, i8
from smelt.errors import UnsupportedError
from smelt.layout import SCALES, WORD

PAGE = 64  # positions of a page of the KV cache
LONG = 1 << 30  # a step's position is this much greater where the token's sequence has the frequencies `Rope.long`
CACHES = {"f32": f32, "f16": f16, "bf16": bf16, "int8": i8}  # types of keys and values in memory
EXPERTS = "_experts.weight"  # the end of the names of stacked matrices
MAX_LAYERS = 10_000
MAX_SIZE = 1 << 24  # of a width, a vocabulary, a number of heads


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: the angle of each pair of elements per position, and what cosines and sines are scaled by."""

    frequencies: tuple[float, ...]
    scale: float = 1.0
    interleaved: bool = False
    most: int | None = None  # positions of the sequences that these frequencies are for
    long: tuple[float, ...] | None = None  # the frequencies of longer sequences; None: there are none

    @property
    def part(self) -> int:
        """The number of elements of a head that are rotated."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture: of `count` experts of width f the `used` best are added up."""

    count: int
    used: int
    f: int
    normalise: bool  # the used ones' weights add up to one


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from layer to layer."""

    rope: Rope | None
    window: int | None = None  # keys that a query sees, its own included
    experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """A decoder: sizes, and the variants of its parts."""

    family: str
    layers: tuple[Layer, ...]
    d: int
    f: int
    heads: int
    kv_heads: int
    head_size: int
    v: int
    context: int
    epsilon: float
    activation: str
    scale: float  # of attention scores
    norm: str = "rms"  # or "layer"
    norm_offset: float = 0.0  # added to the weights of norms
    gated: bool = True
    pre_norms: bool = True  # norms before attention and before the MLP
    post_norms: bool = False  # norms after attention and after the MLP
    qk_norm: bool = False
    qk_norm_per_head: bool = True  # or over all heads at once
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    positions: bool = False  # learned positions are added to embeddings
    embed_scale: float = 1.0
    softcap: float = 0.0  # of attention scores
    final_softcap: float = 0.0  # of logits
    tied: bool = False
    stop: tuple[int, ...] = ()  # tokens that end a text
    bos: int | None = None
    cache: DType = f32  # the elements of keys and values in memory
    grouped_experts: bool = False  # experts multiply the tokens that chose them, not all
    own_pages: bool = False  # layers with a window have pages of their own, where other layers see everything

    @property
    def longest(self) -> int:
        """Tokens that a sequence may have: what the model was made for, or what its rotary positions are for."""
        ropes = [layer.rope for layer in self.layers if layer.rope is not None]
        return min([self.context, *(rope.most for rope in ropes if rope.most and rope.long is None)])

    @property
    def switch(self) -> int | None:
        """The tokens of a sequence up to which its rotary positions have their first frequencies, all of them; None
        where they have no others."""
        ropes = [layer.rope for layer in self.layers if layer.rope is not None]
        return min((rope.most for rope in ropes if rope.most and rope.long is not None), default=None)

    @property
    def window(self) -> int | None:
        """Keys that a query sees at most, where all layers have a window: pages behind it are free."""
        windows = [layer.window for layer in self.layers if layer.window is not None]
        return max(windows) if len(windows) == len(self.layers) else None

    @property
    def fits_int8(self) -> bool:
        """Whether keys are whole words of i8."""
        return self.head_size % WORD == 0

    @property
    def sliding(self) -> int | None:
        """Keys that a query sees at most in the layers whose pages are their own; None where there are none."""
        windows = [layer.window for layer in self.layers if layer.window is not None]
        return max(windows) if self.own_pages and 0 < len(windows) < len(self.layers) else None

    def is_sliding(self, layer: int) -> bool:
        """Whether the pages of a layer are those of layers with a window."""
        return self.sliding is not None and self.layers[layer].window is not None

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values per token, of i8 with their scales."""
        return self.layer_bytes * len(self.layers)

    @property
    def layer_bytes(self) -> int:
        """The same of one layer."""
        scales = 4 * SCALES if self.cache == i8 else 0
        return self.kv_heads * (self.cache.bits // 4 * self.head_size + scales)


class Fields:
    """A configuration whose fields are read by name; fields that were not read are refused at the end if they matter.

    `where` names the file in errors.
    """

    def __init__(self, values: Mapping[str, Any], where: str, harmless: frozenset[str]) -> None:
        self.values = values
        self.where = where
        self._read = set(harmless)

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def any(self, name: str, default: Any = None) -> Any:
        """A raw value; the default if it is missing or null."""
        self._read.add(name)
        found = self.values.get(name)
        return default if found is None else found

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        found = self.any(name, default)
        if type(found) is not int or not 1 <= found <= MAX_SIZE:
            self.refuse(name, f"a whole number from 1 to {MAX_SIZE}", found)
        return found

    def number(self, name: str, default: float | None = None) -> float:
        found = self.any(name, default)
        if type(found) not in (int, float) or not -1e30 < found < 1e30:
            self.refuse(name, "a number", found)
        return float(found)

    def positive(self, name: str, default: float | None = None) -> float:
        found = self.number(name, default)
        if found <= 0:
            self.refuse(name, "a positive number", found)
        return found

    def maybe(self, name: str) -> float | None:
        """A number where the field says one."""
        return None if self.any(name) is None else self.number(name)

    def record(self, name: str) -> Mapping[str, Any]:
        """A record of its own; an empty one where there is none."""
        found = self.any(name, {})
        if not isinstance(found, Mapping):
            self.refuse(name, "a record", found)
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        found = self.any(name, default)
        if type(found) is not bool:
            self.refuse(name, "true or false", found)
        return found

    def text(self, name: str, default: str | None = None) -> str:
        found = self.any(name, default)
        if type(found) is not str:
            self.refuse(name, "a text", found)
        return found

    def expect(self, name: str, *allowed: Any) -> None:
        """A field that may have these values only; missing is allowed."""
        found = self.any(name)
        if found is not None and found not in allowed:
            self.refuse(name, " or ".join(map(repr, allowed)), found)

    def refuse(self, name: str, expected: str, got: Any) -> NoReturn:
        shown = "nothing" if got is None else repr(got)[:200]
        raise UnsupportedError(f"{self.where}: {name}", expected=expected, got=shown)

    def unread_fields(self) -> Iterator[str]:
        """Fields that were not read and that may change the result."""
        for name, value in self.values.items():
            empty = value is None or value is False or value in ("", [], {})
            if name not in self._read and not empty:
                yield name

    def check_unread(self) -> None:
        if unknown := sorted(self.unread_fields()):
            shown = ", ".join(f"{name}={self.values[name]!r}"[:80] for name in unknown[:8])
            raise UnsupportedError(
                f"{self.where}: fields that may change what the model computes, and that are not known",
                got=shown,
                remedy="remove them where they change nothing",
            )


def rope_frequencies(base: float, part: int) -> Array:
    """Radians per position of each pair, the plain ones."""
    found: Array = base ** (-np.arange(0, part, 2, dtype=np.float64) / part)
    return found
