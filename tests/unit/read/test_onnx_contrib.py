"""Operators of com.microsoft against onnxruntime's CPU kernels or NumPy, each at two sizes of every symbol."""

from __future__ import annotations

from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array
from tests.onnx_nodes import (
    SIZES,
    Node,
    below,
    close,
    compare,
    nearly,
    number,
    on_onnxruntime,
    on_smelt,
    ones_and_zeros,
)

pytest.importorskip("onnxruntime")

FUSED = [
    Node("Gelu", "X:f32[B,S,5]"),
    Node("BiasGelu", "A:f32[B,S,6] B:f32[6]"),
    Node("FastGelu", "X:f32[B,S,6]"),
    Node("FastGelu", "X:f32[B,S,6] bias:f32[6]"),
    Node("QuickGelu", "X:f32[B,S]"),
    Node("QuickGelu", "X:f32[B,S]", alpha=0.7),
    Node("FusedMatMul", "A:f32[B,S,4] B:f32[B,4,5]"),
    Node("FusedMatMul", "A:f32[B,4,S] B:f32[4,5]", transA=1, alpha=0.5),
    Node("FusedMatMul", "A:f32[B,S,4] B:f32[B,T,4]", transB=1, alpha=2.5),
    Node("FusedMatMul", "A:f32[B,3,4,S] B:f32[1,3,T,4]", transA=1, transB=1),
    Node("FusedMatMul", "A:f32[S,B,3,4] B:f32[B,3,4,T]", transBatchA=1),
    Node("FusedMatMul", "A:f32[4,B,3,S] B:f32[T,B,3,4]", transBatchA=1, transA=1, transBatchB=1, transB=1),
    Node("FusedMatMul", "A:f64[4,S] B:f64[T,4]", transA=1, transB=1, alpha=0.3),
    Node("FusedMatMul", "A:f32[4] B:f32[B,4,5]", transA=1),
    Node("TransposeMatMul", "A:f32[B,4,S] B:f32[B,4,5]", transA=1, alpha=0.25),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5] C:f32[5]", activation="Relu", alpha=0.5, beta=2.0),
    Node("FusedGemm", "A:f32[4,S] B:f32[5,4]", transA=1, transB=1, activation="LeakyRelu", activation_alpha=0.1),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="Tanh"),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="Sigmoid"),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="Elu", activation_alpha=2.0),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="Celu", activation_alpha=2.0),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="Selu", activation_alpha=2.0, activation_gamma=3.0),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="Softplus"),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="Softsign"),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="ThresholdedRelu", activation_alpha=0.2),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="HardSigmoid", activation_alpha=0.1, activation_beta=0.3),
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="ScaledTanh", activation_alpha=0.7, activation_beta=0.3),
    Node(
        "FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="ParametricSoftplus", activation_alpha=0.7, activation_beta=0.3
    ),
    Node("FusedConv", "X:f32[B,4,9,S] W:f32[6,2,3,1] B:f32[6]", activation="Relu", group=2, strides=[2, 1]),
    Node("FusedConv", "X:f32[B,2,9,9] W:f32[3,2,3,3] - Z:f32[B,3,9,9]", activation="Tanh", pads=[1, 1, 1, 1]),
    Node("FusedConv", "X:f32[B,2,9,8] W:f32[3,2,3,3]", activation="Sigmoid", auto_pad="SAME_LOWER", strides=[2, 2]),
    Node(
        "FusedConv", "X:f32[B,2,9,8] W:f32[3,2,2,2]", activation="LeakyRelu", activation_params=[0.2], dilations=[2, 3]
    ),
    Node("FusedConv", "X:f32[B,2,9,8] W:f32[3,2,2,2]", activation="Clip", activation_params=[-0.5, 0.25]),
    Node("FusedConv", "X:f32[B,2,9,8] W:f32[3,2,2,2]", activation="HardSigmoid", activation_params=[0.3, 0.4]),
    Node("FusedConv", "X:f32[B,2,9,8] W:f32[3,2,2,2]", activation="HardSwish"),
    Node("FusedConv", "X:f32[B,2,9,8] W:f32[3,2,2,2]"),
]


@pytest.mark.parametrize("node", FUSED, ids=repr)
def test_fused(node: Node, seed: int, tmp_path: Path) -> None:
    compare(node, seed, tmp_path)


EMBEDDED = {"input_ids": below(11), "segment_ids": below(2), "position_ids": below(9), "mask": ones_and_zeros}
TABLES = "word_embedding:f32[11,8] position_embedding:f32[9,8]"


def test_half_precision_is_multiplied_in_single(seed: int, tmp_path: Path) -> None:
    """Sums that f16 cannot hold come back into its range; all numbers are whole, so one answer is right."""
    drawn = {
        name: lambda random, sizes, low=low: random.integers(low, 64, sizes) for name, low in (("A", 0), ("B", 32))
    }
    node = Node("FusedGemm", "A:f16[S,64] B:f16[64,5]", activation="Relu", alpha=0.0625, draw=drawn)
    arrays = node.arrays(np.random.default_rng(seed), {"S": 3})
    sums = arrays["A"].astype(np.float64) @ arrays["B"].astype(np.float64)
    assert sums.max() > np.finfo(np.float16).max
    (have,) = on_smelt(node.model(arrays), arrays, tmp_path)
    np.testing.assert_array_equal(have, (sums * 0.0625).astype(np.float16))


NORMS = [
    Node("LayerNormalization", "X:f32[B,S,6] Scale:f32[6] B:f32[6]", domain="", version=16, outputs=(0, 1, 2)),
    Node("LayerNormalization", "X:f32[B,S,6] Scale:f32[S,6]", domain="", version=9, axis=1, epsilon=0.1),
    Node("LayerNormalization", "X:f16[B,S,6] Scale:f32[6] B:f32[6]", domain="", version=16, outputs=(0, 1)),
    Node("LayerNormalization", "X:f64[B,S,6] Scale:f64[6]", domain="", version=16, outputs=(0, 2), stash_type=11),
    Node("SimplifiedLayerNormalization", "X:f32[B,S,6] scale:f32[6]", domain="", outputs=(0, 1)),
    Node("SimplifiedLayerNormalization", "X:f32[B,S,6] scale:f32[S,6]", domain="", axis=1, epsilon=0.1),
    Node("SimplifiedLayerNormalization", "X:f16[B,S,6] scale:f32[6]", domain="", outputs=(0, 1)),
    Node("SkipLayerNormalization", "input:f32[B,S,6] skip:f32[B,S,6] gamma:f32[6]"),
    Node(
        "SkipLayerNormalization", "input:f32[B,S,6] skip:f32[S,6] gamma:f32[6] beta:f32[6]", epsilon=0.1, outputs=(0, 3)
    ),
    Node(
        "SkipLayerNormalization",
        "input:f32[B,S,6] skip:f32[1,S,6] gamma:f32[6] beta:f32[6] bias:f32[6]",
        outputs=(0, 3),
    ),
    Node("SkipLayerNormalization", "input:f16[B,S,6] skip:f16[B,S,6] gamma:f16[6] - bias:f16[6]", outputs=(0, 3)),
    Node(
        "SkipSimplifiedLayerNormalization", "input:f32[B,S,6] skip:f32[B,S,6] gamma:f32[6] bias:f32[6]", outputs=(0, 3)
    ),
    Node("SkipSimplifiedLayerNormalization", "input:f32[S,6] skip:f32[S,6] gamma:f32[6]", epsilon=0.1),
    Node("SkipSimplifiedLayerNormalization", "x:f32[B,S,6] skip:f32[B,S,6] gamma:f32[6]", outputs=(0, 2)),
    Node("SkipLayerNormalization", "x:f32[B,S,6] skip:f32[B,S,6] gamma:f32[6]", outputs=(0, 1, 2)),
    Node(
        "EmbedLayerNormalization",
        f"input_ids:i32[B,S] segment_ids:i32[B,S] {TABLES} segment_embedding:f32[2,8] gamma:f32[8] beta:f32[8]"
        " mask:i32[B,S]",
        draw=EMBEDDED,
        outputs=(0, 1, 2),
    ),
    Node(
        "EmbedLayerNormalization",
        f"input_ids:i32[B,S] - {TABLES} - gamma:f32[8] beta:f32[8] - position_ids:i32[1,S]",
        draw=EMBEDDED,
        outputs=(0, 1),
        epsilon=0.01,
    ),
    Node(
        "EmbedLayerNormalization",
        f"input_ids:i32[B,S] - {TABLES} - gamma:f32[8] beta:f32[8] - position_ids:i32[B,S]",
        draw=EMBEDDED,
        mask_index_type=0,
    ),
    Node(
        "QEmbedLayerNormalization",
        "input_ids:i32[B,S] segment_ids:i32[B,S] word:ui8[11,8] position:ui8[9,8] segment:ui8[2,8]"
        " gamma:ui8[8] beta:ui8[8] mask:i32[B,S] w_scale:f32[] p_scale:f32[] s_scale:f32[] g_scale:f32[] b_scale:f32[]"
        " w_zero:ui8[] p_zero:ui8[] s_zero:ui8[] g_zero:ui8[] b_zero:ui8[]",
        draw=EMBEDDED,
        outputs=(0, 1),
    ),
]


@pytest.mark.parametrize("node", NORMS, ids=repr)
def test_norms(node: Node, seed: int, tmp_path: Path) -> None:
    compare(node, seed, tmp_path)


SMALL = [
    Node("Trilu", "X:f32[B,S,T]"),
    Node("Trilu", "X:i64[B,S,T] k:i64[]", upper=0, draw={"k": number(1)}),
    Node("ExpandDims", "X:f32[B,S,T] axis:i32[1]", weights="axis", draw={"axis": number(-2)}),
    Node("ExpandDims", "X:f32[B,S,T] axis:i32[]", weights="axis", draw={"axis": number(1)}),
    Node("CDist", "A:f32[S,5] B:f32[T,5]"),
    Node("CDist", "A:f64[S,5] B:f64[T,5]", metric="euclidean"),
    Node("Inverse", "X:f32[B,5,5]"),
    Node("Unique", "x:f32[M]", outputs=(0, 1, 2), draw={"x": below(4)}),
    Node("GatherND", "data:f32[B,S,4] at:i64[T,2]", draw={"at": number(0)}),
    Node("Range", "a:i32[] b:i32[]", weights="a b", draw={"a": number(2), "b": number(7)}),
    Node("Pad", "x:f32[B,S] pads:i64[4] v:f32[1]", weights="pads", draw={"pads": lambda random, sizes: [1, 0, 2, 3]}),
    Node("GridSample", "X:f32[B,2,4,5] Grid:f32[B,S,T,2]"),
]


@pytest.mark.parametrize("node", SMALL, ids=repr)
def test_small(node: Node, seed: int, tmp_path: Path) -> None:
    compare(node, seed, tmp_path, 1e-3, 1e-4)


# ---- forms that onnxruntime's CPU kernels do not take, against the same in a form that they do ----


@pytest.mark.parametrize("op", ["NhwcConv", "NhwcFusedConv"])
def test_channels_last(op: str, seed: int, tmp_path: Path) -> None:
    """onnxruntime convolves with channels first; the kernel of NhwcConv has its channels last too."""
    attributes: dict[str, Any] = {"group": 2, "pads": [1, 0, 1, 1], "strides": [2, 1]}
    kernel = "W:f32[6,3,2,2]" if op == "NhwcConv" else "W:f32[6,2,3,2]"
    more: dict[str, Any] = {} if op == "NhwcConv" else {"activation": "LeakyRelu", "activation_params": [0.2]}
    rest = "" if op == "NhwcConv" else " Z:f32[B,5,8,6]"
    ours = Node(op, f"X:f32[B,9,8,4] {kernel} bias:f32[6]{rest}", **attributes, **more)
    peers = Node(
        "FusedConv", f"X:f32[B,4,9,8] W:f32[6,2,3,2] bias:f32[6]{rest and ' Z:f32[B,6,5,8]'}", **attributes, **more
    )
    for sizes in SIZES:
        arrays = ours.arrays(np.random.default_rng(seed), sizes)
        first = {name: array.transpose(0, 3, 1, 2) if name in "XZ" else array for name, array in arrays.items()}
        if op == "NhwcConv":
            first["W"] = arrays["W"].transpose(0, 3, 1, 2)
        first = {name: np.ascontiguousarray(array) for name, array in first.items()}
        want = on_onnxruntime(peers.model(first), first)[0].transpose(0, 2, 3, 1)
        close(on_smelt(ours.model(arrays), arrays, tmp_path)[0], want, 1e-4, 1e-4)


# ---- operators without a CPU kernel, against the formulas that define them ----


def erf_gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def tanh_gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x: Array, axes: tuple[int, ...]) -> Array:
    powers = np.exp(x - x.max(axes, keepdims=True))
    return powers / powers.sum(axes, keepdims=True)


def grouped(x: Array, gamma: Array, beta: Array, groups: int, epsilon: float) -> Array:
    """Channels last."""
    batch, channels = x.shape[0], x.shape[-1]
    split = x.reshape(batch, -1, groups, channels // groups)
    centred = split - split.mean((1, 3), keepdims=True)
    normal = centred / np.sqrt((centred**2).mean((1, 3), keepdims=True) + epsilon)
    return normal.reshape(x.shape) * gamma + beta


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def mean_of_bytes(x: Array, scale: Array, zero: Array, out: Array, point: Array) -> Array:
    real = (x.astype(np.float64) - zero).mean((1, 2)) * scale
    return np.clip(np.rint(real / out) + point, 0, 255).astype(np.uint8)


FORMULAS: list[tuple[Node, Any]] = [
    (Node("BiasAdd", "X:f32[B,S,5] bias:f32[5] skip:f32[B,S,5]"), lambda x, bias, skip: x + bias + skip),
    (
        Node("BiasSplitGelu", "X:f32[B,S,8] bias:f32[8]"),
        lambda x, bias: (x + bias)[..., :4] * erf_gelu((x + bias)[..., 4:]),
    ),
    (
        Node("BiasSoftmax", "X:f32[B,3,S,T] bias:f32[B,1,1,T]", axis=3, is_inner_broadcast=1),
        lambda x, bias: softmax(x + bias, (3,)),
    ),
    (
        Node("BiasSoftmax", "X:f32[B,3,S,T] bias:f32[S,T]", axis=2, is_inner_broadcast=0),
        lambda x, bias: softmax(x + bias, (2, 3)),
    ),
    (Node("GemmFastGelu", "X:f32[B,S,4] W:f32[4,5] bias:f32[5]"), lambda x, w, bias: tanh_gelu(x @ w + bias)),
    (
        Node("GroupNorm", "X:f32[B,S,T,6] gamma:f32[6] beta:f32[6]", groups=3, activation=0, epsilon=0.01),
        lambda x, gamma, beta: grouped(x, gamma, beta, 3, 0.01),
    ),
    (
        Node("GroupNorm", "X:f32[B,6,S,T] gamma:f32[6] beta:f32[6]", groups=2, activation=1, channels_last=0),
        lambda x, gamma, beta: silu(grouped(x.transpose(0, 2, 3, 1), gamma, beta, 2, 1e-5)).transpose(0, 3, 1, 2),
    ),
    (
        Node("SkipGroupNorm", "X:f32[B,S,T,6] g:f32[6] b:f32[6] skip:f32[B,6] bias:f32[6]", groups=2, activation=1),
        lambda x, g, b, skip, bias: silu(grouped(x + skip[:, None, None] + bias, g, b, 2, 1e-5)),
    ),
    (
        Node(
            "SkipGroupNorm", "X:f32[B,S,T,6] g:f32[6] b:f32[6] skip:f32[B,S,T,6]", groups=6, activation=0, outputs=(1,)
        ),
        lambda x, g, b, skip: x + skip,
    ),
    (
        Node(
            "QLinearReduceMean", "x:ui8[B,S,T,3] x_scale:f32[] z:ui8[] y_scale:f32[] zy:ui8[]", axes=[1, -2], keepdims=0
        ),
        mean_of_bytes,
    ),
]


@pytest.mark.parametrize(("node", "formula"), FORMULAS, ids=[repr(node) for node, _ in FORMULAS])
def test_formulas(node: Node, formula: Any, seed: int, tmp_path: Path) -> None:
    for sizes in SIZES:
        arrays = node.arrays(np.random.default_rng(seed), sizes)
        have = on_smelt(node.model(arrays), arrays, tmp_path)[0]
        want = formula(*arrays.values())
        if have.dtype == np.uint8:
            nearly(have, want, 0.02)
        else:
            close(have, np.asarray(want, np.float32), 1e-4, 1e-4)
