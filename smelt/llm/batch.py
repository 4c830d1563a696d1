"""One step of a decoder: its inputs (`Batch`) and what runs it (`Stepping`). Nothing here compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from smelt.dtype import Array
from smelt.llm.config import LONG, PAGE
from smelt.llm.pages import Sequence as Pages
from smelt.llm.sample import Sampler

CHUNK = 512  # most tokens per step
FEW = 64  # tokens, for which lists take less time than arrays

Drawn = tuple[Sampler, int]  # what chooses a token, and the token's position
Pools = list[tuple[Any, Any]]  # keys [p, g, k, o] and values [p, g, o, k] of each layer


class Rows(Protocol):
    """Results of a step for the requested rows. Device memory is read on first access."""

    @property
    def logits(self) -> Array:
        """f32[r, v]."""
        ...

    @property
    def states(self) -> Array:
        """Of the last layer, f32[r, d]."""
        ...

    @property
    def is_drawn(self) -> bool:
        """Whether the picked tokens of the batch's `draws` were sampled on the device; else all are the most likely
        ones."""
        ...

    def best(self, row: int) -> int | None:
        """The token that the step picked for a row, if its logits are finite."""
        ...

    @property
    def picked(self) -> Any:
        """The picked tokens, i32[r], in memory that the next step reads; None: the step picks none."""
        ...


@dataclass(frozen=True, slots=True)
class HostRows:
    """Rows in host memory, without picked tokens."""

    logits: Array
    states: Array
    picked: None = None
    is_drawn: bool = False

    def best(self, row: int) -> int | None:
        return None


class Generating(Protocol):
    """A decoding request: its tokens so far, its sampler, and its pages."""

    @property
    def tokens(self) -> list[int]: ...

    @property
    def sampler(self) -> Sampler | None: ...

    @property
    def sequence(self) -> Pages | None: ...


class Decoding(Protocol):
    """A run of decode steps for a fixed group of sequences. Each step's tokens stay on the device for the next one."""

    @property
    def room(self) -> int:
        """Steps that fit."""
        ...

    def fits(self, sequences: int) -> bool:
        """Whether the slots fit this many sequences well: a new run would be no faster."""
        ...

    def step(self) -> Rows:
        """Start a step; its rows are the sequences."""
        ...

    def note_pages(self) -> None:
        """Update the page tables; called after pages were reserved."""
        ...

    def save(self, pools: Pools) -> Pools:
        """End the run: the pools with the new keys and values. The given pools are consumed."""
        ...


class Stepping(Protocol):
    """A decoder with its weights bound. One thread calls it."""

    @property
    def precision(self) -> str: ...

    @property
    def platform(self) -> str: ...

    def most(self, pages: int, sequences: int) -> int:
        """Tokens that a step may read, of a number of sequences with up to a number of pages each."""
        ...

    def run(self, batch: Batch, pools: Pools, tokens: Any = None) -> tuple[Rows, Pools]:
        """What the batch's rows give, and the pools with its keys and values. The given pools are gone. `tokens`, those
        that another step picked, stand for the batch's."""
        ...

    @property
    def has_runs(self) -> bool:
        """Whether `begin_run` may give one."""
        ...

    def begin_run(self, requests: Sequence[Generating], pools: Pools, spare: int | None) -> Decoding | None:
        """A run of steps of requests from their last tokens on, within a number of bytes where that is limited; None
        where steps read pages."""
        ...

    @property
    def free_memory(self) -> int | None:
        """Bytes that a device with its own memory has left; None in host memory."""
        ...

    def put(self, array: Array) -> Any:
        """An array where steps compute."""
        ...

    @property
    def enlarge(self) -> Callable[[Any, int], Any] | None:
        """What copies an array that steps compute with to one of more rows, with zeros behind them, where that is not
        in host memory; None: `put` does."""
        ...

    def memory(self, tokens: int, rows: int, sequences: int, pages: int) -> int:
        """Bytes that a step needs besides weights and pools."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes, as i32 arrays: `tokens`, their `sequence` (a row of `table`) and `position` [s]; the
    pages of each sequence, `table` [b, m]; and the `rows` of tokens whose logits are wanted [r]. Positions of sequences
    with the frequencies `Rope.long` are greater by LONG."""

    tokens: Array
    sequence: Array
    position: Array
    table: Array
    rows: Array
    sliding: Array | None = None  # the table of layers with a window, where they have pages of their own [b, m]
    draws: tuple[Drawn | None, ...] = ()  # of each row whose token a device may draw; () where there is none

    @staticmethod
    def of(
        parts: list[tuple[list[int], int, list[int], list[int]]], sliding: Sequence[list[int]] | None = None
    ) -> Batch:
        """From (tokens, position of the first, pages, rows within the part) of each sequence, and the pages of each in
        layers with a window."""
        tokens: list[int] = []
        sequence: list[int] = []
        position: list[int] = []
        rows: list[int] = []
        most = max(len(pages) for _, _, pages, _ in parts)
        table = [pages + [0] * (most - len(pages)) for _, _, pages, _ in parts]
        for i, (new, at, _, wanted) in enumerate(parts):
            rows += [len(tokens) + row for row in wanted]
            tokens += new
            sequence += [i] * len(new)
            position += range(at, at + len(new))
        arrays: Any = [np.array(each, np.int32) for each in (tokens, sequence, position, table, rows)]
        found = Batch(*arrays)
        if sliding is None:
            return found
        return replace(found, sliding=np.array([pages + [0] * (most - len(pages)) for pages in sliding], np.int32))

    def advance(self) -> Batch:
        """The batch of the next tokens of the same sequences, in the same pages; the tokens themselves are unknown."""
        draws = tuple(None if each is None else (each[0], each[1] + 1) for each in self.draws)
        return replace(self, position=self.position + np.int32(1), draws=draws)

    @property
    def page_slots(self) -> tuple[Array, Array]:
        """The page that each token's keys and values go to, and the place in it; tokens that are not there go to
        page -1."""
        if len(self.position) <= FEW:
            pages = self.table.tolist()
            near = [each - LONG if each >= LONG else each for each in self.position.tolist()]
            sequences = self.sequence.tolist()
            held = [-1 if at < 0 else pages[i][at // PAGE] for i, at in zip(sequences, near, strict=True)]
            return np.array(held, np.int32), np.array([at % PAGE for at in near], np.int32)
        position = np.where(self.position >= LONG, self.position - np.int32(LONG), self.position)
        page, place = position // PAGE, position % PAGE
        found: Array = self.table[self.sequence, page]
        if page.min(initial=0) < 0:
            found = np.where(page < 0, np.int32(-1), found)
        return found, place

    @property
    def sliding_page(self) -> Array:
        """The page that each token's keys and values go to in layers with a window."""
        assert self.sliding is not None
        return replace(self, table=self.sliding).page_slots[0]

    def select(self, sequences: Array) -> Batch:
        """The batch of some of its sequences; their rows stay in order."""
        chosen = np.isin(self.sequence, sequences)
        number = np.cumsum(chosen) - 1  # of each token, in the new batch
        rows = self.rows[chosen[self.rows]]
        return Batch(
            self.tokens[chosen],
            np.searchsorted(sequences, self.sequence[chosen]).astype(np.int32),
            self.position[chosen],
            self.table[sequences],
            number[rows].astype(np.int32),
        )

    def pad_pages(self) -> Batch:
        """The number of pages rounded up to a power of two: few sizes come while sequences grow. No token sees the
        positions of the pages that stand for those that are not there."""
        table = self.table
        wide = np.zeros((len(table), round_up(table.shape[1])), np.int32)
        wide[:, : table.shape[1]] = table
        return replace(self, table=wide)

    def pad(self) -> Batch:
        """Every size rounded up to a power of two."""
        tokens, rows = round_up(len(self.tokens)), round_up(len(self.rows))
        sequences, pages = (round_up(size) for size in self.table.shape)
        table = np.zeros((sequences, pages), np.int32)
        table[: self.table.shape[0], : self.table.shape[1]] = self.table
        return Batch(
            _pad(self.tokens, tokens, 0),
            _pad(self.sequence, tokens, 0),
            _pad(self.position, tokens, -1),
            table,
            _pad(self.rows, rows, 0),
        )


def round_up(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def _pad(array: Array, size: int, value: int) -> Array:
    return np.concatenate([array, np.full(size - len(array), value, array.dtype)])
