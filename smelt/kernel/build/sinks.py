"""Sinks, the ops with a kernel of their own: `SINKS[name](nest, op, output)` builds its loops.

An op in `ANCHORS` passes each element to `output.finish`, which applies the fused elementwise ops that follow (the
epilogue) and stores the last one. A rule in `UPDATES` works in place: its targets hold the first operands, and it
writes the part that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.frozen import Frozen
from smelt.ir.core import Op, Value
from smelt.kernel.loops.grammar import Expr
from smelt.kernel.loops.nest import Index, Nest, reshape_index, tensor
from smelt.target import Target


class Rounding(Frozen):
    """A `smelt.round_blocks` of rows that a kernel computes, and the buffers of its results. `path`: the reshapes
    between the last value of the epilogue and what is rounded."""

    op: Op
    path: tuple[Op, ...]
    targets: tuple[int, ...]


class Output(Frozen):
    """The destination of results: `targets` are the buffers of the op's results, or of the epilogue's last value; none
    where nothing but its `roundings` reads that.

    `path`: the reshapes and transposes between the op and that value, which map the index of an element.
    `rounded`: conversions of the last value that are stored as well, and their buffers. `pair`: two parts of the op's
    result that the epilogue reads instead of it, at the same index (`build.pairs`). `roundings` are all of one value,
    on a GPU: a kernel that stores elements through `finish` puts what that returns into a tile, and rounds it.
    """

    targets: Sequence[int]
    last: Value | None = None
    path: tuple[Op, ...] = ()
    rounded: tuple[tuple[Value, int], ...] = ()
    pair: tuple[Value, ...] = ()
    roundings: tuple[Rounding, ...] = ()

    def finish(self, nest: Nest, op: Op, index: Index, *elements: Expr) -> Expr | None:
        """Store an element of the op's only result, or of each of the pair, after the epilogue. Returns the element
        that is rounded."""
        for move in self.path:
            index = push_index(nest, move, index)
        read = dict(zip(self.pair or (op.result,), elements, strict=True))
        nest.values |= read
        last = self.last or op.result
        found = nest.pull(last, index)
        if self.targets:
            nest.store(self.targets[0], nest.offset(last, index), found)
        nest.values[last] = found
        for value, target in self.rounded:
            nest.store(target, nest.offset(value, index), nest.pull(value, index))
        if self.roundings:
            for move in self.roundings[0].path:
                index = push_index(nest, move, index)
            found = nest.pull(self.roundings[0].op.operands[0], index)
        for value in (last, *read):
            nest.values.pop(value, None)
        return found if self.roundings else None


def push_index(nest: Nest, move: Op, index: Index) -> Index:
    """The index after a reshape or transpose of the element at `index` of its operand."""
    if move.name == "stablehlo.transpose":
        return tuple(index[d] for d in move.attrs["permutation"])
    return reshape_index(nest, index, tensor(move.operands[0]).sizes, tensor(move.result).sizes)


Sink = Callable[[Nest, Op, Output], None]
Operands = tuple[int, ...] | Callable[[Op], tuple[int, ...]]  # of every op of a name, or of one

SINKS: dict[str, Sink] = {}
SIMT_SINKS: dict[str, Sink] = {}  # instead of them on a GPU
ANCHORS: set[str] = set()
UPDATES: dict[str, Sink] = {}  # ops that change a part of their first operands
SIMT_UPDATES: dict[str, Sink] = {}  # instead of them on a GPU
ADDRESSED: dict[str, tuple[int, ...]] = {}
IN_RUNS: dict[str, Operands] = {}


def sink(
    *names: str, anchor: bool = False, addressed: tuple[int, ...] = (), in_runs: Operands = (1,)
) -> Callable[[Sink], Sink]:
    """Register the rule that builds the kernel of an op.

    `anchor`: it stores through `output.finish` alone. `addressed`: operands that must be strided in memory; those in
    `in_runs` must be contiguous along the last axis.
    """

    def register(rule: Sink) -> Sink:
        for name in names:
            SINKS[name] = rule
            ADDRESSED[name] = addressed
            IN_RUNS[name] = in_runs
        if anchor:
            ANCHORS.update(names)
        return rule

    return register


def simt_sink(name: str) -> Callable[[Sink], Sink]:
    """Register the rule that builds the kernel of an op on a GPU; what its operands must be stays the same."""

    def register(rule: Sink) -> Sink:
        SIMT_SINKS[name] = rule
        return rule

    return register


def find_sink(name: str, target: Target) -> Sink:
    """The rule that builds the kernel of an op for a target."""
    return SIMT_SINKS.get(name, SINKS[name]) if target.kind == "simt" else SINKS[name]


def is_in_runs(op: Op, operand: int) -> bool:
    """Whether an operand must be contiguous along its last axis."""
    found = IN_RUNS[op.name]
    return operand in (found(op) if callable(found) else found)


def update(*names: str) -> Callable[[Sink], Sink]:
    """Register the rule that writes what an op changes in its first operands."""

    def register(rule: Sink) -> Sink:
        for name in names:
            UPDATES[name] = rule
        return rule

    return register


def simt_update(name: str) -> Callable[[Sink], Sink]:
    """Register the rule that does so on a GPU."""

    def register(rule: Sink) -> Sink:
        SIMT_UPDATES[name] = rule
        return rule

    return register


def find_update(name: str, target: Target) -> Sink:
    """The rule that writes what an op changes, for a target."""
    return SIMT_UPDATES.get(name, UPDATES[name]) if target.kind == "simt" else UPDATES[name]
