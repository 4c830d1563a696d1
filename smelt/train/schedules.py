"""Learning rates as functions of the step, from 0 on; the formulas are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable

from smelt.errors import ShapeError
from smelt.tensor.core import Tensor
from smelt.tensor.ops.elementwise import where

Schedule = Callable[[Tensor], Tensor]


def check_range(name: str, **numbers: tuple[float, float, float]) -> None:
    """Each of (number, least, most) in its range."""
    for label, (number, least, most) in numbers.items():
        if not least <= number <= most:
            raise ShapeError(f"{name}: {label} is out of range", expected=f"{least:g} to {most:g}", got=number)


def _after_warmup(peak: float, warmup: int, falling: Schedule) -> Schedule:
    """From 0 up to the peak over `warmup` steps, then `falling`."""

    def rate(step: Tensor) -> Tensor:
        return where(step < warmup, peak * step / float(warmup), falling(step)) if warmup else falling(step)

    return rate


def _along(step: Tensor, first: float, last: float) -> Tensor:
    """How far a step is between two others, 0 to 1."""
    return ((step - first) / (last - first)).clamp(0.0, 1.0)


def _cosine_between(high: float, low: float, along: Tensor) -> Tensor:
    return low + (high - low) * 0.5 * (1.0 + (along * math.pi).cos())


def cosine(peak: float, steps: int, *, warmup: int = 0, final: float = 0.0) -> Schedule:
    """A learning rate that rises from 0 over `warmup` steps and falls to `final` along a cosine."""
    check_range("cosine", steps=(steps, warmup + 1, math.inf), warmup=(warmup, 0, math.inf))
    return _after_warmup(peak, warmup, lambda step: _cosine_between(peak, final, _along(step, warmup, steps)))


def linear(peak: float, steps: int, *, warmup: int = 0, final: float = 0.0) -> Schedule:
    """A learning rate that rises from 0 over `warmup` steps and falls to `final` along a line."""
    check_range("linear", steps=(steps, warmup + 1, math.inf), warmup=(warmup, 0, math.inf))
    return _after_warmup(peak, warmup, lambda step: peak + (final - peak) * _along(step, warmup, steps))


def step_decay(peak: float, every: int, factor: float = 0.1) -> Schedule:
    """A learning rate that is multiplied by `factor` after every `every` steps."""
    check_range("step_decay", every=(every, 1, math.inf), factor=(factor, 1e-30, 1))
    return lambda step: peak * ((step / float(every)).floor() * math.log(factor)).exp()


def one_cycle(peak: float, steps: int, *, rise: float = 0.3, start: float = 25.0, final: float = 1e4) -> Schedule:
    """From peak / start up to the peak over a share `rise` of the steps, then down to peak / start / final.

    Both ways are cosines. The peak is at step rise * steps - 1, and the end at the last step.
    """
    check_range("one_cycle", steps=(steps, 2, math.inf), rise=(rise, 1.5 / steps, 1))
    top = rise * steps - 1.0

    def rate(step: Tensor) -> Tensor:
        up = _cosine_between(peak / start, peak, _along(step, 0.0, top))
        down = _cosine_between(peak, peak / start / final, _along(step, top, steps - 1.0))
        return where(step <= top, up, down)

    return rate


def warm_up(rate: float | Schedule, steps: int) -> Schedule:
    """A rate, or a schedule, that rises from 0 over its first steps."""
    check_range("warm_up", steps=(steps, 1, math.inf))
    return lambda step: (rate(step) if callable(rate) else rate) * (step / float(steps)).clamp(0.0, 1.0)
