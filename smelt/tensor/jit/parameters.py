"""What a compiled function of the front end consists of: parameters with their slots, and ways through the function.

`compiling` makes it, one `Function` with a `Way` for each of its branches on sizes; executables share it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smelt.dim import Facts, Size
from smelt.engine_api import Executable as Compiled
from smelt.engine_api import Platform
from smelt.errors import ShapeError
from smelt.ir.core import Program
from smelt.shape import Shape
from smelt.structure import together
from smelt.tensor import tree
from smelt.tensor.jit.outline import Outline
from smelt.tensor.record import is_tensor


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor that goes in. `name` is its path, `source` the name of the weight it was instantiated from."""

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
        """(slot, path, what is given there) for every tensor; tied ones are given alike."""
        seen: dict[int, Any] = {}
        for path, leaf, value in together(self.pattern, given, is_tensor, self.name):
            slot = self.slots[id(leaf)]
            if slot not in seen:
                seen[slot] = value
                yield slot, path, value
            elif seen[slot] is not value:
                raise ShapeError(f"{path} is tied to another tensor", expected="the same array or buffer for both")


@dataclass(frozen=True, slots=True)
class Way:
    """One way through the function: the sizes it is for, its program, what an engine made of it, and its results."""

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
        """The symbols in the sizes of what goes in and comes out."""
        main = self.program.main
        return {name for value in (*main.args, *main.results) for name in value.shape.symbols}

    def shapes_for(self, sizes: Mapping[str, int]) -> list[Shape] | None:
        """The results' shapes in numbers; None where only data tells one of them."""
        if any(not shape.symbols <= sizes.keys() for shape in self.shapes):
            return None
        return [Shape.of(shape.dtype, shape.numbers(sizes)) for shape in self.shapes]

    def structure(self, results: Sequence[Any]) -> Any:
        """The engine's results as the function gives them."""
        return tree.replace(self.results, iter(results)) if self.outline is None else self.outline.built(results)


@dataclass(frozen=True, slots=True)
class Function:
    """What all executables of one function share."""

    name: str
    platform: Platform[Program]
    parameters: tuple[Parameter, ...]
    slots: tuple[Slot, ...]
    facts: Facts
    sizes: Mapping[str, int]  # what the weights' shapes said about symbols when it was compiled
    donated: frozenset[int] = frozenset()
    in_place: bool = False  # the engine itself makes use of donated memory
    on_host: bool = True  # it works in host memory
    encode: Callable[..., Any] | None = None
    decode: Callable[[Any], Any] | None = None
    chosen: dict[tuple[tuple[int, ...], ...], tuple[int, dict[str, int]]] = field(default_factory=dict)
    open: tuple[int, ...] = field(init=False)  # slots with symbols for sizes

    def __post_init__(self) -> None:
        open_slots = tuple(i for i, slot in enumerate(self.slots) if not slot.shape.is_static)
        object.__setattr__(self, "open", open_slots)


_COUNTING = threading.Lock()


@dataclass(slots=True)
class Held:
    """What engines hold for executables that are clones of each other; it goes with the last of them.

    `above` holds something that is used here, too.
    """

    ways: tuple[Way, ...]
    owned: tuple[Any, ...] = ()
    above: Held | None = None
    users: int = 1

    def shared(self) -> Held:
        with _COUNTING:
            self.users += 1
        return self

    def release(self) -> None:
        with _COUNTING:
            self.users -= 1
            if self.users:
                return
        for way in self.ways if self.above is None or self.above.ways is not self.ways else ():
            way.compiled.close()
        for buffer in self.owned:
            buffer.delete()
        self.ways = self.owned = ()
        if self.above is not None:
            self.above.release()
