"""A mixture of experts as the MLP of a layer: a router chooses, the chosen experts' outputs are added up.

Every expert computes every token, and experts that were not chosen are weighted by zero: correct for all sizes, and
slow for many experts until there is a grouped GEMM.
"""

from __future__ import annotations

from smelt.llm.config import Config, Experts
from smelt.llm.layers import Formats, Linear, Matrix
from smelt.tensor import nn
from smelt.tensor.core import Tensor
from smelt.tensor.model import Model


class Mixture(Model):
    router: Linear
    gate_experts: Matrix
    up_experts: Matrix
    down_experts: Matrix

    def __init__(self, config: Config, experts: Experts, path: str, formats: Formats) -> None:
        wide = {"e": experts.count, "f": experts.f, "d": config.d}
        self.router = Linear(f"{path}.router", formats, False, e=experts.count, d=config.d)
        self.gate_experts = Matrix(f"{path}.gate_experts.weight", formats, **wide)
        self.up_experts = Matrix(f"{path}.up_experts.weight", formats, **wide)
        self.down_experts = Matrix(f"{path}.down_experts.weight", formats, e=experts.count, d=config.d, f=experts.f)
        self._activation = nn.activation(config.activation)
        self._experts = experts

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = (x.dot(each.dense(), "d") for each in (self.gate_experts, self.up_experts))
        hidden = self._activation(gate) * up * self._shares(x)
        return hidden.dot(self.down_experts.dense(), "e f")

    def _shares(self, x: Tensor) -> Tensor:
        """The routing weight of each expert for each token, f32[s, e]; 0 for experts that were not chosen."""
        chosen, places = self.router(x).softmax("e").top_k(self._experts.used, "e")
        if self._experts.normalise:
            chosen = chosen / chosen.sum("e")
        spread = places.rename(e="n").one_hot(self._experts.count, "e")
        return (spread * chosen.rename(e="n")).sum("n")
