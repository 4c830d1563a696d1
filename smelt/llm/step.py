"""The compiled step of a decoder: tokens of any number of sequences in, logits of some rows out, pages written.

One program for prefill, decode and scoring. Native runs it at any size; pjrt compiles one program per size, so that
there every size is rounded up to a power of two and the padding is neither written nor read.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from smelt.buffer import HostBuffer
from smelt.bundle.stored import StoredModel
from smelt.callable_package import call_later
from smelt.device.api import Arrays
from smelt.device.registry import find_device
from smelt.dtype import Array
from smelt.engine import platform as platform_of
from smelt.engine.compile import Build, compile_program, mark_donated
from smelt.engine.native import NativeEngine
from smelt.engine.pjrt import PjrtEngine
from smelt.engine.pjrt_mesh import MeshEngine
from smelt.engine.protocol import Placing, Platform
from smelt.engine.store import store_build, store_program
from smelt.errors import UnsupportedError
from smelt.ir.core import Program
from smelt.llm import step_cache
from smelt.llm.batch import CHUNK, Batch, Decoding, Generating, HostRows, Pools, Rows, Stepping
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.config import PAGE, Config
from smelt.llm.decoder import Decoder, Picked
from smelt.llm.native_step import NativeStep, bind_step
from smelt.llm.paged import pool_texts
from smelt.mesh import Mesh
from smelt.run.executable import NativeExecutable
from smelt.tensor.instantiate import instantiate
from smelt.tensor.jit.compile import compile
from smelt.tensor.jit.executable import Executable

make_xla_step = call_later("smelt.llm.xla_step", "make_xla_step")  # which are made of what is here
make_gpu_step = call_later("smelt.llm.gpu_step", "GpuStep")
GATHERED = {"cpu": 1 << 28}  # bytes of keys and values that an engine without a paged kernel may gather for a step
GATHERED_ON_DEVICE = 1 << 32


def make_step(checkpoint: Checkpoint, device: str, engine: str, precision: str, mesh: Mesh | None = None) -> Stepping:
    """A decoder compiled and with its weights bound, on a platform. One thread calls it."""
    platform = platform_of(device, engine, mesh=mesh)
    if type(platform.engine) is NativeEngine and (key := step_cache.key_of(checkpoint, precision)) is not None:
        build = build_step(checkpoint, precision)
        step_cache.keep(key, partial(store_build, build), checkpoint.name)
        # What was kept holds no program, so that what compiling took is given back.
        executable = step_cache.find(key, partial(store_step, checkpoint, precision)) or build.executable
        del build
        gc.collect()
        return bind_step(executable, checkpoint, precision, str(platform))
    if isinstance(platform.engine, PjrtEngine | MeshEngine) and precision == "fp8":
        raise UnsupportedError(
            "fp8 needs weights that are rounded once",
            expected='engine="native" on one device',
            got=str(platform),
            remedy='engine="native", or precision="bf16"',
        )
    if isinstance(platform.engine, PjrtEngine | MeshEngine) and precision != "q8":
        made: Stepping = make_xla_step(checkpoint, platform, precision)
        return made
    bound = compile_step(checkpoint, platform, precision).prepare(checkpoint.weights)
    checkpoint.weights.release()  # the engine has them packed
    compiled = bound.compiled
    if isinstance(compiled, NativeExecutable):
        if isinstance(platform.engine, Placing):
            on_gpu: Stepping = make_gpu_step(bound, checkpoint.config, precision)
            return on_gpu
        return NativeStep(compiled, precision, str(platform), bound.close)
    return Step(bound, checkpoint.config, precision)


def build_step(checkpoint: Checkpoint, precision: str) -> Build:
    """The step for this processor, without its weights."""
    program, target = step_program(checkpoint, precision), find_device().target()
    return compile_program(program, target, store=partial(store_program, program, target))


def step_program(checkpoint: Checkpoint, precision: str) -> Program:
    """The step before it is lowered for a target."""
    traced = compile_step(checkpoint, platform_of(engine="reference"), precision)
    return mark_donated(traced.program, traced.donated)


def store_step(checkpoint: Checkpoint, precision: str, bound: Arrays | None, targets: Sequence[str]) -> StoredModel:
    """The bundle of a step that was compiled for this processor by another process."""
    return store_program(step_program(checkpoint, precision), find_device().target(), bound, targets)


def compile_step(
    checkpoint: Checkpoint, platform: Platform[Program], precision: str, of_one: bool = False
) -> Executable[..., Any]:
    """The step without its weights; `of_one` for tokens of one sequence."""
    config = checkpoint.config
    model = instantiate(Decoder, checkpoint.weights, strict=True, config=config, formats=checkpoint.formats)
    step: Any = model.pick_step if isinstance(platform.engine, Placing) else model.step
    tables, sliding = ["i32[m=M]"] if of_one else ["i32[b=B, m=M]"], config.sliding is not None
    if sliding:
        assert not of_one
        assert not isinstance(platform.engine, Placing)
        step, tables = model.sliding_step, tables * 2
    kinds = ["Q" if config.is_sliding(i) else "P" for i in range(len(config.layers))]
    return compile(
        model.read_step if of_one else step,
        "i32[s=S]",
        [pool_texts(config.kv_heads, config.head_size, config.cache, kind) for kind in kinds],
        *tables,
        *(() if of_one else ("i32[s=S]",)),
        *("i32[s=S]",) * (4 if sliding else 3),
        "i32[r=R]",
        platform=platform,
        donate="pools",
        facts=(
            *sorted({f"{kind} >= 1" for kind in kinds}),
            *("M >= 1", "S >= 1", "R >= 1"),
            *(() if of_one else ("B >= 1",)),
        ),
        precision=precision,
    )


class DeviceRows:
    """What a step gave, in the device's memory; each result is fetched at most once. Padded rows stay at the end."""

    def __init__(self, made: Picked, is_drawn: bool = False) -> None:
        self.is_drawn = is_drawn
        self._made = made
        self._picked: list[int] | None = None

    @cached_property
    def logits(self) -> Array:
        found: Array = self._made.logits.numpy()
        return found

    @cached_property
    def states(self) -> Array:
        found: Array = self._made.states.numpy()
        return found

    @property
    def picked(self) -> Any:
        return self._made.best

    def best(self, row: int) -> int | None:
        if self._picked is None:
            self._picked = self._made.best.numpy().tolist()
        best = self._picked[row]
        return best if best >= 0 else None


class Step:
    """A step on an engine that has its own memory, or interprets."""

    def __init__(self, bound: Executable[..., Any], config: Config, precision: str) -> None:
        self.precision = precision
        self.platform = str(bound.platform)
        self._config = config
        self._bound: Any = bound
        self._by_size = bound.platform.engine.name == "pjrt"
        self._paged = bound.platform.engine.name == "native"
        self._picks = isinstance(bound.platform.engine, Placing)  # results stay in its memory
        self._put = bound.platform.put
        self._gathered = GATHERED.get(bound.platform.device.partition(":")[0], GATHERED_ON_DEVICE)

    def most(self, pages: int, sequences: int) -> int:
        """Tokens that a step may read, of a number of sequences with up to a number of pages each."""
        if self._paged:
            return CHUNK
        config = self._config
        each = 8 * PAGE * max(pages, 1) * config.kv_heads * config.head_size  # keys and values, gathered per token
        return max(1, min(CHUNK, self._gathered // each))

    def run(self, batch: Batch, pools: Pools, tokens: Any = None) -> tuple[Rows, Pools]:
        given = batch.pad() if self._by_size else batch
        tokens = given.tokens if tokens is None else tokens
        made = self._bound(tokens, pools, given.table, given.sequence, given.position, *given.page_slots, given.rows)
        rows = DeviceRows(made) if self._picks else HostRows(made.logits.numpy(), made.states.numpy())
        return rows, made.pools

    has_runs = False

    def begin_run(self, requests: Sequence[Generating], pools: Pools, spare: int | None) -> Decoding | None:
        return None

    @property
    def free_memory(self) -> int | None:
        return None

    def put(self, array: Array) -> Any:
        """An array where steps compute."""
        return self._put(HostBuffer.of(array))

    @property
    def enlarge(self) -> Callable[[Any, int], Any] | None:
        return None

    def memory(self, tokens: int, rows: int, sequences: int, pages: int) -> int:
        """Bytes that a step needs besides weights and pools."""
        compiled = self._bound.compiled
        sizes = {"S": tokens, "R": rows, "B": sequences, "M": pages}
        return compiled.call_bytes(sizes) if isinstance(compiled, NativeExecutable) else 0

    def close(self) -> None:
        self._bound.close()
