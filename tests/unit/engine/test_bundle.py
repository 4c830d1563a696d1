"""Bundles: what is saved comes back, without a compiler and without what compiles. Oracles: onnxruntime and NumPy."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import smelt
from smelt.bundle import container, record, sign
from smelt.bundle.write import serialize, source_record, write
from smelt.device import cpu, processor, runtime
from smelt.device.entry import DataCheck, Entry, SizeCheck
from smelt.dim import symbol
from smelt.dtype import Quantized, dtype
from smelt.engine.compile import emit_source, lower, make_entries, plan_lowered
from smelt.engine.native import NativeEngine
from smelt.engine.pjrt import PjrtEngine
from smelt.engine.reference import ReferenceEngine
from smelt.engine.signature import signature_of
from smelt.engine.store import default_targets, recompile, store_weights
from smelt.engine_api import KernelUse, Port, Signature
from smelt.errors import (
    FileError,
    Location,
    MemoryLimitError,
    MissingPackageError,
    RunError,
    SizeError,
    SmeltError,
    UnsupportedError,
)
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.text import parse, print_program
from smelt.model import read
from smelt.passes.quantise import with_precision
from smelt.run import executable as executables
from smelt.run.executable import NativeExecutable
from smelt.run.load import deserialize, every_code
from smelt.run.loaded import LoadedModel
from smelt.shape import Shape
from smelt.weights import Weights
from tests import onnx_oracle
from tests.conformance.native_cases import recast
from tests.hostile.test_special_files import open_files

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))
ROOT = Path(smelt.__path__[0]).parent
ADD = """func.func @main(%x: tensor<?xf32, #smelt.sizes<A>>, %y: tensor<?xf32, #smelt.sizes<B>>)
    -> tensor<?xf32, #smelt.sizes<A>> {
  %0 = stablehlo.add %x, %y : (tensor<?xf32, #smelt.sizes<A>>, tensor<?xf32, #smelt.sizes<B>>)
    -> tensor<?xf32, #smelt.sizes<A>>
  return %0 : tensor<?xf32, #smelt.sizes<A>>
}
"""


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    with np.load(str(files("smelt") / "assets" / "digits_test.npz")) as stored:
        return stored["images"].astype(np.float32) / 16


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return smelt.load(DIGITS, engine="native")


@pytest.fixture(scope="module")
def saved(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "digits.smelt"
    model.save(path)
    return path


@pytest.fixture(scope="module")
def expected(pixels: np.ndarray) -> np.ndarray:
    session = onnx_oracle.session(DIGITS)
    return session.run(None, {"pixels": pixels[:37]})[0]


def python(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A new process without a compiler's traces, unless the environment says otherwise."""
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=given)


RUN = """
import sys, numpy as np, smelt
model = smelt.load(sys.argv[1])
np.save(sys.argv[3], model(pixels=np.load(sys.argv[2]))["probabilities"])
"""


@pytest.mark.parametrize("batch", [0, 1, 2, 37])
def test_a_bundle_gives_what_onnxruntime_gives(
    saved: Path, pixels: np.ndarray, expected: np.ndarray, batch: int
) -> None:
    bundle = smelt.load(saved)
    assert "pixels: f32[batch, 64]" in repr(bundle)
    np.testing.assert_allclose(bundle(pixels[:batch])["probabilities"], expected[:batch], rtol=2e-5, atol=1e-7)


def test_the_name_and_the_metadata_come_back(saved: Path, model: LoadedModel) -> None:
    bundle = smelt.load(saved)
    assert (bundle.name, bundle.engine, dict(bundle.metadata)) == ("digits", "native", dict(model.metadata))
    assert bundle.signature == model.signature
    assert bundle.kernels == model.kernels
    assert bundle.provenance["source"] == "digits.onnx"
    assert bundle.provenance["source_blake2b"] == container.digest(DIGITS.read_bytes())


def test_serialized_bytes_are_the_file_and_stay_the_same(
    saved: Path, model: LoadedModel, pixels: np.ndarray, expected: np.ndarray
) -> None:
    data = saved.read_bytes()
    assert model.serialize() == data
    assert smelt.load(saved).serialize() == data
    (found,) = smelt.deserialize(data)(pixels[:37])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7)


# What a process that runs a bundle imports beyond numpy. Each module here is time that every start takes: what proves,
# compiles, reads files of other kinds, logs or makes threads comes when it is needed.
OURS = {
    *(
        "abi",
        "buffer",
        "dtype",
        "engine_api",
        "errors",
        "files",
        "frozen",
        "shape",
        "size",
        "stop",
        "target",
        "version",
    ),
    *("device", "device.api", "device.cpu_device", "device.entry", "device.host"),
    *("device.library", "device.processor", "device.registry", "device.runtime"),
    *("bundle", "bundle.container", "bundle.record", "bundle.sign", "bundle.stored"),
    *("run", "run.executable", "run.load", "run.loaded"),
}
OTHERS = {
    *("__future__", "_blake2", "_json", "_weakrefset", "atexit", "ctypes", "json", "mmap", "platform", "struct"),
    "threading",
}


def test_loading_imports_what_it_needs_and_nothing_else(saved: Path) -> None:
    script = """
import sys
import numpy as np
x = np.ones((3, 64), np.float32)
before = set(sys.modules)
import smelt
smelt.load(sys.argv[1])(x)["probabilities"]
print(*sorted(set(sys.modules) - before))
"""
    done = python(script, saved)
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert {name.removeprefix("smelt.") for name in found if name.startswith("smelt.")} == OURS
    assert {name.split(".")[0] for name in found} - {"smelt"} <= OTHERS


def test_element_types_that_numpy_lacks_come_when_they_are_used() -> None:
    script = """
import sys
from smelt.dtype import DTYPES, dtype
assert dtype("float32").numpy.itemsize == 4 and "ml_dtypes" not in sys.modules
found = dtype("bfloat16")
import ml_dtypes
assert found is DTYPES["bf16"] and found.numpy == ml_dtypes.bfloat16 and dtype(ml_dtypes.int4) is DTYPES["i4"]
"""
    done = python(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["", "plain"])
def test_loading_needs_no_compiler_and_no_cache(
    saved: Path, pixels: np.ndarray, expected: np.ndarray, tmp_path: Path, target: str
) -> None:
    np.save(tmp_path / "x.npy", pixels[:37])
    nowhere = tmp_path / "cache"
    arguments = saved, tmp_path / "x.npy", tmp_path / "y.npy"
    done = python(RUN, *arguments, SMELT_CC="/no/compiler", SMELT_CACHE_DIR=str(nowhere), SMELT_TARGET=target)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=2e-5, atol=1e-7)
    assert not nowhere.exists(), "nothing is written"


def test_weights_are_mapped_and_nothing_is_copied(saved: Path) -> None:
    bundle = smelt.load(saved)
    executable = bundle._executable
    assert isinstance(executable, NativeExecutable)
    assert executable._arrays
    start, end = next(
        tuple(int(place, 16) for place in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(saved))
    )
    for array in executable._arrays:
        address = array.__array_interface__["data"][0]
        assert start <= address < end
        assert address % 64 == 0
        assert not array.flags.writeable


def test_code_for_several_kinds_of_processors(pixels: np.ndarray, expected: np.ndarray, tmp_path: Path) -> None:
    program, weights = read(DIGITS)
    stored = store_weights(program, weights, ["plain", "avx512", "avx2"])
    layouts = {variant.tile[1]: [code.target for code in variant.codes] for variant in stored.programs[0].variants}
    assert layouts == {64: ["avx512", "plain"], 16: ["avx2"]}, "plain code shares the weights of the first target"
    path = tmp_path / "digits.smelt"
    write(path, stored)
    np.save(tmp_path / "x.npy", pixels[:37])
    runnable = [target for target in ("avx512", "avx2", "plain") if runs_here(target)]
    assert "plain" in runnable
    for target in runnable:
        done = python(RUN, path, tmp_path / "x.npy", tmp_path / "y.npy", SMELT_TARGET=target, SMELT_CC="/no/compiler")
        assert done.returncode == 0, done.stderr
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=2e-5, atol=1e-7)


def runs_here(target: str) -> bool:
    return cpu.TARGETS[target].features <= cpu.target("native").features


def test_weights_of_bf16_lie_in_pairs_for_targets_that_multiply_them(pixels: np.ndarray, tmp_path: Path) -> None:
    program, weights = read(DIGITS)
    (plain,) = store_weights(program, weights, ["avx512", "avx512bf16"]).programs[0].variants
    assert [code.target for code in plain.codes] == ["avx512", "avx512bf16"], "f32 has the same layout for both"
    stored = store_weights(with_precision(program, "bf16"), weights, ["avx512bf16", "avx512", "plain"])
    pairs, floats = stored.programs[0].variants
    assert [code.target for code in pairs.codes] == ["avx512bf16", "plain"]
    assert [code.target for code in floats.codes] == ["avx512"]
    bf16 = ml_dtypes.bfloat16
    packed, flat = ([array for array in variant.bound or () if array.dtype == bf16] for variant in (pairs, floats))
    assert len(packed) == 2, "16 bits, with the instruction and without"
    for pair, row in zip(packed, flat, strict=True):
        assert sorted(pair.ravel().tolist()) == sorted(row.ravel().tolist())
        assert pair.ravel().tolist() != row.ravel().tolist(), "two steps of K side by side"
    path = tmp_path / "digits.smelt"
    write(path, stored)
    np.save(tmp_path / "x.npy", pixels[:37])
    rounded = ReferenceEngine().compile(with_precision(program, "bf16")).prepare(weights)
    (wanted,) = rounded(pixels[:37])
    (unrounded,) = ReferenceEngine().compile(program).prepare(weights)(pixels[:37])
    assert np.abs(wanted - unrounded).max() > 1e-3, "the tolerance below tells the two apart"
    runnable = [target for target in ("avx512bf16", "avx512", "plain") if runs_here(target)]
    assert "plain" in runnable
    for target in runnable:
        done = python(RUN, path, tmp_path / "x.npy", tmp_path / "y.npy", SMELT_TARGET=target, SMELT_CC="/no/compiler")
        assert done.returncode == 0, done.stderr
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ((), "avx512"),
        (("avx512_bf16", "avx512_vnni"), "avx512bf16"),
        (("avx512_bf16", "avx512_vnni", "amx_bf16"), "avx512"),
    ],
)
def test_code_for_pairs_is_for_programs_of_bf16_where_pairs_are_fast(
    more: tuple[str, ...], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = cpu.TARGETS["avx512"].features.union(more)
    here = cpu.TARGETS["avx512"].replace(features=features, has_pairs=cpu.has_pairs(features, 64))
    monkeypatch.setattr(processor, "target", lambda name=None: here)
    program, _ = read(DIGITS)
    assert default_targets(program) == ("avx512", "plain")
    assert default_targets(with_precision(program, "bf16")) == (first, "plain")


def test_a_program_of_bytes_gets_code_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMELT_TARGET", raising=False)
    f = FuncBuilder("main", [Shape("ui8", 4)])
    program = Program.of(f.func(f.convert(f.args[0], result=Shape("f32", 4))))
    here = cpu.target("native").features
    assert ("avx512vnni" in default_targets(program)) == (cpu.TARGETS["avx512vnni"].features <= here)
    assert "avx512vnni" not in default_targets()
    assert set(default_targets()) <= set(default_targets(program))


def test_packed_weights_are_not_packed_again(model: LoadedModel) -> None:
    other = "avx2" if default_targets()[0] != "avx2" else "avx512"
    with pytest.raises(UnsupportedError, match="packed for another register tile"):
        model.serialize(targets=[other])
    with pytest.raises(SmeltError, match="unknown target"):
        model.serialize(targets=["abacus"])


def without_fitting_code(model: LoadedModel) -> bytes:
    stored = model._to_stored(())
    programs = [
        program.replace(
            variants=tuple(
                variant.replace(
                    codes=tuple(
                        code.replace(about={**code.about, "features": ("warp_drive",)}) for code in variant.codes
                    )
                )
                for variant in program.variants
            )
        )
        for program in stored.programs
    ]
    return serialize(stored.replace(programs=tuple(programs)))


def test_another_machine_compiles_again(
    model: LoadedModel, pixels: np.ndarray, expected: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "smelt"):
        executable = smelt.deserialize(without_fitting_code(model))
    assert "needs warp_drive" in caplog.text
    np.testing.assert_allclose(executable(pixels[:37])[0], expected, rtol=2e-5, atol=1e-7)


def test_another_machine_without_a_compiler_says_why(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    data = without_fitting_code(model)
    monkeypatch.setattr(cpu, "compiler", lambda: None)
    with pytest.raises(UnsupportedError, match="cannot be compiled here") as caught:
        deserialize(data, recompile)
    assert "needs warp_drive" in str(caught.value)
    assert "no C compiler" in str(caught.value)


def test_an_executable_without_weights_is_bound_after_loading(pixels: np.ndarray, expected: np.ndarray) -> None:
    program, weights = read(DIGITS)
    compiled = NativeEngine().compile(program)
    assert isinstance(compiled, NativeExecutable)
    loaded = smelt.deserialize(compiled.serialize())
    with pytest.raises(RunError, match="not bound"):
        loaded(pixels[:1])
    real = loaded.prepare(weights)
    blank = loaded.prepare(Weights.of({name: np.zeros_like(weights[name].numpy()) for name in weights}))
    np.testing.assert_allclose(real(pixels[:37])[0], expected, rtol=2e-5, atol=1e-7)
    assert not np.allclose(blank(pixels[:37])[0], expected)
    with pytest.raises(UnsupportedError, match="part of the bundle"):
        smelt.deserialize(compiled.prepare(weights).serialize()).prepare(weights)


def test_size_checks_come_along() -> None:
    compiled = NativeEngine().compile(parse(ADD))
    assert isinstance(compiled, NativeExecutable)
    loaded = smelt.deserialize(compiled.serialize())
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(loaded(x, x)[0], x + x)
    with pytest.raises(SizeError, match="add") as ours:
        loaded(x, x[:2])
    with pytest.raises(SizeError) as original:
        compiled(x, x[:2])
    assert str(ours.value) == str(original.value)


def test_large_constants_and_narrow_types_come_along(seed: int) -> None:
    values = np.random.default_rng(seed).integers(-100, 100, (64, 48)).astype(np.int16)
    text = f"""func.func @main(%w: tensor<48xbf16> {{smelt.weight = "w"}}, %x: tensor<48xi16>)
        -> (tensor<64x48xi16>, tensor<48xbf16>) {{
      %c = stablehlo.constant dense<{values.tolist()}> : tensor<64x48xi16>
      %b = stablehlo.broadcast_in_dim %x, dims = [1] : (tensor<48xi16>) -> tensor<64x48xi16>
      %0 = stablehlo.add %c, %b : tensor<64x48xi16>
      %1 = stablehlo.negate %w : tensor<48xbf16>
      return %0, %1 : tensor<64x48xi16>, tensor<48xbf16>
    }}"""
    compiled = NativeEngine().compile(parse(text))
    w = np.linspace(-3, 3, 48).astype(dtype("bf16").numpy)
    bound = compiled.prepare(Weights.of({"w": w}))
    assert isinstance(bound, NativeExecutable)
    x = np.arange(48, dtype=np.int16)
    total, negative = smelt.deserialize(bound.serialize())(x)
    np.testing.assert_array_equal(total, values + x)
    np.testing.assert_array_equal(negative, -w)


def test_programs_per_value_are_saved_as_far_as_there_are_any(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)],
        "sum",
        [
            helper.make_tensor_value_info("x", kind.FLOAT, ["n", 4]),
            helper.make_tensor_value_info("axes", kind.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", kind.FLOAT, ["a", "b"])],
    )
    path = tmp_path / "sum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    model = smelt.load(path, engine="native")
    with pytest.raises(UnsupportedError, match="no program is compiled yet"):
        model.save(tmp_path / "sum.smelt")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for axis in (0, 1):
        model(x, np.array([axis]))
    model.save(tmp_path / "sum.smelt")
    loaded = smelt.load(tmp_path / "sum.smelt")
    assert loaded.static == ("axes",)
    for axis in (0, 1):
        np.testing.assert_array_equal(loaded(x[:2], np.array([axis]))["y"], x[:2].sum(axis, keepdims=True))
    with pytest.raises(UnsupportedError, match="no program for these inputs") as caught:
        loaded(x, np.array([-1]))
    assert "axes=[0]; axes=[1]" in str(caught.value)
    again = smelt.load(path, engine="native", static={"axes": np.array([1])})
    again.save(tmp_path / "fixed.smelt")
    np.testing.assert_array_equal(smelt.load(tmp_path / "fixed.smelt")(x)["y"], x.sum(1, keepdims=True))


def test_closing_gives_the_mapping_back(saved: Path) -> None:
    def mapped() -> bool:
        return str(saved) in Path("/proc/self/maps").read_text()

    gc.collect()
    bundle = smelt.load(saved)
    bundle(np.zeros((1, 64), np.float32))
    assert mapped()
    bundle.close()
    gc.collect()
    assert not mapped()
    bundle.close()


def test_the_contract_of_programs_changes_with_its_number() -> None:
    """Code in a bundle meets the runtime library of another day: what they agreed on must be the same."""
    header = (Path(smelt.__path__[0]) / "runtime" / "smelt.h").read_text()
    words = " ".join(re.sub(r"/\*.*?\*/", " ", header, flags=re.S).split())
    known = {2: "043b8d24191c3f7a"}
    assert known[runtime.ABI] == container.digest(words.encode())[:16], (
        "a new contract needs a new ABI in device/runtime.py"
    )


def test_what_cannot_be_saved_or_asked_for_is_refused(saved: Path, tmp_path: Path) -> None:
    reference = smelt.load(DIGITS, engine="reference")
    with pytest.raises(UnsupportedError, match="cannot be saved"):
        reference.save(tmp_path / "no.smelt")
    assert not list(tmp_path.iterdir())
    for options in ({"engine": "reference"}, {"tune": 1.0}, {"static": {"a": 1}}):
        with pytest.raises(UnsupportedError, match="compiled already"):
            smelt.load(saved, **options)
    with pytest.raises(UnsupportedError, match="no code for cuda"):
        smelt.load(saved, device="cuda")
    with pytest.raises(FileError, match="cannot read"):
        smelt.load(tmp_path / "absent.smelt")
    bundle = smelt.load(saved)
    with pytest.raises(UnsupportedError, match="targets of a bundle are fixed"):
        bundle.save(tmp_path / "other.smelt", targets=["avx2"])
    bundle.close()
    with pytest.raises(RunError, match="closed"):
        bundle(np.zeros((1, 64), np.float32))
    with pytest.raises(RunError, match="closed"):
        bundle.save(tmp_path / "closed.smelt")


def test_bytes_of_the_pjrt_engine_are_told_apart(pixels: np.ndarray, expected: np.ndarray) -> None:
    pytest.importorskip("jaxlib")
    program, weights = read(DIGITS)
    compiled: Any = smelt.platform(engine="pjrt").engine.compile(program)
    found = smelt.deserialize(compiled.serialize()).prepare(weights)(pixels[:37])[0]
    np.testing.assert_allclose(np.asarray(found.numpy()), expected, rtol=2e-5, atol=1e-7)


def test_plain_data_comes_back_from_json() -> None:
    per_axis = Quantized(dtype("i8"), dtype("f32"), (0.5, 0.25), (0, -3), 1, -128, 127)
    shapes = (
        Shape("f32", symbol("B"), 3),
        Shape.of(dtype("i64"), (symbol("N") * 2 + 1,), None, (7,)),
        Shape.of(per_axis, (4, 2)),
        Shape("bf16"),
    )
    inputs = tuple(Port(f"é{i}", shape) for i, shape in enumerate(shapes))
    signature = Signature(inputs, (Port("y", shapes[0], ("cat", ""), (1, "x", -2)),), (Port("w", shapes[3]),))
    assert record.signature_of(record.signature_record(signature)) == signature
    checks = (SizeCheck("B equal to 3", "why"),), (DataCheck("{0} is odd", True, Location("a.mlir", 3, 1, "n")),)
    entry = Entry("smelt0", shapes, shapes[:1], ("B", "N"), ("a", "b", "c", "d"), *checks)
    assert record.entry_of(record.entry_record(entry)) == entry
    about = cpu.TARGETS["avx2"].as_json()
    back = record.target_of(json.loads(json.dumps(record.target_record(about))))
    assert back == {**about, "features": tuple(about["features"])}
    old = record.target_of({"machine": "x86_64", "features": ["avx2"]})  # as bundles were before
    assert old == {"device": "cpu", "name": "x86_64", "features": ("avx2",)}
    uses = (KernelUse("map", ("stablehlo.add",), 2),)
    assert record.kernels_of(record.kernels_record(uses)) == uses
    array = np.array([[1, -2], [3, 4]], np.int16).T
    np.testing.assert_array_equal(record.value_of(record.value_record(array)), array)


def test_lowered_programs_come_back_from_their_text(suites: Path, seed: int) -> None:
    """What a bundle keeps to compile again gives the same C, and what it keeps as JSON the same checks."""
    texts = sorted((suites / "testdata").glob("*.mlir"))
    tried = 0
    for path in random.Random(seed).sample(texts, 80):
        try:
            program = recast(parse(path.read_text()), "main", ()).program
            signature, lowered = signature_of(program.main), lower(program, cpu.target())
            planned = plan_lowered(lowered, signature, cpu.target())
            written = emit_source([planned]).texts(1)
        except UnsupportedError:
            continue
        again = plan_lowered(parse(print_program(lowered)), signature, cpu.target())
        assert emit_source([again]).texts(1) == written, path.name
        assert again.main[0].constants == planned.main[0].constants, path.name
        main, _ = make_entries(planned, "smelt0")
        assert record.entry_of(json.loads(json.dumps(record.entry_record(main)))) == main, path.name
        tried += 1
    assert tried > 40


# ---- signatures ----


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A file with a private key, and the public one."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    private = ed25519.Ed25519PrivateKey.generate()
    path = tmp_path_factory.mktemp("keys") / "private"
    path.write_text(private.private_bytes_raw().hex())
    return path, private.public_key().public_bytes_raw().hex()


def test_a_signature_is_demanded_where_keys_are_configured(
    model: LoadedModel,
    saved: Path,
    key: tuple[Path, str],
    tmp_path: Path,
    pixels: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private, public = key
    model.save(tmp_path / "signed.smelt", private_key=private)
    want = smelt.load(saved)(pixels[:2])["probabilities"]
    signed = smelt.load(tmp_path / "signed.smelt", keys=[public])
    np.testing.assert_array_equal(signed(pixels[:2])["probabilities"], want)
    smelt.load(tmp_path / "signed.smelt")  # no key is configured
    with pytest.raises(FileError, match="not signed"):
        smelt.load(saved, keys=[public])
    with pytest.raises(FileError, match="not trusted"):
        smelt.load(tmp_path / "signed.smelt", keys=["00" * 32])
    monkeypatch.setenv(sign.VARIABLE, public)
    with pytest.raises(FileError, match="not signed"):
        smelt.load(saved)
    smelt.load(tmp_path / "signed.smelt")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(MissingPackageError, match="verify the signature"):
        smelt.load(tmp_path / "signed.smelt")


def test_a_bundle_that_was_made_up_again_fails_its_signature(
    model: LoadedModel, saved: Path, key: tuple[Path, str], tmp_path: Path
) -> None:
    """An attacker can compute every digest of a changed bundle again, but no signature."""
    private, public = key
    signed = bytearray(model.serialize(private_key=private))
    changed = model._to_stored(()).replace(name="another")
    other = bytearray(serialize(changed))
    other[64:160] = signed[64:160]  # the key and the signature of the real one
    other[32:64] = bytes.fromhex(container.digest(bytes(other[:32]), bytes(other[64:96]), _manifest(other)))
    (tmp_path / "forged.smelt").write_bytes(other)
    assert smelt.load(tmp_path / "forged.smelt").name == "another"
    with pytest.raises(FileError, match="wrong signature"):
        smelt.load(tmp_path / "forged.smelt", keys=[public])


def test_files_with_keys(saved: Path, tmp_path: Path) -> None:
    """Private keys as PEM, raw and hexadecimal; public ones in a file. What is no such key is refused by name."""
    model = smelt.load(saved)
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    x25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.x25519")
    forms = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    as_pem = (forms.Encoding.PEM, forms.PrivateFormat.PKCS8)
    private = ed25519.Ed25519PrivateKey.generate()
    public = tmp_path / "public"
    public.write_text(private.public_key().public_bytes_raw().hex() + "\n")
    path, bundle = tmp_path / "private", tmp_path / "signed.smelt"
    raw = private.private_bytes_raw()
    for content in (private.private_bytes(*as_pem, forms.NoEncryption()), raw, raw.hex().encode()):
        path.write_bytes(content)
        model.save(bundle, private_key=path)
        smelt.load(bundle, keys=[str(public)])
    other = x25519.X25519PrivateKey.generate().private_bytes(*as_pem, forms.NoEncryption())
    locked = private.private_bytes(*as_pem, forms.BestAvailableEncryption(b"secret"))
    wrong = {"a key of another type": other, "Password was not given": locked, "load PEM": b"-----BEGIN x",
             "non-hexadecimal": b"zz", "is 32 bytes": raw[:31].hex().encode(), "codec": b"\xff" * 31}  # fmt: skip
    for message, content in wrong.items():
        path.write_bytes(content)
        with pytest.raises(FileError, match=f"is no private key(.|\n)*{message}") as caught:
            model.save(bundle, private_key=path)
        assert "genpkey" in (caught.value.remedy or "")
    for text in ("00" * 31, "00" * 33, "0" * 63, "\u00fc"):
        public.write_text(text)
        with pytest.raises(SmeltError, match="no public key"):
            smelt.load(bundle, keys=[str(public)])


def test_a_model_file_that_cannot_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("hashlib.file_digest", fail)
    (tmp_path / "model.onnx").touch()
    with pytest.raises(FileError, match=r"cannot read .*model.onnx\n +got +Input/output error"):
        source_record(tmp_path / "model.onnx")


def test_manifests_that_are_no_json_and_files_that_cannot_be_mapped(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker can compute the digest of a changed manifest again."""
    data = bytearray(saved.read_bytes())
    length = len(_manifest(data))
    for text in (b"{", b"[]", b"3", b"{}", b'{"checksum": 1}', b'{"checksum": "", "sections": [[1]]}', b"[" * length):
        changed = bytearray(data)
        changed[160 : 160 + length] = text.ljust(length)
        changed[32:64] = bytes.fromhex(container.digest(bytes(changed[:32]), bytes(changed[64:96]), _manifest(changed)))
        (tmp_path / "changed.smelt").write_bytes(changed)
        with pytest.raises(FileError, match="has a malformed manifest"):
            smelt.load(tmp_path / "changed.smelt")

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(19, "No such device")

    whole = tmp_path / "whole.smelt"
    whole.write_bytes(data)
    monkeypatch.setattr("mmap.mmap", refuse)
    with pytest.raises(FileError, match=r"cannot read .*\n +got +.*No such device"):
        smelt.load(whole)
    assert not open_files(tmp_path), "the file is closed"


@pytest.mark.parametrize("setting", ["", " ", ",", " , ", "zz", "00" * 31, "00" * 32 + ",", "/no/such/file"])
def test_a_setting_without_keys_is_an_error(saved: Path, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is set, signatures are checked: a malformed value loads nothing unchecked."""
    monkeypatch.setenv(sign.VARIABLE, setting)
    for attempt in (smelt.load, lambda path: smelt.deserialize(path.read_bytes())):
        with pytest.raises(SmeltError, match="no public key"):
            attempt(saved)
    monkeypatch.delenv(sign.VARIABLE)
    for keys in ([], (), [setting], setting):
        with pytest.raises(SmeltError, match="no public key"):
            smelt.load(saved, keys=keys)


def test_no_format_passes_the_gate_unsigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of every format, and of none, by every way in."""
    path = tmp_path / "unsigned.smelt"
    for content in (
        b"smelt pjrt 1\n" + bytes(400),
        b"smelt pjrt",
        b"",
        b"\x89SMELT\r\n" + bytes(400),
        b"PK\x03\x04" * 60,
    ):
        path.write_bytes(content)
        for keys in (["00" * 32], None):
            with monkeypatch.context() as patch:
                if keys is None:
                    patch.setenv(sign.VARIABLE, "00" * 32)
                options: dict[str, Any] = {} if keys is None else {"keys": keys}
                with pytest.raises(FileError, match="not signed"):
                    smelt.load(path, **options)
                with pytest.raises(FileError, match="not signed"):
                    smelt.deserialize(content, **options)
                if keys is None:
                    with pytest.raises(FileError, match="not signed"):
                        PjrtEngine("cpu").deserialize(content)
                    with pytest.raises(FileError, match="not signed"):
                        every_code(path, recompile)


def _manifest(bundle: bytearray) -> bytes:
    length = int.from_bytes(bundle[24:32], "little")
    return bytes(bundle[container.HEAD : container.HEAD + length])


def test_a_bundle_that_is_cut_while_it_is_used(tmp_path: Path, saved: Path, pixels: np.ndarray) -> None:
    """Noticed before anything that is gone is touched, where that costs nothing: between mapping and use."""
    path = tmp_path / "cut.smelt"
    path.write_bytes(saved.read_bytes())
    image = container.open_file(path)
    image.check_size()
    os.truncate(path, 4096)
    with pytest.raises(FileError, match="was truncated while it was in use"):
        image.read_checked(0)
    with pytest.raises(FileError, match="cannot read"):
        image.check_body(runtime.runtime(), complete=False)
    image.close()
    path.write_bytes(saved.read_bytes())
    model = smelt.load(path)
    executable = model._executable
    assert isinstance(executable, NativeExecutable)
    found = container.open_file(path)
    executable._file = found  # as for large weights
    os.truncate(path, 4096)
    with pytest.raises(FileError, match="was truncated while it was in use"):
        model(pixels[:2])
    found.close()


def test_large_weights_move_to_memory_of_their_own_after_the_first_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    w = random.standard_normal((1536, 2048)).astype(np.float32)
    x = random.standard_normal((3, 1536)).astype(np.float32)
    program = parse("""
func.func @main(%x: tensor<3x1536xf32>, %w: tensor<1536x2048xf32> {smelt.weight = "w"}) -> tensor<3x2048xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<3x1536xf32>, tensor<1536x2048xf32>) -> tensor<3x2048xf32>
  return %y : tensor<3x2048xf32>
}""")
    model = NativeEngine().compile(program).prepare(Weights.of({"w": w}))
    (expected,) = model(x)
    path = tmp_path / "wide.smelt"
    path.write_bytes(model.serialize())
    executable = smelt.load(path)._executable
    assert isinstance(executable, NativeExecutable)
    mapped = executable._arrays
    assert mapped is not None
    np.testing.assert_array_equal(executable(x)[0], expected)
    assert executable._moving is not None
    executable._moving.join()
    moved = executable._arrays
    assert moved is not None
    for before, after in zip(mapped, moved, strict=True):
        assert not np.may_share_memory(before, after)
        np.testing.assert_array_equal(before, after, "what was given back can be read again")
    np.testing.assert_array_equal(executable(x)[0], expected)
    executable.close()
    executable.close()
    monkeypatch.setattr(executables, "_shares", [])
    executables.share_weights()
    shared = smelt.load(path)._executable
    assert isinstance(shared, NativeExecutable)
    np.testing.assert_array_equal(shared(x)[0], expected)
    assert shared._moving is None, "processes share the file's pages"
    shared.close()


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="the system does not tell which pages are there")
def test_a_table_of_which_calls_read_some_rows_stays_in_the_file(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    table = random.standard_normal((8192, 512)).astype(np.float32)
    w = random.standard_normal((512, 8192)).astype(np.float32)
    rows = random.integers(0, 8192, 2)
    program = parse("""
func.func @main(%rows: tensor<2x1xi64>, %table: tensor<8192x512xf32> {smelt.weight = "table"},
                %w: tensor<512x8192xf32> {smelt.weight = "w"}) -> tensor<2x8192xf32> {
  %x = "stablehlo.gather"(%table, %rows) <{dimension_numbers = #stablehlo.gather<offset_dims = [1],
    collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 512>}>
    : (tensor<8192x512xf32>, tensor<2x1xi64>) -> tensor<2x512xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<2x512xf32>, tensor<512x8192xf32>) -> tensor<2x8192xf32>
  return %y : tensor<2x8192xf32>
}""")
    path = tmp_path / "table.smelt"
    path.write_bytes(NativeEngine().compile(program).prepare(Weights.of({"table": table, "w": w})).serialize())
    executable = smelt.load(path)._executable
    assert isinstance(executable, NativeExecutable)
    mapped = executable._arrays
    want = table[rows].astype(np.float64) @ w
    for _ in range(2):
        (found,) = executable(rows.reshape(2, 1))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
        assert executable._moving is not None
        executable._moving.join()
    moved = executable._arrays
    assert mapped is not None
    assert moved is not None
    stayed = {before.shape: np.may_share_memory(before, after) for before, after in zip(mapped, moved, strict=True)}
    assert stayed.pop(table.shape), "a table of which two rows were read"
    assert not any(stayed.values()), "panels that were read from end to end"
    executable.close()


def test_a_bundle_keeps_to_a_memory_limit(saved: Path, pixels: np.ndarray) -> None:
    expected = smelt.load(saved)(pixels)["probabilities"]
    with smelt.load(saved, memory_limit="16MB") as limited:
        assert np.array_equal(limited(pixels)["probabilities"], expected)
        with pytest.raises(MemoryLimitError, match="more memory than allowed"):
            limited(np.zeros((1 << 20, 64), np.float32))
        assert np.array_equal(limited(pixels)["probabilities"], expected)
    with pytest.raises(MemoryLimitError, match="packed weights"):
        smelt.load(saved, memory_limit="1KB")
    with pytest.raises(MemoryLimitError, match="for a call"):
        smelt.load(saved, memory_limit="16MB", sizes={"batch": 1 << 20})


def test_models_and_executables_close_with_a_block_and_show_themselves(saved: Path, pixels: np.ndarray) -> None:
    with smelt.load(saved) as model:
        assert "pixels: f32[" in repr(model)
        assert "<td>probabilities</td>" in model._repr_html_()
    with pytest.raises(RunError, match="closed"):
        model(pixels)
    executable = smelt.deserialize(saved.read_bytes())
    assert isinstance(executable, NativeExecutable)
    with executable:
        assert repr(executable).startswith("<NativeExecutable(pixels: f32[")
        assert executable._repr_html_().startswith("<table><caption>NativeExecutable</caption>")
    with pytest.raises(RunError, match="closed"):
        executable(pixels)


def test_binding_without_memory_is_an_error_of_ours(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise MemoryError

    monkeypatch.setattr(runtime.runtime().held, "smelt_bind", refuse)
    with pytest.raises(RunError, match="no memory left to bind"):
        smelt.load(saved)
