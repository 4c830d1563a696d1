"""Data parallelism: a batch split over a mesh trains as on one device; what is not split, and where it is kept."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from bench.train import transformer
from smelt import Tensor, train
from smelt.device import pjrt
from smelt.device.pjrt import PjrtBuffer
from smelt.device.pjrt_mesh import MeshBuffer
from smelt.errors import ShapeError, UnsupportedError

SIZES = transformer.Sizes(vocabulary=13, width=32, layers=1, heads=2, context=16, batch=4)
without_xla = pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")


def small_transformer(**options: Any) -> train.Trainer:
    loss, shapes = transformer.smelt_loss(SIZES)
    start = transformer.draw_weights(SIZES)
    weights = {name: smelt.tensor(value, transformer.axes_of(name)) for name, value in start.items()}
    return train.Trainer(loss, weights, train.adamw(1e-2), *shapes, **options)


@without_xla
def test_a_batch_over_several_devices_gives_the_losses_of_one(tmp_path: Path) -> None:
    """And a checkpoint of several devices goes on with one."""
    batches = [transformer.draw_batch(SIZES, step) for step in range(5)]
    one = small_transformer(engine="pjrt")
    mesh = smelt.Mesh(data=2, split={"b": "data"})
    several = small_transformer(mesh=mesh)
    np.testing.assert_allclose(
        [several.step(*batch) for batch in batches[:4]], [one.step(*batch) for batch in batches[:4]], rtol=2e-5
    )
    assert isinstance(several._state["parameters"]["head"], MeshBuffer), "the state stays on the devices"
    assert "all-reduce" in several._step.compiled.partitioned_hlo(), "gradients are added up"
    several.save(tmp_path / "run.safetensors")
    resumed = small_transformer(engine="pjrt")
    resumed.load(tmp_path / "run.safetensors")
    assert resumed.steps == 4
    assert resumed.step(*batches[4]) == pytest.approx(several.step(*batches[4]), rel=2e-5)


@without_xla
def test_meshes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="splits no axis of the batch"):
        small_transformer(mesh=smelt.Mesh(data=2, split={"z": "data"}))
    with pytest.raises(ShapeError, match="cannot be split evenly"):
        small_transformer(mesh=smelt.Mesh(data=3, split={"b": "data"}))
    with pytest.raises(UnsupportedError):
        small_transformer(engine="native", mesh=smelt.Mesh(data=2, split={"b": "data"}))


def line(p: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor) -> Tensor:
    return (x.dot(p["w"], "d") + fixed["bias"]).square().mean()


def test_a_mesh_of_one_device_runs_on_every_engine() -> None:
    made = train.Trainer(
        line,
        {"w": smelt.tensor(np.ones((2, 3), np.float32), "d c")},
        train.sgd(0.1),
        "f32[b=4, d=2]",
        frozen={"bias": smelt.tensor(np.ones(3, np.float32), "c")},
        engine="reference",
        mesh=smelt.Mesh(data=1, split={"b": "data"}),
    )
    assert made.step(np.ones((4, 2), np.float32)) == 9.0


@without_xla
def test_frozen_tensors_are_placed_once_and_the_first_parameters_are_freed() -> None:
    start = {"w": smelt.tensor(np.ones((2, 3), np.float32), "d c")}
    data = start["w"].value
    before = sys.getrefcount(data)
    made = train.Trainer(
        line,
        start,
        train.adam(0.1),
        "f32[b=4, d=2]",
        frozen={"bias": smelt.tensor(np.ones(3, np.float32), "c")},
        engine="pjrt",
    )
    gc.collect()
    assert sys.getrefcount(data) == before
    placed = made._frozen[0]["bias"]
    assert isinstance(placed, PjrtBuffer)
    assert made.step(np.ones((4, 2), np.float32)) == 9.0
    assert made._frozen[0]["bias"] is placed
