"""Requests share calls where they may; deadlines, limits and cancellation hold; no request gets the rows of another."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.errors import RunError, TimedOutError
from smelt.model import LoadedModel
from smelt.serve import opening
from smelt.serve.config import ModelConfig
from smelt.serve.problems import BusyError, DeadlineError, UnavailableError
from smelt.serve.queue import INLINE, MEASURED, PATIENCE, Limits, ModelQueue, Timing
from smelt.serve.short_calls import ShortCall
from smelt.stop import Cancel


class Doubling:
    """A model that waits for its gate, and notes the rows of every call."""

    def __init__(self) -> None:
        self.gate, self.started, self.calls = threading.Event(), threading.Event(), list[int]()
        self.cancels = list[Cancel | None]()

    def __call__(self, inputs: Mapping[str, Array], timeout: float | None, cancel: Cancel | None) -> dict[str, Array]:
        self.started.set()
        self.cancels.append(cancel)
        assert self.gate.wait(30)
        x = inputs["x"]
        self.calls.append(len(x))
        if (x < 0).any():
            raise RunError("negative")
        return {"y": x * 2}


def rows(*numbers: float) -> dict[str, Array]:
    return {"x": np.array(numbers, np.float32).reshape(-1, 1)}


def play(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def wait_for(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)


async def settle(queue: ModelQueue, waiting: int) -> None:
    while queue.waiting != waiting:
        await asyncio.sleep(0.001)


def test_requests_that_wait_share_a_call_and_get_their_own_rows() -> None:
    async def work() -> None:
        model = Doubling()
        queue = ModelQueue("m", model, Limits(max_batch=8))
        first = asyncio.create_task(queue.infer(rows(1), None))
        await wait_for(model.started)
        others = [asyncio.create_task(queue.infer(rows(*range(n, 2 * n)), None)) for n in (1, 2, 3, 4)]
        await settle(queue, 4)
        model.gate.set()
        found = [await task for task in (first, *others)]
        assert model.calls == [1, 6, 4], "up to eight rows, in order"
        for (outputs, timing), n in zip(found[1:], (1, 2, 3, 4), strict=True):
            np.testing.assert_array_equal(outputs["y"], 2 * rows(*range(n, 2 * n))["x"])
            assert timing.rows == n
        assert [timing.batch for _, timing in found] == [1, 6, 6, 6, 4]

    play(work())


def test_requests_wait_for_a_fuller_batch_no_longer_than_they_may() -> None:
    async def work() -> None:
        model = Doubling()
        model.gate.set()
        queue = ModelQueue("m", model, Limits(max_batch=3, max_delay=50.0))
        first = asyncio.create_task(queue.infer(rows(1), None))
        await settle(queue, 1)
        assert not model.started.wait(0.05)
        await queue.infer(rows(2, 3), None)  # a full batch
        assert (await first)[1].batch == 3
        assert model.calls == [3]
        short = ModelQueue("m", model, Limits(max_batch=3, max_delay=0.02))
        assert (await short.infer(rows(1), None))[1].batch == 1
        alone = ModelQueue("m", model, Limits(max_delay=50.0))
        assert (await alone.infer(rows(1), None))[1].batch == 1

    play(work())


def test_requests_of_other_shapes_do_not_share_a_call() -> None:
    async def work() -> None:
        model = Doubling()
        queue = ModelQueue("m", model, Limits(max_batch=8))
        first = asyncio.create_task(queue.infer(rows(1), None))
        await wait_for(model.started)
        wide = {"x": np.ones((2, 5), np.float32)}
        tasks = [first, *(asyncio.create_task(queue.infer(each, None)) for each in (rows(1), wide, rows(2)))]
        await settle(queue, 3)
        model.gate.set()
        await asyncio.gather(*tasks)
        assert model.calls == [1, 2, 2]

    play(work())


def test_inputs_that_broadcast_get_a_call_of_their_own() -> None:
    async def work() -> None:
        model = Doubling()
        queue = ModelQueue("m", model, Limits(max_batch=8))
        first = asyncio.create_task(queue.infer(rows(1), None))
        await wait_for(model.started)
        pair = {"x": rows(1, 2)["x"], "z": np.ones((1, 1), np.float32)}
        others = [asyncio.create_task(queue.infer(pair, None)) for _ in range(2)]
        await settle(queue, 2)
        model.gate.set()
        await asyncio.gather(first, *others)
        assert model.calls == [1, 2, 2]

    play(work())


def test_a_request_that_fails_takes_no_other_with_it() -> None:
    async def work() -> None:
        model = Doubling()
        queue = ModelQueue("m", model, Limits(max_batch=8))
        first = asyncio.create_task(queue.infer(rows(1), None))
        await wait_for(model.started)
        good, bad = (asyncio.create_task(queue.infer(rows(n), None)) for n in (3, -1))
        await settle(queue, 2)
        model.gate.set()
        await first
        assert (await good)[0]["y"].item() == 6
        with pytest.raises(RunError, match="negative"):
            await bad

    play(work())


def test_full_queues_refuse_and_expired_work_does_not_run() -> None:
    async def work() -> None:
        model = Doubling()
        queue = ModelQueue("m", model, Limits(max_queue=1))
        first = asyncio.create_task(queue.infer(rows(1), None))
        await wait_for(model.started)
        late = asyncio.create_task(queue.infer(rows(2), 1.0))
        await settle(queue, 1)
        with pytest.raises(BusyError) as refused:
            await queue.infer(rows(3), None)
        assert refused.value.retry_after is not None
        with pytest.raises(DeadlineError, match="before the request could run"):
            await late  # while the only instance is still busy
        assert queue.waiting == 0
        model.gate.set()
        await first
        assert model.calls == [1], "expired work was not run"

    play(work())


def test_a_client_that_leaves_cancels_its_own_call_alone() -> None:
    async def work() -> None:
        model = Doubling()
        queue = ModelQueue("m", model, Limits(instances=2))
        tasks = [asyncio.create_task(queue.infer(rows(n), None)) for n in (1, 2)]
        while len(model.cancels) < 2:
            await asyncio.sleep(0.001)
        waiting = asyncio.create_task(queue.infer(rows(3), None))
        await settle(queue, 1)
        tasks[0].cancel()
        waiting.cancel()
        await asyncio.sleep(0.01)
        flags = [cancel.cancelled for cancel in model.cancels if cancel is not None]
        assert sorted(flags) == [False, True]
        model.gate.set()
        assert (await tasks[1])[0]["y"].item() == 4
        assert await queue.drain(5)
        assert len(model.calls) == 2, "a cancelled request does not run"

    play(work())


def test_higher_priority_comes_first() -> None:
    async def work() -> None:
        model = Doubling()
        queue = ModelQueue("m", model, Limits())
        done = list[int]()

        async def ask(number: int, priority: int) -> None:
            await queue.infer(rows(*range(number)), None, priority=priority)
            done.append(number)

        first = asyncio.create_task(ask(1, 0))
        await wait_for(model.started)
        tasks = []
        for number, priority in ((2, 0), (3, 5), (4, 5), (5, 9)):
            tasks.append(asyncio.create_task(ask(number, priority)))
            await settle(queue, number - 1)
        model.gate.set()
        await asyncio.gather(first, *tasks)
        assert model.calls == [1, 5, 3, 4, 2]

    play(work())


def test_clients_take_turns_by_the_rows_that_they_ask_for() -> None:
    async def work() -> None:
        model = Doubling()
        queue = ModelQueue("m", model, Limits())
        done = list[str]()

        async def ask(client: str) -> None:
            await queue.infer(rows(1), None, client=client)
            done.append(client)

        first = asyncio.create_task(ask("greedy"))
        await wait_for(model.started)
        tasks = []
        for client in ("greedy",) * 4 + ("modest",) * 2 + ("late",):
            tasks.append(asyncio.create_task(ask(client)))
            await settle(queue, len(tasks))
        model.gate.set()
        await asyncio.gather(first, *tasks)
        # The greedy one had its turn with the first; then all take turns, in the order in which they came.
        assert done == ["greedy", "modest", "late", "greedy", "modest", "greedy", "greedy", "greedy"]

    play(work())


def test_one_client_cannot_fill_a_queue() -> None:
    async def work() -> None:
        model = Doubling()
        queue = ModelQueue("m", model, Limits(max_queue=16))
        jobs = [queue.submit(rows(1), None)]
        await wait_for(model.started)
        jobs += [queue.submit(rows(1), None, 0, "greedy") for _ in range(14)]
        with pytest.raises(BusyError):
            queue.submit(rows(1), None, 0, "greedy")
        jobs += [queue.submit(rows(1), None, 0, "modest") for _ in range(2)]
        with pytest.raises(BusyError):
            queue.submit(rows(1), None, 0, "modest")
        model.gate.set()
        await asyncio.gather(*(job.future for job in jobs))

    play(work())


def test_closing_finishes_what_was_accepted() -> None:
    async def work() -> None:
        model = Doubling()
        queue = ModelQueue("m", model, Limits())
        tasks = [asyncio.create_task(queue.infer(rows(n), None)) for n in (1, 2, 3)]
        await settle(queue, 2)
        queue.close()
        with pytest.raises(UnavailableError):
            await queue.infer(rows(4), None)
        model.gate.set()
        assert [(await task)[0]["y"].item() for task in tasks] == [2, 4, 6]
        assert await queue.drain(5)

    play(work())


def test_random_traffic_gives_everybody_their_own(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, 200).tolist()

    def call(inputs: Mapping[str, Array], timeout: float | None, cancel: Cancel | None) -> dict[str, Array]:
        time.sleep(0.0005)
        return {"y": inputs["x"] + 1}

    async def work() -> None:
        queue = ModelQueue("m", call, Limits(instances=2, max_batch=16, max_delay=0.001))

        async def ask(i: int, n: int) -> None:
            x = np.full((n, 3), i, np.float32)
            outputs, _ = await queue.infer({"x": x}, 30)
            np.testing.assert_array_equal(outputs["y"], x + 1)

        await asyncio.gather(*(ask(i, n) for i, n in enumerate(sizes)))

    play(work())


@pytest.mark.parametrize(("first", "calls"), [(2 * opening.LONG, 1), (0.0, 6)])
def test_a_long_first_call_is_the_whole_warm_up(first: float, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[float] = []

    def seconds(*_: Any) -> float:
        ran.append(0.0 if ran else first)
        return ran[-1]

    monkeypatch.setattr(opening, "_samples", lambda *_: {"x": np.zeros(1)})
    monkeypatch.setattr(opening, "_seconds", seconds)
    opening.warm_up("m", Path("m.onnx"), ModelConfig(path="m.onnx"), cast(LoadedModel, None))
    assert len(ran) == calls


# ---- calls that are short enough for the event loop ----


def at_once(queue: ModelQueue, given: dict[str, Any]) -> tuple[dict[str, Any], Timing]:
    found = queue.infer_now(given, None)
    assert found is not None
    return found


@pytest.mark.parametrize("is_model", [False, True])
def test_a_call_that_is_long_for_once_leaves_the_event_loop(is_model: bool) -> None:
    """It is ended and run in a thread. If the model took so long, and not the machine, calls of its kind stay there."""
    ran: list[float | None] = []

    def call(inputs: Any, timeout: float | None, cancel: Any) -> dict[str, Any]:
        ran.append(timeout)
        if len(ran) == 1:
            raise TimedOutError("the call took too long")
        begun = time.thread_time()
        while is_model and time.thread_time() - begun < 11 * INLINE:
            pass
        return {"y": inputs["x"]}

    queue = ModelQueue("m", call, Limits())
    given = rows(1, 2)
    queue.measure(given, INLINE / 2)
    with pytest.raises(TimedOutError):  # the client's own deadline
        queue.infer_now(given, PATIENCE / 2)
    ran.clear()
    outputs, _ = asyncio.run(queue.infer(given, 60.0))
    np.testing.assert_array_equal(outputs["y"], given["x"])
    assert ran[0] == PATIENCE
    assert ran[1] is not None
    assert ran[1] > PATIENCE
    for _ in range(5):
        queue.measure(given, INLINE / 2)
    assert queue.is_inline(given) == (not is_model)
    queue.close()


def test_short_calls_run_on_the_event_loop() -> None:
    """A call whose median is short runs at once and is counted; a longer one, or a wait, goes to the queue."""
    model, calls = Doubling(), list[int]()
    model.gate.set()
    queue = ModelQueue("m", model, Limits(max_batch=8), lambda rows, seconds: calls.append(rows))
    given = rows(1, 2, 3)
    assert not queue.is_inline(given), "nothing is known yet"
    for seconds in (INLINE / 2, INLINE / 2, 9.0):
        queue.measure(given, seconds)
    assert queue.seconds(given) == INLINE / 2
    assert queue.is_inline(given)
    outputs, timing = at_once(queue, given)
    np.testing.assert_array_equal(outputs["y"], 2 * given["x"])
    assert (timing.waited, timing.rows, timing.batch, timing.kernels) == (0.0, 3, 3, ())
    assert timing.computed > 0
    assert (calls, queue.waiting) == ([3], 0)
    for _ in range(3):
        queue.measure(given, INLINE)
    outside = ModelQueue("m", model, Limits(may_inline=False))
    outside.measure(given, INLINE / 2)
    assert not outside.is_inline(given), "a call that may compile"
    assert not queue.is_inline(given), "the median of the last five is no longer short"
    assert queue.seconds(rows(*range(3000))) == float("inf"), "inputs of another magnitude"


def test_some_inline_calls_are_measured() -> None:
    model = Doubling()
    model.gate.set()
    queue = ModelQueue("m", model, Limits())
    for _ in range(MEASURED - 1):
        at_once(queue, rows(1, 2))
    assert queue.seconds(rows(1, 2)) == float("inf")
    _, timing = at_once(queue, rows(1, 2))
    assert queue.seconds(rows(1, 2)) < float("inf")
    assert timing.rows == 1, "without batching a call is one row"


# ---- short calls of one iteration of the event loop ----


class Iteration:
    """Calls that are added in one iteration, and what became of them."""

    def __init__(self, model: Any, **limits: Any) -> None:
        self.counted: list[int] = []
        self.queue = ModelQueue("m", model, Limits(**limits), lambda rows, _: self.counted.append(rows))
        self.ended: list[int] = []

    def run(
        self, *given: dict[str, Any], timeout: float | None = None, cancelled: Sequence[int] = ()
    ) -> list[ShortCall]:
        async def work() -> list[ShortCall]:
            calls = []
            for i, inputs in enumerate(given):
                call = self.queue.infer_soon(inputs, timeout)
                assert isinstance(call, ShortCall)
                call.on_done = self._note(i)
                calls.append(call)
            assert self.queue.waiting == len(calls)
            for i in cancelled:
                calls[i].cancel()
            self.queue.close()  # what was accepted still runs
            with pytest.raises(UnavailableError):
                self.queue.infer_soon(given[0], timeout)
            assert await self.queue.drain(60)
            while len(self.ended) < len(calls):
                await asyncio.sleep(0.001)
            return calls

        return asyncio.run(work())

    def _note(self, i: int) -> Callable[[], object]:
        return lambda: self.ended.append(i)


def test_requests_of_one_iteration_share_a_call() -> None:
    """In batches of rows of one kind, each no larger than allowed."""
    model = Doubling()
    model.gate.set()
    turn = Iteration(model, max_batch=4)
    given = [rows(1), rows(2, 3), {"x": np.ones((1, 5), np.float32)}, rows(4), rows(5)]
    for inputs, call in zip(given, turn.run(*given), strict=True):
        outputs, timing = call.result()
        np.testing.assert_array_equal(outputs["y"], 2 * inputs["x"])
        assert timing.rows == len(inputs["x"])
        assert timing.waited >= 0
    assert sorted(turn.counted) == [1, 1, 4]
    assert sorted(turn.ended) == [0, 1, 2, 3, 4]


def test_one_request_of_an_iteration_does_not_fail_the_others() -> None:
    def call(inputs: Any, timeout: float | None, cancel: Any) -> dict[str, Any]:
        if 13 in inputs["x"]:
            raise RunError("no thirteen")
        return {"y": inputs["x"]}

    calls = Iteration(call, max_batch=8).run(rows(1), rows(13), rows(2), rows(3), cancelled=[3])
    assert [call.error is None for call in calls] == [True, False, True, False]
    with pytest.raises(RunError, match="thirteen"):
        calls[1].result()
    with pytest.raises(asyncio.CancelledError):
        calls[3].result()


def test_an_iteration_that_takes_long_goes_on_in_threads() -> None:
    """Each request alone: the one that takes long is known then, and runs in threads from now on."""
    ran: list[tuple[int, float | None]] = []

    def call(inputs: Any, timeout: float | None, cancel: Any) -> dict[str, Any]:
        ran.append((len(inputs["x"]), timeout))
        if len(ran) == 1:
            raise TimedOutError("the call took too long")
        begun = time.thread_time()
        while len(inputs["x"]) > 9 and time.thread_time() - begun < 11 * INLINE:
            pass
        return {"y": inputs["x"]}

    turn = Iteration(call, max_batch=1 << 20)
    given = [rows(1), rows(2), rows(*range(64))]
    for inputs in given:
        turn.queue.measure(inputs, INLINE / 2)
    for inputs, each in zip(given, turn.run(*given), strict=True):
        np.testing.assert_array_equal(each.result()[0]["y"], inputs["x"])
    assert ran[0] == (66, PATIENCE)
    assert sorted(count for count, _ in ran[1:]) == [1, 1, 64]
    for inputs in given:
        for _ in range(5):
            turn.queue.measure(inputs, INLINE / 2)
    assert [turn.queue.is_inline(inputs) for inputs in given] == [True, True, False]


def test_a_closed_queue_runs_what_was_accepted_later() -> None:
    """Its thread may have ended by then."""

    async def work() -> None:
        queue = ModelQueue("m", lambda inputs, timeout, cancel: {"y": inputs["x"]}, Limits())
        queue.close()
        for i in range(3):
            assert (await queue.enqueue(rows(i), None).future)["y"] == i
            while queue._threads:
                await asyncio.sleep(0.001)

    play(work())


def test_a_short_timeout_is_not_shared() -> None:
    ran: list[tuple[int, float | None]] = []

    def call(inputs: Any, timeout: float | None, cancel: Any) -> dict[str, Any]:
        ran.append((len(inputs["x"]), timeout))
        return {"y": inputs["x"]}

    Iteration(call, max_batch=8).run(rows(1), rows(2), timeout=PATIENCE / 2)
    assert ran == [(1, PATIENCE / 2)] * 2


@pytest.mark.parametrize(("most", "inputs"), [(1, rows(3.0)), (1, {}), (8, {})])
def test_calls_that_cannot_be_shared_run_at_once(most: int, inputs: dict[str, Array]) -> None:
    """Without batches, and without an input that could have rows."""

    def answer(inputs: Mapping[str, Array], timeout: float | None, cancel: Cancel | None) -> dict[str, Array]:
        return {"y": inputs.get("x", np.zeros((1, 1), np.float32)) * 2}

    async def work() -> None:
        queue = ModelQueue("m", answer, Limits(max_batch=most))
        found = queue.infer_soon(inputs, None)
        assert isinstance(found, tuple)
        np.testing.assert_array_equal(found[0]["y"], answer(inputs, None, None)["y"])
        queue.close()
        assert await queue.drain(60)

    play(work())
