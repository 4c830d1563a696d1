"""`smelt.ir.integer` against Python's integers: every pair of operands up to 8 bits, random ones and extremes above."""

from collections.abc import Callable
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from smelt.dtype import DTYPES, DType, dtype, integer_range
from smelt.ir import integer

INTEGERS = [each for each in DTYPES.values() if each.is_integer and each.name != "index"]


def wrap(value: int, kind: DType) -> int:
    """`value` modulo 2^bits, in the range of `kind`."""
    low, _ = integer_range(kind)
    return (value - low) % (1 << kind.bits) + low


def unsigned(value: int, kind: DType) -> int:
    return value % (1 << kind.bits)


def signed(value: int, kind: DType) -> int:
    return wrap(value, dtype(f"i{kind.bits}"))


def divide(x: int, y: int, kind: DType) -> int:
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def remainder(x: int, y: int, kind: DType) -> int:
    return x if y == 0 else x - y * divide(x, y, kind)


def power(x: int, y: int, kind: DType) -> int:
    if y < 0:
        return x ** (y % 2) if x in (1, -1) else 0
    return pow(x, y, 1 << kind.bits)


def shift_left(x: int, y: int, kind: DType) -> int:
    amount = unsigned(y, kind)
    return x << amount if amount < kind.bits else 0


def shift_right_logical(x: int, y: int, kind: DType) -> int:
    return unsigned(x, kind) >> min(unsigned(y, kind), kind.bits)


def shift_right_arithmetic(x: int, y: int, kind: DType) -> int:
    return signed(x, kind) >> min(unsigned(y, kind), kind.bits)


BINARY: dict[Callable[..., np.ndarray], Callable[[int, int, DType], int]] = {
    integer.divide: divide,
    integer.remainder: remainder,
    integer.power: power,
    integer.mulhi: lambda x, y, kind: x * y >> kind.bits,
    integer.shift_left: shift_left,
    integer.shift_right_logical: shift_right_logical,
    integer.shift_right_arithmetic: shift_right_arithmetic,
}
UNARY: dict[Callable[..., np.ndarray], Callable[[int, DType], int]] = {
    integer.popcnt: lambda x, kind: unsigned(x, kind).bit_count(),
    integer.count_leading_zeros: lambda x, kind: kind.bits - unsigned(x, kind).bit_length(),
}


def samples(kind: DType) -> list[int]:
    """Every value up to 8 bits; above, the ends of the range, small numbers and random ones of every length."""
    low, high = integer_range(kind)
    if kind.bits <= 8:
        return list(range(low, high + 1))
    rng = np.random.default_rng(kind.bits)
    lengths = [wrap(int(rng.integers(1 << 63)) * 2 >> int(rng.integers(64)), kind) for _ in range(150)]
    small = [v for v in (*range(-3, 4), kind.bits - 1, kind.bits, kind.bits + 1) if low <= v <= high]
    return [low, low + 1, high - 1, high, low // 2, high // 2, *small, *lengths]


def array(values: list[int], kind: DType) -> np.ndarray:
    wide = np.array(values, np.uint64 if kind.kind == "uint" else np.int64)
    return wide.astype(kind.numpy)


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
@pytest.mark.parametrize("fn", BINARY, ids=lambda fn: fn.__name__)
def test_binary(fn: Callable[..., np.ndarray], kind: DType) -> None:
    xs, ys = zip(*product(samples(kind), repeat=2), strict=True)
    got = fn(array(list(xs), kind), array(list(ys), kind))
    assert got.dtype == kind.numpy
    want = [wrap(BINARY[fn](x, y, kind), kind) for x, y in zip(xs, ys, strict=True)]
    assert not [row for row in zip(xs, ys, got.tolist(), want, strict=True) if row[2] != row[3]]


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
@pytest.mark.parametrize("fn", UNARY, ids=lambda fn: fn.__name__)
def test_unary(fn: Callable[..., np.ndarray], kind: DType) -> None:
    xs = samples(kind)
    got = fn(array(xs, kind))
    assert got.dtype == kind.numpy
    assert got.tolist() == [wrap(UNARY[fn](x, kind), kind) for x in xs]


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_scalars_and_broadcasting(kind: DType) -> None:
    low, high = (array([v], kind)[0] for v in integer_range(kind))
    for fn in BINARY:
        scalar = fn(np.array(high), np.array(low))
        assert isinstance(scalar, np.ndarray)
        assert scalar.shape == ()
        assert fn(np.full((2, 1), high), np.full((1, 3), low)).shape == (2, 3)
        assert fn(np.full((2, 0), high), np.full((2, 0), low)).shape == (2, 0)
        assert fn(np.full(2, high), np.full(2, low)).tolist() == [scalar] * 2


FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
SMALL_FLOATS = [each.numpy for each in DTYPES.values() if each.is_float and each.bits <= 8]


def patterns(kind: np.dtype) -> np.ndarray:
    """Every number of a type with 16 bits or fewer; a spread of bit patterns of the wider ones."""
    bits = dtype(kind).bits
    if bits <= 16:
        return np.arange(1 << bits, dtype=f"u{kind.itemsize}").view(kind)
    ends = [0, 1, 2, (1 << bits - 1) - 1]
    rng = np.random.default_rng(bits)
    spread = [int(v) >> int(s) for v, s in zip(rng.integers(0, 1 << 63, 4000), rng.integers(0, 64, 4000), strict=True)]
    magnitudes = np.array([v % (1 << bits - 1) for v in ends + spread], np.uint64)
    return np.concatenate([magnitudes, magnitudes | np.uint64(1 << bits - 1)]).astype(f"u{kind.itemsize}").view(kind)


def double(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # what a processor says of a signalling nan
        return x.astype(np.float64)


@pytest.mark.parametrize("kind", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), *SMALL_FLOATS], ids=str)
def test_next_after_walks_through_every_number(kind: np.dtype) -> None:
    every = double(patterns(kind))
    ordered = np.unique(every[~np.isnan(every)])  # sorted; -0 and 0 are one
    up = integer.next_after(ordered.astype(kind), np.full(ordered.shape, ordered[-1]).astype(kind))
    assert np.array_equal(double(up), np.append(ordered[1:], ordered[-1]))
    down = integer.next_after(ordered.astype(kind), np.full(ordered.shape, ordered[0]).astype(kind))
    assert np.array_equal(double(down), np.insert(ordered[:-1], 0, ordered[0]))


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: np.dtype(kind).name)
def test_next_after_at_zero_infinity_and_nan(kind: type) -> None:
    info = ml_dtypes.finfo(kind)
    tiny, top = float(info.smallest_subnormal), float(info.max)
    rows = [
        *[(0.0, 1.0, tiny), (-0.0, 1.0, tiny), (0.0, -1.0, -tiny), (tiny, -1.0, 0.0), (-tiny, 1.0, -0.0)],
        *[(0.0, -0.0, -0.0), (-0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (1.0, 2.0, 1.0 + float(info.eps))],
        *[(top, np.inf, np.inf), (np.inf, 0.0, top), (-np.inf, 0.0, -top), (np.inf, np.inf, np.inf)],
        *[(np.nan, 1.0, np.nan), (1.0, np.nan, np.nan)],
    ]
    x, y, want = np.array(rows).T
    got = integer.next_after(x.astype(kind), y.astype(kind))
    assert got.dtype == kind
    np.testing.assert_array_equal(double(got), want)
    numbers = ~np.isnan(want)
    assert np.array_equal(np.signbit(double(got))[numbers], np.signbit(want)[numbers])


def reduced(x: float, kind: np.dtype, exponent_bits: int, mantissa_bits: int) -> float:
    """x rounded to a number of bits after its leading one, then clamped to the exponents of the format."""
    if x == 0 or np.isinf(x):
        return x
    if np.isnan(x):
        return x if mantissa_bits else np.inf
    info, reach = ml_dtypes.finfo(kind), 2 ** (exponent_bits - 1) - 1
    leading = max(np.frexp(x)[1] - 1, int(info.minexp))
    quantum = np.ldexp(1.0, leading - min(mantissa_bits, int(info.nmant)))
    rounded = float(np.rint(x / quantum) * quantum)
    if mantissa_bits == 0 and abs(x / quantum) == 1.5:  # the last bit that stays is the exponent's
        rounded = np.copysign(quantum * (1 + (leading - int(info.minexp) + 1) % 2), x)
    own = 2 ** (dtype(kind).bits - 2 - int(info.nmant)) - 1
    if abs(rounded) > float(info.max):
        return np.copysign(np.inf, x)
    if reach >= own:
        return rounded
    if abs(rounded) >= np.ldexp(1.0, reach + 1):
        return np.copysign(np.inf, x)
    return rounded if abs(rounded) >= np.ldexp(1.0, 1 - reach) else np.copysign(0.0, x)


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: np.dtype(kind).name)
@pytest.mark.parametrize("form", [(5, 10), (8, 7), (8, 23), (4, 3), (5, 2), (8, 0), (2, 1), (1, 0), (11, 52), (3, 60)])
def test_reduce_precision(kind: type, form: tuple[int, int]) -> None:
    x = patterns(np.dtype(kind))
    x = x[:: max(1, x.size // 8192)]
    got = integer.reduce_precision(x, *form)
    assert got.dtype == kind
    want = [reduced(v, np.dtype(kind), *form) for v in double(x).tolist()]
    np.testing.assert_array_equal(double(got), want)
    numbers = ~np.isnan(want)
    assert np.array_equal(np.signbit(double(got))[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize(("form", "kind"), [((5, 10), np.float16), ((8, 7), ml_dtypes.bfloat16)])
def test_reduce_precision_is_a_cast_there_and_back_for_normal_numbers(form: tuple[int, int], kind: type) -> None:
    x = np.random.default_rng(5).normal(size=10_000).astype(np.float32)
    x = x[np.abs(x) > 1e-4]
    assert np.array_equal(integer.reduce_precision(x, *form), x.astype(kind).astype(np.float32))


@pytest.mark.parametrize("kind", SMALL_FLOATS, ids=str)
def test_reduce_precision_of_small_formats(kind: np.dtype) -> None:
    x = patterns(kind)
    own = int(kind.name.partition("e")[2][0])  # float8_e4m3fn has 4 bits of exponent
    for exponent in (own, own + 1):
        assert np.array_equal(double(integer.reduce_precision(x, exponent, 7)), double(x), equal_nan=True)
    same = integer.reduce_precision(x, 8, 23)
    assert same.dtype == kind
    assert np.array_equal(double(same), double(x), equal_nan=True)
    ones = np.array([1.0, 2.0, 4.0]).astype(kind)
    assert integer.reduce_precision(ones, 3, 0).astype(np.float64).tolist() == [1, 2, 4]


def test_nan_keeps_its_payload() -> None:
    nan = np.array([0x7FF0000000000001, 0xFFF8000000000123], np.uint64).view(np.float64)
    assert integer.reduce_precision(nan, 5, 10).view(np.uint64).tolist() == nan.view(np.uint64).tolist()
    assert integer.reduce_precision(nan, 5, 0).tolist() == [np.inf, np.inf]
