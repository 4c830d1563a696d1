"""One program for each constraint of an op: it breaks that constraint alone, and the message names it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Quantized, dtype
from smelt.errors import VerifyError
from smelt.ir.attributes import Constant, DotDims
from smelt.ir.build import FuncBuilder
from smelt.shape import Shape
from tests.unit.ir.refused import Q0, QA, QB, Q, body, one_op

Row = tuple[str, ...]  # op, operand types, result types, attributes, regions, message

SUM = body("f32 f32", "f32", '%v0 = "stablehlo.add"(%a0, %a1) : (tensor<f32>, tensor<f32>) -> tensor<f32>')
LESS = body(
    "f32 f32",
    "i1",
    '%v0 = "stablehlo.compare"(%a0, %a1) {comparison_direction = #stablehlo<comparison_direction LT>}'
    " : (tensor<f32>, tensor<f32>) -> tensor<i1>",
)

TWICE = (
    '%v0, %v1 = "stablehlo.optimization_barrier"(%a1, %a1) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)'
)


def ints(**lists: list[int]) -> str:
    return ", ".join(f"{name} = array<i64{': ' if of else ''}{', '.join(map(str, of))}>" for name, of in lists.items())


def numbers(**of: int) -> str:
    return ", ".join(f"{name} = {value} : i64" for name, value in of.items())


def accuracy(text: str, mode: str) -> str:
    mode = f"#stablehlo.result_accuracy_mode<{mode}>"
    return f"result_accuracy = #stablehlo.result_accuracy<{text}mode = {mode}>"


ELEMENTWISE: list[Row] = [
    ("stablehlo.cosine", "2xi32", "2xi32", "", "", "operand 0 has an element type that is not allowed (cosine_i1)"),
    ("stablehlo.multiply", "2xf32 2xf64", "2xf32", "", "", "the operands have different element types (multiply_c1)"),
    ("stablehlo.multiply", "2xf32 2x2xf32", "2xf32", "", "", "the operands have different shapes (multiply_c1)"),
    ("stablehlo.multiply", f"2x{QA} 2x{QA}", f"2x{QA}", "", "",
     "operand 0 must not be quantised per axis (multiply_i1)"),
    ("stablehlo.cosine", "2xf32", "2xf32", accuracy("", "SOON"), "", "unknown accuracy mode (cosine_i2)"),
    ("stablehlo.cosine", "2xf32", "2xf32", accuracy("ulps = -1, ", "TOLERANCE"), "",
     "a tolerance must not be negative (cosine_i2)"),
    ("stablehlo.cosine", "2xf32", "2xf32", accuracy("ulps = 1, ", "HIGHEST"), "",
     "a tolerance needs mode TOLERANCE (cosine_i2)"),
    ("stablehlo.clamp", "3xf32 2xf32 f32", "2xf32", "", "",
     "a bound must be a scalar or have the operand's shape (clamp_c1)"),
    ("stablehlo.clamp", "f32 2xf32 3xf32", "2xf32", "", "",
     "a bound must be a scalar or have the operand's shape (clamp_c2)"),
    ("stablehlo.clamp", "f64 2xf32 f32", "2xf32", "", "", "the operands have different element types (clamp_c3)"),
    ("stablehlo.select", "3xi1 2xf32 2xf32", "2xf32", "", "",
     "pred must be a scalar or have the shape of on_true (select_c1)"),
    ("stablehlo.select", "i1 2xf32 2xf64", "2xf32", "", "", "the operands have different element types (select_c2)"),
    ("stablehlo.compare", "2xf32 2xf32", "2xi1", "comparison_direction = #stablehlo<comparison_direction LT>, "
     "compare_type = #stablehlo<comparison_type SIGNED>", "",
     "compare_type does not suit the element type (compare_c3)"),
    ("stablehlo.convert", "2xf32", f"2x{Q}", "", "", "the result must not be quantised (convert_o1)"),
    ("stablehlo.convert", f"2x{Q}", "2xf32", "", "", "operand 0 has an element type that is not allowed (convert_i1)"),
    ("chlo.constant_like", "2xf32", "2xf32", 'value = "one"', "",
     "the value must be a number with a type (constant_like_i1)"),
    ("stablehlo.complex", "2xf32 2xf64", "2xcomplex<f32>", "", "",
     "the operands have different element types (complex_c1)"),
    ("stablehlo.complex", "2xf16 2xf16", "2xcomplex<f32>", "", "", "the parts must be f32 or f64 (complex_i1)"),
    ("stablehlo.add", f"2x{Q} 2xf32", f"2x{Q}", "", "", "the operands have different element types (add_c2)"),
    ("stablehlo.add", "2xf64 2xf32", "2xf64", "", "", "the operands have different element types (add_c1)"),
    ("stablehlo.add", f"2x{Q} 2x{Q}", "2xf32", "", "", "the result of quantised operands must be quantised (add_c2)"),
    ("stablehlo.add", f"2x{Q} 2x!quant.uniform<i16:f32,0.5>", f"2x{Q}", "", "",
     "the storage types of rhs and the result differ (add_c3)"),
    ("stablehlo.add", f"2x{Q} 2x!quant.uniform<i8:f64,0.5>", f"2x{Q}", "", "",
     "the expressed types of rhs and the result differ (add_c4)"),
    ("stablehlo.add", f"2x2x{QA} 2x2x{Q}", f"2x2x{QB}", "", "",
     "the quantisation dimensions of lhs and the result differ (add_c6)"),
    ("stablehlo.add", f"2x2x{Q} 2x2x{QA}", f"2x2x{QB}", "", "",
     "the quantisation dimensions of rhs and the result differ (add_c7)"),
    ("stablehlo.add", f"2x{Q} 2x{Q}", f"2x{QA}", "", "",
     "the result is quantised per axis exactly if an operand is (add_c5)"),
    ("stablehlo.reduce_precision", "2xf32", "2xf32", "exponent_bits = 0 : i32, mantissa_bits = 0 : i32", "",
     "exponent_bits must be at least 1 (reduce_precision_c2)"),
    ("stablehlo.reduce_precision", "2xf32", "2xf32", "exponent_bits = 1 : i32, mantissa_bits = -1 : i32", "",
     "mantissa_bits must be at least 0 (reduce_precision_c3)"),
    ("chlo.broadcast_add", f"2x{QA} 2x{QA}", f"2x{QA}", "", "",
     "a tensor that is quantised per axis cannot be broadcast"),
    ("chlo.broadcast_add", "2xf32 2x3xf32", "2x3xf32", ints(broadcast_dimensions=[0, 1]), "",
     "broadcast_dimensions must name one dimension for each of the smaller operand"),
    ("chlo.broadcast_add", "2xf32 2x3xf32", "2x3xf32", ints(broadcast_dimensions=[2]), "",
     "broadcast_dimensions must be in [0, 2)"),
    ("chlo.broadcast_add", "2x3xf32 4x2x3xf32", "4x2x3xf32", ints(broadcast_dimensions=[2, 1]), "",
     "broadcast_dimensions must be sorted"),
    ("chlo.broadcast_add", "2xf32 3xf32", "3xf32", "", "", "sizes that are not 1 must be equal to be broadcast"),
    ("stablehlo.uniform_quantize", "2xf64", f"2x{Q}", "", "",
     "the expressed type must be the operand's (uniform_quantize_c2)"),
    ("stablehlo.uniform_dequantize", "2xf32", "2xf32", "", "", "the operand must be quantised (uniform_dequantize_i1)"),
    ("smelt.round_to_byte", "2xf32 2xf32 3xf32", "2xi8", numbers(least=0, greatest=1), "",
     "all operands have the same sizes"),
    ("smelt.round_to_byte", "2xf32 2xf32 2xf32", "2xi8", numbers(least=-129, greatest=1), "",
     "the limits must be within the type"),
    ("smelt.round_to_byte", "2xf32 2xf32 2xf32", "2xi8", numbers(least=0, greatest=128), "",
     "the limits must be within the type"),
    ("smelt.round_to_byte", "2xf32 2xf32 2xf32", "2xi8", numbers(least=2, greatest=1), "",
     "the limits must be within the type"),
]  # fmt: skip

SHAPE: list[Row] = [
    ("stablehlo.bitcast_convert", "2xcomplex<f32>", "2xf64", "", "",
     "only complex casts to complex (bitcast_convert_c2)"),
    ("stablehlo.bitcast_convert", "2xf16", "2xf6E2M3FN", "", "",
     "one width must divide the other (bitcast_convert_c1)"),
    ("stablehlo.bitcast_convert", "2xf6E2M3FN", "2xf16", "", "",
     "one width must divide the other (bitcast_convert_c1)"),
    ("stablehlo.bitcast_convert", "f16", "f32", "", "",
     "a wider element needs a last dimension to be made of (bitcast_convert_c1)"),
    ("stablehlo.bitcast_convert", "2x3xf16", "2xf32", "", "",
     "the last dimension must make up one wider element (bitcast_convert_c1)"),
    ("stablehlo.broadcast", "2xf32", "1x2xf32", ints(broadcast_sizes=[-1]), "", "sizes must not be negative"),
    ("stablehlo.broadcast", f"2x{QA}", f"1x2x{QB}", ints(broadcast_sizes=[1]), "",
     "quantisation per axis is not allowed here (broadcast_i1)"),
    ("stablehlo.broadcast_in_dim", f"2x{QA}", f"2x2x{QA}", ints(broadcast_dimensions=[1]), "",
     "the quantised axis must move along (broadcast_in_dim_c6)"),
    ("stablehlo.broadcast_in_dim", "1x!quant.uniform<i8:f32:0,{0.5}>", f"2x{QA}", ints(broadcast_dimensions=[0]), "",
     "all slices must have the one scale and zero point (broadcast_in_dim_c6)"),
    ("stablehlo.concatenate", "", "2xf32", numbers(dimension=0), "", "there must be an input (concatenate_c3)"),
    ("stablehlo.iota", "", "2xi1", numbers(iota_dimension=0), "", "the element type must be a number type (iota_o1)"),
    ("stablehlo.reshape", f"2x4x{QA}", f"4x2x{QB}", "", "", "the quantised axis must stay one dimension (reshape_c3)"),
    ("stablehlo.slice", "4xf32", "2xf32", ints(start_indices=[0], limit_indices=[4], strides=[0]), "",
     "strides must be positive (slice_c4)"),
    ("stablehlo.slice", "4xf32", "5xf32", ints(start_indices=[0], limit_indices=[5], strides=[1]), "",
     "the limit must be inside the dimension (slice_c3)"),
    ("stablehlo.slice", "tensor<?xf32,#stablehlo.bounds<4>>", "5xf32",
     ints(start_indices=[0], limit_indices=[5], strides=[1]), "", "the limit must be inside the dimension (slice_c3)"),
    ("stablehlo.pad", "2xf32 f32", "2xf32",
     ints(edge_padding_low=[0], edge_padding_high=[0], interior_padding=[-1]), "",
     "interior padding must not be negative (pad_c3)"),
    ("stablehlo.set_dimension_size", "2xf32 i32", "?xf32", numbers(dimension=1), "",
     "dimension must be in [0, 1) (set_dimension_size_c1)"),
    ("stablehlo.set_dimension_size", "2xf32 i64", "?xf32", numbers(dimension=0), "",
     "the size must be a scalar i32 (set_dimension_size_i2)"),
    ("stablehlo.set_dimension_size", "2xf32 1xi32", "?xf32", numbers(dimension=0), "",
     "the size must be a scalar i32 (set_dimension_size_i2)"),
    ("stablehlo.get_tuple_element", "2xf32", "2xf32", "index = 0 : i32", "",
     "the operand must be a tuple (get_tuple_element_i1)"),
    ("stablehlo.get_tuple_element", "tuple<tensor<2xf32>>", "2xf32", "index = 1 : i32", "",
     "there is no such element (get_tuple_element_c1)"),
    ("stablehlo.optimization_barrier", "tuple<tensor<2xf32>>", "tuple<tensor<2xf32>>", "", "",
     "operands are tensors and tokens (optimization_barrier_i1)"),
    ("stablehlo.abs", "2xindex", "2xindex", "", "", "this op takes no tensors of index"),
    ("stablehlo.tuple", "2xindex", "tuple<tensor<2xindex>>", "", "", "this op takes no tensors of index"),
    ("stablehlo.abs", "tuple<tensor<2xf32>>", "2xf32", "", "", "operand 0 must be a tensor"),
    ("stablehlo.iota", "", "token", numbers(iota_dimension=0), "", "result 0 must be a tensor"),
]  # fmt: skip

DYNAMIC: list[Row] = [
    ("stablehlo.dynamic_broadcast_in_dim", "2xf32 1025xi64", "2xf32", ints(broadcast_dimensions=[0]), "",
     "no tensor has that many dimensions (dynamic_broadcast_in_dim_c7)"),
    ("stablehlo.dynamic_broadcast_in_dim", "2xf32 1xi64", "2xf32",
     ints(broadcast_dimensions=[0], known_expanding_dimensions=[1]), "",
     "known_expanding_dimensions must be in [0, 1) (dynamic_broadcast_in_dim_c9)"),
    ("stablehlo.dynamic_broadcast_in_dim", "2xf32 1xi64", "2xf32",
     ints(broadcast_dimensions=[0], known_nonexpanding_dimensions=[1]), "",
     "known_nonexpanding_dimensions must be in [0, 1) (dynamic_broadcast_in_dim_c10)"),
    ("stablehlo.dynamic_broadcast_in_dim", "2xf32 1xi64", "2xf32",
     ints(broadcast_dimensions=[0], known_expanding_dimensions=[0], known_nonexpanding_dimensions=[0]), "",
     "known dimensions must be unique (dynamic_broadcast_in_dim_c8)"),
    ("stablehlo.dynamic_pad", "2xf32 f32 2xi64 2xi64 2xi64", "?xf32", "", "",
     "one number per dimension (dynamic_pad_c2)"),
    ("stablehlo.dynamic_pad", "2xf32 f32 1xi64 1xi32 1xi64", "?xf32", "", "",
     "all paddings must have one type (dynamic_pad_i3)"),
    ("stablehlo.real_dynamic_slice", "2xf32 1xi64 1xi32 1xi64", "?xf32", "", "",
     "all indices must have one type (real_dynamic_slice_c3)"),
    ("stablehlo.real_dynamic_slice", "2xf32 2xi64 2xi64 2xi64", "?xf32", "", "",
     "one number per dimension (real_dynamic_slice_c2)"),
    ("stablehlo.dynamic_conv", "1x4x1xf32 2x1x1xf32 1x2xf32", "1x?x1xf32", "", "", "is missing"),
]  # fmt: skip

RANDOM: list[Row] = [
    ("stablehlo.rng_bit_generator", "2xui32", "2xui32 2xui32", "rng_algorithm = #stablehlo<rng_algorithm DEFAULT>", "",
     "initial_state must hold ui64 (rng_bit_generator_i2)"),
    ("stablehlo.rng_bit_generator", "2x1xui64", "2x1xui64 2xui32", "rng_algorithm = #stablehlo<rng_algorithm DEFAULT>",
     "", "initial_state must have one dimension (rng_bit_generator_i2)"),
    ("stablehlo.rng_bit_generator", "3xui64", "3xui64 2xui32",
     "rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>", "",
     "initial_state has the wrong size (rng_bit_generator_c2)"),
    ("stablehlo.rng_bit_generator", "4xui64", "4xui64 2xui32", "rng_algorithm = #stablehlo<rng_algorithm PHILOX>", "",
     "initial_state has the wrong size (rng_bit_generator_c2)"),
    ("stablehlo.rng_bit_generator", "2xui64", "2xui64 2xi1", "rng_algorithm = #stablehlo<rng_algorithm DEFAULT>", "",
     "the output must hold integers or floats (rng_bit_generator_o2)"),
    *(("stablehlo.rng", takes, "?xf32", f"rng_distribution = #stablehlo<rng_distribution {of}>", "", message)
      for takes, of, message in (
          ("1xf32 f32 1xi64", "UNIFORM", "a and b must be scalars (rng_i1)"),
          ("f32 1xf32 1xi64", "UNIFORM", "a and b must be scalars (rng_i2)"),
          ("complex<f32> complex<f32> 1xi64", "UNIFORM", "a and b must be booleans, integers or floats (rng_i1)"),
          ("f32 f64 1xi64", "UNIFORM", "a and b have different element types (rng_c1)"),
          ("i32 i32 1xi64", "NORMAL", "a normal distribution needs floats (rng_c2)"),
          ("f32 f32 i64", "UNIFORM", "shape must be a vector of integers (rng_i3)"),
          ("f32 f32 1xf32", "UNIFORM", "shape must be a vector of integers (rng_i3)"),
          ("f32 f32 ?xi64", "UNIFORM", "shape must have a known length (rng_i3)"),
          ("f32 f32 2xi64", "UNIFORM", "shape must name every size of the result (rng_c3)"),
      )),
]  # fmt: skip

REDUCE: list[Row] = [
    ("stablehlo.reduce", "2xf32", "f32", ints(dimensions=[0]), SUM,
     "it takes one initial value per input, and at least one input"),
    ("stablehlo.map", "", "2xf32", ints(dimensions=[0]), SUM, "it takes at least one input (map_c2)"),
    ("stablehlo.map", "2xf32 3xf32", "2xf32", ints(dimensions=[0]), SUM,
     "input 1 must have the shape of input 0 (map_c1)"),
    ("stablehlo.map", "2xf32 2xf32", "2xf32", ints(dimensions=[]), SUM,
     "dimensions must be all of the inputs' (map_c3)"),
    ("stablehlo.map", "2xf32", "2xf32", ints(dimensions=[0]), body("2xf32", "2xf32"),
     "its computation must return one scalar (map_c4)"),
    ("stablehlo.map", "2xf32", "2xf32", ints(dimensions=[0]), SUM,
     "its region takes the wrong number of values (map_c4)"),
    ("stablehlo.map", "2xf64 2xf64", "2xf32", ints(dimensions=[0]), SUM,
     "a value that its region takes has the wrong type (map_c4)"),
    ("stablehlo.batch_norm_inference", "2x3xf32 3xf32 3xf32 3xf32 3xf32", "2x3xf32",
     "epsilon = 1.0 : f32, feature_index = 2 : i64", "", "feature_index must be in [0, 2) (batch_norm_inference_c1)"),
    *(("chlo.scan", takes, gives, attrs, region, message) for takes, gives, attrs, region, message in (
        ("2xf32 f32", "2xf32 f32", numbers(dimension=0), body("f32", "f32"),
         "its body takes one argument per operand (scan)"),
        ("2xf32 f32", "2xf32 f32", numbers(dimension=1), body("f32 f32", "f32 f32"),
         "the scanned dimension of input 0 must be in [0, 1) (scan)"),
        ("2xf32 3xf32 f32", "2xf32 f32", numbers(dimension=0), body("f32 f32 f32", "f32 f32"),
         "all inputs must have the same size in the scanned dimension (scan)"),
        ("2xf32 f32", "f32", numbers(dimension=0), body("f32 f32", ""), "its body must return every carry (scan)"),
        ("f32", "f32", numbers(dimension=0), body("f32", "f32"), "it takes at least one input (scan)"),
        ("2x3xf32 f32", "2x3xf32 f32", numbers(dimension=1), body("2xf32 f32", "f32 f32", TWICE),
         "an output has no room for the scanned dimension (scan)"),
        ("2xf32 f32", "2xf32 f32", numbers(dimension=0) + ", operandSegmentSizes = array<i32: 1, 1>",
         body("f32 f32", "f32 f32"), "both segment sizes are there, or none (scan)"),
        ("2xf32 f32", "2xf32 f32", numbers(dimension=0)
         + ", operandSegmentSizes = array<i32: 2, 0>, resultSegmentSizes = array<i32: 1, 1>",
         body("f32 f32", "f32 f32"), "the body does not fit the inputs and initial values (scan)"),
        ("2xf32 f32", "2xf32 f32", numbers(dimension=0)
         + ", operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 2, 0>",
         body("f32 f32", "f32 f32"), "the body does not fit the outputs and carries (scan)"),
    )),
    *(("stablehlo.select_and_scatter", takes, "4xf32", attrs, f"{regions}, {SUM}", message)
      for takes, attrs, regions, message in (
        ("4xf32 2xf64 f32", ints(window_dimensions=[2], window_strides=[2]), LESS,
         "source must have the operand's element type (select_and_scatter_c1)"),
        ("4xf32 2xf32 1xf32", ints(window_dimensions=[2], window_strides=[2]), LESS,
         "init_value must be a scalar (select_and_scatter_i3)"),
        ("4xf32 2xf32 f64", ints(window_dimensions=[2], window_strides=[2]), LESS,
         "init_value must have the operand's element type (select_and_scatter_c3)"),
        ("4xf32 2xf32 f32", ints(window_dimensions=[2], window_strides=[1]), LESS,
         "source must have one element per position of the window (select_and_scatter_c2)"),
        ("4xf32 2xf32 f32", ints(window_dimensions=[2], window_strides=[2]), SUM,
         "a value that its region returns has the wrong type (select_and_scatter_c9)"),
        ("4xf32 2xf32 f32", ints(window_dimensions=[0], window_strides=[2]), LESS,
         "window_dimensions must be positive (select_and_scatter_c5)"),
        ("4xf32 2xf32 f32", ints(window_dimensions=[2], window_strides=[2])
         + ", padding = dense<0> : tensor<1x3xi64>", LESS,
         "padding has two entries per dimension (select_and_scatter_c8)"),
      )),
]  # fmt: skip

# Slices [1, 1, w] of an operand [2, 4, 5] at indices [2, n, 1]: dimension 0 is a batch, 1 is looked up.
GATHER = {
    "offset_dims": [2], "collapsed_slice_dims": [1], "operand_batching_dims": [0], "start_indices_batching_dims": [0],
    "start_index_map": [1], "index_vector_dim": 2,
}  # fmt: skip
SCATTER = {
    "update_window_dims": [2], "inserted_window_dims": [1], "input_batching_dims": [0],
    "scatter_indices_batching_dims": [0], "scatter_dims_to_operand_dims": [1], "index_vector_dim": 2,
}  # fmt: skip


def gather(message: str, takes: str = "2x4x5xf32 2x3x1xi32", sizes: tuple[int, ...] = (1, 1, 5), **dims: object) -> Row:
    text = ", ".join(f"{name} = {value}" for name, value in (GATHER | dims).items())
    attrs = f"dimension_numbers = #stablehlo.gather<{text}>, {ints(slice_sizes=list(sizes))}"
    return ("stablehlo.gather", takes, "2x3x5xf32", attrs, "", message)


def scatter(message: str, takes: str = "2x4x5xf32 2x3x1xi32 2x3x5xf32", **dims: object) -> Row:
    text = ", ".join(f"{name} = {value}" for name, value in (SCATTER | dims).items())
    gives = " ".join(["2x4x5xf32"] * (len(takes.split()) // 2))
    return ("stablehlo.scatter", takes, gives, f"scatter_dimension_numbers = #stablehlo.scatter<{text}>", SUM, message)


INDEX: list[Row] = [
    gather("indices must be integers (gather_i2)", "2x4x5xf32 2x3x1xf32"),
    gather("every operand dimension plays one part (gather_c1)", offset_dims=[]),
    gather("index_vector_dim must be a dimension of the indices (gather_c2)", index_vector_dim=4),
    gather("start_index_map must have one number per index (gather_c3)", start_index_map=[]),
    gather("offset_dims must be sorted (gather_c4)", offset_dims=[2, 1], collapsed_slice_dims=[]),
    gather("offset_dims must be in [0, 3) (gather_c5)", offset_dims=[3]),
    gather("collapsed_slice_dims and operand_batching_dims must be unique (gather_c6)", collapsed_slice_dims=[0]),
    gather("collapsed_slice_dims must be sorted (gather_c7)", offset_dims=[], collapsed_slice_dims=[2, 1]),
    gather("collapsed_slice_dims must be in [0, 3) (gather_c8)", collapsed_slice_dims=[3]),
    gather("the slice must have one element here (gather_c9)", sizes=(1, 2, 5)),
    gather("operand_batching_dims must be sorted (gather_c10)", offset_dims=[], operand_batching_dims=[2, 0]),
    gather("operand_batching_dims must be in [0, 3) (gather_c11)", operand_batching_dims=[3]),
    gather("the slice must have one element here (gather_c12)", sizes=(2, 1, 5)),
    gather("start_indices_batching_dims must be unique (gather_c13)", start_indices_batching_dims=[0, 0]),
    gather("start_indices_batching_dims must be in [0, 3) (gather_c14)", start_indices_batching_dims=[3]),
    gather("index_vector_dim must not be in start_indices_batching_dims (gather_c15)", start_indices_batching_dims=[2]),
    gather("start_indices_batching_dims must pair up (gather_c16)", start_indices_batching_dims=[0, 1]),
    gather("batching dimensions must have one size (gather_c17)", start_indices_batching_dims=[1]),
    gather("start_index_map and operand_batching_dims must be unique (gather_c18)", start_index_map=[0]),
    gather("start_index_map must be in [0, 3) (gather_c19)", start_index_map=[3]),
    gather("slice_sizes must have one number per dimension (gather_c20)", sizes=(1, 1)),
    gather("slice sizes must not be negative (gather_c21)", sizes=(1, 1, -1)),
    gather("slice 2 must fit into the operand (gather_c21)", sizes=(1, 1, 6)),
    scatter("inputs and updates must pair up (scatter_c5)", "2x4x5xf32 2x3x1xi32"),
    scatter("indices must be integers (scatter_i2)", "2x4x5xf32 2x3x1xf32 2x3x5xf32"),
    scatter("inputs must have one shape (scatter_c1)", "2x4x5xf32 2x4x6xf32 2x3x1xi32 2x3x5xf32 2x3x5xf32"),
    scatter("updates must have one shape (scatter_c3)", "2x4x5xf32 2x4x5xf32 2x3x1xi32 2x3x5xf32 2x3x4xf32"),
    scatter("an update must have its input's element type (scatter_c6)", "2x4x5xf32 2x3x1xi32 2x3x5xf64"),
    scatter("every input dimension plays one part (scatter_c2)", inserted_window_dims=[]),
    scatter("index_vector_dim must be a dimension of the indices (scatter_c22)", index_vector_dim=4),
    scatter("scatter_dims_to_operand_dims must have one number per index (scatter_c19)",
     scatter_dims_to_operand_dims=[]),
    scatter("updates have the wrong rank (scatter_c4)", "2x4x5xf32 2x3x1xi32 2x3xf32"),
    scatter("update_window_dims must be sorted (scatter_c7)", "2x4x5xf32 2x3x1xi32 2x3x4x5xf32",
            update_window_dims=[3, 2], inserted_window_dims=[]),
    scatter("update_window_dims must be in [0, 3) (scatter_c8)", update_window_dims=[3]),
    scatter("inserted_window_dims and input_batching_dims must be unique (scatter_c9)", inserted_window_dims=[0]),
    scatter("inserted_window_dims must be sorted (scatter_c10)", "2x4x5xf32 2x3x1xi32 2x3xf32",
            update_window_dims=[], inserted_window_dims=[2, 1]),
    scatter("inserted_window_dims must be in [0, 3) (scatter_c11)", inserted_window_dims=[3]),
    scatter("input_batching_dims must be sorted (scatter_c12)", "2x4x5xf32 2x3x1xi32 2x3xf32",
            update_window_dims=[], input_batching_dims=[2, 0]),
    scatter("input_batching_dims must be in [0, 3) (scatter_c13)", input_batching_dims=[3]),
    scatter("scatter_indices_batching_dims must be unique (scatter_c14)", scatter_indices_batching_dims=[0, 0]),
    scatter("scatter_indices_batching_dims must be in [0, 3) (scatter_c15)", scatter_indices_batching_dims=[3]),
    scatter("index_vector_dim must not be in scatter_indices_batching_dims (scatter_c16)",
            scatter_indices_batching_dims=[2]),
    scatter("scatter_indices_batching_dims must pair up (scatter_c17)", scatter_indices_batching_dims=[0, 1]),
    scatter("batching dimensions must have one size (scatter_c18)", scatter_indices_batching_dims=[1]),
    scatter("scatter_dims_to_operand_dims and input_batching_dims must be unique (scatter_c20)",
            scatter_dims_to_operand_dims=[0]),
    scatter("scatter_dims_to_operand_dims must be in [0, 3) (scatter_c21)", scatter_dims_to_operand_dims=[3]),
    scatter("updates must have the indices' sizes outside their windows (scatter_c4)",
            "2x4x5xf32 2x3x1xi32 2x2x5xf32"),
    scatter("a window must fit into the input (scatter_c4)", "2x4x5xf32 2x3x1xi32 2x3x6xf32"),
    ("stablehlo.torch_index_select", "2x4xf32 3xi32", "2x3xf32", numbers(dim=2, batch_dims=0), "",
     "dim must be in [0, 2)"),
    ("stablehlo.torch_index_select", "2x4xf32 3xi32", "2x3xf32", numbers(dim=0, batch_dims=1), "",
     "batch_dims must come before dim"),
    ("stablehlo.torch_index_select", "2x4xf32 3x2xi32", "2x2xf32", numbers(dim=1, batch_dims=1), "",
     "batch dimensions must have one size"),
]  # fmt: skip

LABELS = "[b, 0, f]x[0, i, o]->[b, 0, f]"


def conv(takes: str, gives: str, message: str, dims: str = LABELS, features: int = 1, batches: int = 1) -> Row:
    counts = numbers(feature_group_count=features, batch_group_count=batches)
    attrs = f"dimension_numbers = #stablehlo.conv<{dims}>, {counts}"
    return ("stablehlo.convolution", takes, gives, attrs, "", message)


CONVOLUTION: list[Row] = [
    conv("1x4x2xf32 2x2x1xf32", "1x3x1xf32", "input_spatial_dimensions must be all but two (convolution_c12)",
         "[b, f]x[0, i, o]->[b, 0, f]"),
    conv("1x4x2xf32 2x2x1xf32", "1x3x1xf32", "the input dimensions must be in [0, 3) (convolution_c13)",
         "[b, 0, ?, f]x[0, i, o]->[b, 0, f]"),
    conv("1x4x2xf32 2x2x1xf32", "1x3x1xf32", "the kernel dimensions must be in [0, 3) (convolution_c18)",
         "[b, 0, f]x[0, i, ?, o]->[b, 0, f]"),
    conv("1x4x2xf32 2x2x1xf32", "1x3x1xf32", "the output dimensions must be in [0, 3) (convolution_c20)",
         "[b, 0, f]x[0, i, o]->[b, 0, ?, f]"),
    conv("1x4x2xf32 2x2xf32", "1x3x1xf32", "lhs and rhs must have the same rank (convolution_c1)"),
    conv("1x4x2xf32 2x2x1xf32", "1x3x1xf32", "feature_group_count must be positive (convolution_c21)", features=0),
    conv("1x4x2xf32 2x2x1xf32", "1x3x1xf32", "batch_group_count must be positive (convolution_c22)", batches=0),
    conv("2x4x2xf32 2x2x2xf32", "1x3x1xf32", "one of the group counts must be 1 (convolution_c23)", features=2,
         batches=2),
    conv("3x4x2xf32 2x2x2xf32", "1x3x2xf32", "batch_group_count must divide the batches of lhs (convolution_c10)",
         batches=2),
    conv("1x4x3xf32 2x1x2xf32", "1x3x2xf32", "feature_group_count must divide the features of lhs (convolution_c11)",
         features=2),
    conv("2x4x2xf32 2x2x3xf32", "1x3x3xf32",
         "batch_group_count must divide the output features of rhs (convolution_c15)", batches=2),
    conv("1x4x2xf32 2x1x3xf32", "1x3x3xf32",
         "feature_group_count must divide the output features of rhs (convolution_c16)", features=2),
    conv("1x4x2xf32 2x1x1xf32", "1x3x1xf32",
         "rhs must have as many input features as a group of lhs has features (convolution_c14)"),
    conv("1x4x2xf32 0x2x1xf32", "1x3x1xf32", "the kernel must not be empty (convolution_i2)"),
    conv(f"1x4x2x{Q} 2x2x2x!quant.uniform<i8:f32:1,{{0.5,0.25}}>", f"1x3x2x{Q}",
         "rhs must be quantised along its output features (convolution_c29)"),
    conv(f"1x4x2x{Q} 2x2x2x!quant.uniform<i8:f32:2,{{0.5,0.25}}>", "1x3x2x!quant.uniform<i8:f32:0,{0.5}>",
         "the result must be quantised along its features (convolution_c30)"),
    conv(f"1x4x2x{Q} 2x2x2x!quant.uniform<i16:f32,0.5>", f"1x3x2x{Q}",
         "lhs and rhs must have the same storage type (convolution_c31)"),
    conv(f"1x4x2x{Q} 2x2x2x!quant.uniform<i8:f64,0.5>", f"1x3x2x{Q}",
         "lhs and rhs must express the same type (convolution_c32)"),
    conv(f"1x4x2x{Q} 2x2x2x{Q0}", "1x3x2x!quant.uniform<i8:f64,0.5>",
         "lhs and the result must express the same type (convolution_c32)"),
]  # fmt: skip

MATRICES = "dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>"
LINEAR: list[Row] = [
    ("stablehlo.dot_general", f"2x2x{Q} 2x2x{Q0}", "2x2xf32", MATRICES, "",
     "rhs must be quantised, and lhs if and only if the result is (dot_general_c14)"),
    ("stablehlo.dot_general", f"2x2xf64 2x2x{Q0}", "2x2xf64", MATRICES, "",
     "lhs must have the type that rhs expresses (dot_general_c20)"),
    ("stablehlo.dot_general", f"2x2xf32 2x2x{Q0}", "2x2xf64", MATRICES, "",
     "the result must have the type that rhs expresses (dot_general_c20)"),
    ("stablehlo.dot_general", f"2x2x{QA} 2x2x{Q0}", f"2x2x{Q}", MATRICES, "",
     "lhs must be quantised per tensor (dot_general_i1)"),
    ("stablehlo.dot_general", f"2x2x{Q} 2x2x{Q0}", f"2x2x{QA}", MATRICES, "",
     "the result of per-tensor quantised operands must be so too (dot_general_c19)"),
    ("stablehlo.dot_general", f"2x2x{Q} 2x2x{Q}", f"2x2x{Q}", MATRICES, "", "the zero points of rhs must be 0"),
    ("stablehlo.dot_general", f"2x2x{Q} 2x2x{QA}", f"2x2x{Q}", MATRICES, "",
     "rhs may not be quantised along a contracted axis (dot_general_c16)"),
    ("stablehlo.dot", "2xf32 2xf32", "f32",
     "precision_config = [#stablehlo<precision HIGH>, #stablehlo<precision HIGH>, #stablehlo<precision HIGH>]", "",
     "precision"),
    ("stablehlo.dot", "2x2x2xf32 2xf32", "f32", "", "", "lhs and rhs must be vectors or matrices (dot)"),
    ("stablehlo.einsum", "2xf32 2xf64", "f32", 'einsum_config = "a,a->"', "",
     "lhs and rhs must have the same element type"),
    ("stablehlo.einsum", f"2xf32 2x{Q0}", "f32", 'einsum_config = "a,a->"', "",
     "it takes no quantised tensors (einsum)"),
    ("stablehlo.unary_einsum", "2xf32", "i32", 'einsum_config = "a->"', "",
     "the result must be of the operand's kind (einsum)"),
    ("stablehlo.cholesky", f"2x2x{Q}", "2x2xf32", "lower = true", "",
     "the result must be quantised as the operand is (cholesky_c1)"),
    ("stablehlo.triangular_solve", f"2x2x{Q} 2x2x!quant.uniform<i16:f32,0.5>", f"2x2x{Q}",
     "left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>", "",
     "a and b must be quantised alike (triangular_solve_c1)"),
]  # fmt: skip


def no_axis(name: str, takes: str, gives: str, attrs: str = "", regions: str = "") -> Row:
    label = f"{name.rpartition('.')[2]}_i1"
    return name, takes, gives, attrs, regions, f"quantisation per axis is not allowed here ({label})"


PER_AXIS: list[Row] = [
    no_axis("stablehlo.optimization_barrier", f"2x{QA}", f"2x{QA}"),
    no_axis("stablehlo.real_dynamic_slice", f"2x{QA} 1xi64 1xi64 1xi64", f"2x{QA}"),
    no_axis("stablehlo.dynamic_slice", f"2x{QA} i64", f"2x{QA}", ints(slice_sizes=[2])),
    no_axis("stablehlo.dynamic_update_slice", f"2x{QA} 2x{QA} i64", f"2x{QA}"),
    no_axis("stablehlo.torch_index_select", f"2x{QA} 2xi32", f"2x{QA}", numbers(dim=0, batch_dims=0)),
    no_axis("stablehlo.sort", f"2x{QA}", f"2x{QA}", numbers(dimension=0), LESS),
    no_axis("chlo.top_k", f"2x{QA}", f"2x{QA} 2xi32", numbers(k=2)),
    no_axis("stablehlo.iota", "", f"2x{QA}", numbers(iota_dimension=0)),
    no_axis("stablehlo.reverse", f"2x{QA}", f"2x{QA}", ints(dimensions=[0])),
    no_axis("stablehlo.slice", f"2x{QA}", f"2x{QA}", ints(start_indices=[0], limit_indices=[2], strides=[1])),
    no_axis("stablehlo.pad", f"2x{QA} {Q}", f"2x{QA}",
            ints(edge_padding_low=[0], edge_padding_high=[0], interior_padding=[0])),
    no_axis("stablehlo.set_dimension_size", f"2x{QA} i32", f"2x{QA}", numbers(dimension=0)),
    gather("quantisation per axis is not allowed here (gather_i1)", f"2x4x5x{QA} 2x3x1xi32"),
    scatter("quantisation per axis is not allowed here (scatter_i1)", f"2x4x5x{QA} 2x3x1xi32 2x3x5x{QA}"),
]  # fmt: skip

MORE: list[Row] = [
    ("check.expect_eq", "2xf32 3xf32", "", "", "", "the compared values have different types"),
    ("check.expect_eq", "2xf32 2xi32", "", "", "", "the compared values have different types"),
    ("check.expect_eq_const", "2xf32", "", "value = dense<1.0> : tensor<3xf32>", "",
     "the expected value has another type"),
    ("check.expect_almost_eq_const", "2xi32", "", "value = dense<1> : tensor<2xi32>", "",
     "only floats are almost equal"),
    ("smelt.round_to_byte", "2xf32 2xf32 2xf32", "2xi16", numbers(least=0, greatest=1), "",
     "the result must be of i8 or ui8"),
    ("smelt.round_to_byte", "2xf64 2xf32 2xf32", "2xi8", numbers(least=0, greatest=1), "",
     "all operands must be of f32"),
    ("smelt.round_to_byte", "2xf32 2xf32 2xf16", "2xi8", numbers(least=0, greatest=1), "",
     "all operands must be of f32"),
]  # fmt: skip

ROWS = [*ELEMENTWISE, *SHAPE, *DYNAMIC, *RANDOM, *REDUCE, *INDEX, *CONVOLUTION, *LINEAR, *PER_AXIS, *MORE]


FFT = "fft_type = #stablehlo<fft_type {}>, "
SOLVE = "left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose {}>"
ROWS += [
    ("stablehlo.fft", "2xcomplex<f32>", "2xcomplex<f32>", FFT.format("FFT") + ints(fft_length=[]), "",
     "fft_length has 1 to 3 entries (fft_c3)"),
    ("stablehlo.fft", "2x2x2x2xcomplex<f32>", "2x2x2x2xcomplex<f32>", FFT.format("FFT") + ints(fft_length=[2] * 4), "",
     "fft_length has 1 to 3 entries (fft_c3)"),
    ("stablehlo.fft", "2xcomplex<f32>", "2xcomplex<f32>", FFT.format("FFT") + ints(fft_length=[2, 2]), "",
     "fft_length has more entries than the operand dimensions (fft_c1)"),
    ("stablehlo.fft", "2xcomplex<f32>", "2xcomplex<f32>", FFT.format("FFT") + ints(fft_length=[-1]), "",
     "no entry of fft_length is negative"),
    ("stablehlo.fft", "2xf32", "2xcomplex<f32>", FFT.format("IFFT") + ints(fft_length=[2]), "",
     "IFFT takes complex numbers (fft_c2)"),
    ("stablehlo.fft", "2xcomplex<f32>", "2xcomplex<f32>", FFT.format("RFFT") + ints(fft_length=[2]), "",
     "RFFT takes f32 or f64 (fft_c2)"),
    ("stablehlo.fft", "3xf32", "2xcomplex<f32>", FFT.format("RFFT") + ints(fft_length=[2]), "",
     "the operand's last sizes must be fft_length (fft_c4)"),
    ("stablehlo.cholesky", "2xf32", "2xf32", "lower = true", "", "a must have at least 2 dimensions (cholesky_c2)"),
    ("stablehlo.cholesky", "2x3xf32", "2x3xf32", "lower = true", "", "the last two sizes must be equal (cholesky_c3)"),
    ("stablehlo.triangular_solve", "2x2xf32 2x2xf32", "2x2xf32", SOLVE.format("TRANSPOSE_INVALID"), "",
     "transpose_a is invalid (triangular_solve_i6)"),
    ("stablehlo.triangular_solve", "2x2xf32 3x2xf32", "3x2xf32", SOLVE.format("TRANSPOSE"), "",
     "a must fit the side of b (triangular_solve_c3)"),
    ("stablehlo.triangular_solve", "2x3xf32 3x2xf32", "3x2xf32", SOLVE.format("TRANSPOSE"), "",
     "a must hold square matrices (triangular_solve_c3)"),
    ("stablehlo.triangular_solve", "4x2x2xf32 3x2x2xf32", "3x2x2xf32", SOLVE.format("TRANSPOSE"), "",
     "a and b must have the same batch dimensions (triangular_solve_c3)"),
    ("chlo.top_k", "f32", "f32 i32", numbers(k=1), "", "top_k needs a dimension"),
    ("chlo.top_k", "2xcomplex<f32>", "1xcomplex<f32> 1xi32", numbers(k=1), "", "complex numbers have no order"),
    ("chlo.top_k", "2xf32", "1xf32 1xi32", numbers(k=-1), "", "k must not be negative"),
    ("stablehlo.dynamic_slice", "2x2xf32 i32", "1x1xf32", ints(slice_sizes=[1, 1]), "",
     "one start index per dimension (dynamic_slice_c2)"),
    ("stablehlo.dynamic_slice", "2xf32 1xi32", "1xf32", ints(slice_sizes=[1]), "", "a start index must be a scalar"),
    ("stablehlo.slice", "4xf32", "1xf32", ints(start_indices=[3], limit_indices=[2], strides=[1]), "",
     "0 <= start <= limit must hold (slice_c3)"),
    ("stablehlo.slice", "4xf32", "1xf32", ints(start_indices=[-1], limit_indices=[2], strides=[1]), "",
     "0 <= start <= limit must hold (slice_c3)"),
    ("stablehlo.slice", "4xf32", "3xf32", ints(start_indices=[2], limit_indices=[5], strides=[1]), "",
     "the limit must be inside the dimension (slice_c3)"),
    ("stablehlo.dynamic_pad", "2xf32 f32 1xf32 1xi64 1xi64", "3xf32", "", "",
     "operand 2 must be a list of integers of known length"),
    ("stablehlo.dynamic_pad", "2xf32 f32 i64 1xi64 1xi64", "3xf32", "", "",
     "operand 2 must be a list of integers of known length"),
    ("stablehlo.dynamic_iota", "2000xi64", "3xf32", numbers(iota_dimension=0), "",
     "no tensor has that many dimensions"),
    ("stablehlo.collective_permute", "2xf32", "2xf32",
     "source_target_pairs = dense<[[0, 1, 2]]> : tensor<1x3xi64>", "", "a pair has a source and a target"),
    ("stablehlo.collective_permute", "2xf32", "2xf32",
     "source_target_pairs = dense<[[0, 1], [0, 2]]> : tensor<2x2xi64>", "", "each source occurs once"),
    ("stablehlo.collective_permute", "2xf32", "2xf32",
     "source_target_pairs = dense<[[0, 1], [2, 1]]> : tensor<2x2xi64>", "", "each target occurs once"),
    ("stablehlo.collective_permute", "2xf32", "2xf32",
     "source_target_pairs = dense<[[0, -1]]> : tensor<1x2xi64>", "", "a target is negative"),
    ("stablehlo.reduce_window", "2xf32 f32", "2xf32", ints(window_dimensions=[1, 1]), SUM,
     "window_dimensions has one entry per dimension"),
    ("stablehlo.reduce_window", "2xf32 f32", "2xf32", ints(window_dimensions=[1], window_strides=[1, 1]), SUM,
     "window_strides has one entry per dimension"),
    ("check.expect_almost_eq", "2xi32 2xi32", "", "", "", "only floats are almost equal"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "takes", "gives", "attrs", "regions", "message"), ROWS, ids=[f"{row[0]}-{row[-1][:48]}" for row in ROWS]
)
def test_refused(name: str, takes: str, gives: str, attrs: str, regions: str, message: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(message)) as caught:
        one_op(name, takes, gives, attrs, regions)
    assert caught.value.message.startswith(f"{name}: ")
    assert str(caught.value.where).endswith(":2:3")


TAKEN: list[Row] = [
    ("stablehlo.reduce_precision", "2xf32", "2xf32", "exponent_bits = 1 : i32, mantissa_bits = 0 : i32", ""),
    ("stablehlo.cosine", "2xf32", "2xf32", accuracy("ulps = 1, ", "TOLERANCE"), ""),
    ("stablehlo.slice", "4xf32", "4xf32", ints(start_indices=[0], limit_indices=[4], strides=[1]), ""),
    ("stablehlo.slice", "4xf32", "0xf32", ints(start_indices=[4], limit_indices=[4], strides=[1]), ""),
    ("stablehlo.bitcast_convert", "2x2xf16", "2xf32", "", ""),
    ("stablehlo.pad", "2xf32 f32", "0xf32",
     ints(edge_padding_low=[-2], edge_padding_high=[0], interior_padding=[0]), ""),
    ("stablehlo.broadcast", "2xf32", "0x2xf32", ints(broadcast_sizes=[0]), ""),
    ("smelt.round_to_byte", "2xf32 2xf32 2xf32", "2xi8", numbers(least=-128, greatest=127), ""),
    ("stablehlo.add", f"2x2x{Q} 2x2x{QA}", f"2x2x{QA}", "", ""),
    ("chlo.broadcast_add", "2xf32 2x3xf32", "2x3xf32", ints(broadcast_dimensions=[0]), ""),
    ("stablehlo.rng_bit_generator", "3xui64", "3xui64 2xui32", "rng_algorithm = #stablehlo<rng_algorithm PHILOX>", ""),
    ("stablehlo.rng_bit_generator", "2xui64", "2xui64 2xui32", "rng_algorithm = #stablehlo<rng_algorithm DEFAULT>", ""),
    conv("2x4x2xf32 2x2x2xf32", "1x3x2xf32", "", batches=2)[:5],
    conv("1x2xf32 2x3xf32", "1x3xf32", "", "[b, f]x[i, o]->[b, f]")[:5],
    ("chlo.scan", "2xf32 f32", "2xf32 f32", numbers(dimension=0), body("f32 f32", "f32 f32")),
    gather("")[:5],
    gather("", sizes=(1, 1, 5), start_index_map=[2])[:5],
    scatter("")[:5],
    scatter("", "2x4x5xf32 2x3x1xi32 2x3x4xf32")[:5],
    ("stablehlo.select_and_scatter", "4xf32 2xf32 f32", "4xf32", ints(window_dimensions=[2], window_strides=[2]),
     f"{LESS}, {SUM}"),
]  # fmt: skip


@pytest.mark.parametrize("row", TAKEN, ids=[f"{row[0]}-{row[1][:20]}" for row in TAKEN])
def test_extreme_values_are_accepted(row: Row) -> None:
    one_op(*row)


@pytest.mark.parametrize(
    ("start", "limit", "stride", "message"),
    [
        (-1, 4, 1, "a slice must begin inside (slice_c3)"),
        (0, 6, 1, "the limit must be inside the dimension (slice_c3)"),
        (0, 4, 0, "strides must be positive (slice_c4)"),
        (3, 2, 1, "a slice must not end before it begins (slice_c3)"),
    ],
)
def test_numbers_of_a_slice_that_are_known(start: int, limit: int, stride: int, message: str) -> None:
    f = FuncBuilder("main", [Shape("f32", 5)])
    parts = [f.constant([number], "i64") for number in (start, limit, stride)]
    with pytest.raises(VerifyError, match=re.escape(message)):
        f.real_dynamic_slice(f.args[0], *parts)


def test_negative_sizes_that_are_known() -> None:
    f = FuncBuilder("main", [Shape("f32", 5), Shape("f32")])
    with pytest.raises(VerifyError, match="a size must not be negative"):
        f.dynamic_broadcast_in_dim(f.args[1], f.constant([2, -1], "i64"), broadcast_dimensions=())
    with pytest.raises(VerifyError, match="a size must not be negative"):
        f.set_dimension_size(f.args[0], f.constant(-1, "i32"), dimension=0)
    with pytest.raises(VerifyError, match=r"a size must not be negative \(rng_c3\)"):
        f.rng(f.args[1], f.args[1], f.constant([2, -1], "i64"), rng_distribution="UNIFORM")


# ---- two scales for three slices: text like that is refused before any op is there, so these are built ----

WRONG = Shape.of(Quantized(dtype("i8"), dtype("f32"), (0.5, 0.25), (0, 0), 0, -128, 127), (3, 3))
RIGHT = Shape.of(Quantized(dtype("i8"), dtype("f32"), (0.5,), (0,), None, -128, 127), (3, 3))


@pytest.mark.parametrize(
    ("name", "operands", "result", "attrs"),
    [
        ("add", [WRONG, RIGHT], WRONG, {}),
        ("add", [RIGHT, WRONG], WRONG, {}),
        ("constant", [], WRONG, {"value": Constant.of(np.ones((3, 3), np.int8), dtype("i8"))}),
        ("uniform_quantize", [Shape("f32", 3, 3)], WRONG, {}),
        ("uniform_dequantize", [WRONG], Shape("f32", 3, 3), {}),
        ("reshape", [WRONG], WRONG, {}),
        ("transpose", [WRONG], WRONG, {"permutation": (0, 1)}),
        ("broadcast_in_dim", [WRONG], WRONG, {"broadcast_dimensions": (0, 1)}),
        ("dot_general", [RIGHT, WRONG], RIGHT, {"dot_dimension_numbers": DotDims((), (), (1,), (1,))}),
        ("dot_general", [WRONG, RIGHT], RIGHT, {"dot_dimension_numbers": DotDims((), (), (1,), (1,))}),
    ],
)
def test_one_scale_for_each_slice(name: str, operands: list[Shape], result: Shape, attrs: Any) -> None:
    f = FuncBuilder("main", operands)
    with pytest.raises(VerifyError, match="one scale per slice of the quantisation dimension") as caught:
        f.op(f"stablehlo.{name}", *f.args, result=result, **attrs)
    assert (caught.value.expected, caught.value.got) in ((3, 2), (2, 3))
