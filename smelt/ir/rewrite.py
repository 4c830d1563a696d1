"""Changing programs: an `Edit` opens a function for rewriting, `Rule`s say what to change, `rewrite` drives them.

Ops stay frozen. An Edit keeps the order of the ops, who uses each value and what each replaced value became;
replacing is constant-time, and `freeze` builds the new function once. Used by `passes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from smelt.dim import Size
from smelt.frozen import Frozen
from smelt.ir.build import Builder
from smelt.ir.clone import clone_region, remake_op, substitution
from smelt.ir.core import Func, FuncType, Op, Region, Type, Value, walk
from smelt.ir.ops import OPS
from smelt.ir.ops.definition import Scope
from smelt.ir.ops.signature import bare_symbol, solve_multiple
from smelt.shape import Shape


class _Block:
    """A region under edit: a doubly linked list of ops, and what it returns."""

    __slots__ = ("args", "first", "last", "parent", "results", "source")

    def __init__(self, source: Region, parent: Op | None) -> None:
        self.source = source
        self.parent = parent
        self.args = source.args
        self.results = list(source.results)
        self.first: Op | None = None
        self.last: Op | None = None


class Edit:
    """A function opened for rewriting."""

    def __init__(self, func: Func, signatures: Mapping[str, FuncType] | None = None) -> None:
        self.func = func
        self.scope = Scope(symbols_of(func))
        self.signatures = dict(signatures or {})
        self.changed = False
        self.touched: deque[Op] = deque()  # ops worth another look
        self._became: dict[Value, Value] = {}
        self._users: dict[Value, dict[Op | _Block, None]] = {}
        self._next: dict[Op, Op | None] = {}
        self._before: dict[Op, Op | None] = {}
        self._home: dict[Op, _Block] = {}
        self._blocks: dict[Region, _Block] = {}
        self._open(func.body, None)

    # -- looking --

    def value(self, value: Value) -> Value:
        """What a value has become."""
        seen = []
        while value in self._became:
            seen.append(value)
            value = self._became[value]
        for old in seen[:-1]:
            self._became[old] = value
        return value

    def operands(self, op: Op) -> list[Value]:
        """The operands of an op as they are now."""
        if not self._became:
            return list(op.operands)
        return [self.value(operand) for operand in op.operands]

    def maker(self, value: Value) -> Op | None:
        """The op that makes a value now; None for an argument."""
        return self.value(value).op

    def is_used(self, value: Value) -> bool:
        return bool(self._users.get(value))

    def users(self, value: Value) -> list[Op]:
        """The ops that use a value, regions' returns not among them."""
        return [user for user in self._users.get(self.value(value), ()) if isinstance(user, Op)]

    def is_returned(self, value: Value) -> bool:
        """Whether some region returns the value."""
        return any(isinstance(user, _Block) for user in self._users.get(self.value(value), ()))

    def __contains__(self, op: Op) -> bool:
        return op in self._home

    def ops(self, region: Region | None = None) -> Iterator[Op]:
        """The ops of one region (default: the body) in order, tolerant of changes while iterating."""
        op = self._blocks[region or self.func.body].first
        while op is not None:
            following = self._next.get(op)
            yield op
            op = self._next.get(op, following) if op in self._home else following

    def results(self, region: Region | None = None) -> list[Value]:
        """What a region (default: the body) returns now."""
        return [self.value(value) for value in self._blocks[region or self.func.body].results]

    # -- changing --

    def before(self, op: Op) -> Builder:
        """A builder whose ops appear just before `op`."""
        return _EditBuilder(self, self._home[op], op)

    def at_end(self) -> Builder:
        """A builder whose ops appear at the end of the body."""
        return _EditBuilder(self, self._blocks[self.func.body], None)

    def replace(self, old: Value, new: Value) -> None:
        """Every use of `old` uses `new` from now on. The types must be the same."""
        new = self.value(new)
        if old is new:
            return
        assert _same_type(old.type, new.type), f"{old.type} cannot be replaced by {new.type}"
        self._became[old] = new
        users = self._users.pop(old, {})
        self._users.setdefault(new, {}).update(users)
        self.touched.extend(user for user in users if isinstance(user, Op))
        if new.op is not None:
            self.touched.append(new.op)
        self.changed = True

    def erase(self, op: Op) -> None:
        """Remove an op whose results are unused, and what is inside it."""
        assert not any(self.is_used(value) for value in op.results), f"{op} is still used"
        self._unlink(op)
        self.changed = True
        stack = [op]
        while stack:
            gone = stack.pop()
            self._forget_uses(gone.operands, gone)
            for region in gone.regions:
                block = self._blocks.pop(region)
                self._forget_uses(block.results, block)
                inner = block.first
                while inner is not None:
                    following = self._next.get(inner)
                    self._unlink(inner)
                    stack.append(inner)
                    inner = following

    def erase_if_dead(self, op: Op) -> bool:
        """Remove an op without side effects whose results are unused."""
        if any(self._users.get(value) for value in op.results) or has_effect(op):
            return False
        self.erase(op)
        return True

    def freeze(self) -> Func:
        """The current function."""
        if not self.changed:
            return self.func
        return replace(self.func, body=self._freeze_block(self._blocks[self.func.body]))

    # -- the books --

    def _open(self, region: Region, parent: Op | None) -> None:
        stack = [(region, parent)]
        while stack:
            source, owner = stack.pop()
            block = self._blocks[source] = _Block(source, owner)
            for value in block.results:
                self._users.setdefault(self.value(value), {})[block] = None
            for op in source.ops:
                self._link(op, block, None)
                stack += [(inner, op) for inner in op.regions]

    def _link(self, op: Op, block: _Block, before: Op | None) -> None:
        ahead = block.last if before is None else self._before[before]
        self._home[op] = block
        self._next[op], self._before[op] = before, ahead
        if ahead is None:
            block.first = op
        else:
            self._next[ahead] = op
        if before is None:
            block.last = op
        else:
            self._before[before] = op
        for operand in op.operands:
            self._users.setdefault(self.value(operand), {})[op] = None

    def _unlink(self, op: Op) -> None:
        block = self._home.pop(op)
        ahead, behind = self._before.pop(op), self._next.pop(op)
        if ahead is None:
            block.first = behind
        else:
            self._next[ahead] = behind
        if behind is None:
            block.last = ahead
        else:
            self._before[behind] = ahead

    def _forget_uses(self, values: Sequence[Value], user: Op | _Block) -> None:
        for value in values:
            value = self.value(value)
            users = self._users.get(value)
            if users is not None:
                users.pop(user, None)
                if value.op is not None:
                    self.touched.append(value.op)

    def _freeze_block(self, block: _Block) -> Region:
        """Rebuild what changed. Nesting is bounded by the reader, so this recursion is too."""
        ops: list[Op] = []
        op = block.first
        while op is not None:
            operands = tuple(self.operands(op))
            regions = tuple(self._freeze_block(self._blocks[region]) for region in op.regions)
            if operands != op.operands or regions != op.regions:
                fresh = remake_op(op, operands, regions)
                for old, new in zip(op.results, fresh.results, strict=True):
                    self._became[old] = new
                ops.append(fresh)
            else:
                ops.append(op)
            op = self._next[op]
        results = tuple(self.value(value) for value in block.results)
        if tuple(ops) == block.source.ops and results == block.source.results:
            return block.source
        return Region(block.args, tuple(ops), results)


class _EditBuilder(Builder):
    """A builder whose ops go straight into an edit, at one place."""

    def __init__(self, edit: Edit, block: _Block, before: Op | None) -> None:
        super().__init__(edit.scope, before.location if before else None)
        self.signatures = edit.signatures
        self._edit = edit
        self._block = block
        self._anchor = before

    def op(self, name: str, /, *operands: Value, **keywords: Any) -> Op:
        made = super().op(name, *(self._edit.value(operand) for operand in operands), **keywords)
        self.insert(made)
        return made

    def insert(self, op: Op) -> None:
        """Put an op that is already made (and what is inside it) at this place."""
        self._edit._link(op, self._block, self._anchor)
        for region in op.regions:
            self._edit._open(region, op)
        self._edit.touched.append(op)
        self._edit.changed = True


def has_effect(op: Op) -> bool:
    """Whether an op, or one inside it, does more than give results."""
    return OPS[op.name].effect or any(OPS[inner.name].effect for region in op.regions for inner in walk(region))


def symbols_of(func: Func) -> frozenset[str]:
    """Every symbol that appears in a type of a function."""
    found: set[str] = set()
    values = [*func.args, *(value for op in walk(func.body) for value in op.results)]
    values += [arg for op in walk(func.body) for region in op.regions for arg in region.args]
    for value in values:
        if isinstance(value.type, Shape) and not value.type.is_static:
            found |= value.type.symbols
    return frozenset(found)


def symbols_at(callee: Func, operands: Sequence[Value], call: Op, scope: Scope) -> dict[str, Size]:
    """The callee's symbols at this call: sizes of the operands, symbols of the call's results, or fresh symbols."""
    known: dict[str, Size] = {}
    others: list[tuple[Size, Size]] = []
    pairs = list(zip(callee.args, operands, strict=True)) + list(zip(callee.results, call.results, strict=True))
    for have, want in pairs:
        if isinstance(have.type, Shape) and isinstance(want.type, Shape):
            for size, actual in zip(have.type.sizes, want.type.sizes, strict=True):
                name = bare_symbol(size)
                if name is None:
                    others.append((size, actual))
                elif name not in known:
                    known[name] = actual
    for size, actual in others:
        known.update(filter(None, [solve_multiple(size, actual, known)]))
    for name in sorted(symbols_of(callee) - set(known)):
        known[name] = scope.new_symbol()
    return known


def insert_call(b: Builder, callee: Func, operands: Sequence[Value], op: Op) -> list[Value]:
    """The ops of a function on other operands; `op` is the call."""
    values = dict(zip(callee.args, operands, strict=True))
    retype = substitution(symbols_at(callee, operands, op, b.scope))
    for each in callee.body.ops:
        made = b.op(
            each.name,
            *(values.get(value, value) for value in each.operands),
            result=[retype(value.type) for value in each.results],
            regions=[clone_region(region, values, retype) for region in each.regions],
            **dict(each.attrs),
        )
        values.update(zip(each.results, made.results, strict=True))
    return [values.get(value, value) for value in callee.results]


def _same_type(a: Type, b: Type) -> bool:
    if isinstance(a, Shape) and isinstance(b, Shape):
        return a.dtype == b.dtype and a.sizes == b.sizes
    return a == b


# ---- rules ----


class Pattern(Frozen):
    """An op by its name whose operands match: a nested pattern, a capture's name, or `""` for anything.

    `commutes`: two operands may be in either order. `name` captures the op itself.
    """

    op: str
    operands: tuple[Pattern | str, ...] = ()
    name: str = ""
    commutes: bool = False


def op(kind: str, *operands: Pattern | str, name: str = "", commutes: bool = False) -> Pattern:
    """`op("transpose", op("transpose", "x", name="inner"))`: dialect `stablehlo` unless another is named."""
    return Pattern(kind if "." in kind else f"stablehlo.{kind}", operands, name, commutes)


@dataclass(slots=True)
class Match:
    """What a pattern found, and the place to build the replacement."""

    edit: Edit
    op: Op
    values: dict[str, Value] = field(default_factory=dict)
    ops: dict[str, Op] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    @property
    def build(self) -> Builder:
        return self.edit.before(self.op)

    @property
    def shape(self) -> Shape:
        """The type of the root's first result."""
        return self.op.results[0].shape

    def operand(self, index: int) -> Value:
        return self.edit.value(self.op.operands[index])


Rewrite = Callable[[Match], Value | Sequence[Value] | None]


class Rule(Frozen):
    """Where `pattern` matches, `fn` gives the values that replace the root's results, or None to leave it alone.

    `why` says why the result is the same. `exact=False`: may change floating-point results, so it is off by default.
    """

    pattern: Pattern
    fn: Rewrite
    why: str
    exact: bool = True


def rewrite(edit: Edit, rules: Sequence[Rule], *, inexact: bool = False) -> int:
    """Apply rules until none applies, and drop dead ops; gives the number of replacements."""
    by_name: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.exact or inexact:
            by_name.setdefault(rule.pattern.op, []).append(rule)
    edit.touched.clear()
    work = deque(walk(edit.func.body) if not edit.changed else edit._home)
    queued = set(work)
    count = 0
    limit = 64 * (len(work) + 64)
    while work:
        current = work.popleft()
        queued.discard(current)
        if current in edit and not edit.erase_if_dead(current):
            for rule in by_name.get(current.name, ()):
                values = _apply(edit, current, rule)
                if values is not None:
                    count += 1
                    assert count < limit, f"rules do not end; the last one was: {rule.why}"
                    for old, new in zip(current.results, values, strict=True):
                        edit.replace(old, new)
                    edit.erase_if_dead(current)
                    break
        while edit.touched:
            again = edit.touched.popleft()
            if again not in queued and again in edit:
                queued.add(again)
                work.append(again)
    return count


def _apply(edit: Edit, root: Op, rule: Rule) -> Sequence[Value] | None:
    match = Match(edit, root)
    if not _matches(match, rule.pattern, root):
        return None
    out = rule.fn(match)
    if out is None:
        return None
    values = [out] if isinstance(out, Value) else list(out)
    values = [edit.value(value) for value in values]
    if all(old is new for old, new in zip(root.results, values, strict=True)):
        return None
    if not all(_same_type(old.type, new.type) for old, new in zip(root.results, values, strict=True)):
        return None  # sizes that are equal but not provably so: leave it
    return values


def _matches(match: Match, pattern: Pattern, candidate: Op) -> bool:
    if candidate.name != pattern.op:
        return False
    if pattern.name:
        match.ops[pattern.name] = candidate
    if not pattern.operands:
        return True
    operands = match.edit.operands(candidate)
    if len(operands) != len(pattern.operands):
        return False
    if pattern.commutes:
        saved_values, saved_ops = dict(match.values), dict(match.ops)
        if _operands_match(match, pattern.operands, operands):
            return True
        match.values, match.ops = saved_values, saved_ops
        operands = operands[::-1]
    return _operands_match(match, pattern.operands, operands)


def _operands_match(match: Match, patterns: Sequence[Pattern | str], operands: Sequence[Value]) -> bool:
    for pattern, operand in zip(patterns, operands, strict=True):
        if isinstance(pattern, str):
            if pattern and match.values.setdefault(pattern, operand) is not operand:
                return False
        elif operand.op is None or not _matches(match, pattern, operand.op):
            return False
    return True
