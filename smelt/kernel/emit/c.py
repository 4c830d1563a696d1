"""Plan → C. The program is freestanding: it includes nothing, allocates nothing and starts no thread of its own.

It exports `NAME_run`, `NAME_measure` and `NAME_abi` (see `runtime/smelt.h` and `abi.py`). A kernel is a function over a
table of buffers and a table of sizes; the body of a loop on cores is a function that the runtime calls with ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from smelt import abi
from smelt.dim import Atom, Size
from smelt.dim import symbols as symbols_of
from smelt.dtype import DType, f32
from smelt.errors import SizeError, UnsupportedError
from smelt.ir.size_checks import Check
from smelt.kernel import math
from smelt.kernel.build.reduce import identity
from smelt.kernel.emit.tile_bf16 import mma_bf16_text
from smelt.kernel.emit.tile_f32 import TileShape, mma_f32_text, transpose_text
from smelt.kernel.emit.tile_int8 import mma_int8_text
from smelt.kernel.emit.timestamps import add_timestamps, timestamp_text
from smelt.kernel.loops.grammar import (
    LANES,
    SHORT,
    Affine,
    Amount,
    Apply,
    Bitcast,
    Convert,
    Declare,
    Expr,
    Fail,
    Fold,
    For,
    If,
    Let,
    Load,
    LoadLocal,
    Local,
    Mma,
    Number,
    Quotient,
    Remainder,
    Set,
    Stmt,
    Store,
    StoreLocal,
    Transpose,
    Var,
    While,
    expressions,
    subexpressions,
    used_variables,
    walk_statements,
)
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

ABI = """\
typedef struct Runtime Runtime; typedef struct Context Context;
typedef void (*Body)(void *env, i64 begin, i64 end, i64 worker);
struct Runtime { i64 version, threads;
  void (*parallel)(const Runtime *, Context *, Body, void *env, i64 count, i64 chunk);
  void *(*grow)(Context *, i64 bytes); };
struct Context { const volatile int *cancel; char *arena, *scratch; i64 scratch_stride; i64 record[8]; void *owner;
  i64 *late; int (*stop)(Context *); };
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
# Only long programs are split into files: in another file the compiler may optimise a loop differently, and worse.
CHARACTERS_PER_FILE = 400_000
TRANSPOSE = "smelt_transpose("
# By `k_pack`: the micro-kernel, and the C types of its operands.
TILES = {1: ("smelt_mma_f32", "f32", "f32"), 2: ("smelt_mma_bf16", "ui16", "ui16"), 4: ("smelt_mma_int8", "ui8", "i8")}
TILE_TEXTS = {1: mma_f32_text, 2: mma_bf16_text, 4: mma_int8_text}
ELEMENTS_PER_CORE = 32768  # fewer elements are not worth another core
ELEMENTS_PER_STOP_CHECK = 4096  # iterations that touch more check for cancellation
CANCELLED, NO_MEMORY, FAILED, UNFIT = -1, -2, 1 << 20, 1 << 21
TOO_LARGE = 1 << 22  # status of `measure` where a size overflows 64 bits
MOST_BYTES = 1 << 50  # of one buffer of data-dependent size: more is a mistake


def emit(plan: Plan, memory: Memory, name: str, tile: TileShape) -> str:
    """The whole program as one C file."""
    source = Source(tile)
    source.add(plan, memory, name)
    return source.text()


@dataclass(slots=True)
class Source:
    """A C file of several programs, which share equal kernels."""

    tile: TileShape
    kernels: dict[Kernel, _Function] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    timestamps: bool = False  # every step records its begin and end (`emit.timestamps`)

    def add(self, plan: Plan, memory: Memory, name: str) -> None:
        """Add a program. An error leaves the file as it was."""
        fresh: dict[Kernel, _Function] = {}
        for step in walk(plan.steps):
            for kernel in (step.kernel, *step.kernel.variants) if isinstance(step, Launch) else ():
                if kernel not in self.kernels and kernel not in fresh:
                    fresh[kernel] = _Function(f"{name}_{kernel.kind}{len(fresh)}")
        parts = [function.emit(kernel) for kernel, function in fresh.items()]
        program = _Program(plan, memory, name, self.timestamps)
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
        files = (head + "\n".join(each) for each in _balanced(self.parts, count))
        return [self._file("".join(self._micro_kernels(each)) + each) for each in files]

    def _micro_kernels(self, text: str) -> list[str]:
        """The micro-kernels that a text calls."""
        texts = []
        for k_pack, (name, *_) in TILES.items():
            narrow = f"{name}_narrow(" in text
            if narrow or f"{name}(" in text:
                texts.append(TILE_TEXTS[k_pack](self.tile, narrow=narrow))
        return [*texts, *([transpose_text(self.tile)] if TRANSPOSE in text else [])]

    def _file(self, text: str) -> str:
        return math.prelude(text) + ABI + text


def _call(function: _Function, table: str, sizes: dict[Size, int]) -> str:
    numbers = ", ".join(f"t[{sizes[size]}]" for size in function.sizes) or "0"
    return f"{function.name}(rt, ctx, (void *[]){{{table}}}, (i64[]){{{numbers}}})"


def _balanced(parts: Sequence[str], count: int) -> list[list[str]]:
    """Groups of about equal length."""
    groups: list[list[str]] = [[] for _ in range(min(count, len(parts)))]
    for part in sorted(parts, key=len, reverse=True):
        min(groups, key=lambda group: sum(map(len, group))).append(part)
    return groups


# ---- sizes ----


def size_text(size: Size, symbols: dict[str, str]) -> str:
    """A polynomial as C over the texts of its symbols, for values that passed the checks of `sure_text`."""
    if isinstance(size, int):
        return _number_text(size)
    terms = []
    for monomial, coefficient in size.terms:
        factors = [_atom_text(atom, symbols) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, _number_text(coefficient))
        terms.append(" * ".join(factors))
    return f"({' + '.join(terms)})"


def _atom_text(atom: Atom, symbols: dict[str, str]) -> str:
    if atom.op == "symbol":
        return symbols[atom.name]
    a, b = (size_text(arg, symbols) for arg in atom.args)
    return f"{ {'//': 'size_div', '%': 'size_mod', 'max': 'size_max', 'min': 'size_min'}[atom.op] }({a}, {b})"


def sure_text(size: Size, symbols: dict[str, str]) -> str:
    """The same with overflow checks: `int bad` becomes 1 where a number overflows 64 bits."""
    if isinstance(size, int):
        return _number_text(size)
    terms = []
    for monomial, coefficient in size.terms:
        factors = [_sure_atom(atom, symbols) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, _number_text(coefficient))
        terms.append(reduce(lambda a, b: f"sure_mul({a}, {b}, &bad)", factors))
    return reduce(lambda a, b: f"sure_add({a}, {b}, &bad)", terms)


def _sure_atom(atom: Atom, symbols: dict[str, str]) -> str:
    if atom.op == "symbol":
        return symbols[atom.name]
    a, b = (sure_text(arg, symbols) for arg in atom.args)
    if atom.op in ("max", "min"):
        return f"size_{atom.op}({a}, {b})"
    return f"{'sure_div' if atom.op == '//' else 'sure_mod'}({a}, {b}, &bad)"


def _number_text(number: int) -> str:
    if abs(number) >= 1 << 63:
        raise SizeError("a number in a size is too large", expected="less than 2**63", got=number)
    return f"{number}LL"


# ---- the program ----


@dataclass(slots=True)
class _Program:
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

    def measure(self, kernels: dict[Kernel, _Function]) -> str:
        """Checks of sizes, the memory that a call needs, and the sizes of the results.

        Where this returns 0, no number that the program computes from sizes overflows.
        """
        symbols = self.symbols
        lines = [f"int {self.name}_measure(const i64 *n, i64 *out) {{", "  (void)n; int bad = 0;"]
        lines += [f"  if ({_broken(check, symbols)}) return {i + 1};" for i, check in self.plan.entry_checks.items()]
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

    def _kernel_sizes(self, kernels: dict[Kernel, _Function]) -> dict[Size, int]:
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

    def run(self, kernels: dict[Kernel, _Function]) -> str:
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
        self, steps: Sequence[Step], kernels: dict[Kernel, _Function], sizes: dict[Size, int], depth: int
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
            lines.append(f"{pad}if ({_broken(check, self.symbols)}) {{ {record} return {UNFIT + i}; }}")
        return lines

    def _number(self, buffer: int) -> str:
        return f"*({math.storage(self.plan.buffers[buffer].shape.element)} *)b[{buffer}]"

    def _selector(self, buffer: int, count: int) -> str:
        if self.plan.buffers[buffer].shape.element.kind == "bool":
            return f"*(ui8 *)b[{buffer}] ? 0 : 1"
        return f"*(i32 *)b[{buffer}]"


def _broken(check: Check, symbols: dict[str, str]) -> str:
    """A condition in C: the check fails, or a number in it overflows 64 bits."""
    a, b = sure_text(check.a, symbols), sure_text(check.b, symbols)
    return f"!({a} {check.relation} {b}) || bad"


# ---- kernels ----


@dataclass(slots=True)
class _Function:
    """A kernel's function, and the functions of its loops on cores."""

    name: str
    sizes: dict[Size, int] = field(default_factory=dict)
    outlined: list[str] = field(default_factory=list)
    arrays: dict[str, str] = field(default_factory=dict)  # C types of the elements of local arrays
    locals: dict[str, str] = field(default_factory=dict)  # pointers and sizes of the current function

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

    def factor(self, operand: int | str, kind: str) -> str:
        """An operand of a micro-kernel: a buffer or a local array."""
        return operand if isinstance(operand, str) else self.pointer(operand, kind)

    # -- statements --

    def block(self, statements: Sequence[Stmt], depth: int) -> list[str]:
        return [line for each in statements for line in self.statement(each, depth)]

    def statement(self, stmt: Stmt, depth: int) -> list[str]:
        pad = "  " * depth
        match stmt:
            case For(var, extent, body, level):
                if level == "core":
                    return self.core(stmt, depth)
                lanes = [f"{pad}{_lanes(extent)}"] if level == "lane" else []
                head = f"{pad}for (i64 {var.name} = 0; {var.name} < {self.expr(extent)}; {var.name}++) {{"
                return [*lanes, head, *self.block(body, depth + 1), f"{pad}}}"]
            case While(head, condition, body):
                return [
                    f"{pad}for (;;) {{",
                    *self.block(head, depth + 1),
                    f"{pad}  if (!{self.expr(condition)}) break;",
                    *self.block(body, depth + 1),
                    f"{pad}}}",
                ]
            case If(condition, then, otherwise):
                lines = [f"{pad}if ({self.expr(condition)}) {{", *self.block(then, depth + 1)]
                if otherwise:
                    lines += [f"{pad}}} else {{", *self.block(otherwise, depth + 1)]
                return [*lines, f"{pad}}}"]
            case Let(var, value):
                return [f"{pad}const {math.register(var.dtype)} {var.name} = {self.expr(value)};"]
            case Declare(var, value):
                return [f"{pad}{math.register(var.dtype)} {var.name} = {self.expr(value)};"]
            case Set(var, value):
                return [f"{pad}{var.name} = {self.expr(value)};"]
            case Store(buffer, index, value):
                stored = math.store(value.dtype, self.expr(value))
                place = self.pointer(buffer, math.storage(value.dtype))
                return [f"{pad}{place}[{self.expr(index)}] = {stored};"]
            case Local(name, dtype, count):
                self.arrays[name] = math.register(dtype)
                return [f"{pad}{math.register(dtype)} {name}[{count}];"]
            case StoreLocal(array, index, value):
                return [f"{pad}{array}[{self.expr(index)}] = {self.expr(value)};"]
            case Transpose(target, source, rows, columns):
                return [f"{pad}smelt_transpose({source}, {rows}, {columns}, {target});"]
            case Fold():
                return self.fold(stmt, depth)
            case Mma():
                return [f"{pad}{self.mma(stmt)}"]
            case Fail(status, values):
                record = [f"ctx->record[{i}] = {self.expr(value)};" for i, value in enumerate(values)]
                return [f"{pad}{{ {' '.join(record)} return {FAILED + status}; }}"]

    def core(self, loop: For, depth: int) -> list[str]:
        """A parallel loop: a function over a range of its iterations."""
        name = f"{self.name}_{len(self.outlined)}"
        inside = {loop.var}
        captured = [
            var
            for var in dict.fromkeys([*used_variables(loop.body)])
            if var not in inside and var not in _declared(loop.body)
        ]
        lent = [each for each in used_locals(loop.body) if each in self.arrays]
        fields = "".join(f" {math.register(var.dtype)} {var.name};" for var in captured)
        fields += "".join(f" {self.arrays[each]} *{each};" for each in lent)
        env = f"struct {name} {{ Context *ctx; void *const *b; const i64 *s;{fields} }};"
        opened = [f"  const {math.register(var.dtype)} {var.name} = env->{var.name};" for var in captured]
        opened += [f"  {self.arrays[each]} *{each} = env->{each};" for each in lent]
        leaf = not any(isinstance(each, For | While | Fold) for each in loop.body)
        is_long = not leaf and not (isinstance(loop.work, int) and loop.work < ELEMENTS_PER_STOP_CHECK)
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
            *(["  LANES"] if leaf else []),
            f"  for (i64 {loop.var.name} = begin; {loop.var.name} < end; {loop.var.name}++) {{",
            *inner,
            *(["    if (STOPPED) return;"] if is_long else []),
            "  }",
            "}",
        ]
        self.outlined.append("\n".join(body))
        pad = "  " * depth
        values = "".join(f", {each}" for each in [*(var.name for var in captured), *lent])
        work = self.expr(Amount(loop.work))
        return [
            f"{pad}struct {name} env_{name} = {{ ctx, b, s{values} }};",
            f"{pad}rt->parallel(rt, ctx, {name}_body, &env_{name}, {self.expr(loop.extent)},"
            f" {ELEMENTS_PER_CORE} / ({work} + 1) + 1);",
            *([f"{pad}if (STOPPED) return {CANCELLED};"] if is_long else []),
        ]

    def fold(self, fold: Fold, depth: int) -> list[str]:
        """In order where it is short; else one total per lane, then a tree of halves."""
        pad, kind = "  " * depth, math.register(fold.total.dtype)
        var, total, extent = fold.var.name, fold.total.name, self.expr(fold.extent)
        function, dtype = fold.function, fold.total.dtype

        wide = f32 if dtype.is_float and dtype.bits < 32 else dtype  # narrow types accumulate in f32

        def step(a: str, b: str, of: DType) -> str:
            return _apply_text(function, [a, b], [of, of], of)

        value = self.expr(fold.value)
        short = [
            f"{pad}  {kind} sum = {self.expr(fold.start)};",
            f"{pad}  for (i64 {var} = 0; {var} < {extent}; {var}++) {{",
            *self.block(fold.body, depth + 2),
            f"{pad}    sum = {step('sum', value, dtype)};",
            f"{pad}  }}",
            f"{pad}  {total} = sum;",
        ]
        if isinstance(fold.extent, Amount) and isinstance(fold.extent.size, int) and fold.extent.size <= SHORT:
            return [f"{pad}{kind} {total};", f"{pad}{{", *short, f"{pad}}}"]
        nothing = math.literal(identity(function, wide).value, wide)
        body = self.block(fold.body, depth + 3)
        lines = [
            f"{pad}{kind} {total};",
            f"{pad}if ({extent} <= {SHORT}) {{",
            *short,
            f"{pad}}} else {{",
            f"{pad}  {kind} lane[{LANES}];",
            f"{pad}  for (i64 l = 0; l < {LANES}; l++) lane[l] = {nothing};",
            f"{pad}  i64 at = 0;",
            f"{pad}  for (; at + {LANES} <= {extent}; at += {LANES}) {{",
            f"{pad}    LANES for (i64 l = 0; l < {LANES}; l++) {{ const i64 {var} = at + l;",
            *body,
            f"{pad}      lane[l] = {step('lane[l]', value, wide)}; }}",
            f"{pad}  }}",
            f"{pad}  for (i64 l = 0; l < {LANES}; l++) if (at + l < {extent}) {{ const i64 {var} = at + l;",
            *body,
            f"{pad}      lane[l] = {step('lane[l]', value, wide)}; }}",
        ]
        half = LANES // 2
        while half:
            lines.append(
                f"{pad}  for (i64 l = 0; l < {half}; l++) lane[l] = {step('lane[l]', f'lane[l + {half}]', wide)};"
            )
            half //= 2
        lines += [f"{pad}  {total} = {step(self.expr(fold.start), 'lane[0]', dtype)};", f"{pad}}}"]
        return lines

    def mma(self, mma: Mma) -> str:
        name, left_type, right_type = TILES[mma.k_pack]
        a, b, tile = (
            f"{pointer} + {self.expr(index)}"
            for pointer, index in (
                (self.factor(mma.a, left_type), mma.a_index),
                (self.factor(mma.b, right_type), mma.b_index),
                (mma.tile, mma.tile_offset),
            )
        )
        steps = (mma.a_stride,) if mma.k_pack == 1 else ()  # packed steps are adjacent
        left = [a, *map(self.expr, (mma.a_row_stride, mma.a_tap_stride, *steps))]
        right = [b, *map(self.expr, (mma.b_stride, mma.taps, mma.extent))]
        given = [
            self.expr(mma.rows),
            *left,
            *right,
            tile,
            *map(self.expr, (mma.accumulate, mma.prefetch, mma.tiles)),
        ]
        if mma.columns == Number(0):
            return f"{name}({', '.join(given)});"
        return f"{name}_narrow({', '.join(given)}, {self.expr(mma.columns)});"

    # -- expressions --

    def size(self, size: Size) -> str:
        if isinstance(size, int):
            return _number_text(size) if abs(size) >= 1 << 31 else str(size)
        place = self.sizes.setdefault(size, len(self.sizes))
        self.locals[f"s{place}"] = f"  const i64 s{place} = s[{place}];"
        return f"s{place}"

    def divisor(self, size: Size) -> str:
        """A size to divide by. Where it is 0 the quotient is unused, but may be computed before the test for that."""
        text = self.size(size)
        if isinstance(size, int):
            return text if size else "1"
        self.locals[f"{text}_or_1"] = f"  const i64 {text}_or_1 = {text} ? {text} : 1;"
        return f"{text}_or_1"

    def expr(self, expr: Expr) -> str:
        match expr:
            case Var(name):
                return name
            case Number(value, dtype):
                return math.literal(value, dtype)
            case Amount(size):
                return self.size(size)
            case Affine(terms, constant):
                parts = [self._times(atom, coefficient) for atom, coefficient in terms]
                if constant != 0:
                    parts.append(self.size(constant))
                return f"({' + '.join(parts)})"
            case Quotient(x, size):
                return f"({self.expr(x)} / {self.divisor(size)})"
            case Remainder(x, size):
                return f"({self.expr(x)} % {self.divisor(size)})"
            case Load(buffer, index, dtype):
                return math.load(dtype, f"{self.pointer(buffer, math.storage(dtype))}[{self.expr(index)}]")
            case LoadLocal(array, index, _):
                return f"{array}[{self.expr(index)}]"
            case Convert(x, dtype):
                return math.convert(self.expr(x), x.dtype, dtype)
            case Bitcast(x, dtype):
                return math.bitcast(self.expr(x), x.dtype, dtype)
            case Apply("reduce_precision", (x,), dtype, (exponent, mantissa)):
                return math.reduce_precision(self.expr(x), dtype, exponent, mantissa)
            case Apply("maximum" | "minimum" as function, (x, Number(bound)), dtype) if (
                dtype.is_float and bound == bound
            ):
                return self.clamp_text(function, self.expr(x), bound, dtype)
            case Apply(function, args, dtype, _):
                return _apply_text(function, [self.expr(arg) for arg in args], [arg.dtype for arg in args], dtype)

    def clamp_text(self, function: str, x: str, bound: float | complex, dtype: DType) -> str:
        """The maximum or minimum of a value and a number as one instruction; NaN propagates, -0 < +0."""
        number = math.literal(bound, dtype)
        sign = ">" if function == "maximum" else "<"
        chosen = f"({number} {sign} {x} ? {number} : {x})"
        if bound != 0:
            return chosen
        if function == "maximum" and str(bound)[0] != "-":
            return f"({chosen} + {number})"  # -0 becomes 0
        return _apply_text(function, [x, number], [dtype, dtype], dtype)

    def _times(self, atom: Expr, coefficient: Size) -> str:
        text = self.expr(atom)
        return text if coefficient == 1 else f"{text} * {self.size(coefficient)}"


def _apply_text(function: str, args: Sequence[str], operands: Sequence[DType], result: DType) -> str:
    text = math.apply(function, args, operands, result)
    if text is None:
        raise UnsupportedError(
            f"the native engine does not support {function} of {operands[0]}", remedy="engine='reference'"
        )
    return text


def _lanes(extent: Expr) -> str:
    """The pragma that vectorises a loop. A short loop with a partial vector is masked. Only a very short one may be
    unrolled completely, so that the loop around it is vectorised."""
    size = extent.size if isinstance(extent, Amount) else extent.value if isinstance(extent, Number) else None
    if not isinstance(size, int) or not 8 <= size <= 64:
        return "LANES"
    return "FEW_LANES" if size % 16 else "SHORT_LANES"


def used_locals(statements: Sequence[Stmt]) -> list[str]:
    """The local arrays that statements read or write."""
    found: dict[str, None] = {}

    for each in walk_statements(statements):
        match each:
            case StoreLocal(array):
                found[array] = None
            case Transpose(target, source):
                found.update(dict.fromkeys((target, source)))
            case Mma(tile, a=a, b=b):
                found.update(dict.fromkeys(name for name in (tile, a, b) if isinstance(name, str)))
        for expr in expressions(each):
            found.update((item.array, None) for item in subexpressions(expr) if isinstance(item, LoadLocal))
    return list(found)


def _declared(statements: Sequence[Stmt]) -> set[Var]:
    """The variables that statements declare."""
    found: set[Var] = set()
    for each in walk_statements(statements):
        match each:
            case For(var) | Let(var) | Declare(var):
                found.add(var)
            case Fold(var, total=total):
                found |= {var, total}
    return found
