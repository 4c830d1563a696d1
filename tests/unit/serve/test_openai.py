"""OpenAI's API, with the `openai` client unmodified, on a tiny language model behind a real server."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

import smelt
from smelt.cli.load import Load, load
from smelt.cli.load_language import summarise, token_times
from smelt.cli.open_loop import Streamed
from smelt.serve.language import Languages, Opened, cancel_all
from smelt.serve.stats import ModelStats
from smelt.serve.text_model import LocalTexts
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_vocabulary
from tests.unit.llm.test_forms import write_letters
from tests.unit.serve.test_server import Server

CASE = Case.load(FIXTURE)[0]
WORDS = ["<unk>", *(f"w{i}" for i in range(1, 96))]
TEMPLATE = "{% for m in messages %}w5 {{ m.content }} {% endfor %}w6"
MESSAGES: list[Any] = [{"role": "user", "content": "w7 w8 w9"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    path.mkdir()
    write_checkpoint(path, CASE.config, CASE.shapes)
    write_vocabulary(path / "tokenizer.json", WORDS)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


CALLS = '{% if tools %}{{ tools | length }}"parameters":{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}'


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    (folder.parent / "letters").mkdir()
    letters = write_letters(folder.parent / "letters", CALLS)
    made = Server(str(folder), str(letters), "--engine", "reference")
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.http}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with smelt.llm.load(folder, engine="reference") as loaded:
        yield loaded


def test_models(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == ["tiny", "letters"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_chat_answers_as_the_engine_does(client: openai.OpenAI, model: Any) -> None:
    want = model.chat(MESSAGES, max_tokens=12)
    got = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=12)
    assert got.choices[0].message.content == want.text
    assert got.choices[0].finish_reason == want.finish
    assert got.usage is not None
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (want.prompt_tokens, len(want.ids))
    parts: Any = [{"type": "text", "text": "w7 w8"}, {"type": "text", "text": " w9"}]
    messages: list[Any] = [{"role": "user", "content": parts}]
    again = client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_completion_tokens=12)
    assert again.choices[0].message.content == want.text


@pytest.mark.parametrize("name", ["team", ""])
def test_keys_are_the_clients_that_are_served_alike(model: Any, name: str) -> None:
    asked: list[Any] = []

    class Texts(LocalTexts):
        async def generate(self, prompt: Any, options: Any, said: bool) -> Any:
            asked.append(options["client"])
            return await super().generate(prompt, options, said)

    config = SimpleNamespace(max_queue=4, timeout=None)
    version: Any = SimpleNamespace(name="tiny", loaded=Texts(model), config=config, stats=ModelStats())
    request: Any = SimpleNamespace(key=SimpleNamespace(name=name) if name else None)
    languages = Languages(catalogue=None, config=None, keys=None)  # type: ignore[arg-type]
    opened = Opened(version)
    runs = asyncio.run(languages.start(request, opened, [[3, 4]], {}, 2))
    assert asked == [name, name]
    assert opened.texts.running == 2
    cancel_all(runs)
    assert opened.texts.running == 0


def test_streams_give_the_same_text(client: openai.OpenAI, model: Any) -> None:
    want = model.chat(MESSAGES, max_tokens=12)
    stream = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        temperature=0,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == want.text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == want.finish
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(want.ids)
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_answers_seeds_and_probabilities(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> Any:
        return client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=6, **more)

    first, second = (ask(n=3, seed=5, temperature=1.5) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) > 1
    rows = ask(temperature=0, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(rows) == 6
    for row in rows:
        assert len(row.top_logprobs) == 3
        assert row.logprob == row.top_logprobs[0].logprob <= 0
    stop = ask(temperature=0).choices[0].message.content.split()[2]
    cut = ask(temperature=0, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop"
    assert stop not in cut.message.content.split()


SCHEMA = {
    "type": "object",
    "properties": {"name": {"const": "f"}, "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}},
                   "required": ["x"], "additionalProperties": False}},
    "required": ["name", "parameters"],
    "additionalProperties": False,
}  # fmt: skip
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def test_answers_of_a_given_form_and_tools(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}

    def ask(**more: Any) -> Any:
        asked: list[Any] = [{"role": "user", "content": "go"}]
        return client.chat.completions.create(
            model="letters", messages=asked, max_tokens=60, seed=1, response_format=form, **more
        )

    said = ask().choices[0].message
    assert said.tool_calls is None
    assert json.loads(said.content)["name"] == "f"
    choice = ask(tools=TOOLS).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)["x"] in (1, 2)) == ("f", True)
    last = list(ask(tools=TOOLS, stream=True))[-1].choices[0]
    assert last.finish_reason == "tool_calls"
    assert last.delta.tool_calls[0].function.name == "f"
    assert ask(tools=TOOLS, tool_choice="none").choices[0].message.tool_calls is None
    back: list[Any] = [{"role": "user", "content": "go"}, choice.message.to_dict(),
                       {"role": "tool", "tool_call_id": call.id, "content": "3"}]  # fmt: skip
    more = client.chat.completions.create(model="letters", messages=back, max_tokens=2, tools=TOOLS)
    assert more.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="no place for tools"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS)
    wrong: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "nonsense"}}}
    with pytest.raises(openai.BadRequestError, match="schema"):
        client.chat.completions.create(model="letters", messages=MESSAGES, response_format=wrong)


WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/Place"}},
    "required": ["at"],
    "additionalProperties": False,
    "$defs": {"Place": {"enum": ["here", "there"]}},
}
CLOCK = {**WEATHER, "$defs": {"Place": {"enum": ["up"]}}}
TWO: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": form}}
    for name, form in (("weather", WEATHER), ("clock", CLOCK))
]


def test_a_tool_choice_is_kept(client: openai.OpenAI) -> None:
    """Random answers of a model that knows no tools are calls nevertheless: their form is guaranteed."""
    messages: list[Any] = [{"role": "user", "content": "go"}]

    def ask(choice: Any, **more: Any) -> Any:
        return client.chat.completions.create(
            model="letters", messages=messages, max_tokens=80, tools=TWO, tool_choice=choice, **more
        )

    places = {"weather": ("here", "there"), "clock": ("up",)}
    for name in places:
        (call,) = ask({"type": "function", "function": {"name": name}}).choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)["at"] in places[name]) == (name, True)
    for choice in ask("required", n=6, seed=3).choices:
        (call,) = choice.message.tool_calls
        assert json.loads(call.function.arguments)["at"] in places[call.function.name]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    last = list(ask("required", stream=True))[-1].choices[0]
    assert last.delta.tool_calls[0].function.name in places
    cut = client.chat.completions.create(
        model="letters", messages=messages, max_tokens=3, tools=TWO, tool_choice="required"
    ).choices[0]
    assert (cut.finish_reason, cut.message.tool_calls) == ("length", None)
    flat: Any = [{"type": "function", **each["function"]} for each in TWO]
    wanted: Any
    for wanted in ("required", {"type": "function", "name": "clock"}):
        called = client.responses.create(model="letters", input="go", tools=flat, tool_choice=wanted).output[0]
        assert called.type == "function_call"
        assert json.loads(called.arguments)["at"] in places[called.name]
    for wrong in ({"type": "function", "function": {"name": "h"}}, "sometimes", {"type": "custom"}):
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            ask(wrong)


def test_responses(client: openai.OpenAI, model: Any) -> None:
    want = model.chat(MESSAGES, max_tokens=9)
    given: Any = [{"role": "user", "content": [{"type": "input_text", "text": "w7 w8 w9"}]}]
    for asked in ("w7 w8 w9", given):
        got = client.responses.create(model="tiny", input=asked, temperature=0, max_output_tokens=9)
        assert got.output_text == want.text
        assert (got.status, got.usage and got.usage.output_tokens) == ("incomplete", 9)
    events = list(
        client.responses.create(model="tiny", input="w7 w8 w9", temperature=0, max_output_tokens=9, stream=True)
    )
    assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == want.text
    assert events[0].type == "response.created"
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == want.text
    assert [each.sequence_number for each in events] == list(range(len(events)))
    flat: Any = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    form: Any = {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}
    called = client.responses.create(model="letters", input="go", tools=flat, text=form, max_output_tokens=60)
    assert called.output[0].type == "function_call"
    assert called.output[0].name == "f"
    back: Any = [{"role": "user", "content": "go"}, called.output[0].to_dict(),
                 {"type": "function_call_output", "call_id": called.output[0].call_id, "output": "3"}]  # fmt: skip
    more = client.responses.create(model="letters", input=back, tools=flat, max_output_tokens=2)
    assert more.usage is not None
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="tiny", input="w1", previous_response_id="resp_1")


def test_completions(client: openai.OpenAI, model: Any) -> None:
    want = model.generate("w3 w4", max_tokens=5)
    for prompt in ("w3 w4", model.tokenizer.encode("w3 w4")):
        got = client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=5)
        assert got.choices[0].text == want.text
    several = client.completions.create(model="tiny", prompt=["w3 w4", "w9"], temperature=0, max_tokens=5, logprobs=2)
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == want.text
    assert several.choices[0].logprobs is not None
    assert len(several.choices[0].logprobs.tokens or ()) == 5
    streamed = client.completions.create(model="tiny", prompt="w3 w4", temperature=0, max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == want.text


def test_coroutines(server: Server, model: Any) -> None:
    want = model.chat(MESSAGES, max_tokens=8).text

    async def work() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.http}/v1", api_key="none") as client:
            asked = [
                client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=8)
                for _ in range(6)
            ]
            return [each.choices[0].message.content for each in await asyncio.gather(*asked)]

    assert asyncio.run(work()) == [want] * 6


def test_mistakes_have_the_right_class(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> Any:
        return client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "max_tokens": 2, **more})

    with pytest.raises(openai.NotFoundError, match="no model 'huge'"):
        ask(model="huge")
    for wrong, message in (
        ({"messages": []}, "no messages"),
        ({"temperature": -1}, "temperature"),
        ({"n": 1000}, "n is out of range"),
        ({"messages": [{"role": "user", "content": "w1 " * 5000}]}, "too many tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "no text"),
        ({"logit_bias": {"x": 1}}, "by number"),
        ({"messages": "hello"}, "does not fit"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            ask(**wrong)
    assert ask(temperature=0).choices[0].message.content


def test_tokens(server: Server, model: Any) -> None:
    status, found = server.ask("POST", "/tokenize", {"model": "tiny", "prompt": "w3 w4"})
    assert (status, found["tokens"]) == (200, model.tokenizer.encode("w3 w4"))
    status, back = server.ask("POST", "/detokenize", {"model": "tiny", "tokens": found["tokens"]})
    assert (status, back["prompt"]) == (200, "w3 w4")
    assert server.ask("POST", "/detokenize", {"model": "tiny", "tokens": [1 << 40]})[0] == 400


def test_ollama_answers_the_same(server: Server, model: Any) -> None:
    want = model.chat(MESSAGES, max_tokens=7)
    options = {"temperature": 0, "num_predict": 7, "num_ctx": 100}
    asked = {"model": "tiny:latest", "messages": MESSAGES, "options": options}
    status, whole = server.ask("POST", "/api/chat", {**asked, "stream": False})
    assert (status, whole["message"]["content"], whole["eval_count"]) == (200, want.text, 7)
    connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
    connection.request("POST", "/api/chat", json.dumps(asked))
    lines = [json.loads(line) for line in connection.getresponse().read().splitlines()]
    connection.close()
    assert "".join(line["message"]["content"] for line in lines) == want.text
    assert [line["done"] for line in lines] == [False] * 7 + [True]
    status, raw = server.ask("POST", "/api/generate", {
        "model": "tiny", "prompt": "w3 w4", "raw": True, "stream": False, "options": options,
    })  # fmt: skip
    assert (status, raw["response"]) == (200, model.generate("w3 w4", max_tokens=7).text)
    assert [row["name"] for row in server.ask("GET", "/api/tags")[1]["models"]] == ["tiny", "letters"]
    assert server.ask("POST", "/api/show", {"model": "tiny"})[1]["template"] == TEMPLATE
    assert server.ask("POST", "/api/chat", {**asked, "options": {"temprature": 1}})[0] == 400


def test_a_client_that_leaves_ends_its_answer(server: Server) -> None:
    def active() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found = re.findall(r'^vllm:num_requests_(?:running|waiting)\{model_name="tiny"\} (\d+)$', text, re.MULTILINE)
        assert len(found) == 2
        return sum(map(int, found))

    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 400, "stream": True, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    reply = connection.getresponse()
    assert reply.read(10)
    assert active() == 1
    reply.close()
    connection.close()
    while active():
        pass
    assert server.ask("GET", "/v2/health/ready")[0] == 200


def test_the_load_test_of_a_language_model(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    asked = Load("tiny", rate=20.0, seconds=0.2, prompt=5, new=6, within_ms=1e6)
    load(f"http://127.0.0.1:{server.http}", asked, True)
    found = json.loads(capsys.readouterr().out)
    assert (found["answered"], found["failed"]) == (4, 0)
    assert 4 <= found["tokens"] <= 24
    assert 0 < found["first_token_ms"]["50"] <= found["most_ms"]
    assert found["goodput"] > 0


def test_tokens_of_a_stream_and_their_times() -> None:
    events = [b'data: {"choices": [{"text": "a"}]}\n\n', b'data: {"choices": [{"text": "b"}]}\n\n']
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n'
    content = b"".join([*events, events[0], usage, b"data: [DONE]\n\n"])
    ends = [len(events[0]), len(events[0]) * 3, len(content)]
    answer = Streamed(content, list(zip([0.1, 0.3, 0.4], ends, strict=True)))
    assert token_times(answer) == [0.1, 0.3, 0.3]
    first, about = summarise([answer])
    assert (first, about["tokens"], about["between_tokens_ms"]["50"]) == ([0.1], 3, pytest.approx(100))
