"""A step of the native engine on a GPU: one small copy to the device, one graph, and the picked tokens back.

`step` makes it of a checkpoint. It calls the program directly, as `native_step` does in host memory. Tokens that
requests sample are drawn by a second program behind it, from the logits on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.device.gpu_buffer import GpuBuffer
from smelt.device.gpu_program import GpuBound
from smelt.llm.batch import Batch, Drawn, Pools, Rows
from smelt.llm.config import Config
from smelt.llm.decoder import Picked
from smelt.llm.draw import Draw, draw_tokens, parameters_of, random_numbers
from smelt.llm.step import DeviceRows, Step
from smelt.run.executable import NativeExecutable
from smelt.tensor.jit.compile import compile
from smelt.tensor.jit.executable import Executable

DRAW_BYTES = 16  # that drawing takes for each logit, at most


class GpuStep(Step):
    """A step whose results stay in the device's memory."""

    def __init__(self, bound: Executable[..., Any], config: Config, precision: str) -> None:
        super().__init__(bound, config, precision)
        assert isinstance(bound.compiled, NativeExecutable)
        self._program, self._device = bound.compiled, bound.compiled.device
        self._drawing: dict[tuple[bool, bool], Executable[..., Any]] = {}

    def run(self, batch: Batch, pools: Pools, tokens: Any = None) -> tuple[Rows, Pools]:
        """The tokens' copy to the host begins with the step: they are read while the next one runs. Tokens that
        another step picked are copied to where others would be, so that both kinds of steps replay the same graphs."""
        given = batch.pad_pages()
        asked = self._ask(given.draws) if given.draws else None
        arrays = [given.table, given.sequence, given.position, *given.page_slots, given.rows]
        wanted = [each for each in asked or () if each is not None]
        read: Any
        read, *placed = self._device.copy_all([given.tokens, *arrays, *wanted])
        if tokens is not None:
            read.copy_from(tokens)
        flat = [each for pair in pools for each in pair]
        best, logits, states, *after = self._program(read, *flat, *placed[: len(arrays)])
        if asked is not None:
            (best,) = self._find_drawing(asked)(logits, *placed[len(arrays) :], best)
        best.copy_to_host()
        pools = list(zip(after[::2], after[1::2], strict=True))
        return DeviceRows(Picked(best, logits, states, pools), asked is not None), pools

    def _ask(self, draws: Sequence[Drawn | None]) -> Draw:
        """The parameters of each row; limits that no row has are left out."""
        vocabulary, count = self._config.v, len(draws)
        asked = parameters_of([None if each is None else each[0].sampling for each in draws], vocabulary, count)
        return asked._replace(
            top_k=asked.top_k if (asked.top_k < vocabulary).any() else None,
            top_p=asked.top_p if (asked.top_p < 1).any() else None,
            uniform=random_numbers(draws, count),
        )

    def _find_drawing(self, asked: Draw) -> Any:
        """The program that draws tokens, compiled when it is first needed. A limit that no row has costs nothing; rows
        without it draw the same tokens in either program."""
        kind = asked.top_k is not None, asked.top_p is not None
        if kind not in self._drawing:
            number = "f32[s=S]"
            texts = Draw(number, "i32[s=S]" if kind[0] else None, number if kind[1] else None, number, number)
            logits = f"f32[s=S, v={self._config.v}]"
            platform = self._bound.platform
            made = compile(draw_tokens, logits, texts, "i32[s=S]", platform=platform, facts=("S >= 1",))
            assert isinstance(made.compiled, NativeExecutable)
            drawing, step = made.compiled.bound, self._program.bound
            assert isinstance(drawing, GpuBound)
            assert isinstance(step, GpuBound)
            drawing.share_queue(step)
            self._drawing[kind] = made
        return self._drawing[kind].compiled

    def memory(self, tokens: int, rows: int, sequences: int, pages: int) -> int:
        return super().memory(tokens, rows, sequences, pages) + DRAW_BYTES * rows * self._config.v

    @property
    def enlarge(self) -> Callable[[Any, int], Any]:
        return GpuBuffer.enlarge

    def close(self) -> None:
        super().close()
        for each in self._drawing.values():
            each.close()
