"""The fields of models: which objects are models, what they hold, and copies of them with other tensors.

A model is any object whose class annotates fields with `Shaped`, or that holds tensors, itself or in its layers. The
tracer (`arguments`) and `model` walk and copy models through this file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import TYPE_CHECKING, Any

from smelt.dim import Poly, Size, substitute
from smelt.shape import Shape
from smelt.structure import CONTAINERS, items_of, map_items
from smelt.tensor.axes import Dim, dim
from smelt.tensor.facts import facts_of, parse_facts, substitute_fact
from smelt.tensor.record import Leaf, is_tensor, tensor_of
from smelt.tensor.shaped import annotations_of, spec_of
from smelt.tensor.source import Place

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor


class DeclaredLeaf(Leaf):
    """A parameter of a model without a value; `any_dtype` where the checkpoint decides its element type."""

    __slots__ = ("any_dtype",)

    any_dtype: bool

    def __init__(self, type: Shape, *, any_dtype: bool, place: Place | None = None) -> None:
        super().__init__(type, place=place)
        object.__setattr__(self, "any_dtype", any_dtype)


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of an object, by name: what it keeps in `__dict__` and in slots."""
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found.setdefault(name, getattr(value, name))
    return found


def numbers_of(model: Any) -> dict[str, Size]:
    """The numbers that a model keeps in fields and in its class: what their names mean in its annotations."""
    members: dict[str, Any] = {}
    for part in reversed(type(model).__mro__):
        members |= vars(part)
    members |= fields_of(model)
    sizes = {name: size_in(value) for name, value in members.items() if not name.startswith("_")}
    return {name: size for name, size in sizes.items() if size is not None}


def size_in(value: Any) -> Size | None:
    """The size that a value is; None where it is none."""
    if isinstance(value, Dim):
        return value.size
    return value if isinstance(value, int | Poly) and not isinstance(value, bool) else None


def constructor_numbers(model: Any) -> frozenset[str]:
    """The names of the numbers that a model's constructor takes, as far as its annotations say."""
    constructor: Any = type(model).__init__
    return frozenset(name for name, hint in annotations_of(constructor).items() if hint is int and name != "return")


def set_field(owner: Any, name: str, value: Any) -> None:
    """A field of an object that may be frozen."""
    object.__setattr__(owner, name, value)


def declaring_class(cls: type, member: str) -> type:
    """The class that annotates a field: the class itself, or one of those it is derived from."""
    return next((part for part in cls.__mro__ if member in inspect.get_annotations(part)), cls)


@lru_cache(4096)
def declared_fields(cls: Any) -> Mapping[str, Any]:
    """The fields that a class declares, with their annotations: None where one cannot be resolved, or is not there.

    A layer in the class is a field without an annotation as well: `up = nn.Linear(d=784, f=10)`.
    """
    resolved = annotations_of(cls)
    found: dict[str, Any] = {}
    for part in reversed(cls.__mro__):
        found |= {name: resolved.get(name) for name in inspect.get_annotations(part)}
        found |= {name: resolved.get(name) for name, value in vars(part).items() if holds_weights(value)}
    return MappingProxyType(found)


# ---- what is a model ----


def is_model(value: Any) -> bool:
    """Whether an object holds weights, or layers that do."""
    return _is_model(value, set())


def holds_weights(value: Any) -> bool:
    """Whether a value is a tensor or a model, or a structure of such."""
    return _holds(value, set())


# What most members of a class are, and fields that are no layers: never a model.
_PLAIN = (
    FunctionType, str, int, NoneType, property, classmethod, staticmethod, MemberDescriptorType, GetSetDescriptorType,
    type, ModuleType, BuiltinFunctionType, MethodType, float, complex, bytes,
)  # fmt: skip


def _is_model(value: Any, seen: set[int]) -> bool:
    cls: Any = type(value)
    if isinstance(value, _PLAIN) or id(value) in seen or cls.__module__ == "builtins" or is_tensor(value):
        return False
    seen.add(id(value))
    if has_shapes(cls) or _any_holds(fields_of(value).values(), seen):
        return True
    if id(cls) in seen:
        return False
    seen.add(id(cls))
    return any(_any_holds(vars(part).values(), seen) for part in cls.__mro__[:-1])


def _any_holds(values: Iterable[Any], seen: set[int]) -> bool:
    return any(_holds(value, seen) for value in values if not isinstance(value, _PLAIN))


def _holds(value: Any, seen: set[int]) -> bool:
    if isinstance(value, CONTAINERS):
        return _any_holds(items_of(value).values(), seen)
    return is_tensor(value) or _is_model(value, seen)


@lru_cache(4096)
def has_shapes(cls: type, within: tuple[type, ...] = ()) -> bool:
    """Whether a class, or a layer that it declares, annotates fields with shapes."""
    if cls.__module__ == "builtins" or cls in within:
        return False
    hints = annotations_of(cls).values()
    return any(
        spec_of(hint) is not None or (isinstance(hint, type) and has_shapes(hint, (*within, cls))) for hint in hints
    )


# ---- models with other tensors ----


def copy_fresh(model: Any, sizes: Mapping[str, Size] = MappingProxyType({})) -> Any:
    """A copy of a model with parameters of its own, and sizes in place of symbols."""
    return _Remake(lambda tensor: _redeclare(tensor, sizes), sizes)(model)


def rebuild(model: Any, tensors: Mapping[int, Any], sizes: Mapping[str, Size]) -> Any:
    """A copy of a model with other tensors, by identity of the old ones, and sizes in place of symbols."""

    def remake(tensor: Tensor) -> Any:
        return tensors[id(tensor)] if id(tensor) in tensors else _redeclare(tensor, sizes)

    return _Remake(remake, sizes)(model)


def _redeclare(tensor: Tensor, sizes: Mapping[str, Size]) -> Tensor:
    """Another parameter like one that has no value yet; what has one stays."""
    leaf = tensor.value
    if not isinstance(leaf, Leaf) or leaf.data is not None:
        return tensor
    shape = leaf.shape.substitute(sizes)
    if isinstance(leaf, DeclaredLeaf):
        return tensor_of(DeclaredLeaf(shape, any_dtype=leaf.any_dtype, place=leaf.place), tensor.shape.names)
    return tensor_of(Leaf(shape, name=leaf.name, place=leaf.place), tensor.shape.names)


class _Remake:
    """Copies a structure of models with every tensor changed; what is shared stays shared."""

    def __init__(self, change: Callable[[Tensor], Any], sizes: Mapping[str, Size]) -> None:
        self.change = change
        self.sizes = sizes
        self.made: dict[int, Any] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Poly):
            return substitute(value, self.sizes)
        if isinstance(value, Dim):
            return dim(substitute(value.size, self.sizes))
        if isinstance(value, CONTAINERS):
            return map_items(value, lambda _, item: self(item))
        if id(value) in self.made:
            return self.made[id(value)]
        if is_tensor(value):
            return self.made.setdefault(id(value), self.change(value))
        if not is_model(value):
            return value
        made = self.made[id(value)] = object.__new__(type(value))
        for name, item in fields_of(value).items():
            set_field(made, name, self(item))
        if (meant := facts_for(value, self.sizes)) is not None:
            set_field(made, "facts", meant)
        return made


def facts_for(model: Any, sizes: Mapping[str, Size]) -> tuple[str, ...] | None:
    """The facts of a model with sizes in place of symbols; None where they do not name these."""
    facts = parse_facts(facts_of(model)) if sizes else ()
    if not any(fact.symbols & sizes.keys() for fact in facts):
        return None
    return tuple(str(substitute_fact(fact, sizes)) for fact in facts)
