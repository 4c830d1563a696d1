"""Answers of a given form, tool calls and prompt caches, on a tiny checkpoint whose tokens are characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.errors import FileError, ParseError, RunError, SmeltError, UnsupportedError
from smelt.llm import LanguageModel
from smelt.llm.tools import CONVENTIONS, ToolCall, convention_of, parse_calls
from smelt.read import safetensors
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint

CASE = Case.load(FIXTURE)[0]
LETTERS = [chr(i) for i in range(33, 127) if chr(i) not in "`~"]
TOKENS = ["<unk>", "<s>", "</s>", "Ġ", *LETTERS]
PROMPT = [(11 * i) % 90 + 4 for i in range(150)]


def write_letters(path: Path, template: str) -> Path:
    """A checkpoint whose tokens are characters."""
    write_checkpoint(path, CASE.config, CASE.shapes)
    special = [{"id": i, "content": TOKENS[i], "special": True} for i in range(3)]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(TOKENS)}, "merges": [], "unk_token": "<unk>"}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    made: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [each | plain for each in special],
    }
    made |= {"normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}
    (path / "tokenizer.json").write_text(json.dumps(made))
    (path / "chat_template.jinja").write_text(template)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(tmp_path_factory.mktemp("forms"))
    return write_letters(path, "{{ tools | tojson }}<tool_call>{{ messages[-1].content }}")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LanguageModel]:
    with smelt.llm.load(folder, engine="native") as loaded:
        yield loaded


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 3, "maximum": 12}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_have_the_form_that_was_asked_for(model: LanguageModel, temperature: float) -> None:
    pytest.importorskip("llguidance")
    asked: dict[str, Any] = {"temperature": temperature, "seed": 4, "max_tokens": 100}
    answer = model.generate(PROMPT[:9], schema=SCHEMA, n=3, **asked)
    for each in (answer, *answer.alternatives):
        said = json.loads(each.text)
        assert set(said) == {"ok", "n"}
        assert type(said["ok"]) is bool
        assert 3 <= said["n"] <= 12
        assert each.finish == "stop"
    assert re.fullmatch(r"[A-C]{3}-\d{2}", model.generate(PROMPT[:9], regex=r"[A-C]{3}-\d{2}", **asked).text)
    lark = 'start: "yes" | "no" "!"+ "."'
    assert re.fullmatch(r"yes|no!+\.", model.generate("hello", grammar=lark, logit_bias={4: -50.0}, **asked).text)


@pytest.mark.parametrize(
    "form",
    [
        {"schema": {"type": "nonsense"}},
        {"schema": "{"},
        {"schema": 7},
        {"regex": "(("},
        {"regex": ""},
        {"grammar": "start: missing"},
        {"regex": "a", "grammar": 'start: "a"'},
        {"regex": "é日本"},  # no token of this vocabulary makes it
    ],
)
def test_forms_that_cannot_be_kept_are_refused(model: LanguageModel, form: dict[str, Any]) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(SmeltError):
        model.generate(PROMPT, max_tokens=20, **form)
    assert model.generate(PROMPT, max_tokens=1).ids  # the engine goes on


# ---- tools ----


@pytest.mark.parametrize(
    ("template", "text", "calls"),
    [
        (
            "tools <tool_call>",
            'Well.<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
            [("f", {"x": 1})],
        ),
        (
            "tools <tool_call>",
            '<tool_call>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": "{\\"y\\": [2]}"}]</tool_call>',
            [("f", {}), ("g", {"y": [2]})],
        ),
        ("tools [TOOL_CALLS]", '[TOOL_CALLS] [{"name": "f", "arguments": {"x": "]"}}]</s>', [("f", {"x": "]"})]),
        ('tools "parameters":', '<|python_tag|>{"name": "f", "parameters": {"x": 1}}<|eom_id|>', [("f", {"x": 1})]),
        ('tools "parameters":', "It is sunny.", []),
        ("tools <tool_call>", "<tool_call>{broken</tool_call>", []),
        ("tools <tool_call>", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', []),
        ("tools <tool_call>", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', []),
        ("tools <tool_call>", "<tool_call>" + "[" * 100_000, []),
    ],
)
def test_tool_calls_by_the_convention_of_the_template(
    template: str, text: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    assert parse_calls(text, convention_of(template)) == tuple(ToolCall(*call) for call in calls)


def test_tools_reach_the_template_and_calls_the_caller(model: LanguageModel) -> None:
    with pytest.raises(UnsupportedError, match="no place for tools"):
        convention_of("{{ messages }}")
    with pytest.raises(UnsupportedError, match="not known"):
        convention_of("{{ tools }}")
    assert len({each.mark for each in CONVENTIONS}) == len(CONVENTIONS)
    tools = [{"name": "f", "parameters": {}}]
    messages = [{"role": "user", "content": "hi"}]
    assert '"name":' in model.tokenizer.decode(model._prompt(messages, tools))
    pytest.importorskip("llguidance")
    form = r'<tool_call>\{"name":"f","arguments":\{"x":[0-9]\}\}</tool_call>'
    answer = model.chat(messages, tools=tools, regex=form, max_tokens=100)
    assert [call.name for call in answer.tool_calls] == ["f"]
    assert answer.record()["tool_calls"] == [{"name": "f", "arguments": answer.tool_calls[0].arguments}]


# ---- prompt caches ----


def test_a_prompt_cache_goes_to_disk_and_back(model: LanguageModel, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.safetensors"
    assert model.save_cache(path, PROMPT) == 128
    want = model.generate(PROMPT, max_tokens=6, logprobs=2)
    with smelt.llm.load(folder, engine="native") as other:
        assert other.load_cache(path) == 128
        got = other.generate(PROMPT, max_tokens=6, logprobs=2)
        assert (got.cached, got.choices) == (128, want.choices)
        assert other.load_cache(path) == 128  # again, which changes nothing
        assert other._engine.pool.pages.held == 0
    with pytest.raises(RunError, match="full page"):
        model.save_cache(path, PROMPT[:20])


def test_prompt_caches_of_others_are_refused(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "prompt.safetensors"
    model.save_cache(path, PROMPT)
    weights = safetensors.read(path)
    arrays = {name: np.array(weights[name].numpy()) for name in weights}
    said = dict(weights.metadata)
    safetensors.write(path, arrays, {**said, "model": "another"})
    with pytest.raises(FileError, match="another model"):
        model.load_cache(path)
    for wrong in (
        {"tokens": arrays["tokens"][:100]},
        {"tokens": arrays["tokens"] + 1000},
        {"keys.0": arrays["keys.1"][:1]},
    ):
        safetensors.write(path, {**arrays, **wrong}, said)
        with pytest.raises(ParseError):
            model.load_cache(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(SmeltError):
        model.load_cache(path)
