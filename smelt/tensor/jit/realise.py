"""Lazy tensors → arrays: the ops that results depend on become a program, which the reference engine runs at once.

Equal graphs share one cache entry. A repeated graph, or one too large for the reference engine, is compiled natively
in the background. Until that is done, and if the native engine refuses it, the reference engine runs it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from smelt.dtype import Array
from smelt.engine.native import NativeEngine
from smelt.engine_api import Executable
from smelt.errors import DeviceError, RunError, SmeltError, UnsupportedError
from smelt.ir import cost
from smelt.ir.attributes import Constant
from smelt.ir.core import Func, Op, Program, Region, Value, walk
from smelt.ir.interpret import World, run_grid
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.composite import callees
from smelt.tensor.ops.control import CALLBACKS
from smelt.tensor.record import HOOKS, Leaf, Recorded, data_of, function, place_of
from smelt.tensor.source import Operand, refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

log = logging.getLogger("smelt")
ENTRIES = 512  # programs that the cache keeps
LARGE = 50_000_000  # operations: a new graph of this size waits for the compiler
# Ops that NumPy computes as views of their operands.
VIEWS = frozenset(
    f"stablehlo.{name}" for name in ("reshape", "slice", "transpose", "reverse", "broadcast_in_dim", "constant")
)


class Entry:
    """One program: the number of its uses, and its executable once it is compiled."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses = 0
        self.compiled: Executable | None = None
        self.refused: SmeltError | None = None  # why native cannot run it
        self.waiting = False  # in the compiler's queue
        ops = list(walk(program.main.body))
        self.views = all(op.name in VIEWS for op in ops)
        self.python = [op for op in ops if op.name == "stablehlo.custom_call" and _target(op) in CALLBACKS]
        self.operations = cost.operations(program)
        self._world = World(program, CALLBACKS)

    def compile(self) -> None:
        try:
            self.compiled = NativeEngine().compile(self.program)
        except SmeltError as error:
            self.refused = error
        except Exception as error:  # a bug of ours must not end the compiler's thread: the reference answers
            log.exception("the native compiler failed")
            self.refused = UnsupportedError("the native compiler failed", got=f"{type(error).__name__}: {error}")
        self.waiting = False

    def reference(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        main = self.program.main
        # the plans are shared, so that each region is planned once
        world = World(
            self.program, CALLBACKS, plans=self._world.plans, introduced=self._world.introduced
        )  # planned once
        return run_grid(world, [[(main, tuple(arrays))]])[0][0]


def _target(op: Op) -> str:
    return str(op.attrs["call_target_name"])


def graph_key(region: Region, numbers: dict[Value, int] | None = None) -> Hashable:
    """A key for a graph, without names and source locations, for this process: equal graphs have equal keys.

    `ir.structure.fingerprint` is the same in all processes, and slower.
    """
    numbers = {} if numbers is None else numbers
    for arg in region.args:
        numbers[arg] = len(numbers)
    parts: list[Hashable] = [tuple(arg.type for arg in region.args)]
    for op in region.ops:
        attrs = tuple((name, _attr_key(value)) for name, value in op.attrs.items())
        inside = tuple(graph_key(inner, numbers) for inner in op.regions)
        operands = tuple(numbers[value] for value in op.operands)
        parts.append((op.name, operands, attrs, tuple(value.type for value in op.results), inside))
        for value in op.results:
            numbers[value] = len(numbers)
    return (*parts, tuple(numbers[value] for value in region.results))


def _attr_key(value: Any) -> Hashable:
    if isinstance(value, Constant):
        return value.digest
    return (type(value), value)  # True is not 1


class Cache:
    """Programs by graph, the least recently used forgotten first; safe to use from several threads."""

    def __init__(self, limit: int = ENTRIES) -> None:
        self.limit = limit
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Entry] = SimpleQueue()
        self._worker: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[Entry]:
        """All entries, the one that was used last at the end."""
        with self._lock:
            return list(self._entries.values())

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()

    def entry(self, func: Func) -> Entry:
        key = graph_key(func.body)
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                found = self._entries[key] = Entry(Program.of(func, *callees(func.body)))
                if len(self._entries) > self.limit:
                    self._entries.popitem(last=False)
            else:
                self._entries.move_to_end(key)
            found.uses += 1
            return found

    def compile_later(self, entry: Entry) -> None:
        """Compile in the background, once."""
        with self._lock:
            if entry.waiting or entry.compiled is not None or entry.refused is not None:
                return
            entry.waiting = True
            self._queue.put(entry)
            if self._worker is None or not self._worker.is_alive():
                self._worker = threading.Thread(target=self._work, name="smelt-compile", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        while True:
            self._queue.get().compile()


CACHE = Cache()
_ENGINE: ContextVar[str] = ContextVar("smelt.engine", default="auto")


@contextmanager
def engine(name: str) -> Iterator[None]:
    """The engine that computes tensors in a block: `auto`, `reference` or `native`."""
    if name not in ("auto", "reference", "native"):
        raise UnsupportedError("unknown engine", expected="auto, reference, native", got=name)
    token = _ENGINE.set(name)
    try:
        yield
    finally:
        _ENGINE.reset(token)


@with_argument_errors
def realize(*tensors: Tensor, engine: str | None = None) -> tuple[Tensor, ...]:
    """Compute tensors, all in one program. Their values are kept.

    >>> from smelt.tensor import tensor
    >>> x = tensor([1.0, 2.0]) * 3.0
    >>> realize(x)[0].numpy().tolist()
    [3.0, 6.0]
    """
    values = list(dict.fromkeys(each.value for each in tensors if data_of(each.value) is None))
    if values:
        func, inputs = function("main", values, known=lambda value: data_of(value) is not None)
        results = run(CACHE.entry(func), [_array(value) for value in inputs], engine or _ENGINE.get())
        for value, array in zip(values, results, strict=True):
            if array.flags.writeable:
                array.flags.writeable = False
            assert isinstance(value.op, Recorded)
            value.op.data[value.index] = ref(array)
    for each in tensors:
        _settle(each)
    return tensors


HOOKS.realise = realize


def _settle(tensor: Tensor) -> None:
    """Replace a computed tensor's op by its array, so that its inputs can be freed."""
    value, array = tensor.value, data_of(tensor.value)
    if array is not None and not isinstance(value, Leaf):
        object.__setattr__(tensor, "value", Leaf(value.shape, array, place=place_of(value)))


def _array(value: Value) -> Array:
    array = data_of(value)
    if array is None:
        place = value.place if isinstance(value, Leaf) else None
        shown = Operand("argument", value.shape, place)
        refuse(
            "a tensor without data has no value yet",
            shown,
            remedy="it is an argument of a function that is being traced: values are there when the function runs",
        )
    return array


def run(entry: Entry, arrays: Sequence[Array], name: str) -> tuple[Array, ...]:
    """The program's results on arrays, by the engine of that name."""
    if name == "reference":
        return entry.reference(arrays)
    if name == "native":
        return _native(entry, arrays)
    if entry.views or entry.python or entry.refused is not None:
        return entry.reference(arrays)
    large = not isinstance(entry.operations, int) or entry.operations >= LARGE
    if entry.compiled is None and large and NativeEngine().missing() is None:
        entry.compile()
    if entry.compiled is not None:
        try:
            return entry.compiled(*_contiguous(arrays))
        except DeviceError as error:
            entry.compiled, entry.refused = None, error
    elif entry.uses > 1 and NativeEngine().missing() is None:
        CACHE.compile_later(entry)
    return entry.reference(arrays)


def _native(entry: Entry, arrays: Sequence[Array]) -> tuple[Array, ...]:
    if entry.python:
        raise UnsupportedError(
            "a custom call into Python runs on the reference engine only",
            got=_target(entry.python[0]),
            where=entry.python[0].location,
            remedy='engine="reference" or "auto"',
        )
    if entry.compiled is None and entry.refused is None:
        entry.compile()
    if entry.compiled is None:
        raise entry.refused or RunError("the program was not compiled")
    return entry.compiled(*_contiguous(arrays))


def _contiguous(arrays: Sequence[Array]) -> list[Array]:
    return [np.ascontiguousarray(array).reshape(array.shape) for array in arrays]
