"""`python -m bench.cuda_streams [--out FILE.json]`: calls of several programs at the same time on one GPU.

    overlap    two models of one row, each called by a thread of its own, and in sequence: seconds, bits
    latency    a short call alone, and while another program runs a long one
    stress     threads with programs of their own give each other buffers, donate, copy, free and read them at random;
               every byte that is read is compared with the same steps, one at a time, each waited for

It ends with an error where a bit differs. `--device emulated --small` tries the script without a GPU: on queues that
put work off, so that what is not waited for is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

CALLS, ROUNDS = 200, 5
WORKERS, STEPS, TURNS = 8, 1000, 8  # of the stress: threads, steps of each, and steps between two exchanges
TIMEOUT = 60.0  # seconds


def chain_text(rows: int, side: int, count: int, element: str = "f32") -> str:
    """Products by several weights, one after another."""
    row, square = f"tensor<{rows}x{side}x{element}>", f"tensor<{side}x{side}x{element}>"
    given = ", ".join(f'%w{i}: {square} {{smelt.weight = "w{i}"}}' for i in range(count))
    lines = [f"func.func @main(%x: {row}, {given}) -> {row} {{", f"  %0 = stablehlo.tanh %x : {row}"]
    for i in range(count):
        kinds = f"({row}, {square}) -> {row}"
        lines.append(f"  %d{i} = stablehlo.dot_general %{i}, %w{i}, contracting_dims = [1] x [0] : {kinds}")
        lines.append(f"  %{i + 1} = stablehlo.tanh %d{i} : {row}")
    return "\n".join([*lines, f"  return %{count} : {row}", "}"])


def mix_text(rows: int, side: int) -> str:
    """x / 2 + sin y."""
    kind = f"tensor<{rows}x{side}xf32>"
    return f"""func.func @main(%x: {kind}, %y: {kind}) -> {kind} {{
  %half = stablehlo.constant dense<0.5> : {kind}
  %0 = stablehlo.multiply %x, %half : {kind}
  %1 = stablehlo.sine %y : {kind}
  %2 = stablehlo.add %0, %1 : {kind}
  return %2 : {kind}
}}"""


class Programs:
    """Compiles for the device."""

    def __init__(self) -> None:
        from smelt.engine.native import native_engine

        self.engine: Any = native_engine("cuda")
        self.driver = self.engine.device.driver

    def compile(self, text: str, donate: Sequence[str] = ()) -> Any:
        from smelt.ir.text import parse

        return self.engine.compile(parse(text), donate=donate)

    def weights(self, side: int, count: int, seed: int) -> Any:
        from smelt.buffer import HostBuffer
        from smelt.weights import Weights

        drawn = np.random.default_rng(seed)
        scale = np.float32(2 / side**0.5)
        return Weights.of(
            {f"w{i}": HostBuffer.of(scale * drawn.standard_normal((side, side), np.float32)) for i in range(count)}
        )

    def chain(self, rows: int, side: int, count: int, seed: int) -> Any:
        return self.compile(chain_text(rows, side, count)).prepare(self.weights(side, count, seed))

    def put(self, array: Any) -> Any:
        from smelt.buffer import HostBuffer

        return self.engine.put(HostBuffer.of(array))


def in_threads(*work: Callable[[], None]) -> float:
    """Seconds of all of it, each part in a thread of its own. Raises the first error."""
    errors: list[BaseException] = []
    gate = threading.Barrier(len(work) + 1)

    def run(part: Callable[[], None]) -> None:
        gate.wait()
        try:
            part()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(part,), daemon=True) for part in work]
    for thread in threads:
        thread.start()
    gate.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "a thread does not end"
    taken = time.perf_counter() - begin
    if errors:
        raise errors[0]
    return taken


def digest(buffer: Any) -> str:
    return hashlib.blake2b(buffer.numpy().tobytes(), digest_size=8).hexdigest()


def overlap(programs: Programs, *, small: bool) -> dict[str, Any]:
    side, count, calls, rounds = (32, 3, 4, 1) if small else (512, 24, CALLS, ROUNDS)
    models = [programs.chain(1, side, count, seed) for seed in (1, 2)]
    inputs = [programs.put(np.random.default_rng(seed).standard_normal((1, side), np.float32)) for seed in (3, 4)]
    alone = []
    for model, x in zip(models, inputs, strict=True):  # each on its own: nothing else is in the way
        alone.append({digest(model(x)[0]) for _ in range(4)})
    assert all(len(each) == 1 for each in alone), "a model gives other bits at each call"

    def part(i: int) -> Callable[[], None]:
        def work() -> None:
            for at in range(calls):
                (y,) = models[i](inputs[i])
                if at % 20 == 0:
                    assert digest(y) in alone[i], "other bits beside another model"
            assert digest(y) in alone[i], "other bits beside another model"

        return work

    times: dict[str, list[float]] = {"first alone": [], "second alone": [], "together": []}
    for _ in range(rounds + 1):
        times["first alone"].append(in_threads(part(0)))
        times["second alone"].append(in_threads(part(1)))
        times["together"].append(in_threads(part(0), part(1)))
    found: dict[str, Any] = {name: 1e6 * statistics.median(each[1:]) / calls for name, each in times.items()}
    found["in sequence"] = found["first alone"] + found["second alone"]
    found["times as fast"] = found["in sequence"] / found["together"]
    assert models[0]._bound._queue is not models[1]._bound._queue, "two models, one queue"
    return {"microseconds": found, "same bits": True}


def latency(programs: Programs, *, small: bool) -> dict[str, Any]:
    side, wide, count = (32, 32, 2) if small else (512, 4096, 6)
    short, long = programs.chain(1, side, 4, 5), programs.chain(side if small else wide, wide, count, 6)
    x = programs.put(np.ones((1, side), np.float32))
    wide_x = programs.put(np.ones((side if small else wide, wide), np.float32))
    for _ in range(4):
        want = digest(short(x)[0])
        before = digest(long(wide_x)[0])

    def call() -> float:
        begin = time.perf_counter()
        assert digest(short(x)[0]) == want
        return 1e3 * (time.perf_counter() - begin)

    alone = statistics.median(call() for _ in range(9))
    beside, whole = [], []
    for _ in range(1 if small else 5):
        begin = time.perf_counter()
        (y,) = long(wide_x)
        beside += [call() for _ in range(3)]
        assert digest(y) == before
        whole.append(1e3 * (time.perf_counter() - begin))
    return {"milliseconds": {"short alone": alone, "short beside long": statistics.median(beside),
                             "longest beside": max(beside), "long": statistics.median(whole)}}  # fmt: skip


class Worker:
    """Steps that a seed draws. They depend on no other worker, except for the buffers that come from one."""

    def __init__(self, programs: Programs, calls: Sequence[Any], number: int, shape: tuple[int, int]) -> None:
        self.programs, self.calls, self.shape = programs, calls, shape
        self.random, self.drawn = random.Random(number), np.random.default_rng(number)
        self.held: list[Any] = []
        self.common: list[Any] = []  # buffers that another worker reads as well
        self.read: list[str] = []
        self.sent: SimpleQueue[tuple[Any, bool]] = SimpleQueue()  # and whether both read it from now on
        self.source: Worker = self
        self.waits = False

    def new(self) -> Any:
        return self.drawn.standard_normal(self.shape, np.float32)

    def pick(self) -> Any:
        return self.random.choice([*self.held, *self.common])

    def take(self) -> Any:
        return self.held.pop(self.random.randrange(len(self.held)))

    def step(self, at: int) -> None:
        while len(self.held) < 3:
            self.held.append(self.programs.put(self.new()))
        while len(self.held) > 8:
            self.take()
        chain, again, mix, donating = self.calls
        kind = self.random.choice(("chain", "again", "mix", "mix", "donate", "host", "copy", "drop", "read", "begin"))
        if kind in ("chain", "again"):
            self.held += {"chain": chain, "again": again}[kind](self.pick())
        elif kind == "mix":
            self.held += mix(self.pick(), self.pick())
        elif kind == "donate":
            self.held += donating(self.take(), self.pick())
        elif kind == "host":
            self.held += mix(self.new(), self.pick())
        elif kind == "copy":
            self.held.append(self.pick().copy())
        elif kind == "drop":
            self.take()
        elif kind == "read":
            self.read.append(digest(self.pick()))
        else:
            self.pick().copy_to_host()
        if self.waits:
            self.programs.driver.wait()
        if at % TURNS == TURNS - 1:
            buffer, both = self.take() if self.held else self.programs.put(self.new()), self.random.random() < 0.5
            self.common = [*self.common[-3:], *([buffer] if both else [])]
            self.sent.put((buffer, both))

    def receive(self, at: int) -> None:
        if at % TURNS == TURNS - 1:
            buffer, both = self.source.sent.get(timeout=TIMEOUT)
            (self.common if both else self.held).append(buffer)

    def end(self) -> list[str]:
        return [*self.read, *map(digest, [*self.held, *self.common])]


def stress(programs: Programs, *, small: bool, seed: int) -> dict[str, Any]:
    rows, side, workers, steps = (2, 32, 3, 40) if small else (4, 1024, WORKERS, STEPS)
    names = [port.name for port in programs.compile(mix_text(rows, side)).signature.inputs]
    mix = programs.compile(mix_text(rows, side)).prepare(programs.weights(1, 0, 0))
    donating = programs.compile(mix_text(rows, side), names[:1]).prepare(programs.weights(1, 0, 0))
    unbound = programs.compile(chain_text(rows, side, 2))
    shared = unbound.prepare(programs.weights(side, 2, 7))
    own = [unbound.prepare(programs.weights(side, 2, 100 + i)) for i in range(workers)]  # the same code

    def make(*, waits: bool) -> list[Worker]:
        made = [Worker(programs, (shared, own[i], mix, donating), seed + i, (rows, side)) for i in range(workers)]
        for i, worker in enumerate(made):
            worker.source, worker.waits = made[i - 1], waits
        return made

    one_by_one = make(waits=True)
    for at in range(steps):
        for worker in one_by_one:
            worker.step(at)
        for worker in one_by_one:
            worker.receive(at)
    want = [worker.end() for worker in one_by_one]
    together = make(waits=False)

    def part(worker: Worker) -> Callable[[], None]:
        def work() -> None:
            for at in range(steps):
                worker.step(at)
                worker.receive(at)

        return work

    seconds = in_threads(*map(part, together))
    got = [worker.end() for worker in together]
    wrong = [i for i in range(workers) if got[i] != want[i]]
    queues = programs.driver.queues
    found = {"threads": workers, "steps": steps, "compared": sum(map(len, want)), "seconds": seconds, "wrong": wrong}
    assert not wrong, f"other bits in threads than one by one: {found}, --seed {seed}"
    return {**found, "queues": len(queues.all), "crossings": queues.crossings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda", help="cuda, or emulated")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="of the stress, each with another seed")
    options = parser.parse_args()
    if options.device == "emulated":
        from tests.cuda.emulated import register

        register(options.seed)
    programs, found = Programs(), dict[str, Any]()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "overlap": lambda: overlap(programs, small=options.small),
        "latency": lambda: latency(programs, small=options.small),
    }
    for i in range(options.rounds):
        seed = options.seed + 1000 * i
        parts[f"stress {seed}"] = lambda seed=seed: stress(programs, small=options.small, seed=seed)  # type: ignore[misc]
    for name, part in parts.items():
        begin = time.perf_counter()
        found[name] = {**part(), "took": time.perf_counter() - begin}
        print(name, json.dumps(found[name]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
