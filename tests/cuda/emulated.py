"""CUDA without a GPU, for tests: generated source is compiled as C++ with `emulator.h` and run on the processor.

`EmulatedCuda` is the device `cuda` on such a driver. Memory is the host's, with guards around every allocation.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from smelt.device import registry
from smelt.device.cuda import TARGETS, Cuda, Module, capability_of
from smelt.device.order import Mark, Order, Queues
from smelt.dtype import Array
from smelt.errors import DeviceError
from smelt.target import Target
from tests.cuda.schedule import LazyDriver

HEADER, RACES_HEADER = (Path(__file__).with_name(name) for name in ("emulator.h", "races.h"))
FUNCTION = re.compile(
    r'^extern "C" __global__ void (?:__cluster_dims__\((\d), 1, 1\) )?__launch_bounds__\([\d, ]+\) (\w+)\((.*)\) \{$',
    re.MULTILINE,
)
SHARED = re.compile(r"^ *__shared__ [^;]*;", re.MULTILINE)
WAITS = re.compile(r"__sync|smelt_(shuffle_|mma_|tile|few|stream|block_|round_row|decode|attend)|__shfl")
FLAGS = ("-std=c++17", "-Og", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC")
RACES = ("-fsanitize=thread", "--param=tsan-distinguish-volatile=1", "-g")
GUARD = 64
LINE = 16  # bytes
STATIC = 48 << 10  # bytes of shared memory of a kernel that need not be asked for


def compiler() -> list[str] | None:
    """A C++ compiler: the system's, or zig's."""
    if shutil.which("g++"):
        return ["g++"]
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return None
    return [sys.executable, "-m", "ziglang", "c++"]


def can_find_races() -> bool:
    """Whether there is the compiler whose instrumentation `races.h` takes."""
    return compiler() == ["g++"]


def wants_races() -> bool:
    """Whether all kernels are looked at, not only those of tests that are marked."""
    return os.environ.get("SMELT_CUDA_TESTS") == "races" and can_find_races()


def compile_emulated(text: str, machine: str = "sm_90", *, races: bool = False) -> bytes:
    """The text as a library with one function `emulate_NAME(blocks, threads, arguments)` for each kernel. `races`: it
    finds unordered accesses to the same memory (`races.h`)."""
    shared = "char *const smelt_shared = own_shared();"  # the emulator has it
    text = text.replace("extern __shared__ __align__(1024) char smelt_shared[];", shared)
    text = text.replace("#define SMELT_AWAIT()\n", "#define SMELT_AWAIT() await_launches()\n")
    text = SHARED.sub(count_arrays, text)
    flags: tuple[str, ...] = (*FLAGS, "-DSMELT_WGMMA") if machine == "sm_90" else FLAGS
    calls = []
    pieces = FUNCTION.split(text)
    for cluster, name, parameters, body in zip(*(pieces[i::4] for i in range(1, 5)), strict=True):
        kinds = [each.rpartition(" ")[0].replace("const", "").strip() for each in parameters.split(", ")]
        kinds = ["char *" if "char" in kind else kind for kind in kinds]
        given = ", ".join(f"({kind})a[{i}]" for i, kind in enumerate(kinds))
        calls.append(f"static void unpack_{name}(const long long *a) {{ {name}({given}); }}")
        calls.append(f'extern "C" {{ int arity_{name} = {len(kinds)}; }}')
        waits = "true" if WAITS.search(body) else "false"
        calls.append(
            f'extern "C" int emulate_{name}(int blocks, int threads, const long long *a)'
            f" {{ return emulate(unpack_{name}, {waits}, {cluster or 1}, blocks, threads, a); }}"
        )
    command = compiler()
    assert command is not None
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "kernels.cc"), Path(folder, "kernels.so")
        source.write_text("\n".join([HEADER.read_text(), text, *calls]))
        if races:  # instrumented code, linked without the runtime of a sanitizer
            source, whole = Path(folder, "kernels.o"), source
            watched = (*flags, f"-I{HEADER.parent}", "-DSMELT_RACES", *RACES, "-c")
            subprocess.run([*command, *watched, "-o", source, whole], check=True)
            flags = ("-shared",)
        done = subprocess.run([*command, *flags, "-o", made, source], capture_output=True, text=True, check=False)
        if done.returncode:
            raise DeviceError("the emulator could not compile the program", got=done.stderr[:3000])
        return made.read_bytes()


def count_arrays(found: re.Match[str]) -> str:
    """The declaration of arrays in shared memory, and calls that count them."""
    return " ".join([found[0], *(f"count_static({each}, sizeof {each});" for each in re.findall(r"(\w+)\[", found[0]))])


def locate(report: str, code: bytes) -> str:
    """The report with places in the source instead of addresses, where binutils is installed."""
    places = sorted({*re.findall(r"at ([0-9a-f]+)\)", report)})
    if not places or not shutil.which("addr2line"):
        return report
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        shown = subprocess.run(
            ["addr2line", "-s", "-e", file.name, *places], capture_output=True, text=True, check=True
        )
    lines = dict(zip(places, shown.stdout.split("\n"), strict=False))
    return re.sub(r"at ([0-9a-f]+)\)", lambda found: f"{lines[found[1]]})", report)


class EmulatedDriver:
    """The calls of `device.driver.Driver` and of its one queue. Every write outside of an allocation is found."""

    name, capability, memory, number = "an emulated GPU", (9, 0), (1 << 25, 1 << 25), 0

    def __init__(self, *, races: bool = False) -> None:
        self.races = races  # unordered accesses to memory are errors
        self.stored: dict[int, Any] = {}  # by address: lines that launches wrote which the next one may not wait for
        self.held: dict[int, tuple[Any, int]] = {}
        self.spare: dict[int, list[tuple[int, Any]]] = {}  # by bytes
        self.launches = self.replays = 0
        self.stream, self.streams = 4242, list[tuple[str, int | None]]()  # what was asked of other streams
        self.graph: list[Callable[[], None]] | None = None  # that is recorded
        self.queues = Queues(lambda: self, most=1)
        self.order = Order(self, self.queues)

    def attribute(self, name: str) -> int:
        return {"MULTIPROCESSOR_COUNT": 1, "CLOCK_RATE": 1000, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10}.get(
            name, 48 << 10
        )

    def load(self, code: bytes) -> Any:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(code)
            file.flush()
            found: Any = ctypes.CDLL(file.name)
            found.code = code
            return found

    def function(self, module: Any, name: str) -> Any:
        found = getattr(module, f"emulate_{name}", None)
        if found is not None:
            found.module = module
        return found

    def launch(
        self,
        function: Any,
        blocks: int,
        threads: int,
        arguments: Sequence[int],
        shared: int = 0,
        *,
        overlap: bool = False,
    ) -> None:
        most = TARGETS["sm_{}{}".format(*self.capability)].cache_bytes[0]
        assert 0 <= shared <= most, "more shared memory than a block has"
        assert 1 <= threads <= 1024, "a block has at most 1024 threads"
        assert 1 <= blocks < 1 << 31, "a grid has at most 2**31 - 1 blocks"
        self.launches += 1
        watched = self.races and hasattr(function.module, "begin_watch")
        if watched:
            self.begin_watch(function.module, overlap)
        fixed = function(blocks, threads, (ctypes.c_longlong * len(arguments))(*arguments))
        if watched:
            self.end_watch(function)
        assert fixed <= STATIC, "more static shared memory than a kernel may have"
        assert fixed + shared <= most, "more shared memory than a block has, with what is static"
        for address in self.held:
            self.check(address)

    def begin_watch(self, module: Any, overlap: bool) -> None:
        if not overlap:
            self.stored.clear()
        module.begin_watch(int(overlap))
        for address, (_, count) in self.held.items():
            lines = self.stored.setdefault(address, (ctypes.c_char * (count // LINE + 1))())
            module.watch_memory(ctypes.c_void_p(address), ctypes.c_longlong(count), lines)

    def end_watch(self, function: Any) -> None:
        function.module.end_watch.restype = ctypes.c_char_p
        report = function.module.end_watch().decode()
        assert not report, f"{function.__name__}:\n{locate(report, function.module.code)}"

    def describe(self, function: Any) -> dict[str, Any]:
        return {"name": function.__name__.removeprefix("emulate_")}

    def allocate(self, count: int) -> int:
        if self.spare.get(count):  # as a driver's pool does: freed memory comes again
            address, block = self.spare[count].pop()
        else:
            block = (ctypes.c_char * (count + 2 * GUARD + 256))()
            address = -(-(ctypes.addressof(block) + GUARD) // 256) * 256
        ctypes.memset(address, 0xA5, count)
        for guard in (address - GUARD, address + count):
            ctypes.memset(guard, 0x5A, GUARD)
        self.held[address] = block, count
        return address

    def free(self, address: int, after: Sequence[Mark] = ()) -> None:
        self.check(address)
        self.stored.pop(address, None)
        block, count = self.held.pop(address)
        self.spare.setdefault(count, []).append((address, block))

    def check(self, address: int) -> None:
        for guard in (address - GUARD, address + self.held[address][1]):
            assert ctypes.string_at(guard, GUARD) == b"\x5a" * GUARD, "a kernel wrote outside of its memory"

    def upload(self, address: int, array: Array) -> None:
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def fill(self, address: int, count: int, read: Callable[[Array, int], None]) -> None:
        for start in range(0, count, 100):
            part = np.empty(min(100, count - start), np.uint8)
            read(part, start)
            self.upload(address + start, part)

    def download(self, array: Array, address: int) -> None:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def begin_download(self, array: Array, address: int) -> Callable[[], None]:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return lambda: None

    def move(self, target: int, source: int, count: int) -> None:
        self.stored.clear()  # a copy waits for all launches
        ctypes.memmove(target, source, count)

    def clear(self, address: int, count: int) -> None:
        self.stored.clear()
        ctypes.memset(address, 0, count)

    def mark(self) -> Any: ...

    def after(self, event: Any) -> None: ...

    def hand_over(self, stream: int | None) -> None:
        self.streams.append(("hand over", stream))

    def follow(self, stream: int | None) -> None:
        self.streams.append(("follow", stream))

    def keep_until_done(self, owner: Any) -> None:
        self.streams.append(("keep", None))

    def wait(self) -> None: ...

    def is_done(self, event: list[float]) -> bool:
        return True

    def record(self, work: Callable[[], None]) -> list[Callable[[], None]]:
        graph: list[Callable[[], None]] = []
        self.graph, plain = graph, {name: getattr(self, name) for name in ("launch", "move")}
        for name, call in plain.items():
            setattr(self, name, lambda *given, call=call, **more: graph.append(partial(call, *given, **more)))
        work()
        for name in plain:
            delattr(self, name)
        self.graph = None
        return graph

    def replay(self, graph: list[Callable[[], None]]) -> None:
        self.replays += 1
        for call in graph:
            call()

    def forget(self, graph: list[Callable[[], None]]) -> None:
        graph.clear()

    def event(self) -> list[float]:
        mark = [time.perf_counter()]
        if self.graph is not None:
            self.graph.append(lambda: mark.__setitem__(0, time.perf_counter()))
        return mark

    def seconds(self, first: list[float], second: list[float]) -> float:
        return second[0] - first[0]


class EmulatedCuda(Cuda):
    """The device `cuda`, emulated. `seed`: with several queues that put work off (`schedule`). `races`: unordered
    accesses to memory are errors."""

    def __init__(self, seed: int | None = None, *, races: bool = False) -> None:
        super().__init__()
        self.emulated = EmulatedDriver(races=races)
        self.lazy = None if seed is None else LazyDriver(self.emulated, seed)

    def missing(self) -> str | None:
        return None if compiler() else "no C++ compiler: pip install ziglang"

    missing_driver = missing

    @property
    def driver(self) -> Any:
        return self.lazy or self.emulated

    @property
    def model(self) -> str:
        return self.emulated.name

    def facts(self) -> Mapping[str, Any]:
        return {"compiler": " ".join(compiler() or ())}

    def target(self, name: str | None = None) -> Target:
        return TARGETS["sm_90" if name in (None, "native") else str(name)]

    def compiler(self) -> str:
        return f"emulated {self.emulated.races}" + HEADER.read_text() + RACES_HEADER.read_text()

    def load(self, code: bytes, digest: str) -> Module:
        found = re.search(rb'"machine":"(sm_\d+)"', code)
        capability = capability_of(found[1].decode()) if found else None
        self.emulated.capability = capability or self.emulated.capability  # any chip
        return super().load(code, digest)

    def compile_ptx(self, text: str, machine: str) -> bytes:
        return b""  # it takes time

    def compile_file(self, text: str, machine: str) -> bytes:
        return compile_emulated(text, machine, races=self.emulated.races)


def allow_races(device: Any) -> None:
    """For results that are undefined: any of what threads write may stay."""
    if isinstance(device, EmulatedCuda):
        device.emulated.races = False


@cache
def register(seed: int | None = None) -> EmulatedCuda:
    """Make it the device `cuda` of this process."""
    device = EmulatedCuda(seed, races=wants_races())
    registry.KINDS["cuda"] = lambda: device
    registry.find_device.cache_clear()
    return device


def find_name(name: str) -> str:
    """What `smelt.load(device=…)` is given for a `--device` option: `emulated` is the device `cuda` on the emulator."""
    if name == "emulated":
        register()
        return "cuda"
    return name
