"""The official ONNX backend suite on the reference engine, through the same code as the command line.

Every case that does not pass is named in onnx_ignore.toml with a reason; one that passes must leave the list.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.conformance.onnx_suite import run_suite

IGNORED = tomllib.loads((Path(__file__).parent / "onnx_ignore.toml").read_text())["reference"]
TOTAL = 2033


@pytest.mark.timeout(1200)
def test_the_suite_passes_but_for_what_is_listed() -> None:
    cases = run_suite("reference", 2)
    assert len(cases) >= TOTAL
    assert all(reason.strip() for reason in IGNORED.values())
    failed = {case.name: case.detail for case in cases if case.status != "passed"}
    assert set(failed) == set(IGNORED), {name: failed.get(name, "passes now") for name in set(failed) ^ set(IGNORED)}
