"""onnxruntime as an oracle: a session whose int8 products are exact on every processor.

Its u8 × s8 kernels add pairs of products in 16 bits, saturating, where a processor has AVX2 or AVX-512 and no VNNI;
u8 × u8 and s8 × s8 are exact everywhere. So int8 weights beside uint8 become uint8 here, offset by 128 together with
their zero point: the same products. (Its own setting, `session.x64quantprecision`, moves constants alone.) Nothing is
fused from DequantizeLinear: such products are of floats, as the file says.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

# Operator → the position of its activations' zero point, and those of its weights and their zero points. Operators
# without the first quantise floats to uint8 themselves.
PRODUCTS: dict[str, tuple[int | None, tuple[tuple[int, int], ...]]] = {
    "MatMulInteger": (2, ((1, 3),)),
    "ConvInteger": (2, ((1, 3),)),
    "QLinearMatMul": (2, ((3, 5),)),
    "QLinearConv": (2, ((3, 5),)),
    "QGemm": (2, ((3, 5),)),
    "MatMulIntegerToFloat": (4, ((1, 5),)),
    "QAttention": (6, ((1, 7),)),
    "DynamicQuantizeMatMul": (None, ((1, 3),)),
    "DynamicQuantizeLSTM": (None, ((1, 9), (2, 11))),
}


def session(model: ModelProto | bytes | str | PathLike[str], options: Any = None) -> Any:
    """An `onnxruntime.InferenceSession` on the CPU for a model or its file."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = options or onnxruntime.SessionOptions()
    if isinstance(model, bytes):
        model = onnx.load_from_string(model)
    path = None
    if not isinstance(model, ModelProto):
        path = str(model)
        model = onnx.load(path, load_external_data=False)
    used = {node.op_type for node in model.graph.node}
    if "DequantizeLinear" in used:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if path and not used & PRODUCTS.keys():  # weights in files of their own are found beside the path
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    if path:
        model = onnx.load(path)
    data = widen_weights(model).SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def widen_weights(model: ModelProto) -> ModelProto:
    """The model with uint8 weights in place of int8 ones wherever the other operand is uint8."""
    if not any(node.op_type in PRODUCTS for node in model.graph.node):
        return model
    model = onnx.shape_inference.infer_shapes(model)
    graph = model.graph
    constants = {each.name: each for each in graph.initializer}
    types = {each.name: each.type.tensor_type.elem_type for each in (*graph.value_info, *graph.input)}
    types |= {name: each.data_type for name, each in constants.items()}
    moved: dict[str, str] = {}
    nodes: list[NodeProto] = []

    def hold(name: str, array: Any) -> str:
        if name not in constants:
            constants[name] = numpy_helper.from_array(array, name)
            graph.initializer.append(constants[name])
        return name

    def move(name: str) -> str:
        """The name of a tensor with 128 added, in uint8; no tensor stands for zeros."""
        if not name:
            return hold("exact.zero", np.uint8(128))
        if name not in moved:
            moved[name] = f"{name}.exact"
            if name in constants:
                array = numpy_helper.to_array(constants[name]).astype(np.int32) + 128
                hold(moved[name], array.astype(np.uint8))
            else:
                nodes.extend(_add_128(name, moved[name], hold))
        return moved[name]

    def is_int8(node: NodeProto, position: int | None) -> bool:
        given = position is not None and position < len(node.input)
        return given and types.get(node.input[position]) == TensorProto.INT8

    for node in graph.node:
        zero_point, operands = PRODUCTS.get(node.op_type, (None, ()))
        for weight, zero in operands:
            if is_int8(node, 0) or is_int8(node, zero_point) or not is_int8(node, weight):
                continue
            node.input.extend([""] * (zero + 1 - len(node.input)))
            node.input[weight], node.input[zero] = move(node.input[weight]), move(node.input[zero])
        nodes.append(node)
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    del graph.value_info[:]
    graph.node.extend(kept)
    return model


def _add_128(name: str, result: str, hold: Callable[[str, Any], str]) -> list[NodeProto]:
    offset = hold("exact.128", np.int32(128))
    return [
        helper.make_node("Cast", [name], [f"{result}.wide"], to=TensorProto.INT32),
        helper.make_node("Add", [f"{result}.wide", offset], [f"{result}.sum"]),
        helper.make_node("Cast", [f"{result}.sum"], [result], to=TensorProto.UINT8),
    ]
