"""Attention of com.microsoft against onnxruntime's CPU kernels, with its masks and KV caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smelt.dtype import Array
from tests.onnx_nodes import (
    SIZES,
    Node,
    below,
    close,
    compare,
    number,
    on_onnxruntime,
    on_smelt,
    ones_and_zeros,
)

pytest.importorskip("onnxruntime")

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
    Grouped([5, 5], 5, None, softcap=-0.7),
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
