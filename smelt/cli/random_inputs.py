"""Random inputs for a model that is to be measured: every engine gets the same, and no index leaves its table.

A file and what the user said about sizes and values come in, arrays by the inputs' names go out. `smelt bench`,
`smelt profile` and `bench/models/compare.py` call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smelt.cli.preflight import looked_at, must_be_readable, sampled
from smelt.cli.run import gather
from smelt.dtype import Array
from smelt.engine.executable import signature_of
from smelt.ir.core import Func, Op, Value
from smelt.ir.ops import OPS
from smelt.ir.ops.signature import bare_symbol
from smelt.model import read
from smelt.passes.split_prepare import WEIGHT
from smelt.read.onnx import StaticError

# What moves numbers about and leaves them as they are.
MOVES = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "concatenate", "reshape", "reverse", "slice", "transpose")
)
LOOK_UPS = {"stablehlo.gather": 1, "stablehlo.dynamic_gather": 1, "stablehlo.torch_index_select": 1}


def inputs_for(file: Path, sizes: Sequence[str], static: Sequence[str] = (), seed: int = 0) -> dict[str, Array]:
    """Random numbers; what shapes the program is as the user said, or a sample that there is a program for."""
    if not static:
        try:
            main = read(file)[0].main
        except StaticError:
            pass
        else:
            return _in_range(main, gather(signature_of(main), ["random"], sizes, seed), seed)
    found = looked_at(file, sizes, static)
    assert found is not None, "only ONNX files have static inputs"
    must_be_readable(found)
    return {**sampled(found, seed), **found.static}


def open_sizes(file: Path) -> tuple[tuple[str, bool], ...]:
    """The symbols of the inputs' sizes, and whether each is the size of a first axis."""
    try:
        shapes = [port.shape for port in signature_of(read(file)[0].main).inputs]
    except StaticError:
        found = looked_at(file, (), ())
        assert found is not None, "only ONNX files have static inputs"
        shapes = list(found.open.inputs.values())
    names: dict[str, bool] = {}
    for shape in shapes:
        for axis, size in enumerate(shape.sizes):
            name = bare_symbol(size)
            if name is not None:
                names[name] = names.get(name, False) or axis == 0
    return tuple(names.items())


def _in_range(main: Func, inputs: dict[str, Array], seed: int) -> dict[str, Array]:
    """Integers that look up tables anew, over the smallest of these; other integers are flags: 0 or 1."""
    generator = np.random.default_rng(seed)
    limits = _limits(main)
    arguments = [arg for arg, attrs in zip(main.args, main.arg_attrs, strict=True) if WEIGHT not in attrs]
    for argument, (name, array) in zip(arguments, inputs.items(), strict=True):
        if array.dtype.kind in "iu":
            limit = max(1, min(limits.get(argument, 2), np.iinfo(array.dtype).max))
            inputs[name] = generator.integers(0, limit, array.shape).astype(array.dtype)
    return inputs


def _limits(main: Func) -> dict[Value, int]:
    """For each argument that becomes an index, the size of the smallest table that it is an index of."""
    sources: dict[Value, frozenset[Value]] = {argument: frozenset((argument,)) for argument in main.args}
    limits: dict[Value, int] = {}
    for op in main.body.ops:
        place = LOOK_UPS.get(op.name)
        if place is not None:
            rows = _rows(op)
            for argument in sources.get(op.operands[place], ()):
                limits[argument] = min(rows, limits.get(argument, rows))
        elif op.name in MOVES or OPS[op.name].elementwise:
            found = frozenset().union(*(sources.get(operand, frozenset()) for operand in op.operands))
            sources |= dict.fromkeys(op.results, found)
    return limits


def _rows(op: Op) -> int:
    """The smallest size that an index of a look-up runs over; 2 where it is open."""
    table = op.operands[0].shape
    if op.name == "stablehlo.torch_index_select":
        axes: Sequence[int] = (op.attrs["dim"],)
    else:
        axes = op.attrs["dimension_numbers"].start_index_map
    return min((size if isinstance(size, int) else 2 for size in (table.sizes[axis] for axis in axes)), default=2)
