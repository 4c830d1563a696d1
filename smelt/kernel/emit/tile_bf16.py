"""bf16 micro-kernel as C: a and b are bf16, sums are f32, two steps of K per 32-bit word.

With AVX512-BF16 both steps are one instruction (vdpbf16ps), which treats subnormals as zero. Other processors convert
words to f32 and multiply in the same order, the second step first. The loops are those of `emit.tile_int8`.
"""

from __future__ import annotations

from smelt.kernel.emit.tile_int8 import PackedForm, mma_text
from smelt.target import TileShape

BF16_HEAD = """\
#if !defined(SMELT_PLAIN) && {bytes} == 64 && defined(__AVX512BF16__)
typedef smelt_words smelt_mma_bf16_left; typedef smelt_words smelt_mma_bf16_right;
SMELT_INLINE smelt_mma_bf16_left smelt_mma_bf16_unpack_left(ui32 x) {{ return (i32)x - (smelt_words){{0}}; }}
SMELT_INLINE smelt_mma_bf16_right smelt_mma_bf16_unpack_right(smelt_words b) {{ return b; }}
SMELT_INLINE smelt_vector smelt_mma_bf16_dot(smelt_vector c, smelt_mma_bf16_left a, smelt_mma_bf16_right b) {{
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
}}
#else
typedef struct {{ smelt_vector even, odd; }} smelt_mma_bf16_left; typedef smelt_mma_bf16_left smelt_mma_bf16_right;
SMELT_INLINE smelt_mma_bf16_right smelt_mma_bf16_unpack_right(smelt_words b) {{
  return (smelt_mma_bf16_right){{ (smelt_vector)(b << 16), (smelt_vector)(b & (i32)0xffff0000) }};
}}
SMELT_INLINE smelt_mma_bf16_left smelt_mma_bf16_unpack_left(ui32 x) {{
  return smelt_mma_bf16_unpack_right((i32)x - (smelt_words){{0}});
}}
SMELT_INLINE smelt_vector smelt_mma_bf16_dot(smelt_vector c, smelt_mma_bf16_left a, smelt_mma_bf16_right b) {{
  return SMELT_FMA(a.even, b.even, SMELT_FMA(a.odd, b.odd, c));
}}
#endif
SMELT_INLINE ui32 smelt_mma_bf16_last(const ui16 *a, i64 rest) {{ (void)rest; return a[0]; }}"""

BF16 = PackedForm("smelt_mma_bf16", 2, "ui16", "ui16", "f32", "smelt_vector", BF16_HEAD)


def mma_bf16_text(shape: TileShape, *, narrow: bool = False) -> str:
    """`smelt_mma_bf16` for any number of rows, and its callees; `narrow` as for `mma_text`."""
    return mma_text(BF16, shape, narrow=narrow)
