"""Depthwise convolution of padded NHWC feature maps: `smelt.depthwise_conv`, channels on lanes.

Its input may be the result of an expanding 1×1 convolution, which `expand_depthwise.py` then fuses. int8 depthwise
convolutions come here in f32 (`passes/lower_int8.py`): a sum over one channel's taps leaves VNNI nothing to dot.
"""

from __future__ import annotations

from math import prod

import numpy as np

from smelt.dim import Size, floordiv, product
from smelt.dtype import f32
from smelt.ir.core import Op
from smelt.ir.ops.packed import taps_of
from smelt.kernel.build.expand_depthwise import expand_depthwise
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import Expr, Number, add, scale
from smelt.kernel.loops.nest import Nest, tensor
from smelt.kernel.tune.schedules import Depthwise, KernelKey, largest_divisor


@sink("smelt.depthwise_conv", anchor=True, addressed=(0, 1))
def depthwise_conv(nest: Nest, op: Op, output: Output) -> None:
    """Channels on lanes; a few adjacent pixels of a row together, so that they share loads of the weights."""
    maps, kernel = op.operands
    if maps in nest.expanded:
        expand_depthwise(nest, op, output, nest.expanded[maps])
        return
    batch, *out, channels = tensor(op.result).sizes
    *window, _ = tensor(kernel).sizes
    taps = taps_of({**op.attrs, "window": window})
    key = KernelKey.of(
        "depthwise_conv",
        batch=batch,
        rows=product(out[:-1]),
        pixels=out[-1],
        channels=channels,
        taps=prod(taps.window),
        stride=taps.strides[-1],
    )
    schedule = nest.choose_schedule(key, Depthwise)
    with nest.loops((batch, *out[:-1])) as (sample, *rows_out):
        for first, count, unroll in _segments(out[-1], schedule.pixels):
            with nest.loop(count, "ordered") as segment, nest.loop(channels, "lane") as channel:
                totals: list[Expr] = [Number(0.0, f32)] * unroll
                for tap in np.ndindex(*taps.window):
                    factor = nest.pull(kernel, (*map(Number, tap), channel))
                    rows = [
                        add(scale(row_out, stride), at * hole)
                        for row_out, stride, at, hole in zip(rows_out, taps.strides, tap, taps.dilations, strict=False)
                    ]
                    for i in range(unroll):
                        x = scale(add(first, scale(segment, unroll), i), taps.strides[-1])
                        element = nest.pull(maps, (sample, *rows, add(x, tap[-1] * taps.dilations[-1]), channel))
                        totals[i] = nest.apply("fma", factor, element, totals[i], dtype=f32)
                for i, total in enumerate(totals):
                    output.finish(
                        nest,
                        op,
                        (sample, *rows_out, add(first, scale(segment, unroll), i), channel),
                        total,
                    )


def _segments(pixels: Size, unroll: int) -> list[tuple[Size, Size, int]]:
    """A row as segments of a few pixels and a rest: (first pixel, segments, pixels per segment)."""
    if isinstance(pixels, int):
        unroll = largest_divisor(pixels, unroll)
        return [(0, pixels // unroll, unroll)]
    whole = floordiv(pixels, unroll)
    return [(0, whole, unroll), (whole * unroll, pixels - whole * unroll, 1)]
