"""Layers over one axis: Linear, Embedding, Dropout, and Sequential of others.

Parameters are named and laid out as torch's (`weight` of Linear is [out, in]), so that checkpoints bind as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.dtype import DType
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.axes import SizeLike, size_of
from smelt.tensor.core import Tensor
from smelt.tensor.fields import set_field
from smelt.tensor.model import Model, make_parameter
from smelt.tensor.nn.sizes import Axes, element_of, features
from smelt.tensor.ops import random
from smelt.tensor.ops.elementwise import where
from smelt.tensor.record import operand
from smelt.tensor.recovery import with_recovery
from smelt.tensor.source import refuse


class Linear(Model):
    """x W^T + b over one axis: `nn.Linear(d=768, f=3072)` contracts axis d and returns axis f.

    One name with two sizes keeps the name: `nn.Linear(d=(768, 512))`. Sizes are numbers or symbols (`d="D"`).

    >>> import smelt
    >>> layer = Linear(d=768, f="F")
    >>> layer
    Linear(weight=f32[f=F, d=768], bias=f32[f=F])
    >>> layer(smelt.symbolic("f32[b=B, d=768]")).shape
    f32[b=B, f=F]
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, *, bias: bool = True, dtype: str | DType | None = None, **axes: Axes) -> None:
        found, _ = features("Linear", axes)
        element = element_of(dtype)
        self.weight = make_parameter({found.inner: found.out_size, found.in_axis: found.in_size}, element)
        self.bias = make_parameter({found.inner: found.out_size}, element) if bias else None

    @with_recovery
    def __call__(self, x: Tensor) -> Tensor:
        inner, in_axis = self.weight.shape.names or ("", "")
        out = in_axis if inner == f"{in_axis}_out" else inner
        if out != in_axis and out in (x.shape.names or ()):
            refuse(
                f'Linear from "{in_axis}" to "{out}": the operand has an axis "{out}" already',
                operand("operand", x),
                remedy=f'rename one of them: .rename({out}="…")',
            )
        y = x.dot(self.weight, in_axis)
        if self.bias is not None:
            y = y + self.bias
        return y if inner == out else y.rename(**{inner: out})


class Embedding(Model):
    """Rows of a table: `nn.Embedding(v=32000, d=4096)` gathers rows by index along v and returns axis d.

    >>> import smelt
    >>> Embedding(v=100, d=8)(smelt.symbolic("i32[b=B, s=S]")).shape
    f32[b=B, s=S, d=8]
    """

    weight: Tensor

    def __init__(self, *, dtype: str | DType | None = None, **axes: SizeLike) -> None:
        if len(axes) != 2:
            refuse("nn.Embedding: how many rows, and of what", remedy="nn.Embedding(v=32000, d=4096)")
        self.weight = make_parameter({name: size_of(size) for name, size in axes.items()}, element_of(dtype))

    @with_recovery
    def __call__(self, ids: Tensor) -> Tensor:
        rows, depth = self.weight.shape.names or ("", "")
        if depth in (ids.shape.names or ()):
            message = f'Embedding of "{depth}": the indices have an axis "{depth}" already'
            refuse(message, operand("indices", ids), remedy=f'rename it: .rename({depth}="…")')
        made = self.weight.take(ids, rows)
        return made.transpose(*(ids.shape.names or ()), depth)

    @with_recovery
    def logits(self, x: Tensor) -> Tensor:
        """The dot products of x with each row: the tied output layer of a language model."""
        return x.dot(self.weight, (self.weight.shape.names or ("", ""))[1])


class Dropout(Model):
    """Elements set to 0 with a probability, the others scaled by 1 / (1 - probability). The identity without a key.

    >>> import smelt
    >>> drop = Dropout(0.5)
    >>> x = smelt.ones("f32[n=4]")
    >>> drop(x) is x, sorted({float(v) for v in drop(smelt.ones("f32[n=64]"), smelt.random.key(1)).numpy()})
    (True, [0.0, 2.0])
    """

    probability: float

    @with_argument_errors
    def __init__(self, probability: float = 0.5) -> None:
        if not 0 <= probability < 1:
            refuse(f"Dropout: {probability} is not a probability below 1")
        self.probability = probability

    def __call__(self, x: Tensor, key: Tensor | None = None) -> Tensor:
        if key is None or not self.probability:
            return x
        kept = random.bernoulli(key, x.shape, 1 - self.probability)
        return where(kept, x * (1 / (1 - self.probability)), 0.0)


class Sequential(Model):
    """Layers and functions in sequence; paths number them as torch does: `0.weight`, `2.bias`.

    >>> import smelt
    >>> mlp = Sequential(Linear(d=4, f=8), Tensor.relu, Linear(f=8, c=2))
    >>> [path for path, _ in mlp.walk()]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        for i, layer in enumerate(layers):
            set_field(self, str(i), layer)

    def __call__(self, x: Any) -> Any:
        for layer in self.fields().values():
            x = layer(x)
        return x
