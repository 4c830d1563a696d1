"""Attention of com.microsoft: over merged weights (quantised too), over heads, over groups of heads with a cache.

Every node becomes the same few ops, `attend`, on [batch, heads, length, size]; what differs is where queries, keys and
values come from and which keys a query may see. Scores and sums are f32 whatever the model's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from smelt.dim import Size, divide_exact, maximum
from smelt.dtype import f32, i64
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.attributes import GatherDims
from smelt.ir.core import Value
from smelt.read.onnx.emit import greatest_finite
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Tensor
from smelt.read.onnx.ops.contrib_quant import matmul_integer_to_float
from smelt.read.onnx.registry import onnx_op
from smelt.shape import Shape

_MS = "com.microsoft"
_FILTER = -10000.0  # what is added to the score of a key that is padding


# ---- heads ----


def _heads(g: Graph, x: Value, heads: int) -> Value:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, hidden = x.shape.sizes
    size = divide_exact(hidden, heads) if heads > 0 else None
    if size is None:
        raise ShapeError("the number of heads does not divide the hidden size", expected=hidden, got=heads)
    return g.transpose(g.reshape(x, (batch, length, heads, size)), (0, 2, 1, 3))


def _merge_heads(g: Graph, x: Value) -> Value:
    """[batch, heads, length, size] as [batch, length, heads * size]."""
    batch, heads, length, size = x.shape.sizes
    return g.reshape(g.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


def _parts(g: Graph, x: Value, sizes: Sequence[Size]) -> list[Value]:
    """Slices of these sizes along the last dimension."""
    whole, total = x.shape.sizes[-1], sum(sizes[1:], sizes[0])
    if isinstance(total, int) and isinstance(whole, int) and total != whole:
        raise ShapeError("queries, keys and values do not make up the whole", expected=x.shape, got=list(sizes))
    found = []
    at: Size = 0
    for size in sizes:
        found.append(g.slice_axis(x, x.shape.rank - 1, at, at + size))
        at = at + size
    return found


# ---- the core ----


def _scores(g: Graph, q: Value, k: Value, scale: float | None) -> Value:
    """The attention scores: f32 [batch, heads, queries, keys]."""
    size = q.shape.sizes[-1]
    if not isinstance(size, int):
        raise UnsupportedError("attention over heads whose size is not fixed", got=q.shape)
    factor = scale if scale else 1 / sqrt(size)
    return g.times(g.dot(g.convert(q, f32), g.convert(k, f32), ((3,), (3,)), ((0, 1), (0, 1))), factor)


def _weights(g: Graph, scores: Value, sink: Value | None = None) -> Value:
    """Softmax over the keys; a sink is one more score without a value."""
    most = g.max(scores, (3,), keep=True)
    if sink is not None:
        most = g.binary("maximum", most, sink)
    powers = g.unary("exponential", g.binary("subtract", scores, most))
    total = g.sum(powers, (3,), keep=True)
    if sink is not None:
        total = g.binary("add", total, g.unary("exponential", g.binary("subtract", sink, most)))
    return g.binary("divide", powers, total)


def _values(g: Graph, weights: Value, v: Value) -> Value:
    return g.dot(weights, g.convert(v, f32), ((3,), (2,)), ((0, 1), (0, 1)))


def _causal(g: Graph, queries: Size, keys: Size, past: Size) -> Value:
    """Whether a key is no later than a query, [queries, keys]."""
    rows, columns = (g.iota(i64, (queries, keys), axis) for axis in (0, 1))
    return g.compare(columns, g.binary("add", rows, g.size(past)), "LE")


def _mask_scores(g: Graph, scores: Value, seen: Value) -> Value:
    """Scores of keys that must not be seen become the lowest number: a finite one, so that no row gives nan."""
    return g.choose(seen, scores, g.like(-greatest_finite(f32), scores))


def _padding(g: Graph, mask: Value, batch: Size, keys: Size, fill: float) -> Value:
    """What a mask adds to the scores, [batch, 1, queries or 1, keys].

    A matrix or a stack of them holds 1 for keys that count; a vector holds how many do, for every row, and may go on
    with where they begin.
    """
    rank = mask.shape.rank
    if rank in (2, 3):
        kept = g.compare(mask, g.like(0, mask), "GT")
        kept = g.expand_dims(kept, (1, 2) if rank == 2 else (1,))
    elif rank == 1 and mask.shape.sizes[0] in (batch, 2 * batch):
        places = g.iota(mask.shape.element, (batch, keys), 1)
        kept = g.compare(places, g.broadcast_in_dim(g.slice_axis(mask, 0, 0, batch), (batch, keys), (0,)), "LT")
        if mask.shape.sizes[0] != batch:
            starts = g.broadcast_in_dim(g.slice_axis(mask, 0, batch, batch * 2), (batch, keys), (0,))
            kept = g.binary("and", kept, g.compare(places, starts, "GE"))
        kept = g.expand_dims(kept, (1, 2))
    else:
        raise UnsupportedError("an attention mask of this shape", got=mask.shape)
    shape = Shape.of(f32, kept.shape.sizes)
    return g.select(kept, g.full(0, shape), g.full(fill, shape))


def attend(
    g: Graph,
    q: Value,
    k: Value,
    v: Value,
    *,
    scale: float | None,
    mask: Value | None,
    bias: Value | None,
    fill: float | None,
    past: Size | None,
) -> tuple[Value, Value]:
    """Attention over [batch, heads, length, size]: the result in f32, and the scores before the softmax.

    `past` is how many keys come before the first query where queries see no later key, else None.
    """
    scores = _scores(g, q, k, scale)
    batch, _, queries, keys = scores.shape.sizes
    if bias is not None:
        scores = g.binary("add", scores, g.convert(bias, f32))
    if mask is not None:
        scores = g.binary("add", scores, _padding(g, mask, batch, keys, _FILTER if fill is None else fill))
    if past is not None:
        scores = _mask_scores(g, scores, _causal(g, queries, keys, past))
    return _values(g, _weights(g, scores), v), scores


# ---- merged weights ----


def _after(g: Graph, past: Value, k: Value, v: Value) -> tuple[Value, Value, Value]:
    """Keys and values behind those of a past [2, batch, heads, length, size], and both together."""
    old = [g.reshape(g.slice_axis(past, 0, i, i + 1), past.shape.sizes[1:]) for i in (0, 1)]
    keys, values = g.concat([old[0], k], 2), g.concat([old[1], v], 2)
    return keys, values, _pair(g, keys, values)


def _pair(g: Graph, k: Value, v: Value) -> Value:
    return g.concat([g.expand_dims(k, (0,)), g.expand_dims(v, (0,))], 0)


def _attend_packed_qkv(
    g: Graph,
    projected: Value,
    sizes: Sequence[Size],
    heads: int,
    past: Value | None,
    *,
    scale: float | None,
    mask: Value | None,
    bias: Value | None,
    fill: float | None,
    unidirectional: int,
) -> tuple[Value, ...]:
    """Attention of one projection that holds queries, keys and values side by side."""
    q, k, v = (_heads(g, part, heads) for part in _parts(g, projected, sizes))
    before: Size = 0
    present = None
    if past is not None:
        before = past.shape.sizes[3]
        k, v, present = _after(g, past, k, v)
    elif len(g.node.output) > 1 and g.node.output[1]:
        present = _pair(g, k, v)
    y, _ = attend(g, q, k, v, scale=scale, mask=mask, bias=bias, fill=fill, past=before if unidirectional else None)
    result = g.convert(_merge_heads(g, y), projected.shape.element)
    return (result,) if present is None else (result, present)


def _thirds(size: Size) -> list[Size]:
    third = divide_exact(size, 3)
    if third is None:
        raise ShapeError("queries, keys and values of one size", expected="a multiple of 3", got=size)
    return [third] * 3


@onnx_op("Attention", domain=_MS)
def attention(
    g: Graph,
    input: Value,
    weights: Value,
    bias: Value | None = None,
    mask_index: Value | None = None,
    past: Value | None = None,
    attention_bias: Value | None = None,
    past_sequence_length: Value | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float | None = None,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Value, ...]:
    if do_rotary or rotary_embedding_dim:
        raise UnsupportedError("Attention: attributes 'do_rotary' and 'rotary_embedding_dim'")
    if past_present_share_buffer or past_sequence_length is not None:
        raise UnsupportedError("Attention: attribute 'past_present_share_buffer' and input 'past_sequence_length'")
    projected = g.matmul(g.convert(input, f32), g.convert(weights, f32))
    if bias is not None:
        projected = g.binary("add", projected, g.convert(bias, f32))
    sizes: Sequence[Size] = qkv_hidden_sizes or _thirds(weights.shape.sizes[-1])
    if len(sizes) != 3:
        raise ParseError("Attention: attribute 'qkv_hidden_sizes'", expected="3 numbers", got=list(sizes))
    if past is not None:
        past = g.convert(past, f32)
    found = _attend_packed_qkv(
        g,
        projected,
        sizes,
        num_heads,
        past,
        scale=scale,
        mask=mask_index,
        bias=attention_bias,
        fill=mask_filter_value,
        unidirectional=unidirectional,
    )
    return tuple(g.convert(each, input.shape.element) for each in found)


@onnx_op("QAttention", domain=_MS)
def q_attention(
    g: Graph,
    input: Value,
    weight: Value,
    bias: Value,
    input_scale: Value,
    weight_scale: Value,
    mask_index: Value | None = None,
    input_zero_point: Value | None = None,
    weight_zero_point: Value | None = None,
    past: Value | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float | None = None,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Value, ...]:
    if do_rotary:
        raise UnsupportedError("QAttention: attribute 'do_rotary'")
    if past_present_share_buffer:
        raise UnsupportedError("QAttention: attribute 'past_present_share_buffer'")
    projected = matmul_integer_to_float(
        g, input, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias
    )
    return _attend_packed_qkv(
        g,
        projected,
        _thirds(weight.shape.sizes[-1]),
        num_heads,
        past,
        scale=scale,
        mask=mask_index,
        bias=None,
        fill=mask_filter_value,
        unidirectional=unidirectional,
    )


# ---- over heads ----


def _unpack_heads(g: Graph, x: Value, count: int) -> list[Value]:
    """[batch, length, heads, count, size] as `count` tensors [batch, heads, length, size]."""
    batch, length, heads, many, size = x.shape.sizes
    if many != count:
        raise ShapeError("packed queries, keys and values", expected=count, got=x.shape)
    taken = [g.reshape(g.slice_axis(x, 3, i, i + 1), (batch, length, heads, size)) for i in range(count)]
    return [g.transpose(each, (0, 2, 1, 3)) for each in taken]


def _add_head_bias(g: Graph, x: Value, bias: Value | None) -> Value:
    """A bias [heads * size] added to [batch, heads, length, size]."""
    if bias is None:
        return x
    _, heads, _, size = x.shape.sizes
    return g.binary("add", x, g.reshape(bias, (heads, 1, size)))


@onnx_op("MultiHeadAttention", domain=_MS)
def multi_head_attention(
    g: Graph,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    bias: Value | None = None,
    key_padding_mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_sequence_length: Value | None = None,
    cache_indirection: Value | None = None,
    *,
    mask_filter_value: float | None = None,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Value, ...]:
    if past_sequence_length is not None or cache_indirection is not None:
        raise UnsupportedError("MultiHeadAttention: inputs 'past_sequence_length' and 'cache_indirection'")
    if len(g.node.output) > 3 and g.node.output[3]:
        raise UnsupportedError("MultiHeadAttention: output 'qk'")
    if (past_key is None) != (past_value is None):
        raise ParseError("MultiHeadAttention: 'past_key' and 'past_value' come together")
    q, k, v = _projections(g, query, key, value, num_heads)
    if bias is not None:
        sizes = [x.shape.sizes[1] * x.shape.sizes[3] for x in (q, k, v)]
        own = _parts(g, bias, sizes)
        projected = key is None or key.shape.rank != 4  # keys and values of another step have had their bias
        q = _add_head_bias(g, q, own[0])
        k, v = (_add_head_bias(g, k, own[1]), _add_head_bias(g, v, own[2])) if projected else (k, v)
    before: Size = 0
    if past_key is not None and past_value is not None:
        before = past_key.shape.sizes[2]
        k, v = g.concat([past_key, k], 2), g.concat([past_value, v], 2)
    y, _ = attend(
        g,
        q,
        k,
        v,
        scale=scale,
        mask=key_padding_mask,
        bias=attention_bias,
        fill=mask_filter_value,
        past=before if unidirectional else None,
    )
    return g.convert(_merge_heads(g, y), query.shape.element), k, v


def _projections(
    g: Graph, query: Value, key: Value | None, value: Value | None, heads: int
) -> tuple[Value, Value, Value]:
    """Queries, keys and values by heads, however they are packed."""
    if query.shape.rank == 5:
        if key is not None or value is not None:
            raise ParseError("MultiHeadAttention: packed queries come with keys and values inside", got=query.shape)
        q, k, v = _unpack_heads(g, query, 3)
        return q, k, v
    if query.shape.rank != 3 or key is None:
        raise UnsupportedError("MultiHeadAttention: queries of this shape without keys", got=query.shape)
    q = _heads(g, query, heads)
    if key.shape.rank == 5:
        if value is not None:
            raise ParseError("MultiHeadAttention: packed keys come with values inside", got=key.shape)
        k, v = _unpack_heads(g, key, 2)
        return q, k, v
    if value is None:
        raise ParseError("MultiHeadAttention: input 'value' is missing")
    if key.shape.rank == 4:
        return q, key, value
    return q, _heads(g, key, heads), _heads(g, value, heads)


# ---- rotary positions ----


def _rotate(g: Graph, x: Value, cosines: Value, sines: Value, interleaved: int) -> Value:
    """Rotary embedding of [batch, heads, length, size] by pairs of elements; the rest of an axis is unchanged."""
    *lead, size = x.shape.sizes
    half = cosines.shape.sizes[-1]
    turned = g.slice_axis(x, 3, 0, half * 2)
    if interleaved:
        pairs = g.reshape(turned, (*lead, half, 2))
        left, right = (g.reshape(g.slice_axis(pairs, 4, i, i + 1), (*lead, half)) for i in (0, 1))
    else:
        left, right = g.slice_axis(turned, 3, 0, half), g.slice_axis(turned, 3, half, half * 2)
    one = g.binary("subtract", g.binary("multiply", left, cosines), g.binary("multiply", right, sines))
    two = g.binary("add", g.binary("multiply", left, sines), g.binary("multiply", right, cosines))
    if interleaved:
        both = g.reshape(g.concat([g.expand_dims(each, (4,)) for each in (one, two)], 4), (*lead, half * 2))
    else:
        both = g.concat([one, two], 3)
    return both if half * 2 == size else g.concat([both, g.slice_axis(x, 3, half * 2, size)], 3)


def _tables(g: Graph, cosines: Value, sines: Value, places: Value) -> tuple[Value, Value]:
    """Rows of the tables for positions [batch, length], as [batch, 1, length, half]."""
    found = (g.expand_dims(g.convert(g.take_checked(table, places, 0), f32), (1,)) for table in (cosines, sines))
    left, right = found
    return left, right


@onnx_op("RotaryEmbedding", domain=_MS)
def rotary_embedding(
    g: Graph,
    input: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:
    if is_packed_batching:
        raise UnsupportedError("RotaryEmbedding: attribute 'is_packed_batching'")
    if scale != 1:
        raise UnsupportedError("RotaryEmbedding: attribute 'scale'", expected=1, got=scale)
    half = cos_cache.shape.sizes[1]
    if rotary_embedding_dim and (rotary_embedding_dim != half * 2 or (input.shape.rank == 3 and not num_heads)):
        raise ShapeError(
            "RotaryEmbedding: attribute 'rotary_embedding_dim'", expected=half * 2, got=rotary_embedding_dim
        )
    x = input
    if x.shape.rank == 3:
        heads = num_heads or divide_exact(x.shape.sizes[2], half * 2)
        if not isinstance(heads, int):
            raise UnsupportedError("RotaryEmbedding of heads whose number is not fixed", got=input.shape)
        x = _heads(g, x, heads)
    batch, _, length, _ = x.shape.sizes
    places = g.convert(position_ids, i64)
    if places.shape.rank == 1:  # the place of the first element
        places = g.binary("add", g.iota(i64, (batch, length), 1), g.reshape(places, ()))
    turned = _rotate(g, g.convert(x, f32), *_tables(g, cos_cache, sin_cache, places), interleaved)
    return g.convert(turned if input.shape.rank == 4 else _merge_heads(g, turned), input.shape.element)


# ---- groups of heads, with a cache ----


@onnx_op("GroupQueryAttention", domain=_MS)
def group_query_attention(
    g: Graph,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    seqlens_k: Value | None = None,
    total_sequence_length: Tensor | None = None,
    cos_cache: Value | None = None,
    sin_cache: Value | None = None,
    position_ids: Value | None = None,
    attention_bias: Value | None = None,
    head_sink: Value | None = None,
    k_scale: Value | None = None,
    v_scale: Value | None = None,
    q_norm_weight: Value | None = None,
    k_norm_weight: Value | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> tuple[Value, Value, Value]:
    """The cache is [batch, heads, room, size]; a row's new keys go behind those it has, `seqlens_k` says how many."""
    for given, what in (
        (causal != 1, "attribute 'causal'"),
        (k_quant_type != "NONE" or v_quant_type != "NONE" or kv_cache_bit_width, "attributes of a quantised cache"),
        (k_scale is not None or v_scale is not None, "inputs 'k_scale' and 'v_scale'"),
        (q_norm_weight is not None or k_norm_weight is not None, "inputs 'q_norm_weight' and 'k_norm_weight'"),
        (qk_output or any(g.node.output[3:]), "attribute 'qk_output'"),
        (sliding_window_cache, "attribute 'sliding_window_cache'"),
        (local_window_size == 0 or local_window_size < -1, "attribute 'local_window_size' of no keys"),
    ):
        if given:
            raise UnsupportedError(f"GroupQueryAttention: {what}")
    if seqlens_k is None or (past_key is None) != (past_value is None):
        raise ParseError("GroupQueryAttention: inputs 'seqlens_k', 'past_key' and 'past_value'")
    if kv_num_heads < 1 or num_heads % kv_num_heads:
        raise ShapeError(
            "GroupQueryAttention: attribute 'kv_num_heads'", expected=f"a divisor of {num_heads}", got=kv_num_heads
        )
    q, k, v = _groups(g, query, key, value, num_heads, kv_num_heads)
    batch, _, length, size = q.shape.sizes
    # The first prompt has no past, even where rows of it are padding and `seqlens_k` is small.
    ends = g.plus(g.convert(g.reshape(seqlens_k, (batch,)), i64), 1)
    past = g.binary("maximum", g.binary("subtract", ends, g.size(length)), g.scalar(0, i64))
    total = length if past_key is None else _total(g, total_sequence_length)
    room = total if past_key is None else maximum(past_key.shape.sizes[2], total)  # the cache keeps its size, or grows
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise ParseError("GroupQueryAttention: inputs 'cos_cache' and 'sin_cache' are missing")
        places = _places(g, past, length, total, position_ids)
        tables = _tables(g, cos_cache, sin_cache, places)
        element = q.shape.element
        q, k = (g.convert(_rotate(g, g.convert(x, f32), *tables, rotary_interleaved), element) for x in (q, k))
    keys = _append_to_cache(g, past_key, k, past, room)
    values = _append_to_cache(g, past_value, v, past, room)
    many = num_heads // kv_num_heads
    grouped = g.reshape(q, (batch, kv_num_heads, length * many, size))  # the heads of a group share their keys
    scores = g.reshape(_scores(g, grouped, keys, scale), (batch, num_heads, length, room))
    if softcap > 0:  # onnxruntime reads others as none
        scores = g.times(g.unary("tanh", g.times(scores, 1 / softcap)), softcap)
    if attention_bias is not None:
        scores = g.binary("add", scores, _pad_bias(g, attention_bias, room))
    scores = _mask_scores(g, scores, _window(g, past, ends, length, room, local_window_size))
    sink = None
    if head_sink is not None:
        sink = g.convert(g.reshape(head_sink, (num_heads, 1, 1)), f32)
    elif smooth_softmax == 1:
        sink = g.scalar(0, f32)
    weights = g.reshape(_weights(g, scores, sink), (batch, kv_num_heads, length * many, room))
    y = g.reshape(_values(g, weights, values), (batch, num_heads, length, size))
    return g.convert(_merge_heads(g, y), query.shape.element), keys, values


def _groups(
    g: Graph, query: Value, key: Value | None, value: Value | None, heads: int, kv_heads: int
) -> tuple[Value, Value, Value]:
    """Queries, keys and values by heads; they may be packed in one tensor."""
    if key is None and value is None:
        size = divide_exact(query.shape.sizes[2], heads + 2 * kv_heads)
        if size is None:
            raise ShapeError("the number of heads does not divide the hidden size", got=query.shape)
        query, key, value = _parts(g, query, [heads * size, kv_heads * size, kv_heads * size])
    if key is None or value is None:
        raise ParseError("GroupQueryAttention: inputs 'key' and 'value' come together")
    return _heads(g, query, heads), _heads(g, key, kv_heads), _heads(g, value, kv_heads)


def _total(g: Graph, total: Tensor | None) -> Size:
    """How many keys the longest row has, with the new ones."""
    if total is None:
        raise ParseError("GroupQueryAttention: input 'total_sequence_length' is missing")
    found = g.sizes(total, "total_sequence_length").reshape(-1)
    if found.size != 1:
        raise ShapeError("GroupQueryAttention: 'total_sequence_length' is one number", got=total.shape)
    size: Size = found[0]
    return size


def _places(g: Graph, past: Value, length: Size, total: Size, given: Value | None) -> Value:
    """The positions of queries and new keys, [batch, length]: behind the past, or the given ones.

    Of positions given for a first prompt, only the very first one counts.
    """
    batch = past.shape.sizes[0]
    steps = g.iota(i64, (batch, length), 1)
    if given is None:
        return g.binary("add", steps, g.reshape(past, (batch, 1)))
    own = g.broadcast_to(g.convert(given, i64), (batch, length))
    first = g.binary("add", steps, g.reshape(g.slice(own, (0, 0), (1, 1), (1, 1)), ()))
    if total == length:
        return first
    prompt = g.compare(g.size(total), g.size(length), "EQ")
    return g.choose(prompt, first, own)


def _append_to_cache(g: Graph, old: Value | None, new: Value, past: Value, room: Size) -> Value:
    """The cache with a row's new slices behind the `past` ones it had; nothing but zeros behind those."""
    if old is None:
        return new
    batch, heads, length, size = new.shape.sizes
    at = g.binary("subtract", g.iota(i64, (batch, room), 1), g.reshape(past, (batch, 1)))
    is_old = g.compare(at, g.like(0, at), "LT")
    is_new = g.compare(at, g.broadcast_to(g.size(length), at.shape.sizes), "LT")
    last = g.plus(g.size(length), -1)
    safe = g.binary("minimum", g.binary("maximum", at, g.scalar(0, i64)), last)
    dims = GatherDims(
        offset_dims=(1, 3),
        collapsed_slice_dims=(2,),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
        start_index_map=(2,),
        index_vector_dim=2,
    )
    moved = g.gather(new, safe, dims, (1, heads, 1, size))
    before = g.pad(old, g.scalar(0, old.shape.element), (0,) * 4, (0, 0, room - old.shape.sizes[2], 0))
    sizes = (batch, heads, room, size)
    masks = [g.broadcast_in_dim(each, sizes, (0, 2)) for each in (is_old, is_new)]
    before, moved = g.broadcast_to(before, sizes), g.broadcast_to(moved, sizes)
    return g.select(masks[0], before, g.select(masks[1], moved, g.like(0, moved)))


def _window(g: Graph, past: Value, ends: Value, length: Size, room: Size, window: int) -> Value:
    """Which keys a query sees, [batch, 1, queries, keys]: those up to its own, at most `window`, no padding."""
    batch = past.shape.sizes[0]
    sizes = (batch, 1, length, room)
    own = g.binary("add", g.iota(i64, sizes, 2), g.reshape(past, (batch, 1, 1, 1)))
    keys = g.iota(i64, sizes, 3)
    seen = g.compare(keys, own, "LE")
    seen = g.binary("and", seen, g.compare(keys, g.broadcast_in_dim(ends, sizes, (0,)), "LT"))
    if window > 0:
        seen = g.binary("and", seen, g.compare(keys, g.plus(own, -window), "GT"))
    return seen


def _pad_bias(g: Graph, bias: Value, room: Size) -> Value:
    """A bias for the keys there are, with zeros for the rest of the cache."""
    wide = g.convert(bias, f32)
    have = wide.shape.sizes[3]
    if have == room:
        return wide
    return g.pad(wide, g.scalar(0, f32), (0,) * 4, (0, 0, 0, room - have))
