"""Scans: `chlo.scan` with an elementwise body. Registered in `sinks.SINKS`.

Rows run in parallel; along a row the carries stay in registers. `passes.lower` turns other scans into loops.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.ir.core import Op
from smelt.ir.ops.reduce import scan_counts
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import Expr, Set, Var, add, scale
from smelt.kernel.loops.nest import Index, Nest, flat, tensor, unsupported
from smelt.passes.lower import is_pointwise


@sink("chlo.scan")
def scan(nest: Nest, op: Op, output: Output) -> None:
    body, dimension = op.regions[0], op.attrs["dimension"]
    if not is_pointwise(body):
        raise unsupported(op, "whose body looks at more than one element")
    inputs, inits = scan_counts(op)
    outputs = len(body.results) - inits
    sizes = tensor(op.operands[0]).sizes
    length, around = sizes[dimension], [size for d, size in enumerate(sizes) if d != dimension]
    with nest.loops(around) as outer:
        carries = [nest.declare(tensor(init).element, nest.pull(init, outer)) for init in op.operands[inputs:]]
        with nest.loop(length, "ordered") as step:
            at: Expr = add(scale(step, -1), length - 1) if op.attrs["is_reverse"] else step
            step_through(nest, op, output, (*outer[:dimension], at, *outer[dimension:]), carries)
        for target, carry in zip(output.targets[outputs:], carries, strict=True):
            nest.store(target, flat(outer, around), nest.keep(carry))


def step_through(nest: Nest, op: Op, output: Output, index: Index, carries: Sequence[Var]) -> None:
    """Run the body of a scan on the elements at an index: store its outputs, and change the carries."""
    body, (inputs, inits) = op.regions[0], scan_counts(op)
    outputs = len(body.results) - inits
    items = [nest.pull(value, index) for value in op.operands[:inputs]]
    held = [nest.keep(value) for value in nest.inline(body, [*items, *map(nest.keep, carries)])]
    for target, value in zip(output.targets, held[:outputs], strict=False):
        nest.store(target, flat(index, tensor(op.operands[0]).sizes), value)
    for carry, value in zip(carries, held[outputs:], strict=True):
        nest.emit(Set(carry, value))
