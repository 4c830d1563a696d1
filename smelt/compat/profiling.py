"""The trace of a session as Chrome trace events: loading, calls and kernels with their times."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from smelt.dtype import Array
from smelt.engine.profile import Profiled
from smelt.ir.core import Program
from smelt.stop import Stop
from smelt.weights import Weights


class Trace:
    """Events of one session; times are microseconds since it began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start = time.perf_counter_ns()
        self.events: list[dict[str, Any]] = []
        self._profiled: Profiled | None = None

    @staticmethod
    def begin(prefix: str) -> Trace:
        return Trace(Path(f"{prefix}{datetime.now():%Y-%m-%d_%H-%M-%S_%f}.json"))

    def instrument(self, program: Program, weights: Weights) -> None:
        """Run the program with timestamps at every kernel from now on."""
        self._profiled = Profiled(program, weights)

    @property
    def is_instrumented(self) -> bool:
        return self._profiled is not None

    def call(self, inputs: Sequence[Array], stop: Stop | None = None) -> tuple[Array, ...]:
        """Run the instrumented program and record its kernels."""
        assert self._profiled is not None
        begin = self._now()
        outputs, call = self._profiled.call(inputs, stop)
        for step, event in self._profiled.events(call, inputs):
            name = step.nodes[0] if step.nodes else step.kernel
            details = {"op_name": ", ".join(step.ops), "kernel": step.kernel, "output_type_shape": list(step.shapes)}
            self._add(f"{name}_kernel_time", "Node", begin + event.begin, event.end - event.begin, details)
        return outputs

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        begin = self._now()
        try:
            yield
        finally:
            self._add(name, "Session", begin, self._now() - begin, {})

    def write(self) -> str:
        self.path.write_text(json.dumps(sorted(self.events, key=lambda event: event["ts"])))
        return str(self.path)

    def _now(self) -> float:
        return (time.perf_counter_ns() - self.start) / 1e3

    def _add(self, name: str, category: str, begin: float, microseconds: float, details: dict[str, Any]) -> None:
        common = {"pid": os.getpid(), "tid": 0, "ph": "X"}
        self.events.append({"name": name, "cat": category, "ts": begin, "dur": microseconds, "args": details, **common})
