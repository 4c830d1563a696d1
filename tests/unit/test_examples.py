"""Every example runs, as its page says, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from smelt.device import pjrt
from smelt.engine.native import NativeEngine
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_vocabulary

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
def test_training_digits() -> None:
    said = run("digits/cnn.py", "--engine", "native", "--epochs", "3")
    right = int(said.splitlines()[-1].split()[0])
    assert right >= 0.98 * 360, said


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
