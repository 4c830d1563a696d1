"""A thousand random programs that are right are accepted; the same with one size changed are refused.

A counterexample is tried: the NumPy program must fail at those sizes. Where a mutated program is accepted, NumPy must
get through it at random sizes: then the change was no mistake.
"""

import numpy as np
import pytest

from smelt import TensorError
from smelt.shape import Shape
from smelt.tensor import trace
from smelt.tensor.axes import Dim
from tests.unit.tensor.programs import Draw, Program, mutate, numbers_for, runs

PROGRAMS = 1000
MEETING = ("+", "*", "-", "max", "concatenate", "update")


def mistake(program: Program) -> TensorError | None:
    try:
        trace(program.tensors, *program.inputs, facts=program.facts)
    except TensorError as error:
        return error
    return None


def test_right_programs_are_accepted_and_run(seed: int):
    rng = np.random.default_rng([seed, 1])
    for number in range(PROGRAMS):
        program = Draw(rng).finish(int(rng.integers(1, 8)))
        try:
            traced = trace(program.tensors, *program.inputs, facts=program.facts)
        except TensorError as error:
            raise AssertionError(f"{program} is refused:\n{error}") from error
        names = {name for shape in program.inputs for name in shape.symbols}
        values = numbers_for(names, program.facts, rng)
        if values is None:
            continue
        assert runs(program, values), program
        if number % 10 == 0:
            arrays = [np.zeros(shape.numbers(values), shape.dtype.numpy) for shape in program.inputs]
            want = program.arrays(*arrays).shape
            assert traced.results.shape.numbers(values) == want, program
            assert traced(*arrays, engine="reference").shape == want, program


def test_wrong_programs_are_refused(seed: int):
    rng = np.random.default_rng([seed, 2])
    refused = confirmed = 0
    while refused < PROGRAMS:
        program = Draw(rng).finish(int(rng.integers(1, 8)))
        made = mutate(program, rng)
        if made is None:
            continue
        wrong, what = made
        names = {name for shape in wrong.inputs for name in shape.symbols}
        error = mistake(wrong)
        if error is not None:
            refused += 1
            if error.counterexample is not None:
                values = {**dict.fromkeys(names, 2), **error.counterexample}
                assert not runs(wrong, values), f"{wrong} ({what}) gets through at {values}:\n{error}"
                confirmed += 1
            continue
        for _ in range(3):
            drawn = numbers_for(names, wrong.facts, rng)
            assert drawn is None or runs(wrong, drawn), f"{wrong} ({what}) is accepted but fails at {drawn}"
    assert confirmed > PROGRAMS * 0.9


def test_an_axis_under_another_name_is_refused(seed: int):
    """Sizes are all the same, so that names alone tell the axes apart."""
    rng = np.random.default_rng([seed, 3])
    tried = 0
    while tried < PROGRAMS // 4:
        program = Draw(rng).finish(int(rng.integers(2, 6)))
        meeting = [fresh[0] for name, _, _, fresh in program.steps if name.startswith(MEETING) and fresh]
        meeting = [i for i in meeting if program.inputs[i].rank]
        if not meeting:
            continue
        i = int(rng.choice(meeting))
        shape = program.inputs[i]
        names = list(shape.names or ())
        names[int(rng.integers(shape.rank))] = "odd"
        program.inputs[i] = Shape.of(shape.dtype, shape.sizes, tuple(names))
        with pytest.raises(TensorError) as caught:
            trace(program.tensors, *program.inputs, facts=program.facts)
        assert "odd" in str(caught.value)
        tried += 1


def test_sizes_of_results_are_dims():
    program = Draw(np.random.default_rng(5)).finish(3)
    result = trace(program.tensors, *program.inputs, facts=program.facts).results
    assert all(isinstance(size, int | Dim) for size in result.sizes)
