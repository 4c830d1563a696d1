"""Control flow: If, Loop and Scan.

What is known at import is decided there: a known condition picks its branch, a loop whose state changes its type is
unrolled. Everything else becomes `stablehlo.if` and `stablehlo.while`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, i1, i64
from smelt.errors import ParseError, ShapeError, SmeltError, UnsupportedError
from smelt.ir.build import RegionBuilder
from smelt.ir.core import Region, Value
from smelt.ir.ops.definition import UNKNOWN
from smelt.read.onnx.emit import axis_of
from smelt.read.onnx.file.tensors import element_type
from smelt.read.onnx.graph import Graph, StaticError
from smelt.read.onnx.items import Item, Tensor
from smelt.read.onnx.registry import onnx_op
from smelt.shape import Shape

_MOST_ITERATIONS = 256  # of a loop that is unrolled

# ---- If ----


@onnx_op("If")
def if_(g: Graph, cond: Tensor, *, then_branch: Any, else_branch: Any) -> list[Item]:
    known = g.elements(cond)
    if known is not None:
        if known.size != 1:
            raise ShapeError("If: the condition must be one boolean", got=cond.shape)
        return g.inside(then_branch if known.reshape(-1)[0] else else_branch, g.b, [])
    try:
        branches = [_branch(g, branch) for branch in (then_branch, else_branch)]
        types = [_join_shapes(a.shape, b.shape) for a, b in zip(*(region.results for region in branches), strict=True)]
    except UnsupportedError as error:
        raise _rather_static(g, cond, "cond", error) from error
    made = g.b.op("stablehlo.if", g.reshape(g.value(cond), ()), regions=branches, result=types)
    return [g.item(value) for value in made.results]


def _rather_static(g: Graph, tensor: Tensor | None, what: str, error: SmeltError) -> SmeltError:
    """The error for a condition that values or sizes given at import would make known."""
    if tensor is not None:
        try:
            g.numbers(tensor, what)
        except StaticError as better:
            if better.inputs or better.sizes:
                return better
    return error


def _branch(g: Graph, graph: Any) -> Region:
    with g.region() as r:
        inner = Graph(g.model, r, g)
        return r.result(*(_tensor_value(inner, item) for item in g.inside(graph, r, [])))


def _join_shapes(a: Shape, b: Shape) -> Shape:
    """The common type of both branches; sizes that differ are data-dependent."""
    if a.dtype != b.dtype or a.rank != b.rank:
        raise UnsupportedError("If: the branches give different types", expected=a, got=b)
    return Shape.of(a.dtype, [x if x == y else UNKNOWN for x, y in zip(a.sizes, b.sizes, strict=True)])


def _tensor_value(g: Graph, item: Item) -> Value:
    if not isinstance(item, Tensor):
        raise UnsupportedError("a sequence or optional whose value is not known at import", got=type(item).__name__)
    return g.value(item)


# ---- loops in general ----

Iteration = Callable[[RegionBuilder, tuple[Value, ...]], Sequence[Value]]


def while_loop(g: Graph, start: Sequence[Value], condition: Iteration, body: Iteration) -> list[Value]:
    """`stablehlo.while`. A value whose size changes between iterations gets a symbol of its own."""
    types = [value.shape for value in start]
    own: set[Size] = set()  # symbols that stand for sizes that change
    for _ in range(3):
        with g.region(*types) as r:
            made_body = r.result(*body(r, r.args))
        if len(made_body.results) != len(types):
            raise ParseError("a loop's body gives another number of values than it takes", expected=len(types))
        wider = [_widen_state(g, have, value.shape, own) for have, value in zip(types, made_body.results, strict=True)]
        if wider == types:
            break
        types = wider
    else:
        raise UnsupportedError("a loop whose values change their sizes in a way that has no formula")
    with g.region(*types) as r:
        test = r.result(*condition(r, r.args))
    made = g.b.op("stablehlo.while", *start, regions=[test, made_body])
    return [_remember(g, value) for value in made.results]


def _remember(g: Graph, value: Value) -> Value:
    g.item(value)
    return value


def _widen_state(g: Graph, have: Shape, after: Shape, own: set[Size]) -> Shape:
    if have.dtype != after.dtype or have.rank != after.rank:
        raise UnsupportedError("a loop whose values change their types", expected=have, got=after)
    sizes = []
    for before, then in zip(have.sizes, after.sizes, strict=True):
        if before != then and before not in own:
            before = g.b.scope.new_symbol()
            own.add(before)
        sizes.append(before)
    return Shape.of(have.dtype, sizes)


def inner_graph(g: Graph, r: RegionBuilder, args: Sequence[Value]) -> Graph:
    """A graph that emits into a region, and knows the sizes of its arguments."""
    inner = Graph(g.model, r, g)
    inner.births = dict(g.births)
    for arg in args:
        inner.item(arg)
    return inner


def element_at(g: Graph, x: Value, index: Value, axis: int = 0) -> Value:
    """The slice at a scalar index, without the axis. Of an empty axis: zeros, in a body that never runs."""
    sizes = x.shape.sizes
    if sizes[axis] == 0:
        return g.full(0, Shape.of(x.shape.dtype, (*sizes[:axis], *sizes[axis + 1 :])))
    return g.take(x, index, axis)


def put_at(g: Graph, buffer: Value, item: Value, index: Value) -> Value:
    """A buffer with one slice along its first axis replaced. An empty one stays, in a body that never runs."""
    if buffer.shape.sizes[0] == 0:
        return buffer
    starts = [index, *(g.scalar(0, i64) for _ in range(buffer.shape.rank - 1))]
    return g.b.dynamic_update_slice(buffer, g.expand_dims(item, (0,)), *starts)


def _inner_symbols(g: Graph, shapes: Sequence[Shape]) -> list[str]:
    """Sizes that only a loop's body knows: no buffer can be made for such scan outputs before it runs."""
    return sorted({name for shape in shapes for name in shape.symbols} - g.births.keys())


# ---- Loop ----


@onnx_op("Loop")
def loop(g: Graph, M: Tensor | None = None, cond: Tensor | None = None, *v_initial: Item, body: Any) -> list[Item]:
    known_m = None if M is None else g.elements(M)
    known_c = np.array(True) if cond is None else g.elements(cond)
    if known_c is not None and not known_c.reshape(-1)[0]:
        known_m = np.array(0)
    try:
        return _while(g, M, cond, [*v_initial], body, known_m, known_c)
    except SmeltError as error:
        iterations = _whole(known_m)
        if iterations is None:
            raise _rather_static(g, M, "M", error) from error
        if known_c is None:
            raise _rather_static(g, cond, "cond", error) from error
        if iterations > _MOST_ITERATIONS:
            raise
    return _unroll(g, iterations, [*v_initial], body)


def _whole(known: Array | None) -> int | None:
    if known is None or known.dtype == object:
        return None
    return int(known.reshape(-1)[0])


def _unroll(g: Graph, iterations: int, state: list[Item], body: Any) -> list[Item]:
    """One copy of the body per iteration; the condition must be known at import."""
    count = len(state)
    gathered: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - count)]
    for iteration in range(iterations):
        inputs: list[Item] = [Tensor.constant(np.array(iteration, np.int64)), Tensor.constant(np.array(True)), *state]
        again, *rest = g.inside(body, g.b, inputs)
        state = rest[:count]
        for column, item in zip(gathered, rest[count:], strict=True):
            column.append(_tensor_value(g, item))
        if not isinstance(again, Tensor):
            raise ParseError("Loop: the condition must be a tensor")
        if not g.numbers(again, "cond").reshape(-1)[0]:
            break
    outputs: list[Item | Value] = [*state]
    for column, port in zip(gathered, body.output[1 + count :], strict=True):
        outputs.append(g.concat([g.expand_dims(each, (0,)) for each in column], 0) if column else _no_scan(g, port))
    return [g.item(each) for each in outputs]


def _no_scan(g: Graph, port: Any) -> Value:
    """A scan output of no iterations: its other sizes are those that the body declares, 0 where it declares none."""
    tensor = port.type.tensor_type
    sizes = [max(dim.dim_value, 0) for dim in tensor.shape.dim]
    return g.full(0, Shape.of(element_type(tensor.elem_type, f"Loop: scan output {port.name!r}"), (0, *sizes)))


def _while(
    g: Graph,
    M: Tensor | None,
    cond: Tensor | None,
    state: list[Item],
    body: Any,
    known_m: Array | None,
    known_c: Array | None,
) -> list[Item]:
    start = [_tensor_value(g, item) for item in state]
    count = len(start)
    always = False
    scans: list[Shape] = []

    def iterate(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        """args: iteration number, condition, state, scan outputs so far."""
        nonlocal always, scans
        inner = inner_graph(g, r, args)
        again: Item = Tensor.constant(np.array(True)) if known_c is not None else Tensor.of(args[1])
        inputs: list[Item] = [Tensor.of(args[0]), again, *(Tensor.of(arg) for arg in args[2 : 2 + count])]
        go_on, *rest = inner.inside(body, r, inputs)
        if not isinstance(go_on, Tensor):
            raise ParseError("Loop: the condition must be a tensor")
        always = go_on.known is not None and bool(go_on.known.reshape(-1)[0])
        values = [_tensor_value(inner, item) for item in rest]
        scans = [value.shape for value in values[count:]]
        result = [inner.binary("add", args[0], inner.scalar(1, i64)), inner.reshape(inner.value(go_on), ())]
        result += values[:count]
        for buffer, value in zip(args[2 + count :], values[count:], strict=False):
            if fixed is not None:
                result.append(put_at(inner, buffer, value, args[0]))
            else:
                result.append(inner.concat([buffer, inner.expand_dims(value, (0,))], 0))
        return result

    fixed: Size | None = None
    with g.region(Shape.of(i64, ()), Shape.of(i1, ()), *(value.shape for value in start)) as dry:
        dry.result(*iterate(dry, dry.args))  # only to learn the scan outputs
    if known_m is not None and always and known_c is not None:
        fixed = known_m.reshape(-1)[0] if known_m.dtype == object else max(0, int(known_m.reshape(-1)[0]))
    leading: Size = 0 if fixed is None else fixed
    inside = _inner_symbols(g, scans)
    if inside:
        raise UnsupportedError("Loop: a scan output whose size the body computes from data", got=", ".join(inside))
    buffers = [g.full(0, Shape.of(shape.element, (leading, *shape.sizes))) for shape in scans]
    if fixed == 0:
        return [*state, *(g.item(buffer) for buffer in buffers)]
    first = g.scalar(True, i1) if cond is None else g.reshape(g.value(cond), ())
    limit = None if M is None else g.reshape(g.value(M), ())

    def test(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        if limit is None:
            return [args[1]]
        return [r.and_(args[1], r.compare(args[0], limit, comparison_direction="LT"))]

    made = while_loop(g, [g.scalar(0, i64), first, *start, *buffers], test, iterate)
    return [g.item(value) for value in made[2:]]


# ---- Scan ----


@onnx_op("Scan", since=9)
def scan(
    g: Graph,
    *inputs: Value,
    body: Any,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
) -> list[Value]:
    count = len(inputs) - num_scan_inputs
    if count < 0 or num_scan_inputs < 1:
        raise ParseError("Scan: attribute 'num_scan_inputs'", expected=f"1 to {len(inputs)}", got=num_scan_inputs)
    state, sequences = inputs[:count], inputs[count:]
    axes = [axis_of(a, x.shape.rank) for a, x in zip(scan_input_axes or (0,) * num_scan_inputs, sequences, strict=True)]
    back = scan_input_directions or (0,) * num_scan_inputs
    length = sequences[0].shape.sizes[axes[0]]
    sequences = tuple(g.reverse(x, (a,)) if d else x for x, a, d in zip(sequences, axes, back, strict=True))
    shapes: list[Shape] = []

    def iterate(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        nonlocal shapes
        inner = inner_graph(g, r, args)
        slices = [element_at(inner, x, args[0], a) for x, a in zip(sequences, axes, strict=True)]
        given = [Tensor.of(arg) for arg in (*args[1 : 1 + count], *slices)]
        values = [_tensor_value(inner, item) for item in inner.inside(body, r, [*given])]
        shapes = [value.shape for value in values[count:]]
        buffers = [put_at(inner, b, v, args[0]) for b, v in zip(args[1 + count :], values[count:], strict=False)]
        return [inner.binary("add", args[0], inner.scalar(1, i64)), *values[:count], *buffers]

    with g.region(Shape.of(i64, ()), *(value.shape for value in state)) as dry:
        dry.result(*iterate(dry, dry.args))
    limit = g.size(length)

    def test(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        return [r.compare(args[0], limit, comparison_direction="LT")]

    inside = _inner_symbols(g, shapes)
    if not inside:
        buffers = [g.full(0, Shape.of(shape.element, (length, *shape.sizes))) for shape in shapes]
        made = while_loop(g, [g.scalar(0, i64), *state, *buffers], test, iterate)[1:]
    elif isinstance(length, int) and 1 <= length <= _MOST_ITERATIONS:
        made = _unroll_scan(g, length, state, sequences, axes, body)
    else:
        got = ", ".join(inside)
        raise UnsupportedError("Scan: an output whose size the body computes from data, over a dynamic axis", got=got)
    outputs = []
    out_axes = scan_output_axes or (0,) * len(shapes)
    out_back = scan_output_directions or (0,) * len(shapes)
    for value, axis, backwards in zip(made[count:], out_axes, out_back, strict=True):
        whole = g.reverse(value, (0,)) if backwards else value
        place = axis_of(axis, whole.shape.rank)
        order = list(range(1, whole.shape.rank))
        order.insert(place, 0)
        outputs.append(g.transpose(whole, order))
    return [*made[:count], *outputs]


def _unroll_scan(
    g: Graph, length: int, state: Sequence[Value], sequences: Sequence[Value], axes: Sequence[int], body: Any
) -> list[Value]:
    """One copy of the body per element: the states, then the outputs."""
    columns: list[list[Value]] = []
    for i in range(length):
        index = g.scalar(i, i64)
        slices = [element_at(g, x, index, a) for x, a in zip(sequences, axes, strict=True)]
        values = [
            _tensor_value(g, item) for item in g.inside(body, g.b, [Tensor.of(each) for each in (*state, *slices)])
        ]
        state = values[: len(state)]
        columns.append([g.expand_dims(each, (0,)) for each in values[len(state) :]])
    return [*state, *(g.concat(list(parts), 0) for parts in zip(*columns, strict=True))]


@onnx_op("Scan", since=8)
def scan_8(
    g: Graph,
    sequence_lens: Value | None = None,
    *inputs: Value,
    body: Any,
    num_scan_inputs: int,
    directions: tuple[int, ...] | None = None,
) -> list[Value]:
    """Every input has a batch in front: one scan per member."""
    if sequence_lens is not None:
        raise UnsupportedError("Scan before opset 9: input 'sequence_lens'")
    batch = inputs[0].shape.sizes[0]
    if not isinstance(batch, int) or not 1 <= batch <= _MOST_ITERATIONS:
        raise UnsupportedError("Scan before opset 9 over a batch that is not fixed", got=batch)
    members = []
    for i in range(batch):
        own = [g.reshape(g.slice_axis(x, 0, i, i + 1), x.shape.sizes[1:]) for x in inputs]
        members.append(scan(g, *own, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions))
    return [g.concat([g.expand_dims(value, (0,)) for value in column], 0) for column in zip(*members, strict=True)]
