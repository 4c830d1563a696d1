"""Mixed precision: a loss of f32 parameters → the same loss computed in bf16 or f16, with gradients in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.dtype import DType, bf16, dtype, f16, f32
from smelt.errors import ShapeError
from smelt.structure import map_leaves
from smelt.tensor.core import Tensor
from smelt.tensor.grad import custom_gradient


def mixed(loss: Callable[..., Tensor], element: str | DType = "bf16", *, scale: float = 1.0) -> Callable[..., Tensor]:
    """The loss with f32 parameters and inputs converted to bf16 or f16: matmuls run in that type and sum in f32.

    The parameters of a Trainer stay f32 (master weights), and so do their gradients. `scale` multiplies every cotangent
    between loss and parameters, so that small ones do not vanish in f16; 1024 is usual, and bf16 needs none;
    `scale_loss` finds a factor by itself. Sums over many elements belong in f32: give the loss `logits.to("f32")`.

    >>> import smelt
    >>> from smelt import train
    >>> halves = mixed(lambda p, x: (x.dot(p, "d").to("f32") ** 2).mean(), "f16", scale=1024)
    >>> w, x = smelt.tensor([1.0, 2.0], "d"), smelt.tensor([[1.0, 1.0]], "b d")
    >>> smelt.grad(halves)(w, x).tolist()
    [6.0, 6.0]
    """
    narrow = dtype(element)
    if narrow not in (bf16, f16) or not scale > 0:
        raise ShapeError("mixed: a narrow type and a positive scale", expected="bf16 or f16", got=(str(narrow), scale))

    def convert(value: Tensor) -> Tensor:
        return value.to(narrow) if value.dtype == f32 else value

    def parameter(value: Tensor) -> Tensor:
        if value.dtype != f32:
            return value
        return convert(value if scale == 1.0 else _times(1 / scale)(value))

    def compute(parameters: Any, *batch: Any) -> Tensor:
        weights = map_leaves(parameters, _is_tensor, parameter, tied=False)
        inputs = (map_leaves(each, _is_tensor, convert, tied=False) for each in batch)
        value = loss(weights, *inputs).to(f32)
        return value if scale == 1.0 else _times(scale)(value)

    return compute


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    """The identity, whose cotangent is multiplied by a factor."""
    scaled: Callable[[Tensor], Tensor] = custom_gradient(lambda x: x * 1.0, lambda args, value, g: (g * factor,))
    return scaled


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
