"""Some mutants of the official ONNX node cases on the reference engine; the command runs as many as one likes."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.conformance.onnx_mutants import run_mutants  # noqa: E402  needs both packages


def test_mutants(seed: int) -> None:
    outcomes = run_mutants(seed, 1200, seconds=50)
    counts = Counter(outcome.status for outcome in outcomes)
    print(dict(counts))
    wrong = [each for each in outcomes if each.status in ("wrong", "crashed")]
    assert not wrong, "\n".join(f"{each.index} {each.variant}: {each.detail}\n  {each.mutant}" for each in wrong)
    assert counts["agree"] >= len(outcomes) / 4, f"too few mutants count: {dict(counts)}"
    assert counts["refused"] <= len(outcomes) / 50, f"too many are refused: {dict(counts)}"
