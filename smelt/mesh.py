"""Mesh: several devices along named axes, and which axes of tensors are split along which of them.

`smelt.platform(mesh=…)` takes it. The pjrt engine and the tensor API read partitions, shards and Shardy's text from it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from types import MappingProxyType

from smelt.errors import ShapeError

Partition = tuple[str | None, ...]  # for each axis of a tensor the axis of the mesh along which it is split


class Mesh:
    """Devices in rows and columns: `smelt.Mesh(data=2, model=2, split={"b": "data", "f": "model"})`.

    An axis of a tensor whose name is in `split` is split along that axis of the mesh; the others are whole everywhere.

    >>> mesh = Mesh(data=2, model=2, split={"b": "data", "f": "model"})
    >>> mesh.partition(("b", "d")), mesh.partition(("f", "b", "f2"))
    (('data', None), ('model', 'data', None))
    """

    def __init__(self, split: Mapping[str, str] | None = None, **axes: int) -> None:
        wrong = {name: size for name, size in axes.items() if not _is_positive(size)}
        if not axes or wrong:
            raise ShapeError("a mesh has axes with positive sizes", got=wrong or "none", remedy="Mesh(data=2, model=2)")
        self.axes: Mapping[str, int] = MappingProxyType(dict(axes))
        self.split: Mapping[str, str] = MappingProxyType(dict(split or {}))
        self.check(tuple(self.split.values()))

    @property
    def count(self) -> int:
        """How many devices."""
        return math.prod(self.axes.values())

    def count_parts(self, partition: Partition) -> int:
        """How many parts a tensor is split into. Where that are fewer than devices, several have the same part."""
        return math.prod(self.axes[along] for along in partition if along is not None)

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self.axes.items())})"

    def check(self, names: Sequence[str | None]) -> None:
        unknown = [name for name in names if name is not None and name not in self.axes]
        if unknown:
            raise ShapeError("the mesh has no such axis", expected=", ".join(self.axes), got=", ".join(unknown))

    def partition(self, names: Sequence[str] | None) -> Partition:
        """How a tensor with these axes is split. An axis of the mesh splits one axis of a tensor, the first."""
        found: list[str | None] = []
        for name in names or ():
            along = self.split.get(name)
            found.append(None if along in found else along)
        return tuple(found)

    def pieces(self, partition: Partition, sizes: Sequence[int], what: str = "the tensor") -> list[tuple[slice, ...]]:
        """The part of a tensor that each device holds, in the devices' order."""
        for along, size in zip(partition, sizes, strict=True):
            if along is not None and size % self.axes[along]:
                raise ShapeError(
                    f"{what} cannot be split evenly",
                    expected=f"a size that {self.axes[along]} divides, along {along}",
                    got=list(sizes),
                )
        parts = []
        for place in itertools.product(*(range(size) for size in self.axes.values())):
            at = dict(zip(self.axes, place, strict=True))
            parts.append(tuple(self._cut(along, size, at) for along, size in zip(partition, sizes, strict=True)))
        return parts

    def _cut(self, along: str | None, size: int, at: Mapping[str, int]) -> slice:
        if along is None:
            return slice(0, size)
        length = size // self.axes[along]
        return slice(at[along] * length, (at[along] + 1) * length)

    def owners(self, partition: Partition, sizes: Sequence[int]) -> list[int]:
        """Devices that hold each part once: what it takes to put a tensor together."""
        seen: dict[tuple[tuple[int, int], ...], int] = {}
        for device, piece in enumerate(self.pieces(partition, sizes)):
            seen.setdefault(tuple((cut.start, cut.stop) for cut in piece), device)
        return list(seen.values())

    # ---- Shardy's text ----

    @property
    def text(self) -> str:
        return "[" + ", ".join(f'"{name}"={size}' for name, size in self.axes.items()) + "]"


def sharding_text(partition: Partition) -> str:
    """What stands between the brackets of `#sdy.sharding<…>`."""
    return "@mesh, [" + ", ".join("{}" if along is None else f'{{"{along}"}}' for along in partition) + "]"


def _is_positive(size: object) -> bool:
    return isinstance(size, Integral) and int(size) >= 1
