"""`--input NAME=VALUE`: a file (.npy, .json, a picture) or JSON on the command line → an array that fits the input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smelt import cli
from smelt.dtype import Array
from smelt.engine_api import Port, Signature
from smelt.errors import FileError, ShapeError, SmeltError

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
        return cli.pictures.as_input(cli.pictures.read_picture(text), port)
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


# ---- sizes from given arrays ----


def infer_symbols(signature: Signature, given: dict[str, Array]) -> dict[str, int]:
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
