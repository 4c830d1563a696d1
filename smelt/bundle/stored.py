"""A compiled model as data: programs with code for several targets, their arrays, and their provenance.

`to_stored` makes one from an executable, `bundle.write` writes it, `run.load` reads it back. Arrays may be views
of a mapped file. Code is read and checked on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

from smelt.device.entry import Entry
from smelt.device.runtime import ABI
from smelt.dtype import Array
from smelt.engine_api import KernelUse, Signature
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen

NOTHING: Mapping[str, Any] = MappingProxyType({})
Read: TypeAlias = Callable[[], bytes]  # returns bytes after their check


class Code(Frozen):
    """Code for one target, with the target as data (`Target.as_json`). It runs on devices that have all features."""

    target: str
    about: Mapping[str, Any]
    library: Read

    @property
    def device(self) -> str:
        """The kind of device: `cpu`."""
        return str(self.about["device"])

    @property
    def machine(self) -> str:
        return str(self.about["name"])

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(self.about["features"])


class Variant(Frozen):
    """A program lowered for one layout of packed weights. `text`: its StableHLO, compressed, to recompile it from.

    `bound` is None where the weights are not bound yet; then there is a `prepare`.
    """

    tile: tuple[int, int, int]  # rows, columns, lanes of the register tile: the width of packed panels
    text: Read
    main: Entry
    constants: tuple[Array, ...]
    prepare: Entry | None
    prepare_constants: tuple[Array, ...]
    bound: tuple[Array, ...] | None
    codes: tuple[Code, ...]


class StoredProgram(Frozen):
    """One program. `values` and `shapes`: the compile-time inputs that it is specialised to."""

    signature: Signature
    kernels: tuple[KernelUse, ...]
    variants: tuple[Variant, ...]
    provenance: Mapping[str, str]  # compiler, flags
    values: Mapping[str, Array] = NOTHING
    shapes: Mapping[str, tuple[int, ...]] = NOTHING


class RuntimeCode(Frozen):
    """The runtime library for the baseline ISA of a machine; `made_of` is a digest of its source."""

    machine: str
    made_of: str
    library: Read


class StoredModel(Frozen):
    """A whole model. `static` and `by_size`: which inputs, or whether all sizes, select one of several programs."""

    name: str
    signature: Signature
    programs: tuple[StoredProgram, ...]
    runtimes: tuple[RuntimeCode, ...]
    metadata: Mapping[str, str] = NOTHING
    static: tuple[str, ...] = ()
    by_size: bool = False
    provenance: Mapping[str, str] = NOTHING
    abi: int = ABI  # between the code and the runtime library
    files: Mapping[str, Read] = NOTHING  # what belongs to the model besides programs: a tokenizer, say


@runtime_checkable
class Storable(Protocol):
    """An executable that can be written to a file."""

    def to_stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """The content of its bundle, with code for these targets; by default for this processor and the baseline."""
        ...


def to_stored(executable: object, targets: Sequence[str]) -> StoredModel:
    """The content of an executable's bundle. Only the native engine's can be saved."""
    if not isinstance(executable, Storable):
        raise UnsupportedError(
            "this program cannot be saved",
            expected="an executable of the native engine",
            got=type(executable).__name__,
            remedy='compile it with engine="native"',
        )
    return executable.to_stored(targets)
