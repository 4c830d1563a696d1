"""Weight matmuls: which products they are, and what quantising their operands takes: axes that are kept, scales.

`quantise` and `fp8` call it.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dim import product as product_of
from smelt.dtype import DType, f32, i32
from smelt.ir.attributes import DotDims
from smelt.ir.build import Builder
from smelt.ir.core import Op, Value
from smelt.ir.rewrite import Edit
from smelt.passes.split_prepare import WEIGHT

LEAST = 1e-30  # least scale: zeros stay zeros, and its reciprocal is finite
DEEP = 16  # least K of a GEMM that is worth quantising
WIDE = 16  # least N


def is_weight_matmul(edit: Edit, product: Op) -> bool:
    """A matmul of f32 activations by a weight matrix with K >= DEEP and N >= WIDE."""
    (lhs, rhs), dims = edit.operands(product), product.attrs["dot_dimension_numbers"]
    if not are_f32(lhs, rhs, product.result) or dims.rhs_batching_dimensions:
        return False
    if not is_fixed(edit, rhs) or is_fixed(edit, lhs):
        return False
    summed = dims.rhs_contracting_dimensions
    depth = product_of(rhs.shape.sizes[d] for d in summed)
    width = product_of(rhs.shape.sizes[d] for d in range(rhs.shape.rank) if d not in summed)
    return isinstance(depth, int) and isinstance(width, int) and depth >= DEEP and width >= WIDE


def are_f32(*values: Value) -> bool:
    return all(value.shape.dtype == f32 for value in values)


def is_fixed(edit: Edit, value: Value) -> bool:
    """Whether a value depends on weights and constants alone."""
    main = edit.func
    weights = {arg for arg, attrs in zip(main.args, main.arg_attrs, strict=False) if WEIGHT in attrs}
    stack, seen = [edit.value(value)], set[Value]()
    while stack:
        each = stack.pop()
        if each in seen or each in weights:
            continue
        seen.add(each)
        maker = edit.maker(each)
        if maker is None or maker.regions:
            return False
        stack += edit.operands(maker)
    return True


def kept_axes(lhs: Value, rhs: Value, dims: DotDims) -> tuple[list[int], list[int]]:
    """The axes of both operands of a matmul that are not summed over."""
    return other_axes(lhs, dims.lhs_contracting_dimensions), other_axes(rhs, dims.rhs_contracting_dimensions)


def other_axes(value: Value, kept: Sequence[int]) -> list[int]:
    return [d for d in range(value.shape.rank) if d not in kept]


def scale_of(b: Builder, reach: Value, count: int) -> Value:
    """The scale of numbers up to `reach` that become numbers up to `count`."""
    return b.maximum(b.multiply(reach, b.full(1 / count, reach.shape)), b.full(LEAST, reach.shape))


def divide_by(b: Builder, value: Value, step: Value, kept: Sequence[int]) -> Value:
    """A value divided by scales along the axes that are kept."""
    factor = b.divide(b.full(1.0, step.shape), step)
    return b.multiply(value, b.broadcast_in_dim(factor, broadcast_dimensions=tuple(kept), result=value.shape))


def convert(b: Builder, value: Value, to: DType = i32) -> Value:
    return b.convert(value, result=value.shape.with_dtype(to))


def dequantise(b: Builder, total: Value, *scales: tuple[Value, Sequence[int]]) -> Value:
    """Dequantise a sum by scales along some of its axes."""
    shape = total.shape.with_dtype(f32)
    first, second = (
        b.broadcast_in_dim(value, broadcast_dimensions=tuple(axes), result=shape) for value, axes in scales
    )
    whole = total if total.shape.dtype == f32 else convert(b, total, f32)
    return b.multiply(whole, b.multiply(first, second))
