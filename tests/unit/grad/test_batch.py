"""Every op over one more axis: a batched program gives for all slices what the program gives for each."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from smelt.ir.batch import Batch
from smelt.ir.build import Builder
from smelt.ir.core import Func, Program, Region, Value
from smelt.ir.interpret import run
from smelt.ir.ops.definition import Scope
from smelt.ir.rewrite import symbols_of
from smelt.ir.verify import verify
from smelt.passes.inline import inline
from tests.unit.grad.cases import CASES, Case, Draw
from tests.unit.grad.test_rules import lower

SLICES = 3


@pytest.fixture(autouse=True, scope="module")
def x64() -> Iterator[None]:
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def batch_program(program: Program, batched: list[int]) -> Program:
    """The program over one more axis, first in these arguments and in all results."""
    main = program.main
    b = Builder(Scope(symbols_of(main)))
    batch = Batch(b, SLICES, {}, program.funcs)
    args = list(main.args)
    for i in batched:
        args[i] = Value(batch.type(main.args[i].type), None, i)
        batch.values[main.args[i]] = args[i]
    for op in main.body.ops:
        if any(value in batch.values for value in op.operands) or op.regions:
            batch.run([op])
        if not any(value in batch.values for value in op.results):
            b.ops.append(op)
    results = tuple(batch.spread(value) for value in main.results)
    made = Program.of(Func("main", Region(tuple(args), tuple(b.ops), results)))
    verify(made)
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_batched_program_is_the_program_on_each_slice(case: Case, seed: int):
    draws = [case.inputs(Draw(seed + i)) for i in range(SLICES)]
    if any(len({np.shape(each) for each in column}) > 1 for column in zip(*draws, strict=True)):
        draws = [draws[0]] * SLICES  # shapes are drawn as well
    program = inline(lower(case.fn, *draws[0]))
    count = len(draws[0])
    for batched in ({*range(count)}, {0}) if count > 1 else ({0},):
        columns = [np.stack(column) for column in zip(*draws, strict=True)]
        given = [columns[i] if i in batched else draws[0][i] for i in range(count)]
        got = run(batch_program(program, sorted(batched)), given)
        for number in range(SLICES):
            want = run(program, [np.asarray(draws[number if i in batched else 0][i]) for i in range(count)])
            for i, (a, b) in enumerate(zip(got, want, strict=True)):
                np.testing.assert_allclose(
                    a[number], b, rtol=1e-11, atol=1e-11, err_msg=f"result {i} of slice {number}"
                )
