"""The loop IR: one traversal serves all statements; loops carry every decision that an emitter needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from smelt.device import cpu
from smelt.device.cuda import TARGETS
from smelt.dtype import f32, i64
from smelt.engine.compile import plan_program
from smelt.errors import SmeltError
from smelt.kernel.loops.form import F32
from smelt.kernel.loops.grammar import (
    LANES,
    SHORT,
    STATEMENTS,
    Amount,
    Fold,
    For,
    If,
    Mma,
    Number,
    Place,
    Slice,
    Stmt,
    Store,
    Tile,
    Var,
    declared_variables,
    expressions,
    rebuild,
    rebuild_expr,
    subexpressions,
    used_tiles,
    used_variables,
    walk_statements,
)
from smelt.kernel.loops.parallelise import parallelise
from smelt.kernel.plan.plan import Kernel, Launch, walk
from smelt.kernel.tune.schedules import no_schedule
from tests.property.models import MODELS
from tests.property.problems import KINDS, draw


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    """Those of random problems of every kind and of small models, for avx2, and those of one model for a GPU."""
    random = np.random.default_rng(1)
    programs = [draw(kind, random).make(False) for kind in KINDS] + [each.dynamic_program() for each in MODELS.values()]
    found: dict[Kernel, None] = {}
    places = [(program, cpu.target("avx2")) for program in programs]
    for program, target in [*places, (MODELS["encoder"].dynamic_program(), TARGETS["sm_90"])]:
        try:
            made = plan_program(program, target, schedules=no_schedule)
        except SmeltError:
            continue
        steps = (step for plan, _ in made.plans.values() for step in walk(plan.steps))
        found.update((step.kernel, None) for step in steps if isinstance(step, Launch))
    return list(found)


def statements(kernels: list[Kernel]) -> Iterator[Stmt]:
    return (each for kernel in kernels for each in walk_statements(kernel.body))


def test_rebuilding_with_nothing_changed_gives_the_same(kernels: list[Kernel]) -> None:
    seen = set()
    for each in statements(kernels):
        seen.add(type(each))
        assert rebuild(each, lambda block: block, lambda expr: expr) == each
        for expr in expressions(each):
            for part in subexpressions(expr):
                assert rebuild_expr(part, lambda inner: inner) == part
    rare = "Fail", "While", "Transpose", "BlockMma", "RoundRow", "Attend", "Decode", "Update"
    assert {*STATEMENTS} - seen <= {kind for kind in STATEMENTS if kind.__name__ in rare}


def test_loops_are_decided_before_they_are_printed(kernels: list[Kernel]) -> None:
    for each in statements(kernels):
        if isinstance(each, For):
            assert (each.chunks is not None) == (each.level == "core")
            assert each.vector != "none" or each.level != "lane"
            if each.vector != "none":  # nothing that all iterations would share
                assert not any(isinstance(inner, Mma | Fold | Tile) for inner in walk_statements(each.body))
        if isinstance(each, Fold):
            short = isinstance(each.extent, Amount) and isinstance(each.extent.size, int) and each.extent.size <= SHORT
            assert each.lanes == (1 if short else LANES)


X, Y = (Var(name, i64, 100) for name in "xy")
STORE = Store(Place(0, Y), Number(1.0, f32))
ROW = Slice(Place("tile", Number(0)), (Number(1),) * 3, (Number(1),) * 3)


@pytest.mark.parametrize(
    ("body", "leaf"),
    [
        ((STORE,), True),
        ((If(Number(1), (STORE,)),), True),
        ((If(Number(1), (For(Var("z", i64, 9), Amount(9), (STORE,), "ordered"),)),), False),
        ((Tile("tile", f32, 8), STORE), False),
        ((Mma(ROW, ROW, ROW, F32), STORE), False),
    ],
)
def test_only_loops_with_nothing_but_stores_are_vectorised(body: tuple[Stmt, ...], leaf: bool) -> None:
    """A loop alone, and the inner one of two: on lanes if it is a leaf, else both are one loop on cores."""
    (alone,) = parallelise([For(Y, Amount(100), body)])
    assert isinstance(alone, For)
    assert (alone.level, alone.vector) == ("core", "any" if leaf else "none")
    inner = For(Y, Amount(100), (*body, Store(Place(1, X), Number(0))))
    (outer,) = parallelise([For(X, Amount(100), (inner,))])
    assert isinstance(outer, For)
    assert outer.extent == Amount(100 if leaf else 10000)
    lanes = [each for each in outer.body if isinstance(each, For) and each.level == "lane"]
    assert len(lanes) == leaf


def test_variables_and_tiles_are_declared_where_they_are_used(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        inside = [*walk_statements(kernel.body)]
        known = {var.name for each in inside for var in declared_variables(each)}
        assert {var.name for var in used_variables(kernel.body)} <= known
        assert {*used_tiles(kernel.body)} <= {each.name for each in inside if isinstance(each, Tile)}


def is_on_cores(statements: Sequence[Stmt]) -> bool:
    return any(isinstance(each, For) and each.level == "core" for each in walk_statements(statements))


def test_phases_are_the_body_cut_after_loops_on_cores(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        joined = [each for phase in kernel.phases for each in (*phase.before, phase.loop) if each is not None]
        assert tuple(joined) == kernel.body
        assert not any(is_on_cores(phase.before) for phase in kernel.phases)
        assert not any(is_on_cores(phase.loop.body) for phase in kernel.phases if phase.loop is not None)
    assert max(len(kernel.phases) for kernel in kernels) > 1


def test_a_micro_kernel_call_is_three_slices_and_little_else() -> None:
    assert len(Mma.__match_args__) <= 6
