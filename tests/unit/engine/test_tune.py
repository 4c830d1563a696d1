"""Tuning from end to end, with measurements that are made up where an outcome is to be certain: no clock decides."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import smelt
from smelt.cli.main import app
from smelt.device import cpu
from smelt.dtype import Array
from smelt.engine import tune as tuning
from smelt.engine import tuned
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine
from smelt.engine.sample import sample_inputs
from smelt.engine.store import default_targets
from smelt.engine.tune import Bench, TunableProgram, Tuning, Variant, tune
from smelt.errors import UnsupportedError
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.kernel.tune.schedules import Gemm, Schedule, default_schedule, legal_schedules
from smelt.kernel.tune.search import Estimate
from smelt.target import tile_shape
from smelt.weights import Weights

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

TEXT = """
func.func @main(%x: tensor<300x96xf32>, %w: tensor<96x200xf32> {smelt.weight = "w"},
    %v: tensor<200x70xf32> {smelt.weight = "v"})
    -> tensor<300x70xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<300x96xf32>, tensor<96x200xf32>) -> tensor<300x200xf32>
  %1 = stablehlo.tanh %0 : tensor<300x200xf32>
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0]
    : (tensor<300x200xf32>, tensor<200x70xf32>) -> tensor<300x70xf32>
  return %2 : tensor<300x70xf32>
}
"""
FAST = 0.7  # of the default's time
FEW = 8  # schedules of a key that are measured here


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing that was tuned on this machine counts here, and nothing stays; compiling is quick, not what it makes.
    Without optimisation zig adds checks of undefined behaviour, and builds what they call: half a minute."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu, "FLAGS", ("-O0", "-fno-sanitize=undefined", *cpu.FLAGS[1:]))
    monkeypatch.setattr(tuning, "legal_schedules", lambda key, tile: legal_schedules(key, tile)[:FEW])
    return tmp_path / "cache"


@pytest.fixture
def program() -> Program:
    return parse(TEXT)


@pytest.fixture
def weights(seed: int) -> Weights:
    random = np.random.default_rng(seed)
    shapes = {"w": (96, 200), "v": (200, 70)}
    return Weights.of({name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


def is_fast(schedule: Schedule) -> bool:
    return isinstance(schedule, Gemm) and schedule.call_rows == 12


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Times in which few rows per call are faster; gives the number of schedule sets of each round."""
    rounds: list[int] = []

    def interleave(
        program: TunableProgram, variants: Sequence[Variant], inputs: Sequence[Array], seconds: float, seed: int = 0
    ) -> list[Array]:
        rounds.append(len(variants))
        found = []
        for variant in variants:
            program.use(variant)
            program.call(inputs)
            ticks = np.full((8, program._steps), 100.0)
            for key, steps in program.keys.items():
                ticks[:, steps] = 1000.0 * (FAST if is_fast(variant.get(key, default_schedule(key))) else 1.0)
            found.append(ticks)
        return found

    monkeypatch.setattr(tuning, "interleave", interleave)
    return rounds


def whole(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    monkeypatch.setattr(tuning._Tuner, "_compare_whole", lambda self, after: Estimate(ratio, 0.001))


def tuned_on(program: Program, weights: Weights, seconds: float = 1e6) -> Tuning:
    return tune(program, weights, sample_inputs(program, {}), seconds)


def test_what_is_faster_is_used_from_then_on(
    program: Program, weights: Weights, made_up: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(monkeypatch, 0.8)
    before = emit_source([plan_program(program)]).text()
    found = tuned_on(program, weights)
    assert found.kept
    assert len(found.findings) == 2
    for each in found.findings:
        assert isinstance(each.schedule, Gemm)
        assert each.schedule.call_rows == 12
        assert each.estimate.ratio == pytest.approx(FAST)
    assert plan_program(program).chosen == {each.key: each.schedule for each in found.findings}
    assert emit_source([plan_program(program)]).text() != before  # another key in the cache of compiled programs
    monkeypatch.setenv("SMELT_TUNING", "off")
    assert emit_source([plan_program(program)]).text() == before


def test_nothing_is_tuned_twice(
    program: Program, weights: Weights, made_up: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(monkeypatch, 0.8)
    first = tuned_on(program, weights)
    assert all(each.tried == each.schedules - 1 for each in first.findings)  # there was time for everything
    made_up.clear()
    second = tuned_on(program, weights)
    assert made_up == [1]  # the program as it is, and no round
    assert second.known == len(second.findings) == 2
    assert second.whole is None
    assert [each.schedule for each in second.findings] == [each.schedule for each in first.findings]


def test_little_time_tries_little_and_goes_on_later(
    program: Program, weights: Weights, made_up: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(monkeypatch, 0.8)
    monkeypatch.setattr(tuning, "FRACTIONS", (0.1,))
    few = tuned_on(program, weights)
    assert all(0 < each.tried <= max(2, each.schedules // 10) for each in few.findings)
    monkeypatch.setattr(tuning, "FRACTIONS", (0.1, 1.0))
    more = tuned_on(program, weights)
    assert all(b.tried > a.tried for a, b in zip(few.findings, more.findings, strict=True))


def test_no_time_changes_nothing(program: Program, weights: Weights, folder: Path) -> None:
    found = tuned_on(program, weights, seconds=1e-6)
    assert not found.kept
    assert found.tries == 0
    assert tuned.database().read() == {}


def test_defaults_stay_where_the_whole_is_not_faster(
    program: Program, weights: Weights, made_up: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(monkeypatch, 0.9999)
    found = tuned_on(program, weights)
    assert not found.kept
    assert all(schedule == default_schedule(key) for key, schedule in plan_program(program).chosen.items())
    records = tuned.database().read().values()
    assert records
    assert all(each.tried for each in records)  # what was measured is known nevertheless


def test_the_whole_comparison_runs_both_and_bits_agree(
    program: Program, weights: Weights, made_up: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real calls at the end: whatever comes out, results are those of the default."""
    inputs = sample_inputs(program, {})
    monkeypatch.setattr(tuning, "FINAL", (2, 4))
    (want,) = NativeEngine().compile(program).prepare(weights)(*inputs)
    found = tuned_on(program, weights, seconds=10)
    assert found.whole is not None
    assert found.whole.ratio > 0
    (got,) = NativeEngine().compile(program).prepare(weights)(*inputs)
    assert got.tobytes() == want.tobytes()


def test_one_build_gives_the_bits_of_the_default_under_every_schedule(program: Program, weights: Weights) -> None:
    """Choices that are changed between calls: the steps are the same, and so is every bit."""
    inputs = sample_inputs(program, {})
    (want,) = NativeEngine().compile(program).prepare(weights)(*inputs)
    bench = Bench(program, weights, inputs)
    try:
        built = bench.tunables()
        assert isinstance(built, TunableProgram)
        forms = [legal_schedules(key, tile_shape(bench.target)) for key in built.keys]
        assert len(forms) == 2
        for turn in range(max(map(len, forms))):
            built.use({p: some[turn % len(some)] for p, some in zip(built.keys, forms, strict=True)})
            (got,) = built.bound(*inputs)
            assert got.tobytes() == want.tobytes()
    finally:
        bench.close()


def test_bundles_carry_what_was_tuned(
    program: Program, weights: Weights, made_up: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(monkeypatch, 0.8)
    tuned_on(program, weights)
    executable = NativeEngine().compile(program).prepare(weights)
    (stored,) = executable.to_stored(default_targets(program)[:1]).programs
    said = {key: text for key, text in stored.provenance.items() if key.startswith("tuned ")}
    assert len(said) == 2
    assert all("call_rows=12" in text for text in said.values())


# ---- from outside ----


@pytest.fixture
def file(program: Program, weights: Weights, tmp_path: Path) -> Path:
    path = tmp_path / "model.mlir"
    path.write_text(re.sub(r" \{smelt.*?\}", "", TEXT))
    return path


def test_load_tunes_first(file: Path, made_up: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole(monkeypatch, 0.8)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in ((300, 96), (96, 200), (200, 70))]
    want = next(iter(smelt.load(file)(*arrays).values()))
    model = smelt.load(file, tune=100.0)
    assert len(made_up) > 1
    assert next(iter(model(*arrays).values())).tobytes() == want.tobytes()
    with pytest.raises(UnsupportedError, match="only the native engine"):
        smelt.load(file, tune=1.0, engine="reference")


def test_a_bundle_is_not_tuned(tmp_path: Path, file: Path) -> None:
    smelt.load(file).save(tmp_path / "model.smelt", targets=["plain"])
    with pytest.raises(UnsupportedError, match="compiled already"):
        smelt.load(tmp_path / "model.smelt", tune=1.0)


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def test_the_command(file: Path, made_up: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole(monkeypatch, 0.8)
    exported = tmp_path / "known.jsonl"
    said = json.loads(invoke("tune", file, "--seconds", 100, "--export", exported, "--json"))
    assert said["kept"]
    assert said["speedup"] == 1.25
    assert said["exported"] == len(said["problems"]) == 2
    assert all(each["choice"]["call_rows"] == 12 for each in said["problems"])
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "other"))
    assert json.loads(invoke("tune", "--merge", exported, "--json"))["merged"] == 2
    assert all(schedule.call_rows == 12 for schedule in plan_program(parse(file.read_text())).chosen.values())  # type: ignore[union-attr]
    assert "all schedules of this model's kernels were measured" in invoke("tune", file, "--seconds", 100)


def test_the_command_says_what_it_needs() -> None:
    for arguments in (["tune"], ["tune", "x.onnx", "--seconds", "0"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 1
        assert done.exception is not None
        assert "expected" in str(done.exception)


def test_time_that_is_too_short_is_used_and_said(
    program: Program, weights: Weights, made_up: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time for the comparison: what was measured is known later, nothing changes, and how long would do is said."""
    whole(monkeypatch, 0.8)
    rounds, one_round = [0], tuning._Tuner._round

    def limited(self: tuning._Tuner) -> bool:
        rounds[0] += 1
        return rounds[0] == 1 and one_round(self)

    with monkeypatch.context() as busy:
        busy.setattr(tuning._Tuner, "_round", limited)
        busy.setattr(tuning._Tuner, "final", property(lambda self: 1000.0))
        busy.setattr(tuning, "AT_ONCE", 2)
        short = tuned_on(program, weights, seconds=900.0)
    assert short.tries > 0
    assert (short.kept, short.whole) == (False, None)
    assert short.enough is not None
    assert short.enough > 1000
    assert all(schedule == default_schedule(key) for key, schedule in plan_program(program).chosen.items())
    later = tuned_on(program, weights)
    assert later.kept
    assert later.enough is None
    assert all(b.tried > a.tried for a, b in zip(short.findings, later.findings, strict=True))


def test_how_much_time_is_enough() -> None:
    """By hand: two builds and 2 × 24 calls at the end; a round of 9 × 8 calls before; 15 % are for the end."""
    made = object.__new__(tuning._Tuner)
    made.begun, made.build_seconds, made.call = 5.0, 2.0, 0.01
    assert made.final == pytest.approx(4 + 0.48)
    assert made.enough == pytest.approx((5 + 0.72 + 4.48) / 0.85)
    for made.seconds, short in ((11.3, True), (11.4, False)):  # (5 + 2 * 8 * 0.01 + 4.48) / 0.85 is 11.34
        assert made.is_short == short
