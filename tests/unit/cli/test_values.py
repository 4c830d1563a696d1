"""`--input NAME=VALUE`: files, JSON and pictures become arrays that fit, or an error that says how."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from smelt.cli.pictures import as_input, read_picture, resize
from smelt.cli.values import infer_symbols, read_inputs
from smelt.engine.sample import default_sizes
from smelt.engine_api import Port, Signature
from smelt.errors import FileError, ShapeError, SmeltError
from smelt.shape import Shape

IMAGE = Port("image", Shape("f32", "B", 3, 4, 6))
TOKENS = Port("ids", Shape("i64", "B", "T"))
RATE = Port("sr", Shape("i64"))
SIGNATURE = Signature((IMAGE, TOKENS, RATE), ())


def png(pixels: np.ndarray) -> bytes:
    """[height, width, 3] of ui8 as a PNG file, by the book: one IDAT chunk, no filter."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 256, (4, 6, 3), np.uint8)


def test_values_on_the_command_line() -> None:
    given = read_inputs(SIGNATURE, ["ids=[[1, 2, 3]]", "sr=16000", "image=random"])
    assert given["ids"].dtype == np.int64
    assert given["ids"].tolist() == [[1, 2, 3]]
    assert given["sr"].shape == ()
    assert "image" not in given
    assert infer_symbols(SIGNATURE, given) == {"B": 1, "T": 3}


def test_a_list_gets_the_axes_that_are_missing_in_front() -> None:
    assert read_inputs(SIGNATURE, ["ids=[4, 5]"])["ids"].shape == (1, 2)


def test_a_file_of_json(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    path.write_text(json.dumps([[7], [8]]))
    assert read_inputs(SIGNATURE, [f"ids={path}"])["ids"].tolist() == [[7], [8]]


def test_a_picture_is_channels_first_in_0_to_1(tmp_path: Path, pixels: np.ndarray) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(png(pixels))
    np.testing.assert_array_equal(read_picture(str(path)), pixels)
    array = read_inputs(SIGNATURE, [f"image={path}"])["image"]
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, (pixels / 255).astype(np.float32).transpose(2, 0, 1)[None])


def test_a_picture_fits_itself_to_the_input(pixels: np.ndarray) -> None:
    last = as_input(pixels, Port("x", Shape("ui8", "B", 8, 12, 3)))
    assert last.shape == (1, 8, 12, 3)
    assert last.dtype == np.uint8
    free = as_input(pixels, Port("x", Shape("f32", 1, 3, "H", "W")))
    assert free.shape == (1, 3, 4, 6)
    gray = as_input(pixels, Port("x", Shape("f32", 1, 4, 6)))
    np.testing.assert_allclose(gray[0], pixels @ np.array([0.299, 0.587, 0.114]) / 255, rtol=1e-6)
    with pytest.raises(ShapeError, match="is no picture"):
        as_input(pixels, TOKENS)


def test_resizing_interpolates() -> None:
    ramp = np.arange(4.0).reshape(1, 4, 1)
    np.testing.assert_allclose(resize(ramp, (1, 8)).reshape(-1), [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])
    np.testing.assert_array_equal(resize(ramp, (1, 4)), ramp)


@pytest.mark.parametrize(
    ("item", "kind", "message"),
    [
        ("pixels=[1]", SmeltError, "no such input"),
        ("ids", SmeltError, "not understood"),
        ("ids=[1, two]", SmeltError, "not understood"),
        ("ids=[[1], [2, 3]]", SmeltError, "not understood"),
        ("sr=99999999999999999999", SmeltError, "not understood"),
        ("ids=absent.npy", FileError, "cannot read absent.npy"),
        ("ids=absent.json", FileError, "cannot read absent.json"),
        ("image=absent.png", FileError, "cannot read absent.png"),
    ],
)
def test_a_wrong_value_is_named(item: str, kind: type[SmeltError], message: str) -> None:
    with pytest.raises(kind, match=message):
        read_inputs(SIGNATURE, [item])


def test_a_damaged_picture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    with pytest.raises(SmeltError, match=r"cat\.png"):
        read_picture(str(path))


def test_too_few_axes_are_reported() -> None:
    with pytest.raises(ShapeError, match="'ids' does not fit"):
        infer_symbols(SIGNATURE, {"ids": np.zeros((1, 2, 3), np.int64)})


def test_dynamic_pictures_are_not_one_pixel() -> None:
    shapes = [Shape("f32", "B", 3, "H", "W"), Shape("i64", "B", "T"), Shape("f32", "B", "h", "w", 1)]
    assert default_sizes(shapes) == {"B": 1, "H": 64, "W": 64, "T": 1, "h": 64, "w": 64}
