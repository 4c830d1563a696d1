"""Structures of tensors: tuples, lists, dictionaries and objects of them, flattened to a list and put together again.

Loops, branches and traced functions take and give such structures. Anything that is not a tensor stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from smelt.structure import CONTAINERS, items_of, map_items
from smelt.tensor.record import is_tensor
from smelt.tensor.source import refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of a structure, in order."""
    if is_tensor(tree):
        yield tree
    for item in items_of(tree).values():
        yield from leaves(item)


def replace(tree: Any, leaves: Iterator[Any]) -> Any:
    """The same structure with other leaves for its tensors, in order."""
    return next(leaves) if is_tensor(tree) else map_items(tree, lambda _, item: replace(item, leaves))


def change(tree: Any, change_leaf: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor changed."""
    return replace(tree, iter([change_leaf(tensor) for tensor in leaves(tree)]))


def layout(tree: Any) -> Any:
    """What structures must share to stand for each other: everything but the tensors."""
    if is_tensor(tree):
        return "tensor"
    if isinstance(tree, tuple | list):
        return (type(tree).__name__, *(layout(item) for item in tree))
    if isinstance(tree, dict):
        return ("dict", *((key, layout(value)) for key, value in tree.items()))
    return ("value", repr(tree))


def lift_numbers(what: str, tree: Any, lift: Callable[[Any], Tensor]) -> Any:
    """The structure with Python numbers as tensors, as loops need their state."""
    if is_tensor(tree):
        return tree
    if isinstance(tree, bool | int | float | complex):
        return lift(tree)
    if isinstance(tree, CONTAINERS):
        return map_items(tree, lambda _, item: lift_numbers(what, item, lift))
    refuse(f"{what}: {type(tree).__name__} is not a tensor", remedy="carry tensors; other values come in by closure")
