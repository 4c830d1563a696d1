"""ImageDecoder: the bytes of an encoded image, known at import, to its pixels [height, width, channels] as a constant.

BMP, PNG, TIFF and the portable formats are read here; those with a transform of their own (JPEG, JPEG 2000, WebP) are
refused by name. Imported by `read.onnx.model`.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.dtype import Array, ui8
from smelt.errors import ParseError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.registry import onnx_op

_NOT_WRITTEN = {
    b"\xff\xd8\xff": "JPEG",
    b"\x00\x00\x00\x0cjP": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"RIFF": "WebP",
}
_CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}


class _BrokenError(Exception):
    """A stream that is no image. The specification asks for an empty result, not an error."""


@onnx_op("ImageDecoder", since=20)
def image_decoder(g: Graph, encoded_stream: Array, *, pixel_format: str = "RGB") -> Value:
    if pixel_format not in _CHANNELS:
        raise ParseError("ImageDecoder: attribute 'pixel_format'", expected=", ".join(_CHANNELS), got=pixel_format)
    try:
        pixels = _as_format(_decode(np.asarray(encoded_stream, np.uint8).tobytes()), pixel_format)
    except (_BrokenError, struct.error, zlib.error):
        pixels = np.zeros((0, 0, _CHANNELS[pixel_format]), np.uint8)
    return g.const(np.ascontiguousarray(pixels), ui8)


def decode(data: bytes) -> Array | None:
    """[height, width, 1 or 3] of ui8; None for what is in no format that is read here, or damaged."""
    try:
        return _decode(data)
    except (UnsupportedError, _BrokenError, struct.error, zlib.error):
        return None


def _decode(data: bytes) -> Array:
    """[height, width, 1 or 3] ; the first bytes identify the format."""
    for mark, name in _NOT_WRITTEN.items():
        if data.startswith(mark):
            remedy = "decode the picture outside the model and feed its pixels"
            raise UnsupportedError(
                f"ImageDecoder: {name} is not written", expected="BMP, PNG, TIFF or PNM", remedy=remedy
            )
    for mark, reader in _READERS.items():
        if re.match(mark, data, re.DOTALL):
            return reader(data)
    raise _BrokenError


def _as_format(pixels: Array, pixel_format: str) -> Array:
    if pixel_format != "Grayscale":
        return np.broadcast_to(pixels, (*pixels.shape[:2], 3))[:, :, :: 1 if pixel_format == "RGB" else -1]
    if pixels.shape[2] == 1:
        return pixels
    weights = np.array([19595, 38470, 7471], np.int64)  # ITU-R 601 luma, 16 bits behind the point
    gray: Array = ((pixels @ weights + (1 << 15)) >> 16).astype(np.uint8)
    return gray[:, :, None]


def _rows(data: bytes, height: int, stride: int) -> Array:
    """[height, stride] bytes from the start of the data."""
    if height < 1 or stride < 1 or len(data) < height * stride:
        raise _BrokenError
    return np.frombuffer(data, np.uint8, height * stride).reshape(height, stride)


def _samples(rows: Array, width: int, bits: int) -> Array:
    """[height, width] numbers of 1, 2, 4 or 8 bits, the first in the highest bits of a byte."""
    if bits == 8:
        return rows[:, :width]
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)
    return ((rows[:, :, None] >> shifts) & ((1 << bits) - 1)).reshape(len(rows), -1)[:, :width].astype(np.uint8)


def _looked_up(palette: Array, places: Array) -> Array:
    if places.max() >= len(palette):
        raise _BrokenError
    found: Array = palette[places]
    return found


def _refuse(format: str, what: str, got: Any) -> None:
    raise UnsupportedError(f"ImageDecoder: {what} of {format} pictures is not written", got=got)


# ---- the formats ----


def _bmp(data: bytes) -> Array:
    start, header, width, height = struct.unpack_from("<IIii", data, 10)
    bits, compression = struct.unpack_from("<HI", data, 28)
    if header < 40 or compression or bits not in (1, 4, 8, 24, 32):
        _refuse("BMP", "this kind", f"header of {header} bytes, compression {compression}, {bits} bits a pixel")
    stride = (width * bits + 31) // 32 * 4
    rows = _rows(data[start:], abs(height), stride)
    rows = rows[::-1] if height > 0 else rows
    if bits > 8:
        return rows[:, : width * bits // 8].reshape(abs(height), width, bits // 8)[:, :, 2::-1]
    palette = np.frombuffer(data[14 + header : start], np.uint8)
    palette = palette[: len(palette) // 4 * 4].reshape(-1, 4)[:, 2::-1]
    return _looked_up(palette, _samples(rows, width, bits))


def _pnm(data: bytes) -> Array:
    kind = int(data[1:2])
    fields = 2 if kind in (1, 4) else 3
    found = re.match(rb"P\d" + rb"(?:\s|#[^\n]*\n)+(\d{1,9})" * fields + rb"\s", data)
    if found is None:
        raise _BrokenError
    width, height, largest = (*map(int, found.groups()), 1)[:3]
    channels = 3 if kind in (3, 6) else 1
    if kind == 4:
        bits = _samples(_rows(data[found.end() :], height, (width + 7) // 8), width, 1)
        return (1 - bits)[:, :, None] * np.uint8(255)
    if kind > 4:
        if not 0 < largest < 256:
            _refuse("PNM", "this depth", largest)
        numbers = _rows(data[found.end() :], height, width * channels).astype(np.int64)
    else:
        body = re.sub(rb"#[^\n]*", b"", data[found.end() :])
        words = re.findall(rb"[01]" if kind == 1 else rb"\d{1,9}", body)[: width * height * channels]
        numbers = np.array(words, np.int64)
        if not numbers.size or numbers.size != width * height * channels or not 0 < largest < 65536:
            raise _BrokenError
    numbers = (1 - numbers if kind == 1 else numbers) * 255
    scaled = (2 * numbers + largest) // (2 * largest)
    return np.minimum(scaled, 255).astype(np.uint8).reshape(height, width, channels)


def _png(data: bytes) -> Array:
    chunks = list(_png_chunks(data))
    if not chunks or chunks[0][0] != b"IHDR":
        raise _BrokenError
    width, height, bits, color, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    if interlaced or bits == 16:
        _refuse("PNG", "this kind", f"{bits} bits a sample{', interlaced' if interlaced else ''}")
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(color, 0)
    if not width or not channels or bits not in (1, 2, 4, 8):
        raise _BrokenError
    stride = (width * channels * bits + 7) // 8
    packed = b"".join(body for name, body in chunks if name == b"IDAT")
    rows = _rows(zlib.decompressobj().decompress(packed, max(1, height * (stride + 1))), height, stride + 1)
    samples = _samples(_undo_filters(rows, max(1, channels * bits // 8)), width * channels, bits)
    if color == 3:
        palette = next((body for name, body in chunks if name == b"PLTE"), b"")
        return _looked_up(np.frombuffer(palette[: len(palette) // 3 * 3], np.uint8).reshape(-1, 3), samples)
    samples = samples * np.uint8(255 // ((1 << bits) - 1))
    return samples.reshape(height, width, channels)[:, :, : 3 if channels > 2 else 1]


def _png_chunks(data: bytes) -> Any:
    place = 8
    while place + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        if len(body) != length or struct.pack(">I", zlib.crc32(name + body)) != data[place + 8 + length :][:4]:
            raise _BrokenError
        yield name, body
        place += 12 + length


def _undo_filters(rows: Array, step: int) -> Array:
    """The bytes behind PNG's five predictors: none, left, above, the mean of both, and Paeth's."""
    lines = np.zeros((len(rows) + 1, rows.shape[1] - 1 + step), np.uint8)  # a pixel of zeros before each line
    for y, row in enumerate(rows, 1):
        delta = row[1:]
        match row[0]:
            case 0:
                lines[y, step:] = delta
            case 1:
                for channel in range(step):
                    lines[y, step + channel :: step] = np.cumsum(delta[channel::step], dtype=np.uint8)
            case 2:
                lines[y, step:] = delta + lines[y - 1, step:]
            case 3 | 4:
                guess = _mean if row[0] == 3 else _paeth
                lines[y] = _undo_predictor(delta.tolist(), lines[y - 1].tolist(), step, guess)
            case _:
                raise _BrokenError
    return lines[1:, step:]


def _undo_predictor(delta: list[int], above: list[int], step: int, guess: Callable[[int, int, int], int]) -> list[int]:
    line = [0] * step
    for x, each in enumerate(delta, step):
        line.append((each + guess(line[x - step], above[x], above[x - step])) & 255)
    return line


def _mean(left: int, up: int, corner: int) -> int:
    return (left + up) // 2


def _paeth(left: int, up: int, corner: int) -> int:
    slope = left + up - corner
    return min((left, up, corner), key=lambda each: abs(slope - each))


_TIFF_KINDS = {1: "B", 3: "H", 4: "I"}


def _tiff(data: bytes) -> Array:
    order = "<" if data[:2] == b"II" else ">"
    fields = _tiff_fields(data, order)
    width, height = fields.get(256, (0,))[0], fields.get(257, (0,))[0]
    channels, meaning, compression = (fields.get(tag, (1,))[0] for tag in (277, 262, 259))
    if set(fields.get(258, (1,))) != {8} or fields.get(284, (1,)) != (1,) or meaning not in (0, 1, 2):
        _refuse("TIFF", "this kind", f"bits {fields.get(258)}, colours {meaning}")
    if compression not in (1, 8, 32946) or fields.get(317, (1,)) != (1,):
        _refuse("TIFF", "this compression", compression)
    parts = zip(fields.get(273, ()), fields.get(279, ()), strict=False)
    strips = [data[start : start + length] for start, length in parts]
    most = max(1, height * width * channels)
    whole = b"".join(zlib.decompressobj().decompress(strip, most) if compression > 1 else strip for strip in strips)
    pixels = _rows(whole, height, width * channels).reshape(height, width, channels)
    if meaning == 2 and channels < 3:
        raise _BrokenError
    pixels = pixels[:, :, : 3 if meaning == 2 else 1]
    return 255 - pixels if meaning == 0 else pixels


def _tiff_fields(data: bytes, order: str) -> dict[int, tuple[int, ...]]:
    (place,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, place)
    fields = {}
    for i in range(count):
        entry = place + 2 + 12 * i
        tag, kind, length = struct.unpack_from(f"{order}HHI", data, entry)
        if kind not in _TIFF_KINDS or not 0 < length <= len(data):
            continue
        layout = f"{order}{length}{_TIFF_KINDS[kind]}"
        where = entry + 8 if struct.calcsize(layout) <= 4 else struct.unpack_from(f"{order}I", data, entry + 8)[0]
        fields[tag] = struct.unpack_from(layout, data, where)
    return fields


_READERS: dict[bytes, Callable[[bytes], Array]] = {
    rb"BM": _bmp,
    rb"\x89PNG\r\n\x1a\n": _png,
    rb"II\*\x00|MM\x00\*": _tiff,
    rb"P[1-6]\s": _pnm,
}
