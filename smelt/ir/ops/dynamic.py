"""Ops whose sizes are operands. Each shares inference and reference semantics with its static counterpart.

Inference asks `ir.sizes` what the size operands are. A size it can prove becomes that polynomial, another is what was
declared, and one that only data knows is a new symbol, whose value the run gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.dim import Size, at_most, floordiv, product
from smelt.dtype import Array, ElementType
from smelt.errors import RunError, SizeError
from smelt.ir.attributes import BOOL, GATHER, INT, INTS
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import UNKNOWN, Attr, Call, Frame, OpDef
from smelt.ir.ops.index import as_int64, gather, infer_gather, top_k
from smelt.ir.ops.lapack import TARGETS, eval_lapack, infer_lapack
from smelt.ir.ops.random import bits
from smelt.ir.ops.shape import (
    broadcast_in_dim,
    check_fits,
    check_pad,
    infer_broadcast,
    infer_iota,
    infer_reshape,
    iota,
    not_per_axis,
    pad,
    padded_size,
    reshape,
    solve_reshape,
    take_slice,
)
from smelt.ir.ops.window import CONVOLUTION, Window, convolution_of, infer_convolution, reduce_windows, window_count
from smelt.ir.sizes import Known, trace_each
from smelt.shape import Shape


def known_numbers(call: Call, index: int, label: str) -> tuple[Known, ...]:
    """The elements of an operand that lists one integer per dimension, each None where only data knows it."""
    shape = call.shape(index)
    fits = shape.rank == 1 and shape.dtype.is_integer and isinstance(shape.sizes[0], int)
    call.require(fits, label, f"operand {index} must be a list of integers of known length", got=shape)
    if shape.sizes[0] > 1 << 10:
        call.fail(label, "no tensor has that many dimensions", got=shape)
    found = trace_each(call.operands[index])
    assert found is not None
    return found


def _same_rank(call: Call, numbers: Sequence[Known], rank: int, label: str) -> None:
    call.require(len(numbers) == rank, label, "one number per dimension", expected=rank, got=len(numbers))


def choose_sizes(call: Call, known: Sequence[Known]) -> list[Size]:
    """Sizes of the result: what is known, else what was declared, else a new symbol."""
    return [call.scope.new_symbol() if size == UNKNOWN else size for size in _known_or_declared(call, known)]


def _known_or_declared(call: Call, known: Sequence[Known]) -> list[Size]:
    declared: Sequence[Size] = call.declared_shape().sizes if call.declared else ()
    if len(declared) != len(known):
        declared = [UNKNOWN] * len(known)
    sizes: list[Size] = []
    for have, want in zip(known, declared, strict=True):
        if have is not None:
            call.at_most(0, have, "", "a size must not be negative")
        sizes.append(want if have is None else have)
    return sizes


def _dtype(call: Call) -> ElementType:
    """The declared element type, which may be quantised along another axis than the operand's, or the operand's own."""
    return call.declared_shape().dtype if call.declared else call.shape(0).dtype


def numbers(array: Array) -> list[int]:
    found: list[int] = as_int64(array).tolist()
    return found


# ---- broadcast, iota, reshape ----


def _infer_dynamic_broadcast_in_dim(call: Call) -> list[Type]:
    operand = call.shape(0)
    sizes = choose_sizes(call, known_numbers(call, 1, "dynamic_broadcast_in_dim_c7"))
    expanding = call.attrs.get("known_expanding_dimensions") or ()
    others = call.attrs.get("known_nonexpanding_dimensions") or ()
    call.check_dims(expanding, operand.rank, "dynamic_broadcast_in_dim_c9", "known_expanding_dimensions", unique=False)
    call.check_dims(others, operand.rank, "dynamic_broadcast_in_dim_c10", "known_nonexpanding_dimensions", unique=False)
    call.check_dims((*expanding, *others), operand.rank, "dynamic_broadcast_in_dim_c8", "known dimensions")
    return [infer_broadcast(call, sizes, _dtype(call))]


def _eval_dynamic_broadcast_in_dim(_: Frame, op: Op, operand: Array, output_dimensions: Array) -> Array:
    return broadcast_in_dim(op, operand, check_fits(op, numbers(output_dimensions)))


def _infer_dynamic_iota(call: Call) -> list[Type]:
    return [
        infer_iota(call, choose_sizes(call, known_numbers(call, 0, "dynamic_iota_c2")), call.declared_shape().dtype)
    ]


def _eval_dynamic_iota(_: Frame, op: Op, output_shape: Array) -> Array:
    return iota(op, check_fits(op, numbers(output_shape)))


def _infer_dynamic_reshape(call: Call) -> list[Type]:
    return [_fill_missing_size(call, known_numbers(call, 1, "dynamic_reshape_c4"))]


def _fill_missing_size(call: Call, known: Sequence[Known]) -> Shape:
    """One size that nothing else determines follows from the number of elements."""
    sizes = _known_or_declared(call, known)
    if product(size for size in sizes if size != UNKNOWN) != 0:
        sizes = solve_reshape(call, call.shape(0).count, sizes)
    return infer_reshape(call, [call.scope.new_symbol() if size == UNKNOWN else size for size in sizes], _dtype(call))


def _eval_dynamic_reshape(_: Frame, op: Op, operand: Array, output_shape: Array) -> Array:
    return reshape(op, operand, check_fits(op, numbers(output_shape)))


def _infer_chlo_dynamic_reshape(call: Call) -> list[Type]:
    """As above, and one size may be -1: whatever is left."""
    known = known_numbers(call, 1, "dynamic_reshape_c4")
    call.require(list(known).count(-1) <= 1, "", "at most one size may be -1", got=list(known))
    return [_fill_missing_size(call, [None if size == -1 else size for size in known])]


def _eval_chlo_dynamic_reshape(_: Frame, op: Op, operand: Array, output_shape: Array) -> Array:
    sizes = numbers(output_shape)
    if sizes.count(-1) == 1:
        rest = int(product(size for size in sizes if size != -1))  # type: ignore[arg-type]
        sizes[sizes.index(-1)] = operand.size // rest if rest else 0
    return reshape(op, operand, check_fits(op, sizes))


# ---- gather, pad, slice ----


def _infer_dynamic_gather(call: Call) -> list[Type]:
    slice_sizes = known_numbers(call, 2, "dynamic_gather_i3")
    dtype, known = infer_gather(call, call.shape(0), call.shape(1), call.attrs["dimension_numbers"], slice_sizes)
    return [Shape.of(dtype, choose_sizes(call, known))]


def _eval_dynamic_gather(_: Frame, op: Op, operand: Array, indices: Array, slice_sizes: Array) -> Array:
    found = gather(op, operand, indices, numbers(slice_sizes))
    check_fits(op, found.shape)
    return found


def _infer_dynamic_pad(call: Call) -> list[Type]:
    operand = check_pad(call)
    paddings = [known_numbers(call, i, f"dynamic_pad_i{i + 1}") for i in (2, 3, 4)]
    for each, shape in zip(paddings, call.shapes[2:], strict=True):
        _same_rank(call, each, operand.rank, "dynamic_pad_c2")
        call.same_dtype(call.shape(2).dtype, shape.dtype, "dynamic_pad_i3", "all paddings must have one type")
    known: list[Known] = []
    for size, low, high, interior in zip(operand.sizes, *paddings, strict=True):
        if interior is not None:
            call.at_most(0, interior, "dynamic_pad_c3", "interior padding must not be negative")
        known.append(
            None if low is None or high is None or interior is None else padded_size(size, low, high, interior)
        )
    return [Shape.of(operand.dtype, choose_sizes(call, known))]


def _eval_dynamic_pad(
    _: Frame, op: Op, operand: Array, value: Array, low: Array, high: Array, interior: Array
) -> Array:
    between = numbers(interior)
    if any(number < 0 for number in between):
        raise RunError(f"{op.name}: interior padding must not be negative", got=between, where=op.location)
    return pad(op, operand, value, numbers(low), numbers(high), between)


def _infer_real_dynamic_slice(call: Call) -> list[Type]:
    operand = call.shape(0)
    not_per_axis(call, operand)
    parts = [known_numbers(call, i, f"real_dynamic_slice_i{i + 1}") for i in (1, 2, 3)]
    for each, shape in zip(parts, call.shapes[1:], strict=True):
        _same_rank(call, each, operand.rank, "real_dynamic_slice_c2")
        call.same_dtype(call.shape(1).dtype, shape.dtype, "real_dynamic_slice_c3", "all indices must have one type")
    known: list[Known] = []
    for size, start, limit, stride in zip(operand.sizes, *parts, strict=True):
        if start is not None:
            call.at_most(0, start, "slice_c3", "a slice must begin inside")
        if limit is not None:
            call.at_most(limit, size, "slice_c3", "the limit must be inside the dimension")
        if stride is not None:
            call.at_most(1, stride, "slice_c4", "strides must be positive")
        if start is None or limit is None or stride is None or not at_most(1, stride):
            known.append(None)
        else:
            call.at_most(start, limit, "slice_c3", "a slice must not end before it begins")
            known.append(floordiv(limit - start + stride - 1, stride))
    return [Shape.of(operand.dtype, choose_sizes(call, known))]


def _eval_real_dynamic_slice(_: Frame, op: Op, operand: Array, *parts: Array) -> Array:
    starts, limits, strides = (numbers(part) for part in parts)
    for start, limit, stride in zip(starts, limits, strides, strict=True):
        if not 0 <= start <= limit or stride < 1:
            got = f"start {start}, limit {limit}, stride {stride}"
            raise SizeError(
                f"{op.name}: 0 <= start <= limit and a positive stride must hold", got=got, where=op.location
            )
    found = take_slice(op, operand, starts, limits, strides)
    check_fits(op, found.shape)
    return found


# ---- convolution ----


def _infer_dynamic_conv(call: Call) -> list[Type]:
    """A row of the padding that only data knows is left to the run."""
    lhs, padding = call.shape(0), call.shape(2)
    fits = padding.rank == 2 and padding.dtype.is_integer
    call.require(fits and padding.is_static, "dynamic_conv_i3", "the padding must be a matrix of integers", got=padding)
    call.same_sizes(
        (max(lhs.rank - 2, 0), 2), padding.sizes, "dynamic_conv_c4", "one pair of numbers per spatial dimension"
    )
    known = trace_each(call.operands[2]) or (None,) * (2 * max(lhs.rank - 2, 0))
    rows: list[Any] = [None if None in (pair := known[i : i + 2]) else pair for i in range(0, len(known), 2)]
    return infer_convolution(call, rows)


def _eval_dynamic_conv(_: Frame, op: Op, lhs: Array, rhs: Array, padding: Array) -> Array:
    found = convolution_of(op, lhs, rhs, as_int64(padding).tolist())
    check_fits(op, found.shape)
    return found


# ---- what JAX exports as custom calls, for want of dynamic twins ----


def _infer_called_window(call: Call) -> list[Type] | None:
    """`stablehlo.dynamic_reduce_window`: inputs, inits, window sizes, strides, both dilations and padding."""
    count = len(call.declared or ())
    types = [value.type for value in call.operands]
    if not count or len(types) != 2 * count + 5 or not isinstance(types[0], Shape):
        return None
    rank = types[0].rank
    shapes = [type.sizes if isinstance(type, Shape) else None for type in types[2 * count :]]
    if shapes != [(rank,)] * 4 + [(rank, 2)]:
        return None
    sizes, strides, bases, dilations, edges = (trace_each(value) for value in call.operands[2 * count :])
    if sizes is None or strides is None or bases is None or dilations is None or edges is None:
        return None
    known: list[Known] = []
    for axis, size in enumerate(types[0].sizes):
        low, high = edges[2 * axis : 2 * axis + 2]
        stride, base, dilation, window = strides[axis], bases[axis], dilations[axis], sizes[axis]
        numbers = all(isinstance(number, int) and number > 0 for number in (stride, base, dilation))
        if not numbers or low is None or high is None or window is None:
            known.append(None)
        else:
            known.append(window_count(size, (low, high), base, window, dilation, stride))  # type: ignore[arg-type]
    return [_called_type(call, i, known) for i in range(count)]


def _called_type(call: Call, index: int, known: Sequence[Known]) -> Shape:
    """The declared type with its dynamic dimensions as far as they are known."""
    wanted = call.declared_shape(index)
    if wanted.rank != len(known):
        call.fail("", f"result {index} has another rank", expected=len(known), got=wanted)
    pairs = zip(wanted.sizes, known, strict=True)
    sizes = [size if size != UNKNOWN else call.scope.new_symbol() if have is None else have for size, have in pairs]
    return Shape.of(wanted.dtype, sizes)


def _called_window(frame: Frame, op: Op, *operands: Array) -> tuple[Array, ...]:
    count = len(op.results)
    sizes, strides, bases, dilations = (tuple(numbers(each)) for each in operands[2 * count : 2 * count + 4])
    if any(number < 1 for number in (*sizes, *strides, *bases, *dilations)):
        got = [list(each) for each in (sizes, strides, bases, dilations)]
        raise RunError(f"{op.name}: the numbers of a window must be positive", got=got, where=op.location)
    padding = tuple((low, high) for low, high in as_int64(operands[2 * count + 4]).tolist())
    body = frame.program.func(op.attrs["called_computations"][0]).body
    window = Window(sizes, strides, padding, bases, dilations)
    found = reduce_windows(frame, op, body, window, operands[: 2 * count])
    check_fits(op, found[0].shape)
    return found


def _infer_called_top_k(call: Call) -> list[Type] | None:
    """`stablehlo.dynamic_top_k`: an operand and k."""
    if len(call.operands) != 2 or len(call.declared or ()) != 2 or not isinstance(call.operands[0].type, Shape):
        return None
    found, operand = trace_each(call.operands[1]), call.shape(0)
    if found is None or len(found) != 1 or not operand.rank:
        return None
    return [_called_type(call, i, (*operand.sizes[:-1], found[0])) for i in range(2)]


def _called_top_k(frame: Frame, op: Op, operand: Array, k: Array) -> tuple[Array, ...]:
    return top_k(op, operand, int(k.item()))


def _infer_called_bits(call: Call) -> list[Type] | None:
    """`stablehlo.dynamic_rng_bit_generator`: a state and the sizes of the output."""
    if len(call.operands) != 2 or len(call.declared or ()) != 2:
        return None
    found = trace_each(call.operands[1])
    return None if found is None else [call.shape(0), _called_type(call, 1, found)]


def _called_bits(frame: Frame, op: Op, state: Array, shape: Array) -> tuple[Array, ...]:
    algorithm = str(op.attrs.get("rng_algorithm", "DEFAULT"))
    name = next((name for name in ("THREE_FRY", "PHILOX") if name in algorithm), "DEFAULT")
    sizes = tuple(numbers(shape))
    if any(size < 0 for size in sizes):
        raise RunError(f"{op.name}: a size must not be negative", got=list(sizes), where=op.location)
    return bits(state, sizes, op.results[1].shape.element, name)


# target → (inference, which is None where the call is not what JAX makes; evaluate)
CALLED: Mapping[str, tuple[Callable[[Call], list[Type] | None], Callable[..., Any]]] = {
    **dict.fromkeys(TARGETS, (infer_lapack, eval_lapack)),
    "stablehlo.dynamic_reduce_window": (_infer_called_window, _called_window),
    "stablehlo.dynamic_rng_bit_generator": (_infer_called_bits, _called_bits),
    "stablehlo.dynamic_top_k": (_infer_called_top_k, _called_top_k),
}


ROWS: list[OpDef] = [
    OpDef(
        "stablehlo.dynamic_broadcast_in_dim",
        "operand output_dimensions",
        _infer_dynamic_broadcast_in_dim,
        _eval_dynamic_broadcast_in_dim,
        (
            Attr("broadcast_dimensions", INTS),
            Attr("known_expanding_dimensions", INTS, None),
            Attr("known_nonexpanding_dimensions", INTS, None),
        ),
    ),
    OpDef(
        "stablehlo.dynamic_conv",
        "lhs rhs padding",
        _infer_dynamic_conv,
        _eval_dynamic_conv,
        tuple(attr for attr in CONVOLUTION if attr.name != "padding"),  # which is an operand here
    ),
    OpDef(
        "stablehlo.dynamic_gather",
        "operand start_indices slice_sizes",
        _infer_dynamic_gather,
        _eval_dynamic_gather,
        (Attr("dimension_numbers", GATHER), Attr("indices_are_sorted", BOOL, False)),
    ),
    OpDef(
        "stablehlo.dynamic_iota",
        "output_shape",
        _infer_dynamic_iota,
        _eval_dynamic_iota,
        (Attr("iota_dimension", INT),),
    ),
    OpDef(
        "stablehlo.dynamic_pad",
        "operand padding_value edge_padding_low edge_padding_high interior_padding",
        _infer_dynamic_pad,
        _eval_dynamic_pad,
    ),
    OpDef("stablehlo.dynamic_reshape", "operand output_shape", _infer_dynamic_reshape, _eval_dynamic_reshape),
    OpDef(
        "stablehlo.real_dynamic_slice",
        "operand start_indices limit_indices strides",
        _infer_real_dynamic_slice,
        _eval_real_dynamic_slice,
    ),
    OpDef("chlo.dynamic_reshape", "operand output_shape", _infer_chlo_dynamic_reshape, _eval_chlo_dynamic_reshape),
]
