"""Decoding with a model of Llama 3.1 8B's sizes: `examples/llama_gpu.py` beside the same model written by hand in JAX.

    python -m bench.llama_gpu [--batches 1,8,32] [--file F] [--parts load,decode] [--small] [--json FILE]

`load`: the weights from a file to the device, against the slower of reading the file and of the bus. `decode`: tokens
per second of both, interleaved, on the same weights; JAX's have the layout of `x @ w`, or with `--as-filed` as in the
file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import smelt
from examples.llama_gpu import BASE, EPSILON, SMALL, Llama, Sizes, compiled_step, empty_caches, write_weights
from smelt.buffer import HostBuffer
from smelt.device import pjrt

STEPS = 64  # of one turn
ROUNDS = 5


# ---- the twin ----


class Twin:
    """The model in JAX by hand: one jitted step with donated caches."""

    def __init__(self, buffers: Any, sizes: Sizes, as_filed: bool) -> None:
        import jax

        self.jax, self.sizes, self.as_filed = jax, sizes, as_filed
        move = (lambda w: w + 0) if as_filed else (lambda w: w.T)
        place = jax.jit(move)
        take = jax.dlpack.from_dlpack

        def matrix(layer: Any) -> Any:
            return place(take(layer.weight)).block_until_ready()

        def one(layer: Any) -> dict[str, Any]:
            heads, mlp = layer.self_attn, layer.mlp
            return {
                **{name: matrix(getattr(heads, f"{name}_proj")) for name in "qkvo"},
                **{name: matrix(getattr(mlp, f"{name}_proj")) for name in ("gate", "up", "down")},
                "before": take(layer.input_layernorm.weight),
                "after": take(layer.post_attention_layernorm.weight),
            }

        body = buffers.model
        self.weights = {
            "table": take(body.embed_tokens.weight),
            "layers": [one(layer) for layer in body.layers],
            "norm": take(body.norm.weight),
            "head": matrix(buffers.lm_head),
        }
        self.step = jax.jit(self._step, donate_argnums=(2,))

    def empty(self, batch: int) -> Any:
        zeros = self.jax.numpy.zeros
        kind = self.jax.numpy.bfloat16
        return [
            (zeros(self.sizes.cache(batch), kind), zeros(self.sizes.cache(batch), kind))
            for _ in range(self.sizes.layers)
        ]

    def _step(self, weights: Any, tokens: Any, caches: Any, at: Any) -> Any:
        jnp, sizes = self.jax.numpy, self.sizes
        half = sizes.head_size // 2
        angles = at.astype(jnp.float32) * jnp.asarray(BASE ** (-np.arange(half) / half), jnp.float32)
        turn = jnp.cos(angles), jnp.sin(angles)
        x = weights["table"][tokens[:, 0]]
        after = []
        for layer, cache in zip(weights["layers"], caches, strict=True):
            y, cache = self._attention(layer, self._norm(x, layer["before"]), cache, at, turn)
            x = x + y
            y = self._norm(x, layer["after"])
            gate = self._times(y, layer["gate"])
            x = x + self._times(gate * self.jax.nn.sigmoid(gate) * self._times(y, layer["up"]), layer["down"])
            after.append(cache)
        logits = self._times(self._norm(x, weights["norm"]), weights["head"])
        return jnp.argmax(logits, -1).astype(jnp.int32)[:, None], logits, after, at + 1

    def _attention(self, layer: Any, x: Any, cache: Any, at: Any, turn: Any) -> Any:
        jnp, sizes, lax = self.jax.numpy, self.sizes, self.jax.lax
        batch, groups = x.shape[0], sizes.kv_heads
        q = self._rotate(self._times(x, layer["q"]).reshape(batch, groups, -1, sizes.head_size), turn)
        k = self._rotate(self._times(x, layer["k"]).reshape(batch, groups, 1, sizes.head_size), turn)
        v = self._times(x, layer["v"]).reshape(batch, groups, 1, sizes.head_size)
        keys, values = (
            lax.dynamic_update_slice(old, new, (0, 0, at, 0)) for old, new in zip(cache, (k, v), strict=True)
        )
        scores = jnp.einsum("bgrk,bgtk->bgrt", q, keys) * jnp.bfloat16(1 / math.sqrt(sizes.head_size))
        seen = jnp.arange(sizes.places) <= at
        share = self.jax.nn.softmax(jnp.where(seen, scores.astype(jnp.float32), -jnp.inf), -1).astype(x.dtype)
        y = jnp.einsum("bgrt,bgtk->bgrk", share, values)
        return self._times(y.reshape(batch, -1), layer["o"]), (keys, values)

    def _rotate(self, x: Any, turn: Any) -> Any:
        jnp = self.jax.numpy
        first, second = jnp.split(x.astype(jnp.float32), 2, -1)
        cosine, sine = turn
        both = [first * cosine - second * sine, second * cosine + first * sine]
        return jnp.concatenate(both, -1).astype(x.dtype)

    def _norm(self, x: Any, weight: Any) -> Any:
        jnp = self.jax.numpy
        wide = x.astype(jnp.float32)
        y = wide * self.jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + EPSILON)
        return (y * weight.astype(jnp.float32)).astype(x.dtype)

    def _times(self, x: Any, weight: Any) -> Any:
        return self.jax.numpy.einsum("bi,oi->bo" if self.as_filed else "bi,io->bo", x, weight)


# ---- decoding ----


class Turns:
    """One of the two, going on from step to step."""

    def __init__(self, step: Callable[..., Any], tokens: Any, caches: Any, at: Any, wait: Callable[[Any], Any]) -> None:
        self.step, self.state, self.wait = step, (tokens, caches, at), wait

    def run(self, count: int) -> tuple[float, float]:
        """Seconds for `count` steps, and for starting the first few of them, each."""
        few = min(count, 8)
        start = time.perf_counter()
        tokens, caches, at = self.state
        begun = 0.0
        for i in range(count):
            tokens, _, caches, at = self.step(tokens, caches, at)
            if i + 1 == few:
                begun = (time.perf_counter() - start) / few
        self.wait(tokens)
        self.state = tokens, caches, at
        return time.perf_counter() - start, begun


def decode(where: Any, model: Any, buffers: Any, sizes: Sizes, options: argparse.Namespace) -> dict[str, Any]:
    twin = Twin(buffers, sizes, options.as_filed)
    found = {}
    for batch in map(int, options.batches.split(",")):
        seconds, executable = _measure(partial(compiled_step, model, sizes, batch, where))
        ours = executable.prepare(buffers)
        print(f"batch {batch}: compiled in {seconds:.1f} s", flush=True)
        found[str(batch)] = _compare(where, ours, twin, sizes, batch)
        if options.dump:
            _dump(options.dump, batch, ours, twin)
        ours.close()
        executable.close()
    return found


def _compare(where: Any, ours: Any, twin: Twin, sizes: Sizes, batch: int) -> dict[str, Any]:
    tokens = np.arange(batch, dtype=np.int32).reshape(-1, 1)
    at = np.int32(0)
    mine = Turns(
        ours,
        where.put(HostBuffer.of(tokens)),
        empty_caches(where, sizes, batch),
        where.put(HostBuffer.of(at)),
        lambda buffer: buffer.wait(),
    )
    put = twin.jax.device_put
    other = Turns(
        lambda *state: twin.step(twin.weights, *state),
        put(tokens),
        twin.empty(batch),
        put(at),
        lambda array: array.block_until_ready(),
    )
    error = _difference(mine, other)
    steps = min(STEPS, (sizes.places - 1) // (ROUNDS + 1))
    for turn in (mine, other):
        turn.run(steps)
    times: list[list[tuple[float, float]]] = [[], []]
    for _ in range(ROUNDS):
        for turn, kept in zip((mine, other), times, strict=True):
            kept.append(turn.run(steps))
    rates = [batch * steps / statistics.median(seconds for seconds, _ in each) for each in times]
    starts = [1e6 * statistics.median(begun for _, begun in each) for each in times]
    print(
        f"batch {batch:>3}: smelt {rates[0]:7.1f} tokens/s, JAX {rates[1]:7.1f}, ratio {rates[0] / rates[1]:.3f}; "
        f"starting a step {starts[0]:.0f} µs, JAX's {starts[1]:.0f}; logits differ by {error:.4f}",
        flush=True,
    )
    return {
        "smelt": rates[0],
        "jax": rates[1],
        "ratio": rates[0] / rates[1],
        "start_us": starts,
        "rounds": [[seconds for seconds, _ in each] for each in times],
        "error": error,
    }


def _dump(folder: Path, batch: int, ours: Any, twin: Twin) -> None:
    """What XLA made of both, as text."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = ours._held.paths[0].compiled._program().loaded(())._raw
    (folder / f"smelt{batch}.txt").write_text(raw.hlo_modules()[0].to_string())
    modules = [each.hlo_modules()[0] for each in twin.jax.devices()[0].client.live_executables()]
    texts = [module.to_string() for module in modules if "step" in module.name]
    (folder / f"jax{batch}.txt").write_text(next(text for text in texts if f"s32[{batch},1]" in text))


def _difference(mine: Turns, other: Turns) -> float:
    """How far the logits of the first step are apart, as a share of their length."""
    logits = []
    for turn in (mine, other):
        tokens, found, caches, at = turn.step(*turn.state)
        logits.append(np.asarray(found).astype(np.float64).ravel())
        turn.state = tokens, caches, at
    return float(np.linalg.norm(logits[0] - logits[1]) / np.linalg.norm(logits[1]))


# ---- loading ----


def load(where: Any, path: Path, model: Any) -> tuple[dict[str, Any], Any]:
    """The weights on the device, and how fast they came, cold and from the system's cache, beside disk and bus."""
    found: dict[str, Any] = {}
    weights = smelt.open(path)
    _forget(path)
    found["disk"] = _disk(path)
    _forget(path)
    seconds, buffers = _measure(lambda: weights.to_device(model, where))
    found["cold"] = weights.nbytes / 1e9 / seconds
    found["memory"] = _disk(path)
    found["bus"] = _bus(where)
    for _, buffer in smelt.structure.leaves(buffers, lambda value: hasattr(value, "delete")):
        buffer.delete()
    seconds, buffers = _measure(lambda: weights.to_device(model, where))
    found["warm"] = weights.nbytes / 1e9 / seconds
    limits = min(found["disk"], found["bus"]), min(found["memory"], found["bus"])
    rates = ", ".join(f"{name} {rate:.2f} GB/s" for name, rate in found.items())
    print(f"load: {weights.nbytes / 1e9:.1f} GB; {rates}")
    print(f"load: cold {found['cold'] / limits[0]:.2f} of the slower, warm {found['warm'] / limits[1]:.2f}", flush=True)
    return found, buffers


def _measure(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


def _forget(path: Path) -> None:
    """Put a file out of the system's cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _disk(path: Path, readers: int = 16, part: int = 4 << 20) -> float:
    """GB/s of reading a file with many threads."""
    size = path.stat().st_size
    with path.open("rb") as file, ThreadPoolExecutor(readers) as pool:
        targets = [np.ones(part, np.uint8) for _ in range(readers)]

        def read(reader: int) -> None:
            for at in range(reader * part, size, readers * part):
                os.preadv(file.fileno(), [targets[reader].data], at)

        seconds, _ = _measure(lambda: list(pool.map(read, range(readers))))
    return size / 1e9 / seconds


def _bus(where: Any, size: int = 256 << 20, times: int = 16) -> float:
    """GB/s of copies from pinned memory."""
    client = where.engine.client
    memory = np.ones(size, np.uint8)
    shape = smelt.Shape("ui8", size)
    if client.platform != "cpu":
        client._raw.dma_map(memory.ctypes.data, size)
    client.put(memory, shape, shared=True).wait().delete()
    total = 0.0
    for _ in range(times):
        seconds, made = _measure(lambda: client.put(memory, shape, shared=True).wait())
        made.delete()
        total += seconds
    if client.platform != "cpu":
        client._raw.dma_unmap(memory.ctypes.data)
    return times * size / 1e9 / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu" if pjrt.missing("cuda") else "cuda")
    parser.add_argument("--file", type=Path, help="weights; written first where it does not exist")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--parts", default="load,decode")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--as-filed", action="store_true", help="JAX's weights have the file's layout, [out, in]")
    parser.add_argument("--dump", type=Path, help="a folder for what XLA made of both")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two clients share the device's memory
    if "decode" in options.parts:
        import jax

        print(f"JAX {jax.__version__} on {jax.devices()}", flush=True)
    sizes = SMALL if options.small or options.device == "cpu" else Sizes()
    record: dict[str, Any] = {"jaxlib": pjrt.version(), "device": options.device, "sizes": vars(sizes)}
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "llama.safetensors"
        if not path.exists():
            seconds, count = _measure(lambda: write_weights(path, sizes))
            print(f"write: {count / 1e9:.1f} GB in {seconds:.1f} s", flush=True)
        where = smelt.platform(options.device, "pjrt")
        model = smelt.instantiate(Llama, smelt.open(path), sizes=sizes)
        if "load" in options.parts:
            record["load"], buffers = load(where, path, model)
        else:
            buffers = smelt.open(path).to_device(model, where)
        if "decode" in options.parts:
            record["decode"] = decode(where, model, buffers, sizes, options)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
