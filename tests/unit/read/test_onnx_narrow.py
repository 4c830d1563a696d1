"""Operators on f16: computed in f32 and rounded once. onnxruntime's f32 on the same numbers is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx_nodes import Node, on_onnxruntime, on_smelt

pytest.importorskip("onnxruntime")

SIZES = {"B": 2, "S": 5}
SCALES = {"scales": lambda random, sizes: np.array([1, 1, 2, 1.5], np.float32)}
NODES: list[tuple[str, str, dict[str, Any]]] = [
    ("FusedGemm", "A:{f}[S,4] B:{f}[4,5] C:{f}[5]", {"activation": "Relu", "alpha": 0.5, "beta": 2.0}),
    ("FusedGemm", "A:{f}[4,S] B:{f}[5,4]", {"transA": 1, "transB": 1, "activation": "Tanh"}),
    ("FusedMatMul", "A:{f}[B,S,4] B:{f}[4,5]", {"alpha": 0.3}),
    ("BiasGelu", "A:{f}[B,S,6] B:{f}[6]", {}),
    ("Resize", "X:{f}[B,2,S,6] - scales:f32[4]", {"mode": "linear", "weights": "scales", "draw": SCALES}),
    ("Resize", "X:{f}[2,2,5,6] - scales:f32[4]", {"mode": "cubic", "weights": "scales", "draw": SCALES}),
    ("Resize", "X:{f}[B,2,S,6] - scales:f32[4]", {"mode": "nearest", "weights": "scales", "draw": SCALES}),
]


@pytest.mark.parametrize(("op", "inputs", "options"), NODES, ids=lambda each: each if isinstance(each, str) else "")
def test_f16_is_rounded_once(op: str, inputs: str, options: dict[str, Any], seed: int, tmp_path: Path) -> None:
    where: dict[str, Any] = {"domain": "", "version": 19} if op == "Resize" else {}
    narrow, wide = (Node(op, inputs.format(f=kind), **where, **options) for kind in ("f16", "f32"))
    arrays = narrow.arrays(np.random.default_rng(seed), SIZES)
    widened = {name: array.astype(np.float32) for name, array in arrays.items()}
    (have,) = on_smelt(narrow.model(arrays), arrays, tmp_path)
    (want,) = on_onnxruntime(wide.model(widened), widened)
    assert have.dtype == np.float16
    assert have.shape == want.shape
    away = np.abs(have.astype(np.float64) - want) / np.spacing(np.abs(want).astype(np.float16)).astype(np.float64)
    assert away.max() <= 0.51, "in units of the last place of f16"
