"""LoRA: low-rank adapters beside the matrices of a model that stays as it is.

`lora(model, rank, choose)` gives adapters, which are trained; `adapt(model, adapters)` the model with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from smelt.errors import ShapeError
from smelt.structure import leaves, map_leaves
from smelt.tensor.core import Tensor
from smelt.tensor.data import tensor

_RANK = "lora"  # the axis between the two factors
Adapters = dict[str, dict[str, Tensor]]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def lora(model: Any, rank: int, choose: Callable[[str], bool], *, seed: int = 0) -> Adapters:
    """Adapters for the matrices whose paths `choose` takes: `down` is random, `up` is zero, so nothing changes yet.

    >>> import smelt
    >>> from smelt.tensor.model import build
    >>> layer = build(smelt.nn.Linear(d=4, f=3, bias=False), {"weight": np.ones((3, 4), np.float32)})
    >>> adapters = lora(layer, 2, lambda path: path == "weight")
    >>> adapters["weight"]["up"].shape, adapters["weight"]["down"].shape
    (f32[f=3, lora=2], f32[lora=2, d=4])
    """
    rng = np.random.default_rng(seed)
    found: Adapters = {}
    for path, value in leaves(model, _is_tensor):
        if choose(path) and value.rank == 2:
            rows, columns = value.shape.numbers()
            names = value.axes or ("rows", "columns")
            down = rng.normal(scale=columns**-0.5, size=(rank, columns)).astype(np.float32)
            found[path] = {
                "down": tensor(down, (_RANK, names[1])),
                "up": tensor(np.zeros((rows, rank), np.float32), (names[0], _RANK)),
            }
    if not found:
        paths = [path for path, value in leaves(model, _is_tensor) if value.rank == 2]
        raise ShapeError("no matrix of the model was chosen", expected=", ".join(paths[:4]), got="no path")
    return found


def adapt(model: Any, adapters: Mapping[str, Mapping[str, Tensor]], scale: float = 1.0) -> Any:
    """The model with `weight + scale * up · down` in place of each weight that has an adapter."""
    paths = iter([path for path, _ in leaves(model, _is_tensor)])

    def change(value: Tensor) -> Tensor:
        given = adapters.get(next(paths))
        if given is None:
            return value
        delta = given["up"].dot(given["down"], _RANK).to(value.dtype) * scale
        return value + (delta if value.axes is not None else delta.unnamed())

    return map_leaves(model, _is_tensor, change, tied=False)
