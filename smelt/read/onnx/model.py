"""An ONNX file as a program and its weights: `read(path)`.

Weights become arguments of @main marked `smelt.weight`, the model's inputs follow them; every argument and result
carries its ONNX name. Dynamic dimensions are symbols. Called through `smelt.read.onnx`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from smelt.buffer import advise_shape
from smelt.dim import Size, symbol
from smelt.errors import MissingPackageError, ParseError, ShapeError, SmeltError, UnsupportedError, VerifyError, advise
from smelt.ir.attributes import Int
from smelt.ir.build import Builder
from smelt.ir.core import Attrs, Func, Program, Region, Value
from smelt.ir.ops.definition import UNKNOWN, Scope
from smelt.read.onnx.file.tensors import STRING, TensorReader, element_type
from smelt.read.onnx.file.wire import lift
from smelt.read.onnx.graph import Graph, Model, StaticError
from smelt.read.onnx.items import Item, Labels, Maps, Optional, Sequence, Tensor, Text, Unknown
from smelt.read.onnx.ops import (  # noqa: F401  each registers its operators
    constant,
    contrib,
    control,
    image,
    index,
    math,
    ml,
    nn,
    order,
    quant,
    random,
    reduce,
    resize,
    rnn,
    roi,
    sequence,
    shape,
    signal,
    text,
    training,
    trees,
    vision,
)
from smelt.shape import Shape
from smelt.size import any_symbol
from smelt.weights import MappedFile, Weights

_NONE: Mapping[str, Any] = {}
INVALID = "export the model again; onnx.checker.check_model(FILE, full_check=True) may say more"
_LONGEST = 128  # characters of a dimension's name


@advise("smelt inspect FILE lists everything that cannot be read", UnsupportedError)
@advise(INVALID, ParseError, ShapeError, VerifyError)
def read(
    path: str | Path,
    static: Mapping[str, Any] = _NONE,
    shapes: Mapping[str, tuple[int, ...]] = _NONE,
    fed: Collection[str] = (),
    *,
    runtime_broadcast: bool = False,
) -> tuple[Program, Weights]:
    """The program in an ONNX file and its weights, which stay in the file until they are read.

    `static`: values of compile-time inputs, which become constants. `shapes`: static shapes of inputs, for models whose
    program depends on sizes. `fed`: inputs whose default, an initialiser of the same name, is ignored. With
    `runtime_broadcast` the program broadcasts dynamic dimensions at run time; else it assumes that they are equal,
    which is faster.
    """
    proto, model = open_model(path, static, shapes)
    model.fed = frozenset(fed)
    model.runtime_broadcast = runtime_broadcast
    return program_of(proto, model)


def open_model(path: str | Path, static: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> tuple[Any, Model]:
    """The message in a file, without its big tensors, and what its graphs share; no node is read yet."""
    file = MappedFile(path)
    lifted = lift(file.bytes, str(path))
    proto = parse_message(lifted.message, path)
    if not proto.HasField("graph"):
        raise ParseError(f"{path}: not an ONNX model", expected="a graph", got="none")
    held = proto.graph
    if not (held.output or held.node or held.initializer or held.sparse_initializer):
        # Also what protobuf leaves of graphs inside graphs that are too deep for it.
        raise ParseError(f"{path}: the model computes nothing", expected="nodes and outputs", got="an empty graph")
    nodes = _check_names(proto, path)
    opsets = {("" if each.domain == "ai.onnx" else each.domain): each.version for each in proto.opset_import}
    functions = {(("" if f.domain == "ai.onnx" else f.domain), f.name): f for f in proto.functions}
    model = Model(str(path), TensorReader(file, lifted.payloads), functions, opsets or {"": 1}, static, shapes)
    model.most_nodes += 256 * nodes  # calls and loops multiply, but not without end
    return proto, model


def program_of(proto: Any, model: Model) -> tuple[Program, Weights]:
    """Read the nodes of an open model."""
    func = _main(model, proto.graph)
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    program = Program.of(func, *model.decompositions.values(), name=proto.graph.name)
    return program, Weights(model.stored, metadata, model.path)


def parse_message(message: bytes, path: str | Path) -> Any:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise MissingPackageError("reading ONNX files needs the package onnx", remedy="pip install onnx") from error
    try:
        return onnx.ModelProto.FromString(message)
    except (DecodeError, ValueError, RecursionError) as error:
        raise ParseError(f"{path}: not an ONNX file", got=error) from error


def _check_names(proto: Any, path: str | Path) -> int:
    """Every name is text: the parser hands out bytes where they are not UTF-8. Gives the number of nodes."""
    count = 0
    graphs = [proto.graph]
    names: list[Any] = [part for f in proto.functions for part in (f.name, f.domain, *f.input, *f.output)]
    names += [opset.domain for opset in proto.opset_import] + [
        part for p in proto.metadata_props for part in (p.key, p.value)
    ]
    nodes = [node for f in proto.functions for node in f.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            nodes += graph.node
            names.append(graph.name)
            names += [port.name for port in (*graph.input, *graph.output, *graph.initializer)]
            names += [dim.dim_param for port in graph.input for dim in port.type.tensor_type.shape.dim]
        else:
            node = nodes.pop()
            count += 1
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
            for attribute in node.attribute:
                names += [attribute.name, attribute.ref_attr_name]
                graphs += [*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs]
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise ParseError(f"{path}: a name is not UTF-8", got=wrong[0][:64])
    return count


def _main(model: Model, graph: Any) -> Func:
    sizes, scope = declared_sizes(graph.input)
    b = Builder(scope)
    top = Graph(model, b)
    top.initialisers(graph)
    inputs: dict[str, Value] = {}
    for port in graph.input:
        if port.name in top.items:  # an initialiser that may be overridden, and is not
            continue
        if port.name in model.static:
            top.bind(port.name, _static(port, model.static[port.name], model))
            continue
        try:
            value = inputs[port.name] = _input(port, sizes[port.name], model)
        except SmeltError as error:
            if model.watch is None:
                raise
            top.bind(port.name, model.watch.absent(top, port.name, error))
        else:
            top.bind(port.name, top.item(value))
    unknown = set(model.static) - {port.name for port in graph.input}
    if unknown:
        raise UnsupportedError(
            f"{model.path}: no input {sorted(unknown)[0]!r}", expected=", ".join(port.name for port in graph.input)
        )
    top.run(graph.node)
    top.node = None
    b.location = None
    results: dict[str, Value] = {}
    for port in graph.output:
        results |= _results(top, port.name, top.find(port.name))
    return _func(model, b, inputs, results)


def _func(model: Model, b: Builder, inputs: dict[str, Value], results: dict[str, Value]) -> Func:
    args = [*model.weights.values(), *inputs.values(), *model.unknown]
    attrs: list[Attrs] = [{"smelt.weight": name, "smelt.name": name} for name in model.weights]
    attrs += [{"smelt.name": name} for name in (*inputs, *(value.name for value in model.unknown))]
    body = Region(tuple(args), tuple(b.ops), tuple(results.values()))
    return Func(
        "main",
        body,
        "public",
        tuple(attrs),
        tuple({"smelt.name": name, **model.notes.get(name, {})} for name in results),
    )


def _input(port: Any, sizes: list[Size], model: Model) -> Value:
    what = f"{model.path}: input {port.name!r}"
    kind = port.type.WhichOneof("value")
    if kind != "tensor_type" or port.type.tensor_type.elem_type == STRING:
        found = "a tensor of strings" if kind == "tensor_type" else f"a {kind or 'value without a type'}"
        raise StaticError(f"{what} must be known at import", (port.name,), expected="a tensor", got=found)
    tensor = port.type.tensor_type
    if not tensor.HasField("shape"):
        raise StaticError(
            f"{what} has no rank", (port.name,), expected="a shape", remedy="export the model with shapes"
        )
    element = element_type(tensor.elem_type, what)
    for dim in tensor.shape.dim:
        if dim.dim_value < -1:
            raise ParseError(f"{what} has an impossible size", got=dim.dim_value)
    fixed = model.shapes.get(port.name)
    if fixed is not None:
        if len(fixed) != len(sizes) or any(isinstance(a, int) and a != b for a, b in zip(sizes, fixed, strict=True)):
            expected = Shape.of(element, sizes)
            remedy = advise_shape(tuple(fixed), expected)
            raise ShapeError(f"{what} does not fit", expected=expected, got=list(fixed), remedy=remedy)
        sizes = [int(size) for size in fixed]
    value = Value(Shape.of(element, sizes), None, 0, port.name)
    model.inputs[value] = port.name
    model.given |= set() if model.runtime_broadcast else value.shape.symbols
    return value


def _static(port: Any, given: Any, model: Model) -> Item:
    """A given value, which must be of the input's type. A tensor may be a nested list: settings have no arrays."""
    is_tensor = port.type.WhichOneof("value") == "tensor_type"
    item = _as_given(_to_array(port, given, model) if is_tensor and isinstance(given, list | tuple) else given)
    if port.type.WhichOneof("value") != "tensor_type" or not isinstance(item, Tensor):
        return item
    tensor = port.type.tensor_type
    expected = element_type(tensor.elem_type, f"{model.path}: input {port.name!r}")
    dims = list(tensor.shape.dim) if tensor.HasField("shape") else None
    fits = dims is None or (
        len(dims) == item.rank
        and all(not d.HasField("dim_value") or d.dim_value in (-1, n) for d, n in zip(dims, item.sizes, strict=True))
    )
    if item.element != expected or not fits:
        raise ShapeError(
            f"{model.path}: the static value of {port.name!r} does not fit", expected=expected, got=item.shape
        )
    item.name = port.name
    return item


def _to_array(port: Any, given: Any, model: Model) -> Any:
    """A nested list as an array of the input's element type. Fractions are rounded, whole numbers must fit."""
    try:
        array = np.array(given)
    except ValueError:  # lists of several lengths
        return given
    if array.dtype.kind not in "biuf":  # strings, and what is no tensor
        return array
    made = array.astype(element_type(port.type.tensor_type.elem_type, f"{model.path}: input {port.name!r}").numpy)
    is_rounded = array.dtype.kind == "f" and made.dtype.kind in "fV"
    return made if is_rounded or np.array_equal(made.astype(array.dtype), array) else array


def _results(top: Graph, name: str, item: Item) -> dict[str, Value]:
    """The results that an output of the model becomes: one, or one per element of a sequence.

    Of text the program gives places in a table; the strings are in the result's attribute `smelt.labels`. A sequence of
    maps is a tensor with one column per key, and the keys are in `smelt.keys`.
    """
    match item:
        case Tensor():
            return {name: top.value(item)}
        case Sequence():
            found: dict[str, Value] = {}
            for i, each in enumerate(item.items):
                found |= _results(top, f"{name}[{i}]", each)
            return found
        case Optional() | Unknown():
            return {}
        case Labels():
            top.model.notes[name] = {"smelt.labels": tuple(item.table)}
            return {name: top.value(item.places)}
        case Maps():
            top.model.notes[name] = {"smelt.keys": tuple(Int(k) if isinstance(k, int) else k for k in item.keys)}
            return {name: top.value(item.values)}
        case Text():
            words = tuple(dict.fromkeys(item.array.reshape(-1).tolist()))
            order = {word: i for i, word in enumerate(words)}
            places = np.array([order[word] for word in item.array.reshape(-1)], np.int64).reshape(item.array.shape)
            return _results(top, name, Labels(Tensor.constant(places), np.array(words, object)))


def declared_sizes(ports: Iterable[Any]) -> tuple[dict[str, list[Size]], Scope]:
    """The sizes of the inputs by name: numbers, symbols, and new symbols `n0`, `n1`, … for dimensions without a name.

    The new names depend on the declarations alone, so that they are the same with and without values of inputs.
    """
    dims = {port.name: list(port.type.tensor_type.shape.dim) for port in ports}
    names = (dimension_name(dim.dim_param) for each in dims.values() for dim in each)
    scope = Scope(frozenset(name for name in names if name is not None))
    return {name: [dimension_size(dim, scope) for dim in each] for name, each in dims.items()}, scope


def dimension_size(proto: Any, scope: Scope) -> Size:
    """The size of one dimension: a number, a named symbol or a new one."""
    if proto.HasField("dim_value") and proto.dim_value >= 0:
        return int(proto.dim_value)
    name = dimension_name(proto.dim_param)
    return scope.new_symbol() if name is None else symbol(name)


def dimension_name(said: str) -> str | None:
    """The symbol's name for a named dimension: any text (`s0 + 1`, `batch/2`), which means nothing but itself.

    A name that cannot be a symbol is escaped and cut, with a digest that keeps it distinct.
    """
    name = said.strip()
    if not name or any_symbol(name) == UNKNOWN:
        return None
    if name.isprintable() and len(name) <= _LONGEST:
        return name
    return f"{ascii(name)[1 : _LONGEST - 16]}#{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _as_given(value: Any) -> Item:
    """A Python value given for an input: an array, a list of them, or None."""
    if value is None:
        return Optional()
    if isinstance(value, list | tuple):
        return Sequence(tuple(_as_given(each) for each in value))
    array = np.asarray(value)
    if array.dtype.kind in "OUST":
        words = array.astype(object)
        if not all(isinstance(word, str) for word in words.reshape(-1)):
            raise ShapeError("a value that is neither numbers nor text", got=type(value).__name__)
        return Text(words)
    return Tensor.constant(array)
