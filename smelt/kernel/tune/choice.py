"""What may be chosen about a kernel: a problem (kind and numbers), small records, and the best guess as `default`.

Builders ask `Nest.decide(problem, kind)`; `fuse` is given what answers. A choice never changes the order in which an
element is summed, so results are the same bits under every one. `kernel.search` ranges over what is `legal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from math import log2
from typing import Any, TypeAlias, TypeVar

from smelt.dim import Size, evaluate, symbols
from smelt.kernel.emit.tile_f32 import TileShape

HEIGHT = 96  # rows of one product
ROWS = 12  # the same where nothing can be chosen
SPREAD = 8  # pieces of work that should be there to spread over cores, likewise
OPEN = 64  # what a symbol may be
OPEN_ROWS, OPEN_PATCHES = 192, 64  # at most, that pass by together where their number is open
HEIGHTS = (12, 24, 48, 96)
LINE = 96  # pixels of a long line that pass by together
PATCHES = 128  # at most, whose sums lie on a stack
NEARS = (12, 24, 36, 48, 72, 96, 144, 192, 288, 384, 576, 768)  # likewise

# What a share of rows costs besides its arithmetic, in rows: to bring a panel of so many steps near, but for the
# latter part of a deep one, which is asked for ahead. And how much more rows cost the more there are of them.
STEPS, DEEPEST, MORE = 16, 10.0, 0.0014
PATCH = 1.8  # the first for patches, of which each brings sixteen rows
SMALLEST = 8  # rows of a share, where there are many
CORES = (1, 2, 4, 8)  # that work should spread over evenly: a program does not know how many there will be


@dataclass(frozen=True, slots=True)
class Contraction:
    """`near` rows pass by a block of a panel; `height`: rows of one product. `panels_first`: one panel for all rows,
    and then the next."""

    near: int
    height: int = HEIGHT
    panels_first: bool = False


@dataclass(frozen=True, slots=True)
class Convolution:
    """The same for pixels; lines of up to twice as many stay whole."""

    near: int
    height: int = HEIGHT
    panels_first: bool = False


@dataclass(frozen=True, slots=True)
class Winograd:
    """The same for patches of 4 x 4 pixels, of which each has 16 rows."""

    near: int
    height: int = HEIGHT
    panels_first: bool = False


@dataclass(frozen=True, slots=True)
class ChannelConvolution:
    """At most so many pixels of a line at once."""

    pixels: int


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


B = TypeVar("B", Contraction, Convolution, Winograd)
Blocked: TypeAlias = Contraction | Convolution | Winograd
Choice: TypeAlias = Blocked | ChannelConvolution | ExpandedConvolution | ColumnReduction | AttentionBlock

# The number behind a kind changes with its builder: what was learned about another one does not count.
KINDS: dict[str, tuple[type[Choice], int, str]] = {
    "contraction": (Contraction, 2, "groups rows depth panels width"),
    "convolution": (Convolution, 2, "images lines pixels groups depth panels width taps stride"),
    "winograd": (Winograd, 1, "patches depth panels width"),
    "channel_convolution": (ChannelConvolution, 2, "images lines pixels channels taps stride"),
    "expanded_convolution": (
        ExpandedConvolution,
        1,
        "images lines pixels across depth panels width taps stride reach",
    ),
    "column_reduction": (ColumnReduction, 1, "outer rows columns bytes"),
    "attention": (AttentionBlock, 1, "heads queries keys depth values masks width"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """All that a choice may depend on. Open sizes are what they may be, rounded up to a power of two."""

    kind: str
    numbers: tuple[tuple[str, int], ...]
    open: frozenset[str] = frozenset()

    @staticmethod
    def of(kind: str, **sizes: Size) -> Problem:
        assert " ".join(sizes) == KINDS[kind][2]
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
        if " ".join(name for name, _, _ in pairs) != KINDS[kind][2]:
            return None
        numbers = tuple((name, int(value.removeprefix("~"))) for name, _, value in pairs)
        return Problem(kind, numbers, frozenset(name for name, _, value in pairs if value.startswith("~")))


@dataclass(frozen=True, slots=True)
class Cut:
    """What a blocked choice comes to: `height` rows of one product; `rows` (pixels of a line) and `lines` of them that
    go past a block of a panel together. There is `room` for the sums of so many rows."""

    height: Size
    rows: Size
    lines: Size
    room: int


@dataclass(frozen=True, slots=True)
class Bands:
    """What a choice about an image that is made on the way comes to: `lines` of windows at a time, in so many `shares`,
    and `rows` of pixels made at once. There is room for the lines and rows that there may be at most."""

    lines: Size
    shares: Size
    rows: Size
    most_lines: int
    most_rows: int

    @staticmethod
    def of(problem: Problem, choice: ExpandedConvolution) -> Bands:
        lines, shares = bands_of(problem, choice)
        return Bands(lines, shares, choice.rows, lines, choice.rows)


Lookup: TypeAlias = Callable[[Problem], Choice | None]


def defaults(problem: Problem) -> Choice | None:
    """The lookup that knows nothing."""
    return None


@lru_cache(4096)
def default(problem: Problem) -> Choice:
    """What is done about a problem where nothing was measured."""
    match problem.kind:
        case "contraction" if "rows" in problem.open:
            return Contraction(OPEN_ROWS)
        case "winograd" if "patches" in problem.open:
            return Winograd(OPEN_PATCHES)
        case "contraction":
            others = problem["groups"] * problem["panels"]
            return Contraction(_near(problem["rows"], 1, others, _besides(problem["depth"])))
        case "winograd":
            return Winograd(min(_near(problem["patches"], 1, problem["panels"], PATCH), PATCHES))
        case "convolution" if "pixels" in problem.open or problem["pixels"] > 2 * LINE:
            return Convolution(LINE)
        case "convolution":
            others = problem["images"] * problem["groups"] * problem["panels"]
            return Convolution(_near(problem["lines"], problem["pixels"], others, _besides(problem["depth"])))
        case "channel_convolution":
            return ChannelConvolution(_pixels(problem))
        case "expanded_convolution":
            return ExpandedConvolution()
        case "column_reduction":
            return ColumnReduction()
        case "attention":
            return AttentionBlock()
    raise AssertionError(problem.kind)


def _pixels(problem: Problem) -> int:
    """Pixels of a large window share much of what they read; those of a small one hold registers that taps need. Alone
    they share nothing."""
    if "pixels" in problem.open:
        return 2 if problem["taps"] <= 9 else 8
    pixels = problem["pixels"]
    few = dividing(pixels, 2 if problem["taps"] <= 9 else 16)
    return few if few > 1 else dividing(pixels, 8)


def _besides(depth: int) -> float:
    return min(DEEPEST, 1 + depth / STEPS)


def _near(units: int, rows: int, others: int, besides: float) -> int:
    """The rows of a share, where units of so many rows are cut into shares, once for each of `others`: large enough for
    what a share costs besides, and few or many enough that no core waits long for another."""

    def cost(shares: int) -> float:
        most = -(-units // shares) * rows
        turns = sum(-(-shares * others // cores) * cores for cores in CORES)
        return turns * (besides + most + MORE * most**2)

    units, rows, others = max(units, 1), max(rows, 1), max(others, 1)
    shares = min(range(1, min(units, units * rows // SMALLEST + max(CORES)) + 1), key=cost)
    return -(-units // shares) * rows


def about(size: Size) -> int:
    """A size, or what it may be."""
    return evaluate(size, dict.fromkeys(symbols(size), OPEN))


def _about(size: Size) -> int:
    return size if isinstance(size, int) else 1 << max(about(size) - 1, 0).bit_length()


def share_of(count: Size, most: int, others: Size) -> int:
    """How many of `count` pieces one core takes at a time: at most so many, yet enough shares for all cores; `others`
    is what there is to spread besides."""
    return max(1, min(most, about(count), about(count) * about(others) // SPREAD))


# ---- what may be chosen ----


@lru_cache(1024)
def legal(problem: Problem, tile: TileShape) -> tuple[Choice, ...]:
    """The default, and others that give other loops; a small set."""
    return tuple(_distinct(problem, tile))


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
            return _blocked(Contraction, problem["rows"] <= problem["panels"] * problem["width"])
        case "convolution":
            pixels = problem["images"] * problem["lines"] * problem["pixels"]
            return _blocked(Convolution, pixels <= problem["panels"] * problem["width"])
        case "winograd":
            return (each for each in _blocked(Winograd, False) if each.near <= PATCHES)
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


def _blocked(kind: type[B], wide: bool) -> Iterator[B]:
    """Panels come first only where they are more than the rows: the lesser is what is walked through again."""
    for first in (False, True) if wide else (False,):
        for height in HEIGHTS:
            for near in NEARS:
                if near >= height:
                    yield kind(near, height, first)


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
        case Winograd(height=height, panels_first=first):
            rows = patches_of(problem, choice)
            if "patches" in problem.open:
                return rows, height, first and problem["panels"] > 1
            chunks = -(-problem["patches"] // rows)
            used = -(-problem["patches"] // max(chunks, 1))
            return chunks, -(-used // height), first and chunks > 1 and problem["panels"] > 1
        case ChannelConvolution(most):
            return (dividing(problem["pixels"], most) if "pixels" not in problem.open else most,)
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
    return choice.near if "rows" in problem.open else max(1, min(choice.near, problem["rows"]))


def pixels_of(problem: Problem, choice: Convolution) -> tuple[int, int]:
    """Pixels of a line, and lines, that go past a block of a panel together."""
    pixels = problem["pixels"]
    if "pixels" in problem.open or pixels > 2 * choice.near:
        return choice.near, 1
    lines = max(1, choice.near // max(pixels, 1))
    return pixels, lines if "lines" in problem.open else max(1, min(lines, problem["lines"]))


def patches_of(problem: Problem, choice: Winograd) -> int:
    """How many patches go past a block of a panel together."""
    return choice.near if "patches" in problem.open else max(1, min(choice.near, problem["patches"]))


def cut_of(problem: Problem, choice: Blocked) -> Cut:
    if not isinstance(choice, Convolution):
        rows = rows_of(problem, choice) if isinstance(choice, Contraction) else patches_of(problem, choice)
        return Cut(choice.height, rows, 1, rows)
    pixels, lines = pixels_of(problem, choice)
    return Cut(choice.height, pixels, lines, max(pixels * lines, 1))


def bands_of(problem: Problem, choice: ExpandedConvolution) -> tuple[int, int]:
    """Lines of windows whose image lies near, and how many shares the lines are given in: at the borders of shares
    lines of the image are made twice, a sixth of all at most."""
    lines, stride, reach = problem["lines"], problem["stride"], problem["reach"]
    held = choice.near // max(1, 4 * problem["across"] * problem["width"])
    cheap = lines * stride // max(1, 6 * (reach - stride))
    shares = max(1, min(cheap, -(-choice.spread // max(1, problem["panels"] * problem["images"]))))
    longest = max(1, (held - reach) // max(1, stride) + 1)
    return longest if "lines" in problem.open else max(1, min(-(-lines // shares), longest)), shares


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
        case Winograd(height=height, panels_first=first):
            return log2(patches_of(problem, choice) + 1), 2 * log2(height), 2.0 * first
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
