"""ONNX files on the command line: read with `--size` and `--static`, and with samples for other compile-time inputs.

`read_with_samples` reads a file with samples, `read_given` and `read_fixed` without. The other functions list what a
file needs and why it cannot run, and draw inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smelt.cli.sizes import parse_sizes
from smelt.dtype import Array
from smelt.engine.sample import random_array
from smelt.errors import FileError, Location, SmeltError, UnsupportedError
from smelt.ir.core import Program
from smelt.model import check_file as check_file
from smelt.model import read
from smelt.passes.specialise import specialise
from smelt.read import onnx
from smelt.read.onnx import StaticError
from smelt.read.onnx.declared import declared_signature, element_types
from smelt.read.onnx.sample import Preflight, preflight
from smelt.read.onnx.survey import Finding
from smelt.run.load import SUFFIX
from smelt.weights import Weights


def read_with_samples(file: Path, sizes: Sequence[str], static: Sequence[str]) -> Preflight | None:
    """Read an ONNX file with the given values, and samples of the other compile-time inputs; None for other files."""
    if check_file(file) != ".onnx":
        parse_static(file, static)
        return None
    return preflight(file, parse_static(file, static), parse_sizes(sizes))


def parse_static(file: Path, static: Sequence[str]) -> dict[str, Any]:
    """`--static` values as arrays of the inputs' types: JSON (16000, [1, 2], "text") or FILE.npy."""
    if not static:
        return {}
    if file.suffix.lower() == SUFFIX:
        raise UnsupportedError(
            "the compile-time inputs of a bundle are fixed",
            got=", ".join(static),
            where=file,
            remedy="smelt compile MODEL -o FILE.smelt --static NAME=VALUE",
        )
    if check_file(file) != ".onnx":
        raise SmeltError(
            "only inputs of ONNX models can be given at import",
            got=", ".join(static),
            where=file,
            remedy="leave --static out",
        )
    elements = element_types(file)
    said: dict[str, Any] = {}
    for item in static:
        name, equals, text = item.partition("=")
        if not equals or name not in elements:
            expected = " or ".join(f"{each}=VALUE" for each in elements) or "none: the model has no inputs"
            raise SmeltError("--static is not understood", expected=expected, got=item, remedy=f"smelt inspect {file}")
        said[name] = _value(text, elements[name], item)
    return said


def _value(text: str, element: Any, item: str) -> Any:
    if text.endswith(".npy"):
        try:
            return np.load(text, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise FileError(
                f"cannot read {text}", expected="a .npy file", got=error, remedy=f"numpy.save({text!r}, array)"
            ) from error
    try:
        value = json.loads(text)
        return value if element is None else np.array(value, element)
    except (ValueError, TypeError, OverflowError) as error:
        expected = "NAME=VALUE with a number, a list such as [1, 2], or FILE.npy"
        raise SmeltError(
            "--static is not understood", expected=expected, got=f"{item}: {error}", remedy="--static NAME=1"
        ) from error


def require_readable(found: Preflight) -> None:
    """Raise the first reason why there is no program."""
    first = next(iter((*found.survey.problems, *found.survey.unjudged)), None)
    if first is not None:
        if found.guessed:
            first.error.remedy = "give values: " + ", ".join(_options(found))
        raise first.error


def draw_inputs(found: Preflight, seed: int) -> dict[str, Array]:
    """Random arrays of the given or sampled sizes, for every input that is not static."""
    generator = np.random.default_rng(seed)
    inputs = found.open.inputs.items()
    return {name: random_array(shape, found.sizes, generator) for name, shape in inputs if name not in found.static}


def _options(found: Preflight) -> list[str]:
    names = sorted(found.guessed)
    return [f"--static {name}=…" if name in found.reasons else f"--size {name}=…" for name in names]


def list_needs(found: Preflight) -> dict[str, Any]:
    """The compile-time inputs and sizes, with the reason and the values used."""
    static = {}
    for name, finding in found.reasons.items():
        if name:
            value = found.static.get(name)
            shown = value.tolist() if isinstance(value, np.ndarray) else None if value is None else str(value)
            static[name] = {"value": shown, "source": _source(name in found.guessed), "reason": _reason(finding)}
    for name, value in found.static.items():
        shown = value.tolist() if isinstance(value, np.ndarray) else value
        static.setdefault(name, {"value": shown, "source": "given", "reason": "it was given"})
    fixed = None
    if found.by_size:
        guessed = any(name in found.guessed for name in found.sizes)
        fixed = {"sizes": found.sizes, "source": _source(guessed), "reason": _reason(found.reasons[""])}
    return {"static": static, "fixed_sizes": fixed}


def _source(guessed: bool) -> str:
    return "a sample" if guessed else "given"


def _reason(finding: Finding) -> str:
    where = finding.error.where
    inner = where.name if isinstance(where, Location) and where.name != finding.node else ""
    place = f"{finding.place} / … / {inner}" if inner else finding.place
    return f"{finding.operator} {place}: {finding.error.message}".lstrip()


# ---- programs ----


def read_given(file: Path, static: Sequence[str], sizes: Sequence[str] = ()) -> tuple[Program, Weights]:
    """The program with the given values, for all sizes; for the given sizes if they are compile-time values."""
    values = parse_static(file, static)
    try:
        return read_fixed(file, values, {})
    except StaticError as error:
        if not (error.sizes and sizes):
            raise
        return read_fixed(file, values, parse_sizes(sizes))


def read_fixed(
    file: Path, static: Mapping[str, Any], sizes: Mapping[str, int], *, runtime_broadcast: bool = False
) -> tuple[Program, Weights]:
    """The program with the given values and sizes; missing compile-time values are an error."""
    try:
        if file.suffix.lower() == ".onnx" and (sizes or runtime_broadcast):
            shapes = _shapes(file, static, sizes) if sizes else {}
            return onnx.read(file, static, shapes, runtime_broadcast=runtime_broadcast)
        program, weights = read(file, static)
    except StaticError as error:
        needed = [f"--static {name}=…" for name in error.inputs if name not in static]
        error.remedy = " ".join([*needed, *(["--size NAME=… for every dynamic dimension"] if error.sizes else [])])
        raise
    return specialise(program, sizes) if sizes else program, weights


def _shapes(file: Path, static: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs whose sizes are all known."""
    ports = [port for port in declared_signature(file).inputs if port.name not in static]
    known = {name for port in ports for name in port.shape.symbols}
    unknown = [name for name in sizes if name not in known]
    if unknown:
        expected = ", ".join(sorted(known)) or "none: every size is fixed"
        raise SmeltError(
            "--size is not understood",
            expected=expected,
            got=", ".join(unknown),
            remedy="smelt inspect names the symbols",
        )
    return {port.name: port.shape.numbers(sizes) for port in ports if port.shape.symbols <= sizes.keys()}
