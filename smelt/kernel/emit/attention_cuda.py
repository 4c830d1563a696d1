"""FlashAttention on tensor cores as CUDA: `smelt_attend`, the micro-kernel of the statement `Attend`.

A block has 128 queries, or 64. Four warps copy queries, keys and values into shared memory (`cp.async`); eight or four
warps multiply, 16 queries each: `wgmma` on sm_90, `mma.sync` elsewhere. They hand tiles of keys to each other through
barriers in shared memory, so no warp waits for the slowest one. The product with the next tile of keys runs while the
weights of a tile are computed. Weights are exp2 of scores times scale / ln 2, from an instruction with an error of
2^-22; they are rounded to bf16 for the product with values, their sums are not.

Rows in shared memory are 128 bytes, 64 elements, and swizzled as `wgmma` takes them. A score that no mask changes keeps
its bits, so a weight does not depend on what masks do to other scores of the tile.
Device functions in front of `ATTEND` have counterparts in the tests' emulator.
"""

from __future__ import annotations

import re

# For attention of a few queries too.
WEIGHTS = """\
#ifdef __CUDACC__
inline f32 smelt_exp2(f32 x) { f32 y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
template <bool TRANSPOSED> inline void smelt_load_matrices(ui32 *to, const void *row) {  // ldmatrix: four of 8 x 8
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(smelt_shared_address(row)) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(smelt_shared_address(row)) : "memory");
}
#endif
inline f32 smelt_lane_xor(f32 x, int by) {
  return __uint_as_float(__shfl_xor_sync(0xffffffffu, __float_as_uint(x), by));
}
"""
INSTRUCTIONS = """\
#ifdef __CUDACC__
inline int smelt_first_lane(bool holds) {  // the first lane where it holds, or 32
  const ui32 lanes = __ballot_sync(0xffffffffu, holds);
  return lanes ? __ffs(lanes) - 1 : 32;
}
inline ui32 smelt_pack(f32 low, f32 high) {  // two bf16, rounded to nearest even
  ui32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
#ifdef SMELT_WGMMA
template <int N> inline void smelt_registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> inline void smelt_registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }
inline void smelt_group_sync(int group) {  // the four warps of a group
  if (group == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
  else if (group == 1) asm volatile("bar.sync 2, 128;" ::: "memory");
  else asm volatile("bar.sync 3, 128;" ::: "memory");
}
WGMMA_TEXT
#else
template <int N> inline void smelt_registers_up() {}
template <int N> inline void smelt_registers_down() {}
inline void smelt_group_sync(int group) { __syncwarp(); }  // a warp has queries of its own
#endif
#endif
"""
# Scores: queries and keys in shared memory; the first product of a tile replaces the sums (`more` is 0).
SCORES = """\
template <int ADJACENT> inline void smelt_wgmma_scores(f32 (&d)[{count}], ui64 a, ui64 b, int more) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{last}, 0;"
      " wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{places}}},"
      " %{count}, %{next}, p, 1, 1, 0, %{third}; }}"
      : {values} : "l"(a), "l"(b), "r"(more), "n"(ADJACENT));
}}
"""
# Weights are in registers; neighbouring elements of a value are adjacent, so B is transposed.
VALUES = """\
inline void smelt_wgmma_values(f32 (&d)[{count}], const ui32 *a, ui64 b, int more) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{more}, 0;"
      " wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{places}}},"
      " {{%{count}, %{next}, %{third}, %{fourth}}}, %{last}, p, 1, 1, 1; }}"
      : {values} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}}
"""
ATTEND = """\
inline void smelt_barrier_wait(ui64 *at, int phase) { while (!smelt_barrier_passed(at, phase)) {} }
inline void smelt_await_copies(ui64 *at, int phase) {  // that others have made; tensor cores read them
  smelt_barrier_wait(at, phase);
  smelt_publish();
}
// 16 bytes, number `chunk` of a row, of a matrix of ROWS rows.
constexpr int smelt_plane(int rows, int size) { return (size + 63) / 64 * (rows * 128); }  // bytes of a matrix
template <int ROWS> inline int smelt_cell(int row, int chunk) {
  return chunk / 8 * (ROWS * 128) + row * 128 + ((chunk ^ row) & 7) * 16;
}
// 128 threads copy rows of SIZE elements, and arrive at a barrier, if any, when these are there; rows after the last
// one are zeros. A thread has one chunk of every row. f32 goes through registers and becomes three matrices of bf16.
template <int ROWS, int SIZE, class From>
inline void smelt_copy_rows(int thread, char *to, i64 first, i64 limit, const From &from, ui64 *full) {
  enum { CHUNKS = SIZE / 8, ACROSS = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32, JUMP = 128 / ACROSS };
  enum { ASYNC = sizeof *from(0) == 2 };
  const int chunk = thread % ACROSS, own = thread / ACROSS;
  if (ASYNC && CHUNKS == ACROSS && first + ROWS <= limit) {  // addresses that differ by constants
#pragma unroll
    for (int i = 0; i < ROWS / JUMP; i++)
      smelt_copy_async(to + smelt_cell<ROWS>(own + i * JUMP, chunk), from(first + own + i * JUMP) + 8 * chunk, 16);
  } else if (chunk < CHUNKS) {
#pragma unroll 4
    for (int i = 0; i < ROWS / JUMP; i++) {
      const int row = own + i * JUMP;
      const bool there = first + row < limit;
      const auto at = from(there ? first + row : 0) + 8 * chunk;
      char *const cell = to + smelt_cell<ROWS>(row, chunk);
      if constexpr (ASYNC) {
        smelt_copy_async(cell, at, there ? 16 : 0);
      } else {
        smelt_words raw[2] = {}, parts[3];
        if (there) raw[0] = smelt_read(at), raw[1] = smelt_read(at + 4);
        smelt_left<f32>::parts(raw, parts);
#pragma unroll
        for (int p = 0; p < 3; p++) *(smelt_words *)(cell + p * smelt_plane(ROWS, SIZE)) = parts[p];
      }
    }
  }
  if (!full) {
  } else if constexpr (ASYNC) {
    smelt_copy_arrive(full);
  } else {
    smelt_publish();
    smelt_barrier_arrive(full);
  }
}
// Pairs of parts of two operands: those of which at least one is as small as the error of f32 are left out. Number i of
// them, small ones first; `left` and `right`: the numbers of parts.
constexpr int smelt_pairs(int left, int right) { return left == 3 && right == 3 ? 6 : left * right; }
constexpr int smelt_left_part(int left, int right, int i) {
  return left == 3 && right == 3 ? (i < 3 ? i : i < 5 ? i - 3 : 0) : left == 3 ? 2 - i : 0;
}
constexpr int smelt_right_part(int left, int right, int i) {
  return left == 3 && right == 3 ? (i < 3 ? 2 - i : i < 5 ? 4 - i : 0) : right == 3 ? 2 - i : 0;
}
inline int smelt_hold(int x) {  // nothing that depends on it is computed before, when there are fewer registers
  asm volatile("" : "+r"(x));
  return x;
}
template <bool FIRST, class A, class B> inline auto &smelt_choose(A &a, B &b) {
  if constexpr (FIRST) return a;
  else return b;
}
template <bool ADJACENT, class Key> inline auto smelt_key(const Key &key_at) {  // where keys begin
  if constexpr (ADJACENT) return key_at(0, 0);
  else return key_at(0);
}
struct smelt_order {  // tiles go round: the slot of a number, and how often it was used before
  int slot, turn;
  void next(int slots) { if (++slot == slots) { slot = 0; turn ^= 1; } }
};
template <int PARTS> inline void smelt_weights(f32 even, f32 odd, ui32 *to) {  // two weights as an operand
  if (PARTS == 1) {
    to[0] = smelt_pack(even, odd);
  } else {
    ui32 x[3], y[3];
    smelt_split(even, x);
    smelt_split(odd, y);
#pragma unroll
    for (int p = 0; p < PARTS; p++) to[p] = smelt_join(x[p], y[p]);
  }
}
template <int DEPTH, int VALUES, int KEYS, int STAGES, int GROUPS, int WEIGHTS, bool RAW, bool WHOLE,
          bool ADJACENT, class Query, class Key, class Value, class Mask, class Kind, class Factor, class Put>
inline void smelt_attend(int number, char *ring, i64 rows, i64 keys, f32 scale, const Query &query, const Key &key_at,
    const Value &value_at, const Mask &mask, const Kind &kind, const Factor &factor, const Put &put) {
  enum {
    ROWS = 64 * GROUPS, OF_QUERY = sizeof *query(0) == 2 ? 1 : 3, OF_VALUE = sizeof *value_at(0) == 2 ? 1 : 3,
    OF_KEY = sizeof *smelt_key<ADJACENT>(key_at) == 2 ? 1 : 3,  // parts, as there are WEIGHTS parts of weights
    LEFT = smelt_plane(ROWS, DEPTH), RIGHT = smelt_plane(KEYS, DEPTH), RESULT = smelt_plane(KEYS, VALUES),
    DEEP = OF_KEY * RIGHT, WIDE = OF_VALUE * RESULT,
    LIGHT = GROUPS == 1 && KEYS == 64 && WEIGHTS == 1 && DEPTH <= 64 && VALUES <= 64,  // three are on a multiprocessor
    // Registers of a thread that copies, and of others.
    FREE = GROUPS == 3 || LIGHT ? 32 : OF_KEY * OF_VALUE == 1 ? 40 : 88,
    TAKEN = LIGHT ? 160 - FREE : GROUPS == 1 ? 256 - FREE : GROUPS == 3 ? 160 : FREE == 40 ? 232 : 208
  };
  char *const held_keys = ring + OF_QUERY * LEFT, *const held_values = held_keys + STAGES * DEEP;
  ui64 *const barriers = (ui64 *)(held_values + STAGES * WIDE);
  ui64 *const full_keys = barriers, *const full_values = barriers + STAGES;
  ui64 *const free_keys = barriers + 2 * STAGES, *const free_values = barriers + 3 * STAGES;
  ui64 *const full_queries = barriers + 4 * STAGES;
  const int tiles = (int)((keys + KEYS - 1) / KEYS);
  const auto find = [&](int tile) {  // the first tile from this one on that some query sees
    if (tile >= tiles || kind((i64)tile * KEYS) != 0) return tile;
    for (tile++; tile < tiles; tile += 32) {  // a lane looks at one of 32
      const int own = tile + number % 32, first = smelt_first_lane(own < tiles && kind((i64)own * KEYS) != 0);
      if (first < 32) return tile + first;
    }
    return tiles;
  };
  __syncthreads();
  if (number == 0) {
    smelt_barrier_init(full_queries, 128);
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
      smelt_barrier_init(full_keys + i, 128);
      smelt_barrier_init(full_values + i, 128);
      smelt_barrier_init(free_keys + i, 4 * GROUPS);
      smelt_barrier_init(free_values + i, 4 * GROUPS);
    }
  }
  __syncthreads();
  if (number >= 128 * GROUPS) {
    smelt_registers_down<FREE>();
    const int copier = smelt_hold(number) - 128 * GROUPS;
    smelt_copy_rows<ROWS, DEPTH>(copier, ring, 0, rows, query, full_queries);
    smelt_order k = {}, v = {};
    for (int tile = find(0), last = tiles; tile < tiles || last < tiles;) {  // keys are one tile ahead of values
      if (tile < tiles) {
        smelt_barrier_wait(free_keys + k.slot, k.turn ^ 1);
        char *const to = held_keys + k.slot * DEEP;
        if constexpr (ADJACENT) {
#pragma unroll
          for (int i = 0; i < KEYS / 64; i++) {
            const i64 first = (i64)tile * KEYS + 64 * i, there = first < keys ? first : 0;
            smelt_copy_rows<DEPTH, 64>(copier, to + i * DEPTH * 128, 0, first < keys ? DEPTH : 0,
                                       [&](i64 step) { return key_at(there, step); },
                                       i == KEYS / 64 - 1 ? full_keys + k.slot : 0);
          }
        } else {
          smelt_copy_rows<KEYS, DEPTH>(copier, to, (i64)tile * KEYS, keys, key_at, full_keys + k.slot);
        }
        k.next(STAGES);
      }
      if (last < tiles) {
        smelt_barrier_wait(free_values + v.slot, v.turn ^ 1);
        smelt_copy_rows<KEYS, VALUES>(copier, held_values + v.slot * WIDE, (i64)last * KEYS, keys, value_at,
                                      full_values + v.slot);
        v.next(STAGES);
      }
      last = tile;
      if (tile < tiles) tile = find(tile + 1);
    }
    return;
  }
  smelt_registers_up<TAKEN>();
  const int thread = smelt_hold(number), warp = thread / 32, group = thread % 32 / 4, member = thread % 4;
  const int row = warp * 16 + group;  // this thread has 2 of 8 neighbouring columns of this row, and of row + 8
  const f32 infinity = __int_as_float(0x7f800000), power = scale * 1.44269504f, inverse = 1 / scale;
  f32 best[2] = {-infinity, -infinity}, total[2] = {0, 0}, decay[2];
  smelt_order k = {}, v = {};
  const auto release = [&](ui64 *at) {
    __syncwarp();
    if (thread % 32 == 0) smelt_barrier_arrive(at);
  };
  // Online softmax: scores of this tile become weights; `decay` is the factor of what was summed up before.
  const auto weigh = [&](auto &s, i64 start, bool masked) {
    enum { COUNT = sizeof(s) / 4 };
    const auto key_of = [&](int i) { return start + i / 4 * 8 + 2 * member + i % 2; };
    if (masked) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        const i64 r = row + i / 2 % 2 * 8, key = key_of(i);
        if (RAW) {  // masks know what to do with any row and key
          s[i] = mask(s[i], r, key);
          continue;
        }
        const f32 score = s[i] * scale;
        const f32 changed = mask(score, r < rows ? r : rows - 1, key < keys ? key : keys - 1);
        const f32 back = changed * inverse, least = -1.329228e36f;  // a finite score stays finite
        s[i] = changed == score ? s[i] : back < least && changed > -infinity ? least : back;
      }
    }
    if (start + 2 * COUNT > keys) {
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        if (key_of(i) >= keys) s[i] = -infinity;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      f32 most = best[h];
#pragma unroll
      for (int i = 2 * h; i < COUNT; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
      most = fmaxf(most, smelt_lane_xor(most, 1));
      most = fmaxf(most, smelt_lane_xor(most, 2));
      const f32 safe = most == -infinity ? 0 : most, bias = -(safe * power);
      decay[h] = smelt_exp2((best[h] - safe) * power);  // 1, exactly, where the maximum stays
      best[h] = most;
      f32 sum[2] = {0, 0};
#pragma unroll
      for (int i = 2 * h; i < COUNT; i += 4)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          s[i + e] = smelt_exp2(fmaf(s[i + e], power, bias));
          sum[e] += s[i + e];
        }
      total[h] = fmaf(total[h], decay[h], sum[0] + sum[1]);
    }
  };
#ifdef SMELT_WGMMA
  f32 o[VALUES / 2], s[KEYS / 2], tile_sums[WEIGHTS == 1 ? 1 : VALUES / 2];  // f32: an instruction does not round sums
  auto &sums = smelt_choose<WEIGHTS == 1>(o, tile_sums);
  ui32 p[WEIGHTS][KEYS / 4];
#pragma unroll
  for (int i = 0; i < VALUES / 2; i++) o[i] = 0;
  const ui64 form = (ui64)(1024 >> 4) << 32 | (ui64)1 << 62;  // 8 rows are 1024 bytes, swizzle of 128 bytes
  const ui64 left = form | (ui64)1 << 16 | (smelt_shared_address(ring) + warp / 4 * 64 * 128) >> 4;
  const auto await_keys = [&]() { smelt_await_copies(full_keys + k.slot, k.turn); };
  const auto multiply_keys = [&]() {
    const ui64 right = form | (ui64)(ADJACENT ? DEPTH * 128 >> 4 : 1) << 16 |
                       smelt_shared_address(held_keys + k.slot * DEEP) >> 4;
    smelt_wgmma_fence();
#pragma unroll
    for (int pair = 0; pair < smelt_pairs(OF_QUERY, OF_KEY); pair++)
#pragma unroll
      for (int i = 0; i < DEPTH / 16; i++)
        smelt_wgmma_scores<ADJACENT>(
            s, left + (smelt_left_part(OF_QUERY, OF_KEY, pair) * LEFT + i / 4 * (ROWS * 128) + i % 4 * 32) / 16,
            right + (smelt_right_part(OF_QUERY, OF_KEY, pair) * RIGHT +
                     (ADJACENT ? i * 16 * 128 : i / 4 * (KEYS * 128) + i % 4 * 32)) / 16,
            pair + i);
    smelt_wgmma_commit();
  };
  const auto multiply_values = [&]() {
    smelt_await_copies(full_values + v.slot, v.turn);
    const ui64 right = form | (ui64)(KEYS * 128 >> 4) << 16 | smelt_shared_address(held_values + v.slot * WIDE) >> 4;
    smelt_wgmma_fence();
#pragma unroll
    for (int pair = 0; pair < smelt_pairs(WEIGHTS, OF_VALUE); pair++)
#pragma unroll
      for (int i = 0; i < KEYS / 16; i++)
        smelt_wgmma_values(sums, p[smelt_left_part(WEIGHTS, OF_VALUE, pair)] + 4 * i,
                           right + (smelt_right_part(WEIGHTS, OF_VALUE, pair) * RESULT + i * 16 * 128) / 16,
                           WEIGHTS == 1 || pair + i);
    smelt_wgmma_commit();
  };
  const auto round = [&]() {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
      ui32 x[WEIGHTS];
      smelt_weights<WEIGHTS>(s[2 * i], s[2 * i + 1], x);
#pragma unroll
      for (int part = 0; part < WEIGHTS; part++) p[part][i] = x[part];
    }
  };
  int tile = find(0);
  smelt_await_copies(full_queries, 0);  // also without keys: results take the memory of the queries
  if (tile < tiles) {
    await_keys();
    multiply_keys();
    smelt_wgmma_wait<0>();
    smelt_wgmma_done(s);
    release(free_keys + k.slot);
    k.next(STAGES);
    weigh(s, (i64)tile * KEYS, kind((i64)tile * KEYS) != 1);
    round();
    tile = find(tile + 1);
    if (tile < tiles) await_keys();
    while (tile < tiles) {
      multiply_keys();
      multiply_values();
      smelt_wgmma_wait<1>();
      smelt_wgmma_done(s);
      release(free_keys + k.slot);
      k.next(STAGES);
      weigh(s, (i64)tile * KEYS, kind((i64)tile * KEYS) != 1);
      smelt_wgmma_done(s);
      tile = find(tile + 1);
      if (tile < tiles) await_keys();  // a loop: what is behind it does not get in front of the weights
      smelt_wgmma_wait<0>();
      smelt_wgmma_done(sums);
      release(free_values + v.slot);
      v.next(STAGES);
#pragma unroll
      for (int i = 0; i < VALUES / 2; i++) o[i] = (WEIGHTS == 1 ? o[i] : o[i] + sums[i]) * decay[i / 2 % 2];
      round();
    }
    multiply_values();
    smelt_wgmma_wait<0>();
    smelt_wgmma_done(sums);
    if (WEIGHTS > 1)
#pragma unroll
      for (int i = 0; i < VALUES / 2; i++) o[i] += sums[i];
  }
#else
  enum { PART = KEYS % 64 || WEIGHTS * OF_VALUE > 1 ? (KEYS % 32 ? 16 : 32) : 64 };  // keys that registers hold
  f32 o[VALUES / 2], s[PART / 2];
#pragma unroll
  for (int i = 0; i < VALUES / 2; i++) o[i] = 0;
  smelt_barrier_wait(full_queries, 0);
  const int matrix = thread % 32 / 8, line = thread % 8;  // ldmatrix: this thread has the address of a row of a matrix
  for (int tile = find(0); tile < tiles; tile = find(tile + 1)) {
    const bool masked = kind((i64)tile * KEYS) != 1;
    smelt_barrier_wait(full_keys + k.slot, k.turn);
    const char *const near_keys = held_keys + k.slot * DEEP, *const near_values = held_values + v.slot * WIDE;
    for (int part = 0; part < KEYS; part += PART) {
#pragma unroll
      for (int i = 0; i < PART / 2; i++) s[i] = 0;
#pragma unroll
      for (int pair = 0; pair < smelt_pairs(OF_QUERY, OF_KEY); pair++) {
        const char *const near = ring + smelt_left_part(OF_QUERY, OF_KEY, pair) * LEFT;
        const char *const far = near_keys + smelt_right_part(OF_QUERY, OF_KEY, pair) * RIGHT;
#pragma unroll
        for (int d = 0; d < DEPTH / 16; d++) {
          ui32 x[4];
          smelt_load_matrices<false>(x, near + smelt_cell<ROWS>(warp * 16 + matrix % 2 * 8 + line, 2 * d + matrix / 2));
#pragma unroll
          for (int j = 0; j < PART / 16; j++) {
            ui32 y[4];
            if (ADJACENT)
              smelt_load_matrices<true>(y, far + smelt_cell<DEPTH>(16 * d + matrix % 2 * 8 + line,
                                                                   part / 8 + 2 * j + matrix / 2));
            else
              smelt_load_matrices<false>(
                  y, far + smelt_cell<KEYS>(part + 16 * j + matrix / 2 * 8 + line, 2 * d + matrix % 2));
            smelt_mma_sync(s + 8 * j, x, y);
            smelt_mma_sync(s + 8 * j + 4, x, y + 2);
          }
        }
      }
      weigh(s, (i64)tile * KEYS + part, masked);
      if (part == 0) smelt_barrier_wait(full_values + v.slot, v.turn);
#pragma unroll
      for (int i = 0; i < VALUES / 2; i++) o[i] *= decay[i / 2 % 2];
      f32 tile_sums[WEIGHTS == 1 ? 1 : VALUES / 2] = {};
      auto &sums = smelt_choose<WEIGHTS == 1>(o, tile_sums);
#pragma unroll
      for (int j = 0; j < PART / 16; j++) {
        ui32 x[WEIGHTS][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          ui32 z[WEIGHTS];
          smelt_weights<WEIGHTS>(s[8 * j + 2 * i], s[8 * j + 2 * i + 1], z);
#pragma unroll
          for (int n = 0; n < WEIGHTS; n++) x[n][i] = z[n];
        }
#pragma unroll
        for (int pair = 0; pair < smelt_pairs(WEIGHTS, OF_VALUE); pair++)
#pragma unroll
          for (int c = 0; c < VALUES / 16; c++) {
            const char *const far = near_values + smelt_right_part(WEIGHTS, OF_VALUE, pair) * RESULT;
            ui32 y[4];
            smelt_load_matrices<true>(
                y, far + smelt_cell<KEYS>(part + 16 * j + matrix % 2 * 8 + line, 2 * c + matrix / 2));
            smelt_mma_sync(sums + 8 * c, x[smelt_left_part(WEIGHTS, OF_VALUE, pair)], y);
            smelt_mma_sync(sums + 8 * c + 4, x[smelt_left_part(WEIGHTS, OF_VALUE, pair)], y + 2);
          }
      }
      if (WEIGHTS > 1)
#pragma unroll
        for (int i = 0; i < VALUES / 2; i++) o[i] += sums[i];
    }
    release(free_keys + k.slot);
    release(free_values + v.slot);
    k.next(STAGES);
    v.next(STAGES);
  }
#endif
  f32 times[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    total[h] += smelt_lane_xor(total[h], 1);
    total[h] += smelt_lane_xor(total[h], 2);
    times[h] = factor(total[h]);
  }
  // Results of a warp go through the memory of its queries, so that neighbouring threads store neighbours.
  char *const staged = ring + warp * 16 * 128;
  smelt_group_sync(warp / 4);
  if constexpr (WHOLE) {  // rows are adjacent in memory, 16 bytes at a time
    enum { SIZE = sizeof *put(0), COLUMNS = 128 / SIZE, EACH = 16 / SIZE };
#pragma unroll
    for (int first = 0; first < VALUES; first += COLUMNS) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < COLUMNS / 2 && 2 * i + first < VALUES; i += 2) {
        const int at = group + i / 2 % 2 * 8, column = i / 4 * 8 + 2 * member;
        const f32 x = o[first / 2 + i] * times[i / 2 % 2], y = o[first / 2 + i + 1] * times[i / 2 % 2];
        char *const cell = staged + smelt_cell<16>(at, column / EACH) + column % EACH * SIZE;
        if (SIZE == 2) *(ui32 *)cell = smelt_pack(x, y);
        else ((f32 *)cell)[0] = x, ((f32 *)cell)[1] = y;
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int at = thread % 32 / 8 + 4 * i, chunk = thread % 8;
        if (warp * 16 + at < rows && first + chunk * EACH < VALUES)
          *(smelt_words *)(put(warp * 16 + at) + first + chunk * EACH) =
              *(const smelt_words *)(staged + smelt_cell<16>(at, chunk));
      }
    }
  } else {
#pragma unroll
    for (int first = 0; first < VALUES; first += 32) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 16 && first + 2 * i < VALUES; i++) {
        const int at = group + i / 2 % 2 * 8, column = i / 4 * 8 + 2 * member + i % 2;
        ((f32 *)staged)[at * 32 + (column ^ (at & 3) << 3)] = o[first / 2 + i] * times[i / 2 % 2];
      }
      __syncwarp();
      const int column = thread % 32;
      if (first + column < VALUES)
        for (int at = 0; at < 16 && warp * 16 + at < rows; at++)
          put(warp * 16 + at, first + column, ((const f32 *)staged)[at * 32 + (column ^ (at & 3) << 3)]);
    }
  }
}
"""


def _registers(text: str, columns: int) -> str:
    count = columns // 2
    places = ", ".join(f"%{i}" for i in range(count))
    values = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    third = count + (3 if "scores" in text else 2)
    numbers = {"next": count + 1, "third": third, "fourth": count + 3, "more": count + 5}
    last = count + (2 if "scores" in text else 4)
    return text.format(columns=columns, count=count, places=places, values=values, last=last, **numbers)


def attend_functions(text: str) -> str:
    """The functions that a text calls."""
    calls = re.findall(r"smelt_attend<(\d+), (\d+), (\d+)", text)
    if not calls:
        return ""
    listed = [tuple(map(int, sizes)) for sizes in calls]
    products = [(SCORES, keys) for _, _, keys in listed] + [(VALUES, values) for _, values, _ in listed]
    wgmma = "".join(_registers(text, columns) for text, columns in dict.fromkeys(products))
    return INSTRUCTIONS.replace("WGMMA_TEXT\n", wgmma) + ATTEND
