"""The KV cache of all sequences: one pool of pages per layer for keys and one for values, and who has which page.

`Pool.pages` (`pages.Pages`) gives pages out; the arrays grow with the pages that were ever used, up to the limit, in
host memory. A step takes the arrays and gives them back (`take`, `give`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.buffer import as_array
from smelt.dtype import Array, i8
from smelt.layout import SCALES, WORD
from smelt.llm.batch import Pools
from smelt.llm.config import PAGE, Config
from smelt.llm.pages import Pages

SMALLEST = 8  # pages


class Pool:
    """Pages with their arrays; `put` brings an array to where steps compute."""

    def __init__(
        self,
        config: Config,
        put: Callable[[Array], Any],
        limit: int,
        salt: bytes = b"",
        copies: bool = False,
        grows: bool = True,
    ) -> None:
        """`copies`: steps compute on arrays in host memory, where a page is easily copied. `grows`: the arrays grow
        with their use; otherwise they have all pages from the first step on, and programs of one size."""
        self.pages = Pages(limit, salt, config.window, copies, config.switch)
        self._config = config
        self._put = put
        self._smallest = SMALLEST if grows else limit
        self._capacity = 0
        self._arrays: Pools | None = []

    @property
    def nbytes(self) -> int:
        """What the arrays take now."""
        return self._capacity * page_bytes(self._config)

    @property
    def is_lost(self) -> bool:
        """Whether a step has the arrays, or took them along when it failed."""
        return self._arrays is None

    def take(self) -> Pools:
        """The arrays, with room for every page that is in use; `give` them back after the step."""
        if self._arrays is None:  # a step failed and took them along
            self._arrays, self._capacity = [], 0
        if self.pages.used > self._capacity or not self._arrays:
            self._grow(min(self.pages.limit, max(self._smallest, 2 * self._capacity, self.pages.used)))
        arrays, self._arrays = self._arrays, None
        for source, target in self.pages.take_copies():
            for pair in arrays:
                for array in pair:
                    array[target] = array[source]
        return arrays

    def reserve(self, pages: int) -> None:
        """Allocate a number of pages now, where every size costs a compilation."""
        if pages > self._capacity:
            self._grow(min(self.pages.limit, pages))

    def give(self, arrays: Pools) -> None:
        self._arrays = arrays

    def lose(self) -> None:
        """The content is gone; sequences must be freed and computed again."""
        self._arrays = None

    def read(self, page: int) -> list[tuple[Array, Array]]:
        """A page of every layer, copied to the host."""
        assert self._arrays, "between steps"
        return [(np.array(as_array(k)[page]), np.array(as_array(v)[page])) for k, v in self._arrays]

    def write(self, content: dict[int, list[tuple[Array, Array]]]) -> None:
        """Put pages of every layer. Where that fails, the content of all pages is gone."""
        try:
            self._write(content)
        except BaseException:
            self.lose()
            raise

    def _write(self, content: dict[int, list[tuple[Array, Array]]]) -> None:
        arrays = self.take()
        for layer, pair in enumerate(arrays):
            both = []
            for i, buffer in enumerate(pair):
                array = np.array(as_array(buffer))
                for page, values in content.items():
                    array[page] = values[layer][i]
                both.append(self._put(array))
            arrays[layer] = (both[0], both[1])
        self.give(arrays)

    def _grow(self, capacity: int) -> None:
        config = self._config
        keys_of, values_of = pool_sizes(config, capacity)
        before = self._arrays or [(None, None)] * len(config.layers)
        grown: Pools = []
        for i, (keys, values) in enumerate(before):
            before[i] = (None, None)  # one layer at a time is there twice
            grown.append((self._enlarge(keys, keys_of), self._enlarge(values, values_of)))
        self._arrays, self._capacity = grown, capacity

    def _enlarge(self, old: Any, sizes: tuple[int, ...]) -> Any:
        array = np.zeros(sizes, self._config.cache.numpy)
        if old is not None:
            array[: self._capacity] = as_array(old)
        return self._put(array)


def pool_sizes(config: Config, pages: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of a layer's keys and of its values."""
    heads, depth = config.kv_heads, config.head_size
    if config.cache == i8:
        return (pages, heads, depth // WORD + SCALES, PAGE, WORD), (pages, heads, PAGE // WORD, depth, WORD)
    return (pages, heads, depth, PAGE), (pages, heads, PAGE, depth)


def page_bytes(config: Config) -> int:
    """Bytes of a page of all layers."""
    return PAGE * config.cache_bytes
