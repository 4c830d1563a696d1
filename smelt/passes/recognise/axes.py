"""Track axes through transposes, reshapes and broadcasts, so that a composite's layout replaces these moves of data.

An axis is a product of atoms. A reshape may split an atom, everywhere at once; a broadcast drops the repeated atoms.
Out: a layout string (`ir.composites`). Used by the finders of attention and quantised matmuls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from smelt.dim import Size, divide_exact
from smelt.frozen import Frozen
from smelt.ir.core import Op, Value
from smelt.passes.recognise.matcher import Matcher

Axes = tuple[tuple[int, ...], ...]


class View(Frozen):
    """A value and the atoms of each of its axes; axes of size one have none."""

    value: Value
    axes: Axes


@dataclass(slots=True)
class Atoms:
    """The atoms of one pattern: their sizes, and the parts of those that were split."""

    sizes: list[Size] = field(default_factory=list)
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def new(self, size: Size) -> tuple[int, ...]:
        """A new atom for an axis of this size."""
        if size == 1:
            return ()
        self.sizes.append(size)
        return (len(self.sizes) - 1,)

    def of(self, value: Value) -> View:
        return View(value, tuple(self.new(size) for size in value.shape.sizes))

    def now(self, axes: Axes) -> Axes:
        """Axes in terms of unsplit atoms."""
        return tuple(tuple(self._whole(axis)) for axis in axes)

    def _whole(self, axis: Iterable[int]) -> list[int]:
        work, found = list(axis)[::-1], []
        while work:
            atom = work.pop()
            if atom in self.parts:
                work += self.parts[atom][::-1]
            else:
                found.append(atom)
        return found

    def back(self, matcher: Matcher, view: View, through: Sequence[str]) -> View | None:
        """The operand of the move that produces a value, with its axes; None for any other op."""
        op = matcher.op(view.value, *through)
        if op is None or len(op.operands) != 1:
            return None
        (source,) = matcher.operands(op)
        axes = self._source_axes(op, source, view)
        return None if axes is None else View(source, axes)

    def _source_axes(self, op: Op, source: Value, view: View) -> Axes | None:
        match op.name:
            case "stablehlo.transpose":
                order = op.attrs["permutation"]
                return tuple(view.axes[order.index(i)] for i in range(len(order)))
            case "stablehlo.broadcast_in_dim":
                dims = op.attrs["broadcast_dimensions"]
                sizes = zip(source.shape.sizes, dims, strict=True)
                return tuple(() if size == 1 else view.axes[d] for size, d in sizes)
            case "stablehlo.reshape":
                return self._regroup(view.axes, source.shape.sizes)
            case "stablehlo.convert":
                return view.axes
        return None

    def _regroup(self, axes: Axes, sizes: Sequence[Size]) -> Axes | None:
        """The same atoms in the same order, regrouped to axes of other sizes; splits an atom that crosses axes."""
        left = [atom for axis in self.now(axes) for atom in axis][::-1]
        splits: list[tuple[int, Size, Size]] = []
        sizes_of = dict(enumerate(self.sizes))
        found: list[tuple[int, ...]] = []
        for size in sizes:
            axis: list[int] = []
            open_size: Size = size
            while open_size != 1:
                if not left:
                    return None
                atom = left.pop()
                rest = divide_exact(open_size, sizes_of[atom])
                if rest is None:
                    other = divide_exact(sizes_of[atom], open_size)
                    if other is None:
                        return None
                    first, second = len(sizes_of), len(sizes_of) + 1
                    sizes_of |= {first: open_size, second: other}
                    splits.append((atom, open_size, other))
                    left.append(second)
                    atom, rest = first, 1
                axis.append(atom)
                open_size = rest
            found.append(tuple(axis))
        if left:
            return None
        for atom, first_size, second_size in splits:
            self.parts[atom] = (len(self.sizes), len(self.sizes) + 1)
            self.sizes += [first_size, second_size]
        return tuple(found)


@dataclass(slots=True)
class Letters:
    """Letters for atoms: the first of the requested ones that is free."""

    atoms: Atoms
    names: dict[int, str] = field(default_factory=dict)

    def give(self, axes: Axes, wanted: str) -> None:
        """Name the unnamed atoms of axes."""
        for axis in self.atoms.now(axes):
            for atom in axis:
                if atom not in self.names:
                    taken = set(self.names.values())
                    pool = wanted + "bhgnmstuvwxyzacfijklopqrdeABCDEFGHIJKLMNOPQRSTUVWXYZ"
                    self.names[atom] = next(letter for letter in pool if letter not in taken)

    def spell(self, axes: Axes) -> str:
        """Axes in layout notation."""
        words = []
        for axis in self.atoms.now(axes):
            word = "".join(self.names[atom] for atom in axis)
            words.append("." if not word else word if len(word) == 1 else f"({word})")
        return "".join(words)

    def layout(self, operands: Sequence[Axes], result: Axes) -> str:
        return ",".join(self.spell(axes) for axes in operands) + "->" + self.spell(result)
