"""Optimisers as pure functions: `init(parameters)` gives a state, `update` the next parameters and state.

Parameters, gradients and states are dictionaries of tensors by path; `Trainer` makes them of any structure. The
formulas are PyTorch's (Lion's its paper's). A learning rate is a number, or a function of the step, from 0 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from smelt.errors import ShapeError
from smelt.tensor.core import Tensor
from smelt.tensor.data import tensor
from smelt.tensor.ops.elementwise import minimum
from smelt.tensor.ops.move import full
from smelt.train.schedules import check_range

Tensors = Mapping[str, Tensor]
State = dict[str, Any]  # the step, and further dictionaries of tensors
Rate = float | Callable[[Tensor], Tensor]
AVERAGE = "average"  # in a state: the moving average of the parameters
SCALE = "loss_scale"  # in a state: the factor of the loss


@dataclass(frozen=True, slots=True)
class Optimiser:
    """A rule for the next parameters. `update(gradients, state, parameters)` returns parameters and state.

    `scales_loss`: the state holds a factor of the loss, and gradients are those of the loss times that factor.
    """

    name: str
    init: Callable[[Tensors], State]
    update: Callable[[Tensors, State, Tensors], tuple[dict[str, Tensor], State]]
    scales_loss: bool = False


def check_unscaled(what: str, optimiser: Optimiser) -> None:
    """Refuse an optimiser whose gradients are still scaled where their size counts."""
    if optimiser.scales_loss:
        raise ShapeError(
            f"{what}: the gradients are still multiplied by the loss scale here",
            got=optimiser.name,
            remedy=f"scale_loss({what}(optimiser, …)) instead of {what}(scale_loss(optimiser), …)",
        )


def zeros_like(parameters: Tensors) -> dict[str, Tensor]:
    return {name: full(value.shape, 0.0) for name, value in parameters.items()}


def start_state(parameters: Tensors, *slots: str) -> State:
    return {"step": tensor(np.int32(0)), **{slot: zeros_like(parameters) for slot in slots}}


def rate_at(rate: Rate, step: Tensor) -> Tensor | float:
    return rate(step.to("f32")) if callable(rate) else rate


def scale(rate: Tensor | float, value: Tensor) -> Tensor:
    return value * (rate.to(value.dtype) if isinstance(rate, Tensor) else rate)


def sgd(rate: Rate, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> Optimiser:
    """Gradient descent: buffer = momentum * buffer + gradient; the step goes along the buffer.

    Nesterov's goes along gradient + momentum * buffer.
    """
    check_range("sgd", momentum=(momentum, 0, 1), weight_decay=(weight_decay, 0, math.inf))

    def init(parameters: Tensors) -> State:
        return start_state(parameters, *(["momentum"] if momentum else []))

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        pace, after, moved = rate_at(rate, state["step"]), {}, {}
        for name, value in parameters.items():
            g = gradients[name] + weight_decay * value if weight_decay else gradients[name]
            if momentum:
                after[name] = momentum * state["momentum"][name] + g
                g = g + momentum * after[name] if nesterov else after[name]
            moved[name] = value - scale(pace, g)
        return moved, {"step": state["step"] + 1, **({"momentum": after} if momentum else {})}

    return Optimiser("sgd", init, update)


def adam(rate: Rate, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimiser:
    """Adam: steps along the mean of gradients over the root of the mean of their squares, both unbiased."""
    return _adam("adam", rate, beta1, beta2, epsilon, 0.0)


def adamw(
    rate: Rate, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
) -> Optimiser:
    """Adam with decoupled weight decay: parameters shrink by rate * weight_decay before each step."""
    return _adam("adamw", rate, beta1, beta2, epsilon, weight_decay)


def _adam(name: str, rate: Rate, beta1: float, beta2: float, epsilon: float, weight_decay: float) -> Optimiser:
    check_range(name, beta1=(beta1, 0, 1), beta2=(beta2, 0, 1), weight_decay=(weight_decay, 0, math.inf))

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        pace, count = rate_at(rate, state["step"]), (state["step"] + 1).to("f32")
        first, second = (1.0 - _power(beta, count) for beta in (beta1, beta2))
        means, squares, moved = {}, {}, {}
        for key, value in parameters.items():
            g = gradients[key]
            means[key] = beta1 * state["mean"][key] + (1 - beta1) * g
            squares[key] = beta2 * state["square"][key] + (1 - beta2) * g * g
            root = (squares[key] / second.to(value.dtype)).sqrt() + epsilon
            kept = value - scale(pace, weight_decay * value) if weight_decay else value
            moved[key] = kept - scale(pace, means[key] / first.to(value.dtype) / root)
        return moved, {"step": state["step"] + 1, "mean": means, "square": squares}

    return Optimiser(name, lambda parameters: start_state(parameters, "mean", "square"), update)


def _power(base: float, exponent: Tensor) -> Tensor:
    return (exponent * math.log(base)).exp() if base > 0 else exponent * 0.0


def lion(rate: Rate, *, beta1: float = 0.9, beta2: float = 0.99, weight_decay: float = 0.0) -> Optimiser:
    """Lion: steps of one size along the sign of an interpolated momentum."""
    check_range("lion", beta1=(beta1, 0, 1), beta2=(beta2, 0, 1), weight_decay=(weight_decay, 0, math.inf))

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        pace, means, moved = rate_at(rate, state["step"]), {}, {}
        for name, value in parameters.items():
            mean, g = state["mean"][name], gradients[name]
            direction = (beta1 * mean + (1 - beta1) * g).sign()
            moved[name] = value - scale(pace, direction + weight_decay * value if weight_decay else direction)
            means[name] = beta2 * mean + (1 - beta2) * g
        return moved, {"step": state["step"] + 1, "mean": means}

    return Optimiser("lion", lambda parameters: start_state(parameters, "mean"), update)


def rmsprop(rate: Rate, *, decay: float = 0.99, epsilon: float = 1e-8, momentum: float = 0.0) -> Optimiser:
    """RMSprop: gradients over the root of the mean of their squares."""
    check_range("rmsprop", decay=(decay, 0, 1), momentum=(momentum, 0, 1))

    def init(parameters: Tensors) -> State:
        return start_state(parameters, "square", *(["momentum"] if momentum else []))

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        pace, squares, buffers, moved = rate_at(rate, state["step"]), {}, {}, {}
        for name, value in parameters.items():
            g = gradients[name]
            squares[name] = decay * state["square"][name] + (1 - decay) * g * g
            direction = g / (squares[name].sqrt() + epsilon)
            if momentum:
                direction = buffers[name] = momentum * state["momentum"][name] + direction
            moved[name] = value - scale(pace, direction)
        more = {"momentum": buffers} if momentum else {}
        return moved, {"step": state["step"] + 1, "square": squares, **more}

    return Optimiser("rmsprop", init, update)


def clip(optimiser: Optimiser, norm: float) -> Optimiser:
    """The optimiser on gradients that are scaled down together where their norm is larger than `norm`."""
    check_range("clip", norm=(norm, 0, math.inf))
    check_unscaled("clip", optimiser)

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        total: Tensor | float = 0.0
        for g in gradients.values():
            total = g.to("f32").square().sum() + total
        assert isinstance(total, Tensor)
        factor = minimum(norm / (total.sqrt() + 1e-6), 1.0)
        return optimiser.update({name: g * factor.to(g.dtype) for name, g in gradients.items()}, state, parameters)

    return Optimiser(f"clipped {optimiser.name}", optimiser.init, update)


def average(optimiser: Optimiser, decay: float = 0.999) -> Optimiser:
    """The optimiser with an exponential moving average of the parameters (EMA), which `Trainer.averaged` gives.

    It begins with the first parameters, and is `decay * average + (1 - decay) * parameters` after each step.
    """
    check_range("average", decay=(decay, 0, 1))

    def init(parameters: Tensors) -> State:
        return {**optimiser.init(parameters), AVERAGE: dict(parameters)}

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        rest = {name: value for name, value in state.items() if name != AVERAGE}
        moved, after = optimiser.update(gradients, rest, parameters)
        means = {name: decay * state[AVERAGE][name] + (1 - decay) * value for name, value in moved.items()}
        return moved, {**after, AVERAGE: means}

    return Optimiser(f"averaged {optimiser.name}", init, update, optimiser.scales_loss)
