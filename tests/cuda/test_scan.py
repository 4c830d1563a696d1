"""Long scans on a GPU: totals of chunks, their scan, and the chunks from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import smelt
from smelt.device import cpu
from smelt.dtype import Array, dtype
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.build import reduce, scan_simt
from smelt.read.onnx import read
from tests.cuda.emulated import EmulatedCuda


def scanning(shape: str, dim: int, element: str, body: str, carry: str, reverse: bool) -> Program:
    """A scan with one carry: `body` computes %r, what is put out, and %n, the next carry, of %a and the carry %c."""
    whole, one = f"tensor<{shape}x{element}>", f"tensor<{carry}{element}>"
    return parse(
        f"""func.func @main(%x: {whole}, %i: {one}) -> ({whole}, {one}) {{
  %0:2 = "chlo.scan"(%x, %i) <{{dimension = {dim} : i64, is_reverse = {str(reverse).lower()},
      operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>}}> ({{
  ^bb0(%a: {one}, %c: {one}):
    {body}
    stablehlo.return %r, %n : {one}, {one}
  }}) : ({whole}, {one}) -> ({whole}, {one})
  return %0#0, %0#1 : {whole}, {one}
}}""".replace("TYPE", one)
    )


SUM = "%n = stablehlo.add %a, %c : TYPE\n    %r = stablehlo.add %a, %c : TYPE"
EXCLUSIVE = "%n = stablehlo.add %c, %a : TYPE\n    %r = stablehlo.negate %c : TYPE"
LARGEST = "%n = stablehlo.maximum %c, %a : TYPE\n    %r = stablehlo.maximum %c, %a : TYPE"
OTHER = "%r = stablehlo.subtract %a, %c : TYPE\n    %n = stablehlo.add %r, %a : TYPE"


def launches(program: Program, device: EmulatedCuda) -> int:
    return emit_source([plan_program(program, device.target())]).text().count("__global__ void")


@pytest.mark.parametrize("body", [SUM, EXCLUSIVE, LARGEST, OTHER])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((40,), 0), ((2500,), 0), ((3, 700), 1), ((2100, 2), 0), ((0,), 0)])
def test_scans(body: str, reverse: bool, shape: tuple[int, ...], dim: int, emulated: EmulatedCuda, seed: int) -> None:
    """Integers to the bit; sums of floats up to their order. What is no reduction runs serially."""
    random = np.random.default_rng(seed)
    around = [size for d, size in enumerate(shape) if d != dim]
    carry, text = "".join(f"{size}x" for size in around), "x".join(map(str, shape))
    for element in ("i32", "f32"):
        program = scanning(text, dim, element, body, carry, reverse)
        is_long = shape[dim] > scan_simt.CHUNK and body != OTHER
        assert launches(program, emulated) == (3 if is_long else 1)
        given: list[Any] = [random.standard_normal(shape) * 9, random.standard_normal(around)]
        given = [np.asarray(each).astype(np.int32 if element == "i32" else np.float32) for each in given]
        (made,) = compile_all([program], emulated.target())
        assert not isinstance(made, SmeltError), made
        for got, want in zip(made(*given), run(program, given), strict=True):
            bound = 0 if element == "i32" or body == LARGEST else 1e-4 * np.abs(given[0]).sum()
            np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=bound)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and chunks that are small."""
    for module in (reduce, scan_simt):
        monkeypatch.setattr(module, "PART", 128)
    monkeypatch.setattr(scan_simt, "CHUNK", 256)
    monkeypatch.setattr(scan_simt, "TOTALS", 256)


@pytest.mark.usefixtures("small")
def test_dynamic_lengths(emulated: EmulatedCuda, seed: int) -> None:
    """Of the longest row the totals are scanned in several turns."""
    random = np.random.default_rng(seed)
    made = smelt.compile(lambda x: x.cumsum("n"), "i32[b=B, n=N]", device="cuda", engine="native")
    for sizes in ((1, 0), (0, 5), (2, 16), (3, 257), (2, 700), (1, 33_000)):
        x: Array = random.integers(-99, 99, sizes).astype(np.int32)
        np.testing.assert_array_equal(made(x).numpy(), np.cumsum(x, 1, dtype=np.int32))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("element", ["f32", "f16", "i64"])
def test_running_sums_of_onnx(element: str, emulated: EmulatedCuda, tmp_path: Path, seed: int) -> None:
    """Floats are carried in f64: rounded once, in whatever order parts are added."""
    random, kind = np.random.default_rng(seed), dtype(element).numpy
    port = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), ["N", 2]) for name in "xy"]
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [0])
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], exclusive=1, reverse=1)
    graph = helper.make_graph([node], "graph", port[:1], port[1:], [axis])
    path = tmp_path / "model.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    program, _ = read(path)
    assert launches(program, emulated) <= 4, "one more fills the carries"
    (made,) = compile_all([program], emulated.target())
    assert not isinstance(made, SmeltError), made
    for length in (0, 1, 2, 700):
        x = random.integers(0, 64, (length, 2)).astype(kind)
        wide = x.astype(np.int64 if element == "i64" else np.float64)
        want = np.flip(np.cumsum(np.flip(wide, 0), 0), 0) - wide
        np.testing.assert_array_equal(made(x)[0].numpy(), want.astype(kind))


def running(shape: tuple[int, ...], axis: int, element: str, op: str, start: str, forward: bool) -> Program:
    """A cumulative reduction as a window, and a map behind it."""
    whole, one = f"tensor<{'x'.join(map(str, shape))}x{element}>", f"tensor<{element}>"
    sizes = [size if d == axis else 1 for d, size in enumerate(shape)]
    padding = [[0, 0] if d != axis else [size - 1, 0] if forward else [0, size - 1] for d, size in enumerate(shape)]
    return parse(
        f"""func.func @main(%x: {whole}) -> {whole} {{
  %z = stablehlo.constant dense<{start}> : {one}
  %0 = "stablehlo.reduce_window"(%x, %z) ({{
  ^bb0(%a: {one}, %b: {one}):
    %c = stablehlo.{op} %a, %b : {one}
    stablehlo.return %c : {one}
  }}) {{window_dimensions = array<i64: {", ".join(map(str, sizes))}>,
       padding = dense<{padding}> : tensor<{len(shape)}x2xi64>}} : ({whole}, {one}) -> {whole}
  %1 = stablehlo.{"xor" if element == "i1" else "add"} %0, %x : {whole}
  return %1 : {whole}
}}"""
    )


WINDOWS = [
    ((600,), 0, "i32", "add", "0"),
    ((600,), 0, "f32", "add", "0.0"),
    ((2, 530), 1, "bf16", "add", "0.0"),
    ((700, 2), 0, "f32", "maximum", "0xFF800000"),
    ((2, 513, 2), 1, "f64", "add", "0.0"),
    ((600,), 0, "i1", "or", "false"),
    ((700,), 0, "i64", "minimum", str(2**63 - 1)),
    ((600,), 0, "f32", "multiply", "1.0"),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("shape", "axis", "element", "op", "start"), WINDOWS)
@pytest.mark.parametrize("forward", [True, False])
def test_cumulative_windows(
    shape: tuple[int, ...],
    axis: int,
    element: str,
    op: str,
    start: str,
    forward: bool,
    emulated: EmulatedCuda,
    seed: int,
) -> None:
    """Integers and maxima to the bit; sums are rounded once, from f64, as on a CPU. What follows is in the epilogue."""
    program = running(shape, axis, element, op, start, forward)
    assert launches(program, emulated) == 3
    random = np.random.default_rng(seed)
    x: Array = random.standard_normal(shape)
    x = (1 + x / 50 if op == "multiply" else x * (9 if element != "i1" else 1)).astype(dtype(element).numpy)
    if op == "or":
        x &= np.arange(600) == 300
    if op == "maximum":
        x[650, 1] = np.nan
    (made,), (other,) = (compile_all([program], target) for target in (emulated.target(), cpu.target()))
    assert not isinstance(made, SmeltError), made
    assert not isinstance(other, SmeltError), other
    got, want = made(x)[0].numpy(), np.asarray(other(x)[0])
    if element == "f64":
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(x).sum())
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("element", "op"), [("f32", "add"), ("f32", "maximum"), ("i32", "add")])
def test_large_windows(element: str, op: str, emulated: EmulatedCuda, seed: int) -> None:
    """A warp for each window, also where it reaches into the padding."""
    start = {"i32": "7", "f32": "-2.0"}[element]
    whole, one = f"tensor<2x3x20x18x{element}>", f"tensor<{element}>"
    for sides, padding in (((20, 18), [0, 0, 0, 0]), ((19, 15), [2, 1, 0, 3])):
        rows, columns = (
            size - side + sum(pair) + 1
            for size, side, pair in zip((20, 18), sides, (padding[:2], padding[2:]), strict=True)
        )
        result = f"tensor<2x3x{rows}x{columns}x{element}>"
        program = parse(
            f"""func.func @main(%x: {whole}) -> {result} {{
  %z = stablehlo.constant dense<{start}> : {one}
  %0 = "stablehlo.reduce_window"(%x, %z) ({{
  ^bb0(%a: {one}, %b: {one}):
    %c = stablehlo.{op} %a, %b : {one}
    stablehlo.return %c : {one}
  }}) {{window_dimensions = array<i64: 1, 1, {sides[0]}, {sides[1]}>,
       padding = dense<[[0, 0], [0, 0], {padding[:2]}, {padding[2:]}]> : tensor<4x2xi64>}}
    : ({whole}, {one}) -> {result}
  return %0 : {result}
}}"""
        )
        assert "smelt_shuffle_down(part" in emit_source([plan_program(program, emulated.target())]).text()
        x = (np.random.default_rng(seed).standard_normal((2, 3, 20, 18)) * 9).astype(dtype(element).numpy)
        (made,) = compile_all([program], emulated.target())
        assert not isinstance(made, SmeltError), made
        bound = 1e-6 * np.abs(x).sum() if (element, op) == ("f32", "add") else 0
        np.testing.assert_allclose(made(x)[0].numpy(), run(program, [x])[0], rtol=0, atol=bound)
