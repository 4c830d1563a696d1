"""`langchain-openai`, unmodified, as a second client of the OpenAI side."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import pytest

from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_vocabulary
from tests.unit.llm.test_embedding import PLAIN, write_folder
from tests.unit.serve.test_server import Server


@pytest.mark.slow
def test_the_tour_of_langchain(tmp_path: Path) -> None:
    """Its own environment: it pins versions of what we use."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "langchain-openai"]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=250)
    if done.returncode:
        pytest.skip(f"langchain-openai cannot be installed here: {done.stderr[-200:]}")
    for name in ("tiny", "encoder"):
        (tmp_path / name).mkdir()
    case = Case.load(FIXTURE)[0]
    write_checkpoint(tmp_path / "tiny", case.config, case.shapes)
    (tmp_path / "tiny" / "chat_template.jinja").write_text("{% for m in messages %}w5 {{ m.content }} {% endfor %}w6")
    write_folder(tmp_path / "encoder", "bert", PLAIN, {"pooling_mode_mean_tokens": True})
    for name in ("tiny", "encoder"):
        write_vocabulary(tmp_path / name / "tokenizer.json", ["<unk>", *(f"w{i}" for i in range(1, 96))])
    server = Server(str(tmp_path / "tiny"), str(tmp_path / "encoder"), "--engine", "reference")
    try:
        tour = [python, str(Path(__file__).with_name("langchain_tour.py")), f"http://127.0.0.1:{server.http}/v1"]
        done = subprocess.run(tour, capture_output=True, text=True, check=False, timeout=200)
        assert done.stdout == "the tour is over\n", done.stderr
    finally:
        server.close()
