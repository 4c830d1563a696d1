"""Requests compile only where the settings allow it, and `/metrics` counts the programs that were compiled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import smelt
from smelt.errors import UnsupportedError
from tests.unit.serve.client import Client, model, serving


@pytest.fixture
def largest(tmp_path: Path) -> Path:
    """The k largest of each row: k is a compile-time input."""
    graph = helper.make_graph(
        [helper.make_node("TopK", ["x", "k"], ["y", "at"])],
        "largest",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4]),
            helper.make_tensor_value_info("k", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "largest.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def asked(k: int) -> dict[str, Any]:
    x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [3, 9, 1, 7]}
    return {"inputs": [x, {"name": "k", "shape": [1], "datatype": "INT64", "data": [k]}]}


def compiles(client: Client) -> int:
    text = client.get("/metrics").body.decode()
    found = re.search(r'^smelt_compiles_total\{model="largest",version="1"\} (\d+)$', text, re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("trusted", [True, False])
def test_a_request_compiles_only_where_it_may(largest: Path, trusted: bool) -> None:
    settings: dict[str, Any] = {"engine": "native", "trusted": trusted}
    path = "/v2/models/largest/infer"
    with serving(model(largest, **settings)) as client:
        refused = client.post(path, asked(2))
        assert (refused.status, "compile_on_request" in refused.json["detail"]["remedy"]) == (400, True)
        assert compiles(client) == 0
    with serving(model(largest, compile_on_request=True, **settings)) as client:
        for k, count in ((2, 1), (2, 1), (3, 2)):
            answer = client.post(path, asked(k))
            assert answer.json["outputs"][0]["data"] == [9, 7, 3][:k], answer.body
            assert compiles(client) == count
    with serving(model(largest, static={"k": [2]}, **settings)) as client:
        given = {"inputs": asked(2)["inputs"][:1]}
        assert client.post(path, given).json["outputs"][0]["data"] == [9, 7]
        assert compiles(client) == 1, "by loading"


def test_a_model_that_compiles_no_more_keeps_its_programs(largest: Path) -> None:
    x = np.array([[3, 9, 1, 7]], np.float32)
    with smelt.load(largest, engine="reference") as loaded:
        assert loaded(x, np.array([2]))["y"].tolist() == [[9, 7]]
        loaded.stop_compiling()
        assert loaded(x, np.array([2]))["y"].tolist() == [[9, 7]]
        with pytest.raises(UnsupportedError, match="no program is compiled for such inputs"):
            loaded(x, np.array([3]))
