"""Weights of 16 bits stay 16 bits: products and lookups have the bits of those by widened weights."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import smelt
from smelt.buffer import HostBuffer
from smelt.dim import symbol
from smelt.dtype import DType, bf16, f16, f32, i32
from smelt.engine.compile import lower
from smelt.engine.native import compile_all
from smelt.ir.attributes import DotDims, GatherDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape

KINDS = {bf16: ml_dtypes.bfloat16, f16: np.float16}


def program(stored: DType) -> Program:
    """x[R, 300] by w[70, 300], and rows of w."""
    rows = symbol("R")
    types = [Shape.of(f32, (rows, 300)), Shape.of(i32, (rows,)), Shape.of(stored, (70, 300))]
    f = FuncBuilder("main", types, arg_attrs=[{}, {}, {WEIGHT: "w"}])
    x, places, w = f.args
    wide = f.convert(w, result=Shape.of(f32, (70, 300))) if stored != f32 else w
    dims = DotDims((), (), (1,), (1,))
    made = f.dot_general(x, wide, dot_dimension_numbers=dims, result=Shape.of(f32, (rows, 70)))
    looked = GatherDims((1,), (0,), (), (), (0,), 1)
    return Program.of(f.func(made, f.gather(wide, places, dimension_numbers=looked, slice_sizes=(1, 300))))


@pytest.mark.parametrize("stored", [bf16, f16], ids=str)
def test_products_and_lookups_have_the_same_bits(stored: DType, seed: int) -> None:
    random = np.random.default_rng(seed)
    w = (random.standard_normal((70, 300)) * 10.0 ** random.integers(-6, 4, (70, 300))).astype(KINDS[stored])
    narrow, wide = compile_all([program(stored), program(f32)])
    bound: list[Any] = []
    for made, weights in ((narrow, w), (wide, w.astype(np.float32))):
        assert not isinstance(made, Exception), made
        bound.append(made.prepare(smelt.Weights.of({"w": HostBuffer.of(weights)})))
    for rows in (0, 1, 7, 400):
        x = random.standard_normal((rows, 300), np.float32)
        places = random.integers(0, 70, rows).astype(np.int32)
        for got, want in zip(*(each(x, places) for each in bound), strict=True):
            np.testing.assert_array_equal(got, want)
    held = [value.shape for value in lower(program(stored)).funcs["prepare"].results]
    assert {shape.dtype for shape in held} == {stored}, "nothing is bound in f32"
