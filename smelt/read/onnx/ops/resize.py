"""Resize and Upsample: every output element is a weighted sum of a few input elements along each axis.

For static sizes the indices and weights are computed at import; else the program computes them from the sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from smelt.dim import Size, floordiv
from smelt.dtype import Array, f32, i64
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.emit import axes_of
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Tensor
from smelt.read.onnx.registry import Sizes, onnx_op

_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_AWAY = "floor, or ceil where the axis shrinks"  # of version 10
_SIMPLE = 1024  # denominators of scales


@dataclass(frozen=True, slots=True)
class Plan:
    """How to resize one tensor: everything but the sizes."""

    mode: str
    coordinates: str
    nearest: str
    cubic_a: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


@onnx_op("Resize", since=11)
def resize(
    g: Graph,
    X: Value,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Sizes | None = None,
    *,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    for name, value, allowed in (
        ("mode", mode, ("nearest", "linear", "cubic")),
        ("coordinate_transformation_mode", coordinate_transformation_mode, _COORDINATES),
        ("nearest_mode", nearest_mode, _NEAREST),
        ("keep_aspect_ratio_policy", keep_aspect_ratio_policy, ("stretch", "not_larger", "not_smaller")),
    ):
        if value not in allowed:
            raise ParseError(f"Resize: attribute {name!r}", expected=", ".join(allowed), got=value)
    rank = X.shape.rank
    places = tuple(range(rank)) if axes is None else axes_of(axes, rank)
    plan = Plan(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
        extrapolation_value,
    )
    given = None if scales is None or scales.shape.count == 0 else g.numbers(scales, "scales").reshape(-1)
    if given is not None:
        wanted, factors = _by_scales(X, places, given)
    elif sizes is not None and len(sizes) == len(places):
        wanted, factors = _by_sizes(X, places, list(sizes), keep_aspect_ratio_policy)
    else:
        raise ShapeError("Resize: either scales or sizes, one per axis", expected=len(places))
    regions = _regions(g, roi, len(places), coordinate_transformation_mode)
    return _resize(g, X, places, wanted, factors, regions, plan)


def _by_scales(x: Value, places: tuple[int, ...], scales: Array) -> tuple[list[Size], list[float | None]]:
    if len(scales) != len(places):
        raise ShapeError("Resize: one scale per axis", expected=len(places), got=len(scales))
    sizes = [_scale_size(x.shape.sizes[axis], float(each)) for axis, each in zip(places, scales, strict=True)]
    return sizes, [float(each) for each in scales]


def _scale_size(size: Size, factor: float) -> Size:
    """The resized size. Its product is rounded to f32, as in ONNX's shape inference: 10 elements by 0.7, which is a bit
    less in f32, are 7."""
    if not 0 < factor < 1 << 24:
        raise ShapeError("Resize: impossible scales", expected="more than 0", got=factor)
    if isinstance(size, int):
        return int(np.floor(np.float32(size) * np.float32(factor)))
    ratio = _simple_ratio(factor)
    return floordiv(size * ratio.numerator, ratio.denominator)


def _simple_ratio(factor: float) -> Fraction:
    """The fraction that a scale of a dynamic dimension was meant to be: 7/10, not the f32 number beside it."""
    exact = Fraction(factor)
    simple = exact.limit_denominator(_SIMPLE)
    return simple if np.float32(float(simple)) == np.float32(factor) else exact


def _by_sizes(
    x: Value, places: tuple[int, ...], sizes: list[Size], policy: str
) -> tuple[list[Size], list[float | None]]:
    own = [x.shape.sizes[axis] for axis in places]
    if policy == "stretch":
        factors = [
            n / m if isinstance(n, int) and isinstance(m, int) and m else None for n, m in zip(sizes, own, strict=True)
        ]
        return sizes, factors
    numbers = [(n, m) for n, m in zip(sizes, own, strict=True) if isinstance(n, int) and isinstance(m, int)]
    if len(numbers) != len(sizes):
        raise UnsupportedError(
            "Resize: attribute 'keep_aspect_ratio_policy' with sizes that are not fixed", got=x.shape
        )
    ratios = [n / m for n, m in numbers]
    factor = min(ratios) if policy == "not_larger" else max(ratios)
    return [int(factor * m + 0.5) for _, m in numbers], [factor] * len(numbers)


def _regions(g: Graph, roi: Tensor | None, count: int, coordinates: str) -> list[tuple[float, float]]:
    if coordinates != "tf_crop_and_resize":
        return [(0.0, 1.0)] * count
    numbers = np.zeros(0) if roi is None else g.numbers(roi, "roi").reshape(-1)
    if len(numbers) != 2 * count:
        raise ShapeError("Resize: roi has two numbers per axis", expected=2 * count, got=len(numbers))
    return [(float(numbers[i]), float(numbers[i + count])) for i in range(count)]


def _resize(
    g: Graph,
    X: Value,
    places: tuple[int, ...],
    wanted: list[Size],
    factors: list[float | None],
    regions: list[tuple[float, float]],
    plan: Plan,
) -> Value:
    element = X.shape.element
    exact = plan.mode == "nearest"
    x = X if exact or (element.is_float and element.bits >= 32) else g.convert(X, f32)
    outside: list[tuple[int, Array]] = []
    given = plan
    for axis, size, factor, region in zip(places, wanted, factors, regions, strict=True):
        own = x.shape.sizes[axis]
        if given.nearest == _AWAY:
            plan = replace(given, nearest="ceil" if factor is not None and factor < 1 else "floor")
        if size == own and (factor in (None, 1.0)) and plan.coordinates != "tf_crop_and_resize":
            continue
        repeat = _repeats(own, size, factor, plan)
        if repeat is not None:
            x = _repeat(g, x, axis, repeat)
        elif isinstance(own, int) and isinstance(size, int) and factor is not None:
            x = _fixed_axis(g, x, axis, size, factor, region, plan, outside)
        else:
            x = _open_axis(g, x, axis, size, factor, plan)
    for axis, flags in outside:
        mask = g.along(g.value(Tensor.constant(flags)), x.shape.rank, axis)
        x = g.choose(mask, g.scalar(plan.extrapolation, x.shape.element), x)
    return g.convert(x, element)


def _repeats(own: Size, size: Size, factor: float | None, plan: Plan) -> int | None:
    """How often each element is repeated, where that is all there is to it."""
    if factor is None or factor != int(factor) or factor < 1 or plan.mode != "nearest" or size != own * int(factor):
        return None
    centred = plan.coordinates in (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
    ) and plan.nearest.startswith("round")
    plain = plan.coordinates == "asymmetric" and plan.nearest == "floor"
    return int(factor) if centred or plain else None


def _repeat(g: Graph, x: Value, axis: int, times: int) -> Value:
    sizes = list(x.shape.sizes)
    spread = [*sizes[: axis + 1], times, *sizes[axis + 1 :]]
    dims = [i if i <= axis else i + 1 for i in range(len(sizes))]
    sizes[axis] = sizes[axis] * times
    return g.reshape(g.broadcast_in_dim(x, spread, dims), sizes)


# ---- fixed sizes ----


def _fixed_axis(
    g: Graph,
    x: Value,
    axis: int,
    size: int,
    factor: float,
    region: tuple[float, float],
    plan: Plan,
    outside: list[tuple[int, Array]],
) -> Value:
    own = x.shape.sizes[axis]
    assert isinstance(own, int)
    if not (0 < factor < 1 << 24 and (own > 0 or size == 0) and 0 <= size <= 1 << 24):
        raise UnsupportedError("Resize to or from such a size", expected="1 to 16777216", got=f"{own} times {factor}")
    if size == 0:
        return g.slice_axis(x, axis, 0, 0)
    at = coordinates_of(np.arange(size, dtype=np.float32), own, size, factor, region, plan).astype(np.float64)
    if plan.coordinates == "tf_crop_and_resize":
        flags = (at < 0) | (at > own - 1)
        if flags.any():
            outside.append((axis, flags))
    if plan.mode == "nearest":
        picked = np.clip(_nearest(at, plan.nearest), 0, own - 1).astype(np.int64)
        return g.take(x, g.value(Tensor.constant(picked)), axis)
    first, weights = _taps(at, min(factor, 1.0), plan)
    indices = first[:, None] + np.arange(weights.shape[1])
    if plan.exclude_outside:
        weights = np.where((indices < 0) | (indices >= own), 0.0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    indices = np.clip(indices, 0, own - 1)
    total: Value | None = None
    for k in range(weights.shape[1]):
        if not weights[:, k].any():
            continue
        part = g.take(x, g.value(Tensor.constant(indices[:, k].astype(np.int64))), axis)
        weight = g.value(Tensor.constant(weights[:, k].astype(x.shape.element.numpy)))
        term = g.binary("multiply", part, g.along(weight, x.shape.rank, axis))
        total = term if total is None else g.binary("add", total, term)
    assert total is not None
    return total


def coordinates_of(out: Array, own: int, size: int, factor: float, region: tuple[float, float], plan: Plan) -> Array:
    """The input coordinate of each output element, in f32: its rounding decides about ties and edges, in onnxruntime,
    too."""
    kind = np.float32
    before, after, scale = kind(own), kind(size), kind(factor)
    length = after if own and scale == after / before else scale * before  # not rounded down
    half = kind(0.5)
    match plan.coordinates:
        case "align_corners":
            return out * 0 if length == 1 or size == 1 else out * (before - 1) / (length - 1)
        case "asymmetric":
            return out / scale
        case "tf_crop_and_resize":
            begin, end = map(kind, region)
            if length == 1 or size == 1:
                return out * 0 + half * (begin + end) * (before - 1)
            return begin * (before - 1) + out * (end - begin) * (before - 1) / (length - 1)
        case "pytorch_half_pixel":
            return out * 0 if size == 1 else (out + half) / scale - half
        case "half_pixel_symmetric":
            return before / 2 * (1 - after / length) + ((out + half) / scale - half)
        case "tf_half_pixel_for_nn":
            return (out + half) / scale
        case _:
            return (out + half) / scale - half


def _nearest(at: Array, mode: str) -> Array:
    match mode:
        case "floor":
            return np.floor(at)
        case "ceil":
            return np.ceil(at)
        case "round_prefer_floor":
            return np.ceil(at - 0.5)
        case _:
            return np.floor(at + 0.5)


def _taps(at: Array, scale: float, plan: Plan) -> tuple[Array, Array]:
    """The first input element that each output element reads, and the weights of it and the following ones."""
    base = np.floor(at)
    ratio = (at - base)[:, None]
    reach = 1.0 if plan.mode == "linear" else 2.0
    if not plan.antialias:
        scale = 1.0
    start = int(np.floor(-reach / scale) + 1)
    steps = np.arange(start, 2 - start)[None, :]
    weights = _filter((steps - ratio) * scale, plan)
    if plan.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return (base + start).astype(np.int64), weights


def _filter(distance: Array, plan: Plan) -> Array:
    d = np.abs(distance)
    if plan.mode == "linear":
        return np.asarray(np.maximum(1 - d, 0))
    a = plan.cubic_a
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


# ---- dynamic dimensions ----


def _open_axis(g: Graph, x: Value, axis: int, size: Size, factor: float | None, plan: Plan) -> Value:
    """Taps, one, two or four, whose places the program computes from the sizes."""
    if plan.antialias or plan.exclude_outside or plan.coordinates not in (
        "half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners",
    ):  # fmt: skip
        raise UnsupportedError(
            f"Resize: attributes {plan.mode!r}, {plan.coordinates!r} and so on with a size that is not fixed",
            got=x.shape,
        )
    own = x.shape.sizes[axis]
    out = g.iota(f32, (size,), 0)
    own_f, size_f = (g.convert(g.size(n), f32) for n in (own, size))
    if plan.coordinates == "align_corners":
        length = size_f if factor is None else g.times(own_f, factor)  # before it is rounded down
        one = g.scalar(1, f32)
        last = g.select(g.compare(size_f, one, "EQ"), one, g.plus(length, -1))
        at = g.binary("divide", g.binary("multiply", out, g.plus(own_f, -1)), last)
    else:
        scale = g.scalar(factor, f32) if factor is not None else g.binary("divide", size_f, own_f)
        shift = 0.0 if plan.coordinates == "asymmetric" else 0.5
        at = g.plus(g.binary("divide", g.plus(out, shift), scale), -shift)
        if plan.coordinates == "pytorch_half_pixel":
            at = g.choose(g.compare(size_f, g.scalar(1, f32), "EQ"), g.scalar(0, f32), at)
    top = g.plus(own_f, -1)
    if plan.mode == "nearest":
        picked = _nearest_value(g, at, plan.nearest)
        return g.take(x, _clamp(g, picked, top), axis)
    base = g.unary("floor", at)
    ratio = g.binary("subtract", at, base)
    total: Value | None = None
    for tap in (0, 1) if plan.mode == "linear" else (-1, 0, 1, 2):
        weight = _tap_weight(g, ratio, tap, plan)
        narrow = g.along(g.convert(weight, x.shape.element), x.shape.rank, axis)
        part = g.binary("multiply", g.take(x, _clamp(g, g.plus(base, tap), top), axis), narrow)
        total = part if total is None else g.binary("add", total, part)
    assert total is not None
    return total


def _tap_weight(g: Graph, ratio: Value, tap: int, plan: Plan) -> Value:
    """`_filter` of the distance between a tap and a place that is `ratio` behind the tap 0."""
    if plan.mode == "linear":
        return ratio if tap else g.binary("subtract", g.like(1, ratio), ratio)
    d = g.unary("abs", g.binary("subtract", g.like(tap, ratio), ratio))
    a = plan.cubic_a
    near = tap in (0, 1)  # at most 1 away
    third, second, first, rest = (a + 2, -(a + 3), 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)
    inner = g.plus(g.binary("multiply", g.plus(g.times(d, third), second), d), first)
    return g.plus(g.binary("multiply", inner, d), rest)


def _clamp(g: Graph, places: Value, top: Value) -> Value:
    return g.convert(g.binary("minimum", g.binary("maximum", places, g.like(0, places)), top), i64)


def _nearest_value(g: Graph, at: Value, mode: str) -> Value:
    match mode:
        case "floor" | "ceil":
            return g.unary(mode, at)
        case "round_prefer_floor":
            return g.unary("ceil", g.plus(at, -0.5))
        case _:
            return g.unary("floor", g.plus(at, 0.5))


# ---- older versions ----


@onnx_op("Resize", since=10)
def resize_10(g: Graph, X: Value, scales: Tensor, *, mode: str = "nearest") -> Value:
    if mode not in ("nearest", "linear"):
        raise ParseError("Resize: attribute 'mode'", expected="nearest, linear", got=mode)
    places = tuple(range(X.shape.rank))
    wanted, factors = _by_scales(X, places, g.numbers(scales, "scales").reshape(-1))
    plan = Plan(mode, "asymmetric", _AWAY, -0.75, False, False, 0.0)
    return _resize(g, X, places, wanted, factors, [(0.0, 1.0)] * len(places), plan)


@onnx_op("Upsample", since=9)
def upsample(g: Graph, X: Value, scales: Tensor, *, mode: str = "nearest") -> Value:
    return resize_10(g, X, scales, mode="linear" if mode == "bilinear" else mode)


@onnx_op("Upsample", since=7)
def upsample_7(g: Graph, X: Value, *, scales: tuple[float, ...], mode: str = "nearest") -> Value:
    return upsample(g, X, Tensor.constant(np.array(scales, np.float32)), mode=mode)
