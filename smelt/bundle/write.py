"""A stored model → a bundle: a file, written atomically, or bytes.

`LoadedModel.save`, `Executable.serialize` and `smelt compile` call it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from smelt.bundle import record, sign
from smelt.bundle.container import Body, lay_out
from smelt.bundle.stored import Code, StoredModel, StoredProgram, Variant
from smelt.device.entry import Entry
from smelt.device.runtime import runtime
from smelt.dtype import Array
from smelt.errors import FileError
from smelt.files import open_regular, write_atomically
from smelt.version import __version__

if TYPE_CHECKING:
    from pathlib import Path


def write(path: str | Path, model: StoredModel, private_key: str | Path | None = None) -> int:
    """Write a bundle and return its size in bytes. A failure leaves no file behind."""
    return write_atomically(path, _pieces(model, private_key))


def serialize(model: StoredModel, private_key: str | Path | None = None) -> bytes:
    """A bundle as bytes, the same that `write` writes."""
    return b"".join(_pieces(model, private_key))


def source_record(path: Path) -> dict[str, str]:
    """The provenance of a model: its file's name and digest."""
    import hashlib

    try:
        with os.fdopen(open_regular(path), "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
    except OSError as error:
        raise FileError(f"cannot read {path}", got=error.strerror, remedy="check the disk that it is on") from error
    return {"source": path.name, "source_blake2b": found}


def _pieces(model: StoredModel, private_key: str | Path | None) -> Iterator[memoryview]:
    body = Body()
    programs = [_program(program, body) for program in model.programs]  # weights first: the body's start is aligned
    manifest: dict[str, Any] = {
        "smelt": __version__,
        "abi": model.abi,
        "name": model.name,
        "signature": record.signature_record(model.signature),
        "metadata": dict(model.metadata),
        "static": list(model.static),
        "by_size": model.by_size,
        "programs": programs,
        "runtimes": [
            {"machine": each.machine, "made_of": each.made_of, "library": body.add(each.library())}
            for each in model.runtimes
        ],
        "provenance": dict(model.provenance),
    }
    if model.files:
        manifest["files"] = {name: body.add(read()) for name, read in model.files.items()}
    signer = None if private_key is None else sign.signer(private_key)
    yield from lay_out(runtime(), body, manifest, signer)


def _program(program: StoredProgram, body: Body) -> dict[str, Any]:
    return {
        "signature": record.signature_record(program.signature),
        "kernels": record.kernels_record(program.kernels),
        "values": {name: record.value_record(array) for name, array in program.values.items()},
        "shapes": {name: list(shape) for name, shape in program.shapes.items()},
        "variants": [_variant(variant, body) for variant in program.variants],
        "provenance": dict(program.provenance),
    }


def _variant(variant: Variant, body: Body) -> dict[str, Any]:
    return {
        "tile": list(variant.tile),
        "bound": None if variant.bound is None else [_array(array, body) for array in variant.bound],
        "main": _entry(variant.main, variant.constants, body),
        "prepare": None if variant.prepare is None else _entry(variant.prepare, variant.prepare_constants, body),
        "text": body.add(variant.text()),
        "codes": [_code(code, body) for code in variant.codes],
    }


def _entry(entry: Entry, constants: tuple[Array, ...], body: Body) -> dict[str, Any]:
    return {**record.entry_record(entry), "constants": [body.add(array) for array in constants]}


def _array(array: Array, body: Body) -> list[Any]:
    """The section and sizes of an array; its element type is in the entry."""
    return [body.add(array), list(array.shape)]


def _code(code: Code, body: Body) -> dict[str, Any]:
    return {"target": code.target, **record.target_record(code.about), "library": body.add(code.library())}
