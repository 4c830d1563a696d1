"""The declared inputs, outputs and metadata of an ONNX file, without reading its graph.

`smelt.model` calls it for models that compile at their first call; the command line calls it too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from smelt.dim import Size, symbol
from smelt.engine_api import Port, Signature
from smelt.errors import UnsupportedError
from smelt.ir.core import Program
from smelt.read.onnx.file.tensors import STRING, TYPES, element_type
from smelt.read.onnx.file.wire import lift
from smelt.read.onnx.model import declared_sizes, dimension_name, dimension_size, parse_message
from smelt.shape import Shape
from smelt.weights import MappedFile


def declared_signature(path: str | Path, fed: Collection[str] = ()) -> Signature:
    """Inputs that are not initialisers or are `fed`, and outputs, with the types that the file states."""
    graph = _graph(path)
    initialised = _initialiser_names(graph) - set(fed)
    sizes, scope = declared_sizes(graph.input)
    inputs = [_port(port, path, sizes[port.name]) for port in graph.input if port.name not in initialised]
    made = ((port, [dimension_size(dim, scope) for dim in port.type.tensor_type.shape.dim]) for port in graph.output)
    return Signature(tuple(inputs), tuple(_port(port, path, each) for port, each in made))


UNVERSIONED = (1 << 63) - 1  # what onnxruntime says of a model without a version


class Described(NamedTuple):
    """The metadata of a file. `overridable`: initialisers that are graph inputs too."""

    graph_name: str
    producer_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    overridable: tuple[Port, ...]


def describe(path: str | Path) -> Described:
    proto = parse_message(lift(MappedFile(path).bytes, str(path)).message, path)
    graph = proto.graph
    initialised = _initialiser_names(graph)
    sizes, _ = declared_sizes(graph.input)
    ports = tuple(_port(port, path, sizes[port.name]) for port in graph.input if port.name in initialised)
    texts = (graph.name, proto.producer_name, proto.domain, proto.doc_string, graph.doc_string)
    version = proto.model_version if proto.HasField("model_version") else UNVERSIONED
    return Described(*texts, version=version, overridable=ports)


def declared_facts(path: str | Path, program: Program) -> list[str]:
    """Equations between inferred and declared output sizes that are not trivial: `n == batch (output 'y')`."""
    main = program.main
    made = {attrs.get("smelt.name"): value.shape for value, attrs in zip(main.results, main.result_attrs, strict=True)}
    known = {name for arg in main.args for name in arg.shape.symbols}
    found: dict[str, None] = {}
    for port in _graph(path).output:
        shape, said = made.get(port.name), port.type.tensor_type.shape
        if shape is None or not port.type.tensor_type.HasField("shape"):
            continue
        if len(said.dim) != shape.rank:
            found[f"rank {shape.rank} == {len(said.dim)} (output {port.name!r})"] = None
        for dim, size in zip(said.dim, shape.sizes, strict=False):
            name = dimension_name(dim.dim_param)
            wanted = dim.dim_value if dim.HasField("dim_value") else symbol(name) if name in known else size
            if wanted not in (size, -1):
                found[f"{size} == {wanted} (output {port.name!r})"] = None
    return list(found)


def _graph(path: str | Path) -> Any:
    return parse_message(lift(MappedFile(path).bytes, str(path)).message, path).graph


def _initialiser_names(graph: Any) -> set[str]:
    return {tensor.name for tensor in graph.initializer} | {each.values.name for each in graph.sparse_initializer}


def element_types(path: str | Path) -> dict[str, Any]:
    """NumPy's type of the elements of each input; None where it is no tensor of numbers."""
    graph = _graph(path)
    numbers = {port.name: port.type.tensor_type.elem_type for port in graph.input}
    return {
        name: element_type(number, f"{path}: {name!r}").numpy if number not in (0, STRING) else None
        for name, number in numbers.items()
    }


def type_text(proto: Any) -> str:
    """A declared type as people write it: `f32[batch, 64]`, `sequence(i64[?])`."""
    match proto.WhichOneof("value"):
        case "tensor_type" | "sparse_tensor_type" as kind:
            tensor = getattr(proto, kind)
            name = "string" if tensor.elem_type == STRING else TYPES.get(tensor.elem_type, f"type{tensor.elem_type}")
            dims = [
                str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim
            ]
            text = f"{name}[{', '.join(dims)}]" if tensor.HasField("shape") else f"{name} of any rank"
            return text if kind == "tensor_type" else f"sparse {text}"
        case "sequence_type":
            return f"sequence({type_text(proto.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_text(proto.optional_type.elem_type)})"
        case "map_type":
            return f"map({type_text(proto.map_type.value_type)})"
        case _:
            return "no type"


def _port(port: Any, path: str | Path, sizes: Sequence[Size]) -> Port:
    tensor = port.type.tensor_type
    if port.type.WhichOneof("value") is None:
        raise UnsupportedError(
            f"{path}: {port.name!r} has no type, and sizes that only a call shows",
            expected="a declared type of each input and output",
            remedy="onnx.shape_inference.infer_shapes(model) may find it; write the model again",
        )
    if port.type.WhichOneof("value") != "tensor_type" or tensor.elem_type == STRING:
        raise UnsupportedError(f"{path}: {port.name!r} is no tensor of numbers", got=port.type.WhichOneof("value"))
    return Port(port.name, Shape.of(element_type(tensor.elem_type, f"{path}: {port.name!r}"), sizes))
