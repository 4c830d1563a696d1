"""Products of bytes: `smelt.packed_qdot` and `smelt.packed_qconv` fill tiles of i32 from rows of ui8 and panels of i8.

Convolutions are `build_conv`'s with another `Form`, products are like those of `build_contract`. Sums are exact, so
nothing here decides about bits. What shifts, scales and rounds the sums follows as the epilogue.
"""

from __future__ import annotations

from smelt.dim import ceildiv, maximum
from smelt.dtype import i8, i32, i64
from smelt.ir.core import Op
from smelt.ir.ops.packed_bytes import QUAD
from smelt.kernel.build_contract import Columns, address, place, share_of, shares, tiles
from smelt.kernel.build_conv import Form, convolve
from smelt.kernel.loop import Amount, Array, Expr, Number, Product, add, scale, split
from smelt.kernel.nest import Index, Nest, pull, tensor
from smelt.kernel.sinks import Output, sink

BLOCK = 512  # steps whose lines of a panel stay in the nearest cache while rows pass by
ROWS = 12  # of one call of a product
NEAR = 192  # rows that pass by a block of a panel
BYTES = Form(i32, QUAD, BLOCK, narrow=True)


@pull("smelt.pack_quads")
def pack_quads(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    """[group, panel, quad, 4 * j + step]: column `panel * width + j`, zero where there is none."""
    group, panel, quad, at = index
    depth, columns = tensor(op.operands[0]).sizes[1:]
    width = op.attrs["width"]
    j, step = split(at, QUAD)
    column, k = add(scale(panel, width), j), add(scale(quad, QUAD), step)
    there = [
        nest.less(nest.let(index), Amount(size))
        for index, size, whole in ((k, depth, QUAD), (column, columns, width))
        if not isinstance(size, int) or size % whole
    ]
    if not there:
        return nest.pull(op.operands[0], (group, k, column))
    return nest.choose(
        nest.both(*there), lambda: nest.pull(op.operands[0], (group, k, column)), lambda: Number(0, i8), i8
    )


@sink("smelt.packed_qdot", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_qdot(nest: Nest, op: Op, output: Output) -> None:
    """Many rows x one panel: every block of the panel stays near while the rows pass by."""
    lhs, panels = op.operands
    groups, rows, depth = tensor(lhs).sizes
    own, count, _, line = tensor(panels).sizes
    assert isinstance(line, int)
    width = line // QUAD
    most = ROWS * share_of(ceildiv(rows, ROWS), NEAR // ROWS, count * groups)
    chunks = ceildiv(rows, most)
    with nest.loops((groups, chunks, count)) as (group, chunk, panel):
        first, used = shares(nest, chunk, rows, chunks)
        tile = nest.var(i32, stem="tile").name
        nest.emit(Array(tile, i32, most * width))
        columns = Columns.of(nest, panel, width, tensor(op.result).sizes[2], i32)
        with nest.loop(maximum(ceildiv(depth, BLOCK), 1), "ordered") as block:
            done = nest.let(scale(block, BLOCK))
            extent = nest.apply("minimum", Number(BLOCK), nest.let(add(depth, scale(done, -1))), dtype=i64)
            lines = nest.let(scale(block, BLOCK // QUAD))
            b = place(nest, op, panels, (Number(0) if own == 1 else group, panel, lines, Number(0)))
            with tiles(nest, used, ROWS) as ((part, parts), above, height):
                a = address(nest, op, lhs, group, add(first, above), done)
                nest.emit(
                    Product(
                        tile,
                        height,
                        *a,
                        *b,
                        Amount(line),
                        extent,
                        place=scale(above, width),
                        join=block,
                        ahead=part,
                        tiles=parts,
                        columns=columns.fewest,
                        narrow=True,
                    )
                )
        with nest.loop(used, "ordered") as row:
            here = (group, add(first, row))
            columns.store(nest, op, output, tile, row, lambda column: (*here, column))


@sink("smelt.packed_qconv", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_qconv(nest: Nest, op: Op, output: Output) -> None:
    convolve(nest, op, output, BYTES)
