"""`python -m bench.serve.compare`: requests a second and CPU time a request, smelt beside other model servers.

An MLP 784-128-10, closed loop with eight connections (`wrk`), JSON and, for smelt, which also checks an API key, binary
tensors. Rounds are interleaved. Peers are installed into virtual environments under `--cache`; one that cannot be
installed is named.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.serve import mlp, servers
from bench.serve.goals import keyed_server, with_key
from bench.serve.load import closed_loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--peers", default="", help="names, or all: mlserver, kserve, litserve, bentoml")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "smelt-bench-serve")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    model = mlp.write_onnx(given.cache / "mlp.onnx")
    json_body, binary = mlp.json_request(), mlp.binary_request()
    rows: list[dict[str, Any]] = []

    def measure(name: str, encoding: str, running: servers.Running, request: tuple[bytes, dict[str, str]]) -> None:
        closed_loop(running.pid, running.url, *request, 1, given.connections)  # warm
        found = closed_loop(running.pid, running.url, *request, given.seconds, given.connections)
        rows.append({"server": name, "encoding": encoding, **found.record()})
        print(f"{name:22} {encoding:7} {found.per_second:9.0f} /s  {found.cpu_us:8.1f} us CPU a request"
              f"  p50 {found.p50_ms:.2f} ms  p99 {found.p99_ms:.2f} ms  errors {found.errors}", flush=True)  # fmt: skip

    wanted = (
        {peer.name for peer in servers.PEER_SERVERS} if given.peers == "all" else set(given.peers.split(",")) - {""}
    )
    for _ in range(given.rounds):
        for name, trusted in (("smelt", True), ("smelt, isolated", False)):
            with keyed_server(model, mlp.NAME, trusted) as running:
                measure(name, "JSON", running, with_key(json_body))
                measure(name, "binary", running, with_key(binary))
        for peer in servers.PEER_SERVERS:
            if peer.name not in wanted:
                continue
            try:
                with servers.peer_server(peer, given.cache) as running:
                    measure(peer.name, "JSON", running, json_body)
            except RuntimeError as error:
                print(f"{peer.name} is left out: {error}", file=sys.stderr)
                wanted.discard(peer.name)
    best = _medians(rows)
    for (name, encoding), cpu in best.items():
        print(f"median of {name}, {encoding}: {cpu:.1f} us")
    if given.json:
        about = {"machine": platform.platform(), "python": sys.version, "command": sys.argv}
        given.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


def _medians(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    keys = dict.fromkeys((row["server"], row["encoding"]) for row in rows)
    return {
        key: statistics.median(row["cpu_us"] for row in rows if (row["server"], row["encoding"]) == key) for key in keys
    }


if __name__ == "__main__":
    main()
