"""The body of an inference request → its JSON as a struct, and its arrays.

Clients repeat the same JSON with other numbers. `Templates` remember its structure, so that only numbers are parsed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from smelt.client.wire import NUMPY
from smelt.device.numbers import MOST_ARRAYS, PLACE, cut_arrays, read_array
from smelt.dtype import Array
from smelt.serve.http import read_json
from smelt.serve.problems import RequestError
from smelt.serve.shared_memory import REGION, Regions
from smelt.serve.tensors import from_bytes, from_json, narrow, read_tensor

MOST_TENSORS = MOST_ARRAYS  # of a request: each costs time, however small it is
FEW = msgspec.Meta(max_length=MOST_TENSORS)
MOST_TEMPLATES = 256
MOST_DIGITS = 18  # of a length
LONGEST_TEMPLATE = 4096  # bytes of the JSON without its arrays
Parsed = tuple["InferRequest", dict[str, Array]]


class TensorIn(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw()


class TensorOut(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class InferRequest(msgspec.Struct):
    inputs: Annotated[list[TensorIn], FEW]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: Annotated[list[TensorOut], FEW] = []


_INFER = msgspec.json.Decoder(InferRequest)


def parse(
    body: bytes,
    header_length: bytes | None,
    most: int,
    regions: Regions | None = None,
    templates: Templates | None = None,
) -> tuple[InferRequest, dict[str, Array]]:
    """A request and its arrays. With a header length the JSON comes first and raw tensors follow it."""
    known = None if templates is None else templates.read(body, header_length)
    if known is not None:
        return known
    head, raw = body, memoryview(b"")
    if header_length is not None:
        at = _read_length(header_length)
        if not 0 <= at <= len(body):
            raise RequestError(
                "Inference-Header-Content-Length does not fit the body",
                expected=f"0 to {len(body)}",
                got=header_length.decode("latin-1")[:40],
            )
        head, raw = body[:at], memoryview(body)[at:]  # what is remembered of the JSON does not keep the tensors
    else:
        quick = _parse_numbers(body, most)
        if quick is not None:
            if templates is not None:
                templates.learn_text(*quick)
            return quick[:2]
    asked = read_json(_INFER, head, "the request")
    inputs: dict[str, Array] = {}
    taken = 0  # of shared memory
    for tensor in asked.inputs:
        if tensor.name in inputs:
            raise RequestError(f"the input {tensor.name!r} comes twice")
        size = tensor.parameters.get("binary_data_size")
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(raw):
                raise RequestError(
                    f"{tensor.name}: binary_data_size does not fit the body",
                    expected=f"0 to {len(raw)} bytes",
                    got=repr(size)[:40],
                )
            inputs[tensor.name] = from_bytes(tensor.name, tensor.datatype, tensor.shape, raw[:size], most)
            raw = raw[size:]
        elif regions is not None and REGION in tensor.parameters:
            shared = regions.read(tensor.name, tensor.parameters, taken)
            taken += len(shared)
            inputs[tensor.name] = from_bytes(tensor.name, tensor.datatype, tensor.shape, shared, most)
        elif data := bytes(tensor.data):
            inputs[tensor.name] = from_json(tensor.name, tensor.datatype, tensor.shape, data, most)
        else:
            raise RequestError(f"{tensor.name}: there is no data", expected="data, or binary_data_size")
    if len(raw):
        raise RequestError("bytes are left over after the last tensor", got=f"{len(raw)} bytes")
    if templates is not None and header_length is not None:
        templates.learn_binary(head, asked)
    return asked, inputs


def _read_length(text: bytes) -> int:
    """-1: it is none. Python refuses to read very long numbers, and takes signs, spaces and underscores."""
    return int(text) if text.isdigit() and len(text) <= MOST_DIGITS else -1


def _parse_numbers(body: bytes, most: int) -> tuple[InferRequest, dict[str, Array], list[bytes]] | None:
    """A request whose inputs are all arrays of numbers, read in one pass, and the texts around them; None: the general
    reader is needed."""
    text, arrays = cut_arrays(body, b'"data"')
    if not arrays:
        return None
    try:
        asked = _INFER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(asked.inputs) != len(arrays):
        return None
    inputs: dict[str, Array] = {}
    texts: list[bytes] = []
    done = 0
    for i, (tensor, data) in enumerate(zip(asked.inputs, arrays, strict=True)):
        if tensor.parameters or bytes(tensor.data) != PLACE % i or tensor.name in inputs:
            return None
        found = read_tensor(tensor.name, tensor.datatype, tensor.shape, data, most)
        if found is None:
            return None
        inputs[tensor.name] = found
        place = PLACE % i
        at = text.index(place, done)
        texts.append(text[done:at])
        done = at + len(place)
    return asked, inputs, [*texts, text[done:]]


class ArrayTemplate(NamedTuple):
    """An array in JSON: the text before it, and what its numbers are."""

    before: bytes
    name: str
    kind: str
    numpy: np.dtype[Any]
    is_integer: bool
    size: int
    shape: tuple[int, ...]


class TextTemplate(NamedTuple):
    """A request in JSON without its numbers."""

    asked: InferRequest
    arrays: Sequence[ArrayTemplate]
    after: bytes

    def read(self, body: bytes) -> Parsed | None:
        """A body that differs from the template in its numbers alone."""
        arrays: list[Array] = []
        at = 0
        for template in self.arrays:
            before, is_integer, size = template.before, template.is_integer, template.size
            found = read_array(body, at + len(before), size, is_integer) if body.startswith(before, at) else None
            if found is None:
                return None
            made, at = found
            arrays.append(made)
        if body[at:] != self.after:
            return None  # also where numbers do not fit the types, which may come after them
        inputs: dict[str, Array] = {}
        for (_, name, kind, numpy, _, _, shape), made in zip(self.arrays, arrays, strict=True):
            inputs[name] = (made if made.dtype is numpy else narrow(name, kind, made, numpy)).reshape(shape)
        return self.asked, inputs


class BinaryTemplate(NamedTuple):
    """The JSON of a request whose tensors follow it."""

    asked: InferRequest
    size: int  # of the tensors, in bytes
    tensors: Sequence[tuple[str, np.dtype[Any], int, int, tuple[int, ...]]]  # name, type, elements, offset, shape

    def read(self, body: bytes, start: int) -> Parsed | None:
        if len(body) - start != self.size:
            return None
        return self.asked, {
            name: np.frombuffer(body, numpy, count, start + offset).reshape(shape)
            for name, numpy, count, offset, shape in self.tensors
        }


class Templates:
    """What was read before. Clients choose the texts: their number and lengths are limited."""

    def __init__(self) -> None:
        self._texts: dict[bytes, TextTemplate] = {}  # by what is before the first array
        self._binary: dict[bytes, BinaryTemplate] = {}  # by all of the JSON

    def read(self, body: bytes, header_length: bytes | None) -> Parsed | None:
        if header_length is None:
            text = self._texts.get(body[: body.find(b"[", body.find(b'"data"'))])
            return None if text is None else text.read(body)
        start = _read_length(header_length)
        binary = self._binary.get(body[:start]) if start >= 0 else None
        return None if binary is None else binary.read(body, start)

    def learn_text(self, asked: InferRequest, inputs: Mapping[str, Array], texts: Sequence[bytes]) -> None:
        if sum(map(len, texts)) > LONGEST_TEMPLATE:
            return
        arrays = []
        for tensor, before, array in zip(asked.inputs, texts[:-1], inputs.values(), strict=True):
            numpy = NUMPY[tensor.datatype]
            is_integer = numpy.kind in "iu"
            arrays.append(
                ArrayTemplate(before, tensor.name, tensor.datatype, numpy, is_integer, array.size, array.shape)
            )
        _remember(self._texts, texts[0], TextTemplate(asked, arrays, texts[-1]))

    def learn_binary(self, text: bytes, asked: InferRequest) -> None:
        tensors, offset = [], 0
        for tensor in asked.inputs:
            size, numpy, shape = (
                tensor.parameters.get("binary_data_size"),
                NUMPY.get(tensor.datatype),
                tuple(tensor.shape),
            )
            if not size or numpy is None or numpy.kind == "b":  # strings and booleans are looked at
                return
            tensors.append((tensor.name, numpy, prod(shape), offset, shape))
            offset += size
        if len(text) <= LONGEST_TEMPLATE:
            _remember(self._binary, text, BinaryTemplate(asked, offset, tensors))


def _remember(known: dict[bytes, Any], text: bytes, template: Any) -> None:
    if len(known) >= MOST_TEMPLATES:
        known.clear()
    known[text] = template
