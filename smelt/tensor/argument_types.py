"""Python arguments of the wrong type → a TensorError that names the parameter, what it takes and what it got.

`recovery.py` and the public functions call it after an op failed with an error of Python (TypeError, AttributeError).
Only then are arguments compared with the annotations, so a correct call pays nothing. If all arguments have the
annotated types, Python's error is raised.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from numbers import Complex, Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from smelt.dtype import DType
from smelt.shape import Shape
from smelt.tensor.record import HOOKS, is_tensor
from smelt.tensor.source import refuse

F = TypeVar("F", bound=Callable[..., Any])
ERRORS = (TypeError, AttributeError, ValueError, KeyError, IndexError)
_ABSTRACT: dict[type, tuple[type, ...]] = {
    bool: (bool, np.bool_), int: (Integral,), float: (Real,), complex: (Complex,), np.ndarray: (np.ndarray,),
}  # fmt: skip
_SPELLED = {"Any": Any, "Literal": Literal, "Mapping": Mapping, "Number": bool | int | float | complex, "np": np}
_NAMES: dict[Any, str] = {
    bool: "True or False", int: "an integer", float: "a number", complex: "a number", str: "a string", DType: "a DType",
    Shape: "a Shape", np.ndarray: "an array", np.generic: "a NumPy number", type(None): "None",
    Mapping: "a mapping", Sequence: "a sequence", Callable: "a function", tuple: "a tuple", list: "a list",
}  # fmt: skip


def with_argument_errors(function: F) -> F:
    """The function; a wrong type of argument raises a TensorError."""

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except ERRORS:
            check_argument_types(function, args, keywords)
            raise

    return call  # type: ignore[return-value]


def check_argument_types(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Raise a TensorError for the first argument whose type is not the annotated one."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **keywords)
        hints = get_type_hints(function, localns={**_SPELLED, "Tensor": HOOKS.tensor})
    except (TypeError, NameError):  # arguments are missing or too many: Python's own message says so
        return
    for name, given in bound.arguments.items():
        kind = signature.parameters[name].kind
        many = given if kind is inspect.Parameter.VAR_POSITIONAL else [given]
        named = given.items() if kind is inspect.Parameter.VAR_KEYWORD else [(name, each) for each in many]
        for label, value in named:
            if name in hints and not has_type(value, hints[name]):
                refuse(
                    f"{function.__name__}: wrong type of argument {label!r}",
                    details=[("expected", type_text(hints[name])), ("got", _describe(value))],
                    remedy=f"{function.__name__}({_parameters(signature)})",
                )


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type. What cannot be decided counts as right."""
    if isinstance(hint, TypeVar):
        hint = hint.__bound__ or Any
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(has_type(value, each) for each in inner)
    if origin is Literal:
        return isinstance(value, str | int) and value in inner
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and (not inner or all(has_type(each, inner[1]) for each in value.values()))
    if Callable in (origin, hint):
        return callable(value)
    if isinstance(origin, type) and issubclass(origin, Iterable) and origin is not np.ndarray:
        if not isinstance(value, origin) or isinstance(value, str | bytes | Mapping) or is_tensor(value):
            return False
        if isinstance(value, tuple) and ... not in inner and origin is tuple and len(value) != len(inner):
            return False
        return all(has_type(each, inner[0]) for each in value) if isinstance(value, list | tuple) and inner else True
    found = origin if isinstance(origin, type) else hint
    if not isinstance(found, type) or getattr(found, "_is_protocol", False):
        return True
    return isinstance(value, _ABSTRACT.get(found, (found,)))


def type_text(hint: Any) -> str:
    """An annotated type in words."""
    if isinstance(hint, TypeVar):
        hint = hint.__bound__ or Any
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        names = dict.fromkeys(type_text(each) for each in inner)
        return " or ".join(names)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    for each, name in _NAMES.items():
        if each in (hint, origin):
            parts = f", each {type_text(inner[0])}" if each is Sequence and inner and inner[0] is not Any else ""
            return name + parts
    return f"a {getattr(hint, '__name__', str(hint))}"


def _describe(value: Any) -> str:
    if is_tensor(value):
        return f"a Tensor {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:40] + '…'}"


def _parameters(signature: inspect.Signature) -> str:
    """The parameters of a call, without `self`."""
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown = [
        f"{marks.get(each.kind, '')}{name}" + ("" if each.default is each.empty else f"={each.default!r}")
        for name, each in signature.parameters.items()
        if name != "self"
    ]
    return ", ".join(shown)
