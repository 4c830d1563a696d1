"""Long scans on a GPU: totals of chunks, their scan, and the chunks from there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt
from smelt.dtype import Array
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.build import scan_simt
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
@pytest.mark.parametrize(("shape", "dim"), [((40,), 0), ((1500,), 0), ((3, 700), 1), ((700, 3), 0), ((0,), 0)])
def test_scans(body: str, reverse: bool, shape: tuple[int, ...], dim: int, emulated: EmulatedCuda, seed: int) -> None:
    """Integers to the bit; sums of floats up to their order. What is no reduction runs serially."""
    random = np.random.default_rng(seed)
    around = [size for d, size in enumerate(shape) if d != dim]
    carry, text = "".join(f"{size}x" for size in around), "x".join(map(str, shape))
    for element in ("i32", "f32"):
        program = scanning(text, dim, element, body, carry, reverse)
        is_long = shape[dim] > scan_simt.SHORT and body != OTHER
        assert launches(program, emulated) == (3 if is_long else 1)
        given: list[Any] = [random.standard_normal(shape) * 9, random.standard_normal(around)]
        given = [np.asarray(each).astype(np.int32 if element == "i32" else np.float32) for each in given]
        (made,) = compile_all([program], emulated.target())
        assert not isinstance(made, SmeltError), made
        for got, want in zip(made(*given), run(program, given), strict=True):
            bound = 0 if element == "i32" or body == LARGEST else 1e-4 * np.abs(given[0]).sum()
            np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=bound)


def test_dynamic_lengths(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_simt, "CHUNK", 16)
    random = np.random.default_rng(seed)
    made = smelt.compile(lambda x: x.cumsum("n"), "i32[b=B, n=N]", device="cuda", engine="native")
    for sizes in ((1, 0), (0, 5), (2, 16), (3, 17), (2, 700)):
        x: Array = random.integers(-99, 99, sizes).astype(np.int32)
        np.testing.assert_array_equal(made(x).numpy(), np.cumsum(x, 1, dtype=np.int32))
