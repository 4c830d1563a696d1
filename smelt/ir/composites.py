"""Composites: computations with a name of their own, that an engine may know as one kernel.

The one table of names and attributes. `passes.recognise` finds them in what exporters have taken apart, and keeps the
ops it found as the decomposition; an engine that does not know a name runs those.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Composite:
    """A name, the attributes that say which variant it is, and the formula. `x` is always the first operand."""

    name: str
    attributes: tuple[str, ...]
    formula: str


TABLE = (
    Composite("smelt.softmax", ("axis",), "exp(x - max x) / sum exp(x - max x), along one axis"),
    Composite("smelt.layer_norm", ("axes", "epsilon"), "(x - mean) / sqrt(variance + epsilon) [* scale [+ bias]]"),
    Composite("smelt.rms_norm", ("axes", "epsilon"), "x / sqrt(mean x^2 + epsilon) [* scale]"),
    Composite("smelt.gelu", ("approximate",), "x * Phi(x), by erf or by tanh"),
    Composite("smelt.silu", (), "x * logistic(x)"),
    Composite("smelt.hard_swish", (), "x * clamp(x / 6 + 1 / 2, 0, 1)"),
    Composite("smelt.attention", ("scale",), "softmax(q k^T * scale [+ mask]) v; operands q, k, v, mask?"),
)
COMPOSITES: dict[str, Composite] = {row.name: row for row in TABLE}
