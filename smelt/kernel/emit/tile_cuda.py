"""Micro-kernels as CUDA, run by all threads of a group together: products of any form, and transposes.

| function | run by | products |
|---|---|---|
| `smelt_mma_FORM` | any group | one sum after another by each thread |
| `smelt_tile_FORM` | a block | 128 × 64 sums at a time, 8 × 4 by each thread, operands through shared memory |
| `smelt_few_FORM` | a block | up to 8 rows: a thread for each column and K-block, which loads weights ahead |

All add up in the order of the form, so bits are those of a processor. `tile_mma.py` has products by bf16 weights.
"""

from __future__ import annotations

from smelt.kernel import math
from smelt.kernel.emit.blocks_cuda import block_kernels
from smelt.kernel.emit.tile_mma import tensor_kernels
from smelt.kernel.loops.form import BF16, F32, F32_BF16, F32_F16, INT8, Form

MMA, TILE, FEW = "smelt_mma_", "smelt_tile_", "smelt_few_"  # and the name of a form
FORMS = (F32, F32_F16, F32_BF16, BF16, INT8)
TILED = (F32, F32_F16, F32_BF16)

TRANSPOSE = """\
template <class T> void smelt_transpose(int lane, int lanes, const T *from, int rows, int columns, T *to) {
  for (int at = lane; at < rows * columns; at += lanes) to[at % columns * rows + at / columns] = from[at];
}
"""
OPERANDS = (
    "i64 rows, const {left} *a, const i64 *starts, i64 row, i64 tap, i64 step, const {right} *b, i64 line, i64 taps,"
    " i64 count, {total} *acc, i64 width, i64 columns, i64 accumulate"
)
LOOPS = """\
inline void smelt_mma_{name}(int lane, int lanes, {operands}) {{
  for (i64 at = lane; at < rows * columns; at += lanes) {{
    const i64 i = at / columns, j = at % columns;
    {total} sum = 0, total = 0;
    for (i64 t = 0; t < taps; t++) {{
      const {left} *x = a + (starts ? starts[i] : i * row) + t * tap;
      const {right} *y = b + t * {lines} * line + {pack} * j;
      for (i64 k = 0; k < count; k += {pack}) {{
        {steps}
        if (taps == 1 && (k + {pack}) % {block} == 0 && k + {pack} < count) {{
          total = k >= {block} ? total + sum : sum;
          sum = 0;
        }}
      }}
    }}
    if (taps == 1 && count > {block}) sum = total + sum;
    acc[i * width + j] = accumulate ? acc[i * width + j] + sum : sum;
  }}
}}
"""
PAIRS = """\
const ui16 *w = y + k / 2 * line;  // the second step first, as the instruction of processors does
        if (k + 1 < count) sum = fmaf({odd}, sum);
        sum = fmaf({even}, sum);"""
BYTES = "for (int i = 0; i < 4 && k + i < count; i++) sum += x[k + i] * y[k / 4 * line + i];"

FOUR = """\
inline void smelt_whole_{name}(const {right} *from, f32 *to) {{  // 4 aligned elements
  struct __align__({bytes}) Four {{ {right} x[4]; }};
  const Four all = *(const Four *)from;
  for (int i = 0; i < 4; i++) to[i] = {load_all};
}}
inline void smelt_part_{name}(const {right} *from, i64 used, f32 *to) {{  // at most 4 elements, the others are 0
  for (int i = 0; i < 4; i++) to[i] = i < used ? {load_one} : 0;
}}
inline void smelt_four_{name}(const {right} *from, i64 used, f32 *to) {{
  if (used >= 4 && (ui64)from % {bytes} == 0) smelt_whole_{name}(from, to);
  else smelt_part_{name}(from, used, to);
}}
"""
TILE_LOOPS = """\
inline void smelt_tile_{name}(int lane, {operands}) {{
  __shared__ __align__(16) f32 left[16][132], right[16][64];
  const int x = lane % 16, y = lane / 16;  // the thread has rows 8 y … and columns 4 x … of a tile
  for (i64 top = 0; top < rows; top += 128) for (i64 side = 0; side < columns; side += 64) {{
    f32 sum[8][4] = {{}}, total[8][4] = {{}}, next_left[8], next_right[4];
    const {left} *from[8];
    for (int i = 0; i < 8; i++) {{
      const i64 at = top + y + 16 * i;
      from[i] = at < rows ? a + (starts ? starts[at] : at * row) + x * step : ({left} *)0;
    }}
    const auto fetch = [&](i64 t, i64 k) {{  // the next 16 steps, while those before are multiplied
#pragma unroll
      for (int i = 0; i < 8; i++) next_left[i] = from[i] && k + x < count ? from[i][t * tap + k * step] : 0;
      smelt_four_{name}(b + (t * count + k + y) * line + side + 4 * x, k + y < count ? columns - side - 4 * x : 0,
                        next_right);
    }};
    fetch(0, 0);
    for (i64 t = 0; t < taps; t++) for (i64 k = 0; k < count; k += 16) {{
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 8; i++) left[x][y + 16 * i] = next_left[i];
#pragma unroll
      for (int i = 0; i < 4; i++) right[y][4 * x + i] = next_right[i];
      __syncthreads();
      const bool last = k + 16 >= count;
      if (!last || t + 1 < taps) fetch(last ? t + 1 : t, last ? 0 : k + 16);
      const int steps = last ? (int)(count - k) : 16;
      const auto multiply = [&](int s) {{
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
          for (int j = 0; j < 4; j++) sum[i][j] = fmaf(left[s][8 * y + i], right[s][4 * x + j], sum[i][j]);
      }};
      if (steps == 16) {{
#pragma unroll 4
        for (int s = 0; s < 16; s++) multiply(s);
      }} else {{
        for (int s = 0; s < steps; s++) multiply(s);
      }}
      if (taps == 1 && (k + 16) % {block} == 0 && k + 16 < count)
        for (int i = 0; i < 8; i++)
          for (int j = 0; j < 4; j++) {{
            total[i][j] = k >= {block} ? total[i][j] + sum[i][j] : sum[i][j];
            sum[i][j] = 0;
          }}
    }}
    for (int i = 0; i < 8; i++)
      for (int j = 0; j < 4; j++) {{
        const i64 at = top + 8 * y + i, column = side + 4 * x + j;
        if (at >= rows || column >= columns) continue;
        const f32 found = taps == 1 && count > {block} ? total[i][j] + sum[i][j] : sum[i][j];
        f32 *to = acc + at * width + column;
        *to = accumulate ? *to + found : found;
      }}
  }}
}}
"""
FEW_LOADS = """\
struct __align__(16) smelt_four { f32 x[4]; };
#ifdef __CUDACC__
inline f32 smelt_now(const f32 *from) {  // no compiler moves the load to where its result is used
  f32 to;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(to) : "l"(from) : "memory");
  return to;
}
inline ui16 smelt_now(const ui16 *from) {
  ui16 to;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(to) : "l"(from) : "memory");
  return to;
}
#endif
"""
FEW_LOOPS = """\
// A thread has one column of a K-block and loads its weights 32 steps ahead. Rows come through shared memory.
template <int ROWS, int COLUMNS> inline void smelt_few_{name}_rows(int lane, f32 *shared, i64 rows, const {left} *a,
    i64 row, i64 step, const {right} *b, i64 line, i64 count, f32 *acc, i64 width, i64 columns) {{
  enum {{
    SLICES = 256 / COLUMNS, DEEP = 32, PITCH = DEEP + 4, STAGES = {block} / DEEP,  // slices: K-blocks at a time
    ITEMS = ROWS * SLICES * DEEP, EACH = (ITEMS + 255) / 256
  }};
  f32 *const left = shared, *const part = shared + ROWS * SLICES * PITCH;
  const int column = lane % COLUMNS, slice = lane / COLUMNS, depth = (int)count, pitch = (int)line;
  const int rounds = depth ? (depth + SLICES * {block} - 1) / (SLICES * {block}) : 1;
  const auto first_step = [](int stage, int slice) {{
    return (stage / STAGES * SLICES + slice) * {block} + stage % STAGES * DEEP;
  }};
  const auto load_weight = [&](int k) {{
    return k < depth && column < columns ? smelt_now(b + ((i64)k * pitch + column)) : ({right})0;
  }};
  {right} y[DEEP];
  f32 x[EACH], sum[ROWS] = {{}};
  const auto load_rows = [&](int stage) {{
#pragma unroll
    for (int j = 0; j < EACH; j++) {{
      const int at = lane + 256 * j, r = at / (SLICES * DEEP);
      const int k = first_step(stage, at / DEEP % SLICES) + at % DEEP;
      x[j] = at < ITEMS && r < rows && k < depth ? smelt_now(a + (r * row + k * step)) : 0;
    }}
  }};
#pragma unroll
  for (int i = 0; i < DEEP; i++) y[i] = load_weight(first_step(0, slice) + i);
  load_rows(0);
#pragma unroll 1
  for (int stage = 0; stage < rounds * STAGES; stage++) {{
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; j++) {{
      const int at = lane + 256 * j;
      if (at < ITEMS) left[at / DEEP * PITCH + at % DEEP] = x[j];
    }}
    __syncthreads();
    load_rows(stage + 1);
    const int steps = depth - first_step(stage, slice), next = first_step(stage + 1, slice);
    smelt_four z[ROWS];
#pragma unroll
    for (int i = 0; i < DEEP; i++) {{
      const f32 weight = {load_one};
#pragma unroll
      for (int r = 0; r < ROWS; r++) {{
        if (i % 4 == 0) z[r] = *(const smelt_four *)(left + (r * SLICES + slice) * PITCH + i);
        if (i < steps) sum[r] = fmaf(z[r].x[i % 4], weight, sum[r]);
      }}
      y[i] = load_weight(next + i);
    }}
    if (stage % STAGES != STAGES - 1) continue;
#pragma unroll
    for (int r = 0; r < ROWS; r++) part[(slice * ROWS + r) * COLUMNS + column] = sum[r], sum[r] = 0;
    __syncthreads();
    const int first = stage / STAGES * SLICES;  // the sums of K-blocks are added in order
    for (int at = lane; at < ROWS * COLUMNS; at += 256) {{
      const int r = at / COLUMNS, c = at % COLUMNS;
      if (r >= rows || c >= columns) continue;
      f32 total = first ? acc[r * width + c] : 0;
      for (int s = 0; s < SLICES && (first + s) * {block} < depth; s++)
        total = first + s ? total + part[s * ROWS * COLUMNS + at] : part[at];
      acc[r * width + c] = total;
    }}
  }}
}}
// MOST rows; with ANY at most as many, and code of its own for one.
template <int MOST, bool ANY, int COLUMNS> inline void smelt_few_{name}(int lane, i64 rows, const {left} *a, i64 row,
    i64 step, const {right} *b, i64 line, i64 count, f32 *acc, i64 width, i64 columns) {{
  __shared__ __align__(16) f32 shared[MOST * (256 / COLUMNS * 36 + 256)];
  if (ANY && rows == 1)
    smelt_few_{name}_rows<1, COLUMNS>(lane, shared, 1, a, row, step, b, line, count, acc, width, columns);
  else
    smelt_few_{name}_rows<MOST, COLUMNS>(lane, shared, rows, a, row, step, b, line, count, acc, width, columns);
}}
"""


def _names(form: Form) -> dict[str, object]:
    kinds = {
        "name": form.name,
        "left": math.storage(form.left),
        "right": math.storage(form.right),
        "total": math.register(form.total),
    }
    size = form.right.bits // 8
    numbers = {"pack": form.k_pack, "block": form.block, "size": size, "bytes": 4 * size * form.k_pack}
    return {**kinds, **numbers, "operands": OPERANDS.format(**kinds)}


def mma_text(form: Form) -> str:
    """`smelt_mma_FORM`."""
    pack = form.k_pack
    lines = f"((count + {pack - 1}) / {pack})" if pack > 1 else "count"
    return LOOPS.format(**_names(form), lines=lines, steps=_steps(form))


def _steps(form: Form) -> str:
    if form is INT8:
        return BYTES
    if form is BF16:
        odd, even = (f"{math.load(form.left, f'x[k + {i}]')}, {math.load(form.right, f'w[{i}]')}" for i in (1, 0))
        return PAIRS.format(odd=odd, even=even)
    factors = f"{math.load(form.left, 'x[k * step]')}, {math.load(form.right, 'y[k * line]')}"
    return f"sum = fmaf({factors}, sum);"


def four_text(form: Form) -> str:
    """Loads of 4 columns of a panel."""
    loads = {"load_all": math.load(form.right, "all.x[i]"), "load_one": math.load(form.right, "from[i]")}
    return FOUR.format(**_names(form), **loads)


def few_text(form: Form) -> str:
    """`smelt_few_FORM`."""
    return FEW_LOOPS.format(**_names(form), load_one=math.load(form.right, "y[i]"))


def micro_kernels(text: str) -> str:
    """The micro-kernels that a text calls."""
    found = [mma_text(form) for form in FORMS if f"{MMA}{form.name}(" in text]
    few = [form for form in TILED if f"{FEW}{form.name}<" in text]
    found += [FEW_LOADS] if few else []
    for form in TILED:
        found += [four_text(form), TILE_LOOPS.format(**_names(form))] if f"{TILE}{form.name}(" in text else []
        found += [few_text(form)] if form in few else []
    found += [tensor_kernels(text), block_kernels(text)]
    return "".join([*found, *([TRANSPOSE] if "smelt_transpose(" in text else [])])
