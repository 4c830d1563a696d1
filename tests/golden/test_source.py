"""The source that is generated for small programs of every kernel family, as checksums: C for two processors, CUDA.

A line of source_TARGET.txt is a program and the checksum of its files. What changes on purpose is written again with
`pytest tests/golden -n0 --update-golden`; `tests/unit/kernel` and `tests/property` compare what kernels compute.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from smelt.device import cpu
from smelt.device.cuda import TARGETS
from smelt.engine.compile import emit_source, plan_program
from smelt.errors import UnsupportedError
from smelt.ir.core import Program
from smelt.kernel.tune.schedules import no_schedule
from smelt.target import Target
from tests.golden.programs import BY_TILE, FAMILIES, Made

HERE = Path(__file__).parent


TARGET_NAMES = {"avx2": FAMILIES, "sm_90": FAMILIES, "plain": BY_TILE, "avx512bf16": BY_TILE}
CASES = [(name, family) for name, families in TARGET_NAMES.items() for family in families]


def target_of(name: str) -> Target:
    return TARGETS[name] if name in TARGETS else cpu.target(name).replace(name="x86_64", cores=2)


def checksum(program: Program, target: Target) -> str:
    try:
        plan = plan_program(program, target, schedules=no_schedule)
        return f"{zlib.crc32(chr(0).join(emit_source([plan]).texts(1)).encode()):08x}"
    except UnsupportedError as error:
        return f"refused: {error.message}"


def read_sections(golden: Path) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in golden.read_text().splitlines() if golden.exists() else ():
        if line.startswith("== "):
            lines = sections.setdefault(line.removeprefix("== "), [])
        else:
            lines.append(line)
    return sections


@pytest.mark.parametrize(("name", "family"), CASES, ids=[f"{name}-{family.__name__}" for name, family in CASES])
def test_source_is_what_it_was(name: str, family: Callable[[Target], Made], request: pytest.FixtureRequest) -> None:
    golden, target, title = HERE / f"source_{name}.txt", target_of(name), family.__name__
    got = [f"{each}: {checksum(program, target)}" for each, program in family(target)]
    if request.config.getoption("--update-golden"):
        sections = read_sections(golden) | {title: got}
        golden.write_text(
            "".join(f"== {each}\n" + "".join(f"{line}\n" for line in sections[each]) for each in sections)
        )
    assert got == read_sections(golden).get(title), "--update-golden writes the file again"
