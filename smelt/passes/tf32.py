"""tf32: f32 rounded to 10 bits of mantissa, as `stablehlo.reduce_precision` says it on every engine.

`quantise` and `round_products` round operands of f32 products on request (`precision="tf32"`); `pack_weights` finds
products of rounded operands, which tensor cores multiply exactly.
"""

from __future__ import annotations

from smelt.dtype import f32
from smelt.ir.build import Builder
from smelt.ir.core import Value
from smelt.ir.rewrite import Edit

EXPONENT, MANTISSA = 8, 10  # bits
# What only moves elements, and zeros around them.
MOVES = frozenset(
    f"stablehlo.{name}" for name in ("reshape", "transpose", "broadcast_in_dim", "slice", "reverse", "pad")
)


def round_to_tf32(b: Builder, value: Value) -> Value:
    """An f32 value, to nearest even."""
    return b.reduce_precision(value, exponent_bits=EXPONENT, mantissa_bits=MANTISSA)


def is_tf32(edit: Edit, value: Value) -> bool:
    """Whether all elements of an f32 value were rounded to tf32."""
    maker = edit.maker(value)
    if value.shape.dtype != f32 or maker is None:
        return False
    if maker.name == "stablehlo.reduce_precision":
        return bool(maker.attrs["exponent_bits"] >= EXPONENT and maker.attrs["mantissa_bits"] <= MANTISSA)
    if maker.name == "stablehlo.constant":
        return not maker.attrs["value"].array.any()
    return maker.name in MOVES and all(is_tf32(edit, each) for each in edit.operands(maker))
