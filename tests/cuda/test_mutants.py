"""Mutants of ONNX node cases on a GPU: `tests/conformance/onnx_mutants.py --device`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")
pytest.importorskip("onnxruntime")

from tests.conformance import onnx_mutants  # noqa: E402  needs both packages
from tests.conformance.onnx_mutants import Mutant, examine  # noqa: E402
from tests.cuda.emulated import EmulatedCuda  # noqa: E402


def softmax(rows: int) -> Mutant:
    """A mutant that needs no pool of cases: softmax of rows, then of one row more."""
    random = np.random.default_rng(rows)
    inputs = [{"x": random.standard_normal((each, 600)).astype(np.float32)} for each in (rows, rows + 1)]
    node = onnx.helper.make_node("Softmax", ["x"], ["y"])
    return Mutant("softmax", node, 21, inputs, set(), {"x": ["rows", "columns"]})


def test_mutants_run_on_a_gpu(emulated: EmulatedCuda, tmp_path: Path) -> None:
    outcome = examine(0, softmax(2), tmp_path, "native", "cuda")
    assert outcome.status == "agree", outcome
    assert emulated.emulated.launches


def test_what_is_wrong_on_a_gpu_runs_on_the_processor_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = []

    def compare(*given: Any) -> str | None:
        devices.append(given[-1])
        return "it is wrong" if given[-1] == "cuda" else None

    monkeypatch.setattr(onnx_mutants, "compare", compare)
    outcome = examine(3, softmax(1), tmp_path, "native", "cuda")
    assert (outcome.status, outcome.processor) == ("wrong", "agree")
    assert devices == ["cuda", "cpu", "cpu", "cpu"]  # the first variant decides; on the processor all are right
    monkeypatch.setattr(onnx_mutants, "run_mutants", lambda *_, **given: [outcome] if given["device"] == "cuda" else [])
    assert onnx_mutants.main(["--device", "cuda"]) == 1
    assert "3 wrong static (on the processor: agree)" in capsys.readouterr().out
