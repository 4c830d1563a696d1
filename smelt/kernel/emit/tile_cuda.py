"""Micro-kernels as CUDA, run by all threads of a group together: products of any form, and transposes.

| function | run by | products |
|---|---|---|
| `smelt_mma_FORM` | any group | one sum after another by each thread |
| `smelt_tile_FORM` | a block | 128 × 64 sums at a time, 8 × 4 by each thread, operands through shared memory |
| `smelt_few_FORM` | a block | a few rows: K-blocks by different threads, weights read 4 columns at a time |

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
FEW_LOOPS = """\
template <int ROWS, int COLUMNS> inline void smelt_few_{name}(int lane, const {left} *a, i64 row, i64 step,
    const {right} *b, i64 line, i64 count, f32 *acc, i64 width, i64 columns) {{
  constexpr int SLICES = 1024 / COLUMNS;  // K-blocks at a time
  __shared__ f32 part[SLICES][ROWS][COLUMNS];
  const int first_column = lane % (COLUMNS / 4) * 4, slice = lane / (COLUMNS / 4);
  const i64 blocks = (count + {block} - 1) / {block};
  const bool whole = columns - first_column >= 4 && ((ui64)b | line * {size} | 4 * {size}) % {bytes} == 0;
  for (int at = lane; at < ROWS * COLUMNS; at += 256)
    if (at % COLUMNS < columns) acc[at / COLUMNS * width + at % COLUMNS] = 0;
  for (i64 first = 0; first < blocks; first += SLICES) {{
    const i64 begin = (first + slice) * {block}, end = begin + {block} < count ? begin + {block} : count;
    f32 sum[ROWS][4] = {{}};
    const auto sweep = [&](const auto &load) {{
#pragma unroll 8
      for (i64 k = begin; k < end; k++) {{
        f32 y[4];
        load(b + k * line + first_column, y);
        for (int r = 0; r < ROWS; r++)
          for (int c = 0; c < 4; c++) sum[r][c] = fmaf(a[r * row + k * step], y[c], sum[r][c]);
      }}
    }};
    if (whole) sweep([](const {right} *from, f32 *to) {{ smelt_whole_{name}(from, to); }});
    else sweep([=](const {right} *from, f32 *to) {{ smelt_part_{name}(from, columns - first_column, to); }});
    for (int r = 0; r < ROWS; r++)
      for (int c = 0; c < 4; c++) part[slice][r][first_column + c] = sum[r][c];
    __syncthreads();
    for (int at = lane; at < ROWS * COLUMNS; at += 256) {{
      const int r = at / COLUMNS, c = at % COLUMNS;
      if (c >= columns) continue;
      f32 total = acc[r * width + c];
      for (i64 s = 0; s < SLICES && first + s < blocks; s++) total = first + s ? total + part[s][r][c] : part[s][r][c];
      acc[r * width + c] = total;
    }}
    __syncthreads();
  }}
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
    return FEW_LOOPS.format(**_names(form))


def micro_kernels(text: str) -> str:
    """The micro-kernels that a text calls."""
    found = [mma_text(form) for form in FORMS if f"{MMA}{form.name}(" in text]
    for form in TILED:
        tile, few = f"{TILE}{form.name}(" in text, f"{FEW}{form.name}<" in text
        found += [four_text(form)] if tile or few else []
        found += [TILE_LOOPS.format(**_names(form))] if tile else []
        found += [few_text(form)] if few else []
    found += [tensor_kernels(text), block_kernels(text)]
    return "".join([*found, *([TRANSPOSE] if "smelt_transpose(" in text else [])])
