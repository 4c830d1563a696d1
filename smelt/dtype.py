"""Element types: every type of the StableHLO specification, on NumPy and ml_dtypes.

`dtype("bf16")` gives the one `DType` record of that name; `Quantized` describes `!quant.uniform` element types.
Names are MLIR's. Everything else in the package compares element types by these records, never by NumPy's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from smelt.errors import ShapeError

Array: TypeAlias = npt.NDArray[Any]
Kind = Literal["bool", "int", "uint", "float", "complex"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. `bits` is the width the specification gives it; NumPy may store it wider."""

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned integers; booleans are not integers."""
        return self.kind in ("int", "uint")

    @property
    def part(self) -> DType:
        """The real type of a complex type; any other type itself."""
        return _PARTS.get(self.name, self)

    @property
    def wide(self) -> np.dtype[Any]:
        """The NumPy type in which the reference computes functions of this type before it rounds once."""
        match self.kind:
            case "float":
                return np.dtype(np.float64)
            case "complex":
                return np.dtype(np.complex128)
            case _:
                return self.numpy


@dataclass(frozen=True, slots=True)
class Quantized:
    """A uniform-quantised element type: integers in `storage` that stand for `(q - zero_point) * scale` in `expressed`.

    Per tensor: `axis is None` and one scale. Per axis: one scale per slice of `axis`.
    """

    storage: DType
    expressed: DType
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None
    storage_min: int
    storage_max: int

    kind: Literal["quantized"] = field(default="quantized", init=False, compare=False, repr=False)

    @property
    def name(self) -> str:
        """MLIR's spelling, without the surrounding tensor type."""
        low, high = integer_range(self.storage)
        limits = (
            "" if (low, high) == (self.storage_min, self.storage_max) else f"<{self.storage_min}:{self.storage_max}>"
        )
        pairs = [
            repr(scale) + (f":{zero}" if zero else "")
            for scale, zero in zip(self.scales, self.zero_points, strict=True)
        ]
        if self.axis is None:
            return f"!quant.uniform<{self.storage}{limits}:{self.expressed}, {pairs[0]}>"
        return f"!quant.uniform<{self.storage}{limits}:{self.expressed}:{self.axis}, {{{', '.join(pairs)}}}>"

    def __str__(self) -> str:
        return self.name

    @property
    def numpy(self) -> np.dtype[Any]:
        """What an array of this type holds: the storage integers."""
        return self.storage.numpy

    @property
    def bits(self) -> int:
        return self.storage.bits

    is_float = is_complex = is_integer = False


ElementType: TypeAlias = DType | Quantized


def _row(name: str, kind: Kind, bits: int, numpy: Any) -> DType:
    return DType(name, kind, bits, np.dtype(numpy))


_ROWS = (
    _row("i1", "bool", 1, np.bool_),
    _row("i2", "int", 2, ml_dtypes.int2),
    _row("i4", "int", 4, ml_dtypes.int4),
    _row("i8", "int", 8, np.int8),
    _row("i16", "int", 16, np.int16),
    _row("i32", "int", 32, np.int32),
    _row("i64", "int", 64, np.int64),
    _row("index", "int", 64, np.int64),
    _row("ui2", "uint", 2, ml_dtypes.uint2),
    _row("ui4", "uint", 4, ml_dtypes.uint4),
    _row("ui8", "uint", 8, np.uint8),
    _row("ui16", "uint", 16, np.uint16),
    _row("ui32", "uint", 32, np.uint32),
    _row("ui64", "uint", 64, np.uint64),
    _row("f4E2M1FN", "float", 4, ml_dtypes.float4_e2m1fn),
    _row("f6E2M3FN", "float", 6, ml_dtypes.float6_e2m3fn),
    _row("f6E3M2FN", "float", 6, ml_dtypes.float6_e3m2fn),
    _row("f8E3M4", "float", 8, ml_dtypes.float8_e3m4),
    _row("f8E4M3", "float", 8, ml_dtypes.float8_e4m3),
    _row("f8E4M3FN", "float", 8, ml_dtypes.float8_e4m3fn),
    _row("f8E4M3FNUZ", "float", 8, ml_dtypes.float8_e4m3fnuz),
    _row("f8E4M3B11FNUZ", "float", 8, ml_dtypes.float8_e4m3b11fnuz),
    _row("f8E5M2", "float", 8, ml_dtypes.float8_e5m2),
    _row("f8E5M2FNUZ", "float", 8, ml_dtypes.float8_e5m2fnuz),
    _row("f8E8M0FNU", "float", 8, ml_dtypes.float8_e8m0fnu),
    _row("bf16", "float", 16, ml_dtypes.bfloat16),
    _row("f16", "float", 16, np.float16),
    _row("f32", "float", 32, np.float32),
    _row("f64", "float", 64, np.float64),
    _row("complex<f32>", "complex", 64, np.complex64),
    _row("complex<f64>", "complex", 128, np.complex128),
)

DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
_ALIASES = {"bool": "i1", "c64": "complex<f32>", "c128": "complex<f64>"} | {
    f"u{n}": f"ui{n}" for n in (2, 4, 8, 16, 32, 64)
}
_BY_NUMPY = {row.numpy: row for row in _ROWS if row.name != "index"}
_PARTS = {"complex<f32>": DTYPES["f32"], "complex<f64>": DTYPES["f64"]}

i1, i8, i32, i64 = (DTYPES[name] for name in ("i1", "i8", "i32", "i64"))
ui8, ui32, ui64, index = (DTYPES[name] for name in ("ui8", "ui32", "ui64", "index"))
bf16, f16, f32, f64 = (DTYPES[name] for name in ("bf16", "f16", "f32", "f64"))
c64, c128 = DTYPES["complex<f32>"], DTYPES["complex<f64>"]


def dtype(which: str | DType | npt.DTypeLike) -> DType:
    """The record for a name (`"f32"`, `"bool"`, `"u8"`) or for a NumPy type.

    >>> dtype("bf16").bits, dtype("u8").name
    (16, 'ui8')
    """
    if isinstance(which, DType):
        return which
    if isinstance(which, str):
        found = DTYPES.get(_ALIASES.get(which, which))
        if found is not None:
            return found
    try:
        return _BY_NUMPY[np.dtype(which)]
    except (KeyError, TypeError):
        raise ShapeError(
            "unknown element type", expected="one of " + ", ".join(DTYPES), got=repr(which), remedy="cast it first"
        ) from None


def integer_range(of: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer or boolean type."""
    if of.kind == "int":
        return -(1 << (of.bits - 1)), (1 << (of.bits - 1)) - 1
    return 0, (1 << of.bits) - 1


def complex_of(part: DType) -> DType:
    """The complex type whose parts are `part`."""
    return DTYPES[f"complex<{part.name}>"]
