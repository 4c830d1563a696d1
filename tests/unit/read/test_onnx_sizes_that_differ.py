"""Dynamic dimensions that do not fit weights or each other: refused where onnxruntime refuses them, else the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.dtype import Array
from smelt.errors import SmeltError
from tests import onnx_oracle

pytest.importorskip("onnxruntime")
FLOAT = TensorProto.FLOAT


def ones(*sizes: int) -> Array:
    return np.ones(sizes, np.float32)


# Operator and attributes, the dimensions of its inputs, its weights, the sizes of each input in each call.
CASES: list[tuple[str, dict[str, Any], list[list[Any]], list[Array], list[list[Sequence[int]]]]] = [
    ("Conv", {}, [[1, "C", 5, 5]], [ones(2, 4, 3, 3)], [[(1, c, 5, 5)] for c in (4, 2, 8, 1)]),
    ("Conv", {"group": 2}, [[1, "C", 5, 5]], [ones(2, 4, 3, 3)], [[(1, c, 5, 5)] for c in (8, 4, 6)]),
    ("ConvTranspose", {}, [[1, "C", 5, 5]], [ones(2, 4, 3, 3)], [[(1, c, 5, 5)] for c in (2, 4, 1)]),
    ("MatMul", {}, [[1, "C"]], [ones(4, 2)], [[(1, c)] for c in (4, 2, 1, 0)]),
    ("Gemm", {}, [["N", "C"]], [ones(4, 2), ones(3, 2)], [[(n, c)] for n, c in ((3, 4), (1, 4), (3, 1), (2, 4))]),
    ("BatchNormalization", {}, [[1, "C", 5]], [ones(4)] * 4, [[(1, c, 5)] for c in (4, 2, 1, 8)]),
    ("InstanceNormalization", {}, [[1, "C", 5]], [ones(4)] * 2, [[(1, c, 5)] for c in (4, 2, 1, 8)]),
    ("LayerNormalization", {}, [[2, "C"]], [ones(4)] * 2, [[(2, c)] for c in (4, 2, 1, 8)]),
    ("PRelu", {}, [[2, "C"]], [ones(4)], [[(2, c)] for c in (4, 2, 1)]),
    ("Einsum", {"equation": "ab,bc->ac"}, [[1, "C"]], [ones(4, 2)], [[(1, c)] for c in (4, 2, 3)]),
    ("LSTM", {"hidden_size": 2}, [["T", 1, "I"]], [ones(1, 8, 3), ones(1, 8, 2)], [[(2, 1, i)] for i in (3, 2, 1, 4)]),
    ("Concat", {"axis": 0}, [["A", "C"], ["B", "D"]], [], [[(1, c), (2, 2)] for c in (2, 1, 4)]),
    ("Add", {}, [["A"], ["B"]], [], [[(a,), (b,)] for a, b in ((2, 2), (1, 2), (2, 1), (3, 2), (0, 1), (0, 2))]),
    ("DepthToSpace", {"blocksize": 2}, [[1, "C", 2, 2]], [], [[(1, c, 2, 2)] for c in (4, 8, 6, 2)]),
    ("SpaceToDepth", {"blocksize": 2}, [[1, 1, "H", 2]], [], [[(1, 1, h, 2)] for h in (4, 8, 5, 1)]),
    ("Reshape", {}, [["N"]], [np.array([-1, 3])], [[(n,)] for n in (3, 4, 0)]),
    ("Reshape", {}, [["N", "M"]], [np.array([4, -1])], [[(2, 4)], [(3, 3)]]),
    ("Gather", {}, [["N"]], [np.array([2, -3])], [[(n,)] for n in (3, 2, 5)]),
    ("GridSample", {}, [["N", 1, 3, 3], ["M", 2, 2, 2]], [],
     [[(n, 1, 3, 3), (m, 2, 2, 2)] for n, m in ((1, 1), (2, 1), (1, 2))]),
    ("Expand", {}, [["N", 3]], [np.array([2, 3])], [[(n, 3)] for n in (1, 2, 3)]),
    ("Tile", {}, [["N", 3]], [np.array([2, 1])], [[(n, 3)] for n in (0, 1, 2)]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{i}")
def test_sizes_that_differ(number: int, tmp_path: Path) -> None:
    op, attributes, dims, weights, calls = CASES[number]
    names = [f"x{i}" for i in range(len(dims))]
    held = [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(weights)]
    node = helper.make_node(op, [*names, *(each.name for each in held)], ["y"], **attributes)
    ports = [helper.make_tensor_value_info(*port) for port in zip(names, [FLOAT] * len(dims), dims, strict=True)]
    graph = helper.make_graph([node], "g", ports, [helper.make_tensor_value_info("y", FLOAT, None)], held)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model, session = smelt.load(path, engine="reference"), onnx_oracle.session(path)
    accepted = 0
    for sizes in calls:
        arrays = [np.arange(np.prod(each), dtype=np.float32).reshape(each) for each in sizes]
        feed = dict(zip(names, arrays, strict=True))
        try:
            (want,) = session.run(None, feed)
        except Exception:  # of several types, none of them documented
            with pytest.raises(SmeltError):
                model.run(feed)
            continue
        accepted += 1
        np.testing.assert_allclose(model.run(feed)["y"], want, rtol=1e-4, atol=1e-4, strict=True, err_msg=str(sizes))
    assert accepted
