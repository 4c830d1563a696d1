"""A tiny decoder and a tiny encoder in folders, for servers of language models."""

from __future__ import annotations

from pathlib import Path

from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_vocabulary
from tests.unit.llm.test_embedding import PLAIN, write_folder

WORDS = ["<unk>", *(f"w{i}" for i in range(1, 96))]


def write_language_models(path: Path) -> Path:
    """`tiny` with a chat template, and `encoder`; the words of both are w1 … w95."""
    for name in ("tiny", "encoder"):
        (path / name).mkdir()
    case = Case.load(FIXTURE)[0]
    write_checkpoint(path / "tiny", case.config, case.shapes)
    (path / "tiny" / "chat_template.jinja").write_text("{% for m in messages %}w5 {{ m.content }} {% endfor %}w6")
    write_folder(path / "encoder", "bert", PLAIN, {"pooling_mode_mean_tokens": True})
    for name in ("tiny", "encoder"):
        write_vocabulary(path / name / "tokenizer.json", WORDS)
    return path
