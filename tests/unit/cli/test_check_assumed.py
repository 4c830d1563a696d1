"""`smelt check` of ONNX files: all that is taken for granted about sizes is listed, in its simplest form, and counted.

Where a fact does not hold, the run refuses; where all hold, onnxruntime gives the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from smelt.cli.check import _check_model
from smelt.dtype import Array
from smelt.engine.native import NativeEngine
from smelt.engine.reference import ReferenceEngine
from smelt.errors import RunError
from smelt.read.onnx import read
from tests.onnx_nodes import on_onnxruntime

node, FLOAT, INT = helper.make_node, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
Sizes = list[int | str]


def whole(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def table(*sizes: int) -> Array:
    return np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)


# name: (nodes, inputs, weights, facts, sizes that fit, sizes that do not)
CASES: dict[str, tuple[list[Any], dict[str, Sizes], dict[str, Array], list[str], list[Any], list[Any]]] = {
    "constant index": (
        [node("Gather", ["x", "i"], ["y"])],
        {"x": ["n", 2]},
        {"i": whole(3, -5)},
        ["n >= 5"],
        [{"n": 5}, {"n": 9}],
        [{"n": 4}],
    ),
    "one constant index": (
        [node("Gather", ["x", "i"], ["y"], axis=1)],
        {"x": [2, "n"]},
        {"i": np.array(6)},
        ["n >= 7"],
        [{"n": 7}],
        [{"n": 6}],
    ),
    "top k": (
        [node("TopK", ["x", "k"], ["y", "i"], axis=0)],
        {"x": ["n", 2]},
        {"k": whole(3)},
        ["n >= 3"],
        [{"n": 3}],
        [{"n": 2}],
    ),
    "positions": (
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "one"], ["length"]),
            node("Slice", ["table", "zero", "length", "zero"], ["rows"]),
            node("Add", ["x", "rows"], ["y"]),
        ],
        {"x": ["batch", "length", 4]},
        {"zero": whole(0), "one": whole(1), "table": table(512, 4)},
        ["length <= 512"],
        [{"batch": 2, "length": 512}, {"batch": 1, "length": 3}],
        [{"batch": 1, "length": 513}],
    ),
    "a difference of sizes": (
        [
            node("Shape", ["x"], ["a"]),
            node("Shape", ["z"], ["b"]),
            node("Sub", ["b", "a"], ["c"]),
            node("ConstantOfShape", ["c"], ["d"]),
            node("Concat", ["x", "d"], ["y"], axis=0),
        ],
        {"x": ["n"], "z": ["m"]},
        {},
        ["n <= m"],
        [{"n": 3, "m": 3}, {"n": 1, "m": 4}],
        [{"n": 4, "m": 3}],
    ),
    "halves": (
        [node("Split", ["x"], ["y", "z"], axis=0)],
        {"x": ["n", 2]},
        {},
        ["n % 2 == 0"],
        [{"n": 4}],
        [{"n": 5}],
    ),
    "nothing": ([node("Split", ["x"], ["y", "z"], num_outputs=2)], {"x": ["n", 2]}, {}, [], [{"n": 5}, {"n": 4}], []),
}


BROKEN = {
    "constant index": "an index is out of range: 5 is more than 4",
    "one constant index": "stablehlo.slice: the limit must be inside the dimension",
    "top k": "stablehlo.slice: the limit must be inside the dimension",
    "positions": "broadcast_in_dim: (dimension 1 is neither 1 nor as wanted|a dynamic dimension is not broadcast)",
    "a difference of sizes": "stablehlo.broadcast_in_dim: a size is negative",
    "halves": "Split: without 'num_outputs' all parts are equal: 5 is no multiple of 2",
}


def save_model(path: Path, name: str, opset: int) -> onnx.ModelProto:
    nodes, inputs, weights, *_ = CASES[name]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(port, FLOAT, sizes) for port, sizes in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(array, port) for port, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return model


@pytest.mark.parametrize("name", CASES)
def test_every_assumption_is_listed(name: str, tmp_path: Path) -> None:
    _, inputs, _, wanted, fitting, others = CASES[name]
    path = tmp_path / "model.onnx"
    model = save_model(path, name, 18 if name == "nothing" else 13)
    record, errors = _check_model(path, [], [])
    assert record["ok"]
    assert not errors
    assert [fact.partition(" (")[0] for fact in record["assumed"]] == wanted
    program, weights = read(path)
    executables = [engine.compile(program).prepare(weights) for engine in (ReferenceEngine(), NativeEngine())]
    order = [port.name for port in executables[0].signature.inputs]

    def feed(values: dict[str, int]) -> dict[str, Array]:
        return {port: table(*(values[s] if isinstance(s, str) else s for s in sizes)) for port, sizes in inputs.items()}

    for values in fitting:
        arrays = feed(values)
        want = on_onnxruntime(model, arrays)[0]
        for executable in executables:
            np.testing.assert_array_equal(executable(*(arrays[port] for port in order))[0], want)
    for values in others:
        arrays = feed(values)
        for executable in executables:
            with pytest.raises(RunError, match=BROKEN[name]):
                executable(*(arrays[port] for port in order))
        with pytest.raises(Exception, match=r"(?i)split|range|dim|shape|bounds"):
            on_onnxruntime(model, arrays)


def test_the_verdict_counts_assumptions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from smelt.cli.check import check

    for name, said in (("constant index", "holds under 1 assumption\n"), ("nothing", "every constraint holds\n")):
        path = tmp_path / "model.onnx"
        save_model(path, name, 18 if name == "nothing" else 13)
        with pytest.raises(SystemExit, match="0"):
            check([path], [], [], False, "text", False)
        assert capsys.readouterr().out.endswith(said)


def test_declared_outputs_are_compared(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [node("Relu", ["x"], ["y"]), node("Transpose", ["x"], ["z"]), node("Relu", ["x"], ["same"])],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["n", "m", 3])],
        [
            helper.make_tensor_value_info("y", FLOAT, ["m", "m", 4]),
            helper.make_tensor_value_info("z", FLOAT, [3, "m"]),
            helper.make_tensor_value_info("same", FLOAT, ["n", "other", 3]),
        ],
    )
    path = tmp_path / "model.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    record, _ = _check_model(path, [], [])
    assert record["declared"] == ["n == m (output 'y')", "3 == 4 (output 'y')", "rank 3 == 2 (output 'z')"]
