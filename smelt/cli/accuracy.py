"""The error of a model in bf16 or int8 against f32, on the same inputs. `smelt bench` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.model import load


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One output: the cosine similarity of both versions, the largest error, and the largest magnitude."""

    output: str
    cosine: float
    max_error: float
    greatest: float

    def record(self) -> dict[str, Any]:
        return asdict(self)


def accuracy(file: Path, inputs: Mapping[str, Array], ours: Mapping[str, Any]) -> list[Accuracy]:
    """Run the model with the options `ours`, its precision among them, and in f32, and compare the outputs."""
    exact, rounded = (load(file, **{**ours, "precision": each}).run(inputs) for each in ("f32", ours["precision"]))
    return [compare(name, exact[name], rounded[name]) for name in exact]


def compare(name: str, exact: Array, rounded: Array) -> Accuracy:
    a, b = (np.asarray(each, np.float64).reshape(-1) for each in (exact, rounded))
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / norms if norms else float(np.array_equal(a, b))
    return Accuracy(name, cosine, float(np.abs(a - b).max(initial=0.0)), float(np.abs(a).max(initial=0.0)))
