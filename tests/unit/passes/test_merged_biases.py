"""Products of the same bf16 rows by several weights, each with a bias and rounded: one product with one bias."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.device.cuda import TARGETS
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.passes import pipeline
from smelt.passes.fuse_attention import COMPOSITES
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape
from smelt.size import symbol

DEPTH, COLUMNS = 64, [64, 128]


def program(rows: Any, batch: int, rounds: bool, biases: str) -> Program:
    """x times two matrices; `biases`: weights, of which there is one for each column, or an argument of the call."""
    shapes = [Shape("bf16", batch, rows, DEPTH), *(Shape("bf16", DEPTH, size) for size in COLUMNS)]
    shapes += [Shape("f32", size) for size in COLUMNS]
    names = ["x", "w0", "w1", "b0", "b1"]
    weights = {"w0", "w1", *(("b0", "b1") if biases == "weights" else ())}
    f = FuncBuilder("main", shapes, names, [{WEIGHT: name} if name in weights else {} for name in names])
    x, *others = f.args
    made = []
    for w, b in zip(others[:2], others[2:], strict=True):
        sizes = (batch, rows, w.shape.sizes[1])
        dot = f.dot_general(x, w, dot_dimension_numbers=DotDims((), (), (2,), (0,)), result=Shape("f32", *sizes))
        added = f.add(dot, f.broadcast_in_dim(b, broadcast_dimensions=(2,), result=Shape("f32", *sizes)))
        made.append(f.convert(added, result=Shape("bf16", *sizes)) if rounds else added)
    return Program.of(f.func(*made))


@pytest.mark.parametrize(
    ("rows", "batch", "rounds", "biases", "left"),
    [
        (symbol("R"), 1, True, "weights", 1),
        (symbol("R"), 2, True, "weights", 1),
        (80, 1, True, "weights", 1),
        (80, 1, False, "weights", 2),
        (80, 1, True, "arguments", 2),
    ],
)
def test_biases_are_merged_with_their_products(
    rows: Any, batch: int, rounds: bool, biases: str, left: int, seed: int
) -> None:
    found = merged(program(rows, batch, rounds, biases))
    names = Counter(op.name for op in found.main.body.ops)
    assert names["stablehlo.convert"] == rounds * left
    assert names["stablehlo.concatenate"] == (2 if left == 1 else 0), "of the weights and of the biases"
    check(found, batch, seed)


@pytest.mark.parametrize(("rounds", "biases"), [(False, "weights"), (True, "arguments")])
def test_products_of_a_dynamic_number_of_rows_are_merged_without_biases(rounds: bool, biases: str, seed: int) -> None:
    """There may be few."""
    found = merged(program(symbol("R"), 1, rounds, biases))
    names = Counter(op.name for op in found.main.body.ops)
    assert names["smelt.packed_dot"] == 1
    assert names["stablehlo.concatenate"] == 1, "of the weights"
    assert names["stablehlo.convert"] == 2 * rounds
    check(found, 1, seed)


def merged(given: Program) -> Program:
    return pipeline.run(given, composites=COMPOSITES, target=TARGETS["sm_90"], until="merge_dots")[0]


def check(found: Program, batch: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = random.standard_normal((batch, 80, DEPTH)).astype(ml_dtypes.bfloat16)
    matrices = [random.standard_normal((DEPTH, size)).astype(ml_dtypes.bfloat16) for size in COLUMNS]
    vectors = [random.standard_normal(size).astype(np.float32) for size in COLUMNS]
    for got, w, b in zip(run(found, [x, *matrices, *vectors]), matrices, vectors, strict=True):
        want = x.astype(np.float64) @ w.astype(np.float64) + b
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, atol=2e-2)
