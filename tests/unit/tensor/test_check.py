"""`smelt check` on small modules: a wrong one is refused at its line with the right diagnosis, a right one is not.

A counterexample is taken at its word: the condition that makes the program fail holds for its numbers.
"""

from pathlib import Path

import pytest

from smelt import TensorError
from smelt.cli.check_entries import Found, check_module, deduplicate, find_uncovered
from smelt.cli.check_modules import import_file
from smelt.errors import Location, SmeltError
from tests.unit.tensor.check_cases import HEADER, RIGHT, WRONG, Wrong
from tests.unit.tensor.check_models import MORE_RIGHT, MORE_WRONG
from tests.unit.tensor.check_networks import NETWORKS

ALL_WRONG, ALL_RIGHT = WRONG | MORE_WRONG, RIGHT | MORE_RIGHT | NETWORKS


def found(tmp_path: Path, text: str) -> Found:
    path = tmp_path / "program.py"
    path.write_text(HEADER + text)
    made = check_module(import_file(path))
    made.uncovered = find_uncovered([made])
    return made


def mistakes(found: Found) -> list[SmeltError]:
    return deduplicate(error for entry in found.entries for error in entry.mistakes)


@pytest.mark.parametrize("case", ALL_WRONG.values(), ids=ALL_WRONG.keys())
def test_a_wrong_program_is_refused(case: Wrong, tmp_path: Path):
    checked = found(tmp_path, case.text)
    assert checked.failure is None
    assert checked.uncovered == []
    [error] = mistakes(checked)
    assert isinstance(error, TensorError)
    assert case.message in error.message
    [line] = [number for number, text in enumerate((HEADER + case.text).splitlines(), 1) if text.endswith("# here")]
    assert isinstance(error.where, Location)
    assert error.where.line == line, error
    assert error.source
    assert "^" in error.source
    if case.missing:
        assert error.missing == case.missing
    if case.remedy:
        assert case.remedy in (error.remedy or "")
    if case.fails:
        assert error.counterexample, error
        free = dict.fromkeys("BCDEFHKMNSTVXY", 2)  # sizes that the claim says nothing about
        assert eval(case.fails, {"max": max}, free | error.counterexample), error


@pytest.mark.parametrize("text", ALL_RIGHT.values(), ids=ALL_RIGHT.keys())
def test_a_right_program_is_accepted(text: str, tmp_path: Path):
    checked = found(tmp_path, text)
    assert checked.failure is None
    assert [str(error) for error in mistakes(checked)] == []
    assert checked.uncovered == []
    assert checked.entries


def test_all_mistakes_are_found_not_only_the_first(tmp_path: Path):
    text = """
class Net(smelt.Model):
    up: Shaped[Tensor, "[D, F]"]
    def forward(self, x: Shaped[Tensor, "[B, D]"], y: Shaped[Tensor, "[B, E]"]) -> Shaped[Tensor, "[B]"]:
        a = x.dot(self.up, "f")
        b = x.sum("q")
        c = x + y
        return (a + b + c).sum("d")
    def other(self, x: Shaped[Tensor, "[B, E]"]):
        return x.dot(self.up, "d")
def function(x: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "f32[s=S + 1]"]:
    return x
"""
    where = [error.where for error in mistakes(found(tmp_path, text))]
    assert [place.line for place in where if isinstance(place, Location)] == [7, 8, 9, 12, 13]


def test_a_mistake_lists_the_calls_that_led_to_it(tmp_path: Path):
    case = WRONG["a layer called with the wrong axis"]
    [error] = mistakes(found(tmp_path, case.text))
    assert isinstance(error, TensorError)
    assert "in Net.forward" in str(error)
    assert error.record()["calls"] == [{"function": "Net.forward", "path": str(tmp_path / "program.py"), "line": 11}]


def test_uncovered_functions_are_reported_with_a_reason(tmp_path: Path):
    text = """
def bare(x, y: Tensor):
    return x + y
def named(x: Shaped[Tensor, "[B]"], how: str):
    return x
def helper(x: Tensor) -> Tensor:
    return x + 1.0
def uses(x: Shaped[Tensor, "[B]"]):
    return helper(x)
def plain(path: str, number: int) -> int:
    return number
class Net(smelt.Model):
    config: dict
    w: Shaped[Tensor, "[D]"]
    def forward(self, x: Shaped[Tensor, "[D]"]):
        return x * self.w
class Abstract(smelt.Model):
    w: Shaped[Tensor, "[D]"]
    def forward(self, x: Shaped[Tensor, "[D]"]):
        raise NotImplementedError("later")
"""
    checked = found(tmp_path, text)
    assert [(each.name, each.line) for each in checked.uncovered] == [
        ("bare", 4),
        ("named", 6),
        ("Net.forward", 17),
        ("Abstract.forward", 21),
    ]
    reasons = [each.reason for each in checked.uncovered]
    assert reasons[0] == "x has no shape; y has no shape"
    assert "how has no default" in reasons[1]
    assert "config" in reasons[2]
    assert "later" in reasons[3]
    assert [entry.name for entry in checked.entries] == ["uses"]


def test_both_values_of_a_flag_are_checked_and_numbers_are_symbolic(tmp_path: Path):
    text = """
def f(x: Shaped[Tensor, "[S]"], n: int, flip: bool = False) -> Shaped[Tensor, "[S]"]:
    for _ in range(n):
        x = x + 1.0
    return x[1:] if flip else x
"""
    checked = found(tmp_path, text)
    [error] = mistakes(checked)
    assert "the result: a size is" in error.message
    assert checked.entries[0].numbers == {"n": 2}


def test_sizes_that_a_program_refuses_itself_are_no_mistake(tmp_path: Path):
    text = """
def f(x: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "f32[s=S//2]"]:
    assert x.size("s") % 2 == 0, "an even size"
    return x[::2] + x[1::2]
def g(x: Shaped[Tensor, "[S]"]):
    if x.size("s") < 3:
        raise ValueError("too short")
    return x[2]
class Net:
    def __init__(self, wide: int, heads: int) -> None:
        if wide % heads:
            raise ValueError("heads divide the width")
        self.heads = heads
        self.weight = smelt.symbolic(smelt.Shape("f32", d=wide))
    def forward(self, x: Shaped[Tensor, "f32[b=B, d=wide]"]) -> Shaped[Tensor, "f32[b=B, d=wide]"]:
        return (x * self.weight).split("d", h=self.heads, k=None).merge("h k", "d")
"""
    checked = found(tmp_path, text)
    assert [str(error) for error in mistakes(checked)] == []
    assert [entry.name for entry in checked.entries] == ["f", "g", "Net.forward"]


def test_an_exception_of_the_users_own_is_shown_at_its_line(tmp_path: Path):
    text = """
def f(x: Shaped[Tensor, "[S]"]):
    return x.soft_max("s")
"""
    [error] = mistakes(found(tmp_path, text))
    assert "AttributeError" in error.message
    assert error.source
    assert "soft_max" in error.source


def test_names_that_are_imported_for_type_checkers_alone(tmp_path: Path):
    path = tmp_path / "late.py"
    path.write_text(
        """from __future__ import annotations
from typing import TYPE_CHECKING
import smelt
if TYPE_CHECKING:
    from smelt import Shaped, Tensor
    from nowhere import Other
def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "f32[s=T]"] | None = None) -> Shaped[Tensor, "[S]"]:
    return x if y is None else x + y
def g(x: Shaped[Other, "[S]"]):
    return x
"""
    )
    checked = check_module(import_file(path))
    [error] = mistakes(checked)
    assert "different sizes, S and T" in error.message
    [lost] = find_uncovered([checked])
    assert (lost.name, lost.reason) == ("g", "the annotation of x cannot be resolved")


def test_checked_and_wrapped_functions_are_entry_points(tmp_path: Path):
    text = """
import functools
def logged(function):
    @functools.wraps(function)
    def call(*args, **keywords):
        return function(*args, **keywords)
    return call
@checked
def one(x: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "f32[s=S + 1]"]:
    return x
@logged
def two(x: Shaped[Tensor, "[S]"]):
    return x.sum("t")
class Net(smelt.Model):
    w: Shaped[Tensor, "[D]"]
    @checked
    def forward(self, x: Shaped[Tensor, "[B, D]"]) -> Shaped[Tensor, "[D]"]:
        return x * self.w
"""
    checked = found(tmp_path, text)
    assert [entry.name for entry in checked.entries] == ["one", "two", "Net.forward"]
    assert [error.where.line for error in mistakes(checked) if isinstance(error.where, Location)] == [11, 15, 20]
