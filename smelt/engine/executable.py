"""What every engine's executable does alike: the signature, the checks on weights and inputs, binding and closing.

An engine brings two functions over arrays: `prepare(weights) → bound` and `run(bound + inputs, stop) → outputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from smelt.buffer import check_array
from smelt.dtype import Array
from smelt.engine_api import Executable, KernelUse, Port, Signature
from smelt.errors import RunError, UnsupportedError
from smelt.ir.attributes import Int
from smelt.ir.core import Func, Value
from smelt.passes.split_prepare import NAME, WEIGHT
from smelt.shape import Shape
from smelt.stop import Stop
from smelt.weights import Weights

Arrays: TypeAlias = tuple[Array, ...]
Step: TypeAlias = Callable[[Sequence[Array]], Arrays]
Run: TypeAlias = Callable[[Sequence[Array], "Stop | None"], Arrays]


class CompiledProgram:
    """An executable over an engine's two functions. Weights are bound by `prepare`, which leaves this one as it is."""

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
        run = self._open()
        ports = self.signature.weights
        arrays = [check_array(weights[port.name].numpy(), port.shape, f"the weight {port.name!r}") for port in ports]
        bound = self._prepare(arrays) if ports else ()
        return CompiledProgram(self.signature, self._prepare, run, self.kernels, bound)

    def __call__(self, *inputs: Array, stop: Stop | None = None) -> Arrays:
        run = self._open()
        if self._bound is None:
            raise RunError("the weights are not bound", expected=".prepare(weights) before the first call")
        ports = self.signature.inputs
        if len(inputs) != len(ports):
            raise RunError("wrong number of inputs", expected=[port.name for port in ports], got=len(inputs))
        arrays = [
            check_array(array, port.shape, f"the input {port.name!r}")
            for array, port in zip(inputs, ports, strict=True)
        ]
        return run([*self._bound, *arrays], stop)

    def close(self) -> None:
        self._run = self._bound = None

    def _open(self) -> Run:
        if self._run is None:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        return self._run


def signature_of(main: Func) -> Signature:
    """Inputs, outputs and weights of an entry. Names come from `smelt.name`, the text or the position."""
    weights: list[Port] = []
    inputs: list[Port] = []
    for i, (arg, attrs) in enumerate(zip(main.args, main.arg_attrs, strict=True)):
        name = str(attrs.get(WEIGHT) or attrs.get(NAME) or arg.name or f"arg{i}")
        (weights if WEIGHT in attrs else inputs).append(Port(name, _tensor(main, arg)))
    outputs = []
    for i, (value, attrs) in enumerate(zip(main.results, main.result_attrs, strict=True)):
        keys = tuple(key.value if isinstance(key, Int) else str(key) for key in attrs.get("smelt.keys", ()))
        labels = tuple(str(label) for label in attrs.get("smelt.labels", ()))
        outputs.append(Port(str(attrs.get(NAME) or f"result{i}"), _tensor(main, value), labels, keys))
    return Signature(tuple(inputs), tuple(outputs), tuple(weights))


def _tensor(main: Func, value: Value) -> Shape:
    if not isinstance(value.type, Shape):
        raise UnsupportedError(
            f"@{main.name} takes or gives something that is no tensor", got=value.type, where=main.location
        )
    return value.type
