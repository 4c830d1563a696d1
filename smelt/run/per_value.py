"""An executable for a model whose program depends on values (or sizes) of inputs: one program for each, kept a while.

Such inputs (axes, pads, k, a target shape) shape the program itself. `build(values, shapes)` compiles for given values;
it may find that more inputs are of this kind, or that sizes are, and says so with `MissingValuesError`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smelt.bundle.stored import StoredModel, to_stored
from smelt.dtype import Array
from smelt.engine_api import Closing, Executable, KernelUse, Signature, Trimmable
from smelt.errors import MemoryLimitError, RunError, SizeError, UnsupportedError
from smelt.frozen import Frozen
from smelt.stop import Stop

if TYPE_CHECKING:
    from smelt.weights import Weights

LIMIT = 16  # programs


class MissingValuesError(Exception):
    """Raised by `build`: these inputs shape the program too, or the sizes of all inputs do."""

    def __init__(self, names: tuple[str, ...], sizes: bool) -> None:
        super().__init__(*names)
        self.names = names
        self.sizes = sizes


Values = Mapping[str, Array]
Shapes = Mapping[str, tuple[int, ...]]
Build = Callable[[Values, Shapes], Executable]


class _Made(Frozen):
    """A program, and what it was made for."""

    values: Values
    shapes: Shapes
    executable: Executable


class PerValue(Closing):
    """Compiles when a static input has a value that it has not seen; the least recently used program goes first."""

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
        self._programs: OrderedDict[Hashable, _Made] = OrderedDict()
        for values, shapes, executable in known:
            self._programs[_mark(values, shapes)] = _Made(values, shapes, executable)

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """Those of the programs that there are so far."""
        return tuple(use for made in self._programs.values() for use in made.executable.kernels)

    def prepare(self, weights: Weights) -> Executable:
        """Weights are bound whenever a program is built."""
        return self

    def __call__(self, *inputs: Array, stop: Stop | None = None) -> tuple[Array, ...]:
        """What compiles takes its time; a `stop` is looked at before and after it."""
        given = self._named(inputs)
        if stop is not None:
            stop.check()
        executable = self._program(given)
        return executable(*(given[port.name] for port in executable.signature.inputs), stop=stop)

    def knows(self, inputs: tuple[Array, ...]) -> bool:
        """Whether there is a program for such inputs already."""
        return bool(self._programs) and self._key(self._named(inputs))[0] in self._programs

    def to_stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """The programs that there are: a file cannot make more of them."""
        if not self._programs:
            raise UnsupportedError(
                "no program has been compiled yet: values or sizes of inputs shape it",
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

            logging.getLogger("smelt").info("compiled for new values of what shapes the program: %s", ", ".join(shown))
            self._programs[key] = _Made({name: array.copy() for name, array in values.items()}, shapes, built)
            if len(self._programs) > LIMIT:
                self._programs.popitem(last=False)[1].executable.close()
            return built

    def _build_within_limit(self, build: Build, values: Values, shapes: Shapes) -> Executable:
        """Programs share the memory that a limit leaves: the one that was not used for longest goes for a new one."""
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
        return _mark(values, shapes), values, shapes


def _mark(values: Values, shapes: Shapes) -> Hashable:
    marks = tuple((name, array.dtype.str, array.shape, array.tobytes()) for name, array in values.items())
    return marks, tuple(shapes.items())


class OpenSizes(Closing):
    """A program with open sizes, and one for fixed sizes where those that come break what the first took for granted.

    Two open sizes that meet are taken to be equal or to be broadcast one way; the other way needs a program of its own.
    """

    def __init__(self, open: Executable, fixed: PerValue) -> None:
        self._open = open
        self._fixed = fixed
        self.signature = open.signature

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        return self._open.kernels + self._fixed.kernels

    def prepare(self, weights: Weights) -> Executable:
        return OpenSizes(self._open.prepare(weights), self._fixed)

    def __call__(self, *inputs: Array, stop: Stop | None = None) -> tuple[Array, ...]:
        if not self._fixed.knows(inputs):
            try:
                return self._open(*inputs, stop=stop)
            except SizeError:
                pass
        return self._fixed(*inputs, stop=stop)

    def to_stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """The program with open sizes: what breaks what it takes for granted is an error in a file."""
        return to_stored(self._open, targets)

    def trim(self) -> None:
        if isinstance(self._open, Trimmable):
            self._open.trim()
        self._fixed.trim()

    def close(self) -> None:
        self._open.close()
        self._fixed.close()
