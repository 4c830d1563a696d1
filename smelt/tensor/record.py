"""Recording: Tensor ops → IR ops. A function is the ops that its results depend on.

`emit` makes one op, verifies it and returns the Tensor of its result; `collect` walks back from results to leaves, so
that dead ops never enter a program; `region_of` makes a region from what was recorded `inside`. Below the engine: no
module here computes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import ReferenceType

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, DType, i64
from smelt.errors import Location, SmeltError
from smelt.ir.attributes import Constant
from smelt.ir.build import Builder, settle
from smelt.ir.clone import clone_op, clone_region
from smelt.ir.core import Attrs, Func, FuncType, Op, Region, Type, Value, find_captures
from smelt.ir.ops import definition_of
from smelt.ir.ops.definition import Call, Scope, op_attrs
from smelt.ir.size_ops import SizeOps, Source, sources_of
from smelt.shape import Shape
from smelt.tensor.proving import require_divisors, require_sizes
from smelt.tensor.source import Operand, Place, TensorError, here, refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor


class Leaf(Value):
    """A value without an op: data, an argument of a function, or an argument of a region.

    `home` is the region it belongs to, `name` the path of a weight or the name of an argument.
    """

    __slots__ = ("data", "home", "place", "weight")

    data: Array | None
    home: object
    place: Place | None
    weight: bool

    def __init__(
        self,
        type: Shape,
        data: Array | None = None,
        *,
        name: str = "",
        place: Place | None = None,
        home: object = None,
        weight: bool = False,
    ) -> None:
        super().__init__(type, None, 0, name)
        for slot, value in (("data", data), ("place", place), ("home", home), ("weight", weight)):
            object.__setattr__(self, slot, value)


class Recorded(Op):
    """An op of the front end. `data` refers weakly to its results after they were computed."""

    __slots__ = ("captured", "checks", "data", "home", "place")

    captured: tuple[Value, ...]  # values from outside that its regions use
    checks: list[Op]  # run-time checks: wherever the op goes, they go; `require` adds one
    data: list[ReferenceType[Array] | None]
    home: object  # the region in which it was made
    place: Place | None

    def __init__(
        self,
        name: str,
        operands: tuple[Value, ...],
        types: Sequence[Type],
        attrs: Attrs,
        regions: tuple[Region, ...],
        shared: bool = False,  # it is part of no region and made at no place
    ) -> None:
        put = object.__setattr__
        put(self, "name", name)
        put(self, "operands", operands)
        put(self, "attrs", attrs)
        put(self, "regions", regions)
        put(self, "results", tuple(Value(type, self, i) for i, type in enumerate(types)))
        put(self, "captured", find_captures(*regions))
        put(self, "checks", [])
        put(self, "data", [None] * len(types))
        put(self, "home", None if shared else _HOME.get())
        put(self, "place", None if shared else here())

    @property
    def location(self) -> Location | None:
        return self.place.location() if self.place else None


_HOME: ContextVar[object] = ContextVar("smelt.home", default=None)


# ---- tensors ----


class _Hooks:
    """What recording needs from modules that import it. Each of them sets its own once, when it is imported."""

    tensor: type[Tensor]  # by `smelt.tensor.core`
    realise: Callable[[Tensor], object]  # by `smelt.tensor.jit.realise`; afterwards `data_of` finds the array


HOOKS = _Hooks()


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a Tensor, for modules that the class imports."""
    return isinstance(value, HOOKS.tensor)


def tensor_of(value: Value, names: tuple[str, ...] | None) -> Tensor:
    """The Tensor of a value; its axes get these names."""
    shape = value.type
    assert isinstance(shape, Shape)
    if shape.sizes and names is not None:
        assert len(names) == len(shape.sizes), f"{names} for {shape}"
        shape = Shape.of(shape.dtype, shape.sizes, names)
    return HOOKS.tensor(value, shape)


def place_of(value: Value) -> Place | None:
    """Where a value was made."""
    return value.place if isinstance(value, Leaf) else value.op.place if isinstance(value.op, Recorded) else None


def data_of(value: Value) -> Array | None:
    """The array of a value that is computed already, or that is data."""
    if isinstance(value, Leaf):
        return value.data
    kept = value.op.data[value.index] if isinstance(value.op, Recorded) else None
    return None if kept is None else kept()


def is_known(value: Value) -> bool:
    """Whether a value could be computed: every leaf it depends on has data."""
    known = data_of(value) is not None
    return known or all(leaf.data is not None for leaf in collect([value], None, lambda v: data_of(v) is not None)[1])


def operand(label: str, tensor: Tensor) -> Operand:
    """A tensor as errors show it."""
    return Operand(label, tensor.shape, place_of(tensor.value))


def record(
    name: str,
    operands: tuple[Value, ...],
    attrs: dict[str, Any],
    regions: tuple[Region, ...] = (),
    declared: Sequence[Type] | None = None,
    signatures: Mapping[str, FuncType] = MappingProxyType({}),
) -> Recorded:
    """One op, verified. What inference refuses is shown at the user's line. `signatures`: functions it may call."""
    definition = definition_of(name)
    filled = MappingProxyType(op_attrs(definition, attrs))
    call = Call(name, operands, filled, regions, declared, scope=Scope(), signatures=signatures)
    try:
        definition.check_counts(call)
        types = settle(call, definition.infer(call))
    except TensorError:
        raise
    except SmeltError as error:
        shown = [
            Operand(f"operand {i}", value.type, place_of(value))
            for i, value in enumerate(operands)
            if isinstance(value.type, Shape)
        ]
        pairs = (("expected", error.expected), ("got", error.got))
        details = [(label, str(text)) for label, text in pairs if text is not None]
        refuse(error.message, *shown, details=details, remedy=error.own_remedy)
    shapes = [type for type in types if isinstance(type, Shape) and not _is_settled(type)]
    require_sizes(shapes, [value.type for value in operands if isinstance(value.type, Shape)] if shapes else ())
    return Recorded(name, operands, types, filled, regions)


def _is_settled(shape: Shape) -> bool:
    return shape.is_static and (not shape.sizes or min(shape.sizes) >= 0)


def emit(
    name: str,
    *operands: Tensor,
    names: tuple[str, ...] | None = None,
    result: Shape | None = None,
    regions: tuple[Region, ...] = (),
    **attrs: Any,
) -> Tensor:
    """The Tensor that an op with one result makes. A bare name is StableHLO's; `result` declares the type."""
    full = name if "." in name else f"stablehlo.{name}"
    declared = None if result is None else (_without_names(result),)
    op = record(full, tuple(each.value for each in operands), attrs, regions, declared)
    return tensor_of(op.results[0], names)


def emit_all(
    name: str,
    operands: Sequence[Tensor],
    names: Sequence[tuple[str, ...] | None],
    *,
    results: Sequence[Shape] | None = None,
    regions: tuple[Region, ...] = (),
    **attrs: Any,
) -> tuple[Tensor, ...]:
    """The Tensors of all results of an op."""
    full = name if "." in name else f"stablehlo.{name}"
    declared = None if results is None else [_without_names(shape) for shape in results]
    op = record(full, tuple(each.value for each in operands), attrs, regions, declared)
    return tuple(tensor_of(value, each) for value, each in zip(op.results, names, strict=True))


def _without_names(shape: Shape) -> Shape:
    return shape if shape.names is None else Shape.of(shape.dtype, shape.sizes)


# ---- constants ----


def constant(value: Any, element: DType) -> Tensor:
    """A number as a scalar tensor."""
    value = float(value) if isinstance(value, float) else value  # of no class derived from float: it is kept
    return tensor_of(_scalar(repr(value), value, element), None)


@lru_cache(1024)
def _scalar(_: str, value: Any, element: DType) -> Value:  # the text keeps 1.0 and True, 0.0 and -0.0 apart
    attrs = {"value": Constant.of(np.asarray(value).astype(element.numpy), element)}
    return Recorded("stablehlo.constant", (), [Shape.of(element, ())], MappingProxyType(attrs), (), shared=True).result


# ---- checks ----

# The run-time checks of a trace by key, so that equal requirements are checked once.
CHECKS: ContextVar[dict[Hashable, Op] | None] = ContextVar("smelt.checks", default=None)


def require(result: Tensor, key: Hashable, build: Callable[[], tuple[Tensor, str, Sequence[Tensor]]]) -> Tensor:
    """The result of an op with a requirement on data, which is checked when the program runs.

    `build` returns a boolean that must be true, a message, and the numbers for `{0}`, … in it. `key` identifies it.
    """
    kept = CHECKS.get()
    key = (_HOME.get(), key)
    check = kept.get(key) if kept is not None else None
    if check is None:
        holds, message, numbers = build()
        attrs = {"call_target_name": "smelt.check", "has_side_effect": True, "error_message": message}
        check = record("stablehlo.custom_call", tuple(each.value for each in (holds, *numbers)), attrs, (), [])
        if kept is not None:
            kept[key] = check
    assert isinstance(result.value.op, Recorded)
    result.value.op.checks.append(check)
    return result


# ---- sizes as values ----

SOURCES: ContextVar[dict[str, Source] | None] = ContextVar("smelt.sources", default=None)


def size_tensor(size: Size, near: Sequence[Tensor]) -> Tensor:
    """A size as a scalar i64, from dimensions of the arguments or of tensors `near`."""
    if isinstance(size, int):
        return constant(size, i64)
    return tensor_of(size_ops([size], near).scalar(size), None)


def size_ops(sizes: Sequence[Size], near: Sequence[Tensor]) -> SizeOps:
    """What records ops with these sizes, from dimensions of the arguments or of tensors `near`."""
    require_divisors(sizes, (each for tensor in near for each in tensor.shape.sizes))
    return SizeOps(_record_value, lambda name: _find_source(name, near))


def _record_value(name: str, *operands: Value, result: Shape | None = None, **attrs: Any) -> Value:
    return record(name, operands, attrs, (), None if result is None else (result,)).results[0]


def _find_source(name: str, near: Sequence[Tensor]) -> Source:
    known = SOURCES.get()
    if known and name in known:
        return known[name]
    values = [tensor.value for tensor in near]
    found = sources_of(values)
    if name not in found:  # the walk back is as long as the program
        found = sources_of([*collect(values)[1], *values])
    if name in found:
        return found[name]
    refuse(
        f"the size {name} is not known when the program runs: no argument has such an axis",
        remedy=f"add an argument that has an axis of size {name}",
    )


# ---- regions ----


@contextmanager
def inside() -> Iterator[object]:
    """Ops recorded in this block belong to a region: `region_of` collects them."""
    home = object()
    token = _HOME.set(home)
    try:
        yield home
    finally:
        _HOME.reset(token)


def region_of(home: object, args: Sequence[Value], results: Sequence[Value]) -> Region:
    """The region that was recorded with that home. Values from elsewhere are captured."""
    ops, _ = collect(results, home)
    return Region(tuple(args), tuple(ops), tuple(results))


def scalar_region(element: DType, build: Callable[..., Tensor], count: int = 2) -> Region:
    """A body over scalars, such as the sum of a reduction; it uses nothing from outside."""
    return scalar_regions([element] * count, lambda *args: (build(*args),))


def binary_region(op: str, element: DType) -> Region:
    """A body that combines two scalars by one op: sums, products, extremes."""
    return clone_region(_binary_template(op, element), {})  # a region belongs to one op


@lru_cache(256)
def _binary_template(op: str, element: DType) -> Region:
    return Builder().combine(op, element)


def scalar_regions(elements: Sequence[DType], build: Callable[..., Sequence[Tensor]]) -> Region:
    """The same for arguments of several element types, and several results."""
    with inside() as home:
        args = [Leaf(Shape.of(element, ()), home=home) for element in elements]
        results = build(*(tensor_of(arg, None) for arg in args))
        return region_of(home, args, [result.value for result in results])


# ---- from results back to leaves ----


def collect(
    results: Sequence[Value], home: object = None, known: Callable[[Value], bool] = lambda value: False
) -> tuple[list[Op], list[Leaf]]:
    """The ops that results need, each after what it uses, and the leaves they start from, in order of first use.

    Ops of other homes than `home` are not entered: a region captures them. The walk ends at values that are `known`.
    """
    order: list[Op] = []
    leaves: dict[Leaf, None] = {}
    done: set[Op] = set()
    stack: list[tuple[Value | Op, bool]] = [(value, False) for value in reversed(results)]
    while stack:
        item, finished = stack.pop()
        if finished:
            assert isinstance(item, Op)
            order.append(item)
            continue
        if isinstance(item, Value):
            if item.op is None:
                if isinstance(item, Leaf):
                    leaves[item] = None
                continue
            if known(item):
                continue
            op = item.op
        else:
            op = item
        if op in done:
            continue
        if isinstance(op, Recorded):
            if op.home is not home and home is not None:
                done.add(op)
                continue
            done.add(op)
            stack.append((op, True))
            stack += [(check, False) for check in op.checks]
            if op.captured:
                stack += [(value, False) for value in reversed(op.captured)]
            stack += [(value, False) for value in reversed(op.operands)]
    return order, list(leaves)


def function(
    name: str,
    results: Sequence[Value],
    args: Sequence[Leaf] | None = None,
    known: Callable[[Value], bool] = lambda value: False,
    arg_attrs: Sequence[Attrs] = (),
    result_attrs: Sequence[Attrs] = (),
) -> tuple[Func, list[Value]]:
    """A function of what results need, and the values that are its arguments: leaves, and values that are `known`."""
    ops, leaves = collect(results, None, known)
    stray = next((leaf for leaf in leaves if leaf.home is not None), None)
    stray_op = next((op for op in ops if isinstance(op, Recorded) and op.home is not None), None)
    if stray is not None or stray_op is not None:
        place = stray.place if stray is not None else stray_op.place if isinstance(stray_op, Recorded) else None
        shown = [Operand("made", stray.shape, place)] if stray is not None else []
        remedy = "return it from the body instead"
        refuse("a tensor from inside the body of a loop or branch is used outside of it", *shown, remedy=remedy)
    values: dict[Value, Value] = {}
    prologue: list[Op] = []
    inputs: list[Value] = []
    if args is None:
        cut = _find_cut(ops, results, known)
        inputs = [*leaves, *cut]
        values = {value: Leaf(value.shape) for value in cut}
    else:
        inputs = list(args)
        for leaf in leaves:
            if leaf not in args:
                prologue.append(_embed(leaf))
                values[leaf] = prologue[-1].results[0]
    formal = tuple(values.get(value, value) for value in inputs)
    if values:
        ops = [clone_op(op, values) if _touches(op, values) else op for op in ops]
    body = Region(formal, (*prologue, *ops), tuple(values.get(value, value) for value in results))
    return Func(name, body, "public", tuple(arg_attrs), tuple(result_attrs)), inputs


def _embed(leaf: Leaf) -> Op:
    """Data that a traced function found around it, as a constant of the program."""
    if leaf.data is None:
        refuse(
            "a tensor without data is not an argument of the traced function",
            Operand("tensor", leaf.shape, leaf.place),
            remedy="pass it as an argument",
        )
    return record("stablehlo.constant", (), {"value": Constant.of(leaf.data, leaf.shape.dtype)})


def _touches(op: Op, values: dict[Value, Value]) -> bool:
    captured = op.captured if isinstance(op, Recorded) else ()
    return any(value in values for value in (*op.operands, *captured))


def _find_cut(ops: Sequence[Op], results: Sequence[Value], known: Callable[[Value], bool]) -> list[Value]:
    """The known values where the walk ended, in order of first use."""
    found: dict[Value, None] = {}
    for op in ops:
        captured = op.captured if isinstance(op, Recorded) else ()
        found.update(dict.fromkeys(v for v in (*op.operands, *captured) if v.op is not None and known(v)))
    found.update(dict.fromkeys(value for value in results if value.op is not None and known(value)))
    return list(found)
