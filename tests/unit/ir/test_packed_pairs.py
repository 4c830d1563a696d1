"""Products of bf16: `packed_dot` and `packed_conv` mean sums of f32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt import layout
from smelt.errors import VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.shape import Shape


def test_two_steps_of_a_column_lie_side_by_side() -> None:
    x = np.arange(-10, 5).reshape(1, 3, 5).astype(ml_dtypes.bfloat16)
    f = FuncBuilder("main", [Shape("bf16", 1, 3, 5)])
    (packed,) = run(Program.of(f.func(f.op("smelt.relayout", f.args[0], layout=layout.panels(2, 2)).result)), [x])
    assert packed.shape == (1, 3, 2, 4)
    np.testing.assert_array_equal(packed[0, 0, 0], [*x[0, :2, 0], *x[0, :2, 1]])
    np.testing.assert_array_equal(packed[0, 2, 1], [x[0, 2, 4], 0, 0, 0])


@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 5, 7), (1, 1, 1), (2, 8, 4), (0, 3, 2)])
def test_packed_dot_of_bf16_is_a_product(rows: int, depth: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.integers(-9, 10, (2, rows, depth)), random.integers(-9, 10, (1, depth, columns))
    f = FuncBuilder("main", [Shape("bf16", *a.shape), Shape("bf16", *b.shape)])
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(3, 2)).result
    made = f.op(
        "smelt.packed_dot", f.args[0], panels, layout=layout.panels(3, 2), result=Shape("f32", 2, rows, columns)
    ).result
    (result,) = run(Program.of(f.func(made)), [each.astype(ml_dtypes.bfloat16) for each in (a, b)])
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, a @ b)


def test_packed_conv_of_bf16_wants_whole_pairs_of_channels() -> None:
    f = FuncBuilder("main", [Shape("bf16", 1, 4, 4, 3), Shape("bf16", 1, 27, 2)])
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(2, 2)).result
    taps: dict[str, Any] = {"window": (3, 3), "strides": (1, 1), "dilations": (1, 1)}
    with pytest.raises(VerifyError, match="multiple of 2"):
        f.op(
            "smelt.packed_conv", f.args[0], panels, layout=layout.panels(2, 2), result=Shape("f32", 1, 2, 2, 2), **taps
        )
