"""Memory that is known before anything is loaded: against what the runtime library then takes, and limits on it."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from smelt.buffer import bytes_text, parse_bytes
from smelt.device import cpu
from smelt.dim import evaluate, parse_size
from smelt.dtype import Array
from smelt.engine.compile import plan_program
from smelt.engine.native import NativeEngine
from smelt.errors import MemoryLimitError, SmeltError, UnsupportedError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.model import load, model_of
from smelt.run.executable import NativeExecutable
from smelt.shape import Shape
from smelt.weights import Stored, Weights

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

DIGITS = Path(__file__).parents[3] / "smelt" / "assets" / "digits.onnx"
WEIGHTED = """func.func @main(%w: tensor<64x48xf32> {smelt.weight = "w"}, %x: tensor<?x64xf32, #smelt.sizes<B, 64>>)
    -> tensor<?x48xf32, #smelt.sizes<B, 48>> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<?x64xf32, #smelt.sizes<B, 64>>, tensor<64x48xf32>) -> tensor<?x48xf32, #smelt.sizes<B, 48>>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1]
    : (tensor<?x48xf32, #smelt.sizes<B, 48>>, tensor<64x48xf32>) -> tensor<?x64xf32, #smelt.sizes<B, 64>>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0]
    : (tensor<?x64xf32, #smelt.sizes<B, 64>>, tensor<64x48xf32>) -> tensor<?x48xf32, #smelt.sizes<B, 48>>
  return %2 : tensor<?x48xf32, #smelt.sizes<B, 48>>
}
"""


def refuse() -> Array:
    raise AssertionError("a weight was loaded")


def unread() -> Weights:
    """Weights that must not be read."""
    return Weights({"w": Stored(Shape("f32", 64, 48), refuse)})


@pytest.mark.parametrize("batch", [1, 5, 300])
def test_a_call_takes_what_was_foreseen(batch: int, seed: int) -> None:
    program = parse(WEIGHTED)
    footprint = plan_program(program).footprint
    random = np.random.default_rng(seed)
    w, x = (random.standard_normal(sizes).astype(np.float32) for sizes in ((64, 48), (batch, 64)))
    executable = NativeEngine().compile(program).prepare(Weights.of({"w": w}))
    (result,) = executable(x)
    assert isinstance(executable, NativeExecutable)
    held = executable.memory
    assert held is not None
    parts = footprint.parts({"B": batch})
    assert parts["weights"] == w.nbytes
    assert parts["bound"] == held.bound
    assert parts["temporaries"] <= held.arenas < parts["temporaries"] + 3 * 4096  # the library takes whole pages
    assert parts["results"] == result.nbytes
    assert footprint.peak({"B": batch}) == sum(parts.values()) - min(
        parts["weights"] + parts["preparation"], parts["temporaries"] + parts["results"]
    )


@pytest.mark.parametrize("batch", [1, 2, 7, 1000])
def test_the_formula_is_the_number(batch: int) -> None:
    footprint = plan_program(parse(WEIGHTED)).footprint
    assert footprint.symbols == ("B",)
    assert evaluate(parse_size(footprint.text()), {"B": batch}) == footprint.peak({"B": batch})


@pytest.mark.parametrize(("first", "second"), [(1, 1), (9, 2), (2, 9)])
def test_the_formula_of_buffers_that_share_memory(first: int, second: int) -> None:
    """Two temporaries of unrelated sizes, one after the other: the larger of both counts."""
    program = parse("""func.func @main(%w: tensor<64x48xf32>, %x: tensor<?x64xf32, #smelt.sizes<B, 64>>,
        %y: tensor<?x64xf32, #smelt.sizes<C, 64>>) -> (tensor<?x64xf32, #smelt.sizes<B, 64>>,
        tensor<?x64xf32, #smelt.sizes<C, 64>>) {
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<?x64xf32, #smelt.sizes<B, 64>>, tensor<64x48xf32>) -> tensor<?x48xf32, #smelt.sizes<B, 48>>
      %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1]
        : (tensor<?x48xf32, #smelt.sizes<B, 48>>, tensor<64x48xf32>) -> tensor<?x64xf32, #smelt.sizes<B, 64>>
      %2 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0]
        : (tensor<?x64xf32, #smelt.sizes<C, 64>>, tensor<64x48xf32>) -> tensor<?x48xf32, #smelt.sizes<C, 48>>
      %3 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [1]
        : (tensor<?x48xf32, #smelt.sizes<C, 48>>, tensor<64x48xf32>) -> tensor<?x64xf32, #smelt.sizes<C, 64>>
      return %1, %3 : tensor<?x64xf32, #smelt.sizes<B, 64>>, tensor<?x64xf32, #smelt.sizes<C, 64>>
    }
    """)
    footprint = plan_program(program).footprint
    assert 2 in map(len, footprint.main[1].slots)
    sizes = {"B": first, "C": second}
    assert evaluate(parse_size(footprint.text()), sizes) == footprint.peak(sizes)
    parts = footprint.parts(sizes)
    assert [parts[name] for name in ("weights", "bound", "preparation")] == [0, 0, 0]  # nothing is prepared


def test_too_large_a_model_is_refused_before_its_weights_are_read() -> None:
    program = parse(WEIGHTED)
    peak = plan_program(program).footprint.peak({"B": 100})
    with pytest.raises(MemoryLimitError) as caught:
        model_of(program, unread(), engine="native", memory_limit=peak - 1, sizes={"B": 100})
    said = str(caught.value)
    assert f"at most {bytes_text(peak - 1)}" in said
    assert "B=100" in said
    assert "weight w: f32[64, 48]" in said
    with pytest.raises(AssertionError, match="a weight was loaded"):
        model_of(program, unread(), engine="native", memory_limit=peak, sizes={"B": 100})


def test_a_call_that_needs_more_is_refused(seed: int) -> None:
    program = parse(WEIGHTED)
    w = np.random.default_rng(seed).standard_normal((64, 48)).astype(np.float32)
    peak = plan_program(program).footprint.peak({"B": 1000})
    model = model_of(program, Weights.of({"w": w}), memory_limit=peak)
    assert model.engine == "native"
    x = np.ones((1000, 64), np.float32)
    np.testing.assert_allclose(model(x=x)["result0"], x @ w @ w.T @ w, rtol=1e-4)
    with pytest.raises(MemoryLimitError, match="more memory than allowed"):
        model(x=np.ones((1001, 64), np.float32))
    assert model(x=x)["result0"].shape == (1000, 48)


def test_limits_in_words() -> None:
    assert load(DIGITS, memory_limit="1MB").kernels
    with pytest.raises(MemoryLimitError):
        load(DIGITS, memory_limit="10KB")
    with pytest.raises(SmeltError, match="memory_limit is not understood"):
        load(DIGITS, memory_limit="a little")
    with pytest.raises(UnsupportedError, match="keeps to no memory limit"):
        load(DIGITS, memory_limit="1MB", engine="reference")


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("1B", 1), ("2 KB", 2000), ("2KiB", 2048), ("1.5GB", 1_500_000_000), ("3TiB", 3 << 40)],
)
def test_amounts_of_memory(text: str, count: int) -> None:
    assert parse_bytes(text) == count


# ---- what runs the ops ----


def test_every_op_has_a_kernel() -> None:
    native, reference = load(DIGITS), load(DIGITS, engine="reference")
    assert native.engine == "native"
    assert not [use for use in native.kernels if use.kind == "numpy"]
    assert {"smelt.packed_dot", "stablehlo.exponential"} <= {op for use in native.kernels for op in use.ops}
    assert all(use.count >= 1 for use in native.kernels)
    assert {use.kind for use in reference.kernels} == {"numpy"}


def test_an_engine_that_is_passed_over_is_said(caplog: pytest.LogCaptureFixture) -> None:
    f = FuncBuilder("main", [Shape("f32", 4)], ["x"])
    counted = f.op("stablehlo.custom_call", *f.args, result=Shape("f32", 4), call_target_name="smelt.nobody_knows_this")
    program = Program.of(f.func(counted.result))
    with (
        caplog.at_level(logging.WARNING, "smelt"),
        pytest.raises(UnsupportedError, match="nobody_knows_this has no implementation"),
    ):
        model_of(program, Weights({}))(np.zeros(4, np.float32))
    assert any(
        "native" in record.getMessage() and "nobody_knows_this" in record.getMessage() for record in caplog.records
    )
