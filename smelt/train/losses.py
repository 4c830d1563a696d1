"""Losses: predictions and targets → one number, averaged over all elements or over those that `weights` counts."""

from __future__ import annotations

from smelt.tensor.axes import Axis
from smelt.tensor.core import Tensor
from smelt.tensor.ops.elementwise import where
from smelt.tensor.record import operand
from smelt.tensor.source import refuse


def _average(losses: Tensor, weights: Tensor | None) -> Tensor:
    """The mean; with weights, which are 0 for padding, the weighted mean."""
    if weights is None:
        return losses.mean()
    given = weights.to(losses.dtype)
    return (losses * given).sum() / (losses * 0.0 + given).sum()


def cross_entropy(logits: Tensor, labels: Tensor, axis: Axis, weights: Tensor | None = None) -> Tensor:
    """-log softmax(logits) along an axis, at the labels: integers, with the other axes of the logits.

    >>> import smelt
    >>> cross_entropy(smelt.zeros("f32[b=2, c=4]"), smelt.tensor([0, 3], "b"), "c").item()
    1.3862943649291992
    """
    if not labels.dtype.is_integer:
        refuse("cross_entropy: labels are integers", operand("labels", labels), remedy='.to("i32")')
    name = axis if isinstance(axis, str) else None
    chosen = labels.one_hot(logits.size(axis), name, logits.dtype)
    if name is not None and logits.axes is not None:
        chosen = chosen.transpose(*logits.axes)
    return _average(logits.logsumexp(axis) - (logits * chosen).sum(axis), weights)


def mse(predictions: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of squared differences."""
    return _average((predictions - targets).square(), weights)


def binary_cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """-log of the probability of targets, 0 to 1, under sigmoid(logits)."""
    return _average(logits.softplus() - logits * targets.to(logits.dtype), weights)


def huber(predictions: Tensor, targets: Tensor, delta: float = 1.0, weights: Tensor | None = None) -> Tensor:
    """Half the square of differences up to `delta`, linear beyond."""
    error = (predictions - targets).abs()
    return _average(where(error <= delta, 0.5 * error * error, delta * (error - 0.5 * delta)), weights)
