"""`python -m bench.digests`: digests of the machine code that programs compile to, before and after a refactoring.

    python -m bench.digests --models DIR --json before.json
    python -m bench.digests --models DIR --against before.json   # exit code 1, and a list, where code differs

With `--known DIR` the digest of each C file is kept there, so that a file that did not change is not compiled again.

Programs: every ONNX model in DIR and the small programs of tests/property (a fixed seed), each for avx512, avx2, plain
and neon. A digest covers the sections `.text` and `.rodata` of a stripped library built from one C file with default
schedules, so names in the C source do not count and neither do a tuning database or the number of cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from smelt.device import cpu, host
from smelt.engine.compile import emit_source, lower, plan_lowered
from smelt.engine.signature import signature_of
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.kernel.tune.schedules import no_schedule
from smelt.model import read
from tests.property import models, problems

TARGETS = ("avx512", "avx2", "plain", "neon")
SECTIONS = (".text", ".rodata")
DRAWS = 6  # programs of each kind
SEED = 20261116


def property_programs() -> Iterator[tuple[str, Program]]:
    """The property tests' programs: random ones of every kind, edge cases, and small models with dynamic dimensions."""
    for kind in problems.KINDS:
        random = np.random.default_rng([SEED, *kind.encode()])
        for i in range(DRAWS):
            yield f"{kind} {i}", problems.draw(kind, random).make(False)
    for i, edge in enumerate(problems.edges()):
        yield f"edge {i}", edge.make(False)
    for name, model in models.MODELS.items():
        yield name, model.dynamic_program()


def programs(folder: Path | None) -> Iterator[tuple[str, Program]]:
    for path in sorted(folder.glob("*.onnx")) if folder else ():
        yield path.stem, read(path)[0]
    yield from property_programs()


def sections(library: bytes) -> dict[str, bytes]:
    """The sections of a 64-bit little-endian ELF file by name."""
    (start,) = struct.unpack_from("<Q", library, 0x28)
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", library, start + i * size) for i in range(count)]
    table = library[headers[names][4] :]
    return {
        table[name : table.index(b"\0", name)].decode(): library[offset : offset + length]
        for name, kind, _, _, offset, length in headers
        if kind != 8  # SHT_NOBITS takes no place in the file
    }


def digest(program: Program, target_name: str, folder: Path, known: Path | None) -> str:
    """Of the machine code of one program; what the kernel compiler refuses is named instead."""
    target = cpu.target(target_name)
    try:
        plans = plan_lowered(lower(program, target), signature_of(program.main), target, schedules=no_schedule)
    except SmeltError as error:
        return f"refused: {type(error).__name__}"
    source = emit_source([plans]).text()
    entry = known / blake2b(f"{target_name}\n{source}".encode()) if known else None
    if entry and entry.exists():
        return entry.read_text()
    library = folder / "program.so"
    cpu.compile_to(library, source, "-s", processor=target)
    parts = sections(library.read_bytes())
    found = blake2b(b"".join(parts.get(name, b"") for name in SECTIONS))
    if entry:
        entry.write_text(found)
    return found


def blake2b(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def measure(
    folder: Path | None, targets: list[str], only: str | None, known: Path | None = None
) -> dict[str, dict[str, str]]:
    """Digests by program and target, printed as they come."""

    def one(work: tuple[str, Program, str]) -> tuple[str, str, str]:
        name, program, target = work
        with tempfile.TemporaryDirectory() as scratch:
            return name, target, digest(program, target, Path(scratch), known)

    found: dict[str, dict[str, str]] = {}
    work = ((name, program, target) for name, program in programs(folder) for target in targets)
    with ThreadPoolExecutor(host.cores()) as pool:
        for name, target, value in pool.map(one, (each for each in work if only is None or only in each[0])):
            found.setdefault(name, {})[target] = value
            print(f"{name:24} {target:8} {value}", flush=True)
    return found


def differences(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> list[str]:
    """Programs and targets in both whose code differs."""
    return [
        f"{name} ({target})"
        for name, targets in after.items()
        for target, value in targets.items()
        if before.get(name, {}).get(target, value) != value
    ]


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.digests", description=__doc__.partition("\n")[0])
    options.add_argument("--models", type=Path, metavar="DIR", help="a folder of ONNX models")
    options.add_argument("--targets", default=",".join(TARGETS), help=f"of {', '.join(cpu.TARGETS)}")
    options.add_argument("--only", metavar="TEXT", help="programs whose name holds this text")
    options.add_argument("--known", type=Path, metavar="DIR", help="keep the digest of each C file here")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the digests to a file")
    options.add_argument("--against", type=Path, metavar="FILE", help="compare with digests from an earlier run")
    chosen = options.parse_args()
    if chosen.known:
        chosen.known.mkdir(parents=True, exist_ok=True)
    found = measure(chosen.models, chosen.targets.split(","), chosen.only, chosen.known)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))
    if chosen.against:
        changed = differences(json.loads(chosen.against.read_text()), found)
        print("\n".join(["", "the code differs:", *changed] if changed else ["", "the code is the same"]))
        sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
