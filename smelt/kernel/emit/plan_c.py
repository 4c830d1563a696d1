"""Plan → C: `NAME_run`, `NAME_measure` and `NAME_abi` (see `runtime/smelt.h` and `abi.py`). `emit.c` calls it.

Steps become calls of kernels, loops and switches over a table of buffers `b`, given sizes `n`, sizes that the program
computes `t` and data-dependent sizes `m`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from smelt import abi
from smelt.abi import CANCELLED, FAILED, NO_MEMORY, TOO_LARGE, UNFIT
from smelt.dim import Size
from smelt.dim import symbols as symbols_of
from smelt.ir.size_checks import Check
from smelt.kernel import math
from smelt.kernel.emit.kernel_c import KernelPrinter
from smelt.kernel.emit.sizes_c import size_text, sure_text
from smelt.kernel.emit.timestamps import add_timestamps, timestamp_text
from smelt.kernel.plan.memory import Memory
from smelt.kernel.plan.plan import (
    Branch,
    Buffer,
    Copy,
    Ensure,
    Kernel,
    Launch,
    Measure,
    Plan,
    Repeat,
    Require,
    Step,
    walk,
)
from smelt.kernel.tune.tunables import EACH, VARIANT, tunable_name
from smelt.size import nonneg

MOST_BYTES = 1 << 50  # of one buffer of data-dependent size: more is a mistake


@dataclass(slots=True)
class ProgramPrinter:
    """One plan as the functions `NAME_measure` and `NAME_run`."""

    plan: Plan
    memory: Memory
    name: str
    timestamps: bool = False
    timed: int = 0  # launches and copies so far, in the order of `walk`

    @property
    def symbols(self) -> dict[str, str]:
        known = {name: f"n[{i}]" for i, name in enumerate(self.plan.symbols)}
        known |= {tunable_name(i): f"{self.name}_tunables[{i}]" for i in range(self.plan.tunables)}
        return known | {name: f"m[{i}]" for i, name in enumerate(self.plan.deferred)}

    def describe(self) -> str:
        """The program's interface, which the loader compares."""
        plan = self.plan
        arguments, results = ([buffer.shape for buffer in plan.of_kind(kind)] for kind in ("argument", "result"))
        constants = [len(constant) for constant in plan.constants]
        checks = len(plan.checks), len(plan.requirements)
        stated = abi.describe(plan.symbols, arguments, results, constants, plan.donated, plan.reused, checks)
        return abi.c_text(self.name, stated)

    def measure(self, kernels: dict[Kernel, KernelPrinter]) -> str:
        """Checks of sizes, the memory that a call needs, and the sizes of the results.

        Where this returns 0, no number that the program computes from sizes overflows.
        """
        symbols = self.symbols
        lines = [f"int {self.name}_measure(const i64 *n, i64 *out) {{", "  (void)n; int bad = 0;"]
        lines += [f"  if ({_violation(check, symbols)}) return {i + 1};" for i, check in self.plan.entry_checks.items()]
        given = {*self.plan.symbols}
        for size in self._kernel_sizes(kernels):
            if not isinstance(size, int) and symbols_of(size) <= given:
                lines.append(f"  (void){sure_text(size, symbols)};")
        lines.append("  i64 total = 0;")
        lines += [f"  total = sure_add(total, {self._slot(slot)}, &bad);" for slot in self.memory.slots]
        lines.append("  out[0] = total;")
        lines.append(f"  out[1] = {sure_text(self.memory.scratch, symbols)};")
        sizes = [size for buffer in self.plan.of_kind("result") for size in buffer.shape.sizes]
        texts = ["-1" if self.plan.is_deferred(size) else sure_text(size, symbols) for size in sizes]
        lines += [f"  out[{i + 2}] = {text};" for i, text in enumerate(texts)]
        return "\n".join([*lines, f"  return bad ? {TOO_LARGE} : 0;", "}"])

    def _kernel_sizes(self, kernels: dict[Kernel, KernelPrinter]) -> dict[Size, int]:
        """The sizes that kernels take, numbered."""
        sizes: dict[Size, int] = {}
        for step in walk(self.plan.steps):
            for kernel in (step.kernel, *step.kernel.variants) if isinstance(step, Launch) else ():
                for size in kernels[kernel].sizes:
                    sizes.setdefault(size, len(sizes))
        return sizes

    def _slot(self, sizes: Sequence[Size]) -> str:
        """The bytes of a slot: those of its largest buffer. A size in a branch that is not taken may be negative."""
        texts = [sure_text(size, self.symbols) for size in sizes]
        if not any(map(nonneg, sizes)):
            texts.append("0LL")
        return reduce(lambda a, b: f"size_max({a}, {b})", texts)

    def run(self, kernels: dict[Kernel, KernelPrinter]) -> str:
        symbols = self.symbols
        sizes = self._kernel_sizes(kernels)
        lines = [
            f"int {self.name}_run(const Runtime *rt, Context *ctx, void **given, const i64 *n) {{",
            "  (void)rt; (void)ctx; (void)n; int status = 0, bad = 0; (void)status; (void)bad;",
            f"  void *b[{max(len(self.plan.buffers), 1)}];",
        ]
        place = "ctx->arena"
        for i, slot in enumerate(self.memory.slots):
            lines.append(f"  char *const slot{i} = {place};")
            place = f"slot{i} + {self._slot(slot)}"
        counts = {kind: len(self.plan.of_kind(kind)) for kind in ("argument", "result", "constant")}
        first = {"argument": 0, "result": counts["argument"], "constant": counts["argument"] + counts["result"]}
        for i, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "temporary":
                lines.append(
                    f"  b[{i}] = slot{self.memory.slot_of[i]};" if i in self.memory.slot_of else f"  b[{i}] = 0;"
                )
            else:
                lines.append(f"  b[{i}] = given[{first[buffer.kind] + buffer.index}];")
        if self.plan.deferred:
            lines.append(f"  i64 m[{len(self.plan.deferred)}] = {{0}};")
            lines += [f"  i64 held{i} = -1;" for i, _ in self._deferred_buffers()]
        if sizes:
            lines.append(f"  i64 t[{len(sizes)}];")
            lines += [
                f"  t[{i}] = {'0' if self.plan.is_deferred(size) else size_text(size, symbols)};"
                for size, i in sizes.items()
            ]
        if self.plan.tunables:
            lines.insert(0, f"i64 {self.name}_tunables[{self.plan.tunables}];")
        if self.timestamps:
            lines = [timestamp_text(self.name, len(self.plan.deferred)), *lines, f"  {self.name}_count = 0;"]
        lines += self._steps(self.plan.steps, kernels, sizes, 1)
        lines += self._deferred_results(first["result"])
        if self.timestamps:
            lines += [f"  {self.name}_deferred[{i}] = m[{i}];" for i in range(len(self.plan.deferred))]
        return "\n".join([*lines, "  return 0;", "}", ""])

    def _steps(
        self, steps: Sequence[Step], kernels: dict[Kernel, KernelPrinter], sizes: dict[Size, int], depth: int
    ) -> list[str]:
        pad = "  " * depth
        lines: list[str] = []
        for step in steps:
            before = len(lines)
            match step:
                case Launch(kernel, buffers):
                    table = ", ".join(f"b[{i}]" for i in buffers) or "0"
                    call = _call(kernels[kernel], table, sizes)
                    for i, variant in enumerate(kernel.variants, 1):
                        wanted = f"{self.name}_tunables[{EACH * kernel.number + VARIANT}]"
                        call = f"{wanted} == {i} ? {_call(kernels[variant], table, sizes)} : {call}"
                    lines.append(f"{pad}if ((status = {call})) return status;")
                case Copy(source, target):
                    count = size_text(self.plan.buffers[target].bytes, self.symbols)
                    lines.append(
                        f"{pad}if (b[{target}] != b[{source}]) __builtin_memcpy(b[{target}], b[{source}], {count});"
                    )
                case Repeat(head, flag, body):
                    lines += [f"{pad}for (;;) {{", *self._steps(head, kernels, sizes, depth + 1)]
                    lines.append(f"{pad}  if (!*(ui8 *)b[{flag}]) break;")
                    lines.append(f"{pad}  if (STOPPED) return {CANCELLED};")
                    lines += [*self._steps(body, kernels, sizes, depth + 1), f"{pad}}}"]
                case Branch(selector, branches):
                    lines.append(f"{pad}switch ({self._selector(selector, len(branches))}) {{")
                    for i, branch in enumerate(branches):
                        label = f"case {i}:" if i < len(branches) - 1 else "default:"
                        lines += [
                            f"{pad}{label} {{",
                            *self._steps(branch, kernels, sizes, depth + 1),
                            f"{pad}}} break;",
                        ]
                    lines.append(f"{pad}}}")
                case Require(flags, check, numbers):
                    count = size_text(self.plan.buffers[flags].shape.count, self.symbols)
                    record = "".join(f" ctx->record[{i}] = {self._number(each)};" for i, each in enumerate(numbers))
                    lines.append(
                        f"{pad}for (i64 i = 0; i < {count}; i++)"
                        f" if (!((ui8 *)b[{flags}])[i]) {{{record} return {FAILED + check}; }}"
                    )
                case Measure():
                    lines += self._measure(step, sizes, pad)
                case Ensure(checks):
                    lines += self._ensure(checks, pad)
            if self.timestamps and isinstance(step, Launch | Copy):
                lines[before:] = add_timestamps(self.name, self.timed, pad, lines[before:])
                self.timed += 1
            if not isinstance(step, Copy | Ensure):
                lines.append(f"{pad}if (STOPPED) return {CANCELLED};")
        return lines

    def _deferred_buffers(self) -> list[tuple[int, Buffer]]:
        return [(i, each) for i, each in enumerate(self.plan.buffers) if self.plan.is_deferred(*each.shape.sizes)]

    def _deferred_results(self, first: int) -> list[str]:
        """Return the buffers and sizes of results of data-dependent size."""
        lines: list[str] = []
        place = 0
        for i, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "result":
                if self.plan.is_deferred(*buffer.shape.sizes):
                    lines.append(f"  given[{first + buffer.index}] = b[{i}];")
                    for d, size in enumerate(buffer.shape.sizes):
                        lines.append(f"  ctx->late[{place + d}] = {size_text(size, self.symbols)};")
                place += buffer.shape.rank
        return lines

    def _measure(self, step: Measure, sizes: dict[Size, int], pad: str) -> list[str]:
        """Define symbols; then compute what depends on them and on no later one: checks, sizes, memory."""
        places = [self.plan.deferred.index(name) for name in step.names]
        if isinstance(step.source, int):
            values = [f"((const i64 *)b[{step.source}])[{i}]" for i in range(len(places))]
        else:
            values = [size_text(size, self.symbols) for size in step.source]
        lines = [f"{pad}{{ {' '.join(f'const i64 v{at} = {text};' for at, text in zip(places, values, strict=True))}"]
        lines.append(f"{pad}  {' '.join(f'm[{at}] = v{at};' for at in places)} }}")

        def concerns(*of: Size) -> bool:
            named = [
                self.plan.deferred.index(name) for size in of for name in symbols_of(size) if name in self.plan.deferred
            ]
            return bool(named) and max(named) in places

        lines += [f"{pad}t[{i}] = {size_text(size, self.symbols)};" for size, i in sizes.items() if concerns(size)]
        for i, buffer in self._deferred_buffers():
            if concerns(*buffer.shape.sizes):
                lines += [
                    f"{pad}{{ const i64 bytes = {sure_text(buffer.bytes, self.symbols)};",
                    f"{pad}if (bad || bytes > {MOST_BYTES}LL) return {NO_MEMORY};",
                    f"{pad}if (bytes > held{i}) {{",
                    f"{pad}  ctx->record[0] = held{i} = bytes;",
                    f"{pad}  if (!(b[{i}] = rt->grow(ctx, bytes))) return {NO_MEMORY};",
                    f"{pad}  ctx->record[0] = 0;",
                    f"{pad}}} }}",
                ]
        return lines

    def _ensure(self, checks: Sequence[int], pad: str) -> list[str]:
        lines = []
        for i in checks:
            check = self.plan.checks[i]
            values = [size_text(size, self.symbols) for size in (check.a, check.b)]
            record = " ".join(f"ctx->record[{place}] = {text};" for place, text in enumerate(values))
            lines.append(f"{pad}if ({_violation(check, self.symbols)}) {{ {record} return {UNFIT + i}; }}")
        return lines

    def _number(self, buffer: int) -> str:
        return f"*({math.storage(self.plan.buffers[buffer].shape.element)} *)b[{buffer}]"

    def _selector(self, buffer: int, count: int) -> str:
        if self.plan.buffers[buffer].shape.element.kind == "bool":
            return f"*(ui8 *)b[{buffer}] ? 0 : 1"
        return f"*(i32 *)b[{buffer}]"


def _violation(check: Check, symbols: dict[str, str]) -> str:
    """A condition in C: the check fails, or a number in it overflows 64 bits."""
    a, b = sure_text(check.a, symbols), sure_text(check.b, symbols)
    return f"!({a} {check.relation} {b}) || bad"


def _call(function: KernelPrinter, table: str, sizes: dict[Size, int]) -> str:
    numbers = ", ".join(f"t[{sizes[size]}]" for size in function.sizes) or "0"
    return f"{function.name}(rt, ctx, (void *[]){{{table}}}, (i64[]){{{numbers}}})"
