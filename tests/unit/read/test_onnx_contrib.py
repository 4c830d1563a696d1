"""Operators of com.microsoft against onnxruntime's CPU kernels, each at two sizes of every symbol; some against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.errors import SmeltError, UnsupportedError
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
    np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), rtol, atol)


def nearly(have: Array, want: Array, share: float) -> None:
    """Quantised results: a few may be the neighbouring number, where sums were added up in another order."""
    assert have.shape == want.shape
    assert have.dtype == want.dtype
    apart = np.abs(have.astype(np.int64) - want.astype(np.int64))
    assert apart.max(initial=0) <= 1
    assert np.mean(apart) <= share if apart.size else True


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
    Node("FusedGemm", "A:f32[S,4] B:f32[4,5]", activation="ParametricSoftplus", activation_alpha=0.7, activation_beta=0.3),
    Node("FusedConv", "X:f32[B,4,9,S] W:f32[6,2,3,1] B:f32[6]", activation="Relu", group=2, strides=[2, 1]),
    Node("FusedConv", "X:f32[B,2,9,9] W:f32[3,2,3,3] - Z:f32[B,3,9,9]", activation="Tanh", pads=[1, 1, 1, 1]),
    Node("FusedConv", "X:f32[B,2,9,8] W:f32[3,2,3,3]", activation="Sigmoid", auto_pad="SAME_LOWER", strides=[2, 2]),
    Node("FusedConv", "X:f32[B,2,9,8] W:f32[3,2,2,2]", activation="LeakyRelu", activation_params=[0.2], dilations=[2, 3]),
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

NORMS = [
    Node("LayerNormalization", "X:f32[B,S,6] Scale:f32[6] B:f32[6]", domain="", version=16, outputs=(0, 1, 2)),
    Node("LayerNormalization", "X:f32[B,S,6] Scale:f32[S,6]", domain="", version=9, axis=1, epsilon=0.1),
    Node("LayerNormalization", "X:f16[B,S,6] Scale:f32[6] B:f32[6]", domain="", version=16, outputs=(0, 1)),
    Node("LayerNormalization", "X:f64[B,S,6] Scale:f64[6]", domain="", version=16, outputs=(0, 2), stash_type=11),
    Node("SimplifiedLayerNormalization", "X:f32[B,S,6] scale:f32[6]", domain="", outputs=(0, 1)),
    Node("SimplifiedLayerNormalization", "X:f32[B,S,6] scale:f32[S,6]", domain="", axis=1, epsilon=0.1),
    Node("SimplifiedLayerNormalization", "X:f16[B,S,6] scale:f32[6]", domain="", outputs=(0, 1)),
    Node("SkipLayerNormalization", "input:f32[B,S,6] skip:f32[B,S,6] gamma:f32[6]"),
    Node("SkipLayerNormalization", "input:f32[B,S,6] skip:f32[S,6] gamma:f32[6] beta:f32[6]", epsilon=0.1, outputs=(0, 3)),
    Node("SkipLayerNormalization", "input:f32[B,S,6] skip:f32[1,S,6] gamma:f32[6] beta:f32[6] bias:f32[6]", outputs=(0, 3)),
    Node("SkipLayerNormalization", "input:f16[B,S,6] skip:f16[B,S,6] gamma:f16[6] - bias:f16[6]", outputs=(0, 3)),
    Node("SkipSimplifiedLayerNormalization", "input:f32[B,S,6] skip:f32[B,S,6] gamma:f32[6] bias:f32[6]", outputs=(0, 3)),
    Node("SkipSimplifiedLayerNormalization", "input:f32[S,6] skip:f32[S,6] gamma:f32[6]", epsilon=0.1),
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
        "input_ids:i32[B,S] segment_ids:i32[B,S] word:ui8[11,8] position:ui8[9,8] segment:ui8[2,8] gamma:ui8[8] beta:ui8[8]"
        " mask:i32[B,S] w_scale:f32[] p_scale:f32[] s_scale:f32[] g_scale:f32[] b_scale:f32[]"
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
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,T,8] v:f32[B,T,8] - mask:i32[B,S,T]", num_heads=2, draw=MASKS, mask_filter_value=-4.0),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,T,8] v:f32[B,T,8] - - bias:f32[1,2,S,T]", num_heads=2),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,2,T,4] v:f32[B,2,T,4]", num_heads=2),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,2,T,4] v:f32[B,2,T,4] bias:f32[24]", num_heads=2),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,S,8] v:f32[B,S,8] bias:f32[24]", num_heads=2, outputs=(0, 1, 2)),
    Node("MultiHeadAttention", "q:f32[B,S,8] k:f32[B,S,8] v:f32[B,S,8] bias:f32[24] - - past_key:f32[B,2,P,4] past_value:f32[B,2,P,4]", num_heads=2, outputs=(0, 1, 2), unidirectional=1),
    Node("RotaryEmbedding", "x:f32[B,S,16] at:i64[B,S] cos:f32[20,4] sin:f32[20,4]", draw={"at": below(20)}),
    Node("RotaryEmbedding", "x:f32[B,S,16] at:i64[1] cos:f32[20,4] sin:f32[20,4]", draw={"at": below(13)}, interleaved=1),
    Node("RotaryEmbedding", "x:f32[B,2,S,8] at:i64[B,S] cos:f32[20,4] sin:f32[20,4]", draw={"at": below(20)}),
    Node("RotaryEmbedding", "x:f32[B,S,16] at:i64[B,S] cos:f32[20,2] sin:f32[20,2]", draw={"at": below(20)}, num_heads=2, rotary_embedding_dim=4),
    Node("RotaryEmbedding", "x:f32[B,2,S,8] at:i64[B,S] cos:f32[20,3] sin:f32[20,3]", draw={"at": below(20)}, num_heads=2, rotary_embedding_dim=6, interleaved=1),
    Node("RotaryEmbedding", "x:f16[B,S,16] at:i64[B,S] cos:f16[20,4] sin:f16[20,4]", draw={"at": below(20)}),
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
    Node("QAttention", "x:ui8[B,S,6] w:i8[6,24] bias:f32[24] x_scale:f32[] w_scale:f32[24] - zx:ui8[] zw:i8[24]", num_heads=2),
    Node("QAttention", "x:ui8[B,S,6] w:ui8[6,24] bias:f32[24] x_scale:f32[] w_scale:f32[] mask:i32[B,S] zx:ui8[] zw:ui8[]", num_heads=4, draw=MASKS),
    Node("QAttention", "x:ui8[B,S,6] w:ui8[6,24] bias:f32[24] x_scale:f32[] w_scale:f32[] - zx:ui8[] zw:ui8[] past:f32[2,B,2,P,4]", num_heads=2, unidirectional=1, outputs=(0, 1)),
    Node("QLinearAdd", "A:ui8[B,S,5] A_scale:f32[] za:ui8[] B:ui8[S,5] B_scale:f32[] zb:ui8[] C_scale:f32[] zc:ui8[]"),
    Node("QLinearMul", "A:i8[B,S,5] A_scale:f32[] za:i8[] B:i8[B,1,5] B_scale:f32[] zb:i8[] C_scale:f32[] zc:i8[]"),
    Node("QLinearSigmoid", "X:ui8[B,S,5] X_scale:f32[] zx:ui8[] Y_scale:f32[] zy:ui8[]", draw={"Y_scale": number(1 / 255), "zy": number(3)}),
    Node("QLinearLeakyRelu", "X:i8[B,S,5] X_scale:f32[] zx:i8[] Y_scale:f32[] zy:i8[]", alpha=0.3),
    Node("QLinearSoftmax", "X:ui8[B,S,5] X_scale:f32[] zx:ui8[] Y_scale:f32[] zy:ui8[]", opset=13, axis=-1, draw={"Y_scale": number(1 / 256), "zy": number(0)}),
    Node("QLinearConcat", "Y_scale:f32[] zy:ui8[] a:ui8[B,S,3] a_scale:f32[] za:ui8[] b:ui8[B,S,2] b_scale:f32[] zb:ui8[]", axis=-1),
    Node("QLinearWhere", "c:i1[B,S,1] x:ui8[B,S,5] x_scale:f32[] zx:ui8[] y:ui8[S,5] y_scale:f32[] zy:ui8[] z_scale:f32[] zz:ui8[]"),
    Node("QLinearGlobalAveragePool", "X:ui8[B,3,S,T] x_scale:f32[] zx:ui8[] y_scale:f32[] zy:ui8[]"),
    Node("QLinearGlobalAveragePool", "X:i8[B,S,T,3] x_scale:f32[] zx:i8[] y_scale:f32[] zy:i8[]", channels_last=1),
    Node("QLinearAveragePool", "X:ui8[B,3,9,8] x_scale:f32[] zx:ui8[] y_scale:f32[] zy:ui8[]", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    Node("QLinearAveragePool", "X:i8[B,9,8,3] x_scale:f32[] zx:i8[] y_scale:f32[] zy:i8[]", kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1, channels_last=1),
    Node("QLinearConv", "x:ui8[B,9,8,4] x_scale:f32[] zx:ui8[] w:i8[6,2,3,2] w_scale:f32[6] zw:i8[6] y_scale:f32[] zy:ui8[] b:i32[6]", group=2, channels_last=1, pads=[1, 0, 1, 1], draw={"zw": number(0), "b": below(999)}),
    Node("NhwcMaxPool", "x:ui8[B,9,8,3]", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    Node("QGemm", "A:ui8[S,6] a_scale:f32[] za:ui8[] B:i8[6,5] b_scale:f32[5] zb:i8[5] C:i32[5]", alpha=0.5, draw={"C": below(999)}),
    Node("QGemm", "A:ui8[6,S] a_scale:f32[] za:ui8[] B:ui8[5,6] b_scale:f32[] zb:ui8[] - y_scale:f32[] zy:ui8[]", transA=1, transB=1, draw={"y_scale": number(3.7)}),
    Node("MatMulNBits", "A:f32[B,S,50] B:ui8[7,4,8] scales:f32[28]", K=50, N=7, block_size=16, weights="B scales"),
    Node("MatMulNBits", "A:f32[B,S,50] B:ui8[7,4,8] scales:f32[7,4] z:ui8[7,2] - bias:f32[7]", K=50, N=7, block_size=16, bits=4, weights="B scales z bias"),
    Node("MatMulNBits", "A:f32[B,S,50] B:ui8[7,2,32] scales:f32[7,2] z:ui8[7,2]", K=50, N=7, block_size=32, bits=8, weights="B scales z"),
    Node("MatMulNBits", "A:f32[S,40] B:ui8[7,3,4] scales:f32[7,3] z:ui8[7,1]", K=40, N=7, block_size=16, bits=2, weights="B scales z"),
    Node("MatMulNBits", "A:f32[S,40] B:ui8[7,3,8] scales:f32[7,3] z:f32[7,3]", K=40, N=7, block_size=16, weights="B scales z"),
    Node("MatMulNBits", "A:f16[S,40] B:ui8[7,3,8] scales:f16[7,3]", K=40, N=7, block_size=16, weights="B scales"),
    Node("MatMulBnb4", "A:f32[B,S,10] B:ui8[35] absmax:f32[5]", K=10, N=7, block_size=16, quant_type=0, weights="B absmax"),
    Node("MatMulBnb4", "A:f32[B,S,10] B:ui8[35] absmax:f32[5]", K=10, N=7, block_size=16, quant_type=1, weights="B absmax"),
    Node("GatherBlockQuantized", "d:ui8[11,20] at:i64[B,S] scales:f32[11,3]", block_size=16, weights="d scales", draw={"at": below(11)}),
    Node("GatherBlockQuantized", "d:ui8[11,40] at:i32[S] scales:f32[11,3] z:ui8[11,3]", block_size=16, bits=8, weights="d scales z", draw={"at": below(11)}),
    Node("GatherBlockQuantized", "d:i4[5,40,3] at:i64[B,S] scales:f32[5,3,3] z:i4[5,3,3]", block_size=16, weights="d scales z", draw={"at": below(5)}),
    Node("GatherBlockQuantized", "d:ui4[40,5] at:i64[B,S] scales:f32[3,5]", block_size=16, gather_axis=1, quantize_axis=0, weights="d scales", draw={"at": below(5)}),
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
