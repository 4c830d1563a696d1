"""Runs a folder of StableHLO test programs on an engine and says how many pass.

    python tests/conformance/stablehlo.py DIR [--engine reference|native|pjrt] [--json FILE] [--jobs N] [--filter TEXT]

A case passes when its text parses and verifies, comes back the same from our printer, and runs with every check
holding. Cases run in worker processes: one that crashes or hangs fails alone. `--falsify` changes one expected element
in a copy of each program and counts the copies that are noticed. The native and the pjrt engine take programs in groups
(`native_cases.py`, `pjrt_cases.py`), and a group whose worker dies again one by one.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import queue
import random
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
CHECK_OPS = ("check.expect_",)
CHECK_CALLS = ("check.expect_eq", "check.expect_almost_eq", "check.expect_close", "check.eq")

GROUP = {"native": 40, "pjrt": 20}  # programs that an engine compiles as one

Engine = Callable[[Any, str, Sequence[Any]], Sequence[Any]]  # (program, function, arguments) -> results


@dataclass(frozen=True)
class Case:
    """What became of one file. `status` is passed or failed; when falsifying: noticed, missed, failed or untouched."""

    name: str
    status: str
    detail: str
    kernels: int | None = None  # launched by the native engine


# ---- engines ----


def run_reference(program: Any, func: str, args: Sequence[Any]) -> Sequence[Any]:
    from smelt.ir.interpret import run

    return run(program, args, func=func)


def run_native(program: Any, func: str, args: Sequence[Any]) -> Sequence[Any]:
    from tests.conformance import native_cases

    return native_cases.run_native(program, func, args)


def run_pjrt(program: Any, func: str, args: Sequence[Any]) -> Sequence[Any]:
    from tests.conformance import pjrt_cases

    return pjrt_cases.run_pjrt(program, func, args)


ENGINES: dict[str, Engine] = {"reference": run_reference, "native": run_native, "pjrt": run_pjrt}


def find_engine(name: str) -> Engine:
    """A row of the table, or `FILE.py:function`."""
    if name in ("native", "pjrt"):
        importlib.import_module(f"tests.conformance.{name}_cases")  # what does not import says so here
    if name in ENGINES:
        return ENGINES[name]
    path, _, function = name.rpartition(":")
    if not path.endswith(".py"):
        raise SystemExit(f"unknown engine {name}: one of {', '.join(ENGINES)}, or FILE.py:function")
    spec = importlib.util.spec_from_file_location("engine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    engine: Engine = getattr(module, function)
    return engine


# ---- one case, in a worker ----


class CaseError(Exception):
    """A case failed; the message says at which stage and why."""


def staged(stage: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function; whatever goes wrong carries the name of the stage. Only our own errors are not crashes."""
    from smelt.errors import SmeltError

    try:
        return function(*args)
    except SmeltError as error:
        raise CaseError(f"{stage}: {type(error).__name__}: {error}") from error
    except (Exception, RecursionError) as error:
        raise CaseError(f"{stage}: crash: {type(error).__name__}: {error}") from error


def run_case(path: Path, engine: Engine) -> tuple[str, str]:
    """Status and detail of one file."""
    try:
        text = path.read_text()
        return "passed", run_all(read(text), text, engine)
    except CaseError as failure:
        return "failed", str(failure)


def read(text: str) -> Any:
    """The program of a text that verifies and comes back the same from our printer."""
    from smelt.ir.text import parse, print_program
    from smelt.ir.verify import verify

    program = staged("parse", parse, text)
    staged("verify", verify, program)
    printed = staged("print", print_program, program)
    compare(program, staged("parse again", parse, printed))
    return program


def compare(program: Any, again: Any) -> None:
    from smelt.ir.structure import difference

    found = staged("round trip", difference, program, again)
    if found is not None:
        raise CaseError(f"round trip: {found}")


def run_all(program: Any, text: str, engine: Engine) -> str:
    """Run what a program offers to run; the detail says what was compared."""
    notes = []
    for func in entries(program):
        args, note = arguments(func, text)
        results = staged(f"run @{func.name}", engine, program, func.name, args)
        notes.append(note or compare_results(func, results, text))
    return conclusion(program, notes)


def compare_results(func: Any, results: Sequence[Any], text: str) -> str:
    """Compare with what the file says that its results print as; gives a note of it."""
    printed = printed_results(text)
    if not printed:
        return ""
    staged(f"results of @{func.name}", compare_printed, func, results, printed)
    return f"{len(printed)} printed results compared"


def conclusion(program: Any, notes: Sequence[str]) -> str:
    notes = [note for note in notes if note]
    if not notes and not any(True for _ in find_checks(program)):
        return "it holds no check: it ran, and no result was compared"
    return "; ".join(notes)


# ---- groups of cases on engines that compile them together ----


class Entry(NamedTuple):
    """A function of a case as these engines take it."""

    func: Any
    note: str
    recast: Any


def read_entries(path: Path) -> tuple[Any, str, list[Entry]]:
    from tests.conformance import native_cases

    text = path.read_text()
    program = read(text)
    found = []
    for func in entries(program):
        args, note = arguments(func, text)
        found.append(Entry(func, note, staged(f"read @{func.name}", native_cases.recast, program, func.name, args)))
    return program, text, found


def run_group(engine: str, paths: Sequence[Path]) -> Iterator[tuple[str, str, int]]:
    """Status, detail and kernels of each file, in order, all compiled together."""
    taken = importlib.import_module(f"tests.conformance.{engine}_cases")
    cases: list[tuple[Any, str, list[Entry]] | CaseError] = []
    for path in paths:
        try:
            cases.append(read_entries(path))
        except CaseError as failure:
            cases.append(failure)
    compiled = iter(taken.prepare([each.recast for case in cases if isinstance(case, tuple) for each in case[2]]))
    for case in cases:
        if isinstance(case, CaseError):
            yield "failed", str(case), 0
            continue
        program, text, found = case
        made, kernels, notes = [next(compiled) for _ in found], 0, []
        try:
            for entry, executable in zip(found, made, strict=True):
                ran = staged(f"run @{entry.func.name}", taken.run_prepared, entry.recast, executable)
                kernels += ran.kernels
                notes.append(entry.note or compare_results(entry.func, ran.results, text))
            yield "passed", conclusion(program, notes), kernels
        except CaseError as failure:
            yield "failed", str(failure), kernels


def entries(program: Any) -> list[Any]:
    """@main, or else every function that takes nothing."""
    if "main" in program.funcs:
        return [program.funcs["main"]]
    free = [func for func in program.funcs.values() if not func.args]
    if not free:
        raise CaseError("run: no function without arguments")
    return free


def arguments(func: Any, text: str) -> tuple[list[Any], str]:
    """The arguments that the file's command line gives (`--args="[dense<1> : tensor<2xi32>, ...]"`), else ones."""
    import numpy as np

    if not func.args:
        return [], ""
    given = re.search(r"--args=\"?'?\[(.*?)\]\"?'?\s*(?:%|\||$)", text, re.MULTILINE)
    if given:
        literals = re.findall(r"dense<.*?>\s*:\s*tensor<[^>]*>+", given[1])
        if len(literals) == len(func.args):
            return [constant_of(literal).array for literal in literals], ""
    try:
        ones = [np.ones(value.shape.numbers({}), value.shape.dtype.numpy) for value in func.args]
    except Exception as error:
        raise CaseError(f"run @{func.name}: cannot make arguments: {error}") from error
    return ones, f"@{func.name} takes inputs that the file does not give: it ran on ones, and no result was compared"


def constant_of(literal: str) -> Any:
    """A `dense<…> : tensor<…>` as a Constant."""
    from smelt.ir.text import parse

    type = literal.rpartition(": ")[2]
    program = parse(f"func.func @f() -> {type} {{\n  %0 = stablehlo.constant {literal}\n  return %0 : {type}\n}}")
    return program.funcs["f"].body.ops[0].attrs["value"]


def printed_results(text: str) -> list[str]:
    """The literals that the file expects its results to print as, in order."""
    return re.findall(r"//\s*CHECK-DENSE(?:\{LITERAL\})?:\s*(dense<.*)$", text, re.MULTILINE)


def compare_printed(func: Any, results: Sequence[Any], printed: Sequence[str]) -> None:
    from smelt.errors import RunError
    from smelt.ir.ops.testing import expect_almost_eq, expect_eq

    if len(results) != len(printed):
        raise RunError("another number of results than is printed", expected=len(printed), got=len(results))
    for i, (value, result, literal) in enumerate(zip(func.results, results, printed, strict=True)):
        want = constant_of(literal)
        element = value.shape.dtype
        if element.is_float or element.is_complex:  # six digits were printed
            expect_almost_eq(f"result {i}", result, want.array, element, 1e-5)
        else:
            expect_eq(f"result {i}", result, want.array, element)


class Check(NamedTuple):
    """A check in a function, and where its expectation comes from."""

    func: Any
    op: Any


def find_checks(program: Any) -> Iterator[Check]:
    from smelt.ir.core import walk

    for func in program.funcs.values():
        for op in walk(func.body):
            called = op.name == "stablehlo.custom_call" and op.attrs["call_target_name"] in CHECK_CALLS
            if op.name.startswith(CHECK_OPS) or called:
                yield Check(func, op)


# ---- falsifying ----

INVERTED = object()  # in place of a constant: the expected booleans, inverted


def falsify_case(path: Path, engine: Engine, seed: int) -> tuple[str, str]:
    """Change one expected element in a copy of a program: the run must stop at that check."""
    from smelt.errors import RunError
    from smelt.ir.text import parse

    choose = random.Random(f"{seed} {path.name}")
    try:
        program = staged("parse", parse, path.read_text())
        checks = list(find_checks(program))
        choose.shuffle(checks)
        changed = next((made for check in checks if (made := falsify(program, check, choose)) is not None), None)
        if changed is None:
            return "untouched", "no check with an element to change" if checks else "it holds no check"
        for func in entries(changed):
            try:
                engine(changed, func.name, arguments(func, "")[0])
            except RunError as error:
                return ("noticed" if "differ" in error.message else "failed"), str(error)
            except Exception as error:
                return "failed", f"{type(error).__name__}: {error}"
    except CaseError as failure:
        return "failed", str(failure)
    return "missed", "a wrong expectation passed"


def falsify(program: Any, check: Check, choose: random.Random) -> Any:
    """The program with one expected element changed, or None where that cannot be done."""
    op = check.op
    if "value" in op.attrs:  # expect_*_const
        value = wrong_constant(op.attrs["value"], tolerance_of(op), choose)
        return value and program.replace(rebuild(check.func, op, {"value": value}))
    expected = op.operands[-1]
    source, owner = trace(program, check.func, expected)
    if source is not None and owner is not check.func:  # the constant of @expected
        value = wrong_constant(source.attrs["value"], tolerance_of(op), choose)
        return value and program.replace(rebuild(owner, source, {"value": value}))
    if source is not None:
        value = wrong_constant(source.attrs["value"], tolerance_of(op), choose)
    elif expected.shape.dtype.kind == "bool":
        return program.replace(rebuild(check.func, op, {}, INVERTED)) if expected.shape.count != 0 else None
    else:
        value = unlikely_constant(expected.shape)
    return value and program.replace(rebuild(check.func, op, {}, value))


def trace(program: Any, func: Any, value: Any) -> tuple[Any, Any]:
    """The constant op behind a value, through calls, and the function that holds it."""
    while value.op is not None:
        if value.op.name == "stablehlo.constant":
            return value.op, func
        if value.op.name != "func.call":
            break
        func, value = (
            program.funcs[value.op.attrs["callee"]],
            program.funcs[value.op.attrs["callee"]].results[value.index],
        )
    return None, None


def tolerance_of(op: Any) -> float:
    return max(float(op.attrs.get("tolerance", 1e-3)), 1e-3)


def wrong_constant(constant: Any, tolerance: float, choose: random.Random) -> Any:
    """A copy of a constant with one element changed by far more than any check allows."""
    from smelt.ir.attributes import Constant

    array = constant.array.copy()
    if not array.size:
        return None
    flat = array.reshape(-1)
    at = choose.randrange(flat.size)
    flat[at] = wrong_element(flat[at], constant.dtype, tolerance)
    return Constant.of(array, constant.dtype)


def wrong_element(element: Any, dtype: Any, tolerance: float) -> Any:
    import numpy as np

    kind = dtype.numpy
    if kind == np.bool_:
        return not element
    if not (dtype.is_float or dtype.is_complex):
        candidates: list[Any] = [int(element) + 1, int(element) - 1]
        return next(kind.type(c) for c in candidates if fits(c, dtype))
    imaginary = element.imag if dtype.is_complex else 0
    real = float(element.real if dtype.is_complex else element)
    for candidate in (real + max(1.0, abs(real)) + 4 * tolerance, 0.0, 1.0, 4.0, -1.0, 0.5):
        with np.errstate(all="ignore"):
            made = np.asarray(candidate).astype(kind)[()]
        given = float(made.real if dtype.is_complex else made)
        far = not np.isfinite(real) or abs(given - real) > 2 * tolerance + 0.1 * abs(real)
        if np.isfinite(given) and far:
            return kind.type(complex(given, imaginary)) if dtype.is_complex else made
    raise CaseError(f"no wrong value for {element} : {dtype}")


def fits(number: int, dtype: Any) -> bool:
    from smelt.dtype import integer_range
    from smelt.ir.attributes import elements

    low, high = integer_range(elements(dtype))
    return low <= number <= high


def unlikely_constant(shape: Any) -> Any:
    """A constant that no program of the suites computes; None where there is none."""
    import numpy as np

    from smelt.ir.attributes import Constant

    if not shape.is_static or shape.count == 0 or shape.dtype.kind == "quantized":
        return None
    value = 5 if shape.dtype.is_integer else 0.34375
    return Constant.of(np.full(shape.sizes, value).astype(shape.dtype.numpy), shape.dtype)


def rebuild(func: Any, target: Any, attrs: dict[str, Any], expected: Any = None) -> Any:
    """A copy of a function in which one op has other attributes, or another value as its last operand."""
    from smelt.ir.core import Func, Op, Region

    values: dict[Any, Any] = {}

    def copy(region: Any) -> Any:
        ops = []
        for op in region.ops:
            operands = [values.get(operand, operand) for operand in op.operands]
            if op is target and expected is INVERTED:
                ops.append(Op("stablehlo.not", operands[-1:], [operands[-1].type]))
                operands[-1] = ops[-1].results[0]
            elif op is target and expected is not None:
                ops.append(Op("stablehlo.constant", [], [expected.shape], {"value": expected}))
                operands[-1] = ops[-1].results[0]
            own = {**op.attrs, **attrs} if op is target else op.attrs
            regions = [copy(inner) for inner in op.regions]
            ops.append(Op(op.name, operands, [v.type for v in op.results], own, regions, op.location))
            values.update(zip(op.results, ops[-1].results, strict=True))
        return Region(region.args, tuple(ops), tuple(values.get(value, value) for value in region.results))

    body = copy(func.body)
    return Func(func.name, body, func.visibility, func.arg_attrs, func.result_attrs, func.attrs, func.location)


# ---- workers ----


def work() -> None:
    """Read requests from stdin, one JSON object a line; answer on what was stdout, so that prints cannot disturb."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engines: dict[str, Engine] = {}
    for line in sys.stdin:
        request = json.loads(line)
        engine = engines.setdefault(request["engine"], find_engine(request["engine"]))
        for status, detail, kernels in answer(request, engine):
            answers.write(json.dumps({"status": status, "detail": detail, "kernels": kernels}) + "\n")
            answers.flush()


def answer(request: dict[str, Any], engine: Engine) -> Iterator[tuple[str, str, int | None]]:
    """What becomes of each path of a request."""
    paths = [Path(path) for path in request["paths"]]
    if request["seed"] is not None:
        yield from ((*falsify_case(path, engine, request["seed"]), None) for path in paths)
    elif request["engine"] in GROUP:
        yield from run_group(request["engine"], paths)
    else:
        yield from ((*run_case(path, engine), None) for path in paths)


class Worker:
    """A process that runs cases one after another, and is replaced when one of them kills or hangs it."""

    def __init__(self, engine: str, timeout: float, seed: int | None) -> None:
        self.engine, self.timeout, self.seed = engine, timeout, seed
        self.process: subprocess.Popen[str] | None = None

    def run(self, paths: Sequence[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The answers for some paths. Where the process dies, those without an answer run again one by one."""
        process = self.process or self.start()
        assert process.stdin is not None
        try:
            names = [str(path) for path in paths]
            process.stdin.write(json.dumps({"paths": names, "engine": self.engine, "seed": self.seed}) + "\n")
            process.stdin.flush()
        except OSError:
            pass  # it is dead, as the first answer shows
        for i, path in enumerate(paths):
            line, reason = self.read(process)
            if line:
                yield path, json.loads(line)
                continue
            self.close()
            if len(paths) == 1:
                yield path, {"status": "failed", "detail": reason, "kernels": None}
                return
            for rest in paths[i:]:
                yield from self.run([rest])
            return

    def read(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """The next line of a process, or "" and why there is none."""
        assert process.stdout is not None
        expired = threading.Event()

        def stop() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(self.timeout, stop)
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if line:
            return line, ""
        process.wait()
        return "", f"ran past {self.timeout:g} s" if expired.is_set() else f"the process died ({process.returncode})"

    def start(self) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(Path(__file__).resolve()), "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **threads, "PYTHONPATH": path},
        )
        return self.process

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self.process = None


def run_folder(
    folder: Path,
    engine: str = "reference",
    *,
    jobs: int = 0,
    timeout: float = 60,
    only: str = "",
    part: Callable[[str], bool] = lambda name: True,
    seed: int | None = None,
    progress: Callable[[Case], None] = lambda case: None,
) -> list[Case]:
    """Every `*.mlir` under a folder whose name contains `only` and is in a part, in order; with a seed: falsified."""
    names = {path: path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.mlir"))}
    paths = [path for path, name in names.items() if only in name and part(name)]
    jobs = jobs or os.cpu_count() or 1
    group = min(GROUP.get(engine, 1), -(-len(paths) // jobs)) if seed is None and paths else 1
    pending: queue.SimpleQueue[Sequence[Path]] = queue.SimpleQueue()
    for i in range(0, len(paths), group):
        pending.put(paths[i : i + group])
    cases: dict[Path, Case] = {}
    lock = threading.Lock()

    def serve() -> None:
        worker = Worker(engine, timeout, seed)
        try:
            while True:
                try:
                    some = pending.get_nowait()
                except queue.Empty:
                    return
                for path, reply in worker.run(some):
                    with lock:
                        cases[path] = Case(path.relative_to(folder).as_posix(), **reply)
                        progress(cases[path])
        finally:
            worker.close()

    threads = [threading.Thread(target=serve) for _ in range(min(jobs, len(paths)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [cases[path] for path in paths]


# ---- reports ----

DTYPE = re.compile(r"_(bfloat16|float\d+\w*?|u?int\d+|complex\d+|bool)(_|$)")


def family(name: str) -> str:
    """The op that a case is about: the name up to its first element type, without a trailing number."""
    stem = Path(name).stem
    match = DTYPE.search(stem)
    stem = stem[: match.start()] if match else re.sub(r"_\d+$", "", stem)
    return stem.strip("_")


def by_family(cases: Sequence[Case], good: str = "passed") -> dict[str, tuple[int, int]]:
    """family -> (good cases, all cases)"""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for case in cases:
        counts[family(case.name)][0] += case.status == good
        counts[family(case.name)][1] += 1
    return {name: (counts[name][0], counts[name][1]) for name in sorted(counts)}


def report(cases: Sequence[Case], good: str) -> str:
    lines = []
    families = by_family(cases, good)
    for name, (passed, total) in families.items():
        lines.append(f"{name:<32} {passed:>4} / {total:<4}{'' if passed == total else '  <--'}")
    mean = sum(passed / total for passed, total in families.values()) / max(len(families), 1)
    passed = sum(case.status == good for case in cases)
    lines.append(f"{'all':<32} {passed:>4} / {len(cases):<4}  mean over {len(families)} families {100 * mean:.2f} %")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", default="reference", help=f"{', '.join(ENGINES)}, or FILE.py:function")
    parser.add_argument("--json", type=Path, help="write the cases to this file")
    parser.add_argument("--jobs", type=int, default=0, help="worker processes (default: one per core)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one case")
    parser.add_argument("--filter", default="", help="only files whose path contains this")
    parser.add_argument("--falsify", action="store_true", help="change an expectation in a copy of each program")
    parser.add_argument("--seed", type=int, default=None, help="for --falsify")
    parser.add_argument("--quiet", action="store_true", help="do not list the failures")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is no folder")
    find_engine(options.engine)
    seed = (random.randrange(1 << 32) if options.seed is None else options.seed) if options.falsify else None
    good, bad = ("passed", ("failed",)) if seed is None else ("noticed", ("failed", "missed"))

    def show(case: Case) -> None:
        if case.status in bad and not options.quiet:
            print(f"{case.status} {case.name}\n    " + "\n    ".join(case.detail.splitlines()[:6]), flush=True)

    started = time.perf_counter()
    cases = run_folder(
        options.folder,
        options.engine,
        jobs=options.jobs,
        timeout=options.timeout,
        only=options.filter,
        seed=seed,
        progress=show,
    )
    print(report(cases, good))
    if options.engine == "native" and seed is None:
        idle = [case.name for case in cases if case.status == "passed" and not case.kernels]
        print(f"{sum(case.kernels or 0 for case in cases)} kernels; passed without one: {', '.join(idle) or 'none'}")
    print(f"{time.perf_counter() - started:.1f} s" + (f", seed {seed}" if seed is not None else ""))
    if options.json:
        passed = sum(case.status == good for case in cases)
        record = {"engine": options.engine, "total": len(cases), "passed": passed, "cases": [asdict(c) for c in cases]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(case.status in bad for case in cases) else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        work()
    else:
        sys.exit(main())
