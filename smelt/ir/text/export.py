"""A program whose sizes are formulas, as one that other StableHLO parsers take: sizes are computed where needed.

In: static ops with symbolic results. Out: their `dynamic_*` forms, fed by `get_dimension_size` and arithmetic on i64
scalars. Types keep their formulas; the printer then writes them as `?`. Called by `print_program(…, export=True)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from smelt.dim import Atom, Poly, Size, symbol, symbols
from smelt.dtype import i64
from smelt.errors import UnsupportedError
from smelt.ir.attributes import Constant
from smelt.ir.build import make
from smelt.ir.core import Attrs, Func, FuncType, Op, Program, Region, Value
from smelt.ir.ops.definition import Scope
from smelt.shape import Shape

_SCALAR, _ONE = Shape("i64"), Shape("i64", 1)
_DYNAMIC = {
    "stablehlo.reshape": "stablehlo.dynamic_reshape",
    "stablehlo.broadcast_in_dim": "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.iota": "stablehlo.dynamic_iota",
}
_STATIC_ONLY = frozenset(f"stablehlo.{name}" for name in ("constant", "rng_bit_generator", "infeed", "recv"))
SIZES = "smelt.sizes"  # the attribute of an argument that keeps the names of its sizes


def lower(program: Program) -> Program:
    """The same program in ops that take and give tensors whose sizes are not known beforehand."""
    signatures = {name: func.type for name, func in program.funcs.items()}
    funcs = [_Lowering(func, signatures).func() for func in program.funcs.values()]
    return program.replace(*funcs)


class _Lowering:
    """Copies one function. `sources` says for each symbol at which value and axis it can be read off, here and now."""

    def __init__(self, func: Func, signatures: dict[str, FuncType]) -> None:
        self.source = func
        self.signatures = signatures
        self.scope = Scope(frozenset(_symbols(func.body)))
        self.values: dict[Value, Value] = {}
        self.sources: dict[str, tuple[Value, int]] = {}
        self.computed: dict[Size, Value] = {}
        self.ops: list[Op] = []
        self.like: Op | None = None  # the op being copied: where new ops get their location

    def func(self) -> Func:
        func = self.source
        if not _symbols(func.body):
            return func
        return Func(
            func.name,
            self._region(func.body),
            func.visibility,
            tuple(_with_sizes(arg, attrs) for arg, attrs in zip(func.args, func.arg_attrs, strict=True)),
            func.result_attrs,
            func.attrs,
            func.location,
        )

    def _region(self, region: Region) -> Region:
        outside = self.ops, self.sources, self.computed
        self.ops, self.sources, self.computed = [], dict(self.sources), dict(self.computed)
        args = tuple(Value(arg.type, None, arg.index, arg.name) for arg in region.args)
        for old, new in zip(region.args, args, strict=True):
            self._define(old, new)
        for op in region.ops:
            self._copy(op)
        copied = Region(args, tuple(self.ops), tuple(self.values[value] for value in region.results))
        self.ops, self.sources, self.computed = outside
        return copied

    def _define(self, old: Value, new: Value) -> None:
        self.values[old] = new
        if not isinstance(new.type, Shape) or new.type.is_static:
            return
        for axis, size in enumerate(new.type.sizes):
            unknown = [name for name in symbols(size) if name not in self.sources]
            if len(unknown) == 1 and _slope(size, unknown[0]) is not None:
                self.sources[unknown[0]] = (new, axis)

    def _copy(self, op: Op) -> None:
        self.like = op
        operands = [self.values[operand] for operand in op.operands]
        dynamic = [value for value in op.results if isinstance(value.type, Shape) and not value.type.is_static]
        attrs, name = dict(op.attrs), op.name
        if dynamic and name in _STATIC_ONLY:
            raise UnsupportedError(f"{name} has no form with sizes that vary", got=op, where=op.location)
        if dynamic and name in _DYNAMIC:
            operands.append(self._vector(op.results[0].shape.sizes))
            name = _DYNAMIC[name]
        copied = Op(
            name,
            operands,
            [value.type for value in op.results],
            attrs,
            [self._region(region) for region in op.regions],
            op.location,
            [value.name for value in op.results],
        )
        self.ops.append(copied)
        for old, new in zip(op.results, copied.results, strict=True):
            self._define(old, new)

    # ---- sizes as values ----

    def _emit(self, name: str, *operands: Value, result: Shape | None = None, **attrs: object) -> Value:
        where = None if self.like is None else self.like.location
        declared = None if result is None else [result]
        op = make(name, operands, attrs, (), declared, scope=self.scope, location=where, signatures=self.signatures)
        self.ops.append(op)
        return op.results[0]

    def _number(self, value: int, shape: Shape = _SCALAR) -> Value:
        if not -(1 << 63) <= value < 1 << 63:
            raise UnsupportedError("a number in a size does not fit 64 bits", got=value)
        array = np.full(shape.numbers(), value, np.int64)
        return self._emit("stablehlo.constant", value=Constant.of(array, i64))

    def _vector(self, sizes: Sequence[Size]) -> Value:
        """A tensor of one axis that holds sizes."""
        parts = []
        for size in sizes:
            if isinstance(size, int):
                parts.append(self._number(size, _ONE))
            else:
                parts.append(self._emit("stablehlo.reshape", self._scalar(size), result=_ONE))
        return parts[0] if len(parts) == 1 else self._emit("stablehlo.concatenate", *parts, dimension=0)

    def _scalar(self, size: Size) -> Value:
        known = self.computed.get(size)
        if known is None:
            known = self.computed[size] = self._number(size) if isinstance(size, int) else self._polynomial(size)
        return known

    def _polynomial(self, size: Poly) -> Value:
        total: Value | None = None
        for monomial, coefficient in size.terms:
            term: Value | None = None
            for atom in monomial:
                factor = self._atom(atom)
                term = factor if term is None else self._emit("stablehlo.multiply", term, factor)
            if term is None:
                term = self._scalar(coefficient)
            elif coefficient != 1:
                term = self._emit("stablehlo.multiply", term, self._scalar(coefficient))
            total = term if total is None else self._emit("stablehlo.add", total, term)
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> Value:
        size = Poly((((atom,), 1),))
        known = self.computed.get(size)
        if known is not None:
            return known
        if atom.op == "symbol":
            value = self._symbol(atom.name)
        else:
            left, right = (self._scalar(arg) for arg in atom.args)
            if atom.op in ("max", "min"):
                value = self._emit(f"stablehlo.{atom.op}imum", left, right)
            else:
                value = self._division(left, right, atom.op == "//")
        self.computed[size] = value
        return value

    def _division(self, left: Value, right: Value, quotient: bool) -> Value:
        """Rounded down, where StableHLO's `divide` and `remainder` round toward zero."""
        rest = self._emit("stablehlo.remainder", left, right)
        zero = self._scalar(0)
        beside = self._emit("stablehlo.multiply", rest, right)
        opposite = self._emit("stablehlo.compare", beside, zero, comparison_direction="LT")
        if quotient:
            toward_zero = self._emit("stablehlo.divide", left, right)
            lower = self._emit("stablehlo.add", toward_zero, self._scalar(-1))
            return self._emit("stablehlo.select", opposite, lower, toward_zero)
        return self._emit("stablehlo.select", opposite, self._emit("stablehlo.add", rest, right), rest)

    def _symbol(self, name: str) -> Value:
        """A symbol, from an axis whose size is `k*symbol + what is known`."""
        if name not in self.sources:
            raise UnsupportedError(
                "a size that no axis determines",
                expected="an argument with an axis of that size",
                got=name,
                where=self.source.location,
                remedy=f"give @{self.source.name} an argument with the axis {name}",
            )
        value, axis = self.sources[name]
        size = value.shape.sizes[axis]
        slope = _slope(size, name)
        assert slope is not None
        found = self._emit("stablehlo.get_dimension_size", value, dimension=axis)
        wide = self._emit("stablehlo.convert", found, result=_SCALAR)
        rest = size - slope * symbol(name)
        if rest != 0:
            wide = self._emit("stablehlo.subtract", wide, self._scalar(rest))
        return wide if slope == 1 else self._emit("stablehlo.divide", wide, self._scalar(slope))


def _slope(size: Size, name: str) -> int | None:
    """k, where a size is `k*name` plus what does not depend on `name`, and k > 0."""
    if isinstance(size, int):
        return None
    slope = next((c for monomial, c in size.terms if len(monomial) == 1 and monomial[0].name == name), 0)
    return slope if slope > 0 and name not in symbols(size - slope * symbol(name)) else None


def _symbols(region: Region) -> set[str]:
    found: set[str] = set()
    stack = [region]
    while stack:
        current = stack.pop()
        for value in (*current.args, *(result for op in current.ops for result in op.results)):
            if isinstance(value.type, Shape):
                found |= value.type.symbols
        stack += [inner for op in current.ops for inner in op.regions]
    return found


def _with_sizes(arg: Value, attrs: Attrs) -> Attrs:
    """The names of an argument's sizes, which a plain `?` cannot keep."""
    if not isinstance(arg.type, Shape) or arg.type.is_static:
        return attrs
    return MappingProxyType({**attrs, SIZES: ", ".join(map(str, arg.type.sizes))})
