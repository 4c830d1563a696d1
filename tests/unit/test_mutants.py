"""The mutator behind `make mutants`: what it changes, and that every mutant is a program."""

from __future__ import annotations

import ast
import fcntl
import json
import threading
import time
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import smelt
from tests.mutation import cover
from tests.mutation.cover import IMPORT, CoverageMap, Turn, collect, move_lines
from tests.mutation.mutants import mutants_of
from tests.mutation.run import EQUIVALENT, LATE, Copy, Trial, draw, files_of, known_equivalent


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("x = a < b\n", {"x = (a <= b)\n"}),
        ("x = a is None\n", {"x = (a is not None)\n"}),
        ("x = a % b\n", {"x = (a // b)\n"}),
        ("x = a and b\n", {"x = (a or b)\n"}),
        ("x = True\n", {"x = (False)\n"}),
        ("x = 'é' , 7\n", {"x = 'é' , (8)\n", "x = 'é' , (6)\n"}),
        ("if a:\n    f()\n", {"if (not a):\n    f()\n", "if a:\n    pass\n"}),
        ("def f(x):\n    return x\n", {"def f(x):\n    return\n"}),
        ("def f(x):\n    return False\n", {"def f(x):\n    return (True)\n"}),
        ("x = zip(a, b, strict=True)\nassert x > 0\n", set()),
        ("c = Console(highlight=False, wide=True)\n", {"c = Console(highlight=False, wide=(False))\n"}),
        ("class A:\n    def __repr__(self):\n        return 1\n", set()),
        ("if TYPE_CHECKING:\n    x = 1\n", set()),
        ("def f(x: int | None = None) -> int | None:\n    'text'\n    raise E(\n        x\n    )\ny = a + b\n", {
            "def f(x: int | None = None) -> int | None:\n    'text'\n    pass\ny = a + b\n",
            "def f(x: int | None = None) -> int | None:\n    'text'\n    raise E(\n        x\n    )\ny = (a - b)\n",
        }),
    ],
)  # fmt: skip
def test_mutants(source: str, wanted: set[str]) -> None:
    assert {mutant.apply(source) for mutant in mutants_of(source)} == wanted


SOURCE = """
LIMIT = 3
TABLE = {
    "a": lambda x: x + 1,
    "b": 4,
}

class Kind:
    size: int = 5

def f(x, most=6):
    "text"
    if (
        x < LIMIT
        or x > most
    ):
        return TABLE["a"](
            7
        )

def g(kind):
    return kind.size
"""


def test_lines_that_show_a_mutant() -> None:
    """A constant where it is used, a default where its function begins, a lambda in its own line; statements' heads."""
    found = {(each.kind, each.before): each.lines for each in mutants_of(SOURCE)}
    head, call = (13, 14, 15, 16), (17, 18, 19)
    assert found == {
        ("constant", "3"): (14,), ("arithmetic", "x + 1"): (4,), ("constant", "1"): (4,), ("constant", "4"): (17,),
        ("constant", "5"): (22,), ("constant", "6"): head, ("comparison", "x < LIMIT"): head,
        ("comparison", "x > most"): head, ("and/or", "x < LIMIT\n        or x > most"): head,
        ("condition", "x < LIMIT\n        or x > most"): head, ("constant", "7"): call,
        ("drop return", 'return TABLE["a"](\n            7\n        )'): call,
        ("drop return", "return kind.size"): (22,),
    }  # fmt: skip


@pytest.mark.slow
def test_every_mutant_of_a_file_is_another_program() -> None:
    source = (Path(smelt.__path__[0]) / "dim.py").read_text()
    mutants = mutants_of(source)
    assert len(mutants) > 100
    for mutant in mutants:
        assert ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source)), mutant
        assert len(mutant.apply(source).splitlines()) <= len(source.splitlines())


def test_tests_of_a_line() -> None:
    """Cases of every test before more of one; those of the room first; without lines: all that run the file."""
    coverage = CoverageMap()
    coverage.seconds = {f"tests/unit/cli/test_a.py::test_a[{i}]": 0.1 for i in range(20)}
    coverage.seconds |= {"tests/unit/ir/test_b.py::test_b": 0.3, "tests/unit/cli/test_c.py::test_c": 0.55}
    names = set(coverage.seconds)
    coverage.lines["smelt/ir/x.py"][3] |= names
    coverage.lines["smelt/ir/x.py"][1] |= {IMPORT}
    coverage.lines["smelt/ir/y.py"][1] |= {IMPORT}
    coverage.lines["smelt/ir/x.py"][4] |= {"tests/unit/ir/test_b.py::test_fails"}
    first = coverage.tests_of("smelt/ir/x.py", [2, 3], 1.5)
    assert first[0] == "tests/unit/ir/test_b.py::test_b"
    assert [name.partition("::")[2][:6] for name in first] == ["test_b", *["test_a"] * 5, "test_c", "test_a"]
    assert "tests/unit/cli/test_c.py::test_c" not in coverage.tests_of("smelt/ir/x.py", [3], 1.2)
    assert len(coverage.tests_of("smelt/ir/x.py", [3], 1.2)) == 10, "one that does not fit leaves room for others"
    for lines in ((), (1,), (9,)):
        assert set(coverage.tests_of("smelt/ir/x.py", lines, 100)) == names
        assert coverage.tests_of("smelt/ir/y.py", lines, 100) == ["tests/unit/ir/test_b.py::test_b"]
    assert coverage.tests_of("smelt/aot/z.py", [1], 100) == []


def test_tests_close_to_a_file_come_first() -> None:
    """Of two tests that run a line, the one of which it is a larger part, even where that one takes longer."""
    whole, close = "tests/unit/ir/test_a.py::test_whole", "tests/unit/ir/test_b.py::test_close"
    record = {"seconds": {whole: 0.5, close: 1.0}, "names": [IMPORT, whole, close]}
    lines = {"smelt/ir/x.py": {"3": [1, 2], "4": [2]}, "smelt/ir/y.py": {str(line): [1] for line in range(98)}}
    coverage = CoverageMap()
    coverage.add({**record, "lines": lines})
    assert coverage.ran[whole] == {"smelt/ir/x.py": 1, "smelt/ir/y.py": 98}
    assert coverage.tests_of("smelt/ir/x.py", [3], 1.0) == [close]
    assert coverage.tests_of("smelt/ir/x.py", [3], 1.6) == [close, whole]


def test_tests_of_every_folder_of_a_file_count_as_close() -> None:
    coverage = CoverageMap()
    grad, other = "tests/unit/grad/test_rules.py::test", "tests/unit/llm/test_a.py::test"
    coverage.seconds = {grad: 3.0, other: 1.0}
    for file, first in (("smelt/ir/grad/control.py", grad), ("smelt/ir/control.py", other), ("smelt/dtype.py", other)):
        coverage.lines[file][3] |= {grad, other}
        assert coverage.tests_of(file, [3], 100)[0] == first


def test_texts_of_the_compiler_come_first() -> None:
    coverage = CoverageMap()
    unit, golden = "tests/unit/kernel/test_a.py::test_a", "tests/golden/test_source.py::test_source[x]"
    coverage.seconds = {unit: 0.9, golden: 2.0}
    for file, first in (("smelt/kernel/emit/c.py", golden), ("smelt/ir/core.py", unit)):
        coverage.lines[file][3] |= {unit, golden}
        assert coverage.tests_of(file, [3], 100)[0] == first


def test_tests_of_a_line_that_runs_in_other_processes_alone() -> None:
    """Those named after the module or its folder; else those that run other lines of the module, or all of the room."""
    coverage = CoverageMap()
    names = [f"tests/unit/serve/test_{file}.py::test" for file in ("isolation", "sandbox", "serve", "queue")]
    coverage.seconds = dict.fromkeys(names, 0.1)
    coverage.lines["smelt/serve/front.py"][3] |= {names[3], "tests/unit/serve/test_queue.py::test_fails", IMPORT}
    assert set(coverage.tests_of("smelt/serve/isolation/sandbox.py", [7], 100)) == {*names[:2]}
    assert coverage.tests_of("smelt/serve/queue.py", [7], 100) == names[3:]
    assert coverage.tests_of("smelt/serve/front.py", [7], 100) == names[3:]
    assert set(coverage.tests_of("smelt/serve/other.py", [7], 100)) == {*names}
    coverage.lines["smelt/serve/isolation/syscalls.py"][1] |= {names[3]}  # the first that imports a table
    assert set(coverage.tests_of("smelt/serve/isolation/syscalls.py", [], 100)) == {names[0], names[3]}
    coverage.seconds["tests/cuda/test_driver.py::test"] = 0.1
    assert coverage.tests_of("smelt/device/cuda_driver.py", [7], 100) == ["tests/cuda/test_driver.py::test"]


def test_the_map_of_an_older_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are still there keep their tests where they are now; a changed test file is measured again."""
    root, kept, test = tmp_path / "root", tmp_path / "kept", Path("tests/test_a.py")
    measured: list[str] = []

    def measure(root: Path, path: Path, record: Path, timeout: float) -> None:
        measured.append((root / "smelt/x.py").read_text())
        lines = {"smelt/x.py": {"1": [1], "2": [1]}, "smelt/y.py": {"1": [1]}}
        record.write_text(json.dumps({"seconds": {"t": 0.1}, "names": [IMPORT, "t"], "lines": lines}))

    def write(name: str, text: str) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    monkeypatch.setattr(cover, "_measure", measure)
    for name, text in (("smelt/x.py", "a\nb\n"), ("smelt/y.py", "d\n"), (str(test), "1")):
        write(name, text)
    assert not collect(root, kept, [test], 1).is_old
    write("smelt/x.py", "new\na\nchanged\n")
    moved = collect(root, kept, [test], 1, is_old_enough=True)
    assert (moved.is_old, len(measured)) == (True, 1)
    assert {file: {**lines} for file, lines in moved.lines.items()} == {
        "smelt/x.py": {2: {"t"}},
        "smelt/y.py": {1: {"t"}},
    }
    write(str(test), "2")
    assert not collect(root, kept, [test], 1, is_old_enough=True).is_old
    write(str(test), "1")
    assert not collect(root, kept, [test], 1).is_old
    assert len(measured) == 3


def test_lines_that_are_still_there() -> None:
    assert move_lines("a\nb\nc\nd\n", "x\na\nc\ny\nd\n") == {1: 2, 3: 3, 4: 5}
    assert move_lines("a\n", "") == {}


def test_tests_run_while_nobody_measures(tmp_path: Path) -> None:
    path, turn = tmp_path / "lock", Turn(tmp_path / "lock")
    with path.open("w") as alone:
        with turn.taken(), turn.taken(), pytest.raises(BlockingIOError):
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        began = threading.Event()

        def begin() -> None:
            with turn.taken():
                began.set()

        thread = threading.Thread(target=begin)
        thread.start()
        assert not began.wait(0.05)
        fcntl.flock(alone, fcntl.LOCK_UN)
        thread.join()
        assert began.is_set()
    with Turn(None).taken(), Turn(None).taken():
        pass


def test_files_with_tests(tmp_path: Path) -> None:
    example = ">>> 1 + 1\n2\n"
    texts = {"tests/unit/test_a.py": "", "tests/unit/b.py": example, "smelt/x.py": example, "smelt/y.py": ""}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [each.name for each in files_of(tmp_path / "tests")] == ["test_a.py"]
    assert [each.name for each in files_of(tmp_path / "smelt")] == ["x.py"]
    for name in ("tests/unit/test_a.py", "tests/unit/b.py"):
        assert files_of(tmp_path / name) == [tmp_path / name]


def test_the_same_seed_draws_the_same_and_equivalent_ones_are_known() -> None:
    root = Path(smelt.__path__[0]).parent
    first, again, other = (draw(root, seed, 3, ["smelt/frozen.py"]) for seed in (1, 1, 2))
    assert first == again != other
    trial = first[0]
    known = {"file": trial.file, "line": trial.line, "becomes": trial.becomes, "reason": "why"}
    assert known_equivalent(trial, [{**known, "becomes": trial.line}, known]) == "why"
    assert known_equivalent(trial, [{**known, "line": ""}]) == ""
    assert known_equivalent(trial, [{"file": trial.file, "kind": trial.mutant.kind, "reason": "all"}]) == "all"
    assert known_equivalent(trial, [{"file": trial.file, "kind": "another", "reason": "all"}]) == ""


def test_equivalent_mutants_stand_for_something() -> None:
    root = Path(smelt.__path__[0]).parent
    for each in tomllib.loads(EQUIVALENT.read_text())["mutant"]:
        lines = [line.strip() for line in (root / each["file"]).read_text().splitlines()]
        assert each.get("line", lines[0]) in lines, each
        assert each.keys() >= {"file", "reason"}
        assert ("line" in each) == ("becomes" in each) != ("kind" in each)
        assert "line" not in each or each["becomes"] != each["line"]
        assert len(each["reason"]) > 20


class Outcomes(Copy):
    """A copy whose runs of pytest end as given: with the mutant, then without it."""

    def __init__(self, root: Path, *ends: tuple[str, str]) -> None:
        self.root, self.end, self.sound, self.ends = root, time.monotonic() + 1000, {}, list(ends)
        self.mutated: list[bool] = []

    def run(self, tests: list[str], limit: float, file: str) -> tuple[str, str, list[str]]:
        self.mutated.append("<=" in (self.root / file).read_text())
        return *self.ends.pop(0), tests


@pytest.mark.parametrize(
    ("ends", "check", "outcome"),
    [
        ([("killed", "FAILED a")], False, "killed"),
        ([("killed", "FAILED a"), ("survived", "")], True, "killed"),
        ([("killed", "FAILED a"), ("killed", "FAILED a")], True, "survived"),
        ([("killed", LATE), ("killed", LATE)], False, "survived"),
        ([("killed", LATE), ("survived", "")], False, "killed"),
        ([("killed", "ERROR a")], False, "killed"),
        ([("killed", "ERROR: not found: a"), ("killed", "ERROR: not found: a")], False, "survived"),
        ([("killed", "exit status 4"), ("killed", "exit status 4")], False, "survived"),
        ([("survived", "")], True, "survived"),
    ],
)
def test_tests_that_fail_or_are_slow_without_a_mutant_kill_nothing(
    tmp_path: Path, ends: list[tuple[str, str]], check: bool, outcome: str
) -> None:
    (tmp_path / "a.py").write_text("x = a < b\n")
    trial = Trial("a.py", mutants_of("x = a < b\n")[0], "", "", "survived")
    copy = Outcomes(tmp_path, *ends)
    copy.try_tests(trial, ["a"], 10, check)
    assert (trial.outcome, trial.tests, copy.ends) == (outcome, 1, [])
    assert copy.mutated == [True, False][: len(ends)]
    assert (tmp_path / "a.py").read_text() == "x = a < b\n"


def test_a_mutant_that_the_end_of_the_run_cuts_off_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("x = a < b\n")
    for left, outcome, tests in ((1000.0, "survived", 1), (5.0, "", 0)):
        trial = Trial("a.py", mutants_of("x = a < b\n")[0], "", "")
        copy = Outcomes(tmp_path, ("killed", LATE), ("killed", LATE))
        copy.end = left
        clock = iter((0.0, *[9.0] * 9))
        monkeypatch.setattr("tests.mutation.run.time", SimpleNamespace(monotonic=partial(next, clock)))
        copy.try_tests(trial, ["a"], 10)
        assert (trial.outcome, trial.tests) == (outcome, tests)
