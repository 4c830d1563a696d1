"""Rematerialisation: the same results, fewer tensors kept for the backward pass, and nothing else changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import smelt
from smelt.engine.compile import plan_program
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse, print_program
from smelt.ir.verify import verify
from smelt.kernel.plan import reorder
from smelt.passes import pipeline, rematerialise

LAYERS, WIDTH, ROWS = 3, 8, 4


def loss(x: jax.Array, *weights: jax.Array) -> jax.Array:
    for w in weights:
        y = x @ w
        centred = y - y.mean(0)
        x = jax.nn.gelu(centred * jax.lax.rsqrt((centred**2).mean(0) + 1e-5), approximate=True)
    return (x * x).sum()


def backward(rows: int, width: int) -> Program:
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in [(rows, width), *[(width, width)] * LAYERS]]
    return smelt.vjp(parse(jax.jit(loss).lower(*shapes).as_text()))


def prepared(program: Program) -> Program:
    """Without the calls and common subexpressions that earlier passes remove."""
    return pipeline.run(program, until="simplify")[0]


def test_the_same_results_from_copies_before_far_readers(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(rematerialise, "LARGE", 4 * ROWS * WIDTH)
    monkeypatch.setattr(rematerialise, "FAR", 10)
    program = prepared(backward(ROWS, WIDTH))
    after = rematerialise.rematerialise(program)
    verify(after)
    assert print_program(after) == print_program(rematerialise.rematerialise(program)), "in the same order every time"
    count = [sum(op.name == "stablehlo.tanh" for op in each.main.body.ops) for each in (program, after)]
    assert count[1] >= count[0] + LAYERS - 1, "activations are computed again"
    random = np.random.default_rng(seed)
    args = [random.normal(size=arg.shape.numbers()).astype(np.float32) for arg in program.main.args]
    for ours, theirs in zip(run(after, args), run(program, args), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    again = rematerialise.rematerialise(after)
    assert len(again.main.body.ops) == len(after.main.body.ops), "once is enough"


def test_less_memory_and_short_programs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    program = backward(16384, 64)
    small = reorder.peak(plan_program(program).main[0])
    monkeypatch.setattr(rematerialise, "FAR", 1 << 30)
    assert small <= 0.8 * reorder.peak(plan_program(program).main[0])
    forward = prepared(parse(jax.jit(loss).lower(*[jnp.zeros((64, 64))] * (1 + LAYERS)).as_text()))
    monkeypatch.undo()
    assert rematerialise.rematerialise(forward) is forward
