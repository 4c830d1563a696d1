"""Layout: the order of a tensor's elements in memory, as one text: `gkn->g n/64 k/4 (n%64 k%4)`.

Left of the arrow a letter for each axis of the tensor, right of it the axes of the array that is stored. An index is
split into digits as a number is: `n/64` is the quotient, `n%64` the remainder, `n/4%16` the digit between them. Digits
in parentheses form one axis, the last one fastest. A size that is no multiple is padded with zeros.

Packed panels of every element type, and whatever another device wants to read, are layouts. `smelt.relayout` stores a
tensor in one; ops that read it name it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Self

import numpy as np

from smelt.dim import Size, ceildiv, product
from smelt.dtype import Array
from smelt.frozen import Frozen

_DIGIT = re.compile(r"([a-z])(?:/([1-9][0-9]{0,8}))?(?:%([1-9][0-9]{0,8}))?")
_AXIS = re.compile(r"\(([^()]*)\)|([^\s()]+)")


class Digit(Frozen):
    """index[axis] / by % size; without a size (0) it is the leading digit."""

    axis: int
    by: int
    size: int

    def count(self, sizes: Sequence[Size]) -> Size:
        """The number of its values in a tensor of these sizes."""
        return self.size or ceildiv(sizes[self.axis], self.by)


class Layout(Frozen):
    """`letters` name the tensor's axes; `axes` are the stored ones."""

    letters: str
    axes: tuple[tuple[Digit, ...], ...]

    @classmethod
    @lru_cache(256)
    def parse(cls, text: str) -> Self:
        """The layout of a text; ValueError with the reason where it is none."""
        letters, arrow, stored = text.partition("->")
        if not arrow or not re.fullmatch("[a-z]*", letters) or len({*letters}) != len(letters):
            raise ValueError("a layout is `axes->stored axes`, with a letter for each axis")
        if _AXIS.sub("", stored).strip():
            raise ValueError(f"{stored!r} is no list of axes")
        axes = tuple(
            tuple(_digit(each, letters) for each in (group or alone).split()) for group, alone in _AXIS.findall(stored)
        )
        found = cls(letters, axes)
        for axis, letter in enumerate(letters):
            if not found._is_whole(axis):
                raise ValueError(f"the digits of {letter} are not those of one number")
        return found

    def _is_whole(self, axis: int) -> bool:
        """Whether the digits of an axis are a number: each is worth the product of the lower ones."""
        worth, *digits = 1, *sorted(self._digits(axis), key=lambda each: (each.by, not each.size))
        for each in digits:
            if each.by != worth or bool(each.size) == (each is digits[-1]):
                return False
            worth *= each.size
        return bool(digits)

    def _digits(self, axis: int) -> list[Digit]:
        return [digit for group in self.axes for digit in group if digit.axis == axis]

    def __str__(self) -> str:
        def text(digit: Digit) -> str:
            by = f"/{digit.by}" if digit.by > 1 else ""
            return self.letters[digit.axis] + by + (f"%{digit.size}" if digit.size else "")

        groups = (" ".join(map(text, group)) for group in self.axes)
        return f"{self.letters}->" + " ".join(
            each if len(group) == 1 else f"({each})" for each, group in zip(groups, self.axes, strict=True)
        )

    def multiple(self, axis: int) -> int:
        """What the size of an axis is padded to a multiple of."""
        return max(digit.by for digit in self._digits(axis) if not digit.size)

    def pads(self, axis: int, sizes: Sequence[Size]) -> bool:
        """Whether an axis may be padded."""
        size, multiple = sizes[axis], self.multiple(axis)
        return multiple > 1 and not (isinstance(size, int) and size % multiple == 0)

    def stored_sizes(self, sizes: Sequence[Size]) -> tuple[Size, ...]:
        """The sizes of the stored array."""
        return tuple(product(digit.count(sizes) for digit in group) for group in self.axes)

    def store(self, x: Array) -> Array:
        """The stored array of a tensor."""
        padded = self._pad(x.shape)
        full = np.zeros(padded, x.dtype)
        full[tuple(map(slice, x.shape))] = x
        order, stored = self._order, self._stored
        moved = full.reshape(_counts(order, padded)).transpose([order.index(digit) for digit in stored])
        return np.ascontiguousarray(moved).reshape([prod(_counts(group, padded)) for group in self.axes])

    def restore(self, stored: Array, sizes: Sequence[int]) -> Array:
        """The tensor of these sizes behind a stored array."""
        padded, order, held = self._pad(sizes), self._order, self._stored
        full = stored.reshape(_counts(held, padded)).transpose([held.index(digit) for digit in order])
        return full.reshape(padded)[tuple(map(slice, sizes))]

    def _pad(self, sizes: Sequence[int]) -> list[int]:
        return [-(-size // self.multiple(axis)) * self.multiple(axis) for axis, size in enumerate(sizes)]

    @property
    def _stored(self) -> list[Digit]:
        """All digits in the order of memory."""
        return [digit for group in self.axes for digit in group]

    @property
    def _order(self) -> list[Digit]:
        """All digits, axis by axis, the leading one of each first."""
        return [
            digit
            for axis in range(len(self.letters))
            for digit in sorted(self._digits(axis), key=lambda each: (bool(each.size), -each.by))
        ]


def _counts(digits: Sequence[Digit], padded: Sequence[int]) -> list[int]:
    """The number of values of each digit."""
    return [digit.size or padded[digit.axis] // digit.by for digit in digits]


def _digit(text: str, letters: str) -> Digit:
    found = _DIGIT.fullmatch(text)
    if found is None or found[1] not in letters:
        raise ValueError(f"{text!r} is no digit of an axis")
    return Digit(letters.index(found[1]), int(found[2] or 1), int(found[3] or 0))


def panels(width: int, k_pack: int = 1) -> str:
    """The layout of packed panels of a matrix [group, k, column]: `width` columns each, of which `k_pack` steps of k
    are adjacent."""
    if k_pack == 1:
        return f"gkn->g n/{width} k n%{width}"
    return f"gkn->g n/{width} k/{k_pack} (n%{width} k%{k_pack})"


# A page of keys in i8 is [k / WORD + SCALES, position, WORD]: words of four elements, then the f32 scales of each
# position's key and of its value. A page of values is [position / WORD, element, WORD]: words of four positions.
WORD = 4
SCALES = 2
