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
BAD: list[tuple[str, Any, bytes, str]] = [
    ("empty header", b"", b"", "must start with"),
    ("a list", [1, 2], b"", "must start with"),
    ("not JSON", b"{nonsense", b"", "header is not JSON"),
    ("deep JSON", b'{"a":' * 100_000, b"", "header is not JSON"),
    ("leading space", b'  {"a":1}', b"", "must start with"),
    ("a name twice", b'{"a":' + NONE + b',"a":' + NONE + b"}", b"", "header is not JSON"),
    ("metadata of numbers", {"__metadata__": {"a": 1}}, b"", "metadata is not text"),
    ("missing keys", {"a": {"dtype": "F32"}}, FOUR, "is not described"),
    ("extra keys", {"a": tensor(0, 16, [4]) | {"more": 1}}, FOUR, "is not described"),
    ("too few bytes", {"a": tensor(0, 12, [4])}, FOUR, "wrong number of bytes"),
    ("past the end", {"a": tensor(0, 32, [8])}, FOUR, "do not fill the file"),
    ("backwards", {"a": tensor(16, 0, [4])}, FOUR, "wrong number of bytes"),
    ("negative size", {"a": tensor(0, 16, [-4])}, FOUR, "wrong shape or place"),
    ("a size that is no number", {"a": tensor(0, 16, ["4"])}, FOUR, "wrong shape or place"),
    ("a boolean size", {"a": tensor(0, 4, [True])}, FOUR[:4], "wrong shape or place"),
    ("fractions", {"a": tensor(0, 16, [4.0])}, FOUR, "wrong shape or place"),
    ("overflowing sizes", {"a": tensor(0, 0, [1 << 62, 1 << 62, 0])}, b"", "wrong shape or place"),
    ("huge sizes", {"a": tensor(0, 16, [1 << 62, 4])}, FOUR, "wrong shape or place"),
    ("overlap", {"a": tensor(0, 16, [4]), "b": tensor(8, 24, [4])}, bytes(24), "'b' overlaps"),
    ("a gap", {"a": tensor(0, 8, [2]), "b": tensor(12, 16, [1])}, FOUR, "'b' leaves a gap"),
    ("bytes left over", {"a": tensor(0, 8, [2])}, FOUR, "do not fill the file"),
]


@pytest.mark.parametrize("case", range(len(BAD)), ids=[name for name, *_ in BAD])
def test_hostile_headers_are_refused(case: int, tmp_path: Path) -> None:
    _, header, data, why = BAD[case]
    path = file(tmp_path, header, data)
    with pytest.raises(ParseError, match=why) as caught:
        read(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize("element", ["F31", "", ["F32"], None, 4])
def test_an_unknown_type_is_named(element: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'a' has an unknown type") as caught:
        read(file(tmp_path, {"a": tensor(0, 16, [4], element)}, FOUR))
    assert caught.value.got == element
    assert "BF16" in str(caught.value.expected)


@pytest.mark.parametrize("rank", [64, 65, 1000])
def test_more_axes_than_numpy_has(rank: int, tmp_path: Path) -> None:
    path = file(tmp_path, {"a": tensor(0, 4, [1] * rank)}, FOUR[:4])
    if rank == 64:
        assert read(path)["a"].numpy().ndim == 64
        return
    with pytest.raises(UnsupportedError, match="'a' has too many axes") as caught:
        read(path)
    assert caught.value.got == rank


def test_a_type_that_safetensors_lacks_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no type for 'x'") as caught:
        write(tmp_path / "x.safetensors", {"x": np.ones(2, np.complex128)})
    assert caught.value.got == "complex<f64>"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [3, MAX_HEADER + 1, 1 << 62, (1 << 64) - 1])
def test_lengths_that_lie_are_refused(length: int, tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="header does not fit" if length > 3 else "header is not JSON"):
        read(file(tmp_path, {"a": tensor(0, 16, [4])}, FOUR, length))


@pytest.mark.parametrize("length", range(8))
def test_files_without_a_length_are_refused(length: int, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(bytes(length))
    with pytest.raises(ParseError, match="too short"):
        read(tmp_path / "x.safetensors")


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
