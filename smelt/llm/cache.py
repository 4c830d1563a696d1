"""Keys and values of one sequence: contiguous arrays per layer that double when they are full.

`reserve` makes room before a step, `commit` takes what the step gave, `truncate` forgets the end. Paged pools of
many sequences will have the same interface.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.buffer import HostBuffer
from smelt.llm.config import Config

SMALLEST = 128  # tokens


class Cache:
    """Room for `capacity` tokens of which `length` are written. Buffers lie on the platform's device."""

    def __init__(self, config: Config, platform: Any, limit: int) -> None:
        self._config = config
        self._platform = platform
        self._limit = limit
        self.length = 0
        self.capacity = 0
        self.buffers: list[tuple[Any, Any]] = []

    @property
    def nbytes(self) -> int:
        return self.capacity * self._config.cache_bytes

    def reserve(self, count: int) -> None:
        """Room for so many tokens more."""
        needed = self.length + count
        assert needed <= self._limit, "admission is the engine's"
        if needed <= self.capacity:
            return
        capacity = max(SMALLEST, self.capacity)
        while capacity < needed:
            capacity *= 2
        self._grow(min(capacity, max(self._limit, needed)))

    def commit(self, buffers: list[tuple[Any, Any]], count: int) -> None:
        """What a step made of the buffers, with so many tokens more in them."""
        self.buffers = buffers
        self.length += count

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on; they are written over."""
        assert 0 <= length <= self.length
        self.length = length

    def _grow(self, capacity: int) -> None:
        config = self._config
        sizes = capacity, config.kv_heads, config.head_size
        before = self.buffers or [(None, None)] * len(config.layers)
        self.buffers = [(self._grown(k, sizes), self._grown(v, sizes)) for k, v in before]
        self.capacity = capacity

    def _grown(self, old: Any, sizes: tuple[int, ...]) -> Any:
        array = np.zeros(sizes, np.float32)
        if old is not None:
            array[: self.length] = old.numpy()[: self.length]
        return self._platform.put(HostBuffer.of(array))
