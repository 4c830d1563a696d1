"""CUDA micro-kernels of block-quantised weights, on int8 tensor cores: `smelt_blocks_FORMAT`.

Weights are loaded straight into registers (`ir.block_layout`). A warp computes 32 columns, which are two panels, and a
share of K: every eighth or sixteenth block of it. A unit is 32 steps. A thread reads 8 steps of 4 adjacent columns,
which are the left operands of two `mma.sync`; integers may be summed in any order. Codes with a zero are signed bytes,
shifted up so that the zero is 128. The sums of a unit are multiplied by the integers of their groups, scaled, and
added up in f32. The sums of shares are added in order, so bits do not depend on the number of rows. Device functions in
front of `SUMS` have counterparts in the tests' emulator.
"""

from __future__ import annotations

from smelt.ir.block_layout import COLUMNS, LINE, STEPS, Layout, Plane
from smelt.ir.blocks import BLOCKS, RUN
from smelt.kernel.emit.blocks_round_cuda import ROUND
from smelt.kernel.emit.blocks_single_cuda import SINGLE
from smelt.kernel.emit.blocks_stream_cuda import STREAM
from smelt.kernel.emit.blocks_tile_cuda import TILE
from smelt.kernel.loops.grammar import Amount, BlockMma, Expr
from smelt.kernel.loops.simt import MULTIPROCESSORS
from smelt.kernel.loops.tensor_tile import (
    BLOCK_ROWS,
    STAGED_WARPS,
    block_threads,
    chunk_records,
    held_pitch,
    shares_at_once,
    stages_rows,
    stream_shape,
)

PREFIX = "smelt_blocks_"
INSTRUCTIONS = """\
struct __align__(8) smelt_two_words { ui32 x[2]; };
#ifdef __CUDACC__
template <bool SIGNED> inline void smelt_mma_bytes(i32 *c, const ui32 *a, const ui32 *b) {  // c = a * b
  if (SIGNED)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
        " {%10, %10, %10, %10};" : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
        " {%10, %10, %10, %10};" : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}
template <bool SIGNED> inline void smelt_mma_more_bytes(i32 *c, const ui32 *a, const ui32 *b) {  // c += a * b
  if (SIGNED)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
        " {%0, %1, %2, %3};" : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
        " {%0, %1, %2, %3};" : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
inline ui32 smelt_touch(const void *from) {  // brings it to the cache; `smelt_touched` takes the result
  ui32 some;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(some) : "l"(from) : "memory");
  return some;
}
inline ui32 smelt_read_word(const void *from) {  // now: no compiler moves it to where it is used
  ui32 to;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(to) : "l"(from) : "memory");
  return to;
}
inline smelt_two_words smelt_read_pair(const void *from) {
  smelt_two_words to;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to.x[0]), "=r"(to.x[1]) : "l"(from) : "memory");
  return to;
}
inline i32 smelt_byte(ui32 word, int at) {  // with its sign
  i32 y;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(word), "r"(0x8880 + 0x1111 * at));
  return y;
}
inline ui32 smelt_sign_bits() {  // of four bytes: a constant that no compiler writes to a register at every use
  ui32 some;
  asm volatile("mov.u32 %0, %%nsmid;" : "=r"(some));
  return 0x80808080u | some >> 31;
}
inline void smelt_touched(ui32 some) {  // loads whose results are not used would be left out
  asm volatile("{ .reg .pred never; setp.ne.u32 never, %0, 0; @never trap; }" :: "r"(some & smelt_sign_bits() & 1u));
}
inline ui32 smelt_rotate(ui32 word, int by) { return __funnelshift_l(word, word, by); }
inline ui32 smelt_count_readers(ui32 *at) {  // of shared memory, all of whose reads are done
  ui32 before;
  asm volatile("atom.acq_rel.cta.shared.add.u32 %0, [%1], 1;"
      : "=r"(before) : "r"(smelt_shared_address(at)) : "memory");
  return before;
}
inline f32 smelt_widen_half(ui32 x) {
  f32 y;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(y) : "r"(x));
  return y;
}
#endif
"""
SUMS = """\
// Four codes of four bits, which are the places of bytes in a table.
inline ui32 smelt_look_up(ui32 codes, ui32 t0, ui32 t1, ui32 t2, ui32 t3) {
  ui32 places = (codes | codes >> 4) & 0x00ff00ffu;
  places = (places | places >> 8) & 0x7777u;
  const ui32 high = (codes >> 3 & 0x01010101u) * 255;
  return (__byte_perm(t0, t1, places) & ~high) | (__byte_perm(t2, t3, places) & high);
}
// A share of K has every SHARES-th chunk of it: U::UNITS units, which are adjacent. U: a unit of a format, as a thread
// holds it; U::Head: what a block of several units has besides.
template <class U, int SHARES> inline int smelt_count_units(int share, i64 blocks) {
  const int chunks = (int)((blocks + U::RECORDS - 1) / U::RECORDS), own = (chunks - share + SHARES - 1) / SHARES;
  const int missing = own > 0 && (chunks - 1) % SHARES == share ? chunks * U::RECORDS - (int)blocks : 0;
  return own * U::UNITS - missing;
}
// One of the four numbers of 16 bits in two words; what is above them is not zero.
inline ui32 smelt_pick_half(const smelt_two_words &of, int at) {
  return __byte_perm(of.x[0], of.x[1], 0x10 + 0x22 * at);
}
// 16 bytes of each thread from lines of 64. Two of four members have the same banks: they begin with different halves.
inline smelt_words smelt_take_words(const ui8 *from, int member) {
  const bool later = member / 2;
  const smelt_two_words first = *(const smelt_two_words *)(from + (later ? 8 : 0));
  const smelt_two_words second = *(const smelt_two_words *)(from + (later ? 0 : 8));
  smelt_words to;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    to.x[i] = later ? second.x[i] : first.x[i];
    to.x[2 + i] = later ? first.x[i] : second.x[i];
  }
  return to;
}
inline void smelt_take(smelt_words &to, const ui8 *from, int later) {
  *(smelt_two_words *)to.x = *(const smelt_two_words *)(from + later);
  *(smelt_two_words *)(to.x + 2) = *(const smelt_two_words *)(from + (8 - later));
}
template <class T> inline void smelt_take(T &to, const ui8 *from) { to = *(const T *)from; }
// What a thread needs of the rows for a unit: 8 steps of one row, the scale and the totals of one or two. A single row
// is every column of the right operand: all members have the sums of four columns, and each goes on with one of them.
template <class U, int ROWS> struct smelt_block_left {
  enum { PARTS = U::GROUPS, GROUPS = (ROWS + 7) / 8, SIDES = ROWS == 1 ? 1 : 2, OWN = ROWS == 1 ? 1 : 4 };
  smelt_two_words q[GROUPS];
  ui32 scale[GROUPS][2], total[GROUPS][2][PARTS];
};
// Rows [row, k] of i8, from the units of a share on.
template <class U, int ROWS> struct smelt_block_at {
  typedef smelt_block_left<U, ROWS> Left;
  const i8 *q;
  const f32 *scale, *total;
  i64 q_row, scale_row, total_row;
  int group, member, rows;
  inline void start() {}
  inline void enter(int at) {}
  inline void advance(int units) {
    q += units * 32;
    scale += units;
    total += units * Left::PARTS;
  }
  inline void load(Left &to, int i) const {
#pragma unroll
    for (int g = 0; g < Left::GROUPS; g++) {
      if (ROWS == 1 || 8 * g + group < rows) to.q[g] = smelt_read_pair(q + 8 * g * q_row + i * 32);
#pragma unroll
      for (int e = 0; e < Left::SIDES; e++) {
        const int r = 8 * g + e;
        if (ROWS > 1 && r + 2 * member >= rows) continue;
        to.scale[g][e] = smelt_read_word(scale + r * scale_row + i);
#pragma unroll
        for (int p = 0; p < Left::PARTS; p++)
          if (U::MINIMUM) to.total[g][e][p] = smelt_read_word(total + r * total_row + i * Left::PARTS + p);
      }
    }
  }
};
template <class U, int ROWS> inline smelt_block_at<U, ROWS> smelt_start_rows(int share, int lane, i64 rows, const i8 *q,
    i64 q_row, const f32 *scale, i64 scale_row, const f32 *total, i64 total_row) {
  const int group = lane % 32 / 4, member = lane % 4;
  const int row = ROWS == 1 ? 0 : group, first = ROWS == 1 ? 0 : 2 * member;  // of the integers, of scales and totals
  return {q + (row * q_row + share * (U::UNITS * 32) + 8 * member),
      scale + (first * scale_row + share * U::UNITS),
      total + (first * total_row + share * (U::UNITS * U::GROUPS)),
      q_row, scale_row, total_row, group, member, (int)rows};
}
// Sums of a thread: of 4 columns and of one or two rows of each group of eight, or of one column of a single row.
template <class U, int ROWS> struct smelt_block_sums {
  typedef smelt_block_left<U, ROWS> Left;
  f32 of[Left::GROUPS][Left::OWN][2];
  ui32 flip;  // the highest bits of four bytes, which it changes in codes with a zero
};
// A group of eight rows by a unit, whose codes are `low` and `high`.
template <class U, int ROWS, int OWN> inline void smelt_block_group(const U &weights, const typename U::Head &head,
    const ui32 (&low)[4], const ui32 (&high)[4], const smelt_two_words &q, const ui32 (&scale)[2],
    const ui32 (&total)[2][U::GROUPS], int member, f32 (&sums)[OWN][2]) {
  enum { PARTS = U::GROUPS };
  i32 c[2][PARTS][4];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const ui32 u[4] = {low[2 * half], low[2 * half + 1], high[2 * half], high[2 * half + 1]};
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      const ui32 mask = PARTS == 1 || member / 2 == p ? 0xffffffffu : 0;  // whose steps belong to the group
      const ui32 v[2] = {q.x[0] & mask, q.x[1] & mask};
      smelt_mma_bytes<U::SIGNED>(c[half][p], u, v);
    }
  }
  const auto add = [&](f32 &to, int j, int e, const auto &sum_of) {  // the sums of the groups of a column and a row
    i32 whole = sum_of(0);
    if (PARTS > 1) {
      whole = 0;
#pragma unroll
      for (int p = 0; p < PARTS; p++) whole += weights.integer(p, j) * sum_of(p);
    }
    to = fmaf(weights.template factor<ROWS == 1>(head, j) * __uint_as_float(scale[e]), (f32)whole, to);
    if (U::MINIMUM)
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        const f32 less = weights.template less<ROWS == 1>(head, p, j), more = __uint_as_float(total[e][p]);
        to = fmaf(U::SUBTRACTS ? -less : less, more, to);
      }
  };
  if (ROWS == 1) {
    add(sums[0][0], member, 0, [&](int p) {
      const i32 here = member / 2 ? c[1][p][0] : c[0][p][0], next = member / 2 ? c[1][p][2] : c[0][p][2];
      return member % 2 ? next : here;
    });
  } else {
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) add(sums[j % OWN][e], j, e, [&](int p) { return c[j / 2][p][j % 2 * 2 + e]; });
  }
}
template <class U, int ROWS> inline void smelt_block_multiply(const U &weights, const typename U::Head &head,
    const smelt_block_left<U, ROWS> &now, int member, smelt_block_sums<U, ROWS> &sums) {
  ui32 low[4], high[4];
  weights.codes(member, sums.flip, low, high);
#pragma unroll
  for (int g = 0; g < (ROWS + 7) / 8; g++)
    smelt_block_group<U, ROWS>(weights, head, low, high, now.q[g], now.scale[g], now.total[g], member, sums.of[g]);
}
template <class U, int ROWS> inline void smelt_keep_share(int share, int lane, f32 *part, i64 rows,
    const smelt_block_sums<U, ROWS> &sums) {
  typedef smelt_block_left<U, ROWS> Left;
  const int group = lane % 32 / 4, member = lane % 4;
#pragma unroll
  for (int g = 0; g < Left::GROUPS; g++)
#pragma unroll
    for (int j = 0; j < Left::OWN; j++)
#pragma unroll
      for (int e = 0; e < Left::SIDES; e++) {
        const int r = ROWS == 1 ? 0 : 8 * g + 2 * member + e, c = 4 * group + (ROWS == 1 ? member : j);
        if (r < rows) part[(share * rows + r) * 32 + c] = sums.of[g][j][e] * U::shrink();
      }
}
template <int SHARES> inline void smelt_add_shares(int lane, int threads, const f32 *part, i64 rows, f32 *acc,
    i64 width, i64 columns) {
  for (int at = lane; at < rows * 32; at += threads) {
    const int r = at / 32, c = at % 32;
    if (c >= columns) continue;
    f32 sum = part[at];
#pragma unroll
    for (int s = 1; s < SHARES; s++) sum += part[s * rows * 32 + at];
    acc[r * width + c] = sum;  // the tile of sums may begin where the parts do, with rows of the same width
  }
}
// Up to ROWS rows by 32 columns: weights come DEEP units ahead to registers; up to 8 rows as well, more come from a
// cache or from shared memory when they are needed. EXACT: every share has a multiple of DEEP units.
template <class U, int ROWS, int DEEP, bool EXACT, int SHARES, class R> inline smelt_block_sums<U, ROWS>
smelt_block_share(int share, int lane, R at_rows, const ui8 *w, i64 panel, i64 blocks, i64 columns) {
  enum { UNITS = U::UNITS, AHEAD = ROWS <= 8 ? DEEP : 1 };
  const int group = lane % 32 / 4, member = lane % 4, units = smelt_count_units<U, SHARES>(share, blocks);
  const ui8 *const from = w + (group < 4 || columns <= 16 ? 0 : panel) + share * (i64)U::BYTES;  // a panel may miss
  U y[DEEP];
  typename U::At at_weights;
  typename U::Head head, next;
  smelt_block_left<U, ROWS> x[AHEAD] = {};
  smelt_block_sums<U, ROWS> sums = {{}, smelt_sign_bits()};
  // What is read next: weights and rows, which have their own place in a chunk.
  int weights_in_chunk = 0, rows_in_chunk = 0;
  at_weights.start(from, member, group % 4);
  const ui8 *at_head = from;
  const auto is_last = [&](int &in_chunk) {
    in_chunk = UNITS == DEEP || in_chunk + DEEP == UNITS ? 0 : in_chunk + DEEP;
    return UNITS == DEEP || in_chunk == 0;
  };
  const auto advance_rows = [&]() { at_rows.advance(DEEP + (is_last(rows_in_chunk) ? (SHARES - 1) * UNITS : 0)); };
  const auto advance_weights = [&]() {
    const bool last = is_last(weights_in_chunk);
    at_weights.advance(DEEP, last ? SHARES : 0);
    if (last) at_head += SHARES * U::BYTES;
  };
  if (units > 0) next.load(at_head, group % 4);
#pragma unroll
  for (int i = 0; i < DEEP; i++)
    if (i < units) y[i].load(at_weights, i);  // which no launch writes
  advance_weights();
  smelt_await();
  at_rows.start();
  if (AHEAD > 1) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (i < units) at_rows.load(x[i], i);
    advance_rows();
  }
#pragma unroll 1
  for (int at = 0; at < units; at += DEEP) {
    const bool more = at + DEEP < units;
    at_rows.enter(at);
    if (at % UNITS == 0) head.template widen<ROWS == 1>(next, member);
    if (more && weights_in_chunk == 0) next.load(at_head, group % 4);
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
      if (!EXACT && at + i >= units) break;
      auto &left = x[AHEAD > 1 ? i : 0];
      if (AHEAD == 1) at_rows.load(left, i);
      smelt_block_multiply<U, ROWS>(y[i], head, left, member, sums);
      if (EXACT ? more : at + DEEP + i < units) {
        y[i].load(at_weights, i);
        if (AHEAD > 1) at_rows.load(left, i);
      }
    }
    advance_weights();
    advance_rows();
  }
  return sums;
}
// ONCE: the shares whose sums there is room for. If that is not all of them, a warp has one after another, and the sum
// so far stands in front of the next ones.
template <class U, int ROWS, int DEEP, bool EXACT, int SHARES, int WARPS, int ONCE> inline void smelt_block_rows(
    int lane, char *ring, i64 rows, const i8 *q, i64 q_row, const f32 *scale, i64 scale_row, const f32 *total,
    i64 total_row, const ui8 *w, i64 panel, i64 blocks, f32 *acc, i64 width, i64 columns) {
  static_assert(SHARES % ONCE == 0, "rounds are whole");
  f32 *const part = (f32 *)ring;  // the sums of every share, which are added in order
#pragma unroll 1
  for (int done = 0; done < SHARES; done += ONCE) {
#pragma unroll 1
    for (int share = done + lane / 32; share < done + ONCE; share += WARPS) {
      const auto at_rows = smelt_start_rows<U, ROWS>(share, lane, rows, q, q_row, scale, scale_row, total, total_row);
      smelt_keep_share<U, ROWS>(done ? share - done + 1 : share, lane, part, rows,
          smelt_block_share<U, ROWS, DEEP, EXACT, SHARES>(share, lane, at_rows, w, panel, blocks, columns));
    }
    __syncthreads();
    if (done + ONCE < SHARES) {
      if (done) smelt_add_shares<ONCE + 1>(lane, 32 * WARPS, part, rows, part, 32, 32);
      else smelt_add_shares<ONCE>(lane, 32 * WARPS, part, rows, part, 32, 32);
      __syncthreads();
    }
  }
  smelt_add_shares<ONCE == SHARES ? SHARES : ONCE + 1>(lane, 32 * WARPS, part, rows, acc, width, columns);
}
"""
STAGED = """\
// Rows through shared memory, where every warp has a place for two stages of four units: a line of memory is read at
// once, and no bank twice.
template <class U, int ROWS, int SHARES> struct smelt_block_staged {
  typedef smelt_block_left<U, ROWS> Left;
  enum { STEPS = 4, PITCH = 160, AT_SCALES = ROWS * PITCH, AT_TOTALS = AT_SCALES + ROWS * 16,
      STAGE = AT_TOTALS + (U::MINIMUM ? ROWS * 16 * U::GROUPS : 0) };
  char *ring;
  const char *q, *scale, *total;
  int q_row, scale_row, total_row, share, lane, rows, units, fetched;
  const char *own, *scales, *totals;
  inline void fetch() {
    if (fetched < units) {
      const int unit = (share + fetched / U::UNITS * SHARES) * U::UNITS + fetched % U::UNITS;
      char *const to = ring + fetched / STEPS % 2 * STAGE;
#pragma unroll
      for (int i = 0; i < ROWS / 4; i++) {
        const int row = 4 * i + lane / 8, cell = lane % 8 * 16;
        const bool there = row < rows;
        smelt_copy_async(to + row * PITCH + cell, q + (there ? row * q_row : 0) + unit * 32 + cell, there ? 16 : 0);
      }
      const bool there = lane < rows;
      const int row = there ? lane : 0;
      smelt_copy_async(to + AT_SCALES + lane * 16, scale + row * scale_row + unit * 4, there ? 16 : 0);
#pragma unroll
      for (int p = 0; p < U::GROUPS; p++)
        if (U::MINIMUM)
          smelt_copy_async(to + AT_TOTALS + (lane * U::GROUPS + p) * 16,
              total + row * total_row + unit * (4 * U::GROUPS) + 16 * p, there ? 16 : 0);
      fetched += STEPS;
    }
    smelt_copy_commit();
  }
  inline void start() { fetch(); }
  inline void enter(int at) {  // of the units of the share
    if (at % STEPS == 0) {
      __syncwarp();
      fetch();
      smelt_copy_wait<1>();
      __syncwarp();
    }
    const int member = lane % 4;
    const char *const here = ring + at / STEPS % 2 * STAGE;
    own = here + lane / 4 * PITCH + at % STEPS * 32 + 8 * member;
    scales = here + AT_SCALES + 2 * member * 16 + at % STEPS * 4;
    totals = here + AT_TOTALS + (2 * member * 16 + at % STEPS * 4) * U::GROUPS;
  }
  inline void advance(int) {}
  inline void load(Left &to, int i) const {
#pragma unroll
    for (int g = 0; g < Left::GROUPS; g++) {
      to.q[g] = *(const smelt_two_words *)(own + 8 * g * PITCH + 32 * i);
#pragma unroll
      for (int e = 0; e < 2; e++) {
        to.scale[g][e] = *(const ui32 *)(scales + (8 * g + e) * 16 + 4 * i);
#pragma unroll
        for (int p = 0; p < U::GROUPS; p++)
          if (U::MINIMUM) to.total[g][e][p] = *(const ui32 *)(totals + ((8 * g + e) * 16 + 4 * i) * U::GROUPS + 4 * p);
      }
    }
  }
};
template <class U, int ROWS, int DEEP, int SHARES> inline void smelt_block_some(int lane, char *ring, i64 rows,
    const i8 *q, i64 q_row, const f32 *scale, i64 scale_row, const f32 *total, i64 total_row, const ui8 *w, i64 panel,
    i64 blocks, f32 *acc, i64 width, i64 columns) {
  typedef smelt_block_staged<U, ROWS, SHARES> Rows;
  const int share = lane / 32;
  const Rows at_rows = {ring + share * (2 * Rows::STAGE), (const char *)q, (const char *)scale, (const char *)total,
      (int)q_row, 4 * (int)scale_row, 4 * (int)total_row, share, lane % 32, (int)rows,
      smelt_count_units<U, SHARES>(share, blocks), 0};
  const auto sums = smelt_block_share<U, ROWS, DEEP, true, SHARES>(share, lane, at_rows, w, panel, blocks, columns);
  f32 *const part = (f32 *)ring;  // where rows were
  smelt_copy_wait<0>();
  __syncthreads();
  smelt_keep_share<U, ROWS>(share, lane, part, rows, sums);
  __syncthreads();
  smelt_add_shares<SHARES>(lane, 32 * SHARES, part, rows, acc, width, columns);
}
"""
# Registers for what a thread reads ahead, by the warps of a multiprocessor.
AHEAD = {8: 96, 16: 72, 32: 24}
MOST_THREADS = 1152  # of products of a single row, of two launches or three, that registers must be enough for
FEW_WORDS = 10  # of a unit that leaves registers for many warps


def choose_shape(mma: BlockMma) -> tuple[int, int, bool]:
    """(Units that are read ahead, blocks on a multiprocessor, whether all shares have a multiple of these units)."""
    few, some, _ = BLOCK_ROWS
    layout = Layout.of(mma.format)
    if mma.ahead:
        deep, resident = 1, 1
    elif stages_rows(mma):
        deep, resident = 2, STAGED_WARPS // mma.shares
    elif mma.most > few:
        deep, resident = 2, 2 if mma.most <= some else 1
    else:
        words, warps = unit_words(layout, mma.most), mma.shares
        large = words > FEW_WORDS or layout.length > RUN
        few_blocks = 0 < mma.blocks <= 2 * MULTIPROCESSORS
        resident = 1 if 0 < mma.blocks <= MULTIPROCESSORS else 2 if large or few_blocks else 4
        deep = next((each for each in (8, 4) if each * words <= AHEAD[min(32, resident * warps)]), 2)
    if mma.single:
        resident = MOST_THREADS // block_threads(mma)
    elif mma.stages:
        resident = stream_shape(mma)[1]
    records = static_size(mma.panel.sizes[0])
    exact = layout.length > RUN or (records is not None and records % chunk_records(layout) == 0)
    return min(deep, chunk_records(layout) * layout.length // RUN), resident, exact


def static_size(size: Expr) -> int | None:
    match size:
        case Amount(int(count)):
            return count
    return None


def unit_words(layout: Layout, rows: int) -> int:
    """The registers of a unit that is read ahead, and of what it is multiplied by."""
    parts = RUN // layout.group
    words = sum(8 if plane.bits == 8 else 4 for plane in layout.planes)
    if "scales" in layout.places:
        words += sum(parts for name in ("scales", "minimums") if name in layout.places)
    else:
        words += sum(2 for name in ("scale", "minimum") if name in layout.places)
    return words + 2 + (1 + (parts if layout.row.minimum is not None else 0)) * min(rows, 2)


def block_call(mma: BlockMma, deep: int, exact: bool, ring: int) -> str:
    """The name of the function for a format, at most this number of rows, units that are read ahead, and bytes of
    shared memory."""
    warps = block_threads(mma) // 32
    if mma.ahead:
        return f"smelt_block_tile<{PREFIX}{mma.format}, {mma.shares}, {mma.ahead}>"
    if stages_rows(mma):
        return f"smelt_block_some<{PREFIX}{mma.format}, {mma.held}, {deep}, {mma.shares}>"
    if mma.single:
        pitch = held_pitch(mma.format, static_size(mma.panel.sizes[0]))
        sizes = f"{mma.stages}, {mma.shares}, {1 if mma.apart is None else 2}, {str(exact).lower()}, {pitch}"
        return f"smelt_block_single<{PREFIX}{mma.format}, {sizes}>"
    if mma.stages:
        pitch = held_pitch(mma.format, static_size(mma.panel.sizes[0])) if mma.held else 0
        sizes = f"{mma.most}, {mma.stages}, {mma.shares}, {str(exact).lower()}, {mma.held}, {pitch}"
        return f"smelt_block_stream<{PREFIX}{mma.format}, {sizes}>"
    sizes = f"{mma.most}, {deep}, {str(exact).lower()}, {mma.shares}, {warps}, {shares_at_once(mma, ring)}"
    return f"smelt_block_rows<{PREFIX}{mma.format}, {sizes}>"


def block_kernels(text: str) -> str:
    """The functions that a text calls; `emit.tile_mma` has what loads words."""
    found = [each for each in BLOCKS if f"<{PREFIX}{each}, " in text]
    rounds = ROUND if "smelt_round_rows<" in text else ""
    if not found:
        return rounds
    single = SINGLE if "smelt_block_single<" in text else ""
    stream = STREAM if single or "smelt_block_stream<" in text else ""
    tile = TILE if "smelt_block_tile<" in text else ""
    staged = STAGED if "smelt_block_some<" in text else ""
    return "".join(
        [rounds, INSTRUCTIONS, SUMS, staged, stream, single, tile, *(unit_text(Layout.of(each)) for each in found)]
    )


def unit_text(layout: Layout) -> str:
    """A unit of a format: 8 steps of 4 adjacent columns in a thread, and what its sums are multiplied by."""
    row, places = layout.row, layout.places
    groups, headed = RUN // layout.group, "scales" in places
    facts = {
        "GROUPS": groups,
        "RECORDS": chunk_records(layout),
        "UNITS": chunk_records(layout) * layout.length // RUN,
        "BYTES": chunk_records(layout) * layout.record,
        "SIGNED": int(layout.zero > 0),
        "MINIMUM": int(row.minimum is not None),
        "SUBTRACTS": int(layout.subtracts),
    }
    wide = [name for name in ("scale", "minimum") if name in places]
    fields = [f"smelt_two_words {name};" for name in wide]
    loads = [f"{name} = smelt_read_pair(record + {places[name]} + 8 * quad);" for name in wide]
    widened = [f"f32 {name}s[4];" for name in wide]
    lines = [
        f"struct {PREFIX}{row.name} {{",
        f"  enum {{ {', '.join(f'{name} = {value}' for name, value in facts.items())} }};",
        f"  static f32 shrink() {{ return {1 / (1 << _shift(layout))}f; }}",
        "  struct Head {",
        *(f"    {line}" for line in (*fields, *widened) if headed),
        "    inline void load(const ui8 *record, int quad) {",
        *(f"      {line}" for line in loads if headed),
        "    }",
        "    template <bool OWN> inline void widen(const Head &from, int member) {  // OWN: of one column",
        *(
            f"      for (int j = 0; j < 4; j++) {name}s[j] = {_half(layout, f'from.{name}', 'OWN ? member : j')};"
            for name in wide
            if headed
        ),
        "    }",
        "    template <bool OWN> inline void take(const ui8 *record, int quad, int member) {",
        *(f"      {name} = *(const smelt_two_words *)(record + {places[name]} + 8 * quad);" for name in wide if headed),
        "      widen<OWN>(*this, member);",
        "    }",
        "  };",
        *_streams(layout),
        *_codes(layout),
        *_factors(layout),
        "};",
        "",
    ]
    return "\n".join(lines)


def _shift(layout: Layout) -> int:
    """How far codes are shifted up, so that their zero is half of a byte: without its highest bit they are signed."""
    if layout.codebook or not layout.zero:
        return 0
    assert layout.is_centred
    return 8 - layout.bits


def _streams(layout: Layout) -> list[str]:
    """What a thread holds of a unit, and where it reads that: `At` has a pointer for each stream of a record."""
    places, groups, several = layout.places, RUN // layout.group, layout.length > RUN
    fields: list[str] = []
    starts: dict[str, tuple[str, int]] = {}  # the place of a thread's first bytes, and the bytes of a unit
    loads: list[tuple[str, str, str, int]] = []  # what is read, how, from which stream, and how far in it
    for number, plane in enumerate(layout.planes):
        lines, quads = RUN // plane.steps, plane.steps // STEPS  # of a unit; of a line
        line = "2 * member" if plane.bits == 8 else "member" if quads == 2 else f"(2 * member / {quads})"
        first = f"{plane.at} + {line} * {LINE} + 16 * quad" if lines > 1 else f"{plane.at} + 16 * quad"
        starts[f"p{number}"] = first, lines * LINE
        for share in range(2 if plane.bits == 8 else 1):
            name = f"p{number}_{share}" if plane.bits == 8 else f"p{number}"
            fields.append(f"smelt_words {name};")
            loads.append((name, "stream", f"p{number}", share * LINE))
    if "scales" in places:
        starts["scales"] = f"{places['scales']} + 4 * quad", groups * COLUMNS
        for name in ("scales", "minimums"):
            if name in places:
                fields.append(f"ui32 {name}[{groups}];")
                inside = places[name] - places["scales"]
                loads += [(f"{name}[{p}]", "read_word", "scales", inside + p * COLUMNS) for p in range(groups)]
    else:
        starts["scale"] = f"{places['scale']} + 8 * quad", 0
        for name in ("scale", "minimum"):
            if name in places:
                fields.append(f"smelt_two_words {name};")
                loads.append((name, "read_pair", "scale", places[name] - places["scale"]))
    kinds = {"stream": "smelt_words", "read_word": "ui32", "read_pair": "smelt_two_words"}
    spread = {f"p{number}" for number, plane in enumerate(layout.planes) if plane.bits >= 4}  # members: other lines

    def take(read: str, stream: str, place: str) -> str:
        return f"smelt_take_words({place}, member)" if stream in spread else f"*(const {kinds[read]} *)({place})"

    halves = {"stream": ", later"}
    steps = {name: step if several else layout.record for name, (_, step) in starts.items()}  # of adjacent units
    units = chunk_records(layout) * layout.length // RUN
    return [
        "  struct At {",
        f"    const ui8 {', '.join(f'*{name}' for name in starts)};",
        "    inline void start(const ui8 *record, int member, int quad) {",
        *(f"      {name} = record + ({place});" for name, (place, _) in starts.items()),
        "    }",
        "    inline void advance(int units, int shares) {  // shares: of the chunk's end; else 0",
        *(
            f"      {name} += units * {step} + (shares ? shares * BYTES - {units * step} : 0);"
            for name, step in steps.items()
        ),
        "    }",
        "  };",
        *(f"  {field}" for field in fields),
        "  inline void load(const At &at, int i) {",
        *(
            f"    {name} = smelt_{read}(at.{stream} + i * {steps[stream]} + {inside});"
            for name, read, stream, inside in loads
        ),
        "  }",
        "  // From shared memory; `later`: 8 where both halves of a line change places, else 0.",
        "  inline void take_halves(const At &at, int i, int later) {",
        *(
            f"    smelt_take({name}, at.{stream} + i * {steps[stream]} + {inside}{halves.get(read, '')});"
            for name, read, stream, inside in loads
        ),
        "  }",
        "  inline void take(const At &at, int i, int member) {  // from shared memory",
        *(
            f"    {name} = {take(read, stream, f'at.{stream} + i * {steps[stream]} + {inside}')};"
            for name, read, stream, inside in loads
        ),
        "  }",
    ]


def _codes(layout: Layout) -> list[str]:
    lines = ["  inline void codes(int member, ui32 flip, ui32 (&low)[4], ui32 (&high)[4]) const {", "#pragma unroll"]
    lines.append("    for (int j = 0; j < 4; j++) {")
    for number, plane in enumerate(layout.planes):
        lines += [f"      const ui32 w{number} = p{number}.x[j];"] if plane.bits < 8 else []
    for share, to in enumerate(("low", "high")):
        value = " | ".join(_cut(number, plane, share, _shift(layout)) for number, plane in enumerate(layout.planes))
        if layout.zero and not layout.codebook:
            value = f"({value}) ^ flip"
        if layout.codebook:
            book = [each - layout.zero & 255 for each in layout.codebook]
            words = [sum(book[STEPS * i + j] << 8 * j for j in range(STEPS)) for i in range(len(book) // STEPS)]
            value = f"smelt_look_up({value}, {', '.join(f'{word}u' for word in words)})"
        lines.append(f"      {to}[j] = {value};")
    return [*lines, "    }", "  }"]


def _cut(number: int, plane: Plane, share: int, up: int) -> str:
    """The bits of a plane for one of the two quads of a thread, at their place in the codes, which are shifted up."""
    if plane.bits == 8:
        return f"p{number}_{share}.x[j]"
    per_line, to = plane.steps // STEPS, plane.low + up
    mask, word = (((1 << plane.bits) - 1) << to) * 0x01010101, f"w{number}"
    if per_line == 2:
        by = to - plane.bits * share
        moved = f"{word} << {by}" if by > 0 else f"{word} >> {-by}" if by else word
    else:
        moved = f"smelt_rotate({word}, {to} - {plane.bits} * ((2 * member + {share}) % {per_line}))"
    return f"({moved} & {mask}u)"


def _half(layout: Layout, name: str, at: str = "") -> str:
    """One of the four numbers of 16 bits in two words, in f32: number `at`, or `j`, which the compiler knows."""
    word = f"smelt_pick_half({name}, {at})" if at else f"({name}.x[j / 2] >> 16 * (j % 2) & 0xffffu)"
    return f"__uint_as_float({word} << 16)" if layout.row.exponent else f"smelt_widen_half({word})"


def _factors(layout: Layout) -> list[str]:
    """What the sums of a unit are multiplied by, what minimums are multiplied by, and the integers of groups."""
    groups, headed = RUN // layout.group, "scales" in layout.places

    def integer(name: str, p: object) -> str:
        if layout.nibbles:
            return f"(i32)(scales[{p}] >> (8 * j + {0 if name == 'scales' else 4}) & 15)"
        return f"smelt_byte({name}[{p}], j)"

    def wide(name: str) -> str:
        if headed:
            return f"head.{name}s[OWN ? 0 : j]"
        return f"(OWN ? {_half(layout, name, 'j')} : {_half(layout, name)})"

    once = f" * (f32){integer('scales', 0)}" if headed and groups == 1 else ""
    less = f" * (f32){integer('minimums', 'p')}" if headed else ""
    return [
        f"  inline i32 integer(int p, int j) const {{ return {integer('scales', 'p') if headed else '1'}; }}",
        "  // OWN: of one column, which is not known before.",
        "  template <bool OWN> inline f32 factor(const Head &head, int j) const {",
        f"    return {wide('scale')}{once};",
        "  }",
        "  template <bool OWN> inline f32 less(const Head &head, int p, int j) const {",
        f"    return {wide('minimum') + less if 'minimum' in layout.places else '0'};",
        "  }",
    ]
