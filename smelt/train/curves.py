"""Curves of a run as pictures: SVG as text, PNG by a small rasteriser. No other package is needed."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from smelt.dtype import Array
from smelt.errors import UnsupportedError
from smelt.files import write_atomically

Curve = Sequence[tuple[float, float]]  # (step, value)
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 400, 70, 20, 20, 40
_COLOURS = ((31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189))


def draw_curves(path: str | Path, curves: Mapping[str, Curve]) -> None:
    """Draw named curves over steps, by the file's suffix: `.svg` or `.png`. Points that are not finite are left out."""
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise UnsupportedError("curves are drawn as .svg or .png", got=path.name)
    kept = {name: [(x, y) for x, y in curve if math.isfinite(y)] for name, curve in curves.items()}
    frame = _Frame([point for curve in kept.values() for point in curve])
    write_atomically(path, [_svg(kept, frame) if path.suffix == ".svg" else _png(kept, frame)])


class _Frame:
    """Where numbers are in the picture."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        xs, ys = ([point[i] for point in points] or [0.0, 1.0] for i in (0, 1))
        self.low = min(xs), min(ys)
        self.high = max(max(xs), self.low[0] + 1e-9), max(max(ys), self.low[1] + 1e-9 + abs(self.low[1]) * 1e-6)

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.low[0]) / (self.high[0] - self.low[0])
        up = (y - self.low[1]) / (self.high[1] - self.low[1])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    def ticks(self, axis: int) -> list[float]:
        """About five round numbers."""
        span = self.high[axis] - self.low[axis]
        unit = 10 ** math.floor(math.log10(span / 4))
        step = next(unit * k for k in (1, 2, 5, 10) if span / (unit * k) <= 6)
        first = math.ceil(self.low[axis] / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high[axis] / step + 1e-9) + 1)]


def _text(number: float) -> str:
    return f"{number:.6g}"


def _svg(curves: Mapping[str, Curve], frame: _Frame) -> bytes:
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<g font-family="sans-serif" font-size="12" stroke-width="1" stroke="#ddd">',
    ]
    for tick in frame.ticks(0):
        x, _ = frame.place(tick, frame.low[1])
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(_label(x, _HEIGHT - _BOTTOM + 16, _text(tick), "middle"))
    for tick in frame.ticks(1):
        _, y = frame.place(frame.low[0], tick)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(_label(_LEFT - 6, y + 4, _text(tick), "end"))
    parts.append("</g>")
    for number, (name, curve) in enumerate(curves.items()):
        colour = "#{:02x}{:02x}{:02x}".format(*_COLOURS[number % len(_COLOURS)])
        points = " ".join("{:.1f},{:.1f}".format(*frame.place(x, y)) for x, y in curve)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        parts.append(
            f'<text x="{_WIDTH - _RIGHT - 8}" y="{_TOP + 16 + 16 * number}" text-anchor="end" fill="{colour}" '
            f'font-family="sans-serif" font-size="13">{escape(name)}</text>'
        )
    return ("\n".join([*parts, "</svg>"]) + "\n").encode()


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" stroke="none" fill="#444" text-anchor="{anchor}">{text}</text>'


# ---- PNG ----

_GLYPHS = dict(
    zip(
        "0123456789.-+e",
        (
            "757557", "262227", "717747", "717717", "557711", "747717", "747757", "711111", "757757", "757717",
            "000002", "000700", "002720", "075747",
        ),
        strict=True,
    )
)  # rows of three pixels each, as octal digits  # fmt: skip


def _png(curves: Mapping[str, Curve], frame: _Frame) -> bytes:
    image = np.full((_HEIGHT, _WIDTH, 3), 255, np.uint8)
    for tick in frame.ticks(0):
        x, _ = frame.place(tick, frame.low[1])
        image[_TOP : _HEIGHT - _BOTTOM, round(x)] = 221
        _write(image, round(x) - 4 * len(_text(tick)), _HEIGHT - _BOTTOM + 6, _text(tick))
    for tick in frame.ticks(1):
        _, y = frame.place(frame.low[0], tick)
        image[round(y), _LEFT : _WIDTH - _RIGHT] = 221
        _write(image, _LEFT - 6 - 8 * len(_text(tick)), round(y) - 6, _text(tick))
    for number, curve in enumerate(curves.values()):
        places = [frame.place(x, y) for x, y in curve]
        for start, end in zip(places, places[1:] or places, strict=False):
            _line(image, start, end, _COLOURS[number % len(_COLOURS)])
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    head = struct.pack(">IIBBBBB", _WIDTH, _HEIGHT, 8, 2, 0, 0, 0)
    body = _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _line(image: Array, start: tuple[float, float], end: tuple[float, float], colour: Sequence[int]) -> None:
    count = int(max(abs(end[0] - start[0]), abs(end[1] - start[1]))) + 1
    xs, ys = (np.linspace(a, b, count + 1).round().astype(int) for a, b in zip(start, end, strict=True))
    for down in (0, 1):  # two pixels wide
        image[np.clip(ys + down, 0, _HEIGHT - 1), np.clip(xs, 0, _WIDTH - 1)] = colour


def _write(image: Array, x: int, y: int, text: str) -> None:
    """Digits, each pixel of the font as four."""
    for character in text:
        for row, bits in enumerate(_GLYPHS.get(character, "000000")):
            for column in range(3):
                if int(bits) >> (2 - column) & 1:
                    image[y + 2 * row : y + 2 * row + 2, x + 2 * column : x + 2 * column + 2] = 68
        x += 8
