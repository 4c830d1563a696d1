"""inspect, export, bench, diff, and the classes that stand in for onnxruntime's and onnx's."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from smelt.cli import bench as bench_command
from smelt.cli import diff as diff_command
from smelt.cli import inspect as inspect_command
from smelt.cli.bench import bench
from smelt.cli.diff import compare, diff
from smelt.cli.export import export
from smelt.cli.rounds import Outcome
from smelt.compat import Backend, InferenceSession, NodeArg
from smelt.dtype import dtype, integer_range
from smelt.errors import RunError, SmeltError
from smelt.model import load

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))


def test_inspect_says_what_a_model_needs(capsys: pytest.CaptureFixture[str]) -> None:
    inspect_command.inspect(DIGITS, ["batch=8"], [], True)
    record = json.loads(capsys.readouterr().out)
    assert record["inputs"] == {"pixels": "f32[batch, 64]"}
    assert record["outputs"] == {"probabilities": "f32[batch, 10]"}
    assert record["parameters"] == 64 * 64 + 64 + 64 * 32 + 32 + 32 * 10 + 10
    assert record["composites"] == {"smelt.softmax": 1}
    products = 2 * 8 * (64 * 64 + 64 * 32 + 32 * 10)
    assert products <= record["gflop"] * 1e9 <= 1.1 * products
    assert record["histogram"]["dot_general"] == 3
    inspect_command.inspect(DIGITS, [], [], False)
    assert "f32[batch, 64]" in capsys.readouterr().out


@pytest.mark.parametrize("plain", [False, True])
def test_an_exported_model_computes_the_same(plain: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "digits.mlir"
    export(DIGITS, output, plain, True)
    assert json.loads(capsys.readouterr().out)["weights"] == str(tmp_path / "digits.safetensors")
    pixels = np.random.default_rng(0).random((5, 64), np.float32)
    before = load(DIGITS, engine="reference")(pixels)["probabilities"]
    after = load(output, engine="reference")(pixels)
    np.testing.assert_array_equal(next(iter(after.values())), before)
    if not plain:
        assert list(after) == ["probabilities"]
    with pytest.raises(SmeltError, match="output format"):
        export(DIGITS, tmp_path / "digits.txt", plain, False)


def test_bench_without_a_result_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Outcome({}, {"smelt": "the worker has no smelt"}, {}, [])
    monkeypatch.setattr(bench_command, "measure", lambda *_: nothing)
    with pytest.raises(SmeltError, match="could not be run") as caught:
        bench(DIGITS, [], "reference", [], 0.05, False)
    assert caught.value.got == "the worker has no smelt"


def test_bench_gives_the_error_of_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `smelt run` does, with one remedy."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SmeltError) as caught:
        bench(DIGITS, [], "reference", [], 0.05, False, device="cuda")
    with pytest.raises(SmeltError) as own:
        load(DIGITS, engine="reference", device="cuda")
    assert str(caught.value) == str(own.value)
    assert type(caught.value) is type(own.value)
    assert str(caught.value).count("\n  try ") == 1


def test_bench_measures_interleaved(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    bench(DIGITS, ["batch=2"], "reference", ["onnxruntime"], 0.05, True)
    engines = json.loads(capsys.readouterr().out)["engines"]
    assert list(engines) == ["smelt (reference)", "onnxruntime"]
    for row in engines.values():
        assert 0 < row["p10"] <= row["median_ms"] <= row["p90"]
    with pytest.raises(SmeltError, match="unknown engine"):
        bench(DIGITS, [], "reference", ["abacus"], 0.05, True)


@pytest.mark.parametrize("against", ["onnxruntime", "reference"])
def test_diff_compares_every_node(against: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    diff(DIGITS, against, "native", ["batch=3"], 1e-4, 0, True)
    record = json.loads(capsys.readouterr().out)
    assert record["first"] is None
    names = [each["name"] for each in record["all"]]
    assert names[0] == "sum1", "in the order of the nodes"
    assert names[-1] == "probabilities"


def test_diff_names_the_first_node_that_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = diff_command._other

    def wrong(*arguments: object) -> dict[str, np.ndarray]:
        outputs = dict(honest(*arguments))  # type: ignore[arg-type]
        for name in ("hidden2", "probabilities"):
            outputs[name] = outputs[name].copy()
            outputs[name][1, 2] += 1
        return outputs

    monkeypatch.setattr(diff_command, "_other", wrong)
    with pytest.raises(SystemExit) as stop:
        diff(DIGITS, "reference", "reference", ["batch=3"], 1e-4, 0, True)
    assert stop.value.code == 1
    first = json.loads(capsys.readouterr().out)["first"]
    assert (first["name"], first["worst"], first["largest"]) == ("hidden2", [1, 2], pytest.approx(1))


def test_differences_mind_nan_infinity_and_shape() -> None:
    a = np.array([1.0, np.nan, np.inf], np.float32)
    assert compare("x", "", a, a.copy(), 0.0).same
    assert not compare("x", "", a, np.array([1.0, 0.0, np.inf], np.float32), 1e-3).same
    assert not compare("x", "", a, a[:2], 1e-3).same
    assert not compare("x", "", a, a.astype(np.float64), 1e-3).same
    assert compare("x", "", a[:0], a[:0], 0.0).same


@pytest.mark.parametrize(
    "name", ["bool", "i2", "ui2", "i4", "ui4", "i8", "ui8", "i16", "ui16", "i32", "ui32", "i64", "ui64"]
)
def test_differences_of_integers_do_not_wrap(name: str) -> None:
    element = dtype("i1" if name == "bool" else name)
    low, high = (0, 1) if name == "bool" else integer_range(element)
    kind = element.numpy
    for x, y in ((high, low), (low, high), (high - 1, high)):
        found = compare("x", "", np.array([x]).astype(kind), np.array([y]).astype(kind), 0.0)
        assert found.largest == float(abs(int(x) - int(y)))
        assert not found.same


def test_differences_of_narrow_floats_and_complex_numbers() -> None:
    narrow = dtype("f8E4M3FN").numpy
    found = compare("x", "", np.array([2.0]).astype(narrow), np.array([-448.0]).astype(narrow), 0.0)
    assert (found.largest, found.relative) == (450.0, 450.0 / 448.0)
    found = compare("x", "", np.array([3j], np.complex64), np.array([4.0 + 0j], np.complex64), 0.0)
    assert (found.largest, found.relative) == (5.0, 1.25)


def test_a_session_stands_in_for_onnxruntimes() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    theirs = onnxruntime.InferenceSession(str(DIGITS), providers=["CPUExecutionProvider"])
    for ours in (InferenceSession(DIGITS), InferenceSession(DIGITS.read_bytes(), providers=["CPUExecutionProvider"])):
        for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
            assert mine == [NodeArg(arg.name, arg.type, list(arg.shape)) for arg in other]
        feed = {"pixels": np.random.default_rng(1).random((4, 64), np.float32)}
        for names in (None, ["probabilities"]):
            for x, y in zip(ours.run(names, feed), theirs.run(names, feed), strict=True):
                np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-7)
        with pytest.raises(RunError, match="no such output"):
            ours.run(["logits"], feed)
    assert ours.get_modelmeta().custom_metadata_map == theirs.get_modelmeta().custom_metadata_map


def test_a_backend_runs_a_model_proto() -> None:
    onnx = pytest.importorskip("onnx")
    pixels = np.random.default_rng(2).random((1, 64), np.float32)
    (out,) = Backend.run_model(onnx.load(str(DIGITS)), [pixels])
    assert out.shape == (1, 10)
    assert out.sum() == pytest.approx(1, abs=1e-5)
    assert Backend.supports_device("CPU")
    assert not Backend.supports_device("CUDA:0")
