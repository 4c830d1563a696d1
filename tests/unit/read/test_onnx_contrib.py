"""Operators of com.microsoft against onnxruntime's CPU kernels or NumPy, each at two sizes of every symbol."""

from __future__ import annotations

from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smelt.dtype import Array
from smelt.errors import ParseError, ShapeError, UnsupportedError
from tests.onnx_nodes import Node, on_onnxruntime, on_smelt

pytest.importorskip("onnxruntime")

SIZES = ({"B": 2, "S": 3, "T": 5, "P": 4, "M": 7}, {"B": 1, "S": 7, "T": 2, "P": 9, "M": 1})


def ones_and_zeros(random: np.random.Generator, sizes: tuple[int, ...]) -> Any:
    return random.integers(0, 2, sizes)


def below(limit: int) -> Any:
    return lambda random, sizes: random.integers(0, limit, sizes)


def number(value: float) -> Any:
    return lambda random, sizes: np.full(sizes, value)


def close(have: Array, want: Array, rtol: float, atol: float) -> None:
    assert have.shape == want.shape
    assert have.dtype == want.dtype
    size = max(1.0, float(np.abs(want.astype(np.float64)).max(initial=0)))  # sums cancel: errors are of the terms' size
    np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), rtol, atol * size)


def nearly(have: Array, want: Array, share: float) -> None:
    """Quantised results: a few may be the neighbouring number, where sums were added up in another order."""
    assert have.shape == want.shape
    assert have.dtype == want.dtype
    apart = np.abs(have.astype(np.int64) - want.astype(np.int64))
    assert apart.max(initial=0) <= 1
    assert np.sum(apart) <= max(2, share * apart.size)


def compare(node: Node, seed: int, folder: Path, rtol: float = 1e-4, atol: float = 1e-5, share: float = 0.02) -> None:
    random = np.random.default_rng(seed)
    for sizes in SIZES:
        arrays = node.arrays(random, sizes)
        model = node.model(arrays)
        wants, haves = on_onnxruntime(model, arrays), on_smelt(model, arrays, folder)
        for have, want in zip(haves, wants, strict=True):
            if want.dtype.kind in "iu" and want.dtype.itemsize < 4:
                nearly(have, want, share)
            else:
                loose = want.dtype == np.float16
                close(have, want, 2e-3 if loose else rtol, 2e-3 if loose else atol)


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


MASKS = {"mask": ones_and_zeros, "lengths": lambda random, sizes: random.integers(1, 3, sizes)}
MERGED = "input:f32[B,S,10] weights:f32[10,24] bias:f32[24]"

ATTENTION = [
    Node("Attention", MERGED, num_heads=2),
    Node("Attention", MERGED, num_heads=4, scale=0.3),
    Node("Attention", MERGED, num_heads=2, unidirectional=1),
    Node("Attention", f"{MERGED} mask:i32[B,S]", num_heads=2, draw=MASKS),
    Node("Attention", f"{MERGED} mask:i32[B,S]", num_heads=2, draw=MASKS, unidirectional=1, mask_filter_value=-5.0),
    Node("Attention", f"{MERGED} mask:i32[B,S,S]", num_heads=2, draw=MASKS, mask_filter_value=-3.0),
    Node("Attention", f"{MERGED} mask:i32[B,S,S]", num_heads=2, draw=MASKS, unidirectional=1),
    Node("Attention", f"{MERGED} lengths:i32[B]", num_heads=2, draw=MASKS),
    Node("Attention", f"{MERGED} - - attention_bias:f32[B,2,S,S]", num_heads=2),
    Node("Attention", f"{MERGED} mask:i32[B,S] - attention_bias:f32[1,1,S,S]", num_heads=2, draw=MASKS),
    Node("Attention", f"{MERGED} - past:f32[2,B,2,P,4]", num_heads=2, outputs=(0, 1)),
    Node("Attention", f"{MERGED} - past:f32[2,B,2,P,4]", num_heads=2, outputs=(0, 1), unidirectional=1),
    Node("Attention", MERGED, num_heads=2, qkv_hidden_sizes=[6, 6, 12]),
    Node("Attention", MERGED, num_heads=2, outputs=(0, 1)),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,T,8] v:f32[B,T,12]", num_heads=2),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,T,8] v:f32[B,T,12] bias:f32[28]", num_heads=4, scale=0.7),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,S,8] v:f32[B,S,8]", num_heads=2, unidirectional=1),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,T,8] v:f32[B,T,8] - mask:i32[B,T]", num_heads=2, draw=MASKS),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,T,8] v:f32[B,T,8] - lengths:i32[B]", num_heads=2, draw=MASKS),
    Node(
        "MultiHeadAttention",
        "q:f32[B,S,8] k:f32[B,T,8] v:f32[B,T,8] - mask:i32[B,S,T]",
        num_heads=2,
        draw=MASKS,
        mask_filter_value=-4.0,
    ),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,T,8] v:f32[B,T,8] - - bias:f32[1,2,S,T]", num_heads=2),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,2,T,4] v:f32[B,2,T,4]", num_heads=2),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,2,T,4] v:f32[B,2,T,4] bias:f32[24]", num_heads=2),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,S,8] v:f32[B,S,8] bias:f32[24]", num_heads=2, outputs=(0, 1, 2)),
    Node(
        "MultiHeadAttention",
        "q:f32[B,S,8] k:f32[B,S,8] v:f32[B,S,8] bias:f32[24] - - past_key:f32[B,2,P,4] past_value:f32[B,2,P,4]",
        num_heads=2,
        outputs=(0, 1, 2),
        unidirectional=1,
    ),
    Node("RotaryEmbedding", "x:f32[B,S,16] at:i64[B,S] cos:f32[20,4] sin:f32[20,4]", draw={"at": below(20)}),
    Node(
        "RotaryEmbedding", "x:f32[B,S,16] at:i64[1] cos:f32[20,4] sin:f32[20,4]", draw={"at": below(13)}, interleaved=1
    ),
    Node("RotaryEmbedding", "x:f32[B,2,S,8] at:i64[B,S] cos:f32[20,4] sin:f32[20,4]", draw={"at": below(20)}),
    Node(
        "RotaryEmbedding",
        "x:f32[B,S,16] at:i64[B,S] cos:f32[20,2] sin:f32[20,2]",
        draw={"at": below(20)},
        num_heads=2,
        rotary_embedding_dim=4,
    ),
    Node(
        "RotaryEmbedding",
        "x:f32[B,2,S,8] at:i64[B,S] cos:f32[20,3] sin:f32[20,3]",
        draw={"at": below(20)},
        num_heads=2,
        rotary_embedding_dim=6,
        interleaved=1,
    ),
    Node("RotaryEmbedding", "x:f16[B,S,16] at:i64[B,S] cos:f16[20,4] sin:f16[20,4]", draw={"at": below(20)}),
]


PAST = "past_key:f32[B,2,P,4] past_value:f32[B,2,P,4]"
ENDS = {"ends": lambda random, sizes: [5, 6, 2, 0]}
ATTENTION += [
    Node("Attention", "x:f32[2,S,10] w:f32[10,24] bias:f32[24] ends:i32[4]", num_heads=2, draw=ENDS),
    Node("Attention", "x:f32[2,S,10] w:f32[10,24] bias:f32[24] ends:i32[4]", num_heads=2, draw=ENDS, unidirectional=1),
    Node(
        "MultiHeadAttention",
        f"q:f32[B,S,8] k:f32[B,2,T,4] v:f32[B,2,T,4] - - - {PAST}",
        num_heads=2,
        outputs=(0, 1, 2),
    ),
    Node("MultiHeadAttention", f"q:f32[B,S,8] k:f32[B,T,8] v:f32[B,T,8] - - - {PAST}", num_heads=2, outputs=(0, 1, 2)),
]


@pytest.mark.parametrize("node", ATTENTION, ids=repr)
def test_attention(node: Node, seed: int, tmp_path: Path) -> None:
    compare(node, seed, tmp_path)


SCALED = {"zero": lambda random, sizes: random.integers(-20, 20, sizes) % 100}

QUANTISED = [
    Node("QuantizeLinear", "x:f32[B,S,5] s_scale:f32[] z:ui8[]"),
    Node("QuantizeLinear", "x:f32[B,5,S] s_scale:f32[5] z:i8[5]", axis=1),
    Node("QuantizeLinear", "x:f32[B,S,5] s_scale:f32[] z:ui16[]"),
    Node("DequantizeLinear", "x:i8[B,S,5] s_scale:f32[5] z:i8[5]", axis=2),
    Node("DequantizeLinear", "x:i16[B,S,5] s_scale:f32[] z:i16[]"),
    Node("DequantizeLinear", "x:i32[B,S,5] s_scale:f32[]"),
    Node("DynamicQuantizeMatMul", "A:f32[B,S,6] B:ui8[6,5] b_scale:f32[5] z:ui8[5] bias:f32[5]", weights="B"),
    Node("DynamicQuantizeMatMul", "A:f32[B,S,6] B:i8[6,5] b_scale:f32[]", weights="B"),
    Node("MatMulIntegerToFloat", "A:ui8[B,S,6] B:i8[6,5] a_scale:f32[] b_scale:f32[5] za:ui8[] zb:i8[5] bias:f32[5]"),
    Node("MatMulIntegerToFloat", "A:i8[S,6] B:i8[6,5] a_scale:f32[] b_scale:f32[]"),
    Node(
        "QAttention",
        "x:ui8[B,S,6] w:i8[6,24] bias:f32[24] x_scale:f32[] w_scale:f32[24] - zx:ui8[] zw:i8[24]",
        num_heads=2,
    ),
    Node(
        "QAttention",
        "x:ui8[B,S,6] w:ui8[6,24] bias:f32[24] x_scale:f32[] w_scale:f32[] mask:i32[B,S] zx:ui8[] zw:ui8[]",
        num_heads=4,
        draw=MASKS,
    ),
    Node(
        "QAttention",
        "x:ui8[B,S,6] w:ui8[6,24] bias:f32[24] x_scale:f32[] w_scale:f32[] - zx:ui8[] zw:ui8[] past:f32[2,B,2,P,4]",
        num_heads=2,
        unidirectional=1,
        outputs=(0, 1),
    ),
    Node("QLinearAdd", "A:ui8[B,S,5] A_scale:f32[] za:ui8[] B:ui8[S,5] B_scale:f32[] zb:ui8[] C_scale:f32[] zc:ui8[]"),
    Node("QLinearMul", "A:i8[B,S,5] A_scale:f32[] za:i8[] B:i8[B,1,5] B_scale:f32[] zb:i8[] C_scale:f32[] zc:i8[]"),
    Node(
        "QLinearSigmoid",
        "X:ui8[B,S,5] X_scale:f32[] zx:ui8[] Y_scale:f32[] zy:ui8[]",
        draw={"Y_scale": number(1 / 255), "zy": number(3)},
    ),
    Node("QLinearLeakyRelu", "X:i8[B,S,5] X_scale:f32[] zx:i8[] Y_scale:f32[] zy:i8[]", alpha=0.3),
    Node(
        "QLinearSoftmax",
        "X:ui8[B,S,5] X_scale:f32[] zx:ui8[] Y_scale:f32[] zy:ui8[]",
        opset=13,
        axis=-1,
        draw={"Y_scale": number(1 / 256), "zy": number(0)},
    ),
    Node(
        "QLinearConcat",
        "Y_scale:f32[] zy:ui8[] a:ui8[B,S,3] a_scale:f32[] za:ui8[] b:ui8[B,S,2] b_scale:f32[] zb:ui8[]",
        axis=-1,
    ),
    Node(
        "QLinearWhere",
        "c:i1[B,S,1] x:ui8[B,S,5] x_scale:f32[] zx:ui8[] y:ui8[S,5] y_scale:f32[] zy:ui8[] z_scale:f32[] zz:ui8[]",
    ),
    Node("QLinearGlobalAveragePool", "X:ui8[B,3,S,T] x_scale:f32[] zx:ui8[] y_scale:f32[] zy:ui8[]"),
    Node("QLinearGlobalAveragePool", "X:i8[B,S,T,3] x_scale:f32[] zx:i8[] y_scale:f32[] zy:i8[]", channels_last=1),
    Node(
        "QLinearAveragePool",
        "X:ui8[B,3,9,8] x_scale:f32[] zx:ui8[] y_scale:f32[] zy:ui8[]",
        kernel_shape=[3, 2],
        strides=[2, 2],
        pads=[1, 0, 1, 1],
    ),
    Node(
        "QLinearAveragePool",
        "X:i8[B,9,8,3] x_scale:f32[] zx:i8[] y_scale:f32[] zy:i8[]",
        kernel_shape=[3, 2],
        pads=[1, 0, 1, 1],
        count_include_pad=1,
        channels_last=1,
    ),
    Node(
        "QLinearConv",
        "x:ui8[B,9,8,4] x_scale:f32[] zx:ui8[] w:i8[6,2,3,2] w_scale:f32[6] zw:i8[6] y_scale:f32[] zy:ui8[] b:i32[6]",
        group=2,
        channels_last=1,
        pads=[1, 0, 1, 1],
        draw={"zw": number(0), "b": below(999)},
    ),
    Node("NhwcMaxPool", "x:ui8[B,9,8,3]", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    Node(
        "QGemm",
        "A:ui8[S,6] a_scale:f32[] za:ui8[] B:i8[6,5] b_scale:f32[5] zb:i8[5] C:i32[5]",
        alpha=0.5,
        draw={"C": below(999)},
    ),
    Node(
        "QGemm",
        "A:ui8[6,S] a_scale:f32[] za:ui8[] B:ui8[5,6] b_scale:f32[] zb:ui8[] - y_scale:f32[] zy:ui8[]",
        transA=1,
        transB=1,
        draw={"y_scale": number(3.7)},
    ),
    Node("MatMulNBits", "A:f32[B,S,50] B:ui8[7,4,8] scales:f32[28]", K=50, N=7, block_size=16, weights="B scales"),
    Node(
        "MatMulNBits",
        "A:f32[B,S,50] B:ui8[7,4,8] scales:f32[7,4] z:ui8[7,2] - bias:f32[7]",
        K=50,
        N=7,
        block_size=16,
        bits=4,
        weights="B scales z bias",
    ),
    Node(
        "MatMulNBits",
        "A:f32[B,S,50] B:ui8[7,2,32] scales:f32[7,2] z:ui8[7,2]",
        K=50,
        N=7,
        block_size=32,
        bits=8,
        weights="B scales z",
    ),
    Node(
        "MatMulNBits",
        "A:f32[S,40] B:ui8[7,3,4] scales:f32[7,3] z:ui8[7,1]",
        K=40,
        N=7,
        block_size=16,
        bits=2,
        weights="B scales z",
    ),
    Node(
        "MatMulNBits",
        "A:f32[S,40] B:ui8[7,3,8] scales:f32[7,3] z:f32[7,3]",
        K=40,
        N=7,
        block_size=16,
        weights="B scales z",
    ),
    Node("MatMulNBits", "A:f16[S,40] B:ui8[7,3,8] scales:f16[7,3]", K=40, N=7, block_size=16, weights="B scales"),
    Node(
        "MatMulBnb4",
        "A:f32[B,S,10] B:ui8[35] absmax:f32[5]",
        K=10,
        N=7,
        block_size=16,
        quant_type=0,
        weights="B absmax",
    ),
    Node(
        "MatMulBnb4",
        "A:f32[B,S,10] B:ui8[35] absmax:f32[5]",
        K=10,
        N=7,
        block_size=16,
        quant_type=1,
        weights="B absmax",
    ),
    Node(
        "GatherBlockQuantized",
        "d:ui8[11,20] at:i64[B,S] scales:f32[11,3]",
        block_size=16,
        weights="d scales",
        draw={"at": below(11)},
    ),
    Node(
        "GatherBlockQuantized",
        "d:ui8[11,40] at:i32[S] scales:f32[11,3] z:ui8[11,3]",
        block_size=16,
        bits=8,
        weights="d scales z",
        draw={"at": below(11)},
    ),
    Node(
        "GatherBlockQuantized",
        "d:i4[5,40,3] at:i64[B,S] scales:f32[5,3,3] z:i4[5,3,3]",
        block_size=16,
        weights="d scales z",
        draw={"at": below(5)},
    ),
    Node(
        "GatherBlockQuantized",
        "d:ui4[40,5] at:i64[B,S] scales:f32[3,5]",
        block_size=16,
        gather_axis=1,
        quantize_axis=0,
        weights="d scales",
        draw={"at": below(5)},
    ),
]

LAST = {"at": lambda random, sizes: [-1, -12, 11, 10, -11, 3]}  # two of them are out of range
QUANTISED += [
    Node(
        "GatherBlockQuantized",
        "d:ui8[11,10] at:i64[6] scales:f32[11,3]",
        block_size=16,
        bits=2,
        draw=LAST,
        weights="d scales",
    ),
    Node(
        "GatherBlockQuantized",
        "d:i4[40,20] at:i64[S] scales:f32[3,20]",
        block_size=16,
        quantize_axis=0,
        weights="d scales",
        draw={"at": below(40)},
    ),
    Node(
        "GatherBlockQuantized",
        "d:ui4[40,20] at:i32[S] scales:f32[3,20] z:ui4[3,20]",
        block_size=16,
        quantize_axis=0,
        weights="d scales z",
        draw={"at": below(40)},
    ),
    Node(
        "GatherBlockQuantized",
        "d:f8E4M3FN[11,40] at:i64[S] scales:f32[1,3]",
        block_size=16,
        weights="d scales",
        draw={"at": below(11)},
    ),
    Node(
        "GatherBlockQuantized",
        "d:f8E5M2[11,40] at:i64[B,S] scales:f32[11,1]",
        block_size=0,
        weights="d scales",
        draw={"at": below(11)},
    ),
    Node(
        "GatherBlockQuantized",
        "d:f4E2M1FN[11,40] at:i64[S] scales:f32[11,3]",
        block_size=16,
        weights="d scales",
        draw={"at": below(11)},
    ),
]


@pytest.mark.parametrize("node", QUANTISED, ids=repr)
def test_quantised(node: Node, seed: int, tmp_path: Path) -> None:
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


# ---- the cache of grouped queries ----


class Grouped:
    """A GroupQueryAttention node at fixed sizes: rows of different lengths, a cache with or without room to spare."""

    def __init__(self, lengths: list[int], new: int, room: int | None, *, packed: bool = False, **more: Any) -> None:
        self.lengths, self.new, self.room, self.packed, self.more = lengths, new, room, packed, more

    def __repr__(self) -> str:
        given = "".join(f" {name}={value}" for name, value in self.more.items())
        return f"{self.lengths} new={self.new} room={self.room}{' packed' if self.packed else ''}{given}"

    def node(self, heads: int, groups: int, size: int) -> Node:
        attributes = dict(self.more)
        batch, new = len(self.lengths), self.new
        total = max(self.lengths) if self.room is not None else new
        hidden, narrow = heads * size, groups * size
        inputs = f"q:f32[{batch},{new},{hidden}] k:f32[{batch},{new},{narrow}] v:f32[{batch},{new},{narrow}]"
        if self.packed:
            inputs = f"q:f32[{batch},{new},{hidden + 2 * narrow}] - -"
        past = f"past_k:f32[{batch},{groups},{self.room},{size}] past_v:f32[{batch},{groups},{self.room},{size}]"
        inputs += f" {'- -' if self.room is None else past} lengths:i32[{batch}] total:i32[]"
        turned = attributes.pop("turned", size)
        inputs += f" cos:f32[40,{turned // 2}] sin:f32[40,{turned // 2}]" if attributes.get("do_rotary") else " - -"
        places = attributes.pop("places", None)
        inputs += " -" if places is None else f" at:i64[{batch},{new}]"
        bias = attributes.pop("bias", "")
        inputs += f" bias:f32[{bias},{new},{total}]" if bias else " -"
        inputs += f" sink:f32[{heads}]" if attributes.pop("sink", False) else ""
        drawn = {"lengths": lambda random, sizes: np.array(self.lengths) - 1, "total": number(total)}
        return Node(
            "GroupQueryAttention",
            inputs,
            outputs=(0, 1, 2),
            weights="total",
            draw=drawn | {"at": lambda random, sizes: places},
            num_heads=heads,
            kv_num_heads=groups,
            **attributes,
        )


GROUPED = [
    Grouped([5, 5], 5, None),
    Grouped([5, 3, 1], 5, None),
    Grouped([5, 3], 5, 0),
    Grouped([5, 3], 5, 12),
    Grouped([7, 7], 1, 6),
    Grouped([7, 4, 1], 1, 6),
    Grouped([7, 4], 1, 12),
    Grouped([9], 3, 6),
    Grouped([9], 3, 16),
    Grouped([7, 4], 1, 6, packed=True),
    Grouped([5, 3], 5, None, scale=0.9),
    Grouped([5, 5], 5, None, local_window_size=1),
    Grouped([7, 4], 1, 12, local_window_size=3),
    Grouped([5, 5], 5, None, softcap=0.7),
    Grouped([5, 5], 5, None, softcap=0.7, bias="2,4"),
    Grouped([7, 5], 1, 6, bias="1,1"),
    Grouped([7, 5], 1, 12, bias="2,4"),
    Grouped([5, 5], 5, None, smooth_softmax=1),
    Grouped([5, 5], 5, None, smooth_softmax=0),
    Grouped([7, 5], 1, 6, sink=True, local_window_size=3),
    Grouped([5, 3], 5, None, do_rotary=1),
    Grouped([7, 5], 1, 6, do_rotary=1, rotary_interleaved=1),
    Grouped([7, 5], 1, 6, do_rotary=1, packed=True),
    Grouped([9], 3, 6, do_rotary=1),
    Grouped([7, 5], 1, 6, do_rotary=1, places=[[3], [9]]),
    Grouped([9], 3, 6, do_rotary=1, places=[[3, 4, 7]]),
    Grouped([3, 3], 3, None, do_rotary=1, places=[[3, 4, 7], [9, 1, 2]]),
    Grouped([3, 3], 3, 0, do_rotary=1, places=[[3, 4, 7], [9, 1, 2]]),
    Grouped([7, 5], 1, 6, do_rotary=1, turned=16),
]


@pytest.mark.parametrize("case", GROUPED, ids=repr)
@pytest.mark.parametrize(("heads", "groups", "size"), [(4, 2, 16), (4, 4, 32), (4, 1, 16)])
def test_grouped_queries(case: Grouped, heads: int, groups: int, size: int, seed: int, tmp_path: Path) -> None:
    node = case.node(heads, groups, size)
    arrays = node.arrays(np.random.default_rng(seed), {})
    if "sin" in arrays and arrays["sin"].shape[1] * 2 > size:
        pytest.skip("the tables are wider than a head")
    model = node.model(arrays)
    padded = case.new > 1 and min(case.lengths) < case.new and "sin" in arrays  # padding stands nowhere
    for i, (have, want) in enumerate(
        zip(on_smelt(model, arrays, tmp_path), on_onnxruntime(model, arrays), strict=True)
    ):
        for row, length in enumerate(case.lengths):
            kept = (
                (row, slice(0, length if padded else None))
                if i == 0
                else (row, slice(None), slice(0, length if padded else None))
            )
            close(have[kept], want[kept], 1e-4, 1e-5)


def test_grouped_queries_in_a_model(seed: int, tmp_path: Path) -> None:
    """As language models have it: lengths come from the mask's sums, the total from its size, and all are symbols."""
    inputs: dict[str, list[str | int]] = {"q": ["B", "S", 64], "k": ["B", "S", 32], "v": ["B", "S", 32]}
    inputs |= {"past_k": ["B", 2, "P", 16], "past_v": ["B", 2, "P", 16]}
    names = ("q", "k", "v", "past_k", "past_v", "lengths", "total", "cos", "sin")
    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["sums"], keepdims=0),
        helper.make_node("Sub", ["sums", "one"], ["less"]),
        helper.make_node("Cast", ["less"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "one"], ["size"]),
        helper.make_node("Cast", ["size"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            names,
            ["y", "keys", "values"],
            domain="com.microsoft",
            num_heads=4,
            kv_num_heads=2,
            do_rotary=1,
        ),
    ]
    random = np.random.default_rng(seed)
    tables = {name: random.standard_normal((32, 8)).astype(np.float32) for name in ("cos", "sin")}
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in inputs.items()]
    ports.append(helper.make_tensor_value_info("mask", TensorProto.INT64, ["B", "T"]))
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in ("y", "keys", "values")]
    held = [numpy_helper.from_array(array, name) for name, array in (tables | {"one": np.array([1])}).items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "decoder", ports, outputs, held)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    for sizes in ({"B": 2, "S": 1, "P": 6, "T": 7}, {"B": 1, "S": 4, "P": 0, "T": 4}, {"B": 1, "S": 3, "P": 5, "T": 8}):
        arrays: dict[str, Array] = {}
        for name, shape in inputs.items():
            numbers = [sizes[size] if isinstance(size, str) else size for size in shape]
            arrays[name] = random.standard_normal(numbers).astype(np.float32)
        arrays["mask"] = np.ones((sizes["B"], sizes["T"]), np.int64)
        for have, want in zip(on_smelt(model, arrays, tmp_path), on_onnxruntime(model, arrays), strict=True):
            close(have, want, 1e-4, 1e-5)


# ---- forms that onnxruntime's CPU kernels do not take, against the same in a form that they do ----


def unpacked_heads(packed: Array) -> list[Array]:
    """[batch, length, heads, n, size] as n of [batch, length, heads * size]."""
    batch, length, heads, count, size = packed.shape
    return [packed[:, :, :, i].reshape(batch, length, heads * size) for i in range(count)]


@pytest.mark.parametrize("bias", ["", " - - bias:f32[24]"])
def test_packed_queries_keys_and_values(bias: str, seed: int, tmp_path: Path) -> None:
    packed = Node("MultiHeadAttention", f"qkv:f32[B,S,2,3,4]{bias}", num_heads=2)
    plain = Node("MultiHeadAttention", f"q:f32[B,S,8] k:f32[B,S,8] v:f32[B,S,8]{bias.replace(' - -', '')}", num_heads=2)
    for sizes in SIZES:
        arrays = packed.arrays(np.random.default_rng(seed), sizes)
        same = dict(zip("qkv", unpacked_heads(arrays["qkv"]), strict=True)) | arrays
        have, want = on_smelt(packed.model(arrays), arrays, tmp_path), on_onnxruntime(plain.model(same), same)
        close(have[0], want[0], 1e-4, 1e-5)


def test_packed_keys_and_values(seed: int, tmp_path: Path) -> None:
    packed = Node("MultiHeadAttention", "q:f32[B,S,8] kv:f32[B,T,2,2,4]", num_heads=2)
    plain = Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,T,8] v:f32[B,T,8]", num_heads=2)
    for sizes in SIZES:
        arrays = packed.arrays(np.random.default_rng(seed), sizes)
        same = dict(zip("kv", unpacked_heads(arrays["kv"]), strict=True)) | arrays
        have, want = on_smelt(packed.model(arrays), arrays, tmp_path), on_onnxruntime(plain.model(same), same)
        close(have[0], want[0], 1e-4, 1e-5)


def test_attention_without_bias(seed: int, tmp_path: Path) -> None:
    bare = Node("Attention", "input:f32[B,S,10] weights:f32[10,24]", num_heads=2)
    full = Node("Attention", MERGED, num_heads=2)
    for sizes in SIZES:
        arrays = bare.arrays(np.random.default_rng(seed), sizes)
        same = {**arrays, "bias": np.zeros(24, np.float32)}
        have, want = on_smelt(bare.model(arrays), arrays, tmp_path), on_onnxruntime(full.model(same), same)
        close(have[0], want[0], 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("op", "bare", "full"),
    [
        (
            "QLinearAdd",
            "A:i8[B,S] A_scale:f32[] - B:i8[S] B_scale:f32[] - C_scale:f32[]",
            "A A_scale z B B_scale z C_scale z",
        ),
        (
            "QLinearMul",
            "A:i8[B,S] A_scale:f32[] - B:i8[S] B_scale:f32[] - C_scale:f32[]",
            "A A_scale z B B_scale z C_scale z",
        ),
        ("QLinearSigmoid", "X:i8[B,S] X_scale:f32[] - Y_scale:f32[]", "X X_scale z Y_scale z"),
        ("QLinearLeakyRelu", "X:i8[B,S] X_scale:f32[] - Y_scale:f32[]", "X X_scale z Y_scale z"),
    ],
)
def test_zero_points_left_out_are_zero(op: str, bare: str, full: str, seed: int, tmp_path: Path) -> None:
    types = {name.split(":")[0]: name.split(":")[1] for name in bare.split() if name != "-"}
    named = " ".join(f"z{i}:i8[]" if name == "z" else f"{name}:{types[name]}" for i, name in enumerate(full.split()))
    ours, peers = Node(op, bare), Node(op, named, draw={f"z{i}": number(0) for i in range(9)})
    for sizes in SIZES:
        arrays = peers.arrays(np.random.default_rng(seed), sizes)
        have = on_smelt(ours.model(arrays), arrays, tmp_path)[0]
        nearly(have, on_onnxruntime(peers.model(arrays), arrays)[0], 0.02)


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


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("scales", ["", ",20"])
def test_lstm_of_bytes(direction: str, scales: str, seed: int, tmp_path: Path) -> None:
    """Kernels round the state to bytes as well: results agree to the size of those steps."""
    ways = 2 if direction == "bidirectional" else 1
    per = f"{ways}{scales}"
    node = Node(
        "DynamicQuantizeLSTM",
        f"X:f32[S,B,4] W:i8[{ways},4,20] R:i8[{ways},5,20] bias:f32[{ways},40] lens:i32[B]"
        f" h:f32[{ways},B,5] c:f32[{ways},B,5] P:f32[{ways},15] w_scale:f32[{per}] wz:i8[{per}]"
        f" r_scale:f32[{per}] rz:i8[{per}]",
        weights="W R w_scale wz r_scale rz",
        outputs=(0, 1, 2),
        draw={name: lambda random, sizes: random.uniform(0.001, 0.01, sizes) for name in ("w_scale", "r_scale")}
        | {"wz": number(0), "rz": number(0), "lens": lambda random, sizes: random.integers(1, 4, sizes)},
        direction=direction,
        hidden_size=5,
    )
    random = np.random.default_rng(seed)
    for sizes in SIZES:
        arrays = node.arrays(random, sizes)
        model = node.model(arrays)
        for have, want in zip(on_smelt(model, arrays, tmp_path), on_onnxruntime(model, arrays), strict=True):
            close(have, want, 0, 0.03)


# ---- what is refused ----

QKV = "q:f32[2,3,32] k:f32[2,3,16] v:f32[2,3,16] - - lengths:i32[2] total:i32[]"
ROTARY = "x:f32[2,3,16] at:i64[2,3] cos:f32[20,4] sin:f32[20,4]"
NBITS: dict[str, Any] = {"K": 16, "N": 3, "block_size": 16}

REFUSED = [
    (Node("FusedConv", "X:f32[1,2,5,5] W:f32[3,2,3,3]", activation="Softplus"), "activation"),
    (Node("FusedGemm", "A:f32[2,3] B:f32[3,4]", activation="Clip"), "activation"),
    (Node("SkipSimplifiedLayerNormalization", "x:f32[2,6] s:f32[2,6] g:f32[6]", outputs=(0, 1)), "mean"),
    (
        Node("SkipGroupNorm", "X:f32[1,4,2,2] g:f32[4] b:f32[4] s:f32[1,4]", groups=2, activation=0, channels_last=0),
        "channels_last",
    ),
    (Node("GroupNorm", "X:f32[1,2,2,4] g:f32[4] b:f32[4]", groups=2, activation=2), "activation"),
    (Node("CDist", "A:f32[2,3] B:f32[4,3]", metric="cosine"), "metric"),
    (Node("Inverse", "X:f32[N,N]"), "Inverse"),
    (Node("Attention", "x:f32[2,3,4] w:f32[4,12]", num_heads=2, do_rotary=1), "do_rotary"),
    (
        Node("Attention", "x:f32[2,3,4] w:f32[4,12]", num_heads=2, past_present_share_buffer=1),
        "past_present_share_buffer",
    ),
    (Node("Attention", "x:f32[2,3,4] w:f32[4,12] b:f32[12] m:i32[2,1,3,3]", num_heads=2), "mask"),
    (Node("MultiHeadAttention", "q:f32[2,3,24]", num_heads=2), "without keys"),
    (Node("MultiHeadAttention", "q:f32[2,3,8] k:f32[2,3,8] v:f32[2,3,8]", num_heads=2, outputs=(0, 3)), "qk"),
    (Node("RotaryEmbedding", ROTARY, scale=2.0), "scale"),
    (Node("RotaryEmbedding", ROTARY, is_packed_batching=1), "is_packed_batching"),
    (Node("GroupQueryAttention", QKV, num_heads=2, kv_num_heads=1, causal=0), "causal"),
    (Node("GroupQueryAttention", QKV, num_heads=2, kv_num_heads=1, k_quant_type="PER_TENSOR"), "quantised cache"),
    (Node("GroupQueryAttention", QKV, num_heads=2, kv_num_heads=1, sliding_window_cache=1), "sliding_window_cache"),
    (Node("GroupQueryAttention", QKV, num_heads=2, kv_num_heads=1, local_window_size=0), "local_window_size"),
    (Node("GroupQueryAttention", QKV, num_heads=2, kv_num_heads=1, qk_output=1), "qk_output"),
    (Node("GroupQueryAttention", f"{QKV} - - - - - s:f32[]", num_heads=2, kv_num_heads=1), "k_scale"),
    (Node("GroupQueryAttention", f"{QKV} - - - - - - s:f32[]", num_heads=2, kv_num_heads=1), "v_scale"),
    (Node("GroupQueryAttention", f"{QKV} - - - - - - - s:f32[16]", num_heads=2, kv_num_heads=1), "q_norm_weight"),
    (Node("GroupQueryAttention", f"{QKV} - - - - - - - - s:f32[16]", num_heads=2, kv_num_heads=1), "k_norm_weight"),
    (Node("MatMulNBits", "A:f32[2,16] B:ui8[3,1,8] scales:f32[3] - g_idx:i32[16]", **NBITS), "g_idx"),
    (Node("MatMulNBits", "A:f32[2,16] B:ui8[3,1,6] scales:f32[3]", bits=3, **NBITS), "bits"),
    (Node("MatMulNBits", "A:f32[2,16] B:ui8[3,1,8] scales:f32[3]", weight_prepacked=1, **NBITS), "weight_prepacked"),
    (Node("MatMulBnb4", "A:f32[2,16] B:ui8[24] m:f32[3]", quant_type=2, **NBITS), "quant_type"),
    (Node("MatMulBnb4", "A:f32[2,3] B:ui8[24] m:f32[3]", quant_type=0, transB=0, **NBITS), "transB"),
    (Node("GatherBlockQuantized", "d:ui8[4,8] at:i64[2] s:f32[4,1]", bits=3, block_size=16), "bits"),
    (Node("GatherBlockQuantized", "d:ui8[4,8] at:i64[2] s:f32[1,8]", quantize_axis=0, block_size=16), "quantize_axis"),
    (Node("MatMulIntegerToFloat", "A:ui8[2,3] B:ui8[3,4] a_scale:f32[2] b_scale:f32[]"), "a_scale"),
    (Node("QLinearAdd", "A:i8[4] a:f32[4] - B:i8[4] b:f32[] - c:f32[]"), "A_scale"),
]


@pytest.mark.parametrize(("node", "what"), REFUSED, ids=[repr(node) for node, _ in REFUSED])
def test_refused(node: Node, what: str, tmp_path: Path) -> None:
    arrays = node.arrays(np.random.default_rng(0), {"N": 3})
    with pytest.raises(UnsupportedError, match=what):
        on_smelt(node.model(arrays), arrays, tmp_path)


MISTAKEN = [
    Node("FusedConv", "X:f32[1,2,5,5] W:f32[3,2,3,3]", activation="LeakyRelu"),
    Node("EmbedLayerNormalization", "ids:i32[2,3]"),
    Node("QLinearConcat", "s:f32[] z:ui8[] a:ui8[2]", axis=0),
    Node("QGemm", "A:ui8[2,3] s:f32[] z:ui8[] B:ui8[3,4] t:f32[] y:ui8[] - o:f32[]"),
    Node("Attention", "x:f32[2,3,4] w:f32[4,12]", num_heads=3),
    Node("Attention", "x:f32[2,3,4] w:f32[4,12]", num_heads=0),
    Node("Attention", "x:f32[2,3,4] w:f32[4,12]", num_heads=2, qkv_hidden_sizes=[4, 4, 8]),
    Node("GroupQueryAttention", QKV, num_heads=3, kv_num_heads=2),
    Node("GroupQueryAttention", QKV, num_heads=2, kv_num_heads=1, do_rotary=1),
    Node("GroupNorm", "X:f32[1,2,2,4] g:f32[4] b:f32[4]", groups=3, activation=0),
    Node("BiasSplitGelu", "X:f32[1,2,5] b:f32[5]"),
    Node("MatMulNBits", "A:f32[2,16] B:ui8[3,1,8] scales:f32[3]", K=16, N=3, block_size=0),
]


@pytest.mark.parametrize("node", MISTAKEN, ids=repr)
def test_mistakes(node: Node, tmp_path: Path) -> None:
    arrays = node.arrays(np.random.default_rng(0), {})
    with pytest.raises((ParseError, ShapeError)):
        on_smelt(node.model(arrays), arrays, tmp_path)
