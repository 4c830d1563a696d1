"""GEMMs of few rows: two narrow panels side by side, with the bits that a row has in any other batch."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from smelt.device import cpu
from smelt.dim import Size, symbol
from smelt.dtype import DType, bf16, f16, f32
from smelt.engine.compile import plan_program
from smelt.engine.native import compile_all
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.kernel.loops.grammar import Mma, walk_statements
from smelt.kernel.plan.plan import Launch, walk
from smelt.kernel.tune.schedules import no_schedule
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape
from smelt.weights import Weights

KINDS = {f32: np.float32, bf16: ml_dtypes.bfloat16, f16: np.float16}
ROWS = symbol("R")
# rows, depth, columns: whole pairs, a part of a panel, an odd number of panels, rows that do not fit in a cache
SIZES: tuple[tuple[Size, int, int], ...] = (
    *((rows, 300, 70) for rows in (1, 2, 3, 4, ROWS)),
    (ROWS, 130, 32),
    (1, 5, 48),
    (ROWS, 700, 100),
)


def product(rows: Size, depth: int, columns: int, stored: DType) -> Program:
    types = [Shape.of(f32, (rows, depth)), Shape.of(stored, (depth, columns))]
    f = FuncBuilder("main", types, arg_attrs=[{}, {WEIGHT: "w"}])
    x, w = f.args
    wide = f.convert(w, result=Shape.of(f32, (depth, columns))) if stored != f32 else w
    dims = DotDims((), (), (1,), (0,))
    return Program.of(f.func(f.dot_general(x, wide, dot_dimension_numbers=dims, result=Shape.of(f32, (rows, columns)))))


def products(program: Program, target: str) -> Iterator[Mma]:
    plan = plan_program(program, cpu.target(target), schedules=no_schedule).plans["main"][0]
    for step in walk(plan.steps):
        if isinstance(step, Launch):
            yield from (each for each in walk_statements(step.kernel.body) if isinstance(each, Mma))


@pytest.mark.parametrize("target", ["avx2", "plain"])
def test_a_few_rows_have_the_bits_of_many(target: str, seed: int) -> None:
    if not cpu.TARGETS[target].features <= cpu.target("native").features:
        pytest.skip(f"this processor has no {target}")
    random = np.random.default_rng(seed)
    cases = [(*sizes, stored) for sizes in SIZES for stored in (KINDS if sizes == (1, 300, 70) else (f32,))]
    many = {size: product(7, *size) for size in {case[1:] for case in cases}}
    made = compile_all([*(product(*case) for case in cases), *many.values()], cpu.target(target))
    wholes = dict(zip(many, made[len(cases) :], strict=True))
    for (rows, depth, columns, stored), few in zip(cases, made, strict=False):
        whole = wholes[depth, columns, stored]
        assert not isinstance(few, Exception), few
        assert not isinstance(whole, Exception), whole
        x = random.standard_normal((7, depth), np.float32)
        w = random.standard_normal((depth, columns)).astype(KINDS[stored])
        few, whole = (each.prepare(Weights.of({"w": w})) for each in (few, whole))
        expected = whole(x)[0]
        np.testing.assert_allclose(expected, x @ w.astype(np.float32), rtol=1e-4, atol=1e-4)
        for count in [rows] if isinstance(rows, int) else [1, 2, 3, 4, 7]:
            np.testing.assert_array_equal(few(x[:count])[0], expected[:count], err_msg=f"{rows} {columns} {stored}")


def test_only_narrow_panels_are_paired() -> None:
    for target, rows, panels in (("avx2", 1, True), ("avx2", 3, True), ("avx2", 4, False), ("avx512", 1, False)):
        (mma,) = products(product(rows, 300, 128, f32), target)
        assert (len(mma.b.sizes) == 3) is panels, (target, rows)
