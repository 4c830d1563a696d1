"""Specialise a program with dynamic dimensions to numbers, for engines that need static shapes.

In: a program and a number for each symbol. Out: a static program, or an error that names the size that breaks an
assumption or depends on data. The pjrt engine calls it once per combination of sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from smelt.dim import Size
from smelt.errors import SizeError, UnsupportedError, VerifyError
from smelt.ir.attributes import Constant
from smelt.ir.clone import clone_region, substitution
from smelt.ir.core import Func, Op, Program, Value, walk
from smelt.ir.rewrite import Edit
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.shape import Shape


def specialise(program: Program, values: Mapping[str, int]) -> Program:
    """The static program for these sizes, simplified again."""
    program = substitute(program, values)
    if not is_static(program):
        program, _ = pipeline.run(program)
    dynamic = next((value for func in program.funcs.values() for value in _values(func) if _is_dynamic(value)), None)
    if dynamic is not None:
        raise UnsupportedError(
            "a size depends on data",
            expected="sizes that follow from the sizes of the inputs",
            got=dynamic.type,
            where=dynamic.op.location if dynamic.op is not None else None,
        )
    return program


def substitute(program: Program, values: Mapping[str, int]) -> Program:
    """The program with numbers for some of its symbols; a number that breaks a constraint is an error."""
    if not values:
        return program
    sizes: dict[str, Size] = dict(values)
    program = program.replace(*(_substitute(func, sizes) for func in program.funcs.values()))
    try:
        verify(program)
    except VerifyError as error:
        raise SizeError(error.message, expected=error.expected, got=values, where=error.where) from error
    return program


def is_static(program: Program) -> bool:
    """Whether every size is a number and no op takes its sizes as operands."""
    return not any(
        "dynamic_" in op.name and op.name not in ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice")
        for func in program.funcs.values()
        for op in walk(func.body)
    ) and not any(_is_dynamic(value) for func in program.funcs.values() for value in _values(func))


def _substitute(func: Func, values: Mapping[str, Size]) -> Func:
    body = clone_region(func.body, {}, substitution(values))
    edit = Edit(replace(func, body=body))
    for op in walk(body):
        if op.name == "stablehlo.gather" and op.result.shape.count == 0:
            _leave_empty(edit, op)
    return edit.freeze()


def _leave_empty(edit: Edit, op: Op) -> None:
    """A gather without indices reads nothing, so its operand may be empty, which the specification forbids."""
    shape = op.result.shape
    nothing = Constant.of(np.empty(shape.numbers(), shape.dtype.numpy), shape.dtype)
    edit.replace(op.result, edit.before(op).op("stablehlo.constant", value=nothing).result)
    edit.erase_if_dead(op)


def _values(func: Func) -> list[Value]:
    found = list(func.args)
    for op in walk(func.body):
        found += op.results
        found += [arg for region in op.regions for arg in region.args]
    return found


def _is_dynamic(value: Value) -> bool:
    return isinstance(value.type, Shape) and not value.type.is_static
