"""The native engine: our own kernels, generated as C, compiled for this processor.

It knows a growing part of the op table and refuses the rest by name; `auto` then takes the reference engine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.device import cpu
from smelt.dim import solve
from smelt.dtype import Array
from smelt.engine.executable import CompiledProgram, signature_of
from smelt.engine_api import Executable
from smelt.errors import RunError, SizeError
from smelt.ir.core import Program
from smelt.ir.verify import assumptions
from smelt.kernel.emit_c import emit
from smelt.kernel.fuse import fuse
from smelt.kernel.plan import Plan
from smelt.passes import pipeline

ALIGN = 64


class NativeEngine:
    """Generated C through a C compiler."""

    name = "native"

    def missing(self) -> str | None:
        return None if cpu.compiler() else "no C compiler: pip install ziglang"

    def compile(self, program: Program) -> Executable:
        optimised, _ = pipeline.run(program)
        main = _Compiled.of(fuse(optimised.main, assumptions(optimised)))
        prepare = _Compiled.of(fuse(optimised.funcs["prepare"])) if "prepare" in optimised.funcs else main
        return CompiledProgram(signature_of(program.main), prepare.run, main.run)


@dataclass(slots=True)
class _Compiled:
    """A plan and its machine code."""

    plan: Plan
    library: ctypes.CDLL
    constants: list[Array]

    @staticmethod
    def of(plan: Plan) -> _Compiled:
        library = cpu.build(emit(plan))
        library.smelt_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        return _Compiled(plan, library, [np.frombuffer(data, np.uint8) for data in plan.constants])

    def run(self, arguments: Sequence[Array]) -> tuple[Array, ...]:
        """Run on contiguous arrays that fit the plan's shapes."""
        plan = self.plan
        symbols = solve(
            [size for shape in plan.arguments for size in shape.sizes],
            [size for array in arguments for size in array.shape],
        )
        for check in plan.checks:
            if not check.holds(symbols):
                relation = "equal to" if check.exact else "at most"
                raise SizeError(check.why, expected=f"{check.a} {relation} {check.b}", got=dict(symbols))
        results = [np.empty(shape.numbers(symbols), shape.dtype.numpy) for shape in plan.results]
        arena, temporaries = _arena([shape.numbers(symbols) for shape in plan.temporaries], plan)
        inputs = [np.ascontiguousarray(array) for array in arguments]
        pointers = [array.ctypes.data for array in (*inputs, *results, *self.constants)] + temporaries
        table = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        sizes = (ctypes.c_longlong * max(len(plan.sizes), 1))(*plan.size_table(symbols))
        status = self.library.smelt_run(table, sizes)
        if status:
            raise RunError("the compiled program reported a failure", got=status)
        del arena
        return tuple(results)


def _arena(shapes: Sequence[tuple[int, ...]], plan: Plan) -> tuple[Array, list[int]]:
    """One allocation for all temporaries, and where each of them starts."""
    offsets, total = [], 0
    for sizes, shape in zip(shapes, plan.temporaries, strict=True):
        offsets.append(total)
        count = int(np.prod(sizes, dtype=np.int64)) * shape.dtype.numpy.itemsize
        total += -(-count // ALIGN) * ALIGN
    arena = np.empty(total + ALIGN, np.uint8)
    start = -(-arena.ctypes.data // ALIGN) * ALIGN
    return arena, [start + offset for offset in offsets]
