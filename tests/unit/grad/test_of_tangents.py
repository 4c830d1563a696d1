"""Derivatives of tangents against JAX; loops by how they count, scans by their dimension, and broadcasting ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from smelt.errors import SmeltError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.grad.elementwise import BROADCAST
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.passes.grad import jvp, vjp
from smelt.shape import Shape
from tests.unit.grad.cases import CASES, Draw
from tests.unit.grad.test_rules import assert_close, draw_like, evaluate, lower

BY_NAME = {case.name: case for case in CASES}
SECOND = [
    *("tanh", "logistic", "pow", "div", "atan2", "erf", "sqrt", "clamp", "batched", "grouped", "all dilated", "prod"),
    *("logsumexp", "max over axes", "cumprod", "max pool", "padded sum", "take along", "add at", "sort", "cholesky"),
    *("solve True True False", "rfft", "fori", "scan", "cond", "cond in scan", "attention", "layer norm", "gru"),
]


@pytest.fixture(autouse=True, scope="module")
def x64() -> Iterator[None]:
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("name", SECOND)
def test_derivatives_of_tangents_agree_with_jax(name: str, seed: int) -> None:
    """The tangents of the tangents, and the cotangents of the tangents."""
    case, d = BY_NAME[name], Draw(seed)
    inputs = case.inputs(d)
    once = jvp(lower(case.fn, *inputs))
    tangents, moves, turns = (tuple(draw_like(d, value) for value in inputs) for _ in range(3))

    def push(inputs: Any, tangents: Any) -> Any:
        return jax.jvp(lambda *args: jax.tree.leaves(case.fn(*args)), inputs, tangents)[1]

    want = evaluate(lambda i, t, m, n: jax.jvp(push, (i, t), (m, n))[1], inputs, tangents, moves, turns)
    got = run(jvp(once), [*inputs, *tangents, *moves, *turns])[-len(want) :]
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_close(a, b, f"forward over forward {i}")
    seeds = [draw_like(d, value) for value in want]
    zeros = [np.zeros_like(value) for value in want]
    back = run(vjp(once), [*inputs, *tangents, *zeros, *seeds])[-2 * len(inputs) :]
    wanted = evaluate(lambda i, t, s: jax.tree.leaves(jax.vjp(push, i, t)[1](list(s))), inputs, tangents, tuple(seeds))
    for i, (a, b) in enumerate(zip(back, wanted, strict=True)):
        assert_close(a, b, f"reverse over forward {i}")


# ---- loops ----

# start, test of the counter %i against %n, limit, step; how often x becomes x * x + x
LOOPS: dict[str, tuple[int, str, int, int, int]] = {
    "below": (0, "LT, %i, %n", 3, 1, 3),
    "at most": (1, "LE, %i, %n", 3, 1, 3),
    "by twos": (0, "LT, %i, %n", 5, 2, 3),
    "by twos, at most": (0, "LE, %i, %n", 4, 2, 3),
    "down": (5, "GT, %i, %n", 2, -1, 3),
    "down to": (5, "GE, %i, %n", 3, -1, 3),
    "down by threes": (7, "GT, %i, %n", 0, -3, 3),
    "other": (0, "NE, %i, %n", 3, 1, 3),
    "other, down": (3, "NE, %i, %n", 0, -1, 3),
    "above the counter": (0, "GT, %n, %i", 3, 1, 3),
    "not below the counter": (1, "GE, %n, %i", 3, 1, 3),
    "below the counter": (4, "LT, %n, %i", 1, -1, 3),
    "not above the counter": (4, "LE, %n, %i", 2, -1, 3),
    "never": (4, "LT, %i, %n", 3, 1, 0),
    "never down": (3, "GE, %i, %n", 4, -1, 0),
}
CONDITIONS = {
    "a comparison": "stablehlo.return %t : tensor<i1>",
    "differs from false": "%f = stablehlo.constant dense<false> : tensor<i1> "
    "%u = stablehlo.compare NE, %t, %f : (tensor<i1>, tensor<i1>) -> tensor<i1> stablehlo.return %u : tensor<i1>",
    "through a number": "%c = stablehlo.convert %t : (tensor<i1>) -> tensor<i8> "
    "%f = stablehlo.constant dense<false> : tensor<i1> %z = stablehlo.convert %f : (tensor<i1>) -> tensor<i8> "
    "%u = stablehlo.compare NE, %c, %z : (tensor<i8>, tensor<i8>) -> tensor<i1> stablehlo.return %u : tensor<i1>",
    "with another": "%s = stablehlo.compare LT, %n, %m : (tensor<i32>, tensor<i32>) -> tensor<i1> "
    "%u = stablehlo.and %s, %t : tensor<i1> stablehlo.return %u : tensor<i1>",
}


def loop(start: int, test: str, limit: int, step: int, condition: str = CONDITIONS["a comparison"]) -> Any:
    return parse(f"""
func.func @main(%x: tensor<2xf64>) -> tensor<2xf64> {{
  %b = stablehlo.constant dense<{start}> : tensor<i32>
  %n = stablehlo.constant dense<{limit}> : tensor<i32>
  %m = stablehlo.constant dense<100> : tensor<i32>
  %d = stablehlo.constant dense<{step}> : tensor<i32>
  %r:2 = stablehlo.while(%i = %b, %y = %x) : tensor<i32>, tensor<2xf64>
  cond {{
    %t = stablehlo.compare {test} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    {condition}
  }} do {{
    %j = stablehlo.add %i, %d : tensor<i32>
    %p = stablehlo.multiply %y, %y : tensor<2xf64>
    %q = stablehlo.add %p, %y : tensor<2xf64>
    stablehlo.return %j, %q : tensor<i32>, tensor<2xf64>
  }}
  return %r#1 : tensor<2xf64>
}}""")


def check_loop(program: Any, times: int, seed: int) -> None:
    """Value and gradient of x → x² + x, so many times, by the chain rule."""
    d = Draw(seed)
    x, g = d.positive(2), d(2)
    value, slope = x, np.ones(2)
    for _ in range(times):
        value, slope = value * value + value, slope * (2 * value + 1)
    made = run(vjp(program), [x, g])
    assert_close(made[0], value, "value")
    assert_close(made[1], slope * g, "cotangent")
    assert_close(run(jvp(program), [x, g])[1], slope * g, "tangent")


@pytest.mark.parametrize("name", LOOPS)
def test_loops_by_how_they_count(name: str, seed: int) -> None:
    start, test, limit, step, times = LOOPS[name]
    check_loop(loop(start, test, limit, step), times, seed)


@pytest.mark.parametrize("name", CONDITIONS)
def test_loops_by_how_their_condition_is_made(name: str, seed: int) -> None:
    check_loop(loop(0, "LT, %i, %n", 3, 1, CONDITIONS[name]), 3, seed)


@pytest.mark.parametrize(
    ("test", "limit", "step"),
    [("NE, %i, %n", 4, 2), ("LT, %i, %n", 3, 0), ("LT, %i, %n", 3, -1), ("GT, %i, %n", -3, 1), ("EQ, %i, %n", 0, 1)],
)
def test_loops_that_do_not_say_how_often_they_run(test: str, limit: int, step: int) -> None:
    """They have tangents, but nothing says how much a reverse sweep must keep."""
    program = loop(0, test, limit, step)
    jvp(program)
    with pytest.raises(SmeltError):
        vjp(program)


# ---- broadcasting ops ----

OTHERS = {
    "a row and a matrix": ("3", "2x3", "%r = chlo.broadcast_multiply %a, %b {broadcast_dimensions = array<i64: 1>}"),
    "a column and a matrix": ("2", "2x3", "%r = chlo.broadcast_divide %a, %b {broadcast_dimensions = array<i64: 0>}"),
    "a matrix and a row": ("2x3", "3", "%r = chlo.broadcast_power %a, %b"),
    "a matrix and a number": ("2x3", "", "%r = chlo.broadcast_subtract %a, %b"),
    "alike": ("2x3", "2x3", "%r = chlo.broadcast_atan2 %a, %b"),
}


def tensor(sizes: str) -> str:
    return f"tensor<{sizes}xf64>" if sizes else "tensor<f64>"


def check_slopes(program: Program, seed: int) -> None:
    """Tangents by finite differences, cotangents by tangents: <back(s), t> is <s, forward(t)>."""
    d = Draw(seed)
    inputs = [np.asarray(d.positive(*arg.shape.numbers()) + 0.5) for arg in program.main.args]
    tangents = [np.asarray(d(*x.shape)) for x in inputs]
    left, right = (
        run(program, [np.asarray(x + h * t) for x, t in zip(inputs, tangents, strict=True)]) for h in (-1e-6, 1e-6)
    )
    moved = run(jvp(program), [*inputs, *tangents])[len(left) :]
    for slope, a, b in zip(moved, left, right, strict=True):
        np.testing.assert_allclose(slope, (b - a) / 2e-6, rtol=1e-5, atol=1e-6)
    seeds = [np.asarray(d(*x.shape)) for x in left]
    back = run(vjp(program), [*inputs, *seeds])[len(left) :]
    assert [each.shape for each in back] == [x.shape for x in inputs]
    inner = sum(np.sum(g * t) for g, t in zip(back, tangents, strict=True))
    assert_close(inner, sum(np.sum(s * m) for s, m in zip(seeds, moved, strict=True)), "the modes disagree")


@pytest.mark.parametrize("name", OTHERS)
def test_broadcasting_ops_agree_with_finite_differences(name: str, seed: int) -> None:
    first, second, op = OTHERS[name]
    a, b, r = tensor(first), tensor(second), tensor("2x3")
    check_slopes(
        parse(f"func.func @main(%a: {a}, %b: {b}) -> {r} {{ {op} : ({a}, {b}) -> {r} return %r : {r} }}"), seed
    )


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_scans_over_any_dimension_agree_with_finite_differences(dimension: int, back: bool, seed: int) -> None:
    """Of two inputs, with a carry that decays and one that grows."""
    sizes = (2, 3, 4)
    rest = sizes[:dimension] + sizes[dimension + 1 :]
    f = FuncBuilder("main", [Shape("f64", *sizes)] * 2 + [Shape("f64", *rest)] * 2)
    with f.region(*[Shape("f64", *rest)] * 4) as r:
        x, y, total, last = r.args
        more = r.add(r.multiply(x, total), y)
        r.result(r.multiply(more, last), more, r.add(last, x))
    made = f.op("chlo.scan", *f.args, dimension=dimension, is_reverse=back, regions=[r.body])
    check_slopes(Program.of(f.func(*made.results)), seed)


@pytest.mark.parametrize(
    ("name", "sizes", "attrs"),
    [
        ("add", [(2, 3), (3,)], {}),
        ("subtract", [(3,), (2, 3)], {}),
        ("multiply", [(2,), (2, 3)], {"broadcast_dimensions": (0,)}),
        ("divide", [(2, 3), (2, 3)], {}),
        ("power", [(2, 3), ()], {}),
        ("zeta", [(3,), (2, 3)], {"broadcast_dimensions": (1,)}),
        ("select", [(), (2, 3), (3,)], {}),
        ("select", [(2, 3), (), (2, 3)], {}),
    ],
)
def test_broadcasting_ops_are_spelled_out(name: str, sizes: list[tuple[int, ...]], attrs: Any, seed: int) -> None:
    """Their rule: the plain op on operands of the result's shape."""
    kinds = ["i1" if name == "select" and i == 0 else "f64" for i in range(len(sizes))]
    f = FuncBuilder("main", [Shape(kind, *each) for kind, each in zip(kinds, sizes, strict=True)])
    op = f.op(f"chlo.broadcast_{name}", *f.args, **attrs)
    expand = BROADCAST[op.name].expand
    assert expand is not None
    (made,) = expand(f, op)
    assert made.op is not None
    assert made.op.name.partition(".")[2] == name
    d = Draw(seed)
    inputs = [d.positive(*each) + 1.5 for each in sizes]
    given = [np.asarray(x > 2.0 if kind == "i1" else x) for x, kind in zip(inputs, kinds, strict=True)]
    whole, plain = run(Program.of(f.func(op.result, made)), given)
    assert whole.shape == (2, 3)
    np.testing.assert_array_equal(plain, whole)
