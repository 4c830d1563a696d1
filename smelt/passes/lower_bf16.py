"""bf16 and f16 matmuls and convolutions: as GEMM of them with f32 results where the device has one, else as f32 GEMM.

f32 holds every bf16 number and every product of two, so converting operands changes only the order of the sum. The
conversion fuses into the producer of the operand; that of weights runs once, in `prepare`. `pack_weights` packs what
stays bf16. Called by `pipeline`.
"""

from __future__ import annotations

from smelt.dtype import DType, bf16, f16, f32
from smelt.ir.core import Value
from smelt.ir.ops.packed import OCTET
from smelt.ir.rewrite import Match, Rule, op
from smelt.passes.channels_last import channels_last_dims


def bf16_rules(pack: int) -> list[Rule]:
    """The rules that convert to f32 what no bf16 kernel computes; `pack`: adjacent steps of k that bf16 kernels take
    together; 0: there are none."""

    others = () if pack == OCTET else (f16,)  # tensor cores multiply f16 as well

    def dot(m: Match) -> Value | None:
        return _widen(m, *others) if pack else _widen(m, bf16, f16)

    def convolution(m: Match) -> Value | None:
        return _widen(m, *others) if pack and _fills(m, pack) else _widen(m, bf16, f16)

    return [
        Rule(op("stablehlo.dot_general", "x", "y"), _sum_in_f32, "a sum is rounded to a narrow type once"),
        Rule(op("stablehlo.convolution", "x", "y"), _sum_in_f32, "a sum is rounded to a narrow type once"),
        Rule(op("stablehlo.dot_general", "x", "y"), dot, "f32 holds every bf16 number"),
        Rule(op("stablehlo.convolution", "x", "y"), convolution, "f32 holds every bf16 number"),
        Rule(op("chlo.ragged_dot", "x", "y", "sizes"), dot, "f32 holds every bf16 number"),
    ]


def _sum_in_f32(m: Match) -> Value | None:
    """A product of bf16 or f16 with a result of that type, as one with an f32 result that is converted."""
    operands = [m["x"], m["y"]]
    if m.shape.dtype not in (bf16, f16) or any(value.shape.dtype != m.shape.dtype for value in operands):
        return None
    padding = [each for pair in m.op.attrs.get("padding") or () for each in pair]
    if m.op.name == "stablehlo.convolution" and (min(padding, default=0) < 0 or not _has_known_sizes(m)):
        return None
    attrs = {name: value for name, value in m.op.attrs.items() if name != "algorithm"}
    wide = m.build.op(m.op.name, *operands, result=m.shape.with_dtype(f32), **attrs).result
    return m.build.convert(wide, result=m.shape)


def _has_known_sizes(m: Match) -> bool:
    return all(isinstance(size, int) for value in (m["x"], m["y"]) for size in value.shape.sizes)


def _fills(m: Match, pack: int) -> bool:
    """Whether the channels of a group are a multiple of `pack`; on a GPU: those of a row of the window, where it is
    adjacent in memory."""
    attrs = m.op.attrs
    depth = m["y"].shape.sizes[attrs["dimension_numbers"].kernel_input_feature_dimension]
    rank, groups = m.shape.rank, attrs["feature_group_count"]
    if (
        pack == OCTET
        and attrs["dimension_numbers"] == channels_last_dims(rank)
        and groups == 1
        and isinstance(depth, int)
    ):
        dense = (attrs.get("rhs_dilation") or (1,))[-1] == 1
        across = m["y"].shape.sizes[rank - 3]
        depth = depth * across if dense and isinstance(across, int) else depth
    return isinstance(depth, int) and depth > 0 and depth % pack == 0 and attrs["batch_group_count"] == 1


def _widen(m: Match, *kinds: DType) -> Value | None:
    """The same op on f32 operands, if they are of these types."""
    operands = m["x"], m["y"]
    if any(value.shape.dtype not in kinds for value in operands) or m.shape.dtype != f32:
        return None
    wide = [m.build.convert(value, result=value.shape.with_dtype(f32)) for value in operands]
    attrs = {name: value for name, value in m.op.attrs.items() if name != "algorithm"}
    return m.build.op(m.op.name, *wide, *m.edit.operands(m.op)[2:], result=m.shape, **attrs).result
