"""The official ONNX backend suite, through the same code as the command line: all of it on the reference engine, a
fifth of it on the native one.

Every case that does not pass is named in onnx_ignore.toml (native_ignore.toml for what only the native engine fails)
with a reason; one that passes must leave the list.
"""

from __future__ import annotations

import tomllib
import zlib
from pathlib import Path

import pytest

from tests.conformance.onnx_suite import run_suite

HERE = Path(__file__).parent
IGNORED = tomllib.loads((HERE / "onnx_ignore.toml").read_text())["reference"]
NATIVE_IGNORED = tomllib.loads((HERE / "native_ignore.toml").read_text())["onnx"]
TOTAL = 2033
NATIVE_FLOOR = 429  # cases of the fifth that pass: a number that may only grow


@pytest.mark.timeout(1200)
def test_the_suite_passes_but_for_what_is_listed() -> None:
    cases = run_suite("reference", 2)
    assert len(cases) >= TOTAL
    assert all(reason.strip() for reason in IGNORED.values())
    failed = {case.name: case.detail for case in cases if case.status != "passed"}
    assert set(failed) == set(IGNORED), {name: failed.get(name, "passes now") for name in set(failed) ^ set(IGNORED)}


def fifth(name: str) -> bool:
    """The same fifth of all names each time."""
    return zlib.crc32(name.encode()) % 5 == 0


@pytest.mark.timeout(900)
def test_a_fifth_of_the_suite_passes_natively() -> None:
    cases = run_suite("native", 2, part=fifth)
    failed = {case.name: case.detail for case in cases if case.status != "passed"}
    expected = {name for name in IGNORED.keys() | NATIVE_IGNORED.keys() if fifth(name)}
    assert len(cases) - len(failed) >= NATIVE_FLOOR, failed
    assert set(failed) == expected, {name: failed.get(name, "passes now") for name in set(failed) ^ expected}
    idle = [case.name for case in cases if case.status == "passed" and not case.kernels]
    assert len(idle) < len(cases) / 8, f"cases that run no kernel test nothing: {idle}"
