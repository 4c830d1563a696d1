"""What programs are written as ONNX: a checksum of each graph, its nodes, attributes and constants.

The programs are those that `tests/unit/write` runs in onnxruntime. `pytest tests/golden --update-golden` writes
onnx_writer.txt again; `smelt export` writes a graph whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import smelt
from smelt.write.onnx import build
from smelt.write.onnx.graph import Node, Subgraph
from tests.unit.write.test_onnx_dynamic import CASES
from tests.unit.write.test_onnx_dynamic import sort as sort_by
from tests.unit.write.test_onnx_export import LOOP
from tests.unit.write.test_onnx_rows import MOVES, POOLS, WINDOWS, reduce_window, reduction

GOLDEN = Path(__file__).with_name("onnx_writer.txt")


def programs() -> Iterator[tuple[str, str]]:
    yield "loop", LOOP
    for table in (MOVES, CASES):
        yield from ((name, each[0]) for name, each in table.items())
    yield from ((f"convolution, {name}", text) for name, text in WINDOWS.items())
    for name, (body, more, result, init, _) in POOLS.items():
        yield f"window, {name}", reduce_window(body, more, result, init)
    for kind, by, init in (
        ("f32", "add", "0.0"),
        ("i1", "and", "true"),
        ("ui64", "minimum", "7"),
        ("i8", "maximum", "3"),
    ):
        yield f"reduction, {kind} {by}", reduction(kind, by, init, "0, 2", "3x5x4x", "5x")
    for kind in ("i32", "f32"):
        yield f"sort, {kind}", sort_by(kind, f"LT, %a, %b : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>", 0)


def lines(nodes: tuple[Node, ...], constants: Any) -> Iterator[str]:
    for node in nodes:
        inputs = [describe(constants[name]) if name in constants else name for name in node.inputs]
        yield f"{node.operator} {inputs} -> {node.outputs}"
        for key, value in sorted(node.attributes.items()):
            if isinstance(value, Subgraph):
                yield f"{key} {value.inputs} {value.outputs}"
                yield from lines(value.nodes, constants)
            else:
                yield f"{key}={value}"


def describe(constant: Any) -> str:
    element, array = constant
    return f"{element}{array.shape} {[f'{number:.5g}' for number in array.reshape(-1).astype(float)]}"


def test_programs_are_written_as_they_were(request: pytest.FixtureRequest) -> None:
    got = []
    for name, text in programs():
        made = build(smelt.parse(text))
        graph = "\n".join([*lines(made.nodes, made.constants), str(made.inputs), str(made.outputs)])
        got.append(f"{name}: {len(made.nodes)} nodes {zlib.crc32(graph.encode()):08x}")
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text("".join(f"{line}\n" for line in got))
    assert got == GOLDEN.read_text().splitlines(), "--update-golden writes the file again"
