"""`python -m bench.cuda_attention --out FILE.json`: attention of many queries on a GPU, beside torch's SDPA back ends.

For each shape, causal and not: TFLOP/s of the kernels of the native engine and of every back end of torch that takes
it, timed in turns as graphs, and how far off the results are from float64 on some rows. Needs torch with CUDA, and JAX
to write the programs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SHAPES = (  # batch, heads, queries and keys, size of a head
    (4, 16, 4096, 128),
    (1, 32, 8192, 128),
    (2, 16, 1024, 128),
    (8, 16, 1024, 64),
    (4, 16, 4096, 64),
    (1, 12, 128, 64),
    (32, 12, 128, 64),
    (32, 12, 197, 64),
)
BACK_ENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
ROUNDS, SAMPLES = 5, 4
AIM = 4e-3  # seconds of a timed graph


def attention_text(batch: int, heads: int, length: int, size: int, element: str, causal: bool) -> str:
    """softmax(q k^T / sqrt(size)) v as StableHLO."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    import jax.numpy as jnp

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type="float32") * size**-0.5
        if causal:
            at = jnp.arange(length)
            scores = jnp.where(at[:, None] >= at[None], scores, -jnp.inf)
        weights = jax.nn.softmax(scores, -1).astype(v.dtype)
        return jnp.einsum("bhqk,bhkd->bhqd", weights, v)

    given = jax.ShapeDtypeStruct((batch, heads, length, size), {"bf16": "bfloat16", "f32": "float32"}[element])
    return str(jax.jit(attend).lower(given, given, given).as_text())


def native(text: str, inputs: list[Any]) -> tuple[Any, Callable[[int], float], list[dict[str, Any]]]:
    """The result; a function that gives the seconds of a number of calls' kernels; the kernels."""
    from bench.cuda_check import Timed
    from smelt.device.registry import find_device
    from smelt.engine.native import native_engine
    from smelt.ir.text import parse
    from smelt.weights import Weights

    driver = find_device("cuda").driver  # type: ignore[attr-defined]
    made = native_engine("cuda").compile(parse(text)).prepare(Weights.of({}))
    with Timed(driver) as timed:
        result = made(*inputs)[0]
        result.wait()
    launches = list(timed.launches)

    def seconds(times: int) -> float:
        queue = driver.queues.current

        def work() -> None:
            for _ in range(times):
                for given in launches:
                    queue.launch(*given)

        graph = queue.record(work)
        first = queue.event()
        queue.replay(graph)
        taken = driver.seconds(first, queue.event())
        queue.forget(graph)
        return float(taken) / times

    kept = [made, result, *inputs]  # memory that the launches use
    kernels = [{**driver.describe(given[0]), "blocks": given[1], "threads": given[2]} for given in launches]
    return result, lambda times: seconds(times) if kept else 0.0, kernels


def peer(name: str, inputs: list[Any], causal: bool) -> tuple[Any, Callable[[int], float]]:
    """The same for a back end of torch."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call() -> Any:
        with sdpa_kernel(getattr(SDPBackend, name)):
            return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        result = call()
    torch.cuda.synchronize()

    def seconds(times: int) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(times):
                call()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) * 1e-3 / times

    return result, seconds


def error(result: Any, inputs: list[Any], causal: bool, seed: int) -> float:
    """The largest difference from float64 on some rows of some heads, relative to the scale of the result."""
    import torch

    random, worst, scale = np.random.default_rng(seed), 0.0, 0.0
    batch, heads, length, size = inputs[0].shape
    for _ in range(SAMPLES):
        b, h = int(random.integers(batch)), int(random.integers(heads))
        rows = torch.tensor(random.integers(0, length, 16), device=inputs[0].device)
        q, k, v = (each[b, h].double() for each in inputs)
        scores = q[rows] @ k.T * size**-0.5
        if causal:
            scores = scores.masked_fill(rows[:, None] < torch.arange(length, device=rows.device)[None], -np.inf)
        wanted = torch.softmax(scores, -1) @ v
        worst = max(worst, float((result[b, h][rows].double() - wanted).abs().max()))
        scale = max(scale, float(wanted.abs().max()))
    return worst / scale


def measure(shape: tuple[int, int, int, int], element: str, causal: bool, seed: int) -> dict[str, Any]:
    import torch

    batch, heads, length, size = shape
    torch.manual_seed(seed)
    kind = torch.bfloat16 if element == "bf16" else torch.float32
    inputs = [torch.randn(shape, device="cuda", dtype=kind) for _ in range(3)]
    flop = 4 * batch * heads * length * length * size / (2 if causal else 1)
    result, seconds, kernels = native(attention_text(*shape, element, causal), inputs)
    found: dict[str, Any] = {"error": error(torch.from_dlpack(result), inputs, causal, seed), "kernels": kernels}
    timed: dict[str, Callable[[int], float]] = {"smelt": seconds}
    for name in BACK_ENDS:
        try:
            result, timed[name] = peer(name, inputs, causal)
        except RuntimeError as refusal:
            found[name] = {"refused": str(refusal)[:200]}
            continue
        found[name] = {"error": error(result, inputs, causal, seed)}
    times = {name: max(1, min(200, int(AIM / max(each(1), 1e-6)))) for name, each in timed.items()}
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, each in timed.items():
            taken[name].append(each(times[name]))
    for name, each in taken.items():
        rate = {"seconds": statistics.median(each), "tflops": flop / statistics.median(each) / 1e12}
        found = {**found, **rate} if name == "smelt" else {**found, name: {**found[name], **rate}}
    best = max((found[name].get("tflops", 0.0) for name in BACK_ENDS), default=0.0)
    return {**found, "of_best": found["tflops"] / best if best else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--elements", default="bf16")
    parser.add_argument("--shapes", help="BxHxSxD,...; the usual ones are the default")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    shapes = SHAPES if not options.shapes else [tuple(map(int, each.split("x"))) for each in options.shapes.split(",")]
    found: dict[str, Any] = {}
    for element in options.elements.split(","):
        for shape in shapes:
            for causal in (False, True):
                name = f"{'x'.join(map(str, shape))} {element}{' causal' if causal else ''}"
                try:
                    found[name] = one = measure(shape, element, causal, options.seed)  # type: ignore[arg-type]
                except Exception as problem:
                    found[name] = {"problem": f"{type(problem).__name__}: {problem}"[:1000]}
                    print(name, found[name], flush=True)
                    continue
                peers = ", ".join(f"{each.split('_')[0]} {one[each].get('tflops', 0):.0f}" for each in BACK_ENDS)
                print(
                    f"{name}: {one['seconds'] * 1e6:.1f} us, {one['tflops']:.0f} TFLOP/s ({peers}),"
                    f" of best {one['of_best'] or 0:.2f}, error {one['error']:.1e}",
                    flush=True,
                )
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
