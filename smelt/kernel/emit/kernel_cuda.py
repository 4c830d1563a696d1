"""Kernel → CUDA: one `__global__` function for each of its launches. `emit.cuda` calls it.

`loops.simt` maps loops to threads. A group of threads (a warp or a block) splits loops on lanes, reductions and
products; everything else runs redundantly in all of its threads, and the first one stores.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from smelt.dim import Size
from smelt.dtype import DType, i32, i64
from smelt.kernel import math
from smelt.kernel.emit.attention_calls_cuda import early_reads, find_decode, print_attend, print_decode, print_early
from smelt.kernel.emit.block_calls_cuda import print_product, print_rounding, print_single_row
from smelt.kernel.emit.blocks_cuda import choose_shape
from smelt.kernel.emit.printer import Printer, apply_text
from smelt.kernel.emit.rows_cuda import print_loop
from smelt.kernel.emit.tile_cuda import FEW, MMA, TILE, TILED
from smelt.kernel.emit.tile_dense import element_types, tile_call
from smelt.kernel.emit.tile_few import few_call, stream_call
from smelt.kernel.emit.vector_cuda import LANE
from smelt.kernel.loops.adjacent import find_definitions, first_place, is_multiple
from smelt.kernel.loops.fold import identity
from smelt.kernel.loops.form import STREAM
from smelt.kernel.loops.grammar import (
    SHORT,
    Affine,
    Amount,
    Attend,
    BlockMma,
    Decode,
    Expr,
    Fail,
    Fold,
    For,
    If,
    Let,
    Load,
    Mma,
    Number,
    Place,
    Quotient,
    Remainder,
    RoundRow,
    Set,
    Split,
    Stmt,
    Store,
    Tile,
    Transpose,
    Update,
    Var,
    loads,
    reads_from,
    reads_memory,
    static_extent,
    stores_to,
    variables,
    walk_statements,
)
from smelt.kernel.loops.simt import (
    THREADS,
    WARP,
    Stage,
    has_multiprocessors,
    map_to_grid,
)
from smelt.kernel.loops.tensor_tile import (
    DECODE_BLOCKS,
    FEW_TENSOR,
    STREAM_COLUMNS,
    TENSOR,
    WARPS,
    attend_blocks,
    few_columns,
    most_blocks,
    resident_blocks,
    stage_bytes,
    stage_steps,
    stream_rows,
    stream_stage_bytes,
    tile_columns,
    tile_rows,
)
from smelt.kernel.plan.plan import Kernel

FEW_ROWS, FEW_COLUMNS = 8, (16, 32, 64)  # that `smelt_few_FORM` is for
SMALL = 1 << 31
PREFETCHED = ("next", "pieces", "stride", "bytes")  # address, number of pieces, their distance, bytes of each
AT_ONCE, MANY = 4, 1 << 20  # iterations of a thread together, where a map has many elements
STAGED, STAGED_DYNAMIC = 16 << 10, 1024  # bytes of terms of a reduction in shared memory; terms, of a dynamic number,
STAGED_BESIDE = 30 << 10  # beside at most this number of bytes
AT_ONCE_ASIDE = 32  # loads of a warp beside a product
SHORT_ROW = 1024  # elements of a row that a warp may hold in registers
VECTORS = ((8, 16), (20, 8), (48, 4))  # by the statements of an element, how many a thread reads at once: short code
ATOMIC = {"add": "atomicAdd", "and": "atomicAnd", "or": "atomicOr", "xor": "atomicXor"} | {
    "minimum": "atomicMin",
    "maximum": "atomicMax",
}
UNROLLED = 32  # statements of a loop of which several iterations are computed together
SEVERAL = 4  # loads of an iteration that are worth being kept together
BATCHES, BATCH_CODE = (8, 4), 64  # iterations of a shared loop whose loads come first; the most statements of all


@dataclass(frozen=True, slots=True)
class Launched:
    """A function of a kernel, as the plan calls it: arguments are buffers, sizes, then the memory of the launch.

    `extent`: iterations, which `per_block` of a block run at a time; None: the function finds out. `saved`: bytes that
    launches of this kernel share; `scratch`: bytes of each group.
    """

    function: str
    buffers: tuple[int, ...]
    sizes: tuple[Size, ...]
    extent: Size | None
    single: bool
    per_block: int
    threads: int
    saved: int
    scratch: int
    shared: int = 0  # bytes of shared memory beside what the function declares
    weights: int | None = None  # the buffer that it reads before it waits itself for the launch in front of it
    early: bool = False  # it holds many weights before it waits: none are prefetched for it
    streams: bool = False  # the copy engine brings them: its blocks share the memory of a multiprocessor
    prefetches: bool = False  # it takes the pieces of memory (`PREFETCHED`) that a later launch reads
    most: int | None = None  # blocks that run at once, where more of them would only wait
    # The buffers that it reads, where it is told to, before it waits itself for the launch in front of it.
    ahead: tuple[int, ...] | None = None


@dataclass(slots=True)
class CudaKernel:
    """The functions of a kernel."""

    name: str
    shared: int  # bytes of a block's shared memory
    launches: list[Launched] = field(default_factory=list)

    def emit(self, kernel: Kernel) -> str:
        stages, saved = map_to_grid(kernel, self.shared)
        texts = []
        for i, stage in enumerate(stages):
            printer = StagePrinter(f"{self.name}_{i}", stage=stage, saved_bytes=saved)
            texts.append(printer.emit())
            self.launches.append(printer.launch_record())
        return "\n".join(texts)


@dataclass(slots=True)
class StagePrinter(Printer):
    """One function. `alone`: the code that is printed now belongs to one thread, not to its group."""

    stage: Stage = field(kw_only=True)
    saved_bytes: int = 0  # of all launches of the kernel
    buffers: dict[int, None] = field(default_factory=dict)
    alone: bool = False
    counters: Size | None = None  # of tiles whose K is split
    read: set[int | str] = field(default_factory=set)
    held: dict[tuple[Place, DType], str] = field(default_factory=dict)  # vectors in registers, by their first element

    def emit(self) -> str:
        stage = self.stage
        self.alone = stage.group == "thread"
        self.read = reads_from((*stage.before, *stage.body))
        before = self.block(stage.before, 1)
        extent = None if stage.extent is None else self.expr(stage.extent)
        single = next((each for each in stage.body if isinstance(each, BlockMma) and each.single), None)
        body = print_single_row(self, single, 1) if single else self.block(stage.body, 1 if extent is None else 2)
        lines = [*self.tiles(), *self.restore(), *before]
        if single:
            lines += body
        elif extent is None:
            lines += [*body, *self.save()]
        else:
            assert stage.var is not None
            groups, var = stage.groups * self.at_once, stage.var.name
            first = {"thread": "threadIdx.x", "warp": f"(threadIdx.x / {WARP})", "block": "0"}[stage.group]
            lines += [
                f"  for (i64 {var} = (i64)blockIdx.x * {groups} + {first}; {var} < {extent};"
                f" {var} += (i64)gridDim.x * {groups}) {{",
                *(body if self.at_once == 1 else self.copies(body, extent)),
                "  }",
            ]
        waits = self.weights is None
        kept = "" if waits else "const "
        parameters = [f"char *{kept}b{i}" for i in self.buffers]
        parameters += [f"const i64 s{i}" for i in range(len(self.sizes))]
        parameters.append(f"char *{kept}smelt_memory")
        if self.prefetches:
            parameters += [f"const i64 smelt_{name}" for name in PREFETCHED]
        parameters += ["const i64 smelt_begins_early"] if find_decode(self.stage) else []
        bounds = str(stage.threads) if self.resident == 1 else f"{stage.threads}, {self.resident}"
        cluster = f"__cluster_dims__({self.cluster}, 1, 1) " if self.cluster > 1 else ""
        head = (
            f'extern "C" __global__ void {cluster}__launch_bounds__({bounds}) {self.name}({", ".join(parameters)}) {{'
        )
        lane = {"thread": "0", "warp": f"(int)(threadIdx.x % {WARP})", "block": "(int)threadIdx.x"}[stage.group]
        start = [f"  const int {LANE} = {lane}; (void){LANE};"]
        if self.prefetches:
            start.append(f"  smelt_prefetch_pieces({', '.join(f'smelt_{name}' for name in PREFETCHED)});")
        start.append("  SMELT_RELEASE();")
        if waits:
            start += [*print_early(self), "  SMELT_AWAIT();"]
            start += [f"  SMELT_BEHIND({name});" for name in (*(f"b{i}" for i in self.buffers), "smelt_memory")]
        if self.prefetches:
            start += ["  if (blockIdx.x) return;"] if stage.extent is None else []  # others only prefetch
        counters = [f"static __device__ ui32 {self.name}_counters[{self.counters}];"] if self.counters else []
        return "\n".join([*counters, head, *start, *self.locals.values(), *lines, "}"])

    def launch_record(self) -> Launched:
        stage = self.stage
        extent = static_extent(stage.extent)
        single = stage.extent is None
        return Launched(
            self.name,
            tuple(self.buffers),
            tuple(self.sizes),
            extent,
            single,
            stage.groups * self.at_once,
            WARP if single and stage.group == "warp" else stage.threads,
            self.saved_bytes,
            stage.scratch,
            stage.shared if stage.ring else 0,
            self.weights,
            self.early,
            self.streams,
            self.prefetches,
            self.most,
            early_reads(stage),
        )

    @property
    def most(self) -> int | None:
        """Blocks of products whose weights the copy engine brings: each has several tiles."""
        streams = [each for each in self.stage.body if isinstance(each, BlockMma) and each.stages]
        return min(map(most_blocks, streams), default=None)

    @property
    def prefetches(self) -> bool:
        """Whether it reads so little that memory bandwidth is left to prefetch the weights of a later launch."""
        kinds = Mma | Attend | BlockMma
        products = [each for each in walk_statements(self.stage.body) if isinstance(each, kinds)]
        return not products

    @property
    def early(self) -> bool:
        """Whether it is a product of few rows, which holds many weights while it waits for the rows."""
        products = [each for each in walk_statements(self.stage.body) if isinstance(each, Mma | BlockMma)]
        return any(isinstance(each, BlockMma) or each.form in FEW_TENSOR for each in products)

    @property
    def streams(self) -> bool:
        """Whether the copy engine brings the weights of a product of few rows."""
        products = [each for each in walk_statements(self.stage.body) if isinstance(each, Mma | BlockMma)]
        return any(each.stages > 0 if isinstance(each, BlockMma) else each.form in STREAM for each in products)

    @property
    def resident(self) -> int:
        """Thread blocks per multiprocessor that should be resident, to hide latency."""
        products = [each for each in walk_statements(self.stage.body) if isinstance(each, Mma | BlockMma)]
        if any(isinstance(each, Decode) for each in walk_statements(self.stage.body)):
            return DECODE_BLOCKS
        attend = next((each for each in walk_statements(self.stage.body) if isinstance(each, Attend)), None)
        if attend is not None:
            return attend_blocks(attend)
        few = [each for each in products if isinstance(each, Mma) and each.form in FEW_TENSOR]
        by_blocks = [choose_shape(each)[1] for each in products if isinstance(each, BlockMma)]
        blocks = static_extent(self.stage.extent)
        return min((*by_blocks, *(resident_blocks(each, blocks) for each in few)), default=1)

    @property
    def cluster(self) -> int:
        """Thread blocks that read each other's shared memory. They have adjacent iterations."""
        return max((each.share for each in walk_statements(self.stage.body) if isinstance(each, Decode)), default=1)

    @property
    def weights(self) -> int | None:
        """The right operand of the only product, if nothing is read before it."""
        is_product = Mma | BlockMma
        before = itertools.takewhile(lambda each: not isinstance(each, is_product), self.stage.body)
        first = [*self.stage.before, *before]
        products = [each for each in walk_statements(self.stage.body) if isinstance(each, is_product)]
        if len(products) != 1 or products[0] not in self.stage.body:
            return None
        (one,) = products
        if isinstance(one, Mma) and one.form not in (*FEW_TENSOR, *TENSOR):
            return None
        touched = reads_from(first) | stores_to(first)
        plain = not any(isinstance(array, int) for array in touched) and not self.stage.restores
        array = (one.b if isinstance(one, Mma) else one.panel).place.array
        return array if plain and isinstance(array, int) else None

    @property
    def at_once(self) -> int:
        """Iterations that a thread computes together: it then reads the operands of all of them before it stores."""
        stage, extent = self.stage, static_extent(self.stage.extent)
        simple = stage.group == "thread" and is_map(stage.body)
        return AT_ONCE if simple and isinstance(extent, int) and extent >= MANY else 1

    def copies(self, body: list[str], extent: str) -> list[str]:
        """The body for several iterations, their stores last: iterations of a parallel loop do not depend on others."""
        assert self.stage.var is not None
        var, threads = self.stage.var.name, self.stage.threads
        names = [var, *(each.var.name for each in self.stage.body if isinstance(each, Let))]
        stores = is_map(self.stage.body)
        indented = ["  " + line for line in body]
        whole = repeat_map(
            indented, names, stores, AT_ONCE, lambda i: f"      const i64 {var}_{i} = {var} + {i * threads};"
        )
        own = re.compile(rf"\b({'|'.join(names)})\b")
        first = [own.sub(r"\1_0", line) for line in indented]
        head = f"      for (i64 {var}_0 = {var}; {var}_0 < {extent}; {var}_0 += {threads}) {{"
        one_by_one = [head, *first, "      }"]
        return [
            f"    if ({var} + {(AT_ONCE - 1) * threads} < {extent}) {{",
            *whole,
            "    } else {",
            *one_by_one,
            "    }",
        ]

    # -- memory --

    def tiles(self) -> list[str]:
        """Tiles of a group in shared memory, and what does not fit there in device memory."""
        stage, lines = self.stage, []
        group = {"thread": "0", "warp": f"threadIdx.x / {WARP}", "block": "0"}[stage.group]
        if stage.ring:
            lines.append("  extern __shared__ __align__(1024) char smelt_shared[];")
        elif stage.shared:
            lines.append(f"  __shared__ __align__(16) char smelt_shared[{stage.groups * stage.shared}];")
        for tile, at in stage.tiles:
            kind = math.register(tile.dtype)
            lines.append(f"  {kind} *const {tile.name} = ({kind} *)(smelt_shared + {group} * {stage.shared} + {at});")
        for tile, at in stage.spilled:
            kind, number = math.register(tile.dtype), f"((i64)blockIdx.x * {stage.groups} + {group})"
            where = f"smelt_memory + {self.saved_bytes} + {number} * {stage.scratch} + {at}"
            lines.append(f"  {kind} *const {tile.name} = ({kind} *)({where});")
        for tile, at in stage.kept_tiles:
            kind = math.register(tile.dtype)
            lines.append(f"  {kind} *const {tile.name} = ({kind} *)(smelt_memory + {at});")
        return lines

    def restore(self) -> list[str]:
        kinds = [(math.register(var.dtype), var, at) for var, at in self.stage.restores]
        return [f"  const {kind} {var.name} = *(const {kind} *)(smelt_memory + {at});" for kind, var, at in kinds]

    def save(self) -> list[str]:
        kinds = [(math.register(var.dtype), var, at) for var, at in self.stage.saves]
        return [f"  if ({LANE} == 0) *({kind} *)(smelt_memory + {at}) = {var.name};" for kind, var, at in kinds]

    def pointer(self, buffer: int, kind: str) -> str:
        self.buffers[buffer] = None
        name = f"b{buffer}_{kind}"
        self.locals[name] = f"  {kind} *const {name} = ({kind} *)b{buffer};"
        return name

    def size_value(self, place: int) -> str:
        return f"s{place}"

    # -- statements --

    def statement(self, stmt: Stmt, depth: int) -> list[str]:
        pad = "  " * depth
        row = None if self.alone else self.stage.row
        match stmt:
            case Fold() | For() if row is not None and (vectors := dict(row.loops).get(stmt)) is not None:
                return print_loop(self, row, stmt, vectors, depth)
            case For(_, _, _, "lane") if not self.alone:
                return self.shared_loop(stmt, depth)
            case For(_, _, _, "warp") if not self.alone and self.stage.group == "block":
                return self.warp_loop(stmt, depth)
            case For(_, _, _, "vector"):
                reads, rest = self.vector_loop(stmt, depth + 1)
                return [f"{pad}{{", *reads, *rest, f"{pad}}}"]
            case For(var, extent, body):
                head = f"{pad}for (i64 {var.name} = 0; {var.name} < {self.expr(extent)}; {var.name}++) {{"
                simple = self.alone and len(body) <= UNROLLED and all(isinstance(each, Let | Set) for each in body)
                at_once = ["#pragma unroll 16"] if simple else []  # loads of several iterations
                early = count_reads(body) if self.alone and not simple else 0
                first = [*self.block(body[:early], depth + 1), f"{pad}  SMELT_READ();"] if early else []
                return [*at_once, head, *first, *self.block(body[early:], depth + 1), f"{pad}}}"]
            case Store() if not self.alone:
                (line,) = self.plain(stmt, 0)
                return self.fence([f"{pad}if ({LANE} == 0) {line}"], stmt, pad, always=True)
            case Update():
                only = "" if self.alone else f"if ({LANE} == 0) "
                return self.fence([f"{pad}{only}{self.update(stmt)}"], stmt, pad, always=True)
            case Tile(name, dtype, count):
                return [f"{pad}{math.register(dtype)} {name}[{count}];"] if self.stage.group == "thread" else []
            case Fold() if self.is_warp_wide(stmt):
                return self.warp_fold(stmt, depth)
            case Fold() if not self.alone and stmt.lanes > 1:
                return self.shared_fold(stmt, depth)
            case Fold():
                return self.fold(stmt, depth)
            case Transpose(target, source):
                rows, columns = (size.value for size in source.sizes if isinstance(size, Number))
                sides = f"{source.place.array}, {rows}, {columns}, {target.place.array}"
                return self.fence([f"{pad}smelt_transpose({self.members}, {sides});"], stmt, pad)
            case Mma():
                return self.fence([f"{pad}{self.mma(stmt)}"], stmt, pad)
            case Attend():
                return print_attend(self, stmt, depth)
            case Decode():
                return self.fence(print_decode(self, stmt, depth), stmt, pad)
            case BlockMma():
                return self.fence(print_product(self, stmt, depth), stmt, pad)
            case RoundRow():
                return [f"{pad}{print_rounding(self, stmt)}"]
            case Fail():
                raise AssertionError("no builder writes it")
        return self.plain(stmt, depth)

    def update(self, update: Update) -> str:
        """A call of CUDA's atomic function, of which minima and maxima alone take integers with a sign."""
        dtype = update.value.dtype
        signed = dtype.kind == "int" and update.function in ("minimum", "maximum")
        kind = ("" if signed else "unsigned ") + ("int" if dtype.bits == 32 else "long long")
        place = self.address(update.place, math.storage(dtype))
        return f"{ATOMIC[update.function]}(({kind} *)({place}), ({kind})({self.expr(update.value)}));"

    @property
    def members(self) -> str:
        """A thread's number, and the number of threads that share the work."""
        return "0, 1" if self.alone else f"{LANE}, {self.group_threads}"

    @property
    def group_threads(self) -> int:
        return WARP if self.stage.group == "warp" else self.stage.threads

    def fence(self, lines: list[str], stmt: Stmt, pad: str, *, always: bool = False) -> list[str]:
        """Statements whose stores other threads of the group may read: a barrier on either side.

        `always`: one thread stores what all have read from a buffer that may share the memory.
        """
        if self.alone or not (always or stores_to((stmt,)) & self.read):
            return lines
        barrier = f"{pad}{'__syncwarp' if self.stage.group == 'warp' else '__syncthreads'}();"
        return [barrier, *lines, barrier]

    def warp_loop(self, loop: For, depth: int) -> list[str]:
        """A loop on warps: an iteration is run by the threads of one, which are its group."""
        pad, var, whole = "  " * depth, loop.var.name, self.stage
        head = f"{pad}for (i64 {var} = smelt_of_block / {WARP}; {var} < {self.expr(loop.extent)}; {var} += {WARPS}) {{"
        self.stage = replace(whole, group="warp")
        body = self.block(loop.body, depth + 1)
        self.stage = whole
        own = [f"{pad}{{ const int smelt_of_block = {LANE};", f"{pad}const int {LANE} = smelt_of_block % {WARP};"]
        return self.fence([own[0], f"{pad}{{", own[1], head, *body, f"{pad}}} }} }}"], loop, pad)

    def shared_loop(self, loop: For, depth: int) -> list[str]:
        """A loop on lanes: its iterations on the threads of the group."""
        assert not any(isinstance(each, Tile) for each in walk_statements(loop.body)), "threads would share the tile"
        pad, var = "  " * depth, loop.var.name
        extent = self.expr(loop.extent)
        count = self.group_threads
        self.alone = True
        body = self.block(loop.body, depth + 1)
        vectors = self.batch_vectors(loop, extent, count, depth)
        self.alone = False
        if vectors is not None:
            return self.fence(vectors, loop, pad)
        lines = self.batch_loads(loop, body, extent, count, pad)
        if lines is not None:
            return self.fence(lines, loop, pad)
        head = loop_head(pad, var, LANE, loop.extent, extent, count)
        into_tiles = all(isinstance(array, str) for array in stores_to(loop.body))  # which no buffer shares memory with
        simple = into_tiles and all(isinstance(each, Let | Store) for each in loop.body)
        at_once = ["#pragma unroll 8"] if simple and "for" in head[0] else []
        return self.fence([*at_once, *head, *body, f"{pad}}}"], loop, pad)

    def batch_loads(self, loop: For, body: list[str], extent: str, count: int, pad: str) -> list[str] | None:
        """A loop on lanes into a buffer: several iterations read their operands before any of them stores."""
        stores, fixed = is_map(loop.body), static_extent(loop.extent)
        if not stores or not any(isinstance(array, int) for array in reads_from(loop.body)):
            return None
        fits = (each for each in BATCHES if isinstance(fixed, int) and fixed >= each * count)
        several = next((each for each in fits if each * len(loop.body) <= BATCH_CODE), 0)
        if not several:
            return None
        var = loop.var.name
        names = [var, *(each.var.name for each in loop.body if isinstance(each, Let))]
        return [
            f"{pad}i64 {var}_next = {LANE};",
            f"{pad}for (; {var}_next + {(several - 1) * count} < {extent}; {var}_next += {several * count}) {{",
            *repeat_map(
                body, names, stores, several, lambda i: f"{pad}  const i64 {var}_{i} = {var}_next + {i * count};"
            ),
            f"{pad}}}",
            f"{pad}for (i64 {var} = {var}_next; {var} < {extent}; {var} += {count}) {{",
            *body,
            f"{pad}}}",
        ]

    def batch_vectors(self, loop: For, extent: str, count: int, depth: int) -> list[str] | None:
        """A loop on lanes over vectors: several iterations read theirs before any of them stores."""
        *names, last = loop.body
        if not (isinstance(last, For) and last.level == "vector" and all(isinstance(each, Let) for each in names)):
            return None
        if isinstance(fixed := static_extent(loop.extent), int) and fixed <= count:  # a thread has one
            return None
        most = next((count for code, count in VECTORS if len(last.body) <= code), 2)
        turns = loop.var.extent // count if isinstance(loop.var.extent, int) else 1
        several = max(each for each in range(1, most + 1) if max(turns, 1) % each == 0)
        pad, var = "  " * depth, loop.var.name
        reads, rest = self.vector_loop(last, depth + 1)
        reads = [*self.block(names, depth + 1), *reads]
        words = {word for line in reads for word in re.findall(r"(?:const )?[\w<>, ]+ (\w+)(?: = |;)", line)}
        own = re.compile(rf"\b({'|'.join(sorted({var, *words}))})\b")

        def copy(lines: list[str], i: int) -> list[str]:
            return [own.sub(rf"\1_{i}", line) for line in lines]

        heads = [[f"{pad}  const i64 {var}_{i} = {var}_next + {i * count};"] for i in range(several)]
        return [
            f"{pad}i64 {var}_next = {LANE};",
            f"{pad}for (; {var}_next + {(several - 1) * count} < {extent}; {var}_next += {several * count}) {{",
            *(line for i in range(several) for line in (*heads[i], *copy(reads, i))),
            *(line for i in range(several) for line in copy(rest, i)),
            f"{pad}}}",
            f"{pad}for (i64 {var} = {var}_next; {var} < {extent}; {var} += {count}) {{",
            *reads,
            *rest,
            f"{pad}}}",
        ]

    def vector_loop(self, loop: For, depth: int) -> tuple[list[str], list[str]]:
        """(lines that read, lines that compute and store): those of several loops may be put together."""
        definitions = self.definitions
        pad, at, count = "  " * depth, loop.var.name, static_extent(loop.extent)
        assert isinstance(count, int)
        early: list[str] = []
        inside: list[str] = []
        late: list[str] = []

        for each in loop.body:
            match each:
                case Let(var, Load(place, dtype)) if (
                    begin := first_place(place, loop, definitions, dtype)
                ) is not None:
                    tile = isinstance(place.array, str)
                    kind = math.register(dtype) if tile else math.storage(dtype)
                    pack = f"smelt_vector<{kind}, {count}>"
                    where = self.address(begin, kind)
                    read = f"*(const {pack} *)({where})" if tile else f"smelt_get_pack<{pack}>({where})"
                    held = self.held.get((begin, dtype))
                    early += [] if held else [f"{pad}const {pack} {var.name}_all = {read};"]
                    value = f"{held or f'{var.name}_all'}.x[{at}]"
                    value = value if tile else math.load(dtype, value)
                    inside.append(f"{pad}  const {math.register(dtype)} {var.name} = {value};")
                case Store(place, value) if (begin := first_place(place, loop, definitions, value.dtype)) is not None:
                    tile, name, text = isinstance(place.array, str), f"stored_{at}_{len(late)}", self.expr(value)
                    kind = math.register(value.dtype) if tile else math.storage(value.dtype)
                    pack, where = f"smelt_vector<{kind}, {count}>", self.address(begin, kind)
                    inside.append(f"{pad}  {name}.x[{at}] = {text if tile else math.store(value.dtype, text)};")
                    put = f"*({pack} *)({where}) = {name};" if tile else f"smelt_put_pack({where}, {name});"
                    late.append(f"{pad}{put}")
                    early.append(f"{pad}{pack} {name};")
                case _:
                    inside += self.statement(each, depth + 1)
        head = [f"{pad}for (int {at} = 0; {at} < {count}; {at}++) {{"]
        return early, ["#pragma unroll", *head, *inside, f"{pad}}}", *late]

    @property
    def definitions(self) -> dict[Var, Expr]:
        return find_definitions((*self.stage.before, *self.stage.body))

    def is_warp_wide(self, fold: Fold) -> bool:
        """Whether each thread of a warp may have a term: integers need no order."""
        count = static_extent(fold.extent)
        shared = not self.alone and self.stage.group == "warp" and fold.accumulator == fold.total.dtype
        return shared and fold.accumulator in (i32, i64) and isinstance(count, int) and count in (WARP // 2, WARP)

    def warp_fold(self, fold: Fold, depth: int) -> list[str]:
        """A term for each thread of a warp or of its first half, combined by shuffles."""
        pad, dtype, total = "  " * depth, fold.total.dtype, fold.total.name
        count, kind = static_extent(fold.extent), math.register(dtype)

        def step(a: str, b: str) -> str:
            return apply_text(fold.function, [a, b], [dtype, dtype], dtype)

        self.alone = True
        body = self.block(fold.body, depth + 1)
        self.alone = False
        halves = [16, 8, 4, 2, 1] if count == WARP else [8, 4, 2, 1]
        return [
            f"{pad}{kind} {total};",
            f"{pad}{{",
            f"{pad}  const i64 {fold.var.name} = {LANE} % {count};",
            *body,
            f"{pad}  {kind} part = {self.expr(fold.value)};",
            *(f"{pad}  part = {step('part', f'smelt_shuffle_down(part, {half})')};" for half in halves),
            f"{pad}  {total} = {step(self.expr(fold.start), 'smelt_shuffle_first(part)')};",
            f"{pad}}}",
        ]

    def shared_fold(self, fold: Fold, depth: int) -> list[str]:
        """Its lanes are those of a warp, and halves are combined by shuffles. Every warp of a block computes it."""
        pad, kind, wide = "  " * depth, math.register(fold.total.dtype), fold.accumulator
        var, total, extent = fold.var.name, fold.total.name, self.expr(fold.extent)

        def step(a: str, b: str, of: DType) -> str:
            return apply_text(fold.function, [a, b], [of, of], of)

        value, start = self.expr(fold.value), self.expr(fold.start)
        self.alone = True
        short, body = self.block(fold.body, depth + 2), self.block(fold.body, depth + 2)
        self.alone = False
        tree = [
            f"{pad}  {{ const {kind} other = smelt_shuffle_down(part, {half}); part = {step('part', 'other', wide)}; }}"
            for half in (16, 8, 4, 2, 1)
        ]
        return [
            f"{pad}{kind} {total};",
            f"{pad}if ({extent} <= {SHORT}) {{",
            f"{pad}  {kind} sum = {start};",
            f"{pad}  for (i64 {var} = 0; {var} < {extent}; {var}++) {{",
            *short,
            f"{pad}    sum = {step('sum', value, fold.total.dtype)};",
            f"{pad}  }}",
            f"{pad}  {total} = sum;",
            f"{pad}}} else {{",
            f"{pad}  {kind} part = {math.literal(identity(fold.function, wide).value, wide)};",
            *self.terms(fold, depth + 1, body, value, step("part", "term", wide)),
            *tree,
            f"{pad}  part = smelt_shuffle_first(part);",
            f"{pad}  {total} = {step(start, 'part', fold.total.dtype)};",
            f"{pad}}}",
        ]

    def terms(self, fold: Fold, depth: int, body: list[str], value: str, add: str) -> list[str]:
        """The loop of a thread over its terms. In a block all threads compute terms, which go through shared memory."""
        pad, kind, var, extent = "  " * depth, math.register(fold.accumulator), fold.var.name, self.expr(fold.extent)
        far = any(isinstance(array, int) for array in reads_from((fold,)))
        if self.stage.group == "warp" or not far or self.stage.ring or self.stage.shared > STAGED_BESIDE:
            head = loop_head(pad, var, f"{LANE} % {WARP}", fold.extent, extent, WARP)
            size = static_extent(fold.extent)
            # Loads of several terms at once; those of a short row are kept for what follows.
            times = "" if isinstance(size, int) and size <= SHORT_ROW and size % WARP == 0 else " 8"
            times = times and f" {AT_ONCE_ASIDE}" if self.stage.ring else times  # its warp is alone
            return [
                *([f"#pragma unroll{times}"] if "for" in head[0] else []),
                *head,
                *body,
                f"{pad}  const {kind} term = {value};",
                f"{pad}  part = {add};",
                f"{pad}}}",
            ]
        count = STAGED // -(-fold.accumulator.bits // 8)
        fixed = static_extent(fold.extent)
        count = min(count, -(-fixed // THREADS) * THREADS if isinstance(fixed, int) else STAGED_DYNAMIC)
        last = f"({extent} - first < {count} ? (int)({extent} - first) : {count})"
        self.locals["terms"] = f"  __shared__ __align__(16) char smelt_terms[{STAGED}];"
        return [
            f"{pad}{{ {kind} *const terms = ({kind} *)smelt_terms;",
            f"{pad}for (i64 first = 0; first < {extent}; first += {count}) {{",
            f"{pad}  __syncthreads();",
            "#pragma unroll 8",  # loads of several terms at once: those after the last one are read again
            f"{pad}  for (int turn = {LANE}; turn < {count}; turn += {THREADS}) {{",
            f"{pad}    const i64 {var} = first + turn < {extent} ? first + turn : {extent} - 1;",
            *body,
            f"{pad}    terms[turn] = {value};",
            f"{pad}  }}",
            f"{pad}  __syncthreads();",
            "#pragma unroll 16",
            f"{pad}  for (int at = {LANE} % {WARP}; at < {last}; at += {WARP}) {{",
            f"{pad}    const {kind} term = terms[at];",
            f"{pad}    part = {add};",
            f"{pad}  }}",
            f"{pad}}} }}",
        ]

    def mma(self, mma: Mma) -> str:
        """A call of the micro-kernel of a form by the group."""
        (rows, *counts, extent), (row, *steps, step) = mma.a.sizes, mma.a.strides
        taps, tap, *turns = taps_of_window(counts, steps)
        panel, columns = mma.acc.strides[0], mma.acc.sizes[1]
        starts, row_text = ("(const i64 *)0", self.expr(row))
        if isinstance(row, Load):
            starts, row_text = str(row.place.array), "0"
        left, right = element_types(mma.form)
        given = [
            self.expr(rows),
            f"(const {left} *)({self.address(mma.a.place, math.storage(mma.form.left))})",
            *(starts, row_text),
            *map(self.expr, (tap, step)),
            f"(const {right} *)({self.address(mma.b.place, math.storage(mma.form.right))})",
            *map(self.expr, (mma.b.strides[0], taps, extent)),
            self.address(mma.acc.place, math.register(mma.form.total)),
            *map(self.expr, (panel, columns, Number(0) if isinstance(mma.accumulate, Split) else mma.accumulate)),
        ]
        name = mma.form.name
        if mma.form in TENSOR:
            given = [*given[:5], *map(self.expr, turns), *given[6:8], self.expr(mma.b.strides[2]), *given[8:]]
            tall, wide = tile_rows(mma, (tile for tile, _ in self.stage.tiles)), tile_columns(mma)
            deep = stage_steps(mma.form, alone=has_multiprocessors(self.stage.extent))
            ring = self.stage.ring // stage_bytes(mma.form, wide, tall, deep), deep
            splits = isinstance(mma.accumulate, Split)
            flags = {"aligned": self.is_aligned(mma), "window": len(counts) > 1, "splits": splits}
            function = tile_call(mma.form, tall, wide, ring, **flags)
            share = [self.share(mma.accumulate, tall * wide)] if isinstance(mma.accumulate, Split) else []
            return f"{function}({LANE}, smelt_shared, {', '.join((*given, *share))});"
        if mma.form in STREAM:
            splits, rows_there = isinstance(mma.accumulate, Split), stream_rows(mma)
            stages = self.stage.ring // stream_stage_bytes(mma)
            function = stream_call(mma.form, rows_there, stages, aligned=self.is_aligned(mma), splits=splits)
            few = [given[i] for i in (0, 1, 3, 6, 7, 9, 10, 11)]
            few += (
                [self.share(mma.accumulate, rows_there * STREAM_COLUMNS)] if isinstance(mma.accumulate, Split) else []
            )
            return f"{function}({LANE}, smelt_shared, {', '.join(few)});"
        if mma.form in FEW_TENSOR:
            few = [given[i] for i in (0, 1, 3, 6, 7, 9, 10, 11, 12)]
            function = few_call(mma.form, few_columns(mma))
            return f"{function}({LANE}, smelt_shared, {', '.join(few)});"
        if self.alone or self.stage.group == "warp" or mma.form not in TILED:
            return f"{MMA}{name}({self.members}, {', '.join(given)});"
        products = [each for each in walk_statements(self.stage.body) if isinstance(each, Mma)]
        plain = len(products) == 1 and taps == Number(1) and mma.accumulate == Number(0) and not isinstance(row, Load)
        match panel:
            case Number(int(wide)) if plain and wide in FEW_COLUMNS and (most := self.most_rows(mma)) <= FEW_ROWS:
                few = [given[i] for i in (0, 1, 3, 5, 6, 7, 9, 10, 11, 12)]
                sizes = f"{most}, {str(not isinstance(rows, Number)).lower()}, {wide}"
                return f"{FEW}{name}<{sizes}>({LANE}, {', '.join(few)});"
        return f"{TILE}{name}({LANE}, {', '.join(given)});"

    def most_rows(self, mma: Mma) -> float:
        """The rows of a product, or those that its tile has room for."""
        rows = mma.a.sizes[0]
        if isinstance(rows, Number):
            return int(rows.value.real)
        tiles = [each for each, _ in self.stage.tiles if each.name == mma.acc.place.array]
        return tiles[0].count // few_columns(mma) if tiles else inf

    def is_aligned(self, mma: Mma) -> bool:
        """Whether all rows and taps of the left operand surely begin and end at 16 bytes, as every buffer does."""
        row, *taps, _ = mma.a.strides
        steps = [mma.a.place.index, mma.a.sizes[-1], *taps, *([] if isinstance(row, Load) else [row])]
        if isinstance(row, Load):
            first = [each for each in walk_statements(self.stage.body) if isinstance(each, Store)]
            here = (each for each in first if each.place.array == row.place.array)
            steps += [each.value for each in here if not is_second_half(each.place.index)]
        number, known = 128 // mma.form.left.bits, self.definitions
        return all(is_multiple(each, number, known) for each in steps)

    def share(self, split: Split, sums: int) -> str:
        """What a block that has a part of K shares with others. Counters are zero before and after every launch."""
        parts, done, tile, count = split.parts, split.done, self.expr(split.tile), self.expr(split.count)
        assert isinstance(parts, Load)
        assert isinstance(done, Load)
        self.counters = static_extent(split.tiles)
        first = f"{self.address(parts.place, 'f32')} + ({tile}) * {count} * {sums}"
        counter = f"{self.name}_counters + {tile}"
        return f"smelt_share{{{self.expr(split.number)}, {count}, {first}, {counter}, {done.place.array}}}"

    def touch(self, statements: Sequence[Stmt], depth: int, touched: list[str]) -> list[str]:
        """Loads of what loops on lanes read from memory at places that they compute: it is in the L1 cache then.
        `touched`: the variables with the results, which the caller declares and uses."""
        pad, lines, unknown = "  " * depth, list[str](), set[Var]()
        for each in statements:
            match each:
                case For(var, extent, body, "lane") if inside := self.touch(body, depth + 1, touched):
                    lines += [*loop_head(pad, var.name, LANE, extent, self.expr(extent), WARP), *inside, f"{pad}}}"]
                case If(condition, then, _) if not reads_memory(condition) and unknown.isdisjoint(variables(condition)):
                    if inside := self.touch(then, depth + 1, touched):
                        lines += [f"{pad}if ({self.expr(condition)}) {{", *inside, f"{pad}}}"]
                case Let(var, value) if reads_memory(value) or not unknown.isdisjoint(variables(value)):
                    unknown.add(var)
                    read = [load for load in loads(value) if isinstance(load.place.array, int)]
                    known = (load for load in read if not reads_memory(load.place.index))
                    known = (load for load in known if unknown.isdisjoint(variables(load.place.index)))
                    for address in [self.address(each.place, math.storage(each.dtype)) for each in known]:
                        touched.append(f"smelt_near{len(touched)}")
                        lines.append(f"{pad}{touched[-1]} = smelt_touch({address});")
                case Let():
                    lines += self.statement(each, depth)
        return [f"{pad}{{", *lines, f"{pad}}}"] if any("smelt_touch" in line for line in lines) else []

    # -- expressions --

    def expr(self, expr: Expr) -> str:
        """Divisions of small numbers by constants take 32 bits."""
        match expr:
            case Quotient(Var(name, _, int(extent)), int(size)) if 0 < extent < SMALL and 0 < size < SMALL:
                return f"(i64)((ui32){name} / {size}u)"
            case Remainder(Var(name, _, int(extent)), int(size)) if 0 < extent < SMALL and 0 < size < SMALL:
                return f"(i64)((ui32){name} % {size}u)"
        return Printer.expr(self, expr)


def loop_head(pad: str, var: str, first: str, extent: Expr, text: str, stride: int) -> list[str]:
    """The head of a loop from `first` on, which is less than `stride`. A constant number of iterations is unrolled
    without a rest: code that runs once per block must be short."""
    match static_extent(extent):
        case int(count) if 0 < count <= stride:
            test = "" if count == stride else f"if ({first} < {count}) "
            return [f"{pad}{test}{{", f"{pad}  const i64 {var} = {first};"]
        case int(count) if count and count % stride == 0:
            head = f"{pad}for (int turn = 0; turn < {count // stride}; turn++) {{"
            return [head, f"{pad}  const i64 {var} = {first} + {stride} * turn;"]
    return [f"{pad}for (i64 {var} = {first}; {var} < {text}; {var} += {stride}) {{"]


def taps_of_window(counts: Sequence[Expr], steps: Sequence[Expr]) -> tuple[Expr, Expr, Expr, Expr]:
    """(taps, their distance, taps of a line of the window, what a line adds to that distance)."""
    if len(counts) == 1:
        return counts[0], steps[0], Number(0), Number(0)
    (lines, across), (line, tap) = (tuple(static_extent(each) for each in given) for given in (counts, steps))
    assert lines is not None
    assert across is not None
    assert line is not None
    assert tap is not None
    return Amount(lines * across), Amount(tap), Amount(across), Amount(line - across * tap)


def is_second_half(index: Expr) -> bool:
    """Whether a place in a tile of starts is one of the words that say which taps are there."""
    return isinstance(index, Affine) and index.constant != 0


def count_reads(body: Sequence[Stmt]) -> int:
    """How many statements a body of scalars begins with that read several elements of buffers, before it changes a
    variable; 0: it is another one."""
    if not all(isinstance(each, Let | Set) for each in body):
        return 0
    first = [*itertools.takewhile(lambda each: isinstance(each, Let), body)]
    reads = [i for i, each in enumerate(first) if any(isinstance(array, int) for array in reads_from((each,)))]
    return reads[-1] + 1 if len(reads) >= SEVERAL else 0


def is_map(body: Sequence[Stmt]) -> int:
    """How many stores a body ends with that has nothing but variables in front of them; 0: it is another one."""
    stores = sum(isinstance(each, Store) for each in body)
    plain = all(isinstance(each, Let) for each in body[: len(body) - stores])
    return stores if plain else 0


def repeat_map(body: list[str], names: Sequence[str], stores: int, count: int, head: Callable[[int], str]) -> list[str]:
    """The lines of a map for several iterations, their stores last: iterations of a parallel loop are independent."""
    own = re.compile(rf"\b({'|'.join(names)})\b")
    several = [[head(i), *(own.sub(rf"\1_{i}", line) for line in body)] for i in range(count)]
    return [line for each in several for line in each[:-stores]] + [x for each in several for x in each[-stores:]]
