"""How long the front end takes: tracing and proving transformers of growing depth, and answering small expressions.

    python -m bench.tensor

Processor time of one thread. A transformer has symbolic B, S and D and states `H divides E`; every layer has attention
with a causal mask, two norms and a gated block. Small expressions are measured when new, and when they were seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

import smelt
from smelt import Shaped, Tensor
from smelt.tensor import engine, trace
from smelt.tensor.execution import CACHE

DEPTHS = (8, 16, 32, 64)


class Norm:
    weight: Shaped[Tensor, "f32[d=D]"]  # noqa: F722

    def __call__(self, x: Tensor) -> Tensor:
        return x * (x.square().mean("d") + 1e-5).rsqrt() * self.weight


class Layer:
    q: Shaped[Tensor, "f32[d=D, e=E]"]  # noqa: F722
    k: Shaped[Tensor, "f32[d=D, e=E]"]  # noqa: F722
    v: Shaped[Tensor, "f32[d=D, e=E]"]  # noqa: F722
    o: Shaped[Tensor, "f32[e=E, d=D]"]  # noqa: F722
    up: Shaped[Tensor, "f32[d=D, f=F]"]  # noqa: F722
    gate: Shaped[Tensor, "f32[d=D, f=F]"]  # noqa: F722
    down: Shaped[Tensor, "f32[f=F, d=D]"]  # noqa: F722
    before: Norm
    after: Norm

    def __call__(self, x: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (y.dot(weight, "d").split("e", h="H", k=None) for weight in (self.q, self.k, self.v))
        k, v = k.rename(s="t"), v.rename(s="t")
        place, other = smelt.arange(x.size("s"), "s"), smelt.arange(x.size("s"), "t")
        scores = smelt.where(smelt.outer("-", place, other) >= 0, q.dot(k, "k") * 0.125, -1e9)
        heads = scores.softmax("t").dot(v, "t").transpose("b s h k").merge("h k", "e")
        x = x + heads.dot(self.o, "e")
        y = self.after(x)
        return x + (y.dot(self.gate, "d").silu() * y.dot(self.up, "d")).dot(self.down, "f")


class Transformer:
    facts = ("H divides E",)
    embedding: Shaped[Tensor, "f32[v=V, d=D]"]  # noqa: F722

    def __init__(self, depth: int) -> None:
        self.layers = [Layer() for _ in range(depth)]

    def forward(self, ids: Shaped[Tensor, "i32[b=B, s=S]"]) -> Shaped[Tensor, "f32[b=B, s=S, v=V]"]:  # noqa: F722
        x = self.embedding.take(ids, "v")
        for layer in self.layers:
            x = layer(x)
        return x.dot(self.embedding, "d")


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
        model = Transformer(depth)
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
