"""Sliding windows: pooling (`reduce_window`), cumulative sums, and direct convolutions of any layout, stride, dilation
and grouping (the fast ones are in `conv.py`). Registered in `sinks.SINKS`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

from smelt.dim import Size, floordiv, maximum, minimum
from smelt.dtype import DType, f64, i1
from smelt.frozen import Frozen
from smelt.ir.core import Op, Value
from smelt.kernel.build.gather_scatter import to_index
from smelt.kernel.build.gemm import accumulator
from smelt.kernel.build.reduce import body_function, sum_over
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.fold import identity
from smelt.kernel.loops.grammar import (
    SHORT,
    Amount,
    Expr,
    Number,
    Quotient,
    Remainder,
    Set,
    add,
    scale,
)
from smelt.kernel.loops.nest import Index, Nest, flat, tensor


@sink("stablehlo.convolution", anchor=True)
def convolution(nest: Nest, op: Op, output: Output) -> None:
    padding = op.attrs.get("padding")
    low = [pair[0] for pair in padding] if padding else [0] * (tensor(op.result).rank - 2)
    convolve(nest, op, output, [Number(each) for each in low])


@sink("stablehlo.dynamic_conv", anchor=True)
def dynamic_conv(nest: Nest, op: Op, output: Output) -> None:
    padding = op.operands[2]
    count = tensor(op.result).rank - 2
    convolve(nest, op, output, [to_index(nest, nest.pull(padding, (Number(i), Number(0)))) for i in range(count)])


def convolve(nest: Nest, op: Op, output: Output, low: Sequence[Expr]) -> None:
    """Direct convolution: each result element is a sum over the taps and input channels of its group."""
    dims = op.attrs["dimension_numbers"]
    lhs, rhs = op.operands[:2]
    result, inputs, kernel = tensor(op.result), tensor(lhs), tensor(rhs)
    count = result.rank - 2
    strides, base, holes = (
        tuple(op.attrs.get(name) or (1,) * count) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    turned = tuple(op.attrs.get("window_reversal") or (False,) * count)
    features = kernel.sizes[dims.kernel_output_feature_dimension]
    window = [kernel.sizes[d] for d in dims.kernel_spatial_dimensions]
    depth = kernel.sizes[dims.kernel_input_feature_dimension]
    sizes = [inputs.sizes[d] for d in dims.input_spatial_dimensions]
    groups, batches = op.attrs["feature_group_count"], op.attrs["batch_group_count"]
    kind = accumulator([inputs.element, kernel.element], result.element)
    with nest.loops(result.sizes) as vars:
        feature, number = vars[dims.output_feature_dimension], vars[dims.output_batch_dimension]
        if groups > 1:
            group = nest.let(Quotient(feature, features // groups))
            first: Expr = scale(group, depth)
        else:
            first = Number(0)
        if batches > 1:
            share = nest.let(Quotient(feature, features // batches))
            number = add(number, scale(share, result.sizes[dims.output_batch_dimension]))

        def term(inner: tuple[Expr, ...]) -> Expr:
            *places, channel = inner
            conditions: list[Expr] = []
            left: dict[int, Expr] = {
                dims.input_batch_dimension: number,
                dims.input_feature_dimension: add(first, channel),
            }
            right: dict[int, Expr] = {
                dims.kernel_output_feature_dimension: feature,
                dims.kernel_input_feature_dimension: channel,
            }
            for i, at in enumerate(places):
                out = vars[dims.output_spatial_dimensions[i]]
                place = add(scale(out, strides[i]), scale(at, holes[i]), scale(low[i], -1))
                place, fits = _inside(nest, place, base[i], sizes[i], low[i])
                conditions += fits
                left[dims.input_spatial_dimensions[i]] = place
                right[dims.kernel_spatial_dimensions[i]] = add(window[i] - 1, scale(at, -1)) if turned[i] else at
            b = nest.convert(nest.pull(rhs, tuple(right[d] for d in range(kernel.rank))), kind)

            def inside() -> Expr:
                return nest.convert(nest.pull(lhs, tuple(left[d] for d in range(inputs.rank))), kind)

            a = (
                inside()
                if not conditions
                else nest.choose(nest.both(*conditions), inside, lambda: Number(0, kind), kind)
            )
            return nest.apply("multiply", a, b, dtype=kind)

        total = sum_over(nest, kind, [*window, depth], term)
        output.finish(nest, op, vars, nest.convert(total, result.element))


def _inside(nest: Nest, place: Expr, step: int, size: Size, low: Expr) -> tuple[Expr, list[Expr]]:
    """The element at a position of a padded, dilated axis, and the conditions under which there is one."""
    place = nest.let(place)
    conditions = [nest.apply("GE", place, Number(0), dtype=i1)]
    if step != 1:
        conditions.append(nest.apply("EQ", nest.let(Remainder(place, step)), Number(0), dtype=i1))
        place = nest.let(Quotient(place, step))
    conditions.append(nest.less(place, Amount(size)))
    return place, conditions


# ---- pooling ----


class Window(Frozen):
    """The geometry of a window per dimension. `base`: base dilation."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base: tuple[int, ...]
    dilations: tuple[int, ...]

    @staticmethod
    def of(op: Op) -> Window:
        sizes = tuple(op.attrs["window_dimensions"])
        ones = (1,) * len(sizes)
        strides, base, dilations = (
            tuple(op.attrs.get(name) or ones) for name in ("window_strides", "base_dilations", "window_dilations")
        )
        padding = op.attrs.get("padding") or ((0, 0),) * len(sizes)
        return Window(sizes, strides, tuple((low, high) for low, high in padding), base, dilations)

    def is_plain(self, d: int) -> bool:
        """Whether the window is trivial along a dimension: size 1, no stride, padding or dilation."""
        return (self.sizes[d], self.strides[d], self.base[d], self.padding[d]) == (1, 1, 1, (0, 0))

    def interior(self, d: int, size: Size, count: Size) -> tuple[Size, Size]:
        """The positions [first, last) along a dimension where the whole window is inside the tensor."""
        reach = (self.sizes[d] - 1) * self.dilations[d]
        low, stride = self.padding[d][0], self.strides[d]
        first = minimum(max(-(-low // stride), 0), count)
        last = minimum(maximum(floordiv(size - 1 - reach + low, stride) + 1, first), count)
        return first, last

    def place(
        self, nest: Nest, d: int, position: Expr, at: Expr, size: Size, *, inside: bool = False
    ) -> tuple[Expr, list[Expr]]:
        """The tensor's element under element `at` of the window, and the conditions under which there is one."""
        (low, high), base, dilation = self.padding[d], self.base[d], self.dilations[d]
        place = add(scale(position, self.strides[d]), scale(at, dilation), -low)
        if inside:
            return place, []
        if base != 1:
            return _inside(nest, place, base, size, Number(low))
        known = int(at.value.real) if isinstance(at, Number) else None
        conditions: list[Expr] = []
        if low > (known or 0) * dilation:
            conditions.append(nest.apply("GE", nest.let(place), Number(0), dtype=i1))
        if high > (0 if known is None else (self.sizes[d] - 1 - known) * dilation):
            conditions.append(nest.less(nest.let(place), Amount(size)))
        return place, conditions


@sink("stablehlo.reduce_window", anchor=True)
def reduce_window(nest: Nest, op: Op, output: Output) -> None:
    """Pooling; padding has the initial value."""
    window = Window.of(op)
    axis = find_scan_axis(op, window)
    if axis is not None:
        _scan_window(nest, op, output, axis, window.padding[axis][0] > 0)
        return
    sizes, counts = tensor(op.operands[0]).sizes, tensor(op.results[0]).sizes
    if 0 in counts:
        return
    if not counts or prod(window.sizes) > SHORT:
        with nest.loops(counts) as position:
            _finish(nest, op, output, position, _reduce_looped(nest, op, window, position))
        return
    last = len(counts) - 1
    with nest.loops(counts[:-1]) as outer:
        parts: list[tuple[Size, Size, bool]] = [(0, counts[last], False)]
        if window.base[last] == 1:
            first, end = window.interior(last, sizes[last], counts[last])
            parts = [(0, first, False), (first, end - first, True), (end, counts[last] - end, False)]
        for begin, extent, inside in parts:
            if extent == 0:
                continue
            with nest.loop(extent, "lane" if inside and outer else "serial") as at:
                position = (*outer, add(at, begin))
                _finish(nest, op, output, position, _reduce_unrolled(nest, op, window, position, inside))


def _finish(nest: Nest, op: Op, output: Output, position: Index, totals: Sequence[Expr]) -> None:
    if len(totals) == 1:
        output.finish(nest, op, position, totals[0])
        return
    for target, result, total in zip(output.targets, op.results, totals, strict=True):
        nest.store(target, flat(position, tensor(result).sizes), total)


def _kinds(op: Op) -> list[DType]:
    return [tensor(value).element for value in op.regions[0].results]


def window_items(nest: Nest, op: Op, places: Index, fits: Sequence[list[Expr]]) -> list[Expr]:
    """The elements at a position, or the initial values where the conditions of a dimension do not hold."""
    count, kinds = len(op.results), _kinds(op)
    inputs, starts = op.operands[:count], op.operands[count:]
    sizes = tensor(inputs[0]).sizes
    conditions = [each for dim in fits for each in dim]
    items: list[Expr] = []
    for value, start, kind in zip(inputs, starts, kinds, strict=True):

        def pull(value: Value = value, kind: DType = kind, places: Index = places) -> Expr:
            return nest.convert(nest.pull(value, places), kind)

        def missing(start: Value = start, kind: DType = kind) -> Expr:
            return nest.convert(nest.pull(start, ()), kind)

        if not conditions:
            items.append(pull())
        elif all(isinstance(size, int) and size > 0 for size in sizes):  # a clamped position can always be read
            moved = tuple(
                nest.clamp(at, size - 1) if dim else at for at, size, dim in zip(places, sizes, fits, strict=True)
            )
            items.append(nest.apply("select", nest.both(*conditions), pull(places=moved), missing(), dtype=kind))
        else:
            items.append(nest.choose(nest.both(*conditions), pull, missing, kind))
    return items


def window_places(
    nest: Nest, op: Op, window: Window, position: Index, inner: Sequence[Expr], inside: bool
) -> tuple[Index, list[list[Expr]]]:
    """The position under a window element, and for each dimension the conditions under which it exists."""
    sizes = tensor(op.operands[0]).sizes
    places: list[Expr] = []
    fits: list[list[Expr]] = []
    for d, (here, at) in enumerate(zip(position, inner, strict=True)):
        place, conditions = window.place(nest, d, here, at, sizes[d], inside=inside and d == len(sizes) - 1)
        places.append(place)
        fits.append(conditions)
    return tuple(places), fits


def _reduce_unrolled(nest: Nest, op: Op, window: Window, position: Index, inside: bool) -> tuple[Expr, ...]:
    """A small window, unrolled; `inside`: it does not reach into the padding along the last dimension."""
    count, kinds = len(op.results), _kinds(op)
    starts = op.operands[count:]
    totals = tuple(nest.convert(nest.pull(start, ()), kind) for start, kind in zip(starts, kinds, strict=True))
    for inner in itertools.product(*map(range, window.sizes)):
        places, fits = window_places(nest, op, window, position, [Number(at) for at in inner], inside)
        totals = nest.inline(op.regions[0], [*totals, *window_items(nest, op, places, fits)])
    return totals


def _reduce_looped(nest: Nest, op: Op, window: Window, position: Index) -> tuple[Expr, ...]:
    """Loops over a large window. Long float sums are accumulated in f64 and rounded once."""
    count, kinds = len(op.results), _kinds(op)
    function = body_function(op.regions[0]) if count == 1 else None
    wide = [accumulator_type(function, kind, prod(window.sizes)) for kind in kinds]
    starts = [nest.convert(nest.pull(start, ()), kind) for start, kind in zip(op.operands[count:], kinds, strict=True)]
    totals = [nest.declare(kind, nest.convert(start, kind)) for start, kind in zip(starts, wide, strict=True)]
    with nest.loops(window.sizes, "ordered") as inner:
        places, fits = window_places(nest, op, window, position, inner, False)
        items = window_items(nest, op, places, fits)
        held = [nest.keep(total) for total in totals]
        if function is not None:
            new = [nest.apply(function, held[0], nest.convert(items[0], wide[0]), dtype=wide[0])]
        else:
            new = [nest.keep(each) for each in nest.inline(op.regions[0], [*held, *items])]
        for total, each in zip(totals, new, strict=True):
            nest.emit(Set(total, each))
    return tuple(nest.convert(nest.keep(total), kind) for total, kind in zip(totals, kinds, strict=True))


def accumulator_type(function: str | None, kind: DType, terms: int) -> DType:
    return f64 if function in ("add", "multiply") and kind.is_float and terms > SHORT else kind


# ---- cumulative sums ----


def find_scan_axis(op: Op, window: Window) -> int | None:
    """The axis of a cumulative reduction, forward or backward, if the window is one."""
    sizes = tensor(op.operands[0]).sizes
    moving = [d for d in range(len(sizes)) if not window.is_plain(d)]
    function = body_function(op.regions[0]) if len(op.results) == 1 else None
    start = op.operands[-1].op
    if len(moving) != 1 or function is None or start is None or start.name != "stablehlo.constant":
        return None
    (d,) = moving
    whole = window.sizes[d]
    if whole != sizes[d] or window.padding[d] not in ((whole - 1, 0), (0, whole - 1)):
        return None
    kind = tensor(op.results[0]).element
    neutral = start.attrs["value"].array.reshape(-1)[0].item() == identity(function, kind).value
    is_simple = window.strides[d] == window.base[d] == window.dilations[d] == 1
    if window.padding[d][0] == 0 and kind.is_float and function in ("add", "multiply") and whole <= SHORT:
        return None  # a short sum is rounded from the front
    return d if neutral and is_simple and tensor(op.operands[0]).element == kind else None


def _scan_window(nest: Nest, op: Op, output: Output, axis: int, forward: bool) -> None:
    sizes, (kind,) = tensor(op.results[0]).sizes, _kinds(op)
    function, length = body_function(op.regions[0]), op.attrs["window_dimensions"][axis]
    assert function is not None
    wide = accumulator_type(function, kind, length)
    others = [d for d in range(len(sizes)) if d != axis]
    with nest.loops([sizes[d] for d in others]) as vars:
        places = dict(zip(others, vars, strict=True))
        total = nest.declare(wide, nest.convert(nest.convert(nest.pull(op.operands[1], ()), kind), wide))
        with nest.loop(length, "ordered") as turn:
            places[axis] = turn if forward else add(scale(turn, -1), length - 1)
            index = tuple(places[d] for d in range(len(sizes)))
            item = nest.convert(nest.pull(op.operands[0], index), wide)
            nest.emit(Set(total, nest.apply(function, nest.keep(total), item, dtype=wide)))
            output.finish(nest, op, index, nest.convert(nest.keep(total), kind))
