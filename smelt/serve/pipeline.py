"""Pipelines: models and Python steps as one endpoint. Files → steps, the proof that they fit, and their calls.

At each joint the element type must be equal and every size proven equal for all values of the symbols, when the
pipeline is loaded. Models keep their own queues, so requests of several pipelines share batches.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from smelt.dim import equal
from smelt.dtype import Array
from smelt.engine_api import Port, Signature
from smelt.errors import FileError, ShapeError, SmeltError, UnsupportedError
from smelt.serve.config import ModelConfig, StepConfig
from smelt.serve.problems import BusyError, DeadlineError, RequestError, UnavailableError
from smelt.serve.queue import Inputs, Timing
from smelt.serve.step import ModelStep, PythonStep, Value
from smelt.size import Size, evaluate, substitute, symbol, symbols

SUFFIX = ".py"
LIST = "PIPELINE"  # the name of the list of steps in a Python file
STRINGS = ("",)  # the table of labels of a port that takes any strings


class Called(Protocol):
    """A served model, as a step sees it."""

    @property
    def inputs(self) -> tuple[Port, ...]: ...
    @property
    def outputs(self) -> tuple[Port, ...]: ...
    @property
    def queue(self) -> Any: ...
    @property
    def sequences(self) -> Any: ...


Steps = Sequence[tuple[PythonStep | ModelStep, StepConfig]]
Demand = Callable[[str], Awaitable[Called]]  # a name → the model once it is ready, or an error


class StepError(SmeltError):
    """A step that failed, or returned something else than it declares: the author's mistake, not the client's."""

    advice = "correct the step; the server's log has its traceback"


def is_pipeline(config: ModelConfig, path: Path) -> bool:
    return bool(config.steps) or path.suffix == SUFFIX


# ---- reading ----


@dataclass(frozen=True, slots=True)
class Stage:
    """A step with the names of the pipeline's values in place of its own."""

    step: PythonStep | ModelStep
    takes: Mapping[str, str]  # its input → a value
    gives: Mapping[str, str]  # its output → a value
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]

    @property
    def name(self) -> str:
        return self.step.name


def read_steps(config: ModelConfig, path: Path) -> Steps:
    """The steps that a Python file or a configuration lists, and the names that a configuration gives their values."""
    if path.suffix == SUFFIX:
        listed = getattr(_import(path), LIST, None)
        if not isinstance(listed, list | tuple) or not listed:
            raise FileError(
                f"{path} has no steps",
                expected=f'{LIST} = [function, "model", …]',
                got=repr(listed)[:80],
                remedy=f"{LIST} = [function, …] at the end of the file",
            )
        return [(_as_step(each, path), StepConfig()) for each in listed]
    if any(each.python for each in config.steps) and not config.trusted:
        raise UnsupportedError(
            f"{config.name or path}: Python steps run inside the server", remedy="trusted = true in its configuration"
        )
    return [(_read_step(each, path), each) for each in config.steps]


def _as_step(each: Any, path: Path) -> PythonStep | ModelStep:
    if isinstance(each, PythonStep | ModelStep):
        return each
    if isinstance(each, str):
        return ModelStep(each)
    raise FileError(
        f"{path}: {each!r} is no step",
        expected="a function with @smelt.serve.step.step, a model's name, or use(…)",
        remedy="put @step(…) above the function",
    )


def _read_step(said: StepConfig, folder: Path) -> PythonStep | ModelStep:
    if bool(said.python) == bool(said.model):
        raise FileError(
            f"{folder}: a step is wrong",
            expected='python = "FILE.py:FUNCTION" or model = "NAME"',
            remedy="give one of the two",
        )
    if said.model:
        return ModelStep(said.model)
    file, _, name = said.python.rpartition(":")
    if not file:
        raise FileError(
            f"{folder}: {said.python!r} is no step",
            expected='python = "FILE.py:FUNCTION"',
            remedy="name the function behind a colon",
        )
    found = getattr(_import(folder / file), name, None)
    if not isinstance(found, PythonStep):
        raise FileError(
            f"{folder / file} has no step {name!r}",
            expected="a function with @step(…)",
            remedy="from smelt.serve.step import step",
        )
    return found


def _import(path: Path) -> Any:
    """A Python file as a module that nothing else imports; a changed file is read again, whatever bytecode was kept."""
    if not path.is_file():
        raise FileError("no such file", got=path, remedy="check the path in the configuration")
    spec = importlib.util.spec_from_file_location(f"smelt_pipeline_{path.stem}", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    try:
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(module))
    except SmeltError:
        raise
    except Exception as error:  # the author's code
        raise FileError(
            f"{path} cannot be imported",
            got=f"{type(error).__name__}: {error}",
            remedy="run the file with python to see the error",
        ) from error
    return module


# ---- proving ----


def connect(steps: Steps, models: Mapping[str, Called]) -> tuple[list[Stage], dict[str, Value], dict[str, Value]]:
    """The stages, the pipeline's inputs and its outputs (those of the last step). Raises where two do not fit."""
    known: dict[str, tuple[Value, str]] = {}  # value → what it is, and the step that gives it
    asked: dict[str, Value] = {}
    fresh = _Fresh()
    stages: list[Stage] = []
    for number, (each, said) in enumerate(steps, 1):
        stage = _stage(each, said, models)
        where = f"step {number} ({stage.name})"
        bound: dict[str, Size] = {}
        joints = [(own, name) for own, name in stage.takes.items() if name in known]
        for own, name in joints:
            _bind(stage.inputs[own], known[name], own, where, bound)
        for own, name in joints:
            _prove(stage.inputs[own], known[name], own, where, bound)
        for own, name in stage.takes.items():
            if name not in known:
                asked[name] = _with_sizes(stage.inputs[own], bound, fresh)
                known[name] = asked[name], "the request"
        for own, name in stage.gives.items():
            known[name] = _with_sizes(stage.outputs[own], bound, fresh), where
        stages.append(stage)
    return stages, asked, {name: known[name][0] for name in stages[-1].gives.values()}


def _stage(each: PythonStep | ModelStep, said: StepConfig, models: Mapping[str, Called]) -> Stage:
    if isinstance(each, PythonStep):
        inputs, outputs = dict(each.inputs), dict(each.outputs)
        takes, gives = said.inputs, said.outputs
    else:
        served = models[each.name]
        if served.queue is None:
            raise UnsupportedError(
                f"{each.name} is a language model and no step of a pipeline", remedy="serve it beside the pipeline"
            )
        if served.sequences is not None:
            raise UnsupportedError(f"{each.name} has state and is no step of a pipeline", remedy="serve it alone")
        inputs, outputs = ({p.name: _value(p) for p in ports} for ports in (served.inputs, served.outputs))
        takes, gives = {**each.inputs, **said.inputs}, {**each.outputs, **said.outputs}
    for given, real, what in ((takes, inputs, "input"), (gives, outputs, "output")):
        unknown = [name for name in given if name not in real]
        if unknown:
            raise ShapeError(
                f"{each.name} has no {what} {unknown[0]!r}", expected=", ".join(real), remedy="use one of these names"
            )
    return Stage(
        each,
        {name: takes.get(name, name) for name in inputs},
        {name: gives.get(name, name) for name in outputs},
        inputs,
        outputs,
    )


def _value(port: Port) -> Value:
    return Value(port.shape, bool(port.labels))


class _Fresh:
    """Symbols of the pipeline: the step's own name where it is free."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __call__(self, name: str) -> Size:
        number = 1
        while (made := name if number == 1 else f"{name}{number}") in self._taken:
            number += 1
        self._taken.add(made)
        return symbol(made)


def _bind(need: Value, have: tuple[Value, str], own: str, where: str, bound: dict[str, Size]) -> None:
    """The element type and the rank; a size that is a symbol of the step's own stands for what comes."""
    given = have[0]
    same = need.strings == given.strings and (need.strings or need.shape.dtype == given.shape.dtype)
    if not same or need.shape.rank != given.shape.rank:
        raise _misfit(need, have, own, where, "the element types differ" if not same else "the ranks differ")
    for wanted, real in zip(need.shape.sizes, given.shape.sizes, strict=True):
        if not isinstance(wanted, int) and wanted == symbol(str(wanted)):
            bound.setdefault(str(wanted), real)


def _prove(need: Value, have: tuple[Value, str], own: str, where: str, bound: Mapping[str, Size]) -> None:
    for axis, (wanted, real) in enumerate(zip(need.shape.sizes, have[0].shape.sizes, strict=True)):
        if symbols(wanted) - bound.keys():
            raise _misfit(need, have, own, where, f"axis {axis}: {wanted} does not say what its symbols are")
        size = substitute(wanted, bound)
        answer = equal(size, real)
        if not answer:
            raise _misfit(need, have, own, where, f"axis {axis}: {size} = {real} is not so for all sizes")


def _misfit(need: Value, have: tuple[Value, str], own: str, where: str, why: str) -> ShapeError:
    given, origin = have
    return ShapeError(
        f"{where}: the input {own!r} does not fit: {why}",
        expected=need,
        got=f"{given} from {origin}",
        remedy="convert the value in a Python step before it",
    )


def _with_sizes(value: Value, bound: dict[str, Size], fresh: _Fresh) -> Value:
    """A value in symbols of the pipeline; those that are new get a name there."""
    for name in sorted(value.shape.symbols - bound.keys()):
        bound[name] = fresh(name)
    return Value(value.shape.substitute(bound), value.strings)


# ---- running ----


class Pipeline:
    """A pipeline that fits: what the server shows and calls like a model."""

    engine = "pipeline"
    optional: tuple[Port, ...] = ()
    memory = None

    def __init__(
        self, name: str, config: ModelConfig, steps: Steps, models: Mapping[str, Called], demand: Demand
    ) -> None:
        self.name, self.demand = name, demand
        self.stages, inputs, outputs = connect(steps, models)
        ports = [
            tuple(Port(key, value.shape, STRINGS if value.strings else ()) for key, value in side.items())
            for side in (inputs, outputs)
        ]
        self.signature = Signature(ports[0], ports[1])
        self._threads = ThreadPoolExecutor(max(1, config.instances), thread_name_prefix=f"smelt-{name}")

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def run(self, inputs: Inputs, deadline: float | None, priority: int, client: str = "") -> dict[str, Array]:
        values: dict[str, Array] = dict(inputs)
        for stage in self.stages:
            given = {own: values[name] for own, name in stage.takes.items()}
            if isinstance(stage.step, PythonStep):
                made = await self._python(stage, stage.step, given, deadline)
            else:
                made = await self._model(stage, given, deadline, priority, client)
            values |= {name: made[own] for own, name in stage.gives.items()}
        return {name: values[name] for name in self.stages[-1].gives.values()}

    async def _python(
        self, stage: Stage, step: PythonStep, given: Mapping[str, Array], deadline: float | None
    ) -> dict[str, Array]:
        work = asyncio.get_running_loop().run_in_executor(self._threads, lambda: call_step(step, given))
        try:
            async with asyncio.timeout(_time_left(self.name, deadline)):
                return await work
        except TimeoutError:
            raise DeadlineError(f"{self.name}: {stage.name} took too long") from None

    async def _model(
        self, stage: Stage, given: Mapping[str, Array], deadline: float | None, priority: int, client: str
    ) -> dict[str, Array]:
        served = await self.demand(stage.name)
        if {port.name: _value(port) for port in served.inputs} != stage.inputs:
            raise UnavailableError(f"{stage.name} has changed", remedy=f"load {self.name} again")
        outputs: dict[str, Array]
        outputs, _ = await served.queue.infer(given, _time_left(self.name, deadline), priority, client)
        return outputs


def _time_left(name: str, deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.perf_counter()
    if left <= 0:
        raise DeadlineError(f"{name}: the deadline passed")
    return left


def call_step(step: PythonStep, given: Mapping[str, Array]) -> dict[str, Array]:
    """Call a function and hold it to what it declares. Its ValueErrors are the client's mistakes."""
    try:
        made = step.function(**given)
    except SmeltError:
        raise
    except ValueError as error:
        raise RequestError(f"{step.name}: {error}") from error
    except Exception as error:
        raise StepError(f"{step.name} failed", got=f"{type(error).__name__}: {error}") from error
    if not isinstance(made, Mapping):
        made = {next(iter(step.outputs)): made} if len(step.outputs) == 1 else made
    if not isinstance(made, Mapping) or made.keys() != step.outputs.keys():
        got = ", ".join(made) if isinstance(made, Mapping) else type(made).__name__
        raise StepError(f"{step.name} returned something else", expected=", ".join(step.outputs), got=got)
    sizes: dict[str, int] = {}
    for name, value in step.inputs.items():
        _measure(step, name, given[name], value, sizes)
    found = {name: np.asarray(array) for name, array in made.items()}
    for name, value in step.outputs.items():
        _measure(step, name, found[name], value, sizes)
    return found


def _measure(step: PythonStep, name: str, array: Array, value: Value, sizes: dict[str, int]) -> None:
    """Note the values of symbols; an array that contradicts them is refused."""
    fits = array.ndim == value.shape.rank
    if value.strings:
        fits = fits and array.dtype.kind in "OUS"
    else:
        fits = fits and array.dtype == value.shape.dtype.numpy
    for wanted, real in zip(value.shape.sizes, array.shape, strict=False) if fits else ():
        if not isinstance(wanted, int) and wanted == symbol(str(wanted)):
            sizes.setdefault(str(wanted), real)
        if not symbols(wanted) - sizes.keys():
            fits = fits and evaluate(wanted, sizes) == real
    if not fits:
        wrong = RequestError if name in step.inputs else StepError
        raise wrong(f"{step.name}: {name!r} does not fit", expected=value, got=f"{array.dtype}{list(array.shape)}")


class PipelineQueue:
    """What the server asks of a model's queue, for a pipeline: its models have queues of their own."""

    def __init__(self, pipeline: Pipeline, most: int, on_call: Callable[[int, float], object]) -> None:
        self.pipeline, self._most, self._on_call = pipeline, most, on_call
        self.waiting = self.running = 0
        self._closed = False

    def is_inline(self, inputs: Inputs) -> bool:
        return False

    async def infer(
        self, inputs: Inputs, timeout: float | None, priority: int = 0, client: str = ""
    ) -> tuple[dict[str, Array], Timing]:
        if self._closed:
            raise UnavailableError(f"{self.pipeline.name} is being unloaded", retry_after=1)
        if self.running > self._most:
            raise BusyError(
                f"{self.pipeline.name} is busy", expected=f"at most {self._most + 1} requests at once", retry_after=1
            )
        started = time.perf_counter()
        self.running += 1
        try:
            found = await self.pipeline.run(inputs, None if timeout is None else started + timeout, priority, client)
        finally:
            self.running -= 1
        spent = time.perf_counter() - started
        rows = max((len(array) for array in inputs.values() if array.ndim), default=1)
        self._on_call(rows, spent)
        return found, Timing(0.0, spent, rows, rows)

    def close(self) -> None:
        self._closed = True

    async def drain(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.running and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return not self.running
