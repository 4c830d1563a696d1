"""Which tests run which lines of smelt: one pytest run per test file under coverage.py, kept until sources change.

`collect` gives a `CoverageMap`, where asked for from runs of an older package, whose lines are found again by a diff.
With `-p tests.mutation.cover` this file is also the pytest plugin that measures.
"""

from __future__ import annotations

import difflib
import fcntl
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMPORT = ""  # the context of what runs before the first test
RESULT = "SMELT_COVERAGE_MAP"  # where the plugin writes
LONGEST, MOST = 1000, 3000  # characters of a test's name, and names: they are arguments of a command
COMPILER = ("smelt/kernel/", "smelt/passes/")
FAR = 1e-3  # a share of a test's lines: a test that runs less of a file than this is as far from it as any


@dataclass
class CoverageMap:
    """For each file of the package: line → the tests that run it; and how long each test that passes takes."""

    lines: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    seconds: dict[str, float] = field(default_factory=dict)
    ran: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # test → lines of each file
    is_old: bool = False  # some of it is of an older package: its tests may fail without any mutant

    def add(self, record: dict[str, Any], moved: dict[str, dict[int, int]] | None = None) -> None:
        """What a test file runs; with `moved`, of an older package: old lines → lines, of each file that changed."""
        self.seconds |= record["seconds"]
        names = record["names"]
        for file, lines in record["lines"].items():
            places = (moved or {}).get(file)
            for line, tests in lines.items():
                place = int(line) if places is None else places.get(int(line))
                if place is not None:
                    self.lines[file][place].update(names[test] for test in tests)
                for test in tests:
                    self.ran[names[test]][file] += 1

    def tests_of(self, file: str, lines: Collection[int], budget: float) -> list[str]:
        """Tests that run one of some lines, as many as fit into the budget of seconds; at least one.

        Tests that are quick, and close to the file, come first: see `cost`. The n-th case of a test counts as n times
        as slow, so that cases of other tests come in between. Without lines, as of tables for other modules: tests
        that run anything of the file, and those of `near`. What no test runs in its own process may run in a child of
        one: see `near`, too.
        """
        room = "/".join(("tests/unit", *file.split("/")[1:-1][:1], ""))
        every = self.lines.get(file, {})
        names = set().union(*(every.get(line, ()) for line in lines or every))
        if not lines or not names & self.seconds.keys():
            names = names | self.near(file, room)
        costs = {name: self.cost(name, file) for name in names & self.seconds.keys()}
        cases: Counter[str] = Counter()
        order: list[tuple[float, str]] = []
        for name in sorted(costs, key=lambda name: (costs[name], name)):
            test = name.partition("[")[0]
            cases[test] += 1
            order.append((costs[name] * cases[test], name))
        spent = 0.0
        kept: list[str] = []
        for _, name in sorted(order):
            if len(kept) < MOST and (not kept or spent + self.seconds[name] <= budget):
                spent += self.seconds[name]
                kept.append(name)
        return kept

    def cost(self, name: str, file: str) -> float:
        """The seconds of a test, less the closer it is: by the share of the file in all lines that it runs. Texts of
        what the compiler makes show any change of it, and count as ten times as quick, tests of a folder of the same
        name as four times as quick."""
        shown = file.startswith(COMPILER) and name.startswith("tests/golden/")
        named = name.startswith(tuple(f"tests/unit/{folder}/" for folder in file.split("/")[1:-1]))
        share = self.ran[name][file] / max(self.ran[name].total(), 1)
        return self.seconds[name] / (10 if shown else 4 if named else 1) / max(share, FAR) ** 0.5

    def near(self, file: str, room: str) -> set[str]:
        """Tests of the room whose file is named after a module or its folder, and those of `tests/cuda` for `cuda_*`:
        servers, workers and commands run in processes of their own, which coverage does not see. Else those that run
        anything of the module, or all of its room."""
        *folders, stem = Path(file).with_suffix("").parts
        files = {f"{room}test_{word}.py" for word in (stem, *folders[2:])}
        folder = f"tests/{stem.partition('_')[0]}/"
        named = {name for name in self.seconds if name.partition("::")[0] in files or name.startswith(folder)}
        every = set().union(*self.lines.get(file, {}).values()) & self.seconds.keys()
        return named or every or {name for name in self.seconds if name.startswith(room)}


class Turn:
    """A file that is locked, shared, while tests run: who locks it alone, to measure speed, has the machine alone.

    Tests in several threads let it go together now and then, since locks that are shared without a gap let nobody in.
    """

    LONGEST, GAP = 60.0, 0.2  # seconds after which no more tests start, and for which the file is then let go

    def __init__(self, path: Path | None) -> None:
        self.path, self.running, self.since = path, 0, 0.0
        self.change = threading.Condition()

    @contextmanager
    def taken(self) -> Iterator[None]:
        if self.path is None:
            yield
            return
        with self.change:
            self.change.wait_for(lambda: not self.running or time.monotonic() < self.since + self.LONGEST)
            if not self.running:
                self.file = self.path.open("w")
                fcntl.flock(self.file, fcntl.LOCK_SH)
                self.since = time.monotonic()
            self.running += 1
        try:
            yield
        finally:
            with self.change:
                self.running -= 1
                if not self.running:
                    self.file.close()
                    time.sleep(self.GAP)
                self.change.notify_all()


def collect(
    root: Path, kept: Path, files: Sequence[Path], timeout: float, jobs: int = 1, turn: Turn | None = None,
    is_old_enough: bool = False,
) -> CoverageMap:  # fmt: skip
    """The map of a copy of the repository; the same package and test file are not measured again.

    With `is_old_enough` a test file that did not change is not measured again for a package that did.
    """
    kept.mkdir(parents=True, exist_ok=True)
    sources = {str(path.relative_to(root)): path.read_text() for path in sorted((root / "smelt").rglob("*.py"))}
    package = _digest(*sources.values())
    (kept / f"package-{package}.json").write_text(json.dumps(sources))

    def measure(path: Path) -> Path:
        name = f"{str(path).replace('/', '.')}-{_digest((root / path).read_text())}"
        record = kept / f"{name}-{package}.json"
        if is_old_enough and not record.exists():
            record = max(kept.glob(f"{name}-*.json"), key=lambda each: each.stat().st_mtime, default=record)
        if not record.exists():
            with (turn or Turn(None)).taken():
                _measure(root, path, record, timeout)
        return record

    @functools.cache
    def moved_since(package: str) -> dict[str, dict[int, int]]:
        old = json.loads((kept / f"package-{package}.json").read_text())
        return {
            file: move_lines(text, sources.get(file, "")) for file, text in old.items() if text != sources.get(file)
        }

    found = CoverageMap()
    with ThreadPoolExecutor(jobs) as pool:
        for record in pool.map(measure, files):
            measured = record.stem.rpartition("-")[2]
            found.is_old |= measured != package
            if record.exists():
                found.add(json.loads(record.read_text()), moved_since(measured) if measured != package else None)
    return found


def move_lines(old: str, new: str) -> dict[int, int]:
    """The number of each line of an older text that is still there → its number now."""
    blocks = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False).get_matching_blocks()
    return {block.a + i + 1: block.b + i + 1 for block in blocks for i in range(block.size)}


def _measure(root: Path, path: Path, record: Path, timeout: float) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", "not slow", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(root), RESULT: str(record), "SMELT_SEED": "1"}
    environment["SMELT_CACHE_DIR"] = str(record.parent / "cache")  # the one in which mutants compile
    command += ["-p", "tests.mutation.cover"]
    process = subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest ends, and the plugin writes what was measured up to here
        try:
            output, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        output += f"\nended after {timeout:g} s"
    print(f"  {path}: {''.join(output.strip().splitlines()[-1:])}", flush=True)


def _digest(*texts: str) -> str:
    made = hashlib.blake2b(digest_size=8)
    for text in texts:
        made.update(text.encode())
    return made.hexdigest()


# ---- the plugin ----

_state: dict[str, Any] = {}


def pytest_configure(config: pytest.Config) -> None:
    if RESULT not in os.environ:
        return
    import coverage

    _state["seconds"], _state["failed"] = {}, set()
    _state["coverage"] = coverage.Coverage(data_file=None, source=[str(Path.cwd() / "smelt")], config_file=False)
    _state["coverage"].set_option("run:disable_warnings", ["no-data-collected"])  # of a file that runs nothing of smelt
    _state["coverage"].start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if "coverage" in _state:
        if sys.gettrace() is None:  # the test before put another tracer in its place
            _state["coverage"].stop()
            _state["coverage"].start()
        _state["coverage"].switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that fails without any mutant would notice all of them: only those that pass count."""
    if "seconds" in _state:
        _state["seconds"][report.nodeid] = _state["seconds"].get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            _state["failed"].add(report.nodeid)


def pytest_sessionfinish() -> None:
    if "coverage" not in _state:
        return
    _state["coverage"].stop()
    data = _state["coverage"].get_data()
    passed = {name: spent for name, spent in _state["seconds"].items() if name not in _state["failed"]}
    seconds = {name: spent for name, spent in passed.items() if len(name) <= LONGEST}
    names = [IMPORT, *seconds]
    number = {name: i for i, name in enumerate(names)}
    lines = {
        str(Path(file).relative_to(Path.cwd())): {
            line: [number[name] for name in contexts if name in number]
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    record = {"seconds": seconds, "names": names, "lines": lines}
    Path(os.environ[RESULT]).write_text(json.dumps(record))
