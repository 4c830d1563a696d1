"""int8 GEMM against NumPy's integers: every bit, on every target, with any number of threads."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt import layout
from smelt.device import cpu
from smelt.device.runtime import runtime
from smelt.dim import symbol
from smelt.dtype import Array
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.engine_api import Executable
from smelt.errors import DeviceError, VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.kernel.emit.tile_int8 import mma_int8_text
from smelt.shape import Shape
from smelt.target import Target, tile_shape

# groups, groups of the panels, rows, k, columns
PRODUCTS = [
    (1, 1, 1, 1, 1),
    (1, 1, 0, 5, 3),
    (1, 1, 3, 0, 5),
    (1, 1, 3, 5, 0),
    (2, 1, 13, 37, 65),
    (3, 3, 7, 515, 131),
    (1, 1, 211, 1031, 17),
    (1, 1, 61, 2048, 128),
]
# image, channels, groups, features, window, strides, dilations
WINDOWS = [
    ((9, 11), 4, 1, 7, (3, 3), (1, 1), (1, 1)),
    ((12, 13), 8, 2, 10, (2, 3), (2, 1), (1, 2)),
    ((8, 8), 64, 1, 70, (1, 1), (2, 2), (1, 1)),
    ((17,), 12, 1, 65, (5,), (3,), (2,)),
    ((5, 6, 7), 4, 1, 3, (2, 3, 2), (1, 2, 1), (1, 1, 1)),
    ((6, 401), 4, 1, 5, (3, 3), (1, 1), (1, 1)),
    ((4, 4), 260, 1, 6, (3, 3), (1, 1), (1, 1)),
]


def target_of(name: str) -> Target:
    """`half`: this processor's instructions with vectors half as wide."""
    if name != "half":
        return cpu.target(name)
    if cpu.target("native").vector_bytes < 64:
        pytest.skip("vectors are not wider than that here")
    return cpu.target("native").replace(vector_bytes=32, flags=("native",))


def product(groups: int, own: int, rows: int, depth: int, columns: int, width: int) -> Program:
    f = FuncBuilder("main", [Shape("ui8", groups, rows, depth), Shape("i8", own, depth, columns)])
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(width, 4)).result
    made = f.op(
        "smelt.packed_dot",
        f.args[0],
        panels,
        layout=layout.panels(width, 4),
        result=Shape("i32", groups, rows, columns),
    ).result
    return Program.of(f.func(made))


def bytes_of(seed: int, *shape: int, extreme: bool = False) -> tuple[Array, Array]:
    """Numbers of ui8 and of i8; the extreme ones overflow whatever adds up fewer bits than it should."""
    random = np.random.default_rng(seed)
    if extreme:
        return np.full(shape, 255, np.uint8), np.full(shape, -128, np.int8)
    return random.integers(0, 256, shape, np.uint8), random.integers(-128, 128, shape, np.int8)


def compiled(programs: list[Program], target: Target) -> Iterator[Executable]:
    for made in compile_all(programs, target):
        if isinstance(made, DeviceError) and "cannot run code" in str(made):
            pytest.skip(str(made))
        assert not isinstance(made, Exception), made
        yield made


@pytest.mark.parametrize("name", ["native", "half", "avx512", "avx2", "plain"])
def test_sums_are_exact(name: str, seed: int) -> None:
    target = target_of(name)
    programs = [product(*sizes, tile_shape(target).columns) for sizes in PRODUCTS]
    for sizes, program, made in zip(PRODUCTS, programs, compiled(programs, target), strict=True):
        groups, own, rows, depth, columns = sizes
        for extreme in (False, True):
            a, _ = bytes_of(seed, groups, rows, depth, extreme=extreme)
            _, b = bytes_of(seed + 1, own, depth, columns, extreme=extreme)
            expected = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
            np.testing.assert_array_equal(made(a, b)[0], expected, err_msg=str(sizes))
            np.testing.assert_array_equal(run(program, [a, b])[0], expected, err_msg=str(sizes))


@pytest.mark.parametrize("name", ["native", "half", "avx512", "avx2", "plain"])
def test_convolutions_are_exact(name: str, seed: int) -> None:
    lax = pytest.importorskip("jax").lax
    target = target_of(name)
    cases = []
    for size, channels, groups, features, window, strides, dilations in WINDOWS:
        x, _ = bytes_of(seed, 2, *size, channels)
        _, kernel = bytes_of(seed + 1, *window, channels // groups, features)
        places = "DHW"[3 - len(size) :]
        words = (f"N{places}C", f"{places}IO", f"N{places}C")
        whole = (x.astype(np.int32), kernel.astype(np.int32))
        expected = np.asarray(
            lax.conv_general_dilated(
                *whole,
                strides,
                "VALID",
                rhs_dilation=dilations,
                dimension_numbers=words,
                feature_group_count=groups,
            )
        )
        share = features // groups
        matrix = kernel.reshape(-1, groups, share).transpose(1, 0, 2)
        f = FuncBuilder("main", [Shape("ui8", *x.shape), Shape("i8", *matrix.shape)])
        panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(tile_shape(target).columns, 4)).result
        taps: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations}
        made = f.op(
            "smelt.packed_conv",
            f.args[0],
            panels,
            layout=layout.panels(tile_shape(target).columns, 4),
            result=Shape("i32", *expected.shape),
            **taps,
        ).result
        cases.append((Program.of(f.func(made)), (x, np.ascontiguousarray(matrix)), expected))
    executables = compiled([case[0] for case in cases], target)
    for (program, given, expected), executable in zip(cases, executables, strict=True):
        np.testing.assert_array_equal(executable(*given)[0], expected)
        np.testing.assert_array_equal(run(program, list(given))[0], expected)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(threads: int, seed: int) -> None:
    a, _ = bytes_of(seed, 2, 301, 777)
    _, b = bytes_of(seed, 1, 777, 333)
    (made,) = compiled([product(2, 1, 301, 777, 333, tile_shape(cpu.target()).columns)], cpu.target())
    before = runtime().threads
    runtime().set_threads(threads)
    try:
        np.testing.assert_array_equal(made(a, b)[0], (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32))
    finally:
        runtime().set_threads(before)


def test_dynamic_dimensions(seed: int) -> None:
    width = tile_shape(cpu.target()).columns
    rows, depth, columns = (symbol(name) for name in "mkn")
    f = FuncBuilder("main", [Shape("ui8", 1, rows, depth), Shape("i8", 1, depth, columns)])
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(width, 4)).result
    made = f.op(
        "smelt.packed_dot", f.args[0], panels, layout=layout.panels(width, 4), result=Shape("i32", 1, rows, columns)
    ).result
    (executable,) = compiled([Program.of(f.func(made))], cpu.target())
    for m, k, n in ((1, 1, 1), (0, 3, 2), (2, 0, 3), (25, 514, 67), (130, 3, 64)):
        a, _ = bytes_of(seed, 1, m, k)
        _, b = bytes_of(seed, 1, k, n)
        np.testing.assert_array_equal(executable(a, b)[0], a.astype(np.int32) @ b.astype(np.int32))


def test_other_types_are_refused() -> None:
    f = FuncBuilder("main", [Shape("i8", 1, 2, 4), Shape("i8", 1, 1, 1, 16)])
    with pytest.raises(VerifyError, match="ui8, i8 and i32"):
        f.op("smelt.packed_dot", f.args[0], f.args[1], layout=layout.panels(4, 4), result=Shape("i32", 1, 2, 4))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an assembler for x86-64")
def test_vnni_of_processors_without_avx512(tmp_path: Path) -> None:
    """They know vpdpbusd with a VEX prefix alone; the bytes of AVX-512 would be an illegal instruction."""
    target = cpu.target("avx2")
    plans = plan_program(product(1, 1, 6, 64, 16, 16), target)
    library = tmp_path / "program.so"
    cpu.compile_to(library, emit_source([plans]).text(), "-mavxvnni", processor=target)
    code = library.read_bytes()
    assert re.search(rb"\xc4[\x02-\xe2][\x04-\x7d]\x50", code)  # VEX.256.66.0F38.W0 50
    assert not re.search(rb"\x62[\x02-\xf2][\x05-\x7d][\x20-\x28]\x50", code)  # EVEX.256.66.0F38.W0 50


@pytest.mark.parametrize(("target", "words"), [("avx2", 4), ("avx512", 1), ("avx512vnni", 1)])
def test_a_later_page_is_prefetched_four_cache_lines_at_once(target: str, words: int) -> None:
    """Fewer at once would be a loop around every few products, more would be dropped."""
    text = mma_int8_text(tile_shape(cpu.target(target)))
    assert f"i64 span = later ? {words} : " in text
    assert "i64 each = later ? 5 : " in text  # and one of what follows in a page of keys
