"""GGUF files that we write, read back byte by byte: metadata of every type, alignment, and files written again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import dtype
from smelt.ir.blocks import BLOCKS
from smelt.llm.gguf_write import QUANTISATION, Tensor, _string, _value, _write, rewrite, write
from smelt.read import gguf as reader
from smelt.read.gguf import ALIGNMENT

FILE_TYPE, VERSION = "general.file_type", "general.quantization_version"
NUMBERS = np.arange(33, dtype=np.float32).reshape(3, 11)
BYTES = (np.arange(2 * 34) % 251).astype(np.uint8).reshape(2, 34)
METADATA: dict[str, Any] = {"general.name": "ä model", "a.count": 7, "a.rate": 0.5, "a.ids": np.array([3, 1, 2])}


def tensors() -> list[Tensor]:
    return [
        Tensor("numbers", (3, 11), dtype("f32"), lambda: NUMBERS),
        Tensor("half", (3,), dtype("f16"), lambda: NUMBERS[0, :3].astype(np.float16)),
        Tensor("blocks", (2, 32), BLOCKS["q8_0"], lambda: BYTES),
    ]


def contents(path: Path) -> dict[str, Any]:
    """The metadata of a file whose tensors are these."""
    found = reader.read(path)
    assert {name: str(format) for name, format in found.formats.items()} == {
        each.name: str(each.format) for each in tensors()
    }
    np.testing.assert_array_equal(found.dense["numbers"].numpy(), NUMBERS)
    np.testing.assert_array_equal(found.dense["half"].numpy(), NUMBERS[0, :3].astype(np.float16))
    np.testing.assert_array_equal(found.packed["blocks"].numpy().reshape(2, 34), BYTES)
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found.metadata.items()}


def test_what_is_written_is_read_back_and_written_again(tmp_path: Path) -> None:
    first, again = tmp_path / "x.gguf", tmp_path / "y.gguf"
    write(first, METADATA, tensors(), 7)
    said = {**METADATA, "a.ids": [3, 1, 2], FILE_TYPE: 7, VERSION: QUANTISATION}
    assert contents(first) == said
    assert len(first.read_bytes()) % ALIGNMENT == 0
    rewrite(reader.read(first), again, tensors(), 0)
    assert contents(again) == {**said, FILE_TYPE: 0}
    assert len(again.read_bytes()) == len(first.read_bytes())


def test_numbers_that_a_file_lacks_are_added_and_alignment_is_kept(tmp_path: Path) -> None:
    """Metadata without our two numbers, from a file with an alignment of its own."""
    first, again = tmp_path / "x.gguf", tmp_path / "y.gguf"
    _write(first, _string("general.alignment") + _value(64), 1, tensors(), 64)
    assert contents(first) == {"general.alignment": 64}
    rewrite(reader.read(first), again, tensors(), 2)
    assert contents(again) == {"general.alignment": 64, FILE_TYPE: 2, VERSION: QUANTISATION}
    assert len(again.read_bytes()) % 64 == 0


def test_a_name_of_another_type_is_left_alone(tmp_path: Path) -> None:
    """A text under the name of a number stays, and no second pair is written."""
    first, again = tmp_path / "x.gguf", tmp_path / "y.gguf"
    pairs = _string(FILE_TYPE) + _value("many") + _string(VERSION) + _value(1)
    _write(first, pairs, 2, tensors(), ALIGNMENT)
    rewrite(reader.read(first), again, tensors(), 2)
    assert contents(again) == {FILE_TYPE: "many", VERSION: QUANTISATION}


def test_bytes_of_tensors() -> None:
    assert [each.nbytes for each in tensors()] == [132, 6, 68]
    assert [each.kind for each in tensors()] == [0, 1, 8]  # GGML_TYPE_F32, _F16, _Q8_0
