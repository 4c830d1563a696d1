"""Samples of the public suites as ONNX models in onnxruntime.

Exported StableHLO programs hold their own checks; models of the ONNX suite that are read and written again
give what it expects.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import smelt
from smelt.errors import UnsupportedError
from smelt.read.onnx import StaticError
from tests.conformance.onnx_suite import data_of, load_suite
from tests.conformance.stablehlo import CaseError, read, run_all

onnxruntime = pytest.importorskip("onnxruntime")

SUITES = os.environ.get("SMELT_SUITES")
EVERY = 9  # of the programs
ULP = 1 << 10  # onnxruntime adds in another order, and its functions are less exact on some processors
# Kernels that it lacks, nan in its TopK, tangents near their poles, and halves that it keeps in f32.
PEER = ("erf_float64", "top_k_float32_5_chlo", "top_k_uint64", "tan_", "cumlogsumexp_float16", "sinh_float32")
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
            run_all(read(text), text, partial(run_exported, allowance=ULP))
            passed += 1
        except CaseError as error:
            if not any(each in str(error) for each in REFUSED) and not path.name.startswith(PEER):
                wrong.append(f"{path.name}: {error}")
    assert not wrong, "\n".join(wrong)
    assert passed >= 0.7 * len(files)


@pytest.mark.slow
def test_models_of_the_onnx_suite_come_back(tmp_path: Path):
    done = 0
    nodes = [case for case in load_suite() if case.kind != "real"]  # logits of 1e10, all equal: one ULP counts
    for case in nodes[::5]:
        model, sets = data_of(case)
        arrays = [item for pair in sets for side in pair for item in side]
        if any(
            not isinstance(item, np.ndarray) or item.dtype.type.__module__ != "numpy" or item.dtype.kind == "O"
            for item in arrays
        ):
            continue  # sequences, and numbers that NumPy does not have
        path = tmp_path / "case.onnx"
        onnx.save(model, path)
        try:
            program, weights = smelt.read(path)
            smelt.export(program, tmp_path / "again.onnx", weights=weights)
        except UnsupportedError:
            continue  # an operator or a type that one side lacks
        except StaticError:
            continue  # values that shape the program are inputs of this case
        compare(case, model, sets, tmp_path / "again.onnx")
        done += 1
    assert done >= 200


def compare(case: Any, model: Any, sets: Any, path: Path) -> None:
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    wanted = {port.name for port in session.get_inputs()}
    for inputs, outputs in sets:
        held = {tensor.name for tensor in model.graph.initializer}
        named = zip((port.name for port in model.graph.input if port.name not in held), inputs, strict=False)
        found = session.run(None, {name: value for name, value in named if name in wanted})
        for ours, theirs in zip(found, outputs, strict=True):
            assert ours.dtype == theirs.dtype, case.name
            half = ours.dtype == np.float16
            rtol, atol = (4e-3, 1e-3) if half else (max(case.rtol, 1e-3), max(case.atol, 1e-5))
            np.testing.assert_allclose(ours, theirs, rtol, atol, err_msg=case.name)
