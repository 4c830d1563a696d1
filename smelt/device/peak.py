"""What this machine can do at most: multiply-adds per second and bytes per second, measured once and kept on disk.

`peaks(threads)` gives them to the profiler, which draws the roofline and predicts with them. Tiny loops run on Python
threads of their own; the best of several rounds counts, because whatever else runs here only makes a round slower.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from smelt.device import cache, cpu
from smelt.dtype import Array
from smelt.errors import FileError
from smelt.files import read_bytes, write_atomically

VERSION = 1
FOOTPRINTS = tuple(1 << bits for bits in (17, 19, 21, 23, 25, 28))  # bytes, over all threads
ROUNDS, SPAN = 25, 0.002  # seconds of one round: short ones find a moment when nothing else runs
SUMS = 12  # multiply-adds under way at once: latency times units, and a few more
_SOURCE = """
typedef float V __attribute__((vector_size({bytes}), aligned(4)));
#if defined(__clang__) && (defined(__FMA__) || defined(__aarch64__))
#define FMA(a, b, c) __builtin_elementwise_fma(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif
void smelt_peak_fma(long long turns, const float *in, float *out) {{
  const V a = *(const V *)in, b = *(const V *)(in + {lanes});
  V {sums};
  for (long long i = 0; i < turns; i++) {{ {steps} }}
  *(V *)out = {total};
}}
void smelt_peak_read(long long turns, const float *in, long long count, float *out) {{
  V s0 = {{0}}, s1 = {{0}}, s2 = {{0}}, s3 = {{0}};
  for (long long t = 0; t < turns; t++) {{
    const float *at = in;
    __asm__ volatile("" : "+r"(at) : : "memory");
    for (long long i = 0; i < count; i += {stride}) {{
      s0 += *(const V *)(at + i); s1 += *(const V *)(at + i + {lanes});
      s2 += *(const V *)(at + i + 2 * {lanes}); s3 += *(const V *)(at + i + 3 * {lanes});
    }}
  }}
  *(V *)out = s0 + s1 + s2 + s3;
}}
"""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Best rates of a number of threads together. `bandwidth`: (bytes read again and again, GB/s), growing."""

    threads: int
    gflops: float  # f32; a multiply-add is two
    bandwidth: tuple[tuple[int, float], ...]
    load: float  # of the machine while this was measured: more than the threads means too low

    @property
    def memory_bandwidth(self) -> float:
        """GB/s of what no cache holds."""
        return self.bandwidth[-1][1]

    def bandwidth_for(self, footprint: float) -> float:
        """GB/s where so many bytes are touched: between two measured points in proportion to their logarithms."""
        points = [(math.log(size), rate) for size, rate in self.bandwidth]
        at = math.log(max(footprint, 1.0))
        return float(np.interp(at, [x for x, _ in points], [rate for _, rate in points]))

    def seconds(self, operations: float, footprint: float) -> float:
        """The least time that the roofline allows."""
        return max(operations / (1e9 * self.gflops), footprint / (1e9 * self.bandwidth_for(footprint)))


def peaks(threads: int, *, again: bool = False) -> Peaks:
    """The peaks of this machine for a number of threads: as kept on disk, or measured now.

    What was measured while the machine had more to do than it has cores is measured again when it has half of that.
    """
    path = cache.default().folder / f"peaks-{_key(threads)}.json"
    kept = None if again else _kept(path)
    if kept is not None and not kept.load > max(2 * _load(), cpu.target().cores):
        return kept
    found = _measure(threads)
    _keep(path, found)
    return found


def _key(threads: int) -> str:
    here = cpu.target()
    parts = [VERSION, platform.node(), here.name, here.cores, here.vector_bytes, *sorted(here.features), threads]
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _kept(path: Path) -> Peaks | None:
    try:
        record = json.loads(read_bytes(path))
        points = tuple((int(size), float(rate)) for size, rate in record["bandwidth"])
        return Peaks(int(record["threads"]), float(record["gflops"]), points, float(record["load"]))
    except (FileError, ValueError, KeyError, TypeError):  # nothing there, or damaged: measured again
        return None


def _keep(path: Path, found: Peaks) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [json.dumps(asdict(found)).encode()])
    except (OSError, FileError):  # a folder that cannot be written: measured again next time
        return


def _load() -> float:
    """How many processes wanted to run here in the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _measure(threads: int) -> Peaks:
    library, lanes = _library()
    load = _load()
    data = np.full(FOOTPRINTS[-1] // 4 + 1024, 0.5, np.float32)
    sinks = [np.zeros(lanes, np.float32) for _ in range(threads)]

    def multiply(worker: int, turns: int) -> None:
        library.smelt_peak_fma(turns, _address(data), _address(sinks[worker]))

    operations = 2 * SUMS * lanes
    gflops = _rate(multiply, threads, operations) / 1e9
    bandwidth = []
    for footprint in FOOTPRINTS:
        count = footprint // 4 // threads // (4 * lanes) * 4 * lanes
        parts = [_address(data[worker * count :]) for worker in range(threads)]

        def read(worker: int, turns: int, parts: Sequence[int] = parts, count: int = count) -> None:
            library.smelt_peak_read(turns, parts[worker], count, _address(sinks[worker]))

        bandwidth.append((footprint, _rate(read, threads, 4 * count) / 1e9))
    return Peaks(threads, gflops, tuple(bandwidth), load)


def _library() -> tuple[ctypes.CDLL, int]:
    width = cpu.target().vector_bytes
    names = [f"c{i}" for i in range(SUMS)]
    text = _SOURCE.format(
        bytes=width,
        lanes=width // 4,
        stride=width,
        sums=", ".join(f"{name} = a" for name in names),
        steps=" ".join(f"{name} = FMA({name}, a, b);" for name in names),
        total=" + ".join(names),
    )
    library = cpu.build(text)
    number, pointer = ctypes.c_longlong, ctypes.c_void_p
    library.smelt_peak_fma.restype = library.smelt_peak_read.restype = None
    library.smelt_peak_fma.argtypes = [number, pointer, pointer]
    library.smelt_peak_read.argtypes = [number, pointer, number, pointer]
    return library, width // 4


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _rate(work: Callable[[int, int], None], threads: int, amount: float) -> float:
    """The best rate of all threads together, where one turn of one thread is so much work."""
    turns = 1
    while (taken := _round(work, threads, turns)) < SPAN:
        turns = max(2 * turns, math.ceil(turns * SPAN / max(taken, 1e-7)))
    best = min(_round(work, threads, turns) for _ in range(ROUNDS))
    return threads * turns * amount / best


def _round(work: Callable[[int, int], None], threads: int, turns: int) -> float:
    """Seconds from the first thread's start to the last one's end."""
    ready = threading.Barrier(threads)
    begins, ends = [0.0] * threads, [0.0] * threads

    def body(worker: int) -> None:
        ready.wait()
        begins[worker] = time.perf_counter()
        work(worker, turns)
        ends[worker] = time.perf_counter()

    runners = [threading.Thread(target=body, args=(worker,)) for worker in range(threads)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    return max(ends) - min(begins)
