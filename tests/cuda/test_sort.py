"""Sorting on a GPU: runs in shared memory that are merged by searches; the largest of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array, dtype
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.build import sort_simt
from tests.cuda.emulated import EmulatedCuda, allow_races


def sorting(shape: str, dim: int, element: str, direction: str, extra: str = "") -> Program:
    """Keys of few different numbers, with the place of each; `extra`: the comparison's type."""
    keys, places = f"tensor<{shape}x{element}>", f"tensor<{shape}xi32>"
    return parse(f"""func.func @main(%x: {keys}, %y: {places}) -> ({keys}, {places}) {{
  %0:2 = "stablehlo.sort"(%x, %y) <{{dimension = {dim} : i64, is_stable = true}}> ({{
  ^bb0(%a: tensor<{element}>, %b: tensor<{element}>, %c: tensor<i32>, %d: tensor<i32>):
    %p = stablehlo.compare {direction}, %a, %b{extra} : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }}) : ({keys}, {places}) -> ({keys}, {places})
  return %0#0, %0#1 : {keys}, {places}
}}""")


def check(programs: list[Program], inputs: list[list[Array]], device: EmulatedCuda) -> None:
    for program, given, made in zip(programs, inputs, compile_all(programs, device.target()), strict=True):
        assert not isinstance(made, SmeltError), made
        for got, want in zip(made(*given), run(program, given), strict=True):
            assert_same(got.numpy(), want)


def assert_same(got: Array, want: Array) -> None:
    """The same numbers, signs of zeros included; NaN is NaN."""
    if want.dtype.kind == "V":  # bf16, whose NaN NumPy does not know
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(got, want)
    if want.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def keys_of(random: np.random.Generator, shape: tuple[int, ...], element: str) -> Array:
    if element == "i32":
        return random.integers(-9, 9, shape).astype(np.int32)
    found: Any = np.round(random.standard_normal(shape) * 4).astype(np.float32)
    found[random.random(shape) < 0.1] = np.nan
    found[random.random(shape) < 0.1] = -0.0
    return np.asarray(found)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path for short rows: elements compared with all others, a run of a warp, one of a block, and merges."""
    for name, value in {"SHORT_RUNS": (8, 32), "RUN": 64, "PROBES": 4, "MOST": 1 << 12}.items():
        monkeypatch.setattr(sort_simt, name, value)


@pytest.mark.parametrize("direction", ["LT", "GT", "LE"])
def test_rows_of_any_length(direction: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run and several, the last one short; equal elements keep their order, with LE they change it as on a CPU."""
    shrink(monkeypatch)
    random = np.random.default_rng(seed)
    shapes = [(0,), (1,), (8,), (9,), (31,), (33,), (64,), (65,), (130,), (300,), (3, 70), (2, 3, 17)]
    programs, inputs = [], []
    for shape in shapes:
        for element, extra in (("i32", ""), ("f32", ", TOTALORDER")):
            programs.append(sorting("x".join(map(str, shape)), len(shape) - 1, element, direction, extra))
            places = np.arange(int(np.prod(shape))).reshape(shape).astype(np.int32)
            inputs.append([keys_of(random, shape, element), places])
    check(programs, inputs, emulated)


@pytest.mark.parametrize("shape", [(300, 3), (5, 40, 2), (2048,), (4500,), (2, 2100)])
def test_dimensions_and_long_runs(shape: tuple[int, ...], emulated: EmulatedCuda, seed: int) -> None:
    random = np.random.default_rng(seed)
    dim = int(np.argmax(shape))
    program = sorting("x".join(map(str, shape)), dim, "f32", "LT", ", TOTALORDER")
    places = np.arange(int(np.prod(shape))).reshape(shape).astype(np.int32)
    check([program], [[keys_of(random, shape, "f32"), places]], emulated)


def test_an_order_that_contradicts_itself(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN comes neither before nor after other numbers: any element may be anywhere, but comes from the row."""
    shrink(monkeypatch)
    allow_races(emulated)  # of several elements with the same rank
    lengths = 3, 20, 500
    for length, made in zip(
        lengths, compile_all([sorting(f"2x{each}", 1, "f32", "LT") for each in lengths], emulated.target()), strict=True
    ):
        assert not isinstance(made, SmeltError), made
        keys = keys_of(np.random.default_rng(seed), (2, length), "f32")
        keys[:, 1] = np.nan
        got, places = (each.numpy() for each in made(keys, np.tile(np.arange(length, dtype=np.int32), (2, 1))))
        assert_same(got, np.take_along_axis(keys, places, 1))


def test_dynamic_lengths(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few launches or many, an even number or an odd one."""
    shrink(monkeypatch)
    random = np.random.default_rng(seed)
    (made,) = compile_all([(program := sorting("?", 0, "i32", "LT"))], emulated.target())
    assert not isinstance(made, SmeltError), made
    for length in (0, 1, 9, 64, 65, 129, 700, 3000):
        given = [random.integers(0, 50, length).astype(np.int32), np.arange(length, dtype=np.int32)]
        for got, want in zip(made(*given), run(program, given), strict=True):
            assert_same(got.numpy(), want)


def test_rows_over_the_limit_are_refused(emulated: EmulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the length is dynamic, launches are for the longest row: a longer one would be left in several runs."""
    shrink(monkeypatch)
    monkeypatch.setattr(sort_simt, "MOST", 1 << 8)
    whole, dims = (
        "tensor<?xf32>",
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1",
    )
    scatter = parse(f"""func.func @main(%y: {whole}, %at: tensor<?x1xi32>, %x: {whole}) -> {whole} {{
  %r = "stablehlo.scatter"(%y, %at, %x) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<{dims}>}} : ({whole}, tensor<?x1xi32>, {whole}) -> {whole}
  return %r : {whole}
}}""")
    row, place = np.arange(600, 0, -1, dtype=np.float32), np.arange(600, dtype=np.int32)
    for program, given in ((sorting("?", 0, "f32", "LT"), (row, place)), (scatter, (row, place[:, None], row))):
        (made,) = compile_all([program], emulated.target())
        assert not isinstance(made, SmeltError), made
        made(*(each[:256] for each in given))
        with pytest.raises(SmeltError, match="a row is not longer than what kernels sort"):
            made(*given)


def largest(rows: str, length: int, k: int, element: str) -> Program:
    """The k largest of each row, and where they are."""
    given, found, places = (f"tensor<{rows}x{each}>" for each in (f"{length}x{element}", f"{k}x{element}", f"{k}xi32"))
    return parse(f"""func.func @main(%x: {given}) -> ({found}, {places}) {{
  %0:2 = chlo.top_k(%x, k = {k}) : {given} -> ({found}, {places})
  return %0#0, %0#1 : {found}, {places}
}}""")


@pytest.mark.parametrize(("length", "k"), [(600, 1), (600, 40), (2000, 2000), (4500, 600), (5000, 3), (9000, 512)])
def test_largest_of_rows(length: int, k: int, emulated: EmulatedCuda, seed: int) -> None:
    """Of one run, of several, and of what these leave; of all, where that would be most of them."""
    check([largest("3", length, k, "f32")], [[keys_of(np.random.default_rng(seed), (3, length), "f32")]], emulated)


def test_largest_of_short_rows(emulated: EmulatedCuda, seed: int) -> None:
    """Equal elements keep their order; NaN is the largest number, and -0 comes after 0."""
    random = np.random.default_rng(seed)
    cases = [(1, 1, "f32"), (100, 7, "f32"), (128, 8, "i32"), (33, 33, "f32"), (300, 0, "f32"), (512, 64, "f32")]
    programs = [largest("2x3", length, k, element) for length, k, element in cases]
    inputs = [[keys_of(random, (2, 3, length), element)] for length, _, element in cases]
    for element in ("bf16", "f16", "f64"):
        programs.append(largest("2x3", 100, 9, element))
        inputs.append([keys_of(random, (2, 3, 100), "f32").astype(dtype(element).numpy)])
    for element in ("ui8", "i64"):
        programs.append(largest("2x3", 100, 9, element))
        inputs.append([random.integers(0, 20, (2, 3, 100)).astype(dtype(element).numpy)])
    check(programs, inputs, emulated)
    (made,) = compile_all([(program := largest("?", 128, 8, "f32"))], emulated.target())
    assert not isinstance(made, SmeltError), made
    for rows in (0, 1, 5):
        given = keys_of(random, (rows, 128), "f32")
        for got, want in zip(made(given), run(program, [given]), strict=True):
            assert_same(got.numpy(), want)
