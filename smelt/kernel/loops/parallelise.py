"""Loops → loops on cores and lanes: merges nested loops with a common stride, runs outer loops on cores and vectorises
leaf loops. Called by `fuse` for each kernel.

The order in which one element is computed never changes, so results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.dim import Size, product
from smelt.dtype import i64
from smelt.kernel.loops.grammar import (
    Affine,
    Amount,
    Apply,
    Bitcast,
    Convert,
    Declare,
    Expr,
    Fold,
    For,
    If,
    Let,
    Load,
    LoadLocal,
    Mma,
    Quotient,
    Remainder,
    Set,
    Stmt,
    Store,
    StoreLocal,
    Transpose,
    Var,
    While,
    add,
    rebuild,
    scale,
    walk_statements,
)


def parallelise(statements: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements of a kernel with outer loops on cores and leaf loops on lanes."""
    placed = (_on_cores(each) if isinstance(each, For) and each.level == "serial" else each for each in statements)
    return tuple(map(_on_lanes, placed))


def _on_lanes(statement: Stmt) -> Stmt:
    """The statement with every inner loop vectorised that only stores elements."""
    if not isinstance(statement, For | While | If):
        return statement
    found = rebuild(statement, lambda block: tuple(map(_on_lanes, block)))
    if isinstance(found, For) and found.level == "serial" and _only_stores(found.body):
        return replace(found, level="lane")
    return found


def _only_stores(statements: Sequence[Stmt]) -> bool:
    simple = all(isinstance(each, Let | Declare | Store | If | Set) for each in walk_statements(statements))
    return simple and any(isinstance(each, Store) for each in statements)


def _on_cores(loop: For) -> For:
    chain = [merge_loops(loop)]
    between: list[Stmt] = []  # names between the loops: repeated inside
    while (inner := _only_loop(chain[-1])) is not None:
        between += [each for each in chain[-1].body if each is not inner]
        chain.append(inner)
    last = chain[-1]
    leaf = not any(isinstance(each, For | While | Fold | Mma) for each in last.body)
    if leaf and len(chain) > 1:
        chain.pop()
        body: tuple[Stmt, ...] = (*between, replace(last, level="lane"))
    else:
        body = (*between, *last.body)
    if len(chain) == 1:
        return replace(chain[0], body=body, level="core", work=count_work(body))
    sizes = [each.extent.size for each in chain if isinstance(each.extent, Amount)]
    assert len(sizes) == len(chain), "loops whose extents depend on others are not merged"
    flat = Var(f"{chain[0].var.name}_", i64, product(sizes))
    lets: list[Stmt] = []
    rest: Expr = flat
    for i in reversed(range(1, len(chain))):
        lets.append(Let(chain[i].var, Remainder(rest, sizes[i])))
        if i > 1:
            name = Var(f"{chain[i].var.name}_", i64)
            lets.append(Let(name, Quotient(rest, sizes[i])))
            rest = name
        else:
            lets.append(Let(chain[0].var, Quotient(rest, sizes[i])))
    return For(flat, Amount(product(sizes)), (*lets, *body), "core", count_work(body))


def _only_loop(loop: For) -> For | None:
    """The one loop inside a loop, if it can be moved and only names precede it."""
    *names, last = loop.body or (None,)
    if isinstance(last, For) and _is_movable(last) and all(isinstance(each, Let) for each in names):
        return last
    return None


def _is_movable(loop: For) -> bool:
    return loop.level == "serial" and isinstance(loop.extent, Amount)


def count_work(statements: Sequence[Stmt]) -> Size:
    """An estimate of the elements that statements touch."""
    total: Size = 0
    for each in statements:
        match each:
            case For(_, Amount(size), body):
                total = total + size * count_work(body)
            case Fold(_, Amount(size), body):
                total = total + size * (count_work(body) + 1)
            case For(_, _, body) | While(_, _, body) | Fold(_, _, body):
                total = total + 64 * count_work(body)
            case Mma():
                size = each.extent.size if isinstance(each.extent, Amount) else 128
                taps = each.taps.size if isinstance(each.taps, Amount) else 1
                total = total + 16 * size * taps
            case If(_, then, otherwise):
                total = total + count_work(then) + count_work(otherwise)
            case Let() | Store() | Set() | StoreLocal():
                total = total + 1
            case Transpose(_, _, rows, columns):
                total = total + rows * columns // 4
    return total


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
            return merge_loops(replace(loop, body=(below,)))
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
        return replace(inner, var=var, extent=Amount(count), body=merge(inner.body))
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
        case Quotient(x, by) | Remainder(x, by):
            return type(expr)(_merge_index(x, outer, inner, size, var), by)
        case Load(buffer, index, dtype):
            return Load(buffer, _merge_index(index, outer, inner, size, var), dtype)
        case LoadLocal(array, index, dtype):
            return LoadLocal(array, _merge_index(index, outer, inner, size, var), dtype)
        case Apply(function, args, dtype, detail):
            return Apply(function, tuple(_merge_index(arg, outer, inner, size, var) for arg in args), dtype, detail)
        case Convert(x, dtype) | Bitcast(x, dtype):
            return type(expr)(_merge_index(x, outer, inner, size, var), dtype)
    return expr
