"""Random sorts, scans, scatters, windows and reductions on a GPU, with blocks that are small: short rows reach all of
their launches."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.kernel.build import columns_simt, reduce, scan_simt, scatter_simt, sort_simt, window_simt
from tests.cuda.emulated import EmulatedCuda
from tests.property.problems import Problem, difference, draw

SMALL = 6_000  # elements and terms of a case: an emulated thread is slow
GROUPS = (("sort", "top"), ("scatter",), ("running", "pool"), ("rows", "columns", "everything"))


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, parts and chunks of a few elements."""
    for name, value in {"SHORT_RUNS": (8, 16), "RUN": 64, "PROBES": 4, "MOST": 1 << 13, "SHORT": 16}.items():
        monkeypatch.setattr(sort_simt, name, value)
    monkeypatch.setattr(scatter_simt, "MANY", 4)
    monkeypatch.setattr(reduce, "LONG", 100)
    for module in (reduce, scan_simt):
        monkeypatch.setattr(module, "PART", 32)
    for name, number in {"SLICES": 16, "GROUPS": 4, "CHUNK": 64, "TOTALS": 64}.items():
        monkeypatch.setattr(scan_simt, name, number)
    for each in (scan_simt, window_simt):
        monkeypatch.setattr(each, "SHORT", 16)
    monkeypatch.setattr(window_simt, "LARGE", 12)
    for other in (reduce, columns_simt):
        monkeypatch.setattr(other, "TALL", 16)
    for name, number in {"FEW_ROWS": 4, "WIDE": 8, "AT_ONCE": 4}.items():
        monkeypatch.setattr(columns_simt, name, number)


@pytest.mark.races
@pytest.mark.parametrize("kinds", GROUPS, ids=lambda kinds: kinds[0])
def test_random_cases(
    kinds: tuple[str, ...], emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch)
    random, problems = np.random.default_rng([seed, GROUPS.index(kinds)]), list[Problem]()
    while len(problems) < 8:
        problem = draw(kinds[len(problems) % len(kinds)], random)
        if sum(arg.size for arg in problem.args) <= SMALL:
            problems.append(problem)
    made = compile_all([each.make(False) for each in problems], emulated.target())
    for problem, each in zip(problems, made, strict=True):
        assert not isinstance(each, SmeltError), f"{problem.name}: {each}"
        assert not difference(problem, each(*problem.args)[0].numpy())
