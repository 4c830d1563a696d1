"""GGUF files, good and hostile; the `gguf` package writes and reads the good ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.errors import SmeltError
from smelt.read.gguf import Gguf, read

MAGIC = b"GGUF"


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(name: str, sizes: Sequence[int], kind: int, offset: int) -> bytes:
    numbers = struct.pack(f"<{len(sizes)}Q", *sizes)
    return text(name) + struct.pack("<I", len(sizes)) + numbers + struct.pack("<IQ", kind, offset)


def build(
    pairs: Sequence[bytes] = (), infos: Sequence[bytes] = (), data: bytes = b"", version: int = 3, **counts: int
) -> bytes:
    head = MAGIC + struct.pack("<IQQ", version, counts.get("tensors", len(infos)), counts.get("keys", len(pairs)))
    head += b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data


def write(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    return path


def sample(path: Path) -> None:
    """A file with every kind of metadata and several kinds of tensors, by the official package."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.number", 7)
    writer.add_int64("a.negative", -(1 << 40))
    writer.add_float32("a.fraction", 0.5)
    writer.add_float64("a.double", 1e300)
    writer.add_bool("a.flag", True)
    writer.add_string("a.text", "Grüße, 世界")
    writer.add_array("a.words", ["one", "", "three"])
    writer.add_array("a.numbers", [1, 2, 3])
    random = np.random.default_rng(0)
    writer.add_tensor("norm", random.standard_normal(64).astype(np.float32))
    writer.add_tensor("half", random.standard_normal((3, 8)).astype(np.float16))
    data = random.integers(0, 128, (4, 2 * 18), np.uint8)
    writer.add_tensor("packed", data, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def look(file: Gguf) -> None:
    """Everything that a file holds."""
    for name in file.packed:
        assert file.packed[name].numpy().nbytes == file.packed.find(name).nbytes
        assert file.dense[name].numpy().shape == file.dense.shape(name).numbers()


def test_what_the_official_package_writes_is_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    sample(path)
    file = read(path)
    official = gguf.GGUFReader(path)
    for key, field in official.fields.items():
        if not key.startswith("GGUF."):
            value = file.metadata[key]
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents(), key
    for tensor in official.tensors:
        want = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.dense[tensor.name].numpy().reshape(want.shape), want)
    assert file.packed.shape("packed").numbers() == (4, 2, 18)
    assert not file.packed["packed"].owns, "mapped"
    assert smelt.open(path).shape("packed").numbers() == (4, 64)


def test_version_2_and_empty_files_are_read(tmp_path: Path) -> None:
    assert read(write(tmp_path, build(version=2))).metadata == {}
    nested = pair("deep", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 4, 2) + struct.pack("<II", 5, 6))
    [inner] = read(write(tmp_path, build([nested]))).metadata["deep"]
    assert inner.tolist() == [5, 6]


F32, Q4_0 = 0, 2
LONG = struct.pack("<Q", 1 << 63)
DEEP = struct.pack("<IQ", 9, 1) * 50
# tests/unit/read/test_refusals_of_readers.py says what is said of each.
BAD: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("another magic", b"GGML" + build()[4:]),
    ("version 1", build(version=1)),
    ("big-endian", MAGIC + struct.pack(">IQQ", 3, 0, 0)),
    ("a header cut short", build()[:20]),
    ("more tensors than bytes", build(tensors=1 << 62)),
    ("more pairs than bytes", build(keys=1 << 62)),
    ("one pair too many", build([pair("a", 4, bytes(4))], keys=2)),
    ("a long key", build([LONG + struct.pack("<I", 4) + bytes(4)])),
    ("a long string", build([pair("a", 8, LONG)])),
    ("a key that is no text", build([pair(b"\xff\xfe", 4, bytes(4))])),
    ("a string that is no text", build([pair("a", 8, text(b"\xc0\x80"))])),
    ("a key twice", build([pair("a", 4, bytes(4))] * 2)),
    ("an unknown type", build([pair("a", 13, bytes(8))])),
    ("a boolean of 2", build([pair("a", 7, b"\2")])),
    ("an array without end", build([pair("a", 9, struct.pack("<IQ", 4, 1 << 62))])),
    ("strings without end", build([pair("a", 9, struct.pack("<IQ", 8, 1 << 60))])),
    ("arrays of an unknown type", build([pair("a", 9, struct.pack("<IQ", 77, 1) + bytes(64))])),
    ("arrays in arrays in arrays", build([pair("a", 9, DEEP + bytes(64))])),
    ("an alignment of zero", build([pair("general.alignment", 4, struct.pack("<I", 0))])),
    ("an alignment of three", build([pair("general.alignment", 4, struct.pack("<I", 3))])),
    ("a huge alignment", build([pair("general.alignment", 4, struct.pack("<I", 1 << 31))])),
    ("an alignment that is text", build([pair("general.alignment", 8, text("32"))])),
    ("one of several files", build([pair("split.count", 2, struct.pack("<H", 3))])),
    ("too many axes", build([], [info("a", [1] * 9, F32, 0)], bytes(32))),
    ("an unknown element type", build([], [info("a", [4], 99, 0)], bytes(32))),
    ("sizes that overflow", build([], [info("a", [1 << 32, 1 << 32], F32, 0)], bytes(32))),
    ("sizes that overflow beside zero", build([], [info("a", [0, 1 << 63, 1 << 63], F32, 0)], bytes(32))),
    ("half a block", build([], [info("a", [48], Q4_0, 0)], bytes(64))),
    ("a block without axes", build([], [info("a", [], Q4_0, 0)], bytes(64))),
    ("past the end", build([], [info("a", [16], F32, 0)], bytes(32))),
    ("an offset past the end", build([], [info("a", [4], F32, 1 << 62)], bytes(32))),
    ("an offset that overflows", build([], [info("a", [4], F32, (1 << 64) - 32)], bytes(32))),
    ("not aligned", build([], [info("a", [4], F32, 4)], bytes(64))),
    ("a name twice", build([], [info("a", [4], F32, 0), info("a", [4], F32, 32)], bytes(64))),
    ("overlapping", build([], [info("a", [16], F32, 0), info("b", [4], F32, 32)], bytes(96))),
]


def test_mutants_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "model.gguf"
    sample(path)
    whole = path.read_bytes()
    random = Random(seed)
    refused = 0
    for _ in range(1500):
        raw = bytearray(whole)
        for _ in range(random.choice((1, 1, 2, 8))):
            mutate(raw, random)
        try:
            look(read(write(tmp_path, bytes(raw))))
        except SmeltError:
            refused += 1
    assert refused > 300


def mutate(raw: bytearray, random: Random) -> None:
    at = random.randrange(min(len(raw), 900) or 1)
    match random.randrange(5):
        case 0:
            del raw[at:]
        case 1:
            raw[at : at + 1] = bytes([random.randrange(256)])
        case 2:
            numbers: Any = random.choice((0, 1, 255, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1))
            raw[at : at + 8] = struct.pack("<Q", numbers)
        case 3:
            del raw[at : at + random.randrange(16)]
        case _:
            raw[at:at] = bytes(random.randrange(256) for _ in range(random.randrange(16)))
