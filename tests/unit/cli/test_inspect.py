"""The ONNX preflight: everything unsupported in one report, compile-time inputs, and the commands that need it."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.cli.bench import bench
from smelt.cli.check import check
from smelt.cli.diff import diff
from smelt.cli.inspect import inspect
from smelt.engine.signature import signature_of
from smelt.errors import ShapeError, SmeltError
from smelt.model import load, read
from smelt.read.onnx.declared import declared_signature

onnx = pytest.importorskip("onnx")
helper = onnx.helper
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
Output = pytest.CaptureFixture[str]


def port(name: str, sizes: Any, element: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, element, sizes)


def saved(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], **more: Any) -> Path:
    imports = [helper.make_opsetid(*each) for each in (("", 17), ("com.example", 1), ("local", 1))]
    value_info = more.pop("value_info", [])
    graph = helper.make_graph(nodes, "graph", inputs, outputs, value_info=value_info)
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8, **more), str(path))
    return path


def answer(capsys: Output, command: Callable[..., None], *arguments: Any) -> tuple[int, dict[str, Any]]:
    """The exit code and the JSON of a command."""
    capsys.readouterr()
    code = 0
    try:
        command(*arguments, True)
    except SystemExit as stop:
        code = int(stop.code or 0)
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, record


def check_one(file: Path, sizes: list[str], static: list[str], as_json: bool) -> None:
    """`smelt check` of one model, which takes what `inspect` takes."""
    check([file], sizes, static, as_json, "text", False)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Unsupported in six ways; `fine` and `after` take what has a declared type, `lost` takes what has none."""
    node = helper.make_node
    then = helper.make_graph([node("Erfinv", ["x"], ["t1"], name="inside")], "then", [], [port("t1", ["N", 3])])
    other = helper.make_graph([node("Neg", ["x"], ["e"], name="neg")], "else", [], [port("e", ["N", 3])])
    function = helper.make_function(
        "local", "Fn", ["p"], ["q"], [node("Frob", ["p"], ["q"], name="deep", domain="far.away")],
        [helper.make_opsetid("", 17), helper.make_opsetid("far.away", 2)],
    )  # fmt: skip
    nodes = [
        node("Frobnicate", ["x"], ["a"], name="unknown_op"),
        node("Mystery", ["a"], ["b"], name="unknown_domain", domain="com.example"),
        node("Relu", ["b"], ["c"], name="lost"),
        node("Relu", ["x"], ["d"], name="bad_attribute", slope=2.0),
        node("Abs", ["d"], ["e0"], name="fine"),
        node("Cast", ["e0"], ["f0"], name="bad_type", to=99),
        node("If", ["flag"], ["y"], name="branching", then_branch=then, else_branch=other),
        node("Fn", ["e0"], ["z"], name="call", domain="local"),
        node("Exp", ["y"], ["w"], name="after"),
    ]
    return saved(
        tmp_path / "broken.onnx", nodes, [port("x", ["N", 3]), port("flag", [], BOOL)],
        [port("y", ["N", 3]), port("z", ["N", 3]), port("w", ["N", 3]), port("c", None)],
        functions=[function], value_info=[port("d", ["N", 3])],
    )  # fmt: skip


def test_inputs_with_a_value_in_the_file_need_none(tmp_path: Path, capsys: Output) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    path = saved(tmp_path / "m.onnx", nodes, [port("x", ["N", 3]), port("w", [3])], [port("y", ["N", 3])])
    model = onnx.load(str(path))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"))
    onnx.save(model, str(path))
    code, record = answer(capsys, inspect, path, [], [])
    assert (code, [*record["inputs"]], [*record["outputs"]]) == (0, ["x"], ["y"])


def test_every_unsupported_node_is_listed(broken: Path, capsys: Output) -> None:
    code, record = answer(capsys, inspect, broken, [], [])
    assert code == 1
    found = {(each["node"], *each["path"]) for each in record["unsupported"]}
    assert found == {
        ("unknown_op",),
        ("unknown_domain",),
        ("bad_attribute",),
        ("bad_type",),
        ("inside", "branching.then_branch"),
        ("deep", "call(local.Fn)"),
    }
    operators = {each["node"]: each["operator"] for each in record["unsupported"]}
    assert operators["unknown_domain"] == "com.example.Mystery"
    assert operators["deep"] == "far.away.Frob"
    assert [each["node"] for each in record["unjudged"]] == ["lost"]
    assert record["opsets"] == {"ai.onnx": 17, "com.example": 1, "local": 1}
    assert record["nodes"]["Relu"] == 2
    assert record["histogram"]["abs"] == 1, "what could be read is described"
    assert not record["whole"]
    assert record["fixed_sizes"] is None, "no size makes an unknown operator known"


def test_the_report_and_the_check_name_every_node_as_text(broken: Path, capsys: Output) -> None:
    for command in (inspect, check_one):
        with pytest.raises(SystemExit) as stop:
            command(broken, [], [], False)
        assert stop.value.code == 1
        text = capsys.readouterr().out
        for name in ("unknown_op", "unknown_domain", "bad_attribute", "bad_type", "inside", "deep"):
            assert name in text


def test_an_unknown_operator_is_refused_when_a_model_is_loaded(tmp_path: Path) -> None:
    nodes = [helper.make_node("Frobnicate", ["x"], ["y"], name="unknown_op")]
    path = saved(tmp_path / "m.onnx", nodes, [port("x", ["N"])], [port("y", ["N"])])
    with pytest.raises(SmeltError, match="unknown operator"):
        load(path)


@pytest.fixture
def shaped(tmp_path: Path) -> Path:
    """`axes` is a compile-time input: 1 is no axis of a vector, 0 is."""
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"], name="total", keepdims=0)]
    return saved(tmp_path / "shaped.onnx", nodes, [port("x", ["N"]), port("axes", [1], INT64)], [port("y", None)])


def test_inputs_that_shape_the_program_are_found_and_sampled(shaped: Path, capsys: Output) -> None:
    code, record = answer(capsys, inspect, shaped, ["N=5"], [])
    assert code == 0
    assert list(record["static"]) == ["axes"]
    assert record["static"]["axes"]["value"] == [0]
    assert record["static"]["axes"]["source"] == "a sample"
    assert "total" in record["static"]["axes"]["reason"]
    assert record["outputs"] == {"y": "f32[]"}
    assert record["unjudged"] == []
    _, record = answer(capsys, inspect, shaped, [], ["axes=[-1]"])
    assert record["static"]["axes"] == {"value": [-1], "source": "given", "reason": "it was given"}


@pytest.mark.parametrize("static", ["axes=fish", "axes=[0, 0]", "nothing=1", "axes"])
def test_static_values_that_do_not_fit_are_refused(static: str, shaped: Path) -> None:
    with pytest.raises(SmeltError, match=static.partition("=")[0]):
        inspect(shaped, [], [static], True)


def test_check_says_what_a_model_needs(shaped: Path, capsys: Output) -> None:
    code, record = answer(capsys, check_one, shaped, [], [])
    assert (code, record["ok"]) == (0, True)
    assert list(record["static"]) == ["axes"]
    with pytest.raises(SystemExit) as stop:
        check_one(shaped, [], [], False)
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "needs the value of 'axes'" in text
    assert "axes=[0]" in text


def test_diff_and_bench_run_models_with_static_inputs(shaped: Path, capsys: Output) -> None:
    pytest.importorskip("onnxruntime")
    diff(shaped, "onnxruntime", "reference", ["N=7"], 1e-5, 0, True)
    record = json.loads(capsys.readouterr().out)
    assert (record["first"], record["compared"]) == (None, 1)
    bench(shaped, ["N=7"], "reference", ["onnxruntime"], 0.01, True)
    record = json.loads(capsys.readouterr().out)
    assert record["inputs"] == {"x": [7], "axes": [1]}
    assert set(record["engines"]) == {"smelt (reference)", "onnxruntime"}


def test_check_lists_the_sizes_that_it_takes_for_granted(tmp_path: Path, capsys: Output, seed: int) -> None:
    nodes = [helper.make_node("Add", ["x", "y"], ["z"], name="sum")]
    path = saved(tmp_path / "add.onnx", nodes, [port("x", ["N", 3]), port("y", ["M", 3])], [port("z", None)])
    _, record = answer(capsys, check_one, path, [], [])
    assert record["ok"]
    (fact,) = record["assumed"]
    assert fact.startswith("M == N or M == 1")
    random = np.random.default_rng(seed)
    for engine in ("native", "reference"):  # the fact is checked when it does not hold, not believed
        model = load(path, engine=engine)
        for n, m in ((2, 2), (2, 1), (1, 2)):
            x, y = random.random((n, 3), np.float32), random.random((m, 3), np.float32)
            np.testing.assert_array_equal(model(x=x, y=y)["z"], x + y)
        with pytest.raises(ShapeError, match="sizes do not broadcast"):
            model(x=np.ones((2, 3), np.float32), y=np.ones((3, 3), np.float32))


@pytest.mark.parametrize(("name", "static"), [("silero_vad.onnx", ["sr"]), ("silero_vad_half.onnx", [])])
def test_real_models_say_what_shapes_them(name: str, static: list[str], capsys: Output) -> None:
    package = find_spec("silero_vad")
    if package is None or not package.submodule_search_locations:
        pytest.skip("silero_vad is not installed: make venv installs tests/models.txt")
    path = Path(package.submodule_search_locations[0]) / "data" / name
    code, record = answer(capsys, inspect, path, [], [])
    assert code == 0
    assert list(record["static"]) == static
    assert record["fixed_sizes"] is not None
    assert record["opsets"]["ai.onnx"] >= 15
    assert (record["unsupported"], record["unjudged"]) == ([], [])
    assert record["gflop"] > 0
    code, record = answer(capsys, check_one, path, [], [])
    assert (code, record["ok"]) == (0, True)
    assert record["fixed_sizes"]["reason"]


def test_dimensions_without_a_name_are_called_the_same_everywhere(tmp_path: Path) -> None:
    """In what is declared, in the program, and with values of other inputs; a name that is taken is not used."""
    inputs = [port("a", ["n0", None]), port("b", [None, 3]), port("k", [None])]
    nodes = [helper.make_node("Add", ["k", "k"], ["kk"]), helper.make_node("Mul", ["b", "kk"], ["y"])]
    path = saved(tmp_path / "unnamed.onnx", nodes, inputs, [port("y", [None, None])])
    said = {each.name: str(each.shape) for each in declared_signature(path).inputs}
    assert said == {"a": "f32[n0, n1]", "b": "f32[n2, 3]", "k": "f32[n3]"}
    program, _ = read(path, {"k": np.ones(3, np.float32)})
    made = {each.name: str(each.shape) for each in signature_of(program.main).inputs}
    assert made == {name: said[name] for name in "ab"}
