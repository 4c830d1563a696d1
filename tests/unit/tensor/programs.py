"""Random programs over all kinds of ops that are right for all sizes, each with the same program in plain NumPy.

The NumPy side knows nothing of names: it is told places of axes when the program is drawn, never broadcasts by itself,
and fails where sizes do not agree. So it is the judge of what a mutated program does at given sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import smelt
from smelt.dim import Size, symbol
from smelt.dtype import f32, i32
from smelt.shape import Shape
from smelt.tensor.facts import parse_facts

Axes = tuple[tuple[str, Size], ...]
OnTensors = Callable[..., Any]
OnArrays = Callable[..., np.ndarray]


@dataclass
class Program:
    """Steps over one running value; each may take fresh inputs. Input 0 is what the first step starts from."""

    inputs: list[Shape] = field(default_factory=list)
    steps: list[tuple[str, OnTensors, OnArrays, list[int]]] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    def tensors(self, *inputs: Any) -> Any:
        value = inputs[0]
        for _, on_tensors, _, fresh in self.steps:
            value = on_tensors(value, *(inputs[i] for i in fresh))
        return value

    def arrays(self, *inputs: np.ndarray) -> np.ndarray:
        value = inputs[0]
        for _, _, on_arrays, fresh in self.steps:
            value = on_arrays(value, *(inputs[i] for i in fresh))
        return value

    def __str__(self) -> str:
        return f"{self.inputs} | {' ; '.join(name for name, _, _, _ in self.steps)} | {self.facts}"


class Draw:
    """Draws one program, keeping track of the axes of the running value."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.program = Program()
        self.names = iter("abcdefghijklmnopqrstuvwxyz" * 4)
        self.count = 0
        self.axes: Axes = tuple(self.new_axis() for _ in range(int(rng.integers(1, 4))))
        self.take_input(self.axes)

    def new_name(self) -> str:
        self.count += 1
        return f"{'xyzuvw'[self.count % 6]}{self.count}"

    def new_axis(self) -> tuple[str, Size]:
        name = self.new_name()
        size: Size = symbol(name.upper()) if self.rng.random() < 0.7 else int(self.rng.integers(1, 6))
        return name, size

    def take_input(self, axes: Axes, element: Any = f32) -> int:
        shape = Shape.of(element, [size for _, size in axes], tuple(name for name, _ in axes) or None)
        self.program.inputs.append(shape)
        return len(self.program.inputs) - 1

    def step(self, name: str, on_tensors: OnTensors, on_arrays: OnArrays, *fresh: int) -> None:
        self.program.steps.append((name, on_tensors, on_arrays, list(fresh)))

    def place(self) -> int:
        return int(self.rng.integers(len(self.axes)))

    # ---- steps ----

    def unary(self) -> None:
        name = str(self.rng.choice(["relu", "tanh", "abs", "square", "silu", "floor"]))
        self.step(name, lambda x: getattr(x, name)(), lambda x: x * 1)

    def binary(self) -> None:
        """With an input that has some of the axes, in any order."""
        keep = [i for i in range(len(self.axes)) if self.rng.random() < 0.7]
        order = [int(i) for i in self.rng.permutation(keep)] if keep else []
        other = self.take_input(tuple(self.axes[i] for i in order))
        rank = len(self.axes)

        def on_arrays(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            sizes = [x.shape[i] for i in order]
            if list(y.shape) != sizes:
                raise ValueError(f"{y.shape} is not {sizes}")
            back = [order.index(i) for i in sorted(order)]
            return x + y.transpose(back).reshape([x.shape[i] if i in order else 1 for i in range(rank)])

        op = str(self.rng.choice(["+", "*", "-", "max"]))
        functions = {"+": lambda x, y: x + y, "*": lambda x, y: x * y, "-": lambda x, y: x - y, "max": smelt.maximum}
        self.step(f"{op} {order}", functions[op], on_arrays, other)

    def dot(self) -> None:
        place, out = self.place(), self.new_axis()
        name, size = self.axes[place]
        axes = ((name, size), out) if self.rng.random() < 0.5 else (out, (name, size))
        at = axes.index((name, size))
        other = self.take_input(axes)
        self.axes = (*self.axes[:place], *self.axes[place + 1 :], out)
        self.step(f"dot {name}", lambda x, y: x.dot(y, name), lambda x, y: np.tensordot(x, y, ((place,), (at,))), other)

    def reduce(self) -> None:
        if len(self.axes) < 2:
            return
        place = self.place()
        name = self.axes[place][0]
        self.axes = self.axes[:place] + self.axes[place + 1 :]
        self.step(f"sum {name}", lambda x: x.sum(name), lambda x: x.sum(place))

    def along(self) -> None:
        name = self.axes[self.place()][0]
        op = str(self.rng.choice(["softmax", "cumsum", "sort", "flip", "cummax"]))
        self.step(f"{op} {name}", lambda x: getattr(x, op)(name), lambda x: x)

    def transpose(self) -> None:
        order = [int(i) for i in self.rng.permutation(len(self.axes))]
        self.axes = tuple(self.axes[i] for i in order)
        names = " ".join(name for name, _ in self.axes)
        self.step(f"transpose {names}", lambda x: x.transpose(names), lambda x: x.transpose(order))

    def merge(self) -> None:
        if len(self.axes) < 2:
            return
        place = int(self.rng.integers(len(self.axes) - 1))
        (a, m), (b, n) = self.axes[place : place + 2]
        name = self.new_name()
        self.axes = (*self.axes[:place], (name, m * n), *self.axes[place + 2 :])

        def on_arrays(x: np.ndarray) -> np.ndarray:
            return x.reshape(*x.shape[:place], x.shape[place] * x.shape[place + 1], *x.shape[place + 2 :])

        self.step(f"merge {a} {b}", lambda x: x.merge(f"{a} {b}", name), on_arrays)

    def pad_and_split(self) -> None:
        place, k = self.place(), int(self.rng.integers(2, 5))
        name, size = self.axes[place]
        outer, inner = self.new_name(), self.new_name()
        padded = size + (-size) % k
        self.axes = (*self.axes[:place], (outer, padded // k), (inner, k), *self.axes[place + 1 :])

        def on_tensors(x: Any) -> Any:
            whole = x.pad({name: (0, -x.size(name) % k)})
            return whole.split(name, **{outer: None, inner: k})

        def on_arrays(x: np.ndarray) -> np.ndarray:
            more = -x.shape[place] % k
            whole = np.pad(x, [(0, more if i == place else 0) for i in range(x.ndim)])
            return whole.reshape(*x.shape[:place], (x.shape[place] + more) // k, k, *x.shape[place + 1 :])

        self.step(f"pad and split {name} by {k}", on_tensors, on_arrays)

    def heads(self) -> None:
        """Splits an axis of one symbol by a fact."""
        place = self.place()
        name, size = self.axes[place]
        if isinstance(size, int) or str(size) != name.upper():
            return
        head = self.new_name()
        h, k = symbol(head.upper()), self.new_name()
        self.program.facts.append(f"{h} divides {size}")
        other = self.take_input(((head, h),))
        self.axes = (*self.axes[:place], (head, h), (k, size // h), *self.axes[place + 1 :])

        def on_tensors(x: Any, y: Any) -> Any:
            return x.split(name, **{head: y.size(head), k: None}) * y

        def on_arrays(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            parts = x.reshape(*x.shape[:place], len(y), x.shape[place] // len(y), *x.shape[place + 1 :])
            return parts * y.reshape([len(y) if i == place else 1 for i in range(parts.ndim)])

        self.step(f"heads {head} of {name}", on_tensors, on_arrays, other)

    def concatenate(self) -> None:
        place = self.place()
        name, size = self.axes[place]
        _, more = self.new_axis()
        other = self.take_input((*self.axes[:place], (name, more), *self.axes[place + 1 :]))
        self.axes = (*self.axes[:place], (name, size + more), *self.axes[place + 1 :])
        self.step(
            f"concatenate {name}",
            lambda x, y: smelt.concatenate([x, y], name),
            lambda x, y: np.concatenate([x, y], place),
            other,
        )

    def cut(self) -> None:
        place = self.place()
        name, size = self.axes[place]
        index = [slice(None, None, 2), slice(1, None, 2), slice(None, None, 3)][int(self.rng.integers(3))]
        start = index.start or 0
        self.axes = (*self.axes[:place], (name, (size + index.step - 1 - start) // index.step), *self.axes[place + 1 :])
        at = tuple(index if i == place else slice(None) for i in range(len(self.axes)))
        self.step(f"{name}[{start}::{index.step}]", lambda x: x.slice(**{name: index}), lambda x: x[at])

    def look_up(self) -> None:
        place, new = self.place(), self.new_axis()
        name, _ = self.axes[place]
        other = self.take_input((new,), i32)
        self.axes = (*self.axes[:place], new, *self.axes[place + 1 :])
        self.step(
            f"take {name}",
            lambda x, i: x.take(i, name),
            lambda x, i: np.zeros((*x.shape[:place], len(i), *x.shape[place + 1 :]), x.dtype),
            other,
        )

    def update(self) -> None:
        place = self.place()
        name, size = self.axes[place]
        part = symbol(self.new_name().upper())
        self.program.facts.append(f"{part} <= {size}")
        other = self.take_input((*self.axes[:place], (name, part), *self.axes[place + 1 :]))

        def on_arrays(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            out = x.copy()
            out[tuple(slice(0, y.shape[i]) if i == place else slice(None) for i in range(x.ndim))] = check(x, y)
            return out

        def check(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            same = all(a == b for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if i != place)
            if not same or y.shape[place] > x.shape[place]:
                raise ValueError(f"{y.shape} into {x.shape}")
            return y

        self.step(f"update {name}", lambda x, y: x.update(y, {name: 0}), on_arrays, other)

    def attention(self) -> None:
        """Scores of every place with every other one, and back."""
        if len(self.axes) < 2:
            return
        s, d = (int(i) for i in self.rng.permutation(len(self.axes))[:2])
        (name, _), (depth, _) = self.axes[s], self.axes[d]
        other = self.new_name()

        def on_tensors(x: Any) -> Any:
            keys = x.rename(**{name: other})
            order = x.shape.names
            return x.dot(keys, depth).softmax(other).dot(keys, other).transpose(*order)

        self.step(f"attention {name} {depth}", on_tensors, lambda x: x)

    STEPS = (
        *(unary, binary, binary, dot, dot, reduce, along, transpose, merge),
        *(pad_and_split, heads, concatenate, cut, look_up, update, attention),
    )

    def finish(self, length: int) -> Program:
        for _ in range(length):
            step = self.STEPS[int(self.rng.integers(len(self.STEPS)))]
            if len(self.axes) < 5 or step in (Draw.reduce, Draw.merge, Draw.unary):
                step(self)
        return self.program


def mutate(program: Program, rng: np.random.Generator) -> tuple[Program, str] | None:
    """The program with the size of one axis of one input changed; None where it has no axis."""
    places = [(i, j) for i, shape in enumerate(program.inputs) for j in range(shape.rank)]
    if not places:
        return None
    i, j = places[int(rng.integers(len(places)))]
    old = program.inputs[i]
    size = old.sizes[j]
    ways: list[Size] = [size + 1, symbol("OTHER"), 2 * size + 1]
    new = ways[int(rng.integers(len(ways)))]
    sizes = [*old.sizes[:j], new, *old.sizes[j + 1 :]]
    inputs = list(program.inputs)
    inputs[i] = Shape.of(old.dtype, sizes, old.names)
    what = f"input {i} axis {j}: {size} → {new}"
    return Program(inputs, program.steps, list(program.facts)), what


def numbers_for(names: set[str], facts: list[str], rng: np.random.Generator) -> dict[str, int] | None:
    """Numbers for symbols that satisfy the facts; None where none were found soon."""
    known = parse_facts(facts)
    everything = sorted(names | {name for fact in known for name in fact.symbols})
    for _ in range(400):
        values = {name: int(rng.choice([1, 2, 3, 4, 6, 8, 12])) for name in everything}
        if not known.check(values):
            return values
    return None


def runs(program: Program, values: dict[str, int]) -> bool:
    """Whether the NumPy program gets through at these sizes."""
    arrays = [np.zeros(shape.numbers(values), shape.dtype.numpy) for shape in program.inputs]
    try:
        program.arrays(*arrays)
    except (ValueError, IndexError, ZeroDivisionError):
        return False
    return True
