"""`smelt.open`: every form of a checkpoint, against what the official packages wrote; hostile files are refused."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import textwrap
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import smelt
from smelt.buffer import HostBuffer
from smelt.engine import platform
from smelt.errors import FileError, ParseError, RunError, SmeltError, UnsupportedError
from smelt.read import safetensors
from smelt.shape import Shape
from smelt.weights import Stored, Weights


def arrays(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "a.weight": random.standard_normal((3, 4)).astype(np.float32),
        "a.bias": random.integers(-9, 9, 5),
        "b.weight": random.standard_normal((2, 2)).astype(np.float16),
        "scalar": np.array(2.5),
        "none": np.zeros((0, 3), np.float32),
    }


def shards(folder: Path, seed: int) -> dict[str, Any]:
    """A folder as the hub lays it out, written by the official package."""
    official = pytest.importorskip("safetensors.numpy")
    found = arrays(seed)
    files = {"model-1.safetensors": ["a.weight", "scalar"], "model-2.safetensors": ["a.bias", "b.weight", "none"]}
    for file, names in files.items():
        official.save_file({name: found[name] for name in names}, folder / file, metadata={"format": "np"})
    places = {name: file for file, names in files.items() for name in names}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"hidden_size": 4, "model_type": "tiny"}))
    return found


def check(weights: Weights, expected: dict[str, Any]) -> None:
    assert set(weights) == set(expected)
    for name, array in expected.items():
        found = weights[name].numpy()
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype
        assert weights.shape(name).sizes == array.shape
    assert weights.nbytes == sum(array.nbytes for array in expected.values())


# ---- forms ----


def test_a_folder_of_shards(tmp_path: Path, seed: int) -> None:
    expected = shards(tmp_path, seed)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        weights = smelt.open(path)
        check(weights, expected)
        assert weights.config["hidden_size"] == 4
        assert weights.metadata["format"] == "np"
        assert not weights["a.weight"].owns, "it is mapped"
        assert not weights["a.weight"].numpy().flags.writeable


def test_shards_without_an_index(tmp_path: Path, seed: int) -> None:
    expected = shards(tmp_path, seed)
    (tmp_path / "model.safetensors.index.json").unlink()
    check(smelt.open(tmp_path), expected)
    safetensors.write(tmp_path / "more.safetensors", {"scalar": np.array(1.0)})
    with pytest.raises(ParseError, match="'scalar' is in two files"):
        smelt.open(tmp_path)


def test_one_file_with_narrow_types(tmp_path: Path) -> None:
    expected = {
        "bf16": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
        "f8": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
        "f8b": np.arange(4).astype(ml_dtypes.float8_e5m2),
    }
    safetensors.write(tmp_path / "model.safetensors", expected, {"by": "smelt"})
    for path in (tmp_path, tmp_path / "model.safetensors"):
        weights = smelt.open(path)
        check(weights, expected)
        assert weights.metadata["by"] == "smelt"
        assert not weights.config


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, seed: int, save: Any) -> None:
    expected = arrays(seed) | {"columns": np.asfortranarray(np.arange(6).reshape(2, 3))}
    save(tmp_path / "model.npz", **expected, swapped=np.arange(3, dtype=">f4"))
    weights = smelt.open(tmp_path / "model.npz")
    np.testing.assert_array_equal(weights["swapped"].numpy(), [0, 1, 2])
    assert weights["swapped"].numpy().dtype == np.float32
    check(smelt.open(tmp_path), expected | {"swapped": np.arange(3, dtype=np.float32)})
    if save is np.savez:
        assert not weights["a.weight"].owns, "it is mapped"


def test_a_wrong_name_is_answered_with_similar_ones(tmp_path: Path, seed: int) -> None:
    shards(tmp_path, seed)
    weights = smelt.open(tmp_path)
    with pytest.raises(FileError, match=r"did you mean a\.weight"):
        _ = weights["a.wieght"]
    with pytest.raises(FileError, match=r"did you mean a\.weight"):
        weights.to_device(platform(), ["a.wieght"])


def test_opening_reads_no_tensor(tmp_path: Path) -> None:
    big = tmp_path / "big.safetensors"
    header = json.dumps({"x": {"dtype": "F32", "shape": [1 << 34], "data_offsets": [0, 4 << 34]}}).encode()
    with big.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + (4 << 34))  # 64 GiB of nothing
    tracemalloc.start()
    weights = smelt.open(big)
    assert weights["x"].numpy()[-1] == 0
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


# ---- to a device ----


@pytest.mark.parametrize("engine", ["native", "pjrt", "reference"])
def test_all_tensors_are_copied_to_a_device_with_progress(tmp_path: Path, seed: int, engine: str) -> None:
    expected = shards(tmp_path, seed)
    told: list[tuple[int, int]] = []
    weights = smelt.open(tmp_path)
    placed = weights.to_device(platform(engine=engine), progress=lambda done, total: told.append((done, total)))
    assert list(placed) == list(weights)
    for name, array in expected.items():
        np.testing.assert_array_equal(placed[name].numpy(), array)
    assert told[-1] == (weights.nbytes, weights.nbytes)
    assert sorted(told) == told
    some = weights.to_device(platform(engine=engine), ["scalar"])
    assert list(some) == ["scalar"]


def test_parts_are_read_past_the_mapping(tmp_path: Path, seed: int) -> None:
    expected = shards(tmp_path, seed)
    np.savez(tmp_path / "plain.npz", **expected)
    np.savez_compressed(tmp_path / "packed.npz", **expected)
    for path in (tmp_path / "model.safetensors.index.json", tmp_path / "plain.npz", tmp_path / "packed.npz"):
        stored = smelt.open(path).find("a.weight")
        target = np.zeros(20, np.uint8)
        stored.read_into(target, 8)
        assert target.tobytes() == expected["a.weight"].tobytes()[8:28]


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.write(path, {"x": np.ones(1000)})
    stored = smelt.open(path).find("x")
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(FileError, match="ends early"):
        stored.read_into(np.zeros(8000, np.uint8), 0)


def test_a_tensor_outlives_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.write(path, {"x": np.arange(1000.0)})
    buffer = smelt.open(path)["x"]
    path.unlink()
    np.testing.assert_array_equal(buffer.numpy(), np.arange(1000.0))


def test_a_tensor_that_is_larger_than_memory_is_an_error_of_ours() -> None:
    stored = Stored(Shape("ui8", 1 << 60), lambda: np.empty(1 << 60, np.uint8))
    with pytest.raises(FileError, match="no memory left for the tensor 'x'"):
        _ = Weights({"x": stored})["x"]


# ---- host buffers ----


def test_host_buffers_say_whose_bytes_they_hold() -> None:
    array = np.arange(3.0)
    assert not HostBuffer.of(array).owns
    assert HostBuffer.of(array, copy=True).owns
    assert HostBuffer.of([1, 2]).owns
    assert HostBuffer.of(array, "f32").owns
    assert not HostBuffer.of(array[1:]).owns
    np.testing.assert_array_equal(np.from_dlpack(HostBuffer.of(array)), array)
    torch = pytest.importorskip("torch")
    tensor = torch.arange(3)
    assert HostBuffer.of(tensor).numpy().tolist() == [0, 1, 2]


def test_a_deleted_host_buffer_cannot_be_used() -> None:
    with HostBuffer.of([1, 2, 3]) as buffer:
        assert buffer.to_device(platform(engine="reference")).numpy().tolist() == [1, 2, 3]
    buffer.delete()
    with pytest.raises(RunError, match="deleted"):
        buffer.numpy()


# ---- what is refused ----


def test_paths_that_hold_no_weights(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file or folder"):
        smelt.open(tmp_path / "none")
    with pytest.raises(FileError, match="without one set of weights"):
        smelt.open(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedError, match="unknown form"):
        smelt.open(tmp_path / "model.bin")


INDICES: dict[str, Any] = {
    "not JSON": (b"{", ParseError, "not JSON"),
    "a list": (b"[]", ParseError, "not an object"),
    "deep": (b"[" * 200_000, ParseError, "not JSON"),
    "no map": (b"{}", ParseError, "no weight_map"),
    "numbers": (b'{"weight_map": {"a": 1}}', ParseError, "no weight_map"),
    "above": (b'{"weight_map": {"a": "../x.safetensors"}}', ParseError, "is in another folder"),
    "absolute": (b'{"weight_map": {"a": "/etc/passwd"}}', ParseError, "is in another folder"),
    "the folder itself": (b'{"weight_map": {"a": ".."}}', ParseError, "is in another folder"),
    "no such shard": (b'{"weight_map": {"a": "none.safetensors"}}', FileError, "cannot read"),
    "no such tensor": (b'{"weight_map": {"a": "x.safetensors"}}', ParseError, "lacks tensors"),
}


@pytest.mark.parametrize("name", INDICES)
def test_hostile_indices(tmp_path: Path, name: str) -> None:
    safetensors.write(tmp_path / "x.safetensors", {"x": np.ones(2)})
    path = tmp_path / "model.safetensors.index.json"
    content, kind, why = INDICES[name]
    path.write_bytes(content)
    with pytest.raises(kind, match=why):
        smelt.open(path)


def member(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def npy(shape: str, descr: str = "'<f4'", data: bytes = bytes(16)) -> bytes:
    return member(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}", data)


MEMBERS: dict[str, Any] = {
    "huge": (npy("(1000000000000,)"), ParseError, "wrong number of bytes"),
    "overflow": (npy("(4294967296, 4294967296, 4294967296)"), ParseError, "wrong number of bytes"),
    "negative": (npy("(-4,)"), ParseError, "wrong shape"),
    "floats": (npy("(4.0,)"), ParseError, "is no .npy"),
    "objects": (npy("(4,)", "'|O'"), UnsupportedError, "no numbers"),
    "records": (npy("(4,)", "[('a', '<f4')]"), UnsupportedError, "no numbers"),
    "text": (npy("(4,)", "'<U1'"), UnsupportedError, "no numbers"),
    "too short": (npy("(4,)", data=bytes(12)), ParseError, "wrong number of bytes"),
    "too long": (npy("(4,)", data=bytes(20)), ParseError, "wrong number of bytes"),
    "code": (member("__import__('os').abort()"), ParseError, "is no .npy"),
    "no header": (b"\x93NUMPY\x01\x00\xff\xff", ParseError, "is no .npy"),
    "other version": (member("{}", version=b"\x09\x00"), ParseError, "is no .npy"),
    "nothing": (b"", ParseError, "is no .npy"),
    "half a string": (member("{'descr': '<f4"), ParseError, "is no .npy"),
    "half a bracket": (member("{'descr': ("), ParseError, "is no .npy"),
    "not UTF-8": (b"\x93NUMPY\x03\x00\x04\x00\x00\x00\xff\xfe{}", ParseError, "is no .npy"),
    "65 axes": (npy(f"({'1, ' * 65})", data=bytes(4)), ParseError, "is no .npy|wrong shape"),
}


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_hostile_members(tmp_path: Path, name: str, method: int) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", MEMBERS[name][0])
    _, kind, why = MEMBERS[name]
    with pytest.raises(kind, match=why) as caught:
        smelt.open(path)
    assert "'x'" in caught.value.message


def test_hostile_archives(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    whole = io.BytesIO()
    np.savez(whole, x=np.ones(100))
    good = whole.getvalue()
    for bad in (b"", b"PK\x05\x06", good[:-30], good[: len(good) // 2], b"PK" + bytes(100)):
        path.write_bytes(bad)
        with pytest.raises(ParseError, match=r"not an \.npz archive"):
            smelt.open(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy("(4,)"))
        archive.writestr("x", npy("(4,)"))
    with pytest.raises(ParseError, match="twice"):
        smelt.open(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_archives_with_changed_bytes_are_read_or_refused(tmp_path: Path, seed: int, compressed: bool) -> None:
    """Whatever a byte is changed to, nothing but our own errors comes out."""
    whole = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(whole, x=np.arange(20.0), y=np.ones((2, 3), np.int8))
    good = whole.getvalue()
    random = np.random.default_rng(seed)
    path = tmp_path / "x.npz"
    refused = 0
    for _ in range(300):
        bad = bytearray(good)
        for at in random.integers(0, len(bad), random.integers(1, 4)):
            bad[at] = random.integers(0, 256)
        path.write_bytes(bad)
        try:
            weights = smelt.open(path)
            for name in weights:
                weights[name].numpy().sum()
        except SmeltError:
            refused += 1
    assert refused > 30


def test_reading_models_stays_a_function_beside_the_package_of_that_name() -> None:
    code = """
        import smelt
        from pathlib import Path
        path = Path(smelt.__file__).parent / "assets" / "digits.onnx"
        if FIRST:
            import smelt.read.safetensors
        program, weights = smelt.read(path)
        assert "w1" in weights
        from smelt.read import npz, safetensors
        assert smelt.read(path)[0].main.args
        assert smelt.read.npz is npz
    """
    for first in (True, False):
        text = textwrap.dedent(code).replace("FIRST", str(first))
        subprocess.run([sys.executable, "-c", text], check=True, timeout=120)
