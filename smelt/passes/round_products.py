"""Precisions "bf16" and "tf32": every f32 matmul of a program on rounded operands, with sums and results in f32.
"fp8": the same of weight matmuls, with scales; those by block-quantised weights are left.

In: a program of f32 arithmetic. Out: StableHLO. What depends on weights alone is rounded once, when they are bound.
`tensor.jit.compile` calls it for language models; `quantise` is the same for weight matmuls of models that were read.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.dtype import bf16, f32
from smelt.ir.core import Op, Program, Value
from smelt.ir.rewrite import Edit
from smelt.passes.fp8 import multiply_in_fp8
from smelt.passes.tf32 import round_to_tf32
from smelt.passes.weight_matmul import is_weight_matmul

PRODUCTS = ("stablehlo.dot_general", "chlo.ragged_dot")


def round_products(program: Program, precision: str = "bf16") -> Program:
    """The program, decompositions of composites included."""
    round_one = ROUND[precision]
    signatures = {name: func.type for name, func in program.funcs.items()}
    changed = []
    for func in program.funcs.values():
        edit = Edit(func, signatures)
        for each in [each for each in edit.ops() if is_f32_product(each)]:
            rounded = round_one(edit, each)
            if rounded is not None:
                edit.replace(each.result, rounded)
                edit.erase_if_dead(each)
        if edit.changed:
            changed.append(edit.freeze())
    return program.replace(*changed) if changed else program


def is_f32_product(op: Op) -> bool:
    """Whether it is a matmul of f32, also one whose groups of rows have their own matrices."""
    values = (*op.operands[:2], *op.results)
    return op.name in PRODUCTS and all(value.shape.dtype == f32 for value in values)


def round_product(edit: Edit, product: Op) -> Value:
    """The same product of bf16 operands."""
    lhs, rhs, *sizes = edit.operands(product)
    narrow = [*(_narrow(edit, product, value) for value in (lhs, rhs)), *sizes]
    attrs = {name: value for name, value in product.attrs.items() if name != "algorithm"}
    return edit.before(product).op(product.name, *narrow, result=product.result.shape, **attrs).result


def _narrow(edit: Edit, product: Op, value: Value) -> Value:
    """A value in bf16; one that was widened from it, as it was."""
    maker = edit.maker(value)
    if maker is not None and maker.name == "stablehlo.convert":
        (source,) = edit.operands(maker)
        if source.shape.dtype == bf16:
            return source
    return edit.before(product).convert(value, result=value.shape.with_dtype(bf16))


def _round_product_to_tf32(edit: Edit, product: Op) -> Value | None:
    """The same product of f32 operands rounded to tf32."""
    if product.name != "stablehlo.dot_general":
        return None
    b = edit.before(product)
    rounded = [round_to_tf32(b, value) for value in edit.operands(product)]
    attrs = {name: value for name, value in product.attrs.items() if name != "algorithm"}
    return b.op(product.name, *rounded, result=product.result.shape, **attrs).result


def _round_product_to_fp8(edit: Edit, product: Op) -> Value | None:
    """The same weight matmul on fp8. Block-quantised weights, which are smaller, are left, and products that ask for
    precision: with weights of bf16 both operands of these are rounded to bf16."""
    if product.name != "stablehlo.dot_general":
        return None
    maker = edit.maker(edit.operands(product)[1])
    blocks = maker is not None and maker.name == "stablehlo.composite"
    precise = {*(product.attrs.get("precision_config") or ())} - {"DEFAULT"}
    return None if blocks or precise or not is_weight_matmul(edit, product) else multiply_in_fp8(edit, product)


ROUND: dict[str, Callable[[Edit, Op], Value | None]] = {
    "bf16": round_product,
    "tf32": _round_product_to_tf32,
    "fp8": _round_product_to_fp8,
}
