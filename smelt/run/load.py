"""A bundle → a model: check it, map it, load the code for this processor. Nothing is compiled.

`smelt.load` and `smelt.deserialize` call it. If a bundle has no code for this machine, it calls the caller's
`recompile`, because this folder may not import the compiler.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from smelt.buffer import parse_bytes
from smelt.bundle import container, record, sign
from smelt.bundle.container import Container
from smelt.bundle.stored import Code, RuntimeCode, StoredModel, StoredProgram, Variant
from smelt.device import runtime
from smelt.device.api import Arrays, Device
from smelt.device.entry import Entry
from smelt.device.library import load_library
from smelt.device.registry import find_device, is_device
from smelt.engine_api import Executable, Signature
from smelt.errors import DeviceError, FileError, ShapeError, UnsupportedError
from smelt.files import open_regular, read_bytes
from smelt.frozen import Frozen
from smelt.run.executable import NativeExecutable
from smelt.run.loaded import LoadedModel

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.device.program import Account
    from smelt.run.per_value import Shapes, Values

# (compressed text, tile, signature, bound arrays, device) → the program, compiled here
Recompile: TypeAlias = Callable[[bytes, tuple[int, int, int], Signature, Arrays | None, Device], NativeExecutable]

Limit: TypeAlias = tuple[int, Mapping[str, int]]  # bytes, and the sizes of a call that must fit

SUFFIX = ".smelt"
PJRT = b"smelt pjrt"  # magic of the pjrt engine's files


def load(
    path: str | Path,
    recompile: Recompile,
    *,
    device: str = "auto",
    engine: str = "auto",
    static: Mapping[str, Any] | None = None,
    memory_limit: int | str | None = None,
    precision: str = "f32",
    sizes: Mapping[str, int] | None = None,
    tune: float | None = None,
    verify: bool | None = None,
    keys: Sequence[str] | None = None,
) -> LoadedModel:
    """A model from a bundle.

    The head, the manifest and the code are always checked by their digests before they are used. The rest is compared
    with a checksum, which detects damage. `verify=True`, or configured keys, compare digests, which detect tampering.
    `verify=False` skips both. `memory_limit` bounds the arrays that stay in memory and all calls together, with their
    results while they run; a call at `sizes` (else 1) has to fit.
    """
    options = (("static", static), ("tune", tune), ("precision", precision != "f32"))
    asked = [name for name, given in options if given]
    if asked or not is_device(device) or engine not in ("auto", "native"):
        raise UnsupportedError(
            f"{path} is compiled already, for the native engine",
            expected="memory_limit, sizes, verify and keys as the only options",
            got=", ".join([*asked, f"device={device}", f"engine={engine}"]),
            remedy="load the original model with these options",
        )
    limit = None if memory_limit is None else (parse_bytes(memory_limit, "memory_limit"), sizes or {})
    gate = Gate(keys)
    bundle = container.open_file(path, gate.admit)
    try:
        return _Reader(bundle, recompile, verify, gate, limit, find_device(device)).model()
    finally:
        bundle.close()


def deserialize(
    data: bytes | bytearray | memoryview,
    recompile: Recompile,
    *,
    verify: bool | None = None,
    keys: Sequence[str] | None = None,
) -> Executable:
    """The executable that `serialize()` wrote; it takes and returns arrays by position."""
    gate = Gate(keys)
    return _Reader(container.open_bytes(data, admit=gate.admit), recompile, verify, gate).executable()


class Gate:
    """Check the signature of anything with code, before its format is read.

    If keys are configured, a file that none of them signed is refused.
    """

    def __init__(self, keys: Sequence[str] | None = None) -> None:
        self.keys = sign.trusted_keys(keys)

    def admit(self, name: str, head: bytes) -> None:
        """Refuse a file that none of the keys signed, by its head."""
        if self.keys:
            sign.verify(name, self.keys, container.seal_of(head))


def foreign(path: str | Path, keys: Sequence[str] | None = None) -> bytes | None:
    """The bytes of a file that the pjrt engine saved; None for a bundle."""
    with os.fdopen(open_regular(path), "rb") as file:
        head = file.read(container.HEAD)
        Gate(keys).admit(str(path), head)
        return read_bytes(path) if head.startswith(PJRT) else None


def has_file(path: str | Path, name: str, keys: Sequence[str] | None = None) -> bool:
    """Whether a bundle holds a file of this name besides its programs. Nothing else of its manifest is checked."""
    bundle = container.open_file(path, Gate(keys).admit)
    bundle.close()
    files = bundle.manifest.get("files", {})
    return isinstance(files, dict) and name in files


def describe(path: str | Path) -> dict[str, Any]:
    """The description of a bundle. Only its head and manifest are read."""
    bundle = container.open_file(path)
    bundle.close()
    found = _read(bundle)
    codes = [code for program in found.programs for variant in program.variants for code in variant.codes]
    return {
        "name": found.name,
        "smelt": bundle.manifest.get("smelt"),
        "signature": found.signature,
        "targets": list(dict.fromkeys(code.target for code in codes)),
        "programs": len(found.programs),
        "static": list(found.static),
        "files": list(found.files),
        "bytes": bundle.start + len(bundle.body),
        "signed": bundle.seal.public_key.hex() if bundle.seal.signature != bytes(64) else None,
        "metadata": dict(found.metadata),
        "provenance": {**found.provenance, **found.programs[0].provenance},
    }


def read_stored(path: str | Path) -> StoredModel:
    """The content of a bundle. Its head and manifest are read; texts and code are read and checked on demand."""
    bundle = container.open_file(path)
    bundle.close()
    return _read(bundle)


class Loaded(Frozen):
    """One code of a bundle as an executable, or why it cannot run here."""

    program: StoredProgram
    variant: Variant
    code: Code
    absent: str
    executable: NativeExecutable | None


def every_code(path: str | Path, recompile: Recompile, *, keys: Sequence[str] | None = None) -> tuple[Loaded, ...]:
    """All code of a bundle, after a check of every digest."""
    gate = Gate(keys)
    bundle = container.open_file(path, gate.admit)
    try:
        return _Reader(bundle, recompile, True, gate).every_code()
    finally:
        bundle.close()


class _Reader:
    """Turns one bundle into executables."""

    def __init__(
        self,
        bundle: Container,
        recompile: Recompile,
        verify: bool | None,
        gate: Gate,
        limit: Limit | None = None,
        device: Device | None = None,
    ) -> None:
        self.bundle, self.recompile = bundle, recompile
        self.device = device or find_device()
        self.stored = _read(bundle)
        here = self._runtime()
        self.limit: tuple[Account, Mapping[str, int]] | None = None
        if limit is not None:
            self.limit = (self.device.account(limit[0]), limit[1])
        if verify is not False or gate.keys:
            bundle.check_body(here, complete=bool(verify or gate.keys))

    def model(self) -> LoadedModel:
        stored = self.stored
        executable = self.executable()
        return LoadedModel(stored.name, "native", executable, stored.metadata, stored.provenance, files=stored.files)

    def executable(self) -> Executable:
        stored = self.stored
        if not (stored.static or stored.by_size):
            return self._first_fitting(stored.programs)
        from smelt.run.per_value import PerValue, key_of  # most bundles start faster without it

        groups: dict[Hashable, list[StoredProgram]] = {}
        for each in stored.programs:
            groups.setdefault(key_of(each.values, each.shapes), []).append(each)
        known = [(group[0].values, group[0].shapes, self._first_fitting(tuple(group))) for group in groups.values()]
        return PerValue(stored.signature, stored.static, stored.by_size, self._refuse, known)

    def _first_fitting(self, programs: tuple[StoredProgram, ...]) -> Executable:
        """Programs for the same compile-time inputs: each serves sizes that break the assumptions of those before."""
        first = self._program(programs[0])
        if len(programs) == 1:
            return first
        from smelt.run.per_value import Fallback

        return Fallback(first, partial(self._first_fitting, programs[1:]), programs)

    def every_code(self) -> tuple[Loaded, ...]:
        return tuple(
            Loaded(program, variant, code, absent, None if absent else self._link(program, variant, code))
            for program in self.stored.programs
            for variant in program.variants
            for code in variant.codes
            for absent in [self._absent(code)]
        )

    def _program(self, program: StoredProgram) -> NativeExecutable:
        fitting = [
            (self.device.preference(code.machine, code.features), variant, code)
            for variant in program.variants
            for code in variant.codes
            if code.device == self.device.kind and not self._absent(code)
        ]
        if not fitting:
            return self._within_limit(self._recompile(program))
        _, variant, code = max(fitting, key=lambda each: each[0])
        made = self._within_limit(self._link(program, variant, code))
        self.bundle.check_size()
        if self.bundle.file is not None and not self.device.has_own_memory:
            made.move_after_first_call(self.bundle)
        return made

    def _within_limit(self, made: NativeExecutable) -> NativeExecutable:
        return made if self.limit is None else made.within_bound(*self.limit)

    def _link(self, program: StoredProgram, variant: Variant, code: Code) -> NativeExecutable:
        device = self.device if code.device == self.device.kind else find_device(code.device)
        content = code.library()
        module = device.load(content, container.digest(content))
        try:
            first = device.program(module, variant.prepare, variant.prepare_constants) if variant.prepare else None
            main = device.program(module, variant.main, variant.constants)
        except DeviceError as error:
            raise FileError(
                f"{self.bundle.name}: {error.message}", expected=error.expected, got=error.got, remedy=error.own_remedy
            ) from error
        store = partial(self._store, program)
        return NativeExecutable(device, program.signature, first, main, variant.bound, program.kernels, store)

    def _absent(self, code: Code) -> str:
        """Why code cannot run here."""
        if not is_device(code.device):
            return f"for the device {code.device}"
        device = find_device(code.device)
        if self.stored.abi != device.abi:
            return f"written for another runtime library, {self.stored.abi} instead of {device.abi}"
        return device.lacks(code.machine, code.features)

    def _recompile(self, program: StoredProgram) -> NativeExecutable:
        codes = [code for variant in program.variants for code in variant.codes]
        reasons = "; ".join(f"{code.target}: {self._absent(code)}" for code in codes) or "no code"
        import logging

        name = self.bundle.name
        where = "this processor" if self.device.kind == "cpu" else self.device.name
        logging.getLogger("smelt").warning("%s has no code for %s (%s): compiling it", name, where, reasons)
        variant = min(program.variants, key=lambda each: each.tile[2])  # the one with the narrowest vectors
        try:
            return self.recompile(variant.text(), variant.tile, program.signature, variant.bound, self.device)
        except (DeviceError, UnsupportedError, ImportError) as error:
            raise UnsupportedError(
                f"{name} has no code for {where} and cannot be compiled here",
                expected=f"code for {where}, or what compiles it",
                got=f"{reasons}; {error}",
                remedy="smelt compile MODEL -o FILE.smelt --target …",
            ) from error

    def _store(self, program: StoredProgram, bound: Arrays | None, targets: Sequence[str]) -> StoredModel:
        """The stored program, to be written again."""
        if targets:
            raise UnsupportedError("the targets of a bundle are fixed", got=", ".join(targets), remedy="smelt compile")
        stored = self.stored
        return StoredModel(stored.name, program.signature, (program,), stored.runtimes, abi=stored.abi)

    def _refuse(self, values: Values, shapes: Shapes) -> Executable:
        asked = [f"{name}={array.reshape(-1)[:8].tolist()}" for name, array in values.items()]
        asked += [f"{name} of shape {list(shape)}" for name, shape in shapes.items()]
        raise UnsupportedError(
            f"{self.bundle.name} holds no program for these inputs",
            expected="; ".join(_made_for(program) for program in self.stored.programs),
            got=", ".join(asked),
            remedy="load the original model, call it with such inputs, and save it again",
        )

    def _runtime(self) -> runtime.Runtime:
        here = runtime.running()
        if here is not None:
            return here
        shipped = self._find_shipped()
        try:
            try:
                return runtime.runtime(shipped)
            except (DeviceError, AttributeError):  # AttributeError: not our library
                if shipped is None:
                    raise
                return runtime.runtime()  # made for another C library: compile it here
        except DeviceError as error:
            there = ", ".join(sorted({code.machine for code in self._codes()})) or "none"
            raise UnsupportedError(
                f"{self.bundle.name} has no runtime library for this machine, and it cannot be compiled here",
                expected=f"a bundle for {platform.machine()}, written by this version of smelt",
                got=f"one for {there}; {error}",
                remedy="smelt compile MODEL -o FILE.smelt --target …",
            ) from error

    def _codes(self) -> list[Code]:
        return [code for program in self.stored.programs for variant in program.variants for code in variant.codes]

    def _find_shipped(self) -> Callable[[], ctypes.CDLL] | None:
        """A function that loads the bundle's runtime library; None if it was built from other sources than ours."""
        here, made_of = platform.machine(), container.digest(*runtime.texts())
        for each in self.stored.runtimes:
            if each.machine == here and each.made_of == made_of:
                return partial(_library, each.library)
        return None


def _library(read: Callable[[], bytes]) -> ctypes.CDLL:
    content = read()
    return load_library(content, container.digest(content))


def _made_for(program: StoredProgram) -> str:
    values = [f"{name}={array.tolist()}" for name, array in program.values.items()]
    return ", ".join([*values, *(f"{name} of shape {list(shape)}" for name, shape in program.shapes.items())])


# ---- the manifest ----


def _read(bundle: Container) -> StoredModel:
    try:
        return _read_manifest(bundle)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, ShapeError) as error:
        raise FileError(
            f"{bundle.name} has a manifest that this version cannot read", got=error, remedy=container.AGAIN
        ) from error


def _read_manifest(bundle: Container) -> StoredModel:
    manifest = bundle.manifest
    programs = tuple(_stored_program(bundle, each) for each in manifest["programs"])
    if not programs or not all(program.variants for program in programs):
        raise ValueError("there is no program")
    model = StoredModel(
        record.text(manifest["name"]),
        record.signature_of(manifest["signature"]),
        programs,
        tuple(
            RuntimeCode(record.text(each["machine"]), record.text(each["made_of"]), bundle.reader(each["library"]))
            for each in manifest["runtimes"]
        ),
        record.pairs(manifest["metadata"]),
        record.texts(manifest["static"]),
        bool(manifest["by_size"]),
        record.pairs(manifest["provenance"]),
        record.number(manifest["abi"]),
        {record.text(name): bundle.reader(index) for name, index in manifest.get("files", {}).items()},
    )
    _check_model(model)
    return model


def _check_model(model: StoredModel) -> None:
    """Check programs against the model's signature. Sizes are compared with the code's own record later."""
    names = {port.name for port in model.signature.inputs}
    if not names.issuperset(model.static):
        raise ValueError("a compile-time input is no input of the model")
    for program in model.programs:
        if not names.issuperset(port.name for port in program.signature.inputs):
            raise ValueError("a program has inputs that the model lacks")
        if len(program.signature.outputs) != len(model.signature.outputs):
            raise ValueError("a program has another number of outputs than the model")
        for variant in program.variants:
            _check_variant(program.signature, variant)


def _check_variant(signature: Signature, variant: Variant) -> None:
    main, prepare, bound = variant.main, variant.prepare, variant.bound
    if bound is None:
        if prepare is None or len(prepare.arguments) != len(signature.weights):
            raise ValueError("there is no prepare function")
        count = len(prepare.results)
        if prepare.results != main.arguments[:count]:
            raise ValueError("the program's arguments do not match the packed weights")
    else:
        count = len(bound)
    if count + len(signature.inputs) != len(main.arguments):
        raise ValueError(f"the program takes {len(main.arguments)} arrays, not {count} and {len(signature.inputs)}")
    if len(main.results) != len(signature.outputs):
        raise ValueError(f"the program returns {len(main.results)} arrays, not {len(signature.outputs)}")
    if any(place < count for place in main.donated):
        raise ValueError("a bound array is donated")


def _stored_program(bundle: Container, given: Any) -> StoredProgram:
    return StoredProgram(
        record.signature_of(given["signature"]),
        record.kernels_of(given["kernels"]),
        tuple(_variant(bundle, each) for each in given["variants"]),
        record.pairs(given["provenance"]),
        {record.text(name): record.value_of(value) for name, value in given["values"].items()},
        {record.text(name): record.numbers(shape) for name, shape in given["shapes"].items()},
    )


def _variant(bundle: Container, given: Any) -> Variant:
    main, constants = _entry(bundle, given["main"])
    prepare, prepare_constants = (None, ()) if given["prepare"] is None else _entry(bundle, given["prepare"])
    rows, columns, lanes = record.numbers(given["tile"])
    codes = tuple(
        Code(record.text(each["target"]), record.target_of(each), bundle.reader(each["library"]))
        for each in given["codes"]
    )
    bound = None if given["bound"] is None else _read_bound(bundle, main, given["bound"])
    text = bundle.reader(given["text"])
    return Variant((rows, columns, lanes), text, main, constants, prepare, prepare_constants, bound, codes)


def _entry(bundle: Container, given: Any) -> tuple[Entry, Arrays]:
    constants = tuple(bundle.array(index, np.dtype(np.uint8)) for index in given["constants"])
    return record.entry_of(given), constants


def _read_bound(bundle: Container, main: Entry, given: Any) -> Arrays:
    """The arrays of the first arguments of a program, in order."""
    if len(given) > len(main.arguments):
        raise ValueError("more arrays are bound than the program takes")
    pairs = zip(given, main.arguments, strict=False)
    return tuple(bundle.array(index, shape.dtype.numpy, record.numbers(sizes)) for (index, sizes), shape in pairs)
