"""The second try of a mutant that unit tests do not notice: samples of the public suites.

Not collected by itself: `run.py` names this file to pytest, and the mutated file in `SMELT_MUTATED`. A mutant of the
ONNX operators gets the cases of that file's operators, one of the ONNX writer programs that are written as ONNX and run
by onnxruntime, any other one a spread over the suites.
"""

from __future__ import annotations

import os
import re
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance import stablehlo
from tests.conformance.onnx_suite import run_suite

ROOT = Path(__file__).resolve().parents[2]
MUTATED = os.environ.get("SMELT_MUTATED", "")
LISTS = ROOT / "tests" / "conformance"
NATIVE = tomllib.loads((LISTS / "native_ignore.toml").read_text())
ONNX = tomllib.loads((LISTS / "onnx_ignore.toml").read_text())["reference"]
STABLEHLO = {entry["name"] for entry in tomllib.loads((LISTS / "stablehlo_ignore.toml").read_text())["ignore"]}
EVERY = 20


def spread(name: str) -> bool:
    return zlib.crc32(name.encode()) % EVERY == 1


def onnx_part() -> Callable[[str], bool]:
    """The cases of the operators that the mutated file reads, or a spread."""
    if not MUTATED.startswith("smelt/read/onnx/ops/"):
        return spread
    operators = re.findall(r'onnx_op\(\s*"(\w+)"', (ROOT / MUTATED).read_text())
    words = {each.lower() for each in operators}

    def is_of_these(name: str) -> bool:
        parts = name.removeprefix("test_").split("_")
        return any("".join(parts[:count]) in words for count in range(1, len(parts) + 1))

    return is_of_these if words else spread


WRITER = MUTATED.startswith("smelt/write/")


@pytest.mark.skipif(WRITER, reason="nothing is written")
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_onnx(engine: str) -> None:
    known = ONNX.keys() | (NATIVE["onnx"].keys() if engine == "native" else set())
    part = onnx_part() if engine == "reference" else spread
    failed = [case.name for case in run_suite(engine, 1, part=part) if case.status != "passed"]
    assert set(failed) <= known


@pytest.mark.skipif(WRITER, reason="nothing is written")
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_stablehlo(suites: Path, engine: str) -> None:
    known = STABLEHLO | (NATIVE["stablehlo"].keys() if engine == "native" else set())
    for part in ("testdata", "interpret"):
        cases = stablehlo.run_folder(suites / part, engine, jobs=1, part=spread)
        assert {f"{part}/{case.name}" for case in cases if case.status != "passed"} <= known


@pytest.mark.skipif(not WRITER, reason="of the writer alone")
@pytest.mark.parametrize("suite", ["interpret", "testdata"])
def test_exported(suites: Path, suite: str) -> None:
    from tests.conformance import test_export

    test_export.test_exported_programs_hold_their_checks(suite)
