"""Names from model files never get into generated C, whatever they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smelt.device import cpu
from smelt.engine.native import NativeEngine
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.model import read
from smelt.shape import Shape

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

MARK = "zzmark"  # in every name, and in no C of ours
NASTY = [
    f'{MARK} "quoted"',
    f"{MARK}\nlines",
    f"{MARK} */ b",
    f"/* {MARK}",
    f"#include <{MARK}>",
    f"\n#error {MARK}\n",
    f"{MARK}\\",
    f"{MARK}; int main(void) {{ return 1; }}",
    f"{MARK} Zauberflöte ∂x 模型",
    MARK * 5000,
    f"%s%n{MARK}",
    f"??/{MARK}",
]


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every C file that is compiled."""
    real, seen = cpu.build, list[str]()

    def build(source: Any, *flags: str, **more: Any) -> Any:
        seen.extend([source] if isinstance(source, str) else source)
        return real(source, *flags, **more)

    monkeypatch.setattr(cpu, "build", build)
    return seen


def check(texts: list[str]) -> None:
    assert texts
    for text in texts:
        assert MARK not in text


def test_onnx_names(texts: list[str], tmp_path: Path) -> None:
    """Nodes, tensors, weights, dimensions and the graph itself."""
    names = [*NASTY, *(f"{name} again" for name in NASTY)]
    nodes, weights = [], []
    value = "in" + names[0]
    for i, name in enumerate(names):
        weights.append(numpy_helper.from_array(np.full(3, i, np.float32), f"weight {name}"))
        op = "Add" if i % 2 else "Sub"
        nodes.append(helper.make_node(op, [value, f"weight {name}"], [name], name=f"node {name}"))
        value = name
    rank: list[str | int | None] = ["batch " + NASTY[2], 3]
    graph = helper.make_graph(
        nodes,
        "graph */ #include",
        [helper.make_tensor_value_info("in" + names[0], TensorProto.FLOAT, rank)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, rank)],
        weights,
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    program, stored = read(path)
    (result,) = NativeEngine().compile(program).prepare(stored)(np.zeros((2, 3), np.float32))
    total = sum(i if i % 2 else -i for i in range(len(names)))
    np.testing.assert_array_equal(result, np.full((2, 3), total, np.float32))
    check(texts)


def test_names_of_functions_values_and_symbols(texts: list[str]) -> None:
    """What a builder and the text form let in."""
    f = FuncBuilder("main", [Shape("f32", MARK * 40)], arg_names=[NASTY[3]])
    program = Program.of(f.func(f.exponential(f.args[0])))
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(NativeEngine().compile(program)(x)[0], np.exp(x), rtol=1e-6)
    function = f"{MARK}\\22 */ \\0A#error"
    text = f"""
        module @"{MARK} */ #include <x>" {{
          func.func private @"{function}"(%a: tensor<4xf32>) -> tensor<4xf32> {{
            %{MARK} = stablehlo.negate %a : tensor<4xf32> loc("{MARK} */ #error.py":1:1)
            return %{MARK} : tensor<4xf32>
          }}
          func.func @main(%{MARK}: tensor<4xf32>) -> tensor<4xf32> {{
            %result = call @"{function}"(%{MARK}) : (tensor<4xf32>) -> tensor<4xf32>
            return %result : tensor<4xf32>
          }}
        }}
    """
    parsed = parse(text)
    np.testing.assert_array_equal(NativeEngine().compile(parsed)(x)[0], run(parsed, [x])[0])
    check(texts)
