"""Every rule of `padding.find_leak` and `independent_rows.find_mixing`: what they prove, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from smelt.dim import symbol
from smelt.ir.attributes import ConvDims, DotDims, GatherDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Func, Value
from smelt.passes.independent_rows import BATCHED, NOT_BATCHED, batch_symbol, describe_batching, find_mixing
from smelt.passes.padding import find_leak, multiple
from smelt.shape import Shape

B = symbol("B")
X = Shape("f32", "B", 4, 6)
Make = Callable[[FuncBuilder, Value], Value]


def convolve(batch: int = 0, groups: int = 1) -> Make:
    """A convolution along the last axis or, with batch=2, along the first; `groups` of a batch."""

    def make(f: FuncBuilder, x: Value) -> Value:
        image = 2 - batch
        dims = ConvDims(batch, 1, (image,), 1, 0, (2,), batch, 1, (image,))
        sizes = list(x.shape.sizes)
        if groups > 1:
            sizes[batch] = sizes[batch] // groups
        return f.convolution(
            x, f.args[1], dimension_numbers=dims, feature_group_count=1, batch_group_count=groups,
            result=Shape.of(x.shape.dtype, sizes),
        )  # fmt: skip

    return make


def window(axis: int, **changes: Any) -> Make:
    """A reduce_window that does nothing but what `changes` say about one axis."""
    idle: dict[str, Any] = {
        "window_dimensions": 1,
        "window_strides": 1,
        "base_dilations": 1,
        "window_dilations": 1,
        "padding": (0, 0),
    }

    def make(f: FuncBuilder, x: Value) -> Value:
        attrs: dict[str, Any] = {
            name: tuple(changes.get(name, amount) if d == axis else amount for d in range(3))
            for name, amount in idle.items()
        }
        with f.region(Shape("f32"), Shape("f32")) as r:
            r.result(r.add(*r.args))
        return f.op("stablehlo.reduce_window", x, f.constant(0, x.shape.dtype), regions=[r.body], **attrs).results[0]

    return make


def reduce(axis: int) -> Make:
    def make(f: FuncBuilder, x: Value) -> Value:
        with f.region(Shape("f32"), Shape("f32")) as r:
            r.result(r.add(*r.args))
        return f.op("stablehlo.reduce", x, f.constant(0, x.shape.dtype), regions=[r.body], dimensions=(axis,)).results[
            0
        ]

    return make


def sort(axis: int) -> Make:
    def make(f: FuncBuilder, x: Value) -> Value:
        with f.region(Shape("f32"), Shape("f32")) as r:
            r.result(r.compare(*r.args, comparison_direction="LT"))
        return f.op("stablehlo.sort", x, regions=[r.body], dimension=axis, is_stable=True).results[0]

    return make


def scan(axis: int, pointwise: bool = True) -> Make:
    """Running sums, or sums of rows that are turned around at each step."""

    def make(f: FuncBuilder, x: Value) -> Value:
        row = x.shape.with_sizes(size for d, size in enumerate(x.shape.sizes) if d != axis)
        start = f.broadcast_in_dim(f.constant(0, x.shape.dtype), broadcast_dimensions=(), result=row)
        with f.region(row, row) as r:
            item = r.args[0] if pointwise else r.reverse(r.args[0], dimensions=(0,))
            total = r.add(item, r.args[1])
            r.result(total, total)
        return f.op("chlo.scan", x, start, regions=[r.body], dimension=axis).results[0]

    return make


def pad(axis: int, low: int, high: int, interior: int) -> Make:
    def make(f: FuncBuilder, x: Value) -> Value:
        amounts = [tuple(n if d == axis else 0 for d in range(3)) for n in (low, high, interior)]
        names = ("edge_padding_low", "edge_padding_high", "interior_padding")
        attrs: dict[str, Any] = dict(zip(names, amounts, strict=True))
        return f.pad(x, f.constant(0, x.shape.dtype), **attrs)

    return make


PADS, CUTS, ACROSS = "it pads the axis of", "it cuts the axis of", "it works across the"
# name → the op, why padding leaks, why rows mix (None: proven not to)
TABLE: dict[str, tuple[Make, str | None, str | None]] = {
    "tanh": (lambda f, x: f.tanh(x), None, None),
    "transpose": (lambda f, x: f.transpose(x, permutation=(1, 0, 2)), None, "no rows on axis 0"),
    "reverse 0": (lambda f, x: f.reverse(x, dimensions=(0,)), ACROSS, ACROSS),
    "reverse 1": (lambda f, x: f.reverse(x, dimensions=(1, 2)), None, None),
    "concatenate 0": (lambda f, x: f.concatenate(x, x, dimension=0), ACROSS, ACROSS),
    "concatenate 2": (lambda f, x: f.concatenate(x, x, dimension=2), None, None),
    "reduce 0": (reduce(0), ACROSS, "it reduces over the rows"),
    "reduce 2": (reduce(2), None, None),
    "sort 0": (sort(0), ACROSS, ACROSS),
    "sort 1": (sort(1), None, None),
    "sort -3": (sort(-3), ACROSS, ACROSS),
    "scan 0": (scan(0), ACROSS, ACROSS),
    "scan 1": (scan(1), None, None),
    "scan 2": (scan(2), None, None),
    "scan of turned rows": (scan(1, False), "its body is not elementwise", "its body is not elementwise"),
    "pad low": (pad(0, 1, 0, 0), "no multiple", "rows are not along one axis|pads the axis"),
    "pad high": (pad(0, 0, 1, 0), "no multiple", "rows are not along one axis|pads the axis"),
    "pad and crop": (pad(0, 1, -1, 0), PADS, PADS),
    "crop and pad": (pad(0, -1, 1, 0), PADS, PADS),
    "pad 1": (pad(1, 1, 2, 3), None, None),
    "iota 0": (lambda f, x: f.add(x, f.iota(iota_dimension=0, result=x.shape)), None, "counts along a dynamic"),
    "iota 1": (lambda f, x: f.add(x, f.iota(iota_dimension=1, result=x.shape)), None, None),
    "reshape in rows": (lambda f, x: f.reshape(x, result=Shape("f32", "B", 24)), None, None),
    "reshape blocks": (lambda f, x: f.reshape(x, result=X.with_sizes((4 * B, 6))), None, None),
    "reshape across": (lambda f, x: f.reshape(x, result=Shape("f32", 4, "B", 6)), "sizes before", "sizes before"),
    "broadcast": (
        lambda f, x: f.broadcast_in_dim(x, broadcast_dimensions=(0, 2, 3), result=Shape("f32", "B", 3, 4, 6)),
        None, None
    ),
    "broadcast one row": (
        lambda f, x: f.add(x, f.broadcast_in_dim(f.args[1], broadcast_dimensions=(0, 1, 2), result=X)), None, None
    ),
    "dot over rows": (
        lambda f, x: f.dot_general(x, x, dot_dimension_numbers=DotDims((), (), (0,), (0,)),
                                   result=Shape("f32", 4, 6, 4, 6)), "it sums over B", "it sums over the rows"
    ),
    "dot within rows": (
        lambda f, x: f.dot_general(x, x, dot_dimension_numbers=DotDims((0,), (0,), (2,), (2,)),
                                   result=Shape("f32", "B", 4, 4)), None, None
    ),
    "convolution": (convolve(), None, None),
    "convolution across": (convolve(batch=2), ACROSS, ACROSS),
    "convolution in groups": (convolve(groups=4), "no multiple|kernel or its groups", "kernel or its groups"),
    "slice 0": (
        lambda f, x: f.slice(x, start_indices=(0, 0, 0), limit_indices=(2, 4, 6), strides=(1, 1, 1)), CUTS, CUTS
    ),
    "window 2": (window(2, window_dimensions=2), None, None),
    "window 0 holes": (window(0, window_dilations=3), ACROSS, ACROSS),
    "window 0": (window(0, window_dimensions=2, padding=(1, 0)), ACROSS, ACROSS),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_rules(name: str) -> None:
    make, leak, mixing = TABLE[name]
    f = FuncBuilder("main", [X, Shape("f32", 4, 4, 1) if "convolution" in name else Shape("f32", 1, 4, 6)])
    judge(f.func(make(f, f.args[0])), leak, mixing)


def judge(func: Func, leak: str | None, mixing: str | None) -> None:
    for want, got in ((leak, find_leak(func, "B")), (mixing, find_mixing(func, "B"))):
        assert (want is None) == (got is None), got
        assert want is None or any(each in str(got) for each in want.split("|")), got


INDICES = Shape("i32", "B", 5, 1)
GATHERS: dict[str, tuple[list[Shape], GatherDims, tuple[int, ...], str | None, str | None]] = {
    "embedding": ([Shape("f32", 9, 4), INDICES], GatherDims((2,), (0,), (), (), (0,), 2), (1, 4), None, None),
    "positions": ([Shape("f32", 9, 4), Shape("i32", 5, 1)], GatherDims((1,), (0,), (), (), (0,), 1), (1, 4),
                  None, "no rows on axis 0"),
    "among rows": ([X, Shape("i32", 5, 1)], GatherDims((1, 2), (0,), (), (), (0,), 1), (1, 4, 6),
                   "it picks along the axis of B", "it picks among the rows"),
    "a batch by itself": ([X, INDICES], GatherDims((1, 2), (0,), (), (), (0,), 2), (1, 4, 6),
                          "it picks along the axis of B", "its table and its indices are batches"),
    "in batches": ([X, INDICES], GatherDims((2,), (1,), (0,), (0,), (1,), 2), (1, 1, 6),
                   "it picks along the axis of B", "it gathers in batches"),
    "an index over rows": ([Shape("f32", 9), Shape("i32", "B", 1)], GatherDims((0,), (), (), (), (0,), 0), (4,),
                           "an index runs along the axis of B|no multiple", "an index is spread over the rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", GATHERS)
def test_gathers(name: str) -> None:
    args, dims, slices, leak, mixing = GATHERS[name]
    f = FuncBuilder("main", args)
    judge(
        f.func(f.op("stablehlo.gather", *f.args, dimension_numbers=dims, slice_sizes=slices).results[0]), leak, mixing
    )


def test_sizes_that_are_multiples_of_a_symbol() -> None:
    n = symbol("N")
    for size, factor in ((B, 1), (6 * B, 6), (n * B, n), (B + 1, None), (B * B, None), (n, None), (4, None)):
        assert multiple(size, "B") == factor


@pytest.mark.parametrize(
    ("args", "batch"),
    [([X], "B"), ([X, X], "B"), ([], None), ([Shape("f32", 3, "B")], None), ([X, Shape("f32", "N")], None),
     ([X, Shape("f32")], None), ([X.with_sizes((2 * B, 4))], None), ([X.with_sizes((B * symbol("N"),))], None)],
)  # fmt: skip
def test_the_symbol_of_a_batch(args: list[Shape], batch: str | None) -> None:
    f = FuncBuilder("main", args)
    results = [f.tanh(each) for each in f.args] or [f.constant(0.0, X.dtype)]
    func = f.func(*results)
    assert batch_symbol(func) == batch
    said = describe_batching(func)
    assert said == ({BATCHED: "B"} if batch else {NOT_BATCHED: said.get(NOT_BATCHED)})


def test_arguments_and_bodies_that_forbid_a_proof() -> None:
    f = FuncBuilder("main", [X.with_sizes((2 * B, 4))])
    assert "B is only a part of a size" in str(find_leak(f.func(f.tanh(f.args[0])), "B"))
    f = FuncBuilder("main", [Shape("f32", 4, "B")])
    assert find_mixing(f.func(f.tanh(f.args[0])), "B") == "an input has its rows on axis 1"
    f = FuncBuilder("main", [X])
    func = f.func(f.constant(0.0, X.dtype))
    assert find_mixing(func, "B") == "a result has no rows on axis 0"
    assert describe_batching(func) == {
        NOT_BATCHED: "inputs and outputs do not have one dynamic dimension as their first"
    }
