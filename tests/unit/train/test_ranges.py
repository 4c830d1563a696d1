"""Options of optimisers and schedules: their bounds are allowed, what is beyond is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from smelt.errors import ShapeError
from smelt.train import matrices, optimisers, schedules

INF = math.inf
# name of the maker, option, least, most; the other arguments
OPTIONS: list[tuple[Callable[..., Any], str, float, float, dict[str, Any]]] = [
    (optimisers.sgd, "momentum", 0, 1, {"rate": 0.1}),
    (optimisers.sgd, "weight_decay", 0, INF, {"rate": 0.1}),
    (optimisers.adam, "beta1", 0, 1, {"rate": 0.1}),
    (optimisers.adam, "beta2", 0, 1, {"rate": 0.1}),
    (optimisers.adamw, "beta1", 0, 1, {"rate": 0.1}),
    (optimisers.adamw, "beta2", 0, 1, {"rate": 0.1}),
    (optimisers.adamw, "weight_decay", 0, INF, {"rate": 0.1}),
    (optimisers.lion, "beta1", 0, 1, {"rate": 0.1}),
    (optimisers.lion, "beta2", 0, 1, {"rate": 0.1}),
    (optimisers.lion, "weight_decay", 0, INF, {"rate": 0.1}),
    (optimisers.rmsprop, "decay", 0, 1, {"rate": 0.1}),
    (optimisers.rmsprop, "momentum", 0, 1, {"rate": 0.1}),
    (optimisers.clip, "norm", 0, INF, {"optimiser": optimisers.sgd(0.1)}),
    (optimisers.average, "decay", 0, 1, {"optimiser": optimisers.sgd(0.1)}),
    (schedules.cosine, "steps", 4, INF, {"peak": 0.1, "warmup": 3}),
    (schedules.cosine, "warmup", 0, INF, {"peak": 0.1, "steps": 1e12}),
    (schedules.linear, "steps", 4, INF, {"peak": 0.1, "warmup": 3}),
    (schedules.linear, "warmup", 0, INF, {"peak": 0.1, "steps": 1e12}),
    (schedules.step_decay, "every", 1, INF, {"peak": 0.1, "factor": 0.5}),
    (schedules.step_decay, "factor", 1e-30, 1, {"peak": 0.1, "every": 5}),
    (schedules.one_cycle, "steps", 2, INF, {"peak": 0.1, "rise": 0.9}),
    (schedules.one_cycle, "rise", 0.15, 1, {"peak": 0.1, "steps": 10}),
    (schedules.warm_up, "steps", 1, INF, {"peak": 0.1}),
]
OPTIONS += [
    (matrices.adafactor, "decay", -1, 0, {}),
    (matrices.adafactor, "clip", 1e-9, INF, {}),
    (matrices.adafactor, "weight_decay", 0, INF, {}),
    (matrices.muon, "momentum", 0, 1, {}),
    (matrices.muon, "weight_decay", 0, INF, {}),
    (matrices.muon, "iterations", 1, 99, {}),
]


@pytest.mark.parametrize(
    ("make", "option", "least", "most", "others"), OPTIONS, ids=[f"{each[0].__name__} {each[1]}" for each in OPTIONS]
)
def test_ranges(make: Callable[..., Any], option: str, least: float, most: float, others: dict[str, Any]) -> None:
    past = 1 if option in ("steps", "warmup", "every", "iterations") else 1e-3 if least == 0 else abs(least) / 100
    others = {("rate" if make is schedules.warm_up and name == "peak" else name): each for name, each in others.items()}
    for bound in (least, most):
        if math.isfinite(bound):
            assert make(**others, **{option: bound}) is not None
    wrong = [least - past] + ([most + 1e-3] if math.isfinite(most) else []) + ([math.nan] if option != "warmup" else [])
    for number in wrong:
        with pytest.raises(ShapeError, match=rf"{make.__name__}: {option} is out of range") as raised:
            make(**others, **{option: number})
        assert raised.value.expected == f"{least:g} to {most:g}"
