"""Runs: data of every kind, prefetching, logs, early stopping, Ctrl-C, kill -9 and full disks."""

from __future__ import annotations

import io
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import Tensor, train
from smelt.train.data import fill_batch
from smelt.train.events import crc32c, frame
from smelt.train.progress import ProgressBar

Array = np.ndarray
RNG = np.random.default_rng(5)
X = RNG.normal(size=(22, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)


def loss(p: Any, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    return train.mse(x.dot(p["w"], "d"), y, weights)


def trainer(rate: float = 0.1) -> train.Trainer:
    start = {"w": smelt.tensor(np.zeros(3, np.float32), "d")}
    shapes = "f32[b=8, d=3]", "f32[b=8]", "f32[b=8]"
    return train.Trainer(loss, start, train.sgd(rate, momentum=0.5), *shapes, engine="reference")


def weights_of(made: train.Trainer) -> bytes:
    return bytes(made.parameters["w"].numpy().tobytes())


def test_mapped_files_and_generators_give_what_arrays_give(tmp_path: Path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    wanted, mapped, made = trainer(), trainer(), trainer()
    mean = wanted.fit([X, Y], epochs=2, batch=8, seed=3)
    assert mapped.fit([tmp_path / "x.npy", str(tmp_path / "y.npy")], epochs=2, batch=8, seed=3) == mean

    def rows(epoch: int) -> Iterator[tuple[Array, Array]]:
        order = np.random.default_rng([3, epoch]).permutation(len(X))
        for first in range(0, len(X), 8):  # the last minibatch is short
            chosen = order[first : first + 8]
            yield X[chosen], Y[chosen]

    assert made.fit(rows, epochs=2, batch=8) == mean
    assert weights_of(wanted) == weights_of(mapped) == weights_of(made)
    path = tmp_path / "run.safetensors"
    part = trainer()
    part.fit(rows, epochs=1, batch=8, checkpoint=path)
    again = trainer()
    again.fit(rows, epochs=2, batch=8, checkpoint=path)
    assert weights_of(again) == weights_of(wanted)
    with pytest.raises(smelt.SmeltError, match="cannot map"):
        trainer().fit([tmp_path / "none.npy", Y], epochs=1, batch=8)
    with pytest.raises(smelt.SmeltError, match="same number of rows"):
        trainer().fit(lambda epoch: [(X[:8], Y[:7])], epochs=1, batch=8)
    with pytest.raises(smelt.SmeltError, match="1 to 8 rows"):
        fill_batch([X[:9]], 8)


def test_prefetching_keeps_order_passes_errors_on_and_leaves_no_thread():
    before = threading.active_count()
    assert list(train.prefetch(iter(range(50)))) == list(range(50))

    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    made = train.prefetch(broken())
    assert next(made) == 1
    with pytest.raises(ValueError, match="no more"):
        next(made)
    endless = train.prefetch(iter(int, 1))
    assert next(endless) == 0
    endless.close()
    assert threading.active_count() == before


def read_events(path: Path) -> list[tuple[int, dict[str, float]]]:
    """Steps and scalars of an event file, with every checksum checked."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        assert frame(record) == data[: 16 + length]
        data = data[16 + length :]
        step, scalars, at = 0, {}, record
        while at:
            key, at = at[0], at[1:]
            if key == 0x09:
                at = at[8:]
            elif key == 0x10:
                step, at = varint(at)
            else:
                size, at = varint(at)
                body, at = at[:size], at[size:]
                while key == 0x2A and body:
                    inner, body = varint(body[1:])
                    value, body = body[:inner], body[inner:]
                    name = value[2 : 2 + value[1]].decode()
                    scalars[name] = struct.unpack("<f", value[3 + value[1] :])[0]
        found.append((step, scalars))
    return found


def varint(data: bytes) -> tuple[int, bytes]:
    number = shift = 0
    for i, byte in enumerate(data):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, data[i + 1 :]
    raise AssertionError("a number does not end")


def test_a_run_is_logged(tmp_path: Path):
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    seen: list[float] = []

    def validate(parameters: Any) -> float:
        seen.append(float(np.abs(parameters["w"].numpy()).sum()))
        return -seen[-1]

    made = trainer()
    made.fit([X, Y], epochs=2, batch=8, seed=1, log=tmp_path, validate=validate)
    (events,) = tmp_path.glob("events.out.tfevents.*")
    logged = read_events(events)
    assert [step for step, scalars in logged if "loss" in scalars] == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose([s["validation"] for _, s in logged if "validation" in s], [-x for x in seen], rtol=1e-6)
    text = (tmp_path / "curves.svg").read_text()
    assert text.count("<polyline") == 2
    assert ">validation<" in text
    image = (tmp_path / "curves.png").read_bytes()
    size = struct.unpack(">II", image[16:24])
    (length,) = struct.unpack(">I", image[33:37])
    assert len(zlib.decompress(image[41 : 41 + length])) == size[1] * (3 * size[0] + 1)
    with pytest.raises(smelt.SmeltError, match=r"\.svg or \.png"):
        train.draw_curves(tmp_path / "curves.gif", {})


@pytest.mark.slow
def test_tensorboard_reads_the_log(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with_events = train.EventFile(tmp_path)
    for step in range(5):
        with_events.add(step, loss=1 / (step + 1), train__rate=0.5)
    with_events.close()
    held = accumulator.EventAccumulator(str(tmp_path))
    held.Reload()
    assert [(each.step, round(each.value, 6)) for each in held.Scalars("loss")][:2] == [(0, 1.0), (1, 0.5)]
    assert len(held.Scalars("train/rate")) == 5


def test_progress_is_one_line():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    bar = ProgressBar(2, 8, None, stream)
    bar.step(0, 3, 3, 0.25)
    bar.step(1, 3, 3, 0.125)
    bar.close()
    text = stream.getvalue()
    assert "epoch 2/2 [####################] 3/3 loss 0.125" in text
    assert "rows/s" in text
    assert text.count("\n") == 1
    silent = io.StringIO()
    ProgressBar(1, 8, None, silent).step(0, 1, 1, 0.5)
    assert silent.getvalue() == ""


def test_a_run_stops_early_and_keeps_its_best_state(tmp_path: Path):
    values = [3.0, 1.0, 2.0, 5.0, 0.5]
    path = tmp_path / "run.safetensors"
    made = trainer()
    ended: list[bytes] = []

    def validate(_: Any) -> float:
        if len(ended) == 1:
            ended.append(weights_of(made))
        else:
            ended.append(b"")
        return values[len(ended) - 1]

    made.fit([X, Y], epochs=5, batch=8, seed=1, checkpoint=path, validate=validate, patience=2)
    assert len(ended) == 4  # two epochs after the best one
    best = trainer()
    best.load(tmp_path / "run.best.safetensors")
    assert weights_of(best) == ended[1] != weights_of(made)
    resumed = trainer()
    resumed.fit([X, Y], epochs=5, batch=8, seed=1, checkpoint=path, validate=lambda _: 9.0, patience=2)
    assert resumed.steps == made.steps  # it had stopped, and knows it
    with pytest.raises(smelt.SmeltError, match="patience is out of range"):
        made.fit([X, Y], epochs=5, batch=8, patience=0)


@pytest.fixture
def default_interrupts() -> Iterator[None]:
    """SIGINT as in a terminal: a process in the background is born with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_interrupts")
def test_ctrl_c_ends_the_run_after_a_step_and_saves(tmp_path: Path):
    path = tmp_path / "run.safetensors"
    whole = trainer()
    whole.fit([X, Y], epochs=3, batch=8, seed=2)
    made = trainer()
    step = made.step

    def interrupted(*batch: Array) -> float:
        if made.steps == 4:
            signal.raise_signal(signal.SIGINT)
        return step(*batch)

    made.step = interrupted  # type: ignore[method-assign, assignment]
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        made.fit([X, Y], epochs=3, batch=8, seed=2, checkpoint=path)
    assert signal.getsignal(signal.SIGINT) is handler
    resumed = trainer()
    resumed.load(path)
    assert resumed.steps == 5
    resumed.fit([X, Y], epochs=3, batch=8, seed=2, checkpoint=path)
    assert weights_of(resumed) == weights_of(whole)


@pytest.mark.usefixtures("default_interrupts")
def test_a_run_in_the_background_ignores_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    made = trainer()
    step = made.step

    def interrupted(*batch: Array) -> float:
        signal.raise_signal(signal.SIGINT)
        return step(*batch)

    made.step = interrupted  # type: ignore[method-assign, assignment]
    made.fit([X, Y], epochs=1, batch=8, seed=2)
    assert made.steps == 3
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "run.safetensors"
    made = trainer()
    made.fit([X, Y], epochs=1, batch=8, seed=2, checkpoint=path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # a write beyond fails, as on a full disk
    try:
        with pytest.raises(smelt.SmeltError, match="cannot write"):
            made.fit([X, Y], epochs=2, batch=8, seed=2, checkpoint=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.safetensors"]
    made.save(path)  # the state is still there
    again = trainer()
    again.load(path)
    assert again.steps == 6


SCRIPT = """
import sys
import numpy as np
sys.path.insert(0, {root!r})
from tests.unit.train.test_runs import X, Y, trainer, weights_of
made = trainer()
step = made.step
def told(*batch):
    value = step(*batch)
    print(made.steps, flush=True)
    return value
made.step = told
made.fit([X, Y], epochs=20, batch=8, seed=7, checkpoint={path!r}, every=1)
print("done", weights_of(made).hex(), flush=True)
"""


def test_kill_loses_only_the_steps_since_the_checkpoint(tmp_path: Path, seed: int):
    path = tmp_path / "run.safetensors"
    text = SCRIPT.format(root=str(Path(__file__).parents[3]), path=str(path))
    draw, reached = random.Random(seed), 0
    for turn in range(3):
        target = reached + draw.randint(2, 15) if turn < 2 else None
        process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line.strip()
            if target is not None and last.isdigit() and int(last) >= target:
                process.kill()  # at whatever moment this is: in a step, or while a checkpoint is written
                break
        process.stdout.close()
        process.wait()
        if target is None:
            whole = trainer()
            whole.fit([X, Y], epochs=20, batch=8, seed=7)
            assert last == f"done {weights_of(whole).hex()}"
            continue
        resumed = trainer()
        resumed.load(path)  # whole, whenever the process died
        assert resumed.steps >= int(last) - 1
        reached = resumed.steps
