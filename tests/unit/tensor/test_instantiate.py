# ruff: noqa: F722  # shapes are no forward references
"""`smelt.instantiate`: shapes and configuration from checkpoints, and one report of everything that does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import smelt
from smelt import Shaped, Tensor, nn
from smelt.errors import ShapeError, SmeltError
from smelt.structure import leaves, map_leaves, zip_leaves
from smelt.weights import Weights


class Block(smelt.Model):
    wide: Shaped[Tensor, "[d=D, f=4*D]"]
    heads: int
    scale: Shaped[Tensor, "f32[d=D]"] | None


class Net(smelt.Model):
    table: Shaped[Tensor, "f32[v=V, d=D]"]
    layers: list[Block]
    kind: str = "plain"


def arrays(d: int = 2, layers: int = 3) -> dict[str, Any]:
    made: dict[str, Any] = {"table": np.zeros((5, d), np.float32)}
    return made | {f"layers.{i}.wide": np.zeros((d, 4 * d), np.float16) for i in range(layers)}


def test_shapes_and_layers_come_from_the_file(tmp_path: Path) -> None:
    save_file(arrays(), tmp_path / "model.safetensors", {"kind": "fancy", "heads": "2"})
    net = smelt.instantiate(Net, smelt.open(tmp_path / "model.safetensors"))
    assert len(net.layers) == 3
    assert str(net.layers[1].wide.shape) == "f16[d=2, f=8]"
    assert net.layers[0].scale is None, "an optional weight that is not there"
    assert net.layers[2].heads == 2
    assert net.kind == "fancy"
    (tmp_path / "config.json").write_text(json.dumps({"heads": 4, "kind": "other", "vocabulary": 3}))
    net = smelt.instantiate(Net, smelt.open(tmp_path), kind="mine")
    assert (net.layers[0].heads, net.kind) == (4, "mine")


def test_a_prefix_is_part_of_the_names() -> None:
    weights = Weights.of({f"encoder.{name}": array for name, array in arrays().items()})
    net = smelt.instantiate(Net, weights, "encoder", heads=1)
    assert [tensor.value.name for _, tensor in net.walk()][:2] == ["encoder.table", "encoder.layers.0.wide"]
    placed = weights.to_device(net, smelt.platform(engine="reference"))
    assert placed.table.numpy().shape == (5, 2)
    with pytest.raises(ShapeError, match=r"no name begins with 'decoder\.'"):
        smelt.instantiate(Net, weights, "decoder", heads=1, layers=1)


def test_every_mistake_is_in_one_report() -> None:
    given = arrays()
    given["layers.0.wide"] = np.zeros((3, 8), np.float16)
    given["layers.1.wide"] = np.zeros((2, 9), np.float16)
    given["layers.2.wide"] = np.zeros(2, np.float16)
    given["tables"] = given.pop("table").astype(np.float64)
    with pytest.raises(ShapeError) as caught:
        smelt.instantiate(Net, Weights.of(given), heads=1)
    text = str(caught.value)
    assert "5 mistakes" in text
    assert "table: missing, f32[v=V, d=D]; did you mean tables?" in text
    assert "layers.1.wide: axis d is 2, but D is 3 in layers.0.wide" in text
    assert "layers.0.wide: axis f is 8, but 4*D is 12" in text
    assert "layers.1.wide: axis f is 9, but 4*D is 12" in text
    assert "layers.2.wide: it has 1 axes, not 2" in text
    given["table"] = given.pop("tables")
    with pytest.raises(ShapeError, match=r"is f64, not f32; expected f32\[v=V, d=D\], got f64\[5, 2\]"):
        smelt.instantiate(Net, Weights.of(given), heads=1)


def test_unknown_names_are_answered_with_similar_ones() -> None:
    with pytest.raises(SmeltError, match="takes no head") as caught:
        smelt.instantiate(Net, Weights.of(arrays()), head=3)
    assert caught.value.remedy == "did you mean heads?"
    extra = Weights.of({**arrays(), "tabel": np.zeros(1, np.float32)})
    smelt.instantiate(Net, extra, heads=1)
    with pytest.raises(ShapeError, match=r"tabel: the model has no such field; did you mean table\?"):
        smelt.instantiate(Net, extra, strict=True, heads=1)


def test_a_constructor_takes_its_parameters_from_the_configuration(tmp_path: Path) -> None:
    class Own(smelt.Model):
        def __init__(self, hidden_size: int, eps: float = 0.5) -> None:
            self.norm = nn.LayerNorm(d=hidden_size, epsilon=eps)
            self.eps = eps

    save_file(
        {"norm.weight": np.ones(3, np.float32), "norm.bias": np.ones(3, np.float32)}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 3, "other": 7}))
    weights = smelt.open(tmp_path)
    assert smelt.instantiate(Own, weights).eps == 0.5
    assert smelt.instantiate(Own, weights, eps=1.0).eps == 1.0
    with pytest.raises(SmeltError, match="takes no epss"):
        smelt.instantiate(Own, weights, epss=1.0)
    with pytest.raises(ShapeError, match="axis d is 3, not 4"):
        smelt.instantiate(Own, weights, hidden_size=4)
    empty = Weights.of({})
    with pytest.raises(SmeltError, match="hidden_size"):
        smelt.instantiate(Own, empty)


def test_nothing_is_read(tmp_path: Path) -> None:
    stored = Weights.of(arrays())
    touched: list[str] = []
    original = Weights.__getitem__

    class Watched(Weights):
        def __getitem__(self, name: str) -> Any:
            touched.append(name)
            return original(self, name)

    watched = Watched({name: stored.find(name) for name in stored})
    smelt.instantiate(Net, watched, heads=1)
    assert not touched


# ---- structures ----


class Holder:
    def __init__(self) -> None:
        self.value: Any = [1, (2, {"a": 3})]
        self.me = self
        self.text = "four"


def is_number(value: Any) -> bool:
    return isinstance(value, int)


def test_structures_are_walked_and_rebuilt() -> None:
    holder = Holder()
    assert list(leaves(holder, is_number)) == [("value.0", 1), ("value.1.0", 2), ("value.1.1.a", 3)]
    copy = map_leaves(holder, is_number, lambda number: number * 10)
    assert copy.value == [10, (20, {"a": 30})]
    assert copy.me is copy
    assert holder.value == [1, (2, {"a": 3})]
    shared = [layer := Holder(), layer]
    first, second = map_leaves(shared, is_number, str)
    assert first is second


def test_structures_side_by_side() -> None:
    found = list(zip_leaves({"a": [1, 2]}, {"a": ["x", "y"]}, is_number, "s"))
    assert found == [("s.a.0", 1, "x"), ("s.a.1", 2, "y")]
    for other in ({"a": ["x"]}, {"a": ["x", "y", "z"]}, {"b": 1}, {"a": ["x", "y"], "b": 0}, 7):
        with pytest.raises(ShapeError):
            list(zip_leaves({"a": [1, 2]}, other, is_number, "s"))
