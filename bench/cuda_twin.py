"""Decoding on our own CUDA kernels beside the same model by hand in JAX, in interleaved rounds. For `bench.cuda_llm`.

The twin (`bench.llm_gpu.RandomTwin`) has both layouts of its weights, and XLA may run independent kernels at the same
time; the ratio is to the faster layout. Both start from the same position of the cache.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from examples.llama_gpu import Sizes

FLAG = "--xla_gpu_command_buffer_scheduling_mode=CONCURRENT"
ROUNDS, STEPS = 5, 16  # rounds, and steps of each


def start_jax() -> None:
    """Two clients share the memory of the device."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()


class Rounds:
    """One of the decoders, going on from step to step."""

    def __init__(self, step: Callable[..., Any], tokens: Any, caches: Any, at: Any) -> None:
        self.step, self.state = step, (tokens, caches, at)

    def run(self, count: int) -> float:
        """Seconds of a step, in a row of steps."""
        start = time.perf_counter()
        tokens, caches, at = self.state
        for _ in range(count):
            tokens, _, caches, at = self.step(tokens, caches, at)
        tokens.block_until_ready()
        self.state = tokens, caches, at
        return (time.perf_counter() - start) / count


def make_twins(sizes: Sizes) -> dict[str, Any]:
    """The twin with each layout of its weights."""
    from bench.llm_gpu import RandomTwin

    return {name: RandomTwin(sizes, name == "as_filed") for name in ("as_filed", "turned")}


def start_twins(twins: dict[str, Any], batch: int, first: int) -> dict[str, Rounds]:
    """Their steps for a batch, compiled."""
    import jax

    def compile_step(name: str) -> Rounds:
        twin = twins[name]
        tokens, at = jax.numpy.zeros((batch, 1), jax.numpy.int32), jax.numpy.int32(first)
        caches = twin.empty(batch)
        step = twin.step.lower(twin.weights, tokens, caches, at).compile()
        return Rounds(lambda *state: step(twin.weights, *state), tokens, caches, at)

    with ThreadPoolExecutor(len(twins)) as pool:
        return dict(zip(twins, pool.map(compile_step, twins), strict=True))


def compare(ours: Callable[[int], float], twins: dict[str, Any], batch: int, first: int) -> dict[str, Any]:
    """Milliseconds of a step of both, interleaved. `ours` runs some steps and gives the seconds of one."""
    decoders = {"smelt": ours, **{name: each.run for name, each in start_twins(twins, batch, first).items()}}
    times: dict[str, list[float]] = {name: [] for name in decoders}
    for run in decoders.values():
        run(STEPS)
    for _ in range(ROUNDS):
        for name, run in decoders.items():
            times[name].append(1e3 * run(STEPS))
    middle = {name: statistics.median(each) for name, each in times.items()}
    twin = min(each for name, each in middle.items() if name != "smelt")
    return {
        "ms": middle,
        "rounds": times,
        "ratio": twin / middle["smelt"],
        "tokens_per_second": 1e3 * batch / middle["smelt"],
    }
