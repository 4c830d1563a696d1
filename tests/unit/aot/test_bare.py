"""Models as C for machines without an operating system, on an emulated Cortex-M4F.

`apt-get install qemu-system-arm` brings the emulator.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from smelt.aot.bare import Object, Sizes
from smelt.cli.main import app
from smelt.device.cross import LANGUAGE
from smelt.dtype import Array
from smelt.errors import MemoryLimitError, UnsupportedError
from tests import onnx_oracle
from tests.unit.aot.test_executable import DIGITS, compile_model

EXAMPLE = Path(__file__).parents[3] / "examples" / "edge" / "cortex-m"
TARGET = ("--target", "thumbv7em-none", "--optimize", "size")
COMPILER = (sys.executable, "-m", "ziglang", "cc", "--target=thumb-freestanding-eabihf", "-mcpu=cortex_m4", "-w")


def build_image(folder: Path, *sources: Path) -> Path:
    """A program of the example's start and linker script: more than 256 KiB of flash or 64 KiB of RAM do not link."""
    flags = ("-Os", "-ffreestanding", *LANGUAGE, "-ffunction-sections", "-fdata-sections", f"-I{folder}")
    script = (f"-Wl,-T,{EXAMPLE / 'mps2.ld'}", "-Wl,--gc-sections", "-Wl,-e,reset")
    command = [*COMPILER, *flags, *map(str, sources), str(EXAMPLE / "start.c"), *script, "-o", str(folder / "image")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "image"


def run_image(image: Path) -> str:
    emulator = shutil.which("qemu-system-arm")
    if emulator is None:
        pytest.skip("no emulator: apt-get install qemu-system-arm")
    machine = ("-M", "mps2-an386", "-display", "none", "-monitor", "none", "-serial", "none")
    command = [emulator, *machine, "-semihosting-config", "enable=on,target=native", "-kernel", str(image)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def harness(name: str, array: Array, count: int) -> str:
    """A C program that calls a model once and prints the bits of its output."""
    values = ", ".join(float(value).hex() + "f" for value in array.ravel())
    sizes = ", ".join(map(str, array.shape))
    return f"""
#include "{name}.h"
void print(const char *text);
static float in_data[] = {{{values}}}, out_data[{count}];
int main(void) {{
  smelt_model *model;
  smelt_tensor in = {{SMELT_F32, {array.ndim}, {{{sizes}}}, in_data, sizeof in_data}};
  smelt_tensor out = {{.data = out_data, .bytes = sizeof out_data}};
  if ({name}_create(0, &model)) return print(smelt_error()), 1;
  for (int call = 0; call < 2; call++)
    if (smelt_model_call(model, &in, &out)) return print(smelt_error()), 1;
  for (int i = 0; i < {count}; i++) {{
    unsigned bits;
    __builtin_memcpy(&bits, &out_data[i], 4);
    char text[10];
    for (int d = 0; d < 8; d++) text[d] = "0123456789abcdef"[bits >> (28 - 4 * d) & 15];
    text[8] = '\\n', text[9] = 0;
    print(text);
  }}
  return 0;
}}
"""


def call(folder: Path, name: str, array: Array, shape: tuple[int, ...]) -> Array:
    (folder / "main.c").write_text(harness(name, array, int(np.prod(shape))))
    said = run_image(build_image(folder, folder / "main.c", folder / f"{name}.c"))
    return np.array([struct.unpack(">f", bytes.fromhex(line))[0] for line in said.split()], np.float32).reshape(shape)


def test_the_example_fits_in_little_flash_and_memory(tmp_path: Path) -> None:
    compile_model(DIGITS, tmp_path / "digits.c", *TARGET, "-s", "batch=1")
    image = build_image(tmp_path, EXAMPLE / "main.c", tmp_path / "digits.c")
    sizes = Object(image.read_bytes()).sizes()
    assert sizes.flash < 64 << 10
    assert sizes.ram < 16 << 10  # with 8 KiB of stack
    said = run_image(image)
    assert "image 0: 2 (100 %)\nimage 1: 3 (100 %)\n" in said
    assert "expected f32[1, 64]\n  got      f32[1, 63]" in said


def convolutions(path: Path, seed: int) -> Path:
    """Convolutions, one of them depthwise, pooling and a dense layer."""
    onnx = pytest.importorskip("onnx")
    make, types = onnx.helper, onnx.TensorProto
    generator = np.random.default_rng(seed)
    shapes = {"w0": (8, 1, 3, 3), "w1": (8, 1, 3, 3), "w2": (12, 8, 1, 1), "w3": (12, 5), "b": (5,)}
    weights = [
        onnx.numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32) / 3, name)
        for name, shape in shapes.items()
    ]
    nodes = [
        make.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        make.make_node("Relu", ["a"], ["c"]),
        make.make_node("Conv", ["c", "w1"], ["d"], group=8, strides=[2, 2]),
        make.make_node("Conv", ["d", "w2"], ["e"]),
        make.make_node("Sigmoid", ["e"], ["f"]),
        make.make_node("GlobalAveragePool", ["f"], ["g"]),
        make.make_node("Flatten", ["g"], ["h"]),
        make.make_node("Gemm", ["h", "w3", "b"], ["y"]),
    ]
    inputs = [make.make_tensor_value_info("x", types.FLOAT, [1, 1, 12, 10])]
    outputs = [make.make_tensor_value_info("y", types.FLOAT, [1, 5])]
    graph = make.make_graph(nodes, "g", inputs, outputs, weights)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_convolutions_on_a_microcontroller(tmp_path: Path, seed: int) -> None:
    model = convolutions(tmp_path / "model.onnx", seed)
    image = np.random.default_rng(seed).standard_normal((1, 1, 12, 10)).astype(np.float32)
    compile_model(model, tmp_path / "net.c", *TARGET)
    (want,) = onnx_oracle.session(str(model)).run(None, {"x": image})
    np.testing.assert_allclose(call(tmp_path, "net", image, (1, 5)), want, rtol=1e-4, atol=1e-5, err_msg=f"seed {seed}")


def test_sizes_and_memory_are_checked_before_anything_is_built(tmp_path: Path) -> None:
    command = ["compile", DIGITS, "--standalone", *TARGET, "-o", str(tmp_path / "digits.c")]
    error = CliRunner().invoke(app, command).exception
    assert isinstance(error, UnsupportedError)
    assert (error.got, error.remedy) == ("dynamic dimensions: batch", "--size batch=1")
    error = CliRunner().invoke(app, [*command, "--weights", "separate"]).exception
    assert isinstance(error, UnsupportedError)
    assert error.remedy == "--weights embedded"
    error = CliRunner().invoke(app, [*command, "-s", "batch=1000", "--memory-limit", "64KB"]).exception
    assert isinstance(error, MemoryLimitError)
    assert "weights" not in str(error.got)
    assert not list(tmp_path.iterdir())


def test_sizes_of_an_object_made_by_hand() -> None:
    """An ELF file as its specification has it: a header of 52 bytes, sections, their names, and one symbol."""
    names = b"\0.text\0.data\0.bss\0.ARM.exidx\0.comment\0.names\0.symbols\0arena\0"
    symbol = bytes(16) + struct.pack("<IIIBBH", names.index(b"arena"), 0, 640, 1, 0, 3)
    # Name, type (1: content, 2: symbols, 8: zeros), flags (1: written, 2: loaded, 4: code), bytes, link.
    rows: list[tuple[str, int, int, int, int]] = [
        ("", 0, 0, 0, 0), (".text", 1, 6, 100, 0), (".data", 1, 3, 20, 0), (".bss", 8, 3, 700, 0),
        (".ARM.exidx", 1, 2, 8, 0), (".comment", 1, 0, 50, 0), (".names", 3, 0, len(names), 0),
        (".symbols", 2, 0, len(symbol), 6),
    ]  # fmt: skip
    places = {".names": 60, ".symbols": 60 + len(names)}
    start = 60 + len(names) + len(symbol)
    table = b"".join(
        struct.pack(
            "<10I", names.index(name.encode() + b"\0"), kind, flags, 0, places.get(name, 52), size, link, 0, 1, 0
        )
        for name, kind, flags, size, link in rows
    )
    header = bytes(32) + struct.pack("<I", start) + bytes(10) + struct.pack("<HHH", 40, len(rows), 6)
    found = Object(header + bytes(60 - len(header)) + names + symbol + table)
    assert found.sizes() == Sizes(100 + 20, 20 + 700)
    assert found.symbol("arena") == 640
    with pytest.raises(KeyError):
        found.symbol("text")
