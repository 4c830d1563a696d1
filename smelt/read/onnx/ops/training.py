"""Operators of training that are plain arithmetic: the optimisers' steps."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dtype import f32
from smelt.errors import ParseError
from smelt.ir.core import Value
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.registry import onnx_op

_DOMAIN = "ai.onnx.preview.training"


def _groups(values: tuple[Value, ...], kinds: int, what: str) -> list[tuple[Value, ...]]:
    """Inputs come as all of the first kind, then all of the second …"""
    if not values or len(values) % kinds:
        raise ParseError(f"{what}: the number of inputs", expected=f"a multiple of {kinds}", got=len(values))
    count = len(values) // kinds
    return [tuple(values[i + count * kind] for kind in range(kinds)) for i in range(count)]


def _flat(rows: Sequence[tuple[Value, ...]]) -> list[Value]:
    return [value for column in zip(*rows, strict=True) for value in column]


def _add_regularisation(g: Graph, x: Value, gradient: Value, norm: float) -> Value:
    return gradient if norm == 0 else g.binary("add", gradient, g.times(x, norm))


def _at(g: Graph, R: Value, x: Value) -> Value:
    return g.broadcast_to(g.convert(g.reshape(R, ()), x.shape.element), x.shape.sizes)


@onnx_op("Momentum", domain=_DOMAIN)
def momentum(
    g: Graph, R: Value, T: Value, *inputs: Value, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> list[Value]:
    if mode not in ("standard", "nesterov"):
        raise ParseError("Momentum: attribute 'mode'", expected="standard or nesterov", got=mode)
    first = g.compare(T, g.like(0, T), "GT")
    beta_now = g.select(g.reshape(first, ()), g.scalar(beta, f32), g.scalar(1, f32))
    rows = []
    for x, gradient, v in _groups(inputs, 3, "Momentum"):
        slope = _add_regularisation(g, x, gradient, norm_coefficient)
        kept = g.times(v, alpha)
        v = g.binary("add", kept, g.binary("multiply", _at(g, beta_now, slope), slope))
        step = v if mode == "standard" else g.binary("add", slope, g.times(v, alpha))
        rows.append((g.binary("subtract", x, g.binary("multiply", _at(g, R, x), step)), v))
    return _flat(rows)


@onnx_op("Adagrad", domain=_DOMAIN)
def adagrad(
    g: Graph,
    R: Value,
    T: Value,
    *inputs: Value,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> list[Value]:
    decay = g.plus(g.times(g.convert(g.reshape(T, ()), f32), decay_factor), 1)
    rate = g.binary("divide", g.convert(g.reshape(R, ()), f32), decay)
    rows = []
    for x, gradient, h in _groups(inputs, 3, "Adagrad"):
        slope = _add_regularisation(g, x, gradient, norm_coefficient)
        h = g.binary("add", h, g.binary("multiply", slope, slope))
        step = g.binary("divide", slope, g.plus(g.unary("sqrt", h), epsilon))
        rows.append((g.binary("subtract", x, g.binary("multiply", _at(g, rate, x), step)), h))
    return _flat(rows)


@onnx_op("Adam", domain=_DOMAIN)
def adam(
    g: Graph,
    R: Value,
    T: Value,
    *inputs: Value,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[Value]:
    rows = []
    steps = g.convert(g.reshape(T, ()), f32)

    def correction(base: float) -> Value:
        return g.binary("subtract", g.scalar(1, f32), g.binary("power", g.scalar(base, f32), steps))

    rate = g.convert(g.reshape(R, ()), f32)
    corrected = g.binary("divide", g.binary("multiply", rate, g.unary("sqrt", correction(beta))), correction(alpha))
    rate = g.select(g.compare(steps, g.scalar(0, f32), "GT"), corrected, rate)
    for x, gradient, v, h in _groups(inputs, 4, "Adam"):
        slope = _add_regularisation(g, x, gradient, norm_coefficient)
        v = g.binary("add", g.times(v, alpha), g.times(slope, 1 - alpha))
        h = g.binary("add", g.times(h, beta), g.times(g.binary("multiply", slope, slope), 1 - beta))
        step = g.binary("divide", v, g.plus(g.unary("sqrt", h), epsilon))
        new = g.binary("subtract", x, g.binary("multiply", _at(g, rate, x), step))
        rows.append((g.times(new, 1 - norm_coefficient_post), v, h))
    return _flat(rows)
