"""int8 GEMM: `smelt.qdot` composites become packed products, uint8 × int8 → int32 (VNNI).

uint8 and int8 operands are converted into each other by an offset of 128. Zero points are corrected after the sum by
row and column sums; `split_prepare` moves the column sums of weights out of the run. Scales, bias and requantisation
follow as ops that fuse into the epilogue. Depthwise int8 convolutions run in f32 (`_sum_in_f32`). Called by `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from smelt.dim import Size, product
from smelt.dtype import DType, f32, i8, i32, ui8
from smelt.frozen import Frozen
from smelt.ir.build import Builder
from smelt.ir.composites import decode
from smelt.ir.core import Value
from smelt.ir.layouts import Word, letters, parse, sizes_of
from smelt.ir.ops.packed import QUAD
from smelt.ir.ops.window import can_pad_first
from smelt.ir.rewrite import Match, Rule, op
from smelt.layout import panels
from smelt.passes.channels_last import channels_last_dims
from smelt.passes.crop import crop
from smelt.passes.fuse_quantise import round_to_byte
from smelt.shape import Shape

QUANTISING = frozenset({"smelt.qdot", "smelt.quantize", "smelt.dequantize"})
HALF = 128  # offset between int8 and uint8
PLACES = "xyzuvw"  # letters of spatial axes
EXACT = 1 << 24  # f32 is exact for integers below this
_KNOWN = frozenset({"lhs", "rhs", "lhs_zero", "rhs_zero", "scale", "bias", "bias_scale", "result_scale", "result_zero"})
_TYPES = (i8, ui8, i32, f32)
_MOVES = frozenset(f"stablehlo.{name}" for name in ("reshape", "transpose", "broadcast_in_dim", "convert"))


class Panel(Frozen):
    """Columns of a packed panel, and adjacent steps of k in each of them."""

    columns: int
    steps: int = QUAD


def int8_rules(panel: Panel) -> list[Rule]:
    """The rule that lowers quantised matmuls and convolutions to int8 GEMM over packed panels."""

    def lower(m: Match) -> Value | None:
        return _lower(m, panel)

    return [Rule(op("stablehlo.composite"), lower, "a quantised matmul is an int8 GEMM, zero points apart")]


def _convert_first(m: Match) -> Value:
    inner = m.ops["inner"]
    source = _convert(m.build, m["x"], m.shape.element)
    return m.build.op(inner.name, source, result=m.shape, **inner.attrs).result


# Scales and zero points are converted before their broadcast, so that no converted broadcast is materialised.
SPREADING = [
    Rule(
        op("convert", op("broadcast_in_dim", "x", name="inner")),
        _convert_first,
        "conversions commute with broadcasts",
    )
]


def _lower(m: Match, panel: Panel) -> Value | None:
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
    is_convolution = "strides" in said
    if is_convolution:
        places = PLACES[: len(said["strides"])]
        pairs = zip((*words[:2], last), ("bf", "oi", "bo"), strict=True)
        first, second, last = (_add_letters(word, own + places) for word, own in pairs)
        words = (first, second, *words[2:])
    given = [_Given(role, value, word) for role, value, word in zip(roles, operands, words, strict=True)]
    shown = [(last, m.shape.sizes)]
    if is_convolution:  # the letters of spatial axes have other sizes in feature maps and kernels
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
    zeros = {each.role: space.part_of(each) for each in parameters if each.role.endswith("hs_zero")}
    if is_convolution:
        total = _convolution_total(space, given[:2], zeros, said, panel)
    else:
        total = _dot_total(space, given[:2], zeros, panel)
    if total is None:
        return None
    found = _apply_epilogue(space, total, parameters, m.shape.dtype)
    return None if found is None else _reshape(m.build, found, m.shape.sizes)


def _add_letters(word: Word, names: str) -> Word:
    """The word of a convolution operand with letters for its axes of size one, in any order."""
    left = iter(each for each in names if each not in word)
    return tuple(axis or next(left) for axis in word)


# ---- values by their letters ----


class _Given(Frozen):
    role: str
    value: Value
    word: Word


class _Part(Frozen):
    """A value with one axis per letter."""

    value: Value
    letters: str


class _Space(Frozen):
    """The axes of a result, one per letter."""

    m: Match
    letters: str
    sizes: Mapping[str, Size]

    @property
    def b(self) -> Builder:
        return self.m.build

    def shape(self, names: str, dtype: Any) -> Shape:
        return Shape.of(dtype, tuple(self.sizes[each] for each in names))

    def part_of(self, each: _Given) -> _Part:
        names = letters(each.word)
        return _Part(_reshape(self.b, each.value, self.shape(names, each.value.shape.dtype).sizes), names)

    def transpose_to(self, part: _Part, names: str) -> Value:
        """A part transposed to this order of letters."""
        return _transpose(self.b, part.value, tuple(part.letters.index(each) for each in names))

    def spread(self, part: _Part, names: str) -> Value:
        """A part broadcast along the letters that it lacks."""
        own = "".join(each for each in names if each in part.letters)
        value = self.transpose_to(part, own)
        if own == names:
            return value
        dims = tuple(names.index(each) for each in own)
        return self.b.broadcast_in_dim(value, broadcast_dimensions=dims, result=self.shape(names, value.shape.dtype))

    def combine(self, function: str, a: _Part, b: _Part) -> _Part:
        """An elementwise op on two parts, over the union of their letters."""
        names = "".join(each for each in self.letters if each in a.letters or each in b.letters)
        made = self.b.op(f"stablehlo.{function}", self.spread(a, names), self.spread(b, names)).result
        return _Part(made, names)

    def convert(self, part: _Part, dtype: DType) -> _Part:
        return _Part(_convert(self.b, part.value, dtype), part.letters)

    def add_number(self, part: _Part, amount: int) -> _Part:
        """An i32 part plus a number."""
        if not amount:
            return part
        return _Part(self.b.add(part.value, self.b.full(amount, part.value.shape)), part.letters)


# ---- zero points ----


class _Side(Frozen):
    """An operand in the type that the GEMM takes, and its zero point in that type; None: known to be 0."""

    value: Value
    zero: _Part | None


def _prepare_operand(space: _Space, value: Value, zero: _Part | None, wanted: DType) -> _Side:
    """int8 → uint8 adds 128 to values and zero point, uint8 → int8 subtracts it."""
    b = space.b
    known = 0 if zero is None else _constant(space.m, zero.value)
    shift = 0 if value.shape.dtype == wanted else (HALF if wanted == ui8 else -HALF)
    if shift:
        value = _flip_sign(b, value, wanted)
    if known is not None:
        point = known + shift
        return _Side(value, None if point == 0 else _Part(b.constant(point, i32), ""))
    assert zero is not None
    return _Side(value, space.add_number(space.convert(zero, i32), shift))


def _flip_sign(b: Builder, value: Value, wanted: DType) -> Value:
    """int8 ↔ uint8, offset by 128: flip the highest bit."""
    bits = b.bitcast_convert(value, result=value.shape.with_dtype(wanted))
    return b.op("stablehlo.xor", bits, b.full(HALF if wanted == ui8 else -HALF, bits.shape)).result


def _constant(m: Match, value: Value) -> int | None:
    """The constant that fills a value, if there is one."""
    maker = m.edit.maker(value)
    while maker is not None and maker.name in _MOVES:
        maker = m.edit.maker(maker.operands[0])
    if maker is None or maker.name != "stablehlo.constant":
        return None
    array = np.asarray(maker.attrs["value"].array)
    first = array.reshape(-1)[:1]
    return int(first[0]) if first.size and (array == first[0]).all() else None


def _correct_zero_points(
    space: _Space,
    total: _Part,
    left: _Side,
    right: _Side,
    columns: Callable[[], _Part],
    rows: Callable[[], _Part],
) -> _Part:
    """sum (a - p)(b - q) = sum a b - p sum b - q sum (a - p); `columns` gives sum b and `rows` sum (a - p)."""
    if left.zero is not None:
        total = space.combine("subtract", total, space.combine("multiply", left.zero, columns()))
    if right.zero is not None:
        total = space.combine("subtract", total, space.combine("multiply", right.zero, rows()))
    return total


# ---- GEMM ----


def _dot_total(space: _Space, given: Sequence[_Given], zeros: Mapping[str, _Part], panel: Panel) -> _Part | None:
    """The GEMM with i32 results, zero points corrected."""
    b = space.b
    first, second = (space.part_of(each) for each in given)
    summed = "".join(each for each in first.letters if each not in space.letters)
    batch = "".join(each for each in space.letters if each in first.letters and each in second.letters)
    rows = "".join(each for each in first.letters if each not in batch + summed)
    columns = "".join(each for each in second.letters if each not in batch + summed)
    if set(summed) - set(second.letters) or set(batch + rows + columns) != set(space.letters):
        return None
    if zeros.get("lhs_zero") is not None and set(zeros["lhs_zero"].letters) & set(columns):
        return None
    left = _prepare_operand(space, first.value, zeros.get("lhs_zero"), ui8)
    right = _prepare_operand(space, second.value, zeros.get("rhs_zero"), i8)
    first, second = _Part(left.value, first.letters), _Part(right.value, second.letters)
    groups, height, depth, wide = (
        product(space.sizes[each] for each in names) for names in (batch, rows, summed, columns)
    )
    matrix = _reshape(b, space.transpose_to(second, batch + summed + columns), (groups, depth, wide))
    layout = panels(panel.columns, panel.steps)
    packed = b.op("smelt.relayout", matrix, layout=layout).result
    lines = _reshape(b, space.transpose_to(first, batch + rows + summed), (groups, height, depth))
    result = Shape.of(i32, (groups, height, wide))
    made = b.op("smelt.packed_dot", lines, packed, result=result, layout=layout).result
    names = batch + rows + columns
    total = _Part(_reshape(b, made, space.shape(names, i32).sizes), names)

    def column_sums() -> _Part:
        sums = b.reduce_by("add", _convert(b, matrix, i32), 0, (1,))
        return _Part(_reshape(b, sums, space.shape(batch + columns, i32).sizes), batch + columns)

    def row_sums() -> _Part:
        whole = _Part(_convert(b, space.transpose_to(first, batch + rows + summed), i32), batch + rows + summed)
        if left.zero is not None:
            whole = _Part(b.subtract(whole.value, space.spread(left.zero, whole.letters)), whole.letters)
        axes = range(len(batch + rows), len(whole.letters))
        return _Part(b.reduce_by("add", whole.value, 0, axes), batch + rows)

    return _correct_zero_points(space, total, left, right, column_sums, row_sums)


# ---- convolutions ----


class _Window(Frozen):
    """A convolution of feature maps [b, spatial, f] by a kernel [spatial, i, o], as `smelt.qdot` has it."""

    maps: Value
    kernel: Value
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilations: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @property
    def window(self) -> tuple[int, ...]:
        return self.kernel.shape.sizes[:-2]  # type: ignore[return-value]

    @property
    def depth(self) -> int:
        return self.kernel.shape.sizes[-2]  # type: ignore[return-value]

    @property
    def is_padded(self) -> bool:
        return any(any(pair) for pair in self.padding) or set(self.base_dilations) != {1}


def _convolution_total(
    space: _Space, given: Sequence[_Given], zeros: Mapping[str, _Part], said: Mapping[str, Any], panel: Panel
) -> _Part | None:
    """The convolution with i32 results, zero points corrected: as int8 GEMM, or in f32 where that is exact."""
    lhs, rhs = given
    places = sorted((each for each in rhs.word if each not in ("i", "o")), key=PLACES.index)
    zero = zeros.get("lhs_zero")
    if said["batch_groups"] != 1 or (zero is not None and zero.letters):
        return None
    b, pairs = space.b, said["padding"]
    window = _Window(
        _transpose(b, lhs.value, tuple(lhs.word.index(each) for each in ("b", *places, "f"))),
        _transpose(b, rhs.value, tuple(rhs.word.index(each) for each in (*places, "i", "o"))),
        said["strides"],
        tuple(zip(pairs[::2], pairs[1::2], strict=True)),
        said["lhs_dilation"],
        said["rhs_dilation"],
        said["groups"],
    )
    if not places or not all(isinstance(size, int) and size > 0 for size in window.kernel.shape.sizes):
        return None
    if not can_pad_first(window.maps.shape.sizes[1:-1], window.padding, window.base_dilations):
        return None
    channels = (*window.maps.shape.sizes[:-1], window.depth * window.groups)  # the kernel's are static
    window = window.replace(maps=_reshape(b, window.maps, channels))
    names = "".join(("b", *places, "o"))
    right = _prepare_operand(space, window.kernel, zeros.get("rhs_zero"), i8)
    if window.groups > 1 and (window.depth % QUAD or right.zero is not None):
        return _sum_in_f32(space, window, zeros, names)
    left = _prepare_operand(space, window.maps, zero, ui8)
    kernel, features, last = right.value, window.kernel.shape.numbers()[-1], window.maps.shape.rank - 1
    if right.zero is not None:  # one more output channel, of ones, gives the row sums
        ones = b.full(1, Shape.of(i8, (*kernel.shape.sizes[:-1], 1)))
        kernel = b.concatenate(kernel, ones, dimension=kernel.shape.rank - 1)
    sizes = (*space.shape(names[:-1], i32).sizes, kernel.shape.sizes[-1])
    made = _convolve(b, window.replace(maps=left.value, kernel=kernel), left.zero, sizes, panel)
    shown = _Part(made if right.zero is None else crop(b, made, {last: (0, features)}), names)
    total = _Part(space.transpose_to(shown, space.letters), space.letters)

    def column_sums() -> _Part:
        return _Part(b.reduce_by("add", _convert(b, right.value, i32), 0, range(kernel.shape.rank - 1)), "o")

    def row_sums() -> _Part:
        sums = _reshape(b, crop(b, made, {last: (features, features + 1)}), sizes[:-1])
        whole = _Part(sums, names[:-1])
        if left.zero is None:
            return whole
        count = _Part(b.constant(prod(window.window) * window.depth, i32), "")
        return space.combine("subtract", whole, space.combine("multiply", left.zero, count))

    return _correct_zero_points(space, total, left, right, column_sums, row_sums)


def _convolve(b: Builder, window: _Window, zero: _Part | None, sizes: Sequence[Size], panel: Panel) -> Value:
    """The uint8 × int8 convolution. Padding is the real number 0, that is, the zero point."""
    maps, kernel, groups = window.maps, window.kernel, window.groups
    steps = panel.steps if groups == 1 or window.depth % panel.steps == 0 else QUAD
    more = -window.depth % steps if groups == 1 else 0
    if window.is_padded or more:
        point = b.constant(0, ui8) if zero is None else _convert(b, zero.value, ui8)
        low, high = ((0, *(pair[i] for pair in window.padding), more * i) for i in (0, 1))
        maps = b.pad(
            maps,
            point,
            edge_padding_low=low,
            edge_padding_high=high,
            interior_padding=(0, *(step - 1 for step in window.base_dilations), 0),
        )
    if more:
        rank = kernel.shape.rank
        none = (0,) * rank
        deep = (*none[:-2], more, 0)
        kernel = b.pad(kernel, b.constant(0, i8), edge_padding_low=none, edge_padding_high=deep, interior_padding=none)
    *taps, depth, features = kernel.shape.sizes
    share = features // groups
    matrix = _transpose(b, _reshape(b, kernel, (product(taps) * depth, groups, share)), (1, 0, 2))
    layout = panels(panel.columns, steps)
    packed = b.op("smelt.relayout", matrix, layout=layout).result
    if groups == 1 and set(taps) == set(window.strides) == {1}:
        pixels = product(sizes[:-1])
        lines = _reshape(b, maps, (1, pixels, depth))
        result = Shape.of(i32, (1, pixels, features))
        made = b.op("smelt.packed_dot", lines, packed, result=result, layout=layout).result
        return _reshape(b, made, sizes)
    attributes: dict[str, Any] = {
        "layout": layout,
        "window": tuple(taps),
        "strides": window.strides,
        "dilations": window.dilations,
    }
    return b.op("smelt.packed_conv", maps, packed, result=Shape.of(i32, sizes), **attributes).result


def _sum_in_f32(space: _Space, window: _Window, zeros: Mapping[str, _Part], names: str) -> _Part | None:
    """A depthwise or small grouped convolution in f32. Every sum is an integer below 2^24, so f32 is exact."""
    if prod(window.window) * window.depth * 255 * 255 >= EXACT:
        return None
    b = space.b
    maps, kernel = (_convert(b, value, f32) for value in (window.maps, window.kernel))
    if "lhs_zero" in zeros:
        point = space.convert(zeros["lhs_zero"], f32).value
        maps = b.subtract(maps, b.broadcast_in_dim(point, broadcast_dimensions=(), result=maps.shape))
    if "rhs_zero" in zeros:
        part = space.convert(zeros["rhs_zero"], f32)
        dims = (kernel.shape.rank - 1,) if part.letters else ()
        kernel = b.subtract(kernel, b.broadcast_in_dim(part.value, broadcast_dimensions=dims, result=kernel.shape))
    sizes = space.shape(names, f32)
    made = b.convolution(
        maps,
        kernel,
        window_strides=window.strides,
        padding=window.padding,
        lhs_dilation=window.base_dilations,
        rhs_dilation=window.dilations,
        dimension_numbers=channels_last_dims(maps.shape.rank),
        feature_group_count=window.groups,
        batch_group_count=1,
        result=sizes,
    )
    return _Part(_convert(b, made, i32), names)


# ---- epilogue: bias, scales, requantisation ----


def _apply_epilogue(space: _Space, total: _Part, parameters: Sequence[_Given], to: Any) -> Value | None:
    """The i32 sum with bias, scales and requantisation, in the result's type."""
    roles: dict[str, list[_Part]] = {}
    for each in parameters:
        roles.setdefault(each.role, []).append(space.part_of(each))
    return _requantise(space, total, roles, to)


def _requantise(space: _Space, total: _Part, roles: Mapping[str, Sequence[_Part]], to: Any) -> Value | None:
    """Scales and bias, relative to the output's scale, are the same for every row: `@prepare` computes them once."""
    bias = next(iter(roles.get("bias", ())), None)
    if bias is not None and "bias_scale" not in roles and bias.value.shape.dtype == i32:
        total, bias = space.combine("add", total, bias), None
    factors = roles.get("scale", ())
    if not factors and "result_scale" not in roles and bias is None:
        return space.spread(total, space.letters) if to == i32 else None
    if to == i32:
        return None
    factor = _Part(space.b.constant(1.0, f32), "") if not factors else space.convert(factors[0], f32)
    for each in factors[1:]:
        factor = space.combine("multiply", factor, space.convert(each, f32))
    if bias is not None:
        bias = space.convert(bias, f32)
        for each in roles.get("bias_scale", ()):
            bias = space.combine("multiply", bias, space.convert(each, f32))
    for each in roles.get("result_scale", ()):
        step = space.convert(each, f32)
        factor = space.combine("divide", factor, step)
        bias = None if bias is None else space.combine("divide", bias, step)
    x = space.combine("multiply", space.convert(total, f32), factor)
    if bias is not None:
        x = space.combine("add", x, bias)
    if to == f32:
        return space.spread(x, space.letters)
    zero = next(iter(roles.get("result_zero", ())), None)
    point = None if zero is None else space.spread(space.convert(zero, f32), space.letters)
    return round_to_byte(space.b, space.spread(x, space.letters), point, space.shape(space.letters, to))


# ---- shape ops that are left out where they change nothing ----


def _convert(b: Builder, value: Value, dtype: DType) -> Value:
    if value.shape.dtype == dtype:
        return value
    return b.convert(value, result=value.shape.with_dtype(dtype))


def _transpose(b: Builder, value: Value, order: tuple[int, ...]) -> Value:
    if order == tuple(range(len(order))):
        return value
    return b.transpose(value, permutation=order)


def _reshape(b: Builder, value: Value, sizes: Sequence[Size]) -> Value:
    if value.shape.sizes == tuple(sizes):
        return value
    return b.reshape(value, result=Shape.of(value.shape.dtype, tuple(sizes)))
