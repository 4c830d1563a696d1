"""Arithmetic on tensors that are known at import, element by element, where elements may be sizes with symbols.

`fold(fn, element, *tensors)` returns a known tensor or None; operators call it before they emit ops. Only small tensors
of integers, booleans and sizes are folded; other constants become part of the program.
`move_known(tensor, fn)` does the same where elements only change places.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor
from typing import Any

import numpy as np

from smelt.dim import Poly, Size, at_most, divide_exact, floordiv, maximum, minimum, mod, product
from smelt.dtype import Array, DType, integer_range
from smelt.errors import ShapeError
from smelt.read.onnx.items import Tensor

_MOST = 1024  # elements
SMALL = 4096  # elements of a known tensor that is still moved around at import

Known = Size | float | bool


def fold(fn: Callable[..., Any], element: DType, *tensors: Tensor) -> Tensor | None:
    """The result of an elementwise function, if all its operands are known and so is each element of it."""
    if any(tensor.known is None for tensor in tensors):
        return None
    symbolic = any(tensor.is_symbolic for tensor in tensors)
    if not symbolic and any(tensor.element.is_float or tensor.element.is_complex for tensor in tensors):
        return None
    arrays = [tensor.known.astype(object) for tensor in tensors if tensor.known is not None]
    try:
        spread = np.broadcast_arrays(*arrays)
    except ValueError:
        return None
    if spread[0].size > _MOST:
        return None
    flat = []
    for row in zip(*(each.reshape(-1).tolist() for each in spread), strict=True):
        found = _call(fn, row, element)
        if found is None:
            return None
        flat.append(found)
    column = np.empty(len(flat), object)
    column[:] = flat
    result = column.reshape(spread[0].shape)
    if any(isinstance(each, Poly) for each in flat):
        return Tensor.symbolic(result, element)
    return Tensor.constant(result.astype(element.numpy))


def move_known(x: Tensor, fn: Callable[[Array], Array]) -> Tensor | None:
    """A known tensor whose elements only change places; None if it is not known, or not small."""
    if x.known is None or x.known.size > SMALL:
        return None
    changed = np.asarray(fn(x.known), x.known.dtype)
    return Tensor.symbolic(changed, x.element) if x.is_symbolic else Tensor.constant(changed)


def is_small(sizes: tuple[int, ...]) -> bool:
    return product(sizes) <= SMALL


def _call(fn: Callable[..., Any], row: tuple[Any, ...], element: DType) -> Any:
    """One element; whole floats count as sizes, others end the folding where a symbol is involved."""
    if any(isinstance(each, Poly) for each in row):
        whole = [int(e) if isinstance(e, float) and e.is_integer() else e for e in row]
        if any(isinstance(each, float) for each in whole):
            return None
        row = tuple(whole)
    try:
        found = fn(*row)
    except (ShapeError, ZeroDivisionError, OverflowError, ValueError, TypeError):
        return None
    if isinstance(found, int) and element.is_integer:
        low, high = integer_range(element)
        return found if low <= found <= high else None
    return found


def divide(a: Any, b: Any) -> Any:
    """ONNX's integer division drops the fraction; of sizes it is known where nothing is negative."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else None
    if not (at_most(0, a) and at_most(0, b)) or b == 0:
        return None
    exact = divide_exact(a, b) if isinstance(b, int) else None
    return floordiv(a, b) if exact is None else exact


def divide_floats(a: Any, b: Any) -> Any:
    """A quotient of sizes that is whole."""
    return divide_exact(a, b) if isinstance(b, int) and b else None


def modulo(a: Any, b: Any) -> Any:
    return mod(a, b) if b != 0 else None


def remainder(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) % abs(b) * (-1 if a < 0 else 1) if b else None
    return mod(a, b) if at_most(0, a) and at_most(0, b) and b != 0 else None


def power(a: Any, b: Any) -> Any:
    return a**b if isinstance(b, int) and 0 <= b <= 64 else None


def absolute(a: Any) -> Any:
    if isinstance(a, Poly):
        return a if at_most(0, a) else None
    return abs(a)


def sign(a: Any) -> Any:
    if isinstance(a, Poly):
        return 1 if at_most(1, a) else None
    return (a > 0) - (a < 0)


def round_down(a: Any) -> Any:
    return a if isinstance(a, Poly) else floor(a)


def round_up(a: Any) -> Any:
    return a if isinstance(a, Poly) else ceil(a)


def larger(a: Any, b: Any) -> Any:
    return maximum(a, b)


def smaller(a: Any, b: Any) -> Any:
    return minimum(a, b)


def equal(a: Any, b: Any) -> Any:
    if a == b:
        return True
    if not isinstance(a, Poly) and not isinstance(b, Poly):
        return False
    differ = isinstance(a - b, int) or at_most(a + 1, b) or at_most(b + 1, a)
    return False if differ else None


def less(a: Any, b: Any) -> Any:
    if not isinstance(a, Poly) and not isinstance(b, Poly):
        return a < b
    if at_most(a + 1, b):
        return True
    return False if at_most(b, a) else None


def at_most_(a: Any, b: Any) -> Any:
    if not isinstance(a, Poly) and not isinstance(b, Poly):
        return a <= b
    if at_most(a, b):
        return True
    return False if at_most(b + 1, a) else None


def choose(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b
