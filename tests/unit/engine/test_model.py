"""`smelt.load` and the engines behind it, on the committed digits model; onnxruntime is the oracle."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
import smelt.llm
import smelt.run.load
from smelt.buffer import bytes_text
from smelt.engine_api import Port
from smelt.errors import FileError, RunError, ShapeError, UnsupportedError
from smelt.model import LoadedModel, read
from smelt.run.loaded import _label
from smelt.shape import Shape
from smelt.weights import Weights
from tests import onnx_oracle

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    with np.load(str(files("smelt") / "assets" / "digits_test.npz")) as stored:
        return stored["images"].astype(np.float32) / 16


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("batch", [0, 1, 2, 37])
def test_digits_agree_with_onnxruntime(engine: str, batch: int, pixels: np.ndarray) -> None:
    session = onnx_oracle.session(DIGITS)
    (expected,) = session.run(None, {"pixels": pixels[:batch]})
    with_names = smelt.load(DIGITS, engine=engine)(pixels=pixels[:batch])
    np.testing.assert_allclose(with_names["probabilities"], expected, rtol=2e-5, atol=1e-7)


def test_inputs_go_by_position_or_by_name(pixels: np.ndarray) -> None:
    model = smelt.load(DIGITS)
    by_name, by_position = model(pixels=pixels[:2]), model(pixels[:2])
    np.testing.assert_array_equal(by_name["probabilities"], by_position["probabilities"])
    assert "pixels: f32[batch, 64]" in repr(model)


def test_wrong_inputs_say_what_was_expected(pixels: np.ndarray) -> None:
    model = smelt.load(DIGITS, engine="reference")
    with pytest.raises(RunError, match=r"unknown pixel\n"):
        model(pixels=pixels[:2], pixel=pixels[:2])  # superfluous, where nothing is missing
    with pytest.raises(RunError, match="no pixels, unknown image"):
        model(image=pixels)
    with pytest.raises(RunError, match="twice, or too many"):
        model(pixels, pixels=pixels)
    with pytest.raises(ShapeError, match="astype"):
        model(pixels=pixels.astype(np.float64))
    with pytest.raises(ShapeError):
        model(pixels=pixels[:, :63])
    with model as same:
        assert same is model
    with pytest.raises(RunError, match="closed"):
        model(pixels=pixels)


def test_load_refuses_options_that_do_not_exist_or_do_not_apply(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="memory_limits"):
        smelt.load(DIGITS, memory_limits="1GB")  # type: ignore[call-arg]
    with pytest.raises(UnsupportedError, match="a model file has no option verify"):
        smelt.load(DIGITS, verify=True, engine="reference")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="a language model has no option tune"):
        smelt.load(tmp_path, tune=1.0)
    smelt.load(DIGITS, engine="native").save(tmp_path / "model.smelt")
    for option in ({"context": 128}, {"sequences": 2}, {"cache": "f16"}):
        with pytest.raises(UnsupportedError, match=f"a bundle has no option {next(iter(option))}"):
            smelt.load(tmp_path / "model.smelt", **option)
    (tmp_path / "model.smelt").write_bytes(b"smelt pjrt 1\n")
    with pytest.raises(UnsupportedError, match="an executable of the pjrt engine has no option tune"):
        smelt.load(tmp_path / "model.smelt", tune=1.0)
    with pytest.raises(UnsupportedError, match="an executable of the pjrt engine has no option verify"):
        smelt.deserialize(b"smelt pjrt 1\n", verify=True)
    with pytest.raises(UnsupportedError, match="a bundle has no option isolate"):
        smelt.deserialize(b"", isolate=True)


def test_load_has_the_options_and_defaults_of_the_loaders() -> None:
    """Where the defaults of loaders differ, `smelt.load` has None and leaves the choice to them."""
    public = inspect.signature(smelt.load).parameters
    for loader in (smelt.model.load, smelt.run.load.load, smelt.llm.load):
        for name, parameter in inspect.signature(loader).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert public[name].default in (parameter.default, None), f"{loader.__module__}: {name}"


def test_weights_show_how_much_they_hold() -> None:
    _, weights = read(DIGITS)
    assert repr(weights) == f"<Weights of {weights.source}: {len(weights)} tensors, {bytes_text(weights.nbytes)}>"


def test_inputs_that_do_not_fit_are_named(pixels: np.ndarray) -> None:
    """One that is missing, one too many (misspelt, beside the right one), one given twice, too many by position."""
    model = smelt.load(DIGITS, engine="reference")
    x = pixels[:2]
    for given, got in (
        ({}, "no pixels"),
        ({"pixles": x}, "no pixels, unknown pixles"),
        ({"pixels": x, "pixles": x}, "unknown pixles"),
        ({"pixels": x, "a": x, "b": x}, "unknown a, unknown b"),
    ):
        with pytest.raises(RunError, match="the inputs do not fit") as caught:
            model.run(given)
        assert caught.value.got == got
        assert "pixels" in str(caught.value.expected)
    for positional, named in (((x, x), {}), ((x,), {"pixels": x})):
        with pytest.raises(RunError, match="given twice, or too many") as caught:
            model(*positional, **named)
        assert caught.value.expected == ["pixels"]


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_inputs_that_are_no_arrays_are_refused(engine: str, pixels: np.ndarray) -> None:
    model = smelt.load(DIGITS, engine=engine)
    with pytest.raises(ShapeError, match="the input 'pixels' is no array"):
        model(pixels=[[1.0, 2.0], [3.0]])
    for wrong in ([pixels], None, "pixels"):
        with pytest.raises(RunError, match="run takes a dictionary"):
            model.run(wrong)  # type: ignore[arg-type]

    class OnDlpackAlone:
        def __dlpack__(self, **options: Any) -> Any:
            return pixels[:2].__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return pixels.__dlpack_device__()

    np.testing.assert_array_equal(
        model(pixels=OnDlpackAlone())["probabilities"], model(pixels=pixels[:2])["probabilities"]
    )


def test_a_loaded_model_says_that_it_cannot_be_pickled() -> None:
    model = smelt.load(DIGITS, engine="reference")
    for copies in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UnsupportedError, match="cannot be pickled or copied"):
            copies(model)


def test_options_of_load_with_values_that_mean_nothing() -> None:
    for sizes in ({"batch": "two"}, {"batch": -2}, {"batch": 1.5}):
        with pytest.raises(RunError, match="sizes: 'batch'"):
            smelt.load(DIGITS, memory_limit="1GB", sizes=sizes)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="no such dynamic dimension") as caught:
        smelt.load(DIGITS, engine="native", memory_limit="1GB", sizes={"bach": 2})
    assert (caught.value.expected, caught.value.got) == ("batch", "bach")
    for seconds in ("long", -1, 0, float("nan"), float("inf")):
        with pytest.raises(RunError, match="tune is no time"):
            smelt.load(DIGITS, tune=seconds)  # type: ignore[arg-type]
    with pytest.raises(FileError, match="this is no executable"):
        smelt.deserialize("bundle")  # type: ignore[arg-type]


def test_paths_that_lead_to_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "loop.onnx").symlink_to("loop.onnx")
    (tmp_path / "zero.onnx").symlink_to("/dev/zero")
    for name, got in (
        ("pipe", "a device, a pipe"),
        ("loop", "a link that leads nowhere"),
        ("zero", "a device, a pipe"),
    ):
        with pytest.raises(FileError, match="is no regular file") as caught:
            smelt.load(tmp_path / f"{name}.onnx")
        assert str(caught.value.got).startswith(got)
    for load in (smelt.load, smelt.open):
        with pytest.raises(FileError, match="no such file"):
            load("a" * 5000 + ".onnx")


def test_a_number_without_a_label_is_an_error() -> None:
    port = Port("label", Shape("i64", "N"), ("a", "b"))
    assert _label(port, np.array([1, 0])).tolist() == ["b", "a"]
    assert _label(port, np.array([], np.int64)).tolist() == []
    for numbers in ([2], [-1], [0, 7]):
        with pytest.raises(RunError, match="a result without a label"):
            _label(port, np.array(numbers))


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_two_bindings_of_one_executable_are_independent(engine: str, pixels: np.ndarray) -> None:
    program, weights = read(DIGITS)
    executable = smelt.platform(engine=engine).engine.compile(program)
    with pytest.raises(RunError, match="not bound"):
        executable(pixels[:1])
    zeros = Weights.of({name: np.zeros_like(weights[name].numpy()) for name in weights})
    real, blank = executable.prepare(weights), executable.prepare(zeros)
    before = real(pixels[:3])[0]
    assert not np.allclose(before, blank(pixels[:3])[0])
    np.testing.assert_array_equal(real(pixels[:3])[0], before)


def test_missing_and_misshapen_weights_are_named() -> None:
    program, weights = read(DIGITS)
    executable = smelt.platform(engine="reference").engine.compile(program)
    arrays = {name: weights[name].numpy() for name in weights}
    name = next(port.name for port in executable.signature.weights)
    with pytest.raises(FileError, match=name):
        executable.prepare(Weights.of({key: array for key, array in arrays.items() if key != name}))
    with pytest.raises(ShapeError, match=name):
        executable.prepare(Weights.of(arrays | {name: arrays[name][:1]}))


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        smelt.load(tmp_path / "none.onnx")
    (tmp_path / "model.pickle").touch()
    with pytest.raises(UnsupportedError, match=r"\.onnx, \.mlir"):
        smelt.load(tmp_path / "model.pickle")


def test_auto_takes_the_engine_that_knows_the_program(tmp_path: Path) -> None:
    path = tmp_path / "model.mlir"
    text = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {{
      {}
      %0 = stablehlo.negate %x : tensor<3xf32>
      return %0 : tensor<3xf32>
    }}"""
    path.write_text(text.format(""))
    assert smelt.load(path).engine == "native"
    path.write_text(text.format("check.expect_eq %x, %x : tensor<3xf32>"))
    model = smelt.load(path)
    assert model.engine == "reference"
    np.testing.assert_array_equal(model(np.array([1, 2, 3], np.float32))["result0"], [-1, -2, -3])
    with pytest.raises(UnsupportedError, match=r"does not support check\.expect_eq"):
        smelt.load(path, engine="native")


def test_the_public_names_resolve() -> None:
    for name in smelt.__all__:
        assert getattr(smelt, name) is not None
    with pytest.raises(AttributeError):
        _ = smelt.nothing
    import smelt.nn as layers

    assert layers.Linear is smelt.nn.Linear
    assert isinstance(smelt.load(DIGITS), LoadedModel)


def test_labels_come_back_as_text_and_columns_keep_their_keys(tmp_path: Path) -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    skl2onnx = pytest.importorskip("skl2onnx")
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 4)).astype(np.float32)
    words = np.array(["low", "middle", "high"])[np.digitize(x.sum(1), [-1, 1])]
    fitted = sklearn.LogisticRegression(max_iter=500).fit(x, words)
    path = tmp_path / "words.onnx"
    path.write_bytes(skl2onnx.to_onnx(fitted, x[:1]).SerializeToString())
    model = smelt.load(path)
    outputs = model(x[:7])
    assert outputs["output_label"].tolist() == fitted.predict(x[:7]).tolist()
    columns = next(port for port in model.signature.outputs if port.name == "output_probability")
    assert columns.keys == tuple(fitted.classes_)
    np.testing.assert_allclose(outputs["output_probability"], fitted.predict_proba(x[:7]), rtol=1e-4, atol=1e-6)
