"""A block-quantised matrix from a file's bytes into the records that kernels read (`ir.block_layout`), as StableHLO.

`pack` is `ui8[group, column, n, bytes]` → `ui8[group, panel, n, record]`. It runs once, when weights are bound.
`take_columns` reads numbers back, for embeddings that share a matrix with the logits. Called by `passes.lower_blocks`.
"""

from __future__ import annotations

import numpy as np

from smelt.dtype import bf16, f16, f32, ui8
from smelt.ir.attributes import GatherDims
from smelt.ir.block_layout import COLUMNS, SHIFT, STEPS, Layout, Plane
from smelt.ir.block_ops import BuildOps
from smelt.ir.blocks import Integers, codes, scales
from smelt.ir.build import Builder
from smelt.ir.core import Value
from smelt.shape import Shape


def pack(b: Builder, layout: Layout, w: Value) -> Value:
    """A file's bytes as records."""
    ops, row = BuildOps(b), layout.row
    groups, columns, count, size = w.shape.numbers()
    panels = -(-columns // COLUMNS)
    if columns % COLUMNS:
        high, none = (0, panels * COLUMNS - columns, 0, 0), (0,) * 4
        w = b.pad(w, b.constant(0, ui8), edge_padding_low=none, edge_padding_high=high, interior_padding=none)
    w = ops.reshape(w, groups, panels, COLUMNS, count, size)

    def per_column(x: Value, *sizes: int) -> Value:
        """[group, panel, column, n, …] as bytes of records, the column innermost but for the last axis."""
        x = ops.reshape(x, groups, panels, COLUMNS, count, *sizes)
        x = b.transpose(x, permutation=(0, 1, 3, 4, 2, 5))
        return ops.reshape(x, groups, panels, count, sizes[0] * COLUMNS * sizes[1])

    def integers(of: Integers) -> Value:
        found = codes(of, w, ops)
        return ops.less(found, of.zero) if of.zero else found

    levels = codes(row.levels, w, ops)
    if row.levels.signed:
        levels = b.xor(levels, ops.full(SHIFT, levels))
    parts = [per_column(_plane(ops, levels, plane), layout.length // plane.steps, STEPS) for plane in layout.planes]
    many = [integers(each) for each in (row.scales, row.minimums) if each is not None]
    if layout.nibbles:
        many = [ops.combine(many[0], b.shift_left(many[1], ops.full(4, many[1])))]
    parts += [per_column(each, layout.groups, 1) for each in many]
    if row.exponent:
        wide = scales(row, w, ops)
        narrow = b.convert(wide, result=wide.shape.with_dtype(bf16))
        parts.append(per_column(b.bitcast_convert(narrow, result=Shape.of(ui8, (*narrow.shape.sizes, 2))), 1, 2))
    else:
        parts.append(per_column(ops.cut(w, row.scale, 2), 1, 2))
    if row.minimum is not None:
        parts.append(per_column(ops.cut(w, row.minimum, 2), 1, 2))
    return b.concatenate(*parts, dimension=3)


def _plane(ops: BuildOps, levels: Value, plane: Plane) -> Value:
    """The bytes of a plane: [..., k] → [..., line, step]."""
    *lead, length = levels.shape.numbers()
    lines, shares = length // plane.steps, plane.steps // STEPS
    kept = (1 << plane.bits) - 1
    found = ops.b.shift_right_logical(levels, ops.full(plane.low, levels)) if plane.low else levels
    if plane.bits < 8:
        found = ops.b.and_(found, ops.full(kept, found))
    found = ops.reshape(found, *lead, lines, shares, STEPS)
    total: Value | None = None
    for share in range(shares):
        starts = (*(0 for _ in lead), 0, share, 0)
        limits = (*lead, lines, share + 1, STEPS)
        part = ops.b.slice(found, start_indices=starts, limit_indices=limits, strides=(1,) * len(limits))
        if share:
            part = ops.b.shift_left(part, ops.full(plane.bits * share, part))
        total = part if total is None else ops.combine(total, part)
    assert total is not None
    return ops.reshape(total, *lead, lines, STEPS)


# ---- columns of a packed matrix, as numbers ----


def take_columns(b: Builder, layout: Layout, packed: Value, places: Value) -> Value:
    """The elements of some columns, `ui8[1, panel, n, record]` and integers [...] → f32[..., k], as `unblock` has them.

    A place that is not inside is clamped, as in a gather."""
    row, ops = layout.row, BuildOps(b)
    lead = places.shape.sizes
    rank = len(lead)

    def part(at: int, lines: int, steps: int) -> Value:
        """[..., n, line, step] of the record's bytes from `at` on, for the columns.

        Looked up in the whole matrix: what is bound is that, not parts of it."""
        count = packed.shape.numbers()[2]
        index = _record_places(b, places, [at + line * COLUMNS * steps for line in range(lines)], steps)
        dims = GatherDims(
            offset_dims=(rank + 1, rank + 2),
            collapsed_slice_dims=(0, 1),
            operand_batching_dims=(),
            start_indices_batching_dims=(),
            start_index_map=(1, 3),
            index_vector_dim=rank + 1,
        )
        found = b.gather(packed, index, dimension_numbers=dims, slice_sizes=(1, 1, count, steps))
        return b.transpose(found, permutation=(*range(rank), rank + 1, rank, rank + 2))

    def halves(name: str) -> Value:
        found = part(layout.places[name], 1, 2)
        kind = bf16 if row.exponent else f16
        return _to_f32(b, b.bitcast_convert(found, result=Shape.of(kind, found.shape.sizes[:-1])))

    def per_group(name: str, many: str) -> Value:
        found = halves(name)
        place = "scales" if layout.nibbles else many
        if place not in layout.places:
            return found
        integers = part(layout.places[place], layout.groups, 1)
        integers = ops.reshape(integers, *integers.shape.sizes[:-1])
        if layout.nibbles and many == "scales":
            integers = b.and_(integers, ops.full(15, integers))
        elif layout.nibbles:
            integers = b.shift_right_logical(integers, ops.full(4, integers))
        return ops.times(found, ops.to_f32(integers, not layout.nibbles))

    codes: Value | None = None
    for plane in layout.planes:
        bits = _plane_codes(ops, part(plane.at, layout.length // plane.steps, STEPS), plane)
        codes = bits if codes is None else ops.combine(codes, bits)
    assert codes is not None
    if row.codebook:
        levels = ops.lookup(codes, np.array(row.codebook, np.float32))
    else:
        levels = ops.less(ops.to_f32(codes, False), layout.zero) if layout.zero else ops.to_f32(codes, False)
    value = ops.times(per_group("scale", "scales"), levels)
    if row.minimum is not None:
        value = ops.plus(value, per_group("minimum", "minimums"), layout.subtracts)
    count = packed.shape.numbers()[2]
    return ops.reshape(value, *lead, count * layout.length)


def _record_places(b: Builder, places: Value, lines: list[int], steps: int) -> Value:
    """Columns [...] → [..., line, 2]: the panel of a column, and where its `steps` bytes of a line are in a record."""
    kind, sizes, ops = places.shape.dtype, places.shape.sizes, BuildOps(b)
    rank, whole = len(sizes), b.full(COLUMNS, places.shape)
    each = (*sizes, len(lines))
    panel = ops.spread(b.divide(places, whole), tuple(range(rank)), each)
    column = ops.spread(b.remainder(places, whole), tuple(range(rank)), each)
    first = ops.spread(b.constant(np.array(lines), kind), (rank,), each)
    at = b.add(b.multiply(column, ops.full(steps, column)), first)
    return b.concatenate(*(ops.reshape(x, *each, 1) for x in (panel, at)), dimension=rank + 1)


def _plane_codes(ops: BuildOps, lines: Value, plane: Plane) -> Value:
    """A plane's bits at their place in the codes: [..., line, step] → [..., k]."""
    *lead, count, steps = lines.shape.sizes
    assert isinstance(count, int)
    shares = plane.steps // STEPS
    if plane.bits == 8:
        return ops.reshape(lines, *lead, count * STEPS)
    sizes = (*lead, count, shares, steps)
    rank = len(lead)
    whole = ops.spread(lines, (*range(rank + 1), rank + 2), sizes)
    shifts = np.arange(0, 8, plane.bits, dtype=np.uint8)
    shifted = ops.b.shift_right_logical(whole, ops.spread(ops.b.constant(shifts), (rank + 1,), sizes))
    found = ops.b.and_(shifted, ops.full((1 << plane.bits) - 1, shifted))
    if plane.low:
        found = ops.b.shift_left(found, ops.full(plane.low, found))
    return ops.reshape(found, *lead, count * plane.steps)


def _to_f32(b: Builder, x: Value) -> Value:
    return b.convert(x, result=Shape.of(f32, x.shape.sizes))
