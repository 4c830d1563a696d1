"""What an op asks of sizes that no proof gave: the checks that an engine makes once the sizes have numbers.

`size_checks(op)` runs the op's inference again and collects equalities and inequalities that are not proven, results
whose size may be negative, and divisors that may be 0. The interpreter and `kernel.fuse` call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from smelt.dim import Size, at_most, evaluate, symbols
from smelt.ir.build import settle
from smelt.ir.core import Op, Type
from smelt.ir.ops import OPS
from smelt.ir.ops.definition import Call, Scope
from smelt.shape import Shape
from smelt.size import nonneg
from smelt.theory import atoms_in

ADDRESSABLE = 1 << 56  # bytes: no tensor can have more, whether or not it is ever in memory


class Check(NamedTuple):
    """`a relation b`, and why that must hold."""

    a: Size
    relation: Literal["==", "<=", "!="]
    b: Size
    why: str

    @property
    def text(self) -> str:
        if self.relation == "<=" and isinstance(self.a, int):
            return f"{self.b} >= {self.a}"
        return f"{self.a} {self.relation} {self.b}"

    @property
    def symbols(self) -> frozenset[str]:
        return symbols(self.a) | symbols(self.b)

    def holds(self, values: Mapping[str, int]) -> bool:
        a, b = evaluate(self.a, values), evaluate(self.b, values)
        return a == b if self.relation == "==" else a <= b if self.relation == "<=" else a != b


def size_checks(op: Op) -> tuple[Check, ...]:
    """The checks of one op, divisors first; those of ops inside its regions are their own."""
    types = [value.type for value in op.results]
    named = _symbols(*types, *(value.type for value in op.operands))
    inner = _symbols(*(value.type for region in op.regions for value in (*region.args, *region.results)))
    if not named and not inner:
        return ()
    return tuple(dict.fromkeys([*sizes_checks(op.name, types), *_list_assumed(op, named | inner)]))


def _list_assumed(op: Op, named: frozenset[str]) -> Iterator[Check]:
    """What inference assumes. A callee checks its own arguments."""
    if any("symbol" in attr.kind.name for attr in OPS[op.name].attrs):
        return
    scope = Scope(named)
    declared = [value.type for value in op.results]
    call = Call(op.name, op.operands, op.attrs, op.regions, declared, scope=scope, location=op.location)
    settle(call, OPS[op.name].infer(call))
    found = [Check(a, "==", b, why) for (a, b), why in scope.equalities.items()]
    found += [Check(a, "<=", b, why) for (a, b), why in scope.inequalities.items() if not _is_at_most(a, b)]
    yield from (check for check in found if check.symbols <= named)  # symbols that inference made up say nothing


def sizes_checks(name: str, types: Sequence[Type]) -> Iterator[Check]:
    """No size of these types is negative, and none is divided by 0."""
    sizes = dict.fromkeys(
        size for type in types if isinstance(type, Shape) and not type.is_static for size in type.sizes
    )
    for atom in atoms_in(*sizes):
        if atom.op in ("//", "%") and not isinstance(atom.args[1], int) and not _is_at_most(1, atom.args[1]):
            yield Check(atom.args[1], "!=", 0, f"{name}: a size is divided by zero")
    for size in sizes:
        if not _is_at_most(0, size):
            yield Check(0, "<=", size, f"{name}: a size is negative")


@lru_cache(4096)
def _is_at_most(a: Size, b: Size) -> bool:
    return nonneg(b - a) or bool(at_most(a, b))


def _symbols(*types: Type) -> frozenset[str]:
    return frozenset().union(*(type.symbols for type in types if isinstance(type, Shape)))
