"""A checkpoint's weights in the memory of a device, as XLA computes with them: dense, of one element type, [in, out].

In: a checkpoint. Out: buffers by name, and how they are stored, for all programs of a model (`step`). XLA's GEMMs of
a few rows read [in, out] faster than [out, in], as files have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smelt.dtype import Array, DType, bf16, f32
from smelt.engine_api import Platform
from smelt.errors import RunError
from smelt.ir.blocks import Block
from smelt.ir.core import Program
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.layers import Formats, Transposed
from smelt.shape import Shape
from smelt.tensor.composite import unblock
from smelt.tensor.core import Tensor
from smelt.tensor.jit.compile import compile
from smelt.tensor.ops.elementwise import cast
from smelt.tensor.ops.move import permute
from smelt.weights import Stored, Weights

TABLES = ("embed.weight", "positions.weight")  # rows are looked up


@dataclass(frozen=True, slots=True)
class Placed:
    """Weights on a device. `shapes` has their shapes, and no content."""

    buffers: Mapping[str, Any]
    shapes: Weights
    formats: Formats

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.delete()


def place_weights(checkpoint: Checkpoint, platform: Platform[Program], precision: str) -> Placed:
    """Copy all weights to the device and convert them there, one after the other."""
    buffers: dict[str, Any] = dict(checkpoint.weights.to_device(platform))
    checkpoint.weights.release()
    formats: dict[str, Block | DType | Transposed] = {}
    programs: dict[tuple[Any, ...], Any] = {}
    for name, given in buffers.items():
        form = checkpoint.formats[name]
        rank = given.shape.rank - isinstance(form, Block)
        element = bf16 if precision == "bf16" and rank > 1 and name not in TABLES else f32
        is_table = name in TABLES and not isinstance(form, Block)  # its rows are widened as they are looked up
        is_turned = rank == 2 and name not in TABLES
        element = given.shape.dtype if is_table else element
        formats[name] = Transposed(element) if is_turned else element
        if given.shape.dtype is element and not is_turned:
            continue
        key = given.shape, form if isinstance(form, Block) else None, element, is_turned
        if key not in programs:
            programs[key] = _conversion(given.shape, form, element, is_turned, platform)
        buffers[name] = programs[key](given)
        buffers[name].wait()  # so that two of them are in memory at most
        given.delete()
    for program in programs.values():
        program.close()
    shapes = Weights({name: Stored(_plain(buffer.shape), _no_content) for name, buffer in buffers.items()})
    return Placed(buffers, shapes, formats)


def _conversion(shape: Shape, form: Any, element: DType, is_turned: bool, platform: Platform[Program]) -> Any:
    """A program that gives a weight as dense numbers, transposed where asked."""

    def convert(weight: Tensor) -> Tensor:
        dense = unblock(weight, form.name) if isinstance(form, Block) else weight
        return cast(permute(dense, (1, 0)) if is_turned else dense, element)

    return compile(convert, str(_plain(shape)), platform=platform)


def _plain(shape: Shape) -> Shape:
    return Shape.of(shape.dtype, shape.sizes)


def _no_content() -> Array:
    raise RunError("the weights are on the device", remedy="load the model again")
