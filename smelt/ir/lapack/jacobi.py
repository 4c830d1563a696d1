"""Eigenvalues of Hermitian matrices and singular values by Jacobi rotations: half of all pairs in one step.

In: matrices `[batch, m, n]` in double. Columns are paired by a round robin (Brent and Luk): the first half with the
second, then all but one move on by one place. After n - 1 steps every column is back.
"""

from __future__ import annotations

from smelt.ir.lapack.arrays import COUNT, REAL, Arr, Work
from smelt.ir.lapack.factor import apply_reflectors, geqrf, hermitian

SWEEPS = 40
PRECISION = 2.0**-52


def heevd(w: Work, a: Arr, lower: bool) -> tuple[Arr, Arr]:
    """Eigenvectors in columns and eigenvalues `[batch, 1, n]`, ascending."""
    n = a.size(1)
    if not n:
        return a, w.full(0, REAL, (a.sizes[0], 1, 0))
    a = hermitian(w, a, lower)
    scale = a.scale()
    a, odd = a / scale.to(a.dtype), n % 2
    a = a.pad(odd, odd) if odd else a
    count = n + odd
    vectors = w.eye(a.dtype, (a.sizes[0],), count, count)
    diagonal = w.index(3, 1, count).equals(w.index(3, 2, count))

    def goes_on(sweep: Arr, a: Arr, _: Arr) -> Arr:
        off = diagonal.where(0.0, a).square().sum(1, 2)
        whole = a.square().sum(1, 2)
        return (off > whole * PRECISION**2).any() & (sweep < SWEEPS)

    def sweep(turn: Arr, a: Arr, vectors: Arr) -> tuple[Arr, ...]:
        return (turn + 1, *w.repeat(0, count - 1, lambda _, a, v: _rotate(w, a, v), a, vectors))

    _, a, vectors = w.loop(goes_on, sweep, w.number(0), a, vectors)
    values = diagonal.where(a.real(), 0.0).sum(1) * scale
    if odd:
        values, vectors = values.slice_axis(2, 0, n), vectors.slice_axis(1, 0, n).slice_axis(2, 0, n)
    values, vectors = w.sort_columns(values, vectors)
    return vectors, values


def _rotate(w: Work, a: Arr, vectors: Arr) -> tuple[Arr, Arr]:
    half = a.size(1) // 2
    corner = w.index(3, 1, half).equals(w.index(3, 2, half))

    def diagonal(rows: int, columns: int) -> Arr:
        block = a.slice_axis(1, rows, rows + half).slice_axis(2, columns, columns + half)
        return corner.where(block, 0.0).sum(1)

    p, q, z = diagonal(0, 0).real(), diagonal(half, half).real(), diagonal(0, half)
    c, s = rotation(p, q, z)
    a = _turn_columns(w, a, c, s)
    a = _turn_columns(w, a.mH, c, s).mH
    rows, columns = w.index(3, 1, 2 * half), w.index(3, 2, 2 * half)
    met = rows.equals(columns + half) | columns.equals(rows + half)
    turned = z.abs().equals(0.0)
    turned = w.concatenate(2, turned, turned)
    a = (met & ~turned).where(0.0, a)
    a = _move_on(w, _move_on(w, a, 2), 1)
    return a, _move_on(w, _turn_columns(w, vectors, c, s), 2)


def rotation(p: Arr, q: Arr, z: Arr) -> tuple[Arr, Arr]:
    """c (real) and s that make [[p, z], [z*, q]] diagonal: columns become c x - s* y and s x + c y."""
    size = z.abs()
    idle = size.equals(0.0)
    safe = idle.where(1.0, size)
    tau = (q - p) / (safe * 2.0)
    t = tau.sign() / (tau.abs() + _hypot_one(tau))
    c = 1.0 / _hypot_one(t)
    s = (t * c).to(z.dtype) * (z / safe.to(z.dtype))
    return idle.where(1.0, c), idle.where(0.0, s)


def _hypot_one(x: Arr) -> Arr:
    """sqrt(1 + x^2), also where x^2 is too large."""
    big = x.abs() > 1e100
    return big.where(x.abs(), (big.where(0.0, x).square() + 1.0).sqrt())


def _turn_columns(w: Work, x: Arr, c: Arr, s: Arr) -> Arr:
    half = x.size(2) // 2
    left, right = x.slice_axis(2, 0, half), x.slice_axis(2, half, 2 * half)
    return w.concatenate(2, left * c - right * s.conj(), left * s + right * c)


def _move_on(w: Work, x: Arr, axis: int) -> Arr:
    """The first stays; the others go round by one place."""
    count = x.size(axis)
    half = count // 2
    if half == 1:
        return x
    parts = [x.slice_axis(axis, 0, 1), x.slice_axis(axis, half, half + 1), x.slice_axis(axis, 1, half - 1)]
    parts += [x.slice_axis(axis, half + 1, count), x.slice_axis(axis, half - 1, half)]
    return w.concatenate(axis, *(part for part in parts if part.size(axis)))


def gesdd(w: Work, a: Arr, full: bool, vectors: bool) -> tuple[Arr, Arr, Arr]:
    """Singular values `[batch, 1, k]` descending, U, and V^H; U and V^H are square if `full`."""
    m, n = a.size(1), a.size(2)
    if m < n:
        s, u, vh = gesdd(w, a.mH, full, vectors)
        return s, vh.mH, u.mH
    batch = a.sizes[0]
    if not n:
        u = w.eye(a.dtype, (batch,), m, m if full else 0)
        return w.full(0, REAL, (batch, 1, 0)), u, w.full(0, a.dtype, (batch, 0, 0))
    scale = a.scale()
    packed, taus = geqrf(w, a / scale.to(a.dtype))
    rows, columns = w.index(3, 1, n), w.index(3, 2, n)
    r = (rows <= columns).where(packed.slice_axis(1, 0, n), 0.0)
    s, left, right = _one_sided(w, r)
    if not vectors:
        rows_of_u = m if full else n
        return s * scale, w.full(0, a.dtype, (batch, m, rows_of_u)), w.full(0, a.dtype, (batch, n, n))
    # Columns of length 0 have no direction: reflectors complete the others to a basis.
    factor, own = geqrf(w, left)
    signs = rows.equals(columns).where(factor, 0.0).sum(1)
    signs = (signs.real() < 0.0).where(w.full(-1.0, a.dtype, signs.sizes), 1.0)
    u = apply_reflectors(w, factor, own, w.eye(a.dtype, (batch,), n, n)) * signs
    count = m if full else n
    if full and m > n:
        below = w.eye(a.dtype, (batch,), m - n, m - n)
        top = w.concatenate(2, u, w.full(0, a.dtype, (batch, n, m - n)))
        u = w.concatenate(1, top, w.concatenate(2, w.full(0, a.dtype, (batch, m - n, n)), below))
    elif m > n:
        u = u.pad(m - n, 0)
    u = apply_reflectors(w, packed, taus, u)
    assert u.size(2) == count
    return s * scale, u, right.mH


def _one_sided(w: Work, r: Arr) -> tuple[Arr, Arr, Arr]:
    """Lengths of the columns of r V, descending; those columns at length 1 (or 0); and V."""
    n, batch = r.size(1), r.sizes[0]
    odd = n % 2
    count = n + odd
    x = r.pad(0, odd) if odd else r
    v = w.eye(r.dtype, (batch,), count, count)

    def goes_on(turn: Arr, unfinished: Arr, *_: Arr) -> Arr:
        return (unfinished > 0) & (turn < SWEEPS)

    def step(_: Arr, unfinished: Arr, x: Arr, v: Arr) -> tuple[Arr, ...]:
        half = count // 2
        left, right = x.slice_axis(2, 0, half), x.slice_axis(2, half, count)
        p, q, z = left.square().sum(1), right.square().sum(1), (left.conj() * right).sum(1)
        apart = z.abs() > (p.sqrt() * q.sqrt()) * (PRECISION * 4)
        c, s = rotation(p, q, apart.where(z, 0.0))
        unfinished = apart.any().where(w.number(1), unfinished)
        return unfinished, _move_on(w, _turn_columns(w, x, c, s), 2), _move_on(w, _turn_columns(w, v, c, s), 2)

    def sweep(turn: Arr, _: Arr, x: Arr, v: Arr) -> tuple[Arr, ...]:
        return (turn + 1, *w.repeat(0, count - 1, step, w.number(0), x, v))

    _, _, x, v = w.loop(goes_on, sweep, w.number(0, COUNT), w.number(1, COUNT), x, v)
    if odd:
        x, v = x.slice_axis(2, 0, n), v.slice_axis(1, 0, n).slice_axis(2, 0, n)
    lengths = x.norm(1)
    none = lengths.equals(0.0)
    unit = none.where(0.0, x / none.where(1.0, lengths).to(x.dtype))
    lengths, unit, v = w.sort_columns(lengths, unit, v, descending=True)
    return lengths, unit, v
