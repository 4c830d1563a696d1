"""What an ONNX file says about its inputs and outputs, without reading its graph. Called by `smelt.model`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smelt.dim import Size, symbol
from smelt.engine_api import Port, Signature
from smelt.errors import UnsupportedError
from smelt.read.onnx.model import parse_message
from smelt.read.onnx.tensors import STRING, element_type
from smelt.read.onnx.wire import lift
from smelt.shape import Shape
from smelt.weights import MappedFile


def declared(path: str | Path) -> Signature:
    """Inputs that are not initialisers, and outputs, with the types that the file states."""
    file = MappedFile(path)
    graph = parse_message(lift(file.bytes, str(path)).message, path).graph
    initialised = {tensor.name for tensor in graph.initializer}
    inputs = [_port(port, path, i) for i, port in enumerate(graph.input) if port.name not in initialised]
    return Signature(tuple(inputs), tuple(_port(port, path, 1000 + i) for i, port in enumerate(graph.output)))


def _port(port: Any, path: str | Path, number: int) -> Port:
    tensor = port.type.tensor_type
    if port.type.WhichOneof("value") != "tensor_type" or tensor.elem_type == STRING:
        raise UnsupportedError(f"{path}: {port.name!r} is no tensor of numbers", got=port.type.WhichOneof("value"))
    sizes: list[Size] = []
    for axis, dim in enumerate(tensor.shape.dim):
        known = dim.HasField("dim_value") and dim.dim_value >= 0
        sizes.append(dim.dim_value if known else symbol(dim.dim_param or f"d{number}_{axis}"))
    return Port(port.name, Shape.of(element_type(tensor.elem_type, f"{path}: {port.name!r}"), sizes))
