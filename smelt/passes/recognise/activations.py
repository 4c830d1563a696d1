"""Finders of activations: GELU, SiLU and HardSwish, in the spellings that exporters use. Called by `recognise`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from smelt.ir.core import Op, Value
from smelt.passes.recognise.matcher import Matcher, is_float, near
from smelt.passes.recognise.outline import Found


def gelu(matcher: Matcher, root: Op) -> Iterator[Found]:
    """x * Phi(x), by erf, by erfc or by tanh, with the half wherever it stands."""
    if root.name not in ("stablehlo.multiply", "stablehlo.divide") or not is_float(root.results[0]):
        return
    for number, x, gate in matcher.gated_products(root.results[0]):
        form = _gate(matcher, gate, x, number)
        if form is not None:
            yield Found("smelt.gelu", (x,), {"approximate": form})


def _gate(matcher: Matcher, gate: Value, x: Value, number: float) -> int | None:
    """0 for (1 + erf(x / sqrt 2)) * number with number 1/2, 1 for the tanh form; the sum may be halved inside."""
    if (tail := matcher.under(gate, "erfc")) is not None:  # erfc(-x / sqrt 2) is 1 + erf(x / sqrt 2)
        scale, rest = matcher.factors(tail, x)
        return 0 if near(number, 0.5) and rest == [x] and near(scale, -math.sqrt(0.5)) else None
    shifted = matcher.plus_number(gate)
    if shifted is None:
        return None
    inner, constant = shifted
    weight, wave = matcher.factors(inner)
    if len(wave) != 1 or not near(weight, constant) or not near(number * constant, 0.5):
        return None
    if (argument := matcher.under(wave[0], "erf")) is not None:
        scale, rest = matcher.factors(argument, x)
        return 0 if rest == [x] and near(scale, math.sqrt(0.5)) else None
    argument = matcher.under(wave[0], "tanh")
    return 1 if argument is not None and _tanh_argument(matcher, argument, x) else None


def _tanh_argument(matcher: Matcher, value: Value, x: Value) -> bool:
    """sqrt(2 / pi) * (x + 0.044715 x^3), or with x taken out of the sum, or with the product multiplied out."""
    scale, rest = matcher.factors(value, x)
    sums = [part for part in rest if part is not x]
    outside = len(rest) - len(sums)
    if len(sums) != 1 or outside > 1:
        return False
    root = math.sqrt(2 / math.pi)
    if outside and (shifted := matcher.plus_number(sums[0])) is not None:
        cubic, powers = matcher.factors(shifted[0], x)
        return powers == [x, x] and near(scale * shifted[1], root) and near(scale * cubic, 0.044715 * root)
    for left, right in matcher.orders(sums[0], "add"):
        linear, first = matcher.factors(left, x)
        cubic, powers = matcher.factors(right, x)
        if first == [x] and powers == [x, x, x] and not outside:
            return near(scale * linear, root) and near(scale * cubic, 0.044715 * root)
    return False


def silu(matcher: Matcher, root: Op) -> Iterator[Found]:
    if root.name not in ("stablehlo.multiply", "stablehlo.divide") or not is_float(root.results[0]):
        return
    x, other = matcher.operands(root)
    if root.name == "stablehlo.divide":
        if _is_one_plus_power(matcher, other, x):
            yield Found("smelt.silu", (x,))
        return
    for value, gate in ((x, other), (other, x)):
        if _is_logistic(matcher, gate, value):
            yield Found("smelt.silu", (value,))


def _is_logistic(matcher: Matcher, value: Value, x: Value) -> bool:
    """Whether a value is logistic(x), also as 1 / (1 + exp(-x)) and as (1 + tanh(x / 2)) / 2."""
    if (inner := matcher.under(value, "logistic")) is not None:
        return matcher.factors(inner, x) == (1.0, [x])
    quotient = matcher.pair(value, "divide")
    if quotient is not None and matcher.number(quotient[0]) == 1.0:
        return _is_one_plus_power(matcher, quotient[1], x)
    number, parts = matcher.factors(value)
    shifted = matcher.plus_number(parts[0] if len(parts) == 1 else value)
    if shifted is None or not near(number * shifted[1], 0.5):
        return False
    weight, wave = matcher.factors(shifted[0])
    argument = matcher.under(wave[0], "tanh") if len(wave) == 1 and near(weight, shifted[1]) else None
    scale, rest = matcher.factors(argument, x) if argument is not None else (0.0, [])
    return rest == [x] and near(scale, 0.5)


def _is_one_plus_power(matcher: Matcher, value: Value, x: Value) -> bool:
    """Whether a value is 1 + exp(-x)."""
    total = matcher.plus_number(value)
    power = matcher.under(total[0], "exponential") if total is not None and total[1] == 1.0 else None
    scale, rest = matcher.factors(power, x) if power is not None else (0.0, [])
    return rest == [x] and scale == -1.0


def hard_swish(matcher: Matcher, root: Op) -> Iterator[Found]:
    """x * clamp(x + 3, 0, 6) / 6, or x * clamp(x / 6 + 1 / 2, 0, 1)."""
    if root.name not in ("stablehlo.multiply", "stablehlo.divide") or not is_float(root.results[0]):
        return
    for number, x, gate in matcher.gated_products(root.results[0]):
        limits = matcher.clamp(gate)
        if limits is None or limits[1] != 0.0 or limits[2] is None:
            continue
        inner, high = limits[0], limits[2]
        shifted = matcher.plus_number(inner)
        scale, rest = matcher.factors(shifted[0], x) if shifted is not None else (0.0, [])
        if shifted is None or rest != [x] or not near(shifted[1], high / 2):
            continue
        if near(scale * number, 1 / 6) and near(high * number, 1.0):
            yield Found("smelt.hard_swish", (x,))
