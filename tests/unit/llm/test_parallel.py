"""Tensor parallelism: a decoder over the devices of a mesh gives the tokens of one device (XLA's CPU client, split)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.device import pjrt
from smelt.errors import DeviceError, RunError, ShapeError, SmeltError, UnsupportedError
from smelt.llm.families import read_config
from smelt.llm.parallel import make_mesh
from smelt.mesh import Mesh
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint

NEEDS_XLA = pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")
CASES = {case.name: case for case in Case.load(FIXTURE)}


def test_axes_are_split_where_the_devices_divide_them() -> None:
    config = read_config(CASES["llama"].config, "config.json")
    assert (config.heads, config.kv_heads, config.f, config.v) == (4, 2, 64, 96)
    assert set(make_mesh(config, 2).split) == {"e", "g", "f", "v"}
    assert set(make_mesh(config, 4).split) == {"e", "f", "v"}
    assert set(make_mesh(config, 8).split) == {"f", "v"}
    assert not make_mesh(config, 7).split
    assert make_mesh(config, 7).count == 7
    mixture = read_config(CASES["mixtral"].config, "config.json")
    counts = {layer.experts.count for layer in mixture.layers if layer.experts is not None}
    assert ("e" in make_mesh(mixture, 2).split) == all(count % 2 == 0 for count in counts)


@NEEDS_XLA
def test_tokens_are_those_of_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["llama"]
    write_checkpoint(tmp_path, case.config, case.shapes)
    with smelt.llm.load(tmp_path, devices=2) as model:
        step: Any = model._step
        assert model.generate(case.tokens, max_tokens=10, ignore_end=True).ids == tuple(case.ids[:10])
        got = model.logits(case.tokens)
        assert np.abs(got - case.logits).max() <= 1e-4 * np.abs(case.logits).max()
        engine: Any = model._engine
        pools = engine.between_steps(lambda: engine.pool._arrays)
        assert all(each.partition == (None, "model", None, None) for pair in pools for each in pair)
        buffers = step.placed.buffers
        assert buffers["layers.0.mlp.down.weight"].partition == ("model", None)
        assert buffers["layers.0.attn.q.weight"].partition == (None, "model")
        assert buffers["embed.weight"].partition == ("model", None)
        monkeypatch.setattr(step._on.engine, "free_memory", lambda: 800)
        assert step.free_memory == 800


@NEEDS_XLA
def test_a_mesh_says_itself_what_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["llama"]
    write_checkpoint(tmp_path, case.config, case.shapes)
    with smelt.llm.load(tmp_path, mesh=Mesh({"f": "columns"}, rows=2, columns=2), cache="bf16") as model:
        assert model.generate(case.tokens, max_tokens=1, ignore_end=True).ids == tuple(case.ids[:1])
        step: Any = model._step
        monkeypatch.setattr(step._on.engine, "free_memory", lambda: 800)
        assert step.free_memory == 200  # heads are not split: every device has all keys and values
    with pytest.raises(ShapeError, match="cannot be split evenly"):
        smelt.llm.load(tmp_path, mesh=Mesh({"v": "model"}, model=5))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"devices": 0}, RunError, "devices of one model"),
        ({"devices": True}, RunError, "devices of one model"),
        pytest.param({"devices": 10**6}, DeviceError, "too many devices", marks=NEEDS_XLA),
        ({"devices": 2, "mesh": Mesh(model=2)}, RunError, "mesh and devices"),
        ({"mesh": 2}, RunError, "the mesh of a model"),
        ({"devices": 2, "engine": "native"}, SmeltError, "native"),
        ({"devices": 2, "device": "abacus"}, UnsupportedError, "unknown device"),
    ],
)
def test_meshes_that_are_refused(options: Any, error: type[SmeltError], message: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CASES["llama"].config, CASES["llama"].shapes)
    with pytest.raises(error) as caught:
        smelt.llm.load(tmp_path, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("size", [0, "2", 2.0])
def test_an_axis_of_a_mesh_is_a_whole_number(size: Any) -> None:
    with pytest.raises(ShapeError, match="positive sizes"):
        Mesh(model=size)
