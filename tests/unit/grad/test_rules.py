"""Every gradient rule against JAX's gradient of the same program, in both modes and on random shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from smelt.ir.attributes import ConvDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.grad.rule import Rule
from smelt.ir.grad.table import TABLE
from smelt.ir.interpret import run
from smelt.ir.ops import OPS
from smelt.ir.text import parse
from smelt.passes.grad import jvp, vjp
from smelt.shape import Shape
from tests.unit.grad.cases import CASES, Case, Draw

Array = np.ndarray


@pytest.fixture(autouse=True, scope="module")
def x64() -> Any:
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def lower(fn: Callable[..., Any], *inputs: Any) -> Program:
    """What JAX makes of a function for a device without LAPACK: ops, not calls."""
    traced = jax.jit(fn, keep_unused=True).trace(*inputs)
    return parse(traced.lower(lowering_platforms=("tpu",)).as_text())


def evaluate(fn: Callable[..., Any], *inputs: Any) -> tuple[Array, ...]:
    """The results of JAX's program, by the reference: XLA would take longer to compile it than all of this test."""
    return run(lower(fn, *inputs), jax.tree.leaves(inputs))


def draw_like(d: Draw, like: Any) -> Array:
    shape = np.shape(like)
    return d.complex(*shape) if np.iscomplexobj(like) else d(*shape)


def assert_close(got: Any, want: Any, what: str) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-9, atol=1e-9, err_msg=what)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rule_agrees_with_jax(case: Case, seed: int):
    d = Draw(seed)
    inputs = case.inputs(d)
    program = lower(case.fn, *inputs)
    tangents = tuple(draw_like(d, value) for value in inputs)
    shapes = jax.tree.leaves(jax.eval_shape(case.fn, *inputs))
    floats = [i for i, shape in enumerate(shapes) if shape.dtype.kind in "fc"]

    def push(inputs: Any, tangents: Any) -> Any:
        moved = jax.tree.leaves(jax.jvp(case.fn, inputs, tangents)[1])
        return [moved[i] for i in floats]

    got = run(jvp(program), [*inputs, *tangents])[len(shapes) :]
    if not case.tags & {"reverse", "unlike"}:  # JAX has no forward rule, or no tidy one at ties
        for i, (a, b) in enumerate(zip(got, evaluate(push, inputs, tangents), strict=True)):
            assert_close(a, b, f"tangent {i}")
    if "forward" in case.tags:
        return
    seeds = [draw_like(d, np.zeros(shapes[i].shape, shapes[i].dtype)) for i in floats]
    found = run(vjp(program), [*inputs, *seeds])[len(shapes) :]
    left = sum(np.sum(seed * each) for seed, each in zip(seeds, got, strict=True))
    right = sum(np.sum(g * t) for g, t in zip(found, tangents, strict=True))
    if "rounds" not in case.tags:
        assert_close(np.real(right), np.real(left), "the modes disagree")
    if "own" in case.tags:  # JAX has no transpose
        return

    def pull(inputs: Any, seeds: Any) -> Any:
        _, back = jax.vjp(lambda *args: [jax.tree.leaves(case.fn(*args))[i] for i in floats], *inputs)
        return back(list(seeds))

    for i, (a, b) in enumerate(zip(found, evaluate(pull, inputs, tuple(seeds)), strict=True)):
        assert_close(a, b, f"cotangent {i}")


def test_every_op_has_a_rule_or_a_reason():
    assert TABLE.keys() == OPS.keys()
    for name, row in TABLE.items():
        if isinstance(row, Rule):
            stated = [row.jvp, row.vjp, row.expand, row.zero, row.refused]
            assert any(stated), name
            assert not ((row.zero or row.refused) and (row.jvp or row.vjp or row.expand)), name


def test_a_convolution_without_attributes_has_their_defaults(seed: int):
    d = Draw(seed)
    dims = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))
    defaults: dict[str, Any] = {
        "window_strides": (1, 1), "padding": ((0, 0), (0, 0)), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1),
        "window_reversal": (False, False),
    }  # fmt: skip
    found = []
    x, w, g = d(2, 3, 6, 5), d(4, 3, 3, 2), d(2, 4, 4, 4)
    groups: dict[str, Any] = {"feature_group_count": 1, "batch_group_count": 1}
    for attrs in ({}, defaults):
        f = FuncBuilder("main", [Shape("f64", *x.shape), Shape("f64", *w.shape)])
        program = Program.of(f.func(f.convolution(*f.args, dimension_numbers=dims, **groups, **attrs)))
        found.append([*run(vjp(program), [x, w, g]), *run(jvp(program), [x, w, x, w])])
    for got, want in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)
