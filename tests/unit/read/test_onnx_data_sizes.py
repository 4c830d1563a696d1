"""Data-dependent sizes, and sizes that are broadcast only when the program runs: on both engines as in onnxruntime.

One model is loaded for each case, and answers every feed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import smelt
from smelt.device import cpu
from smelt.dtype import Array
from smelt.errors import SizeError
from tests.onnx_nodes import on_onnxruntime

node, port = helper.make_node, helper.make_tensor_value_info
FLOAT, INT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
Feed = dict[str, Array]


def counting(early: bool) -> onnx.GraphProto:
    """v, v + 1, v + 2 …, until 3.5 is passed if `early`, gathered."""
    test = node("Less", ["next", "limit"], ["again"]) if early else node("Identity", ["go"], ["again"])
    return helper.make_graph(
        [node("Add", ["v", "one"], ["next"]), node("Identity", ["next"], ["row"]), test],
        "body",
        [port("i", INT, []), port("go", BOOL, []), port("v", FLOAT, [])],
        [port("again", BOOL, []), port("next", FLOAT, []), port("row", FLOAT, [])],
    )


OUTER = helper.make_graph(
    [
        node("Loop", ["turns", "", "u"], ["last", "rows"], body=counting(True)),
        node("Add", ["rows", "four"], ["sum"]),
        node("ReduceMax", ["sum"], ["top"], keepdims=0),
        node("Identity", ["go"], ["again"]),
    ],
    "outer",
    [port("j", INT, []), port("go", BOOL, []), port("u", FLOAT, [])],
    [port("again", BOOL, []), port("top", FLOAT, [])],
)
# Rows whose size the body computes from data, and a sequence, which no loop can carry.
KEPT = helper.make_graph(
    [
        node("Compress", ["x", "keep"], ["row"], axis=0),
        node("SequenceConstruct", ["x", "x"], ["pair"]),
        node("SequenceAt", ["pair", "i"], ["same"]),
        node("Identity", ["go"], ["again"]),
        node("Add", ["v", "one"], ["next"]),
    ],
    "kept",
    [port("i", INT, []), port("go", BOOL, []), port("v", FLOAT, [])],
    [port("again", BOOL, []), port("next", FLOAT, []), port("row", FLOAT, [None])],
)
SCANNED = helper.make_graph(
    [node("Add", ["x", "e"], ["sum"]), node("Compress", ["sum", "keep"], ["row"], axis=0)],
    "scanned",
    [port("e", FLOAT, [])],
    [port("row", FLOAT, None)],
)
LOOP = [port("turns", INT, []), port("start", FLOAT, [])]
TURNS: list[Feed] = [{"turns": np.array(4), "start": np.array(0, np.float32)}]
FLAGS = [port("x", FLOAT, ["n"]), port("keep", BOOL, ["n"]), port("z", FLOAT, ["k"])]
VECTORS = [port("x", FLOAT, ["n"]), port("z", FLOAT, ["k"])]


def flags(*pairs: tuple[list[int], int]) -> list[Feed]:
    x = np.arange(3, dtype=np.float32)
    return [{"x": x, "keep": np.array(keep, bool), "z": np.ones(k, np.float32)} for keep, k in pairs]


def vectors(*more: tuple[str, Array]) -> list[Feed]:
    pairs = ((1, 4), (4, 1), (3, 3), (1, 1))
    return [{"x": np.ones(n, np.float32), "z": np.ones(k, np.float32), **dict(more)} for n, k in pairs]


PAIRS = flags(([1, 0, 0], 3), ([0, 0, 1], 1), ([1, 1, 1], 1), ([1, 1, 1], 3), ([0, 0, 0], 0), ([0, 1, 0], 0))
CASES: dict[str, tuple[list[Any], list[Any], list[Feed]]] = {
    "rows of a loop are added": (
        [
            node("Loop", ["turns", "", "start"], ["last", "rows"], body=counting(False)),
            node("Add", ["rows", "four"], ["y"]),
        ],
        LOOP,
        TURNS,
    ),
    "rows of a loop that ends early are multiplied": (
        [
            node("Loop", ["turns", "", "start"], ["last", "rows"], body=counting(True)),
            node("MatMul", ["rows", "four"], ["y"]),
        ],
        LOOP,
        [{"turns": np.array(9), "start": np.array(0, np.float32)}],
    ),
    "a loop in a loop, of another length each time": (
        [node("Loop", ["turns", "", "start"], ["top"], body=OUTER), node("Add", ["top", "four"], ["y"])],
        LOOP,
        TURNS,
    ),
    "rows of a loop have the size of what is kept": (
        [node("Loop", ["two", "", "one"], ["last", "y"], body=KEPT)],
        FLAGS[:2],
        [{name: feed[name] for name in ("x", "keep")} for feed in flags(([1, 0, 1], 1), ([0, 1, 0], 1))],
    ),
    "a loop of no iterations has no rows": (
        [
            node("Loop", ["zero", "", "one"], ["last", "rows"], body=KEPT),
            node("Shape", ["rows"], ["s"]),
            node("Gather", ["s", "zero"], ["g"]),
            node("Cast", ["g"], ["y"], to=FLOAT),
        ],
        FLAGS[:2],
        [{name: feed[name] for name in ("x", "keep")} for feed in flags(([1, 0, 1], 1))],
    ),
    "rows of a scan have the size of what is kept": (
        [node("Scan", ["four"], ["y"], body=SCANNED, num_scan_inputs=1)],
        FLAGS[:2],
        [{name: feed[name] for name in ("x", "keep")} for feed in flags(([1, 0, 1], 1), ([0, 1, 0], 1))],
    ),
    "what is kept is added": (
        [node("Compress", ["x", "keep"], ["c"], axis=0), node("Add", ["c", "z"], ["y"])],
        FLAGS,
        PAIRS,
    ),
    "what is kept is expanded": (
        [
            node("Compress", ["x", "keep"], ["c"], axis=0),
            node("Shape", ["z"], ["s"]),
            node("Expand", ["c", "s"], ["y"]),
        ],
        FLAGS,
        PAIRS,
    ),
    "one that is kept becomes four": (
        [node("Compress", ["x", "keep"], ["c"], axis=0), node("Expand", ["c", "size"], ["y"])],
        FLAGS[:2],
        [{name: feed[name] for name in ("x", "keep")} for feed in flags(([0, 1, 0], 1))],
    ),
    "inputs are expanded": ([node("Shape", ["z"], ["s"]), node("Expand", ["x", "s"], ["y"])], VECTORS, vectors()),
    "inputs are added beside a compile-time input": (
        [node("Add", ["x", "z"], ["a"]), node("ReduceSum", ["a", "axes"], ["y"], keepdims=1)],
        [*VECTORS, port("axes", INT, [1])],
        vectors(("axes", np.array([0]))),
    ),
}


@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("name", CASES)
def test_sizes_of_the_run(name: str, engine: str, tmp_path: Path) -> None:
    if engine == "native" and cpu.compiler() is None:
        pytest.skip("no C compiler: pip install ziglang")
    nodes, inputs, feeds = CASES[name]
    weights = {"one": np.array(1, np.float32), "limit": np.array(3.5, np.float32), "four": np.ones(4, np.float32)}
    numbers = {"size": np.array([4]), "two": np.array(2), "zero": np.array(0)}
    held = [numpy_helper.from_array(array, each) for each, array in {**weights, **numbers}.items()]
    graph = helper.make_graph(nodes, "g", inputs, [port("y", FLOAT, None)], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    model = smelt.load(path, engine=engine)
    for feed in feeds:
        (want,) = on_onnxruntime(proto, feed)
        got = model.run(feed)["y"]
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)
    if name.startswith("what is kept"):
        with pytest.raises(SizeError, match=r"neither 1 nor as wanted|do not fit the sizes of the program"):
            model.run(flags(([1, 1, 0], 3))[0])
