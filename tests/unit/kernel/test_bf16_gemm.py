"""bf16 GEMM: exact where f32 holds every sum, close to float64 elsewhere, on every target.

Targets without the instruction open the pairs to f32. On a processor that has it (`avx512_bf16` in /proc/cpuinfo) the
names `native` and `avx512bf16` run it; elsewhere the latter is skipped, and only compiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt import layout
from smelt.device import cpu
from smelt.device.runtime import runtime
from smelt.dim import symbol
from smelt.dtype import Array
from smelt.engine.compile import emit_source, plan_program
from smelt.errors import VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.shape import Shape
from smelt.target import tile_shape
from tests.unit.kernel.test_int8_gemm import PRODUCTS, WINDOWS, compiled, target_of

NAMES = ["native", "half", "avx512bf16", "avx512", "avx2", "plain"]
EPSILON = 2.0**-24  # what rounding to f32 does to a number, at most


def product(groups: int, own: int, rows: int, depth: int, columns: int, width: int) -> Program:
    f = FuncBuilder("main", [Shape("bf16", groups, rows, depth), Shape("bf16", own, depth, columns)])
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(width, 2)).result
    made = f.op(
        "smelt.packed_dot",
        f.args[0],
        panels,
        layout=layout.panels(width, 2),
        result=Shape("f32", groups, rows, columns),
    ).result
    return Program.of(f.func(made))


def whole(seed: int, *shape: int) -> Array:
    """Whole numbers: f32 holds every sum of 10,000 products of them."""
    return np.random.default_rng(seed).integers(-15, 16, shape).astype(ml_dtypes.bfloat16)


def real(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", NAMES)
def test_gemm_and_convolution(name: str, seed: int) -> None:
    target = target_of(name)
    programs = [product(*sizes, tile_shape(target).columns) for sizes in PRODUCTS]
    for sizes, program, made in zip(PRODUCTS, programs, compiled(programs, target), strict=True):
        groups, own, rows, depth, columns = sizes
        for numbers in (whole, real):
            a, b = numbers(seed, groups, rows, depth), numbers(seed + 1, own, depth, columns)
            wide = a.astype(np.float64), b.astype(np.float64)
            exact, found = wide[0] @ wide[1], made(a, b)[0]
            assert found.dtype == np.float32
            if numbers is whole:
                np.testing.assert_array_equal(found, exact, err_msg=str(sizes))
                np.testing.assert_array_equal(run(program, [a, b])[0], exact, err_msg=str(sizes))
            reach = (depth + 1) * EPSILON * (np.abs(wide[0]) @ np.abs(wide[1]))
            assert (np.abs(found - exact) <= reach).all(), sizes


@pytest.mark.parametrize("name", NAMES)
def test_convolutions_of_whole_numbers_are_exact(name: str, seed: int) -> None:
    lax = pytest.importorskip("jax").lax
    target = target_of(name)
    cases = []
    for size, channels, groups, features, window, strides, dilations in WINDOWS:
        x, kernel = whole(seed, 2, *size, channels), whole(seed + 1, *window, channels // groups, features)
        places = "DHW"[3 - len(size) :]
        expected = np.asarray(
            lax.conv_general_dilated(
                x.astype(np.float32),
                kernel.astype(np.float32),
                strides,
                "VALID",
                rhs_dilation=dilations,
                dimension_numbers=(f"N{places}C", f"{places}IO", f"N{places}C"),
                feature_group_count=groups,
            )
        )
        matrix = np.ascontiguousarray(kernel.reshape(-1, groups, features // groups).transpose(1, 0, 2))
        f = FuncBuilder("main", [Shape("bf16", *x.shape), Shape("bf16", *matrix.shape)])
        panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(tile_shape(target).columns, 2)).result
        taps: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations}
        made = f.op(
            "smelt.packed_conv",
            f.args[0],
            panels,
            layout=layout.panels(tile_shape(target).columns, 2),
            result=Shape("f32", *expected.shape),
            **taps,
        ).result
        cases.append((Program.of(f.func(made)), (x, matrix), expected))
    executables = compiled([case[0] for case in cases], target)
    for (program, given, expected), executable in zip(cases, executables, strict=True):
        np.testing.assert_array_equal(executable(*given)[0], expected)
        np.testing.assert_array_equal(run(program, list(given))[0], expected)


@pytest.mark.parametrize("name", ["native", "plain"])
def test_sizes_threads_and_what_is_not_finite(name: str, seed: int) -> None:
    """Dynamic dimensions; the same bits with any number of threads; nan and infinity stay in their rows."""
    target = target_of(name)
    rows, depth, columns = (symbol(each) for each in "mkn")
    f = FuncBuilder("main", [Shape("bf16", 1, rows, depth), Shape("bf16", 1, depth, columns)])
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(tile_shape(target).columns, 2)).result
    made = f.op(
        "smelt.packed_dot",
        f.args[0],
        panels,
        layout=layout.panels(tile_shape(target).columns, 2),
        result=Shape("f32", 1, rows, columns),
    ).result
    (executable,) = compiled([Program.of(f.func(made))], target)
    for m, k, n in ((1, 1, 1), (0, 3, 2), (2, 0, 3), (25, 514, 67), (130, 3, 64)):
        a, b = whole(seed, 1, m, k), whole(seed + 1, 1, k, n)
        np.testing.assert_array_equal(executable(a, b)[0], a.astype(np.float64) @ b.astype(np.float64))
    a, b = real(seed, 1, 301, 777), real(seed + 1, 1, 777, 130)
    a[0, 7, 776], a[0, 8, 3], b[0, 3] = np.nan, np.inf, np.abs(b[0, 3]) + 1
    before = runtime().threads
    found = []
    try:
        for threads in (1, 2, 5):
            runtime().set_threads(threads)
            found.append(executable(a, b)[0])
    finally:
        runtime().set_threads(before)
    assert np.isnan(found[0][0, 7]).all()
    assert (found[0][0, 8] == np.inf).all()
    assert np.isfinite(np.delete(found[0], (7, 8), axis=1)).all()
    for each in found[1:]:
        np.testing.assert_array_equal(each.view(np.uint32), found[0].view(np.uint32))


def instructions(code: bytes) -> int:
    """How often `vdpbf16ps` of 512 bits is in machine code: EVEX, map 0F38, prefix F3, W0, opcode 52."""
    starts = (i for i in range(len(code) - 5) if code[i] == 0x62 and code[i + 4] == 0x52)
    return sum(code[i + 1] & 0x0F == 0x02 and code[i + 2] & 0x87 == 0x06 and code[i + 3] & 0x60 == 0x40 for i in starts)


@pytest.mark.skipif(cpu.target("native").name != "x86_64", reason="an instruction of another kind of processor")
def test_the_instruction_is_used_where_a_target_has_it(tmp_path: Path) -> None:
    """A tile of six rows and four vectors alone holds 24 of them."""
    counts = {}
    for name in ("avx512bf16", "avx512"):
        target = cpu.target(name)
        source = emit_source([plan_program(product(1, 1, 61, 64, 128, tile_shape(target).columns), target)])
        path = tmp_path / f"{name}.so"
        cpu.compile_to(path, source.text(), processor=target)
        counts[name] = instructions(path.read_bytes())
    assert counts["avx512bf16"] >= 24
    assert counts["avx512"] == 0


def test_other_types_are_refused() -> None:
    f = FuncBuilder("main", [Shape("bf16", 1, 2, 4), Shape("f16", 1, 1, 2, 8)])
    with pytest.raises(VerifyError, match="of one float type"):
        f.op("smelt.packed_dot", f.args[0], f.args[1], layout=layout.panels(4, 2), result=Shape("f32", 1, 2, 4))
