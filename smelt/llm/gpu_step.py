"""A step of the native engine on a GPU: one small copy to the device, one graph, and the picked tokens back.

`step` makes it of a checkpoint. It calls the program directly, as `native_step` does in host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.device.gpu_buffer import GpuBuffer
from smelt.llm.batch import Batch, Pools, Rows
from smelt.llm.config import Config
from smelt.llm.decoder import Picked
from smelt.llm.step import DeviceRows, Step
from smelt.run.executable import NativeExecutable
from smelt.tensor.jit.executable import Executable


class GpuStep(Step):
    """A step whose results stay in the device's memory."""

    def __init__(self, bound: Executable[..., Any], config: Config, precision: str) -> None:
        super().__init__(bound, config, precision)
        assert isinstance(bound.compiled, NativeExecutable)
        self._program, self._device = bound.compiled, bound.compiled.device

    def run(self, batch: Batch, pools: Pools, tokens: Any = None) -> tuple[Rows, Pools]:
        """The tokens' copy to the host begins with the step: they are read while the next one runs. Tokens that
        another step picked are copied to where others would be, so that both kinds of steps replay the same graphs."""
        given = batch.pad_pages()
        arrays = given.tokens, given.table, given.sequence, given.position, *given.page_slots, given.rows
        read: Any
        read, *inputs = self._device.copy_all(arrays)
        if tokens is not None:
            read.copy_from(tokens)
        best, logits, states, *after = self._program(read, *[each for pair in pools for each in pair], *inputs)
        best.copy_to_host()
        pools = list(zip(after[::2], after[1::2], strict=True))
        return DeviceRows(Picked(best, logits, states, pools)), pools

    @property
    def enlarge(self) -> Callable[[Any, int], Any]:
        return GpuBuffer.enlarge
