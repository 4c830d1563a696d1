"""`rng` as bits and arithmetic: the numbers of the reference, also through loops and branches."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.errors import UnsupportedError
from smelt.ir.build import Builder, FuncBuilder
from smelt.ir.core import Program, Value, walk
from smelt.ir.interpret import run
from smelt.ir.verify import verify
from smelt.passes.lower_random import lower_random
from smelt.shape import Shape


def draw(b: Builder, element: str, low: float, high: float, *sizes: int, distribution: str = "UNIFORM") -> Value:
    first, last = (b.constant(each if element[0] not in "iu" else int(each), element) for each in (low, high))
    return b.rng(first, last, b.constant(list(sizes), "i64"), rng_distribution=distribution)


def same(program: Program, *inputs: np.ndarray) -> None:
    after = lower_random(program)
    verify(after)
    assert not any(op.name == "stablehlo.rng" for op in walk(after.main.body))
    for got, want in zip(run(after, list(inputs)), run(program, list(inputs)), strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype


@pytest.mark.parametrize(
    ("element", "low", "high"),
    [
        ("f32", 0, 1), ("f64", -3, 5), ("f16", 1, 2), ("bf16", -1, 0), ("i32", -5, 9), ("i8", -128, 127), ("ui8", 3, 4),
        ("i64", -(2.0**40), 2.0**40), ("ui32", 0, 2.0**32 - 1), ("i1", 0, 1),
    ],
)  # fmt: skip
def test_uniform_numbers(element: str, low: float, high: float) -> None:
    f = FuncBuilder("main", [])
    same(Program.of(f.func(draw(f, element, low, high, 7, 3), draw(f, element, low, high, 2))))


@pytest.mark.parametrize("element", ["f32", "f64", "bf16"])
def test_normal_numbers(element: str) -> None:
    f = FuncBuilder("main", [])
    same(Program.of(f.func(draw(f, element, 2, 0.5, 9, distribution="NORMAL"), draw(f, element, 0, 1, 3))))


@pytest.mark.parametrize("flag", [True, False])
def test_draws_go_on_after_branches_and_loops(flag: bool) -> None:
    """One branch draws, the other does not; a loop draws in each turn; what follows continues there."""
    f = FuncBuilder("main", [Shape("i1"), Shape("i32")])
    first = draw(f, "f32", 0, 1, 2)
    with f.region() as yes:
        yes.result(yes.add(draw(yes, "f32", 0, 1, 2), first))
    with f.region() as no:
        no.result(no.negate(first))
    chosen = f.op("stablehlo.if", f.args[0], regions=[yes.body, no.body]).result
    carried = [f.args[1], chosen]
    with f.region(*(value.type for value in carried)) as test:
        test.result(test.compare(test.args[0], test.constant(3, "i32"), comparison_direction="LT"))
    with f.region(*(value.type for value in carried)) as turn:
        i, total = turn.args
        turn.result(turn.add(i, turn.constant(1, "i32")), turn.add(total, draw(turn, "f32", -1, 1, 2)))
    loop = f.op("stablehlo.while", *carried, regions=[test.body, turn.body])
    program = Program.of(f.func(chosen, *loop.results, draw(f, "i32", 0, 1000, 4)))
    for turns in (3, 2, 0):
        same(program, np.array(flag), np.array(turns, np.int32))


def test_a_condition_that_draws_is_refused() -> None:
    f = FuncBuilder("main", [Shape("f32")])
    with f.region(Shape("f32")) as test:
        drawn = test.reshape(draw(test, "f32", 0, 1, 1), result=Shape("f32"))
        test.result(test.compare(test.args[0], drawn, comparison_direction="LT"))
    with f.region(Shape("f32")) as turn:
        turn.result(turn.add(*turn.args, *turn.args))
    loop = f.op("stablehlo.while", *f.args, regions=[test.body, turn.body])
    with pytest.raises(UnsupportedError, match="rng in the condition of a loop"):
        lower_random(Program.of(f.func(*loop.results)))


def test_a_program_without_draws_stays() -> None:
    f = FuncBuilder("main", [Shape("f32")])
    program = Program.of(f.func(f.negate(f.args[0])))
    assert lower_random(program) is program
