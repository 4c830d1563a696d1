"""Flash-decoding on tensor cores as CUDA: `smelt_decode`, the micro-kernel of the statement `Decode`.

A block has up to 8 queries, and chunks of 128 keys; each of its eight warps has 16 keys of a chunk, and waits for
others only to add up the results of a chunk. All keys and values of a chunk are in flight at the same time, from memory
to registers; those of the next chunk are loaded as soon as registers are free. Chunks that masks hide are not read.

Rows of an instruction are queries, its columns are keys: so scores are where the weights of the next product belong.
The sum does not depend on which steps an instruction combines: a thread reads 16 adjacent bytes of a key, and the same
columns of four values. A query is three bf16, and so is a weight. Functions in front of `DECODE` have counterparts in
the tests' emulator.
"""

from __future__ import annotations

from smelt.kernel.loops.tensor_tile import DECODE_WARPS

INSTRUCTIONS = """\
#ifdef __CUDACC__
inline ui32 smelt_stream_word(const void *from) {  // 4 bytes that are read once
  ui32 to;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1];" : "=r"(to) : "l"(from));
  return to;
}
inline f32 smelt_most(f32 x, f32 y) { f32 z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }
#endif
"""
DECODE = """\
inline f32 smelt_lane(f32 x, int lane) {
  return __uint_as_float(__shfl_sync(0xffffffffu, __float_as_uint(x), lane));
}
inline f32 smelt_exp(f32 x) {  // of x <= 0: the error is that of the instruction, 2^-22
  const f32 power = x * 1.44269502f, rest = fmaf(x, 1.44269502f, -power) + x * 1.92596303e-8f;
  const f32 y = smelt_exp2(power);
  return x < -104.0f ? 0.0f : fmaf(y, rest * 0.693147182f, y);
}
inline void smelt_split_weight(f32 x, ui32 *to) {  // as `smelt_split`, of x >= 0
  to[0] = __float_as_uint(x) & 0xffff0000u;
  const f32 high = __uint_as_float(to[0]), tiny = high * 9.09494702e-13f, rest = x - high;  // 2^-40
  const f32 middle = __uint_as_float(__float_as_uint(rest) & 0xffff0000u);
  to[1] = __float_as_uint(fmaxf(middle, tiny));
  to[2] = __float_as_uint(fmaxf(rest - middle, tiny));
}
// CHECK: 0 masks hide no chunk, 1 they are the same for all queries, 2 any. WHOLE: there is memory for 16 keys wherever
// there is one. ADJACENT: 16 keys are adjacent, not the elements of a key. `key_at`, `value_at`: the first of 16 keys,
// and its value; others follow, `key_step` and `value_step` apart; where keys are adjacent, elements are.
template <int DEPTH, int VALUES, int ROWS, int CHECK, bool WHOLE, bool ADJACENT, class Query, class Key, class Value,
          class Mask, class Put>
inline void smelt_decode(int thread, char *ring, int rows, int keys, int first, int stride, int count, i64 key_step,
    i64 value_step, const Query &query, const Key &key_at, const Value &value_at, const Mask &mask, const Put &put) {
  enum {
    WARPS = DECODE_WARPS, CHUNK = 16 * WARPS, STEPS = DEPTH / 32, BLOCKS = VALUES / 64, WIDE = VALUES + 2,
    PACKED = ROWS <= 4, PLANES = PACKED ? 1 : 2
  };
  const int warp = thread / 32, lane = thread % 32, group = lane / 4, member = lane % 4;
  const int row_here = PACKED ? group % 4 : group;  // the query whose scores this thread has
  const f32 infinity = __int_as_float(0x7f800000);
  // Operands of instructions. Rows 0 to 7 are the high parts of queries, 8 to 15 the middle ones; low ones are in an
  // instruction of their own, or rows 4 to 7 if there are at most four queries.
  smelt_words *const parts = (smelt_words *)ring;
  f32 *const sums = (f32 *)(ring + 2 * STEPS * PLANES * 512);  // [warp][query][value]
  f32 *const best = sums + WARPS * ROWS * WIDE, *const total = best + WARPS * ROWS;  // [warp][query]
  ui32 *const found = (ui32 *)(total + WARPS * ROWS);  // [warp]
  const auto start_of = [&](int i) { return (first + i * stride) * CHUNK + 16 * warp; };
  const auto key_of = [&](int i) {  // the keys whose scores this thread has
    return ADJACENT ? 4 * member + 2 * (i % 2) + i / 2 : 2 * member + i % 2 + i / 2 * 8;
  };
  smelt_words k[2 * STEPS], v[4 * BLOCKS];
  const auto load_keys = [&](int i) {
    const int start = start_of(i);
    const ui16 *const from = key_at(start) + (ADJACENT ? 2 * group + 8 * member * key_step : 8 * member);
    if constexpr (ADJACENT) {  // two neighbours of each element
#pragma unroll
      for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int e = 0; e < 8; e++)
          k[2 * s + e / 4].x[e % 4] = smelt_stream_word(from + (32 * s + e) * key_step);
    } else {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int key = 8 * h + group, there = WHOLE || start + key < keys ? key : keys - 1 - start;
#pragma unroll
        for (int s = 0; s < STEPS; s++) k[2 * s + h] = smelt_stream(from + there * key_step + 32 * s);
      }
    }
  };
  const auto load_values = [&](int i) {
    const int start = start_of(i);
    const ui16 *const from = value_at(start) + 8 * group;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int key = key_of(j), there = WHOLE || start + key < keys ? key : keys - 1 - start;
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) v[4 * b + j] = smelt_stream(from + there * value_step + 64 * b);
    }
  };
  __syncthreads();
  ui32 seen = 0;  // the chunks in which this warp has a key that some query sees
#pragma unroll 4
  for (int i = 0; i < count; i += 2) {
    const int own = i + lane / 16, key = start_of(own) + lane % 16;
    bool visible = own < count && key < keys;
    if (CHECK && visible) {
      f32 most = mask(0.0f, 0, key);
      if (CHECK == 2)
        for (int row = 1; row < rows; row++) most = fmaxf(most, mask(0.0f, row, key));
      visible = most != -infinity;
    }
    const ui32 lanes = __ballot_sync(0xffffffffu, visible);
    seen |= ((lanes & 0xffffu ? 1u : 0u) | (lanes >> 16 ? 2u : 0u)) << i;
  }
  ui32 left = seen;
  if (left) {
    load_keys(__ffs(left) - 1);
    load_values(__ffs(left) - 1);
  }
  for (int at = thread; at < (PACKED ? 4 : 8) * (DEPTH / 2); at += 32 * WARPS) {  // two elements of a query
    const int row = at / (DEPTH / 2), pair = at % (DEPTH / 2), half = pair / 2 % 2, lane_of = 4 * row + pair / 4 % 4;
    ui32 even[3] = {}, odd[3] = {};
    if (row < rows) {
      smelt_split(query(row, 2 * pair), even);
      smelt_split(query(row, 2 * pair + 1), odd);
    }
    ui32 *const to = parts[(2 * (pair / 16) + half) * PLANES * 32 + lane_of].x + pair % 2 * 2;
    to[0] = smelt_join(even[0], odd[0]);
    to[1] = smelt_join(even[1], odd[1]);
    to[(PACKED ? 16 : 32) * 4] = smelt_join(even[2], odd[2]);
    to[(PACKED ? 16 : 32) * 4 + 1] = 0;
  }
  if (lane == 0) found[warp] = seen;
  __syncthreads();
  ui32 any = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) any |= found[w];
#pragma unroll 1
  for (int i = 0; i < count; i++) {
    const int chunk = first + i * stride, start = start_of(i);
    if (!(any >> i & 1)) {
      if (thread < rows && chunk * CHUNK < keys) put(chunk, thread, -2, -infinity);
      continue;
    }
    if (seen >> i & 1) {
      left &= left - 1;
      f32 high[2][4] = {}, low[2][4] = {};  // each of the three parts of a query has a sum of its own
#pragma unroll
      for (int s = 0; s < 2 * STEPS; s++) {
        smelt_words x[PLANES];
#pragma unroll
        for (int p = 0; p < PLANES; p++) x[p] = parts[(s * PLANES + p) * 32 + lane];
#pragma unroll
        for (int h = 0; h < 2; h++) {
          ui32 own[2];
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const ui32 even = k[s].x[2 * e], odd = k[s].x[2 * e + 1];
            if (ADJACENT) own[e] = __byte_perm(even, odd, h ? 0x7632 : 0x5410);
            else own[e] = k[s / 2 * 2 + h].x[s % 2 * 2 + e];
          }
          smelt_mma_sync(high[h], x[0].x, own);
          if (!PACKED) smelt_mma_sync(low[h], x[PLANES - 1].x, own);
        }
      }
      if (left) load_keys(__ffs(left) - 1);
      f32 score[4], most = -infinity, sum = 0;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        f32 x = high[j / 2][j % 2], y = high[j / 2][2 + j % 2], z = low[j / 2][j % 2];
        if (PACKED) {
          const f32 other = smelt_lane_xor(x, 16), middle = smelt_lane_xor(y, 16);
          z = group < 4 ? other : x;
          x = group < 4 ? x : other;
          y = group < 4 ? y : middle;
        }
        const int key = start + key_of(j);
        score[j] = mask(x + (y + z), row_here < rows ? row_here : rows - 1, key < keys ? key : keys - 1);
        if (key >= keys) score[j] = -infinity;
        most = smelt_most(most, score[j]);
      }
      most = smelt_most(most, smelt_lane_xor(most, 1));
      most = smelt_most(most, smelt_lane_xor(most, 2));
      const f32 safe = most == -infinity ? 0 : most;
      ui32 weight[4][3];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const f32 x = smelt_exp(score[j] - safe);
        sum += x;
        smelt_split_weight(x, weight[j]);
      }
      sum += smelt_lane_xor(sum, 1);
      sum += smelt_lane_xor(sum, 2);
      if (member == 0 && group < ROWS) best[ROWS * warp + group] = most, total[ROWS * warp + group] = sum;
      if (start + 16 > keys) {  // what is there instead of values may be anything
#pragma unroll
        for (int j = 0; j < 4 * BLOCKS; j++)
          if (start + key_of(j % 4) >= keys) v[j] = smelt_words{};
      }
      ui32 operand[3][2];
#pragma unroll
      for (int p = 0; p < 3; p++) {
        operand[p][0] = __byte_perm(weight[0][p], weight[1][p], 0x7632);
        operand[p][1] = __byte_perm(weight[2][p], weight[3][p], 0x7632);
      }
#pragma unroll
      for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int c = 0; c < 4; c++) {  // columns 2 c and 2 c + 1 of the eight that a thread has
          f32 o[4] = {};
          ui32 y[4];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const ui32 even = v[4 * b + 2 * h].x[c], odd = v[4 * b + 2 * h + 1].x[c];
            y[2 * h] = __byte_perm(even, odd, 0x5410);
            y[2 * h + 1] = __byte_perm(even, odd, 0x7632);
          }
#pragma unroll
          for (int p = 2; p >= 0; p--) smelt_mma_sync(o, y, operand[p]);
#pragma unroll
          for (int e = 0; e < 2; e++) {
            f32 *const to = sums + (ROWS * warp + 2 * member + e) * WIDE + 64 * b + 8 * group + 2 * c;
            if (2 * member + e < ROWS) to[0] = o[e], to[1] = o[2 + e];
          }
        }
      if (left) load_values(__ffs(left) - 1);
    } else if (lane < ROWS) {
      best[ROWS * warp + lane] = -infinity;
    }
    __syncthreads();
    for (int at = thread; at < rows * (VALUES / 2); at += 32 * WARPS) {  // a warp has elements of one query
      const int row = at / (VALUES / 2), column = at % (VALUES / 2) * 2;
      const f32 own = best[lane % WARPS * ROWS + row];
      f32 most = own;
#pragma unroll
      for (int by = 1; by < WARPS; by *= 2) most = smelt_most(most, smelt_lane_xor(most, by));
      const f32 safe = most == -infinity ? 0 : most, factor = own == -infinity ? -1 : smelt_exp(own - safe);
      f32 sum = own == -infinity ? 0 : factor * total[lane % WARPS * ROWS + row], x = 0, y = 0;
#pragma unroll
      for (int by = 1; by < WARPS; by *= 2) sum += smelt_lane_xor(sum, by);
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        const f32 *const from = sums + (ROWS * w + row) * WIDE + column;
        const f32 times = smelt_lane(factor, w);
        if (times == -1) continue;
        x = fmaf(times, from[0], x);
        y = fmaf(times, from[1], y);
      }
      put(chunk, row, column, x);
      put(chunk, row, column + 1, y);
      if (column == 0) put(chunk, row, -2, most), put(chunk, row, -1, sum);
    }
    if (any >> i >> 1) __syncthreads();
  }
}
""".replace("DECODE_WARPS", str(DECODE_WARPS))


def decode_functions(text: str) -> str:
    """The functions that a text calls."""
    return INSTRUCTIONS + DECODE if "smelt_decode<" in text else ""
