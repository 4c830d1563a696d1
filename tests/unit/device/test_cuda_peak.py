"""The roofline of a GPU on a driver that only keeps time: its kernels take as long as what they do at known rates."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smelt.device.cuda_peak import SPAN, Meter, tensor_gflops
from smelt.device.step_log import EventLog

CORES, NEAR = 128, 32 << 20  # multiprocessors; bytes of the L2 cache
FLOPS, FAST, SLOW = 60e12, 8e12, 3e12  # per second: f32, bytes from the cache, bytes from memory


class Clock:
    """A driver on which time passes in kernels alone. `haste`: how fast each launch of the FMA kernel is."""

    capability = (9, 0)

    def __init__(self, *haste: float) -> None:
        self.now, self.haste = 0.0, itertools.cycle(haste or (1.0,))
        self.source, self.spans = "", list[float]()
        self.allocated: dict[int, int] = {}
        self.queues = SimpleNamespace(current=self)

    def compile(self, text: str) -> bytes:
        self.source = text
        return text.encode()

    def load(self, code: bytes) -> str:
        assert code == self.source.encode()
        return self.source

    def function(self, module: str, name: str) -> str:
        assert f'extern "C" __global__ void __launch_bounds__(256) {name}(' in module
        return name

    def attribute(self, name: str) -> int:
        return {"MULTIPROCESSOR_COUNT": CORES, "CLOCK_RATE": 1_830_000}[name]

    def allocate(self, count: int) -> int:
        address = 1 << (30 + len(self.allocated))
        self.allocated[address] = count
        return address

    def free(self, address: int, after: Any = ()) -> None: ...

    def event(self) -> float:
        return self.now

    def seconds(self, first: float, last: float) -> float:
        return last - first

    def launch(self, function: str, blocks: int, threads: int, given: list[int]) -> None:
        assert threads == 256
        assert blocks % CORES == 0
        if function == "smelt_peak_fma":
            out, count = given
            took = 2 * self.source.count("fmaf(") * blocks * threads * count / (FLOPS * next(self.haste))
        else:
            data, n, times, out = given
            assert 16 * n <= self.allocated[data]
            # For every thread the iterations of the kernel's loop, each of four reads of 16 bytes.
            stride = blocks * threads
            runs = np.maximum(-(-(n - 3 * stride - np.arange(stride)) // (4 * stride)), 0)
            took = 64 * int(runs.sum()) * times / (FAST if 16 * n <= NEAR else SLOW)
        assert self.allocated[out] >= 4
        self.spans.append(took)
        self.now += took


def test_peaks_are_the_rates_of_the_device() -> None:
    clock = Clock()
    meter = Meter(clock, clock.compile)
    meter.probe_ends()
    peaks = meter.peaks()
    assert peaks.threads == 0
    assert peaks.gflops == pytest.approx(FLOPS / 1e9)
    assert peaks.steadiness == pytest.approx(1.0)
    # Of 256 KiB reads, smaller footprints do not give every thread an iteration.
    sizes = [1 << bits for bits in (24, 26, 28, 30)]
    assert [size for size, _ in peaks.bandwidth] == sizes
    expected = [FAST / 1e9 if size <= NEAR else SLOW / 1e9 for size in sizes]
    assert [rate for _, rate in peaks.bandwidth] == pytest.approx(expected)
    assert peaks.memory_bandwidth == pytest.approx(SLOW / 1e9)
    assert sum(span >= SPAN for span in clock.spans) == 6 * (1 + len(sizes)), "one measurement of each per probe"
    assert len(clock.spans) < 6 * (1 + len(sizes)) + 60, "the number of iterations is found once"


def test_memory_is_limited() -> None:
    clock = Clock()
    meter = Meter(clock, clock.compile, most=1 << 26)
    assert sorted(clock.allocated.values()) == [16, 1 << 26]
    meter.probe()
    assert [size for size, _ in meter.peaks().bandwidth] == [1 << 24, 1 << 26]


def test_a_device_whose_clock_changes_is_not_steady() -> None:
    clock = Clock(1.0)
    meter = Meter(clock, clock.compile, most=1 << 24)
    meter.probe()
    clock.haste = itertools.cycle((0.5, 0.5, 0.25))
    for _ in range(3):
        meter.probe()
    peaks = meter.peaks()
    assert peaks.gflops == pytest.approx(FLOPS / 1e9)
    assert peaks.steadiness == pytest.approx(0.5)


# Multiprocessors, boost clock in kHz, dense bf16 TFLOP/s with f32 sums: NVIDIA's data sheets.
SHEETS = {
    "A100": ((8, 0), 108, 1_410_000, 312),
    "RTX 3090": ((8, 6), 82, 1_695_000, 71),
    "RTX 4090": ((8, 9), 128, 2_520_000, 165.2),
    "H100 SXM": ((9, 0), 132, 1_830_000, 989.4),
    "B200": ((10, 0), 148, 1_850_000, 2250),
    "RTX 5090": ((12, 0), 170, 2_407_000, 209.5),
}


@pytest.mark.parametrize(("capability", "cores", "clock", "expected"), SHEETS.values(), ids=SHEETS)
def test_tensor_cores(capability: tuple[int, int], cores: int, clock: int, expected: float) -> None:
    attributes = {"MULTIPROCESSOR_COUNT": cores, "CLOCK_RATE": clock}
    driver = SimpleNamespace(capability=capability, attribute=attributes.__getitem__)
    assert tensor_gflops(driver) == pytest.approx(1000 * expected, rel=0.01)


def test_tensor_cores_of_an_unknown_chip() -> None:
    assert tensor_gflops(SimpleNamespace(capability=(7, 5))) is None


def test_events_are_times_since_the_first_of_them() -> None:
    """A step that began before another one is in front of it, whatever the order in which they were noted."""
    waited: list[bool] = []
    driver: Any = SimpleNamespace(seconds=lambda first, last: last - first, wait=lambda: waited.append(True))
    first = 1.0
    marks = [(7, first, 1.5), (2, 1.75, 2.0), (4, 1.25, 1.75)]
    log = EventLog(driver, SimpleNamespace(marks=marks, measured={"m0": 5, "m2": 9}))  # type: ignore[arg-type]
    assert log.begin() == 0
    rows, lost = log.read()
    half = 500_000_000
    assert rows.tolist() == [[7, 0, half], [4, half // 2, 3 * half // 2], [2, 3 * half // 2, 2 * half]]
    assert lost == 0
    assert log.deferred_sizes(3) == [5, 0, 9]
    assert not waited
    log.end()
    assert waited == [True]
    assert log.ticks == 1_000_000
