"""The C runtime from Python: one thread pool per process, and compiled programs as functions over arrays.

In: a compiled program, its argument and result shapes, arrays. Out: results as NumPy arrays. The native engine calls
it. The library (`smelt/runtime`) is compiled once per machine. Common calls run in C; the others take `_slow`.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from smelt.buffer import bytes_text, check_array, machine_memory
from smelt.device.api import Memory
from smelt.device.entry import Entry, solve_symbols
from smelt.device.host import cores
from smelt.device.processor import target
from smelt.dtype import Array
from smelt.errors import (
    CancelledError,
    DeviceError,
    MemoryLimitError,
    RunError,
    ShapeError,
    SizeError,
    SmeltError,
    TimedOutError,
)
from smelt.shape import Shape
from smelt.size import Poly, Size
from smelt.size import symbols as symbols_of
from smelt.stop import Stop, on_cancel
from smelt.target import Target

SOURCES = (
    *("smelt.h", "runtime.h", "system.c", "features.c", "memory.c", "heap.c", "watch.c", "pool.c"),
    *("executable.c", "python.c", "checksum.c"),
)
FEATURES = (  # in the order of the bits of smelt_features, with the names of /proc/cpuinfo
    *("fma", "f16c", "avx2", "avx512f", "avx512bw", "avx512vl"),
    *("avx512_vnni", "avx512_bf16", "avx512dq", "avx_vnni"),
    *("asimddp", "i8mm", "riscv_v"),
)
ABI = 2  # of compiled programs: `version` in smelt.h
GLIBC = "2.17"  # the oldest glibc that a compiled library runs with
MAX_THREADS = 256
SPIN = 30_000  # nanoseconds that an idle worker spins before it sleeps
ALIGN = 64
CANCELLED, NO_MEMORY, TIMED_OUT, OVER_LIMIT = -1, -2, -3, -5
SMALLER = "close models that are not in use, or use smaller sizes"  # the remedy for out of memory
QUICK = 5  # the place in a layout that says whether C can solve the symbols
_SMALL = 1 << 20  # bound on scale and offset of a size, so that the C code cannot overflow

Explain: TypeAlias = Callable[[int, tuple[int, ...]], SmeltError]
Refuse: TypeAlias = Callable[[int, Mapping[str, int]], SmeltError]


# ------------------------------------------------------------------------------------------------ the library


class Runtime:
    """The runtime library of this process. `runtime()` returns it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.released = library  # calls release the GIL
        self.held = ctypes.PyDLL(self.released._name)
        _declare(self.released, self.held)
        self.held.smelt_set_machine_memory(machine_memory())
        self.set_threads(default_threads())
        on_cancel(self.released.smelt_alarm)

    @property
    def threads(self) -> int:
        """Threads of a parallel step, the caller included."""
        return _Head.in_dll(self.held, "smelt_runtime").threads

    def set_threads(self, count: int) -> None:
        """Set the number of threads. Waits for a running parallel step."""
        if not 1 <= count <= MAX_THREADS:
            raise DeviceError(
                "the number of threads is out of range",
                expected=f"1 to {MAX_THREADS}",
                got=count,
                remedy="SMELT_THREADS or set_threads with one of these",
            )
        spin = SPIN if count <= cores() else 0  # spinning on a shared core would delay the thread that has work
        failed = self.released.smelt_set_threads(count, spin)
        if failed:
            raise DeviceError(
                "the number of threads cannot change here",
                got="a call inside a signal handler that interrupted a run",
                remedy="set it outside signal handlers",
            )

    @property
    def helpers(self) -> int:
        """Threads of the pool that were started: 0 before the first parallel step."""
        return int(self.held.smelt_started())

    @property
    def features(self) -> frozenset[str]:
        """CPU features that the processor has and the operating system enables."""
        bits = self.held.smelt_features()
        found = frozenset(name for i, name in enumerate(FEATURES) if bits >> i & 1)
        return found if "fma" in found else found | target().features

    @property
    def allocations(self) -> int:
        """Memory blocks allocated since the start. Calls with repeated sizes allocate none."""
        return int(self.held.smelt_allocations())

    @property
    def allocated(self) -> int:
        """Bytes allocated by the library now."""
        return int(self.held.smelt_allocated())

    def empty(self, sizes: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array, aligned to 64 bytes, in huge pages if it is large. For long-lived arrays."""
        nbytes = math.prod(sizes) * dtype.itemsize
        if not nbytes:
            return np.empty(sizes, dtype)
        address = self.held.smelt_allocate(nbytes)
        if not address:
            raise RunError("no memory left", got=f"{nbytes} bytes requested", remedy=SMALLER)
        block = (ctypes.c_char * nbytes).from_address(address)
        weakref.finalize(block, self.held.smelt_release, address, nbytes).atexit = False
        array: Array = np.frombuffer(memoryview(block), np.uint8).view(dtype).reshape(sizes)
        return array


class _Head(ctypes.Structure):
    """The first fields of the C structure Runtime."""

    _fields_ = (("version", ctypes.c_longlong), ("threads", ctypes.c_longlong))
    version: int
    threads: int


_here: list[Runtime] = []  # empty until the first use, then one
_making = threading.Lock()


def runtime(shipped: Callable[[], ctypes.CDLL] | None = None) -> Runtime:
    """The runtime library of this process: the loaded one, else the one shipped in a bundle, else compiled now."""
    with _making:
        if not _here:
            _here.append(Runtime(shipped() if shipped else _build()))
        return _here[0]


def _build() -> ctypes.CDLL:
    """The library, compiled here. Bundles carry it, so they import nothing that compiles."""
    from smelt.device import cpu
    from smelt.device.cache import compiling_for

    with compiling_for("smelt's runtime"):
        return cpu.build(source(), *flags())


def running() -> Runtime | None:
    """The runtime library of this process, if it is loaded."""
    return _here[0] if _here else None


def limit_this_thread(most: int) -> None:
    """Have calls of this thread use at most `most` workers, itself included; 0: no limit of its own.

    Waking another thread takes longer than a short call. Nothing happens before a runtime is loaded.
    """
    if _here:
        _here[0].held.smelt_limit_thread(most)


def flags() -> tuple[str, ...]:
    """Compiler flags of the library. Python's symbols are resolved in the process, on Windows in python3.dll."""
    if sys.platform == "win32":
        return ("-pthread", f"-L{os.path.join(sys.base_prefix, 'libs')}", "-lpython3")
    return ("-pthread", *(("-Wl,-undefined,dynamic_lookup",) if sys.platform == "darwin" else ()))


def compile_for(machine: str) -> bytes:
    """The library for the baseline ISA of a machine, as bundles carry it."""
    from smelt.device import cpu

    command = cpu.compiler()
    linux = sys.platform == "linux" and command is not None and command[-2:] == ("ziglang", "cc")
    old = (f"--target={machine}-linux-gnu.{GLIBC}",) if linux else ()
    return cpu.compile_bytes(source(), *flags(), *old, processor=Target(machine, 1, 16, flags=("baseline",)))


def source() -> str:
    """The library's files as one source."""
    parts = [f'#line 1 "{name}"\n' + text.decode() for name, text in zip(SOURCES, texts(), strict=True)]
    own = ('#include "', "#define _GNU_SOURCE")
    lines = ("" if line.startswith(own) else line for part in parts for line in part.splitlines())
    return "\n".join(["#define _GNU_SOURCE", *lines, ""])


def texts() -> Iterator[bytes]:
    """The contents of the library's files. Their hash identifies the library's version."""
    folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), "runtime")
    for name in SOURCES:
        with open(os.path.join(folder, name), "rb") as file:
            yield file.read()


def _declare(released: ctypes.CDLL, held: ctypes.PyDLL) -> None:
    number, pointer, status = ctypes.c_longlong, ctypes.c_void_p, ctypes.c_int
    numbers, pointers = ctypes.POINTER(number), ctypes.POINTER(pointer)
    signatures: dict[str, tuple[Any, ...]] = {
        "smelt_started": (number,),
        "smelt_limit_thread": (None, number),
        "smelt_features": (number,),
        "smelt_set_machine_memory": (None, number),
        "smelt_allocations": (number,),
        "smelt_allocated": (number,),
        "smelt_allocate": (pointer, number),
        "smelt_release": (None, pointer, number),
        "smelt_bind": (ctypes.py_object, numbers, number, pointers, ctypes.py_object),
        "smelt_executable": (pointer, ctypes.py_object),
        "smelt_cancel": (None, pointer),
        "smelt_trim": (None, pointer),
        "smelt_shut": (None, pointer),
        "smelt_usage": (None, pointer, numbers),
        "smelt_set_account": (None, pointer, pointer),
        "smelt_span": (number, number),
        "smelt_slot_take": (pointer, pointer, number, number),
        "smelt_slot_give": (None, pointer),
        "smelt_slot_measure": (status, pointer, numbers),
        "smelt_slot_measured": (numbers, pointer),
        "smelt_slot_late": (numbers, pointer),
        "smelt_slot_record": (numbers, pointer),
        "smelt_slot_ran": (status, pointer),
        "smelt_slot_run": (status, pointer, pointers, number, number),
        "smelt_checksum": (ctypes.c_ulonglong, pointer, number),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(held, name)
        function.restype, function.argtypes = result, arguments
    released.smelt_set_threads.restype, released.smelt_set_threads.argtypes = status, [number, number]
    released.smelt_charge.restype, released.smelt_charge.argtypes = status, [pointer, number]
    released.smelt_alarm.restype, released.smelt_alarm.argtypes = None, []
    released.smelt_checksum_file.restype = status
    released.smelt_checksum_file.argtypes = [number, number, number, ctypes.POINTER(ctypes.c_ulonglong)]


def default_threads() -> int:
    """The number of threads of a new runtime: SMELT_THREADS, else one per processor that this process may use."""
    chosen = os.environ.get("SMELT_THREADS")
    if not chosen:
        return min(cores(), MAX_THREADS)
    if not (chosen.isascii() and chosen.isdigit() and 1 <= int(chosen) <= MAX_THREADS):
        remedy = "set it to such a number, or unset it"
        raise DeviceError("invalid SMELT_THREADS", expected=f"1 to {MAX_THREADS}", got=chosen, remedy=remedy)
    return int(chosen)


# ------------------------------------------------------------------------------------------------ limits


class _Ledger(ctypes.Structure):
    """The C structure Account."""

    _fields_ = (
        *((name, ctypes.c_longlong) for name in ("limit", "fixed", "used", "running", "waiting")),
        *((name, ctypes.c_void_p) for name in ("first", "last")),
    )


class Account:
    """A memory limit that several programs and their calls share.

    A call that needs more than is free waits for other calls to end. A call that could never fit is refused.
    """

    def __init__(self, limit: int, owner: Runtime | None = None) -> None:
        self.runtime = owner or runtime()
        self.limit = limit
        self._ledger = _Ledger(limit)
        self.address = ctypes.addressof(self._ledger)

    @property
    def used(self) -> int:
        """Bytes in use, pooled memory of finished calls included."""
        return int(self._ledger.used)

    @property
    def fixed(self) -> int:
        """Bytes in use that stay allocated between calls."""
        return int(self._ledger.fixed)

    def take(self, count: int, what: str) -> None:
        """Charge bytes that stay allocated between calls. Waits for running calls to free enough."""
        while failed := self.runtime.released.smelt_charge(self.address, count):
            if failed == 1:
                raise MemoryLimitError(
                    f"{what}: the model needs more memory than allowed",
                    expected=f"at most {bytes_text(self.limit)}",
                    got=f"{bytes_text(count)} beside {bytes_text(self.fixed)}",
                    remedy="set a higher memory_limit",
                )
            time.sleep(0.005)

    def span(self, count: int) -> int:
        """The bytes that the system allocates for a block of `count` bytes."""
        return int(self.runtime.held.smelt_span(count))

    def give(self, count: int) -> None:
        """Uncharge bytes that were freed."""
        self.runtime.released.smelt_charge(self.address, -count)


# ------------------------------------------------------------------------------------------------ programs


def _refuse(check: int, symbols: Mapping[str, int]) -> SmeltError:
    return SizeError("the sizes break an assumption of the program", got=f"check {check}, {symbols}")


class Program:
    """A compiled program: `NAME_run` and `NAME_measure` of a library, with argument and result shapes.

    `symbols` are solved from the arguments' sizes, in the program's order. A result whose sizes have another symbol has
    a data-dependent size. `explain(status, record)` and `refuse(check, symbols)` turn a failed run and a failed size
    check into errors; they must not refer to a Bound. A call may overwrite the `donated` arguments; `reused` maps a
    result to the argument whose memory it takes.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        name: str,
        arguments: Sequence[Shape],
        results: Sequence[Shape],
        symbols: Sequence[str],
        constants: Sequence[bytes | Array],
        *,
        explain: Explain,
        refuse: Refuse = _refuse,
        names: Sequence[str] = (),
        donated: Sequence[int] = (),
        reused: Mapping[int, int] | None = None,
    ) -> None:
        self.runtime = runtime()
        self.library, self.name = library, name
        self.arguments, self.results, self.symbols = tuple(arguments), tuple(results), tuple(symbols)
        self.names = tuple(names) or tuple(f"argument {i}" for i in range(len(self.arguments)))
        assert len(self.names) == len(self.arguments)
        unsolved = set(self.symbols).difference(*(shape.symbols for shape in self.arguments))
        assert not unsolved, f"no argument determines {unsolved}"
        self.explain, self.refuse = explain, refuse
        self.donated, self.reused = tuple(donated), dict(reused or {})
        self.constants = _align(self.runtime, constants)
        self.run, self.measure = (_address(library, f"{name}_{part}") for part in ("run", "measure"))

    @property
    def constant_bytes(self) -> int:
        return sum(array.nbytes for array in self.constants)

    def bind(
        self,
        arrays: Sequence[Array],
        sizes: Mapping[str, int] = MappingProxyType({}),
        account: Account | None = None,
    ) -> Bound:
        """Bind the first arguments (the weights). Contiguous aligned arrays are not copied.

        `sizes` gives symbols that no argument determines any more: those of packed weights. The memory of calls is
        charged to `account`.
        """
        assert len(arrays) <= len(self.arguments)
        each = zip(arrays, self.arguments, self.names, strict=False)
        ordered = [_order(check_array(array, shape, repr(name))) for array, shape, name in each]
        return Bound(self, ordered, sizes, account)


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(library[name], ctypes.c_void_p).value or 0  # `library.name` would create a reference cycle


def _align(owner: Runtime, constants: Sequence[bytes | Array]) -> list[Array]:
    """The constants as contiguous arrays aligned to `ALIGN`; copied only where they are not."""
    placed = []
    for constant in constants:
        array = np.frombuffer(constant, np.uint8) if isinstance(constant, bytes) else constant
        if not (array.flags.c_contiguous and _pointer(array) % ALIGN == 0):
            copy = owner.empty(array.shape, array.dtype)
            copy[...] = array
            array = copy
        placed.append(array)
    return placed


def _pointer(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _order(array: Array) -> Array:
    """The array, or a copy if it is not contiguous and aligned to its elements."""
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")


class Bound:
    """A program with its first arguments bound: a function of the others. It may be called from several threads."""

    __slots__ = ("__weakref__", "_account", "_arrays", "_call", "_executable", "_program", "_sizes")

    def __init__(
        self, program: Program, arrays: Sequence[Array], sizes: Mapping[str, int], account: Account | None = None
    ) -> None:
        self._program = program
        self._account = account
        self._sizes = {name: size for name, size in sizes.items() if name in program.symbols}
        self._arrays: tuple[Array, ...] | None = tuple(arrays)
        layout = _layout(program, self._arrays, self._sizes)
        ports = [_carrier(shape.dtype.numpy) for shape in (*program.arguments[len(arrays) :], *program.results)]
        bound = [_pointer(array) for array in (*arrays, *program.constants)]
        pointers = (ctypes.c_void_p * (2 + len(bound)))(program.run, program.measure, *bound)
        keep = (self._arrays, program.constants, program.library, account)
        objects = (keep, np.empty, tuple(carrier for carrier, _ in ports), tuple(foreign for _, foreign in ports))
        held = program.runtime.held
        try:
            self._call: Callable[..., object] = held.smelt_bind(
                (ctypes.c_longlong * len(layout))(*layout), len(layout), pointers, objects
            )
        except MemoryError as error:
            raise RunError("no memory left to bind the program", remedy=SMALLER) from error
        self._executable: int = held.smelt_executable(self._call.__self__)
        if account is not None:
            held.smelt_set_account(self._executable, account.address)

    def __call__(
        self, inputs: Sequence[Array], out: Sequence[Array] | None = None, stop: Stop | None = None
    ) -> tuple[Array, ...]:
        """Run with the remaining arguments. The results are new arrays, or the arrays `out`."""
        if stop is None:
            results = self._call(inputs, out)
        else:
            stop.check()
            results = self._call(inputs, out, stop.nanoseconds, stop.address)
        return results if type(results) is tuple else self._otherwise(results, inputs, out, stop)

    def cancel(self) -> None:
        """Stop the running calls: they raise CancelledError. Later calls run."""
        self._program.runtime.held.smelt_cancel(self._executable)

    def call_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes of one call's arena, scratch and results. Unknown symbols count as 1, data-dependent sizes as 0."""
        held, symbols = self._program.runtime.held, self._program.symbols
        slot = held.smelt_slot_take(self._executable, 0, 0)
        if not slot:
            raise RunError("no memory left, or another thread closed the executable", remedy=SMALLER)
        try:
            values = [self._sizes.get(name, sizes.get(name, 1)) for name in symbols]
            if held.smelt_slot_measure(slot, (ctypes.c_longlong * max(len(values), 1))(*values)):
                return 0  # the call itself reports why it refuses these sizes
            measured = iter(held.smelt_slot_measured(slot)[: 2 + sum(shape.rank for shape in self._program.results)])
            total = int(next(measured)) + int(next(measured)) * self._program.runtime.threads
            for shape in self._program.results:
                total += math.prod(max(next(measured), 0) for _ in shape.sizes) * shape.dtype.numpy.itemsize
            return total
        finally:
            held.smelt_slot_give(slot)

    def trim(self) -> None:
        """Free pooled memory that no call uses."""
        self._program.runtime.held.smelt_trim(self._executable)

    def close(self) -> None:
        """Free everything. Running calls finish. Closing twice is harmless."""
        if self._arrays is not None:
            self._arrays = None
            self._program.runtime.held.smelt_shut(self._executable)

    @property
    def memory(self) -> Memory:
        usage = (ctypes.c_longlong * 3)()
        self._program.runtime.held.smelt_usage(self._executable, usage)
        arrays = self._arrays or ()
        bound, constants = (sum(array.nbytes for array in each) for each in (arrays, self._program.constants))
        return Memory(bound, constants, *usage)

    def _otherwise(
        self, answer: object, inputs: Sequence[Array], out: Sequence[Array] | None, stop: Stop | None
    ) -> tuple[Array, ...]:
        if isinstance(answer, list):
            raise self._failure(answer[0], answer[1], tuple(answer[2:]), stop)
        if type(inputs) is not tuple or (out is not None and type(out) is not tuple):
            return self(tuple(inputs), None if out is None else tuple(out), stop)
        try:
            return self._slow(inputs, out, stop)
        except MemoryError as error:  # an input that has to be copied
            raise RunError("no memory left for a copy of an input", got=str(error) or None, remedy=SMALLER) from error

    def _failure(self, status: int, started: int, record: tuple[int, ...], stop: Stop | None) -> SmeltError:
        error = self._explain(status, record, stop)
        error.started = bool(started)
        return error

    def _explain(self, status: int, record: tuple[int, ...], stop: Stop | None) -> SmeltError:
        if status == CANCELLED:
            return CancelledError("the call was cancelled")
        if status == TIMED_OUT:
            limit = f"at most {stop.timeout if stop else None} s"
            return TimedOutError("the call took too long", expected=limit, remedy="allow a longer timeout")
        if status == NO_MEMORY:
            return RunError("no memory left", got=f"{record[0]} bytes requested", remedy=SMALLER)
        if status == OVER_LIMIT:
            return MemoryLimitError(
                "the call needs more memory than allowed",
                expected=f"at most {bytes_text(record[1])} beside what the model holds",
                got=bytes_text(record[0]),
                remedy="set a higher memory_limit, use smaller sizes, or make fewer calls at once",
            )
        return self._program.explain(status, record)

    def _slow(
        self, inputs: tuple[Array, ...], out: tuple[Array, ...] | None, stop: Stop | None = None
    ) -> tuple[Array, ...]:
        """The same as the C entry, for inputs that it does not handle: copies, `out` arrays, errors with a reason."""
        arguments = self._arrays
        if arguments is None:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        arrays, symbols = _fit(self._program, arguments, inputs, self._sizes)
        held = self._program.runtime.held
        limits = (0, 0) if stop is None else (stop.nanoseconds, stop.address)
        slot = held.smelt_slot_take(self._executable, *limits)
        if not slot:
            raise RunError("no memory left, or another thread closed the executable", remedy=SMALLER)
        try:
            values = [symbols[name] for name in self._program.symbols]
            failed = held.smelt_slot_measure(slot, (ctypes.c_longlong * max(len(values), 1))(*values))
            if failed < 0:
                raise self._failure(failed, 0, tuple(held.smelt_slot_record(slot)[:8]), stop)
            if failed:
                raise self._program.refuse(failed - 1, symbols)
            measured = held.smelt_slot_measured(slot)
            results = _places(self._program, measured, out, (*arguments, *arrays))
            _check_donated(self._program, (*arguments, *arrays))
            copied = sum(made.nbytes for made, given in zip(arrays, inputs, strict=True) if made is not given)
            return self._run(slot, arrays, copied, results, out, stop)
        finally:
            held.smelt_slot_give(slot)

    def _run(
        self,
        slot: int,
        arrays: Sequence[Array],
        copied: int,
        results: list[Array | None],
        out: tuple[Array, ...] | None,
        stop: Stop | None,
    ) -> tuple[Array, ...]:
        held = self._program.runtime.held
        addresses = [None if array is None else _pointer(array) for array in (*arrays, *results)]
        table = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        own = (
            0
            if out
            else sum(
                each.nbytes for i, each in enumerate(results) if each is not None and i not in self._program.reused
            )
        )
        status = held.smelt_slot_run(slot, table, own, copied)
        if status:
            record = tuple(held.smelt_slot_record(slot)[:8])
            raise self._failure(status, held.smelt_slot_ran(slot), record, stop)
        late, done = held.smelt_slot_late(slot), []
        for i, (shape, result) in enumerate(zip(self._program.results, results, strict=True)):
            first = sum(other.rank for other in self._program.results[:i])
            if result is None:
                sizes = tuple(late[first : first + shape.rank])
                result = _check_array(out[i], shape, sizes, i) if out else _empty(sizes, shape.dtype.numpy)
                ctypes.memmove(_pointer(result), table[len(arrays) + i] or 0, result.nbytes)
            elif out and i in self._program.reused:
                out[i][...] = result
                result = out[i]
            done.append(result)
        return tuple(done)


# ------------------------------------------------------------------------------------------------ arguments and results


def _layout(program: Program, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[int]:
    numbers = make_layout(program, arrays, len(program.constants), sizes)
    numbers[QUICK] &= _has_lock()
    return numbers


def make_layout(
    program: Program | Entry, arrays: Sequence[Array], constants: int, sizes: Mapping[str, int]
) -> list[int]:
    """The array of integers that `smelt_make` reads: counts, known symbols, descriptions of inputs and results."""
    reused = dict(program.reused)
    inputs = program.arguments[len(arrays) :]
    preset: dict[str, int] = dict(sizes)
    quick = True
    for shape, array in zip(program.arguments, arrays, strict=False):
        for size, actual in zip(shape.sizes, array.shape, strict=True):
            if isinstance(size, Poly) and not symbols_of(size) <= sizes.keys():
                symbol, *factors = _linear(size, program.symbols) or (-1,)
                plain = factors == [1, 0]
                quick = quick and plain and preset.setdefault(program.symbols[symbol], actual) == actual
    ports: list[int] = []
    for place, shape in enumerate(inputs, len(arrays)):
        ports += (*_port(shape), int(place in program.donated))
        for size in shape.sizes:
            dim = _linear(size, program.symbols)
            quick = quick and dim is not None
            ports += dim or (-1, 0, 0)
    for i, shape in enumerate(program.results):
        ports += (*_port(shape), 1 + reused[i] - len(arrays) if i in reused else 0)
    counts = [len(program.symbols), len(arrays), len(inputs), len(program.results), constants, int(quick)]
    known = [preset.get(name, -1) for name in program.symbols]
    return [*counts, *known, *(array.nbytes for array in arrays), *ports]


def _has_lock() -> bool:
    """Whether the GIL is enabled, as the C entry requires."""
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return enabled is None or enabled()


def _linear(size: Size, names: Sequence[str]) -> tuple[int, int, int] | None:
    """(symbol, scale, offset) of a size that is linear in at most one symbol."""
    if not isinstance(size, Poly):
        return -1, 0, size
    symbol, scale, offset = -1, 0, 0
    for monomial, coefficient in size.terms:
        if not monomial:
            offset = coefficient
        elif symbol < 0 and len(monomial) == 1 and monomial[0].op == "symbol" and monomial[0].name in names:
            symbol, scale = names.index(monomial[0].name), coefficient
        else:
            return None
    return (symbol, scale, offset) if max(abs(scale), abs(offset)) < _SMALL else None


def _carrier(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], np.dtype[Any] | None]:
    """A dtype with the buffer protocol, and the original one if that has none (bfloat16, int4, …)."""
    return (dtype, None) if dtype.isbuiltin == 1 else (np.dtype(f"u{dtype.itemsize}"), dtype)


def _port(shape: Shape) -> tuple[int, int, int, int]:
    carrier, _ = _carrier(shape.dtype.numpy)
    return ord(carrier.kind), carrier.itemsize, shape.dtype.numpy.alignment, shape.rank


def _fit(
    program: Program, bound: Sequence[Array], inputs: Sequence[Array], sizes: Mapping[str, int]
) -> tuple[list[Array], dict[str, int]]:
    """The inputs as contiguous arrays that match the program's shapes, and the values of its symbols."""
    shapes, names = program.arguments[len(bound) :], program.names[len(bound) :]
    if len(inputs) != len(shapes):
        raise RunError("wrong number of inputs", expected=list(names), got=len(inputs), remedy="one array per input")
    arrays = [
        check_array(*each) for each in zip(inputs, shapes, (f"the input {name!r}" for name in names), strict=True)
    ]
    symbols = solve_symbols(program.arguments, names, [array.shape for array in (*bound, *arrays)], sizes)
    donated = [place - len(bound) for place in program.donated]
    ordered = [_order(array) for array in arrays]
    return [
        each.copy() if i in donated and not each.flags.writeable else each for i, each in enumerate(ordered)
    ], symbols


def _places(
    program: Program, measured: Sequence[int], out: tuple[Array, ...] | None, read: Sequence[Array]
) -> list[Array | None]:
    """The result arrays; None for results of data-dependent size."""
    if out is not None and len(out) != len(program.results):
        count = len(program.results)
        raise RunError("wrong number of output arrays", expected=count, got=len(out), remedy="one array per output")
    places: list[Array | None] = []
    first = 2
    for i, shape in enumerate(program.results):
        sizes = tuple(measured[first : first + shape.rank])
        first += shape.rank
        late = any(size < 0 for size in sizes)
        if out is not None:
            _apart(out[i], (*read, *out[:i]), i)
        if late:
            places.append(None)
        elif i in program.reused:
            if out is not None:
                _check_array(out[i], shape, sizes, i)
            places.append(read[program.reused[i]])
        else:
            places.append(_check_array(out[i], shape, sizes, i) if out else _empty(sizes, shape.dtype.numpy))
    return places


def _empty(sizes: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    try:
        return np.empty(sizes, dtype)
    except (MemoryError, ValueError) as error:
        raise RunError("no memory left for a result", got=f"{dtype}{list(sizes)}", remedy=SMALLER) from error


def _check_array(array: Array, shape: Shape, sizes: tuple[int, ...], position: int) -> Array:
    fitting = check_array(array, Shape.of(shape.dtype, sizes), f"output array {position}")
    flags = fitting.flags
    if fitting is not array or not (flags.c_contiguous and flags.aligned and flags.writeable):
        raise ShapeError(
            f"output array {position} cannot be written in place",
            expected="an aligned, writable array in C order",
            remedy="np.empty makes one",
        )
    return array


def _check_donated(program: Program, arrays: Sequence[Array]) -> None:
    for place in program.donated:
        others = [*arrays[:place], *arrays[place + 1 :]]
        if any(np.may_share_memory(arrays[place], other) for other in others):
            raise RunError(
                f"the input {program.names[place]!r} is donated and given twice", remedy=".copy() one of them"
            )


def _apart(array: Array, others: Sequence[Array], position: int) -> None:
    if any(np.may_share_memory(array, other) for other in others):
        raise ShapeError(
            f"output array {position} shares memory with an input or another output", remedy="give each its own array"
        )
