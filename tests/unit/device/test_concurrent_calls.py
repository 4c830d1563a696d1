"""Calls of several threads share the pool and the memory: workers are divided, memory is given in order of arrival.

The programs are hand-written C (`programs.c`). A step that returns only when N workers have met proves that it had N;
deadlines make a step that never gets them an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from smelt.device import cpu
from smelt.device.runtime import Account, Bound, Runtime, runtime
from smelt.errors import CancelledError, SmeltError, TimedOutError
from smelt.shape import Shape
from smelt.stop import Cancel, Stop
from tests.unit.device.test_runtime import program

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")
LONG = 60.0  # seconds after which a call has failed


@pytest.fixture
def pool() -> Iterator[Runtime]:
    before = runtime().threads
    yield runtime()
    runtime().set_threads(before)


def meeting() -> Bound:
    return program("meeting", [Shape("f32", "N")], [Shape("i64")], "N").bind([])


def workers_that_met(call: Bound, count: int, timeout: float = LONG) -> int:
    return int(call((np.zeros(count, np.float32),), None, Stop(timeout))[0])


def test_two_calls_at_once_have_two_workers_each(pool: Runtime) -> None:
    """Four threads: each of two calls needs a helper beside its own thread before its step can end."""
    pool.set_threads(4)
    call = meeting()
    with ThreadPoolExecutor(2) as callers:
        for _ in range(20):
            assert list(callers.map(lambda _: workers_that_met(call, 2), range(2))) == [2, 2]


def test_a_call_alone_has_all_workers(pool: Runtime) -> None:
    pool.set_threads(4)
    call = meeting()
    for _ in range(20):
        assert workers_that_met(call, 4) == 4


class Endless:
    """A call that waits for one worker more than there are, and so for its end."""

    def __init__(self, call: Bound, threads: int, callers: ThreadPoolExecutor) -> None:
        self.token, begun = Cancel(), np.zeros((), np.int64)
        x = np.zeros(threads + 1, np.float32)
        self.future = callers.submit(call, (x,), (begun,), Stop(LONG, self.token))
        while not begun:
            time.sleep(0.001)

    def end(self) -> None:
        self.token.cancel()
        with pytest.raises(CancelledError):
            self.future.result()


def test_helpers_come_when_another_call_ends(pool: Runtime) -> None:
    """Two threads, two calls: neither can have a helper. The one that stays gets it as soon as the other has ended."""
    pool.set_threads(2)
    call = meeting()
    with ThreadPoolExecutor(2) as callers:
        other = Endless(call, 2, callers)
        stays = callers.submit(workers_that_met, call, 2)
        time.sleep(0.05)
        other.end()
        assert stays.result() == 2


def test_as_many_calls_as_threads_run_alone(pool: Runtime) -> None:
    """Helpers would only take cores from the calls: a step that needs two workers ends by its deadline."""
    pool.set_threads(2)
    call = meeting()
    with ThreadPoolExecutor(2) as callers:
        others = [Endless(call, 2, callers) for _ in range(2)]
        with pytest.raises(TimedOutError):
            workers_that_met(call, 2, 0.2)
        for each in others:
            each.end()
    assert workers_that_met(call, 2) == 2, "and afterwards there is a helper again"


def sums(seed: int) -> tuple[Bound, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    weights, x = random.standard_normal((2, 200_000))
    shapes = [Shape("f64", "N"), Shape("f64", "N")]
    constant = np.array(0.5).tobytes()
    call = program("sum", shapes, [Shape("f64")], "N", constants=(constant,)).bind([weights])
    return call, x, call((x,))[0]


def test_many_callers_get_the_same_bits(pool: Runtime, seed: int) -> None:
    """Sixteen threads, while the number of workers changes; some calls are cancelled or have no time."""
    pool.set_threads(3)
    call, x, want = sums(seed)
    wrong: list[object] = []
    done = threading.Event()

    def use(number: int) -> None:
        random = np.random.default_rng([seed, number])
        for _ in range(60):
            how = random.integers(4)
            token = Cancel()
            if how == 0:
                token.cancel()
            stop = Stop(0.0 if how == 1 else LONG, token)
            try:
                got = call((x,), None, stop)[0]
            except (CancelledError, TimedOutError):
                if how > 1:
                    wrong.append(how)
            else:
                if how < 2 or got.tobytes() != want.tobytes():
                    wrong.append((how, got))

    def change() -> None:
        for count in (1, 5, 2, 4) * 50:
            if done.wait(0.005):
                return
            pool.set_threads(count)

    changer = threading.Thread(target=change)
    changer.start()
    with ThreadPoolExecutor(16) as callers:
        list(callers.map(use, range(16)))
    done.set()
    changer.join()
    assert not wrong


# ---- memory ----


class Waiting:
    """Calls of 1 … 7 MiB in a limit of 8, while a first one holds 6 of them: blocks take whole huge pages of 2."""

    def __init__(self) -> None:
        self.account = Account((8 << 20) + 4096)
        shapes = [Shape("f32", "N")], [Shape("i64")]
        self.call = program("ticket", *shapes, "N").bind([], account=self.account)
        self.callers = ThreadPoolExecutor(8)
        self.token = Cancel()

    def _run(self, size: int, stop: Stop, hold: bool = False) -> int:
        return int(self.call((np.full(size, hold, np.float32),), None, stop)[0])

    def submit(self, size: int, stop: Stop | None = None) -> Future[int]:
        """Returns when the call waits for memory, or is done."""
        before = self.account._ledger.running
        made = self.callers.submit(self._run, size, stop or Stop(LONG))
        while self.account._ledger.running == before and not made.done():
            time.sleep(0.001)
        return made

    def __enter__(self) -> Waiting:
        self.holder = self.callers.submit(self._run, 6, Stop(LONG, self.token), True)
        while self.account.used < 6 << 20:
            time.sleep(0.001)
        return self

    def release(self) -> None:
        self.token.cancel()
        with pytest.raises(CancelledError):
            self.holder.result()

    def __exit__(self, *_: object) -> None:
        self.token.cancel()
        self.callers.shutdown()
        self.call.close()
        assert self.account.used == 0
        ledger = self.account._ledger
        assert (ledger.running, ledger.waiting, ledger.first, ledger.last) == (0, 0, None, None)


def test_memory_is_given_in_the_order_of_arrival(pool: Runtime) -> None:
    """A large call is not overtaken by small ones, not even by one that would fit at once."""
    with Waiting() as queue:
        calls = [queue.submit(size) for size in (7, 2, 7, 1, 7)]  # no two of them in a row fit together
        assert not any(each.done() for each in calls)
        queue.release()
        tickets = [each.result() for each in calls]
    assert tickets == sorted(tickets)


def test_a_call_that_stops_waiting_lets_the_next_one_pass(pool: Runtime) -> None:
    with Waiting() as queue:
        token = Cancel()
        first = queue.submit(7, Stop(LONG, token))
        second = queue.submit(1)
        assert not second.done()
        token.cancel()
        with pytest.raises(CancelledError):
            first.result()
        assert second.result() >= 0, "which fits beside the one that holds memory"
        timed = queue.submit(7, Stop(0.05))
        third = queue.submit(1)
        with pytest.raises(TimedOutError):
            timed.result()
        assert third.result() > second.result()
        with pytest.raises(SmeltError, match="memory"):
            queue._run(9, Stop(LONG))


SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, {root!r})
from tests.unit.device.test_concurrent_calls import *
runtime().set_threads(3)
call, x, want = sums(1)
def right():
    return call((x,))[0].tobytes() == want.tobytes() and workers_that_met(meeting(), 3) == 3
over = threading.Event()
def use():
    while not over.is_set():
        assert call((x,))[0].tobytes() == want.tobytes()
with Waiting() as queue:
    waiting = queue.submit(7)
    callers = [threading.Thread(target=use) for _ in range(4)]
    for each in callers: each.start()
    children = []
    for _ in range(6):
        children.append(os.fork())
        if not children[-1]:
            fits = queue._run(7, Stop(LONG)) >= 0  # the memory of calls that are not here is free
            os._exit(0 if fits and right() else 1)
        time.sleep(0.01)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    over.set()
    for each in callers: each.join()
    queue.release()
    waiting.result()
assert right()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_amid_calls() -> None:
    """The child has none of the other threads' calls: neither their workers nor their memory are missing."""
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT.format(root=root)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
