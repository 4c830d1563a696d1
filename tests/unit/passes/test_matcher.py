"""The matcher's look through conversions: those that lose nothing, and all of them."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.ir.build import FuncBuilder
from smelt.ir.rewrite import Edit
from smelt.passes.recognise.matcher import Matcher, is_lowest
from smelt.shape import Shape


@pytest.mark.parametrize(
    ("types", "exact", "unconverted"),
    [
        (("f16", "f32"), 0, 0),
        (("f16", "f32", "f64"), 0, 0),
        (("f16", "bf16"), 1, 0),  # as wide, but not the same numbers
        (("bf16", "f16", "f32"), 1, 0),
        (("f32", "f16"), 1, 0),
        (("i32", "f64"), 1, 1),
        (("f32", "i32"), 1, 1),
    ],
)
def test_through_conversions(types: tuple[str, ...], exact: int, unconverted: int) -> None:
    f = FuncBuilder("main", [Shape(types[0], 2)])
    values = [f.args[0]]
    for element in types[1:]:
        values.append(f.convert(values[-1], result=Shape(element, 2)))
    func = f.func(values[-1])
    matcher = Matcher(Edit(func, {}))
    assert matcher.skip_lossless(values[-1]) is values[exact]
    assert matcher.skip_conversions(values[-1]) is values[unconverted]


@pytest.mark.parametrize(
    ("element", "number", "wanted"),
    [
        ("f32", -np.inf, True), ("f32", -3.4028234663852886e38, True), ("f32", -1e38, True), ("f32", -1e36, False),
        ("f32", -65504.0, False), ("f64", -1e300, True), ("f64", -65504.0, False), ("bf16", -3.3895e38, True),
        ("f16", -65504.0, True), ("f16", -np.inf, True), ("f16", -1000.0, False), ("f16", 65504.0, False),
        ("f32", np.inf, False), ("f32", 0.0, False),
    ],
)  # fmt: skip
def test_the_lowest_number_of_a_type(element: str, number: float, wanted: bool) -> None:
    """f16 ends at -65504; the others go to about -3.4e38 at least, and masks are often a little above."""
    assert is_lowest(number, FuncBuilder("main", [Shape(element, 2)]).args[0]) == wanted
