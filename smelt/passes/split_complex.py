"""Complex numbers as pairs of real ones, for formats and engines that have none.

In: a program with complex values. Out: one in which each is a real and an imaginary part; arguments and results have
one axis more, of size 2, as ONNX' DFT has. An op without a rule keeps its complex type. ONNX export calls it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smelt.dtype import DType
from smelt.ir.attributes import DotDims
from smelt.ir.build import Builder
from smelt.ir.clone import clone_region
from smelt.ir.core import Func, Op, Program, Region, Type, Value, walk
from smelt.ir.ops.definition import Scope
from smelt.ir.rewrite import symbols_of
from smelt.shape import Shape

Pair = tuple[Value, Value]
_LENGTH = 1 << 10  # of a Fourier transform that is a product by a matrix
# Ops that treat both parts alike.
_LINEAR = frozenset(
    f"stablehlo.{name}"
    for name in (
        "add", "subtract", "negate", "select", "reshape", "transpose", "broadcast_in_dim", "slice", "reverse", "pad",
        "concatenate", "gather", "dynamic_gather", "dynamic_slice", "dynamic_update_slice", "dynamic_reshape",
        "dynamic_broadcast_in_dim", "dynamic_pad", "real_dynamic_slice", "scatter", "reduce", "reduce_window",
        "optimization_barrier", "set_dimension_size",
    )
)  # fmt: skip
_LINEAR_INSIDE = frozenset({"stablehlo.add", "stablehlo.subtract", "stablehlo.negate"})
_LOOPS = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case"})


def is_complex(type: Type) -> bool:
    return isinstance(type, Shape) and isinstance(type.dtype, DType) and type.dtype.kind == "complex"


def to_real(type: Type) -> Type:
    """The type of the parts of a complex tensor; any other type itself."""
    return type.with_dtype(type.element.part) if is_complex(type) and isinstance(type, Shape) else type


def split_complex(program: Program) -> Program:
    """The program with pairs in place of complex numbers, where there are rules; unchanged if it has none."""
    main = program.main
    values = [*main.args, *(value for op in walk(main.body) for value in op.results)]
    if not any(is_complex(value.type) for value in values):
        return program
    ports = [*main.args, *main.results]
    if any(is_complex(value.type) and not value.shape.is_static for value in ports):
        return program
    if any(
        "smelt.weight" in attrs and is_complex(arg.type) for arg, attrs in zip(main.args, main.arg_attrs, strict=True)
    ):
        return program
    return program.replace(_Splitting(main).func())


def _port_type(type: Type) -> Type:
    """A complex argument or result as a tensor with one axis more."""
    if not isinstance(type, Shape) or not is_complex(type):
        return type
    return Shape.of(type.element.part, (*type.sizes, 2))


@dataclass(slots=True)
class _Splitting:
    """Copies a function. `values` gives the new value of each old one, or a pair."""

    source: Func
    b: Any = None
    values: Any = None

    def func(self) -> Func:
        func = self.source
        self.b, self.values = Builder(Scope(symbols_of(func))), {}
        args = tuple(Value(_port_type(arg.type), None, i, arg.name) for i, arg in enumerate(func.args))
        for old, new in zip(func.args, args, strict=True):
            self.values[old] = self._open(new) if is_complex(old.type) else new
        self._copy_all(func.body)
        results = tuple(self._close(value) for value in func.results)
        return replace(func, body=Region(args, tuple(self.b.ops), results))

    def _open(self, x: Value) -> Pair:
        """The parts of an argument: slices of its last axis."""
        sizes = x.shape.numbers()
        parts = []
        for at in (0, 1):
            starts, limits = (0,) * (len(sizes) - 1) + (at,), (*sizes[:-1], at + 1)
            cut = self.b.slice(x, start_indices=starts, limit_indices=limits, strides=(1,) * len(sizes))
            parts.append(self.b.reshape(cut, result=Shape.of(x.shape.dtype, sizes[:-1])))
        return parts[0], parts[1]

    def _close(self, value: Value) -> Value:
        """A result: both parts along a new last axis."""
        if not is_complex(value.type):
            found: Value = self._whole(value)
            return found
        shape = Shape.of(value.shape.element.part, (*value.shape.sizes, 1))
        wide = [self.b.reshape(part, result=shape) for part in self.pair(value)]
        closed: Value = self.b.concatenate(*wide, dimension=value.shape.rank)
        return closed

    # ---- values ----

    def pair(self, value: Value) -> Pair:
        """Both parts of a complex value."""
        found = self.values[value]
        if not isinstance(found, tuple):
            self.values[value] = self.b.real(found), self.b.imag(found)
        parts: Pair = self.values[value]
        return parts

    def _whole(self, value: Value) -> Value:
        """The value for an op without a rule: a pair becomes a complex number again."""
        found = self.values[value]
        joined: Value = self.b.complex(*found) if isinstance(found, tuple) else found
        return joined

    # ---- ops ----

    def _copy_all(self, region: Region) -> None:
        for op in region.ops:
            self.b.location = op.location
            self._copy(op)

    def _copy(self, op: Op) -> None:
        if op.name in _LOOPS:
            self._control(op)
            return
        touched = any(is_complex(value.type) for value in (*op.operands, *op.results))
        made = self._rule(op) if touched else None
        if made is None:
            operands = [self._whole(value) for value in op.operands]
            known = {old: new for old, new in self.values.items() if isinstance(new, Value)}
            regions = [clone_region(region, dict(known)) for region in op.regions]
            made = self.b.op(
                op.name, *operands, result=[v.type for v in op.results], regions=regions, **dict(op.attrs)
            ).results
        self.values.update(zip(op.results, made, strict=True))

    def _rule(self, op: Op) -> Sequence[Any] | None:
        """The results as values and pairs; None where there is no rule."""
        if op.name in _LINEAR:
            return self._each_part(op)
        rule = _RULES.get(op.name)
        made = None if rule is None else rule(self, op)
        return None if made is None else [made]

    def _each_part(self, op: Op) -> Sequence[Any] | None:
        inside = [inner for region in op.regions for inner in walk(region)]
        if any(inner.name not in _LINEAR_INSIDE for inner in inside) or any(not is_complex(v.type) for v in op.results):
            return None
        parts = []
        for at in (0, 1):
            operands = [self.pair(value)[at] if is_complex(value.type) else self._whole(value) for value in op.operands]
            regions = [clone_region(region, {}, to_real) for region in op.regions]
            types = [to_real(value.type) for value in op.results]
            parts.append(self.b.op(op.name, *operands, result=types, regions=regions, **dict(op.attrs)).results)
        return list(zip(*parts, strict=True))

    def _control(self, op: Op) -> None:
        operands = [part for value in op.operands for part in self._flat(value)]
        regions = [self._region(region) for region in op.regions]
        types = [type for value in op.results for type in _types(value)]
        made = iter(self.b.op(op.name, *operands, result=types, regions=regions, **dict(op.attrs)).results)
        for value in op.results:
            self.values[value] = (next(made), next(made)) if is_complex(value.type) else next(made)

    def _flat(self, value: Value) -> Sequence[Value]:
        return self.pair(value) if is_complex(value.type) else (self._whole(value),)

    def _region(self, region: Region) -> Region:
        outer, before = self.b, dict(self.values)
        types = [type for arg in region.args for type in _types(arg)]
        with outer.region(*types) as inner:
            self.b = inner
            args = iter(inner.args)
            for arg in region.args:
                self.values[arg] = (next(args), next(args)) if is_complex(arg.type) else next(args)
            self._copy_all(region)
            found: Region = inner.result(*(part for value in region.results for part in self._flat(value)))
        self.b, self.values = outer, before
        return found


def _types(value: Value) -> list[Type]:
    return [to_real(value.type)] * 2 if is_complex(value.type) else [value.type]


# ---- rules: an op → a value or a pair; None where the rule does not cover it ----

Rule = Callable[[_Splitting, Op], Any]


def _constant(s: _Splitting, op: Op) -> Pair:
    array, part = np.asarray(op.attrs["value"].array), op.results[0].shape.element.part
    return s.b.constant(array.real.copy(), part), s.b.constant(array.imag.copy(), part)


def _complex(s: _Splitting, op: Op) -> Any:
    return s.values[op.operands[0]], s.values[op.operands[1]]


def _part(at: int) -> Rule:
    return lambda s, op: s.pair(op.operands[0])[at] if is_complex(op.operands[0].type) else None


def _conj(s: _Splitting, op: Op) -> Pair:
    a, b = s.pair(op.operands[0])
    return a, s.b.negate(b)


def _convert(s: _Splitting, op: Op) -> Any:
    (value,), result = op.operands, op.results[0]
    if not is_complex(result.type):
        return s.b.convert(s.pair(value)[0], result=result.type)
    real: Any = to_real(result.type)
    if is_complex(value.type):
        a, b = s.pair(value)
        return s.b.convert(a, result=real), s.b.convert(b, result=real)
    a = s.b.convert(s.values[value], result=real)
    return a, s.b.full(0.0, real)


def _multiply(s: _Splitting, op: Op) -> Pair:
    return _product(s.b, s.pair(op.operands[0]), s.pair(op.operands[1]))


def _square(s: _Splitting, op: Op) -> Pair:
    x = s.pair(op.operands[0])
    return _product(s.b, x, x)


def _product(b: Any, x: Pair, y: Pair) -> Pair:
    real = b.subtract(b.multiply(x[0], y[0]), b.multiply(x[1], y[1]))
    return real, b.add(b.multiply(x[0], y[1]), b.multiply(x[1], y[0]))


def _divide(s: _Splitting, op: Op) -> Pair:
    """By a divisor that is scaled first, so that its square does not overflow."""
    b, (x, y) = s.b, (s.pair(value) for value in op.operands)
    size = b.maximum(b.abs(y[0]), b.abs(y[1]))
    c, d = b.divide(y[0], size), b.divide(y[1], size)
    below = b.multiply(b.add(b.multiply(c, c), b.multiply(d, d)), size)
    real, imaginary = _product(b, x, (c, b.negate(d)))
    return b.divide(real, below), b.divide(imaginary, below)


def _magnitude(b: Any, x: Pair) -> Value:
    """The larger part times sqrt(1 + ratio²); parts of one size (zeros, infinities) have no ratio."""
    a, c = b.abs(x[0]), b.abs(x[1])
    high, low = b.maximum(a, c), b.minimum(a, c)
    same = b.compare(high, low, comparison_direction="EQ")
    one = b.full(1.0, high.shape)
    ratio = b.select(same, one, b.divide(low, high))
    found: Value = b.multiply(high, b.sqrt(b.add(b.multiply(ratio, ratio), one)))
    return found


def _abs(s: _Splitting, op: Op) -> Value:
    return _magnitude(s.b, s.pair(op.operands[0]))


def _exponential(s: _Splitting, op: Op) -> Pair:
    a, c = s.pair(op.operands[0])
    size = s.b.exponential(a)
    return s.b.multiply(size, s.b.cosine(c)), s.b.multiply(size, s.b.sine(c))


def _log(s: _Splitting, op: Op) -> Pair:
    x = s.pair(op.operands[0])
    return s.b.log(_magnitude(s.b, x)), s.b.atan2(x[1], x[0])


def _sqrt(s: _Splitting, op: Op) -> Pair:
    """The larger part from the magnitude, the other one by division: no digits cancel."""
    b, (a, c) = s.b, s.pair(op.operands[0])
    zero, half = b.full(0.0, a.shape), b.full(0.5, a.shape)
    large = b.sqrt(b.multiply(b.add(_magnitude(b, (a, c)), b.abs(a)), half))
    small = b.divide(b.multiply(b.abs(c), half), large)
    small = b.select(b.compare(large, zero, comparison_direction="EQ"), zero, small)
    right = b.compare(a, zero, comparison_direction="GE")
    below = b.compare(c, zero, comparison_direction="LT")
    real, imaginary = b.select(right, large, small), b.select(right, small, large)
    return real, b.select(below, b.negate(imaginary), imaginary)


def _iota(s: _Splitting, op: Op) -> Pair:
    real: Any = to_real(op.results[0].type)
    return s.b.iota(iota_dimension=op.attrs["iota_dimension"], result=real), s.b.full(0.0, real)


def _wave(even: str, odd: str, sign: int) -> Rule:
    """sine and cosine of a + ib, from those of a and the hyperbolic ones of b."""

    def rule(s: _Splitting, op: Op) -> Pair:
        b, (a, c) = s.b, s.pair(op.operands[0])
        cosh, sinh = (b.op(f"chlo.{name}", c).result for name in ("cosh", "sinh"))
        imaginary = b.multiply(b.op(f"stablehlo.{odd}", a).result, sinh)
        return b.multiply(b.op(f"stablehlo.{even}", a).result, cosh), b.negate(imaginary) if sign < 0 else imaginary

    return rule


def _compare(s: _Splitting, op: Op) -> Value | None:
    direction = op.attrs["comparison_direction"]
    if direction not in ("EQ", "NE"):
        return None
    x, y = (s.pair(value) for value in op.operands)
    found = [s.b.compare(x[at], y[at], comparison_direction=direction) for at in (0, 1)]
    both: Value = s.b.op("stablehlo.and" if direction == "EQ" else "stablehlo.or", *found).result
    return both


def _bilinear(s: _Splitting, op: Op) -> Pair:
    """Products and convolutions, of all pairs of parts."""
    x, y = (s.pair(value) if is_complex(value.type) else (s.values[value], None) for value in op.operands)

    def times(i: int, j: int) -> Value:
        made: Value = s.b.op(op.name, x[i], y[j], result=to_real(op.results[0].type), **dict(op.attrs)).result
        return made

    return s.b.subtract(times(0, 0), times(1, 1)), s.b.add(times(0, 1), times(1, 0))


# ---- Fourier transforms, as products by matrices ----


def _fft(s: _Splitting, op: Op) -> Any:
    kind, lengths = op.attrs["fft_type"], tuple(op.attrs["fft_length"])
    if max(lengths, default=1) > _LENGTH or not op.operands[0].shape.is_static:
        return None
    rank, inverse = op.operands[0].shape.rank, kind in ("IFFT", "IRFFT")
    first = rank - len(lengths)
    if kind == "RFFT":
        x: Pair = _from_real(s, s.values[op.operands[0]], rank - 1, lengths[-1])
        return _transform(s, x, range(first, rank - 1), lengths, first, inverse)
    if kind == "IRFFT":
        x = _transform(s, s.pair(op.operands[0]), range(first, rank - 1), lengths, first, inverse)
        return _to_real(s, x, rank - 1, lengths[-1])
    return _transform(s, s.pair(op.operands[0]), range(first, rank), lengths, first, inverse)


def _angles(rows: int, columns: int, length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Exact multiples of a turn, kept below one."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    return 2 * math.pi * turns / length


def _apply(s: _Splitting, x: Value, matrix: Any, axis: int) -> Value:
    """A matrix [old, new] along an axis."""
    dims = DotDims((), (), (axis,), (0,))
    made = s.b.dot_general(x, s.b.constant(matrix, x.shape.dtype), dot_dimension_numbers=dims)
    last = x.shape.rank - 1
    order = [*range(axis), last, *range(axis, last)]
    moved: Value = s.b.transpose(made, permutation=tuple(order)) if axis != last else made
    return moved


def _transform(s: _Splitting, x: Pair, axes: Any, lengths: Sequence[int], first: int, inverse: bool) -> Pair:
    for axis in axes:
        length = lengths[axis - first]
        angles, scale = _angles(length, length, length), 1 / length if inverse else 1.0
        c, d = np.cos(angles) * scale, np.sin(angles) * (scale if inverse else -scale)
        real = s.b.subtract(_apply(s, x[0], c, axis), _apply(s, x[1], d, axis))
        x = real, s.b.add(_apply(s, x[0], d, axis), _apply(s, x[1], c, axis))
    return x


def _from_real(s: _Splitting, x: Value, axis: int, length: int) -> Pair:
    angles = _angles(length, length // 2 + 1, length)
    return _apply(s, x, np.cos(angles), axis), _apply(s, x, -np.sin(angles), axis)


def _to_real(s: _Splitting, x: Pair, axis: int, length: int) -> Value:
    """All frequencies but the first, and the last of an even length, stand for two."""
    count = length // 2 + 1
    weights = np.full((count, 1), 2.0 / length)
    weights[0] = 1 / length
    if length % 2 == 0:
        weights[-1] = 1 / length
    angles = _angles(count, length, length)
    found: Value = s.b.subtract(
        _apply(s, x[0], np.cos(angles) * weights, axis), _apply(s, x[1], np.sin(angles) * weights, axis)
    )
    return found


_RULES: dict[str, Rule] = {
    "stablehlo.constant": _constant,
    "stablehlo.complex": _complex,
    "stablehlo.real": _part(0),
    "stablehlo.imag": _part(1),
    "chlo.conj": _conj,
    "stablehlo.convert": _convert,
    "stablehlo.multiply": _multiply,
    "chlo.square": _square,
    "stablehlo.divide": _divide,
    "stablehlo.abs": _abs,
    "stablehlo.exponential": _exponential,
    "stablehlo.log": _log,
    "stablehlo.sqrt": _sqrt,
    "stablehlo.iota": _iota,
    "stablehlo.sine": _wave("sine", "cosine", 1),
    "stablehlo.cosine": _wave("cosine", "sine", -1),
    "stablehlo.compare": _compare,
    "stablehlo.dot_general": _bilinear,
    "stablehlo.convolution": _bilinear,
    "stablehlo.fft": _fft,
}
