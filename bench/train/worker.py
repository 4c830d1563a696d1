"""One framework in training, in a process of its own: requests as lines of JSON on stdin, answers on stdout.

    python worker.py smelt|smelt.pjrt|jax|torch|torch.compile transformer|resnet wide|small THREADS [batch=4 …]

`{"steps": n}` → the losses of n steps, milliseconds and processor time of each, and the peak of resident memory. On a
busy machine the processor time of one thread is the steadier number. The transformer is
trained by AdamW, the ResNet by SGD with momentum, both by PyTorch's formulas. Batches depend on the step alone.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

RATE, DECAY, EPSILON, BETAS, MOMENTUM = 1e-3, 0.01, 1e-8, (0.9, 0.999), 0.9
Step = Callable[[tuple[np.ndarray, ...]], float]


def start_smelt(model: Any, sizes: Any, name: str, device: str = "auto", engine: str = "native") -> Step:
    import smelt
    from smelt import train

    loss, shapes = model.smelt_loss(sizes)
    weights = {key: smelt.tensor(value, model.axes_of(key)) for key, value in model.draw_weights(sizes).items()}
    if name == "transformer":
        optimiser = train.adamw(RATE, beta1=BETAS[0], beta2=BETAS[1], epsilon=EPSILON, weight_decay=DECAY)
    else:
        optimiser = train.sgd(RATE, momentum=MOMENTUM)
    trainer = train.Trainer(loss, weights, optimiser, *shapes, device=device, engine=engine)
    return lambda batch: trainer.step(*batch)


def start_jax(model: Any, sizes: Any, name: str) -> Step:
    import jax
    import jax.numpy as jnp

    loss = model.jax_loss(sizes)

    def advance(state: Any, *batch: Any) -> Any:
        p, first, second, count = state
        value, slopes = jax.value_and_grad(loss)(p, *batch)
        count = count + 1
        if name == "transformer":
            b1, b2 = BETAS
            first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, first, slopes)
            second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, second, slopes)
            c1, c2 = 1 - b1**count, 1 - b2**count
            p = jax.tree.map(
                lambda w, m, v: w * (1 - RATE * DECAY) - RATE * (m / c1) / (jnp.sqrt(v / c2) + EPSILON),
                p,
                first,
                second,
            )
        else:
            first = jax.tree.map(lambda m, g: MOMENTUM * m + g, first, slopes)
            p = jax.tree.map(lambda w, m: w - RATE * m, p, first)
        return value, (p, first, second, count)

    weights = {key: jnp.asarray(value) for key, value in model.draw_weights(sizes).items()}
    first = {key: jnp.zeros_like(value) for key, value in weights.items()}
    second = {key: jnp.zeros_like(value) for key, value in weights.items()} if name == "transformer" else None
    state: list[Any] = [(weights, first, second, jnp.float32(0))]
    compiled = jax.jit(advance, donate_argnums=0)

    def step(batch: tuple[np.ndarray, ...]) -> float:
        value, state[0] = compiled(state[0], *batch)
        return float(value)  # the results of a run are ready together

    return step


def start_torch(model: Any, sizes: Any, name: str, compiled: bool = False) -> Step:
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    weights = {k: torch.tensor(v, requires_grad=True) for k, v in model.draw_weights(sizes).items()}
    if name == "transformer":
        optimiser: Any = torch.optim.AdamW(
            weights.values(), RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY, fused=True
        )
    else:
        optimiser = torch.optim.SGD(weights.values(), RATE, momentum=MOMENTUM, fused=True)
    loss = model.torch_loss(sizes)
    loss = torch.compile(loss) if compiled else loss

    def step(batch: tuple[np.ndarray, ...]) -> float:
        value = loss(weights, *map(torch.from_numpy, batch))
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        optimiser.step()
        return float(value.item())

    return step


START: dict[str, Callable[[Any, Any, str], Step]] = {
    "smelt": start_smelt,
    "smelt.pjrt": lambda model, sizes, name: start_smelt(model, sizes, name, engine="pjrt"),
    "jax": start_jax,
    "torch": start_torch,
    "torch.compile": lambda model, sizes, name: start_torch(model, sizes, name, compiled=True),
}


def main() -> None:
    framework, name, size, threads, *changes = sys.argv[1:]
    limit_threads(int(threads))
    sys.path.insert(0, str(Path(__file__).parent))
    model = importlib.import_module(name)
    numbers = {key: int(number) for key, _, number in (each.partition("=") for each in changes)}
    sizes = replace(getattr(model, size.upper()), **numbers)
    step = START[framework](model, sizes, name)
    count = 0
    for line in sys.stdin:
        losses, times, processor = [], [], []
        for _ in range(json.loads(line)["steps"]):
            batch = model.draw_batch(sizes, count)
            count += 1
            start, spent = time.perf_counter(), time.process_time()
            losses.append(step(batch))
            times.append(1e3 * (time.perf_counter() - start))
            processor.append(1e3 * (time.process_time() - spent))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer = {"losses": losses, "milliseconds": times, "processor_ms": processor, "peak_mib": peak}
        print(json.dumps(answer), flush=True)


def limit_threads(threads: int) -> None:
    """Every framework gets the same number of cores: XLA takes as many threads as it may run on."""
    for variable in ("OMP_NUM_THREADS", "SMELT_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


if __name__ == "__main__":
    main()
