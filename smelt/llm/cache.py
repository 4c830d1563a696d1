"""The KV cache of all sequences: one pool of pages per layer for keys and one for values, and who has which page.

`Pool.pages` (`pages.Pages`) gives pages out; the arrays grow with the pages that were ever used, up to the limit, in
host memory. Layers with a window may have pages of their own, and fewer of them (`Config.sliding`). A step takes the
arrays and gives them back (`take`, `give`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.buffer import as_array
from smelt.dtype import Array, i8
from smelt.layout import SCALES, WORD
from smelt.llm.batch import CHUNK, Pools
from smelt.llm.config import PAGE, Config
from smelt.llm.pages import Pages, pages_in_window

SMALLEST = 8  # pages
CONTEXTS = 4  # whole contexts that the cache has room for, where the machine's memory allows it
SEQUENCES = 64  # that run at once
BLOCK = 16 << 20  # bytes of layers that are allocated at once: as small pages they would cost TLB misses


class Pool:
    """Pages with their arrays; `put` copies an array to the device that computes."""

    def __init__(
        self,
        config: Config,
        put: Callable[[Array], Any],
        limit: int,
        salt: bytes = b"",
        copies: bool = False,
        grows: bool = True,
        sequences: int = SEQUENCES,
        enlarge: Callable[[Any, int], Any] | None = None,
    ) -> None:
        """`copies`: steps compute on arrays in host memory, where a page is easily copied. `grows`: the arrays grow
        with their use; otherwise they have all pages from the first step on, and programs of one size. `sequences` run
        at once. `enlarge`: gives an array of more pages on the device."""
        sliding = None
        if config.sliding is not None:
            most = sliding_pages(config, limit, sequences)
            small = min(most, CONTEXTS * pages_in_window(config.sliding, CHUNK))
            sliding = Pages(most, salt, config.sliding, copies, config.switch, small=small)
        self.pages = Pages(limit, salt, config.window, copies, config.switch, sliding)
        self._config = config
        self._put = put
        self._enlarge_there = enlarge
        self._grows = grows
        self._capacity = {False: 0, True: 0}  # pages of the arrays of layers, and of those that slide
        self._arrays: Pools | None = []

    @property
    def nbytes(self) -> int:
        """What the arrays take now."""
        layers = [self._capacity[self._config.is_sliding(i)] for i in range(len(self._config.layers))]
        return PAGE * self._config.layer_bytes * sum(layers)

    @property
    def is_lost(self) -> bool:
        """Whether a step has the arrays, or took them along when it failed."""
        return self._arrays is None

    def take(self) -> Pools:
        """The arrays, with room for every page that is in use; `give` them back after the step."""
        if self._arrays is None:  # a step failed and took them along
            self._arrays, self._capacity = [], {False: 0, True: 0}
        wanted = {slides: self._choose_capacity(slides) for slides in self._capacity}
        if wanted != self._capacity or not self._arrays:
            self._grow(wanted)
        arrays, self._arrays = self._arrays, None
        for slides in wanted:
            pages = self.pages_of(slides)
            for source, target in () if pages is None else pages.take_copies():
                for i, pair in enumerate(arrays):
                    if self._config.is_sliding(i) == slides:
                        for array in pair:
                            array[target] = array[source]
        return arrays

    def pages_of(self, slides: bool) -> Pages | None:
        """The pages of layers that slide, or of the others."""
        return self.pages.sliding if slides else self.pages

    def _choose_capacity(self, slides: bool) -> int:
        pages, now = self.pages_of(slides), self._capacity[slides]
        if pages is None:
            return 0
        smallest = SMALLEST if self._grows else pages.limit
        return now if now and pages.used <= now else min(pages.limit, max(smallest, 2 * now, pages.used))

    def reserve(self, pages: int) -> None:
        """Allocate a number of pages now, where every size costs a compilation."""
        if pages > self._capacity[False]:
            self._grow({**self._capacity, False: min(self.pages.limit, pages)})

    def give(self, arrays: Pools) -> None:
        self._arrays = arrays

    def discard(self) -> None:
        """Drop the content: sequences must be freed and recomputed."""
        self._arrays = None

    def read(self, layer: int, pages: list[int]) -> tuple[Array, Array]:
        """Keys and values of a layer's pages, copied to the host."""
        assert self._arrays, "between steps"
        keys, values = self._arrays[layer]
        return as_array(keys)[pages], as_array(values)[pages]

    def write(self, content: list[dict[int, tuple[Array, Array]]]) -> None:
        """Write pages of every layer. If that fails, the content of all pages is lost."""
        try:
            self._write(content)
        except BaseException:
            self.discard()
            raise

    def _write(self, content: list[dict[int, tuple[Array, Array]]]) -> None:
        arrays = self.take()
        for layer, pair in enumerate(arrays):
            both = []
            for i, buffer in enumerate(pair):
                array = np.array(as_array(buffer))
                for page, values in content[layer].items():
                    array[page] = values[i]
                both.append(self._put(array))
            arrays[layer] = (both[0], both[1])
        self.give(arrays)

    def _grow(self, capacity: dict[bool, int]) -> None:
        """Enlarge the arrays, some layers at a time: only these are there twice."""
        config = self._config
        before = self._arrays or [(None, None)] * len(config.layers)
        grown: Pools = []
        while (first := len(grown)) < len(before):
            slides = config.is_sliding(first)
            if before[first][0] is not None and capacity[slides] == self._capacity[slides]:
                grown.append(before[first])
                continue
            layers = [first]
            most = max(1, BLOCK // (PAGE * config.layer_bytes * capacity[slides]))
            while len(layers) < most and layers[-1] + 1 < len(before) and config.is_sliding(layers[-1] + 1) == slides:
                layers.append(layers[-1] + 1)
            old = [before[i] for i in layers]
            before[first : first + len(old)] = [(None, None)] * len(old)
            keys, values = (
                self._enlarge([pair[i] for pair in old], sizes)
                for i, sizes in enumerate(pool_sizes(config, capacity[slides]))
            )
            grown += zip(keys, values, strict=True)
        self._arrays, self._capacity = grown, capacity

    def _enlarge(self, old: list[Any], sizes: tuple[int, ...]) -> list[Any]:
        """The arrays of some layers, in one block where the host makes them."""
        if self._enlarge_there is not None and old[0] is not None:
            return [self._enlarge_there(buffer, sizes[0]) for buffer in old]
        block = np.zeros((len(old), *sizes), self._config.cache.numpy)
        for array, buffer in zip(block, old, strict=True):
            if buffer is not None:
                known = as_array(buffer)
                array[: len(known)] = known
        return [self._put(array) for array in block]


def pool_sizes(config: Config, pages: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of a layer's keys and of its values."""
    heads, depth = config.kv_heads, config.head_size
    if config.cache == i8:
        return (pages, heads, depth // WORD + SCALES, PAGE, WORD), (pages, heads, PAGE // WORD, depth, WORD)
    return (pages, heads, depth, PAGE), (pages, heads, PAGE, depth)


def sliding_pages(config: Config, pages: int, sequences: int) -> int:
    """Pages of layers with a window beside a number of pages of the others: what the windows of all sequences need that
    run at once, so that these pages never lack."""
    assert config.sliding is not None
    return min(pages, sequences * (pages_in_window(config.sliding, PAGE) + 1) + -(-CHUNK // PAGE))


def cache_bytes(config: Config, pages: int, sequences: int) -> int:
    """Bytes of a cache with a number of pages for layers without a window."""
    sliding = sum(config.is_sliding(i) for i in range(len(config.layers)))
    beside = sliding_pages(config, pages, sequences) if sliding else 0
    return PAGE * config.layer_bytes * (pages * (len(config.layers) - sliding) + beside * sliding)
