"""Products of the same rows by several weights: one product on a GPU, with the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.device.cuda import TARGETS
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.passes import merge_dots, pipeline
from smelt.passes.fuse_attention import COMPOSITES
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape
from smelt.size import symbol

MATRIX = DotDims((), (), (1,), (0,))
DEPTH = 40


def products(rows: Any, columns: list[int], weights: int) -> Program:
    """x times matrices, of which the first ones are weights; one is negated before, the result of another after."""
    marks: list[dict[str, Any]] = [{}, *({WEIGHT: f"w{i}"} if i < weights else {} for i in range(len(columns)))]
    shapes = [Shape("f32", rows, DEPTH), *(Shape("f32", DEPTH, size) for size in columns)]
    f = FuncBuilder("main", shapes, ["x", *(f"w{i}" for i in range(len(columns)))], marks)
    x, *matrices = f.args
    matrices[1] = f.negate(matrices[1])
    made = [
        f.dot_general(x, w, dot_dimension_numbers=MATRIX, result=Shape("f32", rows, w.shape.sizes[1])) for w in matrices
    ]
    return Program.of(f.func(f.negate(made[0]), *made[1:]))


@pytest.mark.parametrize(
    ("columns", "weights", "left"),
    [
        ([64, 128, 192], 3, 1),
        ([64, 100, 64], 3, 2),  # a panel that is not whole stays alone
        ([64, 64, 64], 2, 2),  # no weight
        ([64, 64, merge_dots.MANY_COLUMNS], 3, "many columns"),
    ],
)
@pytest.mark.parametrize("rows", [3, symbol("R")])
def test_dots_of_the_same_rows(rows: Any, columns: list[int], weights: int, left: int | str, seed: int) -> None:
    if left == "many columns":  # they are merged where there are few rows
        left = 1 if rows == 3 else 2
    program = products(rows, columns, weights)
    found, _ = pipeline.run(program, composites=COMPOSITES, target=TARGETS["sm_90"], until="merge_dots")
    assert [op.name for op in found.main.body.ops].count("smelt.packed_dot") == left
    random = np.random.default_rng(seed)
    x = random.standard_normal((3, DEPTH), np.float32)
    held = [random.standard_normal((DEPTH, size), np.float32) for size in columns]
    for got, expected in zip(run(found, [x, *held]), run(program, [x, *held]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
