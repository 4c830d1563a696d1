"""`python -m bench.serve.instances`: memory of a worker process whose model has 1, 2 and 4 instances (PSS)."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from bench.serve import mlp, servers
from bench.serve.load import closed_loop


def main() -> None:
    cache = Path.home() / ".cache" / "smelt-bench-serve"
    cache.mkdir(parents=True, exist_ok=True)
    model = mlp.write_slow(cache / "slow.onnx")
    print(f"the weights are {mlp.DEPTH * mlp.WIDTH**2 * 4 / 1e6:.0f} MB")
    for count in (1, 2, 4):
        settings = cache / f"instances-{count}.toml"
        settings.write_text(f'[[models]]\nname = "{mlp.NAME}"\npath = "{model}"\ninstances = {count}\nmax_batch = 1\n')
        with servers.configured_server(settings) as running:
            closed_loop(running.pid, running.url, *mlp.slow_request(), 3, connections=2 * count)
            with urllib.request.urlopen(f"{running.url.partition('/v2/')[0]}/metrics", timeout=60) as reply:
                found = re.search(r"smelt_worker_memory_bytes\{.*\} (\d+)", reply.read().decode())
        assert found is not None, "the model is not isolated here"
        print(f"{count} instances: {int(found[1]) / 1e6:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
