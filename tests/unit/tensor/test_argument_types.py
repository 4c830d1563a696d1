"""A Python argument of the wrong type is a TensorError that names the parameter, for the whole tensor API."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.errors import SmeltError
from smelt.tensor.argument_types import has_type, type_text
from smelt.tensor.core import _METHODS, _OPERATORS, Tensor

X = smelt.tensor([[1.0, 2.0], [3.0, 4.0]], "b d")
RIGHT: dict[str, Any] = {
    "other": X, "x": X, "y": X, "axis": "d", "axes": "d", "indices": smelt.tensor([0, 1], "b"), "k": 1, "times": 2,
    "shift": 1, "sizes": [1, 1], "size": 3, "part": X, "starts": {"d": 0}, "into": "z", "shape": "f32[b=2, d=2]",
    "element": "f32", "op": "+", "condition": X > 0, "tensors": [X, X], "kernel": X, "window": {"d": 2}, "updates": X,
    "source": smelt.random.key(1), "over": "d", "value": 0,
}  # fmt: skip
FUNCTIONS = [
    *("outer", "where", "maximum", "minimum", "concatenate", "stack", "full", "zeros", "ones", "arange", "iota"),
    *("symbolic", "from_dlpack", "assume", "while_loop", "cond", "scan", "custom_call", "realize", "shard", "checked"),
    *("instantiate", "compile", "parse"),
]


class Odd:
    """What no op takes."""


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in sorted(_METHODS | _OPERATORS | {"size"}):
        yield f"Tensor.{name}", getattr(Tensor, name)
    for name in FUNCTIONS:
        yield f"smelt.{name}", getattr(smelt, name)
    for module, owner in (("random", smelt.random), ("nn", smelt.nn)):
        for name in sorted(name for name in dir(owner) if name[0].islower()):
            function = getattr(owner, name)
            if inspect.isfunction(function) and function.__module__.startswith(owner.__name__):
                yield f"{module}.{name}", function


API = dict(public_functions())


@pytest.mark.parametrize("name", API)
def test_wrong_types_are_our_errors(name: str) -> None:
    function = API[name]
    parameters = list(inspect.signature(function).parameters.values())
    first = [X] if name.startswith("Tensor.") else []
    parameters = parameters[len(first) :]
    wrongs: list[Any] = [Odd(), X, None, 1.5, [1, "a"], {"a": 1}, b"x", np.zeros(2), ()]
    for wrong in wrongs:
        for chosen in parameters:
            args: list[Any] = list(first)
            keywords: dict[str, Any] = {}
            for each in parameters:
                given = wrong if each is chosen else RIGHT.get(each.name, each.default)
                if each.kind is each.VAR_POSITIONAL:
                    args += [wrong] if each is chosen else []
                elif each.kind is each.VAR_KEYWORD:
                    keywords |= {"d": wrong} if each is chosen else {}
                elif each.kind is each.KEYWORD_ONLY:
                    keywords[each.name] = given
                else:
                    args.append("zz" if given is each.empty else given)
            with suppress(SmeltError):  # any other error fails
                function(*args, **keywords)


def test_the_message_names_the_parameter() -> None:
    with pytest.raises(smelt.TensorError, match="outer: wrong type of argument 'op'") as caught:
        smelt.outer(X, X, "*")  # type: ignore[arg-type]
    assert dict(caught.value.details) == {"expected": "a string", "got": f"a Tensor {X.shape}"}
    assert caught.value.remedy == "outer(op, x, y)"
    assert caught.value.where is not None
    with pytest.raises(smelt.TensorError, match="concatenate: wrong type of argument 'tensors'") as caught:
        smelt.concatenate([X, "b"], "b")  # type: ignore[list-item]
    assert dict(caught.value.details)["expected"] == "a sequence, each a Tensor"


def test_errors_of_the_users_own_code_stay() -> None:
    def body(i: Any, x: Tensor) -> Tensor:
        raise TypeError("of the user")

    with pytest.raises(TypeError, match="of the user"):
        smelt.fori_loop(3, body, X)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        smelt.outer("*", X)  # type: ignore[call-arg]


def test_right_types_are_not_refused() -> None:
    assert has_type(np.int64(3), int)
    assert has_type(3, float)
    assert has_type(np.float32(3), float)
    assert not has_type("3", int)
    assert has_type((1, 2), tuple[int, int])
    assert not has_type((1,), tuple[int, int])
    assert has_type({"a": 1}, dict[str, int])
    assert not has_type({"a": "b"}, dict[str, int])
    for value, right in ((3, True), (None, True), ("3", False)):
        assert has_type(value, int | None) is right
    assert type_text(int | None) == "an integer or None"
