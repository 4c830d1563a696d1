"""Schedules change speed alone: random shapes under random legal schedules give the bits of the default.

Every kind of kernel with schedule parameters is built with several of them, with dynamic dimensions and masks. Results
are compared bit for bit; the default itself with the interpreter or an evaluation in double.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from smelt.device import cpu
from smelt.dtype import Array
from smelt.engine import compile
from smelt.engine.tune import Bench, TunableProgram
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.emit.c import Source
from smelt.kernel.loops import parallelise
from smelt.kernel.tune.schedules import KINDS, KernelKey, Lookup, Schedule, default_schedule, legal_schedules
from smelt.run.executable import NativeExecutable
from smelt.target import tile_shape
from smelt.weights import Weights
from tests.property.models import MODELS
from tests.property.problems import difference, draw
from tests.property.test_attention import draw as draw_attention
from tests.property.test_attention import wrong

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

WAYS = 3  # random sets of schedules, besides the default


@dataclass
class Dice:
    """A lookup that draws a legal schedule for each key, and remembers it."""

    seed: int
    taken: dict[KernelKey, Schedule]

    def __call__(self, key: KernelKey) -> Schedule:
        if key not in self.taken:
            schedules = legal_schedules(key, tile_shape(cpu.target()))
            self.taken[key] = random.Random(f"{self.seed} {key}").choice(schedules)
        return self.taken[key]


@dataclass(frozen=True)
class Built:
    name: str
    chosen: dict[KernelKey, Schedule]
    run: NativeExecutable


def built(programs: Sequence[Program], lookups: Sequence[Lookup]) -> list[list[Built | SmeltError]]:
    """Every program under every lookup, as one library."""
    source = Source(tile_shape(cpu.target()))
    planned: list[list[compile.ProgramPlan | SmeltError]] = []
    for i, program in enumerate(programs):
        planned.append([])
        for j, schedules in enumerate(lookups):
            try:
                each = compile.plan_program(program, schedules=schedules)
                compile.emit_plan(each, source, f"p{i}_{j}")
                planned[-1].append(each)
            except SmeltError as error:
                planned[-1].append(error)
    library = cpu.build(source.texts(4))

    def executable(name: str, each: compile.ProgramPlan | SmeltError) -> Built | SmeltError:
        return (
            each
            if isinstance(each, SmeltError)
            else Built(name, each.chosen, compile.link_executable(library, name, each))
        )

    return [[executable(f"p{i}_{j}", each) for j, each in enumerate(some)] for i, some in enumerate(planned)]


def dice(seed: int) -> list[Dice]:
    return [Dice(seed + way, {}) for way in range(WAYS)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small kernels go to several cores, too."""
    monkeypatch.setattr(parallelise, "ELEMENTS_PER_CORE", 16)


def test_random_problems_have_the_same_bits_under_every_schedule(seed: int) -> None:
    generator = np.random.default_rng(seed)
    problems = [draw(kind, generator) for kind in ("contraction", "window", "columns") for _ in range(6)]
    seen: dict[str, set[Schedule]] = {}
    for problem, (usual, *others) in zip(
        problems, built([each.make(False) for each in problems], [default_schedule, *dice(seed)]), strict=True
    ):
        assert isinstance(usual, Built), usual
        (want,) = usual.run(*problem.args)
        assert not difference(problem, want)
        for other in others:
            assert isinstance(other, Built), other
            (got,) = other.run(*problem.args)
            assert got.tobytes() == want.tobytes(), (problem.name, other.chosen)
            for asked, schedule in other.chosen.items():
                seen.setdefault(asked.kind, set()).add(schedule)
    assert seen.keys() >= {"gemm", "conv", "column_reduction"}


def product(rows: int, depth: int, columns: int) -> str:
    left, right, result = f"{rows}x{depth}", f"{depth}x{columns}", f"{rows}x{columns}"
    return f"""
func.func @main(%a: tensor<{left}xf32>, %b: tensor<{right}xf32>) -> tensor<{result}xf32> {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<{left}xf32>, tensor<{right}xf32>) -> tensor<{result}xf32>
  return %0 : tensor<{result}xf32>
}}"""


def convolution(lines: int, pixels: int, channels: int, features: int, groups: int) -> str:
    images, kernel = f"2x{lines}x{pixels}x{channels}", f"3x3x{channels // groups}x{features}"
    result = f"2x{lines}x{pixels}x{features}"
    return f"""
func.func @main(%a: tensor<{images}xf32>, %b: tensor<{kernel}xf32>) -> tensor<{result}xf32> {{
  %0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [1, 1], pad = [[1, 1], [1, 1]]}}
    {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
    : (tensor<{images}xf32>, tensor<{kernel}xf32>) -> tensor<{result}xf32>
  return %0 : tensor<{result}xf32>
}}"""


def expansion(lines: int, pixels: int, depth: int, channels: int) -> str:
    """An expanding matmul and a depthwise convolution."""
    wide, window = f"2x{lines}x{pixels}x{channels}", f"3x3x1x{channels}"
    return f"""
func.func @main(%a: tensor<2x{lines}x{pixels}x{depth}xf32>, %b: tensor<1x1x{depth}x{channels}xf32>,
                %c: tensor<{window}xf32>) -> tensor<{wide}xf32> {{
  %0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : (tensor<2x{lines}x{pixels}x{depth}xf32>, tensor<1x1x{depth}x{channels}xf32>) -> tensor<{wide}xf32>
  %1 = stablehlo.logistic %0 : tensor<{wide}xf32>
  %2 = stablehlo.convolution(%1, %c) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [1, 1], pad = [[1, 1], [1, 1]]}}
    {{batch_group_count = 1 : i64, feature_group_count = {channels} : i64}}
    : (tensor<{wide}xf32>, tensor<{window}xf32>) -> tensor<{wide}xf32>
  return %2 : tensor<{wide}xf32>
}}"""


@pytest.mark.slow
def test_larger_problems_have_the_same_bits_under_every_schedule(seed: int) -> None:
    """Many rows, panels, image rows and K-blocks: schedules as in real models."""
    generator = np.random.default_rng(seed)

    def between(low: int, high: int) -> int:
        return int(generator.integers(low, high))

    texts = [product(between(100, 900), between(100, 400), between(60, 400)) for _ in range(3)]
    texts += [convolution(between(9, 40), between(9, 60), between(3, 40), between(30, 150), 1) for _ in range(2)]
    texts += [convolution(between(9, 40), between(300, 500), 3, 40, 1)]
    texts += [convolution(12, 8 * between(2, 6), 40, 40, 40), convolution(9, 30, 24, 24, 24)]
    texts += [expansion(between(5, 40), between(20, 60), between(3, 200), between(20, 150)) for _ in range(2)]
    programs = [parse(text) for text in texts]
    seen: dict[str, set[Schedule]] = {}
    for program, (usual, *others) in zip(programs, built(programs, [default_schedule, *dice(seed)]), strict=True):
        arguments = [generator.standard_normal(arg.shape.numbers({})).astype(np.float32) for arg in program.main.args]
        assert isinstance(usual, Built), usual
        (want,) = usual.run(*arguments)
        (right,) = run(program, arguments)
        sizes = run(program, [np.abs(each) for each in arguments])[0]
        assert (np.abs(want - right) <= 64 * np.finfo(np.float32).eps * sizes).all()
        for other in others:
            assert isinstance(other, Built), other
            assert other.run(*arguments)[0].tobytes() == want.tobytes(), other.chosen
            for asked, schedule in other.chosen.items():
                seen.setdefault(asked.kind, set()).add(schedule)
    assert len(seen["gemm"]) > 5
    assert len(seen["conv"]) > 5
    assert len(seen["depthwise_conv"]) > 2
    assert len(seen["expand_depthwise"]) > 4


def test_whole_models_have_the_same_bits_under_every_schedule(seed: int) -> None:
    """Every small model with dynamic dimensions, at several sizes: convolutions, attention, reductions, matmuls."""
    generator = np.random.default_rng(seed)
    found = built([model.dynamic_program() for model in MODELS.values()], [default_schedule, *dice(seed)])
    kinds: set[str] = set()
    for (name, model), (usual, *others) in zip(MODELS.items(), found, strict=True):
        weights = model.values(seed)
        calls = [model.arguments(generator, sizes) for sizes in model.tried]
        assert isinstance(usual, Built), usual
        want = [_bits(usual, weights, call) for call in calls]
        for other in others:
            assert isinstance(other, Built), other
            kinds |= {key.kind for key, schedule in other.chosen.items() if schedule != default_schedule(key)}
            assert [_bits(other, weights, call) for call in calls] == want, (name, other.chosen)
    assert kinds


def _bits(program: Built, weights: Weights, call: Sequence[Array]) -> list[bytes]:
    bound = program.run.prepare(weights)
    try:
        return [array.tobytes() for array in bound(*call)]
    finally:
        bound.close()


@pytest.mark.slow
def test_attention_has_the_same_bits_under_every_schedule(seed: int) -> None:
    """Masks of all kinds: query blocks decide which keys are skipped; results must not depend on it."""
    generator = np.random.default_rng(seed)
    cases = [draw_attention(generator) for _ in range(6)]
    calls = [case.arguments(generator) for case in cases]
    tried: set[Schedule] = set()
    for case, call, (usual, *others) in zip(
        cases, calls, built([case.program() for case in cases], [default_schedule, *dice(seed)]), strict=True
    ):
        assert isinstance(usual, Built), usual
        (want,) = usual.run(*call)
        assert wrong(case, call, want) == ""
        for other in others:
            assert isinstance(other, Built), other
            assert other.run(*call)[0].tobytes() == want.tobytes(), (case, other.chosen)
            tried |= {schedule for key, schedule in other.chosen.items() if key.kind == "attention"}
    assert len(tried) > 1


def test_winograd_has_the_same_bits_under_every_schedule(seed: int) -> None:
    """Patches of odd images, in shares of any number, by weights of more than one panel."""
    generator = np.random.default_rng(seed)
    texts = [convolution(*sizes, 1) for sizes in ((13, 21, 32, 48), (30, 17, 32, 100))]
    programs = [parse(text.replace("xf32>) ->", 'xf32> {smelt.weight = "b"}) ->', 1)) for text in texts]
    tried: set[Schedule] = set()
    for program, (usual, *others) in zip(programs, built(programs, [default_schedule, *dice(seed)]), strict=True):
        image, kernel = (
            generator.standard_normal(arg.shape.numbers({})).astype(np.float32) for arg in program.main.args
        )
        weights = Weights.of({"b": kernel})
        assert isinstance(usual, Built), usual
        want = _bits(usual, weights, [image])
        for other in others:
            assert isinstance(other, Built), other
            assert _bits(other, weights, [image]) == want, other.chosen
            tried |= {schedule for key, schedule in other.chosen.items() if key.kind == "winograd"}
    assert len(tried) > 1


def test_run_time_tunables_give_the_same_bits(seed: int) -> None:
    """One build for all schedules, set at every call: models with dynamic dimensions; the bits of default builds."""
    generator = np.random.default_rng(seed)
    usual = built([model.dynamic_program() for model in MODELS.values()], [default_schedule])
    kinds: set[str] = set()
    for (name, model), (program,) in zip(MODELS.items(), usual, strict=True):
        assert isinstance(program, Built), program
        weights = model.values(seed)
        calls = [model.arguments(generator, sizes) for sizes in model.tried]
        want = [_bits(program, weights, call) for call in calls]
        bench = Bench(model.dynamic_program(), weights, calls[0])
        try:
            open_one = bench.tunables()
            assert isinstance(open_one, TunableProgram)
            for lookup in dice(seed):
                chosen = {key: lookup(key) for key in open_one.keys}
                open_one.use(chosen)
                got = [[array.tobytes() for array in open_one.bound(*call, keep=True)] for call in calls]
                assert got == want, (name, chosen)
                kinds |= {key.kind for key, schedule in chosen.items() if schedule != default_schedule(key)}
        finally:
            bench.close()
    assert {"gemm", "conv"} <= kinds


def test_every_kind_is_covered_somewhere(seed: int) -> None:
    """A new kind of schedule needs shapes here; those of GPUs have them in tests/cuda."""
    lookups = [Dice(seed, {})]
    for model in MODELS.values():
        compile.plan_program(model.dynamic_program(), schedules=lookups[0])
    asked = {key.kind for key in lookups[0].taken}
    elsewhere = {"column_reduction", "attention", "expand_depthwise", "winograd"}
    elsewhere |= {"tensor_gemm", "tensor_conv", "few_gemm"}
    assert asked | elsewhere == KINDS.keys()
