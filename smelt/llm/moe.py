"""A mixture of experts as the MLP of a layer: a router chooses, the chosen experts' outputs are added up.

Where the device has a grouped GEMM for the weights (`checkpoint`), tokens are sorted by expert and each expert
multiplies its own tokens. Elsewhere every expert computes every token, and those that were not chosen are weighted by
zero.
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
        self._experts, self._grouped = experts, config.grouped_experts

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = self._choose(x)
        return self._multiply_groups(x, weights, chosen) if self._grouped else self._multiply_all(x, weights, chosen)

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights f32[s, n] and the numbers i32[s, n] of the n experts that each token takes."""
        weights, chosen = (
            each.rename(e="n") for each in self.router(x, precision="high").softmax("e").top_k(self._experts.used, "e")
        )
        return (weights / weights.sum("n") if self._experts.normalise else weights), chosen

    def _multiply_groups(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Rows are pairs of a token and one of its experts, sorted by expert; sums are in the order of the choice."""
        experts, used = chosen.merge("s n", "r"), self._experts.used
        order = experts.argsort("r")
        sizes = experts.one_hot(self._experts.count, "e", "i32").sum("r")
        rows = x.rename(s="t").take(order // used, "t")
        gate, up = (rows.ragged_dot(each.dense(), sizes, "d") for each in (self.gate_experts, self.up_experts))
        made = (self._activation(gate) * up).ragged_dot(self.down_experts.dense(), sizes, "f")
        back = order.argsort("r").split("r", s=None, n=used)
        return (made.take(back, "r") * weights).sum("n")

    def _multiply_all(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        gate, up = (x.dot(each.dense(), "d", precision="high") for each in (self.gate_experts, self.up_experts))
        shares = (chosen.one_hot(self._experts.count, "e") * weights).sum("n")  # 0 for those that were not chosen
        return (self._activation(gate) * up * shares).dot(self.down_experts.dense(), "e f", precision="high")
