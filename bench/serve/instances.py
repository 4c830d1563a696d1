"""`python -m bench.serve.instances`: memory (PSS) of a model with 1, 2 and 4 instances, and of 1, 2 and 4 processes.

Instances are calls at once in one worker process. With `--workers` each server process has workers of its own, which
map the same bundle. Exit code 1 where more of them hold another copy of the weights.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import smelt
from bench.serve import mlp, servers
from bench.serve.load import closed_loop

COUNTS = (1, 2, 4)
WEIGHTS = mlp.DEPTH * mlp.WIDTH**2 * 4  # bytes


def main() -> None:
    cache = Path.home() / ".cache" / "smelt-bench-serve"
    cache.mkdir(parents=True, exist_ok=True)
    model, bundle = mlp.write_slow(cache / "slow.onnx"), cache / "slow.smelt"
    with smelt.load(model, engine="native") as loaded:
        loaded.save(bundle)

    def with_instances(count: int) -> int:
        with serve_with(cache, f"{model}", "", f"instances = {count}\nmax_batch = 1\n") as running:
            closed_loop(running.pid, running.url, *mlp.slow_request(), 3, connections=2 * count)
            return worker_bytes(running)

    def with_processes(count: int) -> int:
        with serve_with(cache, f"{bundle}", f"workers = {count}\n", "max_batch = 1\n") as running:
            closed_loop(running.pid, running.url, *mlp.slow_request(), 3, connections=4 * count)
            return worker_bytes(running)

    print(f"the weights are {WEIGHTS / 1e6:.0f} MB")
    shares = [measure("instances", with_instances), measure("server processes", with_processes)]
    print(
        "verdict:", "they share one copy of the weights" if all(shares) else "there are several copies of the weights"
    )
    raise SystemExit(0 if all(shares) else 1)


def serve_with(folder: Path, path: str, server: str, model: str) -> AbstractContextManager[servers.Running]:
    settings = folder / "instances.toml"
    settings.write_text(f'{server}[[models]]\nname = "{mlp.NAME}"\npath = "{path}"\n{model}')
    return servers.configured_server(settings)


def worker_bytes(running: servers.Running) -> int:
    """The memory of the model's workers, of all server processes."""
    with urllib.request.urlopen(f"{running.url.partition('/v2/')[0]}/metrics", timeout=60) as reply:
        found = re.search(r"smelt_worker_memory_bytes\{.*\} (\d+)", reply.read().decode())
    assert found is not None, "the model is not isolated here"
    return int(found[1])


def measure(what: str, of: Callable[[int], int]) -> bool:
    """Print the memory for each count; whether another one takes less than half of the weights."""
    found = []
    for count in COUNTS:
        found.append(of(count))
        print(f"{count} {what}: {found[-1] / 1e6:.0f} MB", flush=True)
    return found[-1] - found[0] < (COUNTS[-1] - COUNTS[0]) * WEIGHTS / 2


if __name__ == "__main__":
    main()
