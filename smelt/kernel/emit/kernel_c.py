"""Kernel → C: a function over a table of buffers and a table of sizes. `emit.c` calls it.

The body of a loop on cores is a function of its own, which the runtime calls with ranges. Everything is decided before:
`loops.parallelise` annotates loops and reductions, `Form`s name their micro-kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from smelt.abi import CANCELLED, FAILED
from smelt.ir.block_layout import Layout
from smelt.kernel import math
from smelt.kernel.emit.printer import Printer
from smelt.kernel.emit.tile_blocks import PREFIX
from smelt.kernel.loops.grammar import (
    Amount,
    Attend,
    BlockMma,
    Chunk,
    Declare,
    Decode,
    Fail,
    Fold,
    For,
    If,
    Let,
    Mma,
    Number,
    Place,
    RoundRow,
    Set,
    Split,
    Stmt,
    Store,
    Tile,
    Transpose,
    Update,
    While,
    declared_variables,
    used_tiles,
    used_variables,
    walk_statements,
)
from smelt.kernel.plan.plan import Kernel

PRAGMAS = {"any": "LANES", "whole": "SHORT_LANES", "masked": "FEW_LANES"}  # by `For.vector`
CACHE_RESIDENT = Chunk(Number(0), Number(1 << 10))  # one of 1024 chunks is negligible


@dataclass(slots=True)
class KernelPrinter(Printer):
    """A kernel's function, and the functions of its loops on cores."""

    columns: int = 0  # of a register tile
    outlined: list[str] = field(default_factory=list)
    arrays: dict[str, str] = field(default_factory=dict)  # C types of the elements of local arrays

    def emit(self, kernel: Kernel) -> str:
        lines = self.block(kernel.body, 1)
        head = f"{self.prototype} {{"
        quiet = "  (void)rt; (void)ctx; (void)b; (void)s;"
        main = "\n".join([head, quiet, *self.locals.values(), *lines, "  return 0;", "}"])
        return "\n".join([*self.outlined, main])

    @property
    def prototype(self) -> str:
        return f"HIDDEN int {self.name}(const Runtime *rt, Context *ctx, void *const *b, const i64 *s)"

    def pointer(self, buffer: int, kind: str) -> str:
        """A pointer to the elements of a buffer: a local, so that the compiler sees that it does not change."""
        name = f"b{buffer}_{kind}"
        self.locals[name] = f"  {kind} *const {name} = b[{buffer}];"
        return name

    def size_value(self, place: int) -> str:
        self.locals[f"s{place}"] = f"  const i64 s{place} = s[{place}];"
        return f"s{place}"

    # -- statements --

    def statement(self, stmt: Stmt, depth: int) -> list[str]:
        pad = "  " * depth
        match stmt:
            case For(var, extent, body, level):
                if level == "core":
                    return self.core(stmt, depth)
                lanes = [f"{pad}{PRAGMAS[stmt.vector]}"] if stmt.vector != "none" else []
                head = f"{pad}for (i64 {var.name} = 0; {var.name} < {self.expr(extent)}; {var.name}++) {{"
                return [*lanes, head, *self.block(body, depth + 1), f"{pad}}}"]
            case While() | If() | Let() | Declare() | Set() | Store():
                return self.plain(stmt, depth)
            case Tile(name, dtype, count):
                self.arrays[name] = math.register(dtype)
                return [f"{pad}_Alignas(64) {math.register(dtype)} {name}[{count}];"]
            case Transpose(target, source):
                rows, columns = (size.value for size in source.sizes if isinstance(size, Number))
                return [f"{pad}smelt_transpose({source.place.array}, {rows}, {columns}, {target.place.array});"]
            case Fold():
                return self.fold(stmt, depth)
            case Mma():
                return [f"{pad}{self.mma(stmt)}"]
            case BlockMma():
                return [f"{pad}{self.block_mma(stmt)}"]
            case Update() | RoundRow() | Attend() | Decode():
                raise AssertionError("builders for a GPU write it")
            case Fail(status, values):
                record = [f"ctx->record[{i}] = {self.expr(value)};" for i, value in enumerate(values)]
                return [f"{pad}{{ {' '.join(record)} return {FAILED + status}; }}"]

    def core(self, loop: For, depth: int) -> list[str]:
        """A parallel loop: a function over a range of its iterations."""
        name = f"{self.name}_{len(self.outlined)}"
        inside = {loop.var, *(var for each in walk_statements(loop.body) for var in declared_variables(each))}
        captured = [var for var in dict.fromkeys([*used_variables(loop.body)]) if var not in inside]
        lent = [each for each in used_tiles(loop.body) if each in self.arrays]
        fields = "".join(f" {math.register(var.dtype)} {var.name};" for var in captured)
        fields += "".join(f" {self.arrays[each]} *{each};" for each in lent)
        env = f"struct {name} {{ Context *ctx; void *const *b; const i64 *s;{fields} }};"
        opened = [f"  const {math.register(var.dtype)} {var.name} = env->{var.name};" for var in captured]
        opened += [f"  {self.arrays[each]} *{each} = env->{each};" for each in lent]
        chunks = loop.chunks
        assert chunks is not None, "`parallelise` splits every loop on cores"
        outer, self.locals = self.locals, {}
        inner = self.block(loop.body, 2)
        locals, self.locals = self.locals, outer
        body = [
            env,
            f"static void {name}_body(void *given, i64 begin, i64 end, i64 worker) {{",
            f"  struct {name} *env = given; Context *ctx = env->ctx; void *const *b = env->b; const i64 *s = env->s;",
            "  (void)ctx; (void)b; (void)s; (void)worker;",
            *opened,
            *locals.values(),
            *([f"  {PRAGMAS[loop.vector]}"] if loop.vector != "none" else []),
            f"  for (i64 {loop.var.name} = begin; {loop.var.name} < end; {loop.var.name}++) {{",
            *inner,
            *(["    if (STOPPED) return;"] if chunks.polls else []),
            "  }",
            "}",
        ]
        self.outlined.append("\n".join(body))
        pad = "  " * depth
        values = "".join(f", {each}" for each in [*(var.name for var in captured), *lent])
        work = self.expr(Amount(chunks.work))
        return [
            f"{pad}struct {name} env_{name} = {{ ctx, b, s{values} }};",
            f"{pad}rt->parallel(rt, ctx, {name}_body, &env_{name}, {self.expr(loop.extent)},"
            f" {chunks.elements} / ({work} + 1) + 1);",
            *([f"{pad}if (STOPPED) return {CANCELLED};"] if chunks.polls else []),
        ]

    def mma(self, mma: Mma) -> str:
        """A call of the micro-kernel of a form: rows, a, b, steps, tile, accumulate, prefetch."""
        (rows, taps, extent), (row, tap, step) = mma.a.sizes, mma.a.strides
        sums, (*panels, _, columns) = mma.acc.place, mma.acc.sizes
        assert not isinstance(mma.accumulate, Split), "processors have other ways to split K"
        share = mma.prefetch if isinstance(mma.prefetch, Chunk) else CACHE_RESIDENT
        sides = (mma.a.place, mma.form.left), (mma.b.place, mma.form.right)
        pointers = [self.array(place, math.storage(dtype)) for place, dtype in sides]
        a, b = (f"{pointer} + {self.expr(place.index)}" for pointer, (place, _) in zip(pointers, sides, strict=True))
        given = [
            *(self.expr(rows), a, self.expr(row), self.expr(tap)),
            *([self.expr(step)] if mma.form.k_pack == 1 else []),  # packed steps are adjacent
            *(b, self.expr(mma.b.strides[-2]), self.expr(taps), self.expr(extent)),
            f"{sums.array} + {self.expr(sums.index)}",
            *map(self.expr, (mma.accumulate, share.number, share.count)),
        ]
        later = mma.prefetch
        given.append(self.address(later, math.storage(mma.form.right)) if isinstance(later, Place) else "0")
        name, panel = f"smelt_mma_{mma.form.name}", mma.acc.strides[-2]
        assert isinstance(panel, Number), "the width of a panel is known"
        if (width := panel.value) != self.columns:
            whole = mma.form.name == "f32" and isinstance(width, int) and width % self.columns == 0
            assert whole, f"a panel of {width} columns is no whole number of register tiles of {self.columns}"
            name = f"{name}_by{width}"
        if panels:
            name = f"{name}_panels"
            given += map(self.expr, (*panels, mma.b.strides[0], mma.acc.strides[0]))
        if columns == panel:
            return f"{name}({', '.join(given)});"
        return f"{name}_narrow({', '.join([*given, self.expr(columns)])});"

    def block_mma(self, mma: BlockMma) -> str:
        """A call of the micro-kernel of a format: rows, integers, scales, totals, records, tile."""
        total = "i32" if Layout.of(mma.format).zero else "f32"
        kinds = (mma.q, "i8"), (mma.scale, "f32"), (mma.total, total)
        rows = [f"{self.address(of.place, kind)}, {self.expr(of.strides[0])}" for of, kind in kinds]
        panel = f"{self.address(mma.panel.place, 'ui8')}, {self.expr(mma.panel.sizes[0])}"
        given = [self.expr(mma.acc.sizes[0]), *rows, panel, self.address(mma.acc.place, "f32")]
        return f"{PREFIX}{mma.format}({', '.join(given)});"
