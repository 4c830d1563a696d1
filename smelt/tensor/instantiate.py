"""`instantiate`: a model's class and a checkpoint → the model, with tensors that have shapes and no data.

Only the checkpoint's header is read. Every tensor is checked against what the model declares, and all that does not fit
is said in one report. `compile` takes the model's methods, `weights.to_device(model, platform)` brings its data.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from smelt.dim import Size, substitute, symbols
from smelt.errors import ShapeError, SmeltError
from smelt.shape import Shape
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.model import Model, Parameter, build, make, parameters_of
from smelt.tensor.record import Leaf, tensor_of
from smelt.tensor.shaped import annotations_of, spec_of
from smelt.weights import Weights

M = TypeVar("M")
SHOWN = 40  # mistakes in one report


@with_argument_errors
def instantiate(model: type[M], weights: Weights, prefix: str = "", *, strict: bool = False, **config: Any) -> M:
    """A model of tensors whose shapes are those in a file: `smelt.instantiate(MLP, smelt.open("mlp.safetensors"))`.

    Field paths are the names of weights, after `prefix`. Parameters of the class, or of its constructor, come
    from `config`, else from the `config.json` beside the file, else from the file's metadata; the number of layers of
    a list comes from the file's names. With `strict`, tensors under the prefix that the model does not declare are
    mistakes.

    >>> import numpy as np
    >>> from smelt.tensor import nn
    >>> class Words(Model):
    ...     table: nn.Embedding = nn.Embedding(v="V", d=3)
    >>> instantiate(Words, Weights.of({"text.table.weight": np.ones((5, 3), np.float32)}), "text")
    Words(table=Embedding(weight=f32[v=5, d=3]))
    """
    start = f"{prefix}." if prefix and not prefix.endswith(".") else prefix
    names = [name.removeprefix(start) for name in weights if name.startswith(start)]
    made = make(model, _read_configuration(model, weights, config), names)
    parameters = parameters_of(made)
    report = _Report(model.__name__, weights, start)
    found = {path: report.check(parameter) for path, parameter in parameters.items()}
    report.check_formulas()
    if strict:
        report.check_rest(names, [path for each in parameters.values() for path in each.paths])
    report.raise_mistakes()
    tensors = {
        path: tensor_of(Leaf(Shape.of(shape.dtype, shape.sizes), name=name), parameters[path].shape.names)
        for path, placed in found.items()
        if placed is not None
        for name, shape in (placed,)
    }
    result: M = build(made, tensors)
    return result


# ---- configuration ----


def _read_configuration(model: type, weights: Weights, given: Mapping[str, Any]) -> dict[str, Any]:
    """The user's configuration, then the files', as far as the model has such parameters."""
    wanted = _find_wanted(model)
    unknown = [name for name in given if name not in wanted and not wanted.anything]
    if unknown:
        near = get_close_matches(unknown[0], [*wanted.names, *wanted.sizes], 1)
        raise SmeltError(
            f"{model.__name__} takes no {', '.join(unknown)}",
            expected=", ".join([*wanted.names, *sorted(wanted.sizes)]) or "no configuration",
            got=", ".join(unknown),
            remedy=f"did you mean {near[0]}?" if near else None,
        )
    found = {
        name: _parse_metadata(text, wanted.names[name])
        for name, text in weights.metadata.items()
        if name in wanted.names
    }
    found |= {name: value for name, value in weights.config.items() if name in wanted.names}
    return {**found, **given}


@dataclass(slots=True)
class _Wanted:
    """The configuration parameters of a model with their annotations, and the symbols of its shapes."""

    names: dict[str, Any] = field(default_factory=dict)
    sizes: set[str] = field(default_factory=set)
    anything: bool = False

    def __contains__(self, name: str) -> bool:
        return name in self.names or name in self.sizes


def _find_wanted(model: type) -> _Wanted:
    wanted = _Wanted()
    _add(model, wanted, ())
    return wanted


def _add(model: type, wanted: _Wanted, within: tuple[type, ...]) -> None:
    """The constructor's parameters of a class that has one of its own, else its fields; likewise for its layers."""
    if model in within or model.__module__ == "builtins":
        return
    own = model.__init__ not in (object.__init__, Model.__init__) and not hasattr(model, "__dataclass_fields__")  # type: ignore[misc]
    if own:
        for name, parameter in inspect.signature(model).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                wanted.anything = wanted.anything or not within
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                hint = annotations_of(model.__init__).get(name, parameter.annotation)  # type: ignore[misc]
                wanted.names.setdefault(name, hint)
        return
    for name, hint in annotations_of(model).items():
        spec = spec_of(hint)
        if spec is not None:
            wanted.sizes |= spec.shape.symbols
            continue
        layers: list[Any] = [each for each in _classes(hint) if annotations_of(each) or issubclass(each, Model)]
        for layer in layers:
            _add(layer, wanted, (*within, model))
        if not layers or hint not in layers:
            wanted.names.setdefault(name, hint)


def _classes(hint: Any) -> Iterable[type]:
    """The classes of our users in an annotation: of a layer, or of the items of a list."""
    if isinstance(hint, type) and not get_args(hint):
        return [hint] if hint.__module__ not in ("builtins", "typing", "collections.abc") else []
    return [found for part in get_args(hint) for found in _classes(part)]


def _parse_metadata(text: str, hint: Any) -> Any:
    """A value from a file's metadata, which holds nothing but text."""
    if hint is str:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


# ---- checking ----


@dataclass(slots=True)
class _Report:
    """All mistakes of one checkpoint, in the order of the model's fields."""

    model: str
    weights: Weights
    prefix: str
    sizes: dict[str, tuple[int, str]] = field(default_factory=dict)  # symbol → its size, and where it was seen first
    later: list[tuple[str, str, Size, int]] = field(default_factory=list)  # (weight, axis, formula, size)
    mistakes: list[str] = field(default_factory=list)

    def check(self, parameter: Parameter) -> tuple[str, Shape] | None:
        """The name and the shape of the tensor for a parameter; None where there is none or it does not fit."""
        names = [f"{self.prefix}{path}" for path in parameter.paths]
        name = next((name for name in names if name in self.weights), None)
        if name is None:
            if not parameter.optional:
                self.mistakes.append(self._describe_missing(names[0], parameter.shape))
            return None
        shape, wanted = self.weights.shape(name), parameter.shape
        before = len(self.mistakes)
        if parameter.element is not None and shape.dtype != parameter.element:
            self._add(name, wanted, shape, f"its element type is {shape.dtype}, not {parameter.element}")
        if shape.rank != wanted.rank:
            self._add(name, wanted, shape, f"it has {shape.rank} axes, not {wanted.rank}")
        else:
            for i, (pattern, size) in enumerate(zip(wanted.sizes, shape.numbers(), strict=True)):
                axis = wanted.names[i] if wanted.names else str(i)
                self._check_size(name, axis, pattern, size)
        return (name, shape) if len(self.mistakes) == before else None

    def _check_size(self, name: str, axis: str, pattern: Size, size: int) -> None:
        lone = str(pattern) if not isinstance(pattern, int) and symbols(pattern) == {str(pattern)} else None
        if isinstance(pattern, int):
            if pattern != size:
                self.mistakes.append(f"{name}: axis {axis} is {size}, not {pattern}")
        elif lone is None:
            self.later.append((name, axis, pattern, size))
        else:
            known, seen = self.sizes.setdefault(lone, (size, name))
            if known != size:
                self.mistakes.append(f"{name}: axis {axis} is {size}, but {lone} is {known} in {seen}")

    def check_formulas(self) -> None:
        """Sizes such as `3*D`, now that `D` is known."""
        values: dict[str, Size] = {symbol: size for symbol, (size, _) in self.sizes.items()}
        for name, axis, formula, size in self.later:
            meant = substitute(formula, values)
            if isinstance(meant, int) and meant != size:
                self.mistakes.append(f"{name}: axis {axis} is {size}, but {formula} is {meant}")

    def check_rest(self, names: Iterable[str], known: Iterable[str]) -> None:
        used = set(known)
        for name in names:
            if name not in used:
                near = get_close_matches(name, used, 1, 0.8)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.mistakes.append(f"{self.prefix}{name}: the model has no such field{hint}")

    def _describe_missing(self, name: str, wanted: Shape) -> str:
        near = get_close_matches(name, list(self.weights), 1, 0.6)
        return f"{name}: missing, {wanted}" + (f"; did you mean {near[0]}?" if near else "")

    def _add(self, name: str, wanted: Shape, got: Shape, why: str) -> None:
        self.mistakes.append(f"{name}: {why}; expected {wanted}, got {got}")

    def raise_mistakes(self) -> None:
        if not self.mistakes:
            return
        count = len(self.mistakes)
        lines = self.mistakes[:SHOWN] + ([f"… and {count - SHOWN} more"] if count > SHOWN else [])
        nothing = not any(name.startswith(self.prefix) for name in self.weights)
        source = self.weights.source
        raise ShapeError(
            f"the weights{f' of {source}' if source else ''} do not match {self.model}, {count} "
            f"mistake{'s' if count > 1 else ''}:\n  " + "\n  ".join(lines),
            remedy=f"no name begins with {self.prefix!r}: another prefix?"
            if nothing and self.prefix
            else "change the declarations of the class, or give the checkpoint that belongs to it",
        )
