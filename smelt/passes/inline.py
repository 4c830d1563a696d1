"""Inline every `func.call` and every composite that the engine has no kernel for; erase functions without users."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from smelt.dim import Size
from smelt.errors import UnsupportedError
from smelt.ir.attributes import Symbol
from smelt.ir.clone import clone_args, clone_ops, remake_op, substitution
from smelt.ir.composite_check import fits
from smelt.ir.core import Func, Op, Program, Region, Value, walk
from smelt.ir.ops.definition import Scope
from smelt.ir.ops.signature import bare_symbol
from smelt.ir.rewrite import symbols_at, symbols_of
from smelt.shape import Shape

MOST = 1 << 17  # ops after inlining: a chain of functions that call the next one twice grows exponentially


def inline(program: Program, keep: Container[str] = ()) -> Program:
    """The same program without calls, and without composites other than those in `keep` that are what their names
    say."""
    callees = {op: name for func in program.funcs.values() for op in walk(func.body) if (name := _callee(op, keep))}
    if not callees:
        return _drop_unreachable(program)
    order = _callees_first(program, callees)
    _check_growth(program, order, callees)
    done: dict[str, Func] = {}
    for name in order:
        done[name] = _inline_into(program.funcs[name], done, callees)
    return _drop_unreachable(program.replace(*(done[name] for name in program.funcs)))


def _check_growth(program: Program, order: Iterable[str], callees: Mapping[Op, str]) -> None:
    sizes: dict[str, int] = {}
    for name in order:
        func = program.funcs[name]
        inside = list(walk(func.body))
        sizes[name] = sum(sizes[callees[op]] if op in callees else 1 for op in inside)
        if sizes[name] > max(MOST, len(inside)):
            message = f"@{name} expands to too many ops"
            raise UnsupportedError(message, expected=f"at most {MOST}", got=sizes[name], where=func.location)


def _callee(op: Op, keep: Container[str]) -> str | None:
    """The function whose body replaces an op."""
    if op.name == "func.call":
        name: str = op.attrs["callee"]
        return name
    if op.name == "stablehlo.composite" and (op.attrs["name"] not in keep or not fits(op)):
        decomposition: str = op.attrs["decomposition"]
        return decomposition
    return None


def _callees_first(program: Program, callees: Mapping[Op, str]) -> list[str]:
    """Functions in an order with callees before callers; the verifier has rejected recursion."""
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
                calls = [callees[op] for op in walk(program.func(name).body) if op in callees]
                stack += [(callee, False) for callee in calls if callee not in seen]
    return order


def _inline_into(func: Func, done: dict[str, Func], callees: Mapping[Op, str]) -> Func:
    if not any(op in callees for op in walk(func.body)):
        return func
    into = _Into(done, callees, Scope(symbols_of(func)))
    body = into.region(func.body)
    return replace(func, body=body)


@dataclass(slots=True)
class _Into:
    """The function under construction: its new values, and the sizes of symbols that a call introduced."""

    done: dict[str, Func]
    callees: Mapping[Op, str]
    scope: Scope
    values: dict[Value, Value] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)  # symbols met so far

    def region(self, region: Region) -> Region:
        args = region.args
        if self.sizes and _symbols(args) & self.sizes.keys():
            retype = substitution(self.sizes)
            args = clone_args(args, retype)
            self.values.update(zip(region.args, args, strict=True))
        self.seen |= _symbols(args)
        ops: list[Op] = []
        for op in region.ops:
            ops += self.call(op) if op in self.callees else [self.copy(op)]
            self.seen |= _symbols(op.results)
        return Region(args, tuple(ops), tuple(self.values.get(value, value) for value in region.results))

    def call(self, op: Op) -> list[Op]:
        callee = self.done[self.callees[op]]
        operands = [self.values.get(operand, operand) for operand in op.operands]
        renamed = symbols_at(callee, operands, op, self.scope)
        inner = dict(zip(callee.args, operands, strict=True))
        ops = clone_ops(callee.body.ops, inner, substitution(renamed))
        results = [inner.get(value, value) for value in callee.results]
        self.values.update(zip(op.results, results, strict=True))
        for outside, inside in zip(op.results, results, strict=True):
            if isinstance(outside.type, Shape) and isinstance(inside.type, Shape):
                for size, actual in zip(outside.type.sizes, inside.type.sizes, strict=True):
                    name = bare_symbol(size)
                    if name is not None and size != actual and name not in self.seen:
                        self.sizes[name] = actual  # the body has a formula for a size that the call names by one symbol
        return ops

    def copy(self, op: Op) -> Op:
        if not op.regions and not self.sizes and not any(operand in self.values for operand in op.operands):
            return op
        regions = [self.region(inner) for inner in op.regions]
        retype = substitution(self.sizes)
        operands = [self.values.get(operand, operand) for operand in op.operands]
        copy = remake_op(op, operands, regions, retype)
        self.values.update(zip(op.results, copy.results, strict=True))
        return copy


def _symbols(values: Iterable[Value]) -> set[str]:
    return {name for value in values if isinstance(value.type, Shape) for name in value.type.symbols}


def _drop_unreachable(program: Program) -> Program:
    """Keep public functions, the entry, and everything reachable from them."""
    entry = program.main.name
    keep: list[str] = [name for name, func in program.funcs.items() if name == entry or func.visibility == "public"]
    kept: dict[str, None] = {}
    while keep:
        name = keep.pop()
        if name in kept or name not in program.funcs:
            continue
        kept[name] = None
        for op in walk(program.funcs[name].body):
            keep += _references(op)
    if len(kept) == len(program.funcs):
        return program
    funcs = [func for name, func in program.funcs.items() if name in kept]
    return Program.of(*funcs, name=program.name, attrs=program.attrs, declarations=program.declarations)


def _references(op: Op) -> list[str]:
    """The functions that an op's attributes refer to."""
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
