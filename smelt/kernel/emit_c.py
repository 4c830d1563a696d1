"""Loops → C. The program is freestanding: it calls nothing, allocates nothing, and takes sizes and buffers."""

from __future__ import annotations

import math

from smelt.dtype import DType
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
)
from smelt.kernel.math import COMPARE, PRELUDE, SCALAR, scalar
from smelt.kernel.plan import Plan


def emit(plan: Plan) -> str:
    """One C file: a static function per kernel, and `smelt_run`, which calls them in order."""
    parts = [PRELUDE]
    for kernel in plan.kernels:
        body = "\n".join(_statement(stmt, 1) for stmt in kernel.body)
        parts.append(f"static void {kernel.name}(void *const *b, const i64 *s) {{\n{body}\n}}")
    calls = "\n".join(f"  {kernel.name}(buffers, sizes);" for kernel in plan.kernels)
    parts.append(f"int smelt_run(void *const *buffers, const i64 *sizes) {{\n{calls}\n  return 0;\n}}\n")
    return "\n\n".join(parts)


def _statement(stmt: Stmt, depth: int) -> str:
    pad = "  " * depth
    match stmt:
        case For(var, extent, body):
            inner = "\n".join(_statement(each, depth + 1) for each in body)
            head = f"for (i64 {var.name} = 0; {var.name} < {_expr(extent)}; {var.name}++)"
            return f"{pad}{head} {{\n{inner}\n{pad}}}"
        case Store(buffer, index, value):
            return f"{pad}(({_type(value.dtype)} *)b[{buffer}])[{_expr(index)}] = {_expr(value)};"
        case Declare(var, value):
            return f"{pad}{_type(var.dtype)} {var.name} = {_expr(value)};"
        case Assign(var, value):
            return f"{pad}{var.name} = {_expr(value)};"


def _type(dtype: DType) -> str:
    return dtype.name


def _expr(expr: Expr) -> str:
    match expr:
        case Var(name):
            return name
        case Number(value, dtype):
            return _number(value, dtype)
        case SizeOf(slot):
            return f"s[{slot}]"
        case Load(buffer, index, dtype):
            return f"((const {_type(dtype)} *)b[{buffer}])[{_expr(index)}]"
        case Cast(x, dtype):
            if dtype.kind == "bool":
                return f"({_expr(x)} != 0)"
            return f"(({_type(dtype)}){_expr(x)})"
        case Choose(condition, x, y):
            return f"({_expr(condition)} ? {_expr(x)} : {_expr(y)})"
        case Unary(function, x, dtype):
            return _template(function, dtype).format(_expr(x), t=dtype.name)
        case Binary(function, x, y, dtype):
            if function in COMPARE:
                return f"({_expr(x)} {COMPARE[function]} {_expr(y)})"
            wrapped = _template(function, x.dtype).format(_expr(x), _expr(y), t=dtype.name)
            return f"(({_type(dtype)}){wrapped})" if dtype.is_integer and dtype.bits < 32 else wrapped


def _template(function: str, dtype: DType) -> str:
    found = scalar(function, dtype) or SCALAR.get(function, {}).get("index")
    assert found is not None, f"no C for {function} of {dtype}"
    return found


def _number(value: float | int | bool, dtype: DType) -> str:
    if dtype.is_float:
        number = float(value)
        if math.isnan(number):
            return '__builtin_nanf("")' if dtype.name == "f32" else '__builtin_nan("")'
        if math.isinf(number):
            return "(-__builtin_inf())" if number < 0 else "__builtin_inf()"
        return f"({number.hex()}{'f' if dtype.name == 'f32' else ''})"
    number = int(value)
    if dtype.kind == "int" and dtype.bits == 64 and number == -(1 << 63):
        return "(-9223372036854775807LL - 1)"
    return (
        f"({number}{'ULL' if dtype.kind == 'uint' else 'LL' if dtype.bits == 64 else ''})"
        if number < 0 or dtype.bits == 64
        else str(number)
    )
