"""Fourier transforms: `fft` of any length along up to three axes, in double, rounded once. Registered in `sinks.SINKS`.

Real and imaginary parts are separate planes [outer, length, inner]. Lengths with small prime factors take one Stockham
pass per factor, between two pairs of planes, without bit reversal. All other lengths become a convolution by transforms
of a power of two (Bluestein). An inverse transform swaps real and imaginary parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from smelt.dim import Size, product
from smelt.dtype import DType, f64, i1, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import (
    Amount,
    Expr,
    Number,
    Quotient,
    Remainder,
    Set,
    add,
    scale,
)
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.shape import Shape

RADICES = (4, 2, 3, 5, 7, 11, 13)
LONGEST = 2048  # row length up to which four rows fit on the stack
Pair = tuple[Expr, Expr]  # real and imaginary part


class Planes(Frozen):
    """Two buffers of f64: real and imaginary parts."""

    nest: Nest
    re: int
    im: int

    @staticmethod
    def of(nest: Nest, *sizes: Size) -> Planes:
        return Planes(nest, *(nest.scratch(Shape.of(f64, (product(sizes),))) for _ in range(2)))

    def load(self, offset: Expr) -> Pair:
        """The current content; passes overwrite it, so the load is not moved."""
        nest = self.nest
        return nest.read(nest.buffer(self.re), offset, f64), nest.read(nest.buffer(self.im), offset, f64)

    def store(self, offset: Expr, value: Pair) -> None:
        for buffer, part in zip((self.re, self.im), value, strict=True):
            self.nest.store(buffer, offset, part)


class Line(Frozen):
    """The same in two arrays on the stack."""

    nest: Nest
    re: str
    im: str

    @staticmethod
    def of(nest: Nest, count: int) -> Line:
        return Line(nest, *(nest.tile("line", f64, count) for _ in range(2)))

    def load(self, offset: Expr) -> Pair:
        return self.nest.read(self.re, offset, f64), self.nest.read(self.im, offset, f64)

    def store(self, offset: Expr, value: Pair) -> None:
        for name, part in zip((self.re, self.im), value, strict=True):
            self.nest.write(name, offset, part)


Held = TypeVar("Held", Planes, Line)


def _add(nest: Nest, x: Pair, y: Pair) -> Pair:
    return nest.apply("add", x[0], y[0]), nest.apply("add", x[1], y[1])


def _subtract(nest: Nest, x: Pair, y: Pair) -> Pair:
    return nest.apply("subtract", x[0], y[0]), nest.apply("subtract", x[1], y[1])


def _multiply(nest: Nest, x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    re = nest.apply("subtract", nest.apply("multiply", a, c), nest.apply("multiply", b, d))
    return re, nest.apply("add", nest.apply("multiply", a, d), nest.apply("multiply", b, c))


def _times(nest: Nest, x: Pair, factor: float | Expr) -> Pair:
    by = Number(factor, f64) if isinstance(factor, float) else factor
    return nest.apply("multiply", x[0], by), nest.apply("multiply", x[1], by)


def _root(nest: Nest, k: Expr, n: Size | Expr) -> Pair:
    """e^(-2 pi i k / n) for 0 <= k < n: by quadrants, so that the angle is small and its error with it."""
    count = Amount(n) if isinstance(n, Size) else n
    scaled = nest.let(scale(k, 4))
    quadrant = nest.apply("divide", scaled, count)
    rest = nest.let(add(scaled, scale(nest.apply("multiply", quadrant, count), -1)))
    part = nest.apply("divide", nest.convert(rest, f64), nest.convert(count, f64))
    angle = nest.apply("multiply", part, Number(math.pi / 2, f64))
    cosine, sine = nest.apply("cosine", angle), nest.apply("sine", angle)
    odd = nest.apply("EQ", nest.let(Remainder(quadrant, 2)), Number(1), dtype=i1)
    back = nest.apply("GE", quadrant, Number(2), dtype=i1)
    re = nest.apply("select", odd, nest.apply("negate", sine), cosine, dtype=f64)
    im = nest.apply("select", odd, cosine, sine, dtype=f64)
    turned = nest.apply("select", back, nest.apply("negate", re), re, dtype=f64)
    return turned, nest.apply("select", back, im, nest.apply("negate", im), dtype=f64)


# ---- one pass ----


def _butterfly(nest: Nest, a: Sequence[Pair]) -> list[Pair]:
    """The DFT of a few numbers."""
    count = len(a)
    if count == 2:
        return [_add(nest, *a), _subtract(nest, *a)]
    if count == 4:
        even, odd = _butterfly(nest, (a[0], a[2])), _butterfly(nest, (a[1], a[3]))
        turned = (odd[1][1], nest.apply("negate", odd[1][0]))  # times -i
        return [
            _add(nest, even[0], odd[0]),
            _add(nest, even[1], turned),
            _subtract(nest, even[0], odd[0]),
            _subtract(nest, even[1], turned),
        ]
    half = range(1, count // 2 + 1)
    sums = {j: _add(nest, a[j], a[count - j]) for j in half}
    differences = {j: _subtract(nest, a[j], a[count - j]) for j in half}
    total = a[0]
    for j in half:
        total = _add(nest, total, sums[j])
    results = {0: total}
    for k in half:
        even_part: Pair = a[0]
        odd_part: Pair = Number(0.0, f64), Number(0.0, f64)
        for j in half:
            angle = 2 * math.pi * (j * k % count) / count
            even_part = _add(nest, even_part, _times(nest, sums[j], math.cos(angle)))
            odd_part = _add(nest, odd_part, _times(nest, differences[j], math.sin(angle)))
        turned = (odd_part[1], nest.apply("negate", odd_part[0]))
        results[k], results[count - k] = _add(nest, even_part, turned), _subtract(nest, even_part, turned)
    return [results[k] for k in range(count)]


def _factors(length: int) -> list[int] | None:
    """The radices of the passes; None where a prime factor is too large for a pass."""
    found = []
    for radix in RADICES:
        while length % radix == 0:
            found.append(radix)
            length //= radix
    return found if length == 1 else None


def _table(nest: Nest, length: int) -> Planes:
    """All roots of unity that a transform of this length multiplies by."""
    table = Planes.of(nest, length)
    with nest.loop(length) as k:
        table.store(k, _root(nest, k, length))
    return table


def _passes(nest: Nest, held: Held, spare: Held, table: Planes, sizes: tuple[Size, int, Size]) -> tuple[Held, Held]:
    """Transform along the middle axis. Gives the place that holds the result, and the other one."""
    outer, length, inner = sizes
    factors = _factors(length)
    assert factors is not None
    done = 1
    for radix in factors:
        count = length // done // radix
        stride = inner * done
        with nest.loops((outer, count, stride)) as (o, p, q):
            start = add(scale(o, length * inner), q)
            places = [add(start, scale(p, stride), count * j * stride) for j in range(radix)]
            results = _butterfly(nest, [held.load(place) for place in places])
            for k, value in enumerate(results):
                if k and count > 1:
                    value = _multiply(nest, value, table.load(scale(p, k * done)))
                spare.store(add(start, scale(p, radix * stride), k * stride), value)
        done *= radix
        held, spare = spare, held
    return held, spare


# ---- any length ----


class Chirp(Frozen):
    """Bluestein's chirp e^(-pi i k^2 / n), and the transform of its inverse, padded to a power of two."""

    padded: int
    table: Planes
    factors: Planes
    filter: Planes


def _chirp(nest: Nest, length: int) -> Chirp:
    padded = _padded_length(length)
    table, factors = _table(nest, padded), Planes.of(nest, length)
    with nest.loop(length) as k:
        squared = nest.let(Remainder(nest.apply("multiply", k, k), 2 * length))
        factors.store(k, _root(nest, squared, 2 * length))
    held, spare = Planes.of(nest, padded), Planes.of(nest, padded)
    with nest.loop(padded) as k:
        back = nest.apply("minimum", k, nest.let(add(scale(k, -1), padded)))
        held.store(k, _or_zero(nest, nest.less(back, Number(length)), lambda: _conjugate(nest, factors.load(back))))
    return Chirp(padded, table, factors, _passes(nest, held, spare, table, (1, padded, 1))[0])


def _padded_length(length: int) -> int:
    """The power of two that holds a convolution of this length."""
    return 1 << (2 * length - 2).bit_length()


def _convolve(nest: Nest, chirp: Chirp, held: Held, wide: Held, spare: Held, sizes: tuple[Size, int, Size]) -> None:
    """Transform along the middle axis, in place; `wide` and `spare` have room for padded lengths."""
    outer, length, inner = sizes
    padded = chirp.padded

    def place(o: Expr, k: Expr, q: Expr, count: int) -> Expr:
        return flat((o, k, q), (outer, count, inner))

    with nest.loops((outer, padded, inner)) as (o, k, q):
        value = _or_zero(
            nest,
            nest.less(k, Number(length)),
            lambda: _multiply(nest, held.load(place(o, k, q, length)), chirp.factors.load(k)),
        )
        wide.store(place(o, k, q, padded), value)
    wide, spare = _passes(nest, wide, spare, chirp.table, (outer, padded, inner))
    with nest.loops((outer, padded, inner)) as (o, k, q):
        spot = place(o, k, q, padded)
        re, im = _times(nest, _multiply(nest, wide.load(spot), chirp.filter.load(k)), 1 / padded)
        wide.store(spot, (im, re))  # back again: the parts are swapped
    wide, spare = _passes(nest, wide, spare, chirp.table, (outer, padded, inner))
    with nest.loops((outer, length, inner)) as (o, k, q):
        im, re = wide.load(place(o, k, q, padded))
        held.store(place(o, k, q, length), _multiply(nest, (re, im), chirp.factors.load(k)))


def _conjugate(nest: Nest, x: Pair) -> Pair:
    return x[0], nest.apply("negate", x[1])


def _or_zero(nest: Nest, condition: Expr, value: Callable[[], Pair]) -> Pair:
    """A value where a condition holds, else zero."""
    parts = [nest.declare(f64, Number(0.0, f64)) for _ in range(2)]
    with nest.guard(condition):
        for var, part in zip(parts, value(), strict=True):
            nest.emit(Set(var, part))
    return nest.keep(parts[0]), nest.keep(parts[1])


# ---- dynamic lengths ----


def _dynamic_length(nest: Nest, held: Planes, sizes: tuple[Size, Size, Size]) -> None:
    """As `_convolve`, row by row, padded to a power of four that is found at run time."""
    outer, length, inner = sizes
    room = 8 * length + 1  # a power of four that holds 2 n - 1, and at least 1
    padded_var = nest.declare(i64, Number(1))
    with nest.repeat(lambda: nest.less(nest.keep(padded_var), Amount(2 * length - 1))):
        nest.emit(Set(padded_var, scale(nest.keep(padded_var), 4)))
    padded = nest.keep(padded_var)
    table, chirp, filter_, other = (Planes.of(nest, room) for _ in range(4))
    with nest.loop(padded, "ordered") as k:
        table.store(k, _root(nest, k, padded))
    with nest.loop(length, "ordered") as k:
        squared = nest.let(Remainder(nest.apply("multiply", k, k), 2 * length))
        chirp.store(k, _root(nest, squared, 2 * length))
    with nest.loop(padded, "ordered") as k:
        back = nest.apply("minimum", k, nest.let(add(scale(k, -1), padded)))
        filter_.store(k, _or_zero(nest, nest.less(back, Amount(length)), lambda: _conjugate(nest, chirp.load(back))))
    _dynamic_passes(nest, filter_, other, table, padded, Number(0))
    wide, spare = Planes.of(nest, outer, inner, room), Planes.of(nest, outer, inner, room)
    with nest.loops((outer, inner)) as (o, q):
        start = nest.let(scale(flat((o, q), (outer, inner)), room))

        def at(k: Expr) -> Expr:
            return flat((o, k, q), (outer, length, inner))

        with nest.loop(padded, "ordered") as k:
            inside = nest.less(k, Amount(length))
            value = _or_zero(nest, inside, lambda: _multiply(nest, held.load(at(k)), chirp.load(k)))
            wide.store(add(start, k), value)
        _dynamic_passes(nest, wide, spare, table, padded, start)
        one = nest.apply("divide", Number(1.0, f64), nest.convert(padded, f64))
        with nest.loop(padded, "ordered") as k:
            re, im = _times(nest, _multiply(nest, wide.load(add(start, k)), filter_.load(k)), one)
            wide.store(add(start, k), (im, re))
        _dynamic_passes(nest, wide, spare, table, padded, start)
        with nest.loop(length, "ordered") as k:
            im, re = wide.load(add(start, k))
            held.store(at(k), _multiply(nest, (re, im), chirp.load(k)))


def _dynamic_passes(nest: Nest, held: Planes, spare: Planes, table: Planes, length: Expr, start: Expr) -> None:
    """Transform a row of a power of four, in place: passes of two go there and back."""
    count, stride = nest.declare(i64, nest.let(Quotient(length, 2))), nest.declare(i64, Number(1))
    with nest.repeat(lambda: nest.apply("GE", nest.keep(count), Number(1), dtype=i1)):
        for source, target in ((held, spare), (spare, held)):
            m, s = nest.keep(count), nest.keep(stride)
            with nest.loop(m, "ordered") as p, nest.loop(s, "ordered") as q:
                ahead = nest.apply("multiply", p, s)
                first = nest.let(add(start, q, ahead))
                a, b = source.load(first), source.load(nest.let(add(first, nest.apply("multiply", m, s))))
                out = nest.let(add(start, q, scale(ahead, 2)))
                target.store(out, _add(nest, a, b))
                turned = _multiply(nest, _subtract(nest, a, b), table.load(ahead))
                target.store(nest.let(add(out, s)), turned)
            nest.emit(Set(count, nest.keep(Quotient(m, 2))))
            nest.emit(Set(stride, scale(s, 2)))


# ---- the op ----


@sink("stablehlo.fft")
def fft(nest: Nest, op: Op, output: Output) -> None:
    operand, kind = op.operands[0], op.attrs["fft_type"]
    sizes, lengths = list(tensor(operand).sizes), op.attrs["fft_length"]
    rank, inverse = len(sizes), kind in ("IFFT", "IRFFT")
    axes = list(range(rank - len(lengths), rank))
    if 0 in sizes:
        nest.buffer(output.targets[0])
        return
    if len(axes) == 1 and isinstance(length := lengths[0] if kind == "IRFFT" else sizes[-1], int):
        if (length if _factors(length) is not None else _padded_length(length)) <= LONGEST:
            _row_by_row(nest, op, output, length)
            return
    held = Planes.of(nest, *sizes)
    with nest.loops(sizes) as index:
        held.store(flat(index, sizes), _swap(_parts(nest, nest.pull(operand, index)), inverse))
    if kind == "IRFFT":
        for axis in axes[:-1]:
            held = _along(nest, held, sizes, axis)
        held = _hermitian(nest, held, sizes, lengths[-1])
        sizes[-1] = lengths[-1]
        held = _along(nest, held, sizes, axes[-1])
    else:
        for axis in reversed(axes):
            held = _along(nest, held, sizes, axis)
    result = tensor(op.result)
    count = product(sizes[axis] for axis in axes)
    with nest.loops(result.sizes) as index:
        value = _swap(held.load(flat(index, sizes)), inverse)
        if inverse:
            by = nest.apply("divide", Number(1.0, f64), nest.convert(Amount(count), f64))
            value = _times(nest, value, by)
        nest.store(output.targets[0], flat(index, result.sizes), _combine(nest, value, result.element))


def _row_by_row(nest: Nest, op: Op, output: Output, length: int) -> None:
    """Short rows, each on the stack."""
    operand, kind, result = op.operands[0], op.attrs["fft_type"], tensor(op.result)
    inverse = kind in ("IFFT", "IRFFT")
    chirp = _chirp(nest, length) if _factors(length) is None else None
    table = _table(nest, length) if chirp is None else chirp.table
    with nest.loops(result.sizes[:-1]) as outer:
        held = Line.of(nest, length)
        with nest.loop(length) as k:
            source, mirrored = _mirror(nest, k, length) if kind == "IRFFT" else (k, None)
            re, im = _parts(nest, nest.pull(operand, (*outer, source)))
            if mirrored is not None:
                im = nest.apply("select", mirrored, nest.apply("negate", im), im, dtype=f64)
            held.store(k, _swap((re, im), inverse))
        if chirp is None:
            held, _ = _passes(nest, held, Line.of(nest, length), table, (1, length, 1))
        else:
            wide, spare = (Line.of(nest, chirp.padded) for _ in range(2))
            _convolve(nest, chirp, held, wide, spare, (1, length, 1))
        with nest.loop(result.sizes[-1]) as k:
            value = _swap(held.load(k), inverse)
            value = _times(nest, value, 1 / length) if inverse else value
            nest.store(output.targets[0], flat((*outer, k), result.sizes), _combine(nest, value, result.element))


def _mirror(nest: Nest, k: Expr, length: int) -> tuple[Expr, Expr]:
    """The position of bin k of a real transform in its first half, and whether it is conjugated there."""
    mirrored = nest.apply("GT", k, Number(length // 2), dtype=i1)
    return nest.apply("select", mirrored, nest.let(add(scale(k, -1), length)), k, dtype=i64), mirrored


def _along(nest: Nest, held: Planes, sizes: Sequence[Size], axis: int) -> Planes:
    """Transform one axis; the planes that hold the result."""
    outer, length, inner = product(sizes[:axis]), sizes[axis], product(sizes[axis + 1 :])
    if not isinstance(length, int):
        _dynamic_length(nest, held, (outer, length, inner))
        return held
    if _factors(length) is None:
        chirp = _chirp(nest, length)
        wide, spare = (Planes.of(nest, outer, chirp.padded, inner) for _ in range(2))
        _convolve(nest, chirp, held, wide, spare, (outer, length, inner))
        return held
    if length == 1:
        return held
    return _passes(nest, held, Planes.of(nest, *sizes), _table(nest, length), (outer, length, inner))[0]


def _hermitian(nest: Nest, held: Planes, sizes: Sequence[Size], length: int) -> Planes:
    """All numbers of a transform of real ones, from the first half; parts are swapped, so the first one is mirrored."""
    full = [*sizes[:-1], length]
    target = Planes.of(nest, *full)
    with nest.loops(full) as index:
        source, mirrored = _mirror(nest, index[-1], length)
        im, re = held.load(flat((*index[:-1], source), sizes))
        target.store(flat(index, full), (nest.apply("select", mirrored, nest.apply("negate", im), im, dtype=f64), re))
    return target


def _swap(value: Pair, swap: bool) -> Pair:
    return (value[1], value[0]) if swap else value


def _parts(nest: Nest, x: Expr) -> Pair:
    """The parts of a number in double."""
    if not x.dtype.is_complex:
        return nest.convert(x, f64), Number(0.0, f64)
    re, im = (nest.apply(part, x, dtype=x.dtype.part) for part in ("real", "imag"))
    return nest.convert(re, f64), nest.convert(im, f64)


def _combine(nest: Nest, value: Pair, element: DType) -> Expr:
    if not element.is_complex:
        return nest.convert(value[0], element)
    re, im = (nest.convert(part, element.part) for part in value)
    return nest.apply("complex", re, im, dtype=element)
