"""Kernels of sampled calls, for spans: one call in N runs a copy of the model's program with timestamps.

`models` uses it for a trusted model's calls; the queue passes the kernels' times on to `tracing`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from smelt.device.peak import Peaks
from smelt.device.registry import find_device
from smelt.dtype import Array
from smelt.engine.profile import Event, Profiled, Step
from smelt.engine.signature import signature_of
from smelt.errors import UnsupportedError
from smelt.model import LoadedModel, read
from smelt.passes.quantise import with_precision
from smelt.run.executable import NativeExecutable
from smelt.run.per_value import DynamicSizes
from smelt.serve.config import ModelConfig
from smelt.stop import Cancel, Stop


class KernelRun(NamedTuple):
    """One run of a kernel within a call; seconds from the call's start."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, str | float]


class SampledModel:
    """A model of which one call in `config.kernel_spans` is measured kernel by kernel. Results are the same."""

    def __init__(self, name: str, path: Path, config: ModelConfig, model: LoadedModel) -> None:
        self._model, self._every = model, config.kernel_spans
        ports = model.signature
        if model.engine != "native" or path.suffix == ".smelt" or any(each.labels for each in ports.inputs):
            raise UnsupportedError(
                f"{name}: its kernels cannot be traced",
                expected="the native engine, an ONNX or StableHLO file, and inputs of numbers",
                remedy="leave out kernel_spans",
            )
        program, weights = read(path, config.static or None)
        own = signature_of(program.main)
        self._inputs, self._outputs = ([each.name for each in side] for side in (own.inputs, own.outputs))
        executable = model.executable
        placed = executable.device if isinstance(executable, NativeExecutable | DynamicSizes) else None
        device = placed or find_device(config.device)
        self._profiled = Profiled(with_precision(program, config.precision or "f32"), weights, device.target())
        meter = device.meter()
        meter.probe_ends()
        self._peaks = meter.peaks()
        self._count = 0
        self._measuring = threading.Lock()  # the program has one log
        self._here = threading.local()

    def __call__(self, inputs: Mapping[str, Array], timeout: float | None, cancel: Cancel | None) -> dict[str, Array]:
        self._count += 1
        if self._count % self._every or not self._measuring.acquire(blocking=False):
            return self._model.run(inputs, timeout=timeout, cancel=cancel)
        try:
            given = [inputs[name] for name in self._inputs]
            outputs, call = self._profiled.call(given, Stop.of(timeout, cancel))
            self._here.kernels = [_describe(*each, self._peaks) for each in self._profiled.events(call, given)]
        finally:
            self._measuring.release()
        return dict(zip(self._outputs, outputs, strict=True))

    def take_kernels(self) -> Sequence[KernelRun]:
        """The kernels of the call that this thread made last, if it was measured."""
        found: Sequence[KernelRun] = getattr(self._here, "kernels", ())
        self._here.kernels = ()
        return found

    def close(self) -> None:
        self._profiled.close()


def _describe(step: Step, event: Event, peaks: Peaks) -> KernelRun:
    begin, end = event.begin / 1e6, event.end / 1e6
    attributes: dict[str, str | float] = {"smelt.kernel": step.kernel, "smelt.ops": ", ".join(step.ops)}
    if step.nodes:
        attributes["smelt.nodes"] = ", ".join(step.nodes)
    operations, moved, spent = step.cost.operations, step.cost.bytes, end - begin
    if operations is not None and moved is not None and spent > 0:
        attributes["smelt.gflops"] = operations / spent / 1e9
        attributes["smelt.gbytes_per_second"] = moved / spent / 1e9
        attributes["smelt.of_roofline"] = peaks.seconds(operations, moved) / spent
    return KernelRun(step.kernel, begin, end, attributes)
