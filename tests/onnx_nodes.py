"""Models of one ONNX node, for tests: written from a line of text, run by smelt's reference and by onnxruntime.

    Node("FusedMatMul", "A:f32[B,M,4] B:f32[B,4,5]", transA=0)

Sizes that are names are symbols of the model, so one model runs at several sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from smelt.dtype import Array, DType, dtype, integer_range
from smelt.engine.reference import ReferenceEngine
from smelt.read.onnx import read
from smelt.read.onnx.file.tensors import element_number
from tests import onnx_oracle

_PORT = re.compile(r"(\w+):(\w+)\[([^\]]*)\]")

Sizes = Mapping[str, int]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Any]


class Node:
    """One node, its inputs as `name:type[sizes]` (a lone `-` is an input left out), its attributes."""

    def __init__(
        self,
        op: str,
        inputs: str,
        *,
        domain: str = "com.microsoft",
        version: int = 21,
        outputs: Sequence[int] = (0,),
        weights: str = "",
        draw: Mapping[str, Draw] | None = None,
        **attributes: Any,
    ) -> None:
        self.op, self.domain, self.version, self.outputs, self.attributes = (
            op,
            domain,
            version,
            tuple(outputs),
            attributes,
        )
        self.ports: list[tuple[str, DType, tuple[str, ...]] | None] = []
        for text in inputs.split():
            if text == "-":
                self.ports.append(None)
                continue
            found = _PORT.fullmatch(text)
            assert found is not None, f"not an input: {text}"
            name, element, sizes = found.groups()
            self.ports.append((name, dtype(element), tuple(size for size in sizes.split(",") if size)))
        self.weights = set(weights.split())
        self.draw = draw or {}

    def __repr__(self) -> str:
        shown = [" ".join("-" if port is None else f"{port[1]}[{','.join(port[2])}]" for port in self.ports)]
        return " ".join([self.op, *shown, *(f"{name}={value}" for name, value in self.attributes.items())])

    def arrays(self, random: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
        """Random inputs of the sizes that the symbols stand for."""
        found = {}
        for name, element, shape in (port for port in self.ports if port is not None):
            numbers = tuple(int(sizes.get(size, size)) for size in shape)
            array = self.draw[name](random, numbers) if name in self.draw else draw(random, element, numbers, name)
            found[name] = np.asarray(array).astype(element.numpy).reshape(numbers)
        return found

    def model(self, arrays: Mapping[str, Array]) -> onnx.ModelProto:
        """The model; inputs named in `weights` are initialisers."""
        ports = [port for port in self.ports if port is not None]
        names = ["" if port is None else port[0] for port in self.ports]
        made = [f"out{i}" if i in self.outputs else "" for i in range(max(self.outputs) + 1)]
        node = helper.make_node(self.op, names, made, name=self.op, domain=self.domain, **self.attributes)
        inputs = [
            helper.make_tensor_value_info(
                name, element_number(element), [int(size) if size.isdigit() else size for size in shape]
            )
            for name, element, shape in ports
            if name not in self.weights
        ]
        held = [onnx.numpy_helper.from_array(arrays[name], name) for name in sorted(self.weights)]
        outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in made if name]
        graph = helper.make_graph([node], "node", inputs, outputs, held)
        opsets = [helper.make_opsetid("", self.version), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def draw(random: np.random.Generator, element: DType, sizes: tuple[int, ...], name: str) -> Any:
    """Numbers that suit a name: small positive scales, anything a quantised type holds, floats around 0."""
    if name.lower().endswith("scale") or name == "scales":
        return random.uniform(0.01, 0.1, sizes)
    if element.kind == "bool":
        return random.integers(0, 2, sizes)
    if element.is_integer:
        low, high = integer_range(element)
        return random.integers(max(low, -(1 << 20)), min(high, 1 << 20) + 1, sizes)
    return random.standard_normal(sizes)


def on_smelt(
    model: onnx.ModelProto, arrays: Mapping[str, Array], folder: Path, static: Sequence[str] = ()
) -> list[Array]:
    """What the reference engine makes of a model."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    program, weights = read(path, {name: arrays[name] for name in static})
    executable = ReferenceEngine().compile(program).prepare(weights)
    return [np.asarray(each) for each in executable(*(arrays[port.name] for port in executable.signature.inputs))]


def on_onnxruntime(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> list[Array]:
    """What onnxruntime makes of it, node by node, with nothing rewritten."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnx_oracle.session(model, options)
    names = {port.name for port in session.get_inputs()}
    found: list[Array] = session.run(None, {name: array for name, array in arrays.items() if name in names})
    return found


# ---- operators of com.microsoft beside onnxruntime ----

SIZES = ({"B": 2, "S": 3, "T": 5, "P": 4, "M": 7}, {"B": 1, "S": 7, "T": 2, "P": 9, "M": 1})


def ones_and_zeros(random: np.random.Generator, sizes: tuple[int, ...]) -> Any:
    return random.integers(0, 2, sizes)


def below(limit: int) -> Any:
    return lambda random, sizes: random.integers(0, limit, sizes)


def number(value: float) -> Any:
    return lambda random, sizes: np.full(sizes, value)


def close(have: Array, want: Array, rtol: float, atol: float) -> None:
    assert have.shape == want.shape
    assert have.dtype == want.dtype
    size = max(1.0, float(np.abs(want.astype(np.float64)).max(initial=0)))  # sums cancel: errors are of the terms' size
    np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), rtol, atol * size)


def nearly(have: Array, want: Array, share: float) -> None:
    """Quantised results: a few may be the neighbouring number, where sums were added up in another order."""
    assert have.shape == want.shape
    assert have.dtype == want.dtype
    apart = np.abs(have.astype(np.int64) - want.astype(np.int64))
    assert apart.max(initial=0) <= 1
    assert np.sum(apart) <= max(2, share * apart.size)


def compare(node: Node, seed: int, folder: Path, rtol: float = 1e-4, atol: float = 1e-5, share: float = 0.02) -> None:
    random = np.random.default_rng(seed)
    for sizes in SIZES:
        arrays = node.arrays(random, sizes)
        model = node.model(arrays)
        wants, haves = on_onnxruntime(model, arrays), on_smelt(model, arrays, folder)
        for have, want in zip(haves, wants, strict=True):
            if want.dtype.kind in "iu" and want.dtype.itemsize < 4:
                nearly(have, want, share)
            else:
                loose = want.dtype == np.float16
                close(have, want, 2e-3 if loose else rtol, 2e-3 if loose else atol)
