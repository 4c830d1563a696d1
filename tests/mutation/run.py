"""`make mutants`: how many small changes to smelt the tests notice.

Mutants are drawn by seed from the whole package. Each is tried in a scratch copy with quick tests that run its line.
Those that survive are tried again, in the time that is left, with many more of these tests, and with a sample of the
public suites in rooms that these run through. What no test can notice is listed in equivalent.toml, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.mutation.cover import CoverageMap, Turn, collect  # noqa: E402
from tests.mutation.mutants import Mutant, mutants_of  # noqa: E402

COPIED = (
    *("smelt", "tests", "examples", "docs", "bench", "pyproject.toml", "Makefile", "requirements-dev.lock"),
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
)
# Tests of whole public suites and of files on disk that take minutes: too slow to be run once per mutant.
CASES = "tests/mutation/onnx_cases.py"
TESTS = ("tests/unit", "tests/hostile", "tests/property", "tests/golden", "tests/cuda", CASES, "smelt")
# What gets a second try with samples of those suites.
SUITES = ("smelt/ir", "smelt/kernel", "smelt/passes", "smelt/read/onnx", "smelt/write/onnx", "smelt/engine")
SAMPLE = "tests/mutation/sample.py"
LATE = "took too long"
KEEPING = threading.Lock()
EQUIVALENT = Path(__file__).with_name("equivalent.toml")


@dataclass
class Trial:
    """A mutant and what became of it: killed, survived, uncovered (no test runs its line) or equivalent."""

    file: str
    mutant: Mutant
    line: str  # the line of source on which it starts
    becomes: str  # what that line becomes
    outcome: str = ""
    seconds: float = 0.0
    tests: int = 0
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.mutant.line} {self.mutant.kind}: {self.line[:100]} → {self.becomes[:100]}"


def draw(root: Path, seed: int, count: int, only: Sequence[str]) -> list[Trial]:
    """A sample of all mutants; the same seed draws the same from the same source."""
    every = [
        (path, mutant)
        for path in sorted((root / "smelt").rglob("*.py"))
        if any(part in str(path.relative_to(root)) for part in only)
        for mutant in mutants_of(path.read_text())
    ]
    trials = []
    for path, mutant in random.Random(seed).sample(every, min(count, len(every))):
        source = path.read_text()
        line, becomes = (text.splitlines()[mutant.line - 1].strip() for text in (source, mutant.apply(source)))
        trials.append(Trial(str(path.relative_to(root)), mutant, line, becomes))
    return trials


def known_equivalent(trial: Trial, known: list[dict[str, str]]) -> str:
    """Why nothing can notice a mutant, where that is known. Entries name text, not lines, so that they stay true; one
    without text stands for all mutants of its kind in a file."""
    for each in known:
        one = (each.get("line"), each.get("becomes")) == (trial.line, trial.becomes)
        if each["file"] == trial.file and (one or each.get("kind") == trial.mutant.kind):
            return each["reason"]
    return ""


def take_over(trials: list[Trial], earlier: dict[str, Any]) -> None:
    """What an earlier run of the same seed found: its survivors are tried again with more tests."""
    found = {(each["file"], each["line"], each["becomes"]): each for each in earlier["mutants"]}
    for trial in trials:
        before = found.get((trial.file, trial.mutant.line, trial.becomes))
        if before is not None and not trial.outcome:
            trial.outcome, trial.reason = before["outcome"], before["reason"]
            trial.seconds, trial.tests = before["seconds"], before["tests"]


class Copy:
    """A scratch copy of the repository in which one mutant at a time is tried."""

    def __init__(self, folder: Path, cache: Path, end: float, turn: Turn) -> None:
        self.root, self.cache, self.end, self.turn = folder, cache, end, turn
        self.sound: dict[tuple[str, ...], bool] = {}
        copy_repository(folder)

    def try_first(self, trial: Trial, coverage: CoverageMap, options: argparse.Namespace) -> None:
        tests = coverage.tests_of(trial.file, trial.mutant.lines, options.budget)
        if tests:
            self.try_tests(trial, tests, options.limit, check=coverage.is_old)
        else:
            trial.outcome = "uncovered"

    def try_again(self, trial: Trial, coverage: CoverageMap, options: argparse.Namespace, budget: float) -> None:
        """The tests after those of the first try, then a sample of the suites."""
        first = {*coverage.tests_of(trial.file, trial.mutant.lines, options.budget)} if trial.tests else set()
        tests = coverage.tests_of(trial.file, trial.mutant.lines, options.budget + budget)
        tests = [each for each in tests if each not in first]
        self.try_tests(trial, tests, min(options.second_limit, 3 * budget + 10), check=True)
        if trial.outcome != "killed" and options.sample_limit and trial.file.startswith(SUITES):
            self.try_tests(trial, [SAMPLE], options.sample_limit, check=True)

    def try_tests(self, trial: Trial, tests: list[str], limit: float, check: bool = False) -> None:
        """Run tests with a mutant. With `check`, and where no test is seen to fail, it is killed only if what failed
        passes without it. Nothing is known, and nothing changes, where the time of all mutants ends first."""
        start = time.monotonic()
        limit = min(limit, self.end - start)
        if not tests or limit <= 0:
            return
        path = self.root / trial.file
        source = path.read_text()
        try:
            path.write_text(trial.mutant.apply(source))
            outcome, reason, noticed = self.run(tests, limit, trial.file)
        finally:
            path.write_text(source)
        is_seen = reason.startswith(("FAILED ", "ERROR ")) and not check
        if outcome == "survived" or is_seen or self.is_sound(noticed, limit, trial.file):
            trial.outcome, trial.reason = outcome, reason
        elif time.monotonic() >= self.end:
            return
        else:
            trial.outcome = trial.outcome or "survived"
        trial.tests += len(tests)
        trial.seconds = round(trial.seconds + time.monotonic() - start, 1)

    def is_sound(self, tests: list[str], limit: float, file: str) -> bool:
        """Whether tests pass in time without any mutant; else they say nothing about mutants."""
        key = (*tests, file if tests == [SAMPLE] else "")
        if key not in self.sound:
            self.sound[key] = self.run(tests, min(limit, self.end - time.monotonic()), file)[0] == "survived"
        return self.sound[key]

    def run(self, tests: list[str], limit: float, file: str) -> tuple[str, str, list[str]]:
        """The outcome, the reason, and the tests that tell: the one that fails, or all where they take too long."""
        environment = {
            **os.environ,
            "SMELT_MUTATED": file,
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SMELT_CACHE_DIR": str(self.cache),
            "SMELT_SEED": "1",
        }
        limit = max(limit, 1)
        options = ["-x", "-q", "-n0", "--no-header", "--tb=no", "-p", "no:cacheprovider", f"--timeout={limit:g}"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        with self.turn.taken():
            return self.outcome(command, environment, tests, limit)

    def outcome(
        self, command: list[str], environment: dict[str, str], tests: list[str], limit: float
    ) -> tuple[str, str, list[str]]:
        process = subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "killed", LATE, tests
        if process.returncode == 0:
            return "survived", "", []
        failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if not failed:
            return "killed", f"exit status {process.returncode}", tests
        if named := [each for each in tests if each in failed[0]]:
            return "killed", failed[0][:200], [max(named, key=len)]
        # A mutant may change the names of cases; pytest says which test has no such case.
        return "killed", failed[0][:200], [each for each in tests if each.partition("[")[0] in failed[0]] or tests


def copy_repository(folder: Path) -> None:
    skip = shutil.ignore_patterns("__pycache__", "*.so")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=skip)
        elif source.exists():
            shutil.copy(source, folder / name)


def files_of(part: Path) -> list[Path]:
    """The test files of a folder, and the modules of the package whose docstrings have examples."""
    if part.is_file():
        return [part]
    return [
        each
        for each in sorted(part.rglob("*.py"))
        if each.name.startswith("test_") or (part.name == "smelt" and ">>> " in each.read_text())
    ]


def run(options: argparse.Namespace) -> list[Trial]:
    known = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    end = time.monotonic() + options.total
    kept = ROOT / ".mutation"
    with tempfile.TemporaryDirectory(prefix="smelt-mutants-") as scratch:
        turn = Turn(options.lock)
        copies = [Copy(Path(scratch) / str(i), kept / "cache", end, turn) for i in range(options.jobs)]
        first = copies[0].root
        files = [path.relative_to(first) for part in options.tests for path in files_of(first / part)]
        print(f"coverage of {len(files)} test files")
        coverage = collect(first, kept, files, options.map_timeout, options.jobs, turn, options.old_map)
        trials = draw(first, options.seed, options.count, options.only)
        for trial in trials:
            trial.reason = known_equivalent(trial, known)
            trial.outcome = "equivalent" if trial.reason else ""
        if options.after:
            take_over(trials, json.loads(options.after.read_text()))

        def work(copy: Copy, waiting: queue.SimpleQueue[Trial], budget: float) -> None:
            while time.monotonic() < end:
                try:
                    trial = waiting.get_nowait()
                except queue.Empty:
                    return
                if budget:
                    copy.try_again(trial, coverage, options, budget)
                else:
                    copy.try_first(trial, coverage, options)
                print(f"{trial.outcome:10} {trial.seconds:5.1f} s {trial}", flush=True)
                keep(options, report([each for each in trials if each.outcome]))

        def work_on(some: list[Trial], budget: float) -> None:
            waiting: queue.SimpleQueue[Trial] = queue.SimpleQueue()
            for trial in some:
                waiting.put(trial)
            workers = [threading.Thread(target=work, args=(copy, waiting, budget)) for copy in copies]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

        work_on([trial for trial in trials if not trial.outcome], 0)
        survivors = [trial for trial in trials if trial.outcome in ("survived", "uncovered")]
        share = 0.6 * (end - time.monotonic()) * options.jobs / max(len(survivors), 1)  # the rest: samples, start-up
        if options.second_budget and share > 5:
            print(f"{len(survivors)} again, with {min(options.second_budget, share):.0f} s of tests for each")
            work_on(survivors, min(options.second_budget, share))
    return [trial for trial in trials if trial.outcome]


def report(trials: list[Trial]) -> dict[str, object]:
    counts = Counter(trial.outcome for trial in trials)
    judged = len(trials) - counts["equivalent"]
    score = counts["killed"] / judged if judged else 1.0
    return {
        "tried": len(trials),
        "outcomes": dict(counts),
        "killed_of_not_equivalent": round(score, 4),
        "mutants": [
            {
                "file": trial.file, "line": trial.mutant.line, "kind": trial.mutant.kind,
                "source": trial.line, "becomes": trial.becomes, "outcome": trial.outcome,
                "seconds": trial.seconds, "tests": trial.tests, "reason": trial.reason,
            }
            for trial in sorted(trials, key=lambda each: (each.file, each.mutant.line))
        ],
    }  # fmt: skip


def keep(options: argparse.Namespace, found: dict[str, object]) -> None:
    """Write the report, after every mutant: `--after` goes on from what a run that was ended left."""
    if options.json:
        with KEEPING:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=["smelt"], help="parts of the paths to be mutated")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests per mutant")
    parser.add_argument("--limit", type=float, default=90, help="seconds after which a try ends")
    parser.add_argument("--second-budget", type=float, default=90, help="the same for those that survive; 0: none")
    parser.add_argument("--second-limit", type=float, default=240, help="seconds after which a second try ends")
    parser.add_argument("--sample-limit", type=float, default=240, help="the same for samples of the suites; 0: none")
    parser.add_argument("--map-timeout", type=float, default=600, help="seconds for the coverage of one test file")
    parser.add_argument(
        "--old-map", action="store_true", help="use the coverage of an older package, if the test is the same"
    )
    parser.add_argument("--lock", type=Path, help="a file that is locked, shared, while tests run")
    parser.add_argument("--total", type=float, default=3600, help="seconds for all mutants")
    parser.add_argument("--at-least", type=float, default=0.0, help="fail below this share of killed mutants")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--after", type=Path, help="the JSON of an earlier run: go on with its survivors")
    options = parser.parse_args()
    found = report(run(options))
    keep(options, found)
    score = float(str(found["killed_of_not_equivalent"]))
    print(f"\nseed {options.seed}: {found['outcomes']}; killed {score:.1%} of those that are not equivalent")
    return int(score < options.at_least)


if __name__ == "__main__":
    raise SystemExit(main())
