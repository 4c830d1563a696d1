"""Rules that pull one element: elementwise ops, and data movement (broadcast, slice, pad …) as index arithmetic.

Registered in `nest.PULLS`; `plan.materialise` decides which values are inlined and which are materialised.
"""

from __future__ import annotations

from smelt.dim import Size, at_most
from smelt.dtype import DTYPES, DType, f32, f64, i1, i64, ui64
from smelt.ir.core import Op
from smelt.ir.ops import OPS
from smelt.kernel.build.quantise import round_to_integer
from smelt.kernel.loops.grammar import Amount, Bitcast, Expr, Number, Quotient, Remainder, add, scale
from smelt.kernel.loops.nest import PULLS, Index, Nest, flat, pull, reshape_index, tensor


@pull("stablehlo.constant", "chlo.constant")
def constant(nest: Nest, op: Op, _: int, __: Index) -> Expr:
    array = op.attrs["value"].array  # a splat: others are materialised
    return Number(array.reshape(-1)[0].item(), tensor(op.result).element)


@pull("stablehlo.iota")
def iota(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return nest.convert(index[op.attrs["iota_dimension"]], tensor(op.result).element)


@pull("stablehlo.get_dimension_size")
def get_dimension_size(nest: Nest, op: Op, _: int, __: Index) -> Expr:
    return nest.convert(Amount(tensor(op.operands[0]).sizes[op.attrs["dimension"]]), tensor(op.result).element)


@pull("stablehlo.broadcast_in_dim")
def broadcast_in_dim(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    sizes = tensor(op.operands[0]).sizes
    places = zip(op.attrs["broadcast_dimensions"], sizes, strict=True)
    return nest.pull(op.operands[0], tuple(Number(0) if size == 1 else index[d] for d, size in places))


@pull("stablehlo.dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    """A size that is 1 at run time is broadcast."""
    sizes = tensor(op.operands[0]).sizes
    full = tensor(op.result).sizes
    places: list[Expr] = []
    for d, size in zip(op.attrs["broadcast_dimensions"], sizes, strict=True):
        if size == 1:
            places.append(Number(0))
        elif size == full[d]:
            places.append(index[d])
        else:
            stretched = nest.apply("EQ", Amount(size), Number(1), dtype=i1)
            places.append(nest.apply("select", stretched, Number(0), index[d], dtype=i64))
    return nest.pull(op.operands[0], tuple(places))


@pull("stablehlo.transpose")
def transpose(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    moved: list[Expr] = [Number(0)] * len(index)
    for at, source in zip(index, op.attrs["permutation"], strict=True):
        moved[source] = at
    return nest.pull(op.operands[0], tuple(moved))


RESHAPES = ("stablehlo.reshape", "stablehlo.dynamic_reshape")


@pull(*RESHAPES)
def reshape(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    operand, sizes = op.operands[0], tensor(op.result).sizes
    base = operand
    while base not in nest.stored and base.op is not None and base.op.name in RESHAPES:
        base = base.op.operands[0]
    if base in nest.stored:
        view = nest.views.get(base)
        if view is None:
            return nest.load(base, flat(index, sizes))  # the offset is the same
        turned = view.reshape(tensor(base).sizes, sizes)
        if turned is not None:
            return nest.load(base, turned.at(index))
    return nest.pull(operand, reshape_index(nest, index, sizes, tensor(operand).sizes))


@pull("stablehlo.slice")
def slice_(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    parts = zip(index, op.attrs["start_indices"], op.attrs["strides"], strict=True)
    return nest.pull(op.operands[0], tuple(add(scale(at, stride), start) for at, start, stride in parts))


@pull("stablehlo.reverse")
def reverse(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    sizes = tensor(op.result).sizes
    turned = (add(scale(at, -1), sizes[d] - 1) if d in op.attrs["dimensions"] else at for d, at in enumerate(index))
    return nest.pull(op.operands[0], tuple(turned))


@pull("stablehlo.pad")
def pad(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    low, interior = op.attrs["edge_padding_low"], op.attrs["interior_padding"]
    return pad_element(nest, op, index, [Number(each) for each in low], [1 + each for each in interior])


def write_border(nest: Nest, op: Op, target: int) -> None:
    """Write only the padding of a `pad`: two slabs along each axis, inside the operand along earlier axes."""
    low, sizes, full = op.attrs["edge_padding_low"], tensor(op.operands[0]).sizes, tensor(op.result).sizes
    for axis, high in enumerate(op.attrs["edge_padding_high"]):
        for start, count in ((0, low[axis]), (low[axis] + sizes[axis], high)):
            if count == 0:
                continue
            first: tuple[Size, ...] = (*low[:axis], start, *(0 for _ in full[axis + 1 :]))
            with nest.loops((*sizes[:axis], count, *full[axis + 1 :])) as index:
                place = tuple(add(at, begin) for at, begin in zip(index, first, strict=True))
                nest.store(target, nest.offset(op.result, place), nest.pull(op.operands[1], ()))


def pad_element(nest: Nest, op: Op, index: Index, low: list[Expr], steps: list[Size] | list[Expr]) -> Expr:
    """The operand's element where the index hits one, else the padding value."""
    operand, filler = op.operands[:2]
    conditions: list[Expr] = []
    places: list[Expr] = []
    for at, start, step, size, full in zip(
        index, low, steps, tensor(operand).sizes, tensor(op.result).sizes, strict=True
    ):
        inner = add(at, scale(start, -1))
        before = start.value if isinstance(start, Number) and isinstance(start.value, int) else None
        if before is None or before > 0:
            conditions.append(nest.apply("GE", nest.let(inner), Number(0), dtype=i1))
        if step != 1:
            inner, rest = _divide(nest, nest.let(inner), step)
            conditions.append(nest.apply("EQ", rest, Number(0), dtype=i1))
        if not (step == 1 and before is not None and at_most(full - size, before)):
            conditions.append(nest.less(nest.let(inner), Amount(size)))
        places.append(inner)
    if not conditions:
        return nest.pull(operand, tuple(places))
    element = tensor(op.result).element
    return nest.choose(
        nest.both(*conditions), lambda: nest.pull(operand, tuple(places)), lambda: nest.pull(filler, ()), element
    )


def _divide(nest: Nest, x: Expr, step: Size | Expr) -> tuple[Expr, Expr]:
    """Quotient and remainder by a size, or by a run-time number."""
    if isinstance(step, Size):
        return nest.let(Quotient(x, step)), nest.let(Remainder(x, step))
    return nest.apply("divide", x, step), nest.apply("remainder", x, step)


@pull("stablehlo.concatenate")
def concatenate(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return _select_operand(nest, op, index, 0, 0)


def _select_operand(nest: Nest, op: Op, index: Index, which: int, start: Size) -> Expr:
    """The element of operand `which` or a later one; that operand begins at `start`."""
    d = op.attrs["dimension"]
    place = (*index[:d], add(index[d], scale(Amount(start), -1)), *index[d + 1 :])
    operand = op.operands[which]
    if which == len(op.operands) - 1:
        return nest.pull(operand, place)
    end = start + tensor(operand).sizes[d]
    return nest.choose(
        nest.less(nest.let(index[d]), Amount(end)),
        lambda: nest.pull(operand, place),
        lambda: _select_operand(nest, op, index, which + 1, end),
        tensor(op.result).element,
    )


@pull("stablehlo.select")
def select(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    predicate = nest.pull(op.operands[0], index if tensor(op.operands[0]).rank else ())
    x, y = (nest.pull(operand, index) for operand in op.operands[1:])
    return nest.apply("select", predicate, x, y, dtype=x.dtype)


@pull("stablehlo.clamp")
def clamp(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    low, x, high = (nest.pull(operand, index if tensor(operand).rank else ()) for operand in op.operands)
    return nest.apply("clamp", low, x, high, dtype=x.dtype)


@pull("stablehlo.compare")
def compare(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    x, y = (nest.pull(operand, index) for operand in op.operands)
    kind = "_TOTALORDER" if op.attrs.get("compare_type") == "TOTALORDER" else ""
    return nest.apply(op.attrs["comparison_direction"] + kind, x, y, dtype=i1)


@pull("stablehlo.convert")
def convert(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    operand, to = op.operands[0], tensor(op.result).element
    if operand.op is not None and operand.op.name == "smelt.round_to_byte" and operand not in nest.stored:
        nest.covered[operand.op] = None
        return nest.convert(round_to_integer(nest, operand.op, index), to)  # skips the narrow type
    return nest.convert(nest.pull(operand, index), to)


@pull("stablehlo.reduce_precision")
def reduce_precision(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    bits = op.attrs["exponent_bits"], op.attrs["mantissa_bits"]
    return nest.apply("reduce_precision", nest.pull(op.operands[0], index), detail=bits)


@pull("stablehlo.bitcast_convert")
def bitcast_convert(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    source, target = tensor(op.operands[0]).element, tensor(op.result).element
    if source.bits == target.bits:
        return nest.let(Bitcast(nest.pull(op.operands[0], index), target))
    return _bitcast_width(nest, op, index)


def _bitcast_width(nest: Nest, op: Op, index: Index) -> Expr:
    """A wide element from several narrow ones, or part of a wide one; little-endian."""
    operand = op.operands[0]
    source, target = tensor(operand).element, tensor(op.result).element
    if source.bits < target.bits:
        count = target.bits // source.bits
        return _concatenate_bits(nest, [nest.pull(operand, (*index, Number(k))) for k in range(count)], target)
    wide, place = nest.pull(operand, index[:-1]), index[-1]
    if source.bits == 128:
        half, place = nest.let(Quotient(place, 64 // target.bits)), nest.let(Remainder(place, 64 // target.bits))
        first = nest.apply("EQ", half, Number(0), dtype=i1)
        parts = (nest.apply(part, wide, dtype=source.part) for part in ("real", "imag"))
        wide = nest.apply("select", first, *parts, dtype=source.part)
    distance = nest.convert(nest.let(scale(place, target.bits)), ui64)
    return _from_bits(nest, nest.apply("shift_right_logical", _bits(nest, wide), distance), target)


def _concatenate_bits(nest: Nest, parts: list[Expr], target: DType) -> Expr:
    if target.bits == 128:
        half = len(parts) // 2
        both = (_concatenate_bits(nest, each, target.part) for each in (parts[:half], parts[half:]))
        return nest.apply("complex", *both, dtype=target)
    word: Expr = Number(0, ui64)
    for k, part in enumerate(parts):
        moved = nest.apply("shift_left", _bits(nest, part), Number(k * part.dtype.bits, ui64))
        word = nest.apply("or", word, moved)
    return _from_bits(nest, word, target)


WORDS = {bits: DTYPES[f"ui{bits}"] for bits in (2, 4, 8, 16, 32, 64)}


def _bits(nest: Nest, x: Expr) -> Expr:
    """The bits of an element in the low end of a word."""
    word = x if x.dtype == i1 else nest.let(Bitcast(x, WORDS[x.dtype.bits]))
    return nest.convert(word, ui64)


def _from_bits(nest: Nest, word: Expr, dtype: DType) -> Expr:
    """The element whose bits are in the low end of a word."""
    if dtype.bits == 64:
        return nest.let(Bitcast(word, dtype))
    low = nest.apply("and", word, Number((1 << dtype.bits) - 1, ui64))
    if dtype == i1:
        return nest.apply("NE", low, Number(0, ui64), dtype=i1)
    return nest.let(Bitcast(nest.convert(low, WORDS[dtype.bits]), dtype))


@pull("stablehlo.power")
def power(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    """Squares and cubes are multiplications: correctly rounded and much faster."""
    base, exponent = (nest.pull(operand, index) for operand in op.operands)
    known = exponent.value if isinstance(exponent, Number) and base.dtype in (f32, f64) else None
    if known not in (2, 3):
        return nest.apply("power", base, exponent, dtype=base.dtype)
    square = nest.apply("multiply", base, base, dtype=base.dtype)
    return square if known == 2 else nest.apply("multiply", square, base, dtype=base.dtype)


@pull("stablehlo.map")
def map_(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return nest.inline(op.regions[0], [nest.pull(operand, index) for operand in op.operands])[0]


@pull("stablehlo.optimization_barrier")
def optimization_barrier(nest: Nest, op: Op, result: int, index: Index) -> Expr:
    return nest.pull(op.operands[result], index)


def elementwise(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    args = (nest.pull(operand, index) for operand in op.operands)
    return nest.apply(op.name.partition(".")[2], *args, dtype=tensor(op.result).element)


for _name, _definition in OPS.items():
    if _definition.elementwise and not _name.startswith("chlo.broadcast_"):
        PULLS.setdefault(_name, elementwise)
