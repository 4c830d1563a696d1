"""ImageDecoder: pictures written byte by byte as their formats say come back as the pixels that went in.

The official suite has one picture of each format; here are the depths, colours, predictors and byte orders it lacks.
"""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.dtype import Array
from smelt.errors import ParseError, UnsupportedError
from smelt.read.onnx.ops.image import decode
from tests.unit.read.peer import node_model

U8 = 2


def decoded(data: bytes, folder: Path, pixel_format: str = "RGB") -> Array:
    stream = np.frombuffer(data, np.uint8)
    path = folder / "model.onnx"
    path.write_bytes(node_model("ImageDecoder", [stream], [U8], {"pixel_format": pixel_format}).SerializeToString())
    return smelt.load(path, engine="reference").run({"x0": stream})["y0"]


# ---- PNG ----


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(lines: Array, width: int, bits: int, color: int, kinds: Array, step: int, palette: bytes = b"") -> bytes:
    """A picture from lines of packed bytes, each written as differences to what its kind of predictor says."""
    body = b""
    for y, line in enumerate(lines.astype(int)):
        above = lines[y - 1].astype(int) if y else np.zeros_like(line)
        left = np.concatenate([np.zeros(step, int), line[:-step]])
        corner = np.concatenate([np.zeros(step, int), above[:-step]])
        slope = left + above - corner
        near = np.stack([left, above, corner])
        paeth = near[np.abs(slope - near).argmin(axis=0), np.arange(line.size)]
        guess = [np.zeros_like(line), left, above, (left + above) // 2, paeth][kinds[y]]
        body += bytes([kinds[y]]) + ((line - guess) & 255).astype(np.uint8).tobytes()
    header = struct.pack(">IIBBBBB", width, len(lines), bits, color, 0, 0, 0)
    extra = chunk(b"PLTE", palette) if palette else b""
    packed = zlib.compress(body)
    parts = chunk(b"IDAT", packed[:20]) + chunk(b"IDAT", packed[20:])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + parts + chunk(b"IEND", b"")


@pytest.mark.parametrize(("color", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_png(color: int, channels: int, tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (11, 7, channels)).astype(np.uint8)
    data = png(pixels.reshape(11, -1), 7, 8, color, random.permutation(11) % 5, channels)
    shown = pixels[:, :, :3] if channels > 2 else np.repeat(pixels[:, :, :1], 3, 2)
    np.testing.assert_array_equal(decoded(data, tmp_path), shown)
    np.testing.assert_array_equal(decoded(data, tmp_path, "BGR"), shown[:, :, ::-1])


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_png_of_few_bits_and_palettes(bits: int, tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    places = random.integers(0, 1 << bits, (6, 13))
    spread = ((places[:, :, None] >> np.arange(bits - 1, -1, -1)) & 1).reshape(6, -1)
    lines, kinds = np.packbits(spread, axis=1), np.arange(6) % 5
    palette = random.integers(0, 256, (1 << bits, 3)).astype(np.uint8)
    found = decoded(png(lines, 13, bits, 3, kinds, 1, palette.tobytes()), tmp_path)
    np.testing.assert_array_equal(found, palette[places])
    gray = decoded(png(lines, 13, bits, 0, kinds, 1), tmp_path, "Grayscale")
    np.testing.assert_array_equal(gray[:, :, 0], places * 255 // ((1 << bits) - 1))


# ---- the others ----


@pytest.mark.parametrize("bits", [1, 4])
def test_bmp_of_few_bits(bits: int, tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    palette = random.integers(0, 256, (1 << bits, 4)).astype(np.uint8)
    places = random.integers(0, 1 << bits, (3, 37))
    spread = ((places[:, :, None] >> np.arange(bits - 1, -1, -1)) & 1).reshape(3, -1)
    lines = np.packbits(spread, axis=1)
    lines = np.pad(lines, ((0, 0), (0, -lines.shape[1] % 4)))[::-1]
    info = struct.pack("<IiiHHIIiiII", 40, 37, 3, 1, bits, 0, 0, 0, 0, 0, 0)
    data = b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + palette.size) + info + palette.tobytes() + lines.tobytes()
    np.testing.assert_array_equal(decoded(data, tmp_path), palette[places][:, :, 2::-1])


@pytest.mark.parametrize("bits", [8, 24, 32])
@pytest.mark.parametrize("flip", [1, -1])
def test_bmp(bits: int, flip: int, tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (5, 7, 3)).astype(np.uint8)
    palette = random.integers(0, 256, (256, 4)).astype(np.uint8)
    stored = pixels[:, :, ::-1]
    if bits == 8:
        stored, pixels = pixels[:, :, :1], palette[pixels[:, :, 0]][:, :, 2::-1]
    if bits == 32:
        stored = np.concatenate([stored, stored[:, :, :1]], 2)
    lines = stored.reshape(5, -1)
    lines = np.pad(lines, ((0, 0), (0, -lines.shape[1] % 4)))[::-flip]
    table = palette.tobytes() if bits == 8 else b""
    info = struct.pack("<IiiHHIIiiII", 40, 7, 5 * flip, 1, bits, 0, 0, 0, 0, 0, 0)
    data = b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + len(table)) + info + table + lines.tobytes()
    np.testing.assert_array_equal(decoded(data, tmp_path), pixels)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compression", [1, 8])
@pytest.mark.parametrize("meaning", [0, 1, 2])
def test_tiff(order: str, compression: int, meaning: int, tmp_path: Path, seed: int) -> None:
    channels = 3 if meaning == 2 else 1
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 5, channels)).astype(np.uint8)
    strips = [part.tobytes() for part in (pixels[:4], pixels[4:])]
    strips = [zlib.compress(strip) for strip in strips] if compression == 8 else strips
    fields = [(256, 3, [5]), (257, 4, [6]), (258, 3, [8] * channels), (259, 3, [compression]), (262, 3, [meaning])]
    fields += [(273, 4, [0, 0]), (277, 3, [channels]), (278, 3, [4]), (279, 4, [len(strip) for strip in strips])]
    behind = 8 + 2 + 12 * len(fields) + 4
    starts = [behind, behind + len(strips[0])]
    tail = b"".join(strips)
    entries = b""
    for tag, kind, values in fields:
        packed = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *(starts if tag == 273 else values))
        place = packed.ljust(4, b"\0")
        if len(packed) > 4:
            place = struct.pack(f"{order}I", behind + len(tail))
            tail += packed
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + place
    mark = b"II*\0" if order == "<" else b"MM\0*"
    data = mark + struct.pack(f"{order}IH", 8, len(fields)) + entries + bytes(4) + tail
    shown = 255 - pixels if meaning == 0 else pixels
    np.testing.assert_array_equal(decoded(data, tmp_path), np.broadcast_to(shown, (6, 5, 3)))


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 5, 6])
def test_pnm(kind: int, tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    largest = 1 if kind in (1, 4) else 51
    numbers = random.integers(0, largest + 1, (4, 9, 3 if kind in (3, 6) else 1))
    head = f"P{kind}\n# a remark\n9 4\n" + ("" if largest == 1 else f"{largest}\n")
    if kind < 4:
        body = " ".join(map(str, numbers.ravel())).encode()
    else:
        body = (np.packbits(numbers[:, :, 0], axis=1) if kind == 4 else numbers.astype(np.uint8)).tobytes()
    shown = (1 - numbers) * 255 if largest == 1 else numbers * 5
    np.testing.assert_array_equal(decoded(head.encode() + body, tmp_path), np.broadcast_to(shown, (4, 9, 3)))


@pytest.mark.parametrize("largest", [1, 2, 254, 255, 256, 65535])
def test_depths_of_pnm(largest: int, tmp_path: Path) -> None:
    numbers = np.array([0, 1, largest // 2, largest - 1, largest])
    want = np.floor(numbers * 255 / largest + 0.5).astype(np.uint8)
    text = f"P2 5 1 {largest}\n{' '.join(map(str, numbers))}".encode()
    np.testing.assert_array_equal(decoded(text, tmp_path, "Grayscale")[0, :, 0], want)
    raw = f"P5 5 1 {largest}\n".encode() + np.minimum(numbers, 255).astype(np.uint8).tobytes()
    if largest < 256:
        np.testing.assert_array_equal(decoded(raw, tmp_path, "Grayscale")[0, :, 0], want)
    else:
        with pytest.raises(UnsupportedError, match=rf"PNM(?s:.)*{largest}"):
            decoded(raw, tmp_path)


@pytest.mark.parametrize(
    "text", [b"P2 1 1 65536\n1", b"P2 1 1 0\n0", b"P2 2 1 9\n1", b"P2 0 1 9\n", b"P1 2 1\n1", b"P3 1 1 9\n1 2"]
)
def test_pnm_without_its_numbers_is_empty(text: bytes, tmp_path: Path) -> None:
    assert decoded(text, tmp_path).shape == (0, 0, 3)


def test_gray_is_the_weighted_mean_of_the_colours(tmp_path: Path) -> None:
    pixels = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [10, 20, 30]]], np.uint8)
    found = decoded(b"P6 5 1 255\n" + pixels.tobytes(), tmp_path, "Grayscale")
    np.testing.assert_array_equal(found[0, :, 0], np.round(pixels[0] @ [0.299, 0.587, 0.114]))


# ---- what is no picture ----


def test_broken_pictures_are_empty(tmp_path: Path) -> None:
    whole = png(np.zeros((4, 12), np.uint8), 4, 8, 2, np.zeros(4, int), 3)
    broken = [b"no picture", b"BM", b"P6 9 9 255\n12", b"II*\0\x08\0\0\0", whole[:50], whole[:40] + b"?" + whole[41:]]
    for data in [*broken, b"\x89PNG\r\n\x1a\n", b"P6 0 0 255\n", b"P5 1000000000 1000000000 255\n"]:
        assert decoded(data, tmp_path).shape == (0, 0, 3), data[:20]


def test_what_is_not_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="JPEG is not written"):
        decoded(b"\xff\xd8\xff\xe0" + bytes(20), tmp_path)
    with pytest.raises(ParseError, match="pixel_format"):
        decoded(b"P5 1 1 255\n1", tmp_path, "CMYK")


def header(bits: int, color: int, interlaced: int = 0, width: int = 4) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, 1, bits, color, 0, 0, interlaced))


def bmp(size: int = 40, bits: int = 24, compression: int = 0) -> bytes:
    info = struct.pack("<IiiHHIIiiII", size, 1, 1, 1, bits, compression, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 54) + info + bytes(4)


def tiff(**fields: int) -> bytes:
    """One pixel of gray; a field by its number, all of one short."""
    tags = {"t256": 1, "t257": 1, "t258": 8, "t259": 1, "t262": 1, "t273": 8, "t277": 1, "t279": 1} | fields
    entries = b"".join(struct.pack("<HHIHH", int(tag[1:]), 3, 1, value, 0) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bmp(size=12), "BMP pictures is not written(?s:.)*header of 12 bytes, compression 0, 24 bits"),
        (bmp(bits=16), "BMP pictures is not written(?s:.)*16 bits"),
        (bmp(compression=1), "BMP pictures is not written(?s:.)*compression 1"),
        (header(16, 2), "PNG pictures is not written(?s:.)*16 bits a sample$"),
        (header(8, 2, 1), "PNG pictures is not written(?s:.)*8 bits a sample, interlaced"),
        (tiff(t258=16), "TIFF pictures is not written(?s:.)*bits .16,., colours 1"),
        (tiff(t262=3), "TIFF pictures is not written(?s:.)*colours 3"),
        (tiff(t284=2), "this kind of TIFF"),
        (tiff(t259=5), "this compression of TIFF(?s:.)*5"),
        (tiff(t317=2), "this compression of TIFF(?s:.)*1"),
    ],
)
def test_kinds_of_pictures_that_are_not_read(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="ImageDecoder") as caught:
        decoded(data, tmp_path)
    assert re.search(message, str(caught.value).split("\n  try")[0]), str(caught.value)
    assert decode(data) is None


def test_pictures_at_the_edge_of_what_is_read(tmp_path: Path) -> None:
    np.testing.assert_array_equal(decoded(tiff(), tmp_path), np.full((1, 1, 3), 8))  # its offset is the first pixel
    np.testing.assert_array_equal(decoded(tiff(t262=0), tmp_path), np.full((1, 1, 3), 247))
    broken = [
        tiff(t262=2), header(3, 0), header(8, 1), header(8, 2, width=0),
        png(np.zeros((1, 4), np.uint8), 4, 8, 3, np.zeros(1, int), 1, b"\0\0"),  # a palette without a colour
        header(8, 0) + chunk(b"IDAT", zlib.compress(b"\5" + bytes(4))),  # there are five predictors
        header(8, 0) + chunk(b"IDAT", zlib.compress(b"\0" + bytes(3))),
    ]  # fmt: skip
    for data in broken:
        assert decoded(data, tmp_path).shape == (0, 0, 3), data
        assert decode(data) is None
    whole = png(np.full((1, 4), 7, np.uint8), 4, 8, 0, np.zeros(1, int), 1)
    found = decode(whole)
    assert found is not None
    np.testing.assert_array_equal(found, np.full((1, 4, 1), 7))
