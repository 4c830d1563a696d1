"""f32 micro-kernel as C: a register tile of rows x columns, one straight-line function per number of rows.

`tile[i][j] = sum over k of a[i, k] * b[k, j]`, k in order, one FMA each. Builders call it per K-block and add up the
blocks in order, so a result depends on its row and column alone, whatever the tile's rows. b may have 16 bits (f16,
bf16): a vector is widened as it is loaded. Vectors are the compiler's own extension: one text for every processor.
`emit.c` adds the text to programs that call it.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.target import TileShape

PREFETCH_STEPS = 4  # steps between two prefetches
LINE = 64  # bytes
MAX_TILE_ROWS = 12  # even where registers allow more
# Up to this number of rows memory is the limit; panels are one stream, which the processor prefetches by itself.
STREAMED_ROWS = 4

HEAD = """\
#ifndef SMELT_FMA
typedef f32 smelt_vector __attribute__((vector_size({bytes}), aligned(4)));
#if !defined(SMELT_PLAIN) && (defined(__FMA__) || defined(__aarch64__))
#ifdef __clang__
#define SMELT_FMA(a, b, c) __builtin_elementwise_fma(a, b, c)
#else  /* not a * b + c under fp-contract=fast: gcc contracts it in some functions and not in others */
typedef f32 smelt_lanes __attribute__((vector_size({bytes})));
static inline smelt_vector smelt_fma(smelt_lanes a, smelt_lanes b, smelt_lanes c) {{
#if defined(__aarch64__)
  return (smelt_vector)__builtin_aarch64_fmav4sf(a, b, c);
#elif {bytes} == 64 && defined(__AVX512F__)
  return (smelt_vector)__builtin_ia32_vfmaddps512_mask(a, b, c, 0xffff, 4);
#elif {bytes} == 32
  return (smelt_vector)__builtin_ia32_vfmaddps256(a, b, c);
#elif {bytes} == 16
  return (smelt_vector)__builtin_ia32_vfmaddps(a, b, c);
#else  /* wider than the processor's registers */
  for (int i = 0; i < {bytes} / 4; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return (smelt_vector)c;
#endif
}}
#define SMELT_FMA(a, b, c) smelt_fma((smelt_lanes)(a), (smelt_lanes)(b), (smelt_lanes)(c))
#endif
#else
#define SMELT_FMA(a, b, c) ((a) * (b) + (c))
#endif
#endif
#ifndef SMELT_NO_UNROLL
#ifdef __clang__
#define SMELT_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define SMELT_NO_UNROLL _Pragma("GCC unroll 1")
#endif
#endif"""

WIDEN_HEAD = """\
#ifndef SMELT_WIDEN
#define SMELT_WIDEN
typedef ui32 smelt_codes __attribute__((vector_size({bytes}), aligned(1), may_alias));
typedef ui16 smelt_halves __attribute__((vector_size({half}), aligned(1), may_alias));
static inline __attribute__((always_inline)) smelt_vector smelt_widen_bf16(const void *p) {{
  return (smelt_vector)(__builtin_convertvector(*(const smelt_halves *)p, smelt_codes) << 16);
}}
static inline __attribute__((always_inline)) smelt_vector smelt_widen_f16(const void *p) {{
#if !defined(SMELT_PLAIN) && (({bytes} == 64 && defined(__AVX512F__)) || ({bytes} == 32 && defined(__F16C__)))
  smelt_vector x;
  __asm__("vcvtph2ps %1, %0" : "=v"(x) : "m"(*(const smelt_halves *)p));
  return x;
#else
  const smelt_codes bits = __builtin_convertvector(*(const smelt_halves *)p, smelt_codes);
  const smelt_codes size = (bits & 0x7fff) << 13, all = (smelt_codes)(size >= 31u << 23);
  const smelt_codes finite = (smelt_codes)((smelt_vector)size * 0x1p112f);
  return (smelt_vector)((finite & ~all) | ((size | 0x7f800000) & all) | (bits & 0x8000) << 16);
#endif
}}
#endif"""

SIGNATURE = (
    "const f32 *a, i64 a_row_stride, i64 a_tap_stride, i64 a_stride, const {right} *b, i64 b_stride, i64 taps, "
    "i64 count, f32 *tile"
)
ARGUMENTS = "a, a_row_stride, a_tap_stride, a_stride, b, b_stride, taps, count, tile, accumulate"


@dataclass(frozen=True, slots=True)
class Right:
    """The elements of b: their C type, bytes, and what loads a vector of them as f32."""

    name: str  # of the micro-kernel
    type: str = "f32"
    bytes: int = 4
    load: str = "*(const smelt_vector *)({0})"

    @property
    def signature(self) -> str:
        return SIGNATURE.format(right=self.type)

    @property
    def prefetched(self) -> str:
        """The parameters after the signature: what is prefetched, the rows after these or those of a later call."""
        return f"i64 accumulate, i64 part, i64 parts, const {self.type} *later"

    def head(self, shape: TileShape) -> str:
        texts = [HEAD] if self.bytes == 4 else [HEAD, WIDEN_HEAD]
        return "\n".join(each.format(bytes=4 * shape.lanes, half=2 * shape.lanes) for each in texts)


F32 = Right("smelt_mma_f32")
F32_F16 = Right("smelt_mma_f32_f16", "ui16", 2, "smelt_widen_f16({0})")
F32_BF16 = Right("smelt_mma_f32_bf16", "ui16", 2, "smelt_widen_bf16({0})")
RIGHTS = {each.name: each for each in (F32, F32_F16, F32_BF16)}


def mma_f32_text(shape: TileShape, *, narrow: bool = False, right: Right = F32) -> str:
    """`smelt_mma_f32` for any number of rows, and its callees.

    With `narrow` also `smelt_mma_f32_narrow`, which computes only the vectors of columns that are used.
    """
    vectors = shape.columns // shape.lanes
    families = [_family(shape, count, right) for count in (range(1, vectors + 1) if narrow else [vectors])]
    if narrow:
        cases = (
            f"    case {count}: {right.name}{count}(rows, {ARGUMENTS}, part, parts, later); break;"
            for count in range(1, vectors + 1)
        )
        given = f"i64 rows, {right.signature}, {right.prefetched}, i64 columns"
        head = f"static void {right.name}_narrow({given}) {{"
        families += [head, f"  switch ((columns + {shape.lanes - 1}) / {shape.lanes}) {{", *cases, "  }", "}"]
    families.append(f"#define {right.name} {right.name}{vectors}")
    return "\n".join([right.head(shape), *families, ""])


def mma_f32_f16_text(shape: TileShape, *, narrow: bool = False) -> str:
    """The same by f16."""
    return mma_f32_text(shape, narrow=narrow, right=F32_F16)


def mma_f32_bf16_text(shape: TileShape, *, narrow: bool = False) -> str:
    """The same by bf16."""
    return mma_f32_text(shape, narrow=narrow, right=F32_BF16)


def mma_panel_text(shape: TileShape, panel: int) -> str:
    """`smelt_mma_f32_by{panel}` and `_narrow`: for panels wider than the register tile, in blocks of its columns.

    The panel is cache-resident, so nothing is prefetched. The rows of a read tile stay in L1 for all blocks.
    """
    vectors, lanes, name = shape.columns // shape.lanes, shape.lanes, f"smelt_mma_f32_by{panel}"
    rows, counts = range(1, shape.rows + 1), range(1, vectors + 1)
    given = f"i64 rows, {F32.signature}, {F32.prefetched}"
    text = [_rows_text(f"{name}_{count}_{each}", each, shape, count, F32, panel) for count in counts for each in rows]
    for count in counts:
        text += [
            f"static void {name}_{count}(i64 rows, {F32.signature}, i64 accumulate) {{",
            "  switch (rows) {",
            *(f"    case {each}: {name}_{count}_{each}({ARGUMENTS}, b, 0); break;" for each in rows),
            "  }",
            "}",
        ]
    block = "part_rows, a, a_row_stride, a_tap_stride, a_stride, b + j, b_stride, taps, count, tile + j, accumulate"
    text += [
        f"static void {name}_narrow({given}, i64 columns) {{",
        "  (void)part; (void)parts; (void)later;",
        f"  for (i64 tiles = (rows + {shape.rows - 1}) / {shape.rows}, part_rows; tiles > 0; tiles--) {{",
        "    part_rows = (rows + tiles - 1) / tiles;",
        "    for (i64 j = 0; j < columns;)",
        f"      switch (columns - j > {shape.columns - lanes} ? {vectors} : (columns - j + {lanes - 1}) / {lanes}) {{",
        *(f"        case {count}: {name}_{count}({block}); j += {count * lanes}; break;" for count in counts),
        "      }",
        f"    rows -= part_rows, a += part_rows * a_row_stride, tile += part_rows * {panel};",
        "  }",
        "}",
        f"static inline void {name}({given}) {{",
        f"  {name}_narrow(rows, {ARGUMENTS}, part, parts, later, {panel});",
        "}",
    ]
    return "\n".join([HEAD.format(bytes=4 * lanes), *text, ""])


def mma_panels_text(shape: TileShape, right: Right, *, narrow: bool) -> str:
    """`smelt_mma_f32_panels`: several panels. A few rows pass two of them side by side.

    They prefetch nothing: b is read once and in order, which the processor foresees.
    """
    name, rows = f"{right.name}_panels", range(1, shape.few_rows + 1)
    given = f"rows, {ARGUMENTS}, part, parts, later"
    strides = "i64 panels, i64 b_panel_stride, i64 tile_panel_stride"
    text = [_pair_text(f"{right.name}_pair_{each}", each, shape, right) for each in rows]
    pairs = [f"{right.name}_pair_{each}({ARGUMENTS}, b_panel_stride, tile_panel_stride)" for each in rows]
    for ending in ("", "_narrow") if narrow else ("",):
        more = ", i64 columns" if ending else ""
        used = f", panels > 1 ? {shape.columns} : columns" if ending else ""
        text += [
            f"static void {name}{ending}(i64 rows, {right.signature}, {right.prefetched}, {strides}{more}) {{",
            "  i64 step;",
            "  for (; panels > 0; panels -= step, b += step * b_panel_stride, tile += step * tile_panel_stride)",
            "    switch (step = 2, panels > 1 ? rows : 0) {",
            *(f"      case {each}: {call}; break;" for each, call in zip(rows, pairs, strict=True)),
            f"      default: step = 1; {right.name}{ending}({given}{used});",
            "    }",
            "}",
        ]
    return "\n".join([*text, ""])


def _pair_text(name: str, rows: int, shape: TileShape, right: Right) -> str:
    """A few rows by two panels."""
    vectors = [(p, lane) for p in range(2) for lane in range(0, shape.columns, shape.lanes)]
    names = [[f"c{i}_{j}" for j in range(len(vectors))] for i in range(rows)]
    step = [f"    const smelt_vector x{i} = a[{i} * a_row_stride] - (smelt_vector){{0}};" for i in range(rows)]
    for j, (p, lane) in enumerate(vectors):
        vector = right.load.format(f"{'b_next' if p else 'b'} + {lane}")
        sums = " ".join(f"c{i}_{j} = SMELT_FMA(x{i}, y, c{i}_{j});" for i in range(rows))
        step.append(f"    {{ const smelt_vector y = {vector}; {sums} }}")
    tiles = [
        (f"tile + {p} * tile_panel_stride + {shape.columns * i + lane}", names[i][j])
        for i in range(rows)
        for j, (p, lane) in enumerate(vectors)
    ]
    lines = [
        f"static void {name}({right.signature}, i64 accumulate, i64 b_panel_stride, i64 tile_panel_stride) {{",
        "  smelt_vector " + ", ".join(f"{name} = {{0}}" for row in names for name in row) + ";",
        f"  const {right.type} *b_next = b + b_panel_stride;",
        "  for (i64 t = 0; t < taps; t++, a += a_tap_stride - count * a_stride)",
        "  SMELT_NO_UNROLL for (i64 k = 0; k < count; k++, a += a_stride, b += b_stride, b_next += b_stride) {",
        *step,
        "  }",
        *(
            f"  *(smelt_vector *)({place}) = accumulate ? *(smelt_vector *)({place}) + {name} : {name};"
            for place, name in tiles
        ),
    ]
    return "\n".join([*lines, "}"])


def _family(shape: TileShape, vectors: int, right: Right) -> str:
    """`smelt_mma_f32{vectors}`, and one function for each number of rows that fits in the registers."""
    name, line = f"{right.name}{vectors}", LINE // right.bytes
    most = min(MAX_TILE_ROWS, shape.rows * shape.columns // (shape.lanes * vectors))
    lines = shape.columns * PREFETCH_STEPS // line
    text = [
        *(_rows_text(f"{name}_{rows}", rows, shape, vectors, right) for rows in range(1, most + 1)),
        f"static void {name}(i64 rows, {right.signature}, {right.prefetched}) {{",
        f"  const i64 lines = {max(1, lines)};  /* per {PREFETCH_STEPS} steps */",
        f"  i64 tiles = (rows + {most - 1}) / {most}, all = parts * tiles, number = part * tiles;",
        f"  i64 each = later ? {max(1, vectors * shape.lanes * PREFETCH_STEPS // line)}"
        f" : parts <= 1 && rows <= {STREAMED_ROWS} ? 0 : all < lines ? (lines + all - 1) / (all + !all) : 1;",
        f"  const i64 steps = taps * count / {PREFETCH_STEPS} * each * {line};",
        "  for (i64 part_rows; tiles > 0; tiles--, rows -= part_rows, a += part_rows * a_row_stride) {",
        f"    const {right.type} *prefetch = later ? later : b + taps * count * b_stride + number++ % lines * steps;",
        "    switch (part_rows = (rows + tiles - 1) / tiles) {",
        *(f"      case {rows}: {name}_{rows}({ARGUMENTS}, prefetch, each); break;" for rows in range(1, most + 1)),
        "    }",
        f"    tile += part_rows * {shape.columns};",
        "    if (later) each = 0;  /* the first tile's steps have prefetched all */",
        "  }",
        "}",
    ]
    return "\n".join(text)


def _rows_text(name: str, rows: int, shape: TileShape, vectors: int, right: Right, panel: int = 0) -> str:
    """One prefetch per `PREFETCH_STEPS` steps. Not unrolled: that would need more registers."""
    row = panel or shape.columns  # of the tile
    names = [[f"c{i}_{j}" for j in range(vectors)] for i in range(rows)]
    loaded = [right.load.format(f"b + {shape.lanes * j}") for j in range(vectors)]
    step = [f"    const smelt_vector b{j} = {vector};" for j, vector in enumerate(loaded)]
    for i in range(rows):
        element = f"a{i - i % 3}[{i % 3} * a_row_stride]" if i % 3 else f"a{i}[0]"
        sums = " ".join(f"{name} = SMELT_FMA(x, b{j}, {name});" for j, name in enumerate(names[i]))
        step.append(f"    {{ const smelt_vector x = {element} - (smelt_vector){{0}}; {sums} }}")
    firsts = range(0, rows, 3)
    step.append("    b += b_stride; " + " ".join(f"a{i} += a_stride;" for i in firsts))
    tiles = [(f"tile + {row * i + shape.lanes * j}", names[i][j]) for i in range(rows) for j in range(vectors)]
    lines = [
        f"static void {name}({right.signature}, i64 accumulate, const {right.type} *prefetch, i64 each) {{",
        "  smelt_vector " + ", ".join(f"{name} = {{0}}" for row in names for name in row) + ";",
        "  for (i64 t = 0; t < taps; t++, a += a_tap_stride) {",
        *(f"  const f32 *a{i} = a + {i} * a_row_stride;" for i in firsts),
        f"  for (i64 k = 0; k < count; k += {PREFETCH_STEPS}) {{",
        f"  SMELT_NO_UNROLL for (i64 l = 0; l < each; l++, prefetch += {LINE // right.bytes})"
        " __builtin_prefetch(prefetch, 0, 2);",
        f"  const i64 steps = count - k < {PREFETCH_STEPS} ? count - k : {PREFETCH_STEPS};",
        "  SMELT_NO_UNROLL for (i64 s = 0; s < steps; s++) {",
        *step,
        "  }",
        "  }",
        "  }",
        "  if (accumulate) {",
        *(f"    *(smelt_vector *)({place}) = *(smelt_vector *)({place}) + {name};" for place, name in tiles),
        "  } else {",
        *(f"    *(smelt_vector *)({place}) = {name};" for place, name in tiles),
        "  }",
    ]
    return "\n".join([*lines, "}"])


def transpose_text(shape: TileShape) -> str:
    """`smelt_transpose`: a matrix transposed in square blocks of whole vectors; the rest element by element.

    A butterfly of log2(lanes) shuffles: stage s swaps lane t of rows i and i + s, bit s set in neither t nor i.
    """
    lanes = shape.lanes
    rows = [f"r{i}" for i in range(lanes)]
    steps: list[str] = []
    size = 1
    while size < lanes:
        low = ", ".join(str(t if not t & size else lanes + t - size) for t in range(lanes))
        high = ", ".join(str(t + size if not t & size else lanes + t) for t in range(lanes))
        for i in (i for i in range(lanes) if not i & size):
            a, b = rows[i], rows[i + size]
            new = f"{a}_", f"{b}_"
            steps += [
                f"      const smelt_vector {name} = __builtin_shufflevector({a}, {b}, {order});"
                for name, order in zip(new, (low, high), strict=True)
            ]
            rows[i], rows[i + size] = new
        size *= 2
    place = "*(const smelt_vector *)(source + (i + {0}) * columns + j)"
    lines = [
        HEAD.format(bytes=4 * lanes),
        "static void smelt_transpose(const f32 *source, i64 rows, i64 columns, f32 *target) {",
        f"  const i64 right = columns / {lanes} * {lanes}, low = rows / {lanes} * {lanes};",
        f"  for (i64 i = 0; i < low; i += {lanes})",
        f"    for (i64 j = 0; j < right; j += {lanes}) {{",
        *(f"      const smelt_vector r{i} = {place.format(i)};" for i in range(lanes)),
        *steps,
        *(f"      *(smelt_vector *)(target + (j + {i}) * rows + i) = {name};" for i, name in enumerate(rows)),
        "    }",
        "  for (i64 i = 0; i < rows; i++)",
        "    for (i64 j = i < low ? right : 0; j < columns; j++) target[j * rows + i] = source[i * columns + j];",
        "}",
    ]
    return "\n".join([*lines, ""])
