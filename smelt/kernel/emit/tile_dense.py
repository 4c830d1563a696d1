"""CUDA micro-kernel of many rows by bf16 weights on tensor cores: `smelt_tile`, for GEMM and convolution.

`cp.async` fills a ring of stages in shared memory: 32 or 64 steps of K of the rows and of the columns.
`wgmma` multiplies them on sm_90, else `mma.sync`. Two warpgroups split 128 rows, or the columns of 64 rows. For
convolution, a bit per row and tap says whether it is inside the feature map; the others are zeros. `tile_mma.py` adds
it to programs, and has the instructions and the loads of rows.
"""

from __future__ import annotations

from smelt.kernel import math
from smelt.kernel.loops.form import TENSOR_BF16, TENSOR_F16, TENSOR_INT8, Form

WGMMA = """\
inline void smelt_wgmma{suffix}({total} (&d)[{count}], ui64 a, ui64 b) {{
  asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}{types} {{{places}}},"
      " %{count}, %{next}, {flags};"
      : {values} : "l"(a), "l"(b));
}}
"""
# What follows the name, the sums and their registers, the instruction's sizes and types, its flags.
KINDS = (
    ("", "f32", "f", "k16.f32.bf16.bf16", "1, 1, 1, 0, 0"),
    ("_f16", "f32", "f", "k16.f32.f16.f16", "1, 1, 1, 0, 0"),
    ("_int8", "i32", "r", "k32.s32.u8.s8", "1"),
)
FORMS = (TENSOR_BF16, TENSOR_F16, TENSOR_INT8)  # in their order; f32 as the first
INSTRUCTION_COLUMNS = (8, 16, 32, 64, 128, 192, 256)
# THREADS of a block have the sums.
SHARE = """\
// Split-K: this block has part `number` of `count` parts of K. `parts` are the sums of all, `done` says which block has
// the whole: the one that comes last adds them up in order, and sets the counter back.
struct smelt_share { i64 number, count; f32 *parts; ui32 *counter; i64 *done; };
template <int COUNT, int THREADS> inline bool smelt_join_parts(int lane, f32 *sum, const smelt_share &share) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) share.parts[(share.number * COUNT + i) * THREADS + lane] = sum[i];
  smelt_share_writes();
  smelt_threads_sync<THREADS>();
  if (lane == 0) {
    const bool last = smelt_count(share.counter) == share.count - 1;
    if (last) *share.counter = 0;
    *share.done = last;
  }
  smelt_threads_sync<THREADS>();
  if (!*share.done) return false;
  smelt_share_writes();
#pragma unroll
  for (int i = 0; i < COUNT; i++) sum[i] = smelt_read_shared(share.parts + i * THREADS + lane);
#pragma unroll 2
  for (i64 other = 1; other < share.count; other++)
#pragma unroll
    for (int i = 0; i < COUNT; i++) sum[i] += smelt_read_shared(share.parts + (other * COUNT + i) * THREADS + lane);
  return true;
}
"""
TILE = """\
// 16 bytes of a row in a slab of the ring. Banks of neighbouring rows differ; bf16: wgmma's swizzle of 64 bytes.
template <class L> inline int smelt_chunk(int r, int chunk) {
  return sizeof(L) <= 2 ? r * 64 + (chunk ^ (r / 2 % 4)) * 16 : r * 128 + (chunk ^ (r % 8)) * 16;
}
template <class T> struct __align__(8) smelt_pair { T x[2]; };
template <class T> inline void smelt_keep_pair(T *to, T x, T y, i64 accumulate) {
  smelt_pair<T> pair = {{x, y}};
  if (accumulate) {
    pair.x[0] = to[0] + x;
    pair.x[1] = to[1] + y;
  }
  *(smelt_pair<T> *)to = pair;
}
// Rows begin at `starts`, or `row` apart. Taps are `tap` apart, after every `across` of them `turn` more. WINDOW: bit t
// of element ROWS + r of `starts` says whether tap t of row r is there. ALIGNED: all are whole runs of 16 bytes. A
// stage has SLABS of 64 bytes of every row, of 128 where rows are f32.
template <class L, int ROWS, int COLUMNS, int STAGES, int SLABS, bool ALIGNED, bool WINDOW, bool SPLIT, int KIND>
inline void smelt_tile(int lane, char *ring, i64 rows, const L *a, const i64 *starts, i64 row, i64 tap, i64 across,
    i64 turn, const typename smelt_left<L>::Right *b, i64 line, i64 panel, i64 taps, i64 depth,
    typename smelt_left<L>::Total *acc, i64 width, i64 columns,
    i64 accumulate, const smelt_share &share = smelt_share{}) {
  enum {
    PARTS = smelt_left<L>::PARTS, PACK = smelt_left<L>::PACK, SLAB = sizeof(L) == 4 ? 128 : 64, LEFT = ROWS * SLAB,
    STEPS = SLABS * SLAB / (int)sizeof(L), PER = SLABS * SLAB / 16, BELOW = 256 / PER,
    PITCH = 16 * COLUMNS + SMELT_PAD(L),
    STAGE = (ROWS * 16 * PER + SLABS * 4 * (16 * COLUMNS + 32) + 1023) / 1024 * 1024,
    WIDE = COLUMNS >= 192 ? COLUMNS / 4 : ROWS == 64 && COLUMNS == 64 ? 16 : 32, ACROSS = COLUMNS / WIDE,
    HIGH = ROWS * ACROSS / 8, OWN = ROWS / BELOW, OWN_LINES = SLABS * COLUMNS / 64, EVEN = 256 % COLUMNS == 0
  };
  const int count = (int)depth, lines = (count + PACK - 1) / PACK;
  const int each = (count + STEPS - 1) / STEPS, all = (int)taps * each;
  const int begin = SPLIT ? (int)((i64)all * share.number / share.count) : 0;
  const int stages = SPLIT ? (int)((i64)all * (share.number + 1) / share.count) : all;
  const int first_tap = SPLIT ? begin / each : 0, first_k = SPLIT ? begin % each * STEPS : 0;
  // A thread copies 16 bytes of OWN rows, and of one column in every other line.
  const int chunk = lane % PER, first_row = lane / PER, column = lane % COLUMNS, first_line = lane / COLUMNS;
  const int per_slab = SLAB / 16;
  const int to_row = chunk / per_slab * LEFT + smelt_chunk<L>(first_row, chunk % per_slab);
  const int to_line = SLABS * LEFT + first_line * PITCH + column * 16;
  const auto *w = b + (i64)(first_tap * lines + first_k / PACK) * line;
  if (EVEN) w += column / 64 * panel + first_line * line + column % 64 * PACK;
  const i64 next_lines = STEPS / PACK * line, last_lines = (lines - (each - 1) * (STEPS / PACK)) * line;
  const int last_column = (int)(columns < COLUMNS ? columns : COLUMNS);
  const bool has_column = column / 64 * 64 < last_column;
  int line_left = count - first_k, line_stage = begin;
  char *line_slot = ring;
  const auto fetch_lines = [&]() {  // of the next stage, if there is one
    char *const slot = line_slot;
    line_slot = slot == ring + (STAGES - 1) * STAGE ? ring : slot + STAGE;
    if (line_stage++ >= stages) return;
#pragma unroll
    for (int i = 0; i < OWN_LINES; i++)
      if (EVEN) {
        const int more = 256 / COLUMNS * i;
        const bool here = has_column && PACK * (first_line + more) < line_left;
        smelt_copy_async(slot + to_line + more * PITCH, w + more * line, here ? 16 : 0);
      } else {
        const int at = (lane + 256 * i) / COLUMNS, side = (lane + 256 * i) % COLUMNS;
        const bool here = side / 64 * 64 < last_column && PACK * at < line_left;
        smelt_copy_async(slot + SLABS * LEFT + at * PITCH + side * 16,
                         w + side / 64 * panel + at * line + side % 64 * PACK, here ? 16 : 0);
      }
    line_left -= STEPS;
    w += line_left > 0 ? next_lines : last_lines;
    if (line_left <= 0) line_left = count;
  };
  const i64 ahead = first_tap * tap + (SPLIT && across ? first_tap / (int)across * turn : 0) + first_k;
  const L *from[OWN];
  ui64 there[OWN];
  bool aligned = true;
  if (!ALIGNED) aligned = (ui64)((tap | turn) * (i64)sizeof(L)) % 16 == 0;
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    const int at = first_row + BELOW * i;
    there[i] = at >= rows ? 0 : WINDOW ? (ui64)starts[ROWS + at] : 1;
    from[i] = a + (at < rows ? (starts ? starts[at] : at * row) : 0) + ahead + 16 / (int)sizeof(L) * chunk;
    if (!ALIGNED) aligned = aligned && (ui64)from[i] % 16 == 0;
  }
  const i64 next_tap_move = tap - (each - 1) * STEPS;
  int next_tap = first_tap, next_left = count - first_k, next_stage = begin;
  int next_across = SPLIT && across ? first_tap % (int)across : 0;
  char *next_slot = ring;
  const auto fetch_rows = [&]() {  // of the next stage, if there is one
    char *const slot = next_slot;
    next_slot = slot == ring + (STAGES - 1) * STAGE ? ring : slot + STAGE;
    if (next_stage++ < stages) {
      const int bytes = next_left * (int)sizeof(L) - 16 * chunk;
      const int used = bytes <= 0 ? 0 : ALIGNED || bytes >= 16 ? 16 : bytes;
#pragma unroll
      for (int i = 0; i < OWN; i++) {
        char *to = slot + to_row + i * BELOW * SLAB;
        const bool here = WINDOW ? there[i] >> next_tap & 1 : there[i];
        if (ALIGNED || aligned) {
          smelt_copy_async(to, from[i], here ? used : 0);
        } else {
#pragma unroll
          for (int e = 0; e < (int)(16 / sizeof(L)); e++)
            ((L *)to)[e] = here && e * (int)sizeof(L) < used ? from[i][e] : (L)0;
        }
      }
      next_left -= STEPS;
      i64 move = STEPS;
      if (next_left <= 0) {
        next_left = count;
        next_tap++;
        move = next_tap_move;
        if (++next_across == (int)across) {
          next_across = 0;
          move += turn;
        }
      }
#pragma unroll
      for (int i = 0; i < OWN; i++) from[i] += move;
    }
    smelt_copy_commit();
  };
  const int warp = lane / 32, group = lane % 32 / 4, member = lane % 4;
#ifdef SMELT_WGMMA
  if constexpr (sizeof(L) <= 2) {
    enum { N = ROWS == 128 ? COLUMNS : COLUMNS / 2 };
    typename smelt_left<L>::Total sum[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[i] = 0;
    // Descriptors: address, distance of core matrices along K and along rows, swizzle (0: none, 2: 64 bytes).
    const ui64 left_form = (ui64)1 << 16 | (ui64)(512 >> 4) << 32 | (ui64)2 << 62;
    const ui64 right_form = (ui64)(PITCH >> 4) << 16 | (ui64)(128 >> 4) << 32;
    const int own_rows = ROWS == 128 ? warp / 4 * 64 : 0, own_columns = ROWS == 128 ? 0 : warp / 4 * N;
#pragma unroll
    for (int i = 0; i < STAGES - 2; i++) fetch_lines();  // of weights, which no launch writes
    smelt_await();
#pragma unroll
    for (int i = 0; i < STAGES - 2; i++) fetch_rows();
    int now = 0;
    for (int stage = begin; stage < stages; stage++) {
      smelt_copy_wait<STAGES - 3>();
      if (!ALIGNED && !aligned) smelt_publish();  // what threads stored themselves
      __syncthreads();  // the stage is there, and the one before the last is multiplied
      const ui32 slot = smelt_shared_address(ring + now * STAGE);
      now = now + 1 == STAGES ? 0 : now + 1;
      smelt_wgmma_fence();
#pragma unroll
      for (int s = 0; s < SLABS; s++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const ui64 x = left_form | (slot + s * LEFT + own_rows * 64 + half * 32) >> 4;
          const ui64 y = right_form | (slot + SLABS * LEFT + (s * 4 + half * 2) * PITCH + own_columns * 16) >> 4;
          if constexpr (KIND == 2) smelt_wgmma_int8(sum, x, y);
          else if constexpr (KIND == 1) smelt_wgmma_f16(sum, x, y);
          else smelt_wgmma(sum, x, y);
        }
      smelt_wgmma_commit();
      fetch_lines();
      fetch_rows();
      smelt_wgmma_wait<1>();
    }
    smelt_wgmma_wait<0>();
    smelt_copy_wait<0>();
    __syncthreads();
    if constexpr (SPLIT)
      if (!smelt_join_parts<N / 2, 256>(lane, sum, share)) return;
#pragma unroll
    for (int i = 0; i < N / 2; i += 2)
      smelt_keep_pair(acc + (own_rows + warp % 4 * 16 + group + i / 2 % 2 * 8) * width + own_columns + i / 4 * 8 +
                          2 * member, sum[i], sum[i + 1], accumulate);
    return;
  }
#endif
  const int high = warp / ACROSS * HIGH, wide = warp % ACROSS * WIDE;
  typename smelt_left<L>::Total sum[HIGH / 16][WIDE / 8][4] = {};
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) fetch_lines();
  smelt_await();
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) fetch_rows();
  for (int stage = begin; stage < stages; stage++) {
    smelt_copy_wait<STAGES - 2>();
    __syncthreads();  // the stage is there, and the one before is multiplied
    fetch_lines();
    fetch_rows();
    const char *slot = ring + (stage - begin) % STAGES * STAGE;
#pragma unroll
    for (int s = 0; s < SLABS; s++) {
      smelt_words y[WIDE / 8];
#pragma unroll
      for (int j = 0; j < WIDE / 8; j++)
        y[j] = *(const smelt_words *)(slot + SLABS * LEFT + (s * 4 + member) * PITCH + (wide + 8 * j + group) * 16);
#pragma unroll
      for (int i = 0; i < HIGH / 16; i++) {
        smelt_words x[2][PARTS];
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int r = high + 16 * i + 8 * h + group;
          if constexpr (sizeof(L) <= 2) {
            x[h][0] = *(const smelt_words *)(slot + s * LEFT + smelt_chunk<L>(r, member));
          } else {
            __align__(16) smelt_words both[2];
            both[0] = *(const smelt_words *)(slot + s * LEFT + smelt_chunk<L>(r, 2 * member));
            both[1] = *(const smelt_words *)(slot + s * LEFT + smelt_chunk<L>(r, 2 * member + 1));
            smelt_left<L>::words((const L *)both, x[h]);
          }
        }
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const ui32 z[4] = {x[0][p].x[2 * half], x[1][p].x[2 * half],
                               x[0][p].x[2 * half + 1], x[1][p].x[2 * half + 1]};
#pragma unroll
            for (int j = 0; j < WIDE / 8; j++)
              if constexpr (KIND == 2) smelt_mma_sync_int8(sum[i][j], z, y[j].x + 2 * half);
              else if constexpr (KIND == 1) smelt_mma_sync_f16(sum[i][j], z, y[j].x + 2 * half);
              else smelt_mma_sync(sum[i][j], z, y[j].x + 2 * half);
          }
      }
    }
  }
  smelt_copy_wait<0>();
  __syncthreads();
  if constexpr (SPLIT)
    if (!smelt_join_parts<HIGH * WIDE / 32, 256>(lane, &sum[0][0][0], share)) return;
#pragma unroll
  for (int i = 0; i < HIGH / 16; i++)
#pragma unroll
    for (int j = 0; j < WIDE / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e += 2)
        smelt_keep_pair(acc + (high + 16 * i + group + e / 2 * 8) * width + wide + 8 * j + 2 * member, sum[i][j][e],
                        sum[i][j][e + 1], accumulate);
}
"""
# The rows of the panels in a stage: wgmma takes them as they are, mma.sync's threads then read different banks.
PAD = """\
#ifdef SMELT_WGMMA
#define SMELT_PAD(L) (sizeof(L) <= 2 ? 0 : 32)
#else
#define SMELT_PAD(L) 32
#endif
"""


def wgmma_texts() -> str:
    """The instruction for every number of columns and element type."""
    return "".join(_wgmma_text(columns, *kind) for columns in INSTRUCTION_COLUMNS for kind in KINDS)


def _wgmma_text(columns: int, suffix: str, total: str, register: str, types: str, flags: str) -> str:
    count = columns // 2
    places = ", ".join(f"%{i}" for i in range(count))
    values = ", ".join(f'"+{register}"(d[{i}])' for i in range(count))
    sizes = {"columns": columns, "count": count, "next": count + 1}
    return WGMMA.format(**sizes, places=places, values=values, suffix=suffix, total=total, types=types, flags=flags)


def tile_call(
    form: Form, rows: int, columns: int, ring: tuple[int, int], *, aligned: bool, window: bool, splits: bool
) -> str:
    """The name of the function that multiplies a tile. `ring`: its stages, and the steps of each."""
    kind = FORMS.index(form) if form in FORMS else 0
    kinds = ", ".join((*(str(each).lower() for each in (aligned, window, splits)), str(kind)))
    stages, steps = ring
    slabs = steps // (64 if form is TENSOR_INT8 else 32)
    return f"smelt_tile<{math.storage(form.left)}, {rows}, {columns}, {stages}, {slabs}, {kinds}>"
