"""Layers over weights as they are stored: numbers of any float type, or blocks (`ir.blocks`). All compute in f32.

`decoder` and `moe` are made of them. What depends on weights alone (casts, opened blocks) runs once, when weights bind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from smelt.dtype import DType, f32, i32, ui8
from smelt.frozen import Frozen
from smelt.ir.blocks import Block
from smelt.tensor.composite import unblock
from smelt.tensor.core import Tensor
from smelt.tensor.model import Model, make_parameter
from smelt.tensor.ops.contract import Precision
from smelt.tensor.ops.elementwise import cast


class Transposed(Frozen):
    """A matrix of numbers that is stored [in, out]."""

    element: DType


Formats = Mapping[str, Block | DType | Transposed]  # of weights, by name


class Matrix(Model):
    """A weight as it is stored: numbers of any float type, or blocks. `dense` is what is computed with."""

    weight: Tensor

    def __init__(self, path: str, formats: Formats, **axes: int) -> None:
        form = formats.get(path)
        self._axes = tuple(axes)
        self._format = form.name if isinstance(form, Block) else None
        if isinstance(form, Block):
            *outer_axes, last = axes
            sizes = {**{name: axes[name] for name in outer_axes}, f"{last}_block": axes[last] // form.length}
            self.weight = make_parameter({**sizes, "bytes": form.bytes}, ui8)
        else:
            stored = reversed(axes) if isinstance(form, Transposed) else axes
            self.weight = make_parameter({name: axes[name] for name in stored}, None)

    def take(self, rows: Tensor, axis: str) -> Tensor:
        """Rows of the matrix in f32, widened after they were looked up."""
        if self._format is None:
            return cast(self.weight.take(rows, axis), f32)
        return self.dense().take(rows, axis)

    def dense(self) -> Tensor:
        if self._format is None:
            return cast(self.weight, f32)
        return unblock(self.weight, self._format, self._axes[-1])


class Linear(Matrix):
    """A projection [out, in] with a bias, or none; `order` says which input each column of the matrix is for."""

    bias: Tensor | None
    order: Tensor | None

    def __init__(self, path: str, formats: Formats, bias: bool, **axes: int) -> None:
        super().__init__(f"{path}.weight", formats, **axes)
        out, last = self._axes[0], self._axes[-1]
        self.bias = make_parameter({out: axes[out]}, None) if bias else None
        self.order = make_parameter({last: axes[last]}, i32) if f"{path}.order" in formats else None

    def __call__(self, x: Tensor, precision: Precision = "default") -> Tensor:
        x = x if self.order is None else x.take(self.order, self._axes[-1])
        y = x.dot(self.dense(), self._axes[-1], precision=precision)
        return y if self.bias is None else y + cast(self.bias, f32)


class NormConfig(Protocol):
    """What a configuration says about norms."""

    @property
    def norm(self) -> str: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def norm_offset(self) -> float: ...


class Norm(Model):
    """RMSNorm or LayerNorm over an axis, computed in f32."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, config: NormConfig, axis: str, size: int) -> None:
        self.weight = make_parameter({axis: size}, None)
        self.bias = make_parameter({axis: size}, None) if config.norm == "layer" else None
        self._axis, self._epsilon, self._offset = axis, config.epsilon, config.norm_offset

    def __call__(self, x: Tensor) -> Tensor:
        weight = cast(self.weight, f32)
        if self._offset:
            weight = weight + self._offset
        if self.bias is not None:
            x = x - x.mean(self._axis)
        y = x * (x.square().mean(self._axis) + self._epsilon).rsqrt() * weight
        return y if self.bias is None else y + cast(self.bias, f32)
