"""The reference engine: runs any program on NumPy as the specification says. Slow; the oracle of the other engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from smelt.buffer import check_array
from smelt.dtype import Array
from smelt.engine.signature import signature_of
from smelt.engine_api import Closing, Executable, KernelUse, Signature
from smelt.errors import RunError
from smelt.ir.core import Program, walk
from smelt.ir.interpret import Callback, run
from smelt.passes import pipeline
from smelt.stop import Stop
from smelt.weights import Weights

Arrays: TypeAlias = tuple[Array, ...]
Step: TypeAlias = Callable[[Sequence[Array]], Arrays]
Run: TypeAlias = Callable[[Sequence[Array], "Stop | None"], Arrays]


class ReferenceExecutable(Closing):
    """@prepare and @main as two functions over arrays. `prepare` gives a new executable, bound to its weights."""

    def __init__(
        self,
        signature: Signature,
        prepare: Step,
        run: Run,
        kernels: tuple[KernelUse, ...],
        bound: Arrays | None = None,
    ) -> None:
        self.signature = signature
        self.kernels = kernels
        self._prepare = prepare
        self._run: Run | None = run
        self._bound = bound if bound is not None or signature.weights else ()

    def prepare(self, weights: Weights) -> Executable:
        run = self._check_open()
        ports = self.signature.weights
        arrays = [check_array(weights[port.name].numpy(), port.shape, f"the weight {port.name!r}") for port in ports]
        bound = self._prepare(arrays) if ports else ()
        return ReferenceExecutable(self.signature, self._prepare, run, self.kernels, bound)

    def __call__(self, *inputs: Array, stop: Stop | None = None) -> Arrays:
        run = self._check_open()
        if self._bound is None:
            raise RunError("the weights are not bound", remedy="executable = executable.prepare(weights)")
        ports = self.signature.inputs
        if len(inputs) != len(ports):
            raise RunError(
                "wrong number of inputs",
                expected=[port.name for port in ports],
                got=len(inputs),
                remedy="one array for each input, in this order",
            )
        arrays = [
            check_array(array, port.shape, f"the input {port.name!r}")
            for array, port in zip(inputs, ports, strict=True)
        ]
        return run([*self._bound, *arrays], stop)

    def close(self) -> None:
        self._run = self._bound = None

    def _check_open(self) -> Run:
        if self._run is None:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        return self._run


class ReferenceEngine:
    """Computes f32, f16, bf16 and complex64 functions in double and rounds once."""

    name = "reference"

    def missing(self) -> str | None:
        return None

    def compile(
        self, program: Program, *, donate: Iterable[str] = (), callbacks: Mapping[str, Callback] | None = None
    ) -> Executable:
        """`callbacks` answer custom calls by their targets' names. Donated inputs are left unchanged."""
        optimised, _ = pipeline.run(program)
        ops = Counter(op.name for func in optimised.funcs.values() for op in walk(func.body))
        return ReferenceExecutable(
            signature_of(program.main),
            lambda weights: run(optimised, weights, func="prepare", callbacks=callbacks),
            lambda arguments, stop: run(optimised, arguments, callbacks=callbacks, stop=stop),
            tuple(KernelUse("numpy", (name,), count) for name, count in ops.items()),
        )
