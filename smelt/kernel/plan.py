"""Plan: the kernels of a program in order, over numbered buffers whose sizes are polynomials.

Made by `kernel.fuse`, printed by `emit_*`, run by an engine. Tied to no size: `sizes` are evaluated at each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smelt.dim import Size, evaluate
from smelt.kernel.loop import Stmt
from smelt.shape import Shape


@dataclass(frozen=True, slots=True)
class Kernel:
    """One fused computation: its loops, what it makes, and the ops of the program that it covers."""

    name: str
    body: tuple[Stmt, ...]
    result: int
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """Something about sizes that the kernels rely on and that only a call can show: a == b, or a <= b."""

    a: Size
    b: Size
    exact: bool
    why: str

    def holds(self, symbols: Mapping[str, int]) -> bool:
        a, b = evaluate(self.a, symbols), evaluate(self.b, symbols)
        return a == b if self.exact else a <= b


@dataclass(frozen=True, slots=True)
class Plan:
    """Buffers are numbered: the arguments, then the results, then the constants, then the temporaries."""

    arguments: tuple[Shape, ...]
    results: tuple[Shape, ...]
    constants: tuple[bytes, ...]
    temporaries: tuple[Shape, ...]
    kernels: tuple[Kernel, ...]
    sizes: tuple[Size, ...]
    checks: tuple[Check, ...] = ()

    def size_table(self, symbols: Mapping[str, int]) -> list[int]:
        """The sizes that the kernels ask for, as numbers."""
        return [evaluate(size, symbols) for size in self.sizes]
