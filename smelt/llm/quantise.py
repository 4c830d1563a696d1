"""Block-quantised weights from numbers, for the simple formats, as llama.cpp's reference does it; and a GGUF file of
another one, or of a folder, with its matrices in such a format. `smelt quantise` calls `quantise`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smelt.dtype import Array, dtype
from smelt.errors import FileError, UnsupportedError
from smelt.ir.blocks import BLOCKS, Block, decode
from smelt.llm import checkpoint
from smelt.llm.gguf_export import check_same, metadata_of, tensors_of
from smelt.llm.gguf_write import Tensor, rewrite, write
from smelt.read import gguf

KEPT = ("ffn_gate_inp.", "position_embd.")  # small, and what they decide is not
HEADS = ("token_embd.weight", "output.weight")  # tables that small formats leave in q8_0
FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9}  # general.file_type


def _halves(levels: Array) -> Array:
    """The low nibbles of the first and the second half of a block in one byte."""
    first, second = np.split(levels & 15, 2, axis=-1)
    found: Array = first | second << 4
    return found


def _top_bits(levels: Array) -> Array:
    return np.packbits(levels >> 4, axis=-1, bitorder="little")


def _inverse(scale: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale).astype(np.float32)


def _f16(x: Array) -> Array:
    return x.astype("<f2").view(np.uint8)


def _symmetric(x: Array, levels: int) -> tuple[Array, Array]:
    """The element of greatest magnitude is the lowest level."""
    place = np.abs(x).argmax(-1, keepdims=True)
    scale = (np.take_along_axis(x, place, -1) / np.float32(-levels / 2)).astype(np.float32)
    wide = x.astype(np.float64) * _inverse(scale) + (levels / 2 + 0.5)
    return scale, np.trunc(wide).astype(np.float32).clip(0, 255).astype(np.uint8).clip(0, levels - 1)


def _affine(x: Array, levels: int) -> tuple[Array, Array, Array]:
    least = x.min(-1, keepdims=True)
    scale = ((x.max(-1, keepdims=True) - least) / np.float32(levels - 1)).astype(np.float32)
    wide = (x - least) * _inverse(scale) + np.float32(0.5)
    return scale, least, np.trunc(wide).clip(0, 255).astype(np.uint8).clip(0, levels - 1)


def _q4_0(x: Array) -> list[Array]:
    scale, levels = _symmetric(x, 16)
    return [_f16(scale), _halves(levels)]


def _q5_0(x: Array) -> list[Array]:
    scale, levels = _symmetric(x, 32)
    return [_f16(scale), _top_bits(levels), _halves(levels)]


def _q4_1(x: Array) -> list[Array]:
    scale, least, levels = _affine(x, 16)
    return [_f16(scale), _f16(least), _halves(levels)]


def _q5_1(x: Array) -> list[Array]:
    scale, least, levels = _affine(x, 32)
    return [_f16(scale), _f16(least), _top_bits(levels), _halves(levels)]


def _q8_0(x: Array) -> list[Array]:
    scale = (np.abs(x).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    wide = x * _inverse(scale)
    whole = np.floor(np.abs(wide))
    rounded = np.sign(wide) * (whole + np.floor(2 * (np.abs(wide) - whole)))  # halves away from zero
    return [_f16(scale), rounded.astype(np.int8).view(np.uint8)]


ENCODERS: Mapping[str, Callable[[Array], list[Array]]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
}


def encode(row: Block, x: Array) -> Array:
    """f32[..., n * length] → ui8[..., n, bytes]."""
    blocks = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, row.length)
    return np.concatenate(ENCODERS[row.name](blocks), axis=-1)


@dataclass(frozen=True, slots=True)
class Loss:
    """What a tensor lost: the root mean square of the differences, relative to that of the numbers."""

    name: str
    format: str
    error: float


def quantise(source: Path, target: Path, to: str, progress: Callable[[str], None] = lambda _: None) -> list[Loss]:
    """Write a GGUF file of a GGUF file or a Hugging Face folder, with its matrices in a format; what each of them lost.

    Embeddings and the output matrix are kept in q8_0 or better; vectors, routers, positions and matrices whose rows are
    no whole blocks stay as they are.
    """
    if to not in ENCODERS:
        raise UnsupportedError("a format that is not written", expected=", ".join(ENCODERS), got=to, remedy="--to q4_0")
    losses: list[Loss] = []
    if source.is_dir():
        _quantise_folder(source, target, to, progress, losses)
        return losses
    if source.suffix.lower() != ".gguf":
        raise UnsupportedError(
            f"{source} cannot be quantised",
            expected="a GGUF file or a Hugging Face folder",
            remedy='give the language model\'s .gguf file or folder; precision="int8" for other models',
        )
    file = gguf.read(source)

    def tensor(name: str) -> Tensor:
        kept, sizes = file.formats[name], file.dense.shape(name).numbers()
        row = _format(name, sizes, to)
        if row is None or _is_smaller(kept, row):
            return Tensor(name, sizes, kept, lambda: file.packed[name].numpy())
        return _encode(name, sizes, row, lambda: file.dense[name].numpy(), progress, losses)

    rewrite(file, target, [tensor(name) for name in file.packed], FILE_TYPES[to])
    return losses


def _format(name: str, sizes: tuple[int, ...], to: str) -> Block | None:
    """The blocks that a tensor is written in; None for those that stay as they are."""
    row = BLOCKS["q8_0" if name in HEADS else to]
    kept = len(sizes) < 2 or sizes[-1] % row.length or any(part in name for part in KEPT)
    return None if kept else row


def _is_smaller(kept: object, row: Block) -> bool:
    """Whether a tensor is in blocks that are as small already."""
    return isinstance(kept, Block) and kept.bytes * row.length <= row.bytes * kept.length


def _encode(
    name: str,
    sizes: tuple[int, ...],
    row: Block,
    load: Callable[[], Array],
    progress: Callable[[str], None],
    losses: list[Loss],
) -> Tensor:
    def load_encoded() -> Array:
        progress(name)
        dense = load().astype(np.float32)
        if not np.isfinite(dense).all():
            raise FileError(
                f"{name} has elements that are no numbers", got="NaN or infinity", remedy="download the model again"
            )
        made = encode(row, dense)
        wrong = decode(row, made).astype(np.float64) - dense
        size = float(np.sqrt(np.mean(np.square(dense, dtype=np.float64))))
        losses.append(Loss(name, row.name, float(np.sqrt(np.mean(wrong**2))) / max(size, 1e-30)))
        return made

    return Tensor(name, sizes, row, load_encoded)


def _quantise_folder(source: Path, target: Path, to: str, progress: Callable[[str], None], losses: list[Loss]) -> None:
    found = checkpoint.open(source)
    tensors = []
    for name, content in tensors_of(found).items():
        row = _format(name, content.sizes, to)
        if row is None or _is_smaller(content.blocks, row):
            element = content.blocks or dtype(content.load().dtype)
            tensors.append(Tensor(name, content.sizes, element, content.load))
        else:
            tensors.append(_encode(name, content.sizes, row, content.load_numbers, progress, losses))
    write(target, metadata_of(found), tensors, FILE_TYPES[to])
    try:
        check_same(found.config, checkpoint.open(target).config, target)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
