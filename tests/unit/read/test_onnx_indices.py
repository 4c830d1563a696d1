"""Operators that read or write where other tensors say: indices out of range are refused on every engine, as
onnxruntime refuses them, and negative ones count from the end where the standard says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from smelt.device import cpu
from smelt.dtype import Array
from smelt.engine.native import NativeEngine, compile_all
from smelt.engine.reference import ReferenceEngine
from smelt.errors import RunError, ShapeError, SmeltError
from smelt.ir.core import Program
from smelt.read.onnx import read
from smelt.weights import Weights
from tests.onnx_nodes import Node, on_onnxruntime

SIZES = {"N": 4}

# (name of the indices, least and greatest that are allowed at N = 4, node)
CASES: list[tuple[str, int, int, Node]] = [
    ("i", -4, 3, Node("Gather", "data:f32[N,3] i:i64[2]", domain="")),
    ("i", -4, 3, Node("Gather", "data:f32[2,N] i:i32[2,2]", domain="", axis=1)),
    ("i", -4, 3, Node("GatherElements", "data:f32[N,3] i:i64[2,3]", domain="")),
    ("i", -4, 3, Node("GatherND", "data:f32[N,9] i:i64[3,2]", domain="")),
    ("i", -4, 3, Node("GatherND", "data:f32[2,N,3] i:i64[2,1]", domain="", batch_dims=1)),
    ("i", -4, 3, Node("ScatterND", "data:f32[N,3] i:i64[2,1] new:f32[2,3]", domain="", version=18, reduction="add")),
    (
        "i",
        -4,
        3,
        Node("ScatterElements", "data:f32[N,3] i:i64[2,3] new:f32[2,3]", domain="", version=18, reduction="add"),
    ),
    ("i", 0, 4, Node("ReverseSequence", "data:f32[N,3] i:i64[3]", domain="")),
    ("i", 0, 3, Node("RoiAlign", "data:f32[N,1,4,4] box:f32[2,4] i:i64[2]", domain="", sampling_ratio=1)),
    ("i", 0, 3, Node("ArrayFeatureExtractor", "data:f32[2,N] i:i64[2]", domain="ai.onnx.ml")),
    (
        "i",
        0,
        15,
        Node("MaxUnpool", "data:f32[1,1,2,2] i:i64[1,1,2,2]", domain="", kernel_shape=[2, 2], strides=[2, 2]),
    ),
    ("i", 0, 3, Node("RotaryEmbedding", "data:f32[2,2,3,8] i:i64[2,3] c:f32[N,4] s:f32[N,4]")),
    (
        "i",
        0,
        3,
        Node(
            "EmbedLayerNormalization",
            "i:i32[2,3] - w:f32[N,4] p:f32[6,4] - gamma:f32[4] beta:f32[4]",
            outputs=(0, 1),
        ),
    ),
]
IDS = [f"{i}-{case[3].op}" for i, case in enumerate(CASES)]


def model_of(node: Node, arrays: dict[str, Array]) -> Any:
    model = node.model(arrays)
    if node.domain == "ai.onnx.ml":
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


def feed_of(node: Node, name: str, low: int, high: int, seed: int) -> dict[str, Array]:
    """Indices that are allowed, the least and the greatest among them."""
    random = np.random.default_rng(seed)
    arrays = node.arrays(random, SIZES)
    flat = random.integers(low, high + 1, arrays[name].size)
    if name == "i" and node.op == "MaxUnpool":
        flat = np.array([low, 5, 9, high])
    flat[0], flat[-1] = low, high
    return {**arrays, name: flat.reshape(arrays[name].shape).astype(arrays[name].dtype)}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Program, Weights]]:
    folder = tmp_path_factory.mktemp("indices")
    found = []
    for i, (name, low, high, node) in enumerate(CASES):
        path = folder / f"{i}.onnx"
        path.write_bytes(model_of(node, feed_of(node, name, low, high, 1)).SerializeToString())
        found.append(read(path))
    return found


@pytest.fixture(scope="module", params=["reference", "native"])
def executables(request: pytest.FixtureRequest, programs: list[tuple[Program, Weights]]) -> list[Any]:
    if request.param == "reference":
        made: list[Any] = [ReferenceEngine().compile(program) for program, _ in programs]
    elif cpu.compiler() is None:
        pytest.skip("no C compiler: pip install ziglang")
    else:
        made = list(compile_all([program for program, _ in programs]))
    assert not [each for each in made if isinstance(each, SmeltError)]
    return [each.prepare(weights) for each, (_, weights) in zip(made, programs, strict=True)]


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_indices_are_checked(number: int, executables: list[Any], seed: int) -> None:
    name, low, high, node = CASES[number]
    executable = executables[number]
    good = feed_of(node, name, low, high, seed)
    order = [port.name for port in executable.signature.inputs]
    (want, *_) = on_onnxruntime(model_of(node, good), good)
    (got, *_) = executable(*(good[each] for each in order))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    for wrong in (low - 1, high + 1):
        flat = good[name].reshape(-1).copy()
        flat[0] = wrong
        bad = {**good, name: flat.reshape(good[name].shape)}
        with pytest.raises(Exception, match=r"(?i)out of|invalid|range|bounds"):
            on_onnxruntime(model_of(node, bad), bad)
        with pytest.raises(RunError, match="an index is out of range"):
            executable(*(bad[each] for each in order))


@pytest.mark.parametrize("index", [[-4], [3, 0], [[-4, 3]]])
@pytest.mark.parametrize("op", ["Gather", "GatherND"])
def test_constant_indices_are_checked_against_a_dynamic_dimension(op: str, index: list[Any], tmp_path: Path) -> None:
    found = np.array(index, np.int64)
    found = found.reshape(-1, 1) if op == "GatherND" else found
    node = Node(op, f"data:f32[N,3] i:i64[{','.join(map(str, found.shape))}]", domain="", weights="i")
    path = tmp_path / "model.onnx"
    path.write_bytes(node.model({"i": found}).SerializeToString())
    program, weights = read(path)
    executable = ReferenceEngine().compile(program).prepare(weights)
    assert executable(np.zeros((4, 3), np.float32))[0].size
    with pytest.raises(RunError, match=r"an index is out of range: 4 is more than 3|a slice must begin inside"):
        executable(np.zeros((3, 3), np.float32))


@pytest.mark.parametrize("known", [True, False])
def test_compress_selects_no_element_past_the_end(known: bool, tmp_path: Path) -> None:
    node = Node("Compress", "data:f32[N] keep:i1[3]", domain="", weights="keep" if known else "", axis=0)
    keep = np.array([True, False, True])
    path = tmp_path / "model.onnx"
    path.write_bytes(node.model({"keep": keep} if known else {}).SerializeToString())
    program, weights = read(path)
    executable = ReferenceEngine().compile(program).prepare(weights)
    more = () if known else (keep,)
    np.testing.assert_array_equal(executable(np.arange(4, dtype=np.float32), *more)[0], [0, 2])
    with pytest.raises(RunError, match=r"Compress: elements .*: 3 is more than 2|indices are 0 to 2, .* the size 2"):
        executable(np.zeros(2, np.float32), *more)


@pytest.mark.parametrize("size", ["2", "N"])
def test_a_condition_may_be_longer_than_the_axis(size: str, tmp_path: Path) -> None:
    """Where what it selects is there, as in onnxruntime and NumPy."""
    node = Node("Compress", f"data:f32[{size}] keep:i1[4]", domain="", axis=0)
    path = tmp_path / "model.onnx"
    path.write_bytes(node.model({}).SerializeToString())
    program, weights = read(path)
    data = np.array([5, 6], np.float32)
    for engine in (ReferenceEngine(), NativeEngine()):
        executable = engine.compile(program).prepare(weights)
        for keep in ([False, True, False, False], [False] * 4):
            want = np.compress(keep, data)
            np.testing.assert_array_equal(np.asarray(executable(data, np.array(keep))[0]), want)
        with pytest.raises(RunError, match=r"indices are 1 to 3, .* the size 2"):
            executable(data, np.array([False, True, False, True]))


def test_constant_indices_are_refused_at_import(tmp_path: Path) -> None:
    for op in ("GatherND", "ScatterND"):
        ports = "data:f32[4,3] i:i64[1,1]" + (" new:f32[1,3]" if op == "ScatterND" else "")
        node = Node(op, ports, domain="", weights="i")
        path = tmp_path / f"{op}.onnx"
        path.write_bytes(node.model({"i": np.array([[-5]])}).SerializeToString())
        with pytest.raises(ShapeError, match="an index is out of range") as caught:
            read(path)
        assert (caught.value.expected, caught.value.got) == ("-4 to 3", "-5 to -5")
