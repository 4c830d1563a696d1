"""An ONNX graph under construction: nodes, constants, subgraphs, and the tensors that they give.

Writers of ops (`write.onnx.ops`) call it. It casts to types that an operator is computed in, computes sizes with
dynamic dimensions, and puts off broadcasts: ONNX' elementwise operators broadcast by themselves.
"""

from __future__ import annotations

import math
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import numpy as np

from smelt.dim import Atom, Poly, Size, at_most, symbol, symbols
from smelt.dtype import Array, DType, dtype, i1, i64
from smelt.ir.core import Op, Region, Value
from smelt.ir.size_ops import slope_of
from smelt.shape import Shape
from smelt.size import compute_size
from smelt.write.onnx.types import TYPES, type_for


class NoFormError(Exception):
    """An op, or a variant of it, that ONNX cannot say. The writer collects them all."""


def refuse(reason: str) -> NoReturn:
    raise NoFormError(reason)


@dataclass(frozen=True, slots=True)
class Out:
    """A tensor of the ONNX graph: its name, element type and sizes."""

    name: str
    dtype: DType
    sizes: tuple[Size, ...]

    @property
    def rank(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The body of an If or a Loop: it may use tensors from outside."""

    inputs: tuple[Out, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Out, ...]


@dataclass(slots=True)
class Node:
    operator: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


@dataclass(slots=True)
class Scope:
    """What is known in one graph or subgraph: `values` of the program, `sizes` that were computed, `sources`."""

    nodes: list[Node] = field(default_factory=list)
    values: ChainMap[Value, Out] = field(default_factory=ChainMap)
    sizes: ChainMap[Size, Out] = field(default_factory=ChainMap)
    sources: ChainMap[str, tuple[Out, int]] = field(default_factory=ChainMap)  # an axis that determines a symbol
    casts: ChainMap[tuple[str, str], Out] = field(default_factory=ChainMap)


Writer = Callable[..., Any]


class Graph:
    """The graph, with `table` to write an op when its value is needed."""

    def __init__(self, write_op: Callable[[Graph, Op], Sequence[Out]]) -> None:
        self.scope = Scope()
        self.constants: dict[str, tuple[DType, Array]] = {}
        self._keys: dict[Any, Out] = {}
        self._used: dict[str, int] = {}
        self._write_op = write_op
        self.lanes = False  # inside a region over scalars that runs on whole tensors

    # ---- names ----

    def unique(self, hint: str) -> str:
        hint = re.sub(r"[^\w./:\-]", "_", hint) or "t"
        count = self._used.get(hint, 0)
        self._used[hint] = count + 1
        return self.unique(f"{hint}_{count}") if count else hint

    # ---- values of the program ----

    def define(self, value: Value, out: Out) -> None:
        self.scope.values[value] = out
        for axis, size in enumerate(out.sizes):
            unknown = [name for name in symbols(size) if name not in self.scope.sources]
            if len(unknown) == 1 and slope_of(size, unknown[0]):
                self.scope.sources[unknown[0]] = (out, axis)

    def get(self, value: Value) -> Out:
        """The tensor of a value; broadcasts and constants are written here, where they are used."""
        found = self.scope.values.get(value)
        if found is None:
            assert value.op is not None, f"%{value.name} is not defined"
            for result, out in zip(value.op.results, self._write_op(self, value.op), strict=True):
                self.define(result, out)
            found = self.scope.values[value]
        return found

    def thin(self, value: Value) -> Out:
        """The tensor of a value before it is broadcast: an operand of an operator that broadcasts."""
        op = value.op
        if op is None or value in self.scope.values or self.lanes:
            return self.get(value)
        if op.name == "stablehlo.constant" and op.attrs["value"].is_splat:
            constant = op.attrs["value"]
            return self.constant(constant.array.reshape(-1)[:1].reshape(()), constant.dtype)
        if op.name == "stablehlo.broadcast_in_dim":
            return self.stretch(self.thin_source(op), op)
        return self.get(value)

    def thin_source(self, op: Op) -> Out:
        source = self.thin(op.operands[0])
        return source if not source.rank else self.get(op.operands[0])

    def stretch(self, x: Out, op: Op) -> Out:
        """The operand of `broadcast_in_dim` with axes of size 1 where it has none; leading ones are left out."""
        dims, rank = op.attrs["broadcast_dimensions"], op.results[0].shape.rank
        if not x.rank or not dims:
            return x
        order = sorted(range(len(dims)), key=lambda i: dims[i])
        x = self.transpose(x, order)
        first = min(dims)
        sizes: list[Size] = [1] * (rank - first)
        for size, at in zip(x.sizes, sorted(dims), strict=True):
            sizes[at - first] = size
        return self.reshape(x, sizes)

    # ---- nodes ----

    def add_node(self, operator: str, inputs: Sequence[Out | None], outs: Sequence[Out], **attributes: Any) -> None:
        names = ["" if each is None else each.name for each in inputs]
        while names and not names[-1]:
            names.pop()
        self.scope.nodes.append(Node(operator, names, [each.name for each in outs], attributes))

    def new(self, element: DType, sizes: Sequence[Size], hint: str) -> Out:
        return Out(self.unique(hint), element, tuple(sizes))

    def call(
        self,
        operator: str,
        *inputs: Out | None,
        sizes: Sequence[Size] | None = None,
        to: DType | None = None,
        of: int = 0,
        typed: int | None = None,
        **attributes: Any,
    ) -> Out:
        """One node with one result.

        Input number `of` has the operator's element type, as have the first `typed` inputs from there on (all
        with that type, if not given). They are cast if the operator is not computed in it, and the result is cast
        back; `to` is the element type of a result that has another one. `sizes`: of the result, else as broadcast.
        """
        given = inputs[of]
        assert given is not None
        element, wide = given.dtype, type_for(operator, given.dtype)
        last = len(inputs) if typed is None else of + typed
        cast = [
            self.cast(x, wide) if x is not None and of <= i < last and x.dtype == element else x
            for i, x in enumerate(inputs)
        ]
        shape = broadcast_sizes([x.sizes for x in inputs if x is not None]) if sizes is None else tuple(sizes)
        out = self.new(to or wide, shape, operator.lower())
        self.add_node(operator, cast, [out], **attributes)
        return out if to is not None else self.cast(out, element)

    def cast(self, x: Out, to: DType) -> Out:
        if x.dtype == to:
            return x
        found = self.scope.casts.get((x.name, to.name))
        if found is None:
            found = self.new(to, x.sizes, f"{x.name}_{to.name}")
            narrow = {"saturate": 0} if to.name.startswith("f8") else {}
            self.add_node("Cast", [x], [found], to=to, **narrow)
            self.scope.casts[x.name, to.name] = found
        return found

    def constant(self, array: Any, element: DType | str, hint: str = "const") -> Out:
        element = dtype(element)
        array = np.asarray(array, element.numpy)
        key = element.name, array.shape, array.tobytes()
        if key not in self._keys:
            name = self.unique(hint)
            self.constants[name] = element, array
            self._keys[key] = Out(name, element, array.shape)
        return self._keys[key]

    def like(self, number: float, x: Out) -> Out:
        """A number of a tensor's element type."""
        return self.constant(number, x.dtype)

    @contextmanager
    def subgraph(self) -> Iterator[Scope]:
        outer = self.scope
        self.scope = Scope(
            [], outer.values.new_child(), outer.sizes.new_child(), outer.sources.new_child(), outer.casts.new_child()
        )
        try:
            yield self.scope
        finally:
            self.scope = outer

    def branch(self, region: Region) -> Subgraph:
        """A region without arguments as a subgraph."""
        with self.subgraph() as scope:
            self.write(region)
            results = self.finish(region.results)
            return Subgraph((), tuple(scope.nodes), results)

    def finish(self, values: Sequence[Value]) -> tuple[Out, ...]:
        """Results of a subgraph: each the output of a node of its own."""
        return tuple(self.identity(self.get(value)) for value in values)

    def identity(self, x: Out, name: str | None = None) -> Out:
        out = Out(name or self.unique(x.name), x.dtype, x.sizes)
        self.add_node("Identity", [x], [out])
        return out

    def write(self, region: Region) -> None:
        """All ops of a region, in order; deferred ops are written when they are needed."""
        for op in region.ops:
            if op.name not in PUT_OFF:
                for result, out in zip(op.results, self._write_op(self, op), strict=True):
                    self.define(result, out)

    def apply(self, region: Region, *args: Out) -> list[Out]:
        """A region over scalars on whole tensors, element by element."""
        with self.lane_values():
            for arg, out in zip(region.args, args, strict=True):
                self.scope.values[arg] = out
            for op in region.ops:
                for result, out in zip(op.results, self._write_op(self, op), strict=True):
                    self.scope.values[result] = out
            return [self.get(value) for value in region.results]

    @contextmanager
    def lane_values(self) -> Iterator[None]:
        before, values = self.lanes, self.scope.values
        self.lanes, self.scope.values = True, values.new_child()
        try:
            yield
        finally:
            self.lanes, self.scope.values = before, values

    # ---- sizes ----

    def vector(self, sizes: Sequence[Size]) -> Out:
        """Sizes as an i64 vector."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(list(sizes), i64, "sizes")
        parts = [self.size(size) for size in sizes]
        return parts[0] if len(parts) == 1 else self.call("Concat", *parts, sizes=[len(parts)], axis=0)

    def size(self, size: Size) -> Out:
        """A size as an i64 vector of one element."""
        if isinstance(size, int):
            return self.constant([size], i64, "size")
        found = self.scope.sizes.get(size)
        if found is None:
            found = self.scope.sizes[size] = self._polynomial(size)
        return found

    def _polynomial(self, size: Poly) -> Out:
        computed: Out = compute_size(size, self.size, self._atom, partial(self.call, "Mul"), partial(self.call, "Add"))
        return computed

    def _atom(self, atom: Atom) -> Out:
        size = Poly((((atom,), 1),))
        found = self.scope.sizes.get(size)
        if found is None:
            found = self.scope.sizes[size] = self._compute(atom)
        return found

    def _compute(self, atom: Atom) -> Out:
        if atom.op == "symbol":
            return self._symbol(atom.name)
        a, b = map(self.size, atom.args)
        if atom.op in ("max", "min"):
            return self.call("Max" if atom.op == "max" else "Min", a, b)
        if atom.op == "%":
            return self.call("Mod", a, b)  # rounds down, as `%` does
        if at_most(0, atom.args[0]) and at_most(0, atom.args[1]):
            return self.call("Div", a, b)
        return self.call("Div", self.call("Sub", a, self.call("Mod", a, b)), b)

    def _symbol(self, name: str) -> Out:
        if name not in self.scope.sources:
            refuse(f"the size {name} is not that of an axis")
        x, axis = self.scope.sources[name]
        found = self.length(x, axis)
        slope = slope_of(x.sizes[axis], name)
        rest = x.sizes[axis] - slope * symbol(name)
        if rest != 0:
            found = self.call("Sub", found, self.size(rest))
        return found if slope == 1 else self.call("Div", found, self.size(slope))

    def length(self, x: Out, axis: int) -> Out:
        """The size of an axis as an i64 vector of one element, read off at run time."""
        return self.call("Shape", x, sizes=[1], to=i64, start=axis, end=axis + 1)

    # ---- moving data ----

    def reshape(self, x: Out, sizes: Sequence[Size]) -> Out:
        sizes = tuple(sizes)
        if sizes == x.sizes:
            return x
        dynamic = [size for size in sizes if not isinstance(size, int)]
        if len(dynamic) == 1 and 0 not in sizes:
            shape = self.constant([size if isinstance(size, int) else -1 for size in sizes], i64, "shape")
        else:
            shape = self.vector(sizes)
        zero: dict[str, Any] = {"allowzero": 1} if 0 in sizes or len(dynamic) > 1 else {}
        return self.call("Reshape", x, shape, sizes=sizes, typed=1, **zero)

    def transpose(self, x: Out, order: Sequence[int]) -> Out:
        if list(order) == list(range(x.rank)):
            return x
        return self.call("Transpose", x, sizes=[x.sizes[i] for i in order], perm=list(order))

    def expand(self, x: Out, sizes: Sequence[Size]) -> Out:
        if x.sizes == tuple(sizes):
            return x
        return self.call("Expand", x, self.vector(sizes), sizes=sizes, typed=1)

    def slice(self, x: Out, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> Out:
        """Numbers for each axis; ends may not be negative."""
        bounds = list(zip(range(x.rank), starts, ends, steps, x.sizes, strict=True))
        kept = [each for each in bounds if each[1:4] != (0, each[4], 1)]
        if not kept:
            return x
        axes, starts, ends, steps = (list(column) for column in list(zip(*kept, strict=True))[:4])
        sizes = [-(-max(end - start, 0) // step) for _, start, end, step, _ in bounds]
        vectors = [self.constant(each, i64, "bounds") for each in (starts, ends, axes, steps)]
        return self.call("Slice", x, *vectors, sizes=sizes, typed=1)

    def slice_axis(self, x: Out, axis: int, start: Out, end: Out, size: Size, step: int = 1) -> Out:
        """Along one axis, with bounds that are vectors of one element."""
        sizes = [size if i == axis else each for i, each in enumerate(x.sizes)]
        vectors = [self.constant([number], i64) for number in (axis, step)]
        return self.call("Slice", x, start, end, *vectors, sizes=sizes, typed=1)

    def flip(self, x: Out, axes: Sequence[int]) -> Out:
        if not axes:
            return x
        least = -(1 << 62)
        numbers = [[-1] * len(axes), [least] * len(axes), list(axes), [-1] * len(axes)]
        return self.call("Slice", x, *(self.constant(each, i64) for each in numbers), sizes=x.sizes, typed=1)

    def concat(self, parts: Sequence[Out], axis: int) -> Out:
        if len(parts) == 1:
            return parts[0]
        total: Size = sum((part.sizes[axis] for part in parts[1:]), start=parts[0].sizes[axis])
        sizes = [total if i == axis else size for i, size in enumerate(parts[0].sizes)]
        return self.call("Concat", *parts, sizes=sizes, axis=axis)

    def pad(self, x: Out, low: Sequence[int], high: Sequence[int], value: Out) -> Out:
        """Negative amounts crop, before the rest pads."""
        if any(amount < 0 for amount in (*low, *high)):
            bounds = [(i, -min(a, 0), min(b, 0)) for i, (a, b) in enumerate(zip(low, high, strict=True))]
            for axis, start, end in bounds:
                if start or end:
                    size = x.sizes[axis]
                    until = self.size(size + end) if end else self.size(size)
                    x = self.slice_axis(x, axis, self.constant([start], i64), until, size - start + end)
            low, high = [max(a, 0) for a in low], [max(b, 0) for b in high]
        if not any((*low, *high)):
            return x
        sizes = [size + a + b for size, a, b in zip(x.sizes, low, high, strict=True)]
        amounts = self.constant([*low, *high], i64, "pads")
        return self.call("Pad", x, amounts, self.reshape(value, ()), sizes=sizes)

    def spread_elements(self, x: Out, holes: Sequence[int], value: Out) -> Out:
        """`holes` elements of a value between neighbours along each axis."""
        for axis, count in enumerate(holes):
            size = x.sizes[axis]
            if not count or size in (0, 1):
                continue
            widened = self.reshape(x, [*x.sizes[: axis + 1], 1, *x.sizes[axis + 1 :]])
            none = [0] * widened.rank
            after = [count if i == axis + 1 else 0 for i in range(widened.rank)]
            full = self.pad(widened, none, after, value)
            joined = self.reshape(full, [*x.sizes[:axis], size * (count + 1), *x.sizes[axis + 1 :]])
            ends = [-count if i == axis else 0 for i in range(joined.rank)]
            x = self.pad(joined, [0] * joined.rank, ends, value)
        return x

    def iota(self, size: Size, element: DType = i64) -> Out:
        """0, 1, … along one axis."""
        if isinstance(size, int) and size <= 1 << 12:
            return self.constant(np.arange(size), element) if element is not i1 else refuse("iota of booleans")
        start, step = (self.constant(number, i64) for number in (0, 1))
        numbers = self.call("Range", start, self.reshape(self.size(size), ()), step, sizes=[size])
        return self.cast(numbers, element)

    def along(self, x: Out, axis: int, rank: int) -> Out:
        """A vector as a tensor that broadcasts along one axis of others."""
        return self.reshape(x, [x.sizes[0] if i == axis else 1 for i in range(axis, rank)])


PUT_OFF = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.constant", "chlo.constant", "stablehlo.iota"})


def broadcast_sizes(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    """The sizes of an elementwise result, as NumPy and ONNX broadcast them."""
    rank = max(map(len, shapes))
    sizes: list[Size] = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                sizes[i] = size
    return tuple(sizes)


def shape_of(value: Value) -> tuple[DType, tuple[Size, ...]]:
    """Element type and sizes of a tensor that ONNX has."""
    if not isinstance(value.type, Shape):
        refuse(f"{value.type} is no tensor")
    element = value.type.dtype
    if not isinstance(element, DType):
        refuse(f"the quantised type {element}")
    if element.name not in TYPES:
        refuse(f"ONNX operators have no {element}")
    return element, value.type.sizes


def count_elements(sizes: Sequence[Size]) -> Size:
    return math.prod(sizes, start=1)
