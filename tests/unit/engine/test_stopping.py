"""Calls that end early, by a deadline, a token or a signal: later calls work, and errors tell of donated inputs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.buffer import HostBuffer
from smelt.device import cpu
from smelt.engine.native import NativeEngine
from smelt.engine.pjrt import PjrtEngine
from smelt.engine.reference import ReferenceEngine
from smelt.errors import CancelledError, RunError, TimedOutError
from smelt.ir.text import print_program
from smelt.stop import Cancel, Stop
from tests.unit.kernel.test_calls_at_once import counting

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

ROOT = Path(__file__).parents[3]
FOREVER = np.array(1 << 60)
ENGINES = [NativeEngine(), ReferenceEngine()]
named = pytest.mark.parametrize("engine", ENGINES, ids=lambda each: each.name)


def zeros() -> np.ndarray[Any, Any]:
    return np.zeros(1000, np.float32)


def works(executable: Callable[..., tuple[Any, ...]]) -> bool:
    return np.array_equal(executable(np.zeros(5, np.float32), np.array(7))[0], np.full(5, 7, np.float32))


@named
def test_a_call_ends_at_its_timeout(engine: Any) -> None:
    executable = engine.compile(counting())
    with pytest.raises(TimedOutError, match="took too long"):
        executable(zeros(), FOREVER, stop=Stop(0.05))
    assert works(executable)
    assert np.array_equal(executable(zeros(), np.array(3), stop=Stop(60))[0], zeros() + 3)
    with pytest.raises(TimedOutError):
        executable(zeros(), np.array(3), stop=Stop(0))


@named
def test_a_token_ends_the_calls_that_have_it_and_no_others(engine: Any) -> None:
    executable = engine.compile(counting())
    tokens = [Cancel(), Cancel()]
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(executable, zeros(), FOREVER, stop=Stop(cancel=token)) for token in tokens]
        time.sleep(0.05)
        tokens[0].cancel()
        with pytest.raises(CancelledError):
            calls[0].result(60)
        assert not calls[1].done()
        assert works(executable)
        tokens[1].cancel()
        with pytest.raises(CancelledError):
            calls[1].result(60)
    with pytest.raises(CancelledError):  # a token that was cancelled stays so
        executable(zeros(), np.array(1), stop=Stop(cancel=tokens[0]))
    assert works(executable)


def test_xla_waits_no_longer_than_the_timeout() -> None:
    engine = PjrtEngine()
    if engine.missing():
        pytest.skip(str(engine.missing()))
    executable = engine.compile(counting())
    turns = np.array(3_000_000)
    with pytest.raises(TimedOutError) as late:
        executable(zeros(), turns, stop=Stop(0.02))
    assert late.value.started
    token = Cancel()
    token.cancel()
    with pytest.raises(CancelledError) as caught:
        executable(zeros(), np.array(1), stop=Stop(cancel=token))
    assert not caught.value.started
    assert executable(zeros(), np.array(1), stop=Stop(60))[0].numpy()[0] == 1


@pytest.mark.parametrize("wrong", [-1, float("nan"), "1", True])
def test_a_timeout_is_a_time(wrong: Any) -> None:
    with pytest.raises(RunError, match="timeout is no time"):
        Stop(wrong)
    with pytest.raises(RunError, match="cancel is no token"):
        Stop(None, wrong)


# ---- what calls look like to users ----


@named
def test_a_loaded_model_takes_both(engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "count.mlir"
    path.write_text(print_program(counting()))
    model = smelt.load(path, engine=engine.name)
    names = [port.name for port in model.signature.inputs]
    with pytest.raises(smelt.TimedOutError):
        model(zeros(), FOREVER, timeout=0.05)
    token = smelt.Cancel()
    threading.Timer(0.05, token.cancel).start()
    with pytest.raises(smelt.CancelledError):
        model.run(dict(zip(names, (zeros(), FOREVER), strict=True)), timeout=60, cancel=token)
    assert next(iter(model(zeros(), np.array(2)).values()))[0] == 2


def spin(x: smelt.Tensor, turns: smelt.Tensor) -> smelt.Tensor:
    def more(i: smelt.Tensor, _: smelt.Tensor) -> smelt.Tensor:
        return i < turns

    def step(i: smelt.Tensor, value: smelt.Tensor) -> tuple[smelt.Tensor, smelt.Tensor]:
        return i + 1, value + 1

    return smelt.while_loop(more, step, turns * 0, x)[1]


def test_a_compiled_function_takes_both() -> None:
    executable = smelt.compile(spin, smelt.Shape("f32", 8), smelt.Shape("i64"), engine="native", donate="x")
    x = HostBuffer.of(np.zeros(8, np.float32))
    with pytest.raises(TimedOutError, match="used up"):
        executable(x, FOREVER, timeout=0.05).numpy()
    assert x.is_deleted
    token = smelt.Cancel()
    token.cancel()
    y = HostBuffer.of(np.zeros(8, np.float32))
    with pytest.raises(CancelledError, match="as it was"):
        executable(y, FOREVER, cancel=token).numpy()
    assert not y.is_deleted
    assert executable(y, np.array(4)).numpy()[0] == 4


# ---- donated inputs ----


def test_a_call_that_ended_says_what_became_of_donated_inputs() -> None:
    program = counting()
    executable = NativeEngine().compile(program, donate=["arg0"])
    cache = HostBuffer(zeros(), program.main.args[0].shape, owns=True)
    token = Cancel()
    token.cancel()
    with pytest.raises(CancelledError, match=r"nothing has run: what was donated .* is as it was"):
        executable(cache, FOREVER, stop=Stop(cancel=token))
    assert cache.numpy()[0] == 0
    with pytest.raises(TimedOutError, match="is used up: make it again, or call with keep=True"):
        executable(cache, FOREVER, keep=False, stop=Stop(0.05))
    with pytest.raises(RunError, match="was donated"):
        cache.numpy()
    kept = HostBuffer(zeros(), program.main.args[0].shape, owns=True)
    with pytest.raises(TimedOutError) as caught:
        executable(kept, FOREVER, keep=True, stop=Stop(0.05))
    assert "donated" not in str(caught.value)
    assert kept.numpy()[0] == 0


# ---- signals ----

SIGNALS = """
import os, signal, sys, threading, time
import numpy as np
from smelt.device.runtime import runtime
from smelt.engine.native import NativeEngine
from smelt.ir.text import parse
from tests.unit.kernel.test_calls_at_once import SLOW, counting

def later(number):
    threading.Timer(0.2, os.kill, (os.getpid(), number)).start()

count, slow = NativeEngine().compile(counting(), donate=["arg0"]), NativeEngine().compile(parse(SLOW))
for threads in (1, 3):
    runtime().set_threads(threads)
    endless = np.zeros(1000, np.float32), np.array(1 << 60)
    for executable, inputs in ((count, endless), (slow, (np.ones(4096, np.float32),))):
        later(signal.SIGINT)
        try:
            executable(*inputs)
        except KeyboardInterrupt as error:
            notes = getattr(error, "__notes__", [])
            assert any("used up" in note for note in notes) == (executable is count), notes
        else:
            sys.exit("the call went on")
        assert count(np.zeros(5, np.float32), np.array(7))[0].tolist() == [7] * 5

seen = []
def handle(number, frame):  # one that raises nothing, and calls the same program
    seen.append(count(np.zeros(3, np.float32), np.array(2))[0].tolist())
signal.signal(signal.SIGUSR1, handle)
executable = NativeEngine().compile(counting())
turns = 1 << 16
while not seen:  # as long as it takes for the signal to arrive during a call
    later(signal.SIGUSR1)
    end = time.monotonic() + 0.4
    result = executable(np.zeros(1000, np.float32), np.array(turns))[0]
    assert (result == turns).all()
    turns *= 2
    while time.monotonic() < end: time.sleep(0.01)
assert seen[0] == [2, 2, 2]
print("done")
"""


# A shell lets its background jobs, and so all that they start, ignore SIGINT. (No preexec_fn: with it subprocess forks,
# and JAX warns of forks where another test imported it.)
HEED_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def test_signals_are_handled_in_the_midst_of_a_call() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEED_INTERRUPTS + SIGNALS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.stdout == "done\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_ctrl_c_ends_smelt_run(tmp_path: Path) -> None:
    path, turns = tmp_path / "count.mlir", tmp_path / "turns.npy"
    path.write_text(print_program(counting()))
    np.save(turns, FOREVER)
    program = HEED_INTERRUPTS + "import sys; from smelt.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "run", str(path), "--input", f"arg1={turns}", "--size", "N=4"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        tasks = Path(f"/proc/{process.pid}/task")
        while process.poll() is None:  # the first call starts a thread of this name
            if any(each.read_text() == "smelt-watch\n" for each in tasks.glob("*/comm")):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, err
    assert out == ""
    assert err.strip() == "interrupted"


FORK = """
import os
from smelt.engine.native import NativeEngine
from smelt.errors import TimedOutError
from smelt.stop import Stop
from tests.unit.engine.test_stopping import FOREVER, counting, works, zeros
executable = NativeEngine().compile(counting())
assert works(executable)
child = os.fork()
if not child:
    try:
        executable(zeros(), FOREVER, stop=Stop(0.05))
    except TimedOutError:
        os._exit(0 if works(executable) else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_the_flag_of_a_fork_is_its_own() -> None:
    """A child of a fork has no thread that watches: its first call starts one. In a process without other threads."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
