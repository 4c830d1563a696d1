"""Elementwise ops as ONNX on zeros of both signs, infinities and NaN: onnxruntime is compared with NumPy.

Signs of zeros are looked at in ONNX's reference implementation, since onnxruntime's Where loses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import smelt
from smelt.dtype import dtype
from smelt.write.onnx import build, to_model

POINTS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-30, -3e30, np.inf, -np.inf, np.nan]
A, B = (side.reshape(-1) for side in np.meshgrid(POINTS, POINTS, indexing="ij"))
BINARY: dict[str, Callable[..., Any]] = {
    "atan2": np.arctan2, "maximum": np.maximum, "minimum": np.minimum, "divide": np.divide, "remainder": np.fmod,
    "power": np.power, "multiply": np.multiply, "subtract": np.subtract,
}  # fmt: skip
UNARY: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "ceil": np.ceil, "floor": np.floor, "cosine": np.cos, "exponential": np.exp, "log": np.log,
    "exponential_minus_one": np.expm1, "log_plus_one": np.log1p, "negate": np.negative, "sign": np.sign,
    "sqrt": np.sqrt, "tanh": np.tanh, "cbrt": np.cbrt, "round_nearest_even": np.rint, "is_finite": np.isfinite,
    "rsqrt": lambda x: 1 / np.sqrt(x), "logistic": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip


def check(name: str, kind: str, inputs: list[Any], oracle: Callable[..., Any]) -> None:
    arrays = [each.astype(dtype(kind).numpy) for each in inputs]
    tensor = f"tensor<{len(arrays[0])}x{kind}>"
    result = tensor.replace(kind, "i1") if name == "is_finite" else tensor
    ports = ", ".join(f"%x{i}: {tensor}" for i in range(len(arrays)))
    operands = ", ".join(f"%x{i}" for i in range(len(arrays)))
    form = f"({tensor}) -> {result}" if name == "is_finite" else tensor
    text = f"func.func @main({ports}) -> {result} {{ %r = stablehlo.{name} {operands} : {form} return %r : {result} }}"
    model, _ = to_model(build(smelt.parse(text)), {})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = dict(zip((port.name for port in model.graph.input), arrays, strict=True))
    (got,) = session.run(None, feed)
    with np.errstate(all="ignore"):
        want = oracle(*(each.astype(np.float64) for each in arrays)).astype(got.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-12 if kind == "f64" else 3e-6)
    if name in ("atan2", "abs", "negate", "ceil", "floor"):
        with np.errstate(all="ignore"):
            (exact,) = ReferenceEvaluator(model).run(None, feed)
        signed = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(exact[signed]), np.signbit(want[signed]))


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", BINARY)
def test_pairs(name: str, kind: str) -> None:
    check(name, kind, [A, B], BINARY[name])


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", UNARY)
def test_numbers(name: str, kind: str) -> None:
    check(name, kind, [np.array(POINTS)], UNARY[name])
