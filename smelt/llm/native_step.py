"""A step in host memory: a compiled program over arrays. `step` makes it of a checkpoint, `bundle` of a bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import TYPE_CHECKING

from smelt.dtype import Array
from smelt.llm.batch import CHUNK, Batch, Generating, HostRows, Pools
from smelt.run.executable import NativeExecutable

if TYPE_CHECKING:
    from smelt.llm.checkpoint import Checkpoint


def bind_step(executable: NativeExecutable, checkpoint: Checkpoint, precision: str, platform: str) -> NativeStep:
    """A step with a checkpoint's weights, packed; the file's own pages are given back."""
    bound = executable.prepare(checkpoint.weights)
    checkpoint.weights.release()
    return NativeStep(bound, precision, platform)


class NativeStep:
    """It calls the program directly: a step of a small model takes less time than checking its arguments."""

    def __init__(
        self, executable: NativeExecutable, precision: str, platform: str, close: Callable[[], object] | None = None
    ) -> None:
        self.executable = executable
        self.precision = precision
        self.platform = platform
        self._close = close or executable.close

    def most(self, pages: int, sequences: int) -> int:
        return CHUNK

    def run(self, batch: Batch, pools: Pools, tokens: None = None) -> tuple[HostRows, Pools]:
        flat = [array for pair in pools for array in pair]
        (page, place), table = batch.page_slots, [batch.table]
        pages = [page]
        if batch.sliding is not None:
            table, pages = [batch.table, batch.sliding], [page, batch.sliding_page]
        places = *table, batch.sequence, batch.position, *pages, place, batch.rows
        logits, states, *after = self.executable(batch.tokens, *flat, *places)
        if not all(map(is_, after, flat)):  # a result in another array than the one that was donated for it
            pools = list(zip(after[::2], after[1::2], strict=True))
        return HostRows(logits, states), pools

    free_memory = None

    has_runs = False

    def begin_run(self, requests: Sequence[Generating], pools: Pools, spare: int | None) -> None:
        return None

    def put(self, array: Array) -> Array:
        return array

    enlarge = None

    def memory(self, tokens: int, rows: int, sequences: int, pages: int) -> int:
        return self.executable.call_bytes({"S": tokens, "R": rows, "B": sequences, "M": pages})

    def close(self) -> None:
        self._close()
