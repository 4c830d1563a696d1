"""What readers of weights say about each kind of damage, and the files at the edge that they take."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.errors import FileError, ParseError, SmeltError, UnsupportedError
from smelt.read import gguf, npz, safetensors
from tests.hostile.test_gguf import BAD, F32, build, info, pair, text, write

# ---- GGUF ----

MESSAGES: dict[str, tuple[type[SmeltError], str]] = {
    "empty": (ParseError, "the file ends within the magic"),
    "another magic": (ParseError, "not a GGUF file"),
    "version 1": (UnsupportedError, "unknown version of GGUF"),
    "big-endian": (UnsupportedError, "unknown version of GGUF"),
    "a header cut short": (ParseError, "the file ends within"),
    "more tensors than bytes": (ParseError, "more tensors than fit into the file"),
    "more pairs than bytes": (ParseError, "than fit into the file"),
    "one pair too many": (ParseError, "a key without a name"),
    "a long key": (ParseError, "a key is too long"),
    "a long string": (ParseError, "the value of 'a' is too long"),
    "a key that is no text": (ParseError, "a key is not UTF-8"),
    "a string that is no text": (ParseError, "the value of 'a' is not UTF-8"),
    "a key twice": (ParseError, "the key 'a' appears twice"),
    "an unknown type": (ParseError, "'a' has an unknown type"),
    "a boolean of 2": (ParseError, "'a' is no boolean"),
    "an array without end": (ParseError, "more elements of 'a' than fit into the file"),
    "strings without end": (ParseError, "more elements of 'a' than fit into the file"),
    "arrays of an unknown type": (ParseError, "'a' has an unknown type"),
    "arrays in arrays in arrays": (ParseError, "'a': arrays within arrays"),
    "an alignment of zero": (ParseError, "the alignment is no power of two"),
    "an alignment of three": (ParseError, "the alignment is no power of two"),
    "a huge alignment": (ParseError, "the alignment is no power of two"),
    "an alignment that is text": (ParseError, "the alignment is no power of two"),
    "one of several files": (UnsupportedError, "one of several files"),
    "too many axes": (ParseError, "tensor 'a' has too many axes"),
    "an unknown element type": (UnsupportedError, "tensor 'a' has an unknown type"),
    "sizes that overflow": (ParseError, "tensor 'a' is too large"),
    "sizes that overflow beside zero": (ParseError, "tensor 'a' is too large"),
    "half a block": (ParseError, "tensor 'a': its rows are no whole blocks"),
    "a block without axes": (ParseError, "tensor 'a': its rows are no whole blocks"),
    "past the end": (FileError, "tensor 'a' is outside of the file"),
    "an offset past the end": (FileError, "tensor 'a' is outside of the file"),
    "an offset that overflows": (FileError, "tensor 'a' is outside of the file"),
    "not aligned": (ParseError, "tensor 'a' is not aligned"),
    "a name twice": (ParseError, "two tensors have the same name"),
    "overlapping": (ParseError, "tensor 'b' overlaps another"),
}


@pytest.mark.parametrize(("name", "raw"), BAD, ids=[name for name, _ in BAD])
def test_damaged_gguf(name: str, raw: bytes, tmp_path: Path) -> None:
    error, message = MESSAGES[name]
    with pytest.raises(error) as caught:
        gguf.read(write(tmp_path, raw))
    assert type(caught.value) is error
    assert message in caught.value.message
    assert caught.value.remedy or error is UnsupportedError


def test_gguf_at_the_edge(tmp_path: Path) -> None:
    """Tensors that touch, one that ends with the file, an empty one, the largest rank and the least alignment."""
    data = np.arange(16, dtype=np.float32).tobytes()
    infos = [info("a", [8], F32, 0), info("b", [8], F32, 32), info("c", [0, 4], F32, 64)]
    weights = gguf.read(write(tmp_path, build([], infos, data))).dense
    assert np.asarray(weights["a"]).tolist() == list(range(8))
    assert np.asarray(weights["b"]).tolist() == list(range(8, 16))
    assert weights["c"].shape.sizes == (4, 0)
    packed = build([pair("general.alignment", 4, struct.pack("<I", 1))], [info("a", [1, 1, 1, 1], F32, 0)])
    weights = gguf.read(write(tmp_path, packed.rstrip(b"\0") + bytes(64))).dense
    assert weights["a"].shape.sizes == (1, 1, 1, 1)
    flags = pair("a", 9, struct.pack("<IQ", 7, 2) + b"\0\1")
    assert gguf.read(write(tmp_path, build([flags]))).metadata["a"].tolist() == [False, True]
    with pytest.raises(ParseError, match="a key without a name"):
        gguf.read(write(tmp_path, build([pair("", 4, bytes(4))])))
    assert gguf.read(write(tmp_path, build([pair("a", 8, text(""))]))).metadata == {"a": ""}


# ---- safetensors ----


def tensors(header: Any, data: bytes = bytes(8)) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(begin: int = 0, end: int = 8, shape: Any = (2,), kind: Any = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}


DAMAGED: list[tuple[bytes, type[SmeltError], str]] = [
    (bytes(7), ParseError, "too short for a safetensors file"),
    (struct.pack("<Q", 9) + b"{}", ParseError, "the header does not fit"),
    (tensors(b"[]", b""), ParseError, "the header must start with '{'"),
    (tensors(b"{,}", b""), ParseError, "the header is not JSON"),
    (tensors(b'{"a": 1, "a": 1}', b""), ParseError, "the header is not JSON"),
    (tensors({"__metadata__": {"a": 1}}, b""), ParseError, "the metadata is not text to text"),
    (tensors({"a": 1}), ParseError, "tensor 'a' is not described"),
    (tensors({"a": {**entry(), "more": 1}}), ParseError, "tensor 'a' is not described"),
    (tensors({"a": entry(kind="F33")}), UnsupportedError, "tensor 'a' has an unknown type"),
    (tensors({"a": entry(kind=3)}), UnsupportedError, "tensor 'a' has an unknown type"),
    (tensors({"a": entry(shape=[1] * 65)}), UnsupportedError, "tensor 'a' has too many axes"),
    (tensors({"a": entry(shape=[-2])}), ParseError, "tensor 'a' has a wrong shape or place"),
    (tensors({"a": entry(shape=[2.0])}), ParseError, "tensor 'a' has a wrong shape or place"),
    (tensors({"a": entry(shape=[True])}), ParseError, "tensor 'a' has a wrong shape or place"),
    (tensors({"a": entry(shape=[1 << 56])}), ParseError, "tensor 'a' has a wrong shape or place"),
    (tensors({"a": {**entry(), "data_offsets": [0]}}), ParseError, "tensor 'a' has a wrong shape or place"),
    (tensors({"a": entry(0, 4)}), ParseError, "tensor 'a'"),
    (tensors({"a": entry(), "b": entry(4, 12)}, bytes(12)), ParseError, "tensor 'b' overlaps the one before"),
    (tensors({"a": entry(), "b": entry(9, 17)}, bytes(17)), ParseError, "tensor 'b' leaves a gap before it"),
    (tensors({"a": entry()}, bytes(9)), ParseError, "the tensors do not fill the file"),
    (tensors({"a": entry()}, bytes(7)), ParseError, "the tensors do not fill the file"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "error", "message"), DAMAGED)
def test_damaged_safetensors(raw: bytes, error: type[SmeltError], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(error) as caught:
        safetensors.read(path)
    assert type(caught.value) is error
    assert message in caught.value.message
    assert caught.value.remedy or error is UnsupportedError


def test_safetensors_at_the_edge(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(tensors({}, b""))
    assert list(safetensors.read(path)) == []
    path.write_bytes(tensors({"a": entry(), "b": entry(8, 8, [0]), "c": entry(8, 12, [])}, bytes(12)))
    found = safetensors.read(path)
    assert [found[name].shape.sizes for name in "abc"] == [(2,), (0,), ()]


# ---- npz ----


def test_damaged_archives(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=np.zeros(100_000, np.float32), b=np.zeros((0, 3)))
    weights = npz.read(path)
    assert not np.asarray(weights["a"]).any()
    assert weights["b"].shape.sizes == (0, 3)
    raw = path.read_bytes()
    for kind, message in (("O", "holds no numbers of a known type"), ("U3", "holds no numbers of a known type")):
        np.savez(path, a=np.array(["a", "b"], kind))
        with pytest.raises(UnsupportedError, match=message) as caught:
            npz.read(path)
        assert caught.value.remedy == "convert it to numbers"
    path.write_bytes(raw[:-30])
    with pytest.raises(ParseError, match=r"not an \.npz archive"):
        npz.read(path)
    path.write_bytes(raw.replace(b"PK\x03\x04", b"PK\x03\x05", 1))
    with pytest.raises(ParseError, match=r"not an \.npz archive"):
        npz.read(path)["a"]


def saved(path: Path, compressed: bool = False, **arrays: Any) -> bytearray:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return bytearray(path.read_bytes())


def test_members_of_npz_that_are_not_as_the_archive_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npz"
    data = saved(path, a=np.arange(6, dtype=np.float32), b=np.ones(2))
    listed = data.index(b"PK\x01\x02")  # the directory, at the end

    def check(message: str, kind: type[SmeltError], at: int, value: bytes) -> None:
        path.write_bytes(data[:at] + value + data[at + len(value) :])
        with pytest.raises(kind, match=message) as caught:
            npz.read(path)
        assert caught.value.remedy

    check("'a' is encrypted", UnsupportedError, listed + 8, b"\1")
    check("'a' is compressed in a way that NumPy does not use", UnsupportedError, listed + 10, b"\x0c")
    check("'a' claims more bytes than it can hold", ParseError, listed + 24, b"\xff\xff")
    check(r"not an \.npz archive", ParseError, 0, b"PK\x07\x08")
    path.write_bytes(data)
    monkeypatch.setattr(npz, "MAX_MEMBERS", 2)
    assert [*npz.read(path)] == ["a", "b"]
    monkeypatch.setattr(npz, "MAX_MEMBERS", 1)
    with pytest.raises(ParseError, match="too many members") as caught:
        npz.read(path)
    assert (caught.value.expected, caught.value.got) == ("at most 1", 2)


def test_names_of_npz_are_different(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    member = io.BytesIO()
    np.save(member, np.ones(2))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", member.getvalue())
        archive.writestr("a.npy", member.getvalue())
    with pytest.raises(ParseError, match="a name appears twice") as caught:
        npz.read(path)
    assert caught.value.got == "a"


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<i2", ">c8", "|b1"])
@pytest.mark.parametrize("compressed", [False, True])
def test_orders_of_npz(order: Any, kind: str, compressed: bool, tmp_path: Path) -> None:
    array = np.array(np.arange(12).reshape(3, 4) % 5, kind, order=order)
    saved(tmp_path / "x.npz", compressed, a=array, empty=array[:0], scalar=array[1, 2])
    weights = npz.read(tmp_path / "x.npz")
    for name, want in (("a", array), ("empty", array[:0]), ("scalar", array[1, 2])):
        found = weights[name].numpy()
        assert (found.dtype, found.shape) == (want.dtype.newbyteorder("="), want.shape)
        np.testing.assert_array_equal(found, want)


def test_a_compressed_member_that_changes_after_its_header_was_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    data = saved(path, True, a=np.arange(4000, dtype=np.float32))
    weights = npz.read(path)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FileError, match=r"cannot read a\.npy of"):
        weights["a"].numpy()
    saved(path, True, a=np.arange(3999, dtype=np.float32))
    with pytest.raises(ParseError, match=r"a\.npy has the wrong number of bytes") as caught:
        weights["a"].numpy()
    assert (caught.value.expected, caught.value.got) == (16000, 15996)
    saved(path, True, a=np.arange(4001, dtype=np.float32))
    with pytest.raises(ParseError, match=r"a\.npy has the wrong number of bytes"):
        weights["a"].numpy()
