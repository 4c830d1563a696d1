"""Attend: attention becomes one op, for an engine that never holds all scores of it.

The composites that fit its kernel become `smelt.attention`; all others are inlined afterwards. Called by `pipeline` for
engines that ask for a width.
"""

from __future__ import annotations

from smelt.ir.core import Value
from smelt.ir.ops.attention import AttentionAxes, AttentionNumbers
from smelt.ir.rewrite import Match, Rule, op

# Attention is found around a softmax, a quantised product around what quantises its operands.
COMPOSITES = frozenset({"smelt.attention", "smelt.softmax", "smelt.qdot", "smelt.quantize", "smelt.dequantize"})
DEEPEST = 512  # elements of a query, or of a value, that a kernel keeps near

_FLOATS = ("f32", "f16", "bf16")


def attend_rules(width: int) -> list[Rule]:
    """The rule that takes attention over `width` queries at a time."""

    def attended(m: Match) -> Value | None:
        return _attended(m, width)

    return [Rule(op("stablehlo.composite"), attended, "attention is one kernel")]


def _attended(m: Match, width: int) -> Value | None:
    if m.op.attrs["name"] != "smelt.attention":
        return None
    said = m.op.attrs["composite_attributes"]
    numbers = AttentionNumbers.of(said)
    operands = [m.operand(i) for i in range(len(m.op.operands))]
    axes = AttentionAxes.of(str(said.get("layout")), [value.shape for value in operands], m.shape)
    if numbers is None or axes is None:
        return None
    floats = [value.shape for value, role in zip(operands, numbers.roles, strict=True) if role in ("q", "k", "v")]
    if any(str(shape.dtype) not in _FLOATS for shape in (*floats, m.shape)):
        return None
    deep = (axes.size(axes.depth), axes.size(axes.value))
    if not all(isinstance(size, int) and size <= DEEPEST for size in deep):
        return None
    return m.build.op("smelt.attention", *operands, composite_attributes=said, width=width, result=m.shape).result
