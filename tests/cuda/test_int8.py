"""int8 GEMM and convolution on tensor cores, run by the emulator: every bit of the sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt import layout
from smelt.device.cuda import TARGETS
from smelt.dtype import Array
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.kernel.build import gemm_simt
from smelt.kernel.build.gemm_simt import TensorSize
from smelt.shape import Shape
from tests.cuda.emulated import EmulatedCuda
from tests.unit.engine.test_quantised_models import ROUND, numbers, quantised
from tests.unit.kernel.test_int8_gemm import bytes_of

# groups, groups of the panels, rows, k, columns
PRODUCTS = [
    (1, 1, 0, 5, 3),
    (1, 1, 3, 0, 5),
    (1, 1, 1, 1, 1),
    (2, 1, 13, 37, 65),  # k is no multiple of 16: rows are copied byte by byte
    (3, 3, 7, 528, 131),
    (1, 1, 130, 1040, 17),
    (1, 1, 61, 384, 200),
]
SIZES = [(128, 64), (128, 128), (64, 128), (128, 256)]
# feature map, channels, groups, features, window, strides, dilations
WINDOWS = [
    ((9, 11), 16, 1, 7, (3, 3), (1, 1), (1, 1)),
    ((12, 13), 32, 2, 10, (2, 3), (2, 1), (1, 2)),
    ((8, 8), 64, 1, 70, (1, 1), (2, 2), (1, 1)),
    ((17,), 48, 1, 65, (5,), (3,), (2,)),
    ((5, 6, 7), 16, 1, 3, (2, 3, 2), (1, 2, 1), (1, 1, 1)),
]


def product(groups: int, own: int, rows: int, depth: int, columns: int) -> Program:
    f = FuncBuilder("main", [Shape("ui8", groups, rows, depth), Shape("i8", own, depth, columns)])
    said = layout.panels(64, 16)
    panels = f.op("smelt.relayout", f.args[1], layout=said).result
    result = Shape("i32", groups, rows, columns)
    return Program.of(f.func(f.op("smelt.packed_dot", f.args[0], panels, layout=said, result=result).result))


def compiled(programs: list[Program], machine: str) -> list[Any]:
    made = compile_all(programs, TARGETS[machine])
    for each in made:
        assert not isinstance(each, Exception), each
    return list(made)


@pytest.mark.parametrize("machine", ["sm_90", "sm_80"])
@pytest.mark.parametrize("size", SIZES)
def test_sums_are_exact(
    size: tuple[int, int], machine: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_simt, "choose_tile", lambda *given: TensorSize(*size))
    programs = [product(*sizes) for sizes in PRODUCTS]
    assert "smelt_tile<ui8, " in emit_source([plan_program(programs[-1], TARGETS[machine])]).text()
    for sizes, made in zip(PRODUCTS, compiled(programs, machine), strict=True):
        groups, own, rows, depth, columns = sizes
        for extreme in (False, True):
            a, _ = bytes_of(seed, groups, rows, depth, extreme=extreme)
            _, b = bytes_of(seed + 1, own, depth, columns, extreme=extreme)
            expected = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
            np.testing.assert_array_equal(made(a, b)[0].numpy(), expected, err_msg=str(sizes))


@pytest.mark.parametrize("machine", ["sm_90", "sm_80"])
def test_convolutions_are_exact(machine: str, emulated: EmulatedCuda, seed: int) -> None:
    cases = [convolution(*window, seed) for window in WINDOWS]
    programs = [program for program, _ in cases]
    for (program, given), made in zip(cases, compiled(programs, machine), strict=True):
        np.testing.assert_array_equal(made(*given)[0].numpy(), run(program, list(given))[0])


def convolution(
    size: tuple[int, ...],
    channels: int,
    groups: int,
    features: int,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    seed: int,
) -> tuple[Program, tuple[Array, Array]]:
    x, _ = bytes_of(seed, 2, *size, channels)
    _, matrix = bytes_of(seed + 1, groups, int(np.prod(window)) * channels // groups, features // groups)
    each = zip(size, window, strides, dilations, strict=True)
    out = [(size - (window - 1) * hole - 1) // stride + 1 for size, window, stride, hole in each]
    f = FuncBuilder("main", [Shape("ui8", *x.shape), Shape("i8", *matrix.shape)])
    said = layout.panels(64, 16)
    panels = f.op("smelt.relayout", f.args[1], layout=said).result
    taps: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations}
    result = Shape("i32", 2, *out, features)
    made = f.op("smelt.packed_conv", f.args[0], panels, layout=said, result=result, **taps).result
    return Program.of(f.func(made)), (x, matrix)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_quantised_models(kind: type, emulated: EmulatedCuda, seed: int, tmp_path: Path) -> None:
    """The bits of a processor: zero points, biases and requantisation are in the epilogue."""
    random = np.random.default_rng(seed)
    gemm = helper.make_node("Gemm", ["xd", "wd", "bd"], ["r"], transB=1)
    cases: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = [(gemm, (6, 45), (70, 45))]
    for channels, window, groups in ((8, 3, 1), (3, 7, 1), (32, 1, 1), (32, 3, 2), (16, 3, 2)):
        taps: dict[str, Any] = {"group": groups, "pads": [window // 2] * 4, "strides": [1, 2]}
        node = helper.make_node("Conv", ["xd", "wd", "bd"], ["r"], **taps)
        cases.append((node, (2, channels, 11, 9), (16, channels // groups, window, window)))
    for i, (node, sizes, of_weights) in enumerate(cases):
        x = random.normal(size=sizes).astype(np.float32)
        w = random.integers(-127, 128, of_weights).astype(np.int8)
        weights = {"w": w, **numbers(random, kind, of_weights[0])}
        arrays = [numpy_helper.from_array(np.asarray(each), name) for name, each in weights.items()]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
        results = [helper.make_tensor_value_info("y", TensorProto.UINT8, None)]
        graph = helper.make_graph([*quantised("w", "b"), node, ROUND], "g", inputs, results, arrays)
        path = tmp_path / f"{i}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
        want, got = (smelt.load(path, device=each, engine="native").run({"x": x})["y"] for each in ("cpu", "cuda"))
        np.testing.assert_array_equal(got, want, err_msg=str(sizes))
