"""Optimisations that no result shows: what the plans of small programs must look like, so that each of them fires."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import smelt
from smelt import nn
from smelt.device.runtime import runtime
from smelt.dim import evaluate
from smelt.engine.compile import ProgramPlan, plan_program
from smelt.ir.core import Program
from smelt.kernel.loops.grammar import Load, expressions, subexpressions, walk_statements
from smelt.kernel.plan.plan import Copy, Launch, Plan, Repeat, walk
from smelt.shape import Shape
from smelt.tensor import trace
from tests.unit.kernel.sized import program


def launches(plan: Plan) -> Iterator[Launch]:
    return (step for step in walk(plan.steps) if isinstance(step, Launch))


CONCATENATE = "%r = stablehlo.concatenate %a, %b, dim = 0 : (f32[N, 4], f32[M, 4]) -> f32[M + N, 4]"
PARTS = {
    "elementwise": "%a = stablehlo.exponential %0 : f32[N, 4]\n%b = stablehlo.negate %1 : f32[M, 4]\n",
    "a product": "%a = stablehlo.dot_general %0, %2, contracting_dims = [1] x [0]"
    " : (f32[N, 4], f32[4, 4]) -> f32[N, 4]\n%b = stablehlo.negate %1 : f32[M, 4]\n",
    "a reshape": "%n = stablehlo.exponential %0 : f32[N, 4]\n%c = stablehlo.reshape %n : (f32[N, 4]) -> f32[N, 2, 2]\n"
    "%a = stablehlo.reshape %c : (f32[N, 2, 2]) -> f32[N, 4]\n%b = stablehlo.negate %1 : f32[M, 4]\n",
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_concatenation_are_made_in_place(name: str) -> None:
    source = program("f32[N, 4]", "f32[M, 4]", "f32[4, 4]", body=PARTS[name] + CONCATENATE, results=["f32[M + N, 4]"])
    plan, _ = plan_program(source).main
    (result,) = (i for i, buffer in enumerate(plan.buffers) if buffer.kind == "result")
    writing = [step for step in launches(plan) if result in step.writes]
    assert len(writing) == 2, "each part has one kernel, which writes into the whole"
    assert not any(isinstance(step, Copy) for step in walk(plan.steps))
    assert [buffer.kind for buffer in plan.buffers if buffer.kind == "temporary" and buffer.shape.rank == 2] == []


def attention(causal: bool) -> ProgramPlan:
    def attend(q: smelt.Tensor, k: smelt.Tensor) -> smelt.Tensor:
        return nn.attention(q, k, k, causal=causal)

    shapes = Shape("f32", b=2, s=256, h=2, k=16), Shape("f32", b=2, t=256, h=2, k=16)
    return plan_program(trace(attend, *shapes).program)


def test_blocks_that_a_mask_hides_are_skipped() -> None:
    """What masks leave of each block is found first, in four buffers beside the packed keys and values."""
    for causal, count in ((True, 6), (False, 2)):
        plan, _ = attention(causal).main
        (kernel,) = (step for step in launches(plan) if step.kernel.kind == "attention")
        scratch = [plan.buffers[i].shape for i in kernel.writes if plan.buffers[i].kind == "temporary"]
        assert len(scratch) == count, scratch
        read = {
            kernel.buffers[load.place.array]
            for statement in walk_statements(kernel.kernel.body)
            for expr in expressions(statement)
            for load in subexpressions(expr)
            if isinstance(load, Load) and isinstance(load.place.array, int)
        }
        spared = [i for i in kernel.writes if plan.buffers[i].kind == "temporary"][2:]
        assert read.issuperset(spared), "what was found about masks decides which keys are looked at"


def test_the_panels_of_a_recurrent_weight_are_packed_before_the_loop() -> None:
    layer = nn.RNN(i=32, h=32)
    source: Program = trace(layer.__call__, Shape("f32", b="B", t="T", i=32)).program
    made = plan_program(source)
    assert made.prepare is not None
    assert any("smelt.relayout" in step.kernel.ops for step in launches(made.prepare[0]))
    loops = [step for step in walk(made.main[0].steps) if isinstance(step, Repeat)]
    inside = [each.kernel.ops for loop in loops for each in walk(loop.body) if isinstance(each, Launch)]
    assert inside
    assert not any("smelt.relayout" in ops for ops in inside)


@pytest.mark.parametrize("size", [1, 3, 17, 1000])
def test_memory_is_aligned_to_cache_lines(size: int) -> None:
    """Slots of the arena, its beginning, and constants."""
    body = (
        "%s = stablehlo.exponential %0 : f32[N, N]\n"
        "%p = stablehlo.dot_general %s, %s, contracting_dims = [1] x [0] : (f32[N, N], f32[N, N]) -> f32[N, N]\n"
        "%r = stablehlo.dot_general %p, %s, contracting_dims = [1] x [0] : (f32[N, N], f32[N, N]) -> f32[N, N]"
    )
    _, memory = plan_program(program("f32[N, N]", body=body, results=["f32[N, N]"])).main
    assert len(memory.slots) > 1
    assert all(evaluate(bytes, {"N": size}) % 64 == 0 for slot in memory.slots for bytes in slot)
    array = runtime().empty((size,), np.dtype(np.float32))
    assert array.__array_interface__["data"][0] % 64 == 0
