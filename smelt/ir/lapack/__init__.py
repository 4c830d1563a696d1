"""LAPACK's routines as StableHLO ops: what JAX calls by name, for every engine that has no LAPACK of its own.

`compute` takes operands and gives results of the types that `ir.ops.lapack` infers. Everything is computed in double
and rounded once. Batches may be of a dynamic size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from smelt.dim import Size
from smelt.dtype import DType, c128, complex_of, f64
from smelt.errors import UnsupportedError
from smelt.ir.build import Builder, FuncBuilder
from smelt.ir.core import Func, Value
from smelt.ir.lapack import factor, jacobi, schur
from smelt.ir.lapack.arrays import COUNT, Arr, Work
from smelt.ir.ops.lapack import routine_of
from smelt.shape import Shape

Results = Sequence[Arr]


def compute(b: Builder, target: str, operands: Sequence[Value], given: Mapping[str, int]) -> list[Value]:
    """The results of a call of `lapack_…_ffi`; `given` is its configuration, letters as character codes."""
    found = routine_of(target)
    assert found is not None
    name, element = found
    return [each.value for each in _Call(b, target, element, operands, given).results(ROUTINES[name])]


@lru_cache(maxsize=64)
def computation(target: str, types: tuple[Shape, ...], given: tuple[tuple[str, int], ...]) -> Func:
    """A call as a function of operands of these types: what the interpreter runs."""
    f = FuncBuilder(target, types)
    return f.func(*compute(f, target, f.args, dict(given)))


class _Call:
    """Operands as `[batch, …]` in double; results get the batch and the element type back."""

    def __init__(
        self, b: Builder, target: str, element: DType, operands: Sequence[Value], given: Mapping[str, int]
    ) -> None:
        self.w, self.target, self.element, self.given = Work(b), target, element, given
        self.wide = c128 if element.is_complex else f64
        self.operands = [Arr(self.w, value) for value in operands]

    def results(self, routine: Callable[[_Call], Results]) -> list[Arr]:
        return list(routine(self))

    def letter(self, name: str, allowed: str) -> str:
        """An option that is one of some letters."""
        code = self.given.get(name)
        letter = chr(code) if isinstance(code, int) and 0 < code < 128 else ""
        if letter not in allowed or not letter:
            raise UnsupportedError(f"{self.target}: {name}", expected=" or ".join(allowed), got=letter or repr(code))
        return letter

    def batch(self, rank: int = 2) -> tuple[Size, ...]:
        return self.operands[0].sizes[: self.operands[0].rank - rank]

    def take(self, index: int, rank: int = 2) -> Arr:
        """An operand with its batch as one dimension, in double where it is not of integers."""
        x = self.operands[index]
        count: Size = 1
        for size in x.sizes[: x.rank - rank]:
            count = count * size
        x = x.reshape((count, *x.sizes[x.rank - rank :]))
        return x if x.dtype.is_integer else x.to(self.wide)

    def give(self, x: Arr, rank: int = 2, own: int = 2, dtype: DType | None = None) -> Arr:
        """A result with `own` sizes of its own; `rank` is that of the first operand."""
        x = x.reshape((*self.batch(rank), *x.sizes[x.rank - own :]))
        if x.dtype.is_integer:
            return x
        if dtype is None:
            dtype = self.element if x.dtype.is_complex or not self.element.is_complex else self.element.part
        return x.to(dtype)

    def finite(self, a: Arr) -> tuple[Arr, Arr]:
        """A matrix without NaNs and infinities, and 1 for each matrix that had some: LAPACK promises nothing then."""
        size = a.real().abs().maximum(a.imag().abs()) if a.dtype.is_complex else a.abs()
        good = (size < float("inf")).all(1, 2)
        info = good.reshape((a.sizes[0],)).where(self.w.full(0, COUNT, (a.sizes[0],)), 1)
        return good.where(a, 0.0), info


def _getrf(c: _Call) -> Results:
    a, pivots, info = factor.getrf(c.w, c.take(0))
    return c.give(a), c.give(pivots, own=1), c.give(info, own=0)


def _potrf(c: _Call) -> Results:
    """The other triangle stays as it was. The first pivot that is not positive is reported."""
    a, lower = c.take(0), c.letter("uplo", "LU") == "L"
    w, n, batch = c.w, a.size(1), a.sizes[0]
    rows, columns = w.index(3, 1, n), w.index(3, 2, n)
    inside = rows >= columns if lower else rows <= columns
    found = Arr(w, w.b.cholesky(a.value, lower=lower))
    diagonal = rows.equals(columns).where(found, 0.0).sum(2).real().reshape((batch, n))
    bad = (~(diagonal > 0.0)).where(w.spread(w.index(2, 1, n) + 1, (batch, n)), n + 1)
    first = bad.min(1).reshape((batch,)) if n else w.full(0, COUNT, (batch,))
    info = (first <= n).where(first, 0)
    return c.give(inside.where(found, a)), c.give(info, own=0)


def _trsm(c: _Call) -> Results:
    a, b = c.take(0), c.take(1)
    transpose = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[c.letter("trans_x", "NTC")]
    solved = c.w.b.triangular_solve(
        a.value,
        b.value,
        left_side=c.letter("side", "LR") == "L",
        lower=c.letter("uplo", "LU") == "L",
        unit_diagonal=c.letter("diag", "UN") == "U",
        transpose_a=transpose,
    )
    return [c.give(Arr(c.w, solved))]


def _geqrf(c: _Call) -> Results:
    a, taus = factor.geqrf(c.w, c.take(0))
    return c.give(a), c.give(taus, own=1)


def _geqp3(c: _Call) -> Results:
    a, order, taus = factor.geqp3(c.w, c.take(0), c.take(1, 1))
    return c.give(a), c.give(order, own=1), c.give(taus, own=1)


def _orgqr(c: _Call) -> Results:
    a = c.take(0)
    start = c.w.eye(c.wide, (a.sizes[0],), a.size(1), a.size(2))
    return [c.give(factor.apply_reflectors(c.w, a, c.take(1, 1), start))]


def _ormqr(c: _Call) -> Results:
    a, taus, x = c.take(0), c.take(1, 1), c.take(2)
    left = bool(c.given["left"]) if "left" in c.given else c.letter("side", "LR") == "L"
    adjoint = bool(c.given["transpose"]) if "transpose" in c.given else c.letter("trans", "NTC") != "N"
    if left:
        return [c.give(factor.apply_reflectors(c.w, a, taus, x, adjoint=adjoint))]
    return [c.give(factor.apply_reflectors(c.w, a, taus, x.mH, adjoint=not adjoint).mH)]


def _syevd(c: _Call) -> Results:
    c.letter("mode", "VN")
    a, info = c.finite(c.take(0))
    vectors, values = jacobi.heevd(c.w, a, c.letter("uplo", "LU") == "L")
    return c.give(vectors), c.give(values, own=1), c.give(info, own=0)


def _gesdd(c: _Call) -> Results:
    mode = c.letter("mode", "ASN")
    a, info = c.finite(c.take(0))
    s, u, vh = jacobi.gesdd(c.w, a, mode != "S", mode != "N")
    return c.give(a), c.give(s, own=1), c.give(u), c.give(vh), c.give(info, own=0)


def _geev(c: _Call) -> Results:
    w, n = c.w, c.operands[0].size(-1)
    a, info = c.finite(c.take(0))
    t, z, real, imaginary, failed = schur.schur(w, a)
    pairs = None if c.element.is_complex else imaginary
    if pairs is not None:
        t, z = schur.complex_form(w, t, z, pairs)
    vectors = []
    for name in ("left", "right"):
        if c.letter(f"compute_{name}", "VN") == "N":
            found = w.full(0, c128, (a.sizes[0], n, n))
        else:
            found = schur.eigenvectors(w, t, z, name == "left")
            found = found if pairs is None else schur.pair_up(w, found, pairs)
        kind = c.element if c.element.is_complex else complex_of(c.element)
        vectors.append(c.give(found, dtype=kind))
    values = [c.give(real, own=1)] if pairs is None else [c.give(real, own=1), c.give(pairs, own=1)]
    return *values, *vectors, c.give(info.maximum(failed), own=0)


def _gees(c: _Call) -> Results:
    c.letter("sort", "N")
    c.letter("mode", "VN")
    a, info = c.finite(c.take(0))
    t, z, real, imaginary, failed = schur.schur(c.w, a)
    values = [real] if c.element.is_complex else [real, imaginary]
    chosen = c.w.full(0, COUNT, (a.sizes[0],))
    return (
        c.give(t),
        c.give(z),
        *(c.give(each, own=1) for each in values),
        c.give(chosen, own=0),
        c.give(info.maximum(failed), own=0),
    )


def _none(c: _Call, a: Arr) -> Arr:
    return c.give(c.w.full(0, COUNT, (a.sizes[0],)), own=0)


def _gehrd(c: _Call) -> Results:
    a = c.take(0)
    low, high = c.given.get("low", 1), c.given.get("high", a.size(1))
    packed, taus = factor.gehrd(c.w, a, low, high)
    return c.give(packed), c.give(taus, own=1), _none(c, a)


def _sytrd(c: _Call) -> Results:
    a = c.take(0)
    packed, diagonal, beside, taus = factor.sytrd(c.w, a, c.letter("uplo", "LU") == "L")
    return c.give(packed), *(c.give(each, own=1) for each in (diagonal, beside, taus)), _none(c, a)


def _gtsv(c: _Call) -> Results:
    *lines, x, info = factor.gtsv(c.w, c.take(0, 1), c.take(1, 1), c.take(2, 1), c.take(3))
    return *(c.give(line, 1, 1) for line in lines), c.give(x, 1, 2), c.give(info, 1, 0)


ROUTINES: dict[str, Callable[[_Call], Results]] = {
    "getrf": _getrf,
    "potrf": _potrf,
    "trsm": _trsm,
    "geqrf": _geqrf,
    "geqp3": _geqp3,
    "orgqr": _orgqr,
    "ormqr": _ormqr,
    "syevd": _syevd,
    "gesdd": _gesdd,
    "geev": _geev,
    "gees": _gees,
    "gehrd": _gehrd,
    "sytrd": _sytrd,
    "gtsv": _gtsv,
}
