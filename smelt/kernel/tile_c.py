"""Register tiles as C: the innermost loop of products, one straight-line function per number of rows.

`tile[i][j] = sum over k of a[i, k] * b[k, j]`, k in order, one multiply-add each; builders call it for blocks whose
sums are added up in order too (which keeps rounding small and what is read near). So a result depends on its row and
its column alone, whatever the tile's height. Vectors are the compiler's own extension: one text for every processor.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.target import Target

BLOCK = 256  # steps that are summed before the sum joins the others: their rows of b stay in the nearest cache
STEPS = 4  # between two requests for what comes next
LINE = 16  # floats that one request brings

HEAD = """\
#ifndef SMELT_FMA
typedef f32 smelt_vector __attribute__((vector_size({bytes}), aligned(4)));
#if !defined(SMELT_PLAIN) && (defined(__FMA__) || defined(__aarch64__))
#ifdef __clang__
#define SMELT_FMA(a, b, c) __builtin_elementwise_fma(a, b, c)
#define SMELT_FUSED
#else
#define SMELT_FMA(a, b, c) ((a) * (b) + (c))
#define SMELT_FUSED __attribute__((optimize("fp-contract=fast")))
#endif
#else
#define SMELT_FMA(a, b, c) ((a) * (b) + (c))
#define SMELT_FUSED
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
        return TileShape(12, 32, 16)
    if target.vector_bytes >= 32:
        return TileShape(6, 16, 8)
    return TileShape(6, 16, 4) if target.name in ("aarch64", "arm64") else TileShape(4, 8, 4)


SIGNATURE = "const f32 *a, i64 a_row, i64 a_turn, i64 a_step, const f32 *b, i64 b_step, i64 turns, i64 count, f32 *tile"
GIVEN = "a, a_row, a_turn, a_step, b, b_step, turns, count, tile, join, ahead, each"


def product_text(shape: TileShape) -> str:
    """`smelt_product` for any number of rows, and what it calls."""
    heights = range(1, shape.rows + 1)
    next_tile = f"rows -= {shape.rows}, a += {shape.rows} * a_row, tile += {shape.rows * shape.columns}"
    lines = [
        HEAD.format(bytes=4 * shape.lanes),
        *(_rows_text(rows, shape) for rows in heights),
        f"static void smelt_product(i64 rows, {SIGNATURE}, i64 join, i64 part, i64 parts) {{",
        f"  const i64 lines = {max(1, shape.columns * STEPS // LINE)};  /* that {STEPS} steps use up */",
        "  const i64 each = parts < lines ? (lines + parts - 1) / (parts + !parts) : 1;",
        f"  const f32 *ahead = b + turns * count * b_step + part % lines * each * (turns * count / {STEPS}) * {LINE};",
        f"  for (; rows > {shape.rows}; {next_tile}) smelt_product_{shape.rows}({GIVEN});",
        "  switch (rows) {",
        *(f"    case {rows}: smelt_product_{rows}({GIVEN}); break;" for rows in heights),
        "  }",
        "}",
    ]
    return "\n".join([*lines, ""])


def _rows_text(rows: int, shape: TileShape) -> str:
    """Steps go in fours, each with a request for a line of what comes next; unrolled they would need more registers."""
    vectors = shape.columns // shape.lanes
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
        f"SMELT_FUSED static void smelt_product_{rows}({SIGNATURE}, i64 join, const f32 *ahead, i64 each) {{",
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
