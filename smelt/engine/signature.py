"""An entry function → its `Signature`: the inputs, outputs and weights by name. Every engine calls it."""

from __future__ import annotations

from smelt.engine_api import Port, Signature
from smelt.errors import RunError, UnsupportedError
from smelt.ir.attributes import Int
from smelt.ir.core import Func, Value
from smelt.passes.split_prepare import NAME, WEIGHT
from smelt.shape import Shape


def signature_of(main: Func) -> Signature:
    """Inputs, outputs and weights of an entry. Names come from `smelt.name`, the text or the position."""
    weights: list[Port] = []
    inputs: list[Port] = []
    for i, (arg, attrs) in enumerate(zip(main.args, main.arg_attrs, strict=True)):
        name = str(attrs.get(WEIGHT) or attrs.get(NAME) or arg.name or f"arg{i}")
        (weights if WEIGHT in attrs else inputs).append(Port(name, _tensor(main, arg)))
    outputs = []
    for i, (value, attrs) in enumerate(zip(main.results, main.result_attrs, strict=True)):
        keys = tuple(key.value if isinstance(key, Int) else str(key) for key in attrs.get("smelt.keys", ()))
        labels = tuple(str(label) for label in attrs.get("smelt.labels", ()))
        outputs.append(Port(str(attrs.get(NAME) or f"result{i}"), _tensor(main, value), labels, keys))
    return Signature(tuple(inputs), tuple(outputs), tuple(weights))


def list_donated(signature: Signature, names: tuple[str, ...]) -> frozenset[int]:
    """The numbers of the inputs with these names, which a call may overwrite."""
    known = [port.name for port in signature.inputs]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RunError(
            "only inputs can be donated",
            expected=", ".join(known),
            got=", ".join(unknown),
            remedy="donate= with names of inputs",
        )
    return frozenset(known.index(name) for name in names)


def _tensor(main: Func, value: Value) -> Shape:
    if not isinstance(value.type, Shape):
        raise UnsupportedError(
            f"@{main.name} takes or returns something other than a tensor",
            expected="tensors",
            got=value.type,
            where=main.location,
            remedy="pass the parts of a tuple as arguments of their own",
        )
    return value.type
