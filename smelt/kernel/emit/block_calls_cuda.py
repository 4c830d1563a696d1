"""Calls of the micro-kernels of block-quantised weights, and of what rounds rows for them. `kernel_cuda` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from smelt.ir.blocks import RUN
from smelt.kernel import math
from smelt.kernel.emit.blocks_cuda import block_call, choose_shape
from smelt.kernel.emit.vector_cuda import LANE
from smelt.kernel.loops.grammar import (
    BlockMma,
    Fold,
    Let,
    Number,
    RoundRow,
    Stmt,
    Var,
    affine,
    loads,
    static_extent,
)
from smelt.kernel.loops.simt import WARP, dependencies

if TYPE_CHECKING:
    from smelt.kernel.emit.kernel_cuda import StagePrinter

LINE, MOST_LINES = 128, 16  # bytes of a line of the cache; lines that a thread reads ahead


def print_product(printer: StagePrinter, mma: BlockMma, depth: int) -> list[str]:
    """A call of the micro-kernel of a format by a block: rows, integers, scales, totals, records, tile."""
    kinds = (mma.q, "i8"), (mma.scale, "f32"), (mma.total, "f32")
    rows = [f"{printer.address(of.place, kind)}, {printer.expr(of.strides[0])}" for of, kind in kinds]
    panel, (step, records) = printer.address(mma.panel.place, "ui8"), (mma.panel.strides[2], mma.panel.sizes[0])
    tile = [printer.address(mma.acc.place, "f32"), printer.expr(mma.acc.strides[0]), printer.expr(mma.acc.sizes[1])]
    deep, _, exact = choose_shape(mma)
    pad, call, count = "  " * depth, block_call(mma, deep, exact, printer.stage.ring), printer.expr(mma.acc.sizes[0])
    given = ", ".join([count, *rows, *([] if mma.stages else [panel]), *map(printer.expr, (step, records)), *tile])
    aside = _aside(printer, mma, depth)
    if not mma.stages:
        behind = [f"{pad}if ({LANE} < {WARP}) smelt_aside({LANE}); }}"] if aside else []
        return [*aside, f"{pad}{call}({LANE}, smelt_shared, {given});", *behind]
    var, extent, before = "", "1", tuple[Stmt, ...]()
    if mma in printer.stage.body and printer.stage.var is not None and printer.stage.extent is not None:
        var, extent = printer.stage.var.name, printer.expr(printer.stage.extent)
        wanted = [Let(Var(""), each) for each in (mma.panel.place.index, mma.acc.sizes[1])]
        before = dependencies(printer.stage.body[: printer.stage.body.index(mma)], wanted)
    state = "  smelt_block_ring smelt_ring = {};"
    if var:
        printer.locals["ring"] = state
    panels = f"return smelt_block_panels{{{panel}, {tile[-1]} > 16}};"
    return [
        *aside,
        *([] if var else [f"{pad}{{", state]),
        f"{pad}{call}({LANE}, smelt_shared, smelt_ring, {var or '0'}, {extent}, [&](i64 {var}) {{",
        *printer.block(before, depth + 1),
        f"{pad}  {panels}",
        f"{pad}}}, {given}, {'smelt_aside' if aside else '[](int) {}'});",
        *([] if var else [f"{pad}}}"]),
        *([f"{pad}}}"] if aside else []),
    ]


def _aside(printer: StagePrinter, mma: BlockMma, depth: int) -> list[str]:
    """The beginning of a scope with `smelt_aside`, a function of one warp, which is its group; nothing where there
    is none."""
    if not mma.aside:
        return []
    pad, whole = "  " * depth, printer.stage
    printer.stage = replace(whole, group="warp", row=None)
    body = printer.block(mma.aside, depth + 1)
    printer.stage = whole
    return [f"{pad}{{", f"{pad}const auto smelt_aside = [&](int {LANE}) {{", *body, f"{pad}}};"]


def print_single_row(printer: StagePrinter, mma: BlockMma, depth: int) -> list[str]:
    """The whole body of a launch with a product of a single row: one function gives the weights of a tile; another
    has what is in front of the product and behind it for each tile, and is run by one warp."""
    var, whole = "smelt_only" if printer.stage.var is None else printer.stage.var.name, printer.stage
    extent = "1" if whole.extent is None else printer.expr(whole.extent)
    at, pad, panel = printer.stage.body.index(mma), "  " * depth, printer.address(mma.panel.place, "ui8")
    before, behind = printer.stage.body[:at], printer.stage.body[at + 1 :]
    rows = [each.place.index for each in (mma.q, mma.scale, mma.total)]
    start = dependencies(before, [*(Let(Var(""), each) for each in rows), *mma.aside])
    of_tile = dependencies(before, [Let(Var(""), each) for each in (mma.panel.place.index, mma.acc.sizes[1])])
    given = [printer.address(of.place, kind) for of, kind in ((mma.q, "i8"), (mma.scale, "f32"), (mma.total, "f32"))]
    numbers = mma.panel.strides[2], mma.apart or Number(0), mma.panel.sizes[0]
    given += [*map(printer.expr, numbers), printer.address(mma.acc.place, "f32")]
    deep, _, exact = choose_shape(mma)
    call = block_call(mma, deep, exact, printer.stage.ring)
    lines = [
        f"{pad}{{",
        f"{pad}  const i64 {var} = 0;  // the row is that of all tiles",
        *printer.block(start, depth + 1),
        f"{pad}  {call}({LANE}, smelt_shared, {extent}, [&](i64 {var}) {{",
        *printer.block(of_tile, depth + 2),
        f"{pad}    return smelt_block_panels{{{panel}, {printer.expr(mma.acc.sizes[1])} > 16}};",
        f"{pad}  }}, {', '.join(given)}, [&](auto tiles) {{",
    ]
    printer.stage, touched = replace(whole, group="warp", row=None), list[str]()
    touches = printer.touch(behind, depth + 3, touched)
    lines += [
        f"{pad}    const int smelt_of_block = {LANE}, smelt_of_warp = (int)((ui32)smelt_of_block % {WARP}u);",
        f"{pad}    {{ const int {LANE} = smelt_of_warp;",
        *touch_rows(printer, mma.aside, depth + 2),
        *printer.block(mma.aside, depth + 2),
        f"{pad}    for (i64 {var}; ({var} = tiles.next()) < {extent};) {{",
        *printer.block(before, depth + 3),
        *([f"{pad}      ui32 {', '.join(f'{each} = 0' for each in touched)};"] if touched else []),
        *touches,
        f"{pad}      tiles.wait();",
        *(f"{pad}      smelt_touched({each});" for each in touched),
        *printer.block(behind, depth + 3),
        f"{pad}    }} }}",
        f"{pad}  }});",
        f"{pad}}}",
    ]
    printer.stage = whole
    return lines


def touch_rows(printer: StagePrinter, statements: Sequence[Stmt], depth: int) -> list[str]:
    """Loads of an element of each line that reductions of a warp read: all of them run at once, in front of further
    requests for weights. Then the row is in the L1 cache."""
    lines, pad = list[str](), "  " * depth
    for fold in (each for each in statements if isinstance(each, Fold)):
        values = fold.value, *(each.value for each in fold.body if isinstance(each, Let))
        for load in dict.fromkeys(found for value in values for found in loads(value)):
            steps = [size for term, size in affine(load.place.index).terms if term == fold.var]
            extent, step = static_extent(fold.extent), LINE * 8 // load.dtype.bits
            count = -(-extent // (step * WARP)) if isinstance(extent, int) else 0
            if isinstance(load.place.array, int) and steps == [1] and 0 < count <= MOST_LINES:
                at = f"const i64 {fold.var.name} = {step} * ({LANE} + {WARP} * t);"
                read = f"smelt_touch({printer.address(load.place, math.storage(load.dtype))})"
                lines += [
                    f"{pad}{{ ui32 touched[{count}];",
                    "#pragma unroll",
                    f"{pad}for (int t = 0; t < {count}; t++) {{",
                    f"{pad}  {at}",
                    f"{pad}  touched[t] = {fold.var.name} < {extent} ? {read} : 0;",
                    f"{pad}}}",
                    "#pragma unroll",
                    f"{pad}for (int t = 0; t < {count}; t++) smelt_touched(touched[t]); }}",
                ]
    return lines


def print_rounding(printer: StagePrinter, stmt: RoundRow) -> str:
    kinds = (stmt.q, "i8"), (stmt.scale, "f32"), (stmt.total, "i32" if stmt.zero else "f32")
    columns = str(RUN * stmt.runs) if stmt.columns is None else printer.expr(stmt.columns)
    tile = printer.expr(stmt.rows), columns, printer.address(stmt.row, "f32"), str(stmt.pitch), printer.expr(stmt.step)
    given = LANE, *tile, *(printer.address(place, kind) for place, kind in kinds)
    sizes = stmt.group, stmt.zero, stmt.runs, printer.group_threads, stmt.most
    return f"smelt_round_rows<{', '.join(map(str, sizes))}>({', '.join(given)});"
