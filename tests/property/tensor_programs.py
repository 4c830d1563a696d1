"""Random programs over the front end's ops, as data: a list of steps that smelt and NumPy both can run.

A step names an op, the values it takes and its parameters. `OPS`, which `tensor_ops` fills, says for each op how to
draw a right one, what it is on tensors and what it is on arrays. Programs can be changed: `mutate` makes one mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smelt.dim import Poly, Size, evaluate, symbol, symbols
from smelt.dtype import f32
from smelt.shape import Shape
from smelt.tensor.facts import parse_facts

Array = np.ndarray
Axis = tuple[str, Size]
Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class Step:
    """One op: which values it takes (inputs come first, then the results of steps), and its parameters."""

    op: str
    operands: tuple[int, ...]
    params: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.op}{list(self.operands)}({', '.join(f'{key}={value}' for key, value in self.params.items())})"


@dataclass(frozen=True)
class Program:
    """Steps in order; the last value is the result, which must have the declared shape."""

    inputs: tuple[Shape, ...]
    steps: tuple[Step, ...]
    facts: tuple[str, ...]
    result: Shape

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(name for shape in self.inputs for name in shape.symbols)

    @property
    def told(self) -> frozenset[str]:
        """The symbols that the program speaks of: its inputs must have them."""
        given = [value for step in self.steps for value in step.params.values()]
        sizes = [*self.result.sizes, *given, *(item for value in given if isinstance(value, list) for item in value)]
        facts = [fact.symbols for fact in parse_facts(self.facts)]
        return frozenset().union(*facts, *(symbols(size) for size in sizes if isinstance(size, Poly)))

    def on_tensors(self, *inputs: Any) -> Any:
        values = list(inputs)
        for step in self.steps:
            values.append(OPS[step.op].on_tensors(step.params, *(values[i] for i in step.operands)))
        return values[-1]

    def on_arrays(self, numbers: Mapping[str, int]) -> Array:
        """The program in NumPy at these sizes; raises where something does not fit."""
        values: list[Array] = [np.ones(shape.numbers(numbers), shape.dtype.numpy) for shape in self.inputs]
        with np.errstate(all="ignore"):
            for step in self.steps:
                arrays = [values[i] for i in step.operands]
                values.append(OPS[step.op].on_arrays(_with_numbers(step.params, numbers), *arrays))
        need(values[-1].shape == self.result.numbers(numbers), f"{values[-1].shape} is not the declared result")
        return values[-1]

    def __str__(self) -> str:
        steps = "\n  ".join(map(str, self.steps))
        return f"{list(map(str, self.inputs))} {list(self.facts)}\n  {steps}\n  → {self.result}"


def _with_numbers(params: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Parameters with numbers in place of formulas."""

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return [number(item) for item in value]
        return evaluate(value, numbers) if isinstance(value, Poly) else value

    return {key: number(value) for key, value in params.items()}


def need(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)


@dataclass(frozen=True)
class OpKind:
    draw: Callable[[Draw], None]
    on_tensors: Callable[..., Any]
    on_arrays: Callable[..., Array]


OPS: dict[str, OpKind] = {}


def op(
    name: str, on_tensors: Callable[..., Any], on_arrays: Callable[..., Array]
) -> Callable[[Callable[[Draw], None]], Callable[[Draw], None]]:
    """Registers an op; what is decorated draws a right one."""

    def register(draw: Callable[[Draw], None]) -> Callable[[Draw], None]:
        OPS[name] = OpKind(draw, on_tensors, on_arrays)
        return draw

    return register


class Draw:
    """Draws one program, keeping the axes of the value that the next step starts from."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.named = bool(rng.random() < 0.8)
        self.count = 0
        self.inputs: list[Shape] = []
        self.steps: list[Step] = []
        self.facts: list[str] = []
        self.axes: Axes = tuple(self.new_axis() for _ in range(self.number(1, 3)))
        self.take_input(self.axes)

    # ---- dice ----

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def one_of(self, items: Any) -> Any:
        return items[self.number(0, len(items) - 1)]

    def place(self) -> int:
        return self.number(0, len(self.axes) - 1)

    def new_name(self) -> str:
        self.count += 1
        return f"{'xyzuvw'[self.count % 6]}{self.count}"

    def new_axis(self) -> Axis:
        name = self.new_name()
        return name, symbol(name.upper()) if self.rng.random() < 0.7 else self.number(2, 5)

    # ---- the program so far ----

    def shape(self, axes: Axes, element: Any = f32) -> Shape:
        names = tuple(name for name, _ in axes) if self.named and axes else None
        return Shape.of(element, [size for _, size in axes], names)

    def take_input(self, axes: Axes, element: Any = f32) -> int:
        self.inputs.append(self.shape(axes, element))
        return -len(self.inputs)  # inputs are numbered when all are known

    def key(self, place: int) -> str | int:
        """An axis of the present value as smelt is told of it."""
        return self.axes[place][0] if self.named else place

    def step(self, op: str, new: Axes, /, *operands: int, **params: Any) -> None:
        present = len(self.steps) - 1 if self.steps else None
        first = -1 if present is None else present + 1_000
        self.steps.append(Step(op, (first, *operands), params))
        self.axes = new

    def claim(self, fact: str) -> bool:
        """A fact that the next step needs; False where it is about numbers alone and wrong."""
        (parsed,) = parse_facts([fact])
        if parsed.symbols:
            self.facts.append(fact)
        return bool(parsed.symbols) or bool(parsed.holds({}))

    def changed(self, place: int, *new: Axis) -> Axes:
        return (*self.axes[:place], *new, *self.axes[place + 1 :])

    def finish(self, length: int) -> Program:
        names = list(OPS)
        while len(self.steps) < length:
            name = self.one_of(names)
            if len(self.axes) < 5 or name in SHRINKING:
                OPS[name].draw(self)
        count = len(self.inputs)
        steps = [
            replace(step, operands=tuple(i - 1_000 + count if i >= 0 else -i - 1 for i in step.operands))
            for step in self.steps
        ]
        return Program(tuple(self.inputs), tuple(steps), tuple(self.facts), self.shape(self.axes))


SHRINKING = ("reduce", "merge", "flatten", "unary", "pick", "arg")


# ---- changing programs ----

SIZING = ("cut", "pad", "repeat", "tile", "concatenate", "pool", "top_k", "chunk", "window")  # names and places stay
COUNTS = ("k", "times", "parts", "index", "start", "stride", "before", "after", "window", "length", "shift", "into")


def mutate(program: Program, rng: np.random.Generator) -> tuple[Program, str] | None:
    """The program with one size, one axis or one number changed, or one step left out; None where it has none."""
    ways = [(made, what) for made, what in _mutations(program, rng) if made.told <= made.symbols]
    return ways[int(rng.integers(len(ways)))] if ways else None


def _mutations(program: Program, rng: np.random.Generator) -> Iterator[tuple[Program, str]]:
    for i, shape in enumerate(program.inputs):
        for j, size in enumerate(shape.sizes):
            ways: list[Size] = [size + 1, symbol("OTHER"), 2 * size + 1]
            new = ways[int(rng.integers(3))]
            sizes = [*shape.sizes[:j], new, *shape.sizes[j + 1 :]]
            inputs = (*program.inputs[:i], Shape.of(shape.dtype, sizes, shape.names), *program.inputs[i + 1 :])
            yield replace(program, inputs=inputs), f"input {i} axis {j}: {size} → {new}"
    for i, step in enumerate(program.steps):
        for key in COUNTS:
            if isinstance(value := step.params.get(key), int):
                params = {**step.params, key: value + 1}
                yield _with_step(program, i, replace(step, params=params)), f"step {i}: {key}={value + 1}"
        if step.op in SIZING:
            left_out = Step("unary", step.operands[:1], {"function": "__pos__"})
            yield _with_step(program, i, left_out), f"step {i} ({step.op}) left out"


def _with_step(program: Program, at: int, step: Step) -> Program:
    return replace(program, steps=(*program.steps[:at], step, *program.steps[at + 1 :]))


def numbers_for(program: Program, rng: np.random.Generator) -> dict[str, int] | None:
    """Numbers for symbols that satisfy the facts; None where none were found soon."""
    known = parse_facts(program.facts)
    everything = sorted(program.symbols | {name for fact in known for name in fact.symbols})
    for _ in range(300):
        values = {name: int(rng.choice([1, 2, 3, 4, 5, 6, 8, 12])) for name in everything}
        if not known.check(values):
            return values
    return None


def runs(program: Program, numbers: Mapping[str, int]) -> bool:
    """Whether the NumPy program gets through at these sizes and gives what is declared."""
    try:
        program.on_arrays(numbers)
    except (ValueError, IndexError, ZeroDivisionError):
        return False
    return True
