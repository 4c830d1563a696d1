"""Random graphs of many ops: what is fused, what shares memory and what runs before the first call must not show.

All numbers are small integers, kept small by clamps, so every order of summation gives the same; the interpreter is
the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np
import pytest

from smelt.device import cpu
from smelt.device.runtime import runtime
from smelt.dim import Size, evaluate
from smelt.dtype import Array
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Attrs, Program, Type, Value
from smelt.ir.interpret import run
from smelt.kernel.loops import parallelise
from smelt.shape import Shape
from smelt.weights import Weights
from tests.property.problems import Draw, combine

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

Made = Value | None


class Graph(Draw):
    """A function that grows; every value is f32 and holds integers of at most 30."""

    def start(self, f: FuncBuilder) -> None:
        self.f, self.values_made = f, list(f.args)

    def any(self, accept: Callable[[Value], bool] = lambda value: True) -> Made:
        fitting = [value for value in self.values_made if accept(value)]
        return self.pick(fitting) if fitting else None

    def small(self, value: Value) -> Value:
        low, high = (self.f.constant(each, "f32") for each in (-30.0, 30.0))
        return self.f.clamp(low, value, high)

    def grow(self) -> None:
        made = self.pick(GROW)(self)
        if made is not None and self.value(made.shape.count) <= 20_000:
            self.values_made.append(made)


def _binary(g: Graph) -> Made:
    x = g.any()
    y = None if x is None else g.any(lambda value: value.shape == x.shape)
    if x is None or y is None:
        return None
    name = g.pick(("add", "subtract", "maximum", "minimum", "multiply"))
    made = g.f.op(f"stablehlo.{name}", x, y).result
    return g.small(made) if name in ("add", "subtract", "multiply") else made


def _unary(g: Graph) -> Made:
    x = g.any()
    return None if x is None else g.f.op(f"stablehlo.{g.pick(('negate', 'abs', 'sign'))}", x).result


def _transpose(g: Graph) -> Made:
    x = g.any()
    return None if x is None else g.f.transpose(x, permutation=g.order(x.shape.rank))


def _merge(g: Graph) -> Made:
    x = g.any(lambda value: value.shape.rank > 1)
    if x is None:
        return None
    d = g.number(0, x.shape.rank - 2)
    sizes = x.shape.sizes
    merged: tuple[Size, ...] = (*sizes[:d], sizes[d] * sizes[d + 1], *sizes[d + 2 :])
    return g.f.reshape(x, result=Shape.of(x.shape.dtype, merged))


def _split(g: Graph) -> Made:
    """An even axis as two."""
    x = g.any(lambda value: any(isinstance(size, int) and size % 2 == 0 and size for size in value.shape.sizes))
    if x is None:
        return None
    sizes = x.shape.sizes
    d, size = next((d, size) for d, size in enumerate(sizes) if isinstance(size, int) and size % 2 == 0 and size)
    return g.f.reshape(x, result=Shape.of(x.shape.dtype, (*sizes[:d], size // 2, 2, *sizes[d + 1 :])))


def _broadcast(g: Graph) -> Made:
    x = g.any(lambda value: value.shape.rank < 3)
    like = g.any(lambda value: value.shape.rank > 0)
    if x is None or like is None:
        return None
    sizes = (*x.shape.sizes, like.shape.sizes[-1])
    dims = tuple(range(x.shape.rank))
    return g.f.broadcast_in_dim(x, broadcast_dimensions=dims, result=Shape.of(x.shape.dtype, sizes))


def _reduce(g: Graph) -> Made:
    x = g.any(lambda value: value.shape.rank > 0)
    if x is None:
        return None
    name, start = g.pick((("add", 0.0), ("maximum", -30.0), ("minimum", 30.0)))
    dims = tuple(sorted(g.order(x.shape.rank)[: g.number(1, x.shape.rank)]))
    body = combine(g.f, name, x.shape.dtype)
    return g.small(g.f.reduce(x, g.f.constant(start, "f32"), dimensions=dims, regions=[body]))


def _dot(g: Graph) -> Made:
    x = g.any(lambda value: value.shape.rank > 1)
    y = None if x is None else g.any(lambda v: v.shape.rank == 2 and v.shape.sizes[0] == x.shape.sizes[-1])
    if x is None or y is None:
        return None
    result = Shape.of(x.shape.dtype, (*x.shape.sizes[:-1], y.shape.sizes[1]))
    dims = DotDims((), (), (x.shape.rank - 1,), (0,))
    return g.small(g.f.dot_general(x, y, dot_dimension_numbers=dims, result=result))


def _gram(g: Graph) -> Made:
    """A matrix times its own transpose, for every matrix of a batch."""
    x = g.any(lambda value: value.shape.rank > 1)
    if x is None:
        return None
    last, batch = x.shape.rank - 1, tuple(range(x.shape.rank - 2))
    result = Shape.of(x.shape.dtype, (*x.shape.sizes[:-1], x.shape.sizes[-2]))
    dims = DotDims(batch, batch, (last,), (last,))
    return g.small(g.f.dot_general(x, x, dot_dimension_numbers=dims, result=result))


def _choose(g: Graph) -> Made:
    x = g.any()
    y = None if x is None else g.any(lambda value: value.shape == x.shape)
    if x is None or y is None:
        return None
    return g.f.select(g.f.compare(x, y, comparison_direction=g.pick(("LT", "GE", "NE"))), x, y)


def _convert(g: Graph) -> Made:
    """To another type and back: integers of at most 30 fit."""
    x = g.any()
    if x is None:
        return None
    there = Shape(g.pick(("f64", "i32", "bf16", "i8"))).dtype
    return g.f.convert(g.f.convert(x, result=x.shape.with_dtype(there)), result=x.shape)


def _join(g: Graph) -> Made:
    x = g.any(lambda value: value.shape.rank > 0)
    y = None if x is None else g.any(lambda value: value.shape.rank and value.shape.sizes[1:] == x.shape.sizes[1:])  # type: ignore[arg-type,return-value]
    return None if x is None or y is None else g.f.concatenate(x, y, dimension=0)


def _reverse(g: Graph) -> Made:
    x = g.any(lambda value: value.shape.rank > 0)
    return None if x is None else g.f.reverse(x, dimensions=(g.number(0, x.shape.rank - 1),))


def _sort(g: Graph) -> Made:
    x = g.any(lambda value: value.shape.rank > 0)
    if x is None:
        return None
    with g.f.region(Shape("f32"), Shape("f32")) as r:
        r.result(r.compare(*r.args, comparison_direction="LT"))
    return g.f.sort(x, dimension=g.number(0, x.shape.rank - 1), is_stable=True, regions=[r.body])


def _loop(g: Graph) -> Made:
    """A few turns of x, y → y, clamp(x + y)."""
    x = g.any()
    y = None if x is None else g.any(lambda value: value.shape == x.shape)
    if x is None or y is None:
        return None
    turns = g.number(0, 3)
    shapes = [Shape("i32"), x.shape, y.shape]
    with g.f.region(*shapes) as test:
        test.result(test.compare(test.args[0], test.constant(turns, "i32"), comparison_direction="LT"))
    with g.f.region(*shapes) as turn:
        i, a, b = turn.args
        total = turn.clamp(turn.constant(-30.0, "f32"), turn.add(a, b), turn.constant(30.0, "f32"))
        turn.result(turn.add(i, turn.constant(1, "i32")), b, total)
    loop = g.f.op("stablehlo.while", g.f.constant(0, "i32"), x, y, regions=[test.body, turn.body])
    return loop.results[g.number(1, 2)]


GROW: tuple[Callable[[Graph], Made], ...] = (
    *(_binary,) * 4,
    *(_unary, _transpose, _merge, _split, _broadcast, _reduce, _reduce, _dot, _dot),
    *(_gram, _choose, _convert, _join, _reverse, _sort, _loop),
)


def random_graph(random: np.random.Generator) -> tuple[Program, dict[str, Array], list[Array]]:
    """A program, its weights and its inputs."""
    g = Graph(random, {"B": int(random.choice([0, 1, 2, 5, 13])), "S": int(random.choice([1, 3, 8, 33]))})
    sizes: list[tuple[Size | str, ...]] = [("B", "S"), ("B", 6), (6,), (6, 6), (6, 33), ("S", "B"), (33, 6), ()]
    shapes = [Shape("f32", "B", "S"), *(Shape("f32", *g.pick(sizes)) for _ in range(4))]
    marks: list[Attrs] = [
        MappingProxyType({"smelt.weight": f"w{i}"} if shape.is_static and g.chance(0.6) else {})
        for i, shape in enumerate(shapes)
    ]
    order = sorted(range(len(shapes)), key=lambda i: not marks[i])  # weights first
    f = FuncBuilder("main", list[Type](shapes[i] for i in order), arg_attrs=[marks[i] for i in order])
    g.start(f)
    for _ in range(30):
        g.grow()
    arrays = [
        random.integers(-3, 4, [evaluate(size, g.values) for size in shapes[i].sizes]).astype(np.float32) for i in order
    ]
    count = sum(bool(mark) for mark in marks)
    weights = {str(marks[i]["smelt.weight"]): array for i, array in zip(order[:count], arrays, strict=False)}
    results = [value for value in g.values_made[-8:] if value.op is not None][-3:] or [f.negate(f.args[0])]
    return Program.of(f.func(*results)), weights, [np.asarray(array) for array in arrays[count:]]


@pytest.mark.parametrize("part", range(2))
def test_random_graphs(part: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call twice, for memory that a call leaves behind must not matter; with three threads at every step."""
    monkeypatch.setattr(parallelise, "ELEMENTS_PER_CORE", 16)
    random = np.random.default_rng([seed, part])
    cases = [random_graph(random) for _ in range(20)]
    threads = runtime().threads
    runtime().set_threads(3)
    try:
        for i, ((program, weights, inputs), made) in enumerate(
            zip(cases, compile_all([program for program, _, _ in cases]), strict=True)
        ):
            assert not isinstance(made, SmeltError), made
            want = run(program, [*weights.values(), *inputs])
            bound = made.prepare(Weights.of(weights))
            for _ in range(2):
                for got, right in zip(bound(*inputs), want, strict=True):
                    np.testing.assert_array_equal(got, right, err_msg=f"graph {i}")
    finally:
        runtime().set_threads(threads)
