"""Fusion: a function becomes few kernels. A value is either stored in a buffer or written into the loops that use it.

Elementwise ops, broadcasts, transposes, reshapes and slices turn into index arithmetic in their consumers; reductions,
products, results of the function and values that several consumers would recompute are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from smelt.dim import Size
from smelt.dtype import DType
from smelt.errors import UnsupportedError
from smelt.ir.core import Func, Op, Value
from smelt.kernel.loop import (
    Assign,
    Binary,
    Cast,
    Choose,
    Declare,
    Expr,
    For,
    Load,
    Number,
    SizeOf,
    Stmt,
    Store,
    Unary,
    Var,
    add,
    divide,
    multiply,
    remainder,
)
from smelt.kernel.math import scalar
from smelt.kernel.plan import Check, Kernel, Plan
from smelt.shape import Shape

MOVES = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "transpose", "reshape", "slice", "constant", "iota")
)
REDUCING = frozenset({"stablehlo.reduce", "stablehlo.dot_general"})
DEPTH = 64  # ops that one expression may nest

Index = tuple[Expr, ...]


def fuse(func: Func, assumed: Sequence[tuple[Size, Size, str]] = ()) -> Plan:
    """The plan of a function; an op that kernels do not know yet is refused by name.

    `assumed` are the equalities of sizes that the function takes for granted: the plan checks them at every call.
    """
    return _Fusion(func, [Check(a, b, True, why) for a, b, why in assumed]).plan()


@dataclass(slots=True)
class _Fusion:
    func: Func
    checks: list[Check]
    buffers: dict[Value, int] = field(default_factory=dict)
    constants: list[bytes] = field(default_factory=list)
    temporaries: list[Shape] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    sizes: dict[Size, int] = field(default_factory=dict)
    covered: list[str] = field(default_factory=list)
    users: dict[Value, list[Op]] = field(default_factory=dict)
    depths: dict[Value, int] = field(default_factory=dict)  # ops nested in the expression of a value that is not stored
    loops: int = 0

    def plan(self) -> Plan:
        func = self.func
        for op in func.body.ops:
            for operand in op.operands:
                self.users.setdefault(operand, []).append(op)
        stored = [op for op in func.body.ops if self._is_stored(op)]
        big = [op for op in func.body.ops if op.name == "stablehlo.constant" and not op.attrs["value"].is_splat]
        outputs = len(func.args)
        for i, arg in enumerate(func.args):
            self.buffers[arg] = i
        first_constant = outputs + len(func.results)
        for op in big:
            self.buffers[op.result] = first_constant + len(self.constants)
            self.constants.append(np.asarray(op.attrs["value"].array).tobytes())
        first_temporary = first_constant + len(self.constants)
        returned = {value: outputs + i for i, value in reversed(list(enumerate(func.results)))}
        for op in stored:
            if op.result in returned:
                self.buffers[op.result] = returned[op.result]
            else:
                self.buffers[op.result] = first_temporary + len(self.temporaries)
                self.temporaries.append(_tensor(op.result))
            self._add_kernel(op.result, self.buffers[op.result], op)
        for i, value in enumerate(func.results):
            if self.buffers.get(value) != outputs + i:
                self._add_kernel(value, outputs + i, None)
        return Plan(
            tuple(_tensor(arg) for arg in func.args),
            tuple(_tensor(value) for value in func.results),
            tuple(self.constants),
            tuple(self.temporaries),
            tuple(self.kernels),
            tuple(self.sizes),
            tuple(self.checks),
        )

    def _is_stored(self, op: Op) -> bool:
        """Whether an op's result gets a buffer of its own."""
        if len(op.results) != 1:
            raise _unknown(op, "with several results")
        if op.name in REDUCING:
            return True
        if op.name in MOVES:
            self.depths[op.result] = 1 + max((self.depths.get(operand, 0) for operand in op.operands), default=0)
            return self.depths[op.result] > DEPTH
        users = self.users.get(op.result, [])
        depth = 1 + max((self.depths.get(operand, 0) for operand in op.operands), default=0)
        if len(users) != 1 or users[0].name in REDUCING or depth > DEPTH:
            return True
        self.depths[op.result] = depth
        return False

    # -- loops --

    def _add_kernel(self, value: Value, buffer: int, op: Op | None) -> None:
        self.covered = []
        shape = _tensor(value)
        index = tuple(self._loop_var() for _ in shape.sizes)
        at = self._flat(index, shape.sizes)
        if op is not None and op.name in REDUCING:
            body = self._reduction(op, index, buffer, at)
        else:
            # A result that is stored already, an argument or a constant is copied.
            expr = self._value(value, index) if op is None else self._compute(op, index)
            body = [Store(buffer, at, expr)]
        loops: Sequence[Stmt] = body
        for var, size in reversed(list(zip(index, shape.sizes, strict=True))):
            loops = [For(var, self._size(size), tuple(loops))]
        self.kernels.append(
            Kernel(f"kernel{len(self.kernels)}", tuple(loops), buffer, tuple(dict.fromkeys(self.covered)))
        )

    def _loop_var(self) -> Var:
        self.loops += 1
        return Var(f"at{self.loops}")

    def _size(self, size: Size) -> Expr:
        if isinstance(size, int):
            return Number(size)
        return SizeOf(self.sizes.setdefault(size, len(self.sizes)))

    def _flat(self, index: Index, sizes: Sequence[Size]) -> Expr:
        """Row-major offset."""
        offset: Expr = Number(0)
        for at, size in zip(index, sizes, strict=True):
            offset = add(multiply(offset, self._size(size)), at)
        return offset

    def _unflat(self, offset: Expr, sizes: Sequence[Size]) -> Index:
        index: list[Expr] = []
        for size in reversed(sizes):
            extent = self._size(size)
            index.append(remainder(offset, extent))
            offset = divide(offset, extent)
        if index:
            index[-1] = (
                index[-1].x if isinstance(index[-1], Binary) and index[-1].function == "remainder" else index[-1]
            )
        return tuple(reversed(index))

    # -- values --

    def _value(self, value: Value, index: Index) -> Expr:
        """An element of a value: a load where it is stored, else the expression that makes it."""
        if value in self.buffers:
            shape = _tensor(value)
            return Load(self.buffers[value], self._flat(index, shape.sizes), shape.element)
        assert value.op is not None
        return self._compute(value.op, index)

    def _compute(self, op: Op, index: Index) -> Expr:
        self.covered.append(op.name)
        shape = _tensor(op.result)
        attrs, operands = op.attrs, op.operands
        match op.name:
            case "stablehlo.constant":
                return Number(attrs["value"].array.reshape(-1)[0].item(), shape.element)
            case "stablehlo.iota":
                return Cast(index[attrs["iota_dimension"]], shape.element)
            case "stablehlo.broadcast_in_dim":
                sizes = _tensor(operands[0]).sizes
                places = zip(attrs["broadcast_dimensions"], sizes, strict=True)
                return self._value(operands[0], tuple(Number(0) if size == 1 else index[d] for d, size in places))
            case "stablehlo.transpose":
                moved: list[Expr] = [Number(0)] * len(index)
                for at, source in zip(index, attrs["permutation"], strict=True):
                    moved[source] = at
                return self._value(operands[0], tuple(moved))
            case "stablehlo.reshape":
                offset = self._flat(index, shape.sizes)
                return self._value(operands[0], self._unflat(offset, _tensor(operands[0]).sizes))
            case "stablehlo.slice":
                for limit, size in zip(attrs["limit_indices"], _tensor(operands[0]).sizes, strict=True):
                    if not isinstance(size, int):
                        self.checks.append(
                            Check(limit, size, False, "stablehlo.slice: the limit lies in the dimension")
                        )
                parts = zip(index, attrs["start_indices"], attrs["strides"], strict=True)
                return self._value(operands[0], tuple(add(multiply(i, Number(s)), Number(a)) for i, a, s in parts))
            case "stablehlo.select":
                scalar_predicate = not _tensor(operands[0]).rank
                predicate = self._value(operands[0], () if scalar_predicate else index)
                return Choose(
                    predicate, self._value(operands[1], index), self._value(operands[2], index), shape.element
                )
            case "stablehlo.compare":
                x, y = (self._value(operand, index) for operand in operands)
                return Binary(attrs["comparison_direction"], x, y, shape.element)
            case "stablehlo.convert":
                return self._convert(op, operands[0], index)
        return self._elementwise(op, index)

    def _convert(self, op: Op, operand: Value, index: Index) -> Expr:
        source, target = _tensor(operand).element, _tensor(op.result).element
        if source.is_float and target.is_integer:
            raise _unknown(op, f"of {source} to {target}")
        return Cast(self._value(operand, index), target)

    def _elementwise(self, op: Op, index: Index) -> Expr:
        name = op.name.removeprefix("stablehlo.")
        element = _tensor(op.result).element
        if scalar(name, element) is None or any(_tensor(operand).dtype != element for operand in op.operands):
            raise _unknown(op, f"of {element}")
        values = [self._value(operand, index) for operand in op.operands]
        if len(values) == 1:
            return Unary(name, values[0], element)
        return Binary(name, values[0], values[1], element)

    # -- reductions --

    def _reduction(self, op: Op, index: Index, buffer: int, at: Expr) -> list[Stmt]:
        self.covered.append(op.name)
        if op.name == "stablehlo.dot_general":
            return self._dot(op, index, buffer, at)
        return self._reduce(op, index, buffer, at)

    def _reduce(self, op: Op, index: Index, buffer: int, at: Expr) -> list[Stmt]:
        if len(op.results) != 1 or len(op.regions[0].ops) != 1:
            raise _unknown(op, "with this body")
        combine = op.regions[0].ops[0]
        name = combine.name.removeprefix("stablehlo.")
        operand, init = op.operands
        element = _tensor(op.result).element
        ordered = set(combine.operands) == set(op.regions[0].args) and len(combine.operands) == 2
        if (
            not ordered
            or scalar(name, element) is None
            or name not in ("add", "multiply", "maximum", "minimum", "and", "or")
        ):
            raise _unknown(op, f"with the body {combine.name} of {element}")
        shape = _tensor(operand)
        reduced = op.attrs["dimensions"]
        inner = {d: self._loop_var() for d in reduced}
        kept = iter(index)
        full = tuple(inner[d] if d in inner else next(kept) for d in range(shape.rank))
        total = Var(f"total{self.loops}", element)
        step = Assign(total, Binary(name, total, self._value(operand, full), element))
        return self._accumulate(
            total, self._value(init, ()), step, [(inner[d], shape.sizes[d]) for d in reduced], buffer, at
        )

    def _dot(self, op: Op, index: Index, buffer: int, at: Expr) -> list[Stmt]:
        dims = op.attrs["dot_dimension_numbers"]
        lhs, rhs = op.operands
        element = _tensor(op.result).element
        if scalar("multiply", element) is None or element.kind == "bool":
            raise _unknown(op, f"of {element}")
        left: dict[int, Expr] = {}
        right: dict[int, Expr] = {}
        places = iter(index)
        for a, b in zip(dims.lhs_batching_dimensions, dims.rhs_batching_dimensions, strict=True):
            left[a] = right[b] = next(places)
        summed: list[tuple[Var, Size]] = []
        for a, b in zip(dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions, strict=True):
            var = self._loop_var()
            left[a] = right[b] = var
            summed.append((var, _tensor(lhs).sizes[a]))
        for side, operand in ((left, lhs), (right, rhs)):
            for d in range(_tensor(operand).rank):
                if d not in side:
                    side[d] = next(places)
        x, y = (
            _cast(self._value(operand, tuple(side[d] for d in range(_tensor(operand).rank))), element)
            for operand, side in ((lhs, left), (rhs, right))
        )
        total = Var(f"total{self.loops}", element)
        step = Assign(total, Binary("add", total, Binary("multiply", x, y, element), element))
        return self._accumulate(total, Number(0, element), step, summed, buffer, at)

    def _accumulate(
        self, total: Var, init: Expr, step: Stmt, loops: list[tuple[Var, Size]], buffer: int, at: Expr
    ) -> list[Stmt]:
        body: Stmt = step
        for var, size in reversed(loops):
            body = For(var, self._size(size), (body,))
        return [Declare(total, init), body, Store(buffer, at, total)]


def _cast(value: Expr, dtype: DType) -> Expr:
    return value if value.dtype == dtype else Cast(value, dtype)


def _tensor(value: Value) -> Shape:
    shape = value.type
    if (
        not isinstance(shape, Shape)
        or not isinstance(shape.dtype, DType)
        or shape.dtype.is_complex
        or shape.dtype.bits not in (1, 8, 16, 32, 64)
    ):
        raise UnsupportedError("the native engine does not know this type yet", got=shape, remedy="engine='reference'")
    if shape.dtype.is_float and shape.dtype.name not in ("f32", "f64"):
        raise UnsupportedError("the native engine does not know this type yet", got=shape, remedy="engine='reference'")
    return shape


def _unknown(op: Op, detail: str) -> UnsupportedError:
    return UnsupportedError(
        f"the native engine does not know {op.name} {detail} yet", where=op.location, remedy="engine='reference'"
    )
