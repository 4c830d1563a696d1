"""What classifiers and regressors of `ai.onnx.ml` end with: transformed scores, and labels of the best class.

Where the standard leaves a corner open, the result is onnxruntime's. Called by `read.onnx.ml` and `read.onnx.trees`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

import numpy as np

from smelt.dtype import Array, i64
from smelt.errors import ParseError, ShapeError
from smelt.ir.core import Value
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Labels, Tensor
from smelt.read.onnx.ops.math import softmax_over

ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")  # in the order of TreeEnsemble's numbers


def check_transform(kind: str, what: str) -> None:
    if kind not in TRANSFORMS:
        raise ParseError(f"{what}: attribute 'post_transform'", expected=", ".join(TRANSFORMS), got=kind)


def rows_of(g: Graph, X: Value, what: str) -> Value:
    """[batch, features]; a vector is a batch of one."""
    if X.shape.rank not in (1, 2):
        raise ShapeError(f"{what} takes [batch, features]", got=X.shape)
    return g.reshape(X, (1, *X.shape.sizes)) if X.shape.rank == 1 else X


def table(g: Graph, array: Array, name: str) -> Value:
    """Numbers from an attribute as a value; a big table is a weight of that name."""
    return g.value(Tensor.constant(np.ascontiguousarray(array), f"{g.location.name}.{name}"))


def transform_scores(g: Graph, scores: Value, kind: str) -> Value:
    """The transform over each row of [batch, classes]. A single column has none but PROBIT."""
    if scores.shape.sizes[1] == 1 and kind != "PROBIT":
        return scores
    match kind:
        case "SOFTMAX":
            return softmax_over(g, scores, (1,))
        case "LOGISTIC":
            return g.unary("logistic", scores)
        case "SOFTMAX_ZERO":
            return _softmax_zero(g, scores)
        case "PROBIT":
            return _probit(g, scores)
        case _:
            return scores


def _softmax_zero(g: Graph, scores: Value) -> Value:
    """A softmax in which scores of zero stay zero."""
    tiny = g.like(1e-7, scores)
    zero = g.compare(g.unary("abs", scores), tiny, "LE")
    top = g.broadcast_to(g.max(scores, (1,), keep=True), scores.shape.sizes)
    powers = g.select(zero, g.like(0, scores), g.unary("exponential", g.binary("subtract", scores, top)))
    return g.binary("divide", powers, g.sum(powers, (1,), keep=True))


def _probit(g: Graph, scores: Value) -> Value:
    """√2 · erf⁻¹(2p - 1) by Winitzki's formula, with the usual constant."""
    a = 0.147
    x = g.plus(g.times(scores, 2.0), -1.0)
    log = g.unary("log", g.binary("multiply", g.plus(g.unary("negate", x), 1.0), g.plus(x, 1.0)))
    first = g.plus(g.times(log, 0.5), 2 / (pi * a))
    root = g.unary("sqrt", g.binary("subtract", g.binary("multiply", first, first), g.times(log, 1 / a)))
    size = g.times(g.unary("sqrt", g.binary("subtract", root, first)), sqrt(2))
    return g.select(g.compare(x, g.like(0, x), "LT"), g.unary("negate", size), size)


def both_classes(g: Graph, score: Value, kind: str, positive: bool) -> Value:
    """Two columns from the score [batch, 1] of the second class; `positive` scores are shares of 1."""
    other = g.unary("negate", score)
    if kind == "LOGISTIC":
        return g.unary("logistic", g.concat([other, score], 1))
    pair = g.concat([g.plus(other, 1.0) if positive else other, score], 1)
    return _probit(g, pair) if kind == "PROBIT" else pair


# ---- labels ----


def labels_of(ints: Sequence[int], strings: Sequence[str], what: str) -> tuple[int, ...] | tuple[str, ...]:
    """The labels of the classes, of which one kind must be given."""
    if bool(ints) == bool(strings):
        raise ParseError(f"{what}: labels must be given either as integers or as strings", got=[*ints, *strings][:4])
    return tuple(strings) if strings else tuple(ints)


def best_class(g: Graph, scores: Value) -> Value:
    """The column of the greatest score in each row, the first of several."""
    count = scores.shape.sizes[1]
    assert isinstance(count, int)
    top = g.broadcast_to(g.max(scores, (1,), keep=True), scores.shape.sizes)
    places = g.iota(i64, scores.shape.sizes, 1)
    best = g.min(g.select(g.compare(scores, top, "EQ"), places, g.like(count, places)), (1,))
    return g.select(g.compare(best, g.like(count, best), "LT"), best, g.like(0, best))  # nan equals nothing


def pick_label(g: Graph, places: Value, labels: Sequence[int] | Sequence[str]) -> Item:
    """The labels at places: numbers, or places in a table of strings."""
    if labels and isinstance(labels[0], str):
        return Labels(Tensor.of(places), np.array(labels, object))
    if tuple(labels) == tuple(range(len(labels))):
        return Tensor.of(places)
    return Tensor.of(g.take(table(g, np.array(labels, np.int64), "labels"), places, 0))


def flag_above(g: Graph, score: Value, bound: float) -> Value:
    """1 where a score [batch, 1] is above a bound, else 0: [batch]."""
    flat = g.reshape(score, score.shape.sizes[:1])
    return g.convert(g.compare(flat, g.like(bound, flat), "GT"), i64)
