"""Register tiles of bytes as C: `tile[i][j] = sum over k of a[i, k] * b[k, j]` with a of ui8, b of i8 and sums of i32.

Four steps of a column lie side by side, so a lane takes four products at once. Where the processor has an instruction
for that (VNNI) a step is one; else pairs are multiplied as i16 (AVX2, AVX-512), else lane by lane. All of them are
exact, so all give the same bits. `emit_c` adds the text to programs that multiply bytes.
"""

from __future__ import annotations

from smelt.kernel.tile_c import HEAD, HIGHEST, STEPS, TileShape

LINE = 64  # bytes that one request brings

BYTES_HEAD = """\
typedef i32 smelt_words __attribute__((vector_size({bytes}), aligned(1), may_alias));
typedef i16 smelt_shorts __attribute__((vector_size({bytes}), aligned(1), may_alias));
typedef ui32 smelt_word __attribute__((aligned(1), may_alias));
#define SMELT_INLINE static inline __attribute__((always_inline))
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
typedef smelt_words smelt_left; typedef smelt_words smelt_right;
SMELT_INLINE smelt_left smelt_open_left(ui32 x) {{ return (i32)x - (smelt_words){{0}}; }}
SMELT_INLINE smelt_right smelt_open_right(smelt_words b) {{ return b; }}
SMELT_INLINE smelt_words smelt_dot(smelt_words c, smelt_left a, smelt_right b) {{
#if defined(__clang__) && __clang_major__ < 21
  return SMELT_DOT(c, a, b);
#else
  __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#endif
}}
#elif defined(SMELT_PAIRS)
typedef struct {{ smelt_words even, odd; }} smelt_left; typedef smelt_left smelt_right;
SMELT_INLINE smelt_left smelt_open_left(ui32 x) {{
  const smelt_words all = (i32)x - (smelt_words){{0}};
  return (smelt_left){{ all & 0x00ff00ff, (smelt_words)((smelt_shorts)all >> 8) & 0x00ff00ff }};
}}
SMELT_INLINE smelt_right smelt_open_right(smelt_words b) {{
  return (smelt_right){{ (smelt_words)(((smelt_shorts)b << 8) >> 8), (smelt_words)((smelt_shorts)b >> 8) }};
}}
SMELT_INLINE smelt_words smelt_pairs(smelt_words a, smelt_words b) {{
  smelt_words sum;
  __asm__("vpmaddwd %2, %1, %0" : "=v"(sum) : "v"(a), "v"(b));
  return sum;
}}
SMELT_INLINE smelt_words smelt_dot(smelt_words c, smelt_left a, smelt_right b) {{
  return c + smelt_pairs(a.even, b.even) + smelt_pairs(a.odd, b.odd);
}}
#else
typedef struct {{ i32 steps[4]; }} smelt_left; typedef struct {{ smelt_words steps[4]; }} smelt_right;
SMELT_INLINE smelt_left smelt_open_left(ui32 x) {{
  return (smelt_left){{{{ x & 255, x >> 8 & 255, x >> 16 & 255, x >> 24 }}}};
}}
SMELT_INLINE smelt_right smelt_open_right(smelt_words b) {{
  return (smelt_right){{{{ (b << 24) >> 24, (b << 16) >> 24, (b << 8) >> 24, b >> 24 }}}};
}}
SMELT_INLINE smelt_words smelt_dot(smelt_words c, smelt_left a, smelt_right b) {{
  return c + (a.steps[0] * b.steps[0] + a.steps[1] * b.steps[1]) + (a.steps[2] * b.steps[2] + a.steps[3] * b.steps[3]);
}}
#endif
SMELT_INLINE ui32 smelt_last(const ui8 *a, i64 rest) {{
  return a[0] | (rest > 1 ? (ui32)a[1] << 8 : 0) | (rest > 2 ? (ui32)a[2] << 16 : 0);
}}"""

SIGNATURE = "const ui8 *a, i64 a_row, i64 a_turn, const i8 *b, i64 b_step, i64 turns, i64 count, i32 *tile"
GIVEN = "a, a_row, a_turn, b, b_step, turns, count, tile, join"


def bytes_text(shape: TileShape, *, some: bool = False) -> str:
    """`smelt_bytes` for any number of rows, and what it calls.

    With `some` also `smelt_bytes_some`, which leaves out the vectors of columns that nobody needs.
    """
    vectors = shape.columns // shape.lanes
    counts = range(1, vectors + 1) if some else [vectors]
    texts = [_family(shape, count) for count in counts]
    if some:
        cases = (f"    case {count}: smelt_bytes{count}(rows, {GIVEN}, part, parts); break;" for count in counts)
        head = f"static void smelt_bytes_some(i64 rows, {SIGNATURE}, i64 join, i64 part, i64 parts, i64 columns) {{"
        texts += [head, f"  switch ((columns + {shape.lanes - 1}) / {shape.lanes}) {{", *cases, "  }", "}"]
    texts.append(f"#define smelt_bytes smelt_bytes{vectors}")
    size = 4 * shape.lanes
    return "\n".join([HEAD.format(bytes=size), BYTES_HEAD.format(bytes=size), *texts, ""])


def _family(shape: TileShape, vectors: int) -> str:
    """`smelt_bytes{vectors}`, and one function for each height that its registers can hold."""
    name = f"smelt_bytes{vectors}"
    most = min(HIGHEST, shape.rows * shape.columns // (shape.lanes * vectors))
    lines = max(1, shape.columns * 4 * STEPS // LINE)
    text = [
        *(_rows_text(f"{name}_{rows}", rows, shape, vectors) for rows in range(1, most + 1)),
        f"static void {name}(i64 rows, {SIGNATURE}, i64 join, i64 part, i64 parts) {{",
        f"  const i64 lines = {lines}, quads = (count + 3) / 4;  /* {STEPS} quads use up so many lines */",
        "  const i64 each = parts < lines ? (lines + parts - 1) / (parts + !parts) : 1;",
        f"  const i8 *ahead = b + turns * quads * b_step + part % lines * each * (turns * quads / {STEPS}) * {LINE};",
        f"  for (i64 height; rows > 0; rows -= height, a += height * a_row, tile += height * {shape.columns}) {{",
        f"    const i64 tiles = (rows + {most - 1}) / {most};",
        "    switch (height = (rows + tiles - 1) / tiles) {",
        *(f"      case {rows}: {name}_{rows}({GIVEN}, ahead, each); break;" for rows in range(1, most + 1)),
        "    }",
        "  }",
        "}",
    ]
    return "\n".join(text)


def _rows_text(name: str, rows: int, shape: TileShape, vectors: int) -> str:
    """Quads go in fours, each with a request for lines of what comes next; a last quad that is not full is copied."""
    names = [[f"c{i}_{j}" for j in range(vectors)] for i in range(rows)]
    firsts = range(0, rows, 3)
    places = [f"a{i - i % 3} + {i % 3} * row" if i % 3 else f"a{i}" for i in range(rows)]
    step = [
        f"    const smelt_right b{j} = smelt_open_right(*(const smelt_words *)(b + {4 * shape.lanes * j}));"
        for j in range(vectors)
    ]
    for i in range(rows):
        sums = " ".join(f"{each} = smelt_dot({each}, x, b{j});" for j, each in enumerate(names[i]))
        step.append(f"    {{ const smelt_left x = smelt_open_left(*(const smelt_word *)({places[i]})); {sums} }}")
    tiles = [
        (f"tile + {shape.columns * i + shape.lanes * j}", names[i][j]) for i in range(rows) for j in range(vectors)
    ]
    lines = [
        f"static void {name}({SIGNATURE}, i64 join, const i8 *ahead, i64 each) {{",
        "  smelt_words " + ", ".join(f"{each} = {{0}}" for row in names for each in row) + ";",
        "  const i64 rest = count % 4;",
        f"  ui32 last[{rows}];",
        "  for (i64 t = 0; t < turns; t++, a += a_turn)",
        "  for (i64 whole = 1; whole >= !rest; whole--) {",
        "  const ui8 *from = a; i64 row = a_row, quads = count / 4;",
        "  if (!whole) {",
        f"    for (i64 i = 0; i < {rows}; i++) last[i] = smelt_last(a + i * a_row + quads * 4, rest);",
        "    from = (const ui8 *)last, row = 4, quads = 1;",
        "  }",
        *(f"  const ui8 *a{i} = from + {i} * row;" for i in firsts),
        f"  for (i64 k = 0; k < quads; k += {STEPS}) {{",
        f"  SMELT_AS_IT_IS for (i64 l = 0; l < each; l++, ahead += {LINE}) __builtin_prefetch(ahead, 0, 2);",
        f"  const i64 steps = quads - k < {STEPS} ? quads - k : {STEPS};",
        "  SMELT_AS_IT_IS for (i64 s = 0; s < steps; s++) {",
        *step,
        "    b += b_step; " + " ".join(f"a{i} += 4;" for i in firsts),
        "  }",
        "  }",
        "  }",
        "  if (join) {",
        *(f"    *(smelt_words *)({place}) = *(smelt_words *)({place}) + {each};" for place, each in tiles),
        "  } else {",
        *(f"    *(smelt_words *)({place}) = {each};" for place, each in tiles),
        "  }",
        "}",
    ]
    return "\n".join(lines)
