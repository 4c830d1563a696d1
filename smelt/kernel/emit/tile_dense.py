"""CUDA micro-kernel of many rows by weights on tensor cores: `smelt_tile`, for GEMM and convolution.

`cp.async` fills a ring of stages in shared memory: 64 or 128 bytes of K of the rows and of the columns.
`wgmma` multiplies them on sm_90, else `mma.sync`. Two warpgroups split 128 rows, or the columns of 64 rows. For
convolution, a bit per row and tap says whether it is inside the feature map; the others are zeros. `tile_mma.py` adds
it to programs, and has the instructions and the loads of rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from smelt.dtype import DType
from smelt.frozen import Frozen
from smelt.kernel import math
from smelt.kernel.loops.form import STREAM_FP8, TENSOR_BF16, TENSOR_F16, TENSOR_FP8, TENSOR_INT8, TENSOR_TF32, Form
from smelt.kernel.loops.tensor_tile import slab_steps

WGMMA = """\
inline void smelt_wgmma{suffix}({total} (&d)[{count}], ui64 a, ui64 b) {{
  asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}{types} {{{places}}},"
      " %{count}, %{next}, {flags};"
      : {values} : "l"(a), "l"(b));
}}
"""
# The first product of a block of K replaces the sums (`more` is 0).
WGMMA_FP8 = """\
inline void smelt_wgmma{suffix}({total} (&d)[{count}], ui64 a, ui64 b, int more) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{last}, 0;"
      " wgmma.mma_async.sync.aligned.m64n{columns}{types} {{{places}}},"
      " %{count}, %{next}, {flags}; }}"
      : {values} : "l"(a), "l"(b), "r"(more));
}}
"""
MMA_FP8 = """\
inline void smelt_mma_sync{suffix}(f32 *c, const ui32 *a, const ui32 *b) {{
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.{types}.f32 {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}},"
      " {{%0, %1, %2, %3}};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""


class Kind(Frozen):
    """A form's instructions: what follows their names, the sums and their registers, `wgmma`'s sizes, types and flags;
    the elements of operands, where storage does not tell."""

    form: Form
    suffix: str
    types: str
    flags: str
    total: str = "f32"
    register: str = "f"
    element: str = ""


KINDS = (
    Kind(TENSOR_BF16, "", "k16.f32.bf16.bf16", "1, 1, 1, 0, 0"),
    Kind(TENSOR_F16, "_f16", "k16.f32.f16.f16", "1, 1, 1, 0, 0"),
    Kind(TENSOR_INT8, "_int8", "k32.s32.u8.s8", "1", "i32", "r"),
    Kind(TENSOR_TF32, "_tf32", "k8.f32.tf32.tf32", "1, 1, 1", element="smelt_tf32"),
    *(
        Kind(
            form,
            f"_{form.name.removesuffix('_mma')}",
            f"k32.f32.{form.name.removesuffix('_mma').replace('_', '.')}",
            "p, 1, 1",
            element="smelt_fp8",
        )
        for form in TENSOR_FP8
    ),
)
NUMBERS = {kind.form: number for number, kind in enumerate(KINDS)}  # f32 that is split: as the first
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


def _branches(call: str) -> str:
    """The call of each kind: `{suffix}` names it, `{more}` is only for those that begin blocks of K."""
    return " else ".join(
        f"if constexpr (KIND == {number}) "
        + call.format(suffix=kind.suffix, more=", more" if kind.form in TENSOR_FP8 else "")
        for number, kind in enumerate(KINDS)
    )


MULTIPLY = f"""\
#ifdef SMELT_WGMMA
template <int KIND, class T, int N> inline void smelt_multiply(T (&d)[N], ui64 a, ui64 b, int more) {{
  {_branches("smelt_wgmma{suffix}(d, a, b{more});")}
}}
#endif
template <int KIND, class T> inline void smelt_multiply_fragments(T *c, const ui32 *a, const ui32 *b) {{
  {_branches("smelt_mma_sync{suffix}(c, a, b);")}
}}
"""
TILE = """\
// 16 bytes of a row in a slab of the ring. Banks of neighbouring rows differ; 64 bytes: wgmma's swizzle.
template <class L> inline int smelt_chunk(int r, int chunk) {
  return smelt_left<L>::PARTS == 1 ? r * 64 + (chunk ^ (r / 2 % 4)) * 16 : r * 128 + (chunk ^ (r % 8)) * 16;
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
// stage has SLABS of 64 bytes of every row, of 128 where f32 is split.
template <class L, int ROWS, int COLUMNS, int STAGES, int SLABS, bool ALIGNED, bool WINDOW, bool SPLIT, int KIND>
inline void smelt_tile(int lane, char *ring, i64 rows, const L *a, const i64 *starts, i64 row, i64 tap, i64 across,
    i64 turn, const typename smelt_left<L>::Right *b, i64 line, i64 panel, i64 taps, i64 depth,
    typename smelt_left<L>::Total *acc, i64 width, i64 columns,
    i64 accumulate, const smelt_share &share = smelt_share{}) {
  enum {
    PARTS = smelt_left<L>::PARTS, PACK = smelt_left<L>::PACK, BLOCK = smelt_left<L>::BLOCK,
    SLAB = PARTS == 1 ? 64 : 128, LEFT = ROWS * SLAB,
    STEPS = SLABS * SLAB / (int)sizeof(L), PER = SLABS * SLAB / 16, BELOW = 256 / PER,
    PITCH = 16 * COLUMNS + SMELT_PAD(L),
    STAGE = (ROWS * 16 * PER + SLABS * 4 * (16 * COLUMNS + 32) + 1023) / 1024 * 1024,
    WIDE = COLUMNS >= 192 ? COLUMNS / 4 : ROWS == 64 && COLUMNS == 64 ? 16 : 32, ACROSS = COLUMNS / WIDE,
    HIGH = ROWS * ACROSS / 8, OWN = ROWS / BELOW, OWN_LINES = SLABS * COLUMNS / 64, EVEN = 256 % COLUMNS == 0
  };
  static_assert(!BLOCK || (int)BLOCK == (int)STEPS, "a stage is a block of K");
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
            ((L *)to)[e] = here && e * (int)sizeof(L) < used ? from[i][e] : L{};
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
  if constexpr (PARTS == 1) {
    // PIECE: the columns whose sums of a block of K registers hold beside all sums.
    enum { N = ROWS == 128 ? COLUMNS : COLUMNS / 2, PIECE = N < 128 ? N : 128, AHEAD = STAGES - (BLOCK ? 1 : 2) };
    typename smelt_left<L>::Total sum[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[i] = 0;
    // Descriptors: address, distance of core matrices along K and along rows, swizzle (0: none, 2: 64 bytes).
    const ui64 left_form = (ui64)1 << 16 | (ui64)(512 >> 4) << 32 | (ui64)2 << 62;
    const ui64 right_form = (ui64)(PITCH >> 4) << 16 | (ui64)(128 >> 4) << 32;
    const int own_rows = ROWS == 128 ? warp / 4 * 64 : 0, own_columns = ROWS == 128 ? 0 : warp / 4 * N;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) fetch_lines();  // of weights, which no launch writes
    smelt_await();
#pragma unroll
    for (int i = 0; i < AHEAD; i++) fetch_rows();
    int now = 0;
    const auto await_stage = [&]() {
      smelt_copy_wait<AHEAD - 1>();
      if (!ALIGNED && !aligned) smelt_publish();  // what threads stored themselves
      __syncthreads();  // the stage is there, and the one whose slot is filled next is multiplied
      const ui32 slot = smelt_shared_address(ring + now * STAGE);
      now = now + 1 == STAGES ? 0 : now + 1;
      return slot;
    };
    const auto multiply = [&](auto &to, ui32 slot, int first) {  // by columns from `first` on
      smelt_wgmma_fence();
#pragma unroll
      for (int s = 0; s < SLABS; s++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const ui64 x = left_form | (slot + s * LEFT + own_rows * 64 + half * 32) >> 4;
          const int at = SLABS * LEFT + (s * 4 + half * 2) * PITCH + (own_columns + first) * 16;
          smelt_multiply<KIND>(to, x, right_form | (slot + at) >> 4, s + half);
        }
      smelt_wgmma_commit();
    };
    if constexpr (BLOCK) {
      f32 part[PIECE / 2];
      for (int stage = begin; stage < stages; stage++) {
        const ui32 slot = await_stage();
#pragma unroll
        for (int piece = 0; piece < N / PIECE; piece++) {
          multiply(part, slot, piece * PIECE);
          if (piece == 0) {
            fetch_lines();
            fetch_rows();
          }
          smelt_wgmma_wait<0>();
          smelt_wgmma_done(part);
#pragma unroll
          for (int i = 0; i < PIECE / 2; i++) sum[piece * (PIECE / 2) + i] += part[i];
        }
      }
    } else {
      for (int stage = begin; stage < stages; stage++) {
        multiply(sum, await_stage(), 0);
        fetch_lines();
        fetch_rows();
        smelt_wgmma_wait<1>();
      }
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
  typename smelt_left<L>::Total sum[HIGH / 16][WIDE / 8][4] = {}, part[BLOCK ? HIGH / 16 : 1][BLOCK ? WIDE / 8 : 1][4];
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
    if constexpr (BLOCK)
#pragma unroll
      for (int i = 0; i < HIGH * WIDE / 32; i++) (&part[0][0][0])[i] = 0;
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
          if constexpr (PARTS == 1) {
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
              smelt_multiply_fragments<KIND>(BLOCK ? part[i][j] : sum[i][j], z, y[j].x + 2 * half);
          }
      }
    }
    if constexpr (BLOCK)
#pragma unroll
      for (int i = 0; i < HIGH * WIDE / 32; i++) (&sum[0][0][0])[i] += (&part[0][0][0])[i];
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
#define SMELT_PAD(L) (smelt_left<L>::PARTS == 1 ? 0 : 32)
#else
#define SMELT_PAD(L) 32
#endif
"""


def kinds_of(text: str) -> list[Kind]:
    """The kinds of the products that a text computes; the first one is always there."""
    numbers = {0, *(int(each) for each in re.findall(r"smelt_(?:tile|stream)<[^>]*, (\d+)>\(", text))}
    return [KINDS[number] for number in sorted(numbers)]


def fp8_texts(kinds: Collection[Kind]) -> str:
    """`mma.sync` of fp8, which sm_80 has not."""
    return "".join(
        MMA_FP8.format(suffix=kind.suffix, types=kind.types.removeprefix("k32.f32."))
        for kind in kinds
        if kind.form in TENSOR_FP8
    )


def wgmma_texts(kinds: Collection[Kind]) -> str:
    """The instruction for every number of columns."""
    return "".join(_wgmma_text(columns, kind) for columns in INSTRUCTION_COLUMNS for kind in kinds)


def _wgmma_text(columns: int, kind: Kind) -> str:
    count = columns // 2
    places = ", ".join(f"%{i}" for i in range(count))
    values = ", ".join(f'"+{kind.register}"(d[{i}])' for i in range(count))
    sizes = {"columns": columns, "count": count, "next": count + 1, "last": count + 2}
    template = WGMMA_FP8 if kind.form in TENSOR_FP8 else WGMMA
    about = {"suffix": kind.suffix, "total": kind.total, "types": kind.types, "flags": kind.flags}
    return template.format(**sizes, places=places, values=values, **about)


def element_types(form: Form) -> tuple[str, str]:
    """The C types of both operands in memory."""
    own = KINDS[number_of(form.left, form.right)].element if form in (*TENSOR_FP8, *STREAM_FP8, TENSOR_TF32) else ""
    return (own, own) if own else (math.storage(form.left), math.storage(form.right))


def number_of(left: DType, right: DType) -> int:
    """The kind of instructions that multiply these types."""
    return next((i for i, kind in enumerate(KINDS) if (kind.form.left, kind.form.right) == (left, right)), 0)


def tile_call(
    form: Form, rows: int, columns: int, ring: tuple[int, int], *, aligned: bool, window: bool, splits: bool
) -> str:
    """The name of the function that multiplies a tile. `ring`: its stages, and the steps of each."""
    kinds = ", ".join((*(str(each).lower() for each in (aligned, window, splits)), str(NUMBERS.get(form, 0))))
    stages, steps = ring
    return f"smelt_tile<{element_types(form)[0]}, {rows}, {columns}, {stages}, {steps // slab_steps(form)}, {kinds}>"
