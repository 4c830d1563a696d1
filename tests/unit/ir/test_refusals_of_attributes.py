"""What each kind of attribute refuses, what it says, and the values at the edges that it still takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.dtype import dtype, i32, i64, index
from smelt.errors import ParseError
from smelt.ir import attributes as a
from smelt.ir.attributes import Constant, DenseArray, DialectAttr, Dict, Float, Int, Symbol, Unit
from smelt.shape import Shape

F32, I1 = dtype("f32"), dtype("i1")
WORDS = a.enum_of("words", "zero", "one")
OTHER = DialectAttr("chlo", "dot", "")
DOT = f"#stablehlo.dot<{', '.join(a.DotDims.__match_args__)}>"
ALGORITHM = (
    "lhs_precision_type = f32, rhs_precision_type = f32, accumulation_type = f32, lhs_component_count = 1, "
    "rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false"
)


def dense(array: Any, element: Any) -> Constant:
    return Constant.of(np.array(array, element.numpy), element)


def stablehlo(mnemonic: str, body: str) -> DialectAttr:
    return DialectAttr("stablehlo", mnemonic, body)


def accuracy(body: str) -> DialectAttr:
    return stablehlo("result_accuracy", body)


REFUSED = [
    (a.INT, Int(1, i32), "an integer of type i64"),
    (a.INT, Float(1.0), "an integer of type i64"),
    (a.INT32, Int(1), "an integer of type i32"),
    (a.FLOAT32, Float(1.0), "a number of type f32"),
    (a.FLOAT64, Float(1.0, F32), "a number of type f64"),
    (a.FLOAT64, Int(1), "a number of type f64"),
    (a.BOOL, Int(1), "true or false"),
    (a.UNIT, True, "its name alone"),
    (a.STRING, Symbol(("a",)), "a string"),
    (a.INTS, DenseArray(i32, (1,)), "array<i64: …>"),
    (a.INTS, dense([1], i64), "array<i64: …>"),
    (a.BOOLS, DenseArray(i64, (1,)), "array<i1: …>"),
    (a.BOOLS, True, "array<i1: …>"),
    (a.PAIRS, dense([1, 2], i64), "dense<[[…], …]> : tensor<NxMxi64>"),
    (a.PAIRS, dense([[1, 2]], i32), "dense<[[…], …]> : tensor<NxMxi64>"),
    (a.MATRIX, DenseArray(i64, (1,)), "dense<[[…], …]> : tensor<NxMxi64>"),
    (a.MATRIX, Constant.of(np.broadcast_to(np.int64(0), (1, (1 << 20) + 1)), i64), "dense<[[…], …]> : tensor<NxMxi64>"),
    (a.CONSTANT, Int(1), "dense<…>"),
    (a.SYMBOL, "main", "@name"),
    (a.DICT, (), "{…}"),
    (a.LIST, Dict(()), "[…]"),
    (a.TYPE, "f32", "a type"),
    (a.PRECISION, "DEFAULT", "[…] of precision"),
    (a.PRECISION, (Unit(),), "#stablehlo<precision DEFAULT | HIGH | HIGHEST>"),
    (a.COMPARISON, DialectAttr("chlo", "", "comparison_direction EQ"), "#stablehlo<comparison_direction EQ | NE | GE"),
    (a.COMPARISON, stablehlo("", "comparison_direction ABOVE"), "#stablehlo<comparison_direction EQ | NE | GE"),
    (a.COMPARISON, stablehlo("", "comparison_type EQ"), "#stablehlo<comparison_direction EQ | NE | GE"),
    (a.COMPARISON, stablehlo("comparison_type", "EQ"), "#stablehlo<comparison_direction EQ | NE | GE"),
    (WORDS, Int(2, i32), "zero | one"),
    (WORDS, Int(-1, i32), "zero | one"),
    (WORDS, Int(1), "zero | one"),
    (WORDS, "one", "zero | one"),
    (a.DOT, OTHER, DOT),
    (a.DOT, stablehlo("gather", ""), DOT),
    (a.DOT, Unit(), DOT),
    (a.DOT, stablehlo("dot", "lhs_batching_dimensions = 1"), DOT),
    (a.DOT, stablehlo("dot", "lhs_batching_dimensions = [x]"), DOT),
    (a.DOT, stablehlo("dot", "batching = [1]"), DOT),
    (a.DOT, stablehlo("dot", "lhs_batching_dimensions [1]"), DOT),
    (a.DOT, stablehlo("dot", "lhs_batching_dimensions = [1], lhs_batching_dimensions = [1]"), DOT),
    (a.GATHER, stablehlo("gather", "index_vector_dim = [1]"), "#stablehlo.gather<offset_dims"),
    (a.GATHER, stablehlo("gather", f"index_vector_dim = {1 << 63}"), "#stablehlo.gather<offset_dims"),
    (a.GATHER, stablehlo("gather", f"index_vector_dim = {-(1 << 63) - 1}"), "#stablehlo.gather<offset_dims"),
    (a.CHANNEL, stablehlo("channel_handle", "handle = 1"), "#stablehlo.channel_handle<handle, type>"),
    (a.CHANNEL, stablehlo("channel_handle", "handle = 1, type = 0,"), "#stablehlo.channel_handle<handle, type>"),
    (a.DOT_ALGORITHM, stablehlo("dot_algorithm", ALGORITHM.replace("false", "no")), "#stablehlo.dot_algorithm<lhs_pr"),
    (a.DOT_ALGORITHM, stablehlo("dot_algorithm", ", ".join(reversed(ALGORITHM.split(", ")))), "#stablehlo.dot_alg"),
    (a.RESULT_ACCURACY, accuracy("atol = 1.0"), "#stablehlo.result_accuracy<atol, rtol, ulps, mode>"),
    (a.RESULT_ACCURACY, accuracy("mode = #stablehlo.precision<HIGH>"), "#stablehlo.result_accuracy<atol, rtol"),
    (a.RESULT_ACCURACY, accuracy("ulps = 1, atol = 1.0, mode = #stablehlo.result_accuracy_mode<TOLERANCE>"), "#stable"),
    (a.ALIAS, stablehlo("output_operand_alias", "operand_index = 0"), "#stablehlo.output_operand_alias<output_tuple_"),
    (a.CONV, stablehlo("dot", ""), "#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>"),
    (a.CONV, Unit(), "#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>"),
    (a.CONV, stablehlo("conv", "[b, 0, f]x[0, i, o]"), "[b, 0, f]x[0, i, o]->[b, 0, f]"),
    (a.CONV, stablehlo("conv", "[b, 1, f]x[0, i, o]->[b, 0, f]"), "the labels b, f, 0, 1, …"),
    (a.CONV, stablehlo("conv", "[b, 0, f]x[0, i, f]->[b, 0, f]"), "the labels i, o, 0, 1, …"),
    (a.CONV, stablehlo("conv", "[b, 0, b]x[0, i, o]->[b, 0, f]"), "one b and one f"),
    (a.CONV, stablehlo("conv", "[b, 0, f]x[0, i, o]->[f, 0, f]"), "one b and one f"),
    (a.CONV, stablehlo("conv", "[b, 0, f]x[0, o, o]->[b, 0, f]"), "one i and one o"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "node", "expected"), REFUSED, ids=lambda each: getattr(each, "name", None))
def test_refused(kind: a.Kind, node: Any, expected: str) -> None:
    with pytest.raises(ParseError, match=r"x\.op: attribute 'it'") as caught:
        a.read_attr(kind, node, "x.op", "it", "file:1:2")
    assert str(caught.value.expected).startswith(expected)
    assert caught.value.got is node
    assert caught.value.where == "file:1:2"


TAKEN = [
    (a.INT, Int(-1), -1),
    (a.INT32, Int(7, i32), 7),
    (a.FLOAT32, Float(0.5, F32), 0.5),
    (a.UNIT, Unit(), True),
    (a.BOOLS, DenseArray(I1, (True, False)), (True, False)),
    (a.MATRIX, Constant.of(np.broadcast_to(np.int64(3), (1, 2)), i64), ((3, 3),)),
    (a.SYMBOL, Symbol(("mesh", "inner")), "inner"),
    (a.TYPE, Shape("f32", 2), Shape("f32", 2)),
    (WORDS, Int(0, i32), "zero"),
    (WORDS, Int(1, i32), "one"),
    (a.COMPARISON, stablehlo("", " comparison_direction   EQ "), "EQ"),
    (a.COMPARISON, stablehlo("comparison_direction", " EQ "), "EQ"),
    (a.DOT, stablehlo("dot", ""), a.DotDims()),
    (a.DOT, stablehlo("dot", "rhs_contracting_dimensions = [0, 0x1], "), a.DotDims((), (), (), (0, 1))),
    (a.DOT, stablehlo("dot", "lhs_batching_dimensions = [ ]"), a.DotDims()),
    (a.GATHER, stablehlo("gather", f"index_vector_dim = {(1 << 63) - 1}"),
     a.GatherDims(index_vector_dim=(1 << 63) - 1)),
    (a.GATHER, stablehlo("gather", f"index_vector_dim = {-(1 << 63)}"), a.GatherDims(index_vector_dim=-(1 << 63))),
    (a.CHANNEL, stablehlo("channel_handle", "type = 2, handle = 1"), a.ChannelHandle(1, 2)),
    (a.DOT_ALGORITHM, stablehlo("dot_algorithm", ALGORITHM), a.DotAlgorithm("f32", "f32", "f32")),
    (a.RESULT_ACCURACY, accuracy("ulps = 3, mode = #stablehlo.result_accuracy_mode<TOLERANCE>"),
     a.ResultAccuracy(0.0, 0.0, 3, "TOLERANCE")),
    (a.CONV, stablehlo("conv", "[b, f]x[i, o]->[b, f]"), a.ConvDims(0, 1, (), 0, 1, (), 0, 1, ())),
    (a.CONV, stablehlo("conv", "[f, 1, ?, 0, b]x[o, 1, 0, i]->[1, b, 0, f]"),
     a.ConvDims(4, 0, (3, 1), 3, 0, (2, 1), 1, 3, (2, 0))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "node", "value"), TAKEN, ids=lambda each: getattr(each, "name", None))
def test_taken_and_written_back(kind: a.Kind, node: Any, value: Any) -> None:
    assert a.read_attr(kind, node, "x.op", "it") == value
    again = kind.write(value)
    assert kind.read(again) == value


def test_the_largest_tables() -> None:
    """Layouts of 4096 dimensions and tables of 2^20 numbers are read; one more is not."""
    row = np.broadcast_to(np.int64(1), (4096,)).astype(index.numpy)
    assert len(a.read_row(Constant.of(row, index))) == 4096
    for wrong in (dense([1], i64), dense([[1]], index), dense(np.ones(4097), index), Unit()):
        with pytest.raises(ValueError, match=r"dense<\[…\]> : tensor<Nxindex>"):
            a.read_row(wrong)
    assert len(a.MATRIX.read(Constant.of(np.broadcast_to(np.int64(0), (1, 1 << 20)), i64))[0]) == 1 << 20


def test_what_is_written() -> None:
    assert WORDS.write("one") == Int(1, i32)
    assert WORDS.write("two") == Int(2, i32)  # a word that is none: a number that is refused when it is read
    assert a.PAIRS.write(()).array.shape == (0, 2)
    assert a.MATRIX.write(()).array.shape == (0, 0)
    assert a.PAIRS.write(((1, 2, 3),)).array.shape == (1, 3)
    assert a.CHANNEL.write(a.ChannelHandle()).body == "handle = 0, type = 0"
    assert a.DOT.write(a.DotDims()).body == ""
    assert a.DOT_ALGORITHM.write(a.DotAlgorithm("f32", "f32", "f32")).body == ALGORITHM
    assert a.RESULT_ACCURACY.write(a.ResultAccuracy()).body == "mode = #stablehlo.result_accuracy_mode<DEFAULT>"
    assert a.RESULT_ACCURACY.write(a.ResultAccuracy(atol=0.5)).body.startswith("atol = 0.5, mode")


def test_nodes_compare_as_bits_do() -> None:
    assert Float(float("nan")) == Float(float("nan"))
    assert Float(0.0) != Float(-0.0)
    assert Float(1.0) != Float(1.0, F32)
    assert hash(Float(0.0)) != hash(Float(-0.0))
    assert Dict((("a", 1),)).get("b") is None
    assert Dict((("a", 1),)).get("b", 2) == 2


def test_constants_hold_one_element_where_one_fills_them() -> None:
    splat, mixed, empty, one = (dense(x, i64) for x in ([5, 5], [5, 6], [], [5]))
    assert splat.is_splat
    assert splat.array.strides == (0,)
    assert not mixed.is_splat
    assert not dense([5, 6, 5], i64).is_splat
    assert not empty.is_splat
    assert one.is_splat
    assert not mixed.array.flags.writeable
    assert dense([5, 5], i64) == splat != dense([5, 5, 5], i64)
    assert dense([5, 5], i64) != dense([5, 5], i32)
    assert len({splat, dense([5, 5], i64), mixed}) == 2
    assert len(splat.digest) == 16
