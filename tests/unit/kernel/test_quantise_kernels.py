"""Quantising to int8 on the native engine: bit for bit as NumPy divides, rounds and clamps, close to every tie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smelt.dtype import Array, i32, ui8
from smelt.engine.compile import lower, plan_program
from smelt.engine.native import NativeEngine
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.kernel.plan.plan import Launch, walk
from smelt.model import read
from smelt.shape import Shape

LIMITS = {"ui8": (0, 255, np.uint8), "i8": (-128, 127, np.int8)}


def exact(x: Array, scale: Any, zero: Any, kind: str) -> Array:
    """As ONNX says it: NumPy's division in f32, ties to even, the zero point, the limits."""
    low, high, to = LIMITS[kind]
    with np.errstate(all="ignore"):
        steps = np.rint(x / np.asarray(scale, np.float32)).astype(np.float64) + zero
    return np.clip(steps, low, high).astype(to)


def near_ties(scale: float) -> Array:
    """Floats around every (n + 1/2) * scale, where a quotient that is off by one bit shows."""
    ties = ((np.arange(-300, 300) + 0.5) * np.float64(np.float32(scale))).astype(np.float32)
    around = [ties]
    for toward in (np.inf, -np.inf):
        each = ties
        for _ in range(4):
            each = np.nextafter(each, np.float32(toward))
            around.append(each)
    ends = np.array([0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-40], np.float32)
    return np.concatenate([*around, ends])


def spelled_out(f: FuncBuilder, x: Value, scale: float, zero: int, kind: str) -> Value:
    """The ops of a reader: divide, round, add the zero point, clamp, convert twice."""
    low, high, _ = LIMITS[kind]
    full = [f.full(float(each), x.shape) for each in (scale, zero, low, high)]
    steps = f.add(f.round_nearest_even(f.divide(x, full[0])), full[1])
    held = f.minimum(f.maximum(steps, full[2]), full[3])
    made: Value = f.convert(f.convert(held, result=x.shape.with_dtype(i32)), result=Shape(kind, *x.shape.sizes))
    return made


def test_division_by_a_known_scale_is_exact(seed: int) -> None:
    scales = [*np.exp(np.random.default_rng(seed).uniform(-12, 4, 4)), 0.25, 1.0, 2 - 2**-23, 1 + 2**-23]
    points = (("ui8", 0), ("ui8", 131), ("i8", -5))
    cases = [(np.float32(scale), *points[i % 3]) for i, scale in enumerate(scales)]
    given = [near_ties(float(scale)) for scale, _, _ in cases]
    f = FuncBuilder("main", [Shape("f32", *x.shape) for x in given])
    made = [spelled_out(f, x, float(scale), zero, kind) for x, (scale, kind, zero) in zip(f.args, cases, strict=True)]
    program = Program.of(f.func(*made))
    assert [op.name for op in lower(program).main.body.ops].count("smelt.round_to_byte") == len(cases)
    for x, found, (scale, kind, zero) in zip(given, NativeEngine().compile(program)(*given), cases, strict=True):
        np.testing.assert_array_equal(found, exact(x, scale, zero, kind), err_msg=f"{scale} {kind} {zero}")


def test_scales_and_zero_points_of_their_own(seed: int) -> None:
    random = np.random.default_rng(seed)
    scales = np.exp(random.uniform(-90, 4, 40)).astype(np.float32)
    x = (random.normal(size=(40, 64)) * 90).astype(np.float32) * scales[:, None]
    zeros = random.integers(0, 256, 40).astype(np.float32)
    f = FuncBuilder("main", [Shape("f32", *each.shape) for each in (x, scales, zeros)])
    spread = (f.broadcast_in_dim(each, broadcast_dimensions=(0,), result=f.args[0].shape) for each in f.args[1:])
    to = Shape("ui8", *x.shape)
    made = f.op("smelt.round_to_byte", f.args[0], *spread, least=0, greatest=255, result=to).result
    (found,) = NativeEngine().compile(Program.of(f.func(made)))(x, scales, zeros)
    np.testing.assert_array_equal(found, exact(x, scales[:, None], zeros[:, None], "ui8"))


def test_residual_sum_of_two_int8_gemms_stays_int8(tmp_path: Path) -> None:
    """The GEMM without the residual sum in its epilogue stores int8, a quarter of its int32 sums."""
    random = np.random.default_rng(0)
    weights = {
        "s": np.float32(0.05),
        "z": np.uint8(3),
        "ws": np.float32(0.01),
        "w1": random.integers(-99, 99, (64, 32, 1, 1)).astype(np.int8),
        "w2": random.integers(-99, 99, (64, 32, 1, 1)).astype(np.int8),
    }
    node = helper.make_node
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"])]
    for i in "12":
        nodes += [
            node("DequantizeLinear", [f"w{i}", "ws"], [f"wd{i}"]),
            node("Conv", ["d", f"wd{i}"], [f"c{i}"]),
            node("QuantizeLinear", [f"c{i}", "s", "z"], [f"q{i}"]),
            node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]),
        ]
    nodes += [node("Add", ["d1", "d2"], ["a"]), node("QuantizeLinear", ["a", "s", "z"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 32, 5, 5))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.UINT8, (1, 64, 5, 5))]
    arrays = [numpy_helper.from_array(np.asarray(each), name) for name, each in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, arrays)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    plan = plan_program(read(path)[0]).main[0]
    made = [plan.buffers[i].shape.element for step in walk(plan.steps) if isinstance(step, Launch) for i in step.writes]
    assert {str(each) for each in made} == {"ui8"}


@pytest.mark.parametrize(("again", "padding", "bytes"), [(0.05, 1, True), (0.07, 1, True), (0.05, 3, False)])
def test_max_pooling_in_int8(again: float, padding: int, bytes: bool, seed: int) -> None:
    """Where a window may hold nothing but padding, minus infinity is no byte."""
    x = np.random.default_rng(seed).integers(0, 256, (2, 9, 7, 5)).astype(np.uint8)
    f = FuncBuilder("main", [Shape("ui8", *x.shape)])
    whole = f.convert(f.args[0], result=Shape("i32", *x.shape))
    moved = f.convert(f.subtract(whole, f.full(3, whole.shape)), result=Shape("f32", *x.shape))
    number = f.multiply(moved, f.full(0.05, moved.shape))
    with f.region(Shape("f32"), Shape("f32")) as r:
        r.result(r.maximum(*r.args))
    edges = ((0, 0), (padding, padding), (1, 1), (0, 0))
    window: dict[str, Any] = {"window_dimensions": (1, 3, 3, 1), "window_strides": (1, 2, 2, 1), "padding": edges}
    lowest = f.constant(-np.inf, "f32")
    most = f.op("stablehlo.reduce_window", number, lowest, regions=[r.body], **window).result
    program = Program.of(f.func(spelled_out(f, most, again, 3, "ui8")))
    ops = {op.name: op for op in lower(program).main.body.ops}
    assert (str(ops["stablehlo.reduce_window"].results[0].shape.dtype) == "ui8") == bytes
    assert ("smelt.round_to_byte" in ops) == (not bytes or again != 0.05)
    real = (x.astype(np.float32) - 3) * np.float32(0.05)
    full = np.pad(real, edges, constant_values=-np.inf)
    pooled = np.lib.stride_tricks.sliding_window_view(full, (3, 3), (1, 2))[:, ::2, ::2].max((-1, -2))
    (found,) = NativeEngine().compile(program)(x)
    np.testing.assert_array_equal(found, exact(pooled, again, 3, "ui8"))


def test_int8_wanted_as_uint8_is_computed_as_uint8(seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(9, 33)).astype(np.float32) * 9
    f = FuncBuilder("main", [Shape("f32", *x.shape)])
    signed = spelled_out(f, f.args[0], 0.1, -5, "i8")
    turned = f.transpose(signed, permutation=(1, 0))
    bits = f.bitcast_convert(turned, result=turned.shape.with_dtype(ui8))
    flipped = f.op("stablehlo.xor", bits, f.full(128, bits.shape)).result
    wide = f.convert(signed, result=signed.shape.with_dtype(i32))
    program = Program.of(f.func(flipped, wide))
    assert "stablehlo.xor" not in [op.name for op in lower(program).main.body.ops]
    expected = exact(x, 0.1, -5, "i8").astype(np.int32)
    more, same = NativeEngine().compile(program)(x)
    np.testing.assert_array_equal(more, (expected + 128).T)
    np.testing.assert_array_equal(same, expected)
