"""When an optimiser steps: after several batches (`accumulate`), not on infinite gradients (`skip_infinite`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.errors import ShapeError
from smelt.structure import leaves, map_leaves
from smelt.tensor.core import Tensor
from smelt.tensor.data import tensor
from smelt.tensor.ops.elementwise import where
from smelt.tensor.ops.move import full
from smelt.train.optimisers import Optimiser, State, Tensors


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

    return Optimiser(f"accumulated {optimiser.name}", init, update)


def skip_infinite(optimiser: Optimiser) -> Optimiser:
    """The optimiser without the steps whose gradients hold infinity or nan: those only count, and change nothing else.

    For narrow floats with a loss scale (`mixed`), where single steps may overflow.
    """

    def update(gradients: Tensors, state: State, parameters: Tensors) -> tuple[dict[str, Tensor], State]:
        fine: Tensor | None = None
        for g in gradients.values():
            finite = g.isfinite().all()
            fine = finite if fine is None else fine & finite
        assert fine is not None, "there are parameters"
        known = {name: where(fine, g, 0.0) for name, g in gradients.items()}
        moved, after = optimiser.update(known, state, parameters)
        chosen = _choose(fine, after, state)
        return _choose(fine, moved, dict(parameters)), {**chosen, "step": after["step"]}

    return Optimiser(f"{optimiser.name} without infinite steps", optimiser.init, update)


def _choose(condition: Tensor, then: dict[str, Any], otherwise: dict[str, Any]) -> dict[str, Any]:
    """Each tensor of one dictionary of dictionaries, or that of the other."""
    others = iter([value for _, value in leaves(otherwise, _is_tensor)])
    chosen: dict[str, Any] = map_leaves(
        then, _is_tensor, lambda value: where(condition, value, next(others)), tied=False
    )
    return chosen


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
