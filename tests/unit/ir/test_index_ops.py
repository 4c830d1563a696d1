"""Gather, scatter, slices at computed places, sort and top_k, held against XLA (through JAX), NumPy and plain loops."""

import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.dim import symbol
from smelt.dtype import dtype
from smelt.errors import RunError, VerifyError
from smelt.ir.attributes import GatherDims, ScatterDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Token
from smelt.ir.interpret import run
from smelt.ir.ops.index import total_order
from smelt.shape import Shape

B, S = symbol("B"), symbol("S")
I64, F32 = Shape("i64"), Shape("f32")


def shape_of(array):
    return Shape.of(dtype(array.dtype), array.shape)


def body(f, scalars, emit):
    """A region over scalars that `emit(builder, *args)` fills; it gives the results."""
    with f.region(*scalars) as r:
        results = emit(r, *r.args)
        r.result(*(results if isinstance(results, tuple) else (results,)))
    return r.body


def call(name, *arrays, region=None, scalars=(), **attrs):
    inputs = [np.asarray(array) for array in arrays]
    f = FuncBuilder("main", [shape_of(array) for array in inputs])
    regions = [body(f, scalars, region)] if region else []
    op = f.op(name, *f.args, regions=regions, **attrs)
    return run(Program.of(f.func(*op.results)), inputs)


def refused(name, *types, label="", region=None, scalars=(), **attrs):
    f = FuncBuilder("main", types)
    regions = [body(f, scalars, region)] if region else []
    with pytest.raises(VerifyError) as caught:
        f.op(name, *f.args, regions=regions, **attrs)
    assert label in caught.value.message


def f32(*sizes):
    return np.arange(np.prod(sizes, dtype=int), dtype=np.float32).reshape(sizes)


# ---- gather ----

SPEC_GATHER = GatherDims((3, 4), (1,), (0,), (1,), (2, 1), 3)
SPEC_INDICES = [
    [[[0, 0], [1, 0], [2, 1]], [[0, 1], [1, 1], [0, 9]]],
    [[[0, 0], [2, 1], [2, 2]], [[1, 2], [0, 1], [1, 0]]],
]


def test_gather_of_the_specification():
    operand = np.arange(1, 49, dtype=np.int32).reshape(2, 3, 4, 2)
    (out,) = call(
        "stablehlo.gather", operand, np.array(SPEC_INDICES), dimension_numbers=SPEC_GATHER, slice_sizes=(1, 1, 2, 2)
    )
    assert out.shape == (2, 2, 3, 2, 2)
    assert out.reshape(4, 12).tolist() == [
        [1, 2, 3, 4, 3, 4, 5, 6, 13, 14, 15, 16],
        [33, 34, 35, 36, 35, 36, 37, 38, 41, 42, 43, 44],
        [1, 2, 3, 4, 13, 14, 15, 16, 21, 22, 23, 24],
        [43, 44, 45, 46, 33, 34, 35, 36, 27, 28, 29, 30],
    ]


GATHERS = [
    # operand, indices, dimension numbers, slice sizes
    ((10, 3), (4,), GatherDims((1,), (0,), (), (), (0,), 1), (1, 3)),
    ((10, 3), (4, 1), GatherDims((1,), (0,), (), (), (0,), 1), (1, 2)),
    ((5, 6, 7), (2, 3), GatherDims((0, 2), (1,), (), (), (1, 2), 0), (2, 1, 4)),
    ((5, 6, 7), (2, 2, 3), GatherDims((2, 3, 4), (), (), (), (2, 0, 1), 2), (2, 6, 1)),
    ((5, 6), (3, 5, 1), GatherDims((0,), (), (0,), (1,), (1,), 2), (1, 2)),
    ((4, 5), (2,), GatherDims((), (0, 1), (), (), (1, 0), 0), (1, 1)),
    ((4, 5), (3, 0), GatherDims((1, 2), (), (), (), (), 1), (4, 5)),
    ((4, 5), (0, 1), GatherDims((1,), (0,), (), (), (0,), 1), (1, 5)),
    ((4, 5), (3, 1), GatherDims((1, 2), (), (), (), (1,), 1), (2, 0)),
]


@pytest.mark.parametrize("sizes", GATHERS, ids=lambda sizes: str(sizes[:2]))
def test_gather_against_jax(sizes):
    lax = pytest.importorskip("jax").lax
    operand_sizes, index_sizes, dims, slices = sizes
    operand = f32(*operand_sizes)
    indices = np.random.default_rng(0).integers(-3, 9, index_sizes).astype(np.int32)
    (out,) = call("stablehlo.gather", operand, indices, dimension_numbers=dims, slice_sizes=slices)
    vectors = (
        indices[..., None] if dims.index_vector_dim == indices.ndim else np.moveaxis(indices, dims.index_vector_dim, -1)
    )
    want = lax.gather(
        operand,
        vectors,
        lax.GatherDimensionNumbers(
            dims.offset_dims,
            dims.collapsed_slice_dims,
            dims.start_index_map,
            dims.operand_batching_dims,
            tuple(dim - (dim > dims.index_vector_dim) for dim in dims.start_indices_batching_dims),
        ),
        slices,
        mode="clip",
    )
    assert np.array_equal(out, np.asarray(want))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint64, ml_dtypes.int4])
def test_gather_takes_every_index_type(kind):
    indices = np.array([0, 2, 1]).astype(kind)
    (out,) = call(
        "stablehlo.gather", f32(3), indices, dimension_numbers=GatherDims((), (0,), (), (), (0,), 1), slice_sizes=(1,)
    )
    assert out.tolist() == [0, 2, 1]


def test_gather_clamps_huge_indices():
    dims = {"dimension_numbers": GatherDims((), (0,), (), (), (0,), 1), "slice_sizes": (1,)}
    assert call("stablehlo.gather", f32(3), np.array([2**64 - 1], np.uint64), **dims)[0].tolist() == [2]
    assert call("stablehlo.gather", f32(3), np.array([-(2**63), 2**63 - 1]), **dims)[0].tolist() == [0, 2]


def test_gather_sizes_with_symbols():
    f = FuncBuilder("main", [Shape("f32", S, 8), Shape("i32", B, 3)])
    dims = GatherDims((2,), (0,), (), (), (0,), 2)
    op = f.op("stablehlo.gather", *f.args, dimension_numbers=dims, slice_sizes=(1, 8))
    assert op.result.type == Shape("f32", B, 3, 8)
    program = Program.of(f.func(op.result))
    (out,) = run(program, [f32(4, 8), np.zeros((2, 3), np.int32)])
    assert np.array_equal(out, np.broadcast_to(np.arange(8), (2, 3, 8)))
    with pytest.raises(RunError):
        run(program, [f32(0, 8), np.zeros((2, 3), np.int32)])


def test_gather_refuses():
    good = GatherDims((1,), (0,), (), (), (0,), 1)
    types = Shape("f32", 5, 6), Shape("i32", 3)

    def check(label, dims=good, slices=(1, 6), types=types):
        refused("stablehlo.gather", *types, dimension_numbers=dims, slice_sizes=slices, label=label)

    check("gather_c1", GatherDims((), (0,), (), (), (0,), 1))
    check("gather_c2", GatherDims((1,), (0,), (), (), (0,), 2))
    check("gather_c2", GatherDims((1,), (0,), (), (), (0,), -1))
    check("gather_c3", GatherDims((1,), (0,), (), (), (0, 1), 1))
    check("gather_c4", GatherDims((1, 1), (), (), (), (0,), 1))
    check("gather_c5", GatherDims((2,), (0,), (), (), (0,), 1))
    check("gather_c6", GatherDims((), (0, 0), (), (), (0,), 1))
    check("gather_c8", GatherDims((1,), (2,), (), (), (0,), 1))
    check("gather_c16", GatherDims((1,), (), (0,), (), (1,), 1))
    check("gather_c19", GatherDims((1,), (0,), (), (), (2,), 1))
    check("gather_c20", slices=(1,))
    check("gather_c21", slices=(1, 7))
    check("gather_c21", slices=(1, -1))
    check("gather_c9", slices=(2, 6))
    check("gather_i2", types=(Shape("f32", 5, 6), Shape("f32", 3)))
    check("", types=(Shape("f32", 5, 6), Token()))
    check("gather_c17", GatherDims((1,), (), (0,), (0,), (1,), 1), slices=(1, 6))
    check("gather_c14", GatherDims((1,), (), (0,), (1,), (1,), 1), slices=(1, 6))


# ---- scatter ----


def add(r, old, new):
    return r.add(old, new)


def test_scatter_of_the_specification():
    dims = ScatterDims((3, 4), (1,), (0,), (1,), (2, 1), 3)
    inputs = np.arange(1, 49).reshape(2, 3, 4, 2)
    (out,) = call(
        "stablehlo.scatter", inputs, np.array(SPEC_INDICES), np.ones((2, 2, 3, 2, 2), np.int64),
        region=add, scalars=[I64, I64], scatter_dimension_numbers=dims,
    )  # fmt: skip
    assert out.reshape(6, 8).tolist() == [
        [3, 4, 6, 7, 6, 7, 7, 8],
        [9, 10, 11, 12, 15, 16, 17, 18],
        [17, 18, 19, 20, 22, 23, 24, 25],
        [25, 26, 28, 29, 30, 31, 31, 32],
        [35, 36, 38, 39, 38, 39, 39, 40],
        [41, 42, 44, 45, 46, 47, 47, 48],
    ]
    assert inputs[0, 0, 0, 0] == 1  # the input is not written to


FLAT = ScatterDims((), (0,), (), (), (0,), 1)


def test_scatter_skips_single_elements_outside():
    """The window from 2 to 4 of a row of 4 loses its last element, the one from -1 its first."""
    dims = ScatterDims((1,), (), (), (), (0,), 1)
    (out,) = call(
        "stablehlo.scatter", np.zeros(4, np.int64), np.array([[2], [-1], [9], [-(2**63)]]), np.array([[1, 2, 3]] * 4),
        region=add, scalars=[I64, I64], scatter_dimension_numbers=dims,
    )  # fmt: skip
    assert out.tolist() == [2, 3, 1, 2]


def sequential(inputs, indices, updates, fn):
    out = list(inputs)
    for index, update in zip(indices, updates, strict=True):
        if 0 <= index < len(out):
            out[index] = fn(out[index], update)
    return out


BODIES: dict[str, tuple[Any, Any]] = {
    "add": (add, lambda a, b: a + b),
    "replace": (lambda r, a, b: b, lambda a, b: b),
    "keep": (lambda r, a, b: a, lambda a, b: a),
    "maximum": (lambda r, a, b: r.maximum(a, b), max),
    "minimum": (lambda r, a, b: r.minimum(b, a), min),
    "multiply": (lambda r, a, b: r.multiply(a, b), lambda a, b: a * b),
    "subtract": (lambda r, a, b: r.subtract(a, b), lambda a, b: a - b),
    "reversed": (lambda r, a, b: r.subtract(b, a), lambda a, b: b - a),
    "twice": (lambda r, a, b: r.add(r.add(a, a), b), lambda a, b: 2 * a + b),
    "xor": (lambda r, a, b: r.xor(a, b), lambda a, b: a ^ b),
}


@pytest.mark.parametrize("name", BODIES)
@given(data=st.data())
def test_scatter_applies_duplicates_in_order(name, data):
    """Every body, associative or not, in the order of the updates; i64 wraps like Python's integers modulo 2**64."""
    emit, fn = BODIES[name]
    size = data.draw(st.integers(1, 5))
    count = data.draw(st.integers(0, 12))
    indices = data.draw(st.lists(st.integers(-1, size), min_size=count, max_size=count))
    updates = data.draw(st.lists(st.integers(-9, 9), min_size=count, max_size=count))
    inputs = list(range(1, size + 1))
    (out,) = call(
        "stablehlo.scatter", np.array(inputs), np.array(indices, np.int64), np.array(updates, np.int64),
        region=emit, scalars=[I64, I64], scatter_dimension_numbers=FLAT,
    )  # fmt: skip
    expected = sequential(inputs, indices, updates, fn)
    assert out.tolist() == [(n + 2**63) % 2**64 - 2**63 for n in expected]


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("name", ["add", "multiply"])
def test_scatter_of_floats_rounds_after_each_update(kind, name):
    emit, fn = BODIES[name]
    rng = np.random.default_rng(3)
    indices = rng.integers(0, 3, 60)
    updates = (1 + rng.standard_normal(60) / 4).astype(kind)
    inputs = np.ones(3, kind)
    expected = sequential(
        inputs, indices, updates, lambda a, b: np.asarray(fn(np.float64(a), np.float64(b))).astype(kind)
    )
    scalar = Shape.of(dtype(kind), ())
    (out,) = call(
        "stablehlo.scatter", inputs, indices, updates, region=emit, scalars=[scalar] * 2, scatter_dimension_numbers=FLAT
    )
    assert out.tobytes() == np.array(expected, kind).tobytes()


def test_scatter_of_several_inputs_runs_one_body():
    def emit(r, a, b, x, y):
        return r.add(a, y), r.multiply(b, x)

    (first, second) = call(
        "stablehlo.scatter",
        np.array([1, 2]), np.array([10, 20]), np.array([[0], [0], [1]]), np.array([2, 3, 4]), np.array([5, 6, 7]),
        region=emit, scalars=[I64] * 4, scatter_dimension_numbers=ScatterDims((), (0,), (), (), (0,), 1),
    )  # fmt: skip
    assert first.tolist() == [1 + 5 + 6, 2 + 7]
    assert second.tolist() == [10 * 2 * 3, 20 * 4]


def test_scatter_promotes_to_the_bodys_type():
    (out,) = call(
        "stablehlo.scatter", np.array([100, 1], np.int8), np.array([0, 0]), np.array([100, 100], np.int8),
        region=add, scalars=[Shape("i32")] * 2, scatter_dimension_numbers=FLAT,
    )  # fmt: skip
    assert out.dtype == np.int32
    assert out.tolist() == [300, 1]


def test_scatter_against_jax():
    jax = pytest.importorskip("jax")
    lax = jax.lax
    rng = np.random.default_rng(5)
    operand, updates = f32(5, 6, 7), rng.standard_normal((4, 2, 7)).astype(np.float32)
    indices = rng.integers(0, 5, (4, 2)).astype(np.int32)
    dims = ScatterDims((1, 2), (0,), (), (), (1, 0), 1)
    (out,) = call(
        "stablehlo.scatter", operand, indices, updates,
        region=add, scalars=[Shape("f32")] * 2, scatter_dimension_numbers=dims,
    )  # fmt: skip
    want = lax.scatter_add(operand, indices, updates, lax.ScatterDimensionNumbers((1, 2), (0,), (1, 0)))
    assert np.allclose(out, np.asarray(want), rtol=1e-6)


def test_scatter_refuses():
    types = [Shape("f32", 5, 6), Shape("i32", 3, 1), Shape("f32", 3, 6)]
    good = ScatterDims((1,), (0,), (), (), (0,), 1)

    def check(label, dims=good, types=types, region=add, scalars=(F32, F32)):
        refused(
            "stablehlo.scatter", *types, region=region, scalars=scalars, scatter_dimension_numbers=dims, label=label
        )

    check("scatter_c2", ScatterDims((1,), (), (), (), (0,), 1))
    check("scatter_c22", ScatterDims((1,), (0,), (), (), (0,), 3))
    check("scatter_c19", ScatterDims((1,), (0,), (), (), (0, 1), 1))
    check("scatter_c21", ScatterDims((1,), (0,), (), (), (2,), 1))
    check("scatter_c8", ScatterDims((2,), (0,), (), (), (0,), 1))
    check("scatter_c11", ScatterDims((1,), (7,), (), (), (0,), 1))
    check("scatter_c17", ScatterDims((1,), (), (0,), (), (1,), 1))
    check("scatter_c4", types=[Shape("f32", 5, 6), Shape("i32", 3, 1), Shape("f32", 3, 7)])
    check("scatter_c4", types=[Shape("f32", 5, 6), Shape("i32", 3, 1), Shape("f32", 2, 6)])
    check("scatter_c4", types=[Shape("f32", 5, 6), Shape("i32", 3, 1), Shape("f32", 3)])
    check("scatter_c5", types=[Shape("f32", 5, 6), Shape("i32", 3, 1)])
    check("scatter_c5", types=[Shape("i32", 3, 1)])
    check("scatter_c6", types=[Shape("f32", 5, 6), Shape("i32", 3, 1), Shape("f64", 3, 6)])
    check("scatter_i2", types=[Shape("f32", 5, 6), Shape("f32", 3, 1), Shape("f32", 3, 6)])
    check("scatter_c23", scalars=(Shape("f16"),) * 2)
    check("scatter_c23", scalars=(Shape("f32", 1),) * 2)
    check("scatter_c23", region=lambda r, a: a, scalars=(Shape("f32"),))
    check("scatter_c23", region=lambda r, a, b: (a, b))
    f = FuncBuilder("main", types)
    with pytest.raises(VerifyError):
        f.scatter(*f.args, scatter_dimension_numbers=good, regions=[])


def test_many_indices_take_no_time():
    rng = np.random.default_rng(0)
    count = 100_000
    table, rows = rng.standard_normal((5000, 16)).astype(np.float32), rng.integers(0, 5000, count)
    started = time.process_time()
    dims = GatherDims((1,), (0,), (), (), (0,), 1)
    (found,) = call("stablehlo.gather", table, rows, dimension_numbers=dims, slice_sizes=(1, 16))
    assert np.array_equal(found, table[rows])
    values = rng.integers(-99, 99, count)
    flat = {"scalars": [I64, I64], "scatter_dimension_numbers": FLAT}
    (total,) = call("stablehlo.scatter", np.zeros(5000, np.int64), rows, values, region=add, **flat)
    assert np.array_equal(total, np.bincount(rows, values, 5000).astype(np.int64))
    (most,) = call("stablehlo.scatter", np.zeros(1, np.int64), rows * 0, values, region=BODIES["maximum"][0], **flat)
    assert most == values.max()
    order = {"region": lambda r, a, b: r.compare(a, b, comparison_direction="LT"), "scalars": [I64, I64]}
    (sorted_values,) = call("stablehlo.sort", values, **order)
    assert np.array_equal(sorted_values, np.sort(values))
    assert time.process_time() - started < 5


# ---- slices at computed places ----


def test_dynamic_slice_and_update_move_the_window_inside():
    operand = np.arange(16).reshape(4, 4)
    for start, corner in [((-1, 3), (0, 2)), ((1, 1), (1, 1)), ((9, -9), (2, 0))]:
        starts = [np.array(n, np.int32) for n in start]
        row, column = corner
        (cut,) = call("stablehlo.dynamic_slice", operand, *starts, slice_sizes=(2, 2))
        assert np.array_equal(cut, operand[row : row + 2, column : column + 2])
        (put,) = call("stablehlo.dynamic_update_slice", operand, -np.ones((2, 2), np.int64), *starts)
        expected = operand.copy()
        expected[row : row + 2, column : column + 2] = -1
        assert np.array_equal(put, expected)
    assert operand.min() == 0
    (end,) = call("stablehlo.dynamic_slice", f32(5), np.array(2**64 - 1, np.uint64), slice_sizes=(2,))
    assert end.tolist() == [3, 4]


def test_dynamic_slices_refuse():
    name, i32 = "stablehlo.dynamic_slice", Shape("i32")
    refused(name, Shape("f32", 4), slice_sizes=(2,), label="dynamic_slice_c2")
    refused(name, Shape("f32", 4), i32, slice_sizes=(2, 2), label="dynamic_slice_c2")
    refused(name, Shape("f32", 4, 4), i32, I64, slice_sizes=(2, 2), label="dynamic_slice_c3")
    refused(name, Shape("f32", 4), Shape("i32", 1), slice_sizes=(2,), label="dynamic_slice_c3")
    refused(name, Shape("f32", 4), Shape("f32"), slice_sizes=(2,), label="dynamic_slice_c3")
    refused(name, Shape("f32", 4), i32, slice_sizes=(5,), label="dynamic_slice_c4")
    refused(name, Shape("f32", 4), i32, slice_sizes=(-1,), label="dynamic_slice_c4")
    name = "stablehlo.dynamic_update_slice"
    refused(name, Shape("f32", 4), Shape("f64", 2), i32, label="dynamic_update_slice_c2")
    refused(name, Shape("f32", 4), Shape("f32", 2, 1), i32, label="dynamic_update_slice_c3")
    refused(name, Shape("f32", 4), Shape("f32", 2), label="dynamic_update_slice_c4")
    refused(name, Shape("f32", 4), Shape("f32", 5), i32, label="dynamic_update_slice_c6")


def test_dynamic_slice_of_a_symbolic_dimension_is_checked_at_run_time():
    f = FuncBuilder("main", [Shape("f32", B), I64])
    program = Program.of(f.func(f.dynamic_slice(*f.args, slice_sizes=(3,))))
    assert run(program, [f32(4), np.array(9)])[0].tolist() == [1, 2, 3]
    with pytest.raises(RunError):
        run(program, [f32(2), np.array(0)])


def test_torch_index_select():
    table = f32(4, 3, 2)
    (out,) = call("stablehlo.torch_index_select", table, np.array([[3, 0], [1, 9]]), dim=0, batch_dims=0)
    assert np.array_equal(out, table[[[3, 0], [1, 3]]])
    index = np.array([[0, 2], [1, 1], [2, 2], [0, 0]])
    (out,) = call("stablehlo.torch_index_select", table, index, dim=1, batch_dims=1)
    assert np.array_equal(out, np.take_along_axis(table, index[:, :, None], 1))
    (out,) = call("stablehlo.torch_index_select", table, np.array([[1], [0], [1], [0]]), dim=2, batch_dims=1)
    assert np.array_equal(out[:, :, 0], np.stack([table[i, :, 1 - i % 2] for i in range(4)]))
    refused("stablehlo.torch_index_select", Shape("f32", 4), Shape("i32", 2), dim=1, batch_dims=0)
    refused("stablehlo.torch_index_select", Shape("f32", 4), Shape("f32", 2), dim=0, batch_dims=0)
    refused("stablehlo.torch_index_select", Shape("f32", 4, 4), Shape("i32", 2), dim=1, batch_dims=2)


# ---- sort ----


def compare(direction):
    return lambda r, a, b, *_: r.compare(a, b, comparison_direction=direction)


@given(
    st.integers(0, 40).flatmap(lambda n: st.lists(st.integers(-4, 4), min_size=n, max_size=n)), st.sampled_from("LG")
)
def test_sort_is_stable_for_any_length_through_the_general_path(values, letter):
    """The comparator hides its comparison behind an addition, so that no shortcut recognises it."""
    direction = letter + "T"

    def hidden(r, a, b, *_):
        zero = r.constant(0, "i64")
        return r.compare(r.add(a, zero), r.add(b, zero), comparison_direction=direction)

    tags = np.arange(len(values))
    keys = np.array(values, np.int64)
    for region in (hidden, compare(direction)):
        ordered, tag = call("stablehlo.sort", keys, tags, region=region, scalars=[I64] * 4, dimension=0, is_stable=True)
        expected = sorted(range(len(values)), key=lambda i: values[i] if letter == "L" else -values[i])
        assert tag.tolist() == expected
        assert ordered.tolist() == [values[i] for i in expected]


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_sort_along_any_dimension(axis):
    x = np.random.default_rng(2).integers(0, 9, (4, 5, 6))
    (out,) = call("stablehlo.sort", x, region=compare("LT"), scalars=[I64, I64], dimension=axis)
    assert np.array_equal(out, np.sort(x, axis))


def test_sort_with_a_comparator_that_is_no_order_still_gives_a_permutation():
    values = np.array([3.0, np.nan, 1.0, 2.0, np.nan, 0.0, -1.0], np.float32)
    for direction in ("LT", "GE", "NE"):
        (out,) = call("stablehlo.sort", values, region=compare(direction), scalars=[Shape("f32")] * 2)
        assert sorted(map(str, out)) == sorted(map(str, values))


def test_sort_by_total_order():
    def total(r, a, b):
        return r.compare(a, b, comparison_direction="LT", compare_type="TOTALORDER")

    minus_nan = np.copysign(np.float32(np.nan), np.float32(-1))
    expected = np.array([minus_nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], np.float32)
    (out,) = call("stablehlo.sort", expected[[5, 3, 7, 0, 6, 4, 1, 2]], region=total, scalars=[Shape("f32")] * 2)
    assert out.tobytes() == expected.tobytes()


def test_sort_against_jax():
    jax = pytest.importorskip("jax")
    x = np.random.default_rng(4).standard_normal((7, 9)).astype(np.float32)
    (out,) = call("stablehlo.sort", x, region=compare("LT"), scalars=[Shape("f32")] * 2, dimension=0)
    assert np.array_equal(out, np.asarray(jax.lax.sort(x, dimension=0)))


def test_sort_refuses():
    two = [Shape("f32")] * 2
    refused("stablehlo.sort", region=compare("LT"), scalars=two, label="sort_c1")
    refused("stablehlo.sort", Shape("f32", 3), Shape("f32", 4), region=compare("LT"), scalars=two * 2, label="sort_c3")
    for dim in (-2, 1):
        refused("stablehlo.sort", Shape("f32", 3), region=compare("LT"), scalars=two, dimension=dim, label="sort_c4")
    refused("stablehlo.sort", Shape("f32"), region=compare("LT"), scalars=two, dimension=0, label="sort_c4")
    refused("stablehlo.sort", Shape("f32", 3), region=compare("LT"), scalars=[I64] * 2, label="sort_c5")
    refused("stablehlo.sort", Shape("f32", 3), region=compare("LT"), scalars=two * 2, label="sort_c5")
    refused("stablehlo.sort", Shape("f32", 3), region=lambda r, a, b: a, scalars=two, label="sort_c5")


# ---- top_k ----


def test_top_k_puts_the_lower_index_first_and_nan_on_top():
    x = np.array([[1.0, 3.0, 3.0, -1.0], [np.nan, 0.0, np.inf, -np.inf]], np.float32)
    values, indices = call("chlo.top_k", x, k=3)
    assert indices.dtype == np.int32
    assert indices.tolist() == [[1, 2, 0], [0, 2, 1]]
    assert np.array_equal(values, np.take_along_axis(x, indices, -1), equal_nan=True)


@pytest.mark.parametrize("kind", ["i8", "ui64", "i1", "bf16", "f64", "i4"])
def test_top_k_of_every_type(kind):
    of = dtype(kind)
    x = np.array([1, 0, 1, 5, 7]).astype(np.float32).astype(of.numpy)
    values, indices = call("chlo.top_k", x, k=5)
    numbers = [float(n) for n in x]
    assert indices.tolist() == sorted(range(5), key=lambda i: -numbers[i])
    assert values.dtype == of.numpy


def test_top_k_of_the_largest_integers():
    x = np.array([0, 2**64 - 1, 2**63, 1], np.uint64)
    assert call("chlo.top_k", x, k=2)[1].tolist() == [1, 2]


def test_top_k_refuses():
    refused("chlo.top_k", Shape("f32"), k=1)
    refused("chlo.top_k", Shape("f32", 3), k=4)
    refused("chlo.top_k", Shape("f32", 3), k=-1)
    refused("chlo.top_k", Shape("complex<f32>", 3), k=1)
    f = FuncBuilder("main", [Shape("f32", B)])
    values, _ = f.op("chlo.top_k", f.args[0], k=2).results
    assert values.type == Shape("f32", 2)
    with pytest.raises(RunError, match="fewer than k elements"):
        run(Program.of(f.func(values)), [f32(1)])


# ---- sizes that inference assumes ----


def test_assumed_sizes_are_checked_at_run_time():
    f = FuncBuilder("main", [Shape("f32", B), Shape("f32", S)])
    with f.region(F32, F32, F32, F32) as r:
        r.result(r.compare(r.args[0], r.args[1], comparison_direction="LT"))
    both = f.sort(*f.args, regions=[r.body], dimension=0)
    with pytest.raises(RunError):
        run(Program.of(f.func(*both)), [f32(1), f32(2)])
    f = FuncBuilder("main", [Shape("f32", B, 4), Shape("i64", S, 1)])
    dims = GatherDims((), (1,), (0,), (0,), (1,), 1)
    picked = f.gather(*f.args, dimension_numbers=dims, slice_sizes=(1, 1))
    assert run(Program.of(f.func(picked)), [f32(2, 4), np.array([[1], [2]])])[0].tolist() == [1, 6]
    with pytest.raises(RunError):
        run(Program.of(f.func(picked)), [f32(2, 4), np.array([[1]])])
    f = FuncBuilder("main", [Shape("f32", 4), Shape("i64", S), Shape("f32", B)])
    with f.region(F32, F32) as r:
        r.result(r.add(*r.args))
    total = f.scatter(*f.args, regions=[r.body], scatter_dimension_numbers=FLAT)
    with pytest.raises(RunError):
        run(Program.of(f.func(total)), [f32(4), np.array([1, 2]), f32(1)])


@pytest.mark.parametrize("bits", [32, 64])
def test_the_total_order_is_sign_and_magnitude(bits: int):
    """-nan < -inf < … < -0 < 0 < … < inf < nan, nans by their payload: the order of the bits below the sign."""
    top = 1 << (bits - 1)
    exponent = 0xFF << 23 if bits == 32 else 0x7FF << 52
    magnitudes = [0, 1, exponent - 1, exponent, exponent + 1, top - 1]
    patterns = [sign | each for sign in (0, top) for each in magnitudes]
    floats = np.array(patterns, f"u{bits // 8}").view(f"f{bits // 8}")
    keys = total_order(floats, dtype(f"f{bits}"))
    assert np.argsort(keys).tolist() == sorted(
        range(len(patterns)), key=lambda i: -1 - (patterns[i] - top) if patterns[i] & top else patterns[i]
    )
