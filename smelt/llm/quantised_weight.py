"""One quantised weight of a Hugging Face folder as a matrix of ours: blocks where they hold it exactly, else numbers.

`Grouped` are integers with a scale, and perhaps a zero point, per group of inputs; `Float8` are f8E4M3FN with a scale
per tile. `form` says what a weight becomes, from its header and its small tensors; `load` reads and repacks it.
`quantised_folder` makes them of a folder's tensors. Axes: out, in, and group, which is a set of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import ml_dtypes
import numpy as np

from smelt.dtype import Array, DType, bf16, f16, ui8
from smelt.errors import FileError
from smelt.ir.blocks import BLOCKS, Block
from smelt.shape import Shape
from smelt.weights import Stored

RUN = 32  # the least length of a block
PIECE = 1 << 22  # elements that are dequantised at a time
Form = Block | DType


def as_stored(weight: Quantised, form: Form, sources: tuple[Stored, ...]) -> Stored:
    """A weight in a form, repacked when it is loaded, from `sources`."""
    rows, depth = weight.rows, weight.depth
    shape = Shape.of(form, (rows, depth)) if isinstance(form, DType) else _block_shape(form, rows, depth)
    return Stored(shape, lambda: weight.load(form), sources=sources)


def _block_shape(form: Block, rows: int, depth: int) -> Shape:
    return Shape.of(ui8, (rows, depth // form.length, form.bytes))


@dataclass(frozen=True)
class Grouped:
    """Integers `code - zero` times the scale of their group."""

    name: str
    rows: int
    depth: int
    bits: int  # of a code, 4 or 8
    codes: Callable[[], Array]  # ui8[out, bytes]: two codes of 4 bits in a byte, the first in its low bits
    scales: Callable[[], Array]  # [out, group], f16, bf16 or f32
    zeros: Callable[[], Array] | None  # ui8[out, group]; none: half of the range
    group_of: Array  # the group of each input, i32[in]
    exact: bool  # whether scales are f16 as they are stored

    @property
    def dense(self) -> DType:
        """What holds the numbers where no block does: the type that the format's own tools dequantise to."""
        return f16 if self.exact else bf16

    @property
    def half(self) -> int:
        return 1 << (self.bits - 1)

    @cached_property
    def form(self) -> Form:
        """4-bit codes with zero points of 8 are q4_0, 8-bit ones with 128 are q8_0. A zero point of its own is one per
        block of 128; per 32, `code - zero` has 5 bits."""
        if self._groups_of_blocks(RUN) is None or not (self.exact or _is_f16(self.scales())):
            return self.dense
        if self.zeros is None or bool((self.zeros() == self.half).all()):
            return BLOCKS["q4_0" if self.bits == 4 else "q8_0"]
        if self.bits == 8:
            return self.dense
        long = BLOCKS["u4_128"]
        return BLOCKS["q5_0"] if self._groups_of_blocks(long.length) is None else long

    def sort_inputs(self) -> tuple[Grouped, Array] | None:
        """The weight with its inputs sorted by group, and which input each column is for, i32[in]; None where blocks
        cannot hold that either."""
        order = np.argsort(self.group_of, kind="stable").astype(np.int32)

        def codes() -> Array:
            made, given = np.empty((self.rows, self.depth * self.bits // 8), np.uint8), self.codes()
            for part in _parts(self.rows, self.depth):
                taken = split_bytes(given[part], self.bits)[:, order]
                made[part] = taken if self.bits == 8 else taken[:, 0::2] | taken[:, 1::2] << 4
            return made

        found = replace(self, codes=codes, group_of=self.group_of[order])
        return (found, order) if isinstance(found.form, Block) else None

    def load(self, form: Form) -> Array:
        scales = self.scales()
        check_scales(self.name, scales)
        if not isinstance(form, Block):
            return self._load_numbers(scales, form)
        groups = self._groups_of_blocks(form.length)
        assert groups is not None
        made = np.empty((self.rows, self.depth // form.length, form.bytes), np.uint8)
        made[..., :2] = np.ascontiguousarray(scales.astype(np.float16)[:, groups, None]).view(np.uint8)
        codes, zeros = self.codes(), None if self.zeros is None else self.zeros()[:, groups]
        match form.name:
            case "q8_0":
                made[..., 2:] = (codes ^ np.uint8(128)).reshape(*made.shape[:2], RUN)
            case "q4_0":
                made[..., 2:] = _pair_halves(codes, self.depth)
            case "u4_128":
                assert zeros is not None
                made[..., 2] = zeros << 4 | 1
                made[..., 3:] = _pair_halves(codes, self.depth).reshape(*made.shape[:2], -1)
            case _:
                assert form.name == "q5_0"
                assert zeros is not None
                for part in _parts(self.rows, self.depth):
                    levels = split_bytes(codes[part], 4).reshape(-1, made.shape[1], RUN) + 16 - zeros[part][..., None]
                    made[part, :, 2:6] = np.packbits(levels >> 4, -1, bitorder="little")
                    made[part, :, 6:] = levels[..., :16] & 15 | levels[..., 16:] << 4
        return made

    def _load_numbers(self, scales: Array, form: DType) -> Array:
        made = np.empty((self.rows, self.depth), form.numpy)
        scales = scales.astype(np.float32)
        codes, zeros = self.codes(), None if self.zeros is None else self.zeros()
        for part in _parts(self.rows, self.depth):
            levels = split_bytes(codes[part], self.bits)[:, : self.depth].astype(np.float32)
            levels -= np.float32(self.half) if zeros is None else zeros[part][:, self.group_of]
            with np.errstate(over="ignore"):
                made[part] = levels * scales[part][:, self.group_of]
        return made

    def _groups_of_blocks(self, length: int) -> Array | None:
        """The group of each block of `length` inputs; None where a block has inputs of several groups."""
        if self.depth % length:
            return None
        blocks = self.group_of.reshape(-1, length)
        return blocks[:, 0] if bool((blocks == blocks[:, :1]).all()) else None


@dataclass(frozen=True)
class Float8:
    """f8E4M3FN times the scale of a tile; in bf16 as transformers dequantises it."""

    name: str
    rows: int
    depth: int
    codes: Callable[[], Array]  # f8E4M3FN[out, in]
    scales: Callable[[], Array]  # [out / tile, in / tile]
    tile: tuple[int, int]  # outputs and inputs that share a scale

    form = dense = bf16

    def load(self, form: Form) -> Array:
        scales = self.scales()
        check_scales(self.name, scales)
        scales, columns = scales.astype(np.float32), np.arange(self.depth) // self.tile[1]
        codes, made = self.codes().view(np.uint8), np.empty((self.rows, self.depth), bf16.numpy)
        numbers = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        for part in _parts(self.rows, self.depth):
            rows = np.arange(self.rows)[part] // self.tile[0]
            with np.errstate(over="ignore"):
                made[part] = numbers[codes[part]] * scales[rows][:, columns]
        return made


Quantised = Grouped | Float8


def check_scales(name: str, scales: Array) -> None:
    if not np.isfinite(scales.astype(np.float32)).all():
        raise FileError(
            f"{name}: a scale is no number",
            expected="finite scales",
            got="NaN or infinity",
            remedy="download or copy the file again: it may be damaged",
        )


def split_bytes(packed: Array, bits: int) -> Array:
    """Bytes [..., n] as codes [..., n * 8 / bits], the lowest bits first."""
    if bits == 8:
        return packed
    made = np.empty((*packed.shape, 2), np.uint8)
    made[..., 0], made[..., 1] = packed & 15, packed >> 4
    return made.reshape(*packed.shape[:-1], -1)


def _pair_halves(packed: Array, depth: int) -> Array:
    """Codes in order, two in a byte, as blocks of 32 hold them: code i with code i + 16. → ui8[out, in / 32, 16]."""
    words = np.ascontiguousarray(packed).view("<u8").reshape(packed.shape[0], depth // RUN, 2)
    low, first, second = np.uint64(0x0F0F0F0F0F0F0F0F), words[..., 0], words[..., 1]
    made = np.empty((packed.shape[0], depth // RUN, 8, 2), np.uint8)
    even = (first & low) | (second & low) << np.uint64(4)
    odd = (first >> np.uint64(4) & low) | (second & ~low)
    made[..., 0] = even[..., None].view(np.uint8)
    made[..., 1] = odd[..., None].view(np.uint8)
    return made.reshape(packed.shape[0], depth // RUN, 16)


def _is_f16(scales: Array) -> bool:
    """Whether f16 holds all of them."""
    wide = scales.astype(np.float32)
    with np.errstate(all="ignore"):
        return bool((wide.astype(np.float16).astype(np.float32) == wide).all())


def _parts(rows: int, depth: int) -> Iterator[slice]:
    step = max(PIECE // depth, 1)
    return (slice(at, at + step) for at in range(0, rows, step))
