"""The axes of layers: `nn.Linear(d=768, f=3072)` from axis d to axis f, `nn.Linear(d=(768, 768))` from d to d.

Keywords of a constructor → names and sizes. Every layer with input and output channels reads them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from smelt.dim import Size
from smelt.dtype import DType, dtype, f32
from smelt.tensor.axes import SizeLike, size_of
from smelt.tensor.ops.elementwise import cast
from smelt.tensor.source import refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

Axes: TypeAlias = SizeLike | tuple[SizeLike, SizeLike]


@dataclass(frozen=True, slots=True)
class Features:
    """The input axis and the output axis of a layer, each a name and a size."""

    in_axis: str
    in_size: Size
    out: str
    out_size: Size

    @property
    def inner(self) -> str:
        """The name of the output axis while the input axis is still there."""
        return f"{self.out}_out" if self.out == self.in_axis else self.out

    def rename(self, y: Tensor) -> Tensor:
        """The result under the name of its axis."""
        return y if self.inner == self.out else y.rename(**{self.inner: self.out})


def features(layer: str, axes: Mapping[str, Axes], more: int = 0) -> tuple[Features, dict[str, int]]:
    """Features from the first keywords, and windows from `more` that follow (any number where it is negative)."""
    items = list(axes.items())
    example = f"nn.{layer}(c=3, o=64{''.join(f', {name}=3' for name in 'yxz'[: max(more, 0)])})"
    if items and isinstance(both := items[0][1], tuple) and len(both) == 2:
        name, rest = items[0][0], items[1:]
        found = Features(name, size_of(both[0]), name, size_of(both[1]))
    elif len(items) >= 2 and not any(isinstance(size, tuple) for _, size in items[:2]):
        (came_name, in_size), (out_name, out_size) = items[:2]
        assert not isinstance(in_size, tuple)
        assert not isinstance(out_size, tuple)
        found, rest = Features(came_name, size_of(in_size), out_name, size_of(out_size)), items[2:]
    else:
        refuse(f"nn.{layer}: from which axis to which?", remedy=f"{example}, or one axis with both sizes: c=(3, 64)")
    windows = {name: size for name, size in rest if isinstance(size, int)}
    if len(windows) != len(rest) or (len(rest) != more and more >= 0):
        refuse(f"nn.{layer}: {more} axes with numbers follow the features", remedy=example)
    return found, windows


def single_axis(layer: str, axes: Mapping[str, SizeLike]) -> tuple[str, Size]:
    """The one axis of a layer that keeps its axes."""
    if len(axes) != 1:
        refuse(f"nn.{layer}: one axis with its size", remedy=f"nn.{layer}(d=768)")
    ((name, size),) = axes.items()
    return name, size_of(size)


def element_of(given: str | DType | None) -> DType | None:
    """The element type of parameters; None where the checkpoint decides."""
    return None if given is None else dtype(given)


def in_f32(x: Tensor) -> Tensor:
    """Narrow floats as f32, because sums of them need it."""
    return cast(x, f32) if x.dtype.is_float and x.dtype.bits < 32 else x
