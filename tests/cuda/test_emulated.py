"""Generated CUDA, run by the emulator: random kernels of every kind, small models, control flow, sizes, buffers."""

from __future__ import annotations

import gc
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import smelt
import smelt.llm
from smelt.buffer import HostBuffer
from smelt.cli.main import app
from smelt.device import cpu, dlpack
from smelt.device.cuda import TARGETS
from smelt.device.gpu_buffer import GpuBuffer
from smelt.device.host_plan import list_launches
from smelt.dtype import Array, bf16, dtype
from smelt.engine import tune as tuning
from smelt.engine import tuned
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine, compile_all
from smelt.engine.profile import profile
from smelt.engine.reference import ReferenceEngine
from smelt.engine.store import recompile
from smelt.errors import RunError, ShapeError, SizeError, SmeltError
from smelt.ir.blocks import BLOCKS, TABLE
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.build import attention_simt, paged_attention_simt
from smelt.kernel.emit import kernel_cuda
from smelt.kernel.loops.tensor_tile import tile_ahead
from smelt.kernel.tune.schedules import TENSOR_TILES, TensorTile, legal_schedules
from smelt.llm import cache, checkpoint
from smelt.llm.config import PAGE
from smelt.llm.step import step_program
from smelt.passes.lower_blocks import round_activations
from smelt.run.executable import NativeExecutable
from smelt.run.load import every_code
from smelt.serve.config import ModelConfig
from smelt.serve.kernels import SampledModel
from smelt.shape import Shape
from smelt.target import Target, tile_shape
from smelt.weights import Weights
from tests.cuda.emulated import EmulatedCuda
from tests.llm_checkpoints import FIXTURE, TOLERANCE, Case, write_checkpoint
from tests.llm_quantised import FIXTURE as QUANTISED
from tests.llm_quantised import write_quantised
from tests.property.models import MODELS
from tests.property.problems import KINDS, Problem, difference, draw, edges
from tests.unit.ir import test_paged_attention_op as paged
from tests.unit.kernel import test_block_dot
from tests.unit.kernel import test_data_dependent_sizes as sized

DIGITS = "smelt/assets/digits.onnx"
SMALL = 3_000  # elements: an emulated thread is slow


def sample(seed: int, each: int) -> list[Problem]:
    """Edge cases and random ones of every kind, small ones."""
    found = edges()
    for kind in KINDS:
        random = np.random.default_rng([seed, *kind.encode()])
        drawn = (draw(kind, random) for _ in range(100))
        small = (problem for problem in drawn if problem.terms * sum(arg.size for arg in problem.args) <= 20 * SMALL)
        found += [problem for problem, _ in zip(small, range(each), strict=False)]
    return found


def test_kernels_of_every_kind(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cuda, "MANY", 300)  # elements from which on a thread computes several of a map
    problems = sample(seed, 2)
    programs = [problem.make(False) for problem in problems]
    here = cpu.target()
    wanted: list[Any] = compile_all(programs, here) if "fma" in here.features else [None] * len(programs)
    for problem, made, on_cpu in zip(problems, compile_all(programs, emulated.target()), wanted, strict=True):
        assert not isinstance(made, SmeltError), f"{problem.name}: {made}"
        got = made(*problem.args)[0].numpy()
        assert not difference(problem, got)
        if on_cpu is not None:
            np.testing.assert_array_equal(got, on_cpu(*problem.args)[0], problem.name)


def bf16_product(rows: int | str, depth: int, columns: int, left: str) -> str:
    """Rows, of a number that may be dynamic, by bf16 weights."""
    x, w, wide = (
        f"tensor<{rows}x{depth}x{left}>",
        f"tensor<{depth}x{columns}xbf16>",
        f"tensor<{depth}x{columns}x{left}>",
    )
    result = f"tensor<{rows}x{columns}xf32>"
    return f"""func.func @main(%x: {x}, %w: {w} {{smelt.weight = "w"}}) -> {result} {{
  %0 = stablehlo.convert %w : ({w}) -> {wide}
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : ({x}, {wide}) -> {result}
  return %1 : {result}
}}"""


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
@pytest.mark.parametrize("left", ["bf16", "f32"])
def test_bf16_weights_on_tensor_cores(machine: str, left: str, emulated: EmulatedCuda, seed: int) -> None:
    """Few rows, many and any number of them; sizes that fill no tile; rows that are not aligned; infinities. Within a
    form, the bits of a row do not depend on how many there are."""
    random = np.random.default_rng(seed)
    kind = dtype(left).numpy
    forms = (8, 64) if (machine, left) == ("sm_90", "bf16") else (32,)
    for depth, columns, counts in ((333, 130, (1, 20, 5, 60, 140)), (96, 300, (40, 3, 12))):
        w = random.standard_normal((depth, columns), np.float32).astype(dtype("bf16").numpy)
        program = parse(bf16_product("?", depth, columns, left))
        made = NativeEngine(TARGETS[machine]).compile(program).prepare(Weights.of({"w": HostBuffer.of(w)}))
        rows = random.standard_normal((max(counts), depth), np.float32).astype(kind)
        want = rows.astype(np.float64) @ w.astype(np.float64)
        same: dict[int, list[Any]] = {}
        for count in counts:
            got = made(rows[:count])[0].numpy()
            assert np.abs(got - want[:count]).max() <= 4e-6 * np.abs(want).max()
            same.setdefault(next((each for each in forms if count <= each), 0), []).append(got)
        assert max(map(len, same.values())) > 1
        for first, *others in (each for most, each in same.items() if most):
            for got in others:
                least = min(len(got), len(first))
                np.testing.assert_array_equal(got[:least], first[:least])
    odd = np.ones((2, depth), np.float32)
    odd[:, 5] = np.inf, np.nan
    assert [*map(str, made(odd.astype(kind))[0].numpy()[:, 0])] == [str(np.float32(np.inf * np.sign(w[5, 0]))), "nan"]
    w[7, 3], w[8, 4], w[9, 5] = np.inf, -np.inf, np.nan
    made = NativeEngine(TARGETS[machine]).compile(program).prepare(Weights.of({"w": HostBuffer.of(w)}))
    for count in (3, 40):
        some = np.round(rows[:count].astype(np.float32), 1).astype(kind)  # 0 among them
        with np.errstate(invalid="ignore"):
            want = some.astype(np.float64) @ w.astype(np.float64)
        got = made(some)[0].numpy()
        np.testing.assert_array_equal(got[:, 3:6], want[:, 3:6])
        assert np.isfinite(np.delete(got, (3, 4, 5), 1)).all()


CONVOLUTION = """func.func @main(%x: tensor<1x5x6x48xf32>, %w: tensor<3x3x48x70xf32> {smelt.weight = "w"})
    -> tensor<1x5x6x70xf32> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x5x6x48xf32>, tensor<3x3x48x70xf32>) -> tensor<1x5x6x70xf32>
  %1 = stablehlo.negate %0 : tensor<1x5x6x70xf32>
  return %1 : tensor<1x5x6x70xf32>
}"""
FEW_TILES = {
    "product": (bf16_product(20, 300, 100, "f32").replace("bf16", "f32"), (20, 300), (300, 100)),
    "convolution": (CONVOLUTION, (1, 5, 6, 48), (3, 3, 48, 70)),
}


@pytest.mark.races
@pytest.mark.parametrize("kind", [*FEW_TILES])
def test_few_tiles_are_split_along_k(kind: str, emulated: EmulatedCuda, seed: int) -> None:
    """K-blocks on blocks of their own: the bits of a processor."""
    text, *shapes = FEW_TILES[kind]
    random = np.random.default_rng(seed)
    x, w = (random.standard_normal(sizes, np.float32) for sizes in shapes)
    there, here, wanted = (
        engine.compile(parse(text)).prepare(Weights.of({"w": HostBuffer.of(w)}))
        for engine in (NativeEngine(emulated.target()), NativeEngine(cpu.target()), ReferenceEngine())
    )
    before = emulated.emulated.launches
    got = there(x)[0].numpy()
    assert emulated.emulated.launches >= before + 2
    np.testing.assert_allclose(got, np.asarray(wanted(x)[0]), rtol=1e-4, atol=1e-4)
    if "fma" in cpu.target().features:
        np.testing.assert_array_equal(got, here(x)[0])


@pytest.mark.parametrize("name", [*MODELS])
def test_small_models(name: str, emulated: EmulatedCuda, seed: int) -> None:
    """Every model with dynamic dimensions, at several sizes, from one compilation."""
    model = MODELS[name]
    program, weights = model.dynamic_program(), model.values(seed)
    made = NativeEngine(emulated.target()).compile(program).prepare(weights)
    wanted = ReferenceEngine().compile(program).prepare(weights)
    random = np.random.default_rng(seed)
    for sizes in sorted(model.tried, key=lambda tried: np.prod([*tried.values()]))[:4]:
        args = model.arguments(random, sizes)
        for got, want in zip(made(*args), wanted(*args), strict=True):
            np.testing.assert_allclose(got.numpy(), np.asarray(want), rtol=2e-4, atol=1e-5)


def test_digits(emulated: EmulatedCuda) -> None:
    pixels = np.random.default_rng(3).random((5, 64), np.float32)
    expected = smelt.load(DIGITS, engine="reference")(pixels)["probabilities"]
    with smelt.load(DIGITS, device="cuda", engine="native", memory_limit="64MB") as model:
        np.testing.assert_allclose(model(pixels)["probabilities"], expected, rtol=1e-5, atol=1e-7)
    with pytest.raises(SmeltError, match="memory"):
        smelt.load(DIGITS, device="cuda", engine="native", memory_limit="10KB")


def test_state_stays_on_the_device(emulated: EmulatedCuda) -> None:
    def step(state: smelt.Tensor, weight: smelt.Tensor) -> smelt.Tensor:
        return state + weight

    shape = Shape("f32", 8)
    where = smelt.platform("cuda", "native")
    added = smelt.compile(step, shape, shape, platform=where, donate="state")
    state: Any = HostBuffer.of(np.zeros(8, np.float32)).to_device(where)
    weight = HostBuffer.of(np.arange(8, dtype=np.float32)).to_device(where)
    for _ in range(3):
        used, state = state, added(state, weight)
    np.testing.assert_array_equal(state.numpy(), 3 * np.arange(8))
    with pytest.raises(RunError, match="donated"):
        used.numpy()
    kept = added(state, weight, keep=True)
    np.testing.assert_array_equal(kept.numpy() - state.numpy(), np.arange(8))
    both: Any = emulated.copy_all([np.zeros(8, np.float32), np.ones(8, np.float32)])
    with pytest.raises(RunError, match="donated and given twice"):
        added(*both)  # parts of one block: who takes one takes both
    np.testing.assert_array_equal(added(state, both[1]).numpy(), 3 * np.arange(8) + 1)


def test_several_small_arrays_in_one_copy(emulated: EmulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays: list[Any] = [np.arange(5, dtype=np.int32), np.ones((3, 1), np.float32), np.zeros((0, 2), np.int8)]
    arrays.append(np.array([[7]], np.int32))
    uploads: list[int] = []
    plain = emulated.emulated.upload

    def upload(address: int, array: Any) -> None:
        uploads.append(address)
        plain(address, array)

    monkeypatch.setattr(emulated.emulated, "upload", upload)
    made: Any = emulated.copy_all(arrays)
    assert len(uploads) == 1
    for array, buffer in zip(arrays, made, strict=True):
        np.testing.assert_array_equal(buffer.numpy(), array)
        assert buffer.dtype == array.dtype
        assert buffer.address % 16 == 0


def test_a_copy_to_the_host_that_began_earlier(emulated: EmulatedCuda) -> None:
    """It has what the buffer held then; another call's `out` has the new contents."""

    def double(x: smelt.Tensor) -> smelt.Tensor:
        return x + x

    made: Any = smelt.compile(double, Shape("f32", 4), platform=smelt.platform("cuda", "native"))
    result = made(np.ones(4, np.float32)).copy_to_host()
    emulated.emulated.upload(result.address, np.zeros(4, np.float32))
    assert result.numpy().tolist() == [2] * 4  # the copy
    assert result.numpy().tolist() == [0] * 4  # the next one reads anew
    result.copy_to_host()
    (again,) = made.compiled._bound((np.full(4, 3, np.float32),), (result,))
    assert again.numpy().tolist() == [6] * 4
    larger = again.enlarge(7)
    assert larger.numpy().tolist() == [6] * 4 + [0] * 3
    result.copy_to_host().delete()
    with pytest.raises(RunError, match="deleted"):
        result.numpy()
    with pytest.raises(ShapeError):
        made(np.ones(4, np.float32)).copy_from(emulated.copy_all([np.ones(3, np.float32)])[0])


def test_memory_is_shared_by_dlpack(emulated: EmulatedCuda) -> None:
    """An array that another library gives is used where it is, and lives until its last user is gone."""

    class Theirs:
        """Stands for an array of torch or CuPy on the device."""

        def __init__(self, buffer: GpuBuffer) -> None:
            self.buffer = buffer

        def __dlpack__(self, stream: int | None) -> Any:
            return self.buffer.__dlpack__(stream=stream)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.buffer.__dlpack_device__()

    class Copied(Theirs):
        """A library that knows no streams, and copies."""

        def __dlpack__(self) -> Any:  # type: ignore[override]
            return self.buffer.__dlpack__(copy=True)

    driver = emulated.emulated
    (made,) = compile_all([parse(ADD)], emulated.target())
    assert not isinstance(made, SmeltError)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    ours = GpuBuffer.of(driver, x, Shape("f32", 2, 3))
    np.testing.assert_array_equal(made(Theirs(ours))[0].numpy(), x + x)
    ours_to_ours = [("hand over", 4242), ("keep", None), ("follow", 4242)]
    assert driver.streams == ours_to_ours  # theirs before the call; then memory that a running call may read
    driver.streams.clear()
    lent = GpuBuffer.from_dlpack(driver, ours, "x")
    assert lent.address == ours.address
    address, before = ours.address, len(dlpack._exported)
    ours.delete()
    np.testing.assert_array_equal(lent.numpy(), x)
    assert address in driver.held
    lent.delete()
    assert address not in driver.held
    assert len(dlpack._exported) == before - 1
    driver.streams.clear()
    unused = GpuBuffer.of(driver, x, Shape("f32", 2, 3)).__dlpack__(stream=7, max_version=(1, 0))
    del unused
    assert driver.streams == [("hand over", 7), ("follow", 7)]
    GpuBuffer.of(driver, x, Shape("f32", 2, 3)).__dlpack__(stream=-1)
    assert len(driver.streams) == 2
    whole = GpuBuffer.of(driver, np.arange(7, dtype=np.float32), Shape("f32", 7))
    part = GpuBuffer(driver, Shape("f32", 6), whole.block, 4)  # as a slice of a tensor: kernels read 16 bytes at once
    aligned = GpuBuffer.from_dlpack(driver, part, "x")
    assert (part.address % 16, aligned.address % 16) == (4, 0)
    np.testing.assert_array_equal(aligned.numpy(), np.arange(1, 7))
    del whole, part, aligned
    driver.streams.clear()
    copied = GpuBuffer.from_dlpack(driver, Copied(ours := GpuBuffer.of(driver, x, Shape("f32", 2, 3))), "x")
    assert copied.address != ours.address
    np.testing.assert_array_equal(copied.numpy(), x)
    with pytest.raises(BufferError, match="copies it to the host"):
        ours.__dlpack__(dl_device=(1, 0))
    assert ours.__dlpack__(dl_device=(2, 0)) is not None
    del copied
    assert len(dlpack._exported) == before - 1
    with pytest.raises(ShapeError):
        made(Theirs(GpuBuffer.of(driver, x[:1], Shape("f32", 1, 3))))
    lent = GpuBuffer.from_dlpack(driver, ours, "x")
    ring: list[Any] = [lent]
    ring.append(ring)
    driver.streams.clear()
    del lent, ring
    gc.collect()
    assert driver.streams == [("keep", None), ("follow", 4242)], "a call may still read what garbage held"


ADD = """func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = stablehlo.add %x, %x : tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}"""


def test_bundles(emulated: EmulatedCuda, tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).random((2, 64), np.float32)
    with smelt.load(DIGITS, device="cuda") as model:
        assert model.engine == "native"
        expected = model(pixels)["probabilities"]
        model.save(tmp_path / "digits.smelt")
    assert not any(each.absent for each in every_code(tmp_path / "digits.smelt", recompile))
    with smelt.load(tmp_path / "digits.smelt", device="cuda") as model:
        np.testing.assert_array_equal(model(pixels)["probabilities"], expected)


@pytest.mark.parametrize("format", [row.name for row in TABLE])
def test_block_quantised_weights(format: str, emulated: EmulatedCuda, seed: int) -> None:
    """Sums of any number of rows have the same bits, and are those of the reference semantics up to their order."""
    row, columns = BLOCKS[format], 21
    blocks = 11 if row.length == 32 else 9  # a warp has one or two of them
    program = round_activations(test_block_dot.product(row, blocks, columns))
    w = test_block_dot.random_weights(row, columns, blocks, seed=seed)
    x = np.random.default_rng(seed).standard_normal((33, blocks * row.length), np.float32)
    (want,) = run(program, [x, w])
    (made,) = compile_all([program], emulated.target())
    assert not isinstance(made, SmeltError)
    *_, text = emit_source([plan_program(program, emulated.target())]).texts(1)
    launches = list_launches(json.loads(text)["programs"]["smelt0"]["steps"])
    large = tile_ahead(format, blocks, emulated.target().cache_bytes[0]) > 0
    assert sum("block_dot" in each["function"] for each in launches) == 4 + large  # for one row, few, some and many
    found = {rows: made(x[:rows], w)[0].numpy() for rows in (0, 1, 2, 9, 33)}
    for rows, got in found.items():
        np.testing.assert_array_equal(got, found[33][:rows])
    np.testing.assert_allclose(found[33], want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_block_quantised_weights_of_several_groups(emulated: EmulatedCuda, seed: int) -> None:
    row = BLOCKS["q4_k"]
    program = round_activations(test_block_dot.product(row, 1, 40, 3))
    w = test_block_dot.random_weights(row, 3, 40, 1, seed=seed)
    x = np.random.default_rng(seed).standard_normal((5, 3, row.length), np.float32)
    (made,) = compile_all([program], emulated.target())
    assert not isinstance(made, SmeltError)
    (want,) = run(program, [x, w])
    np.testing.assert_allclose(made(x, w)[0].numpy(), want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.races
def test_a_language_model(emulated: EmulatedCuda, tmp_path: Path) -> None:
    case = Case.load(FIXTURE)[0]
    write_checkpoint(tmp_path, case.config, case.shapes)
    with smelt.llm.load(tmp_path, device="cuda", engine="native", memory_limit="1GB") as model:
        assert model._step.memory(512, 1, 1, 3) > model._step.memory(1, 1, 1, 1) > 0
        logits = model.logits(case.tokens)
        assert np.abs(logits - case.logits).max() <= TOLERANCE * np.abs(case.logits).max()
        assert [*model.generate(case.tokens, max_tokens=3, ignore_end=True).ids] == case.ids[:3]


@pytest.mark.parametrize("name", ["starcoder2", "olmo2", "gemma3-multimodal"])
def test_language_models_of_other_parts(name: str, emulated: EmulatedCuda, tmp_path: Path) -> None:
    """LayerNorm, biases and a plain MLP with rotary positions; norms of whole rows of q and k; a text model's part."""
    case = next(case for case in Case.load(FIXTURE) if case.name == name)
    write_checkpoint(tmp_path, case.config, case.shapes)
    with smelt.llm.load(tmp_path, device="cuda", engine="native", memory_limit="1GB") as model:
        logits = model.logits(case.tokens)
        assert np.abs(logits - case.logits).max() <= TOLERANCE * np.abs(case.logits).max()
        assert [*model.generate(case.tokens, max_tokens=3, ignore_end=True).ids] == case.ids[:3]


def test_a_language_model_in_fp8(emulated: EmulatedCuda, tmp_path: Path) -> None:
    """Tensor cores multiply fp8, whose sums have 14 bits: operands near the middle of two numbers round otherwise, so
    logits are as far from exact ones as the reference's, not the same."""
    case = Case.load(FIXTURE)[0]
    write_checkpoint(tmp_path, case.config, case.shapes)
    plan = plan_program(step_program(checkpoint.open(tmp_path), "fp8"), emulated.target())
    assert "smelt_tile<smelt_fp8, " in emit_source([plan]).text()
    with smelt.llm.load(tmp_path, engine="reference", precision="fp8") as model:
        usual = np.abs(model.logits(case.tokens) - case.logits)
    with smelt.llm.load(tmp_path, device="cuda", engine="native", precision="fp8") as model:
        found = np.abs(model.logits(case.tokens) - case.logits)
        assert model.checkpoint.config.cache == bf16
    assert 0 < found.max() < 1.5 * usual.max()
    assert 0 < found.mean() < 1.5 * usual.mean()


@pytest.mark.parametrize("name", ["gptq-asymmetric", "gptq-ordered", "awq-experts"])
def test_a_quantised_folder(name: str, emulated: EmulatedCuda, tmp_path: Path) -> None:
    case = next(case for case in Case.load(QUANTISED) if case.name == name)
    write_quantised(tmp_path, name, case.config, case.shapes)
    with smelt.llm.load(tmp_path, device="cuda", engine="native", memory_limit="1GB") as model:
        assert np.abs(model.logits(case.tokens) - case.logits).max() <= 0.05 * np.abs(case.logits).max()


def test_steps_of_a_language_model_on_a_gpu(
    emulated: EmulatedCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is one copy to the device, one graph and one small copy back; few graphs serve a sequence that grows, and
    the tokens are those of the reference, also where the host chooses them."""
    case = Case.load(FIXTURE)[0]
    write_checkpoint(tmp_path, case.config, case.shapes)
    driver, called = emulated.emulated, Counter[str]()

    def count_calls(name: str) -> None:
        plain = getattr(driver, name)
        monkeypatch.setattr(driver, name, lambda *given: (called.update([name]), plain(*given))[1])

    for name in ("upload", "download", "begin_download", "record"):
        count_calls(name)
    with smelt.llm.load(tmp_path, device="cuda", engine="native", memory_limit="1GB") as model:
        monkeypatch.setattr(cache, "SMALLEST", 1)
        first = model.generate(case.tokens, max_tokens=2 * PAGE, ignore_end=True)  # allocates the pages
        assert called["download"] == 0  # what pages held stays on the device
        called.clear()
        steps, replays = model._engine.steps, driver.replays
        again = model.generate(case.tokens, max_tokens=2 * PAGE, ignore_end=True)
        steps, replays = model._engine.steps - steps, driver.replays - replays
        assert steps > PAGE
        assert (called["upload"], called["begin_download"], called["download"]) == (steps, steps, 0)
        assert called["record"] <= 6  # two numbers of pages, arrays that grew once, results in two places
        assert replays >= steps - 8
        biased = model.generate(case.tokens, max_tokens=8, ignore_end=True, logit_bias={0: 0.0})
        assert called["download"] == 8  # logits
    known = len(case.ids)
    assert [*first.ids][:known] == case.ids
    assert [*again.ids] == [*first.ids]
    assert [*biased.ids] == case.ids[:8]


def test_paged_attention(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few queries by chunks of keys, more of them by blocks; the bits of one among few are its own."""
    monkeypatch.setattr(paged_attention_simt, "CHUNK", 32)
    cases = [paged.CASES[name] for name in ("window, softcap", "pages of 64", "whole vectors of f16")]
    programs = [paged.program(case) for case in cases]
    for case, made in zip(cases, compile_all(programs, emulated.target()), strict=True):
        assert not isinstance(made, SmeltError), made
        given = paged.inputs(case, seed)
        count, want = len(given[0]), paged.expected(case, given)
        found = {}
        for start, end in ((0, min(count, 66)), (0, 20), (11, 16)):
            some = [each[start:end] if i in (0, 4, 5) else each for i, each in enumerate(given)]
            found[start] = made(*some)[0].numpy()
            np.testing.assert_allclose(found[start], want[start:end], rtol=2e-5, atol=2e-6)
        np.testing.assert_array_equal(found[0][11:16], found[11])


@pytest.mark.parametrize("several", [False, True])
def test_argmax_and_attention_of_few_queries(
    several: bool, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long rows in slices (ties, NaN), many keys in chunks, masked ones among them; several chunks for each block."""
    monkeypatch.setattr(attention_simt, "AT_ONCE", 1 if several else 256)
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def attend(q: Any, k: Any, v: Any, seen: Any) -> Any:
        scores = jnp.where(seen, jnp.einsum("hqd,hkd->hqk", q, k) * 0.25, -jnp.inf)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v)

    random = np.random.default_rng(seed)
    rows = random.integers(0, 50, (4, 2500)).astype(np.float32)
    rows[1, 700], rows[3] = np.nan, 7
    q, k, v = (random.standard_normal((2, size, 64)).astype(np.float32) for size in (3, 300, 300))
    seen = random.random((1, 3, 300)) < 0.7
    seen[..., 128:256] = False  # a chunk that no query sees
    halves = [each.astype(dtype("bf16").numpy) for each in (k, v)]  # which tensor cores multiply
    cases: list[Any] = [
        (lambda x: jnp.argmax(x, 1), (rows,)),
        (attend, (q[..., :16], k[..., :16], v[..., :16], seen)),
        (attend, (q[..., :16], k[..., :16], v[..., :16], seen[:, :1])),
        (lambda q, k, v, seen: attend(q, k.astype("float32"), v.astype("float32"), seen), (q, *halves, seen)),
        (lambda q, k, v, seen: attend(q, k.astype("float32"), v.astype("float32"), seen), (q, *halves, seen[:, :1])),
    ]
    more = random.standard_normal((2, 20, 64)).astype(np.float32)  # queries for three blocks of threads
    causal = np.arange(300)[None] <= 7 * np.arange(20)[:, None] + 20
    cases += [
        (attend, (more[..., :16], k[..., :16], v[..., :16], causal[None])),
        (
            lambda q, k, v, seen: attend(q, k.astype("float32"), v.astype("float32"), seen),
            (more, *halves, causal[None]),
        ),
    ]
    programs = [parse(jax.jit(function).lower(*args).as_text()) for function, args in cases]
    if several:  # of those whose masks are the same for all queries
        cases, programs = ([each[i] for i in (2, 4)] for each in (cases, programs))
    for (function, args), made in zip(cases, compile_all(programs, emulated.target()), strict=True):
        assert not isinstance(made, SmeltError), made
        before = emulated.emulated.launches
        np.testing.assert_allclose(made(*args)[0].numpy(), np.asarray(function(*args)), rtol=2e-5, atol=2e-6)
        count = emulated.emulated.launches - before
        if len(args) > 1 and args[1].dtype == halves[0].dtype:
            assert count == 1  # blocks combine their chunks
        else:
            assert count >= 2  # chunks, then all of them together


def test_repeated_calls_replay_a_graph(emulated: EmulatedCuda) -> None:
    where = smelt.platform("cuda", "native")
    model = MODELS["encoder"]
    weights = model.values(1)
    made = NativeEngine(emulated.target()).compile(model.dynamic_program()).prepare(weights)
    random = np.random.default_rng(1)
    arrays = [model.arguments(random, sizes) for sizes in ({"B": 1, "S": 5}, {"B": 2, "S": 3})]
    wanted = [made(*args)[0].numpy() for args in arrays]
    before = emulated.emulated.replays
    held = [tuple(HostBuffer.of(each).to_device(where) for each in args) for args in arrays]
    for _ in range(4):
        for args, want in zip(held, wanted, strict=True):
            np.testing.assert_array_equal(made(*args)[0].numpy(), want)
    assert emulated.emulated.replays > before
    made.close()


CHAIN = """func.func @main(%x: tensor<1x512xbf16>, %w: tensor<512x128xbf16> {smelt.weight = "w"},
    %v: tensor<128x64xbf16> {smelt.weight = "v"}) -> tensor<1x64xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<1x512xbf16>, tensor<512x128xbf16>) -> tensor<1x128xf32>
  %sum = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<1x128xf32>, tensor<f32>) -> tensor<1xf32>
  %all = stablehlo.broadcast_in_dim %sum, dims = [0] : (tensor<1xf32>) -> tensor<1x128xf32>
  %less = stablehlo.subtract %a, %all : tensor<1x128xf32>
  %b = stablehlo.convert %less : (tensor<1x128xf32>) -> tensor<1x128xbf16>
  %c = stablehlo.dot_general %b, %v, contracting_dims = [1] x [0]
    : (tensor<1x128xbf16>, tensor<128x64xbf16>) -> tensor<1x64xf32>
  return %c : tensor<1x64xf32>
}"""


def test_short_launches_prefetch_the_weights_of_the_next_product(emulated: EmulatedCuda, seed: int) -> None:
    """Pieces are inside the weights; blocks that only prefetch compute nothing. A product of few rows reads its weights
    before the launch in front of it ends instead."""
    random = np.random.default_rng(seed)
    x, w, v = (
        random.integers(-2, 3, sizes).astype(dtype("bf16").numpy)  # so that every sum is exact
        for sizes in ((70, 512), (512, 128), (128, 64))
    )
    *_, text = emit_source([plan_program(parse(CHAIN), emulated.target())]).texts(1)
    launches = list_launches(json.loads(text)["programs"]["smelt0"]["steps"])
    assert [bool(each["awaits"]) for each in launches].count(True) == 2
    assert not any("prefetch" in each for each in launches)
    chain = parse(CHAIN.replace("<1x", "<70x"))
    made = NativeEngine(emulated.target()).compile(chain)
    *_, text = emit_source([plan_program(chain, emulated.target())]).texts(1)
    plan = json.loads(text)["programs"]["smelt0"]
    launches = [launch for step in plan["steps"] for launch in step.get("launches", ())]
    ((weights, pieces, stride, bytes_of_piece),) = (each["prefetch"] for each in launches if "prefetch" in each)
    assert plan["sizes"][plan["buffers"][weights]["bytes"]] == pieces * stride == v.nbytes
    assert 0 < bytes_of_piece <= stride
    assert bytes_of_piece % 16 == 0
    got = made.prepare(Weights.of({"w": HostBuffer.of(w), "v": HostBuffer.of(v)}))(x)[0].numpy()
    wanted = ReferenceEngine().compile(chain).prepare(Weights.of({"w": HostBuffer.of(w), "v": HostBuffer.of(v)}))
    np.testing.assert_array_equal(got, np.asarray(wanted(x)[0]))


@pytest.mark.parametrize(("inner", "columns"), [(0, 64), (128, 0)])
def test_products_of_empty_operands(emulated: EmulatedCuda, inner: int, columns: int) -> None:
    """Launches and weights of nothing are not prefetched."""
    text = CHAIN.replace("128x", f"{inner}x").replace("x128x", f"x{inner}x").replace("x64x", f"x{columns}x")
    x, w, v = (np.ones(sizes, dtype("bf16").numpy) for sizes in ((1, 512), (512, inner), (inner, columns)))
    made = NativeEngine(emulated.target()).compile(parse(text))
    got = made.prepare(Weights.of({"w": HostBuffer.of(w), "v": HostBuffer.of(v)}))(x)[0].numpy()
    assert got.shape == (1, columns)
    assert not got.any()


SHORT = """func.func @main(%x: tensor<5x7xf32>, %y: tensor<3xi32>, %i: tensor<i32>)
    -> (tensor<5x7xf32>, tensor<3xi32>, tensor<7x5xf32>, tensor<5x7xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %a = stablehlo.add %x, %x : tensor<5x7xf32>
  %b = stablehlo.negate %y : tensor<3xi32>
  %row = stablehlo.slice %x [0:1, 0:7] : (tensor<5x7xf32>) -> tensor<1x7xf32>
  %c = stablehlo.dynamic_update_slice %x, %row, %i, %zero
    : (tensor<5x7xf32>, tensor<1x7xf32>, tensor<i32>, tensor<i32>) -> tensor<5x7xf32>
  %d = stablehlo.transpose %a, dims = [1, 0] : (tensor<5x7xf32>) -> tensor<7x5xf32>
  return %c, %b, %d, %a : tensor<5x7xf32>, tensor<3xi32>, tensor<7x5xf32>, tensor<5x7xf32>
}"""


def test_short_maps_are_one_launch(emulated: EmulatedCuda) -> None:
    """Those that do not depend on each other; one that reads what another writes comes after it."""
    (made,) = compile_all([parse(SHORT)], emulated.target())
    assert not isinstance(made, SmeltError)
    args = np.arange(35, dtype=np.float32).reshape(5, 7), np.arange(3, dtype=np.int32), np.int32(2)
    before = emulated.emulated.launches
    got = [each.numpy() for each in made(*args)]
    assert emulated.emulated.launches - before in (1, 2)
    for one, want in zip(got, run(parse(SHORT), [np.asarray(arg) for arg in args]), strict=True):
        np.testing.assert_array_equal(one, want)


def wrapping(element: str) -> Program:
    """Comparisons of what overflows: each of these would be known if integers did not wrap."""
    whole, flags = f"tensor<6x{element}>", "tensor<6xi1>"
    compare = f"({whole}, {whole}) -> {flags}"
    return parse(f"""func.func @main(%x: {whole}, %y: {whole}) -> ({", ".join([flags] * 5)}) {{
  %one = stablehlo.constant dense<1> : {whole}
  %two = stablehlo.constant dense<2> : {whole}
  %minus = stablehlo.negate %x : {whole}
  %other = stablehlo.negate %y : {whole}
  %more = stablehlo.add %x, %one : {whole}
  %less = stablehlo.subtract %x, %one : {whole}
  %twice = stablehlo.multiply %x, %two : {whole}
  %half = stablehlo.divide %twice, %two : {whole}
  %size = stablehlo.abs %x : {whole}
  %zero = stablehlo.subtract %x, %x : {whole}
  %0 = stablehlo.compare LT, %minus, %other : {compare}
  %1 = stablehlo.compare GT, %more, %x : {compare}
  %2 = stablehlo.compare LT, %less, %x : {compare}
  %3 = stablehlo.compare EQ, %half, %x : {compare}
  %4 = stablehlo.compare GE, %size, %zero : {compare}
  return %0, %1, %2, %3, %4 : {", ".join([flags] * 5)}
}}""")


def test_integers_wrap(emulated: EmulatedCuda) -> None:
    elements = ("i8", "i16", "i32", "i64")
    programs = [wrapping(each) for each in elements]
    for element, program, made in zip(elements, programs, compile_all(programs, emulated.target()), strict=True):
        assert not isinstance(made, SmeltError), made
        kind = dtype(element).numpy
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        x, y = (np.array(each, kind) for each in ([low, high, 0, -1, low, 5], [0, low, high, 1, high, 5]))
        for got, want in zip(made(x, y), run(program, [x, y]), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)


CHECKED = """func.func @main(%x: tensor<4xi32>) -> (tensor<4xi32>, tensor<i32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<4xi32>, tensor<i32>) -> tensor<i32>
  %holds = stablehlo.compare GT, %sum, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.custom_call @smelt.check(%holds, %sum) {error_message = "a sum of {0}", has_side_effect = true}
    : (tensor<i1>, tensor<i32>) -> ()
  %y = stablehlo.add %x, %x : tensor<4xi32>
  return %y, %sum : tensor<4xi32>, tensor<i32>
}"""


DOUBLE = """func.func @main(%x: tensor<4xi32>) -> tensor<4xi32> {
  %y = stablehlo.add %x, %x : tensor<4xi32>
  return %y : tensor<4xi32>
}"""


def test_checks_are_judged_when_a_result_is_read(emulated: EmulatedCuda) -> None:
    """The host does not wait in the middle of a call: the whole of it is one graph."""
    where = smelt.platform("cuda", "native")
    (made,) = compile_all([parse(CHECKED)], emulated.target())
    assert not isinstance(made, SmeltError)
    right, wrong = (HostBuffer.of(np.full(4, sign, np.int32)).to_device(where) for sign in (1, -1))
    doubled, total = made(right)
    failed = made(wrong)
    for result in (*failed, failed[0].copy()):
        for read in (result.numpy, result.wait):
            with pytest.raises(RunError, match="a sum of -4"):
                read()
    assert total.numpy() == 4
    np.testing.assert_array_equal(doubled.numpy(), [2] * 4)
    (double,) = compile_all([parse(DOUBLE)], emulated.target())
    assert not isinstance(double, SmeltError)
    (later,) = double(*double(made(wrong)[0]))  # of programs without checks
    with pytest.raises(RunError, match="a sum of -4"):
        later.numpy()
    np.testing.assert_array_equal(double(*double(made(right)[0]))[0].numpy(), [8] * 4)
    for _ in range(4):
        before = emulated.emulated.replays
        made(right)
    assert emulated.emulated.replays == before + 1


def test_calls_whose_checks_are_not_judged_yet_replay_a_graph(emulated: EmulatedCuda) -> None:
    """State goes from call to call, as decoding does, and nothing is read on the way."""
    where = smelt.platform("cuda", "native")
    (made,) = compile_all([parse(CHECKED)], emulated.target())
    assert not isinstance(made, SmeltError)
    state = HostBuffer.of(np.ones(4, np.int32)).to_device(where)
    replayed = []
    for _ in range(20):
        before = emulated.emulated.replays
        state, _ = made(state)
        replayed.append(emulated.emulated.replays - before)
    assert replayed[8:] == [1] * 12  # those before saw addresses for the first time, or recorded a graph
    np.testing.assert_array_equal(state.numpy(), [1 << 20] * 4)
    state = HostBuffer.of(np.full(4, -1, np.int32)).to_device(where)
    for _ in range(9):
        state, _ = made(state)
    with pytest.raises(RunError, match="a sum of -4"):  # of the first call
        state.numpy()


# ---- the plan on the host ----

LOOP = """func.func @main(%n: tensor<i32>, %x: tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, tensor<4xf32>
    cond { %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
           stablehlo.return %c : tensor<i1> }
    do { %one = stablehlo.constant dense<1> : tensor<i32>
         %k = stablehlo.add %i, %one : tensor<i32>
         %b = stablehlo.add %a, %x : tensor<4xf32>
         stablehlo.return %k, %b : tensor<i32>, tensor<4xf32> }
  return %r#0, %r#1 : tensor<i32>, tensor<4xf32>
}"""


def test_loops_branches_and_data_dependent_sizes(emulated: EmulatedCuda) -> None:
    x = np.arange(10, dtype=np.float32)
    cases: list[tuple[str, tuple[Any, ...]]] = [
        (LOOP, (np.int32(3), x[:4])),
        (LOOP, (np.int32(0), x[:4])),
        (sized.IOTA, (np.array([7]), np.float32(2))),
        (sized.SLICE, (x, np.array([1]), np.array([9]), np.array([3]))),
        (sized.RESHAPE, (x, np.array([5, 2], np.int32))),
        (sized.CHOICE, (np.bool_(True), x[:5], np.array([3]))),
        (sized.CHOICE, (np.bool_(False), x[:5], np.array([3]))),
    ]
    texts = [*dict.fromkeys(text for text, _ in cases)]
    made = dict(zip(texts, compile_all([parse(text) for text in texts], emulated.target()), strict=True))
    for text, args in cases:
        executable = made[text]
        assert not isinstance(executable, SmeltError), executable
        for got, want in zip(executable(*args), run(parse(text), [np.asarray(arg) for arg in args]), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
    reshape = made[sized.RESHAPE]
    assert not isinstance(reshape, SmeltError)
    with pytest.raises((RunError, SizeError)):
        reshape(x, np.array([3, 3], np.int32))
    with pytest.raises(ShapeError, match="does not fit"):
        reshape(x.astype(np.float64), np.array([5, 2], np.int32))
    assert not any(count for _, count in emulated.emulated.held.values() if count > 1 << 20)


def test_profile(emulated: EmulatedCuda, tmp_path: Path) -> None:
    """The second call records events in a graph, later ones replay them."""
    trace, svg = tmp_path / "trace.json", tmp_path / "roofline.svg"
    options = ["--size", "batch=5", "--seconds", "0.1", "--trace", str(trace), "--svg", str(svg)]
    done = CliRunner().invoke(app, ["profile", DIGITS, "--device", "cuda", "--json", *options])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["device"] == "cuda"
    assert emulated.emulated.replays
    kernels = found["kernels"]
    assert all(each["ms"] > 0 and each["runs"] == each["launches"] and each["bytes"] for each in kernels)
    assert sum(each["operations"] for each in kernels) > 2 * 5 * 64 * 10
    assert found["call_ms"] >= 0.5 * found["kernels_ms"]
    assert found["peaks"]["tensor_gflops"] == 4096 * 1000 / 1e6
    assert [size for size, _ in found["peaks"]["bandwidth"]] == sorted(size for size, _ in found["peaks"]["bandwidth"])
    events = [each for each in json.loads(trace.read_text())["traceEvents"] if each["ph"] == "X"]
    assert len(events) == sum(each["launches"] for each in kernels)
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in itertools.pairwise(events))
    assert "<svg" in svg.read_text()


def test_sampled_calls_of_a_server_run_where_the_model_does(emulated: EmulatedCuda) -> None:
    """Also where `device="auto"` chose the GPU."""
    pixels = {"pixels": np.random.default_rng(3).random((2, 64), np.float32)}
    with smelt.load(DIGITS, device="cuda", engine="native") as model:
        sampled = SampledModel("digits", Path(DIGITS), ModelConfig(kernel_spans=1), model)
        before = emulated.emulated.launches
        found = sampled(pixels, None, None)["probabilities"]
        assert emulated.emulated.launches > before
        assert sampled.take_kernels()
        np.testing.assert_array_equal(found, model(**pixels)["probabilities"])
        sampled.close()


def test_profile_of_loops_and_of_sizes_that_data_gives(emulated: EmulatedCuda) -> None:
    text = """func.func @main(%n: tensor<i32>, %x: tensor<4xf32>) -> tensor<4xf32> {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %i:2 = stablehlo.while(%k = %n, %y = %x) : tensor<i32>, tensor<4xf32> cond {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %go = stablehlo.compare GT, %k, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %go : tensor<i1>
      } do {
        %k1 = stablehlo.subtract %k, %one : tensor<i32>
        %y1 = stablehlo.add %y, %y : tensor<4xf32>
        stablehlo.return %k1, %y1 : tensor<i32>, tensor<4xf32>
      }
      return %i#1 : tensor<4xf32>
    }"""
    inputs = [np.array(3, np.int32), np.arange(4, dtype=np.float32)]
    found = profile(parse(text), Weights.of({}), inputs, 0.0, None, emulated.target())
    assert found.outputs[0].tolist() == [0, 8, 16, 24]
    assert max(each.runs for each in found.steps) == 4  # the condition, once more than the body
    assert sum(each.runs for each in found.steps) == len(found.trace)


def test_tune(emulated: EmulatedCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every width of a tile on tensor cores is built and measured; the database knows the device."""
    for name, value in {"CALLS": (2, 2), "FINAL": (2, 2), "ROUND": 0.0, "SMALL": 0.0}.items():
        monkeypatch.setattr(tuning, name, value)
    text = """func.func @main(%x: tensor<70x32xbf16>, %w: tensor<32x130xbf16> {smelt.weight = "w"})
      -> tensor<70x130xf32> {
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<70x32xbf16>, tensor<32x130xbf16>) -> tensor<70x130xf32>
      return %0 : tensor<70x130xf32>
    }"""
    random, half = np.random.default_rng(5), dtype("bf16").numpy
    x, w = (random.standard_normal(sizes, np.float32).astype(half) for sizes in ((70, 32), (32, 130)))
    database = tuned.Database(tmp_path / "tuned.jsonl")
    weights, target = Weights.of({"w": HostBuffer.of(w)}), emulated.target()
    found = tuning.tune(parse(text), weights, [x], 1e4, database=database, target=target)
    (finding,) = found.findings
    assert (finding.key.kind, finding.schedules) == ("tensor_gemm", 1 + len(TENSOR_TILES))
    assert finding.tried == len(TENSOR_TILES)
    ((machine, key),) = database.read()
    assert (machine.device, machine.model, key) == ("cuda", "an emulated GPU", finding.key)
    tiles = [_count_tiles(parse(text), target, TensorTile(*each)) for each in ((0, 0), *TENSOR_TILES)]
    assert tiles == [2 * 3, 3, 2, 1, 1, 2 * 3, 2 * 2]  # by default of 64 rows and columns


def _count_tiles(program: Program, target: Target, schedule: TensorTile) -> int:
    plan = plan_program(program, target, schedules=lambda key: schedule)
    assert [*plan.chosen.values()] == [schedule]
    (_, plans) = emit_source([plan]).texts(1)
    program_plan = json.loads(plans)["programs"]["smelt0"]
    (launch,) = list_launches(program_plan["steps"])
    return 1 if launch["single"] else int(program_plan["sizes"][launch["extent"]])


CONV = """func.func @main(%x: tensor<1x9x9x16xbf16>, %w: tensor<3x3x16x72xbf16> {smelt.weight = "w"})
  -> tensor<1x7x7x72xf32> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x9x9x16xbf16>, tensor<3x3x16x72xbf16>) -> tensor<1x7x7x72xf32>
  return %0 : tensor<1x7x7x72xf32>
}"""
DOT = """func.func @main(%x: tensor<ROWSx200xbf16>, %w: tensor<200x200xbf16> {smelt.weight = "w"})
  -> tensor<ROWSx200xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<ROWSx200xbf16>, tensor<200x200xbf16>) -> tensor<ROWSx200xf32>
  return %0 : tensor<ROWSx200xf32>
}"""


@pytest.mark.parametrize(
    ("kind", "text", "machine"),
    [
        ("few_gemm", DOT.replace("ROWS", "5"), "sm_80"),  # on sm_90 the copy engine brings weights of bf16
        ("tensor_gemm", DOT.replace("ROWS", "70"), "sm_90"),
        ("tensor_conv", CONV, "sm_90"),
    ],
)
def test_bits_are_the_same_under_every_schedule(
    emulated: EmulatedCuda, seed: int, kind: str, text: str, machine: str
) -> None:
    """Each schedule is another program: a default that a candidate repeats is the only one that may be the same."""
    program, target, random = parse(text), TARGETS[machine], np.random.default_rng(seed)
    half = dtype("bf16").numpy
    x, w = (random.standard_normal(each.shape.numbers()).astype(half) for each in program.main.args)
    weights = Weights.of({"w": HostBuffer.of(w)})
    ((key, usual),) = plan_program(program, target).chosen.items()
    assert key.kind == kind
    results, sources = set[bytes](), set[str]()
    for schedule in (usual, *legal_schedules(key, tile_shape(target))):
        bench = tuning.Bench(program, weights, [x], target)
        lookup = {key: schedule}.get
        sources.add(emit_source([bench.plan(lookup)]).texts(1)[0])
        results.add(bench.plain(lookup)(x)[0].numpy().tobytes())
        bench.close()
    assert len(results) == 1
    assert len(sources) >= len(legal_schedules(key, tile_shape(target))) - 1


def test_a_program_without_kernels(emulated: EmulatedCuda) -> None:
    """Its plan is all there is to load."""
    program = parse("func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n  return %x : tensor<3xf32>\n}")
    (made,) = compile_all([program], TARGETS["sm_90"])
    assert isinstance(made, NativeExecutable)
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(made.prepare(Weights.of({}))(x)[0].numpy(), x)


def test_small_arrays_are_copied_together(emulated: EmulatedCuda) -> None:
    """Each begins at a multiple of what every buffer does; an empty one has no bytes."""
    kinds = ("i32", (3,)), ("i32", (0, 4)), ("i8", (5,)), ("f64", (2, 3))
    arrays: list[Array] = [np.ones(shape, dtype(kind).numpy) for kind, shape in kinds]
    made = emulated.copy_all(arrays)
    for buffer, array in zip(made, arrays, strict=True):
        np.testing.assert_array_equal(buffer.numpy(), array)
        assert buffer.at % 16 == 0  # type: ignore[attr-defined]


def test_pages_that_grow_keep_what_they_have_and_are_zero_behind_it(emulated: EmulatedCuda) -> None:
    dirty = GpuBuffer.of(emulated.driver, np.full((6, 5), 7, np.float32), Shape("f32", 6, 5))
    dirty.delete()  # its memory comes again
    pages = np.arange(15, dtype=np.float32).reshape(3, 5)
    grown = GpuBuffer.of(emulated.driver, pages, Shape("f32", 3, 5)).enlarge(6)
    np.testing.assert_array_equal(grown.numpy(), np.concatenate([pages, np.zeros((3, 5), np.float32)]))
