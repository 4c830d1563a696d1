"""Adjustable kernels: how work is cut is told at every call, so that one build measures every choice of every problem.

`fuse` is given an `Adjustable`: builders get symbols for their cuts, and a kernel has a form for each choice that gives
other loops. `emit_c` writes both so that they follow a table of settings; `engine.tune` fills the table. Programs that
are built to be used hold nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from smelt.dim import symbol
from smelt.kernel.emit.tile_f32 import TileShape
from smelt.kernel.tune.choice import (
    Bands,
    Blocked,
    Choice,
    Cut,
    ExpandedConvolution,
    Problem,
    bands_of,
    cut_of,
    legal,
)

FORM, HEIGHT, ROWS, LINES = range(4)  # places of a problem's numbers in the table of settings
SHARES = HEIGHT  # an image that is made on the way has no heights
EACH = 4


@dataclass(slots=True)
class Adjustable:
    """Problems whose choices stay open, numbered as builders ask about them."""

    tile: TileShape
    numbers: dict[Problem, int] = field(default_factory=dict)

    def number(self, problem: Problem) -> int:
        return self.numbers.setdefault(problem, len(self.numbers))

    def cut(self, problem: Problem) -> Cut:
        """Symbols, and room for whatever they may be."""
        first = EACH * self.number(problem)
        room = max(cut_of(problem, each).room for each in legal(problem, self.tile) if isinstance(each, Blocked))
        height, rows, lines = (symbol(setting(first + place)) for place in (HEIGHT, ROWS, LINES))
        return Cut(height, rows, lines, room)

    def bands(self, problem: Problem) -> Bands:
        """The same for an image that is made on the way."""
        first = EACH * self.number(problem)
        all_of = [
            Bands.of(problem, each) for each in legal(problem, self.tile) if isinstance(each, ExpandedConvolution)
        ]
        lines, shares, rows = (symbol(setting(first + place)) for place in (LINES, SHARES, ROWS))
        return Bands(
            lines, shares, rows, max(each.most_lines for each in all_of), max(each.most_rows for each in all_of)
        )

    def forms(self, problem: Problem) -> tuple[Choice, ...]:
        """A choice for every form that a kernel of this problem has; the default's first."""
        self.number(problem)
        found: dict[Any, Choice] = {}
        for each in legal(problem, self.tile):
            found.setdefault(_form(each), each)
        return tuple(found.values())

    def settings(self, problem: Problem, choice: Choice) -> list[int]:
        """The numbers of a choice."""
        form = [*map(_form, self.forms(problem))].index(_form(choice))
        if isinstance(choice, ExpandedConvolution):
            return [form, bands_of(problem, choice)[1], choice.rows, bands_of(problem, choice)[0]]
        if not isinstance(choice, Blocked):
            return [form, 0, 0, 0]
        cut = cut_of(problem, choice)
        assert isinstance(cut.height, int)
        assert isinstance(cut.rows, int)
        assert isinstance(cut.lines, int)
        return [form, max(cut.height, 1), max(cut.rows, 1), max(cut.lines, 1)]


def _form(choice: Choice) -> Choice:
    """Whatever of a choice its cut does not say."""
    if isinstance(choice, Blocked):
        return type(choice)(0, panels_first=choice.panels_first)
    if isinstance(choice, ExpandedConvolution):
        return ExpandedConvolution(choice.pixels)
    return choice


def setting(place: int) -> str:
    """The symbol for a place in the table; no model has such a name."""
    return f"setting {place}"
