"""The machine's peaks for the roofline: FLOP/s and bytes/s, measured interleaved with the profiled program.

`smelt profile` makes a `Meter` and probes before, between and after the calls it measures. A peak is the best of all
probes, those of earlier runs on disk included, because other processes only make a probe slower.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import platform
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smelt.device import cache, cpu
from smelt.dtype import Array
from smelt.errors import FileError
from smelt.files import read_bytes, write_atomically

VERSION = 2
FOOTPRINTS = tuple(1 << bits for bits in (14, 17, 19, 21, 23, 25, 28))  # bytes, over all threads
SPAN = 0.00025  # seconds of one interval: shorter than a scheduler's time slice
INTERVALS = 8  # of one probe, back to back
SLICE = 1 << 21  # bytes read in one interval, at most
SUMS = 12  # FMAs in flight: latency times units, and a few more
UNROLL = 8  # vectors read at once: latency of an addition times units
FIRST, AGAIN = 12, 2  # probes before and after the calls: without and with peaks of earlier runs
_SOURCE = """
typedef float V __attribute__((vector_size({bytes}), aligned(4)));
#if defined(__clang__) && (defined(__FMA__) || defined(__aarch64__))
#define FMA(a, b, c) __builtin_elementwise_fma(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif
void smelt_peak_fma(long long count, const float *in, float *out) {{
  const V a = *(const V *)in, b = *(const V *)(in + {lanes});
  V {sums};
  for (long long i = 0; i < count; i++) {{ {steps} }}
  *(V *)out = {total};
}}
void smelt_peak_read(long long times, const float *in, long long count, float *out) {{
  V {reads} = {{0}};
  for (long long t = 0; t < times; t++) {{
    const float *at = in;
    __asm__ volatile("" : "+r"(at) : : "memory");
    for (long long i = 0; i < count; i += {unroll}) {{ {adds} }}
  }}
  *(V *)out = {read};
}}
"""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Best rates of all threads together. `bandwidth`: pairs (bytes read repeatedly, GB/s), by growing footprint.

    `steadiness`: the median probe's FLOP/s relative to the best; well below 1 on a busy machine.
    """

    threads: int
    gflops: float  # f32; an FMA is two operations
    bandwidth: tuple[tuple[int, float], ...]
    steadiness: float = 1.0
    tensor_gflops: float | None = None  # of tensor cores: bf16 and f16 with f32 sums

    @property
    def memory_bandwidth(self) -> float:
        """GB/s from main memory: the largest footprint."""
        return self.bandwidth[-1][1]

    def bandwidth_for(self, footprint: float) -> float:
        """GB/s for a footprint in bytes, interpolated over its logarithm."""
        points = [(math.log(size), rate) for size, rate in self.bandwidth]
        at = math.log(max(footprint, 1.0))
        return float(np.interp(at, [x for x, _ in points], [rate for _, rate in points]))

    def gflops_for(self, on_tensor_cores: bool) -> float:
        return self.tensor_gflops or self.gflops if on_tensor_cores else self.gflops

    def seconds(self, operations: float, footprint: float, on_tensor_cores: bool = False) -> float:
        """The least time that the roofline allows."""
        arithmetic = operations / (1e9 * self.gflops_for(on_tensor_cores))
        return max(arithmetic, footprint / (1e9 * self.bandwidth_for(footprint)))


class Meter:
    """Measures peaks with a number of threads, in short probes. `again=True` ignores the peaks of earlier runs."""

    def __init__(self, threads: int, *, again: bool = False) -> None:
        self.threads = threads
        self._path = cache.default().folder / f"peaks-{_key(threads)}.json"
        self._best = {} if again else _read_kept(self._path)
        self._flops: list[float] = []
        self._works = _make_works(threads)
        self._is_first = not self._best

    def probe_ends(self) -> None:
        """The probes before the first call and after the last one."""
        for _ in range(FIRST if self._is_first else AGAIN):
            self.probe()

    def probe(self) -> None:
        """One short measurement of every rate, a few milliseconds each."""
        for name, work in self._works.items():
            rate = work.measure() / 1e9
            self._best[name] = max(rate, self._best.get(name, 0.0))
            if name == "flops":
                self._flops.append(rate)

    def peaks(self) -> Peaks:
        """The best of all probes so far. They are saved for later runs."""
        _keep(self._path, self._best)
        gflops = self._best["flops"]
        rates = tuple((footprint, self._best[str(footprint)]) for footprint in FOOTPRINTS)
        return Peaks(self.threads, gflops, rates, statistics.median(self._flops) / gflops)


def _key(threads: int) -> str:
    here = cpu.target()
    parts = [VERSION, platform.node(), here.name, here.cores, here.vector_bytes, *sorted(here.features), threads]
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _read_kept(path: Path) -> dict[str, float]:
    """The rates of earlier runs; empty if the file is absent or damaged."""
    names = ("flops", *map(str, FOOTPRINTS))
    try:
        record = json.loads(read_bytes(path))
        rates = {name: float(record[name]) for name in names}
    except (FileError, ValueError, KeyError, TypeError):
        return {}
    return rates if all(math.isfinite(rate) and rate > 0 for rate in rates.values()) else {}


def _keep(path: Path, rates: dict[str, float]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [json.dumps(rates).encode()])
    except (OSError, FileError):  # read-only folder: the next run measures again
        return


# ---- probes ----


@dataclass(slots=True)
class _Work:
    """The body of a probe: `run(thread, count)` executes or reads `count` × `amount` FLOP or bytes."""

    run: Callable[[int, int], None]
    threads: int
    amount: float
    count: int = 0

    def measure(self) -> float:
        """The best sum of the threads' rates, over the intervals of the first thread.

        A thread that waits for a core has a long interval and so a low rate. Two threads that share one core therefore
        do not count as two cores.
        """
        if not self.count:
            self._calibrate()
        begins, ends = self._intervals(INTERVALS)
        rates = self.count * self.amount / (ends - begins)
        middles = (begins[0] + ends[0]) / 2
        together = [
            sum(_rate_at(begins[thread], ends[thread], rates[thread], middle) for thread in range(self.threads))
            for middle in middles
        ]
        return max(together)

    def _calibrate(self) -> None:
        self.count = 1
        while True:
            begins, ends = self._intervals(2)
            taken = float((ends - begins).min())
            if taken >= SPAN / 2:
                break
            self.count = max(2 * self.count, math.ceil(self.count * SPAN / max(taken, 1e-7)))

    def _intervals(self, count: int) -> tuple[Array, Array]:
        """Start and end times of every interval: two arrays [thread, interval]."""
        ready = threading.Barrier(self.threads)
        begins, ends = np.zeros((2, self.threads, count))

        def body(thread: int) -> None:
            ready.wait()
            for i in range(count):
                begins[thread, i] = time.perf_counter()
                self.run(thread, self.count)
                ends[thread, i] = time.perf_counter()

        runners = [threading.Thread(target=body, args=(thread,)) for thread in range(self.threads)]
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
        return begins, ends


def _rate_at(begins: Array, ends: Array, rates: Array, when: float) -> float:
    """A thread's rate at a time; 0 if it was idle."""
    during = (begins <= when) & (when < ends)
    return float(rates[during].sum())


def _make_works(threads: int) -> dict[str, _Work]:
    library, lanes = _library()
    data = np.full(FOOTPRINTS[-1] // 4 + 1024, 0.5, np.float32)
    sinks = [np.zeros(lanes, np.float32) for _ in range(threads)]

    def multiply(thread: int, count: int) -> None:
        library.smelt_peak_fma(count, _address(data), _address(sinks[thread]))

    works = {"flops": _Work(multiply, threads, 2.0 * SUMS * lanes)}
    unit = UNROLL * lanes
    for footprint in FOOTPRINTS:
        works[str(footprint)] = _reader(library, data, sinks, footprint // 4 // threads // unit * unit)
    return works


def _reader(library: ctypes.CDLL, data: Array, sinks: Sequence[Array], part: int) -> _Work:
    """A probe in which each thread reads its own `part` floats repeatedly, one slice at a time."""
    unit = UNROLL * len(sinks[0])
    slice_ = min(part, SLICE // 4 // unit * unit)
    positions = [0] * len(sinks)

    def read(thread: int, count: int) -> None:
        for _ in range(count if slice_ < part else 1):
            start = thread * part + positions[thread]
            positions[thread] = (positions[thread] + slice_) % (part - slice_ + 1) // unit * unit
            times = 1 if slice_ < part else count
            library.smelt_peak_read(times, _address(data[start:]), slice_, _address(sinks[thread]))

    return _Work(read, len(sinks), 4.0 * slice_)


def _library() -> tuple[ctypes.CDLL, int]:
    width = cpu.target().vector_bytes
    names, reads = [f"c{i}" for i in range(SUMS)], [f"s{i}" for i in range(UNROLL)]
    text = _SOURCE.format(
        bytes=width,
        lanes=width // 4,
        unroll=UNROLL * width // 4,
        sums=", ".join(f"{name} = a" for name in names),
        steps=" ".join(f"{name} = FMA({name}, a, b);" for name in names),
        total=" + ".join(names),
        reads=" = {0}, ".join(reads),
        adds=" ".join(f"{name} += *(const V *)(at + i + {i * width // 4});" for i, name in enumerate(reads)),
        read=" + ".join(reads),
    )
    with cache.compiling_for("peak probes"):
        library = cpu.build(text)
    number, pointer = ctypes.c_longlong, ctypes.c_void_p
    library.smelt_peak_fma.restype = library.smelt_peak_read.restype = None
    library.smelt_peak_fma.argtypes = [number, pointer, pointer]
    library.smelt_peak_read.argtypes = [number, pointer, number, pointer]
    return library, width // 4


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
