"""Default schedules and their search spaces, and pictures, as text: what else would change unseen.

`pytest tests/golden --update-golden` writes the texts again; read the difference.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from itertools import product
from pathlib import Path

import pytest

from smelt.cli.roofline import Point, roofline_svg
from smelt.device.peak import FOOTPRINTS, Peaks
from smelt.dim import Size, symbol
from smelt.kernel.tune.schedules import (
    KINDS,
    ExpandDepthwise,
    KernelKey,
    RowBands,
    chunk_size,
    default_schedule,
    effect_of,
    features,
    largest_divisor,
    legal_schedules,
    scale_of,
)
from smelt.target import TileShape
from smelt.train.curves import draw_curves

HERE = Path(__file__).parent
N: Size = symbol("N")
# For each kind sizes in the order of its key: small, large, odd, one of everything.
KEYS: dict[str, list[tuple[Size, ...]]] = {
    "gemm": [(1, 1, 1, 1, 16), (1, 128, 768, 12, 64), (12, 197, 64, 4, 32), (2, 1000, 17, 3, 16), (1, N, 256, 2, 64)],
    "conv": [
        (1, 56, 56, 1, 64, 4, 64, 9, 1), (8, 7, 7, 1, 512, 8, 64, 1, 1), (1, 1, 193, 2, 3, 1, 16, 49, 2),
        (1, 3, 192, 1, 8, 2, 32, 3, 1), (1, N, N, 1, 32, 2, 64, 9, 1), (N, 14, 14, 1, 256, 4, 64, 9, 2),
    ],
    "winograd": [(1, 8, 1, 16), (196, 64, 4, 64), (1000, 3, 2, 32), (N, 64, 1, 64)],
    "depthwise_conv": [
        (1, 56, 56, 96, 9, 1), (1, 7, 7, 960, 25, 1), (2, 14, 13, 8, 9, 2),
        (1, N, N, 32, 9, 1), (1, 5, N, 8, 10, 1), (1, 1, 1, 1, 1, 1),
    ],
    "expand_depthwise": [
        (1, 56, 56, 56, 24, 3, 64, 9, 1, 3), (1, 14, 14, 29, 64, 6, 64, 9, 2, 3), (4, 7, 7, 7, 160, 15, 64, 25, 1, 5),
        (1, N, 16, 16, 24, 3, 64, 9, 1, 3), (1, 3, 3, 3, 3, 1, 16, 1, 1, 1), (1, 224, 224, 226, 8, 1, 16, 49, 1, 7),
    ],
    "column_reduction": [(1, 1000, 64, 4), (8, 16, 17, 4), (1, 2, 1024, 2)],
    "attention": [(12, 197, 197, 64, 64, 0, 64), (1, 1, 128, 64, 64, 1, 32), (8, N, N, 32, 32, 1, 48)],
}  # fmt: skip


def checksum(rows: object) -> str:
    return f"{zlib.crc32(repr(rows).encode()):08x}"


def schedules() -> str:
    lines = []
    for kind, every in KEYS.items():
        names = KINDS[kind][2].split()
        for sizes, lanes in product(every, (8, 16) if kind == "attention" else (16,)):
            key, tile = KernelKey.of(kind, **dict(zip(names, sizes, strict=True))), TileShape(6, 64, lanes)
            legal = legal_schedules(key, tile)
            effects = [effect_of(key, each, tile) for each in legal]
            points = [tuple(round(number, 6) for number in features(key, each)) for each in legal]
            lines += [
                str(key),
                f"  lanes {lanes}: {default_schedule(key)}, loops {effects[0]}, point {points[0]}",
                f"  {len(legal)} candidates {checksum(legal)}, loops {checksum(effects)}, points {checksum(points)}",
                f"  among keys {tuple(round(number, 4) for number in scale_of(key))}",
            ]
            assert KernelKey.parse(str(key)) == key
            if kind == "expand_depthwise":
                chosen = [each for each in legal[::17] if isinstance(each, ExpandDepthwise)]
                bands = [RowBands.of(key, each) for each in (ExpandDepthwise(), *chosen)]
                lines.append(f"  bands {bands[0]}, {checksum(bands)}")
    counts: list[Size] = [1, 12, 13, 63, N]
    lines += [f"chunk {each}: {chunk_size(*each)}" for each in product(counts, (1, 16), counts)]
    lines += [f"divisor {each}: {largest_divisor(*each)}" for each in product(counts, (1, 8, 16))]
    return "\n".join(lines) + "\n"


def roofline() -> str:
    """Nine kinds, so that the last two share a colour; labels that collide; points above a roof and without work."""
    points = [
        Point(f"kernel {i}", f"kind {min(i, 8)}", 0.05 * 3.1**i, 0.7 * 2.9**i, share, f"{share:.0%} & more")
        for i, share in enumerate((0.4, 0.2, 0.031, 0.03, 0.1, 0.02, 0.05, 0.01, 0.08, 0.06))
    ]
    points += [Point("at one place", "kind 1", 0.05, 0.7, 0.3, "<b>"), Point("copy", "map", 0.0, 0.0, 0.5, "")]
    points += [Point("at the floor", "kind 2", 5.0, 0.1001, 0.04, "")]  # its label goes up
    rates = tuple((footprint, 90.0 / (i + 1)) for i, footprint in enumerate(FOOTPRINTS))
    return roofline_svg("a model & its kernels", points, Peaks(2, 150.0, rates, 0.97))


def curves() -> str:
    """As SVG, and the pixels of the PNG: two curves with gaps, one point alone, and a picture without any."""
    first = [(float(i), 2.0 * 0.8**i if i != 5 else float("nan")) for i in range(20)]
    named = {"loss & more": first, "accuracy": [(0.0, -0.5), (19.0, 0.25)], "one": [(3.0, 1.0)]}
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        for name, every in (("all", named), ("none", {})):
            picture = Path(folder) / f"{name}.svg"
            draw_curves(picture, every)
            draw_curves(picture.with_suffix(".png"), every)
            data = picture.with_suffix(".png").read_bytes()
            at = data.index(b"IDAT")
            (length,) = struct.unpack(">I", data[at - 4 : at])
            pixels = zlib.decompress(data[at + 4 : at + 4 + length])
            texts += [picture.read_text(), f"<!-- PNG: {data[16:29].hex()}, pixels {checksum(pixels)} -->"]
    return "\n".join(texts) + "\n"


TABLES = {"schedules.txt": schedules, "roofline.svg": roofline, "curves.txt": curves}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, request: pytest.FixtureRequest) -> None:
    got, golden = TABLES[name](), HERE / name
    if request.config.getoption("--update-golden"):
        golden.write_text(got)
    assert got.splitlines() == golden.read_text().splitlines(), "--update-golden writes the file again"
