"""Common subexpressions: an op that says the same as an earlier one, visible from it, gives way to it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from smelt.ir.core import Op, Value
from smelt.ir.rewrite import Edit, has_effect
from smelt.ir.structure import op_key


def common_subexpressions(edit: Edit) -> int:
    """Merge equal ops; gives the number of ops that went. What an inner region computes is not visible outside it."""
    numbers: dict[Value, int] = {}

    def number(value: Value) -> int:
        return numbers.setdefault(edit.value(value), len(numbers))

    count = 0
    seen: dict[Hashable, Op] = {}
    found: list[Hashable] = []  # the keys in the order of their finding, so that a region's can be forgotten
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
