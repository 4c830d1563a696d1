"""The first hour as far as it needs no package; `python -m tests.real.first_hour` plays all of it."""

from __future__ import annotations

import pytest

from smelt.device import cpu, pjrt
from tests.real.first_hour import play

pytestmark = pytest.mark.skipif(
    cpu.compiler() is None or pjrt.missing() is not None, reason="no C compiler, or no jaxlib"
)


def test_every_step_works_or_says_how() -> None:
    rows = play(quick=True)
    assert len(rows) == 9
    assert [row for row in rows if row[1] != "ok"] == []
