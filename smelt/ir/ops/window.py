"""Windows that slide over tensors: `reduce_window`, `select_and_scatter` and `convolution`.

In: calls and arrays of the op table. Out: types, with one size per window position, and values. `infer_convolution` and
`convolve` also serve `dynamic_conv`, whose padding is an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias, TypeVar

import numpy as np

from smelt.dim import Size, at_most, floordiv, maximum, mod
from smelt.dtype import Array, DType, Quantized, dtype
from smelt.errors import RunError
from smelt.frozen import Frozen
from smelt.ir.attributes import BOOLS, CONV, INT, INTS, PAIRS, PRECISION, ConvDims
from smelt.ir.core import Op, Region, Type
from smelt.ir.ops.definition import UNKNOWN, Attr, Call, Frame, OpDef
from smelt.ir.ops.linear import (
    accumulator,
    check_precision,
    check_products,
    from_accumulator,
    in_floats,
    result_element,
)
from smelt.ir.ops.quantize import check_axis
from smelt.ir.ops.reduce import SEQUENTIAL, Arrays, check_inputs, check_reducer, fold_of, in_order, promote
from smelt.shape import Shape

Pairs: TypeAlias = Sequence[tuple[int, int]]
T = TypeVar("T")

_MOST = 1 << 33  # elements of a tensor; padding and strides can ask for more than NumPy can say it has no room for

# ---- windows ----


class Window(Frozen):
    """A window over a padded tensor, dimension by dimension; both may be dilated."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilations: tuple[int, ...]
    dilations: tuple[int, ...]

    def counts(self, shape: Sequence[int]) -> tuple[int, ...]:
        """How many positions it has in each dimension of a tensor."""
        return tuple(
            int(window_count(size, *each))  # type: ignore[arg-type]  # numbers give numbers
            for size, *each in zip(
                shape, self.padding, self.base_dilations, self.sizes, self.dilations, self.strides, strict=True
            )
        )

    def at(self, index: Sequence[int], counts: Sequence[int]) -> tuple[slice, ...]:
        """The elements of the padded tensor under one element of the window, at every position."""
        starts = [i * dilation for i, dilation in zip(index, self.dilations, strict=True)]
        return tuple(
            slice(start, start + (count - 1) * stride + 1 if count else start, stride)
            for start, count, stride in zip(starts, counts, self.strides, strict=True)
        )


def dilated_size(size: Size, dilation: int) -> Size:
    """How long `size` elements are with `dilation - 1` holes between neighbours."""
    return maximum((size - 1) * dilation + 1, 0)


def window_count(size: Size, padding: tuple[Size, Size], base: int, window: Size, dilation: int, stride: int) -> Size:
    """How many positions a window has along one dimension: none where it does not fit."""
    padded = padding[0] + dilated_size(size, base) + padding[1]
    return maximum(floordiv(padded - dilated_size(window, dilation), stride) + 1, 0)


def can_pad_first(sizes: Sequence[Size], padding: Pairs, base_dilations: Sequence[int]) -> bool:
    """Whether a `pad` can do the padding of a window op. A window's may take away more than there is, which leaves no
    position; a `pad`'s may not."""
    return all(
        low + high >= 0 or bool(at_most(0, low + dilated_size(size, base) + high))
        for size, (low, high), base in zip(sizes, padding, base_dilations, strict=True)
    )


def _or_default(given: Sequence[T] | None, default: T, rank: int) -> tuple[T, ...]:
    """An optional attribute with one entry per dimension; absent or empty it means the default in each."""
    return tuple(given) if given else (default,) * rank


def _check_entries(call: Call, name: str, default: Any, rank: int, labels: tuple[str, str], *, positive: bool) -> Any:
    entries = _or_default(call.attrs.get(name), default, rank)
    call.require(
        len(entries) == rank, labels[0], f"{name} has one entry per dimension", expected=rank, got=len(entries)
    )
    if positive:
        call.require(all(entry > 0 for entry in entries), labels[1], f"{name} must be positive", got=list(entries))
    return entries


def _check_padding(
    call: Call, given: Sequence[Sequence[Any]] | None, rank: int, label: str
) -> tuple[tuple[Any, Any], ...]:
    rows = _or_default(given, (0, 0), rank)
    if len(rows) != rank or any(len(row) != 2 for row in rows):
        call.fail(
            label, "padding has two entries per dimension", expected=f"[{rank}, 2]", got=[list(row) for row in rows]
        )
    return tuple((row[0], row[1]) for row in rows)


def _check_window(call: Call, rank: int, labels: Sequence[int], name: str) -> Window:
    """The window of an op. `labels`: the constraints on sizes, strides, base dilations, dilations and padding."""

    def pair(first: int) -> tuple[str, str]:
        return f"{name}_c{first}", f"{name}_c{first + 1}"

    sizes = tuple(call.attrs["window_dimensions"])
    given, message = pair(labels[0])[0], "window_dimensions has one entry per dimension"
    call.require(len(sizes) == rank, given, message, expected=rank, got=len(sizes))
    call.require(all(size > 0 for size in sizes), pair(labels[0])[1], "window_dimensions must be positive", got=sizes)
    strides = _check_entries(call, "window_strides", 1, rank, pair(labels[1]), positive=True)
    base = _check_entries(call, "base_dilations", 1, rank, pair(labels[2]), positive=True)
    dilations = _check_entries(call, "window_dilations", 1, rank, pair(labels[3]), positive=True)
    padding = _check_padding(call, call.attrs.get("padding"), rank, f"{name}_c{labels[4]}")
    return Window(sizes, strides, padding, base, dilations)


def window_of(op: Op) -> Window:
    sizes = tuple(op.attrs["window_dimensions"])
    rank = len(sizes)
    return Window(
        sizes,
        _or_default(op.attrs.get("window_strides"), 1, rank),
        tuple((low, high) for low, high in _or_default(op.attrs.get("padding"), (0, 0), rank)),
        _or_default(op.attrs.get("base_dilations"), 1, rank),
        _or_default(op.attrs.get("window_dilations"), 1, rank),
    )


def _window_sizes(shape: Shape, window: Window) -> list[Size]:
    return [
        window_count(*each)
        for each in zip(
            shape.sizes,
            window.padding,
            window.base_dilations,
            window.sizes,
            window.dilations,
            window.strides,
            strict=True,
        )
    ]


def spread(array: Array, padding: Pairs, dilations: Sequence[int], fill: Any) -> Array:
    """The array with holes between neighbours and padding around; negative padding takes elements away."""
    if all(pair == (0, 0) for pair in padding) and all(dilation == 1 for dilation in dilations):
        return array
    sizes, into, take = [], [], []
    for size, (low, high), dilation in zip(array.shape, padding, dilations, strict=True):
        padded = max(low + ((size - 1) * dilation + 1 if size else 0) + high, 0)
        first = max(-(low // dilation), 0)  # the first element at or after the edge: ceil(-low / dilation)
        last = min(size, max(-((low - padded) // dilation), first))  # and the one after the last before the other edge
        sizes.append(padded)
        take.append(slice(first, max(last, first)))
        start = max(low + first * dilation, 0)
        into.append(slice(start, start + max(last - first - 1, 0) * dilation + 1 if last > first else start, dilation))
    _make_room(sizes)
    out = np.full(sizes, fill, array.dtype)
    out[tuple(into)] = array[tuple(take)]
    return out


def _make_room(sizes: Sequence[int]) -> None:
    if prod(sizes) > _MOST:
        raise RunError("a tensor is too large for memory", expected=f"up to {_MOST} elements", got=list(sizes))


# ---- reduce_window ----


def _infer_reduce_window(call: Call) -> list[Type]:
    inputs = check_inputs(call, "reduce_window", shapes=2, elements=3, counts=1)
    window = _check_window(call, inputs[0].rank, (4, 6, 8, 10, 12), "reduce_window")
    elements = check_reducer(call, call.regions[0], inputs, "reduce_window_c13")
    sizes = _window_sizes(inputs[0], window)  # reduce_window_c15
    return [Shape.of(element, sizes) for element in elements]  # reduce_window_c16


def _reduce_window(frame: Frame, op: Op, *operands: Array) -> Arrays:
    return reduce_windows(frame, op, op.regions[0], window_of(op), operands)


def reduce_windows(frame: Frame, op: Op, body: Region, window: Window, operands: Sequence[Array]) -> Arrays:
    """Every window of the inputs folded by the body; `operands` are the first of the op's: inputs, then their inits."""
    elements = [value.shape.dtype for value in body.results]
    types = [value.shape.dtype for value in op.operands[: len(operands)]]
    values = [promote(*each) for each in zip(operands, types, elements * 2, strict=True)]
    inputs, inits = values[: len(elements)], values[len(elements) :]
    counts = window.counts(inputs[0].shape)
    fold = fold_of(body, prod(window.sizes))
    if fold is not None:
        init = fold.widen(inits[0])
        padded = spread(fold.widen(inputs[0]), window.padding, window.base_dilations, init)
        (total,) = _slide(lambda a, b: (fold.pair(a[0], b[0]),), (padded,), window, counts)
        return (fold.narrow(fold.pair(init, total)),)
    rows = tuple(spread(x, window.padding, window.base_dilations, init) for x, init in zip(inputs, inits, strict=True))
    start = tuple(np.broadcast_to(init, counts) for init in inits)
    if prod(window.sizes) > SEQUENTIAL:
        slid = _slide(lambda a, b: frame.lanes(body, *a, *b), rows, window, counts)
        return in_order(frame, body, tuple(x[None] for x in slid), start)
    for index in np.ndindex(window.sizes):
        start = frame.lanes(body, *start, *(x[window.at(index, counts)] for x in rows))
    return tuple(np.asarray(x) for x in start)


Combine: TypeAlias = Callable[[Arrays, Arrays], Arrays]


def _slide(combine: Combine, arrays: Arrays, window: Window, counts: Sequence[int]) -> Arrays:
    """Every window of padded arrays, combined without initial values: dimension by dimension, which keeps the order."""
    if 0 in counts:
        return tuple(np.empty(counts, x.dtype) for x in arrays)
    for axis in reversed(range(len(counts))):
        arrays = _slide_along(
            combine, arrays, axis, window.sizes[axis], window.dilations[axis], window.strides[axis], counts[axis]
        )
    return arrays


def _slide_along(
    combine: Combine, arrays: Arrays, axis: int, size: int, dilation: int, stride: int, count: int
) -> Arrays:
    """One element of the window after the other; or, where that is cheaper, blocks of 1, 2, 4, … neighbours.

    A window is then put together from the blocks that its size has as binary digits: log(size) steps instead of size.
    """

    def part(arrays: Arrays, start: int, length: int, step: int = 1) -> Arrays:
        cut = (slice(None),) * axis + (slice(start, start + (length - 1) * step + 1, step),)
        return tuple(x[cut] for x in arrays)

    length = arrays[0].shape[axis]
    if size * count <= 2 * size.bit_length() * length:
        total = part(arrays, 0, count, stride)
        for i in range(1, size):
            total = combine(total, part(arrays, i * dilation, count, stride))
        return total
    positions = (count - 1) * stride + 1
    blocks, width, start = arrays, dilation, 0
    pieces: Arrays | None = None
    while size:
        if size & 1:
            piece = part(blocks, start, positions)
            pieces = piece if pieces is None else combine(pieces, piece)
            start += width
        size >>= 1
        if size:
            rest = blocks[0].shape[axis] - width
            blocks = combine(part(blocks, 0, rest), part(blocks, width, rest))
            width *= 2
    assert pieces is not None
    return part(pieces, 0, count, stride)


# ---- select_and_scatter ----


def _infer_select_and_scatter(call: Call) -> list[Type]:
    operand, source, init = call.shapes
    name = "select_and_scatter"
    call.same_dtype(operand.dtype, source.dtype, f"{name}_c1", "source must have the operand's element type")
    call.require(init.rank == 0, f"{name}_i3", "init_value must be a scalar", got=init)
    call.same_dtype(operand.dtype, init.dtype, f"{name}_c3", "init_value must have the operand's element type")
    window = _check_window(call, operand.rank, (4, 6, 6, 6, 8), name)
    sizes = _window_sizes(operand, window)
    call.same_sizes(sizes, source.sizes, f"{name}_c2", "source must have one element per position of the window")
    scalar = Shape.of(operand.dtype, ())
    call.check_region(call.regions[0], [scalar, scalar], [Shape("i1")], f"{name}_c9")
    (element,) = check_reducer(call, call.regions[1], [operand], f"{name}_c10")
    return [operand.with_dtype(element)]  # select_and_scatter_c11, c12


def _select_and_scatter(frame: Frame, op: Op, operand: Array, source: Array, init: Array) -> Array:
    select, scatter = op.regions
    window = window_of(op)
    chosen = _select_indices(frame, select, operand, window).reshape(-1)
    of, to = op.operands[0].shape.dtype, scatter.results[0].shape.dtype
    init = promote(init, of, to)
    values = promote(source, of, to).reshape(-1)[chosen >= 0]
    places = chosen[chosen >= 0]
    fold = fold_of(scatter, prod(window.sizes))
    if fold is not None and fold.ufunc not in (np.maximum, np.minimum):
        total = np.full(operand.size, fold.widen(init))
        fold.ufunc.at(total, places, fold.widen(values))
        return fold.narrow(total).reshape(operand.shape)
    result = np.full(operand.size, init, init.dtype)
    for group in _rounds(places):
        at = places[group]
        (result[at],) = frame.lanes(scatter, result[at], values[group])
    return result.reshape(operand.shape)


def _select_indices(frame: Frame, select: Region, operand: Array, window: Window) -> Array:
    """The index of the element that `select` prefers in each window; -1 where it holds nothing but padding."""
    counts = window.counts(operand.shape)
    padded = spread(operand, window.padding, window.base_dilations, np.zeros((), operand.dtype))
    numbers = np.arange(operand.size).reshape(operand.shape)
    numbers = spread(numbers, window.padding, window.base_dilations, -1)
    best, chosen = np.zeros(counts, operand.dtype), np.full(counts, -1)
    for index in np.ndindex(window.sizes):
        cut = window.at(index, counts)
        (stays,) = frame.lanes(select, best, padded[cut])
        taken = (numbers[cut] >= 0) & ((chosen < 0) | ~stays)
        best, chosen = np.where(taken, padded[cut], best), np.where(taken, numbers[cut], chosen)
    return chosen


def _rounds(places: Array) -> list[Array]:
    """Indices into `places`, in rounds: no round has a place twice, and each place's rounds are in order."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.searchsorted(ordered, ordered, side="left")
    turn = np.arange(len(order)) - first
    return [order[turn == i] for i in range(int(turn.max(initial=-1)) + 1)]


# ---- convolution ----


def infer_convolution(call: Call, padding: Sequence[Sequence[Size] | None] | None) -> list[Type]:
    """The type of a convolution. A padding of None is zeros; a row of None is not known before the program runs."""
    name = call.name.rpartition(".")[2]
    lhs, rhs = call.shape(0), call.shape(1)
    rank, spatial = lhs.rank, lhs.rank - 2
    call.require(rank == rhs.rank, f"{name}_c1", "lhs and rhs must have the same rank", expected=rank, got=rhs.rank)
    dims: ConvDims = call.attrs["dimension_numbers"]
    _check_conv_dims(call, dims, rank, name)
    strides = _check_entries(call, "window_strides", 1, spatial, (f"{name}_c2", f"{name}_c3"), positive=True)
    lhs_dilation = _check_entries(call, "lhs_dilation", 1, spatial, (f"{name}_c5", f"{name}_c6"), positive=True)
    rhs_dilation = _check_entries(call, "rhs_dilation", 1, spatial, (f"{name}_c7", f"{name}_c8"), positive=True)
    _check_entries(call, "window_reversal", False, spatial, (f"{name}_c9", ""), positive=False)
    known = None if padding is None else [(0, 0) if row is None else row for row in padding]
    pairs = _check_padding(call, known, spatial, f"{name}_c4")
    batch = _check_groups(call, dims, lhs, rhs, name)
    check_precision(call, f"{name}_c24")
    element = result_element(call, lhs)
    check_products(call, lhs, rhs, element, 27)
    sizes: list[Size] = [0] * rank
    sizes[dims.output_batch_dimension] = batch
    sizes[dims.output_feature_dimension] = rhs.sizes[dims.kernel_output_feature_dimension]
    for i, place in enumerate(dims.output_spatial_dimensions):
        size, window = lhs.sizes[dims.input_spatial_dimensions[i]], rhs.sizes[dims.kernel_spatial_dimensions[i]]
        call.require(window != 0, f"{name}_i2", "the kernel must not be empty", got=rhs)
        if padding is not None and len(padding) > i and padding[i] is None:
            sizes[place] = _declared_size(call, place)
        else:
            sizes[place] = window_count(size, pairs[i], lhs_dilation[i], window, rhs_dilation[i], strides[i])
    result = Shape.of(element, sizes)  # c25, c26
    if isinstance(rhs.dtype, Quantized) and rhs.dtype.axis is not None:
        fits = rhs.dtype.axis == dims.kernel_output_feature_dimension
        call.require(fits, f"{name}_c29", "rhs must be quantised along its output features", got=rhs.dtype)
    if isinstance(element, Quantized) and element.axis is not None:
        fits = element.axis == dims.output_feature_dimension
        call.require(fits, f"{name}_c30", "the result must be quantised along its features", got=element)
        check_axis(call, result)
    return [result]


def _declared_size(call: Call, place: int) -> Size:
    """A size that only the run will show: as declared, else a new symbol."""
    declared = call.declared[0] if call.declared else None
    if isinstance(declared, Shape) and place < declared.rank and declared.sizes[place] != UNKNOWN:
        return declared.sizes[place]
    return call.scope.new_symbol()


def _check_conv_dims(call: Call, dims: ConvDims, rank: int, name: str) -> None:
    parts = (
        ("input", 12, dims.input_batch_dimension, dims.input_feature_dimension, dims.input_spatial_dimensions),
        (
            "kernel",
            17,
            dims.kernel_input_feature_dimension,
            dims.kernel_output_feature_dimension,
            dims.kernel_spatial_dimensions,
        ),
        ("output", 19, dims.output_batch_dimension, dims.output_feature_dimension, dims.output_spatial_dimensions),
    )
    for what, number, first, second, spatial in parts:
        label, message = f"{name}_c{number}", f"{what}_spatial_dimensions must be all but two"
        call.require(len(spatial) == rank - 2, label, message, expected=rank - 2, got=len(spatial))
        call.check_dims([first, second, *spatial], rank, f"{name}_c{number + 1}", f"the {what} dimensions")


def _check_groups(call: Call, dims: ConvDims, lhs: Shape, rhs: Shape, name: str) -> Size:
    """Groups divide batches and features evenly; gives the batches of the result."""
    features, batches = call.attrs["feature_group_count"], call.attrs["batch_group_count"]
    call.require(features > 0, f"{name}_c21", "feature_group_count must be positive", got=features)
    call.require(batches > 0, f"{name}_c22", "batch_group_count must be positive", got=batches)
    call.require(1 in (features, batches), f"{name}_c23", "one of the group counts must be 1", got=(features, batches))
    batch, feature = lhs.sizes[dims.input_batch_dimension], lhs.sizes[dims.input_feature_dimension]
    inputs, outputs = rhs.sizes[dims.kernel_input_feature_dimension], rhs.sizes[dims.kernel_output_feature_dimension]
    for number, size, count, what in (
        (10, batch, batches, "batch_group_count must divide the batches of lhs"),
        (11, feature, features, "feature_group_count must divide the features of lhs"),
        (15, outputs, batches, "batch_group_count must divide the output features of rhs"),
        (16, outputs, features, "feature_group_count must divide the output features of rhs"),
    ):
        call.same_size(0, mod(size, count), f"{name}_c{number}", what)
    wanted = floordiv(feature, features)
    call.same_size(wanted, inputs, f"{name}_c14", "rhs must have as many input features as a group of lhs has features")
    return floordiv(batch, batches)


def _infer_convolution(call: Call) -> list[Type]:
    return infer_convolution(call, call.attrs.get("padding"))


def _convolution(_: Frame, op: Op, lhs: Array, rhs: Array) -> Array:
    return convolution_of(op, lhs, rhs, op.attrs.get("padding"))


def convolution_of(op: Op, lhs: Array, rhs: Array, padding: Sequence[Sequence[int]] | None) -> Array:
    """The value of a convolution op, quantised or not, with its attributes and that padding."""

    def compute(a: Array, b: Array, to: DType) -> Array:
        return convolve(
            a,
            b,
            window_strides=op.attrs.get("window_strides"),
            padding=padding,
            lhs_dilation=op.attrs.get("lhs_dilation"),
            rhs_dilation=op.attrs.get("rhs_dilation"),
            window_reversal=op.attrs.get("window_reversal"),
            dimension_numbers=op.attrs["dimension_numbers"],
            feature_group_count=op.attrs["feature_group_count"],
            batch_group_count=op.attrs["batch_group_count"],
            result=to,
        )

    return in_floats(op, compute, lhs, rhs)


def convolve(
    lhs: Array,
    rhs: Array,
    *,
    window_strides: Sequence[int] | None,
    padding: Sequence[Sequence[int]] | None,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    window_reversal: Sequence[bool] | None,
    dimension_numbers: ConvDims,
    feature_group_count: int,
    batch_group_count: int,
    result: DType,
) -> Array:
    """Products of a kernel with every window of `lhs`, in the element type `result`."""
    dims = dimension_numbers
    rank = lhs.ndim - 2
    x = lhs.transpose([dims.input_batch_dimension, dims.input_feature_dimension, *dims.input_spatial_dimensions])
    k = rhs.transpose(
        [dims.kernel_output_feature_dimension, dims.kernel_input_feature_dimension, *dims.kernel_spatial_dimensions]
    )
    window = Window(
        k.shape[2:],
        _or_default(window_strides, 1, rank),
        tuple((int(low), int(high)) for low, high in _or_default(padding, (0, 0), rank)),
        _or_default(lhs_dilation, 1, rank),
        _or_default(rhs_dilation, 1, rank),
    )
    counts = window.counts(x.shape[2:])
    turned = tuple(i + 2 for i, turn in enumerate(_or_default(window_reversal, False, rank)) if turn)
    groups = feature_group_count * batch_group_count
    wide = accumulator(dtype(lhs.dtype), dtype(rhs.dtype), prod(k.shape[1:]), result)
    kernel = np.flip(k, turned).astype(wide).reshape(groups, k.shape[0] // groups, *k.shape[1:])
    image = _group(x, feature_group_count, batch_group_count).astype(wide)
    image = spread(image, ((0, 0),) * 3 + window.padding, (1, 1, 1, *window.base_dilations), 0)
    total = _correlate(image, kernel, window, counts)  # [group, batch, position, output feature]
    batch = total.shape[1]
    out = from_accumulator(total, result).transpose(1, 0, 3, 2).reshape(batch, k.shape[0], *counts)
    order = [0] * lhs.ndim
    order[dims.output_feature_dimension] = 1
    for i, place in enumerate(dims.output_spatial_dimensions):
        order[place] = i + 2
    return out.transpose(order)


def _group(x: Array, features: int, batches: int) -> Array:
    """[batch, feature, spatial...] as [group, batch, feature, spatial...]."""
    batch, feature, *spatial = x.shape
    if batches > 1:
        return x.reshape(batches, batch // batches, feature, *spatial)
    return x.reshape(batch, features, feature // features, *spatial).swapaxes(0, 1)


def _correlate(image: Array, kernel: Array, window: Window, counts: tuple[int, ...]) -> Array:
    """Padded images [g, n, c, spatial...] with kernels [g, o, c, spatial...], as [g, n, position, o].

    It walks over the elements of the kernel or over the positions of the window, whichever are fewer; so nothing is
    ever larger than the image or the result.
    """
    groups, batch, features = image.shape[:3]
    outputs = kernel.shape[1]
    positions = prod(counts)
    _make_room([groups, batch, positions, outputs])
    total = np.zeros((groups, batch * positions, outputs), image.dtype)
    if prod(window.sizes) <= positions:
        for index in np.ndindex(window.sizes):
            piece = image[(slice(None),) * 3 + window.at(index, counts)]
            rows = np.moveaxis(piece, 2, -1).reshape(groups, batch * positions, features)
            total += rows @ kernel[(slice(None),) * 3 + index].swapaxes(1, 2)
        return total.reshape(groups, batch, positions, outputs)
    total = total.reshape(groups, batch, positions, outputs)
    columns = kernel.reshape(groups, outputs, prod(kernel.shape[2:])).swapaxes(1, 2)
    for number, index in enumerate(np.ndindex(counts)):
        cut = tuple(
            slice(i * stride, i * stride + (size - 1) * dilation + 1, dilation)
            for i, stride, size, dilation in zip(index, window.strides, window.sizes, window.dilations, strict=True)
        )
        piece = image[(slice(None),) * 3 + cut].reshape(groups, batch, prod(kernel.shape[2:]))
        total[:, :, number] = piece @ columns
    return total


_WINDOW = (
    Attr("window_dimensions", INTS),
    Attr("window_strides", INTS, None),
    Attr("padding", PAIRS, None),
)

CONVOLUTION = (
    Attr("window_strides", INTS, None),
    Attr("padding", PAIRS, None),
    Attr("lhs_dilation", INTS, None),
    Attr("rhs_dilation", INTS, None),
    Attr("window_reversal", BOOLS, None),
    Attr("dimension_numbers", CONV),
    Attr("feature_group_count", INT),
    Attr("batch_group_count", INT),
    Attr("precision_config", PRECISION, None),
)

ROWS: list[OpDef] = [
    OpDef(
        "stablehlo.reduce_window",
        "inputs*",
        _infer_reduce_window,
        _reduce_window,
        (*_WINDOW, Attr("base_dilations", INTS, None), Attr("window_dilations", INTS, None)),
        regions=1,
    ),
    OpDef(
        "stablehlo.select_and_scatter",
        "operand source init_value",
        _infer_select_and_scatter,
        _select_and_scatter,
        _WINDOW,
        regions=2,
    ),
    OpDef("stablehlo.convolution", "lhs rhs", _infer_convolution, _convolution, CONVOLUTION),
]
