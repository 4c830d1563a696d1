"""`--input NAME=FILE.png`: a picture → an array in the layout, size and element type of a model's input."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from smelt.dtype import Array
from smelt.engine_api import Port
from smelt.errors import FileError, MissingPackageError, ShapeError
from smelt.read.onnx.ops.image import decode


def read_picture(path: str) -> Array:
    """[height, width, channels] of ui8. PNG, BMP, TIFF and PNM are read here, the others by Pillow."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}", expected="a picture", got=error, remedy="check the path") from error
    pixels = decode(data)
    if pixels is not None:
        return pixels
    try:
        from PIL import Image, UnidentifiedImageError  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise MissingPackageError(
            f"reading {path} needs the package pillow", expected="a PNG file, or pillow", remedy="pip install pillow"
        ) from error
    try:
        return np.asarray(Image.open(path).convert("RGB"))
    except (OSError, ValueError, UnidentifiedImageError) as error:
        raise FileError(
            f"cannot read {path}", expected="a picture", got=error, remedy="save it as PNG or JPEG"
        ) from error


def as_input(pixels: Array, port: Port) -> Array:
    """Convert pixels to the model's input: its layout (channels first or last), height and width if static, number of
    channels; floats in 0 … 1. A batch of one is added."""
    channels, last = _channels(port)
    if channels != pixels.shape[2]:
        gray = pixels @ np.array([0.299, 0.587, 0.114]) if pixels.shape[2] >= 3 else pixels[:, :, 0]
        pixels = pixels[:, :, :3] if pixels.shape[2] > 3 == channels else np.repeat(gray[:, :, None], channels, 2)
    height, width = port.shape.sizes[-3:-1] if last else port.shape.sizes[-2:]
    wanted = (
        height if isinstance(height, int) else pixels.shape[0],
        width if isinstance(width, int) else pixels.shape[1],
    )
    element = port.shape.element
    resized = resize(pixels, wanted)
    scaled = resized / 255 if not element.is_integer else np.rint(resized)
    array: Array = scaled.astype(element.numpy)
    array = array if last else array.transpose(2, 0, 1)
    return np.ascontiguousarray(array[(None,) * (port.shape.rank - 3)])


def _channels(port: Port) -> tuple[int, bool]:
    """The number of channels of an input, and whether they are the last axis."""
    sizes = port.shape.sizes
    if len(sizes) in (3, 4):
        for size, last in ((sizes[-3], False), (sizes[-1], True)):
            if isinstance(size, int) and size in (1, 3, 4):
                return size, last
    raise ShapeError(
        f"the input {port.name!r} is no picture",
        expected="[batch, channels, height, width] or channels last, with 1, 3 or 4 channels",
        got=port.shape,
        remedy="give its numbers as FILE.npy",
    )


def resize(pixels: Array, size: tuple[int, int]) -> Array:
    """Resize bilinearly, corners not aligned, to a float array."""
    result: Array = pixels.astype(np.float64)
    for axis, wanted in enumerate(size):
        have = result.shape[axis]
        if have == wanted:
            continue
        at = np.clip((np.arange(wanted) + 0.5) * have / wanted - 0.5, 0, have - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, have - 1)
        part = (at - low).reshape([-1 if d == axis else 1 for d in range(result.ndim)])
        result = result.take(low, axis) * (1 - part) + result.take(high, axis) * part
    return result
