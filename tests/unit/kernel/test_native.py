"""Generated C against the interpreter: random programs over everything the native engine knows so far."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smelt.device.runtime import runtime
from smelt.dtype import Array
from smelt.engine.native import NativeEngine
from smelt.errors import RunError, ShapeError, SizeError, UnsupportedError
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.ir.interpret import run
from smelt.shape import Shape


def both(program: Program, *args: Array) -> tuple[Array, Array]:
    (native,) = NativeEngine().compile(program)(*args)
    (reference,) = run(program, args)
    return native, reference


def random_array(random: np.random.Generator, *sizes: int) -> Array:
    return random.standard_normal(sizes).astype(np.float32)


UNARY = ("abs", "negate", "exponential", "logistic", "tanh", "sqrt", "rsqrt")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_float_functions_within_two_ulp(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 88.7, -87.3, -104.0, 1e-30, 3e38], np.float32)
    grid = np.concatenate([special, (random.standard_normal(4000) * 20).astype(np.float32)])
    other = random.permutation(grid)
    shape = Shape("f32", "N")
    f = FuncBuilder("main", [shape] * (2 if name in BINARY else 1))
    program = Program.of(f.func(f.op(f"stablehlo.{name}", *f.args).result))
    native, reference = both(program, *([grid, other] if name in BINARY else [grid]))
    assert (np.isnan(native) == np.isnan(reference)).all()
    bits = [
        np.where(a.view(np.int32) < 0, -(a.view(np.int32) & 0x7FFFFFFF), a.view(np.int32)) for a in (native, reference)
    ]
    distance = np.abs(bits[0].astype(np.int64) - bits[1])[~np.isnan(reference)]
    limit = 0 if name in (*BINARY, "abs", "negate", "sqrt") else 2
    assert distance.max() <= limit, grid[~np.isnan(reference)][distance.argmax()]


def softmax(f: FuncBuilder, x: Value, rows: Value) -> Value:
    peak = reduce(f, "maximum", x, -np.inf)
    shifted = f.exponential(f.subtract(x, f.broadcast_in_dim(peak, broadcast_dimensions=(0,), result=x.shape)))
    total = reduce(f, "add", shifted, 0.0)
    scaled = f.divide(shifted, f.broadcast_in_dim(total, broadcast_dimensions=(0,), result=x.shape))
    value: Value = f.multiply(scaled, rows)
    return value


def reduce(f: FuncBuilder, name: str, x: Value, start: float) -> Value:
    with f.region(Shape("f32"), Shape("f32")) as r:
        r.result(r.op(f"stablehlo.{name}", *r.args).result)
    value: Value = f.reduce(x, f.constant(start, "f32"), dimensions=(1,), regions=[r.body])
    return value


@pytest.mark.parametrize("rows", [0, 1, 2, 7])
def test_one_program_answers_every_size(rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape("f32", "B", 5), Shape("f32", "B", 5)])
    program = Program.of(f.func(softmax(f, *f.args)))
    native, reference = both(program, random_array(random, rows, 5), random_array(random, rows, 5))
    np.testing.assert_allclose(native, reference, rtol=1e-6, atol=1e-7)


def test_batched_gemm_with_moves(seed: int) -> None:
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape("f32", 2, 3, "K"), Shape("f32", "K", 2, 4)])
    x, y = f.args
    product = f.dot_general(x, y, dot_dimension_numbers=DotDims((0,), (1,), (2,), (0,)), result=Shape("f32", 2, 3, 4))
    moved = f.reshape(f.transpose(product, permutation=(2, 0, 1)), result=Shape("f32", 8, 3))
    part = f.slice(moved, start_indices=(1, 0), limit_indices=(8, 3), strides=(2, 1))
    program = Program.of(f.func(part))
    native, reference = both(program, random_array(random, 2, 3, 6), random_array(random, 6, 2, 4))
    np.testing.assert_allclose(native, reference, rtol=1e-5, atol=1e-6)


def test_integers_select_and_constants() -> None:
    f = FuncBuilder("main", [Shape("i32", 3, 4)])
    (x,) = f.args
    table = f.constant(np.arange(12, dtype=np.int32).reshape(3, 4) - 5)
    places = f.iota(iota_dimension=1, result=Shape("i32", 3, 4))
    chosen = f.select(f.compare(x, table, comparison_direction="GT"), f.add(x, places), f.multiply(table, table))
    program = Program.of(f.func(chosen))
    values = np.array([[-(2**31), 2**31 - 1, 0, -3], [5, 6, 7, 8], [100, -100, 3, 2]], np.int32)
    native, reference = both(program, values)
    np.testing.assert_array_equal(native, reference)


def test_a_long_chain_is_cut_into_kernels() -> None:
    f = FuncBuilder("main", [Shape("f32", 3)])
    value = f.args[0]
    for _ in range(1000):
        value = f.negate(f.abs(value))
    native, reference = both(Program.of(f.func(value)), np.array([1, -2, 3], np.float32))
    np.testing.assert_array_equal(native, reference)


def test_what_it_does_not_know_is_refused_by_name() -> None:
    f = FuncBuilder("main", [Shape("f32", 3)])
    (value,) = f.op("stablehlo.custom_call", f.args[0], call_target_name="elsewhere", result=Shape("f32", 3)).results
    with pytest.raises(UnsupportedError, match=r"does not support stablehlo\.custom_call elsewhere"):
        NativeEngine().compile(Program.of(f.func(value)))


@pytest.mark.parametrize("bound", [0.0, -0.0, 1.5, -6.0])
@pytest.mark.parametrize("function", ["maximum", "minimum"])
def test_limits_by_a_number_keep_nan_and_the_order_of_zeros(function: str, bound: float) -> None:
    f = FuncBuilder("main", [Shape("f32", 7)])
    program = Program.of(f.func(f.op(f"stablehlo.{function}", f.args[0], f.full(bound, f.args[0].shape)).result))
    x = np.array([-0.0, 0.0, np.nan, np.inf, -np.inf, 3, -7], np.float32)
    native, reference = both(program, x)
    np.testing.assert_array_equal(native, reference)
    there = ~np.isnan(reference)
    np.testing.assert_array_equal(np.signbit(native)[there], np.signbit(reference)[there])


def test_wrong_calls_are_refused() -> None:
    f = FuncBuilder("main", [Shape("f32", "N"), Shape("f32", "N")])
    executable = NativeEngine().compile(Program.of(f.func(f.add(*f.args))))
    one, two = np.zeros(1, np.float32), np.zeros(2, np.float32)
    with pytest.raises(RunError, match="number of inputs"):
        executable(one)
    with pytest.raises(ShapeError, match="does not fit"):
        executable(one, one.astype(np.float64))
    with pytest.raises(ShapeError):
        executable(one, two)
    executable.close()
    executable.close()
    with pytest.raises(RunError, match="closed"):
        executable(one, one)


def test_a_damaged_cache_entry_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime()  # loaded from the folder that everybody uses
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    f = FuncBuilder("main", [Shape("f32", 2)])
    program = Program.of(f.func(f.add(f.args[0], f.full(41.5, f.args[0].shape))))
    NativeEngine().compile(program)
    (entry,) = tmp_path.glob("*.so")
    damaged = entry.read_bytes()[:1000]
    entry.unlink()  # what is loaded stays as it is
    entry.write_bytes(damaged)
    (native,) = NativeEngine().compile(program)(np.zeros(2, np.float32))
    np.testing.assert_array_equal(native, np.full(2, 41.5, np.float32))


def test_sizes_taken_for_granted_are_checked_before_memory_is_touched() -> None:
    f = FuncBuilder("main", [Shape("f32", "M"), Shape("f32", "N")])
    total = NativeEngine().compile(Program.of(f.func(f.add(*f.args))))
    np.testing.assert_array_equal(total(np.ones(3, np.float32), np.ones(3, np.float32))[0], [2, 2, 2])
    for other in (1, 2, 100_000):
        with pytest.raises(SizeError, match="add"):
            total(np.ones(3, np.float32), np.ones(other, np.float32))
    g = FuncBuilder("main", [Shape("f32", "N")])
    part = g.slice(g.args[0], start_indices=(2,), limit_indices=(5,), strides=(1,))
    cut = NativeEngine().compile(Program.of(g.func(g.negate(part))))
    np.testing.assert_array_equal(cut(np.arange(5, dtype=np.float32))[0], [-2, -3, -4])
    with pytest.raises(SizeError, match="slice"):
        cut(np.arange(4, dtype=np.float32))
