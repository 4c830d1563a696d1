"""Gradients of collectives: the losses of all processes are summed, so the transpose goes through all of them."""

from __future__ import annotations

import numpy as np
import pytest

import smelt
from smelt.ir.interpret import World, run_grid
from smelt.ir.text import parse
from smelt.passes.grad import jvp, vjp

SUM = (
    "({ ^bb0(%a: tensor<f64>, %b: tensor<f64>): %s = stablehlo.add %a, %b : tensor<f64> "
    "stablehlo.return %s : tensor<f64> })"
)
GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
OPS = {
    "all_reduce": (f'"stablehlo.all_reduce"(%y) {SUM} {{{GROUPS}}}', "2x4"),
    "all_gather": (f'"stablehlo.all_gather"(%y) {{all_gather_dim = 1 : i64, {GROUPS}}}', "2x8"),
    "reduce_scatter": (f'"stablehlo.reduce_scatter"(%y) {SUM} {{scatter_dimension = 1 : i64, {GROUPS}}}', "2x2"),
    "all_to_all": (
        '"stablehlo.all_to_all"(%y) {split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, '
        f"{GROUPS}}}",
        "4x2",
    ),
    "collective_permute": (
        '"stablehlo.collective_permute"(%y) {source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}',
        "2x4",
    ),
}


def program(op: str, result: str) -> smelt.Program:
    return parse(
        f"func.func @main(%x: tensor<2x4xf64>) -> tensor<{result}xf64> {{ %y = stablehlo.sine %x : tensor<2x4xf64> "
        f"%r = {op} : (tensor<2x4xf64>) -> tensor<{result}xf64> return %r : tensor<{result}xf64> }}"
    )


@pytest.mark.parametrize("name", OPS)
def test_the_modes_agree_over_all_processes(name: str, seed: int):
    rng = np.random.default_rng(seed)
    op, result = OPS[name]
    made = program(op, result)
    sizes = [int(size) for size in result.split("x")]
    xs, ts = (rng.normal(size=(2, 2, 4)) for _ in range(2))
    seeds = rng.normal(size=(2, *sizes))

    def on_both(each: smelt.Program, *arrays: np.ndarray) -> list[np.ndarray]:
        grid = [[(each.main, tuple(array[i] for array in arrays))] for i in range(2)]
        return [row[0][-1] for row in run_grid(World(each, {}), grid)]

    moved, back = on_both(jvp(made), xs, ts), on_both(vjp(made), xs, seeds)
    left = sum(np.sum(g * m) for g, m in zip(seeds, moved, strict=True))
    right = sum(np.sum(b * t) for b, t in zip(back, ts, strict=True))
    np.testing.assert_allclose(left, right, rtol=1e-12)
    low, high = (on_both(made, xs + h * ts) for h in (-1e-6, 1e-6))
    for slope, a, b in zip(moved, low, high, strict=True):
        np.testing.assert_allclose(slope, (b - a) / 2e-6, rtol=1e-5, atol=1e-7)


def test_other_reductions_over_processes_are_refused():
    made = program(OPS["all_reduce"][0].replace("stablehlo.add", "stablehlo.maximum"), "2x4")
    with pytest.raises(smelt.SmeltError, match="by another body than a sum"):
        vjp(made)
