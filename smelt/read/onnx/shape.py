"""Operators that move, pick, repeat and make elements: shapes, slices, gathers, scatters, padding, constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.dim import Poly, Size, at_most, divide_exact, floordiv, maximum, minimum, product
from smelt.dtype import Array, DType, dtype, i1, i64
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.attributes import GatherDims, ScatterDims
from smelt.ir.build import Builder
from smelt.ir.core import Region, Value
from smelt.read.onnx.emit import axes_of, axis_of, ints
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Tensor, Text
from smelt.read.onnx.registry import Ints, Sizes, onnx_op
from smelt.read.onnx.tensors import element_type
from smelt.shape import Shape

_FOLD = 4096  # elements of a known tensor that is still moved around at import
_MOST_PLACES = 1 << 24  # indices that are computed at import


def _moved(x: Tensor, fn: Callable[[Array], Array]) -> Tensor | None:
    """A known tensor whose elements only change places."""
    if x.known is None or x.known.size > _FOLD:
        return None
    moved = np.asarray(fn(x.known), x.known.dtype)
    return Tensor.symbolic(moved, x.element) if x.is_symbolic else Tensor.constant(moved)


def _is_small(sizes: tuple[int, ...]) -> bool:
    count = product(sizes)
    return isinstance(count, int) and count <= _FOLD


def _sizes(array_like: Any) -> Array:
    result = np.empty(len(array_like), object)
    result[:] = list(array_like)
    return result


# ---- sizes ----


@onnx_op("Shape")
def shape(g: Graph, data: Item, *, start: int = 0, end: int | None = None) -> Tensor:
    sizes = data.array.shape if isinstance(data, Text) else _tensor(data).sizes
    rank = len(sizes)
    first = max(0, min(rank, start + rank if start < 0 else start))
    last = rank if end is None else max(0, min(rank, end + rank if end < 0 else end))
    return Tensor.symbolic(_sizes(sizes[first : max(first, last)]), i64)


@onnx_op("Size")
def size(g: Graph, data: Item) -> Tensor:
    count: Size = data.array.size if isinstance(data, Text) else _tensor(data).shape.count
    return Tensor.symbolic(_sizes([count]).reshape(()), i64)


def _tensor(item: Item) -> Tensor:
    if not isinstance(item, Tensor):
        raise UnsupportedError("a tensor is needed here", got=type(item).__name__.lower())
    return item


# ---- constants ----


@onnx_op("Constant")
def constant(
    g: Graph,
    *,
    value: Item | None = None,
    sparse_value: Tensor | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> Item:
    if value is not None:
        return value
    if sparse_value is not None:
        return sparse_value
    for number, kind in (
        (value_float, np.float32),
        (value_int, np.int64),
        (value_floats, np.float32),
        (value_ints, np.int64),
    ):
        if number is not None:
            return Tensor.constant(np.array(number, kind))
    text = value_string if value_string is not None else value_strings
    if text is None:
        raise ParseError("Constant: no value")
    return Text(np.array(text, object))


@onnx_op("ConstantOfShape", since=9)
def constant_of_shape(g: Graph, input: Sizes, *, value: Tensor | None = None) -> Tensor | Value:
    number = np.zeros(1, np.float32) if value is None else g.numbers(value, "value")
    if number.size != 1:
        raise ParseError("ConstantOfShape: attribute 'value'", expected="one element", got=number.size)
    return _filled(g, number.reshape(()), input)


def _filled(g: Graph, number: Array, sizes: Sizes) -> Tensor | Value:
    if any(isinstance(n, int) and n < 0 for n in sizes):
        raise ShapeError("a negative size", got=list(sizes))
    known = ints(sizes)
    if known is not None and _is_small(known):
        return Tensor.constant(np.full(known, number, number.dtype))
    return g.broadcast_to(g.const(number, dtype(number.dtype)), sizes)


@onnx_op("Range", since=11)
def range_(g: Graph, start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor | Value:
    known = [g.elements(each) for each in (start, limit, delta)]
    element = start.element
    if any(each is not None and each.dtype == object for each in known) and all(each is not None for each in known):
        first, last, step = (each.reshape(-1)[0] for each in known if each is not None)
        if not isinstance(step, Poly) and step == int(step) and step != 0:
            step = int(step)
            count = maximum(-((_whole(first) - _whole(last)) // step), 0)
            return _counted(g, g.value(start), count, g.value(delta))
        raise UnsupportedError("Range with a step that depends on sizes", got=step)
    numbers = [g.numbers(each, name) for each, name in ((start, "start"), (limit, "limit"), (delta, "delta"))]
    first, last, step = (each.reshape(-1)[0].item() for each in numbers)
    if step == 0:
        raise ShapeError("Range with a step of 0")
    exact = element.is_integer
    total = max(0, -((first - last) // step) if exact else int(np.ceil((last - first) / step)))
    if total <= _FOLD and exact:
        return Tensor.constant((first + np.arange(total) * step).astype(element.numpy))
    return _counted(g, g.value(start), total, g.value(delta))


def _whole(number: Any) -> Size:
    if isinstance(number, Poly):
        return number
    if number != int(number):
        raise UnsupportedError("Range of sizes and fractions", got=number)
    return int(number)


def _counted(g: Graph, start: Value, count: Size, step: Value) -> Value:
    """start, start + step, …"""
    places = g.iota(start.shape.element, (count,), 0)
    return g.binary("add", g.binary("multiply", places, g.reshape(step, ())), g.reshape(start, ()))


@onnx_op("EyeLike", since=9)
def eye_like(g: Graph, input: Tensor, *, dtype: int | None = None, k: int = 0) -> Value:
    if input.rank != 2:
        raise ShapeError("EyeLike takes a matrix", got=input.shape)
    element = input.element if dtype is None else element_type(dtype, g.location)
    rows, columns = (g.iota(i64, input.sizes, axis) for axis in (0, 1))
    return g.convert(g.compare(g.plus(rows, k), columns, "EQ"), element)


@onnx_op("Trilu", since=14)
def trilu(g: Graph, input: Value, k: Value | None = None, *, upper: int = 1) -> Value:
    rank = input.shape.rank
    if rank < 2:
        raise ShapeError("Trilu takes matrices", got=input.shape)
    rows, columns = (g.iota(i64, input.shape.sizes, axis) for axis in (rank - 2, rank - 1))
    if k is not None:
        rows = g.binary("add", rows, g.reshape(g.convert(k, i64), ()))
    kept = g.compare(columns, rows, "GE" if upper else "LE")
    return g.select(kept, input, g.like(0, input))


@onnx_op("OneHot", since=9)
def one_hot(g: Graph, indices: Value, depth: Sizes, values: Value, *, axis: int = -1) -> Value:
    if len(depth) != 1:
        raise ShapeError("OneHot: depth is one number", got=len(depth))
    count = depth[0] if isinstance(depth[0], Poly) else int(depth[0])
    rank = indices.shape.rank + 1
    place = axis_of(axis, rank)
    placed = g.expand_dims(g.wrap(g.convert(indices, i64), count), (place,))
    sizes = [count if i == place else n for i, n in enumerate(placed.shape.sizes)]
    hot = g.compare(g.broadcast_to(placed, sizes), g.iota(i64, sizes, place), "EQ")
    off, on = (g.reshape(g.slice_axis(values, 0, i, i + 1), ()) for i in (0, 1))
    return g.select(hot, g.broadcast_to(on, sizes), g.broadcast_to(off, sizes))


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
    moved = _moved(data, lambda a: a.reshape(known)) if known is not None else None
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
    return _moved(data, lambda a: a.transpose(order)) or g.transpose(g.value(data), order)


@onnx_op("Expand", since=8)
def expand(g: Graph, input: Tensor, shape: Sizes) -> Tensor | Value:
    rank = max(input.rank, len(shape))
    own: Sizes = (*(1,) * (rank - input.rank), *input.sizes)
    wanted: Sizes = (*(1,) * (rank - len(shape)), *shape)
    sizes: list[Size] = []
    for have, want in zip(own, wanted, strict=True):
        if isinstance(have, int) and isinstance(want, int) and 1 not in (have, want) and have != want:
            raise ShapeError("Expand: sizes do not broadcast", expected=have, got=want)
        sizes.append(want if have == 1 else have if want == 1 or not isinstance(want, int) else want)
    known = ints(sizes)
    if known is not None and _is_small(known):
        moved = _moved(input, lambda a: np.broadcast_to(a, known))
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
    if known is not None and whole is not None and _is_small(whole):
        moved = _moved(input, lambda a: np.tile(a, known))
        if moved is not None:
            return moved
    x = g.value(input)
    spread: list[Size] = [n for pair in zip(repeats, input.sizes, strict=True) for n in pair]
    repeated = g.broadcast_in_dim(x, spread, range(1, 2 * input.rank, 2))
    return g.reshape(repeated, [a * b for a, b in zip(repeats, input.sizes, strict=True)])


@onnx_op("DepthToSpace")
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


@onnx_op("SpaceToDepth")
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
    tensors = [_tensor(each) for each in inputs]
    place = axis_of(axis, tensors[0].rank)
    if all(each.known is not None and each.known.size <= _FOLD for each in tensors):
        whole = np.concatenate([each.known.astype(object) for each in tensors if each.known is not None], place)
        if any(each.is_symbolic for each in tensors):
            return Tensor.symbolic(whole, tensors[0].element)
        if whole.size <= _FOLD:
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
        part = -(-size // count)
        exact = divide_exact(size, count)
        if exact is not None:
            parts: list[Size] = [exact] * count
        else:
            parts = [maximum(minimum(part, size - part * i), 0) for i in range(count)]
    else:
        parts = list(split)
    if any(isinstance(n, int) and n < 0 for n in parts):
        raise ShapeError("Split: a negative size", got=parts)
    total = sum(parts[1:], parts[0])
    if isinstance(total, int) and isinstance(size, int) and total != size:
        raise ShapeError("Split: the parts do not make up the whole", expected=size, got=parts)
    return split_axis(g, input, place, parts)[: len(g.node.output)]


def split_axis(g: Graph, input: Tensor, axis: int, parts: list[Size]) -> list[Tensor | Value]:
    """Slices of these sizes, one after the other."""
    result: list[Tensor | Value] = []
    at: Size = 0
    cut = (slice(None),) * axis
    for n in parts:
        begin, end = at, at + n
        moved = None
        if isinstance(begin, int) and isinstance(end, int):
            moved = _moved(input, lambda a, b=begin, e=end: a[(*cut, slice(b, e))])  # type: ignore[misc]
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
            begin[axis] = _clamped(first, size, 0, size)
            end[axis] = maximum(_clamped(last, size, 0, size), begin[axis])
            step[axis] = stride
        else:
            # From `first` down to, not including, `last`: the mirror image of a slice forwards.
            high = _clamped(first, size, 0, size - 1)
            low = _clamped(last, size, -1, size - 1)
            begin[axis] = size - 1 - high
            end[axis] = maximum(size - 1 - low, begin[axis])
            step[axis] = -stride
            reverse.append(axis)
    if all(isinstance(n, int) for n in (*begin, *end)) and data.known is not None:
        cut = tuple(slice(*part) for part in zip(begin, end, step, strict=True))
        moved = _moved(data, lambda a: np.flip(a, tuple(reverse))[cut])
        if moved is not None:
            return moved
    return g.slice(g.reverse(g.value(data), reverse), begin, end, step)


def _clamped(index: Size, size: Size, low: Size, high: Size) -> Size:
    """An index that may count from the end, moved into [low, high]."""
    if isinstance(index, int):
        if index >= 0:
            placed: Size = index
            if index >= (1 << 31) - 1:  # what exporters write for "to the end"
                return high
        else:
            if index <= -(1 << 31):
                return low
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


# ---- gathers ----


@onnx_op("Gather")
def gather(g: Graph, data: Item, indices: Tensor, *, axis: int = 0) -> Item | Value:
    """An index out of range is an error, at import where it is known, else when the program runs."""
    if isinstance(data, Text):
        return Text(np.take(data.array, g.numbers(indices, "indices"), axis))
    x = _tensor(data)
    place = axis_of(axis, x.rank)
    if x.known is not None and indices.known is not None and not indices.is_symbolic:
        moved = _moved(x, lambda a: np.take(a, indices.known, place))  # type: ignore[arg-type]
        if moved is not None:
            return moved
    if indices.known is not None and indices.known.size == 1 and not indices.is_symbolic:  # one slice: no gather
        return _pick(g, x, indices, place)
    return g.take(g.value(x), wrapped(g, indices, x.sizes[place]), place)


def _pick(g: Graph, x: Tensor, indices: Tensor, axis: int) -> Value:
    assert indices.known is not None
    index = int(indices.known.reshape(-1)[0])
    at: Size = x.sizes[axis] + index if index < 0 else index
    size = x.sizes[axis]
    if isinstance(at, int) and isinstance(size, int) and not 0 <= at < size:
        raise ShapeError("Gather: an index is out of range", expected=f"less than {size}", got=index)
    part = g.slice_axis(g.value(x), axis, at, at + 1)
    return g.reshape(part, (*x.sizes[:axis], *indices.sizes, *x.sizes[axis + 1 :]))


def wrapped(g: Graph, indices: Tensor, size: Size) -> Value:
    """Indices as values, counting from the start; known ones are checked."""
    known = indices.known
    if known is not None and not indices.is_symbolic and known.size:
        low, high = int(known.min()), int(known.max())
        if isinstance(size, int):
            if low < -size or high >= size:
                raise ShapeError("an index is out of range", expected=f"-{size} to {size - 1}", got=f"{low} to {high}")
            return g.value(Tensor.constant(np.where(known < 0, known + known.dtype.type(size), known)))
        if low >= 0:
            return g.value(indices)
    value = g.value(indices)
    g.check_range(value, size)
    return g.wrap(value, size)


@onnx_op("GatherElements", since=11)
def gather_elements(g: Graph, data: Value, indices: Tensor, *, axis: int = 0) -> Value:
    place = axis_of(axis, data.shape.rank)
    if indices.rank != data.shape.rank:
        raise ShapeError("GatherElements: ranks differ", expected=data.shape, got=indices.shape)
    at = _coordinates(g, wrapped(g, indices, data.shape.sizes[place]), place)
    rank = data.shape.rank
    dims = GatherDims(
        collapsed_slice_dims=tuple(range(rank)), start_index_map=tuple(range(rank)), index_vector_dim=rank
    )
    return g.gather(data, at, dims, (1,) * rank)


def _coordinates(g: Graph, indices: Value, axis: int) -> Value:
    """For every index its place in the data: its own coordinates, with the index for one of them."""
    sizes = indices.shape.sizes
    whole = g.convert(indices, i64)
    parts = [whole if i == axis else g.iota(i64, sizes, i) for i in range(len(sizes))]
    return g.concat([g.reshape(part, (*sizes, 1)) for part in parts], len(sizes))


@onnx_op("GatherND", since=11)
def gather_nd(g: Graph, data: Value, indices: Tensor, *, batch_dims: int = 0) -> Value:
    depth = indices.sizes[-1] if indices.rank else None
    if not isinstance(depth, int) or not 0 <= batch_dims <= min(data.shape.rank, indices.rank - 1):
        raise ShapeError("GatherND: the indices do not fit", expected=data.shape, got=indices.shape)
    if batch_dims + depth > data.shape.rank:
        raise ShapeError("GatherND: too many indices", expected=data.shape, got=indices.shape)
    at = _wrapped_vectors(g, g.value(indices), data.shape.sizes[batch_dims : batch_dims + depth])
    picked = tuple(range(batch_dims, batch_dims + depth))
    batch = tuple(range(batch_dims))
    window = [1 if i < batch_dims + depth else n for i, n in enumerate(data.shape.sizes)]
    many = indices.rank - 1
    dims = GatherDims(
        offset_dims=tuple(range(many, many + data.shape.rank - batch_dims - depth)),
        collapsed_slice_dims=picked,
        operand_batching_dims=batch,
        start_indices_batching_dims=batch,
        start_index_map=picked,
        index_vector_dim=many,
    )
    return g.gather(data, at, dims, window)


def _wrapped_vectors(g: Graph, indices: Value, sizes: tuple[Size, ...]) -> Value:
    """Index vectors along the last dimension, each entry counted from the end where it is negative."""
    limits = g.convert(g.size_vector(sizes), indices.shape.element)
    moved = g.binary("add", indices, limits)
    return g.select(g.compare(indices, g.like(0, indices), "LT"), moved, indices)


# ---- scatters ----


def _combine(g: Graph, element: DType, reduction: str) -> Region:
    ops = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
    if reduction != "none" and reduction not in ops:
        raise ParseError("attribute 'reduction'", expected="none, add, mul, max or min", got=reduction)

    def body(r: Builder, a: Value, b: Value) -> Value:
        return b if reduction == "none" else r.op(f"stablehlo.{ops[reduction]}", a, b).result

    return g.scalar_region(element, body)


@onnx_op("ScatterElements", since=11)
def scatter_elements(
    g: Graph, data: Value, indices: Tensor, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    rank = data.shape.rank
    place = axis_of(axis, rank)
    if indices.rank != rank:
        raise ShapeError("ScatterElements: ranks differ", expected=data.shape, got=indices.shape)
    at = _coordinates(g, wrapped(g, indices, data.shape.sizes[place]), place)
    every = tuple(range(rank))
    dims = ScatterDims(inserted_window_dims=every, scatter_dims_to_operand_dims=every, index_vector_dim=rank)
    return g.scatter(data, at, updates, dims, _combine(g, data.shape.element, reduction))


@onnx_op("Scatter", since=9)
def scatter(g: Graph, data: Value, indices: Tensor, updates: Value, *, axis: int = 0) -> Value:
    return scatter_elements(g, data, indices, updates, axis=axis)


@onnx_op("ScatterND", since=11)
def scatter_nd(g: Graph, data: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    depth = indices.shape.sizes[-1] if indices.shape.rank else None
    rank, many = data.shape.rank, indices.shape.rank - 1
    if not isinstance(depth, int) or depth > rank:
        raise ShapeError("ScatterND: the indices do not fit", expected=data.shape, got=indices.shape)
    at = _wrapped_vectors(g, indices, data.shape.sizes[:depth])
    dims = ScatterDims(
        update_window_dims=tuple(range(many, many + rank - depth)),
        inserted_window_dims=tuple(range(depth)),
        scatter_dims_to_operand_dims=tuple(range(depth)),
        index_vector_dim=many,
    )
    return g.scatter(data, at, updates, dims, _combine(g, data.shape.element, reduction))


@onnx_op("TensorScatter", since=24)
def tensor_scatter(
    g: Graph,
    past_cache: Value,
    update: Value,
    write_indices: Value | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Value:
    """Each batch writes its update from an index on; a circular cache goes on at its start."""
    rank = past_cache.shape.rank
    place = axis_of(axis, rank)
    if mode not in ("linear", "circular"):
        raise ParseError("TensorScatter: attribute 'mode'", expected="linear or circular", got=mode)
    if place == 0:
        raise ShapeError("TensorScatter: axis must not be the batch's", got=axis)
    sizes = update.shape.sizes
    at = g.iota(i64, sizes, place)
    if write_indices is not None:
        at = g.binary("add", at, g.broadcast_in_dim(g.convert(write_indices, i64), sizes, (0,)))
    if mode == "circular":
        at = g.binary("remainder", at, g.size(past_cache.shape.sizes[place]))
    every = tuple(range(rank))
    dims = ScatterDims(inserted_window_dims=every, scatter_dims_to_operand_dims=every, index_vector_dim=rank)
    return g.scatter(
        past_cache, _coordinates(g, at, place), update, dims, _combine(g, past_cache.shape.element, "none")
    )


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
    """The same places for a size that only the run knows; it may be smaller than the amounts."""

    def cycled(value: Value, period: Value) -> Value:
        rest = g.binary("remainder", value, period)
        return g.binary("remainder", g.binary("add", rest, period), period)

    at = g.plus(g.iota(i64, (size + before + after,), 0), -before)
    if mode == "wrap":
        return cycled(at, g.size(size))
    last = g.size(size - 1)
    period = g.binary("maximum", g.times(last, 2), g.scalar(1, i64))
    return g.unary("abs", g.binary("subtract", cycled(g.binary("add", at, last), period), last))


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


# ---- order ----


@onnx_op("TopK", since=11)
def top_k(g: Graph, X: Value, K: Sizes, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Value, Value]:
    """Sorted whether asked or not; of equal elements the one with the lower index comes first."""
    place = axis_of(axis, X.shape.rank)
    places = g.iota(i64, X.shape.sizes, place)
    values, indices = sorted_with(g, X, places, place, descending=bool(largest))
    return g.slice_axis(values, place, 0, K[0]), g.slice_axis(indices, place, 0, K[0])


def sorted_with(g: Graph, x: Value, places: Value, axis: int, *, descending: bool) -> tuple[Value, Value]:
    """A stable sort along an axis that takes another tensor along. nan counts as greatest."""

    def before(r: Builder, args: Any) -> Value:
        a, b = (args[1], args[0]) if descending else (args[0], args[1])
        less: Value = r.compare(a, b, comparison_direction="LT")
        if x.shape.element.is_float:
            nan = r.compare(b, b, comparison_direction="NE")
            number = r.compare(a, a, comparison_direction="EQ")
            less = r.or_(less, r.and_(nan, number))
        return less

    values, indices = g.sort((x, places), axis, before)
    return values, indices


@onnx_op("TopK", since=10)
def top_k_10(g: Graph, X: Value, K: Sizes, *, axis: int = -1) -> tuple[Value, Value]:
    return top_k(g, X, K, axis=axis)


@onnx_op("TopK", since=1)
def top_k_1(g: Graph, X: Value, *, k: int, axis: int = -1) -> tuple[Value, Value]:
    return top_k(g, X, (k,), axis=axis)


@onnx_op("ReverseSequence", since=10)
def reverse_sequence(g: Graph, input: Value, sequence_lens: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    rank = input.shape.rank
    batch, time = axis_of(batch_axis, rank), axis_of(time_axis, rank)
    sizes = input.shape.sizes
    lengths = g.broadcast_in_dim(g.convert(sequence_lens, i64), sizes, (batch,))
    at = g.iota(i64, sizes, time)
    mirrored = g.plus(g.binary("subtract", lengths, at), -1)
    source = g.select(g.compare(at, lengths, "LT"), mirrored, at)
    every = tuple(range(rank))
    dims = GatherDims(collapsed_slice_dims=every, start_index_map=every, index_vector_dim=rank)
    return g.gather(input, _coordinates(g, source, time), dims, (1,) * rank)


# ---- results whose size depends on data ----


def keep_where(g: Graph, flags: Value, columns: list[Value]) -> list[Value]:
    """The elements of vectors where a vector of flags is true, in order; their number is a new symbol."""
    rank_key = g.convert(g.unary("not", flags), dtype("i8"))

    def before(r: Builder, args: Any) -> Value:
        result: Value = r.compare(args[0], args[1], comparison_direction="LT")
        return result

    ordered = g.sort((rank_key, *columns), 0, before)[1:]
    count = g.reshape(g.sum(g.convert(flags, i64), (0,)), (1,))
    zero, one = (g.const(np.array([n], np.int64), i64) for n in (0, 1))
    kept: list[Value] = []
    for column in ordered:
        # Every column has the same length: the first one's symbol is all of theirs.
        result = None if not kept else Shape.of(column.shape.dtype, kept[0].shape.sizes)
        cut = g.b.real_dynamic_slice(column, zero, count, one, result=result)
        kept.append(cut)
        g.item(cut)
    return kept


@onnx_op("NonZero", since=9)
def non_zero(g: Graph, X: Value) -> Value:
    rank = X.shape.rank
    if rank == 0:
        raise UnsupportedError("NonZero of a scalar")
    flags = g.compare(X, g.like(0, X), "NE")
    total = X.shape.count
    columns = [g.reshape(g.iota(i64, X.shape.sizes, i), (total,)) for i in range(rank)]
    kept = keep_where(g, g.reshape(flags, (total,)), columns)
    return g.concat([g.reshape(each, (1, each.shape.sizes[0])) for each in kept], 0)


@onnx_op("Compress", since=9)
def compress(g: Graph, input: Value, condition: Tensor, *, axis: int | None = None) -> Value:
    x = g.reshape(input, (input.shape.count,)) if axis is None else input
    place = 0 if axis is None else axis_of(axis, x.shape.rank)
    if condition.rank != 1:
        raise ShapeError("Compress: condition must be a vector", got=condition.shape)
    known = g.elements(condition)
    if known is not None:
        return g.take(x, g.value(Tensor.constant(np.flatnonzero(known).astype(np.int64))), place)
    flags = g.value(condition)
    (kept,) = keep_where(g, flags, [g.iota(i64, flags.shape.sizes, 0)])
    return g.take(x, kept, place)


@onnx_op("Unique", since=11)
def unique(g: Graph, X: Value, *, axis: int | None = None, sorted: int = 1) -> tuple[Value, ...]:
    """The different slices along an axis, in order of value or of first appearance."""
    x = g.reshape(X, (X.shape.count,)) if axis is None else X
    place = 0 if axis is None else axis_of(axis, x.shape.rank)
    count = x.shape.sizes[place]
    if count == 0:
        return x, *(g.const(np.zeros(0, np.int64), i64) for _ in range(3))
    order = (place, *(i for i in range(x.shape.rank) if i != place))
    rows = g.reshape(g.transpose(x, order), (count, product(n for i, n in enumerate(x.shape.sizes) if i != place)))
    width = rows.shape.sizes[1]
    if not isinstance(width, int) or width > 256:
        raise UnsupportedError("Unique over slices of this size", got=x.shape)
    keys = [g.reshape(g.slice_axis(rows, 1, i, i + 1), (count,)) for i in range(width)]

    def before(r: Builder, args: Any) -> Value:
        less: Value = r.constant(False, "i1")
        for i in reversed(range(width)):
            a, b = args[2 * i], args[2 * i + 1]
            same = r.compare(a, b, comparison_direction="EQ")
            less = r.or_(r.compare(a, b, comparison_direction="LT"), r.and_(same, less))
        return less

    places = g.iota(i64, (count,), 0)
    *ordered, source = g.sort((*keys, places), 0, before)
    differs = g.full(False, Shape.of(i1, (count - 1,)))
    for key in ordered:
        ahead, behind = g.slice_axis(key, 0, 0, count - 1), g.slice_axis(key, 0, 1, count)
        differs = g.binary("or", differs, g.compare(ahead, behind, "NE"))
    starts = g.concat([g.full(True, Shape.of(i1, (1,))), differs], 0)  # where a new value begins
    group = g.plus(_running_sum(g, g.convert(starts, i64)), -1)
    first_of_group = _scatter_groups(g, group, source, "minimum", (1 << 63) - 1)
    count_of_group = _scatter_groups(g, group, g.like(1, source), "add", 0)
    group_of_place = _put(g, source, group)
    exists = g.compare(count_of_group, g.like(0, count_of_group), "GT")
    if not sorted:  # groups in the order of first appearance
        by_first = g.sort((first_of_group, count_of_group, places), 0, _first_less)
        first_of_group, count_of_group, groups = by_first
        exists = g.compare(count_of_group, g.like(0, count_of_group), "GT")
        new_number = _put(g, groups, places)
        group_of_place = g.take(new_number, group_of_place, 0)
    indices, counts = keep_where(g, exists, [first_of_group, count_of_group])
    values = g.take(x, indices, place)
    return values, indices, group_of_place, counts


def _first_less(r: Builder, args: Any) -> Value:
    result: Value = r.compare(args[0], args[1], comparison_direction="LT")
    return result


def _running_sum(g: Graph, x: Value) -> Value:
    n = x.shape.sizes[0]
    at, upto = (g.iota(i64, (n, n), axis) for axis in (0, 1))
    spread = g.broadcast_in_dim(x, (n, n), (1,))
    return g.sum(g.select(g.compare(upto, at, "LE"), spread, g.like(0, spread)), (1,))


def _scatter_groups(g: Graph, group: Value, values: Value, op: str, start: int) -> Value:
    dims = ScatterDims(inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1)
    body = g.scalar_region(i64, lambda r, a, b: r.op(f"stablehlo.{op}", a, b).result)
    return g.scatter(g.full(start, values.shape), group, values, dims, body)


def _put(g: Graph, places: Value, values: Value) -> Value:
    """A vector with `values[i]` at `places[i]`."""
    dims = ScatterDims(inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1)
    return g.scatter(
        g.like(0, values), places, values, dims, g.scalar_region(values.shape.element, lambda r, a, b: b), True
    )
