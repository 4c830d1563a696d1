"""`--input NAME=VALUE`: a file (.npy, .json, a picture) or JSON on the command line → an array that fits the input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.engine_api import Port, Signature
from smelt.errors import FileError, MissingPackageError, ShapeError, SmeltError
from smelt.read.onnx.ops.image import decode

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
FORMS = "NAME=FILE.npy, FILE.json, FILE.png, NAME=[1, 2, 3], NAME=random or random"


def read_inputs(signature: Signature, inputs: Sequence[str]) -> dict[str, Array]:
    """The given arrays, without inputs that are to be random."""
    ports = {port.name: port for port in signature.inputs}
    given: dict[str, Array] = {}
    for item in inputs:
        name, equals, text = item.partition("=")
        if not equals and item == "random":
            continue
        if not equals:
            raise SmeltError("--input is not understood", expected=FORMS, got=item, remedy=_example(signature))
        if name not in ports:
            expected = ", ".join(ports) or "no inputs"
            raise SmeltError("the model has no such input", expected=expected, got=name, remedy=_example(signature))
        if text != "random":
            given[name] = read_value(text, ports[name])
    return given


def _example(signature: Signature) -> str:
    """A valid `--input` option, for the remedy."""
    return f"-i {signature.inputs[0].name}=random" if signature.inputs else "leave --input out"


def read_value(text: str, port: Port) -> Array:
    """One value as an array of the input's element type."""
    suffix = Path(text).suffix.lower()
    if suffix == ".npy":
        return _load(text)
    if suffix in PICTURES:
        return as_input(read_picture(text), port)
    return _from_json(Path(text), port) if suffix == ".json" else _parse(text, port, text)


def _load(path: str) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(
            f"cannot read {path}", expected="a .npy file", got=error, remedy=f"numpy.save({path!r}, array)"
        ) from error
    if not isinstance(array, np.ndarray):
        raise FileError(
            f"cannot read {path}",
            expected="one array (.npy)",
            got="an archive of several (.npz)",
            remedy="numpy.save one of its arrays",
        )
    return array


def _from_json(path: Path, port: Port) -> Array:
    try:
        return _parse(path.read_text("utf-8"), port, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}", expected="a JSON file", got=error, remedy="check the path") from error


def _parse(text: str, port: Port, shown: str) -> Array:
    """Numbers, or nested lists of them; missing axes of size one are added in front."""
    try:
        array: Array = np.array(json.loads(text), port.shape.element.numpy)
    except (ValueError, TypeError, OverflowError) as error:
        expected = f"{port.name} as numbers, {port.shape}, or a file (.npy, .json, .png)"
        raise SmeltError(
            "--input is not understood",
            expected=expected,
            got=f"{shown[:80]}: {error}",
            remedy=f"-i {port.name}=random",
        ) from error
    return array[(None,) * max(0, port.shape.rank - array.ndim)]


# ---- pictures ----


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


# ---- sizes from given arrays ----


def measured(signature: Signature, given: dict[str, Array]) -> dict[str, int]:
    """The values of symbols that the given inputs determine."""
    symbols: dict[str, int] = {}
    for port in signature.inputs:
        if port.name in given:
            symbols |= _measure(port, given[port.name])
    return symbols


def _measure(port: Port, array: Array) -> dict[str, int]:
    if array.ndim != port.shape.rank:
        raise ShapeError(
            f"the input {port.name!r} does not fit",
            expected=port.shape,
            got=list(array.shape),
            remedy=f"an array of {port.shape.rank} axes",
        )
    pairs: Any = zip(port.shape.sizes, array.shape, strict=True)
    return {str(size): actual for size, actual in pairs if str(size) in port.shape.symbols}
