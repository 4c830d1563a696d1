# ruff: noqa: E501  # answers stand in one line
"""The server's start, its several processes and their links, in this process: settings, messages, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import uvicorn

from smelt.device import numbers
from smelt.errors import DeviceError, RunError
from smelt.serve import front, fronts, server
from smelt.serve.config import Config, KeyConfig
from smelt.serve.fronts import Link, Message, Others, Supervisor, divide, reserve_port, sum_metrics
from smelt.serve.models import READY
from smelt.serve.problems import UnavailableError
from smelt.serve.text_model import TextModel
from tests.unit.serve.client import DIGITS, model, serving

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")


# ---- links ----


async def linked(
    answer: Callable[[str, str], Awaitable[list[str]]], work: Callable[[Link, Link], Awaitable[Any]]
) -> Any:
    """Two ends of a link, of which the second answers."""
    one, other = socket.socketpair()
    here, there = Link(answer), Link(answer)
    running = [asyncio.create_task(here.run(one)), asyncio.create_task(there.run(other))]
    await asyncio.sleep(0)
    while here._writer is None or there._writer is None:
        await asyncio.sleep(0.001)
    try:
        return await work(here, there)
    finally:
        for task in running:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def test_questions_go_both_ways_at_once() -> None:
    async def answer(to: str, text: str) -> list[str]:
        await asyncio.sleep(0.02 if text == "slow" else 0)
        return [f"{to}:{text}", "more"]

    async def work(here: Link, there: Link) -> Any:
        return await asyncio.gather(here.ask("load", "slow"), here.ask("load", "b"), there.ask("unload", "c"))

    found = asyncio.run(linked(answer, work))
    assert found == [["load:slow", "more"], ["load:b", "more"], ["unload:c", "more"]]


def test_questions_without_an_answer_end_with_the_link() -> None:
    async def answer(to: str, text: str) -> list[str]:
        await asyncio.sleep(60)
        return []

    async def work(here: Link, there: Link) -> Any:
        asked = asyncio.create_task(here.ask("load", "x"))
        await asyncio.sleep(0.01)
        assert there._writer is not None
        there._writer.close()
        with pytest.raises(UnavailableError, match="another server process has ended") as caught:
            await asked
        assert caught.value.retry_after == 1
        while here._writer is not None:
            await asyncio.sleep(0.001)
        return await here.ask("load", "x")

    assert asyncio.run(linked(answer, work)) == []


def test_lines_that_are_no_messages_end_the_link() -> None:
    async def work() -> None:
        one, other = socket.socketpair()
        link = Link(lambda to, text: asyncio.sleep(0, []))
        other.sendall(b'{"number": 1, "answers": ["unasked"]}\nnonsense\n')
        await link.run(one)
        assert link._writer is None
        other.close()

    asyncio.run(work())


def test_other_processes_say_what_failed() -> None:
    async def work(to: str, text: str) -> str:
        if to == "load":
            raise RunError("no such model")
        return f"{to} {text}"

    others = Others(work)
    assert asyncio.run(others._answer("unload", "m")) == ["unload m"]
    (said,) = asyncio.run(others._answer("load", "m"))
    assert said.startswith("error: no such model")


def test_messages_are_lines_of_json() -> None:
    assert fronts._encode(Message(3, "load", "m")) == b'{"number":3,"to":"load","text":"m","answers":[]}'
    assert fronts._decode(b'{"number": 4}') == Message(4, "", "", [])
    assert (fronts.SECONDS, fronts.MOST_LINE) == (600.0, 64 << 20)


# ---- the supervisor ----


class Answering:
    """A link that answers with its own number, or fails."""

    def __init__(self, said: str | Exception) -> None:
        self.said = said
        self.asked: list[tuple[str, str]] = []

    async def ask(self, to: str, text: str) -> list[str]:
        self.asked.append((to, text))
        if isinstance(self.said, Exception):
            raise self.said
        return [self.said]


def supervisor(**settings: Any) -> Supervisor:
    listener: Any = SimpleNamespace(fileno=lambda: 7)
    return Supervisor(Config(models=[model(DIGITS)], **settings).check("the test"), listener, True)


def test_questions_go_to_all_but_who_asks() -> None:
    made = supervisor(workers=4)
    links = {0: Answering("a"), 1: Answering("b"), 2: Answering(OSError("gone")), 3: Answering("d")}
    made._links = links  # type: ignore[assignment]
    assert asyncio.run(made._pass_on(1, "metrics", "x")) == ["a", "d"]
    assert [each.asked for each in links.values()] == [[("metrics", "x")], [], [("metrics", "x")], [("metrics", "x")]]
    asyncio.run(made._pass_on(0, "unload", "m"))
    asyncio.run(made._pass_on(0, "unload", "n"))
    assert made._unloaded == {"m", "n"}
    asyncio.run(made._pass_on(0, "load", "m"))
    assert made._unloaded == {"n"}


def test_processes_that_end_are_started_again_after_a_growing_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = supervisor(workers=2)
    lives = iter([0.0, 1.0, 9.9, 10.0, 0.5, 0, 0, 0, 0, 0, 0, 0])
    now, pauses, quiet = [100.0], [], []

    async def one(index: int, quiet_: bool = False, **more: bool) -> int:
        quiet.append(more["quiet"])
        now[0] += next(lives)
        made._stopping = len(quiet) == 12
        return -9

    async def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 6))

    made._quiet = False
    monkeypatch.setattr(made, "_one", one)
    monkeypatch.setattr(fronts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with caplog.at_level(logging.ERROR, "smelt.serve"):
        asyncio.run(made._keep(0))
    assert pauses == [0.1, 0.2, 0.4, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert quiet == [False] + [True] * 11
    assert caplog.messages[0] == "server process 0 ended with -9 and is started again"
    quiet.clear()
    made._stopping, lives = False, iter([0.0] * 12)
    asyncio.run(made._keep(1))
    assert quiet == [True] * 12


def test_stopping_ends_the_processes_that_run() -> None:
    made = supervisor()
    sent = []

    def process(code: int | None, name: str) -> Any:
        return SimpleNamespace(poll=lambda: code, send_signal=lambda number: sent.append((name, number)))

    made._processes = {0: process(None, "a"), 1: process(0, "b"), 2: process(None, "c")}
    made._stop()
    assert made._stopping
    assert sent == [("a", signal.SIGTERM), ("c", signal.SIGTERM)]


@pytest.mark.parametrize("stopping", [False, True])
def test_a_process_gets_its_share_of_the_configuration(stopping: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = supervisor(workers=2, memory_budget="64MB")
    made._unloaded, made._stopping = {"b", "a"}, stopping
    seen: dict[str, Any] = {"signals": []}

    class Process:
        def __init__(self, command: list[str], pass_fds: tuple[int, int], stdin: int) -> None:
            seen.update(command=command, files=pass_fds, stdin=stdin)
            self.stdin = SimpleNamespace(
                write=lambda data: seen.update(said=msgspec.json.decode(data)), close=lambda: seen.update(closed=True)
            )

        def wait(self) -> int:
            return 5

        def send_signal(self, number: int) -> None:
            seen["signals"].append(number)

    monkeypatch.setattr(subprocess, "Popen", Process)
    assert asyncio.run(made._one(1, quiet=True)) == 5
    assert seen["command"][:3] == [sys.executable, "-m", "smelt.serve.front"]
    assert seen["command"][3:] == [str(number) for number in seen["files"]]
    assert (seen["files"][0], seen["stdin"], seen["closed"]) == (7, subprocess.PIPE, True)
    assert (seen["said"]["quiet"], seen["said"]["unloaded"]) == (True, ["a", "b"])
    assert msgspec.convert(seen["said"], front.Start).config.budget == 32_000_000
    assert seen["signals"] == ([signal.SIGTERM] if stopping else [])
    assert 1 not in made._links


def test_shares_of_a_configuration() -> None:
    keys = [
        KeyConfig(name="a", sha256="0" * 64, per_minute=7),
        KeyConfig(name="b", sha256="1" * 64),
        KeyConfig(name="c", sha256="2" * 64, per_minute=1),
    ]
    config = Config(models=[model(DIGITS)], workers=3, keys=keys)
    assert [key.per_minute for key in divide(config).keys] == [2, keys[1].per_minute, 1]
    assert divide(config).budget is None


def test_a_port_for_grpc_is_kept_for_all() -> None:
    with reserve_port(Config()) as port:
        assert port is None
    with reserve_port(Config(grpc_port=0)) as port:
        assert port > 0
        with reserve_port(Config(grpc_port=port)) as again:
            assert again == port


def test_metrics_are_added_up() -> None:
    one = '# HELP a x\n# TYPE a counter\na{m="1"} 2\nb 1.5\nprocess_start_time_seconds 20\n'
    two = '# HELP a x\n# TYPE a counter\na{m="1"} 3\na{m="2"} 1\nb 0.25\nprocess_start_time_seconds 10\n'
    assert sum_metrics([one, two]) == (
        '# HELP a x\n# TYPE a counter\na{m="1"} 5\nb 1.75\nprocess_start_time_seconds 10\na{m="2"} 1\n'
    )
    assert sum_metrics([]) == "\n"


def test_one_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(models=[model(DIGITS)], port=0)
    said = msgspec.json.encode({"config": msgspec.to_builtins(config), "quiet": True, "unloaded": ["m"]})
    seen = []
    monkeypatch.setattr(front, "end_with_supervisor", lambda: seen.append("bound"))
    monkeypatch.setattr(front, "serve_on", lambda *given: seen.append(given))
    monkeypatch.setattr(front, "socket", SimpleNamespace(socket=lambda fileno: f"socket {fileno}"))
    monkeypatch.setattr(sys, "argv", ["front", "5", "6", "9"])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read=lambda: said)))
    front.main()
    assert seen == ["bound", (config, "socket 5", True, "socket 6", ["m"])]


# ---- the server ----


@pytest.fixture
def quiet_log() -> Iterator[None]:
    before, level = logging.root.handlers[:], server.log.level
    yield
    logging.root.handlers[:] = before
    server.log.setLevel(level)


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("workers", [1, 2])
def test_one_process_or_several(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    listener = SimpleNamespace(close=lambda: seen.append("closed"))
    monkeypatch.setattr(server, "_listen", lambda host, port: listener if (host, port) == ("127.0.0.1", 5) else None)
    monkeypatch.setattr(fronts, "supervise", lambda *given: seen.append(("several", *given)))
    monkeypatch.setattr(server, "_serve", lambda *given: ("one", *given))
    monkeypatch.setattr(server, "_run", lambda work: seen.append(work))
    config = Config(models=[model(DIGITS)], port=5, workers=workers)
    server.serve(config, quiet=True)
    assert server.log.level == logging.WARNING
    assert seen[-1] == "closed"
    kind, first, *rest = seen[0]
    assert (kind, rest) == ("one" if workers == 1 else "several", [listener, True])
    assert (first if workers > 1 else first.config) is config
    server.serve(config)
    assert server.log.level == logging.INFO


@pytest.mark.usefixtures("quiet_log")
def test_models_that_stay_unloaded_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(server, "_serve", lambda *given: given)
    monkeypatch.setattr(server, "_run", seen.append)
    server.serve_on(Config(models=[model(DIGITS)]), "listener", False, "link", ["m"])  # type: ignore[arg-type]
    app, *rest = seen[0]
    assert app.catalogue.unloaded == {"m"}
    assert rest == ["listener", False, "link"]


def test_the_loop_of_python_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(server, "asyncio", SimpleNamespace(run=ran.append))
    monkeypatch.setitem(sys.modules, "uvloop", None)
    server._run("work")
    assert ran == ["work"]
    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(run=lambda work: ran.append(f"quick {work}")))
    server._run("work")
    assert ran == ["work", "quick work"]


def test_addresses_that_are_taken() -> None:
    first = server._listen("127.0.0.1", 0)
    try:
        host, port = first.getsockname()
        assert first.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        with pytest.raises(DeviceError, match=rf"cannot listen on 127.0.0.1:{port}") as caught:
            server._listen(host, port)
        assert caught.value.remedy == "--port 0 takes any free port"
    finally:
        first.close()


@pytest.mark.parametrize(
    "tls",
    [{}, {"tls_certificate": "c", "tls_key": "k"}, {"tls_certificate": "c", "tls_key": "k", "tls_client_ca": "a"}],
)
def test_settings_of_the_http_server(
    tls: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: dict[str, Any] = {}

    class Server:
        started = should_exit = False
        server_state = SimpleNamespace(connections=set())

        def __init__(self, config: Any) -> None:
            made["server"] = self

        async def serve(self, sockets: list[socket.socket]) -> None:
            self.started = True
            made["sockets"] = sockets
            while not made.get("loaded"):
                await asyncio.sleep(0.001)

    async def load(*given: Any) -> None:
        made["loaded"] = given
        await asyncio.Event().wait()

    def configure(app: Any, **settings: Any) -> Any:
        made.update(app=app, settings=settings)

    monkeypatch.setattr(server, "_Server", Server)
    monkeypatch.setattr(uvicorn, "Config", configure)
    monkeypatch.setattr(server, "_load", load)
    config = Config(models=[model(DIGITS)], keep_alive=7.4, drain=3.6, max_body=99, max_connections=5, **tls)  # type: ignore[arg-type]
    listener = server._listen("127.0.0.1", 0)
    try:
        app = server._app(config)
        asyncio.run(server._serve(app, listener, False))
        url = f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
    assert capsys.readouterr().out == f"smelt listens on {url}\n"
    assert made["app"] is app
    assert made["sockets"] == [listener]
    assert made["loaded"][1:] == (url, False)
    kind = made["settings"].pop("http")
    assert issubclass(kind, asyncio.Protocol)
    assert made["settings"] == {
        "ws": "wsproto", "ws_max_size": 99, "lifespan": "on", "log_config": None, "access_log": False,
        "server_header": False, "date_header": True, "timeout_keep_alive": 7, "limit_concurrency": 5,
        "timeout_graceful_shutdown": 4, "ssl_certfile": tls.get("tls_certificate"), "ssl_keyfile": tls.get("tls_key"),
        "ssl_ca_certs": tls.get("tls_client_ca"), "ssl_cert_reqs": 2 if "tls_client_ca" in tls else 0,  # ssl.CERT_REQUIRED
    }  # fmt: skip


def test_a_command_that_calls_a_model() -> None:
    with serving(model(DIGITS)) as client:
        version = client.app.catalogue.pick("digits")
        zeros = ",".join(["0"] * 64)
        wanted = f'curl http://h/v2/models/digits/infer -d \'{{"inputs":[{{"name":"pixels","shape":[1,64],"datatype":"FP32","data":[{zeros}]}}]}}\''
        assert server.example(version, "http://h") == wanted


@pytest.mark.parametrize("kind", ["chat", "embedding"])
def test_a_command_that_calls_a_language_model(kind: str) -> None:
    class Texts(TextModel):
        about = SimpleNamespace(kind=kind)  # type: ignore[assignment]

        def __init__(self) -> None: ...

    Texts.__abstractmethods__ = frozenset()
    version = SimpleNamespace(name="m", loaded=Texts(), language=True)  # type: ignore[abstract]
    found = server.example(version, "http://h")  # type: ignore[arg-type]
    if kind == "chat":
        asked = '{"model":"m","messages":[{"role":"user","content":"Hello"}]}'
        assert found == f"curl http://h/v1/chat/completions -H 'Content-Type: application/json' -d '{asked}'"
    else:
        asked = '{"model":"m","query":"Hello","documents":["Hi","No"]}'
        assert found == f"curl http://h/v1/rerank -H 'Content-Type: application/json' -d '{asked}'"


def test_inputs_that_are_too_large_for_a_command() -> None:
    rows = [{"name": "x", "shape": [-1, 65], "datatype": "FP32"}]
    version = SimpleNamespace(
        name="m", loaded=None, language=False, inputs=[SimpleNamespace(labels=())], metadata=lambda _: {"inputs": rows}
    )
    assert server.example(version, "http://h") == "curl http://h/v2/models/m"  # type: ignore[arg-type]
    rows[0]["shape"] = [2]
    version.inputs[0].labels = ("a",)
    assert server.example(version, "http://h") == "curl http://h/v2/models/m"  # type: ignore[arg-type]


def test_models_are_reported_as_they_come(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    frozen: list[str] = []
    monkeypatch.setattr(
        server, "gc", SimpleNamespace(collect=lambda: frozen.append("c"), freeze=lambda: frozen.append("f"))
    )
    monkeypatch.setattr(numbers, "prepare", lambda: frozen.append("p"))
    monkeypatch.setattr(server, "example", lambda version, url: f"{version.name} {url}")

    def version(name: str, state: str, batching: str | None, language: bool) -> Any:
        return SimpleNamespace(
            name=name,
            version="1",
            state=state,
            batching=batching,
            language=language,
            seconds=1.234,
            config=SimpleNamespace(max_batch=9),
        )

    every = [
        version("a", "LOADING", None, False),
        version("b", READY, None, False),
        version("c", READY, "no", False),
        version("d", READY, None, True),
    ]

    async def load_all() -> None: ...

    catalogue = SimpleNamespace(load_all=load_all, every=lambda: every)
    asyncio.run(server._load(catalogue, "http://h", False))  # type: ignore[arg-type]
    assert capsys.readouterr().out.splitlines() == [
        "  b version 1 is ready (1.23 s, batches of up to 9)", "  c version 1 is ready (1.23 s)", "  d version 1 is ready (1.23 s)",
        "Try it: b http://h",
    ]  # fmt: skip
    assert frozen == ["p", "c", "f"]
    del every[1:]
    asyncio.run(server._load(catalogue, "http://h", False))  # type: ignore[arg-type]
    assert capsys.readouterr().out == ""
