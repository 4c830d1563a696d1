"""A sample of the public StableHLO programs on the pjrt engine, for every run; the whole suite is a slow test."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.conformance import stablehlo as harness

pytest.importorskip("jaxlib")

RECORD = tomllib.loads((Path(__file__).parent / "stablehlo_ignore.toml").read_text())
EVERY = 40


def test_every_fortieth_program_passes(suites: Path, tmp_path: Path) -> None:
    excused = {Path(entry["name"]).name for entry in RECORD["ignore"] if "pjrt" in entry["engines"]}
    chosen = [path for path in sorted((suites / "testdata").glob("*.mlir"))[::EVERY] if path.name not in excused]
    assert len(chosen) > 20
    for path in chosen:
        (tmp_path / path.name).symlink_to(path)
    cases = harness.run_folder(tmp_path, "pjrt", jobs=1)
    failed = [f"{case.name}: {case.detail}" for case in cases if case.status != "passed"]
    assert not failed, "\n".join(failed)


def test_wrong_expectations_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "add_0.mlir").write_text("""
func.func @main() {
  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %1 = stablehlo.add %0, %0 : tensor<2xi32>
  check.expect_eq_const %1, dense<[2, 5]> : tensor<2xi32>
  func.return
}
""")
    (case,) = harness.run_folder(tmp_path, "pjrt", jobs=1)
    assert case.status == "failed"
    assert "1 of 2 elements" in case.detail
