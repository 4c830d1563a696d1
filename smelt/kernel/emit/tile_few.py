"""CUDA micro-kernels of up to 32 rows by bf16 weights (decoding): `smelt_few`, and `smelt_few_cluster` on sm_90.

Weights go from memory to registers and are the left operand of `mma.sync`. K has eight parts, 32 steps of every 256;
each is added up by one warp, and the eight sums are added in order. The parts are the warps of one block, or those of
the blocks of a cluster: then the warps of a block have different columns, and rows are read once for all of them.
"""

from __future__ import annotations

from smelt.kernel import math
from smelt.kernel.loops.form import Form

FEW = """\
// Weights and rows go from memory to registers, DEEP turns ahead. Eight warps share K, 32 steps of each turn.
template <int GROUPS, int TILES, int DEEP, bool WHOLE, class L> inline void smelt_few_rows(int lane, char *ring,
    i64 rows, const L *a, i64 row, const ui16 *b, i64 line, i64 count, f32 *acc, i64 width, i64 columns) {
  enum { PARTS = smelt_left<L>::PARTS, WORDS = sizeof(L) / 2, EACH = 8 / WORDS };
  const int warp = lane / 32, group = lane % 32 / 4, member = lane % 4, begin = 4 * warp + member;
  const int lines = (int)((count + 7) / 8), turns = (lines + 31) / 32;
  f32 sum[TILES][GROUPS][4] = {};
  smelt_words y[DEEP][2 * TILES], x[DEEP][GROUPS][WORDS];
  const ui16 *weights = b + begin * line + group * 8;
  const L *left = a + group * row + 8 * begin;
  const auto load_weights = [&](smelt_words (&to)[2 * TILES], int turn) {
    const bool there = 32 * turn + begin < lines;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) to[i] = there ? smelt_stream(weights + i * 64) : smelt_words{};
    weights += 32 * line;
  };
  const auto load_rows = [&](smelt_words (&to)[GROUPS][WORDS], int turn) {
    const int k = 8 * (32 * turn + begin);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      const bool there = 8 * g + group < rows && k < count;
      const L *const from = left + 8 * g * row;
#pragma unroll
      for (int w = 0; w < WORDS; w++) {
        to[g][w] = smelt_words{};
        if (there && WHOLE) to[g][w] = smelt_read(from + w * EACH);
        else if (there) smelt_left<L>::some(from + w * EACH, count - k - w * EACH, &to[g][w]);
      }
    }
    left += 256;
  };
  const auto add_half = [&](const smelt_words (&w)[2 * TILES], const smelt_words (&z)[PARTS], int g, int half) {
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      const ui32 u[4] = {w[2 * t].x[2 * half], w[2 * t + 1].x[2 * half],
                         w[2 * t].x[2 * half + 1], w[2 * t + 1].x[2 * half + 1]};
#pragma unroll
      for (int p = 0; p < PARTS; p++) smelt_mma_sync(sum[t][g], u, z[p].x + 2 * half);
    }
  };
  const auto multiply = [&](const smelt_words (&w)[2 * TILES], const smelt_words (&v)[GROUPS][WORDS]) {
    if constexpr (PARTS == 1) {  // neighbouring instructions add to different sums
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int g = 0; g < GROUPS; g++) add_half(w, v[g], g, half);
    } else {
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        smelt_words z[PARTS];
        smelt_left<L>::parts(v[g], z);
#pragma unroll
        for (int half = 0; half < 2; half++) add_half(w, z, g, half);
      }
    }
  };
#pragma unroll
  for (int i = 0; i < DEEP; i++) load_weights(y[i], i);  // which no launch writes
  smelt_await();
#pragma unroll
  for (int i = 0; i < DEEP; i++) load_rows(x[i], i);
#pragma unroll 1
  for (int turn = 0; turn < turns; turn += DEEP)
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
      multiply(y[i], x[i]);
      load_weights(y[i], turn + DEEP + i);
      load_rows(x[i], turn + DEEP + i);
    }
  f32 *const part = (f32 *)ring;  // the sums of every warp, which are added in order
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int r = 8 * g + 2 * member + e % 2, c = 16 * t + group + e / 2 * 8;
        if (r < rows && c < columns) part[(warp * rows + r) * (16 * TILES) + c] = sum[t][g][e];
      }
  __syncthreads();
  for (int at = lane; at < rows * 16 * TILES; at += 256) {
    const int r = at / (16 * TILES), c = at % (16 * TILES);
    if (c >= columns) continue;
    f32 total = part[at];
#pragma unroll
    for (int w = 1; w < 8; w++) total += part[w * rows * (16 * TILES) + at];
    acc[r * width + c] = total;  // the tile of sums may begin where the parts do, with rows of the same width
  }
}
template <int TILES, class L> inline void smelt_few(int lane, char *ring, i64 rows, const L *a, i64 row,
    const ui16 *b, i64 line, i64 count, f32 *acc, i64 width, i64 columns) {
  const bool whole = count % 8 == 0 && ((ui64)a | (ui64)(row * (i64)sizeof(L))) % 16 == 0;
#define SMELT_FEW(GROUPS, DEEP, WHOLE) \\
  smelt_few_rows<GROUPS, TILES, DEEP, WHOLE>(lane, ring, rows, a, row, b, line, count, acc, width, columns)
  if (!whole && rows <= 8) SMELT_FEW(1, 1, false);
  else if (!whole) SMELT_FEW(4, 1, false);
  else if (rows <= 8) SMELT_FEW(1, TILES < 2 ? 4 : 1, true);
  else if (rows <= 16) SMELT_FEW(2, TILES < 4 ? 2 : 1, true);
  else SMELT_FEW(4, TILES < 4 ? 2 : 1, true);
#undef SMELT_FEW
}
"""
# CLUSTER runs of 32 columns; PARTS of the eight parts of K are a block's own.
FEW_CLUSTER = """\
// A block has PARTS of the parts of K, for all columns of its cluster, and gets the sums of the run of columns of its
// rank. Rows go through shared memory, in chunks of CLUSTER turns of K, one chunk ahead; weights are DEEP turns ahead.
template <int GROUPS, int CLUSTER, int DEEP, bool WHOLE> inline void smelt_few_part(int lane, char *ring, int rank, i64 rows,
    const ui16 *a, i64 row, const ui16 *b, i64 line, i64 panel, i64 count, i64 there, f32 *acc, i64 width,
    i64 columns) {
  enum { WIDE = 32, PARTS = 8 / CLUSTER, PITCH = 512 + 64, HALF = 8 * GROUPS * PITCH };  // of neighbours: other banks
  const int warp = lane / 32, group = lane % 32 / 4, member = lane % 4, part = warp % PARTS, side = warp / PARTS;
  const int lines = (int)((count + 7) / 8), turns = (lines + 31) / 32, begin = 4 * (rank * PARTS + part) + member;
  const int used = WIDE * side < there ? lines : 0;
  const ui16 *weights = b + begin * line + WIDE * side / 64 * panel + (WIDE * side % 64 + group) * 8;
  f32 sum[2][GROUPS][4] = {};
  smelt_words y[DEEP][4];
  const auto load_weights = [&](smelt_words (&to)[4], int turn) {
    const bool is_there = 32 * turn + begin < used;
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = is_there ? smelt_stream(weights + i * 64) : smelt_words{};
    weights += 32 * line;
  };
  // A thread copies 16 bytes of every eighth row: `piece` of the steps of a chunk.
  const int piece = lane % 32;
  int k = 256 * (piece / (4 * PARTS)) + 8 * (4 * PARTS * rank + piece % (4 * PARTS));
  const ui16 *left = a + warp * row + k;
  const auto fetch_rows = [&](char *to) {
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
      const bool is_there = warp + 8 * i < rows;
      const ui16 *const from = left + 8 * i * row;
      ui16 *const target = (ui16 *)(to + (warp + 8 * i) * PITCH + 16 * piece);
      if (WHOLE) {
        smelt_copy_async(target, from, is_there && k < count ? 16 : 0);
      } else {
        for (int e = 0; e < 8; e++) target[e] = is_there && k + e < count ? from[e] : (ui16)0;
      }
    }
    smelt_copy_commit();
    k += 256 * CLUSTER;
    left += 256 * CLUSTER;
  };
#pragma unroll
  for (int i = 0; i < DEEP; i++) load_weights(y[i], i);  // which no launch writes
  smelt_await();
  fetch_rows(ring);
  int here = 0;  // the half of the ring that has the chunk
#pragma unroll 1
  for (int turn = 0; turn < turns; turn += CLUSTER) {
    smelt_copy_wait<0>();
    __syncthreads();  // the chunk is there, and the one before is multiplied
    const char *const chunk = ring + here + group * PITCH + 64 * part + 16 * member;
    here ^= HALF;
    fetch_rows(ring + here);
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) {
      const smelt_words (&w)[4] = y[i % DEEP];
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        const smelt_words x = *(const smelt_words *)(chunk + 8 * g * PITCH + 64 * PARTS * i);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
          for (int t = 0; t < 2; t++) {
            const ui32 u[4] = {w[2 * t].x[2 * half], w[2 * t + 1].x[2 * half],
                               w[2 * t].x[2 * half + 1], w[2 * t + 1].x[2 * half + 1]};
            smelt_mma_sync(sum[t][g], u, x.x + 2 * half);
          }
      }
      load_weights(y[i % DEEP], turn + i + DEEP);
    }
  }
  smelt_copy_wait<0>();
  __syncthreads();
  f32 *const sums = (f32 *)ring;
  const int each = (int)rows * WIDE;
#pragma unroll
  for (int t = 0; t < 2; t++)
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int r = 8 * g + 2 * member + e % 2, c = 16 * t + group + e / 2 * 8;
        if (r < rows) sums[(part * CLUSTER + side) * each + r * WIDE + c] = sum[t][g][e];
      }
  smelt_cluster_sync();
  f32 total[GROUPS];
#pragma unroll
  for (int i = 0; i < GROUPS; i++) {
    const int at = lane + 256 * i;
    f32 found[8];
#pragma unroll
    for (int p = 0; p < 8; p++)
      found[p] = at < each ? smelt_cluster_read(sums + (p % PARTS * CLUSTER + rank) * each + at, p / PARTS) : 0;
    total[i] = found[0];
#pragma unroll
    for (int p = 1; p < 8; p++) total[i] += found[p];
  }
  smelt_cluster_sync();  // all have read the sums: the tile may take their place, and a block may end
#pragma unroll
  for (int i = 0; i < GROUPS; i++) {
    const int at = lane + 256 * i;
    if (at < each && at % WIDE < columns) acc[at / WIDE * width + at % WIDE] = total[i];
  }
}
// ALIGNED: rows are whole runs of 16 bytes.
template <int CLUSTER, bool ALIGNED> inline void smelt_few_cluster(int lane, char *ring, i64 rank, i64 rows,
    const ui16 *a, i64 row, const ui16 *b, i64 line, i64 panel, i64 count, i64 there, f32 *acc, i64 width,
    i64 columns) {
  const bool whole = ALIGNED || (count % 8 == 0 && ((ui64)a | (ui64)(2 * row)) % 16 == 0);
#define SMELT_FEW(GROUPS, DEEP, WHOLE) smelt_few_part<GROUPS, CLUSTER, DEEP, WHOLE>( \\
  lane, ring, (int)rank, rows, a, row, b, line, panel, count, there, acc, width, columns)
  if (!whole && rows <= 8) SMELT_FEW(1, 1, false);
  else if (!whole && rows <= 16) SMELT_FEW(2, 1, false);
  else if (!whole) SMELT_FEW(4, 1, false);
  else if (rows <= 8) SMELT_FEW(1, (CLUSTER < 4 ? 2 : 4), true);
  else if (rows <= 16) SMELT_FEW(2, (CLUSTER < 4 ? 2 : 4), true);
  else SMELT_FEW(4, (CLUSTER < 4 ? 2 : 4), true);
#undef SMELT_FEW
}
"""


def few_call(form: Form, columns: int) -> str:
    return f"smelt_few<{columns // 16}, {math.storage(form.left)}>"


def cluster_call(blocks: int, *, aligned: bool) -> str:
    return f"smelt_few_cluster<{blocks}, {str(aligned).lower()}>"
