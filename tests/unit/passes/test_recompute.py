"""Values that are computed again under a memory limit: the same results, and less memory by a count of our own."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, used_values
from smelt.ir.interpret import run
from smelt.ir.verify import verify
from smelt.passes.recompute import LARGE, PARTS, _Schedule, use_less_memory
from smelt.shape import Shape

COUNT = LARGE // 4  # elements of a value that counts


def backward(layers: int, count: int = COUNT, *, moved: bool = False) -> Program:
    """a[i] = sin(a[i - 1]) forward; then the product of all of them from the last to the first, as a backward pass."""
    f = FuncBuilder("main", [Shape("f32", count)])
    values = [f.args[0]]
    for _ in range(layers):
        values.append(f.sine(values[-1]))
    if moved:
        values = [f.reshape(value, result=Shape("f32", count)) for value in values]
    total = values[-1]
    for value in reversed(values[:-1]):
        total = f.multiply(f.cosine(total), value)
    return Program.of(f.func(total))


def peak(program: Program) -> tuple[int, int]:
    """The most bytes between two ops that large values take, arguments and results apart; and at which op."""
    ops, results = program.main.body.ops, {*program.main.body.results}
    best = (0, 0)
    for at in range(len(ops)):
        live = 0
        for i, op in enumerate(ops[: at + 1]):
            for value in op.results:
                size = value.shape.count * 4 if isinstance(value.shape.count, int) else 0
                last = max((j for j, each in enumerate(ops) if value in used_values(each)), default=i)
                live += size if size >= LARGE and value not in results and last >= at else 0
        best = max(best, (live, -at))
    return best[0], -best[1]


@pytest.mark.parametrize("layers", [1, 2, 5, 9])
def test_the_peak_of_a_program(layers: int) -> None:
    program = backward(layers)
    assert _Schedule(program).peak() == peak(program)
    assert peak(program)[0] == (layers + 1) * LARGE  # each value forward, and the cosine of the last
    assert _Schedule(backward(layers, COUNT - 1)).peak() == (0, 0)


@pytest.mark.parametrize("moved", [False, True])
def test_less_and_less_memory_for_the_same_results(moved: bool, seed: int) -> None:
    program = backward(12, moved=moved)
    x = np.random.default_rng(seed).standard_normal(COUNT).astype(np.float32)
    (want,) = run(program, [x])
    every = list(use_less_memory(program))
    assert 2 <= len(every) <= PARTS
    assert len(every[0].main.body.ops) == len(program.main.body.ops)
    for each in every:
        verify(each)
        np.testing.assert_array_equal(run(each, [x])[0], want)
    counts = [len(each.main.body.ops) for each in every]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    if not moved:
        peaks = [peak(each)[0] for each in every]
        assert peaks == sorted(peaks, reverse=True)
        assert peaks[0] == 13 * LARGE
        assert peaks[-1] <= 8 * LARGE


def test_nothing_small_or_with_an_effect_is_computed_again() -> None:
    small = backward(6, COUNT - 1)
    assert {len(each.main.body.ops) for each in use_less_memory(small)} == {len(small.main.body.ops)}
    f = FuncBuilder("main", [Shape("ui64", 2)])
    state, bits = f.rng_bit_generator(*f.args, rng_algorithm="PHILOX", result=[Shape("ui64", 2), Shape("ui32", COUNT)])
    total = bits
    for _ in range(4):
        total = f.add(f.not_(total), bits)
    program = Program.of(f.func(state, total))
    for each in use_less_memory(program):
        names = [op.name for op in each.main.body.ops]
        assert names.count("stablehlo.rng_bit_generator") == 1


def test_results_that_need_few_ops_come_first() -> None:
    f = FuncBuilder("main", [Shape("f32", COUNT)])
    far = f.args[0]
    for _ in range(3):
        far = f.sine(far)
    near = f.negate(f.args[0])
    program = Program.of(f.func(far, near))
    names = [op.name.partition(".")[2] for op in _Schedule(program).ops]
    assert names == ["negate", "sine", "sine", "sine"]
