"""Schur forms and eigenvectors of general matrices: shifted QR on Hessenberg forms, one matrix of a batch at a time.

Real matrices take Francis' double shifts and keep 2 × 2 blocks for complex pairs, in LAPACK's standard form; complex
matrices take Wilkinson's single shifts. In: matrices `[batch, n, n]` in double. Out: T, Z and eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.dtype import c128
from smelt.ir.lapack.arrays import COUNT, REAL, Arr, Work
from smelt.ir.lapack.factor import apply_reflectors, gehrd, reflector

PRECISION = 2.0**-52
SMALLEST = 2.0**-1022
Finish = Callable[[Arr, Arr], tuple[Arr, ...]]
Deflate = Callable[[Arr, Arr], tuple[Arr, Finish]]  # (first, last) → how many, and what to do with them
Step = Callable[[Arr, Arr, Arr, Arr, Arr], tuple[Arr, ...]]
STEPS = 30  # QR steps per eigenvalue before giving up, as in LAPACK


def schur(w: Work, a: Arr) -> tuple[Arr, Arr, Arr, Arr, Arr]:
    """T, Z, the real and imaginary parts (or the eigenvalues twice) `[batch, n]`, and 0 or 1 per matrix: not done."""
    batch, n = a.sizes[0], a.size(1)
    scale = a.scale()
    packed, taus = gehrd(w, a / scale.to(a.dtype), 1, n)
    rows, columns = w.index(3, 1, n), w.index(3, 2, n)
    h = (rows <= columns + 1).where(packed, 0.0)
    z = w.eye(a.dtype, (batch,), n, n)
    if n > 1:
        z = apply_reflectors(w, packed, taus, z, first=1)
    failed = w.full(0, COUNT, (batch,))
    one_matrix = _complex_schur if a.dtype.is_complex else _real_schur

    def each(at: Arr, h: Arr, z: Arr, failed: Arr) -> tuple[Arr, ...]:
        first = {0: (at, 1)}
        t, q, left = one_matrix(w, h.at(first).reshape((n, n)), z.at(first).reshape((n, n)))
        whole = (1, n, n)
        bad = (left >= 0).where(w.number(1), 0).reshape((1,))
        return h.update(t.reshape(whole), {0: at}), z.update(q.reshape(whole), {0: at}), failed.update(bad, {0: at})

    if n and batch != 0:
        length = Arr(w, w.b.get_dimension_size(a.value, dimension=0))
        h, z, failed = w.repeat(0, length, each, h, z, failed)
    h = h * scale.to(h.dtype)
    diagonal = rows.equals(columns).where(h, 0.0).sum(2).reshape((batch, n))
    if a.dtype.is_complex:
        return h, z, diagonal, diagonal, failed
    return h, z, diagonal, _imaginary(w, h), failed


def _imaginary(w: Work, t: Arr) -> Arr:
    """The imaginary parts of the eigenvalues of standard 2 × 2 blocks: the positive one first."""
    batch, n = t.sizes[0], t.size(1)
    rows, columns = w.index(3, 1, n), w.index(3, 2, n)
    above = (columns.equals(rows + 1)).where(t, 0.0)
    below = (rows.equals(columns + 1)).where(t, 0.0).mT
    part = (above.abs().sqrt() * below.abs().sqrt()).sum(2)  # of the block that begins in a row
    moved = w.concatenate(1, w.full(0, REAL, (batch, 1, 1)), part.slice_axis(1, 0, n - 1)) if n > 1 else part * 0.0
    return (part - moved).reshape((batch, n))


# ---- one matrix ----


def _start_of_block(w: Work, h: Arr, last: Arr, norm: Arr) -> Arr:
    """The row where the unreduced block that ends in row `last` begins."""
    n = h.size(1)
    rows, columns = w.index(2, 0, n), w.index(2, 1, n)
    size = _size(h)
    diagonal = rows.equals(columns).where(size, 0.0).sum(1)
    before = rows.equals(columns + 1).where(w.spread(diagonal.reshape((1, n)), (n, n)), 0.0).sum(1)
    below = rows.equals(columns + 1).where(size, 0.0).sum(1)
    near = diagonal + before
    near = near.equals(0.0).where(norm, near)
    small = (below <= near * PRECISION) | (below <= SMALLEST / PRECISION)
    return (small & (rows <= last)).where(w.spread(rows, (n, 1)), 0).max(0, 1).reshape(())


def _size(x: Arr) -> Arr:
    return x.real().abs() + x.imag().abs() if x.dtype.is_complex else x.abs()


def _clear(w: Work, h: Arr, at: Arr) -> Arr:
    """0 at (at, at - 1)."""
    n = h.size(1)
    rows, columns = w.index(2, 0, n), w.index(2, 1, n)
    return (rows.equals(at) & columns.equals(at - 1)).where(0.0, h)


def _entry(h: Arr, row: Arr, column: Arr) -> Arr:
    return h.at({0: (row, 1), 1: (column, 1)}).reshape(())


def _reflect(w: Work, x: Arr, size: int) -> tuple[Arr, Arr, Arr]:
    """beta, tau and v for a column `[size, 1]`; the first entry of v is 1."""
    beta, tau, scale = reflector(w, x.slice_axis(0, 0, 1), x.slice_axis(0, 1, size), axis=0)
    one = w.full(1, x.dtype, (1, 1))
    return beta, tau, w.concatenate(0, one, x.slice_axis(0, 1, size) * scale)


def _apply(h: Arr, z: Arr, k: Arr, tau: Arr, v: Arr) -> tuple[Arr, Arr]:
    """H^H h H and z H for a reflector at rows and columns k, k + 1, …"""
    size = v.size(0)
    rows = h.at({0: (k, size)})
    h = h.update(rows - tau.conj() * v * (v.mH @ rows), {0: k})
    columns = h.at({1: (k, size)})
    h = h.update(columns - tau * (columns @ v) * v.mH, {1: k})
    columns = z.at({1: (k, size)})
    return h, z.update(columns - tau * (columns @ v) * v.mH, {1: k})


def _chase(w: Work, h: Arr, z: Arr, first: Arr, last: Arr, start: Arr) -> tuple[Arr, Arr]:
    """One QR step: the reflector of `start` makes a bulge at `first`, the others move it out of the block."""
    size = start.size(0)
    places = w.index(2, 0, size)

    def step(k: Arr, h: Arr, z: Arr) -> tuple[Arr, Arr]:
        begins = k.equals(first)
        before = begins.where(k, k - 1)
        column = begins.where(start, h.at({0: (k, size), 1: (before, 1)}))
        column = (places <= last - k).where(column, 0.0)
        beta, tau, v = _reflect(w, column, size)
        h, z = _apply(h, z, k, tau, v)
        exact = places.equals(0).where(w.spread(beta, (size, 1)), 0.0)
        inside = places <= last - k
        old = h.at({0: (k, size), 1: (before, 1)})
        h = h.update((inside & ~begins).where(exact, old), {0: k, 1: before})
        return h, z

    h, z = w.repeat(first, last, step, h, z)
    return h, z


def _complex_schur(w: Work, h: Arr, z: Arr) -> tuple[Arr, Arr, Arr]:
    n = h.size(0)
    h, z = h.pad(1, 1), z.pad(1, 1)  # the last reflector has room

    def deflate(first: Arr, last: Arr) -> tuple[Arr, Finish]:
        return first.equals(last).where(w.number(1), 0), lambda h, z: (h, z)

    def step(h: Arr, z: Arr, first: Arr, last: Arr, tries: Arr) -> tuple[Arr, Arr]:
        a, b = _entry(h, last - 1, last - 1), _entry(h, last - 1, last)
        c, d = _entry(h, last, last - 1), _entry(h, last, last)
        half = (a - d) * 0.5
        root = Arr(w, w.b.sqrt((half * half + b * c).value))
        near = (half.real() * root.real() + half.imag() * root.imag() < 0.0).where(-root, root)
        bottom = half + near  # the larger one: the shift is the eigenvalue closer to d
        zero = bottom.abs().equals(0.0)
        shift = d - zero.where(0.0, b * c / zero.where(1.0, bottom))
        rare = _exceptional(w, tries)
        shift = rare.where(d + c.abs().to(d.dtype) * 0.75, shift)
        top, below = _entry(h, first, first) - shift, _entry(h, first + 1, first)
        start = w.concatenate(0, top.reshape((1, 1)), below.reshape((1, 1)))
        return _chase(w, h, z, first, last, start)

    return _sweeps(w, h, z, n, deflate, step)


def _sweeps(w: Work, h: Arr, z: Arr, n: int, deflate: Deflate, step: Step) -> tuple[Arr, Arr, Arr]:
    """Take eigenvalues off the end of the active block where they are isolated, else make one QR step.

    The matrices have room after the end. The last result is the row reached: -1 if all is done.
    """
    norm = _size(h).max(0, 1)

    def turn(last: Arr, tries: Arr, h: Arr, z: Arr) -> tuple[Arr, ...]:
        first = _start_of_block(w, h, last, norm)
        h = _clear(w, h, first)
        done, finish = deflate(first, last)

        def isolate() -> tuple[Arr, ...]:
            return (last - done, w.number(0), *finish(h, z))

        def iterate() -> tuple[Arr, ...]:
            return (last, tries + 1, *step(h, z, first, last, tries))

        return w.branch(done > 0, isolate, iterate)

    limit = STEPS * max(n, 10)
    last, _, h, z = w.loop(
        lambda last, tries, *_: (last >= 0) & (tries < limit), turn, w.number(n - 1), w.number(0), h, z
    )
    h, z = (x.slice_axis(0, 0, n).slice_axis(1, 0, n) for x in (h, z))
    rows, columns = w.index(2, 0, n), w.index(2, 1, n)
    return (rows > columns + (0 if h.dtype.is_complex else 1)).where(0.0, h), z, last


def _exceptional(w: Work, tries: Arr) -> Arr:
    """Whether this step takes another shift, because the usual ones have not helped for a while."""
    ten = tries - Arr(w, w.b.divide(tries.value, w.number(10).value)) * 10
    return (tries > 0) & ten.equals(0)


def _real_schur(w: Work, h: Arr, z: Arr) -> tuple[Arr, Arr, Arr]:
    n = h.size(0)
    h, z = h.pad(2, 2), z.pad(2, 2)

    def deflate(first: Arr, last: Arr) -> tuple[Arr, Finish]:
        one, two = first.equals(last), (first + 1).equals(last)
        count = one.where(w.number(1), two.where(w.number(2), 0))

        def finish(h: Arr, z: Arr) -> tuple[Arr, ...]:
            return w.branch(two, lambda: _standardise(w, h, z, last - 1), lambda: (h, z))

        return count, finish

    def step(h: Arr, z: Arr, first: Arr, last: Arr, tries: Arr) -> tuple[Arr, Arr]:
        a, b = _entry(h, last - 1, last - 1), _entry(h, last - 1, last)
        c, d = _entry(h, last, last - 1), _entry(h, last, last)
        rare = _exceptional(w, tries)
        off = c.abs() + _entry(h, last - 1, last - 2).abs()
        corner = d + off * 0.75
        a, d = rare.where(corner, a), rare.where(corner, d)
        b, c = rare.where(off * -0.4375, b), rare.where(off, c)
        total, product = a + d, a * d - b * c  # of the two shifts
        h11, h12 = _entry(h, first, first), _entry(h, first, first + 1)
        h21, h22, h32 = _entry(h, first + 1, first), _entry(h, first + 1, first + 1), _entry(h, first + 2, first + 1)
        parts = (h11 * h11 + h12 * h21 - total * h11 + product, h21 * (h11 + h22 - total), h21 * h32)
        scale = (parts[0].abs() + parts[1].abs() + parts[2].abs()).maximum(SMALLEST)
        start = w.concatenate(0, *((part / scale).reshape((1, 1)) for part in parts))
        return _chase(w, h, z, first, last, start)

    return _sweeps(w, h, z, n, deflate, step)


def _standardise(w: Work, h: Arr, z: Arr, k: Arr) -> tuple[Arr, Arr]:
    """The 2 × 2 block at k becomes triangular, or [[a, b], [c, a]] with b c < 0 for a complex pair."""
    a, b = _entry(h, k, k), _entry(h, k, k + 1)
    c, d = _entry(h, k + 1, k), _entry(h, k + 1, k + 1)
    apart = a - d
    p, sigma = apart * 0.5, b + c
    large, small = b.abs().maximum(c.abs()), b.abs().minimum(c.abs()) * b.sign() * c.sign()
    scale = p.abs().maximum(large).maximum(SMALLEST)
    root = (p / scale) * p + (large / scale) * small
    real = root >= 4 * PRECISION * scale
    # real eigenvalues
    far = p + p.sign() * scale.sqrt() * root.maximum(0.0).sqrt()
    length = (far * far + c * c).sqrt().maximum(SMALLEST)
    cs_real, sn_real = far / length, c / length
    # a complex pair, or nearly equal ones: equal diagonal first
    length = (sigma * sigma + apart * apart).sqrt().maximum(SMALLEST)
    cs_pair = ((sigma.abs() / length + 1.0) * 0.5).sqrt()
    sn_pair = -(p / (length * cs_pair)) * sigma.sign()
    cs, sn = real.where(cs_real, cs_pair), real.where(sn_real, sn_pair)
    opposite = ~(b.equals(0.0) | b.sign().equals(c.sign()))
    idle = c.equals(0.0) | (apart.equals(0.0) & opposite)
    cs, sn = idle.where(1.0, cs), idle.where(0.0, sn)
    h, z = _rotate(w, h, z, k, cs, sn)
    b, c = _entry(h, k, k + 1), _entry(h, k + 1, k)
    mean = (_entry(h, k, k) + _entry(h, k + 1, k + 1)) * 0.5
    done = idle | real
    # equal diagonal, but b c >= 0: the eigenvalues are real after all
    again = ~done & (b.equals(0.0) | b.sign().equals(c.sign())) & ~c.equals(0.0)
    root_b, root_c = b.abs().sqrt(), c.abs().sqrt()
    length = (root_b * root_b + root_c * root_c).sqrt().maximum(SMALLEST)
    h, z = _rotate(w, h, z, k, again.where(root_b / length, 1.0), again.where(root_c / length, 0.0))
    triangular = again | real | c.equals(0.0)
    entry = triangular.where(0.0, _entry(h, k + 1, k))
    h = h.update(entry.reshape((1, 1)), {0: k + 1, 1: k})
    for i in (0, 1):  # the diagonal of a pair is exactly equal
        old = _entry(h, k + i, k + i)
        h = h.update((done | again).where(old, mean).reshape((1, 1)), {0: k + i, 1: k + i})
    return h, z


def _rotate(w: Work, h: Arr, z: Arr, k: Arr, cs: Arr, sn: Arr) -> tuple[Arr, Arr]:
    """Rows k, k + 1 become (cs, sn; -sn, cs) of them; columns likewise."""
    entries = [each.reshape((1, 1)) for each in (cs, sn, -sn, cs)]
    top, bottom = w.concatenate(1, *entries[:2]), w.concatenate(1, *entries[2:])
    turn = w.concatenate(0, top, bottom)
    h = h.update(turn @ h.at({0: (k, 2)}), {0: k})
    h = h.update(h.at({1: (k, 2)}) @ turn.mT, {1: k})
    return h, z.update(z.at({1: (k, 2)}) @ turn.mT, {1: k})


# ---- eigenvectors ----


def complex_form(w: Work, t: Arr, z: Arr, imaginary: Arr) -> tuple[Arr, Arr]:
    """Triangular T and Z of complex numbers from a real Schur form: each block is turned by a complex rotation."""
    batch, n = t.sizes[0], t.size(1)
    t, z = t.to(c128), z.to(c128)
    unit = w.full(1j, c128, (batch, 1, 1))

    def step(turn: Arr, t: Arr, z: Arr) -> tuple[Arr, Arr]:
        m = (n - 1) - turn
        below = t.at({1: (m, 1), 2: (m - 1, 1)})
        part = imaginary.at({1: (m - 1, 1)}).reshape((batch, 1, 1))
        mu = part.to(c128) * unit + t.at({1: (m - 1, 1), 2: (m - 1, 1)}) - t.at({1: (m, 1), 2: (m, 1)})
        length = (mu.square() + below.square()).sqrt()
        idle = below.abs().equals(0.0)
        safe = idle.where(1.0, length).to(c128)
        c, s = idle.where(1.0, mu / safe), idle.where(0.0, below / safe)
        top, bottom = w.concatenate(2, c.conj(), s), w.concatenate(2, -s, c)
        g = w.concatenate(1, top, bottom)
        t = t.update(g @ t.at({1: (m - 1, 2)}), {1: m - 1})
        t = t.update(t.at({2: (m - 1, 2)}) @ g.mH, {2: m - 1})
        z = z.update(z.at({2: (m - 1, 2)}) @ g.mH, {2: m - 1})
        return t.update(below * 0.0, {1: m, 2: m - 1}), z

    t, z = w.repeat(0, n - 1, step, t, z)
    return t, z


def eigenvectors(w: Work, t: Arr, z: Arr, left: bool) -> Arr:
    """Right or left eigenvectors of z t z^H in columns, at length 1, their largest entry real; t is triangular."""
    batch, n = t.sizes[0], t.size(1)
    rows, columns = w.index(3, 1, n), w.index(3, 2, n)
    values = rows.equals(columns).where(t, 0.0).sum(1)
    least = (t.abs().max(1, 2) * PRECISION).maximum(SMALLEST / PRECISION)

    def step(turn: Arr, x: Arr) -> Arr:
        j = turn if left else (n - 1) - turn
        known = (t.at({2: (j, 1)}).mT if left else t.at({1: (j, 1)})) @ x
        divisor = t.at({1: (j, 1), 2: (j, 1)}) - values
        divisor = (divisor.abs() < least).where(least.to(t.dtype), divisor)
        found = -(known / divisor)
        row = columns.equals(j).where(1.0, (columns < j if left else columns > j).where(found, 0.0))
        x = rows.equals(j).where(row, x)
        size = x.abs().max(1)
        return (size > 1e100).where(x * 1e-100, x)

    (x,) = w.repeat(0, n, step, w.full(0, t.dtype, (batch, n, n)))
    vectors = z @ (x.conj() if left else x)
    length = vectors.norm(1)
    vectors = vectors / length.to(vectors.dtype)
    size = vectors.square()
    largest = (size >= size.max(1)).where(w.spread(rows, size.sizes), n).min(1)
    head = rows.equals(largest).where(vectors, 0.0).sum(1)
    turned = vectors * (head.conj() / head.abs().to(head.dtype))
    return rows.equals(largest).where(turned.real().to(turned.dtype), turned)


def pair_up(w: Work, vectors: Arr, imaginary: Arr) -> Arr:
    """Vectors of real matrices: real ones for real eigenvalues, conjugate ones for pairs."""
    batch, n = vectors.sizes[0], vectors.size(1)
    part = imaginary.reshape((batch, 1, n))
    before = w.concatenate(2, vectors.slice_axis(2, 0, 1), vectors.slice_axis(2, 0, n - 1)) if n > 1 else vectors
    vectors = (part < 0.0).where(before.conj(), vectors)
    return part.equals(0.0).where(vectors.real().to(vectors.dtype), vectors)
