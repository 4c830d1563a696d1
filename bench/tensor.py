"""How long the front end takes: tracing and proving transformers of growing depth, and answering small expressions.

    python -m bench.tensor

Processor time of one thread. A transformer of `smelt.nn` has symbols for all sizes; every layer has causal attention
with grouped heads and rotary positions, two norms and a gated block. Small expressions are measured when new, and when
they were seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

import smelt
from smelt import Shaped, Tensor, nn
from smelt.tensor import engine, trace
from smelt.tensor.jit.realise import CACHE

DEPTHS = (8, 16, 32, 64)


class Layer(smelt.Model):
    before: nn.RMSNorm = nn.RMSNorm(d="D")
    attention: nn.MultiHeadAttention = nn.MultiHeadAttention(
        d="D", heads="H", kv_heads="G", head_size="2*K", causal=True, rope=nn.RoPE(k="2*K")
    )
    after: nn.RMSNorm = nn.RMSNorm(d="D")
    gate: nn.Linear = nn.Linear(d="D", f="F", bias=False)
    up: nn.Linear = nn.Linear(d="D", f="F", bias=False)
    down: nn.Linear = nn.Linear(f="F", d="D", bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        y = self.after(x)
        return x + self.down(nn.silu(self.gate(y)) * self.up(y))


class Transformer(smelt.Model):
    embedding: nn.Embedding = nn.Embedding(v="V", d="D")
    layers: list[Layer]

    def forward(self, ids: Shaped[Tensor, "i32[b=B, s=S]"]) -> Shaped[Tensor, "f32[b=B, s=S, v=V]"]:  # noqa: F722
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.embedding.logits(x)


def processor_seconds(run: Callable[[], object], times: int = 3) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def expression(x: Tensor, scale: float) -> float:
    return float(((x * scale + 1.0).tanh().sum("d") - x.max("d")).sum().item())


def main() -> None:
    record: dict[str, object] = {}
    for depth in DEPTHS:
        model = Transformer(layers=depth)
        ops = len(trace(model.forward).program.main.body.ops)
        seconds = processor_seconds(lambda model=model: trace(model.forward))  # type: ignore[misc]
        record[f"trace {depth} layers"] = {"seconds": round(seconds, 4), "ops": ops}
    x = smelt.tensor(np.ones((4, 8), np.float32), "b d")
    expression(x, 0.5)
    new = [processor_seconds(lambda i=i: expression(x, 1.0 + i), 1) for i in range(20)]  # type: ignore[misc]
    record["new expression (ms)"] = round(1e3 * sorted(new)[10], 3)
    with engine("reference"):
        seen = [processor_seconds(lambda: expression(x, 0.5), 1) for _ in range(50)]
    record["seen expression, reference (ms)"] = round(1e3 * sorted(seen)[25], 3)
    expression(x, 0.5)
    deadline = time.monotonic() + 30
    while any(entry.waiting for entry in CACHE.entries()) and time.monotonic() < deadline:
        time.sleep(0.05)
    seen = [processor_seconds(lambda: expression(x, 0.5), 1) for _ in range(50)]
    record["seen expression, compiled (ms)"] = round(1e3 * sorted(seen)[25], 3)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
