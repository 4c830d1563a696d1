"""A step on XLA: prompts are prefilled one sequence at a time, tokens decode in runs, the rest are steps over pages.

`step` makes it of a checkpoint. All programs share the weights; each is compiled when it is first needed, per size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from smelt.buffer import HostBuffer
from smelt.device.pjrt import NO_MEMORY
from smelt.dtype import Array
from smelt.engine.pjrt import PjrtEngine
from smelt.engine.pjrt_mesh import MeshEngine
from smelt.engine.protocol import Platform
from smelt.errors import RunError
from smelt.ir.core import Program
from smelt.llm.batch import CHUNK, Batch, Generating, Pools, Rows
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.config import PAGE
from smelt.llm.decode import LEAST_ROOM, DecodeRun, SlotPrograms
from smelt.llm.placed import Placed, place_weights
from smelt.llm.step import DeviceRows, Step, compile_step
from smelt.shape import Shape

POOL = ("p", "g", "k", "o")  # axes of keys; only g is split
SHARE = 0.8  # of a device's free memory, that slots may take


def make_xla_step(checkpoint: Checkpoint, platform: Platform[Program], precision: str) -> XlaStep:
    placed = place_weights(checkpoint, platform, precision)
    return XlaStep(replace(checkpoint, weights=placed.shapes, formats=placed.formats), placed, platform, precision)


class JoinedRows:
    """What several programs gave for the rows of one step: `owners` says which one has a row."""

    is_drawn = False
    picked = None  # no step follows one that reads prompts

    def __init__(self, made: Sequence[tuple[Rows, int]], owners: Array) -> None:
        self._made, self._owners = made, owners

    @cached_property
    def logits(self) -> Array:
        return self._join([rows.logits[:count] for rows, count in self._made])

    @cached_property
    def states(self) -> Array:
        return self._join([rows.states[:count] for rows, count in self._made])

    def best(self, row: int) -> int | None:
        """The likeliest token of a row; the error of any of the programs where one failed."""
        for rows, _ in self._made:
            rows.best(0)
        owner = self._owners[row]
        found: int | None = self._made[owner][0].best(int((self._owners[:row] == owner).sum()))
        return found

    def _join(self, parts: Sequence[Array]) -> Array:
        found = np.empty((len(self._owners), *parts[0].shape[1:]), parts[0].dtype)
        for number, part in enumerate(parts):
            found[self._owners == number] = part
        return found


class XlaStep(Step):
    """Programs over weights that are on a device; `checkpoint` says how they are stored there."""

    def __init__(self, checkpoint: Checkpoint, placed: Placed, platform: Platform[Program], precision: str) -> None:
        super().__init__(
            compile_step(checkpoint, platform, precision).prepare(placed.buffers), checkpoint.config, precision
        )
        self.slots = SlotPrograms(placed, checkpoint.config, platform, precision)
        self.placed = placed
        self._checkpoint, self._on = checkpoint, platform

    @cached_property
    def _read(self) -> Any:
        """The step of one sequence."""
        compiled: Any = compile_step(self._checkpoint, self._on, self.precision, of_one=True)
        return compiled.prepare(self.placed.buffers)

    def most(self, pages: int, sequences: int) -> int:
        together = super().most(pages, sequences)
        if sequences > 1 and together < sequences:  # those that generate do not fit into one step
            return together
        scores = 4 * self._config.heads * PAGE * max(pages, 1)  # bytes per token; three such arrays at once
        return max(1, min(CHUNK, self._gathered // (3 * scores)))

    def run(self, batch: Batch, pools: Pools, tokens: Any = None) -> tuple[Rows, Pools]:
        if len(batch.table) > 1:
            counts = np.bincount(batch.sequence, minlength=len(batch.table))
            if tokens is None and (counts > 1).any():
                return self._run_apart(batch, pools, counts)
            return super().run(batch, pools, tokens)
        given = batch.pad()
        tokens = given.tokens if tokens is None else tokens
        made = self._read(tokens, pools, given.table[0], given.position, *given.page_slots, given.rows)
        return DeviceRows(made), made.pools

    def _run_apart(self, batch: Batch, pools: Pools, counts: Array) -> tuple[Rows, Pools]:
        """Prompts one by one, each of which gathers its pages once, and the sequences that generate together: a step of
        all of them would gather pages for every token."""
        groups = [np.flatnonzero(counts == 1), *np.flatnonzero(counts > 1)[:, None]]
        made, owners = [], np.empty(len(batch.rows), np.int64)
        for number, group in enumerate(each for each in groups if len(each)):
            part = batch.select(group)
            is_theirs = np.isin(batch.sequence[batch.rows], group)
            if not len(part.rows):  # a program has at least one row
                part = replace(part, rows=np.zeros(1, np.int32))
            found, pools = self.run(part, pools)
            made.append((found, int(is_theirs.sum())))
            owners[is_theirs] = number
        return JoinedRows(made, owners), pools

    has_runs = True

    def begin_run(self, requests: Sequence[Generating], pools: Pools, spare: int | None) -> DecodeRun | None:
        """A run in slots, where they fit into the device's memory."""
        free = self.free_memory
        room = self._gathered if free is None else int(SHARE * free)
        needed = self.slots.nbytes(len(requests), max(len(each.tokens) for each in requests) + LEAST_ROOM)
        if needed > (room if spare is None else min(room, spare)):
            return None
        try:
            return DecodeRun(self.slots, requests, pools)
        except RunError as error:  # memory in pieces
            if NO_MEMORY not in error.message:
                raise
            return None

    @property
    def free_memory(self) -> int | None:
        """What caches may take. On a mesh that are all devices together only where each has another part of them."""
        engine = self._on.engine
        free = engine.free_memory() if isinstance(engine, PjrtEngine | MeshEngine) else None
        if free is None or not isinstance(engine, MeshEngine):
            return free
        return free * engine.mesh.count_parts(engine.mesh.partition(POOL)) // engine.mesh.count

    def put(self, array: Array) -> Any:
        """An array where steps compute. Pools of keys and values are split over a mesh by their heads."""
        names = POOL if array.ndim == 4 else None
        shape = HostBuffer.of(array).shape
        return self._put(HostBuffer(array, Shape.of(shape.dtype, shape.sizes, names), owns=False))

    def close(self) -> None:
        super().close()
        self.slots.close()
        if "_read" in self.__dict__:
            self._read.close()
        self.placed.close()
