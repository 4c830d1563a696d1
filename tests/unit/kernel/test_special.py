"""`kernel.math.special` and `kernel.math.complex`, compiled, against mpmath and, at infinities, zeros and cuts, NumPy.

Every case runs as the compiler of this machine likes it and with `SMELT_PLAIN`, which stands for a processor without
multiply-add and rounding instructions. Errors are held to what the two files state in `ULP`; where a value, or a part
of a complex one, has a zero that no double hits, to a tolerance against 1 or against the complex number.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import mpmath as mp
import numpy as np
import pytest

from smelt.device import cpu
from smelt.dtype import DTYPES, dtype
from smelt.errors import SmeltError
from smelt.ir import special as reference
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.ops import OPS
from smelt.kernel.math import FORMS, apply, load, prelude, store
from smelt.kernel.math.complex import FORMS as COMPLEX_FORMS
from smelt.kernel.math.complex import RELATIONS
from smelt.kernel.math.complex import ULP as COMPLEX_ULP
from smelt.kernel.math.special import FORMS as REAL_FORMS
from smelt.kernel.math.special import ULP as REAL_ULP
from smelt.shape import Shape

INF, NAN = np.inf, np.nan
NARROW: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
WIDE: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128}
NUMPY = {**WIDE, **NARROW, "i1": np.bool_}
PART = {"c64": "f32", "c128": "f64"}
PAIR = {"f32": "c64", "f64": "c128"}
VARIANTS = ("", "#define SMELT_PLAIN\n")


def result_class(op: str, of: str) -> str:
    if op in RELATIONS:
        return "i1"
    if op == "complex":
        return PAIR[of]
    return PART[of] if of in PART and op in ("abs", "real", "imag") else of


@cache
def library(variant: str) -> ctypes.CDLL:
    """One C file with a loop over arrays for each form of the two files."""
    loops = []
    for (op, of), form in {**REAL_FORMS, **COMPLEX_FORMS}.items():
        if of not in (WIDE if variant else NUMPY):
            continue
        count = 1 + max(k for k in range(3) if f"{{{k}}}" in form)
        args = [f"x{k}[i]" for k in range(count)]
        to = result_class(op, of)
        if of in NARROW:
            element = DTYPES[of]
            text = apply(op, [load(element, arg) for arg in args], [element] * count, element)
            assert text is not None
            of_memory, to, value = "ui16", "ui16", store(element, text)
        else:
            of_memory, value = of, form.format(*args)
        operands = "".join(f", const {of_memory} *x{k}" for k in range(count))
        head = f"void run_{op}_{of}(i64 n, {to} *out{operands})"
        loops.append(f"{head} {{ for (i64 i = 0; i < n; i++) out[i] = {value}; }}")
    body = "\n".join(loops)
    return cpu.build(variant + prelude(body) + body)


def call(op: str, of: str, *args: Any, variant: str = "") -> np.ndarray:
    arrays = [np.array(array, NUMPY[of], order="C") for array in np.broadcast_arrays(*args)]
    out = np.empty(arrays[0].shape, NUMPY[result_class(op, of)])
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (out, *arrays)]
    getattr(library(variant), f"run_{op}_{of}")(ctypes.c_int64(out.size), *pointers)
    return out


def pair(re: Any, im: Any) -> np.ndarray:
    """re + i im; the sum itself would turn infinite parts into nan."""
    out = np.empty(np.broadcast_shapes(np.shape(re), np.shape(im)), np.complex128)
    out.real, out.imag = re, im
    return out


# Samples --------------------------------------------------------------------------------------------------------------


def linear(low: float, high: float, n: int = 100) -> np.ndarray:
    return np.random.default_rng(7).uniform(low, high, n)


def decades(low: float, high: float, n: int = 100) -> np.ndarray:
    return 10 ** np.random.default_rng(11).uniform(low, high, n)


def both(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, -x])


def whole(low: int, high: int, n: int = 60) -> np.ndarray:
    return np.random.default_rng(13).integers(low, high, n).astype(np.float64)


def plane(n: int = 12) -> np.ndarray:
    """Complex numbers of like and of very different parts, on and beside the unit circles, poles and branch points."""
    rng = np.random.default_rng(17)
    z = rng.normal(size=n) + 1j * rng.normal(size=n)
    circle = np.exp(1j * rng.uniform(-np.pi, np.pi, n))
    beside = [1 + z * 1e-6, -1 + z * 1e-6, 1j + z * 1e-6, -1j + z * 1e-6, np.pi * 1j + z * 1e-5, np.pi / 2 + z * 1e-5]
    uneven = [pair(z.real * 1e-8, z.imag), pair(z.real, z.imag * 1e-8), pair(z.real * 3, z.imag * 1e-30)]
    return np.concatenate([z, z * 1e-3, z * 1e-8, z * 20, circle, circle - 1, *beside, *uneven])


def sizes(low: float, high: float, n: int = 16) -> np.ndarray:
    rng = np.random.default_rng(19)
    parts = 10 ** rng.uniform(low, high, (2, n)) * rng.choice([-1, 1], (2, n))
    return pair(parts[0], parts[1])


MODERATE = plane()
ANYWHERE = np.r_[MODERATE, sizes(-150, 150), sizes(-290, 305)]

# Real functions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    op: str
    oracle: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    tolerance: float | None = None  # relative, instead of the stated ULP; of a complex number, against its size
    floor: float = 0.0  # takes the place of a smaller |value|
    region: str = ""


def log_gamma(x):
    return mp.log(abs(mp.gamma(x)))


def hurwitz(s, q):
    """mpmath's own, with the terms below 0 added by hand and the bits that it needs for small values."""
    terms = max(0, int(mp.ceil(-q)))
    with mp.workprec(200 + int(s * mp.log(q + terms + 1, 2))):
        return mp.fsum((q + k) ** -s for k in range(terms)) + mp.zeta(s, q + terms)


def derivative(n, x):
    return mp.digamma(x) if n == 0 else (-1) ** (int(n) + 1) * mp.factorial(n) * hurwitz(n + 1, x)


def bessel_i1e(x):
    return mp.exp(-abs(x)) * mp.besseli(1, x)


ANY_SIZE = both(decades(-300, 300))
UNIT = np.r_[both(decades(-300, 0)), linear(-1, 1, 300), both(1 - decades(-16, 0))]
ROOT = 1.4616321449683622  # of digamma
REAL = [
    Case("atan", mp.atan, (np.r_[ANY_SIZE, linear(-4, 4, 300)],)),
    Case("asin", mp.asin, (UNIT,)),
    Case("acos", mp.acos, (UNIT,)),
    Case("sinh", mp.sinh, (np.r_[both(decades(-300, 2.8)), linear(-3, 3), linear(-710.4, 710.4)],)),
    Case("cosh", mp.cosh, (np.r_[both(decades(-300, 2.8)), linear(-3, 3), linear(-710.4, 710.4)],)),
    Case("asinh", mp.asinh, (np.r_[ANY_SIZE, linear(-3, 3, 200)],)),
    Case("acosh", mp.acosh, (np.r_[decades(0, 300), 1 + decades(-15, 1, 200)],)),
    Case("atanh", mp.atanh, (UNIT[np.abs(UNIT) < 1],)),
    Case("erf_inv", mp.erfinv, (np.r_[linear(-1, 1), both(decades(-300, -1, 50)), 1 - decades(-15.5, -0.5)],)),
    Case("lgamma", mp.loggamma, (np.r_[linear(0, 3), linear(3, 20), decades(-300, 305)],)),
    Case(
        "lgamma", mp.loggamma, (np.r_[1 + both(decades(-12, -1)), 2 + both(decades(-12, -1))],), 1e-15, region="zeros"
    ),
    Case("lgamma", log_gamma, (np.r_[linear(-30, 0, 300), -decades(-300, 0)],), 1e-14, 1.0, region="below 0"),
    Case("lgamma", log_gamma, (whole(-100, 0) + both(decades(-12, -3))[:60],), 1e-14, 1.0, region="poles"),
    Case("digamma", mp.digamma, (np.r_[linear(0, 5), linear(5, 30), decades(-300, 300)],)),
    Case("digamma", mp.digamma, (ROOT + both(decades(-15.5, -0.7)),), region="zero"),
    Case("digamma", mp.digamma, (np.r_[linear(-30, 0, 300), -decades(-300, 0)],), 2e-14, 1.0, region="below 0"),
    Case("zeta", hurwitz, (1 + decades(-3, 1.7, 60), np.flip(decades(-2, 4, 60)))),
    Case("zeta", hurwitz, (whole(2, 60), decades(-5, 3, 60)), region="whole"),
    Case("zeta", hurwitz, (2 * whole(1, 15), linear(-20, 0, 60)), region="even, below 0"),
    Case("zeta", hurwitz, (2 * whole(1, 15) + 1, linear(-20, 0, 60)), 5e-15, 1.0, region="odd, below 0"),
    Case("polygamma", derivative, (whole(0, 40), decades(-3, 3, 60))),
    Case("polygamma", derivative, (whole(40, 400, 20), decades(-1, 3, 20)), 2e-12, region="large"),
    Case("polygamma", derivative, (whole(1, 20), linear(-10, 0, 60)), 1e-14, 1.0, region="below 0"),
    Case("bessel_i1e", bessel_i1e, (np.r_[linear(-60, 60), linear(15, 25), decades(-300, 8)],)),
]


def precision(*args: complex) -> int:
    """Bits for mpmath: enough for 1 ± z and z² ± 1, however large or small the parts are."""
    parts = [abs(part) for arg in args for part in (arg.real, arg.imag) if part]
    return int(300 + 4 * max((abs(np.log2(part)) for part in parts), default=0))


def units(count: float, want: Any) -> float:
    return count * float(np.spacing(abs(float(want))))


def wanted(case: Case, args: tuple[np.ndarray, ...]) -> list[Any]:
    values = []
    for each in zip(*(array.tolist() for array in args), strict=True):
        with mp.workprec(precision(*each) if np.iscomplexobj(args[0]) else 250):
            values.append(case.oracle(*map(mp.mpmathify, each)))
    return values


@pytest.mark.parametrize("case", REAL, ids=lambda case: f"{case.op} {case.region}".strip())
def test_real(case: Case) -> None:
    wants = wanted(case, case.args)
    for variant in VARIANTS:
        got = call(case.op, "f64", *case.args, variant=variant)
        for value, want, *args in zip(got.tolist(), wants, *case.args, strict=True):
            if abs(want) > np.finfo(np.float64).max:
                assert value == mp.sign(want) * INF
                continue
            with mp.workprec(250):
                limit = (
                    case.tolerance * max(abs(want), case.floor) if case.tolerance else units(REAL_ULP[case.op], want)
                )
                assert abs(value - want) <= limit, (args, value, mp.nstr(want, 20))


@pytest.mark.parametrize(
    "case", [case for case in REAL if case.op not in ("sinh", "cosh")][::2], ids=lambda case: case.op
)
def test_single_is_rounded_once(case: Case) -> None:
    with np.errstate(over="ignore", under="ignore"):
        args = tuple(array[::4].astype(np.float32) for array in case.args)
    inside = np.all(np.isfinite(args), axis=0)
    if case.op in ("atanh", "erf_inv"):
        inside &= np.abs(args[0]) < 1
    poles = (args[-1] <= 0) & (args[-1] == np.floor(args[-1]))
    if case.op in ("lgamma", "digamma", "zeta", "polygamma"):
        inside &= ~poles
    args = tuple(array[inside] for array in args)
    assert args[0].size > 5
    for value, want in zip(call(case.op, "f32", *args).tolist(), wanted(case, args), strict=True):
        check_single(value, want)


def check_single(value: float, want: Any) -> None:
    """`value` is the f32 next to `want`, or as near as an error of 2**-44 before rounding leaves it."""
    if abs(want) >= float(np.finfo(np.float32).max):
        assert np.isinf(value)
        return
    unit = float(np.spacing(np.float32(abs(float(want)))))
    assert abs(value - want) <= 0.500001 * unit, (value, want)


@pytest.mark.parametrize("of", NARROW)
@pytest.mark.parametrize("op", sorted({op for op, _ in REAL_FORMS}))
def test_narrow_floats_are_rounded_once(op: str, of: str) -> None:
    x = np.arange(0, 1 << 16, 5, dtype=np.uint16).view(NARROW[of])
    with np.errstate(invalid="ignore"):
        x = np.append(x[~np.isnan(x)], NARROW[of](NAN))  # a signalling nan would warn on every step
    if (
        op == "bessel_i1e"
    ):  # a half of a subnormal number is a tie, which the last bit of the reference's double decides
        x = x[np.abs(x.astype(np.float32)) >= 2 * float(ml_dtypes.finfo(NARROW[of]).tiny)]
    args = [(np.arange(x.size) % 7).astype(NARROW[of]), x] if op in ("polygamma", "zeta") else [x]
    got, want = call(op, of, *args), evaluate(f"chlo.{op}", *args)
    assert want.dtype == got.dtype
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[got == 0]))


@pytest.mark.parametrize("op", ["sinh", "cosh"])
def test_hyperbolic_of_single_is_the_formula_of_chlo(op: str) -> None:
    x = np.r_[both(decades(-30, 2)), linear(-95, 95, 200), linear(-1.2, 1.2)].astype(np.float32)
    log_half = np.float32(np.log(0.5))
    with np.errstate(over="ignore"):
        up, down = (np.array([float(mp.exp(e)) for e in (part + log_half).tolist()], np.float32) for part in (x, -x))
        want = up + down if op == "cosh" else up - down
        small = np.array([float(mp.sinh(each)) for each in x.tolist()], np.float32)
    got = call(op, "f32", x)
    np.testing.assert_array_equal(got, np.where(np.abs(x) < 1, small, want) if op == "sinh" else want)


POINTS = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2.5, 3, 1e-310, 1e308, -1e308, 30, -800, 800, INF, -INF, NAN])
UNARY: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cosh": np.cosh,
    "sinh": np.sinh,
}
OURS = {name: getattr(reference, name) for name in ("bessel_i1e", "digamma", "erf_inv", "lgamma")}


def assert_same(got: np.ndarray, want: np.ndarray, tolerance: float, by_part: bool = True) -> None:
    """Equal parts: nan is nan, zeros have their sign, and numbers agree, subnormal ones but for a few units.

    The tolerance is a fraction of the part, or, not `by_part`, of the complex number where that is finite.
    """
    parts = [(got.real, want.real), (got.imag, want.imag)] if np.iscomplexobj(want) else [(got, want)]
    for a, b in parts:
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        number = np.isfinite(b)
        np.testing.assert_array_equal(a[~number], b[~number])
        size = np.abs(np.where(np.isfinite(want) & (not by_part), want, b))[number]
        wrong = ~(np.abs(a[number] - b[number]) <= tolerance * size + 2e-323)
        assert not wrong.any(), list(zip(a[number][wrong], b[number][wrong], strict=True))[:5]
        zero = b == 0
        np.testing.assert_array_equal(np.signbit(a[zero]), np.signbit(b[zero]))


@pytest.mark.parametrize("op", [*UNARY, *OURS])
def test_real_values(op: str) -> None:
    with np.errstate(all="ignore"):
        want = {**UNARY, **OURS}[op](POINTS)
    for variant in VARIANTS:
        assert_same(call(op, "f64", POINTS, variant=variant), want, 1e-15)


@pytest.mark.parametrize("op", ["zeta", "polygamma"])
def test_real_values_of_two(op: str) -> None:
    x, q = np.meshgrid(np.r_[POINTS, -3, 4, 5, 171, 180, 10.5], np.r_[POINTS, -3, -4, -3.5, -2.25, 0.25, 100])
    want = getattr(reference, op)(x, q)
    for variant in VARIANTS:
        assert_same(call(op, "f64", x, q, variant=variant), want, 2e-13)


# Complex functions ----------------------------------------------------------------------------------------------------

COMPLEX = [
    Case("exponential", mp.exp, (MODERATE,)),
    Case("sine", mp.sin, (MODERATE,)),
    Case("cosine", mp.cos, (MODERATE,)),
    Case("tan", mp.tan, (MODERATE,)),
    Case("sinh", mp.sinh, (MODERATE,)),
    Case("cosh", mp.cosh, (MODERATE,)),
    Case("tanh", mp.tanh, (MODERATE,)),
    Case("log", mp.log, (ANYWHERE,)),
    Case("sqrt", mp.sqrt, (ANYWHERE,)),
    Case("rsqrt", lambda z: 1 / mp.sqrt(z), (ANYWHERE,)),
    Case("cbrt", lambda z: mp.exp(mp.log(z) / 3), (np.r_[MODERATE, sizes(-150, 150)],)),
    Case("sign", lambda z: z / abs(z), (ANYWHERE,)),
    Case("asin", mp.asin, (ANYWHERE,)),
    Case("acos", mp.acos, (ANYWHERE,)),
    Case("atan", mp.atan, (ANYWHERE,)),
    Case("asinh", mp.asinh, (ANYWHERE,)),
    Case("acosh", mp.acosh, (ANYWHERE,)),
    Case("atanh", mp.atanh, (ANYWHERE,)),
    Case("log_plus_one", lambda z: mp.log(1 + z), (ANYWHERE,)),
    Case("square", lambda z: z * z, (MODERATE,), 4e-16),
    Case("exponential_minus_one", mp.expm1, (MODERATE,), 1e-15),
    Case("logistic", lambda z: 1 / (1 + mp.exp(-z)), (MODERATE,), 2e-15),
    Case("power", mp.power, (MODERATE, np.roll(MODERATE, 12) / 4), 5e-15),
    Case("power", mp.power, (MODERATE, np.rint(np.roll(MODERATE, 12).real * 5) + 0j), 2e-14, region="whole"),
    Case(
        "divide",
        mp.fdiv,
        (np.r_[MODERATE, sizes(-150, 150)], np.roll(np.r_[MODERATE, sizes(-150, 150)], 7)),
        1e-15,
    ),
    Case("multiply", mp.fmul, (MODERATE, np.roll(MODERATE, 7)), 4e-16),
]


@pytest.mark.parametrize("case", COMPLEX, ids=lambda case: f"{case.op} {case.region}".strip())
def test_complex(case: Case) -> None:
    wants = wanted(case, case.args)
    for variant in VARIANTS:
        got = call(case.op, "c128", *case.args, variant=variant)
        for value, want, *args in zip(got.tolist(), wants, *case.args, strict=True):
            if max(abs(want.real), abs(want.imag)) > 1e300:
                continue
            with mp.workprec(250):
                for part, expected in ((value.real, want.real), (value.imag, want.imag)):
                    limit = case.tolerance * abs(want) if case.tolerance else units(COMPLEX_ULP[case.op], expected)
                    assert abs(part - expected) <= limit, (args, value, mp.nstr(want, 20))


IN_DOUBLE = [case for case in COMPLEX if case.op not in ("multiply", "divide")]


@pytest.mark.parametrize("case", IN_DOUBLE, ids=lambda case: f"{case.op} {case.region}".strip())
def test_complex_single_is_rounded_once(case: Case) -> None:
    with np.errstate(over="ignore", under="ignore"):
        args = tuple(array[::3].astype(np.complex64) for array in case.args)
    inside = np.all([np.isfinite(array) & (array.real != 0) & (array.imag != 0) for array in args[:1]], axis=0)
    args = tuple(array[inside] for array in args)
    for value, want, z in zip(call(case.op, "c64", *args).tolist(), wanted(case, args), args[0], strict=True):
        for part, expected in ((value.real, want.real), (value.imag, want.imag)):
            if abs(expected) > 1e-6 * abs(want) or not case.tolerance:
                check_single(part, expected)
            else:
                assert abs(part - expected) < 1e-13 * abs(want), (z, value)


def grid(points: np.ndarray) -> np.ndarray:
    re, im = np.meshgrid(points, points)
    return pair(re.ravel(), im.ravel())


COMPLEX_UNARY: dict[str, Callable[..., np.ndarray]] = {
    **UNARY,
    "abs": np.abs,
    "conj": np.conj,
    "cosine": np.cos,
    "exponential": np.exp,
    "imag": np.imag,
    "log": np.log,
    "negate": np.negative,
    "real": np.real,
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    **{name: getattr(reference, name) for name in ("cbrt", "exponential_minus_one", "log_plus_one", "logistic")},
    "rsqrt": reference.rsqrt,
    "sign": reference.sign,
}


@pytest.mark.parametrize("op", COMPLEX_UNARY)
def test_complex_values(op: str) -> None:
    z = grid(np.r_[POINTS, 1e-160, 1e160])
    with np.errstate(all="ignore"):
        want = COMPLEX_UNARY[op](z)
    for variant in VARIANTS:
        assert_same(call(op, "c128", z, variant=variant), want, 4e-15)


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum", *RELATIONS])
@pytest.mark.parametrize("of", ["c64", "c128"])
def test_complex_values_of_two(op: str, of: str) -> None:
    z = grid(np.array([0.0, -0.0, 1, -1, 0.5, -3, INF, -INF, NAN]))
    x, y = (array.ravel().astype(NUMPY[of]) for array in np.meshgrid(z, z))
    want = evaluate("compare", x, y, comparison_direction=op) if op in RELATIONS else evaluate(op, x, y)
    for variant in VARIANTS:
        tolerance = 0 if of == "c64" or op not in ("divide", "power") else 4e-15
        if op in RELATIONS:
            np.testing.assert_array_equal(call(op, of, x, y, variant=variant), want)
            continue
        assert_same(call(op, of, x, y, variant=variant), want, tolerance, by_part=op != "power")


def evaluate(name: str, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
    """What the reference engine says."""
    builder = FuncBuilder("main", [Shape.of(dtype(array.dtype), array.shape) for array in arrays])
    made = builder.op(name if "." in name else f"stablehlo.{name}", *builder.args, **attrs)
    return np.asarray(run(Program.of(builder.func(made.result)), arrays)[0])


def test_clamp() -> None:
    z = grid(np.array([0.0, -0.0, 1, -3, INF, NAN]))
    low, x, high = (array.ravel() for array in np.meshgrid(z, z, z))
    for of in ("c64", "c128"):
        args = [array.astype(NUMPY[of]) for array in (low, x, high)]
        assert_same(call("clamp", of, *args), evaluate("clamp", *args), 0)


def test_complex_makes_pairs_of_any_parts() -> None:
    re, im = (array.ravel() for array in np.meshgrid(POINTS, POINTS))
    assert_same(call("complex", "f64", re, im), pair(re, im), 0)
    with np.errstate(over="ignore"):
        re, im = re.astype(np.float32), im.astype(np.float32)
    assert_same(call("complex", "f32", re, im), pair(re, im).astype(np.complex64), 0)


def test_quotients_at_the_ends_of_the_range() -> None:
    """Parts whose squares overflow or vanish although the quotient does neither."""
    z = np.r_[sizes(290, 308), sizes(-320, -290), pair(1.7e308, 1.7e308), pair(5e-324, -5e-324)]
    x, y = (array.ravel() for array in np.meshgrid(z, z))
    for variant in VARIANTS:
        got = call("divide", "c128", x, y, variant=variant)
        for value, a, b in zip(got.tolist(), x.tolist(), y.tolist(), strict=True):
            want = mp.fdiv(mp.mpc(a), mp.mpc(b))
            if 1e-290 < abs(want) < 1e300:
                assert abs(value - want) <= 1e-15 * abs(want), (a, b, value)


def test_products_round_the_sum_once(seed: int) -> None:
    """Each part is the exact sum of one exact and one rounded product, rounded: XLA's multiply-add."""
    rng = np.random.default_rng(seed)
    for of, real in (("c64", np.float32), ("c128", np.float64)):
        x, y = (pair(*rng.normal(size=(2, 300))).astype(NUMPY[of]) for _ in range(2))
        y.real[:100] = (x.imag[:100] * y.imag[:100] / x.real[:100]) * real(1 + 1e-6)  # the real part cancels
        got = call("multiply", of, x, y)
        for value, a, b in zip(got, x, y, strict=True):
            re = Fraction(float(a.real)) * Fraction(float(b.real)) - Fraction(float(a.imag * b.imag))
            im = Fraction(float(a.imag)) * Fraction(float(b.real)) + Fraction(float(a.real * b.imag))
            assert value.real == pytest.approx(float(re), rel=float(np.finfo(real).eps) / 2, abs=0)
            assert value.imag == pytest.approx(float(im), rel=float(np.finfo(real).eps) / 2, abs=0)


def test_complex_atan2_is_the_formula_of_the_specification() -> None:
    def formula(y, x):
        return -mp.j * mp.log((x + mp.j * y) / mp.sqrt(x * x + y * y))

    z, other = MODERATE, np.roll(MODERATE, 12)
    beside = 1j * z * (1 + decades(-9, -1, z.size))  # where x² + y² cancels
    ys, xs = np.r_[other, beside, -beside, z, other * 1e200], np.r_[z, z, z, 1e5 * z, z * 1e200]
    results = [call("atan2", "c128", ys, xs, variant=variant).tolist() for variant in VARIANTS]
    checked = 0
    for y, x, *values in zip(map(mp.mpc, ys.tolist()), map(mp.mpc, xs.tolist()), *results, strict=True):
        with mp.workprec(300):
            square = x * x + y * y
            if square.real < 0 and abs(square.imag) < 1e-13 * abs(square):
                continue  # the cut of the root: rounding decides
            want = formula(y, x)
            for value in values:
                error = mp.mpc(value) - want
                error -= 2 * mp.pi * mp.nint(error.real / (2 * mp.pi))  # -π and π are one angle
                assert abs(error) <= 4e-15 * abs(value), (y, x, value)
        checked += 1
    assert checked > 0.9 * ys.size


def test_complex_atan2_of_infinite_parts() -> None:
    z = grid(np.array([0.0, 1, -0.5, INF, -INF, NAN]))
    y, x = (array.ravel() for array in np.meshgrid(z, z))
    infinite = ~(np.isfinite(x) & np.isfinite(y))
    want = reference.atan2(y, x)[infinite]
    for variant in VARIANTS:
        assert_same(call("atan2", "c128", y, x, variant=variant)[infinite], want, 4e-15)


# The table ------------------------------------------------------------------------------------------------------------

# Written by the emitters, or refused by the reference engine too.
NO_FORM = {"compare", "constant", "constant_like", "convert", "select", "remainder"}


@pytest.mark.parametrize(("of", "name"), [("c64", "complex<f32>"), ("c128", "complex<f64>")])
def test_every_op_on_complex_numbers_has_a_form(of: str, name: str) -> None:
    missing = []
    for row in OPS.values():
        short = row.name.partition(".")[2]
        if not row.elementwise or short.startswith("broadcast_") or short in NO_FORM:
            continue
        builder = FuncBuilder("main", [Shape.of(DTYPES[name], (2,))] * len(row.operands.split()))
        try:
            builder.op(row.name, *builder.args)
        except SmeltError:
            continue  # not for these elements
        if (short, of) not in FORMS:
            missing.append(short)
    assert missing == []


def test_generated_c_calls_nothing() -> None:
    """Every function that is called is defined beside it: a name left over would be looked for in libm."""
    text = prelude("\n".join(sorted({**REAL_FORMS, **COMPLEX_FORMS}.values())))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    defined = set(re.findall(r"^static .*?\b(smelt_\w+)\(", text, flags=re.MULTILINE))
    calls = {name for name in re.findall(r"\b([a-z_]\w*)\(", text) if not name.startswith("__")}
    assert calls - defined <= {"if", "for", "while", "return", "defined"}
