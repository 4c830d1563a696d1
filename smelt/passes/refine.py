"""Infer the types of a function again, from its arguments on: sizes that were open become what is known by now.

After inlining, a size that a callee took from an integer argument traces back to a dimension; a symbol that was born
where nothing was known then gives way to the size itself. Called by `pipeline` after `inline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.dim import Size, symbol
from smelt.errors import SmeltError
from smelt.ir.build import make
from smelt.ir.clone import clone_op, clone_region, substitution
from smelt.ir.core import Func, FuncType, Op, Program, Region, Type, Value, walk
from smelt.ir.ops.definition import UNKNOWN, Scope
from smelt.ir.rewrite import symbols_of
from smelt.shape import Shape


def refine(program: Program) -> Program:
    """The same program with every size as well known as inference can know it."""
    signatures = {name: func.type for name, func in program.funcs.items()}
    refined = [_refine(func, signatures) for func in program.funcs.values()]
    unchanged = all(new is program.funcs[new.name] for new in refined)
    return program if unchanged else program.replace(*refined)


def _refine(func: Func, signatures: dict[str, FuncType]) -> Func:
    given = frozenset().union(*(arg.type.symbols for arg in func.args if isinstance(arg.type, Shape)))
    if symbols_of(func) <= given:
        return func  # nothing was born inside
    scope = Scope(symbols_of(func))
    known: dict[str, Size] = {}
    values: dict[Value, Value] = {}
    ops = []
    for op in func.body.ops:
        born = _symbols(value.type for value in op.results) - given - set(known)
        fresh = _again(op, values, known, born, scope, signatures) if born else None
        if fresh is None:
            known |= {name: symbol(name) for name in born}
            fresh = clone_op(op, values, substitution(known))
        else:
            _learn(op, fresh, born, known)
            values.update(zip(op.results, fresh.results, strict=True))
        ops.append(fresh)
    if all(known[name] == symbol(name) for name in known):
        return func
    results = tuple(values.get(value, value) for value in func.results)
    body = Region(func.args, tuple(ops), results)
    return Func(func.name, body, func.visibility, func.arg_attrs, func.result_attrs, func.attrs, func.location)


def _symbols(types: Iterable[Type]) -> set[str]:
    found: set[str] = set()
    for type in types:
        if isinstance(type, Shape):
            found |= type.symbols
    return found


def _again(
    op: Op,
    values: dict[Value, Value],
    known: dict[str, Size],
    born: set[str],
    scope: Scope,
    signatures: dict[str, FuncType],
) -> Op | None:
    """The op made anew with its open sizes undeclared; None where inference knows no more than before."""
    if any(_symbols(value.type for value in inner.results) & born for region in op.regions for inner in walk(region)):
        return None  # a loop or branch whose sizes vary: they stay as they are
    retype = substitution({**known, **dict.fromkeys(born, UNKNOWN)})
    operands = [values.get(operand, operand) for operand in op.operands]
    regions = [clone_region(region, dict(values), substitution(known)) for region in op.regions]
    declared: list[Type] = [retype(value.type) for value in op.results]
    before = set(scope.taken)
    names = [value.name for value in op.results]
    try:
        fresh = make(
            op.name,
            operands,
            op.attrs,
            regions,
            declared,
            scope=scope,
            location=op.location,
            result_names=names,
            signatures=signatures,
        )
    except SmeltError:
        return None  # a declared size that inference cannot replace
    return None if _symbols(value.type for value in fresh.results) - before else fresh


def _learn(old: Op, new: Op, born: set[str], known: dict[str, Size]) -> None:
    """What the symbols born at an op turn out to be."""
    for before, after in zip(old.results, new.results, strict=True):
        if isinstance(before.type, Shape) and isinstance(after.type, Shape):
            for name, size in _pairs(before.type.sizes, after.type.sizes):
                if name in born and name not in known:
                    known[name] = size
    for name in born - set(known):
        known[name] = symbol(name)


def _pairs(before: Sequence[Size], after: Sequence[Size]) -> list[tuple[str, Size]]:
    return [(str(old), new) for old, new in zip(before, after, strict=True) if not isinstance(old, int)]
