"""Products of bf16 with results of f32: in pairs where the processor multiplies these, else as products of f32.

Numbers of bf16 are numbers of f32, and so are their products: converting operands changes nothing but the order of the
sum. A conversion is fused into whatever makes the operand; that of weights runs once. What stays bf16 is packed by
`pack`. Called by `pipeline` for engines that multiply panels.
"""

from __future__ import annotations

from smelt.dtype import bf16, f32
from smelt.ir.core import Value
from smelt.ir.ops.packed_words import PAIR
from smelt.ir.rewrite import Match, Rule, op


def bf16_rules(*, pairs: bool) -> list[Rule]:
    """The rules that leave only those products in bf16 that kernels have; `pairs`: there are kernels."""

    def product(m: Match) -> Value | None:
        return None if pairs else _widened(m)

    def convolution(m: Match) -> Value | None:
        return None if pairs and _is_in_pairs(m) else _widened(m)

    return [
        Rule(op("stablehlo.dot_general", "x", "y"), product, "f32 holds every number of bf16"),
        Rule(op("stablehlo.convolution", "x", "y"), convolution, "f32 holds every number of bf16"),
    ]


def _is_in_pairs(m: Match) -> bool:
    """Whether the channels of a group are whole pairs."""
    attrs = m.op.attrs
    depth = m["y"].shape.sizes[attrs["dimension_numbers"].kernel_input_feature_dimension]
    return isinstance(depth, int) and depth > 0 and depth % PAIR == 0 and attrs["batch_group_count"] == 1


def _widened(m: Match) -> Value | None:
    """The same with operands of f32."""
    operands = m["x"], m["y"]
    if any(value.shape.dtype != bf16 for value in operands) or m.shape.dtype != f32:
        return None
    wide = [m.build.convert(value, result=value.shape.with_dtype(f32)) for value in operands]
    attrs = {name: value for name, value in m.op.attrs.items() if name != "algorithm"}
    return m.build.op(m.op.name, *wide, result=m.shape, **attrs).result
