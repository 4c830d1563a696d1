"""Dots, einsum, Cholesky, triangular solves, Fourier transforms, ragged dots: against NumPy and Python's integers."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import Quantized, dtype
from smelt.errors import VerifyError
from smelt.ir.attributes import DotAlgorithm, DotDims, RaggedDotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Token
from smelt.ir.interpret import run
from smelt.shape import Shape

MATRICES = DotDims((), (), (1,), (0,))


def applied(name: str, *arrays: np.ndarray, result: Shape | None = None, **attrs: Any) -> np.ndarray:
    f = FuncBuilder("main", [Shape.of(dtype(x.dtype), x.shape) for x in arrays])
    out = f.op(name, *f.args, result=result, **attrs)
    return run(Program.of(f.func(out.result)), list(arrays))[0]


def dotted(lhs: np.ndarray, rhs: np.ndarray, dims: DotDims = MATRICES, result: Shape | None = None) -> np.ndarray:
    return applied("stablehlo.dot_general", lhs, rhs, dot_dimension_numbers=dims, result=result)


# ---- dot_general ----


@pytest.mark.parametrize("seed", range(12))
def test_dot_general_agrees_with_einsum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, contract, left, right = (int(n) for n in rng.integers(0, 3, 4))
    names = "abcdefgh"
    b, k, m, n = names[:batch], names[2 : 2 + contract], names[4 : 4 + left], names[6 : 6 + right]
    sizes = dict(zip(names, rng.integers(0 if seed == 3 else 1, 4, 8).tolist(), strict=True))
    lhs_names, rhs_names = (list(rng.permutation(list(each))) if each else [] for each in (b + k + m, b + k + n))
    lhs, rhs = (rng.integers(-9, 9, [sizes[c] for c in each]) for each in (lhs_names, rhs_names))
    dims = DotDims(*(tuple(each.index(c) for c in part) for part in (b, k) for each in (lhs_names, rhs_names)))
    m, n = ("".join(c for c in each if c in part) for each, part in ((lhs_names, m), (rhs_names, n)))
    wanted = np.einsum(f"{''.join(lhs_names)},{''.join(rhs_names)}->{b}{m}{n}", lhs, rhs)
    got = dotted(lhs, rhs, dims)
    assert got.shape == wanted.shape
    assert got.tolist() == wanted.tolist()


def test_nothing_to_contract_is_zero() -> None:
    for kind in (np.float32, np.float64, np.complex64, np.int8, np.bool_):
        got = dotted(np.ones((2, 0), kind), np.ones((0, 3), kind))
        assert got.dtype == kind
        assert got.tolist() == np.zeros((2, 3), kind).tolist()


def test_integers_wrap_in_the_result() -> None:
    eight = np.full((1, 5), -128, np.int8)
    assert int(dotted(eight, eight.T)[0, 0]) == (5 * 128 * 128 + 128) % 256 - 128
    assert int(dotted(eight, eight.T, result=Shape("i32", 1, 1))[0, 0]) == 5 * 128 * 128
    for kind, value in (
        (np.int64, -(2**62) - 7),
        (np.uint64, 2**64 - 3),
        (np.int32, 2**31 - 1),
        (np.uint32, 2**32 - 1),
    ):
        x = np.full((1, 3), value, kind)
        bits = np.dtype(kind).itemsize * 8
        exact = 3 * value * value % 2**bits
        assert int(dotted(x, x.T)[0, 0]) == (
            exact - 2**bits if x.dtype.kind == "i" and exact >= 2 ** (bits - 1) else exact
        )
    four = np.full((1, 3), 7, ml_dtypes.int4)
    assert int(dotted(four, four.T)[0, 0]) == (147 + 8) % 16 - 8


def test_booleans_or_their_ands() -> None:
    a = np.array([[True, True, False], [False, False, True]])
    b = np.array([[True, False], [True, False], [False, False]])
    assert dotted(a, b).tolist() == [[True, False], [False, False]]
    assert dotted(a, b, result=Shape("i32", 2, 2)).tolist() == [[2, 0], [0, 0]]


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_floats_accumulate_in_double(name: str) -> None:
    element = dtype(name)
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((1, 700)).astype(element.numpy) for _ in range(2))
    exact = sum((Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[0], b[0], strict=True)), Fraction(0))
    got = Fraction(float(dotted(a, b.T)[0, 0]))
    ulp = Fraction(1, 2 ** {"f32": 23, "f16": 10, "bf16": 7}[name])
    assert abs(got - exact) <= abs(exact) * ulp / 2 * Fraction("1.0001") + Fraction(1, 10**13)


def test_element_types_of_results() -> None:
    one, two = np.ones((2, 3), ml_dtypes.float8_e4m3fn), np.ones((3, 2), ml_dtypes.float8_e5m2)
    assert dotted(one, two, result=Shape("f32", 2, 2)).tolist() == [[3, 3], [3, 3]]
    c = np.array([[1 + 2j, 3]], np.complex64)
    assert dotted(c, c.T).item() == (1 + 2j) ** 2 + 9
    assert dotted(c, c.T, result=Shape("complex<f64>", 1, 1)).dtype == np.complex128
    half = np.full((1, 4), 200.0, np.float16)
    assert dotted(half, half.T, result=Shape("f32", 1, 1)).item() == 160000
    assert np.isinf(dotted(half, half.T).item())


def test_quantized_dots() -> None:
    i8, f32 = dtype("i8"), dtype("f32")
    left = Quantized(i8, f32, (0.5,), (1,), None, -128, 127)
    right = Quantized(i8, f32, (2.0, 4.0), (0, 0), 1, -128, 127)
    result = Quantized(dtype("i32"), f32, (1.0, 0.5), (0, 3), 1, -(2**31), 2**31 - 1)
    a, b = np.array([[3, 5]], np.int8), np.array([[1, 2], [3, 1]], np.int8)  # (1, 2) and ((2, 8), (6, 4))
    f = FuncBuilder("main", [Shape.of(left, (1, 2)), Shape.of(right, (2, 2))])
    out = f.dot_general(*f.args, dot_dimension_numbers=MATRICES, result=Shape.of(result, (1, 2)))
    assert run(Program.of(f.func(out)), [a, b])[0].tolist() == [[14, 16 * 2 + 3]]
    f = FuncBuilder("main", [Shape("f32", 1, 2), Shape.of(right, (2, 2))])
    out = f.dot_general(*f.args, dot_dimension_numbers=MATRICES, result=Shape("f32", 1, 2))
    assert run(Program.of(f.func(out)), [np.array([[1, 2]], np.float32), b])[0].tolist() == [[14, 16]]
    shifted = Quantized(i8, f32, (2.0,), (1,), None, -128, 127)
    along = Quantized(i8, f32, (2.0, 4.0), (0, 0), 0, -128, 127)
    for types, declared, label in (
        ((left, shifted), left, "c15"),
        ((left, along), result, "c16"),
        ((left, f32), f32, "c14"),
        ((dtype("f64"), right), dtype("f64"), "c20"),
        ((right, right), result, "i1"),
    ):
        f = FuncBuilder("main", [Shape.of(types[0], (2, 2)), Shape.of(types[1], (2, 2))])
        with pytest.raises(VerifyError, match=f"dot_general_{label}"):
            f.dot_general(*f.args, dot_dimension_numbers=MATRICES, result=Shape.of(declared, (2, 2)))


def test_symbolic_sizes() -> None:
    b, k = symbol("B"), symbol("K")
    f = FuncBuilder("main", [Shape("f32", b, 2, k), Shape("f32", b, k, 3), Shape("f32", b, k + 1, 3)])
    dims = DotDims((0,), (0,), (2,), (1,))
    out = f.dot_general(f.args[0], f.args[1], dot_dimension_numbers=dims)
    assert out.type == Shape("f32", b, 2, 3)
    with pytest.raises(VerifyError, match="dot_general_c10"):
        f.dot_general(f.args[0], f.args[2], dot_dimension_numbers=dims)


@pytest.mark.parametrize(
    ("dims", "label"),
    [
        (DotDims((0,), (), (2,), (1,)), "c1"),
        (DotDims((0,), (0,), (2,), ()), "c2"),
        (DotDims((0,), (0,), (0,), (1,)), "c3"),
        (DotDims((0,), (0,), (2,), (0,)), "c4"),
        (DotDims((3,), (0,), (2,), (1,)), "c5"),
        (DotDims((0,), (0,), (-1,), (1,)), "c6"),
        (DotDims((0,), (-3,), (2,), (1,)), "c7"),
        (DotDims((0,), (0,), (2,), (9,)), "c8"),
        (DotDims((1,), (0,), (2,), (1,)), "c9"),
        (DotDims((0,), (0,), (2,), (2,)), "c10"),
    ],
)
def test_dot_general_is_verified(dims: DotDims, label: str) -> None:
    f = FuncBuilder("main", [Shape("f32", 5, 2, 3), Shape("f32", 5, 3, 4)])
    with pytest.raises(VerifyError, match=rf"dot_general_{label}\b"):
        f.dot_general(*f.args, dot_dimension_numbers=dims)


def test_dot_general_types_are_verified() -> None:
    f = FuncBuilder("main", [Shape("f32", 2, 3), Shape("f64", 3, 2), Shape("i32", 3, 2), Token()])
    for rhs, label in ((1, "dot_general_c13"), (2, "dot_general_c13"), (3, "must be a tensor")):
        with pytest.raises(VerifyError, match=label):
            f.dot_general(f.args[0], f.args[rhs], dot_dimension_numbers=MATRICES)
    f = FuncBuilder("main", [Shape("f32", 2, 3), Shape("f32", 3, 2)])
    for result in (Shape("i32", 2, 2), Shape("f32", 2, 3), Shape("f32", 2)):
        with pytest.raises(VerifyError):
            f.dot_general(*f.args, dot_dimension_numbers=MATRICES, result=result)
    with pytest.raises(VerifyError, match="dot_general_c11"):
        f.dot_general(*f.args, dot_dimension_numbers=MATRICES, precision_config=("DEFAULT",) * 3)


def test_algorithms_are_verified() -> None:
    f = FuncBuilder("main", [Shape("f32", 2, 3), Shape("f32", 3, 2)])
    for good in (DotAlgorithm("tf32", "tf32", "f32"), DotAlgorithm("bf16", "bf16", "f32", 3, 3, 6)):
        f.dot_general(*f.args, dot_dimension_numbers=MATRICES, algorithm=good, precision_config=("DEFAULT", "DEFAULT"))
    for bad, precision, label in (
        (DotAlgorithm("tf32", "tf32", "f32"), ("HIGH", "DEFAULT"), "c21"),
        (DotAlgorithm("tf32", "tf32", "f32", lhs_component_count=0), None, "c22"),
        (DotAlgorithm("tf32", "tf32", "f32", rhs_component_count=-1), None, "c23"),
        (DotAlgorithm("tf32", "tf32", "f32", num_primitive_operations=0), None, "c24"),
        (DotAlgorithm("tf32", "f64", "f32"), None, "no hardware"),
        (DotAlgorithm("f32", "f32", "f32", 2, 2, 3), None, "no hardware"),
    ):
        with pytest.raises(VerifyError, match=label):
            f.dot_general(*f.args, dot_dimension_numbers=MATRICES, algorithm=bad, precision_config=precision)


def test_every_algorithm_of_the_specification() -> None:
    """X3, X6 and X9 are so many products: of the parts that an operand is split into (the specification), or of one
    (what upstream's verifier takes)."""
    f = FuncBuilder("main", [Shape("f32", 2, 3), Shape("f32", 3, 2)])
    plain = {(kind, total, 1, 1) for kind, total in (
        ("f16", "f16"), ("f16", "f32"), ("bf16", "bf16"), ("bf16", "f32"), ("tf32", "f32"), ("f32", "f32"),
        ("f64", "f64"), ("f8E4M3FN", "f32"), ("f8E5M2", "f32"),
    )}  # fmt: skip
    split = {("bf16", "f32", parts, count) for parts, count in ((2, 3), (3, 6), (3, 9), (1, 3), (1, 6), (1, 9))}
    split |= {("tf32", "f32", parts, 3) for parts in (1, 2)}
    kinds = ("f16", "bf16", "tf32", "f32", "f64", "f8E4M3FN", "f8E5M2")
    for row in itertools.product(kinds, ("f16", "bf16", "f32", "f64"), range(1, 5), range(1, 11)):
        kind, total, parts, count = row
        algorithm = DotAlgorithm(kind, kind, total, parts, parts, count)
        if row in plain | split:
            f.dot_general(*f.args, dot_dimension_numbers=MATRICES, algorithm=algorithm)
        else:
            with pytest.raises(VerifyError, match="no hardware has such an algorithm"):
                f.dot_general(*f.args, dot_dimension_numbers=MATRICES, algorithm=algorithm)
    for fast in (False, True):
        algorithm = DotAlgorithm("f8E4M3FN", "f8E5M2", "f32", allow_imprecise_accumulation=fast)
        f.dot_general(*f.args, dot_dimension_numbers=MATRICES, algorithm=algorithm)
    for algorithm in (
        DotAlgorithm("f16", "bf16", "f32"),
        DotAlgorithm("bf16", "bf16", "f32", allow_imprecise_accumulation=True),
        DotAlgorithm("bf16", "bf16", "f32", 2, 3, 6),
    ):
        with pytest.raises(VerifyError, match="no hardware"):
            f.dot_general(*f.args, dot_dimension_numbers=MATRICES, algorithm=algorithm)


# ---- dot and einsum ----


def test_dot() -> None:
    rng = np.random.default_rng(1)
    for lhs, rhs in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4))):
        a, b = rng.integers(-9, 9, lhs), rng.integers(-9, 9, rhs)
        assert applied("stablehlo.dot", a, b).tolist() == (a @ b).tolist()
    for left, right in (((), ()), ((2, 3), (2, 3)), ((1, 2, 3), (3,))):
        with pytest.raises(VerifyError):
            applied("stablehlo.dot", np.ones(left), np.ones(right))


@pytest.mark.parametrize(
    ("config", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk->ki", [(2, 3), (3, 4)]),
        ("ij,kl->", [(2, 3), (3, 4)]),
        ("ii,i->i", [(3, 3), (3,)]),
        ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
        ("b...j,j->...b", [(2, 4, 5, 3), (3,)]),
        ("ij->ji", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("ii->i", [(3, 3)]),
    ],
)
def test_einsum(config: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [np.random.default_rng(i).integers(-9, 9, shape).astype(np.float32) for i, shape in enumerate(shapes)]
    name = "stablehlo.einsum" if len(arrays) == 2 else "stablehlo.unary_einsum"
    got = applied(name, *arrays, einsum_config=config)
    assert got.tolist() == np.einsum(config, *arrays).tolist()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "not a configuration"),
        ("ij,jk", "not a configuration"),
        ("ij->ij", "not a configuration"),
        ("i,jk->k", "one label per dimension"),
        ("ij,jk->iz", "only labels of the operands"),
        ("ij,jk->ii", "every label once"),
        ("ij,ik->j", "every i must have the same size"),
        ("i1,1k->ik", "not a configuration"),
        ("i..j,jk->k", "not a configuration"),
        ("ij,jk,kl->l", "not a configuration"),
    ],
)
def test_einsum_is_verified(config: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        applied("stablehlo.einsum", np.ones((2, 3)), np.ones((3, 4)), einsum_config=config)


# ---- cholesky and triangular_solve ----


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.complex64, np.complex128, np.float16])
def test_cholesky(lower: bool, kind: type) -> None:
    rng = np.random.default_rng(7)
    m = rng.standard_normal((2, 4, 4)) + (1j * rng.standard_normal((2, 4, 4)) if kind(0).dtype.kind == "c" else 0)
    a: np.ndarray = (m @ m.conj().swapaxes(-1, -2) + 3 * np.eye(4)).astype(kind)
    wide = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
    triangle = np.tril(wide) if lower else np.triu(wide)
    half = np.tril(triangle if lower else triangle.conj().swapaxes(-1, -2), -1)
    full = half + half.conj().swapaxes(-1, -2) + np.eye(4) * np.diagonal(wide, axis1=-2, axis2=-1)[..., None]
    wanted = np.linalg.cholesky(full)
    other = np.triu(np.full((4, 4), np.nan), 1) if lower else np.tril(np.full((4, 4), np.nan), -1)
    got = applied("stablehlo.cholesky", (a + other).astype(kind), lower=lower)  # the other triangle is never read
    epsilon = float(np.finfo(kind).eps)
    np.testing.assert_allclose(
        got, wanted if lower else wanted.conj().swapaxes(-1, -2), rtol=4 * epsilon, atol=4 * epsilon
    )


def test_cholesky_edges() -> None:
    assert np.isnan(applied("stablehlo.cholesky", np.array([[1.0, 2.0], [2.0, 1.0]]), lower=True)[1, 1])
    assert applied("stablehlo.cholesky", np.zeros((3, 0, 0))).shape == (3, 0, 0)
    for shape in ((), (3,), (2, 3)):
        with pytest.raises(VerifyError, match="cholesky_c"):
            applied("stablehlo.cholesky", np.ones(shape))
    with pytest.raises(VerifyError, match="cholesky_i1"):
        applied("stablehlo.cholesky", np.ones((2, 2), np.int32))


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
@pytest.mark.parametrize("transpose_a", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize("kind", [np.float32, np.complex128])
def test_triangular_solve(left_side: bool, lower: bool, unit_diagonal: bool, transpose_a: str, kind: type) -> None:
    rng = np.random.default_rng(8)
    shape, right = (2, 4, 4), (2, 4, 3) if left_side else (2, 3, 4)
    a, b = (
        rng.standard_normal(s) + (1j * rng.standard_normal(s) if kind is np.complex128 else 0) for s in (shape, right)
    )
    a = a + 4 * np.eye(4)
    keep = np.tril(np.ones((4, 4), bool), -1 if unit_diagonal else 0)
    keep = keep if lower else keep.T
    poisoned: np.ndarray = np.where(keep, a, np.nan).astype(kind)  # what may not be read is nan
    b = b.astype(kind)
    matrix = np.where(keep, poisoned, 0).astype(np.complex128) + (np.eye(4) if unit_diagonal else 0)
    if transpose_a != "NO_TRANSPOSE":
        matrix = matrix.swapaxes(-1, -2)
    if transpose_a == "ADJOINT":
        matrix = matrix.conj()
    attrs: dict[str, Any] = {
        "left_side": left_side,
        "lower": lower,
        "unit_diagonal": unit_diagonal,
        "transpose_a": transpose_a,
    }
    got = applied("stablehlo.triangular_solve", poisoned, b, **attrs)
    product = matrix @ got if left_side else got @ matrix
    np.testing.assert_allclose(
        product, b, rtol=1e-5 if kind is np.float32 else 1e-12, atol=1e-6 if kind is np.float32 else 1e-12
    )


def test_triangular_solve_is_verified() -> None:
    attrs: dict[str, Any] = {"left_side": True, "lower": True, "unit_diagonal": False, "transpose_a": "NO_TRANSPOSE"}
    for a, b, kind, label in (
        ((2, 2), (2, 2), np.float64, "c1"),
        ((2, 2), (1, 2, 2), np.float32, "c2"),
        ((), (), np.float32, "c2"),
        ((2, 3), (3, 3), np.float32, "c3"),
        ((2, 2), (3, 2), np.float32, "c3"),
        ((4, 2, 2), (3, 2, 2), np.float32, "c3"),
    ):
        with pytest.raises(VerifyError, match=f"triangular_solve_{label}"):
            applied("stablehlo.triangular_solve", np.ones(a, np.float32), np.ones(b, kind), **attrs)
    wrong = attrs | {"transpose_a": "TRANSPOSE_INVALID"}
    with pytest.raises(VerifyError, match="transpose_a"):
        applied("stablehlo.triangular_solve", np.ones((2, 2)), np.ones((2, 2)), **wrong)


# ---- fft ----


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
@pytest.mark.parametrize("single", [True, False])
def test_fft_is_the_sum_of_its_definition(rank: int, kind: str, single: bool) -> None:
    """Against matrices of roots of unity, built from the definition."""
    rng = np.random.default_rng(rank)
    sizes = [3, 4, 5][-rank:]
    x = rng.standard_normal([2, *sizes]) + (1j * rng.standard_normal([2, *sizes]) if kind in ("FFT", "IFFT") else 0)
    spectrum = x.astype(np.complex128)
    for i, size in enumerate(sizes):
        turn = 2j * np.pi * np.outer(np.arange(size), np.arange(size)) / size
        roots = np.exp(turn) / size if kind == "IFFT" else np.exp(-turn)
        spectrum = np.moveaxis(np.tensordot(spectrum, roots, (i + 1, 0)), -1, i + 1)
    if kind in ("RFFT", "IRFFT"):
        spectrum = spectrum[..., : sizes[-1] // 2 + 1]
    given, wanted = (spectrum, x.real) if kind == "IRFFT" else (x, spectrum)
    narrow = {"float64": np.float32, "complex128": np.complex64}
    given = given.astype(narrow[given.dtype.name]) if single else given
    got = applied("stablehlo.fft", given, fft_type=kind, fft_length=tuple(sizes))
    assert got.dtype == (narrow[wanted.dtype.name] if single else wanted.dtype)
    np.testing.assert_allclose(got, wanted, rtol=1e-4 if single else 1e-10, atol=1e-5 if single else 1e-11)


def test_fft_of_nothing() -> None:
    for kind, given, length, wanted in (
        ("FFT", np.zeros((2, 0), np.complex64), (0,), (2, 0)),
        ("RFFT", np.zeros((2, 0), np.float32), (0,), (2, 0)),
        ("RFFT", np.zeros((0, 4), np.float32), (4,), (0, 3)),
        ("RFFT", np.zeros((0, 4), np.float32), (0, 4), (0, 3)),
        ("IRFFT", np.zeros((2, 0), np.complex64), (0,), (2, 0)),
        ("IRFFT", np.zeros((0, 3), np.complex64), (4,), (0, 4)),
    ):
        assert applied("stablehlo.fft", given, fft_type=kind, fft_length=length).shape == wanted


@pytest.mark.parametrize(
    ("kind", "given", "length", "label"),
    [
        ("FFT", np.ones(4, np.complex64), (), "fft_c3"),
        ("FFT", np.ones((1, 1, 1, 4), np.complex64), (1, 1, 1, 4), "fft_c3"),
        ("FFT", np.ones(4, np.complex64), (1, 4), "fft_c1"),
        ("FFT", np.ones((), np.complex64), (1,), "fft_c1"),
        ("FFT", np.ones(4, np.float32), (4,), "fft_c2"),
        ("RFFT", np.ones(4, np.complex64), (4,), "fft_c2"),
        ("RFFT", np.ones(4, np.float16), (4,), "fft_c2"),
        ("RFFT", np.ones(4, np.float32), (5,), "fft_c4"),
        ("IRFFT", np.ones(3, np.complex64), (6,), "fft_c5"),
        ("IRFFT", np.ones((2, 3), np.complex64), (3, 4), "fft_c4"),
        ("RFFT", np.ones(4, np.float32), (-4,), "fft_i3"),
    ],
)
def test_fft_is_verified(kind: str, given: np.ndarray, length: tuple[int, ...], label: str) -> None:
    with pytest.raises(VerifyError, match=label):
        applied("stablehlo.fft", given, fft_type=kind, fft_length=length)


# ---- ragged_dot ----


def ragged(lhs: np.ndarray, rhs: np.ndarray, groups: np.ndarray, dims: RaggedDotDims) -> np.ndarray:
    return applied("chlo.ragged_dot", lhs, rhs, groups, ragged_dot_dimension_numbers=dims)


def test_ragged_rows() -> None:
    """Rows 0-1 meet the first matrix, none the second, row 2 the third, and row 3 belongs to no group."""
    rng = np.random.default_rng(9)
    lhs, rhs = rng.standard_normal((4, 3)), rng.standard_normal((3, 3, 5))
    rhs[1] = np.nan  # a group without rows leaves no trace
    got = ragged(lhs, rhs, np.array([2, 0, 1]), RaggedDotDims((), (), (1,), (1,), (0,), (0,)))
    np.testing.assert_allclose(got, np.stack([lhs[0] @ rhs[0], lhs[1] @ rhs[0], lhs[2] @ rhs[2], np.zeros(5)]))


def test_ragged_rows_per_batch() -> None:
    rng = np.random.default_rng(10)
    lhs, rhs = rng.standard_normal((4, 2, 3)), rng.standard_normal((2, 3, 2, 5))  # m b k, b k g n
    sizes = np.array([[1, 3], [2, 2]], np.int32)
    got = ragged(lhs, rhs, sizes, RaggedDotDims((1,), (0,), (2,), (1,), (0,), (2,)))
    for batch in range(2):
        for row in range(4):
            group = 0 if row < sizes[batch, 0] else 1
            np.testing.assert_allclose(got[batch, row], lhs[row, batch] @ rhs[batch, :, group])


def test_ragged_contraction_and_batch() -> None:
    rng = np.random.default_rng(11)
    lhs, rhs = rng.standard_normal((2, 4, 6)), rng.standard_normal((2, 6, 5))
    got = ragged(lhs, rhs, np.array([1, 2, 2]), RaggedDotDims((0,), (0,), (2,), (1,), (2,), ()))
    assert got.shape == (3, 2, 4, 5)
    for i, (start, end) in enumerate(((0, 1), (1, 3), (3, 5))):
        np.testing.assert_allclose(got[i], lhs[..., start:end] @ rhs[:, start:end])
    per_batch = np.array([[1, 5], [4, 2]])
    got = ragged(lhs, rhs, per_batch, RaggedDotDims((0,), (0,), (2,), (1,), (2,), ()))
    for batch in range(2):
        cut = per_batch[batch, 0]
        np.testing.assert_allclose(got[0, batch], lhs[batch, :, :cut] @ rhs[batch, :cut])
        np.testing.assert_allclose(got[1, batch], lhs[batch, :, cut:] @ rhs[batch, cut:])
    got = ragged(lhs, rhs, np.array([1, 1]), RaggedDotDims((0,), (0,), (2,), (1,), (0,), ()))
    np.testing.assert_allclose(got, lhs @ rhs)


@pytest.mark.parametrize(
    ("dims", "groups"),
    [
        (RaggedDotDims((), (), (1,), (1,), (), (0,)), (3,)),
        (RaggedDotDims((), (), (1,), (1,), (0, 1), (0,)), (3,)),
        (RaggedDotDims((), (), (1,), (1,), (2,), (0,)), (3,)),
        (RaggedDotDims((), (), (1,), (1,), (0,), ()), (3,)),
        (RaggedDotDims((), (), (1,), (1,), (0,), (1,)), (3,)),
        (RaggedDotDims((), (), (1,), (1,), (0,), (3,)), (3,)),
        (RaggedDotDims((), (), (1,), (1,), (1,), (0,)), (3,)),
        (RaggedDotDims((), (), (1,), (1,), (0,), (0,)), (4,)),
        (RaggedDotDims((), (), (1,), (1,), (0,), (0,)), (2, 3)),
        (RaggedDotDims((), (), (1,), (1,), (0,), (0,)), ()),
    ],
)
def test_ragged_dot_is_verified(dims: RaggedDotDims, groups: tuple[int, ...]) -> None:
    f = FuncBuilder("main", [Shape("f32", 11, 5), Shape("f32", 3, 5, 7), Shape("i64", *groups)])
    with pytest.raises(VerifyError):
        f.op("chlo.ragged_dot", *f.args, ragged_dot_dimension_numbers=dims)
