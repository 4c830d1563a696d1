"""Which ops of the kernels' own dialect have a kernel: those that the passes make, and no others.

Such an op means something for any width, type and size that inference accepts, and a file may hold any of them. Kernels
are for the panels, forms and sizes of the passes. Called by `engine.compile` on a lowered program; what it refuses runs
on the reference engine.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from smelt.dtype import bf16, f16, f32
from smelt.ir.block_layout import Layout
from smelt.ir.core import Func, Op, walk
from smelt.ir.ops.attention import attention_axes
from smelt.ir.ops.packed import FP8, OCTET, taps_of
from smelt.ir.ops.paged_attention import PagedNumbers
from smelt.kernel.build.gemm import form_of
from smelt.kernel.loops.form import BF16, F32, F32_BF16, F32_F16, INT8, Form
from smelt.kernel.loops.nest import tensor, unsupported
from smelt.kernel.loops.tensor_tile import TENSOR
from smelt.passes.fuse_attention import QUERIES, suits_attention, suits_paged_attention
from smelt.passes.pack_weights import MOST_TAPS
from smelt.target import FP8 as HAS_FP8
from smelt.target import Target, tile_shape

_PANELS = (F32, F32_F16, F32_BF16, BF16, INT8)  # that every target multiplies by
_EDGES = 2  # axes of images that a kernel pads with zeros of its own


def check_ops(func: Func, target: Target) -> None:
    """Refuse a function with an op that no kernel of the target is for."""
    for op in walk(func.body):
        if op.name in _CHECKS:
            _CHECKS[op.name](op, target)


def _require(op: Op, holds: bool, what: str) -> None:
    if not holds:
        raise unsupported(op, what)


def _panels(op: Op, target: Target) -> Form:
    """The form of a product by panels of a width that the target has a kernel for."""
    left, right = map(tensor, op.operands[:2])
    form, line = form_of(op), right.sizes[-1]
    known = form is not None and (form in _PANELS or (target.kind == "simt" and form in TENSOR))
    what = f"of {left.element} by {right.element} with the layout {op.attrs['layout']}"
    if form is None or not known or not isinstance(line, int):
        raise unsupported(op, what)
    columns = (tile_shape(target).columns,) if form in TENSOR else _columns(target)
    _require(op, line // form.k_pack in columns, what)
    narrow = left.element in FP8
    _require(op, not narrow or HAS_FP8 in target.features, what)
    return form


def _columns(target: Target) -> tuple[int, ...]:
    """Columns of a panel: those of the register tile; on a GPU, where threads have elements, also parts of a tile."""
    whole = tile_shape(target).columns
    return (whole, whole // 2, whole // 4) if target.kind == "simt" else (whole,)


def _packed_dot(op: Op, target: Target) -> None:
    _panels(op, target)


def _grouped_dot(op: Op, target: Target) -> None:
    form = _panels(op, target)
    on_tensor_cores = form.right == bf16 and form.k_pack == OCTET
    suits = on_tensor_cores if target.kind == "simt" else form.total == f32
    _require(op, suits, f"of {form.left} by {form.right}")


def _packed_conv(op: Op, target: Target) -> None:
    form, taps, images = _panels(op, target), taps_of(op.attrs), tensor(op.operands[0])
    known = (*tensor(op.operands[1]).sizes, images.sizes[-1], tensor(op.result).sizes[-1])
    _require(op, all(isinstance(size, int) and size > 0 for size in known), "of an unknown or no channel")
    _require(op, min(taps.window) > 0, f"with the window {list(taps.window)}")
    if any(map(any, taps.edges)):
        few = len(taps.window) <= _EDGES and prod(taps.window) <= MOST_TAPS
        pads = form in TENSOR and form.left in (bf16, f16) and few and images.is_static
        _require(op, pads and images.sizes[-1] % OCTET == 0, f"with the padding {list(taps.padding)}")


def _depthwise_conv(op: Op, target: Target) -> None:
    _require(op, tensor(op.result).element == f32, f"of {tensor(op.result).element}")


def _winograd_conv(op: Op, target: Target) -> None:
    panels = tensor(op.operands[1])
    suits = panels.element == f32 and panels.sizes[-1] == tile_shape(target).columns and target.kind == "cpu"
    known = isinstance(panels.sizes[2], int) and panels.sizes[2] > 0
    _require(op, suits and known, f"with the panels {panels}")


def _block_dot(op: Op, target: Target) -> None:
    depth = tensor(op.operands[0]).sizes[2]
    _require(op, isinstance(depth, int), f"of rows of {depth} elements")
    centred = target.kind == "cpu" or Layout.of(op.attrs["format"]).is_centred
    _require(op, centred, f"of {op.attrs['format']} on a GPU")


def _attention(op: Op, target: Target) -> None:
    shapes = [tensor(value) for value in (*op.operands[:3], op.result)]
    _require(op, suits_attention(attention_axes(op), shapes), "of these types and sizes")
    width, columns = op.attrs["width"], tile_shape(target).columns
    _require(op, width % columns == 0 and width <= max(QUERIES, columns), f"with the width {width}")


def _paged_attention(op: Op, target: Target) -> None:
    numbers, shapes = PagedNumbers.of(op.attrs["composite_attributes"]), [tensor(value) for value in op.operands[:3]]
    suits = numbers is not None and suits_paged_attention(numbers, shapes, target.kind == "cpu")
    _require(op, suits, "of this window, and of these types and sizes")
    _require(op, op.attrs["width"] in _columns(target), f"with the width {op.attrs['width']}")


_CHECKS: dict[str, Callable[[Op, Target], None]] = {
    "smelt.packed_dot": _packed_dot,
    "smelt.grouped_dot": _grouped_dot,
    "smelt.packed_conv": _packed_conv,
    "smelt.depthwise_conv": _depthwise_conv,
    "smelt.winograd_conv": _winograd_conv,
    "smelt.packed_block_dot": _block_dot,
    "smelt.grouped_block_dot": _block_dot,
    "smelt.attention": _attention,
    "smelt.paged_attention": _paged_attention,
}
