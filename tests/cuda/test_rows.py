"""Rows that a block of a GPU keeps in registers: norms, softmax and reductions have the bits of a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from smelt.buffer import HostBuffer
from smelt.device import cpu
from smelt.dtype import Array, dtype
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine, compile_all
from smelt.errors import SmeltError
from smelt.ir.attributes import DotDims
from smelt.ir.blocks import BLOCKS
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.ir.interpret import run
from smelt.kernel.loops import rows as rows_in_registers
from smelt.kernel.loops import simt
from smelt.passes.lower_blocks import round_activations
from smelt.shape import Shape
from smelt.weights import Weights
from tests.cuda.emulated import EmulatedCuda
from tests.unit.kernel.test_block_dot import Sketch, random_weights


def along(f: FuncBuilder, row: Value, like: Value) -> Value:
    """One number per row, for each of its elements."""
    return f.broadcast_in_dim(row, broadcast_dimensions=(0,), result=like.shape)


def scaled(f: FuncBuilder, x: Value, w: Value) -> Value:
    return f.multiply(x, f.broadcast_in_dim(w, broadcast_dimensions=(1,), result=x.shape))


def mean(f: FuncBuilder, x: Value) -> Value:
    total = f.reduce_by("add", x, 0.0, (1,))
    return f.multiply(total, f.full(1 / x.shape.sizes[1], total.shape))  # type: ignore[operator]


def rms_norm(f: FuncBuilder, x: Value, w: Value) -> Value:
    return scaled(f, f.multiply(x, along(f, f.rsqrt(mean(f, f.multiply(x, x))), x)), w)


def layer_norm(f: FuncBuilder, x: Value, w: Value) -> Value:
    centred = f.subtract(x, along(f, mean(f, x), x))
    normal = f.multiply(centred, along(f, f.rsqrt(mean(f, f.multiply(centred, centred))), x))
    return f.add(scaled(f, normal, w), f.broadcast_in_dim(w, broadcast_dimensions=(1,), result=x.shape))


def softmax(f: FuncBuilder, x: Value, w: Value) -> Value:
    weight = f.exponential(f.subtract(x, along(f, f.reduce_by("maximum", x, -np.inf, (1,)), x)))
    return scaled(f, f.divide(weight, along(f, f.reduce_by("add", weight, 0.0, (1,)), x)), w)


def largest(f: FuncBuilder, x: Value, w: Value) -> Value:
    return f.reduce_by("maximum", scaled(f, x, w), -np.inf, (1,))


def mean_square(f: FuncBuilder, x: Value, w: Value) -> Value:
    return f.rsqrt(mean(f, f.multiply(x, x)))


NETWORKS: list[Callable[[FuncBuilder, Value, Value], Value]] = [rms_norm, layer_norm, softmax, largest]


def program(network: Callable[..., Value], rows: int | str, columns: int, element: str) -> Program:
    """A network of rows and of f32 weights, in f32, with rows and results of a type."""
    f = FuncBuilder("main", [Shape(element, rows, columns), Shape("f32", columns)])
    x, w = f.args
    found = network(f, f.convert(x, result=x.shape.with_dtype(dtype("f32"))), w)
    return Program.of(f.func(f.convert(found, result=found.shape.with_dtype(dtype(element)))))


def rows_of(rows: int, columns: int, element: str, seed: int) -> list[Array]:
    """Rows and weights."""
    random = np.random.default_rng(seed)
    x, w = random.standard_normal((rows, columns), np.float32), random.standard_normal(columns, np.float32)
    return [x.astype(dtype(element).numpy), w]


def source(made: Program, device: EmulatedCuda) -> str:
    return emit_source([plan_program(made, device.target())]).text()


def compiled(made: Program, target: Any) -> Any:
    (found,) = compile_all([made], target)
    assert not isinstance(found, SmeltError), found
    return found


def check(made: Program, arrays: list[Array], device: EmulatedCuda) -> None:
    got = compiled(made, device.target())(*arrays)[0].numpy()
    if "fma" in cpu.target().features:
        np.testing.assert_array_equal(got, np.asarray(compiled(made, cpu.target())(*arrays)[0]))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("rows", "columns", "element"), [(1, 4096, "bf16"), (3, 1540, "f32"), (2, 5120, "bf16")])
def test_rows_in_registers(
    network: Callable[..., Value], rows: int, columns: int, element: str, emulated: EmulatedCuda, seed: int
) -> None:
    """A thread has one or several vectors, and not all threads have the last one."""
    made = program(network, rows, columns, element)
    assert "smelt_read_pack<" in source(made, emulated)
    random = np.random.default_rng(seed)
    x, w = random.standard_normal((rows, columns), np.float32), random.standard_normal(columns, np.float32)
    x[-1, [5, columns - 3]] = 40, -300
    check(made, [x.astype(dtype(element).numpy), w], emulated)


@pytest.mark.parametrize("network", [largest, mean_square])
def test_a_dynamic_number_of_rows(network: Callable[..., Value], emulated: EmulatedCuda, seed: int) -> None:
    """There may be few: a block has each of them, also where nothing but a reduction is computed."""
    made = program(network, "R", 1540, "bf16")
    assert "smelt_read_pack<" in source(made, emulated)
    x, w = rows_of(3, 1540, "bf16", seed)
    for rows in (1, 3):
        check(made, [x[:rows], w], emulated)


def test_many_rows_that_are_reduced(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warp has each of them, where their number is known."""
    monkeypatch.setattr(simt, "MANY_ROWS", 3)
    made = program(mean_square, 3, 1540, "f32")
    assert "smelt_read_pack<" not in source(made, emulated)
    check(made, rows_of(3, 1540, "f32", seed), emulated)


def test_terms_that_do_not_fit_in_shared_memory(
    emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are reduced a chunk at a time; NaN and infinities go through; rows of any number."""
    monkeypatch.setattr(rows_in_registers, "TERMS", 8 << 10)
    random = np.random.default_rng(seed)
    for columns in (4096, 4100):
        made = program(layer_norm, "R", columns, "f32")
        text = source(made, emulated)
        assert text.count("part = smelt_fold_row<") >= 4
        for rows in (1, 3):
            x, w = random.standard_normal((rows, columns), np.float32), random.standard_normal(columns, np.float32)
            x[-1, 7], x[0, columns - 1] = np.inf, np.nan
            check(made, [x, w], emulated)


def test_rows_that_stay_in_memory(emulated: EmulatedCuda, seed: int) -> None:
    """Vectors of a row that are not aligned, and more than a thread has registers for."""
    assert "smelt_fold_row<" not in source(program(rms_norm, 2, 4098, "f32"), emulated)
    assert "smelt_fold_row<" not in source(program(rms_norm, 2, 40960, "f32"), emulated)
    made = program(layer_norm, 2, 20480, "f32")  # the rows are held, the weights are not
    assert "smelt_held1" not in source(made, emulated)
    random = np.random.default_rng(seed)
    x, w = random.standard_normal((2, 20480), np.float32), random.standard_normal(20480, np.float32)
    check(made, [x, w], emulated)


def test_a_norm_whose_row_is_rounded_to_bytes(emulated: EmulatedCuda, seed: int) -> None:
    """The map behind the reduction writes to shared memory. A mean that is subtracted cannot wait for the product."""
    depth, width, row, random = 1536, 64, BLOCKS["q4_0"], np.random.default_rng(seed)
    shapes = Shape("f32", 2, depth), Shape("f32", depth), Shape("ui8", width, depth // 32, row.bytes)
    sketch = Sketch(*shapes, weights=(2,))
    x, scale, w = sketch.f.args
    dense = sketch.unblock(row, w)
    dims, shape = DotDims((), (), (1,), (1,)), Shape("f32", 2, width)
    normal = layer_norm(sketch.f, x, scale)
    made = round_activations(
        sketch.program(sketch.f.dot_general(normal, dense, dot_dimension_numbers=dims, result=shape))
    )
    assert "smelt_fold_row<" in source(made, emulated)
    weights = random_weights(row, width, depth // 32, seed=seed)
    stored = Weights.of({"w2": HostBuffer.of(weights)})
    given = [random.standard_normal(size, np.float32) for size in ((2, depth), (depth,))]
    (want,) = run(made, [*given, weights])
    got = NativeEngine(emulated.target()).compile(made).prepare(stored)(*given)[0].numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * np.abs(want).max())
