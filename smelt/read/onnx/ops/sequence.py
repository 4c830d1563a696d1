"""Sequences and optionals, which exist at import only: their lengths must be known there."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.errors import ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.emit import axis_of
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Optional, Sequence, Tensor
from smelt.read.onnx.ops.shape import split_axis
from smelt.read.onnx.registry import Ints, onnx_op


def _sequence(item: Item) -> Sequence:
    if not isinstance(item, Sequence):
        raise UnsupportedError("a sequence is needed here", got=type(item).__name__.lower())
    return item


def _at(index: int, length: int, last: int) -> int:
    place = index + length if index < 0 else index
    if not 0 <= place <= last:
        raise ShapeError("a place outside the sequence", expected=f"-{length} to {last}", got=index)
    return place


@onnx_op("SequenceEmpty", since=11)
def sequence_empty(g: Graph, *, dtype: int = 1) -> Item:
    return Sequence(())


@onnx_op("SequenceConstruct", since=11)
def sequence_construct(g: Graph, *inputs: Item) -> Item:
    return Sequence(tuple(inputs))


@onnx_op("SequenceInsert", since=11)
def sequence_insert(g: Graph, input_sequence: Item, tensor: Item, position: Ints | None = None) -> Item:
    items = list(_sequence(input_sequence).items)
    items.insert(len(items) if position is None else _at(position[0], len(items), len(items)), tensor)
    return Sequence(tuple(items))


@onnx_op("SequenceErase", since=11)
def sequence_erase(g: Graph, input_sequence: Item, position: Ints | None = None) -> Item:
    items = list(_sequence(input_sequence).items)
    del items[_at(-1 if position is None else position[0], len(items), len(items) - 1)]
    return Sequence(tuple(items))


@onnx_op("SequenceAt", since=11)
def sequence_at(g: Graph, input_sequence: Item, position: Ints) -> Item:
    items = _sequence(input_sequence).items
    return items[_at(position[0], len(items), len(items) - 1)]


@onnx_op("SequenceLength", since=11)
def sequence_length(g: Graph, input_sequence: Item) -> Item:
    return Tensor.constant(np.array(len(_sequence(input_sequence).items), np.int64))


@onnx_op("ConcatFromSequence", since=11)
def concat_from_sequence(g: Graph, input_sequence: Item, *, axis: int, new_axis: int = 0) -> Value:
    items = _sequence(input_sequence).items
    tensors = [item for item in items if isinstance(item, Tensor)]
    if not items or len(tensors) != len(items):
        raise UnsupportedError("ConcatFromSequence needs a sequence of tensors", got=len(items))
    values = [g.value(tensor) for tensor in tensors]
    rank = values[0].shape.rank + (1 if new_axis else 0)
    place = axis_of(axis, rank)
    return g.concat([g.expand_dims(value, (place,)) for value in values] if new_axis else values, place)


@onnx_op("SplitToSequence", since=11)
def split_to_sequence(
    g: Graph, input: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1
) -> Item:
    place = axis_of(axis, input.rank)
    size = input.sizes[place]
    drop = False
    numbers = None if split is None else g.numbers(split, "split")
    if (numbers is None or numbers.ndim == 0) and not isinstance(size, int):
        raise UnsupportedError("SplitToSequence of a size that is not fixed", got=input.shape)
    if isinstance(size, int) and size > 4096:
        raise UnsupportedError("SplitToSequence with too many elements", got=input.shape)
    if numbers is None:
        assert isinstance(size, int)
        parts: list[Size] = [1] * size
        drop = not keepdims
    else:
        if numbers.ndim == 0:
            each = int(numbers)
            assert isinstance(size, int)
            if each < 1:
                raise ShapeError("SplitToSequence: parts must not be empty", got=each)
            parts = [min(each, size - at) for at in range(0, size, each)]
        else:
            parts = [int(n) for n in numbers]
            total = sum(int(n) for n in numbers)
            if (isinstance(size, int) and total != size) or any(int(n) < 0 for n in numbers):
                raise ShapeError("SplitToSequence: the parts do not make up the whole", expected=size, got=parts)
    pieces = [g.item(piece) for piece in split_axis(g, input, place, parts)]
    if drop:
        pieces = [_drop_axis(g, piece, place) for piece in pieces]
    return Sequence(tuple(pieces))


def _drop_axis(g: Graph, piece: Item, axis: int) -> Item:
    assert isinstance(piece, Tensor)
    return Tensor.of(g.reshape(g.value(piece), [n for i, n in enumerate(piece.sizes) if i != axis]))


@onnx_op("SequenceMap", since=17)
def sequence_map(g: Graph, input_sequence: Item, *additional_inputs: Item, body: Any) -> list[Item]:
    first = _sequence(input_sequence)
    columns: list[list[Item]] = [[] for _ in body.output]
    for i, item in enumerate(first.items):
        others = [each.items[i] if isinstance(each, Sequence) else each for each in additional_inputs]
        for column, result in zip(columns, g.inside(body, g.b, [item, *others]), strict=True):
            column.append(result)
    return [Sequence(tuple(column)) for column in columns]


# ---- optionals ----


@onnx_op("Optional", since=15)
def optional(g: Graph, input: Item | None = None, *, type: Any = None) -> Item:
    return Optional() if input is None else input


@onnx_op("OptionalHasElement", since=15)
def optional_has_element(g: Graph, input: Item | None = None) -> Item:
    return Tensor.constant(np.array(input is not None and not isinstance(input, Optional)))


@onnx_op("OptionalGetElement", since=15)
def optional_get_element(g: Graph, input: Item) -> Item:
    if isinstance(input, Optional):
        raise ShapeError("OptionalGetElement of an optional that is empty")
    return input
