"""`Matcher`: queries that finders are built from. Which op produces a value, its factors and terms, what it broadcasts.

It reads an edit in its current state and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from smelt.dtype import DType
from smelt.frozen import Frozen
from smelt.ir.attributes import Constant
from smelt.ir.core import Op, Value
from smelt.ir.rewrite import Edit
from smelt.passes.recognise.outline import Found
from smelt.shape import Shape

_MOST_FACTORS = 16  # factors among which a gate is searched
_COMPUTED = ("multiply", "divide", "rsqrt", "sqrt", "power", "broadcast_in_dim", "reshape")


class Row(Frozen):
    """A broadcast of `source` along some axes: `axes[d]` is the source's axis of axis d, or None."""

    source: Value
    axes: tuple[int | None, ...]

    @property
    def is_plain(self) -> bool:
        """Whether all axes of the source appear, in order."""
        sizes = self.source.shape.sizes
        used = [axis for axis in self.axes if axis is not None and sizes[axis] != 1]
        return used == [d for d, size in enumerate(sizes) if size != 1]


class Factor(Frozen):
    """A broadcast factor or divisor of a product."""

    row: Row
    inverse: bool = False


class Matcher(Frozen):
    """Queries about the values of an edit in its current state."""

    edit: Edit

    def op(self, value: Value, *names: str) -> Op | None:
        """The op that produces a value, if its name is one of these."""
        maker = self.edit.maker(value)
        return maker if maker is not None and maker.name.partition(".")[2] in names else None

    def operands(self, op: Op) -> list[Value]:
        return self.edit.operands(op)

    def pair(self, value: Value, name: str) -> tuple[Value, Value] | None:
        """The two operands of a binary op."""
        maker = self.op(value, name)
        if maker is None:
            return None
        x, y = self.operands(maker)
        return x, y

    def orders(self, value: Value, name: str) -> Iterator[tuple[Value, Value]]:
        """The two operands of a binary op, in both orders."""
        pair = self.pair(value, name)
        if pair is not None:
            yield pair
            yield pair[1], pair[0]

    def under(self, value: Value, name: str) -> Value | None:
        """The operand of a unary op."""
        maker = self.op(value, name)
        return None if maker is None else self.operands(maker)[0]

    def number(self, value: Value) -> float | None:
        """The number that fills a constant, also through broadcasts and conversions of floats."""
        source = self.row(value).source
        while (inner := self.float_convert(source)) is not None:
            source = self.row(inner).source
        maker = self.op(source, "constant")
        constant: Constant | None = None if maker is None else maker.attrs["value"]
        if constant is None or constant.array.size == 0 or constant.dtype.kind != "float":
            return None
        flat = constant.array.reshape(-1)
        if not constant.is_splat and not bool((flat == flat[0]).all()):
            return None
        return float(flat[0])

    def float_convert(self, value: Value) -> Value | None:
        """The float behind a conversion to another float."""
        inner = self.under(value, "convert")
        return inner if inner is not None and is_float(inner) and is_float(value) else None

    def skip_lossless(self, value: Value) -> Value:
        """The value behind lossless conversions."""
        value = self.edit.value(value)
        while (inner := self.float_convert(value)) is not None and inner.shape.element.bits < value.shape.element.bits:
            value = self.edit.value(inner)
        return value

    def skip_conversions(self, value: Value) -> Value:
        """The value behind conversions between floats."""
        while (inner := self.float_convert(value)) is not None:
            value = inner
        return value

    def row(self, value: Value) -> Row:
        """The value behind broadcasts and reshapes that insert or drop axes of size one."""
        axes: tuple[int | None, ...] = tuple(range(value.shape.rank))
        while (maker := self.op(value, "broadcast_in_dim", "reshape")) is not None:
            (source,) = self.operands(maker)
            if maker.name == "stablehlo.reshape":
                moved = _squeezed_axes(value.shape, source.shape)
                if moved is None:
                    break
            else:
                moved = [None] * value.shape.rank
                for i, d in enumerate(maker.attrs["broadcast_dimensions"]):
                    moved[d] = None if source.shape.sizes[i] == 1 else i
            axes = tuple(None if axis is None else moved[axis] for axis in axes)
            value = source
        return Row(self.edit.value(value), axes)

    def inner_row(self, row: Row, value: Value) -> Row:
        """An operand of the op that produces a row's source, as a row of the same shape."""
        inner = self.row(value)
        return Row(inner.source, tuple(None if axis is None else inner.axes[axis] for axis in row.axes))

    def factors(self, value: Value, whole: Value | None = None) -> tuple[float, list[Value]]:
        """A value as a constant times other values, through multiplications, divisions by constants and negations.

        `whole` counts as one factor.
        """
        number, rest, work = 1.0, [], [value]
        while work:
            part = self.edit.value(work.pop())
            constant = self.number(part)
            if part is whole:
                rest.append(part)
            elif constant is not None:
                number *= constant
            elif (product := self.pair(part, "multiply")) is not None:
                work += product
            elif (negated := self.under(part, "negate")) is not None:
                number = -number
                work.append(negated)
            elif (quotient := self.pair(part, "divide")) is not None and self.number(quotient[1]):
                number /= self.number(quotient[1]) or 1.0
                work.append(quotient[0])
            elif (square := self._square(part)) is not None:
                work += square
            else:
                rest.append(part)
        return number, rest

    def gated_products(self, value: Value) -> Iterator[tuple[float, Value, Value]]:
        """Every reading of a value as constant * x * gate; x may be a product itself."""
        seen: dict[Value, None] = {}
        work = [self.edit.value(value)]
        while work and len(seen) < _MOST_FACTORS:
            part = work.pop()
            product = self.pair(part, "multiply")
            quotient = self.pair(part, "divide")
            if part in seen or self.number(part) is not None:
                continue
            seen[part] = None
            work += product or (quotient[:1] if quotient is not None else ())
        for x in seen:
            number, parts = self.factors(value, x)
            if len(parts) == 2 and x in parts:
                yield number, x, parts[1 - parts.index(x)]

    def square_base(self, value: Value) -> Value | None:
        """x of x squared."""
        product = self.pair(value, "multiply")
        if product is not None and product[0] is product[1]:
            return product[0]
        base = self._square(value)
        return base[0] if base is not None and len(base) == 2 else None

    def _square(self, value: Value) -> list[Value] | None:
        """x, n times, for x to the power of a small integer n."""
        if (base := self.under(value, "square")) is not None:
            return [base, base]
        power = self.pair(value, "power")
        exponent = None if power is None else self.number(power[1])
        return [power[0]] * int(exponent) if power is not None and exponent in (2.0, 3.0) else None

    def row_factors(self, value: Value, stop: Callable[[Row], bool]) -> tuple[float, list[Factor]]:
        """A value as a constant times rows, or divided by them, also through broadcasts and float conversions.

        Rows for which `stop` holds count as one factor.
        """
        number, rest = 1.0, []
        work = [Factor(self.row(value))]
        while work:
            factor = work.pop()
            source = factor.row.source
            constant = self.number(source)
            if constant:
                number = number / constant if factor.inverse else number * constant
            elif stop(factor.row):
                rest.append(factor)
            elif (product := self.pair(source, "multiply")) is not None:
                work += [Factor(self.inner_row(factor.row, part), factor.inverse) for part in product]
            elif (quotient := self.pair(source, "divide")) is not None:
                work.append(Factor(self.inner_row(factor.row, quotient[0]), factor.inverse))
                work.append(Factor(self.inner_row(factor.row, quotient[1]), not factor.inverse))
            elif (inner := self.float_convert(source)) is not None and self.op(inner, *_COMPUTED) is not None:
                work.append(Factor(self.inner_row(factor.row, inner), factor.inverse))
            else:
                rest.append(factor)
        return number, rest

    def plus_number(self, value: Value) -> tuple[Value, float] | None:
        """x + number, in either order, or x - number."""
        for x, y in self.orders(value, "add"):
            constant = self.number(y)
            if constant is not None:
                return x, constant
        difference = self.pair(value, "subtract")
        constant = None if difference is None else self.number(difference[1])
        return None if difference is None or constant is None else (difference[0], -constant)

    def reduction(self, value: Value, body: str) -> tuple[Value, tuple[int, ...]] | None:
        """The operand and axes of a sum or maximum."""
        maker = self.op(value, "reduce")
        if maker is None or len(maker.results) != 1:
            return None
        ops = maker.regions[0].ops
        if len(ops) != 1 or ops[0].name != f"stablehlo.{body}" or set(ops[0].operands) != set(maker.regions[0].args):
            return None
        x, start = self.operands(maker)
        neutral = self.number(start)
        if neutral is None or not (neutral == 0.0 if body == "add" else is_lowest(neutral, x)):
            return None
        return x, tuple(sorted(maker.attrs["dimensions"]))

    def spread(self, value: Value, like: Value, axes: Sequence[int]) -> Value | None:
        """The value with one element per row of `like`, if this one broadcasts it along `axes` and nowhere else."""
        row = self.row(value)
        kept = [d for d in range(like.shape.rank) if d not in axes]
        if len(row.axes) != like.shape.rank or row.source.shape.rank not in (len(kept), like.shape.rank):
            return None
        wanted = [row.axes[d] for d in kept]
        fits = all(axis is not None or like.shape.sizes[d] == 1 for d, axis in zip(kept, wanted, strict=True))
        ordered = [axis for axis in wanted if axis is not None]
        return row.source if fits and ordered == sorted(ordered) and all(row.axes[d] is None for d in axes) else None

    def mean(self, value: Value) -> tuple[Value, tuple[int, ...]] | None:
        """The operand and axes of a mean."""
        number, rest = self.factors(self.skip_conversions(self.row(value).source))
        found = self.reduction(self.row(rest[0]).source, "add") if len(rest) == 1 else None
        if found is None:
            return None
        sizes = [found[0].shape.sizes[axis] for axis in found[1]]
        if not all(isinstance(size, int) for size in sizes):
            return None
        count = math.prod(size for size in sizes if isinstance(size, int))
        return found if count and near(number * count, 1.0) else None

    def clamp(self, value: Value) -> tuple[Value, float | None, float | None] | None:
        """x, low and high of a clamp, or of a minimum and a maximum in either order; one bound may be missing."""
        maker = self.op(value, "clamp")
        if maker is not None:
            low, x, high = self.operands(maker)
            return x, self.number(low), self.number(high)
        bounds: dict[str, float] = {}
        while True:
            for name in ("minimum", "maximum"):
                found = next(((x, n) for x, y in self.orders(value, name) if (n := self.number(y)) is not None), None)
                if found is not None and name not in bounds:
                    value, bounds[name] = found
                    break
            else:
                break
        return (value, bounds.get("maximum"), bounds.get("minimum")) if bounds else None


Finder = Callable[[Matcher, Op], Iterable[Found]]


def is_float(value: Value) -> bool:
    return isinstance(value.type, Shape) and isinstance(value.type.dtype, DType) and value.type.dtype.is_float


def is_lowest(number: float, like: Value) -> bool:
    """Whether a number is the identity of maximum: -inf, or the lowest number of the type."""
    return number == -math.inf or number < (-1e37 if like.shape.element.bits >= 32 else -6e4)


def near(a: float, b: float) -> bool:
    """Whether constants are equal up to rounding to a narrow type."""
    return math.isclose(a, b, rel_tol=2e-3)


def _squeezed_axes(shape: Shape, source: Shape) -> list[int | None] | None:
    """The source axis of each axis of a reshape that only inserts or drops axes of size one."""
    big = [i for i, size in enumerate(source.sizes) if size != 1]
    axes: list[int | None] = [None if size == 1 else -1 for size in shape.sizes]
    places = [i for i, axis in enumerate(axes) if axis is not None]
    if [shape.sizes[i] for i in places] != [source.sizes[i] for i in big]:
        return None
    for place, axis in zip(places, big, strict=True):
        axes[place] = axis
    return axes
