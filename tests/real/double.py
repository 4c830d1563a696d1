"""An ONNX model in double precision, run by onnx's own evaluator: the truth for errors of f32 engines.

Where that evaluator rounds to f32 or departs from the specification, the operator is replaced here; accuracy.py
refuses a truth that onnxruntime does not come close to, so a mistake in a replacement shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import erf
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from smelt.dtype import Array


def run_in_double(model: ModelProto, outputs: Sequence[str], feeds: Sequence[Mapping[str, Array]]) -> list[list[Array]]:
    """The named values of a model for each feed, every f32 in it taken as f64 from its exact value on."""
    wide = ModelProto()
    wide.CopyFrom(model)
    _widen_graph(wide.graph)
    del wide.graph.output[:]
    wide.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    evaluator = ReferenceEvaluator(wide, new_ops=[BatchNormalization, Erf, GlobalMaxPool, MaxPool])
    rows = []
    for feed in feeds:
        row = evaluator.run(None, {name: _wide_array(array) for name, array in feed.items()})
        assert isinstance(row, list)
        rows.append(row)
    return rows


def _wide_array(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _widen_graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _widen_graph(attribute.g)
            elif attribute.type == AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                scalar = attribute.name == "value_float"
                array = np.array(attribute.f if scalar else attribute.floats, np.float64)
                attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(array)))
    for port in [*graph.input, *graph.output, *graph.value_info]:
        if port.type.tensor_type.elem_type == TensorProto.FLOAT:
            port.type.tensor_type.elem_type = TensorProto.DOUBLE


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


class Erf(OpRun):
    """onnx's rounds to f32."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.array([erf(value) for value in x.ravel()], x.dtype).reshape(x.shape),)


class BatchNormalization(OpRun):
    """onnx's takes the batch's own statistics before version 14, where these models want the stored ones."""

    def _run(
        self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float = 1e-5, **_: Any
    ) -> tuple[Array]:
        column = (-1, *[1] * (x.ndim - 2))
        factor = scale / np.sqrt(variance + epsilon)
        return ((x - mean.reshape(column)) * factor.reshape(column) + bias.reshape(column),)


class GlobalMaxPool(OpRun):
    """onnx's drops axes of signals that are no images."""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class MaxPool(OpRun):
    """onnx's walks over every window in Python."""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        pads: Sequence[int] | None = None,
        storage_order: int | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        rank = len(kernel_shape)
        assert auto_pad in (None, "NOTSET"), "write it when a model needs it"
        assert not ceil_mode, "write it when a model needs it"
        assert not storage_order, "write it when a model needs it"
        assert all(step == 1 for step in dilations or ()), "write it when a model needs it"
        pads = pads or (0,) * (2 * rank)
        borders = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
        windows = sliding_window_view(
            np.pad(x, borders, constant_values=-np.inf), tuple(kernel_shape), tuple(range(2, 2 + rank))
        )
        steps = (slice(None), slice(None), *(slice(None, None, step) for step in strides or (1,) * rank))
        return (windows[steps].max(axis=tuple(range(-rank, 0))),)
