"""Files with changed bytes, for every reader: what comes out is a result or an error of ours, nothing else.

Changes go to the bytes of a file and, where a checksum would stop them there, to what the checksum covers.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.bundle import sign
from smelt.engine import pjrt_file
from smelt.engine.tuned import Database
from smelt.errors import SmeltError
from smelt.read import checkpoint, npz, onnx, safetensors, stablehlo
from smelt.weights import Weights

TURNS = 150
DIGITS = Path(smelt.__file__).parent / "assets" / "digits.onnx"
TOKENS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"'",
    b'"',
    b"\n",
    b"\0",
    b"\xff\xfe",
    b"(",
    b"-1",
    b"1e999",
    b"9" * 40,
    b"null",
    b"\\u",
]
PROGRAM = b"""module {
  func.func @main(%x: tensor<2x3xf32>, %w: tensor<3x4xf32>) -> tensor<2x4xf32> {
    %c = stablehlo.constant dense<[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]> : tensor<2x4xf32>
    %y = stablehlo.dot %x, %w : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    %z = stablehlo.add %y, %c : tensor<2x4xf32>
    return %z : tensor<2x4xf32>
  }
}
"""


def change(data: bytes, choose: Random) -> bytes:
    """Some bytes changed, lost, doubled or put in."""
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 2, 4))):
        at = choose.randrange(len(changed) + 1)
        match choose.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([choose.randrange(256)])
            case 1:
                del changed[at : at + choose.choice((1, 4, 40))]
            case 2:
                changed[at:at] = choose.choice(TOKENS)
            case 3:
                changed[at:at] = changed[at : at + choose.choice((1, 8, 64))]
            case 4:
                changed[at : at + 8] = struct.pack("<Q", choose.choice((0, 1, 65, 1 << 31, 1 << 62, (1 << 64) - 1)))
            case _:
                digits = [i for i, byte in enumerate(changed) if 48 <= byte < 58]
                if digits:
                    at = choose.choice(digits)
                    changed[at : at + 1] = str(choose.choice((0, 7, -1, 64, 1 << 63))).encode()
    return bytes(changed)


def tensors() -> dict[str, np.ndarray]:
    return {"x": np.arange(20.0), "y": np.ones((2, 3), np.int8), "none": np.zeros((0, 3), np.float32)}


def look(weights: Weights) -> None:
    for name in weights:
        weights[name].numpy()


def in_archive(method: int) -> Callable[[Path, bytes], None]:
    """A changed `.npy` in an archive whose checksums fit."""

    def read(path: Path, data: bytes) -> None:
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("x.npy", data)
        look(npz.read(path))

    return read


def archive() -> bytes:
    whole = io.BytesIO()
    np.savez_compressed(whole, **tensors())  # type: ignore[arg-type]
    return whole.getvalue()


def member(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    return stream.getvalue()


def in_file(read: Callable[[Path], Any]) -> Callable[[Path, bytes], None]:
    def attempt(path: Path, data: bytes) -> None:
        path.write_bytes(data)
        read(path)

    return attempt


def header(path: Path, data: bytes) -> None:
    """A changed safetensors header whose length fits."""
    path.write_bytes(struct.pack("<Q", len(data)) + data + bytes(18))
    look(safetensors.read(path))


def shards(path: Path, data: bytes) -> None:
    beside = path.with_name("x.safetensors")
    if not beside.exists():
        safetensors.write(beside, {"x": np.ones(2)})
    index = path.with_name("m.safetensors.index.json")
    index.write_bytes(data)
    look(checkpoint.open(index))


def serialised(path: Path, data: bytes) -> None:
    """A changed file of the pjrt engine whose checksum fits."""
    pjrt_file.read(pjrt_file.MAGIC + hashlib.sha256(data).digest() + data, "cpu", "1")


def pjrt_rest() -> bytes:
    text = PROGRAM.decode()
    ports = [{"name": "x", "dtype": "f32", "sizes": ["2", "3"], "names": None, "labels": [], "keys": []}]
    record = {
        "platform": "cpu", "version": "1", "processor": pjrt_file._processor("cpu"),
        "signature": {"inputs": ports, "outputs": ports, "weights": []}, "main": text, "prepare": None, "donated": [],
        "donated_arguments": [], "buckets": {"n": [1, 2]}, "limit": 8, "main_programs": [[[[2, 3]], 4]],
        "prepare_programs": [],
    }  # fmt: skip
    written = json.dumps(record).encode()
    return struct.pack("<Q", len(written)) + written + b"blob"


PLAIN = {
    "x": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]},
    "y": {"dtype": "I8", "shape": [1, 2], "data_offsets": [16, 18]},
}
READERS: dict[str, tuple[bytes, Callable[[Path, bytes], None]]] = {
    "safetensors header": (json.dumps(PLAIN).encode(), header),
    "npz": (archive(), in_file(lambda path: look(npz.read(path)))),
    "npz member": (member(np.arange(20.0)), in_archive(zipfile.ZIP_STORED)),
    "npz member 2.0": (member(np.ones((2, 3), np.int8), (2, 0)), in_archive(zipfile.ZIP_DEFLATED)),
    "npz member 3.0": (member(np.ones((2, 3), np.int8), (3, 0)), in_archive(zipfile.ZIP_DEFLATED)),
    "index": (b'{"metadata": {"a": 1}, "weight_map": {"x": "x.safetensors"}}', shards),
    "config": (b'{"hidden_size": 4, "model_type": "tiny", "list": [1, 2.5, null]}', in_file(checkpoint._json)),
    "stablehlo": (PROGRAM, in_file(stablehlo.read)),
    "bytecode": (b"ML\xefR" + bytes(range(64)), in_file(stablehlo.read)),
    "onnx": (DIGITS.read_bytes()[:1500], in_file(onnx.read)),
    "pjrt": (pjrt_rest(), serialised),
    "private key": (b"0123456789abcdef" * 4, in_file(sign.signer)),
    "public key": (b"0123456789abcdef" * 4, in_file(lambda path: sign.trusted_keys([str(path)]))),
    "tuned": (b'{"version": 2, "target": "a", "key": "b", "schedule": {}, "tried": [], "ratio": 1}\n' * 2,
              in_file(lambda path: Database(path.with_suffix(".db")).merge(path))),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_only_our_errors_come_out(reader: str, tmp_path: Path, seed: int) -> None:
    if reader.endswith("key"):
        pytest.importorskip("cryptography")
    data, attempt = READERS[reader]
    refused = 0
    turns = {"bytecode": 8, "onnx": TURNS // 2}  # bytecode is read in a process of its own
    for number in range(turns.get(reader, TURNS)):
        changed = change(data, Random(f"{seed}-{reader}-{number}"))
        try:
            attempt(tmp_path / "file", changed)
        except SmeltError:
            refused += 1
        except BaseException as error:
            error.add_note(f"change {number} with seed {seed}: {changed[:200]!r}")
            raise
    if reader not in ("tuned", "npz", "config"):
        assert refused, "no change was noticed: the test proves nothing"
