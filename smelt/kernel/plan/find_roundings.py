"""Roundings of rows that the kernel in front can do: what is rounded is computed, element by element, from the last
value of its epilogue. Called by `fuse`, on a GPU, when it is known what is materialised."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.ir.core import Op, Region, Value
from smelt.ir.ops import OPS
from smelt.kernel.build.families import PULLS
from smelt.kernel.build.sinks import Rounding
from smelt.kernel.loops.nest import tensor
from smelt.kernel.plan.materialise import Materialised, can_round

ROUND = "smelt.round_blocks"
MOST = 64  # ops between a value and what is rounded


def find_roundings(region: Region, materialised: Materialised) -> dict[Value, list[Rounding]]:
    """The roundings of a block by the value from which they are computed, which is the last one of a kernel's epilogue.
    All of a value round the same rows, in other formats."""
    found: dict[Value, list[Rounding]] = {}
    order = {op: i for i, op in enumerate(region.ops)}
    for op in region.ops:
        if op.name != ROUND or op in materialised.anchors or op.results[0] not in materialised.values:
            continue
        source = _find_source(op, order, materialised)
        if source is not None:
            value, path = source
            others = found.setdefault(value, [])
            if all(each.op.operands == op.operands for each in others):
                others.append(Rounding(op, path, ()))
    return found


def _find_source(op: Op, order: dict[Op, int], materialised: Materialised) -> tuple[Value, tuple[Op, ...]] | None:
    """The last of the values from which rows are computed, if a kernel that rounds stores it, and the reshapes between
    both. All others have to be there before it."""
    leaves: dict[Value, list[Sequence[Op] | None]] = {}
    stack: list[tuple[Value, tuple[Op, ...] | None]] = [(op.operands[0], ())]
    seen = set[tuple[Value, tuple[Op, ...] | None]]()
    while stack:
        here = value, path = stack.pop()
        if here in seen:
            continue
        seen.add(here)
        maker = value.op
        if maker is None or maker not in order or value in materialised.values or maker.name == "stablehlo.constant":
            leaves.setdefault(value, []).append(path)
            continue
        if maker.name not in PULLS or maker.name == "stablehlo.reduce" or len(seen) > MOST:
            return None
        for operand in maker.operands:
            stack.append((operand, _extend(path, maker, operand)))
    made = [value for value in leaves if value.op is not None and value.op in order]
    made = [value for value in made if value in materialised.values]
    if not made:
        return None
    last = max(made, key=lambda value: order[value.op] if value.op is not None else -1)
    paths = leaves[last]
    if any(path is None or path != paths[0] for path in paths) or len(tensor(last).sizes) < 1:
        return None
    assert last.op is not None
    anchor = materialised.anchors.get(last.op)
    first, before, pair = (last.op, (), ()) if anchor is None else (anchor.op, anchor.path, anchor.pair)
    if first.name != "smelt.packed_block_dot" or not can_round(first, before, pair):
        return None
    return last, tuple(paths[0] or ())


def _extend(path: tuple[Op, ...] | None, op: Op, operand: Value) -> tuple[Op, ...] | None:
    """The reshapes from an operand on; None where its elements are elsewhere in the result."""
    if path is None:
        return None
    if op.name == "stablehlo.reshape":
        return (op, *path)
    same = OPS[op.name].elementwise and tensor(operand).sizes == tensor(op.result).sizes
    return path if same else None
