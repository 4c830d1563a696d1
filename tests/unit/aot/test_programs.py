"""Kinds of programs as executables: control flow, data-dependent sizes, broadcasts; other machines under qemu.

`apt-get install qemu-user-static` brings the emulators; onnxruntime is the oracle.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from smelt.dtype import Array
from tests import onnx_oracle
from tests.unit.aot.test_executable import DIGITS, compile_model, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runs executables for Linux")
ON_X86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs executables for x86_64-linux")
EMULATORS = {"aarch64-linux": "aarch64", "armv7-linux": "arm", "riscv64-linux": "riscv64"}


def control_flow(path: Path) -> Path:
    """If, Loop, NonZero and a sum whose operands may be broadcast against each other."""
    onnx = pytest.importorskip("onnx")
    make, types = onnx.helper, onnx.TensorProto
    rows = ["N", 4]

    def value(name: str, element: int, shape: list[object]) -> object:
        return make.make_tensor_value_info(name, element, shape)

    square = make.make_graph([make.make_node("Mul", ["x", "x"], ["a"])], "then", [], [value("a", types.FLOAT, rows)])
    negate = make.make_graph([make.make_node("Neg", ["x"], ["b"])], "else", [], [value("b", types.FLOAT, rows)])
    body = make.make_graph(
        [make.make_node("Add", ["v", "one"], ["v_out"]), make.make_node("Identity", ["go"], ["go_out"])],
        "body",
        [value("i", types.INT64, []), value("go", types.BOOL, []), value("v", types.FLOAT, rows)],
        [value("go_out", types.BOOL, []), value("v_out", types.FLOAT, rows)],
    )
    nodes = [
        make.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        make.make_node("Greater", ["sum", "zero"], ["positive"]),
        make.make_node("If", ["positive"], ["y"], then_branch=square, else_branch=negate),
        make.make_node("Loop", ["count", "", "y"], ["z"], body=body),
        make.make_node("Add", ["z", "other"], ["total"]),
        make.make_node("NonZero", ["total"], ["where"]),
        make.make_node("Cast", ["total"], ["half"], to=types.FLOAT16),
    ]
    inputs = [value("x", types.FLOAT, rows), value("count", types.INT64, []), value("other", types.FLOAT, ["M", 4])]
    outputs = [
        value("total", types.FLOAT, ["K", 4]),
        value("where", types.INT64, [2, "W"]),
        value("half", types.FLOAT16, ["K", 4]),
    ]
    numbers = [onnx.numpy_helper.from_array(np.float32(i), name) for i, name in enumerate(("zero", "one"))]
    graph = make.make_graph(nodes, "g", inputs, outputs, numbers)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)
    return path


def call(program: Path, folder: Path, inputs: dict[str, Array], outputs: list[str], *emulator: str) -> list[Array]:
    command = [*emulator, str(program)]
    for name, array in inputs.items():
        np.save(folder / f"{name}.npy", array)
        command += ["--input", f"{name}={folder / name}.npy"]
    for name in outputs:
        command += ["--output", f"{name}={folder / name}.npy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [np.load(folder / f"{name}.npy") for name in outputs]


def check_control_flow(program: Path, model: Path, folder: Path, seed: int, *emulator: str) -> None:
    session = onnx_oracle.session(str(model))
    generator = np.random.default_rng(seed)
    for n, m, count in ((3, 3, 5), (3, 1, 2), (1, 4, 0), (2, 2, 0)):
        inputs = {
            "x": generator.standard_normal((n, 4)).astype(np.float32),
            "count": np.array(count),
            "other": np.zeros((m, 4), np.float32),
        }
        found = call(program, folder, inputs, ["total", "where", "half"], *emulator)
        for got, want in zip(found, session.run(None, inputs), strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"seed {seed}")


@ON_X86_64
def test_control_flow_data_dependent_sizes_and_broadcasts(tmp_path: Path, seed: int) -> None:
    model = control_flow(tmp_path / "control.onnx")
    program = compile_model(model, tmp_path / "control", "--target", "x86_64-linux")
    check_control_flow(program, model, tmp_path, seed)
    np.save(tmp_path / "other.npy", np.zeros((3, 4), np.float32))
    np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    given: list[object] = []
    for name, text in (("x", tmp_path / "x.npy"), ("other", tmp_path / "other.npy"), ("count", "1")):
        given += ["--input", f"{name}={text}"]
    done = run(program, *given)
    assert done.returncode == 1
    assert "error control.onnx (Add/total): " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("target", EMULATORS)
def test_other_machines_under_qemu(target: str, tmp_path: Path, seed: int) -> None:
    emulator = shutil.which(f"qemu-{EMULATORS[target]}-static")
    if emulator is None:
        pytest.skip("no emulator: apt-get install qemu-user-static")
    model = control_flow(tmp_path / "control.onnx")
    program = compile_model(model, tmp_path / "control", "--target", target)
    check_control_flow(program, model, tmp_path, seed, emulator)
    digits = compile_model(DIGITS, tmp_path / "digits", "--target", target, "--optimize", "size", "--threads", "0")
    done = subprocess.run([emulator, digits, "--selftest"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pixels = np.random.default_rng(seed).random((5, 64), np.float32) * 16
    (got,) = call(digits, tmp_path, {"pixels": pixels}, ["probabilities"], emulator)
    (want,) = onnx_oracle.session(DIGITS).run(None, {"pixels": pixels})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6, err_msg=f"seed {seed}")


@pytest.mark.slow
def test_int8_dot_products_of_arm_give_the_same_bits(tmp_path: Path) -> None:
    """One binary on processors with i8mm, with dotprod alone and with neither: the outputs are those of here."""
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("no emulator: apt-get install qemu-user-static")
    program = compile_model(DIGITS, tmp_path / "model", "--target", "aarch64-linux", "--precision", "int8")
    for processor, version in (("max", "i8mm"), ("cortex-a76", "dotprod"), ("cortex-a53", "baseline")):
        command = [emulator, "-cpu", processor, str(program)]
        done = subprocess.run([*command, "--selftest"], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (0, "probabilities: equal\n"), f"{processor} {done.stderr}"
        done = subprocess.run([*command, "--bench", "0.01"], capture_output=True, text=True, timeout=120, check=True)
        assert json.loads(done.stdout)["version"] == version


@ON_X86_64
@pytest.mark.slow
def test_windows_under_wine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wine = shutil.which("wine64") or shutil.which("wine64", path="/usr/lib/wine")
    if wine is None:
        pytest.skip("no wine: apt-get install wine64")
    monkeypatch.setenv("WINEPREFIX", str(tmp_path / "prefix"))
    monkeypatch.setenv("WINEDEBUG", "-all")
    program = compile_model(DIGITS, tmp_path / "digits.exe", "--target", "x86_64-windows")
    done = subprocess.run([wine, program, "--selftest"], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["probabilities:", "equal"]), done.stderr


@ON_X86_64
@pytest.mark.slow
@pytest.mark.parametrize(("precision", "mebibytes"), [("int8", 16), ("f32", 32)])
def test_mobilenet_runs_in_little_address_space(precision: str, mebibytes: int, tmp_path: Path) -> None:
    model = Path(os.environ.get("SMELT_MODELS", "")) / "mobilenetv2_b1.onnx"
    if not model.is_file():
        pytest.skip("no benchmark models: set SMELT_MODELS")
    options = ("--optimize", "size", "--threads", "0", "--precision", precision, "--target", "x86_64-linux")
    program = compile_model(model, tmp_path / "model", *options)
    limited = f"ulimit -v {mebibytes << 10}; exec {program} --selftest"
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@ON_X86_64
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "triple"), [("x86_64-linux", "x86_64-linux-gnu"), ("aarch64-linux", "aarch64-linux-musl")]
)
def test_voice_activity_as_a_stream(target: str, triple: str, tmp_path: Path, seed: int) -> None:
    """The example in C, chunk by chunk, against onnxruntime on the original file."""
    package = find_spec("silero_vad")  # importing it would import torch
    if package is None or package.origin is None:
        pytest.skip("pip install --no-deps silero-vad")
    model = Path(package.origin).parent / "data" / "silero_vad.onnx"
    sizes = ("--static", "sr=16000", "-s", "n0=1", "-s", "n1=576", "-s", "n2=1", "--threads", "0")
    compile_model(model, tmp_path / "libvad.a", "--target", target, *sizes)
    emulator = [] if target == "x86_64-linux" else [shutil.which("qemu-aarch64-static")]
    if emulator == [None]:
        pytest.skip("no emulator: apt-get install qemu-user-static")
    source = Path(__file__).parents[3] / "examples" / "edge" / "vad.c"
    build = (sys.executable, "-m", "ziglang", "cc", f"--target={triple}", "-I.", source, "libvad.a", "-o", "vad")
    subprocess.run([*build, "-lpthread", *(("-static",) if emulator else ())], cwd=tmp_path, check=True, timeout=300)
    generator = np.random.default_rng(seed)
    tone = np.sin(np.arange(512 * 12) / 16000 * 2 * np.pi * (150 + 80 * np.sin(np.arange(512 * 12) / 900)))
    samples = (8000 * tone + 500 * generator.standard_normal(tone.shape)).astype(np.int16)
    command = [*map(str, emulator), str(tmp_path / "vad")]
    done = subprocess.run(command, input=samples.tobytes(), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    got = [float(line.split()[1]) for line in done.stdout.splitlines()]
    session = onnx_oracle.session(str(model))
    context, state, want = np.zeros(64, np.float32), np.zeros((2, 1, 128), np.float32), []
    for chunk in (samples.astype(np.float32) / 32768).reshape(-1, 512):
        whole = np.concatenate([context, chunk])[None]
        probability, state = session.run(None, {"input": whole, "state": state, "sr": np.array(16000)})
        context = whole[0, -64:]
        want.append(float(probability[0, 0]))
    np.testing.assert_allclose(got, want, atol=2e-5, err_msg=f"seed {seed}")
