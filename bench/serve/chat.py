"""`python -m bench.serve.chat MODEL.gguf`: chat clients of a server beside the engine's own batched generation.

Both generate the same number of tokens for the same prompts, `--clients` at once, in interleaved rounds; each runs in a
process of its own. Reported: tokens a second, CPU time a token (which hardly depends on what else the machine does),
and the time between tokens that clients saw.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.serve.load import cpu_seconds
from bench.serve.servers import ROOT, running_server

QUESTION = "Tell me something about the number {}."


def engine_round(path: Path, clients: int, tokens: int, rounds: int) -> None:
    """In a process of its own: a line of JSON for each round that stdin asks for."""
    import smelt

    model = smelt.llm.load(path)
    prompts = [model.prompt([{"role": "user", "content": QUESTION.format(i)}]) for i in range(clients)]
    model.generate_all(prompts, max_tokens=4, ignore_end=True)
    for _ in range(rounds):
        sys.stdin.readline()
        started, busy = time.perf_counter(), time.process_time()
        answers = model.generate_all(prompts, max_tokens=tokens, ignore_end=True)
        spent, busy = time.perf_counter() - started, time.process_time() - busy
        made = sum(len(answer.ids) for answer in answers)
        print(json.dumps({"tokens": made, "seconds": spent, "cpu": busy}), flush=True)


def server_round(url: str, pid: int, clients: int, tokens: int) -> dict[str, Any]:
    """All clients at once, each on a connection; times between the events of each."""
    gaps: list[float] = []
    counts: list[int] = []

    def chat(number: int) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=600)
        messages = [{"role": "user", "content": QUESTION.format(number)}]
        asked = {"model": "chat", "messages": messages, "max_tokens": tokens, "stream": True}
        asked |= {"temperature": 0, "ignore_eos": True}  # as the engine's round
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"Content-Type": "application/json"})
        reply, last, count = connection.getresponse(), 0.0, 0
        while line := reply.readline():
            if b'"content":' in line and b'"role"' not in line:
                now = time.perf_counter()
                gaps.extend([now - last] if last else [])
                last, count = now, count + 1
        counts.append(count)
        connection.close()

    threads = [threading.Thread(target=chat, args=(i,)) for i in range(clients)]
    started, busy = time.perf_counter(), cpu_seconds(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent, busy = time.perf_counter() - started, cpu_seconds(pid) - busy
    p99 = 1000 * sorted(gaps)[int(0.99 * len(gaps))] if gaps else float("nan")
    return {"tokens": sum(counts), "seconds": spent, "cpu": busy, "p99_between_ms": p99}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine-only", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine_only:
        engine_round(given.model, given.clients, given.tokens, given.rounds)
        return
    command = [sys.executable, "-m", "bench.serve.chat", str(given.model), "--engine-only"]
    command += [f"--{name}={getattr(given, name)}" for name in ("clients", "tokens", "rounds")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    rows: dict[str, list[dict[str, Any]]] = {"engine": [], "server": []}
    with running_server(f"chat={given.model}") as (pid, url):
        server_round(url, pid, given.clients, 4)
        engine = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=ROOT)
        assert engine.stdin is not None
        assert engine.stdout is not None
        for _ in range(given.rounds):
            engine.stdin.write("\n")
            engine.stdin.flush()
            rows["engine"].append(json.loads(engine.stdout.readline()))
            rows["server"].append(server_round(url, pid, given.clients, given.tokens))
        engine.stdin.close()
        engine.wait()
    for name, found in rows.items():
        rate = statistics.median(row["tokens"] / row["seconds"] for row in found)
        cpu = statistics.median(1e3 * row["cpu"] / row["tokens"] for row in found)
        print(f"{name}: {rate:.1f} tokens a second, {cpu:.2f} ms of CPU time a token", found[-1])
    pairs = list(zip(rows["server"], rows["engine"], strict=True))
    ratio = statistics.median(a["tokens"] / a["seconds"] / (b["tokens"] / b["seconds"]) for a, b in pairs)
    work = statistics.median(b["cpu"] / b["tokens"] / (a["cpu"] / a["tokens"]) for a, b in pairs)
    print(f"server / engine: {ratio:.3f} by the clock, {work:.3f} by CPU time a token")


if __name__ == "__main__":
    main()
