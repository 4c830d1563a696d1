"""bf16 products on tensor cores as CUDA: `smelt_tile_bf16_mma`, 128 × 64 sums by a block of 8 warps.

A warp has 32 × 32 sums: 2 × 4 `mma.sync` of 16 × 8, 16 steps of K each. Operands go through shared memory in stages of
32 steps; the next stage is read from device memory while one is multiplied. Panels hold pairs of steps as 32-bit words,
which is what the instruction takes.
"""

from __future__ import annotations

TEXT = """\
#ifdef __CUDACC__
inline void smelt_mma_sync(f32 *c, const ui32 *a, const ui32 *b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
inline ui32 smelt_pair(const ui16 *from, i64 used) {  // two steps of a row; what is not there is 0
  if (used >= 2 && (ui64)from % 4 == 0) return *(const ui32 *)from;
  return (used > 0 ? (ui32)from[0] : 0) | (used > 1 ? (ui32)from[1] << 16 : 0);
}
inline void smelt_tile_bf16_mma(int lane, i64 rows, const ui16 *a, const i64 *starts, i64 row, i64 tap, i64 step,
    const ui16 *b, i64 line, i64 taps, i64 count, f32 *acc, i64 width, i64 columns, i64 accumulate) {
  __shared__ __align__(16) ui32 left[128][20], right[16][72];  // pairs; rows are padded, so banks differ
  const int warp = lane / 32, group = lane % 32 / 4, member = lane % 4, high = warp / 2 * 32, wide = warp % 2 * 32;
  const i64 stages = (count + 31) / 32;
  for (i64 top = 0; top < rows; top += 128) for (i64 side = 0; side < columns; side += 64) {
    f32 sum[2][4][4] = {};
    i64 from[8];
    for (int i = 0; i < 8; i++) {
      const i64 at = top + lane / 16 + 16 * i;
      from[i] = at < rows ? (starts ? starts[at] : at * row) : -1;
    }
    ui32 next_left[8], next_right[4];
    for (i64 stage = 0; stage <= taps * stages; stage++) {
      if (stage < taps * stages) {  // 128 rows × 16 pairs, 16 pairs × 64 columns
        const i64 t = stage / stages, k = stage % stages * 32;
        for (int i = 0; i < 8; i++) {
          const i64 at = k + 2 * (lane % 16);
          next_left[i] = from[i] < 0 ? 0 : smelt_pair(a + from[i] + t * tap + at, count - at);
        }
        for (int i = 0; i < 4; i++) {
          const i64 pair = k / 2 + lane / 64 + 4 * i, column = side + lane % 64;
          const bool there = 2 * pair < count && column < columns;
          next_right[i] = there ? *(const ui32 *)(b + (t * ((count + 1) / 2) + pair) * line + 2 * column) : 0;
        }
      }
      if (stage) {
        for (int s = 0; s < 16; s += 8) {  // 8 pairs: 16 steps
          ui32 x[2][4], y[4][2];
          for (int i = 0; i < 2; i++) {
            const int r = high + 16 * i + group;
            x[i][0] = left[r][s + member]; x[i][1] = left[r + 8][s + member];
            x[i][2] = left[r][s + member + 4]; x[i][3] = left[r + 8][s + member + 4];
          }
          for (int j = 0; j < 4; j++) {
            y[j][0] = right[s + member][wide + 8 * j + group];
            y[j][1] = right[s + member + 4][wide + 8 * j + group];
          }
          for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++) smelt_mma_sync(sum[i][j], x[i], y[j]);
        }
      }
      __syncthreads();
      if (stage < taps * stages) {
        for (int i = 0; i < 8; i++) left[lane / 16 + 16 * i][lane % 16] = next_left[i];
        for (int i = 0; i < 4; i++) right[lane / 64 + 4 * i][lane % 64] = next_right[i];
      }
      __syncthreads();
    }
    for (int i = 0; i < 2; i++)
      for (int j = 0; j < 4; j++)
        for (int e = 0; e < 4; e++) {
          const i64 at = top + high + 16 * i + group + e / 2 * 8, column = side + wide + 8 * j + 2 * member + e % 2;
          if (at >= rows || column >= columns) continue;
          f32 *to = acc + at * width + column;
          *to = accumulate ? *to + sum[i][j][e] : sum[i][j][e];
        }
  }
}
"""


def mma_sync_text() -> str:
    return TEXT
