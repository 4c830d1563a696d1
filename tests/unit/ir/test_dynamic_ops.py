"""Ops whose sizes come in as tensors: what is proven about them, what is left to the run, and what they compute."""

from typing import Any

import numpy as np
import pytest

from smelt.dim import Poly, symbol
from smelt.dtype import dtype
from smelt.errors import RunError, SizeError, VerifyError
from smelt.ir.attributes import ConvDims, GatherDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.ops.definition import UNKNOWN
from smelt.shape import Shape

B, S = symbol("B"), symbol("S")


def f32(*sizes):
    return np.arange(np.prod(sizes, dtype=int), dtype=np.float32).reshape(sizes)


def i64(*numbers):
    return np.array(numbers, np.int64)


def sizes_of(f, *parts):
    """A list of sizes: numbers, or (argument, dimension)."""
    values = []
    for part in parts:
        value = (
            f.constant(part, "i32")
            if isinstance(part, int)
            else f.get_dimension_size(f.args[part[0]], dimension=part[1])
        )
        values.append(f.reshape(value, result=Shape("i32", 1)))
    return f.concatenate(*values, dimension=0)


def program(f, *results):
    return Program.of(f.func(*results))


def vector(count, kind="i64"):
    return Shape(kind, count)


# ---- proven sizes ----


def test_sizes_that_trace_back_to_dimensions_are_proven():
    f = FuncBuilder("main", [Shape("f32", B, S)])
    x = f.args[0]
    flat = f.dynamic_reshape(
        x, f.reshape(f.multiply(*(f.get_dimension_size(x, dimension=d) for d in (0, 1))), result=vector(1, "i32"))
    )
    assert flat.type == Shape("f32", B * S)
    wide = f.dynamic_broadcast_in_dim(x, sizes_of(f, 3, (0, 0), (0, 1)), broadcast_dimensions=(1, 2))
    assert wide.type == Shape("f32", 3, B, S)
    count = f.dynamic_iota(sizes_of(f, (0, 0), 4), iota_dimension=0, result=Shape("f32", UNKNOWN, UNKNOWN))
    assert count.type == Shape("f32", B, 4)
    low, zero = f.constant([1, 0], "i32"), f.constant([0, 0], "i32")
    padded = f.dynamic_pad(x, f.constant(0.0, "f32"), low, sizes_of(f, 2, (0, 1)), zero)
    assert padded.type == Shape("f32", B + 3, 2 * S)
    part = f.real_dynamic_slice(x, f.constant([0, 1], "i32"), sizes_of(f, (0, 0), (0, 1)), f.constant([1, 2], "i32"))
    assert part.type == Shape("f32", B, S // 2)
    assert not f.scope.equalities
    for result, sizes in zip(
        run(program(f, flat, wide, count, padded, part), [f32(2, 5)]),
        [(10,), (3, 2, 5), (2, 4), (5, 10), (2, 2)],
        strict=True,
    ):
        assert result.shape == sizes


def test_a_size_that_is_left_over_in_a_reshape_is_solved():
    f = FuncBuilder("main", [Shape("f32", B, 12), Shape("i32", 1)])
    x, unknown = f.args
    target = f.concatenate(sizes_of(f, (0, 0)), unknown, f.constant([3], "i32"), dimension=0)
    out = f.dynamic_reshape(x, target)
    assert out.type == Shape("f32", B, 4, 3)
    whole = program(f, out)
    assert run(whole, [f32(2, 12), np.array([4], np.int32)])[0].shape == (2, 4, 3)
    with pytest.raises(RunError):
        run(whole, [f32(2, 12), np.array([5], np.int32)])


# ---- unknown sizes ----


def test_sizes_that_only_data_knows_are_new_symbols():
    f = FuncBuilder("main", [Shape("f32", 6), vector(2)])
    out = f.dynamic_reshape(*f.args)
    assert all(isinstance(size, Poly) for size in out.shape.sizes)
    whole = program(f, out)
    assert run(whole, [f32(6), i64(3, 2)])[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    for wrong, refusal, message in [
        ((4, 2), RunError, "number of elements must stay the same"),
        ((-3, -2), SizeError, "a size of the result is negative"),
        ((1 << 40, 1 << 40), RunError, "no memory for the result"),
    ]:
        with pytest.raises(refusal, match=message):
            run(whole, [f32(6), i64(*wrong)])


def test_declared_sizes_are_believed_and_checked():
    f = FuncBuilder("main", [Shape("f32", 6), vector(2)])
    out = f.dynamic_reshape(*f.args, result=Shape("f32", 2, 3))
    assert out.type == Shape("f32", 2, 3)
    whole = program(f, out)
    assert run(whole, [f32(6), i64(2, 3)])[0].shape == (2, 3)
    with pytest.raises(RunError):
        run(whole, [f32(6), i64(3, 2)])


def test_declared_and_proven_sizes_must_agree():
    f = FuncBuilder("main", [Shape("f32", 6)])
    with pytest.raises(VerifyError):
        f.dynamic_reshape(f.args[0], f.constant([2, 3], "i64"), result=Shape("f32", 3, 2))


# ---- each op ----


def test_dynamic_broadcast_in_dim():
    f = FuncBuilder("main", [Shape("i64", 1, 3), vector(3)])
    out = f.dynamic_broadcast_in_dim(
        *f.args, broadcast_dimensions=(2, 1), known_expanding_dimensions=(0,), known_nonexpanding_dimensions=(1,)
    )
    whole = program(f, out)
    assert run(whole, [i64(1, 2, 3)[None], i64(2, 3, 2)])[0].tolist() == [[[1, 1], [2, 2], [3, 3]]] * 2
    for wrong in [(2, 4, 2), (2, 3, -1)]:
        with pytest.raises(RunError):
            run(whole, [i64(1, 2, 3)[None], i64(*wrong)])
    wrong_attrs: list[dict[str, Any]] = [
        {"broadcast_dimensions": (0,)},
        {"broadcast_dimensions": (0, 3)},
        {"broadcast_dimensions": (1, 1)},
        {"broadcast_dimensions": (2, 1), "known_expanding_dimensions": (0,), "known_nonexpanding_dimensions": (0,)},
        {"broadcast_dimensions": (2, 1), "known_expanding_dimensions": (2,)},
    ]
    for attrs in wrong_attrs:
        with pytest.raises(VerifyError):
            f.dynamic_broadcast_in_dim(*f.args, **attrs)


def test_dynamic_iota():
    f = FuncBuilder("main", [vector(2, "i32")])
    out = f.dynamic_iota(f.args[0], iota_dimension=1, result=Shape("i8", UNKNOWN, UNKNOWN))
    assert run(program(f, out), [np.array([2, 3], np.int32)])[0].tolist() == [[0, 1, 2]] * 2
    with pytest.raises(VerifyError):
        f.dynamic_iota(f.args[0], iota_dimension=2, result=Shape("i8", UNKNOWN, UNKNOWN))
    with pytest.raises(VerifyError):
        f.dynamic_iota(f.args[0], iota_dimension=0, result=Shape("i8", 3))
    with pytest.raises(VerifyError):
        f.dynamic_iota(f.args[0], iota_dimension=0)


def test_dynamic_pad():
    f = FuncBuilder("main", [Shape("i64", 2, 3), Shape("i64"), vector(2), vector(2), vector(2)])
    whole = program(f, f.dynamic_pad(*f.args))
    x = i64(1, 2, 3, 4, 5, 6).reshape(2, 3)
    (out,) = run(whole, [x, np.array(0), i64(0, 1), i64(2, 1), i64(1, 2)])
    assert out[[0, 2]].tolist() == [[0, 1, 0, 0, 2, 0, 0, 3, 0], [0, 4, 0, 0, 5, 0, 0, 6, 0]]
    assert out.shape == (5, 9)
    for low, high, interior in [((0, 0), (0, 0), (-1, 0)), ((-2, 0), (-1, 0), (0, 0))]:
        with pytest.raises(RunError):
            run(whole, [x, np.array(0), i64(*low), i64(*high), i64(*interior)])


def test_dynamic_pad_refuses_what_it_knows_to_be_negative():
    f = FuncBuilder("main", [Shape("f32", 4)])
    zero, none = f.constant([0], "i64"), f.constant(0.0, "f32")
    with pytest.raises(VerifyError, match=r"interior padding must not be negative.*dynamic_pad_c3"):
        f.dynamic_pad(f.args[0], none, zero, zero, f.constant([-1], "i64"))
    assert f.dynamic_pad(f.args[0], none, f.constant([-1], "i64"), zero, zero).type == Shape("f32", 3)


def test_dynamic_gather():
    f = FuncBuilder("main", [Shape("f32", 4, 5), vector(3), vector(2)])
    dims = GatherDims((1,), (0,), (), (), (0,), 1)
    out = f.dynamic_gather(*f.args, dimension_numbers=dims)
    assert out.shape.sizes[0] == 3
    whole = program(f, out)
    x = f32(4, 5)
    assert np.array_equal(run(whole, [x, i64(3, -1, 9), i64(1, 2)])[0], x[[3, 0, 3], :2])
    for wrong in [(2, 2), (1, 6), (1, -1)]:
        with pytest.raises(RunError):
            run(whole, [x, i64(0, 0, 0), i64(*wrong)])
    with pytest.raises(VerifyError):
        f.dynamic_gather(f.args[0], f.args[1], f.constant([1, 6], "i64"), dimension_numbers=dims)


def test_real_dynamic_slice():
    f = FuncBuilder("main", [Shape("f32", B), vector(1), vector(1), vector(1)])
    whole = program(f, f.real_dynamic_slice(*f.args))
    assert run(whole, [f32(9), i64(1), i64(8), i64(3)])[0].tolist() == [1, 4, 7]
    assert run(whole, [f32(9), i64(4), i64(4), i64(1)])[0].tolist() == []
    for start, limit, stride in [(-1, 2, 1), (3, 2, 1), (0, 10, 1), (0, 2, 0)]:
        with pytest.raises(RunError):
            run(whole, [f32(9), i64(start), i64(limit), i64(stride)])
    with pytest.raises(VerifyError):
        f.real_dynamic_slice(f.args[0], f.args[1], f.args[2], f.constant([0], "i64"))
    with pytest.raises(VerifyError):
        f.real_dynamic_slice(f.args[0], f.args[1], f.args[2], f.constant([1], "i32"))


@pytest.mark.parametrize("more", [0, 1])
def test_the_size_of_a_slice_whose_stride_is_a_size(more: int):
    """B may be 0, which is no stride: then nothing divides by it. B + 1 is one: (9 + B) // (B + 1) elements."""
    f = FuncBuilder("main", [Shape("f32", 9), Shape("f32", B)])
    stride = f.add(sizes_of(f, (1, 0)), f.constant([more], "i32"))
    found = f.real_dynamic_slice(f.args[0], f.constant([0], "i32"), f.constant([9], "i32"), stride)
    assert (found.type == Shape("f32", (9 + B) // (B + 1))) == bool(more), found.type
    got = run(program(f, found), [f32(9), f32(4)])[0]
    assert got.tolist() == [*range(0, 9, 4 + more)]
    if not more:
        with pytest.raises(RunError, match="positive"):
            run(program(f, found), [f32(9), f32(0)])


def test_chlo_dynamic_reshape_takes_minus_one():
    f = FuncBuilder("main", [Shape("f32", B, 6), vector(2)])
    half = f.op("chlo.dynamic_reshape", f.args[0], f.constant([-1, 3], "i64")).result
    assert half.type == Shape("f32", 2 * B, 3)
    free = f.op("chlo.dynamic_reshape", *f.args).result
    whole = program(f, half, free)
    first, second = run(whole, [f32(2, 6), i64(2, -1)])
    assert first.shape == (4, 3)
    assert second.shape == (2, 6)
    with pytest.raises(RunError, match="number of elements must stay the same"):
        run(whole, [f32(2, 6), i64(5, -1)])
    with pytest.raises(VerifyError):
        f.op("chlo.dynamic_reshape", f.args[0], f.constant([-1, -1], "i64"))


CONV = ConvDims(0, 2, (1,), 1, 2, (0,), 0, 2, (1,))


def conv(f, padding, **attrs):
    return f.dynamic_conv(
        *f.args[:2], padding, dimension_numbers=CONV, feature_group_count=1, batch_group_count=1, **attrs
    )


def test_dynamic_conv():
    f = FuncBuilder("main", [Shape("f32", 1, 5, 1), Shape("f32", 2, 1, 1), Shape("i64", 1, 2)])
    known = conv(f, f.constant([[1, 0]], "i64"))
    assert known.type == Shape("f32", 1, 5, 1)
    free = conv(f, f.args[2])
    first, second = run(program(f, known, free), [f32(1, 5, 1), np.ones((2, 1, 1), np.float32), np.array([[0, 1]])])
    assert first.reshape(-1).tolist() == [0, 1, 3, 5, 7]
    assert second.reshape(-1).tolist() == [1, 3, 5, 7, 4]
    with pytest.raises(VerifyError):
        conv(f, f.constant([[1, 0], [0, 0]], "i64"))
    with pytest.raises(VerifyError):
        conv(f, f.constant([1, 0], "i64"))


@pytest.mark.parametrize("padding", [Shape("f32", 1, 2), Shape("i64", 2), Shape("i64", 1, 2, 1), Shape("i64", "N", 2)])
def test_the_padding_of_a_convolution_is_a_matrix_of_integers(padding):
    f = FuncBuilder("main", [Shape("f32", 1, 5, 1), Shape("f32", 2, 1, 1), padding])
    with pytest.raises(VerifyError, match="the padding must be a matrix of integers"):
        conv(f, f.args[2])


def test_a_row_of_the_padding_that_data_has_leaves_the_others_known():
    """Three spatial dimensions, padded by (1, 2), by what data says, and by (3, 4): 5 + 3 - 1, ?, 5 + 7 - 1."""
    dims = ConvDims(0, 4, (1, 2, 3), 3, 4, (0, 1, 2), 0, 4, (1, 2, 3))
    f = FuncBuilder("main", [Shape("f32", 1, 5, 5, 5, 1), Shape("f32", 2, 2, 2, 1, 1), Shape("i64", 1, 2)])
    first, last = f.constant([[1, 2]], "i64"), f.constant([[3, 4]], "i64")
    padding = f.concatenate(first, f.args[2], last, dimension=0)
    x, w, _ = f.args
    made = f.dynamic_conv(x, w, padding, dimension_numbers=dims, feature_group_count=1, batch_group_count=1)
    assert [made.shape.sizes[i] for i in (0, 1, 3, 4)] == [1, 7, 11, 1]
    assert not isinstance(made.shape.sizes[2], int)
    (found,) = run(program(f, made), [np.ones((1, 5, 5, 5, 1), np.float32), np.ones((2, 2, 2, 1, 1), np.float32),
                                      np.array([[0, 1]])])  # fmt: skip
    assert found.shape == (1, 7, 5, 11, 1)
    assert found.sum() == 125 * 8 - 25 * 4, "what padding surrounds meets every tap; on one side of the middle, half"


def test_size_operands_must_be_lists_of_integers():
    for wrong in [Shape("f32", 2), Shape("i64"), Shape("i64", 1, 2), Shape("i64", S), Shape("i64", 1 << 40)]:
        f = FuncBuilder("main", [Shape("f32", 6), wrong])
        with pytest.raises(VerifyError):
            f.dynamic_reshape(*f.args)
        with pytest.raises(VerifyError):
            f.dynamic_broadcast_in_dim(*f.args, broadcast_dimensions=(0,))
        with pytest.raises(VerifyError):
            f.real_dynamic_slice(f.args[0], *[f.args[1]] * 3)


def test_element_types_stay():
    f = FuncBuilder("main", [Shape("bf16", 6), vector(1)])
    with pytest.raises(VerifyError):
        f.dynamic_reshape(*f.args, result=Shape("f32", 6))
    out = f.dynamic_reshape(*f.args)
    assert run(program(f, out), [f32(6).astype(dtype("bf16").numpy), i64(6)])[0].dtype == dtype("bf16").numpy
