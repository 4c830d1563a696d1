"""Which images a depthwise convolution can expand by itself: rows by a packed matrix, elementwise ops, padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.engine.compile import lower
from smelt.ir.attributes import ConvDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.kernel.build.expand_depthwise import find_expansion
from smelt.kernel.plan.materialise import _users
from smelt.shape import Shape

LAST = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
NONE = (0, 0, 0, 0)


def found(low: Any = NONE, high: Any = NONE, interior: Any = NONE, *, twice: bool = False) -> Any:
    """What is found behind the convolution of an image of 1 × 1 products, padded; `twice`: a result as well."""
    f = FuncBuilder("main", [Shape("f32", 1, 7, 9, 5)])
    plain: dict[str, Any] = {"dimension_numbers": LAST, "batch_group_count": 1}
    image = f.convolution(f.args[0], f.constant(np.ones((1, 1, 5, 16), "f")), **plain, feature_group_count=1)
    image = f.maximum(image, f.full(0.0, image.shape))
    padded = image
    if (low, high, interior) != (NONE, NONE, NONE):
        sides = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": interior}
        padded = f.pad(image, f.constant(0.0, "f32"), **sides)
    channels = padded.shape.numbers()[3]
    made = f.convolution(padded, f.constant(np.ones((3, 3, 1, channels), "f")), **plain, feature_group_count=channels)
    lowered = lower(Program.of(f.func(made, *([image] if twice else []))))
    body = lowered.main.body
    (conv,) = (op for op in body.ops if op.name == "smelt.depthwise_conv")
    return find_expansion(conv, _users(body))


@pytest.mark.parametrize(("low", "high"), [(NONE, NONE), ((0, 1, 2, 0), (0, 1, 1, 0)), ((0, 0, 1, 0), NONE)])
def test_an_expansion_is_found(low: Any, high: Any) -> None:
    expansion = found(low, high)
    assert expansion is not None
    assert expansion.before == (low[1], low[2])
    assert expansion.dot.name == "smelt.packed_dot"
    assert (expansion.edge is None) == (low == high == NONE)


@pytest.mark.parametrize(
    ("low", "high", "interior"),
    [
        ((1, 0, 0, 0), NONE, NONE), (NONE, (1, 0, 0, 0), NONE), ((0, 0, 0, 1), NONE, NONE), (NONE, (0, 0, 0, 2), NONE),
        ((0, -1, 0, 0), NONE, NONE), ((0, 1, 0, 0), (0, 0, -1, 0), NONE), (NONE, NONE, (0, 1, 0, 0)),
    ],
)  # fmt: skip
def test_padding_of_batches_and_channels_negative_or_inside_is_none(low: Any, high: Any, interior: Any) -> None:
    assert found(low, high, interior) is None


def test_an_image_that_something_else_reads_is_none() -> None:
    assert found((0, 1, 1, 0), (0, 1, 1, 0), twice=True) is None
