"""Random programs, each written for the front end and for JAX by one generator; their gradients are compared.

A step is drawn with both of its spellings. Axes have names and sizes of their own, so that names say what JAX must do
by position. `python -m tests.property.grad_programs 1000 7` compares a thousand programs of seed 7. The engines
are compared with the reference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import smelt
from smelt.engine.native import compile_all
from smelt.engine.pjrt import PjrtEngine
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.tensor.jit.trace import trace

Array = np.ndarray
SIZES = {"a": 2, "b": 3, "c": 4, "d": 5}
Names = tuple[str, ...]

UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tanh": (lambda x: x.tanh(), jnp.tanh),
    "sin": (lambda x: x.sin(), jnp.sin),
    "sigmoid": (lambda x: x.sigmoid(), jax.nn.sigmoid),
    "square": (lambda x: x.square(), jnp.square),
    "exp": (lambda x: (x * 0.1).exp(), lambda x: jnp.exp(x * 0.1)),
    "log1p": (lambda x: x.abs().log1p(), lambda x: jnp.log1p(jnp.abs(x))),
    "sqrt": (lambda x: (x.square() + 1.0).sqrt(), lambda x: jnp.sqrt(jnp.square(x) + 1)),
    "rsqrt": (lambda x: (x.square() + 0.5).rsqrt(), lambda x: lax.rsqrt(jnp.square(x) + 0.5)),
    "erf": (lambda x: x.erf(), lax.erf),
    "softplus": (lambda x: x.softplus(), jax.nn.softplus),
    "silu": (lambda x: x.silu(), jax.nn.silu),
    "clip": (lambda x: x.clamp(-0.7, 0.9), lambda x: jnp.clip(x, -0.7, 0.9)),
    "where": (lambda x: smelt.where(x > 0.1, x * 2.0, x.sin()), lambda x: jnp.where(x > 0.1, x * 2, jnp.sin(x))),
    "reciprocal": (lambda x: 1.0 / (x.square() + 1.0), lambda x: 1 / (jnp.square(x) + 1)),
    "atan": (lambda x: x.atan(), jnp.arctan),
}
ALONG: dict[str, tuple[Callable[[Any, str], Any], Callable[[Any, int], Any]]] = {
    "softmax": (lambda x, n: x.softmax(n), lambda x, i: jax.nn.softmax(x, i)),
    "log_softmax": (lambda x, n: x.log_softmax(n), lambda x, i: jax.nn.log_softmax(x, i)),
    "cumsum": (lambda x, n: x.cumsum(n), lambda x, i: jnp.cumsum(x, i)),
    "flip": (lambda x, n: x.flip(n), lambda x, i: jnp.flip(x, i)),
    "roll": (lambda x, n: x.roll(n, 1), lambda x, i: jnp.roll(x, 1, i)),
    "sort": (lambda x, n: x.sort(n), lambda x, i: jnp.sort(x, i)),
    "centre": (lambda x, n: x - x.mean(n), lambda x, i: x - x.mean(i, keepdims=True)),
    "scan": (
        lambda x, n: smelt.scan(
            lambda c, r: ((c + r).tanh(), c * r), x.sum(n) * 0.0, x.transpose(n, *(m for m in x.axes if m != n)), n
        )[1],
        lambda x, i: lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), x.sum(i) * 0, jnp.moveaxis(x, i, 0))[1],
    ),
}
REDUCE: dict[str, tuple[Callable[[Any, str], Any], Callable[[Any, int], Any]]] = {
    "sum": (lambda x, n: x.sum(n), lambda x, i: x.sum(i)),
    "mean": (lambda x, n: x.mean(n), lambda x, i: x.mean(i)),
    "max": (lambda x, n: x.max(n), lambda x, i: x.max(i)),
    "min": (lambda x, n: x.min(n), lambda x, i: x.min(i)),
    "prod": (lambda x, n: x.prod(n), lambda x, i: x.prod(i)),
    "logsumexp": (lambda x, n: x.logsumexp(n), lambda x, i: jax.nn.logsumexp(x, i)),
    "first": (lambda x, n: x.slice(**{n: 0}), lambda x, i: lax.index_in_dim(x, 0, i, keepdims=False)),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / (y * y + 1.0),
}
EXTREMES = {"maximum": (smelt.maximum, jnp.maximum), "minimum": (smelt.minimum, jnp.minimum)}


@dataclass
class Value:
    """One value: its axes, and how both spellings compute it from the inputs and earlier values."""

    names: Names
    on_tensors: Callable[[list[Any]], Any]
    on_arrays: Callable[[list[Any]], Any]
    text: str


@dataclass
class Pair:
    """A program in both spellings; each gives a scalar."""

    inputs: list[Names]
    steps: list[Value] = field(default_factory=list)
    result: int = 0

    def on_tensors(self, *inputs: Any) -> Any:
        values = list(inputs)
        for step in self.steps:
            values.append(step.on_tensors(values))
        return _loss(values[len(self.inputs) + self.result])

    def on_arrays(self, *inputs: Any) -> Any:
        values = list(inputs)
        for step in self.steps:
            values.append(step.on_arrays(values))
        return _loss(values[len(self.inputs) + self.result])

    def __str__(self) -> str:
        lines = [f"{i}: input {' '.join(names)}" for i, names in enumerate(self.inputs)]
        return "\n".join(
            lines + [f"{len(self.inputs) + i}: {s.text} → {' '.join(s.names)}" for i, s in enumerate(self.steps)]
        )


def _loss(x: Any) -> Any:
    return (x * x).sum() + x.sum() * 0.3


def _align(x: Any, names: Names, to: Names) -> Any:
    """An array with axes of size 1 where it lacks a name, in the order of `to`."""
    x = jnp.transpose(x, [names.index(name) for name in to if name in names])
    return x.reshape([x.shape[[n for n in to if n in names].index(name)] if name in names else 1 for name in to])


def draw_program(rng: np.random.Generator) -> Pair:
    """A program of a few steps on two or three inputs."""
    names = list(SIZES)
    inputs = [tuple(rng.permutation(names)[: rng.integers(1, 4)].tolist()) for _ in range(rng.integers(2, 4))]
    pair = Pair(inputs)
    known = list(inputs)
    while len(pair.steps) < rng.integers(3, 9):
        step = _draw_step(rng, known)
        if step is not None:
            pair.steps.append(step)
            known.append(step.names)
    pair.result = len(pair.steps) - 1
    return pair


def _draw_step(rng: np.random.Generator, known: list[Names]) -> Value | None:
    i = int(rng.integers(len(known)))
    names = known[i]
    kind = rng.choice(["unary", "along", "reduce", "binary", "dot", "move"])
    if kind == "unary":
        name = str(rng.choice(list(UNARY)))
        left, right = UNARY[name]
        return Value(names, lambda v: left(v[i]), lambda v: right(v[i]), f"{name} {i}")
    if kind in ("along", "reduce") and names:
        table = ALONG if kind == "along" else REDUCE
        name, axis = str(rng.choice(list(table))), str(rng.choice(names))
        place = names.index(axis)
        over, by = table[name]
        made = names if kind == "along" else tuple(n for n in names if n != axis)
        if name == "scan":
            made = (axis, *(n for n in names if n != axis))
        return Value(made, lambda v: over(v[i], axis), lambda v: by(v[i], place), f"{name} {i} over {axis}")
    if kind == "binary":
        return _draw_binary(rng, known, i)
    if kind == "dot":
        return _draw_dot(rng, known, i)
    if kind == "move" and names:
        return _draw_move(rng, names, i)
    return None


def _draw_binary(rng: np.random.Generator, known: list[Names], i: int) -> Value | None:
    fitting = [j for j, other in enumerate(known) if set(other) <= set(known[i])]
    j = int(rng.choice(fitting))
    to = known[i]
    extreme = rng.random() < 0.2 and i != j
    name = str(rng.choice(list(EXTREMES if extreme else BINARY)))
    left, right = EXTREMES[name] if extreme else (BINARY[name], BINARY[name])
    return Value(to, lambda v: left(v[i], v[j]), lambda v: right(v[i], _align(v[j], known[j], to)), f"{name} {i} {j}")


def _draw_dot(rng: np.random.Generator, known: list[Names], i: int) -> Value | None:
    fitting = [j for j, other in enumerate(known) if set(other) & set(known[i])]
    if not fitting:
        return None
    j = int(rng.choice(fitting))
    left, right = known[i], known[j]
    axis = str(rng.choice([n for n in left if n in right]))
    batch = [n for n in left if n in right and n != axis]
    made = (*batch, *(n for n in left if n not in right), *(n for n in right if n not in left))
    spelled = f"{''.join(left)},{''.join(right)}->{''.join(made)}"

    def on_tensors(v: list[Any]) -> Any:
        found = v[i].dot(v[j], axis)
        return found.transpose(*made) if made else found

    return Value(made, on_tensors, lambda v: jnp.einsum(spelled, v[i], v[j]), f"dot {i} {j} over {axis}")


def _draw_move(rng: np.random.Generator, names: Names, i: int) -> Value:
    how = rng.choice(["transpose", "cut", "take", "pad"])
    if how == "transpose":
        order = tuple(rng.permutation(names).tolist())
        places = [names.index(n) for n in order]
        return Value(order, lambda v: v[i].transpose(*order), lambda v: jnp.transpose(v[i], places), f"transpose {i}")
    axis = str(rng.choice(names))
    place, size = names.index(axis), SIZES[axis]
    if how == "take":
        picks = rng.integers(0, size, size)
        indices = smelt.tensor(picks, [axis])
        return Value(
            names,
            lambda v: v[i].take(indices, axis).transpose(*names),
            lambda v: jnp.take(v[i], picks, place),
            f"take {i}",
        )
    if how == "pad":  # and cut to the same size again, shifted
        edges = [(1, 0) if n == axis else (0, 0) for n in names]
        return Value(
            names,
            lambda v: v[i].pad(**{axis: (1, 0)}).slice(**{axis: slice(0, size)}),
            lambda v: lax.slice_in_dim(jnp.pad(v[i], edges), 0, size, axis=place),
            f"shift {i} along {axis}",
        )
    return Value(
        names,
        lambda v: smelt.concatenate([v[i].slice(**{axis: slice(1, size)}), v[i].slice(**{axis: slice(0, 1)})], axis),
        lambda v: jnp.concatenate(
            [lax.slice_in_dim(v[i], 1, size, axis=place), lax.slice_in_dim(v[i], 0, 1, axis=place)], place
        ),
        f"cut {i} along {axis}",
    )


def compare(pair: Pair, rng: np.random.Generator) -> str | None:
    """What differs between the gradients of both spellings; None where they agree."""
    arrays = [rng.uniform(-1.2, 1.2, [SIZES[n] for n in names]) for names in pair.inputs]
    wanted = jax.value_and_grad(pair.on_arrays, tuple(range(len(arrays))))
    want = run(parse(jax.jit(wanted, keep_unused=True).lower(*arrays).as_text()), arrays)
    tensors = [smelt.tensor(array, list(names)) for array, names in zip(arrays, pair.inputs, strict=True)]
    value, slopes = smelt.value_and_grad(pair.on_tensors, tuple(range(len(arrays))))(*tensors)
    smelt.realize(value, *slopes, engine="reference")
    for what, got, expected in zip(["value", *map(str, range(len(arrays)))], [value, *slopes], want, strict=True):
        scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
        error = float(np.abs(got.numpy() - expected).max(initial=0.0))
        if not error <= 1e-9 * scale:
            return f"{what}: differs by {error:.3g} of {scale:.3g}\n{pair}"
    return None


def search(seed: int, count: int) -> list[str]:
    """The differences among that many programs."""
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    try:
        found = []
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            difference = compare(draw_program(rng), rng)
            if difference is not None:
                found.append(f"program {number} of seed {seed}: {difference}")
        return found
    finally:
        jax.config.update("jax_enable_x64", before)


def search_engines(seed: int, count: int, through_xla: int) -> list[str]:
    """Where the native engine, and pjrt for some programs, give other gradients than the reference, in f32."""
    drawn, programs, inputs = [], [], []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        pair = draw_program(rng)
        arrays = [rng.uniform(-1.2, 1.2, [SIZES[n] for n in names]).astype(np.float32) for names in pair.inputs]
        shapes = [f"f32[{', '.join(f'{n}={SIZES[n]}' for n in names)}]" for names in pair.inputs]
        slopes = smelt.value_and_grad(pair.on_tensors, tuple(range(len(arrays))))
        (path,) = trace(lambda *given, of=slopes: of(*given), *map(smelt.symbolic, shapes)).paths
        drawn.append(pair)
        programs.append(path.program)
        inputs.append(arrays)
    found = []
    for number, (program, native) in enumerate(zip(programs, compile_all(programs), strict=True)):
        if isinstance(native, smelt.SmeltError):
            found.append(f"program {number} of seed {seed}: {native}\n{drawn[number]}")
            continue
        arrays = inputs[number]
        made = {"native": native(*arrays)}
        if number < through_xla:
            made["pjrt"] = tuple(each.numpy() for each in PjrtEngine().compile(program)(*arrays))
        for engine, results in made.items():
            for got, want in zip(results, run(program, arrays), strict=True):
                error, scale = np.abs(got - want).max(initial=0.0), max(float(np.abs(want).max(initial=0.0)), 1.0)
                if not error <= 1e-4 * scale:
                    found.append(f"program {number} of seed {seed}, {engine}: {error} of {scale}\n{drawn[number]}")
    return found


if __name__ == "__main__":
    programs, start = (int(text) for text in [*sys.argv[1:], "1000", "1"][:2])
    differences = search(start, programs)
    print("\n\n".join(differences[:10]))
    print(f"{len(differences)} of {programs} programs have another gradient than JAX says")
    sys.exit(bool(differences))
