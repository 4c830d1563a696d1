"""Rows that a block keeps in registers (`loops.rows`), in CUDA. `kernel_cuda` calls `print_loop` for their loops.

All threads compute the terms of a reduction, and one warp adds them up, in the order of a `Fold`; the others wait for
the total. Its chain of dependent additions takes the time of such a launch, so terms are read before it needs them.
The order of a maximum does not matter: each thread finds that of its own terms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.kernel import math
from smelt.kernel.emit.printer import apply_text
from smelt.kernel.emit.vector_cuda import LANE
from smelt.kernel.loops.fold import identity
from smelt.kernel.loops.grammar import Fold, For, Place, Stmt, Store, add
from smelt.kernel.loops.rows import AT, ROW, VECTOR, WARP, WIDTH, Row

if TYPE_CHECKING:
    from smelt.dtype import DType
    from smelt.kernel.emit.kernel_cuda import StagePrinter

TURN, TOTAL = "smelt_turn", "smelt_row_total"
OWN, WARPS = "smelt_own", "smelt_row_warps"  # terms of a thread; results of the warps
# `smelt_read_pack` is an ordinary load: it stays between the barriers that it is between.
FOLD_ROW = """\
template <class P> inline P smelt_read_pack(const void *from) {
  P to;
#ifdef __CUDACC__
  if (sizeof(P) == 16) {
    const uint4 words = *(const uint4 *)from;
    memcpy(&to, &words, sizeof(P));
    return to;
  }
  if (sizeof(P) == 8) {
    const uint2 words = *(const uint2 *)from;
    memcpy(&to, &words, sizeof(P));
    return to;
  }
#endif
  to = *(const P *)from;
  return to;
}
template <int N, class T, class F> inline T smelt_fold_row(int lane, const T *terms, T part, F add) {
  const int each = 16, whole = N / (32 * each);
  T now[each], next[each];
  if (whole) {
#pragma unroll
    for (int i = 0; i < each; i++) now[i] = terms[lane + 32 * i];
  }
#pragma unroll 1
  for (int turn = 1; turn < whole; turn++) {
#pragma unroll
    for (int i = 0; i < each; i++) next[i] = terms[lane + 32 * (each * turn + i)];
#pragma unroll
    for (int i = 0; i < each; i++) part = add(part, now[i]);
#pragma unroll
    for (int i = 0; i < each; i++) now[i] = next[i];
  }
  if (whole) {
#pragma unroll
    for (int i = 0; i < each; i++) part = add(part, now[i]);
  }
#pragma unroll
  for (int at = 32 * each * whole; at < N; at += 32)
    if (N - at >= 32 || lane < N - at) part = add(part, terms[at + lane]);
  return part;
}
"""


def print_loop(printer: StagePrinter, row: Row, stmt: Stmt, loop: For, depth: int) -> list[str]:
    """A reduction or a map of a row, and in front of the first one what the threads hold."""
    lines = _hold(printer, row, depth) if stmt == row.loops[0][0] else []
    printer.held = {vector: f"smelt_held{i}[{TURN}]" for i, vector in enumerate(row.held)}
    printer.alone = True
    if isinstance(stmt, Fold):
        lines += _fold(printer, row, stmt, loop, depth)
        printer.alone = False
    else:
        shown = _turns(printer, row, loop, depth, 0, row.turns)
        printer.alone = False
        lines += printer.fence(shown, stmt, "  " * depth)
    printer.held = {}
    return lines


def _hold(printer: StagePrinter, row: Row, depth: int) -> list[str]:
    """The vectors that threads keep, in arrays that become registers."""
    pad = "  " * depth
    declared, read = [], []
    for i, (place, dtype) in enumerate(row.held):
        kind = math.storage(dtype)
        pack = f"smelt_vector<{kind}, {WIDTH}>"
        declared.append(f"{pad}{pack} smelt_held{i}[{row.turns}];")
        where = printer.address(place, kind)
        read.append(f"{pad}  {_guard(row)}smelt_held{i}[{TURN}] = smelt_read_pack<{pack}>({where});")
    return [*declared, *_loop_head(row, pad, 0, row.turns), *read, f"{pad}}}"]


def _loop_head(row: Row, pad: str, first: int, end: int) -> list[str]:
    return [
        "#pragma unroll",
        f"{pad}for (int {TURN} = {first}; {TURN} < {end}; {TURN}++) {{",
        f"{pad}  const i64 {VECTOR.name} = {LANE} + {row.threads} * {TURN};",
    ]


def _guard(row: Row) -> str:
    """Whether there is such a vector."""
    return "" if row.vectors % row.threads == 0 else f"if ({VECTOR.name} < {row.vectors}) "


def _turns(printer: StagePrinter, row: Row, loop: For, depth: int, first: int, end: int) -> list[str]:
    """A loop over vectors on some of the vectors of each thread."""
    pad = "  " * depth
    reads, rest = printer.vector_loop(loop, depth + 2)
    return [*_loop_head(row, pad, first, end), f"{pad}  {_guard(row)}{{", *reads, *rest, f"{pad}  }}", f"{pad}}}"]


def _fold(printer: StagePrinter, row: Row, fold: Fold, loop: For, depth: int) -> list[str]:
    """Terms go through shared memory, as many at a time as it has room for, to the first warp; those of a maximum do
    not, as their order does not matter."""
    pad, kind, wide = "  " * depth, math.register(fold.total.dtype), fold.accumulator

    def step(a: str, b: str, of: DType) -> str:
        return apply_text(fold.function, [a, b], [of, of], of)

    tree = [
        f"{{ const {kind} other = smelt_shuffle_down(part, {half}); part = {step('part', 'other', wide)}; }}"
        for half in (16, 8, 4, 2, 1)
    ]
    total = step(printer.expr(fold.start), "part", fold.total.dtype)
    none = math.literal(identity(fold.function, wide).value, wide)
    printer.locals[TOTAL] = f"  __shared__ __align__(16) char {TOTAL}[16];"
    end = [
        f"{pad}  if ({LANE} < {WARP}) {{",
        *(f"{pad}    {line}" for line in tree),
        f"{pad}    if ({LANE} == 0) *({kind} *){TOTAL} = {total};",
        f"{pad}  }}",
        f"{pad}  __syncthreads();",  # after it the terms and, after the next one, the total may be overwritten
        f"{pad}  {fold.total.name} = *({kind} *){TOTAL};",
        f"{pad}}}",
    ]
    if fold.function in ("maximum", "minimum"):
        *body, last = loop.body
        assert isinstance(last, Store)
        own = loop.replace(body=(*body, last.replace(place=Place(OWN, AT))))
        size = wide.numpy.itemsize
        printer.locals[WARPS] = f"  __shared__ __align__(16) char {WARPS}[{WARP * 8}];"
        reads, rest = printer.vector_loop(own, depth + 3)
        count = row.threads // WARP
        return [
            f"{pad}{kind} {fold.total.name};",
            f"{pad}{{ {kind} part = {none};",
            *_loop_head(row, pad + "  ", 0, row.turns),
            f"{pad}    {_guard(row)}{{",
            f"{pad}      __align__({WIDTH * size}) {kind} {OWN}[{WIDTH}];",
            *reads,
            *rest,
            "#pragma unroll",
            f"{pad}      for (int i = 0; i < {WIDTH}; i++) part = {step('part', f'{OWN}[i]', wide)};",
            f"{pad}    }}",
            f"{pad}  }}",
            *(f"{pad}  {line}" for line in tree),
            f"{pad}  if ({LANE} % {WARP} == 0) (({kind} *){WARPS})[{LANE} / {WARP}] = part;",
            f"{pad}  __syncthreads();",
            f"{pad}  if ({LANE} < {WARP}) part = {LANE} < {count} ? (({kind} *){WARPS})[{LANE}] : {none};",
            *end,
        ]
    if not row.lent:
        printer.locals[ROW] = f"  __shared__ __align__(16) char {ROW}_terms[{row.term_bytes}];"
    add_up = f"[](const {kind} part, const {kind} term) {{ return ({kind}){step('part', 'term', wide)}; }}"
    lines = [
        f"{pad}{kind} {fold.total.name};",
        f"{pad}{{ {kind} *const {ROW} = ({kind} *){row.lent or f'{ROW}_terms'};",
        f"{pad}  {kind} part = {none};",
    ]
    for first in range(0, row.turns, row.chunk):
        behind = min(first + row.chunk, row.turns)
        begin = first * row.threads * WIDTH
        count = min(row.extent, behind * row.threads * WIDTH) - begin
        *body, last = loop.body
        assert isinstance(last, Store)
        terms = loop.replace(body=(*body, last.replace(place=Place(ROW, add(last.place.index, -begin)))))
        lines += [
            *([f"{pad}  __syncthreads();"] if first else []),
            *_turns(printer, row, terms, depth + 1, first, behind),
            f"{pad}  __syncthreads();",
            f"{pad}  if ({LANE} < {WARP}) part = smelt_fold_row<{count}>({LANE}, {ROW}, part, {add_up});",
        ]
    return [*lines, *end]
