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
from smelt.tensor.ops.elementwise import minimum, where
from smelt.tensor.ops.move import full

Tensors = Mapping[str, Tensor]
State = dict[str, Any]  # the step, and further dictionaries of tensors
Rate = float | Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Optimiser:
    """A rule for the next parameters. `update(gradients, state, parameters)` returns parameters and state."""

    name: str
    init: Callable[[Tensors], State]
    update: Callable[[Tensors, State, Tensors], tuple[dict[str, Tensor], State]]


def _zeros(parameters: Tensors) -> dict[str, Tensor]:
    return {name: full(value.shape, 0.0) for name, value in parameters.items()}


def _start(parameters: Tensors, *slots: str) -> State:
    return {"step": tensor(np.int32(0)), **{slot: _zeros(parameters) for slot in slots}}


def _rate(rate: Rate, step: Tensor) -> Tensor | float:
    return rate(step.to("f32")) if callable(rate) else rate


def _scaled(rate: Tensor | float, value: Tensor) -> Tensor:
    return value * (rate.to(value.dtype) if isinstance(rate, Tensor) else rate)


def _check(name: str, **numbers: tuple[float, float, float]) -> None:
    """Each of (number, least, most) in its range."""
    for label, (number, least, most) in numbers.items():
        if not least <= number <= most:
            raise ShapeError(f"{name}: {label} is out of range", expected=f"{least:g} to {most:g}", got=number)


def sgd(rate: Rate, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> Optimiser:
    """Gradient descent: buffer = momentum * buffer + gradient; the step goes along the buffer.

    Nesterov's goes along gradient + momentum * buffer.
    """
    _check("sgd", momentum=(momentum, 0, 1), weight_decay=(weight_decay, 0, math.inf))

    def init(parameters: Tensors) -> State:
        return _start(parameters, *(["momentum"] if momentum else []))

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        pace, after, moved = _rate(rate, state["step"]), {}, {}
        for name, value in parameters.items():
            g = gradients[name] + weight_decay * value if weight_decay else gradients[name]
            if momentum:
                after[name] = momentum * state["momentum"][name] + g
                g = g + momentum * after[name] if nesterov else after[name]
            moved[name] = value - _scaled(pace, g)
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
    _check(name, beta1=(beta1, 0, 1), beta2=(beta2, 0, 1), weight_decay=(weight_decay, 0, math.inf))

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        pace, count = _rate(rate, state["step"]), (state["step"] + 1).to("f32")
        first, second = (1.0 - _power(beta, count) for beta in (beta1, beta2))
        means, squares, moved = {}, {}, {}
        for key, value in parameters.items():
            g = gradients[key]
            means[key] = beta1 * state["mean"][key] + (1 - beta1) * g
            squares[key] = beta2 * state["square"][key] + (1 - beta2) * g * g
            root = (squares[key] / second.to(value.dtype)).sqrt() + epsilon
            kept = value - _scaled(pace, weight_decay * value) if weight_decay else value
            moved[key] = kept - _scaled(pace, means[key] / first.to(value.dtype) / root)
        return moved, {"step": state["step"] + 1, "mean": means, "square": squares}

    return Optimiser(name, lambda parameters: _start(parameters, "mean", "square"), update)


def _power(base: float, exponent: Tensor) -> Tensor:
    return (exponent * math.log(base)).exp() if base > 0 else exponent * 0.0


def lion(rate: Rate, *, beta1: float = 0.9, beta2: float = 0.99, weight_decay: float = 0.0) -> Optimiser:
    """Lion: steps of one size along the sign of an interpolated momentum."""
    _check("lion", beta1=(beta1, 0, 1), beta2=(beta2, 0, 1), weight_decay=(weight_decay, 0, math.inf))

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        pace, means, moved = _rate(rate, state["step"]), {}, {}
        for name, value in parameters.items():
            mean, g = state["mean"][name], gradients[name]
            direction = (beta1 * mean + (1 - beta1) * g).sign()
            moved[name] = value - _scaled(pace, direction + weight_decay * value if weight_decay else direction)
            means[name] = beta2 * mean + (1 - beta2) * g
        return moved, {"step": state["step"] + 1, "mean": means}

    return Optimiser("lion", lambda parameters: _start(parameters, "mean"), update)


def rmsprop(rate: Rate, *, decay: float = 0.99, epsilon: float = 1e-8, momentum: float = 0.0) -> Optimiser:
    """RMSprop: gradients over the root of the mean of their squares."""
    _check("rmsprop", decay=(decay, 0, 1), momentum=(momentum, 0, 1))

    def init(parameters: Tensors) -> State:
        return _start(parameters, "square", *(["momentum"] if momentum else []))

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        pace, squares, buffers, moved = _rate(rate, state["step"]), {}, {}, {}
        for name, value in parameters.items():
            g = gradients[name]
            squares[name] = decay * state["square"][name] + (1 - decay) * g * g
            direction = g / (squares[name].sqrt() + epsilon)
            if momentum:
                direction = buffers[name] = momentum * state["momentum"][name] + direction
            moved[name] = value - _scaled(pace, direction)
        more = {"momentum": buffers} if momentum else {}
        return moved, {"step": state["step"] + 1, "square": squares, **more}

    return Optimiser("rmsprop", init, update)


def clip(optimiser: Optimiser, norm: float) -> Optimiser:
    """The optimiser on gradients that are scaled down together where their norm is larger than `norm`."""
    _check("clip", norm=(norm, 0, math.inf))

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        total: Tensor | float = 0.0
        for g in gradients.values():
            total = g.to("f32").square().sum() + total
        assert isinstance(total, Tensor)
        scale = minimum(norm / (total.sqrt() + 1e-6), 1.0)
        return optimiser.update({name: g * scale.to(g.dtype) for name, g in gradients.items()}, state, parameters)

    return Optimiser(f"clipped {optimiser.name}", optimiser.init, update)


def cosine(peak: float, steps: int, *, warmup: int = 0, final: float = 0.0) -> Callable[[Tensor], Tensor]:
    """A learning rate that rises from 0 over `warmup` steps and falls to `final` along a cosine."""
    _check("cosine", steps=(steps, warmup + 1, math.inf), warmup=(warmup, 0, math.inf))

    def rate(step: Tensor) -> Tensor:
        along = ((step - warmup) / float(steps - warmup)).clamp(0.0, 1.0)
        falling = final + (peak - final) * 0.5 * (1.0 + (along * math.pi).cos())
        return where(step < warmup, peak * step / float(max(warmup, 1)), falling) if warmup else falling

    return rate
