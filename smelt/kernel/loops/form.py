"""Form: how the elements of a product are multiplied and in which order they are added up.

A form is semantics: the bits of a result depend on its row, its column and the form, and on no schedule. Builders put
one into every `Mma`; an emitter has a micro-kernel for each.
"""

from __future__ import annotations

from smelt.dtype import DType, bf16, f16, f32, i8, i32, ui8
from smelt.frozen import Frozen
from smelt.ir.ops.packed import FP8


class Form(Frozen):
    """Rows of `left` by panels of `right`, added up in `total`.

    `k_pack` steps of K are adjacent in each column of a panel, and one instruction may take them together. A K-block of
    `block` steps is summed in order, one multiply-add after another; the sums of the blocks are added in order.
    """

    name: str
    left: DType
    right: DType
    total: DType
    k_pack: int
    block: int


F32 = Form("f32", f32, f32, f32, 1, 128)
F32_F16, F32_BF16 = (Form(f"f32_{each}", f32, each, f32, 1, 128) for each in (f16, bf16))  # widened, then as f32
BF16 = Form("bf16", bf16, bf16, f32, 2, 256)
# Tensor cores: 8 steps of a column are 16 adjacent bytes. A tile has one sum, in the order of the instruction. A few
# rows have 8 sums, of which one after another takes the next 32 steps, added up in the end; where the copy engine
# brings weights (`stream`), a sum for each part of K. f32 is split into three bf16, which hold all of its bits.
TENSOR_BF16, FEW_BF16, STREAM_BF16 = (
    Form(f"bf16_{name}", bf16, bf16, f32, 8, 1 << 40) for name in ("mma", "few", "stream")
)
TENSOR_F16 = Form("f16_mma", f16, f16, f32, 8, 1 << 40)
TENSOR_F32_BF16, FEW_F32_BF16 = (Form(f"f32_bf16_{name}", f32, bf16, f32, 8, 1 << 40) for name in ("mma", "few"))
# f32 rounded to tf32 (10 bits of mantissa): 4 steps of a column are 16 bytes.
TENSOR_TF32 = Form("tf32_mma", f32, f32, f32, 4, 1 << 40)
# fp8: 16 steps. Hopper adds with about 14 bits, so the sum of every 128 steps is added up in f32, in order.
TENSOR_FP8 = tuple(
    Form(f"{left.name[2:6].lower()}_{right.name[2:6].lower()}_mma", left, right, f32, 16, 128)
    for left in FP8
    for right in FP8
)
# The same where the copy engine brings the weights of few rows.
STREAM_FP8 = tuple(each.replace(name=each.name.replace("_mma", "_stream")) for each in TENSOR_FP8)
# The same where each block finds in the sizes of groups how few rows it has.
GROUPED = GROUPED_BF16, GROUPED_F32_BF16 = (
    STREAM_BF16.replace(name="bf16_grouped"),
    FEW_F32_BF16.replace(name="f32_bf16_grouped"),
)
STREAM = (STREAM_BF16, *STREAM_FP8, *GROUPED)
# FlashAttention: scores in the order of the instruction; weights, rounded to bf16, by values tile after tile of keys.
# Where something is f32, operands and weights are sums of three bf16, and small products are added first.
FLASH_BF16, FLASH_F32 = (Form(f"{each}_flash", each, each, f32, 8, 1 << 40) for each in (bf16, f32))
# Exact: any order gives the same bits. On tensor cores 16 steps of a column are adjacent bytes.
INT8, TENSOR_INT8 = Form("int8", ui8, i8, i32, 4, 512), Form("int8_mma", ui8, i8, i32, 16, 1 << 40)
