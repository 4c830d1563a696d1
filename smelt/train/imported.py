"""A program that was read from a file as a function of tensors: a loss can be made of it and differentiated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.dtype import Array
from smelt.engine.signature import signature_of
from smelt.errors import ShapeError
from smelt.ir.core import Op, Program
from smelt.ir.rewrite import insert_call
from smelt.passes.inline import inline
from smelt.passes.lift_weights import lift_weights
from smelt.tensor.core import Tensor
from smelt.tensor.data import tensor
from smelt.tensor.grad import RecordBuilder
from smelt.tensor.record import tensor_of


class Imported:
    """An imported model as a function: `model(weights, x, …)` gives its results by name.

    >>> import numpy as np
    >>> import smelt
    >>> program = smelt.parse(
    ...     'func.func @main(%w: tensor<2xf32> {smelt.weight = "w"}, %x: tensor<2xf32>) -> tensor<2xf32> {'
    ...     " %y = stablehlo.multiply %w, %x : tensor<2xf32> return %y : tensor<2xf32> }"
    ... )
    >>> model = Imported(program, smelt.Weights.of({"w": np.array([2.0, 3.0], np.float32)}))
    >>> model(model.weights, smelt.tensor([1.0, 1.0]))["result0"].tolist()
    [2.0, 3.0]

    `weights` are its floating-point weights as tensors: what can be trained. `program` is the program that takes them,
    for `smelt.export(model.program, path, weights=model.arrays(trained))`; it may have more weights than the one that
    was given, where a reader folded small ones.
    """

    def __init__(self, program: Program, weights: Mapping[str, Any]) -> None:
        self.program = lift_weights(program, weights)
        self._main = inline(self.program).main
        self.signature = signature_of(self._main)
        held = {port.name: tensor(weights[port.name].numpy().copy()) for port in self.signature.weights}
        self.weights = {name: value for name, value in held.items() if value.dtype.kind == "float"}
        self._constants = {name: value for name, value in held.items() if name not in self.weights}

    def arrays(self, trained: Mapping[str, Tensor]) -> dict[str, Array]:
        """All weights of the program, with those that were trained."""
        return {name: value.numpy() for name, value in {**self._constants, **self.weights, **trained}.items()}

    def __call__(self, weights: Mapping[str, Tensor], *inputs: Tensor) -> dict[str, Tensor]:
        """The results, whose axes have no names."""
        held = {**self._constants, **weights}
        ports = [port.name for port in self.signature.inputs]
        if len(inputs) != len(ports):
            raise ShapeError("an imported model takes its inputs in order", expected=", ".join(ports), got=len(inputs))
        missing = [port.name for port in self.signature.weights if port.name not in held]
        if missing:
            raise ShapeError(f"no weight {missing[0]!r}", expected=", ".join(missing), got=", ".join(held))
        given, trained = iter(inputs), {port.name for port in self.signature.weights}
        names = [str(attrs.get("smelt.weight", "")) for attrs in self._main.arg_attrs]
        operands = [(held[name] if name in trained else next(given)).unnamed().value for name in names]
        call = Op("func.call", operands, [value.type for value in self._main.results], {"callee": "main"})
        made = insert_call(RecordBuilder(operands), self._main, operands, call)
        outputs = [port.name for port in self.signature.outputs]
        return {name: tensor_of(value, None) for name, value in zip(outputs, made, strict=True)}
