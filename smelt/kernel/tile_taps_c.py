"""Register tiles as C: the innermost loop of products, one straight-line function per number of rows.

`tile[i][j] = sum over k of a[i, k] * b[k, j]`, k in order, one multiply-add each, in blocks whose sums are added up in
order too (which keeps rounding small); so a result depends on its row and its column alone, whatever the tile's
height. Vectors are the compiler's own extension: one text for every processor.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.target import Target

BLOCK = 128  # steps that are summed before the sum joins the others


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


def product_text(shape: TileShape, taps: bool) -> str:
    """`smelt_product` or `smelt_product_taps`: for every number of rows up to the tile's, and for any."""
    head = f"""\
#ifndef SMELT_FMA
typedef f32 smelt_vector __attribute__((vector_size({4 * shape.lanes}), aligned(4)));
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
#endif"""
    return "\n".join([head, *_family(shape, taps), ""])


def _name(taps: bool) -> str:
    return "smelt_product_taps" if taps else "smelt_product"


def _signature(taps: bool) -> str:
    more = ", const i64 *taps, i64 tap_count" if taps else ""
    return f"const f32 *a, i64 a_row, i64 a_step, const f32 *b, i64 b_step, i64 count{more}, f32 *tile"


def _family(shape: TileShape, taps: bool) -> list[str]:
    """The functions for 1, 2, … rows, and the one that takes tile after tile and then what is left."""
    name, signature, given = _name(taps), _signature(taps), ", taps, tap_count" if taps else ""
    heights = range(1, shape.rows + 1)
    bodies = [_rows_text(f"{name}_{rows}({signature})", rows, shape, taps) for rows in heights]
    cases = [
        f"    case {rows}: {name}_{rows}(a, a_row, a_step, b, b_step, count{given}, tile); break;" for rows in heights
    ]
    most, next_tile = shape.rows, f"a += {shape.rows} * a_row, tile += {shape.rows * shape.columns}"
    whole = f"{name}_{most}(a, a_row, a_step, b, b_step, count{given}, tile);"
    return [
        *bodies,
        f"static void {name}(i64 rows, {signature}) {{",
        f"  for (; rows > {most}; rows -= {most}, {next_tile}) {whole}",
        "  switch (rows) {",
        *cases,
        "  }",
        "}",
    ]


def _rows_text(head: str, rows: int, shape: TileShape, taps: bool) -> str:
    vectors = shape.columns // shape.lanes
    names = [[f"c{i}_{j}" for j in range(vectors)] for i in range(rows)]
    place = "b + taps[t]" if taps else "b"
    step = [
        f"    const smelt_vector b{j} = *(const smelt_vector *)({place} + {shape.lanes * j});" for j in range(vectors)
    ]
    for i in range(rows):
        element = f"a{i - i % 3}[{i % 3} * a_row]" if i % 3 else f"a{i}[0]"
        sums = " ".join(f"{name} = SMELT_FMA(x, b{j}, {name});" for j, name in enumerate(names[i]))
        step.append(f"    {{ const smelt_vector x = {element} - (smelt_vector){{0}}; {sums} }}")
    step.append("    " + " ".join(f"a{i} += a_step;" for i in range(0, rows, 3)))
    inner = " for (i64 t = 0; t < tap_count; t++)" if taps else ""
    whole = f"{BLOCK} / tap_count + 1" if taps else str(BLOCK)
    tiles = [
        (f"tile + {shape.columns * i + shape.lanes * j}", names[i][j]) for i in range(rows) for j in range(vectors)
    ]
    stores = [f"    *(smelt_vector *)({place}) = {name};" for place, name in tiles]
    joins = [f"    *(smelt_vector *)({place}) = *(smelt_vector *)({place}) + {name};" for place, name in tiles]
    lines = [
        f"SMELT_FUSED static void {head} {{",
        *(f"  const f32 *a{i} = a + {i} * a_row;" for i in range(0, rows, 3)),
        "  i64 done = 0;",
        "  do {",
        f"  const i64 end = count - done < {whole} ? count : done + {whole};",
        "  smelt_vector " + ", ".join(f"{name} = {{0}}" for row in names for name in row) + ";",
        f"  for (i64 k = done; k < end; k++, b += b_step){inner} {{",
        *step,
        "  }",
        "  if (done == 0) {",
        *stores,
        "  } else {",
        *joins,
        "  }",
        "  done = end;",
        "  } while (done < count);",
    ]
    return "\n".join([*lines, "}"])
