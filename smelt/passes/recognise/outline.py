"""Outlining: the ops of a pattern move into a function, the decomposition of a new `stablehlo.composite`.

In: a finder's match. The edit stays as it is where an inner value has users outside the pattern. Called by `recognise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from smelt.dim import Size, divide_exact, symbol, symbols
from smelt.ir.clone import clone_op
from smelt.ir.composites import encode
from smelt.ir.core import Func, Op, Program, Region, Type, Value, find_captures, walk
from smelt.ir.ops.signature import bare_symbol
from smelt.ir.rewrite import Edit, has_effect
from smelt.ir.structure import fingerprint
from smelt.shape import Shape

MOVES = frozenset(f"stablehlo.{name}" for name in ("constant", "broadcast_in_dim", "reshape", "transpose"))


@dataclass(frozen=True, slots=True)
class Found:
    """A finder's match: composite name, inputs, attributes, and ops that may be duplicated."""

    name: str
    inputs: tuple[Value, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    copied: frozenset[Op] = frozenset()


@dataclass(slots=True)
class Outlines:
    """The decompositions of a program so far; equal ones are shared."""

    program: Program
    made: dict[bytes, Func] = field(default_factory=dict)

    def outline(self, edit: Edit, local: set[Op], root: Op, found: Found) -> bool:
        """Replace a match by a composite; returns whether that was possible."""
        inside = _between(edit, local, root, found)
        if inside is None:
            return False
        inputs = [edit.value(value) for value in found.inputs]
        body = _copy_body(edit, inputs, inside, root)
        if body is None:
            return False
        func = self._function(found.name, body)
        edit.signatures[func.name] = func.type
        composite = edit.before(root).op(
            "stablehlo.composite",
            *inputs,
            name=found.name,
            composite_attributes=encode(found.name, found.attributes),
            decomposition=func.name,
            result=[value.type for value in root.results],
        )
        local.add(composite)
        for old, new in zip(root.results, composite.results, strict=True):
            edit.replace(old, new)
        for op in reversed(inside):
            if op in edit:
                edit.erase_if_dead(op)
        return True

    def _function(self, name: str, body: Region) -> Func:
        key = fingerprint(Func("decomposition", body, "private")) + name.encode()
        if key not in self.made:
            taken = {*self.program.funcs, *(func.name for func in self.made.values())}
            number = next(i for i in range(len(taken) + 1) if f"{name}.{i}" not in taken)
            self.made[key] = Func(f"{name}.{number}", body, "private")
        return self.made[key]


def _between(edit: Edit, local: set[Op], root: Op, found: Found) -> list[Op] | None:
    """The ops from the inputs to the root, operands first; None if one of them has users outside the pattern.

    Constants, moves of constants and inputs, and the finder's `copied` ops are duplicated: they may have other users,
    and constants may be outside the root's region.
    """
    stop = {edit.value(value) for value in found.inputs}
    order = _operands_first(edit, root, stop)
    if order is None:
        return None
    inside = set(order)
    cheap: set[Op] = set()
    for op in order:
        if op.name in MOVES and all(value in stop or value.op in cheap for value in edit.operands(op)):
            cheap.add(op)
        elif op not in local:
            return None
        elif op is not root and op not in found.copied:
            for value in op.results:
                if edit.is_returned(value) or any(user not in inside for user in edit.users(value)):
                    return None
    return order


def _operands_first(edit: Edit, root: Op, stop: set[Value]) -> list[Op] | None:
    """The ops from the root back to the inputs; None if they reach an argument or have an effect."""
    order: dict[Op, None] = {}
    stack = [(root, False)]
    while stack:
        op, ready = stack.pop()
        if op in order:
            continue
        if ready:
            order[op] = None
            continue
        if has_effect(op) or find_captures(*op.regions):
            return None
        stack.append((op, True))
        for operand in reversed(edit.operands(op)):
            if operand in stop:
                continue
            if operand.op is None:
                return None  # an argument that is not among the inputs
            stack.append((operand.op, False))
    return list(order)


def _copy_body(edit: Edit, inputs: Sequence[Value], inside: Sequence[Op], root: Op) -> Region | None:
    """The ops as a function's body; None where a size inside does not follow from sizes of the inputs."""
    sizes = _Sizes.of([value.type for value in inputs])
    regions = [region for op in inside for region in op.regions]
    types = [
        value.type for op in (*inside, *(each for region in regions for each in walk(region))) for value in op.results
    ]
    if not all(sizes.knows(type) for type in (*types, *(value.type for value in inputs))):
        return None
    args = tuple(Value(sizes.retype(value.type), None, i, value.name) for i, value in enumerate(inputs))
    values: dict[Value, Value] = dict(zip(inputs, args, strict=True))
    ops = []
    for op in inside:
        names = [value.name for value in op.results]
        current = Op(
            op.name, edit.operands(op), [value.type for value in op.results], op.attrs, op.regions, op.location, names
        )
        copy = clone_op(current, values, sizes.retype)
        values.update(zip(op.results, copy.results, strict=True))
        ops.append(copy)
    return Region(args, tuple(ops), tuple(values[value] for value in root.results))


@dataclass(slots=True)
class _Sizes:
    """Dynamic sizes in terms of a function's own symbols, each of which is the size of an argument's axis.

    A call binds each symbol by an argument's size; an argument size that is a formula gets a symbol of its own.
    """

    own: dict[Size, Size]
    bare: frozenset[str]

    @classmethod
    def of(cls, types: Sequence[Type]) -> _Sizes:
        found = [size for type in types if isinstance(type, Shape) for size in type.sizes if not isinstance(size, int)]
        bare = frozenset(name for size in found if (name := bare_symbol(size)) is not None)
        names = (name for name in map("size{}".format, count()) if name not in bare)
        own: dict[Size, Size] = {}
        for size in found:
            if not symbols(size) <= bare and size not in own:
                own[size] = symbol(next(names))
        return cls(own, bare)

    def express(self, size: Size) -> Size | None:
        """A size as a product of the function's sizes."""
        if isinstance(size, int) or symbols(size) <= self.bare:
            return size
        if size in self.own:
            return self.own[size]
        for known, name in self.own.items():
            quotient = divide_exact(size, known)
            rest = None if quotient is None or quotient == size else self.express(quotient)
            if rest is not None:
                return name * rest
        return None

    def knows(self, type: Type) -> bool:
        if not isinstance(type, Shape) or type.is_static:
            return True
        return type.bounds is None and all(self.express(size) is not None for size in type.sizes)

    def retype(self, type: Type) -> Type:
        if not isinstance(type, Shape) or type.is_static or not self.own:
            return type
        sizes = [self.express(size) for size in type.sizes]
        return Shape.of(type.dtype, [size for size in sizes if size is not None])
