"""The test-only dialects: `check.*` compares results with expectations, `interpreter.*` runs processes and probes.

A check that does not hold raises `RunError` with the worst element. `control.py` uses the same checks for the custom
calls `@check.expect_close`, `@check.expect_almost_eq` and `@check.expect_eq`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from smelt.dtype import Array, DType, ElementType, ui32, ui64
from smelt.errors import RunError
from smelt.ir.attributes import CONSTANT, FLOAT64, STRING, SYMBOL, Int, Kind, array_of, int_of
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import Attr, Call, Exchange, Frame, OpDef
from smelt.ir.ops.signature import call_types
from smelt.shape import Shape

UINT64 = Kind("int", int_of(ui64), lambda value: Int(value, ui64))
UINT32 = Kind("int", int_of(ui32), lambda value: Int(value, ui32))

# ---- comparing ----

NO_DISTANCE = np.uint64(0)
FAR = np.uint64(2**64 - 1)  # the distance between a finite and another value


def expect_eq(name: str, actual: Array, expected: Array, element: ElementType) -> None:
    """Equal values: a NaN equals any NaN, and 0.0 equals -0.0."""
    _same_layout(name, actual, expected)
    wrong = ~_equal(actual, expected)
    if wrong.any():
        _refuse(name, wrong, wrong.astype(np.float64), actual, expected, "", element)


def expect_almost_eq(name: str, actual: Array, expected: Array, element: ElementType, tolerance: float) -> None:
    """An absolute difference of at most `tolerance`, for each part of a complex number; infinities must be equal."""
    _same_layout(name, actual, expected)
    wrong = np.zeros(actual.shape, np.bool_)
    distance = np.zeros(actual.shape, np.float64)
    for a, b in zip(_parts(actual), _parts(expected), strict=True):
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        equal = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
        apart = np.where(equal, 0.0, np.abs(wide_a - wide_b))
        apart = np.where(np.isnan(apart), np.inf, apart)
        wrong |= ~(apart <= tolerance)
        distance = np.maximum(distance, apart)
    if wrong.any():
        _refuse(name, wrong, distance, actual, expected, f" within {tolerance:g}", element)


def expect_close(name: str, actual: Array, expected: Array, element: ElementType, least: int, most: int) -> None:
    """A distance of `least` to `most` ULP, for each part of a complex number."""
    _same_layout(name, actual, expected)
    if not (element.is_float or element.is_complex):
        raise RunError(f"{name}: ULP are defined for floats only", got=element)
    assert isinstance(element, DType)
    distance = np.zeros(actual.shape, np.uint64)
    for a, b in zip(_parts(actual), _parts(expected), strict=True):
        distance = np.maximum(distance, ulp_distance(a, b, element.part))
    wrong = (distance > np.uint64(most)) | (distance < np.uint64(least))
    if wrong.any():
        span = f"{most}" if not least else f"{least} to {most}"
        _refuse(name, wrong, distance.astype(np.float64), actual, expected, f" within {span} ULP", element)


def ulp_distance(a: Array, b: Array, element: DType) -> Array:
    """The number of representable values between two floats; 0 for two NaNs, 2^64 - 1 if only one is finite."""
    size = np.dtype(f"u{element.numpy.itemsize}")
    signed = element.name != "f8E8M0FNU"
    sign = 1 << (element.bits - 1) if signed else 0

    def split(x: Array) -> tuple[Array, Array]:
        bits = np.ascontiguousarray(x).view(size).reshape(x.shape).astype(np.uint64)
        return bits & np.uint64(sign), bits & ~np.uint64(sign)

    sign_a, magnitude_a = split(a)
    sign_b, magnitude_b = split(b)
    with np.errstate(all="ignore"):
        between = np.where(
            sign_a == sign_b,
            np.maximum(magnitude_a, magnitude_b) - np.minimum(magnitude_a, magnitude_b),
            magnitude_a + magnitude_b,
        )
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(wide_a) & np.isfinite(wide_b)
    same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
    return np.where(same, NO_DISTANCE, np.where(finite, between, FAR))


def _parts(array: Array) -> tuple[Array, ...]:
    return (array.real, array.imag) if array.dtype.kind == "c" else (array,)


def _equal(actual: Array, expected: Array) -> Array:
    """NaN equals NaN in each part; ml_dtypes and NumPy agree on `==` for everything else."""
    equal = np.ones(actual.shape, np.bool_)
    for a, b in zip(_parts(actual), _parts(expected), strict=True):
        equal &= (a == b) | ((a != a) & (b != b))
    return equal


def _same_layout(name: str, actual: Array, expected: Array) -> None:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise RunError(
            f"{name}: the types differ",
            expected=f"{expected.dtype}{list(expected.shape)}",
            got=f"{actual.dtype}{list(actual.shape)}",
        )


def _refuse(
    name: str, wrong: Array, distance: Array, actual: Array, expected: Array, bound: str, element: ElementType
) -> None:
    worst = np.unravel_index(int(np.argmax(np.where(wrong, distance, -1.0))), wrong.shape)
    index = [int(i) for i in worst]
    raise RunError(
        f"{name}: {int(wrong.sum())} of {wrong.size} elements of {element} differ, the worst at {index}",
        expected=f"{expected[worst]}{bound}",
        got=f"{actual[worst]}",
    )


# ---- check.* ----


def _two_equal_types(call: Call) -> Sequence[Type]:
    call.same_shape(call.shape(0), call.shape(1), "", "the compared values have different types")
    return []


def _two_floats(call: Call) -> Sequence[Type]:
    _require_float(call)
    return _two_equal_types(call)


def _two_close_floats(call: Call) -> Sequence[Type]:
    for name in ("min_ulp_difference", "max_ulp_difference"):
        call.require(0 <= call.attrs[name] < 2**64, "", f"{name} is no ui64", got=call.attrs[name])
    return _two_floats(call)


def _require_float(call: Call) -> None:
    element = call.shape(0).dtype
    call.require(
        element.is_float or element.is_complex, "", "only floats are almost equal", expected="floats", got=element
    )


def _with_constant(call: Call) -> Sequence[Type]:
    call.same_shape(call.shape(0), call.attrs["value"].shape, "", "the expected value has another type")
    return []


def _float_with_constant(call: Call) -> Sequence[Type]:
    _require_float(call)
    return _with_constant(call)


def _nothing(call: Call) -> Sequence[Type]:
    call.shape(0)
    return []


def _element(op: Op) -> ElementType:
    return op.operands[0].shape.dtype


def _eq(_: Frame, op: Op, actual: Array, expected: Array) -> tuple[()]:
    expect_eq(op.name, actual, expected, _element(op))
    return ()


def _eq_const(_: Frame, op: Op, actual: Array) -> tuple[()]:
    expect_eq(op.name, actual, op.attrs["value"].array, _element(op))
    return ()


def _almost_eq(_: Frame, op: Op, actual: Array, expected: Array) -> tuple[()]:
    expect_almost_eq(op.name, actual, expected, _element(op), op.attrs["tolerance"])
    return ()


def _almost_eq_const(_: Frame, op: Op, actual: Array) -> tuple[()]:
    expect_almost_eq(op.name, actual, op.attrs["value"].array, _element(op), op.attrs["tolerance"])
    return ()


def _close(_: Frame, op: Op, actual: Array, expected: Array) -> tuple[()]:
    attrs = op.attrs
    expect_close(op.name, actual, expected, _element(op), attrs["min_ulp_difference"], attrs["max_ulp_difference"])
    return ()


def _serialized_eq(frame: Frame, op: Op, expected: Array) -> tuple[()]:
    kept: Sequence[Array] = frame.world.probes.get(op.attrs["probe_id"], ())
    turn = op.attrs.get("iteration", op.attrs["iter"])
    if not 0 <= turn < len(kept):
        raise RunError(
            f"{op.name}: the probe {op.attrs['probe_id']!r} kept too little",
            expected=f"iteration {turn}",
            got=f"{len(kept)} of them",
        )
    expect_eq(op.name, kept[turn], expected, _element(op))
    return ()


# ---- interpreter.* ----


def _infer_parallel(call: Call) -> Sequence[Type]:
    programs: tuple[tuple[str, ...], ...] = call.attrs["programs"]
    call.require(bool(programs) and bool(programs[0]), "", "there is no program to run", got=programs)
    columns = {len(row) for row in programs}
    call.require(len(columns) == 1, "", "every replica needs the same number of partitions", got=sorted(columns))
    types = [value.type for value in call.operands]
    results: list[Type] = []
    at = 0
    for name in (name for row in programs for name in row):
        signature = call.signatures.get(name)
        if signature is None:
            call.fail("", f"no function @{name}", expected="one of " + ", ".join(call.signatures), got=f"@{name}")
        count = len(signature.inputs)
        declared = (
            None if call.declared is None else call.declared[len(results) : len(results) + len(signature.results)]
        )
        results += call_types(call, name, types[at : at + count], declared, "")
        at += count
    call.require(at == len(types), "", "wrong number of inputs for all programs", expected=at, got=len(types))
    for name in call.attrs.get("infeed", ()):
        feed = call_types(call, name, (), None, "")
        call.require(len(feed) == 1 and isinstance(feed[0], Shape), "", f"@{name} must give one tensor", got=feed)
    return results


def _run_parallel(frame: Frame, op: Op, *inputs: Any) -> Generator[Exchange, Any, tuple[Any, ...]]:
    infeed = []
    for name in op.attrs.get("infeed", ()):
        infeed.append((yield from frame.invoke(frame.program.func(name))))
    grid = []
    at = 0
    for row in op.attrs["programs"]:
        funcs = [frame.program.func(name) for name in row]
        cells = []
        for func in funcs:
            cells.append((func, inputs[at : at + len(func.args)]))
            at += len(func.args)
        grid.append(cells)
    done = frame.world.parallel(grid, infeed)
    return tuple(value for row in done for results in row for value in results)


def _probe(frame: Frame, op: Op, value: Array) -> Array:
    frame.world.probes.setdefault(op.attrs["probe_id"], []).append(value)
    return value


def _print(_: Frame, op: Op, value: Array) -> tuple[()]:
    """Print to stderr: stdout belongs to the application."""
    text = np.array2string(value, separator=", ", threshold=1 << 20, floatmode="unique")
    print(f"{op.operands[0].type} {{\n{text}\n}}", file=sys.stderr)
    return ()


def _same(call: Call) -> Sequence[Type]:
    return [call.shape(0)]


def _check(name: str, operands: str, infer: Any, evaluate: Any, *attrs: Attr) -> OpDef:
    return OpDef(f"check.{name}", operands, infer, evaluate, attrs, effect=True)


_VALUE = Attr("value", CONSTANT)
_TOLERANCE = Attr("tolerance", FLOAT64, 1e-4)
_PROBE = Attr("probe_id", STRING)

ROWS: list[OpDef] = [
    _check("expect_eq", "lhs rhs", _two_equal_types, _eq),
    _check("expect_eq_const", "lhs", _with_constant, _eq_const, _VALUE),
    _check("expect_almost_eq", "lhs rhs", _two_floats, _almost_eq, _TOLERANCE),
    _check("expect_almost_eq_const", "lhs", _float_with_constant, _almost_eq_const, _VALUE, _TOLERANCE),
    _check(
        "expect_close",
        "actual expected",
        _two_close_floats,
        _close,
        Attr("max_ulp_difference", UINT64, 3),
        Attr("min_ulp_difference", UINT64, 0),
    ),
    _check(
        "expect_serialized_eq",
        "expected",
        _nothing,
        _serialized_eq,
        _PROBE,
        Attr("iter", UINT32, 0),
        Attr("iteration", UINT32, None),
    ),
    OpDef(
        "interpreter.run_parallel",
        "inputs*",
        _infer_parallel,
        _run_parallel,
        (Attr("programs", array_of(array_of(SYMBOL))), Attr("infeed", array_of(SYMBOL), None)),
        effect=True,
    ),
    OpDef("interpreter.print", "operand", _nothing, _print, effect=True),
    OpDef("interpreter.probe", "operand", _same, _probe, (_PROBE,), effect=True),
]
