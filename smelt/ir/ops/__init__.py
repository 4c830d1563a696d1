"""The op table: one row for every op of StableHLO, the CHLO ops that exporters emit, and the test dialects.

Each family has a file of its own, with inference and reference semantics side by side. This file joins them.
"""

from __future__ import annotations

from difflib import get_close_matches

from smelt.errors import Location, UnsupportedError
from smelt.ir.ops import (
    attention,
    collective,
    control,
    dynamic,
    elementwise,
    grouped,
    index,
    linear,
    packed,
    packed_blocks,
    paged_attention,
    quantize,
    random,
    reduce,
    shape,
    testing,
    window,
)
from smelt.ir.ops.definition import OpDef

FAMILIES = (
    *(elementwise, shape, index, reduce, window, linear, packed, packed_blocks, grouped),
    *(attention, paged_attention, random, quantize, control, collective, dynamic, testing),
)
OPS: dict[str, OpDef] = {row.name: row for family in FAMILIES for row in family.ROWS}


def definition_of(name: str, where: Location | None = None) -> OpDef:
    """The row of an op. An unknown name is the user's mistake; the error names the nearest known op."""
    row = OPS.get(name)
    if row is None:
        near = get_close_matches(name, OPS, 1) or [
            other for other in OPS if other.endswith("." + name.rpartition(".")[2])
        ]
        raise UnsupportedError(
            f"unknown op {name}", expected="an op of StableHLO or CHLO", where=where, remedy=near[0] if near else None
        )
    return row
