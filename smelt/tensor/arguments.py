"""Symbolic arguments: tensors without data for parameters, and copies of models whose fields are symbolic weights.

Shapes, annotations and models → leaves in the order of a traced function's arguments. The tracer calls this module. A
model is any object whose class annotates fields with `Shaped`, or that holds tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from smelt.dim import Size, symbol, symbols
from smelt.shape import Shape
from smelt.structure import CONTAINERS, items_of, join, map_items
from smelt.tensor.facts import facts_of
from smelt.tensor.fields import (
    copy_fresh,
    declared_fields,
    declaring_class,
    fields_of,
    has_shapes,
    holds_weights,
    is_model,
    numbers_of,
    set_field,
)
from smelt.tensor.record import Leaf, is_tensor, tensor_of
from smelt.tensor.shaped import Spec, declared_spec, match, spec_of
from smelt.tensor.source import declaration_of

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor


@dataclass(slots=True)
class Arguments:
    """The symbolic leaves of one trace, in order, and the symbolic copies of objects seen so far."""

    several: int = 1  # tensors that stand for any number of them
    leaves: list[Leaf] = field(default_factory=list)
    bound: dict[str, Size] = field(default_factory=dict)  # what symbols mean: numbers of the model, sizes of its fields
    _copies: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # id → (the object, its symbolic copy)

    @property
    def symbols(self) -> dict[str, Size]:
        """The symbols of all leaves, each standing for itself."""
        return {name: symbol(name) for leaf in self.leaves for name in leaf.shape.symbols}

    def add(self, shape: Shape, name: str, owner: object, member: str, weight: bool = False) -> Tensor:
        """A tensor without data. `owner` declares it under the name `member`."""
        bare = Shape.of(shape.dtype, shape.sizes)
        owner = declaring_class(owner, member) if isinstance(owner, type) else owner
        leaf = Leaf(bare, name=name, place=declaration_of(owner, member), weight=weight)
        self.leaves.append(leaf)
        return tensor_of(leaf, shape.names)

    def find_copy(self, original: Any) -> Any:
        """The symbolic copy of an object seen before: shared weights stay shared."""
        found = self._copies.get(id(original))
        return None if found is None else found[1]

    def remember(self, original: Any, made: Any) -> Any:
        self._copies[id(original)] = original, made
        return made


def symbolic_model(model: Any, arguments: Arguments, path: str = "", within: tuple[type, ...] = ()) -> Any:
    """A copy of a model whose annotated fields are symbolic weights; lists and layers inside it likewise.

    Field paths become the weights' names: `layers.2.attn.wq`. A class stands for a model without values: its layers are
    made from their classes. A weight has the sizes of the value that is there, which its annotation must allow.
    """
    by_class = isinstance(model, type)
    known = None if by_class else arguments.find_copy(model)
    if known is not None:
        return known
    cls: type = model if by_class else type(model)
    made = object.__new__(cls) if by_class else arguments.remember(model, copy.copy(model))
    values: dict[str, Any] = {} if by_class else fields_of(model)
    annotated = declared_fields(cls)
    for name, annotation in annotated.items():
        inner, value = join(path, name), values.get(name)
        spec = declared_spec(annotation, declaring_class(cls, name), name)
        default = getattr(cls, name, None)
        if spec is not None:
            if value is not None or not _is_left_out(cls, name, annotation, values):
                set_field(made, name, _make_weight(spec, value, arguments, inner, cls, name))
        elif (value is None or value is default) and holds_weights(default):  # every object has layers of its own
            values.pop(name, None)
            set_field(made, name, _make_symbolic(copy_fresh(default), arguments, inner, cls, name))
        elif value is None and isinstance(annotation, type) and annotation not in within and has_shapes(annotation):
            set_field(made, name, symbolic_model(annotation, arguments, inner, (*within, cls)))
    for name, value in values.items():
        if spec_of(annotated.get(name)) is None and value is not None:
            set_field(made, name, _make_symbolic(value, arguments, join(path, name), cls, name))
    return made


def _is_left_out(cls: type, name: str, annotation: Any, values: Mapping[str, Any]) -> bool:
    """Whether a field that may be None is None on purpose: in the object, or in its class."""
    if type(None) not in get_args(annotation):
        return False
    return (values[name] if name in values else getattr(cls, name, ...)) is None


def _make_weight(spec: Spec, value: Any, arguments: Arguments, path: str, owner: type, member: str) -> Any:
    if value is None:
        return arguments.add(spec.substitute(arguments.bound).shape, path, owner, member, weight=True)
    if not is_tensor(value):
        return value
    match(f"the field {path}", value, spec, arguments.bound, declaration_of(owner, member))
    known = arguments.find_copy(value)
    if known is not None:
        return known
    return arguments.remember(value, arguments.add(value.shape, path, owner, member, weight=True))


def _make_symbolic(value: Any, arguments: Arguments, path: str, owner: type, member: str) -> Any:
    if is_tensor(value):
        known = arguments.find_copy(value)
        if known is None:
            known = arguments.remember(value, arguments.add(value.shape, path, owner, member, weight=True))
        return known
    if isinstance(value, CONTAINERS):
        return map_items(value, lambda key, item: _make_symbolic(item, arguments, f"{path}.{key}", owner, member))
    return symbolic_model(value, arguments, path) if is_model(value) else value


def model_facts(model: Any) -> tuple[str, ...]:
    """The facts that a model and the layers inside it state."""
    seen: set[int] = set()
    return tuple(dict.fromkeys(fact for each in _walk_layers(model, seen) for fact in facts_of(each)))


def model_symbols(model: Any) -> frozenset[str]:
    """The symbols in numbers that a model and the layers inside it keep, as sizes or as texts: `heads="H"`."""
    found: set[str] = set()
    for each in _walk_layers(model, set()):
        found.update(*map(symbols, numbers_of(each).values()))
        found.update(text for text in fields_of(each).values() if isinstance(text, str) and text.isidentifier())
    return frozenset(found)


def _walk_layers(value: Any, seen: set[int]) -> Iterator[Any]:
    """A model and all layers inside it, each once."""
    if id(value) in seen:
        return
    if isinstance(value, CONTAINERS):
        for item in items_of(value).values():
            yield from _walk_layers(item, seen)
    elif is_model(value) or facts_of(value):
        seen.add(id(value))
        yield value
        for item in () if isinstance(value, type) else fields_of(value).values():
            if item is not value and not is_tensor(item):
                yield from _walk_layers(item, seen)
