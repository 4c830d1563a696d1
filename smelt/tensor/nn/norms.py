"""Normalisations: LayerNorm, RMSNorm, GroupNorm, and BatchNorm with given statistics.

Narrow floats are computed in f32 and rounded once. The ops are those that engines recognise as one kernel.
"""

from __future__ import annotations

from smelt.dtype import DType
from smelt.tensor.axes import SizeLike, names_of, size_of
from smelt.tensor.core import Tensor
from smelt.tensor.model import Model, make_parameter
from smelt.tensor.nn.sizes import element_of, in_f32, single_axis
from smelt.tensor.ops.elementwise import cast
from smelt.tensor.recovery import with_recovery
from smelt.tensor.source import refuse


def normalise(x: Tensor, axes: tuple[str, ...], epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) along axes."""
    centred = x - x.mean(axes)
    return centred * (centred.square().mean(axes) + epsilon).rsqrt()


class LayerNorm(Model):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias along the named axes: `nn.LayerNorm(d=768)`.

    >>> LayerNorm(d="D")
    LayerNorm(weight=f32[d=D], bias=f32[d=D], epsilon=1e-05)
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        *,
        epsilon: float = 1e-5,
        weight: bool = True,
        bias: bool = True,
        dtype: str | DType | None = None,
        **axes: SizeLike,
    ) -> None:
        if not axes:
            refuse("nn.LayerNorm: along which axes?", remedy="nn.LayerNorm(d=768)")
        sizes = {name: size_of(size) for name, size in axes.items()}
        self._axes = tuple(sizes)
        self.weight = make_parameter(sizes, element_of(dtype)) if weight else None
        self.bias = make_parameter(sizes, element_of(dtype)) if bias else None
        self.epsilon = epsilon

    @with_recovery
    def __call__(self, x: Tensor) -> Tensor:
        y = normalise(in_f32(x), self._axes, self.epsilon)
        return cast(_scale(y, self.weight, self.bias), x.dtype)


def _scale(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        y = y * cast(weight, y.dtype)
    return y if bias is None else y + cast(bias, y.dtype)


class RMSNorm(Model):
    """x / sqrt(mean of x^2 + epsilon) * weight along an axis: `nn.RMSNorm(d=4096)`. `offset` is added to the weight.

    >>> RMSNorm(d=64)
    RMSNorm(weight=f32[d=64], epsilon=1e-06, offset=0.0)
    """

    weight: Tensor

    def __init__(
        self, *, epsilon: float = 1e-6, offset: float = 0.0, dtype: str | DType | None = None, **axes: SizeLike
    ) -> None:
        name, size = single_axis("RMSNorm", axes)
        self.weight = make_parameter({name: size}, element_of(dtype))
        self.epsilon = epsilon
        self.offset = offset

    @with_recovery
    def __call__(self, x: Tensor) -> Tensor:
        wide, axes = in_f32(x), self.weight.shape.names or ()
        y = wide * (wide.square().mean(axes) + self.epsilon).rsqrt()
        weight = cast(self.weight, y.dtype)
        return cast(y * (weight + self.offset if self.offset else weight), x.dtype)


class GroupNorm(Model):
    """Normalise over groups of channels and spatial axes: `nn.GroupNorm(8, "y x", c=64)`.

    With as many groups as channels it is instance normalisation.

    >>> GroupNorm(8, "y x", c=64)
    GroupNorm(weight=f32[c=64], bias=f32[c=64], groups=8, over=('y', 'x'), epsilon=1e-05)
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        groups: int,
        over: str,
        *,
        epsilon: float = 1e-5,
        weight: bool = True,
        dtype: str | DType | None = None,
        **axes: SizeLike,
    ) -> None:
        name, size = single_axis("GroupNorm", axes)
        self.weight = make_parameter({name: size}, element_of(dtype)) if weight else None
        self.bias = make_parameter({name: size}, element_of(dtype)) if weight else None
        self._feature = name
        self.groups = groups
        self.over = names_of(over)
        self.epsilon = epsilon

    @with_recovery
    def __call__(self, x: Tensor) -> Tensor:
        name = self._feature
        group, inner = f"{name}_group", f"{name}_inner"
        parts = in_f32(x).split(name, **{group: self.groups, inner: None})
        y = normalise(parts, (inner, *self.over), self.epsilon).merge((group, inner), name)
        return cast(_scale(y, self.weight, self.bias), x.dtype)


class BatchNorm(Model):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias with one number for each channel: `nn.BatchNorm(c=64)`.

    The statistics are the checkpoint's (`running_mean`, `running_var`) unless the call gives others.

    >>> [path for path, _ in BatchNorm(c=64).walk()]
    ['weight', 'bias', 'running_mean', 'running_var']
    """

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, *, epsilon: float = 1e-5, weight: bool = True, dtype: str | DType | None = None, **axes: SizeLike
    ) -> None:
        sizes = dict([single_axis("BatchNorm", axes)])
        element = element_of(dtype)
        self.weight = make_parameter(sizes, element) if weight else None
        self.bias = make_parameter(sizes, element) if weight else None
        self.running_mean = make_parameter(sizes, element)
        self.running_var = make_parameter(sizes, element)
        self.epsilon = epsilon

    @with_recovery
    def __call__(self, x: Tensor, mean: Tensor | None = None, variance: Tensor | None = None) -> Tensor:
        wide = in_f32(x)
        centre = cast(self.running_mean if mean is None else mean, wide.dtype)
        spread = cast(self.running_var if variance is None else variance, wide.dtype)
        y = (wide - centre) * (spread + self.epsilon).rsqrt()
        return cast(_scale(y, self.weight, self.bias), x.dtype)

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and variance of a batch for each channel, for a call."""
        names = self.running_mean.shape.names or ()
        others = tuple(name for name in x.shape.names or () if name not in names)
        wide = in_f32(x)
        return wide.mean(others), wide.var(others)
