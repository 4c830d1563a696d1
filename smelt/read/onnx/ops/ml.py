"""Classical machine learning (`ai.onnx.ml`) but for trees: linear models, support vectors, and what prepares features.

What converters of scikit-learn pipelines write. Text goes in where it is known at import; labels that are text come out
as indices into a table, maps as a tensor with one column per key. Imported by `read.onnx.model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import isnan
from typing import Any

import numpy as np

from smelt.dtype import Array, f32, f64, i1, i64
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.build import RegionBuilder
from smelt.ir.core import Value
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Labels, Maps, Tensor, Text
from smelt.read.onnx.ops.control import inner_graph, while_loop
from smelt.read.onnx.ops.scores import (
    ML,
    best_class,
    both_classes,
    check_transform,
    flag_above,
    labels_of,
    pick_label,
    rows_of,
    table,
    transform_scores,
)
from smelt.read.onnx.registry import onnx_op
from smelt.shape import Shape

# ---- features ----


@onnx_op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(g: Graph, X: Item, Y: Tensor) -> Item | Value:
    """Columns of a tensor; of a vector, one row of them."""
    if isinstance(X, Text):
        return _text_columns(g, X.array, Y)
    if not isinstance(X, Tensor):
        raise UnsupportedError("ArrayFeatureExtractor takes a tensor", got=type(X).__name__.lower())
    if X.rank == 0:
        raise ShapeError("ArrayFeatureExtractor of a scalar")
    x = g.value(X)
    x = g.expand_dims(x, (0,)) if X.rank == 1 else x
    return g.take_checked(x, g.reshape(g.value(Y), (Y.shape.count,)), x.shape.rank - 1)


def _text_columns(g: Graph, array: Array, Y: Tensor) -> Item:
    known = g.elements(Y)
    if known is not None and known.dtype != object:
        return Text(np.atleast_2d(array)[..., known.reshape(-1)])
    if array.ndim == 0 or array.size != array.shape[-1]:
        raise UnsupportedError("ArrayFeatureExtractor of text in several rows", got=list(array.shape))
    lead = (1,) * max(array.ndim - 1, 1)
    return Labels(Tensor.of(g.reshape(g.value(Y), (*lead, Y.shape.count))), array.reshape(-1))


@onnx_op("Binarizer", domain=ML)
def binarizer(g: Graph, X: Value, *, threshold: float = 0.0) -> Value:
    x = X if X.shape.element.is_float else g.convert(X, f64)
    return g.convert(g.compare(x, g.like(threshold, x), "GT"), X.shape.element)


@onnx_op("Scaler", domain=ML)
def scaler(g: Graph, X: Value, *, offset: tuple[float, ...] = (), scale: tuple[float, ...] = ()) -> Value:
    x = X if X.shape.element == f64 else g.convert(X, f32)
    for name, numbers, op in (("offset", offset, "subtract"), ("scale", scale, "multiply")):
        if numbers:
            x = g.binary(
                op, x, _per_feature(g, np.array(numbers, x.shape.element.numpy), x, f"Scaler: attribute {name!r}")
            )
    return g.convert(x, f32)


def _per_feature(g: Graph, numbers: Array, x: Value, what: str) -> Value:
    """One number for all features, or one each."""
    features = x.shape.sizes[-1] if x.shape.rank else 1
    if numbers.size not in (1, features) and isinstance(features, int):
        raise ShapeError(what, expected=f"1 or {features} numbers", got=numbers.size)
    return table(g, numbers.reshape(()) if numbers.size == 1 else numbers, "numbers")


@onnx_op("Imputer", domain=ML)
def imputer(
    g: Graph,
    X: Value,
    *,
    imputed_value_floats: tuple[float, ...] = (),
    imputed_value_int64s: tuple[int, ...] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Value:
    element = X.shape.element
    if bool(imputed_value_floats) == bool(imputed_value_int64s):
        raise ParseError("Imputer: values must be given either as floats or as integers")
    if element.is_float != bool(imputed_value_floats):
        raise ParseError("Imputer: values of another type than the input", expected=element)
    numbers: Sequence[float] = imputed_value_floats or imputed_value_int64s
    values = _per_feature(g, np.array(numbers, element.numpy), X, "Imputer: the values")
    lost = replaced_value_float if element.is_float else replaced_value_int64
    missing = g.compare(X, X, "NE") if isnan(lost) else g.compare(X, g.like(lost, X), "EQ")
    return g.choose(missing, values, X)


@onnx_op("Normalizer", domain=ML)
def normalizer(g: Graph, X: Value, *, norm: str = "MAX") -> Value:
    """Rows over their norm, in single precision. MAX is the greatest element, not the greatest magnitude."""
    x = g.convert(X, f32)
    if x.shape.rank not in (1, 2):
        raise ShapeError("Normalizer takes [batch, features]", got=x.shape)
    last = (x.shape.rank - 1,)
    match norm:
        case "MAX":
            size = g.max(x, last, keep=True)
        case "L1":
            size = g.sum(g.unary("abs", x), last, keep=True)
        case "L2":
            size = g.unary("sqrt", g.sum(g.binary("multiply", x, x), last, keep=True))
        case _:
            raise ParseError("Normalizer: attribute 'norm'", expected="MAX, L1 or L2", got=norm)
    whole = g.broadcast_to(size, x.shape.sizes)
    return g.select(g.compare(whole, g.like(0, whole), "EQ"), x, g.binary("divide", x, whole))


@onnx_op("FeatureVectorizer", domain=ML)
def feature_vectorizer(g: Graph, *X: Value, inputdimensions: tuple[int, ...] = ()) -> Value:
    """All inputs side by side, each cut off or filled up with zeros to the width given for it."""
    if len(inputdimensions) not in (0, len(X)) or any(width < 0 for width in inputdimensions):
        raise ParseError("FeatureVectorizer: attribute 'inputdimensions'", expected=len(X), got=list(inputdimensions))
    parts = []
    for i, each in enumerate(X):
        x = g.convert(each if each.shape.rank > 1 else g.reshape(each, (1, each.shape.count)), f32)
        if x.shape.rank > 2:
            x = g.reshape(x, (x.shape.sizes[0], x.shape.with_sizes(x.shape.sizes[1:]).count))
        own = x.shape.sizes[1]
        width = inputdimensions[i] if inputdimensions else own
        if isinstance(own, int) and isinstance(width, int) and own < width:
            x = g.pad(x, g.scalar(0.0, f32), (0, 0), (0, width - own))
        parts.append(g.slice_axis(x, 1, 0, width))
    return g.concat(parts, 1)


@onnx_op("OneHotEncoder", domain=ML)
def one_hot_encoder(
    g: Graph, X: Item, *, cats_int64s: tuple[int, ...] = (), cats_strings: tuple[str, ...] = (), zeros: int = 1
) -> Item | Value:
    """A last axis with 1 at the category. One that is unknown has none, also where `zeros` asks for a failure."""
    cats = labels_of(cats_int64s, cats_strings, "OneHotEncoder")
    if isinstance(X, Text | Labels):
        array = X.table if isinstance(X, Labels) else X.array
        flags = np.array([[each == cat for cat in cats] for each in array.reshape(-1)], np.float32)
        known = Tensor.constant(flags.reshape(*array.shape, len(cats)))
        return g.take(g.value(known), g.value(X.places), 0) if isinstance(X, Labels) else known
    if not isinstance(X, Tensor) or not cats_int64s:
        raise ParseError("OneHotEncoder: categories of another type than the input")
    x = g.expand_dims(g.convert(g.value(X), i64), (X.rank,))
    wanted = table(g, np.array(cats_int64s, np.int64), "categories")
    own, cat = g.together(x, wanted)
    return g.convert(g.compare(own, cat, "EQ"), f32)


# ---- from keys to values ----


def _map_values(
    g: Graph, X: Item, keys: Array, values: Array, default: Any, what: str, nan_matches: bool
) -> Item | Value:
    """Each element's value; text is looked up at import. Of equal keys the last counts."""
    if keys.size != values.size:
        raise ParseError(f"{what}: keys and values differ in number", expected=keys.size, got=values.size)
    if isinstance(X, Text | Labels):
        array = X.table if isinstance(X, Labels) else X.array
        if keys.dtype != object:
            raise ParseError(f"{what}: keys of another type than the input")
        words = dict(zip(keys.tolist(), values.tolist(), strict=True))
        found: Array = np.empty(array.size, values.dtype)
        found[:] = [words.get(each, default) for each in array.reshape(-1).tolist()]
        found = found.reshape(array.shape)
        if not isinstance(X, Labels):
            return Text(found) if found.dtype == object else Tensor.constant(found)
        return (
            Labels(X.places, found)
            if found.dtype == object
            else g.take(table(g, found, "values"), g.value(X.places), 0)
        )
    if not isinstance(X, Tensor) or keys.dtype == object:
        raise ParseError(f"{what}: keys of another type than the input")
    if values.dtype != object:
        return _choose(g, g.value(X), keys, values, default, nan_matches)
    places = _choose(g, g.value(X), keys, np.arange(keys.size), keys.size, nan_matches)
    return Labels(Tensor.of(places), np.array([*values.tolist(), default], object))


def _choose(g: Graph, x: Value, keys: Array, values: Array, default: Any, nan_matches: bool) -> Value:
    """A search in the sorted keys, half of what is left at a time."""
    element = values.dtype
    other = g.broadcast_to(g.const(np.array(default, element), Tensor.constant(values).element), x.shape.sizes)
    nan = np.isnan(keys) if keys.dtype.kind == "f" else np.zeros(keys.shape, np.bool_)
    if nan.any() and nan_matches and x.shape.element.is_float:
        special = g.broadcast_to(g.const(values[nan][-1], other.shape.element), x.shape.sizes)
        other = g.select(g.compare(x, x, "NE"), special, other)
    last = dict(zip(keys[~nan].tolist(), values[~nan].tolist(), strict=True))
    if not last:
        return other
    order = sorted(last)
    size = 1 << (len(order) - 1).bit_length()
    fill = [order[-1]] * (size - len(order))
    if x.shape.element.is_integer and keys.dtype.kind == "f":
        x = g.convert(x, f64)
    held = table(g, np.array([*order, *fill]).astype(x.shape.element.numpy), "keys")
    at = g.full(0, x.shape.with_dtype(i64))
    step = size // 2
    while step:
        ahead = g.plus(at, step)
        at = g.select(g.compare(g.take(held, ahead, 0), x, "LE"), ahead, at)
        step //= 2
    found = table(g, np.array([last[key] for key in [*order, *fill]], element), "values")
    return g.select(g.compare(g.take(held, at, 0), x, "EQ"), g.take(found, at, 0), other)


def _words(words: Sequence[str]) -> Array:
    array = np.empty(len(words), object)
    array[:] = words
    return array


@onnx_op("LabelEncoder", since=2, domain=ML)
def label_encoder(
    g: Graph,
    X: Item,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Item | None = None,
    keys_floats: tuple[float, ...] | None = None,
    keys_int64s: tuple[int, ...] | None = None,
    keys_strings: tuple[str, ...] | None = None,
    keys_tensor: Item | None = None,
    values_floats: tuple[float, ...] | None = None,
    values_int64s: tuple[int, ...] | None = None,
    values_strings: tuple[str, ...] | None = None,
    values_tensor: Item | None = None,
) -> Item | Value:
    keys = _as_list(g, "keys", keys_tensor, keys_floats, keys_int64s, keys_strings)
    values = _as_list(g, "values", values_tensor, values_floats, values_int64s, values_strings)
    kind = values.dtype.kind
    default: Any = default_string if kind == "O" else default_int64 if kind in "iu" else default_float
    if default_tensor is not None:
        given = _as_list(g, "default", default_tensor, None, None, None)
        if given.size != 1 or given.dtype.kind != kind:
            raise ParseError(
                "LabelEncoder: attribute 'default_tensor'", expected=f"one {values.dtype}", got=given.dtype
            )
        default = given.reshape(-1)[0]
    nan_matches = g.opsets.get(ML, 1) >= 4
    return _map_values(g, X, keys, values, default, "LabelEncoder", nan_matches)


def _as_list(g: Graph, what: str, tensor: Item | None, floats: Any, ints: Any, strings: Any) -> Array:
    if sum(each is not None for each in (tensor, floats, ints, strings)) != 1:
        raise ParseError(f"LabelEncoder: {what} must be given in one way")
    if isinstance(tensor, Text):
        return tensor.array.reshape(-1)
    if isinstance(tensor, Tensor):
        return g.numbers(tensor, what).reshape(-1)
    if strings is not None:
        return _words(strings)
    return np.array(floats, np.float32) if floats is not None else np.array(ints, np.int64)


@onnx_op("LabelEncoder", since=1, domain=ML)
def label_encoder_1(
    g: Graph,
    X: Item,
    *,
    classes_strings: tuple[str, ...] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Item | Value:
    places = np.arange(len(classes_strings))
    return _either_way(g, X, places, classes_strings, default_int64, default_string, "LabelEncoder")


@onnx_op("CategoryMapper", domain=ML)
def category_mapper(
    g: Graph,
    X: Item,
    *,
    cats_int64s: tuple[int, ...] = (),
    cats_strings: tuple[str, ...] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Item | Value:
    numbers = np.array(cats_int64s, np.int64)
    return _either_way(g, X, numbers, cats_strings, default_int64, default_string, "CategoryMapper")


def _either_way(
    g: Graph, X: Item, numbers: Array, words: Sequence[str], number: int, word: str, what: str
) -> Item | Value:
    """Strings to integers or back, as the input has it."""
    if isinstance(X, Text | Labels):
        return _map_values(g, X, _words(words), numbers, number, what, False)
    return _map_values(g, X, numbers, _words(words), word, what, False)


# ---- maps ----


@onnx_op("ZipMap", domain=ML)
def zip_map(
    g: Graph, X: Tensor, *, classlabels_int64s: tuple[int, ...] = (), classlabels_strings: tuple[str, ...] = ()
) -> Maps:
    """One map per row: kept as the tensor of all their values, and the keys."""
    keys = labels_of(classlabels_int64s, classlabels_strings, "ZipMap")
    if X.rank not in (1, 2):
        raise ShapeError("ZipMap takes [batch, keys]", got=X.shape)
    if isinstance(X.sizes[-1], int) and X.sizes[-1] != len(keys):
        raise ShapeError("ZipMap: as many columns as keys", expected=len(keys), got=X.shape)
    return Maps(X, keys)


@onnx_op("CastMap", domain=ML)
def cast_map(g: Graph, X: Item, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Item:
    raise _no_maps("CastMap")


@onnx_op("DictVectorizer", domain=ML)
def dict_vectorizer(
    g: Graph, X: Item, *, int64_vocabulary: tuple[int, ...] = (), string_vocabulary: tuple[str, ...] = ()
) -> Item:
    raise _no_maps("DictVectorizer")


def _no_maps(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} takes a map, which has no place in a program",
        remedy="start the model behind it, with the tensor that it makes as input",
    )


# ---- linear models ----


def _linear(g: Graph, X: Value, coefficients: Sequence[float], intercepts: Sequence[float], what: str) -> Value:
    """Scores [batch, targets] in single precision."""
    rows = g.convert(rows_of(g, X, what), f32)
    features = rows.shape.sizes[1]
    numbers = np.array(coefficients, np.float32)
    count = len(intercepts) or (numbers.size // features if isinstance(features, int) and features else 1)
    if (
        not count
        or not numbers.size
        or numbers.size % count
        or (features != numbers.size // count and isinstance(features, int))
    ):
        raise ShapeError(
            f"{what}: attribute 'coefficients'", expected=f"{count} for each of {features}", got=numbers.size
        )
    scores = g.dot(rows, table(g, numbers.reshape(count, -1), "coefficients"), ((1,), (1,)))
    if not intercepts:
        return scores
    return g.binary("add", scores, table(g, np.array(intercepts, np.float32), "intercepts"))


@onnx_op("LinearRegressor", domain=ML)
def linear_regressor(
    g: Graph,
    X: Value,
    *,
    coefficients: tuple[float, ...] = (),
    intercepts: tuple[float, ...] = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Value:
    check_transform(post_transform, "LinearRegressor")
    if targets < 1 or len(intercepts) not in (0, targets):
        raise ParseError("LinearRegressor: attribute 'intercepts'", expected=targets, got=len(intercepts))
    return transform_scores(
        g, _linear(g, X, coefficients, intercepts or (0.0,) * targets, "LinearRegressor"), post_transform
    )


@onnx_op("LinearClassifier", domain=ML)
def linear_classifier(
    g: Graph,
    X: Value,
    *,
    classlabels_ints: tuple[int, ...] = (),
    classlabels_strings: tuple[str, ...] = (),
    coefficients: tuple[float, ...],
    intercepts: tuple[float, ...] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Item, Value]:
    """The label is that of the greatest score; a single score above 0 speaks for the second class."""
    check_transform(post_transform, "LinearClassifier")
    labels = labels_of(classlabels_ints, classlabels_strings, "LinearClassifier")
    scores = _linear(g, X, coefficients, intercepts, "LinearClassifier")
    count = scores.shape.sizes[1]
    if count == 1 and len(labels) == 2:
        return pick_label(g, flag_above(g, scores, 0.0), labels), both_classes(g, scores, post_transform, True)
    if count != len(labels):
        raise ShapeError("LinearClassifier: as many labels as rows of coefficients", expected=count, got=len(labels))
    return pick_label(g, best_class(g, scores), labels), transform_scores(g, scores, post_transform)


# ---- support vectors ----


def _kernel(g: Graph, x: Value, vectors: Array, kind: str, params: Sequence[float], what: str) -> Value:
    """How alike each row [batch, features] and each vector [vectors, features] are."""
    if kind not in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        raise ParseError(f"{what}: attribute 'kernel_type'", expected="LINEAR, POLY, RBF or SIGMOID", got=kind)
    if params and len(params) != 3:
        raise ParseError(f"{what}: attribute 'kernel_params'", expected="gamma, coef0 and degree", got=list(params))
    gamma, coef0, degree = params or (0.0, 0.0, 0.0)
    if isinstance(x.shape.sizes[1], int) and x.shape.sizes[1] != vectors.shape[1]:
        raise ShapeError(f"{what}: support vectors of another length", expected=x.shape.sizes[1], got=vectors.shape[1])
    if kind == "RBF":  # |x - v|² = |x|² + |v|² - 2 x·v, in double precision because these nearly cancel
        wide, v = g.convert(x, f64), vectors.astype(np.float64)
        dot = g.dot(wide, table(g, v, "vectors"), ((1,), (1,)))
        own = g.sum(g.binary("multiply", wide, wide), (1,), keep=True)
        distance = g.binary("subtract", g.binary("add", own, table(g, (v * v).sum(1), "squares")), g.times(dot, 2.0))
        return g.convert(
            g.unary("exponential", g.times(g.binary("maximum", distance, g.like(0, distance)), -gamma)), f32
        )
    dot = g.dot(x, table(g, vectors, "vectors"), ((1,), (1,)))
    if kind == "LINEAR":
        return dot
    scaled = g.plus(g.times(dot, gamma), coef0)
    if kind == "SIGMOID":
        return g.unary("tanh", scaled)
    if degree in (1, 2, 3, 4):
        power = scaled
        for _ in range(int(degree) - 1):
            power = g.binary("multiply", power, scaled)
        return power
    return g.binary("power", scaled, g.like(degree, scaled))


def _vectors(numbers: Sequence[float], count: int, what: str) -> Array:
    if count < 1 or not numbers or len(numbers) % count:
        raise ParseError(
            f"{what}: attribute 'support_vectors'", expected=f"a multiple of {count} numbers", got=len(numbers)
        )
    return np.array(numbers, np.float32).reshape(count, -1)


@onnx_op("SVMRegressor", domain=ML)
def svm_regressor(
    g: Graph,
    X: Value,
    *,
    coefficients: tuple[float, ...] = (),
    kernel_params: tuple[float, ...] = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: tuple[float, ...] = (),
    support_vectors: tuple[float, ...] = (),
) -> Value:
    """Without support vectors the coefficients are a plane's. The one target has no transform."""
    what = "SVMRegressor"
    check_transform(post_transform, what)
    x = g.convert(rows_of(g, X, what), f32)
    weights = np.array(coefficients, np.float32)
    if not rho or not weights.size:
        raise ParseError(f"{what}: attributes 'rho' and 'coefficients' must be given")
    if n_supports > 0:
        if weights.size != n_supports:
            raise ParseError(f"{what}: attribute 'coefficients'", expected=n_supports, got=weights.size)
        alike = _kernel(g, x, _vectors(support_vectors, n_supports, what), kernel_type, kernel_params, what)
        score = g.dot(alike, table(g, weights.reshape(1, -1), "coefficients"), ((1,), (1,)))
    else:
        score = _kernel(g, x, weights.reshape(1, -1), "LINEAR", (), what)
    score = g.plus(score, rho[0])
    if not one_class:
        return score
    return g.select(g.compare(score, g.like(0, score), "GT"), g.like(1, score), g.like(-1, score))


@onnx_op("SVMClassifier", domain=ML)
def svm_classifier(
    g: Graph,
    X: Value,
    *,
    classlabels_ints: tuple[int, ...] = (),
    classlabels_strings: tuple[str, ...] = (),
    coefficients: tuple[float, ...] = (),
    kernel_params: tuple[float, ...] = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: tuple[float, ...] = (),
    prob_b: tuple[float, ...] = (),
    rho: tuple[float, ...] = (),
    support_vectors: tuple[float, ...] = (),
    vectors_per_class: tuple[int, ...] = (),
) -> tuple[Item, Value]:
    what = "SVMClassifier"
    check_transform(post_transform, what)
    labels = labels_of(classlabels_ints, classlabels_strings, what)
    x = g.convert(rows_of(g, X, what), f32)
    weights = np.array(coefficients, np.float32)
    if not rho or not weights.size or len(prob_a) != len(prob_b) or any(count < 0 for count in vectors_per_class):
        raise ParseError(f"{what}: attributes 'rho', 'coefficients', 'prob_a', 'prob_b' or 'vectors_per_class'")
    count = len(labels)
    total = sum(vectors_per_class)
    if total == 0:
        return _planes(g, x, weights, rho[0], labels, post_transform, what)
    pairs = list(combinations(range(count), 2))
    if len(vectors_per_class) != count or len(rho) < len(pairs) or weights.size != (count - 1) * total or not pairs:
        raise ParseError(
            f"{what}: attributes do not fit {count} classes", got=[len(vectors_per_class), len(rho), weights.size]
        )
    alike = _kernel(g, x, _vectors(support_vectors, total, what), kernel_type, kernel_params, what)
    joined = _pair_weights(weights.reshape(count - 1, total), vectors_per_class, pairs)
    scores = g.dot(alike, table(g, joined, "coefficients"), ((1,), (0,)))
    scores = g.binary("add", scores, table(g, np.array(rho[: len(pairs)], np.float32), "rho"))  # [batch, pairs]
    place = best_class(g, _votes(g, scores, pairs, count))
    if prob_a:
        if len(prob_a) < len(pairs):
            raise ParseError(f"{what}: attribute 'prob_a'", expected=len(pairs), got=len(prob_a))
        shares = _pair_shares(g, scores, prob_a, prob_b, pairs, count)
        return pick_label(g, place, labels), transform_scores(
            g, _couple_probabilities(g, shares, count), post_transform
        )
    if count == 2:
        return pick_label(g, place, labels), both_classes(g, scores, post_transform, post_transform != "NONE")
    return pick_label(g, place, labels), transform_scores(g, scores, post_transform)


def _planes(
    g: Graph, x: Value, weights: Array, rho: float, labels: Sequence[int] | Sequence[str], post: str, what: str
) -> tuple[Item, Value]:
    """One plane per class. Of two classes the second wins by any score that is high enough, as onnxruntime has it."""
    scores = g.plus(_kernel(g, x, _vectors(weights.tolist(), len(labels), what), "LINEAR", (), what), rho)
    place = best_class(g, scores)
    if len(labels) == 2:
        top = g.max(scores, (1,))
        positive = bool((weights >= 0).all())
        wins = g.compare(top, g.like(0.5 if positive else 0.0, top), "GE" if positive else "GT")
        place = g.select(wins, g.like(1, place), place)
    return pick_label(g, place, labels), transform_scores(g, scores, post)


def _pair_weights(weights: Array, per_class: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Array:
    """[vectors, pairs]: of each pair of classes, the weights of both classes' vectors against the other class."""
    ends = np.cumsum(per_class)
    spans = [slice(end - size, end) for end, size in zip(ends.tolist(), per_class, strict=True)]
    joined = np.zeros((weights.shape[1], len(pairs)), np.float32)
    for column, (i, j) in enumerate(pairs):
        joined[spans[i], column] = weights[j - 1, spans[i]]
        joined[spans[j], column] = weights[i, spans[j]]
    return joined


def _votes(g: Graph, scores: Value, pairs: Sequence[tuple[int, int]], count: int) -> Value:
    """How many pairs each class wins."""
    first, second = (np.zeros((len(pairs), count), np.float32) for _ in range(2))
    for row, (i, j) in enumerate(pairs):
        first[row, i] = second[row, j] = 1
    wins = g.convert(g.compare(scores, g.like(0, scores), "GT"), f32)
    votes = g.dot(wins, table(g, first - second, "votes"), ((1,), (0,)))
    return g.binary("add", votes, table(g, second.sum(0), "votes"))


def _pair_shares(
    g: Graph,
    scores: Value,
    prob_a: Sequence[float],
    prob_b: Sequence[float],
    pairs: Sequence[tuple[int, int]],
    count: int,
) -> Value:
    """[batch, classes, classes]: how likely the first class of each pair is; 0 on the diagonal."""
    a, b = (table(g, np.array(each[: len(pairs)], np.float32), name) for each, name in ((prob_a, "a"), (prob_b, "b")))
    inner = g.binary("add", g.binary("multiply", scores, a), b)
    share = g.unary("logistic", g.unary("negate", inner))
    share = g.binary("minimum", g.binary("maximum", share, g.like(1e-7, share)), g.like(1 - 1e-7, share))
    zero = g.like(0, g.slice_axis(share, 1, 0, 1))
    columns = []
    for i in range(count):
        for j in range(count):
            if i == j:
                columns.append(zero)
                continue
            k = pairs.index((min(i, j), max(i, j)))
            own = g.slice_axis(share, 1, k, k + 1)
            columns.append(own if i < j else g.plus(g.unary("negate", own), 1.0))
    return g.reshape(g.concat(columns, 1), (scores.shape.sizes[0], count, count))


def _couple_probabilities(g: Graph, shares: Value, count: int) -> Value:
    """Probabilities of all classes from those of pairs: libsvm's iteration, in which each row stops on its own."""
    batch = shares.shape.sizes[0]
    turned = g.transpose(shares, (0, 2, 1))
    squares = g.sum(g.binary("multiply", shares, shares), (1,))  # [batch, classes]
    crossed = g.unary("negate", g.binary("multiply", turned, shares))
    diagonal = g.compare(g.iota(i64, crossed.shape.sizes, 1), g.iota(i64, crossed.shape.sizes, 2), "EQ")
    q = g.select(diagonal, g.broadcast_in_dim(squares, crossed.shape.sizes, (0, 2)), crossed)
    limit = 0.005 / count

    def column(g: Graph, x: Value, i: int) -> Value:
        return g.slice_axis(x, 1, i, i + 1)

    def iterate(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        inner = inner_graph(g, r, args)
        at, _, p = args
        qp = inner.dot(q, p, ((2,), (1,)), ((0,), (0,)))
        pqp = inner.sum(inner.binary("multiply", p, qp), (1,), keep=True)
        worst = inner.max(inner.unary("abs", inner.binary("subtract", qp, pqp)), (1,), keep=True)
        alive = inner.compare(worst, inner.like(limit, worst), "GE")
        new = p
        for i in range(count):
            row = inner.reshape(inner.slice_axis(q, 1, i, i + 1), (batch, count))
            own = column(inner, row, i)
            step = inner.binary("divide", inner.binary("subtract", pqp, column(inner, qp, i)), own)
            scale = inner.plus(step, 1.0)
            gain = inner.binary("add", inner.binary("multiply", step, own), inner.times(column(inner, qp, i), 2.0))
            pqp = inner.binary("add", pqp, inner.binary("multiply", step, gain))
            pqp = inner.binary("divide", inner.binary("divide", pqp, scale), scale)
            here = inner.compare(inner.iota(i64, (1, count), 1), inner.full(i, Shape.of(i64, (1, count))), "EQ")
            moved = inner.choose(here, inner.binary("add", new, step), new)
            new = inner.binary("divide", moved, scale)
            qp = inner.binary("divide", inner.binary("add", qp, inner.binary("multiply", step, row)), scale)
        kept = inner.choose(alive, new, p)
        going = inner.reduce(inner.reshape(alive, (batch,)), (0,), "or", False)
        return [inner.plus(at, 1), going, kept]

    def test(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        return [r.and_(args[1], r.compare(args[0], r.constant(100, i64), comparison_direction="LT"))]

    start = g.full(1 / count, Shape.of(f32, (batch, count)))
    return while_loop(g, [g.scalar(0, i64), g.scalar(True, i1), start], test, iterate)[2]
