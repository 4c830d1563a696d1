"""The processor as a Device: C through `device.cpu`, run by the runtime library of `device.runtime`.

`device.cpu` is imported on demand: running compiled code starts faster without it.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt import abi
from smelt.buffer import Buffer, HostBuffer, bytes_text, machine_memory
from smelt.device import host, processor, runtime
from smelt.device.api import Arrays, Device, Meter, Rates
from smelt.device.entry import Entry
from smelt.device.library import load_library
from smelt.dtype import Array
from smelt.errors import DeviceError
from smelt.target import Target

if TYPE_CHECKING:
    from smelt.device.step_log import StepLog

REMEDY = "compile the model again"
PLAIN, VNNI = "plain", "avx512vnni"
NOTABLE = (
    *("sse4_2", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile"),
    *("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)


class Cpu(Device):
    """This machine's processor; its memory is the host's."""

    name = "cpu"
    abi = runtime.ABI
    baseline: str | None = PLAIN

    def missing(self) -> str | None:
        from smelt.device import cpu

        return None if cpu.compiler() else "no C compiler: pip install ziglang"

    @property
    def model(self) -> str:
        return host.processor()

    def facts(self) -> Mapping[str, Any]:
        target = self.target()
        short = {"Data": "d", "Instruction": "i"}
        caches = [f"{bytes_text(size)} L{level}{short.get(kind, '')}" for level, kind, size in host.caches()]
        return {
            "threads": host.cores(),
            "vectors": f"{8 * target.vector_bytes} bits",
            "features": " ".join(name for name in NOTABLE if name in target.features) or "none that kernels use",
            "caches": ", ".join(caches) or "unknown",
            "memory": bytes_text(machine_memory()),
        }

    def rates(self) -> Rates:
        """Two FMAs a cycle on every core at 2.5 GHz, of which half are reached, and a few GB/s for each core."""
        target, cores = self.target(), host.cores()
        gflops = 0.5 * cores * 2.5 * 2 * 2 * target.vector_bytes / 4
        half = gflops * (2 if target.has_pairs else 1)
        return Rates(gflops, half, memory=min(5.0 * cores + 10.0, 200.0), transfer=0.0, kernel=2e-6, wait=0.0)

    # ---- targets ----

    @property
    def targets(self) -> Mapping[str, Target]:
        return processor.TARGETS

    def target(self, name: str | None = None) -> Target:
        found = processor.target(name)
        is_here = found.flags[:1] == ("native",)
        return found.replace(cache_bytes=_caches() or found.cache_bytes) if is_here else found

    def default_targets(self, *, int8: bool, bf16: bool) -> tuple[str, ...]:
        """An int8 program gets VNNI code as well, which shares the packed weights."""
        here = processor.target()
        fitting = [
            name
            for name, each in processor.TARGETS.items()
            if name not in (PLAIN, VNNI) and each.name == here.name and each.features <= here.features
            if not each.has_pairs or (here.has_pairs and bf16)
        ]
        first = [VNNI] if int8 and processor.TARGETS[VNNI].features <= here.features else []
        return (*first, *fitting[:1], PLAIN)

    def lacks(self, machine: str, features: Sequence[str]) -> str:
        here = processor.target()
        if machine != here.name:
            return f"for {machine}"
        return ", ".join(f"needs {name}" for name in features if name not in here.features)

    # ---- code ----

    def build(self, source: Sequence[str], target: Target) -> ctypes.CDLL:
        from smelt.device import cpu

        return cpu.build(source, processor=target)

    def compile(self, source: Sequence[str], target: Target) -> bytes:
        from smelt.device import cpu

        return cpu.compile_bytes(source, processor=target)

    def load(self, code: bytes, digest: str) -> ctypes.CDLL:
        return load_library(code, digest)

    def provenance(self) -> dict[str, str]:
        from smelt.device import cpu

        return {"compiler": _compiler(), "flags": " ".join(cpu.FLAGS)}

    def program(self, module: ctypes.CDLL, entry: Entry, constants: Sequence[bytes | Array]) -> runtime.Program:
        _check_entry(module, entry, constants)
        return runtime.Program(
            module,
            entry.name,
            entry.arguments,
            entry.results,
            entry.symbols,
            constants,
            explain=entry.explain,
            refuse=entry.refuse,
            names=entry.names,
            donated=entry.donated,
            reused=dict(entry.reused),
        )

    def exported_array(self, module: ctypes.CDLL, name: str, count: int) -> Array:
        """The caller keeps the module."""
        return np.ctypeslib.as_array((ctypes.c_longlong * count).in_dll(module, name))

    def step_log(self, module: ctypes.CDLL, name: str) -> StepLog:
        from smelt.device.step_log import ClockedLog

        clock = module[f"{name}_clock"]
        clock.restype = ctypes.c_longlong
        return ClockedLog(clock, lambda array, count: self.exported_array(module, f"{name}_{array}", count))

    def meter(self, *, again: bool = False) -> Meter:
        from smelt.device import peak

        return peak.Meter(runtime.runtime().threads, again=again)

    # ---- memory and threads ----

    def allocate(self, wanted: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> Arrays:
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in wanted]
        starts = [0, *itertools.accumulate(-(-size // runtime.ALIGN) * runtime.ALIGN for size in sizes)]
        block = runtime.runtime().empty((starts[-1],), np.dtype(np.uint8))
        each = zip(wanted, sizes, starts, strict=False)
        return tuple(block[at : at + size].view(dtype).reshape(shape) for (dtype, shape), size, at in each)

    def copy(self, buffer: HostBuffer) -> Buffer:
        return buffer

    def account(self, limit: int) -> runtime.Account:
        return runtime.Account(limit)

    @property
    def default_threads(self) -> int:
        return runtime.default_threads()

    def set_threads(self, count: int) -> None:
        runtime.runtime().set_threads(count)


def _check_entry(library: ctypes.CDLL, entry: Entry, constants: Sequence[bytes | Array]) -> None:
    """Compare the ABI that the code states (`NAME_abi`) with the entry."""
    try:
        stated = ctypes.string_at(_symbol(library, f"{entry.name}_abi")).decode("ascii")
        for part in ("run", "measure"):
            _symbol(library, f"{entry.name}_{part}")
    except (AttributeError, ValueError) as error:  # ValueError: a name that cannot be one
        raise DeviceError("the code lacks functions of the program", got=error, remedy=REMEDY) from error
    stated, _, needs = stated.rpartition(abi.NEEDS)
    lengths = [len(each) if isinstance(each, bytes) else each.nbytes for each in constants]
    checks = len(entry.sizes), len(entry.data)
    said = abi.describe(entry.symbols, entry.arguments, entry.results, lengths, entry.donated, entry.reused, checks)
    if stated != said:
        pairs = zip(stated.splitlines(), said.splitlines(), strict=False)
        code, here = next(pair for pair in pairs if pair[0] != pair[1])
        raise DeviceError("the code does not match its description", expected=code, got=here, remedy=REMEDY)
    known = processor.target("native").features
    if known and not known.issuperset(needs.split()):
        absent = ", ".join(name for name in needs.split() if name not in known)
        raise DeviceError("the code needs CPU features that this processor lacks", expected=absent, remedy=REMEDY)


def _symbol(library: ctypes.CDLL, name: str) -> int:
    """The address of something that a library exports."""
    return ctypes.addressof(ctypes.c_char.in_dll(library, name))


@cache
def _caches() -> tuple[int, ...]:
    """Bytes of this machine's data caches, L1 and L2 at least, or nothing. Only compiling needs them."""
    found = {level: size for level, kind, size in host.caches() if kind != "Instruction" and size > 0}
    return tuple(found[level] for level in sorted(found)) if {1, 2} <= found.keys() else ()


@cache
def _compiler() -> str:
    """The compiler's own name and version."""
    import subprocess

    from smelt.device import cpu

    command = cpu.compiler()
    assert command is not None, "something was compiled"
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", check=False)
    return (done.stdout.strip().splitlines() or [" ".join(command)])[0]
