"""An executable for a model with compile-time inputs: one program per value (or size), in an LRU cache.

Compile-time inputs (axes, pads, k, a target shape) determine the program itself. `build(values, shapes)` compiles for
given values. It raises `MissingValuesError` where more inputs, or the sizes of all inputs, have to be known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from smelt.buffer import to_numpy
from smelt.bundle.stored import StoredModel, StoredProgram, to_stored
from smelt.dtype import Array
from smelt.engine_api import Closing, Compiling, Executable, KernelUse, Signature, Trimmable
from smelt.errors import MemoryLimitError, RunError, SizeError, UnsupportedError
from smelt.run.executable import NativeExecutable
from smelt.stop import Stop

if TYPE_CHECKING:
    from smelt.device.api import Device
    from smelt.weights import Weights

LIMIT = 16  # programs
POLL = 0.02  # seconds between two checks of a call's deadline while another thread compiles


class MissingValuesError(Exception):
    """Raised by `build`: these inputs are compile-time inputs too, or all sizes have to be known."""

    def __init__(self, names: tuple[str, ...], sizes: bool) -> None:
        super().__init__(*names)
        self.names = names
        self.sizes = sizes


Values = Mapping[str, Array]
Shapes = Mapping[str, tuple[int, ...]]
Build = Callable[[Values, Shapes], Executable]
StoreGeneral = Callable[[Sequence[str]], tuple[StoredProgram, ...]]


class _Specialised:
    """A program, the values and shapes that it is specialised to, and how many calls use it now."""

    __slots__ = ("calls", "evicted", "executable", "shapes", "values")

    def __init__(self, values: Values, shapes: Shapes, executable: Executable) -> None:
        self.values, self.shapes, self.executable = values, shapes, executable
        self.calls, self.evicted = 0, False


class PerValue(Closing):
    """Compiles when a static input has a new value; evicts the least recently used program.

    Any number of threads may call it. Concurrent first calls with one value compile once; a call whose program exists
    never waits for a compile. An evicted program is closed after its last call.
    """

    def __init__(
        self,
        signature: Signature,
        static: tuple[str, ...],
        by_size: bool,
        build: Build,
        known: Sequence[tuple[Values, Shapes, Executable]] = (),
    ) -> None:
        self.signature = signature
        self.static = static
        self.by_size = by_size
        self._build: Build | None = build
        self._remedy: str | None = None  # where no more is compiled
        self._programs: OrderedDict[Hashable, _Specialised] = OrderedDict()
        self._lock = Lock()  # of the programs and their counts
        self._compiling = Lock()
        for values, shapes, executable in known:
            self._programs[key_of(values, shapes)] = _Specialised(values, shapes, executable)

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """Those of the programs that are compiled so far."""
        return tuple(use for made in list(self._programs.values()) for use in made.executable.kernels)

    def prepare(self, weights: Weights) -> Executable:
        """Weights are bound whenever a program is built."""
        return self

    def __call__(self, *inputs: Array, stop: Stop | None = None) -> tuple[Array, ...]:
        """Run, and compile first where the values are new. `stop` is checked before and after a compile."""
        given = self._by_name(inputs)
        if stop is not None:
            stop.check()
        made = self._take(given, stop)
        try:
            executable = made.executable
            return executable(*(given[port.name] for port in executable.signature.inputs), stop=stop)
        finally:
            self._give(made)

    def knows(self, inputs: tuple[Array, ...]) -> bool:
        """Whether a program for such inputs is compiled."""
        return bool(self._programs) and self._key(self._by_name(inputs))[0] in self._programs

    def to_stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """The programs that are compiled so far: a bundle cannot compile more."""
        if not self._programs:
            raise UnsupportedError(
                "no program is compiled yet: it depends on values or sizes of inputs",
                remedy="call it once with each kind of inputs that the file should know, or give static values",
            )
        parts = []
        for made in list(self._programs.values()):
            parts.append((made, to_stored(made.executable, targets)))
        programs = [
            program.replace(values=made.values, shapes=made.shapes) for made, part in parts for program in part.programs
        ]
        runtimes = parts[0][1].runtimes
        return StoredModel("model", self.signature, tuple(programs), runtimes, static=self.static, by_size=self.by_size)

    def stop_compiling(self, remedy: str) -> None:
        with self._compiling:
            self._remedy = remedy
            for made in list(self._programs.values()):
                if isinstance(made.executable, Compiling):
                    made.executable.stop_compiling(remedy)

    def trim(self) -> None:
        for made in list(self._programs.values()):
            if isinstance(made.executable, Trimmable):
                made.executable.trim()

    def close(self) -> None:
        with self._lock:
            programs, self._build = list(self._programs.values()), None
            self._programs.clear()
        for made in programs:
            made.executable.close()

    def _take(self, given: Mapping[str, Array], stop: Stop | None) -> _Specialised:
        """The program for inputs, compiled where it is new, with this call counted."""
        found = self._find(self._key(given)[0])
        if found is not None:
            return found
        while not self._compiling.acquire(timeout=-1 if stop is None else POLL):
            assert stop is not None, "the wait for ever is over"
            stop.check()
        try:
            return self._find(self._key(given)[0]) or self._compile(given)
        finally:
            self._compiling.release()

    def _find(self, key: Hashable) -> _Specialised | None:
        with self._lock:
            if self._build is None:
                raise RunError("the executable is closed", remedy="compile or load the model again")
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
                found.calls += 1
            return found

    def _give(self, made: _Specialised) -> None:
        with self._lock:
            made.calls -= 1
            unused = made.evicted and not made.calls
        if unused:
            made.executable.close()

    def _evict(self) -> bool:
        """Drop the least recently used program; False where there is none."""
        with self._lock:
            if not self._programs:
                return False
            _, made = self._programs.popitem(last=False)
            made.evicted = True
            unused = not made.calls
        if unused:
            made.executable.close()
        return True

    def _compile(self, given: Mapping[str, Array]) -> _Specialised:
        """A new program, with this call counted. One thread compiles at a time."""
        while True:
            key, values, shapes = self._key(given)
            if self._remedy is not None:
                raise UnsupportedError(
                    "no program is compiled for such inputs",
                    expected=f"{len(self._programs)} kinds of inputs that were seen before",
                    got=", ".join(_show(values, shapes)) or "another kind",
                    remedy=self._remedy,
                )
            try:
                built = self._build_within_limit(values, shapes)
            except MissingValuesError as more:
                if set(more.names) <= set(self.static) and self.by_size >= more.sizes:
                    raise more.__cause__ or more from None  # nothing more can be given
                with self._lock:
                    self.static += tuple(name for name in more.names if name not in self.static)
                    self.by_size = self.by_size or more.sizes
                    self._programs.clear()
                continue
            import logging

            shown = ", ".join(_show(values, shapes))
            logging.getLogger("smelt").info("compiled for new values of compile-time inputs: %s", shown)
            made = _Specialised({name: array.copy() for name, array in values.items()}, shapes, built)
            made.calls = 1
            with self._lock:
                self._programs[key] = made
                full = len(self._programs) > LIMIT
            if full:
                self._evict()
            return made

    def _build_within_limit(self, values: Values, shapes: Shapes) -> Executable:
        """Programs share one memory limit: the least recently used one is evicted for a new one."""
        build = self._build
        while True:
            if build is None:
                raise RunError("the executable is closed", remedy="compile or load the model again")
            try:
                return build(values, shapes)
            except MemoryLimitError:
                if not self._evict():
                    raise

    def _by_name(self, inputs: tuple[Array, ...]) -> dict[str, Array]:
        names = [port.name for port in self.signature.inputs]
        if len(inputs) != len(names):
            raise RunError("wrong number of inputs", expected=names, got=len(inputs), remedy="one array per input")
        return dict(zip(names, map(to_numpy, inputs, (f"the input {name!r}" for name in names)), strict=True))

    def _key(self, given: Mapping[str, Array]) -> tuple[Hashable, dict[str, Array], dict[str, tuple[int, ...]]]:
        values = {name: given[name] for name in self.static}
        shapes = {name: array.shape for name, array in given.items() if self.by_size and name not in values}
        return key_of(values, shapes), values, shapes


def _show(values: Values, shapes: Shapes) -> list[str]:
    shown = [f"{name}={array.reshape(-1)[:8].tolist()}" for name, array in values.items()]
    return shown + [f"{name} of shape {list(shape)}" for name, shape in shapes.items()]


def key_of(values: Values, shapes: Shapes) -> Hashable:
    marks = tuple((name, array.dtype.str, array.shape, array.tobytes()) for name, array in values.items())
    return marks, tuple(shapes.items())


class DynamicSizes(Closing):
    """A program with dynamic dimensions, and programs for fixed sizes that break its assumptions.

    Where two dynamic dimensions meet, the first program assumes that they are equal, or that one is broadcast. Other
    sizes need a program of their own. `store_general` gives, for a bundle, the program that broadcasts at run time.
    """

    def __init__(self, dynamic: Executable, fixed: PerValue, store_general: StoreGeneral) -> None:
        self._dynamic = dynamic
        self._fixed = fixed
        self._store_general = store_general
        self.signature = dynamic.signature

    @property
    def device(self) -> Device | None:
        """Of the native engine; None on others."""
        return self._dynamic.device if isinstance(self._dynamic, NativeExecutable) else None

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        return self._dynamic.kernels + self._fixed.kernels

    def prepare(self, weights: Weights) -> Executable:
        return DynamicSizes(self._dynamic.prepare(weights), self._fixed, self._store_general)

    def __call__(self, *inputs: Array, stop: Stop | None = None) -> tuple[Array, ...]:
        if not self._fixed.knows(inputs):
            try:
                return self._dynamic(*inputs, stop=stop)
            except SizeError:
                pass
        return self._fixed(*inputs, stop=stop)

    def to_stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """The program with dynamic dimensions, and the one for sizes that break its assumptions."""
        stored = to_stored(self._dynamic, targets)
        return stored.replace(programs=(*stored.programs, *self._store_general(targets)))

    def stop_compiling(self, remedy: str) -> None:
        self._fixed.stop_compiling(remedy)

    def trim(self) -> None:
        if isinstance(self._dynamic, Trimmable):
            self._dynamic.trim()
        self._fixed.trim()

    def close(self) -> None:
        self._dynamic.close()
        self._fixed.close()


class Fallback(Closing):
    """The programs of a bundle for one set of compile-time inputs: a fast one that assumes something of its sizes, and
    one for sizes that break this, which is linked when it is first needed."""

    def __init__(
        self, first: Executable, link_other: Callable[[], Executable], programs: tuple[StoredProgram, ...]
    ) -> None:
        self._first, self._link_other, self._stored = first, link_other, programs
        self._other: Executable | None = None
        self._linking = Lock()
        self.signature = first.signature

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        return tuple(use for each in self._list_linked() for use in each.kernels)

    def prepare(self, weights: Weights) -> Executable:
        return Fallback(self._first.prepare(weights), lambda: self._link_other().prepare(weights), self._stored)

    def __call__(self, *inputs: Array, stop: Stop | None = None) -> tuple[Array, ...]:
        try:
            return self._first(*inputs, stop=stop)
        except SizeError as error:
            broken = error
        with self._linking:
            if self._other is None:
                self._other = self._link_other()
            other = self._other
        try:
            return other(*inputs, stop=stop)
        except SizeError as error:
            expected = f"{broken.expected}, or sizes that broadcast"
            raise SizeError(
                broken.message, expected=expected, got=broken.got, where=error.where, remedy=broken.own_remedy
            ) from error

    def to_stored(self, targets: Sequence[str] = ()) -> StoredModel:
        return to_stored(self._first, targets).replace(programs=self._stored)

    def trim(self) -> None:
        for each in self._list_linked():
            if isinstance(each, Trimmable):
                each.trim()

    def close(self) -> None:
        for each in self._list_linked():
            each.close()

    def _list_linked(self) -> list[Executable]:
        return [self._first] if self._other is None else [self._first, self._other]
