# ruff: noqa: F722  # shapes are no forward references
"""A decoder with the sizes of Llama 3.1 8B in bf16 on a GPU: a file of weights, XLA, a cache that is written in place.

    python examples/llama_gpu.py [--device cuda] [--file llama.safetensors] [--batch 8] [--tokens 64] [--small]

In: nothing; the weights are random and are written to the file first. Out: what each step of a model's life took, and
tokens per second. `--small` is a model of the same kind for a processor.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import smelt
from smelt import Shaped, Tensor, nn
from smelt.buffer import HostBuffer, bytes_text
from smelt.device import pjrt
from smelt.read import safetensors
from smelt.tensor.model import parameters_of

BASE = 500_000.0  # of the rotary positions' frequencies
EPSILON = 1e-5
WARM = 32  # steps before time counts: XLA loads kernels and records graphs of them, jaxlib looks for jax


@dataclass(frozen=True)
class Sizes:
    """What a model of this kind is made of; `places` are those of its cache."""

    layers: int = 32
    d: int = 4096
    f: int = 14336
    heads: int = 32
    kv_heads: int = 8
    v: int = 128_256
    places: int = 1024

    @property
    def head_size(self) -> int:
        return self.d // self.heads

    def cache(self, batch: int) -> tuple[int, int, int, int]:
        """The sizes of one layer's keys, and of its values: [b, g, t, k]."""
        return batch, self.kv_heads, self.places, self.head_size


SMALL = Sizes(layers=2, d=64, f=96, heads=4, kv_heads=2, v=256, places=128)


# ---- the model ----


class Step(NamedTuple):
    """What one step gives: the likeliest tokens, how likely each was, and what the next step starts from."""

    tokens: Any
    logits: Any
    caches: Any
    at: Any


class MLP(smelt.Model):
    def __init__(self, sizes: Sizes) -> None:
        self.gate_proj = nn.Linear(d=sizes.d, f=sizes.f, bias=False, dtype="bf16")
        self.up_proj = nn.Linear(d=sizes.d, f=sizes.f, bias=False, dtype="bf16")
        self.down_proj = nn.Linear(f=sizes.f, d=sizes.d, bias=False, dtype="bf16")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(smelt.Model):
    def __init__(self, sizes: Sizes) -> None:
        self.input_layernorm = nn.RMSNorm(d=sizes.d, epsilon=EPSILON, dtype="bf16")
        self.self_attn = nn.MultiHeadAttention(
            d=sizes.d,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            causal=True,
            rope=nn.RoPE(k=sizes.head_size, base=BASE),
            dtype="bf16",
        )
        self.post_attention_layernorm = nn.RMSNorm(d=sizes.d, epsilon=EPSILON, dtype="bf16")
        self.mlp = MLP(sizes)

    def step(self, x: Tensor, cache: tuple[Tensor, Tensor], places: Tensor, at: Tensor) -> Any:
        y, cache = self.self_attn(self.input_layernorm(x), positions=places, cache=cache, at=at)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class Body(smelt.Model):
    def __init__(self, sizes: Sizes) -> None:
        self.embed_tokens = nn.Embedding(v=sizes.v, d=sizes.d, dtype="bf16")
        self.layers = [Layer(sizes) for _ in range(sizes.layers)]
        self.norm = nn.RMSNorm(d=sizes.d, epsilon=EPSILON, dtype="bf16")


class Llama(smelt.Model):
    """Names are those of Hugging Face's LlamaForCausalLM, so that its checkpoints bind as they are."""

    def __init__(self, sizes: Sizes) -> None:
        self.model = Body(sizes)
        self.lm_head = nn.Linear(d=sizes.d, v=sizes.v, bias=False, dtype="bf16")

    def step(self, tokens: Shaped[Tensor, "i32[b=B, s=1]"], caches: Any, at: Shaped[Tensor, "i32[]"]) -> Step:
        """The token after the one at position `at`, for every sequence of a batch."""
        x = self.model.embed_tokens(tokens)
        places = smelt.arange(1, "s") + at
        after = []
        for layer, cache in zip(self.model.layers, caches, strict=True):
            x, cache = layer.step(x, cache, places, at)
            after.append(cache)
        logits = self.lm_head(self.model.norm(x))
        return Step(logits.argmax("v").to("i32"), logits, after, at + 1)


# ---- weights ----


def write_weights(path: Path, sizes: Sizes) -> int:
    """Random weights as a file; how many bytes they are. Norms multiply by one."""
    shapes = {name: tensor.shape.numbers() for name, tensor in parameters_of(Llama, sizes=sizes).items()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = dict(zip(shapes, pool.map(_random, shapes.values(), range(len(shapes))), strict=True))
    safetensors.write(path, made)
    return sum(array.nbytes for array in made.values())


def _random(shape: tuple[int, ...], seed: int) -> Any:
    """Elements of both signs from 2^-8 up to 2^-4: random bits with the exponent's upper part given."""
    if len(shape) == 1:
        return np.ones(shape, ml_dtypes.bfloat16)
    count = int(np.prod(shape))
    bits = np.frombuffer(np.random.default_rng(seed).bytes(2 * count), np.uint16)
    return ((bits & 0x81FF) | 0x3B80).view(ml_dtypes.bfloat16).reshape(shape)


# ---- running it ----


def empty_caches(where: Any, sizes: Sizes, batch: int) -> list[tuple[Any, Any]]:
    zeros = np.zeros(sizes.cache(batch), ml_dtypes.bfloat16)
    return [(where.put(HostBuffer.of(zeros)), where.put(HostBuffer.of(zeros))) for _ in range(sizes.layers)]


def compiled_step(model: Llama, sizes: Sizes, batch: int, where: Any) -> Any:
    """The step for a batch. Its caches are donated: the next ones take their place in memory."""
    b, g, t, k = sizes.cache(batch)
    one = f"bf16[b={b}, g={g}, t={t}, k={k}]"
    return smelt.compile(
        model.step, f"i32[b={batch}, s=1]", [(one, one)] * sizes.layers, "i32[]", platform=where, donate="caches"
    )


def steps(bound: Any, where: Any, sizes: Sizes, tokens: Any, start: int = 0) -> Iterator[Step]:
    """Step after step from a position on; nothing but the first tokens comes from the host, nothing goes back there."""
    given = where.put(HostBuffer.of(np.asarray(tokens, np.int32).reshape(-1, 1)))
    at = where.put(HostBuffer.of(np.int32(start)))
    caches: Any = empty_caches(where, sizes, given.shape.sizes[0])
    for _ in range(start, sizes.places):
        made = bound(given, caches, at)
        given, _, caches, at = made
        yield made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu" if pjrt.missing("cuda") else "cuda")
    parser.add_argument("--file", type=Path, help="weights; written first where it does not exist")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    sizes = SMALL if options.small or options.device == "cpu" else Sizes()
    with tempfile.TemporaryDirectory() as folder:
        run(options.file or Path(folder) / "llama.safetensors", sizes, options)


def run(path: Path, sizes: Sizes, options: argparse.Namespace) -> None:
    where = smelt.platform(options.device, "pjrt")
    print(f"device        {where}, {bytes_text(int(where.stats()['bytes_in_use']))} in use")  # it is open from now on
    if not path.exists():
        start = time.perf_counter()
        count = write_weights(path, sizes)
        print(f"write         {count / 1e9:.2f} GB in {time.perf_counter() - start:.1f} s")
    weights = smelt.open(path)
    model = smelt.instantiate(Llama, weights, sizes=sizes)
    start = time.perf_counter()
    buffers = weights.to_device(model, where)
    seconds = time.perf_counter() - start
    print(f"load          {weights.nbytes / 1e9:.2f} GB in {seconds:.2f} s, {weights.nbytes / 1e9 / seconds:.2f} GB/s")

    start = time.perf_counter()
    executable = compiled_step(model, sizes, options.batch, where)
    memory = executable.memory()
    print(f"compile       {time.perf_counter() - start:.1f} s, {memory.aliased / 1e6:.1f} MB of cache in place")

    bound = executable.prepare(buffers)
    stream = steps(bound, where, sizes, np.arange(options.batch))
    deque(islice(stream, WARM), maxlen=1).pop().tokens.numpy()
    start = time.perf_counter()
    last = deque(islice(stream, options.tokens), maxlen=1).pop().tokens.numpy()
    seconds = time.perf_counter() - start
    print(f"decode        {options.batch * options.tokens / seconds:.0f} tokens/s, the last {last[:4, 0].tolist()}")
    bound.close()


if __name__ == "__main__":
    main()
