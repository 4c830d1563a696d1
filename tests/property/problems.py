"""Random cases for every kind of kernel: a program, its arguments, and the tolerance.

`draw(kind, random)` gives one. Operands arrive through random moves (transposes, reshapes, slices, reversals, padding),
results leave through moves and elementwise ops; sizes are 0, 1, odd, prime or large, some of them open. The program
can be made twice: as it is, and with f64 in place of f32 for an evaluation in double.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import numpy as np

from smelt.dim import Size, evaluate, product, symbol
from smelt.dtype import Array, dtype
from smelt.ir.attributes import ConvDims, DotDims, GatherDims, ScatterDims
from smelt.ir.build import Builder, FuncBuilder
from smelt.ir.core import Program, Region, Value
from smelt.ir.interpret import run
from smelt.ir.ops.window import window_count
from smelt.kernel.loops.fold import identity
from smelt.shape import Shape
from tests.property.loops import looping

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 31, 32, 33, 37, 64, 67, 101, 127, 128, 129, 256, 257, 397, 701)
FLOATS = ("f32", "f32", "f32", "f64", "bf16", "f16")
INTEGERS = ("i8", "i32", "i64", "ui8", "ui32", "ui64")
WORK = 40_000  # elements of a result, and about the elements of an operand
EPSILON = float(np.finfo(np.float32).eps)

Sizes = tuple[Size, ...]
Build = Callable[..., Value]


@dataclass(frozen=True)
class Wanted:
    """A kind of case: operands, the computation, and the number of terms per element."""

    operands: list[tuple[Sizes, str]]
    build: Build
    terms: int = 1
    pool: tuple[float, ...] = (-3, -2, -1, 0, 1, 2, 3)  # numbers whose sums and products are exact
    linear: bool = False  # sums of products only, so that magnitudes come from the operands' magnitudes
    indices: dict[int, int] = field(default_factory=dict)  # operands that hold places, and how many places there are


@dataclass
class Draw:
    """The random generator, and the dynamic dimensions drawn so far."""

    random: np.random.Generator
    values: dict[str, int] = field(default_factory=dict)

    def number(self, low: int, high: int) -> int:
        """low … high, both included."""
        return int(self.random.integers(low, high + 1))

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.number(0, len(choices) - 1)]

    def size(self, most: int = 101, least: int = 0, *, open: float = 0.3) -> Size:
        found: int = self.pick([each for each in SIZES if least <= each <= most])
        if not self.chance(open):
            return found
        name = f"N{len(self.values)}"
        self.values[name] = found
        return symbol(name)

    def sizes(self, count: int, most: int = 101, least: int = 0, work: int = WORK) -> Sizes:
        """Sizes whose product is bounded."""
        result: list[Size] = []
        for _ in range(count):
            result.append(self.size(max(least, min(most, work)), least))
            work //= max(self.value(result[-1]), 1)
        return tuple(result)

    def value(self, size: Size) -> int:
        return evaluate(size, self.values)

    def order(self, count: int) -> tuple[int, ...]:
        return tuple(int(each) for each in self.random.permutation(count))


@dataclass(frozen=True)
class Problem:
    """`make(wide)` builds the program, the wide one with f64 for f32."""

    name: str
    make: Callable[[bool], Program]
    args: tuple[Array, ...]
    exact: bool
    terms: int

    def allowed(self, want: Array) -> Array:
        """How far each element may be off: nothing where sums are exact.

        Else (4 + sqrt(k)) eps times the sum of the terms' magnitudes, for k terms, about a double evaluation.
        """
        if self.exact:
            return np.zeros(want.shape)
        sizes = run(self.make(True), [np.asarray(np.abs(each), _wide(each)) for each in self.args])[0]
        scale: Array = (4 + isqrt(self.terms)) * EPSILON * np.abs(sizes)
        return scale

    def expected(self) -> Array:
        if self.exact:
            return run(self.make(False), self.args)[0]
        return run(self.make(True), [each.astype(_wide(each)) for each in self.args])[0]


def _wide(array: Array) -> Any:
    return np.float64 if array.dtype == np.float32 else array.dtype


def difference(problem: Problem, got: Array) -> str:
    """What is wrong with a result; empty if it is right."""
    want = problem.expected()
    if got.shape != want.shape:
        return f"{problem.name}: shape {got.shape}, expected {want.shape}"
    if got.dtype != want.dtype and problem.exact:
        return f"{problem.name}: {got.dtype}, expected {want.dtype}"
    if got.dtype.kind in "biu" or want.dtype.kind in "biu":
        wrong = got != want
    else:
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
        a, b = got.astype(wide), want.astype(wide)
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= problem.allowed(want)
        wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | near)
    if not wrong.any():
        return ""
    place = tuple(int(each) for each in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    return f"{problem.name}: {np.count_nonzero(wrong)} of {wrong.size}; at {place} {got[place]}, expected {want[place]}"


def draw(kind: str, random: np.random.Generator) -> Problem:
    """One case of a kind."""
    dice = Draw(random)
    wanted = KINDS[kind](dice)
    plain = all(element == "f32" or i in wanted.indices for i, (_, element) in enumerate(wanted.operands))
    exact = not (wanted.linear and plain and dice.chance(0.4))
    arrivals = [
        arrival(dice, sizes) if i not in wanted.indices else (sizes, []) for i, (sizes, _) in enumerate(wanted.operands)
    ]
    after = dice.number(0, 1 << 30)

    def make(wide: bool) -> Program:
        def element(name: str) -> str:
            return "f64" if wide and name == "f32" else name

        pairs = list(zip(arrivals, wanted.operands, strict=True))
        shapes = [Shape(element(kind), *sizes) for (sizes, _), (_, kind) in pairs]
        f = FuncBuilder("main", [*shapes, *(Shape("i1", name) for name in dice.values)])
        values = [move(f, arg, moves) for arg, (_, moves) in zip(f.args, arrivals, strict=False)]
        return Program.of(f.func(leave(f, Draw(np.random.default_rng(after)), wanted.build(f, *values), exact)))

    args = []
    for i, ((sizes, _), (_, element)) in enumerate(zip(arrivals, wanted.operands, strict=True)):
        numbers = [dice.value(size) for size in sizes]
        if i in wanted.indices:
            args.append(random.integers(-2, wanted.indices[i] + 2, numbers).astype(dtype(element).numpy))
        else:
            args.append(np.asarray(fill(random, element, numbers, wanted.pool if exact else None)))
    args += [np.zeros(number, bool) for number in dice.values.values()]  # a dynamic dimension of its own argument
    return Problem(f"{kind} {dice.values}", make, tuple(args), exact, wanted.terms)


def fill(random: np.random.Generator, element: str, sizes: Sequence[int], pool: Sequence[float] | None) -> Array:
    kind = dtype(element)
    if kind.kind == "bool":
        return random.integers(0, 2, sizes).astype(kind.numpy)
    if pool is None:
        return random.standard_normal(sizes).astype(kind.numpy)
    numbers = random.choice(np.array(pool), sizes) if np.prod(sizes) else np.zeros(sizes)
    if kind.kind == "uint":
        numbers = np.abs(numbers)
    if kind.is_complex:
        return (numbers + 1j * random.permutation(numbers.reshape(-1)).reshape(numbers.shape)).astype(kind.numpy)
    return numbers.astype(kind.numpy)


# ---- operands arrive, results leave ----

Move = tuple[str, Any]


def arrival(dice: Draw, sizes: Sizes) -> tuple[Sizes, list[Move]]:
    """The sizes of an argument, and the moves that make an operand of these sizes of it."""
    moves: list[Move] = []
    for _ in range(dice.number(0, 3)):
        step = dice.pick((_untransposed, _unshaped, _unshaped, _unsliced, _turned, _unpadded, _unspread))
        made = step(dice, sizes)
        if made is not None:
            moves.insert(0, made[1])
            sizes = made[0]
    return sizes, moves


def _untransposed(dice: Draw, sizes: Sizes) -> tuple[Sizes, Move] | None:
    order = dice.order(len(sizes))
    before: list[Size] = [0] * len(sizes)
    for at, source in enumerate(order):
        before[source] = sizes[at]
    return tuple(before), ("transpose", order)


def _unshaped(dice: Draw, sizes: Sizes) -> tuple[Sizes, Move] | None:
    """Neighbours that were one axis, an axis that was two, or one more axis of one element."""
    way = dice.number(0, 2)
    d = dice.number(0, max(len(sizes) - 1, 0))
    if way == 0 and len(sizes) > 1:
        d = dice.number(0, len(sizes) - 2)
        return (*sizes[:d], sizes[d] * sizes[d + 1], *sizes[d + 2 :]), ("reshape", sizes)
    if way == 1 and sizes and isinstance(size := sizes[d], int) and size:
        factor = dice.pick([k for k in range(1, size + 1) if size % k == 0])
        return (*sizes[:d], factor, size // factor, *sizes[d + 1 :]), ("reshape", sizes)
    return (*sizes[:d], 1, *sizes[d:]), ("reshape", sizes)


def _unsliced(dice: Draw, sizes: Sizes) -> tuple[Sizes, Move] | None:
    if not sizes or not all(isinstance(each, int) for each in sizes):
        return None
    d, low, step = dice.number(0, len(sizes) - 1), dice.number(0, 3), dice.number(1, 2)
    size = dice.value(sizes[d])
    before = (*sizes[:d], low + size * step + dice.number(0, 2), *sizes[d + 1 :])
    starts = tuple(low if i == d else 0 for i in range(len(sizes)))
    limits = tuple(low + size * step if i == d else each for i, each in enumerate(sizes))
    return before, ("slice", (starts, limits, tuple(step if i == d else 1 for i in range(len(sizes)))))


def _turned(dice: Draw, sizes: Sizes) -> tuple[Sizes, Move] | None:
    return sizes, ("reverse", tuple(d for d in range(len(sizes)) if dice.chance(0.5)))


def _unpadded(dice: Draw, sizes: Sizes) -> tuple[Sizes, Move] | None:
    if not sizes:
        return None
    d = dice.number(0, len(sizes) - 1)
    size = sizes[d]
    if not isinstance(size, int) or size < 3:
        return None
    low, high = dice.number(0, 1), dice.number(-1, 2)
    before = (*sizes[:d], size - low - high, *sizes[d + 1 :])
    return before, ("pad", (d, low, high))


def _unspread(dice: Draw, sizes: Sizes) -> tuple[Sizes, Move] | None:
    """One element in place of an axis, or no axis at all."""
    if not sizes:
        return None
    d = dice.number(0, len(sizes) - 1)
    kept = tuple(i for i in range(len(sizes)) if i != d)
    if dice.chance(0.5):
        return tuple(sizes[i] for i in kept), ("broadcast", (sizes, kept))
    return (*sizes[:d], 1, *sizes[d + 1 :]), ("broadcast", (sizes, tuple(range(len(sizes)))))


def move(f: Builder, value: Value, moves: Sequence[Move]) -> Value:
    for name, detail in moves:
        kind = value.shape.dtype
        match name:
            case "transpose":
                value = f.transpose(value, permutation=detail)
            case "reshape":
                value = f.reshape(value, result=Shape.of(kind, detail))
            case "slice":
                value = f.slice(value, start_indices=detail[0], limit_indices=detail[1], strides=detail[2])
            case "reverse":
                value = f.reverse(value, dimensions=detail)
            case "pad":
                d, low, high = detail
                zeros = (0,) * value.shape.rank
                edges = [(*zeros[:d], each, *zeros[d + 1 :]) for each in (low, high)]
                filler = f.constant(1, kind)
                value = f.pad(
                    value, filler, edge_padding_low=edges[0], edge_padding_high=edges[1], interior_padding=zeros
                )
            case "broadcast":
                value = f.broadcast_in_dim(value, broadcast_dimensions=detail[1], result=Shape.of(kind, detail[0]))
    return value


def leave(f: Builder, dice: Draw, value: Value, exact: bool) -> Value:
    """A result after up to four moves and elementwise ops; where sums are not exact, only those that keep order."""
    for _ in range(dice.number(0, 4)):
        step = dice.pick((_moved, _moved, _shifted, _scaled) if not exact else (_moved, _moved, _shifted, _bent))
        value = step(f, dice, value)
    return value


def _moved(f: Builder, dice: Draw, value: Value) -> Value:
    sizes = value.shape.sizes
    way = dice.number(0, 3)
    if way == 0:
        return f.transpose(value, permutation=dice.order(len(sizes)))
    if way == 1 and len(sizes) > 1:
        d = dice.number(0, len(sizes) - 2)
        merged = (*sizes[:d], sizes[d] * sizes[d + 1], *sizes[d + 2 :])
        return f.reshape(value, result=Shape.of(value.shape.dtype, merged))
    if way == 2 and sizes and isinstance(sizes[-1], int) and sizes[-1] % 2 == 0 and sizes[-1]:
        parts = (*sizes[:-1], 2, sizes[-1] // 2)
        return f.reshape(value, result=Shape.of(value.shape.dtype, parts))
    if way == 3 and sizes and all(isinstance(each, int) and each > 1 for each in sizes):
        starts = tuple(1 if dice.chance(0.3) else 0 for _ in sizes)
        return f.slice(value, start_indices=starts, limit_indices=sizes, strides=(1,) * len(sizes))
    return value


def _shifted(f: Builder, dice: Draw, value: Value) -> Value:
    """Plus a number, or plus one that depends on the place along an axis."""
    kind = value.shape.dtype
    if kind.name == "i1":
        return f.not_(value)
    if not value.shape.rank or dice.chance(0.5) or kind.bits < 16:
        return f.add(value, f.full(dice.number(0, 3), value.shape))
    d = dice.number(0, value.shape.rank - 1)
    line = f.iota(iota_dimension=0, result=Shape.of(dtype("i32"), (value.shape.sizes[d],)))
    return f.add(
        value,
        f.broadcast_in_dim(
            f.convert(line, result=line.shape.with_dtype(kind)), broadcast_dimensions=(d,), result=value.shape
        ),
    )


def _scaled(f: Builder, dice: Draw, value: Value) -> Value:
    return f.multiply(value, f.full(dice.number(1, 3), value.shape))


def _bent(f: Builder, dice: Draw, value: Value) -> Value:
    kind = value.shape.dtype
    if kind.is_complex or kind.kind in ("bool", "uint"):
        return value
    zero = f.full(0, value.shape)
    way = dice.number(0, 2)
    if way == 0:
        return f.maximum(value, zero)
    if way == 1:
        return f.select(f.compare(value, zero, comparison_direction="LT"), f.negate(value), value)
    return f.subtract(zero, value)


# ---- kinds ----


def combine(f: Builder, name: str, kind: Any) -> Region:
    with f.region(Shape.of(kind, ()), Shape.of(kind, ())) as r:
        r.result(r.op(f"stablehlo.{name}", *r.args).result)
    return r.body


def maps(dice: Draw) -> Wanted:
    """A few operands of one shape and any type, and a random expression over them."""
    sizes = dice.sizes(dice.number(0, 4))
    element = dice.pick((*FLOATS, *INTEGERS, "i1", "i4", "complex<f32>"))
    kind = dtype(element)
    names: tuple[str, ...] = ("add", "subtract", "multiply")
    if kind.kind in ("int", "uint"):
        names += ("maximum", "minimum", "and", "or", "xor")
    if kind.is_float:
        names += ("maximum", "minimum")
    if kind.kind == "bool":
        names = ("and", "or", "xor")
    chosen = [dice.pick(names) for _ in range(3)]

    def build(f: Builder, x: Value, y: Value, z: Value) -> Value:
        a = f.op(f"stablehlo.{chosen[0]}", x, y).result
        b = f.op(f"stablehlo.{chosen[1]}", y, z).result
        less = f.compare(x, z, comparison_direction="NE")
        return f.select(less, f.op(f"stablehlo.{chosen[2]}", a, b).result, a)

    return Wanted([(sizes, element)] * 3, build, pool=(-1, 0, 1, 2))


def _reduced(f: Builder, x: Value, name: str, dims: tuple[int, ...], start: float) -> Value:
    kind = x.shape.dtype
    return f.reduce(x, f.constant(start, kind), dimensions=dims, regions=[combine(f, name, kind)])


def _reduction(dice: Draw, sizes: Sizes, dims: tuple[int, ...], again: bool) -> Wanted:
    terms = max(dice.value(product(sizes[d] for d in dims)), 1)
    name = dice.pick(("add", "add", "maximum", "minimum", "multiply"))
    small = ("bf16", "f16") if terms < 100 else ()
    element = dice.pick(("f32", "f32", "f32", "f64", *small, *INTEGERS))
    start = {"add": 1, "maximum": -2 if dtype(element).kind != "uint" else 0, "minimum": 2, "multiply": 1}[name]
    kept = tuple(d for d in range(len(sizes)) if d not in dims)

    def build(f: Builder, x: Value) -> Value:
        total = _reduced(f, x, name, dims, start)
        if not again:
            return total
        spread = f.broadcast_in_dim(total, broadcast_dimensions=kept, result=x.shape)
        return f.subtract(x, spread) if name != "add" else f.add(x, spread)

    pool: tuple[float, ...] = (-1, 1, 2, 0.5) if name == "multiply" and dtype(element).is_float else (-1, 0, 1, 2)
    pool = (-1, 1) if element in ("bf16", "f16") else pool
    return Wanted([(sizes, element)], build, terms, pool=pool, linear=name == "add")


def rows(dice: Draw) -> Wanted:
    sizes = dice.sizes(dice.number(1, 4))
    count = dice.number(1, len(sizes))
    return _reduction(dice, sizes, tuple(range(len(sizes) - count, len(sizes))), dice.chance(0.6))


def columns(dice: Draw) -> Wanted:
    sizes = dice.sizes(dice.number(2, 4))
    dims = tuple(sorted(dice.order(len(sizes))[: dice.number(1, len(sizes) - 1)]))
    return _reduction(dice, sizes, dims, dice.chance(0.3))


def everything(dice: Draw) -> Wanted:
    sizes = dice.sizes(dice.number(1, 3), work=WORK * 3)
    return _reduction(dice, sizes, tuple(range(len(sizes))), dice.chance(0.3))


def contractions(dice: Draw) -> Wanted:
    """Any dimension numbers; groups, rows, columns and depth of any size."""
    batch = dice.sizes(dice.pick((0, 0, 1, 2)), 5)
    inner = dice.sizes(dice.pick((0, 1, 1, 1, 2)), 257, work=400)
    outer = [dice.sizes(dice.pick((0, 1, 1, 1, 2)), most, work=most) for most in dice.pick(((200, 200), (701, 64)))]
    orders, operands = [], []
    for free in outer:
        sizes = (*batch, *inner, *free)
        order = dice.order(len(sizes))
        orders.append(order)
        operands.append(tuple(sizes[d] for d in order))
    element = dice.pick(("f32",) * 8 + ("f64", "bf16", "i32", "i8"))
    places = [[order.index(d) for d in range(len(batch) + len(inner))] for order in orders]
    dims = DotDims(*(tuple(place[: len(batch)]) for place in places), *(tuple(p[len(batch) :]) for p in places))

    def kept(i: int) -> list[Size]:
        return [operands[i][at] for at, d in enumerate(orders[i]) if d >= len(batch) + len(inner)]

    result = (*batch, *kept(0), *kept(1))

    def build(f: Builder, x: Value, y: Value) -> Value:
        return f.dot_general(x, y, dot_dimension_numbers=dims, result=Shape.of(x.shape.dtype, result))

    terms = max(dice.value(product(inner)), 1)
    pool = (-1, 0, 1) if element in ("bf16", "i8") else (-3, -2, -1, 0, 1, 2, 3)
    return Wanted([(each, element) for each in operands], build, terms, pool=pool, linear=True)


def windows(dice: Draw) -> Wanted:
    """Convolutions of one or two spatial axes, any layout; groups up to one per channel; paddings of both signs."""
    rank = dice.pick((1, 2, 2))
    groups = dice.pick((1, 1, 1, 2, 3))
    depth = dice.pick((1, 1, 2, 3, 8))
    features = groups * dice.pick((1, 1, 2, 5, 12, 13, 17))
    if dice.chance(0.25):
        groups = features = dice.pick((1, 3, 8, 19))
        depth = 1
    window, strides, holes = (
        tuple(dice.pick(choices) for _ in range(rank)) for choices in ((1, 2, 3, 3, 5, 7, 8), (1, 1, 2, 3), (1, 1, 2))
    )
    padding = tuple((dice.number(-1, 3), dice.number(-1, 3)) for _ in range(rank))
    odd = dice.chance(0.2)
    base = tuple(dice.number(1, 3) for _ in range(rank)) if odd else (1,) * rank
    turned = tuple(dice.chance(0.5) for _ in range(rank)) if odd else (False,) * rank
    batch = dice.size(3)
    image = tuple(dice.size(33 if rank == 2 else 101) for _ in range(rank))
    out = tuple(window_count(*each) for each in zip(image, padding, base, window, holes, strides, strict=True))
    orders = [dice.order(rank + 2) for _ in range(3)]
    sizes = [(batch, groups * depth, *image), (depth, features, *window), (batch, features, *out)]
    operands = [tuple(each[d] for d in order) for each, order in zip(sizes, orders, strict=True)]
    parts = [
        part
        for order in orders
        for part in (order.index(0), order.index(1), tuple(order.index(d + 2) for d in range(rank)))
    ]
    element = dice.pick(("f32",) * 8 + ("f64", "bf16", "i32"))

    def build(f: Builder, x: Value, y: Value) -> Value:
        return f.convolution(
            x,
            y,
            dimension_numbers=ConvDims(*parts),  # type: ignore[arg-type]
            window_strides=strides,
            padding=padding,
            rhs_dilation=holes,
            lhs_dilation=base,
            window_reversal=turned,
            feature_group_count=groups,
            batch_group_count=1,
            result=Shape.of(x.shape.dtype, operands[2]),
        )

    terms = depth * int(np.prod(window))
    pool = (-1, 0, 1) if element == "bf16" else (-2, -1, 0, 1, 2)
    return Wanted([(operands[0], element), (operands[1], element)], build, terms, pool=pool, linear=not odd)


def pools(dice: Draw) -> Wanted:
    rank = dice.number(1, 3)
    sizes = dice.sizes(rank, 37, 1, work=8000)
    name = dice.pick(("add", "maximum", "minimum"))
    window, strides, holes = (tuple(dice.number(1, most) for _ in range(rank)) for most in (4, 3, 2))
    padding = tuple((dice.number(-1, 3), dice.number(-1, 3)) for _ in range(rank))
    element = dice.pick(("f32", "f32", "f64", "i32", "ui8"))

    def build(f: Builder, x: Value) -> Value:
        kind = x.shape.dtype
        return f.reduce_window(
            x,
            f.constant({"add": 0, "maximum": 0, "minimum": 3}[name], kind),
            window_dimensions=window,
            window_strides=strides,
            window_dilations=holes,
            padding=padding,
            regions=[combine(f, name, kind)],
        )

    return Wanted([(sizes, element)], build, int(np.prod(window)), linear=name == "add")


def gathers(dice: Draw) -> Wanted:
    """Rows of a table at indices some of which are out of bounds; table and rows are transposed."""
    table, width, count = dice.size(37, 1, open=0), dice.size(33), dice.size(33)
    element = dice.pick((*FLOATS, *INTEGERS, "i1"))

    def build(f: Builder, x: Value, at: Value) -> Value:
        dims = GatherDims((1,), (0,), (), (), (0,), 1)
        return f.gather(x, at, dimension_numbers=dims, slice_sizes=(1, width))

    if not isinstance(width, int):
        width = dice.value(width)
    return Wanted([((table, width), element), ((count,), "i32")], build, indices={1: dice.value(table)})


def scatters(dice: Draw) -> Wanted:
    """Rows, elements, overlapping windows or batches, at places several of which are the same or out of bounds."""
    table, width, count = dice.size(37, 1, open=0), dice.size(33), dice.size(33)
    element = dice.pick(("f32", "f64", "bf16", "i32", "i64", "ui8"))
    name = dice.pick(("add", "maximum", "minimum", "replace", "reflect"))
    form = dice.pick(("rows", "rows", "elements", "windows", "batches"))
    operand, at, updates, dims = {
        "rows": ((table, width), (count,), (count, width), ScatterDims((1,), (0,), (), (), (0,), 1)),
        "elements": ((table,), (count, 1), (count,), ScatterDims((), (0,), (), (), (0,), 1)),
        "windows": ((table, table), (count, 2), (count, 1, table), ScatterDims((1, 2), (), (), (), (1, 0), 1)),
        "batches": ((2, table, 3), (count, 2, 1), (count, 2, 3), ScatterDims((2,), (1,), (0,), (1,), (1,), 2)),
    }[form]

    def build(f: Builder, x: Value, at: Value, update: Value) -> Value:
        kind = Shape.of(x.shape.dtype, ())
        with f.region(kind, kind) as r:
            old, new = r.args
            if name == "reflect":  # depends on the order of the updates
                r.result(r.subtract(new, old))
            else:
                r.result(new if name == "replace" else r.op(f"stablehlo.{name}", old, new).result)
        return f.scatter(x, at, update, scatter_dimension_numbers=dims, regions=[r.body])

    operands: list[tuple[Sizes, str]] = [(operand, element), (at, "i64"), (updates, element)]
    return Wanted(operands, build, indices={1: dice.value(table)})


def sorts(dice: Draw) -> Wanted:
    """One operand by itself, or two by their places as well, which shows whether equal elements keep their order."""
    sizes = dice.sizes(dice.number(1, 3), work=4000)
    dim = dice.number(0, len(sizes) - 1)
    element = dice.pick((*FLOATS, *INTEGERS))
    direction = dice.pick(("LT", "GT"))
    shown, both = dice.pick(((0, False), (0, True), (1, True)))

    def build(f: Builder, x: Value) -> Value:
        places = f.iota(iota_dimension=dim, result=x.shape.with_dtype(dtype("i32")))
        operands = [x, places] if both else [x]
        kinds = [Shape.of(each.shape.dtype, ()) for each in operands for _ in range(2)]
        with f.region(*kinds) as r:
            r.result(r.compare(*r.args[:2], comparison_direction=direction))
        return f.op("stablehlo.sort", *operands, dimension=dim, is_stable=True, regions=[r.body]).results[shown]

    return Wanted([(sizes, element)], build)


def tops(dice: Draw) -> Wanted:
    """The largest of rows, or their places."""
    length = dice.size(701, 1, open=0)
    sizes = (*dice.sizes(dice.number(0, 2), 17, work=4000 // dice.value(length)), length)
    element, shown = dice.pick((*FLOATS, *INTEGERS)), dice.number(0, 1)
    k = dice.number(0, dice.value(length))

    def build(f: Builder, x: Value) -> Value:
        return f.op("chlo.top_k", x, k=k).results[shown]

    return Wanted([(sizes, element)], build)


def running(dice: Draw) -> Wanted:
    """Cumulative reductions from either end, as a window or as a scan: the elements, or the last carries."""
    length = dice.size(701, 1, open=0)
    around = dice.sizes(dice.number(0, 2), 17, work=4000 // dice.value(length))
    axis, back, way = dice.number(0, len(around)), dice.chance(0.5), dice.number(0, 2)
    sizes = (*around[:axis], length, *around[axis:])
    name = dice.pick(("add", "maximum", "minimum"))
    element = dice.pick(("f32", "f32", "f64", "i32", "ui8", "i64"))

    def build(f: Builder, x: Value) -> Value:
        kind = x.shape.dtype
        whole = dice.value(length)
        if way == 0:
            low = (0, whole - 1) if back else (whole - 1, 0)
            return f.reduce_window(
                x,
                f.constant(identity(name, x.shape.element).value, kind),
                window_dimensions=tuple(whole if d == axis else 1 for d in range(len(sizes))),
                padding=tuple(low if d == axis else (0, 0) for d in range(len(sizes))),
                regions=[combine(f, name, kind)],
            )
        carry = Shape.of(kind, around)
        with f.region(carry, carry) as r:
            total = r.op(f"stablehlo.{name}", *r.args).result
            r.result(total, total)
        start = f.full(1, carry)
        made = f.op("chlo.scan", x, start, dimension=axis, is_reverse=back, regions=[r.body])
        return made.results[way - 1]

    return Wanted([(sizes, element)], build, dice.value(length), linear=name == "add")


def scans(dice: Draw) -> Wanted:
    """A loop over rows that carries a total and writes it to the row: the running total of a matrix."""
    steps, width = dice.pick((1, 2, 5, 8)), dice.size(33)
    element = dice.pick(("f32", "f64", "i32"))

    def build(f: Builder, x: Value, start: Value) -> Value:
        kind, scalar = x.shape.dtype, Shape("i64")
        shapes = [scalar, start.shape, x.shape]
        with f.region(*shapes) as test:
            test.result(test.compare(test.args[0], test.constant(steps, "i64"), comparison_direction="LT"))
        with f.region(*shapes) as turn:
            i, total, table = turn.args
            zero = turn.constant(0, "i64")
            row = turn.dynamic_slice(table, i, zero, slice_sizes=(1, width)) if isinstance(width, int) else None
            if row is None:
                mine = turn.compare(
                    turn.iota(iota_dimension=0, result=x.shape.with_dtype(dtype("i64"))),
                    turn.broadcast_in_dim(i, broadcast_dimensions=(), result=x.shape.with_dtype(dtype("i64"))),
                    comparison_direction="EQ",
                )
                line = _reduced(turn, turn.select(mine, table, turn.full(0, table.shape)), "add", (0,), 0)
                summed = turn.add(total, line)
                spread = turn.broadcast_in_dim(summed, broadcast_dimensions=(1,), result=x.shape)
                written = turn.select(mine, spread, table)
            else:
                line = turn.reshape(row, result=Shape.of(kind, (width,)))
                summed = turn.add(total, line)
                written = turn.dynamic_update_slice(table, turn.reshape(summed, result=row.shape), i, zero)
            turn.result(turn.add(i, turn.constant(1, "i64")), summed, written)
        results = f.op("stablehlo.while", f.constant(0, "i64"), start, x, regions=[test.body, turn.body]).results
        return f.add(results[2], f.broadcast_in_dim(results[1], broadcast_dimensions=(1,), result=x.shape))

    return Wanted([((steps, width), element), ((width,), element)], build)


def loops(dice: Draw) -> Wanted:
    """Loops and branches that change parts of what they carry."""
    rows, columns = dice.pick((1, 2, 3, 5)), dice.size(17)
    element = dice.pick(("i32", "i64", "ui8"))
    build = looping(dice.number(0, 1 << 30), rows, columns, element)
    operands: list[tuple[Sizes, str]] = [((rows, columns), element), ((columns,), element), ((), "i64")]
    return Wanted(operands, build, indices={2: rows})


def joins(dice: Draw) -> Wanted:
    """A concatenation along an axis, then interior padding."""
    sizes = dice.sizes(dice.number(1, 3), 33, work=4000)
    d = dice.number(0, len(sizes) - 1)
    pieces = [(*sizes[:d], dice.size(17), *sizes[d + 1 :]) for _ in range(dice.number(1, 4))]
    element = dice.pick((*FLOATS, *INTEGERS, "i1", "complex<f32>"))
    low, high = (tuple(dice.number(0, 2) for _ in sizes) for _ in range(2))
    holes = tuple(dice.number(0, 1) for _ in sizes)
    padded = dice.chance(0.6)

    def build(f: Builder, *parts: Value) -> Value:
        whole = f.concatenate(*parts, dimension=d)
        if not padded:
            return whole
        filler = f.constant(1, whole.shape.dtype)
        return f.pad(whole, filler, edge_padding_low=low, edge_padding_high=high, interior_padding=holes)

    return Wanted([(each, element) for each in pieces], build)


KINDS: dict[str, Callable[[Draw], Wanted]] = {
    "map": maps,
    "rows": rows,
    "columns": columns,
    "everything": everything,
    "contraction": contractions,
    "window": windows,
    "pool": pools,
    "gather": gathers,
    "scatter": scatters,
    "sort": sorts,
    "top": tops,
    "running": running,
    "scan": scans,
    "loop": loops,
    "join": joins,
}


# ---- by hand ----


def edges() -> list[Problem]:
    """Edge cases that random draws seldom find: regressions."""
    lists = [_moved_and_padded(rows, columns) for rows, columns in ((3, 2), (0, 3), (3, 0))]
    return [_shared_rows(), _product_of_scalars(), _product_of_nothing(), _last_row_padded(), *lists]


def _by_hand(name: str, args: Sequence[Array], build: Build, shapes: Sequence[Shape]) -> Problem:
    def make(wide: bool) -> Program:
        f = FuncBuilder("main", list(shapes))
        return Program.of(f.func(build(f, *f.args)))

    return Problem(name, make, tuple(args), True, 1)


def _shared_rows() -> Problem:
    """A convolution over an image whose pixels depend on the row alone: there is no row above the first."""
    image, kernel, result = (Shape("f32", *sizes) for sizes in ((1, 2, 9, 20), (3, 2, 3, 3), (1, 3, 9, 20)))
    dims = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))

    def build(f: Builder, rows: Value, weights: Value) -> Value:
        spread = f.broadcast_in_dim(rows, broadcast_dimensions=(2,), result=image)
        same: dict[str, Any] = {"feature_group_count": 1, "batch_group_count": 1, "padding": ((1, 1), (1, 1))}
        return f.convolution(spread, weights, dimension_numbers=dims, result=result, **same)

    args = [np.arange(9, dtype=np.float32), np.ones((3, 2, 3, 3), np.float32)]
    return _by_hand("an image of equal columns", args, build, [Shape("f32", 9), kernel])


def _product_of_scalars() -> Problem:
    def build(f: Builder, x: Value, y: Value) -> Value:
        a, b = (f.reshape(each, result=Shape("f32")) for each in (x, y))
        return f.negate(f.dot_general(a, b, dot_dimension_numbers=DotDims(), result=Shape("f32")))

    args = [np.array([3], np.float32), np.array([5], np.float32)]
    return _by_hand("a product of scalars", args, build, [Shape("f32", 1)] * 2)


def _product_of_nothing() -> Problem:
    """No element to read, and none to write: not even the first one is there."""

    def build(f: Builder, x: Value, y: Value) -> Value:
        dims = DotDims((2, 0), (2, 3), (1,), (1,))
        spread = f.broadcast_in_dim(x, broadcast_dimensions=(0, 1, 3), result=Shape("f32", 0, 1, 1, "N"))
        turned = f.transpose(y, permutation=(3, 1, 0, 2))
        return f.dot_general(spread, turned, dot_dimension_numbers=dims, result=Shape("f32", 1, 0, "N", 0))

    args = [np.zeros((0, 1, 5), np.float32), np.zeros((1, 1, 0, 0), np.float32)]
    return _by_hand("a product of nothing", args, build, [Shape("f32", 0, 1, "N"), Shape("f32", 1, 1, 0, 0)])


def _moved_and_padded(rows: int, columns: int) -> Problem:
    """A transposed matrix as a list, padded and joined: indices behind guards divide by sizes that may be 0."""

    def build(f: Builder, x: Value) -> Value:
        flat = f.reshape(f.transpose(x, permutation=(1, 0)), result=Shape.of(x.shape.dtype, (x.shape.count,)))
        one = f.constant(1, x.shape.dtype)
        padded = f.pad(flat, one, edge_padding_low=(1,), edge_padding_high=(2,), interior_padding=(0,))
        return f.concatenate(flat, padded, dimension=0)

    args = [np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)]
    return _by_hand(f"a padded list of {rows} x {columns}", args, build, [Shape("f32", "N", "M")])


def _last_row_padded() -> Problem:
    """A padded axis that becomes two: the place before the first element is not the last one of the row above."""

    def build(f: Builder, x: Value) -> Value:
        spread = f.broadcast_in_dim(x, broadcast_dimensions=(0, 1, 2), result=Shape("f32", 1, 28, 11))
        flat = f.reshape(spread, result=Shape("f32", 28, 11))
        one = f.constant(1, x.shape.dtype)
        return f.pad(flat, one, edge_padding_low=(1, 0), edge_padding_high=(2, 0), interior_padding=(0, 0))

    return _by_hand("rows padded", [np.arange(28, dtype=np.float32).reshape(1, 28, 1)], build, [Shape("f32", 1, 28, 1)])
