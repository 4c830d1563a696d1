"""FlashAttention on a GPU's tensor cores: a thread block holds a tile of queries and loops over the tiles of keys.

Queries, keys and values in bf16 or f32 are read in place if rows are aligned, otherwise from a copy. Softmax weights
are rounded to bf16 if operands and result are bf16; f32 operands are split into three bf16 values. The statement
`Attend` is the whole block: masks and the epilogue are its inner blocks. Fully masked tiles are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from smelt.dim import Size, ceildiv, mod, product
from smelt.dtype import DType, bf16, f32, i64
from smelt.frozen import Frozen
from smelt.ir.layouts import letters
from smelt.kernel.build.attention_shape import At, Attention
from smelt.kernel.build.gemm import find_strides
from smelt.kernel.build.mask_tiles import Bounds, kind_of_tile
from smelt.kernel.build.sinks import Output
from smelt.kernel.loops.form import FLASH_BF16, FLASH_F32, Form
from smelt.kernel.loops.grammar import (
    Amount,
    Attend,
    Convert,
    Expr,
    Let,
    Number,
    Place,
    Stmt,
    Store,
    Var,
    add,
    affine,
    expressions,
    reads_memory,
    scale,
    variables,
)
from smelt.kernel.loops.nest import Nest, Scope, flat, tensor
from smelt.kernel.loops.tensor_tile import FLASH_DEEPEST, FlashTile
from smelt.shape import Shape

CHUNK_BITS = 128  # that are copied at a time
STEP = 16  # elements of a row that an instruction takes
HELD = 32 << 20  # bytes of keys and values that the cache of a GPU holds


def fits_flash(nest: Nest, attn: Attention) -> bool:
    """Whether the micro-kernel computes this attention."""
    named = attn.axes.depth and attn.axes.value and attn.axes.key
    if not named or not 2.0**-40 < attn.numbers.scale < 2.0**40:
        return False
    return _tile(nest, attn) is not None


def build_flash(nest: Nest, attn: Attention, here: Size, output: Output) -> None:
    """`here`: 1, or 0 if other loops have the work at run time."""
    tile = _tile(nest, attn)
    assert tile is not None, "`fits_flash` has asked for it"
    operands = [FlashOperand.of(nest, attn, operand, here) for operand in range(3)]
    blocks = ceildiv(attn.queries, tile.rows)
    masked, outer = bool(attn.numbers.roles[3:]), _heads_in_turn(nest, attn)
    extents = (*attn.heads[:outer], blocks * here, *attn.heads[outer:]) if masked else (*attn.heads, blocks * here)
    with nest.loops(extents) as index:
        number = index[outer if masked else -1]
        at = dict(zip(attn.axes.batch, (each for each in index if each is not number), strict=True))
        last_first = add(blocks - 1, scale(number, -1)) if masked else number
        first = nest.let(scale(last_first, tile.rows))
        _emit_block(nest, attn, tile, operands, at, first, output)


def _heads_in_turn(nest: Nest, attn: Attention) -> int:
    """The number of axes of heads whose loops are around that of the blocks of queries.

    Masks are often causal: the longest blocks of all heads begin first, so that multiprocessors finish together. The
    keys and values of these heads should stay in the cache of the device."""
    axes, sizes = attn.axes, attn.heads
    row = sum(tensor(attn.op.operands[i]).element.bits // 8 * each for i, each in ((1, attn.depth), (2, attn.values)))
    for outer in range(len(sizes)):
        held = product(sizes[outer:]) * axes.size(axes.key) * row
        if isinstance(held, int) and held <= HELD:
            return outer
    return max(len(sizes) - 1, 0)


def _types(attn: Attention) -> tuple[DType, DType, DType]:
    """The types of queries, keys and values for the micro-kernel."""
    q, k, v = (bf16 if tensor(value).element == bf16 else f32 for value in attn.op.operands[:3])
    return q, k, v


def _form(attn: Attention) -> Form:
    """Weights are rounded as results are."""
    types = {tensor(value).element for value in (*attn.op.operands[:3], attn.op.result)}
    return FLASH_BF16 if types == {bf16} else FLASH_F32


def _tile(nest: Nest, attn: Attention) -> FlashTile | None:
    """The tile for this attention; None where there is none."""
    deep, wide, room = _pad(attn.depth), _pad(attn.values), nest.target.cache_bytes[0]
    if max(deep, wide) > FLASH_DEEPEST:
        return None
    sizes = attn.queries, attn.axes.size(attn.axes.key)
    return FlashTile.of(deep, wide, _types(attn), _form(attn), room, *sizes, hides=-inf in attn.numbers.fill)


def _pad(size: int) -> int:
    """The next multiple of what an instruction takes."""
    return -(-size // STEP) * STEP


class FlashOperand(Frozen):
    """Queries, keys or values: in place, or copied to rows that are whole chunks. `letters`: the axes of the copy."""

    attn: Attention
    operand: int
    buffer: int
    strides: dict[str, Size]  # by letter
    start: Size

    @staticmethod
    def of(nest: Nest, attn: Attention, operand: int, here: Size) -> FlashOperand:
        return FlashOperand._in_place(nest, attn, operand) or FlashOperand._copy(nest, attn, operand, here)

    @staticmethod
    def _in_place(nest: Nest, attn: Attention, operand: int) -> FlashOperand | None:
        axes, value = attn.axes, attn.op.operands[operand]
        inner = axes.value if operand == 2 else axes.depth
        found, kind = find_strides(nest, value), _types(attn)[operand]
        if found is None or axes.size(inner) % STEP or tensor(value).element != kind:
            return None
        buffer, form, names = found
        steps = dict(form.terms)
        strides: dict[str, Size] = {}
        for axis, name in zip(axes.words[operand], names, strict=True):
            step = steps.get(name, 0)
            for letter in reversed(axis):
                strides[letter] = step
                step = step * axes.sizes[letter]
        outer = [stride for letter, stride in strides.items() if letter != inner]
        if strides[inner] != 1 or any(mod(each, CHUNK_BITS // kind.bits) != 0 for each in (form.constant, *outer)):
            return None
        return FlashOperand(attn, operand, buffer, strides, form.constant)

    @staticmethod
    def _copy(nest: Nest, attn: Attention, operand: int, here: Size) -> FlashOperand:
        axes, kind = attn.axes, _types(attn)[operand]
        inner = axes.value if operand == 2 else axes.depth
        deep = attn.values if operand == 2 else attn.depth
        held = [letter for letter in letters(axes.words[operand]) if letter != inner]
        sizes = [axes.sizes[letter] for letter in held]
        buffer = nest.scratch(Shape(str(kind), *sizes, _pad(deep)))
        extents = [*sizes[:-1], sizes[-1] * here] if sizes else [here]
        with nest.loops(extents) as index:
            at = dict(zip(held, index, strict=False))
            with nest.loop(deep, "lane") as d:
                element = nest.convert(attn.element(nest, operand, {**at, inner: d}), kind)
                nest.store(buffer, flat((*index[: len(held)], d), (*sizes, _pad(deep))), element)
            if deep % STEP:
                with nest.loop(_pad(deep) - deep, "lane") as d:
                    place = flat((*index[: len(held)], add(d, deep)), (*sizes, _pad(deep)))
                    nest.store(buffer, place, Number(0.0, kind))
        strides: dict[str, Size] = {}
        step: Size = _pad(deep)
        for letter in reversed(held):
            strides[letter] = step
            step = step * axes.sizes[letter]
        return FlashOperand(attn, operand, nest.buffer(buffer), {**strides, inner: 1}, 0)

    def place(self, at: At) -> Place:
        """The first element of a row."""
        parts = (scale(at[letter], stride) for letter, stride in self.strides.items() if letter in at)
        return Place(self.buffer, add(*parts, self.start))


def _emit_block(
    nest: Nest, attn: Attention, tile: FlashTile, operands: list[FlashOperand], at: At, first: Expr, output: Output
) -> None:
    axes = attn.axes
    deep, wide = _pad(attn.depth), _pad(attn.values)
    row, key, start, column = (nest.var(i64, None, stem) for stem in ("row", "key", "start", "column"))
    score, total, element = (nest.var(f32, None, stem) for stem in ("score", "total", "element"))
    rows, keys = attn.clip(nest, tile.rows, attn.queries, first), axes.size(axes.key)

    def query(place: Expr) -> dict[str, Expr]:
        return attn.apart(nest.let(add(first, place)))

    with inside(nest, row) as at_row:
        q = operands[0].place({**at, **query(row)})
    with inside(nest, key) as at_key:
        k, v = (each.place({**at, axes.key: key}) for each in operands[1:])
    with inside(nest, row, key, score) as mask:
        masked = attn.mask(nest, attn.cap(nest, score), {**at, **query(row), axes.key: key})
    with inside(nest, start) as classify:
        last = nest.let(add(start, tile.keys - 1))
        if not isinstance(keys, int) or keys % tile.keys:
            last = nest.apply("minimum", last, Amount(keys - 1), dtype=i64)
        ranges: dict[Var, Bounds] = {row: (Number(0), nest.let(add(rows, -1))), key: (start, last)}
        kind = kind_of_tile(nest, attn, lambda: {**at, **query(row), axes.key: key}, ranges)
    with inside(nest, total) as normalise:
        factor = attn.quotient(nest, Number(1.0, f32), total)
    with inside(nest, row, column, element) as putting:
        place = {**at, **query(row), axes.value: column}
        if wide == attn.values:
            attn.store(nest, output, place, element)
        else:
            with nest.guard(nest.less(column, Number(attn.values))):
                attn.store(nest, output, place, element)
    put, target = tuple(putting.statements), None
    if wide == attn.values:
        put, target = store_rows(put, column, element, _form(attn).left)
    plain = all(role != "add" for role in attn.numbers.roles[3:]) and not attn.numbers.softcap
    anywhere = not any(reads_memory(each) for stmt in mask.statements for each in expressions(stmt))
    nest.emit(
        Attend(
            _form(attn),
            _types(attn),
            rows,
            Amount(keys),
            deep,
            wide,
            tile.rows,
            tile.keys,
            Number(attn.numbers.scale, f32),
            row,
            key,
            tuple(at_row.statements),
            q,
            tuple(at_key.statements),
            k,
            v,
            score,
            tuple(mask.statements),
            masked,
            start,
            tuple(classify.statements),
            kind,
            total,
            tuple(normalise.statements),
            factor,
            column,
            element,
            put,
            target,
            plain and anywhere and all(each == -inf for each in attn.numbers.fill),
            nest.var(i64, None, "step"),
        )
    )


def store_rows(put: tuple[Stmt, ...], column: Var, element: Var, dtype: DType) -> tuple[tuple[Stmt, ...], Place | None]:
    """What stores an element, as the names that a row needs and the place where the row begins, if nothing happens to
    elements on their way and those of a row are adjacent and aligned."""
    *names, last = put
    named = {each.var: each.value for each in names if isinstance(each, Let)}
    if len(named) < len(names) or not isinstance(last, Store) or not isinstance(last.place.array, int):
        return put, None
    varying = {column, element}
    for var, value in named.items():
        if varying.intersection(variables(value)):
            varying.add(var)
    value = last.value
    while isinstance(value, Var) and value in named:
        value = named[value]
    index = last.place.index
    while isinstance(index, Var) and index in varying and index != column:
        index = named[index]
    steps = dict(affine(index).terms)
    fixed = [step for atom, step in steps.items() if not varying.intersection(variables(atom))]
    rest = [affine(index).constant, *fixed]
    plain = value in (element, Convert(element, dtype)) and value.dtype == dtype and steps.get(column) == 1
    if not plain or len(fixed) != len(steps) - 1 or any(mod(step, CHUNK_BITS // dtype.bits) != 0 for step in rest):
        return put, None
    kept = tuple(each for each in names if isinstance(each, Let) and each.var not in varying)
    return kept, Place(last.place.array, add(index, scale(column, -1)))


@contextmanager
def inside(nest: Nest, *arguments: Var) -> Iterator[Scope]:
    """The scope of a block that is a function of these variables. Loads stay in it: it may not run at all."""
    with nest.inner(fence=True) as scope:
        for each in arguments:
            nest.places[each] = scope
        yield scope
