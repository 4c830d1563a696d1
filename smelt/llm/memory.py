"""How much memory a language model needs, and how many pages its cache may have: planned before anything is loaded."""

from __future__ import annotations

import math

from smelt.buffer import bytes_text, machine_memory
from smelt.errors import MemoryLimitError, RunError
from smelt.llm.batch import CHUNK
from smelt.llm.cache import page_bytes
from smelt.llm.config import PAGE, Config
from smelt.llm.pages import pages_in_window

DEFAULT_CONTEXT = 1 << 15  # tokens, where a model allows more
CONTEXTS = 4  # whole contexts that the cache has room for, where the machine's memory allows it


def choose_context(config: Config, context: int | None) -> int:
    """How many tokens a sequence may have."""
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
    name: str, config: Config, context: int, weights: int, work: int, limit: int | None, free: int | None = None
) -> int:
    """How many pages the cache may have. `weights` and `work` (of a step) are bytes, as is the limit; `free` are those
    that a device has left beside the weights, of which half is for what decodes."""
    whole, each = _pages(config, context), page_bytes(config)
    if free is not None:
        check_memory(name, config, context, weights, work, weights + free)
    if limit is None:
        room = machine_memory() // 2 - weights if free is None else free // 2
        return max(whole, min(CONTEXTS * whole, room // each))
    check_memory(name, config, context, weights, work, limit)
    return max(whole, min(CONTEXTS * whole, (limit - weights - work) // each))


def check_memory(name: str, config: Config, context: int, weights: int, work: int, limit: int) -> None:
    """Refuse a model that cannot stay within a limit."""
    cache = _pages(config, context) * page_bytes(config)
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
