"""`smelt.vjp` and `smelt.jvp` of programs: higher orders, finite differences, engines, names and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import smelt
from smelt.engine.native import NativeEngine
from smelt.engine.pjrt import PjrtEngine
from smelt.engine.signature import signature_of
from smelt.ir.core import Program, walk
from smelt.ir.grad.rule import elementwise
from smelt.ir.interpret import run
from smelt.ir.text import parse, print_program
from smelt.passes.grad import jvp, vjp
from tests.unit.grad.cases import CASES, Case, Draw
from tests.unit.grad.test_rules import assert_close, draw_like, evaluate, lower

Array = np.ndarray
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(autouse=True, scope="module")
def x64() -> Iterator[None]:
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


SECOND = [
    *("tanh", "logistic", "pow", "div", "atan2", "erf", "lgamma", "sqrt", "complex exp", "complex abs", "clamp"),
    *("batched", "grouped", "batch groups", "all dilated", "logsumexp", "prod", "max over axes", "cumprod"),
    *("max pool", "padded sum", "take along", "add at", "put twice", "sort", "cholesky", "solve True True False"),
    *("rfft", "irfft", "fori", "scan", "cond", "cond in scan", "attention", "layer norm", "network", "gru"),
]


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_agree_with_jax(name: str, seed: int):
    """The cotangents of the cotangents, and the tangents of the cotangents."""
    case = BY_NAME[name]
    d = Draw(seed)
    inputs = case.inputs(d)
    program = lower(case.fn, *inputs)
    results = jax.tree.leaves(jax.eval_shape(case.fn, *inputs))
    seeds = tuple(draw_like(d, np.zeros(each.shape, each.dtype)) for each in results)

    def pull(inputs: Any, seeds: Any) -> Any:
        return jax.vjp(lambda *args: jax.tree.leaves(case.fn(*args)), *inputs)[1](list(seeds))

    outer = tuple(draw_like(d, value) for value in inputs)
    once = vjp(program)
    zeros = [np.zeros(each.shape, each.dtype) for each in results]
    got = run(vjp(once), [*inputs, *seeds, *zeros, *outer])[-len(inputs) - len(seeds) :]
    want = evaluate(lambda i, s, o: jax.tree.leaves(jax.vjp(pull, i, s)[1](o)), inputs, seeds, outer)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_close(a, b, f"reverse over reverse {i}")
    moved = run(jvp(once, range(len(inputs))), [*inputs, *seeds, *outer])[-len(inputs) :]
    want = evaluate(lambda i, s, o: jax.jvp(lambda *i: pull(i, s), i, o)[1], inputs, seeds, outer)
    for i, (a, b) in enumerate(zip(moved, want, strict=True)):
        assert_close(a, b, f"forward over reverse {i}")


FINITE = [
    case for case in CASES if "kink" not in case.tags and "rounds" not in case.tags and "complex" not in case.tags
]
STEPS = {"floor", "ceil", "round", "sign", "stop_gradient", "to integers", "argmax", "any", "several results"}


@pytest.mark.parametrize("case", [case for case in FINITE if case.name not in STEPS], ids=lambda case: case.name)
def test_a_rule_agrees_with_finite_differences(case: Case, seed: int):
    d = Draw(seed + 1)
    inputs = case.inputs(d)
    program = lower(case.fn, *inputs)
    tangents = tuple(d(*value.shape) for value in inputs)
    step = 1e-6

    def at(distance: float) -> list[Array]:
        return list(run(program, [np.asarray(x + distance * t) for x, t in zip(inputs, tangents, strict=True)]))

    with np.errstate(invalid="ignore"):  # a window of padding alone is infinite
        slopes = [(right - left) / (2 * step) for left, right in zip(at(-step), at(step), strict=True)]
    got = run(jvp(program), [*inputs, *tangents])[len(slopes) :]
    for i, (a, b) in enumerate(zip(got, slopes, strict=True)):
        np.testing.assert_allclose(a, np.nan_to_num(b), rtol=1e-5, atol=1e-6, err_msg=f"tangent {i}")


ENGINES = [
    "matmul",
    "grouped",
    "max pool",
    "padded sum",
    "take",
    "put",
    "logsumexp",
    "scan",
    "cond",
    "attention",
    "network",
]


@pytest.mark.parametrize("name", ENGINES)
def test_engines_agree(name: str, seed: int):
    case = BY_NAME[name]
    d = Draw(seed)
    inputs = tuple(value.astype(np.float32) for value in case.inputs(d))
    program = vjp(lower(case.fn, *inputs))
    seeds = [d(*arg.shape.numbers()).astype(np.float32) for arg in program.main.args[len(inputs) :]]
    want = run(program, [*inputs, *seeds])
    for engine in (NativeEngine(), PjrtEngine()):
        if engine.missing() is not None:
            continue
        got = engine.compile(program)(*inputs, *seeds)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            scale = max(float(np.abs(b).max(initial=0.0)), 1.0)
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * scale, err_msg=f"{type(engine).__name__} {i}")


SQUARE = parse("""
func.func @main(%x: tensor<3xf32>, %n: tensor<3xi32>) -> (tensor<3xf32>, tensor<3xi32>) {
  %0 = stablehlo.multiply %x, %x : tensor<3xf32>
  return %0, %n : tensor<3xf32>, tensor<3xi32>
}""")


def test_arguments_and_results_have_names():
    backward = vjp(SQUARE)
    assert [arg.name for arg in backward.main.args] == ["x", "n", "result0_cotangent"]
    assert [attrs["smelt.name"] for attrs in backward.main.result_attrs] == ["result0", "result1", "x_cotangent"]
    again = parse(print_program(backward))
    x, n, g = np.arange(3, dtype="f"), np.ones(3, "i"), np.ones(3, "f")
    assert run(again, [x, n, g])[2].tolist() == [0, 2, 4]
    assert [float(v) for v in run(jvp(SQUARE, ["x"]), [x, n, g])[2]] == [0, 2, 4]


def test_a_parameter_without_derivative_is_refused():
    with pytest.raises(smelt.SmeltError, match="the argument n has no derivative") as error:
        vjp(SQUARE, ["n"])
    assert error.value.remedy == "wrt=[…] with x"
    with pytest.raises(smelt.SmeltError, match="has no argument 'y'"):
        vjp(SQUARE, ["y"])
    with pytest.raises(smelt.SmeltError, match="has no argument 7"):
        jvp(SQUARE, [7])


CALL = parse("""
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.custom_call @mystery(%x) : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}""")


def test_a_path_without_derivative_is_refused_and_a_rule_of_ones_own_helps():
    for transform in (vjp, jvp):
        with pytest.raises(smelt.SmeltError, match="@mystery is code that the compiler cannot see"):
            transform(CALL)
    rule = elementwise(lambda b, g, x, y: b.multiply(g, x))
    backward = vjp(CALL, rules={"mystery": rule})
    x, g = np.arange(3, dtype="f"), np.full(3, 2, "f")
    assert run(backward, [x, g], callbacks={"mystery": lambda x: x})[1].tolist() == [0, 2, 4]


def test_an_endless_loop_is_refused_in_reverse_only():
    case = BY_NAME["while"]
    program = lower(case.fn, *case.inputs(Draw(1)))
    with pytest.raises(smelt.SmeltError, match="the number of its iterations is not known"):
        vjp(program)
    jvp(program)


def test_a_loop_runs_once_forward_and_keeps_what_its_backward_steps_read():
    """And not its results so far, which the loop carries as well: that would be quadratic."""
    case = BY_NAME["scan"]
    backward = vjp(lower(case.fn, *case.inputs(Draw(1))))
    loops = [op for op in walk(backward.main.body) if op.name in ("chlo.scan", "stablehlo.while")]
    assert [op.name for op in loops] == ["chlo.scan", "chlo.scan"]
    assert all(value.shape.rank <= 2 for op in loops for value in op.results)


def batch_norm(name: str, results: str, operands: str) -> Program:
    types = {"x": "2x3x2xf64", "f": "3xf64"}
    args = [(f"%{i}", types[kind]) for i, kind in enumerate(operands)]
    given = ", ".join(f"%a{i}: tensor<{kind}>" for i, (_, kind) in enumerate(args))
    taken = ", ".join(f"%a{i}" for i in range(len(args)))
    kinds = ", ".join(f"tensor<{kind}>" for _, kind in args)
    out = ", ".join(f"tensor<{types[kind]}>" for kind in results)
    made = ", ".join(f"%r#{i}" for i in range(len(results))) if len(results) > 1 else "%r"
    many = f":{len(results)}" if len(results) > 1 else ""
    return parse(
        f'func.func @main({given}) -> ({out}) {{ %r{many} = "stablehlo.{name}"({taken}) '
        f"{{epsilon = 0.1 : f32, feature_index = 1 : i64}} : ({kinds}) -> ({out}) return {made} : {out} }}"
    )


NORMS = [
    ("batch_norm_inference", "x", "xffff"),
    ("batch_norm_training", "xff", "xff"),
    ("batch_norm_grad", "xff", "xfffx"),
]
TEXTS = {
    "map": '%r = "stablehlo.map"(%a, %b) ({ ^bb0(%x: tensor<f64>, %y: tensor<f64>): '
    "%c = stablehlo.constant dense<2.0> : tensor<f64> %m = stablehlo.multiply %x, %y : tensor<f64> "
    "%n = stablehlo.add %m, %c : tensor<f64> stablehlo.return %n : tensor<f64> }) "
    "{dimensions = array<i64: 0, 1>} : (tensor<3x3xf64>, tensor<3x3xf64>) -> tensor<3x3xf64>",
    "dot": "%r = stablehlo.dot %a, %b : (tensor<3x3xf64>, tensor<3x3xf64>) -> tensor<3x3xf64>",
    "einsum": '%r = "stablehlo.einsum"(%a, %b) {einsum_config = "ij,kj->ki"} : '
    "(tensor<3x3xf64>, tensor<3x3xf64>) -> tensor<3x3xf64>",
    "broadcast_multiply": "%r = chlo.broadcast_multiply %a, %b : (tensor<3x3xf64>, tensor<3x3xf64>) -> tensor<3x3xf64>",
    "zeta": "%o = stablehlo.constant dense<3.0> : tensor<3x3xf64> %q = chlo.zeta %o, %b : tensor<3x3xf64>, "
    "tensor<3x3xf64> -> tensor<3x3xf64> %r = stablehlo.add %q, %a : tensor<3x3xf64>",
    "index_select": "%i = stablehlo.constant dense<[2, 0, 2]> : tensor<3xi64> "
    '%s = "stablehlo.torch_index_select"(%a, %i) {dim = 1 : i64, batch_dims = 0 : i64} : '
    "(tensor<3x3xf64>, tensor<3xi64>) -> tensor<3x3xf64> %r = stablehlo.multiply %s, %b : tensor<3x3xf64>",
    "scalar clamp": "%l = stablehlo.slice %a [0:1, 0:1] : (tensor<3x3xf64>) -> tensor<1x1xf64> "
    "%m = stablehlo.reshape %l : (tensor<1x1xf64>) -> tensor<f64> %h = stablehlo.constant dense<1.5> : tensor<f64> "
    "%r = stablehlo.clamp %m, %b, %h : (tensor<f64>, tensor<3x3xf64>, tensor<f64>) -> tensor<3x3xf64>",
    "upper cholesky": "%t = stablehlo.transpose %a, dims = [1, 0] : (tensor<3x3xf64>) -> tensor<3x3xf64> "
    "%p = stablehlo.dot %a, %t : (tensor<3x3xf64>, tensor<3x3xf64>) -> tensor<3x3xf64> "
    "%c = stablehlo.constant dense<[[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]]> : tensor<3x3xf64> "
    "%d = stablehlo.add %p, %c : tensor<3x3xf64> %u = stablehlo.cholesky %d, lower = false : tensor<3x3xf64> "
    "%r = stablehlo.multiply %u, %b : tensor<3x3xf64>",
}


def wrap(body: str) -> Program:
    kind = "tensor<3x3xf64>"
    return parse(f"func.func @main(%a: {kind}, %b: {kind}) -> {kind} {{ {body} return %r : {kind} }}")


OTHERS = {**{row[0]: batch_norm(*row) for row in NORMS}, **{name: wrap(body) for name, body in TEXTS.items()}}


@pytest.mark.parametrize("name", OTHERS)
def test_what_jax_does_not_write_agrees_with_finite_differences(name: str, seed: int):
    program = OTHERS[name]
    d = Draw(seed)
    inputs = [d.positive(*arg.shape.numbers()) for arg in program.main.args]
    tangents = [d(*x.shape) for x in inputs]
    left, right = (run(program, [x + h * t for x, t in zip(inputs, tangents, strict=True)]) for h in (-1e-6, 1e-6))
    moved = run(jvp(program), [*inputs, *tangents])[len(left) :]
    for a, b, slope in zip(left, right, moved, strict=True):
        np.testing.assert_allclose(slope, (b - a) / 2e-6, rtol=1e-5, atol=1e-6)
    seeds = [d(*x.shape) for x in left]
    back = run(vjp(program), [*inputs, *seeds])[len(left) :]
    inner = sum(np.sum(g * t) for g, t in zip(back, tangents, strict=True))
    assert_close(inner, sum(np.sum(s * m) for s, m in zip(seeds, moved, strict=True)), "the modes disagree")


def test_an_imported_model_has_gradients_by_its_weights(seed: int):
    """Against differences along one direction, and natively against the reference."""
    path = Path(smelt.__file__).parent / "assets" / "digits.onnx"
    program, weights = smelt.read(path)
    backward = vjp(program)
    rng = np.random.default_rng(seed)
    signature = signature_of(program.main)
    arrays = {port.name: weights[port.name].numpy() for port in signature.weights}
    x, g = rng.uniform(0, 1, (3, 64)).astype(np.float32), rng.normal(size=(3, 10)).astype(np.float32)
    order = [str(attrs.get("smelt.weight", "")) for attrs in program.main.arg_attrs]

    def evaluate_at(change: dict[str, Array]) -> Array:
        given = [change.get(name, arrays[name]) if name else x for name in order]
        return np.asarray(run(program, given)[0], np.float64)

    found = run(backward, [*(arrays[name] if name else x for name in order), g])
    names = [attrs["smelt.name"] for attrs in backward.main.result_attrs]
    for name, value in arrays.items():
        direction = np.asarray(rng.normal(size=value.shape), np.float32)
        low, high = (evaluate_at({name: value + np.float32(h) * direction}) for h in (-1e-2, 1e-2))
        slope = float(np.sum(g * (high - low) / 2e-2))
        got = float(np.sum(found[names.index(f"{name}_cotangent")] * direction))
        np.testing.assert_allclose(got, slope, rtol=0.05, atol=2e-3, err_msg=name)
    if NativeEngine().missing() is None:
        natively = NativeEngine().compile(backward).prepare(weights)(x, g)
        for a, b in zip(natively, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
