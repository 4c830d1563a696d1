"""The steps of a pipeline: Python functions with declared shapes, and models by name.

    @step(image="ui8[B, 8, 8]", returns={"pixels": "f32[B, 64]"})
    def prepare(image):
        return image.reshape(len(image), 64) / np.float32(16)

    PIPELINE = [prepare, "digits", use("other", inputs={"x": "probabilities"})]

Sizes are numbers, symbols, or expressions of symbols; `str[B]` is a tensor of strings. Values have names, and a step
takes the values that its parameters name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smelt.errors import ShapeError
from smelt.shape import Shape

_TEXT = re.compile(r"\s*(\w+)\s*\[(.*)\]\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Value:
    """What a value looks like. Of strings the shape's element type says nothing."""

    shape: Shape
    strings: bool = False

    def __str__(self) -> str:
        return f"str[{', '.join(map(str, self.shape.sizes))}]" if self.strings else str(self.shape)


def parse_value(text: str) -> Value:
    """`f32[B, 3, 2*H]` or `str[B]`."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ShapeError(
            "no shape", expected="an element type and sizes, e.g. f32[B, 64]", got=text, remedy='@step(x="f32[B, 64]")'
        )
    sizes = [part.strip() for part in found[2].split(",")] if found[2].strip() else []
    strings = found[1] == "str"
    return Value(Shape("i32" if strings else found[1], *(int(s) if s.isdecimal() else s for s in sizes)), strings)


@dataclass(frozen=True, slots=True)
class PythonStep:
    """A function on arrays. `inputs` and `outputs` are its parameters and results."""

    name: str
    function: Callable[..., Any]
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


@dataclass(frozen=True, slots=True)
class ModelStep:
    """A model of the server. `inputs`: its input → the value to take; `outputs`: its output → the value to give."""

    name: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


def step(*, returns: Mapping[str, str], **inputs: str) -> Callable[[Callable[..., Any]], PythonStep]:
    """Declare what a function takes and gives. It gets arrays by name and returns an array, or several by name."""

    def declare(function: Callable[..., Any]) -> PythonStep:
        takes, gives = ({name: parse_value(text) for name, text in side.items()} for side in (inputs, returns))
        if not gives:
            raise ShapeError(f"{function.__name__} returns nothing", remedy='returns={"name": "f32[B, 64]"}')
        return PythonStep(function.__name__, function, takes, gives)

    return declare


def use(model: str, *, inputs: Mapping[str, str] = {}, outputs: Mapping[str, str] = {}) -> ModelStep:
    """A model as a step, with other names for its inputs and outputs."""
    return ModelStep(model, dict(inputs), dict(outputs))
