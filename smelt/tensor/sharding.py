"""Sharding of intermediate tensors over a mesh: `smelt.shard(x, f="model")`.

It becomes Shardy's `sdy.sharding_constraint`. On one device nothing happens.
"""

from __future__ import annotations

from smelt.ir.attributes import DialectAttr
from smelt.mesh import Partition, sharding_text
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.axes import find_axis
from smelt.tensor.core import Tensor
from smelt.tensor.record import emit, operand


@with_argument_errors
def shard(x: Tensor, **axes: str) -> Tensor:
    """The same tensor, split over the devices of a mesh: each named axis along that axis of the mesh, the others whole.

    >>> import smelt
    >>> shard(smelt.symbolic("f32[b=B, f=8]"), f="model").shape
    f32[b=B, f=8]
    """
    split: list[str | None] = [None] * x.rank
    for name, along in axes.items():
        split[find_axis("shard", operand("operand", x), name)] = along
    partition: Partition = tuple(split)
    sharding = DialectAttr("sdy", "sharding", sharding_text(partition))
    return emit("sdy.sharding_constraint", x, names=x.shape.names, sharding=sharding)
