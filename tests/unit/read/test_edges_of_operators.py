"""Models at the edge of what ONNX operators take: sizes of 1 and 0, the least attribute, the last index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from smelt.dim import Size, symbol
from smelt.engine.native import NativeEngine
from smelt.engine.reference import ReferenceEngine
from smelt.read.onnx import read
from smelt.read.onnx.ops.shape import rest_of
from tests.unit.read.refused import one_node

X = np.arange(6, dtype=np.float32).reshape(2, 3)
EMPTY = np.zeros(0, np.float32)


def results(path: Path, *arrays: Any) -> list[Any]:
    program, weights = read(path)
    return [np.asarray(each) for each in ReferenceEngine().compile(program).prepare(weights)(*arrays)]


def i64(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


def f32(*numbers: float) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.float32)


CASES: list[tuple[str, list[Any], dict[str, Any], list[Any], list[Any]]] = [
    ("MatMulBnb4", ["f32[2,1]", np.array([0x70], np.uint8), np.ones(1, np.float32)],
     {"domain": "com.microsoft", "K": 1, "N": 1, "block_size": 1, "quant_type": 1}, [X[:, :1]], [X[:, :1] * 0]),
    ("Unique", ["f32[0]"], {"outputs": 4}, [EMPTY], [EMPTY, i64(), i64(), i64()]),
    ("Reshape", ["f32[2,3]", i64(0, -1)], {}, [X], [X]),
    ("Reshape", ["f32[0,3]", i64(0, 3)], {"allowzero": 1}, [X[:0]], [X[:0]]),
    ("Flatten", ["f32[2,3]"], {"axis": 2}, [X], [X.reshape(6, 1)]),
    ("Flatten", ["f32[2,3]"], {"axis": -2}, [X], [X.reshape(1, 6)]),
    ("Tile", ["f32[2,3]", i64(0, 1)], {}, [X], [X[:0]]),
    ("Split", ["f32[2,3]"], {"axis": 1, "num_outputs": 2, "outputs": 2}, [X], [X[:, :2], X[:, 2:]]),
    ("Split", ["f32[2,3]", i64(3, 0)], {"axis": 1, "outputs": 2}, [X], [X, X[:, :0]]),
    ("Slice", ["f32[2,3]", i64(9), i64(-9), i64(1), i64(-1)], {}, [X], [X[:, ::-1]]),
    ("Slice", ["f32[2,3]", i64(3), i64(9), i64(1)], {}, [X], [X[:, :0]]),
    ("Gather", ["f32[2,3]", i64(2, -3)], {"axis": 1}, [X], [X[:, [2, 0]]]),
    ("GatherND", ["f32[2,3]", i64(1, 2).reshape(1, 2)], {}, [X], [X[1, 2].reshape(1)]),
    ("ConstantOfShape", [i64(0, 2)], {}, [], [np.zeros((0, 2), np.float32)]),
    ("Det", ["f32[1,1]"], {}, [X[:1, 1:2]], [np.float32(1)]),
    ("MaxPool", ["f32[1,2,3]"], {"kernel_shape": [1], "strides": [2]}, [X[None]], [X[None, :, ::2]]),
    ("MaxPool", ["f32[1,2,2,4]"], {"kernel_shape": [2, 2], "strides": [2, 2], "storage_order": 1, "outputs": 2},
     [f32(0, 5, 1, 3, 5, 2, 3, 0, *(7,) * 8).reshape(1, 2, 2, 4)],
     [f32(5, 3, 7, 7).reshape(1, 2, 1, 2), i64(2, 6, 8, 12).reshape(1, 2, 1, 2)]),  # equal ones: the first by rows
    ("LpNormalization", ["f32[2,3]"], {"p": 1, "axis": 0}, [X + 1], [(X + 1) / (X + 1).sum(0)]),
    ("GroupNormalization", ["f32[1,2,3]", np.ones(2, np.float32), np.zeros(2, np.float32)],
     {"num_groups": 2, "epsilon": 0.0}, [X[None]], [(X - X.mean(1, keepdims=True))[None] / np.sqrt(2 / 3)]),
    ("CumSum", ["f32[2,3]", np.int64(1)], {"exclusive": 1, "reverse": 1}, [X],
     [np.stack([[3, 2, 0], [9, 5, 0]]).astype(np.float32)]),
    ("CumSum", ["f32[N]", np.int64(0)], {}, [f32(1, np.inf, 2)], [f32(1, np.inf, np.inf)]),  # a dynamic dimension
    ("CumSum", ["f32[N,3]", np.int64(0)], {"exclusive": 1, "reverse": 1}, [X], [np.stack([X[1], X[1] * 0])]),
    ("CumSum", ["i32[2,N]", np.int64(-1)], {"reverse": 1}, [X.astype(np.int32)], [np.array([[3, 3, 2], [12, 9, 5]])]),
    ("CumProd", ["f32[2,N]", np.int64(1)], {"version": 26}, [X], [np.cumprod(X, 1)]),
    ("ReduceLogSum", ["i32[4]"], {"keepdims": 0}, [np.array([1, 2, 3, 50], np.int32)], [4]),
    ("ReduceLogSumExp", ["i64[4]"], {"keepdims": 0}, [i64(1, 2, 3, 50)], [50]),
    ("RNN", ["f32[0,2,3]", np.ones((1, 4, 3), np.float32), np.ones((1, 4, 4), np.float32)],
     {"hidden_size": 4, "direction": "reverse", "outputs": 2}, [np.zeros((0, 2, 3), np.float32)],
     [np.zeros((0, 1, 2, 4)), np.zeros((1, 2, 4))]),
    ("Compress", ["f32[N]", np.array([False, True, False])], {"axis": 0}, [f32(4, 5)], [f32(5)]),
    ("AffineGrid", ["f32[1,2,3]", i64(1, 1, 2, 2)], {"align_corners": 1, "version": 20},
     [f32(1, 0, 2, 0, 3, 0).reshape(1, 2, 3)], [f32(1, -3, 3, -3, 1, 3, 3, 3).reshape(1, 2, 2, 2)]),
    ("AffineGrid", ["f32[N,2,3]", i64(1, 1, 1, 2)], {"align_corners": 1, "version": 20},
     [f32(1, 1, 0, 0, 1, 0).reshape(1, 2, 3)], [f32(-1, 0, 1, 0).reshape(1, 1, 2, 2)]),  # one pixel is in the middle
    ("HannWindow", [np.int64(1)], {}, [], [np.zeros(1, np.float32)]),
    ("GridSample", ["f32[1,2,3]", "f32[1,2,1]"], {"align_corners": 1}, [X[None], f32(0, -0.5).reshape(1, 2, 1)],
     [np.array([[[1, 0.5], [4, 3.5]]], np.float32)]),
    ("FusedMatMul", ["f32[2,3]", "f32[2,3]"], {"domain": "com.microsoft", "transBatchA": 1, "transB": 1}, [X, X],
     [X @ X.T]),
    ("Normalizer", ["f32[2,3]"], {"domain": "ai.onnx.ml", "norm": "MAX"}, [X + 1],
     [(X + 1) / (X + 1).max(1, keepdims=True)]),
    ("Scaler", ["f32[2,3]"], {"domain": "ai.onnx.ml", "offset": [1.0], "scale": [2.0, 3.0, 4.0]}, [X],
     [(X - 1) * np.array([2, 3, 4], np.float32)]),
    ("Resize", ["f32[1,1,0,2]", None, f32(1, 1, 0.6, 2)], {"mode": "linear"}, [EMPTY.reshape(1, 1, 0, 2)],
     [EMPTY.reshape(1, 1, 0, 4)]),
    ("Resize", ["f32[1,1,1,4]", None, None, i64(1, 1, 1, 2)], {"mode": "linear", "antialias": 1}, [X.reshape(-1)[:4]
     .reshape(1, 1, 1, 4)], [np.array([0.625, 2.375], np.float32).reshape(1, 1, 1, 2)]),
    ("Resize", ["f32[1,1,1,4]", None, None, i64(1, 1, 1, 2)], {"mode": "linear", "antialias": 1, "exclude_outside": 1},
     [X.reshape(-1)[:4].reshape(1, 1, 1, 4)], [np.array([5 / 7, 16 / 7], np.float32).reshape(1, 1, 1, 2)]),
    ("MatMulNBits", ["f32[2,1]", np.full((1, 1, 8), 9, np.uint8), np.ones(1, np.float32)],
     {"domain": "com.microsoft", "K": 1, "N": 1, "block_size": 16, "bits": 4}, [X[:, :1]], [X[:, :1]]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "attrs", "given", "wanted"), CASES)
def test_edge(
    op: str, inputs: list[Any], attrs: dict[str, Any], given: list[Any], wanted: list[Any], tmp_path: Path
) -> None:
    found = results(one_node(tmp_path, op, inputs, **attrs), *given)
    assert len(found) == len(wanted)
    for have, want in zip(found, wanted, strict=True):
        assert have.shape == np.shape(want)
        np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["standard", "nesterov"])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_momentum_at_each_count_of_updates(mode: str, count: int, tmp_path: Path) -> None:
    """At the first update `beta` counts as 1. The oracle is ONNX's own reference."""
    attrs: dict[str, Any] = {"alpha": 0.75, "beta": 0.125, "norm_coefficient": 0.5, "mode": mode}
    domain = "ai.onnx.preview.training"
    path = one_node(tmp_path, "Momentum", ["f32[]", "i64[]", *["f32[2,3]"] * 3], domain, outputs=2, **attrs)
    given = [np.float32(0.25), np.int64(count), X, X - 2, X * 3]
    wanted = ReferenceEvaluator(str(path)).run(None, {f"x{i}": array for i, array in enumerate(given)})
    for have, want in zip(results(path, *given), wanted, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)


N, M = symbol("N"), symbol("M")


@pytest.mark.parametrize(
    ("count", "sizes", "rest"),
    [
        (12, [3], 4),
        (12, [], 12),
        (12, [5], 2),  # the reshape itself says what is wrong
        (0, [0], 0),
        (12, [0, 3], 0),
        (0, [4], 0),
        (6 * N, [N, 2], 3),
        (N * M, [M], N),
        (N * M, [N, M], 1),
        (N * M, [M, 2], N // 2),
        (6 * N, [2 * N, 3], 1),
        (N, [2], N // 2),
        (2 * N + 2, [N + 1], 2),
        (4 * N, [2, 3], 2 * N // 3),
        (N * M, [2 * M], N * M // (2 * M)),  # M may be 0
    ],
)
def test_the_size_that_minus_one_stands_for(count: Size, sizes: list[Size], rest: Size) -> None:
    assert rest_of(count, sizes) == rest


def test_a_reduction_that_ends_in_a_scalar(tmp_path: Path) -> None:
    """The kernel around the product of a diagonal has no axis."""
    program, weights = read(one_node(tmp_path, "Det", ["f32[2,2]"]))
    (got,) = NativeEngine().compile(program).prepare(weights)(f32(1, 2, 3, 4).reshape(2, 2))
    assert float(got) == pytest.approx(-2.0, rel=1e-6)
