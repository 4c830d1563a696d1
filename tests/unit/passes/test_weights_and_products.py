"""`lift_weights` finds constants by their content; `round_products` rounds operands of f32 matmuls to bf16."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, walk
from smelt.ir.interpret import run
from smelt.ir.verify import verify
from smelt.passes.lift_weights import lift_weights
from smelt.passes.round_products import round_products
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape
from smelt.weights import Weights

ROW = np.array([1, 2, 3], np.float32)
ZEROS = np.zeros(3, np.float32)
DOT = DotDims((), (), (1,), (0,))


def lifted(constants: list[np.ndarray], weights: dict[str, np.ndarray], bound: str = "") -> list[str]:
    """The weights that become arguments of x + the sum of the constants; the result stays the same."""
    f = FuncBuilder("main", [Shape("f32", 3)])
    total = f.args[0]
    for constant in constants:
        total = f.add(total, f.convert(f.constant(constant), result=total.shape))
    program = Program.of(replace(f.func(total), arg_attrs=({WEIGHT: bound} if bound else {},)))
    after = lift_weights(program, Weights.of(weights))
    verify(after)
    names = [attrs.get(WEIGHT, "") for attrs in after.main.arg_attrs]
    x = np.full(3, 0.5, np.float32)
    (want,) = run(program, [x])
    (got,) = run(after, [*(weights[name] for name in names[:-1]), x])
    np.testing.assert_array_equal(got, want)
    assert (after is program) == (len(names) == 1)
    return names[:-1]


def test_constants_with_the_content_of_a_weight() -> None:
    assert lifted([ROW], {"a": ROW, "b": -ROW}) == ["a"]
    assert lifted([ROW, ROW], {"a": ROW}) == ["a"], "one weight used twice"
    assert lifted([ROW, -ROW], {"b": -ROW, "a": ROW}) == ["a", "b"]
    assert lifted([ROW], {"b": -ROW}) == []
    assert lifted([ROW], {"a": ROW}, bound="a") == [], "it is an argument already"


def test_weights_with_the_same_content() -> None:
    assert lifted([ROW, ROW], {"a": ROW, "b": ROW}) == ["a", "b"], "in order"
    assert lifted([ROW], {"a": ROW, "b": ROW}) == [], "it is open which"
    assert lifted([ROW, ROW, ROW], {"a": ROW, "b": ROW}) == []
    assert lifted([ZEROS], {"a": ZEROS}) == ["a"]
    assert lifted([ZEROS, ZEROS], {"a": ZEROS}) == [], "zeros may be anything"


def test_integers_and_scalars_stay() -> None:
    assert lifted([np.array([1, 2, 3])], {"a": np.array([1, 2, 3])}) == []
    f = FuncBuilder("main", [Shape("f32")])
    program = Program.of(f.func(f.add(f.args[0], f.constant(2.0, "f32"))))
    assert lift_weights(program, Weights.of({"a": np.array(2, np.float32)})) is program


def test_operands_of_products_are_rounded(seed: int) -> None:
    f = FuncBuilder("main", [Shape("f32", 4, 5), Shape("f32", 5, 3)])
    once = f.dot_general(*f.args, dot_dimension_numbers=DOT)
    program = Program.of(f.func(f.add(once, once)))
    after = round_products(program)
    verify(after)
    random = np.random.default_rng(seed)
    x, y = (random.standard_normal(sizes).astype(np.float32) for sizes in ((4, 5), (5, 3)))
    narrow = [each.astype(ml_dtypes.bfloat16).astype(np.float64) for each in (x, y)]
    (got,) = run(after, [x, y])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, 2 * (narrow[0] @ narrow[1]), rtol=1e-5, atol=1e-6)
    (dot,) = (op for op in walk(after.main.body) if op.name == "stablehlo.dot_general")
    assert [str(value.shape.element) for value in (*dot.operands, dot.result)] == ["bf16", "bf16", "f32"]


def test_what_was_bf16_is_taken_as_it_was_and_other_types_stay() -> None:
    f = FuncBuilder("main", [Shape("bf16", 4, 5), Shape("f32", 5, 3)])
    wide = f.convert(f.args[0], result=Shape("f32", 4, 5))
    after = round_products(Program.of(f.func(f.dot_general(wide, f.args[1], dot_dimension_numbers=DOT))))
    (dot,) = (op for op in walk(after.main.body) if op.name == "stablehlo.dot_general")
    assert dot.operands[0] is after.main.args[0]
    for element in ("f64", "f16", "i32"):
        f = FuncBuilder("main", [Shape(element, 4, 5), Shape(element, 5, 3)])
        program = Program.of(f.func(f.dot_general(*f.args, dot_dimension_numbers=DOT)))
        assert round_products(program) is program
    f = FuncBuilder("main", [Shape("f32", 4), Shape("f32", 4)])
    program = Program.of(f.func(f.add(*f.args)))
    assert round_products(program) is program
