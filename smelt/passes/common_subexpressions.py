"""Common subexpression elimination: an op is replaced by an equal earlier one that is visible from it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from smelt.ir.core import Op, Value
from smelt.ir.rewrite import Edit, has_effect
from smelt.ir.structure import op_key


def common_subexpressions(edit: Edit) -> int:
    """Merge equal ops; returns the number of ops erased. A value of an inner region is not visible outside it."""
    numbers: dict[Value, int] = {}

    def number(value: Value) -> int:
        return numbers.setdefault(edit.value(value), len(numbers))

    count = 0
    seen: dict[Hashable, Op] = {}
    found: list[Hashable] = []  # keys in the order of insertion, so that those of a region can be removed
    open_regions: list[tuple[Iterator[Op], int]] = [(edit.ops(), 0)]
    while open_regions:
        ops, mark = open_regions[-1]
        op = next(ops, None)
        if op is None:
            open_regions.pop()
            while len(found) > mark:
                del seen[found.pop()]
            continue
        key = None if has_effect(op) else op_key(op, number)
        earlier = seen.get(key) if key is not None else None
        if earlier is not None:
            for old, new in zip(op.results, earlier.results, strict=True):
                edit.replace(old, new)
            edit.erase(op)
            count += 1
            continue
        if key is not None:
            seen[key] = op
            found.append(key)
        open_regions += [(edit.ops(region), len(found)) for region in reversed(op.regions)]
    return count
