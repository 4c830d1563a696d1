"""Preconditions that kernels rely on: on sizes (`region_size_checks`) and on data (`RUNTIME_CHECKS`).

`fuse` emits size checks before a block runs. Data conditions are computed and checked where the op stands; there, a
data-dependent size gets its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from smelt.dim import Size, maximum, minimum
from smelt.dtype import i1, i64
from smelt.errors import RunError
from smelt.ir.core import Op, Region
from smelt.ir.size_checks import ADDRESSABLE, Check, size_checks, sizes_checks
from smelt.kernel.build import scatter_simt, sort_simt
from smelt.kernel.build.gather_scatter import slice_sizes, to_index
from smelt.kernel.loops.grammar import Amount, Expr, Number, add, scale
from smelt.kernel.loops.nest import Nest, tensor
from smelt.shape import Shape
from smelt.target import Target


class SizeValue(NamedTuple):
    """A number computed from data, and the size that it must equal."""

    number: Expr
    size: Size


RuntimeCheck = Callable[[Nest, Op], Iterator[Expr | SizeValue]]

RUNTIME_CHECKS: dict[str, RuntimeCheck] = {}


def region_size_checks(region: Region, target: Target) -> list[Check]:
    """The conditions of a block's ops on sizes, on a target; raises RunError for a tensor that no machine can hold."""
    found = [*sizes_checks("an argument", [value.type for value in region.args])]
    for op in region.ops:
        for value in op.results:
            if isinstance(value.type, Shape):
                found += _room(op, value.type)
        found += (*size_checks(op), *_limits(op), *(_simt_limits(op) if target.kind == "simt" else ()))
    first = {(check.a, check.relation, check.b): check for check in reversed(found)}  # name the first op
    return list(reversed(first.values()))


def _room(op: Op, shape: Shape) -> Iterator[Check]:
    """The bytes of a tensor fit in 63 bits, even if it is never materialised."""
    bytes = shape.count * shape.dtype.numpy.itemsize
    if not isinstance(bytes, int):
        yield Check(bytes, "<=", ADDRESSABLE, f"{op.name}: no memory for the result")
    elif bytes > ADDRESSABLE:
        raise RunError(f"{op.name}: no memory for the result", got=shape, where=op.location)


def _limits(op: Op) -> Iterator[Check]:
    """Conditions of kernels that types do not imply."""
    if op.name == "stablehlo.dynamic_gather":
        collapsed = op.attrs["dimension_numbers"].collapsed_slice_dims
        for d, (size, most) in enumerate(zip(slice_sizes(op), tensor(op.operands[0]).sizes, strict=True)):
            if d not in collapsed and not (isinstance(size, int) and isinstance(most, int) and size <= most):
                some = minimum(size, size * tensor(op.operands[1]).count)
                yield Check(some, "<=", most, f"{op.name}: the slice fits into the operand")
    if op.name == "stablehlo.torch_index_select":
        shape = tensor(op.operands[0])
        needed, most = minimum(tensor(op.result).count, 1), shape.sizes[op.attrs["dim"] % shape.rank]
        if not (isinstance(needed, int) and isinstance(most, int) and needed <= most):
            yield Check(needed, "<=", most, f"{op.name}: there is something to select from")
    if op.name == "stablehlo.broadcast_in_dim":
        sizes, full = tensor(op.operands[0]).sizes, tensor(op.result).sizes
        for d, size in zip(op.attrs["broadcast_dimensions"], sizes, strict=True):
            if size not in (1, full[d]):
                yield Check(size, "==", full[d], f"{op.name}: a dynamic dimension is not broadcast")


def _simt_limits(op: Op) -> Iterator[Check]:
    """Rows whose length is dynamic are sorted by launches for the longest one (`sort_simt`)."""
    length: Size = 0
    match op.name:
        case "stablehlo.sort":
            length = tensor(op.operands[0]).sizes[op.attrs["dimension"]]
        case "chlo.top_k":
            length = tensor(op.operands[0]).sizes[-1]
        case "stablehlo.scatter" if scatter_simt.is_sorted(op):
            length = scatter_simt.count_updates(op)
    if not isinstance(length, int):
        yield Check(length, "<=", sort_simt.MOST, f"{op.name}: a row is not longer than what kernels sort")


def runtime_check(*names: str) -> Callable[[RuntimeCheck], RuntimeCheck]:
    """Register the conditions of an op on data."""

    def register(rule: RuntimeCheck) -> RuntimeCheck:
        for name in names:
            RUNTIME_CHECKS[name] = rule
        return rule

    return register


def _number(nest: Nest, op: Op, operand: int, *index: int) -> Expr:
    return to_index(nest, nest.pull(op.operands[operand], tuple(map(Number, index))))


def _equal(nest: Nest, x: Expr, size: Size) -> SizeValue:
    return SizeValue(nest.let(x), size)


def _at_most(nest: Nest, x: Expr, y: Expr) -> Expr:
    return nest.apply("LE", nest.let(x), nest.let(y), dtype=i1)


@runtime_check("stablehlo.dynamic_iota", "stablehlo.dynamic_reshape", "stablehlo.dynamic_broadcast_in_dim")
def output_shape(nest: Nest, op: Op) -> Iterator[Expr | SizeValue]:
    last = len(op.operands) - 1
    for d, size in enumerate(tensor(op.result).sizes):
        yield _equal(nest, _number(nest, op, last, d), size)
    if op.name == "stablehlo.dynamic_broadcast_in_dim":
        full = tensor(op.result).sizes
        for d, size in zip(op.attrs["broadcast_dimensions"], tensor(op.operands[0]).sizes, strict=True):
            if size not in (1, full[d]):
                one = nest.apply("EQ", Amount(size), Number(1), dtype=i1)
                kept = nest.apply("EQ", Amount(size), _number(nest, op, last, d), dtype=i1)
                yield nest.apply("or", one, kept)


@runtime_check("stablehlo.set_dimension_size")
def set_dimension_size(nest: Nest, op: Op) -> Iterator[Expr | SizeValue]:
    yield _equal(nest, _number(nest, op, 1), tensor(op.result).sizes[op.attrs["dimension"]])


@runtime_check("stablehlo.dynamic_gather")
def dynamic_gather(nest: Nest, op: Op) -> Iterator[Expr | SizeValue]:
    dims = op.attrs["dimension_numbers"]
    for d, size in enumerate(slice_sizes(op)):
        given = _number(nest, op, 2, d)
        if d in dims.collapsed_slice_dims or d in dims.operand_batching_dims:
            yield _at_most(nest, Number(0), given)
            unused = 1 - minimum(tensor(op.operands[1]).count, 1)  # without indices a slice need not fit
            yield _at_most(nest, given, Amount(minimum(maximum(tensor(op.operands[0]).sizes[d], unused), 1)))
        else:
            yield _equal(nest, given, size)


@runtime_check("stablehlo.real_dynamic_slice")
def real_dynamic_slice(nest: Nest, op: Op) -> Iterator[Expr | SizeValue]:
    sizes = zip(tensor(op.operands[0]).sizes, tensor(op.result).sizes, strict=True)
    for d, (size, count) in enumerate(sizes):
        start, limit, stride = (_number(nest, op, i, d) for i in (1, 2, 3))
        yield _at_most(nest, Number(0), start)
        yield _at_most(nest, start, limit)
        yield _at_most(nest, limit, Amount(size))
        yield _at_most(nest, Number(1), stride)
        step = nest.apply("clamp", Number(1), stride, Amount(maximum(size, 1)), dtype=i64)  # no overflow
        yield _equal(nest, nest.apply("divide", nest.let(add(limit, scale(start, -1), step, -1)), step), count)


@runtime_check("stablehlo.dynamic_pad")
def dynamic_pad(nest: Nest, op: Op) -> Iterator[Expr | SizeValue]:
    sizes = zip(tensor(op.operands[0]).sizes, tensor(op.result).sizes, strict=True)
    for d, (size, full) in enumerate(sizes):
        low, high, interior = (_number(nest, op, i, d) for i in (2, 3, 4))
        yield _at_most(nest, Number(0), interior)
        yield _equal(nest, add(low, high, scale(interior, maximum(size - 1, 0)), size), full)


@runtime_check("stablehlo.dynamic_conv")
def dynamic_conv(nest: Nest, op: Op) -> Iterator[Expr | SizeValue]:
    dims = op.attrs["dimension_numbers"]
    inputs, kernels, results = (tensor(value).sizes for value in (*op.operands[:2], op.result))
    count = len(dims.input_spatial_dimensions)
    strides, base, holes = (
        tuple(op.attrs.get(name) or (1,) * count) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    for i in range(count):
        low, high = (_number(nest, op, 2, i, side) for side in (0, 1))
        length = maximum((inputs[dims.input_spatial_dimensions[i]] - 1) * base[i] + 1, 0)
        reach = maximum((kernels[dims.kernel_spatial_dimensions[i]] - 1) * holes[i] + 1, 0)
        room = nest.let(add(low, high, length - reach))
        places = add(nest.apply("divide", room, Number(strides[i])), 1)
        found = nest.apply("select", nest.less(room, Number(0)), Number(0), nest.let(places), dtype=i64)
        yield _equal(nest, found, results[dims.output_spatial_dimensions[i]])
