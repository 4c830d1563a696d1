"""Calls of the micro-kernels of attention, whose blocks are functions that they call. `kernel_cuda` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smelt.dtype import DType, bf16
from smelt.kernel import math
from smelt.kernel.emit.vector_cuda import LANE
from smelt.kernel.loops.grammar import Attend, Decode, Expr, Let, Place, Stmt, Var, reads_from
from smelt.kernel.loops.simt import Stage, dependencies
from smelt.kernel.loops.tensor_tile import decode_slots, flash_parts, flash_stages

if TYPE_CHECKING:
    from smelt.kernel.emit.kernel_cuda import StagePrinter


def print_attend(printer: StagePrinter, attend: Attend, depth: int) -> list[str]:
    """A call of `smelt_attend`."""
    stages, pad = flash_stages(attend, printer.stage.ring), "  " * depth
    row, key = (f"i64 {var.name}" for var in (attend.row, attend.key))
    q, k, v = attend.types
    keys = f"{key}, i64 {attend.step.name}" if attend.adjacent else key
    printer.alone = True
    functions = [
        *_place_function(printer, row, attend.at_row, attend.q, q, depth),
        *_place_function(printer, keys, attend.at_key, attend.k, k, depth),
        *_place_function(printer, key, attend.at_key, attend.v, v, depth),
        *_function(
            printer,
            f"f32 {attend.score.name}, {row}, {key}",
            attend.mask,
            f"return {printer.expr(attend.masked)};",
            depth,
        ),
        *_function(
            printer, f"i64 {attend.start.name}", attend.classify, f"return (int){printer.expr(attend.kind)};", depth
        ),
        *_function(
            printer, f"f32 {attend.total.name}", attend.normalise, f"return {printer.expr(attend.factor)};", depth
        ),
        *(
            _function(printer, f"{row}, i64 {attend.column.name}, f32 {attend.element.name}", attend.put, "", depth)
            if attend.target is None
            else _place_function(printer, row, attend.put, attend.target, attend.form.left, depth, written=True)
        ),
    ]
    printer.alone = False
    parts = flash_parts(attend.form.left)  # of weights
    flags = int(attend.raw), int(attend.target is not None), int(attend.adjacent)
    sizes = attend.depth, attend.values, attend.tile, stages, attend.block // 64, parts, *flags
    given = ", ".join((LANE, "smelt_shared", *map(printer.expr, (attend.rows, attend.keys, attend.scale))))
    return [f"{pad}smelt_attend<{', '.join(map(str, sizes))}>({given},", *_end_call(functions)]


def print_decode(printer: StagePrinter, decode: Decode, depth: int) -> list[str]:
    """A call of `smelt_decode`."""
    pad = "  " * depth
    row, key, step = (f"i64 {var.name}" for var in (decode.row, decode.key, decode.step))
    score = f"f32 {decode.score.name}, {row}, {key}"
    found = f"i64 {decode.column.name}, f32 {decode.element.name}, f32 {decode.total.name}"
    printer.alone = True
    functions = [
        *_function(printer, f"{row}, {step}", decode.at_query, f"return {printer.expr(decode.query)};", depth),
        *_key_functions(printer, decode, depth),
        *_function(printer, score, decode.mask, f"return {printer.expr(decode.masked)};", depth),
        *_function(printer, f"i64 {decode.chunk.name}, {row}, {found}", decode.put, "", depth),
        *_function(printer, row, decode.at_sink, f"return {printer.expr(decode.sink)};", depth),
    ]
    printer.alone = False
    slots, flags = decode_slots(decode, printer.stage.ring), (int(decode.whole), int(decode.adjacent))
    sizes = decode.depth, decode.values, decode.most, slots, decode.share, decode.check, *flags
    given = ", ".join((LANE, "smelt_shared", *map(printer.expr, (decode.rows, *_numbers(decode)))))
    return [f"{pad}smelt_decode<{', '.join(map(str, sizes))}>({given},", *_end_call(functions)]


def find_decode(stage: Stage) -> Decode | None:
    """Flash-decoding that is what each iteration of a launch does, and reads all keys in order: the first chunks that a
    window leaves are found by the kernel itself."""
    found = next((each for each in stage.body if isinstance(each, Decode)), None)
    return None if found is None or found.check or stage.var is None or stage.extent is None else found


def early_reads(stage: Stage) -> tuple[int, ...] | None:
    """The buffers that a launch reads before it waits for the one in front, if it is told to; None: it never does."""
    decode = find_decode(stage)
    if decode is None:
        return None
    return tuple(each for each in reads_from((*_start(stage, decode), *decode.at_key)) if isinstance(each, int))


def print_early(printer: StagePrinter) -> list[str]:
    """Prefetches of keys and values into the cache of the device, for what flash-decoding does before it waits."""
    stage, kept = printer.stage, printer.locals
    decode = find_decode(stage)
    if decode is None:
        return []
    assert stage.var is not None
    assert stage.extent is not None
    printer.locals = {}
    var, extent, before = stage.var.name, printer.expr(stage.extent), printer.block(_start(stage, decode), 3)
    given = ", ".join((LANE, *map(printer.expr, _numbers(decode))))
    printer.alone = True
    functions = _key_functions(printer, decode, 3)
    printer.alone = False
    own, printer.locals = printer.locals, kept
    return [
        "  if (smelt_begins_early) {",
        *(f"  {each}" for each in own.values()),
        f"    if (const i64 {var} = blockIdx.x; {var} < {extent}) {{",
        *before,
        f"      smelt_decode_ahead<{decode.depth}, {decode.values}, {str(decode.adjacent).lower()}>({given},",
        *_end_call(functions),
        "    }",
        "  }",
    ]


def _start(stage: Stage, decode: Decode) -> tuple[Stmt, ...]:
    """What is in front of flash-decoding that its keys depend on."""
    places = decode.k.index, decode.v.index
    wanted = [*decode.at_key, *(Let(Var(""), each) for each in (*_numbers(decode), *places))]
    return dependencies((*stage.before, *stage.body[: stage.body.index(decode)]), wanted)


def _numbers(decode: Decode) -> tuple[Expr, ...]:
    """Which keys it reads."""
    return decode.keys, decode.first, decode.stride, decode.count, decode.k_step, decode.v_step


def _key_functions(printer: StagePrinter, decode: Decode, depth: int) -> list[str]:
    key = f"i64 {decode.key.name}"
    places = (_place_function(printer, key, decode.at_key, of, bf16, depth) for of in (decode.k, decode.v))
    return [line for each in places for line in each]


def _function(printer: StagePrinter, arguments: str, body: Sequence[Stmt], result: str, depth: int) -> list[str]:
    pad = "  " * depth
    return [f"{pad}  [&]({arguments}) {{", *printer.block(body, depth + 2), f"{pad}    {result}", f"{pad}  }},"]


def _place_function(
    printer: StagePrinter,
    arguments: str,
    body: Sequence[Stmt],
    place: Place,
    dtype: DType,
    depth: int,
    *,
    written: bool = False,
) -> list[str]:
    kind = math.storage(dtype)
    result = f"return ({'' if written else 'const '}{kind} *)({printer.address(place, kind)});"
    return _function(printer, arguments, body, result, depth)


def _end_call(functions: list[str]) -> list[str]:
    """The last arguments of a call."""
    return [*functions[:-1], functions[-1].rstrip(",") + ");"]
