"""The order of steps and slots that saves memory: gradients of weights where the backward pass reaches their layer."""

from __future__ import annotations

import numpy as np
import pytest

import smelt
from smelt import Tensor, train
from smelt.engine.compile import mark_donated, plan_program
from smelt.engine.signature import signature_of
from smelt.ir.core import Program
from smelt.kernel.plan import memory, reorder

LAYERS = 6


def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
    for i in range(LAYERS):
        x = x.dot(p[f"w{i}"], "d").rename(e="d").tanh()
    return x.square().mean()


def trainer(width: int, batch: int, engine: str) -> train.Trainer:
    rng = np.random.default_rng(0)
    shape = (width, width)
    weights = {f"w{i}": smelt.tensor(rng.normal(size=shape).astype(np.float32), "d e") for i in range(LAYERS)}
    return train.Trainer(loss, weights, train.sgd(0.1, momentum=0.9), f"f32[b={batch}, d={width}]", engine=engine)


def donated_step(width: int, batch: int) -> Program:
    program = trainer(width, batch, "reference")._step.program
    names = [port.name for port in signature_of(program.main).inputs]
    return mark_donated(program, names[:-1])


def test_activations_die_in_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    program = donated_step(64, 65536)
    plan, held = plan_program(program).main
    monkeypatch.setattr(reorder, "is_clearly_less", lambda *_: False)
    usual, _ = plan_program(program).main
    activation = 4 * 64 * 65536
    assert reorder.peak(plan) <= (LAYERS + 3) * activation, "one for each layer, and the cotangents of one layer"
    assert reorder.peak(usual) >= reorder.peak(plan) + 3 * activation
    assert held.peak({}) <= 1.1 * reorder.peak(plan)
    assert {step.kernel for step in plan.steps if hasattr(step, "kernel")} == {
        step.kernel for step in usual.steps if hasattr(step, "kernel")
    }, "the same kernels in another order"
    assert len(plan.reused) == len(usual.reused) == 2 * LAYERS + 1, "every parameter, its momentum and the step"


def test_another_order_gives_the_same_bits_in_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    found = []
    for less in (False, True):
        monkeypatch.setattr(reorder, "is_clearly_less", lambda *_, less=less: less)
        monkeypatch.setattr(memory, "is_clearly_less", lambda *_, less=less: less)
        each = trainer(16, 8, "native")
        losses = [each.step(x)]
        before = {name: array.ctypes.data for name, array in each._arrays().items()}
        losses += [each.step(x) for _ in range(3)]
        assert {name: array.ctypes.data for name, array in each._arrays().items()} == before
        found.append((losses, each._arrays()))
    assert found[0][0] == found[1][0]
    for name, array in found[0][1].items():
        np.testing.assert_array_equal(array, found[1][1][name])
