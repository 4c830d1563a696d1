"""Tensor parallelism: which axes of a decoder are split over the devices of a mesh. `load(…, devices=N)` uses it.

Heads (`e` of projections, `g` of caches), the width of MLPs (`f`), experts (`e`) and the vocabulary (`v`) are split.
XLA adds partial sums. An axis that the devices do not divide evenly is whole on each of them.
"""

from __future__ import annotations

from smelt.errors import RunError
from smelt.llm.config import Config
from smelt.mesh import Mesh

AXIS = "model"  # of the mesh


def make_mesh(config: Config, devices: int) -> Mesh:
    """A mesh of devices in a row, for a decoder."""
    if type(devices) is not int or devices < 1:
        raise RunError(
            "devices of one model", expected="a whole number from 1 on", got=repr(devices), remedy="devices=2"
        )
    return Mesh(
        {name: AXIS for name, sizes in _sizes(config).items() if not any(size % devices for size in sizes)},
        model=devices,
    )


def _sizes(config: Config) -> dict[str, list[int]]:
    """Axes that may be split, with all the sizes that must be divided."""
    experts = [layer.experts for layer in config.layers if layer.experts is not None]
    wide, narrow = config.heads * config.head_size, config.kv_heads * config.head_size
    return {
        "e": [config.heads, wide, narrow, *(each.count for each in experts)],
        "g": [config.kv_heads],
        "f": [config.f, *(each.f for each in experts)],
        "v": [config.v],
    }
