"""Common subexpressions: an op that says the same as an earlier one, visible from it, gives way to it."""

from __future__ import annotations

from collections.abc import Hashable

from smelt.ir.core import Op, Region, Value
from smelt.ir.rewrite import Edit, has_effect
from smelt.ir.structure import op_key


def common_subexpressions(edit: Edit) -> int:
    """Merge equal ops; gives the number of ops that went. What an inner region computes is not visible outside it."""
    numbers: dict[Value, int] = {}

    def number(value: Value) -> int:
        return numbers.setdefault(edit.value(value), len(numbers))

    count = 0
    seen: dict[Hashable, Op] = {}
    added: list[Hashable] = []
    work: list[tuple[Region, int] | tuple[None, int]] = [(edit.func.body, 0)]
    while work:
        region, mark = work.pop()
        if region is None:  # leaving a region: forget what was found inside
            while len(added) > mark:
                del seen[added.pop()]
            continue
        inner: list[Region] = []
        for op in edit.ops(region):
            if has_effect(op):
                inner += op.regions
                continue
            key = op_key(op, number)
            earlier = seen.get(key)
            if earlier is not None:
                for old, new in zip(op.results, earlier.results, strict=True):
                    edit.replace(old, new)
                edit.erase(op)
                count += 1
                continue
            seen[key] = op
            added.append(key)
            inner += op.regions
        for nested in inner:
            work.append((None, len(added)))
            work.append((nested, len(added)))
    return count
