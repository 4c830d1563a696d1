"""What a program takes and gives, by name: read off the entry's arguments and results."""

from __future__ import annotations

from smelt.engine_api import Port, Signature
from smelt.errors import UnsupportedError
from smelt.ir.core import Func, Value
from smelt.passes.split_prepare import NAME, WEIGHT
from smelt.shape import Shape


def signature_of(main: Func) -> Signature:
    """Inputs, outputs and weights of an entry. Names come from `smelt.name`, else from the text, else from the position."""
    weights, inputs = [], []
    for i, (arg, attrs) in enumerate(zip(main.args, main.arg_attrs, strict=True)):
        name = str(attrs.get(WEIGHT) or attrs.get(NAME) or arg.name or f"arg{i}")
        (weights if WEIGHT in attrs else inputs).append(Port(name, _tensor(main, arg)))
    outputs = [
        Port(str(attrs.get(NAME) or f"result{i}"), _tensor(main, value))
        for i, (value, attrs) in enumerate(zip(main.results, main.result_attrs, strict=True))
    ]
    return Signature(tuple(inputs), tuple(outputs), tuple(weights))


def _tensor(main: Func, value: Value) -> Shape:
    if not isinstance(value.type, Shape):
        raise UnsupportedError(f"@{main.name} takes or gives something that is no tensor", got=value.type, where=main.location)
    return value.type
