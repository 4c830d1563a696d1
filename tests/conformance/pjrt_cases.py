"""StableHLO test programs on the pjrt engine: constants become arguments, so that XLA cannot fold anything away.

`stablehlo.py` calls it in worker processes, because XLA aborts on some inputs. The recasting is the native engine's;
checks are evaluated as they are written, with no allowance. Programs of a group become one, with the arguments and the
results of all: what XLA does for each program it is given takes longer than most of these.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from smelt.dtype import Array
from smelt.engine.pjrt import PjrtEngine
from smelt.ir.core import Func, Program, Region
from tests.conformance.native_cases import Ran, Recast, recast

# The programs are small and run once. What is tested is what we hand to XLA, not how well it optimises.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
ENGINE = PjrtEngine()


def run_pjrt(program: Program, name: str, args: Sequence[Array]) -> Sequence[Array]:
    """One function alone; gives its results, or raises at the first check that does not hold."""
    each = recast(program, name, args)
    return run_prepared(each, run_joined([each])[0]).results


def prepare(cases: Sequence[Recast]) -> list[Any]:
    """What comes out of each, or the error."""
    try:
        return list(run_joined(cases))
    except Exception as error:  # of one of them, or of all together
        if len(cases) == 1:
            return [error]
        half = len(cases) // 2
        return [*prepare(cases[:half]), *prepare(cases[half:])]


def run_joined(cases: Sequence[Recast]) -> list[Sequence[Array]]:
    """The outputs of some programs, which are compiled and run as one."""
    if not cases:
        return []
    parts = [each.program.main.body for each in cases]
    ops, results = [op for part in parts for op in part.ops], [value for part in parts for value in part.results]
    args = [value for part in parts for value in part.args]
    program = cases[0].program if len(cases) == 1 else Program.of(Func("main", Region((*args,), (*ops,), (*results,))))
    with ENGINE.compile(program) as executable:
        outputs = iter([buffer.numpy() for buffer in executable(*(array for each in cases for array in each.inputs))])
    return [[next(outputs) for _ in part.results] for part in parts]


def run_prepared(each: Recast, made: Any) -> Ran:
    """Evaluate the checks on what came out; raises what went wrong."""
    if isinstance(made, Exception):
        raise made
    return Ran(replace(each, allowance=0).judge(made), 0)
