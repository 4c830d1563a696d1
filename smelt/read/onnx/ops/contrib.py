"""Operators of com.microsoft that exporters and onnxruntime's optimiser write: fused matmuls, norms, activations.

Where the kernels of onnxruntime compute narrow floats in f32 and round once, so do these. Attention is in
`contrib_attention`, quantised operators are in `contrib_quant`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import numpy as np

from smelt.dim import Size, divide_exact
from smelt.dtype import DType, f32, f64, i32, i64
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.emit import axis_of
from smelt.read.onnx.file.tensors import element_number, element_type
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Tensor
from smelt.read.onnx.ops import contrib_attention, contrib_quant  # noqa: F401  each registers its operators
from smelt.read.onnx.ops.constant import range_, trilu
from smelt.read.onnx.ops.index import gather_nd
from smelt.read.onnx.ops.math import (
    celu,
    elu,
    gelu,
    gemm,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    relu,
    selu,
    softmax_over,
    softplus,
    softsign,
    swish,
    thresholded_relu,
)
from smelt.read.onnx.ops.nn import ConvAttributes, channels_back, channels_first, conv, layer_normalization
from smelt.read.onnx.ops.order import unique
from smelt.read.onnx.ops.quant import dequantise, single
from smelt.read.onnx.ops.shape import pad, unsqueeze
from smelt.read.onnx.ops.vision import grid_sample
from smelt.read.onnx.registry import Ints, Sizes, onnx_op
from smelt.shape import Shape

_MS = "com.microsoft"

Function = Callable[[Graph, Value], Value]


def _wide(element: DType) -> DType:
    """The type that sums and functions of an element type are computed in."""
    return f64 if element == f64 else f32


def _widen(g: Graph, *values: Value) -> tuple[Value, ...]:
    return tuple(g.convert(value, _wide(value.shape.element)) for value in values)


def _require(value: Value | None, what: str) -> Value:
    """An input that follows optional ones and is not optional itself."""
    if value is None:
        raise ParseError(f"input {what!r} is missing")
    return value


# ---- activations ----


@onnx_op("Gelu", domain=_MS)
def ms_gelu(g: Graph, X: Value) -> Value:
    return gelu(g, X)


@onnx_op("BiasGelu", domain=_MS)
def bias_gelu(g: Graph, A: Value, B: Value) -> Value:
    return g.convert(gelu(g, g.binary("add", *_widen(g, A, B))), A.shape.element)


@onnx_op("FastGelu", domain=_MS)
def fast_gelu(g: Graph, X: Value, bias: Value | None = None) -> Value:
    whole = X if bias is None else g.binary("add", *_widen(g, X, bias))
    return g.convert(gelu(g, whole, approximate="tanh"), X.shape.element)


@onnx_op("QuickGelu", domain=_MS)
def quick_gelu(g: Graph, X: Value, *, alpha: float = 1.702) -> Value:
    return swish(g, X, alpha=alpha)


@onnx_op("BiasSplitGelu", domain=_MS)
def bias_split_gelu(g: Graph, X: Value, bias: Value) -> Value:
    """The left half of the channels times the activation of the right half."""
    whole = g.binary("add", *_widen(g, X, bias))
    last = whole.shape.rank - 1
    half = divide_exact(whole.shape.sizes[last], 2)
    if half is None:
        raise ShapeError("BiasSplitGelu: an odd number of channels", got=X.shape)
    left, right = g.slice_axis(whole, last, 0, half), g.slice_axis(whole, last, half, half * 2)
    return g.convert(g.binary("multiply", left, gelu(g, right)), X.shape.element)


@onnx_op("BiasAdd", domain=_MS)
def bias_add(g: Graph, X: Value, bias: Value, skip: Value) -> Value:
    x, b, rest = _widen(g, X, bias, skip)
    return g.convert(g.binary("add", g.binary("add", x, b), rest), X.shape.element)


@onnx_op("BiasSoftmax", domain=_MS)
def bias_softmax(g: Graph, data: Value, bias: Value, *, axis: int = 1, is_inner_broadcast: int) -> Value:
    """Both ways to broadcast the bias are NumPy's; the attribute only says which dimensions are 1."""
    total = g.binary("add", *_widen(g, data, bias))
    rank = total.shape.rank
    return g.convert(softmax_over(g, total, tuple(range(axis_of(axis, rank), rank))), data.shape.element)


# ---- matrix multiplication ----


@onnx_op("FusedMatMul", domain=_MS)
def fused_matmul(
    g: Graph,
    A: Value,
    B: Value,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:
    left, right = _transpose_stack(g, A, transA, transBatchA), _transpose_stack(g, B, transB, transBatchB)
    product = g.matmul(left, right, _wide(A.shape.element))
    return g.convert(g.times(product, alpha), A.shape.element)


@onnx_op("TransposeMatMul", domain=_MS)
def transpose_matmul(g: Graph, A: Value, B: Value, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Value:
    return fused_matmul(g, A, B, alpha=alpha, transA=transA, transB=transB)


def _transpose_stack(g: Graph, x: Value, last: int, batch: int) -> Value:
    """A stack of matrices: `batch` says that the rows come first of all, `last` that rows and columns are swapped."""
    rank = x.shape.rank
    if rank < 2:
        return x
    order = list(range(rank))
    if batch and rank > 2:
        order = [*range(1, rank - 1), 0, rank - 1]
    if last:
        order[-2], order[-1] = order[-1], order[-2]
    return g.transpose(x, order)


def _choose(activation: str | None, numbers: Sequence[float | None], what: str) -> Function:
    """The activation that a fused operator ends with; numbers it needs must be there."""

    def number(i: int) -> float:
        found = numbers[i] if i < len(numbers) else None
        if found is None:
            raise ParseError(f"{what}: activation {activation!r} lacks a parameter", expected=f"at least {i + 1}")
        return found

    match activation:
        case None | "":
            return lambda g, x: x
        case "Relu":
            return relu
        case "Tanh":
            return lambda g, x: g.unary("tanh", x)
        case "Sigmoid":
            return lambda g, x: g.unary("logistic", x)
        case "LeakyRelu":
            return lambda g, x: leaky_relu(g, x, alpha=number(0))
        case "HardSigmoid":
            return lambda g, x: hard_sigmoid(g, x, alpha=number(0), beta=number(1))
        case "HardSwish" if what != "FusedGemm":
            return hard_swish
        case "Clip" if what != "FusedGemm":
            return lambda g, x: g.binary("minimum", g.binary("maximum", x, g.like(number(0), x)), g.like(number(1), x))
        case "Elu" if what == "FusedGemm":
            return lambda g, x: elu(g, x, alpha=number(0))
        case "Celu" if what == "FusedGemm":
            return lambda g, x: celu(g, x, alpha=number(0))
        case "Selu" if what == "FusedGemm":
            return lambda g, x: selu(g, x, alpha=number(0), gamma=number(2))
        case "Softplus" if what == "FusedGemm":
            return softplus
        case "Softsign" if what == "FusedGemm":
            return softsign
        case "ThresholdedRelu" if what == "FusedGemm":
            return lambda g, x: thresholded_relu(g, x, alpha=number(0))
        case "ParametricSoftplus" if what == "FusedGemm":
            return lambda g, x: g.times(softplus(g, g.times(x, number(1))), number(0))
        case "ScaledTanh" if what == "FusedGemm":
            return lambda g, x: g.times(g.unary("tanh", g.times(x, number(1))), number(0))
        case _:
            raise UnsupportedError(f"{what}: attribute 'activation'", got=activation)


@onnx_op("FusedGemm", domain=_MS)
def fused_gemm(
    g: Graph,
    A: Value,
    B: Value,
    C: Value | None = None,
    *,
    activation: str | None = None,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    function = _choose(activation, (activation_alpha, activation_beta, activation_gamma), "FusedGemm")
    wide = [None if each is None else _widen(g, each)[0] if each.shape.element.is_float else each for each in (A, B, C)]
    total = gemm(
        g, _require(wide[0], "A"), _require(wide[1], "B"), wide[2], alpha=alpha, beta=beta, transA=transA, transB=transB
    )
    return g.convert(function(g, total), A.shape.element)


@onnx_op("GemmFastGelu", domain=_MS)
def gemm_fast_gelu(g: Graph, X: Value, W: Value, bias: Value | None = None) -> Value:
    product = g.matmul(X, W, _wide(X.shape.element))
    return g.convert(fast_gelu(g, product, bias), X.shape.element)


# ---- convolutions ----


@onnx_op("FusedConv", domain=_MS)
def fused_conv(
    g: Graph,
    X: Value,
    W: Value,
    B: Value | None = None,
    Z: Value | None = None,
    *,
    activation: str | None = None,
    activation_params: tuple[float, ...] = (),
    **window: Unpack[ConvAttributes],
) -> Value:
    """`activation(conv(X, W) + B + Z)`."""
    function = _choose(activation, activation_params, "FusedConv")
    total = conv(
        g,
        X,
        W,
        B,
        **window,
    )
    return function(g, total if Z is None else g.binary("add", total, Z))


@onnx_op("NhwcConv", domain=_MS)
def nhwc_conv(
    g: Graph,
    X: Value,
    W: Value,
    B: Value | None = None,
    **window: Unpack[ConvAttributes],
) -> Value:
    """Channels last in the data and in the kernel, [outputs, space…, inputs]."""
    made = conv(
        g,
        channels_first(g, X),
        channels_first(g, W),
        B,
        **window,
    )
    return channels_back(g, made)


@onnx_op("NhwcFusedConv", domain=_MS)
def nhwc_fused_conv(
    g: Graph,
    X: Value,
    W: Value,
    B: Value | None = None,
    Z: Value | None = None,
    *,
    activation: str | None = None,
    activation_params: tuple[float, ...] = (),
    **window: Unpack[ConvAttributes],
) -> Value:
    """Channels last in the data alone: the kernel is [outputs, inputs, space…]."""
    made = fused_conv(
        g,
        channels_first(g, X),
        W,
        B,
        None if Z is None else channels_first(g, Z),
        activation=activation,
        activation_params=activation_params,
        **window,
    )
    return channels_back(g, made)


# ---- normalisations ----


def _layer_norm(
    g: Graph, x: Value, scale: Value, bias: Value | None, axis: int, epsilon: float
) -> tuple[Value, Value, Value]:
    """The result, the mean and one over the deviation, all of them wide."""
    wide = _wide(x.shape.element)
    return layer_normalization(
        g,
        g.convert(x, wide),
        g.convert(scale, wide),
        None if bias is None else g.convert(bias, wide),
        axis=axis,
        epsilon=epsilon,
        stash_type=element_number(wide),
    )


def _rms_norm(g: Graph, x: Value, scale: Value, axis: int, epsilon: float) -> tuple[Value, Value]:
    """The result and one over the root of the mean square, wide."""
    wide = g.convert(x, _wide(x.shape.element))
    first = axis_of(axis, x.shape.rank)
    square = g.mean(g.binary("multiply", wide, wide), range(first, x.shape.rank), keep=True)
    inverse = g.unary("rsqrt", g.plus(square, epsilon))
    return g.binary("multiply", g.binary("multiply", wide, inverse), g.convert(scale, wide.shape.element)), inverse


@onnx_op("LayerNormalization", since=1)
@onnx_op("LayerNormalization", domain=_MS)
def layer_normalization_1(
    g: Graph,
    X: Value,
    Scale: Value,
    B: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Value, ...]:
    """What onnxruntime knew before opset 17: the result has the scale's type."""
    y, *stash = _layer_norm(g, X, Scale, B, axis, epsilon)
    kept = element_type(stash_type, g.location)
    return g.convert(y, Scale.shape.element), *(g.convert(each, kept) for each in stash)


@onnx_op("SimplifiedLayerNormalization", since=1)
@onnx_op("SimplifiedLayerNormalization", domain=_MS)
def simplified_layer_normalization(
    g: Graph, X: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value, Value]:
    y, inverse = _rms_norm(g, X, scale, axis, epsilon)
    return g.convert(y, scale.shape.element), g.convert(inverse, element_type(stash_type, g.location))


def _sum(g: Graph, input: Value, skip: Value, bias: Value | None) -> Value:
    total = g.binary("add", *_widen(g, input, skip))
    return total if bias is None else g.binary("add", total, *_widen(g, bias))


@onnx_op("SkipLayerNormalization", domain=_MS)
def skip_layer_normalization(
    g: Graph,
    input: Value,
    skip: Value,
    gamma: Value,
    beta: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value, ...]:
    total = _sum(g, input, skip, bias)
    y, mean, inverse = _layer_norm(g, total, gamma, beta, -1, epsilon)
    element = input.shape.element
    return g.convert(y, element), mean, inverse, g.convert(total, element)


@onnx_op("SkipSimplifiedLayerNormalization", domain=_MS)
def skip_simplified_layer_normalization(
    g: Graph, input: Value, skip: Value, gamma: Value, bias: Value | None = None, *, epsilon: float = 1e-12
) -> tuple[Value, ...]:
    if len(g.node.output) > 1 and g.node.output[1]:
        raise UnsupportedError("SkipSimplifiedLayerNormalization: output 'mean', which nothing computes")
    total = _sum(g, input, skip, bias)
    y, inverse = _rms_norm(g, total, gamma, -1, epsilon)
    element = input.shape.element
    return g.convert(y, element), inverse, inverse, g.convert(total, element)


@onnx_op("EmbedLayerNormalization", domain=_MS)
def embed_layer_normalization(
    g: Graph,
    input_ids: Value,
    segment_ids: Value | None = None,
    word_embedding: Value | None = None,
    position_embedding: Value | None = None,
    segment_embedding: Value | None = None,
    gamma: Value | None = None,
    beta: Value | None = None,
    mask: Value | None = None,
    position_ids: Value | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int | None = None,
) -> tuple[Value, Value, Value]:
    """Token, position and segment embeddings, added and normalised; the number of unmasked tokens per row; the sum."""
    words = _require(word_embedding, "word_embedding")
    positions = _require(position_embedding, "position_embedding")
    if (segment_ids is None) != (segment_embedding is None):
        raise ParseError("EmbedLayerNormalization: 'segment_ids' and 'segment_embedding' come together")
    batch, length = input_ids.shape.sizes
    total = _widen(g, g.take_checked(words, input_ids, 0))[0]
    if position_ids is None:
        places = g.slice_axis(positions, 0, 0, length)
    else:
        places = g.take_checked(positions, position_ids, 0)
    total = g.binary("add", total, *_widen(g, places))
    if segment_ids is not None and segment_embedding is not None:
        total = g.binary("add", total, *_widen(g, g.take_checked(segment_embedding, segment_ids, 0)))
    y, _, _ = _layer_norm(g, total, _require(gamma, "gamma"), _require(beta, "beta"), -1, epsilon)
    if mask is None:
        counts = g.full(0, Shape.of(i32, (batch,)))
    else:
        counts = g.sum(g.convert(g.compare(mask, g.like(1, mask), "EQ"), i32), (1,))
    element = words.shape.element
    return g.convert(y, element), counts, g.convert(total, element)


@onnx_op("QEmbedLayerNormalization", domain=_MS)
def q_embed_layer_normalization(
    g: Graph,
    input_ids: Value,
    segment_ids: Value | None = None,
    word_embedding_quant: Value | None = None,
    position_embedding_quant: Value | None = None,
    segment_embedding: Value | None = None,
    gamma_quant: Value | None = None,
    beta_quant: Value | None = None,
    mask: Value | None = None,
    word_embedding_scale: Value | None = None,
    position_embedding_scale: Value | None = None,
    segment_embedding_scale: Value | None = None,
    gamma_scale: Value | None = None,
    beta_scale: Value | None = None,
    word_embedding_zero_point: Value | None = None,
    position_embedding_zero_point: Value | None = None,
    segment_embedding_zero_point: Value | None = None,
    gamma_zero_point: Value | None = None,
    beta_zero_point: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value, Value]:
    def real(x: Value | None, scale: Value | None, zero: Value | None, what: str) -> Value:
        return dequantise(
            g,
            _require(x, what),
            single(g, _require(scale, f"{what}_scale"), f"{what}_scale"),
            single(g, _require(zero, f"{what}_zero_point"), f"{what}_zero_point"),
        )

    segments = None
    if segment_embedding is not None:
        segments = real(segment_embedding, segment_embedding_scale, segment_embedding_zero_point, "segment_embedding")
    y, counts, _ = embed_layer_normalization(
        g,
        input_ids,
        segment_ids,
        real(word_embedding_quant, word_embedding_scale, word_embedding_zero_point, "word_embedding"),
        real(position_embedding_quant, position_embedding_scale, position_embedding_zero_point, "position_embedding"),
        segments,
        real(gamma_quant, gamma_scale, gamma_zero_point, "gamma"),
        real(beta_quant, beta_scale, beta_zero_point, "beta"),
        mask,
        epsilon=epsilon,
    )
    return y, counts


def _group_norm(g: Graph, x: Value, gamma: Value, beta: Value, groups: int, epsilon: float, activation: int) -> Value:
    """Channels first, wide; groups are adjacent."""
    if activation not in (0, 1):
        raise UnsupportedError("GroupNorm: attribute 'activation'", expected="0 or 1", got=activation)
    batch, channels, *space = x.shape.sizes
    each = divide_exact(channels, groups) if groups > 0 else None
    if each is None:
        raise ShapeError("GroupNorm: attribute 'groups' does not divide the channels", expected=channels, got=groups)
    split = g.reshape(x, (batch, groups, each, *space))
    axes = range(2, split.shape.rank)
    centred = g.binary("subtract", split, g.mean(split, axes, keep=True))
    variance = g.mean(g.binary("multiply", centred, centred), axes, keep=True)
    normal = g.reshape(g.binary("multiply", centred, g.unary("rsqrt", g.plus(variance, epsilon))), x.shape.sizes)
    scale, shift = (g.along(each, x.shape.rank, 1) for each in _widen(g, gamma, beta))
    y = g.binary("add", g.binary("multiply", normal, scale), shift)
    return g.binary("multiply", y, g.unary("logistic", y)) if activation else y


@onnx_op("GroupNorm", domain=_MS)
def group_norm(
    g: Graph,
    X: Value,
    gamma: Value,
    beta: Value,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Value:
    (x,) = _widen(g, X)
    x = channels_first(g, x, channels_last)
    y = _group_norm(g, x, gamma, beta, groups, epsilon, activation)
    return g.convert(channels_back(g, y, channels_last), X.shape.element)


@onnx_op("SkipGroupNorm", domain=_MS)
def skip_group_norm(
    g: Graph,
    X: Value,
    gamma: Value,
    beta: Value,
    skip: Value,
    bias: Value | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> tuple[Value, Value]:
    if not channels_last:
        raise UnsupportedError("SkipGroupNorm: attribute 'channels_last' = 0")
    if skip.shape.rank == 2:
        skip = g.expand_dims(skip, range(1, X.shape.rank - 1))
    total = _sum(g, X, skip, bias)
    y = channels_back(g, _group_norm(g, channels_first(g, total), gamma, beta, groups, epsilon, activation))
    return g.convert(y, X.shape.element), g.convert(total, X.shape.element)


# ---- what ONNX has under the same or another name ----


@onnx_op("Trilu", domain=_MS)
def ms_trilu(g: Graph, X: Value, k: Value | None = None, *, upper: int = 1) -> Value:
    return trilu(g, X, k, upper=upper)


@onnx_op("ExpandDims", domain=_MS)
def expand_dims(g: Graph, X: Tensor, axis: Ints) -> Item | Value:
    if len(axis) != 1:
        raise ShapeError("ExpandDims: 'axis' is one number", got=len(axis))
    return unsqueeze(g, X, axis)


@onnx_op("Unique", domain=_MS)
def ms_unique(g: Graph, x: Value) -> tuple[Value, ...]:
    if x.shape.rank != 1:
        raise ShapeError("Unique takes a vector", got=x.shape)
    values, _, inverse, counts = unique(g, x, sorted=0)
    return values, inverse, counts


@onnx_op("GatherND", domain=_MS)
def ms_gather_nd(g: Graph, data: Value, indices: Tensor) -> Value:
    return gather_nd(g, data, indices)


@onnx_op("Range", domain=_MS)
def ms_range(g: Graph, start: Tensor, limit: Tensor, delta: Tensor | None = None) -> Item | Value:
    return range_(g, start, limit, delta or Tensor.constant(np.ones((), start.element.numpy)))


@onnx_op("Pad", domain=_MS)
def ms_pad(g: Graph, data: Tensor, pads: Sizes, value: Value | None = None, *, mode: str = "constant") -> Value:
    return pad(g, data, pads, value, mode=mode)


@onnx_op("GridSample", domain=_MS)
def ms_grid_sample(
    g: Graph, X: Value, Grid: Value, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Value:
    return grid_sample(g, X, Grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)


@onnx_op("CDist", domain=_MS)
def cdist(g: Graph, A: Value, B: Value, *, metric: str = "sqeuclidean") -> Value:
    if metric not in ("sqeuclidean", "euclidean"):
        raise UnsupportedError("CDist: attribute 'metric'", expected="sqeuclidean or euclidean", got=metric)
    difference = g.binary("subtract", g.expand_dims(A, (1,)), g.expand_dims(B, (0,)))
    squares = g.sum(g.binary("multiply", difference, difference), (2,))
    return squares if metric == "sqeuclidean" else g.unary("sqrt", squares)


@onnx_op("Inverse", domain=_MS)
def inverse(g: Graph, X: Value) -> Value:
    """Gauss and Jordan with pivots, unrolled over the columns, on [X | 1]."""
    *batch, rows, columns = X.shape.sizes
    if not isinstance(rows, int) or rows != columns or rows > 64:
        raise UnsupportedError("Inverse of matrices of this size", expected="square, at most 64", got=X.shape)
    n, rank = rows, X.shape.rank
    (x,) = _widen(g, X)
    sizes: tuple[Size, ...] = (*batch, n, n)
    one = g.compare(g.iota(i64, sizes, rank - 2), g.iota(i64, sizes, rank - 1), "EQ")
    x = g.concat([x, g.convert(one, x.shape.element)], rank - 1)
    places = g.iota(i64, (*batch, n, 1), rank - 2)
    for k in range(n):
        column = g.unary("abs", g.slice_axis(x, rank - 1, k, k + 1))
        open_ = g.select(g.compare(places, g.like(k, places), "GE"), column, g.like(-1, column))
        best = g.compare(open_, g.broadcast_to(g.max(open_, (rank - 2,), keep=True), open_.shape.sizes), "EQ")
        first = g.min(g.select(best, places, g.like(n, places)), (rank - 2,), keep=True)
        chosen = g.sum(
            g.choose(g.compare(places, g.broadcast_to(first, places.shape.sizes), "EQ"), x, g.like(0, x)),
            (rank - 2,),
            keep=True,
        )
        top = g.slice_axis(x, rank - 2, k, k + 1)
        x = g.choose(
            g.compare(places, g.broadcast_to(first, places.shape.sizes), "EQ"), g.broadcast_to(top, x.shape.sizes), x
        )
        row = g.binary("divide", chosen, g.slice_axis(chosen, rank - 1, k, k + 1))
        reduced = g.binary("subtract", x, g.binary("multiply", g.slice_axis(x, rank - 1, k, k + 1), row))
        x = g.choose(g.compare(places, g.like(k, places), "EQ"), g.broadcast_to(row, x.shape.sizes), reduced)
    return g.convert(g.slice_axis(x, rank - 1, n, 2 * n), X.shape.element)
