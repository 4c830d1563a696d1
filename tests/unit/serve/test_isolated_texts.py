"""Language models in worker processes: the same answers, checked messages; a worker's end fails its own requests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.device import cache
from smelt.llm import checkpoint as files
from smelt.llm import step_cache
from smelt.serve.isolation import compiler, remote_texts, restarts
from smelt.serve.isolation.channel import Channel, ClosedError, pair
from smelt.serve.isolation.compiler import KeptElsewhere
from smelt.serve.isolation.packets import Answered, Ask, Begun, Event, Finished, Packets, Said, Stop, Wrong, to_raw
from smelt.serve.isolation.remote import code_folder, is_supported, state_of
from smelt.serve.isolation.remote_texts import RemoteTexts
from smelt.serve.isolation.text_worker import Outbox, TextWorker, make_loop
from smelt.serve.language import Generation, cancel_all
from smelt.serve.models import Version
from smelt.serve.openai import Chat, _events
from smelt.serve.problems import RequestError, UnavailableError
from smelt.serve.stats import ModelStats
from smelt.serve.text_model import About, LocalTexts, Scores, TextRun, Token, Vectors
from tests.unit.serve.client import Client, model, serving
from tests.unit.serve.language_models import write_language_models

pytestmark = pytest.mark.skipif(not is_supported(), reason="isolation needs Linux")
MESSAGES: list[Any] = [{"role": "user", "content": "w7 w8 w9"}]
ASK = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
LONG = {**ASK, "max_tokens": 100, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_language_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    models = [model(folder / "tiny", trusted=False, engine="native"), model(folder / "encoder", trusted=False)]
    with serving(*models, admin=True) as found:
        yield found


def version(client: Client, name: str = "tiny") -> Version:
    return client.app.catalogue.get(name)


async def read_to_end(run: TextRun) -> list[Token]:
    found: list[Token] = []
    while tokens := await run.take():
        found += tokens
    return found


async def ask_stopped(client: Client) -> tuple[asyncio.Task[Any], int]:
    """A request that a worker has, which is stopped, and its process."""
    pid = version(client).loaded.worker.pid
    os.kill(pid, signal.SIGSTOP)
    task = asyncio.create_task(client.ask("POST", "/v1/chat/completions", {**ASK, "stream": True}))
    while not version(client).active:
        await asyncio.sleep(0.001)
    return task, pid


# ---- real workers ----


def test_a_worker_answers_as_the_model_does(client: Client, folder: Path) -> None:
    found = version(client)
    assert isinstance(found.loaded, RemoteTexts)
    assert found.loaded.worker.pid != os.getpid()
    said = client.get("/v2/models/tiny/config").json["parameters"]["isolation"]["string_value"]
    assert said.startswith("rlimits, no_new_privs")
    with smelt.llm.load(folder / "tiny", engine="native") as local:
        want = local.chat(MESSAGES, max_tokens=12)
    got = client.post("/v1/chat/completions", ASK).json
    assert got["choices"][0]["message"]["content"] == want.text
    assert got["usage"]["prompt_tokens"] == want.prompt_tokens
    with smelt.llm.load(folder / "encoder", engine="reference") as encoder:
        vectors = encoder.embed(["w1 w2", "w3"])
    rows = client.post("/v1/embeddings", {"model": "encoder", "input": ["w1 w2", "w3"]}).json["data"]
    np.testing.assert_array_equal(np.array([row["embedding"] for row in rows], np.float32), vectors)
    metrics = client.get("/metrics").body.decode()
    assert 'vllm:generation_tokens_total{model_name="tiny"} 12' in metrics
    assert 'smelt_worker_restarts{model="tiny",version="1"} 0' in metrics
    spent = re.search(r'smelt_worker_cpu_seconds_total\{model="tiny",version="1"\} (\S+)', metrics)
    assert spent is not None
    assert float(spent[1]) > 0
    info = client.get("/api/v1/info").json
    assert info["cpu_seconds"] > float(spent[1])
    assert info["resident_bytes"] > sum(each["memory_bytes"] for each in info["models"]) > 1 << 20


def test_long_messages(client: Client) -> None:
    reply = client.post("/tokenize", {"model": "tiny", "prompt": "w3 w4 " * 50_000})  # more than a packet, in and out
    assert (reply.status, reply.json["count"]) == (200, 100_000)


def test_the_server_itself_reads_no_model(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*given: Any, **named: Any) -> Any:
        raise AssertionError("the server read a model file")

    for place in ("smelt.serve.opening.open_texts", "smelt.serve.models.is_language", "smelt.llm.load"):
        monkeypatch.setattr(place, read)
    for place in ("smelt.llm.chat.render", "smelt.llm.tokenizer.from_file"):
        monkeypatch.setattr(place, read)
    assert client.post("/v2/repository/models/tiny/load").status == 200
    assert client.post("/v1/chat/completions", ASK).status == 200


def test_mistakes_keep_their_status(client: Client) -> None:
    for wrong in ({"temperature": -1}, {"messages": [{"role": "user", "content": "w1 " * 5000}]}):
        assert client.post("/v1/chat/completions", {**ASK, **wrong, "stream": True}).status == 400


def test_a_killed_worker_fails_its_own_requests_and_comes_back(client: Client) -> None:
    async def work() -> tuple[Any, Any]:
        task, pid = await ask_stopped(client)
        os.kill(pid, signal.SIGKILL)
        failed = await task
        after = await client.ask("POST", "/v1/chat/completions", ASK)
        assert version(client).loaded.worker.pid != pid
        return failed, after

    other = version(client, "encoder").loaded.worker.pid
    failed, after = client.run(work())
    assert (failed.status, failed.headers["retry-after"]) == (503, "1")
    assert b"its worker process ended" in failed.body
    assert after.status == 200
    assert version(client).loaded.restarts == 1
    assert version(client, "encoder").loaded.worker.pid == other
    assert version(client).active == 0


def test_a_model_is_swapped_without_a_failed_answer(client: Client) -> None:
    async def work() -> Any:
        task, pid = await ask_stopped(client)
        assert (await client.ask("POST", "/v2/repository/models/tiny/load")).status == 200
        assert version(client).loaded.worker.pid != pid
        assert (await client.ask("POST", "/v1/chat/completions", ASK)).status == 200
        os.kill(pid, signal.SIGCONT)
        return await task

    lines = client.run(work()).body.splitlines()
    assert lines[-2] == b"data: [DONE]"
    assert b'"finish_reason":"' in lines[-4]


def test_deadlines_reach_the_worker(folder: Path) -> None:
    with serving(model(folder / "tiny", trusted=False, timeout=0.05)) as found:
        pid = version(found).loaded.worker.pid
        replies = [found.post("/v1/chat/completions", LONG) for _ in range(2)]
        assert [reply.status for reply in replies] == [504, 504]
        assert version(found).loaded.worker.pid == pid


def test_keep_alive_unloads_and_the_next_request_loads(client: Client) -> None:
    async def settle() -> None:
        while client.app.catalogue._closing:
            await asyncio.sleep(0.001)

    asked = {"model": "tiny", "messages": MESSAGES, "stream": False, "options": {"temperature": 0, "num_predict": 3}}
    first = client.post("/api/chat", {**asked, "keep_alive": 0}).json
    client.run(settle())
    assert client.app.catalogue.pick("tiny").on_demand
    assert [row["name"] for row in client.get("/api/ps").json["models"]] == ["encoder"]
    assert {row["name"] for row in client.get("/api/tags").json["models"]} == {"tiny", "encoder"}
    assert {row["id"] for row in client.get("/v1/models").json["data"]} == {"tiny", "encoder"}
    again = client.post("/api/chat", {**asked, "keep_alive": "1h30m"}).json
    assert (again["message"], again["eval_count"]) == (first["message"], 3)
    (row,) = (each for each in client.get("/api/ps").json["models"] if each["name"] == "tiny")
    assert not row["expires_at"].startswith("9999")
    assert client.post("/api/generate", {"model": "tiny", "keep_alive": -1}).json["done_reason"] == "load"
    assert client.post("/api/generate", {"model": "tiny", "keep_alive": "soon"}).status == 400
    for long in (1e300, "9" * 400 + "h"):
        assert client.post("/api/generate", {"model": "tiny", "keep_alive": long}).status == 200
        assert all(row["expires_at"].startswith("9999-01-01T00:00:00") for row in client.get("/api/ps").json["models"])
    for _ in range(2):
        before = version(client).expiry
        assert client.post("/api/generate", {"model": "tiny", "keep_alive": "1h"}).status == 200
    assert before is not None
    assert before.cancelled(), "a timer for each request"
    assert client.post("/api/generate", {"model": "tiny", "keep_alive": 0}).json["done_reason"] == "unload"
    client.run(settle())
    assert client.app.catalogue.pick("tiny").on_demand


def test_ollama_embeds(client: Client) -> None:
    rows = client.post("/v1/embeddings", {"model": "encoder", "input": ["w1 w2"]}).json["data"]
    many = client.post("/api/embed", {"model": "encoder", "input": ["w1 w2", "w3"]}).json
    assert many["embeddings"][0] == pytest.approx(rows[0]["embedding"])
    assert len(many["embeddings"]) == 2
    one = client.post("/api/embeddings", {"model": "encoder", "prompt": "w1 w2"}).json
    assert one["embedding"] == many["embeddings"][0]


# ---- a worker that the test plays ----

ABOUT = About("chat", "llama", "gguf", 100, 96)


@asynccontextmanager
async def played() -> AsyncIterator[tuple[RemoteTexts, Packets, list[str]]]:
    """A model, the worker's end of its socket, and what happened to the worker."""
    ours, theirs = pair()
    happened: list[str] = []
    worker: Any = SimpleNamespace(
        name="played",
        config=SimpleNamespace(timeout=60.0),
        loaded=SimpleNamespace(about=ABOUT),
        slots=[SimpleNamespace(socket=ours)],
        explain_end=lambda: "it was played",
        restart=lambda: happened.append("restart"),
        kill=lambda: happened.append("kill"),
        close=ours.close,
    )
    texts = RemoteTexts(worker)
    try:
        yield texts, Packets(theirs), happened
    finally:
        await texts.drain(1)
        texts.close()
        theirs.close()


async def asked_of(packets: Packets) -> Ask:
    found = await asyncio.to_thread(packets.receive_asked)
    assert isinstance(found, Ask)
    return found


def token(number: int) -> Said:
    return Said(number, Token(5, "w5"))


@pytest.mark.parametrize(
    "say",
    [
        lambda n: [Begun(n), *(token(n) for _ in range(4))],  # three were asked for
        lambda n: [token(n)],
        lambda n: [Begun(n), Answered(n, to_raw(1))],
        lambda n: [Begun(n), Said(n, Token(5, "w" * (1 << 17)))],
        lambda n: [Begun(n), Said(n, Token(5, "w", "w" * (1 << 17)))],
        lambda n: [Begun(n), Said(n, Token(5, "w", top=[("w", 0.0)] * (1 << 17)))],
        lambda n: [Begun(n), Begun(n)],
        lambda n: [Begun(n), Finished(n, "stop" * 10, "")],
        lambda n: [Finished(n, "stop", "")],
        lambda n: [Begun(n), token(n + 1)],  # another's answer
        lambda n: [Wrong(n, {"message": "w" * 5000})],
        lambda n: [Wrong(n, {str(i): "" for i in range(20)})],
        lambda n: [Begun(n), *(Wrong(n + i, {}) for i in range(300))],
    ],
)
def test_a_worker_that_says_what_it_must_not_is_replaced(say: Callable[[int], list[Event]]) -> None:
    async def work() -> list[str]:
        async with played() as (texts, packets, happened):
            task = asyncio.create_task(texts.generate([1], {"max_tokens": 3}, False))
            asked = await asked_of(packets)
            packets.send(say(asked.number))
            with pytest.raises(UnavailableError):
                await read_to_end(await task)
            await texts._restarts.wait()
            return happened

    assert asyncio.run(work()) == ["restart"]


def test_results_of_the_wrong_type_or_length_are_refused() -> None:
    async def work() -> None:
        for result in ("text", [[1], [2]], [["a"]], None):
            async with played() as (texts, packets, _):
                task = asyncio.create_task(texts.encode(["w1"]))
                packets.send([Answered((await asked_of(packets)).number, to_raw(result))])
                with pytest.raises(UnavailableError):
                    await task
        asks: list[tuple[Callable[[RemoteTexts], Any], Any]] = [
            (lambda texts: texts.decode([1]), "w" * (2 << 20)),  # more than a token can be
            (lambda texts: texts.embed(["w1"]), Vectors((1, 5), bytes(16), 1)),
            (lambda texts: texts.embed(["w1"]), Vectors((1, 4), bytes(16), -1)),
            (lambda texts: texts.score("w1", ["w2"]), Scores([0.5], -1)),
        ]
        for ask, result in asks:
            async with played() as (texts, packets, _):
                task = asyncio.create_task(ask(texts))
                packets.send([Answered((await asked_of(packets)).number, to_raw(result))])
                with pytest.raises(UnavailableError):
                    await task
        async with played() as (texts, packets, _):
            task = asyncio.create_task(texts.encode(["w1"]))
            packets.send([Wrong((await asked_of(packets)).number, {})])
            with pytest.raises(smelt.errors.SmeltError, match="another process"):
                await task
        async with played() as (texts, packets, _):
            task = asyncio.create_task(texts.encode(["w1"]))
            packets.send([Wrong((await asked_of(packets)).number, {"error": "RunError", "message": "no"})])
            with pytest.raises(smelt.errors.RunError, match="no"):
                await task

    asyncio.run(work())


def test_a_worker_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_texts, "GRACE", 0.01)

    async def work() -> None:
        async with played() as (texts, packets, happened):
            task = asyncio.create_task(texts.generate([1], {"max_tokens": 3, "timeout": 0.01}, False))
            await asked_of(packets)
            while "kill" not in happened:
                await asyncio.sleep(0.001)
            packets.socket.close()  # as the kernel does for a process that was killed
            with pytest.raises(UnavailableError):
                await task

    asyncio.run(work())


def test_cancelling_a_request_tells_the_worker() -> None:
    async def work() -> tuple[Ask, Any]:
        async with played() as (texts, packets, _):
            task = asyncio.create_task(texts.generate([1], {"max_tokens": 3}, False))
            asked = await asked_of(packets)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return asked, await asyncio.to_thread(packets.receive_asked)

    asked, stop = asyncio.run(work())
    assert stop == Stop(asked.number)


def test_what_comes_late_is_no_mistake_and_has_a_limit() -> None:
    async def work() -> list[str]:
        async with played() as (texts, packets, happened):
            task = asyncio.create_task(texts.generate([1], {"max_tokens": 3}, False))
            first = (await asked_of(packets)).number
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(packets.receive_asked)  # that it is stopped
            packets.send([Begun(first), token(first), token(first), Finished(first, "cancelled", "")])
            second = asyncio.create_task(texts.encode(["w1"]))
            packets.send([Answered((await asked_of(packets)).number, to_raw([[5]]))])
            assert await second == [[5]]
            assert happened == []
            third = asyncio.create_task(texts.encode(["w1"]))
            await asked_of(packets)
            packets.send([token(first), token(first)])  # three in all would have been the most
            with pytest.raises(UnavailableError):
                await third
            await texts._restarts.wait()
            return happened

    assert asyncio.run(work()) == ["restart"]


@pytest.mark.parametrize("wrong", [1 << 64, "\ud800"])
def test_what_cannot_be_sent_fails_its_own_request_alone(wrong: Any) -> None:
    async def work() -> None:
        async with played() as (texts, packets, _):
            with pytest.raises(RequestError, match="cannot be passed"):
                await texts.prompt(MESSAGES, [{"maximum": wrong}])
            task = asyncio.create_task(texts.encode(["w1"]))
            packets.send([Answered((await asked_of(packets)).number, to_raw([[5]]))])
            assert await task == [[5]]

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize("answers", [1, 2])
def test_a_stream_ends_with_an_error_when_the_worker_does(answers: int) -> None:
    async def work() -> list[bytes]:
        async with played() as (texts, packets, _):
            opened: Any = SimpleNamespace(name="played", stats=ModelStats(), texts=texts)
            runs = []
            for _ in range(answers):
                task = asyncio.create_task(texts.generate([1], {"max_tokens": 3}, False))
                number = (await asked_of(packets)).number
                packets.send([Begun(number), token(number)])
                runs.append(Generation(opened, [1], await task))
            lines = []
            async for line in _events(runs, Chat(False), {}, False):
                lines.append(line)
                if len(lines) == 2 * answers:  # how each begins, and a token of each
                    packets.socket.close()
            cancel_all(runs)  # as at the end of every response
            assert texts.running == 0
            return lines

    lines = asyncio.run(asyncio.wait_for(work(), 60))
    assert len(lines) == 2 * answers + 1
    assert b"its worker process ended" in lines[-1]
    assert b'"server_error"' in lines[-1]


def test_requests_do_not_wait_for_a_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "MOST_PAUSE", 0.001)
    is_broken = True

    async def work() -> None:
        ours, theirs = pair()
        async with played() as (texts, packets, _):

            def restart() -> None:
                if is_broken:
                    raise OSError("no descriptors left")
                texts.worker.slots = [SimpleNamespace(socket=ours)]

            texts.worker.restart = restart
            first = asyncio.create_task(texts.generate([1], {"max_tokens": 3}, False))
            packets.send([Begun((await asked_of(packets)).number)])
            await first
            texts._restarts._failures = 1
            packets.socket.close()
            with pytest.raises(UnavailableError, match="ended while"):
                await read_to_end(first.result())
            assert texts._restarts._failures > 1, "to begin is no success"
            for _ in range(2):
                with pytest.raises(UnavailableError, match="keeps ending"):
                    await texts.encode(["w1"])
            nonlocal is_broken
            is_broken = False
            while texts._restarts.is_running:
                await asyncio.sleep(0.001)
            again = asyncio.create_task(texts.encode(["w1"]))
            fresh = Packets(theirs)
            fresh.send([Answered((await asked_of(fresh)).number, to_raw([[5]]))])
            assert await again == [[5]]
        ours.close()
        theirs.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_requests_that_wait_for_a_worker_are_told_when_the_model_is_unloaded() -> None:
    async def work() -> None:
        may_start = threading.Event()
        async with played() as (texts, packets, _):
            texts.worker.restart = may_start.wait
            first = asyncio.create_task(texts.encode(["w1"]))
            await asked_of(packets)
            packets.socket.close()
            with pytest.raises(UnavailableError):
                await first
            waiting = asyncio.create_task(texts.encode(["w1"]))
            await asyncio.sleep(0)
            try:
                await texts.drain(0)
                with pytest.raises(UnavailableError, match="unloaded"):
                    await waiting
            finally:
                may_start.set()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_what_is_no_message_is_refused() -> None:
    ours, theirs = pair()
    with ours, theirs:
        for data in (b"", b"s", b"s\xc1", b"l", b"x", b"s\x91\x92\xa4said\x01"):
            if data:
                theirs.send(data)
                with pytest.raises(ClosedError):
                    Packets(ours).receive_events()
        with open(__file__, "rb") as file:  # no sealed memory
            socket.send_fds(theirs, [b"l"], [file.fileno()])
        with pytest.raises(ClosedError):
            Packets(ours).receive_events()


# ---- compiled steps that workers keep ----


def test_a_model_finds_what_it_kept_itself_and_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))

    def ask(owner: str, act: Callable[[KeptElsewhere], Any]) -> Any:
        ours, theirs = (Channel(end) for end in pair())

        def answer() -> None:
            compiler._answer_about_entry(theirs, owner, theirs.receive())

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            return act(KeptElsewhere(ours))
        finally:
            thread.join()
            ours.close()
            theirs.close()

    key = "ab" * 20
    assert ask("a", lambda kept: kept.read(key)) is None
    ask("a", lambda kept: kept.keep(key, b"code"))
    assert ask("a", lambda kept: kept.read(key)) == b"code"
    assert ask("b", lambda kept: kept.read(key)) is None
    monkeypatch.setattr(compiler, "MOST_KEPT", 3)
    nothing: Any = None
    KeptElsewhere(nothing).keep(key, b"long")  # which asks nothing


def test_files_that_were_changed_have_another_state(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_bytes(b"1")
    (tmp_path / "a.gguf").write_bytes(b"1")
    for path, file in ((folder, folder / "weights"), (tmp_path / "a.gguf", tmp_path / "a.gguf")):
        before = state_of(path)
        assert state_of(path) == before
        os.utime(file, ns=(1, 1))
        assert state_of(path) != before
    assert state_of(folder) != state_of(tmp_path / "a.gguf")


def test_a_worker_starts_again_without_compiling(client: Client) -> None:
    assert client.post("/v1/chat/completions", ASK).status == 200  # the model is loaded
    worker = version(client).loaded.worker
    found = files.open(Path(worker.path))
    keys = [step_cache.key_of(found.with_cache(kind), "q8") for kind in ("f32", "f16", "bf16")]
    owner = state_of(worker.path)
    kept = cache.Cache(code_folder())
    names = [blake2b(f"{owner}\0{key}".encode(), digest_size=20).hexdigest() for key in keys]
    assert any(kept.read(name) is not None for name in names)


# ---- the worker's loop, in a thread of the test ----


@contextmanager
def running_worker(local: smelt.llm.LanguageModel) -> Iterator[Packets]:
    """The server's end of a worker that runs in a thread."""
    loop = make_loop()
    ours, theirs = pair()
    thread = threading.Thread(target=TextWorker(LocalTexts(local), Packets(theirs), loop).run)
    thread.start()
    try:
        yield Packets(ours)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        ours.close()
        theirs.close()


def asked_to_generate(number: int, tokens: int, says: bool = False) -> Ask:
    options = {"max_tokens": tokens, "ignore_end": True}
    return Ask(number, "generate", {"prompt": [1, 2], "options": options, "said": says})


def test_a_stopped_answer_ends_in_the_engine(folder: Path) -> None:
    with smelt.llm.load(folder / "tiny", engine="reference") as local, running_worker(local) as packets:
        packets.send(asked_to_generate(1, 400))
        heard: list[Event] = []
        while len(heard) < 3:
            heard += packets.receive_events()
        assert heard[0] == Begun(1)
        packets.send(Stop(1))
        packets.send(asked_to_generate(2, 2, True))
        while not any(isinstance(each, Finished) and each.number == 2 for each in heard):
            heard += packets.receive_events()
        assert Finished(1, "cancelled", "") in heard
        assert sum(isinstance(each, Said) and each.number == 1 for each in heard) < 100
        packets.send(Ask(3, "generate", {"prompt": [], "options": {"max_tokens": 2}, "said": False}))
        (wrong,) = packets.receive_events()
        assert isinstance(wrong, Wrong)
        assert wrong.error["error"] == "RunError"


def test_the_tokens_of_a_step_come_in_one_packet(folder: Path) -> None:
    with smelt.llm.load(folder / "tiny", engine="reference") as local, running_worker(local) as packets:
        engine = local._engine
        engine._guests = 1  # no step before all are there
        for i in (1, 2, 3):
            packets.send(asked_to_generate(i, 8))
        while len(engine.scheduler.waiting) < 3:
            time.sleep(0.001)
        with engine._changed:
            engine._guests = 0
            engine._changed.notify_all()
        ended, sizes = 0, []
        while ended < 3:
            events = packets.receive_events()
            ended += sum(isinstance(each, Finished) for each in events)
            sizes.append(sum(isinstance(each, Said) for each in events))
        assert sum(sizes) == 24
        assert sizes.count(3) >= 7


def test_an_answer_whose_end_cannot_be_told_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with smelt.llm.load(folder / "tiny", engine="reference") as local, running_worker(local) as packets:

        def fail(*_: Any, **__: Any) -> str:
            raise KeyError("no such token")

        monkeypatch.setattr(local.tokenizer, "decode", fail)
        packets.send(asked_to_generate(1, 2, says=True))
        heard: list[Event] = []
        while not isinstance(heard[-1] if heard else None, Wrong | Finished):
            heard += packets.receive_events()
        assert isinstance(heard[-1], Wrong)
        assert "KeyError" in heard[-1].error["got"]


def test_events_wait_for_a_slow_server_and_keep_their_order() -> None:
    ours, theirs = pair()
    with ours, theirs:
        outbox = Outbox(Packets(theirs))
        given = [Said(i, Token(i, "x" * 5000)) for i in range(400)]  # more than the socket holds
        for event in given[:200]:
            outbox.put(event)
        for event in given[200:399]:
            outbox.add(event)
        outbox.put(given[399])
        heard: list[Event] = []
        while len(heard) < 400:
            heard += Packets(ours).receive_events()
        assert heard == given
        lone = "\ud800"  # no Unicode text
        outbox.add(Said(1, Token(1, lone)))
        outbox.put(given[2])
        wrong, right = Packets(ours).receive_events()
        assert isinstance(wrong, Wrong)
        assert (wrong.number, right) == (1, given[2])
        outbox.close()


def test_tokens_that_come_together_are_events_of_their_own() -> None:
    async def work() -> list[bytes]:
        async with played() as (texts, packets, _):
            opened: Any = SimpleNamespace(name="played", stats=ModelStats(), texts=texts)
            task = asyncio.create_task(texts.generate([1], {"max_tokens": 3}, False))
            number = (await asked_of(packets)).number
            said = [Said(number, Token(i, text)) for i, text in enumerate(('a"', "", "\n\u00e9"))]
            packets.send([Begun(number), *said, Finished(number, "stop", "")])
            run = Generation(opened, [1], await task)
            return [line async for line in _events([run], Chat(False), {"id": '"content":""'}, True)]

    lines = b"".join(asyncio.run(asyncio.wait_for(work(), 60))).decode().strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    found = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    deltas = [each["choices"][0]["delta"] for each in found[:-1]]
    assert [each.get("content") for each in deltas] == ["", 'a"', "", "\n\u00e9", None]
    assert all(each["id"] == '"content":""' for each in found)
    assert found[-1]["usage"]["completion_tokens"] == 3
