"""Python → Program: tensors with named axes whose shapes are proven while the code is written down.

`Tensor` and what makes and combines tensors; `trace` turns annotated functions into programs; `Shaped` annotates them.
"""

from __future__ import annotations

from smelt.callable_package import make_callable
from smelt.tensor.axes import Dim
from smelt.tensor.core import Tensor
from smelt.tensor.data import from_dlpack, symbolic, tensor
from smelt.tensor.facts import assume
from smelt.tensor.jit.realise import engine, realize
from smelt.tensor.jit.trace import check, checked, trace
from smelt.tensor.model import Model
from smelt.tensor.ops import elementwise, random
from smelt.tensor.ops import move as moving
from smelt.tensor.ops.control import cond, custom_call, fori_loop, scan, while_loop
from smelt.tensor.ops.move import arange, full, iota, ones, zeros
from smelt.tensor.recovery import with_recovery
from smelt.tensor.shaped import Shaped
from smelt.tensor.source import TensorError

# Ops that are no methods: a check goes on after a mistake in them, too.
atan2 = with_recovery(elementwise.atan2)
complex_from = with_recovery(elementwise.complex_from)
maximum = with_recovery(elementwise.maximum)
minimum = with_recovery(elementwise.minimum)
outer = with_recovery(elementwise.outer)
where = with_recovery(elementwise.where)
concatenate = with_recovery(moving.concatenate)
stack = with_recovery(moving.stack)

__all__ = [
    "Dim",
    "Model",
    "Shaped",
    "Tensor",
    "TensorError",
    "arange",
    "assume",
    "atan2",
    "check",
    "checked",
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
    "random",
    "realize",
    "scan",
    "stack",
    "symbolic",
    "tensor",
    "trace",
    "where",
    "while_loop",
    "zeros",
]

make_callable(__name__, "smelt.tensor.data", "tensor")  # `smelt.tensor(data)`
