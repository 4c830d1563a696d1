"""Flash-decoding on tensor cores as CUDA: `smelt_decode`, the micro-kernel of the statement `Decode`.

A block has up to 8 queries, and chunks of 128 keys. `cp.async` fills a ring in shared memory with the keys of a chunk,
its values, the keys of the next chunk and so on. Each of eight warps multiplies the queries by 16 keys, and the weights
of all keys of the chunk by 16 columns of the values. Chunks that masks hide are not read.

Chunks are added up in order, by the online softmax. Where several blocks of a cluster have the chunks of the same
queries, they write the results into the shared memory of the first one, which combines them. A query is three bf16, and
so is a weight. Functions in front of `DECODE` have counterparts in the tests' emulator.
"""

from __future__ import annotations

from smelt.kernel.loops.tensor_tile import DECODE_WARPS

INSTRUCTIONS = """\
#ifdef __CUDACC__
inline f32 smelt_most(f32 x, f32 y) { f32 z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }
#if __CUDA_ARCH__ >= 900
inline void smelt_cluster_begin() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
inline void smelt_cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
inline void smelt_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
inline void smelt_cluster_write(f32 *to, int block, f32 x) {  // to the shared memory of a block of the cluster
  asm volatile("{ .reg .u32 at; mapa.shared::cluster.u32 at, %0, %1; st.shared::cluster.f32 [at], %2; }"
      :: "r"(smelt_shared_address(to)), "r"(block), "f"(x) : "memory");
}
#else
inline void smelt_cluster_begin() {}
inline void smelt_cluster_arrive() {}
inline void smelt_cluster_wait() {}
inline void smelt_cluster_write(f32 *to, int, f32 x) { *to = x; }
#endif
#endif
"""
DECODE = """\
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
// The maximum with one more chunk, of which a key is seen, and what multiplies the chunks before it and that chunk.
inline f32 smelt_next_level(f32 level, f32 most, f32 &old, f32 &fresh) {
  const f32 less = smelt_weight_f32(-fabsf(most - level));
  old = most > level ? less : 1;
  fresh = most > level ? 1 : less;
  return smelt_most(level, most);
}
// Where a row has CELLS of 16 bytes, an even number: the place of one. Eight rows of a cell are in different banks.
template <int CELLS> inline ui32 smelt_row_cell(ui32 row, ui32 cell) {
  return 16 * (CELLS * row + (cell ^ (CELLS % 4 ? row / 4 % 2 : CELLS % 8 ? row / 2 % 4 : row % 8)));
}
// The place an even number of cells after one of the first two: places that differ by constants take few instructions.
template <int CELLS> inline ui32 smelt_later_cell(ui32 place, ui32 cells) {
  enum { RUN = CELLS % 4 ? 2 : CELLS % 8 ? 4 : 8 };
  return (place ^ cells % RUN * 16) + cells / RUN * RUN * 16;
}
// A warp copies rows of CELLS, `step` apart, to a place that is a multiple of 128; those from `valid` on are zeros.
template <int CELLS, int ROWS, class Valid> inline void smelt_copy_rows(
    ui32 lane, char *ring, ui32 to, const ui16 *from, i64 step, const Valid &valid) {
  enum { EVEN = 32 % CELLS == 0, BELOW = EVEN ? 32 / CELLS : 1 };
  const ui32 place = to + smelt_row_cell<CELLS>(lane / CELLS, lane % CELLS);
  const ui16 *const first = from + lane / CELLS * step + lane % CELLS * 8;
#pragma unroll
  for (ui32 j = 0; j < CELLS * ROWS / 32; j++) {
    const ui32 at = lane + 32 * j;
    if (EVEN)
      smelt_copy_async(ring + (place ^ (CELLS % 8 ? 0 : BELOW * j % 8 * 16)) + 512 * j, first + BELOW * j * step,
          valid(lane / CELLS + BELOW * j) ? 16 : 0);
    else
      smelt_copy_async(ring + to + smelt_row_cell<CELLS>(at / CELLS, at % CELLS),
          from + at / CELLS * step + at % CELLS * 8, valid(at / CELLS) ? 16 : 0);
  }
}
inline f32 smelt_lane(f32 x, int lane) {
  return __uint_as_float(__shfl_sync(0xffffffffu, __float_as_uint(x), lane));
}
struct __align__(8) smelt_half_words { ui32 x[2]; };
// The keys and values of the first chunks come to the cache of the device, where `smelt_decode` reads them next.
template <int DEPTH, int VALUES, bool ADJACENT, class Key, class Value>
inline void smelt_decode_ahead(int thread, int keys, int first, int stride, int count, i64 key_step, i64 value_step,
    const Key &key_at, const Value &value_at) {
  enum { WARPS = DECODE_WARPS, KEY_LINES = ADJACENT ? 1 : (DEPTH + 63) / 64, VALUE_LINES = (VALUES + 63) / 64 };
  const int warp = (ui32)thread / 32, lane = (ui32)thread % 32;
#pragma unroll 1
  for (int i = 0; i < 2 && i < count; i++) {
    const int start = 16 * (WARPS * (first + i * stride) + warp);
    if (start >= keys) break;
    const ui16 *const k = key_at(start), *const v = value_at(start);
#pragma unroll
    for (ui32 at = lane; at < (ADJACENT ? DEPTH : 16) * KEY_LINES; at += 32)
      smelt_prefetch(k + at / KEY_LINES * key_step + at % KEY_LINES * 64);
#pragma unroll
    for (ui32 at = lane; at < 16 * VALUE_LINES; at += 32)
      smelt_prefetch(v + at / VALUE_LINES * value_step + at % VALUE_LINES * 64);
  }
}
// SLOTS of the ring hold keys or values of a chunk. SHARE: blocks of a cluster, which take chunks in turns; the first
// combines the results. 0: results go to `put`, and a later launch combines them. CHECK: 0 masks hide no chunk, 1 they
// are the same for all queries, 2 any. WHOLE: there is memory for 16 keys wherever there is one. ADJACENT: 16 keys are
// adjacent, not the elements of a key. `key_at`, `value_at`: the first of 16 keys, and its value; others follow,
// `key_step` and `value_step` apart; where keys are adjacent, elements are.
template <int DEPTH, int VALUES, int ROWS, int SLOTS, int SHARE, int CHECK, bool WHOLE, bool ADJACENT, class Query,
          class Key, class Value, class Mask, class Put, class Sink>
inline void smelt_decode(int thread, char *ring, int rows, int keys, int first, int stride, int count, i64 key_step,
    i64 value_step, const Query &query, const Key &key_at, const Value &value_at, const Mask &mask, const Put &put,
    const Sink &sink) {
  enum {
    WARPS = DECODE_WARPS, CHUNK = 16 * WARPS, STEPS = DEPTH / 16, WIDE = VALUES + 2, PACKED = ROWS <= 4,
    PLANES = PACKED ? 1 : 2, SLOT = CHUNK * 2 * (DEPTH > VALUES ? DEPTH : VALUES), BLOCKS = VALUES / 16,
    KEY_CELLS = ADJACENT ? 2 : DEPTH / 8, VALUE_CELLS = VALUES / 8, PAIRS = (PACKED ? 4 : 8) * (DEPTH / 2),
    OWN_PAIRS = (PAIRS + 32 * WARPS - 1) / (32 * WARPS), OWN_BLOCKS = (BLOCKS + WARPS - 1) / WARPS
  };
  // Numbers that are known not to be negative are divided by shifts.
  const int warp = (ui32)thread / 32, lane = (ui32)thread % 32, group = lane / 4, member = lane % 4;
  const int line = lane % 8, matrix = lane / 8;
  const int row_here = PACKED ? group % 4 : group;  // the query whose scores this thread has
  const f32 infinity = __int_as_float(0x7f800000);
  // Operands of instructions. Rows 0 to 7 are the high parts of queries, 8 to 15 the middle ones; low ones are in an
  // instruction of their own, or rows 4 to 7 if there are at most four queries. It is the same with weights, whose
  // queries are columns: of four queries the middle parts are columns 4 to 7.
  smelt_words *const parts = (smelt_words *)(ring + SLOTS * SLOT), *const weights = parts + STEPS * PLANES * 32;
  smelt_half_words *const lows = (smelt_half_words *)(weights + 32 * WARPS);
  f32 *const best = (f32 *)(lows + (PACKED ? 0 : 32 * WARPS)), *const total = best + WARPS * ROWS;  // [query][warp]
  ui32 *const found = (ui32 *)(total + WARPS * ROWS);  // [warp]
  f32 *const held = (f32 *)(found + WARPS);  // [chunk][query][maximum, sum of weights, values], of all blocks
  const int chunks = (keys + CHUNK - 1) / CHUNK;
  const auto start_of = [&](int i) { return (first + i * stride) * CHUNK + 16 * warp; };
  __syncthreads();
  f32 raw[OWN_PAIRS][2];  // two elements of a query
#pragma unroll
  for (int j = 0; j < OWN_PAIRS; j++) {
    const ui32 at = thread + 32 * WARPS * j, row = at / (DEPTH / 2), pair = at % (DEPTH / 2);
    const bool there = (PAIRS % (32 * WARPS) == 0 || at < PAIRS) && (int)row < rows;
    raw[j][0] = there ? query(row, 2 * pair) : 0;
    raw[j][1] = there ? query(row, 2 * pair + 1) : 0;
  }
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
  if (lane == 0) found[warp] = seen;
  if (SHARE > 1) smelt_cluster_begin();  // which hands over nothing: a fence would hold up the copies behind it
  __syncthreads();
  ui32 any = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) any |= found[w];
  // Keys and values of the chunks that some query sees go through the ring, as numbers 2 i and 2 i + 1 of chunk i.
  ui32 coming = any, to_slot = 0;
  int loaded = 0;
  const auto load_next = [&]() {
    if (coming) {
      const int i = __ffs(coming) - 1, start = start_of(i);
      const bool here = seen >> i & 1;
      if (loaded % 2) {
        const int valid = here ? keys - start : 0;  // zeros where no key is seen
        smelt_copy_rows<VALUE_CELLS, 16>(lane, ring, to_slot * SLOT + 32 * VALUES * warp, value_at(here ? start : 0),
            value_step, [&](int row) { return row < valid; });
        coming &= coming - 1;
      } else if (here) {
        smelt_copy_rows<KEY_CELLS, ADJACENT ? DEPTH : 16>(lane, ring, to_slot * SLOT + 32 * DEPTH * warp,
            key_at(start), key_step, [&](int row) { return WHOLE || ADJACENT || start + row < keys; });
      }
    }
    smelt_copy_commit();
    loaded++;
    to_slot = to_slot == SLOTS - 1 ? 0 : to_slot + 1;
  };
#pragma unroll 1
  while (loaded < SLOTS) load_next();
#pragma unroll
  for (int j = 0; j < OWN_PAIRS; j++) {
    const ui32 at = thread + 32 * WARPS * j, row = at / (DEPTH / 2), pair = at % (DEPTH / 2);
    if (PAIRS % (32 * WARPS) && at >= PAIRS) break;
    ui32 even[3], odd[3];
    smelt_split(raw[j][0], even);
    smelt_split(raw[j][1], odd);
    ui32 *const to = parts[pair / 8 * PLANES * 32 + 4 * row + pair % 4].x + pair / 4 % 2 * 2;
    to[0] = smelt_join(even[0], odd[0]);
    to[1] = smelt_join(even[1], odd[1]);
    to[(PACKED ? 16 : 32) * 4] = smelt_join(even[2], odd[2]);
    to[(PACKED ? 16 : 32) * 4 + 1] = 0;
  }
  const auto keep = [&](int chunk, int row, int column, f32 x) {
    if (SHARE > 1) smelt_cluster_write(held + (chunk * ROWS + row) * WIDE + 2 + column, 0, x);
    else put(chunk, row, column, x, 0.0f);
  };
  // What the chunks so far add up to, with one block.
  f32 level = sink(row_here < rows ? row_here : 0), whole = level == -infinity ? 0 : 1, result[OWN_BLOCKS][4] = {};
  __syncthreads();
  if (SHARE > 1) smelt_cluster_wait();
  if (SHARE != 1 && thread < rows)
    for (int i = 0; i < count; i++)
      if (!(any >> i & 1) && (first + i * stride) * CHUNK < keys) keep(first + i * stride, thread, -2, -infinity);
  ui32 slot = 0;
#pragma unroll 1
  for (int turn = 0; any; any &= any - 1, turn++) {
    const int i = __ffs(any) - 1, start = start_of(i), chunk = first + i * stride;
    const bool here = seen >> i & 1;
    const ui32 near_keys = slot * SLOT + 32 * DEPTH * warp;
    slot = slot == SLOTS - 1 ? 0 : slot + 1;
    const ui32 near_values = slot * SLOT;
    slot = slot == SLOTS - 1 ? 0 : slot + 1;
    f32 score[4], most = -infinity, sum = 0;
    if (here) {
      smelt_copy_wait<SLOTS - 2>();
      __syncwarp();
      // Each of the three parts of a query has a sum of its own; short chains of dependent instructions, two for each.
      f32 high[2][2][4] = {}, low[2][2][4] = {};
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        smelt_words x[PLANES];
#pragma unroll
        for (int p = 0; p < PLANES; p++) x[p] = parts[(s * PLANES + p) * 32 + lane];
        ui32 own[4];
        if (ADJACENT)
          smelt_load_matrices<true>(
              own, ring + near_keys + smelt_row_cell<2>(matrix % 2 * 8 + line, matrix / 2) + 512 * s);
        else
          smelt_load_matrices<false>(own, ring + smelt_later_cell<KEY_CELLS>(
              near_keys + smelt_row_cell<KEY_CELLS>(matrix / 2 * 8 + line, matrix % 2), 2 * s));
#pragma unroll
        for (int h = 0; h < 2; h++) {
          smelt_mma_sync(high[s % 2][h], x[0].x, own + 2 * h);
          if (!PACKED) smelt_mma_sync(low[s % 2][h], x[PLANES - 1].x, own + 2 * h);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int h = j / 2, e = j % 2;
        f32 x = high[0][h][e] + high[1][h][e], y = high[0][h][2 + e] + high[1][h][2 + e];
        f32 z = low[0][h][e] + low[1][h][e];
        if (PACKED) {
          const f32 other = smelt_lane_xor(x, 16), middle = smelt_lane_xor(y, 16);
          z = group < 4 ? other : x;
          x = group < 4 ? x : other;
          y = group < 4 ? y : middle;
        }
        const int key = start + 2 * member + e + h * 8;
        score[j] = mask(x + (y + z), row_here < rows ? row_here : rows - 1, key < keys ? key : keys - 1);
        if (key >= keys) score[j] = -infinity;
        most = smelt_most(most, score[j]);
      }
      most = smelt_most(most, smelt_lane_xor(most, 1));
      most = smelt_most(most, smelt_lane_xor(most, 2));
      if (member == 0 && group < ROWS) best[WARPS * group + warp] = most;
    } else if (lane < ROWS) {
      best[WARPS * lane + warp] = -infinity;
    }
    __syncthreads();  // all have multiplied their keys, and the values of the chunk before
#pragma unroll 1
    while (loaded <= 2 * turn + SLOTS) load_next();
    const int inside = row_here < ROWS ? row_here : 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = smelt_most(most, best[WARPS * inside + w]);
    const f32 safe = most == -infinity ? 0 : most;
    smelt_words operand = {};
    smelt_half_words last = {};
    if (here) {
      ui32 weight[4][3];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const f32 x = smelt_exp(score[j] - safe);
        sum += x;
        smelt_split_weight(x, weight[j]);
      }
      sum += smelt_lane_xor(sum, 1);
      sum += smelt_lane_xor(sum, 2);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const ui32 x = __byte_perm(weight[2 * h][0], weight[2 * h + 1][0], 0x7632);
        const ui32 y = __byte_perm(weight[2 * h][1], weight[2 * h + 1][1], 0x7632);
        const ui32 z = __byte_perm(weight[2 * h][2], weight[2 * h + 1][2], 0x7632);
        operand.x[h] = PACKED && group >= 4 ? y : x;
        operand.x[2 + h] = !PACKED ? y : group < 4 ? z : 0;
        last.x[h] = z;
      }
    }
    weights[32 * warp + lane] = operand;
    if (!PACKED) lows[32 * warp + lane] = last;
    if (member == 0 && group < ROWS) total[WARPS * group + warp] = sum;
    smelt_copy_wait<SLOTS - 1>();
    __syncthreads();  // weights and values are there
    f32 weighed = 0, old = 1, fresh = 0;
    if (SHARE == 1 || warp == 0)
#pragma unroll
      for (int w = 0; w < WARPS; w++) weighed += total[WARPS * inside + w];
    const bool hidden = most == -infinity;  // from this query
    if (SHARE == 1) {
      level = smelt_next_level(level, most, old, fresh);
      if (!hidden) whole = fmaf(fresh, weighed, old * whole);
    } else if (warp == 0 && member == 0 && group < rows) {
      keep(chunk, group, -2, most);
      keep(chunk, group, -1, weighed);
    }
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) {
      const int block = WARPS * b + warp;
      if (BLOCKS % WARPS && block >= BLOCKS) break;
      f32 o[2][3][4] = {};  // the same for the parts of a weight
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        ui32 own[4];
        smelt_load_matrices<true>(own, ring + near_values + 32 * VALUES * w +
            smelt_row_cell<VALUE_CELLS>(matrix / 2 * 8 + line, 2 * block + matrix % 2));
        const smelt_words x = weights[32 * w + lane];
        smelt_mma_sync(o[w % 2][0], own, x.x);
        smelt_mma_sync(o[w % 2][1], own, x.x + 2);
        if (!PACKED) smelt_mma_sync(o[w % 2][2], own, lows[32 * w + lane].x);
      }
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const f32 high = o[0][0][e] + o[1][0][e], other = o[0][1][e] + o[1][1][e];
        const f32 x = high + (PACKED ? smelt_lane_xor(high, 2) + other : other + (o[0][2][e] + o[1][2][e]));
        const int row = 2 * member + e % 2;
        if (SHARE == 1) {
          const int of = 4 * row % 32;
          const f32 factor = smelt_lane(hidden ? -1 : fresh, of);
          const f32 next = fmaf(factor, x, smelt_lane(old, of) * result[b][e]);
          result[b][e] = factor == -1 ? result[b][e] : next;
        } else if (row < rows && (!PACKED || member < 2)) {
          keep(chunk, row, 16 * block + group + e / 2 * 8, x);
        }
      }
    }
  }
  if (SHARE == 1) {
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) {
      const int block = WARPS * b + warp;
      if (BLOCKS % WARPS && block >= BLOCKS) break;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int row = 2 * member + e % 2;
        const f32 all = smelt_lane(whole, 4 * row % 32);
        if (row < rows && (!PACKED || member < 2)) put(0, row, 16 * block + group + e / 2 * 8, result[b][e], all);
      }
    }
  }
  if (SHARE <= 1) return;
  smelt_cluster_arrive();
  smelt_cluster_wait();
  if (first) return;
  for (int row = warp; row < rows; row += WARPS) {  // factors instead of maxima and sums; a chunk for each thread
    f32 *const item = held + (lane * ROWS + row) * WIDE;
    const f32 most = lane < chunks ? item[0] : -infinity, weighed = most == -infinity ? 0 : item[1];
    f32 before = sink(row), old, fresh;
    whole = before == -infinity ? 0 : 1;
#pragma unroll 8
    for (int c = 0; c < chunks; c++) {
      const f32 other = smelt_lane(most, c);
      if (c < lane) before = smelt_most(before, other);
    }
    smelt_next_level(before, most, old, fresh);
    if (most == -infinity) fresh = -1;
    if (lane < chunks) item[0] = old, item[1] = fresh;
#pragma unroll 8
    for (int c = 0; c < chunks; c++) {
      const f32 factor = smelt_lane(fresh, c), next = fmaf(factor, smelt_lane(weighed, c), smelt_lane(old, c) * whole);
      whole = factor == -1 ? whole : next;
    }
    if (lane == 0) best[row] = whole;
  }
  __syncthreads();
  for (int at = thread; at < rows * VALUES; at += 32 * WARPS) {
    const int row = at / VALUES, column = at % VALUES;
    f32 x = 0;
#pragma unroll 8
    for (int c = 0; c < chunks; c++) {
      const f32 *const item = held + (c * ROWS + row) * WIDE;
      const f32 next = fmaf(item[1], item[2 + column], item[0] * x);
      x = item[1] == -1 ? x : next;
    }
    put(0, row, column, x, best[row]);
  }
}
""".replace("DECODE_WARPS", str(DECODE_WARPS))


def decode_functions(text: str) -> str:
    """The functions that a text calls."""
    return INSTRUCTIONS + DECODE if "smelt_decode<" in text else ""
