"""Register tiles of narrow elements as C: `tile[i][j] = sum over k of a[i, k] * b[k, j]`, several steps to a word.

`words_text` writes the loops of every such form (`Words`). Here is that of bytes: a of ui8, b of i8, sums of i32, four
steps of a column side by side, so a lane takes four products at once. Where the processor has an instruction for that
(VNNI) a step is one; else pairs are multiplied as i16 (AVX2, AVX-512), else lane by lane. All of them are exact, so all
give the same bits. `emit_c` adds the text to programs that multiply bytes; `tile_bf16_c` has the other form.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.kernel.emit.tile_f32 import HEAD, HIGHEST, STEPS, TileShape

LINE = 64  # bytes that one request brings

WORDS_HEAD = """\
#ifndef SMELT_INLINE
#define SMELT_INLINE static inline __attribute__((always_inline))
typedef i32 smelt_words __attribute__((vector_size({bytes}), aligned(1), may_alias));
typedef ui32 smelt_word __attribute__((aligned(1), may_alias));
#endif"""

BYTES_HEAD = """\
typedef i16 smelt_shorts __attribute__((vector_size({bytes}), aligned(1), may_alias));
#if !defined(SMELT_PLAIN) && {bytes} == 64 && defined(__AVX512VNNI__)
#define SMELT_VNNI
#define SMELT_DOT __builtin_ia32_vpdpbusd512
#elif !defined(SMELT_PLAIN) && {bytes} == 32 && \\
    (defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)))
#define SMELT_VNNI
#define SMELT_DOT __builtin_ia32_vpdpbusd256
#elif !defined(SMELT_PLAIN) && (({bytes} == 64 && defined(__AVX512BW__)) || ({bytes} == 32 && defined(__AVX2__)))
#define SMELT_PAIRS
#endif
#ifdef SMELT_VNNI
typedef smelt_words smelt_bytes_left; typedef smelt_words smelt_bytes_right;
SMELT_INLINE smelt_bytes_left smelt_bytes_open_left(ui32 x) {{ return (i32)x - (smelt_words){{0}}; }}
SMELT_INLINE smelt_bytes_right smelt_bytes_open_right(smelt_words b) {{ return b; }}
SMELT_INLINE smelt_words smelt_bytes_dot(smelt_words c, smelt_bytes_left a, smelt_bytes_right b) {{
#if defined(__clang__) && __clang_major__ < 21
  return SMELT_DOT(c, a, b);
#else
  __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#endif
}}
#elif defined(SMELT_PAIRS)
typedef struct {{ smelt_words even, odd; }} smelt_bytes_left; typedef smelt_bytes_left smelt_bytes_right;
SMELT_INLINE smelt_bytes_left smelt_bytes_open_left(ui32 x) {{
  const smelt_words all = (i32)x - (smelt_words){{0}};
  return (smelt_bytes_left){{ all & 0x00ff00ff, (smelt_words)((smelt_shorts)all >> 8) & 0x00ff00ff }};
}}
SMELT_INLINE smelt_bytes_right smelt_bytes_open_right(smelt_words b) {{
  return (smelt_bytes_right){{ (smelt_words)(((smelt_shorts)b << 8) >> 8), (smelt_words)((smelt_shorts)b >> 8) }};
}}
SMELT_INLINE smelt_words smelt_pairs(smelt_words a, smelt_words b) {{
  smelt_words sum;
  __asm__("vpmaddwd %2, %1, %0" : "=v"(sum) : "v"(a), "v"(b));
  return sum;
}}
SMELT_INLINE smelt_words smelt_bytes_dot(smelt_words c, smelt_bytes_left a, smelt_bytes_right b) {{
  return c + smelt_pairs(a.even, b.even) + smelt_pairs(a.odd, b.odd);
}}
#else
typedef struct {{ i32 steps[4]; }} smelt_bytes_left; typedef struct {{ smelt_words steps[4]; }} smelt_bytes_right;
SMELT_INLINE smelt_bytes_left smelt_bytes_open_left(ui32 x) {{
  return (smelt_bytes_left){{{{ x & 255, x >> 8 & 255, x >> 16 & 255, x >> 24 }}}};
}}
SMELT_INLINE smelt_bytes_right smelt_bytes_open_right(smelt_words b) {{
  return (smelt_bytes_right){{{{ (b << 24) >> 24, (b << 16) >> 24, (b << 8) >> 24, b >> 24 }}}};
}}
SMELT_INLINE smelt_words smelt_bytes_dot(smelt_words c, smelt_bytes_left a, smelt_bytes_right b) {{
  return c + (a.steps[0] * b.steps[0] + a.steps[1] * b.steps[1]) + (a.steps[2] * b.steps[2] + a.steps[3] * b.steps[3]);
}}
#endif
SMELT_INLINE ui32 smelt_bytes_last(const ui8 *a, i64 rest) {{
  return a[0] | (rest > 1 ? (ui32)a[1] << 8 : 0) | (rest > 2 ? (ui32)a[2] << 16 : 0);
}}"""


@dataclass(frozen=True, slots=True)
class Words:
    """Elements of which `together` are a word of 32 bits. `head` has, each beginning with the name of the form: the
    types `_left` and `_right` of what a word and a vector of words are opened to (`_open_left`, `_open_right`), `_dot`,
    which adds the products of both to a vector of sums, and `_last`, a word of fewer elements, the others zero."""

    name: str
    together: int
    left: str  # the C types of a's elements,
    right: str  # b's,
    total: str  # a sum
    totals: str  # and a vector of sums
    head: str


BYTES = Words("smelt_bytes", 4, "ui8", "i8", "i32", "smelt_words", BYTES_HEAD)
GIVEN = "a, a_row, a_turn, b, b_step, turns, count, tile, join"


def bytes_text(shape: TileShape, *, some: bool = False) -> str:
    """`smelt_bytes` for any number of rows, and what it calls; `some` as for `words_text`."""
    return words_text(BYTES, shape, some=some)


def words_text(words: Words, shape: TileShape, *, some: bool = False) -> str:
    """A function of the form's name for any number of rows, and what it calls.

    With `some` also one with `_some` in its name, which leaves out the vectors of columns that nobody needs.
    """
    vectors, name = shape.columns // shape.lanes, words.name
    counts = range(1, vectors + 1) if some else [vectors]
    texts = [_family(words, shape, count) for count in counts]
    if some:
        cases = (f"    case {count}: {name}{count}(rows, {GIVEN}, part, parts); break;" for count in counts)
        head = f"static void {name}_some(i64 rows, {_signature(words)}, i64 join, i64 part, i64 parts, i64 columns) {{"
        texts += [head, f"  switch ((columns + {shape.lanes - 1}) / {shape.lanes}) {{", *cases, "  }", "}"]
    texts.append(f"#define {name} {name}{vectors}")
    heads = (each.format(bytes=4 * shape.lanes) for each in (HEAD, WORDS_HEAD, words.head))
    return "\n".join([*heads, *texts, ""])


def _signature(words: Words) -> str:
    left, right = f"const {words.left} *a, i64 a_row, i64 a_turn", f"const {words.right} *b, i64 b_step"
    return f"{left}, {right}, i64 turns, i64 count, {words.total} *tile"


def _family(words: Words, shape: TileShape, vectors: int) -> str:
    """The function for so many vectors of columns, and one for each height that its registers can hold."""
    name, together = f"{words.name}{vectors}", words.together
    line = LINE * together // 4  # elements that one request brings
    most = min(HIGHEST, shape.rows * shape.columns // (shape.lanes * vectors))
    lines = max(1, shape.columns * together * STEPS // line)
    ahead = f"b + turns * all * b_step + part % lines * each * (turns * all / {STEPS}) * {line}"
    text = [
        *(_rows_text(words, f"{name}_{rows}", rows, shape, vectors) for rows in range(1, most + 1)),
        f"static void {name}(i64 rows, {_signature(words)}, i64 join, i64 part, i64 parts) {{",
        f"  const i64 lines = {lines}, all = (count + {together - 1}) / {together};  /* {STEPS} words use that up */",
        "  const i64 each = parts < lines ? (lines + parts - 1) / (parts + !parts) : 1;",
        f"  const {words.right} *ahead = {ahead};",
        f"  for (i64 height; rows > 0; rows -= height, a += height * a_row, tile += height * {shape.columns}) {{",
        f"    const i64 tiles = (rows + {most - 1}) / {most};",
        "    switch (height = (rows + tiles - 1) / tiles) {",
        *(f"      case {rows}: {name}_{rows}({GIVEN}, ahead, each); break;" for rows in range(1, most + 1)),
        "    }",
        "  }",
        "}",
    ]
    return "\n".join(text)


def _rows_text(words: Words, name: str, rows: int, shape: TileShape, vectors: int) -> str:
    """Words go in fours, each with a request for lines of what comes next; a last word that is not full is copied."""
    form, together, totals = words.name, words.together, words.totals
    names = [[f"c{i}_{j}" for j in range(vectors)] for i in range(rows)]
    firsts = range(0, rows, 3)
    places = [f"a{i - i % 3} + {i % 3} * row" if i % 3 else f"a{i}" for i in range(rows)]
    step = [
        f"    const {form}_right b{j} = {form}_open_right(*(const smelt_words *)(b + {together * shape.lanes * j}));"
        for j in range(vectors)
    ]
    for i in range(rows):
        sums = " ".join(f"{each} = {form}_dot({each}, x, b{j});" for j, each in enumerate(names[i]))
        step.append(f"    {{ const {form}_left x = {form}_open_left(*(const smelt_word *)({places[i]})); {sums} }}")
    tiles = [
        (f"tile + {shape.columns * i + shape.lanes * j}", names[i][j]) for i in range(rows) for j in range(vectors)
    ]
    lines = [
        f"static void {name}({_signature(words)}, i64 join, const {words.right} *ahead, i64 each) {{",
        f"  {totals} " + ", ".join(f"{each} = {{0}}" for row in names for each in row) + ";",
        f"  const i64 rest = count % {together};",
        f"  ui32 last[{rows}];",
        "  for (i64 t = 0; t < turns; t++, a += a_turn)",
        "  for (i64 whole = 1; whole >= !rest; whole--) {",
        f"  const {words.left} *from = a; i64 row = a_row, all = count / {together};",
        "  if (!whole) {",
        f"    for (i64 i = 0; i < {rows}; i++) last[i] = {form}_last(a + i * a_row + all * {together}, rest);",
        f"    from = (const {words.left} *)last, row = {together}, all = 1;",
        "  }",
        *(f"  const {words.left} *a{i} = from + {i} * row;" for i in firsts),
        f"  for (i64 k = 0; k < all; k += {STEPS}) {{",
        f"  SMELT_AS_IT_IS for (i64 l = 0; l < each; l++, ahead += {LINE * together // 4}) "
        "__builtin_prefetch(ahead, 0, 2);",
        f"  const i64 steps = all - k < {STEPS} ? all - k : {STEPS};",
        "  SMELT_AS_IT_IS for (i64 s = 0; s < steps; s++) {",
        *step,
        "    b += b_step; " + " ".join(f"a{i} += {together};" for i in firsts),
        "  }",
        "  }",
        "  }",
        "  if (join) {",
        *(f"    *({totals} *)({place}) = *({totals} *)({place}) + {each};" for place, each in tiles),
        "  } else {",
        *(f"    *({totals} *)({place}) = {each};" for place, each in tiles),
        "  }",
        "}",
    ]
    return "\n".join(lines)
