"""Integers, narrow floats and conversions of the native engine's scalar functions, exhaustively where that is possible.

Oracles: Python's integers and fractions of ml_dtypes' value tables; for conversions between any two types the
reference's cast, which `tests/unit/ir/test_rounding.py` holds to exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest

from smelt.dtype import DTYPES, Array, DType, dtype, f32, f64, i1, integer_range
from smelt.ir import integer
from smelt.ir.cast import cast
from smelt.kernel import math
from tests.unit.kernel.compiled import Case, Compiled, of_op

INTEGERS = [of for of in DTYPES.values() if of.is_integer and of.name != "index"]
NARROW = [of for of in DTYPES.values() if of.is_float and of.bits < 32]
REAL = [of for of in DTYPES.values() if not of.is_complex and of.name != "index"]


# ---- integers ----


def _wrap(value: int, of: DType) -> int:
    low, _ = integer_range(of)
    return (value - low) % (1 << of.bits) + low


def _pattern(value: int, of: DType) -> int:
    return value % (1 << of.bits)


def _signed(value: int, of: DType) -> int:
    pattern = _pattern(value, of)
    return pattern - (1 << of.bits) if pattern >> (of.bits - 1) else pattern


def _quotient(x: int, y: int, of: DType) -> int:
    if y == 0:
        return -1
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _power(x: int, y: int, of: DType) -> int:
    if y < 0:
        return x if x == 1 else (x if y % 2 else 1) if x == -1 else 0
    return pow(x, y, 1 << of.bits)


# op → its result before it is cut to the type's width; the first two have one operand
ONE: dict[str, Callable[[int, DType], int]] = {
    "abs": lambda x, of: abs(x),
    "negate": lambda x, of: -x,
    "not": lambda x, of: ~x,
    "sign": lambda x, of: (x > 0) - (x < 0),
    "popcnt": lambda x, of: _pattern(x, of).bit_count(),
    "count_leading_zeros": lambda x, of: of.bits - _pattern(x, of).bit_length(),
}
TWO: dict[str, Callable[[int, int, DType], int]] = {
    "add": lambda x, y, of: x + y,
    "subtract": lambda x, y, of: x - y,
    "multiply": lambda x, y, of: x * y,
    "and": lambda x, y, of: x & y,
    "or": lambda x, y, of: x | y,
    "xor": lambda x, y, of: x ^ y,
    "maximum": lambda x, y, of: max(x, y),
    "minimum": lambda x, y, of: min(x, y),
    "divide": _quotient,
    "remainder": lambda x, y, of: x if y == 0 else x - y * _quotient(x, y, of),
    "power": _power,
    "mulhi": lambda x, y, of: x * y >> of.bits,
    "shift_left": lambda x, y, of: x << min(_pattern(y, of), 64),
    "shift_right_logical": lambda x, y, of: _pattern(x, of) >> _pattern(y, of),
    "shift_right_arithmetic": lambda x, y, of: _signed(x, of) >> _pattern(y, of),
}
RELATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def _divisors(of: DType) -> list[int]:
    """Constants to divide by, 0 and -1 among them: what C does not define."""
    low, high = integer_range(of)
    return [by for by in (0, 1, 3, -1, -2) if low <= by <= high]


@cache
def integers() -> Compiled:
    cases: dict[str, Case] = {}
    for of in INTEGERS:
        cases |= {f"{name}_{of}": of_op(name, [of]) for name in ONE}
        cases |= {f"{name}_{of}": of_op(name, [of, of]) for name in TWO}
        cases |= {f"{name}_{of}": of_op(name, [of, of], i1) for name in RELATIONS}
        cases[f"clamp_{of}"] = of_op("clamp", [of] * 3)
        for name, by in product(("divide", "remainder"), _divisors(of)):
            text = math.apply(name, ["x0", math.literal(by, of)], [of, of], of)
            assert text is not None
            assert ("smelt_" in text) == (by in (0, -1)), "C divides by constants, but not by these"
            cases[f"{name}_by_{by}_{of}".replace("-", "minus")] = (text, [of], of)
    return Compiled(cases, fast=False)


def _numbers(of: DType, random: np.random.Generator) -> list[tuple[int, int]]:
    """All pairs of small types; edges and random ones of others."""
    low, high = integer_range(of)
    if of.bits <= 4:
        return [(x, y) for x in range(low, high + 1) for y in range(low, high + 1)]
    edges = {low, low + 1, high, high - 1, 0, 1, 2, 3, 7, of.bits - 1, of.bits, high // 3}
    edges |= {-1, -2, -3} if of.kind == "int" else set()
    drawn = [int(random.integers(low, high, endpoint=True, dtype=of.numpy)) for _ in range(120)]
    drawn += [value >> int(random.integers(0, of.bits)) for value in drawn]
    values = sorted(edges) + drawn
    pairs = [(x, y) for x in edges for y in edges]
    return pairs + [(values[i], values[j]) for i, j in random.integers(0, len(values), (1500, 2))]


@pytest.mark.parametrize("of", INTEGERS, ids=str)
def test_integers(of: DType, seed: int) -> None:
    pairs = _numbers(of, np.random.default_rng(seed))
    x, y = (
        np.array(column, np.int64 if of.kind == "int" else np.uint64).astype(of.numpy)
        for column in zip(*pairs, strict=True)
    )
    for name, one in ONE.items():
        want = [_wrap(one(a, of), of) for a, _ in pairs]
        assert integers()(f"{name}_{of}", x).astype(object).tolist() == want, name
    for name, two in TWO.items():
        want = [_wrap(two(a, b, of), of) for a, b in pairs]
        assert integers()(f"{name}_{of}", x, y).astype(object).tolist() == want, name
    for name, relation in RELATIONS.items():
        truth = relation(*(np.array(column, object) for column in zip(*pairs, strict=True)))
        assert integers()(f"{name}_{of}", x, y).tolist() == truth.tolist(), name
    limits = np.roll(y, 1)
    clamped = [min(max(a, b), c) for a, b, c in zip(x.tolist(), y.tolist(), limits.tolist(), strict=True)]
    assert integers()(f"clamp_{of}", y, x, limits).tolist() == clamped
    for name, by in product(("divide", "remainder"), _divisors(of)):
        want = [_wrap(TWO[name](a, by, of), of) for a, _ in pairs]
        assert integers()(f"{name}_by_{by}_{of}".replace("-", "minus"), x).astype(object).tolist() == want, (name, by)


def test_booleans() -> None:
    names: dict[str, Callable[..., Array]] = {"add": np.add, "multiply": np.multiply, "xor": np.logical_xor}
    names |= {"maximum": np.maximum, "minimum": np.minimum}
    cases = {name: of_op(name, [i1, i1]) for name in names} | {"not": of_op("not", [i1])}
    cases["less"] = of_op("LT", [i1, i1], i1)
    cases["choose"] = of_op("select", [i1, f32, f32])
    run = Compiled(cases)
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for name, oracle in names.items():
        np.testing.assert_array_equal(run(name, x, y), oracle(x, y), name)
    np.testing.assert_array_equal(run("not", x), ~x)
    np.testing.assert_array_equal(run("less", x, y), x < y)
    np.testing.assert_array_equal(run("choose", x, np.arange(4), -np.arange(4)), [0, -1, 2, 3])


# ---- narrow floats ----


@cache
def values(of: DType) -> tuple[Array, Array]:
    """The finite numbers of a format in ascending order, as doubles, and their bit patterns."""
    unsigned = np.dtype(f"u{of.numpy.itemsize}")
    codes = np.arange(1 << of.bits).astype(unsigned)
    with np.errstate(all="ignore"):
        numbers = codes.view(of.numpy).astype(np.float64)
    kept = np.isfinite(numbers) & ~((numbers == 0) & np.signbit(numbers))
    order = np.argsort(numbers[kept], kind="stable")
    return numbers[kept][order], codes[kept][order]


def nearest(exact: Array, of: DType) -> Array:
    """The number of a format next to an exact double, ties to the even pattern, from the list of all its numbers."""
    numbers, codes = values(of)
    at = np.clip(np.searchsorted(numbers, exact, side="right"), 1, numbers.size - 1)
    below, above = numbers[at - 1], numbers[at]
    with np.errstate(all="ignore"):
        up, down = above - exact, exact - below
    choose = np.where(up == down, codes[at] % 2 == 0, up < down)
    value = np.where(choose, above, below)
    step = numbers[-1] - numbers[-2]
    with np.errstate(all="ignore"):
        over = np.abs(exact) - numbers[-1]
        beyond = np.array([np.inf, np.nan]).astype(np.float32).astype(of.numpy).astype(np.float64)
    tie_stays = codes[-1] % 2 == 0
    outside = (over > step / 2) | ((over == step / 2) & (not tie_stays))
    saturated = np.where(np.isfinite(beyond[0]), numbers[-1], beyond[0])
    value = np.where(outside, np.copysign(saturated, exact), value)
    value = np.where(value == 0, np.copysign(0.0, exact), value)
    return np.where(np.isnan(exact), np.nan, value)


def same_values(got: Array, want: Array, of: DType) -> None:
    """Equal numbers; a format without nan has a zero in its place, one without -0 has +0."""
    with np.errstate(all="ignore"):
        g = got.astype(np.float64)
    without_nan = of.bits < 8
    want = np.where(np.isnan(want), 0.0, want) if without_nan else want
    differ = ~((g == want) | (np.isnan(g) & np.isnan(want)))
    if not without_nan and "FNU" not in of.name:
        differ |= (g == 0) & (want == 0) & (np.signbit(g) != np.signbit(want))
    assert not differ.any(), [(at, g[at], want[at]) for at in np.flatnonzero(differ)[:4]]


def patterns(of: DType) -> Array:
    return np.arange(1 << of.bits).astype(np.dtype(f"u{of.numpy.itemsize}")).view(of.numpy)


NARROW_ONE: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "negate": np.negative,
    "ceil": np.ceil,
    "floor": np.floor,
    "sqrt": np.sqrt,
    "square": lambda x: x * x,
    "sign": lambda x: np.where(x == 0, x, np.sign(x)),
    "round_nearest_even": np.rint,
}
NARROW_TWO: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "remainder": np.fmod,
}
APPROXIMATED: dict[str, Callable[[Array], Array]] = {
    "exponential": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "logistic": lambda x: np.where(x < 0, np.exp(-np.abs(x)), 1.0) / (1.0 + np.exp(-np.abs(x))),
    "sine": np.sin,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exponential_minus_one": np.expm1,
}


@cache
def narrow(plain: bool) -> Compiled:
    cases: dict[str, Case] = {}
    for of in NARROW:
        cases[f"kept_{of}"] = ("x0", [of], of)
        cases |= {f"from_{source}_{of}": (math.convert("x0", source, of), [source], of) for source in (f32, f64)}
        if plain:
            continue
        cases |= {f"{name}_{of}": of_op(name, [of]) for name in (*NARROW_ONE, *APPROXIMATED)}
        cases |= {f"{name}_{of}": of_op(name, [of, of]) for name in (*NARROW_TWO, "next_after")}
        cases |= {f"{name}_{of}": of_op(name, [of, of], i1) for name in RELATIONS}
        for bits in ((5, 2), (2, 1), (8, 3)):
            cases[f"reduce_{bits[0]}_{bits[1]}_{of}"] = (math.reduce_precision("x0", of, *bits), [of], of)
    return Compiled(cases, fast=False, plain=plain)


both_ways = pytest.mark.parametrize("plain", [False, True], ids=["native", "plain"])


@both_ways
@pytest.mark.parametrize("of", NARROW, ids=str)
def test_bits_survive_a_register(of: DType, plain: bool) -> None:
    x = patterns(of)
    got, want = (each.view(np.dtype(f"u{x.itemsize}")) for each in (narrow(plain)(f"kept_{of}", x), x))
    if of.name == "f16":  # the processor's conversion makes signalling nans quiet
        got, want = np.where(np.isnan(x), got | 0x200, got), np.where(np.isnan(x), want | 0x200, want)
    np.testing.assert_array_equal(got, want)


@both_ways
@pytest.mark.parametrize("of", NARROW, ids=str)
def test_rounding_to_narrow_floats(of: DType, plain: bool, seed: int) -> None:
    """Every number, every tie, both their neighbours, and numbers of all sizes, from f32 and from f64."""
    random = np.random.default_rng(seed)
    numbers, _ = values(of)
    middles = (numbers[1:] + numbers[:-1]) / 2
    ends = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e300, -1e300, 1e-300, 1e-45, 65519.99, 65520.0])
    past = numbers[-1] * np.array([1.01, 1.03, 1.0625, 1.125, 1.25, 1.5, 2.0])
    wide = random.standard_normal(20_000) * 2.0 ** random.integers(-160, 140, 20_000)
    beside = [np.nextafter(middles, 9e99), np.nextafter(middles, -9e99)]
    exact = np.concatenate([numbers, middles, *beside, past, ends, wide])
    oracle = _nearest_power if of.name == "f8E8M0FNU" else nearest
    same_values(narrow(plain)(f"from_f64_{of}", exact), oracle(exact, of), of)
    with np.errstate(all="ignore"):
        single = exact.astype(np.float32)
    same_values(narrow(plain)(f"from_f32_{of}", single), oracle(single.astype(np.float64), of), of)


def _nearest_power(exact: Array, of: DType) -> Array:
    """f8E8M0FNU: powers of two from 2^-127 to 2^127, ties up, zero to the least, nan for all that it lacks."""
    with np.errstate(all="ignore"):
        power = np.floor(np.log2(exact))
        power = np.where(exact < 2.0**power, power - 1, power)
        power = np.where(exact >= 1.5 * 2.0**power, power + 1, power)
        value = 2.0 ** np.maximum(power, -127)
    value = np.where(exact == 0, 2.0**-127, value)
    return np.where((exact >= 0) & (value <= 2.0**127), value, np.nan)


@pytest.mark.parametrize("of", NARROW, ids=str)
def test_ops_of_narrow_floats(of: DType, seed: int) -> None:
    """All operands of 8 bits and pairs of them, all of 16 bits and random pairs: the exact result, rounded once."""
    run, oracle = narrow(False), _nearest_power if of.name == "f8E8M0FNU" else nearest
    x = patterns(of)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        for name, one in NARROW_ONE.items():
            same_values(run(f"{name}_{of}", x), oracle(one(wide), of), of)
        for name, function in APPROXIMATED.items():
            _close(run(f"{name}_{of}", x), function(wide), of, oracle, name)
    if of.bits == 16:
        random = np.random.default_rng(seed)
        a, b = x[random.integers(0, x.size, 200_000)], x[random.integers(0, x.size, 200_000)]
        near = x[(random.integers(0, 1 << 10, 100_000) + random.choice([0, 0x3C00, 0x8000], 100_000)).astype(np.intp)]
        a, b = np.concatenate([a, near, near]), np.concatenate([b, near[::-1], np.roll(near, 1)])
    else:
        a, b = x.repeat(x.size), np.tile(x, x.size)
    with np.errstate(all="ignore"):
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        for name, two in NARROW_TWO.items():
            want = two(wide_a, wide_b)
            if name in ("maximum", "minimum"):
                zeros = (wide_a == 0) & (wide_b == 0)
                signed = wide_a + wide_b if name == "maximum" else -(-wide_a - wide_b)
                want = np.where(zeros, signed, want)
            same_values(run(f"{name}_{of}", a, b), oracle(want, of), of)
        next_after = np.where(a == b, b, np.nextafter(a, b)).astype(np.float64)
    same_values(run(f"next_after_{of}", a, b), next_after, of)
    for name, relation in RELATIONS.items():
        np.testing.assert_array_equal(run(f"{name}_{of}", a, b), relation(wide_a, wide_b), name)


def _close(got: Array, exact: Array, of: DType, oracle: Callable[[Array, DType], Array], name: str) -> None:
    """The nearest number, or where the exact result is within a ten-thousandth of a tie the other one."""
    either = [oracle(exact * factor, of) for factor in (1.0, 1 - 2.0**-20, 1 + 2.0**-20)]
    with np.errstate(all="ignore"):
        g = got.astype(np.float64)
    same = np.zeros(g.shape, bool)
    without_nan = of.bits < 8
    for want in either:
        known = np.where(np.isnan(want), 0.0, want) if without_nan else want
        same |= (g == known) | (np.isnan(g) & np.isnan(known))
    assert same.all(), (name, [(g[at], exact[at]) for at in np.flatnonzero(~same)[:4]])


@pytest.mark.parametrize("of", NARROW, ids=str)
def test_reduce_precision_of_narrow_floats(of: DType) -> None:
    """As the reference has it, whose own tests compare with XLA."""
    x = patterns(of)
    for bits in ((5, 2), (2, 1), (8, 3)):
        with np.errstate(all="ignore"):
            want = integer.reduce_precision(x, *bits).astype(np.float64)
        same_values(narrow(False)(f"reduce_{bits[0]}_{bits[1]}_{of}", x), want, of)


# ---- conversions ----


def samples(of: DType, random: np.random.Generator) -> Array:
    if of.bits <= 8:
        return patterns(of) if of.kind != "bool" else np.array([False, True])
    raw = random.integers(0, 1 << 64, 4000, dtype=np.uint64, endpoint=False)
    unsigned = np.dtype(f"u{of.numpy.itemsize}")
    drawn = raw.astype(unsigned).view(of.numpy)
    if of.is_integer:
        small = (raw >> random.integers(0, 64, raw.size).astype(np.uint64)).astype(of.numpy)
        low, high = integer_range(of)
        return np.concatenate([drawn, small, np.array([low, high, 0, 1, high - 1], of.numpy)])
    scale = 2.0 ** random.integers(-3, 66, 4000)
    near = random.standard_normal(4000) * scale
    powers = np.concatenate([2.0 ** np.arange(0.0, 65), 2.0 ** np.arange(0.0, 65) - 0.5])
    with np.errstate(all="ignore"):
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1e-40]
        made = np.concatenate([near, powers, -powers, special]).astype(of.numpy)
        drawn = np.where(np.isnan(drawn), np.array(np.nan, of.numpy), drawn)  # NumPy warns about signalling ones
    return np.concatenate([drawn, made])


@cache
def conversions() -> Compiled:
    cases = {f"{a}_to_{b}": (math.convert("x0", a, b), [a], b) for a in REAL for b in REAL if a is not b}
    return Compiled(cases, fast=False)


@pytest.mark.parametrize("source", REAL, ids=str)
def test_conversions(source: DType, seed: int) -> None:
    x = samples(source, np.random.default_rng(seed))
    for target in REAL:
        if target is not source:
            with np.errstate(all="ignore"):
                got, want = conversions()(f"{source}_to_{target}", x), cast(x, target)
            if target.is_float:
                with np.errstate(all="ignore"):  # NumPy warns about signalling nans
                    wide = want.astype(np.float64)
                same_values(got, wide, target)
            else:
                np.testing.assert_array_equal(got.astype(object), want.astype(object), str(target))


def test_bitcasts(seed: int) -> None:
    groups = [
        *[("i8", other) for other in ("ui8", "f8E5M2", "f8E4M3FN", "f8E3M4")],
        *[("i16", other) for other in ("ui16", "bf16")],
        *[("i32", other) for other in ("ui32", "f32")],
        *[("i64", other) for other in ("ui64", "f64", "complex<f32>")],
        ("i4", "ui4"),
        ("i4", "f4E2M1FN"),
        ("i2", "ui2"),
    ]
    pairs = [(dtype(a), dtype(b)) for a, b in groups]
    names = {f"p{k}": pair for k, pair in enumerate(pairs)}
    cases = {name: (math.bitcast("x0", a, b), [a], b) for name, (a, b) in names.items()}
    cases |= {f"{name}_back": (math.bitcast("x0", b, a), [b], a) for name, (a, b) in names.items()}
    run = Compiled(cases, fast=False)
    for name, (a, _) in names.items():
        x = samples(a, np.random.default_rng(seed))
        if a.bits < 8:
            want = (x.astype(np.int8).view(np.uint8) & ((1 << a.bits) - 1)).astype(np.uint8)
            got = run(name, x).view(np.uint8) & ((1 << a.bits) - 1)
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_array_equal(run(name, x).view(a.numpy), x)
        back = run(f"{name}_back", run(name, x))
        np.testing.assert_array_equal(back.astype(object), x.astype(object))


def test_literals() -> None:
    """Constants arrive unchanged."""
    wanted: list[tuple[float | int | bool, str]] = [
        (0.1, "f32"),
        (0.1, "f64"),
        (-0.0, "f64"),
        (float("inf"), "f32"),
        (float("-inf"), "f64"),
        (float("nan"), "bf16"),
        (1e-45, "f32"),
        (5e-324, "f64"),
        (3.14159, "bf16"),
        (448.0, "f8E4M3FN"),
        (-(2**63), "i64"),
        (2**63 - 1, "i64"),
        (2**64 - 1, "ui64"),
        (-(2**31), "i32"),
        (2**32 - 1, "ui32"),
        (-128, "i8"),
        (-8, "i4"),
        (True, "i1"),
    ]
    for k, (value, name) in enumerate(wanted):
        of = dtype(name)
        (got,) = Compiled({f"c{k}": (math.literal(value, of), [i1], of)})(f"c{k}", np.zeros(1, bool))
        want = np.array(value).astype(of.numpy)[()]
        assert got == want or (got != got and want != want), (value, name, got)
        assert of.kind != "float" or np.signbit(float(got)) == np.signbit(float(want))
