"""A search for programs that `check` accepts and that fail at some size: random statements with random sizes in them.

A program grows by statements that the check accepts. Where it refuses one and names a fact that is missing, the fact is
stated half of the time. What was accepted must then run at every size that satisfies the facts: 0, 1, primes, sizes
that are equal. A program is text, so that a failure can be read and run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

import smelt
from smelt.dim import evaluate
from smelt.errors import SmeltError
from smelt.shape import Shape
from smelt.tensor import check, fori_loop
from smelt.tensor.axes import shape_of
from smelt.tensor.jit.trace import Outcome, Traced
from smelt.tensor.ops import random

ARGUMENTS = (
    ("f32[N, M]", "f32[M]"),
    ("f32[N]", "f32[M]", "f32[K]"),
    ("f32[N - 2, M]", "f32[N]"),
    ("f32[N*K]", "f32[K, M]"),
    ("f32[2*N + 1]", "f32[M, N]"),
    ("f32[N//M]", "f32[N]", "f32[M, 3]"),
)
NUMBERS = (0, 1, 2, 3, 5, 7)
MOST = 200_000  # elements of a tensor that is made

# `x` and `y` are tensors made before, `i` is a place of an axis of x, `s` and `t` are sizes, `n` is a small number.
STATEMENTS = (
    'smelt.zeros("f32[{s}, {t}]")',
    'smelt.ones("f32[{s}]")',
    'smelt.arange("{s}", element="f32")',
    'random.uniform(random.key(1), "f32[{s}]")',
    '{x}.broadcast("{s}", *{x}.sizes)',
    '{x}.reshape("{s}", "{t}")',
    '{x}.reshape("{s}", -1)',
    "{x}.reshape(-1)",
    '{x}.split({i}, "{s}", "{t}")',
    '{x}.split({i}, "{s}", None)',
    '{x}.chunk({i}, ["{s}", "{t}"])[{n} % 2]',
    "{x}.chunk({i}, {n} + 1)[{n}]",
    '{x}.top_k("{s}", {i})[0]',
    "{x}.top_k({n}, {i})[0]",
    '{x}.to("i32").one_hot("{s}")',
    '{x}.pad({{{i}: ("{s}", "{t}")}})',
    '{x}.repeat({i}, "{s}")',
    '{x}.tile({i}, "{s}")',
    '{x}.roll({i}, "{s}")',
    '{x}.dynamic_slice({{{i}: ("{t}", "{s}")}})',
    "{x}.update({y}, {{{i}: 0}})",
    '{x}[slice("{s}", "{t}")]',
    '{x}[slice("{s}", None, {n} + 1)]',
    '{x}["{s}"]',
    "{x}[{n}]",
    "{x}[-{n} - 1]",
    "{x}[1::2] + {x}[: {x}.size(0) // 2]",
    "smelt.concatenate([{x}, {y}], {i})",
    'smelt.concatenate([{x}, smelt.zeros("f32[{s}]")], 0)',
    "smelt.stack([{x}, {y}], 0)",
    "{x} + {y}",
    "{x} @ {y}",
    "{x} * ({x}.size(0) // {y}.size(0))",
    "{x} * ({x}.size(0) - {y}.size(0)) + {x}.count()",
    "{x}.sum({i})",
    "{x}.mean({i})",
    "{x}.max({i}, keep=True)",
    '{x}.argmax({i}).to("f32")',
    "{x}.softmax({i})",
    "{x}.cumsum({i})",
    "{x}.sort({i})",
    "{x}.transpose()",
    "{x}.flip({i})",
    "{x}.insert({i})",
    '{x}.take({y}.to("i32"), {i})',
    '{x}.scatter(smelt.arange("{s}"), smelt.ones("f32[{s}]"), 0, "add")',
    "smelt.scan(lambda c, r: (c + r.sum(), r * 2.0), smelt.zeros('f32[]'), {x}, {i})[1]",
    "fori_loop({n}, lambda k, z: z + {x}.sum() + 1.0, {x})",
    "{x}[1:] if {x}.size({i}) > {n} else {x}",
    "{x} if {x}.size(0) % 2 == 0 else {x}[1:]",
)


@dataclass
class Search:
    """One program that grows: its arguments, its lines, the facts that were stated, and what the check said last."""

    rng: np.random.Generator
    arguments: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        self.arguments = self.one_of(ARGUMENTS)
        shapes = [_bare(text) for text in self.arguments]
        self.symbols = sorted({name for shape in shapes for name in shape.symbols})
        self.ranks = [shape.rank for shape in shapes]

    def one_of(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def size(self, depth: int = 2) -> str:
        """A formula over the symbols: often one that is negative, or divides by 0, at some sizes."""
        if depth == 0 or self.rng.random() < 0.3:
            return self.one_of(self.symbols) if self.rng.random() < 0.8 else str(self.one_of((0, 1, 2, 3)))
        a, b = self.size(depth - 1), self.size(depth - 1)
        form = self.one_of(("{a} + {b}", "{a} - {b}", "{a} - {b}", "({a})*({b})", "({a})//({b})", "max({a}, {b})"))
        return str(form.format(a=a, b=b))

    def statement(self) -> str:
        x, y = (int(self.rng.integers(len(self.ranks))) for _ in range(2))
        place = int(self.rng.integers(max(self.ranks[x], 1)))
        sizes = {"s": self.size(), "t": self.size(), "n": self.one_of((0, 1, 2, 3)), "i": place}
        return str(self.one_of(STATEMENTS)).format(x=f"v[{x}]", y=f"v[{y}]", **sizes)

    def grow(self, length: int, tries: int = 40) -> None:
        for _ in range(tries):
            if len(self.lines) == length:
                return
            self.attempt(self.statement())

    def attempt(self, line: str) -> None:
        try:
            code = compile(line, "<program>", "eval")
        except SyntaxError:  # a size 0 in front of a digit, say
            return
        facts = list(self.facts)
        for _ in range(3):
            try:
                outcome = check(_function([*self.codes(), code]), *map(_bare, self.arguments), facts=facts)
            except ZeroDivisionError:  # of two sizes that are numbers: Python's own refusal
                return
            if outcome.traced is not None:
                self.lines.append(line)
                self.facts, self.outcome = facts, outcome
                self.ranks.append(outcome.traced.results.shape.rank)
                return
            missing = getattr(outcome.errors[0], "missing", None) if outcome.errors else None
            if missing is None or self.rng.random() < 0.3:
                return
            facts += missing.split(" and ")

    def codes(self) -> list[Any]:
        return [compile(line, "<program>", "eval") for line in self.lines]

    def __str__(self) -> str:
        lines = (f"v[{i}] = {line}" for i, line in enumerate(self.lines, len(self.arguments)))
        return "\n  ".join([f"{list(self.arguments)} facts={self.facts}", *lines])


def _bare(text: str) -> Shape:
    """A shape whose axes are known by place."""
    shape = shape_of(text)
    return Shape.of(shape.dtype, shape.sizes)


def _function(codes: Sequence[Any]) -> Any:
    def function(*tensors: Any) -> Any:
        values = list(tensors)
        for code in codes:
            values.append(eval(code, {"smelt": smelt, "random": random, "fori_loop": fori_loop, "v": values}))
        return values[-1]

    return function


def sizes_for(traced: Traced, rng: np.random.Generator) -> Iterator[dict[str, int]]:
    """Numbers that the function must take: they satisfy its facts, and those of the way that they choose."""
    names = sorted({name for leaf in traced.leaves for name in leaf.shape.symbols})
    for trial in range(60):
        if trial < len(NUMBERS):
            values = dict.fromkeys(names, NUMBERS[trial])
        else:
            values = {name: int(rng.choice(NUMBERS)) for name in names}
        if _is_satisfied(traced, values) and _small(traced, values):
            yield values


def _is_satisfied(traced: Traced, values: dict[str, int]) -> bool:
    if traced.facts.check(values):
        return False
    ways = [path for path in traced.paths if not path.guards.check(values)]
    return not ways or not ways[0].assumed.check(values)


def _small(traced: Traced, values: dict[str, int]) -> bool:
    for path in traced.paths:
        for op in path.program.main.body.ops:
            for value in op.results:
                try:
                    if abs(evaluate(value.shape.count, values)) > MOST:
                        return False
                except SmeltError:  # which the run meets as well
                    pass
    return True


def failure(traced: Traced, engines: Sequence[str], rng: np.random.Generator, count: int = 8) -> str | None:
    """Sizes at which an accepted program fails, or gives another shape than was proven."""
    for values in islice(sizes_for(traced, rng), count):
        arrays = [_data(leaf.shape, values, rng) for leaf in traced.leaves]
        for engine in engines:
            try:
                got = traced(*arrays, engine=engine).shape
            except Exception as error:
                return f"{engine} at {values}: {type(error).__name__}: {error}"
            way = next(path for path in traced.paths if not path.guards.check(values))
            want = tuple(evaluate(size, values) for size in way.results.shape.sizes)
            if got != want:
                return f"{engine} at {values}: {got}, proven was {want}"
    return None


def _data(shape: Shape, values: dict[str, int], rng: np.random.Generator) -> Any:
    return np.asarray(3 * rng.standard_normal(shape.numbers(values))).astype(shape.dtype.numpy)


def search_programs(seed: int, programs: int, native_every: int) -> Iterator[str]:
    """The failures of that many accepted programs; every so many of them run natively, too."""
    rng = np.random.default_rng([seed, 77])
    done = 0
    while done < programs:
        search = Search(rng)
        search.grow(int(rng.integers(1, 6)))
        if search.outcome is None:
            continue
        done += 1
        assert search.outcome.traced is not None
        engines = ("reference", "native") if native_every and done % native_every == 0 else ("reference",)
        if (found := failure(search.outcome.traced, engines, rng)) is not None:
            yield f"{found}\n  {search}"
