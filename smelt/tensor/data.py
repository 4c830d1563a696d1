"""Where tensors come from: data that is there (numbers, NumPy, DLPack), and arguments that have none yet.

`tensor` and `from_dlpack` make concrete leaves, `symbolic` makes one whose sizes may be symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.dtype import DType
from smelt.shape import Shape
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.axes import names_of, shape_of
from smelt.tensor.core import Tensor
from smelt.tensor.ops import move as moving
from smelt.tensor.promotion import as_array
from smelt.tensor.record import Leaf, tensor_of
from smelt.tensor.source import here, refuse


def tensor(
    data: Any, names: str | Sequence[str] | None = None, dtype: str | DType | None = None, *, copy: bool = True
) -> Tensor:
    """A tensor on data: numbers, nested lists, NumPy arrays, anything with DLPack.

    Python floats become f32, integers i32; arrays keep their type. With `copy=False` an array is shared: then it must
    not change any more. `names` are the axes': `smelt.tensor(x, "b d")`.

    >>> tensor([[1, 2], [3, 4]], "b d").shape
    i32[b=2, d=2]
    """
    if isinstance(data, Tensor):
        return moving.named(data, *names_of(names)) if names is not None else data
    array, element = as_array(data, dtype)
    if copy and not isinstance(data, list | tuple | bool | int | float | complex):
        array = array.copy()  # the caller may write to it
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    shape = Shape.of(element, array.shape)
    made = tensor_of(Leaf(shape, array, place=here()), None)
    return made if names is None else moving.named(made, *names_of(names))


@with_argument_errors
def from_dlpack(data: Any, names: str | Sequence[str] | None = None) -> Tensor:
    """A tensor on the memory of another library's array, which must not change any more."""
    if not hasattr(data, "__dlpack__"):
        refuse(
            "from_dlpack: an object without DLPack",
            details=[("expected", "an array of NumPy, JAX, PyTorch, …"), ("got", type(data).__name__)],
            remedy="smelt.tensor(data)",
        )
    return tensor(np.from_dlpack(data), names, copy=False)


@with_argument_errors
def symbolic(shape: Shape | str, name: str = "") -> Tensor:
    """A tensor without data: an argument. Shapes of what is computed from it are proven for all sizes.

    >>> symbolic("f32[b=B, d=512]").sum("d").shape
    f32[b=B]
    """
    wanted = shape_of(shape)
    return tensor_of(Leaf(Shape.of(wanted.dtype, wanted.sizes), name=name, place=here()), wanted.names)
