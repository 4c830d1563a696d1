"""Control flow, calls, tokens and the ops that only order or place others.

Regions run in the frame of the function around them. Loops, branches and calls are generators, because a collective
inside them may wait for other processes.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from smelt.dim import Size, symbols
from smelt.dtype import Array, i1, i32, index
from smelt.errors import RunError, UnsupportedError
from smelt.ir.attributes import (
    ALIAS,
    ANY,
    BOOL,
    DICT,
    INT32,
    STRING,
    SYMBOL,
    Constant,
    Dict,
    Kind,
    OutputOperandAlias,
    array_of,
    enum_of,
    read_row,
)
from smelt.ir.core import Future, Op, Region, Token, Tuple, Type
from smelt.ir.ops.definition import UNKNOWN, Attr, Call, Exchange, Frame, OpDef
from smelt.ir.ops.dynamic import CALLED
from smelt.ir.ops.shape import not_per_axis
from smelt.ir.ops.signature import bare_symbol, call_types
from smelt.ir.ops.testing import expect_almost_eq, expect_close, expect_eq
from smelt.shape import Shape

Steps = Generator[Exchange, Any, tuple[Any, ...]]

PREDICATE = Shape.of(i1, ())
TOKEN = Token()

# ---- branches ----


def _infer_if(call: Call) -> Sequence[Type]:
    call.same_shape(PREDICATE, call.shape(0), "if_i1", "the predicate must be a boolean scalar")
    return _join(call, "if_c1", "if_c2")


def _infer_case(call: Call) -> Sequence[Type]:
    call.require(len(call.regions) > 0, "case_c1", "there must be a branch")
    call.same_shape(Shape.of(i32, ()), call.shape(0), "case_i1", "the index must be a scalar of i32")
    return _join(call, "case_c2", "case_c3")


def _join(call: Call, takes: str, gives: str) -> list[Type]:
    """The types that all branches return; a size that differs between them is born here."""
    for branch in call.regions:
        call.require(not branch.args, takes, "a branch takes no arguments", got=len(branch.args))
    counts = {len(branch.results) for branch in call.regions}
    call.require(len(counts) == 1, gives, "the branches return different numbers of values", got=sorted(counts))
    columns = zip(*([value.type for value in branch.results] for branch in call.regions), strict=True)
    return [_join_types(call, i, types, gives) for i, types in enumerate(columns)]


def _join_types(call: Call, i: int, types: Sequence[Type], label: str) -> Type:
    first = types[0]
    for other in types[1:]:
        if not isinstance(first, Shape) or not isinstance(other, Shape):
            call.require(first == other, label, f"result {i} differs between branches", expected=first, got=other)
        elif first.dtype != other.dtype or first.rank != other.rank:
            call.fail(label, f"result {i} differs between branches", expected=first, got=other)
    if not isinstance(first, Shape):
        return first
    sizes = []
    for axis in range(first.rank):
        column = [type.sizes[axis] for type in types if isinstance(type, Shape)]
        sizes.append(_join_sizes(call, column, _declared_size(call, i, first.rank, axis), label))
    return Shape.of(first.dtype, sizes)


def _join_sizes(call: Call, sizes: Sequence[Size], declared: Size | None, label: str) -> Size:
    if all(size == sizes[0] for size in sizes):
        return sizes[0]
    if declared is not None and _is_introduced(declared, sizes):
        return call.scope.new_symbol() if declared == UNKNOWN else declared
    for size in sizes:
        call.same_size(sizes[0] if declared is None else declared, size, label, "a size differs between branches")
    return sizes[0] if declared is None else declared


def _declared_size(call: Call, result: int, rank: int, axis: int) -> Size | None:
    if call.declared is None or result >= len(call.declared):
        return None
    type = call.declared[result]
    return type.sizes[axis] if isinstance(type, Shape) and type.rank == rank else None


def _is_introduced(size: Size, others: Sequence[Size]) -> bool:
    """A size that is one symbol and has nothing to do with the others: it names what came out at run time."""
    name = bare_symbol(size)
    return name is not None and all(name not in symbols(other) for other in others)


def _if(frame: Frame, op: Op, predicate: Array) -> Steps:
    return (yield from frame.steps(op.regions[0 if predicate else 1]))


def _case(frame: Frame, op: Op, choice: Array) -> Steps:
    last = len(op.regions) - 1
    chosen = int(choice)
    return (yield from frame.steps(op.regions[chosen if 0 <= chosen <= last else last]))


# ---- loops ----


def _infer_while(call: Call) -> Sequence[Type]:
    condition, body = call.regions
    types = [value.type for value in call.operands]
    outside = frozenset().union(*(type.symbols for type in types if isinstance(type, Shape)))
    for region, label in ((condition, "while_c1"), (body, "while_c2")):
        call.require(
            len(region.args) == len(types),
            label,
            "a region takes the wrong number of values",
            expected=len(types),
            got=len(region.args),
        )
        for i, (want, arg) in enumerate(zip(types, region.args, strict=True)):
            _match_carried(call, i, want, arg.type, outside, label)
    call.check_region(condition, [arg.type for arg in condition.args], [PREDICATE], "while_c1")
    if len(body.results) != len(types):
        call.fail("while_c2", "the body returns the wrong number of values", expected=len(types), got=len(body.results))
    return [_carried_type(call, i, want, body, outside) for i, want in enumerate(types)]


def _match_carried(call: Call, i: int, want: Type, have: Type, outside: frozenset[str], label: str) -> None:
    """A region's argument has its operand's type; a symbol of the region's own is bound in each iteration."""
    message = f"value {i} of the loop has another type in a region"
    if not isinstance(want, Shape) or not isinstance(have, Shape):
        call.require(want == have, label, message, expected=want, got=have)
    elif want.dtype != have.dtype or want.rank != have.rank:
        call.fail(label, message, expected=want, got=have)
    else:
        for a, b in zip(want.sizes, have.sizes, strict=True):
            if not _is_own(b, outside):
                call.same_size(a, b, label, message)


def _carried_type(call: Call, i: int, want: Type, body: Region, outside: frozenset[str]) -> Type:
    have, arg = body.results[i].type, body.args[i].type
    message = f"the body returns another type for value {i}"
    if not isinstance(want, Shape) or not isinstance(have, Shape) or not isinstance(arg, Shape):
        call.require(want == have, "while_c2", message, expected=want, got=have)
        return want
    if want.dtype != have.dtype or want.rank != have.rank:
        call.fail("while_c2", message, expected=want, got=have)
    sizes = []
    for axis, (before, inside, after) in enumerate(zip(want.sizes, arg.sizes, have.sizes, strict=True)):
        if after in (inside, before):  # the size stays what it was
            sizes.append(before)
        elif _is_own(inside, outside):
            declared = _declared_size(call, i, want.rank, axis)
            sizes.append(call.scope.new_symbol() if declared is None or declared == UNKNOWN else declared)
        else:
            call.same_size(inside, after, "while_c2", message)
            sizes.append(before)
    return Shape.of(want.dtype, sizes)


def _is_own(size: Size, outside: frozenset[str]) -> bool:
    name = bare_symbol(size)
    return name is not None and name not in outside


def _while(frame: Frame, op: Op, *state: Any) -> Steps:
    condition, body = op.regions
    while True:
        (again,) = yield from frame.steps(condition, *state)
        if not again:
            return state
        state = yield from frame.steps(body, *state)


# ---- calls ----


def _infer_call(call: Call) -> Sequence[Type]:
    return call_types(call, call.attrs["callee"], [value.type for value in call.operands], call.declared, "")


def _call(frame: Frame, op: Op, *args: Any) -> Steps:
    return (yield from frame.invoke(frame.program.func(op.attrs["callee"]), *args))


_NAMESPACED = re.compile(r"[a-zA-Z]\w*(?:\.[\w$]+)+", re.ASCII)


def _infer_composite(call: Call) -> Sequence[Type]:
    name: str = call.attrs["name"]
    call.require(
        _NAMESPACED.fullmatch(name) is not None,
        "composite_c1",
        "the name must be one of a dialect",
        expected="dialect.op",
        got=name,
    )
    types = [value.type for value in call.operands]
    return call_types(call, call.attrs["decomposition"], types, call.declared, "composite_c2")


def _composite(frame: Frame, op: Op, *args: Any) -> Steps:
    return (yield from frame.invoke(frame.program.func(op.attrs["decomposition"]), *args))


_DIRECTION = enum_of("direction", "NONE", "FORWARD", "BACKWARD", "BOTH")
LAYOUT = Kind("layout", read_row, lambda order: Constant.of(np.array(order, np.int64), index))
TYPED_FFI = 4


def _infer_custom_call(call: Call) -> Sequence[Type]:
    if call.declared is None:
        call.fail("", "the result types cannot be inferred", expected="declared result types")
    config, version = call.attrs.get("backend_config"), call.attrs.get("api_version", 1)
    call.require(0 <= version <= TYPED_FFI, "", "no such api_version", expected=f"0 to {TYPED_FFI}", got=version)
    if config is not None and not isinstance(config, Dict if version == TYPED_FFI else str):
        wanted = "a dictionary" if version == TYPED_FFI else "a string"
        call.fail("", f"backend_config with api_version {version}", expected=wanted, got=config)
    for name in call.attrs["called_computations"]:
        call.require(name in call.signatures, "", f"no function @{name}", got=f"@{name}")
    _check_layouts(call, call.declared)
    for alias in call.attrs.get("output_operand_aliases", ()):
        _check_alias(call, alias, call.declared)
    called = CALLED.get(call.attrs["call_target_name"])
    found = None if called is None else called[0](call)
    return [_fresh_sizes(call, type) for type in call.declared] if found is None else found


def _check_layouts(call: Call, results: Sequence[Type]) -> None:
    given = (call.attrs.get("operand_layouts"), call.attrs.get("result_layouts"))
    if given == (None, None):
        return
    for what, layouts, types in (
        ("operand", given[0], [value.type for value in call.operands]),
        ("result", given[1], list(results)),
    ):
        if layouts is None or len(layouts) != len(types):
            call.fail("", f"{what}_layouts needs one layout for each {what}", expected=len(types), got=layouts)
        for layout, type in zip(layouts, types, strict=True):
            rank = type.rank if isinstance(type, Shape) else 0
            message = f"the layout of a {what} must order its dimensions"
            call.require(sorted(layout) == list(range(rank)), "", message, expected=f"rank {rank}", got=layout)


def _check_alias(call: Call, alias: OutputOperandAlias, results: Sequence[Type]) -> None:
    """An operand, or a part of one, that lives where a result, or a part of one, will."""
    last = len(call.operands) - 1
    if not 0 <= alias.operand_index <= last:
        call.fail("", "an alias of an operand that is not there", expected=f"0 to {last}", got=alias.operand_index)
    whole = results[0] if len(results) == 1 else Tuple(tuple(results))
    operand = _part(call, call.operands[alias.operand_index].type, alias.operand_tuple_indices)
    result = _part(call, whole, alias.output_tuple_indices)
    if isinstance(operand, Shape) and isinstance(result, Shape) and not (operand.is_static and result.is_static):
        same = (operand.dtype, operand.rank) == (result.dtype, result.rank)
    else:
        same = operand == result
    call.require(same, "", "an operand and a result of different types share their place", expected=operand, got=result)


def _part(call: Call, type: Type, path: Sequence[int]) -> Type:
    for place in path:
        if not isinstance(type, Tuple) or not 0 <= place < len(type.types):
            call.fail("", "an alias of a part that is not there", got=list(path))
        type = type.types[place]
    return type


def _fresh_sizes(call: Call, type: Type) -> Type:
    if not isinstance(type, Shape) or type.is_static:
        return type
    return Shape.of(type.dtype, [call.scope.new_symbol() if size == UNKNOWN else size for size in type.sizes])


def _custom_call(frame: Frame, op: Op, *operands: Any) -> Any:
    target: str = op.attrs["call_target_name"]
    if target in frame.world.callbacks:
        return _fit(op, target, frame.world.callbacks[target](*operands))
    if target in CHECKS and len(operands) == 2 and all(isinstance(value.type, Shape) for value in op.operands):
        return _fit(op, target, CHECKS[target](op, *operands))
    if target in CALLED:
        return CALLED[target][1](frame, op, *operands)
    if target in ASSERTIONS and operands and not op.results:
        return require(op, *operands)
    types = [value.type for value in op.operands]
    if target in PLACEMENT and types == [value.type for value in op.results]:
        return operands
    raise UnsupportedError(
        f"custom_call @{target} has no implementation here",
        expected="one of " + ", ".join([*frame.world.callbacks, *CHECKS]),
        got=f"@{target}",
        where=op.location,
        remedy=f"pass callbacks={{{target!r}: function}}",
    )


# Sharding annotations do nothing on one process.
PLACEMENT = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement")


# What JAX exports for constraints on symbolic sizes, and what our readers emit for what a format demands at run time.
ASSERTIONS = ("shape_assertion", "smelt.check")


def is_assertion(op: Op) -> bool:
    return op.name == "stablehlo.custom_call" and op.attrs["call_target_name"] in ASSERTIONS


def require(op: Op, holds: Any, *numbers: Any) -> tuple[()]:
    """A boolean that must hold; `{0}` in its message stands for the first of the numbers."""
    if not np.all(holds):
        message = str(op.attrs.get("error_message", "a constraint does not hold"))
        for i, number in enumerate(numbers):
            message = message.replace(f"{{{i}}}", str(number))
        raise RunError(message, where=op.location)
    return ()


def _fit(op: Op, target: str, given: Any) -> tuple[Any, ...]:
    """What a callback returned, if it has the types that the op promises."""
    out = given if isinstance(given, tuple | list) else () if given is None else (given,)
    if len(out) != len(op.results):
        raise RunError(
            f"what answers @{target} gave the wrong number of results", expected=len(op.results), got=len(out)
        )
    arrays = []
    for value, item in zip(op.results, out, strict=True):
        if isinstance(value.type, Shape):
            item = np.asarray(item)
            want = value.type
            if (
                item.dtype != want.dtype.numpy
                or item.ndim != want.rank
                or (want.is_static and item.shape != want.sizes)
            ):
                raise RunError(
                    f"what answers @{target} gave another type",
                    expected=want,
                    got=f"{item.dtype}{list(item.shape)}",
                )
        arrays.append(item)
    return tuple(arrays)


def _check_call_eq(op: Op, actual: Array, expected: Array) -> tuple[()]:
    expect_eq("check.expect_eq", actual, expected, op.operands[0].shape.dtype)
    return ()


def _check_call_almost_eq(op: Op, actual: Array, expected: Array) -> tuple[()]:
    expect_almost_eq("check.expect_almost_eq", actual, expected, op.operands[0].shape.dtype, 1e-3)
    return ()


def _check_call_close(op: Op, actual: Array, expected: Array) -> tuple[()]:
    expect_close("check.expect_close", actual, expected, op.operands[0].shape.dtype, 0, 3)
    return ()


def _check_call_either(op: Op, actual: Array, expected: Array) -> tuple[Array, ...]:
    """The old form: exact for integers, 1e-4 for floats; its result says that it held."""
    element = op.operands[0].shape.dtype
    if element.is_float or element.is_complex:
        expect_almost_eq("check.eq", actual, expected, element, 1e-4)
    else:
        expect_eq("check.eq", actual, expected, element)
    return tuple(np.asarray(True) for _ in op.results)


CHECKS = {
    "check.expect_eq": _check_call_eq,
    "check.expect_almost_eq": _check_call_almost_eq,
    "check.expect_close": _check_call_close,
    "check.eq": _check_call_either,
}


# ---- order ----


def _infer_tokens(call: Call) -> Sequence[Type]:
    for value in call.operands:
        call.require(
            value.type == TOKEN,
            "after_all_i1",
            "every operand must be a token",
            expected="!stablehlo.token",
            got=value.type,
        )
    return [TOKEN]


def _token(_frame: Frame, _op: Op, *_tokens: None) -> tuple[None]:
    return (None,)


def _infer_same(call: Call) -> Sequence[Type]:
    for value in call.operands:
        kept = isinstance(value.type, Shape | Token)
        call.require(kept, "optimization_barrier_i1", "operands are tensors and tokens", got=value.type)
        if isinstance(value.type, Shape):
            not_per_axis(call, value.type)
    return [value.type for value in call.operands]


def _same(_frame: Frame, _op: Op, *values: Any) -> tuple[Any, ...]:
    return values


def _infer_one_tensor(call: Call) -> Sequence[Type]:
    return [call.shape(0)]


def _infer_nothing(call: Call) -> Sequence[Type]:
    call.shape(0)
    return []


def _nothing(_frame: Frame, _op: Op, _value: Any) -> tuple[()]:
    return ()


# ---- asynchronous ----


def _infer_async_start(call: Call) -> Sequence[Type]:
    (region,) = call.regions
    results = [value.type for value in region.results]
    call.check_region(region, [value.type for value in call.operands], results, "async_start_c1")
    call.require(len(results) > 0, "async_start_c2", "the region returns nothing")
    return [Future(tuple(results))]


def _async_start(frame: Frame, op: Op, *operands: Any) -> Steps:
    results = yield from frame.steps(op.regions[0], *operands)
    return (results,)


def _infer_async_done(call: Call) -> Sequence[Type]:
    future = call.operands[0].type
    if not isinstance(future, Future):
        call.fail("async_done_i1", "the operand must be a future", expected="!stablehlo.future", got=future)
    return list(future.types)


def _async_done(_frame: Frame, _op: Op, future: tuple[Any, ...]) -> tuple[Any, ...]:
    return future


ROWS: list[OpDef] = [
    OpDef("stablehlo.if", "pred", _infer_if, _if, regions=2),
    OpDef("stablehlo.case", "index", _infer_case, _case, regions=None),
    OpDef("stablehlo.while", "operand*", _infer_while, _while, regions=2),
    OpDef("func.call", "operands*", _infer_call, _call, (Attr("callee", SYMBOL),)),
    OpDef(
        "stablehlo.composite",
        "inputs*",
        _infer_composite,
        _composite,
        (
            Attr("name", STRING),
            Attr("composite_attributes", DICT, Dict(())),
            Attr("decomposition", SYMBOL),
            Attr("version", INT32, 0),
        ),
    ),
    OpDef(
        "stablehlo.custom_call",
        "inputs*",
        _infer_custom_call,
        _custom_call,
        (
            Attr("call_target_name", STRING),
            Attr("has_side_effect", BOOL, False),
            Attr("backend_config", ANY, None),
            Attr("api_version", INT32, 1),
            Attr("called_computations", array_of(SYMBOL), ()),
            Attr("operand_layouts", array_of(LAYOUT), None),
            Attr("result_layouts", array_of(LAYOUT), None),
            Attr("output_operand_aliases", array_of(ALIAS), ()),
        ),
        effect=True,
    ),
    OpDef("stablehlo.after_all", "inputs*", _infer_tokens, _token),
    OpDef("stablehlo.create_token", "", _infer_tokens, _token),
    OpDef("stablehlo.optimization_barrier", "operand*", _infer_same, _same),
    OpDef("stablehlo.async_start", "operands*", _infer_async_start, _async_start, regions=1),
    OpDef("stablehlo.async_done", "future", _infer_async_done, _async_done),
    OpDef("sdy.sharding_constraint", "input", _infer_one_tensor, _same, (Attr("sharding", ANY),)),
    OpDef("sdy.reshard", "input", _infer_one_tensor, _same, (Attr("sharding", ANY),)),
    OpDef("sdy.propagation_barrier", "input", _infer_one_tensor, _same, (Attr("allowed_direction", _DIRECTION),)),
    OpDef("sdy.sharding_group", "input", _infer_nothing, _nothing, effect=True),
]
