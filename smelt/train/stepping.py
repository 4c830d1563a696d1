"""When an optimiser steps: after several batches (`accumulate`), not on infinite gradients (`skip_infinite`,
`scale_loss`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.errors import ShapeError
from smelt.structure import leaves, map_leaves
from smelt.tensor.core import Tensor
from smelt.tensor.data import tensor
from smelt.tensor.ops.elementwise import minimum, where
from smelt.tensor.ops.move import full
from smelt.train.optimisers import SCALE, Optimiser, State, Tensors, check_unscaled


def accumulate(optimiser: Optimiser, batches: int) -> Optimiser:
    """The optimiser on the mean gradient of several batches: parameters change after every `batches` of them.

    A batch that does not fit in memory is cut into equal parts. The optimiser's own state, and with it a schedule,
    advances once for all of them; `Trainer.steps` counts the parts.
    """
    if batches < 1:
        raise ShapeError("accumulate: the number of batches is out of range", expected="1 or more", got=batches)

    def init(parameters: Tensors) -> State:
        zeros = {name: full(value.shape, 0.0) for name, value in parameters.items()}
        return {"step": tensor(np.int32(0)), "total": zeros, "inner": optimiser.init(parameters)}

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        count = state["step"] + 1
        done = count % batches == 0
        total = {name: state["total"][name] + g * (1 / batches) for name, g in gradients.items()}
        moved, after = optimiser.update(total, state["inner"], parameters)
        left = {name: where(done, 0.0, value) for name, value in total.items()}
        inner = _choose(done, after, state["inner"])
        return _choose(done, moved, dict(parameters)), {"step": count, "total": left, "inner": inner}

    return Optimiser(f"accumulated {optimiser.name}", init, update, optimiser.scales_loss)


def skip_infinite(optimiser: Optimiser) -> Optimiser:
    """The optimiser without the steps whose gradients hold infinity or nan: those only count, and change nothing else.

    For narrow floats with a loss scale (`mixed`), where single steps may overflow.
    """

    check_unscaled("skip_infinite", optimiser)

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        fine = _are_finite(gradients)
        known = {name: where(fine, g, 0.0) for name, g in gradients.items()}
        moved, after = optimiser.update(known, state, parameters)
        chosen = _choose(fine, after, state)
        return _choose(fine, moved, dict(parameters)), {**chosen, "step": after["step"]}

    return Optimiser(f"{optimiser.name} without infinite steps", optimiser.init, update)


def scale_loss(
    optimiser: Optimiser,
    start: float = 65536.0,
    *,
    growth: float = 2.0,
    backoff: float = 0.5,
    interval: int = 2000,
    largest: float = 2.0**24,
) -> Optimiser:
    """The optimiser with dynamic loss scaling, for losses in f16 (`mixed`): small gradients do not vanish.

    `Trainer` multiplies the loss by a factor that the state holds, and gradients are divided by it. Where one is
    infinite or nan the step is skipped and the factor multiplied by `backoff`; after `interval` steps without that it
    is multiplied by `growth`. These are the rules of PyTorch's GradScaler.

    >>> import smelt
    >>> from smelt import train
    >>> half = train.mixed(lambda p, x: (x.dot(p["w"], "d").to("f32") ** 2).mean(), "f16")
    >>> start = {"w": smelt.tensor([1.0, 2.0], "d")}
    >>> trainer = train.Trainer(half, start, scale_loss(train.sgd(0.1)), "f32[b=1, d=2]", engine="reference")
    >>> trainer.step(np.ones((1, 2), np.float32)), trainer.loss_scale  # 65536 * 6 is too large for f16
    (9.0, 32768.0)
    """
    fits = start > 0 and growth > 1 and 0 < backoff < 1 and interval >= 1 and largest >= start
    if not fits:
        got = {"start": start, "growth": growth, "backoff": backoff, "interval": interval, "largest": largest}
        expected = "0 < start <= largest, growth > 1, 0 < backoff < 1, interval >= 1"
        raise ShapeError("scale_loss: a number is out of range", expected=expected, got=got)
    check_unscaled("scale_loss", optimiser)

    def init(parameters: Tensors) -> State:
        own = {"step": tensor(np.int32(0)), SCALE: tensor(np.float32(start)), "good": tensor(np.int32(0))}
        return {**own, "inner": optimiser.init(parameters)}

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        factor, fine = state[SCALE], _are_finite(gradients)
        known = {name: where(fine, g, 0.0) / factor.to(g.dtype) for name, g in gradients.items()}
        moved, after = optimiser.update(known, state["inner"], parameters)
        good = where(fine, state["good"] + 1, 0)
        grown = good >= interval
        larger = where(grown, minimum(factor * growth, largest), factor)
        own = {
            "step": state["step"] + 1,
            SCALE: where(fine, larger, factor * backoff),
            "good": where(grown, 0, good),
        }
        return _choose(fine, moved, dict(parameters)), {**own, "inner": _choose(fine, after, state["inner"])}

    return Optimiser(f"{optimiser.name} with a scaled loss", init, update, scales_loss=True)


def find_scale(state: State) -> Any:
    """The factor of the loss in an optimiser's state, however it is nested; None: there is none."""
    if SCALE in state:
        return state[SCALE]
    inner = (find_scale(value) for value in state.values() if isinstance(value, dict))
    return next((value for value in inner if value is not None), None)


def _are_finite(gradients: Tensors) -> Tensor:
    fine: Tensor | None = None
    for g in gradients.values():
        finite = g.isfinite().all()
        fine = finite if fine is None else fine & finite
    assert fine is not None, "there are parameters"
    return fine


def _choose(condition: Tensor, then: dict[str, Any], otherwise: dict[str, Any]) -> dict[str, Any]:
    """Each tensor of one dictionary of dictionaries, or that of the other."""
    others = iter([value for _, value in leaves(otherwise, _is_tensor)])
    chosen: dict[str, Any] = map_leaves(
        then, _is_tensor, lambda value: where(condition, value, next(others)), tied=False
    )
    return chosen


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
