"""The harness that measures engines side by side: tiny models, whichever engines are installed, no demands on speed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bench.models import compare
from smelt.cli import rounds
from smelt.cli.bench import histogram
from smelt.cli.random_inputs import inputs_for, open_sizes
from smelt.cli.rounds import Setup, Worker, differences, measure
from smelt.errors import SmeltError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

QUICK = Setup(threads=1, seconds=0.02, rounds=2)


def _save(path: Path, shape: list[int | str], extra: str = "") -> Path:
    """y = relu(x @ W), with dynamic dimensions where the shape has names."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    weight = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    nodes += [helper.make_node(extra, ["h"], ["more"])] if extra else []
    ends = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [*shape, 8])]
    results = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [*shape, 5])]
    results += [helper.make_tensor_value_info("more", onnx.TensorProto.FLOAT, None)] if extra else []
    graph = helper.make_graph(nodes, "tiny", ends, results, [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    _save(found / "fixed.onnx", [2])
    _save(found / "open.onnx", ["batch", "length"])
    return found


def test_a_run_writes_what_it_found(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "deep" / "result.json"
    engines = "smelt,onnxruntime,ncnn"
    status = compare.main(
        [
            *("--models", str(folder), "--engines", engines, "--threads", "1", "--seconds", "0.05", "--rounds", "2"),
            *("--size", "length=3", "--json", str(target)),
        ]
    )
    assert status == 0, capsys.readouterr()
    record = json.loads(target.read_text())
    assert set(record["models"]) == {"fixed", "open[length=3]"}
    for rows in record["models"].values():
        assert list(rows) == ["smelt", "onnxruntime"]
        for row in rows.values():
            assert 0 < row["p10"] <= row["median_ms"] <= row["p90"]
            assert row["runs"] >= 6, "at least three calls in each turn"
            assert row["solo_ms"] > 0
    ratios = [rows["onnxruntime"]["median_ms"] / rows["smelt"]["median_ms"] for rows in record["models"].values()]
    assert record["geomean"] == pytest.approx(math.sqrt(ratios[0] * ratios[1]))
    assert record["errors"] == []
    assert set(record["versions"]) == {"smelt", "onnxruntime"}
    assert record["machine"]["cores"] == os.cpu_count()
    assert "--models" in record["command"]
    shown = capsys.readouterr().out
    assert "agree" in shown
    for skipped in record["skipped"].values():
        assert "ncnn" in skipped["ncnn"], "missing engines are named with a reason"


def test_outputs_that_disagree_are_an_error(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rounds.TOLERANCE, "f32", -1.0)  # nothing agrees
    target = tmp_path / "result.json"
    arguments = ["--models", str(folder / "fixed.onnx"), "--engines", "smelt,onnxruntime", "--no-solo"]
    assert compare.main([*arguments, "--seconds", "0.02", "--rounds", "1", "--json", str(target)]) == 1
    assert json.loads(target.read_text())["errors"] == ["fixed: smelt and onnxruntime disagree"]


def test_differences_are_absolute_and_of_the_scale() -> None:
    a = np.array([100.0, 1.0, np.nan, np.inf], np.float32)
    b = a + np.array([0.5, 0.0, 0.0, 0.0], np.float32)
    (found,) = differences({"one": [a], "other": [b]}, 1e-2)
    assert found.absolute == pytest.approx(0.5)
    assert found.relative == pytest.approx(0.5 / 100.5)
    assert found.agree
    assert not differences({"one": [a], "other": [b]}, 1e-3)[0].agree
    finite = np.nan_to_num(a, posinf=0.0)
    for wrong in ([finite], [a, a], [a[:2]], []):
        (found,) = differences({"one": [a], "other": wrong}, 1e9)
        assert not found.agree, wrong
    words = np.array(["cat", "dog"])
    assert differences({"one": [words], "other": [words]}, 0.0)[0].agree
    assert not differences({"one": [words], "other": [words[::-1]]}, 0.5)[0].agree
    assert differences({"one": [a.reshape(2, 2)], "other": [a]}, 0.0)[0].agree, "an engine may drop axes of size 1"
    assert differences({}, 0.0) == []


def test_whole_numbers_are_the_same_or_not() -> None:
    places = np.array([1000, 2000])
    assert differences({"one": [places], "other": [places]}, 0.0)[0].agree
    assert not differences({"one": [places], "other": [places + 1]}, 0.5)[0].agree
    assert not differences({"one": [places > 1500], "other": [places > 0]}, 0.5)[0].agree
    bytes = np.array([100, 7], np.uint8)
    assert differences({"one": [bytes], "other": [bytes + 1]}, 0.0)[0].agree, "rounded the other way"
    assert not differences({"one": [bytes], "other": [bytes + 2]}, 0.5)[0].agree


def test_an_engine_that_breaks_is_reported_and_the_others_go_on(folder: Path) -> None:
    broken = Setup(threads=1, seconds=0.02, rounds=1, solo=False, pythons={"onnxruntime": "/bin/false"})
    outcome = measure(folder / "fixed.onnx", ["smelt", "onnxruntime"], {"x": np.ones((2, 8), np.float32)}, broken)
    assert list(outcome.times) == ["smelt"]
    assert "status 1" in outcome.failed["onnxruntime"]
    wrong = measure(folder / "fixed.onnx", ["onnxruntime"], {"x": np.ones((2, 9), np.float32)}, QUICK)
    assert "onnxruntime" in wrong.failed, "an engine's own error is its answer"
    with pytest.raises(SmeltError, match="unknown engine"):
        measure(folder / "fixed.onnx", ["abacus"], {}, QUICK)


def test_what_an_engine_has_no_mode_for_is_skipped(folder: Path) -> None:
    narrow = Setup(threads=1, precision="bf16", seconds=0.02, rounds=1)
    outcome = measure(folder / "fixed.onnx", ["onnxruntime", "torch"], {"x": np.ones((2, 8), np.float32)}, narrow)
    assert "bf16" in outcome.skipped["onnxruntime"]
    if find_spec("torch") is None:
        assert "torch" in outcome.skipped["torch"]
    else:
        assert "fixed.pt2" in outcome.skipped["torch"]
    assert outcome.times == {}


# ---- workers ----


def _state(pid: int) -> str:
    """The letter that Linux has for what a process does; nothing for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def _settled(pid: int, states: str) -> str:
    """The state, once it is one of those; what it is after ten seconds otherwise."""
    end = time.monotonic() + 10
    while (state := _state(pid)) not in states and time.monotonic() < end:
        time.sleep(0.01)
    return state


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_idle_workers_are_stopped_and_do_not_outlive_anybody(folder: Path, tmp_path: Path) -> None:
    job = rounds._job(folder / "fixed.onnx", {"x": np.ones((2, 8), np.float32)}, tmp_path, QUICK)
    with Worker("onnxruntime", job, tmp_path, QUICK) as worker:
        pid = worker.process.pid
        assert _settled(pid, "T") == "T"
        assert len(worker.time(0.01)) >= 3
        assert _settled(pid, "T") == "T"
    assert _state(pid) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_stopped_workers_end_with_a_killed_parent(folder: Path, tmp_path: Path) -> None:
    code = f"""
import sys, numpy as np
from pathlib import Path
from smelt.cli.rounds import Setup, Worker, _job
setup, folder = Setup(threads=1), Path({str(tmp_path)!r})
job = _job(Path({str(folder / "fixed.onnx")!r}), {{"x": np.ones((2, 8), np.float32)}}, folder, setup)
with Worker("onnxruntime", job, folder, setup) as worker:
    print(worker.process.pid, flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _settled(pid, "T") == "T"
        parent.send_signal(signal.SIGKILL)
    assert _settled(pid, "ZX") in ("", "Z", "X")


# ---- sizes and inputs ----


def test_sweeps_choose_sizes(folder: Path) -> None:
    assert dict(open_sizes(folder / "open.onnx")) == {"batch": True, "length": False}

    def names(*arguments: str) -> list[str]:
        options = compare.parser().parse_args(["--models", str(folder), *arguments])
        return [case.name for case in compare.cases(options)]

    assert names() == ["fixed", "open"]
    assert names("--batch", "1,4") == ["fixed", "open[batch=1]", "open[batch=4]"]
    assert names("--lengths", "16,32", "--batch", "2")[1:] == ["open[batch=2,length=16]", "open[batch=2,length=32]"]
    assert names("--sizes", "batch=2,length=3", "--sizes", "length=9")[1:] == [
        "open[batch=2,length=3]",
        "open[length=9]",
    ]
    with pytest.raises(SmeltError, match="no models"):
        list(compare.cases(compare.parser().parse_args(["--models", str(folder / "..")])))


def test_inputs_have_the_sizes_that_were_asked_for(folder: Path) -> None:
    inputs = inputs_for(folder / "open.onnx", ["length=7"])
    assert inputs["x"].shape == (1, 7, 8)
    np.testing.assert_array_equal(inputs["x"], inputs_for(folder / "open.onnx", ["length=7"])["x"])


def test_integers_are_indices_of_the_tables_that_they_look_up(tmp_path: Path) -> None:
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    tables = [numpy_helper.from_array(np.ones((rows, 4), np.float32), f"table{rows}") for rows in (500, 3)]
    nodes = [
        helper.make_node("Gather", ["table500", "words"], ["a"]),
        helper.make_node("Gather", ["table3", "kinds"], ["b"]),
        helper.make_node("Cast", ["mask"], ["c"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [1, 400]) for name in ("words", "kinds", "mask")
    ]
    results = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("y", "c")]
    graph = helper.make_graph(nodes, "tables", ends, results, tables)
    path = tmp_path / "tables.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    inputs = inputs_for(path, ())
    assert {name: (int(array.min()), int(array.max())) for name, array in inputs.items() if name != "words"} == {
        "kinds": (0, 2),
        "mask": (0, 1),
    }
    assert inputs["words"].min() >= 0
    assert 400 < inputs["words"].max() < 500


def test_a_histogram_has_the_calls_where_they_belong() -> None:
    fast, slow, axis = histogram({"fast": [1.0] * 99 + [1.1], "slow": [10.0] * 50 + [5.0] * 50}, columns=20)
    assert fast.startswith("fast █")
    assert fast.strip().count("█") == 1
    assert slow.rstrip().endswith("█")
    assert slow.count("█") == 2
    assert axis.split() == ["ms", "1", "3.16", "10"]
    assert histogram({"one": [2.0, 2.0, 2.0]}, columns=5)[0].count("█") == 1
