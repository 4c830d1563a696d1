"""Derivatives of collectives: the losses of all processes are summed, so each transpose is a collective, too."""

from __future__ import annotations

from collections.abc import Callable

from smelt.ir.build import Builder
from smelt.ir.core import Op, Region, Value
from smelt.ir.grad.reduce import single_op
from smelt.ir.grad.rule import Cotangents, Rule, linear, linear_in_first, no_derivative, repeat, zero
from smelt.ir.grad.sweep import Reverse
from smelt.shape import Shape

_SHARED = ("replica_groups", "channel_handle", "use_global_device_ids")


def _common_attributes(op: Op) -> dict[str, object]:
    return {name: op.attrs[name] for name in _SHARED if op.attrs.get(name) is not None}


def _sum_body(b: Builder, value: Value) -> Region:
    scalar = Shape.of(value.shape.dtype, ())
    with b.region(scalar, scalar) as r:
        r.result(r.add(*r.args))
    body: Region = r.body
    return body


def _each(transpose: Callable[[Builder, Op, Value, Value], Value]) -> Rule:
    """A rule for a collective over several operands, from the transpose for one: (builder, op, operand, g)."""

    def vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
        for operand, g in zip(op.operands, cotangents, strict=True):
            if g is not None and sweep.wants(operand):
                sweep.add(operand, transpose(sweep.b, op, operand, g))

    return linear(vjp)


def _gather(b: Builder, op: Op, operand: Value, g: Value) -> Value:
    attrs = {"scatter_dimension": op.attrs["all_gather_dim"], **_common_attributes(op)}
    return b.op("stablehlo.reduce_scatter", g, regions=[_sum_body(b, g)], result=operand.type, **attrs).result


def _scatter(b: Builder, op: Op, g: Value) -> Value:
    attrs = {"all_gather_dim": op.attrs["scatter_dimension"], **_common_attributes(op)}
    return b.op("stablehlo.all_gather", g, result=op.operands[0].type, **attrs).result


def _exchange(b: Builder, op: Op, operand: Value, g: Value) -> Value:
    attrs = {
        "split_dimension": op.attrs["concat_dimension"],
        "concat_dimension": op.attrs["split_dimension"],
        "split_count": op.attrs["split_count"],
        **_common_attributes(op),
    }
    return b.op("stablehlo.all_to_all", g, result=operand.type, **attrs).result


def _permute(b: Builder, op: Op, g: Value) -> Value:
    pairs = tuple((target, source) for source, target in op.attrs["source_target_pairs"])
    return repeat(b, op, [g], source_target_pairs=pairs)[0]


def _sum(b: Builder, op: Op, operand: Value, g: Value) -> Value:
    attrs = dict(op.attrs)
    if op.name == "stablehlo.cross-replica-sum":
        return b.op(op.name, g, **attrs).result
    return b.op(op.name, g, regions=[_sum_body(b, g)], **attrs).results[0]


def all_reduce_rule(op: Op) -> Rule:
    if single_op(op.regions[0]) != "add" or op.operands[0].shape.dtype != op.results[0].shape.dtype:
        return no_derivative("it reduces over processes by another body than a sum of its own element type")
    return _each(_sum)


def reduce_scatter_rule(op: Op) -> Rule:
    if single_op(op.regions[0]) != "add" or op.operands[0].shape.dtype != op.results[0].shape.dtype:
        return no_derivative("it reduces over processes by another body than a sum of its own element type")
    return linear_in_first(_scatter)


_ONE_ROOT = "only one process of a group keeps or gives the value"
_HOST = "it moves data in and out of the program"

RULES: dict[str, Rule | Callable[[Op], Rule]] = {
    "stablehlo.all_gather": _each(_gather),
    "stablehlo.all_reduce": all_reduce_rule,
    "stablehlo.all_to_all": _each(_exchange),
    "stablehlo.reduce_scatter": reduce_scatter_rule,
    "stablehlo.collective_reduce": no_derivative(_ONE_ROOT),
    "stablehlo.collective_broadcast": no_derivative(_ONE_ROOT),
    "stablehlo.collective_permute": linear_in_first(_permute),
    "stablehlo.cross-replica-sum": _each(_sum),
    "stablehlo.partition_id": zero("it has no operand"),
    "stablehlo.replica_id": zero("it has no operand"),
    "stablehlo.send": no_derivative(_HOST),
    "stablehlo.recv": no_derivative(_HOST),
    "stablehlo.infeed": no_derivative(_HOST),
    "stablehlo.outfeed": no_derivative(_HOST),
}
