"""`python -m bench.llm MODEL.gguf`: prefill and decode of a language model, interleaved with llama.cpp where installed.

Every round runs each engine once on the same tokens: a prompt that no cache knows, then new tokens one by one. The peer
runs in a process of its own (that of `smelt bench`, with `--python` another interpreter's) and waits while smelt runs.
Medians of the rounds, the median of the rounds' ratios, and (`--bandwidth`) the fraction of the memory's bandwidth that
decoding reaches go to the terminal and, with `--json`, to a file. `--concurrent N` also measures N requests at once, as
often, on new prompts each time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import smelt.llm
from smelt.cli.bench_language import WORKER
from smelt.device.runtime import runtime

Once = Callable[[list[int], int], tuple[float, float]]  # tokens, count → seconds of prefill, seconds of decode


@dataclass(slots=True)
class Engine:
    """One way to run a model, and what it measured."""

    name: str
    once: Once
    close: Callable[[], None]
    prefill: list[float] = field(default_factory=list)  # tokens per second, one per round
    decode: list[float] = field(default_factory=list)

    def record(self) -> dict[str, float]:
        return {"prefill": statistics.median(self.prefill), "decode": statistics.median(self.decode)}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.threads:
        runtime().set_threads(options.threads)
    threads = runtime().threads
    context = options.prompt + options.new + 1
    loaded = time.perf_counter()
    model = smelt.llm.load(
        options.model,
        engine=options.engine,
        precision=options.precision,
        context=None if options.context is None else max(context, options.context),
    )
    loaded = time.perf_counter() - loaded
    engines = [smelt_engine(model)]
    if not options.alone and (peer := llama_cpp(options.model, context, threads, options.python)) is not None:
        engines.append(peer)
    dice = np.random.default_rng(options.seed)
    for number in range(options.rounds + 1):
        tokens = dice.integers(10, min(model.config.v, 30_000), options.prompt).tolist()
        for engine in engines[:: -1 if number % 2 else 1]:
            prefill, decode = engine.once(tokens, options.new)
            if number:  # the first round warms up
                engine.prefill.append(options.prompt / prefill)
                engine.decode.append((options.new - 1) / decode)
    record = {"model": options.model.name, "machine": machine(threads), "load_s": loaded}
    record |= {"prompt": options.prompt, "new": options.new, "rounds": options.rounds, "precision": options.precision}
    record["engines"] = {engine.name: engine.record() for engine in engines}
    if len(engines) > 1:
        ours, theirs = engines
        record["ratios"] = {"prefill": ratio(ours.prefill, theirs.prefill), "decode": ratio(ours.decode, theirs.decode)}
    if options.concurrent:
        sizes = options.concurrent, options.prompt, options.new
        rounds = [concurrent(model, *sizes, dice) for _ in range(options.rounds + 1)]
        record["concurrent"] = median_round(rounds[1:])  # in the first one the KV cache grows
    record["bandwidth"] = (
        bandwidth(options.model, engines[0].record()["decode"], threads) if options.bandwidth else None
    )
    for engine in engines:
        engine.close()
    show(record)
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds: what else runs on the machine slows both sides of a round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="bench.llm", description=(__doc__ or "").split("\n\n")[0])
    found.add_argument("model", type=Path)
    found.add_argument("--prompt", type=int, default=512)
    found.add_argument("--new", type=int, default=128)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--threads", type=int, default=0)
    found.add_argument("--engine", default="auto")
    found.add_argument("--precision")
    found.add_argument("--context", type=int, help="longest sequence; the model's by default")
    found.add_argument("--concurrent", type=int, default=0, metavar="N")
    found.add_argument("--bandwidth", action="store_true", help="measure the memory's bandwidth, too")
    found.add_argument("--alone", action="store_true", help="no peer")
    found.add_argument("--python", default=sys.executable, help="an interpreter with llama-cpp-python")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--json", type=Path)
    return found


def smelt_engine(model: smelt.llm.LanguageModel) -> Engine:
    def once(tokens: list[int], count: int) -> tuple[float, float]:
        timings = model.generate(tokens, max_tokens=count, ignore_end=True).timings
        return timings["prefill_s"], timings["decode_s"]

    return Engine("smelt", once, model.close)


def llama_cpp(path: Path, context: int, threads: int, python: str) -> Engine | None:
    """The peer in a process of its own, where the interpreter has its package and the model is a GGUF file."""
    if path.suffix.lower() != ".gguf":
        return None
    command = [python, "-c", WORKER.read_text("utf-8"), str(path), str(context), str(threads)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    given, answers = process.stdin, process.stdout
    if not answers.readline():
        print(f"{python} has no llama-cpp-python that loads the model: smelt alone", file=sys.stderr)
        process.wait()
        return None

    def once(tokens: list[int], count: int) -> tuple[float, float]:
        given.write(json.dumps([tokens, count]) + "\n")
        given.flush()
        prefill, decode = json.loads(answers.readline())
        return prefill, decode

    def close() -> None:
        given.close()
        process.wait()

    return Engine("llama.cpp", once, close)


def concurrent(
    model: smelt.llm.LanguageModel, count: int, prompt: int, new: int, dice: np.random.Generator
) -> dict[str, float]:
    """Tokens per second of several requests at once: while all of them generate, and with their prompts in the time."""
    prompts = [dice.integers(10, min(model.config.v, 30_000), prompt).tolist() for _ in range(count)]
    start = time.perf_counter()
    answers = model.generate_all(prompts, max_tokens=new, ignore_end=True)
    taken = time.perf_counter() - start
    generating = max(answer.timings["prefill_s"] + answer.timings["decode_s"] for answer in answers)
    last = min(answer.timings["decode_s"] for answer in answers)  # of the one that began last: all generate by then
    decode = count * (new - 1) / last
    return {"requests": count, "decode": decode, "tokens_per_s": count * new / taken, "slowest_s": generating}


def median_round(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each number, and the range of the decode rates."""
    found = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    rates = [each["decode"] for each in rounds]
    return found | {"least": min(rates), "most": max(rates)}


def bandwidth(path: Path, decode: float, threads: int) -> dict[str, float]:
    """Bytes of weights per second while decoding, beside what the memory gives at most."""
    from smelt.device.peak import Meter

    meter = Meter(threads)
    meter.probe_ends()
    most = 1e9 * meter.peaks().memory_bandwidth
    size = path.stat().st_size if path.is_file() else sum(each.stat().st_size for each in path.glob("*.safetensors"))
    return {"gb_per_s": size * decode / 1e9, "peak_gb_per_s": most / 1e9, "fraction": size * decode / most}


def machine(threads: int) -> dict[str, Any]:
    return {"processor": platform.processor() or platform.machine(), "threads": threads}


def show(record: dict[str, Any]) -> None:
    threads = record["machine"]["threads"]
    print(f"{record['model']}: prompt {record['prompt']}, {record['new']} new tokens, {threads} threads")
    for name, rates in record["engines"].items():
        print(f"  {name:10} prefill {rates['prefill']:8.1f} tokens/s   decode {rates['decode']:7.1f} tokens/s")
    if "ratios" in record:
        ratios = record["ratios"]
        print(f"  ratio      prefill {ratios['prefill']:8.2f}            decode {ratios['decode']:7.2f}")
    if "concurrent" in record:
        found, rates = record["concurrent"], record["engines"]["smelt"]
        most = min(found["requests"] * rates["decode"], rates["prefill"])
        print(
            f"  {found['requests']} at once: decode {found['decode']:.1f} tokens/s ({found['least']:.1f} to"
            f" {found['most']:.1f}), {found['decode'] / most:.2f} of the most that one request's rates allow;"
            f" {found['tokens_per_s']:.1f} tokens/s with their prompts"
        )
    if record["bandwidth"]:
        print(f"  {record['bandwidth']['fraction']:.0%} of the memory's bandwidth while decoding")


if __name__ == "__main__":
    sys.exit(main())
