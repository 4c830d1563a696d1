"""JAX's LAPACK custom calls (`lapack_sgetrf_ffi`, …): what they take, and the types of what they give.

`ir.lapack` says how each is computed, in StableHLO ops; the reference interprets those, other engines take them through
`passes.lower_custom_calls`. Registered in `dynamic.CALLED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from smelt.dim import Size
from smelt.dtype import Array, DType, c64, c128, complex_of, dtype, f32, f64, i32
from smelt.ir.attributes import Dict, Int
from smelt.ir.core import Func, Op, Type
from smelt.ir.ops.definition import Call, Frame
from smelt.shape import Shape

ELEMENTS = {"s": f32, "d": f64, "c": c64, "z": c128}
_NAME = re.compile(r"lapack_([sdcz])(\w+)_ffi")
Sizes = tuple[Size, ...]


def routine_of(target: str) -> tuple[str, DType] | None:
    """The routine behind a target, under its real name, and its element type; None for what we do not compute."""
    found = _NAME.fullmatch(target)
    if found is None:
        return None
    element = ELEMENTS[found[1]]
    name = found[2]
    if element.is_complex:
        name = "" if name in COMPLEX.values() else COMPLEX.get(name, name)
    return (name, element) if name in ROUTINES else None


COMPLEX = {"ungqr": "orgqr", "unmqr": "ormqr", "heevd": "syevd", "hetrd": "sytrd"}  # other names for complex numbers


def options(attrs: Any) -> dict[str, int]:
    """The numbers and letters (as codes) of a call's configuration."""
    config = attrs.get("mhlo.backend_config") or attrs.get("backend_config")
    if not isinstance(config, Dict):
        return {}
    return {name: value.value if isinstance(value, Int) else value for name, value in config.items}


class _Types:
    """The operands of a call, which must fit the routine; makes the types of results."""

    def __init__(self, call: Call, element: DType, *ranks: int) -> None:
        self.call, self.element = call, element
        shapes = call.shapes
        # JAX adds operands that say the results' sizes, where these are symbolic.
        call.require(len(shapes) >= len(ranks), "", "too few operands", expected=len(ranks), got=len(shapes))
        self.batch: Sizes = tuple(shapes[0].sizes[: max(shapes[0].rank - ranks[0], 0)])
        self.own: list[Sizes] = []
        for i, (shape, rank) in enumerate(zip(shapes, ranks, strict=False)):
            call.require(
                shape.rank == rank + len(self.batch),
                "",
                f"the rank of operand {i}",
                expected=f"{rank} and a batch",
                got=shape,
            )
            if shape.dtype not in (element, i32):
                call.fail("", f"the element type of operand {i}", expected=element, got=shape)
            call.same_sizes(self.batch, shape.sizes[: len(self.batch)], "", "the operands' batches differ")
            sizes = shape.sizes[len(self.batch) :]
            call.require(
                all(isinstance(size, int) for size in sizes), "", "the sizes of a matrix must be numbers", got=shape
            )
            self.own.append(tuple(sizes))

    def square(self) -> Size:
        rows, columns = self.own[0]
        self.call.require(rows == columns, "", "the matrix must be square", got=self.call.shape(0))
        return rows

    def of(self, *sizes: Size, dtype: DType | None = None) -> Shape:
        return Shape.of(dtype or self.element, (*self.batch, *sizes))

    @property
    def info(self) -> Shape:
        return self.of(dtype=i32)


def _least(sizes: Sizes) -> int:
    assert all(isinstance(size, int) for size in sizes)
    return min(int(size) for size in sizes)  # type: ignore[arg-type]


def _getrf(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2)
    return [t.of(*t.own[0]), t.of(_least(t.own[0]), dtype=i32), t.info]


def _potrf(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2)
    t.square()
    return [t.of(*t.own[0]), t.info]


def _trsm(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2, 2)
    side = 0 if chr(options(call.attrs).get("side", 0)) == "L" else 1
    call.same_size(t.square(), t.own[1][side], "", "the matrix does not fit what it is divided into")
    return [t.of(*t.own[1])]


def _geqrf(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2)
    return [t.of(*t.own[0]), t.of(_least(t.own[0]))]


def _geqp3(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2, 1)
    call.same_size(t.own[0][1], t.own[1][0], "", "there must be one mark for each column")
    return [t.of(*t.own[0]), t.of(*t.own[1], dtype=i32), t.of(_least(t.own[0]))]


def _orgqr(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2, 1)
    (rows, columns), (count,) = t.own[:2]
    fits = int(count) <= int(columns) <= int(rows)  # type: ignore[arg-type]
    call.require(fits, "", "there must be at most as many reflectors as columns, and columns as rows", got=t.own)
    return [t.of(*t.own[0])]


def _ormqr(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2, 1, 2)
    (rows, columns), (count,), target = t.own[:3]
    side = 0 if _is_left(call) else 1
    call.same_size(rows, target[side], "", "the reflectors do not fit what they are applied to")
    fits = int(count) <= min(int(columns), int(rows))  # type: ignore[arg-type]
    call.require(fits, "", "there must be at most as many reflectors as rows and columns", got=t.own)
    return [t.of(*target)]


def _is_left(call: Call) -> bool:
    given = options(call.attrs)
    return bool(given["left"]) if "left" in given else chr(given.get("side", 76)) == "L"


def _syevd(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2)
    return [t.of(*t.own[0]), t.of(t.square(), dtype=element.part), t.info]


def _gesdd(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2)
    rows, columns = t.own[0]
    least = _least(t.own[0])
    full = chr(options(call.attrs).get("mode", 0)) != "S"
    declared = call.declared or ()
    if not full or chr(options(call.attrs).get("mode", 0)) == "A" or len(declared) != 5:
        left, right = (rows, columns) if full else (least, least)
    else:  # without vectors the sizes of U and V are JAX's own affair
        left, right = call.declared_shape(2).sizes[-1], call.declared_shape(3).sizes[-2]
    return [
        t.of(*t.own[0]),
        t.of(least, dtype=element.part),
        t.of(rows, left),
        t.of(right, columns),
        t.info,
    ]


def _geev(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2)
    n = t.square()
    kind = element if element.is_complex else complex_of(element)
    values = [t.of(n)] if element.is_complex else [t.of(n), t.of(n)]
    return [*values, t.of(n, n, dtype=kind), t.of(n, n, dtype=kind), t.info]


def _gees(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2)
    n = t.square()
    values = [t.of(n)] if element.is_complex else [t.of(n), t.of(n)]
    return [t.of(n, n), t.of(n, n), *values, t.info, t.info]


def _gehrd(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2)
    n = t.square()
    given = options(call.attrs)
    assert isinstance(n, int)
    low, high = given.get("low", 1), given.get("high", n)
    if not 1 <= low <= max(high, 1) <= max(n, 1):
        call.fail("", "low and high must be within the matrix", expected=f"1 to {n}", got=f"{low}, {high}")
    return [t.of(n, n), t.of(_less(n)), t.info]


def _sytrd(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 2)
    n = t.square()
    part = element.part
    return [t.of(n, n), t.of(n, dtype=part), t.of(_less(n), dtype=part), t.of(_less(n)), t.info]


def _less(n: Size) -> int:
    assert isinstance(n, int)
    return max(n - 1, 0)


def _gtsv(call: Call, element: DType) -> list[Type]:
    t = _Types(call, element, 1, 1, 1, 2)
    for i in (0, 1, 2):
        call.same_size(t.own[3][0], t.own[i][0], "", "diagonals and right side must have the same length")
    line = t.of(*t.own[0])
    return [line, line, line, t.of(*t.own[3]), t.info]


ROUTINES: dict[str, Callable[[Call, DType], list[Type]]] = {
    "getrf": _getrf,
    "potrf": _potrf,
    "trsm": _trsm,
    "geqrf": _geqrf,
    "geqp3": _geqp3,
    "orgqr": _orgqr,
    "ormqr": _ormqr,
    "syevd": _syevd,
    "gesdd": _gesdd,
    "geev": _geev,
    "gees": _gees,
    "gehrd": _gehrd,
    "sytrd": _sytrd,
    "gtsv": _gtsv,
}


def infer_lapack(call: Call) -> list[Type]:
    found = routine_of(call.attrs["call_target_name"])
    assert found is not None
    return ROUTINES[found[0]](call, found[1])


def eval_lapack(frame: Frame, op: Op, *operands: Array) -> tuple[Array, ...]:
    """The ops that compute it, interpreted."""
    types = tuple(Shape.of(dtype(array.dtype), array.shape) for array in operands)
    attrs = tuple(sorted(options(op.attrs).items()))
    func: Func = frame.world.expand(op.attrs["call_target_name"], types, attrs)
    return frame.call(func.body, *operands)


TARGETS: Sequence[str] = [
    f"lapack_{letter}{name}_ffi"
    for letter in "sdcz"
    for name in (*ROUTINES, *COMPLEX)
    if routine_of(f"lapack_{letter}{name}_ffi") is not None
]
