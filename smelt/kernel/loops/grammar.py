"""The loop IR of kernels, on one screen. `kernel.build` writes it, `loops.parallelise` schedules it, `kernel.emit`
prints it as source.

    Expr  := Var | Number | Amount | Affine | Quotient | Remainder | Load | Apply | Convert | Bitcast
    Stmt  := For | While | If | Let | Declare | Set | Store | Update | Tile | Transpose | Fold | Mma | BlockMma
             | RoundRow | Attend | Decode | Fail
    Level := "serial" (may be parallelised) | "ordered" | "core" (parallel over cores) | "lane" (vectorised)
             | "warp" (of a GPU: independent iterations on the warps of a block, else in order)
             | "vector" (of a GPU: adjacent elements of one thread, which it reads and writes together)
    Place := (buffer or tile, index)      Slice := (place, sizes, strides)

Index arithmetic is `i64`, and affine wherever possible: a sum of expressions times sizes. A size is a number or a
polynomial over the program's symbols, known when the program is called. A buffer is its position in the kernel's list,
a tile has a name. No text of a model gets in here.

Only printers (`loops.text`, `kernel.emit`) and cost estimates (`loops.cost`) match on statements. All else walks them
by `expressions`, `blocks`, `declared`, `places` and `rebuild` below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeAlias

from smelt.dim import Poly, Size, divide_exact
from smelt.dtype import DType, f32, i1, i64
from smelt.frozen import Frozen
from smelt.kernel.loops.form import Form

Level = Literal["serial", "ordered", "core", "lane", "warp", "vector"]
Space = Literal["device", "shared", "local"]  # on a CPU `local` is the stack of a core
Vector = Literal["none", "any", "whole", "masked"]
Atomic = Literal["add", "and", "or", "xor", "minimum", "maximum"]
SHORT, LANES = 64, 32  # of a `Fold`


class Var(Frozen):
    """A loop variable, a named value, or an accumulator. With an `extent` it is in [0, extent)."""

    name: str
    dtype: DType = i64
    extent: Size | None = None


class Number(Frozen):
    value: float | int | bool | complex
    dtype: DType = i64

    def __eq__(self, other: object) -> bool:
        """The same number, sign of zero included."""
        return isinstance(other, Number) and self.dtype == other.dtype and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((self.value, self.dtype))


class Amount(Frozen):
    """A size, as a value."""

    size: Size
    dtype: DType = i64


class Affine(Frozen):
    """The sum of `expression * size` over the terms, plus a size."""

    terms: tuple[tuple[Expr, Size], ...]
    constant: Size = 0
    dtype: DType = i64


class Quotient(Frozen):
    """x / size for x >= 0."""

    x: Expr
    size: Size
    dtype: DType = i64


class Remainder(Frozen):
    """x % size for x >= 0."""

    x: Expr
    size: Size
    dtype: DType = i64


class Place(Frozen):
    """An element of a buffer (a number) or of a tile (a name)."""

    array: int | str
    index: Expr


class Slice(Frozen):
    """A strided block of elements that begins at a place."""

    place: Place
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]


class Chunk(Frozen):
    """Number `number` of `count` equal chunks of some work."""

    number: Expr
    count: Expr


class Load(Frozen):
    place: Place
    dtype: DType


class Apply(Frozen):
    """A scalar function: the short name of a StableHLO or CHLO op, a comparison, or one that `kernel.math` adds."""

    function: str
    args: tuple[Expr, ...]
    dtype: DType
    detail: tuple[int, ...] = ()  # attributes, where the function has some


class Convert(Frozen):
    x: Expr
    dtype: DType


class Bitcast(Frozen):
    x: Expr
    dtype: DType


Expr: TypeAlias = Var | Number | Amount | Affine | Quotient | Remainder | Load | Apply | Convert | Bitcast


class Chunks(Frozen):
    """How a loop on cores is split: an iteration touches about `work` elements, a chunk at least `elements`. `polls`:
    every iteration checks for cancellation."""

    work: Size
    elements: int
    polls: bool


class For(Frozen):
    """`body` for var = 0 … extent - 1. On cores and lanes iterations are independent and run in any order.

    `parallelise` decides the rest: the `chunks` of a loop on cores, and how a loop is vectorised (`vector`): `any` way,
    in `whole` vectors, or with the last one `masked`.
    """

    var: Var
    extent: Expr
    body: tuple[Stmt, ...]
    level: Level = "serial"
    chunks: Chunks | None = None
    vector: Vector = "none"


class While(Frozen):
    """Repeat: run `head`; stop unless `condition`; run `body`."""

    head: tuple[Stmt, ...]
    condition: Expr
    body: tuple[Stmt, ...]


class If(Frozen):
    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


class Let(Frozen):
    """A name for a value that does not change."""

    var: Var
    value: Expr


class Declare(Frozen):
    """A variable that `Set` may change."""

    var: Var
    value: Expr


class Set(Frozen):
    var: Var
    value: Expr


class Store(Frozen):
    place: Place
    value: Expr


class Update(Frozen):
    """place = function(place, value) of integers of 32 or 64 bits, at once, on a GPU: iterations of a parallel loop may
    update the same element, in any order."""

    place: Place
    function: Atomic
    value: Expr


class Tile(Frozen):
    """An uninitialised array of a fixed count of elements."""

    name: str
    dtype: DType
    count: int
    space: Space = "local"


class Transpose(Frozen):
    """target[j, i] = source[i, j]: whole row-major tiles of f32."""

    target: Slice
    source: Slice


class Fold(Frozen):
    """total = function(total, value) over var = 0 … extent - 1, where `body` computes `value`.

    At most `SHORT` terms are reduced in order. Longer reductions keep one total per lane: lane l takes the terms l
    modulo `LANES`, then halves of the lanes are combined until one is left. So the order of operations depends on the
    extent alone. `start` is combined last. `parallelise` sets `lanes` to 1 where the extent is known to be short.
    """

    var: Var
    extent: Expr
    body: tuple[Stmt, ...]
    value: Expr
    total: Var
    function: str
    start: Expr
    lanes: int = LANES

    @property
    def accumulator(self) -> DType:
        """The type of the lanes: narrow floats are added up in f32."""
        dtype = self.total.dtype
        return f32 if dtype.is_float and dtype.bits < 32 else dtype


class Split(Frozen):
    """Part `number` of `count` parts of K, of tile number `tile` of `tiles`, on a GPU. `parts` and `done` are loads of
    the first elements of a buffer and of a tile: the last call adds up the parts there, and sets `done` to 1."""

    number: Expr
    count: Expr
    tile: Expr
    tiles: Expr
    parts: Expr
    done: Expr


class Mma(Frozen):
    """Micro-kernel call: acc[i, j] = sum over t and k of a[i, t, k] * b[t, k, j], in the order of (t, k).

    `acc` is [row, column] and `a` is [row, tap, k]. `b` is [k, column] with adjacent columns; the rows of the next tap
    follow. Several panels are [panel, row, column] and [panel, k, column], with the columns of the last. `form` says
    how elements are multiplied and added up. Where `accumulate` is not 0 the sum is added to `acc`.
    `prefetch`: the share of the rows of b after these that this call prefetches, or the place from which it prefetches
    as many adjacent elements as b has, for a later call; None: they are in the cache.
    On a GPU a call may take more steps than a K-block of the form, and the row stride of `a` may be a load of the first
    element of a tile: then row i begins as many elements after the place of `a` as element i of that tile says.
    There `a` may be [row, line of a window, tap, k]: then the second half of that tile says by bit t of its element i
    whether tap t of row i is there; others are zeros. With a `Split` to accumulate the call has a part of K.
    """

    acc: Slice
    a: Slice
    b: Slice
    form: Form
    accumulate: Expr | Split = Number(0)
    prefetch: Chunk | Place | None = None


class BlockMma(Frozen):
    """Micro-kernel call: acc[i, j] = row i times column j of a panel of block-quantised weights (`ir.block_ops`).

    `acc` is [row, column], 16 columns wide; on a GPU 32 or 128, and the third stride of `panel` is the distance of two
    panels.
    Rows are integers `q` [row, k], the `scale` of each run of them [row, run] and the `total` of each group
    [row, group]. `panel` is [block, byte]: records of a format (`ir.block_layout`).
    `aside` is run by one warp of a GPU while others multiply, after the launch in front: it is done when the sums are
    there.
    """

    acc: Slice
    q: Slice
    scale: Slice
    total: Slice
    panel: Slice
    format: str
    most: int = 0  # rows, at most: a GPU has code for few of them
    shares: int = 8  # of K, whose sums a GPU adds in order
    blocks: int = 0  # thread blocks of one chunk of rows; 0: not known
    held: int = 0  # rows that there is shared memory for: all, or one where it is alone; without `stages` for parts
    stages: int = 0  # chunks of each share in shared memory; 0: threads read the weights themselves
    ahead: int = 0  # chunks of K in shared memory, of a tile of many rows and columns; 0: the tile is smaller
    aside: tuple[Stmt, ...] = ()
    apart: Expr | None = None  # bytes from the panels of a tile to those of the other part of a pair (`build.pairs`)
    single: bool = False  # one row; warps of its block have roles: what follows in its kernel is run by one of them


class RoundRow(Frozen):
    """Micro-kernel call: rows of f32 in a tile rounded to 8 bits (`smelt.round_blocks`), on a GPU.

    A row has `runs` of 32 elements, of which `columns` are there. What is written begins at `q` (integers), `scale` (of
    each run) and `total` (of each `group`: the sum of its integers times -`zero`, or times the scale where that is 0).
    There are `rows`, at most `most`: a row is `pitch` elements after the one before, its integers are `step` after.
    """

    q: Place
    scale: Place
    total: Place
    row: Place
    runs: int
    group: int
    zero: int
    rows: Expr = Number(1)
    most: int = 1
    pitch: int = 0
    step: Expr = Number(0)
    columns: Expr | None = None  # None: all


class Attend(Frozen):
    """Micro-kernel call (FlashAttention): a block of queries with online softmax over tiles of keys, on a GPU.

    Query `row` of `rows` begins at `q`, key `key` of `keys` at `k` and its value at `v`, with `depth` and `values`
    adjacent elements. `masked` is the score of (`row`, `key`) after masks, from `score`, the product times `scale`.
    `kind` of the tile of keys that begins at `start`: 0 no query sees it, 1 no mask changes a score, 2 anything else.
    The sum of weighted values times `factor`, which depends on the `total` of the weights, is `element` (`row`,
    `column`); `put` stores it. With a `target` the elements of a row, as the type of the form, begin there instead.
    `raw`: masks change numbers to -inf alone, and read no memory. `adjacent`: not the elements of a key, but 64 keys
    are adjacent, from a multiple of 64 on, and `k` is the place of element `step`. Blocks compute what follows them.
    """

    form: Form
    types: tuple[DType, DType, DType]  # of q, k and v
    rows: Expr
    keys: Expr
    depth: int
    values: int
    block: int  # queries
    tile: int  # keys
    scale: Number
    row: Var
    key: Var
    at_row: tuple[Stmt, ...]
    q: Place
    at_key: tuple[Stmt, ...]
    k: Place
    v: Place
    score: Var
    mask: tuple[Stmt, ...]
    masked: Expr
    start: Var
    classify: tuple[Stmt, ...]
    kind: Expr
    total: Var
    normalise: tuple[Stmt, ...]
    factor: Expr
    column: Var
    element: Var
    put: tuple[Stmt, ...]
    target: Place | None
    raw: bool
    step: Var
    adjacent: bool = False


class Decode(Frozen):
    """Micro-kernel call (flash-decoding): a block of up to 8 queries over some chunks of keys, on a GPU.

    Chunks are `first` and each `stride` chunks after it, `count` of them. Element `step` of query `row` is `query`,
    times the scale. Key `key`, a multiple of 16, begins at `k`, its value at `v`, in bf16, with `depth` and `values`
    adjacent elements; the next 15 follow, `k_step` and `v_step` apart. `whole`: there is memory for all of them.
    `masked` is the score of (`row`, `key`) after masks, from `score`. `check`: 0 masks hide no chunk, 1 they are the
    same for all queries, 2 anything else. `adjacent`: not the elements of a key, but 16 keys are adjacent, and elements
    are `k_step` apart.

    `share` blocks, of which this one is `first`, combine the results of their chunks, `held` of them; a single one has
    none. `put` stores the weighted sum `element` of column `column` of query `row`, whose weights have the sum `total`;
    one of them is that of a score `sink`. With a `share` of 0 they do not: `put` stores those of each `chunk`, the sum
    of the weights as column -1, and the maximum as -2, which is -inf where no query sees the chunk; then there is
    nothing else.
    """

    rows: Expr
    most: int  # rows
    keys: Expr
    depth: int
    values: int
    first: Expr
    stride: Expr
    count: Expr
    row: Var
    step: Var
    at_query: tuple[Stmt, ...]
    query: Expr
    key: Var
    at_key: tuple[Stmt, ...]
    k: Place
    v: Place
    k_step: Expr
    v_step: Expr
    score: Var
    mask: tuple[Stmt, ...]
    masked: Expr
    check: int
    chunk: Var
    column: Var
    element: Var
    total: Var
    put: tuple[Stmt, ...]
    at_sink: tuple[Stmt, ...]
    sink: Expr
    whole: bool
    adjacent: bool = False
    share: int = 0
    held: int = 0


class Fail(Frozen):
    """Leave the program with a status; `values` go into the record."""

    status: int
    values: tuple[Expr, ...] = ()


Stmt: TypeAlias = (
    For
    | While
    | If
    | Let
    | Declare
    | Set
    | Store
    | Update
    | Tile
    | Transpose
    | Fold
    | Mma
    | BlockMma
    | RoundRow
    | Attend
    | Decode
    | Fail
)

TRUE = Number(True, i1)


def tile_slice(name: str, rows: int, columns: int) -> Slice:
    """A whole row-major tile."""
    return Slice(Place(name, Number(0)), (Number(rows), Number(columns)), (Number(columns), Number(1)))


# ---- index arithmetic ----


def affine(expr: Expr) -> Affine:
    match expr:
        case Affine():
            return expr
        case Number(value):
            return Affine((), int(value.real))
        case Amount(size):
            return Affine((), size)
    return Affine(((expr, 1),))


def add(*parts: Expr | Size) -> Expr:
    """A sum, terms collected."""
    terms: dict[Expr, Size] = {}
    constant: Size = 0
    for part in parts:
        each = affine(part) if not isinstance(part, Size) else Affine((), part)
        constant = constant + each.constant
        for atom, coefficient in each.terms:
            terms[atom] = terms.get(atom, 0) + coefficient
    return _affine(terms, constant)


def scale(x: Expr, factor: Size) -> Expr:
    form = affine(x)
    return _affine({atom: coefficient * factor for atom, coefficient in form.terms}, form.constant * factor)


def _affine(terms: dict[Expr, Size], constant: Size) -> Expr:
    for atom in [each for each in terms if isinstance(each, Remainder)]:
        whole = Quotient(atom.x, atom.size)
        if whole in terms and terms[whole] == terms[atom] * atom.size:  # x // n * n + x % n
            factor = terms.pop(atom)
            del terms[whole]
            return add(_affine(terms, constant), scale(atom.x, factor))
    kept = tuple((atom, coefficient) for atom, coefficient in terms.items() if coefficient != 0)
    if not kept:
        return Number(constant) if isinstance(constant, int) else Amount(constant)
    if constant == 0 and len(kept) == 1 and kept[0][1] == 1:
        return kept[0][0]
    return Affine(kept, constant)


def split(x: Expr, size: Size) -> tuple[Expr, Expr]:
    """(x // size, x % size) for 0 <= x, without a division where the terms show the answer."""
    if size == 1:
        return x, Number(0)
    form = affine(x)
    high: dict[Expr, Size] = {}
    low: dict[Expr, Size] = {}
    for atom, coefficient in form.terms:
        quotient = divide_exact(coefficient, size)
        if quotient is not None:
            high[atom] = quotient
        else:
            low[atom] = coefficient
    carried = divide_exact(form.constant, size)
    rest = _affine(low, 0 if carried is not None else form.constant)
    whole = _affine(high, 0 if carried is None else carried)
    if _is_below(rest, size):
        return whole, rest
    alone = not high and carried in (None, 0)  # then x is the rest, which is not negative
    for atom, coefficient in low.items():  # c * atom + less than c, where c divides the size
        parts = divide_exact(size, coefficient)
        others = _affine({each: factor for each, factor in low.items() if each != atom}, affine(rest).constant)
        if parts is not None and (alone or _extent(atom) is not None) and _is_below(others, coefficient):
            return add(whole, Quotient(atom, parts)), add(scale(Remainder(atom, parts), coefficient), others)
    if not alone and (reach := _reach(rest)) is not None and _sign(reach[0]) > 0:
        return add(whole, Quotient(rest, size)), Remainder(rest, size)
    return Quotient(x, size), Remainder(x, size)


def _is_below(x: Expr, size: Size) -> bool:
    """Whether 0 <= x < size for sure."""
    reach = _reach(x)
    return reach is not None and _sign(reach[0]) > 0 and _sign(size - reach[1]) > 0


def _reach(x: Expr) -> tuple[Size, Size] | None:
    """A lower bound and an upper one, exclusive, of an expression over variables with known extents."""
    form = affine(x)
    least: Size = form.constant
    most: Size = form.constant + 1
    for atom, coefficient in form.terms:
        extent, sign = _extent(atom), _sign(coefficient)
        if extent is None or not sign:
            return None
        if sign > 0:
            most = most + coefficient * (extent - 1)
        else:
            least = least + coefficient * (extent - 1)
    return least, most


def _sign(size: Size) -> int:
    """1 where a size is plainly not negative, -1 where it is plainly not positive, else 0."""
    terms = size.terms if isinstance(size, Poly) else (((), size),)
    if all(atom.nonneg for monomial, _ in terms for atom in monomial):
        if all(coefficient >= 0 for _, coefficient in terms):
            return 1
        if all(coefficient <= 0 for _, coefficient in terms):
            return -1
    return 0


def _extent(atom: Expr) -> Size | None:
    match atom:
        case Var(_, _, extent):
            return extent
        case Remainder(_, size):
            return size
    return None


def static_extent(extent: Expr | None) -> Size | None:
    """The size that an extent is, where the host can tell."""
    match extent:
        case Amount(size):
            return size
        case Number(value):
            return int(value.real)
    return None


# ---- traversal of expressions ----


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions."""
    match expr:
        case Affine(terms):
            return tuple(atom for atom, _ in terms)
        case Quotient(x) | Remainder(x) | Convert(x) | Bitcast(x):
            return (x,)
        case Load(place):
            return (place.index,)
        case Apply(_, args):
            return args
    return ()


def rebuild_expr(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The expression with its direct subexpressions replaced."""
    match expr:
        case Affine(terms, constant):
            return add(*(scale(change(atom), factor) for atom, factor in terms), constant)
        case Quotient(x) | Remainder(x) | Convert(x) | Bitcast(x):
            return expr.replace(x=change(x))
        case Load(place):
            return expr.replace(place=place.replace(index=change(place.index)))
        case Apply(_, args):
            return expr.replace(args=tuple(map(change, args)))
    return expr


def subexpressions(expr: Expr) -> Iterator[Expr]:
    """An expression and everything inside it."""
    stack = [expr]
    while stack:
        each = stack.pop()
        yield each
        stack += children(each)


def variables(expr: Expr) -> Iterator[Var]:
    """The variables in an expression."""
    return (each for each in subexpressions(expr) if isinstance(each, Var))


def loads(expr: Expr) -> Iterator[Load]:
    """The loads in an expression."""
    return (each for each in subexpressions(expr) if isinstance(each, Load))


def reads_memory(expr: Expr) -> bool:
    return any(True for _ in loads(expr))


# ---- traversal of statements ----

STATEMENTS = (
    *(For, While, If, Let, Declare, Set, Store, Update, Tile, Transpose, Fold),
    *(Mma, BlockMma, RoundRow, Attend, Decode, Fail),
)


def _fields(*types: str) -> dict[type, tuple[str, ...]]:
    """The fields of each statement that are of these types."""
    return {kind: tuple(name for name, hint in kind.__annotations__.items() if hint in types) for kind in STATEMENTS}


_BLOCKS, _VARS = _fields("tuple[Stmt, ...]"), _fields("Var")
_PLACES = _fields("Place", "Slice")
_EXPRS = _fields(
    "Expr", "Expr | Split", "Expr | None", "Place", "Slice", "Chunk | Place | None", "Place | None", "tuple[Expr, ...]"
)  # whatever holds expressions


def blocks(statement: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The blocks inside a statement."""
    return tuple(getattr(statement, name) for name in _BLOCKS[type(statement)])


def expressions(statement: Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement itself, and the variable that it sets."""
    found = tuple(each for name in _EXPRS[type(statement)] for each in _inside(getattr(statement, name)))
    return (statement.var, *found) if isinstance(statement, Set) else found


def _inside(held: Any) -> tuple[Expr, ...]:
    """The expressions of a field."""
    match held:
        case Place(_, index):
            return (index,)
        case Slice(place, sizes, strides):
            return (place.index, *sizes, *strides)
        case Chunk(number, count):
            return number, count
        case Split():
            return tuple(held.record().values())
        case None:
            return ()
        case tuple():
            return held
    return (held,)


def declared_variables(statement: Stmt) -> tuple[Var, ...]:
    """The variables that a statement declares."""
    return () if isinstance(statement, Set) else tuple(getattr(statement, name) for name in _VARS[type(statement)])


def places(statement: Stmt) -> Iterator[Place]:
    """Where a statement itself reads or writes, besides the loads in its expressions. The first one is written, but
    for `Attend` and `Decode`, which only read."""
    for name in _PLACES[type(statement)]:
        held = getattr(statement, name)
        yield held.place if isinstance(held, Slice) else held


def walk_statements(statements: Sequence[Stmt]) -> Iterator[Stmt]:
    """Every statement, each before those inside it."""
    for each in statements:
        yield each
        for block in blocks(each):
            yield from walk_statements(block)


def rebuild(
    statement: Stmt,
    block: Callable[[tuple[Stmt, ...]], tuple[Stmt, ...]],
    expr: Callable[[Expr], Expr] | None = None,
) -> Stmt:
    """The statement with its blocks, and its expressions if `expr` is given, replaced."""
    changed: dict[str, Any] = {name: block(getattr(statement, name)) for name in _BLOCKS[type(statement)]}
    if expr is not None:
        changed |= {name: _rebuild_field(getattr(statement, name), expr) for name in _EXPRS[type(statement)]}
    return statement.replace(**changed) if changed else statement


def _rebuild_field(held: Any, expr: Callable[[Expr], Expr]) -> Any:
    """A field with its expressions replaced."""
    match held:
        case Place(array, index):
            return Place(array, expr(index))
        case Slice(place, sizes, strides):
            return Slice(_rebuild_field(place, expr), tuple(map(expr, sizes)), tuple(map(expr, strides)))
        case Chunk(number, count):
            return Chunk(expr(number), expr(count))
        case Split():
            return Split(**{name: expr(each) for name, each in held.record().items()})
        case None:
            return None
        case tuple():
            return tuple(map(expr, held))
    return expr(held)


def used_variables(statements: Sequence[Stmt]) -> Iterator[Var]:
    """Every variable that statements read or set."""
    for statement in walk_statements(statements):
        for expr in expressions(statement):
            yield from variables(expr)


def used_tiles(statements: Sequence[Stmt]) -> list[str]:
    """The tiles that statements read or write."""
    found: dict[int | str, None] = {}
    for each in walk_statements(statements):
        found.update((place.array, None) for place in places(each))
        found.update((load.place.array, None) for expr in expressions(each) for load in loads(expr))
    return [array for array in found if isinstance(array, str)]


def stores_to(statements: Sequence[Stmt]) -> set[int | str]:
    """The arrays that statements write."""
    inside = (each for each in walk_statements(statements) if not isinstance(each, Attend | Decode))
    return {place.array for each in inside for place in islice(places(each), 1)}


def reads_from(statements: Sequence[Stmt]) -> set[int | str]:
    """The arrays that statements read."""
    found = {
        load.place.array for each in walk_statements(statements) for expr in expressions(each) for load in loads(expr)
    }
    for each in walk_statements(statements):
        if isinstance(each, Update | Mma | BlockMma | RoundRow | Transpose | Attend | Decode):
            found.update(place.array for place in places(each))
    return found
