"""Type promotion: one table, and how Python numbers and NumPy arrays get their types.

| left and right                                     | result                                           |
|----------------------------------------------------|--------------------------------------------------|
| the same type                                      | that type                                        |
| i1 and any number                                  | the number's type                                |
| two signed, or two unsigned, integers              | the wider one                                    |
| unsigned and a wider signed integer                | the signed one                                   |
| an integer and a float or complex number           | the float or complex type                        |
| bf16 or f16 and f32 or f64; f32 and f64            | the wider float                                  |
| a float of up to 32 bits and complex<f32>; any and complex<f64> | the complex type                    |
| anything else (bf16 and f16, 8-bit floats, i32 and ui32) | refused: cast one with `.to(…)`            |

A Python number takes the type of the tensor it meets: a float needs floats, an integer must fit. Nothing becomes f64
unless an operand is f64 already; integers are never divided with `/`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.dtype import DTYPES, Array, DType, bf16, c64, c128, dtype, f16, f32, f64, i1, i32, integer_range
from smelt.errors import ShapeError
from smelt.tensor.source import Operand, refuse

_WIDER_FLOATS = {(a.name, b.name) for a, b in ((bf16, f32), (f16, f32), (bf16, f64), (f16, f64), (f32, f64))}
_COMPLEX_OF = {(a.name, c64.name) for a in (bf16, f16, f32)} | {(a.name, c128.name) for a in (bf16, f16, f32, f64, c64)}


def _promote_pair(a: DType, b: DType) -> DType | None:
    """The type to which `a` is promoted beside `b`; None where it is not."""
    if a.kind == "bool":
        return b if b.kind != "bool" else None
    if a.is_integer:
        if b.is_float or b.is_complex:
            return b if b.bits >= 16 else None
        if b.is_integer and a.bits < b.bits and (a.kind == b.kind or a.kind == "uint"):
            return b
        return None
    return b if (a.name, b.name) in _WIDER_FLOATS | _COMPLEX_OF else None


PROMOTION: dict[tuple[DType, DType], DType] = {
    (a, b): to
    for a in DTYPES.values()
    for b in DTYPES.values()
    if (to := a if a is b else _promote_pair(a, b) or _promote_pair(b, a)) is not None
}


def promote(what: str, *operands: Operand) -> DType:
    """The common element type of operands."""
    first, *others = (operand.shape.element for operand in operands)
    for other in others:
        if other is first:
            continue
        found = PROMOTION.get((first, other))
        if found is None:
            refuse(
                f"{what}: {first} and {other} do not mix",
                *operands,
                remedy=f'cast one: .to("{_suggest_type(first, other)}")',
            )
        first = found
    return first


def _suggest_type(a: DType, b: DType) -> DType:
    if a.is_float and b.is_float:
        return f32
    return max(a, b, key=lambda each: (each.kind == "int", each.bits))


def python_number(what: str, value: Any, beside: Operand) -> DType:
    """The type that a Python number takes beside a tensor."""
    element = beside.shape.element
    if isinstance(value, bool):
        return element
    if isinstance(value, int):
        if element.is_integer:
            low, high = integer_range(element)
            if not low <= value <= high:
                refuse(
                    f"{what}: {value} does not fit {element}", beside, remedy="cast the tensor to a wider type first"
                )
        elif element.kind == "bool":
            refuse(
                f"{what}: the number {value} does not mix with booleans", beside, remedy='cast them first: .to("i32")'
            )
        return element
    if isinstance(value, float) and not (element.is_float or element.is_complex):
        refuse(
            f"{what}: the float {value} does not mix with {element}", beside, remedy='cast the tensor first: .to("f32")'
        )
    if isinstance(value, complex) and not isinstance(value, float) and not element.is_complex:
        refuse(
            f"{what}: a complex number does not mix with {element}", beside, remedy='cast the tensor first: .to("c64")'
        )
    return element


def default_type(value: Any) -> DType:
    """The type of Python data on its own: f32, i32, i1 or complex<f32>."""
    kind = np.asarray(value).dtype.kind
    found = {"f": f32, "i": i32, "u": i32, "b": i1, "c": c64}.get(kind)
    if found is None:
        raise ShapeError("not numbers", expected="numbers, or nested lists of them", got=repr(value)[:80])
    return found


def as_array(data: Any, element: str | DType | None) -> tuple[Array, DType]:
    """Data as an array and its element type. Arrays keep their type; Python numbers get the default one."""
    wanted = None if element is None else dtype(element)
    if isinstance(data, np.ndarray | np.generic) or (hasattr(data, "__array__") and hasattr(data, "dtype")):
        array = np.asarray(data)
    elif hasattr(data, "__dlpack__"):
        array = np.from_dlpack(data)
    else:
        wanted = wanted or default_type(data)
        exact = np.asarray(data)
        array = exact.astype(wanted.numpy)
        if wanted.is_integer and exact.size and not np.array_equal(array.astype(exact.dtype), exact):
            raise ShapeError(f"the data does not fit {wanted}", got=repr(data)[:80], remedy="name a wider type")
    found = wanted or dtype(array.dtype)
    return (array if array.dtype == found.numpy else array.astype(found.numpy)), found
