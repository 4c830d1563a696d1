"""A token from logits, on a device: temperature, top-k, top-p and min-p, as `sample.Sampler` does on the host.

In: logits [s, v], and the sampling parameters and a random number of each row. Out: tokens i32[s]. Limits are
thresholds found by bisection, since sorting a vocabulary takes longer than some thirty sums. Called by `decoder`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from smelt.dtype import i32
from smelt.tensor.core import Tensor
from smelt.tensor.ops.elementwise import cast, outer, where
from smelt.tensor.ops.move import arange
from smelt.tensor.ops.reduce import argmax

BITS = 31  # of the distance of a score from the greatest one: f32 that are not negative are ordered as integers


class Draw(NamedTuple):
    """Sampling parameters of each row, [s] each."""

    temperature: Any  # f32; 0: the likeliest token
    top_k: Any  # i32; the size of the vocabulary: no limit
    top_p: Any  # f32
    min_p: Any  # f32
    uniform: Any  # f32, random in [0, 1)


def draw_tokens(logits: Tensor, asked: Draw) -> Tensor:
    """A token for each row of logits f32[s, v]."""
    likeliest = argmax(logits, "v").to(i32)
    scores = logits / where(asked.temperature > 0, asked.temperature, 1.0)
    behind = (scores.max("v") - scores).transpose("s", "v")  # 0 for the likeliest
    powers, rank = (-behind).exp(), behind.bitcast("i32")
    zero = asked.top_k * 0

    def count(limit: Tensor) -> Tensor:
        return cast(rank < limit, i32).sum("v")

    # The k likeliest and those as likely as the last of them; then the likeliest up to the one that reaches the share.
    likely = where(rank <= _bisect(BITS, zero, lambda limit: count(limit) < asked.top_k), powers, 0.0)
    share = where(asked.top_p < 1, asked.top_p * likely.sum("v"), math.inf)
    last = _bisect(BITS, zero, lambda limit: where(rank < limit, likely, 0.0).sum("v") < share)
    left = where((rank <= last) & (powers >= asked.min_p), likely, 0.0)
    # The first token up to which the sum exceeds its part of the whole.
    target = asked.uniform * left.sum("v")
    size = logits.size("v")
    assert isinstance(size, int)
    place = arange(size, "v", i32)
    token = _bisect(
        size.bit_length(), zero, lambda end: where(outer("-", end, place) > 0, left, 0.0).sum("v") <= target
    )
    return where((asked.temperature > 0) & (token < size), token, likeliest)


def _bisect(bits: int, zero: Tensor, holds: Callable[[Tensor], Tensor]) -> Tensor:
    """For each row the greatest number of some bits for which a condition holds: it holds up to some number."""
    found = zero
    for bit in reversed(range(bits)):
        tried = found + (1 << bit)
        found = where(holds(tried), tried, found)
    return found
