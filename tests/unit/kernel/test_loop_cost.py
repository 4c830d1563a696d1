"""The cost of loops and of steps, counted by hand; estimates of measured ratios."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from smelt.device import cpu
from smelt.dim import symbol
from smelt.dtype import f32, i1
from smelt.engine.compile import lower, plan_lowered
from smelt.engine.signature import signature_of
from smelt.ir.attributes import GatherDims
from smelt.ir.blocks import BLOCKS
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.kernel.loops.cost import Accesses, count_work
from smelt.kernel.loops.form import F32
from smelt.kernel.loops.grammar import (
    Amount,
    Apply,
    BlockMma,
    Expr,
    Fold,
    For,
    If,
    Let,
    Load,
    Mma,
    Number,
    Place,
    RoundRow,
    Set,
    Slice,
    Stmt,
    Store,
    Transpose,
    Var,
    While,
)  # fmt: skip
from smelt.kernel.plan.cost import Cost, step_cost
from smelt.kernel.plan.plan import Copy, Launch
from smelt.kernel.tune.search import CONFIDENCE, ENOUGH, MIN_GAIN, Estimate, pair_ratios
from smelt.shape import Shape

N = symbol("N")
INDEX, X, FLAG = Var("i"), Var("x", f32), Number(1, i1)
ONE = Number(1.0, f32)


def load(array: int) -> Expr:
    return Load(Place(array, INDEX), f32)


def store(array: int, value: Expr = ONE) -> Stmt:
    return Store(Place(array, INDEX), value)


def loop(extent: Expr, *body: Stmt) -> Stmt:
    return For(INDEX, extent, body)


def fold(extent: Expr, value: Expr, *body: Stmt) -> Stmt:
    return Fold(INDEX, extent, body, value, X, "add", ONE)


def tile(*sizes: Expr, array: int = 0) -> Slice:
    return Slice(Place(array, Number(0)), sizes, tuple(Number(1) for _ in sizes))


def mma(*sizes: Expr) -> Stmt:
    return Mma(tile(Number(2), Number(8)), tile(*sizes, array=3), tile(Number(2), Number(8), array=4), F32)


ACC, Q, SCALE, TOTAL, PANEL = (tile(Amount(5), Number(8), array=i) for i in range(5))
PANELS = BlockMma(ACC, Q, SCALE, TOTAL, PANEL, "q4_0")
ROUNDED = RoundRow(Q.place, SCALE.place, TOTAL.place, PANEL.place, runs=6, group=16, zero=8)


@pytest.mark.parametrize(
    ("statements", "work"),
    [
        ([], 0),
        ([store(0), Let(X, ONE), Set(X, ONE)], 3),
        ([loop(Amount(7), store(0), store(1))], 14),
        ([loop(Amount(N), loop(Amount(3), store(0)))], 3 * N),
        ([loop(INDEX, store(0))], 64),
        ([While((), FLAG, (store(0), store(1)))], 128),
        ([fold(Amount(7), ONE, store(0))], 14),
        ([fold(Amount(7), ONE)], 7),
        ([fold(INDEX, ONE, store(0))], 64),
        ([If(FLAG, (store(0),), (store(0), store(1)))], 3),
        ([mma(Amount(2), Amount(3), Amount(5))], 16 * 3 * 5),
        ([mma(Amount(2), INDEX, Amount(5))], 16 * 5),
        ([mma(Amount(2), Amount(3), INDEX)], 16 * 128 * 3),
        ([PANELS], 16 * 5 * BLOCKS["q4_0"].length),
        ([ROUNDED], 4 * 6 * 32),
        ([Transpose(tile(Number(6), Number(10)), tile(Number(10), Number(6)))], 15),
    ],
)
def test_work(statements: list[Stmt], work: Any) -> None:
    assert count_work(statements) == work


def accesses(*statements: Stmt, times: float = 1) -> tuple[dict[Any, float], dict[Any, float]]:
    found = Accesses(lambda size: size if isinstance(size, int) else None)
    found.block(statements, times)
    return found.reads, found.writes


def test_loads_and_stores_are_counted_at_most() -> None:
    small = Apply("minimum", (Number(4), Amount(N)), INDEX.dtype)
    both = Apply("add", (load(0), load(1)), f32)
    assert accesses(store(2, both), store(2, load(0))) == ({0: 2, 1: 1}, {2: 2})
    assert accesses(loop(Amount(5), store(1, load(0))), times=3) == ({0: 15}, {1: 15})
    assert accesses(loop(Amount(N), store(1, load(0)))) == ({0: inf}, {1: inf})
    assert accesses(loop(Number(5), loop(small, store(1, load(0))))) == ({0: 20}, {1: 20})
    assert accesses(Let(INDEX, small), loop(INDEX, store(1))) == ({}, {1: 4})
    assert accesses(loop(INDEX, store(1))) == ({}, {1: inf})
    assert accesses(loop(Apply("add", (Number(1), Number(2)), INDEX.dtype), store(1))) == ({}, {1: inf})
    assert accesses(fold(Number(6), both, store(2, load(0)))) == ({0: 13, 1: 7}, {2: 6})  # the value once more: a bound
    assert accesses(While((store(1),), FLAG, (store(2, load(0)),))) == ({0: inf}, {1: inf, 2: inf})
    assert accesses(If(FLAG, (store(1),), (store(1), store(2)))) == ({}, {1: 2, 2: 1})
    assert accesses(mma(Number(1), Number(1), Number(1))) == ({3: inf, 4: inf}, {})
    assert accesses(PANELS) == ({1: inf, 2: inf, 3: inf, 4: inf}, {})
    assert accesses(ROUNDED, times=2) == ({4: inf}, {1: 384, 2: 12, 3: 24})


def costs(f: FuncBuilder, *results: Any, **sizes: int) -> list[Cost]:
    program = Program.of(f.func(*results))
    target = cpu.target("avx2").replace(cores=2)
    plan = plan_lowered(lower(program, target), signature_of(program.main), target, keep_ops=True).main[0]
    steps = [step for step in plan.steps if isinstance(step, Launch | Copy)]
    return [step_cost(step, plan, program, sizes) for step in steps]


def test_steps() -> None:
    """Bytes: each buffer once, of a table only the rows that are read. Operations: those of the ops."""
    f = FuncBuilder("main", [Shape("f32", "N", 3), Shape("f32", "N", 3)])
    added = f.add(*f.args)
    assert costs(f, added, N=5) == [Cost(15, 3 * 5 * 3 * 4)]
    assert costs(f, added) == [Cost(None, None)]
    f = FuncBuilder("main", [Shape("f32", 1000, 3), Shape("i32", 2)])
    dims = GatherDims((1,), (0,), (), (), (0,), 1)
    (found,) = costs(f, f.gather(*f.args, dimension_numbers=dims, slice_sizes=(1, 3)))
    assert found.bytes is not None
    assert 2 * 3 * 4 * 2 < found.bytes <= 2 * 3 * 4 * 2 + 2 * 3 * 4
    f = FuncBuilder("main", [Shape("f64", 7)])
    assert costs(f, f.args[0]) == [Cost(0, 2 * 56)]


def test_estimates_of_ratios() -> None:
    """The median; its error by the median distance, by half of the range where there are few."""
    few = Estimate.of([0.9, 1.0, 1.2])
    assert few.ratio == 1.0
    assert few.error == pytest.approx(1.2533 * 0.15 / 3**0.5)
    many = Estimate.of([1.0] * (ENOUGH - 2) + [0.5, 3.0])
    assert many.ratio == 1.0
    assert many.error == pytest.approx(1.2533e-3 / ENOUGH**0.5)
    spread = [0.8, 0.9, 1.0, 1.1, 1.2, 1.0, 0.95, 1.05]
    wanted = 1.4826 * float(np.median(np.abs(np.array(spread) - 1.0)))
    assert Estimate.of(spread).error == pytest.approx(1.2533 * wanted / 8**0.5)
    edge = (1 - MIN_GAIN - 0.9) / CONFIDENCE
    assert Estimate(0.9, 0.999 * edge).is_faster
    assert not Estimate(0.9, 1.001 * edge).is_faster
    assert not Estimate(0.9, 0.999 * edge).is_faster_among(2)
    assert Estimate(0.9, 0.5 * edge).is_faster_among(10)


def test_pairs_of_neighbouring_times() -> None:
    times, others = [4.0, 2.0, 6.0, 8.0], [1.0, 2.0, 4.0, 2.0]
    assert pair_ratios(times, others, 2) == [2.0, 3.0]
    assert pair_ratios(times, others, 4) == [4.0, 1.0, 1.5, 4.0]
    assert pair_ratios(times, others, 1) == [2.0]
