"""Structure of programs without names and locations: equality, the first difference, a fingerprint, and keys for CSE.

Values are numbered in the order in which they are defined; value names and locations are ignored, sizes and attributes
compare exactly, constants by digest. Everything is iterative and linear in the number of ops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

from smelt.dtype import DType, Quantized
from smelt.frozen import Frozen
from smelt.ir.attributes import Constant, Dict
from smelt.ir.core import Attrs, Func, Op, Program, Region, Value
from smelt.shape import Shape

Number = Callable[[Value], int]


class Item(NamedTuple):
    """One thing that a program says, and a description of where it says it."""

    key: Hashable
    place: str
    op: Op | None = None


def same(a: Program | Func, b: Program | Func) -> bool:
    """Whether two programs, or two functions, say the same. Functions of different names may."""
    return all(x is not None and y is not None and x.key == y.key for x, y in zip_longest(_items(a), _items(b)))


def difference(a: Program | Func, b: Program | Func) -> str | None:
    """The first difference of two programs, or None."""
    for x, y in zip_longest(_items(a), _items(b)):
        if x is None or y is None or x.key != y.key:
            return "\n".join(_describe(side, item) for side, item in (("first ", x), ("second", y)))
    return None


def fingerprint(what: Program | Func) -> bytes:
    """A digest that equal programs share, in every process and on every machine."""
    digest = hashlib.blake2b(digest_size=32)
    for item in _items(what):
        digest.update(repr(item.key).encode())
        digest.update(b"\n")
    return digest.digest()


def op_key(op: Op, number: Number) -> Hashable:
    """Two ops with equal keys compute the same, if `number` gives equal values equal numbers."""
    inside: tuple[Hashable, ...] = ()
    if op.regions:
        numbering = _Numbering(number)
        inside = tuple(item.key for region in op.regions for item in _region(region, "", numbering))
    types = tuple(key_of(value.type) for value in op.results)
    return op.name, tuple(map(number, op.operands)), attrs_key(op.attrs), types, inside


def attrs_key(attrs: Attrs) -> Hashable:
    """Attributes by value, whatever their order."""
    return tuple((name, key_of(attrs[name])) for name in sorted(attrs))


def key_of(value: Any) -> Hashable:
    """A type or an attribute's value as nested tuples of texts: comparable, hashable, with a stable `repr`."""
    match value:
        case Shape():
            return _shape_key(value)
        case Constant():
            return ("constant", value.digest.hex())
        case DType() | Quantized():
            return ("element", str(value))
        case Dict():
            return ("dict", tuple(sorted((name, key_of(item)) for name, item in value.items)))
        case tuple() | list():
            return ("tuple", tuple(key_of(item) for item in value))
        case Mapping():
            return ("dict", tuple(sorted((str(name), key_of(item)) for name, item in value.items())))
        case str() | int() | float() | complex() | None:
            return (type(value).__name__, repr(value))
    if isinstance(value, Frozen):
        return (type(value).__name__, *(key_of(each) for each in value.record().values()))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(key_of(getattr(value, each.name)) for each in fields(value)))
    return (type(value).__name__, repr(value))


@lru_cache(4096)
def _shape_key(shape: Shape) -> Hashable:
    return ("shape", repr(shape), shape.bounds)


class _Numbering:
    """Values defined inside are numbered from 0; values from outside keep the number `outside` gives them."""

    def __init__(self, outside: Number | None = None) -> None:
        self.inside: dict[Value, int] = {}
        self.outside = outside

    def define(self, value: Value) -> None:
        self.inside[value] = len(self.inside)

    def use(self, value: Value) -> Hashable:
        number = self.inside.get(value)
        if number is not None:
            return number
        return ("outside", self.outside(value)) if self.outside is not None else ("undefined", key_of(value.type))


def _items(what: Program | Func) -> Iterator[Item]:
    if isinstance(what, Func):
        yield from _func(what)
        return
    yield Item(("module", what.name, attrs_key(what.attrs)), "the module")
    for op in what.declarations:
        yield Item(("declaration", op.name, attrs_key(op.attrs)), f"the declaration {op.name}", op)
    for name, func in what.funcs.items():
        yield Item(("func", name, func.name, func.visibility), f"@{name}")
        yield from _func(func)


def _func(func: Func) -> Iterator[Item]:
    attrs = tuple(tuple(map(attrs_key, each)) for each in (func.arg_attrs, func.result_attrs))
    yield Item(("attributes", attrs, attrs_key(func.attrs)), f"@{func.name}")
    yield from _region(func.body, f"@{func.name}", _Numbering())


def _region(region: Region, place: str, numbering: _Numbering) -> Iterator[Item]:
    """What a region says, op by op; an op comes before its regions, and its results are numbered after them."""
    stack: list[tuple[Region, Iterator[Op], Op | None]] = []

    def enter(inner: Region, owner: Op | None) -> Item:
        for arg in inner.args:
            numbering.define(arg)
        stack.append((inner, iter(inner.ops), owner))
        return Item(("region", tuple(key_of(arg.type) for arg in inner.args)), place, owner)

    waiting: list[tuple[Op, Iterator[Region]]] = []
    yield enter(region, None)
    while stack:
        current, ops, owner = stack[-1]
        if waiting and waiting[-1][0] is not owner:  # an op of this region whose regions are not all done
            op, regions = waiting[-1]
            inner = next(regions, None)
            if inner is not None:
                yield enter(inner, op)
                continue
            waiting.pop()
            for value in op.results:
                numbering.define(value)
        following = next(ops, None)
        if following is None:
            yield Item(("return", tuple(map(numbering.use, current.results))), place, owner)
            stack.pop()
            continue
        operands = tuple(map(numbering.use, following.operands))
        types = tuple(key_of(value.type) for value in following.results)
        yield Item(
            (following.name, operands, attrs_key(following.attrs), types, len(following.regions)), place, following
        )
        if following.regions:
            waiting.append((following, iter(following.regions)))
        else:
            for value in following.results:
                numbering.define(value)


def _describe(side: str, item: Item | None) -> str:
    if item is None:
        return f"{side}: nothing more"
    where = f" at {item.op.location}" if item.op is not None and item.op.location is not None else ""
    return f"{side}: {item.place}{where}: {item.key}"
