"""One recipe per rewrite rule: builds a random program in which the rule's pattern occurs.

A recipe gets a `Draw` (random shapes, types and numbers) and a function builder, and returns the value to look at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from smelt.dtype import Array, dtype
from smelt.ir.attributes import ConvDims, GatherDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Func, Type, Value
from smelt.shape import Shape

FLOATS = ("f32", "f64", "bf16", "f16")
INTS = ("i8", "i32", "i64", "ui8", "ui32", "i4")
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 3.0, 1e-40, 65504.0)


@dataclass
class Draw:
    """Random choices, and the program that grows from them."""

    random: np.random.Generator
    op: str = ""  # the op at the root of the rule's pattern
    f: FuncBuilder = field(init=False)
    args: list[Array] = field(default_factory=list)

    def start(self, *shapes: Shape) -> tuple[Value, ...]:
        self.f = FuncBuilder("main", list[Type](shapes))
        self.args = [self.array(shape) for shape in shapes]
        return self.f.args

    def tensor(self, *kinds: str, rank: int | None = None) -> Value:
        """The only argument of a new program."""
        (value,) = self.start(self.shape(*kinds, rank=rank))
        return value

    def shape(self, *kinds: str, rank: int | None = None) -> Shape:
        rank = int(self.random.integers(0, 4)) if rank is None else rank
        sizes = [int(self.random.choice([0, 1, 1, 2, 3, 5])) for _ in range(rank)]
        return Shape(str(self.random.choice(kinds or (*FLOATS, *INTS, "i1"))), *sizes)

    def array(self, shape: Shape) -> Array:
        """Numbers with every special value among them."""
        element = shape.element
        sizes = shape.numbers()
        if element.kind == "bool":
            return self.random.integers(0, 2, sizes).astype(bool)
        if element.is_integer:
            low = -(1 << (element.bits - 1)) if element.kind == "int" else 0
            high = (1 << (element.bits - 1)) - 1 if element.kind == "int" else (1 << min(element.bits, 62)) - 1
            edge = self.random.choice([low, high, 0, 1], sizes)
            return np.where(self.random.random(sizes) < 0.3, edge, self.random.integers(low, high, sizes)).astype(
                element.numpy
            )
        normal = self.random.standard_normal(sizes)
        mixed = np.where(self.random.random(sizes) < 0.3, self.random.choice(SPECIAL, sizes), normal)
        with np.errstate(all="ignore"):
            return mixed.astype(element.numpy)

    def permutation(self, rank: int) -> tuple[int, ...]:
        return tuple(int(i) for i in self.random.permutation(rank))

    def reshaped(self, value: Value) -> Value:
        """The same elements in another shape."""
        shape = value.shape
        sizes = list(shape.sizes)
        if sizes and self.random.random() < 0.5:
            at = int(self.random.integers(0, len(sizes)))
            sizes.insert(at, 1)
        else:
            count = int(np.prod(shape.numbers(), dtype=np.int64))
            sizes = [count]
        result: Value = self.f.reshape(value, result=Shape.of(shape.dtype, sizes))
        return result

    def broadcast(self, value: Value) -> Value:
        """Stretched to one more axis, and along axes of size one."""
        rank = value.shape.rank
        dims = tuple(sorted(self.random.permutation(rank + 1)[:rank].tolist()))
        sizes: list[int] = [int(self.random.integers(1, 4))] * (rank + 1)
        for d, size in zip(dims, value.shape.numbers(), strict=True):
            sizes[d] = int(self.random.integers(1, 4)) if size == 1 else size
        result: Value = self.f.broadcast_in_dim(
            value, broadcast_dimensions=dims, result=Shape.of(value.shape.dtype, sizes)
        )
        return result

    def sliced(self, value: Value) -> Value:
        starts, limits, strides = [], [], []
        for size in value.shape.numbers():
            low, high = sorted(int(n) for n in self.random.integers(0, size + 1, 2))
            starts.append(low)
            limits.append(high)
            strides.append(int(self.random.integers(1, 4)))
        result: Value = self.f.slice(
            value, start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(strides)
        )
        return result

    def filled(self, number: float, value: Value) -> Value:
        """A number in the shape of a value, as a broadcast scalar or as a splat constant."""
        if self.random.random() < 0.5:
            return self.f.full(number, value.shape)
        array = np.full(value.shape.numbers(), number).astype(value.shape.dtype.numpy)
        return self.f.constant(array, value.shape.dtype)

    def func(self, *results: Value) -> Func:
        return self.f.func(*results)


Recipe = Callable[[Draw], Value]
RECIPES: dict[str, list[Recipe]] = {}


def recipe(*whys: str) -> Callable[[Recipe], Recipe]:
    def register(build: Recipe) -> Recipe:
        for why in whys:
            RECIPES.setdefault(why, []).append(build)
        return build

    return register


@recipe("a reshape to the same shape moves nothing")
def _(d: Draw) -> Value:
    x = d.tensor()
    return d.f.reshape(x, result=x.shape)


@recipe("only the last reshape shows")
def _(d: Draw) -> Value:
    return d.reshaped(d.reshaped(d.tensor()))


@recipe("the identity permutation moves nothing")
def _(d: Draw) -> Value:
    x = d.tensor()
    return d.f.transpose(x, permutation=tuple(range(x.shape.rank)))


@recipe("permutations compose")
def _(d: Draw) -> Value:
    x = d.tensor()
    first = d.f.transpose(x, permutation=d.permutation(x.shape.rank))
    return d.f.transpose(first, permutation=d.permutation(x.shape.rank))


@recipe("a broadcast to the same shape moves nothing")
def _(d: Draw) -> Value:
    x = d.tensor()
    return d.f.broadcast_in_dim(x, broadcast_dimensions=tuple(range(x.shape.rank)), result=x.shape)


@recipe("broadcasts compose")
def _(d: Draw) -> Value:
    return d.broadcast(d.broadcast(d.tensor()))


@recipe("inserting axes of size one keeps the elements' order")
def _(d: Draw) -> Value:
    x = d.tensor()
    rank = x.shape.rank
    dims = d.permutation(rank + 1)[:rank] if d.random.random() < 0.3 else tuple(sorted(d.permutation(rank + 1)[:rank]))
    sizes = [1] * (rank + 1)
    for place, size in zip(dims, x.shape.numbers(), strict=True):
        sizes[place] = size
    return d.f.broadcast_in_dim(x, broadcast_dimensions=dims, result=Shape.of(x.shape.dtype, sizes))


@recipe("reversing twice restores the order")
def _(d: Draw) -> Value:
    x = d.tensor(rank=3)
    first = d.permutation(3)[:2]
    second = first if d.random.random() < 0.5 else d.permutation(3)[:2]
    return d.f.reverse(d.f.reverse(x, dimensions=first), dimensions=second)


@recipe("axes of size one have one order")
def _(d: Draw) -> Value:
    x = d.tensor(rank=2)
    return d.f.reverse(x, dimensions=d.permutation(2)[: int(d.random.integers(0, 3))])


@recipe("a slice of the whole is the whole")
def _(d: Draw) -> Value:
    x = d.tensor()
    rank = x.shape.rank
    return d.f.slice(x, start_indices=(0,) * rank, limit_indices=x.shape.numbers(), strides=(1,) * rank)


@recipe("slices compose")
def _(d: Draw) -> Value:
    return d.sliced(d.sliced(d.tensor(rank=2)))


@recipe("padding by nothing adds nothing")
def _(d: Draw) -> Value:
    x = d.tensor()
    none = (0,) * x.shape.rank
    zero = d.f.constant(0, x.shape.dtype)
    return d.f.pad(x, zero, edge_padding_low=none, edge_padding_high=none, interior_padding=none)


@recipe("parts of size zero add nothing")
def _(d: Draw) -> Value:
    x = d.tensor(rank=2)
    empty = Shape.of(x.shape.dtype, (x.shape.sizes[0], 0))
    nothing = d.f.constant(np.zeros(empty.numbers(), x.shape.dtype.numpy), x.shape.dtype)
    parts = [x, nothing, x] if d.random.random() < 0.5 else [nothing, x]
    return d.f.concatenate(*parts, dimension=1)


@recipe("adjacent slices concatenate to one slice")
def _(d: Draw) -> Value:
    part = d.tensor(rank=2)
    x = d.f.concatenate(*[part] * 3, dimension=1)
    rows, columns = x.shape.numbers()
    cut = columns // 3
    first, second = (
        d.f.slice(x, start_indices=(0, a), limit_indices=(rows, b), strides=(1, 1))
        for a, b in ((0, cut), (cut, columns))
    )
    return d.f.concatenate(*((first, second) if d.random.random() < 0.5 else (x, first, second, x)), dimension=1)


@recipe("a conversion to the same type changes nothing")
def _(d: Draw) -> Value:
    x = d.tensor()
    return d.f.convert(x, result=x.shape)


@recipe("the wider type held every value")
def _(d: Draw) -> Value:
    x = d.tensor()
    middle = dtype(str(d.random.choice((*FLOATS, *INTS))))
    there = d.f.convert(x, result=x.shape.with_dtype(middle))
    return d.f.convert(there, result=x.shape)


@recipe("the tuple is known")
def _(d: Draw) -> Value:
    x = d.tensor()
    pair = d.f.tuple(x, d.f.constant(1, "i32"))
    return d.f.get_tuple_element(pair, index=0)


def _with_number(name: str, number: float, *kinds: str, swap: bool = False) -> Recipe:
    def build(d: Draw) -> Value:
        x = d.tensor(*kinds)
        operands = [x, d.filled(number, x)]
        if swap and d.random.random() < 0.5:
            operands.reverse()
        made: Value = d.f.op(f"stablehlo.{name}", *operands).result
        return made

    return build


recipe("x + 0 is x; for floats only -0.0 is neutral")(_with_number("add", 0, *INTS, swap=True))
recipe("x + 0 is x; for floats only -0.0 is neutral")(_with_number("add", 0.0, *FLOATS, swap=True))
recipe("x + 0 is x; for floats only -0.0 is neutral")(_with_number("add", -0.0, *FLOATS, swap=True))
recipe("x + 0.0 is x except for -0.0")(_with_number("add", 0.0, *FLOATS))
recipe("x - 0 is x, for -0.0 too")(_with_number("subtract", 0, *INTS, *FLOATS))
recipe("x - 0 is x, for -0.0 too")(_with_number("subtract", -0.0, *FLOATS))
recipe("x * 1 is x")(_with_number("multiply", 1, *INTS, *FLOATS, swap=True))
recipe("integers have no nan and no -0.0")(_with_number("multiply", 0, *INTS, *FLOATS, "i1", swap=True))
recipe("x / 1 is x")(_with_number("divide", 1, *INTS, *FLOATS))
for _power in (2.0, 0.25, -8.0, 3.0):
    recipe("the reciprocal of a power of two is exact")(_with_number("divide", _power, *FLOATS))
recipe("all ones are neutral")(_with_number("and", -1, "i8", "i32", "i64", swap=True))
recipe("all ones are neutral")(_with_number("and", 1, "i1", "i8", swap=True))
recipe("zeros are neutral")(_with_number("or", 0, *INTS, "i1", swap=True))
recipe("zeros are neutral")(_with_number("xor", 0, *INTS, "i1", swap=True))
recipe("zeros absorb")(_with_number("and", 0, *INTS, "i1", swap=True))
for _name in ("add", "multiply", "maximum", "minimum"):
    recipe("the op commutes: constants go right")(_with_number(_name, 3, *INTS[1:5], *FLOATS, swap=True))
for _name in ("and", "or", "xor"):
    recipe("the op commutes: constants go right")(_with_number(_name, 1, *INTS, "i1", swap=True))


@recipe("idempotent")
def _(d: Draw) -> Value:
    x = d.tensor("f32", "i32", "i1", "bf16")
    names = ["maximum", "minimum"] + (["and", "or"] if x.shape.dtype.kind in ("int", "bool") else [])
    made: Value = d.f.op(f"stablehlo.{d.random.choice(names)}", x, x).result
    return made


@recipe("integers have no nan")
def _(d: Draw) -> Value:
    x = d.tensor(*INTS, *FLOATS)
    return d.f.subtract(x, x)


@recipe("a sign flipped twice")
def _(d: Draw) -> Value:
    x = d.tensor(*FLOATS, *INTS)
    return d.f.negate(d.f.negate(x))


@recipe("bits flipped twice")
def _(d: Draw) -> Value:
    x = d.tensor(*INTS, "i1")
    return d.f.not_(d.f.not_(x))


@recipe("abs drops the sign")
def _(d: Draw) -> Value:
    x = d.tensor(*FLOATS, "i8", "i32", "i64")
    return d.f.abs(d.f.negate(x))


@recipe("abs is idempotent")
def _(d: Draw) -> Value:
    x = d.tensor(*FLOATS, "i8", "i32", "i64")
    return d.f.abs(d.f.abs(x))


@recipe("the choice is known")
def _(d: Draw) -> Value:
    shape = d.shape()
    x, y = d.start(shape, shape)
    predicate = d.f.constant(bool(d.random.random() < 0.5), "i1")
    if d.random.random() < 0.5:
        predicate = d.f.broadcast_in_dim(predicate, broadcast_dimensions=(), result=shape.with_dtype(dtype("i1")))
    return d.f.select(predicate, x, y)


@recipe("both choices are the same")
def _(d: Draw) -> Value:
    shape = d.shape()
    p, x = d.start(shape.with_dtype(dtype("i1")), shape)
    return d.f.select(p, x, x)


@recipe("an integer equals itself")
def _(d: Draw) -> Value:
    x = d.tensor(*INTS, *FLOATS)
    direction = str(d.random.choice(["EQ", "NE", "GE", "GT", "LE", "LT"]))
    return d.f.compare(x, x, comparison_direction=direction)


@recipe("the part was just put in")
def _(d: Draw) -> Value:
    shape = d.shape("f32", "f64")
    re, im = d.start(shape, shape)
    number = d.f.complex(re, im)
    return d.f.real(number) if d.random.random() < 0.5 else d.f.imag(number)


@recipe("the branch is known")
def _(d: Draw) -> Value:
    x = d.tensor("f32")
    regions = []
    for _ in range(2):
        with d.f.region() as r:
            r.result(r.add(x, r.full(float(d.random.integers(1, 9)), x.shape)))
        regions.append(r.body)
    if d.random.random() < 0.5:
        return d.f.if_(d.f.constant(bool(d.random.random() < 0.5), "i1"), regions=regions)
    return d.f.case(d.f.constant(int(d.random.integers(-1, 4)), "i32"), regions=regions)


# ---- canonicalise ----


@recipe("legacy form of broadcast_in_dim")
def _(d: Draw) -> Value:
    sizes = tuple(int(n) for n in d.random.integers(0, 4, 2))
    x = d.tensor()
    return d.f.broadcast(x, broadcast_sizes=sizes)


@recipe("legacy form of dot_general")
def _(d: Draw) -> Value:
    n, m, k = (int(size) for size in d.random.integers(0, 5, 3))
    left = Shape("f32", k) if d.random.random() < 0.3 else Shape("f32", n, k)
    right = Shape("f32", k) if d.random.random() < 0.3 else Shape("f32", k, m)
    x, y = d.start(left, right)
    result = Shape.of(left.dtype, [*left.sizes[:-1], *right.sizes[1:]])
    return d.f.dot(x, y, result=result)


@recipe("legacy form of after_all")
def _(d: Draw) -> Value:
    d.start()
    return d.f.create_token()


@recipe("the size is a number")
def _(d: Draw) -> Value:
    x = d.tensor(rank=2)
    return d.f.get_dimension_size(x, dimension=int(d.random.integers(0, 2)))


_BROADCAST_KINDS = {
    "and": INTS,
    "or": INTS,
    "xor": INTS,
    "shift_left": INTS,
    "shift_right_arithmetic": INTS,
    "shift_right_logical": INTS,
    "complex": ("f32", "f64"),
    "atan2": FLOATS,
    "next_after": FLOATS,
    "polygamma": ("f32", "f64"),
    "zeta": ("f32", "f64"),
}


@recipe("an implicit broadcast, spelled out")
def _(d: Draw) -> Value:
    name = d.op.removeprefix("chlo.broadcast_")
    full = d.shape(*_BROADCAST_KINDS.get(name, ("f32", "i32")), rank=2)
    sizes = [1 if d.random.random() < 0.5 else size for size in full.sizes]
    x, y = d.start(full, Shape.of(full.dtype, sizes[int(d.random.integers(0, 2)) :]))
    if name == "compare":
        return d.f.op(d.op, x, y, comparison_direction="LT").result
    if name == "select":
        return d.f.op(d.op, d.f.compare(x, x, comparison_direction="EQ"), x, y).result
    return d.f.op(d.op, x, y).result


def _sizes(d: Draw, sizes: tuple[int, ...]) -> Value:
    return d.f.constant(np.array(sizes, np.int64))


@recipe("the sizes are known")
def _(d: Draw) -> Value:
    x = d.tensor()
    match int(d.random.integers(0, 4)):
        case 0:
            count = int(np.prod(x.shape.numbers(), dtype=np.int64))
            return d.f.dynamic_reshape(x, _sizes(d, (1, count)), result=Shape.of(x.shape.dtype, (1, count)))
        case 1:
            sizes = (2, *x.shape.numbers())
            dims = tuple(range(1, x.shape.rank + 1))
            result = Shape.of(x.shape.dtype, sizes)
            return d.f.dynamic_broadcast_in_dim(x, _sizes(d, sizes), broadcast_dimensions=dims, result=result)
        case 2:
            return d.f.dynamic_iota(_sizes(d, (3, 2)), iota_dimension=1, result=Shape("i32", 3, 2))
        case _:
            count = int(np.prod(x.shape.numbers(), dtype=np.int64))
            return d.f.op(
                "chlo.dynamic_reshape", x, _sizes(d, (count, 1)), result=Shape.of(x.shape.dtype, (count, 1))
            ).result


@recipe("the padding is known")
def _(d: Draw) -> Value:
    if d.random.random() < 0.5:
        lhs, rhs = d.start(Shape("f32", 1, 4, 2), Shape("f32", 3, 2, 3))
        dims = ConvDims(0, 2, (1,), 1, 2, (0,), 0, 2, (1,))
        padding = d.f.constant(np.array([[1, 1]], np.int64))
        return d.f.dynamic_conv(
            lhs,
            rhs,
            padding,
            dimension_numbers=dims,
            feature_group_count=1,
            batch_group_count=1,
            result=Shape("f32", 1, 4, 3),
        )
    x = d.tensor("f32", "i32", rank=2)
    low, high, interior = ([int(n) for n in d.random.integers(0, 3, 2)] for _ in range(3))
    sizes = [
        lo + hi + size + max(size - 1, 0) * inner
        for lo, hi, inner, size in zip(low, high, interior, x.shape.numbers(), strict=True)
    ]
    return d.f.dynamic_pad(
        x,
        d.f.constant(7, x.shape.dtype),
        *(_sizes(d, tuple(numbers)) for numbers in (low, high, interior)),
        result=Shape.of(x.shape.dtype, sizes),
    )


@recipe("the bounds are known")
def _(d: Draw) -> Value:
    x = d.tensor(rank=1)
    size = x.shape.numbers()[0]
    low, high = sorted(int(n) for n in d.random.integers(0, size + 1, 2))
    result = Shape.of(x.shape.dtype, (-(-(high - low) // 2),))
    return d.f.real_dynamic_slice(x, _sizes(d, (low,)), _sizes(d, (high,)), _sizes(d, (2,)), result=result)


@recipe("the slice sizes are known")
def _(d: Draw) -> Value:
    x, at = d.start(Shape("f32", 5, 3), Shape("i32", 2, 1))
    dims = GatherDims(offset_dims=(1, 2), start_index_map=(0,), index_vector_dim=1)
    return d.f.dynamic_gather(
        x, at, _sizes(d, (2, 3)), dimension_numbers=dims, indices_are_sorted=False, result=Shape("f32", 2, 2, 3)
    )
