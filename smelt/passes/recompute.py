"""Rematerialisation under a memory limit: activations that a backward pass reads are computed again, cheapest first.

In: a lowered program. Out: programs with copies of ops before far readers of their results, so that these results are
not kept between; each needs less memory than the one before. `engine.compile.plan_within` takes the first whose plan
fits. Bytes saved are an estimate by the order of the ops: only the plan knows which values get a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from smelt.dtype import DType
from smelt.ir.clone import clone_op
from smelt.ir.core import Func, Op, Program, Region, Value, used_values
from smelt.ir.cost import op_operations
from smelt.ir.rewrite import has_effect
from smelt.shape import Shape

LARGE = 1 << 12  # bytes: smaller values are kept
PARTS = 8
LONGEST = 32  # ops that compute one value again
_MOVES = frozenset({"stablehlo.reshape", "stablehlo.broadcast_in_dim"})
_LOOPS = frozenset({"stablehlo.while", "chlo.scan", "stablehlo.custom_call"})


def use_less_memory(program: Program) -> Iterator[Program]:
    """The program in a better order, then with more and more computed again, by an eighth of the peak at a time; the
    last one can be made no smaller."""
    schedule = _Schedule(program)
    whole, _ = schedule.peak()
    yield program.replace(schedule.rebuild())
    for part in range(1, PARTS):
        while (now := schedule.peak())[0] * PARTS > whole * (PARTS - part):
            if not any(schedule.drop(chain, *now) for chain in schedule.candidates(now[1])):
                yield program.replace(schedule.rebuild())
                return
        yield program.replace(schedule.rebuild())


@dataclass(slots=True)
class _Schedule:
    """The ops of @main in order. A dropped value ends before its cut, and is computed again before the first reader
    after it. Reshapes and broadcasts have no memory of their own: their readers read what they were made of."""

    program: Program
    ops: Sequence[Op] = field(init=False)
    position: dict[Value, int] = field(init=False)  # of the op that gives a value
    users: dict[Value, list[int]] = field(init=False)  # the ops that read a value
    readers: dict[Value, list[int]] = field(init=False)  # the same, and those that read a move of it
    moves: dict[Value, list[Value]] = field(init=False)  # the moves of a value
    cuts: dict[Value, int] = field(default_factory=dict)
    refused: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ops = _order(self.main)
        self.position, self.users, self.readers, self.moves = {}, {}, {}, {}
        for i, op in enumerate(self.ops):
            self.position |= dict.fromkeys(op.results, i)
            for value in dict.fromkeys(used_values(op)):
                self.users.setdefault(value, []).append(i)
        for value in self.main.body.results:
            self.users.setdefault(value, []).append(len(self.ops))
        for op in reversed(self.ops):
            for value in op.results:
                self.readers[value] = sorted({*self.users.get(value, []), *self.readers.get(value, [])})
                if op.name in _MOVES:
                    source = op.operands[0]
                    self.readers[source] = [*self.readers.get(source, []), *self.readers[value]]
                    self.moves.setdefault(source, []).append(value)

    @property
    def main(self) -> Func:
        return self.program.main

    def peak(self) -> tuple[int, int]:
        """The most bytes that are live at once, and at which op."""
        change = [0] * (len(self.ops) + 3)
        passing: dict[int, int] = {}  # the largest value that is there only for others that are computed again
        needs, results = self._needs(), set(self.main.body.results)
        for value, at in self.position.items():
            size = _bytes(value)
            if size < LARGE or value in results or self.ops[at].name in _MOVES:
                continue  # results take the memory of donated arguments
            cut, read = self.cuts.get(value), self.readers[value]
            again = [needs[other] for other in self._readers_again(value)]
            near = [i for i in read if cut is None or i <= cut]
            spans = [(at, max(near + (again if cut is None else []), default=at))]
            if cut is not None:
                last = max([i for i in read if i > cut] + again)
                if last == needs[value]:
                    passing[last] = max(passing.get(last, 0), size)
                else:
                    spans.append((needs[value], last))
            for first, last in spans:
                change[first] += size
                change[last + 1] -= size
        live, found = 0, (0, 0)
        for i, each in enumerate(change):
            live += each
            found = max(found, (live + 2 * passing.get(i, 0), -i))
        return found[0], -found[1]

    def _readers_again(self, value: Value) -> Iterator[Value]:
        """The dropped values that are computed again from a value."""
        for i in self.users.get(value, []):
            if i < len(self.ops):
                yield from (result for result in self.ops[i].results if result in self.cuts)

    def _needs(self) -> dict[Value, int]:
        """Where each dropped value is computed again: before its first reader after the cut, or before a value that is
        computed again from it."""
        needs: dict[Value, int] = {}
        for value in sorted(self.cuts, key=lambda each: -self.position[each]):
            far = [i for i in self.users[value] if i > self.cuts[value]]
            needs[value] = min(far + [needs[other] for other in self._readers_again(value)])
        return needs

    def candidates(self, peak: int) -> list[tuple[Value, ...]]:
        """The values that are kept over the peak and can be computed again, each with what that takes besides;
        cheapest per byte first."""
        found = []
        for value, at in self.position.items():
            if at >= peak or value in self.cuts or value in self.refused or _bytes(value) < LARGE:
                continue
            far = [i for i in self.readers[value] if i > peak]
            if far and far[0] < len(self.ops) and peak not in self.readers[value] and self._can_repeat(value):
                chain = self._chain(value, peak, far[0])
                price = sum(self._price(self.ops[self.position[each]]) for each in chain)
                found.append((price / _bytes(value), at, chain))
        return [chain for *_, chain in sorted(found, key=lambda each: each[:2])]

    def _can_repeat(self, value: Value) -> bool:
        op = self.ops[self.position[value]]
        simple = len(op.results) == 1 and op.name not in _LOOPS and not has_effect(op)
        return simple and op.name not in _MOVES

    def _chain(self, value: Value, peak: int, need: int) -> tuple[Value, ...]:
        """A value, its moves that are read after the peak, and the large values that it is computed from and that are
        not kept until then."""
        found: dict[Value, None] = {value: None}
        rest = [value]
        for each in rest:
            for moved in self.moves.get(each, []):
                if any(i > peak for i in self.readers[moved]):
                    rest.append(moved)
        found |= dict.fromkeys(rest)
        rest = [value]
        while rest and len(found) < LONGEST:
            for operand in used_values(self.ops[self.position[rest.pop()]]):
                at = self.position.get(operand)
                if at is None or operand in found or operand in self.cuts or _bytes(operand) < LARGE:
                    continue
                is_move = self.ops[at].name in _MOVES
                if is_move or (max(self.readers[operand]) < need and self._can_repeat(operand)):
                    found[operand] = None
                    rest.append(operand)
        return tuple(found)

    def _price(self, op: Op) -> int:
        count = op_operations(op, self.program)
        return count if isinstance(count, int) else 0

    def drop(self, chain: Sequence[Value], before: int, peak: int) -> bool:
        """Compute values again after the peak, if that lowers it."""
        self.cuts |= dict.fromkeys(chain, peak)
        if self.peak()[0] < before:
            return True
        for value in chain:
            del self.cuts[value]
        self.refused.add(chain[0])
        return False

    def rebuild(self) -> Func:
        """@main with the copies."""
        needs = self._needs()
        here: dict[int, list[Value]] = {}
        for value in sorted(needs, key=lambda each: self.position[each]):
            here.setdefault(needs[value], []).append(value)
        values: dict[Value, Value] = {}  # the results of ops that read something else now
        again: dict[Value, Value] = {}
        ops: list[Op] = []
        for i, op in enumerate(self.ops):
            for value in here.get(i, []):
                seen = {**values, **again}
                ops.append(clone_op(self.ops[self.position[value]], seen))
                again[value] = seen[value]
            late = {value: again[value] for value in used_values(op) if value in again and i > self.cuts[value]}
            seen = {**values, **late}
            if any(value in seen for value in used_values(op)):
                ops.append(clone_op(op, seen))
                values.update({result: seen[result] for result in op.results})
            else:
                ops.append(op)
        results = tuple(again.get(value, values.get(value, value)) for value in self.main.body.results)
        return replace(self.main, body=Region(self.main.args, tuple(_live(ops, results)), results))


def _order(main: Func) -> list[Op]:
    """The ops as a plan orders them (`kernel.plan.reorder`): results that need few ops come first, so that the gradient
    of a weight is computed where the backward pass reaches its layer."""
    ops = main.body.ops
    place = {result: i for i, op in enumerate(ops) for result in op.results}
    closure: list[int] = []  # the ops that each op needs, as bits
    for i, op in enumerate(ops):
        bits = 1 << i
        for value in used_values(op):
            bits |= closure[place[value]] if value in place else 0
        closure.append(bits)
    roots = sorted({place[value] for value in main.body.results if value in place} | _unread(ops))
    order: list[int] = []
    done = 0
    for i in sorted(roots, key=lambda i: closure[i].bit_count()):
        fresh = closure[i] & ~done
        order += [j for j in range(i + 1) if fresh >> j & 1]
        done |= fresh
    return [ops[i] for i in order]


def _live(ops: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """The ops that results depend on, and those with effects: a value that is read after its cut alone is not computed
    before it."""
    used, kept = set(results), []
    for op in reversed(ops):
        if has_effect(op) or any(value in used for value in op.results):
            kept.append(op)
            used.update(used_values(op))
    return kept[::-1]


def _unread(ops: Sequence[Op]) -> set[int]:
    """Ops without readers, such as checks."""
    read = {value for op in ops for value in used_values(op)}
    return {i for i, op in enumerate(ops) if not any(result in read for result in op.results)}


def _bytes(value: Value) -> int:
    """The size of a tensor; 0 where it is not known."""
    shape = value.type
    if not isinstance(shape, Shape) or not isinstance(shape.dtype, DType) or not isinstance(shape.count, int):
        return 0
    return shape.count * shape.dtype.numpy.itemsize
