"""Element types: every type of the StableHLO specification, on NumPy and ml_dtypes.

`dtype("bf16")` gives the one `DType` record of that name; `Quantized` describes `!quant.uniform` element types.
Names are MLIR's. Everything else in the package compares element types by these records, never by NumPy's.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import numpy as np

from smelt.errors import ShapeError
from smelt.frozen import Frozen

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["bool", "int", "uint", "float", "complex"]


class DType:
    """One element type. `bits` is the width the specification gives it; NumPy may store it wider.

    There is one record of each. Those that NumPy lacks name their type in ml_dtypes, which is imported for it.
    """

    __slots__ = ("_stored", "bits", "kind", "name", "numpy")

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any]
    _stored: type | str

    def __init__(self, name: str, kind: Kind, bits: int, stored: type | str) -> None:
        put = object.__setattr__
        put(self, "name", name)
        put(self, "kind", kind)
        put(self, "bits", bits)
        put(self, "_stored", stored)
        if isinstance(stored, type):
            put(self, "numpy", np.dtype(stored))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The slot `numpy`, where it is still empty."""
            if name != "numpy":
                raise AttributeError(f"a DType has no {name!r}", name=name, obj=self)
            import ml_dtypes

            found = np.dtype(getattr(ml_dtypes, self._stored))
            object.__setattr__(self, "numpy", found)
            return found

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a DType is immutable: cannot set {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)

    def __repr__(self) -> str:
        return f"DType({self.name!r})"

    def __str__(self) -> str:
        return self.name

    @property
    def is_native(self) -> bool:
        """Whether NumPy has this type by itself."""
        return isinstance(self._stored, type)

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


class Quantized(Frozen):
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

    @property
    def kind(self) -> Literal["quantized"]:
        return "quantized"

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


_ROWS = (
    DType("i1", "bool", 1, np.bool_),
    DType("i2", "int", 2, "int2"),
    DType("i4", "int", 4, "int4"),
    DType("i8", "int", 8, np.int8),
    DType("i16", "int", 16, np.int16),
    DType("i32", "int", 32, np.int32),
    DType("i64", "int", 64, np.int64),
    DType("index", "int", 64, np.int64),
    DType("ui2", "uint", 2, "uint2"),
    DType("ui4", "uint", 4, "uint4"),
    DType("ui8", "uint", 8, np.uint8),
    DType("ui16", "uint", 16, np.uint16),
    DType("ui32", "uint", 32, np.uint32),
    DType("ui64", "uint", 64, np.uint64),
    DType("f4E2M1FN", "float", 4, "float4_e2m1fn"),
    DType("f6E2M3FN", "float", 6, "float6_e2m3fn"),
    DType("f6E3M2FN", "float", 6, "float6_e3m2fn"),
    DType("f8E3M4", "float", 8, "float8_e3m4"),
    DType("f8E4M3", "float", 8, "float8_e4m3"),
    DType("f8E4M3FN", "float", 8, "float8_e4m3fn"),
    DType("f8E4M3FNUZ", "float", 8, "float8_e4m3fnuz"),
    DType("f8E4M3B11FNUZ", "float", 8, "float8_e4m3b11fnuz"),
    DType("f8E5M2", "float", 8, "float8_e5m2"),
    DType("f8E5M2FNUZ", "float", 8, "float8_e5m2fnuz"),
    DType("f8E8M0FNU", "float", 8, "float8_e8m0fnu"),
    DType("bf16", "float", 16, "bfloat16"),
    DType("f16", "float", 16, np.float16),
    DType("f32", "float", 32, np.float32),
    DType("f64", "float", 64, np.float64),
    DType("complex<f32>", "complex", 64, np.complex64),
    DType("complex<f64>", "complex", 128, np.complex128),
)

DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
_ALIASES = {"bool": "i1", "c64": "complex<f32>", "c128": "complex<f64>"} | {
    f"u{n}": f"ui{n}" for n in (2, 4, 8, 16, 32, 64)
}
_BY_NUMPY = {row.numpy: row for row in _ROWS if row.is_native and row.name != "index"}
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
    found = _of_numpy(_BY_NUMPY, which) or _of_numpy(_by_any_numpy(), which)
    if found is None:
        raise ShapeError(
            "unknown element type", expected="one of " + ", ".join(DTYPES), got=repr(which), remedy="cast it first"
        )
    return found


def _of_numpy(known: dict[np.dtype[Any], DType], which: npt.DTypeLike) -> DType | None:
    try:
        return known.get(np.dtype(which))
    except TypeError:
        return None


@cache
def _by_any_numpy() -> dict[np.dtype[Any], DType]:
    """Of ml_dtypes' types as well, whose names NumPy knows once that package is imported."""
    return {row.numpy: row for row in _ROWS if row.name != "index"}


def integer_range(of: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer or boolean type."""
    if of.kind == "int":
        return -(1 << (of.bits - 1)), (1 << (of.bits - 1)) - 1
    return 0, (1 << of.bits) - 1


def complex_of(part: DType) -> DType:
    """The complex type whose parts are `part`."""
    return DTYPES[f"complex<{part.name}>"]
