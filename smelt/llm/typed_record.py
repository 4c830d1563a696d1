"""Frozen dataclasses ↔ JSON, by their annotations. A record that does not fit raises ValueError: files say anything."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from smelt.dtype import DTYPES, DType

T = TypeVar("T")


def to_record(value: Any) -> Any:
    """A dataclass of numbers, texts, tuples and dataclasses as JSON."""
    if is_dataclass(value) and not isinstance(value, DType):
        return {each.name: to_record(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, DType):
        return value.name
    return [to_record(each) for each in value] if isinstance(value, tuple) else value


def from_record(kind: type[T], record: Any) -> T:
    """The dataclass that `to_record` made a record of."""
    return _read(kind, record, kind.__name__)  # type: ignore[no-any-return]


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, record: Any, where: str) -> Any:
    if isinstance(kind, types.UnionType):
        inner = [each for each in get_args(kind) if each is not type(None)]
        return None if record is None and len(inner) < len(get_args(kind)) else _read(inner[0], record, where)
    if get_origin(kind) is tuple:
        if not isinstance(record, list):
            raise ValueError(f"{where} is no list")
        return tuple(_read(get_args(kind)[0], each, where) for each in record)
    if kind is DType:
        if not isinstance(record, str) or record not in DTYPES:
            raise ValueError(f"{where} is no element type")
        return DTYPES[record]
    if is_dataclass(kind):
        hints = _hints(kind)  # type: ignore[arg-type]
        if not isinstance(record, Mapping) or record.keys() != hints.keys():
            raise ValueError(f"{where} is no record of {', '.join(hints)}")
        made: Any = kind
        return made(**{name: _read(hints[name], record[name], f"{where}.{name}") for name in hints})
    if kind is float and type(record) in (int, float) and abs(record) <= sys.float_info.max:
        return float(record)
    if kind is float or type(record) is not kind:
        raise ValueError(f"{where} is no {kind.__name__}: {record!r}"[:200])
    return record
