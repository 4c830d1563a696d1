"""A compiled model as data: programs, each with code for several processors, their arrays, and where it all came from.

Executables give it (`stored`), `write` turns it into a file, `load` reads it back. Arrays and code may lie in a mapped
file: nothing here copies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from smelt.bundle.entry import Entry
from smelt.dtype import Array
from smelt.engine_api import KernelUse, Signature

Bytes: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Code:
    """A library for one kind of processor: it runs where all features are there."""

    target: str
    machine: str
    features: tuple[str, ...]
    library: Bytes


@dataclass(frozen=True, slots=True)
class Variant:
    """A program lowered for one layout of weights. `text` is StableHLO, compressed, to compile it again from.

    `bound` is None where the weights are still to be given; then there is a `prepare`.
    """

    tile: tuple[int, int, int]  # rows, columns, lanes: the products' registers and the width of packed weights
    text: Bytes
    main: Entry
    constants: tuple[Array, ...]
    prepare: Entry | None
    prepare_constants: tuple[Array, ...]
    bound: tuple[Array, ...] | None
    codes: tuple[Code, ...]


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """One program. `values` and `shapes`: the inputs for which it was made, where those shape it."""

    signature: Signature
    kernels: tuple[KernelUse, ...]
    variants: tuple[Variant, ...]
    provenance: Mapping[str, str]  # compiler, flags
    values: Mapping[str, Array] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuntimeCode:
    """The runtime library for any processor of a machine; `made_of` is a digest of its source."""

    machine: str
    made_of: str
    library: Bytes


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A whole model. `static` and `by_size`: what shapes the program, where several programs are there."""

    name: str
    signature: Signature
    programs: tuple[StoredProgram, ...]
    runtimes: tuple[RuntimeCode, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    static: tuple[str, ...] = ()
    by_size: bool = False
    provenance: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Storable(Protocol):
    """An executable that can be written to a file."""

    def stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """Everything about it, with code for the named processors; none named: this machine's kind, and any other."""
        ...
