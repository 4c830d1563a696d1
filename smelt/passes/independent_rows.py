"""Whether the rows of a batch are independent: requests of several clients may then run as one call.

`find_mixing(func, symbol)` proves, op by op, that row i of every result depends on row i of the inputs, and on nothing
else that a caller gives: not on other rows, not on its position in the batch, not on the size of the batch. An op
without a rule counts as mixing. This is stronger than `padding.find_leak`, which lets `x + iota` pass. The server
calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from smelt.dim import product, symbol, symbols
from smelt.ir.core import Func, Op, Value, walk
from smelt.ir.ops import OPS
from smelt.ir.ops.reduce import scan_counts
from smelt.passes.lower import is_pointwise
from smelt.passes.padding import multiple
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape

# Keys of a model's provenance.
BATCHED, NOT_BATCHED = "independent rows", "rows not independent"
ANY = -1  # of results that are the same in every row, wherever these are

# The axis of a value's rows, which are contiguous blocks along it. None: the value is the same for every request.
Rows: TypeAlias = Mapping[Value, int | None]
Rule: TypeAlias = Callable[[Op, Rows], int | None]  # the axis of the results' rows


class _MixingError(Exception):
    """The reason why rows are not proven independent; never leaves this module."""


def batch_symbol(func: Func) -> str | None:
    """The symbol that is the size of axis 0 of every input that is not a weight, and of every result."""
    inputs = [arg for arg, attrs in zip(func.args, func.arg_attrs, strict=True) if WEIGHT not in attrs]
    first = {
        value.type.sizes[0] if isinstance(value.type, Shape) and value.type.rank else None
        for value in (*inputs, *func.results)
    }
    if len(first) != 1 or not inputs:
        return None
    size = first.pop()
    names = () if size is None else tuple(symbols(size))
    return names[0] if len(names) == 1 and size == symbol(names[0]) else None


def describe_batching(func: Func) -> dict[str, str]:
    """What a model says about batches of requests, for people and for the server: proven for a symbol, or why not."""
    name = batch_symbol(func)
    if name is None:
        return {NOT_BATCHED: "inputs and outputs do not have one dynamic dimension as their first"}
    reason = find_mixing(func, name)
    return {BATCHED: name} if reason is None else {NOT_BATCHED: reason}


def find_mixing(func: Func, name: str) -> str | None:
    """The reason why a row of the results may depend on other rows; None if it provably does not."""
    rows: dict[Value, int | None] = {}
    try:
        for arg in func.args:
            rows[arg] = _row_axis(arg, name)
            if rows[arg]:
                return f"an input has its rows on axis {rows[arg]}"
        live = _live_ops(func)
        for op in func.body.ops:
            if op in live:
                _follow(op, rows, name)
    except _MixingError as reason:
        return str(reason)
    return None if all(rows[result] == 0 for result in func.results) else "a result has no rows on axis 0"


def _live_ops(func: Func) -> set[Op]:
    """The ops that results depend on; the sizes that an importer computed along the way are mostly dead."""
    found: set[Op] = set()
    waiting = list(func.results)
    while waiting:
        op = waiting.pop().op
        if op is not None and op not in found:
            found.add(op)
            waiting += op.operands
            waiting += [value for region in op.regions for each in walk(region) for value in each.operands]
            waiting += [value for region in op.regions for value in region.results]
    return found


def _row_axis(value: Value, name: str) -> int | None:
    if not isinstance(value.type, Shape):
        raise _MixingError("a value is no tensor")
    axes = [axis for axis, size in enumerate(value.type.sizes) if name in symbols(size)]
    if not axes:
        return None
    if len(axes) > 1 or multiple(value.type.sizes[axes[0]], name) is None:
        raise _MixingError(f"a value is {value.type}: its rows are not along one axis")
    return axes[0]


def _follow(op: Op, rows: dict[Value, int | None], name: str) -> None:
    """Find the rows of an op's results, or the reason why they are mixed."""
    try:
        axis = _rows_of(op, rows, name)
        for result in op.results:
            rows[result] = _row_axis(result, name)
            if axis not in (rows[result], ANY):
                raise _MixingError(f"its result {result.type} does not have the rows of its operands")
    except _MixingError as reason:
        where = f" at {op.location}" if op.location else ""
        raise _MixingError(f"{op.name}{where}: {reason}") from None


def _rows_of(op: Op, rows: Rows, name: str) -> int | None:
    captured = [value for region in op.regions for each in walk(region) for value in each.operands if value in rows]
    if any(rows[value] is not None for value in captured):
        raise _MixingError("its body reads a batch")
    rule = _RULES.get(op.name)
    if rule is None and OPS[op.name].elementwise:
        rule = _elementwise
    if rule is not None:
        return rule(op, rows)
    if all(rows[operand] is None for operand in op.operands) and not any(
        name in value.type.symbols for value in op.results if isinstance(value.type, Shape)
    ):
        if op.name in _DRAWS:
            raise _MixingError("it draws random numbers")
        return None  # computed from weights and constants alone
    raise _MixingError("there is no rule for this op")


_DRAWS = ("stablehlo.rng", "stablehlo.custom_call")


def _same(axes: set[int | None]) -> int | None:
    """The one axis of all operands that have rows."""
    axes.discard(None)
    if len(axes) > 1:
        raise _MixingError("its operands have their rows on different axes")
    return axes.pop() if axes else None


# ---- one rule per op ----


def _elementwise(op: Op, rows: Rows) -> int | None:
    for operand in op.operands:
        if operand.shape.rank and operand.shape.sizes != op.results[0].shape.sizes:
            raise _MixingError("its operands have different shapes")
    return _same({rows[operand] for operand in op.operands})


def _broadcast(op: Op, rows: Rows) -> int | None:
    axis, dims = rows[op.operands[0]], op.attrs["broadcast_dimensions"]
    if axis is None:
        return ANY  # the same in every row
    if op.operands[0].shape.sizes[axis] != op.results[0].shape.sizes[dims[axis]]:
        raise _MixingError("the axis of the rows is broadcast")
    return int(dims[axis])


def _iota(op: Op, rows: Rows) -> int | None:
    counted = op.results[0].shape.sizes[op.attrs["iota_dimension"]]
    if symbols(counted):
        raise _MixingError("it counts along a dynamic dimension")
    return ANY


def _reshape(op: Op, rows: Rows) -> int | None:
    axis = rows[op.operands[0]]
    if axis is None:
        return None
    given, made = op.operands[0].shape.sizes, op.results[0].shape.sizes
    before = product(given[:axis])
    for at in range(len(made)):
        if symbols(made[at]) and product(made[:at]) == before:
            return at
    raise _MixingError("the sizes before the axis of the rows change")


def _transpose(op: Op, rows: Rows) -> int | None:
    axis = rows[op.operands[0]]
    return None if axis is None else list(op.attrs["permutation"]).index(axis)


def _keep(op: Op, rows: Rows) -> int | None:
    return _same({rows[operand] for operand in op.operands})


def _reduce(op: Op, rows: Rows) -> int | None:
    axis, dims = _keep(op, rows), op.attrs["dimensions"]
    if axis in dims:
        raise _MixingError("it reduces over the rows")
    return None if axis is None else axis - sum(dim < axis for dim in dims)


def _across(attribute: str) -> Rule:
    """An op that mixes elements along the axes that an attribute names, and no others."""

    def rule(op: Op, rows: Rows) -> int | None:
        axis, named = _keep(op, rows), op.attrs[attribute]
        mixed = (named,) if isinstance(named, int) else tuple(named)
        if axis is not None and axis in {at % op.operands[0].shape.rank for at in mixed}:
            raise _MixingError("it works across the rows")
        return axis

    return rule


def _scan(op: Op, rows: Rows) -> int | None:
    """Rows that are not along the scanned dimension stay apart: the body is elementwise."""
    if not is_pointwise(op.regions[0]):
        raise _MixingError("its body is not elementwise")
    inputs, _ = scan_counts(op)
    dimension = op.attrs["dimension"]
    found = {rows[value] for value in op.operands[:inputs]}
    for value in op.operands[inputs:]:  # a carry has no scanned dimension
        at = rows[value]
        found.add(None if at is None else at + (at >= dimension))
    if _same(found) == dimension:
        raise _MixingError("it works across the rows")
    return ANY  # each result has its own axis of rows


def _slice(op: Op, rows: Rows) -> int | None:
    """Its limits are numbers, so that it cuts a dynamic axis."""
    if rows[op.operands[0]] is not None:
        raise _MixingError("it cuts the axis of the rows")
    return None


def _pad(op: Op, rows: Rows) -> int | None:
    axis, padding = rows[op.operands[0]], ("edge_padding_low", "edge_padding_high", "interior_padding")
    if rows[op.operands[1]] is not None or (axis is not None and any(op.attrs[key][axis] for key in padding)):
        raise _MixingError("it pads the axis of the rows")
    return axis


def _dot(op: Op, rows: Rows) -> int | None:
    dims = op.attrs["dot_dimension_numbers"]
    batching = (list(dims.lhs_batching_dimensions), list(dims.rhs_batching_dimensions))
    contracting = (list(dims.lhs_contracting_dimensions), list(dims.rhs_contracting_dimensions))
    found = set[int | None]()
    places = len(batching[0])
    for operand, batch, summed in zip(op.operands, batching, contracting, strict=True):
        axis = rows[operand]
        free = [at for at in range(operand.shape.rank) if at not in batch and at not in summed]
        if axis in summed:
            raise _MixingError("it sums over the rows")
        if axis is not None:
            found.add(batch.index(axis) if axis in batch else places + free.index(axis))
        places += len(free)
    return _same(found)


def _convolution(op: Op, rows: Rows) -> int | None:
    dims = op.attrs["dimension_numbers"]
    if op.attrs.get("batch_group_count", 1) != 1 or rows[op.operands[1]] is not None:
        raise _MixingError("its kernel or its groups depend on the batch")
    if rows[op.operands[0]] is None:
        return None
    if rows[op.operands[0]] != dims.input_batch_dimension:
        raise _MixingError("it works across the rows")
    return int(dims.output_batch_dimension)


def _window(op: Op, rows: Rows) -> int | None:
    axis = _keep(op, rows)
    idle = {"window_dimensions": 1, "window_strides": 1, "base_dilations": 1, "window_dilations": 1}
    if axis is not None:
        padded = op.attrs.get("padding")
        moved = any(op.attrs.get(key) and op.attrs[key][axis] != amount for key, amount in idle.items())
        if moved or (padded is not None and len(padded) and any(padded[axis])):
            raise _MixingError("it works across the rows")
    return axis


def _gather(op: Op, rows: Rows) -> int | None:
    """Rows of a shared table by the indices of each request, or the same indices for every row of a batch."""
    table, indices = op.operands
    dims, rank = op.attrs["dimension_numbers"], op.results[0].shape.rank
    if dims.operand_batching_dims:
        raise _MixingError("it gathers in batches")
    if None not in (rows[table], rows[indices]):
        raise _MixingError("its table and its indices are batches")
    at = rows[indices]
    if at is not None:
        if at == dims.index_vector_dim:
            raise _MixingError("an index is spread over the rows")
        batch = [axis for axis in range(indices.shape.rank) if axis != dims.index_vector_dim]
        return [axis for axis in range(rank) if axis not in dims.offset_dims][batch.index(at)]
    axis = rows[table]
    if axis is None:
        return None
    kept = [at for at in range(table.shape.rank) if at not in dims.collapsed_slice_dims]
    if axis in dims.start_index_map or axis not in kept:
        raise _MixingError("it picks among the rows")
    return int(dims.offset_dims[kept.index(axis)])


_RULES: dict[str, Rule] = {
    "stablehlo.iota": _iota,
    "stablehlo.transpose": _transpose,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.reduce": _reduce,
    "stablehlo.reverse": _across("dimensions"),
    "stablehlo.concatenate": _across("dimension"),
    "stablehlo.sort": _across("dimension"),
    "chlo.scan": _scan,
    "stablehlo.slice": _slice,
    "stablehlo.pad": _pad,
    "stablehlo.dot_general": _dot,
    "stablehlo.convolution": _convolution,
    "stablehlo.reduce_window": _window,
    "stablehlo.gather": _gather,
}
