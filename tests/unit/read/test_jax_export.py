"""Artifacts of jax.export and portable bytecode, by name and by content; damaged ones; models that hold nothing."""

from __future__ import annotations

import importlib.util
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.errors import FileError, MissingPackageError, ParseError, SmeltError
from smelt.ir.text.bytecode import MAGIC
from smelt.model import load, read
from smelt.read.jax_export import Exported, unpack

jax = pytest.importorskip("jax", reason="JAX writes what this test reads")
export = pytest.importorskip("jax.export")


def two_results(x: Any, y: Any) -> Any:
    return jax.numpy.sin(x) @ y, {"total": x.sum()}


@pytest.fixture(scope="module")
def artifact() -> Any:
    types = jax.ShapeDtypeStruct((2, 3), np.float32), jax.ShapeDtypeStruct((3, 4), np.float32)
    return export.export(jax.jit(two_results), platforms=["cpu"])(*types)


@pytest.mark.parametrize("name", ["m.jaxexport", "m.mlirbc", "m.bin", "m"])
def test_the_content_says_what_a_file_is(name: str, artifact: Any, tmp_path: Path):
    path = tmp_path / name
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
    for data in (artifact.serialize(), artifact.mlir_module_serialized):
        path.write_bytes(data)
        model = load(path, engine="reference")
        found = model.run(dict(zip([port.name for port in model.signature.inputs], (x, y), strict=True)))
        for ours, theirs in zip(found.values(), jax.tree.leaves(two_results(x, y)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_the_processors_part_of_several_platforms(tmp_path: Path):
    def choose(x: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=jax.numpy.sin, cuda=jax.numpy.cos)

    path = tmp_path / "m.jaxexport"
    made = export.export(jax.jit(choose), platforms=["cuda", "cpu"])(jax.ShapeDtypeStruct((2,), np.float32))
    path.write_bytes(made.serialize())
    model = load(path, engine="reference")
    (port,) = model.signature.inputs
    (found,) = model.run({port.name: np.array([1, 2], np.float32)}).values()
    np.testing.assert_allclose(found, np.sin([1.0, 2.0]), rtol=1e-6)


def test_damaged_artifacts_are_refused(artifact: Any, tmp_path: Path, seed: int):
    data, path, dice = bytes(artifact.serialize()), tmp_path / "m.jaxexport", random.Random(seed)
    assert unpack(data, "").platforms == ("cpu",)
    begin = data.index(b"ML\xefR")
    for cut in [0, 1, 3, 4, 7, begin, begin + 50, *(dice.randrange(begin) for _ in range(30))]:
        path.write_bytes(data[:cut])
        with pytest.raises(FileError, match="no artifact of jax"):
            read(path)
    for _ in range(12):
        damaged = bytearray(data)
        for _ in range(dice.choice((1, 2, 8))):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        path.write_bytes(damaged)
        try:
            read(path)
        except SmeltError as error:
            str(error)


@pytest.mark.parametrize("platforms", [False, True])
def test_what_ends_with_the_file_is_whole(platforms: bool):
    """A flatbuffer by hand: a vtable of 32 bytes, a table, the module, and an empty list of platforms as the last."""
    module = struct.pack("<I", len(MAGIC)) + MAGIC
    slots = bytearray(32)
    slots[30:32] = struct.pack("<H", 4)
    if platforms:
        slots[22:24] = struct.pack("<H", 8)
    slots[:4] = struct.pack("<HH", 32, 12)
    table = struct.pack("<iII", 32, 8, 4 + len(module))  # offsets count from the field that holds them
    data = struct.pack("<I", 36) + bytes(slots) + table + module + (struct.pack("<I", 0) if platforms else b"")
    assert unpack(data, "") == Exported(MAGIC, ())
    with pytest.raises(FileError, match="damaged"):
        unpack(data[:-1], "")
    if platforms:
        with pytest.raises(FileError, match=f"1 names at {len(data)} in a file of {len(data)} bytes"):
            unpack(data[:-4] + struct.pack("<I", 1), "")


def test_bytecode_without_jaxlib_says_what_to_install(artifact: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "m.jaxexport"
    path.write_bytes(artifact.serialize())
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jaxlib" else real(name))
    with pytest.raises(MissingPackageError, match=r'pip install "smelt\[xla\]"'):
        read(path)


@pytest.mark.parametrize("text", ["", "module {}", "  // nothing"])
def test_a_file_without_a_function_is_refused(text: str, tmp_path: Path):
    for name in ("m.mlir", "m.stablehlo", "m.mlirbc"):
        (tmp_path / name).write_text(text)
        with pytest.raises(ParseError, match="no function"):
            read(tmp_path / name)


def test_an_onnx_model_without_anything_is_refused(tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    model = onnx.ModelProto(ir_version=8)
    model.graph.name = "nothing"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ParseError, match="computes nothing"):
        read(tmp_path / "m.onnx")
