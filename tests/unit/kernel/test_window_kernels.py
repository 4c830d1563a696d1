"""Windows and reductions with bodies of any kind in generated C, against the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from smelt.dtype import dtype
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Region
from smelt.ir.ops.window import window_count
from smelt.kernel.loops.fold import identity
from smelt.shape import Shape
from tests.unit.kernel.agreement import ELEMENTS, combine, disagreement, draw


def random_window(random: np.random.Generator, rank: int, dilated: bool) -> dict[str, tuple[object, ...]]:
    def numbers(most: int) -> tuple[int, ...]:
        return tuple(int(each) for each in random.integers(1, most + 1, rank))

    return {
        "window_dimensions": numbers(3),
        "window_strides": numbers(3),
        "window_dilations": numbers(2),
        "padding": tuple((int(low), int(high)) for low, high in random.integers(-1, 4, (rank, 2))),
        **({"base_dilations": numbers(3)} if dilated else {}),
    }


def positions(sizes: Sequence[int], window: Mapping[str, tuple[object, ...]]) -> list[int]:
    rank = len(sizes)
    base = window.get("base_dilations") or (1,) * rank
    parts = (window[name] for name in ("window_dimensions", "window_dilations", "window_strides"))
    return [int(window_count(*each)) for each in zip(sizes, window["padding"], base, *parts, strict=True)]  # type: ignore[arg-type]


def test_windows_of_every_form(seed: int) -> None:
    """Forty windows in one program: paddings of both signs, holes in the window and in the tensor, sizes from 0."""
    random = np.random.default_rng(seed)
    args, forms = [], list[tuple[str, dict[str, Any]]]()
    for i in range(40):
        rank = int(random.integers(1, 4))
        sizes = [int(each) for each in random.integers(0 if i % 5 == 0 else 1, 7, rank)]
        args.append(draw(random, "f32", *sizes))
        forms.append((str(random.choice(["add", "maximum", "multiply"])), random_window(random, rank, i % 2 == 0)))
    f = FuncBuilder("main", [*(Shape("f32", *each.shape) for each in args), Shape("f32")])
    values = [
        f.reduce_window(x, f.args[-1], regions=[combine(f, name, "f32")], **window)
        for x, (name, window) in zip(f.args[:-1], forms, strict=True)
    ]
    assert disagreement(Program.of(f.func(*values)), [(*args, np.float32(0.5)), (*args, np.float32(-3))]) == ""


@pytest.mark.parametrize("element", ["f32", "bf16", "f64", "i32", "ui8"])
def test_pooling_with_dynamic_dimensions(element: str, seed: int) -> None:
    """The usual pools; a sum over many elements is rounded at another place."""
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape(element, "B", 2, "H", "W")])
    (x,) = f.args
    pool: dict[str, Any] = {
        "window_dimensions": (1, 1, 3, 3),
        "window_strides": (1, 1, 2, 2),
        "padding": ((0, 0), (0, 0), (1, 1), (1, 1)),
    }
    results = []
    for name in ("maximum", "add"):
        start = f.constant(identity(name, dtype(element)).value, element)
        results.append(f.negate(f.reduce_window(x, start, regions=[combine(f, name, element)], **pool)))
    wide = {**pool, "window_dimensions": (1, 1, 9, 9), "padding": ((0, 0), (0, 0), (6, 6), (6, 6))}
    results.append(f.reduce_window(x, f.constant(1, element), regions=[combine(f, "add", element)], **wide))
    program = Program.of(f.func(*results))
    calls = [(draw(random, element, *sizes),) for sizes in [(0, 2, 4, 4), (1, 2, 1, 1), (2, 2, 7, 5), (1, 2, 8, 40)]]
    rounding = {"f32": 1e-6, "f64": 1e-15, "bf16": 8e-3}.get(element, 0.0)
    assert disagreement(program, calls, rounding) == ""


@pytest.mark.parametrize("element", ["f32", "bf16", "i32"])
def test_running_totals(element: str, seed: int) -> None:
    """From the front and from the back; from a start that counts in the padding they are no running totals."""
    random = np.random.default_rng(seed)
    for lengths, rounding in (((1, 9), 0.0), ((200,), {"f32": 1e-6, "bf16": 8e-3}.get(element, 0.0))):
        f = FuncBuilder("main", [Shape(element, 3, length, 2) for length in lengths])
        results = []
        for x, length in zip(f.args, lengths, strict=True):
            for name in ("add", "maximum", "minimum", "multiply"):
                for neutral in (True, False):
                    first = identity(name, dtype(element)).value if neutral else 1
                    for edge in ((length - 1, 0), (0, length - 1)):
                        window: dict[str, Any] = {
                            "window_dimensions": (1, length, 1),
                            "padding": ((0, 0), edge, (0, 0)),
                        }
                        body = combine(f, name, element)
                        results.append(f.reduce_window(x, f.constant(first, element), regions=[body], **window))
        args = [draw(random, element, 3, length, 2) for length in lengths]
        assert disagreement(Program.of(f.func(*results)), [args], rounding) == ""


def pick_larger(f: FuncBuilder, element: str) -> Region:
    """Values and their places: the larger one, the first of equal ones."""
    with f.region(Shape(element), Shape("i32"), Shape(element), Shape("i32")) as r:
        a, i, b, j = r.args
        stays = r.compare(a, b, comparison_direction="GE")
        r.result(r.select(stays, a, b), r.select(stays, i, j))
    return r.body


@pytest.mark.parametrize("element", [each for each in ELEMENTS if not each.startswith("complex")])
def test_bodies_over_several_inputs(element: str, seed: int) -> None:
    """The largest element and its place: of rows, of columns, of everything, and of windows."""
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape(element, "A", "B"), Shape("i32", "A", "B"), Shape(element), Shape("i32")])
    body = pick_larger(f, element)
    results = [
        *f.reduce(*f.args, dimensions=(1,), regions=[body]),
        *f.reduce(*f.args, dimensions=(0,), regions=[pick_larger(f, element)]),
        *f.reduce(*f.args, dimensions=(1, 0), regions=[pick_larger(f, element)]),
        *f.reduce_window(
            *f.args,
            window_dimensions=(2, 3),
            padding=((0, 1), (2, 0)),
            regions=[pick_larger(f, element)],
        ),
    ]
    program = Program.of(f.func(*results))
    calls = []
    for a, b in [(0, 2), (1, 1), (4, 1), (5, 40)]:
        places = np.arange(a * b, dtype=np.int32).reshape(a, b)
        calls.append((draw(random, element, a, b, few=True), places, draw(random, element, few=True), np.int32(-1)))
    assert disagreement(program, calls) == ""


def test_select_and_scatter(seed: int) -> None:
    random = np.random.default_rng(seed)
    forms = [
        ((2, 2), (2, 2), ((0, 0), (0, 0)), (6, 4)),
        ((3, 2), (1, 2), ((1, 1), (0, 1)), (5, 5)),
        ((1, 3), (1, 1), ((0, 0), (2, 2)), (3, 4)),
        ((2, 2), (1, 1), ((2, 2), (3, 0)), (3, 1)),
        ((2, 3, 1), (1, 2, 1), ((2, 2), (0, 1), (0, 0)), (4, 5, 70)),  # the last axis on lanes
        ((1, 2, 1), (1, 2, 1), ((0, 0), (1, 0), (0, 0)), (2, 3, 9)),
    ]
    shapes, counts = [], []
    for window, strides, padding, sizes in forms:
        ones = (1,) * len(window)
        each = {"window_dimensions": window, "window_strides": strides, "window_dilations": ones, "padding": padding}
        counts.append(positions(sizes, each))
        shapes += [Shape("f32", *sizes), Shape("f32", *counts[-1])]
    f = FuncBuilder("main", [*shapes, Shape("f32")])
    results = []
    for i, (window, strides, padding, _) in enumerate(forms):
        for direction, name in (("GE", "add"), ("LT", "subtract")):
            with f.region(Shape("f32"), Shape("f32")) as r:
                r.result(r.compare(*r.args, comparison_direction=direction))
            results.append(
                f.select_and_scatter(
                    f.args[2 * i],
                    f.args[2 * i + 1],
                    f.args[-1],
                    window_dimensions=window,
                    window_strides=strides,
                    padding=padding,
                    regions=[r.body, combine(f, name, "f32")],
                )
            )
    args = [draw(random, "f32", *map(int, shape.sizes)) for shape in shapes]  # type: ignore[arg-type]
    assert disagreement(Program.of(f.func(*results)), [(*args, np.float32(0.25))]) == ""


def test_a_function_of_several_tensors_by_region(seed: int) -> None:
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape("f32", "N", 2)] * 3)
    with f.region(*[Shape("f32")] * 3) as r:
        a, b, c = r.args
        r.result(r.select(r.compare(a, b, comparison_direction="LT"), r.multiply(a, c), r.subtract(b, c)))
    program = Program.of(f.func(f.map(*f.args, dimensions=(0, 1), regions=[r.body])))
    calls = [tuple(draw(random, "f32", n, 2) for _ in range(3)) for n in (0, 1, 50)]
    assert disagreement(program, calls) == ""
