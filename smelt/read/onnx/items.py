"""Items: the values of names in an ONNX graph while it is read.

A Tensor is a value of the program, a weight in a file, or numbers known at import; a known element may be a size with
symbols. Sequences, optionals and text exist at import only: a program has tensors only. Text that depends on data is
a tensor of indices into a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from smelt.dim import Poly, Size
from smelt.dtype import Array, DType, dtype
from smelt.errors import UnsupportedError
from smelt.ir.core import Value
from smelt.shape import Shape
from smelt.weights import Stored


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor. `known` holds its elements if they are known: numbers of its type, or objects where some are sizes."""

    shape: Shape
    value: Value | None = None
    known: Array | None = None
    stored: Stored | None = None
    name: str = ""

    @staticmethod
    def of(value: Value) -> Tensor:
        return Tensor(value.shape, value)

    @staticmethod
    def constant(array: Array, name: str = "") -> Tensor:
        """A tensor of numbers."""
        return Tensor(Shape.of(dtype(array.dtype), array.shape), known=array, name=name)

    @staticmethod
    def symbolic(array: Array, element: DType) -> Tensor:
        """A tensor of sizes, of which some may be plain numbers."""
        if not any(isinstance(each, Poly) for each in array.reshape(-1)):
            return Tensor.constant(array.astype(np.int64).astype(element.numpy))
        return Tensor(Shape.of(element, array.shape), known=array)

    @property
    def sizes(self) -> tuple[Size, ...]:
        return self.shape.sizes

    @property
    def rank(self) -> int:
        return self.shape.rank

    @property
    def element(self) -> DType:
        return self.shape.element

    @property
    def is_symbolic(self) -> bool:
        """Whether an element is a size with symbols."""
        return self.known is not None and self.known.dtype == object


@dataclass(slots=True, eq=False)
class Text:
    """A tensor of strings, known at import."""

    array: Array


@dataclass(slots=True, eq=False)
class Sequence:
    """A list whose length is known at import."""

    items: tuple[Item, ...]


@dataclass(slots=True, eq=False)
class Optional:
    """An optional that holds nothing; one that holds something is that thing."""


@dataclass(slots=True, eq=False)
class Labels:
    """A tensor of strings computed by the program: indices into a vector of strings."""

    places: Tensor
    table: Array


@dataclass(slots=True, eq=False)
class Maps:
    """A sequence of maps, one per row of a tensor; every map has the same keys, one per column."""

    values: Tensor
    keys: tuple[int | str, ...]


@dataclass(slots=True, eq=False)
class Unknown:
    """A placeholder for the output of a node that could not be read, for surveys. No operator gets it."""


Item: TypeAlias = Tensor | Text | Sequence | Optional | Labels | Maps | Unknown


def tensor_of(item: Item) -> Tensor:
    """The item, which must be a tensor."""
    if not isinstance(item, Tensor):
        raise UnsupportedError("a tensor is needed here", got=type(item).__name__.lower())
    return item
