"""Python → Program: tensors with named axes whose shapes are proven while the code is written down.

`Tensor` and what makes and combines tensors; `trace` turns annotated functions into programs; `Shaped` is the annotation.
"""

from __future__ import annotations

from smelt.tensor.axes import Dim
from smelt.tensor.control import cond, custom_call, fori_loop, scan, while_loop
from smelt.tensor.elementwise import atan2, complex_from, maximum, minimum, outer, where
from smelt.tensor.facts import assume
from smelt.tensor.moving import arange, concatenate, full, iota, ones, stack, zeros
from smelt.tensor.realize import engine, realize
from smelt.tensor.shaped import Shaped
from smelt.tensor.source import TensorError
from smelt.tensor.tensor import Tensor, from_dlpack, symbolic, tensor

__all__ = [
    "Dim",
    "Shaped",
    "Tensor",
    "TensorError",
    "arange",
    "assume",
    "atan2",
    "complex_from",
    "concatenate",
    "cond",
    "custom_call",
    "engine",
    "fori_loop",
    "from_dlpack",
    "full",
    "iota",
    "maximum",
    "minimum",
    "ones",
    "outer",
    "realize",
    "scan",
    "stack",
    "symbolic",
    "tensor",
    "where",
    "while_loop",
    "zeros",
]
