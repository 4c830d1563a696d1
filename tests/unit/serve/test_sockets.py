"""`/ws/chat` and `/v1/rerank`: over the application itself, and once over a real socket with wsproto as the client."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Request, TextMessage

import smelt
from smelt.serve.config import KeyConfig
from tests.unit.llm.test_cross_encoder import write_cross_encoder
from tests.unit.serve.client import Client, model, serving
from tests.unit.serve.language_models import write_language_models
from tests.unit.serve.test_server import Server

MESSAGES: list[Any] = [{"role": "user", "content": "w7 w8 w9"}]
ASK = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_language_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    keys = [
        KeyConfig("all", sha256(b"all").hexdigest()),
        KeyConfig("other", sha256(b"other").hexdigest(), models=("x",)),
        KeyConfig("boss", sha256(b"boss").hexdigest(), admin=True),
    ]
    with serving(model(folder / "tiny"), model(folder / "encoder"), keys=keys) as made:
        yield made


Reply = Callable[[dict[str, Any]], dict[str, Any] | None]  # what the client says after a message; None: nothing


def converse(
    client: Client, first: list[dict[str, Any]], reply: Reply = lambda said: None, **headers: str
) -> list[dict[str, Any]]:
    """Everything the server says until it closes, or until the client leaves after the last `done` or `error`."""

    async def work() -> list[dict[str, Any]]:
        waiting: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        heard: list[dict[str, Any]] = []
        waiting.put_nowait({"type": "websocket.connect"})
        for each in first[:1]:
            waiting.put_nowait({"type": "websocket.receive", "text": json.dumps(each)})
        rest = first[1:]

        async def send(message: Mapping[str, Any]) -> None:
            heard.append(json.loads(message["text"]) if message["type"] == "websocket.send" else dict(message))
            answer = reply(heard[-1])
            if answer is None and heard[-1]["type"] in ("done", "error"):
                answer = rest.pop(0) if rest else None
                if answer is None:
                    waiting.put_nowait({"type": "websocket.disconnect", "code": 1000})
            if answer is not None:
                waiting.put_nowait({"type": "websocket.receive", "text": json.dumps(answer)})

        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "websocket", "path": "/ws/chat", "query_string": b"", "headers": pairs, "client": ("test", 1)}
        await client.app(scope, waiting.get, send)
        return heard

    return client.run(work())


def test_a_conversation_gives_the_engines_answers(client: Client, folder: Path) -> None:
    with smelt.llm.load(folder / "tiny", engine="reference") as model:
        want = model.chat(MESSAGES, max_tokens=12)
    heard = converse(client, [ASK, {**ASK, "max_tokens": 3}], authorization="Bearer all")
    ends = [i for i, each in enumerate(heard) if each["type"] == "done"]
    assert heard[0]["type"] == "websocket.accept"
    assert "".join(each["text"] for each in heard[1 : ends[0]]) == want.text
    assert heard[ends[0]]["usage"]["completion_tokens"] == len(want.ids)
    assert heard[ends[1]] == {
        "type": "done",
        "finish_reason": "length",
        "usage": {**heard[ends[1]]["usage"], "completion_tokens": 3},
    }


def test_a_stop_ends_the_answer_and_the_connection_goes_on(client: Client) -> None:
    stopped: list[Any] = []

    def stop(said: dict[str, Any]) -> dict[str, Any] | None:
        if said["type"] == "token" and not stopped:
            stopped.append(said)
            return {"type": "stop"}
        return None

    heard = converse(
        client, [{**ASK, "max_tokens": 400, "ignore_eos": True}, ASK], stop, authorization="Bearer all"
    )  # fmt: skip
    first, second = (each for each in heard if each["type"] == "done")
    assert first["finish_reason"] == "cancelled"
    assert first["usage"]["completion_tokens"] < 400
    assert second["finish_reason"] in ("length", "stop")


def test_keys_come_in_headers_or_messages(client: Client) -> None:
    assert converse(client, [{**ASK, "key": "all", "max_tokens": 1}])[-1]["type"] == "done"
    refused = converse(client, [ASK])
    assert refused[-2]["status"] == 401
    assert refused[-1] == {"type": "websocket.close", "code": 1008, "reason": "no valid API key"}
    assert converse(client, [ASK], authorization="Bearer other")[-1]["status"] == 403


def test_refusals_and_unloading_are_audited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[Any, ...]] = []

    def write(event: str, **fields: Any) -> None:
        rows.append((event, fields["path"], fields["key"], fields.get("model")))

    monkeypatch.setattr(client.app, "audit", SimpleNamespace(write=write))
    for secret in ("wrong", "other"):
        converse(client, [ASK], authorization=f"Bearer {secret}")
    unload = {"model": "tiny", "keep_alive": 0}
    assert client.post("/api/generate", unload, authorization="Bearer all").json["done_reason"] == "load"
    assert client.post("/api/generate", unload, authorization="Bearer boss").json["done_reason"] == "unload"
    assert rows == [
        ("refused", "/ws/chat", None, None),
        ("refused", "/ws/chat", "other", None),
        ("unload", "/api/generate", "boss", "tiny"),
    ]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"model": "nothing", "messages": MESSAGES}, 404),
        ({"model": "tiny"}, 400),
        ({"model": "encoder", "messages": MESSAGES}, 400),
        ({**ASK, "n": 2}, 400),
        ({**ASK, "tools": [{}]}, 400),
        ({"type": "dance"}, 400),
        ({**ASK, "messages": "text"}, 400),
    ],
)
def test_mistakes_do_not_end_the_connection(client: Client, asked: dict[str, Any], status: int) -> None:
    heard = converse(client, [asked, {**ASK, "max_tokens": 1}], authorization="Bearer all")
    assert [(each["type"], each.get("status")) for each in heard if each["type"] in ("error", "done")] == [
        ("error", status),
        ("done", None),
    ]


def test_other_sites_are_refused(client: Client) -> None:
    headers: dict[str, Any] = {"authorization": "Bearer all", "host": "127.0.0.1:8000"}
    for origin in ("https://evil.example", "null", "http://[", "http://"):
        assert converse(client, [], origin=origin, **headers) == [{"type": "websocket.close", "code": 1008}]
    assert converse(client, [ASK], origin="http://127.0.0.1:8000", **headers)[-1]["type"] == "done"


def test_over_a_socket(folder: Path) -> None:
    server = Server(str(folder / "tiny"), "--engine", "reference")
    try:
        with socket.create_connection(("127.0.0.1", server.http), timeout=60) as connection:
            ws = WSConnection(ConnectionType.CLIENT)
            connection.sendall(ws.send(Request(host=f"127.0.0.1:{server.http}", target="/ws/chat")))
            heard: list[dict[str, Any]] = []
            while not heard or heard[-1]["type"] != "done":
                data = connection.recv(1 << 16)
                assert data
                ws.receive_data(data)
                for event in ws.events():
                    if isinstance(event, AcceptConnection):
                        connection.sendall(ws.send(TextMessage(json.dumps(ASK))))
                    elif isinstance(event, TextMessage):
                        heard.append(json.loads(event.data))
            connection.sendall(ws.send(CloseConnection(1000)))
        assert len(heard) > 3
    finally:
        server.close()


def test_rerank_sorts_by_cosine(client: Client, folder: Path) -> None:
    texts = ["w1 w2", "w50 w60 w70", "w3 w2 w9"]
    with smelt.llm.load(folder / "encoder", engine="reference") as model:
        query, *rows = model.embed(["w1 w2 w3", *texts]).astype(np.float64)
    want = [float(row @ query / np.linalg.norm(row) / np.linalg.norm(query)) for row in rows]
    documents: list[Any] = [texts[0], {"text": texts[1]}, texts[2]]
    body = {"model": "encoder", "query": "w1 w2 w3", "documents": documents, "return_documents": True}
    for path in ("/v1/rerank", "/rerank"):
        reply = client.post(path, body, authorization="Bearer all")
        assert reply.status == 200, reply.body
        results = reply.json["results"]
        assert [row["index"] for row in results] == sorted(range(3), key=lambda i: -want[i])
        for row in results:
            assert row["document"]["text"] == texts[row["index"]]
            assert abs(row["relevance_score"] - want[row["index"]]) < 1e-5
    best = client.post("/rerank", {**body, "top_n": 1}, authorization="Bearer all").json["results"]
    assert [row["index"] for row in best] == [results[0]["index"]]
    mistakes: list[dict[str, Any]] = [{"documents": []}, {"top_n": 0}, {"model": "tiny"}, {"documents": [3]}]
    for wrong in mistakes:
        assert client.post("/rerank", {**body, **wrong}, authorization="Bearer all").status == 400


def test_rerank_with_a_cross_encoder(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "ranker", "bert")
    texts = ["w9 w10", "w11 w12 w13 w14 w90", "w7"]
    with smelt.llm.load(folder, engine="reference") as loaded:
        scorer: Any = loaded
        want = 1 / (1 + np.exp(-scorer.score("w7 w8", texts)[0]))
    with serving(model(folder)) as client:
        reply = client.post("/v1/rerank", {"model": "ranker", "query": "w7 w8", "documents": texts}).json
        assert [row["index"] for row in reply["results"]] == np.argsort(-want).tolist()
        for row in reply["results"]:
            assert abs(row["relevance_score"] - want[row["index"]]) < 1e-5
        assert reply["usage"]["total_tokens"] == 23
        refused = [
            client.post("/v1/embeddings", {"model": "ranker", "input": "w1"}),
            client.post("/v1/completions", {"model": "ranker", "prompt": "w1"}),
        ]
        assert [each.status for each in refused] == [400, 400]
        assert client.get("/v1/models").json["data"][0]["id"] == "ranker"
        assert client.get("/api/tags").status == 200
        assert client.get("/api/v1/models").json["models"][0]["kind"] == "ranking"
