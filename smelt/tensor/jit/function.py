"""The parts of a compiled function: parameters with their slots, and one compiled path for each branch on sizes.

`compile` makes a `Function` and its `CompiledPath`s; executables that are clones share them as `Resources`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smelt.dim import Facts, Size
from smelt.engine.protocol import Platform
from smelt.engine_api import Executable as Compiled
from smelt.errors import ShapeError
from smelt.ir.core import Program
from smelt.shape import Shape
from smelt.structure import zip_leaves
from smelt.tensor import tree
from smelt.tensor.jit.outline import Outline
from smelt.tensor.record import is_tensor


@dataclass(frozen=True, slots=True)
class Slot:
    """One input tensor. `name` is its path, `source` the name of the weight it was instantiated from."""

    name: str
    shape: Shape
    weight: bool
    source: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the function: its structure with symbolic tensors, and the slot of each of them."""

    name: str
    pattern: Any
    slots: Mapping[int, int]  # the identity of a symbolic tensor → its slot

    def collect(self, given: Any) -> Iterator[tuple[int, str, Any]]:
        """(slot, path, value) for every tensor. Tied tensors have the same value."""
        seen: dict[int, Any] = {}
        for path, leaf, value in zip_leaves(self.pattern, given, is_tensor, self.name):
            slot = self.slots[id(leaf)]
            if slot not in seen:
                seen[slot] = value
                yield slot, path, value
            elif seen[slot] is not value:
                raise ShapeError(f"{path} is tied to another tensor", expected="the same array or buffer for both")


@dataclass(frozen=True, slots=True)
class CompiledPath:
    """One path through the function: the sizes it covers, its program, the engine's executable, and its results."""

    guards: Facts
    assumed: Facts
    program: Program
    compiled: Compiled
    results: Any  # the function's structure of symbolic tensors
    operations: Size
    outline: Outline | None = None  # of the results, where they are a structure of nothing but tensors
    shapes: tuple[Shape, ...] = field(init=False)  # of the program's results

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", tuple(value.shape for value in self.program.main.results))

    @property
    def symbols(self) -> set[str]:
        """The symbols in the sizes of inputs and results."""
        main = self.program.main
        return {name for value in (*main.args, *main.results) for name in value.shape.symbols}

    def shapes_for(self, sizes: Mapping[str, int]) -> list[Shape] | None:
        """The results' shapes in numbers; None where one is data-dependent."""
        if any(not shape.symbols <= sizes.keys() for shape in self.shapes):
            return None
        return [Shape.of(shape.dtype, shape.numbers(sizes)) for shape in self.shapes]

    def structure(self, results: Sequence[Any]) -> Any:
        """The engine's results in the structure that the function returns."""
        return tree.replace(self.results, iter(results)) if self.outline is None else self.outline.build(results)


@dataclass(frozen=True, slots=True)
class Function:
    """What all executables of one function share."""

    name: str
    platform: Platform[Program]
    parameters: tuple[Parameter, ...]
    slots: tuple[Slot, ...]
    facts: Facts
    sizes: Mapping[str, int]  # symbols whose values the weights' shapes determined at compile time
    donated: frozenset[int] = frozenset()
    in_place: bool = False  # the engine writes into donated memory
    on_host: bool = True  # the engine computes in host memory
    encode: Callable[..., Any] | None = None
    decode: Callable[[Any], Any] | None = None
    chosen: dict[tuple[tuple[int, ...], ...], tuple[int, dict[str, int]]] = field(default_factory=dict)
    dynamic: tuple[int, ...] = field(init=False)  # slots with dynamic dimensions

    def __post_init__(self) -> None:
        dynamic_slots = tuple(i for i, slot in enumerate(self.slots) if not slot.shape.is_static)
        object.__setattr__(self, "dynamic", dynamic_slots)


_COUNTING = threading.Lock()


@dataclass(slots=True)
class Resources:
    """What executables that are clones of each other share; released with the last of them.

    `above` owns resources that these use, too.
    """

    paths: tuple[CompiledPath, ...]
    owned: tuple[Any, ...] = ()
    above: Resources | None = None
    users: int = 1

    def share(self) -> Resources:
        with _COUNTING:
            self.users += 1
        return self

    def release(self) -> None:
        with _COUNTING:
            self.users -= 1
            if self.users:
                return
        for path in self.paths if self.above is None or self.above.paths is not self.paths else ():
            path.compiled.close()
        for buffer in self.owned:
            buffer.delete()
        self.paths = self.owned = ()
        if self.above is not None:
            self.above.release()
