"""The reference engine: runs any program on NumPy as the specification says. Slow and right; the oracle of the others."""

from __future__ import annotations

from smelt.buffer import check_array
from smelt.dtype import Array
from smelt.engine.signature import signature_of
from smelt.engine_api import Executable, Signature
from smelt.errors import RunError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.passes import pipeline
from smelt.weights import Weights


class ReferenceEngine:
    """Computes f32, f16, bf16 and complex64 functions in double and rounds once."""

    name = "reference"

    def missing(self) -> str | None:
        return None

    def compile(self, program: Program) -> Executable:
        optimised, _ = pipeline.run(program)
        return ReferenceExecutable(optimised, signature_of(program.main))


class ReferenceExecutable:
    """A program ready for the interpreter; `bound` are the values that `prepare` computed."""

    def __init__(self, program: Program, signature: Signature, bound: tuple[Array, ...] | None = None) -> None:
        self.program: Program | None = program
        self.signature = signature
        self.bound = bound if bound is not None or signature.weights else ()

    def prepare(self, weights: Weights) -> Executable:
        program = self._open()
        arrays = [
            check_array(weights[port.name].numpy(), port.shape, f"the weight {port.name!r}")
            for port in self.signature.weights
        ]
        bound = run(program, arrays, func="prepare") if arrays else ()
        return ReferenceExecutable(program, self.signature, bound)

    def __call__(self, *inputs: Array) -> tuple[Array, ...]:
        program = self._open()
        if self.bound is None:
            raise RunError("the weights are not bound", expected=".prepare(weights) before the first call")
        ports = self.signature.inputs
        if len(inputs) != len(ports):
            raise RunError("wrong number of inputs", expected=[port.name for port in ports], got=len(inputs))
        arrays = [check_array(array, port.shape, f"the input {port.name!r}") for array, port in zip(inputs, ports, strict=True)]
        return run(program, [*self.bound, *arrays])

    def close(self) -> None:
        self.program = self.bound = None

    def _open(self) -> Program:
        if self.program is None:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        return self.program
