"""Loop-invariant code motion: which ops are hoisted out of a loop or a branch, and that results stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.ir.core import Op, Program, walk
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.ir.verify import verify
from smelt.passes.hoist_loop_invariants import hoist_loop_invariants
from tests.property.problems import draw

LOOP = """func.func @main(%n: tensor<i64>, %x: tensor<3x4xf32>, %w: tensor<4x4xf32> {{smelt.weight = "w"}})
    -> tensor<3x4xf32> {{
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %r:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i64>, tensor<3x4xf32>
  cond {{
    %go = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  }} do {{
    %j = stablehlo.add %i, %one : tensor<i64>
    {body}
    stablehlo.return %j, %b : tensor<i64>, tensor<3x4xf32>
  }}
  return %r#1 : tensor<3x4xf32>
}}"""
DOT = "contracting_dims = [1] x [0] : (tensor<{rows}x4xf32>, tensor<4x4xf32>) -> tensor<{rows}x4xf32>"
SQUARE, TALL = DOT.format(rows=4), DOT.format(rows=3)
BODIES = {
    "the weight times itself": f"""
      %t = stablehlo.transpose %w, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %p = stablehlo.dot_general %w, %t, {SQUARE}
      %b = stablehlo.dot_general %a, %p, {TALL}""",
    "what the loop reads as well": f"""
      %t = stablehlo.tanh %w : tensor<4x4xf32>
      %p = stablehlo.dot_general %t, %t, {SQUARE}
      %u = stablehlo.add %p, %t : tensor<4x4xf32>
      %b = stablehlo.dot_general %a, %u, {TALL}""",
    "in a loop inside": f"""
      %q:2 = stablehlo.while(%k = %i, %m = %a) : tensor<i64>, tensor<3x4xf32>
      cond {{
        %more = stablehlo.compare LT, %k, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        %l = stablehlo.add %k, %one : tensor<i64>
        %p = stablehlo.dot_general %w, %w, {SQUARE}
        %s = stablehlo.dot_general %m, %p, {TALL}
        stablehlo.return %l, %s : tensor<i64>, tensor<3x4xf32>
      }}
      %b = stablehlo.add %q#1, %a : tensor<3x4xf32>""",
    "in a branch": f"""
      %e = stablehlo.compare EQ, %i, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %b = "stablehlo.if"(%e) ({{
        %p = stablehlo.dot_general %w, %w, {SQUARE}
        %s = stablehlo.dot_general %a, %p, {TALL}
        stablehlo.return %s : tensor<3x4xf32>
      }}, {{
        stablehlo.return %a : tensor<3x4xf32>
      }}) : (tensor<i1>) -> tensor<3x4xf32>""",
    "in a branch, of what the weight gave before": f"""
      %t = stablehlo.tanh %w : tensor<4x4xf32>
      %e = stablehlo.compare EQ, %i, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %b = "stablehlo.if"(%e) ({{
        %p = stablehlo.dot_general %t, %w, {SQUARE}
        %s = stablehlo.dot_general %a, %p, {TALL}
        stablehlo.return %s : tensor<3x4xf32>
      }}, {{
        stablehlo.return %a : tensor<3x4xf32>
      }}) : (tensor<i1>) -> tensor<3x4xf32>""",
}
STAYS = {
    "what the loop carries": f"%b = stablehlo.dot_general %a, %w, {TALL}",
    "what only one branch wants of the inputs": f"""
      %e = stablehlo.compare EQ, %i, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %b = "stablehlo.if"(%e) ({{
        %s = stablehlo.dot_general %x, %w, {TALL}
        stablehlo.return %s : tensor<3x4xf32>
      }}, {{
        stablehlo.return %a : tensor<3x4xf32>
      }}) : (tensor<i1>) -> tensor<3x4xf32>""",
}


def dots(program: Program) -> tuple[list[Op], list[Op]]:
    """The products of @main itself, and those inside its regions."""
    outer = [op for op in program.main.body.ops if op.name == "stablehlo.dot_general"]
    everywhere = [op for op in walk(program.main.body) if op.name == "stablehlo.dot_general"]
    return outer, [op for op in everywhere if op not in outer]


def arguments(turns: int) -> list[np.ndarray]:
    random = np.random.default_rng(turns)
    x, w = random.integers(-2, 3, (3, 4)), random.integers(-2, 3, (4, 4))
    return [np.asarray(turns), x.astype(np.float32), w.astype(np.float32)]


@pytest.mark.parametrize("name", BODIES)
def test_invariant_work_is_hoisted(name: str) -> None:
    program = parse(LOOP.format(body=BODIES[name]))
    assert [len(each) for each in dots(program)] == [0, 2]
    moved = hoist_loop_invariants(program)
    verify(moved)
    assert [len(each) for each in dots(moved)] == [1, 1]
    for turns in range(4):
        (want,), (got,) = run(program, arguments(turns)), run(moved, arguments(turns))
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", STAYS)
def test_varying_work_stays(name: str) -> None:
    moved = hoist_loop_invariants(parse(LOOP.format(body=STAYS[name])))
    assert [len(each) for each in dots(moved)] == [0, 1]


def test_ops_that_may_fail_or_not_terminate_stay() -> None:
    text = f"""
      %f = stablehlo.compare LT, %n, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %q = stablehlo.while(%m = %w) : tensor<4x4xf32>
      cond {{
        stablehlo.return %f : tensor<i1>
      }} do {{
        stablehlo.return %m : tensor<4x4xf32>
      }}
      %p = stablehlo.dot_general %q, %w, {SQUARE}
      %b = stablehlo.dot_general %a, %p, {TALL}"""
    program = parse(LOOP.format(body=text))
    moved = hoist_loop_invariants(program)
    assert [len(each) for each in dots(moved)] == [0, 2]
    assert run(moved, arguments(0))[0].tobytes() == arguments(0)[1].tobytes()


def test_random_loops_keep_their_results(seed: int) -> None:
    random = np.random.default_rng([seed, 9])
    problems = [draw("loop", random) for _ in range(40)]
    changed = 0
    for problem in problems:
        program = problem.make(False)
        moved = hoist_loop_invariants(program)
        verify(moved)
        changed += any(op.name == "stablehlo.reduce" for op in moved.main.body.ops) and moved is not program
        (got,) = run(moved, problem.args)
        assert got.tobytes() == problem.expected().tobytes(), problem.name
    assert changed, "no random loop had anything to move"
