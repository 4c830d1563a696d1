"""What a hostile text must come through: reading, verifying, printing, all passes, running; only SmeltErrors escape.

    python tests/hostile/endure.py [FOLDER …] [--count 10000] [--seed 1] [--jobs 2]

`endure(text)` says how far a text came; `attack` mutates programs and lists everything that escaped. Used by the tests.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from smelt.dtype import Quantized  # noqa: E402
from smelt.errors import SmeltError  # noqa: E402
from smelt.ir.core import Func, Program, Token, Tuple, Type, walk  # noqa: E402
from smelt.ir.interpret import run  # noqa: E402
from smelt.ir.structure import difference, fingerprint  # noqa: E402
from smelt.ir.text import parse, print_program  # noqa: E402
from smelt.ir.verify import verify  # noqa: E402
from smelt.passes import pipeline  # noqa: E402
from smelt.passes.canonicalise import CANONICALISE  # noqa: E402
from smelt.passes.simplify import SIMPLIFY  # noqa: E402
from smelt.shape import Shape  # noqa: E402
from tests.hostile.mutate import mutate, strip_comments  # noqa: E402
from tests.hostile.samples import SAMPLES  # noqa: E402
from tests.unit.passes.recipes import RECIPES, Draw  # noqa: E402

READING = 2.0  # seconds
RUNNING = 4.0
MEMORY = 2 << 30  # bytes beyond what the process has already
LARGEST = 1 << 20  # elements of an argument
ENDLESS = ("stablehlo.while",)  # a mutated loop may have no end: that is what the program says
RANDOM = ("stablehlo.rng",)


class TooSlow(BaseException):
    """A stage went on past its limit. No Exception, so that no handler catches it."""


@dataclass(frozen=True, slots=True)
class Escape:
    """Something other than a SmeltError came out, or nothing came out in time."""

    text: str
    done: tuple[str, ...]
    stage: str
    error: str
    trace: str

    @property
    def kind(self) -> str:
        """The same for escapes from the same place."""
        frames = [line.strip() for line in self.trace.splitlines() if line.strip().startswith("File ")]
        return f"{self.stage}: {self.error.partition(':')[0]} at {frames[-1] if frames else '?'}"


@contextmanager
def limits(seconds: float) -> Iterator[None]:
    """Stop the block after some seconds."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, remaining, interval)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def little_memory() -> Iterator[None]:
    """Allocations beyond a limit fail, as they do on a machine that has no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + MEMORY, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


class Trial:
    """One text on its way; `stage` is where it is. Its arguments are ones, or `values` draws them."""

    def __init__(self, text: str, values: np.random.Generator | None = None) -> None:
        self.text = text
        self.values = values
        self.stage = "read"

    def endure(self) -> str:
        """How far it came: `refused`, or `failed` or `ran` for a program that was accepted."""
        with limits(READING):
            try:
                program = parse(self.text)
            except SmeltError as error:
                str(error)
                return "refused"
        with limits(READING):
            self.stage = "verify"
            verify(program)  # whatever was read is valid
            self._round_trip(program)
        if not program.funcs:
            return "empty"
        with limits(RUNNING):
            self.stage = "passes"
            changed, _ = pipeline.run(program)
            self.stage = "verify after passes"
            verify(changed)
        self.stage = "run"
        return self._run(program, changed)

    def _round_trip(self, program: Program) -> None:
        for generic in (False, True):
            self.stage = "print"
            printed = print_program(program, generic=generic)
            self.stage = "read again"
            again = parse(printed)
            found = difference(program, again)
            assert found is None, f"not the same after printing:\n{found}\n{printed}"
            assert fingerprint(program) == fingerprint(again)

    def _run(self, program: Program, changed: Program) -> str:
        entry = program.main
        args = [argument(value.type, self.values) for value in entry.args]
        if any(arg is None and not isinstance(value.type, Token) for arg, value in zip(args, entry.args, strict=True)):
            return "not run"
        outcomes: list[Any] = []
        for stage, which in (("run", program), ("run after passes", changed)):
            self.stage = stage
            try:
                with limits(RUNNING), little_memory():
                    outcomes.append(run(which, args, func=entry.name))
            except SmeltError as error:
                str(error)
                if isinstance(error.__cause__, Exception) and not isinstance(error.__cause__, SmeltError | MemoryError):
                    raise error.__cause__ from None  # caught at the last moment, and a bug of ours all the same
                outcomes.append(error)
            except TooSlow:
                if not uses(entry, program, ENDLESS):
                    raise
                return "endless"
        before, after = outcomes
        if isinstance(before, SmeltError):
            return "failed"
        assert not isinstance(after, SmeltError), f"it ran, but not after the passes: {after}"
        if not uses(entry, program, RANDOM):
            assert same(before, after), f"the passes changed the results:\n{before}\n{after}"
        return "ran"


def argument(type: Type, values: np.random.Generator | None) -> Any:
    """Ones for a tensor, whatever its size, or numbers drawn for it; None where there is no such value."""
    match type:
        case Shape():
            if not type.is_static:
                type = type.substitute(dict.fromkeys(type.symbols, 2))
            if prod(max(size, 1) for size in type.numbers()) > LARGEST:
                return None
            if values is None:
                return np.ones(type.numbers(), type.dtype.numpy)
            stored = type.dtype.storage if isinstance(type.dtype, Quantized) else type.element
            return Draw(values).array(type.with_dtype(stored))
        case Tuple():
            parts = tuple(argument(inner, values) for inner in type.types)
            return None if any(part is None for part in parts) else parts
    return None


def uses(entry: Func, program: Program, names: Sequence[str]) -> bool:
    return any(op.name in names for func in program.funcs.values() for op in walk(func.body))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def endure(text: str) -> str:
    """How far a text comes; raises whatever escapes that is no SmeltError for a malformed text."""
    return Trial(text).endure()


def attack(
    texts: Sequence[str], count: int, seed: int, *, only: Sequence[str] = (), vary: bool = False
) -> tuple[Counter[str], list[Escape]]:
    """Mutants of programs, one after the other; `vary`: run on random numbers instead of ones."""
    choose = Random(seed)
    values = np.random.default_rng(seed) if vary else None
    outcomes: Counter[str] = Counter()
    escapes = []
    for _ in range(count):
        mutant = mutate(choose.choice(texts), choose, only=only)
        trial = Trial(mutant.text, values)
        try:
            outcomes[trial.endure()] += 1
        except (Exception, TooSlow) as error:
            outcomes["escaped"] += 1
            described = f"{type(error).__name__}: {error}"[:2000]
            escapes.append(Escape(mutant.text, mutant.done, trial.stage, described, traceback.format_exc(limit=-12)))
    return outcomes, escapes


def programs(folders: Sequence[Path], largest: int = 20_000) -> list[str]:
    """The samples, and every program of some folders that has at most `most` characters."""
    texts = list(SAMPLES.values())
    for folder in folders:
        found = (path.read_text() for path in sorted(folder.rglob("*.mlir")))
        texts += [strip_comments(text) for text in found if len(text) <= largest]
    return texts


def rewritable(seed: int, each: int = 4) -> list[str]:
    """For every rewrite rule some programs in which its pattern occurs."""
    random = np.random.default_rng(seed)
    texts = []
    for rule in CANONICALISE + SIMPLIFY:
        for recipe in RECIPES[rule.why]:
            for _ in range(each):
                draw = Draw(random, rule.pattern.op)
                texts.append(print_program(Program.of(draw.func(recipe(draw))), generic=True))
    return texts


def _part(job: tuple[Sequence[str], int, int]) -> tuple[Counter[str], list[Escape]]:
    return attack(*job)


def main(arguments: Sequence[str]) -> int:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("folders", nargs="*", type=Path)
    reader.add_argument("--count", type=int, default=10_000)
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--jobs", type=int, default=1)
    given = reader.parse_args(arguments)
    texts = programs(given.folders)
    step = 250
    jobs = [(texts, min(step, given.count - at), given.seed * 1_000_003 + at) for at in range(0, given.count, step)]
    outcomes: Counter[str] = Counter()
    kinds: dict[str, list[Escape]] = {}
    with multiprocessing.Pool(given.jobs) as pool:
        for counted, escapes in pool.imap_unordered(_part, jobs):
            outcomes += counted
            for escape in escapes:
                kinds.setdefault(escape.kind, []).append(escape)
    for kind, members in sorted(kinds.items(), key=lambda item: len(item[1])):
        least = min(members, key=lambda member: len(member.text))
        print(f"---- {len(members)} × {kind}\n     {', '.join(least.done)}\n{least.error}\n{least.trace}\n{least.text}")
    print(f"{len(texts)} programs, seed {given.seed}: {dict(outcomes.most_common())}")
    return bool(kinds)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
