"""`smelt profile`: costs known by hand, time stamps that fit the call, the trace, the picture, the machine's peaks."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from smelt.cli import profile as command
from smelt.cli.main import app
from smelt.cli.profile import Options, _notes, chrome_trace, table_of
from smelt.cli.roofline import Point, roofline_svg
from smelt.device import peak
from smelt.device.peak import Meter, Peaks
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine
from smelt.engine.profile import Profile, profile
from smelt.errors import FileError
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.kernel.plan.plan import Launch, walk
from smelt.model import read
from smelt.weights import Weights

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))
BATCH = 8
MACHINE = Peaks(2, 100.0, ((1 << 10, 80.0), (1 << 20, 20.0)))
LOOP = """
func.func @main(%x: tensor<64xf32>, %turns: tensor<i32>) -> tensor<64xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, tensor<64xf32>
  cond {
    %c = stablehlo.compare LT, %i, %turns : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %b = stablehlo.tanh %a : tensor<64xf32>
    stablehlo.return %j, %b : tensor<i32>, tensor<64xf32>
  }
  return %0#1 : tensor<64xf32>
}
"""
CONVOLUTION = """
func.func @main(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {stride = [1, 1], pad = [[0, 0], [0, 0]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
  return %0 : tensor<1x4x6x6xf32>
}
"""
ROWS = """
func.func @main(%table: tensor<1000x16xf32>, %at: tensor<3x1xi64>) -> tensor<3x16xf32> {
  %0 = "stablehlo.gather"(%table, %at) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
    index_vector_dim = 1>, slice_sizes = array<i64: 1, 16>, indices_are_sorted = false}>
    : (tensor<1000x16xf32>, tensor<3x1xi64>) -> tensor<3x16xf32>
  return %0 : tensor<3x16xf32>
}
"""


@pytest.fixture(scope="module")
def digits() -> Profile:
    program, weights = read(DIGITS)
    return profile(program, weights, [_pixels()], seconds=0.01)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known:
        """A machine whose peaks are known."""

        def __init__(self, threads: int, again: bool) -> None:
            self.probed: list[str] = []

        def probe_ends(self) -> None:
            self.probed.append("end")

        def probe(self) -> None:
            self.probed.append("between")

        def peaks(self) -> Peaks:
            assert [self.probed[0], self.probed[-1]] == ["end", "end"]
            assert "between" in self.probed, "before, between and after the calls"
            return MACHINE

    monkeypatch.setattr(peak, "Meter", Known)


def _pixels() -> np.ndarray:
    return np.random.default_rng(0).random((BATCH, 64), np.float32)


def test_a_program_with_time_stamps_computes_the_same(digits: Profile) -> None:
    program, weights = read(DIGITS)
    plain = NativeEngine().compile(program).prepare(weights)(_pixels())
    np.testing.assert_array_equal(digits.outputs[0], plain[0])


def test_ordinary_programs_have_no_time_stamps() -> None:
    program, _ = read(DIGITS)
    assert "_clock" not in emit_source([plan_program(program)]).text()
    launches = [step for step in walk(plan_program(program).main[0].steps) if isinstance(step, Launch)]
    assert launches
    assert not any(step.covers for step in launches)


def test_the_kernels_do_the_arithmetic_of_the_model(digits: Profile) -> None:
    products = 2 * BATCH * (64 * 64 + 64 * 32 + 32 * 10)
    biases_and_relus = BATCH * (64 + 64 + 32 + 32 + 10)
    softmax = BATCH * 10 * 5  # maximum, subtraction, exponential, sum, division
    counted = sum(step.cost.operations or 0 for step in digits.steps)
    assert counted == products + biases_and_relus + softmax
    nodes = {node for step in digits.steps for node in step.nodes}
    assert {"layer1", "layer2", "layer3", "softmax"} <= nodes


def test_the_log_covers_the_call(digits: Profile) -> None:
    assert len(digits.calls) >= 3
    assert digits.lost == 0
    assert [event.step for event in digits.trace] == list(range(len(digits.steps)))
    times = [time for event in digits.trace for time in (event.begin, event.end)]
    assert times == sorted(times), "one step after the other"
    assert times[0] >= 0
    assert all(step.runs == 1 and 0 < step.least <= step.milliseconds for step in digits.steps)


def _profiled(text: str, *inputs: np.ndarray) -> Profile:
    program: Program = parse(text)
    return profile(program, Weights({}), inputs, seconds=0.0)


@pytest.mark.parametrize("turns", [0, 1, 7])
def test_steps_in_a_loop_are_counted_by_their_runs(turns: int) -> None:
    found = _profiled(LOOP, np.ones(64, np.float32), np.array(turns, np.int32))
    (body,) = (step for step in found.steps if "stablehlo.tanh" in step.ops)
    assert body.runs == turns
    assert body.cost.operations == 64
    logged = [event for event in found.trace if found.steps[event.step] is body]
    assert len(logged) == turns


def test_a_convolution_counts_its_products_whatever_the_kernel_does_on_padding() -> None:
    found = _profiled(CONVOLUTION, np.ones((1, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32))
    assert sum(step.cost.operations or 0 for step in found.steps) == 2 * (4 * 6 * 6) * (3 * 3 * 3)
    np.testing.assert_array_equal(found.outputs[0], np.full((1, 4, 6, 6), 27, np.float32))


def test_a_look_up_moves_the_rows_that_it_reads_and_not_the_table() -> None:
    found = _profiled(ROWS, np.ones((1000, 16), np.float32), np.array([[3], [5], [999]]))
    moved = sum(step.cost.bytes or 0 for step in found.steps)
    rows, result = 3 * 16 * 4, 3 * 16 * 4
    assert rows + result <= moved <= rows + result + 3 * 16 * 8  # the places are read once for each element at most


def test_rows_are_kernels_or_launches(digits: Profile) -> None:
    rows = table_of(digits, MACHINE, each=False)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert [row["ms"] for row in rows] == sorted((row["ms"] for row in rows), reverse=True)
    assert sum(row["launches"] for row in rows) == len(digits.steps) == len(table_of(digits, MACHINE, each=True))
    for row in rows:
        assert row["gflops"] * row["ms"] * 1e6 == pytest.approx(row["operations"])
        arithmetic, memory = row["operations"] / 100e9, row["bytes"] / 1e9 / MACHINE.bandwidth_for(row["bytes"])
        if row["launches"] == 1:
            assert row["predicted_ms"] == pytest.approx(1e3 * max(arithmetic, memory))
            assert row["bound"] == ("arithmetic" if arithmetic > memory else "memory")


@pytest.mark.usefixtures("machine")
def test_the_command_writes_a_trace_and_a_picture(tmp_path: Path) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "roofline.svg"
    arguments = ["profile", DIGITS, "--size", "batch=3", "--seconds", 0, "--trace", trace, "--svg", picture, "--json"]
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0
    record = json.loads(done.output)
    assert record["peaks"]["gflops"] == 100.0
    assert record["gflop"] * 1e9 == pytest.approx(sum(row["operations"] for row in record["kernels"]))
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["name"] for event in events} == {row["kernel"] for row in record["kernels"]}
    assert all(event["dur"] >= 0 for event in events)
    circles = ElementTree.parse(picture).getroot().findall(".//{http://www.w3.org/2000/svg}circle")
    kinds = {row["kind"] for row in record["kernels"]}
    assert len(circles) == len(record["kernels"]) + len(kinds), "one for each kernel, one for each kind in the legend"
    assert all(0 < float(each.attrib["cx"]) < 960 and 0 < float(each.attrib["cy"]) < 600 for each in circles)


@pytest.mark.usefixtures("machine")
def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.profile(DIGITS, Options(seconds=0.0, top=2))
    text = capsys.readouterr().out
    assert "GFLOP/s" in text
    assert "more" in text
    with pytest.raises(FileError, match="cannot write"):
        command.profile(DIGITS, Options(seconds=0.0, svg=tmp_path / "nowhere" / "roofline.svg"))


def test_labels_do_not_overlap(seed: int) -> None:
    """Kernels of nearly one speed and intensity, as in a network of equal layers."""
    random = np.random.default_rng(seed)
    points = [
        Point(f"depthwise_conv{i}", f"kind{i % 4}", 3 * float(near[0]), 40 * float(near[1]), 0.05, "")
        for i, near in enumerate(np.exp(0.02 * random.standard_normal((20, 2))))
    ]
    picture = ElementTree.fromstring(roofline_svg("twenty layers", points, MACHINE))
    labels = [each for each in picture.iter("{http://www.w3.org/2000/svg}text") if each.get("class") == "name"]
    assert sum((each.text or "").startswith("depthwise") for each in labels) == 20, "every one has its name"
    assert len(labels) == 23, "and every roof"
    boxes = [(float(each.get("x", 0)), float(each.get("y", 0)), 6.6 * len(each.text or "")) for each in labels]
    for i, (x, y, width) in enumerate(boxes):
        assert x >= 0
        assert x + width <= 960
        for other_x, other_y, other_width in boxes[:i]:
            apart = x >= other_x + other_width or other_x >= x + width or abs(y - other_y) >= 13
            assert apart, (labels[i].text, boxes[i])


def test_a_trace_names_what_each_event_computes(digits: Profile) -> None:
    events = chrome_trace("digits", digits)["traceEvents"]
    (first,) = (event for event in events if event["ph"] == "X" and "layer1" in event["args"]["nodes"].split(", "))
    assert first["args"]["operations"] >= 2 * BATCH * 64 * 64


# ---- peaks ----


def test_the_roofline_by_hand() -> None:
    assert MACHINE.bandwidth_for(1) == 80.0
    assert MACHINE.bandwidth_for(1 << 15) == pytest.approx(50.0), "halfway between the logarithms"
    assert MACHINE.bandwidth_for(1 << 30) == MACHINE.memory_bandwidth == 20.0
    assert MACHINE.seconds(1e9, 1 << 10) == pytest.approx(0.01)
    assert MACHINE.seconds(1.0, 1 << 30) == pytest.approx((1 << 30) / 20e9)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small probes, and a cache of its own."""
    monkeypatch.setattr(peak, "FOOTPRINTS", (1 << 16, 1 << 22))
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_the_best_of_all_probes_counts_and_is_kept(quick: Path) -> None:
    meter = Meter(2)
    meter.probe()
    first = meter.peaks()
    assert [size for size, _ in first.bandwidth] == [1 << 16, 1 << 22]
    assert all(math.isfinite(rate) and rate > 0 for rate in (first.gflops, *(rate for _, rate in first.bandwidth)))
    again = Meter(2)
    again.probe()
    second = again.peaks()
    assert second.gflops >= first.gflops
    assert all(now >= before for (_, now), (_, before) in zip(second.bandwidth, first.bandwidth, strict=True))
    assert 0 < second.steadiness <= 1
    (path,) = quick.glob("peaks-*.json")
    path.write_text(path.read_text()[:20])
    damaged = Meter(2)
    damaged.probe()
    assert damaged.peaks().steadiness == 1, "the one probe is the best: a damaged file counts for nothing"


def test_peaks_of_a_busy_time_do_not_stay(quick: Path) -> None:
    meter = Meter(1)
    meter.probe()
    (true,) = {meter.peaks().gflops}
    (path,) = quick.glob("peaks-*.json")
    path.write_text(json.dumps({name: rate / 4 for name, rate in json.loads(path.read_text()).items()}))
    quiet = Meter(1)
    quiet.probe()
    assert quiet.peaks().gflops > true / 3, "as measured now, not as kept"
    path.write_text(json.dumps({name: rate * 4 for name, rate in json.loads(path.read_text()).items()}))
    busy = Meter(1)
    busy.probe()
    assert busy.peaks().steadiness < 0.5, "far below what this machine was known to do"
    fresh = Meter(1, again=True)
    fresh.probe()
    assert fresh.peaks().steadiness == 1


def test_threads_that_share_a_core_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    begins = np.array([[0.0, 1.0], [0.0, 2.5]])
    ends = np.array([[1.0, 2.0], [2.5, 3.5]])
    monkeypatch.setattr(peak._Work, "_intervals", lambda self, count: (begins, ends))
    work = peak._Work(lambda thread, count: None, 2, 1.0, 1)
    assert work.measure() == pytest.approx(1 + 1 / 2.5), "the second one waited in its first interval"


def test_a_busy_machine_and_kernels_above_the_roof_are_said(digits: Profile) -> None:
    rows = table_of(digits, MACHINE, each=False)
    busy = Peaks(MACHINE.threads, 1e-9, ((1 << 10, 1e-9),), 0.5)
    notes = command._notes(digits, busy, table_of(digits, busy, each=False), sum(row["ms"] for row in rows))
    assert any("the machine was busy: half of the probes reached less than 50 %" in note for note in notes)
    assert any("beat the f32 roofline" in note for note in notes)


@pytest.mark.parametrize(
    ("lost", "milliseconds", "total", "message"),
    [(0, 10.0, 10.0, None), (0, 10.0, 8.1, None), (0, 10.0, 7.9, "do not add up"), (0, 10.0, 12.1, "do not add up"),
     (0, 0.1, 0.0, None), (0, 0.11, 0.0, "do not add up"), (3, 10.0, 1.0, "3 steps of a call did not fit")],
)  # fmt: skip
def test_times_that_do_not_add_up(lost: int, milliseconds: float, total: float, message: str | None) -> None:
    found: Any = SimpleNamespace(lost=lost, milliseconds=milliseconds)
    steady: Any = SimpleNamespace(steadiness=1.0)
    notes = _notes(found, steady, [{"of_roofline": None}], total)
    assert len(notes) == (message is not None)
    assert message is None or message in notes[0]
