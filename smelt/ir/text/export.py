"""A program whose sizes are formulas, as one that other StableHLO parsers take: sizes are computed where needed.

In: static ops with symbolic results. Out: their `dynamic_*` forms, fed by `get_dimension_size` and arithmetic on i64
scalars. Types keep their formulas; the printer then writes them as `?`. Called by `print_program(…, export=True)`.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from smelt.dim import Size, symbols
from smelt.errors import UnsupportedError
from smelt.ir.build import make
from smelt.ir.clone import clone_args
from smelt.ir.core import Attrs, Func, FuncType, Op, Program, Region, Value
from smelt.ir.ops.definition import Scope
from smelt.ir.size_ops import SizeOps, Source, slope_of
from smelt.shape import Shape

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
        self.sources: dict[str, Source] = {}
        self.computed: dict[Size, Value] = {}
        self.ops: list[Op] = []
        self.like: Op | None = None  # the op being copied: where new ops get their location

    def func(self) -> Func:
        func = self.source
        if not _symbols(func.body):
            return func
        attrs = tuple(_with_sizes(arg, attrs) for arg, attrs in zip(func.args, func.arg_attrs, strict=True))
        return replace(func, body=self._region(func.body), arg_attrs=attrs)

    def _region(self, region: Region) -> Region:
        outside = self.ops, self.sources, self.computed
        self.ops, self.sources, self.computed = [], dict(self.sources), dict(self.computed)
        args = clone_args(region.args)
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
            if len(unknown) == 1 and slope_of(size, unknown[0]):
                self.sources[unknown[0]] = (new, axis)

    def _copy(self, op: Op) -> None:
        self.like = op
        operands = [self.values[operand] for operand in op.operands]
        dynamic = [value for value in op.results if isinstance(value.type, Shape) and not value.type.is_static]
        attrs, name = dict(op.attrs), op.name
        if dynamic and name in _STATIC_ONLY:
            raise UnsupportedError(f"{name} has no form with sizes that vary", got=op, where=op.location)
        if dynamic and name in _DYNAMIC:
            operands.append(SizeOps(self._emit, self._source, self.computed).vector(op.results[0].shape.sizes))
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

    def _source(self, name: str) -> Source:
        if name not in self.sources:
            raise UnsupportedError(
                "a size that no axis determines",
                expected="an argument with an axis of that size",
                got=name,
                where=self.source.location,
                remedy=f"give @{self.source.name} an argument with the axis {name}",
            )
        return self.sources[name]


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
