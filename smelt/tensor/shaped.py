"""The one annotation: `Shaped[Tensor, "f32[b=B, s=S, d=512]"]`, which is a `typing.Annotated`.

Editors and type checkers see the Tensor, the tracer reads the shape: of arguments, results and fields of models. The
short form `"[B, S, D]"` names the axes b, s, d and allows any element type.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints
from typing import Annotated as Shaped

from smelt.dim import Answer, Poly, Size, floordiv, substitute, symbol, symbols
from smelt.dtype import DType, dtype, f32
from smelt.errors import ShapeError
from smelt.frozen import Frozen
from smelt.ir.size_ops import slope_of
from smelt.shape import Shape
from smelt.tensor.axes import parse_shape, permutation_of
from smelt.tensor.proving import at_most, current_facts, equal
from smelt.tensor.record import HOOKS, operand
from smelt.tensor.recovery import is_poison
from smelt.tensor.source import Operand, Place, declaration_of, refuse, suggest_fact

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

__all__ = ["Shaped", "Spec", "annotations_of", "match", "spec_of"]


class Spec(Frozen):
    """The shape in an annotation; `element` is None where the annotation names no element type."""

    element: DType | None
    sizes: tuple[Size, ...]
    names: tuple[str, ...] | None
    text: str

    @property
    def shape(self) -> Shape:
        """The shape of a symbolic argument: f32 where none is named."""
        return Shape.of(self.element or f32, self.sizes, self.names)

    def substitute(self, values: Mapping[str, Size]) -> Spec:
        return Spec(self.element, tuple(substitute(size, values) for size in self.sizes), self.names, self.text)


@lru_cache(4096)
def parse_spec(text: str) -> Spec:
    """A shape from its text."""
    element, sizes, names = parse_shape(text)
    return Spec(None if element is None else dtype(element), sizes, names, text)


def spec_of(annotation: Any) -> Spec | None:
    """The shape in an annotation: of `Shaped[Tensor, "…"]`; None for anything else."""
    if get_origin(annotation) is Shaped:
        for note in get_args(annotation)[1:]:
            if isinstance(note, str) and "[" in note:
                return parse_spec(note)
            if isinstance(note, Shape):
                return Spec(note.element, note.sizes, note.names, str(note))
    if get_origin(annotation) is Union:
        specs = [found for each in get_args(annotation) if (found := spec_of(each)) is not None]
        return specs[0] if len(specs) == 1 else None
    return None


def declared_spec(annotation: Any, owner: object, name: str) -> Spec | None:
    """The same, of a field, parameter or result that `owner` declares; a text that is no shape is shown there."""
    try:
        return spec_of(annotation)
    except ShapeError as error:
        notes = [("expected", str(error.expected))] if error.expected is not None else []
        notes += [("got", str(error.got))] if error.got is not None else []
        refuse(f"{name}: {error.message}", details=notes, remedy=error.own_remedy, place=declaration_of(owner, name))


@lru_cache(4096)
def annotations_of(owner: Any) -> Mapping[str, Any]:
    """The annotations of a function or class with strings resolved; those that cannot be are left out."""
    try:
        return get_type_hints(owner, include_extras=True)
    except Exception:  # an annotation that cannot be resolved, in whatever way, is no shape
        return _one_by_one(owner)


def _one_by_one(owner: Any) -> dict[str, Any]:
    """Each annotation on its own, so that one unknown name does not hide the others.

    Names that a module imports for type checkers alone are known here all the same, as far as they are ours.
    """
    found: dict[str, Any] = {}
    ours = {"Shaped": Shaped, "Tensor": HOOKS.tensor, "smelt": sys.modules.get("smelt")}
    for part in reversed(owner.__mro__) if isinstance(owner, type) else (owner,):
        module = sys.modules.get(getattr(part, "__module__", ""), None)
        names = {**ours, **vars(module)} if module else ours
        for name, annotation in inspect.get_annotations(part).items():
            if isinstance(annotation, str):
                try:
                    annotation = eval(annotation, names)  # the user's own annotation, in the user's own module
                except Exception:  # whatever it raises, it is no shape
                    continue
            found[name] = annotation
    return found


def match(
    what: str,
    tensor: Tensor,
    spec: Spec,
    bound: dict[str, Size],
    place: Place | None = None,
    at: Place | None = None,
    complete: bool = False,
) -> None:
    """Prove that a tensor has the declared shape. A symbol without a size is bound to the tensor's.

    `place` is where the shape is declared, `at` where a mistake is shown: the user's present line where not given.
    Unless it is `complete`, a symbol may remain that other tensors determine.
    """
    if is_poison(tensor):
        return
    shown = operand("got", tensor)
    wanted = spec.substitute(bound)
    stated = Operand("declared", Shape.of(spec.element or tensor.dtype, wanted.sizes, wanted.names), place)
    if spec.element is not None and tensor.dtype is not spec.element:
        refuse(f"{what}: the element type is {tensor.dtype}", stated, shown, remedy=f'.to("{spec.element}")', place=at)
    if tensor.shape.rank != len(spec.sizes):
        refuse(f"{what}: of rank {tensor.shape.rank}, not {len(spec.sizes)}", stated, shown, place=at)
    if tensor.shape.rank and tensor.shape.names != spec.names:
        remedy = None
        if spec.names and tensor.shape.names and set(spec.names) == set(tensor.shape.names):
            remedy = f'.transpose("{" ".join(spec.names)}")'
        elif spec.names is not None and tensor.shape.names is None:
            remedy = f'.named("{" ".join(spec.names)}")'
        refuse(f"{what}: other axes than declared", stated, shown, remedy=remedy, place=at)
    axes = list(zip(tensor.shape.sizes, spec.sizes, strict=True))
    for size, pattern in axes:
        if (alone := lone_symbol(pattern)) is not None:
            bound.setdefault(alone, size)
    for size, pattern in axes:
        want = substitute(pattern, bound)
        unbound = symbols(pattern) - bound.keys()
        if len(unbound) == 1 and (slope := slope_of(want, name := next(iter(unbound)))):
            rest = size - (want - slope * symbol(name))
            if not (answer := current_facts().divides(slope, rest)) or not (answer := at_most(0, rest)):
                refuse(
                    f"{what}: a size is {size}, which is not of the form {want}", stated, shown, answer=answer, place=at
                )
            bound[name] = floordiv(rest, slope)
        elif not unbound and not (answer := equal(size, want)):
            order = permutation_of(tensor.shape.sizes, wanted_sizes(spec, bound))
            remedy = _reorder(order, tensor, answer) if order else None
            refuse(f"{what}: a size is {size}, not {want}", stated, shown, answer=answer, place=at, remedy=remedy)
        elif unbound and complete:
            name = min(unbound)
            remedy = f"give {name} an axis of its own"
            refuse(f"{what}: {want} does not determine {name}", stated, shown, remedy=remedy, place=at)


def wanted_sizes(spec: Spec, bound: Mapping[str, Size]) -> list[Size]:
    return [substitute(size, bound) for size in spec.sizes]


def _reorder(order: Sequence[int], tensor: Tensor, answer: Answer) -> str:
    """What to try first where the axes have the declared sizes in another order."""
    names = tensor.shape.names
    if names is None:
        first = f".transpose({', '.join(map(str, order))})"
    else:
        moved = ", ".join(f'{names[i]}="{new}"' for i, new in zip(order, names, strict=True) if names[i] != new)
        text = " ".join(names)
        first = f'.rename({moved}).transpose("{text}")'
    return f"the axes have these sizes in another order: {first}{suggest_fact(answer.missing)}"


def lone_symbol(size: Size) -> str | None:
    """The name of the symbol that a size is; None where it is something else."""
    if isinstance(size, Poly) and len(size.terms) == 1:
        monomial, coefficient = size.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0].op == "symbol":
            return monomial[0].name
    return None


def signature_specs(function: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """The annotations of a function's parameters, and of its result."""
    hints = annotations_of(inspect.unwrap(function))
    return {name: hint for name, hint in hints.items() if name != "return"}, hints.get("return")
