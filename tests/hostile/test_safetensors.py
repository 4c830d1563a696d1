"""safetensors files, good and hostile; the official package is the oracle for the good ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.errors import ParseError, SmeltError, UnsupportedError
from smelt.read.safetensors import MAX_HEADER, read, write


def file(tmp_path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def tensor(begin: int, end: int, sizes: list[Any], element: Any = "F32") -> dict[str, Any]:
    return {"dtype": element, "shape": sizes, "data_offsets": [begin, end]}


def test_what_the_official_package_writes_is_read(tmp_path: Path) -> None:
    official = pytest.importorskip("safetensors.numpy")
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        "a": random.standard_normal((3, 4)).astype(np.float32),
        "b.weight": random.integers(0, 9, 5),
        "empty": np.zeros((0, 3), np.float16),
        "scalar": np.array(2.5),
        "flag": np.array([True, False]),
    }
    path = tmp_path / "model.safetensors"
    official.save_file(arrays, path, metadata={"format": "np"})
    weights = read(path)
    assert dict(weights.metadata) == {"format": "np"}
    assert set(weights) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name].numpy(), array)
        assert weights[name].numpy().dtype == array.dtype
        assert not weights[name].owns or array.size == 0


def test_the_official_package_reads_what_is_written(tmp_path: Path) -> None:
    official = pytest.importorskip("safetensors.numpy")
    arrays: dict[str, np.ndarray] = {
        "x": np.arange(6, dtype=np.int8).reshape(2, 3),
        "y": np.ones((2, 2)),
        "z": np.zeros((0,), np.float32),
    }
    path = tmp_path / "model.safetensors"
    write(path, arrays, {"by": "smelt"})
    for name, array in official.load_file(path).items():
        np.testing.assert_array_equal(array, arrays[name])
    narrow = {"b": np.arange(4).astype(ml_dtypes.bfloat16), "f": np.arange(4).astype(ml_dtypes.float8_e4m3fn)}
    write(path, narrow)
    for name, array in narrow.items():
        np.testing.assert_array_equal(read(path)[name].numpy(), array)
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"], "no temporary file is left"


FOUR = bytes(16)
NONE = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
BAD: list[tuple[str, Any, bytes]] = [
    ("empty header", b"", b""),
    ("a list", [1, 2], b""),
    ("not JSON", b"{nonsense", b""),
    ("deep JSON", b'{"a":' * 100_000, b""),
    ("leading space", b'  {"a":1}', b""),
    ("a name twice", b'{"a":' + NONE + b',"a":' + NONE + b"}", b""),
    ("metadata of numbers", {"__metadata__": {"a": 1}}, b""),
    ("missing keys", {"a": {"dtype": "F32"}}, FOUR),
    ("extra keys", {"a": tensor(0, 16, [4]) | {"more": 1}}, FOUR),
    ("unknown type", {"a": tensor(0, 16, [4], "F31")}, FOUR),
    ("a type that is no text", {"a": tensor(0, 16, [4], ["F32"])}, FOUR),
    ("too few bytes", {"a": tensor(0, 12, [4])}, FOUR),
    ("past the end", {"a": tensor(0, 32, [8])}, FOUR),
    ("backwards", {"a": tensor(16, 0, [4])}, FOUR),
    ("negative size", {"a": tensor(0, 16, [-4])}, FOUR),
    ("a size that is no number", {"a": tensor(0, 16, ["4"])}, FOUR),
    ("a boolean size", {"a": tensor(0, 4, [True])}, FOUR[:4]),
    ("fractions", {"a": tensor(0, 16, [4.0])}, FOUR),
    ("overflowing sizes", {"a": tensor(0, 0, [1 << 62, 1 << 62, 0])}, b""),
    ("huge sizes", {"a": tensor(0, 16, [1 << 62, 4])}, FOUR),
    ("overlap", {"a": tensor(0, 16, [4]), "b": tensor(8, 24, [4])}, bytes(24)),
    ("a gap", {"a": tensor(0, 8, [2]), "b": tensor(12, 16, [1])}, FOUR),
    ("bytes left over", {"a": tensor(0, 8, [2])}, FOUR),
]


@pytest.mark.parametrize("case", range(len(BAD)), ids=[name for name, *_ in BAD])
def test_hostile_headers_are_refused(case: int, tmp_path: Path) -> None:
    _, header, data = BAD[case]
    path = file(tmp_path, header, data)
    with pytest.raises((ParseError, UnsupportedError)):
        read(path)


@pytest.mark.parametrize("length", [3, MAX_HEADER + 1, 1 << 62, (1 << 64) - 1])
def test_lengths_that_lie_are_refused(length: int, tmp_path: Path) -> None:
    with pytest.raises(ParseError):
        read(file(tmp_path, {"a": tensor(0, 16, [4])}, FOUR, length))


def test_random_damage_never_raises_anything_else(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    good = file(tmp_path, {"a": tensor(0, 16, [4]), "b": tensor(16, 18, [2], "U8")}, bytes(18)).read_bytes()
    path = tmp_path / "damaged.safetensors"
    for _ in range(500):
        damaged = bytearray(good)
        for _ in range(int(random.integers(1, 4))):
            damaged[int(random.integers(0, len(damaged)))] = int(random.integers(0, 256))
        end = int(random.integers(0, len(damaged) + 1)) if random.random() < 0.3 else len(damaged)
        path.write_bytes(bytes(damaged[:end]))
        try:
            for name in (weights := read(path)):
                weights[name].numpy()
        except SmeltError:
            pass
