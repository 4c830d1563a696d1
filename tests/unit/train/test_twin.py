"""The transformer of bench/train learns as its twins do: the same losses from the same weights and batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import smelt
from bench.train import transformer, worker
from smelt import train

SIZES = transformer.Sizes(vocabulary=13, width=32, layers=1, heads=2, context=16, batch=4)
STEPS, RATE = 20, 0.3
# PyTorch's losses with AdamW, written by `worker.start_torch(transformer, SIZES, "transformer")` of torch 2.13.0.
PYTORCH = [
    *(2.577934, 2.511594, 2.495155, 2.430508, 2.390178, 2.389038, 2.30946, 2.275935, 2.24286, 2.273236),
    *(2.221642, 2.158183, 2.203261, 2.146631, 2.123886, 2.06301, 2.013888, 2.018645, 2.009502, 1.985563),
]


def test_loss_curves_agree_with_jax() -> None:
    loss, shapes = transformer.smelt_loss(SIZES)
    start = transformer.draw_weights(SIZES)
    weights = {name: smelt.tensor(value, transformer.axes_of(name)) for name, value in start.items()}
    trainer = train.Trainer(loss, weights, train.sgd(RATE), *shapes, engine="native")
    twin = jax.jit(jax.value_and_grad(transformer.jax_loss(SIZES)))
    theirs = {name: jnp.asarray(value) for name, value in start.items()}
    curves = []
    for step in range(STEPS):
        batch = transformer.draw_batch(SIZES, step)
        value, slopes = twin(theirs, *batch)
        theirs = {name: each - RATE * slopes[name] for name, each in theirs.items()}
        curves.append((trainer.step(*batch), float(value)))
    ours, wanted = np.array(curves).T
    np.testing.assert_allclose(ours, wanted, atol=1e-3)
    assert ours[-1] < ours[0] - 0.1, "it learns"


def test_loss_curves_agree_with_pytorch() -> None:
    step = worker.start_smelt(transformer, SIZES, "transformer")
    ours = [step(transformer.draw_batch(SIZES, i)) for i in range(len(PYTORCH))]
    np.testing.assert_allclose(ours, PYTORCH, atol=1e-4)
