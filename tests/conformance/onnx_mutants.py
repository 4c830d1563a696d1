"""Mutants of the official ONNX node cases, on smelt against two implementations that agree with each other.

    python tests/conformance/onnx_mutants.py [--filter OP,OP] [--count N] [--seed S] [--engine E] [--device D]
        [--json FILE] [--jobs N]

A mutant is an official case with other sizes, attributes, element types, versions or parameters. What counts as right
is what ONNX's own evaluator and onnxruntime both give; a mutant on which they differ, or which one of them refuses, is
skipped. smelt runs it with fixed sizes, and with every size of every input a symbol, at two sizes each. `--device cuda`
or `emulated` runs the native engine there; a mutant that is not right there runs on the processor, too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.cuda.emulated import find_name  # noqa: E402  the scripts' own folder comes first

SECONDS, ELSEWHERE = 60, 300  # for one mutant: on the processor, on another device (the emulator is slow)
MOST = 20_000  # elements of an input
SIZES = (0, 1, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 13, 17)
NEWEST = 24  # the newest version that onnxruntime knows well

# No fixed meaning (random numbers), no tensors to resize, or one that onnxruntime has only a preview of.
LEFT_OUT = {
    "Bernoulli", "ImageDecoder", "If", "Loop", "Scan", "SequenceMap", "Optional", "OptionalGetElement",
    "OptionalHasElement", "FlexAttention", "LinearAttention", "CausalConvWithState", "Adagrad", "Adam", "Momentum",
}  # fmt: skip

BROADCAST = {
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Max", "Min", "Mean", "Sum", "Where", "MatMul",
    "PRelu", "Expand", "Gemm", "LayerNormalization", "RMSNormalization",
}  # fmt: skip

Arrays = dict[str, Any]


@dataclass
class Mutant:
    """One node, its inputs at two sizes, and which of them are constants of the model."""

    case: str
    node: Any
    version: int
    inputs: list[Arrays]  # at the first and, if the case allows, at a second size
    constants: set[str]
    symbols: dict[str, list[str]]  # a name for each size of each input
    types: list[int] = field(default_factory=list)  # of the outputs, once they are known
    changes: list[str] = field(default_factory=list)

    def model(self, inputs: Arrays, symbolic: bool) -> Any:
        """The model for these inputs: sizes fixed as theirs, or all symbols."""
        ports, constants = [], []
        for name, array in inputs.items():
            number = helper.np_dtype_to_tensor_dtype(array.dtype)
            if name in self.constants:
                constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
                continue
            ports.append(helper.make_tensor_value_info(name, number, self.symbols[name] if symbolic else array.shape))
        names = [name for name in self.node.output if name]
        outputs = [helper.make_empty_tensor_value_info(name) for name in names]
        if self.types:
            outputs = [helper.make_tensor_value_info(*each, None) for each in zip(names, self.types, strict=True)]
        graph = helper.make_graph([self.node], "mutant", ports, outputs, constants)
        opset = helper.make_opsetid(self.node.domain, self.version)
        opsets = [opset] if not self.node.domain else [opset, helper.make_opsetid("", 21)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def describe(self) -> str:
        sizes = {name: f"{a.dtype}{list(a.shape)}" for name, a in self.inputs[0].items()}
        small = {n: a.reshape(-1).tolist() for n, a in self.inputs[0].items() if a.size <= 8 and a.dtype.kind in "iub"}
        attributes = {a.name: helper.get_attribute_value(a) for a in self.node.attribute}
        second = {name: list(a.shape) for name, a in self.inputs[1].items()} if len(self.inputs) > 1 else None
        return (
            f"{self.node.op_type}-{self.version} {attributes} {sizes} values {small} then {second}"
            f" constants {sorted(self.constants)} inputs {list(self.node.input)} ({', '.join(self.changes)})"
        )


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant."""

    index: int
    op: str
    status: str  # agree, refused, wrong, crashed, skipped
    variant: str = ""
    detail: str = ""
    mutant: str = ""
    processor: str = ""  # its status on the processor, where another device is not right


# ---- seeds ----


@dataclass(frozen=True)
class Seed:
    name: str
    node: Any
    version: int
    inputs: Mapping[str, Any]


def seeds() -> list[Seed]:
    """Every official case of one node whose inputs are tensors of numbers."""
    from onnx.backend.test.loader import load_model_tests

    from tests.conformance.onnx_suite import data_of

    found = []
    for case in sorted(load_model_tests(kind="node"), key=lambda case: str(case.name)):
        model, sets = data_of(case)
        if len(model.graph.node) != 1 or model.graph.initializer or not sets:
            continue
        node = model.graph.node[0]
        arrays = dict(zip([port.name for port in model.graph.input], sets[0][0], strict=False))
        plain = all(isinstance(a, np.ndarray) and a.dtype.kind in "biufcV" for a in arrays.values())
        known = {name for name in node.input if name} == set(arrays)
        if not plain or not known or node.op_type in LEFT_OUT or "_expanded" in case.name:
            continue
        if any(len(port.type.tensor_type.ListFields()) == 0 for port in model.graph.output):
            continue
        version = next(each.version for each in model.opset_import if each.domain == node.domain)
        found.append(Seed(case.name, node, version, arrays))
    return found


class Pool:
    """Seeds by operator, and the attribute values that an operator's cases use between them."""

    def __init__(self, text: str = "") -> None:
        texts = text.split(",")
        every = [seed for seed in seeds() if any(seed.node.op_type == each or each in seed.name for each in texts)]
        self.by_op: dict[str, list[Seed]] = {}
        self.attributes: dict[tuple[str, str], list[Any]] = {}
        for seed in every:
            self.by_op.setdefault(seed.node.op_type, []).append(seed)
            for proto in seed.node.attribute:
                self.attributes.setdefault((seed.node.op_type, proto.name), []).append(proto)
        self.ops = sorted(self.by_op)

    def mutant(self, seed: int, index: int) -> Mutant:
        rng = np.random.default_rng([seed, index])
        op = self.ops[index % len(self.ops)]  # every operator as often as every other
        cases = self.by_op[op]
        return mutate(cases[int(rng.integers(len(cases)))], self, rng)


# ---- mutation ----


def mutate(seed: Seed, pool: Pool, rng: np.random.Generator) -> Mutant:
    node = onnx.NodeProto()
    node.CopyFrom(seed.node)
    arrays = {name: np.asarray(array) for name, array in seed.inputs.items()}
    version = seed.version if node.domain else min(seed.version, max(NEWEST, _oldest(node.op_type)))
    mutant = Mutant(seed.name, node, version, [], set(), {})
    chance = rng.random
    if chance() < 0.25:
        change_version(mutant, rng)
    if chance() < 0.25:
        arrays = change_types(mutant, arrays, rng)
    if chance() < 0.15:
        arrays = leave_out(mutant, arrays, rng)
    if chance() < 0.6:
        for _ in range(int(rng.integers(1, 3))):
            change_attribute(mutant, arrays, pool, rng)
    parameters = {name for name, a in arrays.items() if is_parameter(a, node, name)}
    if chance() < 0.35:
        change_parameters(mutant, arrays, parameters, rng)
    first = resize(mutant, arrays, parameters, rng, 0.8)
    mutant.inputs = [first]
    second = resize(mutant, first, parameters, rng, 0.9, again=True)
    if all(second[name].shape == a.shape for name, a in first.items() if name in parameters):
        mutant.inputs.append(second)
    if chance() < 0.5:
        mutant.constants = {name for name in sorted(parameters) if chance() < 0.8}
    if chance() < 0.2 and len(first) > 1:  # weights
        mutant.constants |= {name for name in list(first)[1:] if chance() < 0.6}
    for name in mutant.constants:
        if len(mutant.inputs) > 1 and second[name].shape != first[name].shape:
            mutant.inputs.pop()
    if len(mutant.inputs) > 1:
        for name in mutant.constants:
            mutant.inputs[1][name] = first[name]
    mutant.symbols = name_sizes(mutant.inputs, rng)
    return mutant


def is_parameter(array: Any, node: Any, name: str) -> bool:
    """Axes, sizes, k, a threshold …: a few integers or one number, not the first input."""
    if array.size == 1 and array.ndim <= 1 and node.op_type not in BROADCAST and name != node.input[0]:
        return True
    return name != node.input[0] and array.dtype in (np.int64, np.int32) and array.ndim <= 1 and array.size <= 8


_SCHEMAS: dict[str, list[Any]] = {}
for _schema in onnx.defs.get_all_schemas_with_history():
    if not _schema.domain:
        _SCHEMAS.setdefault(_schema.name, []).append(_schema)


def _oldest(op: str) -> int:
    return int(min(schema.since_version for schema in _SCHEMAS[op]))


def change_version(mutant: Mutant, rng: np.random.Generator) -> None:
    if not mutant.node.domain:
        oldest = _oldest(mutant.node.op_type)
        mutant.version = int(rng.integers(min(max(7, oldest), NEWEST), NEWEST + 1))
        mutant.changes.append(f"version {mutant.version}")


def change_types(mutant: Mutant, arrays: Arrays, rng: np.random.Generator) -> Arrays:
    """Another element type for one of the schema's type variables, for all inputs that share it."""
    try:
        schema = onnx.defs.get_schema(mutant.node.op_type, mutant.version, mutant.node.domain)
    except onnx.defs.SchemaError:
        return arrays
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    if not allowed:
        return arrays
    variable = sorted(allowed)[int(rng.integers(len(allowed)))]
    names = [t[7:-1] for t in allowed[variable] if t.startswith("tensor(") and t != "tensor(string)"]
    if not names:
        return arrays
    choice = str(rng.choice(sorted(names)))
    element = _element(choice)
    if element is None:
        return arrays
    mutant.changes.append(f"{variable}: {choice}")
    result = dict(arrays)
    formal = list(schema.inputs)
    for i, name in enumerate(mutant.node.input):
        port = formal[min(i, len(formal) - 1)] if formal else None
        if name and port is not None and port.type_str == variable:
            wide = arrays[name].astype(np.float64) if arrays[name].dtype.kind != "c" else arrays[name]
            low = 0 if np.dtype(element).kind in "u" else None
            result[name] = (np.maximum(wide, low) if low is not None else wide).astype(element)
    return result


def _element(name: str) -> Any:
    plain = {"float": np.float32, "double": np.float64, "bfloat16": ml_dtypes.bfloat16, "bool": np.bool_}
    if name in plain:
        return plain[name]
    return getattr(np, name) if name.startswith(("int", "uint", "float16")) and hasattr(np, name) else None


def leave_out(mutant: Mutant, arrays: Arrays, rng: np.random.Generator) -> Arrays:
    """Without the last inputs, or without the second output."""
    node = mutant.node
    if len(node.output) > 1 and rng.random() < 0.5:
        kept = list(node.output)[: int(rng.integers(1, len(node.output)))]
        del node.output[:]
        node.output.extend(kept)
    else:
        optional = [i for i in range(len(node.input)) if is_optional(mutant, i)]
        if not optional:
            return arrays
        place = int(rng.choice(optional))
        names = list(node.input)
        names[place] = ""
        while names and not names[-1]:
            names.pop()
        del node.input[:]
        node.input.extend(names)
    mutant.changes.append("left out")
    return {name: array for name, array in arrays.items() if name in node.input}


def is_optional(mutant: Mutant, place: int) -> bool:
    try:
        ports = onnx.defs.get_schema(mutant.node.op_type, mutant.version, mutant.node.domain).inputs
    except onnx.defs.SchemaError:
        return False
    if place >= len(ports):
        return True
    return bool(ports[place].option == onnx.defs.OpSchema.FormalParameterOption.Optional)


def change_attribute(mutant: Mutant, arrays: Arrays, pool: Pool, rng: np.random.Generator) -> None:
    node = mutant.node
    try:
        schema = onnx.defs.get_schema(node.op_type, mutant.version, node.domain)
    except onnx.defs.SchemaError:
        return
    if not schema.attributes:
        return
    name = sorted(schema.attributes)[int(rng.integers(len(schema.attributes)))]
    kept = [proto for proto in node.attribute if proto.name != name]
    present = [proto for proto in node.attribute if proto.name == name]
    rank = max((a.ndim for a in arrays.values()), default=0)
    kind = schema.attributes[name].type
    new: Any = None
    if rng.random() < 0.35 and (node.op_type, name) in pool.attributes:
        choices = pool.attributes[node.op_type, name]
        new = choices[int(rng.integers(len(choices)))]
    elif rng.random() < 0.15 and present and not schema.attributes[name].required:
        pass  # its default
    elif kind == onnx.defs.OpSchema.AttrType.INT:
        low, high = (-rank, rank) if "axis" in name or "axes" in name else (0, 2)
        value = int(rng.integers(low, max(high, low + 1)))
        if present and "axis" not in name and rng.random() < 0.5 and present[0].i > 1:
            value = max(0, present[0].i + int(rng.integers(-1, 3)))
        new = helper.make_attribute(name, value)
    elif kind == onnx.defs.OpSchema.AttrType.FLOAT:
        base = present[0].f if present else 1.0
        new = helper.make_attribute(name, float(np.float32(base * rng.uniform(0.3, 2) + rng.choice([0, 0, 0.25, -1]))))
    elif kind == onnx.defs.OpSchema.AttrType.INTS and present and len(present[0].ints):
        values = list(present[0].ints)
        if name in ("axes", "perm"):
            values = [int(v) for v in rng.permutation(rank)[: len(values)]]
            values = [v - rank if rng.random() < 0.3 and name == "axes" else v for v in values]
        else:
            place = int(rng.integers(len(values)))
            values[place] = max(0, values[place] + int(rng.integers(-1, 3)))
        new = helper.make_attribute(name, values)
    elif kind == onnx.defs.OpSchema.AttrType.INTS and name == "axes":
        new = helper.make_attribute(name, [int(v) for v in rng.permutation(rank)[: int(rng.integers(1, rank + 1))]])
    elif kind == onnx.defs.OpSchema.AttrType.INTS and name in ("strides", "dilations", "pads", "kernel_shape"):
        count = (rank - 2) * (2 if name == "pads" else 1)
        new = helper.make_attribute(name, [int(v) for v in rng.integers(0 if name == "pads" else 1, 4, max(count, 1))])
    else:
        return
    del node.attribute[:]
    node.attribute.extend(kept + ([new] if new is not None else []))
    mutant.changes.append(f"attribute {name}")


def change_parameters(mutant: Mutant, arrays: Arrays, parameters: set[str], rng: np.random.Generator) -> None:
    for name in sorted(parameters):
        array = arrays[name].copy()
        if not array.size or rng.random() < 0.3:
            continue
        flat = array.reshape(-1)
        choice = rng.random()
        if choice < 0.5:
            flat[rng.integers(flat.size)] += rng.integers(-2, 3)
        elif choice < 0.75:
            flat[:] = rng.permutation(flat)
        elif array.ndim:
            array = array[: int(rng.integers(0, array.size + 1))]
        arrays[name] = array
        mutant.changes.append(f"values of {name}")


def resize(
    mutant: Mutant, arrays: Arrays, parameters: set[str], rng: np.random.Generator, most: float, again: bool = False
) -> Arrays:
    """Other sizes. Sizes that are the same number stay the same number, except where sizes broadcast."""
    chance = rng.random()
    numbers = sorted({size for name, a in arrays.items() if name not in parameters for size in a.shape})
    changed = {}
    if chance < most and numbers:
        how_many = int(rng.integers(1, len(numbers) + 1))
        for number in rng.permutation(numbers)[:how_many]:
            near = int(number) + int(rng.integers(-2, 4))
            changed[int(number)] = max(0, near) if rng.random() < 0.5 else int(rng.choice(SIZES))
    alone = rng.random()
    result = {}
    places = [(name, i) for name, a in arrays.items() if name not in parameters for i in range(a.ndim)]
    chosen = places[int(rng.integers(len(places)))] if places and alone < 0.3 else None
    broadcast = rng.random() < 0.2 and not again and mutant.node.op_type in BROADCAST
    for name, array in arrays.items():
        if name in parameters:
            result[name] = array
            continue
        sizes = [changed.get(size, size) for size in array.shape]
        if chosen is not None:  # one dimension, whatever the others are
            sizes = list(array.shape)
            if chosen[0] == name:
                sizes[chosen[1]] = int(rng.choice(SIZES))
        if broadcast:
            sizes = [1 if rng.random() < 0.3 else size for size in sizes]
            sizes = sizes[int(rng.integers(0, len(sizes) + 1)) :] if rng.random() < 0.3 else sizes
        if int(np.prod(sizes)) > MOST:
            sizes = list(array.shape)
        same = tuple(sizes) == array.shape
        result[name] = array if same and rng.random() < 0.5 else draw(array, tuple(sizes), rng)
    if any(result[name].shape != array.shape for name, array in arrays.items()) and not again:
        mutant.changes.append("sizes")
    return result


def draw(array: Any, sizes: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Values like those of an array, in another shape: its domain stays."""
    count = int(np.prod(sizes))
    if array.size == 0:
        return np.zeros(sizes, array.dtype)
    picked = rng.choice(np.arange(array.size), count)
    values = array.reshape(-1)[picked].reshape(sizes)
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        finite = array.astype(np.float64)
        finite = finite[np.isfinite(finite)]
        whole = finite.size == 0 or bool((finite == np.round(finite)).all())
        if not whole:
            low, high = float(finite.min()), float(finite.max())
            return rng.uniform(low, high, sizes).astype(array.dtype)
    return values


def name_sizes(inputs: Sequence[Arrays], rng: np.random.Generator) -> dict[str, list[str]]:
    """A symbol for each dimension: all different, or one for those that are always equal."""
    apart = rng.random() < 0.5
    names: dict[tuple[int, ...], str] = {}
    result: dict[str, list[str]] = {}
    for name, first in inputs[0].items():
        row = []
        for i in range(first.ndim):
            sizes = tuple(arrays[name].shape[i] if arrays[name].ndim > i else -1 for arrays in inputs)
            row.append(f"{name}_{i}".replace(".", "_") if apart else names.setdefault(sizes, f"n{len(names)}"))
        result[name] = row
    return result


# ---- what is right ----


class SkipError(Exception):
    """The two implementations give no common answer."""


def oracle(mutant: Mutant, inputs: Arrays) -> list[Any]:
    """What both implementations give, where ONNX says what is right."""
    model = mutant.model(inputs, symbolic=False)
    feed = {name: array for name, array in inputs.items() if name not in mutant.constants}
    try:
        theirs = run_onnxruntime(model, feed)
    except Exception as error:
        raise SkipError(f"onnxruntime: {str(error)[:200]}") from error
    if any(each.size > 20 * MOST for each in theirs):
        raise SkipError("the output is large")
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            own = ReferenceEvaluator(model).run(None, {name: array.copy() for name, array in feed.items()})
    except Exception as error:
        raise SkipError(f"evaluator: {type(error).__name__} {str(error)[:200]}") from error
    if len(own) != len(theirs):
        raise SkipError("another number of outputs")
    for a, b in zip(own, theirs, strict=True):
        difference = differ(a, b)
        if difference:
            raise SkipError(f"they differ: {difference}")
    left_open = undefined(mutant, inputs, theirs)
    if left_open:
        raise SkipError(f"undefined: {left_open}")
    return list(theirs)


def undefined(mutant: Mutant, inputs: Arrays, outputs: list[Any]) -> str | None:
    """What ONNX leaves open or rules out, although the two implementations happen to do the same on this machine."""
    op, first = mutant.node.op_type, inputs[mutant.node.input[0]] if mutant.node.input[0] else None
    if op in ("Cast", "CastLike") and first is not None and outputs[0].dtype.kind in "iu":
        if first.dtype.kind in "fV" and not _in_range(first, outputs[0].dtype):
            return "a cast of a float to an integer type that does not hold it"
    one_sided = next((each.i for each in mutant.node.attribute if each.name == "onesided"), 1)
    if op == "STFT" and first is not None and first.ndim == 3 and first.shape[2] == 2 and one_sided:
        return "one side of the spectrum of complex numbers"
    return None


def _in_range(array: Any, integer: Any) -> bool:
    limits = np.iinfo(integer)
    whole = np.trunc(array.astype(np.float64))
    return bool(((whole >= float(limits.min)) & (whole < float(limits.max) + 1)).all())  # false for nan, too


def run_onnxruntime(model: Any, feed: Arrays) -> list[Any]:
    os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")  # it may be a version behind
    import onnxruntime as ort

    from tests import onnx_oracle

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnx_oracle.session(model, options)
    values = {}
    for name, array in feed.items():
        if array.dtype.kind == "V" or array.dtype.name == "bfloat16":
            number = helper.np_dtype_to_tensor_dtype(array.dtype)
            values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), number)
        else:
            values[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    outputs = session.run_with_ort_values(None, values)
    result = []
    for value in outputs:
        if not value.is_tensor():
            raise SkipError("no tensor")
        if value.element_type() == TensorProto.BFLOAT16:
            raise SkipError("bfloat16 does not come out of onnxruntime")
        result.append(value.numpy())
    return result


def differ(found: Any, want: Any) -> str | None:
    """How two arrays differ, or None where they do not."""
    if not isinstance(found, np.ndarray | np.generic) or not isinstance(want, np.ndarray | np.generic):
        return f"{type(found).__name__} instead of {type(want).__name__}"
    if found.shape != want.shape:
        return f"shape {found.shape} instead of {want.shape}"
    if found.dtype != want.dtype:
        return f"{found.dtype} instead of {want.dtype}"
    if want.dtype.kind in "biu":
        wrong = found != want
        return f"{int(wrong.sum())} of {wrong.size} differ" if wrong.any() else None
    rtol = {"float16": 4e-3, "bfloat16": 2e-2}.get(want.dtype.name, 1e-3)
    wide: Any = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = np.asarray(found).astype(wide), np.asarray(want).astype(wide)
    finite = np.abs(b[np.isfinite(b)])
    scale = float(finite.max()) if finite.size else 0.0
    close = np.isclose(a, b, rtol=rtol, atol=1e-7 + rtol * 1e-2 * min(scale, 1e3), equal_nan=True)
    if close.all():
        return None
    place = tuple(int(i) for i in np.argwhere(~close)[0])
    return f"{int((~close).sum())} of {close.size} differ, first at {place}: {a[place]} instead of {b[place]}"


# ---- smelt ----


def examine(index: int, mutant: Mutant, folder: Path, engine: str, device: str = "cpu") -> Outcome:
    """One mutant, in every variant; the first that is not right decides."""
    wanted: list[list[Any]] = []
    try:
        for inputs in mutant.inputs:
            wanted.append(oracle(mutant, inputs))
    except SkipError as skip:
        if not wanted:
            return Outcome(index, mutant.node.op_type, "skipped", detail=str(skip))
        mutant.inputs = mutant.inputs[: len(wanted)]
    mutant.types = [helper.np_dtype_to_tensor_dtype(each.dtype) for each in wanted[0]]
    outcome = judge(index, mutant, wanted, folder, engine, device)
    if device == "cpu" or outcome.status == "agree":
        return outcome
    return replace(outcome, processor=judge(index, mutant, wanted, folder, engine, "cpu").status)


def judge(index: int, mutant: Mutant, wanted: list[list[Any]], folder: Path, engine: str, device: str) -> Outcome:
    from smelt.errors import SmeltError, UnsupportedError

    op = mutant.node.op_type
    for variant, model, calls in variants(mutant):
        try:
            difference = compare(model, mutant, calls, wanted, folder, engine, device)
            if difference:
                return Outcome(index, op, "wrong", variant, difference, mutant.describe())
        except UnsupportedError as error:
            return Outcome(index, op, "refused", variant, _short(error), mutant.describe())
        except SmeltError as error:
            return Outcome(index, op, "wrong", variant, _short(error), mutant.describe())
        except Exception:
            return Outcome(index, op, "crashed", variant, traceback.format_exc()[-1500:], mutant.describe())
    return Outcome(index, op, "agree")


def variants(mutant: Mutant) -> Iterator[tuple[str, Any, list[int]]]:
    """Fixed sizes, a model for each; then symbols, one model for all. With each the inputs of its calls, by number."""
    for i, inputs in enumerate(mutant.inputs):
        yield "static", mutant.model(inputs, symbolic=False), [i]
    places = [*range(len(mutant.inputs))]
    yield "dynamic", mutant.model(mutant.inputs[0], symbolic=True), [*places, *places[1:], 0, 0]


def compare(
    model: Any, mutant: Mutant, calls: list[int], wanted: list[list[Any]], folder: Path, engine: str, device: str
) -> str | None:
    import smelt

    path = folder / "mutant.onnx"
    path.write_bytes(model.SerializeToString())
    loaded = smelt.load(path, engine=engine, device=device)
    for i in calls:
        inputs = mutant.inputs[i]
        found = loaded.run({name: array for name, array in inputs.items() if name not in mutant.constants})
        for name, expected in zip([name for name in mutant.node.output if name], wanted[i], strict=True):
            difference = differ(found[name], expected) if name in found else "it is missing"
            if difference:
                return f"{name} of inputs {i}: {difference}"
    loaded.close()
    return None


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' | '.join(str(error).split(chr(10)))}"[:500]


# ---- all of them ----


def serve(text: str, seed: int, engine: str, device: str) -> None:
    """A worker: reads numbers of mutants, answers each with a line of JSON.

    The work is done in a copy of the process: what kills it (onnxruntime, at times) costs one mutant and a new copy.
    """
    import smelt.model  # noqa: F401  once, for all copies

    device = find_name(device)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    pool = Pool(text)
    _answer(answers, len(pool.ops))
    while True:
        child = os.fork()
        if child == 0:
            try:
                _work(pool, seed, engine, device, answers)
            finally:
                os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return
        _answer(answers, asdict(Outcome(-1, "", "skipped", detail="the process died")))


def _work(pool: Pool, seed: int, engine: str, device: str, answers: Any) -> None:
    seconds = SECONDS if device == "cpu" else ELSEWHERE
    signal.signal(signal.SIGALRM, partial(_alarm, seconds))
    with tempfile.TemporaryDirectory() as folder, os.fdopen(0, "rb", buffering=0, closefd=False) as lines:
        while line := lines.readline():  # unbuffered: the next copy reads on where this one ended
            index = int(line)
            signal.alarm(seconds)
            try:
                outcome = examine(index, pool.mutant(seed, index), Path(folder), engine, device)
            except Exception:
                outcome = Outcome(index, "", "skipped", detail="no mutant: " + traceback.format_exc()[-600:])
            finally:
                signal.alarm(0)
            _answer(answers, asdict(outcome))


def _answer(answers: Any, record: Any) -> None:
    answers.write(json.dumps(record) + "\n")
    answers.flush()


def _alarm(seconds: int, number: int, frame: Any) -> None:
    raise TimeoutError(f"more than {seconds} s")


def run_mutants(
    seed: int,
    count: int,
    *,
    text: str = "",
    engine: str = "reference",
    device: str = "cpu",
    jobs: int = 1,
    seconds: float | None = None,
) -> list[Outcome]:
    """`count` mutants, or as many as the time allows; a worker that an implementation kills is started again."""
    deadline = time.monotonic() + seconds if seconds is not None else None
    todo = iter(range(count))
    lock = threading.Lock()
    found: list[Outcome] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--worker", "--seed", str(seed), "--filter", text]
        command += ["--engine", engine, "--device", device]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the worker did not start")
        return process

    def work() -> None:
        process = start()
        while True:
            with lock:
                index = next(todo, None)
            if index is None or (deadline is not None and time.monotonic() > deadline):
                break
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{index}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                raise RuntimeError(f"the worker died at mutant {index} of seed {seed}")
            found.append(Outcome(**{**json.loads(answer), "index": index}))
        process.kill()
        process.communicate()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found, key=lambda outcome: outcome.index)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Mutants of the official ONNX node cases.")
    parser.add_argument("--filter", default="", help="operators or parts of cases' names, between commas")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", help="default: reference; native on another device than the processor")
    parser.add_argument("--device", default="cpu", help="of the native engine: cpu, cuda, or emulated, without a GPU")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", type=int, help="one mutant, in this process")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.engine = options.engine or ("reference" if options.device == "cpu" else "native")
    if options.worker:
        serve(options.filter, options.seed, options.engine, options.device)
        return 0
    if options.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            mutant = Pool(options.filter).mutant(options.seed, options.only)
            outcome = examine(options.only, mutant, Path(folder), options.engine, find_name(options.device))
        print(mutant.describe(), *asdict(outcome).values(), sep="\n")
        return 0
    outcomes = run_mutants(
        options.seed,
        options.count,
        text=options.filter,
        engine=options.engine,
        device=options.device,
        jobs=options.jobs,
        seconds=options.seconds,
    )
    for outcome in outcomes:
        if outcome.status not in ("agree", "skipped"):
            last = outcome.detail.strip().splitlines()[-1] if outcome.detail.strip() else ""
            also = f" (on the processor: {outcome.processor})" if outcome.processor else ""
            print(f"{outcome.index} {outcome.status} {outcome.variant}{also}: {last[:250]}\n    {outcome.mutant[:400]}")
    print(dict(Counter(outcome.status for outcome in outcomes)), f"seed {options.seed}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n", "utf-8")
    return int(any(outcome.status in ("wrong", "crashed") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
