"""NVIDIA GPUs as a Device: CUDA through NVRTC (`cuda_compile`), run by the driver (`cuda_driver`) under a plan on the
host (`gpu_program`).

Code is one container: the plans as JSON, then one cubin for each source file, and for bundles its PTX: drivers compile
it for chips of later generations.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from smelt import abi
from smelt.activity import progress
from smelt.buffer import Buffer, HostBuffer, bytes_text
from smelt.device import cache, cuda_compile, cuda_driver
from smelt.device.api import Arrays, Device, Rates
from smelt.device.cuda_driver import ALWAYS
from smelt.device.cuda_errors import explain_version
from smelt.device.cuda_peak import Meter, tensor_gflops
from smelt.device.entry import Entry
from smelt.device.gpu_buffer import Block, GpuBuffer
from smelt.device.gpu_program import GpuAccount, GpuProgram, Loaded
from smelt.device.host_plan import PlanProgram, list_launches
from smelt.device.runtime import ABI
from smelt.device.step_log import EventLog
from smelt.dtype import Array, dtype
from smelt.errors import DeviceError, UnsupportedError
from smelt.shape import Shape
from smelt.target import FP8, WARPGROUPS, Target
from smelt.weights import Stored

MAGIC = b"smeltgpu"
REMEDY = "compile the model again"
ALIGN = 256
TRANSFER, KERNEL, WAIT = 20.0, 4e-6, 20e-6  # GB/s of a copy from ordinary memory; seconds
# By the compute capability that has them first.
INSTRUCTIONS = (("mma.sync", (8, 0)), ("cp.async", (8, 0)), (FP8, (8, 9)), ("TMA", (9, 0)))
# What kernels use, with the first and the last chip that has it.
FEATURES = ((FP8, (8, 9), (99, 9)), (WARPGROUPS, (9, 0), (9, 0)))
PTX = "ptx"  # a feature of code: PTX for later chips is beside it


def capability_of(machine: str) -> tuple[int, int] | None:
    """sm_90 → (9, 0); None for a name of another kind."""
    found = re.fullmatch(r"sm_([0-9]{1,3})([0-9])", machine)
    return (int(found[1]), int(found[2])) if found else None


def _target(name: str, shared: int, l2: int) -> Target:
    chip = capability_of(name) or (0, 0)
    return Target(
        name,
        vector_bytes=128,  # a warp of f32
        cache_bytes=(shared, l2),
        features=frozenset({name, PTX, *(each for each, first, last in FEATURES if first <= chip <= last)}),
        device="cuda",
        kind="simt",
        language="cuda",
        registers=255,
        has_pairs=True,  # tensor cores
    )


# By compute capability, with the shared memory of a block and the L2 cache of the smallest chip of the kind.
TARGETS = {
    name: _target(name, shared << 10, l2 << 20)
    for name, shared, l2 in (
        ("sm_80", 163, 40),
        ("sm_86", 99, 6),
        ("sm_89", 99, 32),
        ("sm_90", 227, 50),
        ("sm_100", 227, 64),
        ("sm_120", 99, 64),
    )
}


class Module:
    """Loaded code: its plans, and its kernels by name."""

    def __init__(self, driver: Any, code: bytes) -> None:
        try:
            magic, length = struct.unpack_from("<8sQ", code)
            held = json.loads(code[16 : 16 + length])
            lengths = [*held["images"], *held.get("ptx", ())]
            ends = [16 + length, *itertools.accumulate(lengths, initial=16 + length)][1:]
            images = [code[a:b] for a, b in itertools.pairwise(ends)]
            self.programs: dict[str, Any] = held["programs"]
            self.machine = str(held.get("machine", ""))
            steps = [each["steps"] for each in self.programs.values() if "steps" in each]
            needed = max((int(launch["shared"]) for each in steps for launch in list_launches(each)), default=0)
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DeviceError("this is no code for a GPU", got=error, remedy=REMEDY) from error
        if magic != MAGIC or ends[-1] != len(code) or min(lengths, default=0) < 0:
            raise DeviceError("this is no code for a GPU", got=f"{len(code)} bytes", remedy=REMEDY)
        self.driver = driver
        self.plans: dict[str, PlanProgram] = {}
        self._check_shared_memory(needed)
        cubins, ptx = images[: len(held["images"])], images[len(held["images"]) :]
        runs = not self.machine or runs_natively(self.machine, driver.capability)
        if not (runs or ptx):
            got = "sm_{}{}".format(*driver.capability)
            raise DeviceError("the code has no PTX for later chips", expected=self.machine, got=got, remedy=REMEDY)
        self._images = cubins if runs else ptx
        self._modules = self._load()
        self.loaded = Loaded(lambda: partial(self.find, modules=self._load()))

    def _check_shared_memory(self, needed: int) -> None:
        """Chips of one generation differ in it."""
        if needed > ALWAYS and needed > (there := self.driver.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")):
            raise DeviceError(
                "the code takes more shared memory than this GPU has",
                expected=f"at most {there} bytes of a block",
                got=f"{needed}, in code for {self.machine or 'another chip'}",
                remedy=REMEDY,
            )

    def _load(self) -> list[Any]:
        return [self.driver.load(image) for image in self._images]

    def find(self, name: str, modules: Sequence[Any] | None = None) -> Any:
        for module in self._modules if modules is None else modules:
            found = self.driver.function(module, name)
            if found is not None:
                return found
        raise DeviceError("the code lacks a kernel of the program", got=name, remedy=REMEDY)


def runs_natively(machine: str, here: tuple[int, int]) -> bool:
    """Code runs on chips of its generation, its own and later ones."""
    wanted = capability_of(machine)
    return wanted is not None and wanted[0] == here[0] and wanted[1] <= here[1]


class Cuda(Device):
    """One NVIDIA GPU."""

    abi = ABI  # a bundle records one number for all of its code
    has_own_memory = True
    has_tunables = False

    def __init__(self, number: int = 0) -> None:
        self.name = f"cuda:{number}" if number else "cuda"
        self.number = number

    def missing(self) -> str | None:
        """Code that is compiled already needs the driver alone."""
        why = self.missing_driver() or cuda_compile.missing()
        why = why or explain_version(cuda_driver.version(), cuda_compile.version_numbers()[0])
        return why or cuda_compile.missing_chip(cuda_driver.capability(self.number))

    def missing_driver(self) -> str | None:
        """Why no code can run here, with the remedy."""
        return cuda_driver.missing(self.number)

    @property
    def driver(self) -> Any:
        return cuda_driver.open_driver(self.number)

    @property
    def model(self) -> str:
        return self.driver.name if self.missing_driver() is None else "no NVIDIA GPU"

    @property
    def count(self) -> int:
        return cuda_driver.count()

    def facts(self) -> Mapping[str, Any]:
        driver, (major, minor) = self.driver, self.driver.capability
        free, total = driver.memory
        shared = driver.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        rates = self.rates()
        why = cuda_compile.missing()
        return {
            "compute capability": f"{major}.{minor}",
            "multiprocessors": driver.attribute("MULTIPROCESSOR_COUNT"),
            "memory": f"{bytes_text(total)}, {bytes_text(free)} free, {rates.memory:.0f} GB/s",
            "caches": f"{bytes_text(driver.attribute('L2_CACHE_SIZE'))} L2, {bytes_text(shared)} shared by a block",
            "arithmetic": f"{rates.gflops / 1e3:.0f} TFLOP/s of f32, {rates.half_gflops / 1e3:.0f} of bf16",
            "instructions": ", ".join(name for name, since in INSTRUCTIONS if (major, minor) >= since),
            "driver": f"CUDA {cuda_driver.version() // 1000}.{cuda_driver.version() % 1000 // 10}",
            "compiler": cuda_compile.version() if why is None else why,
        }

    def rates(self) -> Rates:
        """By clocks and widths, as in data sheets."""
        driver = self.driver
        lanes = 64 if driver.capability == (8, 0) else 128
        gflops = 2 * lanes * driver.attribute("MULTIPROCESSOR_COUNT") * driver.attribute("CLOCK_RATE") / 1e6
        memory = 2 * driver.attribute("MEMORY_CLOCK_RATE") * driver.attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8 / 1e6
        return Rates(gflops, tensor_gflops(driver) or gflops, memory, TRANSFER, KERNEL, WAIT)

    def stats(self) -> dict[str, float]:
        free, total = self.driver.memory
        return {"bytes_in_use": float(total - free), "bytes_limit": float(total)}

    # ---- targets ----

    @property
    def targets(self) -> Mapping[str, Target]:
        return TARGETS

    def target(self, name: str | None = None) -> Target:
        if name not in (None, "native"):
            return TARGETS[str(name)].replace(device=self.name)
        major, minor = self.driver.capability
        machine = f"sm_{major}{minor}"
        shared = self.driver.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        found = _target(machine, shared, self.driver.attribute("L2_CACHE_SIZE"))
        return found.replace(device=self.name, cores=self.driver.attribute("MULTIPROCESSOR_COUNT"))

    def default_targets(self, *, int8: bool, bf16: bool) -> tuple[str, ...]:
        here = self.target().name
        return (here,) if here in TARGETS else tuple(name for name in TARGETS if not self.lacks(name, ()))[-1:]

    def lacks(self, machine: str, features: Sequence[str]) -> str:
        """Code runs on chips of its generation, its own and later ones; with PTX on those of later generations too."""
        why = self.missing_driver()
        if why is not None:
            return why
        here, wanted = self.driver.capability, capability_of(machine)
        if runs_natively(machine, here) or (PTX in features and wanted is not None and wanted <= here):
            return ""
        return "for {}, this is sm_{}{}".format(machine, *here)

    def preference(self, machine: str, features: Sequence[str]) -> int:
        """Machine code before PTX, then the nearest chip."""
        native = runs_natively(machine, self.driver.capability)
        major, minor = capability_of(machine) or (0, 0)
        return 1000 * native + 10 * major + minor

    # ---- code ----

    def build(self, source: Sequence[str], target: Target) -> Module:
        key = hashlib.blake2b(
            "\0".join((*source, target.name, self.compiler(), *cuda_compile.FLAGS)).encode(), digest_size=20
        ).hexdigest()
        kept = cache.default()
        found = kept.find(key)
        if found is not None:
            return self.load(found.read_bytes(), key)
        code = self._pack(source, target, [])
        folder = cache.private_folder()
        if folder is not None:
            made = folder / f"{key}.part"
            made.write_bytes(code)
            kept.put(key, made)
            made.unlink()
        return self.load(code, key)

    def compiler(self) -> str:
        return cuda_compile.version()

    def compile_file(self, text: str, machine: str) -> bytes:
        return cuda_compile.compile_cuda(text, machine)

    def compile_ptx(self, text: str, machine: str) -> bytes:
        return cuda_compile.compile_ptx(text, machine)

    def compile(self, source: Sequence[str], target: Target) -> bytes:
        """Code for bundles: machine code, and PTX beside it."""
        return self._pack(source, target, self._compile_files(source, target, self.compile_ptx))

    def _pack(self, source: Sequence[str], target: Target, ptx: Sequence[bytes]) -> bytes:
        images = self._compile_files(source, target, self.compile_file)
        held = json.loads(source[-1]) | {"machine": target.name, "images": [len(image) for image in images]}
        held |= {"ptx": [len(each) for each in ptx]} if ptx and all(ptx) else {}
        head = json.dumps(held, separators=(",", ":")).encode()
        return b"".join([struct.pack("<8sQ", MAGIC, len(head)), head, *images, *ptx])

    def _compile_files(
        self, source: Sequence[str], target: Target, compile_file: Callable[[str, str], bytes]
    ) -> list[bytes]:
        from concurrent.futures import ThreadPoolExecutor

        *files, _ = source
        tell = progress.get() or (lambda done, total: None)
        tell(0, len(files))
        with ThreadPoolExecutor(8) as pool:
            images = list(pool.map(lambda text: compile_file(text, target.name), files))
        tell(len(files), len(files))
        return images

    def load(self, code: bytes, digest: str) -> Module:
        return Module(self.driver, code)

    def provenance(self) -> dict[str, str]:
        return {"compiler": self.compiler(), "flags": " ".join(cuda_compile.FLAGS)}

    def program(self, module: Module, entry: Entry, constants: Sequence[bytes | Array]) -> GpuProgram:
        plan = module.programs.get(entry.name)
        if plan is None:
            raise DeviceError("the code lacks functions of the program", got=entry.name, remedy=REMEDY)
        lengths = [len(each) if isinstance(each, bytes) else each.nbytes for each in constants]
        checks = len(entry.sizes), len(entry.data)
        said = abi.describe(entry.symbols, entry.arguments, entry.results, lengths, entry.donated, entry.reused, checks)
        if plan["abi"] != said:
            pairs = zip(plan["abi"].splitlines(), said.splitlines(), strict=False)
            code, here = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
            raise DeviceError("the code does not match its description", expected=code, got=here, remedy=REMEDY)
        module.plans[entry.name] = PlanProgram(plan, module.find)
        return GpuProgram(self.driver, module.plans[entry.name], entry, constants, module.loaded)

    def exported_array(self, module: Module, name: str, count: int) -> Array:
        raise UnsupportedError("kernels of a GPU have no tunables of run time", remedy='device="cpu"')

    def step_log(self, module: Module, name: str) -> EventLog:
        return EventLog(self.driver, module.plans[name])

    def meter(self, *, again: bool = False) -> Meter:
        """Every run measures anew: a GPU's probes take milliseconds."""
        machine, (free, _) = self.target().name, self.driver.memory
        return Meter(self.driver, lambda text: self.compile_file(text, machine), free // 4)

    # ---- memory and threads ----

    def allocate(self, wanted: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> Arrays:
        sizes = [math.prod(shape) * kind.itemsize for kind, shape in wanted]
        starts = [0, *itertools.accumulate(-(-size // ALIGN) * ALIGN for size in sizes)]
        block = Block(self.driver.queues.current, starts[-1])
        shapes = [Shape.of(dtype(kind), shape) for kind, shape in wanted]
        return tuple(GpuBuffer(self.driver, shape, block, at) for shape, at in zip(shapes, starts, strict=False))

    def copy(self, buffer: HostBuffer) -> Buffer:
        return GpuBuffer.of(self.driver, buffer.numpy(), buffer.shape)

    def copy_all(self, arrays: Sequence[Array]) -> Sequence[Buffer]:
        return GpuBuffer.of_all(self.driver, arrays)

    def copy_stored(self, stored: Stored) -> Buffer:
        return GpuBuffer.read(self.driver, stored.shape, stored.read_into)

    def account(self, limit: int) -> GpuAccount:
        return GpuAccount(limit)

    @property
    def default_threads(self) -> int:
        return 0

    def set_threads(self, count: int) -> None:
        """A GPU has its own threads."""
