"""Micro-kernels of block-quantised weights as C: 8-bit rows times a panel of 16 columns (`ir.block_layout`).

`tile[i][j]` is what `ir.block_ops` says: groups of codes are summed as integers, then added up in f32, in the order of
k. One straight-line function per class of records and number of rows. A vector has columns in its lanes; four codes of
a column are a word, the unsigned operand. With VNNI four products are one instruction (vpdpbusd), on Arm usdot or sdot
(`tile_int8`). AVX2 and AVX-512
multiply small codes by vpmaddubsw and add up as many i16 as cannot overflow; larger codes are multiplied as i16
(vpmaddwd). Other processors go step by step. All are exact and give the same bits.
"""

from __future__ import annotations

from smelt.ir.block_layout import COLUMNS, LINE, STEPS, Layout, Plane
from smelt.ir.blocks import RUN
from smelt.kernel.emit.tile_f32 import HEAD, WIDEN_HEAD
from smelt.kernel.emit.tile_int8 import ARM_DOT, WORDS_HEAD
from smelt.target import TileShape

LARGEST = 127  # rounded activation
AHEAD = 8192  # bytes of records that are prefetched before they are used
PREFIX = "smelt_block_dot_"

BLOCKS_HEAD = """\
#ifndef SMELT_BLOCKS
#define SMELT_BLOCKS
typedef i16 smelt_block_shorts __attribute__((vector_size({bytes}), aligned(1), may_alias));
typedef i8 smelt_bytes __attribute__((vector_size({quarter}), aligned(1), may_alias));
#if !defined(SMELT_PLAIN) && {bytes} == 64 && defined(__AVX512VNNI__)
#define SMELT_BLOCK_VNNI
#define SMELT_BLOCK_SPREAD "16"
#elif !defined(SMELT_PLAIN) && {bytes} == 32 && \\
    (defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)))
#define SMELT_BLOCK_VNNI
#ifdef __AVX512VL__
#define SMELT_BLOCK_SPREAD "8"
#endif
#elif defined(SMELT_ARM_DOT)
#define SMELT_BLOCK_VNNI
#endif
#if !defined(SMELT_PLAIN) && (({bytes} == 64 && defined(__AVX512BW__)) || ({bytes} == 32 && defined(__AVX2__)))
#define SMELT_BLOCK_SHORTS
#endif
SMELT_INLINE smelt_vector smelt_block_to_f32(smelt_words x) {{ return __builtin_convertvector(x, smelt_vector); }}
SMELT_INLINE smelt_vector smelt_block_integers(smelt_bytes x) {{ return __builtin_convertvector(x, smelt_vector); }}
#ifdef SMELT_BLOCK_VNNI
SMELT_INLINE smelt_words smelt_block_dpbusd(smelt_words c, smelt_codes u, const i8 *x) {{
#if defined(SMELT_USDOT)
  c = smelt_usdot(c, (smelt_words)u, (i32)*(const smelt_word *)x - (smelt_words){{0}});
#elif defined(SMELT_ARM_DOT)
  const smelt_words y = (i32)*(const smelt_word *)x - (smelt_words){{0}};
  c = smelt_sdot(c, smelt_move_unsigned((smelt_words)u), y) + smelt_sum_by_128(y);
#elif defined(SMELT_BLOCK_SPREAD)
  __asm__("vpdpbusd %2%{{1to" SMELT_BLOCK_SPREAD "%}}, %1, %0" : "+v"(c) : "v"(u), "m"(*(const smelt_word *)x));
#else
  const smelt_words y = *(const i32 *)x - (smelt_words){{0}};
  __asm__("%{{vex%}} vpdpbusd %2, %1, %0" : "+x"(c) : "x"(u), "x"(y));
#endif
  return c;
}}
#endif
#ifdef SMELT_BLOCK_SHORTS
SMELT_INLINE smelt_block_shorts smelt_block_maddubs(smelt_codes u, smelt_words x) {{
  smelt_block_shorts sum;
  __asm__("vpmaddubsw %2, %1, %0" : "=v"(sum) : "v"(u), "v"(x));
  return sum;
}}
SMELT_INLINE smelt_words smelt_block_maddwd(smelt_block_shorts a, smelt_block_shorts b) {{
  smelt_words sum;
  __asm__("vpmaddwd %2, %1, %0" : "=v"(sum) : "v"(a), "v"(b));
  return sum;
}}
SMELT_INLINE smelt_words smelt_block_wide(smelt_words c, smelt_codes u, smelt_words x) {{
  const smelt_block_shorts s = (smelt_block_shorts)x;
  return c + smelt_block_maddwd((smelt_block_shorts)(u & 0x00ff00ff), (s << 8) >> 8)
    + smelt_block_maddwd((smelt_block_shorts)(u >> 8 & 0x00ff00ff), s >> 8);
}}
SMELT_INLINE smelt_codes smelt_block_lookup(smelt_codes u, smelt_codes table) {{
  smelt_codes found;
  __asm__("vpshufb %1, %2, %0" : "=v"(found) : "v"(u), "v"(table));
  return found;
}}
#else
static __attribute__((noinline)) smelt_codes smelt_block_lookup(smelt_codes u, smelt_codes table) {{
  ui8 from[{bytes}], to[{bytes}];
  __builtin_memcpy(from, &u, {bytes});
  for (int i = 0; i < {bytes}; i++) to[i] = ((const ui8 *)&table)[from[i]];
  __builtin_memcpy(&u, to, {bytes});
  return u;
}}
#endif
SMELT_INLINE smelt_words smelt_block_steps(smelt_words c, smelt_codes u, ui32 x) {{
  const smelt_words codes = (smelt_words)u;
  return c + (codes & 255) * (i8)x + ((codes >> 8) & 255) * (i8)(x >> 8) + ((codes >> 16) & 255) * (i8)(x >> 16)
    + (smelt_words)(u >> 24) * (i8)(x >> 24);
}}
#endif"""

SIGNATURE = "const i8 *q, i64 q_row, const f32 *scale, i64 scale_row, const {total} *total, i64 total_row, const ui8 *w"


def block_dot_text(format: str, shape: TileShape) -> str:
    """`smelt_block_dot_FORMAT` for any number of rows, and its callees."""
    return _Text(Layout.of(format), shape).all()


class _Text:
    """The functions of one class of records on one vector width."""

    def __init__(self, layout: Layout, shape: TileShape) -> None:
        self.layout, self.lanes = layout, shape.lanes
        self.name = PREFIX + layout.row.name
        self.vectors = COLUMNS // shape.lanes
        self.most = {1: 8, 2: 4}.get(self.vectors, 2)  # rows of sums that registers hold
        self.signature = SIGNATURE.format(total="i32" if layout.zero else "f32")

    def all(self) -> str:
        bytes = 4 * self.lanes
        heads = [HEAD, WORDS_HEAD, WIDEN_HEAD, ARM_DOT, BLOCKS_HEAD]
        texts = [each.format(bytes=bytes, half=bytes // 2, quarter=bytes // 4) for each in heads]
        texts += [self.function(rows) for rows in range(1, self.most + 1)]
        given = "q, q_row, scale, scale_row, total, total_row, w, blocks, tile"
        cases = (f"      case {rows}: {self.name}_{rows}({given}); break;" for rows in range(1, self.most + 1))
        moves = "q += part * q_row, scale += part * scale_row, total += part * total_row"
        texts += [
            f"static void {self.name}(i64 rows, {self.signature}, i64 blocks, f32 *tile) {{",
            f"  for (i64 part; rows > 0; rows -= part, {moves}, tile += part * {COLUMNS}) {{",
            f"    const i64 parts = (rows + {self.most - 1}) / {self.most};",
            "    switch (part = (rows + parts - 1) / parts) {",
            *cases,
            "    }",
            "  }",
            "}",
            "",
        ]
        return "\n".join(texts)

    def function(self, rows: int) -> str:
        layout, vectors = self.layout, range(self.vectors)
        units = layout.length // RUN
        firsts = range(0, rows, 3)
        sums = [f"f{i}_{v}" for i in range(rows) for v in vectors]
        lines = [
            f"static void {self.name}_{rows}({self.signature}, i64 blocks, f32 *tile) {{",
            f"  smelt_vector {', '.join(f'{each} = {{0}}' for each in sums)};",
            *(
                f"  const i8 *q{i} = q + {i} * q_row; const f32 *scale{i} = scale + {i} * scale_row;"
                f" const {'i32' if layout.zero else 'f32'} *total{i} = total + {i} * total_row;"
                for i in firsts
            ),
            *self.codebook(),
            f"  SMELT_NO_UNROLL for (i64 b = 0; b < blocks; b++, w += {layout.record}) {{",
            *(f"    const smelt_vector s{v} = {self.half('scale', v)};" for v in vectors),
        ]
        if layout.row.minimum is not None:
            lines += [f"    const smelt_vector m{v} = {self.half('minimum', v)};" for v in vectors]
        lines += [f"    SMELT_NO_UNROLL for (i64 u = 0; u < {units}; u++) {{"] if units > 1 else ["    {"]
        if rows > 1 or layout.group < RUN or len(layout.planes) > 1:
            lines += self.prefetches(units, rows)
        for group in range(RUN // layout.group):
            lines += self.group(rows, group)
        per_unit = RUN // layout.group
        lines += [
            "      " + " ".join(f"q{i} += {RUN}; scale{i}++; total{i} += {per_unit};" for i in firsts),
            "    }",
            "  }",
        ]
        for i in range(rows):
            lines += [f"  *(smelt_vector *)(tile + {COLUMNS * i + self.lanes * v}) = f{i}_{v};" for v in vectors]
        return "\n".join([*lines, "}"])

    def prefetches(self, units: int, rows: int) -> list[str]:
        """The records after these, in equal shares. One row of simple codes needs none: its instructions are so few
        that the processor looks far ahead itself; with more, arithmetic would wait for memory at every page. Several
        rows of activations fill the first cache, so that records then wait in the second one (locality 2)."""
        share = -(-self.layout.record // units)
        unit = f"u * {share} + " if units > 1 else ""
        level = 3 if rows == 1 else 2
        return [f"      __builtin_prefetch(w + {unit}{AHEAD + at}, 0, {level});" for at in range(0, share, LINE)]

    def codebook(self) -> list[str]:
        book = self.layout.codebook
        if not book:
            return []
        words = [sum(book[STEPS * i + j] << 8 * j for j in range(STEPS)) for i in range(len(book) // STEPS)]
        repeated = ", ".join(f"{words[i % len(words)]}u" for i in range(self.lanes))
        return [f"  const smelt_codes book = {{{repeated}}};"]

    def half(self, name: str, v: int) -> str:
        kind = "bf16" if self.layout.row.exponent else "f16"
        return f"smelt_widen_{kind}(w + {self.layout.places[name] + 2 * self.lanes * v})"

    def group(self, rows: int, group: int) -> list[str]:
        """The sums of one group of a unit, added to the totals."""
        layout, vectors = self.layout, range(self.vectors)
        quads = range(group * layout.group // STEPS, (group + 1) * layout.group // STEPS)
        lines = ["      {"]
        for i in range(rows):
            start = f"{self.row('total', i)}[{group}]" if layout.zero else "0"
            lines += [f"      smelt_words c{i}_{v} = {start} - (smelt_words){{0}};" for v in vectors]
        shorts = self.short_sums()
        lines += ["#if defined(SMELT_BLOCK_VNNI)", *self.products(rows, quads, "vnni", shorts)]
        lines += ["#elif defined(SMELT_BLOCK_SHORTS)", *self.products(rows, quads, "shorts", shorts)]
        lines += ["#else", *self.products(rows, quads, "steps", shorts), "#endif"]
        for name, value in (("g", "s"), ("n", "m")):
            if name == "g" or layout.row.minimum is not None:
                lines += [f"      const smelt_vector {name}{v} = {self.per_group(value, group, v)};" for v in vectors]
        sign = "-" if layout.subtracts else "+"
        for i in range(rows):
            step = f"{self.row('scale', i)}[0]"
            for v in vectors:
                term = f"(g{v} * {step}) * smelt_block_to_f32(c{i}_{v})"
                if layout.row.minimum is not None:
                    term = f"({term} {sign} n{v} * {self.row('total', i)}[{group}])"
                lines.append(f"      f{i}_{v} = f{i}_{v} + {term};")
        return [*lines, "      }"]

    def row(self, name: str, i: int) -> str:
        return f"{name}{i}" if i % 3 == 0 else f"({name}{i - i % 3} + {i % 3} * {name}_row)"

    def short_sums(self) -> int:
        """How many sums of two int8 products (`vpmaddubsw`) an i16 accumulator holds."""
        return 32767 // (2 * self.layout.largest * LARGEST)

    def per_group(self, of: str, group: int, v: int) -> str:
        """The scale or minimum of a group: the block's, times the group's integer."""
        layout = self.layout
        name = {"s": "scales", "m": "minimums"}[of]
        place = "scales" if layout.nibbles else name
        if place not in layout.places:
            return f"{of}{v}"
        per_unit = RUN // layout.group
        unit = f"u * {per_unit * COLUMNS} + " if layout.length > RUN else ""
        at = f"w + {unit}{layout.places[place] + group * COLUMNS + self.lanes * v}"
        integers = f"*(const smelt_bytes *)({at})"
        if layout.nibbles:
            integers = f"({integers} & 15)" if of == "s" else f"(({integers} >> 4) & 15)"
        return f"{of}{v} * smelt_block_integers({integers})"

    def products(self, rows: int, quads: range, how: str, shorts: int) -> list[str]:
        """c += codes * integers, over the steps of a group."""
        vectors = range(self.vectors)
        lines: list[str] = []
        small = how == "shorts" and shorts > 0
        loaded: set[str] = set()
        for count, quad in enumerate(quads):
            for v in vectors:
                lines += self.codes(quad, v, loaded)
            fresh = small and count % shorts == 0
            for i in range(rows):
                at = f"{self.row('q', i)} + {STEPS * quad}"
                if how == "vnni":
                    lines += [f"      c{i}_{v} = smelt_block_dpbusd(c{i}_{v}, u{quad}_{v}, {at});" for v in vectors]
                    continue
                place = f"*(const smelt_word *)({at})"
                lines.append(f"      {{ const ui32 x = {place}; const smelt_words y = (i32)x - (smelt_words){{0}};")
                for v in vectors:
                    c, u = f"c{i}_{v}", f"u{quad}_{v}"
                    if how == "steps":
                        lines.append(f"        {c} = smelt_block_steps({c}, {u}, x);")
                    elif not small:
                        lines.append(f"        {c} = smelt_block_wide({c}, {u}, y);")
                    else:
                        lines.append(f"        h{i}_{v} {'=' if fresh else '+='} smelt_block_maddubs({u}, y);")
                lines.append("        (void)x; (void)y; }")
                if fresh:
                    names = [f"h{i}_{v}" for v in vectors]
                    if count == 0:
                        lines.insert(len(lines) - 2 - len(vectors), f"      smelt_block_shorts {', '.join(names)};")
            if small and ((count + 1) % shorts == 0 or quad == quads[-1]):
                one = "(smelt_block_shorts){0} + 1"
                lines += [
                    f"      c{i}_{v} += smelt_block_maddwd(h{i}_{v}, {one});" for i in range(rows) for v in vectors
                ]
        return lines

    def codes(self, quad: int, v: int, loaded: set[str]) -> list[str]:
        """The codes of four steps as a vector of words."""
        lines: list[str] = []
        parts = []
        for number, plane in enumerate(self.layout.planes):
            line, share = divmod(quad, plane.steps // STEPS)
            name = f"p{number}_{line}_{v}"
            if name not in loaded:
                loaded.add(name)
                per_unit = RUN // plane.steps * LINE
                unit = f"u * {per_unit} + " if self.layout.length > RUN else ""
                at = f"w + {unit}{plane.at + line * LINE + STEPS * self.lanes * v}"
                lines.append(f"      const smelt_codes {name} = *(const smelt_codes *)({at});")
            parts.append(_cut(name, plane, share))
        value = " | ".join(parts)
        if self.layout.codebook:
            value = f"smelt_block_lookup({value}, book)"
        return [*lines, f"      const smelt_codes u{quad}_{v} = {value};"]


def _cut(name: str, plane: Plane, share: int) -> str:
    """The bits of a plane that belong to one of the quads of a line, at their place in the codes."""
    if plane.bits == 8:
        return name
    mask = ((1 << plane.bits) - 1) << plane.low
    down = plane.bits * share - plane.low
    moved = f"{name} >> {down}" if down > 0 else f"{name} << {-down}" if down < 0 else name
    return f"({moved} & {mask * 0x01010101}u)"
