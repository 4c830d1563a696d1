"""Metrics: what predictions are worth, as tensors; `weights` are 0 for the rows that fill up the last batch."""

from __future__ import annotations

from smelt.tensor.axes import Axis
from smelt.tensor.core import Tensor
from smelt.tensor.ops.elementwise import where
from smelt.tensor.ops.move import arange
from smelt.train.losses import cross_entropy, weighted_mean


def accuracy(logits: Tensor, labels: Tensor, axis: Axis, weights: Tensor | None = None) -> Tensor:
    """The share of rows whose largest logit is at the label."""
    return weighted_mean((logits.argmax(axis) == labels).to("f32"), weights)


def top_k_accuracy(logits: Tensor, labels: Tensor, axis: Axis, k: int, weights: Tensor | None = None) -> Tensor:
    """The share of rows whose label is among the k largest logits."""
    name = axis if isinstance(axis, str) else None
    chosen = labels.one_hot(logits.size(axis), name, "i1")
    if name is not None and logits.axes is not None:
        chosen = chosen.transpose(*logits.axes)
    own = where(chosen, logits, float("-inf")).max(axis, keep=name is None)
    larger = (logits > own).to("i32").sum(axis)
    return weighted_mean((larger < k).to("f32"), weights)


def perplexity(logits: Tensor, labels: Tensor, axis: Axis, weights: Tensor | None = None) -> Tensor:
    """exp of the cross entropy: how many tokens the model hesitates between."""
    return cross_entropy(logits, labels, axis, weights).exp()


def confusion(predicted: Tensor, labels: Tensor, classes: int, weights: Tensor | None = None) -> Tensor:
    """How often rows of each class (first axis) were predicted as each class (second axis): f32 [classes, classes]."""
    wanted, found = (x.flatten().unnamed().one_hot(classes) for x in (labels, predicted))
    if weights is not None:
        wanted = wanted * weights.to("f32").flatten().unnamed().insert(1)
    return wanted.dot(found, (0, 0))


def f1(matrix: Tensor, *, average: str = "macro") -> Tensor:
    """F1 from a confusion matrix: the harmonic mean of precision and recall.

    `average` is "macro" (the mean over classes), "micro" (of all rows together) or "none" (each class). A class
    that was neither there nor predicted has 0, as in scikit-learn.
    """
    right = _diagonal(matrix)
    total = matrix.sum(0) + matrix.sum(1)
    if average == "micro":
        return 2.0 * right.sum() / total.sum()
    each = where(total > 0, 2.0 * right / total.maximum(1e-30), 0.0)
    return each if average == "none" else each.mean()


def _diagonal(matrix: Tensor) -> Tensor:
    places = arange(matrix.size(0))
    return matrix.take_along(places.insert(1), 1)[:, 0]
