"""Finders of softmax and of activations: GELU, SiLU and HardSwish, however they are written."""

from __future__ import annotations

import math
from collections.abc import Iterator

from smelt.ir.core import Op, Value
from smelt.passes.recognise.look import Look, is_float, near
from smelt.passes.recognise.outline import Found


def softmax(look: Look, root: Op) -> Iterator[Found]:
    for powers, spread, total in _quotients(look, root):
        shifted = look.under(powers, "exponential")
        found = look.reduced(total, "add")
        if shifted is None or found is None or found[0] is not powers or look.spread(spread, powers, found[1]) is None:
            continue
        difference = look.pair(shifted, "subtract")
        if difference is None or len(found[1]) != 1:
            continue
        x, peak = difference
        highest = look.spread(peak, x, found[1])
        if highest is None:
            continue
        for other, bound in look.orders(highest, "maximum"):  # JAX takes the maximum with -inf once more
            if look.number(bound) == -math.inf:
                highest = look.row(other).source
                break
        if look.reduced(highest, "maximum") == (x, found[1]):
            yield Found("smelt.softmax", (x,), {"axis": found[1][0]})


def _quotients(look: Look, root: Op) -> Iterator[tuple[Value, Value, Value]]:
    """a, what it is divided by or multiplied with, and b, of a / b or a * (1 / b)."""
    if root.name == "stablehlo.divide":
        x, y = look.operands(root)
        yield x, y, look.row(y).source
    elif root.name == "stablehlo.multiply":
        for x, factor in look.orders(root.results[0], "multiply"):
            reciprocal = look.pair(look.row(factor).source, "divide")
            if reciprocal is not None and look.number(reciprocal[0]) == 1.0:
                total = look.row(reciprocal[1])
                if total.is_plain:
                    yield x, factor, total.source


def gelu(look: Look, root: Op) -> Iterator[Found]:
    """x * Phi(x), by erf, by erfc or by tanh, with the half wherever it stands."""
    if root.name not in ("stablehlo.multiply", "stablehlo.divide") or not is_float(root.results[0]):
        return
    for number, x, gate in look.gated(root.results[0]):
        form = _gate(look, gate, x, number)
        if form is not None:
            yield Found("smelt.gelu", (x,), {"approximate": form})


def _gate(look: Look, gate: Value, x: Value, number: float) -> int | None:
    """0 for (1 + erf(x / sqrt 2)) * number with number 1/2, 1 for the tanh form; the sum may be halved inside."""
    if (tail := look.under(gate, "erfc")) is not None:  # erfc(-x / sqrt 2) is 1 + erf(x / sqrt 2)
        scale, rest = look.factors(tail, x)
        return 0 if near(number, 0.5) and rest == [x] and near(scale, -math.sqrt(0.5)) else None
    shifted = look.plus_number(gate)
    if shifted is None:
        return None
    inner, constant = shifted
    weight, wave = look.factors(inner)
    if len(wave) != 1 or not near(weight, constant) or not near(number * constant, 0.5):
        return None
    if (argument := look.under(wave[0], "erf")) is not None:
        scale, rest = look.factors(argument, x)
        return 0 if rest == [x] and near(scale, math.sqrt(0.5)) else None
    argument = look.under(wave[0], "tanh")
    return 1 if argument is not None and _tanh_argument(look, argument, x) else None


def _tanh_argument(look: Look, value: Value, x: Value) -> bool:
    """sqrt(2 / pi) * (x + 0.044715 x^3), or with x taken out of the sum, or with the product multiplied out."""
    scale, rest = look.factors(value, x)
    sums = [part for part in rest if part is not x]
    outside = len(rest) - len(sums)
    if len(sums) != 1 or outside > 1:
        return False
    root = math.sqrt(2 / math.pi)
    if outside and (shifted := look.plus_number(sums[0])) is not None:
        cubic, powers = look.factors(shifted[0], x)
        return powers == [x, x] and near(scale * shifted[1], root) and near(scale * cubic, 0.044715 * root)
    for left, right in look.orders(sums[0], "add"):
        linear, first = look.factors(left, x)
        cubic, powers = look.factors(right, x)
        if first == [x] and powers == [x, x, x] and not outside:
            return near(scale * linear, root) and near(scale * cubic, 0.044715 * root)
    return False


def silu(look: Look, root: Op) -> Iterator[Found]:
    if root.name not in ("stablehlo.multiply", "stablehlo.divide") or not is_float(root.results[0]):
        return
    x, other = look.operands(root)
    if root.name == "stablehlo.divide":
        if _is_one_plus_power(look, other, x):
            yield Found("smelt.silu", (x,))
        return
    for value, gate in ((x, other), (other, x)):
        if _is_logistic(look, gate, value):
            yield Found("smelt.silu", (value,))


def _is_logistic(look: Look, value: Value, x: Value) -> bool:
    """Whether a value is logistic(x), also as 1 / (1 + exp(-x)) and as (1 + tanh(x / 2)) / 2."""
    if (inner := look.under(value, "logistic")) is not None:
        return look.factors(inner, x) == (1.0, [x])
    quotient = look.pair(value, "divide")
    if quotient is not None and look.number(quotient[0]) == 1.0:
        return _is_one_plus_power(look, quotient[1], x)
    number, parts = look.factors(value)
    shifted = look.plus_number(parts[0] if len(parts) == 1 else value)
    if shifted is None or not near(number * shifted[1], 0.5):
        return False
    weight, wave = look.factors(shifted[0])
    argument = look.under(wave[0], "tanh") if len(wave) == 1 and near(weight, shifted[1]) else None
    scale, rest = look.factors(argument, x) if argument is not None else (0.0, [])
    return rest == [x] and near(scale, 0.5)


def _is_one_plus_power(look: Look, value: Value, x: Value) -> bool:
    """Whether a value is 1 + exp(-x)."""
    total = look.plus_number(value)
    power = look.under(total[0], "exponential") if total is not None and total[1] == 1.0 else None
    scale, rest = look.factors(power, x) if power is not None else (0.0, [])
    return rest == [x] and scale == -1.0


def hard_swish(look: Look, root: Op) -> Iterator[Found]:
    """x * clamp(x + 3, 0, 6) / 6, or x * clamp(x / 6 + 1 / 2, 0, 1)."""
    if root.name not in ("stablehlo.multiply", "stablehlo.divide") or not is_float(root.results[0]):
        return
    for number, x, gate in look.gated(root.results[0]):
        limits = look.clamped(gate)
        if limits is None or limits[1] != 0.0 or limits[2] is None:
            continue
        inner, high = limits[0], limits[2]
        shifted = look.plus_number(inner)
        scale, rest = look.factors(shifted[0], x) if shifted is not None else (0.0, [])
        if shifted is None or rest != [x] or not near(shifted[1], high / 2):
            continue
        if near(scale * number, 1 / 6) and near(high * number, 1.0):
            yield Found("smelt.hard_swish", (x,))
