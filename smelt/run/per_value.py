"""An executable for a model with compile-time inputs: one program per value (or size), in an LRU cache.

Compile-time inputs (axes, pads, k, a target shape) determine the program itself. `build(values, shapes)` compiles for
given values. It raises `MissingValuesError` where more inputs, or the sizes of all inputs, have to be known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smelt.bundle.stored import StoredModel, StoredProgram, to_stored
from smelt.dtype import Array
from smelt.engine_api import Closing, Executable, KernelUse, Signature, Trimmable
from smelt.errors import MemoryLimitError, RunError, SizeError, UnsupportedError
from smelt.frozen import Frozen
from smelt.stop import Stop

if TYPE_CHECKING:
    from smelt.weights import Weights

LIMIT = 16  # programs


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


class _Specialised(Frozen):
    """A program, and the values and shapes that it is specialised to."""

    values: Values
    shapes: Shapes
    executable: Executable


class PerValue(Closing):
    """Compiles when a static input has a new value; evicts the least recently used program."""

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
        self._programs: OrderedDict[Hashable, _Specialised] = OrderedDict()
        for values, shapes, executable in known:
            self._programs[key_of(values, shapes)] = _Specialised(values, shapes, executable)

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """Those of the programs that are compiled so far."""
        return tuple(use for made in self._programs.values() for use in made.executable.kernels)

    def prepare(self, weights: Weights) -> Executable:
        """Weights are bound whenever a program is built."""
        return self

    def __call__(self, *inputs: Array, stop: Stop | None = None) -> tuple[Array, ...]:
        """Run, and compile first where the values are new. `stop` is checked before and after a compile."""
        given = self._named(inputs)
        if stop is not None:
            stop.check()
        executable = self._program(given)
        return executable(*(given[port.name] for port in executable.signature.inputs), stop=stop)

    def knows(self, inputs: tuple[Array, ...]) -> bool:
        """Whether a program for such inputs is compiled."""
        return bool(self._programs) and self._key(self._named(inputs))[0] in self._programs

    def to_stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """The programs that are compiled so far: a bundle cannot compile more."""
        if not self._programs:
            raise UnsupportedError(
                "no program is compiled yet: it depends on values or sizes of inputs",
                remedy="call it once with each kind of inputs that the file should know, or give static values",
            )
        parts = []
        for made in self._programs.values():
            parts.append((made, to_stored(made.executable, targets)))
        programs = [
            program.replace(values=made.values, shapes=made.shapes) for made, part in parts for program in part.programs
        ]
        runtimes = parts[0][1].runtimes
        return StoredModel("model", self.signature, tuple(programs), runtimes, static=self.static, by_size=self.by_size)

    def trim(self) -> None:
        for made in list(self._programs.values()):
            if isinstance(made.executable, Trimmable):
                made.executable.trim()

    def close(self) -> None:
        for made in self._programs.values():
            made.executable.close()
        self._programs.clear()
        self._build = None

    def _program(self, given: Mapping[str, Array]) -> Executable:
        if self._build is None:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        while True:
            key, values, shapes = self._key(given)
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
                return found.executable
            try:
                built = self._build_within_limit(self._build, values, shapes)
            except MissingValuesError as more:
                if set(more.names) <= set(self.static) and self.by_size >= more.sizes:
                    raise more.__cause__ or more from None  # nothing more can be given
                self.static += tuple(name for name in more.names if name not in self.static)
                self.by_size = self.by_size or more.sizes
                self._programs.clear()
                continue
            shown = [f"{name}={array.reshape(-1)[:8].tolist()}" for name, array in values.items()]
            shown += [f"{name} of shape {list(shape)}" for name, shape in shapes.items()]
            import logging

            logging.getLogger("smelt").info("compiled for new values of compile-time inputs: %s", ", ".join(shown))
            self._programs[key] = _Specialised({name: array.copy() for name, array in values.items()}, shapes, built)
            if len(self._programs) > LIMIT:
                self._programs.popitem(last=False)[1].executable.close()
            return built

    def _build_within_limit(self, build: Build, values: Values, shapes: Shapes) -> Executable:
        """Programs share one memory limit: the least recently used one is evicted for a new one."""
        while True:
            try:
                return build(values, shapes)
            except MemoryLimitError:
                if not self._programs:
                    raise
                self._programs.popitem(last=False)[1].executable.close()

    def _named(self, inputs: tuple[Array, ...]) -> dict[str, Array]:
        names = [port.name for port in self.signature.inputs]
        if len(inputs) != len(names):
            raise RunError("wrong number of inputs", expected=names, got=len(inputs))
        return dict(zip(names, (np.asarray(array) for array in inputs), strict=True))

    def _key(self, given: Mapping[str, Array]) -> tuple[Hashable, dict[str, Array], dict[str, tuple[int, ...]]]:
        values = {name: given[name] for name in self.static}
        shapes = {name: array.shape for name, array in given.items() if self.by_size and name not in values}
        return key_of(values, shapes), values, shapes


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
        self.signature = first.signature

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        return tuple(use for each in self._linked() for use in each.kernels)

    def prepare(self, weights: Weights) -> Executable:
        return Fallback(self._first.prepare(weights), lambda: self._link_other().prepare(weights), self._stored)

    def __call__(self, *inputs: Array, stop: Stop | None = None) -> tuple[Array, ...]:
        try:
            return self._first(*inputs, stop=stop)
        except SizeError as error:
            broken = error
        if self._other is None:
            self._other = self._link_other()
        try:
            return self._other(*inputs, stop=stop)
        except SizeError as error:
            expected = f"{broken.expected}, or sizes that broadcast"
            raise SizeError(broken.message, expected=expected, got=broken.got, where=error.where) from error

    def to_stored(self, targets: Sequence[str] = ()) -> StoredModel:
        return to_stored(self._first, targets).replace(programs=self._stored)

    def trim(self) -> None:
        for each in self._linked():
            if isinstance(each, Trimmable):
                each.trim()

    def close(self) -> None:
        for each in self._linked():
            each.close()

    def _linked(self) -> list[Executable]:
        return [self._first] if self._other is None else [self._first, self._other]
