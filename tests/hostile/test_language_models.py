"""Language models on bad input: tokenizers that say anything, prompts without end, weights that are no numbers, files
that end early, memory that is not there. Each is a clear error, and the model goes on."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import smelt.llm
from smelt.errors import FileError, MemoryLimitError, ParseError, RunError, SmeltError
from smelt.llm import LanguageModel
from smelt.llm.checkpoint import open as open_checkpoint
from smelt.llm.tokenizer import Detokenizer, from_text
from smelt.read import safetensors
from tests.hostile.bundle_fuzz import _twist
from tests.llm_checkpoints import FIXTURE, Case, weight, write_checkpoint
from tests.llm_gguf import write_vocabulary

CASE = Case.load(FIXTURE)[0]
TEXTS = ("the quick brown fox jumps over the lazy dog " * 5, "Hello, wörld! 123 日本語 🙂", "def f(x):\n\treturn x+1\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, CASE.config, CASE.shapes)
    write_vocabulary(tmp_path / "tokenizer.json", ["<unk>", *(f"w{i}" for i in range(1, 96))])
    return tmp_path


def load(folder: Path) -> LanguageModel:
    return smelt.llm.load(folder, engine="reference")


# ---- prompts ----


def test_prompts_that_do_not_fit(folder: Path) -> None:
    with load(folder) as model:
        for prompt in ([3] * 10**6, "w3 " * 10**5, [3] * (model.context + 1), list(range(model.context))[::-1]):
            with pytest.raises(RunError, match=r"too many tokens|no such token"):
                model.generate(prompt)
        strange: list[Any] = [[], "", None, [1.5], [10**30], [[1, 2]], "w3 \ud800", [True, "w3"], {"a": 1}]
        for prompt in strange:
            with pytest.raises(SmeltError):
                model.generate(prompt)
        assert model.generate([3] * (model.context - 1), max_tokens=9, ignore_end=True).finish == "length"


# ---- weights ----


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(folder: Path, value: float) -> None:
    arrays = {name: weight(name, sizes).copy() for name, sizes in CASE.shapes.items()}
    arrays["model.layers.0.mlp.up_proj.weight"][0, 0] = value
    safetensors.write(folder / "model.safetensors", arrays, {})
    with load(folder) as model:
        for ask in (
            lambda: model.generate([3, 4]),
            lambda: model.generate([3, 4], temperature=1.0),
            lambda: model.logits([3, 4]),
            lambda: model.embed([[3, 4]]),
        ):
            with pytest.raises(RunError, match="no numbers"):
                ask()


def test_shards_that_end_early(folder: Path) -> None:
    arrays = {name: weight(name, sizes) for name, sizes in CASE.shapes.items()}
    names = sorted(arrays)
    parts = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for file, inside in parts.items():
        safetensors.write(folder / file, {name: arrays[name] for name in inside}, {})
    index = {"weight_map": {name: file for file, inside in parts.items() for name in inside}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert len(open_checkpoint(folder).weights) == len(names)
    whole = (folder / "b.safetensors").read_bytes()
    for left in (0, 7, 8, 100, len(whole) - 1):
        (folder / "b.safetensors").write_bytes(whole[:left])
        with pytest.raises((FileError, ParseError)):
            load(folder)
    (folder / "b.safetensors").unlink()
    with pytest.raises(FileError):
        load(folder)


# ---- memory ----


def test_memory_that_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(folder) as model:
        with monkeypatch.context() as full:

            def fail(*_: Any) -> Any:
                raise MemoryError

            full.setattr(model._engine.pool, "_enlarge", fail)
            for _ in range(2):
                with pytest.raises(MemoryLimitError, match="no memory left"):
                    model.generate([3, 4])
        assert len(model.generate([3, 4], max_tokens=3, ignore_end=True).ids) == 3
        assert model._engine.pool.pages.held == 0


# ---- tokenizers ----


def tokenizers() -> dict[str, str]:
    """Small ones of every kind."""
    package = pytest.importorskip("tokenizers")
    models, before, after, train = package.models, package.pre_tokenizers, package.processors, package.trainers
    pairs = package.Tokenizer(models.BPE())
    pairs.pre_tokenizer, pairs.decoder = before.ByteLevel(add_prefix_space=False), package.decoders.ByteLevel()
    alphabet = before.ByteLevel.alphabet()
    trainer = train.BpeTrainer(vocab_size=300, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False)
    pairs.train_from_iterator(TEXTS, trainer)
    pieces = package.Tokenizer(models.Unigram())
    pieces.normalizer, pieces.pre_tokenizer = package.normalizers.NFKC(), before.Metaspace()
    pieces.decoder = package.decoders.Metaspace()
    special = {"special_tokens": ["<unk>"], "unk_token": "<unk>", "show_progress": False}
    pieces.train_from_iterator(TEXTS, train.UnigramTrainer(vocab_size=80, **special))
    words = package.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = package.normalizers.BertNormalizer(), before.BertPreTokenizer()
    words.decoder = package.decoders.WordPiece()
    own = ["[UNK]", "[CLS]", "[SEP]"]
    words.train_from_iterator(TEXTS, train.WordPieceTrainer(vocab_size=120, special_tokens=own, show_progress=False))
    words.post_processor = after.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return {"pairs": pairs.to_str(), "pieces": pieces.to_str(), "words": words.to_str()}


def test_damaged_tokenizers_are_read_or_refused(seed: int) -> None:
    for text in tokenizers().values():
        for number in range(60):
            choose = Random(f"{seed} {number}")
            record = json.loads(text)
            parts = [part for part in record.values() if isinstance(part, dict | list) and part]
            _twist(choose.choice(parts), choose)
            try:
                found = from_text(json.dumps(record), "tokenizer.json")
                for each in (*TEXTS, "", "\0", "a" * 500):
                    found.decode(found.encode(each))
                    found.encode_up_to(each, 3)
                shown = Detokenizer(found)
                for token in (*range(9), 10**6):
                    shown.add(token)
                from_text(found.to_json(), "again")
            except SmeltError:
                continue
