"""A token from logits, on a device: temperature, top-k, top-p and min-p, as `sample.Sampler` does on the host.

In: logits [s, v], and the sampling parameters and a random number of each row. Out: tokens i32[s]. Limits are
thresholds, found some bits at a time: all numbers that these bits can be are tried at once, so that few passes over the
vocabulary depend on each other. A row is reduced in parts of a fixed length, which are added up in a fixed order: what
a row gives does not depend on the others. Called by `decoder` and `gpu_step`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from smelt.dtype import Array, f32, i32
from smelt.llm.batch import Drawn
from smelt.llm.sample import Sampling
from smelt.tensor.core import Tensor
from smelt.tensor.ops.elementwise import cast, leaf, minimum, outer, where
from smelt.tensor.ops.move import arange
from smelt.tensor.ops.reduce import argmax

BITS = 31  # of the distance of a score from the greatest one: f32 that are not negative are ordered as integers
AT_ONCE = 4  # bits of a threshold that one pass finds
SHORT = 512  # tokens of a part that one is drawn from
LONG = 4 * SHORT  # tokens that a thread group adds up


class Draw(NamedTuple):
    """Sampling parameters of each row, [s] each."""

    temperature: Any  # f32; 0: the likeliest token
    top_k: Any  # i32; the size of the vocabulary: no limit; None: no row has one
    top_p: Any  # f32; None: no row has a limit
    min_p: Any  # f32
    uniform: Any  # f32, random in [0, 1)


def parameters_of(asked: Sequence[Sampling | None], vocabulary: int, rows: int) -> Draw:
    """The parameters of the first rows, without random numbers; None, and rows behind them: the likeliest token."""
    padded = [each or Sampling() for each in asked] + [Sampling()] * (rows - len(asked))
    return Draw(
        temperature=np.array([each.temperature for each in padded], np.float32),
        top_k=np.array([min(each.top_k or vocabulary, vocabulary) for each in padded], np.int32),
        top_p=np.array([each.top_p for each in padded], np.float32),
        min_p=np.array([each.min_p for each in padded], np.float32),
        uniform=None,
    )


def random_numbers(draws: Sequence[Drawn | None], rows: int) -> Array:
    """Those of the samplers at their positions; 0 for others."""
    numbers = [0.0 if each is None else each[0].uniform(each[1]) for each in draws]
    return np.array([*numbers, *[0.0] * (rows - len(numbers))], np.float32)


def draw_tokens(logits: Tensor, asked: Draw, likeliest: Tensor | None = None) -> Tensor:
    """A token for each row of logits f32[s, v]; `likeliest` i32[s] where it is known. A row without a greatest logit
    keeps what stands there."""
    best = argmax(logits, "v").to(i32) if likeliest is None else likeliest
    top = logits.take_along(best.insert("v", 1), "v").squeeze("v")
    size = logits.size("v")
    assert isinstance(size, int)
    count = -(-size // LONG)
    padded = logits.pad(v=(0, count * LONG - size), value=-math.inf)
    behind = (top - padded) / where(asked.temperature > 0, asked.temperature, 1.0)  # 0 for the likeliest
    behind = behind.transpose("s", "v")
    powers, rank = (-behind).exp(), behind.bitcast("i32")
    ranks, weights = (each.split("v", c=count, w=LONG) for each in (rank, powers))

    def is_below(limits: Tensor) -> Tensor:
        """Which tokens are below some limits [s, t]: of each limit [t], in parts."""
        return outer("-", ranks, limits).transpose("s", "t", "c", "w") < 0

    # The k likeliest and those as likely as the last of them; then the likeliest up to the one that reaches the share.
    last: Tensor | None = None
    if asked.top_k is not None:
        wanted = asked.top_k
        last = _search(BITS, best, lambda limits: cast(is_below(limits), i32).sum("w").sum("c") < wanted)
    if asked.top_p is not None:
        end = None if last is None else last + 1
        whole = weights if last is None else where(ranks <= last, weights, 0.0)
        share = where(asked.top_p < 1, asked.top_p * whole.sum("w").sum("c"), math.inf)

        def is_before(limits: Tensor) -> Tensor:
            below = is_below(limits if end is None else minimum(limits, end))
            return where(below, weights, 0.0).sum("w").sum("c") < share

        found = _search(BITS, best, is_before)
        last = found if last is None else minimum(last, found)

    def weigh(rank: Tensor, powers: Tensor) -> Tensor:
        """The powers of the tokens that are left, 0 for others."""
        kept = powers >= asked.min_p
        return where(kept if last is None else kept & (rank <= last), powers, 0.0)

    # The first part up to which the sum exceeds its part of the whole, and in it the first token.
    parts = count * LONG // SHORT
    sums = weigh(*(each.split("v", c=parts, w=SHORT) for each in (rank, powers))).sum("w")
    ends = _sums_up_to(sums, "c", parts)
    target = asked.uniform * ends.max("c")
    part = _first(ends > target, sums > 0, "c", parts)
    inside = outer("+", part * SHORT, arange(SHORT, "w", i32))
    tokens = weigh(*(each.rename(v="w").take_along(inside, "w") for each in (rank, powers)))
    before = where(part > 0, ends.take_along((part - 1).insert("c", 1), "c").squeeze("c"), 0.0)
    found = _first(_sums_up_to(tokens, "w", SHORT) + before > target, tokens > 0, "w", SHORT)
    return where((asked.temperature > 0) & (best >= 0), part * SHORT + found, best)


def _search(bits: int, like: Tensor, holds: Callable[[Tensor], Tensor]) -> Tensor:
    """For each row the greatest number of some bits for which a condition holds: it holds up to some number. `holds`
    tries several numbers for each row, [s, t]."""
    found = like * 0
    while bits:
        more = min(AT_ONCE, bits)
        bits -= more
        tried = outer("+", found, leaf((np.arange(1, 1 << more) << bits).astype(np.int32), names=("t",)))
        # What was found before is known from the numbers that are tried: each pass needs the arrays of the last one.
        found = tried.min("t") + (cast(holds(tried), i32).sum("t") - 1) * (1 << bits)
    return found


def _sums_up_to(x: Tensor, axis: str, size: int) -> Tensor:
    """Sums of elements that are not negative up to each one, which never decrease."""
    is_up_to = outer("-", arange(size, "t", i32), arange(size, axis, i32)) >= 0
    return outer("*", x, cast(is_up_to, f32)).transpose("s", "t", axis).sum(axis).rename(t=axis)


def _first(exceeds: Tensor, is_there: Tensor, axis: str, size: int) -> Tensor:
    """The first place where a sum exceeds its target; where rounding left none, the last place where something is."""
    place = arange(size, axis, i32)
    found = where(exceeds, place, where(is_there, 2 * size - place, 2 * size)).min(axis)
    return where(found < size, found, 2 * size - found)
