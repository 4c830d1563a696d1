"""A model with compile-time inputs, called from several threads: each value compiles once, and no thread deadlocks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.activity import Queue
from smelt.buffer import HostBuffer
from smelt.dtype import Array
from smelt.engine_api import Closing, Port, Signature
from smelt.errors import RunError, TimedOutError
from smelt.run import per_value
from smelt.run.per_value import MissingValuesError, PerValue
from smelt.shape import Shape
from smelt.stop import Stop

SIGNATURE = Signature((Port("x", Shape("f32", 2)), Port("k", Shape("i64"))), (Port("y", Shape("f32", 2)),))
X = np.array([1, 2], np.float32)


class Scale(Closing):
    """x · k for one k; a call waits for `go`."""

    def __init__(self, k: int, go: threading.Event) -> None:
        self.signature = Signature(SIGNATURE.inputs[:1], SIGNATURE.outputs)
        self.kernels = ()
        self.k, self.go, self.is_closed = k, go, False

    def prepare(self, weights: object) -> Scale:
        return self

    def __call__(self, x: Array, stop: Stop | None = None) -> tuple[Array, ...]:
        assert self.go.wait(60)
        if self.is_closed:
            raise RunError("the executable is closed")
        return (x * self.k,)

    def close(self) -> None:
        self.is_closed = True


class Builder:
    """Compiles slowly, and counts. `hold` stops compiles until it is set."""

    def __init__(self) -> None:
        self.built: Counter[int] = Counter()
        self.hold, self.go = threading.Event(), threading.Event()
        self.hold.set()
        self.go.set()
        self.made: list[Scale] = []

    def __call__(self, values: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> Any:
        if "k" not in values:
            raise MissingValuesError(("k",), False)
        self.built[int(values["k"])] += 1
        time.sleep(0.01)
        assert self.hold.wait(60)
        self.made.append(Scale(int(values["k"]), self.go))
        return self.made[-1]


def test_concurrent_first_calls_compile_once() -> None:
    build = Builder()
    model = PerValue(SIGNATURE, (), False, build)  # that k is one of them is found by the first call
    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(lambda i: model(X, np.array(i % 3))[0][1], range(36)))
    assert found == [2.0 * (i % 3) for i in range(36)]
    assert build.built == {0: 1, 1: 1, 2: 1}


def test_a_known_value_does_not_wait_for_a_compile() -> None:
    build = Builder()
    model = PerValue(SIGNATURE, ("k",), False, build)
    model(X, np.array(1))
    build.hold.clear()
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(model, X, np.array(2))
        while not build.built[2]:
            time.sleep(0.001)
        assert model(X, np.array(1))[0].tolist() == [1, 2]
        with pytest.raises(TimedOutError):
            model(X, np.array(3), stop=Stop(0.05))
        build.hold.set()
        assert other.result()[0].tolist() == [2, 4]
    assert build.built[3] == 0


def test_an_evicted_program_ends_its_calls_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_value, "LIMIT", 1)
    build = Builder()
    model = PerValue(SIGNATURE, ("k",), False, build)
    build.go.clear()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(model, X, np.array(1))
        while not build.made:
            time.sleep(0.001)
        second = threads.submit(model, X, np.array(2))
        while len(build.made) < 2:
            time.sleep(0.001)
        time.sleep(0.01)
        assert not build.made[0].is_closed
        build.go.set()
        assert (first.result()[0].tolist(), second.result()[0].tolist()) == ([1, 2], [2, 4])
    assert [each.is_closed for each in build.made] == [True, False]


# ---- long calls of the tensor API ----


def test_long_calls_of_different_threads_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls that wait for each other inside their programs; those of one thread keep their order."""
    monkeypatch.setattr("smelt.tensor.jit.executable.LONG", 0)
    both, order = threading.Barrier(2, timeout=60), list[float]()

    def meet(x: Array) -> Array:
        both.wait()
        return x

    def note(x: Array) -> Array:
        order.append(float(x[0]))
        return x

    shape = "f32[n=3]"
    meeting = smelt.compile(lambda x: smelt.custom_call(meet, shape, x), shape, engine="reference")
    noting = smelt.compile(lambda x: smelt.custom_call(note, shape, x), shape, engine="reference")
    x = np.arange(3, dtype=np.float32)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: meeting(x).numpy().tolist(), range(2)))
    assert found == [[0, 1, 2]] * 2
    results = [noting(x + i) for i in range(20)]
    for each in results:
        each.wait()
    assert order == list(range(20))


def test_a_call_within_a_long_call_does_not_wait_for_a_thread() -> None:
    queue = Queue()
    outer = [queue.later(lambda: queue.later(lambda: 7).result(60)) for _ in range(8)]
    assert [each.result(60) for each in outer] == [7] * 8
    failed = queue.later(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(60)
    assert queue.activity.sample()[0] == 0


def test_memory_that_a_long_call_reads_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """x is read by a call that has not run yet, and donated to the next one: that one works on a copy."""
    read, go = threading.Event(), threading.Event()

    def wait(x: Array) -> Array:
        read.set()
        assert go.wait(60)
        return x.copy()

    shape = "f32[n=4]"
    slow = smelt.compile(lambda x: smelt.custom_call(wait, shape, x), shape, engine="native")
    quick = smelt.compile(lambda x: x * 2.0, shape, donate="x", engine="native")
    given = HostBuffer.of(np.arange(4, dtype=np.float32), copy=True)
    with monkeypatch.context() as patched:
        patched.setattr("smelt.tensor.jit.executable.LONG", 0)
        later = slow(given)
    assert read.wait(60)
    doubled = quick(given)
    go.set()
    assert doubled.numpy().tolist() == [0, 2, 4, 6]
    assert later.numpy().tolist() == [0, 1, 2, 3]
