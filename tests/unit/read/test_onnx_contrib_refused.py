"""Operators of com.microsoft: forms that are refused, and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.errors import ParseError, ShapeError, UnsupportedError
from tests.onnx_nodes import (
    Node,
    on_smelt,
)

pytest.importorskip("onnxruntime")

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


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_a_second_operand_that_is_missing(op: str, tmp_path: Path) -> None:
    node = Node(op, "A:ui8[2] s:f32[] z:ui8[]")
    arrays = node.arrays(np.random.default_rng(0), {})
    with pytest.raises(ParseError, match=f"{op}: input 'B' is missing"):
        on_smelt(node.model(arrays), arrays, tmp_path)
