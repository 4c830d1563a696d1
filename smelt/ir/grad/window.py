"""Derivatives of windowed reductions. Sums slide back, choices remember the element they took (the first, as in JAX).

Any other body, and a choice in a dilated window, is a reduction over stacked slices, one per element of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as combinations
from math import inf, prod
from typing import Any

from smelt.dim import Size
from smelt.ir.build import Builder
from smelt.ir.clone import clone_region
from smelt.ir.core import Op, Region, Value
from smelt.ir.grad.reduce import is_neutral, single_op
from smelt.ir.grad.rule import Cotangents, Rule, cast, is_differentiable, no_derivative, refuse, sum_over, zeros
from smelt.ir.grad.shape import pad_with_zeros, spread_length, take
from smelt.ir.grad.sweep import Forward, Reverse
from smelt.ir.ops.window import Window, can_pad_first, window_of
from smelt.shape import Shape

_MOST = 4096  # elements of a window whose slices are stacked
_KEEPS = {"maximum": "GE", "minimum": "LE"}  # which comparison keeps the element seen first


def _attrs(window: Window) -> dict[str, Any]:
    return {
        "window_dimensions": window.sizes,
        "window_strides": window.strides,
        "padding": window.padding,
        "base_dilations": window.base_dilations,
        "window_dilations": window.dilations,
    }


def _slide_sum(b: Builder, x: Value, init: Value, window: Window, result: Shape | None = None) -> Value:
    scalar = Shape.of(x.shape.dtype, ())
    with b.region(scalar, scalar) as r:
        r.result(r.add(*r.args))
    made: Value = b.reduce_window(x, init, regions=[r.body], result=result, **_attrs(window))
    return made


# ---- sums ----


def _sum_jvp(sweep: Forward, op: Op) -> None:
    b, (x, init), result = sweep.b, op.operands, op.results[0]
    tangent, start = sweep.tangent(x), sweep.tangent(init)
    moved = zeros(b, x.type) if tangent is None else tangent
    first = b.constant(0, init.shape.dtype) if start is None else start
    sweep.put(
        result, _slide_sum(b, cast(b, moved, result.shape), cast(b, first, result.shape), window_of(op), result.shape)
    )


def _sum_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    b, (x, init), window = sweep.b, op.operands, window_of(op)
    if sweep.wants(x):
        if 0 in op.results[0].shape.sizes or 0 in x.shape.sizes:
            sweep.add(x, zeros(b, x.type))
        else:
            sweep.add(x, cast(b, _slide_back(b, x, g, window), x.shape))
    if sweep.wants(init):  # it is added once, and stands in the padding and the holes
        times = _slide_sum(b, zeros(b, x.type), b.constant(1, init.shape.dtype), window)
        total = b.multiply(g, cast(b, times, g.shape))
        sweep.add(init, cast(b, sum_over(b, total, range(g.shape.rank)), init.shape))


def _slide_back(b: Builder, x: Value, g: Value, window: Window) -> Value:
    """x[j] went to every y[i] with i*stride + k*dilation = j*base + low for some k of the window."""
    low: list[Size] = []
    high: list[Size] = []
    for d, size in enumerate(x.shape.sizes):
        length = spread_length(window.sizes[d], window.dilations[d])
        before = length - 1 - window.padding[d][0]
        low.append(before)
        after = (size - 1) * window.base_dilations[d] + length - before
        high.append(after - spread_length(g.shape.sizes[d], window.strides[d]))
    holes = window.strides
    if not all(isinstance(number, int) for number in high):
        g = pad_with_zeros(b, g, low, high, [stride - 1 for stride in holes], [x])
        low = high = [0] * x.shape.rank
        holes = (1,) * x.shape.rank
    padding = tuple((int(before), int(after)) for before, after in zip(low, high, strict=True))  # type: ignore[arg-type]
    back = Window(window.sizes, window.base_dilations, padding, holes, window.dilations)
    return _slide_sum(b, g, b.constant(0, g.shape.dtype), back, x.shape.with_dtype(g.shape.dtype))


# ---- choices ----


def _choose(b: Builder, x: Value, followed: Value, window: Window, keeps: str) -> Value:
    """For each window of x the element of `followed` where x is largest (`keeps` GE) or smallest (LE)."""
    kinds = [Shape.of(value.shape.dtype, ()) for value in (x, followed)]
    region = _chooser(b, kinds, keeps)
    worst = -inf if keeps == "GE" else inf
    inits = [b.constant(worst, kinds[0].dtype), b.constant(0, kinds[1].dtype)]
    return b.op("stablehlo.reduce_window", x, followed, *inits, regions=[region], **_attrs(window)).results[1]


def _chooser(b: Builder, kinds: Sequence[Shape], keeps: str) -> Region:
    with b.region(*kinds, *kinds) as r:
        stays = r.compare(r.args[0], r.args[2], comparison_direction=keeps)
        r.result(r.select(stays, r.args[0], r.args[2]), r.select(stays, r.args[1], r.args[3]))
    body: Region = r.body
    return body


def _put_back(b: Builder, x: Value, g: Value, window: Window, keeps: str) -> Value:
    """Each element of g added where its window of x is largest or smallest."""
    kind = Shape.of(x.shape.dtype, ())
    with b.region(kind, kind) as select:
        select.result(select.compare(*select.args, comparison_direction=keeps))
    with b.region(kind, kind) as scatter:
        scatter.result(scatter.add(*scatter.args))
    return b.select_and_scatter(
        x,
        g,
        b.constant(0, kind.dtype),
        window_dimensions=window.sizes,
        window_strides=window.strides,
        padding=window.padding,
        regions=[select.body, scatter.body],
    )


def _choice_jvp(sweep: Forward, op: Op) -> None:
    x = op.operands[0]
    tangent = sweep.tangent(x)
    if tangent is not None:
        keeps = _KEEPS[single_op(op.regions[0])]
        sweep.put(op.results[0], _choose(sweep.b, x, tangent, window_of(op), keeps))


def _choice_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    x = op.operands[0]
    if sweep.wants(x):
        sweep.add(x, _put_back(sweep.b, x, g, window_of(op), _KEEPS[single_op(op.regions[0])]))


def _kept_by(op: Op) -> str:
    """The comparison of a body that `_chooser` made; empty for any other."""
    region = op.regions[0]
    if len(region.args) != 4 or len(region.ops) != 3:
        return ""
    test, first, second = region.ops
    a, s, c, t = region.args
    if test.name != "stablehlo.compare" or test.operands != (a, c) or region.results != (first.result, second.result):
        return ""
    if first.name != "stablehlo.select" or first.operands != (test.result, a, c):
        return ""
    if second.name != "stablehlo.select" or second.operands != (test.result, s, t):
        return ""
    keeps: str = test.attrs["comparison_direction"]
    return keeps if keeps in ("GE", "LE") else ""


def _followed_jvp(sweep: Forward, op: Op) -> None:
    """The tangent of `_choose`: tangents of both inputs are taken at the chosen position."""
    x, window, keeps = op.operands[0], window_of(op), _kept_by(op)
    for value, result in zip(op.operands[:2], op.results, strict=True):
        tangent = sweep.tangent(value)
        if tangent is not None:
            sweep.put(result, _choose(sweep.b, x, tangent, window, keeps))


def _followed_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    x, window, keeps = op.operands[0], window_of(op), _kept_by(op)
    for value, g in zip(op.operands[:2], cotangents, strict=True):
        if g is not None and sweep.wants(value):
            sweep.add(value, _put_back(sweep.b, x, g, window, keeps))


# ---- any body ----


def _as_reduce(b: Builder, op: Op) -> Sequence[Value]:
    """One slice per element of the window, stacked, then reduced."""
    window, count = window_of(op), len(op.results)
    if prod(window.sizes) > _MOST:
        refuse(op, f"a window of {prod(window.sizes)} elements with this body", "a smaller window, or smelt.scan")
    inits = op.operands[count:]
    if not can_pad_first(op.operands[0].shape.sizes, window.padding, window.base_dilations):
        refuse(op, "padding that may take away more than there is, with this body", "less negative padding")
    sizes = op.results[0].shape.sizes
    stacked = []
    for value, init in zip(op.operands[:count], inits, strict=True):
        padded = b.pad(
            value,
            init,
            edge_padding_low=tuple(low for low, _ in window.padding),
            edge_padding_high=tuple(high for _, high in window.padding),
            interior_padding=tuple(base - 1 for base in window.base_dilations),
        )
        slices = []
        for index in combinations(*(range(size) for size in window.sizes)):
            starts = tuple(i * dilation for i, dilation in zip(index, window.dilations, strict=True))
            limits = [
                start if size == 0 else start + spread_length(size, stride)
                for start, size, stride in zip(starts, sizes, window.strides, strict=True)
            ]
            part = take(b, padded, starts, limits, window.strides)
            slices.append(b.reshape(part, result=Shape.of(value.shape.dtype, (1, *sizes))))
        stacked.append(slices[0] if len(slices) == 1 else b.concatenate(*slices, dimension=0))
    body = clone_region(op.regions[0], {})
    return b.op("stablehlo.reduce", *stacked, *inits, regions=[body], dimensions=(0,)).results


SUM = Rule(_sum_jvp, _sum_vjp)
CHOICE = Rule(_choice_jvp, _choice_vjp)
FOLLOWED = Rule(_followed_jvp, _followed_vjp)
ANY = Rule(expand=_as_reduce)


def window_rule(op: Op) -> Rule:
    """By the body, and by whether the window is dilated."""
    window = window_of(op)
    plain = {*window.base_dilations, *window.dilations} <= {1}
    if len(op.results) == 1:
        kind = single_op(op.regions[0])
        if kind == "add":
            return SUM
        x, init = op.operands
        same = x.shape.dtype == op.results[0].shape.dtype and x.shape.dtype.kind == "float"
        if kind in _KEEPS and plain and same and is_neutral(init, kind):
            return CHOICE
    if len(op.results) == 2 and plain and _kept_by(op) and is_differentiable(op.operands[1].type):
        return FOLLOWED
    return ANY


# ---- select_and_scatter ----


def _scatter_jvp(sweep: Forward, op: Op) -> None:
    b, (x, source, init) = sweep.b, op.operands
    tangents = [sweep.tangent(value) for value in (source, init)]
    if all(each is None for each in tangents):
        return
    moved = [
        zeros(b, value.type) if each is None else each for value, each in zip((source, init), tangents, strict=True)
    ]
    regions = [clone_region(region, {}) for region in op.regions]
    sweep.put(op.results[0], b.select_and_scatter(x, *moved, regions=regions, **dict(op.attrs)))


def _scatter_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    b, (x, source, init) = sweep.b, op.operands
    if sweep.wants(source):
        sweep.add(source, _choose(b, x, g, window_of(op), _comparison_of(op)))
    if sweep.wants(init):
        sweep.add(init, sum_over(b, g, range(g.shape.rank)))


def _comparison_of(op: Op) -> str:
    """The comparison that selects: GE or LE; empty for any other."""
    select = op.regions[0]
    test = select.results[0].op
    if test is None or test.name != "stablehlo.compare" or test.operands != select.args:
        return ""
    keeps: str = test.attrs["comparison_direction"]
    return keeps if keeps in ("GE", "LE") else ""


def select_and_scatter_rule(op: Op) -> Rule:
    if single_op(op.regions[1]) != "add":
        return no_derivative("it scatters by another body than a sum")
    if not _comparison_of(op) or op.operands[0].shape.dtype != op.results[0].shape.dtype:
        return no_derivative("it selects by another body than >= or <=")
    return Rule(_scatter_jvp, _scatter_vjp)


RULES: dict[str, Rule | Callable[[Op], Rule]] = {
    "stablehlo.reduce_window": window_rule,
    "stablehlo.select_and_scatter": select_and_scatter_rule,
}
