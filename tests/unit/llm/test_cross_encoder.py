"""Encoders of pairs give the logits of transformers (recorded), and the server ranks by them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.bundle.write import write
from smelt.errors import FileError, RunError, UnsupportedError
from smelt.llm import CrossEncoder, EmbeddingModel
from smelt.llm.to_bundle import to_stored
from tests.llm_checkpoints import write_checkpoint
from tests.llm_gguf import write_vocabulary

WORDS = ["<unk>", *(f"w{i}" for i in range(1, 96))]
D, F = 16, 24
QUERY, TEXTS = "w7 w8", ["w9 w10", "w11 w12 w13 w14 w90", "w7"]
# transformers' BertForSequenceClassification and RobertaForSequenceClassification on these weights
LOGITS = {
    "bert": [-0.8381152, -0.7151573, -0.8157453],
    "roberta": [0.343194, 0.4490938, 0.37633],
}


def write_cross_encoder(folder: Path, kind: str, labels: int = 1) -> Path:
    """A tiny model whose tokenizer puts w3 before a pair, and w4 behind each of its texts."""
    config = {
        "architectures": [f"{kind.title()}ForSequenceClassification"], "model_type": kind, "vocab_size": 96,
        "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": F,
        "max_position_embeddings": 34, "type_vocab_size": 2 if kind == "bert" else 1, "layer_norm_eps": 1e-12,
        "pad_token_id": 0 if kind == "bert" else 1, "id2label": {"0": "LABEL_0"},
    }  # fmt: skip
    write_checkpoint(folder, config, shapes(kind, labels))
    write_vocabulary(folder / "tokenizer.json", WORDS)
    record = json.loads((folder / "tokenizer.json").read_text())

    def special(word: str, text: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": word, "type_id": text}}

    first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    record["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [special("w3", 0), first, special("w4", 0)],
        "pair": [special("w3", 0), first, special("w4", 0), second, special("w4", 1)],
        "special_tokens": {word: {"id": word, "ids": [int(word[1:])], "tokens": [word]} for word in ("w3", "w4")},
    }
    (folder / "tokenizer.json").write_text(json.dumps(record))
    return folder


def shapes(kind: str, labels: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        f"{kind}.embeddings.word_embeddings.weight": (96, D),
        f"{kind}.embeddings.position_embeddings.weight": (34, D),
        f"{kind}.embeddings.token_type_embeddings.weight": (2 if kind == "bert" else 1, D),
    }
    linear = {"attention.self.query": (D, D), "attention.self.key": (D, D), "attention.self.value": (D, D)}
    linear |= {"attention.output.dense": (D, D), "intermediate.dense": (F, D), "output.dense": (D, F)}
    layers = {f"{kind}.encoder.layer.{i}.{name}": sizes for i in range(2) for name, sizes in linear.items()}
    if kind == "bert":
        layers |= {"bert.pooler.dense": (D, D), "classifier": (labels, D)}
    else:
        layers |= {"classifier.dense": (D, D), "classifier.out_proj": (labels, D)}
    for name, sizes in layers.items():
        found |= {f"{name}.weight": sizes, f"{name}.bias": sizes[:1]}
    norms = [f"{kind}.encoder.layer.{i}.{name}output" for i in range(2) for name in ("attention.", "")]
    for name in (f"{kind}.embeddings", *norms):
        found |= {f"{name}.LayerNorm.{part}": (D,) for part in ("weight", "bias")}
    return found


@pytest.mark.parametrize(("kind", "engine"), [("bert", "reference"), ("roberta", "reference"), ("bert", "native")])
def test_logits_are_those_of_transformers(kind: str, engine: str, tmp_path: Path) -> None:
    """On native out of a bundle."""
    model: Any
    path = write_cross_encoder(tmp_path, kind)
    if engine == "native":
        write(tmp_path / "x.smelt", to_stored(path, [])[0], None)
        path = tmp_path / "x.smelt"
    with smelt.llm.load(path, engine=engine) as model:
        assert isinstance(model, CrossEncoder)
        found, tokens = model.score(QUERY, TEXTS)
        np.testing.assert_allclose(found, LOGITS[kind], rtol=1e-4, atol=1e-5)
        assert tokens == 23
        np.testing.assert_allclose(model.score(QUERY, TEXTS[1:2])[0], found[1:2], rtol=1e-4, atol=1e-5)
        assert model.score(QUERY, [])[0].shape == (0,)
        assert math.isfinite(model.score("w7 " * 50, ["w8 " * 50])[0][0])  # cut at the context's end
        with pytest.raises(UnsupportedError, match="scores pairs"):
            model.embed("w1")


def test_several_labels_are_no_relevance(tmp_path: Path) -> None:
    model: Any
    with smelt.llm.load(write_cross_encoder(tmp_path, "bert", labels=3), engine="reference") as model:
        assert isinstance(model, EmbeddingModel)
    config = json.loads((tmp_path / "config.json").read_text())
    write_checkpoint(tmp_path, config, shapes("bert", 3) | {"classifier.bias": (1,)})  # the matrix says how many
    with smelt.llm.load(tmp_path, engine="reference") as model:
        assert isinstance(model, EmbeddingModel)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        ({"classifier.weight": (1, D + 1)}, f"[1, {D + 1}] and [1]"),
        ({"classifier.bias": (2,)}, f"[1, {D}] and [2]"),
        ({"bert.pooler.dense.weight": (D, D, 1)}, f"[{D}, {D}, 1] and [{D}]"),
        ({"bert.pooler.dense.weight": (5, D)}, f"[5, {D}] and [{D}]"),
        ({"bert.pooler.dense.weight": (5, D), "bert.pooler.dense.bias": (5,)}, f"[1, {D}] and [1]"),
    ],
)
def test_layers_that_do_not_fit_are_refused(change: dict[str, tuple[int, ...]], got: str, tmp_path: Path) -> None:
    write_cross_encoder(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    write_checkpoint(tmp_path, config, shapes("bert", 1) | change)
    with pytest.raises(FileError, match="a layer behind the encoder does not fit") as caught:
        smelt.llm.load(tmp_path, engine="reference")
    assert caught.value.got == got


def test_tokens_outside_of_the_vocabulary(tmp_path: Path) -> None:
    write_cross_encoder(tmp_path, "bert")
    write_vocabulary(tmp_path / "tokenizer.json", [*WORDS, "w96"])
    model: Any
    with smelt.llm.load(tmp_path, engine="reference") as model, pytest.raises(RunError, match="of the vocabulary"):
        model.score("w96", ["w1"])
