"""Automatic rematerialisation: a training step keeps to a memory limit, with the same losses, or is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt
from bench.train import transformer
from smelt import Tensor, train
from smelt.device.registry import find_device
from smelt.engine.compile import lower, plan_program, plan_within
from smelt.engine.native import NativeEngine
from smelt.errors import MemoryLimitError, ShapeError, UnsupportedError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.verify import verify
from smelt.passes import recompute
from smelt.passes.recompute import use_less_memory
from smelt.tensor.jit.trace import trace
from tests.property.grad_programs import SIZES as AXES
from tests.property.grad_programs import draw_program

LAYERS, WIDTH, ROWS = 8, 64, 8192
SIZES = transformer.Sizes(vocabulary=7, width=16, layers=2, heads=2, context=32, batch=4)


def network() -> dict[str, Tensor]:
    rng = np.random.default_rng(2)
    arrays = {f"w{i}": (rng.normal(size=(WIDTH, WIDTH)) * WIDTH**-0.5).astype(np.float32) for i in range(LAYERS)}
    return {name: smelt.tensor(array, "d f") for name, array in arrays.items()}


def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
    for w in p.values():
        x = x.dot(w, "d").tanh().rename(f="d")
    return x.square().mean()


SHAPE = f"f32[b={ROWS}, d={WIDTH}]"


def step_program() -> Program:
    def step(p: dict[str, Tensor], x: Tensor) -> Any:
        return smelt.value_and_grad(loss)(p, x)

    shapes = {name: smelt.symbolic(tensor.shape) for name, tensor in network().items()}
    (path,) = trace(step, shapes, smelt.symbolic(SHAPE)).paths
    return path.program


@pytest.mark.skipif(NativeEngine().missing() is not None, reason="no compiler")
def test_a_plan_keeps_to_its_limit_or_is_refused() -> None:
    program, target = step_program(), find_device().target()
    whole = plan_program(program).footprint
    activation = ROWS * WIDTH * 4
    assert whole.parts({})["temporaries"] > LAYERS * activation, "every layer's activations are kept"
    limit = int(0.7 * whole.required_bytes({}))
    found = plan_within(program, target, limit).footprint
    assert found.required_bytes({}) <= limit
    with pytest.raises(MemoryLimitError, match="at most"):
        plan_within(program, target, 2 * activation)


@pytest.mark.skipif(NativeEngine().missing() is not None, reason="no compiler")
def test_a_limit_does_not_change_what_is_learnt() -> None:
    x = np.random.default_rng(5).normal(size=(ROWS, WIDTH)).astype(np.float32)
    whole = plan_program(step_program()).footprint.required_bytes({})
    free = train.Trainer(loss, network(), train.sgd(0.5), SHAPE, engine="native")
    limited = train.Trainer(loss, network(), train.sgd(0.5), SHAPE, memory_limit=x.nbytes + int(0.8 * whole))
    np.testing.assert_allclose([limited.step(x) for _ in range(3)], [free.step(x) for _ in range(3)], rtol=1e-6)


def test_limits_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(MemoryLimitError, match="parameters, optimiser state and batch"):
        train.Trainer(loss, network(), train.adam(0.5), SHAPE, memory_limit="100KB")
    with pytest.raises(UnsupportedError, match="only the native engine"):
        train.Trainer(loss, network(), train.adam(0.5), SHAPE, memory_limit="1GB", engine="pjrt")
    with pytest.raises(ShapeError, match="static sizes"):
        train.Trainer(loss, network(), train.adam(0.5), f"f32[b=B, d={WIDTH}]", memory_limit="1GB")


def test_computing_again_gives_the_same_bits() -> None:
    """The largest and the smallest version of a transformer's step, in the interpreter."""
    of, shapes = transformer.smelt_loss(SIZES)
    arrays = transformer.draw_weights(SIZES)
    names = {key: smelt.tensor(array, transformer.axes_of(key)).shape for key, array in arrays.items()}
    weights = {key: smelt.symbolic(shape) for key, shape in names.items()}
    step = smelt.value_and_grad(of)
    (path,) = trace(lambda p, *batch: step(p, *batch), weights, *map(smelt.symbolic, shapes)).paths
    lowered = lower(path.program)
    given = [*arrays.values(), *transformer.draw_batch(SIZES, 0)]
    wanted = run(lowered, given)
    first, *_, last = use_less_memory(lowered)
    assert len(last.main.body.ops) > len(first.main.body.ops), "something is computed again"
    for version in (first, last):
        verify(version)
        for got, want in zip(run(version, given), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_random_gradients_stay_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """All versions of random programs, however small their values."""
    monkeypatch.setattr(recompute, "LARGE", 1)
    longer = 0
    for number in range(12):
        rng = np.random.default_rng([seed, number])
        pair = draw_program(rng)
        arrays = [rng.uniform(-1, 1, [AXES[n] for n in names]).astype(np.float32) for names in pair.inputs]
        shapes = [f"f32[{', '.join(f'{n}={AXES[n]}' for n in names)}]" for names in pair.inputs]
        step = smelt.value_and_grad(pair.on_tensors, tuple(range(len(arrays))))
        (path,) = trace(lambda *given, of=step: of(*given), *map(smelt.symbolic, shapes)).paths
        lowered = lower(path.program)
        versions = list(use_less_memory(lowered))
        longer += len(versions[-1].main.body.ops) > len(lowered.main.body.ops)
        for version in versions:
            verify(version)
            for got, want in zip(run(version, arrays), run(lowered, arrays), strict=True):
                np.testing.assert_array_equal(got, want)
    assert longer
