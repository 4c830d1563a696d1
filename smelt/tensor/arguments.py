"""Symbolic arguments: tensors without data for parameters, and copies of models whose fields are symbolic weights.

In come shapes, annotations and models; out go leaves in the order in which a traced function takes them. The tracer
calls this module; a model is any object whose class annotates fields with `Shaped`, or that holds tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smelt.dim import Size, symbol
from smelt.shape import Shape
from smelt.tensor.facts import facts_of
from smelt.tensor.record import Leaf, is_tensor, tensor_of
from smelt.tensor.shaped import Spec, annotations_of, match, spec_of
from smelt.tensor.source import declared

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor


@dataclass(slots=True)
class Arguments:
    """The symbolic leaves of one trace, in order, and what stands for objects that were met already."""

    leaves: list[Leaf] = field(default_factory=list)
    _copies: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # id → (the object, its symbolic copy)

    @property
    def symbols(self) -> dict[str, Size]:
        """The symbols of all leaves, each standing for itself."""
        return {name: symbol(name) for leaf in self.leaves for name in leaf.shape.symbols}

    def add(self, shape: Shape, name: str, owner: object, member: str, weight: bool = False) -> Tensor:
        """A tensor without data. `owner` declares it under the name `member`."""
        bare = Shape.of(shape.dtype, shape.sizes)
        leaf = Leaf(bare, name=name, place=declared(owner, member), weight=weight)
        self.leaves.append(leaf)
        return tensor_of(leaf, shape.names)

    def copied(self, original: Any) -> Any:
        """The symbolic copy of an object that was met before: weights that are shared stay shared."""
        found = self._copies.get(id(original))
        return None if found is None else found[1]

    def remember(self, original: Any, made: Any) -> Any:
        self._copies[id(original)] = original, made
        return made


def symbolic_model(model: Any, arguments: Arguments, path: str = "", within: tuple[type, ...] = ()) -> Any:
    """A copy of a model whose annotated fields are symbolic weights; lists and layers inside it likewise.

    Field paths become the weights' names: `layers.2.attn.wq`. A class stands for a model without values: its layers are
    made from their classes.
    """
    by_class = isinstance(model, type)
    known = None if by_class else arguments.copied(model)
    if known is not None:
        return known
    cls: type = model if by_class else type(model)
    made = object.__new__(cls) if by_class else arguments.remember(model, copy.copy(model))
    values: dict[str, Any] = {} if by_class else dict(vars(model))
    annotated = annotations_of(cls)
    for name, annotation in annotated.items():
        inner, value = _join(path, name), values.get(name)
        spec = spec_of(annotation)
        if spec is not None:
            _put(made, name, _weight(spec, value, arguments, inner, cls, name))
        elif value is None and isinstance(annotation, type) and annotation not in within and has_shapes(annotation):
            _put(made, name, symbolic_model(annotation, arguments, inner, (*within, cls)))
    for name, value in values.items():
        if spec_of(annotated.get(name)) is None and value is not None:
            _put(made, name, _symbolic(value, arguments, _join(path, name), cls, name))
    return made


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _put(owner: Any, name: str, value: Any) -> None:
    object.__setattr__(owner, name, value)  # models may be frozen


def _weight(spec: Spec, value: Any, arguments: Arguments, path: str, owner: type, member: str) -> Any:
    if value is None:
        return arguments.add(spec.shape, path, owner, member, weight=True)
    if not is_tensor(value):
        return value
    match(f"the field {path}", value, spec, {}, declared(owner, member))
    known = arguments.copied(value)
    if known is not None:
        return known
    shape = Shape.of(spec.element or value.dtype, spec.sizes, spec.names)
    return arguments.remember(value, arguments.add(shape, path, owner, member, weight=True))


def _symbolic(value: Any, arguments: Arguments, path: str, owner: type, member: str) -> Any:
    if is_tensor(value):
        known = arguments.copied(value)
        if known is None:
            known = arguments.remember(value, arguments.add(value.shape, path, owner, member, weight=True))
        return known
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_symbolic(item, arguments, f"{path}.{i}", owner, member) for i, item in enumerate(value))
    if isinstance(value, dict):
        return {key: _symbolic(item, arguments, f"{path}.{key}", owner, member) for key, item in value.items()}
    if is_model(value):
        return symbolic_model(value, arguments, path)
    return value


def is_model(value: Any) -> bool:
    """Whether an object holds weights, or layers that do."""
    if isinstance(value, type) or callable(getattr(value, "__code__", None)) or not hasattr(value, "__dict__"):
        return False
    return has_shapes(type(value)) or any(_holds(item) for item in vars(value).values())


def _holds(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds(item) for item in value)
    if isinstance(value, dict):
        return any(_holds(item) for item in value.values())
    return is_tensor(value) or (hasattr(value, "__dict__") and not isinstance(value, type) and has_shapes(type(value)))


def has_shapes(cls: type, within: tuple[type, ...] = ()) -> bool:
    """Whether a class, or a layer that it declares, annotates fields with shapes."""
    if cls.__module__ == "builtins" or cls in within:
        return False
    hints = annotations_of(cls).values()
    return any(
        spec_of(hint) is not None or (isinstance(hint, type) and has_shapes(hint, (*within, cls))) for hint in hints
    )


def model_facts(model: Any) -> tuple[str, ...]:
    """The facts that a model and the layers inside it state."""
    seen: set[int] = set()
    return tuple(dict.fromkeys(fact for each in _layers(model, seen) for fact in facts_of(each)))


def _layers(value: Any, seen: set[int]) -> Iterator[Any]:
    """A model and all layers inside it, each once."""
    if id(value) in seen:
        return
    if isinstance(value, list | tuple):
        for item in value:
            yield from _layers(item, seen)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _layers(item, seen)
    elif is_model(value) or facts_of(value):
        seen.add(id(value))
        yield value
        for item in vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, type) else ():
            if item is not value and not is_tensor(item):
                yield from _layers(item, seen)
