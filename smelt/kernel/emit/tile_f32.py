"""Register tiles as C: the innermost loop of products, one straight-line function per number of rows.

`tile[i][j] = sum over k of a[i, k] * b[k, j]`, k in order, one multiply-add each; builders call it for blocks whose
sums are added up in order too (which keeps rounding small and what is read near). So a result depends on its row and
its column alone, whatever the tile's height. Vectors are the compiler's own extension: one text for every processor.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.target import Target

BLOCK = 128  # steps that are summed before the sum joins the others: their rows of b stay in the nearest cache
STEPS = 4  # between two requests for what comes next
LINE = 16  # floats that one request brings
HIGHEST = 12  # rows of a tile, where registers allow more

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
#elif {bytes} == 64
  return (smelt_vector)__builtin_ia32_vfmaddps512_mask(a, b, c, 0xffff, 4);
#elif {bytes} == 32
  return (smelt_vector)__builtin_ia32_vfmaddps256(a, b, c);
#else
  return (smelt_vector)__builtin_ia32_vfmaddps(a, b, c);
#endif
}}
#define SMELT_FMA(a, b, c) smelt_fma((smelt_lanes)(a), (smelt_lanes)(b), (smelt_lanes)(c))
#endif
#else
#define SMELT_FMA(a, b, c) ((a) * (b) + (c))
#endif
#endif
#ifndef SMELT_AS_IT_IS
#ifdef __clang__
#define SMELT_AS_IT_IS _Pragma("clang loop unroll(disable)")
#else
#define SMELT_AS_IT_IS _Pragma("GCC unroll 1")
#endif
#endif"""


@dataclass(frozen=True, slots=True)
class TileShape:
    """The largest register tile: rows, and columns in whole vectors of `lanes` floats."""

    rows: int
    columns: int
    lanes: int


def tile_shape(target: Target) -> TileShape:
    """As large as the registers allow."""
    if target.vector_bytes >= 64:
        return TileShape(6, 64, 16)
    if target.vector_bytes >= 32:
        return TileShape(6, 16, 8)
    return TileShape(6, 16, 4) if target.name in ("aarch64", "arm64") else TileShape(4, 8, 4)


SIGNATURE = "const f32 *a, i64 a_row, i64 a_turn, i64 a_step, const f32 *b, i64 b_step, i64 turns, i64 count, f32 *tile"
GIVEN = "a, a_row, a_turn, a_step, b, b_step, turns, count, tile, join"


def product_text(shape: TileShape, *, some: bool = False) -> str:
    """`smelt_product` for any number of rows, and what it calls.

    With `some` also `smelt_product_some`, which leaves out the vectors of columns that nobody needs.
    """
    vectors = shape.columns // shape.lanes
    families = [_family(shape, count) for count in (range(1, vectors + 1) if some else [vectors])]
    if some:
        cases = (
            f"    case {count}: smelt_product{count}(rows, {GIVEN}, part, parts); break;"
            for count in range(1, vectors + 1)
        )
        head = f"static void smelt_product_some(i64 rows, {SIGNATURE}, i64 join, i64 part, i64 parts, i64 columns) {{"
        families += [head, f"  switch ((columns + {shape.lanes - 1}) / {shape.lanes}) {{", *cases, "  }", "}"]
    families.append(f"#define smelt_product smelt_product{vectors}")
    return "\n".join([HEAD.format(bytes=4 * shape.lanes), *families, ""])


def _family(shape: TileShape, vectors: int) -> str:
    """`smelt_product{vectors}`, and one function for each height that its registers can hold."""
    name = f"smelt_product{vectors}"
    most = min(HIGHEST, shape.rows * shape.columns // (shape.lanes * vectors))
    lines = shape.columns * STEPS // LINE
    text = [
        *(_rows_text(f"{name}_{rows}", rows, shape, vectors) for rows in range(1, most + 1)),
        f"static void {name}(i64 rows, {SIGNATURE}, i64 join, i64 part, i64 parts) {{",
        f"  const i64 lines = {max(1, lines)};  /* that {STEPS} steps use up */",
        f"  i64 tiles = (rows + {most - 1}) / {most}, all = parts * tiles, number = part * tiles;",
        "  const i64 each = all < lines ? (lines + all - 1) / (all + !all) : 1;",
        f"  const i64 steps = turns * count / {STEPS} * each * {LINE};",
        "  for (i64 height; tiles > 0; tiles--, rows -= height, a += height * a_row) {",
        "    const f32 *ahead = b + turns * count * b_step + number++ % lines * steps;",
        "    switch (height = (rows + tiles - 1) / tiles) {",
        *(f"      case {rows}: {name}_{rows}({GIVEN}, ahead, each); break;" for rows in range(1, most + 1)),
        "    }",
        f"    tile += height * {shape.columns};",
        "  }",
        "}",
    ]
    return "\n".join(text)


def _rows_text(name: str, rows: int, shape: TileShape, vectors: int) -> str:
    """Steps go in fours, each with a request for a line of what comes next; unrolled they would need more registers."""
    names = [[f"c{i}_{j}" for j in range(vectors)] for i in range(rows)]
    step = [f"    const smelt_vector b{j} = *(const smelt_vector *)(b + {shape.lanes * j});" for j in range(vectors)]
    for i in range(rows):
        element = f"a{i - i % 3}[{i % 3} * a_row]" if i % 3 else f"a{i}[0]"
        sums = " ".join(f"{name} = SMELT_FMA(x, b{j}, {name});" for j, name in enumerate(names[i]))
        step.append(f"    {{ const smelt_vector x = {element} - (smelt_vector){{0}}; {sums} }}")
    firsts = range(0, rows, 3)
    step.append("    b += b_step; " + " ".join(f"a{i} += a_step;" for i in firsts))
    tiles = [
        (f"tile + {shape.columns * i + shape.lanes * j}", names[i][j]) for i in range(rows) for j in range(vectors)
    ]
    lines = [
        f"static void {name}({SIGNATURE}, i64 join, const f32 *ahead, i64 each) {{",
        "  smelt_vector " + ", ".join(f"{name} = {{0}}" for row in names for name in row) + ";",
        "  for (i64 t = 0; t < turns; t++, a += a_turn) {",
        *(f"  const f32 *a{i} = a + {i} * a_row;" for i in firsts),
        f"  for (i64 k = 0; k < count; k += {STEPS}) {{",
        f"  SMELT_AS_IT_IS for (i64 l = 0; l < each; l++, ahead += {LINE}) __builtin_prefetch(ahead, 0, 2);",
        f"  const i64 steps = count - k < {STEPS} ? count - k : {STEPS};",
        "  SMELT_AS_IT_IS for (i64 s = 0; s < steps; s++) {",
        *step,
        "  }",
        "  }",
        "  }",
        "  if (join) {",
        *(f"    *(smelt_vector *)({place}) = *(smelt_vector *)({place}) + {name};" for place, name in tiles),
        "  } else {",
        *(f"    *(smelt_vector *)({place}) = {name};" for place, name in tiles),
        "  }",
    ]
    return "\n".join([*lines, "}"])


def turn_text(shape: TileShape) -> str:
    """`smelt_turn`: a matrix turned over, in squares of whole vectors; what is left goes one by one.

    Halves of a square change places, then halves of those: lanes t of rows i and i + s, where s is in neither t nor i.
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
        "static void smelt_turn(const f32 *source, i64 rows, i64 columns, f32 *target) {",
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
