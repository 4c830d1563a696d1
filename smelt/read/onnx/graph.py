"""Reading a graph: nodes in, ops of a program out.

`Graph` maps names to items and calls the registered operator of each node; subgraphs and functions are nested graphs.
`Model` is the state that all graphs of one file share. Called by `read.onnx.model` and by the operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from smelt.dim import symbol, symbols
from smelt.dtype import Array
from smelt.errors import Location, ParseError, ShapeError, SmeltError, UnsupportedError, VerifyError
from smelt.ir.build import Builder
from smelt.ir.core import Attrs, Func, Value
from smelt.ir.ops.signature import bare_symbol
from smelt.ir.sizes import trace
from smelt.read.onnx.emit import Emit
from smelt.read.onnx.file.tensors import STRING, TensorReader
from smelt.read.onnx.file.wire import INLINE_LIMIT
from smelt.read.onnx.items import Item, Labels, Optional, Tensor, Text
from smelt.read.onnx.known import Missing, evaluate
from smelt.read.onnx.registry import REQUIRED, ROWS, Input, Row, find
from smelt.read.onnx.standard import definition
from smelt.weights import Stored

_MAX_NESTING = 48  # functions and subgraphs inside each other
_MOVES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Gather", "Slice", "Split")
_ZEROS = 1 << 16  # bytes of a vector that are worth a look
_TYPE_NAMES = {
    "int": "an integer", "float": "a float", "str": "a string", "Tensor": "a tensor", "Item": "a tensor",
    "tuple[int, ...]": "a list of integers", "tuple[float, ...]": "a list of floats",
    "tuple[str, ...]": "a list of strings",
}  # fmt: skip
_MISTAKES = (
    IndexError, ValueError, TypeError, KeyError, OverflowError, ZeroDivisionError, MemoryError, RecursionError,
)  # fmt: skip


class StaticError(UnsupportedError):
    """A compile-time value is not known at import: `inputs` are the model's inputs it depends on.

    `sizes`: it depends on dynamic dimensions, and is known once the inputs' shapes are.
    """

    def __init__(self, message: str, inputs: tuple[str, ...], *, sizes: bool = False, **details: Any) -> None:
        super().__init__(message, **details)
        self.inputs = inputs
        self.sizes = sizes


class OperatorError(UnsupportedError):
    """There is no such operator, version or attribute, whatever the inputs are."""

    advice = "smelt inspect FILE lists everything that cannot be read; docs/onnx_operators.md what can"


class Watch(Protocol):
    """Intercepts nodes to collect mistakes instead of stopping at the first (`survey.py`)."""

    def results(self, graph: Graph, node: Any) -> list[Item]:
        """The outputs of a node, or placeholders."""
        ...

    def absent(self, graph: Graph, name: str, error: SmeltError) -> Item:
        """A placeholder for an input or an initialiser that cannot be read."""
        ...


@dataclass(slots=True)
class Model:
    """The state that the graphs of one file share."""

    path: str
    reader: TensorReader
    functions: Mapping[tuple[str, str], Any]
    opsets: Mapping[str, int]
    static: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]  # of inputs whose sizes are fixed at import
    stored: dict[str, Stored] = field(default_factory=dict)  # weights by name
    weights: dict[str, Value] = field(default_factory=dict)  # those that the program uses, as arguments
    inputs: dict[Value, str] = field(default_factory=dict)
    births: dict[str, tuple[Value, int]] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)  # symbols that inputs have
    evaluated: dict[Value, Array] = field(default_factory=dict)
    nodes: int = 0  # read so far: every function call and every iteration of an unrolled loop counts
    most_nodes: int = 20_000
    notes: dict[str, Attrs] = field(default_factory=dict)  # attributes of results, by name
    decompositions: dict[str, Func] = field(default_factory=dict)  # of the composites that operators emit
    watch: Watch | None = None
    fed: frozenset[str] = frozenset()  # inputs that come with a call although an initialiser gives them a value
    unknown: list[Value] = field(default_factory=list)  # what a watch goes on with where nodes cannot be read
    runtime_broadcast: bool = False  # whether inputs' sizes that differ are broadcast at run time, as late ones are

    def weight(self, name: str, stored: Stored) -> Value:
        """The argument that holds a weight."""
        value = self.weights.get(name)
        if value is None:
            self.stored.setdefault(name, stored)
            value = self.weights[name] = Value(stored.shape, None, 0, name)
        return value

    def fresh_name(self, hint: str) -> str:
        """A name for a weight that the file does not have."""
        name, n = hint, 0
        while not name or name in self.stored:
            n += 1
            name = f"{hint}.{n}"
        return name


class Graph(Emit):
    """A graph that is being read into a builder."""

    def __init__(
        self,
        model: Model,
        b: Builder,
        outer: Graph | None = None,
        opsets: Mapping[str, int] | None = None,
        attributes: Mapping[str, Any] | None = None,
        captures: bool = True,
    ) -> None:
        super().__init__(b, outer.births if outer is not None else model.births, model.given)
        self.model = model
        self._missing = Missing()  # why the last value that was looked at is not known
        self.outer = outer if captures else None
        self.depth: int = outer.depth + 1 if outer is not None else 0
        self.opsets: Mapping[str, int] = opsets or (outer.opsets if outer is not None else model.opsets)
        self.attributes = attributes or {}  # of the function whose body this is
        self.items: dict[str, Item] = {}
        self.node: Any = outer.node if outer is not None else None
        self.path: tuple[str, ...] = outer.path if outer is not None else ()  # of subgraphs and calls, from the top
        if self.depth > _MAX_NESTING:
            raise UnsupportedError("functions or graphs inside each other, too deep", expected=_MAX_NESTING)

    # -- names --

    def find(self, name: str) -> Item:
        found = self.look(name)
        if found is None:
            raise ParseError(f"{name!r} is used before anything makes it", where=self.location)
        return found

    def look(self, name: str) -> Item | None:
        """The item of a name, here or in an outer graph; None if there is none yet."""
        graph: Graph | None = self
        while graph is not None:
            if name in graph.items:
                return graph.items[name]
            graph = graph.outer
        return None

    def bind(self, name: str, item: Item) -> None:
        """Bind a name to an item, once."""
        if name in self.items:
            raise ParseError(f"{name!r} is made twice", where=self.location)
        self.items[name] = item

    @property
    def location(self) -> Location:
        node = self.node
        if node is None:
            return Location(self.model.path)
        output = node.output[0] if node.output else ""
        return Location(self.model.path, name=node.name or f"{node.op_type}/{output}")

    # -- nodes --

    def run(self, nodes: Iterable[Any]) -> None:
        """Read nodes, in order."""
        for node in nodes:
            self.node = node
            self.model.nodes += 1
            if self.model.nodes > self.model.most_nodes:
                raise UnsupportedError(
                    "a model of too many nodes", expected=f"at most {self.model.most_nodes}", where=self.location
                )
            self.b.location = self.location
            watch = self.model.watch
            results = self.results(node) if watch is None else watch.results(self, node)
            for name, item in zip(node.output, results, strict=False):
                if name:
                    self.bind(name, item)

    def results(self, node: Any) -> list[Item]:
        """The outputs of one node, at least as many as it names."""
        results = self.call(node)
        if any(node.output[len(results) :]):
            raise UnsupportedError(
                f"{node.op_type}: an output that is not supported",
                got=list(node.output[len(results) :]),
                where=self.location,
            )
        return results

    def call(self, node: Any) -> list[Item]:
        """The outputs of one node."""
        domain = domain_of(node)
        inputs = [self.find(name) if name else None for name in node.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        protos = self._attribute_protos(node)
        attributes = {name: self.attribute(proto) for name, proto in protos.items()}
        function = self.model.functions.get((domain, node.op_type))
        try:
            if function is not None:
                return self.expand(function, inputs, protos)
            row = self._row(node)
            if row is None:
                return self._by_definition(node, inputs, protos)
            return self._apply(row, inputs, attributes)
        except SmeltError as error:
            if error.where is None:
                error.where = self.location
            if self._needs_sizes(error, inputs):
                raise StaticError(
                    error.message,
                    (),
                    expected=error.expected,
                    got=error.got,
                    where=error.where,
                    remedy="give the model fixed sizes",
                    sizes=True,
                ) from error
            raise
        except _MISTAKES as error:
            raise VerifyError(
                f"{node.op_type}: invalid inputs or attributes",
                expected=f"what the ONNX standard says about {node.op_type}",
                got=_describe(node, inputs, attributes),
                where=self.location,
                remedy="onnx.checker.check_model(model, full_check=True) may say what is wrong",
            ) from error

    def check_operator(self, node: Any) -> None:
        """Whether there is such an operator with such attributes; nothing need be known about its inputs."""
        attributes = {name: self.attribute(proto) for name, proto in self._attribute_protos(node).items()}
        if (domain_of(node), node.op_type) in self.model.functions:
            return
        row = self._row(node)
        if row is None:
            schema = self._schema(node)
            if not (schema.has_function or schema.has_context_dependent_function):
                raise OperatorError(f"the operator {node.op_type} is not supported", where=self.location)
        else:
            _check_attributes(row, attributes)

    def _row(self, node: Any) -> Row | None:
        domain = domain_of(node)
        version = self.opsets.get(domain)
        if version is None:
            raise ParseError(f"the model imports no operators of {domain or 'ai.onnx'!r}", got=node.op_type)
        return find(domain, node.op_type, version)

    def _needs_sizes(self, error: SmeltError, inputs: list[Item | None]) -> bool:
        """Whether a node that cannot be read with dynamic dimensions may be read once they are fixed."""
        tensors = [item for item in inputs if isinstance(item, Tensor)]
        shapes = [item.shape for item in tensors if not item.shape.is_static]
        wanted = any(item.is_symbolic for item in tensors)  # the sizes of a result, computed from dynamic dimensions
        if isinstance(error, StaticError | OperatorError) or not (shapes or wanted) or self.model.shapes:
            return False
        if isinstance(error, ShapeError | VerifyError):  # a mistake, unless the error is about a dynamic dimension
            text = f"{error.expected} {error.got}"
            names = {name for shape in shapes for size in shape.sizes for name in symbols(size)}
            return any(re.search(rf"(?<!\w){re.escape(str(symbol(name)))}(?!\w)", text) for name in names)
        return isinstance(error, UnsupportedError)

    def _apply(self, row: Row, inputs: list[Item | None], attributes: dict[str, Any]) -> list[Item]:
        if inputs and isinstance(inputs[0], Labels) and row.name in _MOVES:  # labels move as their places do
            moved = self._apply(row, [inputs[0].places, *inputs[1:]], attributes)
            return [Labels(each, inputs[0].table) if isinstance(each, Tensor) else each for each in moved]
        _check_attributes(row, attributes)
        if row.variadic is None and len(inputs) > len(row.inputs):
            raise ParseError(f"{row.name}: too many inputs", expected=len(row.inputs), got=len(inputs))
        arguments = []
        for i, wanted in enumerate(row.inputs):
            given = inputs[i] if i < len(inputs) else None
            if given is None and not wanted.optional:
                raise ParseError(f"{row.name}: input {wanted.name!r} is missing")
            if isinstance(given, Tensor):
                _check_input(row, wanted, given)
            arguments.append(None if given is None else self._argument(given, wanted))
        if row.variadic is not None:
            for given in inputs[len(row.inputs) :]:
                arguments.append(None if given is None else self._argument(given, row.variadic))
        keywords = {row.parameters[name]: value for name, value in attributes.items()}
        result = row.function(self, *arguments, **keywords)
        return [self.item(each) for each in (result if isinstance(result, tuple | list) else (result,))]

    def _argument(self, item: Item, wanted: Input) -> Any:
        if wanted.kind == "Item":
            return item
        if wanted.kind == "Array" and isinstance(item, Text):
            return item.array
        if not isinstance(item, Tensor):
            raise UnsupportedError(
                f"input {wanted.name!r} must be a tensor", got=type(item).__name__.lower(), where=self.location
            )
        match wanted.kind:
            case "Value":
                return self.value(item)
            case "Tensor":
                return item
            case "Sizes":
                return tuple(_whole(each, wanted.name) for each in self.sizes(item, wanted.name).reshape(-1).tolist())
            case "Ints":
                return tuple(_whole(each, wanted.name) for each in self.numbers(item, wanted.name).reshape(-1).tolist())
            case _:
                return self.numbers(item, wanted.name)

    def item(self, result: Item | Value) -> Item:
        """A result as an item; its dimensions are recorded as sources of their symbols."""
        if not isinstance(result, Value):
            return result
        shape = result.shape
        if not shape.is_static:
            for axis, size in enumerate(shape.sizes):
                name = bare_symbol(size)
                if name is not None and name not in self.births:
                    self.births[name] = (result, axis)
        return Tensor.of(result)

    # -- functions and subgraphs --

    def expand(self, function: Any, inputs: list[Item | None], attributes: dict[str, Any]) -> list[Item]:
        """The body of a function in place of its call."""
        opsets = {("" if each.domain == "ai.onnx" else each.domain): each.version for each in function.opset_import}
        defaults = {proto.name: proto for proto in function.attribute_proto}
        inner = Graph(self.model, self.b, self, {**self.opsets, **opsets}, {**defaults, **attributes}, captures=False)
        inner.path = (*self.path, f"{self.location.name}({function.domain or 'ai.onnx'}.{function.name})")
        for name, item in zip(function.input, inputs, strict=False):
            if item is not None:
                inner.items[name] = item
        for name in function.input[len(inputs) :]:
            inner.items.pop(name, None)
        inner.run(_present(function.node, inner, set(function.input) - set(inner.items)))
        self.b.location = self.location
        return [inner.find(name) if name in inner.items else Optional() for name in function.output]

    def _schema(self, node: Any) -> Any:
        """What the ONNX standard says about an operator without a row."""
        import onnx

        domain = domain_of(node)
        version = self.opsets[domain]
        try:
            return onnx.defs.get_schema(node.op_type, version, domain)
        except onnx.defs.SchemaError:
            known = (domain, node.op_type) in ROWS
            what = f"operator {domain or 'ai.onnx'}.{node.op_type}"
            raise OperatorError(
                f"no {what} in opset {version}" if known else f"unknown {what}", where=self.location
            ) from None

    def _by_definition(self, node: Any, inputs: list[Item | None], attributes: dict[str, Any]) -> list[Item]:
        """An operator without a row: the function that the ONNX standard defines it by."""
        schema = self._schema(node)
        function = definition(schema, node, self.opsets[domain_of(node)], inputs, attributes)
        if function is None:
            raise OperatorError(f"the operator {node.op_type} is not supported", where=self.location)
        defaults = {name: each.default_value for name, each in schema.attributes.items() if each.default_value.name}
        return self.expand(function, inputs, {**defaults, **attributes})

    def inside(self, graph: Any, b: Builder, items: list[Item]) -> list[Item]:
        """Read a subgraph, whose inputs are `items`, into a builder; its outputs."""
        inner = Graph(self.model, b, self)
        inner.births = dict(self.births)
        inner.attributes = self.attributes
        inner.path = (*self.path, self._step(graph))
        if len(items) > len(graph.input):
            raise ParseError("a subgraph takes fewer inputs than it gets", expected=len(graph.input), got=len(items))
        for port, item in zip(graph.input, items, strict=False):
            inner.bind(port.name, item)
        inner.initialisers(graph)
        inner.run(graph.node)
        inner.node = None
        return [inner.find(port.name) for port in graph.output]

    def _step(self, graph: Any) -> str:
        """The path of a subgraph of the current node: the names of the node and the attribute."""
        attributes = self.node.attribute if self.node is not None else ()
        name = next((each.name for each in attributes if each.HasField("g") and each.g is graph), graph.name)
        return f"{self.location.name}.{name}"

    def initialisers(self, graph: Any) -> None:
        """The constants of a graph. At the top their names are the weights' names."""
        for proto in graph.initializer:
            if not proto.name:
                raise ParseError("an initialiser without a name", where=self.model.path)
            if self.depth == 0 and (proto.name in self.model.static or proto.name in self.model.fed):
                continue
            try:
                item = self.tensor(proto, proto.name)
            except SmeltError as error:
                if self.model.watch is None:
                    raise
                item = self.model.watch.absent(self, proto.name, error)
            self.bind(proto.name, item)
        for sparse in graph.sparse_initializer:
            self.bind(sparse.values.name, Tensor.constant(self.model.reader.dense(sparse)))

    def tensor(self, proto: Any, name: str = "") -> Item:
        """A TensorProto: small ones are known, big ones stay in the file."""
        if proto.data_type == STRING:
            return Text(self.model.reader.text(proto))
        stored = self.model.reader.open_tensor(proto)
        top = self.depth == 0 and name
        if top:
            self.model.stored[name] = stored
        count = stored.shape.count
        assert isinstance(count, int)
        if count * stored.shape.element.numpy.itemsize <= INLINE_LIMIT:
            return Tensor(stored.shape, known=stored.load(), name=name)
        if stored.shape.rank == 1 and stored.shape.element.bits <= 8 and count <= _ZEROS:
            array = stored.load()  # the zero points of many channels: one number, nearly always
            if (array == array[0]).all():
                return Tensor(stored.shape, known=array, name=name)
        key = name if top else self.model.fresh_name(name or proto.name or f"{self.location.name}.value")
        self.model.stored[key] = stored
        return Tensor(stored.shape, stored=stored, name=key)

    # -- attributes --

    def _attribute_protos(self, node: Any) -> dict[str, Any]:
        """The attributes of a node; one that refers to an attribute of the function around it has that one's value."""
        found = {}
        for proto in node.attribute:
            if not proto.ref_attr_name:
                found[proto.name] = proto
            elif proto.ref_attr_name in self.attributes:
                copy = type(proto)()
                copy.CopyFrom(self.attributes[proto.ref_attr_name])
                copy.name = proto.name
                found[proto.name] = copy
        return found

    def attribute(self, proto: Any) -> Any:
        """The value of an attribute in Python's terms; graphs stay messages."""
        match proto.type:
            case 1:
                return float(proto.f)
            case 2:
                return int(proto.i)
            case 3:
                return _text(proto.s, proto.name)
            case 4:
                return self.tensor(proto.t)
            case 5:
                return proto.g
            case 6:
                return tuple(proto.floats)
            case 7:
                return tuple(proto.ints)
            case 8:
                return tuple(_text(each, proto.name) for each in proto.strings)
            case 9:
                return tuple(self.tensor(each) for each in proto.tensors)
            case 10:
                return tuple(proto.graphs)
            case 11:
                return Tensor.constant(self.model.reader.dense(proto.sparse_tensor))
            case 13:
                return proto.tp
            case _:
                raise UnsupportedError(f"attribute {proto.name!r} has a type that is not supported", got=proto.type)

    # -- what is known --

    def value(self, tensor: Tensor) -> Value:
        """The tensor as a value of the program."""
        if tensor.value is not None:
            return tensor.value
        if tensor.stored is not None:
            return self.model.weight(tensor.name, tensor.stored)
        known = tensor.known
        assert known is not None
        if known.dtype == object:
            flat = known.reshape(-1).tolist()
            return self.reshape(self.size_vector(flat, tensor.element), known.shape)
        if known.nbytes <= INLINE_LIMIT:
            return self.const(known, tensor.element)
        first = known.reshape(-1)[0]
        if known.dtype.kind in "biuf" and bool((known == first).all()):
            return self.broadcast_to(self.const(first, tensor.element), known.shape)
        tensor.name = self.model.fresh_name(tensor.name or f"{self.location.name}.value")
        tensor.stored = Stored(tensor.shape, lambda: known)
        return self.model.weight(tensor.name, tensor.stored)

    def elements(self, tensor: Tensor) -> Array | None:
        """The elements of a tensor as far as they are known at import: numbers, or objects where some are sizes."""
        if tensor.known is not None:
            return tensor.known
        if tensor.stored is not None:
            return tensor.stored.load()
        assert tensor.value is not None
        found = trace(tensor.value)
        if found is not None:
            array = np.empty(len(found), object)
            array[:] = found
            tensor.known = Tensor.symbolic(array.reshape(tensor.shape.numbers()), tensor.element).known
            return tensor.known
        return self._evaluate(tensor.value)

    def sizes(self, tensor: Tensor, what: str) -> Array:
        """The elements of an integer tensor, as an array of sizes."""
        found = self.elements(tensor)
        if found is None:
            raise self._refuse_unknown(what)
        return found if found.dtype == object else found.astype(object)

    def numbers(self, tensor: Tensor, what: str) -> Array:
        """The elements of a tensor, as numbers."""
        found = self.elements(tensor)
        if found is None:
            raise self._refuse_unknown(what)
        if found.dtype == object:
            raise StaticError(
                f"input {what!r} must be known at compile time and depends on dynamic dimensions",
                (),
                got=", ".join(str(each) for each in found.reshape(-1)[:8]),
                where=self.location,
                remedy="give the model fixed sizes",
                sizes=True,
            )
        return found

    def _refuse_unknown(self, what: str) -> StaticError:
        names = tuple(sorted(self._missing.inputs))
        remedy = f"static={{{names[0]!r}: …}} if its value is always the same" if names else None
        return StaticError(
            f"input {what!r} must be known at compile time",
            names,
            expected="a constant, or something computed from sizes",
            got="it depends on " + ", ".join(names) if names else None,
            where=self.location,
            remedy=remedy,
            sizes=self._missing.sizes,
        )

    def _evaluate(self, value: Value) -> Array | None:
        model = self.model
        if value not in model.evaluated:
            weights = {each: model.stored[name] for name, each in model.weights.items()}
            found = evaluate(value, model.inputs, weights, model.decompositions.values())
            if isinstance(found, Missing):
                self._missing = found
                return None
            model.evaluated[value] = found
        return model.evaluated[value]


def domain_of(node: Any) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def _check_attributes(row: Row, attributes: Mapping[str, Any]) -> None:
    unknown = [name for name in attributes if name not in row.attributes]
    if unknown:
        raise OperatorError(
            f"{row.name}: unknown attribute {unknown[0]!r}", expected=", ".join(row.attributes) or "no attributes"
        )

    for name, value in attributes.items():
        if not _has_type(value, row.types[name]):
            raise ParseError(
                f"{row.name}: attribute {name!r} has the wrong type",
                expected=_TYPE_NAMES[row.types[name]],
                got=_short(value),
            )
    for name, default in row.attributes.items():
        if default is REQUIRED and name not in attributes:
            raise ParseError(f"{row.name}: attribute {name!r} is missing")


def _has_type(value: Any, hint: str) -> bool:
    """Whether the value of an attribute is of an annotated type. Integers count as floats."""
    if hint.startswith("tuple"):
        element = hint.removeprefix("tuple[").removesuffix(", ...]")
        return isinstance(value, tuple) and all(_has_type(each, element) for each in value)
    match hint:
        case "int":
            return isinstance(value, int)
        case "float":
            return isinstance(value, int | float)
        case "str":
            return isinstance(value, str)
        case "Tensor":
            return isinstance(value, Tensor)
        case "Item":
            return isinstance(value, Tensor | Text)
        case _:
            return True


def _whole(number: Any, what: str) -> Any:
    """An element of an input of integers or sizes. Floats are allowed (OneHot) if they are whole numbers."""
    if not isinstance(number, float):
        return number
    if not number.is_integer():
        raise ShapeError(f"input {what!r} must hold integers", got=number)
    return int(number)


def _check_input(row: Row, wanted: Input, given: Tensor) -> None:
    """Check the rank of an input, or that it holds one number, before the operator reads it."""
    least, most = row.ranks.get(wanted.name, (0, None))
    if given.rank < least or (most is not None and given.rank > most):
        expected = f"{least} or more" if most is None else f"{least}" if least == most else f"{least} to {most}"
        raise ShapeError(
            f"{row.name}: input {wanted.name!r} has the wrong rank", expected=f"{expected} dimensions", got=given.shape
        )
    if wanted.name in row.single and given.shape.is_static and given.shape.count != 1:
        raise ShapeError(f"{row.name}: input {wanted.name!r} must hold one number", got=given.shape)


def _describe(node: Any, inputs: Sequence[Item | None], attributes: Mapping[str, Any]) -> str:
    """The inputs and attributes of a node, for an error."""
    shapes = [
        f"{name}: {item.shape if isinstance(item, Tensor) else type(item).__name__.lower()}"
        for name, item in zip(node.input, inputs, strict=False)
        if item is not None
    ]
    return ", ".join([*shapes, *(f"{name}={_short(value)}" for name, value in attributes.items())]) or "no inputs"


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(value.shape)
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ParseError(f"attribute {what!r} is not UTF-8") from None


def _present(nodes: Iterable[Any], graph: Graph, absent: set[str]) -> Iterable[Any]:
    """The nodes of a function, with names of inputs that were not given replaced by the empty name."""
    for node in nodes:
        if absent.intersection(node.input):
            copy = type(node)()
            copy.CopyFrom(node)
            for i, name in enumerate(copy.input):
                if name in absent:
                    copy.input[i] = ""
            yield copy
        else:
            yield node
