"""What a program costs, before it runs: arithmetic as a polynomial, and the memory its values need.

One multiply-add counts as two operations. Loops with an unknown number of iterations count once, branches as the
most expensive.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.dim import Size, evaluate, floordiv, maximum, product
from smelt.frozen import Frozen
from smelt.ir.core import Func, Op, Program, Region, Type, Value, used_values
from smelt.ir.ops import OPS
from smelt.ir.ops.attention import attention_axes
from smelt.ir.ops.packed import contraction_size
from smelt.shape import Shape


class Memory(Frozen):
    """Bytes at given sizes: passed in, passed out, and the most that is alive at once, arguments not counted."""

    arguments: int
    results: int
    peak: int


def operations(program: Program, func: Func | None = None) -> Size:
    """Arithmetic operations of one call."""
    return _region((func or program.main).body, program)


def op_operations(op: Op, program: Program) -> Size:
    """Arithmetic operations of one op."""
    inside: list[Size] = [_region(region, program) for region in op.regions]
    match op.name.partition(".")[2]:
        case "dot_general" | "dot":
            return 2 * _count(op.results[0].type) * _contraction_size(op)
        case "packed_dot" | "grouped_dot" | "packed_conv":
            return 2 * _count(op.results[0].type) * contraction_size(op)
        case "packed_block_dot" | "grouped_block_dot":
            return 2 * _count(op.results[0].type) * op.operands[0].shape.sizes[2]
        case "winograd_conv":
            return 2 * _count(op.results[0].type) * 9 * op.operands[1].shape.sizes[2]
        case "depthwise_conv":
            return 2 * _count(op.results[0].type) * product(op.operands[1].shape.sizes[:-1])
        case "attention":
            axes = attention_axes(op)
            letters = (*axes.batch, *axes.rows, *axes.key)
            both = axes.size(axes.depth) + axes.size(axes.value)
            return 2 * both * product(axes.sizes[each] for each in letters)
        case "paged_attention":
            q, keys, values, table = (each.shape.sizes for each in op.operands[:4])
            return 2 * (q[2] + values[3]) * q[0] * q[1] * table[1] * keys[3]
        case "convolution" | "dynamic_conv":
            kernel = op.operands[1].shape
            outputs = kernel.sizes[op.attrs["dimension_numbers"].kernel_output_feature_dimension]
            return 2 * _count(op.results[0].type) * floordiv(kernel.count, maximum(outputs, 1))
        case "reduce" | "reduce_window" | "select_and_scatter" | "map" | "scatter" | "sort":
            window = product(op.attrs.get("window_dimensions") or (1,))
            return _count(op.operands[0].type) * window * maximum(1, sum(inside, start=0))
        case "scan":
            return op.operands[0].shape.sizes[op.attrs["dimension"]] * sum(inside, start=0)
        case "while":
            return sum(inside, start=0)
        case "if" | "case":
            most: Size = 0
            for branch in inside:
                most = maximum(most, branch)
            return most
        case "call" | "composite":
            callee = program.funcs.get(op.attrs.get("callee") or op.attrs["decomposition"])
            return operations(program, callee) if callee is not None else 0
        case "constant" | "convert" | "select":
            return 0
        case _:
            return _count(op.results[0].type) if OPS[op.name].elementwise and op.results else 0


def memory(func: Func, symbols: Mapping[str, int]) -> Memory:
    """What a function's values need, each freed after its last use; symbols that are not given count as 1."""

    def weigh(value: Value) -> int:
        return _bytes(value.type, symbols)

    last: dict[Value, int] = {}
    for i, op in enumerate(func.body.ops):
        last |= dict.fromkeys((*used_values(op), *op.results), i)
    kept = {*func.args, *func.results}
    dying: dict[int, list[Value]] = {}
    for value, i in last.items():
        if value not in kept and value.op is not None:
            dying.setdefault(i, []).append(value)
    alive = peak = 0
    own = {value for op in func.body.ops for value in op.results}
    for i, op in enumerate(func.body.ops):
        alive += sum(weigh(value) for value in op.results)
        peak = max(peak, alive)
        alive -= sum(weigh(value) for value in dying.get(i, ()) if value in own)
    return Memory(sum(map(weigh, func.args)), sum(map(weigh, func.results)), peak)


def _region(region: Region, program: Program) -> Size:
    return sum((op_operations(op, program) for op in region.ops), start=0)


def _contraction_size(op: Op) -> Size:
    lhs = op.operands[0].shape
    dims = op.attrs.get("dot_dimension_numbers")
    return product(lhs.sizes[d] for d in dims.lhs_contracting_dimensions) if dims else lhs.sizes[-1]


def _count(type: Type) -> Size:
    return type.count if isinstance(type, Shape) else 0


def _bytes(type: Type, symbols: Mapping[str, int]) -> int:
    if not isinstance(type, Shape):
        return 0
    known = dict.fromkeys(type.symbols, 1) | {name: value for name, value in symbols.items() if name in type.symbols}
    return evaluate(type.count, known) * type.dtype.numpy.itemsize
