"""Shape refinement through calls, loops and custom calls: parsed, run as they are, and refined after inlining."""

import numpy as np
import pytest

from smelt.errors import RunError
from smelt.ir.core import walk
from smelt.ir.interpret import run
from smelt.ir.text import parse, print_program
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.shape import Shape

# A callee takes a size as an integer; what it returns is twice as long. This is how JAX exports symbolic sizes.
DOUBLED = """
func.func public @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
  %1 = call @twice(%0, %x) : (tensor<i32>, tensor<?xf32>) -> tensor<?xf32>
  %2 = stablehlo.negate %1 : tensor<?xf32>
  return %2 : tensor<?xf32>
}
func.func private @twice(%n: tensor<i32>, %x: tensor<?xf32>) -> tensor<?xf32> {
  %one = stablehlo.constant dense<1> : tensor<1xi32>
  %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %shape = stablehlo.concatenate %one, %n1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %row = stablehlo.dynamic_reshape %x, %shape : (tensor<?xf32>, tensor<2xi32>) -> tensor<1x?xf32>
  %two = stablehlo.constant dense<2> : tensor<1xi32>
  %wide = stablehlo.concatenate %two, %n1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %rows = stablehlo.dynamic_broadcast_in_dim %row, %wide, dims = [0, 1] :
    (tensor<1x?xf32>, tensor<2xi32>) -> tensor<2x?xf32>
  %all = stablehlo.multiply %n1, %two : tensor<1xi32>
  %flat = stablehlo.dynamic_reshape %rows, %all : (tensor<2x?xf32>, tensor<1xi32>) -> tensor<?xf32>
  return %flat : tensor<?xf32>
}
"""

LOOP = """
func.func @main(%x: tensor<?x2xf32>) -> tensor<?xf32> {
  %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x2xf32>) -> tensor<i32>
  %1 = call @sum(%0, %x) : (tensor<i32>, tensor<?x2xf32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}
func.func private @sum(%n: tensor<i32>, %x: tensor<?x2xf32>) -> tensor<?xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %start = stablehlo.dynamic_broadcast_in_dim %zero, %n1, dims = [] : (tensor<f32>, tensor<1xi32>) -> tensor<?xf32>
  %r:2 = stablehlo.while(%i = %c, %s = %start) : tensor<i32>, tensor<?xf32>
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %again = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %again : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %one1 = stablehlo.constant dense<1> : tensor<1xi32>
    %zero1 = stablehlo.constant dense<0> : tensor<1xi32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %i1 = stablehlo.reshape %i : (tensor<i32>) -> tensor<1xi32>
    %next1 = stablehlo.reshape %next : (tensor<i32>) -> tensor<1xi32>
    %from = stablehlo.concatenate %zero1, %i1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %to = stablehlo.concatenate %n1, %next1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %step = stablehlo.concatenate %one1, %one1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %part = stablehlo.real_dynamic_slice %x, %from, %to, %step :
      (tensor<?x2xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x1xf32>
    %column = stablehlo.dynamic_reshape %part, %n1 : (tensor<?x1xf32>, tensor<1xi32>) -> tensor<?xf32>
    %sum = stablehlo.add %s, %column : tensor<?xf32>
    stablehlo.return %next, %sum : tensor<i32>, tensor<?xf32>
  }
  return %r#1 : tensor<?xf32>
}
"""

WINDOW = """
func.func @main(%x: tensor<?xi32>) -> tensor<?xi32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<1xi32>
  %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xi32>) -> tensor<i32>
  %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %less = stablehlo.subtract %n1, %one : tensor<1xi32>
  %none = stablehlo.constant dense<0> : tensor<1xi32>
  %both = stablehlo.concatenate %less, %none, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %padding = stablehlo.reshape %both : (tensor<2xi32>) -> tensor<1x2xi32>
  %y = stablehlo.custom_call @stablehlo.dynamic_reduce_window(%x, %zero, %n1, %one, %one, %one, %padding)
    {called_computations = [@plus]} : (tensor<?xi32>, tensor<i32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>,
    tensor<1xi32>, tensor<1x2xi32>) -> tensor<?xi32>
  return %y : tensor<?xi32>
}
func.func private @plus(%a: tensor<i32>, %b: tensor<i32>) -> tensor<i32> {
  %0 = stablehlo.add %a, %b : tensor<i32>
  stablehlo.return %0 : tensor<i32>
}
"""


def optimised(program):
    for stage in ("inline", "refine_shapes", "simplify"):
        made, _ = pipeline.run(program, until=stage)
        verify(made)
    return made


@pytest.mark.parametrize("text", [DOUBLED, LOOP, WINDOW])
def test_parsed_programs_are_valid_and_print(text):
    program = parse(text)
    verify(program)
    verify(parse(print_program(program)))


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (DOUBLED, lambda x: -np.concatenate([x[:, 0], x[:, 0]])),
        (LOOP, lambda x: x[:, 0] + x[:, 1]),
        (WINDOW, lambda x: np.cumsum(x[:, 0].astype(np.int32), dtype=np.int32)),
    ],
)
def test_refinement_keeps_results(text, wanted, size):
    program = parse(text)
    x = np.arange(2.0 * size, dtype=np.float32).reshape(size, 2)
    arg = {DOUBLED: x[:, 0].copy(), LOOP: x, WINDOW: x[:, 0].astype(np.int32)}[text]
    for made in (program, optimised(program)):
        (got,) = run(made, [arg])
        np.testing.assert_array_equal(got, wanted(x))


@pytest.mark.parametrize(("text", "size"), [(DOUBLED, "2*d0"), (LOOP, "d0"), (WINDOW, "d0")])
def test_every_size_is_one_of_the_arguments_after_refining(text, size):
    program = optimised(parse(text))
    (result,) = program.main.results
    assert str(result.shape.sizes[0]) == size
    for op in walk(program.main.body):
        for value in op.results:
            if isinstance(value.type, Shape):
                assert value.type.symbols <= {"d0"}, op


def test_two_results_of_a_call_share_a_symbol():
    """A size that is bare in one result and part of a product in another is known in both."""
    program = parse("""
func.func @main(%n: tensor<1xi32>) -> (tensor<?xi32>, tensor<?x2xi32>) {
  %0:2 = call @f(%n) : (tensor<1xi32>) -> (tensor<?xi32>, tensor<?x2xi32>)
  return %0#0, %0#1 : tensor<?xi32>, tensor<?x2xi32>
}
func.func private @f(%n: tensor<1xi32>) -> (tensor<?xi32>, tensor<?x2xi32>) {
  %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>
  %1 = stablehlo.concatenate %0, %0, dim = 0 : (tensor<?xi32>, tensor<?xi32>) -> tensor<?xi32>
  %two = stablehlo.constant dense<2> : tensor<1xi32>
  %2 = stablehlo.concatenate %n, %two, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %3 = stablehlo.dynamic_reshape %1, %2 : (tensor<?xi32>, tensor<2xi32>) -> tensor<?x2xi32>
  return %1, %3 : tensor<?xi32>, tensor<?x2xi32>
}
""")
    verify(program)
    for made in (program, optimised(program)):
        a, b = run(made, [np.array([3], np.int32)])
        assert a.tolist() == [0, 1, 2, 0, 1, 2]
        assert b.tolist() == [[0, 1], [2, 0], [1, 2]]


def test_an_empty_window_is_rejected():
    program = parse(WINDOW.replace("dense<1> : tensor<1xi32>", "dense<0> : tensor<1xi32>"))
    with pytest.raises(RunError, match="positive"):
        run(program, [np.arange(3, dtype=np.int32)])


def test_a_shape_assertion_says_which_numbers_break_it():
    program = parse("""
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
  %c = stablehlo.constant dense<3> : tensor<i32>
  %1 = stablehlo.compare GE, %0, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.custom_call @shape_assertion(%1, %0) {error_message = "b is {0}", has_side_effect = true} :
    (tensor<i1>, tensor<i32>) -> ()
  return %x : tensor<?xf32>
}
""")
    assert run(program, [np.ones(3, np.float32)])[0].shape == (3,)
    for made in (program, optimised(program)):
        with pytest.raises(RunError, match="b is 2"):
            run(made, [np.ones(2, np.float32)])
