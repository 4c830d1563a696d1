"""Fields of records in attributes: MLIR reads most in any order, and some in theirs alone."""

from __future__ import annotations

import itertools

import pytest

from smelt.errors import SmeltError
from smelt.ir.text import parse, print_program

GATHER = ("offset_dims = [1]", "collapsed_slice_dims = [0]", "start_index_map = [0]", "index_vector_dim = 1")
SCATTER = (
    "update_window_dims = [1]", "inserted_window_dims = [0]", "scatter_dims_to_operand_dims = [0]",
    "index_vector_dim = 1",
)  # fmt: skip
ALGORITHM = (
    "lhs_precision_type = f32", "rhs_precision_type = f32", "accumulation_type = f32", "lhs_component_count = 1",
    "rhs_component_count = 1", "num_primitive_operations = 1", "allow_imprecise_accumulation = false",
)  # fmt: skip


def gather(fields: tuple[str, ...]) -> str:
    return f"""func.func @main(%x: tensor<3x2xf32>, %i: tensor<4xi32>) -> tensor<4x2xf32> {{
  %0 = "stablehlo.gather"(%x, %i) {{dimension_numbers = #stablehlo.gather<{", ".join(fields)}>,
    slice_sizes = array<i64: 1, 2>}} : (tensor<3x2xf32>, tensor<4xi32>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}}"""


def scatter(fields: tuple[str, ...]) -> str:
    return f"""func.func @main(%x: tensor<3x2xf32>, %i: tensor<4xi32>, %u: tensor<4x2xf32>) -> tensor<3x2xf32> {{
  %0 = "stablehlo.scatter"(%x, %i, %u) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<{", ".join(fields)}>}}
    : (tensor<3x2xf32>, tensor<4xi32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}}"""


def dot(fields: tuple[str, ...]) -> str:
    return f"""func.func @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {{
  %0 = "stablehlo.dot_general"(%x, %x) {{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1],
    rhs_contracting_dimensions = [0]>, algorithm = #stablehlo.dot_algorithm<{", ".join(fields)}>}}
    : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}}"""


@pytest.mark.parametrize(("make", "fields"), [(gather, GATHER), (scatter, SCATTER)])
def test_dimension_numbers_are_read_in_any_order(make, fields: tuple[str, ...]) -> None:
    want = print_program(parse(make(fields)))
    for order in itertools.permutations(fields):
        assert print_program(parse(make(order))) == want
    with pytest.raises(SmeltError):
        parse(make((*fields, fields[0])))


def test_an_algorithm_is_read_in_its_order_alone() -> None:
    parse(dot(ALGORITHM))
    for order in (ALGORITHM[::-1], (ALGORITHM[1], ALGORITHM[0], *ALGORITHM[2:]), ALGORITHM[:-1]):
        with pytest.raises(SmeltError):
            parse(dot(order))
