"""Micro-kernels of packed elements as C: `tile[i][j] = sum over k of a[i, k] * b[k, j]`, `k_pack` steps per word.

`mma_text` writes the loops of any `PackedForm`. This one is int8: a is ui8, b is i8, sums are i32, and a lane takes
four steps of K at once. With VNNI that is one instruction (vpdpbusd), and on Arm with i8mm (usdot); with dotprod alone
a is moved to i8 and the difference added again (sdot); AVX2, AVX-512 and WebAssembly multiply pairs as i16 (vpmaddwd,
i32x4.dot_i16x8_s); other processors go lane by lane. All are exact and give the same bits. `emit.tile_bf16` has the
other form.
"""

from __future__ import annotations

from smelt.frozen import Frozen
from smelt.kernel.emit.tile_f32 import HEAD, MAX_TILE_ROWS, PREFETCH_STEPS, STREAMED_ROWS
from smelt.target import TileShape

LINE = 64  # bytes per cache line

WORDS_HEAD = """\
#ifndef SMELT_INLINE
#define SMELT_INLINE static inline __attribute__((always_inline))
typedef i32 smelt_words __attribute__((vector_size({bytes}), aligned(1), may_alias));
typedef ui32 smelt_word __attribute__((aligned(1), may_alias));
#endif"""

# Four int8 products per lane on Arm: unsigned by signed, or, without i8mm, signed by signed.
ARM_DOT = """\
#if !defined(SMELT_PLAIN) && {bytes} == 16 && defined(__aarch64__) && !defined(SMELT_ARM_DOT)
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define SMELT_ARM_DOT
#define SMELT_USDOT
SMELT_INLINE smelt_words smelt_usdot(smelt_words c, smelt_words a, smelt_words b) {{
  __asm__("usdot %0.4s, %1.16b, %2.16b" : "+w"(c) : "w"(a), "w"(b));
  return c;
}}
#elif defined(__ARM_FEATURE_DOTPROD)
#define SMELT_ARM_DOT
SMELT_INLINE smelt_words smelt_sdot(smelt_words c, smelt_words a, smelt_words b) {{
  __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(c) : "w"(a), "w"(b));
  return c;
}}
SMELT_INLINE smelt_words smelt_move_unsigned(smelt_words a) {{ return a ^ (i32)0x80808080; }} /* ui8 - 128 as i8 */
SMELT_INLINE smelt_words smelt_sum_by_128(smelt_words b) {{
  const smelt_words zero = {{0}};
  return smelt_sdot(zero, zero + 0x40404040, b) << 1;
}}
#endif
#endif
"""

INT8_HEAD = (
    ARM_DOT
    + """\
typedef i16 smelt_shorts __attribute__((vector_size({bytes}), aligned(1), may_alias));
#if !defined(SMELT_PLAIN) && {bytes} == 64 && defined(__AVX512VNNI__)
#define SMELT_VNNI
#define SMELT_DOT __builtin_ia32_vpdpbusd512
#elif !defined(SMELT_PLAIN) && {bytes} == 32 && \\
    (defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)))
#define SMELT_VNNI
#define SMELT_DOT __builtin_ia32_vpdpbusd256
#elif !defined(SMELT_PLAIN) && (({bytes} == 64 && defined(__AVX512BW__)) || ({bytes} == 32 && defined(__AVX2__)))
#define SMELT_MADDWD
#elif !defined(SMELT_PLAIN) && {bytes} == 16 && defined(__wasm_simd128__)
#define SMELT_MADDWD
#endif
#ifdef SMELT_VNNI
typedef smelt_words smelt_mma_int8_left; typedef smelt_words smelt_mma_int8_right;
SMELT_INLINE smelt_mma_int8_left smelt_mma_int8_unpack_left(ui32 x) {{ return (i32)x - (smelt_words){{0}}; }}
SMELT_INLINE smelt_mma_int8_right smelt_mma_int8_unpack_right(smelt_words b) {{ return b; }}
SMELT_INLINE smelt_words smelt_mma_int8_dot(smelt_words c, smelt_mma_int8_left a, smelt_mma_int8_right b) {{
#if defined(__clang__) && __clang_major__ < 21
  return SMELT_DOT(c, a, b);
#elif defined(__AVX512VNNI__) && ({bytes} == 64 || defined(__AVX512VL__))
  __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#else  /* assemblers take the encoding of AVX-512 unless they are told */
  __asm__("%{{vex%}} vpdpbusd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
  return c;
#endif
}}
#elif defined(SMELT_MADDWD)
typedef struct {{ smelt_words even, odd; }} smelt_mma_int8_left; typedef smelt_mma_int8_left smelt_mma_int8_right;
SMELT_INLINE smelt_mma_int8_left smelt_mma_int8_unpack_left(ui32 x) {{
  const smelt_words all = (i32)x - (smelt_words){{0}};
  return (smelt_mma_int8_left){{ all & 0x00ff00ff, (smelt_words)((smelt_shorts)all >> 8) & 0x00ff00ff }};
}}
SMELT_INLINE smelt_mma_int8_right smelt_mma_int8_unpack_right(smelt_words b) {{
  return (smelt_mma_int8_right){{ (smelt_words)(((smelt_shorts)b << 8) >> 8), (smelt_words)((smelt_shorts)b >> 8) }};
}}
SMELT_INLINE smelt_words smelt_maddwd(smelt_words a, smelt_words b) {{
#ifdef __wasm_simd128__
  return __builtin_wasm_dot_s_i32x4_i16x8((smelt_shorts)a, (smelt_shorts)b);
#else
  smelt_words sum;
  __asm__("vpmaddwd %2, %1, %0" : "=v"(sum) : "v"(a), "v"(b));
  return sum;
#endif
}}
SMELT_INLINE smelt_words smelt_mma_int8_dot(smelt_words c, smelt_mma_int8_left a, smelt_mma_int8_right b) {{
  return c + smelt_maddwd(a.even, b.even) + smelt_maddwd(a.odd, b.odd);
}}
#elif defined(SMELT_USDOT)
typedef smelt_words smelt_mma_int8_left; typedef smelt_words smelt_mma_int8_right;
SMELT_INLINE smelt_mma_int8_left smelt_mma_int8_unpack_left(ui32 x) {{ return (i32)x - (smelt_words){{0}}; }}
SMELT_INLINE smelt_mma_int8_right smelt_mma_int8_unpack_right(smelt_words b) {{ return b; }}
SMELT_INLINE smelt_words smelt_mma_int8_dot(smelt_words c, smelt_mma_int8_left a, smelt_mma_int8_right b) {{
  return smelt_usdot(c, a, b);
}}
#elif defined(SMELT_ARM_DOT)
typedef smelt_words smelt_mma_int8_left; typedef struct {{ smelt_words codes, more; }} smelt_mma_int8_right;
SMELT_INLINE smelt_mma_int8_left smelt_mma_int8_unpack_left(ui32 x) {{
  return smelt_move_unsigned((i32)x - (smelt_words){{0}});
}}
SMELT_INLINE smelt_mma_int8_right smelt_mma_int8_unpack_right(smelt_words b) {{
  return (smelt_mma_int8_right){{ b, smelt_sum_by_128(b) }};
}}
SMELT_INLINE smelt_words smelt_mma_int8_dot(smelt_words c, smelt_mma_int8_left a, smelt_mma_int8_right b) {{
  return smelt_sdot(c + b.more, a, b.codes);
}}
#else
typedef struct {{ i32 steps[4]; }} smelt_mma_int8_left; typedef struct {{ smelt_words steps[4]; }} smelt_mma_int8_right;
SMELT_INLINE smelt_mma_int8_left smelt_mma_int8_unpack_left(ui32 x) {{
  return (smelt_mma_int8_left){{{{ x & 255, x >> 8 & 255, x >> 16 & 255, x >> 24 }}}};
}}
SMELT_INLINE smelt_mma_int8_right smelt_mma_int8_unpack_right(smelt_words b) {{
  return (smelt_mma_int8_right){{{{ (b << 24) >> 24, (b << 16) >> 24, (b << 8) >> 24, b >> 24 }}}};
}}
SMELT_INLINE smelt_words smelt_mma_int8_dot(smelt_words c, smelt_mma_int8_left a, smelt_mma_int8_right b) {{
  return c + (a.steps[0] * b.steps[0] + a.steps[1] * b.steps[1]) + (a.steps[2] * b.steps[2] + a.steps[3] * b.steps[3]);
}}
#endif
SMELT_INLINE ui32 smelt_mma_int8_last(const ui8 *a, i64 rest) {{
  return a[0] | (rest > 1 ? (ui32)a[1] << 8 : 0) | (rest > 2 ? (ui32)a[2] << 16 : 0);
}}"""
)


class PackedForm(Frozen):
    """An element type of which `k_pack` fill a 32-bit word. `head` defines, each prefixed with the name: the types
    `_left` and `_right` that a word and a vector of words unpack to (`_unpack_left`, `_unpack_right`), `_dot`, which
    adds their products to a vector of sums, and `_last`, which loads a partial word padded with zeros."""

    name: str
    k_pack: int
    left: str  # the C types of a's elements,
    right: str  # b's,
    total: str  # a sum
    totals: str  # and a vector of sums
    head: str


INT8 = PackedForm("smelt_mma_int8", 4, "ui8", "i8", "i32", "smelt_words", INT8_HEAD)
AT_ONCE = 64  # columns of the words whose successors are prefetched at once: four cache lines of int8
ARGUMENTS = "a, a_row_stride, a_tap_stride, b, b_stride, taps, count, tile, accumulate"


def mma_int8_text(shape: TileShape, *, narrow: bool = False) -> str:
    """`smelt_mma_int8` for any number of rows, and its callees; `narrow` as for `mma_text`."""
    return mma_text(INT8, shape, narrow=narrow)


def mma_text(form: PackedForm, shape: TileShape, *, narrow: bool = False) -> str:
    """A function of the form's name for any number of rows, and its callees.

    With `narrow` also NAME_narrow, which computes only the vectors of columns that are used.
    """
    vectors, name = shape.columns // shape.lanes, form.name
    counts = range(1, vectors + 1) if narrow else [vectors]
    texts = [_family(form, shape, count) for count in counts]
    if narrow:
        cases = (f"    case {count}: {name}{count}(rows, {ARGUMENTS}, part, parts, later); break;" for count in counts)
        given = f"i64 rows, {_signature(form)}, {_prefetch_parameters(form)}, i64 columns"
        head = f"static void {name}_narrow({given}) {{"
        texts += [head, f"  switch ((columns + {shape.lanes - 1}) / {shape.lanes}) {{", *cases, "  }", "}"]
    texts.append(f"#define {name} {name}{vectors}")
    heads = (each.format(bytes=4 * shape.lanes) for each in (HEAD, WORDS_HEAD, form.head))
    return "\n".join([*heads, *texts, ""])


def _signature(form: PackedForm) -> str:
    left, right = f"const {form.left} *a, i64 a_row_stride, i64 a_tap_stride", f"const {form.right} *b, i64 b_stride"
    return f"{left}, {right}, i64 taps, i64 count, {form.total} *tile"


def _prefetch_parameters(form: PackedForm) -> str:
    """The parameters after the signature: what is prefetched, the rows after these or those of a later call."""
    return f"i64 accumulate, i64 part, i64 parts, const {form.right} *later"


def _family(form: PackedForm, shape: TileShape, vectors: int) -> str:
    """The function for `vectors` of columns, and one for each number of rows that fits in the registers."""
    name, k_pack = f"{form.name}{vectors}", form.k_pack
    line = LINE * k_pack // 4  # elements per cache line
    most = min(MAX_TILE_ROWS, shape.rows * shape.columns // (shape.lanes * vectors))
    lines = max(1, shape.columns * k_pack * PREFETCH_STEPS // line)
    prefetch = f"b + taps * all * b_stride + part % lines * each * (taps * all / {PREFETCH_STEPS}) * {line}"
    span = max(1, AT_ONCE // shape.columns)  # words between prefetches: loops around few words cost as much as these
    later = max(1, span * vectors * shape.lanes * k_pack // line)
    later += later > 1  # what follows in a page of keys
    text = [
        *(_rows_text(form, f"{name}_{rows}", rows, shape, vectors) for rows in range(1, most + 1)),
        f"static void {name}(i64 rows, {_signature(form)}, {_prefetch_parameters(form)}) {{",
        f"  const i64 lines = {lines}, all = (count + {k_pack - 1}) / {k_pack};  /* per {PREFETCH_STEPS} words */",
        f"  i64 each = later ? {later} : parts <= 1 && rows <= {STREAMED_ROWS} ? 0"
        " : parts < lines ? (lines + parts - 1) / (parts + !parts) : 1;",
        f"  i64 span = later ? {span} : {PREFETCH_STEPS};  /* processors drop prefetches if too many wait */",
        f"  const {form.right} *prefetch = later ? later : {prefetch};",
        "  for (i64 part_rows; rows > 0;"
        f" rows -= part_rows, a += part_rows * a_row_stride, tile += part_rows * {shape.columns}) {{",
        f"    const i64 tiles = (rows + {most - 1}) / {most};",
        "    switch (part_rows = (rows + tiles - 1) / tiles) {",
        *(
            f"      case {rows}: {name}_{rows}({ARGUMENTS}, prefetch, each, span); break;"
            for rows in range(1, most + 1)
        ),
        "    }",
        f"    if (later) each = 0, span = {PREFETCH_STEPS};  /* the first tile's steps have prefetched all */",
        "  }",
        "}",
    ]
    return "\n".join(text)


def _rows_text(form: PackedForm, name: str, rows: int, shape: TileShape, vectors: int) -> str:
    """`each` prefetches per `span` words; a partial last word is copied."""
    prefix, k_pack, totals = form.name, form.k_pack, form.totals
    names = [[f"c{i}_{j}" for j in range(vectors)] for i in range(rows)]
    firsts = range(0, rows, 3)
    places = [f"a{i - i % 3} + {i % 3} * row" if i % 3 else f"a{i}" for i in range(rows)]
    step = [
        f"    const {prefix}_right b{j} ="
        f" {prefix}_unpack_right(*(const smelt_words *)(b + {k_pack * shape.lanes * j}));"
        for j in range(vectors)
    ]
    for i in range(rows):
        sums = " ".join(f"{each} = {prefix}_dot({each}, x, b{j});" for j, each in enumerate(names[i]))
        step.append(
            f"    {{ const {prefix}_left x = {prefix}_unpack_left(*(const smelt_word *)({places[i]})); {sums} }}"
        )
    tiles = [
        (f"tile + {shape.columns * i + shape.lanes * j}", names[i][j]) for i in range(rows) for j in range(vectors)
    ]
    lines = [
        f"static void {name}({_signature(form)}, i64 accumulate, const {form.right} *prefetch, i64 each, i64 span) {{",
        f"  {totals} " + ", ".join(f"{each} = {{0}}" for row in names for each in row) + ";",
        f"  const i64 rest = count % {k_pack};",
        f"  ui32 last[{rows}];",
        "  for (i64 t = 0; t < taps; t++, a += a_tap_stride)",
        "  for (i64 whole = 1; whole >= !rest; whole--) {",
        f"  const {form.left} *from = a; i64 row = a_row_stride, all = count / {k_pack};",
        "  if (!whole) {",
        f"    for (i64 i = 0; i < {rows}; i++) last[i] = {prefix}_last(a + i * a_row_stride + all * {k_pack}, rest);",
        f"    from = (const {form.left} *)last, row = {k_pack}, all = 1;",
        "  }",
        *(f"  const {form.left} *a{i} = from + {i} * row;" for i in firsts),
        "  for (i64 k = 0; k < all; k += span) {",
        f"  SMELT_NO_UNROLL for (i64 l = 0; l < each; l++, prefetch += {LINE * k_pack // 4}) "
        "__builtin_prefetch(prefetch, 0, 2);",
        "  const i64 steps = all - k < span ? all - k : span;",
        "  SMELT_NO_UNROLL for (i64 s = 0; s < steps; s++) {",
        *step,
        "    b += b_stride; " + " ".join(f"a{i} += {k_pack};" for i in firsts),
        "  }",
        "  }",
        "  }",
        "  if (accumulate) {",
        *(f"    *({totals} *)({place}) = *({totals} *)({place}) + {each};" for place, each in tiles),
        "  } else {",
        *(f"    *({totals} *)({place}) = {each};" for place, each in tiles),
        "  }",
        "}",
    ]
    return "\n".join(lines)
