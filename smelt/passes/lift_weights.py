"""Constants that are weights of the file become arguments again: readers fold small tensors (biases) into the program.

In: a program and the arrays of its file by name. Out: the program with arguments marked `smelt.weight` for those
constants, found by their content. Fine-tuning and export call it; the pipeline does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from smelt.dtype import DType
from smelt.ir.attributes import Constant
from smelt.ir.clone import clone_ops
from smelt.ir.core import Op, Program, Region, Value
from smelt.passes.split_prepare import NAME, WEIGHT


def lift_weights(program: Program, weights: Mapping[str, Any]) -> Program:
    """The same program, whose floating-point constants with the content of a weight are that weight.

    Where several weights have the same content (biases of zeros), as many constants as there are weights are theirs, in
    order; otherwise it is open which is which, and they stay constants.
    """
    main = program.main
    bound = {attrs.get(WEIGHT) for attrs in main.arg_attrs}
    names = _by_content({name: weights[name] for name in weights if name not in bound})
    makers: dict[Constant, list[Op]] = defaultdict(list)
    for op in main.body.ops:
        if op.name == "stablehlo.constant" and op.attrs["value"] in names:
            makers[op.attrs["value"]].append(op)
    chosen: dict[Op, str] = {}
    for content, ops in makers.items():
        if len(names[content]) == 1 and not content.is_splat:
            chosen.update(dict.fromkeys(ops, names[content][0]))
        elif len(names[content]) == len(ops):
            chosen.update(zip(ops, names[content], strict=True))
    if not chosen:
        return program
    args = {name: Value(op.result.type, None, 0, name) for op, name in chosen.items()}
    values = {op.result: args[name] for op, name in chosen.items()}
    kept = clone_ops([op for op in main.body.ops if op not in chosen], values)
    results = tuple(values.get(value, value) for value in main.results)
    attrs = tuple(MappingProxyType({WEIGHT: name, NAME: name}) for name in args)
    body = Region((*args.values(), *main.args), tuple(kept), results)
    return program.replace(replace(main, body=body, arg_attrs=(*attrs, *main.arg_attrs)))


def _by_content(weights: Mapping[str, Any]) -> dict[Constant, list[str]]:
    """Names of floating-point arrays with axes, by what they hold."""
    found: dict[Constant, list[str]] = defaultdict(list)
    for name, held in weights.items():
        element = held.shape.dtype
        if isinstance(element, DType) and element.kind == "float" and held.shape.rank:
            found[Constant.of(np.asarray(held.numpy()), element)].append(name)
    return found
