"""Everything in an ONNX file that cannot be read, not only the first: `survey(path)`.

Nodes are read one by one, in subgraphs and functions too. Where one fails, reading goes on with values of the types
that the file declares; a node that fails only because of such a value is set aside. Called by `read.onnx.sample`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smelt.dim import Size, symbol, symbols
from smelt.errors import ParseError, SmeltError, UnsupportedError
from smelt.ir.build import Builder
from smelt.ir.core import Program, Value
from smelt.read.onnx.file.tensors import STRING, element_type
from smelt.read.onnx.graph import Graph, Model, StaticError, domain_of
from smelt.read.onnx.items import Item, Tensor, Unknown
from smelt.read.onnx.model import open_model, program_of
from smelt.read.onnx.standard import type_proto
from smelt.shape import Shape
from smelt.weights import Weights

_LOOPS = ("Loop", "Scan")
_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Finding:
    """What is the matter with a node: its name, its operator, the subgraphs and calls around it, and the error."""

    node: str
    operator: str
    path: tuple[str, ...]
    error: SmeltError

    @property
    def place(self) -> str:
        return " / ".join([*self.path, self.node])

    def record(self) -> dict[str, Any]:
        error = {name: value for name, value in self.error.record().items() if name != "where"}
        return {"node": self.node, "operator": self.operator, "path": list(self.path), **error}


@dataclass(frozen=True, slots=True)
class Survey:
    """What one reading of a file found. With problems the program is the part that could be read."""

    message: Any  # the ModelProto, without its big tensors
    program: Program | None
    weights: Weights
    inputs: dict[str, Shape]  # of the program
    problems: tuple[Finding, ...]
    unjudged: tuple[Finding, ...]  # nodes that depend on what could not be read, or on guesses
    needs: tuple[Finding, ...]  # the errors are `StaticError`s: inputs or sizes that must be given at import

    @property
    def faults(self) -> int:
        return len(self.problems) + len(self.unjudged) + (self.program is None)


def survey(
    path: str | Path,
    static: Mapping[str, Any] = _NONE,
    shapes: Mapping[str, tuple[int, ...]] = _NONE,
    guessed: frozenset[str] = frozenset(),
) -> Survey:
    """Read a file to its end. `guessed`: inputs with sample values or sizes, which may cause a failure."""
    message, model = open_model(path, static, shapes)
    watch = model.watch = _Watch(message, model, guessed)
    program, weights = None, Weights(model.stored, source=model.path)
    try:
        program, weights = program_of(message, model)
    except SmeltError as error:
        if not watch.read:  # not a node: what was given does not fit
            raise
        watch.problems[()] = Finding("", "", (), error)
    inputs = {name: value.shape for value, name in model.inputs.items()}
    problems, unjudged = tuple(watch.problems.values()), tuple(watch.unjudged.values())
    return Survey(message, program, weights, inputs, problems, unjudged, tuple(watch.needs.values()))


def histogram(message: Any) -> dict[str, int]:
    """How many nodes of each operator a file holds, in subgraphs and functions too."""
    return dict(Counter(operator_name(node) for node in all_nodes(message)).most_common())


def all_nodes(message: Any) -> Iterator[Any]:
    pending = [*message.graph.node, *(node for function in message.functions for node in function.node)]
    while pending:
        node = pending.pop()
        yield node
        pending += [inner for graph in _subgraphs(node).values() for inner in graph.node]


def operator_name(node: Any) -> str:
    domain = domain_of(node)
    return f"{domain}.{node.op_type}" if domain else str(node.op_type)


class UnknownInputError(UnsupportedError):
    """A node takes something that could not be read."""


@dataclass(slots=True)
class _Watch:
    """Stands between a graph and its nodes. In strict mode a mistake is raised, as in any reading."""

    message: Any
    model: Model
    guessed: frozenset[str]
    problems: dict[tuple[str, ...], Finding] = field(default_factory=dict)
    unjudged: dict[tuple[str, ...], Finding] = field(default_factory=dict)
    needs: dict[tuple[object, ...], Finding] = field(default_factory=dict)
    doubtful: set[Item] = field(default_factory=set)  # what depends on guesses or on unknown values
    doubts: int = 0  # how often reading went on with an unknown value
    read: set[tuple[str, ...]] = field(default_factory=set)  # paths of the graphs that were read
    strict: int = 0
    repeated: int = 0  # inside a loop's body, which may be read in more than one way
    aside: int = 0  # inside a branch that the guesses do not take
    declared: dict[str, Any] = field(default_factory=dict)  # types by name
    known: dict[str, Size] = field(default_factory=dict)  # symbols of the inputs
    born: set[str] = field(default_factory=set)  # symbols of unknown values

    def __post_init__(self) -> None:
        graph = self.message.graph
        ports = [*graph.value_info, *graph.output]
        for node in all_nodes(self.message):
            for inner in _subgraphs(node).values():
                ports += [*inner.value_info, *inner.output]
        self.declared = {port.name: port.type for port in ports if port.type.WhichOneof("value")}
        for port in graph.input:
            dims = port.type.tensor_type.shape.dim
            fixed = self.model.shapes.get(port.name, [None] * len(dims))
            for dim, number in zip(dims, fixed, strict=False):
                if name := dim.dim_param.strip():
                    self.known[name] = symbol(name) if number is None else number

    # -- what the graphs call --

    def results(self, graph: Graph, node: Any) -> list[Item]:
        """The outputs of a node, or what to go on with where it cannot be read."""
        self.read.add(graph.path)
        doubtful = any(self._is_doubtful(graph, name) for name in _names(node))
        before = self.doubts
        results = self._results(graph, node, doubtful)
        if doubtful or self.doubts != before:
            self.doubtful.update(results)
        if doubtful and node.op_type == "If":
            self._other_branches(graph, node)
        return results

    def absent(self, graph: Graph, name: str, error: SmeltError) -> Item:
        """An input or initialiser that cannot be read."""
        finding = Finding(name, "", graph.path, error)
        if isinstance(error, StaticError):
            self.needs[error.inputs] = finding
        else:
            self.problems[(*graph.path, name)] = finding
        return self._unknown(None)

    # -- one node --

    def _results(self, graph: Graph, node: Any, doubtful: bool) -> list[Item]:
        function = (domain_of(node), node.op_type) in self.model.functions
        if not function and any(isinstance(graph.look(name), Unknown) for name in node.input if name):
            return self._unreadable(graph, node)
        try:
            with self._strictly():
                return graph.results(node)
        except SmeltError as error:
            if self.strict:
                raise
            graph.b.location = graph.location
            self._record_failure(graph, node, error, doubtful or self.repeated > 0, function or bool(_subgraphs(node)))
        return self._unknowns(graph, node)

    def _unreadable(self, graph: Graph, node: Any) -> list[Item]:
        """A node of whose inputs one is not known at all: is there such an operator, and what is inside it?"""
        missing = UnknownInputError(f"{node.op_type}: an input is not known", where=graph.location)
        if self.strict:
            raise missing
        try:
            graph.check_operator(node)
            self._set_aside(graph, node, missing)
        except SmeltError as error:
            self._problem(graph, node, error)
        self._walk(graph, node)
        return self._unknowns(graph, node)

    def _record_failure(self, graph: Graph, node: Any, error: SmeltError, doubtful: bool, holds_nodes: bool) -> None:
        if self._is_need(graph, node, error):
            return
        before = len(self.problems)
        if holds_nodes:
            self._inside(graph, node)
        if len(self.problems) > before:
            return  # that is why
        if isinstance(error, UnknownInputError) or (doubtful and not self._is_own_fault(graph, node, error)):
            self._set_aside(graph, node, error)
        else:
            self._problem(graph, node, error)

    def _is_need(self, graph: Graph, node: Any, error: SmeltError) -> bool:
        """Whether a node could be read if more inputs or the sizes were given; keeps which."""
        if not isinstance(error, StaticError):
            return False
        inputs = tuple(name for name in error.inputs if name not in self.model.static)
        sizes = error.sizes and not self.model.shapes
        if not inputs and sizes and self._has_born_sizes(graph, node):
            return False  # they are not the inputs' sizes
        if not (inputs or sizes):
            return False
        if not self.aside:
            self.needs.setdefault((*inputs, sizes), self._finding(graph, node, error))
        return True

    def _is_own_fault(self, graph: Graph, node: Any, error: SmeltError) -> bool:
        """Whether an error says something about a node whatever its doubtful inputs are."""
        if isinstance(error, StaticError) or not isinstance(error, ParseError | UnsupportedError):
            return False
        return not (self.model.shapes and self._has_born_sizes(graph, node))

    def _inside(self, graph: Graph, node: Any) -> None:
        """Read a node again, this time to find what is wrong in the graphs inside it."""
        loops = node.op_type in _LOOPS
        self.repeated += loops
        try:
            graph.results(node)
        except SmeltError:
            pass  # the reason is known already: this is the reading that goes on behind it
        finally:
            self.repeated -= loops
        self._walk(graph, node)

    def _walk(self, graph: Graph, node: Any) -> None:
        """Read the subgraphs of a node that nothing has read yet, with inputs of their declared types."""
        for name, inner in _subgraphs(node).items():
            if (*graph.path, f"{graph.location.name}.{name}") in self.read:
                continue
            items = [self._unknown(self._value(graph, port.name, port.type)) for port in inner.input]
            try:
                graph.inside(inner, Builder(graph.b.scope, graph.b.location), items)
            except SmeltError as error:
                self._problem(graph, node, error)

    def _other_branches(self, graph: Graph, node: Any) -> None:
        """The branches that would be taken for other values than those that were guessed."""
        strict, self.strict = self.strict, 0
        self.aside += 1
        self._walk(graph, node)
        self.aside -= 1
        self.strict = strict

    # -- what is kept --

    def _finding(self, graph: Graph, node: Any, error: SmeltError) -> Finding:
        return Finding(graph.location.name, operator_name(node), graph.path, error)

    def _problem(self, graph: Graph, node: Any, error: SmeltError) -> None:
        self.problems.setdefault(_key(graph, node), self._finding(graph, node, error))

    def _set_aside(self, graph: Graph, node: Any, error: SmeltError) -> None:
        if not self.aside:
            self.unjudged.setdefault(_key(graph, node), self._finding(graph, node, error))

    @contextmanager
    def _strictly(self) -> Iterator[None]:
        self.strict += 1
        try:
            yield
        finally:
            self.strict -= 1

    # -- values that stand in for what could not be read --

    def _is_doubtful(self, graph: Graph, name: str) -> bool:
        item = graph.look(name) if name else None
        return item is not None and (item in self.doubtful or name in self.guessed)

    def _has_born_sizes(self, graph: Graph, node: Any) -> bool:
        items = [graph.look(name) for name in _names(node)]
        sizes = [size for item in items if isinstance(item, Tensor) for size in item.sizes]
        return any(self.born & symbols(size) for size in sizes)

    def _unknowns(self, graph: Graph, node: Any) -> list[Item]:
        inferred = _infer_types(graph, node)
        types = [self.declared.get(name, inferred.get(name)) for name in node.output]
        values = [self._value(graph, name, proto) for name, proto in zip(node.output, types, strict=True)]
        return [self._unknown(None if value is None else graph.item(value)) for value in values]

    def _unknown(self, item: Item | Value | None) -> Item:
        self.doubts += 1
        found = Tensor.of(item) if isinstance(item, Value) else item or Unknown()
        self.doubtful.add(found)
        return found

    def _value(self, graph: Graph, name: str, proto: Any) -> Value | None:
        """A value of a declared type, if that says enough."""
        if proto is None or proto.WhichOneof("value") != "tensor_type":
            return None
        tensor = proto.tensor_type
        if not tensor.HasField("shape") or tensor.elem_type in (0, STRING):
            return None
        try:
            shape = Shape.of(element_type(tensor.elem_type, name), [self._size(graph, dim) for dim in tensor.shape.dim])
        except SmeltError:
            return None
        value = Value(shape, None, 0, name)
        self.model.unknown.append(value)
        return value

    def _size(self, graph: Graph, dim: Any) -> Size:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return int(dim.dim_value)
        if dim.dim_param.strip() in self.known:
            return self.known[dim.dim_param.strip()]
        fresh = graph.b.scope.new_symbol()
        self.born |= symbols(fresh)
        return fresh


def _key(graph: Graph, node: Any) -> tuple[str, ...]:
    """The identity of a node: a loop's body is read more than once."""
    return (*graph.path, node.name, *node.output)


def _subgraphs(node: Any) -> dict[str, Any]:
    return {each.name: each.g for each in node.attribute if each.HasField("g")}


def _names(node: Any) -> Iterator[str]:
    """The names that a node uses, those in its subgraphs too."""
    yield from node.input
    for graph in _subgraphs(node).values():
        yield from (port.name for port in graph.output)
        for inner in graph.node:
            yield from _names(inner)


def _infer_types(graph: Graph, node: Any) -> dict[str, Any]:
    """The types that the standard's own inference gives a node's outputs, where its inputs are tensors."""
    import onnx

    domain = domain_of(node)
    items: Sequence[Item | None] = [graph.look(name) for name in node.input if name]
    if not all(isinstance(item, Tensor) for item in items) or _subgraphs(node) or domain not in graph.opsets:
        return {}
    try:
        schema = onnx.defs.get_schema(node.op_type, graph.opsets[domain], domain)
        types = {name: type_proto(graph.look(name)) for name in node.input if name}
        return dict(onnx.shape_inference.infer_node_outputs(schema, node, types))
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError):
        return {}
