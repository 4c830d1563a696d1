"""Operators of shapes: sizes, reshapes, concatenation, splitting, slices, padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.dim import Poly, Size, at_most, ceildiv, divide_exact, floordiv, maximum, minimum, product
from smelt.dtype import Array, i64
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.emit import axes_of, axis_of, ints
from smelt.read.onnx.fold import SMALL, is_small, move_known
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Tensor, Text, tensor_of
from smelt.read.onnx.registry import Ints, Sizes, onnx_op

_MOST_PLACES = 1 << 24  # indices that are computed at import


# ---- sizes ----


@onnx_op("Shape")
def shape(g: Graph, data: Item, *, start: int = 0, end: int | None = None) -> Tensor:
    sizes = data.array.shape if isinstance(data, Text) else tensor_of(data).sizes
    rank = len(sizes)
    first = max(0, min(rank, start + rank if start < 0 else start))
    last = rank if end is None else max(0, min(rank, end + rank if end < 0 else end))
    return Tensor.symbolic(_sizes(sizes[first : max(first, last)]), i64)


@onnx_op("Size")
def size(g: Graph, data: Item) -> Tensor:
    count: Size = data.array.size if isinstance(data, Text) else tensor_of(data).shape.count
    return Tensor.symbolic(_sizes([count]).reshape(()), i64)


def _sizes(array_like: Any) -> Array:
    result = np.empty(len(array_like), object)
    result[:] = list(array_like)
    return result


# ---- reshapes ----


@onnx_op("Identity")
def identity(g: Graph, input: Item) -> Item:
    return input


@onnx_op("Reshape", since=5)
def reshape(g: Graph, data: Tensor, shape: Sizes, *, allowzero: int = 0) -> Tensor | Value:
    sizes = list(shape)
    if not allowzero:
        sizes = [data.sizes[i] if n == 0 and i < data.rank else n for i, n in enumerate(sizes)]
    if allowzero and 0 in sizes and -1 in sizes:
        raise ShapeError("Reshape: sizes 0 and -1 together", got=list(shape))
    return _reshape(g, data, sizes)


@onnx_op("Reshape", since=1)
def reshape_1(
    g: Graph, data: Tensor, *, shape: tuple[int, ...], consumed_inputs: tuple[int, ...] = ()
) -> Tensor | Value:
    return reshape(g, data, shape)


def _reshape(g: Graph, data: Tensor, sizes: list[Size]) -> Tensor | Value:
    open_at = [i for i, n in enumerate(sizes) if n == -1]
    if len(open_at) > 1 or any(isinstance(n, int) and n < -1 for n in sizes):
        raise ShapeError("Reshape: impossible sizes", expected="at most one -1", got=sizes)
    if open_at:
        sizes[open_at[0]] = rest_of(data.shape.count, [n for i, n in enumerate(sizes) if i != open_at[0]])
    if all(isinstance(n, int) for n in sizes) and data.shape.is_static and product(sizes) != data.shape.count:
        raise ShapeError("Reshape: the number of elements changes", expected=data.shape, got=sizes)
    known = ints(sizes)
    moved = move_known(data, lambda a: a.reshape(known)) if known is not None else None
    return moved or g.reshape(g.value(data), sizes)


def rest_of(count: Size, sizes: list[Size]) -> Size:
    """The size that `-1` stands for. Common factors cancel one by one: an unknown one may be 0, and then all are."""
    left: list[Size] = []
    for size in sizes:
        exact = divide_exact(count, size) if size != 0 else None
        if exact is None:
            left.append(size)
        else:
            count = exact
    whole = product(left)
    if whole == 0:
        return 0
    exact = divide_exact(count, whole)
    return floordiv(count, whole) if exact is None else exact


@onnx_op("Flatten")
def flatten(g: Graph, input: Tensor, *, axis: int = 1) -> Tensor | Value:
    if not -input.rank <= axis <= input.rank:
        raise ShapeError("Flatten: axis is out of range", expected=f"-{input.rank} to {input.rank}", got=axis)
    first = axis + input.rank if axis < 0 else axis
    return _reshape(g, input, [product(input.sizes[:first]), product(input.sizes[first:])])


@onnx_op("Squeeze", since=13)
def squeeze(g: Graph, data: Tensor, axes: Ints | None = None) -> Tensor | Value:
    if axes is None:
        open_sizes = [n for n in data.sizes if not isinstance(n, int)]
        if open_sizes:
            raise UnsupportedError("Squeeze without axes of a tensor whose sizes are not fixed", got=data.shape)
        places = tuple(i for i, n in enumerate(data.sizes) if n == 1)
    else:
        places = axes_of(axes, data.rank)
    wrong = [data.sizes[i] for i in places if isinstance(data.sizes[i], int) and data.sizes[i] != 1]
    if wrong:
        raise ShapeError("Squeeze: a dimension that is not 1", got=data.shape)
    return _reshape(g, data, [n for i, n in enumerate(data.sizes) if i not in places])


@onnx_op("Squeeze", since=1)
def squeeze_1(g: Graph, data: Tensor, *, axes: tuple[int, ...] | None = None) -> Tensor | Value:
    return squeeze(g, data, axes)


@onnx_op("Unsqueeze", since=13)
def unsqueeze(g: Graph, data: Tensor, axes: Ints) -> Tensor | Value:
    rank = data.rank + len(axes)
    places = axes_of(axes, rank)
    rest = iter(data.sizes)
    return _reshape(g, data, [1 if i in places else next(rest) for i in range(rank)])


@onnx_op("Unsqueeze", since=1)
def unsqueeze_1(g: Graph, data: Tensor, *, axes: tuple[int, ...]) -> Tensor | Value:
    return unsqueeze(g, data, axes)


@onnx_op("Transpose")
def transpose(g: Graph, data: Tensor, *, perm: tuple[int, ...] | None = None) -> Tensor | Value:
    order = tuple(reversed(range(data.rank))) if perm is None else perm
    if sorted(order) != list(range(data.rank)):
        raise ShapeError(
            "Transpose: perm must name every dimension once", expected=f"rank {data.rank}", got=list(order)
        )
    return move_known(data, lambda a: a.transpose(order)) or g.transpose(g.value(data), order)


@onnx_op("Expand", since=8)
def expand(g: Graph, input: Tensor, shape: Sizes) -> Tensor | Value:
    rank = max(input.rank, len(shape))
    own: Sizes = (*(1,) * (rank - input.rank), *input.sizes)
    wanted: Sizes = (*(1,) * (rank - len(shape)), *shape)
    sizes = [g.join(want, have) for have, want in zip(own, wanted, strict=True)]
    known = ints(sizes)
    if known is not None and is_small(known):
        moved = move_known(input, lambda a: np.broadcast_to(a, known))
        if moved is not None:
            return moved
    return g.broadcast_to(g.value(input), sizes)


@onnx_op("Tile", since=6)
def tile(g: Graph, input: Tensor, repeats: Sizes) -> Tensor | Value:
    if len(repeats) != input.rank:
        raise ShapeError("Tile: one number per dimension", expected=input.rank, got=len(repeats))
    known = ints(repeats)
    if known is not None and any(n < 0 for n in known):
        raise ShapeError("Tile: a negative number of repeats", got=list(known))
    whole = ints((*repeats, *input.sizes))
    if known is not None and whole is not None and is_small(whole):
        moved = move_known(input, lambda a: np.tile(a, known))
        if moved is not None:
            return moved
    x = g.value(input)
    spread: list[Size] = [n for pair in zip(repeats, input.sizes, strict=True) for n in pair]
    repeated = g.broadcast_in_dim(x, spread, range(1, 2 * input.rank, 2))
    return g.reshape(repeated, [a * b for a, b in zip(repeats, input.sizes, strict=True)])


@onnx_op("DepthToSpace", ranks={"input": "4"})
def depth_to_space(g: Graph, input: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    n, c, h, w = input.shape.sizes
    if mode not in ("DCR", "CRD"):
        raise ParseError("DepthToSpace: attribute 'mode'", expected="DCR or CRD", got=mode)
    b = blocksize
    depth = _exact(c, b * b, "DepthToSpace")
    split: Sizes
    if mode == "DCR":
        split, order = (n, b, b, depth, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, order = (n, depth, b, b, h, w), (0, 1, 4, 2, 5, 3)
    return g.reshape(g.transpose(g.reshape(input, split), order), (n, depth, h * b, w * b))


@onnx_op("SpaceToDepth", ranks={"input": "4"})
def space_to_depth(g: Graph, input: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    n, c, h, w = input.shape.sizes
    b = blocksize
    if mode not in ("DCR", "CRD"):
        raise ParseError("SpaceToDepth: attribute 'mode'", expected="DCR or CRD", got=mode)
    rows, columns = _exact(h, b, "SpaceToDepth"), _exact(w, b, "SpaceToDepth")
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = g.transpose(g.reshape(input, (n, c, rows, b, columns, b)), order)
    return g.reshape(moved, (n, c * b * b, rows, columns))


def _exact(size: Size, by: int, what: str) -> Size:
    found = divide_exact(size, by) if by > 0 else None
    if found is None:
        if by > 0 and isinstance(size, Poly):
            return floordiv(size, by)
        raise ShapeError(
            f"{what}: the block size does not divide a dimension", expected=f"a multiple of {by}", got=size
        )
    return found


# ---- joining and splitting ----


@onnx_op("Concat", since=4)
def concat(g: Graph, *inputs: Item, axis: int) -> Item | Value:
    if all(isinstance(each, Text) for each in inputs):
        return Text(np.concatenate([each.array for each in inputs if isinstance(each, Text)], axis))
    tensors = [tensor_of(each) for each in inputs]
    place = axis_of(axis, tensors[0].rank)
    if other := next((each for each in tensors if each.element != tensors[0].element), None):
        raise ParseError("Concat: inputs of different types", expected=tensors[0].element, got=other.element)
    if all(each.known is not None and each.known.size <= SMALL for each in tensors):
        whole = np.concatenate([each.known.astype(object) for each in tensors if each.known is not None], place)
        if any(each.is_symbolic for each in tensors):
            return Tensor.symbolic(whole, tensors[0].element)
        if whole.size <= SMALL:
            return Tensor.constant(np.concatenate([each.known for each in tensors if each.known is not None], place))
    return g.concat([g.value(each) for each in tensors], place)


@onnx_op("Concat", since=1)
def concat_1(g: Graph, *inputs: Item, axis: int = 1) -> Item | Value:
    return concat(g, *inputs, axis=axis)


@onnx_op("Split", since=18)
def split_18(
    g: Graph, input: Tensor, split: Sizes | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> list[Tensor | Value]:
    place = axis_of(axis, input.rank)
    size = input.sizes[place]
    if split is None:
        count = len(g.node.output) if num_outputs is None else num_outputs
        if count < 1 or count < len(g.node.output):  # the last outputs may be left out
            raise ParseError("Split: attribute 'num_outputs'", expected=len(g.node.output), got=count)
        part = size // count if num_outputs is None else ceildiv(size, count)
        if num_outputs is None:
            g.check_multiple(size, count, "Split: without 'num_outputs' all parts are equal")
        else:  # all parts are equal but the last one, which may be smaller
            g.check_at_most(part * (count - 1), size, "Split: fewer parts make up the whole")
        parts: list[Size] = [*[part] * (count - 1), size - part * (count - 1) if num_outputs is not None else part]
    else:
        parts = list(split)
    if not parts:
        raise ShapeError("Split: no sizes", expected=f"one size for each of {len(g.node.output)} outputs")
    if any(isinstance(n, int) and n < 0 for n in parts):
        raise ShapeError("Split: a negative size", got=parts)
    total = sum(parts[1:], parts[0])
    if isinstance(total, int) and isinstance(size, int) and total != size:
        raise ShapeError("Split: the parts do not make up the whole", expected=size, got=parts)
    if split is not None:
        g.check_at_most(size, total, "Split: the parts do not make up the whole")
    return split_axis(g, input, place, parts)[: len(g.node.output)]


def split_axis(g: Graph, input: Tensor, axis: int, parts: list[Size]) -> list[Tensor | Value]:
    """Adjacent slices of these sizes."""
    result: list[Tensor | Value] = []
    at: Size = 0
    cut = (slice(None),) * axis
    for n in parts:
        begin, end = at, at + n
        moved = None
        if isinstance(begin, int) and isinstance(end, int):
            moved = move_known(input, lambda a, b=begin, e=end: a[(*cut, slice(b, e))])  # type: ignore[misc]
        result.append(moved or g.slice_axis(g.value(input), axis, begin, end))
        at = end
    return result


@onnx_op("Split", since=13)
def split_13(g: Graph, input: Tensor, split: Sizes | None = None, *, axis: int = 0) -> list[Tensor | Value]:
    return split_18(g, input, split, axis=axis)


@onnx_op("Split", since=1)
def split_1(
    g: Graph, input: Tensor, split: Sizes | None = None, *, axis: int = 0, split_: tuple[int, ...] | None = None
) -> list[Tensor | Value]:
    return split_13(g, input, split_ if split_ is not None else split, axis=axis)


# ---- slices ----


_LONGEST = (1 << 63) - 1  # step: beyond the first element of any axis


@onnx_op("Slice", since=10)
def slice_(
    g: Graph, data: Tensor, starts: Sizes, ends: Sizes, axes: Ints | None = None, steps: Ints | None = None
) -> Tensor | Value:
    places = axes_of(range(len(starts)) if axes is None else axes, data.rank)
    strides = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(places) == len(strides):
        raise ShapeError(
            "Slice: starts, ends, axes and steps differ in length", got=[len(starts), len(ends), len(places)]
        )
    if 0 in strides:
        raise ShapeError("Slice: a step of 0")
    begin: list[Size] = [0] * data.rank
    end = list(data.sizes)
    step = [1] * data.rank
    reverse = []
    for axis, first, last, stride in zip(places, starts, ends, strides, strict=True):
        size = data.sizes[axis]
        if stride > 0:
            begin[axis] = _clamp_index(first, size, 0, size)
            end[axis] = maximum(_clamp_index(last, size, 0, size), begin[axis])
            step[axis] = stride
        else:
            # From `first` down to, not including, `last`: the mirror image of a slice forwards.
            high = _clamp_index(first, size, 0, size - 1)
            low = _clamp_index(last, size, -1, size - 1)
            begin[axis] = size - 1 - high
            end[axis] = maximum(size - 1 - low, begin[axis])
            step[axis] = min(-stride, _LONGEST)
            reverse.append(axis)
    if all(isinstance(n, int) for n in (*begin, *end)) and data.known is not None:
        cut = tuple(slice(*part) for part in zip(begin, end, step, strict=True))
        moved = move_known(data, lambda a: np.flip(a, tuple(reverse))[cut])
        if moved is not None:
            return moved
    return g.slice(g.reverse(g.value(data), reverse), begin, end, step)


def _clamp_index(index: Size, size: Size, low: Size, high: Size) -> Size:
    """An index that may count from the end, moved into [low, high]."""
    if isinstance(index, int):
        if index >= 0:
            placed: Size = index
            if index >= (1 << 31) - 1:  # what exporters write for "to the end"
                return high
        else:
            if index <= -(1 << 31):
                return minimum(low, high)  # an empty axis has no place 0
            placed = size + index
    elif at_most(0, index):
        placed = index
    elif at_most(index, -1):
        placed = size + index
    else:
        raise UnsupportedError("Slice: an index whose sign depends on sizes", got=index)
    if isinstance(low, int) and not at_most(low, placed):
        placed = maximum(placed, low)
    return minimum(placed, high)


@onnx_op("Slice", since=1)
def slice_1(
    g: Graph, data: Tensor, *, starts: tuple[int, ...], ends: tuple[int, ...], axes: tuple[int, ...] | None = None
) -> Tensor | Value:
    return slice_(g, data, starts, ends, axes)


# ---- padding ----


@onnx_op("Pad", since=11)
def pad(
    g: Graph,
    data: Tensor,
    pads: Sizes,
    constant_value: Value | None = None,
    axes: Ints | None = None,
    *,
    mode: str = "constant",
) -> Value:
    places = tuple(range(data.rank)) if axes is None else axes_of(axes, data.rank)
    if len(pads) != 2 * len(places):
        raise ShapeError("Pad: two numbers per axis", expected=2 * len(places), got=len(pads))
    low: list[Size] = [0] * data.rank
    high: list[Size] = [0] * data.rank
    for i, axis in enumerate(places):
        low[axis], high[axis] = pads[i], pads[i + len(places)]
    x = g.value(data)
    if mode == "constant":
        value = g.scalar(0, data.element) if constant_value is None else g.reshape(constant_value, ())
        return g.pad(x, value, low, high)
    for axis in range(data.rank):
        before, after = low[axis], high[axis]
        if not isinstance(before, int) or not isinstance(after, int):
            raise UnsupportedError(
                f"Pad: attribute 'mode' = {mode} with amounts that are not fixed", got=[before, after]
            )
        if before < 0:
            x = g.slice_axis(x, axis, -before, x.shape.sizes[axis])
        if after < 0:
            x = g.slice_axis(x, axis, 0, x.shape.sizes[axis] + after)
        if before > 0 or after > 0:
            x = _pad_axis(g, x, axis, max(before, 0), max(after, 0), mode)
    return x


def _pad_axis(g: Graph, x: Value, axis: int, before: int, after: int, mode: str) -> Value:
    """Edges repeated, mirrored or carried on from the other side."""
    size = x.shape.sizes[axis]
    parts = [x]
    if mode == "edge":
        for count, at, first in ((before, 0, True), (after, size - 1, False)):
            if count:
                edge = g.slice_axis(x, axis, at, at + 1)
                sizes = [count if i == axis else n for i, n in enumerate(edge.shape.sizes)]
                parts.insert(0 if first else len(parts), g.broadcast_to(edge, sizes))
        return g.concat(parts, axis)
    if mode not in ("reflect", "wrap"):
        raise ParseError("Pad: attribute 'mode'", expected="constant, edge, reflect or wrap", got=mode)
    if isinstance(size, int):  # any amount: the pattern repeats
        if size == 0 or size + before + after > _MOST_PLACES:
            raise UnsupportedError(f"Pad: attribute 'mode' = {mode} of a dimension of this size", got=size)
        places = np.arange(-before, size + after)
        if mode == "wrap":
            places = places % size
        else:
            period = max(2 * size - 2, 1)
            places = np.abs((places + (size - 1)) % period - (size - 1)) if size > 1 else places * 0
        return g.take(x, g.value(Tensor.constant(places.astype(np.int64))), axis)
    return g.take(x, _open_places(g, size, before, after, mode), axis)


def _open_places(g: Graph, size: Size, before: int, after: int, mode: str) -> Value:
    """The same indices for a dynamic dimension, which may be smaller than the amounts."""

    def cycle(value: Value, period: Value) -> Value:
        rest = g.binary("remainder", value, period)
        return g.binary("remainder", g.binary("add", rest, period), period)

    at = g.plus(g.iota(i64, (size + before + after,), 0), -before)
    if mode == "wrap":
        return cycle(at, g.size(size))
    last = g.size(size - 1)
    period = g.binary("maximum", g.times(last, 2), g.scalar(1, i64))
    return g.unary("abs", g.binary("subtract", cycle(g.binary("add", at, last), period), last))


@onnx_op("Pad", since=1)
def pad_1(
    g: Graph,
    data: Tensor,
    *,
    pads: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] | None = None,
    mode: str = "constant",
    value: float = 0.0,
) -> Value:
    amounts = pads if pads is not None else paddings
    if amounts is None:
        raise ParseError("Pad: attribute 'pads' is missing")
    return pad(g, data, amounts, g.scalar(value, data.element), mode=mode)
