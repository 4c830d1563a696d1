"""The official ONNX backend suite on the reference engine, a test for each case.

`tests/conformance/test_onnx_suite.py` runs the same cases in worker processes, as one test. `run.py` measures these
and picks those that run the line of a mutant. Not collected by itself.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.onnx_suite import Group, load_suite

ROOT = Path(__file__).resolve().parents[2]
IGNORED = tomllib.loads((ROOT / "tests" / "conformance" / "onnx_ignore.toml").read_text())["reference"]
KINDS = ("node", "simple")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name) for case in load_suite() if case.kind in KINDS and case.name not in IGNORED],
)
def test_case(case: Any) -> None:
    (found,) = Group("reference", [case]).results()
    assert found.status == "passed", found.detail
