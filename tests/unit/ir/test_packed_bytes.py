"""int8 GEMM: `packed_dot` and `packed_conv` of ui8 by i8 against integer arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt import layout
from smelt.errors import VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.shape import Shape


def test_four_steps_of_a_column_lie_side_by_side() -> None:
    x = np.arange(-15, 15).reshape(1, 6, 5).astype(np.int8)
    f = FuncBuilder("main", [Shape("i8", 1, 6, 5)])
    (packed,) = run(Program.of(f.func(f.op("smelt.relayout", f.args[0], layout=layout.panels(2, 4)).result)), [x])
    assert packed.shape == (1, 3, 2, 8)
    np.testing.assert_array_equal(packed[0, 0, 0], [*x[0, :4, 0], *x[0, :4, 1]])
    np.testing.assert_array_equal(packed[0, 2, 1], [*x[0, 4:, 4], 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 5, 7), (1, 1, 1), (2, 8, 4), (0, 3, 2)])
def test_packed_dot_of_bytes_is_a_product(rows: int, depth: int, columns: int) -> None:
    random = np.random.default_rng(1)
    a, b = random.integers(0, 256, (2, rows, depth)), random.integers(-128, 128, (2, depth, columns))
    f = FuncBuilder("main", [Shape("ui8", *a.shape), Shape("i8", *b.shape)])
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(3, 4)).result
    made = f.op(
        "smelt.packed_dot", f.args[0], panels, layout=layout.panels(3, 4), result=Shape("i32", 2, rows, columns)
    ).result
    (result,) = run(Program.of(f.func(made)), [a.astype(np.uint8), b.astype(np.int8)])
    np.testing.assert_array_equal(result, a @ b)


def test_packed_conv_of_bytes_is_a_convolution_in_groups() -> None:
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
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(2, 4)).result
    taps: dict[str, Any] = {"window": (2, 3), "strides": (1, 2), "dilations": (1, 1)}
    made = f.op(
        "smelt.packed_conv", f.args[0], panels, layout=layout.panels(2, 4), result=Shape("i32", *expected.shape), **taps
    ).result
    (result,) = run(Program.of(f.func(made)), [x.astype(np.uint8), matrices.astype(np.int8)])
    np.testing.assert_array_equal(result, expected)


def test_other_types_are_refused() -> None:
    f = FuncBuilder("main", [Shape("i8", 1, 2, 4), Shape("i8", 1, 4, 4)])
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(4, 4)).result
    with pytest.raises(VerifyError, match="ui8, i8 and i32"):
        f.op("smelt.packed_dot", f.args[0], panels, layout=layout.panels(4, 4), result=Shape("i32", 1, 2, 4))
