"""Some mutants of the official ONNX node cases on the reference engine; the command runs as many as one likes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.dim import floordiv, symbol
from smelt.errors import ShapeError, SmeltError
from smelt.read.onnx.ops.shape import rest_of

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")
pytest.importorskip("onnxruntime")

from tests.conformance import onnx_mutants  # noqa: E402  needs both packages
from tests.conformance.onnx_mutants import Outcome, run_mutants  # noqa: E402


def test_mutants(seed: int) -> None:
    outcomes = run_mutants(seed, 700, seconds=30)
    counts = Counter(outcome.status for outcome in outcomes)
    print(dict(counts))
    wrong = [each for each in outcomes if each.status in ("wrong", "crashed")]
    assert not wrong, "\n".join(f"{each.index} {each.variant}: {each.detail}\n  {each.mutant}" for each in wrong)
    assert counts["agree"] >= len(outcomes) / 4, f"too few mutants count: {dict(counts)}"
    assert counts["refused"] <= len(outcomes) / 50, f"too many are refused: {dict(counts)}"


@pytest.mark.parametrize(
    ("status", "code"), [("agree", 0), ("skipped", 0), ("refused", 0), ("wrong", 1), ("crashed", 1)]
)
def test_the_command_fails_where_a_mutant_does(status: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [Outcome(0, "Add", "agree"), Outcome(1, "Add", status)]
    monkeypatch.setattr(onnx_mutants, "run_mutants", lambda *_, **__: outcomes)
    assert onnx_mutants.main(["--count", "2"]) == code


def open_model(folder: Path, op: str, *ranks: int, **attributes: Any) -> smelt.model.LoadedModel:
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


def test_dynamic_dimensions_broadcast_either_way(tmp_path: Path) -> None:
    model = open_model(tmp_path, "Mul", 2, 2)
    for a, b in [((3, 4), (3, 4)), ((3, 1), (3, 4)), ((1, 4), (3, 1)), ((3, 4), (1, 1)), ((1, 4), (0, 4))]:
        x, y = np.full(a, 2.0, np.float32), np.full(b, 3.0, np.float32)
        np.testing.assert_array_equal(model(x, y)["y"], x * y)
    with pytest.raises(ShapeError, match="sizes do not broadcast"):
        model(np.zeros((2, 3), np.float32), np.zeros((4, 3), np.float32))
    np.testing.assert_array_equal(model(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))["y"], np.ones((2, 3)))


def test_dynamic_dimensions_that_decide_the_rank(tmp_path: Path) -> None:
    model = open_model(tmp_path, "Squeeze", 3)
    for sizes in [(1, 3, 1), (2, 1, 3), (1, 3, 1), (2, 3, 4)]:
        x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
        np.testing.assert_array_equal(model(x)["y"], x.squeeze())


def test_dynamic_dimensions_do_not_hide_mistakes(tmp_path: Path) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("Transpose", {"perm": [0, 0]}),
        ("Softmax", {"axis": 2}),
        ("Split", {"num_outputs": 0}),
    ]
    for op, attributes in wrong:
        with pytest.raises(SmeltError, match=f"{op}.*{next(iter(attributes))}"):
            open_model(tmp_path, op, 2, **attributes)


def one_node(node: Any, inputs: dict[str, Any], version: int) -> Any:
    make = onnx.helper
    ports = [
        make.make_tensor_value_info(name, make.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    output = make.make_tensor_value_info(node.output[0], ports[0].type.tensor_type.elem_type, None)
    graph = make.make_graph([node], "one", ports, [output])
    return make.make_model(graph, opset_imports=[make.make_opsetid("", version)], ir_version=10)


def check_node(folder: Path, node: Any, inputs: dict[str, Any], version: int, wider: Any) -> None:
    """The first output of a node is what ONNX's evaluator makes of the same numbers in a wider type, rounded once."""
    path = folder / "one.onnx"
    onnx.save(one_node(node, inputs, version), path)
    found = smelt.load(path, engine="reference")(**inputs)[node.output[0]]
    wide = {name: array.astype(wider) for name, array in inputs.items()}
    want = onnx.reference.ReferenceEvaluator(one_node(node, wide, version)).run([node.output[0]], wide)[0]
    assert found.dtype == next(iter(inputs.values())).dtype
    digits = 2.0**-11 if found.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(found.astype(np.float64), want, rtol=1.01 * digits, atol=2e-6)


NARROW: dict[str, dict[str, Any]] = {
    "AveragePool": {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"},
    "GlobalAveragePool": {},
    "LpPool": {"kernel_shape": [3, 3], "p": 2},
    "LRN": {"size": 3},
    "LpNormalization": {"axis": 2},
    "MeanVarianceNormalization": {},
}


@pytest.mark.parametrize("op", NARROW)
def test_half_precision_is_rounded_once(tmp_path: Path, op: str) -> None:
    sizes = (3, 3, 17, 15)  # as many batches as channels: the LRN of ONNX's evaluator takes one for the other
    x = np.random.default_rng(1).standard_normal(sizes).astype(np.float16)
    check_node(tmp_path, onnx.helper.make_node(op, ["x"], ["y"], **NARROW[op]), {"x": x}, 13, np.float32)


@pytest.mark.parametrize("training_mode", [0, 1])
@pytest.mark.parametrize("types", ["fff", "ffe", "fee", "eee", "eff", "eef"])
def test_batch_normalization_of_several_types(tmp_path: Path, types: str, training_mode: int) -> None:
    random = np.random.default_rng(2)
    kinds = [np.float32 if each == "f" else np.float16 for each in types]
    x = random.standard_normal((2, 3, 4, 5)).astype(kinds[0])
    inputs = {"x": x}
    for name, kind in (("scale", kinds[1]), ("bias", kinds[1]), ("mean", kinds[2]), ("variance", kinds[2])):
        inputs[name] = random.uniform(0.5, 1.5, 3).astype(kind)
    outputs = ["y", "m", "v"] if training_mode else ["y"]
    node = onnx.helper.make_node("BatchNormalization", list(inputs), outputs, training_mode=training_mode)
    check_node(tmp_path, node, inputs, 15, np.float64)


def test_the_inferred_size_of_a_reshape_divides_by_each_size_once() -> None:
    a, b, c = (symbol(name) for name in "abc")
    assert rest_of(a * b * c, [a, 1, 2]) == rest_of(a * b * c, [2, a]) == floordiv(b * c, 2)
    assert rest_of(a * b, [b, a]) == 1
    assert rest_of(a * b, [a, 0]) == 0
    assert rest_of(24, [2, 3]) == 4
