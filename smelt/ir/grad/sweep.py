"""The two sweeps of differentiation over a list of ops, given the table of rules.

`Forward` carries tangents along the ops (jvp). `Reverse` carries cotangents back (vjp). Both build ordinary ops with a
`Builder`, so that what they make can be differentiated again. The ops must be in the builder's program already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from smelt.ir.build import Builder
from smelt.ir.core import Op, Value, used_values
from smelt.ir.grad.rule import Cotangents, Rule, is_differentiable, refuse, zeros

Find = Callable[[Op], Rule]  # the rule of an op


class Forward:
    """Tangents of values, as far as they are not zero."""

    def __init__(self, b: Builder, find: Find, tangents: dict[Value, Value]) -> None:
        self.b = b
        self.find = find
        self.tangents = tangents

    def tangent(self, value: Value) -> Value | None:
        """The tangent of a value; None: zero."""
        return self.tangents.get(value)

    def put(self, value: Value, tangent: Value | None) -> None:
        """State the tangent of a result."""
        if tangent is not None and is_differentiable(value.type):
            self.tangents[value] = tangent

    def total(self, terms: Iterable[Value | None]) -> Value | None:
        return _total(self.b, terms)

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if any(value in self.tangents for value in used_values(op)):
                self._step(op)

    def _step(self, op: Op) -> None:
        rule = self.find(op)
        if rule.zero:
            return
        self.b.location = op.location
        if rule.refused:
            refuse(op, rule.refused)
        if rule.jvp is not None:
            rule.jvp(self, op)
            return
        assert rule.expand is not None, f"{op.name} has neither a jvp nor an expansion"
        results, ops = expand(self.b, rule, op)
        self.run(ops)
        for old, new in zip(op.results, results, strict=True):
            self.put(old, self.tangent(new))


class Reverse:
    """Cotangents of values, summed over their uses. Only values that depend on `wanted` get one."""

    def __init__(self, b: Builder, find: Find, wanted: Iterable[Value], ops: Sequence[Op]) -> None:
        self.b = b
        self.find = find
        self.wanted = frozenset(wanted)
        self.active = active_values(find, self.wanted, ops)
        self.cotangents: dict[Value, Value] = {}

    def wants(self, value: Value) -> bool:
        return value in self.active

    def add(self, value: Value, cotangent: Value | None) -> None:
        """Add to a value's cotangent; None is zero."""
        if cotangent is None or value not in self.active:
            return
        before = self.cotangents.get(value)
        self.cotangents[value] = cotangent if before is None else self.b.add(before, cotangent)

    def accumulate(self, value: Value, change: Callable[[Value], Value]) -> None:
        """Change a value's cotangent so far, zeros at first: for rules that add to a part of it, in place."""
        if value in self.active:
            before = self.cotangents.get(value)
            self.cotangents[value] = change(zeros(self.b, value.type) if before is None else before)

    def cotangent(self, value: Value) -> Value:
        """The cotangent of a value, in its own type."""
        found = self.cotangents.get(value)
        if found is None:
            return zeros(self.b, value.type)
        return found if found.type == value.type else self.b.reshape(found, result=value.type)

    def run(self, ops: Sequence[Op]) -> None:
        for op in reversed(ops):
            cotangents = [self.cotangents.get(value) for value in op.results]
            if any(each is not None for each in cotangents) and any(map(self.wants, used_values(op))):
                self._step(op, cotangents)

    def _step(self, op: Op, cotangents: Cotangents) -> None:
        rule = self.find(op)
        self.b.location = op.location
        if rule.refused:
            refuse(op, rule.refused)
        self.apply(rule, op, cotangents)

    def apply(self, rule: Rule, op: Op, cotangents: Cotangents) -> None:
        """Add to the cotangents of the operands what a rule says."""
        if rule.vjp is not None:
            rule.vjp(self, op, cotangents)
        elif rule.expand is not None:
            results, ops = expand(self.b, rule, op)
            self._through(op, ops, list(zip(results, cotangents, strict=True)))
        else:
            self.transpose(rule, op, cotangents, dict.fromkeys(used_values(op)))

    def _through(self, op: Op, ops: Sequence[Op], seeds: Iterable[tuple[Value, Value | None]]) -> None:
        """Cotangents through other ops that compute the results."""
        wanted = [value for value in dict.fromkeys(used_values(op)) if self.wants(value)]
        inner = Reverse(self.b, self.find, wanted, ops)
        for value, cotangent in seeds:
            inner.add(value, cotangent)
        inner.run(ops)
        for value in wanted:
            self.add(value, inner.cotangents.get(value))

    def transpose(self, rule: Rule, op: Op, cotangents: Cotangents, by: Iterable[Value]) -> None:
        """The vjp from the jvp: the ops on tangents, which are linear in them, transposed one by one.

        The tangents stand for any: zeros, so that sizes may be read off them. Nothing else is, and they are dead then.
        """
        assert rule.jvp is not None, f"{op.name} has no rule"
        tangents = {value: zeros(self.b, value.type) for value in by if self.wants(value)}
        start = len(self.b.ops)
        forward = Forward(self.b, self.find, dict(tangents))
        rule.jvp(forward, op)
        made = self.b.ops[start:]
        inner = Reverse(self.b, self.find, tangents.values(), made)
        on_tangents = [each for each in made if any(map(inner.wants, used_values(each)))]
        for result, cotangent in zip(op.results, cotangents, strict=True):
            tangent = forward.tangent(result)
            if tangent is not None:
                inner.add(tangent, cotangent)
        inner.run(on_tangents)
        for value, placeholder in tangents.items():
            self.add(value, inner.cotangents.get(placeholder))


def expand(b: Builder, rule: Rule, op: Op) -> tuple[Sequence[Value], list[Op]]:
    """The results of an op by its expansion, and the ops that it consists of."""
    assert rule.expand is not None
    start = len(b.ops)
    results = rule.expand(b, op)
    return results, b.ops[start:]


def active_values(find: Find, wanted: Iterable[Value], ops: Sequence[Op]) -> set[Value]:
    """The values that depend on `wanted` in a way that may have a derivative."""
    active = {value for value in wanted if is_differentiable(value.type)}
    for op in ops:
        if any(value in active for value in used_values(op)) and not find(op).zero:
            active.update(value for value in op.results if is_differentiable(value.type))
    return active


def _total(b: Builder, terms: Iterable[Value | None]) -> Value | None:
    found = [term for term in terms if term is not None]
    total = found[0] if found else None
    for term in found[1:]:
        assert total is not None
        total = b.add(total, term)
    return total


def needed_ops(ops: Sequence[Op], results: Iterable[Value]) -> tuple[list[Op], set[Value]]:
    """The ops that results depend on, in order, and every value that is used. Ops must be free of effects."""
    used = set(results)
    kept: list[Op] = []
    for op in reversed(ops):
        if any(value in used for value in op.results):
            kept.append(op)
            used.update(used_values(op))
    return kept[::-1], used
