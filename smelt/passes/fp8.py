"""Precision "fp8": a weight matmul on operands rounded to f8E4M3FN, with f32 sums.

`quantise` and `round_products` round operands on request; `lower_fp8` says how targets multiply them.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dtype import dtype
from smelt.ir.build import Builder
from smelt.ir.core import Op, Value
from smelt.ir.rewrite import Edit
from smelt.passes.weight_matmul import convert, dequantise, divide_by, kept_axes, other_axes, scale_of

E4M3, LARGEST = dtype("f8E4M3FN"), 448  # the type, and its largest number


def multiply_in_fp8(edit: Edit, product: Op) -> Value:
    """A weight matmul on fp8: a scale for each row of activations and each column of weights multiplies the sums."""
    (lhs, rhs), dims = edit.operands(product), product.attrs["dot_dimension_numbers"]
    b, rows, columns = edit.before(product), *kept_axes(lhs, rhs, dims)
    (x, x_scale), (w, w_scale) = _round(b, lhs, rows), _round(b, rhs, columns)
    total = b.dot_general(x, w, dot_dimension_numbers=dims, result=product.result.shape)
    return dequantise(b, total, (x_scale, range(len(rows))), (w_scale, range(len(rows), total.shape.rank)))


def _round(b: Builder, value: Value, kept: Sequence[int]) -> tuple[Value, Value]:
    """A value in fp8, and a scale per index along the axes that are kept: its largest magnitude is fp8's largest."""
    step = scale_of(b, b.reduce_by("maximum", b.abs(value), 0.0, other_axes(value, kept)), LARGEST)
    return convert(b, divide_by(b, value, step, kept), E4M3), step
