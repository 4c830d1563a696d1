"""Inline every `func.call`; functions that nobody names any more go. Composites keep their decompositions."""

from __future__ import annotations

from smelt.dim import Size
from smelt.ir.attributes import Symbol
from smelt.ir.clone import clone_ops, substitution
from smelt.ir.core import Func, Op, Program, Region, Value, walk
from smelt.ir.ops.definition import Scope
from smelt.ir.rewrite import symbols_of
from smelt.shape import Shape


def inline(program: Program) -> Program:
    """The same program without calls; callees are inlined before their callers."""
    if not any(op.name == "func.call" for func in program.funcs.values() for op in walk(func.body)):
        return _drop_unnamed(program)
    done: dict[str, Func] = {}
    for name in _callees_first(program):
        done[name] = _inline_into(program.funcs[name], done)
    return _drop_unnamed(program.replace(*(done[name] for name in program.funcs)))


def _callees_first(program: Program) -> list[str]:
    """Functions in an order in which every callee comes before its callers; verification has refused recursion."""
    order: list[str] = []
    seen: set[str] = set()
    for start in program.funcs:
        stack = [(start, False)]
        while stack:
            name, ready = stack.pop()
            if ready:
                order.append(name)
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                calls = [op.attrs["callee"] for op in walk(program.func(name).body) if op.name == "func.call"]
                stack += [(callee, False) for callee in calls if callee not in seen]
    return order


def _inline_into(func: Func, done: dict[str, Func]) -> Func:
    if not any(op.name == "func.call" for op in walk(func.body)):
        return func
    scope = Scope(symbols_of(func))
    body = _inline_region(func.body, done, scope, {})
    return Func(func.name, body, func.visibility, func.arg_attrs, func.result_attrs, func.attrs, func.location)


def _inline_region(region: Region, done: dict[str, Func], scope: Scope, values: dict[Value, Value]) -> Region:
    ops: list[Op] = []
    for op in region.ops:
        if op.name == "func.call":
            callee = done[op.attrs["callee"]]
            operands = [values.get(operand, operand) for operand in op.operands]
            renamed = _symbols_at(callee, operands, op, scope)
            inner = dict(zip(callee.args, operands, strict=True))
            ops += clone_ops(callee.body.ops, inner, substitution(renamed))
            values.update(zip(op.results, (inner.get(v, v) for v in callee.results), strict=True))
        elif not op.regions and not any(operand in values for operand in op.operands):
            ops.append(op)
        else:
            regions = [_inline_region(inner_region, done, scope, values) for inner_region in op.regions]
            types = [result.type for result in op.results]
            names = [result.name for result in op.results]
            operands = [values.get(operand, operand) for operand in op.operands]
            copy = Op(op.name, operands, types, op.attrs, regions, op.location, names)
            values.update(zip(op.results, copy.results, strict=True))
            ops.append(copy)
    return Region(region.args, tuple(ops), tuple(values.get(value, value) for value in region.results))


def _symbols_at(callee: Func, operands: list[Value], call: Op, scope: Scope) -> dict[str, Size]:
    """What the callee's symbols are at this call: sizes of the operands, names the call gave, or fresh symbols."""
    known: dict[str, Size] = {}
    pairs = list(zip(callee.args, operands, strict=True)) + list(zip(callee.results, call.results, strict=True))
    for have, want in pairs:
        if isinstance(have.type, Shape) and isinstance(want.type, Shape):
            for size, actual in zip(have.type.sizes, want.type.sizes, strict=True):
                name = next(iter(have.type.symbols & {str(size)}), None)
                if name is not None and name not in known:
                    known[name] = actual
    for name in sorted(symbols_of(callee) - set(known)):
        known[name] = scope.fresh()
    return known


def _drop_unnamed(program: Program) -> Program:
    """Keep public functions, the entry, and everything they name, directly or not."""
    entry = program.main.name
    keep: list[str] = [name for name, func in program.funcs.items() if name == entry or func.visibility == "public"]
    kept: dict[str, None] = {}
    while keep:
        name = keep.pop()
        if name in kept or name not in program.funcs:
            continue
        kept[name] = None
        for op in walk(program.funcs[name].body):
            keep += _named(op)
    if len(kept) == len(program.funcs):
        return program
    funcs = [func for name, func in program.funcs.items() if name in kept]
    return Program.of(*funcs, name=program.name, attrs=program.attrs, declarations=program.declarations)


def _named(op: Op) -> list[str]:
    """The functions an op's attributes name."""
    found: list[str] = []
    stack = [
        op.attrs[key]
        for key in ("callee", "decomposition", "called_computations", "programs", "infeed")
        if key in op.attrs
    ]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple | list):
            stack += item
        elif isinstance(item, Symbol):
            found.append(item.name)
        elif isinstance(item, str):
            found.append(item)
    return found
