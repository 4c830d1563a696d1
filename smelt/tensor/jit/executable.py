"""Executable: a compiled function of the front end, typed like the function, on the user's own structures.

`smelt.compile` makes it. It takes arrays, buffers and structures of them, and returns buffers in the structure that the
function returns. Engines take and return flat lists of arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload

import numpy as np

from smelt.activity import LONG, QUEUE
from smelt.buffer import Buffer, HostBuffer, check_array, check_shape, sizes_of
from smelt.bundle.stored import Storable
from smelt.bundle.write import write as write_bundle
from smelt.dim import Facts, Size, evaluate, solve
from smelt.dtype import Array
from smelt.engine.pjrt import PjrtExecutable
from smelt.engine.protocol import Placing, Platform
from smelt.engine_api import Cost, Memory, Port, Signature
from smelt.engine_api import Executable as Compiled
from smelt.errors import DeviceError, RunError, ShapeError, SizeError, SmeltError, UnsupportedError
from smelt.files import write_atomically
from smelt.ir import cost
from smelt.ir.core import Program
from smelt.passes.independent_rows import describe_batching
from smelt.shape import Shape
from smelt.stop import Cancel, Stop, has_started
from smelt.structure import leaves
from smelt.tensor.jit.function import CompiledPath, Function, Parameter, Resources, Slot
from smelt.tensor.jit.outline import Outline
from smelt.tensor.ops.control import DATA
from smelt.tensor.record import is_tensor
from smelt.weights import Weights

P = ParamSpec("P")
Rest = ParamSpec("Rest")
R = TypeVar("R", covariant=True)
T = TypeVar("T")
Data: TypeAlias = Array | Buffer  # what may stand for a tensor in a call

REMEMBERED = 256  # combinations of sizes whose path through the function is cached


class Executable(Generic[P, R]):
    """A compiled function. It takes what the function takes, with NumPy arrays or buffers in place of tensors, checks
    shapes, element types and placement, and returns buffers at once, which fill asynchronously.

    `prepare` binds the first parameter, a model's weights as a rule, and gives another executable; this one stays as
    it is. `Executable[[Model, X], Y].prepare(model)` is an `Executable[[X], Y]`.

    >>> import numpy as np
    >>> import smelt
    >>> def double(x: smelt.Shaped[smelt.Tensor, "f32[b=B]"]) -> smelt.Tensor:
    ...     return x + x
    >>> with smelt.compile(double, engine="reference") as executable:
    ...     executable(np.array([1, 2], np.float32)).numpy().tolist()
    [2.0, 4.0]
    """

    def __init__(
        self,
        function: Function,
        held: Resources,
        bound: Mapping[int, Any] | None = None,
        taken: int = 0,
        prepared: bool = False,
        data: Mapping[Callable[..., Any], Any] | None = None,
    ) -> None:
        self._function = function
        self._held: Resources | None = held
        self._bound = dict(bound or {})  # slot → what is given for it
        self._taken = taken  # parameters that are bound
        self._prepared = prepared or not any(slot.weight for slot in function.slots)
        self._data = dict(data or {})
        # Shapes of arguments that passed the checks → their path: what was proven about sizes once holds the next time.
        self._seen: dict[tuple[Any, ...], CompiledPath] = {}
        self._outline: Outline | None = None  # of those arguments, where they are not one tensor each
        self._key_places: tuple[int, ...] | None = None  # those whose shapes have to be looked at; None for all

    @staticmethod
    def of(function: Function, paths: Sequence[CompiledPath]) -> Executable[..., Any]:
        """One with nothing bound."""
        return Executable(function, Resources(tuple(paths)))

    # ---- properties ----

    @property
    def name(self) -> str:
        return self._function.name

    @property
    def platform(self) -> Platform[Program]:
        return self._function.platform

    @property
    def inputs(self) -> dict[str, Shape]:
        """The tensors that a call takes, by path."""
        names = [slot for i, slot in enumerate(self._function.slots) if i not in self._bound]
        return {slot.name: slot.shape for slot in names}

    @property
    def donated(self) -> tuple[str, ...]:
        """The inputs that a call may overwrite."""
        return tuple(slot.name for i, slot in enumerate(self._function.slots) if i in self._function.donated)

    @property
    def program(self) -> Program:
        """The program, where no branch of the function depends on sizes."""
        return self._only_path("several programs, one for each of its branches on sizes").program

    @property
    def compiled(self) -> Compiled:
        """The engine's own executable, for callers that have checked their inputs: it takes and gives flat lists."""
        return self._only_path("several programs").compiled

    def __repr__(self) -> str:
        if self._held is None:
            return f"<{self.name}, closed>"
        inputs = ", ".join(f"{name}: {shape}" for name, shape in self.inputs.items())
        return f"<{self.name}({inputs}) on {self.platform}>"

    def _repr_html_(self) -> str:
        outputs = self._held.paths[0].shapes if self._held is not None and len(self._held.paths) == 1 else ()
        ports = (Port(f"result{i}" if len(outputs) > 1 else "result", shape) for i, shape in enumerate(outputs))
        inputs = tuple(Port(name, shape) for name, shape in self.inputs.items())
        return Signature(inputs, tuple(ports)).html(f"{self.name} on {self.platform}")

    # ---- binding ----

    @overload
    def prepare(self: Executable[Concatenate[T, Rest], R], value: T) -> Executable[Rest, R]: ...

    @overload
    def prepare(
        self: Executable[Concatenate[T, Rest], R], value: Weights | Mapping[str, Data]
    ) -> Executable[Rest, R]: ...

    @overload
    def prepare(self, value: object) -> Executable[P, R]: ...

    def prepare(self, value: Any) -> Any:
        """The same function with its first parameter bound: partial application, several times if need be.

        `value` has that parameter's structure, with arrays or buffers for tensors (`weights.to_device(model,
        platform)` gives such); for a model also Weights, or a mapping of its weights' names. Buffers stay the caller's.
        For a method of an object the first parameter is the object, which its type does not show.
        """
        function, held = self._function, self._resources()
        if self._taken >= len(function.parameters):
            raise RunError(f"{self.name}: every parameter is bound already", got=self._taken)
        parameter = function.parameters[self._taken]
        found: dict[int, Any] = {}
        owned: list[Any] = []
        engine = function.platform.engine
        for slot, path, given in self._collect(parameter, value):
            found[slot] = checked = self._check_value(function.slots[slot], path, given)
            if isinstance(checked, HostBuffer) and isinstance(engine, Placing) and not function.slots[slot].weight:
                found[slot] = engine.put(checked)
                owned.append(found[slot])
        bound = {**self._bound, **found}
        weights = [i for i, slot in enumerate(function.slots) if slot.weight]
        if self._prepared or any(slot not in bound for slot in weights):
            below = Resources(held.paths, tuple(owned), held.share())
            return Executable[Any, R](function, below, bound, self._taken + 1, self._prepared, self._data)
        self._solve(bound, "the weights")
        named = cast(Weights, {function.slots[i].name: bound[i] for i in weights})
        paths = tuple(replace(path, compiled=path.compiled.prepare(named)) for path in held.paths)
        kept = {i: _Sizes(sizes_of(value)) if i in weights else value for i, value in bound.items()}
        below = Resources(paths, tuple(owned), held.share() if len(kept) > len(weights) else None)
        return Executable[Any, R](function, below, kept, self._taken + 1, True, self._data)

    def _collect(self, parameter: Parameter, value: Any) -> Iterator[tuple[int, str, Any]]:
        by_name = isinstance(value, Mapping) and not isinstance(parameter.pattern, Mapping)
        if not by_name:
            yield from parameter.collect(value)
            return
        for index in dict.fromkeys(parameter.slots.values()):
            slot = self._function.slots[index]
            name = slot.source if slot.source in value else slot.name
            if name not in value and not isinstance(value, Weights):
                raise ShapeError(f"{self.name}: no weight {name!r}", expected=name, got=", ".join(list(value)[:8]))
            yield index, name, value[name]

    def bind(self, callback: Callable[..., Any], data: Any) -> Executable[P, R]:
        """The same with `data=data` for a function that the program calls through `smelt.custom_call`."""
        held = self._resources().share()
        data = {**self._data, callback: data}
        return Executable(self._function, held, self._bound, self._taken, self._prepared, data)

    def clone(self) -> Executable[P, R]:
        """An independent executable with the same program and weights; each is closed on its own."""
        held = self._resources().share()
        return Executable(self._function, held, self._bound, self._taken, self._prepared, self._data)

    # ---- calls ----

    @overload
    def __call__(self, *args: P.args, **keywords: P.kwargs) -> R: ...

    @overload
    def __call__(
        self,
        *args: Data,
        keep: bool = False,
        timeout: float | None = None,
        cancel: Cancel | None = None,
        **keywords: Data,
    ) -> R: ...

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run it. Results are buffers in the structure that the function returns.

        Buffers for parameters that are donated are used up, unless `keep` says that copies are used up instead. A call
        that takes longer than `timeout` seconds, or whose `cancel`, a `smelt.Cancel()`, is cancelled, raises: here, or
        where a result is read.
        """
        if self._seen and not keywords:
            flat = args if self._outline is None else self._outline.flatten(args)
            path = None if flat is None else self._seen.get(self._key(flat))
            if flat is not None and path is not None:
                try:
                    return self._repeat(path, flat)
                except ShapeError:  # an element type, say: checked again below, where arguments have names
                    pass
        function = self._function
        self._resources()
        keep, stop = self._options(keywords) if keywords else (False, None)
        if function.encode is not None:
            encoded = function.encode(*args, **keywords)
            args, keywords = encoded if isinstance(encoded, tuple) else (encoded,), {}
        given = self._bind_arguments(args, keywords)
        structure = self._call(given, keep, stop) if self._prepared else self._call_unprepared(given, keep, stop)
        return structure if function.decode is None else function.decode(structure)

    def _options(self, keywords: dict[str, Any]) -> tuple[bool, Stop | None]:
        """Take the options of the call itself out of the keywords, unless the function has such parameters."""
        own = {parameter.name for parameter in self._function.parameters}
        found = {name: keywords.pop(name) for name in ("keep", "timeout", "cancel") if name in keywords.keys() - own}
        return bool(found.pop("keep", False)), Stop.of(**found)

    def _repeat(self, path: CompiledPath, args: Sequence[Any]) -> Any:
        """A call with shapes that passed before. The engine checks element types, placement and use."""
        function = self._function
        if function.on_host:
            made = QUEUE.now(lambda: path.compiled(*args))
            results = zip(made, path.shapes, strict=True)
            buffers: list[Any] = [_buffer(each, shape, args) for each, shape in results]
            structure = path.structure(buffers)
        else:
            structure = path.structure(path.compiled(*args))
        return structure if function.decode is None else function.decode(structure)

    def _key(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        if self._key_places is None:
            return tuple([_shape_of(each) for each in flat])
        return tuple([_shape_of(flat[place]) for place in self._key_places])

    def _remember(self, path: CompiledPath, given: Sequence[tuple[Parameter, Any]], work: int | None) -> None:
        """Cache a call whose arguments need no further checks than their shapes the next time."""
        function = self._function
        quick = not function.donated if function.on_host else function.in_place or not function.donated
        short = not function.on_host or (work is not None and work < LONG)
        if not quick or not short or self._data or function.encode or len(self._seen) >= REMEMBERED:
            return
        inputs = [i for i, slot in enumerate(function.slots) if not slot.weight]
        flat: Sequence[Any] | None = [value for _, value in given]
        if not all(is_tensor(parameter.pattern) for parameter, _ in given):
            self._outline = Outline.of(tuple(parameter.pattern for parameter, _ in given))
            flat = None if self._outline is None else self._outline.flatten(tuple(value for _, value in given))
        slots = [slot for parameter, _ in given for slot in parameter.slots.values()]
        if flat is None or slots != inputs or len(flat) != len(inputs):  # tied tensors, say, or bound ones
            return
        if isinstance(path.compiled, PjrtExecutable):  # which looks at all of its inputs itself
            self._key_places = tuple(place for place, slot in enumerate(inputs) if slot in function.dynamic)
        key = self._key(flat)
        if None not in key and (not function.on_host or all(isinstance(each, tuple) for each in key)):
            self._seen[key] = path

    def _call(self, given: Sequence[tuple[Parameter, Any]], keep: bool, stop: Stop | None) -> Any:
        function = self._function
        values = dict(self._bound)
        for parameter, value in given:
            for slot, name, each in parameter.collect(value):
                values[slot] = self._check_value(function.slots[slot], name, each)
        index, sizes = self._solve(values, "the inputs")
        path = self._resources().paths[index]
        used = self._donate(values, keep)
        work = path.operations if isinstance(path.operations, int) else _evaluate(path.operations, sizes)
        try:
            results = self._run(path, values, sizes, work, stop)
        except BaseException as error:
            if function.in_place and has_started(error):
                self._give_away(used)
            raise
        self._remember(path, given, work)
        self._give_away(used)
        return path.structure(results)

    def _give_away(self, used: Sequence[tuple[int, Any]]) -> None:
        for slot, buffer in used:
            buffer.give_away(f"was donated as the input {self._function.slots[slot].name!r}")

    def _call_unprepared(self, given: Sequence[tuple[Parameter, Any]], keep: bool, stop: Stop | None) -> Any:
        """A call with the weights as arguments: they are bound for this call only."""
        values = {parameter.name: value for parameter, value in given}
        steps: list[Executable[Any, Any]] = [self]
        try:
            while not steps[-1]._prepared:
                parameter = self._function.parameters[steps[-1]._taken]
                steps.append(steps[-1].prepare(values.pop(parameter.name, parameter.pattern)))
            structure = steps[-1]._call([each for each in given if each[0].name in values], keep, stop)
            for buffer in [leaf for _, leaf in leaves(structure, _is_buffer)]:
                buffer.wait()
            return structure
        finally:
            for step in steps[1:]:
                step.close()

    def _bind_arguments(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[tuple[Parameter, Any]]:
        """Values for the parameters that are not bound; values that are part of the program must stay what they are."""
        rest = self._function.parameters[self._taken :]
        names = [parameter.name for parameter in rest]
        given = dict(zip(names, args, strict=False))
        strange = [name for name in keywords if name not in names]
        if len(args) > len(rest) or strange or given.keys() & keywords.keys():
            got = f"{len(args)} arguments" + (f" and {', '.join(strange or keywords)}" if keywords else "")
            raise RunError(f"{self.name}: the arguments do not fit", expected=", ".join(names), got=got)
        given |= keywords
        found: list[tuple[Parameter, Any]] = []
        for parameter in rest:
            if parameter.slots:
                if parameter.name not in given:
                    message, remedy = f"no value for {parameter.name}", f"pass {parameter.name}=…"
                    if not self._prepared:
                        message, remedy = "the weights are not bound", "executable = executable.prepare(weights)"
                    got = ", ".join(given) or "none"
                    raise RunError(f"{self.name}: {message}", expected=", ".join(names), got=got, remedy=remedy)
                found.append((parameter, given[parameter.name]))
            elif parameter.name in given and not _is_same(given[parameter.name], parameter.pattern):
                raise RunError(
                    f"{self.name}: {parameter.name} is part of the program",
                    expected=parameter.pattern,
                    got=given[parameter.name],
                    remedy="compile it again for another value",
                )
        return found

    def _check_value(self, slot: Slot, path: str, given: Any) -> Any:
        """A HostBuffer, or a buffer of the engine's device, whose shape and element type fit."""
        what = f"{self.name}: {path}"
        if hasattr(given, "client"):
            if self._function.on_host:
                raise DeviceError(
                    f"{what} is on another device", expected="host memory", got=repr(given), remedy=".to_host() first"
                )
            check_shape(given.shape, slot.shape, what)
            return given
        if isinstance(given, HostBuffer):
            check_array(given.numpy(), slot.shape, what)
            return given
        array = check_array(given.numpy() if is_tensor(given) else _as_numpy(given), slot.shape, what)
        return HostBuffer(array, Shape.of(slot.shape.dtype, array.shape), owns=False)

    def _solve(self, values: Mapping[int, Any], what: str) -> tuple[int, dict[str, int]]:
        """The path for these sizes, and the values of all symbols that they determine."""
        function = self._function
        known = dict(function.sizes)
        if not function.dynamic:
            return 0, known
        dynamic_slots = [i for i in function.dynamic if i in values]
        key = tuple(sizes_of(values[i]) for i in dynamic_slots)
        complete = len(values) == len(function.slots)
        if complete and key in function.chosen:
            return function.chosen[key]
        patterns = [size for i in dynamic_slots for size in function.slots[i].shape.sizes]
        try:
            known |= solve(patterns, [size for sizes in key for size in sizes])
        except ShapeError as error:
            shapes = ", ".join(f"{function.slots[i].name}: {function.slots[i].shape}" for i in dynamic_slots)
            got = ", ".join(f"{function.slots[i].name}: {list(sizes_of(values[i]))}" for i in dynamic_slots)
            message = f"{self.name}: the sizes of {what} do not fit together"
            raise SizeError(message, expected=shapes, got=got) from error
        index = self._choose(known, complete)
        if complete and len(function.chosen) < REMEMBERED:
            function.chosen[key] = index, known
        return index, known

    def _choose(self, known: Mapping[str, int], complete: bool) -> int:
        paths = self._resources().paths
        for index, path in enumerate(paths):
            if not _broken_facts(path.guards, known):
                broken = _broken_facts(self._function.facts | path.assumed, known)
                if broken and (complete or len(paths) == 1):
                    raise SizeError(f"{self.name}: a fact does not hold", expected=", ".join(broken), got=dict(known))
                return index
        raise SizeError(f"{self.name}: no path through the function covers these sizes", got=dict(known))

    def _donate(self, values: dict[int, Any], keep: bool) -> list[tuple[int, Any]]:
        """The caller's buffers that this call consumes. The engine may write into memory that no one else sees."""
        function = self._function
        used: list[tuple[int, Any]] = []
        times = Counter(map(id, values.values())) if function.donated else Counter[int]()
        for slot in sorted(function.donated):
            given = values[slot]
            name = function.slots[slot].name
            if times[id(given)] > 1:
                raise RunError(f"the input {name!r} is donated and given twice", remedy=".copy() one of them")
            stays = keep or slot in self._bound
            if not stays and not (function.in_place and hasattr(given, "client")):  # which its engine marks itself
                used.append((slot, given))
            if function.in_place and (stays or (function.on_host and not _is_exclusive(given))):
                values[slot] = given.copy()
        return used

    def _run(
        self,
        path: CompiledPath,
        values: Mapping[int, Any],
        sizes: Mapping[str, int],
        work: int | None,
        stop: Stop | None,
    ) -> Sequence[Any]:
        function, data, compiled = self._function, self._data, path.compiled
        inputs = [values[i] for i, slot in enumerate(function.slots) if not slot.weight]
        if not function.on_host:
            return _with_data(data, compiled, inputs, stop)
        shapes = path.shapes_for(sizes)
        if work is None or work < LONG or shapes is None:
            arrays = [each.numpy() for each in inputs]
            made = QUEUE.now(lambda: _with_data(data, compiled, arrays, stop))
            theirs = [] if function.in_place else arrays  # what is donated may come back as a result
            return [_buffer(result, shape, theirs) for result, shape in zip(made, path.shapes, strict=True)]
        # The call returns before it has run, so that the caller's own arrays are copied now.
        arrays = [each.numpy() if each.owns else np.array(each.numpy()) for each in inputs]
        given_up = None if stop is not None and stop.cancel is not None else Cancel()
        ends = stop if given_up is None else Stop(None if stop is None else stop.timeout, given_up)
        started = QUEUE.later(lambda: _with_data(data, compiled, arrays, ends))
        for each in inputs:
            each.read_until(started.done)
        return [HostBuffer.later(partial(_wait_result, started, i, given_up), shape) for i, shape in enumerate(shapes)]

    # ---- cost ----

    def memory(self, **sizes: int) -> Memory:
        """Bytes that a run needs. Dynamic dimensions that are not given count as 1; XLA counts for the latest sizes."""
        path = self._only_path("several programs")
        counted_by_engine = getattr(path.compiled, "memory", None)
        if not self._function.on_host and callable(counted_by_engine):
            return cast(Memory, counted_by_engine())
        known = {**dict.fromkeys(path.symbols, 1), **self._function.sizes, **sizes}
        footprint = getattr(self.platform.engine, "footprint", None)
        counted = cost.memory(path.program.main, known)
        if footprint is None:
            return Memory(counted.arguments, counted.results, counted.peak)
        parts = footprint(path.program).parts(known)
        return Memory(counted.arguments, parts["results"], parts["temporaries"])

    def cost(self, **sizes: int) -> Cost:
        """What a run does. Dynamic dimensions that are not given count as 1; XLA counts for the latest sizes."""
        path = self._only_path("several programs")
        counted_by_engine = getattr(path.compiled, "cost", None)
        if not self._function.on_host and callable(counted_by_engine):
            return cast(Cost, counted_by_engine())
        known = {**dict.fromkeys(path.symbols, 1), **self._function.sizes, **sizes}
        counted = cost.memory(path.program.main, known)
        operations = cost.operations(path.program)
        return Cost(float(evaluate(operations, known)), float(counted.arguments + counted.results))

    # ---- files ----

    def serialize(self) -> bytes:
        """It as bytes, for `smelt.deserialize`: a bundle, or XLA's program without weights from the pjrt engine.

        What comes back takes and gives arrays in order; another platform or version is refused with the reason.
        """
        compiled = self._only_path("several programs, which do not go into one file").compiled
        counted_by_engine = getattr(compiled, "serialize", None)
        if counted_by_engine is None:
            raise self._cannot_save()
        return bytes(counted_by_engine())

    def save(self, path: str | Path) -> None:
        """Write it to a file, which appears whole or not at all; `smelt.load(path)` takes it back, and `smelt serve`
        serves it."""
        found = self._only_path("several programs, which do not go into one file")
        compiled = found.compiled
        if isinstance(compiled, Storable):
            stored = compiled.to_stored()
            is_bound = all(variant.bound is not None for each in stored.programs for variant in each.variants)
            proof = describe_batching(found.program.main) if is_bound else {}  # weights of a caller have no rows
            write_bundle(Path(path), stored.replace(name=self.name, provenance={**stored.provenance, **proof}))
        elif hasattr(compiled, "serialize"):
            write_atomically(path, [self.serialize()])
        else:
            raise self._cannot_save()

    def _cannot_save(self) -> SmeltError:
        return UnsupportedError(
            f"{self.name} cannot be saved",
            expected="a program of the native or pjrt engine without calls into Python",
            got=f"the {self.platform.engine.name} engine",
        )

    # ---- closing ----

    def close(self) -> None:
        """Free its memory, weights included. Closing twice is harmless; calling afterwards is an error."""
        if self._held is not None:
            self._held.release()
        self._held = None
        self._bound, self._seen = {}, {}

    def __enter__(self) -> Executable[P, R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resources(self) -> Resources:
        if self._held is None:
            raise RunError(f"{self.name}: the executable is closed", remedy="compile the function again")
        return self._held

    def _only_path(self, otherwise: str) -> CompiledPath:
        paths = self._resources().paths
        if len(paths) != 1:
            raise UnsupportedError(f"{self.name} has {otherwise}", got=f"{len(paths)} programs")
        return paths[0]


# ---- values ----


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of a weight that the engine holds, which later arguments have to fit."""

    shape: tuple[int, ...]


def _shape_of(given: Any) -> Any:
    """What a remembered call is found by: an array's sizes, or the shape of a buffer on a device; None for the rest."""
    if type(given) is np.ndarray:
        return given.shape
    return given.shape if hasattr(given, "client") else None


def _as_numpy(given: Any) -> Any:
    if isinstance(given, np.ndarray) or not hasattr(given, "__dlpack__") or hasattr(given, "__array__"):
        return given
    return np.from_dlpack(given)


def _is_same(given: Any, known: Any) -> bool:
    return given is known or (type(given) is type(known) and bool(given == known))


def _broken_facts(facts: Facts, values: Mapping[str, int]) -> list[str]:
    return [str(fact) for fact in facts if fact.symbols <= values.keys() and not fact.holds(values)]


def _with_data(
    data: Mapping[Callable[..., Any], Any], compiled: Compiled, inputs: Sequence[Any], stop: Stop | None
) -> tuple[Any, ...]:
    """The results of a run in which functions that it calls find what was bound to them."""
    if not data:
        return compiled(*inputs, stop=stop)
    token = DATA.set(data)
    try:
        return compiled(*inputs, stop=stop)
    finally:
        DATA.reset(token)


def _wait_result(started: Future[tuple[Any, ...]], index: int, given_up: Cancel | None) -> Array:
    """A result of a call on the queue. Interrupting the wait (Ctrl-C) cancels the call."""
    try:
        array: Array = started.result()[index]
    except KeyboardInterrupt:
        if given_up is not None:
            given_up.cancel()
        raise
    return array


def _buffer(result: Array, shape: Shape, inputs: Sequence[Array]) -> HostBuffer:
    looks = result.base is not None  # at memory that may be an input's
    shared = not result.flags.writeable or any(
        result is array or (looks and np.may_share_memory(result, array)) for array in inputs
    )
    return HostBuffer(result, Shape.of(shape.dtype, result.shape), owns=not shared)


def _is_exclusive(given: Any) -> bool:
    """Whether only the buffer's owner sees its memory."""
    return not isinstance(given, HostBuffer) or (given.owns and given.numpy().flags.writeable and not given.is_read)


def _is_buffer(value: Any) -> bool:
    return hasattr(value, "wait") and hasattr(value, "delete")


def _evaluate(size: Size, sizes: Mapping[str, int]) -> int | None:
    try:
        return evaluate(size, sizes)
    except ShapeError:
        return None
