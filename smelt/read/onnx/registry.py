"""The operators that can be read, each a function whose signature is its schema's.

`@onnx_op("Softmax", since=13)` registers a version. Positional parameters are inputs, in order; their annotations say
what must be known about each at import: `Value` nothing, `Tensor` nothing but it may be looked at, `Sizes` its elements
up to symbols, `Ints` and `Array` its elements as numbers, `Item` it may be no tensor. Keyword-only ones are attributes,
whose values must have the annotated types; `**attributes: Unpack[…]` are those of a TypedDict, none of them required.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, get_args

from smelt.dim import Size

Sizes: TypeAlias = tuple[Size, ...]
Ints: TypeAlias = tuple[int, ...]

_KINDS = ("Value", "Tensor", "Sizes", "Ints", "Array", "Item")
REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Input:
    """One input of an operator: its name, what must be known about it, and whether it may be absent."""

    name: str
    kind: str
    optional: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One version of an operator."""

    name: str
    since: int
    function: Callable[..., Any]
    inputs: tuple[Input, ...]
    variadic: Input | None
    attributes: dict[str, Any]  # name → default
    parameters: dict[str, str]  # name → the parameter it is passed as: `split_` where `split` is an input too
    types: dict[str, str]  # attribute → its annotation
    ranks: dict[str, tuple[int, int | None]]  # input → the least and the greatest rank
    single: frozenset[str]  # inputs of one element


ROWS: dict[tuple[str, str], list[Row]] = {}
_F = TypeVar("_F", bound=Callable[..., Any])


def onnx_op(
    name: str,
    since: int = 1,
    domain: str = "",
    *,
    ranks: Mapping[str, str] = MappingProxyType({}),
    single: Collection[str] = (),
) -> Callable[[_F], _F]:
    """Register a version of an operator.

    `ranks`: the ranks that inputs may have, as "4", "2+" or "1-2". `single`: inputs that hold one element. Both are
    checked before the function is called.
    """

    def register(function: _F) -> _F:
        rows = ROWS.setdefault((domain, name), [])
        bounds = {each: _bounds(text) for each, text in ranks.items()}
        row = _row(name, since, function, bounds, frozenset(single))
        assert {*bounds, *single} <= {each.name for each in row.inputs}, f"{name}: no such input"
        rows.append(row)
        rows.sort(key=lambda row: -row.since)
        return function

    return register


def find(domain: str, name: str, version: int) -> Row | None:
    """The newest version of an operator that a model of this opset may mean."""
    for row in ROWS.get((domain, name), ()):
        if row.since <= version:
            return row
    return None


def _bounds(text: str) -> tuple[int, int | None]:
    if text.endswith("+"):
        return int(text[:-1]), None
    least, _, most = text.partition("-")
    return int(least), int(most or least)


def _row(
    name: str,
    since: int,
    function: Callable[..., Any],
    ranks: dict[str, tuple[int, int | None]],
    single: frozenset[str],
) -> Row:
    inputs: list[Input] = []
    variadic = None
    attributes: dict[str, Any] = {}
    parameters: dict[str, str] = {}
    types: dict[str, str] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY:
            attributes[parameter.name.rstrip("_")] = parameter.default
            parameters[parameter.name.rstrip("_")] = parameter.name
            types[parameter.name.rstrip("_")] = str(parameter.annotation)
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            (group,) = get_args(eval(parameter.annotation, function.__globals__))
            attributes |= dict.fromkeys(group.__annotations__)
            parameters |= {each: each for each in group.__annotations__}
            types |= {each: str(getattr(hint, "__forward_arg__", hint)) for each, hint in group.__annotations__.items()}
            continue
        kind = str(parameter.annotation).removesuffix(" | None")
        assert kind in _KINDS, f"{name}: {parameter.name} is annotated {parameter.annotation}"
        found = Input(parameter.name, kind, parameter.default is not REQUIRED)
        if parameter.kind is parameter.VAR_POSITIONAL:
            variadic = found
        else:
            inputs.append(found)
    types = {each: hint.removesuffix(" | None") for each, hint in types.items()}
    return Row(name, since, function, tuple(inputs), variadic, attributes, parameters, types, ranks, single)
