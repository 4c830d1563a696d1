"""Generated programs without the Python entry: every buffer, temporaries too, in memory of its own.

`Bare` writes the C of some programs so that their temporaries are results that the caller provides. `fenced` runs one
with every buffer ending (or beginning) at a protected page; `write_case` and `driver.c` are for sanitizers.
Run as a module, it tries random problems and prints the name of each before it runs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smelt.device import cpu
from smelt.device.runtime import runtime
from smelt.dim import evaluate, solve
from smelt.dtype import Array
from smelt.engine.compile import lower
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.kernel.emit.c import Source
from smelt.kernel.loops import parallelise
from smelt.kernel.plan.fuse import fuse
from smelt.kernel.plan.in_place import in_place
from smelt.kernel.plan.memory import assign_slots
from smelt.kernel.plan.plan import Buffer, Plan
from smelt.shape import Shape
from smelt.target import Target, tile_shape
from tests.property.problems import KINDS, Problem, difference, draw, edges

UNTOUCHED = 0xFF  # what results and temporaries hold before: no number, in every float type


def exposed(plan: Plan) -> Plan:
    """The plan with its temporaries as further results."""
    count = len(plan.of_kind("result"))
    buffers = list(plan.buffers)
    for i, buffer in enumerate(buffers):
        if buffer.kind == "temporary":
            buffers[i] = Buffer(buffer.shape, "result", count)
            count += 1
    order = sorted((each.index, i) for i, each in enumerate(buffers) if each.kind == "result")
    assert [index for index, _ in order] == list(range(count))
    return plan.replace(buffers=tuple(buffers))


@dataclass(frozen=True)
class Case:
    """A plan, and the contents of its buffers in the order that `run` takes them: arguments, results, constants."""

    name: str
    plan: Plan
    args: tuple[Array, ...]

    @property
    def symbols(self) -> list[int]:
        shapes = [buffer.shape for buffer in self.plan.of_kind("argument")]
        found = solve(
            [size for shape in shapes for size in shape.sizes], [size for array in self.args for size in array.shape]
        )
        return [found[name] for name in self.plan.symbols]

    def shapes(self) -> list[tuple[Shape, tuple[int, ...]]]:
        """The shapes of the results in the order of their numbers, and their sizes."""
        known = dict(zip(self.plan.symbols, self.symbols, strict=True))
        results = sorted(self.plan.of_kind("result"), key=lambda buffer: buffer.index)
        return [(each.shape, tuple(evaluate(size, known) for size in each.shape.sizes)) for each in results]

    def contents(self) -> list[bytes]:
        results = [np.zeros(sizes, shape.dtype.numpy).nbytes for shape, sizes in self.shapes()]
        return [
            *(np.ascontiguousarray(array).tobytes() for array in self.args),
            *(bytes([UNTOUCHED]) * size for size in results),
            *self.plan.constants,
        ]


class Bare:
    """Programs as one C file; program i exports `p{i}_run` and `p{i}_measure`."""

    def __init__(self, programs: Sequence[tuple[str, Program, tuple[Array, ...]]], target: Target) -> None:
        source = Source(tile_shape(target))
        self.cases = []
        for i, (name, program, args) in enumerate(programs):
            lowered = lower(program, target)
            plan = exposed(in_place(fuse(lowered.main)))
            source.add(plan, assign_slots(plan), f"p{i}")
            self.cases.append(Case(name, plan, args))
        self.text = source.text()

    def with_table(self) -> str:
        """The text with all programs in two tables, as `driver.c` wants them."""
        types = {"run": "const Runtime *, Context *, void **, const i64 *", "measure": "const i64 *, i64 *"}
        tables = [
            f"int (*const bare_{part}s[])({takes}) = {{{', '.join(f'p{i}_{part}' for i in range(len(self.cases)))}}};"
            for part, takes in types.items()
        ]
        return "\n".join([self.text, *tables, ""])


class _Context(ctypes.Structure):
    _fields_ = (
        ("cancel", ctypes.POINTER(ctypes.c_int)),
        ("arena", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_stride", ctypes.c_longlong),
        ("record", ctypes.c_longlong * 8),
        ("owner", ctypes.c_void_p),
        ("late", ctypes.POINTER(ctypes.c_longlong)),
        ("stop", ctypes.c_void_p),
    )


class Fence:
    """Memory between two guard pages."""

    def __init__(self, data: bytes, *, at_end: bool) -> None:
        page = mmap.PAGESIZE
        whole = -(-len(data) // page) * page
        self.map = mmap.mmap(-1, whole + 2 * page)
        anchor = ctypes.c_char.from_buffer(self.map)
        start = ctypes.addressof(anchor)
        self.address = start + page + (whole - len(data) if at_end else 0)
        self.size = len(data)
        ctypes.memmove(self.address, data, len(data))
        for fence in (start, start + page + whole):
            protected = ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0)
            assert protected == 0, ctypes.get_errno()
        self.anchor = anchor

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.size)


def fenced(library: ctypes.CDLL, i: int, case: Case, *, at_end: bool) -> list[Array]:
    """Run program i with every buffer at a fence; gives the results, temporaries among them."""
    held = [Fence(data, at_end=at_end) for data in case.contents()]
    before = [fence.read() for fence in held]
    symbols = (ctypes.c_longlong * max(len(case.symbols), 1))(*case.symbols)
    out = (ctypes.c_longlong * 1000)()
    assert library[f"p{i}_measure"](symbols, out) == 0
    flag = ctypes.c_int(0)
    context = _Context(ctypes.pointer(flag), None, None, 0, (ctypes.c_longlong * 8)(), None, None)
    table = (ctypes.c_void_p * max(len(held), 1))(*(fence.address for fence in held))
    kit = ctypes.addressof(ctypes.c_longlong.in_dll(runtime().held, "smelt_runtime"))
    status = library[f"p{i}_run"](ctypes.c_void_p(kit), ctypes.byref(context), table, symbols)
    assert status == 0, status
    counts = len(case.args), len(held) - len(case.plan.constants)
    for at in (*range(counts[0]), *range(counts[1], len(held))):
        assert held[at].read() == before[at], f"{case.name}: argument or constant {at} was written"
    shapes = case.shapes()
    return [
        np.frombuffer(held[counts[0] + k].read(), np.uint8).view(shape.dtype.numpy).reshape(sizes)
        for k, (shape, sizes) in enumerate(shapes)
    ]


def write_case(case: Case, path: Path) -> None:
    """The case as `driver.c` reads it: symbols, buffers, which of them are results; all numbers as i64."""
    contents = case.contents()
    parts = [struct.pack(f"<q{len(case.symbols)}q", len(case.symbols), *case.symbols)]
    parts.append(struct.pack("<qqq", len(contents), len(case.args), len(case.args) + len(case.shapes())))
    parts += [struct.pack("<q", len(data)) + data for data in contents]
    path.write_bytes(b"".join(parts))


def read_results(case: Case, data: bytes) -> list[Array]:
    """The results that `driver.c` wrote, one after the other."""
    found, at = [], 0
    for shape, sizes in case.shapes():
        count = np.zeros(sizes, shape.dtype.numpy).nbytes
        found.append(np.frombuffer(data[at : at + count], np.uint8).view(shape.dtype.numpy).reshape(sizes))
        at += count
    return found


def random_problems(seed: int, count: int, kinds: Sequence[str] = tuple(KINDS)) -> list[Problem]:
    """`count` cases of the kinds, after the edge cases."""
    random = np.random.default_rng([seed, count])
    return [*edges(), *(draw(kinds[i % len(kinds)], random) for i in range(count))]


def winograd_problems(seed: int, target: Target) -> list[Problem]:
    """Winograd convolutions over feature maps of odd and even sizes, whose last patches are only partly inside."""
    width = tile_shape(target).columns
    random = np.random.default_rng(seed)
    found = []
    for high, wide in ((3, 3), (4, 7), (9, 6)):
        sizes = (2, high, wide, 5), (2, 16, 5, width)
        result = Shape("f32", 2, high - 2, wide - 2, width + 1)

        def make(_: bool, sizes: Sequence[Sequence[int]] = sizes, result: Shape = result) -> Program:
            f = FuncBuilder("main", [Shape("f32", *each) for each in sizes])
            return Program.of(f.func(f.op("smelt.winograd_conv", *f.args, result=result).result))

        args = tuple(random.integers(-4, 5, each).astype(np.float32) for each in sizes)
        found.append(Problem(f"winograd over {high} x {wide}", make, args, True, 1))
    return found


def bare(problems: Sequence[Problem], target: Target | None = None) -> Bare:
    return Bare([(each.name, each.make(False), each.args) for each in problems], target or cpu.target())


def main(seed: int, count: int) -> None:
    faulthandler.enable()
    parallelise.ELEMENTS_PER_CORE = 16
    problems = [*random_problems(seed, count), *winograd_problems(seed, cpu.target())]
    made = bare(problems)
    library = cpu.build(made.text)
    for i, (problem, case) in enumerate(zip(problems, made.cases, strict=True)):
        for at_end in (True, False):
            print(f"{i}: {case.name}, {'end' if at_end else 'begin'}", flush=True)
            wrong = difference(problem, fenced(library, i, case, at_end=at_end)[0])
            assert not wrong, wrong
    print("done")


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:]))
