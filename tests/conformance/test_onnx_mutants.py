"""Some mutants of the official ONNX node cases on the reference engine; the command runs as many as one likes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.errors import SmeltError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.conformance.onnx_mutants import run_mutants  # noqa: E402  needs both packages


def test_mutants(seed: int) -> None:
    outcomes = run_mutants(seed, 1200, seconds=50)
    counts = Counter(outcome.status for outcome in outcomes)
    print(dict(counts))
    wrong = [each for each in outcomes if each.status in ("wrong", "crashed")]
    assert not wrong, "\n".join(f"{each.index} {each.variant}: {each.detail}\n  {each.mutant}" for each in wrong)
    assert counts["agree"] >= len(outcomes) / 4, f"too few mutants count: {dict(counts)}"
    assert counts["refused"] <= len(outcomes) / 50, f"too many are refused: {dict(counts)}"


def open_model(folder: Path, op: str, *ranks: int, **attributes: Any) -> smelt.model.Model:
    """A node whose inputs' sizes are all different symbols."""
    make = onnx.helper
    names = [f"x{i}" for i in range(len(ranks))]
    ports = [
        make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [f"{name}_{axis}" for axis in range(rank)])
        for name, rank in zip(names, ranks, strict=True)
    ]
    output = make.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = make.make_graph([make.make_node(op, names, ["y"], **attributes)], "open", ports, [output])
    path = folder / "open.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 21)], ir_version=10), path)
    return smelt.load(path, engine="reference")


def test_open_sizes_broadcast_either_way(tmp_path: Path) -> None:
    model = open_model(tmp_path, "Mul", 2, 2)
    for a, b in [((3, 4), (3, 4)), ((3, 1), (3, 4)), ((1, 4), (3, 1)), ((3, 4), (1, 1)), ((1, 4), (0, 4))]:
        x, y = np.full(a, 2.0, np.float32), np.full(b, 3.0, np.float32)
        np.testing.assert_array_equal(model(x, y)["y"], x * y)
    with pytest.raises(SmeltError):
        model(np.zeros((2, 3), np.float32), np.zeros((4, 3), np.float32))
    np.testing.assert_array_equal(model(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))["y"], np.ones((2, 3)))


def test_open_sizes_that_decide_the_rank(tmp_path: Path) -> None:
    model = open_model(tmp_path, "Squeeze", 3)
    for sizes in [(1, 3, 1), (2, 1, 3), (1, 3, 1), (2, 3, 4)]:
        x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
        np.testing.assert_array_equal(model(x)["y"], x.squeeze())


def test_open_sizes_do_not_hide_mistakes(tmp_path: Path) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("Transpose", {"perm": [0, 0]}),
        ("Softmax", {"axis": 2}),
        ("Split", {"num_outputs": 0}),
    ]
    for op, attributes in wrong:
        with pytest.raises(SmeltError):
            open_model(tmp_path, op, 2, **attributes)
