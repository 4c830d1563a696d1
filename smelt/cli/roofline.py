"""The roofline as SVG: the machine's limit at each arithmetic intensity, and a point for every kernel.

Points and peaks → the text of an SVG file. `smelt profile --svg` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from smelt.device.peak import Peaks

WIDTH, HEIGHT = 960, 600
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 50, 60
FLOOR = HEIGHT - BOTTOM
CHARACTER = 6.6  # pixels of a letter of a label, at most
STEPS = 12  # lines up and down that a label may be from its circle
NAMED = 0.03  # of the time: kernels that take more have their name beside them
COLOURS = ("#1b6ca8", "#d1495b", "#3d8b57", "#8a5bb0", "#c8862a", "#4a9aa5", "#7a7a7a")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.title{font-size:16px;font-weight:600}.axis{stroke:#444}"
    ".grid{stroke:#e4e4e4}.roof{fill:none;stroke:#222;stroke-width:2}.cache{fill:none;stroke:#999;stroke-dasharray:5 4}"
    ".name{font-size:11px;fill:#444}circle{fill-opacity:.65;stroke:#fff}"
)


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel: operations per byte, GFLOP/s, its fraction of the time, and its tooltip."""

    name: str
    kind: str
    intensity: float
    gflops: float
    share: float
    note: str


@dataclass(frozen=True, slots=True)
class _Axes:
    """Both logarithmic, from a power of ten to a power of ten."""

    x: tuple[int, int]
    y: tuple[int, int]

    def place(self, intensity: float, gflops: float) -> tuple[float, float]:
        return (
            LEFT + (math.log10(intensity) - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (math.log10(gflops) - self.y[0]) / (self.y[1] - self.y[0]) * (HEIGHT - TOP - BOTTOM),
        )


def roofline_svg(title: str, points: Sequence[Point], peaks: Peaks) -> str:
    """The picture. Kernels that do no arithmetic, or take no time, are not in it."""
    shown = [point for point in points if point.intensity > 0 and point.gflops > 0]
    axes = _axes(shown, peaks)
    kinds = list(dict.fromkeys(point.kind for point in sorted(shown, key=lambda point: -point.share)))
    colours = {kind: COLOURS[min(i, len(COLOURS) - 1)] for i, kind in enumerate(kinds)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="title" x="{LEFT}" y="28">{escape(title)}</text>',
        *_grid(axes),
        *_roofs(axes, peaks),
        *(_dot(axes, point, colours[point.kind]) for point in sorted(shown, key=lambda point: -point.share)),
        *_labels(axes, shown, peaks, colours),
        *_legend(colours),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(points: Sequence[Point], peaks: Peaks) -> _Axes:
    ridge = peaks.gflops / peaks.memory_bandwidth
    across = [ridge, 0.1, *(point.intensity for point in points)]
    up = [peaks.gflops, *(point.gflops for point in points)]
    return _Axes(_decades(across), _decades(up))


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.2))
    return low, max(high, low + 1)


def _grid(axes: _Axes) -> list[str]:
    parts = []
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for power in range(axes.x[0], axes.x[1] + 1):
        x, _ = axes.place(10.0**power, 10.0 ** axes.y[0])
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{10.0**power:g}</text>')
    for power in range(axes.y[0], axes.y[1] + 1):
        _, y = axes.place(10.0 ** axes.x[0], 10.0**power)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{bottom}"/>')
    middle = (LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 18}" text-anchor="middle">operations per byte</text>')
    parts.append(f'<text transform="translate(18 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">GFLOP/s</text>')
    return parts


def _roofs(axes: _Axes, peaks: Peaks) -> list[str]:
    """The roof of main memory, and a dashed one of the fastest cache."""
    fastest = max(rate for _, rate in peaks.bandwidth)
    parts = []
    for rate, style in ((fastest, "cache"), (peaks.memory_bandwidth, "roof")):
        start = max(10.0 ** axes.x[0], 10.0 ** axes.y[0] / rate)
        ridge = peaks.gflops / rate
        places = [(start, start * rate), (ridge, peaks.gflops)] if start < ridge else [(start, peaks.gflops)]
        corners = [axes.place(*place) for place in (*places, (10.0 ** axes.x[1], peaks.gflops))]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        parts.append(f'<polyline class="{style}" points="{path}"/>')
    return parts


def _dot(axes: _Axes, point: Point, colour: str) -> str:
    x, y = axes.place(point.intensity, point.gflops)
    radius = _radius(point)
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}">'
    return f"<g>{circle}<title>{escape(point.note)}</title></circle></g>"


# ---- labels ----


@dataclass(frozen=True, slots=True)
class Box:
    """A label's place, in pixels from the top left."""

    left: float
    top: float
    width: float
    height: float = 13.0

    def overlaps(self, other: Box) -> bool:
        across = self.left < other.left + other.width and other.left < self.left + self.width
        return across and self.top < other.top + other.height and other.top < self.top + self.height

    @property
    def is_inside(self) -> bool:
        return self.left >= LEFT and self.top >= TOP and self.left + self.width <= WIDTH - 2 and self.bottom <= FLOOR

    @property
    def bottom(self) -> float:
        return self.top + self.height


def _labels(axes: _Axes, points: Sequence[Point], peaks: Peaks, colours: dict[str, str]) -> list[str]:
    """Names of the roofs and of the kernels that take the most time; a name without a free place is left out."""
    taken = [Box(WIDTH - RIGHT - 138, _legend_line(0, colours) - 12, 138 + RIGHT, HEIGHT)]  # the legend
    parts = []
    for text, anchors in _names(axes, points, peaks):
        width = CHARACTER * len(text)
        boxes = (Box(x - width if at_end else x, y - 10, width) for x, y, at_end in anchors)
        box = next((each for each in boxes if each.is_inside and not any(map(each.overlaps, taken))), None)
        if box is not None:
            taken.append(box)
            parts.append(f'<text class="name" x="{box.left:.1f}" y="{box.top + 10:.1f}">{escape(text)}</text>')
    return parts


def _names(
    axes: _Axes, points: Sequence[Point], peaks: Peaks
) -> Iterator[tuple[str, Iterator[tuple[float, float, bool]]]]:
    """Each text, with places for it, the best first: x, y, and whether the text ends there."""
    x, y = axes.place(10.0 ** axes.x[1], peaks.gflops)
    roof = f"{peaks.gflops:.0f} GFLOP/s, {peaks.threads} thread{'s' if peaks.threads > 1 else ''}"
    yield roof, ((x, y + lift, True) for lift in (-6, 14))
    for rate, where in ((peaks.memory_bandwidth, "memory"), (max(rate for _, rate in peaks.bandwidth), "cache")):
        yield f"{rate:.0f} GB/s {where}", _along_roof(axes, peaks, rate)
    for point in sorted(points, key=lambda point: -point.share):
        if point.share > NAMED:
            yield point.name, _around(*axes.place(point.intensity, point.gflops), _radius(point) + 2)


def _along_roof(axes: _Axes, peaks: Peaks, rate: float) -> Iterator[tuple[float, float, bool]]:
    start, ridge = max(10.0 ** axes.x[0], 10.0 ** axes.y[0] / rate), peaks.gflops / rate
    for part in (0.5, 0.35, 0.65, 0.2, 0.8):
        intensity = start * (ridge / start) ** part
        x, y = axes.place(intensity, intensity * rate)
        yield x - 6, y - 6, True
        yield x + 6, y + 14, False


def _around(x: float, y: float, radius: float) -> Iterator[tuple[float, float, bool]]:
    """Places beside a circle, then further up and down."""
    for step in range(STEPS):
        for lift in (-step, step) if step else (0,):
            yield x + radius, y + 4 + 14 * lift, False
            yield x - radius, y + 4 + 14 * lift, True


def _radius(point: Point) -> float:
    return 3 + 27 * math.sqrt(min(max(point.share, 0.0), 1.0))


def _legend_line(i: int, colours: dict[str, str]) -> int:
    return HEIGHT - BOTTOM - 18 * (min(len(colours), len(COLOURS)) - i) + 4


def _legend(colours: dict[str, str]) -> list[str]:
    parts = []
    for i, (kind, colour) in enumerate(list(colours.items())[: len(COLOURS)]):
        name = kind if i < len(COLOURS) - 1 or len(colours) == len(COLOURS) else "other"
        y = _legend_line(i, colours)
        parts.append(f'<circle cx="{WIDTH - RIGHT - 130}" cy="{y - 4}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT - 118}" y="{y}">{escape(name)}</text>')
    return parts
