"""Products of bytes: `pack_quads`, `packed_qdot` and `packed_qconv` mean sums of whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.errors import VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.shape import Shape


def test_four_steps_of_a_column_lie_side_by_side() -> None:
    x = np.arange(-15, 15).reshape(1, 6, 5).astype(np.int8)
    f = FuncBuilder("main", [Shape("i8", 1, 6, 5)])
    (packed,) = run(Program.of(f.func(f.op("smelt.pack_quads", f.args[0], width=2).result)), [x])
    assert packed.shape == (1, 3, 2, 8)
    np.testing.assert_array_equal(packed[0, 0, 0], [*x[0, :4, 0], *x[0, :4, 1]])
    np.testing.assert_array_equal(packed[0, 2, 1], [*x[0, 4:, 4], 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 5, 7), (1, 1, 1), (2, 8, 4), (0, 3, 2)])
def test_packed_qdot_is_a_product(rows: int, depth: int, columns: int) -> None:
    random = np.random.default_rng(1)
    a, b = random.integers(0, 256, (2, rows, depth)), random.integers(-128, 128, (2, depth, columns))
    f = FuncBuilder("main", [Shape("ui8", *a.shape), Shape("i8", *b.shape)])
    panels = f.op("smelt.pack_quads", f.args[1], width=3).result
    made = f.op("smelt.packed_qdot", f.args[0], panels, result=Shape("i32", 2, rows, columns)).result
    (result,) = run(Program.of(f.func(made)), [a.astype(np.uint8), b.astype(np.int8)])
    np.testing.assert_array_equal(result, a @ b)


def test_packed_qconv_is_a_convolution_in_groups() -> None:
    random = np.random.default_rng(2)
    x, w = (
        random.integers(0, 256, (2, 5, 7, 8)),
        random.integers(-128, 128, (2, 3, 4, 6)),
    )  # two groups of four channels
    expected = np.zeros((2, 4, 3, 6), np.int64)
    for y, column, i, j, group in np.ndindex(4, 3, 2, 3, 2):
        pixel = x[:, y + i, 2 * column + j, 4 * group : 4 * group + 4]
        expected[:, y, column, 3 * group : 3 * group + 3] += pixel @ w[i, j, :, 3 * group : 3 * group + 3]
    matrices = w.reshape(-1, 2, 3).transpose(1, 0, 2)
    f = FuncBuilder("main", [Shape("ui8", *x.shape), Shape("i8", *matrices.shape)])
    panels = f.op("smelt.pack_quads", f.args[1], width=2).result
    taps: dict[str, Any] = {"window": (2, 3), "strides": (1, 2), "dilations": (1, 1)}
    made = f.op("smelt.packed_qconv", f.args[0], panels, result=Shape("i32", *expected.shape), **taps).result
    (result,) = run(Program.of(f.func(made)), [x.astype(np.uint8), matrices.astype(np.int8)])
    np.testing.assert_array_equal(result, expected)


def test_other_types_are_refused() -> None:
    f = FuncBuilder("main", [Shape("i8", 1, 2, 4), Shape("i8", 1, 4, 4)])
    panels = f.op("smelt.pack_quads", f.args[1], width=4).result
    with pytest.raises(VerifyError, match="of ui8"):
        f.op("smelt.packed_qdot", f.args[0], panels, result=Shape("i32", 1, 2, 4))


def test_round_to_byte_is_quantize_linear(seed: int) -> None:
    """As ONNX says it: ties to even after the division, then the zero point, then the limits."""
    reference = pytest.importorskip("onnx.reference.ops.op_quantize_linear").QuantizeLinear_21
    random = np.random.default_rng(seed)
    x = np.concatenate([random.normal(size=500) * 20, np.arange(-40, 40) * 0.125, [np.inf, -np.inf, 1e38, -0.0]])
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
        node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
        with np.errstate(all="ignore"):
            (expected,) = reference(node, {"log": lambda *_: None}).run(x, scale, np.array(zero, kind))
        np.testing.assert_array_equal(result, expected)
