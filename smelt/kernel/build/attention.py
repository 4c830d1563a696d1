"""FlashAttention: `smelt.attention` with online softmax over blocks of keys; the scores are never materialised.

A block has up to 64 queries, several register tiles. Keys and values are the left operand of the micro-kernel,
read in place: scores[key, query] = k q^T, result[value, query] = v^T weights, so the running maximum and sum of a query
are one lane each. Sums and results so far are rescaled whenever a block of keys raises the maximum. The size of key
blocks depends on the shape alone. Few queries go to `attention_decode.py`; `attention_mask.py` skips masked keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from smelt.dim import Size, ceildiv, maximum, minimum, product
from smelt.dtype import f32, i1
from smelt.frozen import Frozen
from smelt.ir.core import Op
from smelt.kernel.build.attention_decode import build_decode
from smelt.kernel.build.attention_mask import VisibleKeys
from smelt.kernel.build.attention_shape import At, Attention, AttentionSchedule
from smelt.kernel.build.gemm import element_place
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.form import F32
from smelt.kernel.loops.grammar import (
    TRUE,
    Amount,
    Expr,
    Load,
    Mma,
    Number,
    Place,
    Quotient,
    Slice,
    Transpose,
    add,
    scale,
    tile_slice,
)
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.kernel.tune.schedules import AttentionBlock, KernelKey
from smelt.shape import Shape

Decode = Callable[[Nest, Attention, AttentionSchedule, Size, Output], None]  # builds the kernel for few queries
SUM_BLOCK = 16  # weights per partial sum, which keeps rounding errors small
FEW_BLOCKS = 2  # up to this many blocks of queries, copying keys does not pay


@sink("smelt.attention", anchor=True, addressed=(1, 2), in_runs=())
def attention(nest: Nest, op: Op, output: Output) -> None:
    attn = Attention.of(op)
    usual = AttentionSchedule.of(attn)
    chosen = nest.choose_schedule(_key_of(attn), AttentionBlock).queries
    build(nest, attn, usual.replace(queries=min(chosen, attn.width)) if chosen else usual, output)


def _key_of(attn: Attention) -> KernelKey:
    """The kernel shape key."""
    return KernelKey.of(
        "attention",
        heads=product(attn.heads),
        queries=attn.queries,
        keys=attn.axes.size(attn.axes.key),
        depth=attn.depth,
        values=attn.values,
        masks=len(attn.numbers.roles) - 3,
        width=attn.width,
    )


def build(
    nest: Nest, attn: Attention, schedule: AttentionSchedule, output: Output, decode: Decode = build_decode
) -> None:
    """The loops; with a dynamic number of queries both the decode and the block kernel."""
    has_many: Size = minimum(maximum(attn.queries - schedule.few, 0), 1)  # 1 for the block kernel
    if has_many != 1:
        decode(nest, attn, schedule, 1 - has_many, output)
    if has_many != 0:
        _build_blocks(nest, attn, schedule, has_many, output)


def _build_blocks(nest: Nest, attn: Attention, schedule: AttentionSchedule, has_many: Size, output: Output) -> None:
    blocks = ceildiv(attn.queries, schedule.queries) * has_many
    operands_kv = [Operand.of(nest, attn, schedule, operand, has_many) for operand in (1, 2)]
    reach = VisibleKeys.of(nest, attn, schedule, has_many) if attn.numbers.roles[3:] else None
    with nest.loops((*attn.heads, blocks)) as index:
        at = dict(zip(attn.axes.batch, index, strict=False))
        _Block(nest, attn, schedule, operands_kv, reach, at, index[-1]).write(output)


class Operand(Frozen):
    """Keys or values as f32: in place, or copied to a contiguous buffer before the blocks."""

    attn: Attention
    operand: int
    buffer: int
    distance: Mapping[str, Expr]  # strides along keys ("key") and along depth or values ("inner")
    letters: str | None  # of the buffer's axes before keys; None: in place

    @staticmethod
    def of(nest: Nest, attn: Attention, schedule: AttentionSchedule, operand: int, has_many: Size) -> Operand:
        """Copies narrow types, and keys that many blocks of queries would read with a large stride."""
        axes = attn.axes
        deep = (attn.depth, attn.values)[operand - 1]
        few = isinstance(attn.queries, int) and attn.queries <= FEW_BLOCKS * schedule.queries
        if tensor(attn.op.operands[operand]).element == f32:
            place = Operand(attn, operand, 0, {}, None).in_place(nest)
            if few or (place.distance["key"] in (Number(deep), Number(0)) and place.distance["inner"] == Number(1)):
                return place
        letters = "".join(each for each in axes.batch if each in "".join(axes.words[operand]))
        sizes = (*(axes.sizes[each] for each in letters), axes.size(axes.key))
        buffer = nest.scratch(Shape("f32", *sizes, deep))
        with nest.loops((*sizes[:-1], sizes[-1] * has_many)) as index:
            *outer, key = index
            at = {**dict(zip(letters, outer, strict=True)), axes.key: key}
            with nest.loop(deep, "lane") as d:
                element = attn.element(nest, operand, {**at, (axes.depth, axes.value)[operand - 1]: d})
                nest.store(buffer, flat((*index, d), (*sizes, deep)), element)
        return Operand(attn, operand, nest.buffer(buffer), {"key": Number(deep), "inner": Number(1)}, letters)

    def in_place(self, nest: Nest) -> Operand:
        axes = self.attn.axes
        inner = (axes.depth, axes.value)[self.operand - 1]
        here = {
            **dict.fromkeys(axes.batch, Number(0)),
            axes.depth: Number(0),
            axes.value: Number(0),
            axes.key: Number(0),
        }
        origin = self._place(nest, here)

        def distance(letter: str) -> Expr:
            if not letter or letter not in "".join(axes.words[self.operand]):
                return Number(0)
            return add(self._place(nest, {**here, letter: Number(1)}).index, scale(origin.index, -1))

        assert isinstance(origin.array, int), "keys and values are in buffers"
        return self.replace(buffer=origin.array, distance={"key": distance(axes.key), "inner": distance(inner)})

    def _place(self, nest: Nest, at: At) -> Place:
        value = self.attn.op.operands[self.operand]
        return element_place(nest, self.attn.op, value, self.attn.index(self.attn.axes.words[self.operand], at))

    def offset(self, nest: Nest, at: At, key: Expr) -> Expr:
        """The offset of the first element of a key or value row."""
        axes = self.attn.axes
        if self.letters is None:
            return self._place(nest, {**at, axes.key: key, axes.depth: Number(0), axes.value: Number(0)}).index
        deep = (self.attn.depth, self.attn.values)[self.operand - 1]
        sizes = (*(axes.sizes[each] for each in self.letters), axes.size(axes.key), deep)
        return flat((*(at[each] for each in self.letters), key, Number(0)), sizes)


@dataclass(slots=True)
class _Block:
    """One block of queries of one head."""

    nest: Nest
    attn: Attention
    schedule: AttentionSchedule
    operands_kv: Sequence[Operand]  # keys, values
    reach: VisibleKeys | None
    at: Mapping[str, Expr]
    number: Expr
    used: Expr = field(init=False)  # queries of this block
    lanes: Callable[[Expr], dict[str, Expr]] = field(init=False)

    @property
    def first(self) -> Expr:
        return scale(self.number, self.schedule.queries)

    def write(self, output: Output) -> None:
        nest, attn = self.nest, self.attn
        width, keys = attn.width, attn.axes.size(attn.axes.key)
        step = min(self.schedule.keys, keys) if isinstance(keys, int) else self.schedule.keys
        depth, values = attn.depth, attn.values
        used = attn.clip(nest, self.schedule.queries, attn.queries, self.first)
        self.used = used
        self.lanes = attn.lanes(nest, self.first, used)
        queries = attn.array(nest, "query", depth * width)
        self.load_queries(queries, used)
        best, total = (attn.array(nest, name, width) for name in ("best", "total"))
        result = attn.array(nest, "sum", values * width)
        with nest.loop(width, "lane") as i:
            nest.write(best, i, Number(-inf, f32))
            nest.write(total, i, Number(0.0, f32))
        with nest.loop(values * width, "lane") as i:
            nest.write(result, i, Number(0.0, f32))
        if keys != 0:
            scores = attn.array(nest, "score", step * width)
            if used != Amount(width):  # the micro-kernel leaves out missing columns
                with nest.loop(step * width, "lane") as i:
                    nest.write(scores, i, Number(0.0, f32))
            limit = self.reach.limit(nest, self.at, self.number, queries) if self.reach is not None else None
            with nest.loop(ceildiv(keys, step), "ordered") as block:
                start = nest.let(scale(block, step))
                count = attn.clip(nest, step, keys, start)

                def turn(start: Expr, count: Expr, masked: Expr | None) -> None:
                    self.multiply(1, start, (scores, count, queries, Amount(depth)))
                    factor = self.exponentiate(scores, start, count, used, best, total, masked)
                    self.rescale(result, factor)
                    self.multiply(2, start, (result, Amount(values), scores, count))

                if self.reach is None or limit is None:
                    turn(start, count, TRUE if attn.numbers.roles[3:] else None)
                else:
                    low, high, masked = self.reach.part(nest, self.at, self.number, start, count, limit)
                    begin = nest.let(scale(nest.let(Quotient(low, SUM_BLOCK)), SUM_BLOCK))  # partial sums stay aligned
                    with nest.guard(nest.less(low, high)):
                        turn(nest.let(add(start, begin)), nest.let(add(high, scale(begin, -1))), masked)
        self.finish(output, result, total, used)

    # -- parts --

    def load_queries(self, queries: str, used: Expr) -> None:
        """Scaled queries as the columns of a packed panel; missing columns are zeros."""
        nest, axes, width, depth = self.nest, self.attn.axes, self.attn.width, self.attn.depth
        rows = self.attn.array(nest, "row", depth * width)
        if used != Amount(width):
            with nest.loop(depth * width, "lane") as i:
                nest.write(rows, i, Number(0.0, f32))
        with nest.loop(used, "ordered") as i:
            at = {**self.at, **self.lanes(i)}
            with nest.loop(depth, "lane") as d:
                nest.write(rows, add(scale(i, depth), d), self.attn.query(nest, {**at, axes.depth: d}))
        nest.emit(Transpose(tile_slice(queries, depth, width), tile_slice(rows, width, depth)))

    def multiply(self, operand: int, start: Expr, product: tuple[str, Expr, str, Expr]) -> None:
        """Keys times queries, or accumulate values times weights."""
        tile, rows, panel, extent = product
        side, width = self.operands_kv[operand - 1], Number(self.attn.width)
        row, step = ("key", "inner") if operand == 1 else ("inner", "key")
        columns = width if self.used == Amount(self.attn.width) else self.used
        strides = side.distance[row], Number(0), side.distance[step]
        left = Slice(Place(side.buffer, side.offset(self.nest, self.at, start)), (rows, Number(1), extent), strides)
        right = Slice(Place(panel, Number(0)), (extent, columns), (width, Number(1)))
        sums = Slice(Place(tile, Number(0)), (rows, columns), (width, Number(1)))
        self.nest.emit(Mma(sums, left, right, F32, accumulate=Number(int(operand == 2))))

    def exponentiate(
        self, scores: str, start: Expr, count: Expr, used: Expr, best: str, total: str, masked: Expr | None
    ) -> str:
        """Online softmax: scores become weights; returns the factor that rescales earlier sums."""
        nest, width = self.nest, self.attn.width
        most, factor, part = (self.attn.array(nest, name, width) for name in ("most", "factor", "part"))
        with nest.loop(width, "lane") as i:
            nest.write(most, i, Load(Place(best, i), f32))
        if self.attn.numbers.softcap:
            with nest.loop(count, "ordered") as j, nest.loop(width, "lane") as i:
                place = add(scale(j, width), i)
                nest.write(scores, place, self.attn.cap(nest, nest.read(scores, place, f32)))
        if masked is not None:
            with nest.guard(masked), nest.loop(count, "ordered") as j, nest.loop(used, "lane") as i:
                place = add(scale(j, width), i)
                at = {**self.at, **self.lanes(i), self.attn.axes.key: add(start, j)}
                nest.write(scores, place, self.attn.mask(nest, nest.read(scores, place, f32), at))
        with nest.loop(count, "ordered") as j, nest.loop(width, "lane") as i:
            score, old = (
                nest.read(scores, add(scale(j, width), i), f32),
                nest.read(most, i, f32),
            )
            greater = nest.apply("GT", score, old, dtype=i1)  # nan shows in the weights
            nest.write(most, i, nest.apply("select", greater, score, old, dtype=f32))
        with nest.loop(width, "lane") as i:
            top, before = nest.read(most, i, f32), nest.read(best, i, f32)
            none = nest.apply("EQ", top, Number(-inf, f32), dtype=i1)
            safe = nest.apply("select", none, Number(0.0, f32), top, dtype=f32)
            rescale = nest.apply("weight", nest.apply("subtract", before, safe))
            nest.write(best, i, top)
            nest.write(most, i, safe)
            nest.write(factor, i, rescale)
            scaled = nest.apply("multiply", nest.read(total, i, f32), rescale)
            nest.write(total, i, scaled)
        groups = nest.let(Quotient(nest.let(add(count, SUM_BLOCK - 1)), SUM_BLOCK))
        with nest.loop(groups, "ordered") as group:
            first = nest.let(scale(group, SUM_BLOCK))
            with nest.loop(width, "lane") as i:
                nest.write(part, i, Number(0.0, f32))
            left = nest.apply("minimum", Number(SUM_BLOCK), nest.let(add(count, scale(first, -1))))
            with nest.loop(left, "ordered") as j, nest.loop(width, "lane") as i:
                place = add(scale(first, width), scale(j, width), i)
                less = nest.apply("subtract", nest.read(scores, place, f32), nest.read(most, i, f32))
                weight = nest.apply("weight", less)
                nest.write(scores, place, weight)
                nest.write(part, i, nest.apply("add", nest.read(part, i, f32), weight))
            with nest.loop(width, "lane") as i:
                pair = (nest.read(each, i, f32) for each in (total, part))
                nest.write(total, i, nest.apply("add", *pair))
        return factor

    def rescale(self, result: str, factor: str) -> None:
        """Rescale the result so far by the factor of each query."""
        nest, width = self.nest, self.attn.width
        with nest.loop(self.attn.values, "ordered") as e, nest.loop(width, "lane") as i:
            place = add(scale(e, width), i)
            pair = (nest.read(*item, f32) for item in ((result, place), (factor, i)))
            nest.write(result, place, nest.apply("multiply", *pair))

    def finish(self, output: Output, result: str, total: str, used: Expr) -> None:
        """Divide by the sum of weights and store."""
        nest, axes, width = self.nest, self.attn.axes, self.attn.width
        with nest.loop(self.attn.values, "ordered") as e, nest.loop(width, "lane") as i:
            place = add(scale(e, width), i)
            sums = (nest.read(result, place, f32), nest.read(total, i, f32))
            nest.write(result, place, self.attn.quotient(nest, *sums))
        rows = self.attn.array(nest, "row", self.attn.values * width)
        values = self.attn.values
        nest.emit(Transpose(tile_slice(rows, width, values), tile_slice(result, values, width)))
        with nest.loop(used, "ordered") as i:
            at = {**self.at, **self.lanes(i)}
            with nest.loop(self.attn.values, "lane") as e:
                element = nest.read(rows, add(scale(i, self.attn.values), e), f32)
                self.attn.store(nest, output, {**at, axes.value: e}, element)
