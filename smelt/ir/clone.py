"""Copying ops: the same ops on other operands, with other symbols. Used by inlining, splitting and exporting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from smelt.dim import Size
from smelt.ir.core import Future, Op, Region, Tuple, Type, Value
from smelt.shape import Shape

Retype = Callable[[Type], Type]


def substitution(values: Mapping[str, Size]) -> Retype:
    """A change of types that replaces symbols in sizes."""

    def retype(type: Type) -> Type:
        match type:
            case Shape():
                return type.substitute(values)
            case Tuple():
                return Tuple(tuple(retype(inner) for inner in type.types))
            case Future():
                return Future(tuple(retype(inner) for inner in type.types))
            case _:
                return type

    return retype if values else lambda type: type


def remake_op(op: Op, operands: Iterable[Value], regions: Iterable[Region], retype: Retype = lambda type: type) -> Op:
    """The same op on other operands, with other regions and types of its results."""
    types, names = [retype(result.type) for result in op.results], [result.name for result in op.results]
    return Op(op.name, operands, types, op.attrs, regions, op.location, names)


def clone_op(op: Op, values: dict[Value, Value], retype: Retype = lambda type: type) -> Op:
    """A copy of an op whose operands (and captured values) are looked up in `values`; its results are added there."""
    operands = [values.get(operand, operand) for operand in op.operands]
    copy = remake_op(op, operands, [clone_region(region, values, retype) for region in op.regions], retype)
    values.update(zip(op.results, copy.results, strict=True))
    return copy


def clone_args(args: Sequence[Value], retype: Retype = lambda type: type) -> tuple[Value, ...]:
    """Arguments of the same names for another region."""
    return tuple(Value(retype(arg.type), None, arg.index, arg.name) for arg in args)


def clone_region(region: Region, values: dict[Value, Value], retype: Retype = lambda type: type) -> Region:
    """A copy of a region with arguments of its own."""
    args = clone_args(region.args, retype)
    values.update(zip(region.args, args, strict=True))
    ops = tuple(clone_op(op, values, retype) for op in region.ops)
    return Region(args, ops, tuple(values.get(value, value) for value in region.results))


def clone_ops(ops: Sequence[Op], values: dict[Value, Value], retype: Retype = lambda type: type) -> list[Op]:
    """Copies of a run of ops, in order."""
    return [clone_op(op, values, retype) for op in ops]
