"""Quantised folders whose tensors are wrong: a clear error for each, at open or when the weight is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.errors import SmeltError
from smelt.llm.quantised_folder import read_quantised
from smelt.weights import Weights
from tests.hostile.bundle_fuzz import _twist
from tests.llm_quantised import KINDS, Tensors

X = np.random.default_rng(0).standard_normal((16, 256), np.float32)


def read(tensors: Tensors, config: Any) -> None:
    given = Weights.of({f"l.{part}": array for part, array in tensors.items()})
    weights, _, ordered = read_quantised(given, config, "config.json", lambda names: ())
    for name in weights:
        assert weights[name].numpy().shape == weights.shape(name).numbers()
    for each in ordered.values():
        assert each.stored.load().shape == each.stored.shape.numbers()


def put(part: str, change: Callable[[Any], Any]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, part: np.ascontiguousarray(change(tensors[part].copy()))}


def drop(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: array for name, array in tensors.items() if name != part}


def first(value: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array.reshape(-1)[0] = value
        return array

    return change


WRONG: list[tuple[str, str, Callable[[Tensors], Tensors]]] = [
    *(("gptq", f"no {part}", drop(part)) for part in ("scales", "qzeros")),
    ("gptq", "scales of other rows", put("scales", lambda x: x[:, :-1])),
    ("gptq", "scales of more axes", put("scales", lambda x: x[None])),
    ("gptq", "scales that are integers", put("scales", lambda x: x.view(np.int16))),
    ("gptq", "a scale that is no number", put("scales", first(np.nan))),
    ("gptq", "an infinite scale", put("scales", first(np.inf))),
    ("gptq", "no scales", put("scales", lambda x: x[:0])),
    ("gptq", "fewer groups than inputs need", put("scales", lambda x: x[:1])),
    ("gptq", "zero points of other rows", put("qzeros", lambda x: x[:, :-1])),
    ("gptq", "zero points of other groups", put("qzeros", lambda x: x[:1])),
    ("gptq", "codes that are floats", put("qweight", lambda x: x.view(np.float32))),
    ("gptq", "codes without axes", put("qweight", lambda x: x[0, 0])),
    ("gptq", "rows that are no whole words", put("qweight", lambda x: x[:, :-1])),
    ("gptq", "no rows", put("qweight", lambda x: x[:, :0])),
    ("gptq", "fewer inputs", put("qweight", lambda x: x[:-1])),
    ("gptq", "groups of fewer inputs", put("g_idx", lambda x: x[:-1])),
    ("gptq", "a negative group", put("g_idx", first(-1))),
    ("gptq", "a group without a scale", put("g_idx", first(2))),
    ("gptq", "an absurd group", put("g_idx", first(2**31 - 1))),
    ("gptq", "a weight besides", lambda tensors: {**tensors, "weight": X}),
    *(("awq", f"no {part}", drop(part)) for part in ("scales", "qzeros")),
    ("awq", "scales of other groups", put("scales", lambda x: x[:-1])),
    ("awq", "zero points of other rows", put("qzeros", lambda x: x[:, :-1])),
    ("awq", "a scale that is no number", put("scales", first(np.nan))),
    ("awq", "fewer inputs", put("qweight", lambda x: x[:100])),
    *(("packed", f"no {part}", drop(part)) for part in ("weight_scale", "weight_shape")),
    ("packed", "another shape", put("weight_shape", first(17))),
    ("packed", "a negative shape", put("weight_shape", lambda x: np.array([16, -256]))),
    ("packed", "a huge shape", put("weight_shape", lambda x: np.array([16, 2**62]))),
    ("packed", "a shape of three sizes", put("weight_shape", lambda x: np.array([16, 256, 1]))),
    ("packed", "groups that do not divide", put("weight_scale", lambda x: x[:, :3])),
    ("packed", "more groups than inputs", put("weight_scale", lambda x: np.ones((16, 300), x.dtype))),
    ("packed", "a scale that is no number", put("weight_scale", first(np.nan))),
    ("packed-asymmetric", "no zero points", drop("weight_zero_point")),
    ("packed-asymmetric", "fewer zero points", put("weight_zero_point", lambda x: x[:1])),
    ("packed-asymmetric", "large zero points", put("weight_zero_point", lambda x: np.full((16, 2), 99, np.int8))),
    ("int8", "no scale", drop("weight_scale")),
    ("int8", "scales of other rows", put("weight_scale", lambda x: x[:-1])),
    ("int8", "bytes without a sign", put("weight", lambda x: x.view(np.uint8))),
    ("float8", "no scale", drop("weight_scale")),
    ("float8", "two scales", put("weight_scale", lambda x: np.ones(2, np.float32))),
    ("fp8", "no scale", drop("weight_scale_inv")),
    ("fp8", "no weight", drop("weight")),
    ("fp8", "a scale too few", put("weight_scale_inv", lambda x: x[:, :1])),
    ("fp8", "a scale that is no number", put("weight_scale_inv", first(np.nan))),
    ("fp8", "another type", put("weight", lambda x: x.view(ml_dtypes.float8_e5m2))),
    ("fp8", "three axes", put("weight", lambda x: x[None])),
]


@pytest.mark.parametrize(
    ("name", "change"), [pytest.param(name, change, id=f"{name}: {what}") for name, what, change in WRONG]
)
def test_wrong_tensors(name: str, change: Callable[[Tensors], Tensors]) -> None:
    kind = KINDS[name]
    tensors, _ = kind.make(X, **kind.options)
    with pytest.raises(SmeltError) as caught:
        read(change(tensors), kind.config)
    assert caught.value.remedy


@pytest.mark.parametrize("name", KINDS)
def test_configurations_that_say_anything(name: str, seed: int) -> None:
    """Fields of other types and values: an error, or a matrix of the right sizes."""
    kind, dice = KINDS[name], Random(f"{seed} {name}")
    tensors, _ = kind.make(X, **kind.options)
    for _ in range(60):
        record = json.loads(json.dumps(kind.config))
        _twist(record, dice)
        try:
            read(tensors, record)
        except SmeltError:
            continue


@pytest.mark.parametrize("name", KINDS)
def test_tensors_of_other_kinds(name: str, seed: int) -> None:
    """One tensor in place of another, cut or with other bytes."""
    kind, dice = KINDS[name], Random(f"{seed} {name}")
    tensors, _ = kind.make(X, **kind.options)
    noise = np.random.default_rng(seed)
    for _ in range(40):
        made, part = dict(tensors), dice.choice(list(tensors))
        array = made[dice.choice(list(tensors))].copy()
        match dice.randrange(4):
            case 0:
                array = array[: dice.randrange(len(array) + 1)] if array.ndim else array
            case 1:
                raw = noise.integers(0, 256, array.nbytes, np.uint8)
                array = raw.view(array.dtype).reshape(array.shape)
            case 2:
                array = array.reshape(-1)
            case _:
                del made[part]
        if part in made:
            made[part] = array
        try:
            read(made, kind.config)
        except SmeltError:
            continue


def test_a_folder_that_ends_early(tmp_path: Path) -> None:
    from smelt.read import safetensors

    tensors, _ = KINDS["gptq"].make(X, **KINDS["gptq"].options)
    path = tmp_path / "model.safetensors"
    safetensors.write(path, {f"l.{part}": array for part, array in tensors.items()})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SmeltError):
        safetensors.read(path)
