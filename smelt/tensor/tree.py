"""Structures of tensors: tuples, lists, dictionaries and objects of them, flattened to a list and put together again.

Loops, branches and traced functions take and give such structures. Anything that is not a tensor stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from smelt.tensor.record import is_tensor
from smelt.tensor.source import refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of a structure, in order."""
    if is_tensor(tree):
        yield tree
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, dict):
        for key in tree:
            yield from leaves(tree[key])


def replace(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """The same structure with other tensors, in order."""
    if is_tensor(tree):
        return next(tensors)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(replace(item, tensors) for item in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(replace(item, tensors) for item in tree)
    if isinstance(tree, dict):
        return {key: replace(value, tensors) for key, value in tree.items()}
    return tree


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
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(lift_numbers(what, item, lift) for item in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(lift_numbers(what, item, lift) for item in tree)
    if isinstance(tree, dict):
        return {key: lift_numbers(what, value, lift) for key, value in tree.items()}
    refuse(f"{what}: {type(tree).__name__} is not a tensor", remedy="carry tensors; other values come in by closure")
