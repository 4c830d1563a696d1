"""The memory of a language model and the number of pages of its KV cache, planned before anything is loaded."""

from __future__ import annotations

import math
from bisect import bisect_right

from smelt.buffer import bytes_text, machine_memory
from smelt.errors import MemoryLimitError, RunError
from smelt.llm.batch import CHUNK
from smelt.llm.cache import CONTEXTS, cache_bytes
from smelt.llm.config import PAGE, Config
from smelt.llm.pages import pages_in_window

DEFAULT_CONTEXT = 1 << 15  # tokens, where a model allows more


def choose_context(config: Config, context: int | None) -> int:
    """The maximum length of a sequence in tokens."""
    most = config.longest
    wanted = min(most, DEFAULT_CONTEXT) if context is None else context
    if type(wanted) is not int or not 1 <= wanted <= most:
        raise RunError(
            "the model was not made for such a context",
            expected=f"1 to {most} tokens",
            got=context,
            remedy=f"context={most}, or less",
        )
    return wanted


def check_sequences(sequences: int) -> None:
    if type(sequences) is not int or not 1 <= sequences <= CHUNK:
        raise RunError(
            "sequences that are computed at once",
            expected=f"1 to {CHUNK}",
            got=sequences,
            remedy=f"sequences={CHUNK}, or less",
        )


def plan_pages(
    name: str,
    config: Config,
    context: int,
    weights: int,
    work: int,
    limit: int | None,
    free: int | None = None,
    sequences: int = 1,
) -> int:
    """How many pages the cache may have, beside those that layers with a window have for `sequences`. `weights` and
    `work` (of a step) are bytes, as is the limit; `free` are those that a device has left beside the weights, of which
    half is for what decodes."""
    whole = _pages(config, context)
    if free is not None:
        check_memory(name, config, context, weights, work, weights + free)
    if limit is None:
        room = machine_memory() // 2 - weights if free is None else free // 2
    else:
        check_memory(name, config, context, weights, work, limit)
        room = limit - weights - work
    return max(
        whole, bisect_right(range(CONTEXTS * whole + 1), room, key=lambda n: cache_bytes(config, n, sequences)) - 1
    )


def limit_sequences(config: Config, context: int, room: int, sequences: int) -> int:
    """How many sequences may run at once, where a cache for a whole context and their windows must fit."""
    whole = _pages(config, context)
    found = bisect_right(range(1, sequences + 1), room, key=lambda n: cache_bytes(config, whole, n))
    return max(1, found)


def check_memory(name: str, config: Config, context: int, weights: int, work: int, limit: int) -> None:
    """Refuse a model that cannot stay within a limit."""
    cache = cache_bytes(config, _pages(config, context), 1)
    if weights + cache + work > limit:
        raise MemoryLimitError(
            f"{name} needs more memory than the limit",
            expected=f"at most {bytes_text(limit)}",
            got=f"{bytes_text(weights)} of weights, {bytes_text(cache)} of cache for {context} tokens"
            + (f", {bytes_text(work)} for a step" if work else ""),
            remedy="a smaller context, or a larger limit",
        )


def _pages(config: Config, context: int) -> int:
    """Pages that a sequence of a whole context holds at most."""
    whole = math.ceil(context / PAGE)
    return whole if config.window is None else min(whole, pages_in_window(config.window, CHUNK))
