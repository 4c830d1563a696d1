"""Slices of tensors with dynamic dimensions.

The limits of `stablehlo.slice` are numbers. With a dynamic dimension, a `pad` by negative amounts takes the same slice.
Called by passes that crop their own intermediate values.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.dim import Size
from smelt.ir.build import Builder
from smelt.ir.core import Value


def crop(b: Builder, value: Value, parts: Mapping[int, tuple[int, Size]]) -> Value:
    """`value[first:after]` along the axes in `parts`; the number of elements cut off at the end must be static."""
    sizes = value.shape.sizes
    bounds = [parts.get(axis, (0, size)) for axis, size in enumerate(sizes)]
    if all(first == 0 and after == size for (first, after), size in zip(bounds, sizes, strict=True)):
        return value
    made: Value
    if value.shape.is_static:
        made = b.slice(
            value,
            start_indices=tuple(first for first, _ in bounds),
            limit_indices=tuple(after for _, after in bounds),
            strides=(1,) * len(sizes),
        )
        return made
    kind = value.shape.dtype
    zero = b.constant(0 if kind.is_integer else 0.0, kind)
    made = b.pad(
        value,
        zero,
        edge_padding_low=tuple(-first for first, _ in bounds),
        edge_padding_high=tuple(after - size for (_, after), size in zip(bounds, sizes, strict=True)),
        interior_padding=(0,) * len(sizes),
    )
    return made
