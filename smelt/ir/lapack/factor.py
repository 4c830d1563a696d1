"""LU with partial pivoting, Householder QR, and reductions to Hessenberg and tridiagonal form, as LAPACK defines them.

In: matrices `[batch, m, n]` in double. Out: factors in LAPACK's packed forms. All matrices of a batch go together.
"""

from __future__ import annotations

from smelt.ir.lapack.arrays import COUNT, Arr, Work


def getrf(w: Work, a: Arr) -> tuple[Arr, Arr, Arr]:
    """L and U in one matrix, the rows swapped with (from 1), and the first column without a pivot (from 1, or 0)."""
    batch, m, n = a.sizes[0], a.size(1), a.size(2)
    rows, columns, steps = w.index(3, 1, m), w.index(3, 2, n), min(m, n)
    places = w.index(2, 1, steps)
    pivots, info = w.full(0, COUNT, (batch, steps)), w.full(0, COUNT, (batch,))

    def step(k: Arr, a: Arr, pivots: Arr, info: Arr) -> tuple[Arr, ...]:
        column = a.at({2: (k, 1)})
        size = column.real().abs() + column.imag().abs() if a.dtype.is_complex else column.abs()
        size = (rows < k).where(-1.0, size)
        largest = (size >= size.max(1)) & (rows >= k)
        found = largest.where(w.spread(rows, size.sizes), m).min(1)
        found = (found < m).where(found, k)  # a column of NaNs
        chosen, current = rows.equals(found), a.at({1: (k, 1)})
        top = chosen.where(a, 0.0).sum(1)
        a = rows.equals(k).where(top, chosen.where(current, a))
        pivot = top.at({2: (k, 1)})
        zero = pivot.equals(0.0)
        below = (rows > k).where(a.at({2: (k, 1)}), 0.0)
        below = below / zero.where(1.0, pivot)
        a = a - below * (columns > k).where(top, 0.0)
        a = (columns.equals(k) & (rows > k)).where(below, a)
        pivots = places.equals(k).where(w.spread(found.reshape((batch, 1)) + 1, pivots.sizes), pivots)
        info = (info.equals(0) & zero.reshape((batch,))).where(w.spread(k + 1, (batch,)), info)
        return a, pivots, info

    a, pivots, info = w.repeat(0, steps, step, a, pivots, info)
    return a, pivots, info


def reflector(w: Work, alpha: Arr, x: Arr, axis: int = 1) -> tuple[Arr, Arr, Arr]:
    """beta, tau, scale: H^H (alpha, x) == (beta, 0) for H = 1 - tau (1, v) (1, v)^H and v = x scale."""
    norm = x.norm(axis)
    idle = norm.equals(0.0) & alpha.imag().equals(0.0)
    both = w.concatenate(axis, alpha, norm.to(alpha.dtype)).norm(axis)
    beta = -(alpha.real().sign() * both)
    safe = idle.where(1.0, beta)
    tau = idle.where(0.0, (beta.to(alpha.dtype) - alpha) / safe.to(alpha.dtype))
    scale = idle.where(0.0, 1.0 / idle.where(1.0, alpha - beta.to(alpha.dtype)))
    return idle.where(alpha, beta.to(alpha.dtype)), tau, scale


def geqrf(w: Work, a: Arr) -> tuple[Arr, Arr]:
    """R above, the reflectors' vectors below, and their factors."""
    batch, m, n = a.sizes[0], a.size(1), a.size(2)
    steps = min(m, n)
    rows, columns, places = w.index(3, 1, m), w.index(3, 2, n), w.index(2, 1, steps)

    def step(k: Arr, a: Arr, taus: Arr) -> tuple[Arr, ...]:
        column = a.at({2: (k, 1)})
        beta, tau, scale = reflector(w, a.at({1: (k, 1), 2: (k, 1)}), (rows > k).where(column, 0.0))
        below = (rows > k).where(column * scale, 0.0)
        v = rows.equals(k).where(1.0, below)
        right = (columns > k).where(a, 0.0)
        a = a - tau.conj() * v * (v.mH @ right)
        packed = rows.equals(k).where(w.spread(beta, v.sizes), below)
        a = (columns.equals(k) & (rows >= k)).where(packed, a)
        return a, places.equals(k).where(w.spread(tau.reshape((batch, 1)), taus.sizes), taus)

    a, taus = w.repeat(0, steps, step, a, w.full(0, a.dtype, (batch, steps)))
    return a, taus


def geqp3(w: Work, a: Arr, fixed: Arr) -> tuple[Arr, Arr, Arr]:
    """QR with the longest remaining column first; columns marked in `fixed` come before the others."""
    batch, m, n = a.sizes[0], a.size(1), a.size(2)
    steps = min(m, n)
    rows, columns, places = w.index(3, 1, m), w.index(3, 2, n), w.index(2, 1, steps)
    order = w.spread(columns + 1, (batch, 1, n))
    first = (fixed.reshape((batch, 1, n)) > 0) | (fixed.reshape((batch, 1, n)) < 0)
    rank = first.where(w.full(0.0, a.dtype.part, (batch, 1, n)), 1.0)
    _, a, order = w.sort_columns(rank, a, order)
    count = first.where(w.full(1, COUNT, (batch, 1, n)), 0).sum(2)

    def step(k: Arr, a: Arr, taus: Arr, order: Arr) -> tuple[Arr, ...]:
        length = (rows >= k).where(a, 0.0).norm(1)
        length = ((columns >= k) & ((count <= k) | columns.equals(k))).where(length, -1.0)
        found = (length >= length.max(2)).where(w.spread(columns, length.sizes), n).min(2)
        found = (found < n).where(found, k)
        chosen = columns.equals(found)

        def swap(x: Arr) -> Arr:
            return columns.equals(k).where(chosen.where(x, 0).sum(2), chosen.where(x.at({2: (k, 1)}), x))

        a, order = swap(a), swap(order)
        column = a.at({2: (k, 1)})
        beta, tau, scale = reflector(w, a.at({1: (k, 1), 2: (k, 1)}), (rows > k).where(column, 0.0))
        below = (rows > k).where(column * scale, 0.0)
        v = rows.equals(k).where(1.0, below)
        a = a - tau.conj() * v * (v.mH @ (columns > k).where(a, 0.0))
        packed = rows.equals(k).where(w.spread(beta, v.sizes), below)
        a = (columns.equals(k) & (rows >= k)).where(packed, a)
        taus = places.equals(k).where(w.spread(tau.reshape((batch, 1)), taus.sizes), taus)
        return a, taus, order

    a, taus, order = w.repeat(0, steps, step, a, w.full(0, a.dtype, (batch, steps)), order)
    return a, order.reshape((batch, n)), taus


def apply_reflectors(w: Work, packed: Arr, taus: Arr, c: Arr, *, adjoint: bool = False, first: int = 0) -> Arr:
    """Q c, or Q^H c, for Q = H1 H2 …; the vector of H(k) has its 1 in row k + first."""
    m, steps = packed.size(1), taus.size(1)
    rows, batch = w.index(3, 1, m), packed.sizes[0]

    def step(turn: Arr, c: Arr) -> Arr:
        k = turn if adjoint else (steps - 1) - turn
        column = packed.at({2: (k, 1)})
        v = (rows > k + first).where(column, 0.0)
        v = rows.equals(k + first).where(1.0, v)
        tau = taus.at({1: (k, 1)}).reshape((batch, 1, 1))
        return c - (tau.conj() if adjoint else tau) * v * (v.mH @ c)

    return w.repeat(0, steps, step, c)[0]


def gehrd(w: Work, a: Arr, low: int, high: int) -> tuple[Arr, Arr]:
    """Hessenberg form with the reflectors' vectors below it, of the rows from `low` to `high` (from 1)."""
    batch, n = a.sizes[0], a.size(1)
    rows, columns, places = w.index(3, 1, n), w.index(3, 2, n), w.index(2, 1, max(n - 1, 0))
    taus = w.full(0, a.dtype, (batch, max(n - 1, 0)))

    def step(k: Arr, a: Arr, taus: Arr) -> tuple[Arr, ...]:
        column = a.at({2: (k, 1)})
        inside = (rows > k + 1) & (rows < high)
        beta, tau, scale = reflector(w, a.at({1: (k + 1, 1), 2: (k, 1)}), inside.where(column, 0.0))
        below = inside.where(column * scale, 0.0)
        v = rows.equals(k + 1).where(1.0, below)
        a = (columns > k).where(a - tau * (a @ v) * v.mH, a)
        a = (columns > k).where(a - tau.conj() * v * (v.mH @ a), a)
        packed = rows.equals(k + 1).where(w.spread(beta, v.sizes), below)
        a = (columns.equals(k) & (rows > k) & (rows < high)).where(packed, a)
        return a, places.equals(k).where(w.spread(tau.reshape((batch, 1)), taus.sizes), taus)

    if n < 2:
        return a, taus
    a, taus = w.repeat(low - 1, high - 1, step, a, taus)
    return a, taus


def sytrd(w: Work, a: Arr, lower: bool) -> tuple[Arr, Arr, Arr, Arr]:
    """Tridiagonal form of a Hermitian matrix: packed reflectors, diagonal, the one beside it, factors."""
    batch, n = a.sizes[0], a.size(1)
    rows, columns = w.index(3, 1, n), w.index(3, 2, n)
    places = w.index(2, 1, max(n - 1, 0))
    full = hermitian(w, a, lower)
    taus, beside = w.full(0, a.dtype, (batch, max(n - 1, 0))), w.full(0, a.dtype.part, (batch, max(n - 1, 0)))

    def step(turn: Arr, x: Arr, packed: Arr, beside: Arr, taus: Arr) -> tuple[Arr, ...]:
        # Lower: column k, its head in row k + 1. Upper: column k + 1, its head in row k, from the last one on.
        k = turn if lower else (n - 2) - turn
        at, head = (k, k + 1) if lower else (k + 1, k)
        tail = rows > head if lower else rows < head
        column = x.at({2: (at, 1)})
        beta, tau, scale = reflector(w, x.at({1: (head, 1), 2: (at, 1)}), tail.where(column, 0.0))
        part = tail.where(column * scale, 0.0)
        v = rows.equals(head).where(1.0, part)
        x = x - tau.conj() * v * (v.mH @ x)
        x = x - (x @ v) * v.mH * tau
        kept = rows.equals(head).where(w.spread(beta, v.sizes), part)
        mask = columns.equals(at) & (rows >= head if lower else rows <= head)
        packed = mask.where(kept, packed)
        mine = places.equals(k)
        beside = mine.where(w.spread(beta.real().reshape((batch, 1)), beside.sizes), beside)
        return x, packed, beside, mine.where(w.spread(tau.reshape((batch, 1)), taus.sizes), taus)

    if n > 1:
        full, packed, beside, taus = w.repeat(0, n - 1, step, full, a, beside, taus)
    else:
        packed = a
    diagonal = rows.equals(columns).where(full, 0.0)
    packed = rows.equals(columns).where(diagonal.real().to(a.dtype), packed)
    return packed, diagonal.real().sum(2).reshape((batch, n)), beside, taus


def hermitian(w: Work, a: Arr, lower: bool) -> Arr:
    """The Hermitian matrix of which one triangle is given; the diagonal's imaginary part does not count."""
    n = a.size(1)
    rows, columns = w.index(3, 1, n), w.index(3, 2, n)
    given = rows > columns if lower else rows < columns
    full = given.where(a, a.mH)
    return rows.equals(columns).where(a.real().to(a.dtype), full)


def gtsv(w: Work, lower: Arr, main: Arr, upper: Arr, b: Arr) -> tuple[Arr, Arr, Arr, Arr, Arr]:
    """Tridiagonal systems by elimination with partial pivoting: `lower[0]` and `upper[n-1]` are not read."""
    batch, n = b.sizes[0], b.size(1)
    rows = w.index(3, 1, n)
    info = w.full(0, COUNT, (batch,))

    def column(x: Arr) -> Arr:
        return x.reshape((batch, n, 1))

    dl, d, du = column(lower), column(main), column(upper)
    second = d * 0.0  # the diagonal two above, filled by exchanged rows

    def pick(x: Arr, k: Arr) -> Arr:
        return x.at({1: (k, 1)})

    def eliminate(k: Arr, d: Arr, du: Arr, second: Arr, b: Arr, info: Arr) -> tuple[Arr, ...]:
        pivot, below = pick(d, k), pick(dl, k + 1)
        exchange = below.abs() > pivot.abs()
        here = (pivot, pick(du, k), pick(du, k) * 0.0, pick(b, k))
        last = (k + 2).equals(n) if n > 1 else k < 0
        beyond = last.where(0.0, pick(du, k + 1))
        there = (below, pick(d, k + 1), beyond, pick(b, k + 1))
        upper_row = [exchange.where(t, h) for h, t in zip(here, there, strict=True)]
        lower_row = [exchange.where(h, t) for h, t in zip(here, there, strict=True)]
        zero = upper_row[0].equals(0.0)
        factor = lower_row[0] / zero.where(1.0, upper_row[0])
        info = (info.equals(0) & zero.reshape((batch,))).where(w.spread(k + 1, (batch,)), info)
        at, after = rows.equals(k), rows.equals(k + 1)
        d = at.where(upper_row[0], after.where(lower_row[1] - factor * upper_row[1], d))
        du = at.where(upper_row[1], after.where(lower_row[2] - factor * upper_row[2], du))
        second = at.where(upper_row[2], second)
        b = at.where(upper_row[3], after.where(lower_row[3] - factor * upper_row[3], b))
        return d, du, second, b, info

    d, du, second, b, info = w.repeat(0, n - 1, eliminate, d, du, second, b, info)
    final = d.slice_axis(1, n - 1, n).equals(0.0).reshape((batch,))
    info = (info.equals(0) & final).where(w.full(n, COUNT, (batch,)), info)

    def substitute(turn: Arr, x: Arr) -> Arr:
        k = (n - 1) - turn
        rest = pick(b, k)
        for step, factor in ((1, du), (2, second)):
            inside = (k + step) < n
            rest = rest - inside.where(w.spread(pick(factor, k) * pick(x, k + step), rest.sizes), 0.0)
        return rows.equals(k).where(rest / pick(d, k), x)

    (x,) = w.repeat(0, n, substitute, b * 0.0)
    flat = (batch, n)
    return second.reshape(flat), d.reshape(flat), du.reshape(flat), x, info
