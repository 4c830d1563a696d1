"""The queue of a pipeline: how many requests run at once, what those beyond are told, and how it ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smelt.serve.pipeline import PipelineQueue
from smelt.serve.problems import BusyError, UnavailableError


class Held:
    """A pipeline whose requests end when told to."""

    name = "p"

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.deadlines: list[float | None] = []
        self.given: list[Any] = []

    async def run(self, inputs: Any, deadline: float | None, priority: int, client: str) -> Any:
        self.deadlines.append(deadline)
        self.given.append((priority, client))
        await self.end.wait()
        return {"y": inputs["x"]}


@pytest.mark.parametrize("most", [0, 1, 3])
def test_one_request_runs_and_as_many_wait_as_may(most: int) -> None:
    calls: list[tuple[int, float]] = []

    async def work() -> None:
        pipeline = Held()
        queue = PipelineQueue(pipeline, most, lambda rows, seconds: calls.append((rows, seconds)))  # type: ignore[arg-type]
        inputs = {"x": np.zeros((5, 2)), "k": np.array(3)}
        tasks = [asyncio.create_task(queue.infer(inputs, None, 7, "team")) for _ in range(most + 1)]
        await asyncio.sleep(0)
        assert queue.running == most + 1
        with pytest.raises(BusyError, match="p is busy") as caught:
            await queue.infer(inputs, None)
        assert (caught.value.expected, caught.value.retry_after) == (f"at most {most + 1} requests at once", 1)
        assert not await queue.drain(0.0)
        pipeline.end.set()
        for found, timing in await asyncio.gather(*tasks):
            np.testing.assert_array_equal(found["y"], inputs["x"])
            assert timing.rows == 5
        assert pipeline.given == [(7, "team")] * (most + 1)
        assert pipeline.deadlines == [None] * (most + 1)
        assert queue.running == 0
        assert await queue.drain(0.0)
        await queue.infer({"x": np.array(1.0)}, None)

    asyncio.run(work())
    assert [rows for rows, _ in calls] == [5] * (most + 1) + [1], "numbers without axes are one row"
    assert all(seconds >= 0 for _, seconds in calls)


def test_a_pipeline_that_is_unloaded_says_when_to_ask_again() -> None:
    async def work() -> None:
        queue = PipelineQueue(Held(), 1, lambda *_: None)  # type: ignore[arg-type]
        queue.close()
        with pytest.raises(UnavailableError, match="p is being unloaded") as caught:
            await queue.infer({}, None)
        assert caught.value.retry_after == 1
        assert queue.running == 0

    asyncio.run(work())


def test_a_request_that_fails_is_not_counted() -> None:
    async def fail(*_: Any) -> Any:
        raise ValueError("no")

    async def work() -> None:
        queue = PipelineQueue(SimpleNamespace(name="p", run=fail), 1, lambda *_: pytest.fail("a call"))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no"):
            await queue.infer({}, 5.0)
        assert queue.running == 0
        assert not queue.is_inline({})

    asyncio.run(work())
