"""Interleaved measurements of engines: each in its own process, with all but one stopped, and outputs compared.

A model, inputs and engine names → times of the calls, reasons for skipped engines, differences of outputs. `smelt
bench` and `bench/models/compare.py` call it. Idle threads of some engines spin and would slow down the measured one, so
the other processes are stopped (SIGSTOP).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smelt.cli import peer
from smelt.dtype import Array
from smelt.errors import SmeltError, error_of

OURS = ("smelt", "jax")  # engines that run in smelt's own Python
ENGINES = (*OURS, *peer.PEERS)
# Relative to the output's scale.
TOLERANCE = {"f32": 1e-3, "tf32": 1e-2, "bf16": 5e-2, "bf16_activations": 5e-2, "int8": 5e-2, "fp8": 1e-1}
CAN_STOP = hasattr(signal, "SIGSTOP")


@dataclass(frozen=True, slots=True)
class Setup:
    """The parameters of a measurement, the same for every engine."""

    threads: int
    precision: str = "f32"
    seconds: float = 5.0  # for one model, over all engines
    rounds: int = 5
    solo: bool = True  # also measure every engine alone
    limit: float = 900.0  # timeout of an engine's answer, in seconds
    ours: Mapping[str, Any] = field(default_factory=dict)  # options of `smelt.load`
    pythons: Mapping[str, str] = field(default_factory=dict)  # engine → the Python that has it
    original: Path | None = None  # the file for peers if the model is a bundle


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of the calls of one engine, and its median when measured alone."""

    version: str
    values: tuple[float, ...]
    first: float
    solo: float | None = None

    def summary(self) -> dict[str, Any]:
        low, median, high = np.percentile(self.values, [10, 50, 90])
        record = {"median_ms": float(median), "p10": float(low), "p90": float(high), "runs": len(self.values)}
        return record if self.solo is None else record | {"solo_ms": self.solo}

    @property
    def median(self) -> float:
        return float(np.median(self.values))


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference between the outputs of two engines: absolute, and relative to the output's scale."""

    engines: tuple[str, str]
    absolute: float
    relative: float
    agree: bool
    what: str = ""

    def record(self) -> dict[str, Any]:
        apart = {"max_abs": self.absolute, "max_rel": self.relative}
        known = {name: value if np.isfinite(value) else None for name, value in apart.items()}  # JSON has no infinity
        record = {"engines": list(self.engines), **known, "agree": self.agree}
        return record | ({"what": self.what} if self.what else {})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one model. `skipped`: engine → why it is missing; `failed`: engine → its error. `errors` are those
    of smelt."""

    times: dict[str, Times]
    skipped: dict[str, str]
    failed: dict[str, str]
    differences: list[Difference]
    errors: dict[str, SmeltError] = field(default_factory=dict)

    @property
    def unsteady(self) -> dict[str, float]:
        """Engines whose interleaved median differs by more than 5 % from the one alone, and the ratio."""
        apart = {name: each.median / each.solo - 1 for name, each in self.times.items() if each.solo}
        return {name: part for name, part in apart.items() if abs(part) > 0.05}


def measure(model: Path, engines: Sequence[str], inputs: Mapping[str, Array], setup: Setup) -> Outcome:
    """Measure engines on one model: each alone, then interleaved."""
    unknown = [name for name in engines if name not in ENGINES]
    if unknown:
        raise SmeltError(
            "unknown engine", expected=", ".join(ENGINES), got=", ".join(unknown), remedy=f"--against {ENGINES[1]}"
        )
    with tempfile.TemporaryDirectory(prefix="smelt-rounds-") as name:
        folder = Path(name)
        job = _job(model, inputs, folder, setup)
        out: dict[str, WorkerError] = {}
        solo = _alone(engines, job, folder, setup, out) if setup.solo else {}
        with ExitStack() as stack:
            workers = {}
            for engine in engines:
                if engine not in out:
                    try:
                        workers[engine] = stack.enter_context(Worker(engine, job, folder, setup))
                    except WorkerError as error:
                        out[engine] = error
            values = _turns(workers, setup)
        times = {
            engine: Times(worker.version, tuple(values[engine]), worker.first, solo.get(engine))
            for engine, worker in workers.items()
        }
        outputs = {engine: _outputs(folder / f"{engine}.npz") for engine in workers}
    skipped, failed = (
        {name: str(error) for name, error in out.items() if error.missing is missing} for missing in (True, False)
    )
    errors = {name: error.own for name, error in out.items() if error.own is not None}
    return Outcome(times, skipped, failed, differences(outputs, TOLERANCE[setup.precision]), errors)


def _alone(
    engines: Sequence[str], job: Mapping[str, Any], folder: Path, setup: Setup, out: dict[str, WorkerError]
) -> dict[str, float]:
    """The median of each engine while no other worker exists; engines without one are added to `out`."""
    medians: dict[str, float] = {}
    for engine in engines:
        try:
            with Worker(engine, job, folder, setup) as worker:
                medians[engine] = float(np.median(worker.time(setup.seconds / (2 * len(engines)))))
        except WorkerError as error:
            out[engine] = error
    return medians


def _turns(workers: Mapping[str, Worker], setup: Setup) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {engine: [] for engine in workers}
    for turn in range(setup.rounds):
        order = list(workers) if turn % 2 == 0 else list(workers)[::-1]
        for engine in order:
            values[engine] += workers[engine].time(setup.seconds / (setup.rounds * len(workers)))
    return values


# ---- workers ----


class WorkerError(Exception):
    """A worker failed; the message is the reason. `missing`: the engine, or a file that it needs, is missing; `own`:
    the error of smelt."""

    def __init__(self, reason: str, *, missing: bool = False, own: SmeltError | None = None) -> None:
        super().__init__(reason)
        self.missing, self.own = missing, own


class Worker:
    """A process with one engine and one model. It is stopped unless a request is pending."""

    def __init__(self, engine: str, job: Mapping[str, Any], folder: Path, setup: Setup) -> None:
        self.engine, self.limit = engine, setup.limit
        self.job = {**job, "engine": engine, "outputs": str(folder / f"{engine}.npz")}
        if setup.original is not None and engine != "smelt":
            self.job["model"] = str(setup.original.resolve())
        self.log = folder / f"{engine}.log"
        self.version, self.first = "", 0.0
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                _command(engine, setup.pythons),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(setup.threads),
                start_new_session=True,
            )

    def __enter__(self) -> Worker:
        try:
            answer = self._ask(self.job)
        except BaseException:
            self.close()
            raise
        self.version, self.first = str(answer["version"]), float(answer["first_ms"])
        self._signal("SIGSTOP")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def time(self, seconds: float) -> list[float]:
        """Milliseconds of each call during about `seconds`, after a warm-up."""
        self._signal("SIGCONT")
        try:
            return [float(value) for value in self._ask({"seconds": seconds, "least": 3})["ms"]]
        finally:
            self._signal("SIGSTOP")

    def close(self) -> None:
        self._signal("SIGKILL")
        self.process.communicate()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._last_words()) from None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(self.limit):
                raise WorkerError(f"no answer within {self.limit:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        for key in ("missing", "error"):
            if key in answer:
                own = error_of(answer["record"]) if "record" in answer else None
                raise WorkerError(str(answer[key]), missing=key == "missing", own=own)
        return answer

    def _last_words(self) -> str:
        status = self.process.wait()
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"the worker ended with status {status}: {lines[-1][:500] if lines else 'it said nothing'}"

    def _signal(self, name: str) -> None:
        if self.process.poll() is None and CAN_STOP:
            os.killpg(self.process.pid, getattr(signal, name))
        elif self.process.poll() is None and name == "SIGKILL":
            self.process.kill()


def _command(engine: str, pythons: Mapping[str, str]) -> list[str]:
    if engine in OURS:
        return [pythons.get(engine, sys.executable), "-P", "-m", "smelt.cli.worker"]
    return [pythons.get(engine, sys.executable), "-I", str(Path(peer.__file__).resolve())]


def _environment(threads: int) -> dict[str, str]:
    """Environment variables that set the number of threads of engines."""
    names = ("SMELT_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads))}


def python_of(items: Sequence[str], known: Sequence[str] = ENGINES) -> dict[str, str]:
    """`ENGINE=PATH`: the Python that has an engine."""
    pairs = [item.partition("=") for item in items]
    for name, equals, path in pairs:
        if not equals or not path or name not in known:
            expected = f"ENGINE=PATH with one of {', '.join(known)}"
            raise SmeltError(
                "--python is not understood",
                expected=expected,
                got=f"{name}{equals}{path}",
                remedy=f"--python {known[-1]}=PATH",
            )
    return {name: path for name, _, path in pairs}


def processors() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _job(model: Path, inputs: Mapping[str, Array], folder: Path, setup: Setup) -> dict[str, Any]:
    path = folder / "inputs.npz"
    arrays: dict[str, Any] = {str(i): _writable(np.asarray(array)) for i, array in enumerate(inputs.values())}
    np.savez(path, **arrays)
    return {
        "model": str(model.resolve()),
        "inputs": str(path),
        "names": {name: np.asarray(array).dtype.name for name, array in inputs.items()},
        "threads": setup.threads,
        "precision": setup.precision,
        "ours": dict(setup.ours),
    }


def _writable(array: Array) -> Array:
    """An array that NumPy saves without pickle: strings in a list, narrow floats as their bits."""
    if array.dtype.kind == "O":
        return array.astype(str)
    return array if array.dtype.kind in peer.NUMPY else array.view(f"u{array.dtype.itemsize}")


# ---- outputs ----


def _outputs(path: Path) -> list[Array]:
    with np.load(path) as file:
        return [file[str(i)] for i in range(len(file.files))]


def differences(outputs: Mapping[str, Sequence[Array]], tolerance: float) -> list[Difference]:
    """Compare every engine with the first one."""
    if not outputs:
        return []
    first, *others = outputs
    return [_difference((first, other), outputs[first], outputs[other], tolerance) for other in others]


def _difference(
    engines: tuple[str, str], ours: Sequence[Array], theirs: Sequence[Array], tolerance: float
) -> Difference:
    if len(ours) != len(theirs):
        return Difference(engines, np.inf, np.inf, False, f"{len(ours)} outputs and {len(theirs)}")
    absolute = relative = 0.0
    agree = True
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.size != b.size:
            return Difference(engines, np.inf, np.inf, False, f"output {i}: {list(a.shape)} and {list(b.shape)}")
        most, part = _apart(a.reshape(-1), b.reshape(-1))
        if not np.isfinite(most):
            return Difference(engines, np.inf, np.inf, False, f"output {i}: not finite in one of them")
        absolute, relative = max(absolute, most), max(relative, part)
        agree = agree and (part <= tolerance if a.dtype.kind in "fc" else most <= _allowance(a))
    return Difference(engines, absolute, relative, agree)


def _allowance(array: Array) -> float:
    """The tolerance of integers: 0, but 1 for int8 and uint8, which quantisation may round either way."""
    return 1.0 if array.dtype.kind in "iu" and array.dtype.itemsize == 1 else 0.0


def _apart(a: Array, b: Array) -> tuple[float, float]:
    """The largest difference, absolute and relative to the largest value; 1 for strings that differ."""
    if not all(each.dtype.kind in "biufc" for each in (a, b)):
        unequal = float(np.any(a != b))
        return unequal, unequal
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    x, y = a.astype(wide), b.astype(wide)
    unequal = ~((x == y) | (np.isnan(x) & np.isnan(y)))  # infinities of one sign are equal
    if not unequal.any():
        return 0.0, 0.0
    x, y = x[unequal], y[unequal]
    if not (np.isfinite(x) & np.isfinite(y)).all():
        return np.inf, np.inf
    most = float(np.abs(x - y).max())
    return most, most / (float(np.abs(b[np.isfinite(b)]).max()) or 1.0)
