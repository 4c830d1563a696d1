"""`python -m bench.serve.chat MODEL.gguf`: chat clients of a server beside the engine's own batched generation.

Both generate the same number of tokens for the same prompts, `--clients` at once, in interleaved rounds; each runs in a
process of its own. Reported: tokens a second, CPU time a token (which hardly depends on what else the machine does)
with the threads that took it, and the time between tokens that clients saw.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.serve.load import cpu_by_thread
from bench.serve.servers import ROOT, running_server

QUESTION = "Tell me something about the number {}."


def engine_round(path: Path, clients: int, tokens: int, rounds: int, answers: int) -> None:
    """In a process of its own: a line of JSON for each round that stdin asks for."""
    import smelt

    model = smelt.llm.load(path)
    prompts = [model.prompt([{"role": "user", "content": QUESTION.format(i)}]) for i in range(clients)]
    model.generate_all(prompts, max_tokens=4, ignore_end=True)
    for _ in range(rounds):
        sys.stdin.readline()
        started, busy = time.perf_counter(), time.process_time()
        made = 0
        for _ in range(answers):
            made += sum(len(each.ids) for each in model.generate_all(prompts, max_tokens=tokens, ignore_end=True))
        spent, busy = time.perf_counter() - started, time.process_time() - busy
        print(json.dumps({"tokens": made, "seconds": spent, "cpu": busy}), flush=True)


class Client:
    """One streamed answer over a socket of its own. It counts events and parses nothing."""

    def __init__(self, address: tuple[str, int], number: int, tokens: int, model: str) -> None:
        messages = [{"role": "user", "content": QUESTION.format(number)}]
        asked: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": tokens, "stream": True}
        asked |= {"temperature": 0, "ignore_eos": True}  # as the engine's round
        body = json.dumps(asked).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket = socket.create_connection(address)
        self.socket.sendall(head.encode() + body)
        self.socket.setblocking(False)
        self.gaps: list[float] = []
        self.events = 0
        self._last, self._end = 0.0, b""

    def read(self) -> bool:
        """Take what is there; whether more may come."""
        data = self.socket.recv(1 << 16)
        if not data:
            self.socket.close()
            return False
        found = (self._end[-1:] + data).count(b"\n\n")  # an event's end may be cut in two
        self._end = (self._end + data)[-512:]
        if found:
            now = time.perf_counter()
            if self._last:
                self.gaps.append(now - self._last)
            self._last = now
            self.events += found
        return True

    @property
    def tokens(self) -> int:
        """The events but for those of the role, of the end, and [DONE]."""
        if b"[DONE]" not in self._end:
            raise RuntimeError(f"an answer failed: {self._end.decode(errors='replace')}")
        return self.events - 3


def server_round(
    url: str, pid: int, clients: int, tokens: int, model: str = "chat", answers: int = 1
) -> dict[str, Any]:
    """All clients at once, in this thread; each asks again when it has its answer, `answers` times in all. Also the
    times between what each of them gets."""
    host, _, port = url.removeprefix("http://").partition(":")
    before, started, own = cpu_by_thread(pid), time.perf_counter(), time.process_time()
    waiting = select.epoll()
    active: dict[int, Client] = {}
    every: list[Client] = []

    def ask(number: int) -> None:
        client = Client((host, int(port)), number, tokens, model)
        active[client.socket.fileno()] = client
        every.append(client)
        waiting.register(client.socket.fileno(), select.EPOLLIN)

    for i in range(clients):
        ask(i)
    while active:
        for file, _ in waiting.poll():
            if not active[file].read():
                del active[file]
                if len(every) < clients * answers:
                    ask(len(every) % clients)
    waiting.close()
    spent, own = time.perf_counter() - started, time.process_time() - own
    threads = {name: busy - before.get(name, 0.0) for name, busy in cpu_by_thread(pid).items()}
    threads = {name: busy for name, busy in threads.items() if busy}
    gaps = sorted(gap for client in every for gap in client.gaps)
    made = sum(client.tokens for client in every)
    p99 = 1000 * gaps[int(0.99 * len(gaps))] if gaps else float("nan")
    return {
        "tokens": made,
        "seconds": spent,
        "cpu": sum(threads.values()),
        "p99_between_ms": p99,
        "cpu_us_a_token": {name: round(1e6 * busy / made) for name, busy in (*threads.items(), ("client", own))},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--answers", type=int, default=1, help="answers per client, in sequence")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trusted", action="store_true", help="the model in the server's own process")
    parser.add_argument("--engine-only", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine_only:
        engine_round(given.model, given.clients, given.tokens, given.rounds, given.answers)
        return
    command = [sys.executable, "-m", "bench.serve.chat", str(given.model), "--engine-only"]
    command += [f"--{name}={getattr(given, name)}" for name in ("clients", "tokens", "rounds", "answers")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    rows: dict[str, list[dict[str, Any]]] = {"engine": [], "server": []}
    flags = ["--trusted"] if given.trusted else []
    with running_server(f"chat={given.model}", *flags) as (pid, url):
        server_round(url, pid, given.clients, 4)
        engine = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=ROOT)
        assert engine.stdin is not None
        assert engine.stdout is not None
        for _ in range(given.rounds):
            engine.stdin.write("\n")
            engine.stdin.flush()
            rows["engine"].append(json.loads(engine.stdout.readline()))
            rows["server"].append(server_round(url, pid, given.clients, given.tokens, answers=given.answers))
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
