"""Kernels of linear algebra against NumPy in double: factors, triangular systems, labelled sums, ragged GEMMs."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array, dtype
from smelt.engine.native import NativeEngine
from smelt.ir.attributes import DotDims, RaggedDotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.shape import Shape

# Computed in double and rounded once.
TOLERANCE = {"f32": 1.2e-7, "f64": 1e-12, "complex<f32>": 2e-7, "complex<f64>": 1e-12, "bf16": 0.008}


def native(f: FuncBuilder, results: list[Value], args: list[Array]) -> tuple[Array, ...]:
    return NativeEngine().compile(Program.of(f.func(*results)))(*args)


def numbers(random: np.random.Generator, element: str, *sizes: int) -> Array:
    values = random.standard_normal(sizes)
    if element.startswith("complex"):
        values = values + 1j * random.standard_normal(sizes)
    return values.astype(dtype(element).numpy)


def adjoint(x: Array) -> Array:
    return np.conj(np.swapaxes(x, -1, -2))


def wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


@pytest.mark.parametrize("element", ["f32", "f64", "complex<f32>", "complex<f64>", "bf16"])
def test_cholesky(element: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    root = wide(numbers(random, element, 2, 6, 6))
    matrix = (root @ adjoint(root) + np.eye(6)).astype(dtype(element).numpy)
    f = FuncBuilder("main", [Shape(element, 2, 6, 6)])
    lower, upper = native(f, [f.cholesky(*f.args, lower=low) for low in (True, False)], [matrix])
    low_half = np.tril(wide(matrix))
    hermitian = low_half + adjoint(np.tril(low_half, -1))
    np.testing.assert_allclose(wide(lower), np.linalg.cholesky(hermitian), rtol=TOLERANCE[element], atol=1e-12)
    high_half = np.triu(wide(matrix))
    hermitian = high_half + adjoint(np.triu(high_half, 1))
    want = adjoint(np.linalg.cholesky(hermitian))
    np.testing.assert_allclose(wide(upper), want, rtol=TOLERANCE[element], atol=1e-12)


def test_cholesky_of_dynamic_dimensions(seed: int) -> None:
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape("f64", "B", "N", "N")])
    run = NativeEngine().compile(Program.of(f.func(f.cholesky(*f.args, lower=True))))
    for batch, size in ((0, 3), (1, 0), (2, 1), (3, 70)):
        root = numbers(random, "f64", batch, size, size)
        matrix = root @ adjoint(root) + size * np.eye(size)
        (factor,) = run(matrix)
        np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), rtol=1e-11, atol=1e-12)


def test_cholesky_of_what_is_not_positive_gives_nan() -> None:
    matrix = np.array([[4, 2, 2], [2, -5, 1], [2, 1, 9]], np.float32)
    f = FuncBuilder("main", [Shape("f32", 3, 3)])
    (factor,) = native(f, [f.cholesky(*f.args, lower=True)], [matrix])
    nan = np.nan
    np.testing.assert_array_equal(factor, np.array([[2, 0, 0], [1, nan, 0], [1, nan, nan]], np.float32))


@pytest.mark.parametrize("element", ["f32", "f64", "complex<f32>", "complex<f64>"])
@pytest.mark.parametrize("left", [True, False])
def test_triangular_solve(element: str, left: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    a = (wide(numbers(random, element, 2, 5, 5)) + 4 * np.eye(5)).astype(dtype(element).numpy)
    b = numbers(random, element, 2, *((5, 3) if left else (3, 5)))
    f = FuncBuilder("main", [Shape(element, *a.shape), Shape(element, *b.shape)])
    cases = list(product((True, False), (True, False), ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")))
    results = [
        f.triangular_solve(*f.args, left_side=left, lower=lower, unit_diagonal=unit, transpose_a=transpose)
        for lower, unit, transpose in cases
    ]
    for (lower, unit, transpose), got in zip(cases, native(f, results, [a, b]), strict=True):
        matrix = np.tril(wide(a), -1) if lower else np.triu(wide(a), 1)
        matrix = matrix + (np.eye(5) if unit else np.eye(5) * wide(a))
        if transpose != "NO_TRANSPOSE":
            matrix = np.swapaxes(matrix, -1, -2)
        if transpose == "ADJOINT":
            matrix = matrix.conj()
        whole = np.linalg.solve(matrix, wide(b)) if left else wide(b) @ np.linalg.inv(matrix)
        scale = np.abs(whole).max()
        np.testing.assert_allclose(wide(got), whole, rtol=TOLERANCE[element], atol=1e-12 * scale)


def test_triangular_solve_of_dynamic_dimensions(seed: int) -> None:
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape("f64", "N", "N"), Shape("f64", "N", "M")])
    options: dict[str, Any] = {"left_side": True, "lower": False, "unit_diagonal": False, "transpose_a": "NO_TRANSPOSE"}
    run = NativeEngine().compile(Program.of(f.func(f.triangular_solve(*f.args, **options))))
    for size, columns in ((0, 2), (1, 1), (3, 0), (80, 5)):
        a = np.triu(numbers(random, "f64", size, size)) / 9 + np.eye(size)
        b = numbers(random, "f64", size, columns)
        (got,) = run(a, b)
        np.testing.assert_allclose(got, np.linalg.solve(a, b), rtol=1e-9, atol=1e-9)


EINSUMS = ["ab,bc->ac", "ij,ij->", "...ij,...jk->...ki", "ab,c->ca", "abc,cd->db", "aab,bc->ac", "abb->ba", "abc->b"]
SIZES = dict(zip("abcdijk.", (3, 4, 5, 2, 3, 70, 2, 6), strict=True))


@pytest.mark.parametrize("element", ["f32", "i32", "complex<f64>"])
def test_einsum(element: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    args: list[list[Array]] = []
    for config in EINSUMS:
        terms = config.partition("->")[0].replace("...", ".").split(",")
        drawn = [wide(numbers(random, element, *(SIZES[label] for label in term))) for term in terms]
        args.append([(3 * x).astype(dtype(element).numpy) for x in drawn])
    f = FuncBuilder("main", [Shape(element, *x.shape) for operands in args for x in operands])
    values = iter(f.args)
    results = []
    for config, operands in zip(EINSUMS, args, strict=True):
        name = "stablehlo.einsum" if len(operands) == 2 else "stablehlo.unary_einsum"
        results.append(f.op(name, *(next(values) for _ in operands), einsum_config=config).result)
    room = {"f32": 1e-4, "i32": 0, "complex<f64>": 1e-11}[element]
    made = native(f, results, [x for operands in args for x in operands])
    for config, operands, got in zip(EINSUMS, args, made, strict=True):
        want = np.einsum(config, *(x if element == "i32" else wide(x) for x in operands))
        np.testing.assert_allclose(got, want, rtol=room / 10, atol=room, err_msg=config)


def test_ragged_rows_choose_a_slice(seed: int) -> None:
    random = np.random.default_rng(seed)
    lhs, rhs = numbers(random, "f32", 11, 5), numbers(random, "f32", 3, 5, 7)
    f = FuncBuilder("main", [Shape("f32", 11, 5), Shape("f32", 3, 5, 7), Shape("i32", 3)])
    dims = RaggedDotDims((), (), (1,), (1,), (0,), (0,))
    value = f.op("chlo.ragged_dot", *f.args, ragged_dot_dimension_numbers=dims).result
    run = NativeEngine().compile(Program.of(f.func(value)))
    for groups in ([4, 3, 2], [0, 11, 0], [0, 0, 0], [5, 0, 6]):
        want = np.zeros((11, 7))
        start = 0
        for group, count in enumerate(groups):
            want[start : start + count] = lhs[start : start + count].astype(np.float64) @ rhs[group]
            start += count
        (got,) = run(lhs, rhs, np.array(groups, np.int32))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_ragged_sums_take_a_stretch_each(seed: int) -> None:
    random = np.random.default_rng(seed)
    lhs, rhs = numbers(random, "f64", 2, 4, 90), numbers(random, "f64", 2, 90, 3)
    f = FuncBuilder("main", [Shape("f64", 2, 4, 90), Shape("f64", 2, 90, 3), Shape("i64", 2, 3)])
    dims = RaggedDotDims((0,), (0,), (2,), (1,), (2,), ())
    value = f.op("chlo.ragged_dot", *f.args, ragged_dot_dimension_numbers=dims).result
    groups = np.array([[80, 0, 10], [3, 40, 7]])
    (got,) = native(f, [value], [lhs, rhs, groups])
    for batch, group in product(range(2), range(3)):
        begin = groups[batch, :group].sum()
        part = slice(begin, begin + groups[batch, group])
        want = lhs[batch][:, part] @ rhs[batch][part]
        np.testing.assert_allclose(got[group, batch], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("depth", [3, 200])
def test_matmul_of_mixed_types(depth: int, seed: int) -> None:
    """Integers wrap in the result's type, narrow floats are summed in a wide one and rounded once."""
    random = np.random.default_rng(seed)
    cases = ["i8,i8,i8", "i8,i8,i32", "ui8,ui8,f32", "bf16,bf16,bf16", "f16,f16,f32", "i1,i1,i1", "i4,i4,i16"]
    types = [[dtype(name) for name in case.split(",")] for case in cases]
    args: list[Array] = []
    for left, right, _ in types:
        args += [
            (7 * random.standard_normal((3, depth))).astype(left.numpy),
            (7 * random.standard_normal((depth, 2))).astype(right.numpy),
        ]
    f = FuncBuilder("main", [Shape.of(dtype(x.dtype), x.shape) for x in args])
    dims = DotDims((), (), (1,), (0,))
    results = [
        f.dot_general(*f.args[2 * i : 2 * i + 2], dot_dimension_numbers=dims, result=Shape.of(result, (3, 2)))
        for i, (_, _, result) in enumerate(types)
    ]
    got = native(f, results, args)
    for i, (case, (left, _, result)) in enumerate(zip(cases, types, strict=True)):
        lhs, rhs = args[2 * i : 2 * i + 2]
        if left.is_integer:
            whole = lhs.astype(np.int64) @ rhs.astype(np.int64)
            np.testing.assert_array_equal(got[i], whole.astype(result.numpy), err_msg=case)
        elif left.kind == "bool":
            np.testing.assert_array_equal(got[i], lhs @ rhs, err_msg=case)
        else:
            want = lhs.astype(np.float64) @ rhs.astype(np.float64)
            room = 2e-6 * (np.abs(lhs.astype(np.float64)) @ np.abs(rhs.astype(np.float64)))  # of the sum in f32
            half = np.abs(want) * (2.0**-8 if result.name == "bf16" else 2.0**-24)
            assert (np.abs(got[i].astype(np.float64) - want) <= room + half).all(), case
