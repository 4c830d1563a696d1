"""StableHLO test programs on the pjrt engine: constants become arguments, so that XLA cannot fold anything away.

`stablehlo.py` calls it in worker processes, because XLA aborts on some inputs. The recasting is the native engine's;
checks are evaluated as they are written, with no allowance.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from smelt.dtype import Array
from smelt.engine.pjrt import PjrtEngine
from smelt.ir.core import Program
from tests.conformance.native_cases import recast

# The programs are small and run once. What is tested is what we hand to XLA, not how well it optimises.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
ENGINE = PjrtEngine()


def run_pjrt(program: Program, name: str, args: Sequence[Array]) -> Sequence[Array]:
    """One function alone; gives its results, or raises at the first check that does not hold."""
    each = replace(recast(program, name, args), allowance=0)
    with ENGINE.compile(each.program) as executable:
        outputs = [buffer.numpy() for buffer in executable(*each.inputs)]
    return each.judge(outputs)
