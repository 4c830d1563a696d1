"""`python bench/picture.py [FILE.json] [FILE.svg]`: the README's picture from measured figures.

In: medians per model and engine with date, machine, versions and command (docs/pictures/latency.json). Out: one SVG of
bars, each engine's latency relative to smelt's. tests/unit/test_picture.py keeps picture, data and docs the same.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "docs" / "pictures" / "latency.json"
NAMES = {"smelt": "smelt", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
COLOURS = {"smelt": "#d9480f", "onnxruntime": "#748ffc", "openvino": "#94d82d"}

WIDTH, LEFT, RIGHT, TOP = 760, 150, 60, 64  # pixels
BAR, GAP = 12, 9
MOST = 1.75  # where the axis ends: longer bars are cut, and their number says how long they are

STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.small{font-size:10.5px;fill:#59636e}.grid{stroke:#8886}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}}"
)


def draw(data: dict[str, Any]) -> str:
    """The picture of one set of measurements."""
    models: dict[str, Any] = data["models"]
    group = BAR * len(NAMES) + GAP
    bottom = TOP + group * len(models)
    parts = [
        text(12, 22, "Latency of one call relative to smelt (shorter is faster)", "font-weight:600;font-size:14px"),
        *legend(),
        *axis(bottom),
    ]
    for row, (name, engines) in enumerate(models.items()):
        top = TOP + row * group
        median = f"{engines['smelt']['median_ms']:g} ms"
        parts.append(text(12, top + 14, name))
        parts.append(text(12, top + 28, f"smelt {median}", kind="small"))
        for place, engine in enumerate(NAMES):
            ratio = engines[engine]["median_ms"] / engines["smelt"]["median_ms"]
            parts += bar(top + place * BAR, ratio, engine)
    notes = (
        f"Medians, {data['settings']}; {data['noise']}.",
        f"{data['date']}: {', '.join(f'{NAMES[name]} {version}' for name, version in data['versions'].items())};",
        data["machine"],
    )
    parts += [text(12, bottom + 36 + 15 * line, note, kind="small") for line, note in enumerate(notes)]
    height = bottom + 76
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img"><title>Latency relative to smelt</title><style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def along(ratio: float) -> float:
    """A ratio's place on the axis."""
    return LEFT + (WIDTH - LEFT - RIGHT) * min(ratio, MOST) / MOST


def legend() -> list[str]:
    parts = []
    for place, (engine, name) in enumerate(NAMES.items()):
        x = LEFT + 120 * place
        parts.append(f'<rect x="{x}" y="36" width="10" height="10" fill="{COLOURS[engine]}"/>')
        parts.append(text(x + 15, 45, name))
    return parts


def axis(bottom: int) -> list[str]:
    parts = []
    for tick in (0, 0.5, 1, 1.5):
        x = along(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(text(x, bottom + 14, f"{tick:g} ×", "text-anchor:middle", "small"))
    return parts


def bar(top: int, ratio: float, engine: str) -> list[str]:
    width = along(ratio) - LEFT
    label = f"{ratio:.2f}" + (" →" if ratio > MOST else "")
    return [
        f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR - 1}" fill="{COLOURS[engine]}"/>',
        text(LEFT + width + 4, top + 9.5, label, kind="small"),
    ]


def text(x: float, y: float, content: str, style: str = "", kind: str = "") -> str:
    styled = (f' class="{kind}"' if kind else "") + (f' style="{style}"' if style else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{styled}>{escape(content)}</text>'


def main() -> None:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".svg")
    target.write_text(draw(json.loads(source.read_text("utf-8"))), "utf-8")
    print(target)


if __name__ == "__main__":
    main()
