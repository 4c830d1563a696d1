"""A kernel → launches on a grid of threads. The printers of SIMT languages call it; `parallelise` has placed the loops.

Each phase of a kernel is a launch. An iteration of its parallel loop runs on one thread, or on a group of threads (a
warp or a block) that splits loops on lanes, reductions and products; everything else runs redundantly in all threads of
the group, and one of them stores. Cheap statements before a loop are repeated by every thread. Others run in a separate
launch of one group, which saves their variables for later launches; a short map behind them joins that launch.

The order of operations never changes, so results are those of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from smelt.dim import Size
from smelt.dtype import DType, i64
from smelt.kernel.loops.grammar import (
    Amount,
    Attend,
    BlockMma,
    Declare,
    Decode,
    Expr,
    Fold,
    For,
    If,
    Let,
    Mma,
    Quotient,
    Remainder,
    Set,
    Stmt,
    Store,
    Tile,
    Transpose,
    Var,
    add,
    affine,
    declared_variables,
    expressions,
    loads,
    places,
    rebuild,
    scale,
    static_extent,
    used_tiles,
    used_variables,
    walk_statements,
)
from smelt.kernel.loops.rows import Row, find_row
from smelt.kernel.loops.tensor_tile import (
    FEW_TENSOR,
    TENSOR,
    attend_bytes,
    attend_threads,
    block_threads,
    decode_bytes,
    ring_bytes,
    shares_memory,
    tile_rows,
)
from smelt.kernel.plan.plan import Kernel

Group = Literal["thread", "warp", "block"]
WARP, THREADS = 32, 256
SHARED = 48 << 10  # bytes of a block's shared memory that every device has
MICRO_KERNEL = 15 << 10  # bytes of it that a micro-kernel of a block stages operands in
SHARED_BY_WARPS = SHARED // 8  # bytes of tiles: with more, too few warps have room
LONG = 1024  # iterations on lanes that are worth a block: fewer run on a warp, without barriers
MANY_ROWS = 1024  # iterations that keep a GPU busy with a warp each
VECTOR, MANY_ELEMENTS = 8, 1 << 20  # adjacent elements of 16 bits that a thread stores, in maps that have this many
MULTIPROCESSORS = 132  # of a large GPU: that many blocks have one each
ONE_BLOCK = 64 * THREADS  # iterations of a map that one block may run, after what is in front of it
SLOT = 16  # bytes of a saved variable: the largest element type
ALIGN = 16


@dataclass(frozen=True, slots=True)
class Saved:
    """What launches of one kernel leave for later ones, in device memory: variables and tiles with their offsets."""

    variables: tuple[tuple[Var, int], ...] = ()
    tiles: tuple[tuple[Tile, int], ...] = ()
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """One launch. Groups run `body` for each value of `var` below `extent`; without a variable one group runs it once.

    `before`: what every thread computes first. `saves`, `restores`: variables. `tiles`: offsets in a group's shared
    memory of `shared` bytes; `spilled`: those that do not fit, with offsets in its `scratch` bytes of device memory.
    """

    before: tuple[Stmt, ...]
    body: tuple[Stmt, ...]
    var: Var | None
    extent: Expr | None
    group: Group
    threads: int
    saves: tuple[tuple[Var, int], ...]
    restores: tuple[tuple[Var, int], ...]
    kept_tiles: tuple[tuple[Tile, int], ...]
    tiles: tuple[tuple[Tile, int], ...]
    spilled: tuple[tuple[Tile, int], ...]
    shared: int
    scratch: int
    ring: int = 0  # bytes at the beginning of shared memory for operands of tensor cores; 0: there are none
    row: Row | None = None  # that its block keeps in registers

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return {"thread": self.threads, "warp": self.threads // WARP, "block": 1}[self.group]


def map_to_grid(kernel: Kernel, room: int) -> tuple[tuple[Stage, ...], int]:
    """The launches of a kernel in order, and the bytes that they hand on; `room`: bytes of a block's shared memory."""
    parts = list(_parts(kernel))
    saved = _list_saved(parts)
    return tuple(_stage(part, saved, room) for part in parts), saved.bytes


@dataclass(frozen=True, slots=True)
class _Part:
    """A launch before its memory is decided. `repeated`: cheap statements of earlier phases that it may need."""

    repeated: tuple[Stmt, ...]
    before: tuple[Stmt, ...]
    loop: For | None


def _parts(kernel: Kernel) -> Iterator[_Part]:
    written = {place.array for each in walk_statements(kernel.body) for place in places(each)}
    repeated: list[Stmt] = []
    for phase in kernel.phases:
        if all(_is_cheap(each, written) for each in phase.before):
            repeated += phase.before
            if phase.loop is not None:
                yield _Part(tuple(repeated), (), phase.loop)
        else:
            short = None if phase.loop is None else _in_one_block(phase.loop)
            yield _Part(tuple(repeated), phase.before if short is None else (*phase.before, short), None)
            if phase.loop is not None and short is None:
                yield _Part(tuple(repeated), (), phase.loop)


def flatten_map(kernel: Kernel) -> tuple[tuple[Stmt, ...], Var, Expr] | None:
    """(body, variable, extent) of a kernel that is one loop of scalars, on a thread each; None where it is more."""
    (phase,) = kernel.phases
    written = {place.array for each in walk_statements(kernel.body) for place in places(each)}
    if phase.loop is None or not all(_is_cheap(each, written) for each in phase.before):
        return None
    body, var, extent = _flatten(phase.loop) or (phase.loop.body, phase.loop.var, phase.loop.extent)
    whole = (*phase.before, *body)
    inside = [each for each in walk_statements(whole) if not (isinstance(each, For) and each.level == "ordered")]
    scalars = all(isinstance(each, Let | Declare | Set | If | Store) for each in inside)
    return (whole, var, extent) if scalars else None


def _in_one_block(loop: For) -> For | None:
    """A short loop on cores with scalars inside as one on the lanes of a block, which saves a launch."""
    flat = _flatten(loop)
    body, var, extent = flat or (loop.body, loop.var, loop.extent)
    count = static_extent(extent)
    scalars = all(isinstance(each, Let | Store) for each in walk_statements(body))
    if not (scalars and isinstance(count, int) and count <= ONE_BLOCK):
        return None
    return loop.replace(var=var, extent=extent, body=body, level="lane")


def _is_cheap(statement: Stmt, written: set[int | str]) -> bool:
    """Whether every thread may compute it: scalars, from nothing that the kernel writes."""
    inside = [*walk_statements((statement,))]
    simple = all(isinstance(each, Let | Declare | Set | If) for each in inside)
    read = {load.place.array for each in inside for expr in expressions(each) for load in loads(expr)}
    return simple and not read & written


def _list_saved(parts: Sequence[_Part]) -> Saved:
    """The variables and tiles of statements in front of loops that later launches use."""
    variables: dict[Var, int] = {}
    tiles: dict[Tile, int] = {}
    size = 0
    for i, part in enumerate(parts):
        later = parts[i + 1 :]
        wanted = {var for each in later for var in used_variables(_statements(each))}
        for var in (var for each in part.before for var in declared_variables(each) if var in wanted):
            variables[var] = size
            size += SLOT
        lent = {name for each in later for name in used_tiles(_statements(each))}
        for tile in (each for each in part.before if isinstance(each, Tile) and each.name in lent):
            tiles[tile] = size
            size += _round_up(tile_bytes(tile))
    return Saved(tuple(variables.items()), tuple(tiles.items()), size)


def _statements(part: _Part) -> tuple[Stmt, ...]:
    return (*part.repeated, *part.before, *((part.loop,) if part.loop else ()))


def _stage(part: _Part, saved: Saved, room: int) -> Stage:
    own = {var for each in part.before for var in declared_variables(each)}
    body, var, extent, group = part.before, None, None, "warp"
    if part.loop is not None:
        body, var, extent, group = _place(part.loop)
    elif _has(body, Mma | BlockMma | Attend | Decode) or _has_long_loops(body) or _has_long_folds(body):
        group = "block"
    before = dependencies(part.repeated, body)
    used = {*used_variables((*before, *body)), *(each for each in _extent_variables(extent))}
    named = {*used_tiles(body)}
    kept = tuple((tile, at) for tile, at in saved.tiles if tile.name in named)
    outside = {tile for tile, _ in kept}
    found = [each for each in walk_statements(body) if isinstance(each, Tile) and each not in outside]
    forms = (*TENSOR, *FEW_TENSOR)
    products = [
        each
        for each in walk_statements(body)
        if isinstance(each, BlockMma) or (isinstance(each, Mma) and each.form in forms)
    ]
    ring, threads, scratch, row = 0, THREADS, 0, None
    tiles: tuple[tuple[Tile, int], ...] = ()
    spilled: tuple[tuple[Tile, int], ...] = ()
    flash = next((each for each in walk_statements(body) if isinstance(each, Attend)), None)
    decode = next((each for each in walk_statements(body) if isinstance(each, Decode)), None)
    if flash is not None:
        assert not found, "its block has no other tiles"
        threads = attend_threads(flash)
        ring = shared = attend_bytes(flash, room)
    elif decode is not None:
        beside = sum(_round_up(tile_bytes(tile)) for tile in dict.fromkeys(found))
        ring = shared = decode_bytes(decode, room, beside)
        for tile in dict.fromkeys(found):
            tiles = (*tiles, (tile, shared))
            shared += _round_up(tile_bytes(tile))
    elif products:
        ring, tiles, shared = _around(products, found, room, static_extent(extent))
        threads = max(block_threads(each) if isinstance(each, BlockMma) else THREADS for each in products)
    else:
        multiplies = _has(body, Mma | BlockMma | Transpose)
        threads, tiles, spilled, shared, scratch = _memory(group, found, multiplies)
        row = find_row(before, body, shared) if group == "block" and not multiplies else None
        threads = threads if row is None else row.threads
    return Stage(
        before,
        body,
        var,
        extent,
        group,  # type: ignore[arg-type]
        threads,
        tuple((each, at) for each, at in saved.variables if each in own),
        tuple((each, at) for each, at in saved.variables if each in used and each not in own),
        kept,
        tiles,
        spilled,
        shared,
        scratch,
        ring,
        row,
    )


def _extent_variables(extent: Expr | None) -> Iterator[Var]:
    return iter(()) if extent is None else used_variables((Let(Var(""), extent),))


def dependencies(statements: Sequence[Stmt], body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements that a body depends on."""
    wanted = {*used_variables(body)}
    kept: list[Stmt] = []
    for each in reversed(statements):
        assigned = {inner.var for inner in walk_statements((each,)) if isinstance(inner, Set)}
        names = assigned.union(declared_variables(each))
        if names & wanted:
            kept.append(each)
            wanted.update(used_variables((each,)))
    return tuple(reversed(kept))


def _place(loop: For) -> tuple[tuple[Stmt, ...], Var, Expr, Group]:
    """(body, variable, extent, group) of a loop on cores."""
    loop = _spread(loop)
    flat = _in_vectors(loop) or _flatten(loop)
    if flat is not None:
        return (*flat, "thread")
    rows = static_extent(loop.extent)
    few = not isinstance(rows, int) or rows < MANY_ROWS
    large = sum(tile_bytes(each) for each in walk_statements(loop.body) if isinstance(each, Tile)) > SHARED_BY_WARPS
    long = (few or large) and _has_long_loops(loop.body)
    if few and not long and _has_long_folds(loop.body):
        long = find_row((), loop.body, 0) is not None
    if long or _has(loop.body, Mma | BlockMma | Attend | Decode):
        return loop.body, loop.var, loop.extent, "block"
    shared = any(isinstance(each, Fold) and each.lanes > 1 for each in walk_statements(loop.body))
    shared = shared or any(isinstance(each, For) and each.level == "lane" for each in walk_statements(loop.body))
    return loop.body, loop.var, loop.extent, "warp" if shared or _has(loop.body, Transpose) else "thread"


def _spread(loop: For) -> For:
    """The loop with a loop on lanes inside it that needs a group of threads for each iteration (it has tiles) as one
    with it, where nothing but scalars stands beside it; else that loop runs in order."""
    *names, inner = loop.body or (None,)
    if isinstance(inner, For) and _needs_group(inner):
        scalars = all(isinstance(each, Let) for each in names)
        if scalars and isinstance(loop.extent, Amount) and isinstance(inner.extent, Amount):
            width, whole = inner.extent.size, loop.extent.size * inner.extent.size
            flat = Var(f"{inner.var.name}_spread", i64, whole)
            split = (Let(loop.var, Quotient(flat, width)), Let(inner.var, Remainder(flat, width)))
            return _spread(loop.replace(var=flat, extent=Amount(whole), body=(*split, *names, *inner.body)))
    return loop.replace(body=_in_order(loop.body))


def _needs_group(loop: For) -> bool:
    return loop.level == "lane" and _has(loop.body, Tile | Mma | BlockMma | Transpose)


def _in_order(block: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements in which no loop on lanes has tiles of its own: threads would share them."""
    changed = (rebuild(each, _in_order) for each in block)
    return tuple(
        each.replace(level="ordered") if isinstance(each, For) and _needs_group(each) else each for each in changed
    )


def _has_long_loops(statements: Sequence[Stmt]) -> bool:
    """Whether loops on lanes are long enough for all threads of a block."""
    inside = (each for each in walk_statements(statements) if isinstance(each, For) and each.level == "lane")
    extents = (static_extent(each.extent) for each in inside)
    return any(not isinstance(extent, int) or extent > LONG for extent in extents)


def _has_long_folds(statements: Sequence[Stmt]) -> bool:
    """The same for reductions of what is in memory."""
    folds = (each for each in walk_statements(statements) if isinstance(each, Fold) and each.lanes > 1)
    return any(isinstance(extent := static_extent(each.extent), int) and extent > LONG for each in folds)


def _flatten(loop: For) -> tuple[tuple[Stmt, ...], Var, Expr] | None:
    """A loop on lanes inside a loop on cores, with nothing but scalars beside it, as one loop."""
    *names, inner = loop.body or (None,)
    if not (isinstance(inner, For) and inner.level == "lane"):
        return None
    scalars = all(isinstance(each, Let | Declare | Set | If) for each in walk_statements(names))
    leaf = not any(isinstance(each, For | Fold | Tile | Attend | Decode) for each in walk_statements(inner.body))
    if not (scalars and leaf and isinstance(loop.extent, Amount) and isinstance(inner.extent, Amount)):
        return None
    width: Size = inner.extent.size
    flat = Var(f"{inner.var.name}_flat", i64, loop.extent.size * width)
    split = (Let(loop.var, Quotient(flat, width)), Let(inner.var, Remainder(flat, width)))
    return (*split, *names, *inner.body), flat, Amount(loop.extent.size * width)


def _in_vectors(loop: For) -> tuple[tuple[Stmt, ...], Var, Expr] | None:
    """The same for a map of many narrow elements, with adjacent ones on a thread: it stores 16 bytes at a time."""
    *names, inner = loop.body or (None,)
    if _flatten(loop) is None or not isinstance(inner, For):
        return None
    stores = [each for each in inner.body if isinstance(each, Store)]
    width, outer = static_extent(inner.extent), static_extent(loop.extent)
    narrow = all(each.value.dtype.bits == 16 and _follows(each, inner) for each in stores)
    if not (stores and narrow and isinstance(width, int) and isinstance(outer, int)):
        return None
    if width % VECTOR or width * outer < MANY_ELEMENTS:
        return None
    count = width // VECTOR
    flat = Var(f"{inner.var.name}_flat", i64, outer * count)
    part, at = Var(f"{inner.var.name}_part", i64, count), Var(f"{inner.var.name}_at", i64, VECTOR)
    split = (Let(loop.var, Quotient(flat, count)), Let(part, Remainder(flat, count)))
    body = (Let(inner.var, add(scale(part, VECTOR), at)), *inner.body)
    vector = inner.replace(var=at, extent=Amount(VECTOR), body=body, level="vector")
    return (*split, *names, vector), flat, Amount(outer * count)


def _follows(store: Store, loop: For) -> bool:
    """Whether a store of the next iteration is to the next element."""
    return dict(affine(store.place.index).terms).get(loop.var) == 1


def _has(statements: Sequence[Stmt], kind: type | object) -> bool:
    return any(isinstance(each, kind) for each in walk_statements(statements))  # type: ignore[arg-type]


def _memory(
    group: str, tiles: Sequence[Tile], multiplies: bool
) -> tuple[int, tuple[tuple[Tile, int], ...], tuple[tuple[Tile, int], ...], int, int]:
    """(threads of a block, tiles in shared memory, tiles in device memory, bytes of both for one group)."""
    if group == "thread":  # tiles are local arrays
        return THREADS, (), (), 0, 0
    placed: list[tuple[Tile, int]] = []
    spilled: list[tuple[Tile, int]] = []
    shared = scratch = 0
    room = SHARED - MICRO_KERNEL if multiplies else SHARED
    for tile in sorted(dict.fromkeys(tiles), key=tile_bytes):
        size = _round_up(tile_bytes(tile))
        if shared + size <= room:
            placed.append((tile, shared))
            shared += size
        else:
            spilled.append((tile, scratch))
            scratch += size
    if group == "block":
        return THREADS, tuple(placed), tuple(spilled), shared, scratch
    warps = 4
    while warps > 1 and warps * shared > SHARED:
        warps //= 2
    return WARP * warps, tuple(placed), tuple(spilled), shared, scratch


def _around(
    products: Sequence[Mma | BlockMma], tiles: Sequence[Tile], room: int, blocks: Size | None
) -> tuple[int, tuple[tuple[Tile, int], ...], int]:
    """(bytes of operands of tensor cores, tiles behind them, bytes of all). One product's sums share its memory."""
    sums = products[0].acc.place.array if len(products) == 1 and shares_memory(products[0]) else None
    beside = [tile for tile in dict.fromkeys(tiles) if tile.name != sums]
    left = room - sum(_round_up(tile_bytes(tile)) for tile in beside)
    heights = [tile_rows(each, tiles) if isinstance(each, Mma) and each.form in TENSOR else 0 for each in products]
    ring = max(ring_bytes(each, left, rows, blocks) for each, rows in zip(products, heights, strict=True))
    placed = [(tile, 0) for tile in dict.fromkeys(tiles) if tile.name == sums]
    at = max(ring, *(_round_up(tile_bytes(tile)) for tile, _ in placed)) if placed else ring
    for tile in beside:
        placed.append((tile, at))
        at += _round_up(tile_bytes(tile))
    assert at <= room, "more shared memory than a block has"
    return ring, tuple(placed), at


def tile_bytes(tile: Tile) -> int:
    return tile.count * _held_bytes(tile.dtype)


def _held_bytes(dtype: DType) -> int:
    """Bytes of a value in a register: narrow floats are held in f32."""
    if dtype.is_float and dtype.bits < 32:
        return 4
    return max(dtype.bits // 8, 1)


def _round_up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def has_multiprocessors(extent: Expr | None) -> bool:
    """Whether there is a multiprocessor for each block."""
    count = static_extent(extent)
    return isinstance(count, int) and count <= MULTIPROCESSORS
