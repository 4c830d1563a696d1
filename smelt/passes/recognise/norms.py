"""The finder of layer norm and RMS norm: factors in any order, both formulas of the variance, Keras' rearrangement.

In: the last op of a norm. Out: its input, scale and bias, as far as there are any.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.frozen import Frozen
from smelt.ir.core import Op, Value
from smelt.passes.recognise.matcher import Factor, Matcher, Row, is_float
from smelt.passes.recognise.outline import Found

_Parts = tuple[list[Factor], list[tuple[Value, float, Row]]]


class _Spread(Frozen):
    """mean (x - centre)^2 along axes, where the centre is x's mean or zero."""

    x: Value
    axes: tuple[int, ...]
    centred: bool


def norm(matcher: Matcher, root: Op) -> Iterator[Found]:
    """Layer norm and RMS norm, with or without scale and bias."""
    if len(root.results) != 1 or not is_float(root.results[0]):
        return
    value = root.results[0]
    if root.name == "stablehlo.add":
        for scaled, rest in matcher.orders(value, "add"):
            yield from _rearrange(matcher, scaled, rest)
            yield from _products(matcher, scaled, rest)
    elif root.name in ("stablehlo.multiply", "stablehlo.divide", "stablehlo.convert"):
        yield from _products(matcher, value, None)


def _products(matcher: Matcher, value: Value, bias: Value | None) -> Iterator[Found]:
    """x or x - mean, times 1 / sqrt(variance + epsilon), times a scale if there is one, plus a bias."""
    parts = _parts(matcher, value)
    if parts is None:
        return
    ((variance, epsilon, row),) = parts[1]
    squares = _squares(matcher, variance)
    if squares is None or squares.x.shape.sizes != value.shape.sizes or not _per_row(row, squares.axes):
        return
    again = _parts(matcher, value, squares.x)  # x may be a product
    rest = [] if again is None else again[0]
    for top in rest:
        scales = [each for each in rest if each is not top]
        if len(scales) > 1 or not top.row.is_plain or top.row.source.shape.sizes != value.shape.sizes:
            continue
        centre = _centre(matcher, top.row.source)
        found = None
        if squares.centred and centre is not None and _same(matcher, centre, squares):
            found = "smelt.layer_norm"
        elif not squares.centred and matcher.skip_lossless(top.row.source) is matcher.skip_lossless(squares.x):
            found = "smelt.rms_norm"
        extra = [each.row for each in scales] + ([] if bias is None else [matcher.row(bias)])
        fits = bias is None or (scales and found == "smelt.layer_norm")
        if found is not None and fits and all(_along(each, squares.axes) for each in extra):
            attributes = {"axes": squares.axes, "epsilon": epsilon}
            yield Found(found, (matcher.skip_lossless(squares.x), *(each.source for each in extra)), attributes)


def _same(matcher: Matcher, centre: tuple[Value, tuple[int, ...]], squares: _Spread) -> bool:
    return matcher.skip_lossless(centre[0]) is matcher.skip_lossless(squares.x) and centre[1] == squares.axes


def _rearrange(matcher: Matcher, scaled: Value, rest: Value) -> Iterator[Found]:
    """x * r + (bias - mean * r) with r = scale / sqrt(variance + epsilon): the layer norm of Keras."""
    difference = matcher.pair(rest, "subtract")
    if difference is None:
        return
    bias, moved = difference
    for (x, factor), (mean, again) in (
        (one, two) for one in matcher.orders(scaled, "multiply") for two in matcher.orders(moved, "multiply")
    ):
        if matcher.row(factor) != matcher.row(again):
            continue
        parts = _parts(matcher, factor)
        centre = matcher.mean(mean)
        if parts is None or centre is None or centre[0] is not x or len(parts[0]) != 1 or len(parts[1]) != 1:
            continue
        ((variance, epsilon, row),) = parts[1]
        squares = _squares(matcher, variance)
        extra = [parts[0][0].row, matcher.row(bias)]
        if squares is None or not squares.centred or (squares.x, squares.axes) != centre:
            continue
        if _per_row(row, squares.axes) and all(_along(each, squares.axes) for each in extra):
            attributes = {"axes": squares.axes, "epsilon": epsilon}
            yield Found("smelt.layer_norm", (x, *(each.source for each in extra)), attributes)


def _parts(matcher: Matcher, value: Value, whole: Value | None = None) -> _Parts | None:
    """The factors of a product: inverse roots as (v, epsilon, row), and the rest; None if a constant remains.

    `whole` counts as one factor.
    """
    number, factors = matcher.row_factors(
        value, lambda row: row.source is whole or _inverse_root(matcher, Factor(row)) is not None
    )
    roots = [(*found, each.row) for each in factors if (found := _inverse_root(matcher, each)) is not None]
    rest = [each for each in factors if _inverse_root(matcher, each) is None]
    return (rest, roots) if number == 1.0 and len(roots) == 1 and not any(each.inverse for each in rest) else None


def _inverse_root(matcher: Matcher, factor: Factor) -> tuple[Value, float] | None:
    """v and epsilon of 1 / sqrt(v + epsilon), in any spelling."""
    value = factor.row.source
    power = matcher.pair(value, "power")
    exponent = None if power is None else matcher.number(power[1])
    if factor.inverse:
        inner = matcher.under(value, "sqrt") or (power[0] if power is not None and exponent == 0.5 else None)
    else:
        inner = matcher.under(value, "rsqrt") or (power[0] if power is not None and exponent == -0.5 else None)
    return None if inner is None else matcher.plus_number(inner)


def _squares(matcher: Matcher, variance: Value) -> _Spread | None:
    """The operand of a mean square or variance."""
    for other, bound in matcher.orders(variance, "maximum"):  # a variance as a difference is clamped at 0
        if matcher.number(bound) == 0.0:
            variance = other
            break
    difference = matcher.pair(variance, "subtract")
    if difference is not None:  # E[x²] - E[x]²
        whole, mean = _mean_square(matcher, difference[0]), matcher.square_base(matcher.row(difference[1]).source)
        return _Spread(*whole, True) if whole is not None and mean is not None and matcher.mean(mean) == whole else None
    found = _mean_square(matcher, variance)
    if found is None:
        return None
    centre = _centre(matcher, found[0])
    return _Spread(*centre, True) if centre is not None and centre[1] == found[1] else _Spread(*found, False)


def _mean_square(matcher: Matcher, value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """x and the axes of mean(x²)."""
    mean = matcher.mean(value)
    if mean is None:
        return None
    base = matcher.square_base(matcher.skip_conversions(mean[0]))
    return None if base is None else (base, mean[1])


def _centre(matcher: Matcher, value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """x and the axes, for x minus its mean."""
    pair = matcher.pair(value, "subtract")
    mean = None if pair is None else matcher.mean(pair[1])
    return mean if pair is not None and mean is not None and mean[0] is pair[0] else None


def _per_row(row: Row, axes: tuple[int, ...]) -> bool:
    """Whether a factor is constant along the normalised axes."""
    return all(row.axes[d] is None for d in axes)


def _along(row: Row, axes: tuple[int, ...]) -> bool:
    """Whether scale or bias vary along the normalised axes only."""
    return all(axis is None for d, axis in enumerate(row.axes) if d not in axes)
