"""`python -m bench.serve.soak --minutes 10`: a server under mixed load for long, and what it holds before and after.

Phases repeat until the time is over: a closed loop in both encodings, a model that is loaded and unloaded (`--cycles`
in all), a worker that is killed, malformed requests, and twice the requests that a slow model can answer. Afterwards
descriptors and memory of all processes must be where they were after the first round. Exit code 1 where something does
not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from bench.serve import mlp, servers
from bench.serve.load import closed_loop, processes

REFUSED_MS = 10.0  # within which a request without room is refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--cycles", type=int, default=200, help="loads and unloads in all, at least")
    parser.add_argument("--trusted", action="store_true", help="without isolation")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    cache = Path.home() / ".cache" / "smelt-bench-serve"
    cache.mkdir(parents=True, exist_ok=True)
    model = mlp.write_onnx(cache / "mlp.onnx")
    slow = mlp.write_slow(cache / "slow.onnx")
    flags = [
        f"{mlp.SLOW}={slow}",
        "--admin",
        "--max-queue",
        "16",
        "--max-batch",
        "1",
        *(["--trusted"] if given.trusted else []),
    ]
    with servers.smelt_server(model, *flags) as running:
        found = soak(running, given.minutes * 60, given.cycles)
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    raise SystemExit(1 if found["wrong"] else 0)


def soak(running: servers.Running, seconds: float, cycles: int) -> dict[str, Any]:
    end, done = time.monotonic() + seconds, 0
    wrong: list[str] = []
    before: dict[str, int] | None = None
    requests = 0
    while time.monotonic() < end or done < cycles:
        for request in (mlp.json_request(), mlp.binary_request()):
            found = closed_loop(running.pid, running.url, *request, 2)
            requests += found.requests
            if found.errors:
                wrong.append(f"{found.errors} errors in a closed loop")
        wrong += overload(running)
        wrong += send_malformed(running)
        for _ in range(20):
            for action in ("unload", "load"):
                if _post(f"{_repository(running)}/{action}", b"") != 200:
                    wrong.append(f"{action} failed")
            done += 1
        wrong += kill_worker(running)
        held = holds(running)
        before = before or held
        print(f"{done} cycles, {requests} requests, {held}", flush=True)
    assert before is not None
    after = holds(running)
    if after["descriptors"] > before["descriptors"] + 8:
        wrong.append(f"descriptors grew from {before['descriptors']} to {after['descriptors']}")
    if after["bytes"] > 1.25 * before["bytes"] + (64 << 20):
        wrong.append(f"memory grew from {before['bytes']} to {after['bytes']}")
    return {"requests": requests, "cycles": done, "before": before, "after": after, "wrong": wrong}


def holds(running: servers.Running) -> dict[str, int]:
    """Descriptors and resident memory (PSS) of all processes of the server."""
    descriptors = total = 0
    for pid in processes(running.pid):
        try:
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return {"descriptors": descriptors, "bytes": total, "processes": len(processes(running.pid))}


def overload(running: servers.Running, seconds: float = 4.0) -> list[str]:
    """Twice what the slow model can answer: the rest is refused, at once."""
    url = running.url.replace(mlp.NAME, mlp.SLOW)
    body, headers = mlp.slow_request()
    capacity = closed_loop(running.pid, url, body, headers, 2, connections=2).per_second
    statuses, refusals, _ = asyncio.run(flood(url, body, headers, 2 * capacity, seconds))
    wrong = [f"status {status} under overload" for status in statuses if status not in (200, 429, 503)]
    quick = statistics.median(refusals) if refusals else 0.0
    print(f"overload at {2 * capacity:.0f}/s: {dict(statuses)}, half of the refusals within {quick:.1f} ms", flush=True)
    if quick > REFUSED_MS:
        wrong.append(f"half of the refusals took more than {quick:.1f} ms")
    return wrong


async def flood(
    url: str, body: bytes, headers: dict[str, str], rate: float, seconds: float
) -> tuple[Counter[int], list[float], list[float]]:
    """Requests at a steady rate, each on a connection of its own. Also the milliseconds of refusals and answers."""
    host, _, port = url.split("/")[2].partition(":")
    head = f"POST /{url.split('/', 3)[3]} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    message = (head + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode() + body
    refusals: list[float] = []
    answers: list[float] = []

    async def ask(after: float) -> int:
        await asyncio.sleep(after)
        reader, writer = await asyncio.open_connection(host, int(port))
        started = time.perf_counter()
        writer.write(message)
        status = int((await reader.readline()).split()[1])
        if status in (200, 429, 503):
            (answers if status == 200 else refusals).append(1e3 * (time.perf_counter() - started))
        writer.close()
        return status

    return Counter(await asyncio.gather(*(ask(i / rate) for i in range(int(rate * seconds))))), refusals, answers


def send_malformed(running: servers.Running) -> list[str]:
    """Requests that make no sense are answered with 4xx."""
    draw = random.Random(0)
    bodies = [b"", b"{", b"[]", b'{"inputs": 3}', draw.randbytes(1000), b"[" * 10000]
    statuses = {_post(running.url, body) for body in bodies}
    return [f"status {status} for nonsense" for status in statuses if not 400 <= status < 500]


def kill_worker(running: servers.Running) -> list[str]:
    """Kill the model's process, where it has one: it comes back."""
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes(running.pid)[1:]}
    zygotes = [pid for pid, name in names.items() if b"zygote" in name]
    children = [pid for pid in names if pid not in zygotes[:1]] if zygotes else []
    if not children:
        return []
    os.kill(children[0], signal.SIGKILL)
    body, headers = mlp.json_request()
    for _ in range(200):
        if _post(running.url, body, headers) == 200:
            return []
        time.sleep(0.05)
    return ["a killed worker did not come back"]


def _repository(running: servers.Running) -> str:
    return f"{running.url.partition('/v2/')[0]}/v2/repository/models/{mlp.NAME}"


def _post(url: str, body: bytes, headers: dict[str, str] | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers or {}), timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


if __name__ == "__main__":
    main()
