"""The memory that a planned program will need, before it is compiled or loaded: bytes, or a formula of symbolic sizes.

`load(memory_limit=…)`, `smelt inspect` and `smelt show` read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from smelt.buffer import bytes_text, parse_bytes
from smelt.bundle.stored import StoredModel, to_stored
from smelt.device.api import Device
from smelt.device.program import Account
from smelt.dim import Size, evaluate, solve
from smelt.dtype import Array
from smelt.engine_api import Closing, Executable, KernelUse, Port, Signature, Trimmable
from smelt.errors import MemoryLimitError, RunError, ShapeError
from smelt.frozen import Frozen
from smelt.kernel.plan.memory import Memory
from smelt.kernel.plan.plan import Plan, walk
from smelt.weights import Weights

PER_STEP = 64 << 10  # bytes of Python objects, code and text per step of a plan: measured, rounded up
HUGE = 2 << 20  # bytes: blocks of this size and more are in huge pages
REMEMBERED = 1000  # shapes that are known to fit
SHOWN = 6  # buffers in an error


@dataclass(frozen=True, slots=True)
class Budget:
    """The bytes that a model may use, and the dynamic dimensions that are known at load.

    All programs of the model share one account.
    """

    bytes: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    opened: list[Account] = field(default_factory=list)

    def account(self, device: Device) -> Account:
        if not self.opened:
            self.opened.append(device.account(self.bytes))
        return self.opened[0]

    @staticmethod
    def of(limit: int | str | None, sizes: Mapping[str, int] | None = None) -> Budget | None:
        given: Mapping[str, Any] = sizes or {}
        for name, size in given.items():
            if not isinstance(size, int | np.integer) or size < 0:
                raise RunError(
                    f"sizes: {name!r}", expected="a whole number, at least 0", got=size, remedy="sizes={…: 8}"
                )
        return None if limit is None else Budget(parse_bytes(limit, "memory_limit"), sizes or {})


class Footprint(Frozen):
    """Bytes of one loaded program and one call of it. Data-dependent sizes are not counted.

    The peak is the program, the packed weights and the constants, plus the larger of two: the weights and temporaries
    of @prepare, or the temporaries and results of a call.
    """

    weights: tuple[Port, ...]
    main: tuple[Plan, Memory]
    prepare: tuple[Plan, Memory] | None

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbolic sizes that it depends on."""
        return self.main[0].symbols

    def parts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Bytes of each kind, for given sizes; dynamic dimensions that are not given count as 1."""
        known = dict.fromkeys(self.symbols, 1) | dict(sizes)
        plan, memory = self.main
        first = self.prepare[0] if self.prepare else None
        steps = sum(1 for each in (self.main, self.prepare) if each for _ in walk(each[0].steps))
        return {
            "program": PER_STEP * steps,
            "weights": sum(map(_bytes, self.weights)),
            "bound": sum(evaluate(buffer.bytes, {}) for buffer in first.of_kind("result")) if first else 0,
            "constants": sum(map(len, plan.constants)) + (sum(map(len, first.constants)) if first else 0),
            "temporaries": memory.peak(known),
            "results": sum(evaluate(size, known) for size in self._results()),
            "preparation": self.prepare[1].peak({}) if self.prepare else 0,
        }

    def peak(self, sizes: Mapping[str, int]) -> int:
        """The most bytes that are held at once."""
        parts = self.parts(sizes)
        call, preparation = parts["temporaries"] + parts["results"], parts["weights"] + parts["preparation"]
        return parts["program"] + parts["bound"] + parts["constants"] + max(call, preparation)

    def required_bytes(self, sizes: Mapping[str, int]) -> int:
        """The same in whole pages, as the runtime library allocates them."""
        parts = {name: _in_pages(count) for name, count in self.parts(sizes).items()}
        call, preparation = parts["temporaries"] + parts["results"], parts["weights"] + parts["preparation"]
        return parts["program"] + parts["bound"] + parts["constants"] + max(call, preparation)

    def text(self) -> str:
        """The peak as a formula of the symbolic sizes."""
        parts = self.parts({})
        total: Size = 0
        several: list[str] = []
        for slot in self.main[1].slots:
            if len(slot) == 1:
                total = total + slot[0]
            else:
                several.append(largest_text(slot))
        call = " + ".join([str(sum(self._results(), start=total)), *several])
        fixed = parts["program"] + parts["bound"] + parts["constants"]
        preparation = parts["weights"] + parts["preparation"]
        if not self.symbols:
            return str(self.peak({}))
        return f"{fixed} + max({call}, {preparation})" if preparation else f"{fixed} + {call}"

    def largest(self, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
        """The largest blocks in memory: names and bytes."""
        known = dict.fromkeys(self.symbols, 1) | dict(sizes)
        found = {f"weight {port.name}: {port.shape}": _bytes(port) for port in self.weights}
        for where, plan in [("", self.main[0]), *([("prepare: ", self.prepare[0])] if self.prepare else [])]:
            for i, buffer in enumerate(plan.buffers):
                if buffer.kind != "argument" and not plan.is_deferred(*buffer.shape.sizes):
                    found[f"{where}{buffer.kind} {i}: {buffer.shape}"] = evaluate(buffer.bytes, known)
        return sorted(found.items(), key=lambda item: -item[1])

    def check(self, limit: int, sizes: Mapping[str, int]) -> None:
        """Refuse a program that needs more than `limit` bytes at these sizes; sizes that are not given count as 1."""
        peak = self.required_bytes(sizes)
        if peak <= limit:
            return
        known = dict.fromkeys(self.symbols, 1) | dict(sizes)
        at = f" at {', '.join(f'{name}={value}' for name, value in known.items())}" if known else ""
        parts = ", ".join(f"{name} {bytes_text(count)}" for name, count in self.parts(sizes).items() if count)
        biggest = [f"{bytes_text(count)} {name}" for name, count in self.largest(sizes)[:SHOWN]]
        raise MemoryLimitError(
            "the model needs more memory than allowed",
            expected=f"at most {bytes_text(limit)}",
            got=f"{bytes_text(peak)}{at} ({parts}); the largest: {'; '.join(biggest)}",
            remedy="set a higher memory_limit, or use smaller sizes",
        )

    def _results(self) -> list[Size]:
        plan = self.main[0]
        own = [each for each in plan.of_kind("result") if each.index not in dict(plan.reused)]
        return [each.bytes for each in own if not plan.is_deferred(*each.shape.sizes)]


class Limited(Closing):
    """An executable that refuses calls whose sizes need more memory than allowed. Its account bounds all calls."""

    def __init__(self, executable: Executable, footprint: Footprint, limit: int) -> None:
        self._executable, self._footprint, self._limit = executable, footprint, limit
        self._seen: set[tuple[tuple[int, ...], ...]] = set()

    @property
    def signature(self) -> Signature:  # type: ignore[override]
        return self._executable.signature

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        return self._executable.kernels

    def prepare(self, weights: Weights) -> Executable:
        return Limited(self._executable.prepare(weights), self._footprint, self._limit)

    def __call__(self, *inputs: Array, **options: Any) -> tuple[Array, ...]:
        shapes = tuple(np.shape(each) for each in inputs)
        if self._footprint.symbols and shapes not in self._seen:
            self._check(shapes)
        return self._executable(*inputs, **options)

    def _check(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        ports = self.signature.inputs
        if [port.shape.rank for port in ports] != [len(sizes) for sizes in shapes]:
            return  # the call reports what is wrong
        patterns = [size for port in ports for size in port.shape.sizes]
        try:
            symbols = solve(patterns, [number for sizes in shapes for number in sizes])
        except ShapeError:
            return
        self._footprint.check(self._limit, symbols)
        if len(self._seen) >= REMEMBERED:
            self._seen.clear()
        self._seen.add(shapes)

    def to_stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """The content of its bundle, without the limit."""
        return to_stored(self._executable, targets)

    def trim(self) -> None:
        if isinstance(self._executable, Trimmable):
            self._executable.trim()

    def close(self) -> None:
        self._executable.close()


def _in_pages(count: int) -> int:
    return count if count < HUGE else -(-count // HUGE) * HUGE


def largest_text(sizes: Sequence[Size]) -> str:
    """The largest of several sizes, as text that `dim.parse_size` reads."""
    *others, last = map(str, sizes)
    return reduce(lambda rest, size: f"max({size}, {rest})", reversed(others), last)


def _bytes(port: Port) -> int:
    return evaluate(port.shape.count, {}) * port.shape.dtype.numpy.itemsize
