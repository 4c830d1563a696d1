"""Derivatives of elementwise ops: functions that give g times a partial derivative. Kinks follow JAX's conventions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt

import numpy as np

from smelt.dtype import DType
from smelt.ir.build import Builder
from smelt.ir.core import Op, Value
from smelt.ir.grad.rule import (
    Cotangents,
    Partial,
    Rule,
    cast,
    elementwise,
    like,
    linear,
    linear_in_first,
    sum_over,
    zero,
    zeros,
)
from smelt.ir.grad.sweep import Forward, Reverse
from smelt.ir.ops import OPS
from smelt.shape import Shape

Gradient = Callable[[Builder, Value, Value], Value]  # (builder, x, y) → dy/dx


def chlo(b: Builder, name: str, *operands: Value) -> Value:
    return b.op(f"chlo.{name}", *operands).result


def _times(gradient: Gradient) -> Partial:
    return lambda b, g, x, y: b.multiply(g, gradient(b, x, y))


def _square(b: Builder, x: Value) -> Value:
    return b.multiply(x, x)


def _one_minus_square(b: Builder, x: Value) -> Value:
    return b.subtract(like(b, 1, x), _square(b, x))


def _compare(b: Builder, x: Value, y: Value, direction: str) -> Value:
    return b.compare(x, y, comparison_direction=direction)


def replace_zero(b: Builder, x: Value) -> Value:
    """1 where x is 0."""
    return b.select(_compare(b, x, zeros(b, x.type), "EQ"), like(b, 1, x), x)


def _gaussian(scale: float) -> Gradient:
    return lambda b, x, y: b.multiply(like(b, scale, x), b.exponential(b.negate(_square(b, x))))


# ---- one operand ----

_UNARY: Mapping[str, Partial] = {
    "stablehlo.cbrt": _times(lambda b, x, y: b.divide(like(b, 1 / 3, x), _square(b, y))),
    "stablehlo.cosine": lambda b, g, x, y: b.negate(b.multiply(g, b.sine(x))),
    "stablehlo.exponential": lambda b, g, x, y: b.multiply(g, y),
    "stablehlo.exponential_minus_one": _times(lambda b, x, y: b.add(y, like(b, 1, y))),
    "stablehlo.log": lambda b, g, x, y: b.divide(g, x),
    "stablehlo.log_plus_one": lambda b, g, x, y: b.divide(g, b.add(x, like(b, 1, x))),
    "stablehlo.logistic": _times(lambda b, x, y: b.multiply(y, b.subtract(like(b, 1, y), y))),
    "stablehlo.negate": lambda b, g, x, y: b.negate(g),
    "stablehlo.rsqrt": _times(lambda b, x, y: b.multiply(like(b, -0.5, x), b.divide(y, x))),
    "stablehlo.sine": _times(lambda b, x, y: b.cosine(x)),
    "stablehlo.sqrt": _times(lambda b, x, y: b.divide(like(b, 0.5, x), y)),
    "stablehlo.tan": _times(lambda b, x, y: b.add(like(b, 1, y), _square(b, y))),
    "stablehlo.tanh": lambda b, g, x, y: b.multiply(b.add(g, b.multiply(g, y)), b.subtract(like(b, 1, y), y)),
    "chlo.acos": _times(lambda b, x, y: b.negate(b.rsqrt(_one_minus_square(b, x)))),
    "chlo.acosh": _times(lambda b, x, y: b.rsqrt(b.subtract(_square(b, x), like(b, 1, x)))),
    "chlo.asin": _times(lambda b, x, y: b.rsqrt(_one_minus_square(b, x))),
    "chlo.asinh": _times(lambda b, x, y: b.rsqrt(b.add(_square(b, x), like(b, 1, x)))),
    "chlo.atan": lambda b, g, x, y: b.divide(g, b.add(_square(b, x), like(b, 1, x))),
    "chlo.atanh": lambda b, g, x, y: b.divide(g, _one_minus_square(b, x)),
    "chlo.cosh": _times(lambda b, x, y: chlo(b, "sinh", x)),
    "chlo.digamma": _times(lambda b, x, y: chlo(b, "polygamma", like(b, 1, x), x)),
    "chlo.erf": _times(_gaussian(2 / sqrt(pi))),
    "chlo.erf_inv": _times(lambda b, x, y: b.multiply(like(b, sqrt(pi) / 2, x), b.exponential(_square(b, y)))),
    "chlo.erfc": _times(_gaussian(-2 / sqrt(pi))),
    "chlo.lgamma": _times(lambda b, x, y: chlo(b, "digamma", x)),
    "chlo.sinh": _times(lambda b, x, y: chlo(b, "cosh", x)),
    "chlo.square": _times(lambda b, x, y: b.multiply(like(b, 2, x), x)),
    "chlo.tan": _times(lambda b, x, y: b.add(like(b, 1, y), _square(b, y))),
}


# ---- two operands ----


def _power_base(b: Builder, g: Value, x: Value, y: Value, _: Value) -> Value:
    """y * x^(y - 1), and 0 where y is 0, whatever x is."""
    none = _compare(b, y, zeros(b, y.type), "EQ")
    less = b.select(none, like(b, 1, y), b.subtract(y, like(b, 1, y)))
    return b.multiply(g, b.multiply(y, b.power(x, less)))


def _power_exponent(b: Builder, g: Value, x: Value, _: Value, result: Value) -> Value:
    return b.multiply(g, b.multiply(b.log(replace_zero(b, x)), result))


def _quotient(b: Builder, g: Value, x: Value, y: Value, _: Value) -> Value:
    return b.divide(b.multiply(b.negate(g), x), b.multiply(y, y))


def _remainder_divisor(b: Builder, g: Value, x: Value, y: Value, _: Value) -> Value:
    ratio = b.divide(x, y)
    return b.multiply(b.negate(g), b.multiply(b.sign(ratio), b.floor(b.abs(ratio))))


def _atan2(sign: int) -> Partial:
    def partial(b: Builder, g: Value, x: Value, y: Value, _: Value) -> Value:
        above = y if sign > 0 else b.negate(x)
        return b.multiply(g, b.divide(above, b.add(b.multiply(x, x), b.multiply(y, y))))

    return partial


def _choose(own: int) -> Partial:
    """Of a maximum or minimum: 1 where the operand is the result, 1/2 where both are."""

    def partial(b: Builder, g: Value, x: Value, y: Value, result: Value) -> Value:
        mine, other = (x, y) if own == 0 else (y, x)
        share = b.select(_compare(b, other, result, "EQ"), like(b, 0.5, g), like(b, 1, g))
        return b.multiply(g, b.select(_compare(b, mine, result, "EQ"), share, zeros(b, g.type)))

    return partial


def _polygamma(b: Builder, g: Value, n: Value, x: Value, _: Value) -> Value:
    return b.multiply(g, chlo(b, "polygamma", b.add(n, like(b, 1, n)), x))


def _zeta(b: Builder, g: Value, x: Value, q: Value, _: Value) -> Value:
    return b.multiply(g, b.multiply(b.negate(x), chlo(b, "zeta", b.add(x, like(b, 1, x)), q)))


_BINARY: Mapping[str, tuple[Partial | str | None, ...]] = {
    "stablehlo.add": (lambda b, g, *_: g, lambda b, g, *_: g),
    "stablehlo.atan2": (_atan2(1), _atan2(-1)),
    "stablehlo.divide": (lambda b, g, x, y, _: b.divide(g, y), _quotient),
    "stablehlo.maximum": (_choose(0), _choose(1)),
    "stablehlo.minimum": (_choose(0), _choose(1)),
    "stablehlo.multiply": (lambda b, g, x, y, _: b.multiply(g, y), lambda b, g, x, y, _: b.multiply(g, x)),
    "stablehlo.power": (_power_base, _power_exponent),
    "stablehlo.remainder": (lambda b, g, *_: g, _remainder_divisor),
    "stablehlo.subtract": (lambda b, g, *_: g, lambda b, g, *_: b.negate(g)),
    "chlo.next_after": (lambda b, g, *_: g, None),
    "chlo.polygamma": ("its order counts derivatives", _polygamma),
    "chlo.zeta": ("no formula for the derivative by the exponent", _zeta),
}


# ---- clamp and select: bounds and predicates may be scalars ----


def _spread(b: Builder, value: Value, shape: Shape) -> Value:
    if value.shape.rank == shape.rank:
        return value
    return b.broadcast_in_dim(value, broadcast_dimensions=(), result=Shape.of(value.shape.dtype, shape.sizes))


def _clamp_masks(b: Builder, op: Op) -> tuple[Value, Value, Value]:
    """Where the lower bound, the operand and the upper bound are the result."""
    low, x, high = (_spread(b, value, op.results[0].shape) for value in op.operands)
    below = b.and_(_compare(b, low, x, "GT"), _compare(b, low, high, "LT"))
    inside = b.and_(_compare(b, x, low, "GT"), _compare(b, x, high, "LT"))
    return below, inside, _compare(b, high, x, "LT")


def _clamp_jvp(sweep: Forward, op: Op) -> None:
    b, shape = sweep.b, op.results[0].shape
    terms = []
    for mask, operand in zip(_clamp_masks(b, op), op.operands, strict=True):
        tangent = sweep.tangent(operand)
        if tangent is not None:
            terms.append(b.select(mask, _spread(b, tangent, shape), zeros(b, shape)))
    sweep.put(op.results[0], sweep.total(terms))


def _select_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    test, then, other = op.operands
    nothing = zeros(sweep.b, g.type)
    if sweep.wants(then):
        sweep.add(then, sweep.b.select(test, g, nothing))
    if sweep.wants(other):
        sweep.add(other, sweep.b.select(test, nothing, g))


# ---- element types and complex numbers; products are not conjugated: JAX's convention ----


def _convert_jvp(sweep: Forward, op: Op) -> None:
    tangent = sweep.tangent(op.operands[0])
    if tangent is not None and op.results[0].shape.dtype.kind in ("float", "complex"):
        sweep.put(op.results[0], cast(sweep.b, tangent, op.results[0].shape))


def _convert_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    sweep.add(op.operands[0], cast(sweep.b, g, op.operands[0].shape))


def _is_complex(value: Value) -> bool:
    return isinstance(value.shape.dtype, DType) and value.shape.dtype.is_complex


def _real(b: Builder, op: Op, g: Value) -> Value:
    return b.complex(g, zeros(b, g.type)) if _is_complex(op.operands[0]) else g


def _imag(b: Builder, op: Op, g: Value) -> Value:
    return b.complex(zeros(b, g.type), b.negate(g)) if _is_complex(op.operands[0]) else zeros(b, g.type)


def _complex_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    if sweep.wants(op.operands[0]):
        sweep.add(op.operands[0], sweep.b.real(g))
    if sweep.wants(op.operands[1]):
        sweep.add(op.operands[1], sweep.b.imag(sweep.b.negate(g)))


def _abs_jvp(sweep: Forward, op: Op) -> None:
    b, x, tangent = sweep.b, op.operands[0], sweep.tangent(op.operands[0])
    if tangent is None:
        return
    if _is_complex(x):
        size = b.convert(replace_zero(b, op.results[0]), result=x.shape)
        made = b.real(b.multiply(tangent, b.divide(chlo(b, "conj", x), size)))
    else:
        made = b.select(_compare(b, x, zeros(b, x.type), "GE"), tangent, b.negate(tangent))
    sweep.put(op.results[0], made)


# ---- bessel_i1e, by bessel_i0e, which StableHLO lacks ----

_NODES = 24  # of the trapezoidal rule: exact to double precision up to _FAR
_FAR = 30.0
_TERMS = 14  # of the asymptotic series


def _bessel_i0e(b: Builder, x: Value) -> Value:
    """exp(-|x|) I0(x): the mean of exp(|x| (cos t - 1)) over half a circle, and a series for large |x|."""
    shape, last = x.shape, x.shape.rank
    size = b.abs(x)
    wide = Shape.of(shape.dtype, (*shape.sizes, _NODES + 1))
    angles = np.cos(np.arange(_NODES + 1) * pi / _NODES) - 1
    weights = np.full(_NODES + 1, 1 / _NODES)
    weights[[0, -1]] /= 2
    near = b.minimum(size, like(b, _FAR, x))
    spread = b.broadcast_in_dim(near, broadcast_dimensions=tuple(range(last)), result=wide)

    def row(numbers: np.ndarray) -> Value:
        return b.broadcast_in_dim(b.constant(numbers, shape.dtype), broadcast_dimensions=(last,), result=wide)

    mean = sum_over(b, b.multiply(b.exponential(b.multiply(spread, row(angles))), row(weights)), (last,))
    far = b.maximum(size, like(b, _FAR, x))
    total = like(b, 1, x)
    for k in range(_TERMS, 0, -1):  # the ratio of the terms k and k - 1 is (2k - 1)^2 / (8 k x)
        ratio = b.divide(like(b, (2 * k - 1) ** 2 / (8 * k), x), far)
        total = b.add(like(b, 1, x), b.multiply(ratio, total))
    series = b.multiply(total, b.rsqrt(b.multiply(like(b, 2 * pi, x), far)))
    return b.select(_compare(b, size, like(b, _FAR, x), "LE"), mean, series)


def _bessel_i1e(b: Builder, x: Value, y: Value) -> Value:
    """i0e(x) - y (sign(x) + 1/x), and 1/2 next to 0."""
    tiny = _compare(b, b.abs(x), like(b, 1e-6, x), "LT")
    safe = b.select(tiny, like(b, 1, x), x)
    slope = b.subtract(_bessel_i0e(b, safe), b.multiply(y, b.add(b.sign(safe), b.divide(like(b, 1, x), safe))))
    return b.select(tiny, like(b, 0.5, x), slope)


_PIECEWISE = "constant between its steps"
_INTEGERS = "a function of integers or booleans, or to them"

RULES: dict[str, Rule] = {
    **{name: elementwise(partial) for name, partial in _UNARY.items()},
    **{name: elementwise(*partials) for name, partials in _BINARY.items()},
    **{
        f"stablehlo.{name}": zero(_PIECEWISE)
        for name in ("ceil", "floor", "round_nearest_afz", "round_nearest_even", "sign")
    },
    **{
        f"stablehlo.{name}": zero(_INTEGERS)
        for name in (
            *("and", "compare", "count_leading_zeros", "is_finite", "not", "or", "popcnt", "xor"),
            *("shift_left", "shift_right_arithmetic", "shift_right_logical"),
        )
    },
    **{f"chlo.{name}": zero(_INTEGERS) for name in ("is_inf", "is_neg_inf", "is_pos_inf", "mulhi")},
    **{name: zero("a constant") for name in ("stablehlo.constant", "chlo.constant", "chlo.constant_like")},
    "chlo.bessel_i1e": elementwise(_times(_bessel_i1e)),
    "stablehlo.abs": Rule(_abs_jvp),
    "stablehlo.clamp": Rule(_clamp_jvp),
    "stablehlo.complex": linear(_complex_vjp),
    "stablehlo.convert": Rule(_convert_jvp, _convert_vjp),
    "stablehlo.imag": linear_in_first(_imag),
    "stablehlo.real": linear_in_first(_real),
    "stablehlo.reduce_precision": linear_in_first(
        lambda b, op, g: b.reduce_precision(
            g, exponent_bits=op.attrs["exponent_bits"], mantissa_bits=op.attrs["mantissa_bits"]
        )
    ),
    "stablehlo.select": linear(_select_vjp, 1, 2),
    "chlo.conj": linear_in_first(lambda b, op, g: chlo(b, "conj", g)),
}


# ---- chlo.broadcast_*: operands stretched to the result, then the elementwise op ----


def _stretch(b: Builder, op: Op) -> list[Value]:
    """The result of a `chlo.broadcast_*` op, its broadcasts spelled out."""
    name = op.name.removeprefix("chlo.broadcast_")
    plain = f"stablehlo.{name}" if f"stablehlo.{name}" in OPS else f"chlo.{name}"
    shape, dims = op.results[0].shape, op.attrs.get("broadcast_dimensions")
    operands = []
    for operand in op.operands:
        have = operand.shape
        if name == "select" and operand is op.operands[0] and not have.rank:
            operands.append(operand)
            continue
        narrow = dims is not None and have.rank < shape.rank
        places = tuple(dims) if narrow and dims is not None else tuple(range(shape.rank - have.rank, shape.rank))
        to = Shape.of(have.dtype, shape.sizes)
        operands.append(operand if have == to else b.broadcast_in_dim(operand, broadcast_dimensions=places, result=to))
    attrs = {key: value for key, value in op.attrs.items() if key != "broadcast_dimensions"}
    return [b.op(plain, *operands, result=shape, **attrs).result]


def _broadcast_rule(name: str) -> Rule:
    plain = name.replace("chlo.broadcast_", "stablehlo.")
    row = RULES.get(plain) or RULES[name.replace("broadcast_", "")]
    return row if row.zero else Rule(expand=_stretch)


BROADCAST = {name: _broadcast_rule(name) for name in OPS if name.startswith("chlo.broadcast_")}
