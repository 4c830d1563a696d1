"""Random inputs for measurements: the same for every engine, with indices within their tables.

A file, sizes and values → arrays by input name. `smelt run`, `smelt bench`, `smelt profile` and
`bench/models/compare.py` call it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from smelt.cli.preflight import draw_inputs, parse_static, read_with_samples, require_readable
from smelt.cli.sizes import parse_sizes
from smelt.dtype import Array
from smelt.engine.sample import default_sizes, in_range, random_array
from smelt.engine.signature import signature_of
from smelt.engine_api import Signature
from smelt.ir.assumptions import broken_by
from smelt.ir.core import Program
from smelt.ir.ops.signature import bare_symbol
from smelt.model import read
from smelt.read.onnx import StaticError
from smelt.read.onnx.sample import preflight

DOUBLINGS = 13  # of a default that is too small for a program


def inputs_for(
    file: Path,
    sizes: Sequence[str],
    static: Sequence[str] = (),
    seed: int = 0,
    given: Mapping[str, Array] = MappingProxyType({}),
) -> dict[str, Array]:
    """Random arrays; compile-time inputs have the given values, else samples that give a valid program.

    `given`: arrays from the user, which may be values of compile-time inputs.
    """
    if not static:
        try:
            program = read(file)[0]
        except StaticError:
            pass
        else:
            made = random_for(signature_of(program.main), sizes, seed, program)
            return {**in_range(program.main, made, seed), **given}
    found = read_with_samples(file, sizes, static)
    assert found is not None, "only ONNX files have static inputs"
    shaping = {name: given[name] for name in found.static if name in given}
    if shaping:
        found = preflight(file, {**parse_static(file, static), **shaping}, parse_sizes(sizes))
    require_readable(found)
    return {**draw_inputs(found, seed), **found.static, **given}


def random_for(
    signature: Signature, sizes: Sequence[str], seed: int, program: Program | None = None
) -> dict[str, Array]:
    """Random arrays for every input; sizes that were not given are chosen so that the program accepts them."""
    symbols = given_sizes(signature, sizes, program)
    generator = np.random.default_rng(seed)
    return {port.name: random_array(port.shape, symbols, generator) for port in signature.inputs}


def given_sizes(signature: Signature, sizes: Sequence[str], program: Program | None = None) -> dict[str, int]:
    """A value for every dynamic dimension of the inputs: the given one, else a default.

    Defaults that break an assumption of `program` are doubled until they do not.
    """
    chosen = default_sizes([port.shape for port in signature.inputs])
    said = parse_sizes(sizes, chosen)
    if program is None or not chosen.keys() - said.keys():
        return chosen | said
    tried = chosen | said
    for _ in range(DOUBLINGS):
        small = {name for fact in broken_by(program, tried) for name in fact.symbols} - said.keys()
        if not small:
            return tried
        tried = {name: 2 * size if name in small else size for name, size in tried.items()}
    return chosen | said


def open_sizes(file: Path) -> tuple[tuple[str, bool], ...]:
    """The symbols of the inputs' sizes, and whether each is the size of a first axis."""
    try:
        shapes = [port.shape for port in signature_of(read(file)[0].main).inputs]
    except StaticError:
        found = read_with_samples(file, (), ())
        assert found is not None, "only ONNX files have static inputs"
        shapes = list(found.open.inputs.values())
    names: dict[str, bool] = {}
    for shape in shapes:
        for axis, size in enumerate(shape.sizes):
            name = bare_symbol(size)
            if name is not None:
                names[name] = names.get(name, False) or axis == 0
    return tuple(names.items())
