"""What may be chosen about a kernel: a problem (kind and numbers) and small records with today's best guess as default.

Builders ask `Nest.decide(problem, default)`; `fuse` is given what answers. A choice never changes the order in which an
element is summed, so results are the same bits under every one. `kernel.search` ranges over what is `legal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from math import log2
from typing import Any, TypeAlias

from smelt.dim import Size, evaluate, symbols
from smelt.kernel.tile_c import TileShape

ROWS = 12  # that one call of a product takes
NEAR = 384  # rows that pass by a block of a panel
SPREAD = 8  # pieces of work that should be there to spread over cores
OPEN = 64  # what a symbol may be
HEIGHTS = (6, 12, 24)
NEARS = (12, 24, 36, 48, 72, 96, 144, 192, 288, 384, 576, 768)  # their sums lie on a stack


@dataclass(frozen=True, slots=True)
class Contraction:
    """`near` rows pass by a block of a panel; fewer where there would be less than `spread` pieces for all cores.

    `height`: rows of one product. `panels_first`: one panel for all rows, and then the next.
    """

    near: int = NEAR
    spread: int = SPREAD
    height: int = ROWS
    panels_first: bool = False


@dataclass(frozen=True, slots=True)
class Convolution:
    """The same for pixels; lines of up to twice as many stay whole."""

    near: int = NEAR // 2
    spread: int = SPREAD
    height: int = ROWS
    panels_first: bool = False


@dataclass(frozen=True, slots=True)
class ChannelConvolution:
    """At most so many pixels of a line at once."""

    pixels: int = 8


@dataclass(frozen=True, slots=True)
class ExpandedConvolution:
    """The same for an image that is made on the way: its lines take `near` bytes, `rows` of its pixels are made at
    once; lines are shared out where there are less than `spread` pieces."""

    pixels: int = 8
    near: int = 192 << 10
    rows: int = 96
    spread: int = SPREAD


@dataclass(frozen=True, slots=True)
class ColumnReduction:
    """Columns that one turn takes."""

    wide: int = 64


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Queries of a block; 0: as many as a tile has columns."""

    queries: int = 0


Choice: TypeAlias = (
    Contraction | Convolution | ChannelConvolution | ExpandedConvolution | ColumnReduction | AttentionBlock
)

# The number behind a kind changes with its builder: what was learned about another one does not count.
KINDS: dict[str, tuple[type[Choice], int]] = {
    "contraction": (Contraction, 1),
    "convolution": (Convolution, 1),
    "channel_convolution": (ChannelConvolution, 1),
    "expanded_convolution": (ExpandedConvolution, 1),
    "column_reduction": (ColumnReduction, 1),
    "attention": (AttentionBlock, 1),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """All that a choice may depend on. Open sizes are what they may be, rounded up to a power of two."""

    kind: str
    numbers: tuple[tuple[str, int], ...]
    open: frozenset[str] = frozenset()

    @staticmethod
    def of(kind: str, **sizes: Size) -> Problem:
        assert kind in KINDS
        opened = frozenset(name for name, size in sizes.items() if not isinstance(size, int))
        return Problem(kind, tuple((name, _about(size)) for name, size in sizes.items()), opened)

    def __getitem__(self, name: str) -> int:
        return dict(self.numbers)[name]

    def __str__(self) -> str:
        """A stable text: the key of what is known about the problem."""
        numbers = (f"{name}={'~' * (name in self.open)}{number}" for name, number in self.numbers)
        return " ".join([f"{self.kind}/{KINDS[self.kind][1]}", *numbers])

    @staticmethod
    def parse(text: str) -> Problem | None:
        """The problem of a text; None for one of another time, or none at all."""
        head, *parts = text.split(" ")
        kind, _, revision = head.partition("/")
        pairs = [part.partition("=") for part in parts]
        plain = all(equals and value.removeprefix("~").isdecimal() for _, equals, value in pairs)
        if kind not in KINDS or revision != str(KINDS[kind][1]) or not plain:
            return None
        numbers = tuple((name, int(value.removeprefix("~"))) for name, _, value in pairs)
        return Problem(kind, numbers, frozenset(name for name, _, value in pairs if value.startswith("~")))


Lookup: TypeAlias = Callable[[Problem], Choice | None]


def defaults(problem: Problem) -> Choice | None:
    """The lookup that knows nothing."""
    return None


def default(problem: Problem) -> Choice:
    return KINDS[problem.kind][0]()


def about(size: Size) -> int:
    """A size, or what it may be."""
    return evaluate(size, dict.fromkeys(symbols(size), OPEN))


def _about(size: Size) -> int:
    return size if isinstance(size, int) else 1 << max(about(size) - 1, 0).bit_length()


def share_of(count: Size, most: int, others: Size, spread: int = SPREAD) -> int:
    """How many of `count` pieces one core takes at a time: at most so many, yet enough shares for all cores; `others`
    is what there is to spread besides."""
    return max(1, min(most, about(count), about(count) * about(others) // spread))


# ---- what may be chosen ----


@lru_cache(1024)
def legal(problem: Problem, tile: TileShape) -> tuple[Choice, ...]:
    """The default, and others that give other loops; a small set."""
    try:
        return tuple(_distinct(problem, tile))
    except KeyError:  # a problem with numbers of another time
        return (default(problem),)


def _distinct(problem: Problem, tile: TileShape) -> Iterator[Choice]:
    seen: set[tuple[Any, ...]] = set()
    usual = default(problem)
    for choice in (usual, *_candidates(problem, tile)):
        effect = effect_of(problem, choice, tile)
        if effect not in seen:
            seen.add(effect)
            yield choice


def _candidates(problem: Problem, tile: TileShape) -> Iterable[Choice]:
    match problem.kind:
        case "contraction":
            return _blocked(Contraction)
        case "convolution":
            return _blocked(Convolution)
        case "channel_convolution":
            return (ChannelConvolution(n) for n in range(1, 17) if problem["pixels"] % n == 0)
        case "expanded_convolution":
            return (
                ExpandedConvolution(n, near << 10, rows, spread)
                for n in range(4, 17)
                if problem["pixels"] % n == 0
                for near in (96, 192, 288)
                for rows in (48, 96, 192)
                for spread in (1, 4, 8, 16)
            )
        case "column_reduction":
            return (ColumnReduction(wide) for wide in (16, 32, 128, 256, 512))
        case "attention":
            return (AttentionBlock(n) for n in range(tile.lanes, problem["width"], tile.lanes))
    raise AssertionError(problem.kind)


def _blocked(kind: type[Contraction] | type[Convolution]) -> Iterator[Choice]:
    for first in (False, True):
        for height in HEIGHTS:
            for near in NEARS:
                if near >= height:
                    yield kind(near, 1, height, first)


def effect_of(problem: Problem, choice: Choice, tile: TileShape) -> tuple[Any, ...]:
    """What a choice comes to for a problem: choices of one effect give the same loops."""
    match choice:
        case Contraction(height=height, panels_first=first):
            rows = rows_of(problem, choice)
            if "rows" in problem.open:
                return rows, height, first and problem["panels"] > 1
            chunks = -(-problem["rows"] // rows)
            used = -(-problem["rows"] // max(chunks, 1))
            return chunks, -(-used // height), first and chunks > 1 and problem["panels"] > 1
        case Convolution(height=height, panels_first=first):
            near, lines = pixels_of(problem, choice)
            if "pixels" in problem.open:
                return near, lines, height, first and problem["panels"] > 1
            chunks, pieces = -(-problem["lines"] // lines), -(-problem["pixels"] // max(near, 1))
            used = -(-problem["pixels"] // max(pieces, 1))
            several = problem["images"] * chunks * pieces > 1
            return chunks, pieces, -(-used // height), first and several and problem["panels"] > 1
        case ChannelConvolution(most):
            return (dividing(problem["pixels"], most),) if "pixels" not in problem.open else ()
        case ExpandedConvolution(pixels, _, rows, _):
            made = problem["lines"] * problem["across"]
            return dividing(problem["pixels"], pixels), min(rows, made), *bands_of(problem, choice)
        case ColumnReduction(wide):
            return (min(wide, 16 * -(-problem["columns"] // 16)),)
        case AttentionBlock(queries):
            block = queries or problem["width"]
            return (min(block, tile.lanes * -(-problem["queries"] // tile.lanes)),)


def rows_of(problem: Problem, choice: Contraction) -> int:
    """How many rows go past a block of a panel together."""
    count = -(-problem["rows"] // choice.height)
    others = problem["panels"] * problem["groups"]
    return choice.height * share_of(count, max(1, choice.near // choice.height), others, choice.spread)


def pixels_of(problem: Problem, choice: Convolution) -> tuple[int, int]:
    """Pixels of a line, and lines, that go past a block of a panel together."""
    pixels = problem["pixels"]
    if "pixels" in problem.open or pixels > 2 * choice.near:
        return choice.near, 1
    others = problem["images"] * problem["groups"] * problem["panels"]
    return pixels, share_of(problem["lines"], max(1, choice.near // max(pixels, 1)), others, choice.spread)


def bands_of(problem: Problem, choice: ExpandedConvolution) -> tuple[int, int]:
    """Lines of windows whose image lies near, and how many shares the lines are given in: at the borders of shares
    lines of the image are made twice, a sixth of all at most."""
    lines, stride, reach = problem["lines"], problem["stride"], problem["reach"]
    held = choice.near // max(1, 4 * problem["across"] * problem["width"])
    cheap = lines * stride // max(1, 6 * (reach - stride))
    shares = max(1, min(cheap, -(-choice.spread // max(1, problem["panels"] * problem["images"]))))
    return max(1, min(-(-lines // shares), (held - reach) // max(1, stride) + 1)), shares


def dividing(count: Size, most: int) -> int:
    """The greatest number up to `most` that divides a size; 1 where the size is open."""
    return max(n for n in range(1, most + 1) if n == 1 or (isinstance(count, int) and count % n == 0))


# ---- choices as numbers and as data ----


def features(problem: Problem, choice: Choice) -> tuple[float, ...]:
    """Where a choice lies among others of a problem; neighbours are about 1 apart."""
    match choice:
        case Contraction(height=height, panels_first=first):
            return log2(rows_of(problem, choice)), 2 * log2(height), 2.0 * first
        case Convolution(height=height, panels_first=first):
            near, lines = pixels_of(problem, choice)
            return log2(near * lines + 1), 2 * log2(height), 2.0 * first
        case ExpandedConvolution(pixels, near, rows, spread):
            return log2(pixels), log2(near), log2(rows), log2(spread)
        case ChannelConvolution(number) | ColumnReduction(number) | AttentionBlock(number):
            return (log2((number or problem["width"]) + 1),)


def scale_of(problem: Problem) -> tuple[float, ...]:
    """Where a problem lies among others of its kind."""
    return tuple(log2(number + 1) for _, number in problem.numbers)


def record_of(choice: Choice) -> dict[str, int]:
    return asdict(choice)


def choice_of(problem: Problem, record: Mapping[str, Any], tile: TileShape) -> Choice | None:
    """The choice of a record, if it is legal for a problem."""
    kind = KINDS[problem.kind][0]
    if {each.name for each in fields(kind)} != record.keys() or not all(
        type(v) in (int, bool) for v in record.values()
    ):
        return None
    found = kind(**record)
    return found if found in legal(problem, tile) else None


def text_of(choice: Choice) -> str:
    return " ".join(f"{name}={int(value)}" for name, value in record_of(choice).items())
