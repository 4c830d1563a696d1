"""Scans over the same operands with the same body become one scan with the outputs of all.

The gradient of a scan needs the carries of each step, from a scan that equals the one in the forward pass but for its
outputs. Called by `grad`, and by `pipeline` for gradients that were recorded as tensors.
"""

from __future__ import annotations

from collections.abc import Hashable

from smelt.ir.clone import clone_region
from smelt.ir.core import Func, Op, Region, Value
from smelt.ir.ops.reduce import scan_counts
from smelt.ir.rewrite import Edit, has_effect
from smelt.ir.structure import fingerprint


def merge_scans(edit: Edit) -> int:
    """Merge equal scans; returns the number of scans removed."""
    count = 0
    regions = [edit.func.body]
    while regions:
        region = regions.pop()
        count += _merge_in(edit, region)
        regions += [inner for op in edit.ops(region) for inner in op.regions]
    return count


def _merge_in(edit: Edit, region: Region) -> int:
    groups: dict[Hashable, list[Op]] = {}
    for op in edit.ops(region):
        if op.name == "chlo.scan" and not has_effect(op):
            key = (tuple(edit.operands(op)), op.attrs["dimension"], op.attrs["is_reverse"])
            groups.setdefault(key, []).append(op)
    count = 0
    for ops in groups.values():
        by_body: dict[bytes, list[Op]] = {}
        for op in ops if len(ops) > 1 else ():
            by_body.setdefault(_body_key(op), []).append(op)
        for equal in by_body.values():
            if len(equal) > 1:
                _merge(edit, equal)
                count += len(equal) - 1
    return count


def _body_key(op: Op) -> bytes:
    """What a body computes, whatever it outputs: its ops and the carries it returns."""
    body = op.regions[0]
    _, inits = scan_counts(op)
    carries = body.results[len(body.results) - inits :]
    return fingerprint(Func("body", Region(body.args, body.ops, carries)))


def _merge(edit: Edit, ops: list[Op]) -> None:
    first = ops[0]
    _, inits = scan_counts(first)
    values: dict[Value, Value] = {}
    body = clone_region(first.regions[0], values)
    outputs: list[Value] = []
    for op in ops:
        own = op.regions[0]
        # The bodies are equal, so that values at the same place are the same.
        twin = dict(zip(_values(own), _values(first.regions[0]), strict=True))
        outputs += [values[twin[value]] for value in own.results[: len(own.results) - inits]]
    carries = body.results[len(body.results) - inits :]
    region = Region(body.args, body.ops, (*outputs, *carries))
    attrs = {"dimension": first.attrs["dimension"], "is_reverse": first.attrs["is_reverse"]}
    made = edit.before(first).op("chlo.scan", *edit.operands(first), regions=[region], **attrs).results
    at = 0
    for op in ops:
        count = len(op.results) - inits
        for old, new in zip(op.results, [*made[at : at + count], *made[len(outputs) :]], strict=True):
            edit.replace(old, new)
        at += count
        edit.erase(op)


def _values(region: Region) -> list[Value]:
    return [*region.args, *(value for op in region.ops for value in op.results)]
