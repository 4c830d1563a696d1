"""Control flow as If and Loop, composites as the operators that ONNX has for them, and ops that only pass values on."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dtype import i1, i32, i64
from smelt.ir.composites import decode
from smelt.ir.core import Op, Region
from smelt.ir.ops.control import is_assertion
from smelt.write.onnx.graph import Graph, Out, Subgraph, refuse, shape_of


def _outs(g: Graph, op: Op) -> list[Out]:
    return [g.new(*shape_of(value), value.name or "branch") for value in op.results]


def _if(g: Graph, op: Op) -> Sequence[Out]:
    outs = _outs(g, op)
    then, other = (g.branch(region) for region in op.regions)
    g.add_node("If", [g.get(op.operands[0])], outs, then_branch=then, else_branch=other)
    return outs


def _case(g: Graph, op: Op) -> Sequence[Out]:
    """If inside If; an index out of range takes the last branch."""
    return _nest(g, op, g.get(op.operands[0]), list(enumerate(op.regions)))


def _nest(g: Graph, op: Op, index: Out, rest: Sequence[tuple[int, Region]]) -> Sequence[Out]:
    (number, region), *others = rest
    outs = _outs(g, op)
    if not others:
        branch = g.branch(region)
        g.add_node("If", [g.constant(True, i1)], outs, then_branch=branch, else_branch=g.branch(region))
        return outs
    test = g.call("Equal", index, g.constant(number, i32), to=i1)
    with g.subgraph() as scope:
        if len(others) == 1:
            g.write(others[0][1])
            found = g.finish(others[0][1].results)
        else:
            found = tuple(g.identity(each) for each in _nest(g, op, index, others))
        other = Subgraph((), tuple(scope.nodes), found)
    g.add_node("If", [test], outs, then_branch=g.branch(region), else_branch=other)
    return outs


def _while(g: Graph, op: Op) -> Sequence[Out]:
    condition, body = op.regions
    starts = [g.get(value) for value in op.operands]
    go = _run(g, condition, starts)[0]
    with g.subgraph() as scope:
        at, going = g.new(i64, (), "iteration"), g.new(i1, (), "going")
        held = [g.new(x.dtype, x.sizes, arg.name or "carried") for x, arg in zip(starts, body.args, strict=True)]
        after = _run(g, body, held)
        again = _run(g, condition, after)[0]
        outputs = tuple(g.identity(each) for each in (again, *after))
        inner = Subgraph((at, going, *held), tuple(scope.nodes), outputs)
    outs = [g.new(*shape_of(value), value.name or "loop") for value in op.results]
    g.add_node("Loop", [None, go, *starts], outs, body=inner)
    return outs


def _run(g: Graph, region: Region, args: Sequence[Out]) -> list[Out]:
    """A region's nodes here and now, with its arguments bound."""
    outer = g.scope.values
    g.scope.values = outer.new_child()
    for arg, out in zip(region.args, args, strict=True):
        g.define(arg, Out(out.name, out.dtype, shape_of(arg)[1]))
    g.write(region)
    found = [g.get(value) for value in region.results]
    g.scope.values = outer
    return found


def _same(g: Graph, op: Op) -> Sequence[Out]:
    return [g.get(value) for value in op.operands]


def _custom_call(g: Graph, op: Op) -> Sequence[Out]:
    if is_assertion(op):
        return []  # a check of sizes; a runtime has its own
    refuse(f"the custom call {op.attrs['call_target_name']!r}: code that ONNX does not have")


# ---- composites ----


def _softmax(g: Graph, op: Op) -> Out:
    return g.call("Softmax", g.get(op.operands[0]), axis=decode(op)["axis"])


def _layer_norm(g: Graph, op: Op) -> Out | None:
    """LayerNormalization normalises the last axes and needs a scale."""
    attributes, xs = decode(op), [g.get(value) for value in op.operands]
    x, axes = xs[0], attributes["axes"]
    inner = x.sizes[min(axes) :]
    if tuple(axes) != tuple(range(x.rank - len(axes), x.rank)) or any(each.dtype != x.dtype for each in xs):
        return None
    if not all(isinstance(size, int) for size in inner) or x.dtype.bits < 32:
        return None
    scale = xs[1] if len(xs) > 1 else g.expand(g.like(1, x), inner)
    if any(each.sizes != inner for each in (scale, *xs[2:])):
        return None
    return g.call("LayerNormalization", x, scale, *xs[2:], sizes=x.sizes, axis=min(axes), epsilon=attributes["epsilon"])


def _gelu(g: Graph, op: Op) -> Out | None:
    x = g.get(op.operands[0])
    if x.dtype.name != "f32":
        return None
    return g.call("Gelu", x, approximate="tanh" if decode(op)["approximate"] else "none")


def _hard_swish(g: Graph, op: Op) -> Out | None:
    x = g.get(op.operands[0])
    return g.call("HardSwish", x) if x.dtype.name == "f32" else None


COMPOSITES = {
    "smelt.softmax": _softmax,
    "smelt.layer_norm": _layer_norm,
    "smelt.gelu": _gelu,
    "smelt.hard_swish": _hard_swish,
}

ROWS = {
    "stablehlo.if": _if,
    "stablehlo.case": _case,
    "stablehlo.while": _while,
    "stablehlo.optimization_barrier": _same,
    "stablehlo.custom_call": _custom_call,
}
