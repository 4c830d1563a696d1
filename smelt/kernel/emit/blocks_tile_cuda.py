"""The CUDA micro-kernel of block-quantised weights for many rows: `smelt_block_tile`, a tile of 128 × 128 sums.

Chunks of K come to shared memory by `cp.async`, several ahead. Sixteen warps have 32 rows by 32 columns each, whose
integers are multiplied as those of few rows are (`blocks_cuda.py`). The chunks of one share of K are taken one after
the other, then those of the next one: sums are added in the order of few rows, and have the same bits.
"""

from __future__ import annotations

TILE = """\
template <class U, int SHARES, int STAGES> inline void smelt_block_tile(int lane, char *ring, i64 rows, const i8 *q,
    i64 q_row, const f32 *scale, i64 scale_row, const f32 *total, i64 total_row, const ui8 *w, i64 panel, i64 blocks,
    f32 *acc, i64 width, i64 columns) {
  enum { UNITS = U::UNITS, SIDE = 128, ROWS = 32, THREADS = 512, PITCH = 32 * UNITS + 32, SCALES = 4 * UNITS,
      TOTALS = U::MINIMUM ? 4 * UNITS * U::GROUPS : 0, AT_SCALES = SIDE * PITCH, AT_TOTALS = AT_SCALES + SIDE * SCALES,
      AT_WEIGHTS = AT_TOTALS + SIDE * TOTALS, STAGE = AT_WEIGHTS + SIDE / 16 * U::BYTES };
  typedef smelt_block_left<U, ROWS> Left;
  const int warp = lane / 32, group = lane % 32 / 4, member = lane % 4, row = warp / 4 * ROWS, pair = warp % 4;
  const int chunks = (int)(blocks / U::RECORDS);
  int next_share = 0, next = 0;  // the chunk that is fetched next, and its share
  const auto advance = [&](int &share, int &chunk) {  // whether the share has ended
    chunk += SHARES;
    if (chunk < chunks) return false;
    chunk = ++share;
    return true;
  };
  const auto copy = [&](char *to, int pitch, const char *from, int stride, int bytes, int used, int count) {
#pragma unroll 1
    for (int at = lane; at < count * (bytes / 16); at += THREADS) {
      const int line = at / (bytes / 16), cell = at % (bytes / 16) * 16;
      const bool there = line < used;
      smelt_copy_async(to + line * pitch + cell, from + (there ? line : 0) * stride + cell, there ? 16 : 0);
    }
  };
  const auto fetch = [&](int slot) {
    if (next_share < SHARES && next < chunks) {
      char *const to = ring + slot * STAGE;
      copy(to, PITCH, (const char *)q + next * (32 * UNITS), (int)q_row, 32 * UNITS, (int)rows, SIDE);
      copy(to + AT_SCALES, SCALES, (const char *)(scale + next * UNITS), 4 * (int)scale_row, SCALES, (int)rows, SIDE);
      if (U::MINIMUM)
        copy(to + AT_TOTALS, TOTALS, (const char *)(total + next * (UNITS * U::GROUPS)), 4 * (int)total_row, TOTALS,
            (int)rows, SIDE);
      copy(to + AT_WEIGHTS, U::BYTES, (const char *)w + next * U::BYTES, (int)panel, U::BYTES,
          ((int)columns + 15) / 16, SIDE / 16);
      advance(next_share, next);
    }
    smelt_copy_commit();
  };
  smelt_await();
#pragma unroll 1
  for (int i = 0; i < STAGES - 1; i++) fetch(i);
  smelt_block_sums<U, ROWS> sums = {{}, smelt_sign_bits()};
  f32 all[Left::GROUPS][Left::OWN][2];
  int share = 0, chunk = 0, slot = 0;
  const auto end_share = [&](bool first) {
#pragma unroll
    for (int g = 0; g < Left::GROUPS; g++)
#pragma unroll
      for (int j = 0; j < Left::OWN; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const f32 part = sums.of[g][j][e] * U::shrink();
          all[g][j][e] = first ? part : all[g][j][e] + part;
          sums.of[g][j][e] = 0;
        }
  };
#pragma unroll 1
  for (int turn = 0; turn < chunks; turn++) {
    smelt_copy_wait<STAGES - 2>();
    __syncthreads();
    fetch(slot ? slot - 1 : STAGES - 1);
    const char *const here = ring + slot * STAGE;
    const char *const weights = here + AT_WEIGHTS + (2 * pair + group / 4) * U::BYTES;
    const char *const own = here + (row + group) * PITCH + 8 * member;
    const char *const scales = here + AT_SCALES + (row + 2 * member) * SCALES;
    const char *const totals = here + AT_TOTALS + (row + 2 * member) * TOTALS;
    typename U::At at;
    typename U::Head head;
    at.start((const ui8 *)weights, member, group % 4);
    head.template take<false>((const ui8 *)weights, group % 4, member);
#pragma unroll (UNITS > 4 ? 1 : 2)  // registers
    for (int i = 0; i < UNITS; i++) {
      U y;
      ui32 low[4], high[4];
      y.take(at, i, member);
      y.codes(member, sums.flip, low, high);
#pragma unroll
      for (int g = 0; g < Left::GROUPS; g++) {
        ui32 scale_of[2], total_of[2][U::GROUPS] = {};
#pragma unroll
        for (int e = 0; e < 2; e++) {
          scale_of[e] = *(const ui32 *)(scales + (8 * g + e) * SCALES + 4 * i);
#pragma unroll
          for (int p = 0; p < U::GROUPS; p++)
            if (U::MINIMUM)
              total_of[e][p] = *(const ui32 *)(totals + (8 * g + e) * TOTALS + 4 * (i * U::GROUPS + p));
        }
        smelt_block_group<U, ROWS>(y, head, low, high, *(const smelt_two_words *)(own + 8 * g * PITCH + 32 * i),
            scale_of, total_of, member, sums.of[g]);
      }
    }
    if (++slot == STAGES) slot = 0;
    const bool first = share == 0;
    if (advance(share, chunk)) end_share(first);
  }
  for (; share < SHARES; share++) end_share(share == 0);  // those without chunks
  smelt_copy_wait<0>();
  __syncthreads();  // the tile of sums may begin where the chunks do
#pragma unroll
  for (int g = 0; g < Left::GROUPS; g++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int r = row + 8 * g + 2 * member + e;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int c = 32 * pair + 4 * group + j;
        if (r < rows && c < columns) acc[r * width + c] = all[g][j][e];
      }
    }
}
"""
