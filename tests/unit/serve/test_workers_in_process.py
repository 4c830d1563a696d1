"""A worker and its compiler on threads of this process, with real channels: what they load, answer and refuse."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from smelt.errors import DeviceError, RunError, SmeltError
from smelt.serve.config import ModelConfig
from smelt.serve.isolation import compiler, sandbox, worker
from smelt.serve.isolation.channel import HELLO, Call, Cancelled, Channel, Compile, Compiled, Done, Failed, Ready
from smelt.serve.isolation.worker import RECENT, Loaded, WorkerSetup, _Worker
from smelt.serve.queue import INLINE
from smelt.stop import Cancel
from tests.unit.serve.client import DIGITS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd and Unix packets")
PIXELS = np.arange(128, dtype=np.float32).reshape(2, 64) / 128


_open: list[socket.socket] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the sockets of a test."""
    yield
    while _open:
        _open.pop().close()


def pair() -> tuple[Channel, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _open.extend((ours, theirs))
    return Channel(ours), theirs


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr(worker, "os", SimpleNamespace(_exit=codes.append))
    return codes


def setup_of(path: str | Path, **config: Any) -> Any:
    asked = ModelConfig(path=str(path), **{"engine": "reference", **config})
    return msgspec.to_builtins(WorkerSetup("digits", str(path), asked, ["/a", "/b"], 1 << 30))


def test_a_worker_gives_up_its_rights_then_loads_and_answers(monkeypatch: pytest.MonkeyPatch, ended: list[int]) -> None:
    seen: list[Any] = []

    def confine(paths: Any, memory: int) -> list[str]:
        seen.append((list(paths), memory))
        return ["layer"]

    monkeypatch.setattr(sandbox, "confine_worker", confine)
    monkeypatch.setattr(worker, "ask_compiler", lambda channel: seen.append("compiler"))
    monkeypatch.setattr(worker, "warm_up", lambda *given: seen.append(given[0]))
    (control, a), (_, b), (calls, c) = pair(), pair(), pair()
    running = threading.Thread(target=worker.run, args=(setup_of(DIGITS, warm_up=True), [a, b, c]), daemon=True)
    running.start()
    assert control.socket.recv(100) == HELLO
    ready = control.receive()
    assert isinstance(ready, Ready)
    about = msgspec.json.decode(control.content(ready.content).tobytes(), type=Loaded)
    assert (about.layers, about.about, about.engine) == (["layer"], None, "reference")
    assert about.seconds > 0
    assert [row[0] for row in about.signature[0]] == ["pixels"]
    assert seen == [([Path("/a"), Path("/b")], 1 << 30), "compiler", "digits"]
    calls.send_call(7, None, {"pixels": [PIXELS]})
    done = calls.receive()
    assert isinstance(done, Done)
    assert done.number == 7
    found = calls.tensors(done.tensors, copy=True)["probabilities"]
    assert found.shape == (2, 10)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    calls.send_call(8, None, {"other": [PIXELS]})
    failed = calls.receive()
    assert isinstance(failed, Failed)
    assert (failed.number, "pixels" in str(failed.error)) == (8, True)
    calls.close()
    running.join(30)
    assert ended == [0]
    control.close()
    while len(ended) < 2:  # the thread that listens ends the process, too: wait while that is not real
        time.sleep(0.001)
    assert ended == [0, 0]


def test_models_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: list[int]) -> None:
    monkeypatch.setattr(sandbox, "confine_worker", lambda paths, memory: [])
    monkeypatch.setattr(worker, "ask_compiler", lambda channel: None)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nothing")
    (control, a), (_, b), (_, c) = pair(), pair(), pair()
    worker.run(setup_of(broken), [a, b, c])
    assert control.socket.recv(100) == HELLO
    failed = control.receive()
    assert isinstance(failed, Failed)
    assert failed.number == 0
    assert "broken.onnx" in str(failed.error)
    assert ended == []


class Model:
    """What a worker uses of a model."""

    def __init__(self) -> None:
        self.calls: list[tuple[float | None, bool]] = []
        self.error: Exception | None = None

    def run(self, inputs: dict[str, Any], timeout: float | None, cancel: Cancel) -> dict[str, Any]:
        self.calls.append((timeout, cancel.cancelled))
        if self.error is not None:
            raise self.error
        return {name: array + 1 for name, array in inputs.items()}


def made_worker() -> tuple[Any, Model, Channel]:
    control, end = pair()
    model = Model()
    return _Worker(model, Channel(end), ModelConfig(max_output=1 << 20)), model, control  # type: ignore[arg-type]


def test_calls_that_were_cancelled_before_they_came(ended: list[int]) -> None:
    here, model, control = made_worker()
    control.send(Cancelled(5))
    control.send(Cancelled(9))
    control.close()
    here._listen()
    assert ended == [0]
    assert here._cancelled == {5, 9}
    calls, end = pair()
    channel = Channel(end)
    for number in (5, 6, RECENT + 5, RECENT + 6):
        calls.send_call(number, 2.5, {"x": [PIXELS]})
        call = channel.receive()
        assert isinstance(call, Call)
        here._answer(channel, call)
        assert isinstance(calls.receive(), Done)
        assert here._cancelled == ({5, 9} if number <= RECENT + 5 else {9})
    assert model.calls == [(2.5, True), (2.5, False), (2.5, False), (2.5, False)]
    assert here._tokens == {}
    calls.close()


def test_a_call_that_runs_is_cancelled(ended: list[int]) -> None:
    here, _, control = made_worker()
    token = here._tokens[3] = Cancel()
    control.send(Cancelled(3))
    control.close()
    here._listen()
    assert token.cancelled


def test_failures_are_answers(ended: list[int]) -> None:
    here, model, _ = made_worker()
    calls, end = pair()
    channel = Channel(end)
    for error, says in ((RunError("too long", remedy="shorter"), "too long"), (ValueError("odd"), "odd")):
        model.error = error
        calls.send_call(4, None, {"x": [PIXELS]})
        call = channel.receive()
        assert isinstance(call, Call)
        here._answer(channel, call)
        failed = calls.receive()
        assert isinstance(failed, Failed)
        assert (failed.number, says in str(failed.error)) == (4, True)
        assert here._tokens == {}
    for large in (np.zeros(1 << 19, np.float32), np.array(["x" * (1 << 20)], object)):
        model.error = None
        here._call = lambda *_, large=large: ({"y": large}, 0)
        calls.send_call(5, None, {"x": [PIXELS]})
        call = channel.receive()
        assert isinstance(call, Call)
        here._answer(channel, call)
        failed = calls.receive()
        assert isinstance(failed, Failed)
        assert "max_output" in failed.error["expected"]


def test_short_calls_stay_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    here, _, _ = made_worker()
    now = iter([0.0, INLINE / 2, 0.0, INLINE, 0.0, 0.0, 0.0, 0.0])
    limits: list[int] = []
    monkeypatch.setattr(worker, "time", SimpleNamespace(thread_time=lambda: next(now)))
    monkeypatch.setattr(worker, "limit_this_thread", limits.append)
    for size in (100, 100, 100, 1000):
        here._call({"x": np.zeros(size, np.float32)}, None, Cancel())
    assert limits == [0, 1, 0, 0]  # unknown, short, long, unknown
    assert here._short == {(400).bit_length(): True, (4000).bit_length(): True}


# ---- the compiler ----


def test_a_compiler_answers_until_its_worker_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []
    environment: dict[str, str] = {}
    monkeypatch.setattr(sandbox, "confine_compiler", lambda folders: seen.append(folders))
    monkeypatch.setattr(compiler, "os", SimpleNamespace(environ=environment))
    temporary = SimpleNamespace(tempdir=None)
    monkeypatch.setattr(compiler, "tempfile", temporary)

    def build(texts: list[str], is_runtime: bool) -> bytes:
        seen.append((texts, is_runtime))
        if "wrong" in texts:
            raise RunError("no C", remedy="x")
        return b"code"

    monkeypatch.setattr(compiler, "compile_for_other", build)
    folder = tmp_path / "cache"
    (channel, end) = pair()
    running = threading.Thread(target=compiler.run, args=({"folder": str(folder), "owner": "me"}, [end]), daemon=True)
    running.start()
    channel.send_sources(["int a;", "int b;"], False)
    found = channel.receive()
    assert isinstance(found, Compiled)
    assert channel.content(found.code).tobytes() == b"code"
    channel.send_sources(["wrong"], True)
    failed = channel.receive()
    assert isinstance(failed, Failed)
    assert "no C" in str(failed.error)
    channel.close()
    running.join(30)
    assert not running.is_alive()
    assert seen == [[folder], (["int a;", "int b;"], False), (["wrong"], True)]
    scratch = folder / "tmp"
    assert scratch.stat().st_mode & 0o777 == 0o700
    assert environment == {"SMELT_CACHE_DIR": str(folder), "XDG_CACHE_HOME": str(folder), "TMPDIR": str(scratch)}
    assert temporary.tempdir == str(scratch)


def test_a_worker_asks_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    asks: list[Any] = []
    monkeypatch.setattr(compiler, "compile_through", lambda ask, _: asks.append(ask))
    channel, end = pair()
    compiler.ask_compiler(channel)
    (ask,) = asks
    other = Channel(end)

    def answer(message: Any) -> None:
        asked = other.receive()
        assert isinstance(asked, Compile)
        texts = [other.content(each).tobytes().decode() for each in asked.sources]
        asks.append((texts, asked.runtime))
        if message is None:
            other.send_bytes(Compiled, b"code")
        else:
            other.send(message)

    for message in (None, Failed(0, RunError("no C", remedy="x").record())):
        running = threading.Thread(target=answer, args=(message,))
        running.start()
        if message is None:
            assert ask(["int a;"], True) == b"code"
        else:
            with pytest.raises(SmeltError, match="no C"):
                ask(["int b;"], False)
        running.join(30)
    assert asks[1:] == [(["int a;"], True), (["int b;"], False)]
    other.close()
    with pytest.raises(DeviceError, match="the compiler process of the worker has ended"):
        ask(["int c;"], False)
