"""OrtValue and OrtDevice: tensors that a session takes and gives without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.buffer import Buffer, HostBuffer, as_array
from smelt.dtype import Array, DType, dtype
from smelt.engine import platform
from smelt.engine_api import Port
from smelt.errors import RunError, ShapeError

# onnxruntime's spelling of element types.
_TYPES = {
    "i1": "bool",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float",
    "f64": "double",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
} | {
    f"{ours}{bits}": f"{theirs}{bits}"
    for ours, theirs in (("i", "int"), ("ui", "uint"))
    for bits in (2, 4, 8, 16, 32, 64)
}


def type_of(element: object) -> str:
    """`tensor(float)` for f32."""
    name = _TYPES.get(element.name, element.name.lower()) if isinstance(element, DType) else str(element)
    return f"tensor({name})"


def type_of_port(port: Port) -> str:
    """A port's type: strings and maps are numbers with a table in smelt."""
    if port.keys:
        key = "string" if isinstance(port.keys[0], str) else "int64"
        return f"seq(map({key},{type_of(port.shape.dtype)}))"
    return "tensor(string)" if port.labels else type_of(port.shape.dtype)


class OrtDevice:
    """A device by type and number."""

    def __init__(self, device_type: str, device_id: int = 0) -> None:
        self._type, self._id = device_type.lower(), device_id

    @staticmethod
    def make(device_type: str, device_id: int = 0) -> OrtDevice:
        return OrtDevice(device_type, device_id)

    @staticmethod
    def cpu() -> int:
        return 0

    @staticmethod
    def cuda() -> int:
        return 1

    def device_type(self) -> int:
        return self.cuda() if self._type == "cuda" else self.cpu()

    def device_id(self) -> int:
        return self._id


class OrtValue:
    """A tensor in host memory or on a device."""

    def __init__(self, value: Array | Buffer, device: str = "cpu") -> None:
        self._value = value
        self._device = device

    @classmethod
    def ortvalue_from_numpy(cls, array: Array, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A view of the array's memory on the CPU, a copy on a device."""
        if device_type.lower() == "cpu":
            return cls(np.asarray(array))
        device = f"{device_type.lower()}:{device_id}" if device_id else device_type.lower()
        return cls(platform(device).put(HostBuffer.of(array)), device_type.lower())

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Any, element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A tensor of a shape, filled with zeros."""
        array: Array = np.zeros(tuple(shape), numpy_type(element_type))
        return cls.ortvalue_from_numpy(array, device_type, device_id)

    @classmethod
    def from_dlpack(cls, tensor: Any, is_bool_tensor: bool = False) -> OrtValue:
        array = np.from_dlpack(tensor)
        return cls(array.view(np.bool_) if is_bool_tensor else array)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.numpy().__dlpack_device__()

    def numpy(self) -> Array:
        return as_array(self._value)

    def data_ptr(self) -> int:
        if isinstance(self._value, np.ndarray):
            return int(self._value.ctypes.data)
        raise RunError("the address of a tensor on a device is not available", got=self._device, remedy="numpy()")

    def shape(self) -> list[int]:
        if isinstance(self._value, np.ndarray):
            return list(self._value.shape)
        return [int(str(size)) for size in self._value.shape.sizes]

    def data_type(self) -> str:
        if isinstance(self._value, np.ndarray):
            return type_of(dtype(self._value.dtype)) if self._value.dtype != object else "tensor(string)"
        return type_of(self._value.shape.dtype)

    def element_type(self) -> int:
        """The number of the element type in the ONNX standard."""
        from onnx import helper

        return int(helper.np_dtype_to_tensor_dtype(self.numpy().dtype))

    def device_name(self) -> str:
        return self._device.partition(":")[0]

    def tensor_size_in_bytes(self) -> int:
        return int(self.numpy().nbytes)

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return False

    def update_inplace(self, array: Array) -> None:
        """Overwrite the elements; shape and type stay."""
        if not isinstance(self._value, np.ndarray):
            raise RunError("a tensor on a device cannot be written", remedy="make a new OrtValue")
        if array.shape != self._value.shape or array.dtype != self._value.dtype:
            raise ShapeError(
                "the new contents do not fit",
                expected=f"{self._value.dtype}{list(self._value.shape)}",
                got=f"{array.dtype}{list(array.shape)}",
                remedy="make a new OrtValue",
            )
        np.copyto(self._value, array)


def numpy_type(element: Any) -> np.dtype[Any]:
    """NumPy's type for a NumPy type, or for a number of the ONNX standard."""
    if isinstance(element, int) and not isinstance(element, bool):
        from onnx import helper

        element = helper.tensor_dtype_to_np_dtype(element)
    found: np.dtype[Any] = np.dtype(element)
    return found
