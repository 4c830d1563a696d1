"""Rows of f32 rounded to 8 bits in runs of 32, the left operand of block-quantised weights: `smelt_round_rows`."""

from __future__ import annotations

import numpy as np

from smelt.ir.ops.packed_blocks import LEAST, MOST

ROUND = """\
// Rows of f32 in shared memory, `pitch` apart, rounded to 8 bits in runs of 32: eight threads have a run, each four
// elements of it. Integers may be summed in any order; positive floats are ordered as integers are. The steps of
// several runs alternate, and divisions have no branches where quotients are neither tiny nor huge.
#ifdef __CUDACC__
inline f32 smelt_inverse(f32 x) {  // rounded to nearest, as 1 / x is, where both are normal
  f32 y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return fmaf(y, -fmaf(x, y, -1.0f), y);
}
inline i32 smelt_nearest(f32 x) {  // 0 where it is none
  i32 y;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
#endif
inline i32 smelt_from_lane(i32 x, int by) { return (i32)__shfl_xor_sync(0xffffffffu, (ui32)x, by); }
// A row has RUNS, of which `columns` elements are written; what is written of a row is `step` elements after the row
// before it. TALL: rows, at most.
template <int GROUP, int ZERO, int RUNS, int THREADS, int TALL, class T> inline void smelt_round_rows(int lane,
    int rows, int columns, const f32 *tile, int pitch, i64 step_of_row, i8 *q, f32 *scale, T *total) {
  enum { ALL = (8 * RUNS * TALL + THREADS - 1) / THREADS, TURNS = ALL < 4 ? ALL : 4 };  // of a thread; at once
  const int count = 8 * RUNS * (TALL == 1 ? rows > 0 : rows);
#pragma unroll 1
  for (int first = lane; first - lane % 32 < count; first += TURNS * THREADS) {  // whole warps exchange numbers
    smelt_words x[TURNS];
    i32 most[TURNS], sum[TURNS];
    f32 step[TURNS], factor[TURNS];
    ui32 word[TURNS];
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      const int at = first + t * THREADS, here = at < count ? at : 0, row = TALL == 1 ? 0 : here / (8 * RUNS);
      x[t] = ((const smelt_words *)(tile + row * pitch))[here - row * (8 * RUNS)];
    }
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      most[t] = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const i32 bits = (i32)(x[t].x[i] & 0x7fffffffu);
        most[t] = bits > most[t] ? bits : most[t];
      }
    }
#pragma unroll
    for (int by = 4; by; by /= 2)
#pragma unroll
      for (int t = 0; t < TURNS; t++) {
        const i32 other = smelt_from_lane(most[t], by);
        most[t] = other > most[t] ? other : most[t];
      }
    bool plain = true;
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      const f32 size = __uint_as_float((ui32)most[t]), near_step = size * INVERSE;
      step[t] = fmaf(fmaf(-MOST, near_step, size), INVERSE, near_step);  // size / MOST
      factor[t] = smelt_inverse(step[t]);
      plain = plain && size > 0x1p-100f && size < 0x1p100f;
    }
    if (!plain)
#pragma unroll
      for (int t = 0; t < TURNS; t++) {
        step[t] = __uint_as_float((ui32)most[t]) / MOST;
        factor[t] = step[t] < LEAST ? 0.0f : 1.0f / step[t];
      }
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      word[t] = sum[t] = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const i32 each = smelt_nearest(__uint_as_float(x[t].x[i]) * factor[t]);
        word[t] |= ((ui32)each & 255u) << 8 * i;
        sum[t] += each;
      }
    }
#pragma unroll
    for (int by = GROUP / 8; by; by /= 2)
#pragma unroll
      for (int t = 0; t < TURNS; t++) sum[t] += smelt_from_lane(sum[t], by);
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      const int at = first + t * THREADS;
      if (at >= count) break;
      const int row = TALL == 1 ? 0 : at / (8 * RUNS), inside = at - row * (8 * RUNS);
      if (4 * inside >= columns) continue;
      const i64 to = row * step_of_row;
      ((ui32 *)(q + to))[inside] = word[t];
      if (inside % 8 == 0) scale[to / 32 + inside / 8] = step[t];
      if (inside % (GROUP / 4) == 0)
        total[to / GROUP + inside / (GROUP / 4)] = ZERO ? (T)(sum[t] * -ZERO) : (T)(step[t] * (f32)sum[t]);
    }
  }
}
"""


def _literal(x: np.float32) -> str:
    return f"{float(x).hex()}f"


ROUND = ROUND.replace("INVERSE", _literal(1 / MOST)).replace("MOST", _literal(MOST)).replace("LEAST", _literal(LEAST))
