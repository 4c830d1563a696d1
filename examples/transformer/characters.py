# ruff: noqa: F722  # shapes are no forward references
"""A transformer that learns to write, character by character.

    python examples/transformer/characters.py [--text FILE] [--steps 300] [--checkpoint run.safetensors] [--resume]

In: a text; the topics of Python's own help, if none is given. Out: the loss, and a sample. Ctrl-C saves the checkpoint;
`--resume` goes on from it, to the same bits as a run that was never stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import smelt
from smelt import Shaped, Tensor, nn, train
from smelt.tensor.model import build, parameters_of


class Block(smelt.Model):
    """Attention to earlier characters and an MLP, each behind a norm."""

    def __init__(self, d: int, heads: int) -> None:
        self.heads = heads
        self.before, self.between = nn.LayerNorm(d=d), nn.LayerNorm(d=d)
        self.q, self.k, self.v = (nn.Linear(d=d, e=d, bias=False) for _ in range(3))
        self.out = nn.Linear(e=d, d=d, bias=False)
        self.up, self.down = nn.Linear(d=d, f=4 * d), nn.Linear(f=4 * d, d=d)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (layer(y).split("e", h=self.heads, k=None) for layer in (self.q, self.k, self.v))
        y = nn.attention(q, k.rename(s="t"), v.rename(s="t"), causal=True)
        x = x + self.out(y.merge("h k", "e"))
        return x + self.down(self.up(self.between(x)).gelu())


class Writer(smelt.Model):
    """Characters → logits of the character after each."""

    def __init__(self, v: int, length: int, d: int, layers: int, heads: int) -> None:
        self.characters, self.places = nn.Embedding(v=v, d=d), nn.Embedding(p=length, d=d)
        self.blocks = [Block(d, heads) for _ in range(layers)]
        self.norm, self.head = nn.LayerNorm(d=d), nn.Linear(d=d, v=v)
        self.facts = [f"S <= {length}", "S >= 1", f"{heads} divides {d}"]

    def forward(self, ids: Shaped[Tensor, "i32[b=B, s=S]"]) -> Tensor:
        places = self.places.weight.slice(p=slice(0, ids.size("s"))).rename(p="s")
        x = self.characters(ids) + places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def draw_weights(model: Writer, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Matrices from a normal distribution, norms 1, biases 0."""
    arrays = {}
    for name, spec in parameters_of(model).items():
        sizes = spec.shape.numbers()
        fill = np.ones if name.endswith("weight") else np.zeros
        arrays[name] = (rng.normal(scale=0.02, size=sizes) if len(sizes) > 1 else fill(sizes)).astype(np.float32)
    return arrays


def read_text(path: Path | None) -> str:
    if path is not None:
        return path.read_text()
    from pydoc_data import topics

    return "\n".join(topics.topics.values())


def sample(model: Writer, vocabulary: str, start: str, count: int, length: int, engine: str) -> str:
    """A text, one character after the other."""
    rng, text = np.random.default_rng(0), start
    with smelt.compile(model.forward, engine=engine).prepare(model) as step:
        for _ in range(count):
            ids = np.array([[vocabulary.index(c) for c in text[-length:]]], np.int32)
            logits = step(ids).numpy()[0, -1].astype(np.float64)
            chances = np.exp(logits - logits.max())
            text += vocabulary[rng.choice(len(vocabulary), p=chances / chances.sum())]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--write", type=int, default=200, help="characters of the sample")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--debug-nans", action="store_true", help="stop at the first nan, and name what made it")
    options = parser.parse_args()
    if options.checkpoint is not None and options.checkpoint.exists() and not options.resume:
        parser.error(f"{options.checkpoint} is there already: --resume goes on from it")
    text = read_text(options.text)
    vocabulary = "".join(sorted(set(text)))
    ids = np.array([vocabulary.index(c) for c in text], np.int32)
    rng = np.random.default_rng(0)
    model = Writer(len(vocabulary), options.length, options.width, options.layers, options.heads)
    size, length, per_epoch = options.batch, options.length, min(options.steps, 50)

    def rows(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Random pieces of the text, and the characters after."""
        draw = np.random.default_rng([1, epoch])
        for _ in range(per_epoch):
            at = draw.integers(0, len(ids) - length - 1, size)[:, None] + np.arange(length)
            yield ids[at], ids[at + 1]

    def loss(model: Writer, ids: Tensor, after: Tensor, weights: Tensor) -> Tensor:
        return train.cross_entropy(model.forward(ids), after, "v", weights)

    optimiser = train.clip(train.adamw(train.cosine(3e-3, options.steps, warmup=options.steps // 10)), 1.0)
    shapes = f"i32[b={size}, s={length}]", f"i32[b={size}, s={length}]", f"f32[b={size}]"
    start = build(model, draw_weights(model, rng))
    trainer = train.Trainer(loss, start, optimiser, *shapes, engine=options.engine, debug_nans=options.debug_nans)
    trainer.fit(
        rows,
        epochs=options.steps // per_epoch,
        batch=size,
        checkpoint=options.checkpoint,
        report=lambda epoch, mean: print(f"step {trainer.steps}: loss {mean:.4f}"),
    )
    if options.write:
        print(sample(trainer.parameters, vocabulary, text[:8], options.write, length, options.engine))


if __name__ == "__main__":
    main()
