"""Accumulated gradients, skipped steps and mixed precision: against one large batch, and against JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import smelt
from smelt import Tensor, train

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(8, 3)).astype(np.float32), RNG.normal(size=8).astype(np.float32)
START = RNG.normal(size=3).astype(np.float32)


def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return train.mse(x.dot(p["w"], "d"), y)


def start() -> dict[str, Tensor]:
    return {"w": smelt.tensor(START, "d")}


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_parts_of_a_batch_are_one_batch(engine: str) -> None:
    whole = train.Trainer(loss, start(), train.adamw(0.1), "f32[b=8, d=3]", "f32[b=8]", engine=engine)
    optimiser = train.accumulate(train.adamw(0.1), 4)
    parts = train.Trainer(loss, start(), optimiser, "f32[b=2, d=3]", "f32[b=2]", engine=engine)
    for _ in range(3):
        whole.step(X, Y)
        for i in range(0, 8, 2):
            before = parts.parameters["w"].numpy()
            parts.step(X[i : i + 2], Y[i : i + 2])
            assert (parts.parameters["w"].numpy() == before).all() == (i < 6), "only the last part changes parameters"
    np.testing.assert_allclose(parts.parameters["w"].numpy(), whole.parameters["w"].numpy(), rtol=1e-5)
    assert parts.steps == 12


def test_accumulation_is_refused_without_batches() -> None:
    with pytest.raises(smelt.SmeltError, match="out of range"):
        train.accumulate(train.sgd(0.1), 0)


def test_an_infinite_step_changes_nothing() -> None:
    optimiser = train.skip_infinite(train.sgd(0.1, momentum=0.9))
    trainer = train.Trainer(loss, start(), optimiser, "f32[b=8, d=3]", "f32[b=8]", engine="reference")
    plain = train.Trainer(loss, start(), train.sgd(0.1, momentum=0.9), "f32[b=8, d=3]", "f32[b=8]", engine="reference")
    for x in (X, np.full_like(X, np.inf), X):
        trainer.step(x, Y)
    for _ in range(2):
        plain.step(X, Y)
    np.testing.assert_array_equal(trainer.parameters["w"].numpy(), plain.parameters["w"].numpy())
    assert trainer.steps == 3


WEIGHTS = {f"w{i}": (RNG.normal(size=(16, 16)) / 4).astype(np.float32) for i in range(2)}
ROWS = RNG.normal(size=(32, 16)).astype(np.float32)


def network(p: dict[str, Tensor], x: Tensor) -> Tensor:
    hidden = x.dot(p["w0"], "d").tanh().rename(e="d")
    return hidden.dot(p["w1"], "d").to("f32").square().mean()


@pytest.mark.parametrize(("element", "scale"), [("bf16", 1.0), ("f16", 1024.0)])
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_mixed_precision_agrees_with_jax(element: str, scale: float, engine: str) -> None:
    kind = {"bf16": jnp.bfloat16, "f16": jnp.float16}[element]

    def of(p: dict[str, jax.Array]) -> jax.Array:
        hidden = jnp.tanh(ROWS.astype(kind) @ p["w0"].astype(kind))
        value = ((hidden @ p["w1"].astype(kind)).astype(jnp.float32) ** 2).mean()
        return value

    weights = {name: smelt.tensor(value, "d e") for name, value in WEIGHTS.items()}
    trainer = train.Trainer(
        train.mixed(network, element, scale=scale), weights, train.sgd(1.0), "f32[b=32, d=16]", engine=engine
    )
    value = trainer.step(ROWS)
    want, slopes = jax.value_and_grad(of)(WEIGHTS)
    assert value == pytest.approx(float(want), rel=2e-2)
    for name, slope in slopes.items():
        assert str(trainer.parameters[name].dtype) == "f32"
        ours, theirs = WEIGHTS[name] - trainer.parameters[name].numpy(), np.asarray(slope)
        assert np.abs(ours - theirs).max() <= 2e-2 * np.abs(theirs).max()


def test_a_scale_saves_gradients_that_vanish_in_f16() -> None:
    small = lambda p, x: (x.dot(p, "d") * 1e-4).to("f32").sum() * 1e-4  # noqa: E731
    w, x = smelt.tensor([1.0, 2.0], "d"), smelt.tensor([[1.0, 1.0]], "b d")
    assert smelt.grad(train.mixed(small, "f16"))(w, x).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(smelt.grad(train.mixed(small, "f16", scale=4096))(w, x).numpy(), 1e-8, rtol=1e-2)
    with pytest.raises(smelt.SmeltError, match="narrow type"):
        train.mixed(small, "f64")


def test_a_dynamic_scale_follows_pytorchs_rules() -> None:
    """Doubled after three steps, halved by one that overflows, which changes nothing else. The factors are those of
    torch.amp.GradScaler(init_scale=4, growth_interval=3) on the same steps."""
    optimiser = train.accumulate(train.average(train.scale_loss(train.adam(0.1), 4.0, interval=3)), 1)
    start = {"w": smelt.tensor([1.0, 2.0], "d")}
    trainer = train.Trainer(lambda p, x: x.dot(p["w"], "d").mean(), start, optimiser, "f32[b=1, d=2]")
    plain = train.Trainer(lambda p, x: x.dot(p["w"], "d").mean(), start, train.adam(0.1), "f32[b=1, d=2]")
    x, found = np.array([[1.0, 3.0]], np.float32), []
    for step in range(8):
        overflows = step in (1, 5)
        assert trainer.step(x * np.float32(np.inf) if overflows else x) == pytest.approx(
            np.inf if overflows else plain.step(x), rel=1e-6
        )
        np.testing.assert_allclose(trainer.parameters["w"].numpy(), plain.parameters["w"].numpy(), rtol=1e-6)
        found.append(trainer.loss_scale)
    assert found == [4, 2, 2, 2, 4, 2, 2, 2]
    assert plain.loss_scale == 1


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_a_dynamic_scale_saves_gradients_that_vanish_in_f16(engine: str) -> None:
    small = train.mixed(lambda p, x: (x.dot(p["w"], "d") * 1e-4).to("f32").sum() * 1e-4, "f16")
    start = {"w": smelt.tensor([1.0, 2.0], "d")}
    x = np.ones((1, 2), np.float32)
    lost = train.Trainer(small, start, train.sgd(1e6), "f32[b=1, d=2]", engine=engine)
    lost.step(x)
    assert lost.parameters["w"].tolist() == [1.0, 2.0]
    kept = train.Trainer(small, start, train.scale_loss(train.sgd(1e6)), "f32[b=1, d=2]", engine=engine)
    kept.step(x)
    np.testing.assert_allclose(kept.parameters["w"].numpy(), [0.99, 1.99], rtol=1e-3)


def test_sizes_of_scaled_gradients_are_refused() -> None:
    scaled = train.average(train.scale_loss(train.sgd(0.1)))
    for wrap in (lambda o: train.clip(o, 1.0), train.skip_infinite, train.scale_loss):
        with pytest.raises(smelt.SmeltError, match="still multiplied by the loss scale"):
            wrap(scaled)
    with pytest.raises(smelt.SmeltError, match="out of range"):
        train.scale_loss(train.sgd(0.1), backoff=2.0)
