"""Training steps through XLA on a GPU: smelt's pjrt engine beside a twin written by hand in JAX.

    python -m bench.train.gpu --out FILE.json [--models transformer,resnet] [--device cuda] [--seconds 120] [--dump DIR]

Both train in one process on the same GPU, from the same weights and batches. Rounds of steps alternate, and every step
reads its loss. `host` batches come from NumPy in each step, `device` batches are on the GPU already. A ratio is smelt's
time divided by JAX's, the median over pairs of neighbouring rounds; the twin is matched at 1.03 or less. The file is
written after each model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.train import resnet, transformer, worker

MODELS: dict[str, Any] = {"transformer": transformer, "resnet": resnet}
BATCHES = 8  # different ones, reused
WARM_UP = 10  # steps that are not measured: XLA compiles, cuBLAS and cuDNN load
LIMIT = 1.03


def main() -> int:
    options = parse_options()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two clients share the GPU's memory
    record: dict[str, Any] = {"command": sys.argv, "python": platform.python_version(), **describe_device(options)}
    print(json.dumps(record), flush=True)
    for name in options.models.split(","):
        record[name] = compare(name, options)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    ratios = [each["ratio"] for name in options.models.split(",") for each in record[name]["batches"].values()]
    return int(max(ratios) > LIMIT)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="transformer,resnet")
    parser.add_argument("--device", default="cuda", help="smelt's device; JAX takes its default")
    parser.add_argument("--size", choices=("wide", "small"), default="wide")
    parser.add_argument("--seconds", type=float, default=120, help="for the rounds of one model, at most")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--dump", type=Path, help="a folder for XLA's optimised programs")
    return parser.parse_args()


def describe_device(options: argparse.Namespace) -> dict[str, Any]:
    import jax

    import smelt

    device = jax.devices()[0]
    return {"jax": jax.__version__, "smelt": smelt.__version__, "gpu": device.device_kind, "device": options.device}


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step on either side, from the host's batches and from the device's."""
    import jax

    from smelt import platform
    from smelt.buffer import HostBuffer

    model = MODELS[name]
    sizes = getattr(model, options.size.upper())
    drawn = [model.draw_batch(sizes, step) for step in range(BATCHES)]
    where = platform(options.device, "pjrt")
    ours, seconds = time_call(lambda: worker.start_smelt(model, sizes, name, options.device, "pjrt"))
    theirs = worker.start_jax(model, sizes, name)
    place: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "device": (lambda array: where.put(HostBuffer.of(array)), jax.device_put),
        "host": (lambda array: array, lambda array: array),
    }
    curves = np.array([[step(drawn[i % BATCHES]) for i in range(WARM_UP)] for step in (ours, theirs)])
    apart = float(np.abs(curves[0] - curves[1]).max())
    found: dict[str, Any] = {"smelt_compile_seconds": round(seconds, 2), "losses_apart": apart, "batches": {}}
    if options.dump:
        dump_programs(options.dump, name)
    for kind, puts in place.items():
        sides = [[tuple(put(array) for array in batch) for batch in drawn] for put in puts]
        found["batches"][kind] = measure((ours, theirs), sides, options)
        show(f"{name}, {kind}", found["batches"][kind], apart)
    return found


def time_call(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def measure(steps: Sequence[worker.Step], sides: Sequence[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Rounds that alternate, the order too, until the time is over."""
    times: tuple[list[float], list[float]] = [], []
    stop = time.perf_counter() + options.seconds / 2
    for turn in range(-1, options.rounds):  # the first round warms up
        for side in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            for i in range(options.steps):
                steps[side](sides[side][i % BATCHES])
            if turn >= 0:
                times[side].append(1e3 * (time.perf_counter() - start) / options.steps)
        if turn > 0 and time.perf_counter() > stop:
            break
    pairs = [ours / theirs for ours, theirs in zip(*times, strict=True)]
    low, ratio, high = np.percentile(pairs, [25, 50, 75])
    return {
        "smelt_ms": round(statistics.median(times[0]), 4),
        "jax_ms": round(statistics.median(times[1]), 4),
        "ratio": round(float(ratio), 4),
        "quartiles": [round(float(low), 4), round(float(high), 4)],
        "least_ms": [round(min(each), 4) for each in times],
        "rounds": len(pairs),
    }


def show(what: str, found: dict[str, Any], apart: float) -> None:
    print(
        f"{what:<22} smelt {found['smelt_ms']:8.3f} ms, JAX {found['jax_ms']:8.3f} ms, ratio {found['ratio']:.3f} "
        f"(quartiles {found['quartiles'][0]:.3f} to {found['quartiles'][1]:.3f}, {found['rounds']} rounds), "
        f"losses of the first {WARM_UP} steps at most {apart:.1e} apart",
        flush=True,
    )


def dump_programs(folder: Path, name: str) -> None:
    """XLA's optimised programs, as text: the largest of each client is the training step."""
    import jax

    from smelt.device import pjrt

    folder.mkdir(parents=True, exist_ok=True)
    clients = {"jax": jax.devices()[0].client, "smelt": next(iter(pjrt._clients.values()))._raw}
    for who, client in clients.items():
        texts = [program.hlo_modules()[0].to_string() for program in client.live_executables()]
        (folder / f"{name}.{who}.txt").write_text(max(texts, key=len))


if __name__ == "__main__":
    sys.exit(main())
