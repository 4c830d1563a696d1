"""Scatter on a GPU, run by the emulator: updates that the kernel computes itself."""

from __future__ import annotations

import json

import numpy as np
import pytest

from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.interpret import run
from smelt.ir.text import parse
from tests.cuda.emulated import EmulatedCuda

SCATTER = """func.func @main(%y: tensor<9x4xf32>, %at: tensor<5x1xi32>, %x: tensor<5x4xf32>) -> tensor<9x4xf32> {{
  {updates}
  %r = "stablehlo.scatter"(%y, %at, %u) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    {body}
    stablehlo.return %s : tensor<f32>
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
       scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
    : (tensor<9x4xf32>, tensor<5x1xi32>, tensor<5x4xf32>) -> tensor<9x4xf32>
  return %r : tensor<9x4xf32>
}}"""
OWN = "%v = stablehlo.multiply %x, %x : tensor<5x4xf32>\n  %u = stablehlo.add %v, %x : tensor<5x4xf32>"
CHANGED = """%v = stablehlo.reshape %y : (tensor<9x4xf32>) -> tensor<36xf32>
  %w = stablehlo.slice %v [8:28] : (tensor<36xf32>) -> tensor<20xf32>
  %p = stablehlo.reshape %w : (tensor<20xf32>) -> tensor<5x4xf32>
  %u = stablehlo.add %p, %x : tensor<5x4xf32>"""
ADD = "%s = stablehlo.add %a, %b : tensor<f32>"


@pytest.mark.parametrize(
    ("updates", "body", "launches"),
    [(OWN, "", 1), (OWN, ADD, 2), (CHANGED, "", 2)],
    ids=["placed", "added", "from what it changes"],
)
def test_scatter_computes_updates_that_it_reads_once(
    updates: str, body: str, launches: int, emulated: EmulatedCuda, seed: int
) -> None:
    """Not where it adds them, and not where they depend on what it changes: other threads change it meanwhile."""
    text = SCATTER.format(updates=updates, body=body)
    program = parse(text if body else text.replace("return %s : tensor<f32>", "return %b : tensor<f32>"))
    random = np.random.default_rng(seed)
    y, x = (random.standard_normal((rows, 4), np.float32) for rows in (9, 5))
    at = np.array([[3], [8], [3], [-1], [4]], np.int32)
    (made,) = compile_all([program], emulated.target())
    assert not isinstance(made, SmeltError)
    np.testing.assert_array_equal(made(y, at, x)[0].numpy(), run(program, [y, at, x])[0])
    *_, plan = emit_source([plan_program(program, emulated.target())]).texts(1)
    steps = json.loads(plan)["programs"]["smelt0"]["steps"]
    assert sum(len(each.get("launches", ())) for each in steps) == launches
