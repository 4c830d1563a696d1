"""What a model and the server did, as numbers: OIP statistics and Prometheus text.

Names are Triton's for inference and vLLM's for language models; those of our own begin with `smelt_`.
"""

from __future__ import annotations

import resource
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_SIZES = 256  # of batches that are told apart: clients choose them
STARTED = time.time()


@dataclass(slots=True)
class Histogram:
    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterable[str]:
        running = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {running}'
        yield f"{name}_sum{{{labels}}} {self.total:.9g}"
        yield f"{name}_count{{{labels}}} {running}"


@dataclass(slots=True)
class ModelStats:
    """Counters of one version of a model. Times are in seconds."""

    success: int = 0
    failure: int = 0
    refused: int = 0
    rows: int = 0
    calls: int = 0
    compiles: int = 0
    last: float = 0.0
    success_s: float = 0.0
    failure_s: float = 0.0
    queue_s: float = 0.0
    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0
    latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    batches: Histogram = field(default_factory=lambda: Histogram(ROWS))
    by_rows: dict[int, list[float]] = field(default_factory=dict)  # number of rows → calls, and their seconds
    prompt_tokens: int = 0
    generated_tokens: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def call(self, rows: int, seconds: float, compiles: int = 0) -> None:
        """Note a call of the model. Joining the rows of requests is a part of its time."""
        self.calls += 1
        self.compiles += compiles
        self.batches.add(rows)
        known = self.by_rows.get(rows)
        if known is None and len(self.by_rows) < MOST_SIZES:
            known = self.by_rows[rows] = [0, 0.0]
        if known is not None:
            known[0] += 1
            known[1] += seconds

    def record(self) -> dict[str, Any]:
        """`inference_stats` and related fields."""

        def entry(count: int, seconds: float) -> dict[str, int]:
            return {"count": count, "ns": round(seconds * 1e9)}

        return {
            "last_inference": round(self.last * 1000),
            "inference_count": self.rows,
            "execution_count": self.calls,
            "inference_stats": {
                "success": entry(self.success, self.success_s),
                "fail": entry(self.failure, self.failure_s),
                "queue": entry(self.success, self.queue_s),
                "compute_input": entry(self.success, self.input_s),
                "compute_infer": entry(self.success, self.infer_s),
                "compute_output": entry(self.success, self.output_s),
            },
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": entry(int(count), 0.0),
                    "compute_infer": entry(int(count), seconds),
                    "compute_output": entry(int(count), 0.0),
                }
                for rows, (count, seconds) in sorted(self.by_rows.items())
            ],
        }


_COUNTERS: dict[str, tuple[str, Callable[[ModelStats], int]]] = {
    "nv_inference_request_success": ("requests that were answered", lambda s: s.success),
    "nv_inference_request_failure": ("requests that failed", lambda s: s.failure),
    "smelt_request_refused": ("requests that were refused for lack of room", lambda s: s.refused),
    "nv_inference_count": ("rows", lambda s: s.rows),
    "nv_inference_exec_count": ("calls of the model", lambda s: s.calls),
    "smelt_compiles_total": ("programs that were compiled, by loading or by requests", lambda s: s.compiles),
    "nv_inference_request_duration_us": ("request time", lambda s: int((s.success_s + s.failure_s) * 1e6)),
    "nv_inference_queue_duration_us": ("time in the queue", lambda s: int(s.queue_s * 1e6)),
    "nv_inference_compute_input_duration_us": ("time for inputs", lambda s: int(s.input_s * 1e6)),
    "nv_inference_compute_infer_duration_us": ("time in calls", lambda s: int(s.infer_s * 1e6)),
    "nv_inference_compute_output_duration_us": ("time for outputs", lambda s: int(s.output_s * 1e6)),
}
_TOKENS: dict[str, tuple[str, Callable[[ModelStats], int]]] = {
    "vllm:prompt_tokens_total": ("prompt tokens", lambda s: s.prompt_tokens),
    "vllm:generation_tokens_total": ("generated tokens", lambda s: s.generated_tokens),
    "vllm:request_success_total": ("requests that were answered", lambda s: s.success),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One version of a model when metrics are read."""

    name: str
    version: str
    stats: ModelStats
    language: bool
    waiting: int
    running: int
    bytes: int
    ready: bool
    worker: int | None = None  # bytes of its worker process (PSS); None: it runs inside the server
    restarts: int = 0  # of its worker process
    worker_seconds: float = 0.0  # CPU time of its worker process

    @property
    def labels(self) -> str:
        return f'model="{self.name}",version="{self.version}"'


_HISTOGRAMS: dict[str, tuple[str, Callable[[ModelStats], Histogram]]] = {
    "smelt_request_duration_seconds": ("request time", lambda s: s.latency),
    "smelt_batch_rows": ("rows of a call", lambda s: s.batches),
}
_TOKEN_TIMES: dict[str, tuple[str, Callable[[ModelStats], Histogram]]] = {
    "vllm:time_to_first_token_seconds": ("time to the first token", lambda s: s.first_token),
    "vllm:e2e_request_latency_seconds": ("request time", lambda s: s.latency),
    "vllm:inter_token_latency_seconds": ("time between tokens", lambda s: s.between_tokens),
}
_SEQUENCES: dict[str, tuple[str, Callable[[Sample], int]]] = {
    "vllm:num_requests_running": ("requests whose tokens come", lambda each: each.running),
    "vllm:num_requests_waiting": ("requests that wait for their first token", lambda each: each.waiting),
}


def prometheus(samples: Sequence[Sample]) -> str:
    """The text of `/metrics`."""
    lines: list[str] = []

    def metric(name: str, kind: str, about: str, rows: Iterable[str]) -> None:
        found = list(rows)
        if found:
            lines.extend([f"# HELP {name} {about}", f"# TYPE {name} {kind}", *found])

    for name, (about, read) in _COUNTERS.items():
        metric(name, "counter", about, (f"{name}{{{each.labels}}} {read(each.stats)}" for each in samples))
    gauges: dict[str, tuple[str, Callable[[Sample], int]]] = {
        "nv_inference_pending_request_count": ("requests that wait", lambda each: each.waiting),
        "smelt_running_calls": ("calls that run now", lambda each: each.running),
        "smelt_model_ready": ("processes in which a model can be called", lambda each: int(each.ready)),
        "smelt_model_memory_bytes": ("memory that a model holds", lambda each: each.bytes),
    }
    for name, (about, read_sample) in gauges.items():
        metric(name, "gauge", about, (f"{name}{{{each.labels}}} {read_sample(each)}" for each in samples))
    workers = [each for each in samples if each.worker is not None]
    metric(
        "smelt_worker_memory_bytes",
        "gauge",
        "memory of a worker process, shared pages in parts",
        (f"smelt_worker_memory_bytes{{{each.labels}}} {each.worker}" for each in workers),
    )
    metric(
        "smelt_worker_cpu_seconds_total",
        "counter",
        "CPU time of a worker process",
        (f"smelt_worker_cpu_seconds_total{{{each.labels}}} {each.worker_seconds:.2f}" for each in workers),
    )
    metric(
        "smelt_worker_restarts",
        "counter",
        "worker processes that ended and were started again",
        (f"smelt_worker_restarts{{{each.labels}}} {each.restarts}" for each in workers),
    )
    for name, (about, pick) in _HISTOGRAMS.items():
        metric(
            name, "histogram", about, (line for each in samples for line in pick(each.stats).lines(name, each.labels))
        )
    language = [(each, f'model_name="{each.name}"') for each in samples if each.language]
    for name, (about, read) in _TOKENS.items():
        metric(name, "counter", about, (f"{name}{{{labels}}} {read(each.stats)}" for each, labels in language))
    for name, (about, pick) in _TOKEN_TIMES.items():
        metric(
            name,
            "histogram",
            about,
            (line for each, labels in language for line in pick(each.stats).lines(name, labels)),
        )
    for name, (about, read_sample) in _SEQUENCES.items():
        metric(name, "gauge", about, (f"{name}{{{labels}}} {read_sample(each)}" for each, labels in language))
    usage = process_usage()
    metric(
        "process_cpu_seconds_total",
        "counter",
        "CPU time",
        [f"process_cpu_seconds_total {usage.cpu_seconds:.6f}"],
    )
    metric("process_start_time_seconds", "gauge", "start", [f"process_start_time_seconds {STARTED:.3f}"])
    metric(
        "process_resident_memory_bytes", "gauge", "memory", [f"process_resident_memory_bytes {usage.resident_bytes}"]
    )
    return "\n".join(lines) + "\n"


class Usage(NamedTuple):
    """CPU time and memory of this process."""

    cpu_seconds: float
    resident_bytes: int


def process_usage() -> Usage:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(used.ru_utime + used.ru_stime, _resident())


def _resident() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
