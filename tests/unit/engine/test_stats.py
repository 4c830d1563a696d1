# shapes are no forward references
"""What platforms say about themselves: memory, running calls, the busy fraction; and engines that are chosen."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pytest

import smelt
from smelt.activity import Activity
from smelt.buffer import HostBuffer
from smelt.device import cpu, pjrt
from smelt.dtype import Array
from smelt.engine import compile_with_first, engines
from smelt.engine.protocol import Engine
from smelt.engine_api import Executable
from smelt.errors import UnsupportedError
from smelt.ir.core import Program

needs_xla = pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")


def test_activity_counts_calls_and_time() -> None:
    now = [0.0]
    activity = Activity(lambda: now[0])
    now[0] = 1.0
    activity.begin()
    activity.begin()
    now[0] = 3.0
    activity.end()
    now[0] = 4.0
    assert activity.sample() == (1, 0.75), "busy from 1 to 4"
    now[0] = 5.0
    activity.end()
    now[0] = 6.0
    assert activity.sample() == (0, 0.5), "busy from 4 to 5 of the time since the last look"
    now[0] = 7.0
    assert activity.sample() == (0, 0.0)


def test_calls_in_host_memory_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.tensor.jit.executable.LONG", 0)
    go = threading.Event()

    def wait(x: Array) -> Array:
        assert go.wait(60)
        return x

    where = smelt.platform(engine="reference")
    executable = smelt.compile(lambda x: smelt.custom_call(wait, "f32[n=3]", x), "f32[n=3]", platform=where)
    where.stats()
    results = [executable(np.zeros(3, np.float32)) for _ in range(2)]
    told = where.stats()
    assert told["queue"] == 2
    assert 0 < told["busy"] <= 1
    assert told["peak_bytes_in_use"] >= told["bytes_in_use"] > 0
    go.set()
    for result in results:
        result.wait()
    assert where.stats()["queue"] == 0


@needs_xla
def test_calls_of_xla_are_counted() -> None:
    where = smelt.platform(engine="pjrt")
    where.stats()
    executable = smelt.compile(lambda x: x.dot(x.rename(a="c", b="a"), "a"), "f32[a=600, b=600]", platform=where)
    x = where.put(HostBuffer.of(np.ones((600, 600), np.float32)))
    results = [executable(x) for _ in range(10)]
    told = where.stats()
    assert 0 <= told["queue"] <= 10
    assert 0 < told["busy"] <= 1
    for result in results:
        result.wait()
    deadline = time.monotonic() + 60
    while where.stats()["queue"] and time.monotonic() < deadline:  # the watcher may be a little behind
        time.sleep(0.01)
    assert where.stats()["queue"] == 0


@needs_xla
def test_the_peak_remembers_what_is_gone() -> None:
    where = smelt.platform(engine="pjrt")
    before = where.stats()
    with where.put(HostBuffer.of(np.ones(1 << 22, np.float32))) as buffer:  # type: ignore[attr-defined]
        assert where.stats()["bytes_in_use"] == before["bytes_in_use"] + buffer.nbytes
    after = where.stats()
    assert after["bytes_in_use"] == before["bytes_in_use"]
    assert after["peak_bytes_in_use"] >= before["bytes_in_use"] + (1 << 24)


@needs_xla
def test_a_device_that_is_lost_and_its_successor() -> None:
    import os
    import signal

    where = smelt.platform(isolate=True)
    executable = smelt.compile(lambda x: x + 1.0, "f32[n=3]", platform=where)
    x = np.zeros(3, np.float32)
    assert executable(x).numpy().tolist() == [1, 1, 1]
    os.kill(where.engine.client.process, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(smelt.DeviceLost):
        executable(x).numpy()
    fresh = smelt.platform(isolate=True)
    assert smelt.compile(lambda x: x + 1.0, "f32[n=3]", platform=fresh)(x).numpy().tolist() == [1, 1, 1]


# ---- which engine ----


def double(x: smelt.Tensor) -> smelt.Tensor:
    return x + x


def test_auto_takes_native_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "smelt"):
        assert smelt.compile(double, "f32[n=3]").platform.engine.name == "native"
    assert not caplog.records


def test_the_order_of_engines_on_a_gpu() -> None:
    assert [each.name for each in engines("cuda:1")] == ["native", "pjrt"]


def test_without_a_compiler_another_engine_is_taken_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu, "compiler", lambda: None)
    monkeypatch.setattr(pjrt, "version", lambda: None)
    with caplog.at_level(logging.WARNING, "smelt"):
        executable = smelt.compile(double, "f32[n=3]")
    assert executable.platform.engine.name == "reference"
    (said,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in said
    assert "reference engine, which is slow" in said
    assert "no C compiler" in said
    assert "jaxlib is not installed" in said


def test_the_last_engine_raises_what_it_raises() -> None:
    def refuse(engine: Engine[Program]) -> Executable:
        raise UnsupportedError("nobody can")

    with pytest.raises(UnsupportedError, match="nobody can"):
        compile_with_first("auto", "auto", refuse)


@pytest.mark.parametrize("name", ["auto", "native"])
def test_a_bug_is_not_passed_over_for_another_engine(name: str) -> None:
    tried = []

    def fail(engine: Engine[Program]) -> Executable:
        tried.append(engine.name)
        raise AssertionError("a mistake of ours")

    with pytest.raises(AssertionError, match="a mistake of ours") as caught:
        compile_with_first("auto", name, fail)
    assert tried == ["native"]
    assert "a bug of smelt: the native engine failed" in caught.value.__notes__[0]
