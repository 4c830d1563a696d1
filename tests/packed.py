"""Which packed products a lowered program has."""

from __future__ import annotations

from smelt.ir.core import Program


def op_names(program: Program) -> set[str]:
    """The names of all ops; those of packed products with the type of what is multiplied: `smelt.packed_dot ui8`."""
    ops = [op for func in program.funcs.values() for op in func.body.ops]
    return {f"{op.name} {op.operands[0].shape.dtype}" if "packed_" in op.name else op.name for op in ops}
