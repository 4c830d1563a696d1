"""A sample of the StableHLO suites as ONNX models in onnxruntime: what is exported holds its own checks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.stablehlo import CaseError, read, run_all

pytest.importorskip("onnxruntime")

SUITES = os.environ.get("SMELT_SUITES")
EVERY = 9  # of the programs
# What onnxruntime computes within a few more ULP than the checks allow, and kernels that it lacks.
PEER = (
    "cumlogsumexp_float16", "reduce_window_add_float32_12_12", "conv_general_dilated_float32_2_3_9_float32_12_1_3",
    "erf_float64", "select_and_scatter_add_float32_2_3_4_float32_2_4_6", "sinh_float32", "top_k_float32_5_chlo",
    "top_k_uint64", "tan_0",
)  # fmt: skip
REFUSED = ("no ONNX form", "no arrays of 4 bits", "a probe inside a region")


@pytest.mark.skipif(not SUITES, reason="SMELT_SUITES is not set")
@pytest.mark.parametrize("suite", ["interpret", "testdata"])
def test_exported_programs_hold_their_checks(suite: str):
    from tests.conformance.export_cases import run_exported

    folder = Path(str(SUITES)) / suite
    passed, wrong = 0, []
    files = sorted(folder.glob("*.mlir"))[::EVERY]
    for path in files:
        text = path.read_text()
        try:
            run_all(read(text), text, run_exported)
            passed += 1
        except CaseError as error:
            if not any(each in str(error) for each in REFUSED) and not path.name.startswith(PEER):
                wrong.append(f"{path.name}: {error}")
    assert not wrong, "\n".join(wrong)
    assert passed >= 0.7 * len(files)
