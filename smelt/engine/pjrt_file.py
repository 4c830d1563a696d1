"""Serialised executables of the pjrt engine: programs as StableHLO text and as XLA's machine code, without weights.

`read` accepts what `write` returned on the same platform, version and processor. Other or damaged files are refused
with the reason. The bytes contain machine code: read only files that you trust.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from smelt.bundle.record import number, numbers, text, texts
from smelt.device.registry import find_device
from smelt.dtype import dtype
from smelt.engine_api import Port, Signature
from smelt.errors import DeviceError, ParseError, SmeltError
from smelt.frozen import Frozen
from smelt.ir.core import Program
from smelt.ir.text import parse, print_program
from smelt.shape import Shape

MAGIC = b"smelt pjrt 1\n"
_AGAIN = "copy the file again, or compile the model again"
_DIGEST = 32
Programs = Sequence[tuple[tuple[tuple[int, ...], ...], bytes]]


class Saved(Frozen):
    """The contents of a serialised executable."""

    signature: Signature
    main: Program
    prepare: Program | None
    donated: frozenset[int]  # among the inputs
    donated_arguments: frozenset[int]  # among all arguments of the program
    buckets: Mapping[str, tuple[int, ...]]
    limit: int
    main_programs: Programs
    prepare_programs: Programs


def write(saved: Saved, platform: str, version: str) -> bytes:
    """magic, digest of the rest, length of the header, header (JSON), blobs."""
    blobs = [blob for _, blob in (*saved.main_programs, *saved.prepare_programs)]
    header = {
        "platform": platform,
        "version": version,
        "processor": _processor(platform),
        "signature": {
            part: [_port_record(port) for port in getattr(saved.signature, part)]
            for part in ("inputs", "outputs", "weights")
        },
        "main": print_program(saved.main),
        "prepare": print_program(saved.prepare) if saved.prepare else None,
        "donated": sorted(saved.donated),
        "donated_arguments": sorted(saved.donated_arguments),
        "buckets": saved.buckets,
        "limit": saved.limit,
        "main_programs": [[key, len(blob)] for key, blob in saved.main_programs],
        "prepare_programs": [[key, len(blob)] for key, blob in saved.prepare_programs],
    }
    written = json.dumps(header).encode()
    rest = struct.pack("<Q", len(written)) + written + b"".join(blobs)
    return MAGIC + hashlib.sha256(rest).digest() + rest


def read(data: bytes, platform: str, version: str) -> Saved:
    """The parts of a serialised executable, if this platform can run it."""
    if not data.startswith(MAGIC):
        raise ParseError("not a serialised executable", expected=f"bytes that begin with {MAGIC!r}", got=data[:16])
    start = len(MAGIC) + _DIGEST
    rest = data[start:]
    if hashlib.sha256(rest).digest() != data[len(MAGIC) : start]:
        raise ParseError("the serialised executable is damaged", got="another checksum", remedy=_AGAIN)
    try:
        (length,) = struct.unpack_from("<Q", rest)
        header = json.loads(rest[8 : 8 + length])
        made_for = {what: text(header[what]) for what in ("platform", "version", "processor")}
    except (struct.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ParseError("the serialised executable has no header", got=error, remedy=_AGAIN) from error
    here = {"platform": platform, "version": version, "processor": _processor(platform)}
    for what, mine in here.items():
        if made_for[what] != mine:
            raise DeviceError(
                f"the executable was serialised for another {what}",
                expected=mine,
                got=made_for[what],
                remedy="compile the model again on this machine",
            )
    try:
        return _parts(header, rest[8 + length :])
    except (SmeltError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ParseError(
            "the programs of the serialised executable cannot be read", got=error, remedy=_AGAIN
        ) from error


def _parts(header: Mapping[str, Any], blobs: bytes) -> Saved:
    ports = header["signature"]
    inputs, outputs, weights = (tuple(map(_port, ports[part])) for part in ("inputs", "outputs", "weights"))
    main = parse(text(header["main"]))
    prepare = parse(text(header["prepare"])) if header["prepare"] is not None else None
    at = 0
    programs: dict[str, list[tuple[tuple[tuple[int, ...], ...], bytes]]] = {"main_programs": [], "prepare_programs": []}
    for part, found in programs.items():
        for key, length in header[part]:
            found.append((tuple(map(numbers, key)), blobs[at : at + number(length)]))
            at += length
    if at != len(blobs):
        raise ValueError("the programs do not fill the file")
    return Saved(
        Signature(inputs, outputs, weights),
        main,
        prepare,
        frozenset(numbers(header["donated"])),
        frozenset(numbers(header["donated_arguments"])),
        {text(name): numbers(sizes) for name, sizes in header["buckets"].items()},
        number(header["limit"]),
        programs["main_programs"],
        programs["prepare_programs"],
    )


def _processor(platform: str) -> str:
    """The CPU properties that XLA's machine code depends on; for plug-ins the version has them."""
    if platform != "cpu":
        return ""
    target = find_device().target()
    features = hashlib.sha256(" ".join(sorted(target.features)).encode()).hexdigest()[:16]
    return f"{target.name} {features}"


def _port_record(port: Port) -> dict[str, Any]:
    sizes = [str(size) for size in port.shape.sizes]
    return {
        "name": port.name,
        "dtype": port.shape.dtype.name,
        "sizes": sizes,
        "names": port.shape.names,
        "labels": port.labels,
        "keys": port.keys,
    }


def _port(record: Mapping[str, Any]) -> Port:
    sizes = Shape("f32", *texts(record["sizes"])).sizes
    names = texts(record["names"]) if record["names"] is not None else None
    shape = Shape.of(dtype(text(record["dtype"])), sizes, names)
    keys = tuple(key if type(key) is int else text(key) for key in record["keys"])
    return Port(text(record["name"]), shape, texts(record["labels"]), keys)
