"""Optimisers that know matrices: Adafactor, whose state is a row and a column, and Muon, whose steps are orthogonal."""

from __future__ import annotations

import math

from smelt.tensor.core import Tensor
from smelt.tensor.data import tensor
from smelt.tensor.ops.elementwise import maximum, minimum
from smelt.tensor.ops.move import full
from smelt.train.optimisers import Optimiser, Rate, State, Tensors, adamw, rate_at, scale, start_state
from smelt.train.schedules import check_range

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # a quintic with a steep slope at zero, as Muon's authors chose it


def _like(value: Tensor, model: Tensor) -> Tensor:
    """A tensor without names, with the names of another one's axes."""
    return value if model.axes is None else value.named(*model.axes)


def adafactor(
    rate: Rate = 0.01,
    *,
    decay: float = -0.8,
    epsilon: float = 1e-7,
    least: float = 1e-3,
    clip: float = 1.0,
    weight_decay: float = 0.0,
) -> Optimiser:
    """Adafactor: of a matrix it keeps the mean squares of rows and columns, so that its state is small.

    Means have the weight 1 - step^decay. The step is relative to the root mean square of the parameters, at least
    `least`, and an update whose root mean square is larger than `clip` is scaled down. PyTorch's formulas.
    """
    check_range(
        "adafactor", decay=(decay, -1, 0), clip=(clip, 1e-9, math.inf), weight_decay=(weight_decay, 0, math.inf)
    )

    def init(parameters: Tensors) -> State:
        rows, columns, squares = {}, {}, {}
        for name, value in parameters.items():
            if value.rank > 1:
                rows[name] = full(value.unnamed().shape, 0.0).sum(-1, keep=True)
                columns[name] = full(value.unnamed().shape, 0.0).sum(-2, keep=True)
            else:
                squares[name] = full(value.unnamed().shape, 0.0)
        return {**start_state(parameters), "row": rows, "column": columns, "square": squares}

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        count = (state["step"] + 1).to("f32")
        pace = rate_at(rate, state["step"])
        fresh = (count.log() * decay).exp()  # the weight of the newest square
        bounded = minimum(count.rsqrt(), pace)
        after: State = {"step": state["step"] + 1, "row": {}, "column": {}, "square": {}}
        moved = {}
        for name, value in parameters.items():
            g, weight = gradients[name].unnamed(), fresh.to(value.dtype)
            direction = g * _inverse_root(g, name, state, after, weight, epsilon)
            size = maximum(_root_mean_square(value), least) * bounded.to(value.dtype)
            kept = value - scale(pace, weight_decay * value) if weight_decay else value
            moved[name] = kept - _like(direction * (size / maximum(_root_mean_square(direction) / clip, 1.0)), value)
        return moved, after

    return Optimiser("adafactor", init, update)


def _root_mean_square(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def _inverse_root(g: Tensor, name: str, state: State, after: State, weight: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt of the estimated mean square of each element; the new means go to `after`."""
    squares = g.square()
    if g.rank < 2:
        mean = after["square"][name] = _blend(state["square"][name], squares, weight)
    else:
        row = after["row"][name] = _blend(state["row"][name], squares.mean(-1, keep=True), weight)
        column = after["column"][name] = _blend(state["column"][name], squares.mean(-2, keep=True), weight)
        mean = row.broadcast(*g.sizes) * column / maximum(row.mean(-2, keep=True), epsilon)
    return maximum(mean, epsilon * epsilon).rsqrt()


def _blend(old: Tensor, new: Tensor, weight: Tensor) -> Tensor:
    return old + weight * (new - old)


def muon(
    rate: Rate = 1e-3,
    *,
    momentum: float = 0.95,
    nesterov: bool = True,
    weight_decay: float = 0.1,
    iterations: int = 5,
    otherwise: Optimiser | None = None,
) -> Optimiser:
    """Muon: matrices step along their momentum with all singular values near 1; `otherwise` takes all other tensors.

    Newton-Schulz iterations make the step nearly orthogonal, in the parameters' own type. It is larger by
    sqrt(rows / columns) for a matrix with more rows than columns. `otherwise` is AdamW if not given.
    """
    check_range(
        "muon", momentum=(momentum, 0, 1), weight_decay=(weight_decay, 0, math.inf), iterations=(iterations, 1, 99)
    )
    rest = adamw(rate) if otherwise is None else otherwise

    def split(tensors: Tensors, parameters: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        matrices = {name: value for name, value in tensors.items() if parameters[name].rank == 2}
        return matrices, {name: value for name, value in tensors.items() if name not in matrices}

    def init(parameters: Tensors) -> State:
        matrices, others = split(parameters, parameters)
        return {**start_state(matrices, "momentum"), "otherwise": rest.init(others)}

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        pace, means = rate_at(rate, state["step"]), {}
        mine, others = split(gradients, parameters)
        moved, after = rest.update(others, state["otherwise"], split(parameters, parameters)[1])
        for name, g in mine.items():
            value = parameters[name]
            mean = means[name] = _blend(state["momentum"][name], g, tensor(1 - momentum).to(g.dtype))
            direction = momentum * mean + (1 - momentum) * g if nesterov else mean
            rows, columns = value.shape.numbers()
            step = _orthogonal(direction.unnamed(), iterations) * math.sqrt(max(1.0, rows / columns))
            kept = value - scale(pace, weight_decay * value) if weight_decay else value
            moved[name] = kept - scale(pace, _like(step, value))
        ordered = {name: moved[name] for name in parameters}
        return ordered, {"step": state["step"] + 1, "momentum": means, "otherwise": after}

    return Optimiser("muon", init, update)


def _orthogonal(x: Tensor, iterations: int) -> Tensor:
    """U V^T of x = U S V^T, nearly: a polynomial of x x^T that brings singular values close to 1."""
    rows, columns = x.shape.numbers()
    if rows > columns:
        return _orthogonal(x.transpose(1, 0), iterations).transpose(1, 0)
    a, b, c = _NEWTON_SCHULZ
    x = x / maximum(x.square().sum().sqrt(), 1e-7)
    for _ in range(iterations):
        gram = x.dot(x, (1, 1))
        x = a * x + (b * gram + c * gram.dot(gram, (1, 0))).dot(x, (1, 0))
    return x
