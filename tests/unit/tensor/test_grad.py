# ruff: noqa: F722  # shapes are no forward references
"""Gradients of tensors and functions: structures, names, dynamic dimensions, control flow, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import smelt
from smelt import Shaped, Tensor, nn
from smelt.device.runtime import runtime
from smelt.engine.native import NativeEngine
from smelt.ir.interpret import run as interpret
from smelt.ir.text import parse
from smelt.passes import pipeline
from smelt.structure import leaves, map_leaves
from smelt.tensor import TensorError, trace

RNG = np.random.default_rng(7)


def draw(*sizes: int) -> np.ndarray:
    return RNG.normal(size=sizes).astype(np.float32)


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-5, atol=2e-6)


UP, DOWN, X = draw(4, 8), draw(8, 3), draw(5, 4)


def mlp(p: dict[str, Tensor], x: Tensor) -> Tensor:
    return x.dot(p["up"], "d").tanh().dot(p["down"], "f").log_softmax("c").mean()


def mlp_in_jax(p: dict[str, Any], x: Any) -> Any:
    return jax.nn.log_softmax(jnp.tanh(x @ p["up"]) @ p["down"]).mean()


def parameters() -> dict[str, Tensor]:
    return {"up": smelt.tensor(UP, "d f"), "down": smelt.tensor(DOWN, "f c")}


def test_a_loss_has_a_gradient_in_the_structure_and_with_the_names_of_its_parameters():
    p, x = parameters(), smelt.tensor(X, "b d")
    want = jax.grad(mlp_in_jax)({"up": UP, "down": DOWN}, X)
    for slopes in (mlp(p, x).grad(p), smelt.grad(mlp)(p, x), smelt.value_and_grad(mlp)(p, x)[1]):
        assert {name: each.axes for name, each in slopes.items()} == {"up": ("d", "f"), "down": ("f", "c")}
        for name in want:
            close(slopes[name], want[name])
    close(smelt.value_and_grad(mlp)(p, x)[0], mlp_in_jax({"up": UP, "down": DOWN}, X))
    both = smelt.grad(mlp, wrt=(0, 1))(p, x)
    close(both[1], jax.grad(mlp_in_jax, 1)({"up": UP, "down": DOWN}, X))


class Network(smelt.Model):
    def __init__(self) -> None:
        self.embed = nn.Embedding(v=11, d=8)
        self.norm = nn.LayerNorm(d=8)
        self.attention = nn.MultiHeadAttention(d=8, heads=2, head_size=4, causal=True)
        self.head = nn.Linear(d=8, v=11)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(nn.gelu(x + self.attention(self.norm(x))))


def _exchange(model: Any, old: Tensor, new: Tensor) -> Any:
    return map_leaves(model, lambda value: value is old, lambda _: new)


def test_a_model_is_a_structure_of_parameters():
    model = map_leaves(
        Network(),
        lambda value: isinstance(value, Tensor),
        lambda value: smelt.tensor(draw(*value.shape.numbers()), value.axes),
    )
    tokens = smelt.tensor(RNG.integers(0, 11, (2, 5)), "b s")

    def loss(model: Any) -> Tensor:
        return model(tokens).log_softmax("v").square().mean()

    slopes = smelt.grad(loss)(model)
    assert isinstance(slopes, Network)
    found = dict(leaves(slopes, lambda value: isinstance(value, Tensor)))
    given = dict(leaves(model, lambda value: isinstance(value, Tensor)))
    assert found.keys() == given.keys()
    step = 1e-2
    for path, value in given.items():  # against differences along one direction
        direction = draw(*value.shape.numbers())
        ends = [smelt.tensor(value.numpy() + h * direction, value.axes) for h in (-step, step)]
        low, high = (loss(_exchange(model, value, end)).item() for end in ends)
        slope = (high - low) / (2 * step)
        np.testing.assert_allclose(np.sum(found[path].numpy() * direction), slope, rtol=0.03, atol=2e-3, err_msg=path)


def test_sizes_stay_dynamic_and_proven():
    x = smelt.symbolic("f32[b=B, s=S, d=4]")
    w = smelt.tensor(UP, "d f")
    loss = (x.dot(w, "d").softmax("s")[1:] * 2.0).max("f").sum()
    slopes = loss.grad({"x": x, "w": w})
    assert str(slopes["x"].shape) == "f32[b=B, s=S, d=4]"
    assert slopes["w"].axes == ("d", "f")


def test_a_compiled_step_differentiates():
    def step(w: Shaped[Tensor, "f32[d=4, f=8]"], x: Shaped[Tensor, "f32[b=B, d=4]"]) -> Tensor:
        loss = x.dot(w, "d").square().sum()
        return w - 0.1 * loss.grad(w)

    run = smelt.compile(step)
    for count in (1, 3):
        x = draw(count, 4)
        close(run(UP, x).numpy(), UP - 0.1 * 2 * x.T @ (x @ UP))


def test_loops_and_branches():
    x = draw(4, 3)

    def recurrent(xs: Tensor) -> Tensor:
        last, ys = smelt.scan(lambda c, row: ((c + row).tanh(), c * row), smelt.zeros("f32[d=3]"), xs, "t")
        return (last * 2.0).sum() + ys.sum()

    def by_jax(xs: Any) -> Any:
        last, ys = jax.lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), jnp.zeros(3, jnp.float32), xs)
        return (last * 2).sum() + ys.sum()

    close(smelt.grad(recurrent)(smelt.tensor(x, "t d")), jax.grad(by_jax)(x))
    loop = smelt.grad(lambda y: smelt.fori_loop(3, lambda i, s: s.sin() * y, y).sum())
    close(loop(x), jax.grad(lambda y: jax.lax.fori_loop(0, 3, lambda i, s: jnp.sin(s) * y, y).sum())(x))
    branch = smelt.grad(lambda y: smelt.cond(y.sum() > 0, lambda: y * y, lambda: y.sin()).sum())
    close(branch(np.abs(x)), 2 * np.abs(x))
    close(branch(-np.abs(x)), np.cos(x))
    with pytest.raises(smelt.SmeltError, match="the number of its iterations is not known"):
        smelt.grad(lambda y: smelt.while_loop(lambda s: s.sum() < 9.0, lambda s: s * 2.0, y).sum())(np.abs(x))


def test_vjp_and_jvp_of_functions():
    x, seed = draw(3), draw(3)
    value, pull = smelt.vjp(lambda y: {"sine": y.sin(), "count": y.to("i32")}, x)
    close(value["sine"], np.sin(x))
    close(pull({"sine": smelt.tensor(seed)})[0], seed * np.cos(x))
    value, moved = smelt.jvp(lambda y: (y.sin(), y.to("i32")), [x], [seed])
    close(moved[0], seed * np.cos(x))
    assert moved[1] is None
    with pytest.raises(TensorError, match="another shape than the value"):
        smelt.vjp(lambda y: y, x)[1](draw(4))
    with pytest.raises(TensorError, match="one tangent for each argument"):
        smelt.jvp(lambda y: y, [x], [])


def test_an_argument_given_twice_has_two_gradients():
    x = smelt.tensor(draw(3))
    left, right = smelt.grad(lambda a, b: (a * b * b).sum(), wrt=(0, 1))(x, x)
    close(left, x.numpy() ** 2)
    close(right, 2 * x.numpy() ** 2)


def test_jacobian_and_hessian():
    x = draw(4)
    matrix = smelt.tensor(UP, "d f")
    found = smelt.jacobian(lambda y: y.dot(matrix, "d").tanh())(smelt.tensor(x, "d"))
    assert found.axes == ("f", "d")
    close(found, jax.jacobian(lambda y: jnp.tanh(y @ UP))(x))
    second = smelt.hessian(lambda y: y.dot(matrix, "d").tanh().sum())(smelt.tensor(x, "d"))
    assert second.axes == ("d", "d_wrt")
    close(second, jax.hessian(lambda y: jnp.tanh(y @ UP).sum())(x))
    third = smelt.jacobian(smelt.hessian(lambda y: (y * y * y * y).sum()))(smelt.tensor(x[:2]))
    close(third, jax.jacobian(jax.hessian(lambda y: (y**4).sum()))(x[:2]))
    nested = smelt.jacobian(lambda p: {"a": p[0] * p[1], "b": p[1]})((smelt.tensor(x), smelt.tensor(x)))
    close(nested["a"][0], np.diag(x))
    close(nested["b"][0], np.zeros((4, 4)))


def test_stop_gradient_keeps_the_value():
    x = smelt.tensor(draw(3), "d")
    close(smelt.stop_gradient(x * 2.0), 2 * x.numpy())
    close((smelt.stop_gradient({"x": x * x})["x"] * x).sum().grad(x), x.numpy() ** 2)
    held = smelt.symbolic("f32[b=2*B, d=3]")
    assert str((smelt.stop_gradient(held) * held).sum().grad(held).shape) == "f32[b=2*B, d=3]"


def test_custom_gradients_of_one_function_stay_apart():
    """The forward function is the same; what differs is a number in the backward function, or data around it."""
    x = smelt.tensor([1.0, 2.0])
    for factor in (2.0, 3.0):
        data = smelt.tensor([factor, 0.5])
        by_number = smelt.custom_gradient(lambda h: h * 1.0, lambda args, value, slope, k=factor: (slope * k,))
        by_data = smelt.custom_gradient(lambda h: h * 1.0, lambda args, value, slope, k=data: (slope * k,))
        assert smelt.grad(lambda h, f=by_number: f(h).sum())(x).tolist() == [factor, factor]
        assert smelt.grad(lambda h, f=by_data: f(h).sum())(x).tolist() == [factor, 0.5]


def test_remat_and_custom_gradients():
    w, x = smelt.tensor(UP, "d f"), smelt.tensor(X, "b d")
    block = smelt.remat(lambda h: h.dot(w, "d").tanh())
    close(block(x).sum().grad(w), x.dot(w, "d").tanh().sum().grad(w))
    close(block(x), np.tanh(X @ UP))
    clipped = smelt.custom_gradient(lambda h: h * 1.0, lambda args, value, slope: (slope * args[0] * 0.0 + 7.0,))
    close(smelt.grad(lambda y: clipped(y).sum())(x), np.full((5, 4), 7))
    with pytest.raises(smelt.SmeltError, match="no forward mode"):
        smelt.jvp(clipped, [x], [x])
    closed = smelt.custom_gradient(lambda h: h.dot(w, "d"), lambda args, value, slope: (args[0],))
    with pytest.raises(smelt.SmeltError, match="a tensor from around it"):
        closed(x).sum().grad(w)
    wrong = smelt.custom_gradient(lambda h: h * 2.0, lambda args, value, slope: (slope.sum(),))
    with pytest.raises(TensorError, match="one cotangent for each argument"):
        wrong(x)


def test_remat_computes_again_after_all_passes():
    """Its sines are computed twice; without it, once."""

    def loss(block: Any) -> Any:
        def of(x: Shaped[Tensor, "f32[b=B]"]) -> Tensor:
            return block(x).sum().grad(x) + block(x)

        program, _ = pipeline.run(trace(of).program)
        return sum(op.name == "stablehlo.sine" for op in program.main.body.ops)

    block = lambda x: x.sin().exp()  # noqa: E731
    assert loss(block) == 1
    assert loss(smelt.remat(block)) == 2


def test_a_rule_of_ones_own_survives_compilation():
    rounded = smelt.custom_gradient(lambda h: h.round(), lambda args, value, slope: (slope,))

    def loss(x: Shaped[Tensor, "f32[b=B]"]) -> Tensor:
        return (rounded(x) * 3.0).sum()

    program = smelt.vjp(trace(loss).program)
    x = draw(4)
    close(interpret(program, [x, np.array(1, "f")])[1], np.full(4, 3.0))


def test_a_parameter_that_was_computed_since_is_found():
    x = smelt.tensor(draw(3))
    y = x * 2.0
    loss = (y * y).sum()
    y.numpy()
    close(loss.grad(y), 2 * y.numpy())


def test_what_has_no_gradient_is_refused():
    x, n = smelt.tensor(draw(3)), smelt.tensor([1, 2])
    with pytest.raises(TensorError, match="the loss must be a scalar") as error:
        (x * 2.0).grad(x)
    assert ".sum()" in str(error.value)
    with pytest.raises(TensorError, match="its elements are i32"):
        x.sum().grad({"x": x, "n": n})
    with pytest.raises(TensorError, match="the loss must be a real number"):
        n.sum().grad(x)
    with pytest.raises(TensorError, match="nothing to differentiate by"):
        x.sum().grad([])
    loss = (x * x).sum()
    loss.item()
    with pytest.raises(TensorError, match="the loss has been computed"):
        loss.grad(x)
    with pytest.raises(smelt.SmeltError, match="code that the compiler cannot see"):
        smelt.custom_call(lambda a: a, "f32[3]", x).sum().grad(x)
    with pytest.raises(TensorError, match="there is no argument 3"):
        smelt.grad(lambda y: y.sum(), wrt=3)(x)
    with pytest.raises(TensorError, match="the loss is a float"):
        smelt.grad(lambda y: 1.0)(x)


@pytest.mark.skipif(NativeEngine().missing() is not None, reason="no compiler")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_gradients_of_an_embedding_are_sums_in_the_order_of_its_tokens(threads: int, seed: int):
    """To the bit, for any number of threads, however often a token occurs."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 7, (30, 20)).astype(np.int32)
    weights = rng.normal(size=(30, 20, 33)).astype(np.float32)
    table = smelt.tensor(rng.normal(size=(9, 33)).astype(np.float32), "v d")
    loss = (table.take(smelt.tensor(tokens, "b s"), "v") * smelt.tensor(weights, "b s d")).sum()
    before = runtime().threads
    runtime().set_threads(threads)
    try:
        slope = loss.grad(table)
        smelt.realize(slope, engine="native")
    finally:
        runtime().set_threads(before)
    expected = np.zeros((9, 33), np.float32)
    np.add.at(expected, tokens.ravel(), weights.reshape(-1, 33))
    assert slope.numpy().tobytes() == expected.tobytes()


def newton(x: Tensor, most: int) -> Tensor:
    """The square root of a number, to a precision that data decides."""
    start = x * 0.0 + 3.0
    return smelt.while_loop(lambda y: (y * y - x).abs() > 1e-5, lambda y: (y + x / y) * 0.5, start, most=most)


@pytest.mark.parametrize("engine", ["reference", "native", "pjrt"])
def test_a_loop_with_a_stated_maximum_has_a_gradient(engine: str):
    for number in (2.0, 9.0):  # some iterations, and none
        x = smelt.tensor(np.float32(number))
        value, slope = smelt.value_and_grad(lambda x: newton(x, 20) + x * 0.0)(x)
        smelt.realize(value, slope, engine=engine)
        assert value.item() == pytest.approx(number**0.5, rel=1e-5)
        assert slope.item() == pytest.approx(0.5 * number**-0.5 if number == 2.0 else 0.0, rel=1e-4)
    assert newton(smelt.tensor(2.0), 1).item() == pytest.approx((3 + 2 / 3) / 2)  # ends at the maximum
    assert newton(smelt.tensor(2.0), 0).item() == 3.0
    with pytest.raises(TensorError, match="nothing to run"):
        newton(smelt.tensor(2.0), -1)
    with pytest.raises(smelt.SmeltError, match="most=100"):
        smelt.grad(lambda x: smelt.while_loop(lambda y: y > 1.0, lambda y: y * x, x))(smelt.tensor(0.5))


def test_a_maximum_in_the_condition_of_an_imported_loop():
    def root(x: jax.Array) -> jax.Array:
        def going(state: tuple[Any, Any]) -> Any:
            i, y = state
            return (jnp.abs(y * y - x) > 1e-5) & (i < 20)

        return jax.lax.while_loop(going, lambda s: (s[0] + 1, (s[1] + x / s[1]) * 0.5), (0, 3.0 + 0 * x))[1]

    program = smelt.vjp(parse(jax.jit(root).lower(jnp.float32(2)).as_text()))
    value, slope = interpret(program, [np.array(2, np.float32), np.array(1, np.float32)])
    close(value, np.sqrt(2))
    assert float(slope) == pytest.approx(0.5 / np.sqrt(2), rel=1e-4)


def test_a_loop_up_to_a_number_in_a_tensor_has_a_gradient():
    """The data of a leaf says how often it runs; several numbers, or a fraction, say nothing."""

    def power(x: Tensor, limit: Tensor) -> Tensor:
        start = smelt.tensor(np.zeros((), limit.numpy().dtype))
        return smelt.while_loop(lambda i, y: i < limit, lambda i, y: (i + 1, y * x), start, x * 0.0 + 1.0)[1]

    for times in (0, 1, 4):
        slope = smelt.grad(lambda x, n=times: power(x, smelt.tensor(np.int32(n))))(smelt.tensor(np.float32(3)))
        assert slope.item() == times * 3.0 ** max(times - 1, 0)
    with pytest.raises(smelt.SmeltError, match="most=100"):
        smelt.grad(lambda x: power(x, smelt.tensor(np.float32(4))))(smelt.tensor(np.float32(3)))
