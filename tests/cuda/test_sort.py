"""Sorting on a GPU: a thread for every element, runs that are merged by binary searches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.build import sort_simt
from tests.cuda.emulated import EmulatedCuda


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
            np.testing.assert_array_equal(got.numpy(), want)


def keys_of(random: np.random.Generator, shape: tuple[int, ...], element: str) -> Array:
    if element == "i32":
        return random.integers(-9, 9, shape).astype(np.int32)
    found: Any = np.round(random.standard_normal(shape) * 4).astype(np.float32)
    found[random.random(shape) < 0.1] = np.nan
    found[random.random(shape) < 0.1] = -0.0
    return np.asarray(found)


@pytest.mark.parametrize("direction", ["LT", "GT", "LE"])
def test_rows_of_any_length(direction: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run and several, the last one short; equal elements keep their order, with LE they change it as on a CPU."""
    monkeypatch.setattr(sort_simt, "RUN", 8)
    random = np.random.default_rng(seed)
    shapes = [(0,), (1,), (8,), (9,), (31,), (33,), (128,), (300,), (3, 70), (2, 3, 17)]
    programs, inputs = [], []
    for shape in shapes:
        for element, extra in (("i32", ""), ("f32", ", TOTALORDER")):
            programs.append(sorting("x".join(map(str, shape)), len(shape) - 1, element, direction, extra))
            places = np.arange(int(np.prod(shape))).reshape(shape).astype(np.int32)
            inputs.append([keys_of(random, shape, element), places])
    check(programs, inputs, emulated)


@pytest.mark.parametrize("shape", [(300, 3), (5, 40, 2), (1025,)])
def test_dimensions_and_long_runs(shape: tuple[int, ...], emulated: EmulatedCuda, seed: int) -> None:
    random = np.random.default_rng(seed)
    dim = int(np.argmax(shape))
    program = sorting("x".join(map(str, shape)), dim, "f32", "LT", ", TOTALORDER")
    places = np.arange(int(np.prod(shape))).reshape(shape).astype(np.int32)
    check([program], [[keys_of(random, shape, "f32"), places]], emulated)


def test_dynamic_lengths(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few launches or many, an even number or an odd one."""
    monkeypatch.setattr(sort_simt, "RUN", 8)
    monkeypatch.setattr(sort_simt, "MOST", 1 << 12)
    random = np.random.default_rng(seed)
    (made,) = compile_all([(program := sorting("?", 0, "i32", "LT"))], emulated.target())
    assert not isinstance(made, SmeltError), made
    for length in (0, 1, 8, 9, 32, 33, 129, 700, 3000):
        given = [random.integers(0, 50, length).astype(np.int32), np.arange(length, dtype=np.int32)]
        for got, want in zip(made(*given), run(program, given), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize(("length", "k"), [(100, 7), (600, 1), (600, 40), (2000, 2000)])
def test_largest_of_rows(length: int, k: int, emulated: EmulatedCuda, seed: int) -> None:
    program = parse(f"""func.func @main(%x: tensor<3x{length}xf32>) -> (tensor<3x{k}xf32>, tensor<3x{k}xi32>) {{
  %0:2 = chlo.top_k(%x, k = {k}) : tensor<3x{length}xf32> -> (tensor<3x{k}xf32>, tensor<3x{k}xi32>)
  return %0#0, %0#1 : tensor<3x{k}xf32>, tensor<3x{k}xi32>
}}""")
    check([program], [[keys_of(np.random.default_rng(seed), (3, length), "f32")]], emulated)
