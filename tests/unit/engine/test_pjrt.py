"""The pjrt engine on the processor: results against NumPy, and all around a call: weights, sizes, donation, files.

Programs are small, because XLA compiles each of them here.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import smelt
from smelt.buffer import HostBuffer
from smelt.device import pjrt
from smelt.dtype import dtype
from smelt.engine import ENGINES, platform
from smelt.engine.pjrt import PjrtEngine
from smelt.errors import (
    DeviceError,
    DeviceLost,
    FileError,
    ParseError,
    RunError,
    ShapeError,
    SizeError,
    UnsupportedError,
)
from smelt.ir.text import parse
from smelt.read.safetensors import write
from smelt.weights import Weights
from tests import onnx_oracle

pytest.importorskip("jaxlib")

LINEAR = """
func.func @main(%x: tensor<?x4xf32>, %w: tensor<3x4xf32> {smelt.weight = "w"}, %b: tensor<3xf32> {smelt.weight = "b"})
    -> (tensor<?x3xf32> {smelt.name = "y"}) {
  %t = stablehlo.transpose %w, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
  %0 = stablehlo.dot %x, %t : (tensor<?x4xf32>, tensor<4x3xf32>) -> tensor<?x3xf32>
  %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
  %m = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %c = stablehlo.constant dense<3> : tensor<1xi32>
  %s = stablehlo.concatenate %m, %c, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %d = stablehlo.dynamic_broadcast_in_dim %b, %s, dims = [1] : (tensor<3xf32>, tensor<2xi32>) -> tensor<?x3xf32>
  %1 = stablehlo.add %0, %d : tensor<?x3xf32>
  return %1 : tensor<?x3xf32>
}
"""
TWICE = """
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.multiply %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
ABORTS = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @TopK(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def program(text: str) -> Any:
    return parse(text)


def values(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "w": random.standard_normal((3, 4)).astype(np.float32),
        "b": random.standard_normal(3).astype(np.float32),
    }


def rows(seed: int, count: int) -> Any:
    return np.random.default_rng(seed + count).standard_normal((count, 4)).astype(np.float32)


# ---- calls ----


@pytest.mark.parametrize("isolate", [False, True])
def test_a_program_with_weights_and_a_dynamic_dimension(seed: int, isolate: bool) -> None:
    weights = values(seed)
    executable = PjrtEngine(isolate=isolate).compile(program(LINEAR)).prepare(weights)
    for count in (1, 5, 2):
        x = rows(seed, count)
        (y,) = executable(x)
        np.testing.assert_allclose(y.numpy(), x @ weights["w"].T + weights["b"], rtol=1e-5, atol=1e-6)
    reasons = [each.reason for each in executable.compilations]
    assert [dict(each.sizes) for each in executable.compilations] == [{"d0": 1}, {"d0": 5}, {"d0": 2}]
    assert reasons[0] == "the first call"
    assert "is 5, was 1" in reasons[1]


def test_buffers_go_in_and_come_out(seed: int) -> None:
    engine = PjrtEngine()
    executable = engine.compile(program(TWICE))
    x = np.arange(4, dtype=np.float32)
    placed = engine.put(HostBuffer.of(x))
    (first,) = executable(placed, placed)
    (second,) = executable(first, x)
    np.testing.assert_array_equal(second.wait().numpy(), x**3)
    np.testing.assert_array_equal(np.asarray(second), x**3)
    np.testing.assert_array_equal(np.from_dlpack(second), x**3)
    assert second.__dlpack_device__() == (1, 0), "kDLCPU, the only one"
    taken = engine.client.take(np.arange(4, dtype=np.float32))  # type: ignore[attr-defined]  # of a local client
    np.testing.assert_array_equal(executable(taken, taken)[0].numpy(), x**2)

    async def later() -> Any:
        (result,) = executable(x, x)
        return (await result).numpy()

    np.testing.assert_array_equal(asyncio.run(later()), x**2)


def test_an_input_may_change_right_after_the_call() -> None:
    executable = PjrtEngine().compile(program(TWICE))
    x = np.ones(4, np.float32)
    (y,) = executable(x, x)
    x[:] = 7
    np.testing.assert_array_equal(y.numpy(), np.ones(4))


def test_mistakes_are_named() -> None:
    engine = PjrtEngine()
    executable = engine.compile(program(TWICE))
    x = np.ones(4, np.float32)
    with pytest.raises(RunError, match="wrong number of inputs"):
        executable(x)
    with pytest.raises(ShapeError, match="the input 'y' does not fit"):
        executable(x, np.ones(3, np.float32))
    with pytest.raises(ShapeError, match="the input 'x' does not fit"):
        executable(np.ones(4), x)
    with pytest.raises(ShapeError, match="the input 'y' does not fit"):
        executable(x, engine.put(HostBuffer.of(np.ones(5, np.float32))))
    with pytest.raises(DeviceError, match="another device"):
        executable(x, PjrtEngine(isolate=True).put(HostBuffer.of(x)))
    with pytest.raises(UnsupportedError, match="unknown device"):
        PjrtEngine("tpu")
    with pytest.raises(UnsupportedError, match="XLA refuses the program"):
        engine.compile(
            program(
                TWICE.replace("stablehlo.multiply %x, %y", "stablehlo.custom_call @nothing(%x)").replace(
                    "custom_call @nothing(%x) : tensor<4xf32>",
                    "custom_call @nothing(%x) : (tensor<4xf32>) -> tensor<4xf32>",
                )
            )
        )


@pytest.mark.parametrize(
    "element", ["bf16", "f16", "f8E4M3FN", "f8E5M2", "i4", "ui8", "i1", "i64", "f64", "complex<f32>"]
)
def test_every_element_type_travels(element: str) -> None:
    text = f"func.func @main(%x: tensor<2x3x{element}>) -> tensor<3x2x{element}> {{\n"
    text += f"  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3x{element}>) -> tensor<3x2x{element}>\n"
    text += f"  return %0 : tensor<3x2x{element}>\n}}"
    x = np.array([[0, 1, 0], [1, 1, 0]]).astype(dtype(element).numpy)
    (y,) = PjrtEngine().compile(program(text))(x)
    np.testing.assert_array_equal(y.numpy(), x.T)
    assert y.numpy().dtype == x.dtype


def test_what_xla_would_answer_wrongly_is_refused() -> None:
    text = """func.func @main(%x: tensor<f64>) -> tensor<64xi1> {
      %0 = stablehlo.bitcast_convert %x : (tensor<f64>) -> tensor<64xi1>
      return %0 : tensor<64xi1>
    }"""
    with pytest.raises(UnsupportedError, match="booleans in bytes"):
        PjrtEngine().compile(program(text))


# ---- weights ----


def test_two_prepared_executables_are_independent_and_give_memory_back(seed: int) -> None:
    engine = PjrtEngine()
    compiled = engine.compile(program(LINEAR))
    with pytest.raises(RunError, match="not bound"):
        compiled(rows(seed, 1))
    gc.collect()
    before = engine.stats()["bytes_in_use"]
    one, other = values(seed), values(seed + 1)
    first, second = compiled.prepare(one), compiled.prepare(other)
    x = rows(seed, 2)
    np.testing.assert_allclose(first(x)[0].numpy(), x @ one["w"].T + one["b"], rtol=1e-5, atol=1e-6)
    first.close()
    first.close()
    with pytest.raises(RunError, match="closed"):
        first(x)
    np.testing.assert_allclose(second(x)[0].numpy(), x @ other["w"].T + other["b"], rtol=1e-5, atol=1e-6)
    copy = second.clone()
    second.close()
    np.testing.assert_allclose(copy(x)[0].numpy(), x @ other["w"].T + other["b"], rtol=1e-5, atol=1e-6)
    assert engine.stats()["bytes_in_use"] > before
    copy.close()
    gc.collect()
    assert engine.stats()["bytes_in_use"] == before


def test_buffers_as_weights_stay_the_callers(seed: int) -> None:
    engine = PjrtEngine()
    weights = values(seed)
    placed = Weights.of(weights).to_device(platform(engine="pjrt"))
    executable = engine.compile(program(LINEAR)).prepare(placed)
    x = rows(seed, 3)
    expected = x @ weights["w"].T + weights["b"]
    np.testing.assert_allclose(executable(x)[0].numpy(), expected, rtol=1e-5, atol=1e-6)
    executable.close()
    np.testing.assert_array_equal(placed["b"].numpy(), weights["b"])
    np.testing.assert_array_equal(placed["w"].numpy(), weights["w"])


def test_wrong_weights_are_refused(seed: int) -> None:
    compiled = PjrtEngine().compile(program(LINEAR))
    with pytest.raises(ShapeError, match="the weight 'w' does not fit"):
        compiled.prepare(values(seed) | {"w": np.ones((3, 5), np.float32)})


# ---- sizes ----


def test_programs_are_kept_up_to_a_limit_and_the_record_says_why(seed: int) -> None:
    executable = PjrtEngine().compile(program(LINEAR), limit=2).prepare(values(seed))
    for count in (1, 2, 1, 3, 2):
        executable(rows(seed, count))
    assert [each.sizes["d0"] for each in executable.compilations] == [1, 2, 3, 2]
    assert executable.compilations[-1].reason == "its program was evicted: at most 2 are cached"


def test_buckets_pad_and_cut(seed: int) -> None:
    weights = values(seed)
    text = LINEAR.replace("tensor<?x4xf32>, %w", "tensor<?x4xf32>, %w")
    executable = PjrtEngine().compile(program(text), buckets={"d0": [4, 8]}).prepare(weights)
    for count in (1, 3, 4, 5, 8, 9):
        x = rows(seed, count)
        (y,) = executable(x)
        assert y.shape.sizes == (count, 3)
        np.testing.assert_allclose(np.asarray(y), x @ weights["w"].T + weights["b"], rtol=1e-5, atol=1e-6)
    assert [each.sizes["d0"] for each in executable.compilations] == [4, 8, 9]


ROWS = "tensor<?x4xf32>"
SUM = "applies stablehlo.add across dimensions"
LEAKS = {
    "a sum": "%c = stablehlo.constant dense<0.0> : tensor<f32>\n"
    f"%0 = stablehlo.reduce(%x init: %c) {SUM} = [0] : ({ROWS}, tensor<f32>) -> tensor<4xf32>",
    "a product": "%0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : "
    f"({ROWS}, {ROWS}) -> tensor<4x4xf32>",
    "the size itself": f"%0 = stablehlo.get_dimension_size %x, dim = 0 : ({ROWS}) -> tensor<i32>",
    "the order": f"%0 = stablehlo.reverse %x, dims = [0] : {ROWS}",
    "two joined": f"%0 = stablehlo.concatenate %x, %x, dim = 0 : ({ROWS}, {ROWS}) -> {ROWS}",
}


@pytest.mark.parametrize("name", LEAKS)
def test_padding_that_would_leak_is_refused(name: str) -> None:
    body = LEAKS[name]
    result = body.rpartition("-> ")[2] if "->" in body else body.rpartition(": ")[2]
    text = f"func.func @main(%x: tensor<?x4xf32>) -> {result} {{\n{body}\nreturn %0 : {result}\n}}"
    with pytest.raises(UnsupportedError, match="padding along d0 would change results"):
        PjrtEngine().compile(program(text), buckets={"d0": [8]})


def test_rows_may_be_padded_and_what_is_reduced_may_not(seed: int) -> None:
    text = """func.func @main(%x: tensor<?x?x6xf32>) -> tensor<?x6xf32> {
      %c = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %m = stablehlo.reduce(%x init: %c) applies stablehlo.maximum across dimensions = [1]
        : (tensor<?x?x6xf32>, tensor<f32>) -> tensor<?x6xf32>
      %e = stablehlo.exponential %m : tensor<?x6xf32>
      return %e : tensor<?x6xf32>
    }"""
    engine = PjrtEngine()
    x = np.random.default_rng(seed).standard_normal((3, 5, 6)).astype(np.float32)
    executable = engine.compile(program(text), buckets={"d0": [4]})
    (y,) = executable(x)
    assert executable.compilations[0].sizes == {"d0": 4, "d1": 5}
    np.testing.assert_allclose(np.asarray(y), np.exp(x.max(1)), rtol=1e-6)
    with pytest.raises(UnsupportedError, match="padding along d1"):
        engine.compile(program(text), buckets={"d1": [8]})


def test_sizes_that_break_what_was_taken_for_granted_are_named(seed: int) -> None:
    text = """func.func @main(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
      %0 = stablehlo.add %x, %y : tensor<?xf32>
      return %0 : tensor<?xf32>
    }"""
    executable = PjrtEngine().compile(program(text))
    np.testing.assert_array_equal(executable(np.ones(3, np.float32), np.ones(3, np.float32))[0].numpy(), [2, 2, 2])
    with pytest.raises(SizeError):
        executable(np.ones(3, np.float32), np.ones(2, np.float32))


# ---- donation ----


@pytest.mark.parametrize("isolate", [False, True])
def test_a_donated_buffer_is_used_up(isolate: bool) -> None:
    engine = PjrtEngine(isolate=isolate)
    executable = engine.compile(program(TWICE), donate=["x"])
    assert executable.memory().aliased == 16
    x = np.arange(4, dtype=np.float32)
    placed: Any = engine.put(HostBuffer.of(x))
    np.testing.assert_array_equal(executable(placed, x, keep=True)[0].numpy(), x**2)
    np.testing.assert_array_equal(placed.numpy(), x)
    with pytest.raises(RunError, match="given twice"):
        executable(placed, placed)
    np.testing.assert_array_equal(executable(placed, x)[0].numpy(), x**2)
    with pytest.raises(RunError, match="was donated as the input 'x'"):
        placed.numpy()
    with pytest.raises(RunError, match="was donated as the input 'x'"):
        executable(placed, x)
    with pytest.raises(RunError, match="only inputs can be donated"):
        engine.compile(program(TWICE), donate=["z"])


# ---- buffers ----


def test_a_deleted_buffer_frees_its_memory_and_cannot_be_used() -> None:
    engine = PjrtEngine()
    gc.collect()
    before = engine.stats()["bytes_in_use"]
    with engine.put(HostBuffer.of(np.ones(1 << 16, np.float32))) as placed:  # type: ignore[attr-defined]
        assert engine.stats()["bytes_in_use"] == before + (4 << 16)
    assert engine.stats()["bytes_in_use"] == before
    placed.delete()
    with pytest.raises(RunError, match="was deleted"):
        placed.numpy()


def test_read_only_arrays_are_shared_and_others_are_not() -> None:
    engine = PjrtEngine()
    array = np.zeros(1 << 12, np.float32)
    placed = engine.put(HostBuffer.of(array))
    array[0] = 1
    assert placed.numpy()[0] == 0
    frozen = array.copy()
    frozen.flags.writeable = False
    assert engine.put(HostBuffer.of(frozen)).numpy()[0] == 1


class CopyingClient(pjrt.Client):
    """A client of the processor that copies what it gets, as a bus does."""

    def put(self, array: Any, shape: Any, *, shared: bool = False) -> Any:
        return super().put(array, shape)


@pytest.mark.parametrize("largest", [36 << 10, 64 << 10])
def test_a_stage_brings_tensors_of_all_sizes(
    tmp_path: Path, seed: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pjrt, "STAGING", 32 << 10)
    monkeypatch.setattr(pjrt, "LARGEST", largest)  # the largest tensor below goes the plain way, or not
    monkeypatch.setattr(pjrt, "PART", 1 << 10)
    random = np.random.default_rng(seed)
    sizes = [*random.integers(1, 12 << 10, 40), 32 << 10, 40 << 10, 0]
    arrays = {f"x{i}": random.integers(0, 256, int(size), np.uint8) for i, size in enumerate(sizes)}
    write(tmp_path / "x.safetensors", arrays)
    client = CopyingClient()

    class Bus:
        def stage(self, largest: int) -> Any:
            return pjrt.Stage(client, largest)

    placed = smelt.open(tmp_path / "x.safetensors").to_device(Bus())
    for name, array in arrays.items():
        np.testing.assert_array_equal(placed[name].numpy(), array)


def test_a_stage_raises_what_a_read_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pjrt, "STAGING", 32 << 10)
    monkeypatch.setattr(pjrt, "PART", 1 << 10)
    path = tmp_path / "x.safetensors"
    write(path, {"x": np.ones(2 << 10, np.uint8)})
    stored = smelt.open(path).find("x")
    with path.open("r+b") as file:
        file.truncate(100)
    with pjrt.Stage(CopyingClient(), stored.nbytes) as stage, pytest.raises(FileError, match="ends early"):
        stage(stored)


# ---- files ----


@pytest.mark.parametrize("isolate", [False, True])
def test_serialised_programs_run_again_without_compiling(seed: int, isolate: bool) -> None:
    engine = PjrtEngine(isolate=isolate)
    weights, x = values(seed), rows(seed, 3)
    executable = engine.compile(program(LINEAR)).prepare(weights)
    executable(x)
    data = executable.serialize()
    again = engine.deserialize(data)
    assert again.signature == executable.signature
    bound = again.prepare(weights)
    np.testing.assert_array_equal(bound(x)[0].numpy(), executable(x)[0].numpy())
    assert bound.compilations == ()
    y = rows(seed, 4)
    np.testing.assert_allclose(bound(y)[0].numpy(), y @ weights["w"].T + weights["b"], rtol=1e-5, atol=1e-6)
    assert len(bound.compilations) == 1


def test_files_from_elsewhere_and_damaged_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = PjrtEngine()
    data = engine.compile(program(TWICE)).serialize()
    with pytest.raises(ParseError, match="not a serialised executable"):
        engine.deserialize(b"nonsense")
    for at in (len(data) // 2, len(data) - 1, 20):
        with pytest.raises(ParseError, match="damaged"):
            engine.deserialize(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(ParseError, match="damaged"):
        engine.deserialize(data[:-5])
    monkeypatch.setattr(pjrt.Client, "version", "jaxlib 9.9")
    with pytest.raises(DeviceError, match="another version"):
        engine.deserialize(data)


# ---- isolation, loss ----


def test_a_program_that_aborts_xla_ends_the_worker_alone() -> None:
    engine = PjrtEngine(isolate=True)
    good = engine.compile(program(TWICE))
    x = np.ones(4, np.float32)
    placed = engine.put(HostBuffer.of(x))
    with pytest.raises(DeviceLost, match="died") as caught:
        engine.compile(program(ABORTS))(x)[0].numpy()
    assert caught.value.got in ("SIGABRT", "SIGSEGV")
    for use in (lambda: good(x, x), placed.numpy):
        with pytest.raises(DeviceLost):
            use()
    np.testing.assert_array_equal(engine.compile(program(TWICE))(x, x)[0].numpy(), x)


def test_a_killed_worker_is_lost_and_a_new_platform_works() -> None:
    chosen = platform(isolate=True)
    engine: Any = chosen.engine
    executable = engine.compile(program(TWICE))
    x = np.ones(4, np.float32)
    os.kill(engine.client.process, signal.SIGKILL)
    with pytest.raises(DeviceLost) as caught:
        executable(x, x)
    assert caught.value.got == "SIGKILL"
    again: Any = platform(isolate=True).engine
    np.testing.assert_array_equal(again.compile(program(TWICE))(x, x)[0].numpy(), x)


def test_a_lost_device_is_told_from_other_failures_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime's own words for a device that is gone, from where it would say them."""
    engine = PjrtEngine()
    executable = engine.compile(program(TWICE))
    x = np.ones(4, np.float32)
    loaded = executable._program().find_program(())
    first = engine.client
    said = {
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 byte": (RunError, "no memory left"),
        "INVALID_ARGUMENT: something else": (RunError, "XLA refuses the run"),
        "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access": (DeviceLost, "was lost"),
    }
    for words, (kind, message) in said.items():

        def fail(arguments: Any, words: str = words) -> Any:
            raise RuntimeError(words)

        monkeypatch.setattr(loaded, "_execute", fail)
        with pytest.raises(kind, match=message):
            executable(x, x)
        assert (engine.client is first) == (kind is not DeviceLost)
    again: Any = platform(engine="pjrt").engine
    np.testing.assert_array_equal(again.compile(program(TWICE))(x, x)[0].numpy(), x)


def test_threads_share_an_executable(seed: int) -> None:
    weights = values(seed)
    executable = PjrtEngine().compile(program(LINEAR)).prepare(weights)

    def call(count: int) -> bool:
        x = rows(seed, count)
        return bool(np.allclose(executable(x)[0].numpy(), x @ weights["w"].T + weights["b"], rtol=1e-5, atol=1e-6))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, [1, 2, 3, 1, 2, 3] * 10))
    assert sorted(each.sizes["d0"] for each in executable.compilations) == [1, 2, 3]


def test_a_worker_that_hangs_is_ended() -> None:
    text = """func.func @main(%x: tensor<i64>) -> tensor<i64> {
      %zero = stablehlo.constant dense<0> : tensor<i64>
      %one = stablehlo.constant dense<1> : tensor<i64>
      %0 = stablehlo.while(%a = %x) : tensor<i64>
      cond {
        %go = stablehlo.compare GE, %a, %zero : (tensor<i64>, tensor<i64>) -> tensor<i1>
        stablehlo.return %go : tensor<i1>
      } do {
        %next = stablehlo.add %a, %one : tensor<i64>
        stablehlo.return %next : tensor<i64>
      }
      return %0 : tensor<i64>
    }"""
    executable = PjrtEngine(isolate=True, timeout=3).compile(program(text))
    with pytest.raises(DeviceLost) as caught:
        executable(np.array(1))[0].numpy()
    assert caught.value.got == "no answer within 3 s"


def test_errors_of_the_worker_are_the_same_as_here() -> None:
    x = np.ones(4, np.float32)
    for engine in (PjrtEngine(), PjrtEngine(isolate=True)):
        with pytest.raises(UnsupportedError, match="XLA refuses the program"):
            engine.compile(program(ABORTS.replace("@TopK", "@nothing")))(x)


# ---- jaxlib ----


def test_an_unknown_version_is_tried_and_says_so_where_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pjrt, "version", lambda: "9.9.9")
    client = pjrt.Client()
    monkeypatch.delattr(client._jax, "array_result_handler")
    with pytest.raises(UnsupportedError, match="lacks a function") as caught:
        pjrt.Client()
    assert "0.10" in str(caught.value.expected)
    assert "9.9.9" in str(caught.value.got)


def test_without_jaxlib_the_engine_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pjrt, "version", lambda: None)
    assert 'pip install "smelt[xla]"' in str(PjrtEngine().missing())
    with pytest.raises(UnsupportedError, match="cannot run here"):
        platform(engine="pjrt")


def test_jax_itself_is_not_imported() -> None:
    code = (
        "import sys, numpy as np\n"
        "from smelt.ir.text import parse\n"
        "from smelt.engine.pjrt import PjrtEngine\n"
        f"x = np.ones(4, np.float32)\n"
        f"y = PjrtEngine().compile(parse({TWICE!r}))(x, x)[0].numpy()\n"
        "assert y.tolist() == [1, 1, 1, 1]\n"
        "assert 'jax' not in sys.modules, 'jax was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ---- checks ----

CHECKED = """
func.func @main(%x: tensor<4xf32>, %limit: tensor<f32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %holds = stablehlo.compare LE, %sum, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
  stablehlo.custom_call @smelt.check(%holds, %sum) {error_message = "a sum of {0}", has_side_effect = true}
    : (tensor<i1>, tensor<f32>) -> ()
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


NEGATE = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.mark.parametrize("isolate", [False, True])
def test_a_check_that_fails_is_raised_where_a_result_is_read(isolate: bool) -> None:
    engine = PjrtEngine(isolate=isolate)
    executable = engine.compile(program(CHECKED))
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(executable(x, np.float32(6))[0].numpy(), -x)
    (result,) = executable(x, np.float32(5))
    for read in (result.wait, result.numpy):
        with pytest.raises(RunError, match="a sum of 6"):
            read()
    negate = engine.compile(program(NEGATE))
    for later in (result.copy, lambda: negate(*negate(result))[0]):  # results of a program without checks
        with pytest.raises(RunError, match="a sum of 6"):
            later().numpy()
    np.testing.assert_array_equal(negate(*executable(x, np.float32(6)))[0].numpy(), x)
    again = engine.deserialize(executable.serialize())
    with pytest.raises(RunError, match="a sum of 6"):
        again(x, np.float32(5))[0].numpy()


# ---- as one of the engines ----


def test_the_engine_is_found_by_name() -> None:
    assert [engine.name for engine in ENGINES] == ["native", "pjrt", "reference"]
    assert str(platform(engine="pjrt")) == "pjrt on cpu"
    with pytest.raises(UnsupportedError, match="no engine can run here"):
        platform("cuda:7")
    assert platform(engine="pjrt").stats()["bytes_in_use"] >= 0
    assert platform(engine="reference").stats()["peak_bytes_in_use"] > 0


def test_a_model_runs_on_it_and_gives_arrays(tmp_path: Path, seed: int) -> None:
    path = Path(smelt.__path__[0]) / "assets" / "digits.onnx"
    pixels = np.load(path.with_name("digits_test.npz"))
    x = pixels[pixels.files[0]][:5].astype(np.float32)
    ours, theirs = smelt.load(path, engine="pjrt"), smelt.load(path, engine="reference")
    (name,) = (port.name for port in ours.signature.inputs)
    for output, array in theirs(**{name: x}).items():
        found = ours(**{name: x})[output]
        assert isinstance(found, np.ndarray)
        assert found.flags.writeable
        np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["attention.dynamo16", "bert.script14", "lstm.dynamo16", "quantised.dynamic_s8", "rms_norm.dynamo18"]
)
def test_networks_agree_with_onnxruntime(name: str, seed: int) -> None:
    """What is recognised as one kernel elsewhere is plain ops here, and checks of indices are results."""
    pytest.importorskip("onnxruntime")
    path = Path(__file__).parents[2] / "fixtures" / "spellings" / f"{name}.onnx"
    session = onnx_oracle.session(path)
    random = np.random.default_rng(seed)
    given = {}
    for port in session.get_inputs():
        sizes = [size if isinstance(size, int) else 2 for size in port.shape]
        if port.type == "tensor(float)":
            given[port.name] = random.standard_normal(sizes).astype(np.float32)
        else:
            given[port.name] = random.integers(0, 2, sizes).astype(np.int64)
    expected = session.run(None, given)
    found = smelt.load(path, engine="pjrt").run(given)
    for port, array in zip(session.get_outputs(), expected, strict=True):
        np.testing.assert_allclose(found[port.name], array, rtol=1e-4, atol=1e-5)


def test_the_example_runs() -> None:
    script = Path(__file__).parents[3] / "examples" / "gpu_pjrt.py"
    command = [sys.executable, str(script), "--device", "cpu", "--megabytes", "32"]
    place = {**os.environ, "PYTHONPATH": str(script.parents[1])}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200, env=place)
    assert "was donated as the input 'state'" in done.stdout
    assert "0 compilations after loading" in done.stdout


def test_quantised_types_become_integers(seed: int) -> None:
    text = """func.func @main(%x: tensor<5xf32>) -> tensor<5xf32> {
      %0 = stablehlo.uniform_quantize %x : (tensor<5xf32>) -> tensor<5x!quant.uniform<i8:f32, 0.5:1>>
      %1 = stablehlo.uniform_dequantize %0 : (tensor<5x!quant.uniform<i8:f32, 0.5:1>>) -> tensor<5xf32>
      return %1 : tensor<5xf32>
    }"""
    x = np.array([0.1, 0.6, -3.3, 400, -400], np.float32)
    expected = (np.clip(np.rint(x / 0.5) + 1, -128, 127) - 1) * 0.5
    np.testing.assert_array_equal(PjrtEngine().compile(program(text))(x)[0].numpy(), expected)


def test_bf16_weights_are_bound_as_they_are(seed: int) -> None:
    text = TWICE.replace("f32", "bf16").replace("%y: tensor<4xbf16>", '%y: tensor<4xbf16> {smelt.weight = "y"}')
    y = np.arange(4).astype(ml_dtypes.bfloat16)
    executable = PjrtEngine().compile(program(text)).prepare({"y": y})
    x = np.full(4, 3, ml_dtypes.bfloat16)
    np.testing.assert_array_equal(executable(x)[0].numpy(), x * y)
    assert executable._first is not None
    assert executable._first.computed.compilations == []
