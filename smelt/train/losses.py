"""Losses: predictions and targets → one number, averaged over all elements or over those that `weights` counts."""

from __future__ import annotations

from smelt.tensor.axes import Axis
from smelt.tensor.core import Tensor
from smelt.tensor.ops.elementwise import where
from smelt.tensor.ops.move import arange
from smelt.tensor.record import operand
from smelt.tensor.source import refuse


def weighted_mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """The mean; with weights, which are 0 for padding, the weighted mean."""
    if weights is None:
        return losses.mean()
    given = weights.to(losses.dtype)
    return (losses * given).sum() / (losses * 0.0 + given).sum()


def cross_entropy(
    logits: Tensor, labels: Tensor, axis: Axis, weights: Tensor | None = None, *, smoothing: float = 0.0
) -> Tensor:
    """-log softmax(logits) along an axis, at the labels: integers, with the other axes of the logits.

    Label smoothing moves the share `smoothing` of the probability from the label to all classes alike.

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
    wanted = (logits * chosen).sum(axis)
    if smoothing:
        wanted = (1 - smoothing) * wanted + smoothing * logits.mean(axis)
    return weighted_mean(logits.logsumexp(axis) - wanted, weights)


def mse(predictions: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of squared differences."""
    return weighted_mean((predictions - targets).square(), weights)


def binary_cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """-log of the probability of targets, 0 to 1, under sigmoid(logits)."""
    return weighted_mean(logits.softplus() - logits * targets.to(logits.dtype), weights)


def huber(predictions: Tensor, targets: Tensor, delta: float = 1.0, weights: Tensor | None = None) -> Tensor:
    """Half the square of differences up to `delta`, linear beyond."""
    error = (predictions - targets).abs()
    return weighted_mean(where(error <= delta, 0.5 * error * error, delta * (error - 0.5 * delta)), weights)


def triplet(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    axis: Axis,
    margin: float = 1.0,
    weights: Tensor | None = None,
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin): positives are nearer than negatives, by a margin.

    Distances are Euclidean, of differences to which 1e-6 is added, so that a distance of zero has a gradient.
    """

    def distance(other: Tensor) -> Tensor:
        return (anchors - other + 1e-6).norm(axis)

    return weighted_mean((distance(positives) - distance(negatives) + margin).relu(), weights)


def contrastive(
    queries: Tensor, keys: Tensor, axis: Axis, batch: Axis = 0, temperature: float = 0.1, weights: Tensor | None = None
) -> Tensor:
    """InfoNCE: each query finds its own key among those of the batch, by cosine similarity over a temperature."""
    count = queries.size(batch)
    left, right = (_rows(_normalise(x, axis), batch, axis) for x in (queries, keys))
    scores = left.dot(right, (1, 1)) / temperature
    own = arange(count)
    return cross_entropy(scores, own, 1, None if weights is None else weights.unnamed())


def _normalise(x: Tensor, axis: Axis) -> Tensor:
    return x / x.norm(axis, keep=not isinstance(axis, str)).maximum(1e-12)


def _rows(x: Tensor, batch: Axis, axis: Axis) -> Tensor:
    """[batch, features], without names."""
    if x.rank != 2:
        refuse("contrastive: vectors in one batch", operand("vectors", x), remedy="two axes: batch and features")
    return (x.transpose(batch, axis) if isinstance(axis, str) else x).unnamed()
