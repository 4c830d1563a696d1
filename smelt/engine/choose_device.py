"""`device="auto"`: the device that is predicted to run a program fastest, transfers included, where it fits.

A prediction is a roofline with a price for every kernel. It decides between devices that differ by multiples; where a
GPU's gain is small, the processor is taken, which needs no copies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf
from types import MappingProxyType

from smelt.buffer import bytes_text
from smelt.device.api import Device
from smelt.device.registry import HOST, find_device, other_devices
from smelt.dim import Size, evaluate, symbols
from smelt.errors import DeviceError, RunError
from smelt.frozen import Frozen
from smelt.ir.core import Op, Program, walk
from smelt.ir.cost import memory, operations
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape

log = logging.getLogger("smelt")
GAIN = 1.5  # what another device must win to be worth its copies and its memory
# Ops that become kernels of their own; elementwise ops join them.
KERNELS = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("dot_general", "convolution", "reduce", "reduce_window", "sort", "gather", "scatter", "fft", "cholesky"),
        *("triangular_solve", "select_and_scatter", "concatenate", "pad", "transpose", "composite", "custom_call"),
    )
)
LOOPS = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case"})  # the host waits for their flags


class Work(Frozen):
    """What a call does at given sizes. `half`: its products take bf16 or f16."""

    operations: float
    weights: int  # bytes
    moved: int  # bytes that cross the bus in a call: inputs and results
    temporary: int  # the most bytes that are alive at once
    kernels: int
    waits: int  # loops and branches
    half: bool

    @staticmethod
    def of(program: Program, sizes: Mapping[str, int] = MappingProxyType({})) -> Work:
        """Symbols without a size count as 1."""
        main = program.main
        ops = [op for func in program.funcs.values() for op in walk(func.body)]
        used = memory(main, sizes)
        held = sum(
            _bytes(value.type, sizes) for value, attrs in zip(main.args, main.arg_attrs, strict=True) if WEIGHT in attrs
        )
        return Work(
            float(_number(operations(program), sizes)),
            held,
            used.arguments - held + used.results,
            used.peak,
            1 + sum(op.name in KERNELS for op in ops),
            sum(op.name in LOOPS for op in ops),
            any(_is_half(op) for op in ops),
        )


def choose_device(program: Program, sizes: Mapping[str, int] = MappingProxyType({})) -> str:
    """The name of the device for a program. Only where other devices may be here does it cost anything."""
    others = other_devices()
    if not others:
        return HOST
    work = Work.of(program, sizes)
    best, least = HOST, _predict(find_device(HOST), work)
    said = [f"{HOST}: {_text(least)}"]
    for name in others:
        try:
            device = find_device(name)
            reason = device.missing() or _find_misfit(device, work)
            seconds = _predict(device, work) if reason is None else inf
        except (DeviceError, RunError) as error:  # it was lost, or others have its memory
            reason, seconds = str(error).splitlines()[0], inf
        said.append(f"{name}: {reason or _text(seconds)}")
        if seconds * GAIN < least:
            best, least = name, seconds
    log.info('device="auto" is %s (a call is predicted to take: %s)', best, "; ".join(said))
    return best


def _find_misfit(device: Device, work: Work) -> str | None:
    """Why a program does not fit into a device's memory: its weights are there twice while they are packed."""
    stats = device.stats()
    free = int(stats["bytes_limit"] - stats["bytes_in_use"])
    needed = 2 * work.weights + work.moved + work.temporary
    return None if needed <= free else f"it needs about {bytes_text(needed)} of memory, {bytes_text(free)} are free"


def _predict(device: Device, work: Work) -> float:
    """Seconds of a call."""
    rates = device.rates()
    arithmetic = _divide(work.operations, rates.half_gflops if work.half else rates.gflops)
    traffic = _divide(work.weights + work.moved + 2 * work.temporary, rates.memory)
    transfer = _divide(work.moved, rates.transfer)
    return max(arithmetic, traffic) + transfer + work.kernels * rates.kernel + (1 + work.waits) * rates.wait


def _divide(amount: float, rate: float) -> float:
    """Seconds at a rate in 10^9 a second. Some drivers do not say one: it is 0, and counts as very high."""
    return amount / (1e9 * rate) if rate else 0.0


def _is_half(op: Op) -> bool:
    products = ("stablehlo.dot_general", "stablehlo.convolution")
    return op.name in products and op.operands[0].shape.dtype.name in ("bf16", "f16")


def _number(size: Size, sizes: Mapping[str, int]) -> int:
    return evaluate(size, dict.fromkeys(symbols(size), 1) | dict(sizes))


def _bytes(type: object, sizes: Mapping[str, int]) -> int:
    return _number(type.count, sizes) * type.dtype.numpy.itemsize if isinstance(type, Shape) else 0


def _text(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
