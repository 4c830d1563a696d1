"""How one op is differentiated: a row of the table of gradients, and the ways to state one.

A rule says one of: a `jvp` (tangents of results from those of operands), a `vjp` (cotangents of operands from those of
results), an `expand` (the same results by ops that have rules), that the derivative is `zero`, or why there is none
(`refused`). What is missing is derived by `sweep`: a vjp by transposing the jvp, both through the expansion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from smelt.dtype import DType
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen
from smelt.ir.build import Builder
from smelt.ir.clone import clone_region
from smelt.ir.core import Op, Type, Value
from smelt.shape import Shape

if TYPE_CHECKING:
    from smelt.ir.grad.sweep import Forward, Reverse

Cotangents = Sequence[Value | None]
Jvp = Callable[["Forward", Op], None]
Vjp = Callable[["Reverse", Op, Cotangents], None]
Expand = Callable[[Builder, Op], Sequence[Value]]
Partial = Callable[..., Value]  # (builder, g, *operands, result) → g times the derivative, linear in g


class Rule(Frozen):
    """One row. `zero` and `refused` are reasons, for people. A vjp must not use the values it differentiates by where
    the op is linear in them: that makes it the transpose."""

    jvp: Jvp | None = None
    vjp: Vjp | None = None
    expand: Expand | None = None
    zero: str = ""
    refused: str = ""


def zero(reason: str) -> Rule:
    """The derivative is zero wherever there is one."""
    return Rule(zero=reason)


def no_derivative(reason: str) -> Rule:
    """There is no derivative, or we have none."""
    return Rule(refused=reason)


def refuse(op: Op, reason: str, remedy: str | None = "smelt.stop_gradient(…) around what needs no gradient") -> None:
    """Raise the error for a path that cannot be differentiated."""
    raise UnsupportedError(f"{op.name} has no derivative: {reason}", where=op.location, remedy=remedy)


def is_differentiable(type: Type) -> bool:
    """Whether values of a type have tangents: floating-point and complex tensors."""
    return isinstance(type, Shape) and isinstance(type.dtype, DType) and type.dtype.kind in ("float", "complex")


# ---- helpers on builders ----


def like(b: Builder, number: float | complex, value: Value) -> Value:
    """A number in every element of a value's shape."""
    return b.full(number, value.shape)


def zeros(b: Builder, type: Type) -> Value:
    assert isinstance(type, Shape)
    return b.full(0, type)


def repeat(b: Builder, op: Op, operands: Sequence[Value], **changed: Any) -> Sequence[Value]:
    """The same op on other operands."""
    attrs = {**op.attrs, **changed}
    regions = [clone_region(region, {}) for region in op.regions]
    return b.op(op.name, *operands, result=[value.type for value in op.results], regions=regions, **attrs).results


def sum_over(b: Builder, value: Value, axes: Sequence[int]) -> Value:
    """The sum over some axes, which go."""
    if not axes:
        return value
    scalar = Shape.of(value.shape.dtype, ())
    with b.region(scalar, scalar) as r:
        r.result(r.add(*r.args))
    return b.reduce(value, b.constant(0, scalar.dtype), dimensions=tuple(axes), regions=[r.body])


def cast(b: Builder, value: Value, to: Shape) -> Value:
    """The value in the element type of a shape."""
    return value if value.shape.dtype == to.dtype else b.convert(value, result=value.shape.with_dtype(to.dtype))


# ---- ways to state a rule ----


def elementwise(*partials: Partial | str | None) -> Rule:
    """A rule from one function per operand: g times the partial derivative. None: zero; a text: why there is none."""

    def apply(b: Builder, op: Op, index: int, g: Value) -> Value | None:
        partial = partials[index]
        if isinstance(partial, str):
            refuse(op, partial)
        return partial(b, g, *op.operands, op.results[0]) if callable(partial) else None

    def jvp(sweep: Forward, op: Op) -> None:
        terms = [
            apply(sweep.b, op, i, tangent)
            for i, operand in enumerate(op.operands)
            if (tangent := sweep.tangent(operand)) is not None
        ]
        sweep.put(op.results[0], sweep.total(terms))

    def vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
        (g,) = cotangents
        assert g is not None
        for i, operand in enumerate(op.operands):
            if sweep.wants(operand):
                sweep.add(operand, apply(sweep.b, op, i, g))

    return Rule(jvp, vjp)


def linear(vjp: Vjp, *operands: int) -> Rule:
    """An op that is linear in these operands together (all of them where none is named)."""

    def jvp(sweep: Forward, op: Op) -> None:
        places = operands or range(len(op.operands))
        changed = list(op.operands)
        for i in places:
            if is_differentiable(op.operands[i].type):
                tangent = sweep.tangent(op.operands[i])
                changed[i] = zeros(sweep.b, op.operands[i].type) if tangent is None else tangent
        for result, tangent in zip(op.results, repeat(sweep.b, op, changed), strict=True):
            sweep.put(result, tangent)

    return Rule(jvp, vjp)


def multilinear(vjp: Vjp, *operands: int) -> Rule:
    """An op that is linear in each of these operands by itself, such as a product."""

    def jvp(sweep: Forward, op: Op) -> None:
        terms = []
        for i in operands:
            tangent = sweep.tangent(op.operands[i])
            if tangent is not None:
                changed = [*op.operands[:i], tangent, *op.operands[i + 1 :]]
                terms.append(repeat(sweep.b, op, changed)[0])
        sweep.put(op.results[0], sweep.total(terms))

    return Rule(jvp, vjp)


def linear_in_first(transpose: Callable[[Builder, Op, Value], Value]) -> Rule:
    """An op that is linear in its first operand; the others are indices or sizes. `transpose` gives its cotangent."""

    def vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
        (g,) = cotangents
        assert g is not None
        if sweep.wants(op.operands[0]):
            sweep.add(op.operands[0], transpose(sweep.b, op, g))

    return linear(vjp, 0)
