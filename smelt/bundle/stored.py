"""A compiled model as data: programs, each with code for several processors, their arrays, and where it all came from.

Executables give it (`stored`), `write` turns it into a file, `load` reads it back. Arrays may lie in a mapped file, and
code is read and checked when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

from smelt.bundle.entry import Entry
from smelt.device.runtime import ABI
from smelt.dtype import Array
from smelt.engine_api import KernelUse, Signature
from smelt.frozen import Frozen

NOTHING: Mapping[str, Any] = MappingProxyType({})
Read: TypeAlias = Callable[[], bytes]  # gives bytes that were checked


class Code(Frozen):
    """A library for one kind of processor: it runs where all features are there."""

    target: str
    machine: str
    features: tuple[str, ...]
    library: Read


class Variant(Frozen):
    """A program lowered for one layout of weights. `text` is StableHLO, compressed, to compile it again from.

    `bound` is None where the weights are still to be given; then there is a `prepare`.
    """

    tile: tuple[int, int, int]  # rows, columns, lanes: the products' registers and the width of packed weights
    text: Read
    main: Entry
    constants: tuple[Array, ...]
    prepare: Entry | None
    prepare_constants: tuple[Array, ...]
    bound: tuple[Array, ...] | None
    codes: tuple[Code, ...]


class StoredProgram(Frozen):
    """One program. `values` and `shapes`: the inputs for which it was made, where those shape it."""

    signature: Signature
    kernels: tuple[KernelUse, ...]
    variants: tuple[Variant, ...]
    provenance: Mapping[str, str]  # compiler, flags
    values: Mapping[str, Array] = NOTHING
    shapes: Mapping[str, tuple[int, ...]] = NOTHING


class RuntimeCode(Frozen):
    """The runtime library for any processor of a machine; `made_of` is a digest of its source."""

    machine: str
    made_of: str
    library: Read


class StoredModel(Frozen):
    """A whole model. `static` and `by_size`: what shapes the program, where several programs are there."""

    name: str
    signature: Signature
    programs: tuple[StoredProgram, ...]
    runtimes: tuple[RuntimeCode, ...]
    metadata: Mapping[str, str] = NOTHING
    static: tuple[str, ...] = ()
    by_size: bool = False
    provenance: Mapping[str, str] = NOTHING
    abi: int = ABI  # between the code and the runtime library


@runtime_checkable
class Storable(Protocol):
    """An executable that can be written to a file."""

    def stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """Everything about it, with code for the named processors; none named: this machine's kind, and any other."""
        ...
