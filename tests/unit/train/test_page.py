"""The page on training: its first script trains and exports, and the commands after it run on what it wrote."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import pytest
import typer

from smelt.cli.main import app
from smelt.engine.native import NativeEngine
from smelt.read import safetensors
from tests.unit.serve.client import model, serving

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text("utf-8")


@pytest.mark.skipif(NativeEngine().missing() is not None, reason="no compiler")
def test_from_zero_to_a_served_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    script = re.search(r"```python\n(.*?)```", PAGE, re.S)
    commands = re.search(r"```sh\n(.*?)```", PAGE, re.S)
    assert script is not None
    assert commands is not None
    path = tmp_path / "script.py"
    path.write_text(script[1])
    module = ModuleType("page_of_training")
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    module.__file__ = str(path)
    exec(compile(script[1], str(path), "exec", dont_inherit=True), vars(module))
    *lines, serve = commands[1].splitlines()
    for line in lines:
        typer.main.get_command(app).main(shlex.split(line)[1:], standalone_mode=False)
    assert "digits.smelt" in capsys.readouterr().out
    images = np.load("images.npy")
    (wanted,) = onnxruntime.InferenceSession("digits.onnx").run(None, {"pixels": images})
    tensor = {"name": "pixels", "shape": list(images.shape), "datatype": "FP32", "data": images.ravel().tolist()}
    assert serve == "smelt serve digits.smelt"
    with serving(model(tmp_path / "digits.smelt", engine="native")) as client:
        reply = client.post("/v2/models/digits/infer", {"inputs": [tensor]}).json
    np.testing.assert_allclose(reply["outputs"][0]["data"], wanted.ravel(), rtol=1e-4, atol=1e-6)
    names = sorted(safetensors.read(tmp_path / "weights.safetensors"))
    assert names == sorted(safetensors.read(tmp_path / "digits.safetensors"))
    assert names == ["head.bias", "head.weight", "hidden.bias", "hidden.weight"]
