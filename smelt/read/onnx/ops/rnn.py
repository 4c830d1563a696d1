"""RNN, GRU and LSTM: a composite per direction, whose decomposition is one loop over time.

In: nodes of ai.onnx. Out: `smelt.rnn`, `smelt.gru` and `smelt.lstm` as `ir.composites` has
them. `read.onnx.contrib_quant` builds Microsoft's quantised LSTM from the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from smelt.dtype import i64
from smelt.errors import ParseError, UnsupportedError
from smelt.ir.build import RegionBuilder
from smelt.ir.core import Value
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.ops.composite import composite
from smelt.read.onnx.ops.control import element_at, inner_graph, put_at, while_loop
from smelt.read.onnx.ops.math import elu, hard_sigmoid, leaky_relu, softplus, softsign, thresholded_relu
from smelt.read.onnx.registry import onnx_op
from smelt.shape import Shape

Function = Callable[[Graph, Value], Value]
# (input projection at t, states) → new states, output first
Step = Callable[[Graph, Value, Sequence[Value]], Sequence[Value]]

# name → (function of alpha and beta, default alpha, default beta)
_FUNCTIONS: dict[str, tuple[Callable[[float, float], Function], float, float]] = {
    "relu": (lambda a, b: lambda g, x: g.binary("maximum", x, g.like(0, x)), 0, 0),
    "tanh": (lambda a, b: lambda g, x: g.unary("tanh", x), 0, 0),
    "sigmoid": (lambda a, b: lambda g, x: g.unary("logistic", x), 0, 0),
    "affine": (lambda a, b: lambda g, x: g.plus(g.times(x, a), b), 1.0, 0.0),
    "leakyrelu": (lambda a, b: lambda g, x: leaky_relu(g, x, alpha=a), 0.01, 0),
    "thresholdedrelu": (lambda a, b: lambda g, x: thresholded_relu(g, x, alpha=a), 1.0, 0),
    "scaledtanh": (lambda a, b: lambda g, x: g.times(g.unary("tanh", g.times(x, b)), a), 1.0, 1.0),
    "hardsigmoid": (lambda a, b: lambda g, x: hard_sigmoid(g, x, alpha=a, beta=b), 0.2, 0.5),
    "elu": (lambda a, b: lambda g, x: elu(g, x, alpha=a), 1.0, 0),
    "softsign": (lambda a, b: softsign, 0, 0),
    "softplus": (lambda a, b: softplus, 0, 0),
}
_WITH_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
_WITH_BETA = {"affine", "scaledtanh", "hardsigmoid"}
_RANKS = {"X": "3", "W": "3", "R": "3", "B": "2", "sequence_lens": "1", "initial_h": "3"}


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of a gate and its name, with the numbers it takes: `hardsigmoid(0.2,0.5)`."""

    spelling: str
    function: Function


def _activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], count: int, what: str
) -> list[Activation]:
    if len(names) != count:
        raise ParseError(f"{what}: attribute 'activations'", expected=f"{count} names", got=list(names))
    alpha, beta = iter(alphas), iter(betas)
    found = []
    for name in names:
        key = name.lower()
        if key not in _FUNCTIONS:
            raise ParseError(f"{what}: attribute 'activations'", expected=", ".join(_FUNCTIONS), got=name)
        make, a, b = _FUNCTIONS[key]
        numbers = [next(alpha, a)] if key in _WITH_ALPHA else []
        numbers += [next(beta, b)] if key in _WITH_BETA else []
        spelling = f"{key}({','.join(repr(float(each)) for each in numbers)})" if numbers else key
        a, b = (numbers + [a, b][len(numbers) :])[:2]
        found.append(Activation(spelling, make(a, b)))
    return found


def _clip(g: Graph, x: Value, clip: float | None) -> Value:
    if clip is None or clip == 0:
        return x
    return g.binary("minimum", g.binary("maximum", x, g.like(-clip, x)), g.like(clip, x))


def _part(g: Graph, x: Value, index: int) -> Value:
    """One direction's part of a weight, a bias or a state."""
    return g.reshape(g.slice_axis(x, 0, index, index + 1), x.shape.sizes[1:])


def _gates(g: Graph, x: Value, count: int, axis: int) -> list[Value]:
    size = x.shape.sizes[axis] // count
    return [g.slice_axis(x, axis, i * size, (i + 1) * size) for i in range(count)]


def _over_time(
    g: Graph, X: Value, starts: Sequence[Value], lengths: Value | None, step: Step, backwards: bool
) -> tuple[Value, list[Value]]:
    """Outputs [time, batch, hidden] and the last states, from input projections X [time, batch, gates].

    Sequences that have ended keep their state and give 0.
    """
    time = X.shape.sizes[0]
    hidden = starts[0].shape
    buffer = g.full(0, Shape.of(hidden.element, (time, *hidden.sizes)))
    total = g.size(time)

    def iterate(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        inner = inner_graph(g, r, args)
        at, out, *states = args
        place = inner.binary("subtract", inner.plus(total, -1), at) if backwards else at
        after = list(step(inner, element_at(inner, X, place), states))
        shown = after[0]
        if lengths is not None:
            alive = inner.compare(inner.broadcast_to(place, lengths.shape.sizes), lengths, "LT")
            mask = inner.broadcast_in_dim(alive, hidden.sizes, (0,))
            after = [inner.select(mask, new, old) for new, old in zip(after, states, strict=True)]
            shown = inner.select(mask, shown, inner.like(0, shown))
        return [inner.plus(at, 1), put_at(inner, out, shown, place), *after]

    def test(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        return [r.compare(args[0], total, comparison_direction="LT")]

    _, outputs, *last = while_loop(g, [g.scalar(0, i64), buffer, *starts], test, iterate)
    return outputs, last


def _run(
    g: Graph,
    name: str,
    X: Value,
    weights: Mapping[str, Value | None],
    sequence_lens: Value | None,
    initial: Mapping[str, Value | None],
    hidden: int,
    make: Callable[[Graph, Mapping[str, Value], int], Step],
    attributes: Callable[[int], Mapping[str, Any]],
    *,
    direction: str,
    layout: int,
) -> list[Value]:
    """All directions: Y and the last states, in the layout asked for.

    `make` gives the step of one direction from that direction's weights, `attributes` what the composite says of it.
    """
    what = name.partition(".")[2].upper()
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ParseError(f"{what}: attribute 'direction'", expected="forward, reverse or bidirectional", got=direction)
    if layout not in (0, 1):
        raise ParseError(f"{what}: attribute 'layout'", expected="0 or 1", got=layout)
    if layout:
        X = g.transpose(X, (1, 0, 2))
        initial = {role: None if each is None else g.transpose(each, (1, 0, 2)) for role, each in initial.items()}
    batch = X.shape.sizes[1]
    zero = Shape.of(X.shape.element, (batch, hidden))
    lengths = None if sequence_lens is None else g.convert(sequence_lens, i64)
    ways = [direction == "reverse"] if direction != "bidirectional" else [False, True]
    outputs, finals = [], []
    for i, backwards in enumerate(ways):
        given = {role: _part(g, each, i) for role, each in weights.items() if each is not None}
        starts = {role: g.full(0, zero) if each is None else _part(g, each, i) for role, each in initial.items()}
        late = {role: given.pop(role) for role in ("p",) if role in given}
        inputs = {"x": X, **given, **({} if lengths is None else {"lengths": lengths}), **starts, **late}
        roles = list(inputs)

        def emits(g: Graph, values: Sequence[Value], roles: list[str] = roles, i: int = i) -> list[Value]:
            named = dict(zip(roles, values, strict=True))
            first = [named[role] for role in initial]
            products = g.dot(named["x"], named["w"], ((2,), (1,)))  # for all time steps at once
            y, last = _over_time(g, products, first, named.get("lengths"), make(g, named, i), bool(ways[i]))
            return [y, *last]

        said = {"operands": " ".join(roles), "reverse": int(backwards), **attributes(i)}
        y, *last = composite(g, name, list(inputs.values()), emits, said)
        outputs.append(g.expand_dims(y, (1,)))
        finals.append([g.expand_dims(each, (0,)) for each in last])
    whole = g.concat(outputs, 1)
    states = [g.concat(list(column), 0) for column in zip(*finals, strict=True)]
    if layout:
        return [g.transpose(whole, (2, 0, 1, 3)), *(g.transpose(each, (1, 0, 2)) for each in states)]
    return [whole, *states]


def _hidden_size(R: Value, given: int | None, what: str) -> int:
    size = R.shape.sizes[-1]
    if not isinstance(size, int) or (given is not None and given != size):
        raise UnsupportedError(f"{what}: attribute 'hidden_size' is not the recurrence's", expected=size, got=given)
    return size


@onnx_op("RNN", since=7, ranks=_RANKS)
def rnn(
    g: Graph,
    X: Value,
    W: Value,
    R: Value,
    B: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> list[Value]:
    ways = 2 if direction == "bidirectional" else 1
    functions = _activations(activations or ("Tanh",) * ways, activation_alpha, activation_beta, ways, "RNN")

    def make(g: Graph, given: Mapping[str, Value], i: int) -> Step:
        r = given["r"]
        biases = _gates(g, given["b"], 2, 0) if "b" in given else []

        def step(g: Graph, x: Value, states: Sequence[Value]) -> list[Value]:
            total = g.binary("add", x, g.dot(states[0], r, ((1,), (1,))))
            for bias in biases:
                total = g.binary("add", total, bias)
            return [functions[i].function(g, _clip(g, total, clip))]

        return step

    return _run(
        g,
        "smelt.rnn",
        X,
        {"w": W, "r": R, "b": B},
        sequence_lens,
        {"h": initial_h},
        _hidden_size(R, hidden_size, "RNN"),
        make,
        lambda i: {"activations": functions[i].spelling, "clip": float(clip or 0)},
        direction=direction,
        layout=layout,
    )


@onnx_op("GRU", since=7, ranks=_RANKS)
def gru(
    g: Graph,
    X: Value,
    W: Value,
    R: Value,
    B: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> list[Value]:
    ways = 2 if direction == "bidirectional" else 1
    names = activations or ("Sigmoid", "Tanh") * ways
    functions = _activations(names, activation_alpha, activation_beta, 2 * ways, "GRU")

    def make(g: Graph, given: Mapping[str, Value], i: int) -> Step:
        f, h = (each.function for each in functions[2 * i : 2 * i + 2])
        rz, rr, rh = _gates(g, given["r"], 3, 0)
        biases = _gates(g, given["b"], 6, 0) if "b" in given else None

        def step(g: Graph, x: Value, states: Sequence[Value]) -> list[Value]:
            (old,) = states
            xz, xr, inputs = _gates(g, x, 3, 1)

            def gate(product: Value, rx: Value, k: int) -> Value:
                total = g.binary("add", product, g.dot(old, rx, ((1,), (1,))))
                if biases is not None:
                    total = g.binary("add", g.binary("add", total, biases[k]), biases[k + 3])
                return f(g, _clip(g, total, clip))

            z, reset = gate(xz, rz, 0), gate(xr, rr, 1)
            if biases is not None:
                inputs = g.binary("add", inputs, biases[2])
            if linear_before_reset:
                recurrent = g.dot(old, rh, ((1,), (1,)))
                if biases is not None:
                    recurrent = g.binary("add", recurrent, biases[5])
                recurrent = g.binary("multiply", reset, recurrent)
            else:
                recurrent = g.dot(g.binary("multiply", reset, old), rh, ((1,), (1,)))
                if biases is not None:
                    recurrent = g.binary("add", recurrent, biases[5])
            new = h(g, _clip(g, g.binary("add", inputs, recurrent), clip))
            kept = g.binary("multiply", z, old)
            return [g.binary("add", g.binary("multiply", g.binary("subtract", g.like(1, z), z), new), kept)]

        return step

    return _run(
        g,
        "smelt.gru",
        X,
        {"w": W, "r": R, "b": B},
        sequence_lens,
        {"h": initial_h},
        _hidden_size(R, hidden_size, "GRU"),
        make,
        lambda i: {
            "activations": " ".join(each.spelling for each in functions[2 * i : 2 * i + 2]),
            "clip": float(clip or 0),
            "linear_before_reset": int(bool(linear_before_reset)),
        },
        direction=direction,
        layout=layout,
    )


class LstmAttributes(TypedDict, total=False):
    """The attributes of LSTM, for an operator that passes them on."""

    activation_alpha: tuple[float, ...]
    activation_beta: tuple[float, ...]
    activations: tuple[str, ...]
    clip: float
    direction: str
    hidden_size: int
    input_forget: int


@onnx_op("LSTM", since=7, ranks={**_RANKS, "initial_c": "3", "P": "2"})
def lstm(
    g: Graph,
    X: Value,
    W: Value,
    R: Value,
    B: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    P: Value | None = None,
    *,
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> list[Value]:
    ways = 2 if direction == "bidirectional" else 1
    names = activations or ("Sigmoid", "Tanh", "Tanh") * ways
    functions = _activations(names, activation_alpha, activation_beta, 3 * ways, "LSTM")

    def make(g: Graph, given: Mapping[str, Value], i: int) -> Step:
        f, h, out = (each.function for each in functions[3 * i : 3 * i + 3])
        r = given["r"]
        bias = g.binary("add", *_gates(g, given["b"], 2, 0)) if "b" in given else None
        peep = _gates(g, given["p"], 3, 0) if "p" in given else None  # input, output, forget

        def step(g: Graph, x: Value, states: Sequence[Value]) -> list[Value]:
            old, cell = states
            total = g.binary("add", x, g.dot(old, r, ((1,), (1,))))
            if bias is not None:
                total = g.binary("add", total, bias)
            gi, go, gf, gc = _gates(g, total, 4, 1)
            if peep is not None:
                gi = g.binary("add", gi, g.binary("multiply", cell, peep[0]))
                gf = g.binary("add", gf, g.binary("multiply", cell, peep[2]))
            i_gate = f(g, _clip(g, gi, clip))
            f_gate = g.binary("subtract", g.like(1, i_gate), i_gate) if input_forget else f(g, _clip(g, gf, clip))
            new = h(g, _clip(g, gc, clip))
            cell = g.binary("add", g.binary("multiply", f_gate, cell), g.binary("multiply", i_gate, new))
            if peep is not None:
                go = g.binary("add", go, g.binary("multiply", cell, peep[1]))
            o_gate = f(g, _clip(g, go, clip))
            return [g.binary("multiply", o_gate, out(g, cell)), cell]

        return step

    return _run(
        g,
        "smelt.lstm",
        X,
        {"w": W, "r": R, "b": B, "p": P},
        sequence_lens,
        {"h": initial_h, "c": initial_c},
        _hidden_size(R, hidden_size, "LSTM"),
        make,
        lambda i: {
            "activations": " ".join(each.spelling for each in functions[3 * i : 3 * i + 3]),
            "clip": float(clip or 0),
            "input_forget": int(bool(input_forget)),
        },
        direction=direction,
        layout=layout,
    )
