"""Attention: softmax of scores times values, block of keys by block of keys, so that the scores are never all there.

`smelt.attention` comes in. A kernel takes as many queries as a register tile has columns; keys and values are read
where they lie, as rows of the left operand: scores[key, query] = k q^T, result[value, query] = v^T weights. Maxima and
sums of a query are then one lane each. The greatest score so far, the sum of weights and the result so far are put
right whenever a block of keys brings a greater score. Blocks of keys depend on the problem alone. A few queries over
many keys go to `build_attention_few`; `build_reach` says which keys masks leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from smelt.dim import Size, ceildiv, maximum, minimum, product
from smelt.dtype import f32, i1
from smelt.ir.core import Op
from smelt.kernel.build.attention_decode import build_few
from smelt.kernel.build.attention_mask import Reach
from smelt.kernel.build.attention_shape import At, Attention, Choice
from smelt.kernel.build.gemm import place
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import (
    TRUE,
    Amount,
    Expr,
    LoadLocal,
    Mma,
    Number,
    Quotient,
    StoreLocal,
    Transpose,
    add,
    scale,
)
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.kernel.tune.schedules import AttentionBlock, KernelKey
from smelt.shape import Shape

SUMMED = 16  # weights that are summed before the sum joins the others, which keeps rounding small
FEW_BLOCKS = 2  # of queries, for which keys are not worth a copy
NEAR = 1 << 10  # tiles that use a panel, as good as: it is near, and nothing lies behind it


@sink("smelt.attention", anchor=True, addressed=(1, 2), in_runs=())
def attention(nest: Nest, op: Op, output: Output) -> None:
    problem = Attention.of(op)
    usual = Choice.of(problem)
    chosen = nest.choose_schedule(_asked(problem), AttentionBlock).queries
    build(nest, problem, replace(usual, queries=min(chosen, problem.width)) if chosen else usual, output)


def _asked(problem: Attention) -> KernelKey:
    """What a choice may depend on."""
    return KernelKey.of(
        "attention",
        heads=product(problem.heads),
        queries=problem.queries,
        keys=problem.axes.size(problem.axes.key),
        depth=problem.depth,
        values=problem.values,
        masks=len(problem.numbers.roles) - 3,
        width=problem.width,
    )


def build(nest: Nest, problem: Attention, choice: Choice, output: Output) -> None:
    """The loops of a problem: where the number of queries is open, those for few and those for many."""
    some: Size = minimum(maximum(problem.queries - choice.few, 0), 1)  # 1 where there are more than a few
    if some != 1:
        build_few(nest, problem, choice, 1 - some, output)
    if some != 0:
        _build_many(nest, problem, choice, some, output)


def _build_many(nest: Nest, problem: Attention, choice: Choice, some: Size, output: Output) -> None:
    blocks = ceildiv(problem.queries, choice.queries) * some
    sides = [Side.of(nest, problem, choice, operand, some) for operand in (1, 2)]
    reach = Reach.of(nest, problem, choice, some) if problem.numbers.roles[3:] else None
    with nest.loops((*problem.heads, blocks)) as index:
        at = dict(zip(problem.axes.batch, index, strict=False))
        _Block(nest, problem, choice, sides, reach, at, index[-1]).write(output)


@dataclass(frozen=True, slots=True)
class Side:
    """Where keys or values lie, as f32: in place, or side by side in a buffer that is filled before the blocks."""

    problem: Attention
    operand: int
    buffer: int
    distance: Mapping[str, Expr]  # of neighbours along keys ("key") and along depth or values ("inner")
    letters: str | None  # of a buffer's axes before keys; None: in place

    @staticmethod
    def of(nest: Nest, problem: Attention, choice: Choice, operand: int, some: Size) -> Side:
        """Copied are narrow types, and keys of which each block of many queries would gather pieces from afar."""
        axes = problem.axes
        deep = (problem.depth, problem.values)[operand - 1]
        few = isinstance(problem.queries, int) and problem.queries <= FEW_BLOCKS * choice.queries
        if tensor(problem.op.operands[operand]).element == f32:
            place = Side(problem, operand, 0, {}, None).in_place(nest)
            if few or (place.distance["key"] in (Number(deep), Number(0)) and place.distance["inner"] == Number(1)):
                return place
        letters = "".join(each for each in axes.batch if each in "".join(axes.words[operand]))
        sizes = (*(axes.sizes[each] for each in letters), axes.size(axes.key))
        buffer = nest.scratch(Shape("f32", *sizes, deep))
        with nest.loops((*sizes[:-1], sizes[-1] * some)) as index:
            *outer, key = index
            at = {**dict(zip(letters, outer, strict=True)), axes.key: key}
            with nest.loop(deep, "lane") as d:
                element = problem.element(nest, operand, {**at, (axes.depth, axes.value)[operand - 1]: d})
                nest.store(buffer, flat((*index, d), (*sizes, deep)), element)
        return Side(problem, operand, nest.buffer(buffer), {"key": Number(deep), "inner": Number(1)}, letters)

    def in_place(self, nest: Nest) -> Side:
        axes = self.problem.axes
        inner = (axes.depth, axes.value)[self.operand - 1]
        here = {
            **dict.fromkeys(axes.batch, Number(0)),
            axes.depth: Number(0),
            axes.value: Number(0),
            axes.key: Number(0),
        }
        buffer, origin = self._lying(nest, here)

        def distance(letter: str) -> Expr:
            if not letter or letter not in "".join(axes.words[self.operand]):
                return Number(0)
            return add(self._lying(nest, {**here, letter: Number(1)})[1], scale(origin, -1))

        return replace(self, buffer=buffer, distance={"key": distance(axes.key), "inner": distance(inner)})

    def _lying(self, nest: Nest, at: At) -> tuple[int, Expr]:
        value = self.problem.op.operands[self.operand]
        return place(nest, self.problem.op, value, self.problem.index(self.problem.axes.words[self.operand], at))

    def offset(self, nest: Nest, at: At, key: Expr) -> Expr:
        """Of the first element of a key or its value."""
        axes = self.problem.axes
        if self.letters is None:
            return self._lying(nest, {**at, axes.key: key, axes.depth: Number(0), axes.value: Number(0)})[1]
        deep = (self.problem.depth, self.problem.values)[self.operand - 1]
        sizes = (*(axes.sizes[each] for each in self.letters), axes.size(axes.key), deep)
        return flat((*(at[each] for each in self.letters), key, Number(0)), sizes)


@dataclass(slots=True)
class _Block:
    """One block of queries, at one place of all other letters."""

    nest: Nest
    problem: Attention
    choice: Choice
    sides: Sequence[Side]  # keys, values
    reach: Reach | None
    at: Mapping[str, Expr]
    number: Expr
    used: Expr = field(init=False)  # how many queries there are
    lanes: Callable[[Expr], dict[str, Expr]] = field(init=False)

    @property
    def first(self) -> Expr:
        return scale(self.number, self.choice.queries)

    def write(self, output: Output) -> None:
        nest, problem = self.nest, self.problem
        width, keys = problem.width, problem.axes.size(problem.axes.key)
        step = min(self.choice.keys, keys) if isinstance(keys, int) else self.choice.keys
        depth, values = problem.depth, problem.values
        used = problem.bounded(nest, self.choice.queries, problem.queries, self.first)
        self.used = used
        self.lanes = problem.lanes(nest, self.first, used)
        queries = problem.array(nest, "query", depth * width)
        self.load_queries(queries, used)
        best, total = (problem.array(nest, name, width) for name in ("best", "total"))
        result = problem.array(nest, "sum", values * width)
        with nest.loop(width, "lane") as i:
            nest.emit(StoreLocal(best, i, Number(-inf, f32)))
            nest.emit(StoreLocal(total, i, Number(0.0, f32)))
        with nest.loop(values * width, "lane") as i:
            nest.emit(StoreLocal(result, i, Number(0.0, f32)))
        if keys != 0:
            scores = problem.array(nest, "score", step * width)
            if used != Amount(width):  # products leave out columns that are not there
                with nest.loop(step * width, "lane") as i:
                    nest.emit(StoreLocal(scores, i, Number(0.0, f32)))
            limit = self.reach.limit(nest, self.at, self.number, queries) if self.reach is not None else None
            with nest.loop(ceildiv(keys, step), "ordered") as block:
                start = nest.let(scale(block, step))
                count = problem.bounded(nest, step, keys, start)

                def turn(start: Expr, count: Expr, masked: Expr | None) -> None:
                    self.multiply(1, start, (scores, count, queries, Amount(depth)))
                    factor = self.weigh(scores, start, count, used, best, total, masked)
                    self.put_right(result, factor)
                    self.multiply(2, start, (result, Amount(values), scores, count))

                if self.reach is None or limit is None:
                    turn(start, count, TRUE if problem.numbers.roles[3:] else None)
                else:
                    low, high, masked = self.reach.part(nest, self.at, self.number, start, count, limit)
                    begin = nest.let(scale(nest.let(Quotient(low, SUMMED)), SUMMED))  # sums stay those of whole blocks
                    with nest.guard(nest.less(low, high)):
                        turn(nest.let(add(start, begin)), nest.let(add(high, scale(begin, -1))), masked)
        self.finish(output, result, total, used)

    # -- parts --

    def load_queries(self, queries: str, used: Expr) -> None:
        """Queries as columns of a panel, scaled; columns that are not there are zeros."""
        nest, axes, width, depth = self.nest, self.problem.axes, self.problem.width, self.problem.depth
        rows = self.problem.array(nest, "row", depth * width)
        if used != Amount(width):
            with nest.loop(depth * width, "lane") as i:
                nest.emit(StoreLocal(rows, i, Number(0.0, f32)))
        with nest.loop(used, "ordered") as i:
            at = {**self.at, **self.lanes(i)}
            with nest.loop(depth, "lane") as d:
                nest.emit(StoreLocal(rows, add(scale(i, depth), d), self.problem.query(nest, {**at, axes.depth: d})))
        nest.emit(Transpose(queries, rows, width, depth))

    def multiply(self, operand: int, start: Expr, product: tuple[str, Expr, str, Expr]) -> None:
        """Rows of keys times queries, or what columns of values times weights add to the result."""
        tile, rows, panel, extent = product
        side, width = self.sides[operand - 1], Number(self.problem.width)
        row, step = ("key", "inner") if operand == 1 else ("inner", "key")
        left = (side.buffer, side.offset(self.nest, self.at, start), side.distance[row], side.distance[step])
        more = Number(int(operand == 2))
        some = Number(0) if self.used == Amount(self.problem.width) else self.used
        self.nest.emit(
            Mma(tile, rows, *left, panel, Number(0), width, extent, accumulate=more, tiles=Number(NEAR), columns=some)
        )

    def weigh(
        self, scores: str, start: Expr, count: Expr, used: Expr, best: str, total: str, masked: Expr | None
    ) -> str:
        """Scores become weights; gives the factor for all that was summed before."""
        nest, width = self.nest, self.problem.width
        most, factor, part = (self.problem.array(nest, name, width) for name in ("most", "factor", "part"))
        with nest.loop(width, "lane") as i:
            nest.emit(StoreLocal(most, i, LoadLocal(best, i, f32)))
        if self.problem.numbers.softcap:
            with nest.loop(count, "ordered") as j, nest.loop(width, "lane") as i:
                place = add(scale(j, width), i)
                nest.emit(
                    StoreLocal(scores, place, self.problem.capped(nest, nest.keep(LoadLocal(scores, place, f32))))
                )
        if masked is not None:
            with nest.guard(masked), nest.loop(count, "ordered") as j, nest.loop(used, "lane") as i:
                place = add(scale(j, width), i)
                at = {**self.at, **self.lanes(i), self.problem.axes.key: add(start, j)}
                nest.emit(
                    StoreLocal(scores, place, self.problem.masked(nest, nest.keep(LoadLocal(scores, place, f32)), at))
                )
        with nest.loop(count, "ordered") as j, nest.loop(width, "lane") as i:
            score, old = nest.keep(LoadLocal(scores, add(scale(j, width), i), f32)), nest.keep(LoadLocal(most, i, f32))
            greater = nest.apply("GT", score, old, dtype=i1)  # nan shows in the weights
            nest.emit(StoreLocal(most, i, nest.apply("select", greater, score, old, dtype=f32)))
        with nest.loop(width, "lane") as i:
            top, before = nest.keep(LoadLocal(most, i, f32)), nest.keep(LoadLocal(best, i, f32))
            none = nest.apply("EQ", top, Number(-inf, f32), dtype=i1)
            safe = nest.apply("select", none, Number(0.0, f32), top, dtype=f32)
            put_right = nest.apply("weight", nest.apply("subtract", before, safe))
            nest.emit(StoreLocal(best, i, top))
            nest.emit(StoreLocal(most, i, safe))
            nest.emit(StoreLocal(factor, i, put_right))
            scaled = nest.apply("multiply", nest.keep(LoadLocal(total, i, f32)), put_right)
            nest.emit(StoreLocal(total, i, scaled))
        groups = nest.let(Quotient(nest.let(add(count, SUMMED - 1)), SUMMED))
        with nest.loop(groups, "ordered") as group:
            first = nest.let(scale(group, SUMMED))
            with nest.loop(width, "lane") as i:
                nest.emit(StoreLocal(part, i, Number(0.0, f32)))
            left = nest.apply("minimum", Number(SUMMED), nest.let(add(count, scale(first, -1))))
            with nest.loop(left, "ordered") as j, nest.loop(width, "lane") as i:
                place = add(scale(first, width), scale(j, width), i)
                less = nest.apply(
                    "subtract", nest.keep(LoadLocal(scores, place, f32)), nest.keep(LoadLocal(most, i, f32))
                )
                weight = nest.apply("weight", less)
                nest.emit(StoreLocal(scores, place, weight))
                nest.emit(StoreLocal(part, i, nest.apply("add", nest.keep(LoadLocal(part, i, f32)), weight)))
            with nest.loop(width, "lane") as i:
                pair = (nest.keep(LoadLocal(each, i, f32)) for each in (total, part))
                nest.emit(StoreLocal(total, i, nest.apply("add", *pair)))
        return factor

    def put_right(self, result: str, factor: str) -> None:
        """What was summed before, by the factor of each query."""
        nest, width = self.nest, self.problem.width
        with nest.loop(self.problem.values, "ordered") as e, nest.loop(width, "lane") as i:
            place = add(scale(e, width), i)
            pair = (nest.keep(LoadLocal(*item, f32)) for item in ((result, place), (factor, i)))
            nest.emit(StoreLocal(result, place, nest.apply("multiply", *pair)))

    def finish(self, output: Output, result: str, total: str, used: Expr) -> None:
        """Divide by the sums of weights, and store."""
        nest, axes, width = self.nest, self.problem.axes, self.problem.width
        with nest.loop(self.problem.values, "ordered") as e, nest.loop(width, "lane") as i:
            place = add(scale(e, width), i)
            sums = (nest.keep(LoadLocal(result, place, f32)), nest.keep(LoadLocal(total, i, f32)))
            nest.emit(StoreLocal(result, place, self.problem.quotient(nest, *sums)))
        rows = self.problem.array(nest, "row", self.problem.values * width)
        nest.emit(Transpose(rows, result, self.problem.values, width))
        with nest.loop(used, "ordered") as i:
            at = {**self.at, **self.lanes(i)}
            with nest.loop(self.problem.values, "lane") as e:
                element = nest.keep(LoadLocal(rows, add(scale(i, self.problem.values), e), f32))
                self.problem.store(nest, output, {**at, axes.value: e}, element)
