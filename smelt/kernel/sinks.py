"""Ops that write their results themselves: `SINKS[name](nest, op, output)` writes the loops of the op's kernel.

An op in `ANCHORS` hands each element to `output.finish`, which goes on with the elementwise ops that follow (the
epilogue) and stores the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.ir.core import Op, Value
from smelt.kernel.loop import Expr
from smelt.kernel.nest import Index, Nest, flat, reshaped, tensor


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go: `targets` are the buffers of the op's results, or of the epilogue's last value.

    `axes[d]` is the last value's axis behind axis d of the op's result; None: the row-major offset is the same.
    """

    targets: Sequence[int]
    last: Value | None = None
    axes: tuple[int, ...] | None = None

    def finish(self, nest: Nest, op: Op, index: Index, element: Expr) -> None:
        """Store an element of the op's only result, after the epilogue."""
        sizes = tensor(op.result).sizes
        if self.last is None:
            nest.store(self.targets[0], flat(index, sizes), element)
            return
        full = tensor(self.last).sizes
        if self.axes is None:
            place = index if full == sizes else reshaped(nest, index, sizes, full)
        else:
            moved = dict(zip(self.axes, index, strict=True))
            place = tuple(moved[d] for d in range(len(full)))
        nest.values[op.result] = element
        nest.store(self.targets[0], flat(place, full), nest.pull(self.last, place))
        del nest.values[op.result]


Sink = Callable[[Nest, Op, Output], None]

SINKS: dict[str, Sink] = {}
ANCHORS: set[str] = set()
ADDRESSED: dict[str, tuple[int, ...]] = {}


def sink(*names: str, anchor: bool = False, addressed: tuple[int, ...] = ()) -> Callable[[Sink], Sink]:
    """Register the rule that writes the kernel of an op.

    `anchor`: it stores through `output.finish` alone. `addressed`: operands that must lie in memory with strides.
    """

    def register(rule: Sink) -> Sink:
        for name in names:
            SINKS[name] = rule
            ADDRESSED[name] = addressed
        if anchor:
            ANCHORS.update(names)
        return rule

    return register
