# Generated from the op table: python -m tests.builder_stub

from collections.abc import Sequence
from typing import Any, overload

from smelt.dim import Size
from smelt.ir.core import Op, Region, Type, Value

class OpMethods:
    def op(
        self,
        name: str,
        /,
        *operands: Value,
        result: Type | Sequence[Type] | None = None,
        regions: Sequence[Region] = (),
        **attrs: Any,
    ) -> Op: ...
    def abs(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def add(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def after_all(self, *inputs: Value, result: Type | None = None) -> Value: ...
    def all_gather(
        self,
        *operands: Value,
        all_gather_dim: int,
        replica_groups: Any,
        channel_handle: Any = None,
        use_global_device_ids: Any = None,
        result: Type | Sequence[Type] | None = None,
    ) -> Any: ...
    def all_reduce(
        self,
        *operands: Value,
        replica_groups: Any,
        channel_handle: Any = None,
        use_global_device_ids: Any = None,
        result: Type | Sequence[Type] | None = None,
        regions: Sequence[Region],
    ) -> Any: ...
    def all_to_all(
        self,
        *operands: Value,
        split_dimension: int,
        concat_dimension: int,
        split_count: int,
        replica_groups: Any,
        channel_handle: Any = None,
        result: Type | Sequence[Type] | None = None,
    ) -> Any: ...
    def and_(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def async_done(self, future: Value, /, *, result: Type | Sequence[Type] | None = None) -> Any: ...
    def async_start(self, *operands: Value, result: Type | None = None, regions: Sequence[Region]) -> Value: ...
    def atan2(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def batch_norm_grad(
        self,
        operand: Value,
        scale: Value,
        mean: Value,
        variance: Value,
        grad_output: Value,
        /,
        *,
        epsilon: float,
        feature_index: int,
        result: Type | Sequence[Type] | None = None,
    ) -> tuple[Value, Value, Value]: ...
    def batch_norm_inference(
        self,
        operand: Value,
        scale: Value,
        offset: Value,
        mean: Value,
        variance: Value,
        /,
        *,
        epsilon: float,
        feature_index: int,
        result: Type | None = None,
    ) -> Value: ...
    def batch_norm_training(
        self,
        operand: Value,
        scale: Value,
        offset: Value,
        /,
        *,
        epsilon: float,
        feature_index: int,
        result: Type | Sequence[Type] | None = None,
    ) -> tuple[Value, Value, Value]: ...
    def bitcast_convert(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def broadcast(
        self, operand: Value, /, *, broadcast_sizes: tuple[Size, ...], result: Type | None = None
    ) -> Value: ...
    def broadcast_in_dim(
        self, operand: Value, /, *, broadcast_dimensions: tuple[Size, ...], result: Type | None = None
    ) -> Value: ...
    def case(
        self, index: Value, /, *, result: Type | Sequence[Type] | None = None, regions: Sequence[Region]
    ) -> Any: ...
    def cbrt(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    def ceil(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def cholesky(self, a: Value, /, *, lower: bool | None = None, result: Type | None = None) -> Value: ...
    def clamp(self, min: Value, operand: Value, max: Value, /, *, result: Type | None = None) -> Value: ...
    def collective_broadcast(
        self,
        *operands: Value,
        replica_groups: Any,
        channel_handle: Any = None,
        has_dynamic_root: Any = None,
        result: Type | Sequence[Type] | None = None,
    ) -> Any: ...
    def collective_permute(
        self, operand: Value, /, *, source_target_pairs: Any, channel_handle: Any = None, result: Type | None = None
    ) -> Value: ...
    def collective_reduce(
        self,
        *operands: Value,
        replica_groups: Any,
        channel_handle: Any = None,
        use_global_device_ids: Any = None,
        has_dynamic_root: Any = None,
        result: Type | Sequence[Type] | None = None,
        regions: Sequence[Region],
    ) -> Any: ...
    def compare(
        self,
        lhs: Value,
        rhs: Value,
        /,
        *,
        comparison_direction: Any,
        compare_type: Any = None,
        result: Type | None = None,
    ) -> Value: ...
    def complex(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def composite(
        self,
        *inputs: Value,
        name: str,
        composite_attributes: Any = None,
        decomposition: Any,
        version: int | None = None,
        result: Type | Sequence[Type] | None = None,
    ) -> Any: ...
    def concatenate(self, *inputs: Value, dimension: int, result: Type | None = None) -> Value: ...
    def convert(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def convolution(
        self,
        lhs: Value,
        rhs: Value,
        /,
        *,
        window_strides: tuple[Size, ...] | None = None,
        padding: Any = None,
        lhs_dilation: tuple[Size, ...] | None = None,
        rhs_dilation: tuple[Size, ...] | None = None,
        window_reversal: Any = None,
        dimension_numbers: Any,
        feature_group_count: int,
        batch_group_count: int,
        precision_config: Any = None,
        result: Type | None = None,
    ) -> Value: ...
    def cosine(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    def count_leading_zeros(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def create_token(self, *, result: Type | None = None) -> Value: ...
    def custom_call(
        self,
        *inputs: Value,
        call_target_name: str,
        has_side_effect: bool | None = None,
        backend_config: Any = None,
        api_version: int | None = None,
        called_computations: Any = None,
        operand_layouts: Any = None,
        result_layouts: Any = None,
        output_operand_aliases: Any = None,
        result: Type | Sequence[Type] | None = None,
        **attrs: Any,
    ) -> Any: ...
    def divide(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def dot(self, lhs: Value, rhs: Value, /, *, precision_config: Any = None, result: Type | None = None) -> Value: ...
    def dot_general(
        self,
        lhs: Value,
        rhs: Value,
        /,
        *,
        dot_dimension_numbers: Any,
        precision_config: Any = None,
        algorithm: Any = None,
        result: Type | None = None,
    ) -> Value: ...
    def dynamic_broadcast_in_dim(
        self,
        operand: Value,
        output_dimensions: Value,
        /,
        *,
        broadcast_dimensions: tuple[Size, ...],
        known_expanding_dimensions: tuple[Size, ...] | None = None,
        known_nonexpanding_dimensions: tuple[Size, ...] | None = None,
        result: Type | None = None,
    ) -> Value: ...
    def dynamic_conv(
        self,
        lhs: Value,
        rhs: Value,
        padding: Value,
        /,
        *,
        window_strides: tuple[Size, ...] | None = None,
        lhs_dilation: tuple[Size, ...] | None = None,
        rhs_dilation: tuple[Size, ...] | None = None,
        window_reversal: Any = None,
        dimension_numbers: Any,
        feature_group_count: int,
        batch_group_count: int,
        precision_config: Any = None,
        result: Type | None = None,
    ) -> Value: ...
    def dynamic_gather(
        self,
        operand: Value,
        start_indices: Value,
        slice_sizes: Value,
        /,
        *,
        dimension_numbers: Any,
        indices_are_sorted: bool | None = None,
        result: Type | None = None,
    ) -> Value: ...
    def dynamic_iota(self, output_shape: Value, /, *, iota_dimension: int, result: Type | None = None) -> Value: ...
    def dynamic_pad(
        self,
        operand: Value,
        padding_value: Value,
        edge_padding_low: Value,
        edge_padding_high: Value,
        interior_padding: Value,
        /,
        *,
        result: Type | None = None,
    ) -> Value: ...
    def dynamic_reshape(self, operand: Value, output_shape: Value, /, *, result: Type | None = None) -> Value: ...
    def dynamic_slice(
        self, operand: Value, /, *start_indices: Value, slice_sizes: tuple[Size, ...], result: Type | None = None
    ) -> Value: ...
    def dynamic_update_slice(
        self, operand: Value, update: Value, /, *start_indices: Value, result: Type | None = None
    ) -> Value: ...
    def einsum(self, lhs: Value, rhs: Value, /, *, einsum_config: str, result: Type | None = None) -> Value: ...
    def exponential(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    def exponential_minus_one(
        self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None
    ) -> Value: ...
    def fft(
        self, operand: Value, /, *, fft_type: Any, fft_length: tuple[Size, ...], result: Type | None = None
    ) -> Value: ...
    def floor(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def gather(
        self,
        operand: Value,
        start_indices: Value,
        /,
        *,
        dimension_numbers: Any,
        slice_sizes: tuple[Size, ...],
        indices_are_sorted: bool | None = None,
        result: Type | None = None,
    ) -> Value: ...
    def get_dimension_size(self, operand: Value, /, *, dimension: int, result: Type | None = None) -> Value: ...
    def get_tuple_element(self, operand: Value, /, *, index: int, result: Type | None = None) -> Value: ...
    def if_(self, pred: Value, /, *, result: Type | Sequence[Type] | None = None, regions: Sequence[Region]) -> Any: ...
    def imag(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def infeed(
        self,
        token: Value,
        /,
        *,
        infeed_config: str | None = None,
        layout: Any = None,
        result: Type | Sequence[Type] | None = None,
    ) -> Any: ...
    def iota(self, *, iota_dimension: int, result: Type | None = None) -> Value: ...
    def is_finite(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def log(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    def log_plus_one(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    def logistic(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    def map(
        self, *inputs: Value, dimensions: tuple[Size, ...], result: Type | None = None, regions: Sequence[Region]
    ) -> Value: ...
    def maximum(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def minimum(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def multiply(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def negate(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def not_(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    @overload
    def optimization_barrier(self, x0: Value, /, *, result: Type | None = None) -> Value: ...
    @overload
    def optimization_barrier(self, *operand: Value, result: Type | Sequence[Type] | None = None) -> Any: ...
    def or_(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def outfeed(
        self, *operands: Value, outfeed_config: str | None = None, result: Type | Sequence[Type] | None = None
    ) -> Any: ...
    def pad(
        self,
        operand: Value,
        padding_value: Value,
        /,
        *,
        edge_padding_low: tuple[Size, ...],
        edge_padding_high: tuple[Size, ...],
        interior_padding: tuple[Size, ...],
        result: Type | None = None,
    ) -> Value: ...
    def partition_id(self, *, result: Type | None = None) -> Value: ...
    def popcnt(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def power(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def real(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def real_dynamic_slice(
        self,
        operand: Value,
        start_indices: Value,
        limit_indices: Value,
        strides: Value,
        /,
        *,
        result: Type | None = None,
    ) -> Value: ...
    def recv(
        self,
        token: Value,
        /,
        *,
        channel_handle: Any,
        is_host_transfer: bool | None = None,
        source_target_pairs: Any = None,
        result: Type | Sequence[Type] | None = None,
    ) -> Any: ...
    @overload
    def reduce(
        self,
        x0: Value,
        x1: Value,
        /,
        *,
        dimensions: tuple[Size, ...],
        result: Type | None = None,
        regions: Sequence[Region],
    ) -> Value: ...
    @overload
    def reduce(
        self,
        *inputs: Value,
        dimensions: tuple[Size, ...],
        result: Type | Sequence[Type] | None = None,
        regions: Sequence[Region],
    ) -> Any: ...
    def reduce_precision(
        self, operand: Value, /, *, exponent_bits: int, mantissa_bits: int, result: Type | None = None
    ) -> Value: ...
    def reduce_scatter(
        self,
        operand: Value,
        /,
        *,
        scatter_dimension: int,
        replica_groups: Any,
        channel_handle: Any = None,
        use_global_device_ids: Any = None,
        result: Type | None = None,
        regions: Sequence[Region],
    ) -> Value: ...
    @overload
    def reduce_window(
        self,
        x0: Value,
        x1: Value,
        /,
        *,
        window_dimensions: tuple[Size, ...],
        window_strides: tuple[Size, ...] | None = None,
        padding: Any = None,
        base_dilations: tuple[Size, ...] | None = None,
        window_dilations: tuple[Size, ...] | None = None,
        result: Type | None = None,
        regions: Sequence[Region],
    ) -> Value: ...
    @overload
    def reduce_window(
        self,
        *inputs: Value,
        window_dimensions: tuple[Size, ...],
        window_strides: tuple[Size, ...] | None = None,
        padding: Any = None,
        base_dilations: tuple[Size, ...] | None = None,
        window_dilations: tuple[Size, ...] | None = None,
        result: Type | Sequence[Type] | None = None,
        regions: Sequence[Region],
    ) -> Any: ...
    def remainder(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def replica_id(self, *, result: Type | None = None) -> Value: ...
    def reshape(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def reverse(self, operand: Value, /, *, dimensions: tuple[Size, ...], result: Type | None = None) -> Value: ...
    def rng(
        self, a: Value, b: Value, shape: Value, /, *, rng_distribution: Any, result: Type | None = None
    ) -> Value: ...
    def rng_bit_generator(
        self, initial_state: Value, /, *, rng_algorithm: Any, result: Type | Sequence[Type] | None = None
    ) -> tuple[Value, Value]: ...
    def round_nearest_afz(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def round_nearest_even(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def rsqrt(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    @overload
    def scatter(
        self,
        x0: Value,
        x1: Value,
        x2: Value,
        /,
        *,
        scatter_dimension_numbers: Any,
        indices_are_sorted: bool | None = None,
        unique_indices: bool | None = None,
        result: Type | None = None,
        regions: Sequence[Region],
    ) -> Value: ...
    @overload
    def scatter(
        self,
        *operands: Value,
        scatter_dimension_numbers: Any,
        indices_are_sorted: bool | None = None,
        unique_indices: bool | None = None,
        result: Type | Sequence[Type] | None = None,
        regions: Sequence[Region],
    ) -> Any: ...
    def select(self, pred: Value, on_true: Value, on_false: Value, /, *, result: Type | None = None) -> Value: ...
    def select_and_scatter(
        self,
        operand: Value,
        source: Value,
        init_value: Value,
        /,
        *,
        window_dimensions: tuple[Size, ...],
        window_strides: tuple[Size, ...] | None = None,
        padding: Any = None,
        result: Type | None = None,
        regions: Sequence[Region],
    ) -> Value: ...
    def send(
        self,
        *operands: Value,
        channel_handle: Any,
        is_host_transfer: bool | None = None,
        source_target_pairs: Any = None,
        result: Type | Sequence[Type] | None = None,
    ) -> Any: ...
    def set_dimension_size(
        self, operand: Value, size: Value, /, *, dimension: int, result: Type | None = None
    ) -> Value: ...
    def shift_left(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def shift_right_arithmetic(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def shift_right_logical(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def sign(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def sine(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    def slice(
        self,
        operand: Value,
        /,
        *,
        start_indices: tuple[Size, ...],
        limit_indices: tuple[Size, ...],
        strides: tuple[Size, ...],
        result: Type | None = None,
    ) -> Value: ...
    @overload
    def sort(
        self,
        x0: Value,
        /,
        *,
        dimension: int | None = None,
        is_stable: bool | None = None,
        result: Type | None = None,
        regions: Sequence[Region],
    ) -> Value: ...
    @overload
    def sort(
        self,
        *inputs: Value,
        dimension: int | None = None,
        is_stable: bool | None = None,
        result: Type | Sequence[Type] | None = None,
        regions: Sequence[Region],
    ) -> Any: ...
    def sqrt(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    def subtract(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
    def tan(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    def tanh(self, operand: Value, /, *, result_accuracy: Any = None, result: Type | None = None) -> Value: ...
    def torch_index_select(
        self, operand: Value, index: Value, /, *, dim: int, batch_dims: int, result: Type | None = None
    ) -> Value: ...
    def transpose(self, operand: Value, /, *, permutation: tuple[Size, ...], result: Type | None = None) -> Value: ...
    def triangular_solve(
        self,
        a: Value,
        b: Value,
        /,
        *,
        left_side: bool,
        lower: bool,
        unit_diagonal: bool,
        transpose_a: Any,
        result: Type | None = None,
    ) -> Value: ...
    def tuple(self, *val: Value, result: Type | None = None) -> Value: ...
    def unary_einsum(self, operand: Value, /, *, einsum_config: str, result: Type | None = None) -> Value: ...
    def uniform_dequantize(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def uniform_quantize(self, operand: Value, /, *, result: Type | None = None) -> Value: ...
    def while_(
        self, *operand: Value, result: Type | Sequence[Type] | None = None, regions: Sequence[Region]
    ) -> Any: ...
    def xor(self, lhs: Value, rhs: Value, /, *, result: Type | None = None) -> Value: ...
