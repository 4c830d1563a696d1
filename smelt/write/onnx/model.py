"""Program + Weights → an ONNX model: the program is simplified, each op written by the table, and the graph saved.

`write(program, weights, path)` is what `smelt export` and `smelt.export` call; `build` gives the model in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, DType, f32
from smelt.engine.signature import signature_of
from smelt.errors import FileError, UnsupportedError
from smelt.files import write_atomically
from smelt.ir.clone import clone_ops, substitution
from smelt.ir.core import Op, Program, Value
from smelt.ir.ops.definition import Scope
from smelt.ir.rewrite import Edit, rewrite, symbols_at, symbols_of
from smelt.passes.canonicalise import CANONICALISE
from smelt.passes.common_subexpressions import common_subexpressions
from smelt.passes.fold_constants import fold_constants
from smelt.passes.inline import inline
from smelt.passes.lower import SCANS_FOR_ONNX, lower
from smelt.passes.lower_custom_calls import lower_custom_calls
from smelt.passes.lower_quantised_types import lower_quantised_types
from smelt.passes.pipeline import per_function, rules, until_stable
from smelt.passes.recognise import recognise
from smelt.passes.refine_shapes import refine_shapes
from smelt.passes.simplify import SIMPLIFY
from smelt.passes.split_complex import split_complex
from smelt.read.onnx.file.tensors import element_number
from smelt.shape import Shape
from smelt.version import __version__
from smelt.write.onnx.graph import Graph, Node, NoFormError, Out, Subgraph, shape_of
from smelt.write.onnx.ops.control import COMPOSITES
from smelt.write.onnx.table import write_op
from smelt.write.onnx.types import IR_VERSION, OPSET

EXTERNAL = 1 << 30  # bytes of weights from which on they are a file of their own: a protobuf message holds 2 GB
_ALIGNMENT = 4096
_PRODUCER = "smelt"


def prepare(program: Program, *, simplify: bool = True) -> Program:
    """The program in ops that the table writes: of scans only running sums are left; softmax and friends go by name."""
    program = rules(CANONICALISE)(refine_shapes(inline(program, COMPOSITES)))
    program = lower_quantised_types(lower_custom_calls(program))
    program = split_complex(per_function(lambda edit: lower(edit) + lower(edit, SCANS_FOR_ONNX))(program))
    if simplify:
        program = recognise(until_stable(_simplify, fold_constants, common_subexpressions)(program), COMPOSITES)
    return program


def _simplify(edit: Edit) -> int:
    return rewrite(edit, CANONICALISE + SIMPLIFY)


@dataclass(frozen=True, slots=True)
class Built:
    """A graph, and what its inputs, outputs and weights are called in the program."""

    nodes: tuple[Node, ...]
    inputs: tuple[Out, ...]
    outputs: tuple[Out, ...]
    constants: Mapping[str, tuple[DType, Array]]
    weights: Mapping[str, tuple[str, DType, tuple[int, ...]]]  # name in the graph → name in the file

    @property
    def is_large(self) -> bool:
        """Whether the weights need a file of their own."""
        sizes = (math.prod(sizes) * element.numpy.itemsize for _, element, sizes in self.weights.values())
        return sum(sizes) >= EXTERNAL


def build(program: Program, *, simplify: bool = True) -> Built:
    """The entry as a graph; raises UnsupportedError with every op that ONNX cannot say."""
    program = prepare(program, simplify=simplify)
    main, signature = program.main, signature_of(program.main)
    state = _Writing(program)
    g = state.graph
    outputs = [g.unique(port.name) for port in signature.outputs]
    inputs, weights = [], {}
    names = iter(signature.inputs), iter(signature.weights)
    for arg, attrs in zip(main.args, main.arg_attrs, strict=True):
        is_weight = "smelt.weight" in attrs
        port = next(names[is_weight])
        out = Out(g.unique(port.name), *state.type_of(arg))
        if is_weight:
            weights[out.name] = port.name, out.dtype, tuple(int(size) for size in out.sizes)  # type: ignore[arg-type]
        else:
            inputs.append(out)
        g.define(arg, out)
    g.write(main.body)
    found = [state.result(value) for value in main.results]
    state.check(main.location)
    results = [g.identity(out, name) for out, name in zip(found, outputs, strict=True)]
    kept = _remove_dead(_rename_outputs(g.scope.nodes, results), {out.name for out in results})
    used = _names_used(kept)
    constants = {name: held for name, held in g.constants.items() if name in used}
    return Built(tuple(kept), tuple(inputs), tuple(results), constants, weights)


class _Writing:
    """Writes ops, collects those that cannot be written, and inlines composites that ONNX has no operator for."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.graph = Graph(self.write_op)
        self.failed: dict[str, tuple[int, Op | None]] = {}

    def type_of(self, value: Value) -> tuple[DType, tuple[Size, ...]]:
        try:
            return shape_of(value)
        except NoFormError as error:
            self._note(f"an argument: {error}", value.op)
            return _STAND_IN

    def result(self, value: Value) -> Out:
        return self.graph.get(value)

    def _note(self, text: str, op: Op | None) -> None:
        count, first = self.failed.get(text, (0, op))
        self.failed[text] = count + 1, first

    def write_op(self, g: Graph, op: Op) -> Sequence[Out]:
        try:
            if op.name == "stablehlo.composite":
                return self.composite(g, op)
            empty = None if g.lanes else _empty(g, op)
            made = write_op(g, op) if empty is None else [empty]
            return [self._check(out, value, op) for out, value in zip(made, op.results, strict=True)]
        except NoFormError as error:
            self._note(f"{op.name}: {error}", op)
            return [Out(g.unique("missing"), *_type_or_stand_in(value)) for value in op.results]

    def _check(self, out: Out, value: Value, op: Op) -> Out:
        element, sizes = shape_of(value)
        assert out.dtype == element, f"{op.name} was written as {out.dtype}, not {element}"
        if self.graph.lanes:
            return out
        assert out.rank == len(sizes), f"{op.name} was written with {out.rank} axes, not {len(sizes)}"
        return Out(out.name, element, sizes)

    def composite(self, g: Graph, op: Op) -> Sequence[Out]:
        writer = COMPOSITES.get(op.attrs["name"])
        made = writer(g, op) if writer is not None else None
        if made is not None:
            return [made]
        callee = self.program.func(op.attrs["decomposition"])
        inner = dict(zip(callee.args, op.operands, strict=True))
        renamed = symbols_at(callee, op.operands, op, Scope(symbols_of(self.program.main)))
        for each in clone_ops(callee.body.ops, inner, substitution(renamed)):
            for result, out in zip(each.results, self.write_op(g, each), strict=True):
                g.define(result, out)
        return [g.get(inner.get(value, value)) for value in callee.results]

    def check(self, where: object) -> None:
        if not self.failed:
            return
        lines = []
        joints = ("stablehlo.complex: ", "stablehlo.real: ", "stablehlo.imag: ")  # around a complex op without a rule
        reasons = {text: at for text, at in self.failed.items() if not text.startswith(joints)} or self.failed
        for text, (count, op) in reasons.items():
            place = f", first at {op.location}" if op is not None and op.location else ""
            lines.append(f"{text}" + (f" ({count} times{place})" if count > 1 else f" ({place[2:]})" if place else ""))
        raise UnsupportedError(
            f"{len(lines)} things in the program have no ONNX form",
            expected="ops that ONNX has, too",
            got="; ".join(lines),
            where=where,
            remedy="smelt export MODEL -o model.mlir writes every program as StableHLO",
        )


_STAND_IN: tuple[DType, tuple[Size, ...]] = (f32, ())


def _type_or_stand_in(value: Value) -> tuple[DType, tuple[Size, ...]]:
    try:
        return shape_of(value)
    except NoFormError:
        return _STAND_IN


def _empty(g: Graph, op: Op) -> Out | None:
    """The result of an op that has no elements: runtimes differ in which operators take them."""
    if len(op.results) != 1 or op.regions or not isinstance(op.results[0].type, Shape):
        return None
    element, sizes = shape_of(op.results[0])
    return (
        g.constant(np.zeros(op.results[0].shape.numbers(), element.numpy), element)
        if 0 in sizes and op.results[0].shape.is_static
        else None
    )


# ---- the finished graph ----


def _rename_outputs(nodes: Sequence[Node], results: Sequence[Out]) -> list[Node]:
    """Give tensors the names of outputs, where an output would only be an Identity of one."""
    wanted = {out.name for out in results}
    copies = {node.outputs[0]: node.inputs[0] for node in nodes if node.operator == "Identity"}
    made = {name for node in nodes for name in node.outputs}
    renamed: dict[str, str] = {}
    for name in wanted:
        source = copies[name]
        if source in made and source not in renamed and source not in wanted:
            renamed[source] = name
    kept = [
        node for node in nodes if not (node.outputs[0] in wanted and renamed.get(node.inputs[0]) == node.outputs[0])
    ]
    return [_rename(node, renamed) for node in kept]


def _rename(node: Node, names: Mapping[str, str]) -> Node:
    attributes = {
        key: Subgraph(
            value.inputs,
            tuple(_rename(each, names) for each in value.nodes),
            tuple(Out(names.get(out.name, out.name), out.dtype, out.sizes) for out in value.outputs),
        )
        if isinstance(value, Subgraph)
        else value
        for key, value in node.attributes.items()
    }
    return Node(
        node.operator,
        [names.get(name, name) for name in node.inputs],
        [names.get(name, name) for name in node.outputs],
        attributes,
    )


def _remove_dead(nodes: Sequence[Node], used: set[str]) -> list[Node]:
    """Nodes whose results are used, also inside subgraphs."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if used.isdisjoint(node.outputs):
            continue
        attributes = {}
        for key, value in node.attributes.items():
            if isinstance(value, Subgraph):
                inner = _remove_dead(value.nodes, used | {out.name for out in value.outputs})
                value = Subgraph(value.inputs, tuple(inner), value.outputs)
                used |= _names_used(inner)
            attributes[key] = value
        used |= set(node.inputs)
        kept.append(Node(node.operator, node.inputs, node.outputs, attributes))
    return kept[::-1]


def _names_used(nodes: Sequence[Node]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        found.update(node.inputs)
        for value in node.attributes.values():
            if isinstance(value, Subgraph):
                found |= _names_used(value.nodes)
    return found


# ---- protobuf ----


def to_model(built: Built, weights: Mapping[str, Any], place: str | None = None) -> tuple[Any, list[Array]]:
    """The ModelProto, and the arrays of a file `place` beside it, in order; without a place all is in the message."""
    onnx = _onnx()
    stored: list[Array] = []
    offset = 0
    tensors = []
    for name, (key, element, sizes) in built.weights.items():
        array = np.asarray(weights[key].numpy() if hasattr(weights[key], "numpy") else weights[key])
        if place is None:
            tensors.append(_tensor(onnx, name, element, array.reshape(sizes)))
            continue
        raw = _raw(element, array)
        tensor = onnx.TensorProto(name=name, data_type=element_number(element), dims=sizes, data_location=1)
        for entry, text in (("location", place), ("offset", str(offset)), ("length", str(raw.nbytes))):
            tensor.external_data.add(key=entry, value=text)
        tensors.append(tensor)
        stored.append(raw)
        offset += raw.nbytes + -raw.nbytes % _ALIGNMENT
    tensors += [_tensor(onnx, name, element, array) for name, (element, array) in built.constants.items()]
    graph = onnx.helper.make_graph(
        [_node(onnx, node, i) for i, node in enumerate(built.nodes)],
        "main",
        [_port(onnx, out) for out in built.inputs],
        [_port(onnx, out) for out in built.outputs],
        tensors,
    )
    model = onnx.helper.make_model(
        graph,
        producer_name=_PRODUCER,
        producer_version=__version__,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    return model, stored


def write(program: Program, weights: Mapping[str, Any], path: str | Path) -> Built:
    """Save a program as an ONNX file, which appears when it is complete. Large weights go to FILE.data beside it."""
    path = Path(path)
    built = build(program)
    place = f"{path.name}.data" if built.is_large else None
    model, stored = to_model(built, weights, place)
    if place is not None:
        write_atomically(path.with_name(place), _pad(stored))
    try:
        write_atomically(path, [model.SerializeToString()])
    except ValueError as error:  # protobuf's limit of 2 GB
        raise FileError(f"{path} is too large for one protobuf message", got=error) from error
    return built


def _pad(arrays: Sequence[Array]) -> Iterator[bytes | memoryview]:
    for array in arrays:
        yield array.reshape(-1).view(np.uint8).data if array.size else b""
        yield bytes(-array.nbytes % _ALIGNMENT)


def _onnx() -> Any:
    try:
        import onnx
        import onnx.helper
    except ImportError as error:
        raise UnsupportedError("writing ONNX needs the package onnx", got=error, remedy="pip install onnx") from error
    return onnx


def _raw(element: DType, array: Array) -> Array:
    """Little-endian bytes; integers of less than 8 bits two, or four, to a byte."""
    if element.bits < 8 and element.kind != "bool":
        flat = array.reshape(-1).astype(np.int8).view(np.uint8) & ((1 << element.bits) - 1)
        per_byte = 8 // element.bits
        flat = np.concatenate([flat, np.zeros(-len(flat) % per_byte, np.uint8)]).reshape(-1, per_byte)
        shifts = np.arange(per_byte, dtype=np.uint8) * element.bits
        return np.asarray(np.bitwise_or.reduce(flat << shifts, axis=1), np.uint8)
    return np.ascontiguousarray(array)


def _tensor(onnx: Any, name: str, element: DType, array: Array) -> Any:
    raw = _raw(element, array).tobytes()
    return onnx.TensorProto(name=name, data_type=element_number(element), dims=array.shape, raw_data=raw)


def _port(onnx: Any, out: Out) -> Any:
    sizes = [size if isinstance(size, int) else str(size) for size in out.sizes]
    return onnx.helper.make_tensor_value_info(out.name, element_number(out.dtype), sizes)


def _inner_port(onnx: Any, out: Out) -> Any:
    """Inside a subgraph a formula may be of sizes that differ from turn to turn: they are left out."""
    sizes = [size if isinstance(size, int) else None for size in out.sizes]
    return onnx.helper.make_tensor_value_info(out.name, element_number(out.dtype), sizes)


def _node(onnx: Any, node: Node, number: int) -> Any:
    attributes = {}
    for key, value in node.attributes.items():
        if isinstance(value, Subgraph):
            value = onnx.helper.make_graph(
                [_node(onnx, each, i) for i, each in enumerate(value.nodes)],
                key,
                [_inner_port(onnx, out) for out in value.inputs],
                [_inner_port(onnx, out) for out in value.outputs],
            )
        elif isinstance(value, DType):
            value = element_number(value)
        attributes[key] = value
    return onnx.helper.make_node(
        node.operator, node.inputs, node.outputs, name=f"{node.operator}_{node.outputs[0]}", **attributes
    )
