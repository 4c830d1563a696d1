"""The compiled step of a decoder: tokens of any number of sequences in, logits of some rows out, pages written.

One program for prefill, decode and scoring. Native runs it at any size; pjrt compiles one program per size, so that
there every size is rounded up to a power of two and the padding is neither written nor read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from smelt.buffer import HostBuffer
from smelt.dtype import Array
from smelt.engine import platform as platform_of
from smelt.engine_api import Placing
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.decoder import Decoder
from smelt.llm.paged import PAGE, pool_texts
from smelt.tensor.instantiate import instantiate
from smelt.tensor.jit.compile import compile

CHUNK = 512  # tokens that one step reads at most
GATHERED = 1 << 28  # bytes of keys and values that an engine without a paged kernel may gather for a step

Pools = list[tuple[Any, Any]]  # keys [p, g, k, o] and values [p, o, g, k] of each layer


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes, as i32 arrays: `tokens`, their `sequence` (a row of `table`) and `position` [s]; the
    pages of each sequence, `table` [b, m]; and the `rows` of tokens whose logits are wanted [r]."""

    tokens: Array
    sequence: Array
    position: Array
    table: Array
    rows: Array

    @staticmethod
    def of(parts: list[tuple[list[int], int, list[int], list[int]]]) -> Batch:
        """From (tokens, position of the first, pages, rows within the part) of each sequence."""
        counts = [len(tokens) for tokens, *_ in parts]
        starts = np.cumsum([0, *counts[:-1]])
        table = np.zeros((len(parts), max(len(pages) for _, _, pages, _ in parts)), np.int32)
        for i, (_, _, pages, _) in enumerate(parts):
            table[i, : len(pages)] = pages
        return Batch(
            np.array([token for tokens, *_ in parts for token in tokens], np.int32),
            np.repeat(np.arange(len(parts), dtype=np.int32), counts),
            np.concatenate([np.arange(at, at + len(tokens), dtype=np.int32) for tokens, at, _, _ in parts]),
            table,
            np.array([start + row for start, part in zip(starts, parts, strict=True) for row in part[3]], np.int32),
        )

    @property
    def places(self) -> tuple[Array, Array]:
        """The page that each token's keys and values go to, and the place in it; tokens that are not there go to
        page -1."""
        page, place = self.position // PAGE, self.position % PAGE
        found: Array = np.where(page < 0, np.int32(-1), self.table[self.sequence, page])
        return found, place

    def padded(self) -> Batch:
        """Every size rounded up to a power of two."""
        tokens, rows = _above(len(self.tokens)), _above(len(self.rows))
        sequences, pages = (_above(size) for size in self.table.shape)
        table = np.zeros((sequences, pages), np.int32)
        table[: self.table.shape[0], : self.table.shape[1]] = self.table
        return Batch(
            _pad(self.tokens, tokens, 0),
            _pad(self.sequence, tokens, 0),
            _pad(self.position, tokens, -1),
            table,
            _pad(self.rows, rows, 0),
        )


def _above(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _pad(array: Array, size: int, value: int) -> Array:
    return np.concatenate([array, np.full(size - len(array), value, array.dtype)])


def choose_precision(device: str, engine: str) -> str:
    """The default for GEMMs of block-quantised weights: the native engine has kernels for the blocks themselves."""
    return "q8" if platform_of(device, engine).engine.name == "native" else "f32"


class Step:
    """A decoder with its weights bound, on a platform. One thread calls it."""

    def __init__(self, checkpoint: Checkpoint, device: str, engine: str, precision: str) -> None:
        config = checkpoint.config
        self.platform = platform_of(device, engine)
        self.config = config
        self.precision = precision
        model = instantiate(Decoder, checkpoint.weights, strict=True, config=config, formats=checkpoint.formats)
        executable = compile(
            model.step,
            "i32[s=S]",
            [pool_texts(config.kv_heads, config.head_size, config.cache)] * len(config.layers),
            "i32[b=B, m=M]",
            *("i32[s=S]", "i32[s=S]", "i32[s=S]", "i32[s=S]", "i32[r=R]"),
            platform=self.platform,
            donate="pools",
            facts=("P >= 1", "B >= 1", "M >= 1", "S >= 1", "R >= 1"),
            precision=precision,
        )
        self._bound: Any = executable.prepare(checkpoint.weights)
        self._by_size = self.platform.engine.name == "pjrt"
        self._paged = self.platform.engine.name == "native"
        host = self._paged and not isinstance(self.platform.engine, Placing)
        self._direct: Any = self._bound.compiled if host else None  # takes arrays as they are

    def most(self, pages: int) -> int:
        """Tokens that a step may read, of sequences with up to a number of pages."""
        if self._paged:
            return CHUNK
        config = self.config
        each = 8 * PAGE * max(pages, 1) * config.kv_heads * config.head_size  # keys and values, gathered per token
        return max(1, min(CHUNK, GATHERED // each))

    def run(self, batch: Batch, pools: Pools) -> tuple[Array, Array, Pools]:
        """Logits of the batch's rows, f32[r, v], the last layer's states there, f32[r, d], and the pools with the
        batch's keys and values. The given pools are gone."""
        if self._direct is not None:
            return self._run_directly(batch, pools)
        given = batch.padded() if self._by_size else batch
        made = self._bound(given.tokens, pools, given.table, given.sequence, given.position, *given.places, given.rows)
        logits, states = (each.numpy()[: len(batch.rows)] for each in (made.logits, made.states))
        return logits, states, made.pools

    def _run_directly(self, batch: Batch, pools: Pools) -> tuple[Array, Array, Pools]:
        """The same on arrays in host memory: a step of a small model takes less time than checking its arguments."""
        flat = [array for pair in pools for array in pair]
        places = batch.table, batch.sequence, batch.position, *batch.places, batch.rows
        logits, states, *after = self._direct(batch.tokens, *flat, *places)
        return logits, states, list(zip(after[::2], after[1::2], strict=True))

    def put(self, array: Array) -> Any:
        """An array where steps compute."""
        return array if self._direct is not None else self.platform.put(HostBuffer.of(array))

    def memory(self, tokens: int, rows: int, sequences: int, pages: int) -> int:
        """Bytes that a step needs besides weights and pools."""
        return int(self._bound.memory(S=tokens, R=rows, B=sequences, M=pages).peak) if self._paged else 0

    def close(self) -> None:
        self._bound.close()
