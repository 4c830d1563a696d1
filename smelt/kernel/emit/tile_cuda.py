"""Micro-kernels as CUDA, run by all threads of a group together: products of any form, and transposes.

One thread computes one sum of products at a time, in the order of the form, so bits are those of a processor.
"""

from __future__ import annotations

from smelt.kernel import math
from smelt.kernel.loops.form import BF16, F32, F32_BF16, F32_F16, INT8, Form

MMA = "smelt_mma_"  # and the name of a form
FORMS = (F32, F32_F16, F32_BF16, BF16, INT8)

TRANSPOSE = """\
template <class T> void smelt_transpose(int lane, int lanes, const T *from, int rows, int columns, T *to) {
  for (int at = lane; at < rows * columns; at += lanes) to[at % columns * rows + at / columns] = from[at];
}
"""
LOOPS = """\
void smelt_mma_{name}(int lane, int lanes, i64 rows, const {left} *a, i64 row, i64 tap, i64 step, const {right} *b,
    i64 line, i64 taps, i64 count, {total} *acc, i64 width, i64 columns, i64 accumulate) {{
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
# The second step of a pair first, as the instruction of processors does.
PAIRS = """\
for (i64 k = 0; k < count; k += 2) {{
        const ui16 *w = y + k / 2 * line;
        if (k + 1 < count) sum = fmaf({odd}, sum);
        sum = fmaf({even}, sum);
      }}"""
BYTES = "for (i64 k = 0; k < count; k++) sum += x[k] * y[k / 4 * line + k % 4];"


def mma_text(form: Form) -> str:
    """The function of a form."""
    pack = form.k_pack
    return LOOPS.format(
        name=form.name,
        left=math.storage(form.left),
        right=math.storage(form.right),
        total=math.register(form.total),
        pack=pack,
        lines=f"((count + {pack - 1}) / {pack})" if pack > 1 else "count",
        steps=_steps(form),
    )


def _steps(form: Form) -> str:
    if form is INT8:
        return BYTES
    if form is BF16:
        odd, even = (f"{math.load(form.left, f'x[k + {i}]')}, {math.load(form.right, f'w[{i}]')}" for i in (1, 0))
        return PAIRS.format(odd=odd, even=even)
    factors = f"{math.load(form.left, 'x[k * step]')}, {math.load(form.right, 'y[k * line]')}"
    return f"for (i64 k = 0; k < count; k++) sum = fmaf({factors}, sum);"


def micro_kernels(text: str) -> str:
    """The micro-kernels that a text calls."""
    found = [mma_text(form) for form in FORMS if f"{MMA}{form.name}(" in text]
    return "".join([*found, *([TRANSPOSE] if "smelt_transpose(" in text else [])])
