"""Operators of text. The text must be known at import: they run there and emit no ops."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from smelt.dtype import f32, i64
from smelt.errors import ParseError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Tensor, Text
from smelt.read.onnx.registry import onnx_op


@onnx_op("RegexFullMatch", since=20)
def regex_full_match(g: Graph, X: Item, *, pattern: str) -> Tensor:
    if not isinstance(X, Text):
        raise UnsupportedError("RegexFullMatch takes text")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ParseError("RegexFullMatch: attribute 'pattern'", got=error) from error
    flags = [compiled.fullmatch(each) is not None for each in X.array.reshape(-1)]
    return Tensor.constant(np.array(flags, np.bool_).reshape(X.array.shape))


@onnx_op("StringConcat", since=20)
def string_concat(g: Graph, X: Item, Y: Item) -> Text:
    if not isinstance(X, Text) or not isinstance(Y, Text):
        raise UnsupportedError("StringConcat takes text")
    return Text(np.asarray(X.array + Y.array, object))


@onnx_op("StringSplit", since=20)
def string_split(g: Graph, X: Item, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Item, Item]:
    """The parts of each string along a new last dimension, filled up with empty ones, and how many there are."""
    if not isinstance(X, Text):
        raise UnsupportedError("StringSplit takes text")
    parts = [each.split(delimiter or None, -1 if maxsplit is None else maxsplit) for each in X.array.reshape(-1)]
    width = max((len(row) for row in parts), default=0)
    if width * len(parts) > 1 << 24:
        raise UnsupportedError("StringSplit with too many parts", got=width)
    flat = np.empty(len(parts) * width, object)
    flat[:] = [word for row in parts for word in [*row, *[""] * (width - len(row))]]
    counts = np.array([len(row) for row in parts], np.int64).reshape(X.array.shape)
    return Text(flat.reshape(*X.array.shape, width)), Tensor.constant(counts)


@onnx_op("StringNormalizer", since=10)
def string_normalizer(
    g: Graph,
    X: Item,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: tuple[str, ...] = (),
) -> Text:
    if not isinstance(X, Text) or X.array.ndim not in (1, 2) or (X.array.ndim == 2 and X.array.shape[0] != 1):
        raise UnsupportedError("StringNormalizer takes a vector of text")
    changes: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    change = changes.get(case_change_action)
    if change is None:
        raise ParseError(
            "StringNormalizer: attribute 'case_change_action'", expected="NONE, LOWER or UPPER", got=case_change_action
        )
    same: Callable[[str], str] = str if is_case_sensitive else str.lower
    stops = {same(word) for word in stopwords}
    kept = [change(word) for word in X.array.reshape(-1) if same(word) not in stops] or [""]
    flat = np.empty(len(kept), object)
    flat[:] = kept
    return Text(flat if X.array.ndim == 1 else flat.reshape(1, -1))


@onnx_op("TfIdfVectorizer", since=9, ranks={"X": "1-2"})
def tf_idf_vectorizer(
    g: Graph,
    X: Item,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: tuple[int, ...],
    ngram_indexes: tuple[int, ...],
    pool_int64s: tuple[int, ...] | None = None,
    pool_strings: tuple[str, ...] | None = None,
    weights: tuple[float, ...] | None = None,
) -> Value:
    if isinstance(X, Text) and pool_strings is not None:  # text is known at import: number the words
        words = {word: i for i, word in enumerate(dict.fromkeys(pool_strings))}
        flat = [words.get(each, -1) for each in X.array.reshape(-1)]
        x = g.value(Tensor.constant(np.array(flat, np.int64).reshape(X.array.shape)))
        pool = [words[word] for word in pool_strings]
    elif isinstance(X, Tensor) and pool_int64s is not None:
        x, pool = g.convert(g.value(X), i64), list(pool_int64s)
    else:
        raise ParseError("TfIdfVectorizer: the pool is of another type than the input")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise ParseError("TfIdfVectorizer: attribute 'mode'", expected="TF, IDF or TFIDF", got=mode)
    rows = g.expand_dims(x, (0,)) if x.shape.rank == 1 else x
    if any(not 0 <= begin <= len(pool) for begin in ngram_counts):
        raise ParseError(
            "TfIdfVectorizer: attribute 'ngram_counts'", expected=f"0 to {len(pool)}", got=list(ngram_counts)
        )
    grams = sum(len(range(*ends, n)) for n, ends in enumerate(pairwise((*ngram_counts, len(pool))), 1))
    if len(ngram_indexes) < grams or (weights is not None and len(weights) < grams):
        raise ParseError(
            "TfIdfVectorizer: attributes 'ngram_indexes' and 'weights'",
            expected=f"a number for each of {grams} n-grams",
            got=[len(ngram_indexes), len(weights or ())],
        )
    batch, length = rows.shape.sizes
    if not isinstance(length, int) or len(pool) * (max_skip_count + 1) > 8192:
        raise UnsupportedError("TfIdfVectorizer of this size", got=x.shape)
    columns: dict[int, Value] = {}
    gram = 0
    for n, begin in enumerate(ngram_counts, 1):
        end = ngram_counts[n] if n < len(ngram_counts) else len(pool)
        for at in range(begin, end, n):
            if min_gram_length <= n <= max_gram_length:
                count = _occurrences(g, rows, pool[at : at + n], length, max_skip_count if n > 1 else 0)
                index = ngram_indexes[gram]
                if mode in ("IDF", "TFIDF") and weights is not None:
                    if mode == "IDF":
                        count = g.binary("minimum", count, g.like(1, count))
                    count = g.times(count, weights[gram])
                elif mode == "IDF":
                    count = g.binary("minimum", count, g.like(1, count))
                columns[index] = count if index not in columns else g.binary("add", columns[index], count)
            gram += 1
    width = max(ngram_indexes, default=-1) + 1
    if not 0 < width <= 65536:
        raise UnsupportedError("TfIdfVectorizer of this size", got=width)
    empty = g.full(0, rows.shape.with_sizes((batch,)).with_dtype(f32))
    whole = g.concat([g.expand_dims(columns.get(i, empty), (1,)) for i in range(width)], 1)
    return g.reshape(whole, (width,)) if x.shape.rank == 1 else whole


def _occurrences(g: Graph, rows: Value, gram: list[int], length: int, skips: int) -> Value:
    """How often a sequence of numbers appears in each row, with up to `skips` others between its members."""
    total = g.full(0, rows.shape.with_sizes((rows.shape.sizes[0],)).with_dtype(f32))
    for skip in range(skips + 1):
        reach = (len(gram) - 1) * (skip + 1) + 1
        if reach > length:
            break
        here: Value | None = None
        for j, number in enumerate(gram):
            part = g.slice_axis(rows, 1, j * (skip + 1), j * (skip + 1) + length - reach + 1)
            same = g.compare(part, g.like(number, part), "EQ")
            here = same if here is None else g.binary("and", here, same)
        if here is not None:
            total = g.binary("add", total, g.sum(g.convert(here, f32), (1,)))
    return total
