"""A program in double precision: the truth that errors of f32 engines are measured against."""

from __future__ import annotations

import numpy as np

from smelt.dtype import f32, f64
from smelt.ir.attributes import Constant
from smelt.ir.core import Func, Op, Program, Region, Type, Value
from smelt.shape import Shape


def to_double(program: Program) -> Program:
    """The same program with f64 for every f32; f32 constants keep their exact values."""
    return program.replace(*(_func(func) for func in program.funcs.values()))


def _func(func: Func) -> Func:
    body = _region(func.body, {})
    return Func(func.name, body, func.visibility, func.arg_attrs, func.result_attrs, func.attrs, func.location)


def _region(region: Region, values: dict[Value, Value]) -> Region:
    args = tuple(Value(_type(arg.type), None, arg.index, arg.name) for arg in region.args)
    values.update(zip(region.args, args, strict=True))
    ops = []
    for op in region.ops:
        attrs = {key: _attr(value) for key, value in op.attrs.items()}
        operands = [values.get(operand, operand) for operand in op.operands]
        types = [_type(value.type) for value in op.results]
        made = Op(op.name, operands, types, attrs, [_region(r, values) for r in op.regions], op.location)
        values.update(zip(op.results, made.results, strict=True))
        ops.append(made)
    return Region(args, tuple(ops), tuple(values.get(value, value) for value in region.results))


def _type(type: Type) -> Type:
    return type.with_dtype(f64) if isinstance(type, Shape) and type.dtype == f32 else type


def _attr(value: object) -> object:
    if isinstance(value, Constant) and value.dtype == f32:
        return Constant.of(np.asarray(value.array, np.float64), f64)
    return value
