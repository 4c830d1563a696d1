"""The official ONNX backend suite on an engine, as the onnx package brings it.

    python tests/conformance/onnx_suite.py [--engine reference|native] [--json FILE] [--jobs N] [--filter TEXT]

A case passes when its model reads, compiles, runs, and gives what the suite expects within the suite's own tolerances
(by default rtol 1e-3, atol 1e-7). Inputs whose values shape the program are given at import, as `StaticError` asks for
them. Cases run in worker processes, in groups that the native engine compiles as one C file: one that crashes or hangs
fails alone, and those after it in its group run again one by one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
SECONDS = 120
GROUP = 40  # cases that the native engine compiles as one C file


@dataclass(frozen=True)
class Case:
    """What became of one case: passed or failed, and why; how many kernels the native engine launched."""

    name: str
    status: str
    detail: str
    kernels: int | None = None


class TimeOutError(Exception):
    """A case took too long."""


# ---- the suite ----


@cache
def load_suite() -> list[Any]:
    """Every case of the installed suite, in order of kind and name. Making them takes seconds."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for kind in KINDS for case in sorted(load_model_tests(kind=kind), key=lambda case: case.name)]


def data_of(case: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """The model and its (inputs, expected outputs)."""
    import onnx

    if case.model is not None:
        sets = [([plain(x) for x in inputs], [plain(y) for y in outputs]) for inputs, outputs in case.data_sets]
        return case.model, sets
    if case.model_dir is not None:
        folder = Path(case.model_dir)
        model = onnx.load(folder / "model.onnx")
        return model, [read_set(path, model) for path in sorted(folder.glob("test_data_set_*"))]
    path = Path(onnx.__file__).parents[1] / case.url
    model = onnx.load(path)
    return model, [light_set(path, model)]


def plain(item: Any) -> Any:
    import onnx

    return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def read_set(folder: Path, model: Any) -> tuple[list[Any], list[Any]]:
    def files(stem: str, ports: Any) -> list[Any]:
        count = len(list(folder.glob(f"{stem}_*.pb")))
        return [load_item(folder / f"{stem}_{i}.pb", ports[i].type) for i in range(count)]

    return files("input", model.graph.input), files("output", model.graph.output)


def load_item(path: Path, type: Any) -> Any:
    import onnx
    from onnx import numpy_helper

    data = path.read_bytes()
    if type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def light_set(path: Path, model: Any) -> tuple[list[Any], list[Any]]:
    """The models without weights of their own: inputs count up, as the suite's runner makes them."""
    held = {initializer.name for initializer in model.graph.initializer}
    inputs = []
    for port in model.graph.input:
        if port.name not in held:
            sizes = [d.dim_value if d.HasField("dim_value") else 1 for d in port.type.tensor_type.shape.dim]
            count = int(np.prod(sizes))
            inputs.append((np.arange(count).reshape(sizes) / count).astype(np.float32))
    outputs = [
        load_item(path.with_name(f"{path.stem}_output_{i}.pb"), port.type) for i, port in enumerate(model.graph.output)
    ]
    return inputs, outputs


# ---- one case ----


@dataclass(slots=True)
class Run:
    """A model with a set of inputs: what it becomes, and what it must give."""

    program: Any
    weights: Any
    given: dict[str, Any]
    outputs: Sequence[str]
    expected: list[Any]
    executable: Any = None


class Group:
    """Cases that are compiled together. `results` gives what becomes of each, in order."""

    def __init__(self, engine: str, cases: Sequence[Any]) -> None:
        self.engine, self.cases = engine, cases

    def results(self) -> Iterator[Case]:
        with tempfile.TemporaryDirectory() as folder:
            read = [attempt(read_case, case, Path(folder) / str(i)) for i, case in enumerate(self.cases)]
            found = [each for runs in read if isinstance(runs, list) for each in runs]
            for run, executable in zip(found, self.compile([run.program for run in found]), strict=True):
                run.executable = executable
            for case, runs in zip(self.cases, read, strict=True):
                failure = runs if isinstance(runs, Exception) else attempt(check_case, case, runs)
                if failure is None:
                    yield Case(case.name, "passed", "", launched(runs))
                else:
                    yield Case(case.name, "failed", f"{type(failure).__name__}: {str(failure).strip()[:600]}")

    def compile(self, programs: Sequence[Any]) -> list[Any]:
        """An executable or an error for each program."""
        if self.engine == "native":
            from tests.conformance.native_cases import compile_each

            return compile_each(programs)
        return [attempt(find_engine(self.engine).compile, program) for program in programs]


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns, or the exception that it raises, if only because it takes too long."""
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args)
    except Exception as error:
        return error
    finally:
        signal.alarm(0)


def _alarm(number: int, frame: Any) -> None:
    raise TimeOutError(f"more than {SECONDS} s")


def read_case(case: Any, folder: Path) -> list[Run]:
    model, sets = data_of(case)
    assert sets, "no data"
    held = {initializer.name for initializer in model.graph.initializer}
    names = [port.name for port in model.graph.input]
    if len(sets[0][0]) < len(names):
        names = [name for name in names if name not in held]
    folder.mkdir()
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    outputs = [port.name for port in model.graph.output]
    runs = []
    for inputs, expected in sets:
        given = dict(zip(names, inputs, strict=False))
        runs.append(Run(*read_model(path, given), given, outputs, expected))
    return runs


def read_model(path: Path, given: dict[str, Any]) -> tuple[Any, Any]:
    """The program and the weights, with more inputs known at import as long as the reader asks for them."""
    from smelt.read.onnx import StaticError, read

    static: dict[str, Any] = {}
    while True:
        try:
            return read(path, static)
        except StaticError as error:
            more = {name: given[name] for name in error.inputs if name in given and name not in static}
            if not more:
                raise
            static |= more


def launched(runs: Sequence[Run]) -> int | None:
    """Kernels that ran, where the engine tells."""
    counts = [sum(use.count for use in run.executable.kernels) for run in runs if hasattr(run.executable, "kernels")]
    return sum(counts) if counts else None


def check_case(case: Any, runs: Sequence[Run]) -> None:
    for run in runs:
        if isinstance(run.executable, Exception):
            raise run.executable
        compare(execute(run), run.expected, case.rtol, case.atol)


def execute(run: Run) -> list[Any]:
    from smelt.buffer import as_array

    executable = run.executable.prepare(run.weights)
    signature = executable.signature
    found = [as_array(each) for each in executable(*(np.asarray(run.given[port.name]) for port in signature.inputs))]
    by_name = {port.name: value for port, value in zip(signature.outputs, found, strict=True)}
    for attrs in run.program.main.result_attrs:  # text comes out as places in a table
        if "smelt.labels" in attrs:
            name = attrs["smelt.name"]
            by_name[name] = np.array(attrs["smelt.labels"], object)[by_name[name]]
    return [assemble(name, by_name) for name in run.outputs]


def assemble(name: str, by_name: dict[str, Any]) -> Any:
    """A tensor, or the list whose elements are results of their own."""
    if name in by_name:
        return by_name[name]
    if not any(other.startswith(f"{name}[") for other in by_name):
        return None
    items: list[Any] = []
    while True:
        item = assemble(f"{name}[{len(items)}]", by_name)
        if item is None:
            return items
        items.append(item)


def find_engine(name: str) -> Any:
    if name == "reference":
        from smelt.engine.reference import ReferenceEngine

        return ReferenceEngine()
    raise SystemExit(f"no engine {name!r}")


def compare(outputs: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> None:
    """What the suite's own runner compares: shape, element type, values."""
    assert len(outputs) == len(expected), f"{len(outputs)} outputs instead of {len(expected)}"
    for found, want in zip(outputs, expected, strict=True):
        if want is None or (isinstance(want, list | tuple) and not want):
            assert found is None or len(found) == 0, "an empty optional or sequence was expected"
        elif isinstance(want, list | tuple):
            assert isinstance(found, list | tuple), "a sequence was expected"
            compare(found, want, rtol, atol)
        else:
            assert found is not None, "nothing came out"
            compare_arrays(np.asarray(found), np.asarray(want), rtol, atol)


def compare_arrays(found: Any, want: Any, rtol: float, atol: float) -> None:
    assert found.shape == want.shape, f"shape {found.shape} instead of {want.shape}"
    if want.dtype.kind in "OUS":
        np.testing.assert_array_equal(found, want)
        return
    assert found.dtype == want.dtype, f"{found.dtype} instead of {want.dtype}"
    if want.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)
    if want.dtype.kind == "V" or want.dtype.name.startswith(
        ("bfloat", "float8", "float4", "int4", "uint4", "int2", "uint2")
    ):
        found, want = found.astype(np.float32), want.astype(np.float32)
    np.testing.assert_allclose(found, want, rtol=rtol, atol=atol)


# ---- all cases ----


def serve(path: Path) -> None:
    """A worker: reads `engine index index …` lines, answers each index with one line of JSON. `path`: the pickled
    cases."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints goes to stderr
    cases = pickle.loads(path.read_bytes())
    for line in sys.stdin:
        engine, *indices = line.split()
        for result in Group(engine, [cases[int(index)] for index in indices]).results():
            answers.write(json.dumps(asdict(result)) + "\n")
            answers.flush()


class Worker:
    """A process that runs cases, replaced when one kills it."""

    def __init__(self, cases: Path) -> None:
        self.cases = cases
        self.process: subprocess.Popen[str] | None = None

    def run(self, engine: str, indices: Sequence[int], names: Sequence[str]) -> Iterator[tuple[int, Case]]:
        """What becomes of some cases; where the process dies, those without an answer run again one by one."""
        process = self.process or self.start()
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead, as the first answer shows
            process.stdin.write(" ".join([engine, *map(str, indices)]) + "\n")
            process.stdin.flush()
        for i, index in enumerate(indices):
            answer = self.read(process)
            if answer:
                yield index, Case(**json.loads(answer))
                continue
            self.close()
            if len(indices) == 1:
                yield index, Case(names[index], "failed", "the process died")
                return
            for rest in indices[i:]:
                yield from self.run(engine, [rest], names)
            return

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(self.cases)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return self.process

    def read(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        watch = threading.Timer(2 * SECONDS, process.kill)
        watch.start()
        try:
            return process.stdout.readline()
        finally:
            watch.cancel()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def run_suite(engine: str, jobs: int, text: str = "", part: Callable[[str], bool] = lambda name: True) -> list[Case]:
    """Every case whose name contains a text and belongs to a part, in the suite's order."""
    suite = load_suite()
    names = [case.name for case in suite]
    chosen = [index for index, name in enumerate(names) if text in name and part(name)]
    group = min(GROUP, -(-len(chosen) // jobs)) if engine == "native" and chosen else 1
    todo: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
    for i in range(0, len(chosen), group):
        todo.put(chosen[i : i + group])
    found: dict[int, Case] = {}

    def work(cases: Path) -> None:
        worker = Worker(cases)
        while True:
            try:
                indices = todo.get_nowait()
            except queue.Empty:
                return worker.close()
            found.update(worker.run(engine, indices, names))

    with tempfile.TemporaryDirectory() as folder:
        cases = Path(folder, "cases")
        wanted = set(chosen)
        cases.write_bytes(pickle.dumps({index: case for index, case in enumerate(suite) if index in wanted}))
        threads = [threading.Thread(target=work, args=(cases,)) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [found[index] for index in sorted(found)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The official ONNX backend suite on an engine.")
    parser.add_argument("--engine", default="reference")
    parser.add_argument("--json", type=Path, help="write what became of every case to this file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        serve(options.worker)
        return 0
    began = time.monotonic()
    cases = run_suite(options.engine, options.jobs, options.filter)
    passed = sum(case.status == "passed" for case in cases)
    for case in cases:
        if case.status != "passed":
            print(f"{case.name}: {case.detail.splitlines()[0][:200] if case.detail else ''}")
    kinds = Counter(case.detail.split(":")[0] for case in cases if case.status != "passed")
    if options.engine == "native":
        idle = [case.name for case in cases if case.status == "passed" and not case.kernels]
        print(f"{sum(case.kernels or 0 for case in cases)} kernels; passed without one: {', '.join(idle) or 'none'}")
    print(f"{passed} of {len(cases)} pass on {options.engine} in {time.monotonic() - began:.0f} s; {dict(kinds)}")
    if options.json is not None:
        record = {"engine": options.engine, "total": len(cases), "passed": passed, "cases": [asdict(c) for c in cases]}
        options.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
