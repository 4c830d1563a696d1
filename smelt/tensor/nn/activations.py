"""Activations as functions, and by the names that configurations give them: `nn.activation("gelu_new")(x)`.

Each is a method of Tensor as well; layers and models take them as values.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.core import Tensor
from smelt.tensor.ops.reduce import Axes
from smelt.tensor.source import refuse

Activation = Callable[[Tensor], Tensor]


@with_argument_errors
def relu(x: Tensor) -> Tensor:
    """max(x, 0)"""
    return x.relu()


@with_argument_errors
def relu6(x: Tensor) -> Tensor:
    """Held between 0 and 6."""
    return x.relu6()


@with_argument_errors
def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """x, times the slope where it is negative."""
    return x.leaky_relu(slope)


@with_argument_errors
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x, or alpha * (exp(x) - 1) where it is negative."""
    return x.elu(alpha)


@with_argument_errors
def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """x * Phi(x), Phi the normal distribution function: by erf, or by tanh where `approximate`."""
    return x.gelu(approximate)


@with_argument_errors
def gelu_tanh(x: Tensor) -> Tensor:
    """gelu by tanh."""
    return x.gelu(approximate=True)


@with_argument_errors
def quick_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x)"""
    return x * (x * 1.702).sigmoid()


@with_argument_errors
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)"""
    return x.silu()


@with_argument_errors
def hard_swish(x: Tensor) -> Tensor:
    """x * hard_sigmoid(x)"""
    return x.hard_swish()


@with_argument_errors
def hard_sigmoid(x: Tensor) -> Tensor:
    """x / 6 + 1 / 2 held between 0 and 1."""
    return x.hard_sigmoid()


@with_argument_errors
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))"""
    return x.sigmoid()


@with_argument_errors
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return x.tanh()


@with_argument_errors
def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))"""
    return x.softplus()


@with_argument_errors
def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x))"""
    return x.mish()


@with_argument_errors
def softmax(x: Tensor, axes: Axes) -> Tensor:
    """exp(x) / sum(exp(x)) along axes."""
    return x.softmax(axes)


@with_argument_errors
def log_softmax(x: Tensor, axes: Axes) -> Tensor:
    """The logarithm of softmax."""
    return x.log_softmax(axes)


ACTIVATIONS: dict[str, Activation] = {
    "relu": relu,
    "relu6": relu6,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": silu,
    "swish": silu,
    "hardswish": hard_swish,
    "hardsigmoid": hard_sigmoid,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "softplus": softplus,
    "mish": mish,
}


@with_argument_errors
def activation(name: str) -> Activation:
    """The activation that a configuration names, such as `hidden_act` of a Hugging Face one."""
    if name not in ACTIVATIONS:
        refuse(f"no activation is called {name!r}", details=[("known", ", ".join(ACTIVATIONS))])
    return ACTIVATIONS[name]
