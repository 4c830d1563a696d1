"""Data-dependent sizes, and control flow around them: generated C against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.engine.native import NativeEngine, compile_all
from smelt.errors import RunError, SizeError, SmeltError, UnsupportedError
from smelt.ir.attributes import ConvDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.shape import Shape
from tests.unit.kernel.agreement import disagreement

IOTA = """func.func @main(%s: tensor<1xi64>, %x: tensor<f32>) -> tensor<?xf32> {
  %0 = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi64>) -> tensor<?xf32>
  %1 = stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [] : (tensor<f32>, tensor<1xi64>) -> tensor<?xf32>
  %2 = stablehlo.add %0, %1 : tensor<?xf32>
  return %2 : tensor<?xf32>
}"""
SLICE = """func.func @main(%x: tensor<10xf32>, %s: tensor<1xi64>, %l: tensor<1xi64>, %d: tensor<1xi64>)
    -> (tensor<f32>, tensor<?xf32>, tensor<3xf32>) {
  %0 = stablehlo.real_dynamic_slice %x, %s, %l, %d
    : (tensor<10xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<?xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<?xf32>, tensor<f32>) -> tensor<f32>
  %2 = stablehlo.multiply %0, %0 : tensor<?xf32>
  %3 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<3xf32>
  return %1, %2, %3 : tensor<f32>, tensor<?xf32>, tensor<3xf32>
}"""
RESHAPE = """func.func @main(%x: tensor<?xf32>, %s: tensor<2xi32>) -> tensor<?x?xf32> {
  %0 = stablehlo.dynamic_reshape %x, %s : (tensor<?xf32>, tensor<2xi32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}"""
STRETCH = """func.func @main(%x: tensor<?xf32>, %s: tensor<2xi64>) -> tensor<?x?xf32> {
  %0 = stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [1] : (tensor<?xf32>, tensor<2xi64>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}"""
CHOICE = """func.func @main(%c: tensor<i1>, %x: tensor<5xf32>, %s: tensor<1xi64>) -> tensor<?xf32> {
  %0 = "stablehlo.if"(%c) ({
    %a = stablehlo.add %x, %x : tensor<5xf32>
    %f = stablehlo.constant dense<5> : tensor<1xi64>
    %b = stablehlo.dynamic_reshape %a, %f : (tensor<5xf32>, tensor<1xi64>) -> tensor<?xf32>
    stablehlo.return %b : tensor<?xf32>
  }, {
    %i = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi64>) -> tensor<?xf32>
    stablehlo.return %i : tensor<?xf32>
  }) : (tensor<i1>) -> tensor<?xf32>
  %1 = stablehlo.multiply %0, %0 : tensor<?xf32>
  return %1 : tensor<?xf32>
}"""
TEN = np.arange(10, dtype=np.float32)


@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_a_size_that_an_operand_gives(count: int) -> None:
    assert not disagreement(parse(IOTA), [([count], np.float32(2))])


def test_slices_of_any_size() -> None:
    parts = [(0, 10, 1), (2, 9, 3), (3, 3, 1), (9, 10, 7)]
    assert not disagreement(parse(SLICE), [(TEN, [start], [limit], [step]) for start, limit, step in parts])


@pytest.mark.parametrize("shape", [(3, 4), (12, 1), (1, 12)])
def test_reshape_as_data_says(shape: tuple[int, int]) -> None:
    assert not disagreement(parse(RESHAPE), [(np.arange(12, dtype=np.float32), np.array(shape, np.int32))])


def test_a_size_of_one_is_stretched_and_another_kept() -> None:
    assert not disagreement(parse(STRETCH), [(TEN[:1], [2, 4]), (TEN[:4], [3, 4]), (TEN[:0], [3, 0])])


def test_branches_of_different_sizes() -> None:
    calls = [(np.array(flag), TEN[:5], [count]) for flag, count in ((True, 7), (False, 7), (False, 0), (True, 2))]
    assert not disagreement(parse(CHOICE), calls)


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (IOTA, ([-1], np.float32(1))),
        (IOTA, ([1 << 50], np.float32(1))),
        (IOTA, ([1 << 62], np.float32(1))),
        (SLICE, (TEN, [0], [11], [1])),
        (SLICE, (TEN, [5], [4], [1])),
        (SLICE, (TEN, [0], [4], [0])),
        (RESHAPE, (TEN, np.array([3, 4], np.int32))),
        (RESHAPE, (TEN, np.array([-2, -5], np.int32))),
        (STRETCH, (TEN[:3], [2, 4])),
    ],
)
def test_impossible_numbers_are_refused_before_memory_is_touched(text: str, args: tuple[object, ...]) -> None:
    program = parse(text)
    compiled = NativeEngine().compile(program)
    arrays = [np.asarray(each) for each in args]
    for call in (lambda: compiled(*arrays), lambda: run(program, arrays)):
        with pytest.raises((SizeError, RunError)):
            call()


def growing(names: tuple[str, str]) -> Program:
    """Two sequences, the second of each iteration is both of the previous one: sizes are Fibonacci numbers."""
    outer = symbol("N")
    f = FuncBuilder("main", [Shape("i64"), Shape("f32", outer), Shape("f32", outer)])
    regions = []
    for turn in (False, True):
        sizes = [symbol(name) for name in (("C", "D"), names)[turn]]
        with f.region(Shape("i64"), *(Shape("f32", size) for size in sizes)) as inner:
            count, a, b = inner.args
            if turn:
                both = inner.concatenate(a, b, dimension=0)
                inner.result(inner.subtract(count, inner.constant(1, "i64")), b, both)
            else:
                zero = inner.constant(0, "i64")
                inner.result(inner.compare(count, zero, comparison_direction="GT"))
        regions.append(inner.body)
    loop = f.op("stablehlo.while", *f.args, regions=regions)
    _, a, b = loop.results
    return Program.of(f.func(f.concatenate(a, b, dimension=0), f.add(a, a)))


@pytest.mark.parametrize("names", [("E", "F"), ("C", "D")])
def test_loops_that_carry_growing_values(names: tuple[str, str]) -> None:
    pair = TEN[:2], TEN[5:7]
    assert not disagreement(growing(names), [(np.int64(turns), *pair) for turns in (0, 1, 2, 9)])


def test_a_failed_check_raises_the_programs_own_message() -> None:
    text = """func.func @main(%x: tensor<2xi32>, %n: tensor<i32>) -> tensor<2xi32> {
  %z = stablehlo.constant dense<0> : tensor<2xi32>
  %ok = stablehlo.compare GE, %x, %z : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
  %m = stablehlo.add %n, %n : tensor<i32>
  stablehlo.custom_call @shape_assertion(%ok, %m) {error_message = "below zero near {0}", has_side_effect = true}
    : (tensor<2xi1>, tensor<i32>) -> ()
  return %x : tensor<2xi32>
}"""
    program = parse(text)
    compiled = NativeEngine().compile(program)
    assert compiled(np.array([1, 2], np.int32), np.array(4, np.int32))[0].tolist() == [1, 2]
    for call in (compiled, lambda *args: run(program, args)):
        with pytest.raises(RunError, match="below zero near 8"):
            call(np.array([1, -2], np.int32), np.array(4, np.int32))


def test_many_programs_in_one_file_and_one_that_cannot_be() -> None:
    unknown = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.custom_call @nobody_knows(%x) : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}"""
    made = compile_all([parse(text) for text in (IOTA, unknown, RESHAPE)])
    assert isinstance(made[1], UnsupportedError)
    assert not isinstance(made[0], SmeltError)
    assert not isinstance(made[2], SmeltError)
    assert made[0](np.array([3]), np.asarray(np.float32(1)))[0].tolist() == [1, 2, 3]
    assert made[2](TEN, np.array([2, 5], np.int32))[0].tolist() == TEN.reshape(2, 5).tolist()


def test_padding_of_a_convolution_that_an_operand_gives(seed: int) -> None:
    """Other sides, other strides and dilations: a result of another size than declared is refused."""
    f = FuncBuilder("main", [Shape("f32", 1, 5, 6, 2), Shape("f32", 2, 3, 2, 3), Shape("i64", 2, 2)])
    dims = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    made = f.dynamic_conv(
        *f.args, dimension_numbers=dims, feature_group_count=1, batch_group_count=1, window_strides=(1, 2),
        lhs_dilation=(2, 1), rhs_dilation=(1, 2), result=Shape("f32", 1, 9, 3, 3),
    )  # fmt: skip
    program = Program.of(f.func(made))
    random = np.random.default_rng(seed)
    given = [random.integers(-3, 4, sizes).astype(np.float32) for sizes in ((1, 5, 6, 2), (2, 3, 2, 3))]
    paddings = ([[1, 0], [1, 2]], [[0, 1], [0, 3]], [[-1, 2], [4, 0]])
    assert disagreement(program, [(*given, np.array(each)) for each in paddings], 1e-300) == ""
    executable = NativeEngine().compile(program)
    for wrong in ([[1, 1], [1, 2]], [[0, 0], [1, 2]], [[1, 0], [0, 0]], [[1, 0], [3, 2]]):
        for call in (lambda each: executable(*given, each), lambda each: run(program, [*given, each])):
            with pytest.raises(RunError, match=r"a size is not what the program promised|do not fit the sizes"):
                call(np.array(wrong))
