"""Mistakes in loading and saving: each error names a remedy. Where the remedy is a call or a command, it is applied."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.errors import FileError, SmeltError, UnsupportedError
from smelt.formats import format_of
from smelt.read import safetensors

DIGITS = Path(smelt.__file__).parent / "assets" / "digits.onnx"
PIXELS = np.random.default_rng(3).random((2, 64), np.float32)
TEXT = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n  return %x : tensor<3xf32>\n}\n"


def remedy_of(mistake: Callable[[], Any]) -> str:
    with pytest.raises(SmeltError) as caught:
        mistake()
    assert caught.value.remedy, str(caught.value)
    return caught.value.remedy


# ---- formats that smelt does not read ----


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("model.pt", "torch.onnx.export"),
        ("model.pth", "torch.onnx.export"),
        ("model.ckpt", "torch.onnx.export"),
        ("model.pt2", "torch.export.load"),
        ("model.safetensors", "smelt.open"),
        ("model.npz", "smelt.open"),
        ("model.h5", "tf2onnx.convert --keras"),
        ("model.keras", "format=.onnx"),
        ("model.tflite", "tf2onnx.convert --tflite"),
        ("model.pb", "tf2onnx.convert --graphdef"),
        ("model.pickle", "export the model as ONNX"),
    ],
)
def test_other_formats_get_advice(name: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02 something else")
    assert re.search(advice, remedy_of(lambda: smelt.load(tmp_path / name)))


def test_reading_a_language_model_as_a_program_points_to_load(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    assert "smelt.load(" in remedy_of(lambda: smelt.read(tmp_path / "tiny.gguf"))
    (tmp_path / "config.json").write_text("{}")
    assert "smelt.load(" in remedy_of(lambda: smelt.read(tmp_path))


def test_a_folder_without_a_configuration_names_the_model_in_it(tmp_path: Path) -> None:
    assert "smelt pull" in remedy_of(lambda: smelt.llm.load(tmp_path))
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    assert str(tmp_path / "tiny.gguf") in remedy_of(lambda: smelt.llm.load(tmp_path))


# ---- remedies that can be applied ----


def test_the_advice_for_weights_opens_them(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.write(path, {"x": np.ones(2, np.float32)})
    call = re.search(r'smelt\.open\("(.+?)"\)', remedy_of(lambda: smelt.load(path)))
    assert call is not None
    assert list(smelt.open(call[1])) == ["x"]


@pytest.mark.parametrize("name", ["digit.onnx", "digits.onx"])
def test_a_misspelt_path_names_the_file_that_is_there(tmp_path: Path, name: str) -> None:
    shutil.copy(DIGITS, tmp_path / "digits.onnx")
    (tmp_path / "digit.png").touch()  # nearer, and no model
    found = re.search(r"did you mean (.+)\?", remedy_of(lambda: smelt.load(tmp_path / name)))
    assert found is not None
    smelt.load(found[1], engine="reference")(PIXELS)
    assert "does not exist" in remedy_of(lambda: smelt.load(tmp_path / "none" / "digits.onnx"))


def test_a_folder_names_the_model_in_it(tmp_path: Path) -> None:
    remedy_of(lambda: smelt.load(tmp_path))
    shutil.copy(DIGITS, tmp_path / "digits.onnx")
    with pytest.raises(FileError, match="is a folder"):
        smelt.load(tmp_path)
    smelt.load(remedy_of(lambda: smelt.load(tmp_path)).removeprefix("give "), engine="reference")(PIXELS)
    (tmp_path / "saved_model.pb").touch()
    assert "--saved-model" in remedy_of(lambda: smelt.load(tmp_path))


def test_a_missing_output_folder_is_found_before_anything_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = smelt.load(DIGITS)
    target = tmp_path / "not there" / "digits.smelt"
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "_to_stored", lambda *_: pytest.fail("compiled first"))
        remedy = remedy_of(lambda: model.save(target))
    subprocess.run(shlex.split(remedy), check=True)
    model.save(target)
    assert np.array_equal(smelt.load(target)(PIXELS)["probabilities"], model(PIXELS)["probabilities"])


def test_a_model_of_another_engine_says_how_to_save_it(tmp_path: Path) -> None:
    model = smelt.load(DIGITS, engine="reference")
    assert 'engine="native"' in remedy_of(lambda: model.save(tmp_path / "digits.smelt"))


@pytest.mark.parametrize("kept", [1000, 60, 7])
def test_a_truncated_file_says_so(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "short.onnx"
    path.write_bytes(DIGITS.read_bytes()[:kept])
    with pytest.raises(SmeltError, match="truncated"):
        smelt.load(path)
    assert "again" in remedy_of(lambda: smelt.load(path))


# ---- bytes and open files ----


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, io.BytesIO], ids=lambda each: each.__name__)
def test_models_load_from_bytes_and_open_files(wrap: Callable[[bytes], Any]) -> None:
    expected = smelt.load(DIGITS, engine="reference")(PIXELS)["probabilities"]
    model = smelt.load(wrap(DIGITS.read_bytes()), engine="reference")
    assert np.array_equal(model(PIXELS)["probabilities"], expected)


def test_every_format_is_known_by_its_content(tmp_path: Path) -> None:
    assert np.array_equal(
        smelt.load(TEXT.encode(), engine="reference")(np.arange(3.0, dtype="f4"))["result0"], [0, 1, 2]
    )
    model = smelt.load(DIGITS)
    bundle = model.serialize()
    assert np.array_equal(smelt.load(bundle)(PIXELS)["probabilities"], model(PIXELS)["probabilities"])
    with DIGITS.open("rb") as file:
        assert format_of(file.read()) == ".onnx"
    assert format_of(b"GGUF\x03\0\0\0") == ".gguf"
    for data in (b"PK\x03\x04" + bytes(99), b"\x89HDF\r\n\x1a\n", bytes(4) + b"TFL3"):
        with pytest.raises(UnsupportedError):
            smelt.load(data)
    with pytest.raises(FileError, match="no model"):
        smelt.load(3)  # type: ignore[arg-type]


def test_artifacts_of_jax_export_and_bytecode_load_from_bytes() -> None:
    jax = pytest.importorskip("jax")
    export = pytest.importorskip("jax.export")
    made = export.export(jax.jit(lambda x: x * 2 + 1))(jax.ShapeDtypeStruct((3,), np.float32))
    for data, suffix in ((bytes(made.serialize()), ".jaxexport"), (made.mlir_module_serialized, ".mlirbc")):
        assert format_of(data) == suffix
        (result,) = smelt.load(data, engine="reference")(np.arange(3, dtype=np.float32)).values()
        assert np.array_equal(result, [1, 3, 5])


def test_the_temporary_file_lives_as_long_as_the_model() -> None:
    model = smelt.load(DIGITS.read_bytes(), engine="reference")
    path = model._source
    assert path is not None
    assert path.exists()
    model(PIXELS)
    del model
    assert not path.parent.exists()
