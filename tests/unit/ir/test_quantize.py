"""Uniform quantisation: values worked out by hand, and a plain Python version of the specification's formulas."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from smelt.dtype import Quantized, dtype
from smelt.errors import VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Token
from smelt.ir.interpret import run
from smelt.ir.ops.quantize import dequantize, quantize
from smelt.shape import Shape


def quantized(scales, zero_points, axis=None, storage="i8", expressed="f32", low=None, high=None):
    of = dtype(storage)
    least = -(1 << of.bits - 1) if of.kind == "int" else 0
    most = least + (1 << of.bits) - 1
    limits = (least if low is None else low, most if high is None else high)
    return Quantized(of, dtype(expressed), tuple(scales), tuple(zero_points), axis, *limits)


def evaluate(name, array, type, result):
    f = FuncBuilder("main", [type])
    return run(Program.of(f.func(f.op(f"stablehlo.{name}", *f.args, result=result).result)), [array])[0]


def test_per_axis_quantisation():
    """The values of the specification's suite: 4 / 0.1 - 30 and 15 / 0.5 - 20."""
    to = quantized([0.1, 0.5], [-30, -20], axis=0)
    got = evaluate("uniform_quantize", np.array([4.0, 15.0], np.float32), Shape("f32", 2), Shape(to, 2))
    assert got.dtype == np.int8
    assert got.tolist() == [10, 10]


def test_ties_go_to_even_and_the_range_is_kept():
    to = quantized([2.0], [1], low=-5, high=6)
    x = np.array([1.0, 3.0, 5.0, -1.0, 1000.0, -1000.0, np.inf, -np.inf], np.float32)
    # x / 2 + 1 is 1.5, 2.5, 3.5, 0.5, and then beyond the range
    assert quantize(x, to).tolist() == [2, 2, 4, 0, 6, -5, 6, -5]


def test_dequantisation_does_not_wrap():
    of = quantized([0.5], [-128])
    got = evaluate("uniform_dequantize", np.array([127, -128, 0], np.int8), Shape(of, 3), Shape("f32", 3))
    assert got.dtype == np.float32
    assert got.tolist() == [127.5, 0.0, 64.0]


def test_requantisation_goes_through_the_expressed_type():
    of, to = quantized([0.5], [0]), quantized([1.5], [3], storage="i4")
    got = evaluate("uniform_quantize", np.array([3, 6, 100, -100], np.int8), Shape(of, 4), Shape(to, 4))
    assert got.dtype == ml_dtypes.int4
    assert [int(x) for x in got] == [4, 5, 7, -8]  # 1.5 / 1.5 + 3, 3 / 1.5 + 3, then the range of i4


def test_per_axis_of_an_inner_dimension():
    of = quantized([1.0, 10.0, 100.0], [0, 1, 2], axis=1)
    x = np.arange(12, dtype=np.int8).reshape(2, 3, 2)
    want = (x - np.array([0, 1, 2])[:, None]) * np.array([1.0, 10.0, 100.0])[:, None]
    assert dequantize(x, of).tolist() == want.tolist()
    assert quantize(want.astype(np.float32), of).tolist() == x.tolist()


def test_storage_of_32_bits_saturates():
    to = quantized([1.0], [0], storage="i32")
    assert quantize(np.array([3e9, -3e9], np.float32), to).tolist() == [2**31 - 1, -(2**31)]


@given(
    st.lists(st.integers(-128, 127), min_size=1, max_size=8),
    st.floats(2.0**-6, 2.0**6, width=32),
    st.integers(-128, 127),
    st.sampled_from(["f32", "bf16", "f16"]),
)
def test_quantisation_undoes_dequantisation(values, scale, zero_point, expressed):
    """For 8 bits and f32 every stored value survives; narrower types may move it by a rounding of the product."""
    of = quantized([scale], [zero_point], expressed=expressed)
    floats = dequantize(np.array(values, np.int8), of)
    assert floats.dtype == of.expressed.numpy
    back = quantize(floats, of)
    slack = 0 if expressed == "f32" else 3
    assert max(abs(int(a) - b) for a, b in zip(back, values, strict=True)) <= slack


def test_types():
    per_tensor = quantized([0.5], [0])
    f = FuncBuilder("main", [Shape(per_tensor, 3)])
    assert f.uniform_dequantize(*f.args).type == Shape("f32", 3)


REFUSED = [
    ("uniform_quantize", Shape("f32", 2), None),
    ("uniform_quantize", Shape("f32", 2), Shape("i8", 2)),
    ("uniform_quantize", Shape("f32", 2), Shape(quantized([1.0], [0]), 3)),
    ("uniform_quantize", Shape("f64", 2), Shape(quantized([1.0], [0]), 2)),
    ("uniform_quantize", Shape("i8", 2), Shape(quantized([1.0], [0]), 2)),
    ("uniform_quantize", Shape("f32", 2), Shape(quantized([1.0, 2.0, 3.0], [0] * 3, axis=0), 2)),
    ("uniform_quantize", Shape("f32", 2), Shape(quantized([1.0, 2.0], [0] * 2, axis=1), 2)),
    ("uniform_quantize", Shape(quantized([1.0], [0], expressed="bf16"), 2), Shape(quantized([1.0], [0]), 2)),
    ("uniform_quantize", Token(), Shape(quantized([1.0], [0]), 2)),
    ("uniform_dequantize", Shape("i8", 2), Shape("f32", 2)),
    ("uniform_dequantize", Shape(quantized([1.0], [0]), 2), Shape("f64", 2)),
    ("uniform_dequantize", Shape(quantized([1.0], [0]), 2), Shape("f32", 3)),
    ("uniform_dequantize", Token(), None),
]


@pytest.mark.parametrize(("name", "type", "result"), REFUSED)
def test_refused(name, type, result):
    f = FuncBuilder("main", [type])
    with pytest.raises(VerifyError):
        f.op(f"stablehlo.{name}", *f.args, result=result)


def test_round_to_byte_is_quantize_linear(seed: int) -> None:
    """As ONNX says it: ties to even after the division, then the zero point, then the limits."""
    kinds = {"x": TensorProto.FLOAT, "s": TensorProto.FLOAT}
    random = np.random.default_rng(seed)
    x = np.concatenate([random.normal(size=500) * 20, np.arange(-40, 40) * 0.125, [1e6, -1e6, -0.0]])
    x = x.astype(np.float32)
    for scale, zero, kind in ((np.float32(0.25), 128, "uint8"), (np.float32(0.1), -3, "int8")):
        limits = np.iinfo(kind)
        f = FuncBuilder("main", [Shape("f32", *x.shape)])
        parts = (f.full(float(each), f.args[0].shape) for each in (scale, zero))
        to = Shape("ui8" if kind == "uint8" else "i8", *x.shape)
        made = f.op(
            "smelt.round_to_byte", f.args[0], *parts, least=int(limits.min), greatest=int(limits.max), result=to
        ).result
        (result,) = run(Program.of(f.func(made)), [x])
        byte = TensorProto.UINT8 if kind == "uint8" else TensorProto.INT8
        nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
        inputs = [helper.make_tensor_value_info(*each, None) for each in ({**kinds, "z": byte}).items()]
        graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", byte, None)])
        reference = ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
        with np.errstate(all="ignore"):
            (expected,) = reference.run(None, {"x": x, "s": scale, "z": np.array(zero, kind)})
        np.testing.assert_array_equal(result, expected)
