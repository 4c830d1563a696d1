"""The peaks of an NVIDIA GPU for the roofline of `smelt profile`: f32 FMA and memory measured, tensor cores by data.

`Meter` probes with two small kernels, before, between and after the calls that it is compared with.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from smelt.device.gpu_buffer import Block
from smelt.device.peak import Peaks

THREADS, PER_CORE = 256, 8  # of a block; blocks of a multiprocessor
SUMS = 8  # FMAs of a thread in flight
FOOTPRINTS = tuple(1 << bits for bits in (20, 22, 24, 26, 28, 30))  # bytes
SPAN = 0.0005  # seconds of a probe, at least
FIRST, AGAIN = 6, 2  # probes at either end, and between calls
SOURCE = """\
struct alignas(16) Four { float x, y, z, w; };
extern "C" __global__ void __launch_bounds__(256) smelt_peak_fma(char *out, long long count) {
  float a = 1.0f + threadIdx.x, SUMS;
  for (long long i = 0; i < count; i++) { STEPS }
  if (TOTAL == 0.1234f) *(float *)out = a;
}
extern "C" __global__ void __launch_bounds__(256) smelt_peak_read(char *in, long long n, long long times, char *out) {
  const Four *data = (const Four *)in;
  const long long stride = (long long)gridDim.x * blockDim.x;
  float sum = 0.0f;
  for (long long t = 0; t < times; t++)
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i + 3 * stride < n; i += 4 * stride) {
      const Four a = data[i], b = data[i + stride], c = data[i + 2 * stride], d = data[i + 3 * stride];
      sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w + c.x + c.y + c.z + c.w + d.x + d.y + d.z + d.w;
    }
  if (sum == 0.1234f) *(float *)out = sum;
}
"""
# FLOP of a multiprocessor in a cycle: bf16 on tensor cores with f32 sums, by compute capability.
TENSOR = {
    (8, 0): 2048,
    (8, 6): 512,
    (8, 7): 1024,
    (8, 9): 512,
    (9, 0): 4096,
    (10, 0): 8192,
    (10, 3): 8192,
    (12, 0): 512,
    (12, 1): 512,
}


def tensor_gflops(driver: Any) -> float | None:
    """GFLOP/s of the tensor cores at the highest clock; None for a chip that is not in the table."""
    each = TENSOR.get(driver.capability)
    if each is None:
        return None
    return float(each * driver.attribute("MULTIPROCESSOR_COUNT") * driver.attribute("CLOCK_RATE") / 1e6)


def source() -> str:
    names = [f"s{i}" for i in range(SUMS)]
    text = SOURCE.replace("SUMS", ", ".join(f"{name} = {i}.0f" for i, name in enumerate(names)))
    text = text.replace("STEPS", " ".join(f"{name} = fmaf({name}, 0.999f, a);" for name in names))
    return text.replace("TOTAL", " + ".join(names))


class Meter:
    """`compile_file` gives the code of a text for the device."""

    def __init__(self, driver: Any, compile_file: Callable[[str], bytes], most: int = FOOTPRINTS[-1]) -> None:
        self._driver = driver
        module = driver.load(compile_file(source()))
        self._fma, self._read = (driver.function(module, f"smelt_peak_{name}") for name in ("fma", "read"))
        self._blocks = PER_CORE * driver.attribute("MULTIPROCESSOR_COUNT")
        self._footprints = [each for each in FOOTPRINTS if each <= most]
        self._queue = driver.queues.current
        self._data, self._out = Block(self._queue, self._footprints[-1]), Block(self._queue, 16)
        self._times: dict[str, int] = {}
        self._best: dict[str, float] = {}
        self._flops: list[float] = []

    def probe_ends(self) -> None:
        for _ in range(FIRST):
            self.probe()

    def probe(self) -> None:
        threads = self._blocks * THREADS
        rate = self._rate("fma", 2.0 * SUMS * threads, lambda times: [self._out.address, times])
        self._flops.append(rate)
        for footprint in self._footprints:
            count = footprint // 16
            read = 64.0 * threads * max(0, -(-(count - 3 * threads) // (4 * threads)))
            if read:  # else a thread has less than one iteration
                self._rate(str(footprint), read, partial(self._read_arguments, count))

    def _read_arguments(self, count: int, times: int) -> list[int]:
        return [self._data.address, count, times, self._out.address]

    def _rate(self, name: str, amount: float, arguments: Callable[[int], list[int]]) -> float:
        """10⁹ operations or bytes per second of one launch, long enough to time."""
        function = self._fma if name == "fma" else self._read
        while True:
            times = self._times.setdefault(name, 1)
            first = self._queue.event()
            self._queue.launch(function, self._blocks, THREADS, arguments(times))
            seconds: float = self._driver.seconds(first, self._queue.event())
            if seconds >= SPAN:
                break
            self._times[name] = max(2 * times, int(times * SPAN / max(seconds, 1e-6)))
        rate = times * amount / seconds / 1e9
        self._best[name] = max(rate, self._best.get(name, 0.0))
        return rate

    def peaks(self) -> Peaks:
        best = self._best["fma"]
        rates = tuple((size, self._best[str(size)]) for size in self._footprints if str(size) in self._best)
        steady = statistics.median(self._flops) / best
        return Peaks(0, best, rates, steady, tensor_gflops(self._driver))
