"""`smelt bench` for language models: prefill and decode in tokens per second, optionally beside llama.cpp.

Rounds are interleaved: every engine reads the same prompt, which no cache knows, and generates the same number of
tokens; the other one waits. The peer runs in a process of its own. Ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from smelt.cli.rounds import processors, python_of
from smelt.cli.tables import Column, open_console, print_table
from smelt.device.runtime import runtime
from smelt.errors import RunError, UnsupportedError
from smelt.llm import LanguageModel, load
from smelt.llm.checkpoint import is_checkpoint
from smelt.llm.stored import LANGUAGE
from smelt.run.load import SUFFIX, has_file

PEER = "llama.cpp"
WORKER = Path(__file__).with_name("llama_worker.py")
ROUNDS = 3  # at least, after one that warms up

Once = Callable[[list[int], int], tuple[float, float]]  # tokens, count → seconds of prefill, seconds of decode


@dataclass(slots=True)
class Side:
    """One engine and what it measured, in tokens per second."""

    name: str
    once: Once
    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


def is_language_model(file: Path) -> bool:
    """A Hugging Face folder, a GGUF file, or a bundle of one."""
    return is_checkpoint(file) or (file.suffix.lower() == SUFFIX and file.is_file() and has_file(file, LANGUAGE))


def bench(
    file: Path,
    against: Sequence[str],
    loading: Mapping[str, Any],
    seconds: float,
    threads: int | None,
    pythons: Sequence[str],
    original: Path | None,
    sizes: tuple[int, int],
    as_json: bool,
) -> None:
    """`sizes`: tokens of the prompt, and new ones."""
    prompt, new = sizes
    if prompt < 1 or new < 2:
        raise RunError(
            "--prompt and --new are too small",
            expected="1 and 2 or more",
            got=f"{prompt} and {new}",
            remedy="--prompt 512 --new 128",
        )
    if strange := [name for name in against if name != PEER]:
        raise UnsupportedError(
            "no peer for language models", expected=PEER, got=", ".join(strange), remedy=f"--against {PEER}"
        )
    used = threads or processors()
    runtime().set_threads(used)
    peer = _Peer(original or file, prompt + new + 1, used, python_of(pythons, [PEER])) if against else None
    try:
        with load(file, **loading) as model:
            record = _measure(file, model, peer, seconds, prompt, new)
    finally:
        if peer is not None:
            peer.close()
    record |= {"threads": used, "prompt": prompt, "new": new}
    if as_json:
        print(json.dumps(record))
    else:
        _print(record)


def _measure(
    file: Path, model: LanguageModel, peer: _Peer | None, seconds: float, prompt: int, new: int
) -> dict[str, Any]:
    if prompt + new > model.context:
        raise RunError(
            "more tokens than the context holds",
            expected=model.context,
            got=prompt + new,
            remedy="a smaller --prompt or --new",
        )

    def ours(tokens: list[int], count: int) -> tuple[float, float]:
        timings = model.generate(tokens, max_tokens=count, ignore_end=True).timings
        return timings["prefill_s"], timings["decode_s"]

    sides = [Side("smelt", ours), *([] if peer is None else [Side(PEER, peer.once)])]
    dice = np.random.default_rng(0)
    started = time.perf_counter()
    number = 0
    while number <= ROUNDS or time.perf_counter() - started < seconds:
        tokens = dice.integers(0, model.config.v, prompt).tolist()
        for side in sides[:: -1 if number % 2 else 1]:
            first, rest = side.once(tokens, new)
            if number:
                side.prefill.append(prompt / first)
                side.decode.append((new - 1) / rest)
        number += 1
    record: dict[str, Any] = {"model": str(file), "rounds": number - 1, "engines": {}}
    for side in sides:
        record["engines"][side.name] = {
            "prefill_tokens_per_s": statistics.median(side.prefill),
            "decode_tokens_per_s": statistics.median(side.decode),
            "prefill_ratio": _ratio(sides[0].prefill, side.prefill),
            "decode_ratio": _ratio(sides[0].decode, side.decode),
        }
    if peer is not None:
        record["engines"][PEER]["version"] = peer.version
    return record


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


class _Peer:
    """llama.cpp in a process."""

    def __init__(self, file: Path, context: int, threads: int, pythons: Mapping[str, str]) -> None:
        if file.suffix.lower() != ".gguf":
            raise UnsupportedError(f"{PEER} reads GGUF files", got=file.name, remedy="--original MODEL.gguf")
        python = pythons.get(PEER, sys.executable)
        # As a text: a script's folder would be searched first, and ours has a module `inspect`.
        command = [python, "-c", WORKER.read_text("utf-8"), str(file), str(context), str(threads)]
        self._said = TemporaryFile("w+")  # noqa: SIM115  # a full pipe would block the process
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
            )
        except OSError as error:
            raise RunError(f"{python} cannot be started", got=error, remedy=f"--python {PEER}=PATH") from error
        said = self._line()
        self.version = json.loads(said) if said else ""
        if not said:
            self._process.wait()
            self._said.seek(0)
            *_, why = ["nothing", *self._said.read().strip().splitlines()]
            self.close()
            raise RunError(
                f"{PEER} does not load the model",
                got=why,
                remedy=f"pip install llama-cpp-python, or --python {PEER}=PATH of an interpreter that has it",
            )

    def once(self, tokens: list[int], count: int) -> tuple[float, float]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([tokens, count]) + "\n")
            self._process.stdin.flush()
            first, rest = json.loads(self._line())
        except (OSError, ValueError) as error:
            raise RunError(f"{PEER} ended in the middle", got=error, remedy="its own command line says why") from error
        return float(first), float(rest)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            if pipe is not None:
                pipe.close()


def _print(record: Mapping[str, Any]) -> None:
    console = open_console()
    console.print(
        f"[bold]{record['model']}[/]: {record['prompt']} tokens read, {record['new']} generated, "
        f"{record['threads']} threads, {record['rounds']} rounds",
        soft_wrap=True,
    )
    columns = (Column("engine", True), Column("prefill tok/s"), Column("decode tok/s"), Column("smelt / it"))
    rows = [
        (
            name,
            f"{each['prefill_tokens_per_s']:.1f}",
            f"{each['decode_tokens_per_s']:.1f}",
            f"{each['prefill_ratio']:.2f}, {each['decode_ratio']:.2f}",
        )
        for name, each in record["engines"].items()
    ]
    print_table(console, columns, rows)
