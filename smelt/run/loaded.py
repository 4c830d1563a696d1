"""A loaded model, called by its input names: compiled from a file, or read from a bundle.

`smelt.load` returns it. `save` writes a bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from smelt.buffer import Buffer, as_array
from smelt.bundle.stored import NOTHING, Read, StoredModel, to_stored
from smelt.device.api import Memory
from smelt.dtype import Array
from smelt.engine_api import Closing, Compiling, Executable, KernelUse, Port, Signature, Trimmable
from smelt.errors import RunError, UnsupportedError
from smelt.files import check_folder
from smelt.frozen import Frozen
from smelt.run.executable import NativeExecutable
from smelt.stop import Cancel, Stop

if TYPE_CHECKING:
    from pathlib import Path


def _label(port: Port, result: Array | Buffer) -> Array:
    """An output as an array, or as strings if the port has labels."""
    array = as_array(result)
    if not port.labels:
        return array
    if array.size and not 0 <= array.min() <= array.max() < len(port.labels):
        got = f"numbers from {array.min()} to {array.max()}"
        raise RunError(f"{port.name}: a result without a label", expected=f"0 to {len(port.labels) - 1}", got=got)
    return np.array(port.labels, object)[array]


class Defaults(Frozen):
    """Optional inputs, and the programs that take some of them, compiled on demand."""

    ports: Callable[[], tuple[Port, ...]]
    build: Callable[[tuple[str, ...]], Executable]


class LoadedModel(Closing):
    """A model that can be called by its own input names, NumPy in and NumPy out."""

    def __init__(
        self,
        name: str,
        engine: str,
        executable: Executable,
        metadata: Mapping[str, str],
        provenance: Mapping[str, str] = MappingProxyType({}),
        source: Path | None = None,
        defaults: Defaults | None = None,
        files: Mapping[str, Read] = NOTHING,
    ) -> None:
        self.name = name
        self.engine = engine
        self.metadata = metadata
        self.provenance = dict(provenance)  # provenance from the bundle
        self.files = files  # what else the bundle holds
        self._source = source  # the source file
        self._executable = executable
        self._defaults = defaults
        self._fed: dict[tuple[str, ...], Executable] = {}  # by the optional inputs of a call
        self._remedy: str | None = None  # where no more is compiled

    @property
    def static(self) -> tuple[str, ...]:
        """The compile-time inputs that are known so far."""
        from smelt.run.per_value import PerValue  # running a bundle does not import it

        return self._executable.static if isinstance(self._executable, PerValue) else ()

    @property
    def shaped(self) -> bool:
        """Whether the program depends on values or sizes of inputs: it compiles at the first call with new ones."""
        from smelt.run.per_value import PerValue

        return isinstance(self._executable, PerValue)

    @property
    def signature(self) -> Signature:  # type: ignore[override]
        return self._executable.signature

    @property
    def optional(self) -> tuple[Port, ...]:
        """Inputs with a default value. A call may give them by name."""
        return self._defaults.ports() if self._defaults is not None else ()

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """The name of the engine that runs the model."""
        return self._executable.kernels

    @property
    def executable(self) -> Executable:
        """What computes, on flat lists of arrays."""
        return self._executable

    @property
    def memory(self) -> Memory | None:
        """Bytes in use; None if the engine does not say, or several programs share them."""
        return self._executable.memory if isinstance(self._executable, NativeExecutable) else None

    def __call__(self, *positional: Any, **named: Any) -> dict[str, Array]:
        """Run it. Inputs go by position or by name; outputs come back by name.

        With `timeout` (seconds) a call that takes longer raises `TimedOutError`; with `cancel`, a `smelt.Cancel()`,
        another thread can end this call and no other. Where inputs have these names, `run` takes both.
        """
        stop = self._stop(named) if "timeout" in named or "cancel" in named else None
        return self._call(positional, named, stop)

    def _stop(self, named: dict[str, Any]) -> Stop | None:
        """Remove `timeout` and `cancel` from the keywords, unless inputs have these names."""
        ports = (*self.signature.inputs, *(self._defaults.ports() if self._defaults else ()))
        own = {port.name for port in ports}
        return Stop.of(**{name: named.pop(name) for name in ("timeout", "cancel") if name in named.keys() - own})

    def _call(self, positional: tuple[Any, ...], named: Mapping[str, Any], stop: Stop | None) -> dict[str, Array]:
        ports = self.signature.inputs
        if not positional and len(named) == len(ports) and all(port.name in named for port in ports):
            return self._run(self._executable, named, stop)
        executable = self._for(named)
        ports = executable.signature.inputs
        given: dict[str, Any] = dict(zip([port.name for port in self.signature.inputs], positional, strict=False))
        if len(positional) > len(self.signature.inputs) or set(given) & set(named):
            raise RunError(
                f"{self.name}: inputs given twice, or too many",
                expected=[port.name for port in ports],
                remedy=_example(ports),
            )
        given |= named
        missing = [port.name for port in ports if port.name not in given]
        unknown = sorted(set(given) - {port.name for port in ports})
        if missing or unknown:
            raise RunError(
                f"{self.name}: the inputs do not fit",
                expected={port.name: port.shape for port in ports},
                got=", ".join([*(f"no {name}" for name in missing), *(f"unknown {name}" for name in unknown)]),
                remedy=_example(ports),
            )
        return self._run(executable, given, stop)

    def _run(self, executable: Executable, given: Mapping[str, Any], stop: Stop | None) -> dict[str, Array]:
        outputs = executable(*[given[port.name] for port in executable.signature.inputs], stop=stop)
        return {port.name: _label(port, array) for port, array in zip(self.signature.outputs, outputs, strict=True)}

    def _for(self, named: Mapping[str, Any]) -> Executable:
        """The program for a call: a separate one for each set of optional inputs."""
        known = {port.name for port in self.signature.inputs}
        if self._defaults is None or named.keys() <= known:
            return self._executable
        fed = tuple(sorted({port.name for port in self._defaults.ports()} & named.keys() - known))
        if not fed:
            return self._executable
        if fed not in self._fed:
            if self._remedy is not None:
                raise UnsupportedError(
                    f"{self.name}: no program is compiled for these optional inputs", got=fed, remedy=self._remedy
                )
            self._fed[fed] = self._defaults.build(fed)
        return self._fed[fed]

    def run(
        self, inputs: Mapping[str, Any], *, timeout: float | None = None, cancel: Cancel | None = None
    ) -> dict[str, Array]:
        """Run with a dictionary, for inputs whose names are not Python identifiers."""
        given: Any = inputs
        if not isinstance(given, Mapping):
            ports = self.signature.inputs
            got = type(given).__name__
            raise RunError(
                f"{self.name}: run takes a dictionary", expected="names → arrays", got=got, remedy=_example(ports)
            )
        return self._call((), inputs, Stop.of(timeout, cancel))

    def stop_compiling(self, remedy: str = "call it with such inputs before") -> None:
        """From now on, refuse calls that would compile: with new values of compile-time inputs, or sizes that break
        the program's assumptions."""
        self._remedy = remedy
        for each in (self._executable, *self._fed.values()):
            if isinstance(each, Compiling):
                each.stop_compiling(remedy)

    def trim(self) -> None:
        """Free the memory pooled for later calls. Later calls free what was idle for some seconds anyway."""
        for each in (self._executable, *self._fed.values()):
            if isinstance(each, Trimmable):
                each.trim()

    def save(self, path: str | Path, *, targets: Sequence[str] = (), private_key: str | Path | None = None) -> None:
        """Write it as a bundle, one file that loads without a compiler: `smelt.load("model.smelt")`.

        `targets` names processors (avx512, avx512vnni, avx2, neon, plain); none: this machine's kind, and plain for
        any other. `private_key` is a file with an Ed25519 key that signs the bundle.
        """
        from smelt.bundle.write import write

        check_folder(path)
        write(path, self._to_stored(targets), private_key)

    def serialize(self, *, targets: Sequence[str] = (), private_key: str | Path | None = None) -> bytes:
        """The bytes that `save` writes."""
        from smelt.bundle.write import serialize

        return serialize(self._to_stored(targets), private_key)

    def _to_stored(self, targets: Sequence[str]) -> StoredModel:
        from smelt.bundle.write import source_record

        stored = to_stored(self._executable, targets)
        source = source_record(self._source) if self._source is not None else {}
        provenance = self.provenance | source
        return stored.replace(name=self.name, metadata=self.metadata, provenance=provenance, files=self.files)

    def close(self) -> None:
        """Release programs and weights now instead of when the model is collected; `with` calls it at the end."""
        for each in (self._executable, *self._fed.values()):
            each.close()
        self._fed.clear()

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"{self.name}: a loaded model cannot be pickled or copied: it holds compiled code",
            remedy="pass the path and load it in the other process, or save() a bundle, which loads without a compiler",
        )

    def __repr__(self) -> str:
        ports = ", ".join(f"{port.name}: {port.shape}" for port in self.signature.inputs)
        return f"<{self.name}({ports}) on {self.engine}>"

    def _repr_html_(self) -> str:
        return self.signature.html(f"{self.name} on {self.engine}")


def _example(ports: Sequence[Port]) -> str:
    """An example call with every input by name."""
    return f"model.run({{{', '.join(f'{port.name!r}: …' for port in ports)}}})"
