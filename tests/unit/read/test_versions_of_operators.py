"""Operators in older versions, with attributes at other values than their defaults, and with element types that few
models have, beside onnxruntime; beside NumPy where it refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from smelt.dtype import dtype
from smelt.engine.reference import ReferenceEngine
from smelt.read.onnx import read
from tests import onnx_oracle
from tests.unit.read.refused import one_node

Array = np.ndarray[Any, Any]


class Held:
    """A constant of the model; any other array is an input."""

    def __init__(self, value: Any) -> None:
        self.value = value if isinstance(value, list) else np.asarray(value)


RNG = np.random.default_rng(7)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
IMAGE = RNG.normal(size=(1, 2, 5, 6)).astype(np.float32)
TIES = RNG.integers(0, 2, (14, 4)).astype(np.float32) * np.array([1, -1, 3, 1], np.float32)
BYTES = np.array([0, 1, 2, 255], np.uint8)
KERNEL = Held(RNG.normal(size=(3, 2, 2, 3)).astype(np.float32))
WORDS = ["a", "b", "c", "b", "a", "d", "b"]


def i64(*numbers: int) -> Held:
    return Held(np.array(numbers, np.int64))


def f32(*numbers: float) -> Held:
    return Held(np.array(numbers, np.float32))


def port_of(array: Array, symbols: Sequence[str | int] = ()) -> str:
    return f"{dtype(array.dtype)}[{','.join(map(str, symbols or array.shape))}]"


def run(
    folder: Path, op: str, version: int, inputs: Sequence[Any], attrs: dict[str, Any], symbolic: bool = False
) -> tuple[Path, list[Array], list[Array]]:
    """The model, its inputs and what the reference engine gives."""
    given = [each for each in inputs if isinstance(each, np.ndarray)]
    ports = [
        each.value
        if isinstance(each, Held)
        else port_of(each, [f"d{i}_{axis}" for axis in range(each.ndim)] if symbolic else ())
        if isinstance(each, np.ndarray)
        else each
        for i, each in enumerate(inputs)
    ]
    path = one_node(folder, op, ports, version=version, **attrs)
    program, weights = read(path)
    return path, given, [np.asarray(each) for each in ReferenceEngine().compile(program).prepare(weights)(*given)]


def same(found: Sequence[Array], wanted: Sequence[Any]) -> None:
    assert len(found) == len(wanted)
    for have, want in zip(found, wanted, strict=True):
        want = np.asarray(want)
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(have, want)
        else:
            np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)


def recurrent(op: str, gates: int, **attrs: Any) -> tuple[str, int, list[Any], dict[str, Any]]:
    """Three steps of two sequences with three features and two states, in as many directions as the attribute says."""
    ways = 2 if attrs.get("direction") == "bidirectional" else 1
    x, w, r = (
        RNG.normal(size=size).astype(np.float32) for size in ((3, 2, 3), (ways, 2 * gates, 3), (ways, 2 * gates, 2))
    )
    biases = attrs.pop("bias", True)
    b = Held(RNG.normal(size=(ways, 4 * gates)).astype(np.float32)) if biases else None
    given = [x, Held(w), Held(r), b] if biases else [x, Held(w), Held(r)]
    return op, 14, given, {"hidden_size": 2, "outputs": 3 if op == "LSTM" else 2, **attrs}


ROIS = np.array([[0, 0, 4, 3], [1, 1, 2, 4], [0.5, 0.25, 0.75, 0.5]], np.float32)
GRAMS = {
    "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "ngram_counts": [0, 3],
    "ngram_indexes": [4, 0, 2, 1, 3], "pool_strings": ["a", "b", "d", "a", "b", "c", "b"],
    "weights": [0.5, 2.0, 3.0, 4.0, 0.25],
}  # fmt: skip

# operator, version, inputs, attributes
ROWS: list[tuple[str, int, list[Any], dict[str, Any]]] = [
    ("Abs", 13, [BYTES], {}),
    ("Sign", 13, [BYTES], {}),
    *(("IsInf", 10, [np.array([np.inf, -np.inf, np.nan, 1], np.float32)], {"detect_negative": a, "detect_positive": b})
      for a in (0, 1) for b in (0, 1)),
    ("Pow", 13, [np.array([2, 3, -2], np.int32), np.array([2, 0.5, 3], np.float32)], {}),
    ("Clip", 6, [X], {"min": -0.5, "max": 0.25}),
    ("Clip", 6, [X], {"min": 0.5}),
    ("Clip", 6, [X], {"max": 0.5}),
    *((op, 11, [X], attrs) for op in ("Softmax", "LogSoftmax", "Hardmax")
      for attrs in ({}, {"axis": 0}, {"axis": 2}, {"axis": -1}, {"axis": -2})),
    *((op, 13, [X], attrs) for op in ("Softmax", "LogSoftmax", "Hardmax") for attrs in ({}, {"axis": 0}, {"axis": -2})),
    ("Hardmax", 13, [np.array([[1, 2, 2], [3, 3, 3]], np.float32)], {}),
    ("GlobalLpPool", 2, [IMAGE], {}),
    ("GlobalLpPool", 2, [IMAGE], {"p": 3}),
    *(("BatchNormalization", version, [IMAGE, f32(1, 2), f32(3, -1), f32(0.5, 0), f32(2, 0.5)], attrs)
      for version in (7, 9, 14) for attrs in ({}, {"epsilon": 0.5})),
    ("Dropout", 7, [X], {}),
    ("Dropout", 10, [X], {}),
    ("Dropout", 12, [X], {"outputs": 2}),
    ("Dropout", 12, [X, Held(np.float32(0)), Held(np.array(True))], {"outputs": 2}),
    *((op, 11, [IMAGE], {"kernel_shape": [2, 3], "strides": [2, 1], "auto_pad": pad})
      for op in ("MaxPool", "AveragePool", "LpPool") for pad in ("VALID", "SAME_UPPER", "SAME_LOWER")),
    *(("Conv", 11, [IMAGE, KERNEL], {"strides": [2, 1], "auto_pad": pad})
      for pad in ("VALID", "SAME_UPPER", "SAME_LOWER")),
    ("TopK", 1, [X], {"k": 2, "outputs": 2}),
    ("TopK", 1, [X], {"k": 2, "axis": 1, "outputs": 2}),
    ("TopK", 10, [X, i64(3)], {"outputs": 2}),
    ("TopK", 11, [X, i64(2)], {"outputs": 2, "largest": 0, "axis": 1}),
    ("Compress", 11, [X, Held(np.array([True, False, True]))], {"axis": 1}),
    ("Compress", 11, [X, Held(np.array([False, True, False, False, False, True]))], {}),
    ("Compress", 11, [X, np.array([True, False])], {"axis": -1}),
    ("Squeeze", 11, [X[:1, :, :1]], {"axes": [0, -1]}),
    ("Squeeze", 11, [X[:1, :, :1]], {}),
    ("Unsqueeze", 11, [X], {"axes": [0, -1]}),
    *(("Split", 11, [X], {"outputs": 2, **attrs}) for attrs in ({}, {"axis": 2}, {"axis": -1, "split": [1, 3]})),
    *(("Slice", 9, [X], attrs) for attrs in (
        {"starts": [1], "ends": [3], "axes": [1]}, {"starts": [0, -2], "ends": [1, 9]},
        {"starts": [-9], "ends": [-1], "axes": [-1]},
    )),
    *(("Pad", 10, [X], {"pads": pads, **attrs}) for pads in ([0, 1, 2, 1, 0, 3], [0, 0, -1, 0, 2, 1])
      for attrs in ({}, {"value": 1.5}, {"mode": "edge"})),
    ("Pad", 10, [X], {"pads": [0, 1, 2, 1, 0, 3], "mode": "reflect"}),
    *(("Upsample", 7, [IMAGE], {"scales": [1.0, 1.0, 2.0, 3.0], "mode": mode}) for mode in ("nearest", "linear")),
    *(("Upsample", 9, [IMAGE, f32(1, 1, 2, 1.5)], {"mode": mode}) for mode in ("nearest", "linear")),
    ("Resize", 10, [IMAGE, f32(1, 1, 0.5, 2)], {}),
    ("Resize", 11, [IMAGE, f32(), f32(1, 1, 0.6, 2)], {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}),
    *(recurrent(op, gates, **attrs) for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
      for attrs in ({"clip": 0.25}, {"bias": False}, {"direction": "bidirectional"}, {"direction": "reverse"})),
    recurrent("GRU", 3, linear_before_reset=1),
    recurrent("GRU", 3, linear_before_reset=1, bias=False),
    recurrent("LSTM", 4, input_forget=1),
    *(("TfIdfVectorizer", 9, [Held(WORDS)], {"mode": mode, **GRAMS}) for mode in ("TF", "IDF", "TFIDF")),
    ("TfIdfVectorizer", 9, [Held(WORDS)], {"mode": "IDF", **{k: v for k, v in GRAMS.items() if k != "weights"}}),
    *(("RoiAlign", 16, [IMAGE, Held(ROIS), i64(0, 0, 0)],
       {"output_height": 2, "output_width": 3, "mode": mode, "coordinate_transformation_mode": at, **more})
      for mode in ("avg", "max") for at in ("half_pixel", "output_half_pixel")
      for more in ({"sampling_ratio": 0}, {"sampling_ratio": 2, "spatial_scale": 0.5},
                   {"sampling_ratio": 0, "spatial_scale": 1.5})),
    ("NonMaxSuppression", 11, [np.zeros((1, 0, 4), np.float32), np.zeros((1, 2, 0), np.float32), i64(3)], {}),
    ("ReduceLogSumExp", 18, [X], {"noop_with_empty_axes": 1}),
    ("ReduceL2", 11, [np.array([[3, 4], [6, 8]], np.int32)], {"axes": [1]}),
    ("ReduceL1", 11, [X], {"axes": [-1], "keepdims": 0}),
    ("ReduceMean", 11, [X], {}),
    ("CumSum", 14, [X, Held(np.int64(-1))], {"exclusive": 1}),
    ("CumSum", 14, [X, Held(np.int64(1))], {"reverse": 1}),
    ("LRN", 13, [IMAGE], {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
    ("MeanVarianceNormalization", 13, [IMAGE], {}),
    ("MeanVarianceNormalization", 13, [IMAGE], {"axes": [1]}),
    ("InstanceNormalization", 6, [IMAGE, f32(1, 2), f32(3, 4)], {"epsilon": 0.25}),
    ("LayerNormalization", 17, [X, Held(X[0]), Held(X[1])], {"axis": 1, "epsilon": 0.5}),
    ("EyeLike", 9, [X[0]], {"k": -1}),
    ("EyeLike", 9, [X[0]], {"k": 1, "dtype": 7}),
    ("Trilu", 14, [X, Held(np.int64(1))], {"upper": 0}),
    ("Trilu", 14, [X], {}),
    ("OneHot", 11, [np.array([[0, -1], [2, 5]], np.int64), Held(np.int64(3)), f32(2, 7)], {"axis": 0}),
    ("ReverseSequence", 10, [X.transpose(1, 0, 2).copy(), i64(2, 3)], {}),
    ("ReverseSequence", 10, [X, i64(2, 3)], {"time_axis": 1, "batch_axis": 0}),
    ("DepthToSpace", 13, [RNG.normal(size=(1, 8, 2, 3)).astype(np.float32)], {"blocksize": 2, "mode": "CRD"}),
    *(("Unique", 11, [TIES], {"outputs": 4, **attrs}) for attrs in (
        {}, {"axis": 0}, {"axis": -1}, {"axis": 0, "sorted": 0}, {"axis": 1, "sorted": 0}, {"sorted": 0},
    )),
    ("Shrink", 9, [X], {"lambd": 0.75, "bias": 0.25}),
    ("ThresholdedRelu", 10, [X], {"alpha": 0.25}),
    ("Selu", 6, [X], {"alpha": 1.5, "gamma": 2.0}),
    ("HardSigmoid", 6, [X], {"alpha": 0.5, "beta": 0.25}),
    ("Elu", 6, [X], {"alpha": 0.5}),
    ("Celu", 12, [X], {"alpha": 0.5}),
]  # fmt: skip


def names_of(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return [f"{i}-{row[0]}-{row[1]}" for i, row in enumerate(rows)]


@pytest.mark.parametrize(("op", "version", "inputs", "attrs"), ROWS, ids=names_of(ROWS))
def test_as_onnxruntime(op: str, version: int, inputs: list[Any], attrs: dict[str, Any], tmp_path: Path) -> None:
    path, given, found = run(tmp_path, op, version, inputs, attrs)
    model = onnx.load(path)
    names = [port.name for port in model.graph.input]
    same(found, onnx_oracle.session(path).run(None, dict(zip(names, given, strict=True))))


A, B, C = (np.arange(1, 7, dtype=np.int32).reshape(2, 3) * k for k in (1, 2, 4))
GROUPS = RNG.normal(size=(2, 4, 3)).astype(np.float32)
POWERS = np.array([1, 1.25, 1.5, 1.75, 2, 3, 0.375], np.float32)


def normalise_groups(x: Array, groups: int, scale: Array, bias: Array, epsilon: float) -> Array:
    wide = x.reshape(len(x), groups, -1).astype(np.float64)
    normal = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + epsilon)
    return np.asarray((normal * scale[:, None] + bias[:, None]).reshape(x.shape), np.float32)


# The same with what comes out, by NumPy or by hand.
BY_HAND: list[tuple[str, int, list[Any], dict[str, Any], list[Any]]] = [
    ("Add", 6, [X, f32(1, 2, 3)], {"axis": 1, "broadcast": 1}, [X + np.array([[1], [2], [3]], np.float32)]),
    ("Add", 6, [X, f32(1, 2, 3, 4)], {"broadcast": 1}, [X + np.array([1, 2, 3, 4], np.float32)]),
    ("Mul", 6, [X, Held(X[0])], {"axis": -2, "broadcast": 1}, [X * X[0]]),
    ("Pow", 6, [abs(X), f32(2, 3)], {"axis": 0, "broadcast": 1}, [abs(X) ** np.array([[[2]], [[3]]], np.float32)]),
    ("Pow", 13, [X.astype(np.float16), np.float16(2).reshape(1)], {}, [X.astype(np.float16) ** np.float16(2)]),
    ("PRelu", 6, [X, f32(0.5, 2, 3)], {}, [np.where(X < 0, X * np.array([[0.5], [2], [3]], np.float32), X)]),
    ("PRelu", 6, [X, f32(0.5)], {}, [np.where(X < 0, X * np.float32(0.5), X)]),
    ("Gemm", 11, [A, B, C[:, :2]], {"alpha": 0.5, "beta": 0.25, "transB": 1}, [A @ B.T // 2 + C[:, :2] // 4]),
    ("Gemm", 11, [A, B], {"alpha": 0.5, "transA": 1}, [A.T @ B // 2]),
    ("Einsum", 12, [X[0, :2, :1], X[1]], {"equation": "ij,jk->ik"}, [np.einsum("ij,jk->ik", X[0, :2, :1], X[1])]),
    ("Einsum", 12, [X[0], X[:, :1]], {"equation": "jk,ijk->ki"}, [np.einsum("jk,ijk->ki", X[0], X[:, :1])]),
    ("GroupNormalization", 18, [GROUPS, f32(2, 3), f32(0.5, -1)], {"num_groups": 2, "epsilon": 0.25},
     [normalise_groups(GROUPS, 2, np.array([2, 3]), np.array([0.5, -1]), 0.25)]),
    ("Dropout", 6, [X], {"is_test": 1}, [X]),
    ("Dropout", 7, [X], {"outputs": 2}, [X, np.ones_like(X)]),
    ("Dropout", 10, [X], {"outputs": 2}, [X, np.ones_like(X, bool)]),
    ("Reshape", 1, [X], {"shape": [0, -1]}, [X.reshape(2, 12)]),
    ("Concat", 3, [X, X], {}, [np.concatenate([X, X], 1)]),
    ("Concat", 3, [X, X], {"axis": 2}, [np.concatenate([X, X], 2)]),
    ("Pad", 1, [X[0]], {"paddings": [1, 0, 0, 2], "value": 2.0}, [np.pad(X[0], ((1, 0), (0, 2)), constant_values=2)]),
    ("Pad", 19, [X[0], i64(3, 9, 1, 2)], {"mode": "wrap"}, [np.pad(X[0], ((3, 1), (9, 2)), "wrap")]),
    ("Pad", 19, [X[0], i64(3, 9, 1, 2)], {"mode": "reflect"}, [np.pad(X[0], ((3, 1), (9, 2)), "reflect")]),
    ("Tile", 13, [X[0], i64(2, 3)], {}, [np.tile(X[0], (2, 3))]),
    ("ReduceL1", 18, [BYTES, i64(0)], {"keepdims": 0}, [np.uint8(2)]),
    ("Cast", 13, [X * 3], {"to": 7}, [(X * 3).astype(np.int64)]),
    ("Trilu", 14, [X, Held(np.int64(-1))], {}, [np.triu(X, -1)]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "version", "inputs", "attrs", "wanted"), BY_HAND, ids=names_of(BY_HAND))
def test_as_numpy(
    op: str, version: int, inputs: list[Any], attrs: dict[str, Any], wanted: list[Any], tmp_path: Path
) -> None:
    same(run(tmp_path, op, version, inputs, attrs)[2], wanted)
    if op in ("Pad", "Tile"):
        same(run(tmp_path, op, version, inputs, attrs, symbolic=True)[2], wanted)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [("up", [1, 2, 2, 2, 2, 4, 0.5]), ("down", [1, 1, 1, 1, 2, 2, 0.25]), ("nearest", [1, 1, 2, 2, 2, 4, 0.5])],
)
def test_rounding_to_powers_of_two(mode: str, wanted: list[float], tmp_path: Path) -> None:
    attrs = {"to": onnx.TensorProto.FLOAT8E8M0, "round_mode": mode}
    (found,) = run(tmp_path, "Cast", 24, [POWERS], attrs)[2]
    assert found.dtype.name == "float8_e8m0fnu"
    np.testing.assert_array_equal(found.astype(np.float32), np.array(wanted, np.float32))


@pytest.mark.parametrize("sizes", [(5, 8), (1, 1), (2, 4)])  # scaled to whole numbers: the standard rounds none
@pytest.mark.parametrize("at", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("mode", ["linear", "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_resizing_of_dynamic_sizes(sizes: tuple[int, int], at: str, mode: str, tmp_path: Path) -> None:
    image = RNG.normal(size=(1, 1, *sizes)).astype(np.float32)
    attrs: dict[str, Any] = {"coordinate_transformation_mode": at, "mode": "linear"}
    if mode != "linear":
        attrs |= {"mode": "nearest", "nearest_mode": mode}
    path, _, found = run(tmp_path, "Resize", 18, [image, None, f32(1, 1, 2, 0.5 if sizes[1] > 1 else 3)], attrs, True)
    same(found, onnx_oracle.session(path).run(None, {"x0": image}))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("scales", [(0.7, 0.9), (1.7, 0.3), (1.45, 0.35), (2.2, 0.6)])
@pytest.mark.parametrize(
    ("version", "attrs"),
    [
        (10, {"mode": "nearest"}),
        (10, {"mode": "linear"}),
        (13, {"mode": "linear"}),
        (13, {"nearest_mode": "ceil"}),
        (13, {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}),
        (13, {"nearest_mode": "round_prefer_floor", "coordinate_transformation_mode": "pytorch_half_pixel"}),
    ],
)
def test_resizing_by_scales_that_f32_rounds(
    version: int, attrs: dict[str, Any], scales: tuple[float, float], symbolic: bool, tmp_path: Path
) -> None:
    """10 by 0.7 are 7, and the coordinate 17 / 1.7 is 10, although f32 has neither scale."""
    image = RNG.normal(size=(1, 1, 30, 40)).astype(np.float32)
    inputs = [image, f32(1, 1, *scales)] if version == 10 else [image, None, f32(1, 1, *scales)]
    path, _, found = run(tmp_path, "Resize", version, inputs, attrs, symbolic)
    same(found, onnx_oracle.session(path).run(None, {"x0": image}))


@pytest.mark.parametrize("size", [9, 11, 12, 14])
@pytest.mark.parametrize("mode", ["floor", "ceil"])
def test_resizing_to_sizes_with_coordinates_between_elements(mode: str, size: int, tmp_path: Path) -> None:
    """Where f64 rounds to one side of a whole number, and f32 to the other."""
    image = RNG.normal(size=(1, 1, 7, 57)).astype(np.float32)
    attrs = {"mode": "nearest", "nearest_mode": mode, "coordinate_transformation_mode": "half_pixel"}
    inputs = [image, None, None, i64(1, 1, size, 5 * size)]
    path, _, found = run(tmp_path, "Resize", 13, inputs, attrs, True)
    same(found, onnx_oracle.session(path).run(None, {"x0": image}))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("sorted", [0, 1])
@pytest.mark.parametrize(("sizes", "axis"), [((6, 9), 0), ((5, 300), 0), ((3, 4, 20), 1), ((40,), None), ((7, 0), 0)])
def test_unique_slices_of_any_size(
    sizes: tuple[int, ...], axis: int | None, sorted: int, symbolic: bool, tmp_path: Path
) -> None:
    x = RNG.integers(0, 2, sizes).astype(np.float32)
    if axis is not None:
        x = np.take(x, RNG.integers(0, 3, sizes[axis]), axis)
    attrs = {"outputs": 4, "sorted": sorted} | ({} if axis is None else {"axis": axis})
    found = run(tmp_path, "Unique", 11, [x], attrs, symbolic)[2]
    values, first, back, counts = np.unique(x, True, True, True, axis=axis)
    if not sorted:
        order = np.argsort(first)
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        back = np.argsort(order)[back]
    same(found, [values, first, back.reshape(-1), counts])


def test_unique_of_many_elements_and_of_none(tmp_path: Path) -> None:
    """The work is not quadratic; a dynamic size may turn out as 0."""
    for x in (RNG.integers(0, 5000, 20_000).astype(np.float32), np.zeros(0, np.float32)):
        found = run(tmp_path, "Unique", 11, [x], {"outputs": 4}, True)[2]
        same(found, list(np.unique(x, True, True, True)))


# ---- random numbers: in their bounds, with the moments that the standard says ----

MANY = 20_000
DRAWN: list[tuple[str, list[Any], dict[str, Any], float, float]] = [
    ("RandomUniform", [], {"shape": [MANY]}, 0.5, 12**-0.5),
    ("RandomUniform", [], {"shape": [MANY], "low": 2.0, "high": 6.0}, 4, 4 * 12**-0.5),
    ("RandomNormal", [], {"shape": [MANY]}, 0, 1),
    ("RandomNormal", [], {"shape": [MANY], "mean": 3.0, "scale": 0.5, "dtype": 11}, 3, 0.5),
    ("RandomUniformLike", [np.zeros(MANY, np.float32)], {"low": -1.0}, 0, 2 * 12**-0.5),
    ("RandomNormalLike", [np.zeros(MANY, np.int64)], {"mean": -2.0, "dtype": 1}, -2, 1),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "mean", "deviation"), DRAWN)
def test_random_numbers(
    op: str, inputs: list[Any], attrs: dict[str, Any], mean: float, deviation: float, tmp_path: Path
) -> None:
    (found,) = run(tmp_path, op, 22, inputs, attrs)[2]
    assert (found.shape, found.dtype) == ((MANY,), np.float64 if attrs.get("dtype") == 11 else np.float32)
    assert found.mean() == pytest.approx(mean, abs=6 * deviation / MANY**0.5)
    assert found.std() == pytest.approx(deviation, rel=0.05)
    if "Uniform" in op:
        low, high = attrs.get("low", 0.0), attrs.get("high", 1.0)
        assert low <= found.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < found.max() <= high


def test_choices_by_their_probabilities(tmp_path: Path) -> None:
    shares = np.array([[0.5, 0.25, 0.25], [0.1, 0, 0.9]])
    with np.errstate(divide="ignore"):
        given = np.log(shares).astype(np.float32) + 3  # not normalised
    (found,) = run(tmp_path, "Multinomial", 22, [given], {"sample_size": MANY, "dtype": 7})[2]
    assert (found.shape, found.dtype) == ((2, MANY), np.int64)
    counts = np.stack([np.bincount(row, minlength=3) for row in found]) / MANY
    np.testing.assert_allclose(counts, shares, atol=6 * 0.5 / MANY**0.5)
    (one,) = run(tmp_path, "Multinomial", 22, [given], {})[2]
    assert (one.shape, one.dtype) == ((2, 1), np.int32)


@pytest.mark.parametrize(("ratio", "share"), [(None, 0.5), (0.25, 0.25)])
def test_dropout_in_training(ratio: float | None, share: float, tmp_path: Path) -> None:
    x = np.arange(1, MANY + 1, dtype=np.float32)
    given = [x, None if ratio is None else Held(np.float32(ratio)), Held(np.array(True))]
    y, kept = run(tmp_path, "Dropout", 13, given, {"outputs": 2})[2]
    assert 1 - kept.mean() == pytest.approx(share, abs=6 * 0.5 / MANY**0.5)
    np.testing.assert_allclose(y, np.where(kept, x / (1 - share), 0), rtol=1e-6)
