"""Ollama's options, durations and forms as records, without a server."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smelt.llm.tools import CONVENTIONS
from smelt.serve import ollama
from smelt.serve.ollama import LONGEST, _describe, _message, _name, _options, _schema, _seconds, _tail, _whole
from smelt.serve.problems import RequestError
from smelt.serve.tool_choice import ToolUse

DURATIONS: list[tuple[Any, float | None]] = [
    (None, None), (0, 0), (0.0, 0.0), (5, 5), (2.5, 2.5), (-1, None), (-0.5, None), (LONGEST, LONGEST),
    (LONGEST * 1.5, None), ("0", 0), ("5", 5), ("1.5", 1.5), ("-1", None), ("5m", 300), ("1h30m", 5400), ("1.5h", 5400),
    ("250ms", 0.25), ("3us", 3e-6), ("4µs", 4e-6), ("7ns", 7e-9), ("1m1s", 61), (" 2s ", 2), ("-2s", None),
    ("1000000000", LONGEST), ("1000000001", None), (".5s", 0.5), ("2.s", 2),
]  # fmt: skip


@pytest.mark.parametrize(("given", "seconds"), DURATIONS)
def test_how_long_a_model_stays(given: Any, seconds: float | None) -> None:
    found = _seconds(given)
    assert found == (seconds if seconds is None else pytest.approx(seconds, rel=1e-12))


@pytest.mark.parametrize("given", ["", "m", "5x", "5m3", "m5", "1,5", "--1", "5 m", "1e3", float("nan")])
def test_what_is_no_duration(given: Any) -> None:
    with pytest.raises(RequestError, match="keep_alive is no duration"):
        _seconds(given)


def test_long_durations_are_cut_in_the_message() -> None:
    with pytest.raises(RequestError) as caught:
        _seconds("x" * 100)
    assert caught.value.got == "x" * 80


DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "max_tokens": None}
OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}), ({"temperature": 0}, {"temperature": 0}), ({"temperature": None}, {}),
    ({"top_k": 1, "seed": 7}, {"top_k": 1, "seed": 7}),
    ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}), ({"num_predict": 9}, {"max_tokens": 9}),
    ({"num_predict": 0}, {"max_tokens": 0}), ({"num_predict": -1}, {}), ({"num_predict": -2}, {}),
    ({"num_predict": None}, {}),
    ({"num_ctx": 99, "numa": True}, {}), ({"stop": ["a"], "min_p": 0.1}, {"stop": ["a"], "min_p": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), OPTIONS)
def test_options(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert _options(given) == DEFAULTS | wanted


def test_options_that_are_refused() -> None:
    with pytest.raises(RequestError, match="unknown options") as caught:
        _options({"z": 1, "a": 2, "seed": 3})
    assert caught.value.got == "a, z"
    for wrong in (1.5, True, "9"):
        with pytest.raises(RequestError, match="num_predict is a whole number"):
            _options({"num_predict": wrong})


def test_forms_of_answers() -> None:
    assert [_schema(each) for each in (None, "")] == [{}, {}]
    assert _schema("json") == {"schema": {"type": "object"}}
    assert _schema({"type": "array"}) == {"schema": {"type": "array"}}
    for wrong in ("xml", 7, ["json"]):
        with pytest.raises(RequestError, match="unknown format"):
            _schema(wrong)
    assert (_name("m:latest"), _name("m:7b"), _name("latest")) == ("m", "m:7b", "latest")
    assert _message("a", []) == {"role": "assistant", "content": "a"}
    assert _message("", [{"b": 1}]) == {"role": "assistant", "content": "", "tool_calls": [{"b": 1}]}


def test_calls_of_tools_take_the_place_of_text() -> None:
    said = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    run: Any = SimpleNamespace(text="plain", said=said)
    call = {"function": {"name": "f", "arguments": {"x": 1}}}

    def form(text: str, calls: list[Any]) -> dict[str, Any]:
        return {"text": text, "calls": calls}

    tools = ToolUse(["f"], CONVENTIONS[0])
    assert _whole(run, form, tools) == {"text": "", "calls": [call]}
    assert _whole(run, form, ToolUse()) == {"text": "plain", "calls": []}
    run.said = "plain"
    assert _whole(run, form, tools) == {"text": "plain", "calls": []}


def test_times_are_nanoseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ollama, "time", SimpleNamespace(perf_counter=lambda: 12.5))
    run: Any = SimpleNamespace(first=0.5, prompt=[1, 2, 3], tokens=4, finish="stop")
    assert _tail(run, 10.0) == {
        "done": True, "done_reason": "stop", "total_duration": 2_500_000_000, "load_duration": 0,
        "prompt_eval_duration": 500_000_000, "eval_duration": 2_000_000_000, "prompt_eval_count": 3, "eval_count": 4,
    }  # fmt: skip
    run.first = 9.0
    assert _tail(run, 10.0)["eval_duration"] == 0


def test_files_of_a_model(tmp_path: Path) -> None:
    about = SimpleNamespace(format="gguf", family="llama")
    folder = tmp_path / "m"
    (folder / "inside").mkdir(parents=True)
    for name, size, changed in (("a", 3, 100), ("b", 4, 200), ("inside/c", 5, 300)):
        (folder / name).write_bytes(bytes(size))
        os.utime(folder / name, (changed, changed))

    def describe(path: Path) -> tuple[Any, Any]:
        version: Any = SimpleNamespace(path=path, name="n", about=about)
        found = _describe(version)
        assert (found["name"], found["model"], found["details"]) == ("n", "n", {"format": "gguf", "family": "llama"})
        return found["size"], found["modified_at"]

    assert describe(folder) == (7, datetime.fromtimestamp(200, UTC).isoformat())
    assert describe(folder / "a") == (3, datetime.fromtimestamp(100, UTC).isoformat())
