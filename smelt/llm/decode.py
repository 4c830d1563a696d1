"""Decoding on XLA: runs of steps over slots, whose tokens stay on the device.

`SlotPrograms` are compiled once per model. A `DecodeRun` copies the pages of a group of sequences into slots, computes
one token of each per step, and writes what is new back to their pages. `engine` begins and ends runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.engine_api import Platform
from smelt.ir.core import Program
from smelt.llm.batch import Pools, round_up
from smelt.llm.config import PAGE, Config
from smelt.llm.decoder import Decoded, Decoder
from smelt.llm.paged import pool_texts
from smelt.llm.pages import Sequence as Pages
from smelt.llm.placed import Placed
from smelt.llm.slots import fill_slots, save_slots, slot_text
from smelt.tensor.instantiate import instantiate
from smelt.tensor.jit.compile import compile

FEWEST = 8  # slots: XLA's GEMM of eight rows is no slower than that of one
AHEAD = PAGE  # positions that a run has room for, at least


class SlotPrograms:
    """The programs of a model that decode in slots, with its weights bound."""

    def __init__(self, placed: Placed, config: Config, platform: Platform[Program], precision: str) -> None:
        model = instantiate(Decoder, placed.shapes, strict=True, config=config, formats=placed.formats)
        slots = slot_text(config.kv_heads, config.head_size, config.cache)
        pools = pool_texts(config.kv_heads, config.head_size, config.cache)
        self._decode: Any = compile(
            model.decode_step,
            "i32[s=S]",
            [(slots, slots)] * len(config.layers),
            "i32[s=S]",
            platform=platform,
            donate="caches",
            facts=("S >= 1", "T >= 1"),
            precision=precision,
        ).prepare(placed.buffers)
        self._fill: Any = compile(
            fill_slots, *pools, "i32[s=S, m=M]", "i32[s=S]", "i32[s=S]", platform=platform, facts=("P >= 1", "M >= 1")
        )
        self._save: Any = compile(
            save_slots,
            *pools,
            *(f"{slots[: slots.index('[')]}[s=S, g={config.kv_heads}, t=64*M, k={config.head_size}]",) * 2,
            *("i32[w=W]",) * 3,
            platform=platform,
            donate=("pool_keys", "pool_values"),
            facts=("P >= 1", "M >= 1", "W >= 1"),
        )
        self._config = config
        self._platform = platform

    def nbytes(self, sequences: int, positions: int) -> int:
        """Bytes of the slots of a run."""
        return _slots(sequences) * _pages(positions) * PAGE * self._config.cache_bytes

    def fill(self, pools: Pools, table: Array, begin: Array, end: Array) -> Pools:
        """Slots with the content of pages."""
        return [self._fill(keys, values, table, begin, end) for keys, values in pools]

    def decode(self, tokens: Any, caches: Pools, position: Any) -> Decoded:
        made: Decoded = self._decode(tokens, caches, position)
        made.best.copy_to_host()
        return made

    def save(self, pools: Pools, caches: Pools, page: Array, slot: Array, number: Array) -> Pools:
        """Pools with pages written from slots."""
        return [self._save(*pool, *cache, page, slot, number) for pool, cache in zip(pools, caches, strict=True)]

    def close(self) -> None:
        for program in (self._decode, self._fill, self._save):
            program.close()


class DecodedRows:
    """What a step gave, in the device's memory; each result is fetched at most once."""

    def __init__(self, made: Decoded) -> None:
        self._made = made

    @cached_property
    def logits(self) -> Array:
        found: Array = self._made.logits.numpy()
        return found

    @property
    def states(self) -> Array:
        raise AssertionError("a run only generates")

    @property
    def picked(self) -> Any:
        return self._made.best

    @cached_property
    def _best(self) -> list[int]:
        found: list[int] = self._made.best.numpy().tolist()
        return found

    def best(self, row: int) -> int | None:
        found = self._best[row]
        return None if found < 0 else found


class DecodeRun:
    """Steps of a group of sequences, of which `room` more fit. The caller reserves pages for each."""

    def __init__(self, programs: SlotPrograms, sequences: Sequence[Pages], tokens: Sequence[int], pools: Pools) -> None:
        self._programs = programs
        self._sequences = list(sequences)
        longest = max(each.length for each in sequences)
        count, pages = _slots(len(sequences)), _pages(longest + AHEAD)
        self._slots, self.room = count, pages * PAGE - longest
        self._first = [each.length // PAGE for each in sequences]
        self._owners: dict[int, tuple[int, int]] = {}  # page → the slot that it is written from, and its number there
        table = np.zeros((count, pages), np.int32)
        for row, each in zip(table, sequences, strict=False):
            row[: len(each.pages)] = each.pages[:pages]
        begin = _pad([each.gone * PAGE for each in sequences], count)
        end = _pad([each.length for each in sequences], count)
        self._caches = programs.fill(pools, table, begin, end)
        self._next: tuple[Any, Any] = _pad(tokens, count), end

    def fits(self, sequences: int) -> bool:
        return _slots(sequences) == self._slots

    def step(self) -> DecodedRows:
        """Begin the next step: its tokens are those that the last one picked."""
        tokens, position = self._next
        made = self._programs.decode(tokens, self._caches, position)
        self._caches, self._next = made.caches, (made.best, made.position)
        self.room -= 1
        return DecodedRows(made)

    def note_pages(self) -> None:
        """Remember who has which page. A page that was given back since keeps its content until another has it."""
        for slot, (each, first) in enumerate(zip(self._sequences, self._first, strict=True)):
            for number in range(max(first, each.gone), len(each.pages)):
                self._owners[each.pages[number]] = slot, number
            self._first[slot] = max(first, len(each.pages))

    def save(self, pools: Pools) -> Pools:
        """The pools with all pages that the run wrote."""
        count = round_up(max(len(self._owners), 1))
        page, slot, number = (np.full(count, fill, np.int32) for fill in (-1, 0, 0))
        for i, (each, (owner, at)) in enumerate(self._owners.items()):
            page[i], slot[i], number[i] = each, owner, at
        return self._programs.save(pools, self._caches, page, slot, number)


def _pad(numbers: Sequence[int], size: int) -> Array:
    return np.array([*numbers, *[0] * (size - len(numbers))], np.int32)


def _slots(sequences: int) -> int:
    return max(FEWEST, round_up(sequences))


def _pages(positions: int) -> int:
    """Pages of a slot."""
    return round_up(-(-positions // PAGE))
