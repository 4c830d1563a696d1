"""Quantised operators of com.microsoft against onnxruntime's CPU kernels or NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

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

SCALED = {"zero": lambda random, sizes: random.integers(-20, 20, sizes) % 100}


def block_matmul(name: str, ports: str, N: int = 7, block_size: int = 16, **given: Any) -> Node:
    """A product by block-quantised weights: every input but A is one."""
    return Node(name, ports, N=N, block_size=block_size, weights=weights_in(ports, "A"), **given)


def gather(ports: str, rows: Any, block_size: int = 16, **given: Any) -> Node:
    """Rows of block-quantised weights: every input but their numbers is one."""
    given |= {"block_size": block_size, "weights": weights_in(ports, "at"), "draw": {"at": rows}}
    return Node("GatherBlockQuantized", ports, **given)


def weights_in(ports: str, data: str) -> str:
    names = [port.partition(":")[0] for port in ports.split()]
    return " ".join(name for name in names if name not in ("-", data))


def at_the_ends(random: Any, sizes: Any) -> list[int]:
    """Two of them are out of range."""
    return [-1, -12, 11, 10, -11, 3]


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
        draw={"mask": ones_and_zeros},
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
    block_matmul("MatMulNBits", "A:f32[B,S,50] B:ui8[7,4,8] scales:f32[28]", K=50),
    block_matmul("MatMulNBits", "A:f32[B,S,50] B:ui8[7,4,8] scales:f32[7,4] z:ui8[7,2] - bias:f32[7]", K=50, bits=4),
    block_matmul("MatMulNBits", "A:f32[B,S,50] B:ui8[7,2,32] scales:f32[7,2] z:ui8[7,2]", K=50, block_size=32, bits=8),
    block_matmul("MatMulNBits", "A:f32[S,40] B:ui8[7,3,4] scales:f32[7,3] z:ui8[7,1]", K=40, bits=2),
    block_matmul("MatMulNBits", "A:f32[S,40] B:ui8[7,3,8] scales:f32[7,3] z:f32[7,3]", K=40),
    block_matmul("MatMulNBits", "A:f16[S,40] B:ui8[7,3,8] scales:f16[7,3]", K=40),
    block_matmul("MatMulBnb4", "A:f32[B,S,10] B:ui8[35] absmax:f32[5]", K=10, quant_type=0),
    block_matmul("MatMulBnb4", "A:f32[B,S,10] B:ui8[35] absmax:f32[5]", K=10, quant_type=1),
    gather("d:ui8[11,20] at:i64[B,S] scales:f32[11,3]", below(11)),
    gather("d:ui8[11,40] at:i32[S] scales:f32[11,3] z:ui8[11,3]", below(11), bits=8),
    gather("d:i4[5,40,3] at:i64[B,S] scales:f32[5,3,3] z:i4[5,3,3]", below(5)),
    gather("d:ui4[40,5] at:i64[B,S] scales:f32[3,5]", below(5), gather_axis=1, quantize_axis=0),
]

QUANTISED += [
    gather("d:ui8[11,10] at:i64[6] scales:f32[11,3]", at_the_ends, bits=2),
    gather("d:i4[40,20] at:i64[S] scales:f32[3,20]", below(40), quantize_axis=0),
    gather("d:ui4[40,20] at:i32[S] scales:f32[3,20] z:ui4[3,20]", below(40), quantize_axis=0),
    gather("d:f8E4M3FN[11,40] at:i64[S] scales:f32[1,3]", below(11)),
    gather("d:f8E5M2[11,40] at:i64[B,S] scales:f32[11,1]", below(11), block_size=0),
    gather("d:f4E2M1FN[11,40] at:i64[S] scales:f32[11,3]", below(11)),
]


@pytest.mark.parametrize("node", QUANTISED, ids=repr)
def test_quantised(node: Node, seed: int, tmp_path: Path) -> None:
    compare(node, seed, tmp_path)


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
