"""Decoding on XLA: runs of steps over slots, whose tokens stay on the device.

`SlotPrograms` are compiled once per model. A `DecodeRun` copies the pages of a group of sequences into slots, computes
one token of each per step, and writes what is new back to their pages. `engine` begins and ends runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from smelt.buffer import HostBuffer
from smelt.dtype import Array
from smelt.engine.protocol import Platform
from smelt.ir.core import Program
from smelt.llm.batch import Generating, Pools, round_up
from smelt.llm.config import PAGE, Config
from smelt.llm.decoder import Decoded, Decoder
from smelt.llm.draw import Draw, parameters_of, random_numbers
from smelt.llm.paged import pool_texts
from smelt.llm.placed import Placed
from smelt.llm.sample import Sampler
from smelt.llm.slots import fill_slots, save_slots, slot_text
from smelt.tensor.instantiate import instantiate
from smelt.tensor.jit.compile import compile

FEWEST = 8  # slots: XLA's GEMM of eight rows is no slower than that of one
LEAST_ROOM = PAGE  # steps that a run has room for


class SlotPrograms:
    """The programs of a model that decode in slots, with its weights bound."""

    def __init__(self, placed: Placed, config: Config, platform: Platform[Program], precision: str) -> None:
        self._placed, self._config, self._platform, self._precision = placed, config, platform, precision
        slots = slot_text(config.kv_heads, config.head_size, config.cache)
        pools = pool_texts(config.kv_heads, config.head_size, config.cache)
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

    @cached_property
    def greedy(self) -> Any:
        """A greedy step."""
        return self._compile("decode_step")

    @cached_property
    def drawing(self) -> Any:
        """A step that samples tokens."""
        return self._compile("draw_step", Draw("f32[s=S]", "i32[s=S]", "f32[s=S]", "f32[s=S]", "f32[s=S]"))

    def _compile(self, name: str, *more: Any) -> Any:
        config, placed = self._config, self._placed
        model = instantiate(Decoder, placed.shapes, strict=True, config=config, formats=placed.formats)
        slots = slot_text(config.kv_heads, config.head_size, config.cache)
        compiled: Any = compile(
            getattr(model, name),
            "i32[s=S]",
            [(slots, slots)] * len(config.layers),
            "i32[s=S]",
            *more,
            platform=self._platform,
            donate="caches",
            facts=("S >= 1", "T >= 1"),
            precision=self._precision,
        )
        return compiled.prepare(placed.buffers)

    @property
    def vocabulary(self) -> int:
        return self._config.v

    def nbytes(self, sequences: int, positions: int) -> int:
        """Bytes of the slots of a run."""
        return _slots(sequences) * _pages(positions) * PAGE * self._config.cache_bytes

    def fill(self, pools: Pools, table: Array, begin: Array, end: Array) -> Pools:
        """Slots with the content of pages."""
        given = self._put(table, begin, end)
        return [self._fill(keys, values, *given) for keys, values in pools]

    def save(self, pools: Pools, caches: Pools, page: Array, slot: Array, number: Array) -> Pools:
        """Pools with pages written from slots: what fails, fails here, and not for those who read the pages."""
        given = self._put(page, slot, number)
        made = [self._save(*pool, *cache, *given) for pool, cache in zip(pools, caches, strict=True)]
        for keys, values in made:
            keys.wait(), values.wait()
        return made

    def _put(self, *arrays: Array) -> list[Any]:
        """Arrays on the device, for the calls of all layers."""
        return [self._platform.put(HostBuffer.of(each)) for each in arrays]

    def close(self) -> None:
        steps = [self.__dict__[name] for name in ("greedy", "drawing") if name in self.__dict__]  # those that are there
        for program in (*steps, self._fill, self._save):
            program.close()


class DecodedRows:
    """What a step gave, in the device's memory; each result is fetched at most once."""

    is_drawn = True

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

    def __init__(self, programs: SlotPrograms, requests: Sequence[Generating], pools: Pools) -> None:
        self._programs = programs
        self._sequences = sequences = [each.sequence for each in requests if each.sequence is not None]
        longest = max(each.length for each in sequences)
        count, pages = _slots(len(sequences)), _pages(longest + LEAST_ROOM)
        self._slots, self.room = count, pages * PAGE - longest
        self._first = [each.length // PAGE for each in sequences]
        self._owners: dict[int, tuple[int, int]] = {}  # page → the slot that it is written from, and its number there
        self._draws = Draws.of(requests, count, programs.vocabulary)
        table = np.zeros((count, pages), np.int32)
        for row, each in zip(table, sequences, strict=False):
            row[: len(each.pages)] = each.pages[:pages]
        begin = _pad([each.gone * PAGE for each in sequences], count)
        end = _pad([each.length for each in sequences], count)
        self._caches = programs.fill(pools, table, begin, end)
        positions = _pad([each.next_position for each in sequences], count)
        self._next: tuple[Any, Any] = _pad([each.tokens[-1] for each in requests], count), positions

    def fits(self, sequences: int) -> bool:
        return _slots(sequences) == self._slots

    def step(self) -> DecodedRows:
        """Begin the next step: its tokens are those that the last one picked."""
        tokens, position = self._next
        if self._draws is None:
            made = self._programs.greedy(tokens, self._caches, position)
        else:
            made = self._programs.drawing(tokens, self._caches, position, self._draws.next())
        made.best.copy_to_host()
        self._caches, self._next = made.caches, (made.best, made.position)
        self.room -= 1
        return DecodedRows(made)

    def note_pages(self) -> None:
        """Note which sequence owns which page. A page that was freed since keeps its content until it is reused."""
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


@dataclass(slots=True)
class Draws:
    """The sampling parameters of a run's sequences, and their random numbers for each step."""

    samplers: list[Sampler]
    positions: list[int]  # of the next tokens
    asked: Draw

    @staticmethod
    def of(requests: Sequence[Generating], slots: int, vocabulary: int) -> Draws | None:
        """None if all sequences decode greedily."""
        samplers = [each.sampler for each in requests if each.sampler is not None]
        asked = [each.sampling for each in samplers]
        if all(each.temperature == 0 for each in asked):
            return None
        draw = parameters_of(asked, vocabulary, slots)
        return Draws(samplers, [len(each.tokens) for each in requests], draw)

    def next(self) -> Draw:
        draws = [*zip(self.samplers, self.positions, strict=True)]
        self.positions = [at + 1 for at in self.positions]
        return self.asked._replace(uniform=random_numbers(draws, len(self.asked.top_k)))


def _pad(numbers: Sequence[int], size: int) -> Array:
    return np.array([*numbers, *[0] * (size - len(numbers))], np.int32)


def _slots(sequences: int) -> int:
    return max(FEWEST, round_up(sequences))


def _pages(positions: int) -> int:
    """Pages of a slot."""
    return round_up(-(-positions // PAGE))
