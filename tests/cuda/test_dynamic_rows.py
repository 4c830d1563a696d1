"""GEMM and convolution of a dynamic number of rows: a kernel where a GPU would have too few tiles, and one for more."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from smelt.buffer import HostBuffer
from smelt.device import cpu
from smelt.device.cuda import TARGETS
from smelt.dtype import dtype
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine, compile_all
from smelt.engine.reference import ReferenceEngine
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.kernel.build import gemm_simt
from smelt.kernel.loops.form import TENSOR_BF16
from smelt.weights import Weights
from tests.cuda.emulated import EmulatedCuda


def dot(depth: int, columns: int, kind: str) -> Program:
    x, w, y = f"tensor<?x{depth}x{kind}>", f"tensor<{depth}x{columns}x{kind}>", f"tensor<?x{columns}xf32>"
    return parse(f"""func.func @main(%x: {x}, %w: {w} {{smelt.weight = "w"}}) -> {y} {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({x}, {w}) -> {y}
  %1 = stablehlo.negate %0 : {y}
  return %1 : {y}
}}""")


def convolution(side: int, channels: int, features: int, kind: str) -> Program:
    x, w = f"tensor<?x{side}x{side}x{channels}x{kind}>", f"tensor<3x3x{channels}x{features}x{kind}>"
    y = f"tensor<?x{side}x{side}x{features}xf32>"
    return parse(f"""func.func @main(%x: {x}, %w: {w} {{smelt.weight = "w"}}) -> {y} {{
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{pad = [[1, 1], [1, 1]]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : ({x}, {w}) -> {y}
  %1 = stablehlo.negate %0 : {y}
  return %1 : {y}
}}""")


CASES: dict[str, tuple[Program, str, tuple[int, ...]]] = {  # a program, the type of its operands, numbers of rows
    "dot_bf16": (dot(264, 130, "bf16"), "bf16", (70, 128, 1, 129, 0)),
    "convolution_bf16": (convolution(5, 64, 72, "bf16"), "bf16", (1, 2, 6, 0)),
    "convolution_f32": (convolution(5, 48, 70, "f32"), "f32", (1, 6, 0, 2)),
}


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", [*CASES])
def test_each_range_of_rows(
    name: str, machine: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls on both sides of the limit, which is 128 rows here, and of none at all."""
    monkeypatch.setattr(gemm_simt, "BUSY", 4 if name == "dot_bf16" else 3)
    program, kind, counts = CASES[name]
    random = np.random.default_rng(seed)
    shapes = [arg.shape for arg in program.main.args]
    w = random.standard_normal(shapes[1].numbers(), np.float32).astype(dtype(kind).numpy)
    weights = Weights.of({"w": HostBuffer.of(w)})
    there, wanted = (
        engine.compile(program).prepare(weights) for engine in (NativeEngine(TARGETS[machine]), ReferenceEngine())
    )
    first: Any = None
    for count in (*counts, counts[0]):
        sizes = (count, *(size for size in shapes[0].sizes[1:] if isinstance(size, int)))
        x = np.random.default_rng([seed, count]).standard_normal(sizes, np.float32).astype(dtype(kind).numpy)
        got, want = there(x)[0].numpy(), np.asarray(wanted(x)[0])
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * max(1.0, float(np.abs(want).max(initial=0))))
        first = got if first is None else first
    np.testing.assert_array_equal(got, first)  # counters of blocks that share K are zero again


def random_dot(random: np.random.Generator, kind: str) -> Program:
    """Rows of several dimensions, any number of which is dynamic; a residual, and the gate of a pair or the sign."""
    depth, columns = (int(random.choice(each)) for each in ((7, 130, 264, 300), (10, 17, 48, 70, 130)))
    rows = ["?", *random.choice(["?", "2", "3"], random.integers(0, 3))]
    x, y = (f"tensor<{'x'.join(rows)}x{each}" for each in (f"{depth}x{kind}>", f"{columns}xf32>"))
    w, paired = f"tensor<{depth}x{columns}x{kind}>", random.random() < 0.4
    dots = [
        f"%{i} = stablehlo.dot_general %x, %w{i}, contracting_dims = [{len(rows)}] x [0] : ({x}, {w}) -> {y}"
        for i in range(1 + paired)
    ]
    weights = [f'%w{i}: {w} {{smelt.weight = "w{i}"}}' for i in range(1 + paired)]
    last = f"stablehlo.multiply %0, %1 : {y}" if paired else f"stablehlo.negate %0 : {y}"
    lines = [*dots, f"%2 = {last}", f"%3 = stablehlo.add %2, %r : {y}", f"return %3 : {y}"]
    return parse("\n".join([f"func.func @main(%x: {x}, %r: {y}, {', '.join(weights)}) -> {y} {{", *lines, "}"]))


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
def test_random_rows(machine: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of one program that cross the borders of its kernels: as the reference engine, in f32 as a processor."""
    random = np.random.default_rng([seed, 1])
    monkeypatch.setattr(gemm_simt, "BUSY", int(random.integers(2, 6)))
    monkeypatch.setattr(gemm_simt, "MOST_SUMS", int(random.choice([1 << 23, 100_000])))
    kinds = ("f32", "f32", "bf16")
    programs = [random_dot(random, kind) for kind in kinds]
    there, here = (compile_all(programs, target) for target in (TARGETS[machine], cpu.target()))
    for program, kind, one, other in zip(programs, kinds, there, here, strict=True):
        assert not isinstance(one, SmeltError), one
        assert not isinstance(other, SmeltError), other
        x, _, *ws = (arg.shape for arg in program.main.args)
        depth, columns = ws[0].numbers()
        arrays = {f"w{i}": random.standard_normal(w.numbers()) * depth**-0.5 for i, w in enumerate(ws)}
        weights = Weights.of({name: HostBuffer.of(w.astype(dtype(kind).numpy)) for name, w in arrays.items()})
        gpu, processor = one.prepare(weights), other.prepare(weights)
        wanted = ReferenceEngine().compile(program).prepare(weights)
        fixed = [int(size) if isinstance(size, int) else 1 for size in x.sizes[1:-1]]
        for count in random.permutation([0, 1, 8, 9, 128, 129, 257, 400])[:5]:
            rows = [-(-int(count) // int(np.prod(fixed, dtype=int))), *fixed]
            given = (
                random.standard_normal((*rows, depth)).astype(dtype(kind).numpy),
                random.standard_normal((*rows, columns), np.float32),
            )
            got, want = gpu(*given)[0].numpy(), np.asarray(wanted(*given)[0])
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * max(1.0, float(np.abs(want).max(initial=0))))
            if kind == "f32" and "fma" in cpu.target().features:
                np.testing.assert_array_equal(got, processor(*given)[0], f"{rows} of {x.sizes}")


def test_ranges() -> None:
    """There are two where a GPU is not busy with usual tiles of some rows; a static number has one."""
    target = TARGETS["sm_90"]
    program = dot(4096, 4096, "bf16")
    rows = program.main.args[0].shape.sizes[0]
    few, many = gemm_simt.ranges_of_rows(target, TENSOR_BF16, 1, rows, 4096, 65, 65)
    assert (few.most, few.about) == (3 * 128, 128)
    assert many.about == rows
    (only,) = gemm_simt.ranges_of_rows(target, TENSOR_BF16, 1, rows, 100_000, 65, 65)
    assert only.about == rows
    (static,) = gemm_simt.ranges_of_rows(target, TENSOR_BF16, 1, 200, 4096, 65, 65)
    assert (static.here, static.most) == (1, 200)
    source = emit_source([plan_program(program, target)]).text()
    calls = re.findall(r"smelt_tile<ui16, (\d+), (\d+), [^(]*(true|false), \d+>\(", source)
    assert calls == [("128", "128", "true"), ("128", "128", "false")]  # whether blocks share K
