"""What an installation needs: declared packages are those that are imported, the lock file pins them by hash, and an
installation of NumPy and ml_dtypes alone loads and runs a bundle."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import smelt
from smelt.device import cpu

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PEERS = {"onnxruntime", "openvino", "torch", "ncnn"}  # what a user compares with
# where the package has another name
MODULES = {
    "pillow": "PIL",
    "cuda-bindings": "cuda",
    "ml-dtypes": "ml_dtypes",
    "jax": "jaxlib",
    "grpcio": "grpc",
    "protobuf": "google",
    "huggingface-hub": "huggingface_hub",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
}
INDIRECT = {"ziglang", "httptools", "wsproto", "nvidia-cuda-nvrtc"}  # run as a program; behind uvicorn, cuda-bindings


def package(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower().replace("_", "-")


def test_every_package_that_is_imported_is_declared_and_the_other_way_round():
    extras = {name: needs for name, needs in PROJECT["optional-dependencies"].items() if name != "dev"}
    declared = {package(each) for needs in [PROJECT["dependencies"], *extras.values()] for each in needs}
    imported = set()
    for path in (ROOT / "smelt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                imported.add(node.module.partition(".")[0])
    imported -= {*sys.stdlib_module_names, "smelt", *PEERS}
    assert imported | INDIRECT == {MODULES.get(name, name) for name in declared}


def test_the_lock_file_pins_what_is_declared():
    text = (ROOT / "requirements-dev.lock").read_text("utf-8")
    assert "://" not in text, "an index or a file of this machine"
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert all(re.match(r"[a-z0-9.-]+==\S+", block) and "--hash=sha256:" in block for block in blocks)
    pinned = {package(block) for block in blocks}
    wanted = {package(each) for each in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]}
    assert wanted <= pinned, "make lock"


BARE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {*sys.stdlib_module_names, "smelt", "numpy", "ml_dtypes"} and not top.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import numpy as np
import smelt

bundle, damaged, onnx = sys.argv[1:]
model = smelt.load(bundle)
print(model, model(np.zeros((2, 64), np.float32))["probabilities"].shape)

def refusal(call):
    try:
        call()
    except smelt.SmeltError as error:
        print(type(error).__name__)

refusal(lambda: model(np.zeros((2, 63), np.float32)))
refusal(lambda: smelt.load(damaged))
refusal(lambda: smelt.load("absent.smelt"))
refusal(lambda: smelt.load(onnx))
"""


@pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")
def test_numpy_and_ml_dtypes_are_enough_for_a_bundle(tmp_path: Path):
    """No ziglang, no compiler on the PATH, nothing in the cache, no reader of models."""
    onnx = ROOT / "smelt" / "assets" / "digits.onnx"
    bundle, damaged = tmp_path / "model.smelt", tmp_path / "damaged.smelt"
    smelt.load(onnx).save(bundle)
    damaged.write_bytes(bundle.read_bytes()[:-64])
    kept = {name: value for name, value in os.environ.items() if name not in ("SMELT_CC", "SMELT_BUNDLE_KEYS")}
    bare = kept | {"PATH": "", "SMELT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", BARE, str(bundle), str(damaged), str(onnx)]
    done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "<digits(pixels: f32[batch, 64]) on native> (2, 10)"
    assert done.stdout.split("\n")[1:-1] == ["ShapeError", "FileError", "FileError", "MissingPackageError"]
