"""The tiles that a block of threads multiplies on tensor cores: their sizes, and the shared memory that they take.

Builders choose one, `loops.simt` finds room for it, `emit.tile_mma` has the functions.
"""

from __future__ import annotations

from smelt.kernel.loops.form import FEW_BF16, FEW_F32_BF16, TENSOR_BF16, TENSOR_F32_BF16, Form
from smelt.kernel.loops.grammar import Mma, Number

TENSOR, FEW_TENSOR = (TENSOR_BF16, TENSOR_F32_BF16), (FEW_BF16, FEW_F32_BF16)
TILE_ROWS, FEW_ROWS = 128, 32
WIDTHS = (64, 128, 256)  # columns of a tile
STAGES = 4  # of the ring of operands, where there is room
ALIGN = 1024  # bytes of a stage
PAD = 8  # elements after each row of sums: neighbouring rows begin in other banks


def stage_bytes(form: Form, columns: int) -> int:
    """A stage: 128 bytes of each row, which are 64 steps of bf16 or 32 of f32, and as many steps of the columns."""
    steps = 128 * 8 // form.left.bits
    used = TILE_ROWS * 128 + steps // 8 * (16 * columns) + steps // 32 * 128
    return -(-used // ALIGN) * ALIGN


def count_stages(form: Form, columns: int, room: int) -> int:
    """The stages of a ring in this number of bytes."""
    return min(STAGES, room // stage_bytes(form, columns))


def tile_bytes(columns: int) -> int:
    return 4 * TILE_ROWS * (columns + PAD)


def tile_columns(mma: Mma) -> int:
    """The columns of the tile that a product fills."""
    pitch = mma.acc.strides[0]
    assert isinstance(pitch, Number)
    return int(pitch.value.real) - PAD


def shares_memory(mma: Mma) -> bool:
    """Whether the sums may take the memory of the operands: they are written once, after all of them were read."""
    return mma.accumulate == Number(0)
