"""Random cases of every kind of kernel: generated C against the interpreter, or an evaluation in double.

Moves, integers, booleans and sums of small integers must agree exactly; other sums of k terms within (4 + sqrt(k)) eps
times the sum of the terms' magnitudes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from smelt.device import cpu
from smelt.engine import compile as stages
from smelt.engine import native
from smelt.errors import SmeltError
from smelt.kernel.build import gemm
from smelt.kernel.plan import contract
from smelt.passes import pipeline
from smelt.target import TileShape
from tests.property.problems import Problem, difference, draw, edges

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

GROUPS = [
    ("map", "join"),
    ("rows", "columns", "everything"),
    ("contraction",),
    ("window",),
    ("pool", "gather", "sort"),
    ("scatter", "scan"),
    ("top", "running"),
    ("loop",),
]
SHAPES = [TileShape(12, 32, 16), TileShape(6, 16, 8), TileShape(4, 8, 4), TileShape(1, 8, 8), TileShape(8, 16, 4)]


def failures(problems: Sequence[Problem]) -> list[str]:
    """The failures; all cases are compiled as one C file."""
    found = []
    for problem, made in zip(problems, native.compile_all([each.make(False) for each in problems]), strict=True):
        if isinstance(made, SmeltError):
            found.append(f"{problem.name}: {made}")
            continue
        (got,) = made(*problem.args)
        found.append(difference(problem, got))
        made.close()
    return [each for each in found if each]


@pytest.mark.parametrize("kinds", GROUPS, ids=lambda kinds: kinds[0])
def test_random_cases(kinds: tuple[str, ...], seed: int) -> None:
    random = np.random.default_rng([seed, GROUPS.index(kinds)])
    problems = [draw(kinds[i % len(kinds)], random) for i in range(24)]
    assert failures(problems) == []


def test_edge_cases() -> None:
    assert failures(edges()) == []


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.rows}x{shape.columns}x{shape.lanes}")
def test_any_tile_is_right(shape: TileShape, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape of register tiles, and with it the width of panels, is a matter of speed alone."""
    for each in (stages, pipeline, contract):  # packing, printing and what may be printed
        monkeypatch.setattr(each, "tile_shape", lambda target: shape)
    random = np.random.default_rng([seed, shape.rows])
    problems = [draw(("contraction", "window")[i % 2], random) for i in range(12)]
    assert failures(problems) == []


def test_panels_taken_together_change_no_bit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not fit in a cache pass several narrow panels at once."""
    for each in (stages, pipeline, contract):  # packing, printing and what may be printed
        monkeypatch.setattr(each, "tile_shape", lambda target: TileShape(6, 16, 8))
    random = np.random.default_rng([seed, 7])
    problems = [draw("contraction", random) for _ in range(10)]
    found = []
    for fits in (True, False):
        monkeypatch.setattr(gemm, "rows_fit", lambda target, rows, depth, fits=fits: fits)
        made = native.compile_all([each.make(False) for each in problems])
        runs = [run for run in made if not isinstance(run, SmeltError)]
        found.append([run(*each.args)[0].tobytes() for run, each in zip(runs, problems, strict=True)])
        assert failures(problems) == []
    assert found[0] == found[1]


def test_the_comparison_finds_what_is_wrong(seed: int) -> None:
    """A case of each kind with one wrong element, or one just beyond the tolerance."""
    random = np.random.default_rng(seed)
    for kind in (kind for kinds in GROUPS for kind in kinds):
        problem = draw(kind, random)
        while not (want := problem.expected()).size or want.dtype.kind == "b":
            problem = draw(kind, random)
        off = want.copy()
        limit = problem.allowed(want)
        last = off.reshape(-1)[-1:]
        last[...] = np.where(last == 3, 5, 3) if problem.exact else last + 3 * limit.reshape(-1)[-1] + 1e-30
        assert difference(problem, want) == ""
        assert difference(problem, off) != ""
