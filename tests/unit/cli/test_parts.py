"""What commands are made of, each part alone: shortened text, tables, sizes, metrics, measurements, a progress bar."""

from __future__ import annotations

import importlib
import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from smelt.activity import progress
from smelt.cli import progress as bars
from smelt.cli import rounds, top
from smelt.cli.check_modules import tensor_functions
from smelt.cli.fold import LONG, TEXT, ShortNames, fold_list, fold_text
from smelt.cli.outputs import check_output, make_folder
from smelt.cli.preflight import parse_static
from smelt.cli.sizes import parse_sizes
from smelt.cli.tables import Column, layout
from smelt.device import peak
from smelt.dtype import Array
from smelt.errors import DeviceError, FileError, SmeltError, UnsupportedError

DIGITS = Path("smelt/assets/digits.onnx")

# ---- text ----


def test_long_lists_are_cut_where_more_than_one_item_goes() -> None:
    items = ["a", "b", "c", "d"]
    assert fold_list(items, 3, False) == items
    assert fold_list(items, 2, False) == ["a", "b", "… and 2 more (--verbose shows all)"]
    assert fold_list(items, 2, True) == items
    assert fold_list([], 0, False) == []


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("x" * TEXT, "x" * TEXT),
        ("x" * (TEXT + 1), "x" * TEXT + f" … ({TEXT + 1} characters, --verbose shows all)"),
        ("a\nb", "a … (2 lines, --verbose shows all)"),
        ("\nb", "… (2 lines, --verbose shows all)"),
    ],
)
def test_long_text_is_cut(text: str, short: str) -> None:
    assert fold_text(text, False) == short
    assert fold_text(text, True) == text


def test_long_symbols_get_short_names_that_are_free() -> None:
    fits, long, other = "n" * LONG, "n" * (LONG + 1), "a.b-c.dynamic.0"
    names = ShortNames([fits, long, other, "d1"])
    assert names.legend() == [f"d0 = {other}", f"d2 = {long}"]
    assert names.shorten(f"{long}*{fits} <= {other}") == f"d2*{fits} <= d0"
    assert names.shorten(f"x.{long}") == f"x.{long}", "a part of another name"
    assert ShortNames(["n"]).shorten("n <= 2") == "n <= 2"


def test_output_files_and_folders(tmp_path: Path) -> None:
    check_output(None)
    check_output(tmp_path / "new.json")
    make_folder(None)
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(FileError, match=r"expected a file\s+got +a folder"):
        check_output(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot write to .*file"):
        make_folder(tmp_path / "file")


# ---- tables ----

ROWS = [("name", "n", "note"), ("first", "12", "three short words"), ("a-longer-name", "1234567", "one")]
COLUMNS = (Column("name", True), Column("n", drop=1), Column("note", True, drop=2))

WIDE = ["name                 n  note", "first               12  three short words", "a-longer-name  1234567  one"]


@pytest.mark.parametrize(
    ("room", "lines"),
    [
        (80, WIDE),
        (41, WIDE),
        (40, ["name                 n  note", "first               12  three short\n                        words",
              "a-longer-name  1234567  one"]),
        (29, ["name                 n  note", "first               12  three\n                        short\n"
              "                        words", "a-longer-name  1234567  one"]),
        (28, ["name                 n", "first               12", "a-longer-name  1234567"]),
        (22, ["name                 n", "first               12", "a-longer-name  1234567"]),
        (21, ["name", "first", "a-longer-name"]),
        (13, ["name", "first", "a-longer-name"]),
    ],
)  # fmt: skip
def test_tables_drop_columns_and_then_wrap(room: int, lines: list[str]) -> None:
    assert list(layout(COLUMNS, ROWS, room)) == lines


NARROW = {  # a command's columns of numbers, and its columns in the order in which a narrow terminal loses them
    "bench": ("median ms, p10, p90, p99, calls/s, calls, of smelt's", "calls, calls/s, p99, p10, p90"),
    "cache": ("size", "key"),
    "diff": ("largest difference, relative", "made by, type"),
    "profile": ("x, ms, %, GFLOP/s, GB/s, best ms, of best", "GB/s, GFLOP/s, best ms, x"),
    "pull": ("size", "path"),
    "run": ("min, mean, max", "mean, max, min"),
    "show": ("count, MFLOP, moves", "function, reads, moves, MFLOP"),
    "tune": ("% of time, speedup, tried", "% of time, tried"),
}


@pytest.mark.parametrize("name", NARROW)
def test_columns_of_commands(name: str) -> None:
    columns = importlib.import_module(f"smelt.cli.{name}").COLUMNS
    numbers = [column.head for column in columns if not column.is_text]
    lost = sorted((i for i, column in enumerate(columns) if column.drop), key=lambda i: (-columns[i].drop, -i))
    assert (numbers, [columns[i].head for i in lost]) == tuple(each.split(", ") for each in NARROW[name])


# ---- options ----


@pytest.mark.parametrize(
    ("item", "known", "expected", "remedy"),
    [
        ("batch", None, "NAME=NUMBER", "--size NAME=2"),
        ("=4", None, "NAME=NUMBER", "--size NAME=2"),
        ("batch=-1", ["batch"], "batch=NUMBER", "--size batch=2"),
        ("batch=x", ["batch", "n"], "batch, n=NUMBER", "--size batch=2"),
        ("other=4", ["batch"], "batch=NUMBER", "--size batch=2"),
        ("other=4", [], "none: every size is fixed", "leave --size out"),
    ],
)
def test_sizes_that_are_not_understood(item: str, known: list[str] | None, expected: str, remedy: str) -> None:
    with pytest.raises(SmeltError, match="--size is not understood") as raised:
        parse_sizes([item], known)
    assert (raised.value.expected, raised.value.got, raised.value.remedy) == (expected, item, remedy)


def test_sizes() -> None:
    assert parse_sizes([]) == {}
    assert parse_sizes(["a=1", "x=y=0", "a=3"], None) == {"a": 3, "x=y": 0}


@pytest.mark.parametrize(
    ("file", "item", "kind", "message"),
    [
        (DIGITS, "pixels", SmeltError, r"--static is not understood(?s:.)*pixels=VALUE"),
        (DIGITS, "other=1", SmeltError, r"--static is not understood(?s:.)*smelt inspect"),
        (DIGITS, "pixels=[1", SmeltError, r"--static is not understood(?s:.)*a list such as"),
        (DIGITS, "pixels=nowhere.npy", FileError, r"cannot read nowhere\.npy(?s:.)*numpy\.save"),
        (Path("x.smelt"), "pixels=1", UnsupportedError, "compile-time inputs of a bundle are fixed"),
        (Path("tests/golden/gemm.mlir"), "x=1", SmeltError, "only inputs of ONNX models"),
    ],
)
def test_static_values_that_are_not_understood(file: Path, item: str, kind: type[SmeltError], message: str) -> None:
    with pytest.raises(kind, match=message):
        parse_static(file, [item])
    assert parse_static(file, []) == {}


def test_static_values(tmp_path: Path) -> None:
    (found,) = parse_static(DIGITS, ["pixels=[1, 2]"]).values()
    assert (found.dtype, found.tolist()) == (np.float32, [1, 2])
    np.save(tmp_path / "x.npy", np.arange(3))
    (found,) = parse_static(DIGITS, [f"pixels={tmp_path / 'x.npy'}"]).values()
    assert found.tolist() == [0, 1, 2]


# ---- smelt top ----

BEFORE = """
# HELP nv_inference_request_success …
nv_inference_request_success{model="m",version="1"} 10
nv_inference_request_failure{model="m",version="1"} 1
process_cpu_seconds_total 2.5
smelt_request_duration_seconds_bucket{model="m",version="1",le="0.01"} 4
smelt_request_duration_seconds_bucket{model="m",version="1",le="0.1"} 10
smelt_request_duration_seconds_bucket{model="m",version="1",le="+Inf"} 10
"""
NOW = """
nv_inference_request_success{version="1",model="m"} 30
nv_inference_request_success{model="l \\"x\\"",version="2"} 5
nv_inference_request_failure{model="m",version="1"} 3
smelt_request_refused{model="m",version="1"} 4
nv_inference_pending_request_count{model="m",version="1"} 7
smelt_running_calls{model="m",version="1"} 2
smelt_model_memory_bytes{model="m",version="1"} 2000000
vllm:generation_tokens_total{model_name="m"} 50
process_cpu_seconds_total 4.5
process_resident_memory_bytes 3e6
smelt_worker_cpu_seconds_total{model="m",version="1"} 0.5
smelt_worker_memory_bytes{model="m",version="1"} 1048576
process_start_time_seconds 1000
smelt_request_duration_seconds_bucket{model="m",version="1",le="0.01"} 14
smelt_request_duration_seconds_bucket{model="m",version="1",le="0.1"} 28
smelt_request_duration_seconds_bucket{model="m",version="1",le="+Inf"} 30
"""
LABELS = (("model", "m"), ("version", "1"))


def test_rows_between_two_looks() -> None:
    before, now = top.parse_metrics(BEFORE), top.parse_metrics(NOW)
    first, second = top.rows_between(before, now, 2.0)
    times = [first.p50_ms, first.p99_ms]
    assert times == pytest.approx([10.0, 100.0])
    assert first == top.Row("m", "1", 10.0, 3.0, times[0], times[1], 7, 2, 2_000_000, 25.0)
    assert second == top.Row('l \\"x\\"', "2", 2.5, 0.0, None, None, 0, 0, 0, None)
    assert top.rows_between(now, before, 2.0)[0].per_second == 0.0, "a server that began again"


@pytest.mark.parametrize(
    ("share", "ms"), [(0.1, 2.0), (0.5, 10.0), (0.7, 55.0), (0.9, 100.0), (0.95, 100.0), (1.0, 100.0)]
)
def test_quantiles_are_linear_inside_a_bucket(share: float, ms: float) -> None:
    """Ten requests below 10 ms, eight below 100, two above."""
    found = top.quantile(top.parse_metrics(BEFORE), top.parse_metrics(NOW), LABELS, share)
    assert found == pytest.approx(ms)
    assert top.quantile({}, {}, LABELS, share) is None
    assert top.quantile(top.parse_metrics(NOW), top.parse_metrics(NOW), LABELS, share) is None


def test_the_table_of_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "time", lambda: 1000 + 2 * 3600 + 3 * 60 + 4)
    before, now = top.parse_metrics(BEFORE), top.parse_metrics(NOW)
    text = io.StringIO()
    console = Console(file=text, width=120, highlight=False)
    console.print(top.draw("http://h:1", top.rows_between(before, now, 2.0), before, now, 2.0))
    assert [line.split() for line in text.getvalue().splitlines()] == [
        ["http://h:1", "up", "2:03:04", "CPU", "125", "%", "memory", "3.861", "MiB"],
        ["model", "req/s", "fail/s", "p50", "p99", "queue", "run", "memory", "tok/s"],
        ["m", "v1", "10.0", "3.0", "10", "100", "7", "2", "1.907", "MiB", "25"],
        ["l", '\\"x\\"', "v2", "2.5", "0.0", "–", "–", "0", "0", "–", "–"],
        ["p50", "and", "p99", "in", "ms;", "queue,", "run:", "requests", "that", "wait", "and", "run"],
    ]
    narrow = io.StringIO()
    table = top.draw("http://h:1", top.rows_between(before, now, 2.0), before, now, 2.0)
    Console(file=narrow, width=60, highlight=False).print(table)
    assert "…" not in narrow.getvalue()


def test_top_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    looks = iter([BEFORE, NOW])
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(top, "fetch", lambda url, key: top.parse_metrics(next(looks)))
    monkeypatch.setattr(top, "monotonic", lambda: next(clock))
    monkeypatch.setattr(top, "sleep", lambda seconds: None)
    top.top("http://h:1", "", 2.0, False, True)
    first, second = json.loads(capsys.readouterr().out)
    assert (first["model"], first["per_second"], first["waiting"], first["tokens_per_second"]) == ("m", 10.0, 7, 25.0)
    assert second["p50_ms"] is None


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match=r"does not answer(?s:.)*http://HOST:PORT"):
        top.fetch("nowhere", "")


# ---- measurements ----


def test_functions_of_a_file_that_speak_of_tensors(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text("""
from typing import Protocol, TYPE_CHECKING
def plain(x: int) -> int: return x
def first(x: Tensor): return x
def last(*xs: "Shaped") -> None:
    "text"
    return None
def declared(x: Tensor): ...
def documented(x: Tensor):
    "text"
    ...
def computed(x: Tensor):
    ...
    return x
@wrap
@again
def wrapped(x, *, y: Shaped): pass
class A:
    def method(self, **more: Tensor):
        def inner() -> Tensor: pass
class B(typing.Protocol):
    def method(self, x: Tensor): return x
if TYPE_CHECKING:
    def unseen(x: Tensor): return x
if True:
    async def seen(x, /, y: Tensor): return y
""")
    assert {(each.name, each.line, each.hidden.partition(" ")[0]) for each in tensor_functions(file)} == {
        ("first", 4, "nothing"), ("last", 5, "nothing"), ("computed", 12, "nothing"), ("wrapped", 15, "its"),
        ("A.method", 19, "nothing"), ("A.method.<locals>.inner", 20, "it"), ("seen", 26, "nothing"),
    }  # fmt: skip


def test_times_and_outcomes() -> None:
    times = rounds.Times("1.0", tuple(float(i) for i in range(11)), 20.0)
    assert times.summary() == {"median_ms": 5.0, "p10": 1.0, "p90": 9.0, "runs": 11}
    assert rounds.Times("1.0", (1.0, 2.0), 3.0, 1.5).summary()["solo_ms"] == 1.5
    alone = {name: rounds.Times("", (value,), 0.0, 100.0) for name, value in
             {"a": 104.9, "b": 106.0, "c": 94.0, "d": 95.1}.items()}  # fmt: skip
    outcome = rounds.Outcome(alone | {"e": times}, {}, {}, [])
    assert outcome.unsteady == {"b": pytest.approx(0.06), "c": pytest.approx(-0.06)}


def of(kind: str, numbers: list[Any]) -> Array:
    return np.array(numbers, kind)


A = np.array([1.0, -4.0, np.inf, np.nan], np.float32)


@pytest.mark.parametrize(
    ("ours", "theirs", "want"),
    [
        ([A], [A], (0.0, 0.0, True, "")),
        ([A], [A + of("float32", [0, 0.5, 0, 0])], (0.5, 0.5 / 3.5, False, "")),
        ([of("float32", [1, 4])], [of("float32", [1, 4.004])], (0.004, 0.001, True, "")),
        ([A], [-A], (np.inf, np.inf, False, "output 0: not finite in one of them")),
        ([A], [A[:2]], (np.inf, np.inf, False, "output 0: [4] and [2]")),
        ([A], [A, A], (np.inf, np.inf, False, "1 outputs and 2")),
        ([of("int8", [5])], [of("int8", [6])], (1.0, 1 / 6, True, "")),
        ([of("uint8", [5])], [of("uint8", [7])], (2.0, 2 / 7, False, "")),
        ([of("int32", [5])], [of("int32", [6])], (1.0, 1 / 6, False, "")),
        ([np.array(["a", "b"])], [np.array(["a", "b"])], (0.0, 0.0, True, "")),
        ([np.array(["a", "b"])], [np.array(["a", "c"])], (1.0, 1.0, False, "")),
        ([of("float32", [0])], [of("float32", [0.25])], (0.25, 1.0, False, "")),
        ([of("float32", [0.25])], [of("float32", [0])], (0.25, 0.25, False, "")),
        ([of("complex64", [1j])], [of("complex64", [2j])], (1.0, 0.5, False, "")),
    ],
)
def test_differences_of_outputs(ours: list[Any], theirs: list[Any], want: tuple[Any, ...]) -> None:
    (found,) = rounds.differences({"smelt": ours, "other": theirs}, 1.001e-3)
    absolute, relative, agree, what = want
    assert [found.absolute, found.relative] == pytest.approx([absolute, relative], rel=1e-3)
    assert (found.agree, found.what) == (agree, what)
    record = found.record()
    assert record["engines"] == ["smelt", "other"]
    assert ("what" in record) == bool(what)
    assert (record["max_abs"] is None) == (not np.isfinite(absolute))
    json.dumps(record, allow_nan=False)


def test_pythons_of_engines() -> None:
    assert rounds.python_of(["jax=/a=b", "jax=/c"]) == {"jax": "/c"}
    for wrong in ("jax", "jax=", "nobody=/a"):
        with pytest.raises(SmeltError, match=r"--python is not understood(?s:.)*ENGINE=PATH"):
            rounds.python_of([wrong])
    with pytest.raises(SmeltError, match="unknown engine"):
        rounds.measure(DIGITS, ["smelt", "nobody"], {}, rounds.Setup(1))
    assert rounds.differences({}, 0.0) == []
    assert rounds._environment(3)["OMP_NUM_THREADS"] == "3"
    assert rounds.processors() >= 1
    assert rounds._command("smelt", {"smelt": "/p"})[:3] == ["/p", "-P", "-m"]
    assert rounds._command("onnxruntime", {})[:2] == [sys.executable, "-I"]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan"), "x"])
def test_kept_rates_that_are_no_rates_are_measured_again(rate: Any, tmp_path: Path) -> None:
    good = dict.fromkeys(("flops", *map(str, peak.FOOTPRINTS)), 2.0)
    path = tmp_path / "rates.json"
    assert peak._read_kept(path) == {}
    peak._keep(path, good)
    assert peak._read_kept(path) == good
    path.write_text(json.dumps({**good, "flops": rate}))
    assert peak._read_kept(path) == {}


# ---- the progress bar ----


def test_a_bar_appears_after_a_delay_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[float] = []

    class Timer:
        def __init__(self, seconds: float, action: Any) -> None:
            started.append(seconds)
            self.action, self.daemon, self.cancelled = action, False, False

        def start(self) -> None:
            assert self.daemon

        def cancel(self) -> None:
            self.cancelled = True

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(sys, "stderr", Terminal())
    nothing = progress.get()
    with bars.compiling():
        tell: Any = progress.get()
        assert tell is not nothing
        bar = tell.__self__
        tell(0, 3)
        first = bar._timer
        assert started == [bars.PATIENCE]
        first.action()
        assert bar._progress.tasks[0].total == 3
        tell(2, 3)
        assert (bar._progress.tasks[0].completed, bar._timer is first) == (2, True)
        tell(3, 3)
        assert (bar._progress, bar._timer, first.cancelled) == (None, None, True)
        first.action()
        assert bar._progress is None, "too late"
        tell(0, 2)
        bar._timer.action()
        tell(1, 2)
    assert (bar._progress, bar._timer) == (None, None)
    assert progress.get() is nothing
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bars.compiling():
        assert progress.get() is nothing
