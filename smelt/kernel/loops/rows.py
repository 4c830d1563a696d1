"""Rows that a block of a GPU keeps in registers: reductions of a row, and the maps of the same row around them.

`loops.simt` calls `find_row` for the launches of blocks. A thread holds the same vectors of adjacent elements in all of
these loops (norms, softmax), so it reads each element once, before the first reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from smelt.dtype import DType, f32, i64
from smelt.kernel.loops.adjacent import find_definitions, first_place
from smelt.kernel.loops.grammar import (
    Amount,
    Expr,
    Fold,
    For,
    Let,
    Load,
    Place,
    Stmt,
    Store,
    Tile,
    Transpose,
    Var,
    While,
    add,
    declared_variables,
    expressions,
    loads,
    reads_from,
    scale,
    static_extent,
    stores_to,
    variables,
    walk_statements,
)

WIDTH = 4  # elements of a vector: 16 bytes of f32, which threads write to shared memory without bank conflicts
SHORTEST, LONGEST = 512, 32 << 10  # elements of a row
THREADS, MOST_THREADS, TURNS = 512, 1024, 4  # of a block; vectors of a thread that are worth more threads
WARP = 32
TERMS = 32 << 10  # bytes of shared memory for the terms of a reduction
ROOM = 47 << 10  # bytes that they and the tiles of the block may have
HELD = 128  # bytes that a thread holds
CODE = 640  # statements of a thread, its loops being unrolled
ROW, VECTOR, AT = "smelt_row", Var("smelt_vector_at", i64), Var("smelt_at", i64, WIDTH)  # terms; vector; element of it


@dataclass(frozen=True, slots=True)
class Row:
    """How a block runs its loops over a row of `extent` elements: thread t has the vectors t, t + threads, ….

    `loops`: each reduction or map with its loop over the elements of a vector, number `VECTOR` of the row; that of a
    reduction stores the terms to the tile `ROW`, which has room for `chunk` vectors of each thread. `held`: the vectors
    that a thread reads before the first loop. `lent`: a tile that is written later, whose memory the terms may have.
    """

    extent: int
    threads: int
    chunk: int
    loops: tuple[tuple[Stmt, For], ...]
    held: tuple[tuple[Place, DType], ...]
    lent: str = ""

    @property
    def vectors(self) -> int:
        return self.extent // WIDTH

    @property
    def turns(self) -> int:
        """Vectors of a thread."""
        return -(-self.vectors // self.threads)

    @property
    def term_bytes(self) -> int:
        """Bytes of shared memory for terms."""
        return self.chunk * self.threads * WIDTH * _term_size([each for each, _ in self.loops])


def find_row(before: Sequence[Stmt], body: Sequence[Stmt], shared: int) -> Row | None:
    """The row of a block that has `shared` bytes of tiles; None: there is none, or too much of it."""
    folds = [each for each in body if isinstance(each, Fold) and each.lanes > 1]
    extent = static_extent(folds[0].extent) if folds else None
    if not isinstance(extent, int) or not SHORTEST <= extent <= LONGEST or extent % WIDTH:
        return None
    inside = [*walk_statements(body)]
    others = [each for each in inside if isinstance(each, Fold) and each.lanes > 1 and each not in folds]
    by_warps = any(isinstance(each, Transpose | While) or getattr(each, "level", "") == "warp" for each in inside)
    if by_warps or any(isinstance(array, int) for array in reads_from(others)):
        return None
    turns = -(-extent // WIDTH // THREADS)
    turns = turns if turns <= TURNS else -(-extent // WIDTH // MOST_THREADS)
    threads = -(-extent // WIDTH // turns // WARP) * WARP
    loops, held = _hold(body, extent, turns, find_definitions((*before, *body)))
    if not all(fold in loops and not fold.accumulator.is_complex for fold in folds):
        return None
    lent = _find_lent(body, extent * _term_size(folds))
    room = min(TERMS, ROOM - shared) // (threads * WIDTH * _term_size(folds))
    chunk = turns if lent else min(turns, room)
    if chunk < 1 or sum(len(loop.body) for loop in loops.values()) * turns * WIDTH > CODE:
        return None
    return Row(extent, threads, chunk, tuple(loops.items()), held, lent)


def _find_lent(body: Sequence[Stmt], size: int) -> str:
    """A tile of at least these bytes that is not used before the last reduction; "": there is none."""
    last = max(i for i, each in enumerate(body) if isinstance(each, Fold))
    early = reads_from(body[: last + 1]) | stores_to(body[: last + 1])
    found = (each for each in body if isinstance(each, Tile) and each.name not in early)
    return next((each.name for each in found if each.dtype == f32 and 4 * each.count >= size), "")


def _term_size(loops: Sequence[Stmt]) -> int:
    """Bytes of the largest term of reductions, in a register."""
    return max(4, *(each.accumulator.numpy.itemsize for each in loops if isinstance(each, Fold)))


def _hold(
    body: Sequence[Stmt], extent: int, turns: int, definitions: Mapping[Var, Expr]
) -> tuple[dict[Stmt, For], tuple[tuple[Place, DType], ...]]:
    """(the loops over the row whose vectors are known before the first of them, as far as there are registers; these
    vectors)."""
    loops: dict[Stmt, For] = {}
    held: dict[tuple[Place, DType], int] = {}
    late: set[Var] = set()  # what the first loop and those after it compute
    written: set[int | str] = set()
    for each in body:
        loop = _over_vectors(each, extent, definitions)
        if loop is not None:
            read = dict.fromkeys(_vector_loads(loop, definitions))
            known = all(place.array not in written and late.isdisjoint(variables(place.index)) for place, _ in read)
            sizes = held | {(place, dtype): turns * WIDTH * dtype.numpy.itemsize for place, dtype in read}
            if known and sum(sizes.values()) <= HELD:
                loops[each], held = loop, sizes
        if loops:
            late.update(declared_variables(each))
            written |= stores_to((each,))
    return loops, tuple(held)


def _over_vectors(statement: Stmt, extent: int, definitions: Mapping[Var, Expr]) -> For | None:
    """The loop of a reduction or a map over the elements of a vector, if all that it reads and writes is adjacent."""
    if not isinstance(statement, Fold | For) or static_extent(statement.extent) != extent:
        return None
    element = add(scale(VECTOR, WIDTH), AT)
    body = statement.body
    if isinstance(statement, Fold):
        body = (*body, Store(Place(ROW, element), statement.value))
    elif statement.level != "lane":
        return None
    loop = For(AT, Amount(WIDTH), (Let(statement.var, element), *body), "vector")
    moving = {AT}  # what differs between the elements of a vector
    for each in loop.body:
        if not isinstance(each, Let | Store):
            return None
        if isinstance(each, Let) and any(var in moving for expr in expressions(each) for var in variables(expr)):
            moving.add(each.var)
        if isinstance(each, Store) and isinstance(each.place.array, int):
            if first_place(each.place, loop, definitions, each.value.dtype) is None:
                return None
        whole = isinstance(each, Let) and isinstance(each.value, Load)
        for load in (load for expr in expressions(each) for load in loads(expr)):
            moves = isinstance(load.place.array, int) and any(var in moving for var in variables(load.place.index))
            if moves and not (whole and first_place(load.place, loop, definitions, load.dtype) is not None):
                return None
    return loop


def _vector_loads(loop: For, definitions: Mapping[Var, Expr]) -> Iterator[tuple[Place, DType]]:
    """The first element of each vector that a loop reads from a buffer."""
    for each in loop.body:
        if isinstance(each, Let) and isinstance(each.value, Load) and isinstance(each.value.place.array, int):
            begin = first_place(each.value.place, loop, definitions, each.value.dtype)
            if begin is not None:
                yield begin, each.value.dtype
