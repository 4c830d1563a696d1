"""Quantised operators of ai.onnx against onnx.reference, onnxruntime and the formulas of the standard, at odd sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from smelt.dtype import Array, dtype, integer_range
from smelt.errors import ShapeError, UnsupportedError
from tests.onnx_nodes import Node, on_onnxruntime, on_smelt

SIZES = ({"B": 2, "S": 3, "H": 9, "W": 8}, {"B": 1, "S": 7, "H": 6, "W": 11})
WHOLE = ("ui8", "i8", "ui16", "i16", "ui4", "i4", "ui2", "i2")
EIGHT = ("f8E4M3FN", "f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ")
NUMBERS = {"ui8": 2, "i8": 3, "ui16": 4, "i16": 5, "f16": 10, "f32": 1, "bf16": 16, "ui4": 21, "i4": 22, "f4E2M1FN": 23}
NUMBERS |= {"ui2": 25, "i2": 26, "f8E4M3FN": 17, "f8E5M2": 19}


def node(op: str, inputs: str, version: int = 25, **more: Any) -> Node:
    return Node(op, inputs, domain="", version=version, **more)


def same(have: Array, want: Array) -> None:
    """The same numbers, nan for nan."""
    assert have.shape == want.shape
    assert have.dtype == want.dtype
    np.testing.assert_array_equal(have.astype(np.float64), want.astype(np.float64))


def as_reference(made: Node, seed: int, folder: Path) -> None:
    random = np.random.default_rng(seed)
    for sizes in SIZES:
        arrays = made.arrays(random, sizes)
        model = made.model(arrays)
        wants = ReferenceEvaluator(model).run(None, arrays)
        for have, want in zip(on_smelt(model, arrays, folder), wants, strict=True):
            same(have, np.asarray(want))


def as_onnxruntime(made: Node, seed: int, folder: Path, off_by_one: float = 0.0) -> None:
    pytest.importorskip("onnxruntime")
    random = np.random.default_rng(seed)
    for sizes in SIZES:
        arrays = made.arrays(random, sizes)
        model = made.model(arrays)
        for have, want in zip(on_smelt(model, arrays, folder), on_onnxruntime(model, arrays), strict=True):
            assert (have.shape, have.dtype) == (want.shape, want.dtype)
            apart = np.abs(have.astype(np.int64) - want.astype(np.int64))
            assert apart.max(initial=0) <= (1 if off_by_one else 0)
            assert np.sum(apart) <= (max(2, off_by_one * apart.size) if off_by_one else 0)


def wide(random: np.random.Generator, sizes: tuple[int, ...]) -> Any:
    """Numbers of all magnitudes, so that some saturate and some fall between two."""
    return random.standard_normal(sizes) * 10.0 ** random.integers(-3, 6, sizes)


def halves(random: np.random.Generator, sizes: tuple[int, ...]) -> Any:
    """Multiples of a half: every other one is halfway between two integers."""
    return random.integers(-600, 600, sizes) / 2


def powers(random: np.random.Generator, sizes: tuple[int, ...]) -> Any:
    return 2.0 ** random.integers(-3, 4, sizes)


def zeros(random: np.random.Generator, sizes: tuple[int, ...]) -> Any:
    return np.zeros(sizes)


# ---- QuantizeLinear ----


@pytest.mark.parametrize("to", WHOLE)
@pytest.mark.parametrize("x", [wide, halves])
def test_quantize_per_tensor(to: str, x: Any, seed: int, tmp_path: Path) -> None:
    drawn = {"x": x, "scale": number_one if x is halves else powers}
    as_reference(node("QuantizeLinear", f"x:f32[B,S,5] scale:f32[] zero:{to}[]", draw=drawn), seed, tmp_path)


def number_one(random: np.random.Generator, sizes: tuple[int, ...]) -> Any:
    return np.ones(sizes)


@pytest.mark.parametrize("to", WHOLE)
@pytest.mark.parametrize("axis", [1, -2, 0])
def test_quantize_per_axis(to: str, axis: int, seed: int, tmp_path: Path) -> None:
    shape = "B,5,S" if axis else "5,B,S"
    made = node("QuantizeLinear", f"x:f32[{shape}] scale:f32[5] zero:{to}[5]", axis=axis, draw={"x": wide})
    as_reference(made, seed, tmp_path)


@pytest.mark.parametrize("to", WHOLE)
@pytest.mark.parametrize(("axis", "block", "shape", "scales"), [(1, 4, "B,10,S", "B,3,S"), (-1, 3, "B,S,9", "B,S,3")])
def test_quantize_blocks(to: str, axis: int, block: int, shape: str, scales: str, seed: int, tmp_path: Path) -> None:
    inputs = f"x:f32[{shape}] scale:f32[{scales}] zero:{to}[{scales}]"
    as_reference(node("QuantizeLinear", inputs, axis=axis, block_size=block, draw={"x": wide}), seed, tmp_path)


@pytest.mark.parametrize("to", [*EIGHT, "f4E2M1FN"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_quantize_to_floats(to: str, saturate: int, seed: int, tmp_path: Path) -> None:
    def special(random: np.random.Generator, sizes: tuple[int, ...]) -> Any:
        found = wide(random, sizes)
        if to != "f4E2M1FN":  # which has no nan
            found.reshape(-1)[:3] = np.nan, np.inf, -np.inf
        return found

    drawn = {"x": special, "zero": zeros}
    made = node("QuantizeLinear", f"x:f32[B,S,5] scale:f32[5] zero:{to}[5]", axis=2, saturate=saturate, draw=drawn)
    as_reference(made, seed, tmp_path)


@pytest.mark.parametrize("to", ["ui8", "i8", "i16", "ui4", "i2", "f8E4M3FN", "f8E5M2", "f4E2M1FN"])
def test_quantize_output_dtype(to: str, seed: int, tmp_path: Path) -> None:
    made = node("QuantizeLinear", "x:f32[B,S] scale:f32[]", output_dtype=NUMBERS[to], draw={"x": wide})
    as_reference(made, seed, tmp_path)


@pytest.mark.parametrize(
    ("x", "scale"), [("f16", "f16"), ("bf16", "bf16"), ("f32", "f16"), ("i32", "f32"), ("f16", "f32")]
)
@pytest.mark.parametrize("to", ["i8", "ui16"])
def test_quantize_divides_in_the_type_of_the_scale(x: str, scale: str, to: str, seed: int, tmp_path: Path) -> None:
    def near(random: np.random.Generator, sizes: tuple[int, ...]) -> Any:
        return random.integers(-200, 200, sizes) if x == "i32" else random.standard_normal(sizes) * 30

    made = node("QuantizeLinear", f"x:{x}[B,S,5] scale:{scale}[] zero:{to}[]", draw={"x": near})
    random = np.random.default_rng(seed)
    for sizes in SIZES:
        arrays = made.arrays(random, sizes)
        kind = dtype(scale).numpy
        quotient = (arrays["x"].astype(kind) / arrays["scale"]).astype(np.float64)
        low, high = integer_range(dtype(to))
        want = np.clip(np.rint(quotient) + arrays["zero"].astype(np.float64), low, high).astype(dtype(to).numpy)
        same(on_smelt(made.model(arrays), arrays, tmp_path)[0], want)


@pytest.mark.parametrize("precision", ["f16", "bf16", "f32"])
def test_quantize_precision(precision: str, seed: int, tmp_path: Path) -> None:
    inputs = "x:f32[B,S,5] scale:f32[5] zero:i16[5]"
    made = node(
        "QuantizeLinear", inputs, axis=2, precision=NUMBERS[precision], draw={"x": lambda r, s: r.normal(size=s) * 99}
    )
    as_reference(made, seed, tmp_path)


def test_quantize_scales_that_are_powers_of_two(seed: int, tmp_path: Path) -> None:
    drawn = {"x": wide, "scale": powers}
    made = node(
        "QuantizeLinear", "x:f32[B,S,6] scale:f8E8M0FNU[B,S,2] zero:i8[B,S,2]", axis=2, block_size=3, draw=drawn
    )
    random = np.random.default_rng(seed)
    arrays = made.arrays(random, SIZES[0])
    scale = np.repeat(arrays["scale"].astype(np.float32), 3, 2)
    zero = np.repeat(arrays["zero"].astype(np.float32), 3, 2)
    want = np.clip(np.rint(arrays["x"] / scale) + zero, -128, 127).astype(np.int8)
    same(on_smelt(made.model(arrays), arrays, tmp_path)[0], want)


@pytest.mark.parametrize("version", [10, 13, 19, 21, 23, 24])
def test_quantize_versions(version: int, seed: int, tmp_path: Path) -> None:
    as_onnxruntime(node("QuantizeLinear", "x:f32[B,S,5] scale:f32[] zero:ui8[]", version), seed, tmp_path)
    as_onnxruntime(node("QuantizeLinear", "x:f32[B,S,5] scale:f32[]", version), seed, tmp_path)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ("x:f32[2,5] scale:f32[4]", {}, "does not fit axis 1"),
        ("x:f32[2,5] scale:f32[5] zero:ui8[5]", {"axis": 2}, "axis is out of range"),
        ("x:f32[2,10] scale:f32[2,3]", {"block_size": 3}, "do not fit blocks of 3"),
        ("x:f32[2,10] scale:f32[2,5]", {"block_size": 3}, "do not fit blocks of 3"),
        ("x:f32[2,10] scale:f32[1,4]", {"block_size": 3}, "do not fit blocks of 3"),
        ("x:f32[2,10] scale:f32[2,4]", {"block_size": -3}, "'block_size' is negative"),
        ("x:f32[2,5] scale:f32[2,5]", {}, "does not fit axis 1"),
        ("x:f32[2,5] scale:f32[] zero:i8[]", {"output_dtype": 2}, "not the zero point's type"),
    ],
)
def test_quantize_refuses_what_does_not_fit(
    inputs: str, attributes: dict[str, int], message: str, tmp_path: Path
) -> None:
    made = node("QuantizeLinear", inputs, **attributes)
    arrays = made.arrays(np.random.default_rng(0), {})
    with pytest.raises(ShapeError, match=message):
        on_smelt(made.model(arrays), arrays, tmp_path)


@pytest.mark.parametrize(
    "attributes", [{"output_dtype": 6}, {"output_dtype": 1}, {"output_dtype": 24}, {"precision": 7}]
)
def test_quantize_refuses_other_types(attributes: dict[str, int], tmp_path: Path) -> None:
    made = node("QuantizeLinear", "x:f32[2,5] scale:f32[]", **attributes)
    arrays = made.arrays(np.random.default_rng(0), {})
    with pytest.raises(UnsupportedError):
        on_smelt(made.model(arrays), arrays, tmp_path)


# ---- DequantizeLinear ----


@pytest.mark.parametrize("of", [*WHOLE, "i32"])
@pytest.mark.parametrize(
    ("shape", "scales", "attributes"),
    [
        ("B,S,5", "", {}),
        ("B,S,5", "5", {"axis": -1}),
        ("5,B,S", "5", {"axis": 0}),
        ("B,10,S", "B,3,S", {"axis": 1, "block_size": 4}),
    ],
)
def test_dequantize(of: str, shape: str, scales: str, attributes: dict[str, int], seed: int, tmp_path: Path) -> None:
    zero = "" if of == "i32" else f" zero:{of}[{scales}]"
    made = node("DequantizeLinear", f"x:{of}[{shape}] scale:f32[{scales}]{zero}", **attributes)
    as_reference(made, seed, tmp_path)


@pytest.mark.parametrize("of", [*EIGHT, "f4E2M1FN"])
def test_dequantize_floats(of: str, seed: int, tmp_path: Path) -> None:
    as_reference(node("DequantizeLinear", f"x:{of}[B,5,S] scale:f32[5]", draw={"x": wide}), seed, tmp_path)
    made = node("DequantizeLinear", f"x:{of}[B,S] scale:f32[] zero:{of}[]", draw={"x": wide, "zero": zeros})
    as_reference(made, seed, tmp_path)


@pytest.mark.parametrize("scale", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("to", ["f16", "bf16", "f32", None])
def test_dequantize_output_type(scale: str, to: str | None, seed: int, tmp_path: Path) -> None:
    more = {} if to is None else {"output_dtype": NUMBERS[to]}
    made = node("DequantizeLinear", f"x:i16[B,S] scale:{scale}[] zero:i16[]", **more)
    random = np.random.default_rng(seed)
    arrays = made.arrays(random, SIZES[1])
    real = (arrays["x"].astype(np.int32) - arrays["zero"]).astype(np.float32) * arrays["scale"].astype(np.float32)
    same(on_smelt(made.model(arrays), arrays, tmp_path)[0], real.astype(dtype(to or scale).numpy))


def test_dequantize_scales_that_are_powers_of_two(seed: int, tmp_path: Path) -> None:
    inputs = "x:f4E2M1FN[B,64] scale:f8E8M0FNU[B,2]"
    made = node("DequantizeLinear", inputs, block_size=32, output_dtype=1, draw={"x": wide, "scale": powers})
    arrays = made.arrays(np.random.default_rng(seed), SIZES[0])
    want = arrays["x"].astype(np.float32) * np.repeat(arrays["scale"].astype(np.float32), 32, 1)
    same(on_smelt(made.model(arrays), arrays, tmp_path)[0], want)
    without = node("DequantizeLinear", inputs, block_size=32, draw={"x": wide, "scale": powers})
    with pytest.raises(UnsupportedError, match="output_dtype"):
        on_smelt(without.model(arrays), arrays, tmp_path)


def test_dequantize_vector_needs_no_axis(seed: int, tmp_path: Path) -> None:
    made = node("DequantizeLinear", "x:i8[5] scale:f32[5] zero:i8[5]")
    arrays = made.arrays(np.random.default_rng(seed), {})
    want = (arrays["x"].astype(np.int32) - arrays["zero"]).astype(np.float32) * arrays["scale"]
    same(on_smelt(made.model(arrays), arrays, tmp_path)[0], want)


# ---- DynamicQuantizeLinear ----


@pytest.mark.parametrize("draw", [wide, zeros, lambda r, s: r.uniform(1, 2, s), lambda r, s: -r.uniform(1, 2, s)])
def test_dynamic_quantize(draw: Any, seed: int, tmp_path: Path) -> None:
    made = node("DynamicQuantizeLinear", "x:f32[B,S,5]", outputs=(0, 1, 2), draw={"x": draw})
    as_reference(made, seed, tmp_path)


# ---- matrix multiplication ----

DRAWN = {"y_scale": lambda r, s: r.uniform(1, 3, s), "zero_w": zeros}


@pytest.mark.parametrize(
    "inputs",
    [
        "A:ui8[B,S,6] B:i8[6,5]",
        "A:ui8[B,S,6] B:ui8[B,6,5] za:ui8[] zb:ui8[]",
        "A:i8[S,6] B:i8[6,5] za:i8[1] zb:i8[5]",
        "A:ui8[6] B:i8[6,5]",
        "A:ui8[B,S,6] B:i8[6]",
    ],
)
def test_matmul_integer(inputs: str, seed: int, tmp_path: Path) -> None:
    as_onnxruntime(node("MatMulInteger", inputs, 10), seed, tmp_path)


@pytest.mark.parametrize(("za", "zb"), [("S", "5"), ("B,S,1", "1,1,5"), ("", "B,1,5")])
def test_matmul_integer_by_rows_and_columns(za: str, zb: str, seed: int, tmp_path: Path) -> None:
    made = node("MatMulInteger", f"A:ui8[B,S,6] B:i8[B,6,5] za:ui8[{za}] zb:i8[{zb}]", 10)
    random = np.random.default_rng(seed)
    for sizes in SIZES:
        arrays = made.arrays(random, sizes)
        a, b, left, right = (arrays[name].astype(np.int32) for name in ("A", "B", "za", "zb"))
        left = left.reshape(-1, 1) if left.ndim == 1 else left
        same(on_smelt(made.model(arrays), arrays, tmp_path)[0], (a - left) @ (b - right))


@pytest.mark.parametrize(
    "inputs",
    [
        "a:ui8[B,S,6] a_scale:f32[] za:ui8[] b:ui8[6,5] b_scale:f32[] zb:ui8[] y_scale:f32[] zy:ui8[]",
        "a:i8[B,S,6] a_scale:f32[] za:i8[] b:i8[B,6,5] b_scale:f32[] zb:i8[] y_scale:f32[] zy:i8[]",
        "a:ui8[S,6] a_scale:f32[1] za:ui8[1] b:i8[6,5] b_scale:f32[5] zb:i8[5] y_scale:f32[1] zy:ui8[1]",
    ],
)
@pytest.mark.parametrize("version", [10, 21])
def test_qlinear_matmul(inputs: str, version: int, seed: int, tmp_path: Path) -> None:
    as_onnxruntime(node("QLinearMatMul", inputs, version, draw=DRAWN), seed, tmp_path, off_by_one=0.02)


@pytest.mark.parametrize(
    ("a", "left", "b", "right"),
    [
        ("B,S,6", "B,S,1", "B,6,5", "B,1,5"),
        ("S,6", "S", "6", ""),
        ("B,S,6", "B,S,1", "6", ""),
        ("6", "", "B,6,5", "B,1,5"),
    ],
)
@pytest.mark.parametrize("scale", ["f32", "f16"])
def test_qlinear_matmul_by_rows_and_columns(
    a: str, left: str, b: str, right: str, scale: str, seed: int, tmp_path: Path
) -> None:
    inputs = f"a:i8[{a}] a_scale:{scale}[{left}] za:i8[{left}] b:ui8[{b}] b_scale:{scale}[{right}] zb:ui8[{right}]"
    made = node(
        "QLinearMatMul", f"{inputs} y_scale:{scale}[] zy:ui8[]", 21, draw={"y_scale": lambda r, s: r.uniform(1, 3, s)}
    )
    random = np.random.default_rng(seed)
    for sizes in SIZES:
        arrays = made.arrays(random, sizes)

        def real(name: str, arrays: dict[str, Array] = arrays) -> Array:
            zero, factor = arrays[f"z{name}"].astype(np.float64), arrays[f"{name}_scale"].astype(np.float64)
            if name == "a" and zero.ndim == 1:
                zero, factor = zero[:, None], factor[:, None]
            return (arrays[name].astype(np.float64) - zero) * factor

        y = np.matmul(real("a"), real("b")) / arrays["y_scale"].astype(np.float64)
        want = np.clip(np.rint(y) + arrays["zy"], 0, 255)
        have = on_smelt(made.model(arrays), arrays, tmp_path)[0]
        assert have.shape == want.shape
        apart = np.abs(have.astype(np.float64) - want)
        assert apart.max(initial=0) <= 1
        assert np.sum(apart) <= max(2, 0.02 * apart.size)


@pytest.mark.parametrize("of", EIGHT)
def test_qlinear_matmul_of_floats(of: str, seed: int, tmp_path: Path) -> None:
    inputs = f"a:{of}[B,S,6] a_scale:f32[] za:{of}[] b:{of}[6,5] b_scale:f32[] zb:{of}[] y_scale:f32[] zy:{of}[]"
    drawn = dict.fromkeys(("za", "zb", "zy"), zeros) | dict.fromkeys(("a_scale", "b_scale", "y_scale"), powers)
    made = node("QLinearMatMul", inputs, 21, draw=drawn)
    arrays = made.arrays(np.random.default_rng(seed), SIZES[0])
    real = [arrays[name].astype(np.float32) * arrays[f"{name}_scale"] for name in ("a", "b")]
    most = float(ml_dtypes.finfo(dtype(of).numpy).max)
    want = np.clip(np.matmul(*real) / arrays["y_scale"], -most, most).astype(dtype(of).numpy)
    same(on_smelt(made.model(arrays), arrays, tmp_path)[0], want)


CONVOLUTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("B,4,H,W", "6,2,3,2", {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ("B,3,H,W", "5,3,3,3", {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ("B,3,H,W", "5,3,2,2", {"auto_pad": "SAME_LOWER"}),
    ("B,3,H,W", "5,3,3,3", {"auto_pad": "VALID", "dilations": [2, 1], "kernel_shape": [3, 3]}),
    ("B,4,H", "4,1,3", {"group": 4, "pads": [1, 1]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
@pytest.mark.parametrize("types", [("ui8", "ui8"), ("ui8", "i8")])
def test_conv_integer(
    x: str, w: str, attributes: dict[str, Any], types: tuple[str, str], seed: int, tmp_path: Path
) -> None:
    a, b = types
    made = node("ConvInteger", f"x:{a}[{x}] w:{b}[{w}] zx:{a}[] zw:{b}[]", 10, **attributes)
    as_onnxruntime(made, seed, tmp_path)
    as_onnxruntime(node("ConvInteger", f"x:{a}[{x}] w:{b}[{w}]", 10, **attributes), seed, tmp_path)


@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
@pytest.mark.parametrize("types", [("ui8", "i8"), ("ui8", "ui8"), ("i8", "i8")])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_qlinear_conv(
    x: str,
    w: str,
    attributes: dict[str, Any],
    types: tuple[str, str],
    per_channel: bool,
    bias: bool,
    seed: int,
    tmp_path: Path,
) -> None:
    a, b = types
    channels = w.split(",")[0] if per_channel else ""
    inputs = f"x:{a}[{x}] x_scale:f32[] zx:{a}[] w:{b}[{w}] w_scale:f32[{channels}] zero_w:{b}[{channels}]"
    inputs += f" y_scale:f32[] zy:{a}[]" + (f" bias:i32[{w.split(',')[0]}]" if bias else "")
    drawn = DRAWN | {"bias": lambda r, s: r.integers(-5000, 5000, s)}
    as_onnxruntime(
        node("QLinearConv", inputs, 10, draw=drawn, weights="w w_scale zero_w", **attributes), seed, tmp_path, 0.02
    )


def test_conv_integer_by_channels(seed: int, tmp_path: Path) -> None:
    made = node("ConvInteger", "x:ui8[B,3,H] w:i8[4,3,1] zx:ui8[1] zw:i8[4]", 10)
    arrays = made.arrays(np.random.default_rng(seed), SIZES[0])
    x, w = arrays["x"].astype(np.int32) - arrays["zx"], arrays["w"].astype(np.int32)[:, :, 0] - arrays["zw"][:, None]
    same(on_smelt(made.model(arrays), arrays, tmp_path)[0], np.einsum("bch,oc->boh", x, w))


def test_a_scale_per_row_of_the_result_is_refused(tmp_path: Path) -> None:
    inputs = "a:ui8[3,6] a_scale:f32[] za:ui8[] b:ui8[6,5] b_scale:f32[] zb:ui8[] y_scale:f32[3] zy:ui8[3]"
    made = node("QLinearMatMul", inputs, 21)
    arrays = made.arrays(np.random.default_rng(0), {})
    with pytest.raises(UnsupportedError, match="y_scale"):
        on_smelt(made.model(arrays), arrays, tmp_path)


def test_scales_of_another_rank_are_refused(tmp_path: Path) -> None:
    made = node("MatMulInteger", "A:ui8[3,6] B:i8[6,5] za:ui8[1,3,1]", 10)
    arrays = made.arrays(np.random.default_rng(0), {})
    with pytest.raises(ShapeError, match="rank"):
        on_smelt(made.model(arrays), arrays, tmp_path)
