"""A file that can be read only once some inputs or sizes are known, read with sample values where none are given.

`preflight(path)` finds out which inputs and sizes those are, as `smelt.load` does at the first call, and
looks for values with which as many nodes as possible can be read. The command line calls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dim import evaluate, symbols_in_order
from smelt.errors import ShapeError, SmeltError, UnsupportedError
from smelt.read.onnx.file.tensors import STRING, element_type
from smelt.read.onnx.graph import StaticError
from smelt.read.onnx.survey import Finding, Survey, survey

_SIZES = (2, 16, 64, 256, 1024)  # tried where 1 does not do
_VALUES = ("zeros", "order", "minus one")  # tried where ones do not do
_MOST_READINGS = 40


@dataclass(frozen=True, slots=True)
class Preflight:
    """A file as it was read: the last reading, and what was given to it."""

    survey: Survey
    open: Survey  # the reading with dynamic dimensions, before any sample was chosen
    static: dict[str, Any]  # compile-time inputs: given values, and samples
    sizes: dict[str, int]  # of the inputs: given ones, else 1 or a sample
    reasons: dict[str, Finding]  # why each static input is one; "" stands for the sizes
    guessed: frozenset[str]  # static inputs whose value is a sample, and symbols whose number is one

    @property
    def by_size(self) -> bool:
        """Whether the program is another one for other sizes."""
        return "" in self.reasons

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The sizes of the inputs that the program was made for, if it is for these alone."""
        return _shapes(self.open, self.sizes, self.static) if self.by_size else {}


def preflight(path: str | Path, static: Mapping[str, Any], sizes: Mapping[str, int]) -> Preflight:
    """Read a file, with sample values for compile-time inputs that were not given."""
    first = survey(path, static)
    names = [port.name for port in first.message.graph.input]
    unknown = [name for name in static if name not in names]
    if unknown:
        raise UnsupportedError(f"{path}: no input {unknown[0]!r}", expected=", ".join(names) or "no inputs")
    search = _Search(path, first, dict(static), dict(sizes))
    unknown = [name for name in sizes if name not in search.symbols]
    if unknown:
        expected = ", ".join(search.symbols) or "none: every size is fixed"
        raise ShapeError("the inputs have no such size", expected=expected, got=unknown[0])
    return search.result()


@dataclass(slots=True)
class _Search:
    """Readings of one file, each with more given or with other samples."""

    path: str | Path
    first: Survey
    given: dict[str, Any]
    given_sizes: dict[str, int]
    reasons: dict[str, Finding] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)  # how each sample is made, by input
    numbers: dict[str, int] = field(default_factory=dict)
    by_size: dict[str, Finding] = field(default_factory=dict)  # what asked for fixed sizes, by its place
    symbols: tuple[str, ...] = ()
    readings: int = 1

    def __post_init__(self) -> None:
        self.symbols = symbols_in_order(*(size for shape in self.first.inputs.values() for size in shape.sizes))
        self.numbers = dict.fromkeys(self.symbols, 1) | self.given_sizes

    def result(self) -> Preflight:
        best = self.complete(self.first)
        for kept, name, options in list(self.knobs()):
            for option in options:
                if not best.faults or self.readings >= _MOST_READINGS:
                    break
                before, kept[name] = kept.get(name), option
                found = self.complete(self.read())
                if found.faults < best.faults:
                    best = found
                elif before is None:
                    del kept[name]
                else:
                    kept[name] = before
        self.forget_vain_needs(best)
        made_up = {name for name in self.reasons if name not in self.given and name}
        if "" in self.reasons:
            made_up |= set(self.symbols) - set(self.given_sizes)
        return Preflight(best, self.first, self.static(), dict(self.numbers), self.reasons, frozenset(made_up))

    def forget_vain_needs(self, best: Survey) -> None:
        """A node that cannot be read with fixed sizes either is no reason to fix them."""
        vain = {problem.place for problem in best.problems}
        if "" in self.reasons:
            del self.reasons[""]
            helped = [need for place, need in self.by_size.items() if place not in vain]
            self.reasons |= {"": helped[0]} if helped else {}

    def knobs(self) -> Iterator[tuple[dict[str, Any], str, tuple[Any, ...]]]:
        """What may be varied: where it is kept, its name, and what to try."""
        for name in self.reasons:
            if name and name not in self.given:
                yield self.choices, name, _VALUES
        for name in self.symbols:
            if "" in self.reasons and name not in self.given_sizes:
                yield self.numbers, name, _SIZES

    def complete(self, found: Survey) -> Survey:
        """Read again until no further input is needed."""
        while self.learn(found):
            found = self.read()
        return found

    def learn(self, found: Survey) -> bool:
        before = len(self.reasons)
        for need in found.needs:
            assert isinstance(need.error, StaticError)
            names = [*need.error.inputs, *([""] if need.error.sizes and not need.error.inputs else ())]
            for name in names:
                self.reasons.setdefault(name, need)
                if not name:
                    self.by_size.setdefault(need.place, need)
        return len(self.reasons) > before

    def read(self) -> Survey:
        self.readings += 1
        static = self.static()
        guessed = {name for name in static if name not in self.given}
        shapes = _shapes(self.first, self.numbers, static) if "" in self.reasons else {}
        if shapes and set(self.symbols) - set(self.given_sizes):
            guessed |= {name for name in shapes if not self.first.inputs[name].is_static}
        return survey(self.path, static, shapes, frozenset(guessed))

    def static(self) -> dict[str, Any]:
        values = dict(self.given)
        for port in self.first.message.graph.input:
            if port.name in self.reasons and port.name not in values:
                shape = self.first.inputs.get(port.name)
                known = None if shape is None else tuple(evaluate(size, self.numbers) for size in shape.sizes)
                try:
                    values[port.name] = sample(port.type, known, self.choices.get(port.name, "ones"))
                except SmeltError:
                    continue  # a type that no sample can be made of: the input stays unknown
        return values


def sample(proto: Any, sizes: tuple[int, ...] | None, choice: str) -> Any:
    """A value of a declared type; dynamic dimensions are 1."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return [sample(proto.sequence_type.elem_type, None, choice)]
    if kind == "optional_type":
        return sample(proto.optional_type.elem_type, None, choice)
    if kind != "tensor_type" or not proto.tensor_type.HasField("shape"):
        raise UnsupportedError("no sample can be made of this type", got=kind or "no type")
    tensor = proto.tensor_type
    if sizes is None:
        sizes = tuple(dim.dim_value if dim.dim_value > 0 else 1 for dim in tensor.shape.dim)
    if tensor.elem_type == STRING:
        return np.full(sizes, "a", object)
    element = element_type(tensor.elem_type, "a sample").numpy
    if choice == "order":
        return np.arange(int(np.prod(sizes, dtype=np.int64))).reshape(sizes).astype(element)
    numbers = {"ones": 1, "zeros": 0, "minus one": -1}
    return np.full(sizes, numbers[choice]).astype(element)


def _shapes(first: Survey, numbers: Mapping[str, int], static: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(evaluate(size, numbers) for size in shape.sizes)
        for name, shape in first.inputs.items()
        if name not in static
    }
