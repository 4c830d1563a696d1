"""Register tiles of bf16 as C: a and b of bf16, sums of f32, two steps of a column side by side in a word.

Where the processor has an instruction for that (AVX512-BF16) a step is one, which takes numbers below 2^-126 for zero;
elsewhere words are opened to f32 and multiplied in the same order, the second step first. `emit_c` adds the text to
programs that multiply pairs; the loops are those of `tile_int8_c`.
"""

from __future__ import annotations

from smelt.kernel.emit.tile_f32 import TileShape
from smelt.kernel.emit.tile_int8 import Words, words_text

PAIRS_HEAD = """\
#if !defined(SMELT_PLAIN) && {bytes} == 64 && defined(__AVX512BF16__)
typedef smelt_words smelt_halves_left; typedef smelt_words smelt_halves_right;
SMELT_INLINE smelt_halves_left smelt_halves_open_left(ui32 x) {{ return (i32)x - (smelt_words){{0}}; }}
SMELT_INLINE smelt_halves_right smelt_halves_open_right(smelt_words b) {{ return b; }}
SMELT_INLINE smelt_vector smelt_halves_dot(smelt_vector c, smelt_halves_left a, smelt_halves_right b) {{
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
}}
#else
typedef struct {{ smelt_vector even, odd; }} smelt_halves_left; typedef smelt_halves_left smelt_halves_right;
SMELT_INLINE smelt_halves_right smelt_halves_open_right(smelt_words b) {{
  return (smelt_halves_right){{ (smelt_vector)(b << 16), (smelt_vector)(b & (i32)0xffff0000) }};
}}
SMELT_INLINE smelt_halves_left smelt_halves_open_left(ui32 x) {{
  return smelt_halves_open_right((i32)x - (smelt_words){{0}});
}}
SMELT_INLINE smelt_vector smelt_halves_dot(smelt_vector c, smelt_halves_left a, smelt_halves_right b) {{
  return SMELT_FMA(a.even, b.even, SMELT_FMA(a.odd, b.odd, c));
}}
#endif
SMELT_INLINE ui32 smelt_halves_last(const ui16 *a, i64 rest) {{ (void)rest; return a[0]; }}"""

PAIRS = Words("smelt_halves", 2, "ui16", "ui16", "f32", "smelt_vector", PAIRS_HEAD)


def pairs_text(shape: TileShape, *, some: bool = False) -> str:
    """`smelt_halves` for any number of rows, and what it calls; `some` as for `words_text`."""
    return words_text(PAIRS, shape, some=some)
