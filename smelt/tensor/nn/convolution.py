"""Convolutions, transposed ones, and pooling over named axes.

Weights are torch's: [out, in / groups, window …], transposed [in, out / groups, window …]. Spatial axes may be
dynamic; windows, strides and padding are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from smelt.dim import floordiv
from smelt.dtype import DType
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.axes import names_of
from smelt.tensor.core import Tensor
from smelt.tensor.model import Model, make_parameter
from smelt.tensor.nn.sizes import Axes, element_of, features
from smelt.tensor.recovery import with_recovery
from smelt.tensor.source import refuse

Numbers: TypeAlias = int | Mapping[str, int] | Sequence[int]
Both: TypeAlias = int | tuple[int, int]  # before and after, or one number for both sides
Pads: TypeAlias = Literal["valid", "same"] | Both | Mapping[str, Both]
Padding: TypeAlias = Literal["valid", "same"] | dict[str, tuple[int, int]]


def _per_axis(what: str, given: Numbers, names: Sequence[str]) -> dict[str, int]:
    """A number for each axis."""
    if isinstance(given, int):
        return dict.fromkeys(names, given)
    if isinstance(given, Mapping):
        return {name: given.get(name, 1) for name in names}
    if len(given) != len(names):
        refuse(f"{what}: {len(given)} numbers for {len(names)} axes")
    return dict(zip(names, given, strict=True))


def _pads(given: Pads, names: Sequence[str]) -> Padding:
    """(before, after) for each axis."""
    if given == "valid" or given == "same":
        return given
    by_name = (
        {name: given.get(name, 0) for name in names} if isinstance(given, Mapping) else dict.fromkeys(names, given)
    )
    return {name: pad if isinstance(pad, tuple) else (pad, pad) for name, pad in by_name.items()}


class _Convolution(Model):
    """A convolution over as many axes as there are windows."""

    weight: Tensor
    bias: Tensor | None
    _spatial = 0  # number of spatial axes: each class has its own

    def __init__(
        self,
        *,
        strides: Numbers = 1,
        padding: Pads = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: str | DType | None = None,
        **axes: Axes,
    ) -> None:
        self._configure(axes, strides, padding, dilation, groups, bias, dtype)

    def _configure(
        self,
        axes: Mapping[str, Axes],
        strides: Numbers,
        padding: Pads,
        dilation: Numbers,
        groups: int,
        bias: bool,
        dtype: str | DType | None,
        transposed: bool = False,
    ) -> None:
        what = type(self).__name__
        found, window = features(what, axes, self._spatial)
        first = {found.inner: found.out_size, found.in_axis: floordiv(found.in_size, groups)}
        if transposed:
            first = {found.in_axis: found.in_size, found.inner: floordiv(found.out_size, groups)}
        self.weight = make_parameter({**first, **window}, element_of(dtype))
        self.bias = make_parameter({found.out: found.out_size}, element_of(dtype)) if bias else None
        self._features = found
        self.strides = _per_axis(what, strides, list(window))
        self.padding = _pads(padding, list(window))
        self.dilation = _per_axis(what, dilation, list(window))
        self.groups = groups

    @property
    def _window(self) -> dict[str, int]:
        names, sizes = self.weight.shape.names or (), self.weight.shape.sizes
        return {name: size for name, size in zip(names[2:], sizes[2:], strict=True) if isinstance(size, int)}

    def _finish(self, y: Tensor) -> Tensor:
        y = self._features.rename(y)
        return y if self.bias is None else y + self.bias

    @with_recovery
    def __call__(self, x: Tensor) -> Tensor:
        return self._finish(
            x.conv(
                self.weight,
                tuple(self._window),
                features=(self._features.in_axis, self._features.inner),
                strides=self.strides,
                padding=self.padding,
                dilation=self.dilation,
                groups=self.groups,
            )
        )


class Conv1d(_Convolution):
    """A convolution over one axis: `nn.Conv1d(c=(80, 384), t=3, padding=1)`.

    The first keyword is the channel axis with its input and output sizes (or `c=80, o=384`), the second the spatial
    axis with the size of the window.

    >>> import smelt
    >>> Conv1d(c=(80, 384), t=3, strides=2, padding=1)(smelt.symbolic("f32[b=B, c=80, t=2*T]")).shape
    f32[b=B, c=384, t=T]
    """

    _spatial = 1


class Conv2d(_Convolution):
    """A convolution over two axes: `nn.Conv2d(c=(3, 64), y=7, x=7, strides=2, padding=3)`.

    >>> Conv2d(c=(3, 64), y=7, x=7).weight.shape
    f32[c_out=64, c=3, y=7, x=7]
    """

    _spatial = 2


class Conv3d(_Convolution):
    """A convolution over three axes: `nn.Conv3d(c=(3, 64), z=3, y=3, x=3)`."""

    _spatial = 3


class _Transposed(_Convolution):
    """The convolution whose gradient a convolution is: strides spread the operand."""

    def __init__(
        self,
        *,
        strides: Numbers = 1,
        padding: Both | Mapping[str, Both] = 0,
        output_padding: Numbers = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: str | DType | None = None,
        **axes: Axes,
    ) -> None:
        self._configure(axes, strides, padding, dilation, groups, bias, dtype, transposed=True)
        self.output_padding = _per_axis(type(self).__name__, output_padding, list(self._window))

    @with_recovery
    def __call__(self, x: Tensor) -> Tensor:
        window = self._window
        given = self.padding if isinstance(self.padding, dict) else dict.fromkeys(window, (0, 0))
        pads = {}
        for name, size in window.items():
            reach = self.dilation[name] * (size - 1)
            before, after = given[name]
            pads[name] = reach - before, reach - after + self.output_padding[name]
        kernel, found = self.weight, self._features
        if self.groups > 1:  # [in, out / groups] → [in / groups, out]
            in_axis, group = found.in_axis, f"{found.in_axis}_group"
            kernel = kernel.split(in_axis, **{group: self.groups, in_axis: None})
            kernel = kernel.transpose(in_axis, group, found.inner, *window).merge((group, found.inner), found.inner)
        return self._finish(
            x.conv(
                kernel,
                tuple(window),
                features=(found.in_axis, found.inner),
                padding=pads,
                dilation=self.dilation,
                input_dilation=self.strides,
                groups=self.groups,
                flip=True,
            )
        )


class ConvTranspose1d(_Transposed):
    """A transposed convolution over one axis: `nn.ConvTranspose1d(c=(64, 32), t=4, strides=2, padding=1)`."""

    _spatial = 1


class ConvTranspose2d(_Transposed):
    """A transposed convolution over two axes: `nn.ConvTranspose2d(c=(64, 32), y=2, x=2, strides=2)`.

    >>> import smelt
    >>> ConvTranspose2d(c=(64, 32), y=2, x=2, strides=2)(smelt.symbolic("f32[b=B, c=64, y=5, x=8]")).shape
    f32[b=B, c=32, y=10, x=16]
    """

    _spatial = 2


# ---- pooling ----


class MaxPool(Model):
    """The largest element of each window: `nn.MaxPool(y=3, x=3, strides=2, padding=1)`; strides are the window's."""

    @with_argument_errors
    def __init__(self, *, strides: Numbers | None = None, padding: Pads = 0, **window: int) -> None:
        self.window = window
        self.strides = window if strides is None else _per_axis("MaxPool", strides, list(window))
        self.padding = _pads(padding, list(window))

    @with_recovery
    def __call__(self, x: Tensor) -> Tensor:
        return x.max_pool(self.window, self.strides, self.padding)


class AvgPool(Model):
    """The average of each window: `nn.AvgPool(y=2, x=2)`; strides are the window's, padding counts as torch has it."""

    @with_argument_errors
    def __init__(
        self, *, strides: Numbers | None = None, padding: Pads = 0, count_padding: bool = True, **window: int
    ) -> None:
        self.window = window
        self.strides = window if strides is None else _per_axis("AvgPool", strides, list(window))
        self.padding = _pads(padding, list(window))
        self.count_padding = count_padding

    @with_recovery
    def __call__(self, x: Tensor) -> Tensor:
        return x.mean_pool(self.window, self.strides, self.padding, count_padding=self.count_padding)


@with_argument_errors
def global_max_pool(x: Tensor, over: str) -> Tensor:
    """The largest element along spatial axes: `nn.global_max_pool(x, "y x")`."""
    return x.max(names_of(over))


@with_argument_errors
def global_avg_pool(x: Tensor, over: str) -> Tensor:
    """The average along spatial axes: `nn.global_avg_pool(x, "y x")`."""
    return x.mean(names_of(over))
