"""`python -m bench.serve.soak --minutes 10`: a server under mixed load for long, and what it holds before and after.

It serves models in workers and inside the server, language models among them. Phases repeat until the time is over: a
closed loop in both encodings, chats, models that are loaded and unloaded (`--cycles` in all), killed workers,
malformed requests, and twice the requests that a slow model can answer. Afterwards descriptors and memory of all
processes must be where they were after the first round. Exit code 1 where something does not hold.
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

from bench.serve import chat, mlp, servers
from bench.serve.load import closed_loop, processes

REFUSED_MS = 10.0  # within which a request without room is refused
CHATS, TOKENS = 8, 64  # of a round
TRUSTED = "-trusted"  # the end of names of models inside the server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--cycles", type=int, default=200, help="loads and unloads in all, at least")
    parser.add_argument("--language", type=Path, help="a language model; without it a tiny one")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    cache = Path.home() / ".cache" / "smelt-bench-serve"
    cache.mkdir(parents=True, exist_ok=True)
    with servers.configured_server(write_settings(cache, given.language)) as running:
        found = soak(running, given.minutes * 60, given.cycles)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    before, after = found["before"], found["after"]
    print(f"{found['requests']} requests, {found['tokens']} tokens, {found['cycles']} loads and unloads")
    print(f"memory {before['bytes'] / 1e6:.0f} -> {after['bytes'] / 1e6:.0f} MB")
    print(f"descriptors {before['descriptors']} -> {after['descriptors']}, processes {after['processes']}")
    for each, count in Counter(found["wrong"]).items():
        print(f"wrong: {each} ({count} times)")
    print("verdict:", "it does not hold" if found["wrong"] else "memory flat, descriptors flat, no error")
    raise SystemExit(1 if found["wrong"] else 0)


def write_settings(folder: Path, language: Path | None) -> Path:
    """Each model twice: in a worker, and inside the server. The slow one has a short queue."""
    from tests.unit.serve.language_models import write_language_models

    if language is None:
        language = folder / "language" / "tiny"
        if not language.exists():
            language.parent.mkdir(exist_ok=True)
            write_language_models(language.parent)
    paths = {mlp.NAME: mlp.write_onnx(folder / "mlp.onnx"), "chat": language}
    rows = [f'[[models]]\nname = "{mlp.SLOW}"\npath = "{mlp.write_slow(folder / "slow.onnx")}"']
    rows[0] += "\nmax_queue = 16\nmax_batch = 1\n"
    for name, path in paths.items():
        rows.append(f'[[models]]\nname = "{name}"\npath = "{path}"\n')
        rows.append(f'[[models]]\nname = "{name}{TRUSTED}"\npath = "{path}"\ntrusted = true\n')
    settings = folder / "soak.toml"
    settings.write_text("admin = true\n" + "".join(rows))
    return settings


def soak(running: servers.Running, seconds: float, cycles: int) -> dict[str, Any]:
    end, done = time.monotonic() + seconds, 0
    wrong: list[str] = []
    before: dict[str, int] | None = None
    requests = tokens = 0
    while time.monotonic() < end or done < cycles:
        for url in (running.url, running.url.replace(mlp.NAME, mlp.NAME + TRUSTED)):
            for request in (mlp.json_request(), mlp.binary_request()):
                found = closed_loop(running.pid, url, *request, 2)
                requests += found.requests
                if found.errors:
                    wrong.append(f"{found.errors} errors in a closed loop")
        for model in ("chat", "chat" + TRUSTED):
            tokens += CHATS * TOKENS
            wrong += talk(running, model)
        wrong += overload(running)
        wrong += send_malformed(running)
        for i in range(20):
            wrong += reload(running, ("mlp", "chat", "mlp" + TRUSTED, "chat" + TRUSTED)[i % 4])
            done += 1
        wrong += kill_workers(running)
        held = holds(running)
        before = before or held
        print(f"{done} cycles, {requests} requests, {held}", flush=True)
    assert before is not None
    after = holds(running)
    if after["descriptors"] > before["descriptors"] + 8:
        wrong.append("descriptors grew")
    if after["bytes"] > 1.1 * before["bytes"] + (64 << 20):
        wrong.append("memory grew")
    return {
        "requests": requests,
        "tokens": tokens,
        "cycles": done,
        "before": before,
        "after": after,
        "wrong": wrong,
    }


def talk(running: servers.Running, model: str) -> list[str]:
    try:
        made = chat.server_round(_base(running), running.pid, CHATS, TOKENS, model)["tokens"]
    except (OSError, RuntimeError) as error:
        return [f"chats with {model}: {error}"]
    return [] if made == CHATS * TOKENS else [f"{made} tokens of {model}"]


def reload(running: servers.Running, model: str) -> list[str]:
    actions = ("unload", "load")
    return [
        f"{action} of {model} failed"
        for action in actions
        if _post(f"{_base(running)}/v2/repository/models/{model}/{action}", b"") != 200
    ]


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


def kill_workers(running: servers.Running) -> list[str]:
    """Kill the processes of all isolated models: they come back."""
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes(running.pid)[1:]}
    zygote, *children = (pid for pid in processes(running.pid) if b"zygote" in names.get(pid, b""))
    for pid in children:
        assert pid != zygote
        os.kill(pid, signal.SIGKILL)
    wrong = []
    for model, request in ((mlp.NAME, mlp.json_request()), (mlp.SLOW, mlp.slow_request())):
        url = running.url.replace(mlp.NAME, model)
        if not _comes_back(url, *request):
            wrong.append(f"the killed worker of {model} did not come back")
    if all(talk(running, "chat") for _ in range(10)):
        wrong.append("the killed worker of chat did not come back")
    return wrong


def _comes_back(url: str, body: bytes, headers: dict[str, str]) -> bool:
    for _ in range(200):
        if _post(url, body, headers) == 200:
            return True
        time.sleep(0.05)
    return False


def _base(running: servers.Running) -> str:
    return running.url.partition("/v2/")[0]


def _post(url: str, body: bytes, headers: dict[str, str] | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers or {}), timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


if __name__ == "__main__":
    main()
