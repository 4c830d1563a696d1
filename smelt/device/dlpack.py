"""DLPack for memory of a GPU: arrays that torch, JAX, CuPy and smelt share without copies. `gpu_buffer` calls it.

Capsules hold a `DLManagedTensor` (https://dmlc.github.io/dlpack/latest/c_api.html), whose deleter drops the owner.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from smelt.dtype import DType, dtype
from smelt.errors import RunError
from smelt.frozen import Frozen

CUDA = 2  # the kind of device
NAME, USED = b"dltensor", b"used_dltensor"
CODES = {"int": 0, "uint": 1, "float": 2, "complex": 5, "bool": 6}
BFLOAT = 4


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Kind(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("kind", _Kind),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_python = ctypes.pythonapi
_new = _python["PyCapsule_New"]
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_valid = _python["PyCapsule_IsValid"]
_valid.restype, _valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_pointer = _python["PyCapsule_GetPointer"]
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
_rename = _python["PyCapsule_SetName"]
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)

_exported: dict[int, tuple[Any, ...]] = {}  # what capsules in use keep alive, by the address of the record


def _delete(address: int) -> None:
    _exported.pop(address, None)


def _drop_capsule(capsule: int) -> None:
    """A capsule that nothing has taken."""
    if _valid(capsule, NAME):
        _delete(_pointer(capsule, NAME))


_DELETE, _DROP = _Deleter(_delete), _Deleter(_drop_capsule)


def export_array(address: int, sizes: tuple[int, ...], element: DType, number: int, owner: object) -> Any:
    """A capsule of a row-major array on the device of this number; `owner` lives as long as it is used."""
    if element.name != "bf16" and element.kind not in CODES:
        raise RunError(f"DLPack has no type for {element}", remedy="convert it first")
    code = BFLOAT if element.name == "bf16" else CODES[element.kind]
    bits = 8 * element.numpy.itemsize
    shape = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
    tensor = _Tensor(address, _Device(CUDA, number), len(sizes), _Kind(code, bits, 1), shape, None, 0)
    managed = _Managed(tensor, None, _DELETE)
    record = ctypes.addressof(managed)
    _exported[record] = managed, shape, owner
    return _new(record, NAME, ctypes.cast(_DROP, ctypes.c_void_p))


class Imported(Frozen):
    """An array of another library, which lives until this record is gone."""

    address: int
    sizes: tuple[int, ...]
    element: DType
    owner: Any


class _Owner:
    """Calls the deleter of a taken capsule in the end."""

    def __init__(self, record: int) -> None:
        self.record = record

    def __del__(self) -> None:
        managed = _Managed.from_address(self.record)
        if managed.deleter:
            managed.deleter(self.record)


def import_array(capsule: Any, what: str) -> Imported:
    """The array of a capsule, which is used up. RunError where it is not row-major or of no known type."""
    if not _valid(id(capsule), NAME):
        raise RunError(f"{what}: the DLPack capsule was used already", remedy="export the array again")
    record = _pointer(id(capsule), NAME)
    _rename(capsule, USED)
    owner, tensor = _Owner(record), _Managed.from_address(record).tensor
    sizes = tuple(tensor.sizes[: tensor.rank])
    if tensor.strides and math.prod(sizes) and tuple(tensor.strides[: tensor.rank]) != _row_major(sizes):
        raise RunError(f"{what} is not contiguous", expected="rows one after another", remedy=".contiguous()")
    return Imported((tensor.data or 0) + tensor.offset, sizes, _element(tensor.kind, what), owner)


def _row_major(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def _element(kind: Any, what: str) -> DType:
    names = {0: f"i{kind.bits}", 1: f"ui{kind.bits}", 2: f"f{kind.bits}", BFLOAT: "bf16", 6: "i1"}
    names[5] = f"complex<f{kind.bits // 2}>"
    if kind.lanes != 1 or kind.code not in names:
        raise RunError(f"{what}: an element type that smelt does not know", got=f"code {kind.code}, {kind.bits} bits")
    return dtype(names[kind.code])
