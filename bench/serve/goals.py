"""`python -m bench.serve.goals all|open|closed|throughput|overload|ready`: what a server with a key and metrics does.

all         every one of them; MODEL.onnx for those that need one

open        an open loop of 5,000 binary requests a second of the MLP: latencies from the intended send times
closed      eight connections (`wrk`), JSON and binary, with isolation and without
throughput  MODEL.onnx behind eight connections beside direct calls of the same batches, interleaved
overload    twice what a model can answer for a minute: refusals, deadlines, memory
ready       MODEL.onnx as a bundle: seconds from the load request to the first answer
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.serve import mlp, servers, soak
from bench.serve.load import closed_loop
from smelt.client.wire import HEADER, encode_request

KEY = "a key of the benchmark"
GOALS = ("open", "closed", "throughput", "overload", "ready")
CACHE = Path.home() / ".cache" / "smelt-bench-serve"


@contextmanager
def keyed_server(path: Path, name: str, trusted: bool, **fields: Any) -> Iterator[servers.Running]:
    """One model behind a key that administers."""
    rows = {"path": str(path), "name": name, "trusted": trusted, **fields}
    lines = ["[[keys]]", 'name = "bench"', f'sha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"', "admin = true"]
    lines += ["[[models]]", *(f"{field} = {json.dumps(value)}" for field, value in rows.items())]
    with tempfile.TemporaryDirectory() as folder:  # several benchmarks may run at once
        settings = Path(folder) / "keyed.toml"
        settings.write_text("\n".join(lines))
        with servers.running_server("--config", str(settings)) as (pid, url):
            yield servers.Running(pid, f"{url}/v2/models/{name}/infer")


def with_key(request: tuple[bytes, dict[str, str]]) -> tuple[bytes, dict[str, str]]:
    return request[0], {**request[1], "Authorization": f"Bearer {KEY}"}


def load_open(seconds: float, rate: float) -> None:
    for trusted in (True, False):
        with keyed_server(mlp.write_onnx(CACHE / "mlp.onnx"), mlp.NAME, trusted) as running:
            url = running.url.partition("/v2/")[0]
            command = [
                sys.executable,
                "-m",
                "smelt",
                "bench",
                "--url",
                url,
                "--rate",
                str(rate),
                "--key",
                KEY,
                "--json",
            ]
            for spent in (2.0, seconds):  # the first one warms it up
                done = subprocess.run(
                    [*command, "--seconds", str(spent)], capture_output=True, text=True, check=True, env=_environment()
                )
        print("trusted" if trusted else "isolated", done.stdout.strip(), flush=True)


def load_closed(seconds: float) -> None:
    for trusted in (True, False):
        with keyed_server(mlp.write_onnx(CACHE / "mlp.onnx"), mlp.NAME, trusted) as running:
            for name, request in (("JSON", mlp.json_request()), ("binary", mlp.binary_request())):
                closed_loop(running.pid, running.url, *with_key(request), 1)
                found = closed_loop(running.pid, running.url, *with_key(request), seconds)
                print("trusted" if trusted else "isolated", name, json.dumps(found.record()), flush=True)


def compare_throughput(path: Path, seconds: float, rounds: int) -> None:
    """First a process that calls the model without a pause, then a server with eight clients."""
    import smelt

    with smelt.load(path) as model:
        (port, *_) = model.signature.inputs
        sizes = [size if isinstance(size, int) else 1 for size in port.shape.sizes]
    inputs = {port.name: np.random.default_rng(0).random(sizes).astype(port.shape.dtype.numpy)}
    body, length = encode_request(inputs)
    request = with_key((body, {"Content-Type": "application/octet-stream", HEADER: str(length)}))
    direct_code = (
        "import json, sys, time, numpy as np, smelt\n"
        "path, name, sizes, kind, seconds = json.loads(sys.argv[1])\n"
        "model = smelt.load(path); given = {name: np.random.default_rng(0).random(sizes).astype(kind)}\n"
        "for _ in range(5): model.run(given)\n"
        "count, started = 0, time.perf_counter()\n"
        "while time.perf_counter() - started < seconds: model.run(given); count += 1\n"
        "print(count / (time.perf_counter() - started))\n"
    )
    asked = json.dumps([str(path), port.name, sizes, str(inputs[port.name].dtype), seconds])
    ratios = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", direct_code, asked], capture_output=True, text=True, check=True,
                              env=_environment())  # fmt: skip
        direct = float(done.stdout)
        with keyed_server(path, "model", False) as running:
            closed_loop(running.pid, running.url, *request, 2)
            served = closed_loop(running.pid, running.url, *request, seconds)
        ratios.append(served.per_second / direct)
        print(f"direct {direct:.2f} /s, server {served.per_second:.2f} /s ({served.errors} errors)", flush=True)
    print(f"server / direct: {statistics.median(ratios):.3f}")


def overload(seconds: float, deadline: float) -> None:
    """Requests have a deadline; those that are accepted must be answered before it."""
    slow = mlp.write_slow(CACHE / "slow.onnx")
    with keyed_server(slow, mlp.SLOW, False, max_queue=16, max_batch=1, timeout=deadline) as running:
        body, headers = with_key(mlp.slow_request())
        capacity = closed_loop(running.pid, running.url, body, headers, 3, connections=2).per_second
        before = soak.holds(running)
        statuses, refusals, answers = asyncio.run(soak.flood(running.url, body, headers, 2 * capacity, seconds))
        after = soak.holds(running)
    found = {"statuses": dict(statuses), "before": before, "after": after, "rate": 2 * capacity}
    for name, times in (("refused_ms", refusals), ("answered_ms", answers)):
        ordered = sorted(times) or [float("nan")]
        found[name] = {p: round(ordered[int(p / 100 * (len(ordered) - 1))], 2) for p in (50, 99, 100)}
    print(json.dumps(found))


def time_loading(path: Path, rounds: int) -> None:
    """Unload, load, and call once; the bundle is made first."""
    bundle = CACHE / f"{path.stem}.smelt"
    if not bundle.exists():
        subprocess.run([sys.executable, "-m", "smelt", "compile", str(path), "-o", str(bundle)], check=True,
                       env=_environment())  # fmt: skip
    for trusted in (True, False):
        times = []
        with keyed_server(bundle, "model", trusted) as running:
            place = f"{running.url.partition('/v2/')[0]}/v2/repository/models/model"
            for _ in range(rounds):
                _post(f"{place}/unload")
                time.sleep(0.5)
                started = time.perf_counter()
                _post(f"{place}/load")
                times.append(1e3 * (time.perf_counter() - started))
        print("trusted" if trusted else "isolated", f"ready after {statistics.median(times):.1f} ms", times, flush=True)


def _post(url: str) -> None:
    asked = urllib.request.Request(url, b"", {"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        reply.read()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(servers.ROOT)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("goal", choices=("all", *GOALS))
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5000.0)
    parser.add_argument("--deadline", type=float, default=1.0)
    given = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    goals = GOALS if given.goal == "all" else (given.goal,)
    if given.model is None and {"throughput", "ready"} & set(goals):
        parser.error("which model?")
    for goal in goals:
        if len(goals) > 1:
            print(f"{goal}:", flush=True)
        _run(goal, given)


def _run(goal: str, given: argparse.Namespace) -> None:
    match goal:
        case "open":
            load_open(given.seconds, given.rate)
        case "closed":
            load_closed(given.seconds)
        case "throughput":
            compare_throughput(given.model, given.seconds, given.rounds)
        case "overload":
            overload(given.seconds, given.deadline)
        case "ready":
            time_loading(given.model, given.rounds)


if __name__ == "__main__":
    main()
