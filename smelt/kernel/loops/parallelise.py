"""Loops → loops on cores and lanes: merges nested loops with a common stride, runs outer loops on cores, vectorises
leaf loops, and decides how each of them runs (`_annotate`). Called by `fuse` for each kernel.

The order in which one element is computed never changes, so results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dim import Size, product
from smelt.dtype import i64
from smelt.kernel.loops.cost import count_work
from smelt.kernel.loops.grammar import (
    SHORT,
    Affine,
    Amount,
    Attend,
    BlockMma,
    Chunks,
    Declare,
    Decode,
    Expr,
    Fold,
    For,
    If,
    Let,
    Mma,
    Number,
    Quotient,
    Remainder,
    RoundRow,
    Set,
    Stmt,
    Store,
    Tile,
    Var,
    Vector,
    While,
    add,
    places,
    rebuild,
    rebuild_expr,
    scale,
    walk_statements,
)

ELEMENTS_PER_CORE = 32768  # fewer elements are not worth another core;
ELEMENTS_OF_MAP = 65536  # of loops without a micro-kernel, which take less time each than bringing them there
TINY, LANES = 4, 16  # iterations of an innermost loop that is unrolled, so that the one around it is vectorised
ELEMENTS_PER_STOP_CHECK = 4096  # iterations that touch more check for cancellation


def parallelise(statements: Sequence[Stmt], *, unrolls: bool = True) -> tuple[Stmt, ...]:
    """The statements of a kernel with outer loops on cores and leaf loops on lanes. `unrolls`: a tiny loop is not the
    one on lanes."""

    def place(each: Stmt) -> Stmt:
        return _on_cores(each, unrolls) if isinstance(each, For) and each.level == "serial" else each

    placed = map(place, statements)
    return tuple(_annotate(_on_lanes(each)) for each in placed)


def _on_lanes(statement: Stmt) -> Stmt:
    """The statement with every inner loop vectorised that only stores elements."""
    if not isinstance(statement, For | While | If):
        return statement
    found = rebuild(statement, lambda block: tuple(map(_on_lanes, block)))
    if isinstance(found, For) and found.level == "serial" and _only_stores(found.body):
        return found.replace(level="lane")
    return found


def _only_stores(statements: Sequence[Stmt]) -> bool:
    inside = [*walk_statements(statements)]
    simple = all(isinstance(each, Let | Declare | Store | If | Set) for each in inside)
    into_tiles = any(isinstance(place.array, str) for each in inside for place in places(each))
    return simple and not into_tiles and any(isinstance(each, Store) for each in statements)


def _on_cores(loop: For, unrolls: bool) -> For:
    chain = [merge_loops(loop)]
    between: list[Stmt] = []  # names between the loops: repeated inside
    while (inner := _only_loop(chain[-1])) is not None:
        between += [each for each in chain[-1].body if each is not inner]
        chain.append(inner)
    last = chain[-1]
    body: tuple[Stmt, ...]
    if unrolls and len(chain) > 2 and _is_tiny(last) and (_static(chain[-2].extent) or 0) >= LANES:
        inner, last = chain.pop(), chain.pop()
        names = last.body[:-1]
        between = between[: len(between) - len(names)]
        body = (*between, last.replace(body=(*names, inner.replace(level="ordered")), level="lane"))
    elif len(chain) > 1 and _is_leaf(last.body):
        chain.pop()
        body = (*between, last.replace(level="lane"))
    else:
        body = (*between, *last.body)
    if len(chain) == 1:
        return _on_core(chain[0].var, chain[0].extent, (), body)
    sizes = [each.extent.size for each in chain if isinstance(each.extent, Amount)]
    assert len(sizes) == len(chain), "loops whose extents depend on others are not merged"
    flat = Var(f"{chain[0].var.name}_", i64, product(sizes))
    lets: list[Stmt] = []
    rest: Expr = flat
    for i in reversed(range(1, len(chain))):
        lets.append(Let(chain[i].var, Remainder(rest, sizes[i])))
        if i > 1:
            name = Var(f"{chain[i].var.name}_", i64, product(sizes[:i]))
            lets.append(Let(name, Quotient(rest, sizes[i])))
            rest = name
        else:
            lets.append(Let(chain[0].var, Quotient(rest, sizes[i])))
    return _on_core(flat, Amount(product(sizes)), lets, body)


def _on_core(var: Var, extent: Expr, names: Sequence[Stmt], body: tuple[Stmt, ...]) -> For:
    """A loop on cores. Its work is that of `body`; `names` split its variable."""
    work = count_work(body)
    leaf = _is_leaf(body)
    polls = not leaf and not (isinstance(work, int) and work < ELEMENTS_PER_STOP_CHECK)
    has_tiles = any(isinstance(each, Mma | BlockMma) for each in walk_statements(body))
    chunks = Chunks(work, ELEMENTS_PER_CORE if has_tiles else ELEMENTS_OF_MAP, polls)
    return For(var, extent, (*names, *body), "core", chunks, "any" if leaf else "none")


def _is_leaf(statements: Sequence[Stmt]) -> bool:
    """Whether iterations may be vectorised: no loop or micro-kernel is inside, and no tile, which all would share."""
    inner = For | While | Fold | Mma | BlockMma | RoundRow | Attend | Decode | Tile
    return not any(isinstance(each, inner) for each in walk_statements(statements))


def _is_tiny(loop: For) -> bool:
    return _is_leaf(loop.body) and (_static(loop.extent) or 0) in range(2, TINY + 1)


def _only_loop(loop: For) -> For | None:
    """The one loop inside a loop, if it can be moved and only names precede it."""
    *names, last = loop.body or (None,)
    if isinstance(last, For) and _is_movable(last) and all(isinstance(each, Let) for each in names):
        return last
    return None


def _is_movable(loop: For) -> bool:
    return loop.level == "serial" and isinstance(loop.extent, Amount)


# ---- how loops run ----


def _annotate(statement: Stmt) -> Stmt:
    """The statement with every loop on lanes and every reduction inside it decided."""
    found = rebuild(statement, lambda block: tuple(map(_annotate, block)))
    if isinstance(found, Fold) and _static(found.extent) in range(SHORT + 1):
        return found.replace(lanes=1)
    if isinstance(found, For) and found.level == "lane":
        return found.replace(vector=_vector(found.extent))
    return found


def _vector(extent: Expr) -> Vector:
    """A short loop with a partial vector is masked. Only a very short one may be unrolled completely, so that the loop
    around it is vectorised."""
    size = _static(extent)
    if size is None or not 8 <= size <= 64:
        return "any"
    return "masked" if size % 16 else "whole"


def _static(extent: Expr) -> int | None:
    """The number that an extent is known to be."""
    size = extent.size if isinstance(extent, Amount) else extent.value if isinstance(extent, Number) else None
    return size if isinstance(size, int) else None


# ---- merging ----


def merge_loops(loop: For) -> For:
    """Merge a loop with the only loop inside it where every index depends on `outer * inner extent + inner` alone."""
    while (
        len(loop.body) == 1
        and isinstance(inner := loop.body[0], For)
        and inner.level == "serial"
        and isinstance(loop.extent, Amount)
        and isinstance(inner.extent, Amount)
        and (one := _merge_pair(loop, inner)) is not None
    ):
        loop = one
    if len(loop.body) == 1 and isinstance(inner := loop.body[0], For) and inner.level == "serial":
        below = merge_loops(inner)
        if below is not inner:
            return merge_loops(loop.replace(body=(below,)))
    return loop


def _merge_pair(outer: For, inner: For) -> For | None:
    assert isinstance(outer.extent, Amount)
    assert isinstance(inner.extent, Amount)
    count, size = outer.extent.size * inner.extent.size, inner.extent.size
    var = Var(inner.var.name, i64, count)

    def merge(block: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(
            rebuild(each, merge, lambda expr: _merge_index(expr, outer.var, inner.var, size, var)) for each in block
        )

    try:
        return inner.replace(var=var, extent=Amount(count), body=merge(inner.body))
    except _NotMergeableError:
        return None


class _NotMergeableError(Exception):
    """The two loop variables are used separately."""


def _merge_index(expr: Expr, outer: Var, inner: Var, size: Size, var: Var) -> Expr:
    match expr:
        case Var():
            if expr in (outer, inner):
                raise _NotMergeableError
            return expr
        case Affine(terms, constant):
            both = dict(terms)
            a, b = both.pop(outer, 0), both.pop(inner, 0)
            if a != b * size:
                raise _NotMergeableError
            rest = [scale(_merge_index(atom, outer, inner, size, var), factor) for atom, factor in both.items()]
            return add(scale(var, b), *rest, constant)
    return rebuild_expr(expr, lambda each: _merge_index(each, outer, inner, size, var))
