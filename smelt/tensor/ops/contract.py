"""Contractions: `dot` by axis name, `@`, grouped GEMM, convolution and pooling.

`dot` contracts the axes it names; axes that both operands have besides are batch axes. Convolutions and pooling work
over named spatial axes, in any order. `Tensor`'s methods call these functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from smelt.dim import Size
from smelt.dtype import DType, dtype
from smelt.ir.attributes import ConvDims, DotDims, RaggedDotDims
from smelt.shape import Shape
from smelt.tensor.axes import find_axis, names_of
from smelt.tensor.ops import elementwise as el
from smelt.tensor.ops.move import transpose
from smelt.tensor.promotion import promote
from smelt.tensor.proving import current_facts, equal
from smelt.tensor.record import binary_region, constant, emit, operand
from smelt.tensor.source import Operand, find_operand_text, here, refuse, suggest_fact

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

Padding: TypeAlias = "Literal['valid', 'same'] | Mapping[str, tuple[int, int]] | Sequence[tuple[int, int]]"

Precision = Literal["default", "high", "highest"]


# ---- dot ----


def dot(
    x: Tensor,
    y: Tensor,
    axes: str | Sequence[Any],
    *,
    result: str | DType | None = None,
    precision: Precision = "default",
) -> Tensor:
    """Contract the named axes, which both operands have (a matmul); other axes that both have are batch axes.

    The result has the batch axes, then the rest of the left operand's, then the right operand's. Without names the axes
    are a pair of numbers, or pairs of them: `x.dot(y, (-1, 0))`.
    """
    left, right = operand("left", x), operand("right", y)
    if precision not in get_args(Precision):
        known = ", ".join(map(repr, get_args(Precision)))
        refuse(f"dot: the precision is one of {known}, not {precision!r}", left, right)
    attrs = {} if precision == "default" else {"precision_config": (precision.upper(),) * 2}
    if x.shape.names is None and y.shape.names is None and not isinstance(axes, str):
        return _dot_places(x, y, axes, left, right, result, **attrs)
    if not isinstance(axes, str) and not all(isinstance(name, str) for name in axes):
        both = x.shape.names is not None and y.shape.names is not None
        mixed = "name the axes of the other operand, .named(…), or take the names away, .unnamed()"
        hint = 'say its name: .dot(other, "d")' if both else mixed
        refuse("dot: axes with names are given by name", left, right, remedy=hint)
    contracted = names_of(axes)
    for shown, blame, other in ((right, 1, left), (left, 0, right)):
        for name in contracted:
            if name not in (shown.shape.names or ()):
                _refuse_contraction(name, left, right, shown, other, blame)
    if len(set(contracted)) != len(contracted):
        refuse("dot: an axis is named twice", left, right)
    assert x.shape.names is not None
    assert y.shape.names is not None
    over = ", ".join(f'"{name}"' for name in contracted)
    batch = [name for name in x.shape.names if name in y.shape.names and name not in contracted]
    for name in (*contracted, *batch):
        a, b = x.shape.sizes[x.shape.names.index(name)], y.shape.sizes[y.shape.names.index(name)]
        if a is not b and not (answer := equal(a, b)):
            part = "contracted" if name in contracted else "shared"
            remedy = None if answer.missing is None or name in contracted else _batch_remedy(name, answer.missing)
            message = f'dot over {over}: the {part} axis "{name}" has different sizes, {a} and {b}'
            refuse(message, left, right, answer=answer, blame=1, remedy=remedy)
    dims = DotDims(
        tuple(x.shape.names.index(name) for name in batch),
        tuple(y.shape.names.index(name) for name in batch),
        tuple(x.shape.names.index(name) for name in contracted),
        tuple(y.shape.names.index(name) for name in contracted),
    )
    rest = [name for each in (x.shape.names, y.shape.names) for name in each if name not in (*batch, *contracted)]
    return _dot_general(x, y, dims, (*batch, *rest), left, right, result, **attrs)


def ragged_dot(x: Tensor, y: Tensor, sizes: Tensor, axis: str) -> Tensor:
    """A grouped GEMM: the rows of x are sorted by group, and each group has its own matrix in y.

    x has the axes of rows and `axis`, which is summed over; y has `axis`, that of `sizes` and that of the columns;
    `sizes[g]` is the number of rows of group g. Rows behind the last group give zeros.
    """
    left, right, counts = operand("left", x), operand("right", y), operand("sizes", sizes)
    names = x.shape.names or (), y.shape.names or (), sizes.shape.names or ()
    if tuple(map(len, names)) != (2, 3, 1) or not sizes.dtype.is_integer:
        refuse(
            "ragged_dot: [row, k] by [group, column, k] with integer sizes [group], all axes with names",
            left,
            right,
            counts,
        )
    (group,) = names[2]
    for shown, label, wanted in ((left, "left", {axis}), (right, "right", {axis, group})):
        lacking = sorted(wanted - {*(shown.shape.names or ())})
        if lacking:
            refuse(f'ragged_dot over "{axis}": the {label} operand has no axis "{lacking[0]}"', left, right, counts)
    row, column = (name for name in (*names[0], *names[1]) if name not in (axis, group))
    for name, (a, b) in ((axis, (x, y)), (group, (sizes, y))):
        first, second = (each.shape.sizes[(each.shape.names or ()).index(name)] for each in (a, b))
        if not (answer := equal(first, second)):
            refuse(
                f'ragged_dot: the axis "{name}" has different sizes, {first} and {second}',
                left,
                right,
                counts,
                answer=answer,
            )
    element = promote("ragged_dot", left, right)
    dims = RaggedDotDims((), (), (1,), (names[1].index(axis),), (0,), (names[1].index(group),))
    rows, matrices = el.cast(transpose(x, row, axis), element), el.cast(y, element)
    return emit("chlo.ragged_dot", rows, matrices, sizes, names=(row, column), ragged_dot_dimension_numbers=dims)


def _batch_remedy(name: str, missing: str) -> str:
    return f'if these are different axes, rename one: .rename({name}="…"){suggest_fact(missing)}'


def _refuse_contraction(
    name: str, left: Operand, right: Operand, lacking: Operand, having: Operand, blame: int
) -> None:
    """The named axis is missing on one side: point at that operand, and say which axis both have."""
    both = [each for each in left.shape.names or () if each in (right.shape.names or ())]
    remedy = None
    text = find_operand_text(here(), 1)
    if both and text:
        remedy = f'.dot({text}, "{both[-1]}")'
    elif both:
        remedy = f'over "{both[-1]}"'
    elif lacking.shape.names is None:
        remedy = "give its axes names first: .named(…)"
    else:
        size = (
            having.shape.sizes[(having.shape.names or ()).index(name)] if name in (having.shape.names or ()) else None
        )
        same = [each for each, s in zip(lacking.shape.names, lacking.shape.sizes, strict=True) if s == size]
        if same:
            remedy = f'if its "{same[0]}" is "{name}", say so: .rename({same[0]}="{name}")'
    refuse(f'dot over "{name}": the {lacking.label} operand has no such axis', left, right, blame=blame, remedy=remedy)


def _dot_general(
    x: Tensor,
    y: Tensor,
    dims: DotDims,
    names: tuple[str, ...] | None,
    left: Operand,
    right: Operand,
    result: str | DType | None,
    **attrs: Any,
) -> Tensor:
    element = promote("dot", left, right)
    x, y = el.cast(x, element), el.cast(y, element)
    wanted = None
    if result is not None:
        sizes = [x.shape.sizes[i] for i in dims.lhs_batching_dimensions]
        for shape, batch, taken in (
            (x.shape, dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions),
            (y.shape, dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions),
        ):
            sizes += [size for i, size in enumerate(shape.sizes) if i not in (*batch, *taken)]
        wanted = Shape.of(dtype(result), sizes)
    return emit("dot_general", x, y, names=names, result=wanted, dot_dimension_numbers=dims, **attrs)


def _dot_places(
    x: Tensor,
    y: Tensor,
    axes: Sequence[Any],
    left: Operand,
    right: Operand,
    result: str | DType | None,
    **attrs: Any,
) -> Tensor:
    pairs = [axes] if axes and isinstance(axes[0], int) else list(axes)
    a = tuple(find_axis("dot", left, pair[0], blame=0) for pair in pairs)
    b = tuple(find_axis("dot", right, pair[1], blame=1) for pair in pairs)
    for i, j in zip(a, b, strict=True):
        if not (answer := equal(x.shape.sizes[i], y.shape.sizes[j])):
            message = f"dot: axis {i} has size {x.shape.sizes[i]}, axis {j} of the right operand {y.shape.sizes[j]}"
            refuse(message, left, right, answer=answer, blame=1)
    return _dot_general(x, y, DotDims((), (), a, b), None, left, right, result, **attrs)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """`x @ y`: the last axis of x with the last but one of y (the only one of a vector).

    With names, both must be one axis; other axes of both are batch axes. Without names, leading axes are batch axes and
    must be the same, or be there on one side only.
    """
    left, right = operand("left", x), operand("right", y)
    if not x.shape.rank or not y.shape.rank:
        refuse("@: a scalar has no axis to contract", left, right, remedy="x * y")
    place = y.shape.rank - 2 if y.shape.rank > 1 else 0
    if (x.shape.names is None) != (y.shape.names is None):
        refuse(
            "@: named and unnamed axes do not mix", left, right, remedy="name the axes of the other operand: .named(…)"
        )
    if x.shape.names is not None and y.shape.names is not None:
        last, first = x.shape.names[-1], y.shape.names[place]
        if last != first:
            both = [name for name in x.shape.names if name in y.shape.names]
            remedy = (
                f'.dot({find_operand_text(here(), 1) or "y"}, "{both[-1]}")' if both else f'.rename({first}="{last}")'
            )
            message = (
                f'@: the left operand\'s "{last}" meets "{first}": different axes, even where their sizes are equal'
            )
            refuse(message, left, right, blame=1, remedy=remedy)
        return dot(x, y, last)
    if not (answer := equal(x.shape.sizes[-1], y.shape.sizes[place])):
        message = f"@: {x.shape.sizes[-1]} columns meet {y.shape.sizes[place]} rows"
        turned = y.shape.rank == 2 and x.shape.sizes[-1] == y.shape.sizes[1]
        refuse(message, left, right, answer=answer, blame=1, remedy="transpose it: .transpose()" if turned else None)
    return _matmul_places(x, y, left, right)


def _matmul_places(x: Tensor, y: Tensor, left: Operand, right: Operand) -> Tensor:
    a, b = max(x.shape.rank - 2, 0), max(y.shape.rank - 2, 0)
    last = x.shape.rank - 1
    if not a or not b:
        moved = _dot_general(x, y, DotDims((), (), (last,), (b if y.shape.rank > 1 else 0,)), None, left, right, None)
        if b and not a and x.shape.rank == 2:  # rows of x come before the batch axes of y: put them behind
            order = (*range(1, 1 + b), 0, moved.shape.rank - 1)
            return emit("transpose", moved, permutation=order)
        return moved
    if a != b:
        refuse("@: the batch axes differ", left, right, remedy="name the axes, and use .dot")
    for i in range(a):
        if not (answer := equal(x.shape.sizes[i], y.shape.sizes[i])):
            message = f"@: batch axis {i} has different sizes, {x.shape.sizes[i]} and {y.shape.sizes[i]}"
            refuse(message, left, right, answer=answer)
    batch = tuple(range(a))
    return _dot_general(x, y, DotDims(batch, batch, (last,), (b,)), None, left, right, None)


# ---- convolution ----


def _per_axis(what: str, given: int | Mapping[str, int] | Sequence[int], spatial: Sequence[str]) -> tuple[int, ...]:
    if isinstance(given, int):
        return (given,) * len(spatial)
    if isinstance(given, Mapping):
        return tuple(given.get(name, 1) for name in spatial)
    if len(given) != len(spatial):
        refuse(f"conv: {what} has {len(given)} numbers for {len(spatial)} axes")
    return tuple(given)


def _pads(
    padding: Padding,
    spatial: Sequence[str],
    sizes: Sequence[Size],
    windows: Sequence[int],
    strides: Sequence[int],
    shown: Operand,
) -> tuple[tuple[int, int], ...]:
    if padding == "valid":
        return ((0, 0),) * len(spatial)
    if padding == "same":
        return tuple(_same_padding(*each, shown) for each in zip(spatial, sizes, windows, strides, strict=True))
    if isinstance(padding, Mapping):
        return tuple(padding.get(name, (0, 0)) for name in spatial)
    if len(padding) != len(spatial) or not all(isinstance(pair, tuple | list) for pair in padding):
        refuse("conv: padding is 'valid', 'same' or (before, after) for each axis", shown)
    return tuple((before, after) for before, after in padding)


def _same_padding(name: str, size: Size, window: int, stride: int, shown: Operand) -> tuple[int, int]:
    """Padding for ceil(size / stride) outputs; an odd element is added after."""
    if stride == 1:
        total: Size = window - 1
    elif isinstance(size, int):
        total = max((-(-size // stride) - 1) * stride + window - size, 0)
    else:
        remedy = "give the padding in numbers: padding={…: (before, after)}"
        refuse(
            f'conv: padding "same" of "{name}" with stride {stride} depends on its size {size}', shown, remedy=remedy
        )
    assert isinstance(total, int)
    return total // 2, total - total // 2


def conv(
    x: Tensor,
    kernel: Tensor,
    spatial: str | Sequence[str],
    *,
    features: tuple[str, str] = ("c", "o"),
    strides: int | Mapping[str, int] | Sequence[int] = 1,
    padding: Padding = "valid",
    dilation: int | Mapping[str, int] | Sequence[int] = 1,
    input_dilation: int | Mapping[str, int] | Sequence[int] = 1,
    groups: int = 1,
    flip: bool = False,
) -> Tensor:
    """A convolution over named axes: `image.conv(kernel, "y x", features=("c", "o"))`.

    Both operands have the spatial axes and the input features; the kernel has the output features too, which take
    the place of the input's. One more axis of the image may be there: the batch. With groups the kernel has size
    C // groups of the input features. `input_dilation` spreads the image: a transposed convolution.
    """
    left, right = operand("image", x), operand("kernel", kernel)
    names = names_of(spatial)
    in_axis, out = features
    if x.shape.names is None or kernel.shape.names is None:
        refuse("conv: the axes need names", left, right, remedy='.named("b c y x")')
    for name in (*names, in_axis):
        find_axis("conv", left, name, blame=0, others=[right])
        find_axis("conv", right, name, blame=1, others=[left])
    find_axis("conv", right, out, blame=1, others=[left])
    if kernel.shape.rank != len(names) + 2:
        refuse(f"conv: the kernel has axes besides {', '.join((*names, in_axis, out))}", left, right, blame=1)
    others = [name for name in x.shape.names if name not in (*names, in_axis)]
    alone = not others
    if alone:
        x = emit("reshape", x, names=("_batch", *x.shape.names), result=Shape.of(x.dtype, (1, *x.shape.sizes)))
        others = ["_batch"]
    if len(others) > 1:
        remedy = f'merge the others into one: .merge("{" ".join(others)}", "n")'
        refuse(f"conv: several batch axes, {', '.join(others)}", left, right, blame=0, remedy=remedy)
    image_names = x.shape.names
    assert image_names is not None
    if out in (*others, *names):
        refuse(f'conv: two axes would be called "{out}"', left, right)
    _check_features(x, kernel, in_axis, out, groups, left, right)
    element = promote("conv", left, right)
    window_sizes = [kernel.shape.sizes[kernel.shape.names.index(name)] for name in names]
    windows = [size for size in window_sizes if isinstance(size, int)]
    if len(windows) != len(names):
        refuse("conv: the kernel's window must have numbers for sizes", left, right, blame=1)
    steps, holes = _per_axis("strides", strides, names), _per_axis("dilation", dilation, names)
    wide = [(size - 1) * hole + 1 for size, hole in zip(windows, holes, strict=True)]
    sizes = [x.shape.sizes[image_names.index(name)] for name in names]
    pads = _pads(padding, names, sizes, wide, steps, left)
    gaps = _per_axis("input_dilation", input_dilation, names)
    for name, size, window, pad, gap in zip(names, sizes, wide, pads, gaps, strict=True):
        _check_window(name, size, window, pad, gap, left, right)
    result_names = tuple(out if name == in_axis else name for name in image_names)
    dims = ConvDims(
        image_names.index(others[0]),
        image_names.index(in_axis),
        tuple(image_names.index(name) for name in names),
        kernel.shape.names.index(in_axis),
        kernel.shape.names.index(out),
        tuple(kernel.shape.names.index(name) for name in names),
        image_names.index(others[0]),
        image_names.index(in_axis),
        tuple(image_names.index(name) for name in names),
    )
    made = emit(
        "convolution",
        el.cast(x, element),
        el.cast(kernel, element),
        names=result_names,
        window_strides=steps,
        padding=pads,
        lhs_dilation=gaps,
        rhs_dilation=holes,
        window_reversal=(flip,) * len(names),
        dimension_numbers=dims,
        feature_group_count=groups,
        batch_group_count=1,
    )
    if not alone:
        return made
    return emit("reshape", made, names=result_names[1:], result=Shape.of(element, made.shape.sizes[1:]))


def _check_features(
    x: Tensor, kernel: Tensor, in_axis: str, out: str, groups: int, left: Operand, right: Operand
) -> None:
    assert x.shape.names is not None
    assert kernel.shape.names is not None
    have, per_group = x.shape.sizes[x.shape.names.index(in_axis)], kernel.shape.sizes[kernel.shape.names.index(in_axis)]
    if not (answer := equal(have, per_group * groups)):
        message = f'conv: the image has {have} features "{in_axis}", the kernel takes {per_group}'
        refuse(message + (f" for each of {groups} groups" if groups > 1 else ""), left, right, answer=answer, blame=1)
    made = kernel.shape.sizes[kernel.shape.names.index(out)]
    if groups > 1 and not (answer := equal(made % groups, 0)):
        refuse(f'conv: {groups} groups do not divide the {made} features "{out}"', left, right, answer=answer, blame=1)


def _check_window(
    name: str, size: Size, window: int, pad: tuple[int, int], gap: int, left: Operand, right: Operand | None
) -> None:
    """The window fits at least once into an axis that is not empty; an empty one gives an empty one."""
    spread = size if gap == 1 else (size - 1) * gap + 1
    if not (answer := current_facts().le(1, size).at_most(window, spread + pad[0] + pad[1])):
        shown = [left] if right is None else [left, right]
        refuse(f'the window of {window} does not always fit into "{name}" of size {size}', *shown, answer=answer)


# ---- pooling ----


def _pool(
    what: str,
    x: Tensor,
    window: Mapping[str, int],
    strides: Mapping[str, int] | None,
    padding: Padding,
    op: str,
    start: el.Number,
) -> Tensor:
    shown = operand("operand", x)
    places = {find_axis(what, shown, axis): (axis, size) for axis, size in window.items()}
    spatial = [str(axis) for axis in window]
    steps = tuple((strides or window).get(axis, 1) for axis in window)
    sizes = [x.shape.sizes[place] for place in places]
    pads = _pads(padding, spatial, sizes, list(window.values()), steps, shown)
    for (axis, size), pad, whole in zip(places.values(), pads, sizes, strict=True):
        _check_window(str(axis), whole, size, pad, 1, shown, None)
    rank = x.shape.rank
    by_place = dict(zip(places, zip(window.values(), steps, pads, strict=True), strict=True))
    each = [by_place.get(place, (1, 1, (0, 0))) for place in range(rank)]
    region = binary_region(op, x.dtype)
    return emit(
        "reduce_window",
        x,
        constant(start, x.dtype),
        names=x.shape.names,
        regions=(region,),
        window_dimensions=tuple(size for size, _, _ in each),
        window_strides=tuple(step for _, step, _ in each),
        padding=tuple(pad for _, _, pad in each),
    )


def max_pool(
    x: Tensor, window: Mapping[str, int], strides: Mapping[str, int] | None = None, padding: Padding = "valid"
) -> Tensor:
    """The largest element of each window: `x.max_pool({"y": 2, "x": 2})`. Strides are the window's unless given."""
    return _pool("max_pool", x, window, strides, padding, "maximum", el.lowest(x.dtype))


def sum_pool(
    x: Tensor, window: Mapping[str, int], strides: Mapping[str, int] | None = None, padding: Padding = "valid"
) -> Tensor:
    """The sum of each window."""
    return _pool("sum_pool", x, window, strides, padding, "add", 0)


def mean_pool(
    x: Tensor,
    window: Mapping[str, int],
    strides: Mapping[str, int] | None = None,
    padding: Padding = "valid",
    *,
    count_padding: bool = False,
) -> Tensor:
    """The average of each window; padding counts only where asked."""
    if not x.dtype.is_float:
        refuse(f"mean_pool: not for {x.dtype}", operand("operand", x), remedy='cast first: .to("f32")')
    total = sum_pool(x, window, strides, padding)
    if count_padding or padding == "valid":
        count = 1
        for size in window.values():
            count *= size
        return el.divide(total, float(count))
    one = el.spread(constant(1, x.dtype), x.shape, ())
    return el.divide(total, sum_pool(one, window, strides, padding))
