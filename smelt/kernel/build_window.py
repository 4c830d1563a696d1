"""Windows that slide over a tensor: convolutions of any layout, type, stride, dilation and grouping, element by element."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dim import Size
from smelt.dtype import i1
from smelt.ir.core import Op
from smelt.kernel.build_reduce import summed
from smelt.kernel.loop import Amount, Expr, Number, Quotient, Remainder, add, scale
from smelt.kernel.nest import Nest, tensor
from smelt.kernel.sinks import Output, sink


@sink("stablehlo.convolution", anchor=True)
def convolution(nest: Nest, op: Op, output: Output) -> None:
    padding = op.attrs.get("padding")
    low = [pair[0] for pair in padding] if padding else [0] * (tensor(op.result).rank - 2)
    convolve(nest, op, output, [Number(each) for each in low])


def convolve(nest: Nest, op: Op, output: Output, low: Sequence[Expr]) -> None:
    """One result element after the other: a sum over the kernel's places and the input features of its group."""
    dims = op.attrs["dimension_numbers"]
    lhs, rhs = op.operands[:2]
    result, inputs, kernel = tensor(op.result), tensor(lhs), tensor(rhs)
    count = result.rank - 2
    strides, base, holes = (
        tuple(op.attrs.get(name) or (1,) * count) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    turned = tuple(op.attrs.get("window_reversal") or (False,) * count)
    features = kernel.sizes[dims.kernel_output_feature_dimension]
    window = [kernel.sizes[d] for d in dims.kernel_spatial_dimensions]
    depth = kernel.sizes[dims.kernel_input_feature_dimension]
    sizes = [inputs.sizes[d] for d in dims.input_spatial_dimensions]
    groups, batches = op.attrs["feature_group_count"], op.attrs["batch_group_count"]
    kind = result.element
    with nest.loops(result.sizes) as vars:
        feature, image = vars[dims.output_feature_dimension], vars[dims.output_batch_dimension]
        if groups > 1:
            group = nest.let(Quotient(feature, features // groups))
            first: Expr = scale(group, depth)
        else:
            first = Number(0)
        if batches > 1:
            share = nest.let(Quotient(feature, features // batches))
            image = add(image, scale(share, result.sizes[dims.output_batch_dimension]))

        def term(inner: tuple[Expr, ...]) -> Expr:
            *places, channel = inner
            conditions: list[Expr] = []
            left: dict[int, Expr] = {
                dims.input_batch_dimension: image,
                dims.input_feature_dimension: add(first, channel),
            }
            right: dict[int, Expr] = {
                dims.kernel_output_feature_dimension: feature,
                dims.kernel_input_feature_dimension: channel,
            }
            for i, at in enumerate(places):
                out = vars[dims.output_spatial_dimensions[i]]
                place = add(scale(out, strides[i]), scale(at, holes[i]), scale(low[i], -1))
                place, fits = _inside(nest, place, base[i], sizes[i], low[i])
                conditions += fits
                left[dims.input_spatial_dimensions[i]] = place
                right[dims.kernel_spatial_dimensions[i]] = (
                    add(window[i] - 1, scale(at, -1)) if turned[i] else at
                )
            b = nest.convert(nest.pull(rhs, tuple(right[d] for d in range(kernel.rank))), kind)

            def inside() -> Expr:
                return nest.convert(nest.pull(lhs, tuple(left[d] for d in range(inputs.rank))), kind)

            a = inside() if not conditions else nest.choose(nest.both(*conditions), inside, lambda: Number(0, kind), kind)
            return nest.apply("multiply", a, b, dtype=kind)

        output.finish(nest, op, vars, summed(nest, kind, [*window, depth], term))


def _inside(nest: Nest, place: Expr, step: int, size: Size, low: Expr) -> tuple[Expr, list[Expr]]:
    """The element behind a place of a padded, dilated axis, and the conditions under which there is one."""
    place = nest.let(place)
    conditions = [nest.apply("GE", place, Number(0), dtype=i1)]
    if step != 1:
        conditions.append(nest.apply("EQ", nest.let(Remainder(place, step)), Number(0), dtype=i1))
        place = nest.let(Quotient(place, step))
    conditions.append(nest.less(place, Amount(size)))
    return place, conditions
