"""The compiled step of a decoder: tokens in, logits of some rows out, keys and values written to a cache.

One program for prefill, decode and scoring. Native runs it at any size; pjrt compiles one program per size, so that
there chunks of a prompt have sizes that are powers of two.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.engine import platform as platform_of
from smelt.errors import UnsupportedError
from smelt.llm.cache import Cache
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.decoder import Decoder
from smelt.tensor.instantiate import instantiate
from smelt.tensor.jit.compile import compile

CHUNK = 512  # tokens of a prompt that one step reads at most


class Step:
    """A decoder with its weights bound, on a platform."""

    def __init__(self, checkpoint: Checkpoint, device: str, engine: str) -> None:
        config = checkpoint.config
        self.platform = platform_of(device, engine)
        self.config = config
        model = instantiate(Decoder, checkpoint.weights, strict=True, config=config, formats=checkpoint.formats)
        cache = f"f32[t=T, g={config.kv_heads}, k={config.head_size}]"
        executable = compile(
            model.step,
            "i32[s=S]",
            [(cache, cache)] * len(config.layers),
            "i32[]",
            "i32[r=R]",
            platform=self.platform,
            donate="caches",
            facts=("S <= T", "S >= 1", "R >= 1"),
        )
        self._bound: Any = executable.prepare(checkpoint.weights)
        self._lock = threading.Lock()
        self._by_size = self.platform.engine.name == "pjrt"

    def cache(self, limit: int) -> Cache:
        """An empty cache for at most so many tokens."""
        return Cache(self.config, self.platform, limit)

    def chunks(self, count: int) -> list[int]:
        """The sizes of the steps that read so many tokens."""
        sizes = []
        while count:
            size = min(count, CHUNK)
            sizes.append(1 << (size.bit_length() - 1) if self._by_size else size)
            count -= sizes[-1]
        return sizes

    def run(self, tokens: list[int], cache: Cache, rows: Array) -> Array:
        """Read tokens behind those in the cache; logits of some of their rows, f32[r, v]."""
        cache.reserve(len(tokens))
        given = np.array(tokens, np.int32)
        with self._lock:
            made = self._bound(given, cache.buffers, np.int32(cache.length), rows.astype(np.int32))
            cache.commit(made.caches, len(tokens))
            logits: Array = made.logits.numpy()
        return logits

    def close(self) -> None:
        self._bound.close()


def check_precision(precision: str) -> None:
    if precision != "f32":
        raise UnsupportedError("unknown precision of language models", expected="f32", got=precision)
