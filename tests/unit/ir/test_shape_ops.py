"""Ops that move elements, held against NumPy and values written by hand; symbolic sizes are checked as formulas."""

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.dim import symbol
from smelt.dtype import Quantized, dtype
from smelt.errors import RunError, SizeError, VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Token, Tuple
from smelt.ir.interpret import run
from smelt.ir.ops.definition import UNKNOWN
from smelt.shape import Shape

B, S = symbol("B"), symbol("S")


def shape_of(array):
    return Shape.of(dtype(array.dtype), array.shape)


def make(name, *types, **keywords):
    """The op alone in a function of these argument types."""
    f = FuncBuilder("main", types)
    op = f.op(f"stablehlo.{name}", *f.args, **keywords)
    return f, op


def call(name, *arrays, types=None, **keywords):
    """The results of one op on arrays."""
    f, op = make(name, *(types or map(shape_of, arrays)), **keywords)
    return run(Program.of(f.func(*op.results)), [np.asarray(array) for array in arrays])


def refused(name, *types, label="", **keywords):
    with pytest.raises(VerifyError) as caught:
        make(name, *types, **keywords)
    assert label in caught.value.message


def f32(*sizes):
    return np.arange(np.prod(sizes, dtype=int), dtype=np.float32).reshape(sizes)


def quantized(axis=None, scales=(0.5,), zero_points=None, storage="i8"):
    low, high = (-128, 127) if storage == "i8" else (-8, 7)
    zeros = zero_points or (0,) * len(scales)
    return Quantized(dtype(storage), dtype("f32"), scales, zeros, axis, low, high)


# ---- bitcast_convert ----


def test_bitcast_narrows_and_widens_in_little_endian_order():
    word = np.array(0x0123456789ABCDEF, np.int64)
    (halves,) = call("bitcast_convert", word, result=Shape("ui16", 4))
    assert [hex(n) for n in halves] == ["0xcdef", "0x89ab", "0x4567", "0x123"]
    (back,) = call("bitcast_convert", halves, result=Shape("i64"))
    assert back == word


def test_bitcast_of_one_width_keeps_bits():
    x = np.array([[1.0, -0.0, np.nan]], np.float32)
    (bits,) = call("bitcast_convert", x, result=Shape("ui32", 1, 3))
    assert bits.tolist() == [[0x3F800000, 0x80000000, 0x7FC00000]]


def test_bitcast_packs_bits_and_nibbles():
    (nibbles,) = call("bitcast_convert", np.array([0x1F, -128], np.int8), result=Shape("i4", 2, 2))
    assert nibbles.astype(int).tolist() == [[-1, 1], [0, -8]]
    (bits,) = call("bitcast_convert", nibbles, result=Shape("i1", 2, 2, 4))
    assert bits.astype(int).tolist() == [[[1, 1, 1, 1], [1, 0, 0, 0]], [[0, 0, 0, 0], [0, 0, 0, 1]]]
    (crumbs,) = call("bitcast_convert", np.array(0b11_10_01_00, np.uint8), result=Shape("ui2", 4))
    assert crumbs.astype(int).tolist() == [0, 1, 2, 3]
    (byte,) = call("bitcast_convert", crumbs, result=Shape("ui8"))
    assert byte == 0b11_10_01_00


@pytest.mark.parametrize(
    "source", ["i2", "i4", "ui4", "i8", "f8E4M3FN", "f4E2M1FN", "bf16", "f16", "i32", "complex<f32>"]
)
def test_bitcast_there_and_back(source):
    of = dtype(source)
    rng = np.random.default_rng(1)
    through = "complex<f64>" if of.is_complex else "ui64"
    ratio = dtype(through).bits // of.bits
    values = rng.integers(-3, 4, (3, ratio)).astype(np.float32).astype(of.numpy)
    (wide,) = call("bitcast_convert", values, result=Shape(through, 3))
    (back,) = call("bitcast_convert", wide, result=Shape(source, 3, ratio))
    assert back.tobytes() == values.tobytes()


def test_bitcast_of_quantised_tensors_looks_at_the_storage():
    kind = quantized()
    f, op = make("bitcast_convert", Shape.of(kind, (2,)), result=Shape("ui8", 2))
    (out,) = run(Program.of(f.func(op.result)), [np.array([-1, 3], np.int8)])
    assert out.tolist() == [255, 3]


def test_bitcast_refuses():
    refused("bitcast_convert", Shape("f32", 3), result=Shape("f64"), label="bitcast_convert_c1")
    refused("bitcast_convert", Shape("f32"), result=Shape("f64"), label="bitcast_convert_c1")
    refused("bitcast_convert", Shape("f32", 2), result=Shape("i64", 2))
    refused("bitcast_convert", Shape("complex<f32>"), result=Shape("f32", 2), label="bitcast_convert_c2")
    refused("bitcast_convert", Shape("f6E2M3FN", 4), result=Shape("i32"), label="bitcast_convert_c1")


def test_bitcast_with_symbols():
    _, op = make("bitcast_convert", Shape("i32", B), result=Shape("i8", UNKNOWN, UNKNOWN))
    assert op.result.type == Shape("i8", B, 4)
    f, op = make("bitcast_convert", Shape("i8", B, S), result=Shape("i32", B))
    with pytest.raises(SizeError, match="make up one wider element"):
        run(Program.of(f.func(op.result)), [np.zeros((2, 3), np.int8)])


# ---- broadcast ----


def test_broadcast_in_dim_transposes_and_repeats():
    (out,) = call("broadcast_in_dim", np.array([[1, 2, 3]]), broadcast_dimensions=(2, 1), result=Shape("i64", 2, 3, 2))
    assert out.tolist() == [[[1, 1], [2, 2], [3, 3]]] * 2


def test_broadcast_puts_sizes_in_front():
    (out,) = call("broadcast", f32(2), broadcast_sizes=(3, 1))
    assert np.array_equal(out, np.broadcast_to(f32(2), (3, 1, 2)))


def test_broadcast_refuses():
    good = {"broadcast_dimensions": (0,), "result": Shape("f32", 3, 2)}
    refused("broadcast_in_dim", Shape("f32", 2), **good, label="broadcast_in_dim_c5")
    refused("broadcast_in_dim", Shape("f32"), **good, label="broadcast_in_dim_c2")
    refused("broadcast_in_dim", Shape("f32", 3), **{**good, "broadcast_dimensions": (2,)}, label="broadcast_in_dim_c3")
    refused("broadcast_in_dim", Shape("f32", 3), **{**good, "broadcast_dimensions": (-1,)}, label="broadcast_in_dim_c3")
    refused(
        "broadcast_in_dim", Shape("f32", 1, 1), **{**good, "broadcast_dimensions": (1, 1)}, label="broadcast_in_dim_c4"
    )
    refused("broadcast_in_dim", Shape("i32", 3), **good, label="broadcast_in_dim_c1")
    refused("broadcast_in_dim", Shape("f32", 3), broadcast_dimensions=(0,))
    refused("broadcast_in_dim", Token(), **good)
    refused("broadcast_in_dim", Shape("f32"), broadcast_dimensions=(), result=Shape("f32", UNKNOWN))
    refused("broadcast", Shape("f32"), broadcast_sizes=(-1,))


def test_broadcast_of_a_symbolic_dimension_takes_its_size_and_checks_at_run_time():
    _, op = make("broadcast_in_dim", Shape("f32", B), broadcast_dimensions=(1,), result=Shape("f32", 2, UNKNOWN))
    assert op.result.type == Shape("f32", 2, B)
    f, op = make("broadcast_in_dim", Shape("f32", B), broadcast_dimensions=(0,), result=Shape("f32", 4))
    program = Program.of(f.func(op.result))
    assert run(program, [f32(1) + 1])[0].tolist() == [1, 1, 1, 1]
    assert run(program, [f32(4)])[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(RunError):
        run(program, [f32(3)])


def test_broadcast_in_dim_of_quantised_tensors():
    one = Shape.of(quantized(0, (0.5,)), (1,))
    three = Shape.of(quantized(1, (0.5, 0.5, 0.5)), (2, 3))
    _, op = make("broadcast_in_dim", one, broadcast_dimensions=(1,), result=three)
    assert op.result.type == three
    other = Shape.of(quantized(1, (0.5, 0.5, 0.25)), (2, 3))
    refused("broadcast_in_dim", one, broadcast_dimensions=(1,), result=other, label="broadcast_in_dim_c6")
    moved = Shape.of(quantized(0, (0.5, 0.5)), (2, 3))
    refused("broadcast_in_dim", one, broadcast_dimensions=(1,), result=moved, label="broadcast_in_dim_c6")
    refused("broadcast_in_dim", one, broadcast_dimensions=(1,), result=Shape.of(quantized(), (2, 3)), label="_c1")


# ---- concatenate ----


def test_concatenate():
    (out,) = call("concatenate", f32(2, 1), f32(2, 3), f32(2, 0), dimension=1)
    assert out.tolist() == [[0, 0, 1, 2], [1, 3, 4, 5]]


def test_concatenate_adds_symbols():
    _, op = make("concatenate", Shape("f32", B, 2), Shape("f32", 3, 2), Shape("f32", S, 2), dimension=0)
    assert op.result.type == Shape("f32", B + S + 3, 2)


def test_concatenate_refuses():
    refused("concatenate", dimension=0, label="concatenate_c3")
    refused("concatenate", Shape("f32", 2), Shape("i32", 2), dimension=0, label="concatenate_c1")
    refused("concatenate", Shape("f32", 2, 1), Shape("f32", 3, 1), dimension=1, label="concatenate_c2")
    refused("concatenate", Shape("f32", 2), Shape("f32", 2, 1), dimension=0, label="concatenate_c2")
    refused("concatenate", Shape("f32", 2), dimension=1, label="concatenate_c4")
    refused("concatenate", Shape("f32"), dimension=0, label="concatenate_c4")
    refused("concatenate", Shape("f32", 2), Tuple(()), dimension=0)
    refused("concatenate", Shape.of(quantized(0, (1.0, 2.0)), (2,)), dimension=0)


def test_concatenate_checks_symbols_at_run_time():
    f, op = make("concatenate", Shape("f32", 1, B), Shape("f32", 1, S), dimension=0)
    with pytest.raises(SizeError, match="inputs differ in dimension 1"):
        run(Program.of(f.func(op.result)), [f32(1, 2), f32(1, 3)])


# ---- iota ----


@pytest.mark.parametrize("kind", ["i8", "ui64", "f32", "bf16", "f64", "complex<f32>"])
def test_iota(kind):
    (out,) = call("iota", iota_dimension=1, result=Shape(kind, 2, 3))
    assert out.dtype == dtype(kind).numpy
    assert out.astype(complex).tolist() == [[0, 1, 2]] * 2


def test_iota_wraps_and_rounds():
    (small,) = call("iota", iota_dimension=0, result=Shape("i4", 18))
    assert small.astype(int).tolist() == [*range(8), *range(-8, 2)]
    (byte,) = call("iota", iota_dimension=0, result=Shape("i8", 130))
    assert byte[-3:].tolist() == [127, -128, -127]
    (brain,) = call("iota", iota_dimension=0, result=Shape("bf16", 260))
    assert [float(x) for x in brain[255:]] == [255, 256, 256, 258, 260]  # ties to even


def test_iota_of_a_quantised_type_counts_in_its_steps():
    f, op = make("iota", iota_dimension=0, result=Shape.of(quantized(scales=(0.5,), zero_points=(-3,)), (4,)))
    assert run(Program.of(f.func(op.result)), [])[0].tolist() == [-3, -1, 1, 3]


def test_iota_refuses():
    refused("iota", iota_dimension=1, result=Shape("i32", 3), label="iota_c1")
    refused("iota", iota_dimension=-1, result=Shape("i32", 3), label="iota_c1")
    refused("iota", iota_dimension=0, result=Shape("i32"), label="iota_c1")
    refused("iota", iota_dimension=0, result=Shape("i1", 3))
    refused("iota", iota_dimension=0)
    refused("iota", iota_dimension=0, result=Shape("i32", UNKNOWN))


# ---- reshape ----


def test_reshape():
    (out,) = call("reshape", f32(2, 3), result=Shape("f32", 3, 2))
    assert out.tolist() == [[0, 1], [2, 3], [4, 5]]
    (empty,) = call("reshape", f32(0, 3), result=Shape("f32", 5, 0))
    assert empty.shape == (5, 0)


def test_reshape_solves_one_unknown_size():
    for sizes, wanted, expected in [
        ((B, S, 4), (UNKNOWN, 4), (B * S, 4)),
        ((B, 12), (B, UNKNOWN, 3), (B, 4, 3)),
        ((B * S,), (B, UNKNOWN), (B, S)),
        ((2, 6), (UNKNOWN,), (12,)),
        ((B, 4), (UNKNOWN, 8), (B // 2, 8)),
    ]:
        _, op = make("reshape", Shape.of(dtype("f32"), sizes), result=Shape.of(dtype("f32"), wanted))
        assert op.result.shape.sizes == expected


def test_reshape_that_only_data_can_prove_is_checked_at_run_time():
    f, op = make("reshape", Shape("f32", B, 4), result=Shape("f32", UNKNOWN, 8))
    program = Program.of(f.func(op.result))
    assert run(program, [f32(4, 4)])[0].shape == (2, 8)
    with pytest.raises(SizeError, match="number of elements must stay the same"):
        run(program, [f32(3, 4)])


def test_reshape_refuses():
    refused("reshape", Shape("f32", 2, 3), result=Shape("f32", 5), label="reshape_c2")
    refused("reshape", Shape("f32", 2, 3), result=Shape("f32", UNKNOWN, 4), label="reshape_c2")
    refused("reshape", Shape("f32", 2, 3), result=Shape("i32", 6), label="reshape_c1")
    refused("reshape", Shape("f32", 0, 3), result=Shape("f32", 0, UNKNOWN), label="reshape_c2")
    refused("reshape", Shape("f32", 4, 4), result=Shape("f32", UNKNOWN, UNKNOWN))
    refused("reshape", Shape("f32", 4))


def test_reshape_keeps_a_quantised_axis_whole():
    two = Shape.of(quantized(0, (0.5, 0.25)), (2, 6))
    _, op = make("reshape", two, result=Shape.of(quantized(1, (0.5, 0.25)), (1, 2, 6)))
    assert op.result.shape.dtype.axis == 1
    refused("reshape", two, result=Shape.of(quantized(1, (0.5, 0.25)), (6, 2)), label="reshape_c3")
    refused("reshape", two, result=Shape.of(quantized(0, (0.5, 0.5)), (2, 6)), label="reshape_c1")


# ---- reverse, slice, transpose ----


def test_reverse():
    (out,) = call("reverse", f32(2, 3), dimensions=(1,))
    assert out.tolist() == [[2, 1, 0], [5, 4, 3]]
    refused("reverse", Shape("f32", 2), dimensions=(0, 0), label="reverse_c2")
    refused("reverse", Shape("f32", 2), dimensions=(1,), label="reverse_c3")


def test_slice():
    numbers = {"start_indices": (1, 0), "limit_indices": (3, 5), "strides": (1, 2)}
    (out,) = call("slice", f32(3, 5), **numbers)
    assert out.tolist() == [[5, 7, 9], [10, 12, 14]]


def test_slice_refuses():
    good: dict[str, Any] = {"start_indices": (1,), "limit_indices": (3,), "strides": (1,)}
    changes: list[tuple[dict[str, Any], str]] = [
        ({"start_indices": (-1,)}, "slice_c3"),
        ({"start_indices": (4,)}, "slice_c3"),
        ({"limit_indices": (6,)}, "slice_c3"),
        ({"strides": (0,)}, "slice_c4"),
        ({"strides": (1, 1)}, "slice_c2"),
        ({"limit_indices": ()}, "slice_c2"),
    ]
    for change, label in changes:
        refused("slice", Shape("f32", 5), **{**good, **change}, label=label)
    refused("slice", Shape("f32", 5), start_indices=(1,), limit_indices=(3,))


def test_slice_of_a_symbolic_dimension_is_checked_at_run_time():
    numbers = {"start_indices": (1,), "limit_indices": (4,), "strides": (2,)}
    f, op = make("slice", Shape("f32", B), **numbers)
    assert op.result.type == Shape("f32", 2)
    program = Program.of(f.func(op.result))
    assert run(program, [f32(4)])[0].tolist() == [1, 3]
    with pytest.raises(RunError):
        run(program, [f32(3)])


def test_transpose():
    (out,) = call("transpose", f32(2, 3, 4), permutation=(2, 0, 1))
    assert np.array_equal(out, np.einsum("abc->cab", f32(2, 3, 4)))
    for order in [(0, 0, 1), (0, 1), (0, 1, 3), (0, 1, -1), ()]:
        refused("transpose", Shape("f32", 2, 3, 4), permutation=order, label="transpose_c2")
    _, op = make("transpose", Shape.of(quantized(0, (0.5, 0.25)), (2, B)), permutation=(1, 0))
    assert op.result.type == Shape.of(quantized(1, (0.5, 0.25)), (B, 2))


# ---- pad ----


def padding(low, high, interior):
    return {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": interior}


def test_pad():
    (out,) = call("pad", np.array([[1, 2, 3], [4, 5, 6]]), np.array(0), **padding((0, 1), (2, 1), (1, 2)))
    assert out.tolist() == [
        [0, 1, 0, 0, 2, 0, 0, 3, 0],
        [0] * 9,
        [0, 4, 0, 0, 5, 0, 0, 6, 0],
        [0] * 9,
        [0] * 9,
    ]


@given(st.integers(0, 5), st.integers(-6, 4), st.integers(-6, 4), st.integers(0, 3))
def test_pad_is_what_the_specification_says_element_by_element(size, low, high, interior):
    total = size + low + high + max(size - 1, 0) * interior
    operand = np.arange(1, size + 1, dtype=np.int32)
    if total < 0:
        return refused("pad", Shape("i32", size), Shape("i32"), **padding((low,), (high,), (interior,)), label="pad_c4")
    (out,) = call("pad", operand, np.array(-1, np.int32), **padding((low,), (high,), (interior,)))
    expected = [-1] * total
    for i in range(size):
        at = low + i * (interior + 1)
        if 0 <= at < total:
            expected[at] = i + 1
    assert out.tolist() == expected
    return None


def test_pad_against_jax():
    lax = pytest.importorskip("jax").lax
    x = f32(3, 4, 2)
    for low, high, interior in [((1, -1, 0), (0, 2, -1), (2, 0, 1)), ((-2, -5, 1), (3, 1, 1), (1, 3, 0))]:
        (out,) = call("pad", x, np.array(9, np.float32), **padding(low, high, interior))
        want = lax.pad(x, np.float32(9), tuple(zip(low, high, interior, strict=True)))
        assert np.array_equal(out, np.asarray(want))


def test_pad_sizes_with_symbols():
    _, op = make("pad", Shape("f32", B, S + 1), Shape("f32"), **padding((1, 0), (-2, 3), (0, 2)))
    assert op.result.type == Shape("f32", B - 1, 3 * S + 4)
    f, op = make("pad", Shape("f32", B), Shape("f32"), **padding((-2,), (0,), (0,)))
    program = Program.of(f.func(op.result))
    assert run(program, [f32(3), np.zeros((), np.float32)])[0].tolist() == [2]
    with pytest.raises(RunError):
        run(program, [f32(1), np.zeros((), np.float32)])


def test_pad_refuses():
    zero = padding((0,), (0,), (0,))
    refused("pad", Shape("f32", 2), Shape("i32"), **zero, label="pad_c1")
    refused("pad", Shape("f32", 2), Shape("f32", 1), **zero, label="pad_i2")
    refused("pad", Shape("f32", 2, 2), Shape("f32"), **zero, label="pad_c2")
    refused("pad", Shape("f32", 2), Shape("f32"), **padding((0,), (0,), (-1,)), label="pad_c3")


# ---- sizes as values, tuples ----


def test_get_dimension_size():
    (out,) = call("get_dimension_size", f32(2, 3), dimension=1)
    assert out.dtype == np.int32
    assert out == 3
    refused("get_dimension_size", Shape("f32", 2), dimension=1, label="get_dimension_size_c1")
    refused("get_dimension_size", Shape("f32"), dimension=0, label="get_dimension_size_c1")


def test_set_dimension_size_cuts():
    f, op = make("set_dimension_size", Shape("f32", 4, 2), Shape("i32"), dimension=0)
    assert op.result.shape.sizes[1] == 2
    assert op.result.shape.bounds == (4, None)
    program = Program.of(f.func(op.result))
    assert run(program, [f32(4, 2), np.array(3, np.int32)])[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    for wrong in (-1, 5):
        with pytest.raises(RunError):
            run(program, [f32(4, 2), np.array(wrong, np.int32)])


def test_set_dimension_size_to_a_number_is_static():
    f = FuncBuilder("main", [Shape("f32", 4)])
    out = f.set_dimension_size(f.args[0], f.constant(2, "i32"), dimension=0)
    assert out.type == Shape("f32", 2)
    with pytest.raises(VerifyError):
        f.set_dimension_size(f.args[0], f.constant(5, "i32"), dimension=0)


def test_tuples():
    f = FuncBuilder("main", [Shape("f32", 2), Shape("i32")])
    inner = f.tuple(f.args[1])
    outer = f.tuple(f.args[0], inner)
    assert outer.type == Tuple((Shape("f32", 2), Tuple((Shape("i32"),))))
    first = f.get_tuple_element(outer, index=0)
    second = f.get_tuple_element(f.get_tuple_element(outer, index=1), index=0)
    results = run(Program.of(f.func(first, second)), [f32(2), np.array(7, np.int32)])
    assert results[0].tolist() == [0, 1]
    assert results[1] == 7
    for index in (-1, 2):
        with pytest.raises(VerifyError):
            f.get_tuple_element(outer, index=index)
    with pytest.raises(VerifyError):
        f.get_tuple_element(f.args[0], index=0)


# ---- what no element type may break ----


@pytest.mark.parametrize("kind", ["i1", "i2", "ui4", "f8E5M2", "f6E3M2FN", "bf16", "complex<f64>"])
def test_every_element_type_moves(kind):
    values = (np.arange(6) % 2).astype(np.float32).astype(dtype(kind).numpy).reshape(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (turned,) = call("transpose", values, permutation=(1, 0))
        (joined,) = call("concatenate", values, values, dimension=0)
        (padded,) = call("pad", values, values[0, 1], **padding((1, 0), (0, 0), (0, 0)))
    assert turned.tobytes() == np.ascontiguousarray(values.T).tobytes()
    assert joined.shape == (4, 3)
    assert padded[0].tobytes() == np.array([values[0, 1]] * 3, values.dtype).tobytes()


def test_ml_dtypes_stay_what_they_are():
    (out,) = call("reverse", np.array([1, 2], ml_dtypes.bfloat16), dimensions=(0,))
    assert out.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("sizes", [(1 << 62, 8), ((1 << 63) - 1,), (0, 1 << 62, 8)])
def test_results_that_no_array_can_hold_are_run_errors(sizes):
    with pytest.raises(RunError):
        call("iota", iota_dimension=0, result=Shape("i8", *sizes))
    with pytest.raises(RunError):
        call("broadcast_in_dim", np.array(1, np.int8), broadcast_dimensions=(), result=Shape("i8", *sizes))
    f, op = make("broadcast", Shape("i8", B), broadcast_sizes=(1 << 40, 1 << 10))
    with pytest.raises(RunError):
        run(Program.of(f.func(op.result)), [np.zeros(1 << 10, np.int8)])
