"""Random programs that are right are accepted and have the shapes that NumPy gives; with one thing changed, not so.

Whether a change is a mistake is for NumPy to say, at several sizes that satisfy the facts. A counterexample is tried:
the NumPy program must fail at those sizes. 150 programs of each kind; SMELT_ALL_PROGRAMS=1 tries more than 1,000.
"""

import os
from collections import Counter
from typing import Any

import numpy as np

from smelt import Shaped, Tensor, TensorError
from smelt.dim import Size, evaluate, product, symbol
from smelt.dtype import f32
from smelt.shape import Shape
from smelt.tensor import check
from smelt.tensor.jit.trace import Outcome
from tests.property import tensor_ops
from tests.property.tensor_programs import OPS, Draw, Program, mutate, numbers_for, runs

assert tensor_ops.UNARY  # which registers the ops
PROGRAMS = 1200 if os.environ.get("SMELT_ALL_PROGRAMS") else 150
SIGNS = ("B", "H", "K", "S")
SIZES = 6  # tries to find sizes at which a changed program fails


def judge(program: Program) -> Outcome:
    """What smelt says about a program, whose declared result is an annotation."""

    def function(*inputs: Any) -> Any:
        return program.on_tensors(*inputs)

    function.__annotations__["return"] = Shaped[Tensor, program.result]
    return check(function, *program.inputs, facts=program.facts)


def draw_program(rng: np.random.Generator) -> Program:
    return Draw(rng).finish(int(rng.integers(1, 8)))


def test_right_programs_are_accepted(seed: int):
    rng = np.random.default_rng([seed, 11])
    refused: list[str] = []
    used: Counter[str] = Counter()
    for number in range(PROGRAMS):
        program = draw_program(rng)
        used.update(step.op for step in program.steps)
        outcome = judge(program)
        if outcome.errors:
            refused.append(f"{program}\n{outcome.errors[0]}")
            continue
        numbers = numbers_for(program, rng)
        if numbers is None:
            continue
        want = program.on_arrays(numbers).shape
        assert outcome.traced is not None
        assert tuple(evaluate(size, numbers) for size in outcome.traced.results.shape.sizes) == want, program
        if number % 10 == 0:
            arrays = [np.ones(shape.numbers(numbers), shape.dtype.numpy) for shape in program.inputs]
            assert outcome.traced(*arrays, engine="reference").shape == want, program
    assert len(refused) <= PROGRAMS // 100, "\n\n".join(refused)
    assert PROGRAMS < 1000 or not OPS.keys() - used.keys(), "every op was drawn"


def test_changed_programs_are_refused(seed: int):
    rng = np.random.default_rng([seed, 12])
    wrong = confirmed = 0
    accepted: list[str] = []
    while wrong < PROGRAMS:
        made = mutate(draw_program(rng), rng)
        if made is None:
            continue
        program, what = made
        drawn_sizes = [numbers_for(program, rng) for _ in range(SIZES)]
        failing = [numbers for numbers in drawn_sizes if numbers is not None and not runs(program, numbers)]
        if not failing:
            continue  # NumPy finds nothing wrong with it
        wrong += 1
        outcome = judge(program)
        if not outcome.errors:
            accepted.append(f"{what}: accepted, but fails at {failing[0]}\n{program}")
            continue
        error = outcome.errors[0]
        if isinstance(error, TensorError) and error.counterexample is not None:
            numbers = {**dict.fromkeys(program.symbols, 2), **error.counterexample}
            assert not runs(program, numbers), f"{what}: gets through at {numbers}\n{program}\n{error}"
            confirmed += 1
    assert not accepted, "\n\n".join(accepted)
    assert confirmed > PROGRAMS // 2


def test_an_axis_under_another_name_is_refused(seed: int):
    """Sizes stay what they are, so that the name alone tells the axes apart."""
    rng = np.random.default_rng([seed, 13])
    tried = 0
    while tried < PROGRAMS // 3:
        program = draw_program(rng)
        meeting = [step.operands[1] for step in program.steps if step.op in ("binary", "concatenate", "update", "loop")]
        meeting = [i for i in meeting if program.inputs[i].names]
        if not meeting:
            continue
        i = int(rng.choice(meeting))
        inputs = list(program.inputs)
        shape = inputs[i]
        inputs[i] = Shape.of(shape.dtype, shape.sizes, (*(shape.names or ())[:-1], "odd"))
        errors = judge(Program(tuple(inputs), program.steps, program.facts, program.result)).errors
        assert errors, program
        tried += 1


def drawn_size(rng: np.random.Generator) -> Size:
    """1 as often as not."""
    kind = rng.random()
    return 1 if kind < 0.4 else int(rng.integers(2, 5)) if kind < 0.6 else symbol(str(rng.choice(SIGNS)))


def in_groups(sizes: list[Size], rng: np.random.Generator) -> list[tuple[int, int]]:
    """Neighbours that become one axis: (first, end) of each group."""
    ends = [i + 1 for i in range(len(sizes)) if i + 1 == len(sizes) or rng.random() < 0.65]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def test_reshapes_that_merge_and_split_neighbours_are_accepted(seed: int):
    """Axes of size 1 may come, go and stand anywhere; an axis that stays as it is may keep its name."""
    rng = np.random.default_rng([seed, 14])
    for _ in range(2 * PROGRAMS):
        parts = [drawn_size(rng) for _ in range(rng.integers(1, 6))]
        before = {group: f"a{i}" for i, group in enumerate(in_groups(parts, rng))}
        after: list[tuple[str, Size]] = []
        for first, end in in_groups(parts, rng):
            after += [(f"one{len(after)}", 1)] * int(rng.random() < 0.3)
            size = product(parts[first:end])
            if size != 1 or rng.random() < 0.7:
                stays = (first, end) in before and rng.random() < 0.7
                after.append((before[first, end] if stays else f"b{len(after)}", size))
        for named in (True, False):
            shape = Shape.of(f32, [product(parts[a:b]) for a, b in before], tuple(before.values()) if named else None)

            def reshaped(x: Tensor, *_: Tensor, named: bool = named, after: Any = tuple(after)) -> Tensor:
                return x.reshape(**dict(after)) if named and after else x.reshape(*(size for _, size in after))

            telling = [Shape.of(f32, [symbol(name)]) for name in SIGNS]
            assert not check(reshaped, shape, *telling).errors, (shape, after)
