"""Real ONNX models from public packages, at several sizes, against onnxruntime; errors against a run in double.

The packages are listed in tests/models.txt. A model whose package is not installed is skipped, and says so.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.dtype import Array
from smelt.ir.interpret import run
from smelt.ir.verify import verify
from smelt.model import read
from tests.doubles import to_double

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore")

SILERO = {"input": (1, 576), "state": (2, 1, 128), "sr": 16000}
SILERO_TWO = {"input": (2, 576), "state": (2, 2, 128), "sr": 16000}
SILERO_8K = {"input": (3, 288), "state": (2, 3, 128), "sr": 8000}
STREAM = {"h": (1, 1, 128), "c": (1, 1, 128)}
MODELS: list[tuple[str, str, list[dict[str, Any]]]] = [
    ("silero_vad", "data/silero_vad.onnx", [SILERO, SILERO_TWO, SILERO_8K]),
    ("silero_vad", "data/silero_vad_16k_op15.onnx", [SILERO, SILERO_TWO]),
    ("silero_vad", "data/silero_vad_half.onnx", [SILERO, SILERO_TWO]),
    ("silero_vad", "data/silero_vad_op18_ifless.onnx", [SILERO, SILERO_TWO, SILERO_8K]),
    ("silero_vad", "data/silero_vad_openvino_16k.onnx", [SILERO]),
    ("silero_vad", "data/silero_vad_16k_sequence.onnx", [STREAM | {"input": (n, 576)} for n in (1, 4)]),
    ("magika", "models/standard_v3_3/model.onnx", [{"bytes": (1, 2048)}, {"bytes": (3, 2048)}]),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", [{"x": (1, 3, 64, 96)}, {"x": (2, 3, 96, 32)}]),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", [{"x": (1, 3, 48, 64)}, {"x": (2, 3, 48, 104)}]),
    (
        "rapidocr_onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        [{"x": (1, 3, 48, 192)}, {"x": (2, 3, 48, 192)}],
    ),
]


def model_file(package: str, name: str) -> Path:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed: make venv installs tests/models.txt")
    path = Path(found.submodule_search_locations[0]) / name
    assert path.is_file(), f"{package} has no {name}"
    return path


def feed(session: Any, sizes: dict[str, Any], random: np.random.Generator) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for port in session.get_inputs():
        given = sizes[port.name]
        if isinstance(given, int):
            inputs[port.name] = np.array(given, np.int64)
        elif "float" in port.type:
            inputs[port.name] = (0.3 * random.standard_normal(given)).astype(np.float32)
        else:
            inputs[port.name] = random.integers(0, 256, given).astype(np.int32 if "32" in port.type else np.int64)
    return inputs


@pytest.mark.parametrize("case", range(len(MODELS)), ids=[Path(name).stem for _, name, _ in MODELS])
def test_real_models_agree_with_onnxruntime(case: int, seed: int) -> None:
    package, name, variants = MODELS[case]
    path = model_file(package, name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(seed)
    model = smelt.load(path)
    for sizes in variants:
        inputs = feed(session, sizes, random)
        expected = dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))
        actual = model.run(inputs)
        assert set(actual) == set(expected)
        for output, array in actual.items():
            other = expected[output]
            assert (array.shape, array.dtype) == (other.shape, other.dtype)
            scale = np.abs(other).max(initial=1e-2)  # onnxruntime's logistic is 0 where the true one is below 1e-8
            np.testing.assert_allclose(array, other, rtol=1e-3, atol=1e-4 * scale, err_msg=f"{output} at {sizes}")


@pytest.mark.parametrize(
    ("package", "name", "sizes"),
    [
        ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (2, 3, 48, 192)}),
        ("silero_vad", "data/silero_vad_openvino_16k.onnx", SILERO),
        ("magika", "models/standard_v3_3/model.onnx", {"bytes": (2, 2048)}),
    ],
)
def test_errors_are_at_most_four_times_onnxruntimes(package: str, name: str, sizes: dict[str, Any], seed: int) -> None:
    path = model_file(package, name)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = feed(session, sizes, np.random.default_rng(seed))
    theirs = session.run(None, inputs)
    ours = list(smelt.load(path).run(inputs).values())
    program, weights = read(path)
    verify(program)
    names = [str(attrs.get("smelt.weight") or attrs["smelt.name"]) for attrs in program.main.arg_attrs]
    args = [_double(inputs[key]) if key in inputs else _double(weights[key].numpy()) for key in names]
    for truth, mine, other in zip(run(to_double(program), args), ours, theirs, strict=True):
        floor = 1e-7 * np.abs(truth).max(initial=1e-9)
        assert np.abs(mine - truth).max() <= 4 * np.abs(other - truth).max() + floor


def _double(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype == np.float32 else array
