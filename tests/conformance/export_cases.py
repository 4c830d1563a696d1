"""StableHLO test programs as ONNX models in onnxruntime: what `smelt.write.onnx` writes, against their own checks.

    python tests/conformance/stablehlo.py DIR --engine tests/conformance/export_cases.py:run_exported

Constants are arguments, so that nothing is folded away. `stablehlo.py` calls it in worker processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.errors import UnsupportedError
from smelt.ir.core import Program
from smelt.write.onnx import build, to_model
from tests.conformance.native_cases import recast


def run_exported(program: Program, name: str, args: Sequence[Array], allowance: int = 0) -> Sequence[Array]:
    """One function alone; gives its results, or raises at the first check that does not hold.

    `allowance`: ULP that onnxruntime may differ by more than a check says.
    """
    import onnx
    import onnxruntime

    each = replace(recast(program, name, args), allowance=allowance)
    if not each.program.main.results:
        return each.judge([])
    model, _ = to_model(build(each.program, simplify=False), {})
    onnx.checker.check_model(model, full_check=True)
    names = [_readable(model, port) for port in list(model.graph.output)]
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {port.name: _value(_open(array), port) for array, port in zip(each.inputs, model.graph.input, strict=True)}
    outputs = session.run_with_ort_values(names, feed)
    types = [value.shape.dtype.numpy for value in each.program.main.results]
    return each.judge([_close(np.asarray(value.numpy()), kind) for value, kind in zip(outputs, types, strict=True)])


def _open(array: Array) -> Array:
    """Complex numbers with their parts along a last axis, as the model takes them."""
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


def _close(array: Array, kind: Any) -> Array:
    if np.dtype(kind).kind != "c":
        return array.astype(kind)
    whole = np.empty(array.shape[:-1], kind)
    whole.real, whole.imag = array[..., 0], array[..., 1]
    return whole


def _readable(model: Any, port: Any) -> str:
    """The name of an output that NumPy can hold: a Cast of one that it cannot, which loses nothing."""
    from onnx import TensorProto, helper

    number = port.type.tensor_type.elem_type
    if number in _NATIVE:
        return str(port.name)
    to = TensorProto.INT8 if number in (TensorProto.INT4, TensorProto.UINT4) else TensorProto.FLOAT
    name = f"{port.name}_readable"
    model.graph.node.append(helper.make_node("Cast", [port.name], [name], to=to))
    model.graph.output.append(helper.make_tensor_value_info(name, to, None))
    return name


def _value(array: Array, port: Any) -> Any:
    from onnxruntime import OrtValue

    array, number = np.array(array, order="C"), port.type.tensor_type.elem_type
    if number in _NATIVE:
        return OrtValue.ortvalue_from_numpy(array)
    if array.dtype.name.endswith("int4"):
        raise UnsupportedError("onnxruntime takes no arrays of 4 bits")
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(f"u{array.itemsize}"), number)


_NATIVE = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13})  # of TensorProto.DataType
