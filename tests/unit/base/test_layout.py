"""Layouts: what they store is what their text says, element by element; kernels store the same."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.device import cpu
from smelt.engine.native import compile_all
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.layout import Layout, panels
from smelt.shape import Shape

CASES = [
    ("a->a", (5,)),
    ("ab->b a", (3, 4)),
    ("ab->(b a)", (3, 4)),
    ("gkn->g n/4 k n%4", (2, 3, 8)),
    ("gkn->g n/4 k n%4", (2, 3, 7)),
    ("gkn->g n/2 k/4 (n%2 k%4)", (1, 6, 5)),
    ("ab->a%2 b/6 (b%3 a/2) b/3%2", (5, 7)),
]


@pytest.mark.parametrize(("text", "sizes"), CASES)
def test_an_element_is_where_its_digits_say(text: str, sizes: tuple[int, ...]) -> None:
    layout, x = Layout.parse(text), np.arange(1, 1 + int(np.prod(sizes))).reshape(sizes)
    stored = layout.store(x)
    assert (str(layout), stored.shape) == (text, layout.stored_sizes(sizes))
    for index in np.ndindex(*sizes):
        at = []
        for group in layout.axes:
            digits = [(index[digit.axis] // digit.by, digit.size) for digit in group]
            place = digits[0][0] % (digits[0][1] or 1 << 30)
            for value, size in digits[1:]:
                count = size or -(-sizes[group[1].axis] // group[1].by)
                place = place * count + value % count
            at.append(place)
        assert stored[tuple(at)] == x[index], index
    assert np.count_nonzero(stored) == x.size, "the rest is zero"
    np.testing.assert_array_equal(layout.restore(stored, sizes), x)


@pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")
def test_kernels_store_the_same() -> None:
    programs, cases = [], []
    for (text, sizes), element in zip(CASES, ("f32", "i8", "i64", "f32", "i8", "bf16", "i16"), strict=True):
        f = FuncBuilder("main", [Shape(element, *sizes)])
        programs.append(Program.of(f.func(f.op("smelt.relayout", f.args[0], layout=text).result)))
        x = np.arange(1, 1 + int(np.prod(sizes))).reshape(sizes).astype(Shape(element).element.numpy)
        cases.append((x, Layout.parse(text).store(x)))
    for made, (x, stored) in zip(compile_all(programs), cases, strict=True):
        assert not isinstance(made, Exception), made
        np.testing.assert_array_equal(made(x)[0], stored)


def test_panels_of_one_column_have_one_text() -> None:
    assert str(Layout.parse(panels(1))) == str(Layout.parse("gkn->g n k n%1"))
    assert panels(64, 4) == "gkn->g n/64 k/4 (n%64 k%4)"
