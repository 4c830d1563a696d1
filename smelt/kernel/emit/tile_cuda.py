"""Micro-kernels as CUDA, run by all threads of a group together: products of any form, and transposes.

One thread computes one sum of products at a time, in the order of the form, so bits are those of a processor.
"""

from __future__ import annotations

MMA = "smelt_mma_"  # and the name of a form

TRANSPOSE = """\
template <class T> void smelt_transpose(int lane, int lanes, const T *from, int rows, int columns, T *to) {
  for (int at = lane; at < rows * columns; at += lanes) to[at % columns * rows + at / columns] = from[at];
}
"""
ARGUMENTS = (
    "int lane, int lanes, i64 rows, const {left} *a, i64 row, i64 tap, i64 step, const {right} *b, i64 line, i64 taps,"
    " i64 count, {total} *acc, i64 width, i64 columns, i64 accumulate"
)
LOOPS = """\
void smelt_mma_{name}({arguments}) {{
  for (i64 at = lane; at < rows * columns; at += lanes) {{
    const i64 i = at / columns, j = at % columns;
    {total} sum = 0;
    for (i64 t = 0; t < taps; t++) {{
      const {left} *x = a + i * row + t * tap; const {right} *y = b + t * {lines} * line + {pack} * j;
      {steps}
    }}
    acc[i * width + j] = accumulate ? acc[i * width + j] + sum : sum;
  }}
}}
"""
F32 = "for (i64 k = 0; k < count; k++) sum = fmaf(x[k * step], y[k * line], sum);"
# The second step of a pair first, as the instruction of processors does.
BF16 = """\
for (i64 k = 0; k < count; k += 2) {
        const ui16 *w = y + k / 2 * line;
        if (k + 1 < count) sum = fmaf(smelt_widen(x[k + 1]), smelt_widen(w[1]), sum);
        sum = fmaf(smelt_widen(x[k]), smelt_widen(w[0]), sum);
      }"""
INT8 = "for (i64 k = 0; k < count; k++) sum += x[k] * y[k / 4 * line + k % 4];"
WIDEN = "inline f32 smelt_widen(ui16 x) { return __uint_as_float((ui32)x << 16); }\n"


def mma_text(name: str) -> str:
    """The function of a form."""
    left, right, total, pack, steps = {
        "f32": ("f32", "f32", "f32", 1, F32),
        "bf16": ("ui16", "ui16", "f32", 2, BF16),
        "int8": ("ui8", "i8", "i32", 4, INT8),
    }[name]
    arguments = ARGUMENTS.format(left=left, right=right, total=total)
    lines = f"((count + {pack - 1}) / {pack})" if pack > 1 else "count"
    text = LOOPS.format(
        name=name, arguments=arguments, left=left, right=right, total=total, pack=pack, lines=lines, steps=steps
    )
    return WIDEN + text if name == "bf16" else text


def micro_kernels(text: str) -> str:
    """The micro-kernels that a text calls."""
    found = [mma_text(name) for name in ("f32", "bf16", "int8") if f"{MMA}{name}(" in text]
    return "".join([*found, *([TRANSPOSE] if "smelt_transpose(" in text else [])])
