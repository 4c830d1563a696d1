"""Data-dependent control flow: `while_loop`, `fori_loop`, `cond`, `scan`; and `custom_call` into Python.

The functions are traced once, into regions of the op; what they use from outside is captured. State goes in and out as
structures of tensors whose shapes stay the same: that is proven, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.dtype import i1, i32
from smelt.ir.clone import clone_region
from smelt.ir.core import Region, Value, find_captures
from smelt.shape import Shape
from smelt.tensor import tree
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.axes import Axis, find_axis, shape_of
from smelt.tensor.ops import elementwise as el
from smelt.tensor.ops.move import relabel
from smelt.tensor.proving import equal
from smelt.tensor.record import Leaf, emit, emit_all, inside, operand, record, region_of, tensor_of
from smelt.tensor.recovery import stop_if_poison
from smelt.tensor.source import Operand, here, refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor


def _region_argument(tensor: Tensor, home: object) -> Tensor:
    """A tensor of the same shape that a region takes."""
    stop_if_poison([tensor])
    leaf = Leaf(Shape.of(tensor.dtype, tensor.shape.sizes), home=home, place=here())
    return tensor_of(leaf, tensor.shape.names)


def _check_same_shapes(what: str, part: str, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    """What a body returns has the shapes of what it took."""
    stop_if_poison(after)
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        a, b = operand("before", old), operand("after", new)
        if old.dtype is not new.dtype:
            message = f"{what}: {part} {i} changes its element type from {old.dtype} to {new.dtype}"
            refuse(message, a, b, remedy=f'.to("{old.dtype}")')
        if old.shape.names != new.shape.names or old.shape.rank != new.shape.rank:
            refuse(f"{what}: {part} {i} changes its axes", a, b)
        for have, want in zip(new.shape.sizes, old.shape.sizes, strict=True):
            if not (answer := equal(have, want)):
                refuse(f"{what}: {part} {i} changes a size from {want} to {have}", a, b, answer=answer)


def _check_layouts(what: str, expected: Any, got: Any) -> None:
    if tree.layout(expected) != tree.layout(got):
        details = [("expected", str(tree.layout(expected))), ("got", str(tree.layout(got)))]
        refuse(f"{what}: the functions return different structures", details=details)


def _check_condition(what: str, value: Any) -> Tensor:
    stop_if_poison([value])
    (tensor,) = el.lift(what, (value,), ("condition",))
    if tensor.shape.rank or tensor.dtype is not i1:
        refuse(f"{what}: a condition is one boolean", operand("condition", tensor), remedy=".all() or .any()")
    return tensor


@with_argument_errors
def while_loop(condition: Callable[..., Any], body: Callable[..., Any], *state: Any, most: int | None = None) -> Any:
    """Runs `body(*state)`, which gives the next state, as long as `condition(*state)` holds.

    With `most` it ends after that many iterations at the latest, and has a gradient: reverse mode keeps their states.

    >>> from smelt.tensor import tensor
    >>> while_loop(lambda i: i < 10, lambda i: i * 2, tensor(1)).item()
    16
    """
    if most is not None:
        return _bounded_loop(condition, body, state, most)
    given = tree.lift_numbers("while_loop", state, el.leaf)
    start = list(tree.leaves(given))
    if not start:
        refuse("while_loop: there is no state", remedy="while_loop(condition, body, *state)")
    regions = []
    with inside() as home:
        args = [_region_argument(tensor, home) for tensor in start]
        test = _check_condition("while_loop", condition(*tree.replace(given, iter(args))))
        regions.append(region_of(home, [arg.value for arg in args], [test.value]))
    with inside() as home:
        args = [_region_argument(tensor, home) for tensor in start]
        made = body(*tree.replace(given, iter(args)))
        after = tree.lift_numbers("while_loop", made if len(state) != 1 else (made,), el.leaf)
        _check_layouts("while_loop", tuple(given), tuple(after) if isinstance(after, tuple | list) else after)
        results = list(tree.leaves(after))
        _check_same_shapes("while_loop", "state", start, results)
        regions.append(region_of(home, [arg.value for arg in args], [result.value for result in results]))
    names = [tensor.shape.names for tensor in start]
    final = emit_all("while", start, names, regions=tuple(regions))
    out = tree.replace(given, iter(final))
    return out[0] if len(state) == 1 else out


def _bounded_loop(condition: Callable[..., Any], body: Callable[..., Any], state: tuple[Any, ...], most: int) -> Any:
    """The loop with a counter that ends it."""
    if not state or most < 0:
        given = [("expected", "a state, and 0 or more iterations"), ("got", f"{len(state)} and {most}")]
        refuse(
            "while_loop: there is nothing to run", details=given, remedy="while_loop(condition, body, *state, most=9)"
        )

    def step(i: Tensor, *inner: Any) -> Any:
        made = body(*inner)
        return (i + 1, *(made if len(inner) != 1 else (made,)))

    def test(i: Tensor, *inner: Any) -> Tensor:
        return (i < most) & _check_condition("while_loop", condition(*inner))

    out = while_loop(test, step, el.leaf(np.int32(0)), *state)
    return out[1] if len(state) == 1 else tuple(out[1:])


@with_argument_errors
def fori_loop(times: Any, body: Callable[..., Any], *state: Any) -> Any:
    """Runs `body(i, *state)` for i = 0 … times - 1."""
    (limit,) = el.lift("fori_loop", (times,), ("times",))
    limit = el.cast(limit, i32)

    def step(i: Tensor, *inner: Any) -> Any:
        made = body(i, *inner)
        return (i + 1, *(made if len(inner) != 1 else (made,)))

    out = while_loop(lambda i, *_: i < limit, step, el.leaf(np.int32(0)), *state)
    return (out[1] if len(state) == 1 else tuple(out[1:])) if state else None


@with_argument_errors
def cond(test: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """`then(*operands)` where the boolean holds, else `otherwise(*operands)`; only one of them runs."""
    predicate = _check_condition("cond", test)
    made: list[Any] = []
    regions: list[Region] = []
    for branch in (then, otherwise):
        with inside() as home:
            result = tree.lift_numbers("cond", branch(*operands), el.leaf)
            made.append(result)
            regions.append(region_of(home, (), [tensor.value for tensor in tree.leaves(result)]))
    _check_layouts("cond", *made)
    first, second = (list(tree.leaves(each)) for each in made)
    stop_if_poison([*first, *second])
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        shown = Operand("then", a.shape), Operand("else", b.shape)
        same = a.dtype is b.dtype and a.shape.names == b.shape.names and a.shape.rank == b.shape.rank
        if not same:
            refuse(f"cond: result {i} differs between the branches", *shown)
        for have, want in zip(a.shape.sizes, b.shape.sizes, strict=True):
            if not (answer := equal(have, want)):
                refuse(f"cond: a size of result {i} differs between the branches", *shown, answer=answer)
    results = emit_all("if", (predicate,), [tensor.shape.names for tensor in first], regions=tuple(regions))
    return tree.replace(made[0], iter(results))


@with_argument_errors
def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], start: Any, over: Any, axis: Axis, *, reverse: bool = False
) -> Any:
    """`carry, y = step(carry, x)` for each slice x of an axis; returns the last carry and all y along that axis.

    The axis comes first in the results; it may have any size, 0 included.
    """
    carry = tree.lift_numbers("scan", start, el.leaf)
    carried, inputs = list(tree.leaves(carry)), list(tree.leaves(over))
    if not inputs:
        refuse("scan: there is no input")
    stop_if_poison([*carried, *inputs])
    places = [find_axis("scan", operand(f"input {i}", tensor), axis) for i, tensor in enumerate(inputs)]
    size = inputs[0].shape.sizes[places[0]]
    for tensor, place in zip(inputs, places, strict=True):
        if not (answer := equal(tensor.shape.sizes[place], size)):
            shown = operand("first", inputs[0]), operand("other", tensor)
            refuse("scan: the inputs have different sizes along the axis", *shown, answer=answer)
    fronted = [_move_first(tensor, place) for tensor, place in zip(inputs, places, strict=True)]
    with inside() as home:
        rows = [_row_argument(tensor, home) for tensor in fronted]
        args = [_region_argument(tensor, home) for tensor in carried]
        made = step(tree.replace(carry, iter(args)), tree.replace(over, iter(rows)))
        if len(made) != 2:
            refuse("scan: the step must return (carry, y)", remedy="return carry, y; y may be None")
        after = tree.lift_numbers("scan", made[0], el.leaf)
        _check_layouts("scan", carry, after)
        results, outputs = list(tree.leaves(after)), list(tree.leaves(made[1]))
        _check_same_shapes("scan", "carry", carried, results)
        values = [arg.value for arg in (*rows, *args)]
        region = region_of(home, values, [tensor.value for tensor in (*outputs, *results)])
    region, captured = _close_over(region)
    name = axis if isinstance(axis, str) else None
    names = [_add_axis(tensor, name) for tensor in outputs] + [tensor.shape.names for tensor in carried]
    feeds = [tensor_of(value, None) for value in captured]
    operands = [relabel(tensor, None) for tensor in (*fronted, *carried, *feeds)]
    names += [None] * len(captured)
    out = emit_all("chlo.scan", operands, names, regions=(region,), dimension=0, is_reverse=reverse)
    ys = out[: len(outputs)]
    last = out[len(outputs) : len(outputs) + len(carried)]
    return tree.replace(carry, iter(last)), tree.replace(made[1], iter(ys))


def _move_first(tensor: Tensor, place: int) -> Tensor:
    order = [place, *(i for i in range(tensor.shape.rank) if i != place)]
    names = None if tensor.shape.names is None else tuple(tensor.shape.names[i] for i in order)
    return tensor if place == 0 else emit("transpose", tensor, names=names, permutation=tuple(order))


def _row_argument(tensor: Tensor, home: object) -> Tensor:
    shape = Shape.of(tensor.dtype, tensor.shape.sizes[1:])
    names = None if tensor.shape.names is None else tensor.shape.names[1:]
    return tensor_of(Leaf(shape, home=home, place=here()), names)


def _add_axis(tensor: Tensor, name: str | None) -> tuple[str, ...] | None:
    if name is None or (tensor.shape.rank and tensor.shape.names is None):
        return None
    if name in (tensor.shape.names or ()):
        refuse(f'scan: y has an axis "{name}" already', operand("y", tensor), remedy=".rename(…)")
    return (name, *(tensor.shape.names or ()))


def _close_over(region: Region) -> tuple[Region, list[Value]]:
    """The region with what it captures as further carries, because a scan's body uses nothing from outside."""
    captured = list(find_captures(region))
    if not captured:
        return region, []
    from_outside: dict[Value, Value] = {value: Leaf(value.shape) for value in captured}
    inner = clone_region(region, from_outside)
    extra = [from_outside[value] for value in captured]
    return Region((*inner.args, *extra), inner.ops, (*inner.results, *extra)), captured


# ---- calls into Python ----

# Functions that programs call by name; a function keeps its name, so that equal graphs stay equal. Never forgotten: a
# program may outlive the code that recorded it.
CALLBACKS: dict[str, Callable[..., Any]] = {}
_NAMES: dict[tuple[Callable[..., Any], tuple[Shape, ...]], str] = {}
# Data that `Executable.bind` passes to functions while its program runs.
DATA: ContextVar[Mapping[Callable[..., Any], Any]] = ContextVar("smelt.data", default=MappingProxyType({}))


@with_argument_errors
def custom_call(function: Callable[..., Any], results: Any, *operands: Any) -> Any:
    """Calls a Python function on NumPy arrays when the program runs.

    `results` is the shape of what it gives (`"f32[b=B]"`), or a tuple of shapes. The function should depend on its
    arguments alone, and on what `Executable.bind(function, data)` gives it as `data`. Outside of loops and branches
    every engine can; inside of them the reference engine alone.
    """
    stop_if_poison(operands)
    several = isinstance(results, tuple | list)
    shapes = tuple(shape_of(result) for result in (results if several else (results,)))
    tensors = el.lift("custom_call", operands, [f"operand {i}" for i in range(len(operands))]) if operands else []
    name = _NAMES.get((function, shapes))
    if name is None:
        name = f"smelt.python.{getattr(function, '__name__', 'function')}.{len(_NAMES)}"
        CALLBACKS[name] = _wrap_callback(function, shapes, several)
        _NAMES[function, shapes] = name
    declared = [Shape.of(shape.dtype, shape.sizes) for shape in shapes]
    op = record("stablehlo.custom_call", tuple(t.value for t in tensors), {"call_target_name": name}, (), declared)
    made = tuple(tensor_of(value, shape.names) for value, shape in zip(op.results, shapes, strict=True))
    return made if several else made[0]


def _wrap_callback(
    function: Callable[..., Any], shapes: Sequence[Shape], several: bool
) -> Callable[..., tuple[Any, ...]]:
    def run(*arrays: Any) -> tuple[Any, ...]:
        bound = DATA.get()
        made = function(*arrays, data=bound[function]) if function in bound else function(*arrays)
        pairs = zip(made if several else (made,), shapes, strict=True)
        return tuple(np.asarray(array, shape.dtype.numpy) for array, shape in pairs)

    return run
