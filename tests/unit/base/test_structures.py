"""Walks over structures: every leaf where it occurs, and what holds none is entered once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from smelt.structure import has_leaf, leaves, map_leaves, zip_leaves


def is_leaf(value: Any) -> bool:
    return isinstance(value, bytes)


def test_shared_and_cyclic_objects_give_their_leaves_everywhere() -> None:
    inner = SimpleNamespace(a=b"1")
    inner.owner = owner = SimpleNamespace(first=inner, second=[inner], none=SimpleNamespace())
    owner.none.back = inner  # it holds no leaf below `inner`, and one below itself
    assert [path for path, _ in leaves(owner, is_leaf)] == ["first.a", "second.0.a", "none.back.a"]
    assert [path for path, _ in leaves(inner, is_leaf)] == ["a"]
    both = SimpleNamespace(x=inner, y=owner.none)
    assert [path for path, _ in leaves(both, is_leaf)] == ["x.a", "y.back.a"]
    assert not has_leaf(SimpleNamespace(x=[1, "b", None]), is_leaf)


def test_what_holds_no_leaf_is_entered_once() -> None:
    """Each layer of a model may keep the configuration of all layers: a walk stays linear."""
    asked = 0

    def count(value: Any) -> bool:
        nonlocal asked
        asked += 1
        return isinstance(value, bytes)

    config = SimpleNamespace(layers=[SimpleNamespace(numbers=tuple(range(1000 + i, 1100 + i))) for i in range(20)])
    model = [SimpleNamespace(config=config, w=b"w") for _ in range(50)]
    assert len(list(leaves(model, count))) == 50
    assert len(list(zip_leaves(model, model, count))) == 50
    assert len(map_leaves(model, count, bytes.decode)) == 50
    assert asked < 20_000
