"""Column reductions and long reductions on a GPU: the bits of a CPU, but for sums of floats in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt
from smelt.device import cpu
from smelt.dtype import Array, dtype
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.build import columns_simt, reduce
from tests.cuda.emulated import EmulatedCuda


def reducing(shape: tuple[int, ...], axes: tuple[int, ...], element: str, op: str, start: str) -> Program:
    kept = "".join(f"{size}x" for d, size in enumerate(shape) if d not in axes)
    whole, result, one = (f"tensor<{each}{element}>" for each in ("".join(f"{size}x" for size in shape), kept, ""))
    return parse(
        f"""func.func @main(%x: {whole}) -> {result} {{
  %z = stablehlo.constant dense<{start}> : {one}
  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.{op} across dimensions = {list(axes)}
    : ({whole}, {one}) -> {result}
  return %0 : {result}
}}"""
    )


def launches(program: Program, device: EmulatedCuda) -> int:
    return emit_source([plan_program(program, device.target())]).text().count("__global__ void")


def call(program: Program, target: Any, x: Array) -> Array:
    (made,) = compile_all([program], target)
    assert not isinstance(made, SmeltError), made
    found = made(x)[0]
    return np.asarray(found.numpy() if hasattr(found, "numpy") else found)


def check(program: Program, x: Array, device: EmulatedCuda, *, in_parts: bool = False) -> None:
    """The bits of the CPU, unless floats are added `in_parts`; of integers and bool those of the reference, of floats
    a number near it."""
    got, want = call(program, device.target(), x), run(program, [x])[0]
    assert in_parts or got.tobytes() == call(program, cpu.target(), x).tobytes()
    if x.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
        return
    terms = np.abs(x[np.isfinite(x)].astype(np.float64)).sum()
    near = {2: 2**-8, 4: 1e-6, 8: 1e-14}[x.itemsize] * terms
    np.testing.assert_allclose(got.astype(np.float64), np.asarray(want).astype(np.float64), rtol=0, atol=near)


def numbers(shape: tuple[int, ...], element: str, seed: int) -> Array:
    random = np.random.default_rng(seed)
    found: Array = (random.standard_normal(shape) * 9).astype(dtype(element).numpy)
    return found


COLUMNS: list[tuple[tuple[int, ...], tuple[int, ...], str, int]] = [
    ((5, 40), (0,), "f32", 1),  # rows that a thread reads
    ((300, 20), (0,), "f32", 2),  # parts, and columns that fill no block
    ((3, 100, 33), (1,), "f64", 1),
    ((2, 30, 3, 17), (1, 2), "i32", 1),
    ((600, 16), (0,), "bf16", 2),
    ((70, 9), (0,), "i1", 1),
    ((0, 9), (0,), "f32", 1),
    ((700, 4, 9), (0,), "i64", 2),
]


@pytest.mark.parametrize(("shape", "axes", "element", "count"), COLUMNS)
def test_columns(
    shape: tuple[int, ...], axes: tuple[int, ...], element: str, count: int, emulated: EmulatedCuda, seed: int
) -> None:
    x = numbers(shape, element, seed)
    for op, start in (("or", "true"), ("and", "true")) if element == "i1" else (("add", "3"), ("minimum", "2")):
        text = f"{start}.0" if dtype(element).is_float else start
        program = reducing(shape, axes, element, op, text)
        assert launches(program, emulated) == count
        check(program, x, emulated)


def test_parts_of_parts(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three launches; a dynamic number of rows has the same bits."""
    for module in (reduce, columns_simt):
        monkeypatch.setattr(module, "TALL", 16)
    monkeypatch.setattr(columns_simt, "FEW_ROWS", 8)
    dynamic = smelt.compile(lambda x: x.sum("a"), "f32[a=A, b=9]", device="cuda", engine="native")
    for rows in (0, 1, 16, 17, 300):
        x = numbers((rows, 9), "f32", seed)
        program = reducing((rows, 9), (0,), "f32", "add", "0.0")
        assert launches(program, emulated) == (1 if rows <= 16 else 2 if rows <= 256 else 3)
        check(program, x, emulated)
        np.testing.assert_array_equal(dynamic(x).numpy(), call(program, emulated.target(), x))


def test_a_sum_that_normalises_its_weights(emulated: EmulatedCuda, seed: int) -> None:
    """A reduction inside: the blocks of a token's columns compute it, each of them."""

    def mix(made: smelt.Tensor, back: smelt.Tensor, weights: smelt.Tensor) -> smelt.Tensor:
        return (made.take(back, "r") * (weights / weights.sum("n"))).sum("n")

    made = smelt.compile(mix, "f32[r=R, d=70]", "i32[s=S, n=8]", "f32[s=S, n=8]", device="cuda", engine="native")
    random = np.random.default_rng(seed)
    rows, weights = numbers((16, 70), "f32", seed), random.random((2, 8), np.float32)
    back = random.integers(0, 16, (2, 8)).astype(np.int32)
    shares = weights / weights.sum(1, keepdims=True)
    want = np.einsum("snd,sn->sd", rows[back], shares)
    np.testing.assert_allclose(made(rows, back, weights).numpy(), want, rtol=0, atol=1e-4)


LONG: list[tuple[tuple[int, ...], tuple[int, ...], str, int]] = [
    ((150,), (0,), "f32", 2),
    ((140,), (0,), "bf16", 2),
    ((2, 150), (1,), "f64", 2),
    ((9, 2, 10), (0, 1, 2), "i32", 3),  # parts of the last two axes
    ((7, 2, 20), (0, 2), "f32", 2),  # parts end where an axis between them does
    ((150, 3), (0,), "f32", 2),
    ((150, 2), (0, 1), "i1", 3),
    ((700,), (0,), "f32", 3),
    ((120,), (0,), "f32", 1),
    ((130, 0), (0, 1), "f32", 1),
]


@pytest.mark.parametrize(("shape", "axes", "element", "count"), LONG)
def test_long_reductions(
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    element: str,
    count: int,
    emulated: EmulatedCuda,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, count_of in (("LONG", 128), ("PART", 16)):
        monkeypatch.setattr(reduce, name, count_of)
    x = numbers(shape, element, seed)
    floats = (("add", "1.5"), ("maximum", "-7.0"))
    for op, start in (("xor", "true"), ("and", "true")) if element == "i1" else floats:
        program = reducing(shape, axes, element, op, start if x.dtype.kind != "i" else start.partition(".")[0])
        assert launches(program, emulated) == count
        check(program, x, emulated, in_parts=op == "add" and x.dtype.kind != "i")


def test_special_numbers(emulated: EmulatedCuda, seed: int) -> None:
    """NaN and infinities go through; the sum of zeros has the sign of the initial value."""
    x = numbers((40_000,), "f32", seed)
    x[[5, 33_000]] = np.inf, np.nan
    for op, start in (("add", "0.0"), ("maximum", "0xFF800000"), ("minimum", "0x7F800000")):
        assert np.isnan(call(reducing((40_000,), (0,), "f32", op, start), emulated.target(), x))
    for start in ("-0.0", "0.0"):
        program = reducing((40_000,), (0,), "f32", "add", start)
        check(program, np.full(40_000, -0.0, np.float32), emulated)
        found = call(program, emulated.target(), np.full(40_000, -0.0, np.float32))
        assert np.signbit(found) == (start == "-0.0")


def test_dynamic_lengths(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything to one number; the map in front is part of the first launch."""
    monkeypatch.setattr(reduce, "PART", 16)
    made = smelt.compile(lambda x: (x * x).sum(), "i32[a=A, b=B]", device="cuda", engine="native")
    for sizes in ((0, 5), (1, 1), (4, 4), (17, 3), (40, 30)):
        x = numbers(sizes, "i32", seed)
        assert made(x).numpy() == (x * x).sum()


def test_rows_are_not_split(emulated: EmulatedCuda) -> None:
    """A reduction of up to `LONG` elements stays in the kernel of its row."""

    def centred(x: smelt.Tensor) -> smelt.Tensor:
        return x - x.mean("n")

    for length, count in ((reduce.LONG, 1), (reduce.LONG + reduce.PART, 3)):
        made: Any = smelt.compile(centred, f"f32[b=4, n={length}]", device="cuda", engine="native")
        assert launches(made.program, emulated) == count


@pytest.mark.parametrize("element", ["f32", "bf16", "i64"])
@pytest.mark.parametrize(("inside", "axes"), [((40_001,), (1,)), ((3, 20_000), (1, 2))])
def test_bits_of_a_row_do_not_depend_on_the_batch(
    inside: tuple[int, ...], axes: tuple[int, ...], element: str, emulated: EmulatedCuda, seed: int
) -> None:
    x, zero = numbers((5, *inside), element, seed), "0" if element == "i64" else "0.0"
    many, one = (reducing((rows, *inside), axes, element, "add", zero) for rows in (5, 1))
    got = call(many, emulated.target(), x)
    assert got[3:4].tobytes() == call(one, emulated.target(), x[3:4]).tobytes()


@pytest.mark.parametrize("sizes", [(40_000,), (30_000,), (200, 300), (20, 30), (2, 20_000)])
def test_dynamic_lengths_have_the_bits_of_static_ones(
    sizes: tuple[int, ...], emulated: EmulatedCuda, seed: int
) -> None:
    x = numbers(sizes, "f32", seed)
    names = ["ab"[d] for d in range(len(sizes))]
    static, dynamic = (
        smelt.compile(
            lambda x: (x * x).sum(),
            f"f32[{', '.join(f'{name}={size}' for name, size in zip(names, given, strict=True))}]",
            device="cuda",
            engine="native",
        )
        for given in (sizes, [name.upper() for name in names])
    )
    assert static(x).numpy().tobytes() == dynamic(x).numpy().tobytes()
