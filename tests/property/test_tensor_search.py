"""No program that `check` accepts fails at a size that satisfies its facts: a search, on the reference and natively.

The search notices: without the obligations it finds programs that fail. SMELT_SEARCH=5000 searches among that many
programs, and runs every tenth natively, too.
"""

import os

import numpy as np
import pytest

from smelt.tensor import record
from tests.property.tensor_programs import mutate
from tests.property.tensor_search import failure, search_programs
from tests.property.test_tensor_programs import draw_program, judge

PROGRAMS = int(os.environ.get("SMELT_SEARCH", "40"))


def test_accepted_programs_run_at_every_size(seed: int):
    failures = list(search_programs(seed, PROGRAMS, 10 if PROGRAMS > 40 else 20))
    assert not failures, f"{len(failures)} failures\n\n" + "\n\n".join(failures[:5])


def test_accepted_programs_of_many_ops_run_at_every_size(seed: int):
    """The same for programs that were drawn right, half of them changed afterwards."""
    rng = np.random.default_rng([seed, 78])
    failures: list[str] = []
    done = 0
    while done < PROGRAMS:
        program = draw_program(rng)
        changed = mutate(program, rng) if rng.random() < 0.5 else None
        program = changed[0] if changed else program
        endless = any(step.params.get("function") == "while" for step in program.steps)  # for what is empty, say
        traced = None if endless else judge(program).traced
        if traced is None:
            continue
        done += 1
        if (found := failure(traced, ("reference",), rng, 4)) is not None:
            failures.append(f"{found}\n{program}")
    assert not failures, f"{len(failures)} failures\n\n" + "\n\n".join(failures[:5])


def test_the_search_notices(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record, "require_sizes", lambda *_: None)
    monkeypatch.setattr(record, "require_divisors", lambda *_: None)
    assert next(search_programs(seed, 200, 0), None) is not None
