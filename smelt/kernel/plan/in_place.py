"""In place: merges buffers of a plan, so that copies vanish and updates write only what changes.

The two buffers of a copy become one where neither is written while the other is live. So a loop writes its results
into its carried buffers, an update leaves the rest of its operand alone, and a donated argument becomes a result.
Called by `engine.compile` between `fuse` and `memory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from smelt.dim import Size, evaluate, symbols
from smelt.dtype import DType
from smelt.kernel.loops.grammar import Expr, Store, expressions, loads, places, walk_statements
from smelt.kernel.plan.liveness import Leaf, Liveness, Set, members, set_of, written_by
from smelt.kernel.plan.plan import Buffer, Copy, Kernel, Launch, Plan, remap_steps, touched_buffers, walk

SAMPLE = 100  # value of a dynamic dimension when copies are compared
# Kernels that write each element of their result, or of a part of it, in exactly one iteration.
ONE_ITERATION = frozenset({"map", "dynamic_update_slice"})
EPILOGUES = ONE_ITERATION | {"packed_dot", "packed_conv"}  # and those whose epilogue does


def in_place(plan: Plan) -> Plan:
    """The plan with fewer copies, without unused buffers."""
    if not plan.donated and not any(isinstance(step, Copy) for step in walk(plan.steps)):
        return plan
    merging = _Merging(plan)
    merging.run()
    if not merging.merged:
        return plan
    return _rewrite(plan, merging.representatives())


@cache
def read_elementwise(kernel: Kernel, target: int, kinds: frozenset[str]) -> tuple[int, ...]:
    """The buffers of a kernel of these kinds that are read only at the element of `target` that is written."""
    if kernel.kind not in kinds:
        return ()
    read: dict[int | str, set[Expr]] = {}
    stores: set[Expr] = set()
    operands: set[int | str] = set()  # of micro-kernels: read at other elements too
    for statement in walk_statements(kernel.body):
        if isinstance(statement, Store):
            if isinstance(statement.place.array, int) and statement.place.array != target:
                return ()
            if statement.place.array == target:
                stores.add(statement.place.index)
        else:
            operands.update(place.array for place in places(statement))
        for expr in expressions(statement):
            for load in loads(expr):
                read.setdefault(load.place.array, set()).add(load.place.index)
    if len(stores) != 1 or target in operands:
        return ()
    return tuple(i for i, at in read.items() if isinstance(i, int) and at == stores and i not in operands)


def overwritable_by(plan: Plan, step: Launch, target: int, kinds: frozenset[str] = ONE_ITERATION) -> tuple[int, ...]:
    """The buffers that may share memory with `target`: each element is read just before it is overwritten."""
    if target not in step.buffers or len(step.writes) != 1:
        return ()
    kind = plan.buffers[target]
    at = [i for i, buffer in enumerate(step.buffers) if buffer == target]
    return tuple(
        step.buffers[i]
        for i in read_elementwise(step.kernel, at[-1], kinds)
        if step.buffers[i] != target and _alike(plan.buffers[step.buffers[i]], kind)
    )


def _alike(a: Buffer, b: Buffer) -> bool:
    return a.bytes == b.bytes and a.shape.dtype.numpy.itemsize == b.shape.dtype.numpy.itemsize


@dataclass(slots=True)
class _Merging:
    plan: Plan
    leaves: list[Leaf] = field(default_factory=list)
    writers: dict[int, list[Leaf]] = field(default_factory=dict)
    groups: dict[int, Set] = field(default_factory=dict)  # merged buffers, by each member
    merged: bool = False
    kinds: list[tuple[DType, Size]] = field(default_factory=list)  # element type and bytes of each buffer

    def run(self) -> None:
        self.kinds = [(each.shape.element, each.bytes) for each in self.plan.buffers]
        self.leaves = Liveness.of(self.plan).leaves
        for leaf in self.leaves:
            for i in written_by(leaf.step):
                self.writers.setdefault(i, []).append(leaf)
        for a, b in (*self._copies(), *self._donations()):
            self._try(a, b)

    def representatives(self) -> dict[int, int]:
        """The buffer that replaces each merged one: a result before an argument before others."""
        order = {"result": 0, "argument": 1, "constant": 2, "temporary": 3}
        buffers = self.plan.buffers
        return {i: min(members(group), key=lambda k: (order[buffers[k].kind], k)) for i, group in self.groups.items()}

    def _copies(self) -> list[tuple[int, int]]:
        """The buffers of each copy, the most expensive first."""
        found = [
            (leaf.depth, _guess(self.plan.buffers[leaf.step.target].bytes), leaf.step)
            for leaf in self.leaves
            if isinstance(leaf.step, Copy)
        ]
        found.sort(key=lambda each: (-each[0], -each[1]))
        return [(step.source, step.target) for _, _, step in found]

    def _donations(self) -> Iterator[tuple[int, int]]:
        """Candidates for donated arguments: results, those first that are elementwise in them, then temporaries."""
        donated = [i for i, each in enumerate(self.plan.buffers) if self._is_donated(each)]
        results = [i for i, each in enumerate(self.plan.buffers) if each.kind == "result"]
        pairs = [(a, b) for a in donated for b in results]
        direct = {
            (a, b)
            for a, b in pairs
            for leaf in self.writers.get(b, ())
            if isinstance(leaf.step, Launch) and a in overwritable_by(self.plan, leaf.step, b, EPILOGUES)
        }
        yield from sorted(pairs, key=lambda pair: pair not in direct)
        temporaries = [i for i, each in enumerate(self.plan.buffers) if each.kind == "temporary" and i in self.writers]
        yield from ((a, b) for a in donated for b in temporaries)

    def _is_donated(self, buffer: Buffer) -> bool:
        return buffer.kind == "argument" and buffer.index in self.plan.donated

    # -- merging two --

    def _try(self, a: int, b: int) -> None:
        if self.kinds[a] != self.kinds[b]:
            return
        first, second = (self.groups.get(i, 1 << i) for i in (a, b))
        if first == second or not self._may_share(first | second):
            return
        if self._meet(first, second) or self._meet(second, first):
            return
        for i in members(first | second):
            self.groups[i] = first | second
        self.merged = True

    def _may_share(self, group: Set) -> bool:
        """Whether of these, all of one type and size, at most one is the caller's memory: or a donated argument and
        the result that replaces it. Steps interpret numbers by the type of their buffer."""
        buffers = [self.plan.buffers[i] for i in members(group)]
        if any(self.plan.is_deferred(*each.shape.sizes) for each in buffers):
            return False
        fixed = [each for each in buffers if each.kind != "temporary"]
        if any(each.kind == "constant" or (each.kind == "argument" and not self._is_donated(each)) for each in fixed):
            return False
        kinds = sorted(each.kind for each in fixed)
        return len(kinds) < 2 or (kinds == ["argument", "result"] and fixed[0].shape == fixed[1].shape)

    def _meet(self, ours: Set, theirs: Set) -> bool:
        """Whether a step writes one of ours while one of theirs is live, or read by the same step."""
        return any(
            self._disturbs(leaf, target, theirs) for target in members(ours) for leaf in self.writers.get(target, ())
        )

    def _disturbs(self, leaf: Leaf, target: int, others: Set) -> bool:
        step = leaf.step
        if isinstance(step, Copy):
            return bool(leaf.after & others & ~(1 << step.source))  # the source has the same content
        assert isinstance(step, Launch)
        used = set_of((*step.buffers, *step.writes)) & others
        return bool(leaf.after & others) or bool(used & ~set_of(overwritable_by(self.plan, step, target, EPILOGUES)))


def _guess(size: Size) -> int:
    return evaluate(size, dict.fromkeys(symbols(size), SAMPLE))


# ---- the plan with fewer buffers ----


def _rewrite(plan: Plan, representatives: Mapping[int, int]) -> Plan:
    reused = tuple(
        (plan.buffers[kept_buffer].index, plan.buffers[i].index)
        for i, kept_buffer in representatives.items()
        if plan.buffers[i].kind == "argument" and plan.buffers[kept_buffer].kind == "result"
    )
    steps = remap_steps(plan.steps, representatives)
    used = {i for step in steps for i in touched_buffers(step)}
    kept = [
        i
        for i, buffer in enumerate(plan.buffers)
        if buffer.kind != "temporary" or i in used or plan.is_deferred(*buffer.shape.sizes)
    ]
    numbers = {old: new for new, old in enumerate(kept)}
    buffers = tuple(plan.buffers[i] for i in kept)
    return plan.replace(buffers=buffers, steps=remap_steps(steps, numbers), reused=tuple(sorted(reused)))
