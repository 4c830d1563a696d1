# ruff: noqa: E501  # answers stand in one line
"""OpenAI's APIs without a network: every field of every answer, beside the model itself, and every refusal."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.llm.tools import CONVENTIONS
from smelt.serve import language
from smelt.serve.language import Generation
from smelt.serve.openai import Chat, Completion, openai_problem, usage_of
from smelt.serve.problems import RequestError, UnavailableError
from smelt.serve.responses import ResponsesRequest, _format, _messages, _tool
from smelt.serve.text_model import Token
from smelt.serve.tool_choice import ToolUse
from tests.unit.serve.client import Client, Reply, model, serving
from tests.unit.serve.language_models import write_language_models

MESSAGES = [{"role": "user", "content": "w7 w8 w9"}]
GREEDY = {"model": "tiny", "temperature": 0, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_language_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with serving(model(folder / "tiny"), model(folder / "encoder")) as found:
        yield found


@pytest.fixture(scope="module")
def direct(folder: Path) -> Iterator[Any]:
    with smelt.llm.load(folder / "tiny", engine="reference") as loaded:
        yield loaded


def drop(record: dict[str, Any], prefix: str) -> dict[str, Any]:
    """An answer without what differs from call to call."""
    found = dict(record)
    assert found.pop("id").startswith(prefix)
    assert found.pop("created") > 1.6e9
    return found


def events(reply: Reply) -> list[Any]:
    assert (reply.status, reply.headers["content-type"], reply.headers["cache-control"]) == (
        200,
        "text/event-stream; charset=utf-8",
        "no-cache",
    )
    lines = [line.removeprefix("data: ") for line in reply.body.decode().split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_models(client: Client) -> None:
    rows = client.get("/v1/models").json
    about = {"object": "model", "created": 0, "owned_by": "smelt"}
    tiny = {"id": "tiny", **about, "max_model_len": rows["data"][0]["max_model_len"]}
    assert rows["object"] == "list"
    assert [row["id"] for row in rows["data"]] == ["tiny", "encoder"]
    assert rows["data"][0] == client.get("/v1/models/tiny").json == tiny


def test_a_chat_whole_and_in_pieces(client: Client, direct: Any) -> None:
    want = direct.chat(MESSAGES, max_tokens=5, temperature=0, logprobs=2)
    prompt = len(direct.prompt(MESSAGES))
    asked = {
        **GREEDY,
        "messages": MESSAGES,
        "max_completion_tokens": 5,
        "max_tokens": 2,
        "logprobs": True,
        "top_logprobs": 2,
    }
    found = drop(client.post("/v1/chat/completions", asked).json, "chatcmpl-")
    (choice,) = found.pop("choices")
    usage = {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}
    assert found == {"model": "tiny", "object": "chat.completion", "usage": usage}
    probs = choice.pop("logprobs")
    assert choice == {
        "index": 0, "message": {"role": "assistant", "content": want.text, "refusal": None}, "finish_reason": want.finish,
    }  # fmt: skip
    assert probs["refusal"] is None
    assert [row["token"] for row in probs["content"]] == [direct.tokenizer.decode([token]) for token in want.ids]
    assert [row["bytes"] for row in probs["content"]] == [list(row["token"].encode()) for row in probs["content"]]
    np.testing.assert_allclose(
        [row["logprob"] for row in probs["content"]], [each.logprob for each in want.choices], rtol=1e-4
    )
    for row in probs["content"]:
        assert len(row["top_logprobs"]) == 2
        assert row["top_logprobs"][0] == {key: row[key] for key in ("token", "logprob", "bytes")}
    streamed = events(
        client.post("/v1/chat/completions", {**asked, "stream": True, "stream_options": {"include_usage": True}})
    )
    heads = [{key: each[key] for key in ("model", "object")} for each in streamed]
    assert heads == [{"model": "tiny", "object": "chat.completion.chunk"}] * len(streamed)
    first, *pieces, last, total = streamed
    empty = {"index": 0, "logprobs": None}
    assert first["choices"] == [{**empty, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert "".join(each["choices"][0]["delta"]["content"] for each in pieces) == want.text
    assert [each["choices"][0]["logprobs"]["content"] for each in pieces] == [[row] for row in probs["content"]]
    assert last["choices"] == [{**empty, "delta": {}, "finish_reason": want.finish}]
    assert (total["choices"], total["usage"]) == ([], usage)
    plain = {**GREEDY, "messages": MESSAGES, "max_tokens": 2, "logprobs": True}
    (choice,) = client.post("/v1/chat/completions", plain).json["choices"]
    assert [row["top_logprobs"] for row in choice["logprobs"]["content"]] == [[], []]
    assert "usage" not in events(client.post("/v1/chat/completions", {**plain, "stream": True}))[-1]


def test_answers_and_seeds(client: Client) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "seed": 7, "n": 3, "ignore_eos": True}
    found = client.post("/v1/chat/completions", asked).json
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    assert found["usage"]["completion_tokens"] == 12
    again = client.post("/v1/chat/completions", {**asked, "seed": 9, "n": 1, "temperature": 1.0}).json
    assert again["choices"][0]["message"]["content"] == texts[2]  # seed + 2, and the temperature is 1
    assert len(set(texts)) > 1
    pieces = events(client.post("/v1/chat/completions", {**asked, "stream": True}))
    spoken = [
        "".join(c["delta"].get("content", "") for e in pieces for c in e["choices"] if c["index"] == i)
        for i in range(3)
    ]
    assert spoken == texts


def test_completions(client: Client, direct: Any) -> None:
    want = direct.generate("w7 w8", max_tokens=3, temperature=0, logprobs=1)
    ids = direct.tokenizer.encode("w7 w8")
    asked = {**GREEDY, "prompt": "w7 w8", "max_tokens": 3}
    found = drop(client.post("/v1/completions", {**asked, "logprobs": 1}).json, "cmpl-")
    (choice,) = found.pop("choices")
    usage = {"prompt_tokens": len(ids), "completion_tokens": 3, "total_tokens": len(ids) + 3}
    assert found == {"model": "tiny", "object": "text_completion", "usage": usage}
    probs = choice.pop("logprobs")
    assert choice == {"index": 0, "text": want.text, "finish_reason": want.finish}
    names = [direct.tokenizer.decode([token]) for token in want.ids]
    assert probs["tokens"] == names
    ends = [*probs["text_offset"][1:], len(want.text)]
    parts = [want.text[start:end] for start, end in zip(probs["text_offset"], ends, strict=True)]
    assert ([part.strip() for part in parts], "".join(parts)) == (names, want.text)
    pieces = events(client.post("/v1/completions", {**asked, "logprobs": 1, "stream": True}))[:-1]
    offsets = [each["choices"][0]["logprobs"]["text_offset"] for each in pieces]
    assert offsets == [[offset] for offset in probs["text_offset"]]
    np.testing.assert_allclose(probs["token_logprobs"], [each.logprob for each in want.choices], rtol=1e-4)
    assert [list(each) for each in probs["top_logprobs"]] == [[name] for name in names]
    for prompt, count in ((ids, 1), (["w7 w8", "w3"], 2), ([ids, [5]], 2)):
        many = client.post("/v1/completions", {**asked, "prompt": prompt}).json["choices"]
        assert [each["index"] for each in many] == list(range(count))
        assert many[0] == {"index": 0, "text": want.text, "logprobs": None, "finish_reason": want.finish}
    echoed = client.post("/v1/completions", {**asked, "prompt": ["w7 w8", "w3"], "echo": True, "n": 2}).json["choices"]
    assert [
        each["text"].startswith(start) for each, start in zip(echoed, ("w7 w8", "w7 w8", "w3", "w3"), strict=True)
    ] == [True] * 4
    assert echoed[0]["text"] == "w7 w8" + want.text
    first, *pieces, last = events(client.post("/v1/completions", {**asked, "echo": True, "stream": True}))
    assert first["choices"] == [{"index": 0, "text": "w7 w8", "logprobs": None, "finish_reason": None}]
    assert "".join(each["choices"][0]["text"] for each in pieces) == want.text
    assert last["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": want.finish}]
    assert last["object"] == "text_completion"
    default = client.post("/v1/completions", {**GREEDY, "prompt": "w7 w8", "ignore_eos": True}).json
    assert default["usage"]["completion_tokens"] == 16
    stopped = client.post("/v1/completions", {**asked, "stop": [want.text[:2]]}).json["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == ("", "stop")


def test_biases_choose_tokens(client: Client, direct: Any) -> None:
    asked = {**GREEDY, "prompt": "w7", "max_tokens": 2, "logit_bias": {"17": 100.0}}
    assert client.post("/v1/completions", asked).json["choices"][0]["text"].split() == ["w17", "w17"]


def test_tokens_and_texts(client: Client, direct: Any) -> None:
    ids = direct.tokenizer.encode("w7 w8")
    about = client.get("/v1/models/tiny").json["max_model_len"]
    assert client.post("/tokenize", {"model": "tiny", "prompt": "w7 w8"}).json == {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": about,
    }
    chat = client.post("/tokenize", {"model": "tiny", "messages": MESSAGES}).json
    assert chat["tokens"] == direct.prompt(MESSAGES)
    assert client.post("/detokenize", {"model": "tiny", "tokens": ids}).json == {"prompt": "w7 w8"}


def test_embeddings(client: Client, folder: Path) -> None:
    with smelt.llm.load(folder / "encoder", engine="reference") as encoder:
        want = encoder.embed(["w7 w8", "w3"])
        tokens = sum(len(encoder.tokenizer.encode(text)) for text in ("w7 w8", "w3"))
        ids = encoder.tokenizer.encode("w3")
    found = client.post("/v1/embeddings", {"model": "encoder", "input": ["w7 w8", "w3"]}).json
    assert (found["object"], found["model"]) == ("list", "encoder")
    assert [(row["object"], row["index"]) for row in found["data"]] == [("embedding", 0), ("embedding", 1)]
    np.testing.assert_allclose([row["embedding"] for row in found["data"]], want, rtol=1e-5)
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] >= tokens
    one = client.post("/v1/embeddings", {"model": "encoder", "input": "w3", "encoding_format": "base64"}).json
    raw = base64.b64decode(one["data"][0]["embedding"])
    np.testing.assert_allclose(np.frombuffer(raw, "<f4"), want[1], rtol=1e-5)
    for given in (ids, [ids]):  # as langchain sends them
        by_tokens = client.post("/v1/embeddings", {"model": "encoder", "input": given}).json
        np.testing.assert_allclose(by_tokens["data"][0]["embedding"], want[1], rtol=1e-5)
        assert by_tokens["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize(
    ("path", "says"), [("/v1/audio/transcriptions", "Whisper"), ("/v1/images/generations", "images")]
)
def test_paths_of_openai_that_are_not_here_say_why(client: Client, path: str, says: str) -> None:
    reply = client.post(path, b"--x\r\n", content_type="multipart/form-data; boundary=x")
    assert reply.status == 404
    error = reply.json["error"]
    assert (says in error["message"], error["type"], error["code"]) == (True, "not_found_error", "NotFoundError")


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, "tool_choice": "required"}, 400, "tool_choice"),
    ("/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, "n": 0, "seed": 1}, 200, ""),
    ("/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, "n": 129}, 400, "n is out of range"),
    ("/v1/chat/completions", {"model": "none", "messages": MESSAGES}, 404, "none"),
    ("/v1/chat/completions", {"model": "encoder", "messages": MESSAGES}, 400, "encoder makes no text"),
    ("/v1/chat/completions", {"model": "tiny"}, 400, "messages"),
    (
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]}
            ],
        },
        400,
        "tool_calls do not fit",
    ),
    (
        "/v1/chat/completions",
        {"model": "tiny", "messages": MESSAGES, "logit_bias": {"a": 1}},
        400,
        "logit_bias names tokens by number",
    ),
    (
        "/v1/chat/completions",
        {"model": "tiny", "messages": MESSAGES, "tools": [{}]},
        400,
        "the chat template has no place for tools",
    ),
    ("/v1/completions", {"model": "tiny", "prompt": []}, 400, "the prompt is no text"),
    ("/v1/completions", {"model": "tiny", "prompt": ["a", 3]}, 400, "the prompt is no text"),
    ("/v1/completions", {"model": "tiny", "prompt": [[]]}, 400, "the prompt is no text"),
    ("/v1/completions", {"model": "tiny", "prompt": [[True]]}, 400, "the prompt is no text"),
    ("/v1/completions", {"model": "tiny", "prompt": "w1", "suffix": "x"}, 400, "suffix"),
    ("/v1/completions", {"model": "tiny", "prompt": "w1", "best_of": 2}, 400, "best_of"),
    ("/v1/completions", {"model": "tiny", "prompt": "w1", "echo": True, "logprobs": 1}, 400, "echo"),
    ("/v1/embeddings", {"model": "tiny", "input": "a"}, 400, "tiny makes no embeddings"),
    ("/v1/embeddings", {"model": "encoder", "input": []}, 400, "the input is no text"),
    ("/v1/embeddings", {"model": "encoder", "input": [[1, "w"]]}, 400, "the input is no text"),
    ("/v1/embeddings", {"model": "encoder", "input": "w1", "dimensions": 3}, 400, "dimensions"),
    ("/v1/responses", {"model": "tiny", "input": "w1", "previous_response_id": "x"}, 400, "previous_response_id"),
    ("/v1/responses", {"model": "tiny", "input": "w1", "background": True}, 400, "background"),
    ("/v1/responses", {"model": "tiny", "input": "w1", "tool_choice": "required"}, 400, "tool_choice"),
    ("/v1/responses", {"model": "tiny", "input": [{"type": "image"}]}, 400, "unknown input"),
    ("/v1/responses", {"model": "tiny", "input": "w1", "tools": [{"type": "web"}]}, 400, "a tool is no function"),
]


@pytest.mark.parametrize(("path", "asked", "status", "says"), REFUSED, ids=[f"{each[0]} {each[3]}" for each in REFUSED])
def test_refusals(client: Client, path: str, asked: dict[str, Any], status: int, says: str) -> None:
    if status == 200:
        asked = {**asked, "max_tokens": 1}
    reply = client.post(path, asked)
    assert reply.status == status, reply.body
    if status == 200:
        return
    error = reply.json["error"]
    assert says in error["message"]
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    assert (error["type"], error["param"], set(error)) == (kind, None, {"message", "type", "param", "code"})


@pytest.mark.parametrize("seed", ["3", 1.5, True, [1]])
def test_seeds_are_whole_numbers(client: Client, seed: Any) -> None:
    reply = client.post("/api/chat", {"model": "tiny", "messages": MESSAGES, "options": {"seed": seed}})
    assert (reply.status, "seed is a whole number" in reply.body.decode()) == (400, True)


def test_texts_are_not_read_without_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer's threads are as busy as the queue may be long."""
    opened = client.app.catalogue.get("tiny")
    monkeypatch.setattr(opened.loaded, "running", opened.config.max_queue)
    for path, asked in (
        ("/tokenize", {"prompt": "w7"}),
        ("/detokenize", {"tokens": [5]}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
    ):
        reply = client.post(path, {"model": "tiny", **asked})
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")


def test_prompts_without_room_are_not_echoed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = client.app.catalogue.get("tiny")
    decoded: list[Any] = []
    monkeypatch.setattr(opened.loaded, "decode", decoded.append)
    prompts = [[5]] * (opened.config.max_queue + 1)
    assert client.post("/v1/completions", {"model": "tiny", "prompt": prompts, "echo": True}).status == 429
    assert not decoded


def test_stop_strings_are_texts(client: Client) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "stream": False}
    for stop in (True, 5, {"a": 1}, [1], [""]):
        reply = client.post("/api/chat", {**asked, "options": {"stop": stop, "num_predict": 1}})
        assert (reply.status, "stop strings are texts" in reply.body.decode()) == (400, True)
    nothing = {"stop": None, "seed": None, "temperature": None, "num_predict": None, "num_ctx": None}
    assert client.post("/api/chat", {**asked, "options": {**nothing, "num_predict": 1}}).status == 200
    assert (
        client.post("/api/generate", {"model": "tiny", "prompt": "w7", "options": {**nothing, "seed": 1}}).status == 200
    )


def test_a_stream_that_fails_inside_the_server_says_so(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(self: Generation) -> list[Token]:
        raise KeyError("inside")

    monkeypatch.setattr(Generation, "take", fail)
    asked: dict[str, Any] = {"model": "tiny", "stream": True}
    for path, given in (
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/responses", {"input": "w7"}),
        ("/api/chat", {"messages": MESSAGES}),
    ):
        reply = client.post(path, {**asked, **given})
        last = reply.body.decode().strip().splitlines()[-1]
        assert ("failed inside the server" in last, "KeyError" in last) == (True, False)
    assert [record.message for record in caplog.records] == ["an answer of tiny failed"] * 3
    assert client.app.catalogue.get("tiny").active == 0


def test_a_client_that_leaves_a_stream_is_no_error_of_the_server(client: Client) -> None:
    async def work() -> int:
        asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 400, "stream": True, "ignore_eos": True}
        messages = [{"type": "http.request", "body": json.dumps(asked).encode()}]
        pieces, begun = 0, asyncio.Event()

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal pieces
            pieces += "body" in message
            if pieces == 2:
                begun.set()

        path = "/v1/chat/completions"
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], "client": ("c", 1)}
        await client.app(scope, receive, send)
        return pieces

    assert 2 <= client.run(work()) < 400
    assert client.app.catalogue.get("tiny").active == 0


def test_refusals_of_tokens(client: Client) -> None:
    for asked in ({"model": "tiny"}, {"model": "tiny", "prompt": "a", "messages": MESSAGES}):
        reply = client.post("/tokenize", asked)
        assert (reply.status, "give either prompt or messages" in reply.body.decode()) == (400, True)
    for tokens in ([-1], [96]):
        reply = client.post("/detokenize", {"model": "tiny", "tokens": tokens})
        assert (reply.status, "no such token" in reply.body.decode(), "0 to 95" in reply.body.decode()) == (
            400,
            True,
            True,
        )


def test_errors_of_the_server() -> None:
    reply = openai_problem(UnavailableError("too many", retry_after=2.6))
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["type"], error["code"]) == (
        429 if reply.status == 429 else 503,
        error["type"],
        "UnavailableError",
    )
    assert (b"retry-after", b"3") in reply.headers
    assert (b"retry-after", b"1") in openai_problem(UnavailableError("too many", retry_after=0.1)).headers
    assert not [name for name, _ in openai_problem(RequestError("wrong")).headers if name == b"retry-after"]


# ---- forms ----


def run_of(text: str = "ab", finish: str = "stop", said: str = "", **more: Any) -> Any:
    return SimpleNamespace(text=text, finish=finish, said=said, pieces=[], prompt=[1, 2], tokens=2, **more)


def test_calls_of_tools() -> None:
    hermes = CONVENTIONS[0]
    said = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    form = Chat(False, ToolUse(["f"], hermes))
    assert (form.held, Chat(False).held) == (True, False)
    whole = form.whole(2, run_of(said=said))
    (call,) = whole["message"].pop("tool_calls")
    assert whole == {
        "index": 2, "message": {"role": "assistant", "content": None, "refusal": None}, "logprobs": None, "finish_reason": "tool_calls",
    }  # fmt: skip
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    last = form.last(1, run_of(said=said))
    assert (last["index"], last["finish_reason"], last["delta"]["tool_calls"][0]["index"]) == (1, "tool_calls", 0)
    assert form.last(0, run_of("plain")) == {
        "index": 0,
        "delta": {"content": "plain"},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert form.whole(0, run_of("plain"))["message"]["content"] == "plain"
    assert Chat(False).calls(run_of(said=said)) == []


def test_pieces_with_probabilities() -> None:
    piece = Token(5, "é", "é", -0.5, [("é", -0.5), ("b", -1.0)])
    (row,) = Chat(True).piece(1, piece, run_of())["logprobs"]["content"]
    entry = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    assert row == {**entry, "top_logprobs": [entry, {"token": "b", "logprob": -1.0, "bytes": [98]}]}
    assert Chat(True).piece(1, Token(5, "a", "a"), run_of())["logprobs"]["content"][0]["logprob"] == 0.0
    assert Chat(False).piece(1, piece, run_of())["logprobs"] is None
    form = Completion(True, ["", "echo"])
    assert form.piece(1, piece, run_of()) == {
        "index": 1, "text": "é", "finish_reason": None,
        "logprobs": {"tokens": ["é"], "token_logprobs": [-0.5], "top_logprobs": [{"é": -0.5, "b": -1.0}], "text_offset": [4]},
    }  # fmt: skip
    assert form.first(0) is None


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, ""), ("a", "a"), ([], ""), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
     ([{"type": "text"}], ""), ([{"type": "image_url"}], None), (["a"], None), ({"type": "text"}, None), (7, None),
     ([{"type": "text", "text": "a"}, {"type": "image_url"}], None)],
)  # fmt: skip
def test_content_in_parts(content: Any, text: str | None) -> None:
    if text is not None:
        assert language._text(content) == text
        return
    with pytest.raises(RequestError, match="the content is no text") as caught:
        language._text(content)
    assert caught.value.expected == "a string, or parts of type text"


def test_prompts_count_once() -> None:
    first, second = run_of(), run_of()
    assert usage_of([first]) == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    same = run_of()
    same.prompt = first.prompt
    assert usage_of([first, same, second]) == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}


# ---- responses ----


def named_events(reply: Reply) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for i, text in enumerate(each for each in reply.body.decode().split("\n\n") if each):
        name, data = text.split("\n")
        record = json.loads(data.removeprefix("data: "))
        assert (record.pop("type"), record.pop("sequence_number")) == (name.removeprefix("event: "), i)
        found.append((name.removeprefix("event: "), record))
    return found


def test_a_response_whole_and_in_events(client: Client, direct: Any) -> None:
    want = direct.chat(MESSAGES, max_tokens=4, temperature=0)
    prompt = len(direct.prompt(MESSAGES))
    asked = {"model": "tiny", "input": "w7 w8 w9", "temperature": 0, "max_output_tokens": 4, "metadata": {"a": "b"}}
    found = client.post("/v1/responses", asked).json
    identity, created = found.pop("id"), found.pop("created_at")
    assert identity.startswith("resp_")
    assert created > 1.6e9
    (item,) = found.pop("output")
    assert item.pop("id").startswith("msg_")
    part = {"type": "output_text", "text": want.text, "annotations": [], "logprobs": []}
    assert item == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    cut = want.finish == "length"
    assert found == {
        "object": "response", "model": "tiny", "error": None, "instructions": None, "max_output_tokens": 4,
        "metadata": {"a": "b"}, "parallel_tool_calls": True, "previous_response_id": None, "temperature": 0, "top_p": 1.0,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "truncation": "disabled",
        "status": "incomplete" if cut else "completed", "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "usage": {
            "input_tokens": prompt, "output_tokens": 4, "total_tokens": prompt + 4,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
        },
    }  # fmt: skip
    reply = client.post("/v1/responses", {**asked, "stream": True})
    streamed = named_events(reply)
    names = [name for name, _ in streamed]
    deltas = [record["delta"] for name, record in streamed if name == "response.output_text.delta"]
    assert "".join(deltas) == want.text
    assert [name for name in names if name != "response.output_text.delta"] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.incomplete" if cut else "response.completed",
    ]  # fmt: skip
    begun = streamed[0][1]["response"]
    assert (begun["status"], begun["output"], begun["usage"], begun["incomplete_details"]) == (
        "in_progress",
        [],
        None,
        None,
    )
    assert streamed[2][1]["item"]["content"] == []
    assert (streamed[3][1]["output_index"], streamed[3][1]["content_index"], streamed[3][1]["part"]["text"]) == (
        0,
        0,
        "",
    )
    assert streamed[-1][1]["response"]["output"][0]["content"] == [part]
    assert streamed[-2][1]["item"] == streamed[-1][1]["response"]["output"][0]
    assert reply.headers["cache-control"] == "no-cache"


def test_inputs_of_responses() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text"}, {"type": "input_image"}]
    items: list[dict[str, Any]] = [
        {"role": "system", "content": "s"}, {"type": "message", "content": parts},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": 5},
    ]  # fmt: skip
    assert _messages(ResponsesRequest(model="m", input=items, instructions="be kind")) == [
        {"role": "system", "content": "be kind"}, {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "input_image"}]},
        {
            "role": "assistant", "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "5"},
    ]  # fmt: skip
    assert _messages(ResponsesRequest(model="m", input="hello")) == [{"role": "user", "content": "hello"}]
    assert _tool({"type": "function", "name": "f", "x": 1}) == {"type": "function", "function": {"name": "f", "x": 1}}
    for wrong in ({"type": "web", "name": "f"}, {"type": "function"}):
        with pytest.raises(RequestError, match="a tool is no function"):
            _tool(wrong)
    schema = {"type": "json_schema", "schema": {}}
    assert _format({"format": schema}) == {"type": "json_schema", "json_schema": schema}
    assert _format({"format": {"type": "text"}}) == {"type": "text"}
    assert _format({}) is None
