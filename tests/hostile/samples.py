"""Small valid programs, at least one for every op of the table: what the mutations start from.

`SAMPLES` maps a name to a text. Most are one op in generic form on the arguments of a function; some are pretty.
"""

from __future__ import annotations

import re

_F = "tensor<f32>"
_BODY = {
    "add": "^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
    '      %r = "stablehlo.add"(%x, %y) : (tensor<f32>, tensor<f32>) -> tensor<f32>\n'
    '      "stablehlo.return"(%r) : (tensor<f32>) -> ()',
    "max_i32": "^bb0(%x: tensor<i32>, %y: tensor<i32>):\n"
    '      %r = "stablehlo.maximum"(%x, %y) : (tensor<i32>, tensor<i32>) -> tensor<i32>\n'
    '      "stablehlo.return"(%r) : (tensor<i32>) -> ()',
    "less": "^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
    '      %r = "stablehlo.compare"(%x, %y) <{comparison_direction = #stablehlo<comparison_direction LT>, '
    "compare_type = #stablehlo<comparison_type FLOAT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
    '      "stablehlo.return"(%r) : (tensor<i1>) -> ()',
    "two": "^bb0(%x: tensor<f32>, %i: tensor<i32>, %y: tensor<f32>, %j: tensor<i32>):\n"
    '      %r = "stablehlo.maximum"(%x, %y) : (tensor<f32>, tensor<f32>) -> tensor<f32>\n'
    '      %k = "stablehlo.minimum"(%i, %j) : (tensor<i32>, tensor<i32>) -> tensor<i32>\n'
    '      "stablehlo.return"(%r, %k) : (tensor<f32>, tensor<i32>) -> ()',
    "less_two": "^bb0(%x: tensor<f32>, %y: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>):\n"
    '      %r = "stablehlo.compare"(%i, %j) <{comparison_direction = #stablehlo<comparison_direction GE>}> : '
    "(tensor<i32>, tensor<i32>) -> tensor<i1>\n"
    '      "stablehlo.return"(%r) : (tensor<i1>) -> ()',
    "first": '%r = "stablehlo.negate"(%a1) : (tensor<2xf32>) -> tensor<2xf32>\n'
    '      "stablehlo.return"(%r) : (tensor<2xf32>) -> ()',
    "second": '"stablehlo.return"(%a1) : (tensor<2xf32>) -> ()',
    "while_cond": "^bb0(%i: tensor<i32>, %v: tensor<2xf32>):\n"
    '      %r = "stablehlo.compare"(%i, %a2) <{comparison_direction = #stablehlo<comparison_direction LT>}> : '
    "(tensor<i32>, tensor<i32>) -> tensor<i1>\n"
    '      "stablehlo.return"(%r) : (tensor<i1>) -> ()',
    "while_body": "^bb0(%i: tensor<i32>, %v: tensor<2xf32>):\n"
    '      %r = "stablehlo.add"(%i, %a2) : (tensor<i32>, tensor<i32>) -> tensor<i32>\n'
    '      %w = "stablehlo.multiply"(%v, %v) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>\n'
    '      "stablehlo.return"(%r, %w) : (tensor<i32>, tensor<2xf32>) -> ()',
    "scan": "^bb0(%x: tensor<2xf32>, %y: tensor<2xf32>):\n"
    '      %r = "stablehlo.add"(%x, %y) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>\n'
    '      "stablehlo.return"(%r, %r) : (tensor<2xf32>, tensor<2xf32>) -> ()',
    "gather_async": "^bb0(%y: tensor<2x2xf32>):\n"
    '      %r = "stablehlo.all_gather"(%y) <{all_gather_dim = 1 : i64, replica_groups = dense<0> : tensor<1x1xi64>}> : '
    "(tensor<2x2xf32>) -> tensor<2x2xf32>\n"
    '      "stablehlo.return"(%r) : (tensor<2x2xf32>) -> ()',
}
_GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
_CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
_CONV = (
    "window_strides = array<i64: 2, 1>, padding = dense<[[1, 1], [0, 2]]> : tensor<2x2xi64>, lhs_dilation = array<i64: 1, 2>, "
    "rhs_dilation = array<i64: 1, 1>, window_reversal = array<i1: false, true>, "
    "dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 2 : i64, "
    "batch_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision HIGH>]"
)

# name of the op | operand types | attributes | regions | result types
_ROWS = """
stablehlo.convert | tensor<2x3xf32> | | | tensor<2x3xi8>
stablehlo.complex | tensor<2xf32>; tensor<2xf32> | | | tensor<2xcomplex<f32>>
stablehlo.real | tensor<2xcomplex<f64>> | | | tensor<2xf64>
stablehlo.imag | tensor<2xcomplex<f32>> | | | tensor<2xf32>
stablehlo.abs | tensor<2xcomplex<f32>> | | | tensor<2xf32>
stablehlo.is_finite | tensor<2xf32> | | | tensor<2xi1>
stablehlo.compare | tensor<2xf32>; tensor<2xf32> | comparison_direction = #stablehlo<comparison_direction EQ>, compare_type = #stablehlo<comparison_type TOTALORDER> | | tensor<2xi1>
stablehlo.clamp | tensor<f32>; tensor<2x3xf32>; tensor<2x3xf32> | | | tensor<2x3xf32>
stablehlo.select | tensor<i1>; tensor<2x3xf32>; tensor<2x3xf32> | | | tensor<2x3xf32>
stablehlo.constant | | value = dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32> | | tensor<2x3xi32>
stablehlo.reduce_precision | tensor<3xf32> | exponent_bits = 5 : i32, mantissa_bits = 10 : i32 | | tensor<3xf32>
stablehlo.exponential | tensor<3xf32> | result_accuracy = #stablehlo.result_accuracy<ulps = 10, mode = #stablehlo.result_accuracy_mode<TOLERANCE>> | | tensor<3xf32>
stablehlo.add | tensor<2x!quant.uniform<i8:f32, 0.5:3>>; tensor<2x!quant.uniform<i8:f32, 0.5:3>> | | | tensor<2x!quant.uniform<i8:f32, 0.5:3>>
stablehlo.add | tensor<?x3xf32>; tensor<?x3xf32> | | | tensor<?x3xf32>
stablehlo.uniform_quantize | tensor<2x3xf32> | | | tensor<2x3x!quant.uniform<i8:f32:0, {0.1:-30, 0.5:-20}>>
stablehlo.uniform_dequantize | tensor<2x!quant.uniform<u8:f32, 0.25:128>> | | | tensor<2xf32>
stablehlo.bitcast_convert | tensor<2x4xi8> | | | tensor<2xf32>
stablehlo.broadcast | tensor<3xf32> | broadcast_sizes = array<i64: 1, 2> | | tensor<1x2x3xf32>
stablehlo.broadcast_in_dim | tensor<1x3xf32> | broadcast_dimensions = array<i64: 2, 1> | | tensor<2x3x2xf32>
stablehlo.concatenate | tensor<3x2xi64>; tensor<1x2xi64> | dimension = 0 : i64 | | tensor<4x2xi64>
stablehlo.iota | | iota_dimension = 1 : i64 | | tensor<4x5xi32>
stablehlo.reshape | tensor<2x3xi32> | | | tensor<3x2x1xi32>
stablehlo.reverse | tensor<3x2xi32> | dimensions = array<i64: 1> | | tensor<3x2xi32>
stablehlo.slice | tensor<3x8xi64> | start_indices = array<i64: 1, 4>, limit_indices = array<i64: 3, 8>, strides = array<i64: 1, 2> | | tensor<2x2xi64>
stablehlo.transpose | tensor<2x3x4xi32> | permutation = array<i64: 2, 1, 0> | | tensor<4x3x2xi32>
stablehlo.pad | tensor<2x3xi32>; tensor<i32> | edge_padding_low = array<i64: 0, 1>, edge_padding_high = array<i64: 2, -1>, interior_padding = array<i64: 1, 2> | | tensor<5x7xi32>
stablehlo.get_dimension_size | tensor<2x3xi64> | dimension = 1 : i64 | | tensor<i32>
stablehlo.set_dimension_size | tensor<2x4xf32>; tensor<i32> | dimension = 1 : i64 | | tensor<2x?xf32, #stablehlo.bounds<?, 4>>
stablehlo.tuple | tensor<2xf32>; tensor<i32> | | | tuple<tensor<2xf32>, tensor<i32>>
stablehlo.get_tuple_element | tuple<tensor<2xf32>, tensor<i32>> | index = 1 : i32 | | tensor<i32>
stablehlo.gather | tensor<3x4x2xi64>; tensor<2x3x2xi64> | dimension_numbers = #stablehlo.gather<offset_dims = [2, 3], collapsed_slice_dims = [0], start_index_map = [1, 0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 2, 2>, indices_are_sorted = false | | tensor<2x3x2x2xi64>
stablehlo.gather | tensor<2x3x4x2xi64>; tensor<2x2x3x2xi64> | dimension_numbers = #stablehlo.gather<offset_dims = [3, 4], collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [1], start_index_map = [2, 1], index_vector_dim = 3>, slice_sizes = array<i64: 1, 1, 2, 2>, indices_are_sorted = true | | tensor<2x2x3x2x2xi64>
stablehlo.scatter | tensor<3x4x2xf32>; tensor<2x3x2xi64>; tensor<2x3x2x2xf32> | scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2, 3], inserted_window_dims = [0], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 2>, indices_are_sorted = false, unique_indices = false | add | tensor<3x4x2xf32>
stablehlo.scatter | tensor<2x3x4x2xf32>; tensor<2x2x3x2xi64>; tensor<2x2x3x2x2xf32> | scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [3, 4], inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [1], scatter_dims_to_operand_dims = [2, 1], index_vector_dim = 3> | add | tensor<2x3x4x2xf32>
stablehlo.dynamic_slice | tensor<3x3xi32>; tensor<i64>; tensor<i64> | slice_sizes = array<i64: 3, 2> | | tensor<3x2xi32>
stablehlo.dynamic_update_slice | tensor<4x4xi32>; tensor<2x3xi32>; tensor<i64>; tensor<i64> | | | tensor<4x4xi32>
stablehlo.torch_index_select | tensor<5x1x5xi32>; tensor<2xi32> | dim = 0 : i64, batch_dims = 0 : i64 | | tensor<2x1x5xi32>
stablehlo.sort | tensor<2x3xf32>; tensor<2x3xi32> | dimension = 1 : i64, is_stable = true | less_two | tensor<2x3xf32>; tensor<2x3xi32>
chlo.top_k | tensor<2x8xf32> | k = 3 : i64 | | tensor<2x3xf32>; tensor<2x3xi32>
stablehlo.reduce | tensor<2x6xf32>; tensor<f32> | dimensions = array<i64: 1> | add | tensor<2xf32>
stablehlo.reduce | tensor<2x6x3xf32>; tensor<2x6x3xi32>; tensor<f32>; tensor<i32> | dimensions = array<i64: 2, 0> | two | tensor<6xf32>; tensor<6xi32>
stablehlo.map | tensor<2x3xf32>; tensor<2x3xf32> | dimensions = array<i64: 0, 1> | add | tensor<2x3xf32>
stablehlo.batch_norm_inference | tensor<2x2x3xf32>; tensor<3xf32>; tensor<3xf32>; tensor<3xf32>; tensor<3xf32> | epsilon = 0.001 : f32, feature_index = 2 : i64 | | tensor<2x2x3xf32>
stablehlo.batch_norm_training | tensor<2x3x2xf32>; tensor<3xf32>; tensor<3xf32> | epsilon = 0.001 : f32, feature_index = 1 : i64 | | tensor<2x3x2xf32>; tensor<3xf32>; tensor<3xf32>
stablehlo.batch_norm_grad | tensor<2x2x3xf32>; tensor<3xf32>; tensor<3xf32>; tensor<3xf32>; tensor<2x2x3xf32> | epsilon = 0.001 : f32, feature_index = 2 : i64 | | tensor<2x2x3xf32>; tensor<3xf32>; tensor<3xf32>
chlo.scan | tensor<3x2xf32>; tensor<2xf32> | dimension = 0 : i64, is_reverse = false, operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1> | scan | tensor<3x2xf32>; tensor<2xf32>
stablehlo.reduce_window | tensor<3x2xi32>; tensor<i32> | window_dimensions = array<i64: 2, 1>, window_strides = array<i64: 4, 1>, base_dilations = array<i64: 2, 1>, window_dilations = array<i64: 3, 1>, padding = dense<[[2, 1], [0, 0]]> : tensor<2x2xi64> | max_i32 | tensor<2x2xi32>
stablehlo.select_and_scatter | tensor<4x2xf32>; tensor<2x2xf32>; tensor<f32> | window_dimensions = array<i64: 3, 1>, window_strides = array<i64: 2, 1>, padding = dense<[[0, 1], [0, 0]]> : tensor<2x2xi64> | less, add | tensor<4x2xf32>
stablehlo.convolution | tensor<1x4x3x4xf32>; tensor<3x2x2x6xf32> | CONV | | tensor<1x2x6x6xf32>
stablehlo.convolution | tensor<2x4x2xf32>; tensor<3x2x4xf32> | dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[0, b, f]>, feature_group_count = 1 : i64, batch_group_count = 2 : i64 | | tensor<2x1x4xf32>
stablehlo.dot_general | tensor<2x3x4xf32>; tensor<2x4x5xf32> | dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>] | | tensor<2x3x5xf32>
stablehlo.dot_general | tensor<3x4xf32>; tensor<4x5xf32> | dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>, algorithm = #stablehlo.dot_algorithm<lhs_precision_type = tf32, rhs_precision_type = tf32, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> | | tensor<3x5xf32>
stablehlo.dot_general | tensor<2x4x!quant.uniform<i8:f32, 0.5:3>>; tensor<4x3x!quant.uniform<i8:f32, 0.25>> | dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]> | | tensor<2x3x!quant.uniform<i32:f32, 0.125>>
stablehlo.dot | tensor<2x3xf32>; tensor<3xf32> | precision_config = [#stablehlo<precision HIGH>, #stablehlo<precision HIGHEST>] | | tensor<2xf32>
stablehlo.einsum | tensor<4x16xf32>; tensor<16x4xf32> | einsum_config = "ab,bc->ac" | | tensor<4x4xf32>
stablehlo.unary_einsum | tensor<4x16xf32> | einsum_config = "ab->a" | | tensor<4xf32>
stablehlo.cholesky | tensor<2x3x3xf32> | lower = true | | tensor<2x3x3xf32>
stablehlo.triangular_solve | tensor<3x3xf32>; tensor<3x2xf32> | left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose ADJOINT> | | tensor<3x2xf32>
stablehlo.fft | tensor<2x4xcomplex<f32>> | fft_type = #stablehlo<fft_type FFT>, fft_length = array<i64: 4> | | tensor<2x4xcomplex<f32>>
stablehlo.fft | tensor<3x8xf32> | fft_type = #stablehlo<fft_type RFFT>, fft_length = array<i64: 8> | | tensor<3x5xcomplex<f32>>
chlo.ragged_dot | tensor<4x3xf32>; tensor<2x3x2xf32>; tensor<2xi64> | ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [], lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>, precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>] | | tensor<4x2xf32>
stablehlo.rng | tensor<f32>; tensor<f32>; tensor<2xi64> | rng_distribution = #stablehlo<rng_distribution NORMAL> | | tensor<?x?xf32>
stablehlo.rng_bit_generator | tensor<2xui64> | rng_algorithm = #stablehlo<rng_algorithm THREE_FRY> | | tensor<2xui64>; tensor<2x3xui32>
stablehlo.if | tensor<i1>; tensor<2xf32> | | first, second | tensor<2xf32>
stablehlo.case | tensor<i32>; tensor<2xf32> | | first, second, first | tensor<2xf32>
stablehlo.while | tensor<i32>; tensor<2xf32>; tensor<i32> | | while_cond, while_body | tensor<i32>; tensor<2xf32>
stablehlo.custom_call | tensor<2xf32>; tensor<2xf32> | call_target_name = "check.eq", has_side_effect = true, backend_config = "", api_version = 1 : i32, called_computations = [] | | tensor<i1>
stablehlo.custom_call | tensor<2x3xf32> | call_target_name = "Sharding", api_version = 2 : i32, operand_layouts = [dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[0, 1]> : tensor<2xindex>], output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>] | | tensor<2x3xf32>
stablehlo.after_all | !stablehlo.token; !stablehlo.token | | | !stablehlo.token
stablehlo.create_token | | | | !stablehlo.token
stablehlo.optimization_barrier | tensor<f32>; tensor<2xi32> | | | tensor<f32>; tensor<2xi32>
stablehlo.all_gather | tensor<2x2xi64> | all_gather_dim = 1 : i64, GROUPS, CHANNEL, use_global_device_ids | | tensor<2x4xi64>
stablehlo.all_reduce | tensor<4xf32>; tensor<2xf32> | GROUPS, CHANNEL | add | tensor<4xf32>; tensor<2xf32>
stablehlo.all_to_all | tensor<2x4xi64> | split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, GROUPS | | tensor<4x2xi64>
stablehlo.reduce_scatter | tensor<2x4xf32> | scatter_dimension = 1 : i64, GROUPS, CHANNEL | add | tensor<2x2xf32>
stablehlo.collective_reduce | tensor<4xf32> | GROUPS, CHANNEL | add | tensor<4xf32>
stablehlo.collective_broadcast | tensor<1x2xi64> | GROUPS, CHANNEL | | tensor<1x2xi64>
stablehlo.collective_permute | tensor<2x2xi64> | source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>, CHANNEL | | tensor<2x2xi64>
stablehlo.cross-replica-sum | tensor<2xf32> | GROUPS | | tensor<2xf32>
stablehlo.partition_id | | | | tensor<ui32>
stablehlo.replica_id | | | | tensor<ui32>
stablehlo.send | tensor<2x2xi64>; !stablehlo.token | channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, is_host_transfer = true | | !stablehlo.token
stablehlo.recv | !stablehlo.token | channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>, is_host_transfer = true | | tensor<2x2xi64>; !stablehlo.token
stablehlo.infeed | !stablehlo.token | infeed_config = "", layout = [[0, 1]] | | tensor<2x2xi64>; !stablehlo.token
stablehlo.outfeed | tensor<2x2x2xi64>; !stablehlo.token | outfeed_config = "" | | !stablehlo.token
stablehlo.dynamic_broadcast_in_dim | tensor<1x3xi64>; tensor<3xi64> | broadcast_dimensions = array<i64: 2, 1>, known_expanding_dimensions = array<i64: 0>, known_nonexpanding_dimensions = array<i64: 1> | | tensor<2x3x2xi64>
stablehlo.dynamic_gather | tensor<2x4x9xi32>; tensor<1x5x2xi32>; tensor<3xi32> | dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2> | | tensor<1x5x8xi32>
stablehlo.dynamic_iota | tensor<2xi64> | iota_dimension = 0 : i64 | | tensor<4x5xi64>
stablehlo.dynamic_pad | tensor<2x3xi64>; tensor<i64>; tensor<2xi64>; tensor<2xi64>; tensor<2xi64> | | | tensor<5x9xi64>
stablehlo.dynamic_reshape | tensor<2x3xi64>; tensor<2xi64> | | | tensor<3x2xi64>
stablehlo.dynamic_conv | tensor<1x4x4x1xi64>; tensor<3x3x1x1xi64>; tensor<2x2xi64> | window_strides = array<i64: 4, 4>, lhs_dilation = array<i64: 2, 2>, rhs_dilation = array<i64: 1, 1>, window_reversal = array<i1: false, false>, dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64, batch_group_count = 1 : i64 | | tensor<1x2x2x1xi64>
stablehlo.real_dynamic_slice | tensor<?x4xi32>; tensor<2xi64>; tensor<2xi64>; tensor<2xi64> | | | tensor<?x?xi32>
chlo.dynamic_reshape | tensor<?x4xf32>; tensor<2xi64> | | | tensor<?x?xf32>
chlo.constant | | value = dense<[1, 2]> : tensor<2xi32> | | tensor<2xi32>
chlo.constant_like | tensor<2x?xf32> | value = 3.2 : f32 | | tensor<2x?xf32>
chlo.is_inf | tensor<2xf32> | | | tensor<2xi1>
chlo.is_neg_inf | tensor<2xf32> | | | tensor<2xi1>
chlo.is_pos_inf | tensor<2xf32> | | | tensor<2xi1>
chlo.broadcast_select | tensor<2xi1>; tensor<2xf32>; tensor<3x2xf32> | | | tensor<3x2xf32>
chlo.broadcast_compare | tensor<3x2xf32>; tensor<2xf32> | comparison_direction = #chlo<comparison_direction NE>, broadcast_dimensions = array<i64: 1> | | tensor<3x2xi1>
chlo.broadcast_complex | tensor<2xf32>; tensor<3x2xf32> | broadcast_dimensions = array<i64: 1> | | tensor<3x2xcomplex<f32>>
"""
_UNARY = {
    "f32": "stablehlo.cbrt stablehlo.ceil stablehlo.cosine stablehlo.exponential_minus_one stablehlo.floor stablehlo.log "
    "stablehlo.log_plus_one stablehlo.logistic stablehlo.negate stablehlo.round_nearest_afz stablehlo.round_nearest_even "
    "stablehlo.rsqrt stablehlo.sign stablehlo.sine stablehlo.sqrt stablehlo.tan stablehlo.tanh chlo.acos chlo.acosh chlo.asin "
    "chlo.asinh chlo.atan chlo.atanh chlo.bessel_i1e chlo.conj chlo.cosh chlo.digamma chlo.erf chlo.erf_inv chlo.erfc "
    "chlo.lgamma chlo.sinh chlo.square chlo.tan",
    "i32": "stablehlo.count_leading_zeros stablehlo.not stablehlo.popcnt stablehlo.abs",
}
_BINARY = {
    "f32": "stablehlo.atan2 stablehlo.divide stablehlo.maximum stablehlo.minimum stablehlo.multiply stablehlo.power "
    "stablehlo.remainder stablehlo.subtract chlo.next_after chlo.polygamma chlo.zeta",
    "i32": "stablehlo.add stablehlo.and stablehlo.or stablehlo.xor stablehlo.shift_left stablehlo.shift_right_arithmetic "
    "stablehlo.shift_right_logical chlo.mulhi",
}
_SPREAD = {
    "f32": "add atan2 divide maximum minimum multiply power remainder subtract next_after polygamma zeta",
    "i32": "and or xor shift_left shift_right_arithmetic shift_right_logical",
}

_WHOLE = {
    "pretty": """
module @example attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<3x4xf32> {jax.arg_info = "x"}) -> (tensor<3xf32> {jax.result_info = ""}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = call @square(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<3xf32>) -> tensor<3x4xf32>
    %3 = stablehlo.compare LT, %0, %2, FLOAT : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xi1>
    %4 = stablehlo.select %3, %0, %2 : tensor<3x4xi1>, tensor<3x4xf32>
    %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %6 = stablehlo.slice %5 [1:2, 0:3] : (tensor<4x3xf32>) -> tensor<1x3xf32>
    %7 = stablehlo.reshape %6 : (tensor<1x3xf32>) -> tensor<3xf32>
    %8 = stablehlo.dot_general %0, %5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x4xf32>, tensor<4x3xf32>) -> tensor<3x3xf32>
    %9 = stablehlo.dot_general %8, %7, contracting_dims = [0] x [0] : (tensor<3x3xf32>, tensor<3xf32>) -> tensor<3xf32>
    return %9 : tensor<3xf32>
  }
  func.func private @square(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }
}
""",
    "while": """
func.func @main() -> (tensor<i64>, tensor<3xf32>) {
  %init_i = stablehlo.constant dense<0> : tensor<i64>
  %init_x = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %limit = stablehlo.constant dense<4> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %0:2 = stablehlo.while(%i = %init_i, %x = %init_x) : tensor<i64>, tensor<3xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i64>, tensor<i64>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i64>
      %2 = stablehlo.add %x, %x : tensor<3xf32>
      stablehlo.return %1, %2 : tensor<i64>, tensor<3xf32>
    }
  return %0#0, %0#1 : tensor<i64>, tensor<3xf32>
}
""",
    "dynamic": """
func.func @main(%x: tensor<?x3xf32>, %y: tensor<?x3xf32>) -> tensor<?x?xf32> {
  %0 = stablehlo.concatenate %x, %y, dim = 0 : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
  %n = stablehlo.get_dimension_size %0, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %a = stablehlo.reshape %three : (tensor<i32>) -> tensor<1xi32>
  %b = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %s = stablehlo.concatenate %a, %b, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %1 = stablehlo.dynamic_reshape %0, %s : (tensor<?x3xf32>, tensor<2xi32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}
""",
    "composite": """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.composite "tests.twice" %x {composite_attributes = {n = 2 : i64}, decomposition = @twice, version = 1 : i32} : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func private @twice(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
""",
    "async": """
func.func @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
  %0 = "stablehlo.async_start"(%x) ({
    BODY
  }) : (tensor<2x2xf32>) -> !stablehlo.future<tensor<2x2xf32>>
  %1 = "stablehlo.async_done"(%0) : (!stablehlo.future<tensor<2x2xf32>>) -> tensor<2x2xf32>
  return %1 : tensor<2x2xf32>
}
""".replace("BODY", _BODY["gather_async"]),
    "literals": """
func.func @main() -> (tensor<2x2xf32>, tensor<2xcomplex<f32>>, tensor<4xi8>, tensor<3xi1>, tensor<0x2xf64>, tensor<2xbf16>) {
  %0 = stablehlo.constant dense<[[1.0, -2.5e-1], [0x7FC00000, 0.0]]> : tensor<2x2xf32>
  %1 = stablehlo.constant dense<[(1.0, 2.0), (0.0, -1.0)]> : tensor<2xcomplex<f32>>
  %2 = stablehlo.constant dense<"0x01FF7F80"> : tensor<4xi8>
  %3 = stablehlo.constant dense<[true, false, true]> : tensor<3xi1>
  %4 = stablehlo.constant dense<> : tensor<0x2xf64>
  %5 = stablehlo.constant dense<1.5> : tensor<2xbf16>
  return %0, %1, %2, %3, %4, %5 : tensor<2x2xf32>, tensor<2xcomplex<f32>>, tensor<4xi8>, tensor<3xi1>, tensor<0x2xf64>, tensor<2xbf16>
}
""",
    "aliases": """
#map = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>
!row = tensor<2x2xf32>
#where = loc("model.py":3:5)
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: !row loc(#where)) -> !row {
    %0 = "stablehlo.dot_general"(%x, %x) <{dot_dimension_numbers = #map}> : (!row, !row) -> !row loc(#where)
    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : !row
    %2 = sdy.reshard %1 <@mesh, [{}, {"x"}]> : !row
    %3 = sdy.propagation_barrier %2 allowed_direction=NONE : !row
    sdy.sharding_group %3 group_id=21 : !row
    return %3 : !row loc(#where)
  } loc(#where)
} loc(#where)
""",
    "tuples": """
func.func @main(%x: tensor<2xf32>, %n: tensor<i32>) -> (tuple<tensor<2xf32>, tuple<tensor<i32>>>, tensor<i32>) {
  %0 = stablehlo.tuple %n : tuple<tensor<i32>>
  %1 = stablehlo.tuple %x, %0 : tuple<tensor<2xf32>, tuple<tensor<i32>>>
  %2 = stablehlo.get_tuple_element %1[1] : (tuple<tensor<2xf32>, tuple<tensor<i32>>>) -> tuple<tensor<i32>>
  %3 = stablehlo.get_tuple_element %2[0] : (tuple<tensor<i32>>) -> tensor<i32>
  return %1, %3 : tuple<tensor<2xf32>, tuple<tensor<i32>>>, tensor<i32>
}
""",
}


def _single(row: str) -> str:
    """A program of one op from a row of the table."""
    name, operands, attributes, regions, results = (part.strip() for part in row.split("|"))
    inputs = [each.strip() for each in operands.split(";") if each.strip()]
    outputs = [each.strip() for each in results.split(";")]
    used = len(inputs)
    if name in ("stablehlo.if", "stablehlo.case"):
        used = 1
    elif name == "stablehlo.while":
        used = 2
    for word, text in (("GROUPS", _GROUPS), ("CHANNEL", _CHANNEL), ("CONV", _CONV)):
        attributes = re.sub(rf"\b{word}\b", text, attributes)
    arguments = ", ".join(f"%a{i}: {type}" for i, type in enumerate(inputs))
    values = ", ".join(f"%a{i}" for i in range(used))
    properties = f" <{{{attributes}}}>" if attributes else ""
    bodies = [f"{{\n    {_BODY[each.strip()]}\n  }}" for each in regions.split(",") if each.strip()]
    inside = f" ({', '.join(bodies)})" if bodies else ""
    left = "%r" if len(outputs) == 1 else f"%r:{len(outputs)}"
    types = ", ".join(outputs)
    returned = "%r" if len(outputs) == 1 else ", ".join(f"%r#{i}" for i in range(len(outputs)))
    return (
        f"func.func @main({arguments}) -> ({types}) {{\n"
        f'  {left} = "{name}"({values}){properties}{inside} : ({", ".join(inputs[:used])}) -> ({types})\n'
        f"  return {returned} : {types}\n}}\n"
    )


def _samples() -> dict[str, str]:
    rows = [row for row in _ROWS.strip().splitlines()]
    for element, names in _UNARY.items():
        rows += [f"{name} | tensor<2x3x{element}> | | | tensor<2x3x{element}>" for name in names.split()]
    for element, names in _BINARY.items():
        type = f"tensor<2x3x{element}>"
        rows += [f"{name} | {type}; {type} | | | {type}" for name in names.split()]
    for element, names in _SPREAD.items():
        types = f"tensor<3x{element}>; tensor<2x3x{element}> | broadcast_dimensions = array<i64: 1> | | tensor<2x3x{element}>"
        rows += [f"chlo.broadcast_{name} | {types}" for name in names.split()]
    found = {f"{row.partition('|')[0].strip()} {i}": _single(row) for i, row in enumerate(rows)}
    return found | _WHOLE


SAMPLES: dict[str, str] = _samples()
