"""Quantised products become products of bytes: `smelt.qdot` as `smelt.packed_qdot` or `smelt.packed_qconv`.

The kernels multiply ui8 by i8. What is of the other sign is moved by 128, and zero points are put right afterwards with
the sums of columns (which `split_prepare` moves out of the run, for weights) and of rows. Scales, bias and rounding
follow as plain ops, which fuse into the product's kernel. Called by `pipeline` for engines that multiply panels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from smelt.dim import Size, product
from smelt.dtype import DType, f32, i8, i32, ui8
from smelt.ir.build import Builder
from smelt.ir.composites import decode
from smelt.ir.core import Value
from smelt.ir.layouts import Word, letters, parse, sizes_of
from smelt.ir.ops.packed_words import QUAD
from smelt.ir.rewrite import Match, Rule, op
from smelt.passes.channels_last import channels_last_dims
from smelt.passes.crop import crop
from smelt.passes.round_bytes import rounded
from smelt.shape import Shape

QUANTISING = frozenset({"smelt.qdot", "smelt.quantize", "smelt.dequantize"})
HALF = 128  # between a byte with a sign and one without
PLACES = "xyzuvw"
EXACT = 1 << 24  # whole numbers that f32 holds
_KNOWN = frozenset({"lhs", "rhs", "lhs_zero", "rhs_zero", "scale", "bias", "bias_scale", "result_scale", "result_zero"})
_TYPES = (i8, ui8, i32, f32)
_MOVES = frozenset(f"stablehlo.{name}" for name in ("reshape", "transpose", "broadcast_in_dim", "convert"))


def qdot_rules(width: int) -> list[Rule]:
    """The rule that multiplies bytes in panels of `width` columns."""

    def lowered(m: Match) -> Value | None:
        return _lowered(m, width)

    return [Rule(op("stablehlo.composite"), lowered, "quantised products are products of bytes")]


def _converted_before(m: Match) -> Value:
    inner = m.ops["inner"]
    source = _converted(m.build, m["x"], m.shape.element)
    return m.build.op(inner.name, source, result=m.shape, **inner.attrs).result


# Scales and zero points are converted where they are still small, so that nobody keeps them spread out.
SPREADING = [
    Rule(op("convert", op("broadcast_in_dim", "x", name="inner")), _converted_before, "every copy is converted alike")
]


def _lowered(m: Match, width: int) -> Value | None:
    if m.op.attrs["name"] != "smelt.qdot":
        return None
    said = decode(m.op)
    roles = said["operands"].split()
    parsed = parse(said["layout"])
    operands = [m.operand(i) for i in range(len(m.op.operands))]
    if parsed is None or roles[:2] != ["lhs", "rhs"] or not set(roles) <= _KNOWN:
        return None
    if any(value.shape.dtype not in (i8, ui8) for value in operands[:2]):
        return None
    if m.shape.dtype not in (i8, ui8, i32, f32) or any(value.shape.dtype not in _TYPES for value in operands[2:]):
        return None
    words, last = parsed
    windowed = "strides" in said
    if windowed:
        places = PLACES[: len(said["strides"])]
        pairs = zip((*words[:2], last), ("bf", "oi", "bo"), strict=True)
        first, second, last = (_lettered(word, own + places) for word, own in pairs)
        words = (first, second, *words[2:])
    given = [_Given(role, value, word) for role, value, word in zip(roles, operands, words, strict=True)]
    shown = [(last, m.shape.sizes)]
    if windowed:  # the letters of places have other sizes in images and windows
        if any(len(axis) > 1 for word in (*words, last) for axis in word):
            return None
        sizes = sizes_of(shown)
    else:
        sizes = sizes_of([*((each.word, each.value.shape.sizes) for each in given), *shown])
    if sizes is None:
        return None
    space = _Space(m, letters(last), sizes)
    parameters = given[2:]
    if any(letter not in space.letters for each in parameters for letter in letters(each.word)):
        return None
    zeros = {each.role: space.given(each) for each in parameters if each.role.endswith("hs_zero")}
    total = (
        _window_total(space, given[:2], zeros, said, width) if windowed else _dot_total(space, given[:2], zeros, width)
    )
    if total is None:
        return None
    found = _finished(space, total, parameters, m.shape.dtype)
    return None if found is None else _reshaped(m.build, found, m.shape.sizes)


def _lettered(word: Word, names: str) -> Word:
    """A word of a window with letters for its axes of size one, too: any that are left, whose order is idle."""
    left = iter(each for each in names if each not in word)
    return tuple(axis or next(left) for axis in word)


# ---- values by their letters ----


@dataclass(frozen=True, slots=True)
class _Given:
    role: str
    value: Value
    word: Word


@dataclass(frozen=True, slots=True)
class _Part:
    """A value with one axis for each of its letters."""

    value: Value
    letters: str


@dataclass(frozen=True, slots=True)
class _Space:
    """The axes of a result, one for each letter."""

    m: Match
    letters: str
    sizes: Mapping[str, Size]

    @property
    def b(self) -> Builder:
        return self.m.build

    def shape(self, names: str, dtype: Any) -> Shape:
        return Shape.of(dtype, tuple(self.sizes[each] for each in names))

    def given(self, each: _Given) -> _Part:
        names = letters(each.word)
        return _Part(_reshaped(self.b, each.value, self.shape(names, each.value.shape.dtype).sizes), names)

    def ordered(self, part: _Part, names: str) -> Value:
        """A part with its letters in this order."""
        return _transposed(self.b, part.value, tuple(part.letters.index(each) for each in names))

    def spread(self, part: _Part, names: str) -> Value:
        """A part repeated along the letters that it lacks."""
        own = "".join(each for each in names if each in part.letters)
        value = self.ordered(part, own)
        if own == names:
            return value
        dims = tuple(names.index(each) for each in own)
        return self.b.broadcast_in_dim(value, broadcast_dimensions=dims, result=self.shape(names, value.shape.dtype))

    def joined(self, function: str, a: _Part, b: _Part) -> _Part:
        """Two parts by an elementwise op, over no more letters than they have."""
        names = "".join(each for each in self.letters if each in a.letters or each in b.letters)
        made = self.b.op(f"stablehlo.{function}", self.spread(a, names), self.spread(b, names)).result
        return _Part(made, names)

    def converted(self, part: _Part, dtype: DType) -> _Part:
        return _Part(_converted(self.b, part.value, dtype), part.letters)

    def moved(self, part: _Part, amount: int) -> _Part:
        """A part of i32 plus a number."""
        if not amount:
            return part
        return _Part(self.b.add(part.value, self.b.full(amount, part.value.shape)), part.letters)


# ---- zero points ----


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand in the type that the kernel wants, and its zero point there; None: 0 for sure."""

    value: Value
    zero: _Part | None


def _side(space: _Space, value: Value, zero: _Part | None, wanted: DType) -> _Side:
    """ui8 from i8 is 128 more, i8 from ui8 is 128 less; so is the zero point."""
    b = space.b
    known = 0 if zero is None else _constant(space.m, zero.value)
    shift = 0 if value.shape.dtype == wanted else (HALF if wanted == ui8 else -HALF)
    if shift:
        value = _flipped(b, value, wanted)
    if known is not None:
        point = known + shift
        return _Side(value, None if point == 0 else _Part(b.constant(point, i32), ""))
    assert zero is not None
    return _Side(value, space.moved(space.converted(zero, i32), shift))


def _flipped(b: Builder, value: Value, wanted: DType) -> Value:
    """A byte whose range begins at the other place: its highest bit is the other one."""
    bits = b.bitcast_convert(value, result=value.shape.with_dtype(wanted))
    return b.op("stablehlo.xor", bits, b.full(HALF if wanted == ui8 else -HALF, bits.shape)).result


def _constant(m: Match, value: Value) -> int | None:
    """The number that all elements of a value are, if it is known."""
    maker = m.edit.maker(value)
    while maker is not None and maker.name in _MOVES:
        maker = m.edit.maker(maker.operands[0])
    if maker is None or maker.name != "stablehlo.constant":
        return None
    array = np.asarray(maker.attrs["value"].array)
    first = array.reshape(-1)[:1]
    return int(first[0]) if first.size and (array == first[0]).all() else None


def _corrected(
    space: _Space,
    total: _Part,
    left: _Side,
    right: _Side,
    columns: Callable[[], _Part],
    rows: Callable[[], _Part],
) -> _Part:
    """sum (a - p)(b - q) = sum a b - p sum b - q sum (a - p); `columns` gives sum b and `rows` sum (a - p)."""
    if left.zero is not None:
        total = space.joined("subtract", total, space.joined("multiply", left.zero, columns()))
    if right.zero is not None:
        total = space.joined("subtract", total, space.joined("multiply", right.zero, rows()))
    return total


# ---- matrix products ----


def _dot_total(space: _Space, given: Sequence[_Given], zeros: Mapping[str, _Part], width: int) -> _Part | None:
    """The sums of products, i32."""
    b = space.b
    first, second = (space.given(each) for each in given)
    summed = "".join(each for each in first.letters if each not in space.letters)
    batch = "".join(each for each in space.letters if each in first.letters and each in second.letters)
    rows = "".join(each for each in first.letters if each not in batch + summed)
    columns = "".join(each for each in second.letters if each not in batch + summed)
    if set(summed) - set(second.letters) or set(batch + rows + columns) != set(space.letters):
        return None
    if zeros.get("lhs_zero") is not None and set(zeros["lhs_zero"].letters) & set(columns):
        return None
    left = _side(space, first.value, zeros.get("lhs_zero"), ui8)
    right = _side(space, second.value, zeros.get("rhs_zero"), i8)
    first, second = _Part(left.value, first.letters), _Part(right.value, second.letters)
    groups, height, depth, wide = (
        product(space.sizes[each] for each in names) for names in (batch, rows, summed, columns)
    )
    matrix = _reshaped(b, space.ordered(second, batch + summed + columns), (groups, depth, wide))
    panels = b.op("smelt.pack_quads", matrix, width=width).result
    lines = _reshaped(b, space.ordered(first, batch + rows + summed), (groups, height, depth))
    made = b.op("smelt.packed_qdot", lines, panels, result=Shape.of(i32, (groups, height, wide))).result
    names = batch + rows + columns
    total = _Part(_reshaped(b, made, space.shape(names, i32).sizes), names)

    def column_sums() -> _Part:
        sums = _sum(b, _converted(b, matrix, i32), (1,))
        return _Part(_reshaped(b, sums, space.shape(batch + columns, i32).sizes), batch + columns)

    def row_sums() -> _Part:
        whole = _Part(_converted(b, space.ordered(first, batch + rows + summed), i32), batch + rows + summed)
        if left.zero is not None:
            whole = _Part(b.subtract(whole.value, space.spread(left.zero, whole.letters)), whole.letters)
        axes = range(len(batch + rows), len(whole.letters))
        return _Part(_sum(b, whole.value, tuple(axes)), batch + rows)

    return _corrected(space, total, left, right, column_sums, row_sums)


def _sum(b: Builder, value: Value, axes: Sequence[int]) -> Value:
    scalar = Shape(value.shape.dtype)
    with b.region(scalar, scalar) as r:
        r.result(r.add(*r.args))
    return b.reduce(value, b.constant(0, value.shape.dtype), dimensions=tuple(axes), regions=[r.body])


# ---- convolutions ----


@dataclass(frozen=True, slots=True)
class _Window:
    """A convolution of images [b, places, f] by a kernel [places, i, o], as the attributes of `smelt.qdot` say."""

    images: Value
    kernel: Value
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    holes: tuple[int, ...]  # of images, and
    dilations: tuple[int, ...]  # of windows
    groups: int

    @property
    def window(self) -> tuple[int, ...]:
        return self.kernel.shape.sizes[:-2]  # type: ignore[return-value]

    @property
    def depth(self) -> int:
        return self.kernel.shape.sizes[-2]  # type: ignore[return-value]

    @property
    def is_padded(self) -> bool:
        return any(any(pair) for pair in self.padding) or set(self.holes) != {1}


def _window_total(
    space: _Space, given: Sequence[_Given], zeros: Mapping[str, _Part], said: Mapping[str, Any], width: int
) -> _Part | None:
    """The sums over windows, i32: as products of bytes, or of floats where these hold every sum."""
    lhs, rhs = given
    places = sorted((each for each in rhs.word if each not in ("i", "o")), key=PLACES.index)
    zero = zeros.get("lhs_zero")
    if said["batch_groups"] != 1 or (zero is not None and zero.letters):
        return None
    b, pairs = space.b, said["padding"]
    window = _Window(
        _transposed(b, lhs.value, tuple(lhs.word.index(each) for each in ("b", *places, "f"))),
        _transposed(b, rhs.value, tuple(rhs.word.index(each) for each in (*places, "i", "o"))),
        said["strides"],
        tuple(zip(pairs[::2], pairs[1::2], strict=True)),
        said["lhs_dilation"],
        said["rhs_dilation"],
        said["groups"],
    )
    if not places or not all(isinstance(size, int) and size > 0 for size in window.kernel.shape.sizes):
        return None
    channels = (*window.images.shape.sizes[:-1], window.depth * window.groups)  # those of the kernel are numbers
    window = replace(window, images=_reshaped(b, window.images, channels))
    names = "".join(("b", *places, "o"))
    right = _side(space, window.kernel, zeros.get("rhs_zero"), i8)
    if window.groups > 1 and (window.depth % QUAD or right.zero is not None):
        return _float_total(space, window, zeros, names)
    left = _side(space, window.images, zero, ui8)
    kernel, features, last = right.value, window.kernel.shape.numbers()[-1], window.images.shape.rank - 1
    if right.zero is not None:  # one more feature gives the sums of what is under each window
        ones = b.full(1, Shape.of(i8, (*kernel.shape.sizes[:-1], 1)))
        kernel = b.concatenate(kernel, ones, dimension=kernel.shape.rank - 1)
    sizes = (*space.shape(names[:-1], i32).sizes, kernel.shape.sizes[-1])
    made = _convolved(b, replace(window, images=left.value, kernel=kernel), left.zero, sizes, width)
    shown = _Part(made if right.zero is None else crop(b, made, {last: (0, features)}), names)
    total = _Part(space.ordered(shown, space.letters), space.letters)
    axes = tuple(range(kernel.shape.rank - 1))

    def row_sums() -> _Part:
        sums = _reshaped(b, crop(b, made, {last: (features, features + 1)}), sizes[:-1])
        whole = _Part(sums, names[:-1])
        if left.zero is None:
            return whole
        count = _Part(b.constant(prod(window.window) * window.depth, i32), "")
        return space.joined("subtract", whole, space.joined("multiply", left.zero, count))

    return _corrected(
        space, total, left, right, lambda: _Part(_sum(b, _converted(b, right.value, i32), axes), "o"), row_sums
    )


def _convolved(b: Builder, window: _Window, zero: _Part | None, sizes: Sequence[Size], width: int) -> Value:
    """Bytes; what is padded is the real number 0, which the zero point stands for."""
    images, kernel, groups = window.images, window.kernel, window.groups
    more = -window.depth % QUAD if groups == 1 else 0
    if window.is_padded or more:
        point = b.constant(0, ui8) if zero is None else _converted(b, zero.value, ui8)
        low, high = ((0, *(pair[i] for pair in window.padding), more * i) for i in (0, 1))
        images = b.pad(
            images,
            point,
            edge_padding_low=low,
            edge_padding_high=high,
            interior_padding=(0, *(step - 1 for step in window.holes), 0),
        )
    if more:
        rank = kernel.shape.rank
        none = (0,) * rank
        deep = (*none[:-2], more, 0)
        kernel = b.pad(kernel, b.constant(0, i8), edge_padding_low=none, edge_padding_high=deep, interior_padding=none)
    *taps, depth, features = kernel.shape.sizes
    share = features // groups
    matrix = _transposed(b, _reshaped(b, kernel, (product(taps) * depth, groups, share)), (1, 0, 2))
    panels = b.op("smelt.pack_quads", matrix, width=width).result
    if groups == 1 and set(taps) == set(window.strides) == {1}:
        pixels = product(sizes[:-1])
        lines = _reshaped(b, images, (1, pixels, depth))
        made = b.op("smelt.packed_qdot", lines, panels, result=Shape.of(i32, (1, pixels, features))).result
        return _reshaped(b, made, sizes)
    attributes: dict[str, Any] = {"window": tuple(taps), "strides": window.strides, "dilations": window.dilations}
    return b.op("smelt.packed_qconv", images, panels, result=Shape.of(i32, sizes), **attributes).result


def _float_total(space: _Space, window: _Window, zeros: Mapping[str, _Part], names: str) -> _Part | None:
    """A convolution of f32 whose sums are whole numbers that f32 holds, in any order: as good as integers."""
    if prod(window.window) * window.depth * 255 * 255 >= EXACT:
        return None
    b = space.b
    images, kernel = (_converted(b, value, f32) for value in (window.images, window.kernel))
    if "lhs_zero" in zeros:
        point = space.converted(zeros["lhs_zero"], f32).value
        images = b.subtract(images, b.broadcast_in_dim(point, broadcast_dimensions=(), result=images.shape))
    if "rhs_zero" in zeros:
        part = space.converted(zeros["rhs_zero"], f32)
        dims = (kernel.shape.rank - 1,) if part.letters else ()
        kernel = b.subtract(kernel, b.broadcast_in_dim(part.value, broadcast_dimensions=dims, result=kernel.shape))
    sizes = space.shape(names, f32)
    made = b.convolution(
        images,
        kernel,
        window_strides=window.strides,
        padding=window.padding,
        lhs_dilation=window.holes,
        rhs_dilation=window.dilations,
        dimension_numbers=channels_last_dims(images.shape.rank),
        feature_group_count=window.groups,
        batch_group_count=1,
        result=sizes,
    )
    return _Part(_converted(b, made, i32), names)


# ---- what follows a sum ----


def _finished(space: _Space, total: _Part, parameters: Sequence[_Given], to: Any) -> Value | None:
    """The sum with its bias, scaled and rounded, in the result's type."""
    roles: dict[str, list[_Part]] = {}
    for each in parameters:
        roles.setdefault(each.role, []).append(space.given(each))
    return _scaled(space, total, roles, to)


def _scaled(space: _Space, total: _Part, roles: Mapping[str, Sequence[_Part]], to: Any) -> Value | None:
    """What is the same for every row (scales and bias, in steps of the result) is computed once, in `@prepare`."""
    bias = next(iter(roles.get("bias", ())), None)
    if bias is not None and "bias_scale" not in roles and bias.value.shape.dtype == i32:
        total, bias = space.joined("add", total, bias), None
    factors = roles.get("scale", ())
    if not factors and "result_scale" not in roles and bias is None:
        return space.spread(total, space.letters) if to == i32 else None
    if to == i32:
        return None
    factor = _Part(space.b.constant(1.0, f32), "") if not factors else space.converted(factors[0], f32)
    for each in factors[1:]:
        factor = space.joined("multiply", factor, space.converted(each, f32))
    if bias is not None:
        bias = space.converted(bias, f32)
        for each in roles.get("bias_scale", ()):
            bias = space.joined("multiply", bias, space.converted(each, f32))
    for each in roles.get("result_scale", ()):
        step = space.converted(each, f32)
        factor = space.joined("divide", factor, step)
        bias = None if bias is None else space.joined("divide", bias, step)
    x = space.joined("multiply", space.converted(total, f32), factor)
    if bias is not None:
        x = space.joined("add", x, bias)
    if to == f32:
        return space.spread(x, space.letters)
    zero = next(iter(roles.get("result_zero", ())), None)
    point = None if zero is None else space.spread(space.converted(zero, f32), space.letters)
    return rounded(space.b, space.spread(x, space.letters), point, space.shape(space.letters, to))


# ---- moves ----


def _converted(b: Builder, value: Value, dtype: DType) -> Value:
    if value.shape.dtype == dtype:
        return value
    return b.convert(value, result=value.shape.with_dtype(dtype))


def _transposed(b: Builder, value: Value, order: tuple[int, ...]) -> Value:
    if order == tuple(range(len(order))):
        return value
    return b.transpose(value, permutation=order)


def _reshaped(b: Builder, value: Value, sizes: Sequence[Size]) -> Value:
    if value.shape.sizes == tuple(sizes):
        return value
    return b.reshape(value, result=Shape.of(value.shape.dtype, tuple(sizes)))
