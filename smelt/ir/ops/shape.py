"""Ops that move elements without computing on them: one row each, inference and reference semantics side by side.

Operand types and attributes → result types (sizes may be polynomials) and, at run time, NumPy views where
a view will do. `index` and `dynamic` reuse the checks and `evaluate` functions that their ops have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from smelt.buffer import machine_memory
from smelt.dim import Size, divide_exact, floordiv, maximum, product
from smelt.dtype import Array, DType, ElementType, Quantized, i32
from smelt.errors import RunError, SizeError
from smelt.ir.attributes import INT, INT32, INTS, elements
from smelt.ir.cast import cast
from smelt.ir.core import Future, Op, Tuple, Type
from smelt.ir.ops.definition import UNKNOWN, Attr, Call, Frame, OpDef
from smelt.ir.ops.quantize import check_axis, quantize
from smelt.ir.sizes import trace
from smelt.shape import Shape

# ---- what several ops check ----


def short(call: Call) -> str:
    """The op's name without its dialect: the specification's labels begin with it."""
    return call.name.rpartition(".")[2]


def not_per_axis(call: Call, *shapes: Shape) -> None:
    """Most ops take quantised tensors with one scale only."""
    for shape in shapes:
        if isinstance(shape.dtype, Quantized) and shape.dtype.axis is not None:
            call.fail(f"{short(call)}_i1", "quantisation per axis is not allowed here", got=shape)


def same_length(call: Call, rank: int, label: str, **lists: Sequence[Any]) -> None:
    """Attributes that hold one number per dimension."""
    for name, values in lists.items():
        call.require(
            len(values) == rank, label, f"{name} must have one number per dimension", expected=rank, got=list(values)
        )


def is_per_axis(dtype: ElementType) -> bool:
    return isinstance(dtype, Quantized) and dtype.axis is not None


def moved_dtype(
    call: Call, operand: ElementType, wanted: ElementType, label: str, *, scales: bool = False
) -> ElementType:
    """The declared element type: the operand's, except that a quantisation per axis may sit on another axis.

    With `scales` the scales and zero points may differ as well.
    """
    expected = operand
    if isinstance(operand, Quantized) and isinstance(wanted, Quantized) and None not in (operand.axis, wanted.axis):
        expected = operand.replace(axis=wanted.axis)
        if scales:
            expected = expected.replace(scales=wanted.scales, zero_points=wanted.zero_points)
    call.same_dtype(expected, wanted, label, "the element type must stay the same")
    return wanted


def check_room(op: Op, shape: Shape, sizes: Sequence[int]) -> None:
    """Refuse results that this machine cannot hold, before the system ends the process for taking too much."""
    if prod(max(n, 1) for n in sizes) * shape.dtype.numpy.itemsize > machine_memory() // 2:
        raise RunError(f"{op.name}: no memory for the result", got=f"{shape.dtype}{list(sizes)}", where=op.location)


def check_fits(op: Op, sizes: Sequence[int]) -> tuple[int, ...]:
    """Refuse sizes found at run time that no tensor has, or that are not the ones the result type promises."""
    result = op.results[0].shape
    if any(size < 0 for size in sizes):
        raise SizeError(f"{op.name}: a size of the result is negative", got=list(sizes), where=op.location)
    check_room(op, result, sizes)
    if len(sizes) != result.rank or (result.is_static and tuple(sizes) != result.sizes):
        raise RunError(
            f"{op.name}: a size is not what the program promised", expected=result, got=list(sizes), where=op.location
        )
    return tuple(sizes)


def check_equal(op: Op, *pairs: tuple[Sequence[int], Sequence[int]]) -> None:
    """Sizes that inference took to be equal, because symbols left it open, are so."""
    for have, want in pairs:
        if tuple(have) != tuple(want):
            raise SizeError(f"{op.name}: sizes must agree", expected=list(want), got=list(have), where=op.location)


# ---- bitcast_convert ----


def _infer_bitcast_convert(call: Call) -> list[Type]:
    operand, dtype = call.shape(0), call.declared_shape().dtype
    source, target = elements(operand.dtype), elements(dtype)
    call.require(
        source.is_complex == target.is_complex,
        "bitcast_convert_c2",
        "only complex casts to complex",
        expected=source,
        got=target,
    )
    label = "bitcast_convert_c1"
    if source.bits == target.bits:
        return [Shape.of(dtype, operand.sizes)]
    if source.bits > target.bits:
        call.require(
            source.bits % target.bits == 0, label, "one width must divide the other", expected=source, got=target
        )
        return [Shape.of(dtype, (*operand.sizes, source.bits // target.bits))]
    call.require(target.bits % source.bits == 0, label, "one width must divide the other", expected=source, got=target)
    call.require(operand.rank > 0, label, "a wider element needs a last dimension to be made of", got=operand)
    call.same_size(
        target.bits // source.bits, operand.sizes[-1], label, "the last dimension must make up one wider element"
    )
    return [Shape.of(dtype, operand.sizes[:-1])]


def _eval_bitcast_convert(_: Frame, op: Op, operand: Array) -> Array:
    source, target = elements(op.operands[0].shape.dtype), elements(op.results[0].shape.dtype)
    return bitcast(operand, source, target)


def bitcast(array: Array, source: DType, target: DType) -> Array:
    """The bits of an array read as another element type: a little-endian row of elements makes up a wider one."""
    if source.bits < target.bits:
        if array.shape[-1] * source.bits != target.bits:
            raise RunError("bitcast_convert: the last dimension does not make up one element", got=list(array.shape))
        sizes: tuple[int, ...] = array.shape[:-1]
    else:
        sizes = array.shape if source.bits == target.bits else (*array.shape, source.bits // target.bits)
    if source.bits % 8 == 0 and target.bits % 8 == 0:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return raw.view(target.numpy).reshape(sizes)
    return _from_bits(_to_bits(array, source).reshape(-1), target).reshape(sizes)


def _to_bits(array: Array, dtype: DType) -> Array:
    """One byte per bit, the lowest bit first."""
    if dtype.is_integer and dtype.bits < 8:
        array = array.astype(np.int8)
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    bits = np.unpackbits(raw, bitorder="little").reshape(array.size, 8 * array.dtype.itemsize)
    return bits[:, : dtype.bits]


def _from_bits(bits: Array, dtype: DType) -> Array:
    rows = bits.reshape(-1, dtype.bits)
    wide = np.zeros((len(rows), 8 * dtype.numpy.itemsize), np.uint8)
    wide[:, : dtype.bits] = rows
    if dtype.kind == "int" and dtype.bits < 8:
        wide[:, dtype.bits :] = rows[:, -1:]  # the sign
    raw = np.packbits(wide.reshape(-1), bitorder="little")
    if dtype.is_integer and dtype.bits < 8:
        return raw.view(np.int8).astype(dtype.numpy)
    return raw.view(dtype.numpy)


# ---- broadcast and broadcast_in_dim ----


def _infer_broadcast(call: Call) -> list[Type]:
    operand, sizes = call.shape(0), call.attrs["broadcast_sizes"]
    not_per_axis(call, operand)
    call.require(all(size >= 0 for size in sizes), "broadcast_c2", "sizes must not be negative", got=list(sizes))
    return [Shape.of(operand.dtype, (*sizes, *operand.sizes))]


def _eval_broadcast(frame: Frame, op: Op, operand: Array) -> Array:
    return np.broadcast_to(operand, check_fits(op, frame.shape(op.results[0].type)))


def infer_broadcast(call: Call, sizes: Sequence[Size], dtype: ElementType) -> Shape:
    """Broadcasting operand 0 to sizes that are declared or known; `UNKNOWN` ones come from the operand."""
    operand, dims, name = call.shape(0), call.attrs["broadcast_dimensions"], short(call)
    dtype = moved_dtype(call, operand.dtype, dtype, f"{name}_c1", scales=True)
    same_length(call, operand.rank, f"{name}_c2", broadcast_dimensions=dims)
    call.check_dims(dims, len(sizes), f"{name}_c3", "broadcast_dimensions", unique=False)
    call.check_dims(dims, len(sizes), f"{name}_c4", "broadcast_dimensions")
    result = list(sizes)
    for have, dim in zip(operand.sizes, dims, strict=True):
        if result[dim] == UNKNOWN:
            result[dim] = UNKNOWN if have == 1 else have
        elif type(have) is int and have != 1:
            call.same_size(have, result[dim], f"{name}_c5", "a dimension that is not 1 must keep its size")
    if isinstance(dtype, Quantized) and isinstance(operand.dtype, Quantized) and dtype.axis is not None:
        check_axis(call, operand)
        check_axis(call, Shape.of(dtype, result))
        _check_broadcast_scales(call, operand.dtype, dtype, operand.sizes, dims)
    return Shape.of(dtype, result)


def _check_broadcast_scales(
    call: Call, operand: Quantized, result: Quantized, sizes: Sequence[Size], dims: Sequence[int]
) -> None:
    label, axis = f"{short(call)}_c6", operand.axis
    assert axis is not None
    call.require(
        result.axis == dims[axis], label, "the quantised axis must move along", expected=dims[axis], got=result.axis
    )
    if sizes[axis] == 1:
        same = set(result.scales) <= set(operand.scales[:1]) and set(result.zero_points) <= set(operand.zero_points[:1])
        call.require(same, label, "all slices must have the one scale and zero point", expected=operand, got=result)


def _infer_broadcast_in_dim(call: Call) -> list[Type]:
    wanted = call.declared_shape()
    return [infer_broadcast(call, wanted.sizes, wanted.dtype)]


def _eval_broadcast_in_dim(frame: Frame, op: Op, operand: Array) -> Array:
    return broadcast_in_dim(op, operand, check_fits(op, frame.shape(op.results[0].type)))


def broadcast_in_dim(op: Op, operand: Array, sizes: tuple[int, ...]) -> Array:
    """A view of the operand with its dimensions put where `broadcast_dimensions` says, and repeated."""
    dims = op.attrs["broadcast_dimensions"]
    spread = [1] * len(sizes)
    for have, dim in zip(operand.shape, dims, strict=True):
        if have not in (1, sizes[dim]):
            raise SizeError(
                f"{op.name}: dimension {dim} is neither 1 nor as wanted",
                expected=sizes[dim],
                got=have,
                where=op.location,
            )
        spread[dim] = have
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    return np.broadcast_to(operand.transpose(order).reshape(spread), sizes)


# ---- concatenate, iota, reshape ----


def _infer_concatenate(call: Call) -> list[Type]:
    dim = call.attrs["dimension"]
    call.require(len(call.operands) > 0, "concatenate_c3", "there must be an input")
    first, *others = call.shapes
    not_per_axis(call, first, *others)
    call.check_dims([dim], first.rank, "concatenate_c4", "dimension")
    total = first.sizes[dim]
    for shape in others:
        call.same_dtype(first.dtype, shape.dtype, "concatenate_c1", "all inputs must have one element type")
        call.require(
            shape.rank == first.rank, "concatenate_c2", "all inputs must have one rank", expected=first, got=shape
        )
        for i, (a, b) in enumerate(zip(first.sizes, shape.sizes, strict=True)):
            if i != dim:
                call.same_size(a, b, "concatenate_c2", f"inputs differ in dimension {i}")
        total = total + shape.sizes[dim]
    sizes = list(first.sizes)
    sizes[dim] = total
    return [Shape.of(first.dtype, sizes)]


def _eval_concatenate(_: Frame, op: Op, *inputs: Array) -> Array:
    dim = op.attrs["dimension"]
    sizes = [each.shape[:dim] + each.shape[dim + 1 :] for each in inputs]
    check_equal(op, *((other, sizes[0]) for other in sizes))
    return np.concatenate(inputs, axis=dim)


def infer_iota(call: Call, sizes: Sequence[Size], dtype: ElementType) -> Shape:
    result = Shape.of(dtype, sizes)
    not_per_axis(call, result)
    call.require(
        isinstance(dtype, Quantized) or dtype.kind != "bool",
        f"{short(call)}_o1",
        "the element type must be a number type",
        got=dtype,
    )
    call.check_dims([call.attrs["iota_dimension"]], result.rank, f"{short(call)}_c1", "iota_dimension")
    return result


def _infer_iota(call: Call) -> list[Type]:
    wanted = call.declared_shape()
    return [infer_iota(call, wanted.sizes, wanted.dtype)]


def _eval_iota(frame: Frame, op: Op) -> Array:
    return iota(op, check_fits(op, frame.shape(op.results[0].type)))


def iota(op: Op, sizes: tuple[int, ...]) -> Array:
    """Indices along `iota_dimension`, repeated along all others."""
    dim = op.attrs["iota_dimension"]
    shape = [1] * len(sizes)
    shape[dim] = sizes[dim]
    return np.broadcast_to(_count(sizes[dim], op.results[0].shape.dtype).reshape(shape), sizes)


def _count(count: int, dtype: ElementType) -> Array:
    """0, 1, … in an element type: integers wrap, floats round, quantised ones stand for the numbers."""
    values = np.arange(count, dtype=np.int64)
    if isinstance(dtype, Quantized):
        return quantize(cast(values, dtype.expressed), dtype)
    return cast(values, dtype)


def infer_reshape(call: Call, sizes: Sequence[Size], dtype: ElementType) -> Shape:
    """The result of a reshape to sizes of which one may be `UNKNOWN`: the one that makes the counts equal."""
    operand, name = call.shape(0), short(call)
    dtype = moved_dtype(call, operand.dtype, dtype, f"{name}_c1")
    found = solve_reshape(call, operand.count, sizes)
    if UNKNOWN not in found:
        call.same_size(operand.count, product(found), f"{name}_c2", "the number of elements must stay the same")
        _check_reshaped_scales(call, operand, Shape.of(dtype, found))
    return Shape.of(dtype, found)


def solve_reshape(call: Call, count: Size, sizes: Sequence[Size]) -> list[Size]:
    """The sizes with a single `UNKNOWN` replaced by what is left of `count`."""
    found = list(sizes)
    open_at = [i for i, size in enumerate(found) if size == UNKNOWN]
    if len(open_at) == 1:
        rest = product(size for size in found if size != UNKNOWN)
        if rest == 0:
            call.fail(
                f"{short(call)}_c2", "the unknown size can be anything beside a dimension of size 0", got=list(sizes)
            )
        exact = divide_exact(count, rest)
        found[open_at[0]] = floordiv(count, rest) if exact is None else exact
    return found


def _check_reshaped_scales(call: Call, operand: Shape, result: Shape) -> None:
    a, b, label = operand.dtype, result.dtype, f"{short(call)}_c3"
    if not (isinstance(a, Quantized) and isinstance(b, Quantized)) or a.axis is None or b.axis is None:
        return
    check_axis(call, operand)
    check_axis(call, result)
    for have, want in (
        (operand.sizes[: a.axis], result.sizes[: b.axis]),
        (operand.sizes[a.axis : a.axis + 1], result.sizes[b.axis : b.axis + 1]),
        (operand.sizes[a.axis + 1 :], result.sizes[b.axis + 1 :]),
    ):
        call.same_size(product(have), product(want), label, "the quantised axis must stay one dimension")


def _infer_reshape(call: Call) -> list[Type]:
    wanted = call.declared_shape()
    return [infer_reshape(call, wanted.sizes, wanted.dtype)]


def _eval_reshape(frame: Frame, op: Op, operand: Array) -> Array:
    return reshape(op, operand, frame.shape(op.results[0].type))


def reshape(op: Op, operand: Array, sizes: tuple[int, ...]) -> Array:
    if prod(sizes) != operand.size:
        raise RunError(
            f"{op.name}: the number of elements must stay the same",
            expected=operand.size,
            got=list(sizes),
            where=op.location,
        )
    return operand.reshape(sizes)


# ---- reverse, slice, transpose, pad ----


def _infer_reverse(call: Call) -> list[Type]:
    operand, dims = call.shape(0), call.attrs["dimensions"]
    not_per_axis(call, operand)
    call.check_dims(dims, operand.rank, "reverse_c3", "dimensions", unique=False)
    call.check_dims(dims, operand.rank, "reverse_c2", "dimensions")
    return [operand]


def _eval_reverse(_: Frame, op: Op, operand: Array) -> Array:
    return np.flip(operand, op.attrs["dimensions"])


def _infer_slice(call: Call) -> list[Type]:
    operand = call.shape(0)
    starts, limits, strides = (call.attrs[name] for name in ("start_indices", "limit_indices", "strides"))
    not_per_axis(call, operand)
    same_length(call, operand.rank, "slice_c2", start_indices=starts, limit_indices=limits, strides=strides)
    sizes = []
    bounds = operand.bounds or (None,) * operand.rank
    for start, limit, stride, size, bound in zip(starts, limits, strides, operand.sizes, bounds, strict=True):
        call.require(0 <= start <= limit, "slice_c3", "0 <= start <= limit must hold", got=f"{start} and {limit}")
        call.at_most(limit, size, "slice_c3", "the limit must be inside the dimension")
        if bound is not None:
            call.at_most(limit, bound, "slice_c3", "the limit must be inside the dimension")
        call.require(stride > 0, "slice_c4", "strides must be positive", got=stride)
        sizes.append(-((start - limit) // stride))
    return [Shape.of(operand.dtype, sizes)]


def _eval_slice(_: Frame, op: Op, operand: Array) -> Array:
    return take_slice(op, operand, op.attrs["start_indices"], op.attrs["limit_indices"], op.attrs["strides"])


def take_slice(op: Op, operand: Array, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Array:
    """A view of part of the operand; the limits are checked here, because a symbolic size left them open."""
    if any(limit > size for limit, size in zip(limits, operand.shape, strict=True)):
        raise SizeError(
            f"{op.name}: a slice goes past the end", expected=list(operand.shape), got=list(limits), where=op.location
        )
    return operand[tuple(slice(*bounds) for bounds in zip(starts, limits, strides, strict=True))]


def _infer_transpose(call: Call) -> list[Type]:
    operand, order = call.shape(0), call.attrs["permutation"]
    if sorted(order) != list(range(operand.rank)):
        call.fail(
            "transpose_c2",
            "permutation must name every dimension once",
            expected=f"rank {operand.rank}",
            got=list(order),
        )
    dtype = operand.dtype
    if isinstance(dtype, Quantized) and dtype.axis is not None:
        check_axis(call, operand)
        dtype = dtype.replace(axis=order.index(dtype.axis))
    return [Shape.of(dtype, (operand.sizes[dim] for dim in order))]


def _eval_transpose(_: Frame, op: Op, operand: Array) -> Array:
    return operand.transpose(op.attrs["permutation"])


def padded_size(size: Size, low: Size, high: Size, interior: Size) -> Size:
    """pad_c4 for one dimension."""
    between = 0 if interior == 0 else maximum(size - 1, 0) * interior
    return size + low + between + high


def check_pad(call: Call) -> Shape:
    operand, value = call.shape(0), call.shape(1)
    not_per_axis(call, operand)
    call.same_dtype(
        operand.dtype, value.dtype, f"{short(call)}_c1", "the padding value must have the operand's element type"
    )
    call.require(value.rank == 0, f"{short(call)}_i2", "the padding value must be a scalar", got=value)
    return operand


def _infer_pad(call: Call) -> list[Type]:
    operand = check_pad(call)
    low, high, interior = (call.attrs[name] for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    same_length(call, operand.rank, "pad_c2", edge_padding_low=low, edge_padding_high=high, interior_padding=interior)
    call.require(all(n >= 0 for n in interior), "pad_c3", "interior padding must not be negative", got=list(interior))
    sizes = [padded_size(*numbers) for numbers in zip(operand.sizes, low, high, interior, strict=True)]
    for size in sizes:
        call.at_most(0, size, "pad_c4", "negative padding takes more than there is")
    return [Shape.of(operand.dtype, sizes)]


def _eval_pad(_: Frame, op: Op, operand: Array, value: Array) -> Array:
    return pad(
        op, operand, value, op.attrs["edge_padding_low"], op.attrs["edge_padding_high"], op.attrs["interior_padding"]
    )


def pad(
    op: Op, operand: Array, value: Array, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> Array:
    """The operand spread out, with the padding value around and between; negative edges cut elements off."""
    sizes, into, source = [], [], []
    for size, before, after, between in zip(operand.shape, low, high, interior, strict=True):
        step = between + 1
        total = size + before + after + max(size - 1, 0) * between
        first = max(0, -(before // step))  # the elements that land inside the result
        last = max(first, min(size, (total - 1 - before) // step + 1))
        sizes.append(total)
        source.append(slice(first, last))
        into.append(slice(before + first * step, before + last * step, step))
    result = np.empty(check_fits(op, sizes), operand.dtype)
    result[...] = value
    if all(part.start < part.stop for part in source):
        result[tuple(into)] = operand[tuple(source)]
    return result


# ---- sizes as values ----


def _infer_get_dimension_size(call: Call) -> list[Type]:
    call.check_dims([call.attrs["dimension"]], call.shape(0).rank, "get_dimension_size_c1", "dimension")
    return [Shape.of(i32, ())]


def _eval_get_dimension_size(_: Frame, op: Op, operand: Array) -> Array:
    return np.array(operand.shape[op.attrs["dimension"]], np.int64).astype(np.int32)


def _infer_set_dimension_size(call: Call) -> list[Type]:
    operand, size, dim = call.shape(0), call.shape(1), call.attrs["dimension"]
    not_per_axis(call, operand)
    call.check_dims([dim], operand.rank, "set_dimension_size_c1", "dimension")
    call.require(
        size.rank == 0 and size.dtype == i32, "set_dimension_size_i2", "the size must be a scalar i32", got=size
    )
    known = trace(call.operands[1])
    sizes = list(operand.sizes)
    if known is not None:
        sizes[dim] = known[0]
        call.at_most(0, known[0], "", "a size must not be negative")
        call.at_most(known[0], operand.sizes[dim], "", "the size must not exceed the operand's")
    else:
        declared = call.declared_shape().sizes if call.declared else ()
        sizes[dim] = (
            declared[dim] if len(declared) == operand.rank and declared[dim] != UNKNOWN else call.scope.new_symbol()
        )
    bound = operand.sizes[dim]
    bounds = tuple(
        bound if i == dim and type(s) is not int and type(bound) is int else None for i, s in enumerate(sizes)
    )
    return [Shape.of(operand.dtype, sizes, None, bounds)]


def _eval_set_dimension_size(_: Frame, op: Op, operand: Array, size: Array) -> Array:
    dim, count = op.attrs["dimension"], int(size)
    if not 0 <= count <= operand.shape[dim]:
        raise RunError(
            f"{op.name}: the size is out of range", expected=f"0 to {operand.shape[dim]}", got=count, where=op.location
        )
    sizes = list(operand.shape)
    sizes[dim] = count
    check_fits(op, sizes)
    view: Array = operand[(slice(None),) * dim + (slice(count),)]
    return view


# ---- tuples ----


def _infer_tuple(call: Call) -> list[Type]:
    for value in call.operands:
        call.require(not isinstance(value.type, Future), "tuple_i1", "a future has no place in a tuple", got=value.type)
    return [Tuple(tuple(value.type for value in call.operands))]


def _eval_tuple(_: Frame, op: Op, *values: Any) -> tuple[Any, ...]:
    return (values,)


def _infer_get_tuple_element(call: Call) -> list[Type]:
    operand, index = call.operands[0].type, call.attrs["index"]
    if not isinstance(operand, Tuple):
        call.fail("get_tuple_element_i1", "the operand must be a tuple", got=operand)
    call.require(0 <= index < len(operand.types), "get_tuple_element_c1", "there is no such element", got=index)
    return [operand.types[index]]


def _eval_get_tuple_element(_: Frame, op: Op, operand: tuple[Any, ...]) -> tuple[Any, ...]:
    return (operand[op.attrs["index"]],)


ROWS: list[OpDef] = [
    OpDef("stablehlo.bitcast_convert", "operand", _infer_bitcast_convert, _eval_bitcast_convert),
    OpDef("stablehlo.broadcast", "operand", _infer_broadcast, _eval_broadcast, (Attr("broadcast_sizes", INTS),)),
    OpDef(
        "stablehlo.broadcast_in_dim",
        "operand",
        _infer_broadcast_in_dim,
        _eval_broadcast_in_dim,
        (Attr("broadcast_dimensions", INTS),),
    ),
    OpDef("stablehlo.concatenate", "inputs*", _infer_concatenate, _eval_concatenate, (Attr("dimension", INT),)),
    OpDef("stablehlo.iota", "", _infer_iota, _eval_iota, (Attr("iota_dimension", INT),)),
    OpDef("stablehlo.reshape", "operand", _infer_reshape, _eval_reshape),
    OpDef("stablehlo.reverse", "operand", _infer_reverse, _eval_reverse, (Attr("dimensions", INTS),)),
    OpDef(
        "stablehlo.slice",
        "operand",
        _infer_slice,
        _eval_slice,
        (Attr("start_indices", INTS), Attr("limit_indices", INTS), Attr("strides", INTS)),
    ),
    OpDef("stablehlo.transpose", "operand", _infer_transpose, _eval_transpose, (Attr("permutation", INTS),)),
    OpDef(
        "stablehlo.pad",
        "operand padding_value",
        _infer_pad,
        _eval_pad,
        (Attr("edge_padding_low", INTS), Attr("edge_padding_high", INTS), Attr("interior_padding", INTS)),
    ),
    OpDef(
        "stablehlo.get_dimension_size",
        "operand",
        _infer_get_dimension_size,
        _eval_get_dimension_size,
        (Attr("dimension", INT),),
    ),
    OpDef(
        "stablehlo.set_dimension_size",
        "operand size",
        _infer_set_dimension_size,
        _eval_set_dimension_size,
        (Attr("dimension", INT),),
    ),
    OpDef("stablehlo.tuple", "val*", _infer_tuple, _eval_tuple),
    OpDef(
        "stablehlo.get_tuple_element",
        "operand",
        _infer_get_tuple_element,
        _eval_get_tuple_element,
        (Attr("index", INT32),),
    ),
]
