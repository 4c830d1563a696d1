"""Random inputs for measurements: numbers of a usual range, and indices within their tables.

A program and values of its dynamic dimensions → arrays. `smelt.load(…, tune=…)` and the command line call it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from smelt.dim import symbols
from smelt.dtype import Array, DType
from smelt.engine.signature import signature_of
from smelt.errors import RunError
from smelt.ir.core import Func, Op, Program, Value
from smelt.ir.ops import OPS
from smelt.passes.split_prepare import BOUND, WEIGHT
from smelt.shape import Shape

# Ops that move or copy integers without changing them.
MOVES = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "concatenate", "reshape", "reverse", "slice", "transpose")
)
PICTURE = 64  # pixels along an axis
LOOK_UPS = {"stablehlo.gather": 1, "stablehlo.dynamic_gather": 1, "stablehlo.torch_index_select": 1}


def sample_inputs(program: Program, sizes: Mapping[str, int], seed: int = 0) -> list[Array]:
    """An array for every input; dynamic dimensions that are not given have defaults."""
    ports = signature_of(program.main).inputs
    numbers = default_sizes([port.shape for port in ports]) | dict(sizes)
    generator = np.random.default_rng(seed)
    arrays = {port.name: random_array(port.shape, numbers, generator) for port in ports}
    return list(in_range(program.main, arrays, seed).values())


def default_sizes(shapes: Sequence[Shape]) -> dict[str, int]:
    """A value for every symbol: 64 for the height and width of images (an axis of 1, 3 or 4 channels), else 1."""
    chosen: dict[str, int] = {}
    for shape in shapes:
        spatial = _spatial(shape)
        for axis, size in enumerate(shape.sizes):
            for name in symbols(size):
                chosen[name] = max(chosen.get(name, 1), PICTURE if axis in spatial else 1)
    return chosen


def _spatial(shape: Shape) -> tuple[int, ...]:
    """The height and width axes of a shape that looks like an image."""
    if shape.rank == 4 and not shape.element.is_integer:
        for channel, axes in ((1, (2, 3)), (3, (1, 2))):
            if shape.sizes[channel] in (1, 3, 4):
                return axes
    return ()


def random_array(shape: Shape, symbols: Mapping[str, int], generator: np.random.Generator) -> Array:
    """Random numbers: standard normal for floats, 0 to 9 for integers."""
    try:
        return _draw(shape.numbers(symbols), shape.element, generator)
    except (MemoryError, ValueError) as error:
        sizes = ", ".join(f"{name}={number}" for name, number in symbols.items())
        raise RunError("no memory for random inputs", got=f"{shape} at {sizes}", remedy="smaller sizes") from error


def _draw(sizes: tuple[int, ...], element: DType, generator: np.random.Generator) -> Array:
    if element.kind == "bool":
        return generator.integers(0, 2, sizes).astype(bool)
    if element.is_integer:
        return generator.integers(0, min(10, 1 << (element.bits - 1)), sizes).astype(element.numpy)
    normal: Array = generator.standard_normal(sizes)
    return (normal + 1j * generator.standard_normal(sizes) if element.is_complex else normal).astype(element.numpy)


def in_range(main: Func, inputs: dict[str, Array], seed: int) -> dict[str, Array]:
    """Redraw integers that index tables, within the smallest table; other integers become flags, 0 or 1."""
    generator = np.random.default_rng(seed)
    limits = _limits(main)
    pairs = zip(main.args, main.arg_attrs, strict=True)
    arguments = [arg for arg, attrs in pairs if WEIGHT not in attrs and BOUND not in attrs]
    for argument, (name, array) in zip(arguments, inputs.items(), strict=True):
        if array.dtype.kind in "iu":
            limit = max(1, min(limits.get(argument, 2), np.iinfo(array.dtype).max))
            inputs[name] = generator.integers(0, limit, array.shape).astype(array.dtype)
    return inputs


def _limits(main: Func) -> dict[Value, int]:
    """For each argument used as an index, the size of the smallest table that it indexes."""
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
    """The smallest size that an index of a lookup ranges over; 2 if it is dynamic."""
    table = op.operands[0].shape
    if op.name == "stablehlo.torch_index_select":
        axes: Sequence[int] = (op.attrs["dim"],)
    else:
        axes = op.attrs["dimension_numbers"].start_index_map
    return min((size if isinstance(size, int) else 2 for size in (table.sizes[axis] for axis in axes)), default=2)
