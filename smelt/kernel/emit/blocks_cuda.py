"""CUDA micro-kernels of block-quantised weights, on int8 tensor cores: `smelt_blocks_FORMAT`.

Weights are loaded straight into registers (`ir.block_layout`). A warp computes 32 columns, which are two panels, and
every eighth block of K; a unit is 32 steps of it. A thread reads 8 steps of 4 adjacent columns, which are the left
operands of two `mma.sync`; integers may be summed in any order. The sums of a unit are scaled and added up in f32. The
sums of the eight warps are added in order, so bits do not depend on the number of rows. Device functions in front of
`SUMS` have counterparts in the tests' emulator.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.ir.block_layout import COLUMNS, LINE, STEPS, Layout, Plane
from smelt.ir.blocks import BLOCKS, RUN
from smelt.kernel.loops.grammar import BlockMma
from smelt.kernel.loops.tensor_tile import BLOCK_ROWS

PREFIX = "smelt_blocks_"
INSTRUCTIONS = """\
struct __align__(8) smelt_pair { ui32 x[2]; };
#ifdef __CUDACC__
inline void smelt_mma_bytes(i32 *c, const ui32 *a, const ui32 *b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};" : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
inline ui32 smelt_read_word(const void *from) {  // now: no compiler moves it to where it is used
  ui32 to;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(to) : "l"(from) : "memory");
  return to;
}
inline smelt_pair smelt_read_pair(const void *from) {
  smelt_pair to;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to.x[0]), "=r"(to.x[1]) : "l"(from) : "memory");
  return to;
}
inline f32 smelt_widen_half(ui32 x) {
  f32 y;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(y) : "r"(x));
  return y;
}
#endif
"""
SUMS = """\
inline f32 smelt_byte_to_f32(ui32 word, int at) { return (f32)(i8)(word >> 8 * at); }
// Four codes of four bits, which are the places of bytes in a table.
inline ui32 smelt_look_up(ui32 codes, ui32 t0, ui32 t1, ui32 t2, ui32 t3) {
  ui32 places = (codes | codes >> 4) & 0x00ff00ffu;
  places = (places | places >> 8) & 0x7777u;
  const ui32 high = (codes >> 3 & 0x01010101u) * 255;
  return (__byte_perm(t0, t1, places) & ~high) | (__byte_perm(t2, t3, places) & high);
}
// Up to ROWS rows [row, k] of i8 by 32 columns. U: a unit of a format, as a thread holds it. Weights come DEEP units
// ahead; up to 8 rows as well, more come from a cache when they are needed.
template <class U, int ROWS, int DEEP> inline void smelt_block_rows(int lane, char *ring, i64 rows, const i8 *q,
    i64 q_row, const f32 *scale, i64 scale_row, const typename U::Total *total, i64 total_row, const ui8 *w, i64 panel,
    i64 blocks, f32 *acc, i64 width, i64 columns) {
  enum { PARTS = U::GROUPS, UNITS = U::UNITS, GROUPS = (ROWS + 7) / 8, SIDES = ROWS == 1 ? 1 : 2 };
  enum { AHEAD = GROUPS == 1 ? DEEP : 1 };
  const int warp = lane / 32, group = lane % 32 / 4, member = lane % 4;
  const int units = (int)((blocks - warp + 7) / 8) * UNITS;  // of this warp
  const ui8 *from = w + (group < 4 || columns <= 16 ? 0 : panel) + warp * (i64)U::BYTES;  // one panel may not be there
  struct Left { smelt_pair q[GROUPS]; ui32 scale[GROUPS][2], total[GROUPS][2][PARTS]; };
  U y[DEEP];
  Left x[AHEAD];
  f32 sum[GROUPS][4][2] = {};
  int next = 0;  // the unit of its block that is loaded next
  const auto load_weights = [&](U &to) {
    to.load(from, next, member, group % 4);
    if (++next == UNITS) { next = 0; from += 8 * U::BYTES; }
  };
  const auto load_rows = [&](Left &to, int at) {
    const int unit = (warp + at / UNITS * 8) * UNITS + at % UNITS;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      const int mine = 8 * g + group;
      to.q[g] = smelt_pair{};
      if (mine < (int)rows) to.q[g] = smelt_read_pair(q + (mine * (int)q_row + unit * 32 + 8 * member));
#pragma unroll
      for (int e = 0; e < SIDES; e++) {
        const int r = 8 * g + 2 * member + e;
        const bool there = r < (int)rows;
        to.scale[g][e] = there ? smelt_read_word(scale + (r * (int)scale_row + unit)) : 0;
#pragma unroll
        for (int p = 0; p < PARTS; p++)
          to.total[g][e][p] =
              U::TOTALS && there ? smelt_read_word(total + (r * (int)total_row + unit * PARTS + p)) : 0;
      }
    }
  };
  const auto multiply = [&](const U &weights, const Left &now) {
    ui32 low[4], high[4];
    weights.codes(member, low, high);
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      f32 factor[4], less[4];
      weights.factors(p, factor, less);
      const ui32 mask = PARTS == 1 || member / 2 == p ? 0xffffffffu : 0;  // whose steps belong to the group
#pragma unroll
      for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const ui32 u[4] = {low[2 * half] & mask, low[2 * half + 1] & mask,
                             high[2 * half] & mask, high[2 * half + 1] & mask};
          i32 c[4];
#pragma unroll
          for (int e = 0; e < 4; e++) c[e] = U::ZERO && e % 2 < SIDES ? (i32)now.total[g][e % 2][p] : 0;
          smelt_mma_bytes(c, u, now.q[g].x);
#pragma unroll
          for (int e = 0; e < 4; e += 3 - SIDES) {
            const int j = 2 * half + e / 2;
            f32 term = (factor[j] * __uint_as_float(now.scale[g][e % 2])) * (f32)c[e];
            if (U::MINIMUM) {
              const f32 more = less[j] * __uint_as_float(now.total[g][e % 2][p]);
              term = U::SUBTRACTS ? term - more : term + more;
            }
            sum[g][j][e % 2] += term;
          }
        }
    }
  };
#pragma unroll
  for (int i = 0; i < DEEP; i++)
    if (i < units) load_weights(y[i]);  // which no launch writes
  smelt_await();
  if (AHEAD > 1)
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (i < units) load_rows(x[i], i);
  int at = 0;
#pragma unroll 1
  for (; at + 2 * DEEP <= units; at += DEEP)  // as many units again are there: units wait for no others
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
      Left &now = x[AHEAD > 1 ? i : 0];
      if (AHEAD == 1) load_rows(now, at + i);
      multiply(y[i], now);
      load_weights(y[i]);
      if (AHEAD > 1) load_rows(now, at + DEEP + i);
    }
#pragma unroll 1
  for (; at < units; at += DEEP)
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
      Left &now = x[AHEAD > 1 ? i : 0];
      if (at + i < units) {
        if (AHEAD == 1) load_rows(now, at + i);
        multiply(y[i], now);
      }
      if (at + DEEP + i < units) {
        load_weights(y[i]);
        if (AHEAD > 1) load_rows(now, at + DEEP + i);
      }
    }
  f32 *const part = (f32 *)ring;  // the sums of every warp, which are added in order
#pragma unroll
  for (int g = 0; g < GROUPS; g++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < SIDES; e++) {
        const int r = 8 * g + 2 * member + e, c = 4 * group + j;
        if (r < rows) part[(warp * rows + r) * 32 + c] = sum[g][j][e];
      }
  __syncthreads();
  for (int at = lane; at < rows * 32; at += 256) {
    const int r = at / 32, c = at % 32;
    if (c >= columns) continue;
    f32 total = part[at];
#pragma unroll
    for (int s = 1; s < 8; s++) total += part[s * rows * 32 + at];
    acc[r * width + c] = total;  // the tile of sums may begin where the parts do, with rows of the same width
  }
}
"""
ALONE, FEW_WORDS = (
    80,
    12,
)  # registers for what a thread reads ahead where its block is alone; of a unit, where it is short


def choose_shape(mma: BlockMma, alone: bool) -> tuple[int, int]:
    """(Units that are read ahead, blocks on a multiprocessor). `alone`: there is one block for each, which reads far
    ahead; else other blocks hide the waits of one."""
    few, some, _ = BLOCK_ROWS
    if mma.most > few:
        return 2, 2 if mma.most <= some else 1
    layout = Layout.of(mma.format)
    parts = RUN // layout.group
    words = sum(8 if plane.bits == 8 else 4 for plane in layout.planes)
    words += sum(2 if name in ("scale", "minimum") else parts for name in layout.places if name != "end")
    words += 2 + (1 + parts) * min(mma.most, 2)  # of the rows
    if alone:
        return min(8, ALONE // words), 1
    return (2, 4) if words <= FEW_WORDS else (4 if words <= 14 else 2, 2)


def block_call(mma: BlockMma, deep: int) -> str:
    """The name of the function for a format, at most this number of rows, and units that are read ahead."""
    return f"smelt_block_rows<{PREFIX}{mma.format}, {mma.most}, {deep}>"


def block_kernels(text: str) -> str:
    """The functions that a text calls; `emit.tile_mma` has what loads words."""
    found = [each for each in BLOCKS if f"<{PREFIX}{each}, " in text]
    if not found:
        return ""
    return "".join([INSTRUCTIONS, SUMS, *(unit_text(Layout.of(each)) for each in found)])


def unit_text(layout: Layout) -> str:
    """A unit of a format: 8 steps of 4 adjacent columns in a thread, and what its sums are multiplied by."""
    row, places = layout.row, layout.places
    groups = RUN // layout.group
    facts = {
        "GROUPS": groups,
        "UNITS": layout.length // RUN,
        "BYTES": layout.record,
        "ZERO": int(layout.zero > 0),
        "MINIMUM": int(row.minimum is not None),
        "SUBTRACTS": int(layout.subtracts),
        "TOTALS": int(layout.zero > 0 or row.minimum is not None),
    }
    loaded = [*_loads(layout)]
    per_group = [name for name in ("scales", "minimums") if name in places]
    fields = [f"  smelt_words {name};" for name, _ in loaded]
    fields += [f"  smelt_pair {name};" for name in ("scale", "minimum") if name in places]
    fields += [f"  ui32 {name}[{groups}];" for name in per_group]
    lines = [
        f"struct {PREFIX}{row.name} {{",
        f"  enum {{ {', '.join(f'{name} = {value}' for name, value in facts.items())} }};",
        f"  typedef {'i32' if layout.zero else 'f32'} Total;",
        *fields,
        "  inline void load(const ui8 *record, int unit, int member, int quad) {",
        *(f"    {name} = smelt_stream(record + {place} + 16 * quad);" for name, place in loaded),
        *(
            f"    {name} = smelt_read_pair(record + {places[name]} + 8 * quad);"
            for name in ("scale", "minimum")
            if name in places
        ),
        *(
            f"    {name}[{p}] = smelt_read_word(record + {places[name]} + (unit * {groups} + {p}) * {COLUMNS}"
            " + 4 * quad);"
            for name in per_group
            for p in range(groups)
        ),
        "  }",
        *_codes(layout),
        *_factors(layout),
        "};",
        "",
    ]
    return "\n".join(lines)


def _loads(layout: Layout) -> Iterator[tuple[str, str]]:
    """Names and places of the 16 bytes that a thread reads of each plane: those of its quads of steps."""
    for number, plane in enumerate(layout.planes):
        lines = RUN // plane.steps  # of a unit
        unit = f"{plane.at} + unit * {lines * LINE}"
        if plane.bits == 8:
            for share in range(2):
                yield f"p{number}_{share}", f"{unit} + (2 * member + {share}) * {LINE}"
        else:
            per_line = plane.steps // STEPS  # quads of a line
            line = "member" if per_line == 2 else f"2 * member / {per_line}"
            yield f"p{number}", f"{unit} + ({line}) * {LINE}" if lines > 1 else unit


def _codes(layout: Layout) -> list[str]:
    lines = ["  inline void codes(int member, ui32 (&low)[4], ui32 (&high)[4]) const {", "#pragma unroll"]
    lines.append("    for (int j = 0; j < 4; j++) {")
    for share, to in enumerate(("low", "high")):
        parts = [_cut(number, plane, share) for number, plane in enumerate(layout.planes)]
        value = " | ".join(parts)
        if layout.codebook:
            book = layout.codebook
            words = [sum(book[STEPS * i + j] << 8 * j for j in range(STEPS)) for i in range(len(book) // STEPS)]
            value = f"smelt_look_up({value}, {', '.join(f'{word}u' for word in words)})"
        lines.append(f"      {to}[j] = {value};")
    return [*lines, "    }", "  }"]


def _cut(number: int, plane: Plane, share: int) -> str:
    """The bits of a plane for one of the two quads of a thread, at their place in the codes."""
    if plane.bits == 8:
        return f"p{number}_{share}.x[j]"
    per_line = plane.steps // STEPS
    quad = f"{share}" if per_line == 2 else f"(2 * member + {share}) % {per_line}"
    mask = ((1 << plane.bits) - 1) * 0x01010101
    shifted = f"p{number}.x[j] >> {plane.bits} * ({quad})" if quad != "0" else f"p{number}.x[j]"
    moved = f"({shifted} & {mask}u)"
    return f"{moved} << {plane.low}" if plane.low else moved


def _factors(layout: Layout) -> list[str]:
    row = layout.row

    def half(name: str) -> str:
        word = f"({name}.x[j / 2] >> 16 * (j % 2) & 0xffffu)"
        return f"__uint_as_float({word} << 16)" if row.exponent else f"smelt_widen_half({word})"

    def integer(name: str) -> str | None:
        if layout.nibbles:
            down = 0 if name == "scales" else 4
            return f"(f32)(scales[p] >> (8 * j + {down}) & 15)"
        return f"smelt_byte_to_f32({name}[p], j)" if name in layout.places else None

    lines = ["  inline void factors(int p, f32 (&factor)[4], f32 (&less)[4]) const {", "#pragma unroll"]
    lines.append("    for (int j = 0; j < 4; j++) {")
    for to, name, many in (("factor", "scale", "scales"), ("less", "minimum", "minimums")):
        if name in layout.places:
            times = integer(many)
            lines.append(f"      {to}[j] = {half(name)}{f' * {times}' if times else ''};")
    return [*lines, "    }", "  }"]
