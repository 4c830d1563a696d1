"""Products: `dot_general` and einsums as MatMul or Einsum, convolutions as Conv."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_letters

from smelt.dim import Size
from smelt.dtype import DType, dtype, i32
from smelt.ir.core import Op
from smelt.ir.ops.linear import dot_dims, einsum_labels
from smelt.write.onnx.graph import Graph, Out, refuse, shape_of


def _operands(g: Graph, op: Op) -> tuple[Out, Out, DType]:
    """Both operands in the type that sums have: the result's, f32 for narrower floats."""
    element, _ = shape_of(op.results[0])
    sums = dtype("f32") if element.is_float and element.bits < 32 else element
    if element.is_integer and element.bits < 32:
        sums = i32
    if element.kind == "bool":
        refuse("products of booleans")
    left, right = (g.cast(g.get(value), sums) for value in op.operands[:2])
    return left, right, element


def _dot_general(g: Graph, op: Op) -> Out:
    d = op.attrs["dot_dimension_numbers"]
    return _dot(
        g,
        op,
        (d.lhs_batching_dimensions, d.lhs_contracting_dimensions),
        (d.rhs_batching_dimensions, d.rhs_contracting_dimensions),
    )


def _plain_dot(g: Graph, op: Op) -> Out:
    d = dot_dims(op.operands[0].shape.rank)
    return _dot(g, op, ((), d.lhs_contracting_dimensions), ((), d.rhs_contracting_dimensions))


_Dims = tuple[Sequence[int], Sequence[int]]  # batching, contracting


def _dot(g: Graph, op: Op, left: _Dims, right: _Dims) -> Out:
    x, y, element = _operands(g, op)
    sizes = shape_of(op.results[0])[1]
    free = [[i for i in range(each.rank) if i not in (*dims[0], *dims[1])] for each, dims in ((x, left), (y, right))]
    several = len(free[0]) if not left[0] else min(len(free[0]), 1)  # MatMul takes more axes where none is a batch
    if len(left[1]) == 1 and len(free[1]) == 1 and len(free[0]) == several >= 1:
        a = g.transpose(x, [*left[0], *free[0], *left[1]])
        b = g.transpose(y, [*right[0], *right[1], *free[1]])
        return g.cast(g.call("MatMul", a, b, sizes=sizes), element)
    letters = iter(ascii_letters)
    names: list[list[str]] = [[""] * x.rank, [""] * y.rank]
    for a_dims, b_dims in zip(left, right, strict=True):
        for i, j in zip(a_dims, b_dims, strict=True):
            names[0][i] = names[1][j] = next(letters)
    for side in (0, 1):
        for i in free[side]:
            names[side][i] = next(letters)
    result = [names[0][i] for i in left[0]] + [names[side][i] for side in (0, 1) for i in free[side]]
    return _einsum_of(g, (x, y), names, result, sizes, element)


def _einsum_of(
    g: Graph,
    xs: Sequence[Out],
    names: Sequence[Sequence[str]],
    result: Sequence[str],
    sizes: Sequence[Size],
    element: DType,
) -> Out:
    equation = ",".join("".join(each) for each in names) + "->" + "".join(result)
    return g.cast(g.call("Einsum", *xs, sizes=sizes, equation=equation), element)


def _einsum(g: Graph, op: Op) -> Out:
    xs = [g.get(value) for value in op.operands]
    element, sizes = shape_of(op.results[0])
    terms, names = einsum_labels(op.attrs["einsum_config"], [x.rank for x in xs])
    letters = dict(
        zip(dict.fromkeys([*(label for term in terms for label in term), *names]), ascii_letters, strict=False)
    )
    return _einsum_of(
        g,
        [g.cast(x, element) for x in xs],
        [[letters[label] for label in term] for term in terms],
        [letters[label] for label in names],
        sizes,
        element,
    )


# ---- convolution ----


_OFFSETS = 1 << 10  # of a kernel, where each is a product of its own


@dataclass(frozen=True, slots=True)
class _Window:
    """A convolution of [batch, channel, places …] by [out, in, places …]; padding is not negative."""

    strides: list[int]
    dilations: list[int]
    low: list[int]
    high: list[int]
    groups: int


def _convolution(g: Graph, op: Op) -> Out:
    element, sizes = shape_of(op.results[0])
    d, places = op.attrs["dimension_numbers"], len(op.attrs["dimension_numbers"].input_spatial_dimensions)
    bytes_in = all(value.shape.dtype.name in ("i8", "ui8") for value in op.operands)
    integers = bytes_in and element is i32
    x, kernel = (g.get(value) for value in op.operands) if integers else _operands(g, op)[:2]
    x = g.transpose(x, [d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions])
    kernel = g.transpose(
        kernel, [d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *d.kernel_spatial_dimensions]
    )
    ones, zero = (1,) * places, g.constant(0, x.dtype)
    reversal = op.attrs.get("window_reversal") or (False,) * places
    kernel = g.flip(kernel, [2 + i for i, turned in enumerate(reversal) if turned])
    x = g.spread_elements(x, [0, 0, *(n - 1 for n in op.attrs.get("lhs_dilation") or ones)], zero)
    pairs = list(op.attrs.get("padding") or ((0, 0),) * places)
    if any(amount < 0 for pair in pairs for amount in pair):
        x = g.pad(x, [0, 0, *(low for low, _ in pairs)], [0, 0, *(high for _, high in pairs)], zero)
        pairs = [(0, 0)] * places
    groups, batches = op.attrs["feature_group_count"], op.attrs["batch_group_count"]
    if batches > 1:
        x, groups = _groups_of_batches(g, x, batches), batches
    window = _Window(
        list(op.attrs.get("window_strides") or ones),
        list(op.attrs.get("rhs_dilation") or ones),
        [low for low, _ in pairs],
        [high for _, high in pairs],
        groups,
    )
    wanted = [d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions]
    result = [sizes[i] for i in wanted]
    kernels = places > 0 and all(isinstance(size, int) for size in kernel.sizes)
    if kernels and (integers or x.dtype.name == "f32"):
        found = _conv_node(g, x, kernel, window, result, integers)
    else:
        found = _sum_offsets(g, x, kernel, window, result)
    return g.cast(g.transpose(found, [wanted.index(i) for i in range(len(wanted))]), element)


def _conv_node(g: Graph, x: Out, kernel: Out, window: _Window, sizes: Sequence[Size], integers: bool) -> Out:
    return g.call(
        "ConvInteger" if integers else "Conv",
        x,
        kernel,
        sizes=sizes,
        to=i32 if integers else x.dtype,
        typed=0,
        kernel_shape=list(kernel.sizes[2:]),
        strides=window.strides,
        dilations=window.dilations,
        pads=[*window.low, *window.high],
        group=window.groups,
    )


def _sum_offsets(g: Graph, x: Out, kernel: Out, window: _Window, sizes: Sequence[Size]) -> Out:
    """A product for each offset in the kernel, for element types that runtimes have no Conv of."""
    spans = [size if isinstance(size, int) else 0 for size in kernel.sizes[2:]]
    if math.prod(spans) > _OFFSETS or not all(spans):
        refuse(f"a convolution of {x.dtype} by more than {_OFFSETS} offsets")
    x = g.pad(x, [0, 0, *window.low], [0, 0, *window.high], g.constant(0, x.dtype))
    groups, rest = window.groups, ascii_letters[4 : 4 + len(spans)]
    batch, channels = x.sizes[:2]
    total: Out | None = None
    for offset in product(*map(range, spans)):
        part, weight = x, kernel
        for axis, at in enumerate(offset):
            first, stride = at * window.dilations[axis], window.strides[axis]
            reach = sizes[2 + axis] * stride - (stride - 1) + first
            part = g.slice_axis(part, 2 + axis, g.size(first), g.size(reach), sizes[2 + axis], stride)
            weight = g.slice_axis(weight, 2 + axis, g.size(at), g.size(at + 1), 1)
        part = g.reshape(part, [batch, groups, channels // groups, *sizes[2:]])
        weight = g.reshape(weight, [groups, kernel.sizes[0] // groups, kernel.sizes[1]])
        shape = [batch, groups, kernel.sizes[0] // groups, *sizes[2:]]
        term = g.call("Einsum", part, weight, sizes=shape, equation=f"abc{rest},bdc->abd{rest}")
        total = term if total is None else g.call("Add", total, term)
    assert total is not None
    return g.reshape(total, sizes)


def _groups_of_batches(g: Graph, x: Out, groups: int) -> Out:
    """[groups * b, c, …] as [b, groups * c, …]."""
    batch, channels, *rest = x.sizes
    inner = batch // groups
    split = g.reshape(x, [groups, inner, channels, *rest])
    moved = g.transpose(split, [1, 0, *range(2, split.rank)])
    return g.reshape(moved, [inner, groups * channels, *rest])


def _dynamic_conv(g: Graph, op: Op) -> Out:
    refuse("a convolution whose padding is computed")


ROWS = {
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dot": _plain_dot,
    "stablehlo.einsum": _einsum,
    "stablehlo.unary_einsum": _einsum,
    "stablehlo.convolution": _convolution,
    "stablehlo.dynamic_conv": _dynamic_conv,
}
