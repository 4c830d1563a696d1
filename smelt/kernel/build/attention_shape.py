"""Shared by the attention kernels: the axes and sizes of an attention op, its block sizes, and access to elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from smelt.dim import Size, product
from smelt.dtype import f32, i1, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op
from smelt.ir.layouts import Word
from smelt.ir.ops.attention import AttentionAxes, AttentionNumbers, attention_axes, attention_numbers
from smelt.kernel.build.sinks import Output
from smelt.kernel.loops.grammar import Amount, Expr, Fold, Let, Load, Number, Place, Var, add, scale, split
from smelt.kernel.loops.nest import Index, Nest, flat, tensor

KEYS = 64  # of a block: with their scores they stay in L1
CHUNK = 512  # keys of a chunk in decoding
FEW = 4  # queries up to which the decode kernel is used

At = Mapping[str, Expr]  # index along each letter


class Attention(Frozen):
    """An attention op, the roles of its axes, and its scalar parameters."""

    op: Op
    axes: AttentionAxes
    numbers: AttentionNumbers
    width: int

    @staticmethod
    def of(op: Op) -> Attention:
        return Attention(op, attention_axes(op), attention_numbers(op), op.attrs["width"])

    @property
    def queries(self) -> Size:
        """The number of queries that share keys and values."""
        return product(self.axes.sizes[letter] for letter in self.axes.rows)

    @property
    def heads(self) -> list[Size]:
        """The sizes of the batch and head loops."""
        return [self.axes.sizes[letter] for letter in self.axes.batch]

    @property
    def depth(self) -> int:
        return self._static(self.axes.depth)

    @property
    def values(self) -> int:
        return self._static(self.axes.value)

    def _static(self, letter: str) -> int:
        size = self.axes.size(letter)
        assert isinstance(size, int), "passes.fuse_attention leaves other sizes alone"
        return size

    # -- elements --

    def index(self, word: Word, at: At) -> Index:
        """The index into an operand, from an index per letter."""
        sizes = self.axes.sizes
        return tuple(flat(tuple(at[each] for each in axis), [sizes[each] for each in axis]) for axis in word)

    def element(self, nest: Nest, operand: int, at: At) -> Expr:
        """An element of queries, keys or values, as f32."""
        return nest.convert(nest.pull(self.op.operands[operand], self.index(self.axes.words[operand], at)), f32)

    def query(self, nest: Nest, at: At) -> Expr:
        """An element of a query, scaled."""
        element = self.element(nest, 0, at)
        return element if self.numbers.scale == 1 else nest.apply("multiply", element, Number(self.numbers.scale, f32))

    def cap(self, nest: Nest, score: Expr) -> Expr:
        cap = self.numbers.softcap
        if not cap:
            return score
        inner = nest.apply("multiply", score, Number(1 / cap, f32))
        return nest.apply("multiply", nest.apply("tanh", inner), Number(cap, f32))

    def mask(self, nest: Nest, score: Expr, at: At) -> Expr:
        """A score after all masks."""
        fill = iter(self.numbers.fill)
        for role, word, mask in zip(self.numbers.roles, self.axes.words, self.op.operands, strict=True):
            if role in ("q", "k", "v"):
                continue
            element = nest.pull(mask, self.index(word, at))
            if role == "add":
                score = nest.apply("add", score, nest.convert(element, f32))
            else:
                other = Number(next(fill), f32)
                pair = (score, other) if role == "where" else (other, score)
                score = nest.apply("select", element, *pair, dtype=f32)
        return score

    def quotient(self, nest: Nest, result: Expr, total: Expr) -> Expr:
        """The result divided by the sum of weights; a row without keys gives zeros."""
        element = nest.apply("divide", result, total)
        zero, keys = Number(0.0, f32), self.axes.size(self.axes.key)
        if self.numbers.guarded:
            element = nest.apply("select", nest.apply("GT", total, zero, dtype=i1), element, zero, dtype=f32)
        if not isinstance(keys, int) or keys == 0:
            none = nest.apply("EQ", Amount(keys), Number(0), dtype=i1)
            element = nest.apply("select", none, zero, element, dtype=f32)
        return element

    def store(self, nest: Nest, output: Output, at: At, element: Expr) -> None:
        rounded = nest.convert(element, tensor(self.op.result).element)
        output.finish(nest, self.op, self.index(self.axes.result, at), rounded)

    # -- loops --

    def apart(self, query: Expr) -> dict[str, Expr]:
        """The index along each query letter, from the number of a query."""
        found: dict[str, Expr] = {}
        for letter in reversed(self.axes.rows[1:]):
            query, found[letter] = split(query, self.axes.sizes[letter])
        return found | dict.fromkeys(self.axes.rows[:1], query)

    def lanes(self, nest: Nest, first: Expr, used: Expr) -> Callable[[Expr], dict[str, Expr]]:
        """The same for the lanes of a block; several letters are split once, before the lanes."""
        if len(self.axes.rows) < 2:
            return lambda lane: self.apart(add(first, lane))
        arrays = {letter: nest.tile("place", i64, self.width) for letter in self.axes.rows}
        with nest.loop(used, "ordered") as lane:
            query = self._let(nest, add(first, lane), self.queries)
            for letter, place in self.apart(query).items():
                nest.write(arrays[letter], lane, place)

        def places(lane: Expr) -> dict[str, Expr]:
            items = {letter: Load(Place(name, lane), i64) for letter, name in arrays.items()}
            return {letter: self._let(nest, item, self.axes.sizes[letter]) for letter, item in items.items()}

        return places

    def _let(self, nest: Nest, value: Expr, extent: Size) -> Var:
        """A variable for a value that is known to be below the extent."""
        var = nest.var(i64, extent)
        nest.places[var] = nest.scope
        nest.emit(Let(var, value))
        return var

    def array(self, nest: Nest, stem: str, count: int) -> str:
        return nest.tile(stem, f32, max(count, 1))

    def clip(self, nest: Nest, most: int, size: Size, start: Expr) -> Expr:
        """min(most, size - start)."""
        if isinstance(size, int) and size % most == 0:
            return Amount(most)
        return nest.apply("minimum", Number(most), nest.let(add(size, scale(start, -1))), dtype=i64)


def fold_here(nest: Nest, function: str, start: Expr, extent: Expr, value: Callable[[Expr], Expr]) -> Expr:
    """A reduction that is not moved: the local arrays that it reads change."""
    with nest.inner() as scope:
        var = nest.var(i64, None, "at")
        nest.places[var] = scope
        term = value(var)
    total = nest.var(start.dtype, stem="total")
    nest.emit(Fold(var, extent, tuple(scope.statements), term, total, function, start))
    nest.places[total] = nest.scope
    return total


class AttentionSchedule(Frozen):
    """Block sizes: `queries` of a block, at most the `width` of the op, and `keys` of a block.

    Up to `few` queries use the decode kernel with `chunk` keys per chunk. Keys, chunk and few define the order of sums
    and so the bits of the result; queries does not.
    """

    queries: int
    keys: int = KEYS
    chunk: int = CHUNK
    few: int = FEW

    @staticmethod
    def of(attn: Attention) -> AttentionSchedule:
        return AttentionSchedule(attn.width)
