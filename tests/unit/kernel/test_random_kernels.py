"""Random numbers in generated C: XLA's bits, the interpreter's draws, and draws through control flow."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import dtype
from smelt.engine.native import NativeEngine
from smelt.errors import SizeError, UnsupportedError
from smelt.ir.build import Builder, FuncBuilder
from smelt.ir.core import Program, Value
from smelt.ir.interpret import run
from smelt.shape import Shape

SHAPES = [(), (1,), (5,), (3, 5), (3, 4), (5, 2, 3), (7, 7), (3, 0), (40, 40)]
STATE = np.array([0x123456789ABCDEF0, 2**64 - 3], np.uint64)


@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX", "DEFAULT"])
def test_bits_are_those_of_xla(algorithm: str) -> None:
    jax = pytest.importorskip("jax")
    which = getattr(jax.lax.RandomAlgorithm, f"RNG_{algorithm}")
    shapes = SHAPES if algorithm != "DEFAULT" else SHAPES[2:4]
    cases = [
        ("ui8", (3, 5)),
        ("ui16", (5, 2, 3)),
        *((element, shape) for element in ("ui32", "ui64") for shape in shapes),
    ]
    f = FuncBuilder("main", [Shape("ui64", 2)])
    results: list[Value] = []
    for element, shape in cases:
        types = [Shape("ui64", 2), Shape(element, *shape)]
        results += f.rng_bit_generator(*f.args, rng_algorithm=algorithm, result=types)
    got = NativeEngine().compile(Program.of(f.func(*results)))(STATE)
    for i, (element, shape) in enumerate(cases):
        with jax.enable_x64(True):
            key = jax.numpy.asarray(STATE.view(np.uint32))
            after, words = jax.lax.rng_bit_generator(key, shape, dtype=dtype(element).numpy, algorithm=which)
        assert got[2 * i].tolist() == np.asarray(after).view(np.uint64).tolist()
        assert got[2 * i + 1].tolist() == np.asarray(words).tolist(), (element, shape)


@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX"])
def test_dynamic_dimensions_and_narrow_elements(algorithm: str) -> None:
    """The axis of pairs is known only at the call."""
    elements = ("i4", "ui8", "f8E4M3FN", "f16", "f32", "i64", "f64", "f4E2M1FN")
    f = FuncBuilder("main", [Shape("ui64", 2), Shape("i1", "A", "B")])
    results: list[Value] = []
    for element in elements:
        types = [Shape("ui64", 2), Shape.of(dtype(element), f.args[1].shape.sizes)]
        results += f.rng_bit_generator(f.args[0], rng_algorithm=algorithm, result=types)
    program = Program.of(f.func(*results))
    compiled = NativeEngine().compile(program)
    for sizes in ((3, 5), (5, 3), (3, 4), (4, 3), (2, 5), (5, 2), (1, 5), (1, 1), (0, 3), (7, 7)):
        args = [STATE, np.zeros(sizes, bool)]
        for got, want in zip(compiled(*args), run(program, args), strict=True):
            same = (got == want) | ((got != got) & (want != want))
            assert same.all(), sizes


def rng(b: Builder, low: Value, high: Value, sizes: tuple[int, ...], distribution: str = "UNIFORM") -> Value:
    shape = b.constant(np.array(sizes, np.int64))
    return b.op("stablehlo.rng", low, high, shape, rng_distribution=distribution).result


@pytest.mark.parametrize("element", ["f32", "f64", "bf16", "i8", "i64", "ui32", "i1"])
def test_draws_are_those_of_the_interpreter(element: str) -> None:
    kind = dtype(element)
    f = FuncBuilder("main", [Shape(element), Shape(element)])
    low, high = f.args
    values = [rng(f, low, high, sizes) for sizes in ((3, 5), (400,), ())]
    program = Program.of(f.func(*values))
    compiled = NativeEngine().compile(program)
    bounds = {"ui32": ((2, 4000000000), (7, 7)), "i1": ((0, 1),)}.get(element, ((-3, 100), (5, 5), (-100, 1)))
    for pair in bounds:
        args = [np.array(bound).astype(kind.numpy) for bound in pair]
        for got, want in zip(compiled(*args), run(program, args), strict=True):
            np.testing.assert_array_equal(got, want)
            if pair[0] < pair[1]:
                assert ((got >= args[0]) & ((got < args[1]) | (kind.kind == "bool"))).all()


def test_normal_draws_are_those_of_the_interpreter() -> None:
    f = FuncBuilder("main", [Shape("f32"), Shape("f32"), Shape("f64"), Shape("f64")])
    a, b, c, d = f.args
    program = Program.of(f.func(rng(f, a, b, (50, 50), "NORMAL"), rng(f, c, d, (2000,), "NORMAL")))
    args = [np.array(1, np.float32), np.array(3, np.float32), np.array(-1.0), np.array(0.5)]
    single, double = NativeEngine().compile(program)(*args)
    want = run(program, args)
    np.testing.assert_allclose(single, want[0], rtol=2e-7, atol=1e-7)
    np.testing.assert_allclose(double, want[1], rtol=1e-14, atol=1e-15)
    assert abs(single.mean() - 1) < 0.2
    assert abs(double.std() - 0.5) < 0.05


@pytest.mark.parametrize("distribution", ["UNIFORM", "NORMAL"])
def test_draws_of_a_size_that_data_decides(distribution: str) -> None:
    """Bounds for which the arithmetic is nothing: it may vanish, and the size stays what the call says."""
    for element in ("f64", "i32") if distribution == "UNIFORM" else ("f64",):
        f = FuncBuilder("main", [Shape("i64", 2), Shape("i64", 1)])
        low, high = f.constant(0, element), f.constant(1, element)
        drawn = [
            f.op("stablehlo.rng", low, high, sizes, rng_distribution=distribution).result
            for sizes in (*f.args, f.args[1])
        ]
        program = Program.of(f.func(*drawn))
        compiled = NativeEngine().compile(program)
        for sizes in ((3, 5), (1, 400), (0, 2)):
            args = [np.array(sizes), np.array([7])]
            for got, want in zip(compiled(*args), run(program, args), strict=True):
                assert got.shape == want.shape
                np.testing.assert_allclose(got, want, rtol=1e-14, atol=1e-15)
        with pytest.raises(SizeError):
            compiled(np.array([3, -1]), np.array([7]))


def test_draws_go_on_through_loops_and_branches() -> None:
    """A loop of draws, a branch that draws or not, and a draw after both."""
    f = FuncBuilder("main", [Shape("i32"), Shape("i1")])
    low, high = f.constant(0.0, "f32"), f.constant(1.0, "f32")
    zero, total = f.constant(0, "i32"), f.full(0.0, Shape("f32", 3))
    types = [zero.type, total.type]
    with f.region(*types) as condition:
        condition.result(condition.compare(condition.args[0], f.args[0], comparison_direction="LT"))
    with f.region(*types) as body:
        drawn = body.add(body.args[1], rng(body, low, high, (3,)))
        body.result(body.add(body.args[0], body.constant(1, "i32")), drawn)
    _, summed = f.while_(zero, total, regions=[condition.body, body.body])
    with f.region() as then:
        then.result(rng(then, low, high, (2,)))
    with f.region() as otherwise:
        otherwise.result(otherwise.full(7.0, Shape("f32", 2)))
    chosen = f.if_(f.args[1], regions=[then.body, otherwise.body])
    program = Program.of(f.func(summed, chosen, rng(f, low, high, (4,))))
    compiled = NativeEngine().compile(program)
    seen = []
    for turns in (0, 1, 5):
        for draws in (True, False):
            args = [np.array(turns, np.int32), np.array(draws)]
            got = compiled(*args)
            for a, b in zip(got, run(program, args), strict=True):
                np.testing.assert_array_equal(a, b)
            seen.append(tuple(got[2].tolist()))
    assert len(set(seen)) == len(seen)  # every way there takes another number of draws


def test_a_draw_in_a_condition_is_refused() -> None:
    f = FuncBuilder("main", [Shape("f32")])
    with f.region(Shape("f32")) as condition:
        high = condition.constant(1.0, "f32")
        drawn = rng(condition, condition.constant(0.0, "f32"), high, ())
        condition.result(condition.compare(drawn, condition.args[0], comparison_direction="LT"))
    with f.region(Shape("f32")) as body:
        body.result(body.args[0])
    program = Program.of(f.func(f.while_(*f.args, regions=[condition.body, body.body])))
    with pytest.raises(UnsupportedError, match="rng in the condition of a loop"):
        NativeEngine().compile(program)
