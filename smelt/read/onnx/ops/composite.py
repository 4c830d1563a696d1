"""Emit composites: an operator of `ir.composites`, with its ops as the decomposition.

In: the operator's inputs, and a function that emits its ops. Out: a `stablehlo.composite` and a function of the
program, shared by equal operators. Engines that do not know the name inline it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.dim import Size
from smelt.ir.build import FuncBuilder
from smelt.ir.composites import encode
from smelt.ir.core import Func, Op, Value
from smelt.ir.structure import fingerprint
from smelt.read.onnx.graph import Graph
from smelt.shape import Shape

Emits = Callable[[Graph, Sequence[Value]], Value | Sequence[Value]]
Attributes = Mapping[str, Any]


def composite(
    g: Graph,
    name: str,
    inputs: Sequence[Value],
    emits: Emits,
    attributes: Attributes | Callable[[Sequence[Op]], Attributes | None],
) -> list[Value]:
    """The results of a composite over these inputs.

    Attributes may be computed from the emitted ops; None: no composite, the ops are emitted as they are.
    """
    func = _function(g, name, inputs, emits)
    found = attributes(func.body.ops) if callable(attributes) else attributes
    if found is None:
        results = emits(g, inputs)
        return [results] if isinstance(results, Value) else list(results)
    func = g.model.decompositions.setdefault(func.name, func)
    g.b.signatures[func.name] = func.type
    op = g.b.op(
        "stablehlo.composite",
        *inputs,
        name=name,
        composite_attributes=encode(name, found),
        decomposition=func.name,
    )
    return list(op.results)


def _function(g: Graph, name: str, inputs: Sequence[Value], emits: Emits) -> Func:
    """The ops in a function of their own, whose symbols are those of its arguments' dimensions."""
    names: dict[Size, Size] = {}
    scope = FuncBuilder("sizes", []).scope

    def own(size: Size) -> Size:
        if isinstance(size, int):
            return size
        if size not in names:
            names[size] = scope.new_symbol()
        return names[size]

    types = [Shape.of(value.shape.dtype, [own(size) for size in value.shape.sizes]) for value in inputs]
    b = FuncBuilder("decomposition", types)
    b.location = g.b.location
    inner = Graph(g.model, b, g)
    inner.births, inner.given = {}, {name for arg in b.args for name in arg.shape.symbols}
    for arg in b.args:
        inner.item(arg)
    inner.node = g.node
    results = emits(inner, b.args)
    func = b.func(*([results] if isinstance(results, Value) else results), visibility="private")
    return Func(f"{name}.{fingerprint(func).hex()[:16]}", func.body, "private")  # equal ones share a name
