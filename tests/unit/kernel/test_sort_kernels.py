"""Sorting and the largest elements in generated C, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import dtype
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.shape import Shape
from tests.unit.kernel.agreement import ELEMENTS, disagreement, draw

LENGTHS = (0, 1, 2, 3, 8, 17, 100)


@pytest.mark.parametrize("element", [each for each in ELEMENTS if not each.startswith("complex")])
def test_sort_is_stable_for_every_element_type(element: str, seed: int) -> None:
    """Keys of which many are equal take their places along: up and down, in the total order where there is one."""
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape(element, "N", 2), Shape("i32", "N", 2)])
    kind = "TOTALORDER" if dtype(element).is_float else None
    results = []
    for direction in ("LT", "GT"):
        with f.region(Shape(element), Shape(element), Shape("i32"), Shape("i32")) as r:
            r.result(r.compare(r.args[0], r.args[1], comparison_direction=direction, compare_type=kind))
        results += f.sort(*f.args, dimension=0, is_stable=True, regions=[r.body])
    program = Program.of(f.func(*results))
    calls = []
    for n in LENGTHS:
        keys = draw(random, element, n, 2, few=n > 8)
        if kind and element.startswith("f") and n and np.isnan(np.asarray(np.nan).astype(keys.dtype).astype(float)):
            keys[random.integers(0, n), 0] = -np.nan
            keys[random.integers(0, n), 1] = np.nan
        calls.append((keys, np.arange(2 * n, dtype=np.int32).reshape(n, 2)))
    assert disagreement(program, calls) == ""


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_sort_along_any_dimension_by_any_comparator(dim: int, seed: int) -> None:
    """Lexicographically by two keys, with arithmetic in the comparator; a third tensor follows."""
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape("i32", "A", "B", 3), Shape("f32", "A", "B", 3), Shape("f64", "A", "B", 3)])
    with f.region(*(Shape(each) for each in ("i32", "i32", "f32", "f32", "f64", "f64"))) as r:
        a, b, x, y, _, _ = r.args
        same = r.compare(a, b, comparison_direction="EQ")
        first = r.compare(a, b, comparison_direction="LT")
        second = r.compare(r.multiply(x, x), r.multiply(y, y), comparison_direction="GT")
        r.result(r.select(same, second, first))
    results = f.sort(*f.args, dimension=dim, is_stable=True, regions=[r.body])
    program = Program.of(f.func(*results))
    calls = [
        tuple(draw(random, element, *sizes, few=True) for element in ("i32", "f32", "f64"))
        for sizes in [(0, 2, 3), (1, 1, 3), (5, 1, 3), (2, 40, 3), (33, 4, 3)]
    ]
    assert disagreement(program, calls) == ""


@pytest.mark.parametrize("k", [0, 1, 5, 32, 33, 60])
def test_largest_elements(k: int, seed: int) -> None:
    """Both ways of finding them: few are kept in order while a row is read, many come from sorting it."""
    random = np.random.default_rng(seed)
    elements = ("f32", "bf16", "i8", "ui64")
    f = FuncBuilder("main", [Shape(element, "B", "N") for element in elements])
    results = [value for arg in f.args for value in f.op("chlo.top_k", arg, k=k).results]
    program = Program.of(f.func(*results))
    calls = []
    for batch, n in [(0, 60), (1, max(k, 1)), (3, 61), (2, 500)]:
        args = [draw(random, element, batch, n, few=True) for element in elements]
        if batch:
            args[0][0, : min(n, 4)] = [np.nan, -np.nan, -0.0, 0.0][: min(n, 4)]
        calls.append(args)
    assert disagreement(program, calls) == ""


def test_a_comparator_of_many_operations(seed: int) -> None:
    """Of a few hundred keys: each comparison waits for the one of the next key."""
    keys = 300
    f = FuncBuilder("main", [Shape("i8", 6)] * keys)
    with f.region(*[Shape("i8")] * (2 * keys)) as r:
        less = r.constant(False, "i1")
        for i in reversed(range(keys)):
            a, b = r.args[2 * i], r.args[2 * i + 1]
            same = r.compare(a, b, comparison_direction="EQ")
            less = r.or_(r.compare(a, b, comparison_direction="LT"), r.and_(same, less))
        r.result(less)
    program = Program.of(f.func(*f.sort(*f.args, dimension=0, is_stable=True, regions=[r.body])))
    columns = np.random.default_rng(seed).integers(0, 2, (keys, 6)).astype(np.int8)
    columns[: keys - 1, 3:] = columns[: keys - 1, :3]  # the last key decides
    assert disagreement(program, [tuple(columns)]) == ""
