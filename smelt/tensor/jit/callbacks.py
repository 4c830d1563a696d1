"""Calls into Python from compiled programs: the program is cut at each call, and the pieces are compiled.

A program with custom calls of `smelt.custom_call` → an executable that runs piece, function, piece … on any engine.
`smelt.compile` calls it. Inside loops and branches only the reference engine calls Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from smelt.buffer import as_array
from smelt.dtype import Array
from smelt.engine.signature import signature_of
from smelt.engine_api import Executable, KernelUse, Signature
from smelt.errors import RunError, UnsupportedError
from smelt.ir.clone import clone_ops
from smelt.ir.core import Attrs, Func, Op, Program, Region, Value, used_values, walk
from smelt.passes.split_prepare import NAME, WEIGHT
from smelt.stop import Stop
from smelt.tensor.ops.control import CALLBACKS
from smelt.weights import Weights

Compile: TypeAlias = Callable[[Program], Executable]


def is_python(op: Op) -> bool:
    """Whether an op calls a function of this process."""
    return op.name == "stablehlo.custom_call" and target_of(op) in CALLBACKS


def target_of(op: Op) -> str:
    return str(op.attrs["call_target_name"])


def calls_python(program: Program) -> bool:
    return any(is_python(op) for func in program.funcs.values() for op in walk(func.body))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a program without calls into Python: its inputs and results, without weights."""

    executable: Executable
    takes: tuple[Value, ...]
    gives: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function of this process on values."""

    op: Op


def compile_around(program: Program, compile_piece: Compile) -> Executable:
    """A program that calls Python at the top of its entry, as pieces."""
    main = program.main
    inner = [op for op in _inner_ops(program) if is_python(op)]
    if inner:
        raise UnsupportedError(
            "a call into Python inside of a loop or branch",
            got=target_of(inner[0]),
            where=inner[0].location,
            remedy='engine="reference"',
        )
    steps: list[Piece | Call] = []
    run: list[Op] = []
    needed = _needed_later(main)
    for i, op in enumerate(main.body.ops):
        if not is_python(op):
            run.append(op)
            continue
        _add_piece(program, run, needed[i], compile_piece, steps)
        steps.append(Call(op))
        run = []
    _add_piece(program, run, frozenset(main.results), compile_piece, steps)
    return Pieces(signature_of(main), main, tuple(steps))


def _inner_ops(program: Program) -> Iterator[Op]:
    main = program.main
    for func in program.funcs.values():
        for op in func.body.ops:
            if func is not main:
                yield op
            for region in op.regions:
                yield from walk(region)


def _needed_later(main: Func) -> list[frozenset[Value]]:
    """For each op the values that it or a later one uses, or that the function returns."""
    found: list[frozenset[Value]] = []
    needed = set(main.results)
    for op in reversed(main.body.ops):
        needed.update(used_values(op))
        found.append(frozenset(needed))
    return found[::-1]


def _add_piece(
    program: Program, ops: Sequence[Op], needed: frozenset[Value], compile_piece: Compile, steps: list[Piece | Call]
) -> None:
    own = {value for op in ops for value in op.results}
    gives = tuple(value for op in ops for value in op.results if value in needed)
    if not gives:
        return
    main = program.main
    taken = list(dict.fromkeys(value for op in ops for value in used_values(op) if value not in own))
    attrs = dict(zip(main.args, main.arg_attrs, strict=True))
    formal = [Value(value.type, None, i, f"value{i}") for i, value in enumerate(taken)]
    cloned: dict[Value, Value] = dict(zip(taken, formal, strict=True))
    copies = clone_ops(ops, cloned)
    body = Region(tuple(formal), tuple(copies), tuple(cloned[value] for value in gives))
    arg_attrs = tuple(_piece_attrs(attrs.get(value, {}), i) for i, value in enumerate(taken))
    others = [func for func in program.funcs.values() if func is not main]
    piece = Program.of(Func("main", body, "public", arg_attrs), *others, declarations=program.declarations)
    takes = tuple(value for value in taken if WEIGHT not in attrs.get(value, {}))
    steps.append(Piece(compile_piece(piece), takes, gives))


def _piece_attrs(known: Attrs, index: int) -> Attrs:
    return known if WEIGHT in known else MappingProxyType({NAME: f"value{index}"})


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """An executable made of pieces and calls into Python; values go from one to the next, through the host for Python.

    `weights` are those that Python, or the result, takes as they are; None until they are bound.
    """

    signature: Signature
    main: Func
    steps: tuple[Piece | Call, ...]
    weights: Mapping[Value, Any] | None = None
    closed: list[bool] | None = None

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        found: list[KernelUse] = []
        for step in self.steps:
            if isinstance(step, Piece):
                found += step.executable.kernels
            else:
                found.append(KernelUse("python", (step.op.name,), 1))
        return tuple(found)

    def prepare(self, weights: Weights | Mapping[str, Any]) -> Pieces:
        steps = tuple(
            replace(step, executable=step.executable.prepare(weights)) if isinstance(step, Piece) else step  # type: ignore[arg-type]
            for step in self.steps
        )
        direct = {value for step in self.steps if isinstance(step, Call) for value in step.op.operands}
        direct |= set(self.main.results)
        names = {arg: str(attrs[WEIGHT]) for arg, attrs in self._arguments() if WEIGHT in attrs and arg in direct}
        return Pieces(self.signature, self.main, steps, {arg: weights[name] for arg, name in names.items()}, [False])

    def _arguments(self) -> Iterator[tuple[Value, Attrs]]:
        return zip(self.main.args, self.main.arg_attrs, strict=True)

    def __call__(self, *inputs: Any, stop: Stop | None = None) -> tuple[Any, ...]:
        if self.closed and self.closed[0]:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        if self.weights is None and self.signature.weights:
            raise RunError("the weights are not bound", remedy="executable = executable.prepare(weights)")
        values: dict[Value, Any] = dict(self.weights or {})
        values.update(zip((arg for arg, attrs in self._arguments() if WEIGHT not in attrs), inputs, strict=True))
        for step in self.steps:
            if isinstance(step, Piece):
                made = step.executable(*(values[value] for value in step.takes), stop=stop)
                values.update(zip(step.gives, made, strict=True))
            else:
                values.update(zip(step.op.results, _call_python(step.op, values), strict=True))
        return tuple(values[value] for value in self.main.results)

    def close(self) -> None:
        if self.closed is not None:
            self.closed[0] = True
        for step in self.steps:
            if isinstance(step, Piece):
                step.executable.close()


def _call_python(op: Op, values: Mapping[Value, Any]) -> tuple[Array, ...]:
    arrays = [as_array(values[value]) for value in op.operands]
    name = target_of(op)
    made: tuple[Array, ...] = CALLBACKS[name](*arrays)
    for array, result in zip(made, op.results, strict=True):
        sizes = result.shape.sizes
        fits = array.ndim == len(sizes) and all(
            a == b or not isinstance(b, int) for a, b in zip(array.shape, sizes, strict=True)
        )
        if not fits:
            raise RunError(f"{name} gave another shape than it declares", expected=result.shape, got=array.shape)
    return made
