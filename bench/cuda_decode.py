"""`python -m bench.cuda_decode --out FILE.json`: attention of one query per sequence over KV caches (flash-decoding).

Heads of Llama 8B, a bf16 cache of 1,024 positions of which `--used` are in use. For each batch: microseconds of every
kernel alone, again and again over the same cache (`alone`); of a layer in a row of layers with a cache each, which come
from memory (`in_a_row`); how far off it is from float64; the bits of the first sequence, which are the same at every
batch. Needs JAX to write the programs. `--device emulated` tries the script without a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np

POSITIONS, GROUPS, SHARED, SIZE = 1024, 8, 4, 128  # positions of a cache, KV heads, heads that share one, its size
IN_A_ROW = 140 << 20  # bytes of the caches of all layers, at least: more than the cache of a device holds
CALLS = 30


def attention_text(batch: int, layers: int) -> str:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    import jax.numpy as jnp

    def attend(last: Any, q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bgrd,bgkd->bgrk", q, k.astype("float32")) * SIZE**-0.5
        scores = jnp.where(jnp.arange(POSITIONS) <= last, scores, -jnp.inf)
        return jnp.einsum("bgrk,bgkd->bgrd", jax.nn.softmax(scores, -1), v.astype("float32"))

    def every_layer(last: Any, layers: Any) -> Any:
        return [attend(last, *each) for each in layers]

    shaped: Any = jax.ShapeDtypeStruct
    cache = shaped((batch, GROUPS, POSITIONS, SIZE), "bfloat16")
    layer = shaped((batch, GROUPS, SHARED, SIZE), "float32"), cache, cache
    return str(jax.jit(every_layer).lower(shaped((), "int32"), [layer] * layers).as_text())


def sequences(batch: int, *shape: int) -> Any:
    """Random numbers, which for one sequence are the same at every batch."""
    return np.stack([np.random.default_rng(i).standard_normal(shape, np.float32) for i in range(batch)])


def attend(q: Any, k: Any, v: Any) -> Any:
    scores = np.einsum("grd,gkd->grk", q.astype(np.float64), k.astype(np.float64)) * SIZE**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("grk,gkd->grd", weights / weights.sum(-1, keepdims=True), v.astype(np.float64))


def measure(batch: int, used: int, calls: int) -> dict[str, Any]:
    from bench.cuda_check import Timed
    from bench.cuda_llm import graph_seconds
    from smelt.buffer import HostBuffer
    from smelt.device.registry import find_device
    from smelt.dtype import bf16
    from smelt.engine.native import native_engine
    from smelt.ir.text import parse
    from smelt.weights import Weights

    engine, driver = native_engine("cuda"), find_device("cuda").driver  # type: ignore[attr-defined]
    q, k = sequences(batch, GROUPS, SHARED, SIZE), sequences(batch, GROUPS, POSITIONS, SIZE).astype(bf16.numpy)
    v = np.ascontiguousarray(k[:, ::-1])
    layers = -(-IN_A_ROW // (4 * batch * GROUPS * used * SIZE)) if calls > 1 else 1
    made = engine.compile(parse(attention_text(batch, layers))).prepare(Weights.of({}))
    given = [np.asarray(used - 1, np.int32), *[q, k, v] * layers]
    inputs = [engine.put(HostBuffer.of(each)) for each in given]  # type: ignore[attr-defined]
    results: list[Any] = [made(*inputs)]
    first = results[0][0].numpy()[0]
    want = attend(q[0], k[0, :, :used], v[0, :, :used])

    def step() -> None:
        results[0] = made(*inputs)

    for _ in range(4):
        step()
    times = [graph_seconds(step, lambda: results[0][0].wait(), driver)["seconds"] for _ in range(-(-calls // 4))]
    with Timed(driver) as timed:
        step()
        results[0][0].wait()
    kernels = [each for each in timed.kernels() if "attention" in each["name"]]
    made.close()
    return {
        "alone": [{"microseconds": round(1e6 * each.pop("seconds") / each["launches"], 2), **each} for each in kernels],
        "in_a_row": round(1e6 * statistics.median(times) / layers, 2),
        "off": float(np.abs(first - want).max() / np.abs(want).max()),
        "bits": hashlib.sha256(first.tobytes()).hexdigest()[:12],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", help="cuda, or emulated")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--used", type=int, default=540)
    options = parser.parse_args()
    if options.device == "emulated":
        from tests.cuda.emulated import register

        register()
    found: dict[str, Any] = {}
    for batch in options.batches.split(","):
        found[batch] = measure(int(batch), options.used, CALLS if options.device == "cuda" else 1)
        options.out.write_text(json.dumps(found, indent=1))
        print(batch, json.dumps(found[batch]), flush=True)


if __name__ == "__main__":
    main()
