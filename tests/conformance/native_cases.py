"""StableHLO test programs on the native engine: constants go in as arguments, what a check compares comes out.

Folding would otherwise compute most programs with NumPy while they are compiled, and no kernel would run. The checks
are then evaluated here, on what the kernels gave. `stablehlo.py` calls it, with programs that become one C file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from smelt.buffer import as_array
from smelt.device.registry import find_device
from smelt.dtype import Array, DType
from smelt.engine.native import compile_all
from smelt.errors import UnsupportedError
from smelt.ir.clone import clone_op
from smelt.ir.core import Func, Op, Program, Region, Value, walk
from smelt.ir.ops import OPS
from smelt.ir.ops.control import CHECKS
from smelt.ir.ops.testing import expect_close, expect_eq
from smelt.ir.rewrite import Edit
from smelt.kernel.math import ULP
from smelt.passes.inline import inline
from smelt.passes.join_processes import join_processes
from smelt.shape import Shape
from smelt.target import Target
from tests.cuda.emulated import find_name


class Comparison(NamedTuple):
    """A check, and what it compares."""

    op: Op
    values: tuple[Value, ...]


@dataclass(slots=True)
class Recast:
    """A function of a test program as a program of its own, without checks and without constants."""

    program: Program
    inputs: list[Array]
    results: int  # the function's own, which come first
    comparisons: list[Comparison]
    places: dict[Value, int]  # of an output among all outputs
    known: dict[Value, Array]  # of an argument
    allowance: int  # ULP that functions computed by approximation may add

    def judge(self, outputs: Sequence[Array]) -> Sequence[Array]:
        """Evaluate every check; gives the function's own results."""
        for op, values in self.comparisons:
            arrays = [self.known[value] if value in self.known else outputs[self.places[value]] for value in values]
            with np.errstate(all="ignore"):  # as in the reference: checks take differences of infinities
                evaluate(op, arrays, self.allowance)
        return outputs[: self.results]


def evaluate(op: Op, arrays: Sequence[Array], allowance: int) -> None:
    """One check on arrays; raises RunError where it does not hold."""
    called = op.attrs["call_target_name"] if op.name == "stablehlo.custom_call" else op.name
    element = op.operands[0].shape.dtype
    if called == "check.expect_close":
        least, most = op.attrs.get("min_ulp_difference", 0), op.attrs.get("max_ulp_difference", 3)
        expect_close(called, arrays[0], arrays[1], element, least, most + allowance)
    elif called == "check.expect_serialized_eq":
        expect_eq(called, arrays[0], arrays[1], element)
    elif op.name == "stablehlo.custom_call":
        CHECKS[called](op, *arrays)
    else:
        OPS[op.name].evaluate(None, op, *arrays)  # checks look at their operands alone


def recast(program: Program, name: str, given: Sequence[Array]) -> Recast:
    """A function of a program with its constants as arguments and the operands of its checks as results."""
    func = join_processes(inline(_without_prints(_entered(program, name)))).main
    work = _Recasting()
    for arg, array in zip(func.args, given, strict=True):
        work.argument(arg, array)
    for op in func.body.ops:
        work.take(op)
    return work.finish(func)


def _entered(program: Program, name: str) -> Program:
    """The program with a function as its entry."""
    func = program.func(name)
    if program.main is func:
        return program
    entry = Func("main", func.body, "public", func.arg_attrs, func.result_attrs, func.attrs, func.location)
    return program.replace(entry)


def _without_prints(program: Program) -> Program:
    """What a program prints is not compared."""
    edited = []
    for func in program.funcs.values():
        prints = [op for op in walk(func.body) if op.name == "interpreter.print"]
        if prints:
            edit = Edit(func, {name: each.type for name, each in program.funcs.items()})
            for op in prints:
                edit.erase(op)
            edited.append(edit.freeze())
    return program.replace(*edited)


def is_check(op: Op) -> bool:
    return op.name.startswith("check.") or (
        op.name == "stablehlo.custom_call" and op.attrs["call_target_name"] in CHECKS
    )


@dataclass(slots=True)
class _Recasting:
    values: dict[Value, Value] = field(default_factory=dict)
    args: list[Value] = field(default_factory=list)
    inputs: list[Array] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    probes: dict[str, list[Value]] = field(default_factory=dict)
    fed_out: list[Value] = field(default_factory=list)

    def argument(self, value: Value, array: Array) -> None:
        made = Value(value.type, None, len(self.args), f"a{len(self.args)}")
        self.args.append(made)
        self.inputs.append(array)
        self.values[value] = made

    def take(self, op: Op) -> None:
        operands = tuple(self.values[operand] for operand in op.operands)
        if op.name == "stablehlo.constant" and isinstance(op.result.shape.dtype, DType):
            self.argument(op.result, op.attrs["value"].array)
        elif op.name == "interpreter.probe":
            self.probes.setdefault(op.attrs["probe_id"], []).append(operands[0])
            self.values[op.result] = operands[0]
        elif op.name == "check.expect_serialized_eq":
            kept, turn = self.probes.get(op.attrs["probe_id"], ()), op.attrs.get("iteration", op.attrs["iter"])
            if turn >= len(kept):
                raise UnsupportedError("a probe inside a region keeps a value for each turn", got=op.attrs["probe_id"])
            self.comparisons.append(Comparison(op, (kept[turn], operands[0])))
        elif is_check(op):
            assert not op.results, "a check whose result is used"
            self.comparisons.append(Comparison(op, operands))
        elif op.name == "stablehlo.outfeed":
            self.fed_out += operands[:-1]
            self.values[op.result] = operands[-1]
        elif any(is_check(inner) for region in op.regions for inner in walk(region)):
            raise UnsupportedError("a check inside a region", where=op.location)
        else:
            self.ops.append(clone_op(op, self.values))

    def finish(self, func: Func) -> Recast:
        known = dict(zip(self.args, self.inputs, strict=True))
        results = [self.values[value] for value in func.results if isinstance(value.type, Shape)]
        compared = [value for each in self.comparisons for value in each.values]
        outputs = [*results, *dict.fromkeys([value for value in compared if value not in known] + self.fed_out)]
        body = Region(tuple(self.args), tuple(self.ops), tuple(outputs))
        bounds = [ULP.get(op.name.partition(".")[2], 0) for op in walk(func.body)]
        return Recast(
            Program.of(Func("main", body)),
            self.inputs,
            len(results),
            self.comparisons,
            {value: i for i, value in reversed([*enumerate(outputs)])},
            known,
            math.floor(max(bounds, default=0)),
        )


@dataclass(frozen=True, slots=True)
class Ran:
    """A function that ran and whose checks held."""

    results: Sequence[Array]
    kernels: int


def suite_target() -> Target | None:
    """The target of the device that the variable SUITE_DEVICE names, for `bench/cuda_check.py`; None: the processor.

    `emulated` is the device `cuda` in the emulator of tests/cuda.
    """
    name = find_name(os.environ.get("SUITE_DEVICE", ""))
    return find_device(name).target() if name else None


def compile_each(programs: Sequence[Program]) -> list[Any]:
    """What was compiled from each program, or the error."""
    try:
        return list(compile_all(programs, suite_target()))
    except Exception as error:  # a bug of ours, which one of them shows
        if len(programs) == 1:
            return [error]
        return [made for program in programs for made in compile_each([program])]


def prepare(cases: Sequence[Recast]) -> list[Any]:
    """What was compiled from each, or the error."""
    return compile_each([each.program for each in cases])


def run_prepared(each: Recast, made: Any) -> Ran:
    """Run what was compiled and evaluate the checks; raises what went wrong."""
    if isinstance(made, Exception):
        raise made
    outputs = tuple(map(as_array, made(*each.inputs)))
    return Ran(each.judge(outputs), sum(use.count for use in made.kernels))


def run_native(program: Program, name: str, args: Sequence[Array]) -> Sequence[Array]:
    """One function alone."""
    each = recast(program, name, args)
    (made,) = compile_each([each.program])
    return run_prepared(each, made).results
