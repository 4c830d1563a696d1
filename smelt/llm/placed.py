"""A checkpoint's weights in the memory of a device, as XLA computes with them: dense, of one element type, [in, out].

In: a checkpoint. Out: buffers by name, and how they are stored, for all programs of a model (`step`). XLA's GEMMs of
a few rows read [in, out] faster than [out, in], as files have it, and one large matrix faster than several small ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smelt.buffer import HostBuffer
from smelt.dtype import Array, DType, bf16, f32
from smelt.engine.pjrt_mesh import MeshEngine
from smelt.engine.protocol import Platform
from smelt.errors import RunError
from smelt.ir.blocks import Block
from smelt.ir.core import Program
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.decoder import Decoder
from smelt.llm.layers import Formats, Transposed
from smelt.mesh import Mesh
from smelt.shape import Shape
from smelt.tensor.composite import unblock
from smelt.tensor.core import Tensor
from smelt.tensor.jit.compile import compile
from smelt.tensor.model import Parameter, parameters_of
from smelt.tensor.ops.elementwise import cast
from smelt.tensor.ops.move import concatenate, named, permute
from smelt.weights import Stored, Weights

TABLES = ("embed.weight", "positions.weight")  # rows are looked up
MERGED = {"attn.qkv": ("attn.q", "attn.k", "attn.v"), "mlp.gate_up": ("mlp.gate", "mlp.up")}  # of the same rows


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
    """Copy all weights to the device and convert them there, one at a time. On a mesh each is split as the axes
    of the decoder's parameter say, and matrices are not merged: devices would have parts of one of them only."""
    weights, mesh = checkpoint.weights, platform.engine.mesh if isinstance(platform.engine, MeshEngine) else None
    merged = merge_names(weights) if mesh is None else {name: (name,) for name in weights}
    conversions = {
        name: _choose_conversion(
            name,
            [weights.find(each).shape for each in sources],
            [checkpoint.formats[each] for each in sources],
            precision,
        )
        for name, sources in merged.items()
    }
    formats: dict[str, Block | DType | Transposed] = {
        name: Transposed(each.element) if each.is_turned else each.element for name, each in conversions.items()
    }
    if mesh is not None:
        declared = parameters_of(Decoder, config=checkpoint.config, formats=formats)
        conversions = {
            name: replace(each, axes=_split_axes(declared[name], mesh)) for name, each in conversions.items()
        }
    given: dict[str, Any] = dict(weights.to_device(platform)) if mesh is None else {}
    buffers: dict[str, Any] = {}
    programs: dict[Conversion, Any] = {}
    for name, sources in merged.items():
        conversion = conversions[name]
        parts = [given[each] for each in sources] if mesh is None else list(_copy(weights, sources, platform))
        if conversion.is_identity:
            (buffers[name],) = parts
            continue
        if conversion not in programs:
            programs[conversion] = compile(conversion, [str(shape) for shape in conversion.shapes], platform=platform)
        buffers[name] = programs[conversion](parts)
        buffers[name].wait()  # so that few are in memory twice
        for part in parts:
            part.delete()
    weights.release()
    for program in programs.values():
        program.close()
    shapes = Weights({name: Stored(_plain(buffer.shape), _no_content) for name, buffer in buffers.items()})
    return Placed(buffers, shapes, formats)


def _copy(weights: Weights, names: Sequence[str], platform: Platform[Program]) -> Iterable[Any]:
    """Weights on the devices of a mesh, whole on each."""
    return (platform.put(HostBuffer.of(weights[name].numpy())) for name in names)


def _split_axes(declared: Parameter, mesh: Mesh) -> tuple[str, ...]:
    """The axes of a parameter, where some of them is split."""
    names = declared.shape.names or ()
    return names if any(mesh.partition(names)) else ()


def merge_names(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The weights to bind, each with those that it is made of: matrices that multiply the same rows are one."""
    known = dict.fromkeys(names)
    found = {}
    for name in known:
        merged = next(
            (
                (name.replace(parts[0], whole), tuple(name.replace(parts[0], part) for part in parts))
                for whole, parts in MERGED.items()
                if f"{parts[0]}." in name
            ),
            None,
        )
        if merged is not None and all(part in known for part in merged[1]):
            found[merged[0]] = merged[1]
    used = {part for parts in found.values() for part in parts}
    return {**{name: (name,) for name in known if name not in used}, **found}


@dataclass(frozen=True, slots=True)
class Conversion:
    """Weights concatenated along their first axis, dequantised, and transposed if wanted."""

    shapes: tuple[Shape, ...]
    blocks: tuple[str | None, ...]  # the format of each that has one
    element: DType
    is_turned: bool
    axes: tuple[str, ...] = ()  # of the result, where it is split over a mesh

    @property
    def is_identity(self) -> bool:
        return not self.is_turned and not self.axes and [shape.dtype for shape in self.shapes] == [self.element]

    def __call__(self, parts: list[Tensor]) -> Tensor:
        dense = [
            each if block is None else unblock(each, block) for each, block in zip(parts, self.blocks, strict=True)
        ]
        whole = concatenate([cast(each, self.element) for each in dense], 0)
        whole = permute(whole, (1, 0)) if self.is_turned else whole
        return named(whole, *self.axes) if self.axes else whole


def _choose_conversion(name: str, shapes: Sequence[Shape], forms: Sequence[Any], precision: str) -> Conversion:
    blocks = tuple(form.name if isinstance(form, Block) else None for form in forms)
    rank = shapes[0].rank - (blocks[0] is not None)
    is_matrix = rank > 1 and name not in TABLES
    element = bf16 if precision == "bf16" and is_matrix else f32
    if name in TABLES and isinstance(forms[0], DType):
        element = forms[0]  # rows are widened as they are looked up
    return Conversion(tuple(map(_plain, shapes)), blocks, element, is_matrix and rank == 2)


def _plain(shape: Shape) -> Shape:
    return Shape.of(shape.dtype, shape.sizes)


def _no_content() -> Array:
    raise RunError("the weights are on the device", remedy="load the model again")
