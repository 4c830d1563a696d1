"""Composites from Python: a computation with a name that an engine may know as one kernel, and its decomposition.

`composite` records the op. Programs that contain it (`jit.trace`, `jit.realise`) add the functions that `callees`
finds. `unblock` dequantises block-quantised weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from smelt.dtype import ui8
from smelt.ir.block_ops import decomposition
from smelt.ir.blocks import BLOCKS
from smelt.ir.composites import encode
from smelt.ir.core import Func, Region, walk
from smelt.ir.structure import fingerprint
from smelt.tensor.record import operand, record, tensor_of
from smelt.tensor.recovery import with_recovery
from smelt.tensor.source import refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

DECOMPOSITIONS: dict[str, Func] = {}  # by names with a fingerprint of their content, so that none is ever replaced


def composite(
    name: str, operands: tuple[Tensor, ...], attributes: Mapping[str, Any], body: Func, names: tuple[str, ...] | None
) -> Tensor:
    """The one result of a composite of `ir.composites`, whose decomposition is the body of a function."""
    key = f"{name}.{fingerprint(body).hex()[:24]}"
    func = DECOMPOSITIONS.setdefault(key, Func(key, body.body, "private"))
    attrs = {"name": name, "composite_attributes": encode(name, attributes), "decomposition": key}
    op = record("stablehlo.composite", tuple(each.value for each in operands), attrs, signatures={key: func.type})
    return tensor_of(op.results[0], names)


def callees(body: Region) -> list[Func]:
    """The decompositions of the composites in a region."""
    used = {op.attrs["decomposition"]: None for op in walk(body) if op.name == "stablehlo.composite"}
    return [DECOMPOSITIONS[name] for name in used]


@with_recovery
def unblock(x: Tensor, format: str, axis: str | None = None) -> Tensor:
    """Block-quantised weights as f32: `ui8[..., n, bytes]` → `f32[..., n * length]`; the last axis is called `axis`.

    >>> import smelt
    >>> unblock(smelt.symbolic("ui8[f=8, n=2, bytes=18]"), "q4_0", "d").shape
    f32[f=8, d=64]
    """
    row = BLOCKS.get(format)
    if row is None:
        refuse(f"unblock: unknown format {format!r}", operand("operand", x), details=[("known", ", ".join(BLOCKS))])
    if x.dtype is not ui8 or x.shape.rank < 2 or x.shape.sizes[-1] != row.bytes or not x.shape.is_static:
        refuse(f"unblock: {format} has blocks of {row.bytes} bytes along the last axis", operand("operand", x))
    lead = x.shape.numbers()[:-1]
    names = None if x.shape.names is None else (*x.shape.names[:-2], axis or x.shape.names[-2])
    return composite("smelt.unblock", (x,), {"format": format}, decomposition(row, lead), names)
