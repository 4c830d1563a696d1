"""CUDA micro-kernels of few rows by bf16 or fp8 weights (decoding), where memory is what counts.

`smelt_few`, for up to 32 rows: weights go from memory to registers and are the left operand of `mma.sync`. K has eight
parts, 32 steps of every 256; each is added up by one warp, and the eight sums are added in order.
`smelt_stream`, for up to 64 rows on sm_90: the copy engine fills a ring of stages with the weights of 64 columns, which
are adjacent in a panel, 8 KB at a time; `wgmma` takes weights as its left operand and rows as its right one. Grouped
GEMM also has rows of f32, up to 32, which the copying warps split into three bf16.
"""

from __future__ import annotations

from smelt.kernel import math
from smelt.kernel.emit.tile_dense import element_types, number_of
from smelt.kernel.loops.form import GROUPED, Form

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
STREAM = """\
// Four warps copy, four multiply. A stage has 128 bytes of K of 64 columns, and of ROWS rows, in runs of 128 bytes; of
// f32 its three bf16. A stage of fp8 is a block of K, whose sum is added to the others'.
template <class L, int ROWS, int STAGES, bool ALIGNED, bool SPLIT, int KIND> inline void smelt_stream_rows(int lane,
    char *ring, i64 rows, const L *a, i64 row, const typename smelt_left<L>::Right *b, i64 line, i64 depth, f32 *acc,
    i64 width, const smelt_share &share) {
  enum {
    PARTS = smelt_left<L>::PARTS, COPIERS = 128, WEIGHTS = 8 * 1024, STAGE = WEIGHTS + PARTS * ROWS * 128,
    PACK = smelt_left<L>::PACK, STEPS = 8 * PACK, BLOCK = smelt_left<L>::BLOCK, EACH = (ROWS + 15) / 16
  };
  static_assert(!BLOCK || (int)BLOCK == (int)STEPS, "a stage is a block of K");
  // Requests for weights delay those of the launch in front: until it ends, all but AT_ONCE stages are spread over FILL
  // cycles.
  enum { AT_ONCE = 2, FILL = 20000 };
  ui64 *const full = (ui64 *)(ring + STAGES * STAGE), *const free = full + STAGES;
  volatile ui32 *const there = (volatile ui32 *)(free + STAGES);  // whether the launch in front has ended
  const int count = (int)depth, lines = (count + PACK - 1) / PACK, all = (count + STEPS - 1) / STEPS;
  const int begin = SPLIT ? (int)((i64)all * share.number / share.count) : 0;
  const int end = SPLIT ? (int)((i64)all * (share.number + 1) / share.count) : all;
  if (lane == 0) {
    for (int i = 0; i < STAGES; i++) {
      smelt_barrier_init(full + i, COPIERS + 1);
      smelt_barrier_init(free + i, 4);
    }
    *there = 0;
    smelt_barrier_publish();
  }
  __syncthreads();
  if (lane >= 128) {
    const int member = lane - 128, chunk = member % 8, first_row = member / 8;
    const bool whole = ALIGNED || ((ui64)a | (ui64)(row * (i64)sizeof(L))) % 16 == 0;
    const auto fetch_lines = [&](int slot, int stage) {
      char *const to = ring + slot * STAGE;
      const int left = lines - 8 * stage, there = left < 8 ? left : 8;
      if (member == 0) {
        smelt_bulk_expect(full + slot, there * 1024);
        smelt_bulk_copy(to, b + (i64)(8 * stage) * line, there * 1024, full + slot);
      }
      for (int at = 64 * there + member; at < 64 * 8; at += COPIERS) smelt_copy_async(to + 16 * at, b, 0);
    };
    const auto fetch_rows = [&](int slot, int stage) {
      char *const to = ring + slot * STAGE + WEIGHTS;
      const int k = STEPS * stage + PACK * chunk, left = count - k, used = left <= 0 ? 0 : left < PACK ? left : PACK;
#pragma unroll
      for (int i = 0; i < (ROWS + 15) / 16; i++) {
        const int r = first_row + 16 * i;
        if (r >= rows) continue;
        const L *const from = a + r * row + k;
        L *const target = (L *)(to + r * 128 + (chunk ^ (r % 8)) * 16);
        if (whole) {
          smelt_copy_async(target, from, (int)sizeof(L) * used);
        } else {
          for (int e = 0; e < PACK; e++) target[e] = e < used ? from[e] : L{};
        }
      }
      if (whole) {
        smelt_copy_arrive(full + slot);
      } else {
        smelt_copy_commit();
        smelt_copy_wait<0>();
        smelt_publish();
        smelt_barrier_arrive(full + slot);
      }
    };
    const int first = end - begin < STAGES ? end - begin : STAGES;
    const ui32 start = smelt_cycles();
    for (int i = 0; i < first; i++) {  // of weights, which no launch writes
      fetch_lines(i, begin + i);
      if (member < 32 && i + 1 >= AT_ONCE)
        while (!*there && smelt_cycles() - start < (ui32)((i + 2 - AT_ONCE) * (FILL / STAGES))) {}
    }
    smelt_await();
    if (member == 32 && first) *there = 1;  // without stages the sums may be there already
    int slot = 0, phase = 0;
    if constexpr (PARTS > 1) {
      smelt_words raw[EACH][2];  // rows of f32 until they are split
      const auto load_rows = [&](int stage) {
        const int k = STEPS * stage + PACK * chunk;
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
          for (int w = 0; w < 2; w++) {
            const int left = first_row + 16 * i < rows ? count - k - 4 * w : 0;
            const L *const from = a + (first_row + 16 * i) * row + k + 4 * w;
            if (whole && left >= 4) raw[i][w] = smelt_read(from);
            else smelt_left<L>::some(from, left, &raw[i][w]);
          }
      };
      const auto split_rows = [&](int slot) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
          const int r = first_row + 16 * i;
          if (r >= rows) continue;
          smelt_words part[PARTS];
          smelt_left<L>::parts(raw[i], part);
#pragma unroll
          for (int p = 0; p < PARTS; p++)
            *(smelt_words *)(ring + slot * STAGE + WEIGHTS + (p * ROWS + r) * 128 + (chunk ^ (r % 8)) * 16) = part[p];
        }
        smelt_copy_commit();
        smelt_copy_wait<0>();
        smelt_publish();
        smelt_barrier_arrive(full + slot);
      };
      if (begin < end) load_rows(begin);
#pragma unroll 1
      for (int stage = begin; stage < end; stage++) {  // rows are read while others are multiplied
        if (stage >= begin + STAGES) {
          while (!smelt_barrier_passed(free + slot, phase)) {}
          fetch_lines(slot, stage);
        }
        split_rows(slot);
        if (stage + 1 < end) load_rows(stage + 1);
        if (++slot == STAGES) slot = 0, phase ^= stage >= begin + STAGES;
      }
    } else {
      for (int i = 0; i < first; i++) fetch_rows(i, begin + i);
#pragma unroll 1
      for (int stage = begin + STAGES; stage < end; stage++) {
        while (!smelt_barrier_passed(free + slot, phase)) {}
        fetch_lines(slot, stage);
        fetch_rows(slot, stage);
        if (++slot == STAGES) slot = 0, phase ^= 1;
      }
    }
    return;
  }
  smelt_await();
  const int warp = lane / 32, group = lane % 32 / 4, member = lane % 4;
  f32 sum[ROWS / 2];
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) sum[i] = 0;
  int slot = 0, phase = 0;
#pragma unroll 1
  for (int stage = begin; stage < end; stage++) {
    while (!smelt_barrier_passed(full + slot, phase)) {}
    const char *const at = ring + slot * STAGE;
#ifdef SMELT_WGMMA
    // Descriptors: address, distance of core matrices along K and along rows, swizzle (0: none, 1: 128 bytes).
    const ui64 left = (ui64)(1024 >> 4) << 16 | (ui64)(128 >> 4) << 32 | smelt_shared_address(at) >> 4;
    const ui64 right =
        (ui64)1 << 16 | (ui64)(1024 >> 4) << 32 | (ui64)1 << 62 | smelt_shared_address(at + WEIGHTS) >> 4;
    const auto multiply = [&](auto &to, int first) {  // by rows from `first` on
      smelt_wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int p = 0; p < PARTS; p++)
          smelt_multiply<KIND>(to, left + i * (2048 >> 4), right + ((p * ROWS + first) * 128 + i * 32 >> 4), i);
      smelt_wgmma_commit();
    };
    if constexpr (BLOCK) {
      enum { PIECE = ROWS < 32 ? ROWS : 32 };  // rows whose sums of the block registers hold beside all sums
#pragma unroll
      for (int piece = 0; piece < ROWS / PIECE; piece++) {
        f32 part[PIECE / 2];
        multiply(part, piece * PIECE);
        smelt_wgmma_wait<0>();
        smelt_wgmma_done(part);
#pragma unroll
        for (int i = 0; i < PIECE / 2; i++) sum[piece * (PIECE / 2) + i] += part[i];
      }
    } else {
      multiply(sum, 0);
      smelt_wgmma_wait<1>();
    }
    const bool done = BLOCK || stage > begin;  // this stage, or the one before
    const int last = BLOCK ? slot : slot ? slot - 1 : STAGES - 1, next = stage - (BLOCK ? 0 : 1) + STAGES;
#else
    f32 part[BLOCK ? ROWS / 2 : 1] = {};
#pragma unroll
    for (int s = 0; s < 2; s++) {
      smelt_words w[2];
#pragma unroll
      for (int h = 0; h < 2; h++)
        w[h] = *(const smelt_words *)(at + (4 * s + member) * 1024 + (16 * warp + 8 * h + group) * 16);
#pragma unroll
      for (int g = 0; g < ROWS / 8 * PARTS; g++) {
        const char *const from = at + WEIGHTS + (8 * g + group) * 128;
        const smelt_words x = *(const smelt_words *)(from + (4 * s + member ^ group) * 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const ui32 u[4] = {w[0].x[2 * half], w[1].x[2 * half], w[0].x[2 * half + 1], w[1].x[2 * half + 1]};
          smelt_multiply_fragments<KIND>((BLOCK ? part : sum) + 4 * (g % (ROWS / 8)), u, x.x + 2 * half);
        }
      }
    }
    if constexpr (BLOCK)
#pragma unroll
      for (int i = 0; i < ROWS / 2; i++) sum[i] += part[i];
    __syncwarp();
    const bool done = true;
    const int last = slot, next = stage + STAGES;
#endif
    if (done && next < end && lane % 32 == 0) smelt_barrier_arrive(free + last);
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
#ifdef SMELT_WGMMA
  smelt_wgmma_wait<0>();
#endif
  smelt_threads_sync<128>();
  if (lane == 0)
    for (int i = 0; i < 2 * STAGES; i++) smelt_barrier_end(full + i);
  smelt_threads_sync<128>();  // sums may take the place of operands and barriers
  if (SPLIT && !smelt_join_parts<ROWS / 2, 128>(lane, sum, share)) return;
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) {
    const int r = i / 4 * 8 + 2 * member + i % 2;
    if (r < rows) acc[r * width + 16 * warp + group + i / 2 % 2 * 8] = sum[i];
  }
}
// The stages of `height` rows that fit in place of those of `most` rows, with their barriers.
constexpr int smelt_stages(int stages, int most, int height) {
  return stages * (64 * 128 + most * 128 + 16) / (64 * 128 + height * 128 + 16);
}
// MORE: with fewer rows there are more stages. There are at most 32 rows of f32.
template <class L, int MOST, int STAGES, bool ALIGNED, bool SPLIT, bool MORE, int KIND> inline void smelt_stream(
    int lane, char *ring, i64 rows, const L *a, i64 row, const typename smelt_left<L>::Right *b, i64 line, i64 depth,
    f32 *acc, i64 width, const smelt_share &share = smelt_share{}) {
  enum { PARTS = smelt_left<L>::PARTS, TALL = PARTS > 1 && MOST > 32 ? 32 : MOST };
#define SMELT_STREAM(ROWS) smelt_stream_rows<L, (ROWS < TALL ? ROWS : TALL), \\
  (MORE ? smelt_stages(STAGES, MOST, PARTS * (ROWS < TALL ? ROWS : TALL)) : STAGES), ALIGNED, SPLIT, KIND>( \\
  lane, ring, rows, a, row, b, line, depth, acc, width, share)
  if (rows <= 8) SMELT_STREAM(8);
  else if (rows <= 16) SMELT_STREAM(16);
  else if (rows <= 32) SMELT_STREAM(32);
  else SMELT_STREAM(64);
#undef SMELT_STREAM
}
"""


def few_call(form: Form, columns: int) -> str:
    return f"smelt_few<{columns // 16}, {math.storage(form.left)}>"


def stream_call(form: Form, rows: int, stages: int, *, aligned: bool, splits: bool) -> str:
    flags = ", ".join(str(each).lower() for each in (aligned, splits))
    kind = number_of(form.right, form.left)  # weights are the left operand
    more = str(form in GROUPED).lower()
    return f"smelt_stream<{element_types(form)[0]}, {rows}, {stages}, {flags}, {more}, {kind}>"
