"""Whether a dynamic dimension may be padded: inputs padded along it, results cropped, all other bits equal.

`find_leak(func, symbol)` proves, op by op, that padding never affects the unpadded part of a value. An op without a
rule counts as a leak. Engines that compile once per size (pjrt) call it before they round sizes up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.dim import Size, divide_exact, product, symbol, symbols
from smelt.ir.core import Func, Op, Region, Value, walk
from smelt.ir.ops import OPS
from smelt.ir.ops.reduce import scan_counts
from smelt.passes.lower import is_pointwise
from smelt.shape import Shape


def find_leak(func: Func, name: str) -> str | None:
    """The reason why padding along a symbol may change results; None if it provably does not.

    Invariant: for every value, the part with indices below `k*s` on axes of size `k*name` (s: the true size) is what
    the run without padding gives.
    """
    for value in (*func.args, *func.results):
        if not isinstance(value.type, Shape):
            return f"@{func.name} has an argument or result that is no tensor"
    for arg in func.args:
        if any(name in symbols(size) and size != symbol(name) for size in arg.shape.sizes):
            return f"an argument is {arg.shape}, and {name} is only a part of a size"
    for op in func.body.ops:
        reason = _op_leaks(op, name)
        if reason is not None:
            where = f" at {op.location}" if op.location else ""
            return f"{op.name}{where}: {reason}"
    return None


def multiple(size: Size, name: str) -> Size | None:
    """k, where a size is `k*name` and k does not depend on it."""
    factor = divide_exact(size, symbol(name)) if name in symbols(size) else None
    return factor if factor is not None and name not in symbols(factor) else None


def _op_leaks(op: Op, name: str) -> str | None:
    touched = [value for value in (*op.operands, *op.results, *_inner(op)) if _dynamic_axes(value, name) != ()]
    if not touched:
        return None
    for value in touched:
        axes = _dynamic_axes(value, name)
        if axes is None:
            return "an operand or result is no tensor"
        if any(multiple(value.shape.sizes[axis], name) is None for axis in axes):
            return f"a size of {value.shape} is no multiple of {name}"
    if OPS[op.name].elementwise:
        sizes = op.results[0].shape.sizes
        same = all(operand.shape.sizes in (sizes, ()) for operand in op.operands)
        return None if same else "its operands have different shapes"
    rule = _RULES.get(op.name)
    return rule(op, name) if rule else "there is no rule for this op"


def _inner(op: Op) -> list[Value]:
    """The values that regions of an op define or use."""
    found: list[Value] = []
    for region in op.regions:
        found += [*region.args, *region.results]
        for inner in walk(region):
            found += [*inner.operands, *inner.results]
            found += [arg for nested in inner.regions for arg in _ends(nested)]
    return found


def _ends(region: Region) -> list[Value]:
    return [*region.args, *region.results]


def _dynamic_axes(value: Value, name: str) -> tuple[int, ...] | None:
    """The axes whose size depends on a symbol; None for a value that is no tensor."""
    if not isinstance(value.type, Shape):
        return None
    return tuple(axis for axis, size in enumerate(value.type.sizes) if name in symbols(size))


def _axes(value: Value, name: str) -> tuple[int, ...]:
    return _dynamic_axes(value, name) or ()


# ---- one rule per op: the reason why it leaks, or None ----


def _free(op: Op, name: str) -> str | None:
    """Every element of the result depends on its own position alone."""
    return None


def _broadcast(op: Op, name: str) -> str | None:
    given, made = op.operands[0].shape.sizes, op.result.shape.sizes
    for size, dim in zip(given, op.attrs["broadcast_dimensions"], strict=True):
        if size != made[dim] and size != 1:
            return "a dynamic dimension is broadcast"
    return None


def _reshape(op: Op, name: str) -> str | None:
    before, after = _axes(op.operands[0], name), _axes(op.result, name)
    if len(before) != 1 or len(after) != 1:
        return f"{name} does not stay on one axis"
    given, made = op.operands[0].shape.sizes, op.result.shape.sizes
    if product(given[: before[0]]) != product(made[: after[0]]):
        return f"the sizes before the axis of {name} change"
    return None


def _along(attribute: str) -> Callable[[Op, str], str | None]:
    """An op that mixes elements along the axes that an attribute names, and no others."""

    def rule(op: Op, name: str) -> str | None:
        named = op.attrs[attribute]
        mixed = (named,) if isinstance(named, int) else tuple(named)
        for operand in op.operands:
            shared = set(_axes(operand, name)) & {axis % max(operand.shape.rank, 1) for axis in mixed}
            if shared and operand.shape.rank:
                return f"it works across the axis of {name}"
        return None

    return rule


def _reduce(op: Op, name: str) -> str | None:
    if any(_axes(value, name) != () for value in _inner(op)):
        return "its body uses it"
    return _along("dimensions")(op, name)


def _sort(op: Op, name: str) -> str | None:
    if any(_axes(value, name) != () for value in _inner(op)):
        return "its body uses it"
    return _along("dimension")(op, name)


def _scan(op: Op, name: str) -> str | None:
    if not is_pointwise(op.regions[0]):
        return "its body is not elementwise"
    along = any(op.attrs["dimension"] in _axes(value, name) for value in op.operands[: scan_counts(op)[0]])
    return f"it works across the axis of {name}" if along else None


def _slice(op: Op, name: str) -> str | None:
    """The limits of a slice are numbers, so it always cuts a dynamic dimension."""
    return f"it cuts the axis of {name}" if _axes(op.operands[0], name) else None


def _pad(op: Op, name: str) -> str | None:
    for axis in _axes(op.operands[0], name):
        if any(op.attrs[key][axis] for key in ("edge_padding_low", "edge_padding_high", "interior_padding")):
            return f"it pads the axis of {name}"
    return None


def _dot(op: Op, name: str) -> str | None:
    dims = op.attrs["dot_dimension_numbers"]
    contracted = (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions)
    for operand, axes in zip(op.operands, contracted, strict=True):
        if set(_axes(operand, name)) & set(axes):
            return f"it sums over {name}"
    return None


def _convolution(op: Op, name: str) -> str | None:
    dims = op.attrs["dimension_numbers"]
    if op.attrs.get("batch_group_count", 1) != 1 or _axes(op.operands[1], name):
        return f"its kernel or its groups depend on {name}"
    if set(_axes(op.operands[0], name)) - {dims.input_batch_dimension}:
        return f"it works across the axis of {name}"
    return None


def _window(op: Op, name: str) -> str | None:
    idle = {"window_dimensions": 1, "window_strides": 1, "base_dilations": 1, "window_dilations": 1, "padding": (0, 0)}
    for axis in {axis for operand in op.operands for axis in _axes(operand, name)}:
        for key, amount in idle.items():
            given = op.attrs.get(key)
            if given and _entry(given[axis]) != amount:
                return f"it works across the axis of {name}"
    return None


def _entry(entry: Any) -> Any:
    return entry if isinstance(entry, int) else tuple(entry)


def _gather(op: Op, name: str) -> str | None:
    """Rows gathered from an unpadded table: each index reads its own row."""
    table, indices = op.operands
    dims = op.attrs["dimension_numbers"]
    if _axes(table, name):
        return f"it picks along the axis of {name}"
    if dims.index_vector_dim in _axes(indices, name) or dims.operand_batching_dims:
        return f"an index runs along the axis of {name}"
    offsets = set(dims.offset_dims)
    return f"a row is {name} long" if offsets & set(_axes(op.result, name)) else None


_RULES: dict[str, Callable[[Op, str], str | None]] = {
    "stablehlo.iota": _free,
    "stablehlo.transpose": _free,
    "stablehlo.optimization_barrier": _free,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.reduce": _reduce,
    "stablehlo.reverse": _along("dimensions"),
    "stablehlo.concatenate": _along("dimension"),
    "stablehlo.sort": _sort,
    "chlo.scan": _scan,
    "stablehlo.slice": _slice,
    "stablehlo.pad": _pad,
    "stablehlo.dot_general": _dot,
    "stablehlo.convolution": _convolution,
    "stablehlo.reduce_window": _window,
    "stablehlo.gather": _gather,
}
