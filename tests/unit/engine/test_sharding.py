# ruff: noqa: F722  # shapes are no forward references
"""Programs over a mesh of devices: partitions, pieces, collectives that XLA adds, and the numbers of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import smelt
from examples import four_devices
from smelt import Shaped, Tensor
from smelt.device import pjrt
from smelt.dtype import Array
from smelt.engine.pjrt_mesh import MeshEngine
from smelt.errors import DeviceError, RunError, ShapeError, SizeError, UnsupportedError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.text import parse, print_program
from smelt.mesh import Mesh
from smelt.shape import Shape
from smelt.size import symbol
from smelt.weights import Weights

pytestmark = pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")


class MLP(smelt.Model):
    up: Shaped[Tensor, "f32[d=16, f=F]"]
    down: Shaped[Tensor, "f32[f=F, c=8]"]

    def forward(self, x: Shaped[Tensor, "f32[b=B, d=16]"]) -> Tensor:
        hidden = smelt.shard(x.dot(self.up, "d").relu(), b="data", f="model")
        return hidden.dot(self.down, "f")


def arrays(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"up": (16, 32), "down": (32, 8)}
    return {name: rng.standard_normal(sizes).astype(np.float32) for name, sizes in shapes.items()}


def expected(weights: dict[str, Array], x: Array) -> Array:
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    return np.maximum(x.astype(np.float64) @ wide["up"], 0) @ wide["down"]


# ---- meshes ----


def test_shards_cover_a_tensor() -> None:
    mesh = Mesh(a=2, b=3, split={"x": "b", "y": "a"})
    assert mesh.count == 6
    whole = np.arange(6 * 4 * 5).reshape(6, 4, 5)
    partition = mesh.partition(("x", "y", "z"))
    assert partition == ("b", "a", None)
    pieces = mesh.pieces(partition, whole.shape)
    assert len(pieces) == 6
    assert all(whole[piece].shape == (2, 2, 5) for piece in pieces)
    assert sorted(np.concatenate([whole[piece].ravel() for piece in pieces]).tolist()) == list(range(whole.size))
    assert whole[pieces[1]][0, 0, 0] == whole[2, 0, 0], "the last axis of the mesh counts fastest"
    assert len(mesh.owners((None, "a", None), whole.shape)) == 2
    with pytest.raises(ShapeError, match="cannot be split evenly"):
        mesh.pieces(partition, (5, 4, 5))


def test_wrong_meshes_are_named() -> None:
    with pytest.raises(ShapeError, match="no such axis"):
        Mesh(data=2, split={"b": "model"})
    with pytest.raises(ShapeError, match="axes with positive sizes"):
        Mesh()
    with pytest.raises(ShapeError, match="axes with positive sizes"):
        Mesh(data=0)


@pytest.mark.parametrize(
    ("partition", "tiles", "devices"),
    [
        (("data", None), [2, 1, 2], [0, 1, 2, 3]), ((None, "model"), [1, 2, 2], [0, 2, 1, 3]),
        (("data", "model"), [2, 2], [0, 1, 2, 3]), (("model", "data"), [2, 2], [0, 2, 1, 3]),
    ],
)  # fmt: skip
def test_tiles_of_a_partition(partition: tuple[str | None, ...], tiles: list[int], devices: list[int]) -> None:
    """By hand: device 2 * data + model; what is not split is repeated along the last dimension of the tiles."""
    client = MeshEngine("cpu", Mesh(data=2, model=2)).client
    made = client.sharding(partition)._hlo_sharding
    assert not made.is_replicated()
    assert (list(made.tile_assignment_dimensions()), list(made.tile_assignment_devices())) == (tiles, devices)
    assert client.sharding((None, None))._hlo_sharding.is_replicated()


# ---- programs ----


@pytest.mark.parametrize("axes", [{"data": 2, "model": 2}, {"model": 4}, {"model": 2, "data": 2}, {"data": 1}])
def test_results_are_those_of_one_device(axes: dict[str, int], seed: int) -> None:
    split = {name: along for name, along in {"b": "data", "f": "model"}.items() if along in axes}
    weights = arrays(seed)

    def forward(model: MLP, x: Tensor) -> Tensor:
        return x.dot(model.up, "d").relu().dot(model.down, "f")

    where = smelt.platform(mesh=Mesh(split, **axes))
    mlp = smelt.instantiate(MLP, Weights.of(weights))
    executable = smelt.compile(forward, mlp, "f32[b=B, d=16]", platform=where).prepare(weights)
    for b in (2, 6):
        x = np.random.default_rng(seed + b).standard_normal((b, 16)).astype(np.float32)
        result: Any = executable(x)
        np.testing.assert_allclose(result.numpy(), expected(weights, x), rtol=1e-4, atol=1e-4)
        assert result.partition == (("data" if "data" in axes else None), None)


def test_weights_are_sharded_and_partial_sums_are_added(seed: int, tmp_path: Path) -> None:
    weights = arrays(seed)
    save_file(weights, tmp_path / "mlp.safetensors")
    opened = smelt.open(tmp_path / "mlp.safetensors")
    where = smelt.platform(mesh=Mesh({"b": "data", "f": "model"}, data=2, model=2))
    mlp = smelt.instantiate(MLP, opened)
    executable, buffers = smelt.compile_and_load(mlp.forward, opened, "f32[b=4, d=16]", platform=where)
    placed: Any = buffers
    assert [piece.shape for piece in placed.up.pieces] == [(16, 16)] * 4
    assert [piece.shape for piece in placed.down.pieces] == [(16, 8)] * 4
    np.testing.assert_array_equal(placed.up.pieces[1], weights["up"][:, 16:])
    np.testing.assert_array_equal(placed.down.numpy(), weights["down"])
    told = where.stats()
    each = [told[f"bytes_in_use:{i}"] for i in range(4)]
    assert each == [(16 * 16 + 16 * 8) * 4] * 4, "no device holds all of a weight"
    bound = executable.prepare(placed)
    x = np.random.default_rng(seed).standard_normal((4, 16)).astype(np.float32)
    np.testing.assert_allclose(bound(x).numpy(), expected(weights, x), rtol=1e-4, atol=1e-4)
    text = print_program(bound.program)
    assert 'sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>' in text
    assert "sdy.sharding_constraint" in text
    assert print_program(parse(text)) == text
    partitioned = bound._resources().paths[0].compiled.partitioned_hlo()  # type: ignore[attr-defined]
    assert "all-reduce" in partitioned, "f is summed over devices"
    with pytest.raises(ShapeError, match="does not fit"):
        bound(x[:3])


def test_state_stays_on_the_devices(seed: int) -> None:
    where = smelt.platform(mesh=Mesh({"b": "data"}, data=4))

    def step(state: Tensor, x: Tensor) -> Tensor:
        return state + x

    executable = smelt.compile(step, "f32[b=8, d=2]", "f32[b=8, d=2]", platform=where, donate="state")
    x = np.random.default_rng(seed).standard_normal((8, 2)).astype(np.float32)
    first: Any = executable(np.zeros((8, 2), np.float32), x)
    second: Any = executable(first, x)
    assert [piece.shape for piece in second.pieces] == [(2, 2)] * 4
    np.testing.assert_allclose(second.numpy(), 2 * x, rtol=1e-6)
    with pytest.raises(RunError, match="was donated"):
        first.numpy()
    compiled: Any = executable._resources().paths[0].compiled
    assert "input_output_alias={ {}: (0, {}, may-alias) }" in compiled.partitioned_hlo(), "written in place"
    with pytest.raises(RunError, match="donated and given twice"):
        compiled(second, second)
    whole = second.copy()
    replicated = where.engine.client.put(whole.numpy(), whole.shape, (None, None))  # type: ignore[attr-defined]
    np.testing.assert_allclose(compiled(replicated, x)[0].numpy(), 3 * x, rtol=1e-6)
    assert replicated.is_deleted, "although its copy was donated"
    copy = second.copy()
    second.delete()
    np.testing.assert_allclose(copy.numpy(), 2 * x, rtol=1e-6)


def test_sizes_that_cannot_be_split_are_named(seed: int) -> None:
    weights = arrays(seed)
    where = smelt.platform(mesh=Mesh({"b": "data", "f": "model"}, data=2, model=2))
    bound = smelt.compile(smelt.instantiate(MLP, Weights.of(weights)).forward, platform=where).prepare(weights)
    with pytest.raises(ShapeError, match="cannot be split evenly"):
        bound(np.zeros((3, 16), np.float32))
    other = smelt.platform(mesh=Mesh({"b": "data", "f": "model"}, data=2, model=2))
    foreign: Any = Weights.of(weights).to_device(smelt.instantiate(MLP, Weights.of(weights)), other)
    with pytest.raises(DeviceError, match="another mesh"):
        smelt.compile(smelt.instantiate(MLP, Weights.of(weights)).forward, platform=where).prepare(foreign)


def test_refusals_of_the_engine_itself() -> None:
    """Programs that come without Python's checks: sizes that contradict each other, inputs that are missing."""
    with pytest.raises(UnsupportedError, match=r"unknown device\n +expected .*cpu.*\n +got +abacus"):
        MeshEngine("abacus", Mesh(data=2))
    f = FuncBuilder("main", [Shape("f32", symbol("N")), Shape("f32", symbol("N"))])
    made = MeshEngine("cpu", Mesh(data=2)).compile(Program.of(f.func(f.add(*f.args))))
    x = np.ones(4, np.float32)
    np.testing.assert_array_equal(made(x, x)[0].numpy(), x + x)
    with pytest.raises(SizeError, match=r"expected \['f32\[N\]', 'f32\[N\]'\]\n +got +\[\(4,\), \(2,\)\]"):
        made(x, x[:2])
    with pytest.raises(RunError, match="wrong number of inputs"):
        made(x)
    made.close()
    with pytest.raises(RunError, match="the executable is closed"):
        made(x, x)


@pytest.mark.parametrize("engine", ["reference", "native", "pjrt"])
def test_one_device_takes_no_notice(engine: str, seed: int) -> None:
    weights = arrays(seed)
    x = np.random.default_rng(seed).standard_normal((3, 16)).astype(np.float32)
    bound = smelt.compile(MLP().forward, engine=engine).prepare(weights)
    np.testing.assert_allclose(bound(x).numpy(), expected(weights, x), rtol=1e-4, atol=1e-4)


def test_a_transformer_agrees_with_one_device(seed: int) -> None:
    weights = four_devices.random_weights(seed)
    network = smelt.instantiate(four_devices.Network, Weights.of(weights))
    x = np.random.default_rng(seed).standard_normal((2, 5, four_devices.WIDTH)).astype(np.float32)
    alone = smelt.compile(network.forward, engine="reference").prepare(weights)(x).numpy()
    several = smelt.compile(network.forward, platform=smelt.platform(mesh=four_devices.MESH)).prepare(weights)(x)
    np.testing.assert_allclose(several.numpy(), alone, rtol=1e-4, atol=1e-4)
