"""Arithmetic on sizes while an ONNX graph is read: numbers as ONNX computes them, symbols where a proof exists."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.dim import floordiv, maximum, minimum, mod, symbol
from smelt.dtype import f32, i64
from smelt.errors import ShapeError, SmeltError
from smelt.model import load
from smelt.read.onnx import fold
from smelt.read.onnx.items import Tensor
from tests.unit.read.refused import one_node

N, M = symbol("N"), symbol("M")  # sizes: at least 0

NUMBERS: dict[str, tuple[Callable[..., Any], Callable[[int, int], Any]]] = {
    "divide": (fold.divide, lambda a, b: int(a / b) if b else None),  # toward zero
    "modulo": (fold.modulo, lambda a, b: a % b if b else None),
    "remainder": (fold.remainder, lambda a, b: a - b * int(a / b) if b else None),
    "equal": (fold.equal, lambda a, b: a == b),
    "less": (fold.less, lambda a, b: a < b),
    "at_most_": (fold.at_most_, lambda a, b: a <= b),
    "larger": (fold.larger, max),
    "smaller": (fold.smaller, min),
    "power": (fold.power, lambda a, b: a**b if 0 <= b <= 64 else None),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    ours, theirs = NUMBERS[name]
    for a, b in product((-7, -3, -1, 0, 1, 2, 3, 7), (-3, -2, -1, 0, 1, 2, 3, 7)):
        assert ours(a, b) == theirs(a, b), (a, b)


@pytest.mark.parametrize(
    ("found", "want"),
    [
        (fold.divide(6 * N, 3), 2 * N), (fold.divide(N, 2), floordiv(N, 2)), (fold.divide(N, -2), None),
        (fold.divide(N - 1, 2), None), (fold.divide(N, 0), None), (fold.divide(N, M), floordiv(N, M)),
        (fold.divide(7, M), floordiv(7, M)), (fold.divide(-7, M), None),
        (fold.divide_floats(4 * N, 2), 2 * N), (fold.divide_floats(N, 2), None), (fold.divide_floats(N, 0), None),
        (fold.divide_floats(N, M), None), (fold.divide_floats(8, 2), 4),
        (fold.modulo(N, 4), mod(N, 4)), (fold.modulo(N, 0), None), (fold.remainder(N, 4), mod(N, 4)),
        (fold.remainder(N - 1, 4), None), (fold.remainder(N, 0), None), (fold.remainder(N, -4), None),
        (fold.remainder(N, M), mod(N, M)),
        (fold.power(N, 2), N * N), (fold.power(N, 0), 1), (fold.power(2, 64), 2**64), (fold.power(2, 65), None),
        (fold.power(2, N), None), (fold.power(N, -1), None),
        (fold.absolute(N), N), (fold.absolute(N - 1), None), (fold.absolute(-3), 3), (fold.absolute(-2.5), 2.5),
        (fold.sign(N), None), (fold.sign(N + 1), 1), (fold.sign(-4), -1), (fold.sign(0), 0), (fold.sign(3), 1),
        (fold.round_down(2.5), 2), (fold.round_down(-2.5), -3), (fold.round_down(N), N),
        (fold.round_up(2.5), 3), (fold.round_up(-2.5), -2), (fold.round_up(N), N),
        (fold.larger(N, 4), maximum(N, 4)), (fold.smaller(N, 4), minimum(N, 4)), (fold.larger(N, -1), N),
        (fold.equal(N, N), True), (fold.equal(N, M), None), (fold.equal(N, 3), None), (fold.equal(N, N + 1), False),
        (fold.equal(N, -1), False), (fold.equal(-1, N), False), (fold.equal(3, N), None),
        (fold.less(N, M), None), (fold.less(N, N), False), (fold.less(N, N + 1), True), (fold.less(-1, N), True),
        (fold.less(N, 0), False), (fold.less(0, N), None), (fold.less(N + M, N), False),
        (fold.at_most_(N, M), None), (fold.at_most_(N, N), True), (fold.at_most_(0, N), True),
        (fold.at_most_(1, N), None),
        (fold.at_most_(N + 1, N), False), (fold.at_most_(N, -1), False), (fold.at_most_(N, 0), None),
    ],
)  # fmt: skip
def test_symbols(found: Any, want: Any) -> None:
    assert found is want if want is None or isinstance(want, bool) else found == want


N = symbol("N")


def known(*elements: Any) -> Tensor:
    array = np.array(elements, object)
    return (
        Tensor.symbolic(array, i64) if any(each is N for each in elements) else Tensor.constant(array.astype(np.int64))
    )


def test_an_elementwise_function_of_known_tensors_is_known() -> None:
    """Element by element, broadcast; symbols stay symbols."""
    row, column = known(N, 2), Tensor.constant(np.array([[3], [4]]))
    found = fold.fold(operator.mul, i64, row, column)
    assert found is not None
    assert found.known is not None
    assert found.known.tolist() == [[3 * N, 6], [4 * N, 8]]
    plain = fold.fold(operator.add, i64, known(1, 2), known(3, 4))
    assert plain is not None
    assert plain.known is not None
    assert plain.known.tolist() == [4, 6]
    assert plain.known.dtype == np.dtype(np.int64)
    assert fold.fold(operator.add, i64, known(1, 2), known(1, 2, 3)) is None
    assert fold.fold(lambda a: None, i64, known(N, 2)) is None
    assert fold.fold(operator.neg, f32, Tensor.constant(np.ones(2, np.float32))) is None
    for count, folds in ((1024, True), (1025, False)):
        assert (fold.fold(operator.neg, i64, Tensor.constant(np.ones(count, np.int64))) is not None) == folds


def test_what_a_condition_selects_is_checked_where_sizes_are_known(tmp_path: Path) -> None:
    """Proven for a static size, refused at once, or checked by the call."""
    flags = np.array([False, True, True])
    for size in (3, 4):
        load(one_node(tmp_path, "Compress", [f"f32[{size}]", flags], axis=0), engine="reference")
    with pytest.raises(ShapeError, match="Compress: elements") as caught:
        load(one_node(tmp_path, "Compress", ["f32[2]", flags], axis=0), engine="reference")
    assert (caught.value.expected, caught.value.got) == ("at most 2", 3)
    model = load(one_node(tmp_path, "Compress", ["f32[N]", flags], axis=0), engine="reference")
    assert model(np.array([1, 2, 3], np.float32))["y0"].tolist() == [2, 3]
    with pytest.raises(SmeltError, match="3 is more than 2"):
        model(np.ones(2, np.float32))
