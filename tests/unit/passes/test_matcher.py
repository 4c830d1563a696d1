"""The matcher's look through conversions: those that lose nothing, and all of them."""

from __future__ import annotations

import pytest

from smelt.ir.build import FuncBuilder
from smelt.ir.rewrite import Edit
from smelt.passes.recognise.matcher import Matcher
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
