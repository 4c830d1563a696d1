"""The identity elements of the functions that a `Fold` reduces by."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from smelt.dtype import DType, integer_range
from smelt.kernel.loops.grammar import Number


def identity(function: str, dtype: DType) -> Number:
    """The identity element."""
    match function:
        case "add":
            return Number(-0.0 if dtype.is_float else 0, dtype)
        case "or" | "xor":
            return Number(0, dtype)
        case "multiply":
            return Number(1, dtype)
        case "and":
            return Number(integer_range(dtype)[1] if dtype.kind in ("bool", "uint") else -1, dtype)
    largest = function == "minimum"
    if dtype.is_float:
        if np.isinf(np.asarray(np.inf).astype(dtype.numpy).astype(np.float64)):
            return Number(np.inf if largest else -np.inf, dtype)
        info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        return Number(float(info.max if largest else info.min), dtype)
    return Number(integer_range(dtype)[1 if largest else 0], dtype)
