"""What ONNX models of one node are read as: a checksum of each program, so that no change goes unseen.

The models are those of the installed ONNX suite, and of the tables of operators of com.microsoft. onnx_reader.txt has a
line for each: its operator, its name, checksums of the model and of the program. Another version of the suite may have
other models: those are left out. `pytest tests/golden --update-golden` writes the file again; `smelt show` prints a
program whole.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.errors import SmeltError
from smelt.ir.text import print_program
from tests.conformance.onnx_suite import data_of, read_model
from tests.onnx_nodes import SIZES, Node
from tests.unit.read.test_onnx_contrib import FUSED, NORMS, SMALL
from tests.unit.read.test_onnx_contrib_attention import ATTENTION, GROUPED
from tests.unit.read.test_onnx_contrib_quant import QUANTISED
from tests.unit.read.test_onnx_indices import CASES as INDEXED

GOLDEN = Path(__file__).with_name("onnx_reader.txt")
LARGE = 1 << 16  # bytes of a model
# Arrays of floats may be results of NumPy's functions, whose last bits are those of a processor: they are left out, and
# single floats are rounded.
ARRAY = re.compile(r'dense<(\[[^>]*\]|"0x[0-9A-Fa-f]*")>(?= : tensor<[0-9x?]*(b?f|complex<f)\d)')
NUMBER = re.compile(r"(?<![\w#%@.])(-?\d+\.\d+(?:[eE][-+]?\d+)?)(?![\w.])")


def checksum(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def suite() -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Operator, name, model, and inputs by name."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    for case in sorted(cases, key=lambda case: case.name):
        if "_expanded" in case.name:  # the function of an operator, written out in others
            continue
        model, sets = data_of(case)
        inputs = dict(zip((port.name for port in model.graph.input), sets[0][0], strict=False)) if sets else {}
        yield model.graph.node[0].op_type if model.graph.node else "-", case.name, model, inputs


def tables() -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    nodes = [*FUSED, *NORMS, *SMALL, *ATTENTION, *GROUPED, *QUANTISED, *(case[3] for case in INDEXED)]
    for i, node in enumerate(each for each in nodes if isinstance(each, Node)):
        arrays = node.arrays(np.random.default_rng(i), {**SIZES[0], "N": 4})
        yield node.op, f"{node.op}_{i}", node.model(arrays), arrays


@lru_cache(maxsize=1)
def models() -> dict[str, list[tuple[str, bytes, dict[str, Any]]]]:
    found: dict[str, list[tuple[str, bytes, dict[str, Any]]]] = defaultdict(list)
    for operator, name, model, inputs in (*suite(), *tables()):
        data = model.SerializeToString(deterministic=True)
        if len(data) < LARGE:
            found[operator].append((name, data, inputs))
    return found


def describe(data: bytes, inputs: dict[str, Any], folder: Path) -> str:
    path = folder / "model.onnx"
    path.write_bytes(data)
    try:
        program, weights = read_model(path, inputs)
    except SmeltError as error:
        return type(error).__name__
    text = NUMBER.sub(lambda found: f"{float(found[1]):.5g}", ARRAY.sub("", print_program(program)))
    return checksum(f"{text}{sorted(weights)}".encode())


def recorded() -> dict[str, dict[str, tuple[str, str]]]:
    found: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for line in GOLDEN.read_text().splitlines():
        operator, name, model, program = line.split()
        found[operator][name] = model, program
    return found


KNOWN = recorded() if GOLDEN.exists() else {}


@pytest.mark.parametrize("operator", KNOWN)
def test_operators_are_read_as_they_were(operator: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if request.config.getoption("--update-golden"):
        pytest.skip("the file is written again")
    changed = []
    for name, data, inputs in models()[operator]:
        model, program = KNOWN[operator].get(name, ("", ""))
        if model == checksum(data) and describe(data, inputs, tmp_path) != program:
            changed.append(name)
    assert not changed, "--update-golden writes the file again"


def test_the_file_is_that_of_this_suite(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if request.config.getoption("--update-golden"):
        lines = [
            f"{operator} {name} {checksum(data)} {describe(data, inputs, tmp_path)}\n"
            for operator, rows in sorted(models().items())
            for name, data, inputs in rows
        ]
        GOLDEN.write_text("".join(lines))
    now = recorded()
    same = [
        now[operator].get(name, ("", ""))[0] == checksum(data)
        for operator, rows in models().items()
        for name, data, _ in rows
    ]
    assert sum(same) > 0.5 * len(same)
