"""Weight prepacking: GEMMs, convolutions and depthwise convolutions over packed B panels.

`dot_general` and `convolution` become `smelt.packed_dot`, `smelt.packed_conv`, `smelt.winograd_conv` and
`smelt.depthwise_conv`; a grouped GEMM (`chlo.ragged_dot`) becomes `smelt.grouped_dot`, on a GPU where weights are bf16.
Packing (`smelt.relayout`) is an op of its own before the GEMM, so `split_prepare` moves the packing of weights out of
the run. Called by `pipeline`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.dim import Size, product
from smelt.ir.attributes import DotDims
from smelt.ir.core import Value
from smelt.ir.ops.linear import grouped_axes
from smelt.ir.ops.packed import FP8, OCTET, PAIR, QUAD, SIXTEEN, WINOGRAD_G
from smelt.ir.rewrite import Match, Rule, op
from smelt.layout import panels
from smelt.passes.channels_last import channels_last_dims
from smelt.passes.split_prepare import WEIGHT
from smelt.passes.tf32 import is_tf32
from smelt.shape import Shape

# By the types of both operands, adjacent steps of k in a panel; results are f32.
K_PACK = {("f32", "f32"): 1, ("f32", "f16"): 1, ("f32", "bf16"): 1, ("bf16", "bf16"): PAIR}
K_PACK_SIMT = {
    **K_PACK,
    **dict.fromkeys((("f32", "bf16"), ("bf16", "bf16"), ("f16", "f16")), OCTET),
    **{(left.name, right.name): SIXTEEN for left in FP8 for right in FP8},
    ("tf32", "tf32"): QUAD,
}
Packs = Mapping[tuple[str, str], int]
NARROW = ("bf16", "f16")  # types of weights that an f32 GEMM widens
LEAST, FEWEST = 8, 32  # output rows and columns, channels: Winograd gains nothing below these
MANY = 512  # output pixels, for a kernel that changes
DEEP = 32  # channels: of fewer, those of a row of the window are read together
MOST_TAPS = 64  # of a window: a bit of a word for each
FEW_ROWS = 8  # up to which a product waits for memory: tensor cores have nothing to gain


def pack_rules(width: int, *, simt: bool = False) -> list[Rule]:
    """The rules that pack right operands into panels of `width` columns.

    A processor computes 3 × 3 convolutions by Winograd; a GPU (`simt`) packs for tensor cores.
    """
    packs = K_PACK_SIMT if simt else K_PACK

    def dot(m: Match) -> Value | None:
        return _pack_dot(m, width, packs)

    def convolution(m: Match) -> Value | None:
        return _pack_convolution(m, width, packs, not simt)

    def ragged_dot(m: Match) -> Value | None:
        tensor_cores = str(_stored_narrow(m, m["y"]).shape.dtype) == "bf16"
        return _pack_ragged_dot(m, width, packs) if tensor_cores or not simt else None

    return [
        Rule(op("stablehlo.dot_general", "x", "y"), dot, "a GEMM reads packed B panels"),
        Rule(
            op("chlo.ragged_dot", "x", "y", "sizes"), ragged_dot, "a grouped GEMM reads packed B panels of each group"
        ),
        Rule(op("stablehlo.convolution", "x", "y"), convolution, "implicit GEMM: a window row is contiguous in NHWC"),
    ]


def _pack_dot(m: Match, width: int, packs: Packs) -> Value | None:
    lhs, rhs = m["x"], _stored_narrow(m, m["y"])
    layout = _layout(m, rhs, width, packs)
    if layout is None:
        return None
    dims = m.op.attrs["dot_dimension_numbers"]
    batch = dims.lhs_batching_dimensions, dims.rhs_batching_dimensions
    summed = dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions
    rows = [d for d in range(lhs.shape.rank) if d not in batch[0] and d not in summed[0]]
    columns = [d for d in range(rhs.shape.rank) if d not in batch[1] and d not in summed[1]]
    left = _merge_axes(m, lhs, (batch[0], rows, summed[0]))
    right = _merge_axes(m, rhs, (batch[1], summed[1], columns))
    packed = m.build.op("smelt.relayout", right, layout=layout).result
    result = Shape.of(m.shape.dtype, (*left.shape.sizes[:2], right.shape.sizes[2]))
    made = m.build.op("smelt.packed_dot", left, packed, result=result, layout=layout).result
    return _reshape(m, made, m.shape)


def _pack_ragged_dot(m: Match, width: int, packs: Packs) -> Value | None:
    lhs, rhs, axes = m["x"], _stored_narrow(m, m["y"]), grouped_axes(m.op)
    layout = _layout(m, rhs, width, packs)
    if layout is None or axes is None:
        return None
    group, columns = axes
    summed = m.op.attrs["ragged_dot_dimension_numbers"].rhs_contracting_dimensions
    left = _reshape(m, lhs, Shape.of(lhs.shape.dtype, (1, *lhs.shape.sizes)))
    right = _merge_axes(m, rhs, (group, summed, columns))
    packed = m.build.op("smelt.relayout", right, layout=layout).result
    result = Shape.of(m.shape.dtype, (1, *m.shape.sizes))
    made = m.build.op("smelt.grouped_dot", left, packed, m["sizes"], result=result, layout=layout).result
    return _reshape(m, made, m.shape)


def _stored_narrow(m: Match, rhs: Value) -> Value:
    """The right operand as it is stored: 16-bit weights are bound as they are, and widened by the kernel."""
    maker = m.edit.maker(rhs)
    if maker is None or maker.name != "stablehlo.convert" or str(rhs.shape.dtype) != "f32":
        return rhs
    narrow = m.edit.operands(maker)[0]
    return narrow if str(narrow.shape.dtype) in NARROW and _is_weight(m, narrow) else rhs


def _pack_convolution(m: Match, width: int, packs: Packs, winograd: bool) -> Value | None:
    """Convolutions of padded NHWC feature maps. A depthwise convolution is no GEMM: its weights are not packed."""
    maps, kernel, attrs = m["x"], m["y"], m.op.attrs
    rank, layout = m.shape.rank, _layout(m, kernel, width, packs)
    if layout is None or attrs["dimension_numbers"] != channels_last_dims(rank):
        return None
    plain = not any(attrs.get("window_reversal") or ()) and set(attrs.get("lhs_dilation") or ()) <= {1}
    plain = plain and set(attrs.get("padding") or ()) <= {(0, 0)} and attrs["batch_group_count"] == 1
    *window, depth, features = kernel.shape.sizes
    groups = attrs["feature_group_count"]
    if not plain or not isinstance(depth, int) or not isinstance(features, int):
        return None
    strides, dilations = (tuple(attrs.get(name) or (1,) * (rank - 2)) for name in ("window_strides", "rhs_dilation"))
    taps: dict[str, Any] = {"strides": strides, "dilations": dilations}
    if depth == 1 < groups == features:
        kernel = _reshape(m, kernel, Shape.of(kernel.shape.dtype, (*window, features)))
        return m.build.op("smelt.depthwise_conv", maps, kernel, result=m.shape, **taps).result
    if winograd and _suits_winograd(m, kernel, tuple(window), (*strides, *dilations, groups)):
        return _winograd(m, maps, kernel, width)
    shared = features // groups
    matrix = _reshape(m, kernel, Shape.of(kernel.shape.dtype, (product(window) * depth, groups, shared)))
    packed = m.build.op("smelt.relayout", _transpose(m, matrix, (1, 0, 2)), layout=layout).result
    if groups == 1 and set(window) == set(strides) == {1}:
        pixels = product(maps.shape.sizes[:-1])
        rows = _reshape(m, maps, Shape.of(maps.shape.dtype, (1, pixels, depth)))
        result = Shape.of(m.shape.dtype, (1, pixels, features))
        made = m.build.op("smelt.packed_dot", rows, packed, result=result, layout=layout).result
        return _reshape(m, made, m.shape)
    taps |= {"layout": layout, "window": tuple(window)}
    if (inside := _without_zeros(m, maps, tuple(window), depth, packs)) is not None:
        maps, taps["padding"] = inside
    return m.build.op("smelt.packed_conv", maps, packed, result=m.shape, **taps).result


def _without_zeros(
    m: Match, maps: Value, window: tuple[Size, ...], depth: int, packs: Packs
) -> tuple[Value, tuple[tuple[int, int], ...]] | None:
    """The feature maps inside a frame of zeros, and the frame, where a kernel on tensor cores has zeros of its own."""
    pad = m.edit.maker(maps)
    taps = product(window)
    if packs.get(("f16", "f16")) != OCTET or str(maps.shape.dtype) not in NARROW or depth % OCTET or depth < DEEP:
        return None
    if pad is None or pad.name != "stablehlo.pad" or not isinstance(taps, int) or taps > MOST_TAPS or len(window) > 2:
        return None
    inside, zero = m.edit.operands(pad)
    maker = m.edit.maker(zero)
    zeros = maker is not None and maker.name == "stablehlo.constant" and not maker.attrs["value"].array.any()
    edges = [*zip(pad.attrs["edge_padding_low"], pad.attrs["edge_padding_high"], strict=True)]
    plain = not any(pad.attrs["interior_padding"]) and edges[0] == edges[-1] == (0, 0)
    if not zeros or not plain or min(map(min, edges)) < 0 or not inside.shape.is_static:
        return None
    return inside, tuple(edges[1:-1])


def _layout(m: Match, stored: Value, width: int, packs: Packs) -> str | None:
    """The layout of the right operand, if the product is of types with a kernel and has an f32 result."""
    left, right = (m[name].shape.dtype for name in ("x", "y"))
    pack = packs.get((str(left), str(stored.shape.dtype)))
    if ("tf32", "tf32") in packs and stored is m["y"] and _suits_tf32(m):
        pack = packs["tf32", "tf32"]
    alike = left == right or (left in FP8 and right in FP8)
    return panels(width, pack) if pack and alike and str(m.shape.dtype) == "f32" else None


def _suits_tf32(m: Match) -> bool:
    """Whether both operands were rounded to tf32, and there are many rows, or whole runs of 4 channels."""
    if not is_tf32(m.edit, m["x"]) or not is_tf32(m.edit, m["y"]):
        return False
    if m.op.name == "stablehlo.convolution":
        depth = m["y"].shape.sizes[-2]
        return isinstance(depth, int) and depth % QUAD == 0
    dims = m.op.attrs["dot_dimension_numbers"]
    summed = (*dims.lhs_batching_dimensions, *dims.lhs_contracting_dimensions)
    rows = product(size for d, size in enumerate(m["x"].shape.sizes) if d not in summed)
    return not isinstance(rows, int) or rows > FEW_ROWS


def _suits_winograd(m: Match, kernel: Value, window: tuple[Size, ...], steps: tuple[int, ...]) -> bool:
    """Whether Winograd's fewer multiplications outweigh its transforms. Weights are transformed once; a kernel that
    changes, as in training, is transformed in every call, which takes many pixels to pay. Not for bf16: the transformed
    tiles would be rounded again."""
    if str(kernel.shape.dtype) != "f32" or window != (3, 3) or set(steps) != {1}:
        return False
    batch, high, wide, features = m.shape.sizes
    depth = kernel.shape.sizes[2]
    large = all(not isinstance(size, int) or size >= LEAST for size in (high, wide))
    if not large or not isinstance(depth, int) or not isinstance(features, int) or min(depth, features) < FEWEST:
        return False
    pixels = product((batch, high, wide))
    return _is_weight(m, kernel) or (isinstance(pixels, int) and pixels >= MANY and not _is_constant(m, kernel))


def _is_weight(m: Match, value: Value) -> bool:
    """Whether a value depends on weights and constants alone, and not only on constants."""
    func = m.edit.func
    weights = {arg for arg, attrs in zip(func.args, func.arg_attrs, strict=True) if WEIGHT in attrs}
    sources = _sources(m, value)
    return bool(sources) and sources <= weights


def _is_constant(m: Match, value: Value) -> bool:
    return not _sources(m, value)


def _sources(m: Match, value: Value) -> set[Value]:
    """The arguments that a value depends on."""
    stack, seen = [m.edit.value(value)], set[Value]()
    while stack:
        each = stack.pop()
        if each not in seen:
            seen.add(each)
            stack += [m.edit.value(operand) for operand in each.op.operands] if each.op is not None else []
    return {each for each in seen if each.op is None}


def _winograd(m: Match, maps: Value, kernel: Value, width: int) -> Value:
    """The transformed weights G w G' as 16 packed matrices, and the op that multiplies by them."""
    change = m.build.constant(WINOGRAD_G.astype(np.float32), "f32")
    depth, features = kernel.shape.sizes[2:]
    for _ in range(2):  # [y, x, …] → [x, …, 4] → […, 4, 4]
        dims = DotDims((), (), (0,), (1,))
        kernel = m.build.dot_general(kernel, change, dot_dimension_numbers=dims)
    kernel = m.build.transpose(kernel, permutation=(2, 3, 0, 1))
    matrices = m.build.reshape(kernel, result=Shape.of(kernel.shape.dtype, (16, depth, features)))
    packed = m.build.op("smelt.relayout", matrices, layout=panels(width)).result
    packed = m.build.transpose(packed, permutation=(1, 0, 2, 3))  # the order in which the kernel reads them
    return m.build.op("smelt.winograd_conv", maps, packed, result=m.shape).result


def _transpose(m: Match, value: Value, order: tuple[int, ...]) -> Value:
    if order == tuple(range(len(order))):
        return value
    return m.build.transpose(value, permutation=order)


def _merge_axes(m: Match, value: Value, groups: tuple[Sequence[int], Sequence[int], Sequence[int]]) -> Value:
    """The value as [batch, …, …]: the axes of each of the three groups merged into one."""
    order = tuple(d for group in groups for d in group)
    value = _transpose(m, value, order)
    sizes = iter(value.shape.sizes)
    merged = tuple(product(next(sizes) for _ in group) for group in groups)
    return _reshape(m, value, Shape.of(value.shape.dtype, merged))


def _reshape(m: Match, value: Value, shape: Shape) -> Value:
    if value.shape.sizes == shape.sizes:
        return value
    return m.build.reshape(value, result=shape)
