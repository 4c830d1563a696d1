"""Shapes, signatures and entries ↔ JSON, for the manifest of a bundle.

`write` calls the functions named `*_record`, `run.load` their inverses. A malformed record raises ValueError,
TypeError, KeyError or a SmeltError; `run.load` turns them into one error about the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from smelt.device.entry import DataCheck, Entry, SizeCheck
from smelt.dtype import Array, DType, ElementType, Quantized, dtype
from smelt.engine_api import KernelUse, Port, Signature
from smelt.errors import Location
from smelt.shape import Shape
from smelt.size import Poly, Size, parse_size

Record = Any  # a JSON value


def shape_record(shape: Shape) -> Record:
    sizes = [str(size) if isinstance(size, Poly) else size for size in shape.sizes]
    return [_element_record(shape.dtype), sizes, *([list(shape.bounds)] if shape.bounds else [])]


def shape_of(record: Record) -> Shape:
    element, sizes, *more = record
    bounds = tuple(None if bound is None else number(bound) for bound in more[0]) if more else None
    return Shape.of(_element_of(element), tuple(map(_size, sizes)), None, bounds)


def signature_record(signature: Signature) -> Record:
    groups = (signature.inputs, signature.outputs, signature.weights)
    return [[_port_record(port) for port in ports] for ports in groups]


def signature_of(record: Record) -> Signature:
    inputs, outputs, weights = (tuple(map(_port_of, ports)) for ports in record)
    return Signature(inputs, outputs, weights)


def entry_record(entry: Entry) -> Record:
    return {
        "name": entry.name,
        "arguments": [shape_record(shape) for shape in entry.arguments],
        "results": [shape_record(shape) for shape in entry.results],
        "symbols": list(entry.symbols),
        "names": list(entry.names),
        "sizes": [[check.expected, check.why] for check in entry.sizes],
        "data": [[check.message, check.of_sizes, _place_record(check.where)] for check in entry.data],
        "donated": list(entry.donated),
        "reused": [list(pair) for pair in entry.reused],
    }


def entry_of(record: Record) -> Entry:
    entry = Entry(
        text(record["name"]),
        tuple(map(shape_of, record["arguments"])),
        tuple(map(shape_of, record["results"])),
        texts(record["symbols"]),
        texts(record["names"]),
        tuple(SizeCheck(text(expected), text(why)) for expected, why in record["sizes"]),
        tuple(DataCheck(text(message), bool(late), _place_of(where)) for message, late, where in record["data"]),
        numbers(record.get("donated", [])),
        tuple(_pair(each) for each in record.get("reused", [])),
    )
    known = set().union(*(shape.symbols for shape in entry.arguments))
    if len(entry.names) != len(entry.arguments) or not set(entry.symbols) <= known:
        raise ValueError(f"the entry {entry.name} is inconsistent")
    if not set(entry.donated) <= set(range(len(entry.arguments))) or not all(
        result < len(entry.results) and given in entry.donated and entry.results[result] == entry.arguments[given]
        for result, given in entry.reused
    ):
        raise ValueError(f"the entry {entry.name} reuses an argument that is not donated")
    if any(len(set(each)) < len(entry.reused) for each in zip(*entry.reused, strict=True)):
        raise ValueError(f"the entry {entry.name} reuses an argument twice")
    return entry


def _pair(given: Any) -> tuple[int, int]:
    first, second = numbers(given)
    return first, second


def kernels_record(kernels: tuple[KernelUse, ...]) -> Record:
    return [[use.kind, list(use.ops), use.count] for use in kernels]


def kernels_of(record: Record) -> tuple[KernelUse, ...]:
    return tuple(KernelUse(text(kind), texts(ops), number(count)) for kind, ops, count in record)


def target_record(about: Mapping[str, Any]) -> Record:
    """A target as data. Machine and features stand apart: bundles had nothing else before."""
    rest = {name: value for name, value in about.items() if name not in ("name", "features")}
    return {"machine": about["name"], "features": list(about["features"]), "about": rest}


def target_of(record: Record) -> dict[str, Any]:
    about = {text(name): value for name, value in record.get("about", {}).items()}
    known = {"name": text(record["machine"]), "features": texts(record["features"])}
    return {**about, "device": text(about.get("device", "cpu")), **known}


def value_record(array: Array) -> Record:
    """A small array, such as the value of a compile-time input."""
    ordered = np.ascontiguousarray(array)
    return [dtype(array.dtype).name, list(array.shape), ordered.tobytes().hex()]


def value_of(record: Record) -> Array:
    name, sizes, data = record
    array: Array = np.frombuffer(bytes.fromhex(data), dtype(text(name)).numpy)
    return array.reshape([number(size) for size in sizes])


def text(value: Record) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {value!r}")
    return value


def texts(values: Record) -> tuple[str, ...]:
    return tuple(map(text, values))


def numbers(values: Record) -> tuple[int, ...]:
    return tuple(map(number, values))


def pairs(values: Record) -> dict[str, str]:
    return {text(name): text(value) for name, value in values.items()}


def number(value: Record) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise TypeError(f"a number of at least 0 expected, not {value!r}")
    return value


def _size(value: Record) -> Size:
    return parse_size(value) if isinstance(value, str) else number(value)


def _port_record(port: Port) -> Record:
    return [port.name, shape_record(port.shape), list(port.labels), list(port.keys)]


def _port_of(record: Record) -> Port:
    name, shape, labels, keys = record
    return Port(
        text(name), shape_of(shape), texts(labels), tuple(key if type(key) is int else text(key) for key in keys)
    )


def _place_record(where: Location | None) -> Record:
    return None if where is None else [where.path, where.line, where.column, where.name]


def _place_of(record: Record) -> Location | None:
    if record is None:
        return None
    path, line, column, name = record
    return Location(text(path), number(line), number(column), text(name))


def _element_record(element: ElementType) -> Record:
    if isinstance(element, DType):
        return element.name
    fields = (element.storage.name, element.expressed.name, list(element.scales), list(element.zero_points))
    return [*fields, element.axis, element.storage_min, element.storage_max]


def _element_of(record: Record) -> ElementType:
    if isinstance(record, str):
        return dtype(record)
    storage, expressed, scales, zeros, axis, least, most = record
    types = dtype(text(storage)), dtype(text(expressed))
    numbers = tuple(map(float, scales)), tuple(map(int, zeros))
    return Quantized(*types, *numbers, None if axis is None else int(axis), int(least), int(most))
