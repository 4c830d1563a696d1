"""What small programs are written as ONNX: onnx_writer.txt has each graph, a node per line, constants in their places.

`tests/unit/write` runs the same programs in onnxruntime. The text is documentation, too. `pytest tests/golden
--update-golden` writes it again; read the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import smelt
from smelt.dtype import DType
from smelt.write.onnx import build
from smelt.write.onnx.graph import Node, Subgraph
from tests.golden.test_golden import check
from tests.unit.write.test_onnx_dynamic import CASES
from tests.unit.write.test_onnx_export import LOOP
from tests.unit.write.test_onnx_rows import MOVES, POOLS, WINDOWS, reduce_window, reduction

GOLDEN = Path(__file__).with_name("onnx_writer.txt")


def programs() -> Iterator[tuple[str, str]]:
    yield "loops and branches", LOOP
    yield from ((name, each[0]) for table in (MOVES, CASES) for name, each in table.items())
    yield from ((f"convolution: {name}", text) for name, text in WINDOWS.items() if "f64" not in name)
    for name, (body, more, result, init, _) in POOLS.items():
        yield f"window: {name}", reduce_window(body, more, result, init)
    for kind, by, init in (("f32", "add", "1.5"), ("i1", "and", "true"), ("ui64", "minimum", "7")):
        yield f"reduction: {kind} {by}", reduction(kind, by, init, "0, 2", "3x5x4x", "5x")


def lines(nodes: tuple[Node, ...], constants: Mapping[str, Any], indent: str = "  ") -> Iterator[str]:
    for node in nodes:
        inputs = [describe(*constants[name]) if name in constants else name for name in node.inputs]
        plain = [f"{key}={each}" for key, each in sorted(node.attributes.items()) if not isinstance(each, Subgraph)]
        yield f"{indent}{', '.join(node.outputs)} = {node.operator}({', '.join([*inputs, *plain])})"
        for key, value in sorted(node.attributes.items()):
            if isinstance(value, Subgraph):
                names = [", ".join(each.name for each in ports) for ports in (value.inputs, value.outputs)]
                yield f"{indent}  {key}: ({names[0]}) -> ({names[1]})"
                yield from lines(value.nodes, constants, indent + "    ")


def describe(element: DType, array: Any) -> str:
    numbers = ", ".join(f"{number:.6g}" for number in array.reshape(-1).astype(float))
    return f"{element} {numbers}" if not array.ndim else f"{element}[{numbers}]"


def test_graphs_are_what_they_were(request: pytest.FixtureRequest) -> None:
    found = []
    for name, text in programs():
        made = build(smelt.parse(text))
        ports = [
            ", ".join(f"{each.name}: {each.dtype}{list(each.sizes)}" for each in side)
            for side in (made.inputs, made.outputs)
        ]
        found += [f"{name}: ({ports[0]}) -> ({ports[1]})", *lines(made.nodes, made.constants), ""]
    check("\n".join(found), GOLDEN, request)
