"""Workers that end, do not start, or answer what is no answer: the server goes on, and no one waits in vain."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smelt.errors import SmeltError
from smelt.serve.isolation import restarts
from smelt.serve.isolation.channel import Channel, Done, Failed, Message, Tensor, pair
from smelt.serve.isolation.remote import RemoteModel, Zygote, is_supported
from smelt.serve.isolation.remote_queue import RemoteQueue
from smelt.serve.isolation.restarts import MOST_PAUSE, Restarts
from smelt.serve.isolation.zygote import Ended, Forked, encode
from smelt.serve.problems import UnavailableError
from smelt.serve.queue import Limits

pytestmark = pytest.mark.skipif(not is_supported(), reason="isolation needs Linux")


def test_any_failure_to_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "MOST_PAUSE", 0.0)
    failures: list[Exception] = [OSError("no descriptors left"), RuntimeError("a bug"), SmeltError("no"), OSError()]
    refused: list[str] = []

    def restart() -> None:
        if failures:
            raise failures.pop(0)

    async def work() -> int:
        model: Any = SimpleNamespace(name="played", explain_end=lambda: "played", restart=restart)
        found = Restarts(model, lambda: None, refused.append)
        found.begin(asyncio.get_running_loop(), True)
        while found.is_running:
            await found.wait()
            await asyncio.sleep(0)
        return found.count

    assert asyncio.run(work()) == 1
    assert [text.splitlines()[0] for text in refused[:2]] == ["a bug", "no"]


def test_pauses_have_a_limit_however_often_a_worker_ends() -> None:
    found = Restarts(SimpleNamespace(), lambda: None, lambda why: None)  # type: ignore[arg-type]
    found._failures = 5000
    assert found._pause == MOST_PAUSE


def test_the_number_of_a_process_that_ended_may_be_given_again() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote = Zygote()
    for said in (Forked(7), Ended(7, 3), Forked(7)):
        theirs.send(encode(said))
    theirs.shutdown(socket.SHUT_WR)
    zygote._listen(ours)
    assert zygote.ending(7, 0.0) == -signal.SIGKILL, "it ended with the zygote; the process before it with 3"
    ours.close()
    theirs.close()


class Played(RemoteModel):
    """A model whose worker is a number."""

    def start(self) -> None:
        if self.meanwhile is not None:
            self.meanwhile()
        self.control: Any = SimpleNamespace(close=lambda: None)
        self.slots, self.pid = [], 40 + len(self.killed)

    killed: list[int]
    meanwhile: Callable[[], object] | None = None


def play() -> Played:
    killed: list[int] = []
    zygote: Any = SimpleNamespace(kill=killed.append, ending=lambda pid, seconds: 0, forget=lambda pid: None)
    Played.killed = killed
    return Played(zygote, "played", None, None)  # type: ignore[arg-type]


def test_a_process_is_ended_once() -> None:
    """Its number may be another process's afterwards."""
    model = play()

    def fail() -> None:
        raise OSError("no descriptors left")

    model.meanwhile = fail
    for _ in range(2):
        with pytest.raises(OSError, match="no descriptors"):
            model.restart()
    model.kill()
    model.close()
    assert model.killed == [40]


def test_a_worker_that_starts_while_its_model_is_closed_is_ended() -> None:
    model = play()
    model.meanwhile = model.close
    model.restart()
    assert model.killed == [40, 41]


def tensor(*shape: int, kind: str = "FP32", size: int = 0) -> Tensor:
    return Tensor("y", kind, shape, 0, size)


@pytest.mark.parametrize(
    "say",
    [
        lambda n: Done(n, [tensor((1 << 64) - 1, 0)]),
        lambda n: Done(n, [tensor(2, kind="BYTES")]),
        lambda n: Done(n + 1, []),
        lambda n: Done(n, [tensor(-1)]),
    ],
)
def test_answers_that_are_none_replace_the_worker(say: Callable[[int], Message]) -> None:
    answer(say, 1)


def test_a_batch_without_rows_replaces_the_worker() -> None:
    answer(lambda n: Done(n, [tensor(size=4)]), 2)


def answer(say: Callable[[int], Message], requests: int) -> None:
    """A call of some requests, and what the worker says to it."""

    async def work() -> None:
        ours, theirs = pair()
        ended = threading.Event()
        model: Any = SimpleNamespace(
            name="played", slots=[Channel(ours)], explain_end=lambda: "played", restart=ended.wait, kill=lambda: None
        )
        queue = RemoteQueue("played", model, Limits(1, requests, 30.0, 10))
        worker = Channel(theirs)
        x = np.zeros((1, 2), np.float32)
        jobs = [queue.submit({"x": x}, None) for _ in range(requests)]
        asked = await asyncio.to_thread(worker.receive)
        worker._send(say(asked.number), worker._reserve(64))  # type: ignore[union-attr]
        try:
            async with asyncio.timeout(30):
                while not queue._restarts.is_running:
                    await asyncio.sleep(0.001)
                if requests == 1:  # those that shared a call are run again
                    with pytest.raises(UnavailableError):
                        await jobs[0].future
        finally:
            ended.set()
            await queue._restarts.stop()
            queue._detach()
            worker.close()
            ours.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_an_error_without_fields_is_an_error() -> None:
    async def work() -> None:
        ours, theirs = pair()
        model: Any = SimpleNamespace(name="played", slots=[Channel(ours)])
        queue = RemoteQueue("played", model, Limits(1, 1, 0.0, 10))
        worker = Channel(theirs)
        job = queue.submit({"x": np.zeros((1, 2), np.float32)}, None)
        asked = await asyncio.to_thread(worker.receive)
        worker.send(Failed(asked.number, {}))  # type: ignore[union-attr]
        with pytest.raises(SmeltError):
            await job.future
        queue._detach()
        worker.close()
        ours.close()

    asyncio.run(asyncio.wait_for(work(), 60))
