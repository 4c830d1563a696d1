"""RNN, GRU and LSTM: one loop over time per direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.dtype import i64
from smelt.errors import ParseError, UnsupportedError
from smelt.ir.build import RegionBuilder
from smelt.ir.core import Value
from smelt.read.onnx.control import element_at, inner_graph, put_at, while_loop
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.math import elu, hard_sigmoid, leaky_relu, softplus, softsign, thresholded_relu
from smelt.read.onnx.registry import onnx_op
from smelt.shape import Shape

Function = Callable[[Graph, Value], Value]
Step = Callable[[Graph, Value, Sequence[Value]], Sequence[Value]]  # (input at t, states) → new states, output first

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


def _functions(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], count: int, what: str
) -> list[Function]:
    if len(names) != count:
        raise ParseError(f"{what}: attribute 'activations'", expected=f"{count} names", got=list(names))
    alpha, beta = iter(alphas), iter(betas)
    found = []
    for name in names:
        key = name.lower()
        if key not in _FUNCTIONS:
            raise ParseError(f"{what}: attribute 'activations'", expected=", ".join(_FUNCTIONS), got=name)
        make, a, b = _FUNCTIONS[key]
        found.append(make(next(alpha, a) if key in _WITH_ALPHA else a, next(beta, b) if key in _WITH_BETA else b))
    return found


def _limited(g: Graph, x: Value, clip: float | None) -> Value:
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
    """Outputs [time, batch, hidden] and the last states. Sequences that have ended keep their state and give 0."""
    time = X.shape.sizes[0]
    hidden = starts[0].shape
    buffer = g.full(0, Shape.of(hidden.element, (time, *hidden.sizes)))
    total = g.size(time)

    def turn(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
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

    _, outputs, *last = while_loop(g, [g.scalar(0, i64), buffer, *starts], test, turn)
    return outputs, last


def _run(
    g: Graph,
    what: str,
    X: Value,
    direction: str,
    layout: int,
    sequence_lens: Value | None,
    initial: Sequence[Value | None],
    hidden: int,
    make: Callable[[int], Step],
) -> list[Value]:
    """All directions: Y and the last states, in the layout asked for."""
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ParseError(f"{what}: attribute 'direction'", expected="forward, reverse or bidirectional", got=direction)
    if layout not in (0, 1):
        raise ParseError(f"{what}: attribute 'layout'", expected="0 or 1", got=layout)
    if layout:
        X = g.transpose(X, (1, 0, 2))
        initial = [None if each is None else g.transpose(each, (1, 0, 2)) for each in initial]
    batch = X.shape.sizes[1]
    zero = Shape.of(X.shape.element, (batch, hidden))
    lengths = None if sequence_lens is None else g.convert(sequence_lens, i64)
    ways = [direction == "reverse"] if direction != "bidirectional" else [False, True]
    outputs, finals = [], []
    for i, backwards in enumerate(ways):
        starts = [g.full(0, zero) if each is None else _part(g, each, i) for each in initial]
        y, last = _over_time(g, X, starts, lengths, make(i), backwards)
        outputs.append(g.expand_dims(y, (1,)))
        finals.append([g.expand_dims(each, (0,)) for each in last])
    whole = g.concat(outputs, 1)
    states = [g.concat(list(column), 0) for column in zip(*finals, strict=True)]
    if layout:
        return [g.transpose(whole, (2, 0, 1, 3)), *(g.transpose(each, (1, 0, 2)) for each in states)]
    return [whole, *states]


def _hidden(R: Value, given: int | None, what: str) -> int:
    size = R.shape.sizes[-1]
    if not isinstance(size, int) or (given is not None and given != size):
        raise UnsupportedError(f"{what}: attribute 'hidden_size' is not the recurrence's", expected=size, got=given)
    return size


@onnx_op("RNN", since=7)
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
    functions = _functions(activations or ("Tanh",) * ways, activation_alpha, activation_beta, ways, "RNN")

    def make(i: int) -> Step:
        w, r = _part(g, W, i), _part(g, R, i)
        biases = [] if B is None else _gates(g, _part(g, B, i), 2, 0)

        def step(g: Graph, x: Value, states: Sequence[Value]) -> list[Value]:
            total = g.binary("add", g.dot(x, w, ((1,), (1,))), g.dot(states[0], r, ((1,), (1,))))
            for bias in biases:
                total = g.binary("add", total, bias)
            return [functions[i](g, _limited(g, total, clip))]

        return step

    return _run(g, "RNN", X, direction, layout, sequence_lens, [initial_h], _hidden(R, hidden_size, "RNN"), make)


@onnx_op("GRU", since=7)
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
    functions = _functions(names, activation_alpha, activation_beta, 2 * ways, "GRU")

    def make(i: int) -> Step:
        f, h = functions[2 * i : 2 * i + 2]
        w, r = _part(g, W, i), _part(g, R, i)
        wz, wr, wh = _gates(g, w, 3, 0)
        rz, rr, rh = _gates(g, r, 3, 0)
        biases = None if B is None else _gates(g, _part(g, B, i), 6, 0)

        def step(g: Graph, x: Value, states: Sequence[Value]) -> list[Value]:
            (old,) = states

            def gate(wx: Value, rx: Value, k: int) -> Value:
                total = g.binary("add", g.dot(x, wx, ((1,), (1,))), g.dot(old, rx, ((1,), (1,))))
                if biases is not None:
                    total = g.binary("add", g.binary("add", total, biases[k]), biases[k + 3])
                return f(g, _limited(g, total, clip))

            z, reset = gate(wz, rz, 0), gate(wr, rr, 1)
            inputs = g.dot(x, wh, ((1,), (1,)))
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
            new = h(g, _limited(g, g.binary("add", inputs, recurrent), clip))
            kept = g.binary("multiply", z, old)
            return [g.binary("add", g.binary("multiply", g.binary("subtract", g.like(1, z), z), new), kept)]

        return step

    return _run(g, "GRU", X, direction, layout, sequence_lens, [initial_h], _hidden(R, hidden_size, "GRU"), make)


@onnx_op("LSTM", since=7)
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
    functions = _functions(names, activation_alpha, activation_beta, 3 * ways, "LSTM")

    def make(i: int) -> Step:
        f, h, out = functions[3 * i : 3 * i + 3]
        w, r = _part(g, W, i), _part(g, R, i)
        bias = None if B is None else g.binary("add", *_gates(g, _part(g, B, i), 2, 0))
        peep = None if P is None else _gates(g, _part(g, P, i), 3, 0)  # input, output, forget

        def step(g: Graph, x: Value, states: Sequence[Value]) -> list[Value]:
            old, cell = states
            total = g.binary("add", g.dot(x, w, ((1,), (1,))), g.dot(old, r, ((1,), (1,))))
            if bias is not None:
                total = g.binary("add", total, bias)
            gi, go, gf, gc = _gates(g, total, 4, 1)
            if peep is not None:
                gi = g.binary("add", gi, g.binary("multiply", cell, peep[0]))
                gf = g.binary("add", gf, g.binary("multiply", cell, peep[2]))
            i_gate = f(g, _limited(g, gi, clip))
            f_gate = g.binary("subtract", g.like(1, i_gate), i_gate) if input_forget else f(g, _limited(g, gf, clip))
            new = h(g, _limited(g, gc, clip))
            cell = g.binary("add", g.binary("multiply", f_gate, cell), g.binary("multiply", i_gate, new))
            if peep is not None:
                go = g.binary("add", go, g.binary("multiply", cell, peep[1]))
            o_gate = f(g, _limited(g, go, clip))
            return [g.binary("multiply", o_gate, out(g, cell)), cell]

        return step

    starts = [initial_h, initial_c]
    return _run(g, "LSTM", X, direction, layout, sequence_lens, starts, _hidden(R, hidden_size, "LSTM"), make)
