"""Plans → C files. A program is freestanding: it includes nothing, allocates nothing and starts no thread of its own.

`plan_c` prints the steps of a plan, `kernel_c` the kernels, `tile_*` the micro-kernels that they call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from smelt.ir.blocks import BLOCKS
from smelt.kernel import math
from smelt.kernel.emit.kernel_c import KernelPrinter
from smelt.kernel.emit.plan_c import ProgramPrinter
from smelt.kernel.emit.tile_bf16 import mma_bf16_text
from smelt.kernel.emit.tile_blocks import PREFIX, block_dot_text
from smelt.kernel.emit.tile_f32 import (
    RIGHTS,
    mma_f32_bf16_text,
    mma_f32_f16_text,
    mma_f32_text,
    mma_panel_text,
    mma_panels_text,
    transpose_text,
)
from smelt.kernel.emit.tile_int8 import mma_int8_text
from smelt.kernel.plan.memory import Memory
from smelt.kernel.plan.plan import Kernel, Launch, Plan, walk
from smelt.target import TileShape

TYPES = """\
typedef struct Runtime Runtime; typedef struct Context Context;
typedef void (*Body)(void *env, i64 begin, i64 end, i64 worker);
struct Runtime { i64 version, threads;
  void (*parallel)(const Runtime *, Context *, Body, void *env, i64 count, i64 chunk);
  void *(*grow)(Context *, i64 bytes); };
struct Context { const volatile int *cancel; char *arena, *scratch; i64 scratch_stride; i64 record[8]; void *owner;
  i64 *late; int (*stop)(Context *); };
"""  # as in smelt.h
ABI = (
    TYPES
    + """\
#define STOPPED (*ctx->cancel && ctx->stop(ctx))
#ifdef __clang__
#define LANES _Pragma("clang loop vectorize(assume_safety) interleave(enable)")
#define SHORT_LANES _Pragma("clang loop vectorize(assume_safety) interleave(enable) unroll(disable)")
#define FEW_LANES _Pragma("clang loop vectorize(assume_safety) vectorize_predicate(enable) unroll(disable)")
#else
#define LANES _Pragma("GCC ivdep")
#define SHORT_LANES LANES
#define FEW_LANES LANES
#endif
#define HIDDEN __attribute__((visibility("hidden")))
static inline i64 size_div(i64 a, i64 b) {
  if (b == 0) return 0;
  return a / b - ((a % b != 0) & ((a < 0) != (b < 0)));
}
static inline i64 size_mod(i64 a, i64 b) { return b == 0 ? 0 : a - b * size_div(a, b); }
static inline i64 size_max(i64 a, i64 b) { return a > b ? a : b; }
static inline i64 size_min(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 sure_add(i64 a, i64 b, int *bad) { i64 c; *bad |= __builtin_add_overflow(a, b, &c); return c; }
static inline i64 sure_mul(i64 a, i64 b, int *bad) { i64 c; *bad |= __builtin_mul_overflow(a, b, &c); return c; }
static inline i64 sure_div(i64 a, i64 b, int *bad) { return b == -1 ? sure_mul(a, b, bad) : size_div(a, b); }
static inline i64 sure_mod(i64 a, i64 b, int *bad) { (void)bad; return b == -1 ? 0 : size_mod(a, b); }
"""
)
# Only long programs are split into files: in another file the compiler may optimise a loop differently, and worse.
CHARACTERS_PER_FILE = 400_000
TRANSPOSE = "smelt_transpose("
WIDE_PANEL = re.compile(r"\bsmelt_mma_f32_by(\d+)")
MICRO_KERNELS = {
    "smelt_mma_f32": mma_f32_text,
    "smelt_mma_f32_f16": mma_f32_f16_text,
    "smelt_mma_f32_bf16": mma_f32_bf16_text,
    "smelt_mma_bf16": mma_bf16_text,
    "smelt_mma_int8": mma_int8_text,
}


def emit(plan: Plan, memory: Memory, name: str, tile: TileShape) -> str:
    """The whole program as one C file."""
    source = Source(tile)
    source.add(plan, memory, name)
    return source.text()


@dataclass(slots=True)
class Source:
    """A C file of several programs, which share equal kernels."""

    tile: TileShape
    kernels: dict[Kernel, KernelPrinter] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    timestamps: bool = False  # every step records its begin and end (`emit.timestamps`)

    def add(self, plan: Plan, memory: Memory, name: str) -> None:
        """Add a program. An error leaves the file as it was."""
        fresh: dict[Kernel, KernelPrinter] = {}
        for step in walk(plan.steps):
            for kernel in (step.kernel, *step.kernel.variants) if isinstance(step, Launch) else ():
                if kernel not in self.kernels and kernel not in fresh:
                    fresh[kernel] = KernelPrinter(f"{name}_{kernel.kind}{len(fresh)}", columns=self.tile.columns)
        parts = [function.emit(kernel) for kernel, function in fresh.items()]
        program = ProgramPrinter(plan, memory, name, self.timestamps)
        parts += [program.describe(), program.measure(self.kernels | fresh), program.run(self.kernels | fresh)]
        self.kernels |= fresh
        self.parts += parts

    def text(self) -> str:
        """One file."""
        text = "\n".join(self.parts)
        return self._file("".join(self._micro_kernels(text)) + text)

    def texts(self, most: int) -> list[str]:
        """Several files of about equal length, to compile in parallel."""
        count = min(most, sum(map(len, self.parts)) // CHARACTERS_PER_FILE + 1)
        if count == 1:
            return [self.text()]
        head = "".join(f"{function.prototype};\n" for function in self.kernels.values())
        files = (head + "\n".join(each) for each in _balance(self.parts, count))
        return [self._file("".join(self._micro_kernels(each)) + each) for each in files]

    def _micro_kernels(self, text: str) -> list[str]:
        """The micro-kernels that a text calls."""
        texts = []
        for name, tile_text in MICRO_KERNELS.items():
            several = [f"{name}_panels{ending}(" in text for ending in ("", "_narrow")]
            narrow = f"{name}_narrow(" in text or several[1]
            if narrow or any(several) or f"{name}(" in text:
                texts.append(tile_text(self.tile, narrow=narrow))
            if any(several):
                texts.append(mma_panels_text(self.tile, RIGHTS[name], narrow=narrow))
        panels = {int(each) for each in WIDE_PANEL.findall(text)}
        texts += [mma_panel_text(self.tile, panel) for panel in sorted(panels)]
        texts += [block_dot_text(each, self.tile) for each in BLOCKS if f"{PREFIX}{each}(" in text]
        return [*texts, *([transpose_text(self.tile)] if TRANSPOSE in text else [])]

    def _file(self, text: str) -> str:
        return math.prelude(text) + ABI + text


def _balance(parts: Sequence[str], count: int) -> list[list[str]]:
    """Groups of about equal length."""
    groups: list[list[str]] = [[] for _ in range(min(count, len(parts)))]
    for part in sorted(parts, key=len, reverse=True):
        min(groups, key=lambda group: sum(map(len, group))).append(part)
    return groups
