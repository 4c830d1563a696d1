"""Models: plain classes of tensors, layers and lists of them, and the base class `Model` with a constructor.

`parameters_of` lists a model's parameters with paths and shapes; `build` returns the model with tensors for them.
`smelt.instantiate` binds checkpoints through these two; layers of `smelt.nn` are Models.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar, Union, get_args, get_origin

from smelt.buffer import HostBuffer
from smelt.dim import Poly, Size
from smelt.dtype import DType, dtype, f32
from smelt.errors import ShapeError
from smelt.frozen import Frozen
from smelt.shape import Shape
from smelt.structure import CONTAINERS, items_of, join, map_items
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.arguments import model_facts
from smelt.tensor.axes import dim, parse_shape
from smelt.tensor.core import Tensor
from smelt.tensor.data import tensor
from smelt.tensor.facts import parse_facts
from smelt.tensor.fields import (
    DeclaredLeaf,
    copy_fresh,
    declared_fields,
    facts_for,
    fields_of,
    holds_weights,
    is_model,
    rebuild,
    set_field,
    size_in,
)
from smelt.tensor.ops.move import named
from smelt.tensor.record import Leaf, is_tensor, tensor_of
from smelt.tensor.shaped import Shaped as Shaped  # for the examples below
from smelt.tensor.shaped import Spec, annotations_of, match, spec_of
from smelt.tensor.source import Place, declaration_of, refuse

# ---- parameters ----


class Parameter(Frozen):
    """One declared parameter of a model.

    `shape` has the names of the axes; its sizes are numbers, symbols or formulas of them. `element` is None where the
    checkpoint decides the element type (`shape` has f32 then). `paths` are all fields that hold it: several where
    weights are tied. One that is `optional` may be missing.
    """

    path: str
    shape: Shape
    element: DType | None
    optional: bool = False
    paths: tuple[str, ...] = ()
    place: Place | None = None


@with_argument_errors
def parameter(shape: Shape | str, place: Place | None = None) -> Tensor:
    """A parameter of a model without a value. Text without an element type, `"[o=O, i=3]"`, allows any.

    >>> parameter("[f=F, d=768]").shape
    f32[f=F, d=768]
    """
    if isinstance(shape, Shape):
        return tensor_of(DeclaredLeaf(Shape.of(shape.dtype, shape.sizes), any_dtype=False, place=place), shape.names)
    text, sizes, names = parse_shape(shape)
    element = f32 if text is None else dtype(text)
    return tensor_of(DeclaredLeaf(Shape.of(element, sizes), any_dtype=text is None, place=place), names)


def make_parameter(sizes: Mapping[str, Size], element: DType | None) -> Tensor:
    """A parameter from named sizes; the checkpoint decides an element type of None."""
    bare = Shape.of(element or f32, tuple(sizes.values()))
    return tensor_of(DeclaredLeaf(bare, any_dtype=element is None), tuple(sizes))


# ---- the two functions for those who bind weights ----


def parameters_of(model: Any, /, *, names: Any = (), **config: Any) -> dict[str, Parameter]:
    """The parameters that a model declares, by path, in order.

    `model` is a class or an object: a `Model`, a dataclass or any class whose fields are tensors, layers, and lists,
    tuples and dictionaries of them. For a class `config` says what its constructor takes. Where the constructor is not
    the user's own, the fields come from annotations and class attributes, and `config` may name, for the whole model:
    plain fields (`heads=12`), the number of layers of a list (`layers=32`), and symbols of shapes (`F=3072`). Lists of
    unsaid length have as many layers as the paths in `names` show, which are those of a checkpoint.

    >>> class MLP(Model):
    ...     up: Shaped[Tensor, "f32[d=784, f=F]"]
    ...     down: Shaped[Tensor, "[f=F, c=10]"]
    >>> for path, each in parameters_of(MLP, F=32).items():
    ...     print(path, each.shape, each.element)
    up f32[d=784, f=32] f32
    down f32[f=32, c=10] None
    """
    made = make(model, config, names) if isinstance(model, type) else model
    return {each.path: each for _, each in _parameters(made).values()}


def build(
    model: Any, tensors: Mapping[str, Any], /, *, strict: bool = False, missing: str = "refuse", **config: Any
) -> Any:
    """The model with a tensor for every parameter: from `{path: Tensor, array, HostBuffer or Shape}`.

    `model` and `config` are as in `parameters_of`. An object is not changed; the result is another one. Arrays
    are not copied. A Shape, or a buffer on a device, stands for a tensor without data. Every tensor is checked against
    its declaration. A symbol has one size in the whole model, which then replaces it everywhere. A
    parameter that is not given is refused, unless it is optional (it becomes None) or `missing` is "keep" (it stays as
    declared). With `strict`, tensors that the model does not declare are refused, too.

    >>> import numpy as np
    >>> class Scale(Model):
    ...     by: Shaped[Tensor, "[d=D]"]
    >>> build(Scale, {"by": np.ones(3, np.float32)})
    Scale(by=f32[d=3])
    """
    made = make(model, config, tensors) if isinstance(model, type) else model
    parameters = _parameters(made)
    bound: dict[str, Size] = {}
    values: dict[int, Any] = {}
    absent: list[str] = []
    used: set[str] = set()
    given: list[tuple[Parameter, Tensor]] = []
    for key, (_, each) in parameters.items():
        path = next((path for path in each.paths if path in tensors), None)
        used.update(each.paths)
        if path is not None:
            values[key] = _bind_parameter(each, tensors[path], bound)
            given.append((each, values[key]))
        elif each.optional:
            values[key] = None
        elif missing != "keep":
            absent.append(each.path)
    if absent:
        _refuse_absent(made, absent, tensors)
    if strict and (strange := [path for path in tensors if path not in used]):
        raise ShapeError(
            f"{type(made).__name__} declares no such weights", got=_join_names(strange), expected=_join_names(used)
        )
    for each, value in given:  # formulas, now that the symbols in them are known
        match(f"the weight {each.path}", value, _spec_of(each), bound, each.place)
    numbers = {name: size for name, size in bound.items() if isinstance(size, int)}
    _check_facts(made, numbers)
    return rebuild(made, values, bound)


def _spec_of(each: Parameter) -> Spec:
    return Spec(each.element, each.shape.sizes, each.shape.names, str(each.shape))


def _bind_parameter(each: Parameter, given: Any, bound: dict[str, Size]) -> Tensor:
    """What is given for a parameter as a tensor with the declared names; symbols are bound to its sizes."""
    if is_tensor(given):
        made = given
    elif isinstance(given, Shape):
        made = tensor_of(Leaf(Shape.of(given.dtype, given.sizes), name=each.path), given.names)
    elif isinstance(given, HostBuffer):
        array = given.numpy()
        made = tensor_of(Leaf(Shape.of(given.shape.dtype, array.shape), array, name=each.path), None)
    elif isinstance(getattr(given, "shape", None), Shape):  # on a device: its data stay there
        made = tensor_of(Leaf(Shape.of(given.shape.dtype, given.shape.sizes), name=each.path), None)
    else:
        made = tensor(given, copy=False)
    if made.shape.names is None and made.rank == each.shape.rank and each.shape.names:
        made = named(made, *each.shape.names)
    match(f"the weight {each.path}", made, _spec_of(each), bound, each.place)
    return made


def _refuse_absent(model: Any, absent: list[str], tensors: Mapping[str, Any]) -> None:
    near = get_close_matches(absent[0], list(tensors), 3, 0.5)
    raise ShapeError(
        f"{type(model).__name__} declares weights that are not there",
        expected=_join_names(absent),
        got=_join_names(near or tensors),
        remedy="the paths of fields are the names of weights: rename fields, or give a prefix",
    )


def _join_names(names: Any) -> str:
    shown = list(names)
    return ", ".join(map(str, shown[:8])) + (f" … ({len(shown)})" if len(shown) > 8 else "")


def _check_facts(model: Any, numbers: Mapping[str, int]) -> None:
    for fact in parse_facts(model_facts(model)):
        if fact.symbols <= numbers.keys() and not fact.holds(numbers):
            got = ", ".join(f"{name} = {numbers[name]}" for name in sorted(fact.symbols))
            raise ShapeError(f"{type(model).__name__}: a fact does not hold", expected=str(fact), got=got)


def _parameters(model: Any) -> dict[int, tuple[Tensor, Parameter]]:
    """Every tensor of a model once, under the paths that hold it, by its identity."""
    found: dict[int, tuple[Tensor, Parameter]] = {}
    for path, value, owner, name in _leaves(model, ""):
        if id(value) in found:
            known = found[id(value)][1]
            found[id(value)] = value, known.replace(paths=(*known.paths, path))
            continue
        hint = _hints(owner).get(name)
        leaf = value.value
        any_dtype = isinstance(leaf, DeclaredLeaf) and leaf.any_dtype
        place = declaration_of(type(owner), name)
        found[id(value)] = (
            value,
            Parameter(path, value.shape, None if any_dtype else value.dtype, _may_be_none(hint), (path,), place),
        )
    return found


def _leaves(value: Any, path: str, owner: Any = None, name: str = "") -> Iterator[tuple[str, Tensor, Any, str]]:
    """Every tensor with its path, the object that has it and its field there."""
    if is_tensor(value):
        yield path, value, owner, name
    elif isinstance(value, CONTAINERS):
        for key, item in items_of(value).items():
            yield from _leaves(item, join(path, key), owner, name)
    elif is_model(value):
        for each, item in fields_of(value).items():
            yield from _leaves(item, join(path, each), value, each)


# ---- looking into a model ----


def walk(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a model with its path, in the order of fields: `("layers.2.attn.wq", Tensor(…))`."""
    for path, value, _, _ in _leaves(model, ""):
        yield path, value


def at(model: Any, path: str) -> Any:
    """What a model has under a path: a tensor, a layer, a list of them."""
    value = model
    for i, part in enumerate(parts := path.split(".") if path else []):
        inner = _inside(value)
        if part not in inner:
            where = ".".join(parts[:i]) or type(model).__name__
            near = get_close_matches(part, list(inner), 1)
            remedy = f'did you mean "{near[0]}"?' if near else None
            refuse(f'there is no "{part}" in {where}', details=[("has", _join_names(inner))], remedy=remedy)
        value = inner[part]
    return value


def _inside(value: Any) -> dict[str, Any]:
    if isinstance(value, CONTAINERS):
        return {str(key): item for key, item in items_of(value).items()}
    return {} if is_tensor(value) else fields_of(value)


def replace(model: Any, changes: Mapping[str, Any]) -> Any:
    """Another model with other values under these paths; the given one stays as it is.

    A tensor in place of a tensor has the same axes; a symbol of the old one may have a number in the new one.
    """
    made = model
    for path, value in changes.items():
        old = at(made, path)
        if is_tensor(old) and is_tensor(value):
            shape = old.shape
            match(f"replacing {path}", value, Spec(None, shape.sizes, shape.names, str(shape)), {})
        made = _with(made, path.split("."), value)
    return made


def _with(holder: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return value
    first, rest = parts[0], parts[1:]
    if isinstance(holder, CONTAINERS):
        return map_items(holder, lambda key, item: _with(item, rest, value) if str(key) == first else item)
    made = object.__new__(type(holder))
    for name, item in fields_of(holder).items():
        set_field(made, name, _with(item, rest, value) if name == first else item)
    return made


# ---- making a model from its class ----


@dataclass(slots=True)
class _Config:
    """The configuration of a model, and which of its entries were used."""

    values: Mapping[str, Any]
    paths: frozenset[str] = frozenset()  # every beginning of a name in the checkpoint; empty where there is none
    used: set[str] = field(default_factory=set)

    def take(self, name: str) -> Any:
        self.used.add(name)
        return self.values[name]

    @property
    def sizes(self) -> dict[str, Size]:
        """Values that may stand for symbols."""
        sizes = {name: size_in(value) for name, value in self.values.items()}
        return {name: size for name, size in sizes.items() if size is not None}

    def fresh(self, model: Any) -> Any:
        """A copy of layers for one more object, with sizes in place of symbols."""
        found = {name for _, tensor in walk(model) for name in tensor.shape.symbols}
        self.used.update(found & self.values.keys())
        return copy_fresh(model, self.sizes)

    def resolve(self, spec: Spec) -> Spec:
        self.used.update(spec.shape.symbols & self.values.keys())
        return spec.substitute(self.sizes)


def make(cls: type, config: Mapping[str, Any], names: Any = ()) -> Any:
    """An object of a model's class whose parameters have no values yet."""
    known = _Config(config, _list_prefixes(names))
    made = _make_model(cls, known, "")
    if unused := [name for name in config if name not in known.used]:
        refuse(
            f"{cls.__name__} has no use for {_join_names(unused)}",
            remedy="a field, a symbol of a shape, or an argument",
        )
    return made


def _list_prefixes(names: Any) -> frozenset[str]:
    found: set[str] = set()
    for name in names:
        parts = name.split(".")
        found.update(".".join(parts[:i]) for i in range(1, len(parts) + 1))
    return frozenset(found)


def _make_model(cls: type, config: _Config, path: str) -> Any:
    if _has_constructor(cls):
        made = cls(**_select_arguments(cls, config))
    else:
        made = object.__new__(cls)
    _fill(made, config, path)
    return made


def _has_constructor(cls: type) -> bool:
    """Whether a class has a hand-written `__init__`."""
    owner = next(part for part in cls.__mro__ if "__init__" in vars(part))
    settings = vars(owner).get("__dataclass_params__")
    return owner not in (object, Model) and not (settings is not None and settings.init)


def _select_arguments(cls: type, config: _Config) -> dict[str, Any]:
    """The configuration entries that a constructor takes. A required one that is missing is refused."""
    found: dict[str, Any] = {}
    open_ended = False
    for name, each in list(inspect.signature(cls).parameters.items()):
        if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            open_ended = open_ended or each.kind is each.VAR_KEYWORD
        elif name in config.values:
            found[name] = config.take(name)
        elif each.default is each.empty:
            refuse(
                f"{cls.__name__} needs {name}",
                place=declaration_of(vars(cls).get("__init__"), name),
                remedy=f"{name}=…",
            )
    if open_ended and not found:
        refuse(
            f"{cls.__name__} does not say its sizes in a field",
            remedy=f"a default in the class, `layer: nn.{cls.__name__} = nn.{cls.__name__}(…)`, or your own __init__",
        )
    return found


def _fill(made: Any, config: _Config, path: str) -> None:
    """Values for the fields that have none: from the configuration, the class and its annotations."""
    cls = type(made)
    have = fields_of(made)
    factories = _factories(cls)
    for name, hint in _hints(made).items():
        if name in have or get_origin(hint) is ClassVar or hint is ClassVar or name == "facts":
            continue
        set_field(made, name, _make_field(cls, name, hint, factories, config, join(path, name)))
    sizes = config.sizes
    if (meant := facts_for(made, sizes)) is not None:
        set_field(made, "facts", meant)
    if dataclasses.is_dataclass(cls) and hasattr(made, "__post_init__"):
        made.__post_init__()


def _hints(model: Any) -> Mapping[str, Any]:
    owner: Any = type(model)
    return declared_fields(owner)


def _factories(cls: type) -> dict[str, Any]:
    if not dataclasses.is_dataclass(cls):
        return {}
    fields = dataclasses.fields(cls)
    return {each.name: each.default_factory for each in fields if each.default_factory is not dataclasses.MISSING}


def _make_field(cls: type, name: str, hint: Any, factories: Mapping[str, Any], config: _Config, path: str) -> Any:
    top = "." not in path
    spec = spec_of(hint)
    default = getattr(cls, name, inspect.Parameter.empty)
    if spec is not None:
        if top and name in config.values and size_in(config.values[name]) is None:
            value = config.take(name)
            if is_tensor(value):
                match(f"the field {path}", value, config.resolve(spec), {}, declaration_of(cls, name))
            return value
        if _may_be_none(hint) and (path not in config.paths if config.paths else default is None):
            return None
        meant = config.resolve(spec)
        leaf = DeclaredLeaf(Shape.of(meant.shape.dtype, meant.sizes), any_dtype=spec.element is None)
        return tensor_of(leaf, meant.names)
    plain = name in config.values and (top or not holds_weights(config.values[name]))
    layers = _layers_of(hint)
    if layers is not None and not (plain and size_in(config.values[name]) is None):
        if plain or (default is inspect.Parameter.empty and name not in factories):
            return _make_layers(cls, name, layers, config, path, plain)
    elif plain:
        return config.take(name)
    if default is not inspect.Parameter.empty:
        return config.fresh(default) if holds_weights(default) else default
    if name in factories:
        return config.fresh(factories[name]())
    inner = _without_none(hint)
    if isinstance(inner, type) and _is_model_class(inner):
        if inner is not hint and config.paths and path not in config.paths:
            return None
        return _make_model(inner, config, path)
    if _may_be_none(hint):
        return None
    notes = [] if hint is not None else [("note", "its annotation names something that is not in its module")]
    refuse(
        f"{cls.__name__}: the field {name} has no value",
        place=declaration_of(cls, name),
        details=notes,
        remedy=f"{name}=…, or a default in the class",
    )


def _is_model_class(cls: Any, within: tuple[Any, ...] = ()) -> bool:
    """Whether objects of a class hold weights, as far as the class says."""
    if issubclass(cls, Model):
        return True
    if cls.__module__ == "builtins" or cls in within:
        return False
    for hint in annotations_of(cls).values():
        inner = _without_none(hint)
        layers = _layers_of(hint)
        if spec_of(hint) is not None or (layers is not None and layers[1] is not None):
            return True
        if isinstance(inner, type) and _is_model_class(inner, (*within, cls)):
            return True
    return False


def _layers_of(hint: Any) -> tuple[type, Any] | None:
    """(list, tuple or dict; the class of the items) of an annotation such as `list[Block]`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is list or (origin is tuple and len(args) == 2 and args[1] is Ellipsis):
        item = args[0]
    elif origin is dict and len(args) == 2:
        item = args[1]
    else:
        return None
    return (origin, item) if isinstance(item, type) and _is_model_class(item) else None


def _make_layers(cls: type, name: str, layers: tuple[type, Any], config: _Config, path: str, said: bool) -> Any:
    """Layers of a list: as many as in the configuration or in the checkpoint."""
    kind, item = layers
    if said:
        keys: list[str] = [str(i) for i in range(config.take(name))]
    else:
        start = f"{path}."
        found = {each[len(start) :] for each in config.paths if each.startswith(start)}
        keys = sorted((key for key in found if "." not in key), key=lambda key: (len(key), key))
        if not config.paths:
            refuse(
                f"{cls.__name__}: how many layers does {name} have?",
                place=declaration_of(cls, name),
                remedy=f"{name}=12, or a checkpoint that shows it",
            )
        if kind is not dict and keys != [str(i) for i in range(len(keys))]:
            refuse(f"{path}: the checkpoint's layers are not numbered in order", details=[("got", _join_names(keys))])
    made = [_make_model(item, config, join(path, key)) for key in keys]
    return dict(zip(keys, made, strict=True)) if kind is dict else kind(made)


def _may_be_none(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)


def _without_none(hint: Any) -> Any:
    if not _may_be_none(hint):
        return hint
    rest = [each for each in get_args(hint) if each is not type(None)]
    return rest[0] if len(rest) == 1 else hint


# ---- the base class ----


class Model:
    """An optional base for models: a constructor by keywords, a readable form, and fields by path.

    Fields are class annotations: tensors with their shapes, layers, lists of layers, plain values. Field paths are the
    names of weights. The constructor takes what `parameters_of` takes; a class may have its own instead.

    >>> from smelt.tensor import trace
    >>> class MLP(Model):
    ...     up: Shaped[Tensor, "f32[d=784, f=F]"]
    ...     down: Shaped[Tensor, "f32[f=F, c=10]"]
    ...     def forward(self, x: Shaped[Tensor, "f32[b=B, d=784]"]) -> Tensor:
    ...         return x.dot(self.up, "d").relu().dot(self.down, "f")
    >>> trace(MLP().forward).results.shape
    f32[b=B, c=10]
    >>> MLP(F=32)
    MLP(up=f32[d=784, f=32], down=f32[f=32, c=10])
    """

    def __init__(self, **config: Any) -> None:
        known = _Config(config)
        _fill(self, known, "")
        if unused := [name for name in config if name not in known.used]:
            cls = type(self).__name__
            refuse(f"{cls} has no field {_join_names(unused)}", details=[("fields", _join_names(fields_of(self)))])

    def fields(self) -> dict[str, Any]:
        """The fields by name: tensors, layers, lists of them, plain values. Private ones are left out."""
        return {name: value for name, value in fields_of(self).items() if name[0] != "_"}

    def walk(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its path."""
        return walk(self)

    def at(self, path: str) -> Any:
        """What is under a path: `model.at("layers.2.attn.wq")`."""
        return at(self, path)

    def replace(self, changes: Mapping[str, Any] | None = None, /, **fields: Any) -> Any:
        """Another model with other values under paths, `{"layers.2.attn.wq": w}`, or in fields, `scale=s`."""
        return replace(self, {**(changes or {}), **fields})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_format_value(v)}' for name, v in self.fields().items())})"


def _format_value(value: Any) -> str:
    if is_tensor(value):
        return str(value.shape)
    if isinstance(value, list | tuple) and len(value) > 2 and holds_weights(value):
        return f"[{len(value)} x {type(value[0]).__name__}]"
    return str(dim(value)) if isinstance(value, Poly) else repr(value)
