"""Common subexpression elimination: an op is replaced by an equal earlier one that is visible from it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from smelt.ir.core import Op, Value
from smelt.ir.rewrite import Edit, has_effect
from smelt.ir.structure import op_key

ISOLATED = frozenset({"chlo.scan"})  # ops whose regions use no value from outside


def common_subexpressions(edit: Edit) -> int:
    """Merge equal ops; returns the number of ops erased. A value of an inner region is not visible outside it, and the
    body of a scan sees nothing from outside."""
    numbers: dict[Value, int] = {}

    def number(value: Value) -> int:
        return numbers.setdefault(edit.value(value), len(numbers))

    count = 0
    # Per region: its ops, the ops that are visible in it, in order, and how many of those came before it.
    open_regions: list[tuple[Iterator[Op], dict[Hashable, Op], int]] = [(edit.ops(), {}, 0)]
    while open_regions:
        ops, seen, mark = open_regions[-1]
        op = next(ops, None)
        if op is None:
            open_regions.pop()
            while len(seen) > mark:
                seen.popitem()
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
        for region in reversed(op.regions):
            inner = {} if op.name in ISOLATED else seen
            open_regions.append((edit.ops(region), inner, len(inner)))
    return count
