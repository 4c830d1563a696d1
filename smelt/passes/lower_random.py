"""`stablehlo.rng` becomes `rng_bit_generator` and arithmetic; its state becomes an explicit value.

Loops carry the state and branches return it, so each draw continues after the one before, as in `smelt.ir.ops.random`.
Called by `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from smelt.dtype import DType, f64, i64, ui64
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen
from smelt.ir.build import Builder
from smelt.ir.core import Func, Op, Program, Region, Type, Value, walk
from smelt.ir.ops.definition import Scope
from smelt.ir.ops.random import ALGORITHM, FIRST_STATE
from smelt.ir.rewrite import symbols_of
from smelt.ir.sizes import trace
from smelt.shape import Shape

RNG = "stablehlo.rng"
STATE = Shape("ui64", 2)


def lower_random(program: Program) -> Program:
    """The program without `rng`."""
    changed = [_thread_state(func) for func in program.funcs.values() if any(op.name == RNG for op in walk(func.body))]
    return program.replace(*changed) if changed else program


def _thread_state(func: Func) -> Func:
    threading = _Threading(Scope(symbols_of(func)))
    b = Builder(threading.scope)
    threading.state = b.constant(FIRST_STATE, "ui64")
    threading.ops(b, func.body)
    results = tuple(threading.value(value) for value in func.results)
    body = Region(func.args, tuple(b.ops), results)
    return replace(func, body=body)


@dataclass(slots=True)
class _Threading:
    scope: Scope
    values: dict[Value, Value] = field(default_factory=dict)
    state: Value = field(init=False)

    def value(self, value: Value) -> Value:
        return self.values.get(value, value)

    def ops(self, b: Builder, region: Region) -> None:
        for op in region.ops:
            b.location = op.location
            if op.name == RNG:
                self.values[op.result] = self.draw(b, op)
            else:
                self.copy(b, op)

    def copy(self, b: Builder, op: Op) -> None:
        """A copy of an op on the new operands. If one of its regions draws, the state is an operand and a result."""
        drawing = any(inner.name == RNG for region in op.regions for inner in walk(region))
        operands = [self.value(operand) for operand in op.operands]
        types: list[Type] = [value.type for value in op.results]
        if not drawing:
            regions = [self.region(region, b) for region in op.regions]
        else:
            types.append(STATE)
            regions = self.drawing_regions(op, b)
            if op.name == "stablehlo.while":
                operands.append(self.state)
        names = [*(value.name for value in op.results), *([""] if drawing else [])]
        copy = Op(op.name, operands, types, op.attrs, regions, op.location, names)
        b.ops.append(copy)
        self.values.update(zip(op.results, copy.results, strict=False))
        if drawing:
            self.state = copy.results[-1]

    def region(self, region: Region, outer: Builder) -> Region:
        """A copy of a region without draws."""
        b = Builder(self.scope, outer.location)
        self.ops(b, region)
        return Region(region.args, tuple(b.ops), tuple(self.value(value) for value in region.results))

    def drawing_regions(self, op: Op, outer: Builder) -> list[Region]:
        before = self.state
        if op.name in ("stablehlo.if", "stablehlo.case"):
            regions = []
            for region in op.regions:
                self.state = before
                regions.append(self.with_state(region, (), outer))
            return regions
        condition = op.regions[0]
        if op.name != "stablehlo.while" or any(inner.name == RNG for inner in walk(condition)):
            place = "the condition of a loop" if op.name == "stablehlo.while" else f"the body of {op.name}"
            raise UnsupportedError(f"rng in {place}", remedy="engine='reference'", where=op.location)
        args = [Value(STATE, None, len(region.args)) for region in op.regions]
        plain = self.region(condition, outer)
        head = Region((*plain.args, args[0]), plain.ops, plain.results)
        self.state = args[1]
        turn = self.with_state(op.regions[1], (args[1],), outer)
        self.state = before
        return [head, turn]

    def with_state(self, region: Region, more: tuple[Value, ...], outer: Builder) -> Region:
        """A region that takes more arguments and returns the state after its last draw."""
        body = self.region(region, outer)
        return Region((*body.args, *more), body.ops, (*body.results, self.state))

    def draw(self, b: Builder, op: Op) -> Value:
        """The arithmetic of `smelt.ir.ops.random.rng`, on 64-bit words."""
        result = op.result.shape
        first, second, sizes = (self.value(operand) for operand in op.operands)
        known = result.is_static or trace(sizes) == result.sizes
        broadcast = _Broadcast(b, result, None if known else sizes)

        def words() -> Value:
            types = [STATE, Shape.of(ui64, result.sizes)]
            drawn: Value
            self.state, drawn = b.rng_bit_generator(self.state, rng_algorithm=ALGORITHM, result=types)
            return drawn

        if not result.element.is_float:
            return _whole(broadcast, words, first, second)
        if op.attrs["rng_distribution"] == "NORMAL":
            return _normal(broadcast, words, first, second)
        return _uniform(broadcast, words, first, second)


class _Broadcast(Frozen):
    """Broadcasts scalars to the shape of a result. With data-dependent sizes, the first broadcast defines the sizes
    for the ops after it, so it comes before the draw."""

    b: Builder
    result: Shape
    sizes: Value | None  # as an operand, where they are data-dependent

    def __call__(self, scalar: Value, element: DType) -> Value:
        converted = self.b.convert(scalar, result=Shape.of(element, ()))
        full = self.result.with_dtype(element)
        broadcast: Value = (
            self.b.broadcast_in_dim(converted, broadcast_dimensions=(), result=full)
            if self.sizes is None
            else self.b.dynamic_broadcast_in_dim(converted, self.sizes, broadcast_dimensions=(), result=full)
        )
        return broadcast


def _bits(b: Builder, words: Value, drop: int) -> Value:
    """The upper bits of each word, as a double."""
    kept = b.shift_right_logical(words, b.full(drop, words.shape))
    return b.convert(kept, result=words.shape.with_dtype(f64))


def _uniform(broadcast: _Broadcast, words: Callable[[], Value], low: Value, high: Value) -> Value:
    b, wide = broadcast.b, broadcast.result.with_dtype(f64)
    start = broadcast(low, f64)
    span = b.subtract(broadcast(high, f64), start)
    unit = b.multiply(_bits(b, words(), 11), b.full(2.0**-53, wide))
    value = b.convert(b.add(start, b.multiply(unit, span)), result=broadcast.result)
    first, last = (broadcast(each, broadcast.result.element) for each in (low, high))
    return b.select(b.compare(value, last, comparison_direction="LT"), value, first)


def _normal(broadcast: _Broadcast, words: Callable[[], Value], mean: Value, deviation: Value) -> Value:
    b, wide = broadcast.b, broadcast.result.with_dtype(f64)
    middle_of_all, scale = broadcast(mean, f64), broadcast(deviation, f64)
    middle = b.add(_bits(b, words(), 12), b.full(0.5, wide))
    signed = b.subtract(b.multiply(middle, b.full(2.0**-51, wide)), b.full(1.0, wide))
    unit = b.multiply(b.op("chlo.erf_inv", signed).result, b.full(float(np.sqrt(2.0)), wide))
    return b.convert(b.add(middle_of_all, b.multiply(unit, scale)), result=broadcast.result)


def _whole(broadcast: _Broadcast, words: Callable[[], Value], first: Value, last: Value) -> Value:
    b, element = broadcast.b, broadcast.result.element
    scalar = Shape.of(ui64 if element.kind == "uint" else i64, ())
    low, high = (b.convert(each, result=scalar) for each in (first, last))
    one = b.constant(1, scalar.dtype)
    if element.kind == "bool":
        high = b.add(high, one)
    some = b.compare(low, high, comparison_direction="LT")
    span = b.select(some, b.subtract(high, low), one)
    spans, starts = broadcast(span, ui64), broadcast(low, ui64)
    moved = b.add(b.op("chlo.mulhi", words(), spans).result, starts)
    return b.convert(moved, result=broadcast.result)
