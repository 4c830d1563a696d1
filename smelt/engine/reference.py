"""The reference engine: runs any program on NumPy as the specification says. Slow and right: the others' oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from smelt.engine.executable import CompiledProgram, signature_of
from smelt.engine_api import Executable, KernelUse
from smelt.ir.core import Program, walk
from smelt.ir.interpret import Callback, run
from smelt.passes import pipeline


class ReferenceEngine:
    """Computes f32, f16, bf16 and complex64 functions in double and rounds once."""

    name = "reference"

    def missing(self) -> str | None:
        return None

    def compile(
        self, program: Program, *, donate: Iterable[str] = (), callbacks: Mapping[str, Callback] | None = None
    ) -> Executable:
        """`callbacks` answer custom calls by their targets' names. What is donated is left alone."""
        optimised, _ = pipeline.run(program)
        ops = Counter(op.name for func in optimised.funcs.values() for op in walk(func.body))
        return CompiledProgram(
            signature_of(program.main),
            lambda weights: run(optimised, weights, func="prepare", callbacks=callbacks),
            lambda arguments, stop: run(optimised, arguments, callbacks=callbacks, stop=stop),
            tuple(KernelUse("numpy", (name,), count) for name, count in ops.items()),
        )
