"""Derivatives of FFTs, triangular solves and Cholesky decompositions. Transposes are not conjugated, as in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from smelt.dtype import DType
from smelt.ir.attributes import DotDims
from smelt.ir.build import Builder
from smelt.ir.core import Op, Value
from smelt.ir.grad.rule import Cotangents, Rule, like, linear_in_first, zeros
from smelt.ir.grad.shape import pad_with_zeros
from smelt.ir.grad.sweep import Forward, Reverse
from smelt.shape import Shape

# ---- fft ----


def _fft(b: Builder, op: Op, g: Value) -> Value:
    kind, lengths = op.attrs["fft_type"], tuple(op.attrs["fft_length"])
    x = op.operands[0]
    if kind in ("FFT", "IFFT"):  # their matrices are symmetric
        return b.fft(g, fft_type=kind, fft_length=lengths)
    if kind == "RFFT":
        # The first half of an FFT of a real signal: fill up with zeros, transform, take the real part.
        high = [0] * (g.shape.rank - 1) + [lengths[-1] - (lengths[-1] // 2 + 1)]
        none = (0,) * g.shape.rank
        whole = pad_with_zeros(b, g, none, high, none)
        return b.real(b.fft(whole, fft_type="FFT", fft_length=lengths))
    # IRFFT counts every frequency twice but the first and, of an even length, the last.
    spectrum = b.fft(g, fft_type="RFFT", fft_length=lengths)
    half = lengths[-1] // 2 + 1
    weights = np.full(half, 2.0)
    weights[0] = 1.0
    if lengths[-1] % 2 == 0:
        weights[-1] = 1.0
    row = b.constant(weights / prod(lengths), x.shape.dtype)
    scale = b.broadcast_in_dim(row, broadcast_dimensions=(g.shape.rank - 1,), result=spectrum.shape)
    return b.op("chlo.conj", b.multiply(spectrum, scale)).result


# ---- matrices ----


def _is_complex(value: Value) -> bool:
    return isinstance(value.shape.dtype, DType) and value.shape.dtype.is_complex


def _conj(b: Builder, x: Value) -> Value:
    return b.op("chlo.conj", x).result if _is_complex(x) else x


def _turn(b: Builder, x: Value) -> Value:
    """The matrices of a batch, transposed."""
    rank = x.shape.rank
    return b.transpose(x, permutation=(*range(rank - 2), rank - 1, rank - 2))


def _product(b: Builder, x: Value, y: Value) -> Value:
    rank = x.shape.rank
    batch = tuple(range(rank - 2))
    return b.dot_general(x, y, dot_dimension_numbers=DotDims(batch, batch, (rank - 1,), (rank - 2,)))


def _triangle(b: Builder, x: Value, *, lower: bool, strict: bool) -> Value:
    """One triangle of each matrix, with or without the diagonal; zeros elsewhere."""
    rank, sizes = x.shape.rank, x.shape.sizes
    rows, columns = (b.iota(iota_dimension=d, result=Shape("i32", *sizes)) for d in (rank - 2, rank - 1))
    direction = ("GT" if strict else "GE") if lower else ("LT" if strict else "LE")
    inside = b.compare(rows, columns, comparison_direction=direction)
    return b.select(inside, x, zeros(b, x.type))


# ---- triangular_solve ----


def _solve(b: Builder, op: Op, a: Value, y: Value, transpose: str | None = None) -> Value:
    attrs = {name: op.attrs[name] for name in ("left_side", "lower", "unit_diagonal")}
    return b.triangular_solve(a, y, transpose_a=transpose or op.attrs["transpose_a"], **attrs)


def _solve_jvp(sweep: Forward, op: Op) -> None:
    """op(a) x = b: x' solves for b' - op(a') x."""
    b, (a, y), x = sweep.b, op.operands, op.results[0]
    moved, right = sweep.tangent(a), sweep.tangent(y)
    terms = [right]
    if moved is not None:
        moved = _triangle(b, moved, lower=op.attrs["lower"], strict=op.attrs["unit_diagonal"])
        if op.attrs["transpose_a"] in ("TRANSPOSE", "ADJOINT"):
            moved = _turn(b, moved)
        if op.attrs["transpose_a"] == "ADJOINT":
            moved = _conj(b, moved)
        pair = (moved, x) if op.attrs["left_side"] else (x, moved)
        terms.append(b.negate(_product(b, *pair)))
    total = sweep.total(terms)
    assert total is not None
    sweep.put(x, _solve(b, op, a, total))


def _solve_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    """b's cotangent solves with the transpose; a's is minus b's cotangent times the solution."""
    (g,) = cotangents
    assert g is not None
    b, (a, y), x = sweep.b, op.operands, op.results[0]
    kind = op.attrs["transpose_a"]
    back = {"NO_TRANSPOSE": "TRANSPOSE", "TRANSPOSE": "NO_TRANSPOSE", "ADJOINT": "NO_TRANSPOSE"}[kind]
    solved = _solve(b, op, _conj(b, a) if kind == "ADJOINT" else a, g, back)
    sweep.add(y, solved)
    if not sweep.wants(a):
        return
    # Of op(a): -solved x^T on the left, -x^T solved on the right.
    pair = (solved, _turn(b, x)) if op.attrs["left_side"] else (_turn(b, x), solved)
    made = b.negate(_product(b, *pair))
    if kind in ("TRANSPOSE", "ADJOINT"):
        made = _turn(b, made)
    if kind == "ADJOINT":
        made = _conj(b, made)
    sweep.add(a, _triangle(b, made, lower=op.attrs["lower"], strict=op.attrs["unit_diagonal"]))


# ---- cholesky ----


def _cholesky_jvp(sweep: Forward, op: Op) -> None:
    """L' = L phi(L^-1 A' L^-H), where phi keeps the lower triangle and half the diagonal."""
    b, a = sweep.b, op.operands[0]
    tangent = sweep.tangent(a)
    if tangent is None:
        return
    below = _triangle(b, tangent, lower=True, strict=False)  # the op reads the lower triangle alone
    above = _conj(b, _turn(b, _triangle(b, tangent, lower=True, strict=True)))
    factor = _triangle(b, op.results[0], lower=True, strict=False)
    right = b.triangular_solve(
        factor, b.add(below, above), left_side=False, lower=True, unit_diagonal=False, transpose_a="ADJOINT"
    )
    inner = b.triangular_solve(
        factor, right, left_side=True, lower=True, unit_diagonal=False, transpose_a="NO_TRANSPOSE"
    )
    strict = _triangle(b, inner, lower=True, strict=True)
    whole = _triangle(b, inner, lower=True, strict=False)
    half = b.multiply(b.add(strict, whole), like(b, 0.5, whole))
    sweep.put(op.results[0], _product(b, factor, half))


def _cholesky_upper(b: Builder, op: Op) -> Sequence[Value]:
    """U with U^H U = A, from the upper triangle: the lower factor of A^H, turned."""
    turned = _conj(b, _turn(b, op.operands[0]))
    return [_conj(b, _turn(b, b.cholesky(turned, lower=True)))]


def cholesky_rule(op: Op) -> Rule:
    return Rule(_cholesky_jvp) if op.attrs.get("lower") else Rule(expand=_cholesky_upper)


RULES: dict[str, Rule | Callable[[Op], Rule]] = {
    "stablehlo.fft": linear_in_first(_fft),
    "stablehlo.triangular_solve": Rule(_solve_jvp, _solve_vjp),
    "stablehlo.cholesky": cholesky_rule,
}
