"""The loop IR of kernels, on one screen. `kernel.build` writes it, `loops.parallelise` schedules it, `kernel.emit`
prints it as source.

    Expr  := Var | Number | Amount | Affine | Quotient | Remainder | Load | LoadLocal | Apply | Convert | Bitcast
    Stmt  := For | While | If | Let | Declare | Set | Store | Local | StoreLocal | Transpose | Fold | Mma | Fail
    Level := "serial" (may be parallelised) | "ordered" | "core" (parallel over cores) | "lane" (vectorised)

Index arithmetic is `i64`, and affine wherever possible: a sum of expressions times sizes. A size is a number or a
polynomial over the program's symbols, known when the program is called. A buffer is its position in the kernel's list.
No text of a model gets in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

from smelt.dim import Poly, Size, divide_exact
from smelt.dtype import DType, i1, i64

Level = Literal["serial", "ordered", "core", "lane"]


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable, a named value, or an accumulator. With an `extent` it is in [0, extent)."""

    name: str
    dtype: DType = i64
    extent: Size | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    value: float | int | bool | complex
    dtype: DType = i64

    def __eq__(self, other: object) -> bool:
        """The same number, sign of zero included."""
        return isinstance(other, Number) and self.dtype == other.dtype and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((self.value, self.dtype))


@dataclass(frozen=True, slots=True)
class Amount:
    """A size, as a value."""

    size: Size
    dtype: DType = i64


@dataclass(frozen=True, slots=True)
class Affine:
    """The sum of `expression * size` over the terms, plus a size."""

    terms: tuple[tuple[Expr, Size], ...]
    constant: Size = 0
    dtype: DType = i64


@dataclass(frozen=True, slots=True)
class Quotient:
    """x / size for x >= 0."""

    x: Expr
    size: Size
    dtype: DType = i64


@dataclass(frozen=True, slots=True)
class Remainder:
    """x % size for x >= 0."""

    x: Expr
    size: Size
    dtype: DType = i64


@dataclass(frozen=True, slots=True)
class Load:
    buffer: int
    index: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class LoadLocal:
    """An element of a local array."""

    array: str
    index: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar function: the short name of a StableHLO or CHLO op, a comparison, or one that `kernel.math` adds."""

    function: str
    args: tuple[Expr, ...]
    dtype: DType
    detail: tuple[int, ...] = ()  # attributes, where the function has some


@dataclass(frozen=True, slots=True)
class Convert:
    x: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Bitcast:
    x: Expr
    dtype: DType


Expr: TypeAlias = Var | Number | Amount | Affine | Quotient | Remainder | Load | LoadLocal | Apply | Convert | Bitcast


@dataclass(frozen=True, slots=True)
class For:
    """`body` for var = 0 … extent - 1. On cores and lanes iterations are independent and run in any order."""

    var: Var
    extent: Expr
    body: tuple[Stmt, ...]
    level: Level = "serial"
    work: Size = 1  # core: estimated elements per iteration


@dataclass(frozen=True, slots=True)
class While:
    """Repeat: run `head`; stop unless `condition`; run `body`."""

    head: tuple[Stmt, ...]
    condition: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class If:
    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class Let:
    """A name for a value that does not change."""

    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Declare:
    """A variable that `Set` may change."""

    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Set:
    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Store:
    buffer: int
    index: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Local:
    """A small uninitialised local array of a fixed count."""

    name: str
    dtype: DType
    count: int


@dataclass(frozen=True, slots=True)
class StoreLocal:
    """Store an element of a local array."""

    array: str
    index: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Transpose:
    """target[j, i] = source[i, j] for i < rows and j < columns: row-major local arrays of f32."""

    target: str
    source: str
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Fold:
    """total = function(total, value) over var = 0 … extent - 1, where `body` computes `value`.

    At most `SHORT` terms are reduced in order. Longer reductions keep one total per lane: lane l takes the terms l
    modulo `LANES`, then halves of the lanes are combined until one is left. So the order of operations depends on the
    extent alone. `start` is combined last.
    """

    var: Var
    extent: Expr
    body: tuple[Stmt, ...]
    value: Expr
    total: Var
    function: str
    start: Expr


@dataclass(frozen=True, slots=True)
class Mma:
    """Micro-kernel call: tile[i, j] = sum over k < extent of a[i, k] * b[k, j], in the order of k, for i < rows and all
    columns.

    `tile` is a row-major local array of f32, from `tile_offset` on; where `accumulate` is not 0 the sum is added to it.
    a[i, k] is at `a_index + i * a_row_stride + k * a_stride` of its buffer, or of the local array that `a` names. Row k
    of b begins at `b_index + k * b_stride`; its columns are contiguous. With `taps` the sum is over t < taps and
    k < extent: a advances by `a_tap_stride` per tap, the rows of b continue. `tiles` calls use the same rows of b. This
    is number `prefetch` of them, and each prefetches another part of the next rows. `columns`: how many are needed,
    or 0 for all.

    `k_pack`: steps of K that are adjacent in each column of b, in lines `b_stride` apart; a tap begins a line, and the
    steps of a are adjacent too. 2: a and b are bf16. 4: a is ui8, b is i8, the tile is i32 (VNNI).
    """

    tile: str
    rows: Expr
    a: int | str
    a_index: Expr
    a_row_stride: Expr
    a_stride: Expr
    b: int | str
    b_index: Expr
    b_stride: Expr
    extent: Expr
    tile_offset: Expr = Number(0)
    taps: Expr = Number(1)
    a_tap_stride: Expr = Number(0)
    accumulate: Expr = Number(0)
    prefetch: Expr = Number(0)
    tiles: Expr = Number(1)
    columns: Expr = Number(0)
    k_pack: int = 1


@dataclass(frozen=True, slots=True)
class Fail:
    """Leave the program with a status; `values` go into the record."""

    status: int
    values: tuple[Expr, ...] = ()


Stmt: TypeAlias = For | While | If | Let | Declare | Set | Store | Local | StoreLocal | Transpose | Fold | Mma | Fail

SHORT, LANES = 64, 32
TRUE, FALSE = Number(True, i1), Number(False, i1)


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


# ---- traversal ----


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions."""
    match expr:
        case Affine(terms):
            return tuple(atom for atom, _ in terms)
        case Quotient(x) | Remainder(x) | Convert(x) | Bitcast(x):
            return (x,)
        case Load(_, index) | LoadLocal(_, index):
            return (index,)
        case Apply(_, args):
            return args
    return ()


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
    """The loads from buffers in an expression."""
    return (each for each in subexpressions(expr) if isinstance(each, Load))


def reads_memory(expr: Expr) -> bool:
    return any(isinstance(each, Load | LoadLocal) for each in subexpressions(expr))


STATEMENTS = (For, While, If, Let, Declare, Set, Store, Local, StoreLocal, Transpose, Fold, Mma, Fail)
# The fields of each statement that hold an expression, and a block.
_EXPRS = {kind: tuple(each.name for each in fields(kind) if each.type == "Expr") for kind in STATEMENTS}
_BLOCKS = {kind: tuple(each.name for each in fields(kind) if each.type == "tuple[Stmt, ...]") for kind in STATEMENTS}


def expressions(statement: Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement itself, and the variable that it sets."""
    if isinstance(statement, Fail):
        return statement.values
    found = tuple(getattr(statement, name) for name in _EXPRS[type(statement)])
    return (statement.var, *found) if isinstance(statement, Set) else found


def walk_statements(statements: Sequence[Stmt]) -> Iterator[Stmt]:
    """Every statement, each before those inside it."""
    for each in statements:
        yield each
        for name in _BLOCKS[type(each)]:
            yield from walk_statements(getattr(each, name))


def rebuild(
    statement: Stmt,
    block: Callable[[tuple[Stmt, ...]], tuple[Stmt, ...]],
    expr: Callable[[Expr], Expr] = lambda each: each,
) -> Stmt:
    """The statement with its blocks and expressions replaced."""
    if isinstance(statement, Fail):
        return Fail(statement.status, tuple(map(expr, statement.values)))
    changed: dict[str, Any] = {name: expr(getattr(statement, name)) for name in _EXPRS[type(statement)]}
    changed |= {name: block(getattr(statement, name)) for name in _BLOCKS[type(statement)]}
    return replace(statement, **changed)


def used_variables(statements: Sequence[Stmt]) -> Iterator[Var]:
    """Every variable that statements read or set."""
    for statement in walk_statements(statements):
        for expr in expressions(statement):
            yield from variables(expr)
