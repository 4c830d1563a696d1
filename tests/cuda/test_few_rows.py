"""GEMM of few rows in f32: each thread loads the weights of one column ahead, and bits are those of a CPU with FMA."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from smelt.buffer import HostBuffer
from smelt.device import cpu, cuda_compile
from smelt.device.cuda import TARGETS
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine, compile_all
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.kernel.build import gemm_simt
from smelt.kernel.loops.form import F32
from smelt.kernel.loops.tensor_tile import TILE_ROWS
from smelt.weights import Weights
from tests.cuda.emulated import EmulatedCuda

SIZES = ((784, 128), (129, 10), (2049, 70), (300, 96), (1, 1), (128, 80), (40, 17))  # K, columns


def dot(rows: int | str, depth: int, columns: int, kind: str = "f32") -> Program:
    x, w, y = f"tensor<{rows}x{depth}xf32>", f"tensor<{depth}x{columns}x{kind}>", f"tensor<{rows}x{columns}xf32>"
    return parse(f"""func.func @main(%x: {x}, %w: {w} {{smelt.weight = "w"}}) -> {y} {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({x}, {w}) -> {y}
  %1 = stablehlo.negate %0 : {y}
  return %1 : {y}
}}""")


def all_made(made: Sequence[Any]) -> Sequence[Any]:
    assert not any(isinstance(each, SmeltError) for each in made), made
    return made


@pytest.mark.parametrize("rows", [1, 3, 8, "?"])
def test_bits_are_those_of_a_processor(rows: int | str, emulated: EmulatedCuda, seed: int) -> None:
    """Any number of K-blocks and columns; a dynamic number of rows, from none to several tiles."""
    random = np.random.default_rng(seed)
    sizes = SIZES if rows != "?" else SIZES[1:4]
    programs = [dot(rows, *each) for each in sizes]
    there, here = (all_made(compile_all(programs, target)) for target in (emulated.target(), cpu.target()))
    for (depth, columns), one, other in zip(sizes, there, here, strict=True):
        weights = Weights.of({"w": HostBuffer.of(random.standard_normal((depth, columns), np.float32))})
        on_gpu, on_cpu = one.prepare(weights), other.prepare(weights)
        for count in (rows,) if isinstance(rows, int) else (1, 0, 2, 8, 9, 140, 5):
            x = random.standard_normal((count, depth), np.float32)
            got, same = on_gpu(x)[0].numpy(), on_cpu(x)[0]
            want = -(x.astype(np.float64) @ weights["w"].numpy().astype(np.float64))
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * depth)
            if "fma" in cpu.target().features:
                np.testing.assert_array_equal(got, same, f"{count} x {depth} x {columns}")


def test_infinities_stay_in_their_column(emulated: EmulatedCuda) -> None:
    """Steps and columns that are not there are not multiplied."""
    w = np.ones((130, 20), np.float32)
    w[129, 3], w[5, 19] = np.inf, np.nan
    made = NativeEngine(emulated.target()).compile(dot("?", 130, 20)).prepare(Weights.of({"w": HostBuffer.of(w)}))
    for count in (1, 4, 7):
        x = np.ones((count, 130), np.float32)
        want = np.full((count, 20), -130, np.float32)
        want[:, 3], want[:, 19] = -np.inf, np.nan
        np.testing.assert_array_equal(made(x)[0].numpy(), want)


def test_each_call_selects_a_kernel_by_its_rows() -> None:
    """Up to 8 rows, up to as many as split K, and more; blocks have fewer columns where there are few of them."""
    source = emit_source([plan_program(dot("?", 512, 1024), TARGETS["sm_90"])]).text()
    assert {*re.findall(r"smelt_few_f32<(8, true, \d+)>\(smelt_lane", source)} == {"8, true, 16"}
    assert len(re.findall(r"smelt_tile_f32\(smelt_lane", source)) == 2
    assert gemm_simt.rows_that_split(F32, 1, 512, 16) == 6 * TILE_ROWS
    assert gemm_simt.rows_that_split(F32, 1, 128, 16) == 0  # one K-block
    assert gemm_simt.rows_that_split(F32, 1, 512, 100) == 0  # enough tiles
    assert [gemm_simt.few_columns(columns, 64) for columns in (1024, 10_000, 50_000)] == [16, 32, 64]


@pytest.mark.skipif(cuda_compile.missing() is not None, reason=str(cuda_compile.missing()))
@pytest.mark.parametrize("rows", [1, 8, "?"])
@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
def test_it_compiles(machine: str, rows: int | str) -> None:
    *files, _ = emit_source([plan_program(dot(rows, 512, 1024), TARGETS[machine])]).texts(1)
    for text in files:
        assert len(cuda_compile.compile_cuda(text, machine)) > 1_000
