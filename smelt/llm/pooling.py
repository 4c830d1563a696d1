"""From states of tokens to one vector per text: pooling, dense layers and normalisation. `sentence_files` reads them
from a folder; bundles hold them as a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.errors import FileError, RunError


def _mean(states: Array) -> Array:
    found: Array = states.mean(0)
    return found


def _weight_by_position(states: Array) -> Array:
    weights = np.arange(1, len(states) + 1, dtype=np.float64)[:, None]
    found: Array = (states * weights).sum(0) / weights.sum()
    return found


MODES: dict[str, Callable[[Array], Array]] = {  # f64[tokens, d] → f64[d]
    "cls": lambda states: states[0],
    "max": lambda states: states.max(0),
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / np.sqrt(len(states)),
    "weightedmean": _weight_by_position,
    "lasttoken": lambda states: states[-1],
}
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@dataclass(frozen=True, slots=True)
class Normalise:
    """A vector of length one."""

    def __call__(self, x: Array) -> Array:
        found: Array = x / max(float(np.linalg.norm(x)), 1e-12)
        return found


@dataclass(frozen=True, slots=True)
class Dense:
    """A projection [out, in] with a bias, and an activation."""

    matrix: Array
    bias: Array
    activation: str

    def __call__(self, x: Array) -> Array:
        return ACTIVATIONS[self.activation](self.matrix @ x + self.bias)


@dataclass(frozen=True, slots=True)
class Pooling:
    """Modes whose vectors are concatenated, then the steps behind them. `most` tokens of a text count."""

    modes: tuple[str, ...] = ("mean",)
    steps: tuple[Normalise | Dense, ...] = ()
    most: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None  # the prompt that goes before every text

    def before(self, name: str | None) -> str:
        """What goes before every text: the prompt of a name, or the default one."""
        name = self.default if name is None else name
        if name is not None and name not in self.prompts:
            raise RunError(
                "no such prompt",
                expected=", ".join(self.prompts) or "none",
                got=name,
                remedy="leave the prompt out, or name one of these",
            )
        return "" if name is None else self.prompts[name]

    def check(self, width: int, source: str) -> int:
        """The width of vectors; layers that do not fit each other, or states of this width, are refused."""
        width *= len(self.modes)
        for step in self.steps:
            if isinstance(step, Dense):
                got = (step.matrix.shape, step.bias.shape)
                rows = step.matrix.shape[0] if step.matrix.ndim == 2 else 0
                if not rows or got != ((rows, width), (rows,)):
                    raise FileError(
                        f"{source}: a layer behind the encoder does not fit",
                        expected=f"a matrix [n, {width}] and a bias [n]",
                        got=" and ".join(str(list(each)) for each in got),
                        remedy="fetch the whole folder again",
                    )
                width = rows
        return width

    def __call__(self, states: Array) -> Array:
        """States of a text's tokens, f32[tokens, d] → its vector."""
        wide = states.astype(np.float64)
        found = np.concatenate([MODES[mode](wide) for mode in self.modes])
        for step in self.steps:
            found = step(found)
        return found.astype(np.float32)


# ---- in bundles ----


def files_of_pooling(pooling: Pooling) -> tuple[dict[str, Any], dict[str, Callable[[], bytes]]]:
    """A record for JSON, and the arrays as files."""
    arrays: dict[str, Callable[[], bytes]] = {}
    steps: list[Any] = []
    for i, step in enumerate(pooling.steps):
        if isinstance(step, Normalise):
            steps.append("normalise")
            continue
        arrays[f"pooling {i} matrix"], arrays[f"pooling {i} bias"] = step.matrix.tobytes, step.bias.tobytes
        steps.append([step.activation, list(step.matrix.shape)])
    record = {"modes": pooling.modes, "steps": steps, "most": pooling.most, "lower_case": pooling.lower_case}
    return {**record, "prompts": dict(pooling.prompts), "default": pooling.default}, arrays


def pooling_of(record: Any, files: Mapping[str, Callable[[], bytes]]) -> Pooling:
    """What `files_of_pooling` made a record of. A malformed one raises ValueError, TypeError or KeyError."""
    steps: list[Normalise | Dense] = []
    for i, step in enumerate(record["steps"]):
        if step == "normalise":
            steps.append(Normalise())
            continue
        activation, (rows, columns) = step
        matrix = np.frombuffer(files[f"pooling {i} matrix"](), np.float64).reshape(rows, columns)
        bias = np.frombuffer(files[f"pooling {i} bias"](), np.float64).reshape(rows)
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}")
        steps.append(Dense(matrix, bias, activation))
    modes, most, prompts, default = (record[key] for key in ("modes", "most", "prompts", "default"))
    if not modes or not all(mode in MODES for mode in modes):
        raise ValueError(f"unknown pooling {modes!r}")
    if not (most is None or (type(most) is int and most > 0)) or not (default is None or default in prompts):
        raise ValueError("a longest text, or a default prompt, that is none")
    if not all(isinstance(each, str) for each in prompts.values()):
        raise TypeError("prompts are texts")
    return Pooling(tuple(modes), tuple(steps), most, record["lower_case"] is True, dict(prompts), default)
