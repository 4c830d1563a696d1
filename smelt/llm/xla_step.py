"""A step on XLA: prompts are read one sequence at a time, tokens are generated in runs, the rest are steps over pages.

`step` makes it of a checkpoint. All programs share the weights; each is compiled when it is first needed, per size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

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

SHARE = 0.8  # of a device's free memory, that slots may take


def make_xla_step(checkpoint: Checkpoint, platform: Platform[Program], precision: str) -> XlaStep:
    placed = place_weights(checkpoint, platform, precision)
    return XlaStep(replace(checkpoint, weights=placed.shapes, formats=placed.formats), placed, platform, precision)


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
        if sequences > 1:
            return super().most(pages, sequences)
        scores = 4 * self._config.heads * PAGE * max(pages, 1)  # bytes per token; three such arrays at once
        return max(1, min(CHUNK, self._gathered // (3 * scores)))

    def run(self, batch: Batch, pools: Pools, tokens: Any = None) -> tuple[Rows, Pools]:
        if len(batch.table) > 1:
            return super().run(batch, pools, tokens)
        given = batch.pad()
        tokens = given.tokens if tokens is None else tokens
        made = self._read(tokens, pools, given.table[0], given.position, *given.places, given.rows)
        return DeviceRows(made), made.pools

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
        engine = self._on.engine
        return engine.free_memory() if isinstance(engine, PjrtEngine | MeshEngine) else None

    def put(self, array: Array) -> Any:
        """An array where steps compute. Pools of keys and values are split over a mesh by their heads."""
        names = ("p", "g", "k", "o") if array.ndim == 4 else None
        shape = HostBuffer.of(array).shape
        return self._put(HostBuffer(array, Shape.of(shape.dtype, shape.sizes, names), owns=False))

    def close(self) -> None:
        super().close()
        self.slots.close()
        if "_read" in self.__dict__:
            self._read.close()
        self.placed.close()
